/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: listen.max_connections holds where the limit of descriptors allows
 * it on every node; below that peers get less, engines and the daemon's own
 * files keep their share, and a quarter at most is taken from peers that have
 * little; it never becomes 0. With a key strangers come on top of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "lib/assert.h"
#include "pipeline/descriptors.h"

static const char *key_file = "";

static uint32_t in_force(unsigned int nodes, uint64_t limit, uint64_t *ret_want)
{
	struct kvs_settings s;

	kvs_settings_init(&s);
	snprintf(s.auth_key_file, sizeof(s.auth_key_file), "%s", key_file);
	return kvs_descriptors_connections(&s, nodes, limit, ret_want);
}

static void enough(void **state)
{
	uint64_t want;

	(void)state;
	for (unsigned int nodes = 1; nodes <= 8; nodes++) {
		assert_int_equal(in_force(nodes, UINT64_MAX, &want), 1024);
		assert_int_equal(want, 256 + 8 * 16 + (nodes + 1) * 1024);
		assert_int_equal(in_force(nodes, want, &want), 1024);
		assert_int_equal(in_force(nodes, want - 1, &want), 1023);
	}
}

static void too_few(void **state)
{
	static const struct {
		unsigned int nodes;
		uint64_t limit;
		uint32_t connections;
	} c[] = {
		{ 1, 1024, 320 }, { 3, 1024, 160 }, { 1, 256, 32 },
		{ 1, 64, 8 },	  { 8, 64, 1 },	    { 64, 64, 1 },
		{ 1, 1, 1 },	  { 1, 0, 1 },
	};
	uint64_t want;

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(c); i++)
		assert_int_equal(in_force(c[i].nodes, c[i].limit, &want),
				 c[i].connections);
	/* what is kept, whatever the limit */
	for (uint64_t limit = 512; limit < 4096; limit++)
		assert_true(2 * in_force(1, limit, &want) + 256 + 128 <= limit);
}

/* With a key strangers have places of their own, half as many. */
static void strangers(void **state)
{
	uint64_t want;

	(void)state;
	key_file = "/key";
	for (unsigned int nodes = 1; nodes <= 8; nodes++) {
		assert_int_equal(in_force(nodes, UINT64_MAX, &want), 1024);
		assert_int_equal(want, 256 + 8 * 16 + (nodes + 1) * 1024 + 512);
		assert_int_equal(in_force(nodes, want, &want), 1024);
		assert_int_equal(in_force(nodes, want - 1, &want), 1023);
	}
	for (uint64_t limit = 512; limit < 4096; limit++) {
		uint64_t n = in_force(1, limit, &want);

		assert_true(2 * n + (n + 1) / 2 + 256 + 128 <= limit);
	}
	key_file = "";
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(enough),
		cmocka_unit_test(too_few),
		cmocka_unit_test(strangers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
