/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvstage-bench cache prints one object for each capacity and policy,
 * with the fields that others rely on. With unlimited capacity it reports the
 * ideal block hit ratio of the trace exactly, and the bytes not sent, both as
 * this test counts them by itself; with less, ratios are in order: the policy
 * at most the clairvoyant one, that at most the ideal. The index under LRU
 * has the ratio of the plain LRU. With a cache the first token comes no later.
 * --recall reports both tiers, and leaves no file. --entries reports what each
 * costs. Wrong
 * arguments and traces are named.
 *
 * The trace is made here: conversations whose turns repeat what was said.
 * The first argument is the program.
 */
#include "tests/e2e/bench_rig.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHATS 40u
#define TURNS 200u
#define TURN_BLOCKS 5u
#define BLOCK 512u
#define MLA_TOKEN_BYTES 70272.0 /* 61 layers of 576 elements of 2 bytes */

static char dir[] = "/tmp/kvs-bench-cache-XXXXXX";
static char trace[64];
static uint64_t ids[TURNS * CHATS]; /* as written, one request after another */
static size_t n_ids, unique;
static uint64_t tokens, saved_tokens;

/* The count of this test, without a line of the tool's: seen before? */
static void count(const uint64_t *v, size_t n, uint64_t input)
{
	size_t prefix = 0;
	bool broken = false;

	for (size_t i = 0; i < n; i++) {
		size_t j = 0;

		while (j < n_ids && ids[j] != v[i])
			j++;
		broken |= j == n_ids;
		prefix += !broken;
	}
	for (size_t i = 0; i < n; i++) {
		size_t j = 0;

		while (j < n_ids && ids[j] != v[i])
			j++;
		unique += j == n_ids;
		ids[n_ids++] = v[i];
	}
	tokens += input;
	saved_tokens += prefix * BLOCK < input ? prefix * BLOCK : input;
}

static int set_up(void **state)
{
	uint64_t chat[CHATS][TURN_BLOCKS * 8], len[CHATS] = { 0 }, next = 1;
	uint64_t x = 12345;
	FILE *f;

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(trace, sizeof(trace), "%s/trace.jsonl", dir);
	f = fopen(trace, "we");
	if (!f)
		return -1;
	for (unsigned int t = 0; t < TURNS; t++) {
		unsigned int c;
		uint64_t input;

		x = x * 6364136223846793005ULL + 1442695040888963407ULL;
		c = (unsigned int)(x >> 33) % CHATS;
		if (!len[c])
			chat[c][len[c]++] = 0; /* one system prompt for all */
		for (unsigned int i = 0; i < 1 + (x >> 40) % TURN_BLOCKS; i++)
			chat[c][len[c]++] = next++;
		input = len[c] * BLOCK - (x >> 50) % BLOCK;
		fprintf(f,
			"{\"timestamp\": %u, \"input_length\": %llu, "
			"\"output_length\": 9, \"hash_ids\": [",
			t, (unsigned long long)input);
		for (uint64_t i = 0; i < len[c]; i++)
			fprintf(f, "%s%llu", i ? ", " : "",
				(unsigned long long)chat[c][i]);
		fprintf(f, "]}\n");
		count(chat[c], len[c], input);
		/* forgotten: the next turn is another conversation's first */
		if (len[c] > TURN_BLOCKS * 7)
			len[c] = 0;
	}
	return fclose(f);
}

static int tear_down(void **state)
{
	(void)state;
	unlink(trace);
	return rmdir(dir);
}

static size_t bench(const char *args, json_t *v[LINES_MAX])
{
	char line[512];

	snprintf(line, sizeof(line), "cache --json --trace %s %s", trace, args);
	assert_int_equal(run(line), 0);
	return parse(v);
}

static void forget(json_t *v[LINES_MAX], size_t n)
{
	while (n)
		json_decref(v[--n]);
}

static void near(double a, double b)
{
	/* five decimals are printed */
	if (fabs(a - b) > 0.000006)
		print_message("%f is not %f\n", a, b);
	assert_true(fabs(a - b) <= 0.000006);
}

static double tier_hits(const json_t *v, const char *tier)
{
	const json_t *o = json_object_get(v, "tier_hits");

	assert_true(json_is_object(o));
	return number(o, tier);
}

