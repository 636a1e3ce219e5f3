/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double of the driver: random copies both ways come out byte
 * for byte, many at a time, whichever way small pieces travel, whether or not
 * host memory has another address on the device, with batches made out of
 * order, with drivers that have the batch call of 13.0, that of 12.8 or none
 * (KVS_FAKE_CUDA), from memory that is registered, or not, or in chunks that
 * end in the middle of an item; a launch never has more blocks than it may;
 * without memory for the ring copies are mapped, without kernels direct; the
 * ring's threshold is measured; a copy that the host must not be written by is
 * refused. After a device is closed nothing of it is alive.
 */
#include "tests/unit/gpu/cuda_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BANDS 8

static void many(struct cuda_rig *g, unsigned int rounds)
{
	struct cuda_copy *c = calloc(BANDS, sizeof(*c));

	assert_non_null(c);
	for (unsigned int n = 0; n < rounds; n++) {
		/* H2D and D2H use bands of their own, at the same time */
		for (unsigned int b = 0; b < BANDS; b++) {
			rig_copy(g, &c[b], b % 2 ? KVS_COPY_D2H : KVS_COPY_H2D,
				 b, BANDS);
			rig_want(g, &c[b]);
			assert_int_equal(kvs_device_copy(g->d, &c[b].c), 0);
		}
		for (unsigned int b = 0; b < BANDS; b++) {
			assert_int_equal(rig_wait(g, &c[b]), 0);
			assert_int_equal(kvs_device_progress(g->d, &c[b].c),
					 RIG_RUNS);
		}
		rig_check(g);
	}
	free(c);
}

static void test_every_way(void **state)
{
	static const enum kvs_copy_way ways[] = { KVS_COPY_AUTO, KVS_COPY_SLOTS,
						  KVS_COPY_MAPPED,
						  KVS_COPY_DIRECT };
	struct cuda_rig g = { 0 };

	(void)state;
	rig_seed(&g);
	for (size_t i = 0; i < 4; i++)
		for (int alias = 0; alias < 2; alias++) {
			struct kvs_device_info info;
			struct fake_cuda_counts n;

			rig_init(&g, ways[i]);
			g.config.alias = alias;
			rig_open(&g);
			fake_cuda_shuffle(kvs_rng_next(&g.rng) | 1);
			many(&g, 12);
			kvs_device_info(g.d, &info);
			fake_cuda_counts(&n);
			print_message("%s, %s: %llu pieces, %llu launches, "
				      "%llu batches\n",
				      kvs_copy_way_name(info.way),
				      alias ? "alias" : "same",
				      (unsigned long long)info.pieces,
				      (unsigned long long)info.launches,
				      (unsigned long long)n.batches);
			assert_int_equal(info.failed, 0);
			assert_int_equal(info.way,
					 ways[i] ? ways[i] : KVS_COPY_SLOTS);
			assert_int_equal(info.launches > 0,
					 ways[i] != KVS_COPY_DIRECT);
			assert_true(n.blocks_max <= 4);
			rig_close(&g);
			rig_free(&g);
		}
}

static void test_chunks_end_in_an_item(void **state)
{
	struct cuda_rig g = { 0 };
	struct kvs_device_info info;

	(void)state;
	rig_seed(&g);
	for (int alias = 0; alias < 2; alias++) {
		rig_init(&g, KVS_COPY_AUTO);
		g.config.alias = alias;
		g.o.register_chunk = 4096;
		rig_open(&g);
		kvs_device_info(g.d, &info);
		assert_int_equal(info.registered, g.registered / 4096);
		assert_int_equal(info.pinned_bytes, g.registered);
		many(&g, 12);
		rig_close(&g);
		rig_free(&g);
	}
}

static void test_nothing_registered(void **state)
{
	struct cuda_rig g = { 0 };

	(void)state;
	rig_seed(&g);
	rig_init(&g, KVS_COPY_AUTO);
	rig_open(&g);
	assert_int_equal(kvs_device_unregister_host(g.d, g.host, g.registered),
			 0);
	many(&g, 6);
	assert_int_equal(kvs_device_register_host(g.d, g.host, g.registered, 0),
			 0);
	many(&g, 2);
	rig_close(&g);
	rig_free(&g);
}

