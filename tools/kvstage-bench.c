/* SPDX-License-Identifier: Apache-2.0 */
/* The front of kvstage-bench(1): finds the subcommand and hands over. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/output.h"

#define EXIT_USAGE 2

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "abort", kvs_bench_abort },	{ "cache", kvs_bench_cache },
	{ "commit", kvs_bench_commit }, { "disk", kvs_bench_disk },
	{ "h2d", kvs_bench_h2d },	{ "pool", kvs_bench_pool },
	{ "recv", kvs_bench_recv },	{ "report", kvs_bench_report },
	{ "rooms", kvs_bench_rooms },	{ "ttft", kvs_bench_ttft },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	int *first = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		(void)arg;
		*first = state->next - 1;
		/* The rest is the subcommand's. */
		state->next = state->argc;
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_usage(state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	const struct argp argp = {
		.parser = parse,
		.args_doc = "SUBCOMMAND [OPTION...]",
		.doc = "Measure kvstage on this machine."
		       "\vSubcommands:\n"
		       "  abort   from an abort in mid-transfer to free memory\n"
		       "  cache   hit ratios of a trace, and cost of the index\n"
		       "  commit  copying a room to a device, against one copy\n"
		       "  disk    pages to the disk and back, against fio\n"
		       "  h2d     copying scattered pages, against one copy\n"
		       "  pool    populating a pool, for each page size\n"
		       "  recv    receiving into a pool, against a plain loop\n"
		       "  report  draw what ttft --out wrote\n"
		       "  rooms   control-path CPU of a room, and a poll of all\n"
		       "  ttft    time to first token while memory is held\n"
		       "\n"
		       "\"kvstage-bench SUBCOMMAND --help\" lists its options. "
		       "With --json one object a line goes to standard output.",
	};
	char name[64];
	int first = 0;

	kvs_output_watch("kvstage-bench");
	argp_program_version = "kvstage-bench " KVS_VERSION;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &first);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(argv[first], commands[i].name) != 0)
			continue;
		/* Usage texts name both words. */
		snprintf(name, sizeof(name), "kvstage-bench %s",
			 commands[i].name);
		argv[first] = name;
		return commands[i].run(argc - first, argv + first);
	}
	fprintf(stderr,
		"kvstage-bench: no subcommand \"%s\"; there are abort, "
		"cache, commit, disk, h2d, pool, recv, report, rooms and ttft\n",
		argv[first]);
	return EXIT_USAGE;
}
