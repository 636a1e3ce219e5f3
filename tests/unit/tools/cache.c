/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the bounds that kvstage-bench cache prints are right. A plain LRU
 * hits where a list moved to the front by hand does; no choice of what to keep
 * has more hits than the clairvoyant cache, and some choice has as many, which
 * every choice tried out on short streams shows. The index under LRU hits
 * where the plain LRU does, with room for everything where any block came
 * before, and never more often than the clairvoyant cache, with one tier and
 * with two. What it says of each request adds up to what it says of all. The
 * TTFT model has the times that its description gives, and a request whose
 * prefix is cached waits only for what is not.
 *
 * A random seed is printed; KVS_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/pinned/seed.h"
#include "tools/cache_bounds.h"
#include "tools/cache_replay.h"
#include "tools/cache_ttft.h"

#define LONG 3000u
#define REQUEST 12u /* blocks at most */

static struct kvs_rng rng;
static uint64_t ids[LONG];
static struct kvs_trace_request reqs[LONG];

static int set_up(void **state)
{
	(void)state;
	seed_rng(&rng);
	return 0;
}

/* Requests over @n blocks of @unique kinds, low numbers more often. */
static struct kvs_trace make_trace(size_t n, uint64_t unique)
{
	struct kvs_trace t = { .req = reqs, .ids = ids, .n_ids = n };

	for (size_t i = 0; i < n;) {
		uint64_t k = 1 + kvs_rng_below(&rng, REQUEST);

		if (k > n - i)
			k = n - i;
		reqs[t.n++] = (struct kvs_trace_request){
			.input = (uint32_t)k * 512 - 100,
			.n_ids = (uint32_t)k,
			.ids = i,
		};
		for (; k; k--)
			ids[i++] = kvs_rng_below(
				&rng, 1 + kvs_rng_below(&rng, unique));
	}
	return t;
}

static uint64_t naive_ideal(size_t n)
{
	uint64_t hits = 0;

	for (size_t i = 0; i < n; i++) {
		size_t j = 0;

		while (ids[j] != ids[i])
			j++;
		hits += j < i;
	}
	return hits;
}

static uint64_t naive_lru(size_t n, uint64_t capacity)
{
	uint64_t list[LONG], hits = 0;
	size_t held = 0, at;

	for (size_t i = 0; i < n; i++) {
		for (at = 0; at < held && list[at] != ids[i]; at++)
			;
		hits += at < held;
		if (at == held && held < capacity)
			held++;
		else if (at == held)
			at--;
		memmove(&list[1], &list[0], at * sizeof(list[0]));
		list[0] = ids[i];
	}
	return hits;
}

/* Most hits from place @i on, when the blocks of bit set @held are there. */
static uint64_t best(const struct kvs_block_stream *s, size_t i, unsigned held,
		     uint64_t capacity)
{
	unsigned int bit;
	uint64_t most, v;

	if (i == s->n)
		return 0;
	bit = 1u << s->id[i];
	if (held & bit)
		return 1 + best(s, i + 1, held, capacity);
	most = best(s, i + 1, held, capacity);
	if ((uint64_t)__builtin_popcount(held) < capacity) {
		v = best(s, i + 1, held | bit, capacity);
		return v > most ? v : most;
	}
	for (unsigned int out = held; out; out &= out - 1) {
		v = best(s, i + 1, (held & ~(out & -out)) | bit, capacity);
		most = v > most ? v : most;
	}
	return most;
}

static void test_clairvoyant_is_the_best(void **state)
{
	struct kvs_block_stream s;
	uint64_t hits;

	(void)state;
	for (unsigned int k = 0; k < 300; k++) {
		size_t n = 4 + kvs_rng_below(&rng, 9);
		struct kvs_trace t = make_trace(n, 2 + kvs_rng_below(&rng, 5));

		assert_int_equal(kvs_block_stream_make(&t, &s), 0);
		for (uint64_t cap = 1; cap <= 3; cap++) {
			assert_int_equal(kvs_bound_clairvoyant(&s, cap, &hits),
					 0);
			assert_int_equal(hits, best(&s, 0, 0, cap));
		}
		kvs_block_stream_fini(&s);
	}
}

static void test_bounds(void **state)
{
	struct kvs_block_stream s;
	uint64_t lru, seer;

	(void)state;
	for (uint64_t unique = 2; unique < LONG; unique *= 3) {
		struct kvs_trace t = make_trace(LONG, unique);

		assert_int_equal(kvs_block_stream_make(&t, &s), 0);
		assert_int_equal(kvs_bound_ideal(&s), naive_ideal(LONG));
		for (uint64_t cap = 1; cap < 2 * LONG; cap = cap * 2 + 1) {
			assert_int_equal(kvs_bound_lru(&s, cap, &lru), 0);
			assert_int_equal(lru, naive_lru(LONG, cap));
			assert_int_equal(kvs_bound_clairvoyant(&s, cap, &seer),
					 0);
			assert_in_range(seer, lru, kvs_bound_ideal(&s));
			if (cap >= s.unique)
				assert_int_equal(seer, kvs_bound_ideal(&s));
		}
		kvs_block_stream_fini(&s);
	}
}

