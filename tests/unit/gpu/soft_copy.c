/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: page-list copies of the soft device move exactly the bytes a plain
 * model moves, both ways, for random page permutations and item lengths, and
 * no byte beside them; a row wider than its data (528 = 512 + 16 bytes of
 * scales, sglang#37534) comes back whole; neighbours move as one piece;
 * copies run in order, each with the page list it was given (TensorRT-LLM
 * #15546); who sees a copy complete sees its bytes, from any thread; the
 * rate limit is a limit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"
#include "gpu/soft.h"
#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/rng.h"

#define GUARD 96u /* bytes before and after what may be written */
#define GUARD_BYTE 0xa5
#define POISON 0xee

static struct kvs_device *open_soft(uint64_t bytes_per_sec, uint64_t hold_nth)
{
	const struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = "soft",
		.bytes_per_sec = bytes_per_sec,
		.plan = { .hold_nth = hold_nth },
	};
	struct kvs_device *d = NULL;
	char err[128];

	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), 0);
	return d;
}

static int finish(struct kvs_device *d, const struct kvs_copy *c)
{
	int r;

	while ((r = kvs_device_query(d, c)) == -EINPROGRESS)
		(void)sched_yield();
	return r;
}

static void copy_now(struct kvs_device *d, enum kvs_copy_dir dir,
		     const struct kvs_copy_run *runs, size_t n)
{
	struct kvs_copy c = { .runs = runs, .n_runs = n, .dir = dir };

	assert_int_equal(kvs_device_copy(d, &c), 0);
	assert_int_equal(finish(d, &c), 0);
}

static void *xalloc(size_t len)
{
	void *p = malloc(len);

	assert_non_null(p);
	return p;
}

static void random_bytes(struct kvs_rng *rng, uint8_t *p, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		p[i] = (uint8_t)kvs_rng_next(rng);
}

/* The first n of a random permutation of 0..total-1; at times in order. */
static void random_pages(struct kvs_rng *rng, uint32_t *pages, uint32_t total)
{
	uint64_t style = kvs_rng_below(rng, 3);
	uint32_t i;

	for (i = 0; i < total; i++)
		pages[i] = i;
	for (i = total - 1; i > 0; i--) {
		uint32_t j = (uint32_t)kvs_rng_below(rng, i + 1u);
		uint32_t t = pages[i];

		/* style 1: mostly in order, so that some pages are adjacent */
		if (style == 0 || (style == 1 && kvs_rng_below(rng, 4)))
			continue;
		pages[i] = pages[j];
		pages[j] = t;
	}
}

struct layer {
	uint64_t item_len;
	uint64_t dev_len; /* guards included */
	uint64_t host_len; /* guards included */
	uint8_t *dev; /* device */
	uint8_t *dev_model; /* what the device must hold */
	uint8_t *host;
	uint8_t *host_model;
};

static void layer_init(struct layer *l, struct kvs_device *d,
		       struct kvs_rng *rng, uint64_t item_len, uint32_t total,
		       uint32_t n)
{
	struct kvs_copy_run all = { 0 };

	l->item_len = item_len;
	l->dev_len = total * item_len + 2 * GUARD;
	l->host_len = n * item_len + 2 * GUARD;
	assert_int_equal(kvs_device_alloc(d, l->dev_len, (void **)&l->dev), 0);
	l->dev_model = xalloc(l->dev_len);
	l->host = xalloc(l->host_len);
	l->host_model = xalloc(l->host_len);
	random_bytes(rng, l->dev_model, l->dev_len);
	all = (struct kvs_copy_run){ .host = l->dev_model,
				     .dev = l->dev,
				     .item_len = l->dev_len,
				     .n = 1 };
	copy_now(d, KVS_COPY_H2D, &all, 1);
	random_bytes(rng, l->host, l->host_len);
	memcpy(l->host_model, l->host, l->host_len);
}

