/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/worker.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"

int kvs_worker_create(const struct kvs_worker_opts *o, struct kvs_worker **ret)
{
	struct kvs_worker *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->o = *o;
	w->set = o->settings;
	w->clock = o->clock;
	w->pool = o->pool;
	w->flips_left = o->settings->inject_flip;
	kvs_rng_init(&w->rng, o->secret ^ o->index);
	kvs_timerq_init(&w->timers);
	kvs_u64map_init(&w->rooms, o->secret);
	kvs_u64map_init(&w->sessions, o->secret);
	kvs_list_init(&w->engines);
	kvs_host_cache_init(&w->hosts, (o->index << 20) + 1);
	kvs_list_init(&w->dead);
	w->retracts.pool = o->offload;
	w->retracts.pool_index = o->offload_index;
	kvs_retracts_init(w, o->secret);
	kvs_cache_init(w);
	kvs_admission_init(w);
	kvs_hist_init(&w->stats.drain_seconds);
	kvs_hist_init(&w->stats.admit_wait);
	kvs_hist_init(&w->stats.transfer);
	kvs_hist_init(&w->stats.claim);
	kvs_hist_init(&w->stats.commit);
	kvs_hist_init(&w->stats.retract);
	kvs_hist_init(&w->stats.resume);
	kvs_hist_init(&w->stats.call);
	kvs_hist_init(&w->stats.abort_propagation);
	kvs_hist_init(&w->stats.abort_remaining);
	*ret = w;
	return 0;
}

static void worker_engine_free(struct kvs_worker_engine *e)
{
	kvs_list_del(&e->node);
	free(e->layout);
	free(e);
}

void kvs_worker_destroy(struct kvs_worker *w)
{
	struct kvs_worker_engine *e, *tmp;
	struct kvs_worker_session *s;
	size_t pos = 0;

	if (!w)
		return;
	kvs_worker_turn(w);
	KVS_ASSERT(w->rooms.n == 0);
	kvs_list_for_each_entry_safe(e, tmp, &w->engines, node)
		worker_engine_free(e);
	kvs_host_cache_fini(&w->hosts);
	while ((s = kvs_u64map_next(&w->sessions, &pos))) {
		free(s->paths);
		free(s);
	}
	kvs_cache_fini(w);
	kvs_retracts_fini(w);
	kvs_admission_fini(w);
	kvs_u64map_fini(&w->rooms);
	kvs_u64map_fini(&w->sessions);
	kvs_timerq_fini(&w->timers);
	free(w);
}

struct kvs_worker_engine *kvs_worker_engine_find(struct kvs_worker *w,
						 uint32_t number)
{
	struct kvs_worker_engine *e;

	kvs_list_for_each_entry(e, &w->engines, node)
		if (e->number == number && !e->gone)
			return e;
	return NULL;
}

int kvs_worker_engine_add(struct kvs_worker *w, uint32_t number,
			  const struct kvs_layout *l)
{
	struct kvs_worker_engine *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return -ENOMEM;
	ret = kvs_layout_dup(l, &e->layout);
	if (ret) {
		free(e);
		return ret;
	}
	e->number = number;
	e->extent_tokens = kvs_geometry_extent_tokens(
		e->layout, w->set->extent_tokens, kvs_pool_segment(w->pool));
	kvs_list_init(&e->rooms);
	kvs_list_init(&e->retractions);
	kvs_list_add_tail(&w->engines, &e->node);
	kvs_retracts_engines(w);
	return 0;
}

/* R12: READY is decided, and only its engine may still give it up. */
static bool worker_undecided(const struct kvs_room *r)
{
	return r->state < KVS_ROOM_READY || !KVS_RULE(R12, FINAL);
}

void kvs_worker_engine_lost(struct kvs_worker *w, uint32_t number, bool proof)
{
	struct kvs_worker_engine *e;
	struct kvs_room_member *m, *tmp;

	kvs_list_for_each_entry(e, &w->engines, node) {
		if (e->number != number)
			continue;
		e->gone = true;
		kvs_list_for_each_entry_safe(m, tmp, &e->rooms, engine_node) {
			/* One that has its copy is not needed any more. */
			if (!m->copied && KVS_RULE(R7, ENGINE_LOST))
				kvs_room_fail(m->room, KVS_CAUSE_ENGINE_LOST,
					      ECONNRESET,
					      "the decode engine is gone");
			if (proof)
				kvs_party_leave(&m->copy,
						KVS_PROOF_PROCESS_EXIT);
		}
		kvs_retracts_engine_lost(e, proof);
	}
}

