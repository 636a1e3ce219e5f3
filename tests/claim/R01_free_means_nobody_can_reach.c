/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R1: an extent goes back to a free list only through a finished drain.
 *
 * The race behind it: two prefill ranks on separate connections, a pool of 96
 * pages, room A of 31 with a write of rank 1 launched and not landed. A is
 * aborted; rank 0 acknowledges. Room B needs A's pages. The late write lands
 * when B has been filled, or when B is READY, or while B is being copied.
 * Rightly B waits for rank 1, so that there is nothing to land on, and its
 * bytes are exact; without the rule each case overlaps and B decodes from a
 * stranger's bytes. The same with 430 pages and rooms of 105, and 132 aborts
 * in a row that give every held extent back. A receive of our own holds its
 * room as well.
 */
#include "tests/claim/claim_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/claim/claim_dies.h"

static struct rig g;
static struct claim_copy copy;

enum moment { BEFORE_READY, BEFORE_COPY, DURING_COPY, MOMENTS };

struct sizes {
	unsigned int pool, other, a, b; /* pages */
};

/* A write that its owner cannot call back: one run of each extent. */
struct late {
	unsigned char *at[CLAIM_PAGES_MAX];
	unsigned int n;
	bool landed;
};

static void launch(struct late *l, const struct kvs_room *r)
{
	*l = (struct late){ .n = r->geo.pages };
	for (unsigned int p = 0; p < l->n; p++)
		l->at[p] = claim_at(r, 1, p);
}

static void land(struct late *l)
{
	for (unsigned int p = 0; p < l->n; p++)
		claim_device_write(l->at[p], 0xdd, CLAIM_ITEM);
	l->landed = true;
}

static uint64_t start_a(const struct sizes *z, struct late *l)
{
	uint64_t a;

	rig_up(&g, z->pool);
	rig_sessions(&g, 2);
	g.set.hold_require_ack = true;
	a = rig_admit(&g, 1, 1, z->a, 2);
	rig_open(&g, 1, a, 0);
	rig_open(&g, 1, a, 1);
	claim_send(&g, 1, a, 0, 2, 0, z->a, 1);
	launch(l, claim_room(&g, a));
	rig_packet(&g, KVS_PACKET_ABORT, 1, a, 0);
	claim_say(&g, 100, KVS_WIRE_ABORT_ACK, 1, a, 0, 0);
	kvs_worker_turn(g.w);
	return a;
}

static void race(const struct sizes *z, enum moment when,
		 unsigned int *ret_overlaps, uint64_t *ret_wrong)
{
	uint64_t a, b, other = 0;
	struct late late;
	bool overlap;

	a = start_a(z, &late);
	if (z->other)
		other = rig_admit(&g, 3, 3, z->other, 1);
	b = rig_admit(&g, 2, 2, z->b, 2);
	/* no time short of the hold's limit changes anything */
	rig_advance(&g, 5 * KVS_NSEC_PER_SEC);
	overlap = rig_status(&g, 2) != KVS_STATUS_WAITING;
	*ret_overlaps += overlap;
	if (!overlap) {
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
				 z->a * CLAIM_PAGE);
		land(&late);
		claim_say(&g, 101, KVS_WIRE_ABORT_ACK, 1, a, 1, 0);
		kvs_worker_turn(g.w);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	}
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	rig_open(&g, 2, b, 0);
	rig_open(&g, 2, b, 1);
	for (unsigned int k = 0; k < 2; k++)
		claim_send(&g, 2, b, k, 2, 0, z->b, 2);
	if (when == BEFORE_READY && !late.landed)
		land(&late);
	for (unsigned int k = 0; k < 2; k++)
		rig_last(&g, 2, b, k, z->b * CLAIM_PAGE / 2);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_READY);
	if (when == BEFORE_COPY && !late.landed)
		land(&late);
	rig_packet(&g, KVS_PACKET_COMMIT, 2, b, 0);
	claim_copy_launch(&copy, claim_room(&g, b));
	claim_copy_run(&copy, 0, 2);
	if (when == DURING_COPY && !late.landed)
		land(&late);
	claim_copy_run(&copy, 1, 2);
	rig_packet(&g, KVS_PACKET_COMMITTED, 2, b, 0);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_DONE);
	*ret_wrong += claim_copy_wrong(&copy, 2);
	if (z->other)
		rig_packet(&g, KVS_PACKET_ABORT, 3, other, 0);
	if (overlap)
		claim_say(&g, 101, KVS_WIRE_ABORT_ACK, 1, a, 1, 0);
	rig_down(&g);
}

