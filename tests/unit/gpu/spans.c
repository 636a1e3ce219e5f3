/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a set of spans agrees with a map that says for every address which
 * range holds it, over random adds, removals and look-ups; ranges at both
 * ends of the address space work; the byte count follows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "gpu/spans.h"
#include "lib/rng.h"

#define SPACE 256u /* addresses 1..SPACE - 1 are used */

static const void *at(uintptr_t a)
{
	return (const void *)a;
}

/* owner[a]: start of the range that holds a, 0 for none */
static void check_find(const struct kvs_spans *s, const uint16_t *owner,
		       uint32_t addr, uint32_t len)
{
	const struct kvs_span *got = (const void *)&got;
	uint32_t first = owner[addr];
	uint32_t a;
	bool same = true;
	bool any = false;

	for (a = addr; a < addr + len; a++) {
		any = any || owner[a];
		same = same && owner[a] == first;
	}
	if (!any) {
		assert_int_equal(kvs_spans_find(s, at(addr), len, &got), 0);
		assert_null(got);
	} else if (same) {
		assert_int_equal(kvs_spans_find(s, at(addr), len, &got), 0);
		assert_non_null(got);
		assert_int_equal(got->addr, first);
	} else {
		assert_int_equal(kvs_spans_find(s, at(addr), len, &got),
				 -ERANGE);
	}
}

static void test_agrees_with_a_map(void **state)
{
	uint16_t owner[SPACE] = { 0 };
	struct kvs_spans s = { 0 };
	struct kvs_rng rng;
	uint64_t held = 0;
	uint32_t refused = 0;
	uint32_t added = 0;
	uint32_t round;

	(void)state;
	kvs_rng_init(&rng, 7);
	for (round = 0; round < 20000; round++) {
		uint32_t addr = 1 + (uint32_t)kvs_rng_below(&rng, SPACE - 1);
		uint32_t len = 1 + (uint32_t)kvs_rng_below(&rng, SPACE - addr);
		uint32_t a;
		int want = 0;
		int r;

		if (len > 24)
			len = 1 + len % 24;
		check_find(&s, owner, addr, len);
		if (kvs_rng_below(&rng, 2)) {
			for (a = addr; a < addr + len; a++)
				want = owner[a] ? -EEXIST : want;
			r = kvs_spans_add(&s, at(addr), len, false);
			assert_int_equal(r, want);
			for (a = addr; !r && a < addr + len; a++)
				owner[a] = (uint16_t)addr;
			held += r ? 0 : len;
			refused += r ? 1 : 0;
			added += r ? 0 : 1;
		} else {
			for (a = addr; a < SPACE && owner[a] == addr; a++)
				;
			if (owner[addr] == addr) {
				assert_int_equal(kvs_spans_del(&s, at(addr),
							       a - addr + 1),
						 -ENOENT);
				r = kvs_spans_del(&s, at(addr),
						  round % 2 ? a - addr : 0);
				assert_int_equal(r, 0);
				held -= a - addr;
				memset(&owner[addr], 0,
				       (a - addr) * sizeof(owner[0]));
			} else {
				assert_int_equal(kvs_spans_del(&s, at(addr), 0),
						 -ENOENT);
			}
		}
		assert_int_equal(s.bytes, held);
	}
	assert_true(added > 1000 && refused > 1000);
	kvs_spans_fini(&s);
	assert_int_equal(s.n, 0);
}

static void test_ends_of_the_address_space(void **state)
{
	struct kvs_spans s = { 0 };
	const struct kvs_span *got;
	uintptr_t top = UINTPTR_MAX - 4095;

	(void)state;
	assert_int_equal(kvs_spans_find(&s, at(top), 4096, &got), 0);
	assert_null(got);
	assert_int_equal(kvs_spans_del(&s, at(top), 0), -ENOENT);
	assert_int_equal(kvs_spans_add(&s, at(top), 4096, true), 0);
	assert_int_equal(kvs_spans_add(&s, at(1), 4096, false), 0);
	assert_int_equal(kvs_spans_find(&s, at(top), 4096, &got), 0);
	assert_true(got->read_only);
	assert_int_equal(kvs_spans_find(&s, at(UINTPTR_MAX), 1, &got), 0);
	assert_int_equal(got->addr, top);
	assert_int_equal(kvs_spans_find(&s, at(top - 1), 2, &got), -ERANGE);
	assert_int_equal(kvs_spans_find(&s, at(1), UINT64_MAX - 1, &got),
			 -ERANGE);
	assert_int_equal(kvs_spans_add(&s, at(top + 4095), 1, false), -EEXIST);
	assert_int_equal(kvs_spans_find(&s, at(4096), 1, &got), 0);
	assert_false(got->read_only);
	kvs_spans_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_agrees_with_a_map),
		cmocka_unit_test(test_ends_of_the_address_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
