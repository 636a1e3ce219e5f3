/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a worker whose engine pins what is cached and recalls it without a
 * room: a pin is READY when every block of it is what was kept, with the places
 * of all; it keeps them from whoever wants memory until it is recalled, given
 * up, or its time is over, and no longer; no more is pinned than cache.pin_share
 * lets be; what changed in memory ends it and is forgotten; every end, in every
 * state, keeps what a copy may read until that copy's end or the proven death of
 * the engine; the books hold throughout. Virtual clock, no threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <string.h>

static struct rig g;

#define PAGE (4 * 1024u)
#define PAGES 20u /* that are cached: two extents of 64 KiB, and of 16 KiB */
#define SLOT 2u
#define PROMPT 7u

static void turns(void)
{
	do {
		kvs_worker_turn(g.w);
		kvs_pool_check(g.pool);
		kvs_index_check(g.w->cache.ix);
	} while (kvs_worker_next(g.w) == 0);
}

/* A pool of @pages with PAGES of them cached. */
static void up(unsigned int pages)
{
	uint64_t gen;

	rig_up(&g, pages);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE), "m", 0);
	gen = rig_admit_named(&g, 1, 1, PAGES, PROMPT, false);
	rig_open(&g, 1, gen, 0);
	rig_send_all(&g, 1, gen, 0, 1, PAGES);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, 0);
	turns();
	assert_int_equal(rig_cached(&g, PROMPT, PAGES), PAGES);
}

static void down(void)
{
	turns();
	kvs_cache_flush(g.w);
	rig_down(&g);
}

static uint64_t pin(uint32_t slot, unsigned int pages)
{
	return rig_lookup(&g, KVS_LOOKUP_PIN, slot, PROMPT, pages);
}

static uint64_t count(enum kvs_recall_result r)
{
	return g.w->stats.recalls[r];
}

static uint64_t pinned(void)
{
	struct kvs_cache_stats s;

	kvs_cache_stats(g.w, &s);
	return s.pinned_bytes;
}

static uint32_t told(uint32_t slot)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    g.log[i].cached)
			return g.log[i].blocks;
	fail_msg("slot %u was not told what is cached", slot);
	return 0;
}

static void test_recalled(void **state)
{
	struct kvs_room_info v[2];
	uint64_t gen;

	(void)state;
	up(64);
	/* as many as there are, of those that are asked for */
	gen = pin(SLOT, PAGES + 9);
	assert_int_equal(rig_status(&g, SLOT), KVS_STATUS_SEALING);
	assert_int_equal(told(SLOT), PAGES);
	turns();
	assert_int_equal(rig_status(&g, SLOT), KVS_STATUS_READY);
	assert_int_equal(g.log[g.n - 1].n_extents, 0);
	assert_int_equal(g.log[g.n - 1].n_segs, 2);
	assert_int_equal(g.log[g.n - 1].segs[0].n_pages, 16);
	assert_int_equal(g.log[g.n - 1].segs[1].n_pages, PAGES - 16);
	assert_int_equal(pinned(), PAGES * PAGE);
	assert_int_equal(kvs_worker_rooms(g.w, v, 2), 1);
	assert_string_equal(v[0].state, "pinned");
	assert_int_equal(v[0].tokens, PAGES * 4);
	assert_int_equal(v[0].bytes, 0);
	rig_packet(&g, KVS_PACKET_COMMIT, SLOT, gen, 0);
	assert_int_equal(rig_status(&g, SLOT), KVS_STATUS_COMMITTING);
	/* its time is over, but its copy runs */
	rig_advance(&g, 2 * g.set.cache_pin_timeout);
	assert_int_equal(rig_status(&g, SLOT), KVS_STATUS_COMMITTING);
	assert_int_equal(pinned(), PAGES * PAGE);
	rig_packet(&g, KVS_PACKET_COMMITTED, SLOT, gen, 0);
	assert_int_equal(rig_status(&g, SLOT), KVS_STATUS_DONE);
	turns();
	assert_int_equal(pinned(), 0);
	assert_int_equal(rig_cached(&g, PROMPT, PAGES), PAGES);
	assert_int_equal(count(KVS_RECALL_RESULT_PINNED), 1);
	assert_int_equal(count(KVS_RECALL_RESULT_RECALLED), 1);
	assert_int_equal(g.w->cache.stats.recalled_bytes, PAGES * PAGE);
	down();
}

/* What is pinned stays, and what is not goes; then it is over. */
static void test_time_is_over(void **state)
{
	uint64_t room;

	(void)state;
	up(64);
	(void)pin(SLOT, PAGES);
	(void)pin(3, 16); /* the first extent, twice */
	turns();
	assert_int_equal(pinned(), PAGES * PAGE);
	room = rig_admit(&g, 5, 5, 50, 1);
	rig_open(&g, 5, room, 0);
	turns();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_WAITING);
	rig_packet(&g, KVS_PACKET_ABORT, 3, g.generation - 1, 0);
	turns();
	assert_int_equal(rig_errno(&g, 3), ECANCELED);
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_WAITING);
	g.set.admission_timeout = 10 * g.set.cache_pin_timeout;
	rig_packet(&g, KVS_PACKET_ABORT, 5, room, 0);
	room = rig_admit(&g, 6, 6, 50, 1);
	rig_open(&g, 6, room, 0);
	turns();
	assert_int_equal(rig_status(&g, 6), KVS_STATUS_WAITING);
	rig_advance(&g, g.set.cache_pin_timeout);
	turns();
	assert_int_equal(rig_errno(&g, SLOT), ETIME);
	assert_int_equal(count(KVS_RECALL_RESULT_EXPIRED), 1);
	assert_int_equal(count(KVS_RECALL_RESULT_UNPINNED), 1);
	/* the room has it */
	assert_true(rig_status(&g, 6) >= KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 6, room, 0);
	down();
}

