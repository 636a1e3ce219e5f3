/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench disk: the disk tier against fio(1) with io_uring, in one
 * directory, with blocks of one size and as many under way. The two take
 * turns, each pair of runs gives a ratio, and the medians are shown.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/units.h"
#include "tools/bench.h"
#include "tools/bench_disk.h"
#include "tools/median.h"
#include "tools/output.h"
#include "tools/table.h"

#define EXIT_CANNOT 77
#define PAIRS_MAX 1000u

enum { OPT_PAIRS = 256, OPT_OPS, OPT_ENGINE, OPT_DURABILITY };

struct rates {
	double *ours;
	double *fio;
	double *ratio;
};

struct bench {
	struct bench_disk_args a;
	struct bench_disk_ours *ours;
	struct rates op[2]; /* write, read */
	char dir[4096]; /* made for this run */
	char store[4096];
	struct kvs_table *table;
};

static atomic_bool interrupted;

static void on_signal(int sig)
{
	(void)sig;
	atomic_store(&interrupted, true);
}

/* ---- runs ---- */

static int one(struct bench *b, bool ours, bool read, double *ret_gbps)
{
	if (atomic_load(&interrupted))
		return -ECANCELED;
	if (!ours)
		return bench_disk_fio(&b->a, b->dir, read, ret_gbps);
	return read ? bench_disk_ours_read(b->ours, ret_gbps)
		    : bench_disk_ours_write(b->ours, ret_gbps);
}

/* Pair @i of an op; which side begins changes. */
static int pair(struct bench *b, uint64_t i, bool read)
{
	struct rates *r = &b->op[read];
	double ours = 0, fio = 0;
	int rc;

	rc = one(b, i % 2, read, i % 2 ? &ours : &fio);
	if (!rc)
		rc = one(b, !(i % 2), read, i % 2 ? &fio : &ours);
	if (rc)
		return rc;
	fprintf(stderr, "%s: ours %.2f, fio %.2f GB/s\n",
		read ? "read" : "write", ours, fio);
	/* the first pair warms the disk up */
	if (i) {
		r->ours[i - 1] = ours;
		r->fio[i - 1] = fio;
		r->ratio[i - 1] = ours / fio;
	}
	return 0;
}

static int measure(struct bench *b)
{
	uint64_t i;
	int rc = 0;

	for (i = 0; i <= b->a.pairs && !rc; i++) {
		/* reads need files */
		if (b->a.write || !i)
			rc = pair(b, i, false);
		if (!rc && b->a.read)
			rc = pair(b, i, true);
	}
	return rc;
}

static void show(struct bench *b, bool read)
{
	struct rates *r = &b->op[read];
	size_t n = b->a.pairs;
	double ours = kvs_median(r->ours, n), fio = kvs_median(r->fio, n),
	       ratio = kvs_median(r->ratio, n);

	if (b->table) {
		kvs_table_cell(b->table, "%s", read ? "read" : "write");
		kvs_table_cell(b->table, "%" PRIu64, b->a.bs);
		kvs_table_cell(b->table, "%" PRIu64, b->a.depth);
		kvs_table_cell(b->table, "%.2f", ours);
		kvs_table_cell(b->table, "%.2f", fio);
		kvs_table_cell(b->table, "%.3f", ratio);
		kvs_table_cell(b->table, "%zu", n);
		return;
	}
	printf("{\"bench\": \"disk\", \"op\": \"%s\", \"bs\": %" PRIu64
	       ", \"depth\": %" PRIu64
	       ", \"ours_gbps\": %.4f, \"fio_gbps\": %.4f, \"ratio\": %.4f, "
	       "\"pairs\": %zu, \"size\": %" PRIu64
	       ", \"engine\": \"%s\", \"direct\": %s, \"fixed\": %s, "
	       "\"durability\": \"%s\"}\n",
	       read ? "read" : "write", b->a.bs, b->a.depth, ours, fio, ratio,
	       n, b->a.size, bench_disk_ours_engine(b->ours),
	       bench_disk_ours_direct(b->ours) ? "true" : "false",
	       bench_disk_ours_fixed(b->ours) ? "true" : "false",
	       kvs_durability_name[b->a.durability]);
	(void)kvs_output_flush();
}

/* ---- command line ---- */

static const struct argp_option options[] = {
	{ "dir", 'd', "DIR", 0, "Where to make the files (default /var/tmp)",
	  0 },
	{ "size", 's', "SIZE", 0, "Bytes a run (default 1G)", 0 },
	{ "bs", 'b', "SIZE", 0, "Block: bytes of a page (default 1M)", 0 },
	{ "depth", 'q', "N", 0, "Transfers under way (default 8)", 0 },
	{ "pairs", OPT_PAIRS, "N", 0, "Pairs of runs (default 7)", 0 },
	{ "ops", OPT_OPS, "LIST", 0, "write, read or write,read (default)", 0 },
	{ "engine", OPT_ENGINE, "NAME", 0, "Ours: auto, uring or plain", 0 },
	{ "durability", OPT_DURABILITY, "NAME", 0,
	  "Ours: none (default) or fdatasync", 0 },
	{ "json", 'j', NULL, 0, "One JSON object per op", 0 },
	{ 0 }
};

