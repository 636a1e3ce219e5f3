/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/room.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

#define KVS_ROOM_MAGIC 0x4b56524du

#define KVS_NAME_(n, s) s,
const char *const kvs_room_state_name[KVS_ROOM_STATE_MAX] = { KVS_ROOM_STATES(
	KVS_NAME_) };

#define TO(s) (1u << KVS_ROOM_##s)
/* Legal edges: from each state, the set of states it may move to. */
static const unsigned int room_edges[] = {
	[KVS_ROOM_WAITING] = TO(ADMITTED) | TO(DRAINING),
	[KVS_ROOM_ADMITTED] = TO(RECEIVING) | TO(WAITING) | TO(DRAINING),
	[KVS_ROOM_RECEIVING] = TO(SEALING) | TO(DRAINING),
	[KVS_ROOM_SEALING] = TO(READY) | TO(DRAINING),
	[KVS_ROOM_READY] = TO(COMMITTING) | TO(DRAINING),
	[KVS_ROOM_COMMITTING] = TO(DONE) | TO(DRAINING),
	[KVS_ROOM_DONE] = TO(FREE),
	[KVS_ROOM_DRAINING] = TO(QUARANTINED) | TO(FREE),
	[KVS_ROOM_QUARANTINED] = TO(FREE),
	[KVS_ROOM_FREE] = 0,
};
static_assert(KVS_ARRAY_SIZE(room_edges) == KVS_ROOM_STATE_MAX,
	      "every state has its edges");

/* The one place where a room's state changes. */
void kvs_room_move(struct kvs_room *r, enum kvs_room_state to)
{
	KVS_ASSERT(room_edges[r->state] & (1u << to));
	r->state = to;
	r->since = kvs_clock_now(r->w->clock);
}

void kvs_room_deadline(struct kvs_room *r, uint64_t after)
{
	uint64_t at = after + (KVS_RULE(R14, START) ? kvs_clock_now(r->w->clock)
						    : r->admit_at);

	/* Out of memory for a timer: better no deadline than a lost room;
	 * the engine's abort still ends it. */
	if (kvs_timer_set(&r->w->timers, &r->deadline, at))
		KVS_WARN_ONCE(true, "room %llu: no memory for its deadline",
			      (unsigned long long)r->id);
}

/* Every rank has open.timeout to open, counted from the memory; all together
 * have transfer.timeout, from the first OPEN. */
static void room_deadline_receiving(struct kvs_room *r)
{
	uint64_t now = kvs_clock_now(r->w->clock);
	uint64_t at = r->open_at + r->w->set->transfer_timeout;

	if (r->ranks_granted < r->n_ranks &&
	    at > r->memory_at + r->w->set->open_timeout)
		at = r->memory_at + r->w->set->open_timeout;
	kvs_room_deadline(r, at > now ? at - now : 0);
}

static void room_receiving_too_long(struct kvs_room *r)
{
	uint64_t now = kvs_clock_now(r->w->clock);
	uint32_t i = 0;

	if (r->ranks_granted == r->n_ranks ||
	    now >= r->open_at + r->w->set->transfer_timeout) {
		kvs_room_fail(r, KVS_CAUSE_TRANSFER_TIMEOUT, ETIMEDOUT,
			      "%llu of %llu bytes within transfer.timeout",
			      (unsigned long long)r->received,
			      (unsigned long long)r->expected);
		return;
	}
	while (r->ranks[i].session)
		i++;
	kvs_room_fail(r, KVS_CAUSE_OPEN_TIMEOUT, ETIME,
		      "rank %u did not open the room within open.timeout", i);
}

