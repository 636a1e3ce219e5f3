/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a worker whose engine names its prompts: a room that is DONE
 * leaves its whole blocks in place, without a copy, and nothing else does (not
 * one that failed, is held, or has no names); what is there already is not kept
 * twice; a block is found when it has been summed up, by the same engine, space
 * and layout only; a room takes what is cached of it, receives the rest, and is
 * READY when both are whole; what changed in memory ends the room and is
 * forgotten (never handed over); what a copy reads stays until the copy's end
 * (sgl-project/sglang#26728); what is cached goes before a room waits, and a
 * room that waits takes nothing; the books hold throughout. Virtual clock, no
 * threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <string.h>

#include "lib/log.h"

static struct rig g;

#define PAGE (4 * 1024u)
#define TOKENS 4u /* of a page */
#define SEED_MAX 64u

static void turns(void)
{
	do {
		kvs_worker_turn(g.w);
		kvs_pool_check(g.pool);
		if (g.w->cache.ix)
			kvs_index_check(g.w->cache.ix);
	} while (kvs_worker_next(g.w) == 0);
}

static struct kvs_worker_engine *engine(void)
{
	return kvs_worker_engine_find(g.w, RIG_ENGINE);
}

static void up(unsigned int pages)
{
	rig_up(&g, pages);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, engine(), "model 1 rank 0", 0);
}

static void down(void)
{
	turns();
	kvs_cache_flush(g.w);
	rig_down(&g);
}

/* The prompt @seed: blocks of one page each; prompts of one seed share all. */
static void names(uint8_t (*h)[16], unsigned int seed, unsigned int first,
		  unsigned int n)
{
	memset(h, 0, n * sizeof(*h));
	for (unsigned int i = 0; i < n; i++) {
		h[i][0] = (uint8_t)seed;
		h[i][1] = (uint8_t)(first + i);
		h[i][2] = (uint8_t)((first + i) >> 8);
	}
}

static uint64_t admit(uint64_t room, uint32_t slot, uint64_t tokens,
		      uint8_t (*h)[16], uint32_t n, bool use)
{
	static const struct kvs_rank_slice all = { 0, 2 };
	struct kvs_room_request q = {
		.room = room,
		.generation = ++g.generation,
		.engine = RIG_ENGINE,
		.slot = slot,
		.peer = "p",
		.tokens = tokens,
		.n_ranks = 1,
		.ranks = &all,
		.n_hashes = n,
		.hashes = (const uint8_t(*)[16])h,
		.use_cache = use,
	};

	kvs_worker_admit(g.w, &q);
	return q.generation;
}

static const struct rig_event *last_cached(uint32_t slot)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    g.log[i].cached)
			return &g.log[i];
	return NULL;
}

static const struct rig_event *last_ready(uint32_t slot)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    g.log[i].n_extents)
			return &g.log[i];
	return NULL;
}

static void receive(uint64_t room, uint64_t gen, unsigned int pages)
{
	rig_open(&g, room, gen, 0);
	rig_send_all(&g, room, gen, 0, 1, pages);
}

static void finish(uint32_t slot, uint64_t gen)
{
	rig_packet(&g, KVS_PACKET_COMMIT, slot, gen, 0);
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_COMMITTING);
	rig_packet(&g, KVS_PACKET_COMMITTED, slot, gen, 0);
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_DONE);
}

/* A prompt of @seed, received whole and left here. */
static void leave(unsigned int seed, unsigned int pages)
{
	uint8_t h[256][16];
	uint64_t gen;

	names(h, seed, 0, pages);
	gen = admit(1000 + seed, seed, pages * TOKENS, h, pages, false);
	receive(1000 + seed, gen, pages);
	assert_int_equal(rig_status(&g, seed), KVS_STATUS_READY);
	finish(seed, gen);
	turns();
}

static uint32_t found(unsigned int seed, unsigned int n)
{
	uint8_t h[256][16];

	names(h, seed, 0, n);
	return kvs_cache_find(g.w, engine(), (const uint8_t(*)[16])h, n, false);
}

