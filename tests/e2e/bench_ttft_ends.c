/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about kvstage-bench ttft where something is not as usual. What an
 * option cannot be is said with the option, the setting it is for and what is
 * allowed; one that would do nothing is refused, and so is a mode or a share
 * that is there twice. Any number of bytes a token works.
 *
 * The first argument is the program.
 */
#include "tests/e2e/bench_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *line[LINES_MAX];
static size_t n_lines;

static void again(void)
{
	while (n_lines)
		json_decref(line[--n_lines]);
}

static void test_usage(void **state)
{
	static const char *const bad[][2] = {
		{ "--hold 1ns", "hold.timeout = \"1ns\": too small; allowed: "
				"1ms to 24h" },
		{ "--hold 25h", "hold.timeout = \"25h\": too large" },
		{ "--clock real --hold 5ms --scale 1000",
		  "--hold as short as --scale 1000 makes it: hold.timeout" },
		{ "--scale 5", "--scale: only with --clock real" },
		{ "--modes staged,ideal,staged", "--modes staged,ideal,staged: "
						 "of direct, staged, auto, "
						 "ideal, each once" },
		{ "--abort 0.1,0.3,0.10", "--abort 0.1,0.3,0.10: 0.10 is there "
					  "twice" },
		/* all names, and the option once */
		{ "--model none", "ttft: --model \"none\": unknown; known are "
				  "llama-3-70b" },
		{ "--model none", " tiny-hybrid\n" },
	};
	char args[128];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(args, sizeof(args), "ttft %s", bad[i][0]);
		assert_int_equal(run(args), 2);
		if (!strstr(err, bad[i][1]))
			fail_msg("%s: not \"%s\" in: %s", args, bad[i][1], err);
		assert_string_equal(out, "");
	}
}

/* The pools are whole pages of the machine whatever a token has. */
static void test_token_bytes(void **state)
{
	static const char *const bytes[] = { "1", "100", "4097" };
	char args[128];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
		again();
		snprintf(args, sizeof(args),
			 "ttft --json --requests 20 --token-bytes %s",
			 bytes[i]);
		assert_int_equal(run(args), 0);
		n_lines = parse(line);
		assert_int_equal(n_lines, 6);
		for (size_t k = 0; k < n_lines; k++)
			assert_true(number(line[k], "failed") == 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_token_bytes),
	};
	int r;

	assert_true(argc > 1);
	program = argv[1];
	r = cmocka_run_group_tests(tests, NULL, NULL);
	again();
	return r;
}
