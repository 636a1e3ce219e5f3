/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R10: held bytes are never read and never enter a cache. From HELD an extent
 * goes to QUARANTINED or to a free list and nowhere else: every other move
 * stops the program. The engine is never told where a failed room lies, and
 * cannot commit it; bytes that still come for it are dropped and counted.
 */
#include "tests/claim/claim_rig.h"

#include <string.h>

#include "tests/claim/claim_dies.h"

struct move {
	struct kvs_extents *x;
	enum kvs_extent_state to;
};

static void move(void *arg)
{
	struct move *m = arg;

	kvs_extents_set_state(m->x, m->to);
}

static void check_moves(struct kvs_extents *x, enum kvs_extent_state only)
{
	for (unsigned int s = 0; s < KVS_EXTENT_STATE_MAX; s++) {
		struct move m = { x, s };
		bool died = claim_dies(move, &m);

		if (died != (s != only))
			fail_msg("%s to %s: %s",
				 kvs_extent_state_name[x->v[0].state],
				 kvs_extent_state_name[s],
				 died ? "stopped" : "went through");
	}
}

static void held_leads_nowhere_but_out(void **state)
{
	static const uint64_t len[2] = { 1 << 16, 12345 };
	struct kvs_drain_stats stats = { 0 };
	struct kvs_timerq timers;
	struct kvs_vclock clock;
	struct kvs_drain_opts o = {
		.generation = 1,
		.hold_timeout = KVS_NSEC_PER_SEC,
		.clock = &clock.clk,
		.timers = &timers,
		.stats = &stats,
	};
	struct kvs_pool_opts po = { .name = "receive",
				    .size = 1 << 20,
				    .clock = &clock.clk };
	struct kvs_pool *pool;
	struct kvs_extents x;
	struct kvs_drain d;

	(void)state;
	kvs_vclock_init(&clock, 1);
	kvs_timerq_init(&timers);
	assert_int_equal(kvs_pool_create(&po, &pool), 0);
	assert_int_equal(kvs_pool_alloc(pool, len, 2, &x), 0);
	kvs_drain_init(&d, &o);
	kvs_extents_set_state(&x, KVS_EXTENT_GRANTED);
	kvs_extents_set_state(&x, KVS_EXTENT_HELD);
	check_moves(&x, KVS_EXTENT_QUARANTINED);
	kvs_extents_set_state(&x, KVS_EXTENT_QUARANTINED);
	check_moves(&x, KVS_EXTENT_STATE_MAX);
	kvs_drain_arm(&d);
	kvs_pool_release(&x, &d);
	kvs_drain_fini(&d);
	kvs_pool_destroy(pool);
	kvs_timerq_fini(&timers);
}

static struct rig g;

static void the_engine_never_sees_them(void **state)
{
	struct kvs_receive rx, late;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	claim_send(&g, 7, gen, 0, 1, 1, 19, 1);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 1, &addr), 0);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	/* what is still on its way lands nowhere */
	assert_int_equal(rig_begin(&g, &late, 7, gen, 0, 1, 0, 0, 1, &addr), 0);
	assert_null(addr);
	assert_int_equal(g.w->stats.late_bytes, CLAIM_ITEM);
	rig_last(&g, 7, gen, 0, 20 * CLAIM_PAGE);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	kvs_worker_receive_end(g.w, &rx, 0, CLAIM_ITEM);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
	for (unsigned int i = 0; i < g.n; i++)
		assert_int_equal(g.log[i].n_extents, 0);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(held_leads_nowhere_but_out),
		cmocka_unit_test(the_engine_never_sees_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
