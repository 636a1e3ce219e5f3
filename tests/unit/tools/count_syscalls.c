/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: system calls of a function are counted exactly, none is carried
 * out, and the caller is not filtered afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/count_syscalls.h"

static void calls(void *arg)
{
	for (int i = 0; i < *(const int *)arg; i++)
		(void)syscall(__NR_getpid);
}

static void closes(void *arg)
{
	(void)syscall(__NR_close, *(const int *)arg);
}

static void test_counts(void **state)
{
	uint64_t n = 99;
	int want;

	(void)state;
	for (want = 0; want < 4; want++) {
		assert_int_equal(kvs_count_syscalls(calls, &want, &n), 0);
		assert_int_equal(n, want);
	}
}

static void test_carries_none_out(void **state)
{
	uint64_t n = 99;
	int fd[2];
	char c = 'x';

	(void)state;
	assert_int_equal(pipe(fd), 0);
	assert_int_equal(kvs_count_syscalls(closes, &fd[1], &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(write(fd[1], &c, 1), 1);
	assert_int_equal(read(fd[0], &c, 1), 1);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_carries_none_out),
	};
	uint64_t n;
	int none = 0;

	if (kvs_count_syscalls(calls, &none, &n) == -EOPNOTSUPP) {
		printf("no seccomp filter can be set here\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