static void layer_check(const struct layer *l, struct kvs_device *d)
{
	uint8_t *seen = xalloc(l->dev_len);

	assert_int_equal(kvs_device_peek(d, seen, l->dev, l->dev_len), 0);
	assert_memory_equal(seen, l->dev_model, l->dev_len);
	assert_memory_equal(l->host, l->host_model, l->host_len);
	free(seen);
}

static void layer_fini(struct layer *l, struct kvs_device *d)
{
	kvs_device_free(d, l->dev);
	free(l->dev_model);
	free(l->host);
	free(l->host_model);
}

/* One byte at a time, so that it shares nothing with the code under test. */
static void model_copy(struct layer *l, enum kvs_copy_dir dir,
		       const uint32_t *pages, uint32_t n)
{
	uint64_t i;
	uint64_t b;

	for (i = 0; i < n; i++) {
		uint64_t page = pages ? pages[i] : i;

		for (b = 0; b < l->item_len; b++) {
			uint8_t *h =
				&l->host_model[GUARD + i * l->item_len + b];
			uint8_t *v =
				&l->dev_model[GUARD + page * l->item_len + b];

			if (dir == KVS_COPY_H2D)
				*v = *h;
			else
				*h = *v;
		}
	}
}

static void check_round(struct kvs_device *d, struct kvs_rng *rng)
{
	static const uint64_t lens[] = { 1,   2,   15,	511, 512,
					 513, 528, 576, 656, 4096 };
	struct kvs_copy_run runs[4];
	struct layer l[4];
	uint32_t pages[64] = { 0 };
	uint32_t total = 1 + (uint32_t)kvs_rng_below(rng, 64);
	uint32_t n = 1 + (uint32_t)kvs_rng_below(rng, total);
	size_t n_layers = 1 + (size_t)kvs_rng_below(rng, 4);
	bool listed = kvs_rng_below(rng, 5) > 0;
	int dir;
	size_t i;

	random_pages(rng, pages, total);
	for (i = 0; i < n_layers; i++) {
		layer_init(&l[i], d, rng,
			   lens[kvs_rng_below(rng, KVS_ARRAY_SIZE(lens))],
			   total, n);
		runs[i] = (struct kvs_copy_run){
			.host = l[i].host + GUARD,
			.dev = l[i].dev + GUARD,
			.item_len = l[i].item_len,
			.pages = listed ? pages : NULL,
			.n = n,
		};
	}
	for (dir = KVS_COPY_H2D; dir <= KVS_COPY_D2H; dir++) {
		copy_now(d, (enum kvs_copy_dir)dir, runs, n_layers);
		for (i = 0; i < n_layers; i++) {
			model_copy(&l[i], (enum kvs_copy_dir)dir,
				   listed ? pages : NULL, n);
			layer_check(&l[i], d);
			/* what the second direction must bring back */
			memset(l[i].host, POISON, l[i].host_len);
			memset(l[i].host_model, POISON, l[i].host_len);
		}
	}
	copy_now(d, KVS_COPY_D2H, runs, n_layers);
	for (i = 0; i < n_layers; i++) {
		model_copy(&l[i], KVS_COPY_D2H, listed ? pages : NULL, n);
		layer_check(&l[i], d);
		layer_fini(&l[i], d);
	}
}

static void test_page_lists_against_a_model(void **state)
{
	struct kvs_device *d = open_soft(0, 0);
	struct kvs_rng rng;
	uint64_t seed;

	(void)state;
	for (seed = 1; seed <= 300; seed++) {
		kvs_rng_init(&rng, seed);
		check_round(d, &rng);
	}
	kvs_device_close(d);
}

