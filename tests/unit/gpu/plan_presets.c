/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: for every preset, TP 1, 2, 4 and 8, and page sizes of 1, 16, 64 and
 * 128 tokens, rooms in scattered extents with random page lists, a partial
 * last page and guards around every page come out byte for byte, whichever way
 * the copies of the soft device are planned, and go back the same. The number
 * of operations of a room of 32,768 tokens is printed and bounded.
 */
#include "tests/unit/gpu/preset_room.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu/plan.h"
#include "gpu/shape.h"
#include "pipeline/presets.h"

#define LONG_ROOM 32768u /* tokens */

static const uint32_t tps[] = { 1, 2, 4, 8 };
static const uint32_t page_sizes[] = { 1, 16, 64, 128 };

static void open_soft(struct preset_room *r, enum kvs_copy_way way)
{
	const struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = "soft",
		.copy = { .way = way,
			  .few = 8,
			  .slot_bytes = 192 << 10,
			  .slots = 3,
			  .blocks = 1 },
	};
	char err[128];

	assert_int_equal(kvs_device_open(&o, &r->d, err, sizeof(err)), 0);
}

static void there_and_back(struct preset_room *r, enum kvs_copy_way way)
{
	open_soft(r, way);
	preset_room_there_and_back(r);
	kvs_device_close(r->d);
}

static void test_every_preset_comes_out(void **state)
{
	struct preset_room r = { 0 };
	unsigned int n = 0;

	(void)state;
	kvs_rng_init(&r.rng, 11);
	while ((r.model = kvs_preset_next(r.model)))
		for (size_t t = 0; t < 4; t++)
			for (size_t p = 0; p < 4; p++) {
				if (!preset_room_layout(&r, tps[t],
							page_sizes[p], 1))
					continue;
				/* 3 extents, the last page partial */
				preset_room_init(&r, 2 * 96 + 37, 96);
				there_and_back(&r, KVS_COPY_SLOTS);
				there_and_back(&r, KVS_COPY_MAPPED);
				there_and_back(&r, KVS_COPY_DIRECT);
				preset_room_fini(&r);
				n++;
			}
	print_message("%u layouts\n", n);
	assert_true(n > 60);
}

struct ops {
	uint64_t direct, pieces, launches, bytes;
};

static void count(struct preset_room *r, struct ops *ret)
{
	static const struct kvs_copy_opts o;
	struct kvs_plan_tuning t;
	struct kvs_plan_step s;
	struct kvs_plan p;
	void *table;

	*ret = (struct ops){ 0 };
	preset_room_rebase(r, 1ull << 40, 1ull << 41);
	for (size_t i = 0; i < r->copy.n_runs; i++)
		ret->direct += kvs_copy_pieces(&r->copy, i, UINT64_MAX - 1);
	kvs_plan_tuning_init(&t, &o, KVS_COPY_SLOTS);
	table = preset_alloc(1, kvs_plan_table_bytes(&t));
	assert_int_equal(kvs_plan_step_init(&s, &t, table), 0);
	r->copy.dir = KVS_COPY_H2D;
	kvs_plan_init(&p, &r->copy, &t, NULL);
	while (kvs_plan_next(&p, &s)) {
		ret->pieces += s.n_pieces;
		ret->launches += s.n_runs > 0;
		ret->bytes += s.bytes;
	}
	kvs_plan_step_fini(&s);
	free(table);
}

static void test_operations_of_a_long_room(void **state)
{
	struct preset_room r = { 0 };
	struct ops o;

	(void)state;
	kvs_rng_init(&r.rng, 12);
	print_message("%-20s %2s %4s %6s %8s %7s %8s %8s\n", "model", "tp",
		      "page", "MiB", "direct", "pieces", "launches", "ops/GiB");
	while ((r.model = kvs_preset_next(r.model)))
		for (size_t t = 0; t < 4; t += 3)
			for (size_t p = 0; p < 4; p += 2) {
				if (!preset_room_layout(&r, tps[t],
							page_sizes[p], 0))
					continue;
				preset_room_init(&r, LONG_ROOM, 2048);
				count(&r, &o);
				print_message(
					"%-20s %2u %4u %6llu %8llu %7llu %8llu %8.0f\n",
					r.model, tps[t], page_sizes[p],
					(unsigned long long)o.bytes >> 20,
					(unsigned long long)o.direct,
					(unsigned long long)o.pieces,
					(unsigned long long)o.launches,
					(double)(o.pieces + o.launches) *
						(double)(1 << 30) /
						(double)o.bytes);
				/* a run is a piece at most where it is short,
				 * and long pieces are few by themselves */
				assert_true(o.pieces <=
					    r.copy.n_runs +
						    o.bytes /
							    KVS_PLAN_BATCH_MIN);
				assert_true(o.launches <=
					    o.bytes / (8u << 20) + 64);
				preset_room_fini(&r);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_preset_comes_out),
		cmocka_unit_test(test_operations_of_a_long_room),
	};

	return cmocka_run_group_tests_name("plan_presets", tests, NULL, NULL);
}
