/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engines that a room is received for: its members. Each claims it, copies
 * it and says that its copy has ended; the room is DONE with the last. What ends
 * one of them before that ends the room for all: there is one outcome.
 */
#include <errno.h>
#include <stdio.h>

#include "lib/assert.h"
#include "lib/rule.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

/* What the engine sees. */
static const enum kvs_status room_status[] = {
	[KVS_ROOM_WAITING] = KVS_STATUS_WAITING,
	[KVS_ROOM_ADMITTED] = KVS_STATUS_ADMITTED,
	[KVS_ROOM_RECEIVING] = KVS_STATUS_RECEIVING,
	[KVS_ROOM_SEALING] = KVS_STATUS_SEALING,
	[KVS_ROOM_READY] = KVS_STATUS_READY,
	[KVS_ROOM_COMMITTING] = KVS_STATUS_COMMITTING,
	[KVS_ROOM_DONE] = KVS_STATUS_DONE,
	[KVS_ROOM_DRAINING] = KVS_STATUS_FAILED,
	[KVS_ROOM_QUARANTINED] = KVS_STATUS_FAILED,
	[KVS_ROOM_FREE] = KVS_STATUS_FAILED,
};
static_assert(KVS_ARRAY_SIZE(room_status) == KVS_ROOM_STATE_MAX,
	      "every state has a status");

static void room_tell_word(const struct kvs_room_member *m)
{
	const struct kvs_room *r = m->room;

	if (m->engine->gone || m->slot == KVS_SLOT_NONE)
		return;
	r->w->o.out->to_engine(
		r->w->o.arg, m->engine->number, m->slot,
		KVS_WORD(r->generation, 0, room_status[r->state]), NULL, 0);
}

void kvs_room_tell_status(struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_members; i++)
		room_tell_word(&r->members[i]);
}

void kvs_room_tell_member_cached(const struct kvs_room_member *m)
{
	const struct kvs_room *r = m->room;
	struct kvs_packet_cached p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_CACHED },
		.generation = r->generation,
		.slot = m->slot,
		.blocks = r->prefix ? r->prefix->n : 0,
	};

	if (m->engine->gone || m->slot == KVS_SLOT_NONE)
		return;
	r->w->o.out->to_engine(r->w->o.arg, m->engine->number, m->slot,
			       KVS_WORD(r->generation, 0,
					room_status[r->state]),
			       &p.h, sizeof(p));
}

void kvs_room_tell_cached(struct kvs_room *r)
{
	for (uint32_t i = 0; r->asks && kvs_room_live(r) && i < r->n_members;
	     i++)
		kvs_room_tell_member_cached(&r->members[i]);
}

/* A copy engine of another process cannot be called back. */
static const struct kvs_party_ops copy_party_ops = {
	.name = "commit copy",
	.kind = KVS_PARTY_COPY,
	.revoke = NULL,
};

int kvs_room_init_members(struct kvs_room *r, struct kvs_worker_engine *e,
			  const struct kvs_room_request *q, char *err,
			  size_t errlen)
{
	for (uint32_t i = 0; i < r->n_members; i++) {
		struct kvs_room_member *m = &r->members[i];

		m->room = r;
		m->engine = e;
		if (q->n_members && q->members[i] != e->number)
			m->engine = kvs_worker_engine_find(r->w, q->members[i]);
		if (!m->engine) {
			snprintf(err, errlen, "engine %u of the group is gone",
				 q->members[i]);
			return -ECONNRESET;
		}
		m->slot = m->engine == e ? q->slot : KVS_SLOT_NONE;
		/* a copy of another process cannot be told from a second one
		 * of its own but by its number */
		kvs_party_init(&m->copy, &copy_party_ops, m->engine->number);
		kvs_list_init(&m->engine_node);
	}
	return 0;
}