static void room_deadline_fired(struct kvs_timer *t)
{
	struct kvs_room *r = kvs_container_of(t, struct kvs_room, deadline);

	if (!KVS_RULE(R7, DEADLINE))
		return;
	switch (r->state) {
	case KVS_ROOM_WAITING:
		if (r->opened || !r->memory_at) {
			kvs_room_fail(r, KVS_CAUSE_ADMISSION_TIMEOUT, ETIME,
				      "no memory within admission.timeout");
			break;
		}
		/* its loan was called in, and its time to be opened went on */
		__attribute__((fallthrough));
	case KVS_ROOM_ADMITTED:
		kvs_room_fail(r, KVS_CAUSE_OPEN_TIMEOUT, ETIME,
			      "no rank opened the room within open.timeout");
		break;
	case KVS_ROOM_RECEIVING:
	case KVS_ROOM_SEALING:
		room_receiving_too_long(r);
		break;
	case KVS_ROOM_READY:
	case KVS_ROOM_COMMITTING:
		kvs_room_claim_too_late(r);
		break;
	case KVS_ROOM_DRAINING:
	case KVS_ROOM_QUARANTINED:
		kvs_room_ask_again(r);
		break;
	case KVS_ROOM_DONE:
	case KVS_ROOM_FREE:
	case KVS_ROOM_STATE_MAX:
		break;
	}
}

static void room_to_free(struct kvs_room *r)
{
	struct kvs_worker *w = r->w;

	kvs_admission_leave(r);
	kvs_cache_put(w, r->prefix);
	r->prefix = NULL;
	if (r->ext.pool) {
		kvs_admission_released(r, r->ext.bytes);
		kvs_pool_release(&r->ext, &r->drain);
		w->released = true;
	}
	kvs_room_move(r, KVS_ROOM_FREE);
	kvs_list_add_tail(&w->dead, &r->dead_node);
}

static void room_drain_over(struct kvs_drain *d)
{
	struct kvs_room *r = kvs_container_of(d, struct kvs_room, drain);

	/* A commit ends its drain at once; only holds are worth timing. */
	if (d->abandoned) {
		kvs_room_log_abandoned(r);
	} else if (r->failed) {
		kvs_hist_record(&r->w->stats.drain_seconds,
				d->over_at - d->armed_at);
		kvs_room_log_released(r);
	}
	if (!d->abandoned)
		kvs_cache_donate(r);
	room_to_free(r);
}

static void room_drain_left(struct kvs_drain *d, const struct kvs_party *p,
			    enum kvs_proof proof)
{
	kvs_room_log_left(kvs_container_of(d, struct kvs_room, drain), p,
			  proof);
}

static void room_drain_stuck(struct kvs_drain *d)
{
	struct kvs_room *r = kvs_container_of(d, struct kvs_room, drain);

	if (r->state != KVS_ROOM_DRAINING)
		return;
	kvs_room_move(r, KVS_ROOM_QUARANTINED);
	kvs_extents_set_state(&r->ext, KVS_EXTENT_QUARANTINED);
	kvs_log_err("room %llu gen %llu: %u parties cannot be revoked, "
		    "%llu bytes quarantined until a late proof",
		    (unsigned long long)r->id,
		    (unsigned long long)r->generation, d->live,
		    (unsigned long long)r->ext.bytes);
}

/* A remote writer on TCP can touch nothing but through our own receives:
 * once those are stopped, the closed table entry is the proof. */
static int rank_revoke(struct kvs_party *p)
{
	struct kvs_room_rank *k =
		kvs_container_of(p, struct kvs_room_rank, party);
	struct kvs_receive *rx;

	kvs_list_for_each_entry(rx, &k->room->receives, node)
		if (rx->rank == k)
			return 0; /* its end comes as receive_end() */
	kvs_party_leave(p, KVS_PROOF_GRANT_INVALIDATED);
	return 0;
}

static const struct kvs_party_ops rank_party_ops = {
	.name = "rank",
	.kind = KVS_PARTY_RANK,
	.revoke = rank_revoke,
};