static struct kvs_worker_session *worker_session(struct kvs_worker *w,
						 uint64_t id)
{
	return kvs_u64map_get(&w->sessions, id);
}

int kvs_worker_session_add(struct kvs_worker *w, uint64_t id, const char *peer,
			   uint32_t rank, uint64_t caps)
{
	struct kvs_worker_session *s = calloc(1, sizeof(*s));
	int ret;

	if (!s)
		return -ENOMEM;
	s->id = id;
	snprintf(s->peer, sizeof(s->peer), "%s", peer);
	s->rank = rank;
	s->acks = caps & KVS_CAP_DRAIN_ACK;
	s->one_sided = w->o.one_sided && caps & KVS_CAP_ONE_SIDED;
	s->numbered = s->one_sided && caps & KVS_CAP_PATHS;
	s->digest = kvs_caps_digest(caps);
	kvs_list_init(&s->ranks);
	ret = kvs_u64map_add(&w->sessions, id, s);
	if (ret)
		free(s);
	return ret;
}

/* The sender of these ranks is gone: what is not complete fails, and no
 * acknowledgement of it can come any more (R5, R7). */
static void session_ranks_lost(struct kvs_worker_session *s,
			       enum kvs_room_cause cause, int err,
			       const char *why)
{
	struct kvs_room_rank *k;

	while (!kvs_list_empty(&s->ranks)) {
		k = kvs_list_first(&s->ranks, struct kvs_room_rank,
				   session_node);
		kvs_list_del(&k->session_node);
		k->session = NULL;
		k->room->w->stats.acks_impossible[KVS_ACK_IMPOSSIBLE_LOST] +=
			k->party.drain && !k->party.poisoned;
		if (worker_undecided(k->room) && KVS_RULE(R7, SESSION_LOST))
			kvs_room_fail(k->room, cause, err, "rank %u: %s",
				      k->rank, why);
		if (k->party.drain && KVS_RULE(R5, LOST))
			kvs_drain_poison(&k->room->drain, KVS_PARTY_RANK,
					 k->rank);
	}
}

void kvs_worker_session_lost(struct kvs_worker *w, uint64_t id, int err,
			     const char *why)
{
	struct kvs_worker_session *s = kvs_u64map_del(&w->sessions, id);

	if (!s)
		return;
	session_ranks_lost(
		s, err == -EPROTO ? KVS_CAUSE_PROTOCOL : KVS_CAUSE_PEER_LOST,
		err ? -err : ECONNRESET, why);
	free(s->paths);
	free(s);
}

void kvs_worker_conn_lost(struct kvs_worker *w, uint64_t session, uint64_t conn,
			  int err)
{
	struct kvs_worker_session *s = worker_session(w, session);
	struct kvs_room_rank *k;

	if (!s)
		return;
	kvs_list_for_each_entry(k, &s->ranks, session_node)
		if (k->room->state == KVS_ROOM_RECEIVING &&
		    k->received < k->expected &&
		    (!s->one_sided || conn == KVS_CONN_ALL ||
		     k->conns & conn) &&
		    KVS_RULE(R7, CONN_LOST))
			kvs_room_fail(k->room, KVS_CAUSE_PEER_LOST, -err,
				      "rank %u: a data connection broke",
				      k->rank);
}

void kvs_worker_ended(struct kvs_worker *w, uint64_t generation, int err,
		      const char *text)
{
	kvs_aborts_add(&w->aborts, generation, err, text,
		       kvs_clock_now(w->clock));
}

/* Its positive errno, and a sentence. */
static int worker_ended(const struct kvs_worker *w, uint64_t generation,
			char *text, size_t len)
{
	const char *why;
	int err = kvs_aborts_err(&w->aborts, generation, &why);

	snprintf(text, len, "the room has ended%s%s", *why ? ": " : "", why);
	return err ? err : ECANCELED;
}

