/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: the map agrees with a plain array model under random insertions and
 * deletions over a small key range (many collisions, wrap-around of probes),
 * refuses key 0 and double keys, and walks every value once.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "lib/rng.h"
#include "lib/u64map.h"

#define KEYS 500

static void test_model(void **state)
{
	uint64_t seed = (uint64_t)time(NULL);
	struct kvs_u64map m;
	struct kvs_rng rng;
	static char val[KEYS + 1];
	char in[KEYS + 1] = { 0 };
	size_t n = 0;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	kvs_u64map_init(&m, seed);
	for (int i = 0; i < 200000; i++) {
		uint64_t k = 1 + kvs_rng_below(&rng, KEYS);

		if (kvs_rng_below(&rng, 2)) {
			assert_int_equal(kvs_u64map_add(&m, k, &val[k]),
					 in[k] ? -EEXIST : 0);
			n += !in[k];
			in[k] = 1;
		} else {
			assert_ptr_equal(kvs_u64map_del(&m, k),
					 in[k] ? &val[k] : NULL);
			n -= in[k];
			in[k] = 0;
		}
		k = 1 + kvs_rng_below(&rng, KEYS);
		assert_ptr_equal(kvs_u64map_get(&m, k), in[k] ? &val[k] : NULL);
		assert_int_equal(m.n, n);
	}
	kvs_u64map_fini(&m);
}

static void test_walk(void **state)
{
	struct kvs_u64map m;
	static char val[KEYS + 1];
	size_t pos = 0, seen = 0;
	char *p;

	(void)state;
	kvs_u64map_init(&m, 0);
	assert_null(kvs_u64map_next(&m, &pos));
	assert_int_equal(kvs_u64map_add(&m, 0, val), -EINVAL);
	for (uint64_t k = 1; k <= KEYS; k++)
		assert_int_equal(kvs_u64map_add(&m, k << 32, &val[k]), 0);
	while ((p = kvs_u64map_next(&m, &pos))) {
		assert_int_equal(*p, 0);
		*p = 1;
		seen++;
	}
	assert_int_equal(seen, KEYS);
	kvs_u64map_fini(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_walk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
