/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: blocks never overlap, never straddle a segment and are aligned;
 * "not now" is said only when no free run is as long as the length and a
 * thirty-second part of it (a page map is the model); what is called the
 * largest free range can be had; everything merges back; small rooms in a
 * full arena cost little of it; misuse ends the process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pinned/arena.h"
#include "tests/unit/pinned/seed.h"

#define PAGE KVS_ARENA_ALIGN
#define MAX_LIVE 4096

struct model {
	uint8_t *map; /* one per page: 1 = handed out */
	uint64_t pages;
	uint64_t seg_pages;
	uint64_t used;
	struct kvs_block *live[MAX_LIVE];
	unsigned int n;
};

static void model_take(struct model *m, const struct kvs_block *b, uint64_t len)
{
	uint64_t first = b->off / PAGE, n = b->len / PAGE, i;

	assert_int_equal(b->off % PAGE, 0);
	assert_int_equal(b->len % PAGE, 0);
	assert_true(b->len >= len && b->len - len < PAGE);
	assert_true(first + n <= m->pages);
	assert_int_equal(first / m->seg_pages, (first + n - 1) / m->seg_pages);
	for (i = first; i < first + n; i++) {
		assert_int_equal(m->map[i], 0);
		m->map[i] = 1;
	}
	m->used += n;
}

static void model_drop(struct model *m, const struct kvs_block *b)
{
	memset(m->map + b->off / PAGE, 0, b->len / PAGE);
	m->used -= b->len / PAGE;
}

/* Longest run of free pages inside one segment. */
static uint64_t model_longest(const struct model *m)
{
	uint64_t i, run = 0, max = 0;

	for (i = 0; i < m->pages; i++) {
		if (i % m->seg_pages == 0)
			run = 0;
		run = m->map[i] ? 0 : run + 1;
		if (run > max)
			max = run;
	}
	return max;
}

static uint64_t random_len(struct kvs_rng *r, uint64_t max)
{
	uint64_t scale = 1ULL << kvs_rng_below(r, 63);

	return 1 + kvs_rng_below(r, scale < max ? scale : max);
}

static void free_one(struct kvs_arena *a, struct model *m, unsigned int i)
{
	model_drop(m, m->live[i]);
	kvs_arena_free(a, m->live[i]);
	m->live[i] = m->live[--m->n];
}

static void check_largest(struct kvs_arena *a, const struct model *m)
{
	uint64_t largest = kvs_arena_largest_free(a);
	uint64_t longest = model_longest(m) * PAGE;
	struct kvs_block *b;

	assert_true(largest <= longest);
	assert_true(longest - largest <= longest / 32);
	if (!largest)
		return;
	assert_int_equal(kvs_arena_alloc(a, largest, &b), 0);
	assert_true(b->len == largest);
	kvs_arena_free(a, b);
}

static void step(struct kvs_arena *a, struct model *m, struct kvs_rng *r)
{
	struct kvs_block *b = NULL;
	uint64_t len, units;
	int err;

	if (m->n == MAX_LIVE || (m->n && kvs_rng_below(r, 100) < 45)) {
		free_one(a, m, (unsigned int)kvs_rng_below(r, m->n));
		return;
	}
	len = random_len(r, m->seg_pages * PAGE);
	err = kvs_arena_alloc(a, len, &b);
	if (err) {
		assert_int_equal(err, -EAGAIN);
		assert_null(b);
		units = (len + PAGE - 1) / PAGE;
		assert_true(model_longest(m) < units + units / 32 ||
			    model_longest(m) < units);
		return;
	}
	model_take(m, b, len);
	m->live[m->n++] = b;
}

