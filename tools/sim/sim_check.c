/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold after every step, of every room that was committed, and at
 * the end. */
#include <string.h>

#include "tools/sim/sim.h"

/* Which state of the pool's books a room's extents are in. */
static int books_state(const struct kvs_room *r)
{
	return r->ext.n ? (int)r->ext.v[0].state : -1;
}

/* How long a room may stay in its state; KVS_TIME_NEVER: somebody else's
 * affair (a copy). */
static uint64_t bound(const struct sim *w, const struct kvs_room *r)
{
	switch (r->state) {
	case KVS_ROOM_WAITING:
		/* one whose loan was called in waits to be opened first */
		return r->memory_at && !r->opened ? w->set.open_timeout
						  : w->set.admission_timeout;
	case KVS_ROOM_ADMITTED:
		return w->set.open_timeout;
	case KVS_ROOM_RECEIVING:
	case KVS_ROOM_SEALING:
		return w->set.transfer_timeout + w->revoke_max;
	case KVS_ROOM_READY:
		return w->set.claim_timeout;
	case KVS_ROOM_DRAINING:
		return w->set.hold_timeout + w->revoke_max;
	case KVS_ROOM_DONE:
	case KVS_ROOM_FREE:
		return 0;
	case KVS_ROOM_COMMITTING:
	case KVS_ROOM_QUARANTINED:
	case KVS_ROOM_STATE_MAX:
		break;
	}
	return KVS_TIME_NEVER;
}

/* Quarantine is for what cannot be proven: a copy that runs, or may. */
static bool unprovable(const struct kvs_room *r)
{
	return kvs_room_copying(r);
}

/* From when on that is counted. An OPEN that lay unread while the node's
 * thread stood still begins the wait anew, however late it is read; a room is
 * opened once. */
static uint64_t since(const struct kvs_room *r)
{
	if (r->state == KVS_ROOM_WAITING && r->memory_at && r->opened)
		return r->wait_at;
	return r->since;
}

static void check_stuck(struct sim *w, const struct kvs_room *r)
{
	uint64_t most = bound(w, r);

	if (r->state == KVS_ROOM_QUARANTINED && !unprovable(r))
		sim_fail(w,
			 "R8: room %llx is quarantined, but everything of "
			 "it can be revoked",
			 (unsigned long long)r->id);
	if (most == KVS_TIME_NEVER)
		return;
	if (sim_time(w) - since(r) > most + SIM_MS)
		sim_fail(w, "room %llx is stuck in state %s",
			 (unsigned long long)r->id,
			 kvs_room_state_name[r->state]);
}

/* Its extents are its own in our books as well. */
static void check_owner(struct sim *w, const struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->ext.n; i++)
		if (w->shadow[r->ext.v[i].off / SIM_GRANULE].generation !=
		    r->generation)
			sim_fail(w,
				 "R1: an extent of generation %llu belongs to "
				 "generation %llu",
				 (unsigned long long)r->generation,
				 (unsigned long long)w
					 ->shadow[r->ext.v[i].off / SIM_GRANULE]
					 .generation);
}

void sim_check_step(struct sim *w)
{
	uint64_t sum[KVS_EXTENT_STATE_MAX] = { 0 };
	struct kvs_pool_account acc;
	const struct kvs_room *r;
	uint64_t used = 0;
	size_t pos = 0;

	if (!w->daemon_up)
		return;
	kvs_pool_check(w->node.pool);
	kvs_pool_account(w->node.pool, &acc);
	while ((r = kvs_u64map_next(&w->node.worker->rooms, &pos))) {
		int st = books_state(r);

		if (st >= 0)
			sum[st] += r->ext.bytes;
		/* what is due is due when its thread has run */
		if (w->node_ran)
			check_stuck(w, r);
		check_owner(w, r);
	}
	for (unsigned int i = 1; i < KVS_EXTENT_STATE_MAX; i++) {
		used += acc.bytes[i];
		if (sum[i] != acc.bytes[i])
			sim_fail(w, "the books have %llu bytes %s, rooms %llu",
				 (unsigned long long)acc.bytes[i],
				 kvs_extent_state_name[i],
				 (unsigned long long)sum[i]);
	}
	if (used + acc.bytes[KVS_EXTENT_FREE] != w->plan.pool)
		sim_fail(w, "the books do not add up");
}

