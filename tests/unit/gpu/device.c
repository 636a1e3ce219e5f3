/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: backends are found by name, an unknown one is refused with a
 * message that names those there are, and cuda without a driver or a device
 * says so; a row of the table with any member missing is seen; arguments and
 * options that make no sense are refused before anything is started; host
 * registrations and allocations are counted exactly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device_internal.h"
#include "gpu/soft.h"
#include "lib/assert.h"

static struct kvs_device *open_soft(void)
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "soft" };
	struct kvs_device *d = NULL;
	char err[128] = "";

	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), 0);
	assert_non_null(d);
	assert_string_equal(err, "");
	assert_string_equal(kvs_device_name(d), "soft");
	return d;
}

static void test_unknown_backend_names_the_known(void **state)
{
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "sofa" };
	struct kvs_device *d = (void *)&o;
	char err[128] = "";
	char tiny[24];

	(void)state;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "\"sofa\""));
	assert_non_null(strstr(err, " soft"));
	assert_non_null(strstr(err, " cuda"));
	assert_ptr_equal(d, &o);

	assert_int_equal(kvs_device_open(&o, &d, tiny, sizeof(tiny)), -EINVAL);
	assert_int_equal(strnlen(tiny, sizeof(tiny)), sizeof(tiny) - 1);
	assert_int_equal(kvs_device_open(&o, &d, NULL, 0), -EINVAL);
	o.backend = NULL;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), -EINVAL);
}

static void test_options_of_another_size_are_refused(void **state)
{
	struct kvs_device_opts o = { .size = sizeof(o) - 1, .backend = "soft" };
	struct kvs_device *d = NULL;
	char err[128] = "";

	(void)state;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "size"));
	assert_int_equal(kvs_device_open(NULL, &d, err, sizeof(err)), -EINVAL);
	assert_null(d);
}

/* On a machine with a driver: that it has no such device. */
static void test_cuda_says_why_not(void **state)
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "cuda",
					   .device = 4711 };
	struct kvs_device *d = NULL;
	char err[160] = "";

	(void)state;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)),
			 -EOPNOTSUPP);
	assert_null(d);
	assert_true(strstr(err, "CUDA") || strstr(err, "cuda"));
	assert_true(strstr(err, "driver") || strstr(err, "devices") ||
		    strstr(err, "not built"));
}

static void test_copy_options_are_checked(void **state)
{
	static const struct kvs_copy_opts bad[] = {
		{ .way = (enum kvs_copy_way)(KVS_COPY_MAPPED + 1) },
		{ .slots = 17 },
		{ .slot_bytes = (1ull << 30) + 1 },
		{ .blocks = 65 },
	};

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(bad); i++) {
		const struct kvs_device_opts o = { .size = sizeof(o),
						   .backend = "soft",
						   .copy = bad[i] };
		struct kvs_device *d = NULL;
		char err[160] = "";

		assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)),
				 -EINVAL);
		assert_null(d);
		assert_string_not_equal(err, "");
	}
}

static void test_hole_in_a_row_is_seen(void **state)
{
	size_t i;

	(void)state;
	assert_false(kvs_device_ops_complete(NULL));
	assert_true(kvs_device_ops_complete(&kvs_soft_ops));
	assert_true(kvs_device_ops_complete(&kvs_cuda_ops));
	/* every member is a pointer: clear each in turn */
	for (i = 0; i < sizeof(struct kvs_device_ops); i += sizeof(void *)) {
		struct kvs_device_ops ops = kvs_soft_ops;

		memset((char *)&ops + i, 0, sizeof(void *));
		assert_false(kvs_device_ops_complete(&ops));
	}
}

static void test_soft_only_calls_refuse_others(void **state)
{
	struct kvs_device other = { .magic = KVS_DEVICE_MAGIC,
				    .ops = &kvs_cuda_ops };
	struct kvs_soft_stats st;

	(void)state;
	assert_int_equal(kvs_soft_release(&other), -EOPNOTSUPP);
	assert_int_equal(kvs_soft_stats(&other, &st), -EOPNOTSUPP);
}

static void test_close_of_nothing(void **state)
{
	(void)state;
	kvs_device_close(NULL);
	kvs_device_close(open_soft());
}