static void test_no_blocks(void **state)
{
	struct kvs_trace t = { 0 };
	struct kvs_block_stream s;

	(void)state;
	assert_int_equal(kvs_block_stream_make(&t, &s), -ENODATA);
}

static void replay(const struct kvs_trace *t, const struct kvs_block_stream *s,
		   uint64_t host, uint64_t nvme, enum kvs_policy policy,
		   struct kvs_replay_result *ret)
{
	const struct kvs_replay_opts o = {
		.blocks = { [KVS_TIER_HOST] = host, [KVS_TIER_NVME] = nvme },
		.block_tokens = 512,
		.policy = policy,
	};

	assert_int_equal(kvs_replay(t, s, &o, ret), 0);
	assert_int_equal(ret->hits, ret->tier_hits[KVS_TIER_HOST] +
					    ret->tier_hits[KVS_TIER_NVME] +
					    ret->tier_hits[KVS_TIER_SHARED]);
	assert_true(ret->prefix_hits <= ret->hits || host < REQUEST);
}

static void test_replay(void **state)
{
	struct kvs_replay_result m;
	struct kvs_block_stream s;
	uint64_t lru, seer;

	(void)state;
	for (uint64_t unique = 5; unique < LONG; unique *= 4) {
		struct kvs_trace t = make_trace(LONG, unique);

		assert_int_equal(kvs_block_stream_make(&t, &s), 0);
		for (uint64_t cap = 1; cap <= 2 * LONG; cap = cap * 3 + 1) {
			kvs_bound_lru(&s, cap, &lru);
			kvs_bound_clairvoyant(&s, cap, &seer);
			replay(&t, &s, cap, 0, KVS_POLICY_LRU, &m);
			assert_int_equal(m.hits, lru);
			replay(&t, &s, cap, 0, KVS_POLICY_S3FIFO, &m);
			assert_true(m.hits <= seer);
			if (cap < s.unique)
				continue;
			assert_int_equal(m.hits, naive_ideal(LONG));
			assert_int_equal(m.evicted, 0);
		}
		kvs_block_stream_fini(&s);
	}
}

/* Tokens of all requests' prefixes, none of which has more than it has. */
static uint64_t sum_of(const struct kvs_trace *t,
		       const struct kvs_block_stream *s, uint64_t nvme,
		       enum kvs_policy policy)
{
	static struct kvs_replay_hit hit[LONG];
	const struct kvs_replay_opts o = {
		.blocks = { [KVS_TIER_HOST] = 30, [KVS_TIER_NVME] = nvme },
		.block_tokens = 512,
		.policy = policy,
		.hit = hit,
	};
	struct kvs_replay_result m;
	uint64_t sum = 0, tier[KVS_TIER_MAX] = { 0 };

	assert_int_equal(kvs_replay(t, s, &o, &m), 0);
	for (size_t i = 0; i < t->n; i++) {
		uint64_t one = 0;

		for (unsigned int k = 0; k < KVS_TIER_MAX; k++) {
			one += hit[i].tokens[k];
			tier[k] += hit[i].tokens[k];
		}
		assert_true(one <= t->req[i].input);
		sum += one;
	}
	assert_true(tier[KVS_TIER_HOST] > 0 && tier[KVS_TIER_NVME] > 0);
	return sum;
}

static void test_two_tiers(void **state)
{
	struct kvs_replay_result m;
	struct kvs_block_stream s;
	struct kvs_trace t = make_trace(LONG, 500);
	uint64_t seer;

	(void)state;
	assert_int_equal(kvs_block_stream_make(&t, &s), 0);
	for (unsigned int policy = 0; policy < KVS_POLICY_MAX; policy++) {
		kvs_bound_clairvoyant(&s, 30 + 100, &seer);
		replay(&t, &s, 30, 100, policy, &m);
		assert_true(m.hits <= seer);
		assert_true(m.tier_hits[KVS_TIER_HOST] > 0);
		assert_true(m.tier_hits[KVS_TIER_NVME] > 0);
		/* a second tier with room for all: nothing is lost, and each
		 * block is written to it once */
		replay(&t, &s, 30, LONG, policy, &m);
		assert_int_equal(m.hits, kvs_bound_ideal(&s));
		assert_int_equal(m.evicted, 0);
		assert_int_equal(sum_of(&t, &s, LONG, policy), m.prefix_tokens);
		assert_in_range(m.written, s.unique - 30, s.unique);
		/* tiers of one block */
		replay(&t, &s, 1, 1, policy, &m);
		kvs_bound_clairvoyant(&s, 2, &seer);
		assert_true(m.hits <= seer);
	}
	kvs_block_stream_fini(&s);
}