static void test_what_can_be_had(void **state)
{
	struct cuda_rig g = { 0 };
	struct kvs_device_info info;

	(void)state;
	rig_seed(&g);
	/* tables of six flights, and the test's, but no ring */
	rig_init(&g, KVS_COPY_AUTO);
	g.o.copy.slot_bytes = 32 << 20;
	g.config.memory = 16 << 20;
	rig_open(&g);
	kvs_device_info(g.d, &info);
	assert_int_equal(info.way, KVS_COPY_MAPPED);
	assert_int_equal(info.slots, 0);
	many(&g, 4);
	rig_close(&g);
	rig_free(&g);

	rig_init(&g, KVS_COPY_AUTO);
	g.config.kernels = false;
	rig_open(&g);
	kvs_device_info(g.d, &info);
	assert_int_equal(info.way, KVS_COPY_DIRECT);
	assert_string_equal(info.kernels, "none");
	many(&g, 4);
	rig_close(&g);

	/* asked for: then it is an error */
	g.o.copy.way = KVS_COPY_SLOTS;
	char err[160] = "";

	assert_int_equal(kvs_device_open(&g.o, &g.d, err, sizeof(err)),
			 -EOPNOTSUPP);
	assert_non_null(strstr(err, "no kernels"));
	rig_alive(0);
	rig_free(&g);
}

static void test_the_threshold_is_measured(void **state)
{
	struct cuda_rig g = { 0 };
	struct kvs_device_info info;
	struct cuda_copy c;

	(void)state;
	rig_seed(&g);
	rig_init(&g, KVS_COPY_AUTO);
	g.o.copy = (struct kvs_copy_opts){ 0 };
	rig_open(&g);
	/* it is, before the first copy is made */
	rig_copy(&g, &c, KVS_COPY_H2D, 0, BANDS);
	rig_want(&g, &c);
	assert_int_equal(kvs_device_copy(g.d, &c.c), 0);
	assert_int_equal(rig_wait(&g, &c), 0);
	rig_check(&g);
	kvs_device_info(g.d, &info);
	assert_true(info.measured);
	assert_in_range(info.batch_min, 8 << 10, 512 << 10);
	assert_int_equal(info.slots, 2);
	assert_int_equal(info.slot_bytes, 32 << 20);
	assert_string_equal(info.bus, "0000:ab:00.0");
	/* and leaves nothing behind */
	assert_int_equal(info.registered, 1);
	assert_int_equal(info.pieces + info.launches > 0, 1);
	rig_close(&g);
	rig_free(&g);
}

static void test_read_only_memory(void **state)
{
	struct cuda_rig g = { 0 };
	struct kvs_device_info info;
	struct cuda_copy c;

	(void)state;
	rig_seed(&g);
	for (int supported = 0; supported < 2; supported++) {
		rig_init(&g, KVS_COPY_AUTO);
		g.config.read_only = supported;
		rig_open(&g);
		assert_int_equal(kvs_device_unregister_host(g.d, g.host,
							    g.registered),
				 0);
		assert_int_equal(kvs_device_register_host(g.d, g.host,
							  g.registered,
							  KVS_HOST_READ_ONLY),
				 !supported);
		kvs_device_info(g.d, &info);
		assert_int_equal(info.registered_bytes, g.registered);
		assert_int_equal(info.pinned_bytes,
				 supported ? g.registered : 0);
		rig_copy(&g, &c, KVS_COPY_H2D, 0, 1);
		rig_want(&g, &c);
		assert_int_equal(kvs_device_copy(g.d, &c.c), 0);
		assert_int_equal(rig_wait(&g, &c), 0);
		rig_copy(&g, &c, KVS_COPY_D2H, 0, 1);
		assert_int_equal(kvs_device_copy(g.d, &c.c), -EINVAL);
		rig_check(&g);
		rig_close(&g);
		rig_free(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_way),
		cmocka_unit_test(test_chunks_end_in_an_item),
		cmocka_unit_test(test_nothing_registered),
		cmocka_unit_test(test_what_can_be_had),
		cmocka_unit_test(test_the_threshold_is_measured),
		cmocka_unit_test(test_read_only_memory),
	};

	return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