static void sooner(const json_t *v)
{
	static const char *const what[] = { "mean_ms", "median_ms", "p90_ms",
					    "p99_ms", "wait_mean_ms" };
	const json_t *without = json_object_get(v, "ttft_without");
	const json_t *with = json_object_get(v, "ttft_with");

	assert_true(json_is_object(without) && json_is_object(with));
	for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++)
		assert_true(number(with, what[i]) <= number(without, what[i]));
	assert_true(number(with, "mean_ms") < number(without, "mean_ms"));
}

static void test_unlimited(void **state)
{
	double ideal = (double)(n_ids - unique) / (double)n_ids;
	json_t *v[LINES_MAX];
	size_t n = bench("--policy s3fifo,lru", v);

	(void)state;
	assert_int_equal(n, 2);
	assert_true(ideal > 0.3 && ideal < 0.9);
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(text(v[i], "bench"), "cache");
		assert_string_equal(text(v[i], "capacity"), "unlimited");
		assert_string_equal(text(v[i], "policy"), i ? "lru" : "s3fifo");
		near(number(v[i], "block_hit_ratio"), ideal);
		near(number(v[i], "ideal_block_hit_ratio"), ideal);
		near(number(v[i], "lru_ratio"), ideal);
		near(number(v[i], "clairvoyant_ratio"), ideal);
		near(number(v[i], "prefix_hit_ratio"), ideal);
		assert_true(number(v[i], "blocks") == (double)n_ids);
		assert_true(number(v[i], "unique_blocks") == (double)unique);
		assert_true(tier_hits(v[i], "host") ==
			    (double)(n_ids - unique));
		assert_true(tier_hits(v[i], "nvme") == 0);
		assert_true(number(v[i], "wire_bytes") ==
			    (double)tokens * MLA_TOKEN_BYTES);
		assert_true(number(v[i], "wire_bytes_saved") ==
			    (double)saved_tokens * MLA_TOKEN_BYTES);
		assert_true(number(v[i], "footprint_bytes") ==
			    (double)unique * BLOCK * MLA_TOKEN_BYTES);
		sooner(v[i]);
	}
	forget(v, n);
}

static void test_limited(void **state)
{
	double ideal = (double)(n_ids - unique) / (double)n_ids;
	json_t *v[LINES_MAX];
	size_t n = bench("--capacity 10%,40%,900MB --policy s3fifo,lru", v);

	(void)state;
	assert_int_equal(n, 6);
	for (size_t i = 0; i < n; i++) {
		double seer = number(v[i], "clairvoyant_ratio");
		double ours = number(v[i], "block_hit_ratio");

		near(number(v[i], "ideal_block_hit_ratio"), ideal);
		assert_true(ours > 0 && ours <= seer);
		assert_true(number(v[i], "lru_ratio") <= seer && seer <= ideal);
		assert_true(number(v[i], "prefix_hit_ratio") <= ideal);
		assert_true(number(v[i], "evicted_blocks") > 0);
		if (!strcmp(text(v[i], "policy"), "lru"))
			near(ours, number(v[i], "lru_ratio"));
	}
	assert_string_equal(text(v[0], "capacity"), "10%");
	assert_true(number(v[0], "capacity_blocks") ==
		    floor((double)unique * 0.1));
	assert_true(number(v[4], "capacity_blocks") ==
		    floor(900e6 / (BLOCK * MLA_TOKEN_BYTES)));
	forget(v, n);
}

static void test_two_tiers(void **state)
{
	json_t *v[LINES_MAX];
	size_t n = bench("--capacity 5% --nvme unlimited", v);

	(void)state;
	assert_int_equal(n, 1);
	near(number(v[0], "block_hit_ratio"),
	     number(v[0], "ideal_block_hit_ratio"));
	assert_true(tier_hits(v[0], "host") > 0);
	assert_true(tier_hits(v[0], "nvme") > 0);
	assert_true(number(v[0], "evicted_blocks") == 0);
	assert_true(number(v[0], "nvme_written_blocks") > 0);
	forget(v, n);
}

