/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R8: at the hold's limit the parties are revoked, and the memory comes back
 * with the proof of that and not with the time; what cannot be revoked is
 * quarantined, for as long as it takes. Without the rule a copy engine that is
 * merely slow reads the bytes of the room that got its extents.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>

#define HOLD (30 * KVS_NSEC_PER_SEC)
#define YEAR (365 * 86400 * KVS_NSEC_PER_SEC)

static struct rig g;
static struct claim_copy copy;

static int revoke_err;
static unsigned int revokes;

static int revoke(struct kvs_party *p)
{
	(void)p;
	revokes++;
	return revoke_err;
}

static const struct kvs_party_ops slow_ops = {
	.name = "slow",
	.kind = KVS_PARTY_RANK,
	.revoke = revoke,
};

static void hold(int err, enum kvs_proof proof,
		 enum kvs_drain_outcome at_the_end)
{
	struct kvs_drain_stats stats = { 0 };
	struct kvs_timerq timers;
	struct kvs_vclock clock;
	struct kvs_party p;
	struct kvs_drain_opts o = {
		.generation = 1,
		.hold_timeout = HOLD,
		.clock = &clock.clk,
		.timers = &timers,
		.stats = &stats,
	};
	struct kvs_drain d;

	revokes = 0;
	revoke_err = err;
	kvs_vclock_init(&clock, KVS_NSEC_PER_SEC);
	kvs_timerq_init(&timers);
	kvs_drain_init(&d, &o);
	kvs_party_init(&p, &slow_ops, 0);
	assert_int_equal(kvs_drain_join(&d, &p), 0);
	kvs_drain_arm(&d);
	kvs_vclock_advance(&clock, HOLD - 1);
	kvs_timerq_run(&timers, kvs_clock_now(&clock.clk));
	assert_int_equal(revokes, 0);
	kvs_vclock_advance(&clock, 1);
	kvs_timerq_run(&timers, kvs_clock_now(&clock.clk));
	assert_false(kvs_drain_is_over(&d));
	assert_int_equal(revokes, 1);
	if (err)
		assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_QUARANTINED);
	kvs_vclock_advance(&clock, YEAR);
	kvs_timerq_run(&timers, kvs_clock_now(&clock.clk));
	assert_false(kvs_drain_is_over(&d));
	kvs_party_leave(&p, proof);
	assert_true(kvs_drain_is_over(&d));
	assert_int_equal(kvs_drain_outcome(&d), at_the_end);
	kvs_drain_fini(&d);
	kvs_timerq_fini(&timers);
}

static void the_limit_revokes(void **state)
{
	(void)state;
	hold(0, KVS_PROOF_GRANT_INVALIDATED, KVS_DRAIN_REVOKED);
	hold(0, KVS_PROOF_CONNECTION_TORN_DOWN, KVS_DRAIN_REVOKED);
}

static void what_cannot_be_revoked_stays(void **state)
{
	(void)state;
	hold(-EBUSY, KVS_PROOF_COPY_EVENT, KVS_DRAIN_DRAINED);
	hold(-EOPNOTSUPP, KVS_PROOF_PROCESS_EXIT, KVS_DRAIN_DRAINED);
}

static void slow_copy_reads_its_own_bytes(void **state)
{
	uint64_t a, b, wrong;
	bool early;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	a = rig_admit(&g, 1, 1, 40, 1);
	rig_open(&g, 1, a, 0);
	claim_send_rest(&g, 1, a, 1, 0, 40, 1);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, a, 0);
	claim_copy_launch(&copy, claim_room(&g, a));
	claim_copy_run(&copy, 0, 2);
	rig_packet(&g, KVS_PACKET_ABORT, 1, a, 0);
	rig_advance(&g, g.set.hold_timeout);
	b = rig_admit(&g, 2, 2, 60, 1);
	early = rig_status(&g, 2) == KVS_STATUS_ADMITTED;
	if (early) {
		rig_open(&g, 2, b, 0);
		claim_send_rest(&g, 2, b, 1, 0, 60, 2);
	}
	claim_copy_run(&copy, 1, 2);
	wrong = claim_copy_wrong(&copy, 1);
	print_message("R8: %llu bytes of another room read\n",
		      (unsigned long long)wrong);
	assert_int_equal(wrong, 0);
	assert_false(early);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_QUARANTINED),
			 40 * CLAIM_PAGE);
	rig_advance(&g, YEAR);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_QUARANTINED),
			 40 * CLAIM_PAGE);
	rig_packet(&g, KVS_PACKET_COPY_OVER, 1, a, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * CLAIM_PAGE);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_limit_revokes),
		cmocka_unit_test(what_cannot_be_revoked_stays),
		cmocka_unit_test(slow_copy_reads_its_own_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
