/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R3: an acknowledgement counts once, for a party of the armed set, with the
 * current generation. One rank that says it three times does not stand for
 * three; one of an earlier attempt, or without a generation, stands for
 * nobody; and a rank that writes nothing has to say it as well. Whatever is
 * not counted is seen in a counter of its own.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>

static struct rig g;

static uint64_t ignored(enum kvs_ack_ignored why)
{
	return g.w->stats.drains.ack_ignored[why];
}

static void one_rank_is_not_two(void **state)
{
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	g.set.hold_require_ack = true;
	gen = rig_admit(&g, 7, 0, 20, 2);
	rig_open(&g, 7, gen, 0);
	rig_open(&g, 7, gen, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	for (int i = 0; i < 3; i++)
		claim_say(&g, 100, KVS_WIRE_ABORT_ACK, 7, gen, 0, 0);
	/* nor does it speak for the other one */
	claim_say(&g, 100, KVS_WIRE_ABORT_ACK, 7, gen, 1, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	assert_int_equal(ignored(KVS_ACK_IGNORED_DUPLICATE), 2);
	claim_say(&g, 101, KVS_WIRE_ABORT_ACK, 7, gen, 1, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	rig_down(&g);
}

static void zero_byte_ranks_answer_as_well(void **state)
{
	struct kvs_rank_slice ranks[2] = { { 0, 2 }, { 0, 0 } };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1000,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 80,
				      .n_ranks = 2,
				      .ranks = ranks };

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	g.set.hold_require_ack = true;
	kvs_worker_admit(g.w, &q);
	rig_open(&g, 7, 1000, 0);
	rig_open(&g, 7, 1000, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1000, 0);
	assert_non_null(rig_msg(&g, 101, KVS_WIRE_ABORT));
	claim_say(&g, 100, KVS_WIRE_ABORT_ACK, 7, 1000, 0, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	claim_say(&g, 101, KVS_WIRE_ABORT_ACK, 7, 1000, 1, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	rig_down(&g);
}

static const struct kvs_party_ops rank_ops = {
	.name = "rank",
	.kind = KVS_PARTY_RANK,
};

static void only_this_generation_counts(void **state)
{
	struct kvs_drain_stats stats = { 0 };
	struct kvs_timerq timers;
	struct kvs_vclock clock;
	struct kvs_party p[2];
	struct kvs_drain_opts o = {
		.generation = 41,
		.hold_timeout = KVS_NSEC_PER_SEC,
		.clock = &clock.clk,
		.timers = &timers,
		.stats = &stats,
	};
	struct kvs_drain d;

	(void)state;
	kvs_vclock_init(&clock, 1);
	kvs_timerq_init(&timers);
	kvs_drain_init(&d, &o);
	for (unsigned int i = 0; i < 2; i++) {
		kvs_party_init(&p[i], &rank_ops, i);
		assert_int_equal(kvs_drain_join(&d, &p[i]), 0);
	}
	assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_RANK, 0, 41), -EBUSY);
	kvs_drain_arm(&d);
	for (unsigned int i = 0; i < 2; i++) {
		assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_RANK, i, 40),
				 -ESTALE);
		assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_RANK, i, 42),
				 -ESTALE);
		assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_RANK, i, 0),
				 -EINVAL);
	}
	assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_RANK, 2, 41), -ENOENT);
	assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_COPY, 0, 41), -ENOENT);
	assert_int_equal(d.live, 2);
	assert_false(kvs_drain_is_over(&d));
	assert_int_equal(stats.ack_ignored[KVS_ACK_IGNORED_STALE], 4);
	assert_int_equal(stats.ack_ignored[KVS_ACK_IGNORED_MALFORMED], 2);
	assert_int_equal(stats.ack_ignored[KVS_ACK_IGNORED_UNKNOWN_PARTY], 2);
	assert_int_equal(stats.ack_ignored[KVS_ACK_IGNORED_NOT_ARMED], 1);
	for (unsigned int i = 0; i < 2; i++)
		assert_int_equal(kvs_drain_ack(&d, KVS_PARTY_RANK, i, 41), 0);
	assert_true(kvs_drain_is_over(&d));
	kvs_drain_fini(&d);
	kvs_timerq_fini(&timers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_rank_is_not_two),
		cmocka_unit_test(zero_byte_ranks_answer_as_well),
		cmocka_unit_test(only_this_generation_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
