/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a worker with an offload pool: a retraction is decided at once, by
 * places or a counted ENOSPC or E2BIG with nothing taken; it is READY only when
 * the copy out was said to be over and every byte summed up; it goes back only
 * when the sum is still the same; every end, in every state, holds what a copy
 * may touch until that copy's end, or the proven death of the engine, and gives
 * back all else at once; the books hold throughout. Virtual clock, no threads.
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

/* What the engine's copy does. */
static void copy_out(uint64_t gen, unsigned char v)
{
	const struct kvs_retraction *t = of(gen);

	for (uint32_t i = 0; i < t->ext.n; i++)
		memset(kvs_extent_addr(&t->ext, i), v + (int)i,
		       t->ext.v[i].len);
}

/* As many turns as it takes. */
static void turns(void)
{
	do {
		kvs_worker_turn(g.w);
		kvs_pool_check(g.offload);
	} while (kvs_worker_next(g.w) == 0);
}

static uint64_t out(uint32_t slot, unsigned int pages)
{
	uint64_t gen = rig_retract(&g, slot, pages);

	assert_int_equal(rig_status(&g, slot), KVS_STATUS_ADMITTED);
	copy_out(gen, (unsigned char)slot);
	rig_packet(&g, KVS_PACKET_RETRACTED, slot, gen, 0);
	turns();
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_READY);
	return gen;
}

static uint64_t count(enum kvs_retract_result r)
{
	return g.w->stats.retracts[r];
}

static void test_there_and_back(void **state)
{
	struct kvs_room_info v[4];
	uint64_t gen;

	(void)state;
	rig_up_offload(&g, 64, 64);
	gen = rig_retract(&g, 3, 40);
	/* places for all of it, and the copy is a party from then on */
	assert_int_equal(g.log[g.n - 1].n_extents, 3);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_GRANTED), 40 * PAGE);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	assert_int_equal(kvs_worker_rooms(g.w, v, 4), 1);
	assert_int_equal(v[0].room, 903);
	assert_string_equal(v[0].state, "leaving");
	assert_int_equal(v[0].parties, 1);
	assert_int_equal(v[0].tokens, 160);
	copy_out(gen, 1);
	rig_advance(&g, 86400 * S); /* no clock ends it */
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_RETRACTED, 3, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_SEALING);
	turns();
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_READY);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_RETRACTED),
			 40 * PAGE);
	rig_advance(&g, 86400 * S); /* nor is it claimed within a time */
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_COMMIT, 3, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_READY);
	turns();
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_COMMITTING);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_COMMITTING),
			 40 * PAGE);
	rig_advance(&g, 86400 * S);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_COMMITTING),
			 40 * PAGE);
	rig_packet(&g, KVS_PACKET_COMMITTED, 3, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_DONE);
	assert_int_equal(count(KVS_RETRACT_RESULT_TAKEN), 1);
	assert_int_equal(count(KVS_RETRACT_RESULT_OUT), 1);
	assert_int_equal(count(KVS_RETRACT_RESULT_RESUMED), 1);
	assert_int_equal(count(KVS_RETRACT_RESULT_FAILED), 0);
	assert_int_equal(
		g.w->stats.drains.total[KVS_DRAIN_DRAINED][KVS_PROOF_COPY_EVENT],
		1);
	rig_down(&g);
}

/* What is not there is told at once, counted, and takes nothing. */
static void test_no_space(void **state)
{
	const struct rig_event *e;
	uint64_t a, b;

	(void)state;
	rig_up_offload(&g, 64, 64);
	a = rig_retract(&g, 1, 40);
	b = rig_retract(&g, 2, 40);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 2), ENOSPC);
	e = &g.log[g.n - 1];
	assert_int_equal(e->failed.class, 503);
	assert_non_null(strstr(e->failed.text, "pool.offload_size"));
	assert_non_null(strstr(e->failed.text, "stays on the device"));
	assert_null(of(b));
	assert_int_equal(count(KVS_RETRACT_RESULT_NOSPACE), 1);
	(void)rig_retract(&g, 2, 65);
	assert_int_equal(rig_errno(&g, 2), E2BIG);
	assert_int_equal(g.log[g.n - 1].failed.class, 400);
	assert_int_equal(count(KVS_RETRACT_RESULT_NOFIT), 1);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_GRANTED), 40 * PAGE);
	/* a hold counts against it as well */
	rig_packet(&g, KVS_PACKET_ABORT, 1, a, 0);
	turns();
	(void)rig_retract(&g, 2, 40);
	assert_int_equal(rig_errno(&g, 2), ENOSPC);
	rig_packet(&g, KVS_PACKET_COPY_OVER, 1, a, 0);
	turns();
	b = out(2, 40);
	rig_packet(&g, KVS_PACKET_ABORT, 2, b, 0);
	rig_down(&g);
	/* nor is there any without a pool */
	rig_up(&g, 64);
	(void)rig_retract(&g, 1, 1);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	assert_non_null(
		strstr(g.log[g.n - 1].failed.text, "pool.offload_size"));
	rig_down(&g);
}