/* Long runs go another way than short ones: all alignments of both ends. */
static void test_long_runs_at_odd_addresses(void **state)
{
	const size_t len = (1u << 20) + 4099;
	struct kvs_device *d = open_soft(0, 0);
	struct kvs_rng rng;
	uint8_t *src = xalloc(len + 64);
	uint8_t *want = xalloc(len + 64 + 2 * GUARD);
	uint8_t *seen = xalloc(len + 64 + 2 * GUARD);
	uint8_t *dev;
	uint32_t i;

	(void)state;
	kvs_rng_init(&rng, 99);
	random_bytes(&rng, src, len + 64);
	assert_int_equal(
		kvs_device_alloc(d, len + 64 + 2 * GUARD, (void **)&dev), 0);
	for (i = 0; i < 20; i++) {
		size_t from = kvs_rng_below(&rng, 64);
		size_t to = kvs_rng_below(&rng, 64);
		size_t part = len - kvs_rng_below(&rng, 4000);
		struct kvs_copy_run run = { .host = want,
					    .dev = dev,
					    .item_len = len + 64 + 2 * GUARD,
					    .n = 1 };

		memset(want, GUARD_BYTE, len + 64 + 2 * GUARD);
		copy_now(d, KVS_COPY_H2D, &run, 1);
		run = (struct kvs_copy_run){ .host = src + from,
					     .dev = dev + GUARD + to,
					     .item_len = part,
					     .n = 1 };
		copy_now(d, KVS_COPY_H2D, &run, 1);
		memcpy(want + GUARD + to, src + from, part);
		assert_int_equal(
			kvs_device_peek(d, seen, dev, len + 64 + 2 * GUARD), 0);
		assert_memory_equal(seen, want, len + 64 + 2 * GUARD);
	}
	free(src);
	free(want);
	free(seen);
	kvs_device_close(d);
}

static void test_row_with_scales_comes_back_whole(void **state)
{
	enum { ROW = 512 + 16, ROWS = 33 };
	struct kvs_device *d = open_soft(0, 0);
	uint8_t host[ROWS * ROW];
	uint8_t back[ROWS * ROW];
	uint32_t out[ROWS];
	uint32_t in[ROWS];
	struct kvs_rng rng;
	struct kvs_copy_run run;
	uint8_t *a;
	uint8_t *b;
	uint32_t i;

	(void)state;
	kvs_rng_init(&rng, 528);
	random_bytes(&rng, host, sizeof(host));
	for (i = 0; i < ROWS; i++) {
		out[i] = (i * 7 + 3) % ROWS;
		in[i] = (i * 5 + 1) % ROWS;
	}
	assert_int_equal(kvs_device_alloc(d, sizeof(host), (void **)&a), 0);
	assert_int_equal(kvs_device_alloc(d, sizeof(host), (void **)&b), 0);

	/* device rows, to the host, to other rows of another buffer */
	run = (struct kvs_copy_run){ host, a, ROW, out, ROWS };
	copy_now(d, KVS_COPY_H2D, &run, 1);
	memset(back, POISON, sizeof(back));
	run = (struct kvs_copy_run){ back, b, ROW, NULL, ROWS };
	copy_now(d, KVS_COPY_H2D, &run, 1);
	run = (struct kvs_copy_run){ back, a, ROW, out, ROWS };
	copy_now(d, KVS_COPY_D2H, &run, 1);
	assert_memory_equal(back, host, sizeof(host));
	run = (struct kvs_copy_run){ back, b, ROW, in, ROWS };
	copy_now(d, KVS_COPY_H2D, &run, 1);
	for (i = 0; i < ROWS; i++) {
		uint8_t row[ROW];

		memset(row, POISON, sizeof(row));
		assert_int_equal(kvs_device_peek(d, row, b + in[i] * ROW, ROW),
				 0);
		assert_memory_equal(row, host + i * ROW, 512);
		assert_memory_equal(row + 512, host + i * ROW + 512, 16);
	}
	kvs_device_close(d);
}

