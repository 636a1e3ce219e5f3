/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks and the daemon promise each other, written down on the way (see
 * sim_watch.c) and held against what they did.
 */
#include <string.h>

#include "tools/sim/sim.h"

/* R2: the drain is armed before a rank is told. */
static void check_abort(const struct kvs_msg *m)
{
	struct sim *w = sim_now;
	const struct kvs_room *r;

	if (!w->daemon_up)
		return;
	r = sim_room_of(w->node.worker, m->abort.generation);
	if (r && r->state != KVS_ROOM_FREE && r->drain.state == KVS_DRAIN_OPEN)
		sim_fail(w,
			 "R2: ABORT of generation %llu is sent before its "
			 "drain is armed",
			 (unsigned long long)m->abort.generation);
}

/* Of this generation and rank; NULL: not yet seen. */
struct sim_record *sim_record_find(uint64_t generation, uint32_t rank)
{
	struct sim *w = sim_now;

	for (uint32_t i = 0; i < w->n_records && i < SIM_RECORDS; i++)
		if (w->record[i].generation == generation &&
		    w->record[i].rank == rank)
			return &w->record[i];
	return NULL;
}

struct sim_record *sim_record_of(uint64_t generation, uint32_t rank)
{
	struct sim_record *r = sim_record_find(generation, rank);
	struct sim *w = sim_now;

	if (r)
		return r;
	r = &w->record[w->n_records++ % SIM_RECORDS];
	*r = (struct sim_record){ .generation = generation, .rank = rank };
	return r;
}

/* R4, R5: who acknowledges writes no more, and knows of every write how it
 * ended. */
static void check_ack(const struct kvs_sender *s, const struct kvs_msg *m)
{
	const struct sim_record *had =
		sim_record_find(m->abort.generation, s->rank);
	const struct kvs_send_room *r;

	if (had && had->launched)
		sim_fail(sim_now, "R4: an ABORT_ACK with %u writes launched",
			 had->launched);
	if (had && had->failed)
		sim_fail(sim_now, "R5: an ABORT_ACK after a send that failed");
	kvs_list_for_each_entry(r, &s->all, all_node) {
		if (r->generation != m->abort.generation ||
		    r->id != m->abort.room)
			continue;
		if (atomic_load(&r->outstanding))
			sim_fail(sim_now,
				 "R4: an ABORT_ACK with %u chunks outstanding",
				 atomic_load(&r->outstanding));
	}
}

static void answered(const struct kvs_sender *s)
{
	for (unsigned int i = 0; i < SIM_RANKS; i++)
		if (sim_now->rank[i].s == s)
			sim_now->rank[i].answered++;
}

static void note_keys(const struct kvs_msg_grant *g)
{
	struct sim *w = sim_now;

	for (uint32_t i = 0; i < g->n_keys; i++) {
		struct sim_key *k = &w->key[w->n_keys++ % SIM_KEYS];

		k->rkey = g->keys[i].rkey;
		k->generation = g->generation;
	}
}

static void (*chunk_done)(struct kvs_conn *c, struct kvs_tx *tx, int status);

static void tx_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	const struct kvs_send_chunk *k =
		kvs_container_of(tx, struct kvs_send_chunk, tx);
	struct sim_record *r =
		sim_record_of(k->room->generation, k->room->s->rank);

	r->launched -= r->launched > 0;
	r->failed |= status != 0;
	chunk_done(c, tx, status);
}

/* One room, one queue pair, unless it is large. */
static void check_home(const struct kvs_send_chunk *k)
{
	const struct kvs_send_slot *sl = k->slot->w->slot;

	for (unsigned int i = 0; i < KVS_SEND_SLOTS_MAX; i++)
		if (!k->room->striped && i != k->slot->index &&
		    k->room->used & 1ULL << i &&
		    sl[i].state == KVS_SEND_SLOT_READY)
			sim_fail(sim_now, "a small room went over two data "
					  "connections");
}