static void admit_refuse(struct kvs_worker *w, const struct kvs_room_request *q,
			 enum kvs_admit_result res, int err, const char *text)
{
	w->stats.admits[res]++;
	kvs_log_info("room %llu refused (%s): %s", (unsigned long long)q->room,
		     kvs_admit_result_name[res], text);
	kvs_worker_ended(w, q->generation, err, text);
	w->o.out->room_over(w->o.arg, q->room, q->generation, err, text);
	kvs_worker_tell_failed(w, q->engine, q->slot, q->generation, err,
			       kvs_worker_retry(w, err, 0), text);
}

static enum kvs_admit_result admit_result(int err)
{
	switch (err) {
	case -E2BIG:
		return KVS_ADMIT_NOFIT;
	case -EPROTOTYPE:
		return KVS_ADMIT_LAYOUT;
	case -EINVAL:
		return KVS_ADMIT_INVALID;
	case -EDQUOT:
		return KVS_ADMIT_PEER_LIMIT;
	default:
		return KVS_ADMIT_BUSY;
	}
}

/* With what is cached of it, if it need not wait: what waits owns nothing. */
static bool admit_cached(struct kvs_worker *w, struct kvs_worker_engine *e,
			 const struct kvs_room_request *q)
{
	struct kvs_room_request rest = *q;
	char text[KVS_WIRE_TEXT];
	struct kvs_prefix *p;
	struct kvs_room *r;
	int ret;

	kvs_cache_prefix(w, e, q, &p);
	if (!p)
		return false;
	rest.tokens -= p->tokens;
	if (kvs_room_create(w, e, &rest, &r, text, sizeof(text))) {
		kvs_cache_put(w, p);
		return false;
	}
	kvs_cache_take(r, p);
	/* out of memory: it will not be kept */
	(void)kvs_cache_name(r, e, q);
	ret = kvs_admission_may_pass(r) ? kvs_room_take_memory(r) : -EAGAIN;
	if (ret == -EAGAIN) {
		kvs_room_discard(r);
		return false;
	}
	if (ret)
		return true; /* it has failed and said so */
	w->stats.admits[KVS_ADMIT_OK]++;
	kvs_admission_passed(r);
	kvs_room_tell_cached(r);
	return true;
}

void kvs_worker_admit(struct kvs_worker *w, const struct kvs_room_request *q)
{
	struct kvs_worker_engine *e = kvs_worker_engine_find(w, q->engine);
	char text[KVS_WIRE_TEXT] = "out of memory";
	struct kvs_room *r;
	int ret;

	if (!e)
		return;
	if (w->shutting_down) {
		admit_refuse(w, q, KVS_ADMIT_BUSY, ESHUTDOWN,
			     "the daemon is going down");
		return;
	}
	if (q->use_cache && admit_cached(w, e, q))
		return;
	ret = kvs_room_create(w, e, q, &r, text, sizeof(text));
	if (ret) {
		admit_refuse(w, q, admit_result(ret),
			     ret == -EDQUOT ? EAGAIN : -ret, text);
		return;
	}
	(void)kvs_cache_name(r, e, q);
	if (kvs_admission_may_pass(r)) {
		ret = kvs_room_take_memory(r);
		if (!ret) {
			w->stats.admits[KVS_ADMIT_OK]++;
			kvs_admission_passed(r);
			kvs_room_tell_cached(r);
			return;
		}
		if (ret != -EAGAIN)
			return; /* it has failed and said so */
	}
	if (kvs_admission_full(r)) {
		w->stats.admits[KVS_ADMIT_BUSY]++;
		kvs_room_fail(r, KVS_CAUSE_ADMISSION_TIMEOUT, EAGAIN,
			      "no memory now and admission.queue (%u) is full",
			      w->set->admission_queue);
		return;
	}
	w->stats.admits[KVS_ADMIT_QUEUED]++;
	kvs_room_queue(r);
	kvs_room_tell_cached(r);
}

void kvs_worker_lookup(struct kvs_worker *w, const struct kvs_lookup_request *q)
{
	struct kvs_worker_engine *e = kvs_worker_engine_find(w, q->engine);

	if (!e)
		return;
	switch (q->what) {
	case KVS_LOOKUP_FIND:
	case KVS_LOOKUP_DROP:
		kvs_worker_tell_cached(
			w, q, KVS_STATUS_DONE,
			kvs_cache_find(w, e, q->hashes, q->n_hashes,
				       q->what == KVS_LOOKUP_DROP));
		return;
	case KVS_LOOKUP_OFFLOAD:
		kvs_worker_offload(w, q);
		return;
	case KVS_LOOKUP_PIN:
		kvs_worker_pin(w, q);
		return;
	case KVS_LOOKUP_MAX:
		break;
	}
}