static bool number(const char *arg, uint64_t max, uint64_t *ret)
{
	uint64_t v;

	if (kvs_parse_u64(arg, &v) || !v || v > max)
		return false;
	*ret = v;
	return true;
}

static bool ops(struct bench_disk_args *a, const char *arg)
{
	a->write = !strcmp(arg, "write") || !strcmp(arg, "write,read");
	a->read = !strcmp(arg, "read") || !strcmp(arg, "write,read");
	return a->write || a->read;
}

static error_t parse_size(struct bench_disk_args *a, int key, char *arg,
			  struct argp_state *state)
{
	uint64_t *to = key == 's' ? &a->size : &a->bs;

	if (kvs_parse_size(arg, to) || !*to || *to % 4096 ||
	    (key == 'b' && *to > KVS_SEG_PAGE_MAX) || *to > 1ULL << 44)
		argp_error(state, "--%s %s: a multiple of 4096",
			   key == 's' ? "size" : "bs", arg);
	return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct bench_disk_args *a = state->input;
	bool ok = true;

	switch (key) {
	case 's':
	case 'b':
		return parse_size(a, key, arg, state);
	case 'd':
		a->dir = arg;
		ok = strlen(arg) && strlen(arg) < 4000;
		break;
	case 'q':
		ok = number(arg, KVS_DISK_DEPTH_MAX, &a->depth);
		break;
	case OPT_PAIRS:
		ok = number(arg, PAIRS_MAX, &a->pairs);
		break;
	case OPT_OPS:
		ok = ops(a, arg);
		break;
	case OPT_ENGINE:
		a->engine = arg;
		ok = !strcmp(arg, "auto") || !strcmp(arg, "uring") ||
		     !strcmp(arg, "plain");
		break;
	case OPT_DURABILITY:
		a->durability = strcmp(arg, "none") ? KVS_DURABILITY_FDATASYNC
						    : KVS_DURABILITY_NONE;
		ok = !strcmp(arg, kvs_durability_name[a->durability]);
		break;
	case 'j':
		a->json = true;
		break;
	case ARGP_KEY_END:
		if (a->size < a->bs || a->size % a->bs)
			argp_error(state, "--size must be a multiple of --bs");
		if (a->bs * a->depth > 1ULL << 34)
			argp_error(state, "--bs times --depth: at most 16G");
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	if (!ok)
		argp_error(state, "%s: out of range, or no such thing", arg);
	return 0;
}

static int set_up(struct bench *b)
{
	double *v = calloc(6 * b->a.pairs, sizeof(*v));
	unsigned int i;
	int rc = 0;

	if (!v)
		return -ENOMEM;
	for (i = 0; i < 2; i++) {
		b->op[i].ours = v + (3 * i) * b->a.pairs;
		b->op[i].fio = v + (3 * i + 1) * b->a.pairs;
		b->op[i].ratio = v + (3 * i + 2) * b->a.pairs;
	}
	snprintf(b->dir, sizeof(b->dir), "%s/kvstage-bench-XXXXXX", b->a.dir);
	if (!mkdtemp(b->dir)) {
		rc = -errno;
		fprintf(stderr, "disk: %s: %s\n", b->dir, strerror(errno));
		*b->dir = '\0';
		return rc;
	}
	snprintf(b->store, sizeof(b->store), "%.4000s/store", b->dir);
	if (!b->a.json)
		rc = kvs_table_create("<op bs depth ours_gbps fio_gbps ratio "
				      "pairs",
				      &b->table);
	if (!rc)
		rc = bench_disk_ours_create(&b->a, b->store, &b->ours);
	return rc;
}

static void tear_down(struct bench *b)
{
	bench_disk_ours_destroy(b->ours);
	kvs_table_destroy(b->table);
	free(b->op[0].ours);
	if (*b->dir)
		bench_disk_remove(b->dir);
}

int kvs_bench_disk(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "How fast pages go to the disk tier and come back, "
		       "checksums included, against fio with io_uring.",
	};
	static struct bench b = { .a = { .dir = "/var/tmp",
					 .engine = "auto",
					 .size = 1ULL << 30,
					 .bs = 1ULL << 20,
					 .depth = 8,
					 .pairs = 7,
					 .write = true,
					 .read = true } };
	struct sigaction sa = { .sa_handler = on_signal };
	int rc;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &b.a);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	rc = set_up(&b);
	if (!rc)
		rc = measure(&b);
	if (!rc && b.a.write)
		show(&b, false);
	if (!rc && b.a.read)
		show(&b, true);
	if (!rc && b.table)
		rc = kvs_table_print(b.table, stdout);
	tear_down(&b);
	if (rc == -ENOEXEC) {
		fprintf(stderr, "disk: there is no fio with io_uring here to "
				"measure beside\n");
		return EXIT_CANNOT;
	}
	if (rc)
		fprintf(stderr, "disk: %s\n",
			rc == -ECANCELED ? "interrupted" : strerror(-rc));
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