static void room_init_ranks(struct kvs_room *r,
			    const struct kvs_room_request *q)
{
	for (uint32_t i = 0; i < q->n_ranks; i++) {
		struct kvs_room_rank *k = &r->ranks[i];

		k->room = r;
		k->rank = i;
		k->slice = kvs_room_slice(q, i);
		k->expected = kvs_geometry_slice_bytes(&r->geo, &k->slice);
		kvs_list_init(&k->session_node);
		kvs_party_init(&k->party, &rank_party_ops, i);
		r->expected += k->expected;
	}
}

int kvs_room_create(struct kvs_worker *w, struct kvs_worker_engine *e,
		    const struct kvs_room_request *q, struct kvs_room **ret,
		    char *err, size_t errlen)
{
	struct kvs_drain_opts d = {
		.generation = q->generation,
		.hold_timeout = w->set->hold_timeout,
		.clock = w->clock,
		.timers = &w->timers,
		.stats = &w->stats.drains,
		.over = room_drain_over,
		.stuck = room_drain_stuck,
		.left = room_drain_left,
	};
	uint32_t members = q->n_members ? q->n_members : 1;
	struct kvs_host *host = NULL;
	struct kvs_geometry g;
	struct kvs_room *r;
	int res;

	res = kvs_room_layout(w, e, q, &host, &g, err, errlen);
	if (res)
		return res;
	res = KVS_RULE(R11, FIT) ? kvs_room_check_fit(w, &g, err, errlen) : 0;
	if (!res)
		res = kvs_admission_check(w, q, kvs_room_need(&g), err, errlen);
	if (res)
		goto out_geometry;
	res = -ENOMEM;
	r = calloc(1, sizeof(*r) + q->n_ranks * sizeof(r->ranks[0]) +
			      members * sizeof(r->members[0]));
	if (!r)
		goto out_geometry;
	r->magic = KVS_ROOM_MAGIC;
	r->state = KVS_ROOM_WAITING;
	r->id = q->room;
	r->generation = q->generation;
	r->w = w;
	r->members = (struct kvs_room_member *)(r->ranks + q->n_ranks);
	r->n_members = members;
	snprintf(r->peer, sizeof(r->peer), "%s", q->peer);
	memcpy(r->nonce, q->nonce, sizeof(r->nonce));
	r->geo = g;
	r->host = host;
	r->n_ranks = q->n_ranks;
	r->since = kvs_clock_now(w->clock);
	r->admit_at = r->since;
	r->wait_at = r->since;
	r->health = q->health;
	r->asks = q->use_cache;
	r->need = kvs_room_need(&g);
	kvs_ranges_init(&r->claimed, w->set->transfer_max_ranges);
	kvs_list_init(&r->receives);
	kvs_list_init(&r->dead_node);
	kvs_list_init(&r->loan_node);
	kvs_timer_init(&r->deadline, room_deadline_fired);
	kvs_wait_init(&r->wait, kvs_room_wait_try);
	kvs_drain_init(&r->drain, &d);
	room_init_ranks(r, q);
	res = kvs_room_init_members(r, e, q, err, errlen);
	if (!res)
		res = kvs_admission_enter(r);
	if (res)
		goto out_room;
	res = kvs_u64map_add(&w->rooms, r->generation, r);
	if (res)
		goto out_account;
	for (uint32_t i = 0; i < members; i++)
		kvs_list_add_tail(&r->members[i].engine->rooms,
				  &r->members[i].engine_node);
	w->live++;
	*ret = r;
	return 0;

out_account:
	kvs_admission_leave(r);
out_room:
	kvs_drain_fini(&r->drain);
	kvs_ranges_fini(&r->claimed);
	free(r);
out_geometry:
	kvs_geometry_fini(&g);
	kvs_host_put(host);
	return res;
}

static void room_rank_fini(struct kvs_room_rank *k)
{
	kvs_list_del(&k->session_node);
	kvs_digest_map_fini(&k->map);
}

