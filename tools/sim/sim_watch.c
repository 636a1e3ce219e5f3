/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the daemon's parts: the linker sends calls of the functions below
 * here first (-Wl,--wrap). Each is noted with the state of the room it meets,
 * checked against what must be, and passed on.
 */
#include <errno.h>
#include <string.h>

#include "tools/sim/sim.h"

struct sim *sim_now;

void sim_seen(const struct kvs_room *r, enum sim_event e)
{
	unsigned int st = r ? r->state : SIM_STATE_GONE;

	sim_now->cover->pair[st][e]++;
	sim_note(sim_now, r ? r->id : 0, sim_state_name(st), "%s",
		 sim_event_name[e]);
}

struct kvs_room *sim_room_of(struct kvs_worker *w, uint64_t generation)
{
	return generation ? kvs_u64map_get(&w->rooms, generation) : NULL;
}

void sim_crashed(void *arg, struct kvs_transport *t)
{
	struct sim *w = arg;

	for (unsigned int i = 0; i < w->plan.n_ranks; i++)
		if (w->rank[i].s && w->rank[i].t == t)
			w->rank[i].crashed = true;
	if (!w->daemon_up || (t != w->front_t && t != w->node_t))
		return;
	w->daemon_crashed = true;
	kvs_fabric_kill(t == w->front_t ? w->node_t : w->front_t);
}

/* ---- what senders say ---------------------------------------------------- */

REAL(void, kvs_worker_open, struct kvs_worker *w, uint64_t session,
     uint64_t generation, const struct kvs_msg_open *m);
void __wrap_kvs_worker_open(struct kvs_worker *w, uint64_t session,
			    uint64_t generation, const struct kvs_msg_open *m)
{
	sim_seen(sim_room_of(w, generation), SIM_EV_OPEN);
	__real_kvs_worker_open(w, session, generation, m);
}

/* R12: READY is for its engine alone to give up. R7: what a rank says, or its
 * loss, ends what is not decided. */
static void check_verdict(const struct kvs_room *r, enum kvs_room_state was,
			  bool must_fail, const char *what)
{
	if (was >= KVS_ROOM_READY && was < KVS_ROOM_DONE && r->failed)
		sim_fail(sim_now, "R12: %s ended a room in state %s", what,
			 kvs_room_state_name[was]);
	if (must_fail && was < KVS_ROOM_READY && !r->failed)
		sim_fail(sim_now, "R7: %s did not end a room in state %s", what,
			 kvs_room_state_name[was]);
}

/* The room and rank that a message is about, if they are the sender's. */
static struct kvs_room *about(struct kvs_worker *w, uint64_t session,
			      const struct kvs_msg *m)
{
	uint64_t id = m->abort.room, generation = m->abort.generation;
	uint32_t rank = m->abort.rank;
	struct kvs_room *r;

	if (m->type == KVS_WIRE_REFUSE) {
		id = m->refuse.room;
		generation = m->refuse.generation;
		rank = m->refuse.rank;
	} else if (m->type != KVS_WIRE_ABORT) {
		return NULL;
	}
	r = sim_room_of(w, generation);
	if (!r || r->id != id || rank >= r->n_ranks ||
	    !r->ranks[rank].session || r->ranks[rank].session->id != session)
		return NULL;
	return r;
}

static void seen_message(struct kvs_worker *w, const struct kvs_msg *m)
{
	switch (m->type) {
	case KVS_WIRE_LAST:
		sim_seen(sim_room_of(w, m->last.generation), SIM_EV_LAST);
		break;
	case KVS_WIRE_ABORT:
		sim_seen(sim_room_of(w, m->abort.generation),
			 SIM_EV_SENDER_ABORT);
		break;
	case KVS_WIRE_ABORT_ACK:
		sim_seen(sim_room_of(w, m->abort.generation), SIM_EV_ACK);
		break;
	case KVS_WIRE_ABORT_NAK:
		sim_seen(sim_room_of(w, m->abort.generation), SIM_EV_NAK);
		break;
	case KVS_WIRE_REFUSE:
		sim_seen(sim_room_of(w, m->refuse.generation), SIM_EV_REFUSE);
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
		break;
	}
}