static void against_model(struct kvs_rng *r, uint64_t pages, uint64_t seg_pages,
			  unsigned int steps)
{
	struct model m = { .pages = pages, .seg_pages = seg_pages };
	struct kvs_arena *a;
	unsigned int i;

	m.map = calloc(pages, 1);
	assert_non_null(m.map);
	assert_int_equal(kvs_arena_create(pages * PAGE, seg_pages * PAGE, &a),
			 0);
	if (seg_pages > pages)
		m.seg_pages = pages;
	assert_true(kvs_arena_segment(a) == m.seg_pages * PAGE);
	for (i = 0; i < steps; i++) {
		step(a, &m, r);
		assert_true(kvs_arena_free_bytes(a) ==
			    (m.pages - m.used) * PAGE);
		if (i % 64 == 0) {
			kvs_arena_check(a);
			check_largest(a, &m);
		}
	}
	while (m.n)
		free_one(a, &m, m.n - 1);
	kvs_arena_check(a);
	assert_true(kvs_arena_free_bytes(a) == kvs_arena_size(a));
	/* all merged: a whole segment in one piece */
	assert_true(kvs_arena_largest_free(a) == m.seg_pages * PAGE);
	kvs_arena_destroy(a);
	free(m.map);
}

static void random_model(void **state)
{
	struct kvs_rng r;
	unsigned int i;

	(void)state;
	seed_rng(&r);
	against_model(&r, 4096, 512, 20000);
	against_model(&r, 4096, 4096, 20000);
	/* a shorter last segment, sizes that are no power of two */
	against_model(&r, 3001, 700, 20000);
	against_model(&r, 1, 1, 50);
	for (i = 0; i < 30; i++)
		against_model(&r, 1 + kvs_rng_below(&r, 600),
			      1 + kvs_rng_below(&r, 200), 500);
}

/* In any order of release: what fits an empty arena always fits again. */
static void empty_is_empty(void **state)
{
	const uint64_t pages = 67 + 67 + 66;
	struct kvs_block *b[200], *tmp;
	struct kvs_arena *a;
	struct kvs_rng r;
	unsigned int i, k, round;

	(void)state;
	seed_rng(&r);
	assert_int_equal(kvs_arena_create(pages * PAGE, 67 * PAGE, &a), 0);
	for (round = 0; round < 200; round++) {
		for (i = 0; i < pages; i++)
			assert_int_equal(kvs_arena_alloc(a, PAGE, &b[i]), 0);
		assert_int_equal(kvs_arena_alloc(a, PAGE, &tmp), -EAGAIN);
		for (i = pages; i-- > 0;) {
			k = (unsigned int)kvs_rng_below(&r, i + 1);
			kvs_arena_free(a, b[k]);
			b[k] = b[i];
		}
		/* 66 and 67 pages share a class: the shorter is tried first */
		assert_int_equal(kvs_arena_alloc(a, 66 * PAGE, &b[0]), 0);
		assert_int_equal(kvs_arena_alloc(a, 67 * PAGE, &b[1]), 0);
		assert_int_equal(kvs_arena_alloc(a, 67 * PAGE, &b[2]), 0);
		for (i = 0; i < 3; i++)
			kvs_arena_free(a, b[i]);
	}
	kvs_arena_destroy(a);
}

/* A part of an arena that is full of mixed rooms is lost to fragments. */
static void fragmentation_bound(void **state)
{
	const uint64_t size = 1ULL << 30;
	static struct kvs_block *live[1u << 18];
	unsigned int n = 0, refused = 0, i, k;
	double use = 0;
	struct kvs_arena *a;
	struct kvs_rng r;

	(void)state;
	seed_rng(&r);
	assert_int_equal(kvs_arena_create(size, 0, &a), 0);
	for (i = 0; i < 300000; i++) {
		/* 4 KiB to 4 MiB */
		uint64_t len = PAGE * (1 + kvs_rng_below(&r, 1024));

		if (!kvs_arena_alloc(a, len, &live[n])) {
			n++;
			continue;
		}
		if (i > 10000) {
			use += 1 - (double)kvs_arena_free_bytes(a) / size;
			refused++;
		}
		k = (unsigned int)kvs_rng_below(&r, n);
		kvs_arena_free(a, live[k]);
		live[k] = live[--n];
	}
	kvs_arena_check(a);
	assert_true(refused > 1000);
	print_message("use when refused: %.4f\n", use / refused);
	assert_true(use / refused > 0.85);
	while (n)
		kvs_arena_free(a, live[--n]);
	kvs_arena_destroy(a);
}

