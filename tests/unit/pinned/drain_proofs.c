/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: who leaves an armed drain is told with the proof, before the end;
 * of a party whose word is not enough, what it can still reach is closed before
 * the memory is free, acknowledged or not, and when that fails it is as any
 * revocation that fails.
 */
#include "tests/unit/pinned/drain_rig.h"

#include <errno.h>
#include <string.h>

static unsigned int lefts[KVS_PROOF_MAX];

static void count_left(struct kvs_drain *d, const struct kvs_party *p,
		       enum kvs_proof proof)
{
	assert_ptr_equal(p->drain, d);
	assert_int_not_equal(d->state, KVS_DRAIN_OPEN);
	assert_int_equal(overs, 0);
	lefts[proof]++;
}

/* Who leaves an armed drain is told, before the end; who left before, not. */
static void left_is_told(void **state)
{
	struct kvs_party early, acks, revoked;
	struct kvs_drain d;

	(void)state;
	memset(lefts, 0, sizeof(lefts));
	begin(&d);
	d.left = count_left;
	join(&d, &early, &recv_ops, 0);
	join(&d, &acks, &later_ops, 1);
	join(&d, &revoked, &now_ops, 2);
	kvs_party_leave(&early, KVS_PROOF_RECEIVE_REAPED);
	kvs_drain_arm(&d);
	assert_int_equal(kvs_drain_ack(&d, RANK, 1, GEN), 0);
	assert_int_equal(lefts[KVS_PROOF_ALL_ACKNOWLEDGED], 1);
	assert_int_equal(kvs_drain_poison(&d, RANK, 2), 0);
	assert_int_equal(overs, 1);
	assert_int_equal(lefts[KVS_PROOF_GRANT_INVALIDATED], 1);
	assert_int_equal(lefts[KVS_PROOF_RECEIVE_REAPED], 0);
	kvs_drain_fini(&d);
}

/* ARMED -> OVER: an acknowledgement counts, and what can still reach the
 * memory is closed before it is free (R1) */
static void acknowledged_and_closed(void **state)
{
	struct kvs_party p[2];
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p[0], &keyed_ops, 0);
	join(&d, &p[1], &keyed_ops, 1);
	kvs_drain_arm(&d);
	assert_int_equal(revokes, 0);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), 0);
	assert_int_equal(revokes, 1);
	assert_true(p[0].acked && p[0].revoking);
	assert_int_equal(d.live, 2);
	/* again, before and after the proof */
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), -EALREADY);
	kvs_party_leave(&p[0], KVS_PROOF_GRANT_INVALIDATED);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), -EALREADY);
	assert_true(f.stats.ack_ignored[KVS_ACK_IGNORED_DUPLICATE] == 2);
	assert_int_equal(revokes, 1);
	assert_int_equal(overs, 0);
	assert_int_equal(kvs_drain_ack(&d, RANK, 1, GEN), 0);
	assert_int_equal(overs, 0);
	kvs_party_leave(&p[1], KVS_PROOF_GRANT_INVALIDATED);
	assert_int_equal(overs, 1);
	/* nobody had to be stopped */
	assert_int_equal(
		f.stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_ALL_ACKNOWLEDGED],
		1);
	kvs_drain_fini(&d);
}

/* It acknowledged, and had to lose its connection all the same. */
static void acknowledged_and_torn_down(void **state)
{
	struct kvs_drain d;
	struct kvs_party p;

	(void)state;
	begin(&d);
	join(&d, &p, &keyed_ops, 0);
	kvs_drain_arm(&d);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), 0);
	kvs_party_leave(&p, KVS_PROOF_CONNECTION_TORN_DOWN);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_CONNECTION_TORN_DOWN],
		1);
	kvs_drain_fini(&d);
}

/* ARMED -> STUCK -> OVER: what revoke() began fails; the hold timer asks
 * again, and a late proof frees */
static void revocation_fails_later(void **state)
{
	struct kvs_drain d;
	struct kvs_party p;

	(void)state;
	begin(&d);
	join(&d, &p, &keyed_ops, 0);
	/* OPEN -> OPEN: closing because all is there can fail as well */
	kvs_party_revoke_failed(&p);
	assert_int_equal(d.state, KVS_DRAIN_OPEN);
	kvs_drain_arm(&d);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), 0);
	assert_int_equal(d.state, KVS_DRAIN_ARMED);
	kvs_party_revoke_failed(&p);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	assert_int_equal(stucks, 1);
	kvs_party_revoke_failed(&p);
	assert_int_equal(stucks, 1);
	pass_time(HOLD);
	assert_int_equal(revokes, 2);
	assert_int_equal(overs, 0);
	kvs_party_leave(&p, KVS_PROOF_GRANT_INVALIDATED);
	assert_int_equal(overs, 1);
	/* harmless now */
	kvs_party_revoke_failed(&p);
	kvs_drain_fini(&d);
}

/* A grant closed because all has arrived is no revocation of a later abort. */
static void closed_before_arm(void **state)
{
	struct kvs_drain d;
	struct kvs_party p;

	(void)state;
	begin(&d);
	join(&d, &p, &keyed_ops, 0);
	kvs_party_leave(&p, KVS_PROOF_GRANT_INVALIDATED);
	kvs_drain_arm(&d);
	assert_int_equal(overs, 1);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_GRANT_INVALIDATED],
		1);
	kvs_drain_fini(&d);
}

/* Any state -> OVER without a proof, and without one being counted. */
static void abandoned(void **state)
{
	struct kvs_drain d;
	struct kvs_party p[2];

	(void)state;
	for (int stuck = 0; stuck < 2; stuck++) {
		struct kvs_drain_stats before;

		begin(&d);
		d.left = count_left;
		memset(lefts, 0, sizeof(lefts));
		join(&d, &p[0], &keyed_ops, 0);
		join(&d, &p[1], &keyed_ops, 1);
		kvs_drain_arm(&d);
		assert_int_equal(kvs_drain_ack(&d, RANK, 1, GEN), 0);
		if (stuck)
			kvs_party_revoke_failed(&p[1]);
		assert_int_equal(d.state,
				 stuck ? KVS_DRAIN_STUCK : KVS_DRAIN_ARMED);
		before = f.stats;
		overs = 0;
		kvs_drain_abandon(&d);
		assert_int_equal(overs, 1);
		assert_true(d.abandoned);
		assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_QUARANTINED);
		assert_memory_equal(&f.stats, &before, sizeof(before));
		for (int i = 0; i < KVS_PROOF_MAX; i++)
			assert_int_equal(lefts[i], 0);
		/* harmless now */
		kvs_drain_abandon(&d);
		kvs_party_leave(&p[0], KVS_PROOF_COPY_EVENT);
		assert_int_equal(overs, 1);
		kvs_drain_fini(&d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(left_is_told),
		T(acknowledged_and_closed),
		T(acknowledged_and_torn_down),
		T(revocation_fails_later),
		T(closed_before_arm),
		T(abandoned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
