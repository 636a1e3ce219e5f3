/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a drain is over exactly when it is armed and every party has
 * proven that it is finished, once; an acknowledgement counts once, for a
 * live party of the armed set, with the generation of the drain, and every
 * other one is counted under its own reason and changes nothing; at the hold
 * timeout parties are revoked, never forgotten; what cannot be revoked is
 * quarantined until a late proof.
 */
#include "tests/unit/pinned/drain_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/pinned/seed.h"

/* OPEN -> OVER: nobody ever joined */
static void never_granted(void **state)
{
	struct kvs_drain d;

	(void)state;
	begin(&d);
	kvs_drain_arm(&d);
	assert_true(kvs_drain_is_over(&d));
	assert_int_equal(overs, 1);
	assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_DRAINED);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_NEVER_GRANTED], 1);
	/* OVER -> OVER: arming again does nothing */
	kvs_drain_arm(&d);
	assert_int_equal(overs, 1);
	assert_true(total_outcomes() == 1);
	kvs_drain_fini(&d);
}

/* OPEN -> fini: not used at all */
static void never_used(void **state)
{
	struct kvs_drain d;

	(void)state;
	begin(&d);
	kvs_drain_fini(&d);
	assert_true(total_outcomes() == 0);
}

/* OPEN -> ARMED -> OVER, the party leaves last */
static void arm_before_leave(void **state)
{
	struct kvs_drain d;
	struct kvs_party p;

	(void)state;
	begin(&d);
	join(&d, &p, &recv_ops, 0);
	kvs_drain_arm(&d);
	assert_int_equal(d.state, KVS_DRAIN_ARMED);
	assert_true(d.armed_at == KVS_NSEC_PER_SEC);
	assert_true(kvs_timerq_next(&f.timers) == KVS_NSEC_PER_SEC + HOLD);
	assert_int_equal(overs, 0);
	pass_time(5);
	kvs_party_leave(&p, KVS_PROOF_RECEIVE_REAPED);
	assert_int_equal(overs, 1);
	assert_true(d.over_at == KVS_NSEC_PER_SEC + 5);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_RECEIVE_REAPED], 1);
	/* leaving twice is harmless */
	kvs_party_leave(&p, KVS_PROOF_RECEIVE_REAPED);
	assert_int_equal(overs, 1);
	kvs_drain_fini(&d);
}

/* OPEN -> OVER at arm, the party left before */
static void leave_before_arm(void **state)
{
	struct kvs_drain d;
	struct kvs_party p, q;

	(void)state;
	begin(&d);
	join(&d, &p, &recv_ops, 0);
	kvs_party_leave(&p, KVS_PROOF_RECEIVE_REAPED);
	/* OPEN -> OPEN: empty is not over, others may still join */
	assert_int_equal(d.state, KVS_DRAIN_OPEN);
	assert_int_equal(overs, 0);
	join(&d, &q, &none_ops, 0);
	kvs_party_leave(&q, KVS_PROOF_IO_COMPLETION);
	kvs_drain_arm(&d);
	assert_int_equal(overs, 1);
	/* the last proof is the one that counts */
	assert_int_equal(
		f.stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_IO_COMPLETION], 1);
	assert_true(total_outcomes() == 1);
	kvs_drain_fini(&d);
}

static void joining(void **state)
{
	struct kvs_party p, same, r1, r2, late;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &later_ops, 3);
	assert_int_equal(kvs_drain_join(&d, &p), -EEXIST);
	kvs_party_init(&same, &now_ops, 3);
	assert_int_equal(kvs_drain_join(&d, &same), -EEXIST);
	assert_null(same.drain);
	/* another kind may use the id; receives any id */
	kvs_party_init(&same, &none_ops, 3);
	assert_int_equal(kvs_drain_join(&d, &same), 0);
	join(&d, &r1, &recv_ops, 0);
	join(&d, &r2, &recv_ops, 0);
	assert_int_equal(d.live, 4);
	assert_ptr_equal(kvs_drain_find(&d, RANK, 3), &p);
	assert_ptr_equal(kvs_drain_find(&d, KVS_PARTY_IO, 3), &same);
	assert_null(kvs_drain_find(&d, RANK, 4));
	kvs_drain_arm(&d);
	/* ARMED: nobody joins */
	kvs_party_init(&late, &recv_ops, 9);
	assert_int_equal(kvs_drain_join(&d, &late), -ESHUTDOWN);
	assert_null(late.drain);
	kvs_party_leave(&p, KVS_PROOF_GRANT_INVALIDATED);
	kvs_party_leave(&r2, KVS_PROOF_RECEIVE_REAPED);
	kvs_party_leave(&same, KVS_PROOF_IO_COMPLETION);
	assert_int_equal(overs, 0);
	kvs_party_leave(&r1, KVS_PROOF_RECEIVE_REAPED);
	assert_int_equal(overs, 1);
	/* one was revoked: that is the outcome, the proof is the last one's */
	assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_REVOKED);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_RECEIVE_REAPED], 1);
	/* OVER: nobody joins */
	assert_int_equal(kvs_drain_join(&d, &late), -ESHUTDOWN);
	kvs_drain_fini(&d);
}