void kvs_room_claim_too_late(struct kvs_room *r)
{
	uint32_t i = 0;

	if (r->n_members == 1) {
		kvs_room_fail(r, KVS_CAUSE_CLAIM_TIMEOUT, ETIME,
			      "not committed within claim.timeout");
		return;
	}
	while (r->members[i].claimed)
		i++;
	kvs_room_fail(r, KVS_CAUSE_CLAIM_TIMEOUT, ETIME,
		      "committed by %u of %u ranks within claim.timeout, not "
		      "by engine %u",
		      r->n_claimed, r->n_members, r->members[i].engine->number);
}

int kvs_room_commit(struct kvs_room_member *m)
{
	struct kvs_room *r = m->room;

	if (m->claimed)
		return -EPROTO;
	if (r->state != KVS_ROOM_READY && r->state != KVS_ROOM_COMMITTING)
		return -EAGAIN;
	m->claimed = true;
	if (r->state == KVS_ROOM_READY) {
		kvs_hist_record(&r->w->stats.claim,
				kvs_clock_now(r->w->clock) - r->since);
		kvs_room_move(r, KVS_ROOM_COMMITTING);
		kvs_extents_set_state(&r->ext, KVS_EXTENT_COMMITTING);
	}
	/* claim.timeout is for each of them */
	if (++r->n_claimed == r->n_members)
		kvs_timer_cancel(&r->w->timers, &r->deadline);
	if (KVS_RULE(R13, COMMIT))
		KVS_ASSERT(!kvs_drain_join(&r->drain, &m->copy));
	room_tell_word(m);
	return 0;
}

/* The last copy has ended: nobody reads it any more. */
static void room_done(struct kvs_room *r, struct kvs_room_member *last)
{
	kvs_hist_record(&r->w->stats.commit,
			kvs_clock_now(r->w->clock) - r->since);
	kvs_room_move(r, KVS_ROOM_DONE);
	r->w->live--;
	r->w->stats.rooms_done++;
	r->w->stats.rooms_done_bytes += r->ext.bytes;
	/* Before the word: who sees it may use the id again. */
	r->w->o.out->room_over(r->w->o.arg, r->id, r->generation, 0, "");
	kvs_room_tell_status(r);
	kvs_party_leave(&last->copy, KVS_PROOF_COPY_EVENT);
	kvs_drain_arm(&r->drain);
}

int kvs_room_committed(struct kvs_room_member *m, int err)
{
	struct kvs_room *r = m->room;

	if (!m->copy.drain)
		return -EPROTO;
	if (r->state == KVS_ROOM_COMMITTING && err)
		kvs_room_fail(r, KVS_CAUSE_COPY_FAILED, err,
			      "the engine's copy to the device failed");
	if (r->state == KVS_ROOM_COMMITTING) {
		m->copied = true;
		r->w->stats.commits++;
		if (++r->n_copied == r->n_members || !KVS_RULE(R12, GROUP)) {
			room_done(r, m);
			return 0;
		}
	}
	kvs_party_leave(&m->copy, KVS_PROOF_COPY_EVENT);
	return 0;
}

void kvs_room_join(struct kvs_room_member *m, uint32_t slot)
{
	m->slot = slot;
	if (m->room->asks && kvs_room_live(m->room))
		kvs_room_tell_member_cached(m);
	if (m->room->state != KVS_ROOM_READY &&
	    m->room->state != KVS_ROOM_COMMITTING)
		room_tell_word(m);
	else if (kvs_room_tell_member_ready(m))
		kvs_room_fail(m->room, KVS_CAUSE_INTERNAL, ENOMEM,
			      "no memory to hand the room over");
}

struct kvs_room_member *kvs_room_member(struct kvs_room *r, uint32_t engine,
					uint32_t slot)
{
	for (uint32_t i = 0; i < r->n_members; i++)
		if (r->members[i].engine->number == engine &&
		    r->members[i].slot == slot)
			return &r->members[i];
	return NULL;
}

bool kvs_room_copying(const struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_members; i++)
		if (r->members[i].copy.drain)
			return true;
	return false;
}