static void test_left_in_place(void **state)
{
	struct kvs_cache_stats s;
	uint8_t h[64][16];
	uint64_t gen;

	(void)state;
	up(128);
	names(h, 1, 0, 40);
	/* 39 whole pages and a part */
	gen = admit(7, 1, 40 * TOKENS - 1, h, 39, false);
	assert_null(last_cached(1)); /* it did not ask */
	receive(7, gen, 40);
	finish(1, gen);
	/* all three extents stay, whole, and are no room's any more */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 40 * PAGE);
	assert_int_equal(found(1, 39), 0); /* not summed up yet */
	turns();
	assert_int_equal(g.w->rooms.n, 0);
	assert_int_equal(found(1, 39), 39);
	assert_int_equal(found(1, 20), 20);
	assert_int_equal(found(2, 39), 0);
	kvs_cache_stats(g.w, &s);
	assert_int_equal(s.donated_bytes, 40 * PAGE);
	assert_int_equal(s.blocks, 39);
	/* once more: it is there already, and the memory is free */
	gen = admit(8, 1, 40 * TOKENS, h, 40, false);
	receive(8, gen, 40);
	finish(1, gen);
	turns();
	/* but for the block that is new, in the extent it came in */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 48 * PAGE);
	kvs_cache_stats(g.w, &s);
	assert_int_equal(s.duplicates, 32 + 7);
	assert_int_equal(found(1, 40), 40);
	down();
}

/* R10: whatever ended otherwise leaves nothing. */
static void test_only_done_rooms(void **state)
{
	struct kvs_receive rx;
	uint8_t h[64][16];
	uint64_t gen;
	void *addr;

	(void)state;
	up(128);
	g.set.hold_require_ack = true;
	names(h, 1, 0, 40);
	/* complete, and given up */
	gen = admit(7, 1, 40 * TOKENS, h, 40, false);
	receive(7, gen, 40);
	rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
	turns();
	assert_int_equal(found(1, 40), 0);
	/* its copy failed */
	gen = admit(8, 1, 40 * TOKENS, h, 40, false);
	receive(8, gen, 40);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, EIO);
	turns();
	assert_int_equal(found(1, 40), 0);
	/* given up in the middle, and held */
	gen = admit(9, 1, 40 * TOKENS, h, 40, false);
	rig_open(&g, 9, gen, 0);
	assert_int_equal(rig_begin(&g, &rx, 9, gen, 0, 0, 1, 0, 4, &addr), 0);
	rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
	turns();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 40 * PAGE);
	kvs_worker_receive_end(g.w, &rx, -ECANCELED, 0);
	rig_advance(&g, g.set.hold_timeout);
	turns();
	assert_int_equal(found(1, 40), 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 128 * PAGE);
	g.set.hold_require_ack = false;
	/* a room without names, and one of an engine that keeps nothing */
	gen = admit(10, 1, 40 * TOKENS, NULL, 0, false);
	receive(10, gen, 40);
	finish(1, gen);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 128 * PAGE);
	engine()->cache.on = false;
	leave(1, 40);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 128 * PAGE);
	down();
}

