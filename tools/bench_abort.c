/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench abort: how long memory is held when rooms end in the middle of
 * their transfer, and what ended the hold. This file is what it is asked and
 * what it says; see bench_abort.h for who is who.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/units.h"
#include "tools/bench.h"
#include "tools/bench_abort.h"
#include "tools/median.h"
#include "tools/table.h"

#define EXIT_USAGE 2
#define EXIT_CANNOT 77
#define COUNT_MAX 100000
#define ROOM_MIN (128u * KVS_ABORT_PAGE_BYTES)
#define ROOM_MAX (1ULL << 30)
/* then transfer.call_timeout is near, and the writer's own end would count */
#define STALLED_HOLD_MAX (9 * KVS_NSEC_PER_SEC)

/* ---- results ---- */

static double largest(const double *v, size_t n)
{
	double max = 0;

	for (size_t i = 0; i < n; i++)
		if (v[i] > max)
			max = v[i];
	return max;
}

/* "drained/all_acknowledged" N, as JSON members or as one word. */
static void outcomes(const struct kvs_abort_bench *b, bool json, char *buf,
		     size_t len)
{
	size_t n = 0;

	buf[0] = '\0';
	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (int p = 0; p < KVS_PROOF_MAX && n < len; p++)
			if (b->outcomes[o][p])
				n += (size_t)snprintf(
					buf + n, len - n,
					json ? "%s\"%s/%s\": %" PRIu64
					     : "%s%s/%s:%" PRIu64,
					n ? json ? ", " : "," : "",
					kvs_drain_outcome_name[o],
					kvs_proof_name[p], b->outcomes[o][p]);
}

static int show(const struct kvs_abort_bench *b)
{
	const uint64_t target = kvs_abort_kinds[b->args.writer].target;
	size_t n = b->done;
	double max = largest(b->ms, n), drain_max = largest(b->drain_ms, n);
	double ms = kvs_median(b->ms, n), drain = kvs_median(b->drain_ms, n);
	struct kvs_table *t;
	char text[512];
	int r;

	outcomes(b, b->args.json, text, sizeof(text));
	if (b->args.json) {
		printf("{\"bench\": \"abort\", \"writer\": \"%s\", "
		       "\"count\": %" PRIu64 ", \"median_ms\": %.3f, "
		       "\"max_ms\": %.3f, \"drain_median_ms\": %.3f, "
		       "\"drain_max_ms\": %.3f, \"outcomes\": {%s}, "
		       "\"unexpected\": %" PRIu64 ", \"target_ms\": %.0f, "
		       "\"over_target\": %" PRIu64 ", \"misses\": %" PRIu64
		       ", \"late_bytes\": %" PRIu64 ", ",
		       kvs_abort_kinds[b->args.writer].name, b->done, ms, max,
		       drain, drain_max, text, b->unexpected,
		       (double)(target ? target : b->hold_timeout) /
			       (double)KVS_NSEC_PER_MSEC,
		       b->over_target, b->misses, b->late);
		if (b->args.writer == KVS_ABORT_KILLED)
			printf("\"loss_median_ms\": %.3f, "
			       "\"loss_max_ms\": %.3f, ",
			       kvs_median(b->loss_ms, n),
			       largest(b->loss_ms, n));
		if (b->args.writer == KVS_ABORT_STALLED)
			printf("\"late_bytes_after\": %" PRIu64
			       ", \"bytes_compared\": %" PRIu64
			       ", \"bytes_wrong\": %" PRIu64 ", ",
			       b->late_after, b->compared, b->wrong);
		printf("\"acks_ignored\": %" PRIu64 ", \"held_bytes\": %" PRIu64
		       ", \"hold_timeout_ms\": %.3f, \"room_bytes\": %" PRIu64
		       ", \"engine\": \"%s\"}\n",
		       b->end.acks_ignored, b->end.held,
		       (double)b->hold_timeout / (double)KVS_NSEC_PER_MSEC,
		       b->args.room, b->engine);
		return 0;
	}
	r = kvs_table_create(
		b->args.writer == KVS_ABORT_KILLED
			? "writer count median_ms max_ms loss_max_ms "
			  "drain_median_ms drain_max_ms <outcomes misses "
			  "late_bytes late_bytes_after bytes_wrong held_bytes "
			  "hold_timeout_ms"
			: "writer count median_ms max_ms "
			  "drain_median_ms drain_max_ms <outcomes misses "
			  "late_bytes late_bytes_after bytes_wrong held_bytes "
			  "hold_timeout_ms",
		&t);
	if (r)
		return r;
	kvs_table_cell(t, "%s", kvs_abort_kinds[b->args.writer].name);
	kvs_table_cell(t, "%" PRIu64, b->done);
	kvs_table_cell(t, "%.3f", ms);
	kvs_table_cell(t, "%.3f", max);
	if (b->args.writer == KVS_ABORT_KILLED)
		kvs_table_cell(t, "%.3f", largest(b->loss_ms, n));
	kvs_table_cell(t, "%.3f", drain);
	kvs_table_cell(t, "%.3f", drain_max);
	kvs_table_cell(t, "%s", text);
	kvs_table_cell(t, "%" PRIu64, b->misses);
	kvs_table_cell(t, "%" PRIu64, b->late);
	kvs_table_cell(t, "%" PRIu64, b->late_after);
	kvs_table_cell(t, "%" PRIu64, b->wrong);
	kvs_table_cell(t, "%" PRIu64, b->end.held);
	kvs_table_cell(t, "%.0f",
		       (double)b->hold_timeout / (double)KVS_NSEC_PER_MSEC);
	r = kvs_table_print(t, stdout);
	kvs_table_destroy(t);
	return r;
}

