/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a page that was put can be got, byte for byte, from then on and
 * after a restart; memory of any alignment will do; what is queued is bounded;
 * at the limit the oldest segment goes and its pages are told, and whoever
 * reads one of them still gets it; pages of different layouts do not meet; a
 * second one cannot write the directory, and one who reads follows.
 */
#include <errno.h>
#include <string.h>

#include "tests/unit/hicache/disk_rig.h"

static struct disk_rig g;

static void put_get_restart(void **state)
{
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	disk_rig_open(&g);
	assert_int_equal(g.found, 0);
	for (n = 0; n < 100; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	for (n = 0; n < 100; n++)
		assert_int_equal(disk_rig_get(&g, n), 0);
	assert_int_equal(disk_rig_stats(&g).pages, 100);
	/* 256 KiB hold 31 pages of 8 KiB */
	assert_int_equal(disk_rig_stats(&g).segments, 4);
	disk_rig_close(&g);
	disk_rig_open(&g);
	assert_int_equal(g.found, 100);
	for (n = 0; n < 100; n++)
		assert_int_equal(disk_rig_get(&g, n), 0);
	/* gone on with, not begun anew */
	for (n = 100; n < 120; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(disk_rig_stats(&g).segments, 4);
	assert_int_equal(disk_rig_stats(&g).damaged, 0);
	disk_rig_close(&g);
	disk_rig_open(&g);
	assert_int_equal(g.found, 120);
	for (n = 0; n < 120; n++)
		assert_int_equal(disk_rig_get(&g, n), 0);
	disk_rig_fini(&g);
}

/* How long a GiB takes is said where it is not a guess. */
static void rate_of_a_start(void **state)
{
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	g.page_bytes = 2 << 20;
	g.o.segment_bytes = 80 << 20;
	disk_rig_open(&g);
	assert_int_equal(disk_rig_put(&g, 0), 0);
	disk_rig_close(&g);
	disk_rig_open(&g);
	assert_true(disk_rig_told(&g, "1 pages, 2.0 MiB, in 1 segments: read"));
	assert_false(disk_rig_told(&g, "a GiB"));
	for (n = 1; n < 32; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	disk_rig_close(&g);
	disk_rig_open(&g);
	assert_true(disk_rig_told(&g, "32 pages, 64.0 MiB, in 1 segments"));
	assert_true(disk_rig_told(&g, "a GiB"));
	disk_rig_fini(&g);
}

static void any_memory(void **state)
{
	static const uint32_t sizes[] = { 1, 511, 512, 528 * 64, 4096, 4097 };
	struct rig_req *q;
	unsigned int pieces, skew, i;

	(void)state;
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		disk_rig_init(&g, i);
		g.page_bytes = sizes[i];
		g.o.staging = 1;
		disk_rig_open(&g);
		for (pieces = 1; pieces <= RIG_PIECES; pieces++) {
			skew = pieces % 3 * 4;
			q = disk_rig_req(&g, pieces, pieces, skew);
			assert_int_equal(kvs_disk_store_put(g.store, &q->r), 0);
			assert_true(disk_rig_run(&g, q, 1000));
			assert_int_equal(q->result, 0);
			g.loc[pieces] = q->r.loc;
			memset(q->mem, 0xee, sizes[i] + skew);
			q->over = false;
			assert_int_equal(kvs_disk_store_get(g.store, &q->r), 0);
			assert_true(disk_rig_run(&g, q, 1000));
			assert_int_equal(q->result, 0);
			assert_int_equal(disk_rig_wrong(q->mem + skew, sizes[i],
							pieces),
					 0);
			disk_rig_req_free(q);
		}
		disk_rig_fini(&g);
	}
}

static void what_is_refused(void **state)
{
	struct rig_req *q;

	(void)state;
	disk_rig_init(&g, 1);
	g.o.write_behind = 4 * RIG_PAGE;
	disk_rig_open(&g);
	assert_int_equal(disk_rig_put(&g, 1), 0);
	q = disk_rig_req(&g, 1, 1, 0);
	q->r.len--;
	assert_int_equal(kvs_disk_store_put(g.store, &q->r), -EINVAL);
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -EINVAL);
	q->r.len = 0;
	q->r.niov = 0;
	assert_int_equal(kvs_disk_store_put(g.store, &q->r), -EINVAL);
	disk_rig_req_free(q);
	/* another key, slot or segment is no page */
	q = disk_rig_req(&g, 1, 1, 0);
	q->r.key.b[3] ^= 1;
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -ENOENT);
	q->r.key.b[3] ^= 1;
	q->r.loc++;
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -ENOENT);
	q->r.loc = UINT64_MAX;
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -ENOENT);
	q->r.loc = 0;
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -ENOENT);
	disk_rig_req_free(q);
	assert_int_equal(kvs_disk_store_drop(g.store, g.loc[1]), 0);
	assert_int_equal(kvs_disk_store_drop(g.store, g.loc[1]), -ENOENT);
	assert_int_equal(disk_rig_get(&g, 1), -ENOENT);
	disk_rig_fini(&g);
}