static void test_prefix(void **state)
{
	const struct rig_event *e;
	struct kvs_room *r;
	uint8_t h[64][16];
	uint64_t gen;

	(void)state;
	up(128);
	leave(1, 40);
	/* the next turn: 33 pages are the same, 7 differ, 10 follow */
	names(h, 1, 0, 33);
	names(h + 33, 2, 33, 17);
	gen = admit(7, 5, 50 * TOKENS, h, 50, true);
	e = last_cached(5);
	assert_non_null(e);
	assert_int_equal(e->blocks, 33);
	r = kvs_u64map_get(&g.w->rooms, gen);
	assert_int_equal(r->geo.tokens, 17 * TOKENS);
	assert_int_equal(r->ext.bytes, 17 * PAGE);
	/* all is received, but what is cached has not been looked at yet */
	receive(7, gen, 17);
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_SEALING);
	turns();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_READY);
	e = last_ready(5);
	assert_int_equal(e->n_extents, 2);
	assert_int_equal(e->n_segs, 3); /* two whole extents and a page */
	assert_int_equal(e->segs[0].n_pages, 16);
	assert_int_equal(e->segs[1].n_pages, 16);
	assert_int_equal(e->segs[2].n_pages, 1);
	assert_int_equal(e->segs[2].extent_pages, 8);
	/* K of layer 0 of page 16 is what was received for it */
	assert_int_equal(g.base[e->segs[1].off], 16);
	finish(5, gen);
	turns();
	assert_int_equal(found(1, 40), 40);
	names(h, 1, 0, 33);
	names(h + 33, 2, 33, 17);
	assert_int_equal(kvs_cache_find(g.w, engine(), (const uint8_t(*)[16])h,
					50, false),
			 50);
	/* one token at least is received */
	gen = admit(8, 6, 50 * TOKENS, h, 50, true);
	assert_int_equal(last_cached(6)->blocks, 49);
	receive(8, gen, 1);
	turns();
	finish(6, gen);
	turns();
	/* and it was there already */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 57 * PAGE);
	/* forgotten by name, those behind it as well */
	assert_int_equal(kvs_cache_find(g.w, engine(), (const uint8_t(*)[16])h,
					50, true),
			 50);
	assert_int_equal(found(1, 40), 0);
	down();
}

/* Another space, another layout, other blocks: nothing is found. */
static void test_spaces(void **state)
{
	struct kvs_worker_engine *o;
	uint8_t h[64][16];

	(void)state;
	up(128);
	leave(1, 40);
	names(h, 1, 0, 40);
	for (int i = 0; i < 5; i++) {
		uint32_t n = 0;

		g.buffers[3].item_len = i == 1 ? 512 : 1024;
		g.layout.dtype = i == 2 ? KVS_DTYPE_F16 : KVS_DTYPE_BF16;
		assert_int_equal(kvs_worker_engine_add(g.w, 50 + (uint32_t)i,
						       &g.layout),
				 0);
		o = kvs_worker_engine_find(g.w, 50 + (uint32_t)i);
		kvs_cache_engine(g.w, o,
				 i == 0 ? "model 1 rank 1" : "model 1 rank 0",
				 i == 3 ? 8 : 0);
		n = kvs_cache_find(g.w, o, (const uint8_t(*)[16])h, 40, false);
		/* the last is the same engine, come again */
		assert_int_equal(n, i == 4 ? 40 : 0);
	}
	/* what cannot be kept is said, and is not */
	kvs_log_set_level(KVS_LOG_ERR);
	o->cache.on = false;
	kvs_cache_engine(g.w, o, "x", 6);
	assert_false(o->cache.on);
	kvs_cache_engine(g.w, o, "x", 60);
	assert_false(o->cache.on);
	kvs_cache_engine(g.w, o, "x", 32);
	assert_true(o->cache.on);
	for (uint32_t i = 0; i < 5; i++)
		kvs_worker_engine_lost(g.w, 50 + i, true);
	down();
}

/* What is not what was kept is never handed over, and is forgotten. */
static void test_changed(void **state)
{
	const struct kvs_cached *c;
	uint8_t h[64][16];
	uint64_t gen;

	(void)state;
	up(128);
	kvs_log_set_level(KVS_LOG_ERR);
	leave(1, 40);
	names(h, 1, 0, 50);
	/* the unit of the pages 16 to 31 */
	kvs_list_for_each_entry(c, &g.w->cache.units, node)
		if (((unsigned char *)kvs_extent_addr(&c->ext, 0))[0] == 16)
			break;
	((unsigned char *)kvs_extent_addr(&c->ext, 0))[5 * 1024 + 77] ^= 4;
	gen = admit(7, 5, 50 * TOKENS, h, 50, true);
	assert_int_equal(last_cached(5)->blocks, 40);
	receive(7, gen, 10);
	turns();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 5), EBADMSG);
	assert_int_equal(g.w->cache.stats.bad, 1);
	/* the others of that extent are not trusted either */
	assert_int_equal(found(1, 40), 16);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 24 * PAGE);
	gen = admit(8, 5, 50 * TOKENS, h, 50, true);
	assert_int_equal(last_cached(5)->blocks, 16);
	receive(8, gen, 34);
	turns();
	finish(5, gen);
	down();
}

