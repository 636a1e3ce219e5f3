/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the set agrees with a bitmap after every step of random histories;
 * a byte is never counted twice; a refused claim changes nothing; memory is
 * bounded by the limit given, whatever the pattern of holes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/rng.h"
#include "pipeline/ranges.h"

#define SPACE 512

/* Sorted, apart, lengths summed up right. */
static void assert_sound(const struct kvs_ranges *r)
{
	uint64_t sum = 0;
	uint32_t i;

	assert_true(r->n <= r->max || r->n == 0);
	for (i = 0; i < r->n; i++) {
		assert_true(r->v[i].start < r->v[i].end);
		if (i)
			assert_true(r->v[i - 1].end < r->v[i].start);
		sum += r->v[i].end - r->v[i].start;
	}
	assert_true(sum == r->bytes);
}

static bool model_any(const bool *map, uint64_t from, uint64_t to)
{
	for (; from < to; from++) {
		if (map[from])
			return true;
	}
	return false;
}

static uint64_t model_hole(const bool *map, uint64_t from, uint64_t to)
{
	while (from < to && map[from])
		from++;
	return from;
}

static uint32_t model_pieces(const bool *map)
{
	uint32_t n = 0;
	int i;

	for (i = 0; i < SPACE; i++)
		n += map[i] && (!i || !map[i - 1]);
	return n;
}

static void model_step(struct kvs_ranges *r, bool *map, struct kvs_rng *rng,
		       uint32_t *refused)
{
	uint64_t start = kvs_rng_below(rng, SPACE);
	uint64_t len = 1 + kvs_rng_below(rng, 24);
	struct kvs_range was[SPACE];
	uint32_t n = r->n;
	bool copy[SPACE];
	int want;

	if (start + len > SPACE)
		len = SPACE - start;
	memcpy(was, r->v, n * sizeof(*was));
	memcpy(copy, map, sizeof(copy));
	memset(copy + start, 1, len);
	if (model_any(map, start, start + len))
		want = -EEXIST;
	else
		want = model_pieces(copy) > r->max ? -E2BIG : 0;
	assert_int_equal(kvs_ranges_add(r, start, len), want);
	if (want) {
		assert_int_equal(r->n, n);
		assert_memory_equal(r->v, was, n * sizeof(*was));
		(*refused)++;
	} else {
		memcpy(map, copy, sizeof(copy));
	}
}

static void ranges_against_a_bitmap(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	uint32_t refused = 0;
	struct kvs_rng rng;
	int round, step;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	for (round = 0; round < 200; round++) {
		bool map[SPACE] = { 0 };
		struct kvs_ranges r;

		kvs_ranges_init(&r, 1 + (uint32_t)kvs_rng_below(&rng, 40));
		for (step = 0; step < 120; step++) {
			uint64_t a = kvs_rng_below(&rng, SPACE);
			uint64_t b = a + kvs_rng_below(&rng, SPACE - a + 1);

			model_step(&r, map, &rng, &refused);
			assert_sound(&r);
			assert_int_equal(r.n, model_pieces(map));
			assert_true(kvs_ranges_first_hole(&r, a, b) ==
				    model_hole(map, a, b));
			assert_int_equal(kvs_ranges_covers(&r, a, b - a),
					 model_hole(map, a, b) == b);
		}
		kvs_ranges_fini(&r);
	}
	assert_true(refused > 100);
}

/* In order, backwards and from two ends: one piece, no memory at all. */
static void ranges_merge(void **state)
{
	struct kvs_ranges r;
	uint64_t i;

	(void)state;
	kvs_ranges_init(&r, 2);
	for (i = 0; i < 131072; i++)
		assert_int_equal(kvs_ranges_add(&r, i * 512, 512), 0);
	assert_int_equal(r.n, 1);
	assert_ptr_equal(r.v, r.few);
	assert_true(kvs_ranges_covers(&r, 0, 131072ULL * 512));
	kvs_ranges_fini(&r);
	for (i = 1000; i > 0; i--)
		assert_int_equal(kvs_ranges_add(&r, i * 512, 512), 0);
	assert_int_equal(r.n, 1);
	assert_int_equal(kvs_ranges_add(&r, 512 * 1002, 10), 0);
	assert_int_equal(r.n, 2);
	/* the gap between the two is filled: one again */
	assert_int_equal(kvs_ranges_add(&r, 512 * 1001, 512), 0);
	assert_int_equal(r.n, 1);
	kvs_ranges_fini(&r);
}

static void ranges_bounded(void **state)
{
	struct kvs_ranges r;
	uint64_t i;

	(void)state;
	kvs_ranges_init(&r, 100);
	for (i = 0; i < 100; i++)
		assert_int_equal(kvs_ranges_add(&r, i * 2, 1), 0);
	assert_int_equal(kvs_ranges_add(&r, 200, 1), -E2BIG);
	assert_true(r.cap <= 100);
	assert_true(r.bytes == 100);
	/* one that touches needs no room */
	assert_int_equal(kvs_ranges_add(&r, 1, 1), 0);
	assert_int_equal(kvs_ranges_add(&r, 200, 1), 0);
	assert_int_equal(r.n, 100);
	kvs_ranges_fini(&r);
	kvs_ranges_init(&r, 0);
	assert_int_equal(kvs_ranges_add(&r, 0, 1), -E2BIG);
	kvs_ranges_fini(&r);
}

static void ranges_extremes(void **state)
{
	struct kvs_ranges r;

	(void)state;
	kvs_ranges_init(&r, 8);
	assert_int_equal(kvs_ranges_add(&r, 0, 0), -EINVAL);
	assert_int_equal(kvs_ranges_add(&r, UINT64_MAX, 1), -EINVAL);
	assert_int_equal(kvs_ranges_add(&r, UINT64_MAX - 4095, 4096), -EINVAL);
	assert_int_equal(kvs_ranges_add(&r, 4096, UINT64_MAX - 4095), -EINVAL);
	assert_int_equal(r.n, 0);
	assert_int_equal(kvs_ranges_add(&r, UINT64_MAX - 1, 1), 0);
	assert_int_equal(kvs_ranges_add(&r, 0, UINT64_MAX - 1), 0);
	assert_int_equal(r.n, 1);
	assert_int_equal(kvs_ranges_add(&r, 7, 1), -EEXIST);
	assert_true(kvs_ranges_covers(&r, 0, UINT64_MAX));
	assert_false(kvs_ranges_covers(&r, 1, UINT64_MAX));
	assert_true(kvs_ranges_covers(&r, 5, 0));
	assert_true(kvs_ranges_first_hole(&r, 9, 3) == 3);
	kvs_ranges_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges_against_a_bitmap),
		cmocka_unit_test(ranges_merge),
		cmocka_unit_test(ranges_bounded),
		cmocka_unit_test(ranges_extremes),
	};

	return cmocka_run_group_tests_name("ranges", tests, NULL, NULL);
}