/* R5: who refuses to acknowledge is revoked at once. */
static void check_nak(struct kvs_worker *w, uint64_t session,
		      const struct kvs_msg *m)
{
	const struct kvs_room *r = sim_room_of(w, m->abort.generation);
	const struct kvs_room_rank *k;

	if (!r || !r->failed || m->abort.rank >= r->n_ranks)
		return;
	k = &r->ranks[m->abort.rank];
	if (k->session && k->session->id == session && k->party.drain &&
	    !k->party.revoking && r->state == KVS_ROOM_DRAINING)
		sim_fail(sim_now,
			 "R5: generation %llu waits for rank %u, who has said "
			 "that it cannot acknowledge",
			 (unsigned long long)r->generation, k->rank);
}

REAL(int, kvs_worker_message, struct kvs_worker *w, uint64_t session,
     const struct kvs_msg *m);
int __wrap_kvs_worker_message(struct kvs_worker *w, uint64_t session,
			      const struct kvs_msg *m)
{
	struct kvs_room *r = about(w, session, m);
	enum kvs_room_state was = r ? r->state : KVS_ROOM_FREE;
	int ret;

	seen_message(w, m);
	ret = __real_kvs_worker_message(w, session, m);
	if (r)
		check_verdict(r, was, true, "a message of a rank");
	if (m->type == KVS_WIRE_ABORT_NAK)
		check_nak(w, session, m);
	return ret;
}

static void seen_session(struct kvs_worker *w, uint64_t id, enum sim_event e)
{
	struct kvs_worker_session *s = kvs_u64map_get(&w->sessions, id);
	const struct kvs_room_rank *k;

	if (!s)
		return;
	kvs_list_for_each_entry(k, &s->ranks, session_node)
		sim_seen(k->room, e);
}

static unsigned int session_rooms(struct kvs_worker *w, uint64_t id,
				  struct kvs_room **r, enum kvs_room_state *was)
{
	struct kvs_worker_session *s = kvs_u64map_get(&w->sessions, id);
	const struct kvs_room_rank *k;
	unsigned int n = 0;

	if (!s)
		return 0;
	kvs_list_for_each_entry(k, &s->ranks, session_node) {
		if (n == SIM_ATTEMPTS)
			break;
		was[n] = k->room->state;
		r[n++] = k->room;
	}
	return n;
}

/* R5: nobody waits for the answer of a rank that cannot give one. */
static void check_mute(const struct kvs_room *r)
{
	for (uint32_t i = 0; r->failed && i < r->n_ranks; i++) {
		const struct kvs_room_rank *k = &r->ranks[i];

		if (k->granted && !k->session && k->party.drain &&
		    !k->party.revoking)
			sim_fail(sim_now,
				 "R5: generation %llu waits for rank %u, whose "
				 "sender is lost",
				 (unsigned long long)r->generation, i);
	}
}

REAL(void, kvs_worker_session_lost, struct kvs_worker *w, uint64_t id, int err,
     const char *why);
void __wrap_kvs_worker_session_lost(struct kvs_worker *w, uint64_t id, int err,
				    const char *why)
{
	struct kvs_room *r[SIM_ATTEMPTS] = { NULL };
	enum kvs_room_state was[SIM_ATTEMPTS];
	unsigned int n = session_rooms(w, id, r, was);

	seen_session(w, id, SIM_EV_SESSION_LOST);
	__real_kvs_worker_session_lost(w, id, err, why);
	for (unsigned int i = 0; i < n; i++) {
		check_verdict(r[i], was[i], true, "a lost sender");
		check_mute(r[i]);
	}
}

REAL(void, kvs_worker_conn_lost, struct kvs_worker *w, uint64_t session,
     uint64_t conn, int err);
void __wrap_kvs_worker_conn_lost(struct kvs_worker *w, uint64_t session,
				 uint64_t conn, int err)
{
	struct kvs_worker_session *s = kvs_u64map_get(&w->sessions, session);
	const struct kvs_room_rank *k;

	seen_session(w, session, SIM_EV_CONN_LOST);
	__real_kvs_worker_conn_lost(w, session, conn, err);
	if (!s)
		return;
	kvs_list_for_each_entry(k, &s->ranks, session_node)
		if (k->room->state == KVS_ROOM_RECEIVING &&
		    k->received < k->expected &&
		    (!s->one_sided || conn == KVS_CONN_ALL || k->conns & conn))
			sim_fail(sim_now, "R7: a broken data connection did "
					  "not end its room");
}

/* ---- what arrives -------------------------------------------------------- */

REAL(int, kvs_worker_receive_begin, struct kvs_worker *w, uint64_t session,
     const struct kvs_msg_chunk *m, struct kvs_receive *rx, void **ret_addr,
     enum kvs_proto_error *ret_reason);