static void late_write_never_meets_the_next_room(void **state)
{
	static const struct sizes sizes[] = {
		{ .pool = 96, .a = 31, .b = 80 },
		{ .pool = 430, .other = 300, .a = 105, .b = 120 },
	};
	unsigned int overlaps = 0, races = 0;
	uint64_t wrong = 0;

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(sizes); i++)
		for (unsigned int when = 0; when < MOMENTS; when++, races++)
			race(&sizes[i], when, &overlaps, &wrong);
	print_message("R1: %u races, %u overlaps, %llu wrong bytes decoded\n",
		      races, overlaps, (unsigned long long)wrong);
	assert_int_equal(wrong, 0);
	assert_int_equal(overlaps, 0);
}

/* 132 aborts in a row, each with a receive of ours and a rank to answer. */
static void every_held_extent_returns(void **state)
{
	const unsigned int pages = 31;
	struct kvs_receive rx;
	void *addr;

	(void)state;
	rig_up(&g, 96);
	rig_sessions(&g, 2);
	g.set.hold_require_ack = true;
	for (unsigned int i = 0; i < 132; i++) {
		uint64_t gen = rig_admit(&g, 1 + i, 0, pages, 2);

		rig_open(&g, 1 + i, gen, 0);
		rig_open(&g, 1 + i, gen, 1);
		assert_int_equal(rig_begin(&g, &rx, 1 + i, gen, 0, 0, 0, 0, 2,
					   &addr),
				 0);
		rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
		claim_say(&g, 100, KVS_WIRE_ABORT_ACK, 1 + i, gen, 0, 0);
		kvs_worker_receive_end(g.w, &rx, -ECANCELED, 7);
		kvs_worker_turn(g.w);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
				 pages * CLAIM_PAGE);
		claim_say(&g, 101, KVS_WIRE_ABORT_ACK, 1 + i, gen, 1, 0);
		kvs_worker_turn(g.w);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE),
				 96 * CLAIM_PAGE);
		g.n = 0;
	}
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_DRAINED]
						[KVS_PROOF_ALL_ACKNOWLEDGED],
			 132);
	rig_down(&g);
}

/* Nobody else is waited for: what is being received holds the room alone. */
static void own_receive_holds_its_room(void **state)
{
	const unsigned int pages = 31;
	struct kvs_receive rx;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 96);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 1, 0, pages, 1);
	rig_open(&g, 1, gen, 0);
	assert_int_equal(rig_begin(&g, &rx, 1, gen, 0, 0, 0, 0, 2, &addr), 0);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), pages * CLAIM_PAGE);
	kvs_worker_receive_end(g.w, &rx, -ECANCELED, 7);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 96 * CLAIM_PAGE);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_DRAINED]
						[KVS_PROOF_RECEIVE_REAPED],
			 1);
	rig_down(&g);
}

static const struct kvs_party_ops party_ops = {
	.name = "party",
	.kind = KVS_PARTY_COPY,
};

struct release {
	struct kvs_pool *pool;
	struct kvs_extents x;
	struct kvs_drain d;
};

static void release(void *arg)
{
	struct release *r = arg;

	kvs_pool_release(&r->x, &r->d);
}

/* There is no other way to a free list, whoever calls. */
static void no_release_without_a_finished_drain(void **state)
{
	static const uint64_t len = 1 << 16;
	struct kvs_drain_stats stats = { 0 };
	struct kvs_timerq timers;
	struct kvs_vclock clock;
	struct kvs_party party;
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
	struct release r;

	(void)state;
	kvs_vclock_init(&clock, 1);
	kvs_timerq_init(&timers);
	assert_int_equal(kvs_pool_create(&po, &r.pool), 0);
	assert_int_equal(kvs_pool_alloc(r.pool, &len, 1, &r.x), 0);
	kvs_extents_set_state(&r.x, KVS_EXTENT_GRANTED);
	kvs_drain_init(&r.d, &o);
	kvs_party_init(&party, &party_ops, 0);
	assert_int_equal(kvs_drain_join(&r.d, &party), 0);
	assert_true(claim_dies(release, &r));
	kvs_drain_arm(&r.d);
	assert_true(claim_dies(release, &r));
	kvs_party_leave(&party, KVS_PROOF_COPY_EVENT);
	assert_false(claim_dies(release, &r));
	release(&r);
	kvs_drain_fini(&r.d);
	kvs_pool_destroy(r.pool);
	kvs_timerq_fini(&timers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_write_never_meets_the_next_room),
		cmocka_unit_test(every_held_extent_returns),
		cmocka_unit_test(own_receive_holds_its_room),
		cmocka_unit_test(no_release_without_a_finished_drain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