static void test_registrations_are_counted(void **state)
{
	struct kvs_device *d = open_soft();
	struct kvs_soft_stats st;
	static char mem[64 * 1024];
	int i;

	(void)state;
	for (i = 0; i < 16; i++)
		assert_int_equal(kvs_device_register_host(d, mem + i * 4096,
							  4096, i % 2),
				 0);
	assert_int_equal(kvs_soft_stats(d, &st), 0);
	assert_int_equal(st.registered, 16);
	assert_int_equal(st.registered_bytes, sizeof(mem));

	/* a second owner of any byte */
	assert_int_equal(kvs_device_register_host(d, mem, 4096, 0), -EEXIST);
	assert_int_equal(kvs_device_register_host(d, mem + 4095, 1, 0),
			 -EEXIST);
	/* not what was registered: no part, no sum, no wrong start */
	assert_int_equal(kvs_device_unregister_host(d, mem, 2048), -ENOENT);
	assert_int_equal(kvs_device_unregister_host(d, mem, 8192), -ENOENT);
	assert_int_equal(kvs_device_unregister_host(d, mem + 1, 4095), -ENOENT);
	assert_int_equal(kvs_device_register_host(d, NULL, 4096, 0), -EINVAL);
	assert_int_equal(kvs_device_register_host(d, mem, 0, 0), -EINVAL);
	assert_int_equal(kvs_device_register_host(d, mem, UINT64_MAX, 0),
			 -EINVAL);
	assert_int_equal(kvs_soft_stats(d, &st), 0);
	assert_int_equal(st.registered, 16);
	assert_int_equal(st.registered_bytes, sizeof(mem));

	for (i = 0; i < 16; i++) {
		assert_int_equal(
			kvs_device_unregister_host(d, mem + i * 4096, 4096), 0);
		assert_int_equal(kvs_device_unregister_host(d, mem + i * 4096,
							    4096),
				 -ENOENT);
		assert_int_equal(kvs_soft_stats(d, &st), 0);
		assert_int_equal(st.registered, 15 - i);
	}
	assert_int_equal(st.registered_bytes, 0);
	assert_int_equal(kvs_device_register_host(d, mem, 4096, 0), 0);
	kvs_device_close(d);
}

static void test_allocations_are_counted(void **state)
{
	struct kvs_device *d = open_soft();
	struct kvs_soft_stats st;
	void *p[3];
	void *none = &st;

	(void)state;
	assert_int_equal(kvs_device_alloc(d, 0, &none), -EINVAL);
	assert_int_equal(kvs_device_alloc(d, UINT64_MAX, &none), -ENOMEM);
	assert_ptr_equal(none, &st);
	assert_int_equal(kvs_device_alloc(d, 1, &p[0]), 0);
	assert_int_equal(kvs_device_alloc(d, 5u << 20, &p[1]), 0);
	assert_int_equal(kvs_device_alloc(d, 4096, &p[2]), 0);
	assert_int_equal((uintptr_t)p[0] % 256, 0);
	assert_int_equal(kvs_soft_stats(d, &st), 0);
	assert_int_equal(st.allocs, 3);
	assert_int_equal(st.alloc_bytes, 1 + (5u << 20) + 4096);
	kvs_device_free(d, p[1]);
	kvs_device_free(d, NULL);
	assert_int_equal(kvs_soft_stats(d, &st), 0);
	assert_int_equal(st.allocs, 2);
	assert_int_equal(st.alloc_bytes, 1 + 4096);
	/* the rest goes with the device: the leak checker says if not */
	kvs_device_close(d);
}

