/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: sizes, durations and numbers are read in the forms the header
 * names and in no other, 64 bits are used to the last value, nothing is
 * written on failure, and printed values fit their buffer and round right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/rng.h"
#include "lib/units.h"

typedef int parse_fn(const char *s, uint64_t *ret);

struct good {
	const char *s;
	uint64_t v;
};

#define UNTOUCHED 0xdeadbeefcafef00dULL

static void expect_good(parse_fn *parse, const struct good *g, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		uint64_t v = UNTOUCHED;
		int ret = parse(g[i].s, &v);

		if (ret || v != g[i].v)
			fail_msg("\"%s\": ret %d value %llu", g[i].s, ret,
				 (unsigned long long)v);
	}
}

static void expect_bad(parse_fn *parse, int err, const char *const *s)
{
	for (; *s; s++) {
		uint64_t v = UNTOUCHED;
		int ret = parse(*s, &v);

		if (ret != err || v != UNTOUCHED)
			fail_msg("\"%s\": ret %d, want %d; value %llx", *s, ret,
				 err, (unsigned long long)v);
	}
}

/* Wrong for all three parsers. */
static const char *const never[] = { "",    " ",   "-1",    "+1",    " 1",
				     "1 ",  "-0",  "K",	    "x",     "0x",
				     "1.5", "1e3", "1,000", "0xg",   "1\n",
				     "\t1", "1 K", "--1",   "0x0x1", NULL };

static void units_null(void **state)
{
	uint64_t v = UNTOUCHED;

	(void)state;
	assert_int_equal(kvs_parse_size(NULL, &v), -EINVAL);
	assert_int_equal(kvs_parse_duration(NULL, &v), -EINVAL);
	assert_int_equal(kvs_parse_u64(NULL, &v), -EINVAL);
	assert_true(v == UNTOUCHED);
}

static void units_size(void **state)
{
	static const struct good good[] = {
		{ "0", 0 },
		{ "1", 1 },
		{ "007", 7 },
		{ "4096", 4096 },
		{ "1K", 1024 },
		{ "1Ki", 1024 },
		{ "1KiB", 1024 },
		{ "1kB", 1000 },
		{ "1KB", 1000 },
		{ "3M", 3145728 },
		{ "3Mi", 3145728 },
		{ "3MiB", 3145728 },
		{ "3MB", 3000000 },
		{ "8G", 8589934592 },
		{ "8Gi", 8589934592 },
		{ "8GiB", 8589934592 },
		{ "8GB", 8000000000 },
		{ "2T", 2199023255552 },
		{ "2Ti", 2199023255552 },
		{ "2TiB", 2199023255552 },
		{ "2TB", 2000000000000 },
		{ "18446744073709551615", UINT64_MAX },
		{ "16777215T", 16777215ULL << 40 },
		{ "18446744073709551KB", 18446744073709551000ULL },
	};
	static const char *const bad[] = { "1k",
					   "1m",
					   "1g",
					   "1B",
					   "1Kib",
					   "1KK",
					   "1KiBx",
					   "1P",
					   "0x10",
					   "1s",
					   "99999999999999999999x",
					   NULL };
	static const char *const range[] = { "18446744073709551616",
					     "99999999999999999999999999999999",
					     "16777216T",
					     "18446744073709552KB",
					     "99999999999999999999G",
					     NULL };

	(void)state;
	expect_good(kvs_parse_size, good, KVS_ARRAY_SIZE(good));
	expect_bad(kvs_parse_size, -EINVAL, never);
	expect_bad(kvs_parse_size, -EINVAL, bad);
	expect_bad(kvs_parse_size, -ERANGE, range);
}

static void units_duration(void **state)
{
	static const struct good good[] = {
		{ "0", 0 },
		{ "00", 0 },
		{ "0s", 0 },
		{ "1ns", 1 },
		{ "830us", 830000 },
		{ "10ms", 10000000 },
		{ "30s", 30000000000 },
		{ "5m", 300000000000 },
		{ "2h", 7200000000000 },
		{ "18446744073709551615ns", UINT64_MAX },
		{ "5124095h", 5124095ULL * 3600 * 1000000000 },
	};
	static const char *const bad[] = { "1",
					   "30",
					   "1S",
					   "1sec",
					   "1M",
					   "1d",
					   "1h30m",
					   "s",
					   "1 s",
					   "0x1s",
					   "1K",
					   "1nss",
					   "00000000000000000001",
					   NULL };
	static const char *const range[] = { "18446744073709551616ns",
					     "18446744073709552us", "5124096h",
					     "99999999999999999999999s", NULL };

	(void)state;
	expect_good(kvs_parse_duration, good, KVS_ARRAY_SIZE(good));
	expect_bad(kvs_parse_duration, -EINVAL, never);
	expect_bad(kvs_parse_duration, -EINVAL, bad);
	expect_bad(kvs_parse_duration, -ERANGE, range);
}

