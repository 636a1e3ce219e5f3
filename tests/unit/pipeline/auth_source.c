/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: an address is one source whatever its port, a /64 network of IPv6
 * is one, and no two others are the same; a source is told of once a window,
 * blocked after so many failures for so long, and then heard again, unless it is
 * spared; a flood
 * from a million addresses takes no more memory than the table has, tells no
 * more than a few lines, and lets a blocked source go only when all others
 * failed since.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "pipeline/auth_source.h"

static const struct kvs_auth_limits limits = {
	.failures = 3,
	.window = 60 * KVS_NSEC_PER_SEC,
	.backoff = 10 * KVS_NSEC_PER_SEC,
};

static struct kvs_auth_sources *table(uint32_t max)
{
	struct kvs_auth_sources *t;

	assert_int_equal(kvs_auth_sources_create(max, 1, &t), 0);
	return t;
}

static void addresses(void **state)
{
	static const struct {
		const char *a, *b;
		bool same;
	} t[] = {
		{ "192.0.2.7:1", "192.0.2.7:65535", true },
		{ "192.0.2.7:1", "192.0.2.8:1", false },
		{ "[2001:db8::1]:1", "[2001:db8::ffff:1]:9", true },
		{ "[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false },
		{ "[fe80::1%eth0]:1", "[fe80::2%eth1]:1", true },
		{ "[::1]:1", "127.0.0.1:1", false },
		{ "0.0.0.0:1", "[::]:1", false },
		{ "unix", "?", false },
		{ "unix", "unix", true },
		{ "", "a", false },
		{ "a:1", "b:1", false },
		{ "[", "]", false },
		{ "loop-1", "loop-2", false },
	};

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(t); i++) {
		uint64_t a = kvs_auth_source(t[i].a);
		uint64_t b = kvs_auth_source(t[i].b);

		assert_true(a && b);
		if ((a == b) != t[i].same)
			fail_msg("%s and %s", t[i].a, t[i].b);
	}
}

static void blocked_and_heard_again(void **state)
{
	struct kvs_auth_sources *t = table(16);
	uint64_t now = 5, s = 7;

	(void)state;
	assert_false(kvs_auth_source_blocked(t, s, now));
	assert_int_equal(kvs_auth_source_failed(t, s, now, &limits, false),
			 KVS_AUTH_TELL_FAILURE);
	assert_int_equal(kvs_auth_source_failed(t, s, now, &limits, false),
			 KVS_AUTH_TELL_NOTHING);
	assert_false(kvs_auth_source_blocked(t, s, now));
	assert_int_equal(kvs_auth_source_failed(t, s, now, &limits, false),
			 KVS_AUTH_TELL_BLOCKED);
	assert_true(kvs_auth_source_blocked(t, s, now));
	assert_false(kvs_auth_source_blocked(t, s + 1, now));
	/* until the moment, and not longer */
	now += limits.backoff - 1;
	assert_true(kvs_auth_source_blocked(t, s, now));
	now++;
	assert_false(kvs_auth_source_blocked(t, s, now));
	/* once more within the window: blocked again, and not told of */
	assert_int_equal(kvs_auth_source_failed(t, s, now, &limits, false),
			 KVS_AUTH_TELL_NOTHING);
	assert_true(kvs_auth_source_blocked(t, s, now));
	/* a new window begins anew */
	now += limits.window;
	assert_false(kvs_auth_source_blocked(t, s, now));
	assert_int_equal(kvs_auth_source_failed(t, s, now, &limits, false),
			 KVS_AUTH_TELL_FAILURE);
	assert_false(kvs_auth_source_blocked(t, s, now));
	assert_int_equal(kvs_auth_sources_used(t), 1);
	kvs_auth_sources_destroy(t);
}

/* Beside a rank that is well it is told of, and not blocked; when that has
 * gone, it is heard until it fails again, and that is told. */