/* ARMED -> OVER by acknowledgements of all, each of the others ignored */
static void acknowledgements(void **state)
{
	uint64_t *ignored = f.stats.ack_ignored;
	struct kvs_party p[2], io;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p[0], &later_ops, 0);
	join(&d, &p[1], &later_ops, 1);
	join(&d, &io, &none_ops, 2);
	/* OPEN -> OPEN */
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), -EBUSY);
	assert_true(ignored[KVS_ACK_IGNORED_NOT_ARMED] == 1);
	kvs_drain_arm(&d);
	/* ARMED -> ARMED */
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, 0), -EINVAL);
	assert_true(ignored[KVS_ACK_IGNORED_MALFORMED] == 1);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN - 1), -ESTALE);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN + 1), -ESTALE);
	assert_true(ignored[KVS_ACK_IGNORED_STALE] == 2);
	assert_int_equal(kvs_drain_ack(&d, RANK, 5, GEN), -ENOENT);
	/* an id of another kind is no rank */
	assert_int_equal(kvs_drain_ack(&d, RANK, 2, GEN), -ENOENT);
	assert_true(ignored[KVS_ACK_IGNORED_UNKNOWN_PARTY] == 2);
	assert_int_equal(d.live, 3);
	assert_false(p[0].acked);
	/* counted */
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), 0);
	assert_true(p[0].acked);
	assert_null(p[0].drain);
	assert_int_equal(d.live, 2);
	/* twice is not two parties */
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), -EALREADY);
	assert_true(ignored[KVS_ACK_IGNORED_DUPLICATE] == 1);
	assert_int_equal(d.live, 2);
	kvs_party_leave(&p[0], KVS_PROOF_CONNECTION_TORN_DOWN);
	assert_false(d.revoked);
	kvs_party_leave(&io, KVS_PROOF_IO_COMPLETION);
	assert_int_equal(overs, 0);
	/* ARMED -> OVER */
	assert_int_equal(kvs_drain_ack(&d, RANK, 1, GEN), 0);
	assert_int_equal(overs, 1);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_ALL_ACKNOWLEDGED],
		1);
	assert_true(total_ignored() == 7);
	/* OVER -> OVER; the party's memory is not looked at any more */
	memset(p, 0xff, sizeof(p));
	assert_int_equal(kvs_drain_ack(&d, RANK, 1, GEN), -ENOENT);
	assert_true(total_ignored() == 8);
	assert_int_equal(overs, 1);
	assert_int_equal(revokes, 0);
	kvs_drain_fini(&d);
}

/* ARMED -> OVER at once: the acknowledgement has become impossible */
static void poisoned_while_armed(void **state)
{
	struct kvs_party p, q;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &later_ops, 0);
	join(&d, &q, &now_ops, 1);
	kvs_drain_arm(&d);
	assert_int_equal(kvs_drain_poison(&d, RANK, 5), -ENOENT);
	assert_int_equal(kvs_drain_poison(&d, RANK, 0), 0);
	assert_int_equal(revokes, 1);
	assert_true(p.poisoned && p.revoking);
	/* what it says now proves nothing */
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), -ECANCELED);
	assert_true(f.stats.ack_ignored[KVS_ACK_IGNORED_POISONED] == 1);
	assert_int_equal(d.live, 2);
	/* asked once is enough */
	assert_int_equal(kvs_drain_poison(&d, RANK, 0), 0);
	assert_int_equal(revokes, 1);
	kvs_party_leave(&p, KVS_PROOF_CONNECTION_TORN_DOWN);
	assert_int_equal(overs, 0);
	/* the other leaves from inside the call */
	assert_int_equal(kvs_drain_poison(&d, RANK, 1), 0);
	assert_int_equal(revokes, 2);
	assert_int_equal(overs, 1);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_GRANT_INVALIDATED],
		1);
	assert_int_equal(kvs_drain_poison(&d, RANK, 1), -ENOENT);
	kvs_drain_fini(&d);
}