/* sgl-project/sglang#21652, #20790: every state has its way out, and nothing is
 * left. @to: how far it goes before it ends. */
static uint64_t up_to(unsigned int to, uint64_t *ret_touched)
{
	uint64_t gen = rig_retract(&g, 1, 40);

	*ret_touched = to == 0 || to == 4 ? 40 * PAGE : 0;
	if (to == 0)
		return gen;
	copy_out(gen, 7);
	rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen, 0);
	if (to == 1)
		return gen; /* being summed up */
	turns();
	if (to == 2)
		return gen;
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	if (to == 3)
		return gen; /* being compared */
	turns();
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_COMMITTING);
	return gen;
}

static void test_every_end(void **state)
{
	uint64_t gen, touched;

	(void)state;
	for (unsigned int to = 0; to < 5; to++) {
		for (int how = 0; how < 3; how++) {
			struct kvs_hold_info v[2];

			rig_up_offload(&g, 64, 64);
			gen = up_to(to, &touched);
			if (how == 0)
				rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
			else
				kvs_worker_engine_lost(g.w, RIG_ENGINE, false);
			turns();
			if (how == 0)
				assert_int_equal(rig_errno(&g, 1), ECANCELED);
			assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_HELD),
					 touched);
			assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE),
					 64 * PAGE - touched);
			assert_int_equal(kvs_worker_holds(g.w, v, 2),
					 touched ? 1 : 0);
			if (touched) {
				assert_int_equal(v[0].waits[KVS_PARTY_COPY], 1);
				assert_int_equal(v[0].bytes, touched);
			}
			if (how == 2) {
				/* the clock does not free it */
				rig_advance(&g, g.set.hold_timeout);
				assert_int_equal(
					rig_offload_bytes(
						&g, KVS_EXTENT_QUARANTINED),
					touched);
				rig_advance(&g, 86400 * S);
			}
			if (how)
				kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
			else
				rig_packet(&g, KVS_PACKET_COPY_OVER, 1, gen, 0);
			turns();
			assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE),
					 64 * PAGE);
			rig_down(&g);
		}
	}
}

/* A copy that failed, either way. */
static void test_copy_failed(void **state)
{
	uint64_t gen;

	(void)state;
	rig_up_offload(&g, 64, 64);
	gen = rig_retract(&g, 1, 40);
	rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen, EIO);
	assert_int_equal(rig_errno(&g, 1), EIO);
	turns();
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	gen = out(1, 40);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	turns();
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, EIO);
	assert_int_equal(rig_errno(&g, 1), EIO);
	turns();
	assert_int_equal(count(KVS_RETRACT_RESULT_FAILED), 2);
	rig_down(&g);
}

/* What changed while it was out does not go back. */
static void test_checksum(void **state)
{
	struct kvs_retraction *t;
	uint64_t gen;

	(void)state;
	for (uint32_t x = 0; x < 3; x++) {
		rig_up_offload(&g, 64, 64);
		gen = out(1, 40);
		t = of(gen);
		((unsigned char *)kvs_extent_addr(&t->ext,
						  x))[t->ext.v[x].len - 1] ^= 1;
		rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
		turns();
		assert_int_equal(rig_status(&g, 1), KVS_STATUS_FAILED);
		assert_int_equal(rig_errno(&g, 1), EBADMSG);
		assert_int_equal(count(KVS_RETRACT_RESULT_CHECKSUM), 1);
		rig_down(&g);
	}
}

/* One that comes back is compared before those that leave are summed up, and
 * a turn does only some of it. */
