/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what is within its limits comes back, and what is not, or is no such
 * thing, ends the program with status 2 and a line that names the option, and
 * the setting where it is for one; a list is taken apart at its commas, and one
 * with an empty element is none; what is there twice is found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/arg.h"

static double number;
static uint64_t whole, size, ns;

static error_t parse(int key, char *arg, struct argp_state *st)
{
	switch (key) {
	case 'n':
		number = kvs_arg_number(st, "number", arg, -1, 2.5);
		return 0;
	case 'w':
		whole = kvs_arg_whole(st, "whole", arg, 3, 9);
		return 0;
	case 's':
		size = kvs_arg_size(st, "size", arg, 4096);
		return 0;
	case 't':
		ns = kvs_arg_time(st, "time", arg, 1);
		return 0;
	case 'h':
		ns = kvs_arg_setting_time(st, "hold", arg, "hold.timeout");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int run(const char *option, const char *arg)
{
	static const struct argp_option options[] = {
		{ "number", 'n', "N", 0, "", 0 },
		{ "whole", 'w', "N", 0, "", 0 },
		{ "size", 's', "N", 0, "", 0 },
		{ "time", 't', "N", 0, "", 0 },
		{ "hold", 'h', "N", 0, "", 0 },
		{ 0 },
	};
	const struct argp argp = { .options = options, .parser = parse };
	char text[128], name[] = "arg";
	char *argv[] = { name, text, NULL };

	snprintf(text, sizeof(text), "--%s=%s", option, arg);
	argp_err_exit_status = 2;
	return argp_parse(&argp, 2, argv, 0, NULL, NULL);
}

static void values(void **state)
{
	(void)state;
	assert_int_equal(run("number", "2.5"), 0);
	assert_true(number == 2.5);
	assert_int_equal(run("number", "-1e0"), 0);
	assert_true(number == -1);
	assert_int_equal(run("whole", "3"), 0);
	assert_int_equal(whole, 3);
	assert_int_equal(run("size", "4KiB"), 0);
	assert_int_equal(size, 4096);
	assert_int_equal(run("size", "1024T"), 0);
	assert_int_equal(size, KVS_ARG_SIZE_MAX);
	assert_int_equal(run("time", "24h"), 0);
	assert_int_equal(ns, KVS_ARG_TIME_MAX);
	assert_int_equal(run("hold", "1500ms"), 0);
	assert_int_equal(ns, 1500000000);
}

static void not_values(void **state)
{
	static const char *const bad[][2] = {
		{ "number", "" },
		{ "number", "2.6" },
		{ "number", "nan" },
		{ "number", "1e999" },
		{ "number", "1x" },
		{ "number", "inf" },
		{ "whole", "2" },
		{ "whole", "10" },
		{ "whole", "-4" },
		{ "whole", "4.5" },
		{ "whole", "" },
		{ "size", "4095" },
		{ "size", "2000T" },
		{ "size", "x" },
		{ "time", "0" },
		{ "time", "25h" },
		{ "time", "5" },
		{ "time", "-1s" },
		{ "hold", "1ns: hold.timeout" },
		{ "hold", "25h: hold.timeout" },
		{ "hold", "x: hold.timeout" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char says[256] = "", want[64];
		int fd[2], status;
		pid_t pid;

		assert_int_equal(pipe(fd), 0);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			dup2(fd[1], STDERR_FILENO);
			snprintf(want, sizeof(want), "%s", bad[i][1]);
			want[strcspn(want, ":")] = '\0';
			(void)run(bad[i][0], want);
			_exit(0);
		}
		close(fd[1]);
		assert_true(read(fd[0], says, sizeof(says) - 1) > 0);
		close(fd[0]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		snprintf(want, sizeof(want), "--%s %s", bad[i][0], bad[i][1]);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 2 ||
		    !strstr(says, want))
			fail_msg("%s: %d: %s", want, status, says);
	}
}

static void lists(void **state)
{
	char buf[16], *v[3];

	(void)state;
	assert_int_equal(kvs_arg_list("a,bc,d", buf, sizeof(buf), v, 3), 3);
	assert_string_equal(v[0], "a");
	assert_string_equal(v[1], "bc");
	assert_string_equal(v[2], "d");
	assert_int_equal(kvs_arg_list("a", buf, sizeof(buf), v, 3), 1);
	assert_int_equal(kvs_arg_list("", buf, sizeof(buf), v, 3), 0);
	assert_int_equal(kvs_arg_list(",", buf, sizeof(buf), v, 3), 0);
	assert_int_equal(kvs_arg_list("a,,b", buf, sizeof(buf), v, 3), 0);
	assert_int_equal(kvs_arg_list("a,", buf, sizeof(buf), v, 3), 0);
	assert_int_equal(kvs_arg_list(",a", buf, sizeof(buf), v, 3), 0);
	assert_int_equal(kvs_arg_list("a,b,c,d", buf, sizeof(buf), v, 3), 0);
	assert_int_equal(
		kvs_arg_list("0123456789abcdef", buf, sizeof(buf), v, 3), 0);
	assert_true(kvs_arg_repeats((const uint64_t[]){ 4, 1, 4 }, 3));
	assert_false(kvs_arg_repeats((const uint64_t[]){ 4, 1, 4 }, 2));
	assert_false(kvs_arg_repeats(NULL, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values),
		cmocka_unit_test(not_values),
		cmocka_unit_test(lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