static void queue_is_bounded(void **state)
{
	struct rig_req *q[6];
	unsigned int i;

	(void)state;
	disk_rig_init(&g, 1);
	g.o.write_behind = 4 * RIG_PAGE;
	disk_rig_open(&g);
	kvs_disk_hold(g.disk, true);
	for (i = 0; i < 6; i++) {
		q[i] = disk_rig_req(&g, i, 1, 0);
		assert_int_equal(kvs_disk_store_put(g.store, &q[i]->r),
				 i < 4 ? 0 : -EAGAIN);
	}
	assert_int_equal(disk_rig_stats(&g).queued, 4 * RIG_PAGE);
	assert_int_equal(disk_rig_stats(&g).put_refused, 2);
	assert_false(disk_rig_run(&g, q[0], 10));
	kvs_disk_hold(g.disk, false);
	assert_true(disk_rig_run(&g, q[3], 100));
	disk_rig_quiet(&g);
	assert_int_equal(disk_rig_stats(&g).queued, 0);
	assert_int_equal(kvs_disk_store_put(g.store, &q[4]->r), 0);
	/* closing: what has not begun ends at once, the rest when it ends */
	assert_int_equal(kvs_disk_store_close(g.store), 0);
	g.store = NULL;
	assert_int_equal(q[4]->result, -ECANCELED);
	kvs_disk_destroy(g.disk);
	for (i = 0; i < 6; i++)
		disk_rig_req_free(q[i]);
	fake_fini(&g.f);
}

static void oldest_makes_room(void **state)
{
	struct rig_req *q;
	uint32_t n, there;

	(void)state;
	disk_rig_init(&g, 1);
	g.o.limit = 3 * (256 << 10);
	disk_rig_open(&g);
	for (n = 0; n < 90; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(g.gone[KVS_GONE_RECLAIMED], 0);
	/* somebody reads the oldest while it goes */
	q = disk_rig_req(&g, 5, 1, 0);
	memset(q->mem, 0, RIG_PAGE);
	kvs_disk_hold(g.disk, true);
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), 0);
	kvs_disk_store_turn(g.store);
	assert_int_equal(kvs_disk_store_reclaim(g.store), 0);
	assert_int_equal(g.gone[KVS_GONE_RECLAIMED], 31);
	assert_int_equal(g.loc[5], 0);
	assert_false(q->over);
	kvs_disk_hold(g.disk, false);
	assert_true(disk_rig_run(&g, q, 100));
	assert_int_equal(q->result, 0);
	assert_int_equal(disk_rig_wrong(q->mem, RIG_PAGE, 5), 0);
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -ENOENT);
	disk_rig_req_free(q);
	for (n = 90; n < 1000; n++) {
		assert_int_equal(disk_rig_put(&g, n), 0);
		assert_true(disk_rig_stats(&g).used <= g.o.limit);
		assert_true(g.f.used <= g.o.limit + 4096);
	}
	for (n = 0, there = 0; n < 1000; n++) {
		if (!g.loc[n])
			continue;
		there++;
		assert_int_equal(disk_rig_get(&g, n), 0);
	}
	assert_int_equal(there, disk_rig_stats(&g).pages);
	assert_true(there >= 62);
	assert_int_equal(there + g.gone[KVS_GONE_RECLAIMED], 1000);
	disk_rig_fini(&g);
}