static void open_refuse(struct kvs_worker *w, uint64_t session,
			const struct kvs_msg_open *m, uint64_t generation,
			int err, const char *text)
{
	struct kvs_msg out;

	kvs_refuse_fill(&out, m->room, generation, m->rank, err, text);
	w->o.out->to_peer(w->o.arg, session, &out);
}

void kvs_worker_open(struct kvs_worker *w, uint64_t session,
		     uint64_t generation, const struct kvs_msg_open *m)
{
	struct kvs_worker_session *s = worker_session(w, session);
	struct kvs_room *r = kvs_u64map_get(&w->rooms, generation);
	static const unsigned char none[16];
	char text[KVS_WIRE_TEXT];
	int ret;

	if (!s)
		return; /* lost meanwhile */
	if (!r || !kvs_room_live(r)) {
		ret = worker_ended(w, generation, text, sizeof(text));
		open_refuse(w, session, m, generation, ret, text);
		return;
	}
	if (memcmp(r->nonce, none, sizeof(none)) != 0 &&
	    sodium_memcmp(r->nonce, m->nonce, sizeof(r->nonce)) != 0) {
		open_refuse(w, session, m, generation, ESTALE,
			    "the nonce is that of another attempt");
		return;
	}
	ret = kvs_room_open(r, s, m->rank, m->tokens, text, sizeof(text));
	if (!ret)
		return;
	open_refuse(w, session, m, generation, -ret, text);
	if (ret == -EPROTOTYPE)
		kvs_room_fail(r, KVS_CAUSE_LAYOUT, EPROTOTYPE, "%s", text);
}

static int worker_violation(struct kvs_worker *w, uint64_t session,
			    enum kvs_proto_error reason, const char *why)
{
	w->stats.protocol_errors[reason]++;
	w->o.out->close_session(w->o.arg, session, -EPROTO, why);
	return -EPROTO;
}

/* A room that this session's rank has opened, by a message's fields. */
static struct kvs_room_rank *worker_rank(struct kvs_worker *w,
					 struct kvs_worker_session *s,
					 uint64_t room, uint64_t generation,
					 uint32_t rank, bool *ret_foreign)
{
	struct kvs_room *r = kvs_u64map_get(&w->rooms, generation);

	*ret_foreign = false;
	if (!r)
		return NULL;
	*ret_foreign = r->id != room || rank >= r->n_ranks ||
		       r->ranks[rank].session != s;
	return *ret_foreign ? NULL : &r->ranks[rank];
}

/* This rank has another attempt of the room under way. */
static bool worker_other_attempt(const struct kvs_worker_session *s,
				 const struct kvs_msg_abort *m)
{
	struct kvs_room_rank *k;

	kvs_list_for_each_entry(k, &s->ranks, session_node)
		if (k->room->id == m->room &&
		    k->room->generation != m->generation)
			return true;
	return false;
}

static enum kvs_ack_ignored worker_ack_why(int err)
{
	switch (err) {
	case -ESTALE:
		return KVS_ACK_IGNORED_STALE;
	case -EINVAL:
		return KVS_ACK_IGNORED_MALFORMED;
	case -EALREADY:
		return KVS_ACK_IGNORED_DUPLICATE;
	case -EBUSY:
		return KVS_ACK_IGNORED_NOT_ARMED;
	case -ECANCELED:
		return KVS_ACK_IGNORED_POISONED;
	default:
		return KVS_ACK_IGNORED_UNKNOWN_PARTY;
	}
}

/* Its aborts may all wait for the hold's end: the operator is told, once a
 * peer. */
static void worker_ack_warn(struct kvs_worker *w, struct kvs_worker_session *s,
			    const struct kvs_msg_abort *m,
			    enum kvs_ack_ignored why)
{
	struct kvs_worker_session *o;
	size_t pos = 0;

	if (s->ack_warned)
		return;
	s->ack_warned = true;
	while ((o = kvs_u64map_next(&w->sessions, &pos)))
		if (o != s && o->ack_warned && !strcmp(o->peer, s->peer))
			return;
	kvs_log_warn("%s rank %u: acknowledgement for room %llu gen %llu "
		     "ignored (%s); more of this peer are only counted, in "
		     "kvstage_ack_ignored_total",
		     s->peer, s->rank, (unsigned long long)m->room,
		     (unsigned long long)m->generation,
		     kvs_ack_ignored_name[why]);
}