/* OPEN: remembered. OPEN -> ARMED: done. */
static void poisoned_before_arm(void **state)
{
	struct kvs_party p, q, r;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &now_ops, 0);
	join(&d, &q, &later_ops, 1);
	join(&d, &r, &now_ops, 2);
	assert_int_equal(kvs_drain_poison(&d, RANK, 0), 0);
	assert_int_equal(kvs_drain_poison(&d, RANK, 2), 0);
	assert_int_equal(revokes, 0);
	kvs_drain_arm(&d);
	assert_int_equal(revokes, 2);
	assert_int_equal(d.live, 1);
	assert_false(q.revoking);
	assert_int_equal(kvs_drain_ack(&d, RANK, 1, GEN), 0);
	assert_int_equal(overs, 1);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_ALL_ACKNOWLEDGED],
		1);
	kvs_drain_fini(&d);

	/* OPEN -> ARMED -> OVER inside arm */
	begin(&d);
	join(&d, &p, &now_ops, 0);
	assert_int_equal(kvs_drain_poison(&d, RANK, 0), 0);
	kvs_drain_arm(&d);
	assert_true(kvs_drain_is_over(&d));
	assert_int_equal(overs, 2);
	kvs_drain_fini(&d);
}

/* ARMED -> OVER: the hold timeout revokes, and only then */
static void hold_timeout(void **state)
{
	struct kvs_party p[3];
	struct kvs_drain d;
	unsigned int i;

	(void)state;
	begin(&d);
	for (i = 0; i < 3; i++)
		join(&d, &p[i], i == 1 ? &later_ops : &now_ops, i);
	kvs_drain_arm(&d);
	pass_time(HOLD - 1);
	assert_int_equal(revokes, 0);
	assert_int_equal(d.live, 3);
	pass_time(1);
	assert_int_equal(revokes, 3);
	/* ARMED -> ARMED: begun is not proven, however long it takes */
	assert_int_equal(d.state, KVS_DRAIN_ARMED);
	assert_int_equal(d.live, 1);
	assert_true(p[1].revoking);
	pass_time(1000 * HOLD);
	assert_int_equal(overs, 0);
	kvs_party_leave(&p[1], KVS_PROOF_GRANT_INVALIDATED);
	assert_int_equal(overs, 1);
	assert_int_equal(stucks, 0);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_GRANT_INVALIDATED],
		1);
	assert_true(total_outcomes() == 1);
	kvs_drain_fini(&d);
}

/* ARMED -> OVER: an acknowledgement that arrives during the revocation */
static void acknowledged_while_revoking(void **state)
{
	struct kvs_party p;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &later_ops, 0);
	kvs_drain_arm(&d);
	pass_time(HOLD);
	assert_true(p.revoking);
	assert_int_equal(kvs_drain_ack(&d, RANK, 0, GEN), 0);
	assert_int_equal(overs, 1);
	assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_DRAINED);
	kvs_party_leave(&p, KVS_PROOF_CONNECTION_TORN_DOWN);
	assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_DRAINED);
	kvs_drain_fini(&d);
}

