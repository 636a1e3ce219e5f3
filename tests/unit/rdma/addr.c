/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: every way of writing an address has one documented result: IPv4,
 * bracketed IPv6 with and without scope, names, the wildcard; what is refused
 * is refused with a message that names the string. Formatting is the inverse.
 * (sgl-project/sglang#10389, #29459, #19981)
 */
/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "rdma/addr.h"

struct row {
	const char *text;
	bool listen;
	int rc;
	const char *shown; /* of the first address; NULL: not checked */
};

static const struct row rows[] = {
	{ "127.0.0.1:7000", false, 0, "127.0.0.1:7000" },
	{ "127.0.0.1:7000", true, 0, "127.0.0.1:7000" },
	{ "127.0.0.1:0", true, 0, "127.0.0.1:0" },
	{ "127.0.0.1:0", false, -EINVAL, NULL },
	{ "127.0.0.1:65535", false, 0, "127.0.0.1:65535" },
	{ "0.0.0.0:7000", true, 0, "0.0.0.0:7000" },
	{ "[::1]:7000", false, 0, "[::1]:7000" },
	{ "[::]:7000", true, 0, "[::]:7000" },
	{ "[fe80::1%lo]:7000", false, 0, "[fe80::1%lo]:7000" },
	{ "[fe80::1%nosuchif0]:7000", false, -ENOENT, NULL },
	{ "localhost:7000", false, 0, NULL },
	{ "*:7000", true, 0, "[::]:7000" },
	{ "*:0", true, 0, "[::]:0" },
	{ "*:7000", false, -EINVAL, NULL },
	{ "", false, -EINVAL, NULL },
	{ ":7000", false, -EINVAL, NULL },
	{ "[]:7000", false, -EINVAL, NULL },
	{ "::1", false, -EINVAL, NULL },
	{ "::1:7000", false, -EINVAL, NULL },
	{ "[::1]", false, -EINVAL, NULL },
	{ "[::1]7000", false, -EINVAL, NULL },
	{ "[::1:7000", false, -EINVAL, NULL },
	{ "[127.0.0.1]:7000", false, -EINVAL, NULL },
	{ "[localhost]:7000", false, -EINVAL, NULL },
	{ "localhost", false, -EINVAL, NULL },
	{ "localhost:", false, -EINVAL, NULL },
	{ "localhost:http", false, -EINVAL, NULL },
	{ "localhost:65536", false, -EINVAL, NULL },
	{ "localhost:-1", false, -EINVAL, NULL },
	{ "localhost:+7", false, -EINVAL, NULL },
	{ "localhost: 7", false, -EINVAL, NULL },
	{ "localhost:0x50", false, -EINVAL, NULL },
	{ "localhost:999999999999", false, -EINVAL, NULL },
	{ "local host:7000", false, -EINVAL, NULL },
	{ "a]b:7000", false, -EINVAL, NULL },
};

static void table(void **state)
{
	char buf[KVS_ADDR_STR];
	struct kvs_addr a;
	char err[256];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int rc;

		memset(err, 0, sizeof(err));
		memset(&a, 0xaa, sizeof(a));
		rc = kvs_addr_parse(rows[i].text, rows[i].listen, &a, err,
				    sizeof(err));
		if (rc != rows[i].rc)
			fail_msg("\"%s\": %d, not %d (%s)", rows[i].text, rc,
				 rows[i].rc, err);
		if (rc) {
			/* named, explained, and no partial result */
			assert_non_null(strstr(err, rows[i].text));
			assert_true(strlen(err) > strlen(rows[i].text) + 14);
			assert_int_equal(a.n, 0xaaaaaaaau);
			continue;
		}
		assert_true(a.n >= 1 && a.n <= KVS_ADDR_MAX);
		if (rows[i].shown)
			assert_string_equal(
				kvs_addr_format((struct sockaddr *)&a.a[0].ss,
						a.a[0].len, buf),
				rows[i].shown);
	}
}

static void unknown_name(void **state)
{
	struct kvs_addr a;
	char err[256];
	int rc;

	(void)state;
	/* -EAGAIN where there is no resolver to ask */
	rc = kvs_addr_parse("no-such-host.invalid:1", false, &a, err,
			    sizeof(err));
	assert_true(rc == -ENOENT || rc == -EAGAIN);
	assert_non_null(strstr(err, "no-such-host.invalid:1"));
	/* no buffer for the message is no reason to crash */
	assert_int_equal(kvs_addr_parse("::1", false, &a, NULL, 0), -EINVAL);
}

static void long_names(void **state)
{
	struct kvs_addr a;
	char s[600];
	char err[32];

	(void)state;
	memset(s, 'a', sizeof(s));
	memcpy(s + sizeof(s) - 4, ":80", 4);
	assert_int_equal(kvs_addr_parse(s, false, &a, err, sizeof(err)),
			 -EINVAL);
	assert_int_equal(err[sizeof(err) - 1], '\0');
}

static void classes(void **state)
{
	static const struct {
		const char *text;
		bool loopback;
		bool wildcard;
	} t[] = {
		{ "127.0.0.1:1", true, false },
		{ "127.255.0.9:1", true, false },
		{ "[::1]:1", true, false },
		{ "[::ffff:127.0.0.1]:1", true, false },
		{ "[::ffff:10.0.0.1]:1", false, false },
		{ "10.0.0.1:1", false, false },
		{ "128.0.0.1:1", false, false },
		{ "[fe80::1%lo]:1", false, false },
		{ "0.0.0.0:1", false, true },
		{ "[::]:1", false, true },
		{ "[::ffff:0.0.0.0]:1", false, true },
	};
	char buf[KVS_ADDR_STR];
	struct kvs_addr a;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		const struct sockaddr *sa = (const void *)&a.a[0].ss;

		assert_int_equal(kvs_addr_parse(t[i].text, true, &a, NULL, 0),
				 0);
		assert_int_equal(kvs_addr_is_loopback(sa), t[i].loopback);
		assert_int_equal(kvs_addr_is_wildcard(sa), t[i].wildcard);
	}
	/* an IPv4 peer of an IPv6 listener has its IPv4 name */
	assert_int_equal(
		kvs_addr_parse("[::ffff:10.0.0.1]:5", true, &a, NULL, 0), 0);
	assert_string_equal(kvs_addr_format((struct sockaddr *)&a.a[0].ss,
					    a.a[0].len, buf),
			    "10.0.0.1:5");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table),
		cmocka_unit_test(unknown_name),
		cmocka_unit_test(long_names),
		cmocka_unit_test(classes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