/* Bytes not sent are those of the prefix that is there at once. */
static void test_prefix(void **state)
{
	static uint64_t three[] = { 7, 8, 9, 7, 8, 9, 1, 8, 9 };
	static struct kvs_trace_request q[] = {
		{ .input = 1500, .n_ids = 3, .ids = 0 },
		{ .input = 1500, .n_ids = 3, .ids = 3 },
		{ .input = 1536, .n_ids = 3, .ids = 6 },
	};
	struct kvs_trace t = { .req = q, .n = 3, .ids = three, .n_ids = 9 };
	struct kvs_replay_result m;
	struct kvs_block_stream s;

	(void)state;
	assert_int_equal(kvs_block_stream_make(&t, &s), 0);
	replay(&t, &s, 9, 0, KVS_POLICY_S3FIFO, &m);
	/* the second request whole, its last block in part; in the third
	 * there is a hole in front */
	assert_int_equal(m.hits, 5);
	assert_int_equal(m.prefix_hits, 3);
	assert_int_equal(m.prefix_tokens, 1500);
	kvs_block_stream_fini(&s);
}

static void near(double a, double b)
{
	if (fabs(a - b) > 1e-6)
		print_message("%f is not %f\n", a, b);
	assert_true(fabs(a - b) <= 1e-6);
}

/* 1000 tokens a second, and 1000 tokens a second over the link and from the
 * disk, 10000 to the device; chunks of 100. */
static const struct kvs_serving slow = {
	.token_bytes = 10,
	.prefills = 1,
	.prefill_rate = 1000,
	.prefill_chunk = 100,
	.link_rate = 10000,
	.link_latency = 5000000,
	.h2d_rate = 100000,
	.step_base = 20000000,
	.step_request = 1000000,
};

static void test_ttft(void **state)
{
	static struct kvs_trace_request q[] = {
		{ .at_ms = 0, .input = 1000 },
		{ .at_ms = 500, .input = 1000 },
	};
	struct kvs_trace t = { .req = q, .n = 1 };
	struct kvs_replay_hit hit[2] = { 0 };
	struct kvs_cache_ttft r;

	(void)state;
	/* computed 1 s, last chunk 0.1, latency 0.005, copied 0.1, a step */
	assert_int_equal(kvs_cache_ttft(&slow, &t, NULL, 10000, &r), 0);
	near(r.mean, 1000 + 100 + 5 + 100 + 21);
	near(r.median, r.mean);
	near(r.p99, r.mean);
	near(r.wait, 0);
	/* the second one waits for the first for 0.5 s */
	t.n = 2;
	assert_int_equal(kvs_cache_ttft(&slow, &t, NULL, 10000, &r), 0);
	near(r.mean, 1226 + 250);
	near(r.p99, 1226 + 500);
	near(r.wait, 250);
	/* all but 400 tokens of both: no wait, and all is copied */
	hit[0].tokens[KVS_TIER_HOST] = 600;
	hit[1].tokens[KVS_TIER_HOST] = 600;
	assert_int_equal(kvs_cache_ttft(&slow, &t, hit, 10000, &r), 0);
	near(r.mean, 400 + 100 + 5 + 100 + 21);
	near(r.wait, 0);
	/* from the disk: read while the rest is computed, if that is longer */
	hit[0].tokens[KVS_TIER_HOST] = 0;
	hit[0].tokens[KVS_TIER_NVME] = 600;
	t.n = 1;
	assert_int_equal(kvs_cache_ttft(&slow, &t, hit, 20000, &r), 0);
	near(r.mean, 400 + 100 + 5 + 100 + 21);
	assert_int_equal(kvs_cache_ttft(&slow, &t, hit, 2000, &r), 0);
	near(r.mean, 3000 + 100 + 21);
	/* one token at least is computed */
	hit[0].tokens[KVS_TIER_NVME] = 1000;
	assert_int_equal(kvs_cache_ttft(&slow, &t, hit, 1e9, &r), 0);
	near(r.mean, 1 + 1 + 5 + 100 + 21);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clairvoyant_is_the_best),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_no_blocks),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_two_tiers),
		cmocka_unit_test(test_prefix),
		cmocka_unit_test(test_ttft),
	};

	return cmocka_run_group_tests_name("cache", tests, set_up, NULL);
}
