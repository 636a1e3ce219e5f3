/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: any piece of a stream is the same bytes whatever piece it is made
 * in; every single changed bit is found, where it is, and all of several are
 * counted; a page in another's place, another buffer's, room's or run's
 * bytes, bytes shifted by any small amount, and memory nobody wrote are all
 * found in each 64 bytes of them; nothing beside the piece is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/rng.h"
#include "tools/pattern.h"

#define LEN 8192u
#define SEED kvs_pattern_seed(1, 42, 0, 7)

static void test_any_piece_is_the_same(void **state)
{
	uint8_t whole[LEN];
	uint8_t piece[LEN + 64];
	struct kvs_rng rng;
	int round;

	(void)state;
	kvs_rng_init(&rng, 3);
	for (round = 0; round < 5000; round++) {
		uint64_t base = kvs_rng_next(&rng) >> kvs_rng_below(&rng, 60);
		size_t off = kvs_rng_below(&rng, LEN);
		size_t len = kvs_rng_below(&rng, LEN - off + 1);
		size_t at = 1 + kvs_rng_below(&rng, 32);

		/* a stream ends before its offsets wrap around */
		if (base > UINT64_MAX - LEN)
			base = UINT64_MAX - LEN;
		if (round % 64 == 0 || base == UINT64_MAX - LEN)
			len = LEN - off;
		kvs_pattern_fill(whole, LEN, SEED, base);
		memset(piece, 0xa5, sizeof(piece));
		kvs_pattern_fill(piece + at, len, SEED, base + off);
		assert_memory_equal(piece + at, whole + off, len);
		assert_int_equal(piece[at - 1], 0xa5);
		assert_int_equal(piece[at + len], 0xa5);
		assert_int_equal(kvs_pattern_check(piece + at, len, SEED,
						   base + off, NULL, NULL),
				 0);
	}
}

/* Both ends of a hand-over may be built by different compilers. */
static void test_bytes_are_these(void **state)
{
	static const uint8_t want[] = { 0x12, 0x2f, 0xa2, 0x45, 0x1e, 0x17,
					0x61, 0xb2, 0x41, 0xe1, 0x03, 0x53,
					0x1e, 0xbd, 0x5f, 0x76, 0x75, 0x9a,
					0xb0, 0x22, 0xf2, 0x12, 0x1c, 0x53 };
	uint8_t got[sizeof(want)];

	(void)state;
	assert_true(SEED == 0xb75467ff5e69c5bbULL);
	kvs_pattern_fill(got, sizeof(got), SEED, 60);
	assert_memory_equal(got, want, sizeof(want));
}

