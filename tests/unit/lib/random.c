/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/random: bytes of the kernel by default, of a given source while one is
 * set, its errors handed on; an id is never 0.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/random.h"

struct feed {
	unsigned int calls;
	unsigned int zeros; /* calls that give only zero bytes */
	int err;
};

static int feed_fill(void *arg, void *buf, size_t len)
{
	struct feed *f = arg;

	if (f->err)
		return f->err;
	memset(buf, f->calls++ < f->zeros ? 0 : 0x5a, len);
	return 0;
}

static void test_kernel(void **state)
{
	unsigned char a[600], b[600];

	(void)state;
	assert_int_equal(kvs_random_fill(a, sizeof(a)), 0);
	assert_int_equal(kvs_random_fill(b, sizeof(b)), 0);
	/* alike by chance once in 2^4800 */
	assert_memory_not_equal(a, b, sizeof(a));
}

static void test_other_source(void **state)
{
	struct feed f = { .zeros = 2 };
	unsigned char a[16], b[16];
	uint64_t id = 0;

	(void)state;
	kvs_random_use(feed_fill, &f);
	assert_int_equal(kvs_random_id(&id), 0);
	assert_int_equal(id, 0x5a5a5a5a5a5a5a5aULL);
	assert_int_equal(f.calls, 3);
	assert_int_equal(kvs_random_fill(a, sizeof(a)), 0);
	memset(b, 0x5a, sizeof(b));
	assert_memory_equal(a, b, sizeof(a));
	f.err = -EIO;
	assert_int_equal(kvs_random_id(&id), -EIO);
	kvs_random_use(NULL, NULL);
	assert_int_equal(kvs_random_fill(a, sizeof(a)), 0);
	assert_memory_not_equal(a, b, sizeof(a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kernel),
		cmocka_unit_test(test_other_source),
	};

	return cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
