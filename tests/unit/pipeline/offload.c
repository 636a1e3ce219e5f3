/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a worker whose engine offloads what it decoded: its blocks are
 * found when the copy off the device was said to be over and each has been
 * summed up where it is kept, never before, and what a room takes of them then
 * is what came; first blocks that are cached need not be copied, others are not
 * kept twice; without memory, in the offload pool beside the reserve or in the
 * receive pool, it is told and counted, and nothing is taken; every end, in
 * every state, holds what the copy may touch until its end or the proven death
 * of the engine, and nothing of it is found; the books hold throughout. Virtual
 * clock, no threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <string.h>

static struct rig g;

#define PAGE (4 * 1024u)
#define S KVS_NSEC_PER_SEC

static struct kvs_retraction *of(uint64_t gen)
{
	return kvs_u64map_get(&g.w->retracts.map, gen);
}

static void turns(void)
{
	do {
		kvs_worker_turn(g.w);
		kvs_pool_check(g.pool);
		kvs_pool_check(g.offload);
		if (g.w->cache.ix)
			kvs_index_check(g.w->cache.ix);
	} while (kvs_worker_next(g.w) == 0);
}

/* @offload and @reserve in pages, of its pool. */
static void up(unsigned int pages, unsigned int offload, unsigned int reserve)
{
	rig_up_offload(&g, pages, offload);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE), "m", 0);
	g.set.reserve_retraction = (uint64_t)reserve * PAGE;
	kvs_retracts_engines(g.w);
}

static void down(void)
{
	turns();
	assert_int_equal(g.w->retracts.kept_bytes, 0);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE),
			 kvs_pool_size(g.offload));
	kvs_cache_flush(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), kvs_pool_size(g.pool));
	rig_down(&g);
}

static uint64_t count(enum kvs_offload_result r)
{
	return g.w->stats.offloads[r];
}

/* What the engine's copy does: each run of each page is filled with a number
 * of its own, from @first on. */
static void copy_out(uint64_t gen, unsigned int first)
{
	const struct kvs_retraction *t = of(gen);
	uint64_t off, len;

	for (uint32_t e = 0; e < t->ext.n; e++) {
		uint32_t n = kvs_geometry_pages(&t->geo, e);

		for (uint32_t b = 0; b < g.layout.n_buffers; b++) {
			assert_int_equal(
				kvs_geometry_run(&t->geo, e, b, &off, &len), 0);
			for (uint32_t p = 0; p < n; p++)
				memset((char *)kvs_extent_addr(&t->ext, e) +
					       off + p * len / n,
				       (int)(first + e * t->geo.extent_pages +
					     p + 50 * b),
				       len / n);
		}
	}
}

/* @blocks of a prompt were cached when it was asked for. */
static uint32_t told(uint32_t slot)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    g.log[i].cached)
			return g.log[i].blocks;
	fail_msg("slot %u was not told what is cached", slot);
	return 0;
}

static uint64_t offload(uint32_t slot, unsigned int prompt, unsigned int pages)
{
	return rig_lookup(&g, KVS_LOOKUP_OFFLOAD, slot, prompt, pages);
}

/* All of it, until it is cached. */
static void keep(uint32_t slot, unsigned int prompt, unsigned int pages)
{
	uint64_t gen = offload(slot, prompt, pages);

	assert_int_equal(rig_status(&g, slot), KVS_STATUS_ADMITTED);
	copy_out(gen, told(slot));
	rig_packet(&g, KVS_PACKET_RETRACTED, slot, gen, 0);
	turns();
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_DONE);
}

/* A room of @prompt takes @n pages from the cache: each is what came. */
static void take(unsigned int prompt, unsigned int n)
{
	uint64_t gen = rig_admit_named(&g, 77, 9, n + 1, prompt, true);
	const struct rig_event *r = NULL;
	uint32_t page = 0;
	uint64_t off[4];

	assert_int_equal(told(9), n);
	rig_open(&g, 77, gen, 0);
	rig_send_all(&g, 77, gen, 0, 1, 1);
	turns();
	assert_int_equal(rig_status(&g, 9), KVS_STATUS_READY);
	for (unsigned int i = g.n; !r && i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].n_segs)
			r = &g.log[i];
	assert_non_null(r);
	for (uint32_t i = 0; i < r->n_segs; i++) {
		const struct kvs_packet_seg *s = &r->segs[i];

		(void)kvs_geometry_offsets(&g.layout, s->extent_pages, off);
		for (uint32_t p = 0; p < s->n_pages; p++, page++)
			for (uint32_t b = 0; b < 4; b++) {
				const unsigned char *at =
					g.base + s->off + off[b] +
					(s->first_page + p) * 1024ull;

				assert_int_equal(at[0], (page + 50 * b) & 0xff);
				assert_int_equal(memcmp(at, at + 1, 1023), 0);
			}
	}
	assert_int_equal(page, n);
	rig_packet(&g, KVS_PACKET_COMMIT, 9, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 9, gen, 0);
	turns();
}