int __wrap_kvs_worker_receive_begin(struct kvs_worker *w, uint64_t session,
				    const struct kvs_msg_chunk *m,
				    struct kvs_receive *rx, void **ret_addr,
				    enum kvs_proto_error *ret_reason)
{
	int ret;

	sim_seen(sim_room_of(w, m->generation), SIM_EV_CHUNK);
	ret = __real_kvs_worker_receive_begin(w, session, m, rx, ret_addr,
					      ret_reason);
	if (ret && !sim_now->plan.net.lie)
		sim_fail(sim_now, "a chunk of an honest sender is refused: %d",
			 ret);
	return ret;
}

REAL(void, kvs_worker_receive_end, struct kvs_worker *w, struct kvs_receive *rx,
     int status, uint64_t got);
void __wrap_kvs_worker_receive_end(struct kvs_worker *w, struct kvs_receive *rx,
				   int status, uint64_t got)
{
	const struct kvs_room *r = rx->room;

	sim_seen(r, status ? SIM_EV_CHUNK_BROKEN : SIM_EV_CHUNK_END);
	__real_kvs_worker_receive_end(w, rx, status, got);
	if (r && (status || got != rx->len) && !r->failed)
		sim_fail(sim_now, "R7: a chunk that broke off did not end its "
				  "room");
}

REAL(int, kvs_worker_written, struct kvs_worker *w, uint64_t session,
     uint64_t conn, const struct kvs_msg_chunk *m,
     enum kvs_proto_error *ret_reason);
int __wrap_kvs_worker_written(struct kvs_worker *w, uint64_t session,
			      uint64_t conn, const struct kvs_msg_chunk *m,
			      enum kvs_proto_error *ret_reason)
{
	sim_seen(sim_room_of(w, m->generation), SIM_EV_WRITTEN);
	return __real_kvs_worker_written(w, session, conn, m, ret_reason);
}

/* ---- grants -------------------------------------------------------------- */

REAL(void, kvs_worker_grant_opened, struct kvs_worker *w,
     struct kvs_room_rank *k, int status, const struct kvs_granted *what);
void __wrap_kvs_worker_grant_opened(struct kvs_worker *w,
				    struct kvs_room_rank *k, int status,
				    const struct kvs_granted *what)
{
	sim_seen(k->room, status ? SIM_EV_GRANT_NONE : SIM_EV_GRANT_OPEN);
	__real_kvs_worker_grant_opened(w, k, status, what);
}

REAL(void, kvs_worker_grant_closed, struct kvs_worker *w,
     struct kvs_room_rank *k, int status, bool torn_down);
void __wrap_kvs_worker_grant_closed(struct kvs_worker *w,
				    struct kvs_room_rank *k, int status,
				    bool torn_down)
{
	sim_seen(k->room, status      ? SIM_EV_GRANT_DOUBT
			  : torn_down ? SIM_EV_GRANT_TORN
				      : SIM_EV_GRANT_CLOSED);
	__real_kvs_worker_grant_closed(w, k, status, torn_down);
}

/* ---- what engines say ---------------------------------------------------- */

static enum sim_event packet_event(enum kvs_packet_type type, int err)
{
	switch (type) {
	case KVS_PACKET_COMMIT:
		return SIM_EV_COMMIT;
	case KVS_PACKET_COMMITTED:
		return err ? SIM_EV_COPY_FAILED : SIM_EV_COMMITTED;
	case KVS_PACKET_COPY_OVER:
		return SIM_EV_COPY_OVER;
	case KVS_PACKET_ABORT:
		return SIM_EV_ENGINE_ABORT;
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
		break;
	}
	return SIM_EV_MAX;
}

REAL(void, kvs_worker_packet, struct kvs_worker *w, uint32_t engine,
     enum kvs_packet_type type, const struct kvs_packet_room *p);
void __wrap_kvs_worker_packet(struct kvs_worker *w, uint32_t engine,
			      enum kvs_packet_type type,
			      const struct kvs_packet_room *p)
{
	enum sim_event e = packet_event(type, p->err);
	const struct kvs_room *r = sim_room_of(w, p->generation);

	if (!sim_away_packet(w, type, p) && e != SIM_EV_MAX) {
		sim_seen(r, e);
		if (e == SIM_EV_ENGINE_ABORT && r && r->prefix)
			sim_seen(r, SIM_EV_PREFIX_ABORT);
	}
	__real_kvs_worker_packet(w, engine, type, p);
}