static unsigned int owner_of(const struct sim_attempt *a, unsigned int layer)
{
	for (unsigned int r = 0; r < a->n_ranks; r++)
		if (layer >= a->slice[r].first_layer &&
		    layer - a->slice[r].first_layer < a->slice[r].n_layers)
			return r;
	return 0;
}

static void check_item(struct sim_attempt *a, uint32_t b, uint32_t device_item,
		       uint32_t item)
{
	const struct kvs_layer_buffer *lb = &a->w->lb[b];
	const unsigned char *p = (unsigned char *)a->eng->buffer[b] +
				 (size_t)device_item * lb->item_len;
	unsigned int rank = owner_of(a, lb->layer);
	int64_t at;

	at = sim_bytes_differ(p, lb->item_len, a->nr, rank, lb->kind, lb->layer,
			      item);
	if (at >= 0)
		sim_fail(a->w,
			 "R9: attempt %u was committed with wrong bytes: rank "
			 "%u, buffer %u (kind %u layer %u), item %u, byte %lld",
			 a->nr, rank, b, lb->kind, lb->layer, item,
			 (long long)at);
}

void sim_check_done(struct sim_attempt *a)
{
	struct sim *w = a->w;
	uint32_t next = 0;

	if (!a->committed || !a->dev_held) {
		sim_fail(w, "attempt %u is DONE and was never committed",
			 a->nr);
		return;
	}
	for (uint32_t b = 0; b < w->layout.n_buffers; b++) {
		uint32_t n = (uint32_t)kvs_buffer_items(&w->lb[b], a->pages);

		for (uint32_t i = 0; i < n; i++)
			check_item(a, b,
				   w->lb[b].items ? a->dev_items[next + i]
						  : a->dev_pages[i],
				   i);
		if (w->lb[b].items)
			next += n;
	}
	a->copied = true;
}

void sim_check_aux(struct sim_attempt *a, uint32_t rank, const void *p,
		   uint32_t len)
{
	if (len != a->aux_len) {
		sim_fail(a->w, "attempt %u, rank %u: %u bytes of aux, not %u",
			 a->nr, rank, len, a->aux_len);
		return;
	}
	if (len &&
	    sim_bytes_differ(p, len, a->nr, rank, KVS_KIND_AUX, rank, 0) >= 0)
		sim_fail(a->w, "R9: attempt %u: wrong aux block of rank %u",
			 a->nr, rank);
}

void sim_check_end(struct sim *w)
{
	struct kvs_pool_account acc;

	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		const struct sim_attempt *a = &w->attempt[i];

		if (a->state == SIM_ENDED && a->ends != 1)
			sim_fail(w, "attempt %u ended %u times", a->nr,
				 a->ends);
		/* the next one of that id never got its turn then */
		if (w->plan.clean && !a->copied && !a->cut &&
		    !(a->before && a->before->cut))
			sim_fail(w, "attempt %u did not end well", a->nr);
	}
	for (unsigned int i = 0; i < w->plan.n_ranks; i++) {
		const struct sim_rank *k = &w->rank[i];
		unsigned int most = k->asked;

		/* so many of a room that cannot be answered yet are counted */
		if (most > 64)
			most = 64;
		if (k->s && k->s->state == KVS_SENDER_UP && k->answered < most)
			sim_fail(w, "R6: rank %u gave %u answers to %u ABORTs",
				 i, k->answered, k->asked);
	}
	if (!w->daemon_up)
		return;
	kvs_pool_account(w->node.pool, &acc);
	if (acc.bytes[KVS_EXTENT_FREE] != w->plan.pool)
		sim_fail(w, "%llu bytes never came back",
			 (unsigned long long)(w->plan.pool -
					      acc.bytes[KVS_EXTENT_FREE]));
	for (size_t i = 0; i < KVS_ARRAY_SIZE(w->shadow); i++)
		if (w->shadow[i].generation)
			sim_fail(w, "granule %zu never came back", i);
}
