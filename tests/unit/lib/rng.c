/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the generator gives the published sequence of xoshiro256** and its
 * seeding that of splitmix64, equal seeds replay, and the derived ranges are
 * kept and evenly filled.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "lib/assert.h"
#include "lib/rng.h"

static void rng_published_sequence(void **state)
{
	static const uint64_t want[] = {
		11520ULL,
		0ULL,
		1509978240ULL,
		1215971899390074240ULL,
		1216172134540287360ULL,
		607988272756665600ULL,
		16172922978634559625ULL,
		8476171486693032832ULL,
		10595114339597558777ULL,
		2904607092377533576ULL,
	};
	struct kvs_rng r = { { 1, 2, 3, 4 } };
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(want); i++)
		assert_true(kvs_rng_next(&r) == want[i]);
}

static void rng_seeding(void **state)
{
	static const uint64_t want[] = {
		6457827717110365317ULL,
		3203168211198807973ULL,
		9817491932198370423ULL,
		4593380528125082431ULL,
	};
	struct kvs_rng r;
	size_t i;

	(void)state;
	kvs_rng_init(&r, 1234567);
	for (i = 0; i < KVS_ARRAY_SIZE(want); i++)
		assert_true(r.s[i] == want[i]);
}

static void rng_replays(void **state)
{
	struct kvs_rng a, b, c;
	unsigned int same = 0;
	unsigned int i;

	(void)state;
	kvs_rng_init(&a, 0);
	kvs_rng_init(&b, 0);
	kvs_rng_init(&c, 1);
	assert_true(a.s[0] | a.s[1] | a.s[2] | a.s[3]);
	for (i = 0; i < 1000; i++) {
		uint64_t v = kvs_rng_next(&a);

		assert_true(kvs_rng_next(&b) == v);
		same += kvs_rng_next(&c) == v;
	}
	assert_int_equal(same, 0);
}

#define CELLS 10
#define DRAWS 100000

/* The seed is fixed, so the loose statistical bounds cannot flake. */
static void rng_below_even(void **state)
{
	unsigned int cell[CELLS] = { 0 };
	struct kvs_rng r;
	unsigned int i;

	(void)state;
	kvs_rng_init(&r, 42);
	for (i = 0; i < DRAWS; i++) {
		uint64_t v = kvs_rng_below(&r, CELLS);

		assert_true(v < CELLS);
		cell[v]++;
	}
	for (i = 0; i < CELLS; i++)
		assert_in_range(cell[i], DRAWS / CELLS * 95 / 100,
				DRAWS / CELLS * 105 / 100);
	for (i = 0; i < 100; i++)
		assert_true(kvs_rng_below(&r, 1) == 0);
}

/*
 * n = 3 * 2^62: a bare modulo would give the lowest third half of all draws.
 */
static void rng_below_no_modulo_bias(void **state)
{
	const uint64_t third = 1ULL << 62;
	unsigned int low = 0;
	struct kvs_rng r;
	unsigned int i;

	(void)state;
	kvs_rng_init(&r, 43);
	for (i = 0; i < 30000; i++) {
		uint64_t v = kvs_rng_below(&r, 3 * third);

		assert_true(v < 3 * third);
		low += v < third;
	}
	assert_in_range(low, 9500, 10500);
	for (i = 0; i < 1000; i++)
		assert_true(kvs_rng_below(&r, UINT64_MAX) < UINT64_MAX);
}

static void rng_double_range(void **state)
{
	struct kvs_rng r;
	double sum = 0;
	double lo = 1;
	double hi = 0;
	unsigned int i;

	(void)state;
	kvs_rng_init(&r, 44);
	for (i = 0; i < DRAWS; i++) {
		double v = kvs_rng_double(&r);

		assert_true(v >= 0 && v < 1);
		sum += v;
		lo = v < lo ? v : lo;
		hi = v > hi ? v : hi;
	}
	assert_true(lo < 0.001 && hi > 0.999);
	assert_true(sum / DRAWS > 0.49 && sum / DRAWS < 0.51);
}

static void rng_mix_spreads(void **state)
{
	unsigned int bit;

	(void)state;
	assert_true(kvs_mix64(0) == 0);
	/* one input bit turns about half of the output bits */
	for (bit = 0; bit < 64; bit++) {
		uint64_t a = kvs_mix64(0x123456789abcdefULL);
		uint64_t b = kvs_mix64(0x123456789abcdefULL ^ (1ULL << bit));

		assert_in_range(__builtin_popcountll(a ^ b), 12, 52);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rng_published_sequence),
		cmocka_unit_test(rng_seeding),
		cmocka_unit_test(rng_replays),
		cmocka_unit_test(rng_below_even),
		cmocka_unit_test(rng_below_no_modulo_bias),
		cmocka_unit_test(rng_double_range),
		cmocka_unit_test(rng_mix_spreads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
