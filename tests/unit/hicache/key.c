/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: keys are those that another program computes from the description
 * in the header (BLAKE2b, byte for byte), so tiers on disk stay readable; a
 * page's key depends on every token of it and before it, on their order, on
 * every bit of the fingerprint and on the salt; a page named by its tokens
 * and one named by an engine's hash are never the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "hicache/key.h"

#define PAGE 64

static struct kvs_fingerprint layout;
static struct kvs_key_space plain;

static int set_up(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < sizeof(layout.b); i++)
		layout.b[i] = (uint8_t)i;
	return kvs_key_space_init(&plain, &layout, NULL, 0);
}

static void assert_key(const struct kvs_key *k, const char *hex)
{
	char buf[KVS_KEY_TEXT];

	assert_string_equal(kvs_key_format(k, buf), hex);
}

/* The values are those of Python's hashlib.blake2b. */
static void test_values(void **state)
{
	uint32_t tokens[2 * PAGE], run[130];
	struct kvs_key_space tenant;
	struct kvs_key keys[3], k;
	uint8_t hash[16];

	(void)state;
	for (unsigned int i = 0; i < sizeof(hash); i++)
		hash[i] = (uint8_t)(0xa0 + i);
	kvs_key_of_hash(&plain, hash, &k);
	assert_key(&k, "aec7db7d29ddff536fd466ba9d95b902");
	for (uint32_t i = 0; i < PAGE; i++) {
		tokens[i] = 7 * i;
		tokens[PAGE + i] = 0x01020304 + i;
	}
	assert_int_equal(
		kvs_key_prefix(&plain, tokens, 2 * PAGE, PAGE, keys, 3), 2);
	assert_key(&keys[0], "933700994e6fbd2fd70497592348ef9c");
	assert_key(&keys[1], "77f307ac64867e12ae6cbd0236b792d4");
	assert_int_equal(kvs_key_space_init(&tenant, &layout, "tenant", 6), 0);
	kvs_key_chain(&tenant, NULL, tokens, PAGE, &k);
	assert_key(&k, "d14a3bc35030c6445350c1aa65e7f3d4");
	for (uint32_t i = 0; i < 130; i++)
		run[i] = i;
	kvs_key_chain(&plain, NULL, run, 130, &k);
	assert_key(&k, "f9dfbddcb1e9fd26c146428dda92bc6a");
}

static void test_prefix_bounds(void **state)
{
	uint32_t tokens[3 * PAGE] = { 0 };
	struct kvs_key a[3], b[3];

	(void)state;
	assert_int_equal(kvs_key_prefix(&plain, tokens, 0, PAGE, a, 3), 0);
	assert_int_equal(kvs_key_prefix(&plain, tokens, PAGE - 1, PAGE, a, 3),
			 0);
	assert_int_equal(kvs_key_prefix(&plain, tokens, 3 * PAGE, PAGE, a, 3),
			 3);
	memset(b, 0xee, sizeof(b));
	assert_int_equal(
		kvs_key_prefix(&plain, tokens, 3 * PAGE - 1, PAGE, b, 1), 1);
	assert_true(kvs_key_equal(&a[0], &b[0]));
	assert_int_equal(b[1].b[0], 0xee);
	/* equal pages, other pages before them */
	assert_false(kvs_key_equal(&a[1], &a[2]));
	/* the key may be written over the one before it */
	kvs_key_chain(&plain, &b[0], tokens, PAGE, &b[0]);
	assert_true(kvs_key_equal(&a[1], &b[0]));
}

static void test_depends_on_all(void **state)
{
	struct kvs_fingerprint other;
	struct kvs_key_space s;
	uint32_t tokens[2 * PAGE], t;
	struct kvs_key ref[2], keys[2];

	(void)state;
	for (uint32_t i = 0; i < 2 * PAGE; i++)
		tokens[i] = i;
	kvs_key_prefix(&plain, tokens, 2 * PAGE, PAGE, ref, 2);
	for (uint32_t i = 0; i < 2 * PAGE; i++) {
		for (unsigned int bit = 0; bit < 32; bit++) {
			tokens[i] ^= 1u << bit;
			kvs_key_prefix(&plain, tokens, 2 * PAGE, PAGE, keys, 2);
			assert_int_equal(kvs_key_equal(&ref[0], &keys[0]),
					 i >= PAGE);
			assert_false(kvs_key_equal(&ref[1], &keys[1]));
			tokens[i] ^= 1u << bit;
		}
	}
	t = tokens[0];
	tokens[0] = tokens[1];
	tokens[1] = t;
	kvs_key_prefix(&plain, tokens, 2 * PAGE, PAGE, keys, 2);
	assert_false(kvs_key_equal(&ref[0], &keys[0]));
	tokens[1] = tokens[0];
	tokens[0] = t;
	for (unsigned int bit = 0; bit < 128; bit++) {
		other = layout;
		other.b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(kvs_key_space_init(&s, &other, NULL, 0), 0);
		kvs_key_chain(&s, NULL, tokens, PAGE, &keys[0]);
		assert_false(kvs_key_equal(&ref[0], &keys[0]));
	}
}

static void test_salt(void **state)
{
	uint8_t salt[KVS_KEY_SALT_MAX + 1] = { 0 };
	struct kvs_key_space s[3];

	(void)state;
	assert_int_equal(kvs_key_space_init(&s[0], &layout, salt, sizeof(salt)),
			 -EINVAL);
	assert_int_equal(
		kvs_key_space_init(&s[0], &layout, salt, KVS_KEY_SALT_MAX), 0);
	/* a longer one of the same bytes is another one */
	assert_int_equal(kvs_key_space_init(&s[1], &layout, salt, 1), 0);
	assert_int_equal(kvs_key_space_init(&s[2], &layout, salt, 2), 0);
	assert_memory_not_equal(s[0].b, s[1].b, sizeof(s[0].b));
	assert_memory_not_equal(s[1].b, s[2].b, sizeof(s[0].b));
	assert_memory_not_equal(s[1].b, plain.b, sizeof(s[0].b));
}

/* An engine that picks its hashes cannot name pages of another kind. */
static void test_kinds_are_apart(void **state)
{
	struct kvs_key by_hash, by_tokens;
	uint8_t hash[16] = { 0 };

	(void)state;
	kvs_key_of_hash(&plain, hash, &by_hash);
	kvs_key_chain(&plain, NULL, NULL, 0, &by_tokens);
	assert_false(kvs_key_equal(&by_hash, &by_tokens));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_prefix_bounds),
		cmocka_unit_test(test_depends_on_all),
		cmocka_unit_test(test_salt),
		cmocka_unit_test(test_kinds_are_apart),
	};

	return cmocka_run_group_tests_name("key", tests, set_up, NULL);
}