/* ARMED -> STUCK -> OVER */
static void stuck_until_late_proof(void **state)
{
	struct kvs_party p, io, q;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &now_ops, 0);
	join(&d, &io, &none_ops, 0);
	join(&d, &q, &cannot_ops, 1);
	kvs_drain_arm(&d);
	pass_time(HOLD);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	assert_int_equal(stucks, 1);
	assert_int_equal(overs, 0);
	assert_int_equal(d.live, 2);
	assert_false(io.revoking || q.revoking);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_QUARANTINED][KVS_PROOF_CANNOT_REVOKE],
		1);
	/* STUCK -> STUCK: time alone does nothing, ever */
	pass_time(1000000 * HOLD);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	kvs_party_leave(&q, KVS_PROOF_CONNECTION_TORN_DOWN);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	/* STUCK -> OVER */
	kvs_party_leave(&io, KVS_PROOF_IO_COMPLETION);
	assert_int_equal(overs, 1);
	assert_int_equal(stucks, 1);
	assert_int_equal(kvs_drain_outcome(&d), KVS_DRAIN_REVOKED);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_IO_COMPLETION], 1);
	assert_true(total_outcomes() == 2);
	kvs_drain_fini(&d);
}

/* ARMED -> STUCK by poison; the others keep their hold timeout */
static void stuck_by_poison(void **state)
{
	struct kvs_party p, q, r;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &cannot_ops, 0);
	join(&d, &q, &now_ops, 1);
	join(&d, &r, &later_ops, 2);
	assert_int_equal(kvs_drain_poison(&d, RANK, 0), 0);
	kvs_drain_arm(&d);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	assert_int_equal(stucks, 1);
	/* STUCK -> STUCK: acknowledgements of the others still count */
	assert_int_equal(kvs_drain_ack(&d, RANK, 2, GEN), 0);
	assert_int_equal(d.live, 2);
	pass_time(HOLD);
	assert_int_equal(d.live, 1);
	/* asked again, failed again, counted once */
	assert_int_equal(revokes, 3);
	assert_int_equal(stucks, 1);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_QUARANTINED][KVS_PROOF_CANNOT_REVOKE],
		1);
	kvs_party_leave(&p, KVS_PROOF_CONNECTION_TORN_DOWN);
	assert_int_equal(overs, 1);
	kvs_drain_fini(&d);
}

/* The first one revoked takes all with it, from inside the walk. */
static void parties_leave_inside_revoke(void **state)
{
	struct kvs_party p[3], io;
	struct kvs_drain d;
	unsigned int i;

	(void)state;
	begin(&d);
	for (i = 0; i < 3; i++)
		join(&d, &p[i], &all_ops, i);
	kvs_drain_arm(&d);
	pass_time(HOLD);
	assert_int_equal(revokes, 1);
	assert_int_equal(overs, 1);
	assert_int_equal(
		f.stats.total[KVS_DRAIN_REVOKED][KVS_PROOF_CONNECTION_TORN_DOWN],
		1);
	kvs_drain_fini(&d);

	/* likewise with one in front that cannot be revoked */
	begin(&d);
	join(&d, &io, &none_ops, 0);
	for (i = 0; i < 3; i++)
		join(&d, &p[i], &all_ops, i);
	kvs_drain_arm(&d);
	pass_time(HOLD);
	assert_int_equal(revokes, 2);
	assert_int_equal(d.live, 1);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	kvs_party_leave(&io, KVS_PROOF_PROCESS_EXIT);
	assert_int_equal(overs, 2);
	kvs_drain_fini(&d);
}

/* One that failed but was taken away by a later one leaves nothing stuck. */
static void failed_then_gone_is_not_stuck(void **state)
{
	struct kvs_party p[2];
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p[0], &cannot_ops, 0);
	join(&d, &p[1], &all_ops, 1);
	kvs_drain_arm(&d);
	pass_time(HOLD);
	assert_int_equal(revokes, 2);
	assert_int_equal(overs, 1);
	assert_int_equal(stucks, 0);
	assert_true(
		f.stats.total[KVS_DRAIN_QUARANTINED][KVS_PROOF_CANNOT_REVOKE] ==
		0);
	kvs_drain_fini(&d);
}

/* A hold of nothing revokes on the next turn, one without end never. */
static void hold_extremes(void **state)
{
	struct kvs_party p;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	d.hold_timeout = 0;
	join(&d, &p, &now_ops, 0);
	kvs_drain_arm(&d);
	assert_int_equal(overs, 0);
	pass_time(0);
	assert_int_equal(overs, 1);
	kvs_drain_fini(&d);

	begin(&d);
	d.hold_timeout = KVS_TIME_NEVER;
	join(&d, &p, &now_ops, 0);
	kvs_drain_arm(&d);
	assert_true(kvs_timerq_next(&f.timers) == KVS_TIME_NEVER);
	kvs_party_leave(&p, KVS_PROOF_COPY_EVENT);
	assert_int_equal(overs, 2);
	kvs_drain_fini(&d);
}

