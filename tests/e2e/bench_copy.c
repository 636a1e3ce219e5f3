/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvstage-bench h2d and commit print one object a line with the fields
 * that others rely on, both ways and whichever way small pieces travel, and
 * compare bytes; the ring needs far fewer operations than items; wrong
 * arguments end with 2 and a message that names them, a device that is not
 * there with 77 and the reason. With the double of the driver in the library
 * path the same program has a CUDA device. No rate is asserted.
 *
 * The arguments are the program and the folder of the double, or nothing.
 */
#include "tests/e2e/bench_rig.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *double_dir;

static void test_usage(void **state)
{
	static const char *const bad[][2] = {
		{ "h2d --item-len 0", "--item-len 0: 0 is not" },
		{ "h2d --item-len 1,x", "--item-len 1,x: x is not" },
		{ "h2d --item-len 2G", "--item-len 2G: 2G is not" },
		{ "h2d --item-len 1,", "--item-len 1,: from 1 to 16" },
		{ "h2d --item-len 1K,1024", "--item-len 1K,1024: a value" },
		{ "h2d --bytes 1M --item-len 2M", "--item-len 2097152: 0" },
		{ "h2d --bytes 1", "--bytes 1 with --item-len 256: 0 items" },
		{ "h2d --bytes 1T", "from 1 to 2147483646" },
		{ "h2d --bytes 0", "--bytes" },
		{ "h2d --device gpu", "--device" },
		{ "h2d --device cuda:x", "--device" },
		{ "h2d --direction up", "--direction" },
		{ "h2d --way fast", "--way" },
		{ "h2d --blocks 0", "--blocks" },
		{ "h2d --blocks 65", "--blocks" },
		{ "h2d --repeats 0", "--repeats" },
		{ "h2d surplus", "Too many arguments" },
		{ "commit --tp 0", "--tp" },
		{ "commit --tokens 0", "--tokens" },
		{ "commit --tokens 99999999", "--tokens" },
		{ "commit --page-size 0", "--page-size 0: 0 is not" },
		{ "commit --page-size 65537", "is not from 1 to 65536" },
		{ "commit --page-size 64,64", "--page-size 64,64: a value" },
		{ "commit --model foo", "known are llama-3-70b" },
		{ "commit --layers 62", "--layers: model deepseek-v3: layers "
					"62: it has 61" },
		{ "commit --model llama-3-70b --tp 3", "--tp: model "
						       "llama-3-70b: tp 3" },
		{ "commit --tokens 10000000", "--tokens 10000000: model "
					      "deepseek-v3, page size 1: a "
					      "room has up to 4194304" },
		{ "commit --layers 9999", "--layers" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int rc = run(bad[i][0]);

		if (rc != 2 || !strstr(err, bad[i][1]))
			print_message("'%s': %d, %s\n", bad[i][0], rc, err);
		assert_int_equal(rc, 2);
		assert_string_equal(out, "");
		assert_non_null(strstr(err, bad[i][1]));
	}
}

static void check(const json_t *v, const char *bench, const char *device)
{
	assert_string_equal(text(v, "bench"), bench);
	assert_string_equal(text(v, "device"), device);
	assert_true(number(v, "gbps") > 0);
	assert_true(number(v, "baseline_gbps") > 0);
	assert_true(number(v, "ratio") > 0);
	assert_true(number(v, "ops_per_gib") > 0);
	assert_true(number(v, "pages") > 0);
}

static void check_ways(const char *device)
{
	static const char *const ways[] = { "direct", "slots", "mapped" };
	json_t *v[LINES_MAX];
	char cmd[160];

	for (unsigned int i = 0; i < 6; i++) {
		const char *dir = i % 2 ? "d2h" : "h2d";
		double items = 4.0 * 1024 * 1024 / 576, ops;

		(void)snprintf(cmd, sizeof(cmd),
			       "h2d --json --device %s --bytes 4M --repeats 1 "
			       "--item-len 576,64K --way %s --direction %s",
			       device, ways[i / 2], dir);
		assert_int_equal(run(cmd), 0);
		assert_int_equal(parse(v), 2);
		for (unsigned int k = 0; k < 2; k++) {
			check(v[k], "h2d", device);
			assert_string_equal(text(v[k], "way"), ways[i / 2]);
			assert_string_equal(text(v[k], "direction"), dir);
		}
		assert_int_equal(number(v[0], "item_len"), 576);
		assert_int_equal(number(v[1], "pages"), 64);
		ops = number(v[0], "ops_per_gib") / 256;
		/* two for a slot, one for a launch, or one an item */
		if (i / 2)
			assert_true(ops < 3);
		else
			assert_true(ops > items / 2);
		json_decref(v[0]);
		json_decref(v[1]);
	}
	(void)snprintf(cmd, sizeof(cmd),
		       "commit --json --device %s --layers 2 --tokens 3000 "
		       "--repeats 1 --page-size 1,64 --way slots",
		       device);
	assert_int_equal(run(cmd), 0);
	assert_int_equal(parse(v), 2);
	check(v[0], "commit", device);
	check(v[1], "commit", device);
	assert_int_equal(number(v[0], "pages"), 3000);
	assert_int_equal(number(v[1], "pages"), 47);
	assert_int_equal(number(v[1], "item_len"),
			 64 * number(v[0], "item_len"));
	json_decref(v[0]);
	json_decref(v[1]);
}

static void test_soft(void **state)
{
	(void)state;
	check_ways("soft");
	assert_int_equal(run("h2d --bytes 1M --item-len 4K --repeats 1"), 0);
	assert_non_null(strstr(out, "ops_per_gib"));
}

static void test_no_device(void **state)
{
	(void)state;
	assert_int_equal(run("h2d --json --device cuda:1023"), 77);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "--device cuda:1023: "));
}

static void test_double(void **state)
{
	(void)state;
	if (!double_dir) {
		print_message("no double of the driver in this build\n");
		skip();
	}
	assert_int_equal(setenv("LD_LIBRARY_PATH", double_dir, 1), 0);
	check_ways("cuda:0");
	assert_non_null(strstr(err, "Double of a GPU"));
	assert_int_equal(setenv("KVS_FAKE_CUDA", "devices=0", 1), 0);
	assert_int_equal(run("commit --json --device cuda"), 77);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "CUDA_ERROR_NO_DEVICE"));
	assert_int_equal(unsetenv("KVS_FAKE_CUDA"), 0);
	assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_soft),
		cmocka_unit_test(test_no_device),
		cmocka_unit_test(test_double),
	};

	if (argc != 2 && argc != 3) {
		fprintf(stderr, "usage: %s KVSTAGE-BENCH [DIR]\n", argv[0]);
		return 2;
	}
	program = argv[1];
	double_dir = argc == 3 ? argv[2] : NULL;
	return cmocka_run_group_tests_name("bench_copy", tests, NULL, NULL);
}