/* One extent held in the middle takes its own bytes and no more. */
static void held_block_pins_nothing(void **state)
{
	struct kvs_block *b[64], *c[64];
	struct kvs_arena *a;
	unsigned int i, round;

	(void)state;
	assert_int_equal(kvs_arena_create(64 * PAGE, 0, &a), 0);
	for (i = 0; i < 64; i++)
		assert_int_equal(kvs_arena_alloc(a, PAGE, &b[i]), 0);
	for (i = 0; i < 64; i++)
		if (i != 31)
			kvs_arena_free(a, b[i]);
	for (round = 0; round < 1000; round++) {
		for (i = 0; i < 63; i++)
			assert_int_equal(kvs_arena_alloc(a, PAGE, &c[i]), 0);
		assert_int_equal(kvs_arena_alloc(a, PAGE, &c[63]), -EAGAIN);
		for (i = 0; i < 63; i++)
			kvs_arena_free(a, c[i]);
		assert_true(kvs_arena_largest_free(a) == 32 * PAGE);
	}
	kvs_arena_free(a, b[31]);
	kvs_arena_destroy(a);
}

static void arguments(void **state)
{
	struct kvs_arena *a = NULL;
	struct kvs_block *b = NULL;

	(void)state;
	assert_int_equal(kvs_arena_create(0, 0, &a), -EINVAL);
	assert_int_equal(kvs_arena_create(PAGE + 1, 0, &a), -EINVAL);
	assert_int_equal(kvs_arena_create(PAGE, PAGE - 1, &a), -EINVAL);
	assert_int_equal(kvs_arena_create(PAGE, KVS_ARENA_SEGMENT_MAX + PAGE,
					  &a),
			 -EINVAL);
	assert_null(a);
	kvs_arena_destroy(NULL);

	assert_int_equal(kvs_arena_create(3ULL << 30, 0, &a), 0);
	assert_true(kvs_arena_segment(a) == KVS_ARENA_SEGMENT_MAX);
	assert_int_equal(kvs_arena_alloc(a, 0, &b), -EINVAL);
	assert_int_equal(kvs_arena_alloc(a, KVS_ARENA_SEGMENT_MAX + 1, &b),
			 -E2BIG);
	assert_int_equal(kvs_arena_alloc(a, UINT64_MAX, &b), -E2BIG);
	assert_null(b);
	assert_int_equal(kvs_arena_alloc(a, KVS_ARENA_SEGMENT_MAX, &b), 0);
	assert_true(b->len == KVS_ARENA_SEGMENT_MAX);
	kvs_arena_free(a, b);
	kvs_arena_destroy(a);
}

static void free_twice(void *arg)
{
	struct kvs_block *b;

	if (kvs_arena_alloc(arg, PAGE, &b))
		return;
	kvs_arena_free(arg, b);
	kvs_arena_free(arg, b);
}

static void destroy_in_use(void *arg)
{
	struct kvs_block *b;

	if (kvs_arena_alloc(arg, PAGE, &b))
		return;
	kvs_arena_destroy(arg);
}

static void misuse_ends_the_process(void **state)
{
	struct kvs_arena *a;

	(void)state;
	assert_int_equal(kvs_arena_create(16 * PAGE, 0, &a), 0);
	assert_true(aborts(free_twice, a));
	assert_true(aborts(destroy_in_use, a));
	kvs_arena_destroy(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_model),
		cmocka_unit_test(empty_is_empty),
		cmocka_unit_test(fragmentation_bound),
		cmocka_unit_test(held_block_pins_nothing),
		cmocka_unit_test(arguments),
		cmocka_unit_test(misuse_ends_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