/* The owner goes away inside over(), on each way to it. */
struct owner {
	struct kvs_drain d;
	struct kvs_party p[2];
};

static void free_owner(struct kvs_drain *d)
{
	struct owner *o = kvs_container_of(d, struct owner, d);

	overs++;
	kvs_drain_fini(d);
	memset(o, 0xa5, sizeof(*o));
	free(o);
}

static struct owner *new_owner(const struct kvs_party_ops *ops)
{
	struct owner *o = malloc(sizeof(*o));

	assert_non_null(o);
	begin(&o->d);
	o->d.over = free_owner;
	join(&o->d, &o->p[0], ops, 0);
	join(&o->d, &o->p[1], ops, 1);
	return o;
}

static void owner_freed_inside(void **state)
{
	struct owner *o;

	(void)state;
	o = new_owner(&now_ops); /* by leave */
	kvs_drain_arm(&o->d);
	kvs_party_leave(&o->p[0], KVS_PROOF_COPY_EVENT);
	kvs_party_leave(&o->p[1], KVS_PROOF_COPY_EVENT);
	assert_int_equal(overs, 1);

	o = new_owner(&now_ops); /* by arm */
	kvs_party_leave(&o->p[0], KVS_PROOF_COPY_EVENT);
	kvs_party_leave(&o->p[1], KVS_PROOF_COPY_EVENT);
	kvs_drain_arm(&o->d);
	assert_int_equal(overs, 2);

	o = new_owner(&now_ops); /* by arm, of poisoned parties */
	assert_int_equal(kvs_drain_poison(&o->d, RANK, 0), 0);
	assert_int_equal(kvs_drain_poison(&o->d, RANK, 1), 0);
	kvs_drain_arm(&o->d);
	assert_int_equal(overs, 3);

	o = new_owner(&now_ops); /* by acknowledgement */
	kvs_drain_arm(&o->d);
	assert_int_equal(kvs_drain_ack(&o->d, RANK, 0, GEN), 0);
	assert_int_equal(kvs_drain_ack(&o->d, RANK, 1, GEN), 0);
	assert_int_equal(overs, 4);

	o = new_owner(&now_ops); /* by poison */
	kvs_drain_arm(&o->d);
	assert_int_equal(kvs_drain_poison(&o->d, RANK, 0), 0);
	assert_int_equal(kvs_drain_poison(&o->d, RANK, 1), 0);
	assert_int_equal(overs, 5);

	o = new_owner(&now_ops); /* by the hold timer, one after the other */
	kvs_drain_arm(&o->d);
	pass_time(HOLD);
	assert_int_equal(overs, 6);

	o = new_owner(&all_ops); /* by the hold timer, together */
	kvs_drain_arm(&o->d);
	pass_time(HOLD);
	assert_int_equal(overs, 7);
}

static void prove_inside(struct kvs_drain *d)
{
	struct owner *o = kvs_container_of(d, struct owner, d);
	struct kvs_party *p = &o->p[1];

	kvs_party_leave(&o->p[0], KVS_PROOF_CONNECTION_TORN_DOWN);
	kvs_party_leave(p, KVS_PROOF_CONNECTION_TORN_DOWN);
}

/* ARMED -> STUCK -> OVER with the late proof from inside stuck() */
static void freed_inside_stuck(void **state)
{
	struct owner *o = new_owner(&cannot_ops);

	(void)state;
	o->d.stuck = prove_inside;
	kvs_drain_arm(&o->d);
	pass_time(HOLD);
	assert_int_equal(overs, 1);
}

/* Without callbacks the state is there to be asked for. */
static void callbacks_are_optional(void **state)
{
	struct kvs_party p;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	d.over = NULL;
	d.stuck = NULL;
	join(&d, &p, &none_ops, 0);
	kvs_drain_arm(&d);
	pass_time(HOLD);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	kvs_party_leave(&p, KVS_PROOF_IO_COMPLETION);
	assert_true(kvs_drain_is_over(&d));
	kvs_drain_fini(&d);
}

/* Any sequence: over once, with nobody left, after every party's proof. */
#define WALK_PARTIES 12