static void test_back_first(void **state)
{
	uint64_t a, b;

	(void)state;
	rig_up_offload(&g, 64, 8192);
	a = out(1, 40);
	g.set.extent_tokens = 6000 * 4;
	b = rig_retract(&g, 2, 6000);
	copy_out(b, 9);
	rig_packet(&g, KVS_PACKET_RETRACTED, 2, b, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_SEALING);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, a, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_COMMITTING);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_SEALING);
	assert_int_equal(kvs_worker_next(g.w), 0);
	turns();
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, a, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 2, b, 0);
	rig_down(&g);
}

/* Packets that make no sense now are counted and change nothing. */
static void test_nonsense(void **state)
{
	static const enum kvs_packet_type types[] = {
		KVS_PACKET_RETRACTED, KVS_PACKET_COMMIT, KVS_PACKET_COMMITTED,
		KVS_PACKET_COPY_OVER, KVS_PACKET_ADMIT,	 KVS_PACKET_PLACED,
	};
	/* those that make sense in a state, as bits of the array above */
	static const unsigned int fine[] = { 1, 0, 2, 0, 4 };
	uint64_t gen, touched, *bad;

	(void)state;
	for (unsigned int to = 0; to < 5; to++) {
		for (unsigned int i = 0; i < KVS_ARRAY_SIZE(types); i++) {
			enum kvs_status st;

			if (fine[to] >> i & 1)
				continue;
			rig_up_offload(&g, 64, 64);
			gen = up_to(to, &touched);
			bad = &g.w->stats.protocol_errors[KVS_PROTO_ENGINE];
			st = rig_status(&g, 1);
			rig_packet(&g, types[i], 1, gen, 0);
			assert_int_equal(*bad, 1);
			assert_int_equal(rig_status(&g, 1), st);
			/* of another slot, or none that ever was */
			rig_packet(&g, KVS_PACKET_ABORT, 2, gen, 0);
			rig_packet(&g, KVS_PACKET_ABORT, 1, gen + 5, 0);
			assert_int_equal(rig_status(&g, 1), st);
			rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
			rig_packet(&g, KVS_PACKET_COPY_OVER, 1, gen, 0);
			rig_down(&g);
		}
	}
}

/* A daemon that goes down lets those come back that are out, and takes no
 * more; one that ends gives nothing out again. */
static void test_shutdown(void **state)
{
	uint64_t a, b;

	(void)state;
	rig_up_offload(&g, 64, 64);
	a = out(1, 20);
	b = rig_retract(&g, 2, 20);
	kvs_worker_shutdown(g.w);
	assert_int_equal(rig_errno(&g, 2), ESHUTDOWN);
	assert_int_equal(g.w->live, 1);
	(void)rig_retract(&g, 3, 1);
	assert_int_equal(rig_errno(&g, 3), ESHUTDOWN);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, a, 0);
	turns();
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_COMMITTING);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	(void)b;
	kvs_worker_abandon(g.w);
	assert_int_equal(g.w->live, 0);
	rig_down(&g);
}

/* Twice the largest request, or what is set; no more than there is. */
static void test_reserve(void **state)
{
	struct kvs_worker_snapshot s;

	(void)state;
	rig_up_offload(&g, 64, 64);
	assert_int_equal(g.w->retracts.reserve, 0); /* it says nothing */
	g.layout.capacity = 400;
	assert_int_equal(kvs_worker_engine_add(g.w, 2, &g.layout), 0);
	assert_int_equal(g.w->retracts.reserve, 64 * PAGE);
	g.layout.max_context = 100; /* 25 pages */
	kvs_worker_engine_lost(g.w, 2, true);
	assert_int_equal(kvs_worker_engine_add(g.w, 3, &g.layout), 0);
	kvs_worker_turn(g.w);
	assert_int_equal(g.w->retracts.reserve, 50 * PAGE);
	kvs_worker_snapshot(g.w, &s);
	assert_int_equal(s.retract_reserve_bytes, 50 * PAGE);
	g.set.reserve_retraction = 3 * PAGE;
	kvs_retracts_engines(g.w);
	assert_int_equal(g.w->retracts.reserve, 3 * PAGE);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_no_space),
		cmocka_unit_test(test_every_end),
		cmocka_unit_test(test_copy_failed),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_back_first),
		cmocka_unit_test(test_nonsense),
		cmocka_unit_test(test_shutdown),
		cmocka_unit_test(test_reserve),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
