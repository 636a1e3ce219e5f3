/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: every errno value the C library can name has the same name here,
 * either sign is taken, and no int at all leaves the table.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/err.h"

static void err_matches_libc(void **state)
{
	unsigned int known = 0;
	int e;

	(void)state;
	for (e = 1; e < 4096; e++) {
		const char *libc = strerrorname_np(e);

		if (libc) {
			assert_string_equal(kvs_err_name(e), libc);
			assert_string_equal(kvs_err_name(-e), libc);
			known++;
		} else {
			assert_string_equal(kvs_err_name(e), "E?");
			assert_string_equal(kvs_err_name(-e), "E?");
		}
	}
	assert_true(known >= 131);
}

static void err_spot_values(void **state)
{
	(void)state;
	assert_string_equal(kvs_err_name(0), "OK");
	assert_string_equal(kvs_err_name(-ENOENT), "ENOENT");
	assert_string_equal(kvs_err_name(ECANCELED), "ECANCELED");
	assert_string_equal(kvs_err_name(EWOULDBLOCK), "EAGAIN");
	assert_string_equal(kvs_err_name(-EHWPOISON), "EHWPOISON");
}

static void err_any_int(void **state)
{
	static const int wild[] = { INT_MIN, INT_MIN + 1, INT_MAX, -4096,
				    65536,   41,	  -58 };
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(wild); i++)
		assert_string_equal(kvs_err_name(wild[i]), "E?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(err_matches_libc),
		cmocka_unit_test(err_spot_values),
		cmocka_unit_test(err_any_int),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