void kvs_room_discard(struct kvs_room *r)
{
	KVS_ASSERT(r->state == KVS_ROOM_WAITING && !r->queue);
	r->w->live--;
	kvs_room_move(r, KVS_ROOM_DRAINING);
	kvs_drain_arm(&r->drain); /* and that is over */
	kvs_room_destroy(r);
}

void kvs_room_destroy(struct kvs_room *r)
{
	KVS_CHECK_MAGIC(r, KVS_ROOM_MAGIC);
	KVS_ASSERT(r->state == KVS_ROOM_FREE);
	KVS_ASSERT(kvs_list_empty(&r->receives));
	kvs_timer_cancel(&r->w->timers, &r->deadline);
	for (uint32_t i = 0; i < r->n_ranks; i++)
		room_rank_fini(&r->ranks[i]);
	for (uint32_t i = 0; i < r->n_members; i++)
		kvs_list_del(&r->members[i].engine_node);
	kvs_list_del(&r->dead_node);
	kvs_u64map_del(&r->w->rooms, r->generation);
	kvs_drain_fini(&r->drain);
	kvs_ranges_fini(&r->claimed);
	kvs_geometry_fini(&r->geo);
	free(r->keys);
	kvs_host_put(r->host);
	r->magic = 0;
	free(r);
}

bool kvs_room_live(const struct kvs_room *r)
{
	return r->state < KVS_ROOM_DONE;
}

void kvs_room_grant_fill(const struct kvs_room *r,
			 const struct kvs_room_rank *k, struct kvs_msg *ret)
{
	*ret = (struct kvs_msg){
		.type = KVS_WIRE_GRANT,
		.grant = {
			.room = r->id,
			.generation = r->generation,
			.rank = k->rank,
			.worker = r->w->o.index,
			.tokens = r->geo.tokens,
			.page_size = r->geo.layout->page_size,
			.extent_tokens = r->geo.extent_pages *
					 r->geo.layout->page_size,
			.n_extents = r->geo.n_extents,
			.first_layer = k->slice.first_layer,
			.n_layers = k->slice.n_layers,
			.tp = k->slice.tp,
			.tp_rank = k->slice.tp_rank,
			.aux_len = r->geo.aux_len,
			.call_timeout_ms = (uint32_t)(
				r->w->set->transfer_call_timeout /
				KVS_NSEC_PER_MSEC),
			.batch_bytes = r->w->set->transfer_max_batch_bytes,
		},
	};
}

/* Make a rank a writer: from here on its bytes may arrive. */
void kvs_room_grant(struct kvs_room *r, struct kvs_room_rank *k)
{
	struct kvs_worker *w = r->w;
	struct kvs_msg m;

	if (r->state == KVS_ROOM_ADMITTED) {
		kvs_admission_unlend(r);
		kvs_room_move(r, KVS_ROOM_RECEIVING);
		kvs_extents_set_state(&r->ext, KVS_EXTENT_GRANTED);
		kvs_drain_expose(&r->drain, KVS_PROOF_RECEIVE_REAPED);
		kvs_room_canaries(r);
		r->open_at = r->since;
		room_deadline_receiving(r);
		kvs_room_tell_status(r);
	}
	if (++r->ranks_granted == r->n_ranks)
		room_deadline_receiving(r);
	if (k->session->one_sided && k->expected) {
		(void)kvs_room_grant_open(r, k);
		return;
	}
	if ((k->session->one_sided || w->set->hold_require_ack) &&
	    (k->expected || KVS_RULE(R3, ZERO_BYTE)))
		KVS_ASSERT(!kvs_drain_join(&r->drain, &k->party));
	k->granted = true;
	kvs_room_grant_fill(r, k, &m);
	w->o.out->to_peer(w->o.arg, k->session->id, &m);
}

static int room_digest_begin(struct kvs_room *r, struct kvs_room_rank *k,
			     enum kvs_digest_kind kind)
{
	enum kvs_digest_kind want = KVS_DIGEST_NONE;
	int ret;