static void test_entries(void **state)
{
	json_t *v[LINES_MAX];
	size_t n;

	(void)state;
	assert_int_equal(run("cache --json --entries 20K"), 0);
	n = parse(v);
	assert_int_equal(n, 1);
	assert_true(number(v[0], "entries") == 20000);
	/* a page, its unit, its slots */
	assert_true(number(v[0], "bytes_per_entry") >= 64 + 48 + 8);
	assert_true(number(v[0], "bytes_per_entry") < 200);
	assert_true(number(v[0], "lookup_ns") > 0);
	assert_true(number(v[0], "insert_ns") > 0);
	assert_true(number(v[0], "replace_ns") > 0);
	forget(v, n);
	assert_int_equal(run("cache --entries 1000"), 0);
	assert_non_null(strstr(out, "bytes_per_entry"));
}

static void test_recall(void **state)
{
	json_t *v[LINES_MAX];
	char line[512];
	size_t n;

	(void)state;
	snprintf(line, sizeof(line),
		 "cache --json --recall 2M --model tiny-mha --dir %s", dir);
	assert_int_equal(run(line), 0);
	n = parse(v);
	assert_int_equal(n, 2);
	assert_string_equal(text(v[0], "recall"), "host");
	assert_string_equal(text(v[1], "recall"), "nvme");
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(text(v[i], "bench"), "cache");
		assert_true(number(v[i], "bytes") >= 2e6);
		assert_true(number(v[i], "gbps") > 0);
	}
	forget(v, n);
	/* nothing is left: the directory can be removed with the trace */
	assert_int_equal(run("cache --recall 2M --dir /nonexistent"), 1);
	assert_non_null(strstr(err, "/nonexistent"));
}

static void test_table(void **state)
{
	char line[512];

	(void)state;
	snprintf(line, sizeof(line), "cache --trace %s --capacity 10%%", trace);
	assert_int_equal(run(line), 0);
	assert_non_null(strstr(out, "clairvoyant_ratio"));
	assert_non_null(strstr(out, "s3fifo"));
}

static void test_wrong(void **state)
{
	static const char *const bad[][2] = {
		{ "cache", "one of --trace, --recall and --entries" },
		{ "cache --entries 10M --trace x", "one of" },
		{ "cache --recall 2M --trace x", "one of" },
		{ "cache --recall 1K", "--recall" },
		{ "cache --trace x --prefills 0", "--prefills" },
		{ "cache --trace x --nvme-rate 0", "--nvme-rate" },
		{ "cache --entries 999", "--entries" },
		{ "cache --entries 1T", "--entries" },
		{ "cache --entries -1", "--entries" },
		{ "cache --trace x --capacity 0", "--capacity" },
		{ "cache --trace x --capacity 101%", "--capacity" },
		{ "cache --trace x --capacity nan%", "--capacity" },
		{ "cache --trace x --capacity 10%,", "--capacity" },
		{ "cache --trace x --nvme -1", "--nvme" },
		{ "cache --trace x --policy fifo", "--policy" },
		{ "cache --trace x --policy lru,lru,lru", "--policy" },
		{ "cache --trace x --small-share 1001", "--small-share" },
		{ "cache --trace x --promote 4", "--promote" },
		{ "cache --trace x --tp 0", "--tp" },
		{ "cache --trace x --block-tokens 0", "--block-tokens" },
		{ "cache --trace x --requests 0", "--requests" },
		{ "cache --trace x --model nosuch", "nosuch" },
		{ "cache surplus", "Too many arguments" },
	};
	char line[512];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (run(bad[i][0]) != 2 || !strstr(err, bad[i][1]))
			print_message("%s: %s\n", bad[i][0], err);
		assert_int_equal(run(bad[i][0]), 2);
		assert_non_null(strstr(err, bad[i][1]));
		assert_string_equal(out, "");
	}
	assert_int_equal(run("cache --trace /nonexistent/file"), 1);
	assert_non_null(strstr(err, "/nonexistent/file"));
	snprintf(line, sizeof(line), "cache --trace %s --capacity 4K", trace);
	assert_int_equal(run(line), 2);
	assert_non_null(strstr(err, "less than a block"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unlimited),
		cmocka_unit_test(test_limited),
		cmocka_unit_test(test_two_tiers),
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_recall),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_wrong),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: bench_cache PROGRAM\n");
		return 2;
	}
	program = argv[1];
	return cmocka_run_group_tests_name("bench_cache", tests, set_up,
					   tear_down);
}
