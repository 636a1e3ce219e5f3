/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what carries data is chosen as it was asked for; without a device
 * "auto" is TCP and says so, "verbs" is refused with the reason, and a named
 * device that is not there is never passed over in silence; options that make
 * no sense are refused and named.
 */
/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/network.h"

static char note[KVS_NETWORK_NOTE];
static char err[1024];

static int create(const struct kvs_network_opts *o, struct kvs_transport **t)
{
	snprintf(note, sizeof(note), "?");
	snprintf(err, sizeof(err), "?");
	return kvs_network_create(o, t, note, err, sizeof(err));
}

static void tcp_as_set(void **state)
{
	static const struct kvs_network_opts o[] = {
		{ .data = "tcp", .node = -1 },
		{ .data = "auto", .device = "off", .node = -1 },
		{ .device = "off", .node = -1 },
	};
	struct kvs_transport *t;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(o) / sizeof(o[0]); i++) {
		assert_int_equal(create(&o[i], &t), 0);
		assert_int_equal(strncmp(kvs_transport_name(t), "tcp/", 4), 0);
		assert_false(kvs_transport_one_sided(t));
		assert_string_equal(note, "TCP only, as set");
		kvs_transport_destroy(t);
	}
}

/* With a device it is one-sided, without TCP; either way it is said. */
static void automatic(void **state)
{
	static const struct kvs_network_opts o = { .node = -1 };
	static const struct kvs_network_opts must = {
		.data = "verbs",
		.node = -1,
	};
	struct kvs_transport *t;

	(void)state;
	assert_int_equal(create(&o, &t), 0);
	assert_string_equal(err, "");
	if (kvs_transport_one_sided(t)) {
		assert_non_null(strstr(note, "verbs: "));
		kvs_transport_destroy(t);
		assert_int_equal(create(&must, &t), 0);
		assert_true(kvs_transport_one_sided(t));
		kvs_transport_destroy(t);
		return;
	}
	assert_non_null(strstr(note, "no verbs device"));
	assert_non_null(strstr(note, "TCP only"));
	kvs_transport_destroy(t);
	assert_true(create(&must, &t) < 0);
	assert_non_null(strstr(err, "transport.data = verbs: "));
}

static void named_device(void **state)
{
	static const struct kvs_network_opts o = {
		.device = "nosuch_0",
		.node = -1,
	};
	struct kvs_transport *t;

	(void)state;
	assert_true(create(&o, &t) < 0);
	assert_non_null(strstr(err, "rdma.device"));
	assert_non_null(strstr(err, "nosuch_0"));
}

static void bad_options(void **state)
{
	static const struct {
		struct kvs_network_opts o;
		const char *text;
	} t[] = {
		{ { .data = "ib" }, "ib" },
		{ { .gid_index = "256" }, "rdma.gid_index" },
		{ { .gid_index = "x" }, "rdma.gid_index" },
		{ { .gid_index = "-1" }, "rdma.gid_index" },
		{ { .mtu = "9000" }, "rdma.mtu" },
		{ { .grant = "key" }, "rdma.grant" },
	};
	struct kvs_transport *tr;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(create(&t[i].o, &tr), -EINVAL);
		assert_non_null(strstr(err, t[i].text));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tcp_as_set),
		cmocka_unit_test(automatic),
		cmocka_unit_test(named_device),
		cmocka_unit_test(bad_options),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