static void random_walk(void **state)
{
	const struct kvs_party_ops *ops[] = { &now_ops, &later_ops,
					      &cannot_ops };
	struct kvs_party p[WALK_PARTIES];
	struct kvs_drain d;
	struct kvs_rng r;
	unsigned int round, i, n, live, before;
	bool armed;

	(void)state;
	seed_rng(&r);
	for (round = 0; round < 20000; round++) {
		begin(&d);
		armed = false;
		before = overs;
		n = 1 + (unsigned int)kvs_rng_below(&r, WALK_PARTIES);
		for (i = 0; i < n; i++)
			join(&d, &p[i], ops[kvs_rng_below(&r, 3)], i);
		while (!kvs_drain_is_over(&d)) {
			i = (unsigned int)kvs_rng_below(&r, n);
			switch (kvs_rng_below(&r, 6)) {
			case 0:
				kvs_drain_arm(&d);
				armed = true;
				break;
			case 1:
				kvs_party_leave(&p[i],
						KVS_PROOF_RECEIVE_REAPED);
				break;
			case 2:
			case 3:
				kvs_drain_ack(&d, RANK, i,
					      GEN - kvs_rng_below(&r, 2));
				break;
			case 4:
				kvs_drain_poison(&d, RANK, i);
				break;
			default:
				pass_time(kvs_rng_below(&r, HOLD));
				break;
			}
			for (live = 0, i = 0; i < n; i++)
				live += p[i].drain != NULL;
			assert_int_equal(live, d.live);
			assert_int_equal(overs - before, armed && !live);
		}
		assert_true(armed);
		kvs_drain_fini(&d);
	}
	assert_int_equal(overs, 20000);
	assert_true(total_outcomes() == 20000 + stucks);
}

static void fini_armed(void *arg)
{
	struct kvs_drain *d = arg;

	kvs_drain_arm(d);
	kvs_drain_fini(d);
}

static void fini_with_party(void *arg)
{
	kvs_drain_fini(arg);
}

static void leave_without_proof(void *arg)
{
	struct kvs_drain *d = arg;

	kvs_party_leave(kvs_drain_find(d, RANK, 0), KVS_PROOF_CANNOT_REVOKE);
}

static void misuse_ends_the_process(void **state)
{
	struct kvs_party p;
	struct kvs_drain d;

	(void)state;
	begin(&d);
	join(&d, &p, &later_ops, 0);
	assert_true(aborts(fini_armed, &d));
	assert_true(aborts(fini_with_party, &d));
	assert_true(aborts(leave_without_proof, &d));
	kvs_party_leave(&p, KVS_PROOF_COPY_EVENT);
	/* granted once: only a drain that is over may go */
	assert_true(aborts(fini_with_party, &d));
	kvs_drain_arm(&d);
	kvs_drain_fini(&d);
}

static void every_name_is_there(void **state)
{
	unsigned int i;

	(void)state;
	for (i = 0; i < KVS_PARTY_MAX; i++)
		assert_non_null(kvs_party_kind_name[i]);
	for (i = 0; i < KVS_PROOF_MAX; i++)
		assert_non_null(kvs_proof_name[i]);
	for (i = 0; i < KVS_DRAIN_OUTCOME_MAX; i++)
		assert_non_null(kvs_drain_outcome_name[i]);
	for (i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		assert_non_null(kvs_ack_ignored_name[i]);
	assert_string_equal(kvs_proof_name[KVS_PROOF_CANNOT_REVOKE],
			    "cannot_revoke");
	assert_string_equal(kvs_ack_ignored_name[KVS_ACK_IGNORED_NOT_ARMED],
			    "not_armed");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(never_granted),
		T(never_used),
		T(arm_before_leave),
		T(leave_before_arm),
		T(joining),
		T(acknowledgements),
		T(poisoned_while_armed),
		T(poisoned_before_arm),
		T(hold_timeout),
		T(acknowledged_while_revoking),
		T(stuck_until_late_proof),
		T(stuck_by_poison),
		T(parties_leave_inside_revoke),
		T(failed_then_gone_is_not_stuck),
		T(hold_extremes),
		T(owner_freed_inside),
		T(freed_inside_stuck),
		T(callbacks_are_optional),
		T(random_walk),
		T(misuse_ends_the_process),
		T(every_name_is_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
