/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: against a sorted array of the same values, every quantile is never
 * below the true value and at most a factor 1 + 2^-KVS_HIST_BITS above it,
 * over random data of every magnitude; counts, mean, merge and the empty and
 * saturated cases hold.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/hist.h"
#include "lib/rng.h"

static const double quantiles[] = { 0.0, 0.001, 0.01, 0.07,    0.1,  0.25,
				    0.5, 0.75,	0.9,  0.95,    0.99, 0.999,
				    1.0, 0.333, 0.29, 0.999999 };

static int cmp_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Largest answer the promise allows for true value @v. */
static uint64_t bound(uint64_t v)
{
	uint64_t slack = v >> KVS_HIST_BITS;

	return v > UINT64_MAX - slack ? UINT64_MAX : v + slack;
}

/* Nearest rank in integers: q is taken in millionths. */
static uint64_t true_quantile(const uint64_t *v, size_t n, double q)
{
	uint64_t millionths = (uint64_t)(q * 1e6 + 0.5);
	uint64_t rank = (millionths * n + 999999) / 1000000;

	return v[rank ? rank - 1 : 0];
}

static void check_against(const struct kvs_hist *h, const uint64_t *v, size_t n)
{
	size_t i;

	assert_true(h->count == n);
	assert_true(h->min == v[0]);
	assert_true(h->max == v[n - 1]);
	for (i = 0; i < KVS_ARRAY_SIZE(quantiles); i++) {
		uint64_t want = true_quantile(v, n, quantiles[i]);
		uint64_t got = kvs_hist_quantile(h, quantiles[i]);

		if (got < want || got > bound(want))
			fail_msg("n %zu q %g: want %llu got %llu", n,
				 quantiles[i], (unsigned long long)want,
				 (unsigned long long)got);
		if (want < 1u << KVS_HIST_BITS)
			assert_true(got == want);
	}
	for (i = 0; i < n; i++) {
		size_t at_least = i + 1;
		size_t at_most = i;
		uint64_t got = kvs_hist_count_le(h, v[i]);

		while (at_least < n && v[at_least] == v[i])
			at_least++;
		at_most = at_least;
		while (at_most < n && v[at_most] <= bound(v[i]))
			at_most++;
		assert_in_range(got, at_least, at_most);
	}
}

static uint64_t draw(struct kvs_rng *r, unsigned int shape)
{
	switch (shape) {
	case 0: /* any magnitude alike */
		return kvs_rng_next(r) >> kvs_rng_below(r, 64);
	case 1: /* the exact range */
		return kvs_rng_below(r, 80);
	case 2: /* about a power of two */
		return (1ULL << kvs_rng_below(r, 64)) - 1 + kvs_rng_below(r, 3);
	case 3: /* few distinct values */
		return 1000 + 977 * kvs_rng_below(r, 4);
	default: /* the top of the range */
		return UINT64_MAX - kvs_rng_below(r, 1000);
	}
}

#define MAX_VALUES 2000
#define ROUNDS 120

static void hist_property(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	uint64_t *v = calloc(MAX_VALUES, sizeof(uint64_t));
	struct kvs_hist whole, half[2];
	struct kvs_rng r;
	unsigned int round;

	(void)state;
	assert_non_null(v);
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	for (round = 0; round < ROUNDS; round++) {
		size_t n = 1 + kvs_rng_below(&r, MAX_VALUES);
		size_t i;

		kvs_hist_init(&whole);
		kvs_hist_init(&half[0]);
		kvs_hist_init(&half[1]);
		for (i = 0; i < n; i++) {
			v[i] = draw(&r, round % 5);
			kvs_hist_record(&whole, v[i]);
			kvs_hist_record(&half[kvs_rng_below(&r, 2)], v[i]);
		}
		qsort(v, n, sizeof(*v), cmp_u64);
		check_against(&whole, v, n);
		kvs_hist_merge(&half[0], &half[1]);
		assert_memory_equal(&half[0], &whole, sizeof(whole));
	}
	free(v);
}

/* Every power of two and its neighbours, alone: in range, and within bound. */
static void hist_edges(void **state)
{
	struct kvs_hist h;
	unsigned int e;
	int d;

	(void)state;
	for (e = 0; e < 64; e++) {
		for (d = -1; d <= 1; d++) {
			uint64_t v = (1ULL << e) + (uint64_t)d;
			uint64_t got;

			kvs_hist_init(&h);
			kvs_hist_record(&h, v);
			/* so that clamping to max does not hide the bucket */
			kvs_hist_record(&h, UINT64_MAX);
			got = kvs_hist_quantile(&h, 0.5);
			assert_true(got >= v && got <= bound(v));
		}
	}
	kvs_hist_init(&h);
	kvs_hist_record(&h, 0);
	assert_true(kvs_hist_quantile(&h, 0.5) == 0);
	assert_true(kvs_hist_count_le(&h, 0) == 1);
}

static void hist_empty(void **state)
{
	struct kvs_hist h, other;

	(void)state;
	kvs_hist_init(&h);
	assert_true(kvs_hist_quantile(&h, 0.5) == 0);
	assert_true(kvs_hist_count_le(&h, UINT64_MAX) == 0);
	assert_true(kvs_hist_mean(&h) == 0.0);
	kvs_hist_init(&other);
	kvs_hist_record(&other, 77);
	kvs_hist_merge(&other, &h);
	assert_true(other.min == 77 && other.max == 77 && other.count == 1);
	kvs_hist_merge(&h, &other);
	assert_true(h.min == 77 && h.max == 77 && h.count == 1);
}

static void hist_odd_quantiles(void **state)
{
	struct kvs_hist h;
	unsigned int i;

	(void)state;
	kvs_hist_init(&h);
	for (i = 1; i <= 50; i++)
		kvs_hist_record(&h, i);
	assert_true(kvs_hist_quantile(&h, -1.0) == 1);
	assert_true(kvs_hist_quantile(&h, 2.0) == 50);
	assert_true(kvs_hist_quantile(&h, INFINITY) == 50);
	assert_true(kvs_hist_quantile(&h, NAN) == 1);
	assert_true(kvs_hist_mean(&h) == 25.5);
	assert_true(kvs_hist_count_le(&h, 20) == 20);
}

static void hist_saturates(void **state)
{
	struct kvs_hist h, other;

	(void)state;
	kvs_hist_init(&h);
	kvs_hist_record(&h, 5);
	kvs_hist_record(&h, UINT64_MAX);
	kvs_hist_record(&h, UINT64_MAX);
	assert_true(h.sum == UINT64_MAX);
	/* a bucket that is full stays full and keeps its weight */
	h.bucket[5] = UINT32_MAX;
	h.count = (uint64_t)UINT32_MAX + 2;
	kvs_hist_record(&h, 5);
	assert_true(h.bucket[5] == UINT32_MAX);
	kvs_hist_init(&other);
	kvs_hist_record(&other, 5);
	kvs_hist_merge(&h, &other);
	assert_true(h.bucket[5] == UINT32_MAX);
	assert_true(h.count == (uint64_t)UINT32_MAX + 4);
	assert_true(kvs_hist_quantile(&h, 0.99) == 5);
	assert_true(kvs_hist_quantile(&h, 1.0) == UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hist_property),
		cmocka_unit_test(hist_edges),
		cmocka_unit_test(hist_empty),
		cmocka_unit_test(hist_odd_quantiles),
		cmocka_unit_test(hist_saturates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