/* ---- command line ---- */

static const struct argp_option options[] = {
	{ "count", 'n', "N", 0, "Aborts (default 132)", 0 },
	{ "writer", 'w', "KIND", 0,
	  "What the writer does: acks (default), killed, stalled", 0 },
	{ "room", 'r', "SIZE", 0,
	  "Bytes of a room, a multiple of 128K from 16M to 1G (default 64M)",
	  0 },
	{ "hold-timeout", 'H', "TIME", 0,
	  "hold.timeout of the daemon (default 30s; stalled: 300ms, 9s at "
	  "most)",
	  0 },
	{ "engine", 'e', "NAME", 0, "How TCP is driven: auto, uring, sock", 0 },
	{ "json", 'j', NULL, 0, "One JSON object", 0 },
	{ 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct kvs_abort_args *a = state->input;
	int i = 0;

	switch (key) {
	case 'n':
		if (kvs_parse_u64(arg, &a->count) || !a->count ||
		    a->count > COUNT_MAX)
			argp_error(state, "--count %s: from 1 to %d", arg,
				   COUNT_MAX);
		return 0;
	case 'w':
		while (i < KVS_ABORT_KINDS &&
		       strcmp(arg, kvs_abort_kinds[i].name) != 0)
			i++;
		if (i == KVS_ABORT_KINDS)
			argp_error(state,
				   "--writer %s: acks, killed or stalled", arg);
		a->writer = (enum kvs_abort_writer_kind)i;
		return 0;
	case 'r':
		if (kvs_parse_size(arg, &a->room) || a->room < ROOM_MIN ||
		    a->room > ROOM_MAX || a->room % KVS_ABORT_PAGE_BYTES)
			argp_error(state,
				   "--room %s: a multiple of %uK from %uM to "
				   "1G",
				   arg, KVS_ABORT_PAGE_BYTES >> 10,
				   ROOM_MIN >> 20);
		return 0;
	case 'H':
		if (kvs_parse_duration(arg, &a->hold_timeout) ||
		    a->hold_timeout < KVS_NSEC_PER_MSEC ||
		    a->hold_timeout > 3600 * KVS_NSEC_PER_SEC)
			argp_error(state, "--hold-timeout %s: from 1ms to 1h",
				   arg);
		return 0;
	case 'e':
		if (strcmp(arg, "auto") != 0 && strcmp(arg, "uring") != 0 &&
		    strcmp(arg, "sock") != 0)
			argp_error(state, "--engine %s: auto, uring or sock",
				   arg);
		a->engine = arg;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_END:
		if (a->writer == KVS_ABORT_STALLED &&
		    a->hold_timeout > STALLED_HOLD_MAX)
			argp_error(state,
				   "--hold-timeout: 9s at most with --writer "
				   "stalled: at transfer.call_timeout, 10s, "
				   "the writer would be cut off by itself");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int kvs_bench_abort(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "How long the memory of a room that ends in the middle "
		       "of its transfer is held, and by what proof it comes "
		       "back.",
	};
	struct kvs_abort_bench b = {
		.args = { .count = 132, .room = 64ULL << 20, .engine = "auto" },
		.ask = -1,
	};
	int r;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &b.args);
	kvs_log_set_level(KVS_LOG_ERR);
	b.hold_timeout = b.args.hold_timeout
				 ? b.args.hold_timeout
				 : kvs_abort_kinds[b.args.writer].hold_timeout;
	b.tokens = b.args.room / KVS_ABORT_PAGE_BYTES * KVS_ABORT_PAGE_TOKENS;
	b.chunk = kvs_abort_extent_tokens(b.tokens) / KVS_ABORT_PAGE_TOKENS *
		  KVS_ABORT_ITEM;
	b.ms = calloc(b.args.count, sizeof(*b.ms));
	b.loss_ms = calloc(b.args.count, sizeof(*b.loss_ms));
	b.drain_ms = calloc(b.args.count, sizeof(*b.drain_ms));
	snprintf(b.dir, sizeof(b.dir), "/tmp/kvstage-bench-XXXXXX");
	r = !b.ms || !b.loss_ms || !b.drain_ms ? -ENOMEM
	    : mkdtemp(b.dir)		       ? 0
					       : -errno;
	if (r) {
		b.dir[0] = '\0';
		fprintf(stderr, "abort: %s\n", strerror(-r));
	} else {
		r = kvs_abort_run(&b);
	}
	if (!r)
		r = show(&b);
	kvs_abort_down(&b, !r);
	if (r == -EOPNOTSUPP)
		return EXIT_CANNOT;
	return r || b.unexpected || b.wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