	if (r->health)
		return 0; /* seconds of a large checksum are no sign of life */
	(void)kvs_digest_kind_parse(r->w->set->checksum_kind, &want);
	if (kind == KVS_DIGEST_NONE) {
		r->w->stats.checksum_skipped += want != KVS_DIGEST_NONE;
		return 0;
	}
	ret = kvs_digest_map_init(&k->map, r->geo.layout, r->geo.tokens,
				  r->geo.extent_pages *
					  r->geo.layout->page_size,
				  &k->slice, r->geo.aux_len);
	if (ret)
		return ret;
	kvs_digest_init(&k->digest, kind, k->map.total);
	return 0;
}

int kvs_room_open(struct kvs_room *r, struct kvs_worker_session *s,
		  uint32_t rank, uint64_t tokens, char *err, size_t errlen)
{
	struct kvs_room_rank *k;

	if (rank >= r->n_ranks || strcmp(s->peer, r->peer) != 0 ||
	    s->rank != rank) {
		snprintf(err, errlen,
			 "room is for %u ranks of peer %s, not for rank %u of "
			 "%s",
			 r->n_ranks, r->peer, rank, s->peer);
		return -EACCES;
	}
	if (tokens && tokens != r->geo.tokens) {
		snprintf(err, errlen,
			 "sender has %llu tokens, the engine asked for %llu",
			 (unsigned long long)tokens,
			 (unsigned long long)r->geo.tokens);
		return -EPROTOTYPE;
	}
	k = &r->ranks[rank];
	if (k->session) {
		snprintf(err, errlen, "rank %u has opened it already", rank);
		return -EEXIST;
	}
	if (room_digest_begin(r, k, s->digest)) {
		snprintf(err, errlen, "no memory for the checksum");
		return -EAGAIN;
	}
	k->session = s;
	k->session_id = s->id;
	kvs_list_add_tail(&s->ranks, &k->session_node);
	if (r->state == KVS_ROOM_WAITING) {
		kvs_room_opened(r); /* and granted, if there is memory */
		return 0;
	}
	r->opened = true;
	if (r->state == KVS_ROOM_ADMITTED || r->state == KVS_ROOM_RECEIVING)
		kvs_room_grant(r, k);
	return 0;
}

/* What arrived is what was sent, or the room fails (never the process). */
static int room_check_digests(struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		const struct kvs_room_rank *k = &r->ranks[i];
		uint32_t have = kvs_digest_value(&k->digest);

		if (k->digest.kind == KVS_DIGEST_NONE || have == k->sent_digest)
			continue;
		kvs_room_fail(r, KVS_CAUSE_CHECKSUM, EBADMSG,
			      "rank %u: %s of what was sent is %08x, of what "
			      "arrived %08x",
			      i, kvs_digest_kind_name(k->digest.kind),
			      k->sent_digest, have);
		return -EBADMSG;
	}
	return 0;
}

/* R9: where the receives are our own, every byte was counted as it was placed,
 * and with no receive left nothing can change any more. What others wrote is
 * looked at once they cannot any more. */
void kvs_room_check_arrival(struct kvs_room *r)
{
	if (r->drain.live && KVS_RULE(R9, CLOSED))
		return;
	/* what is cached of it is looked at, too; that comes back here */
	if (r->prefix && !r->prefix->verified && KVS_RULE(R12, FOLDED))
		return;
	if (kvs_room_check_canaries(r) || room_check_digests(r))
		return;
	kvs_room_move(r, KVS_ROOM_READY);
	kvs_extents_set_state(&r->ext, KVS_EXTENT_STAGED);
	kvs_hist_record(&r->w->stats.transfer, r->since - r->open_at);
	kvs_room_deadline(r, r->w->set->claim_timeout);
	kvs_worker_inject(r->w, r);
	kvs_room_tell_ready(r);
	if (r->state != KVS_ROOM_READY)
		return;
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		struct kvs_room_rank *k = &r->ranks[i];
		struct kvs_msg m = {
			.type = KVS_WIRE_COMPLETE,
			.complete = { .room = r->id,
				      .generation = r->generation,
				      .rank = k->rank },
		};

		if (k->session)
			r->w->o.out->to_peer(r->w->o.arg, k->session->id, &m);
	}
}

