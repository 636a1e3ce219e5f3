/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/drain.h"

#include <errno.h>

#include "lib/rule.h"

#define DRAIN_MAGIC 0x6b764472u

#define KVS_NAME_(n, s) [KVS_PARTY_##n] = s,
const char *const kvs_party_kind_name[KVS_PARTY_MAX] = { KVS_PARTY_KINDS(
	KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_PROOF_##n] = s,
const char *const kvs_proof_name[KVS_PROOF_MAX] = { KVS_PROOFS(KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_DRAIN_##n] = s,
const char *const kvs_drain_outcome_name[KVS_DRAIN_OUTCOME_MAX] = {
	KVS_DRAIN_OUTCOMES(KVS_NAME_)
};
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_ACK_IGNORED_##n] = s,
const char *const kvs_ack_ignored_name[KVS_ACK_IGNORED_MAX] = { KVS_ACK_IGNORED(
	KVS_NAME_) };
#undef KVS_NAME_

static void hold_expired(struct kvs_timer *t);

void kvs_drain_init(struct kvs_drain *d, const struct kvs_drain_opts *o)
{
	KVS_ASSERT(o->clock && o->timers && o->stats);
	*d = (struct kvs_drain){
		.magic = DRAIN_MAGIC,
		.state = KVS_DRAIN_OPEN,
		.generation = o->generation,
		.last_proof = KVS_PROOF_NEVER_GRANTED,
		.timers = o->timers,
		.clock = o->clock,
		.hold_timeout = o->hold_timeout,
		.stats = o->stats,
		.over = o->over,
		.stuck = o->stuck,
		.left = o->left,
	};
	kvs_list_init(&d->parties);
	kvs_list_init(&d->acked);
	kvs_timer_init(&d->hold, hold_expired);
}

void kvs_drain_fini(struct kvs_drain *d)
{
	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	KVS_ASSERT(d->state == KVS_DRAIN_OVER ||
		   (d->state == KVS_DRAIN_OPEN && !d->was_granted));
	KVS_ASSERT(!d->busy && !kvs_timer_is_set(&d->hold));
	d->magic = 0;
}

void kvs_drain_expose(struct kvs_drain *d, enum kvs_proof proof)
{
	KVS_ASSERT(d->state == KVS_DRAIN_OPEN);
	d->was_granted = true;
	d->last_proof = proof;
}

void kvs_party_init(struct kvs_party *p, const struct kvs_party_ops *ops,
		    uint64_t id)
{
	*p = (struct kvs_party){ .ops = ops, .id = id };
	kvs_list_init(&p->node);
}

static struct kvs_party *find_in(struct kvs_list *list,
				 enum kvs_party_kind kind, uint64_t id)
{
	struct kvs_party *p;

	kvs_list_for_each_entry(p, list, node)
		if (p->ops->kind == kind && p->id == id)
			return p;
	return NULL;
}

struct kvs_party *kvs_drain_find(struct kvs_drain *d, enum kvs_party_kind kind,
				 uint64_t id)
{
	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	return find_in(&d->parties, kind, id);
}

int kvs_drain_join(struct kvs_drain *d, struct kvs_party *p)
{
	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	if (d->state != KVS_DRAIN_OPEN)
		return -ESHUTDOWN;
	if (p->drain == d)
		return -EEXIST;
	KVS_ASSERT(!p->drain && kvs_list_empty(&p->node));
	if (p->ops->kind != KVS_PARTY_RECEIVE &&
	    p->ops->kind != KVS_PARTY_READ &&
	    find_in(&d->parties, p->ops->kind, p->id))
		return -EEXIST;
	p->drain = d;
	p->acked = false;
	p->poisoned = false;
	p->revoking = false;
	p->walk = 0;
	kvs_list_add_tail(&d->parties, &p->node);
	d->live++;
	d->was_granted = true;
	return 0;
}

enum kvs_drain_outcome kvs_drain_outcome(const struct kvs_drain *d)
{
	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	if (d->state == KVS_DRAIN_STUCK || d->abandoned)
		return KVS_DRAIN_QUARANTINED;
	KVS_ASSERT(d->state == KVS_DRAIN_OVER);
	return d->revoked ? KVS_DRAIN_REVOKED : KVS_DRAIN_DRAINED;
}

/* R1: as long as one is left, the memory stays away. */
static bool party_left(const struct kvs_drain *d)
{
	return d->live && KVS_RULE(R1, HOLD);
}

static void end(struct kvs_drain *d)
{
	struct kvs_party *p, *tmp;

	d->state = KVS_DRAIN_OVER;
	d->over_at = kvs_clock_now(d->clock);
	kvs_timer_cancel(d->timers, &d->hold);
	/* from here on their memory may go away at any time */
	kvs_list_for_each_entry_safe(p, tmp, &d->acked, node)
		kvs_list_del(&p->node);
	if (!d->abandoned)
		d->stats->total[kvs_drain_outcome(d)][d->last_proof]++;
	if (d->over)
		d->over(d);
}

/*
 * Ends the drain if it can end. The owner may be gone on return, so this is
 * the last thing that each caller does.
 */
static void end_if_done(struct kvs_drain *d)
{
	if (party_left(d) || d->busy)
		return;
	if (d->state == KVS_DRAIN_ARMED || d->state == KVS_DRAIN_STUCK)
		end(d);
}

static void take_out(struct kvs_party *p, enum kvs_proof proof)
{
	struct kvs_drain *d = p->drain;

	KVS_ASSERT(d->live > 0);
	KVS_ASSERT(proof < KVS_PROOF_MAX && proof != KVS_PROOF_CANNOT_REVOKE);
	if (p->acked && proof == KVS_PROOF_GRANT_INVALIDATED)
		proof = KVS_PROOF_ALL_ACKNOWLEDGED;
	if (d->left && d->state != KVS_DRAIN_OPEN)
		d->left(d, p, proof);
	kvs_list_del(&p->node);
	/* a second acknowledgement is told by this list */
	if (p->acked)
		kvs_list_add_tail(&d->acked, &p->node);
	p->drain = NULL;
	d->live--;
	d->last_proof = proof;
	/* before it is armed a grant is closed because all is there */
	if (d->state != KVS_DRAIN_OPEN &&
	    (proof == KVS_PROOF_GRANT_INVALIDATED ||
	     proof == KVS_PROOF_CONNECTION_TORN_DOWN))
		d->revoked = true;
}

void kvs_party_leave(struct kvs_party *p, enum kvs_proof proof)
{
	struct kvs_drain *d = p->drain;

	if (!d)
		return;
	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	take_out(p, proof);
	end_if_done(d);
}

/* Asks @p; it may leave, and take others with it, before this returns. */
static void ask_revoke(struct kvs_drain *d, struct kvs_party *p)
{
	KVS_ASSERT(d->busy > 0);
	p->walk = d->walk;
	p->revoking = true;
	/* on success its memory may be gone; on failure it has not left */
	if (!p->ops->revoke || p->ops->revoke(p) < 0)
		p->revoking = false;
}

/* The next live party that this walk has not asked yet. */
static struct kvs_party *next_unasked(struct kvs_drain *d, bool only_poisoned)
{
	struct kvs_party *p;

	/* those asked go to the end, so the search is short */
	kvs_list_for_each_entry(p, &d->parties, node) {
		if (p->walk == d->walk)
			continue;
		if (p->poisoned || !only_poisoned)
			return p;
	}
	return NULL;
}

/* After revocations: over, stuck, or on. The drain may be gone on return. */
static void settle(struct kvs_drain *d)
{
	const struct kvs_party *p;
	bool stuck = false;

	if (d->busy)
		return;
	if (!d->live) {
		end_if_done(d);
		return;
	}
	if (d->state != KVS_DRAIN_ARMED)
		return;
	kvs_list_for_each_entry(p, &d->parties, node)
		stuck |= p->walk && !p->revoking;
	if (!stuck)
		return;
	d->state = KVS_DRAIN_STUCK;
	d->stats->total[KVS_DRAIN_QUARANTINED][KVS_PROOF_CANNOT_REVOKE]++;
	if (d->stuck)
		d->stuck(d);
}

static void revoke_walk(struct kvs_drain *d, bool only_poisoned)
{
	struct kvs_party *p;

	d->walk++;
	d->busy++;
	while ((p = next_unasked(d, only_poisoned))) {
		kvs_list_del(&p->node);
		kvs_list_add_tail(&d->parties, &p->node);
		ask_revoke(d, p);
	}
	d->busy--;
	settle(d);
}

void kvs_party_revoke_failed(struct kvs_party *p)
{
	struct kvs_drain *d = p->drain;

	if (!d)
		return;
	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	p->revoking = false;
	settle(d);
}

static void hold_expired(struct kvs_timer *t)
{
	struct kvs_drain *d = kvs_container_of(t, struct kvs_drain, hold);

	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	if (KVS_RULE(R8, REVOKE))
		revoke_walk(d, false);
	else
		end(d);
}

void kvs_drain_arm(struct kvs_drain *d)
{
	uint64_t at;
	int r;

	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	if (d->state != KVS_DRAIN_OPEN)
		return;
	d->state = KVS_DRAIN_ARMED;
	d->armed_at = kvs_clock_now(d->clock);
	if (!party_left(d)) {
		end_if_done(d);
		return;
	}
	if (d->hold_timeout < KVS_TIME_NEVER - d->armed_at) {
		at = d->armed_at + d->hold_timeout;
		r = kvs_timer_set(d->timers, &d->hold, at);
		/* an error may make a hold longer, never shorter */
		KVS_WARN_ONCE(r, "drain: no memory for a hold timer");
	}
	revoke_walk(d, true);
}

void kvs_drain_abandon(struct kvs_drain *d)
{
	struct kvs_party *p, *tmp;

	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	KVS_ASSERT(!d->busy);
	if (d->state == KVS_DRAIN_OVER)
		return;
	kvs_list_for_each_entry_safe(p, tmp, &d->parties, node) {
		kvs_list_del(&p->node);
		p->drain = NULL;
		d->live--;
	}
	d->abandoned = true;
	end(d);
}

/* The drain may be gone on return. */
static void ask_one(struct kvs_drain *d, struct kvs_party *p)
{
	d->busy++;
	ask_revoke(d, p);
	d->busy--;
	settle(d);
}

static int ignore(struct kvs_drain *d, enum kvs_ack_ignored why, int err)
{
	d->stats->ack_ignored[why]++;
	return err;
}

/* Any party of a kind: acknowledgements as a mere number. */
static struct kvs_party *first_of(struct kvs_drain *d, enum kvs_party_kind kind)
{
	struct kvs_party *p;

	kvs_list_for_each_entry(p, &d->parties, node)
		if (p->ops->kind == kind)
			return p;
	return NULL;
}

int kvs_drain_ack(struct kvs_drain *d, enum kvs_party_kind kind, uint64_t id,
		  uint64_t generation)
{
	struct kvs_party *p;

	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	if (!generation && KVS_RULE(R3, GENERATION))
		return ignore(d, KVS_ACK_IGNORED_MALFORMED, -EINVAL);
	if (generation != d->generation && KVS_RULE(R3, GENERATION))
		return ignore(d, KVS_ACK_IGNORED_STALE, -ESTALE);
	if (d->state == KVS_DRAIN_OPEN)
		return ignore(d, KVS_ACK_IGNORED_NOT_ARMED, -EBUSY);
	p = KVS_RULE(R3, DISTINCT) ? find_in(&d->parties, kind, id)
				   : first_of(d, kind);
	if (p ? p->acked : !!find_in(&d->acked, kind, id))
		return ignore(d, KVS_ACK_IGNORED_DUPLICATE, -EALREADY);
	if (!p)
		return ignore(d, KVS_ACK_IGNORED_UNKNOWN_PARTY, -ENOENT);
	if (p->poisoned && KVS_RULE(R5, IGNORE))
		return ignore(d, KVS_ACK_IGNORED_POISONED, -ECANCELED);
	p->acked = true;
	if (p->ops->ack_closes && KVS_RULE(R1, CLOSE)) {
		if (!p->revoking)
			ask_one(d, p);
		return 0;
	}
	take_out(p, KVS_PROOF_ALL_ACKNOWLEDGED);
	end_if_done(d);
	return 0;
}

int kvs_drain_poison(struct kvs_drain *d, enum kvs_party_kind kind, uint64_t id)
{
	struct kvs_party *p;

	KVS_CHECK_MAGIC(d, DRAIN_MAGIC);
	p = find_in(&d->parties, kind, id);
	if (!p)
		return -ENOENT;
	if (p->poisoned || !KVS_RULE(R5, REVOKE))
		return 0;
	p->poisoned = true;
	if (d->state != KVS_DRAIN_OPEN && !p->revoking)
		ask_one(d, p);
	return 0;
}