static void test_kept(void **state)
{
	uint64_t gen;

	(void)state;
	up(128, 64, 0);
	gen = offload(3, 7, 40);
	assert_int_equal(told(3), 0);
	assert_int_equal(g.log[g.n - 1].n_extents, 3);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_GRANTED), 40 * PAGE);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 128 * PAGE);
	copy_out(gen, 0);
	rig_advance(&g, 86400 * S); /* no clock ends it */
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_cached(&g, 7, 40), 0);
	rig_packet(&g, KVS_PACKET_RETRACTED, 3, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_SEALING);
	/* places are there, and nothing is found of what is not summed up */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 40 * PAGE);
	assert_int_equal(rig_cached(&g, 7, 40), 0);
	turns();
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_DONE);
	assert_int_equal(rig_cached(&g, 7, 40), 40);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 40 * PAGE);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	assert_int_equal(g.w->cache.stats.offloaded_bytes, 40 * PAGE);
	assert_int_equal(count(KVS_OFFLOAD_RESULT_KEPT), 1);
	take(7, 40);
	down();
}

static void test_not_twice(void **state)
{
	uint64_t gen;

	(void)state;
	up(256, 64, 0);
	keep(1, 7, 20);
	/* the first 20 are here: only the others are copied */
	gen = offload(2, 7, 50);
	assert_int_equal(told(2), 20);
	assert_int_equal(g.log[g.n - 1].n_extents, 2);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_GRANTED), 30 * PAGE);
	/* another offload of the same, at the same time */
	keep(3, 7, 50);
	copy_out(gen, 20);
	rig_packet(&g, KVS_PACKET_RETRACTED, 2, gen, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 0);
	turns();
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_DONE);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 50 * PAGE);
	/* all of it: nothing is asked for */
	(void)offload(4, 7, 50);
	assert_int_equal(rig_status(&g, 4), KVS_STATUS_DONE);
	assert_int_equal(told(4), 50);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	assert_int_equal(count(KVS_OFFLOAD_RESULT_KEPT), 4);
	take(7, 50);
	down();
}

static void test_no_space(void **state)
{
	uint64_t gen, room;

	(void)state;
	/* the reserve is for those that must leave */
	up(64, 64, 40);
	(void)offload(1, 7, 25);
	assert_int_equal(rig_errno(&g, 1), ENOSPC);
	assert_non_null(
		strstr(g.log[g.n - 1].failed.text, "reserve.retraction"));
	gen = offload(1, 7, 14);
	(void)offload(2, 8, 14);
	assert_int_equal(rig_errno(&g, 2), ENOSPC);
	assert_int_equal(count(KVS_OFFLOAD_RESULT_NOSPACE), 2);
	room = rig_retract(&g, 3, 40);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_RETRACTED, 3, room, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 3, room, 0);
	/* and rooms have the receive pool */
	room = rig_admit(&g, 5, 5, 60, 1);
	rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen, 0);
	assert_int_equal(rig_errno(&g, 1), ENOSPC);
	assert_int_equal(count(KVS_OFFLOAD_RESULT_NOSPACE), 3);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 4 * PAGE);
	turns();
	/* those that wait for it, too */
	rig_packet(&g, KVS_PACKET_ABORT, 5, room, 0);
	turns();
	(void)rig_admit(&g, 6, 6, 40, 1);
	rig_open(&g, 6, g.generation, 0);
	room = g.generation;
	(void)rig_admit(&g, 8, 8, 60, 1);
	assert_int_equal(rig_status(&g, 8), KVS_STATUS_WAITING);
	gen = offload(1, 7, 14);
	rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen, 0);
	assert_int_equal(rig_errno(&g, 1), ENOSPC);
	rig_packet(&g, KVS_PACKET_ABORT, 8, room + 1, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 6, room, 0);
	turns();
	/* more than may be cached */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	down();
	/* nothing is cached of it, or nothing can leave */
	rig_up_offload(&g, 64, 64);
	(void)offload(1, 7, 1);
	assert_int_equal(rig_errno(&g, 1), EOPNOTSUPP);
	assert_int_equal(g.log[g.n - 1].failed.class, 400);
	assert_int_equal(count(KVS_OFFLOAD_RESULT_NOFIT), 1);
	rig_down(&g);
	rig_up(&g, 64);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE), "m", 0);
	(void)offload(1, 7, 1);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	kvs_worker_shutdown(g.w);
	(void)offload(1, 7, 1);
	assert_int_equal(rig_errno(&g, 1), ESHUTDOWN);
	rig_down(&g);
}