static void test_neighbours_move_as_one(void **state)
{
	struct kvs_device *d = open_soft(0, 0);
	/* 5 6 7 | 2 | 0 1 | 9 8 falls, so two pieces */
	static const uint32_t pages[] = { 5, 6, 7, 2, 0, 1, 9, 8 };
	struct kvs_soft_stats before, after;
	uint8_t host[10 * 64] = { 0 };
	struct kvs_copy_run run;
	void *dev;

	(void)state;
	assert_int_equal(kvs_device_alloc(d, sizeof(host), &dev), 0);
	assert_int_equal(kvs_soft_stats(d, &before), 0);
	run = (struct kvs_copy_run){ host, dev, 64, pages, 8 };
	copy_now(d, KVS_COPY_H2D, &run, 1);
	assert_int_equal(kvs_soft_stats(d, &after), 0);
	assert_int_equal(after.moves - before.moves, 5);
	assert_int_equal(after.bytes - before.bytes, 8 * 64);

	run = (struct kvs_copy_run){ host, dev, 64, NULL, 10 };
	copy_now(d, KVS_COPY_D2H, &run, 1);
	assert_int_equal(kvs_soft_stats(d, &before), 0);
	assert_int_equal(before.moves - after.moves, 1);
	kvs_device_close(d);
}

/*
 * All copies write the same few pages, queued behind a held one while nothing
 * may run: the end is what one copy after the other leaves, and each went by
 * its own list.
 */
static void test_copies_run_in_order_with_their_own_lists(void **state)
{
	enum { N = 1000, PAGES = 8, ITEM = 40 };
	struct kvs_device *d = open_soft(0, 1);
	struct kvs_copy *c = calloc(N, sizeof(*c));
	struct kvs_copy_run *run = calloc(N, sizeof(*run));
	uint32_t(*list)[4] = calloc(N, sizeof(*list));
	uint8_t(*host)[4 * ITEM] = calloc(N, sizeof(*host));
	uint8_t model[PAGES * ITEM] = { 0 };
	uint8_t seen[PAGES * ITEM];
	struct kvs_rng rng;
	uint8_t *dev;
	uint32_t i;
	uint32_t j;

	(void)state;
	assert_true(c && run && list && host);
	kvs_rng_init(&rng, 11);
	assert_int_equal(kvs_device_alloc(d, sizeof(model), (void **)&dev), 0);
	for (i = 0; i < N; i++) {
		random_bytes(&rng, host[i], sizeof(host[i]));
		for (j = 0; j < 4; j++)
			list[i][j] = (uint32_t)kvs_rng_below(&rng, PAGES);
		run[i] =
			(struct kvs_copy_run){ host[i], dev, ITEM, list[i], 4 };
		/* the first one clears all, so that all is defined */
		if (!i)
			run[0] = (struct kvs_copy_run){ model, dev, ITEM, NULL,
							PAGES };
		c[i] = (struct kvs_copy){ .runs = &run[i],
					  .n_runs = 1,
					  .dir = KVS_COPY_H2D };
		assert_int_equal(kvs_device_copy(d, &c[i]), 0);
		assert_int_equal(c[i].order, i + 1);
	}
	for (i = 0; i < N; i++)
		assert_int_equal(kvs_device_query(d, &c[i]), -EINPROGRESS);
	assert_int_equal(kvs_soft_release(d), 0);
	assert_int_equal(finish(d, &c[N - 1]), 0);
	for (i = 0; i < N; i++)
		assert_int_equal(kvs_device_query(d, &c[i]), 0);
	for (i = 1; i < N; i++)
		for (j = 0; j < 4; j++)
			memcpy(&model[list[i][j] * ITEM], &host[i][j * ITEM],
			       ITEM);
	assert_int_equal(kvs_device_peek(d, seen, dev, sizeof(seen)), 0);
	assert_memory_equal(seen, model, sizeof(model));
	kvs_device_close(d);
	free(c);
	free(run);
	free(list);
	free(host);
}

