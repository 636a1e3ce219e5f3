/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the standard's check value; the same as a bit-wise loop at every
 * length and alignment; a sum goes on where it stopped; linear without the
 * inversions.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#include "lib/crc32c.h"
#include "lib/rng.h"

static uint32_t bitwise(uint32_t crc, const unsigned char *p, size_t len)
{
	while (len--) {
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
	}
	return crc;
}

static void known_values(void **state)
{
	unsigned char zero[32] = { 0 };

	(void)state;
	assert_int_equal(kvs_crc32c("123456789", 9), 0xe3069283);
	assert_int_equal(kvs_crc32c(zero, sizeof(zero)), 0x8a9136aa);
	assert_int_equal(kvs_crc32c(NULL, 0), 0);
}

static void lengths_and_alignments(void **state)
{
	unsigned char v[700];
	struct kvs_rng r;
	size_t i, at;

	(void)state;
	kvs_rng_init(&r, 7);
	for (i = 0; i < sizeof(v); i++)
		v[i] = (unsigned char)kvs_rng_next(&r);
	for (at = 0; at < 17; at++) {
		for (i = 0; i < sizeof(v) - at; i++) {
			uint32_t want = bitwise(0x1234567, v + at, i);

			assert_int_equal(kvs_crc32c_raw(0x1234567, v + at, i),
					 want);
			assert_int_equal(
				kvs_crc32c_raw(kvs_crc32c_raw(0x1234567, v + at,
							      i / 3),
					       v + at + i / 3, i - i / 3),
				want);
		}
	}
}

static void linear(void **state)
{
	unsigned char a[99], b[99], both[99];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(a); i++) {
		a[i] = (unsigned char)(i * 7);
		b[i] = (unsigned char)(i * i);
		both[i] = a[i] ^ b[i];
	}
	assert_int_equal(kvs_crc32c_raw(0, a, 99) ^ kvs_crc32c_raw(0, b, 99),
			 kvs_crc32c_raw(0, both, 99));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_values),
		cmocka_unit_test(lengths_and_alignments),
		cmocka_unit_test(linear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