static void worker_ack_ignore(struct kvs_worker *w,
			      struct kvs_worker_session *s,
			      const struct kvs_msg_abort *m)
{
	enum kvs_ack_ignored why = KVS_ACK_IGNORED_UNKNOWN_ROOM;

	if (!m->generation)
		why = KVS_ACK_IGNORED_MALFORMED;
	else if (worker_other_attempt(s, m))
		why = KVS_ACK_IGNORED_STALE;
	w->stats.drains.ack_ignored[why]++;
	worker_ack_warn(w, s, m, why);
}

static void worker_ack(struct kvs_worker *w, struct kvs_worker_session *s,
		       const struct kvs_msg_abort *m)
{
	struct kvs_room *r = kvs_u64map_get(&w->rooms, m->generation);
	uint64_t ns;
	int ret;

	if (m->rank == s->rank &&
	    kvs_aborts_answer(&w->aborts, m->generation, m->rank,
			      kvs_clock_now(w->clock), &ns))
		kvs_hist_record(&w->stats.abort_propagation, ns);
	/* A room whose drain is over is no room any more, though it is
	 * deleted only at the end of the turn. Only the very session that
	 * was granted, and asked, can answer (R3): a newer one of that rank
	 * knows nothing of what the old one has under way. */
	if (r && !(kvs_drain_is_over(&r->drain) && KVS_RULE(R1, HOLD)) &&
	    r->id == m->room && m->rank < r->n_ranks &&
	    r->ranks[m->rank].session == s &&
	    (w->set->hold_require_ack || s->one_sided)) {
		struct kvs_room_rank *k = &r->ranks[m->rank];

		if (k->party.acked && k->asked_again && s->acks_not_awaited) {
			/* the answer to a repeated ABORT */
			k->asked_again--;
			s->acks_not_awaited--;
			return;
		}
		ret = kvs_drain_ack(&r->drain, KVS_PARTY_RANK, m->rank,
				    m->generation);
		if (ret)
			worker_ack_warn(w, s, m, worker_ack_why(ret));
		return;
	}
	if (s->acks_not_awaited && m->generation) {
		s->acks_not_awaited--;
		return;
	}
	worker_ack_ignore(w, s, m);
}

static void worker_nak(struct kvs_worker *w, struct kvs_worker_session *s,
		       const struct kvs_msg_abort *m)
{
	struct kvs_room *r = kvs_u64map_get(&w->rooms, m->generation);

	if (r && r->id == m->room && m->rank < r->n_ranks &&
	    r->ranks[m->rank].session == s && r->ranks[m->rank].party.drain &&
	    KVS_RULE(R5, NAK))
		kvs_drain_poison(&r->drain, KVS_PARTY_RANK, m->rank);
	else if (s->acks_not_awaited)
		s->acks_not_awaited--;
	else {
		w->stats.drains.ack_ignored[KVS_ACK_IGNORED_UNKNOWN_ROOM]++;
		return;
	}
	w->stats.acks_impossible[KVS_ACK_IMPOSSIBLE_NEGATIVE]++;
}

/* It may have crossed the room's end. */
static void worker_stray(struct kvs_worker *w, bool known, enum kvs_stray type,
			 uint64_t room, uint64_t generation)
{
	if (known)
		return;
	w->stats.strays[type]++;
	kvs_log_debug("room %llu gen %llu: %s for a room that has ended",
		      (unsigned long long)room, (unsigned long long)generation,
		      kvs_stray_name[type]);
}

