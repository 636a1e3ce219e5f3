/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/shape.h"
#include "lib/clock.h"
#include "lib/rng.h"
#include "lib/units.h"
#include "tools/bench_copy.h"
#include "tools/median.h"

#define REPEATS_MAX 1000
#define BLOCKS_MAX 64
#define SAMPLES 64 /* items compared after a measurement */

/* ---- command line ---- */

static int way_of(const char *arg, enum kvs_copy_way *ret)
{
	for (int w = KVS_COPY_AUTO; w <= KVS_COPY_MAPPED; w++) {
		if (strcmp(arg, kvs_copy_way_name((enum kvs_copy_way)w)) != 0)
			continue;
		*ret = (enum kvs_copy_way)w;
		return 0;
	}
	return -EINVAL;
}

int kvs_copy_bench_parse(struct kvs_copy_bench *b, int key, char *arg,
			 struct argp_state *state)
{
	uint64_t n = 0;

	switch (key) {
	case 'd':
		if (kvs_device_choice_parse(arg, &b->choice))
			argp_error(state,
				   "--device %s: soft, cuda, cuda:N or auto",
				   arg);
		b->device = arg;
		return 0;
	case 'D':
		if (strcmp(arg, "h2d") != 0 && strcmp(arg, "d2h") != 0)
			argp_error(state, "--direction %s: h2d or d2h", arg);
		b->dir = arg[0] == 'h' ? KVS_COPY_H2D : KVS_COPY_D2H;
		return 0;
	case 'w':
		if (way_of(arg, &b->opts.way))
			argp_error(state,
				   "--way %s: auto, direct, slots or mapped",
				   arg);
		return 0;
	case 'b':
		if (kvs_parse_u64(arg, &n) < 0 || !n || n > BLOCKS_MAX)
			argp_error(state, "--blocks %s: from 1 to %d", arg,
				   BLOCKS_MAX);
		b->opts.blocks = (uint32_t)n;
		return 0;
	case 'n':
		if (kvs_parse_u64(arg, &b->repeats) < 0 || !b->repeats ||
		    b->repeats > REPEATS_MAX)
			argp_error(state, "--repeats %s: from 1 to %d", arg,
				   REPEATS_MAX);
		return 0;
	case 'j':
		b->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* ---- device and memory ---- */

int kvs_copy_bench_open(struct kvs_copy_bench *b)
{
	struct kvs_device_opts o = { .size = sizeof(o), .copy = b->opts };
	char err[256] = "";
	int r;

	r = kvs_device_choice_open(&b->choice, &o, &b->d, err, sizeof(err));
	if (r)
		fprintf(stderr, "kvstage-bench: %s\n", err);
	return r;
}

static void forget_memory(struct kvs_copy_bench *b)
{
	kvs_device_free(b->d, b->dev);
	b->dev = NULL;
	if (!b->host)
		return;
	(void)kvs_device_unregister_host(b->d, b->host, b->host_len);
	(void)munmap(b->host, b->host_len);
	b->host = NULL;
}

int kvs_copy_bench_memory(struct kvs_copy_bench *b, uint64_t host, uint64_t dev)
{
	struct kvs_rng rng;
	void *p;
	int r;

	forget_memory(b);
	p = mmap(NULL, host, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -errno;
	(void)madvise(p, host, MADV_HUGEPAGE);
	kvs_rng_init(&rng, 1);
	for (uint64_t i = 0; i + 8 <= host; i += 8)
		((uint64_t *)p)[i / 8] = kvs_rng_next(&rng);
	r = kvs_device_register_host(b->d, p, host, 0);
	if (r) {
		(void)munmap(p, host);
		return r;
	}
	b->host = p;
	b->host_len = host;
	b->dev_len = dev;
	r = kvs_device_alloc(b->d, dev, &p);
	if (!r)
		b->dev = p;
	return r;
}

void kvs_copy_bench_close(struct kvs_copy_bench *b)
{
	if (b->d)
		forget_memory(b);
	kvs_device_close(b->d);
	kvs_table_destroy(b->table);
}

int kvs_copy_bench_pages(uint64_t n, uint32_t **ret)
{
	uint64_t all = KVS_BENCH_DEVICE_PAGES(n);
	uint32_t *v = malloc(all * sizeof(*v));
	struct kvs_rng rng;

	if (!v)
		return -ENOMEM;
	kvs_rng_init(&rng, 2);
	for (uint64_t i = 0; i < all; i++)
		v[i] = (uint32_t)i;
	for (uint64_t i = all - 1; i > 0; i--) {
		uint64_t j = kvs_rng_below(&rng, i + 1);
		uint32_t t = v[i];

		v[i] = v[j];
		v[j] = t;
	}
	*ret = v;
	return 0;
}

/* ---- measuring ---- */

static uint64_t bytes_of(const struct kvs_copy *c)
{
	uint64_t n = 0;

	for (size_t i = 0; i < c->n_runs; i++)
		n += c->runs[i].n * c->runs[i].item_len;
	return n;
}

static int time_copy(struct kvs_copy_bench *b, struct kvs_copy *c,
		     uint64_t *ret_ns)
{
	uint64_t from = kvs_clock_now(&kvs_clock_real);
	int r;

	r = kvs_device_copy(b->d, c);
	if (r)
		return r;
	while ((r = kvs_device_query(b->d, c)) == -EINPROGRESS)
		(void)sched_yield();
	*ret_ns = kvs_clock_now(&kvs_clock_real) - from;
	return r;
}

/* A sample of what came out, through the device's own eyes. */
static int compare(struct kvs_copy_bench *b, const struct kvs_copy *c)
{
	struct kvs_rng rng;
	char *buf = NULL;
	int r = 0;

	kvs_rng_init(&rng, 3);
	for (int i = 0; i < SAMPLES && !r; i++) {
		size_t k = kvs_rng_below(&rng, c->n_runs);
		const struct kvs_copy_run *run = &c->runs[k];
		struct kvs_copy_shape s = kvs_copy_shape_of(c, k);
		char *host, *dev, *p;

		(void)kvs_copy_locate(
			run, &s, kvs_rng_below(&rng, run->n) * run->item_len,
			&host, &dev);
		p = realloc(buf, run->item_len);
		if (!p) {
			r = -ENOMEM;
			break;
		}
		buf = p;
		r = kvs_device_peek(b->d, buf, dev, run->item_len);
		if (!r && memcmp(buf, host, run->item_len) != 0)
			r = -EILSEQ;
	}
	free(buf);
	return r;
}

int kvs_copy_bench_measure(struct kvs_copy_bench *b, struct kvs_copy *c,
			   struct kvs_copy_result *ret)
{
	struct kvs_copy_run one = {
		.host = b->host, .dev = b->dev, .item_len = bytes_of(c), .n = 1
	};
	struct kvs_copy base = { .runs = &one, .n_runs = 1, .dir = b->dir };
	double *v = calloc(3 * b->repeats, sizeof(*v));
	struct kvs_device_info before, after;
	uint64_t ours = 0, theirs = 0, bytes = one.item_len;
	uint64_t n = b->repeats;
	int r = 0;

	if (!v)
		return -ENOMEM;
	c->dir = b->dir;
	/* the first pair touches memory that was never touched */
	for (uint64_t i = 0; i <= n && !r; i++) {
		uint64_t at = i ? i - 1 : 0;

		if (i % 2)
			r = time_copy(b, &base, &theirs);
		kvs_device_info(b->d, &before);
		if (!r)
			r = time_copy(b, c, &ours);
		kvs_device_info(b->d, &after);
		if (!r && !i)
			r = compare(b, c);
		if (!r && i % 2 == 0)
			r = time_copy(b, &base, &theirs);
		v[at] = (double)bytes / (double)(ours ? ours : 1);
		v[n + at] = (double)bytes / (double)(theirs ? theirs : 1);
		v[2 * n + at] = v[at] / v[n + at];
	}
	if (!r) {
		ret->gbps = kvs_median(v, n);
		ret->baseline_gbps = kvs_median(v + n, n);
		ret->ratio = kvs_median(v + 2 * n, n);
		ret->ops_per_gib = (double)(after.pieces - before.pieces +
					    after.launches - before.launches) *
				   (double)(1u << 30) / (double)bytes;
	}
	free(v);
	if (r)
		fprintf(stderr, "%s: %s\n", b->choice.name,
			r == -EILSEQ ? "bytes differ from their source"
				     : strerror(-r));
	return r;
}