/* All of them come from senders. */
REAL(int, kvs_conn_write, struct kvs_conn *c, struct kvs_tx *tx);
int __wrap_kvs_conn_write(struct kvs_conn *c, struct kvs_tx *tx)
{
	const struct kvs_send_chunk *k =
		kvs_container_of(tx, struct kvs_send_chunk, tx);
	struct sim_rank *rank = NULL;
	int ret;

	check_home(k);
	chunk_done = tx->done;
	tx->done = tx_done;
	for (unsigned int i = 0; i < SIM_RANKS; i++)
		if (sim_now->rank[i].s == k->room->s)
			rank = &sim_now->rank[i];
	if (rank && rank->pulled && tx->n_iov <= SIM_PAGES)
		ret = sim_pull_start(rank, c, tx);
	else
		ret = __real_kvs_conn_write(c, tx);
	if (!ret)
		sim_record_of(k->room->generation, k->room->s->rank)->launched++;
	return ret;
}

/* Some ranks of a one-sided network know nothing of it. */
REAL(bool, kvs_transport_one_sided, const struct kvs_transport *t);
bool __wrap_kvs_transport_one_sided(const struct kvs_transport *t)
{
	for (unsigned int i = 0; i < SIM_RANKS; i++)
		if (sim_now->rank[i].t == t && sim_now->rank[i].two_sided)
			return false;
	return __real_kvs_transport_one_sided(t);
}

/* R6: as many answers as questions. */
REAL(void, kvs_send_room_aborted, struct kvs_sender *s,
     const struct kvs_msg_abort *m);
void __wrap_kvs_send_room_aborted(struct kvs_sender *s,
				  const struct kvs_msg_abort *m)
{
	for (unsigned int i = 0; i < SIM_RANKS; i++)
		if (sim_now->rank[i].s == s)
			sim_now->rank[i].asked++;
	__real_kvs_send_room_aborted(s, m);
}

/* R3: what is counted for a party, that party has said. */
REAL(int, kvs_drain_ack, struct kvs_drain *d, enum kvs_party_kind kind,
     uint64_t id, uint64_t generation);
int __wrap_kvs_drain_ack(struct kvs_drain *d, enum kvs_party_kind kind,
			 uint64_t id, uint64_t generation)
{
	sim_record_of(generation, (uint32_t)id)->acked = true;
	return __real_kvs_drain_ack(d, kind, id, generation);
}

/* R3: a rank that may be asked is a party, its bytes or not. */
static void check_grant(const struct kvs_msg_grant *g)
{
	struct sim *w = sim_now;
	const struct kvs_room *r =
		w->daemon_up ? sim_room_of(w->node.worker, g->generation)
			     : NULL;
	const struct kvs_room_rank *k = r ? &r->ranks[g->rank] : NULL;

	if (k && k->session &&
	    (k->session->one_sided || w->set.hold_require_ack) &&
	    !k->party.drain)
		sim_fail(w, "R3: rank %u is granted and no party", g->rank);
}

REAL(int, kvs_wire_encode, const struct kvs_msg *m, void *buf, size_t cap);
int __wrap_kvs_wire_encode(const struct kvs_msg *m, void *buf, size_t cap)
{
	const struct kvs_sender *s = NULL;
	struct sim *w = sim_now;

	for (unsigned int i = 0; i < SIM_RANKS; i++)
		if (w->rank[i].s && buf == w->rank[i].s->frame)
			s = w->rank[i].s;
	if (m->type == KVS_WIRE_ABORT && !s && w->daemon_up)
		check_abort(m);
	if (m->type == KVS_WIRE_GRANT) {
		check_grant(&m->grant);
		note_keys(&m->grant);
	}
	if (m->type == KVS_WIRE_ABORT_ACK && s)
		check_ack(s, m);
	if ((m->type == KVS_WIRE_ABORT_ACK || m->type == KVS_WIRE_ABORT_NAK) &&
	    s)
		answered(s);
	return __real_kvs_wire_encode(m, buf, cap);
}