static void room_check_complete(struct kvs_room *r)
{
	if (r->state == KVS_ROOM_RECEIVING && r->ranks_last == r->n_ranks &&
	    (r->received == r->expected || !KVS_RULE(R9, SEEN))) {
		kvs_room_move(r, KVS_ROOM_SEALING);
		kvs_room_tell_status(r);
		kvs_room_close_grants(r);
	}
	if (r->state == KVS_ROOM_SEALING)
		kvs_room_check_arrival(r);
}

/* A rank sends less than was asked for. Which bytes are missing is known when
 * those that it did send are here: LAST may have overtaken them. */
static void room_check_short(struct kvs_room *r, struct kvs_room_rank *k)
{
	char where[128];

	if (!k->short_last || k->received < k->announced ||
	    r->state != KVS_ROOM_RECEIVING)
		return;
	kvs_room_first_missing(r, k, where, sizeof(where));
	kvs_room_fail(r, KVS_CAUSE_MISSING_BYTES, ENODATA,
		      "rank %u sent %llu of %llu bytes; first missing: %s",
		      k->rank, (unsigned long long)k->announced,
		      (unsigned long long)k->expected, where);
}

void kvs_room_placed(struct kvs_room *r, struct kvs_room_rank *k,
		     uint64_t bytes)
{
	k->received += bytes;
	r->received += bytes;
	r->w->stats.received_bytes += bytes;
	room_check_short(r, k);
	room_check_complete(r);
}

int kvs_room_last(struct kvs_room *r, const struct kvs_msg_last *m)
{
	struct kvs_room_rank *k = &r->ranks[m->rank];
	uint64_t bytes = m->bytes;

	if (r->state != KVS_ROOM_RECEIVING)
		return 0; /* failed meanwhile: the sender has been told */
	if (k->last || k->short_last || bytes > k->expected ||
	    (k->digest.kind != KVS_DIGEST_NONE &&
	     m->digest_kind != k->digest.kind))
		return -EPROTO;
	if (bytes < k->expected && KVS_RULE(R9, TOTALS)) {
		k->short_last = true;
		k->announced = bytes;
		room_check_short(r, k);
		return 0;
	}
	k->sent_digest = m->digest;
	k->last = true;
	r->ranks_last++;
	room_check_complete(r);
	return 0;
}

static void room_tell_abort(struct kvs_room *r, int err, const char *text)
{
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		struct kvs_room_rank *k = &r->ranks[i];
		struct kvs_msg m = {
			.type = KVS_WIRE_ABORT,
			.abort = { .room = r->id,
				   .generation = r->generation,
				   .rank = k->rank,
				   .err = (uint32_t)err },
		};

		if (!k->session || k->told)
			continue;
		k->told = true;
		if (!k->granted) {
			/* It has only asked: a plain answer to its OPEN. */
			kvs_refuse_fill(&m, r->id, r->generation, k->rank, err,
					text);
		} else {
			snprintf(m.abort.text, sizeof(m.abort.text), "%s",
				 text);
			if (!k->session->acks)
				r->w->stats.acks_impossible
					[KVS_ACK_IMPOSSIBLE_NO_CAPABILITY]++;
			else if (!k->party.drain)
				k->session->acks_not_awaited++;
		}
		r->w->o.out->to_peer(r->w->o.arg, k->session->id, &m);
	}
}