/* What is cached never makes anybody wait. */
static void test_goes_first(void **state)
{
	uint8_t h[64][16];
	uint64_t gen, b;

	(void)state;
	up(128);
	for (unsigned int i = 1; i <= 3; i++)
		leave(i, 32);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 96 * PAGE);
	(void)admit(7, 10, 60 * TOKENS, NULL, 0, false);
	assert_int_equal(rig_status(&g, 10), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 64 * PAGE);
	/* also of what has just come and is not summed up */
	gen = admit(8, 11, 68 * TOKENS, NULL, 0, false);
	assert_int_equal(rig_status(&g, 11), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 0);
	names(h, 1, 0, 32);
	/* who has to wait takes nothing, and is received whole */
	b = admit(9, 12, 32 * TOKENS, h, 32, true);
	assert_int_equal(rig_status(&g, 12), KVS_STATUS_WAITING);
	assert_int_equal(last_cached(12)->blocks, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 11, gen, 0);
	turns();
	assert_int_equal(rig_status(&g, 12), KVS_STATUS_ADMITTED);
	receive(9, b, 32);
	finish(12, b);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 32 * PAGE);
	gen = admit(10, 13, 60 * TOKENS, NULL, 0, false);
	assert_int_equal(rig_status(&g, 13), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 0);
	kvs_worker_abort(g.w, gen, KVS_CAUSE_ENGINE_ABORT, ECANCELED, "end");
	rig_packet(&g, KVS_PACKET_ABORT, 10, b - 2, 0);
	turns();
	kvs_worker_shutdown(g.w);
	down();
}

/* sgl-project/sglang#26728: what is being read is not evicted. */
static void test_pinned(void **state)
{
	uint8_t h[64][16];
	uint64_t gen;

	(void)state;
	up(128);
	leave(1, 64);
	leave(2, 32);
	names(h, 1, 0, 64);
	gen = admit(7, 5, 64 * TOKENS, h, 64, true);
	assert_int_equal(last_cached(5)->blocks, 63);
	receive(7, gen, 1);
	turns();
	rig_packet(&g, KVS_PACKET_COMMIT, 5, gen, 0);
	/* the copy runs, and another room wants all there is */
	(void)admit(8, 6, 63 * TOKENS, NULL, 0, false);
	assert_int_equal(rig_status(&g, 6), KVS_STATUS_ADMITTED);
	(void)admit(9, 7, 10 * TOKENS, NULL, 0, false);
	assert_int_equal(rig_status(&g, 7), KVS_STATUS_WAITING);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 64 * PAGE);
	/* it is given up, and still runs */
	rig_packet(&g, KVS_PACKET_ABORT, 5, gen, 0);
	turns();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 64 * PAGE);
	assert_int_equal(rig_status(&g, 7), KVS_STATUS_WAITING);
	rig_packet(&g, KVS_PACKET_COPY_OVER, 5, gen, 0);
	turns();
	assert_int_equal(rig_status(&g, 7), KVS_STATUS_ADMITTED);
	kvs_worker_shutdown(g.w);
	down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_left_in_place),
		cmocka_unit_test(test_only_done_rooms),
		cmocka_unit_test(test_prefix),
		cmocka_unit_test(test_spaces),
		cmocka_unit_test(test_changed),
		cmocka_unit_test(test_goes_first),
		cmocka_unit_test(test_pinned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