static void test_bad_copies_are_refused(void **state)
{
	struct kvs_device *d = open_soft();
	static char host[8192];
	uint32_t pages[2] = { 0, 15 };
	uint32_t far[2] = { 0, 16 };
	uint32_t end[1] = { UINT32_MAX };
	struct kvs_soft_stats st;
	struct kvs_copy c = { 0 };
	void *dev;
	size_t i;

	(void)state;
	assert_int_equal(kvs_device_alloc(d, 4096, &dev), 0);
	assert_int_equal(
		kvs_device_register_host(d, host, 4096, KVS_HOST_READ_ONLY), 0);
	{
		const struct {
			struct kvs_copy_run run;
			int dir;
		} bad[] = {
			/* no memory, no item, sums that overflow */
			{ { NULL, dev, 256, pages, 2 }, KVS_COPY_H2D },
			{ { host, NULL, 256, pages, 2 }, KVS_COPY_H2D },
			{ { host, dev, 0, pages, 2 }, KVS_COPY_H2D },
			{ { host, dev, 1ULL << 63, NULL, 2 }, KVS_COPY_H2D },
			{ { host, dev, UINT64_MAX, NULL, 1 }, KVS_COPY_H2D },
			{ { host, dev, 1ULL << 40, end, 1 }, KVS_COPY_H2D },
			/* past the allocation, or in none */
			{ { host, dev, 256, far, 2 }, KVS_COPY_H2D },
			{ { host, dev, 256, NULL, 17 }, KVS_COPY_H2D },
			{ { host, host, 256, pages, 2 }, KVS_COPY_H2D },
			{ { host, (char *)dev + 1, 256, pages, 2 },
			  KVS_COPY_H2D },
			/* half in registered memory; read-only */
			{ { host + 3968, dev, 256, NULL, 1 }, KVS_COPY_H2D },
			{ { host, dev, 256, pages, 2 }, KVS_COPY_D2H },
			/* no such direction */
			{ { host, dev, 256, pages, 2 }, 2 },
		};

		c.n_runs = 1;
		for (i = 0; i < KVS_ARRAY_SIZE(bad); i++) {
			c.runs = &bad[i].run;
			c.dir = (enum kvs_copy_dir)bad[i].dir;
			assert_int_equal(kvs_device_copy(d, &c), -EINVAL);
		}
	}
	/* a good run first: another list, more of the same list */
	{
		const struct kvs_copy_run other[] = {
			{ host, dev, 256, pages, 2 },
			{ host, dev, 256, far, 2 },
		};
		const struct kvs_copy_run more[] = {
			{ host, dev, 256, far, 1 },
			{ host, dev, 256, far, 2 },
		};

		c.dir = KVS_COPY_H2D;
		c.n_runs = 2;
		c.runs = other;
		assert_int_equal(kvs_device_copy(d, &c), -EINVAL);
		c.runs = more;
		assert_int_equal(kvs_device_copy(d, &c), -EINVAL);
	}
	c.runs = NULL;
	assert_int_equal(kvs_device_copy(d, &c), -EINVAL);
	assert_int_equal(c.order, 0);
	assert_int_equal(kvs_device_peek(d, host, (char *)dev + 4095, 2),
			 -EINVAL);
	assert_int_equal(kvs_device_peek(d, host, host, 1), -EINVAL);

	/* nothing was started; the same runs made good are, and are first */
	{
		const struct kvs_copy_run good[] = {
			{ host, dev, 256, pages, 2 },
			{ host + 4096, dev, 256, NULL, 16 },
			{ NULL, NULL, 0, NULL, 0 },
		};

		c.runs = good;
		c.n_runs = KVS_ARRAY_SIZE(good);
		assert_int_equal(kvs_device_copy(d, &c), 0);
		while (kvs_device_query(d, &c) == -EINPROGRESS)
			(void)sched_yield();
		assert_int_equal(kvs_device_query(d, &c), 0);
		assert_int_equal(c.order, 1);
	}
	assert_int_equal(kvs_soft_stats(d, &st), 0);
	assert_int_equal(st.copies, 1);
	assert_int_equal(st.failed, 0);
	kvs_device_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unknown_backend_names_the_known),
		cmocka_unit_test(test_options_of_another_size_are_refused),
		cmocka_unit_test(test_cuda_says_why_not),
		cmocka_unit_test(test_copy_options_are_checked),
		cmocka_unit_test(test_hole_in_a_row_is_seen),
		cmocka_unit_test(test_soft_only_calls_refuse_others),
		cmocka_unit_test(test_close_of_nothing),
		cmocka_unit_test(test_registrations_are_counted),
		cmocka_unit_test(test_allocations_are_counted),
		cmocka_unit_test(test_bad_copies_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
