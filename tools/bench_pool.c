/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench pool: how fast a region is populated, against the best a
 * program could do by itself: the same kind of memory, one plain thread per
 * local core, each with an equal share and one bare MADV_POPULATE_WRITE. The
 * two take turns, each pair of runs gives a ratio, and the medians are shown.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <numaif.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/units.h"
#include "pinned/region.h"
#include "tools/bench.h"
#include "tools/hugepages.h"
#include "tools/output.h"
#include "tools/table.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif

#define EXIT_CANNOT 77
#define THREADS_MAX 1024
#define REPEATS_MAX 1000

struct args {
	uint64_t size;
	uint64_t repeats;
	bool reserve;
	bool json;
};

/**
 * struct bench - what all page sizes share
 * @args: command line
 * @topo: this machine
 * @node: node the memory is on, or -1
 * @cpus: CPUs near it that we may use
 * @threads: how many these are
 * @table: results for people; NULL with --json
 */
struct bench {
	struct args args;
	struct kvs_topology *topo;
	int node;
	cpu_set_t cpus;
	unsigned int threads;
	struct kvs_table *table;
};

/* One run of one side, GB/s; create is the whole of kvs_region_create(). */
struct run {
	double prefault;
	double create;
};

static atomic_bool interrupted;

static void on_signal(int sig)
{
	(void)sig;
	atomic_store(&interrupted, true);
}

static double gbps(uint64_t bytes, uint64_t ns)
{
	return ns ? (double)bytes / (double)ns : 0;
}

static int cmp_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), cmp_double);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- the baseline ---- */

struct share {
	pthread_t tid;
	const cpu_set_t *cpus;
	char *base;
	uint64_t len;
	int error;
};

static void *populate_share(void *arg)
{
	struct share *s = arg;

	(void)pthread_setaffinity_np(pthread_self(), sizeof(*s->cpus), s->cpus);
	if (s->len && madvise(s->base, s->len, MADV_POPULATE_WRITE) < 0)
		s->error = -errno;
	return NULL;
}

static int populate_bare(const struct bench *b, char *base, uint64_t page_size,
			 uint64_t *ret_ns)
{
	uint64_t pages = b->args.size / page_size, from, to, start;
	struct share *s = calloc(b->threads, sizeof(*s));
	unsigned int i, made;
	int r = 0;

	if (!s)
		return -ENOMEM;
	start = kvs_clock_now(&kvs_clock_real);
	for (made = 0; made < b->threads; made++) {
		from = pages * made / b->threads;
		to = pages * (made + 1) / b->threads;
		s[made].cpus = &b->cpus;
		s[made].base = base + from * page_size;
		s[made].len = (to - from) * page_size;
		r = -pthread_create(&s[made].tid, NULL, populate_share,
				    &s[made]);
		if (r < 0)
			break;
	}
	for (i = 0; i < made; i++) {
		pthread_join(s[i].tid, NULL);
		if (!r)
			r = s[i].error;
	}
	*ret_ns = kvs_clock_now(&kvs_clock_real) - start;
	free(s);
	return r;
}

/* The same kind of memory as a region's, made without it. */
static int run_baseline(const struct bench *b, uint64_t page_size,
			struct run *ret)
{
	bool huge = page_size != (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned long mask[KVS_MAX_NODES / (8 * sizeof(long))] = { 0 };
	unsigned int flags = MFD_CLOEXEC;
	uint64_t ns;
	char *base;
	int fd, r;

	if (huge)
		flags |= MFD_HUGETLB | (unsigned int)__builtin_ctzll(page_size)
					       << MFD_HUGE_SHIFT;
	fd = memfd_create("kvstage-bench-baseline", flags);
	if (fd < 0)
		return -errno;
	base = MAP_FAILED;
	if (!ftruncate(fd, (off_t)b->args.size))
		base = mmap(NULL, b->args.size, PROT_READ | PROT_WRITE,
			    MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		r = -errno;
		close(fd);
		return r;
	}
	if (!huge)
		(void)madvise(base, b->args.size, MADV_HUGEPAGE);
	if (b->node >= 0) {
		mask[(size_t)b->node / (8 * sizeof(long))] |=
			1UL << ((size_t)b->node % (8 * sizeof(long)));
		(void)mbind(base, b->args.size, MPOL_PREFERRED, mask,
			    KVS_MAX_NODES + 1, 0);
	}
	r = populate_bare(b, base, page_size, &ns);
	munmap(base, b->args.size);
	close(fd);
	if (!r)
		ret->prefault = gbps(b->args.size, ns);
	return r;
}

/* ---- ours ---- */

static int run_ours(const struct bench *b, uint64_t page_size, struct run *ret,
		    char *why, size_t len)
{
	struct kvs_region_opts o = {
		.name = "kvstage-bench-pool",
		.setting = "--size",
		.size = b->args.size,
		.node = b->node,
		.page_size_max = page_size,
		.topology = b->topo,
		.cancel = &interrupted,
		.err = why,
		.err_len = len,
	};
	uint64_t start = kvs_clock_now(&kvs_clock_real), took;
	struct kvs_region *g;
	int r = kvs_region_create(&o, &g);

	if (r < 0)
		return r;
	took = kvs_clock_now(&kvs_clock_real) - start;
	if (g->page_size != page_size || g->size != b->args.size) {
		snprintf(why, len, "%s", g->why);
		r = -ENOMEM;
	} else {
		ret->prefault = gbps(g->size, g->prefault_ns);
		ret->create = gbps(g->size, took);
	}
	kvs_region_destroy(g);
	return r;
}

/* ---- one page size ---- */

static int run_pair(const struct bench *b, uint64_t page_size, bool ours_first,
		    struct run *ours, struct run *base, char *why, size_t len)
{
	int i, r;