static void spared(void **state)
{
	struct kvs_auth_sources *t = table(16);
	enum kvs_auth_tell tell;
	uint64_t now = 5;

	(void)state;
	for (uint32_t i = 1; i <= 10; i++) {
		tell = kvs_auth_source_failed(t, 7, now, &limits, true);
		assert_int_equal(tell, i == 1 ? KVS_AUTH_TELL_FAILURE
				       : i == limits.failures
					       ? KVS_AUTH_TELL_SPARED
					       : KVS_AUTH_TELL_NOTHING);
		assert_false(kvs_auth_source_blocked(t, 7, now));
	}
	assert_int_equal(kvs_auth_source_failed(t, 7, now, &limits, false),
			 KVS_AUTH_TELL_BLOCKED);
	assert_true(kvs_auth_source_blocked(t, 7, now));
	/* told once a window, like any */
	now += limits.backoff;
	assert_false(kvs_auth_source_blocked(t, 7, now));
	assert_int_equal(kvs_auth_source_failed(t, 7, now, &limits, false),
			 KVS_AUTH_TELL_NOTHING);
	assert_true(kvs_auth_source_blocked(t, 7, now));
	kvs_auth_sources_destroy(t);
}

/* Few in each window: a rank that is restarted now and then. */
static void slow_failures_never_block(void **state)
{
	struct kvs_auth_sources *t = table(16);
	uint64_t now = 0;

	(void)state;
	for (int i = 0; i < 1000; i++, now += limits.window / 2)
		(void)kvs_auth_source_failed(t, 9, now, &limits, false);
	assert_false(kvs_auth_source_blocked(t, 9, now));
	kvs_auth_sources_destroy(t);
}

static void no_limit(void **state)
{
	const struct kvs_auth_limits l = { .window = limits.window,
					   .backoff = limits.backoff };
	struct kvs_auth_sources *t = table(16);
	unsigned int told = 0;

	(void)state;
	for (int i = 0; i < 1000; i++)
		told += kvs_auth_source_failed(t, 9, 1, &l, false) !=
			KVS_AUTH_TELL_NOTHING;
	assert_int_equal(told, 1);
	assert_false(kvs_auth_source_blocked(t, 9, 1));
	kvs_auth_sources_destroy(t);
}

static void flood(void **state)
{
	const uint32_t max = 1024, n = 1000000;
	struct kvs_auth_sources *t = table(max);
	unsigned int told = 0, last = 0;
	uint64_t now = 100, took;

	(void)state;
	took = kvs_clock_now(&kvs_clock_real);
	for (uint32_t i = 0; i < n; i++) {
		enum kvs_auth_tell tell =
			kvs_auth_source_failed(t, 1 + i, now, &limits, false);

		told += tell != KVS_AUTH_TELL_NOTHING;
		last += tell == KVS_AUTH_TELL_LAST;
		assert_true(kvs_auth_sources_used(t) <= max);
	}
	took = kvs_clock_now(&kvs_clock_real) - took;
	print_message("# %u sources, %.0f ns each, %u lines\n", n,
		      (double)took / n, told);
	assert_int_equal(kvs_auth_sources_used(t), max);
	assert_true(told < 50);
	assert_int_equal(last, 1);
	/* the next window has lines again */
	now += limits.window;
	assert_int_equal(kvs_auth_source_failed(t, 5, now, &limits, false),
			 KVS_AUTH_TELL_FAILURE);
	kvs_auth_sources_destroy(t);
}

/* Not a free list, but the one that has kept quiet for longest, goes. */
static void the_quietest_is_forgotten(void **state)
{
	struct kvs_auth_sources *t = table(16);

	(void)state;
	for (int i = 0; i < 3; i++)
		(void)kvs_auth_source_failed(t, 100, 1, &limits, false);
	assert_true(kvs_auth_source_blocked(t, 100, 2));
	for (uint64_t s = 1; s <= 15; s++)
		(void)kvs_auth_source_failed(t, s, 2, &limits, false);
	/* fails again, so that it is the latest */
	(void)kvs_auth_source_failed(t, 100, 3, &limits, false);
	for (uint64_t s = 21; s <= 35; s++)
		(void)kvs_auth_source_failed(t, s, 4, &limits, false);
	assert_true(kvs_auth_source_blocked(t, 100, 5));
	(void)kvs_auth_source_failed(t, 36, 6, &limits, false);
	assert_false(kvs_auth_source_blocked(t, 100, 7));
	assert_int_equal(kvs_auth_sources_used(t), 16);
	kvs_auth_sources_destroy(t);
	kvs_auth_sources_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses),
		cmocka_unit_test(blocked_and_heard_again),
		cmocka_unit_test(spared),
		cmocka_unit_test(slow_failures_never_block),
		cmocka_unit_test(no_limit),
		cmocka_unit_test(flood),
		cmocka_unit_test(the_quietest_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