int kvs_worker_message(struct kvs_worker *w, uint64_t session,
		       const struct kvs_msg *m)
{
	struct kvs_worker_session *s = worker_session(w, session);
	struct kvs_room_rank *k;
	bool foreign = false;

	if (!s)
		return 0;
	switch (m->type) {
	case KVS_WIRE_LAST:
		k = worker_rank(w, s, m->last.room, m->last.generation,
				m->last.rank, &foreign);
		worker_stray(w, k || foreign, KVS_STRAY_LAST, m->last.room,
			     m->last.generation);
		if (k && (k->last || k->short_last) &&
		    k->room->state == KVS_ROOM_RECEIVING)
			return worker_violation(w, session, KVS_PROTO_ORDER,
						"a second LAST");
		if (k && kvs_room_last(k->room, &m->last))
			return worker_violation(w, session, KVS_PROTO_TOTALS,
						"totals of LAST");
		break;
	case KVS_WIRE_ABORT:
		k = worker_rank(w, s, m->abort.room, m->abort.generation,
				m->abort.rank, &foreign);
		worker_stray(w, k || foreign, KVS_STRAY_ABORT, m->abort.room,
			     m->abort.generation);
		if (k && worker_undecided(k->room) &&
		    KVS_RULE(R7, SENDER_ABORT))
			kvs_room_fail(
				k->room, KVS_CAUSE_SENDER_ABORT,
				m->abort.err ? (int)m->abort.err : ECANCELED,
				"rank %u gave up: %s", k->rank, m->abort.text);
		break;
	case KVS_WIRE_ABORT_ACK:
		worker_ack(w, s, &m->abort);
		break;
	case KVS_WIRE_ABORT_NAK:
		worker_nak(w, s, &m->abort);
		break;
	case KVS_WIRE_REFUSE:
		k = worker_rank(w, s, m->refuse.room, m->refuse.generation,
				m->refuse.rank, &foreign);
		worker_stray(w, k || foreign, KVS_STRAY_REFUSE, m->refuse.room,
			     m->refuse.generation);
		if (k && worker_undecided(k->room) &&
		    KVS_RULE(R7, SENDER_REFUSED))
			kvs_room_fail(
				k->room, KVS_CAUSE_SENDER_REFUSED,
				m->refuse.err ? (int)m->refuse.err : ECANCELED,
				"rank %u refused: %s", k->rank, m->refuse.text);
		/* It may cross our own refusal of its OPEN. */
		foreign = false;
		break;
	case KVS_WIRE_HELLO:
	case KVS_WIRE_LAYOUT:
	case KVS_WIRE_OPEN:
	case KVS_WIRE_GRANT:
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
	case KVS_WIRE_COMPLETE:
	case KVS_WIRE_ERROR:
	case KVS_WIRE_KEEPALIVE:
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
	case KVS_WIRE_TYPE_MAX:
		return worker_violation(w, session, KVS_PROTO_ORDER,
					"message not expected here");
	}
	if (foreign)
		return worker_violation(w, session, KVS_PROTO_FOREIGN,
					"a room or rank of somebody else");
	return 0;
}

static struct kvs_room_member *engine_room(struct kvs_worker *w,
					   uint32_t engine,
					   const struct kvs_packet_room *p)
{
	struct kvs_room *r = kvs_u64map_get(&w->rooms, p->generation);

	return r ? kvs_room_member(r, engine, p->slot) : NULL;
}

void kvs_worker_join(struct kvs_worker *w, uint64_t generation, uint32_t engine,
		     uint32_t slot)
{
	struct kvs_room *r = kvs_u64map_get(&w->rooms, generation);
	struct kvs_room_member *m = NULL;
	char text[KVS_WIRE_TEXT];
	int err;

	if (r && kvs_room_live(r))
		m = kvs_room_member(r, engine, KVS_SLOT_NONE);
	if (m) {
		kvs_room_join(m, slot);
		return;
	}
	err = worker_ended(w, generation, text, sizeof(text));
	kvs_worker_tell_failed(w, engine, slot, generation, err,
			       kvs_worker_retry(w, err, 0), text);
}