	for (i = 0; i < 2; i++) {
		if (atomic_load(&interrupted))
			return -ECANCELED;
		if (ours_first == (i == 0)) {
			r = run_ours(b, page_size, ours, why, len);
		} else {
			r = run_baseline(b, page_size, base);
			if (r < 0)
				snprintf(why, len, "baseline: %s",
					 strerror(-r));
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static void show(const struct bench *b, uint64_t page_size, double ours,
		 double base, double ratio, double create)
{
	char name[16];

	if (!b->table) {
		printf("{\"bench\": \"pool\", \"page_size\": %" PRIu64
		       ", \"prefault_gbps\": %.3f, \"baseline_gbps\": %.3f, "
		       "\"ratio\": %.4f, \"create_gbps\": %.3f, "
		       "\"size\": %" PRIu64 ", \"node\": %d, \"threads\": %u, "
		       "\"repeats\": %" PRIu64 "}\n",
		       page_size, ours, base, ratio, create, b->args.size,
		       b->node, b->threads, b->args.repeats);
		(void)kvs_output_flush();
		return;
	}
	kvs_table_cell(b->table, "%s", kvs_page_size_name(page_size, name));
	kvs_table_cell(b->table, "%.2f", ours);
	kvs_table_cell(b->table, "%.2f", base);
	kvs_table_cell(b->table, "%.3f", ratio);
	kvs_table_cell(b->table, "%.2f", create);
	kvs_table_cell(b->table, "%" PRIu64, b->args.repeats);
}

static int measure(const struct bench *b, uint64_t page_size, char *why,
		   size_t len)
{
	size_t n = b->args.repeats, i;
	double *v = calloc(4 * n, sizeof(*v));
	struct run ours = { 0 }, base = { 0 };
	int r;

	if (!v)
		return -ENOMEM;
	/* The first pair warms up memory the machine has never touched. */
	r = run_pair(b, page_size, true, &ours, &base, why, len);
	for (i = 0; i < n && !r; i++) {
		r = run_pair(b, page_size, i % 2, &ours, &base, why, len);
		v[i] = ours.prefault;
		v[n + i] = base.prefault;
		v[2 * n + i] = base.prefault > 0 ? ours.prefault / base.prefault
						 : 0;
		v[3 * n + i] = ours.create;
	}
	if (!r)
		show(b, page_size, median(v, n), median(v + n, n),
		     median(v + 2 * n, n), median(v + 3 * n, n));
	free(v);
	return r;
}

/* Says why not, without populating something else first. */
static int obtainable(const struct bench *b, uint64_t page_size, char *why,
		      size_t len)
{
	const struct kvs_limits_want want = {
		.bytes = b->args.size,
		.page_size = page_size,
		.node = -1,
		.setting = "--size",
	};
	struct kvs_limits lim;
	int r = kvs_limits_read(NULL, &lim);

	if (r < 0)
		return r;
	r = kvs_limits_check(&lim, &want, why, len);
	kvs_limits_fini(&lim);
	return r;
}

static int one_page_size(const struct bench *b, uint64_t page_size)
{
	struct kvs_hugepages h = { 0 };
	char why[KVS_REGION_WHY_MAX] = "", name[16];
	int r = 0, back;

	kvs_page_size_name(page_size, name);
	if (b->args.size % page_size) {
		fprintf(stderr, "%s pages: --size is not a multiple\n", name);
		return -ENOMEM;
	}
	fprintf(stderr, "%s pages: measuring\n", name);
	if (b->args.reserve && page_size != (uint64_t)sysconf(_SC_PAGESIZE)) {
		r = kvs_hugepages_reserve(&h, page_size,
					  b->args.size / page_size);
		if (r < 0)
			snprintf(why, sizeof(why),
				 "cannot reserve %" PRIu64 " of them: %s",
				 b->args.size / page_size, strerror(-r));
	}
	if (!r)
		r = obtainable(b, page_size, why, sizeof(why));
	if (!r)
		r = measure(b, page_size, why, sizeof(why));
	back = kvs_hugepages_restore(&h);
	if (back < 0)
		fprintf(stderr,
			"%s pages: could not put back the reservation "
			"of %" PRIu64 ": %s\n",
			name, h.before, strerror(-back));
	if (r < 0 && r != -ECANCELED)
		fprintf(stderr, "%s pages: not to be had: %s\n", name,
			why[0] ? why : strerror(-r));
	return r;
}

/* ---- command line ---- */

static const struct argp_option options[] = {
	{ "size", 's', "SIZE", 0, "Size of the region (default 4G)", 0 },
	{ "repeats", 'n', "N", 0, "Pairs of runs (default 5)", 0 },
	{ "reserve-hugepages", 'r', NULL, 0,
	  "Reserve huge pages for the time of the run (root)", 0 },
	{ "json", 'j', NULL, 0, "One JSON object per page size", 0 },
	{ 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	switch (key) {
	case 's':
		if (kvs_parse_size(arg, &a->size) < 0 ||
		    a->size < KVS_PAGE_2M || a->size % KVS_PAGE_2M ||
		    a->size > 1ULL << 50)
			argp_error(state,
				   "--size %s: a multiple of 2M, from "
				   "2M to 1024T",
				   arg);
		return 0;
	case 'n':
		if (kvs_parse_u64(arg, &a->repeats) < 0 || !a->repeats ||
		    a->repeats > REPEATS_MAX)
			argp_error(state, "--repeats %s: from 1 to %d", arg,
				   REPEATS_MAX);
		return 0;
	case 'r':
		a->reserve = true;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int find_place(struct bench *b)
{
	const struct kvs_topology_node *n = NULL;
	int r = kvs_topology_load(NULL, &b->topo);

	if (r < 0)
		return r;
	b->node = -1;
	if (!kvs_topology_auto_node(b->topo, -1, &b->node))
		n = kvs_topology_node_find(b->topo, b->node);
	if (n && CPU_COUNT(&n->cpus))
		b->cpus = n->cpus;
	else if (sched_getaffinity(0, sizeof(b->cpus), &b->cpus) < 0)
		return -errno;
	b->threads = (unsigned int)CPU_COUNT(&b->cpus);
	if (b->threads > THREADS_MAX)
		b->threads = THREADS_MAX;
	return 0;
}

static int measure_all(const struct bench *b)
{
	const uint64_t sizes[] = { KVS_PAGE_1G, KVS_PAGE_2M,
				   (uint64_t)sysconf(_SC_PAGESIZE) };
	bool any = false;
	size_t i;
	int r;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		r = one_page_size(b, sizes[i]);
		if (r == -ECANCELED) {
			fprintf(stderr, "interrupted\n");
			return EXIT_FAILURE;
		}
		any |= !r;
	}
	if (b->table && any && kvs_table_print(b->table, stdout) < 0)
		return EXIT_FAILURE;
	return any ? EXIT_SUCCESS : EXIT_CANNOT;
}

int kvs_bench_pool(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "How fast a pool is populated, for each page size that "
		       "can be had, against a bare MADV_POPULATE_WRITE.",
	};
	struct bench b = { .args = { .size = 4ULL << 30, .repeats = 5 } };
	struct sigaction sa = { .sa_handler = on_signal };
	int r;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &b.args);
	/* No SIGKILL-proof way exists; these are the polite ones. */
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	r = find_place(&b);
	if (!r && !b.args.json)
		r = kvs_table_create("page_size prefault_gbps baseline_gbps "
				     "ratio create_gbps repeats",
				     &b.table);
	if (r < 0) {
		fprintf(stderr, "pool: %s\n", strerror(-r));
		r = EXIT_FAILURE;
	} else {
		r = measure_all(&b);
	}
	kvs_table_destroy(b.table);
	kvs_topology_destroy(b.topo);
	return r;
}