static void room_stop_receives(struct kvs_room *r)
{
	struct kvs_receive *rx, *tmp;

	kvs_list_for_each_entry_safe(rx, tmp, &r->receives, node)
		if (!rx->read)
			r->w->o.out->stop_receive(r->w->o.arg, rx);
}

/* A rank whose acknowledgement cannot come is not waited for (R5); nor is one
 * that was never told its keys. */
static void room_poison_mute(struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		struct kvs_room_rank *k = &r->ranks[i];

		if (k->party.drain &&
		    (!k->session || !k->session->acks || !k->granted))
			kvs_drain_poison(&r->drain, KVS_PARTY_RANK, i);
	}
}

/* R7: an abort or anything else, there is this one way. */
static void room_arm(struct kvs_room *r)
{
	if (r->cause == KVS_CAUSE_ENGINE_ABORT || KVS_RULE(R7, EVERY_END))
		kvs_drain_arm(&r->drain);
}

int kvs_room_fail(struct kvs_room *r, enum kvs_room_cause cause, int err,
		  const char *fmt, ...)
{
	char text[KVS_WIRE_TEXT];
	bool tell_ranks = false;
	va_list ap;

	switch (r->state) {
	case KVS_ROOM_WAITING:
		/* Owns nothing; ranks that asked get their answer. */
		kvs_admission_cancel(r);
		r->w->released = true; /* those behind it may move up */
		tell_ranks = true;
		break;
	case KVS_ROOM_ADMITTED:
		/* Extents nobody knows: the drain is over at once. */
		kvs_admission_unlend(r);
		break;
	case KVS_ROOM_RECEIVING:
	case KVS_ROOM_SEALING:
		/* Writers may be under way. */
		kvs_extents_set_state(&r->ext, KVS_EXTENT_HELD);
		tell_ranks = true;
		break;
	case KVS_ROOM_READY:
		/* Grants are closed; nobody writes, nobody reads. */
		break;
	case KVS_ROOM_COMMITTING:
		/* The engine's copy still reads the extents. */
		kvs_extents_set_state(&r->ext, KVS_EXTENT_HELD);
		break;
	case KVS_ROOM_DONE:
	case KVS_ROOM_DRAINING:
	case KVS_ROOM_QUARANTINED:
	case KVS_ROOM_FREE:
	case KVS_ROOM_STATE_MAX:
		return -EALREADY;
	}

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	kvs_log_info("room %llu gen %llu: %s in state %s: %s",
		     (unsigned long long)r->id,
		     (unsigned long long)r->generation, kvs_cause_name[cause],
		     kvs_room_state_name[r->state], text);
	kvs_timer_cancel(&r->w->timers, &r->deadline);
	if (cause == KVS_CAUSE_CHECKSUM && r->w->set->checksum_fatal) {
		kvs_log_err("checksum.fatal: a mismatch ends the daemon");
		abort();
	}
	r->failed = true;
	r->cause = cause;
	r->err = err;
	r->w->stats.failures[cause]++;
	r->w->live--;
	kvs_room_move(r, KVS_ROOM_DRAINING);
	kvs_room_log_held(r);
	/* R2: armed before anybody is told, so that no answer can come too
	 * early. May be over, and the memory released, on return. */
	if (KVS_RULE(R2, ARM_FIRST))
		room_arm(r);
	if (tell_ranks)
		room_tell_abort(r, err, text);
	if (!KVS_RULE(R2, ARM_FIRST))
		room_arm(r);
	kvs_worker_ended(r->w, r->generation, err, text);
	r->w->o.out->room_over(r->w->o.arg, r->id, r->generation, err, text);
	kvs_room_tell_failed(r, err, text);
	if (kvs_drain_is_over(&r->drain))
		return 0;
	room_stop_receives(r);
	if (KVS_RULE(R5, MUTE))
		room_poison_mute(r);
	if (!kvs_drain_is_over(&r->drain))
		kvs_room_ask_later(r);
	return 0;
}