struct watch {
	struct kvs_device *d;
	struct kvs_copy *c; /* [n] */
	uint64_t *to; /* [n], D2H destinations */
	uint32_t n;
	uint32_t bad;
};

static void *watch_main(void *arg)
{
	struct watch *w = arg;
	uint32_t i;

	for (i = 0; i < w->n; i++)
		if (finish(w->d, &w->c[i]) || w->to[i] != i + 1)
			w->bad++;
	return NULL;
}

/* Another thread than the submitter waits for each copy and reads. */
static void test_complete_means_visible_to_any_thread(void **state)
{
	enum { N = 2000 };
	struct kvs_device *d = open_soft(0, 1);
	struct kvs_copy *c = calloc(N, sizeof(*c));
	struct kvs_copy_run *run = calloc(N, sizeof(*run));
	uint64_t *to = calloc(N, sizeof(*to));
	uint64_t *from = calloc(N, sizeof(*from));
	struct watch w = { .d = d, .c = c, .to = to, .n = N };
	struct kvs_copy_run fill;
	struct kvs_copy first;
	pthread_t t;
	uint64_t *dev;
	uint32_t i;

	(void)state;
	assert_true(c && run && to && from);
	assert_int_equal(kvs_device_alloc(d, N * 8, (void **)&dev), 0);
	for (i = 0; i < N; i++) {
		from[i] = i + 1;
		run[i] = (struct kvs_copy_run){ &to[i], &dev[i], 8, NULL, 1 };
		c[i] = (struct kvs_copy){ .runs = &run[i],
					  .n_runs = 1,
					  .dir = KVS_COPY_D2H };
	}
	fill = (struct kvs_copy_run){ from, dev, 8, NULL, N };
	first = (struct kvs_copy){ .runs = &fill, .n_runs = 1 };
	assert_int_equal(kvs_device_copy(d, &first), 0);
	/* the watcher has the first half; the rest is submitted beside it */
	for (i = 0; i < N; i++) {
		if (i == N / 2) {
			w.n = N / 2;
			assert_int_equal(
				pthread_create(&t, NULL, watch_main, &w), 0);
			assert_int_equal(kvs_soft_release(d), 0);
		}
		assert_int_equal(kvs_device_copy(d, &c[i]), 0);
	}
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(w.bad, 0);
	for (i = 0; i < N; i++)
		assert_int_equal(finish(d, &c[i]), 0);
	kvs_device_close(d);
	free(c);
	free(run);
	free(to);
	free(from);
}

/* Only the lower bound is asserted: a busy machine cannot break it. */
static void test_rate_is_a_limit(void **state)
{
	const uint64_t len = 3u << 20;
	const uint64_t rate = 50u << 20; /* 60 ms for the lot */
	struct kvs_device *d = open_soft(rate, 0);
	uint8_t *host = calloc(1, len);
	struct kvs_copy_run run;
	uint64_t from;
	uint64_t took;
	void *dev;
	int i;

	(void)state;
	assert_non_null(host);
	assert_int_equal(kvs_device_alloc(d, len, &dev), 0);
	from = kvs_clock_now(&kvs_clock_real);
	for (i = 0; i < 3; i++) {
		run = (struct kvs_copy_run){ host, dev, len / 3, NULL, 1 };
		copy_now(d, KVS_COPY_H2D, &run, 1);
	}
	took = kvs_clock_now(&kvs_clock_real) - from;
	assert_true(took >= len * KVS_NSEC_PER_SEC / rate);
	free(host);
	kvs_device_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page_lists_against_a_model),
		cmocka_unit_test(test_long_runs_at_odd_addresses),
		cmocka_unit_test(test_row_with_scales_comes_back_whole),
		cmocka_unit_test(test_neighbours_move_as_one),
		cmocka_unit_test(test_copies_run_in_order_with_their_own_lists),
		cmocka_unit_test(test_complete_means_visible_to_any_thread),
		cmocka_unit_test(test_rate_is_a_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
