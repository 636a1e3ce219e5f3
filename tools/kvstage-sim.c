/* SPDX-License-Identifier: Apache-2.0 */
/* kvstage-sim(1): arguments, and the batch of schedules they name. */
#include <argp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/random.h"
#include "lib/rule.h"
#include "lib/units.h"
#include "tools/output.h"
#include "tools/sim/batch.h"

#define EXIT_USAGE 2

enum {
	OPT_SEEDS = 256,
	OPT_JOBS,
	OPT_JSON,
	OPT_REPLAY,
	OPT_BREAK,
};

static const struct argp_option options[] = {
	{ "seeds", OPT_SEEDS, "A..B|random:N", 0,
	  "One schedule for each seed from A to B, or for N seeds in a row "
	  "from one that is drawn and printed",
	  0 },
	{ "jobs", OPT_JOBS, "N", 0,
	  "Processes at a time (default: the number of CPUs)", 0 },
	{ "json", OPT_JSON, NULL, 0, "One JSON object a line", 0 },
	{ "replay", OPT_REPLAY, "SEED", 0,
	  "Run this schedule alone and print its history", 0 },
	{ "break", OPT_BREAK, "RULE", OPTION_HIDDEN, "Take a safety rule out",
	  0 },
	{ 0 },
};

static int number(const char *s, uint64_t *ret)
{
	return kvs_parse_u64(s, ret);
}

static void parse_seeds(char *arg, struct kvs_sim_batch *b,
			struct argp_state *state)
{
	char *dots = strstr(arg, "..");
	uint64_t n;

	if (!strncmp(arg, "random:", 7)) {
		if (number(arg + 7, &n) || !n ||
		    kvs_random_fill(&b->first, sizeof(b->first)))
			argp_error(state, "--seeds: %s: random:N, N from 1",
				   arg);
		/* short enough to be typed again, and away from fixed ones */
		b->first = b->first % 1000000000000ULL + 1000000000ULL;
		b->last = b->first + n - 1;
		return;
	}
	if (dots)
		*dots = '\0';
	if (!dots || number(arg, &b->first) || number(dots + 2, &b->last) ||
	    b->last < b->first || b->last - b->first > 1000000000000ULL)
		argp_error(state, "--seeds: A..B, A not above B");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct kvs_sim_batch *b = state->input;
	uint64_t n;

	switch (key) {
	case OPT_SEEDS:
		parse_seeds(arg, b, state);
		b->seeds = true;
		return 0;
	case OPT_JOBS:
		if (number(arg, &n) || !n || n > KVS_SIM_JOBS_MAX)
			argp_error(state, "--jobs: 1 to %d", KVS_SIM_JOBS_MAX);
		b->jobs = (unsigned int)n;
		return 0;
	case OPT_JSON:
		b->json = true;
		return 0;
	case OPT_REPLAY:
		if (number(arg, &b->first))
			argp_error(state, "--replay: %s is not a seed", arg);
		b->last = b->first;
		b->replay = true;
		return 0;
	case OPT_BREAK:
#ifdef KVS_MUTATE
		if (kvs_rule_off(arg))
			argp_error(state, "--break: no rule %s", arg);
#else
		argp_error(state, "--break: not in this build (KVS_MUTATE)");
#endif
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "%s: takes no arguments", arg);
		return 0;
	case ARGP_KEY_END:
		if (b->seeds == b->replay)
			argp_error(state, "one of --seeds and --replay");
		if (b->replay && b->json)
			argp_error(state, "--json is not for --replay: a "
					  "history is lines of text");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Run the whole pipeline of kvstage, sender to engine, "
		       "under a virtual clock and random schedules with "
		       "faults, and check it after every step."
		       "\vThe last line says: seeds A..B schedules N failures "
		       "F per_second X. Before it: how often each event met "
		       "each state of a room, and each kind of fault. Exit 1 "
		       "when a schedule failed (its history is printed), or "
		       "when a batch of 10,000 or more left something out.",
	};
	struct kvs_sim_batch b = {
		.jobs = (unsigned int)sysconf(_SC_NPROCESSORS_ONLN),
	};

	kvs_output_watch("kvstage-sim");
	argp_program_version = "kvstage-sim " KVS_VERSION;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &b);
	if (b.jobs > KVS_SIM_JOBS_MAX)
		b.jobs = KVS_SIM_JOBS_MAX;
	/* a world is some megabytes, again and again */
	(void)mallopt(M_MMAP_THRESHOLD, 64 << 20);
	(void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
	return b.replay ? kvs_sim_replay(b.first) : kvs_sim_batch(&b);
}