static void test_refused(void **state)
{
	(void)state;
	up(64);
	g.set.cache_pin_share = 20; /* of 64 pages: 12 */
	(void)pin(SLOT, PAGES);
	assert_int_equal(rig_errno(&g, SLOT), ENOSPC);
	assert_int_equal(pinned(), 0);
	g.set.cache_pin_share = 0;
	(void)pin(SLOT, 1);
	assert_int_equal(rig_errno(&g, SLOT), ENOSPC);
	assert_int_equal(count(KVS_RECALL_RESULT_NOSPACE), 2);
	g.set.cache_pin_share = 50;
	(void)rig_lookup(&g, KVS_LOOKUP_PIN, SLOT, PROMPT + 1, PAGES);
	assert_int_equal(rig_errno(&g, SLOT), ENOENT);
	assert_int_equal(count(KVS_RECALL_RESULT_NOTHING), 1);
	kvs_worker_shutdown(g.w);
	(void)pin(SLOT, PAGES);
	assert_int_equal(rig_errno(&g, SLOT), ESHUTDOWN);
	down();
	rig_up(&g, 64);
	(void)pin(SLOT, PAGES);
	assert_int_equal(rig_errno(&g, SLOT), EOPNOTSUPP);
	assert_int_equal(g.log[g.n - 1].failed.class, 400);
	rig_down(&g);
}

/* What changed since it was kept is not handed out, and not again. */
static void test_checksum(void **state)
{
	struct kvs_cached *c;

	(void)state;
	up(64);
	c = kvs_list_first(&g.w->cache.units, struct kvs_cached, node);
	((unsigned char *)kvs_extent_addr(&c->ext, 0))[5000] ^= 8;
	(void)pin(SLOT, PAGES);
	turns();
	assert_int_equal(rig_errno(&g, SLOT), EBADMSG);
	assert_int_equal(count(KVS_RECALL_RESULT_CHECKSUM), 1);
	assert_int_equal(pinned(), 0);
	assert_true(rig_cached(&g, PROMPT, PAGES) < PAGES);
	down();
}

enum far { VERIFYING, PINNED, COPYING, FARS };
enum end { DROPPED, LOST, HELD, SHUTDOWN, ENDS };

static void test_every_end(void **state)
{
	(void)state;
	for (int far = 0; far < FARS; far++) {
		for (int how = 0; how < ENDS; how++) {
			uint64_t gen;

			up(64);
			gen = pin(SLOT, PAGES);
			if (far > VERIFYING)
				turns();
			if (far == COPYING)
				rig_packet(&g, KVS_PACKET_COMMIT, SLOT, gen, 0);
			if (how == DROPPED)
				rig_packet(&g, KVS_PACKET_ABORT, SLOT, gen, 0);
			else if (how == SHUTDOWN)
				kvs_worker_shutdown(g.w);
			else
				kvs_worker_engine_lost(g.w, RIG_ENGINE, false);
			turns();
			if (how == DROPPED)
				assert_int_equal(rig_errno(&g, SLOT),
						 ECANCELED);
			if (how == HELD)
				rig_advance(&g, g.set.hold_timeout);
			/* one that is READY may be recalled to the end */
			assert_int_equal(pinned(),
					 far == COPYING || (how == SHUTDOWN &&
							    far == PINNED)
						 ? PAGES * PAGE
						 : 0);
			kvs_cache_flush(g.w);
			assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED),
					 pinned());
			if (how == LOST || how == HELD)
				kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
			else if (how == DROPPED)
				rig_packet(&g, KVS_PACKET_COPY_OVER, SLOT, gen,
					   0);
			else if (far == COPYING)
				rig_packet(&g, KVS_PACKET_COMMITTED, SLOT, gen,
					   0);
			else
				rig_packet(&g, KVS_PACKET_ABORT, SLOT, gen, 0);
			turns();
			assert_int_equal(pinned(), 0);
			down();
		}
	}
}

/* Packets that make no sense now are counted and change nothing. */
static void test_nonsense(void **state)
{
	static const enum kvs_packet_type types[] = {
		KVS_PACKET_RETRACTED,
		KVS_PACKET_COMMIT,
		KVS_PACKET_COMMITTED,
		KVS_PACKET_COPY_OVER,
	};
	static const unsigned int fine[FARS] = { 0, 2, 4 };

	(void)state;
	for (int far = 0; far < FARS; far++) {
		for (unsigned int i = 0; i < KVS_ARRAY_SIZE(types); i++) {
			enum kvs_status st;
			uint64_t gen;

			if (fine[far] >> i & 1)
				continue;
			up(64);
			gen = pin(SLOT, PAGES);
			if (far > VERIFYING)
				turns();
			if (far == COPYING)
				rig_packet(&g, KVS_PACKET_COMMIT, SLOT, gen, 0);
			st = rig_status(&g, SLOT);
			rig_packet(&g, types[i], SLOT, gen, 0);
			assert_int_equal(
				g.w->stats.protocol_errors[KVS_PROTO_ENGINE],
				1);
			assert_int_equal(rig_status(&g, SLOT), st);
			rig_packet(&g, KVS_PACKET_ABORT, SLOT, gen, 0);
			rig_packet(&g, KVS_PACKET_COPY_OVER, SLOT, gen, 0);
			down();
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_recalled),
		cmocka_unit_test(test_time_is_over),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_every_end),
		cmocka_unit_test(test_nonsense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