/* One whose pages were all dropped goes before older ones. */
static void dead_segments_first(void **state)
{
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	disk_rig_open(&g);
	for (n = 0; n < 3 * 31; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(disk_rig_stats(&g).segments, 3);
	for (n = 31; n < 62; n++)
		assert_int_equal(kvs_disk_store_drop(g.store, g.loc[n]), 0);
	assert_int_equal(disk_rig_stats(&g).segments, 2);
	assert_int_equal(fake_count(&g.f, "seg-"), 2);
	assert_int_equal(g.gone[KVS_GONE_RECLAIMED], 0);
	for (n = 0; n < 31; n++)
		assert_int_equal(disk_rig_get(&g, n), 0);
	disk_rig_fini(&g);
}

/* Whoever hears that a page is gone may drop it, and its neighbours. */
static unsigned int heard;

static void drop_more(void *arg, const struct kvs_key *key, kvs_disk_loc loc,
		      enum kvs_gone_reason reason)
{
	(void)arg;
	(void)key;
	assert_int_equal(reason, KVS_GONE_RECLAIMED);
	heard++;
	assert_int_equal(kvs_disk_store_drop(g.store, loc), -ENOENT);
	for (loc++; !kvs_disk_store_drop(g.store, loc); loc++)
		continue;
}

static void dropped_while_reclaimed(void **state)
{
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	g.o.gone = drop_more;
	disk_rig_open(&g);
	heard = 0;
	for (n = 0; n < 40; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(kvs_disk_store_reclaim(g.store), 0);
	assert_int_equal(heard, 1);
	assert_int_equal(disk_rig_stats(&g).pages, 9);
	assert_int_equal(disk_rig_stats(&g).segments, 1);
	assert_int_equal(disk_rig_get(&g, 35), 0);
	disk_rig_fini(&g);
}

static void layouts_do_not_meet(void **state)
{
	struct rig_req *q;
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	disk_rig_open(&g);
	for (n = 0; n < 40; n++) {
		q = disk_rig_req(&g, n, 1, 0);
		q->r.layout.b[0] = (uint8_t)(n % 20);
		assert_int_equal(kvs_disk_store_put(g.store, &q->r), 0);
		assert_true(disk_rig_run(&g, q, 100));
		assert_int_equal(q->result, 0);
		g.loc[n] = q->r.loc;
		disk_rig_req_free(q);
	}
	for (n = 0; n < 40; n++) {
		assert_int_equal(disk_rig_get(&g, n), 0);
		assert_true(g.loc[n] >> 24 != g.loc[(n + 1) % 40] >> 24);
	}
	disk_rig_close(&g);
	disk_rig_open(&g);
	assert_int_equal(g.found, 40);
	disk_rig_fini(&g);
}

static void one_writes_others_read(void **state)
{
	struct kvs_disk_store_opts o;
	static struct disk_rig r;
	char err[256];
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	disk_rig_open(&g);
	for (n = 0; n < 40; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	o = g.o;
	assert_int_equal(kvs_disk_store_open(&o, &r.store, err, sizeof(err)),
			 -EBUSY);
	assert_non_null(strstr(err, "another process"));
	/* a reader of the same files, with an engine of its own */
	disk_rig_init(&r, 2);
	r.io.fs = &g.f.fs;
	r.o.read_only = true;
	disk_rig_open(&r);
	assert_int_equal(r.found, 40);
	for (n = 0; n < 40; n++)
		assert_int_equal(disk_rig_get(&r, n), 0);
	assert_int_equal(disk_rig_put(&r, 50), -EROFS);
	assert_int_equal(kvs_disk_store_drop(r.store, r.loc[3]), -EROFS);
	assert_int_equal(kvs_disk_store_reclaim(r.store), -EROFS);
	for (n = 40; n < 70; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(r.loc[45], 0);
	assert_int_equal(kvs_disk_store_refresh(r.store), 0);
	assert_int_equal(r.found, 70);
	for (n = 0; n < 70; n++)
		assert_int_equal(disk_rig_get(&r, n), 0);
	assert_int_equal(kvs_disk_store_reclaim(g.store), 0);
	assert_int_equal(kvs_disk_store_refresh(r.store), 0);
	assert_int_equal(r.gone[KVS_GONE_VANISHED], 31);
	assert_int_equal(disk_rig_get(&r, 3), -ENOENT);
	assert_int_equal(disk_rig_get(&r, 60), 0);
	assert_int_equal(kvs_disk_store_refresh(g.store), -EINVAL);
	disk_rig_fini(&r);
	disk_rig_fini(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_get_restart),
		cmocka_unit_test(rate_of_a_start),
		cmocka_unit_test(any_memory),
		cmocka_unit_test(what_is_refused),
		cmocka_unit_test(queue_is_bounded),
		cmocka_unit_test(oldest_makes_room),
		cmocka_unit_test(dead_segments_first),
		cmocka_unit_test(dropped_while_reclaimed),
		cmocka_unit_test(layouts_do_not_meet),
		cmocka_unit_test(one_writes_others_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