void kvs_worker_packet(struct kvs_worker *w, uint32_t engine,
		       enum kvs_packet_type type,
		       const struct kvs_packet_room *p)
{
	struct kvs_room_member *m = engine_room(w, engine, p);
	int ret = 0;

	if (!m) {
		/* a retraction, or over already; its status word says so */
		if (kvs_retract_packet(w, engine, type, p))
			w->stats.protocol_errors[KVS_PROTO_ENGINE]++;
		return;
	}
	switch (type) {
	case KVS_PACKET_COMMIT:
		/* not READY: the word says why */
		ret = kvs_room_commit(m) == -EPROTO ? -EPROTO : 0;
		break;
	case KVS_PACKET_COMMITTED:
		ret = kvs_room_committed(m, p->err);
		break;
	case KVS_PACKET_COPY_OVER:
		/* Only of a room that ended while its copy ran. */
		if (m->copy.drain && m->room->state != KVS_ROOM_COMMITTING)
			kvs_party_leave(&m->copy, KVS_PROOF_COPY_EVENT);
		else
			ret = -EPROTO;
		break;
	case KVS_PACKET_ABORT:
		(void)kvs_room_fail(m->room, KVS_CAUSE_ENGINE_ABORT, ECANCELED,
				    "aborted by the engine");
		break;
	case KVS_PACKET_ATTACH:
	case KVS_PACKET_ATTACHED:
	case KVS_PACKET_REFUSED:
	case KVS_PACKET_ADMIT:
	case KVS_PACKET_READY:
	case KVS_PACKET_FAILED:
	case KVS_PACKET_LAYOUT:
	case KVS_PACKET_DETACH:
	case KVS_PACKET_RETRACT:
	case KVS_PACKET_PLACED:
	case KVS_PACKET_RETRACTED:
	case KVS_PACKET_LOOKUP:
	case KVS_PACKET_CACHED:
	case KVS_PACKET_TYPE_MAX:
		ret = -EPROTO;
		break;
	}
	if (ret)
		w->stats.protocol_errors[KVS_PROTO_ENGINE]++;
}

int kvs_worker_abort(struct kvs_worker *w, uint64_t generation,
		     enum kvs_room_cause cause, int err, const char *why)
{
	struct kvs_room *r = kvs_u64map_get(&w->rooms, generation);

	if (!r || kvs_room_fail(r, cause, err, "%s", why))
		return -ENOENT;
	return 0;
}

static void worker_bury(struct kvs_worker *w)
{
	struct kvs_room *r, *tmp;

	/* Without R1 a party may outlive its room's memory, and must be seen
	 * to do its damage there, not to end the daemon. */
	kvs_list_for_each_entry_safe(r, tmp, &w->dead, dead_node)
		if ((KVS_RULE(R1, HOLD) && KVS_RULE(R1, RECEIVE)) ||
		    (!r->drain.live && kvs_list_empty(&r->receives)))
			kvs_room_destroy(r);
}

void kvs_worker_turn(struct kvs_worker *w)
{
	struct kvs_worker_engine *e, *tmp;

	/* what the disk has done counts before what is late (R14) */
	kvs_cache_disk_turn(w);
	kvs_cache_shared_turn(w);
	kvs_timerq_run(&w->timers, kvs_clock_now(w->clock));
	kvs_cache_turn(w);
	/* Serving the queue can fail a room, which releases again. */
	while (w->released) {
		w->released = false;
		kvs_admission_run(w);
	}
	worker_bury(w);
	kvs_retracts_turn(w);
	kvs_list_for_each_entry_safe(e, tmp, &w->engines, node) {
		if (!e->gone || !kvs_list_empty(&e->rooms) ||
		    !kvs_list_empty(&e->retractions))
			continue;
		if (w->o.out->engine_over)
			w->o.out->engine_over(w->o.arg, e->number);
		kvs_host_forget(&w->hosts, e->number);
		worker_engine_free(e);
		kvs_retracts_engines(w);
	}
}

uint64_t kvs_worker_next(const struct kvs_worker *w)
{
	uint64_t next = kvs_timerq_next(&w->timers);
	uint64_t disk = kvs_cache_disk_due(w);
	uint64_t shared = kvs_cache_shared_due(w);

	if (kvs_retracts_busy(w) || kvs_cache_busy(w))
		return 0;
	if (shared < disk)
		disk = shared;
	return disk < next ? disk : next;
}

void kvs_worker_shutdown(struct kvs_worker *w)
{
	struct kvs_room *r;
	size_t pos = 0;

	w->shutting_down = true;
	while ((r = kvs_u64map_next(&w->rooms, &pos)))
		if (worker_undecided(r))
			kvs_room_fail(r, KVS_CAUSE_SHUTDOWN, ESHUTDOWN,
				      "the daemon is going down");
	kvs_retracts_shutdown(w);
}

void kvs_worker_abandon(struct kvs_worker *w)
{
	struct kvs_room *r;
	size_t pos = 0;

	while ((r = kvs_u64map_next(&w->rooms, &pos))) {
		kvs_room_fail(r, KVS_CAUSE_SHUTDOWN, ESHUTDOWN,
			      "the daemon ends");
		kvs_drain_abandon(&r->drain);
	}
	kvs_retracts_abandon(w);
	kvs_worker_turn(w);
}