REAL(void, kvs_worker_engine_lost, struct kvs_worker *w, uint32_t number,
     bool proof);
void __wrap_kvs_worker_engine_lost(struct kvs_worker *w, uint32_t number,
				   bool proof)
{
	const struct kvs_worker_engine *e;
	const struct kvs_room_member *m;
	const struct kvs_retraction *t;

	kvs_list_for_each_entry(e, &w->engines, node) {
		if (e->number != number)
			continue;
		kvs_list_for_each_entry(m, &e->rooms, engine_node)
			sim_seen(m->room, proof ? SIM_EV_ENGINE_EXIT
						: SIM_EV_ENGINE_LOST);
		kvs_list_for_each_entry(t, &e->retractions, engine_node)
			sim_seen_away(t, proof ? SIM_AWAY_EV_ENGINE_EXIT
					       : SIM_AWAY_EV_ENGINE_LOST);
	}
	__real_kvs_worker_engine_lost(w, number, proof);
}

/* ---- time and the end ---------------------------------------------------- */

static void seen_all(struct kvs_worker *w, enum sim_event e)
{
	const struct kvs_room *r;
	size_t pos = 0;

	while ((r = kvs_u64map_next(&w->rooms, &pos)))
		sim_seen(r, e);
}

REAL(void, kvs_worker_shutdown, struct kvs_worker *w);
void __wrap_kvs_worker_shutdown(struct kvs_worker *w)
{
	seen_all(w, SIM_EV_SHUTDOWN);
	sim_seen_aways(w, SIM_AWAY_EV_SHUTDOWN);
	__real_kvs_worker_shutdown(w);
}

REAL(void, kvs_worker_abandon, struct kvs_worker *w);
void __wrap_kvs_worker_abandon(struct kvs_worker *w)
{
	seen_all(w, SIM_EV_END);
	sim_seen_aways(w, SIM_AWAY_EV_END);
	__real_kvs_worker_abandon(w);
}

/* R14: it began when what it bounds began. */
static void check_deadline(const struct kvs_room *r, uint64_t now)
{
	const struct kvs_settings *set = &sim_now->set;

	if ((r->state == KVS_ROOM_ADMITTED &&
	     now - r->memory_at < set->open_timeout) ||
	    (r->state == KVS_ROOM_READY && now - r->since < set->claim_timeout))
		sim_fail(sim_now, "R14: state %s ends before its time",
			 kvs_room_state_name[r->state]);
}

static bool due(const struct kvs_timer *t, uint64_t now)
{
	return kvs_timer_is_set(t) && t->at <= now;
}

REAL(int, kvs_transport_poll, struct kvs_transport *t, uint64_t timeout_ns);
int __wrap_kvs_transport_poll(struct kvs_transport *t, uint64_t timeout_ns)
{
	sim_now->polled |= t == sim_now->node_t;
	return __real_kvs_transport_poll(t, timeout_ns);
}

REAL(unsigned int, kvs_timerq_run, struct kvs_timerq *q, uint64_t now);
unsigned int __wrap_kvs_timerq_run(struct kvs_timerq *q, uint64_t now)
{
	struct kvs_worker *w = sim_now->daemon_up ? sim_now->node.worker : NULL;
	const struct kvs_retraction *t;
	const struct kvs_room *r;
	unsigned int n;
	size_t pos = 0;

	if (w && q == &w->timers && kvs_timerq_next(q) <= now) {
		/* R14: what has come comes first */
		if (sim_now->node_ran && !sim_now->polled)
			sim_fail(sim_now, "R14: deadlines are looked at before "
					  "completions");
		while ((r = kvs_u64map_next(&w->rooms, &pos))) {
			if (due(&r->deadline, now)) {
				sim_seen(r, SIM_EV_DEADLINE);
				check_deadline(r, now);
			}
			if (due(&r->drain.hold, now))
				sim_seen(r, SIM_EV_HOLD);
		}
		pos = 0;
		while ((t = kvs_u64map_next(&w->retracts.map, &pos)))
			if (due(&t->drain.hold, now))
				sim_seen_away(t, SIM_AWAY_EV_HOLD);
	}
	n = __real_kvs_timerq_run(q, now);
	pos = 0;
	while (w && q == &w->timers && (r = kvs_u64map_next(&w->rooms, &pos)))
		sim_now->cover->quarantined +=
			n && r->state == KVS_ROOM_QUARANTINED &&
			r->since == now;
	return n;
}