/* How it may end while it is under way. */
enum end { DROPPED, LOST, HELD, COPY_FAILED, SHUTDOWN, ENDS };

/* While it leaves, and while it goes on into the cache. */
static void test_every_end(void **state)
{
	(void)state;
	for (int leaving = 0; leaving < 2; leaving++) {
		for (int how = 0; how < ENDS; how++) {
			uint64_t touched = leaving ? 40 * PAGE : 0, gen;

			if (how == COPY_FAILED && !leaving)
				continue;
			up(128, 64, 0);
			gen = offload(1, 7, 40);
			copy_out(gen, 0);
			if (!leaving)
				rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen, 0);
			if (how == DROPPED)
				rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
			else if (how == COPY_FAILED)
				rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen,
					   EIO);
			else if (how == SHUTDOWN)
				kvs_worker_shutdown(g.w);
			else
				kvs_worker_engine_lost(g.w, RIG_ENGINE, false);
			if (how == COPY_FAILED)
				touched = 0;
			turns();
			if (how == DROPPED)
				assert_int_equal(rig_errno(&g, 1), ECANCELED);
			if (how == HELD)
				rig_advance(&g, g.set.hold_timeout);
			assert_int_equal(
				rig_offload_bytes(
					&g, how == HELD ? KVS_EXTENT_QUARANTINED
							: KVS_EXTENT_HELD),
				touched);
			assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE),
					 64 * PAGE - touched);
			assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE),
					 128 * PAGE);
			if (how == LOST || how == HELD)
				kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
			else
				rig_packet(&g, KVS_PACKET_COPY_OVER, 1, gen, 0);
			turns();
			if (how != LOST && how != HELD)
				assert_int_equal(rig_cached(&g, 7, 40), 0);
			assert_int_equal(
				count(how == DROPPED
					      ? KVS_OFFLOAD_RESULT_DROPPED
					      : KVS_OFFLOAD_RESULT_FAILED),
				1);
			down();
		}
	}
}

/* Some bytes a turn, the last extent first: what was whole by then stays when
 * the rest is given up. */
static void test_in_pieces(void **state)
{
	const uint64_t extent = 16 * 4 * 65536ull;
	struct kvs_lookup_request q = {
		.engine = 2,
		.slot = 1,
		.what = KVS_LOOKUP_OFFLOAD,
	};
	uint8_t h[48][16] = { { 0 } };
	uint64_t gen;

	(void)state;
	up(8192, 6144, 0);
	for (unsigned int b = 0; b < 4; b++)
		g.buffers[b].item_len = 65536;
	assert_int_equal(kvs_worker_engine_add(g.w, 2, &g.layout), 0);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, 2), "m", 0);
	for (unsigned int i = 0; i < 48; i++)
		h[i][0] = (uint8_t)i;
	q.generation = gen = ++g.generation;
	q.hashes = (const uint8_t(*)[16])h;
	q.n_hashes = 48;
	kvs_worker_lookup(g.w, &q);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	kvs_worker_packet(g.w, 2, KVS_PACKET_RETRACTED,
			  &(struct kvs_packet_room){ .generation = gen,
						     .slot = 1 });
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_SEALING);
	assert_int_equal(kvs_worker_next(g.w), 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 2 * extent);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), extent);
	kvs_worker_packet(g.w, 2, KVS_PACKET_ABORT,
			  &(struct kvs_packet_room){ .generation = gen,
						     .slot = 1 });
	turns();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 2 * extent);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 0);
	assert_int_equal(kvs_cache_find(g.w, kvs_worker_engine_find(g.w, 2),
					(const uint8_t(*)[16])h, 48, false),
			 0);
	assert_int_equal(kvs_cache_find(g.w, kvs_worker_engine_find(g.w, 2),
					(const uint8_t(*)[16])h + 16, 32,
					false),
			 32);
	down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kept),
		cmocka_unit_test(test_not_twice),
		cmocka_unit_test(test_no_space),
		cmocka_unit_test(test_every_end),
		cmocka_unit_test(test_in_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