static void test_every_bit_flip_is_found(void **state)
{
	enum { N = 528 };
	uint8_t p[N];
	size_t first;
	size_t bad;
	size_t i;

	(void)state;
	kvs_pattern_fill(p, N, SEED, 3 * N);
	for (i = 0; i < N * 8; i++) {
		p[i / 8] ^= (uint8_t)(1u << i % 8);
		first = bad = 12345;
		assert_int_equal(kvs_pattern_check(p, N, SEED, 3 * N, &first,
						   &bad),
				 -EBADMSG);
		assert_int_equal(first, i / 8);
		assert_int_equal(bad, 1);
		first = 12345;
		assert_int_equal(kvs_pattern_check(p, N, SEED, 3 * N, &first,
						   NULL),
				 -EBADMSG);
		assert_int_equal(first, i / 8);
		assert_int_equal(kvs_pattern_check(p, N, SEED, 3 * N, NULL,
						   NULL),
				 -EBADMSG);
		p[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	first = bad = 12345;
	assert_int_equal(kvs_pattern_check(p, N, SEED, 3 * N, &first, &bad), 0);
	assert_int_equal(first, 12345);
	assert_int_equal(bad, 12345);
	assert_int_equal(kvs_pattern_check(p, 0, SEED, 0, &first, &bad), 0);
}

static void test_several_flips_are_counted_and_visited(void **state)
{
	uint8_t p[LEN];
	size_t want[40] = { 0 };
	struct kvs_rng rng;
	uint32_t round;

	(void)state;
	kvs_rng_init(&rng, 8);
	for (round = 0; round < 300; round++) {
		uint64_t off = kvs_rng_below(&rng, 1000);
		size_t n = 1 + kvs_rng_below(&rng, KVS_ARRAY_SIZE(want));
		size_t from = 0;
		size_t first;
		size_t bad;
		size_t i;

		kvs_pattern_fill(p, LEN, SEED, off);
		/* one in each of n equal parts, so in order and distinct */
		for (i = 0; i < n; i++) {
			want[i] = LEN / n * i + kvs_rng_below(&rng, LEN / n);
			p[want[i]] ^= (uint8_t)(1 + kvs_rng_below(&rng, 255));
		}
		assert_int_equal(kvs_pattern_check(p, LEN, SEED, off, &first,
						   &bad),
				 -EBADMSG);
		assert_int_equal(first, want[0]);
		assert_int_equal(bad, n);
		for (i = 0; i < n; i++) {
			assert_int_equal(kvs_pattern_check(p + from, LEN - from,
							   SEED, off + from,
							   &first, NULL),
					 -EBADMSG);
			assert_int_equal(from + first, want[i]);
			from += first + 1;
		}
		assert_int_equal(kvs_pattern_check(p + from, LEN - from, SEED,
						   off + from, NULL, NULL),
				 0);
	}
}

/* Each 64 bytes alone must tell that @p is not [off, off + LEN) of @seed. */
static void check_all_wrong(const uint8_t *p, uint64_t seed, uint64_t off)
{
	size_t bad;
	size_t i;

	for (i = 0; i + 64 <= LEN; i += 16) {
		bad = 0;
		assert_int_equal(kvs_pattern_check(p + i, 64, seed, off + i,
						   NULL, &bad),
				 -EBADMSG);
		assert_true(bad >= 48);
	}
	/* chance alone makes one byte in 256 the same */
	assert_int_equal(kvs_pattern_check(p, LEN, seed, off, NULL, &bad),
			 -EBADMSG);
	assert_true(bad >= LEN - LEN / 32);
}

static void test_other_places_are_found(void **state)
{
	static const size_t item_lens[] = { 64, 512, 528, 576, 4096, 65536 };
	uint8_t p[LEN];
	size_t i;
	size_t page;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(item_lens); i++)
		for (page = 1; page <= 64; page++) {
			kvs_pattern_fill(p, LEN, SEED, page * item_lens[i]);
			check_all_wrong(p, SEED, 0);
			check_all_wrong(p, SEED, (page - 1) * item_lens[i]);
			check_all_wrong(p, SEED, (page + 1) * item_lens[i]);
		}
	for (i = 1; i <= 192; i++) {
		kvs_pattern_fill(p, LEN, SEED, i);
		check_all_wrong(p, SEED, 0);
		kvs_pattern_fill(p, LEN, SEED, 0);
		check_all_wrong(p, SEED, i);
	}
	/* far apart, where a narrow counter would come round again */
	for (i = 8; i < 63; i++) {
		kvs_pattern_fill(p, LEN, SEED, 1ULL << i);
		check_all_wrong(p, SEED, 0);
	}
}

static void test_other_buffers_rooms_and_runs_are_found(void **state)
{
	const struct {
		uint64_t salt;
		uint64_t room;
		unsigned int kind;
		unsigned int layer;
	} other[] = {
		{ 2, 42, 0, 7 }, /* another run */
		{ 0, 42, 0, 7 },
		{ 1, 43, 0, 7 }, /* another room */
		{ 1, 42 + (1ULL << 32), 0, 7 },
		{ 1, 42 ^ (1ULL << 63), 0, 7 },
		{ 42, 1, 0, 7 }, /* the two changed places */
		{ 1, 42, 1, 7 }, /* the other half of the layer */
		{ 1, 42, 0, 8 }, /* another layer */
		{ 1, 42, 7, 0 }, /* kind and layer changed places */
		{ 1, 42, KVS_PATTERN_AUX, 7 },
		{ 1, 43, 1, 6 },
	};
	uint8_t p[LEN];
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(other); i++) {
		uint64_t seed = kvs_pattern_seed(other[i].salt, other[i].room,
						 other[i].kind, other[i].layer);

		kvs_pattern_fill(p, LEN, seed, 0);
		check_all_wrong(p, SEED, 0);
		kvs_pattern_fill(p, LEN, SEED, 4096);
		check_all_wrong(p, seed, 4096);
	}
}

static void test_seeds_do_not_meet(void **state)
{
	enum { ROOMS = 64, KINDS = 8, LAYERS = 128 };
	const size_t n = (size_t)ROOMS * KINDS * LAYERS;
	uint64_t *seen = malloc(2 * n * sizeof(*seen));
	size_t used = 0;
	unsigned int r, k, l;
	size_t at;

	(void)state;
	assert_non_null(seen);
	memset(seen, 0, 2 * n * sizeof(*seen));
	for (r = 0; r < ROOMS; r++)
		for (k = 0; k < KINDS; k++)
			for (l = 0; l < LAYERS; l++) {
				uint64_t s = kvs_pattern_seed(9, r, k, l);

				/* open addressing; 0 is an empty place */
				assert_true(s != 0);
				for (at = s % (2 * n); seen[at];
				     at = (at + 1) % (2 * n))
					assert_true(seen[at] != s);
				seen[at] = s;
				used++;
			}
	assert_int_equal(used, n);
	free(seen);
}

static void test_unwritten_memory_is_found(void **state)
{
	static const int fills[] = { 0, 0xff, 0xee, 0xa5, 0x5a, 1 };
	uint8_t p[LEN];
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(fills); i++) {
		memset(p, fills[i], LEN);
		check_all_wrong(p, SEED, 0);
		check_all_wrong(p, SEED, 12345);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_piece_is_the_same),
		cmocka_unit_test(test_bytes_are_these),
		cmocka_unit_test(test_every_bit_flip_is_found),
		cmocka_unit_test(test_several_flips_are_counted_and_visited),
		cmocka_unit_test(test_other_places_are_found),
		cmocka_unit_test(test_other_buffers_rooms_and_runs_are_found),
		cmocka_unit_test(test_seeds_do_not_meet),
		cmocka_unit_test(test_unwritten_memory_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