static void units_u64(void **state)
{
	static const struct good good[] = {
		{ "0", 0 },
		{ "42", 42 },
		{ "0x0", 0 },
		{ "0xff", 255 },
		{ "0xDeadBeef", 0xdeadbeef },
		{ "010", 10 },
		{ "18446744073709551615", UINT64_MAX },
		{ "0xffffffffffffffff", UINT64_MAX },
		{ "0x00000000000000000001", 1 },
	};
	static const char *const bad[] = {
		"1K", "0X1", "ff", "1s", "0x1g", NULL
	};
	static const char *const range[] = { "18446744073709551616",
					     "0x10000000000000000",
					     "99999999999999999999999", NULL };

	(void)state;
	expect_good(kvs_parse_u64, good, KVS_ARRAY_SIZE(good));
	expect_bad(kvs_parse_u64, -EINVAL, never);
	expect_bad(kvs_parse_u64, -EINVAL, bad);
	expect_bad(kvs_parse_u64, -ERANGE, range);
}

static void units_format_size(void **state)
{
	static const struct good want[] = {
		{ "0 B", 0 },
		{ "1023 B", 1023 },
		{ "1.0 KiB", 1024 },
		{ "1.5 KiB", 1536 },
		{ "4.0 GiB", 4ULL << 30 },
		{ "1023.9 KiB", 1048473 },
		{ "1.0 MiB", (1 << 20) - 1 },
		{ "64.0 TiB", 64ULL << 40 },
		{ "16.0 EiB", UINT64_MAX },
	};
	char buf[KVS_UNITS_BUF];
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(want); i++) {
		assert_ptr_equal(kvs_format_size(want[i].v, buf), buf);
		assert_string_equal(buf, want[i].s);
	}
}

static void units_format_duration(void **state)
{
	static const struct good want[] = {
		{ "0 ns", 0 },
		{ "999 ns", 999 },
		{ "1.00 us", 1000 },
		{ "830 us", 830000 },
		{ "9.99 us", 9990 },
		{ "10.0 us", 9996 },
		{ "12.3 ms", 12345678 },
		{ "1.00 ms", 999999 },
		{ "1.00 s", 999999999 },
		{ "1.25 s", 1250000000 },
		{ "3600 s", 3600000000000 },
		{ "18446744074 s", UINT64_MAX },
	};
	char buf[KVS_UNITS_BUF];
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(want); i++) {
		assert_ptr_equal(kvs_format_duration(want[i].v, buf), buf);
		assert_string_equal(buf, want[i].s);
	}
}

/* Bytes of every kind: an answer, no crash, and success only with a digit. */
static void units_random_bytes(void **state)
{
	static const char alphabet[] = "0123456789KMGTkiBxabsmunh .-+\xff";
	static parse_fn *const parse[] = { kvs_parse_size, kvs_parse_duration,
					   kvs_parse_u64 };
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	struct kvs_rng r;
	int round;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	for (round = 0; round < 50000; round++) {
		char s[28];
		size_t n = kvs_rng_below(&r, sizeof(s));
		size_t i;

		for (i = 0; i < n; i++)
			s[i] = alphabet[kvs_rng_below(&r, sizeof(alphabet) - 1)];
		s[n] = '\0';
		for (i = 0; i < KVS_ARRAY_SIZE(parse); i++) {
			uint64_t v = UNTOUCHED;
			int ret = parse[i](s, &v);

			if (!ret)
				assert_true(s[0] >= '0' && s[0] <= '9');
			else
				assert_true(
					(ret == -EINVAL || ret == -ERANGE) &&
					v == UNTOUCHED);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(units_null),
		cmocka_unit_test(units_size),
		cmocka_unit_test(units_duration),
		cmocka_unit_test(units_u64),
		cmocka_unit_test(units_format_size),
		cmocka_unit_test(units_format_duration),
		cmocka_unit_test(units_random_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
