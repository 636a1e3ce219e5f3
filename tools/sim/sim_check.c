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

/* How long a retraction may stay in its state. Sums are few bytes. */
static uint64_t away_bound(const struct sim *w, const struct kvs_retraction *t)
{
	switch (t->state) {
	case KVS_RETRACT_SUMMING:
	case KVS_RETRACT_KEEPING:
	case KVS_RETRACT_VERIFYING:
	case KVS_RETRACT_CHECKING:
		return KVS_NSEC_PER_SEC;
	case KVS_RETRACT_DRAINING:
		return w->set.hold_timeout;
	case KVS_RETRACT_PINNED:
		return w->set.cache_pin_timeout;
	case KVS_RETRACT_DONE:
		return 0;
	case KVS_RETRACT_LEAVING:
	case KVS_RETRACT_RETRACTED:
	case KVS_RETRACT_RESUMING:
	case KVS_RETRACT_QUARANTINED:
	case KVS_RETRACT_FREE:
	case KVS_RETRACT_STATE_MAX:
		break;
	}
	return KVS_TIME_NEVER;
}

static void check_retraction(struct sim *w, const struct kvs_retraction *t)
{
	uint64_t most = away_bound(w, t);

	for (uint32_t i = 0; i < t->ext.n; i++)
		if (w->offload_shadow[t->ext.v[i].off / SIM_GRANULE]
			    .generation != t->generation)
			sim_fail(w,
				 "R1: an extent of retraction %llu is not its "
				 "own",
				 (unsigned long long)t->generation);
	if (t->state == KVS_RETRACT_QUARANTINED && !t->copy.drain)
		sim_fail(w, "R8: retraction %llu is quarantined for nobody",
			 (unsigned long long)t->generation);
	if (w->node_ran && most != KVS_TIME_NEVER &&
	    sim_time(w) - t->since > most + SIM_MS)
		sim_fail(w, "retraction %llu is stuck in state %s",
			 (unsigned long long)t->generation,
			 kvs_retract_state_name[t->state]);
}

/* The books of one pool against what was found in @sum. */
static void check_books(struct sim *w, const struct kvs_pool *p,
			const uint64_t *sum, uint64_t size)
{
	struct kvs_pool_account acc;
	uint64_t used = 0;

	kvs_pool_check(p);
	kvs_pool_account(p, &acc);
	for (unsigned int i = 1; i < KVS_EXTENT_STATE_MAX; i++) {
		used += acc.bytes[i];
		if (sum[i] != acc.bytes[i])
			sim_fail(w,
				 "the books of %s have %llu bytes %s, we %llu",
				 kvs_pool_name(p),
				 (unsigned long long)acc.bytes[i],
				 kvs_extent_state_name[i],
				 (unsigned long long)sum[i]);
	}
	if (used + acc.bytes[KVS_EXTENT_FREE] != size)
		sim_fail(w, "the books of %s do not add up", kvs_pool_name(p));
}

static void check_offload(struct sim *w)
{
	uint64_t sum[KVS_EXTENT_STATE_MAX] = { 0 };
	const struct kvs_retraction *t;
	size_t pos = 0;

	if (!w->node.offload_pool)
		return;
	while ((t = kvs_u64map_next(&w->node.worker->retracts.map, &pos))) {
		if (t->ext.n)
			sum[t->ext.v[0].state] += t->ext.bytes;
		check_retraction(w, t);
	}
	check_books(w, w->node.offload_pool, sum, w->plan.offload);
}

/* What is kept: its extents are nobody's, and the index knows of all. */
static uint64_t check_kept(struct sim *w)
{
	const struct kvs_cache *all = &w->node.worker->cache;
	const struct kvs_cached *c;
	struct kvs_cache_stats st;
	uint64_t bytes = 0;

	kvs_list_for_each_entry(c, &all->units, node) {
		bytes += c->ext.bytes;
		if (!w->shadow[c->ext.v[0].off / SIM_GRANULE].cached)
			sim_fail(w, "R1: an extent that is kept belongs to "
				    "somebody");
	}
	if (!all->ix)
		return bytes;
	kvs_index_check(all->ix);
	kvs_cache_stats(w->node.worker, &st);
	if (st.bytes != bytes)
		sim_fail(w, "the index has %llu bytes, and %llu are kept",
			 (unsigned long long)st.bytes,
			 (unsigned long long)bytes);
	return bytes;
}

void sim_check_step(struct sim *w)
{
	uint64_t sum[KVS_EXTENT_STATE_MAX] = { 0 };
	const struct kvs_room *r;
	size_t pos = 0;

	if (!w->daemon_up)
		return;
	while ((r = kvs_u64map_next(&w->node.worker->rooms, &pos))) {
		int st = books_state(r);

		if (st >= 0)
			sum[st] += r->ext.bytes;
		/* what is due is due when its thread has run */
		if (w->node_ran)
			check_stuck(w, r);
		check_owner(w, r);
		if (r->prefix && !r->prefix->verified &&
		    r->state >= KVS_ROOM_READY && r->state < KVS_ROOM_DONE)
			sim_fail(w,
				 "R12: room %llx is READY before what it has "
				 "in the cache was compared",
				 (unsigned long long)r->id);
	}
	sum[KVS_EXTENT_CACHED] += check_kept(w);
	check_books(w, w->node.pool, sum, w->plan.pool);
	check_offload(w);
}

static void check_item(struct sim_attempt *a, uint32_t b, uint32_t device_item,
		       uint32_t item, const char *rule)
{
	const struct kvs_layer_buffer *lb = &a->w->lb[b];
	const unsigned char *p = (unsigned char *)a->eng->buffer[b] +
				 (size_t)device_item * lb->item_len;
	int64_t at = sim_item_differ(a, b, item, p);

	if (at >= 0)
		sim_fail(a->w,
			 "%s: attempt %u has wrong bytes on the device: buffer "
			 "%u (kind %u layer %u), item %u, byte %lld",
			 rule, a->nr, b, lb->kind, lb->layer, item,
			 (long long)at);
}

void sim_check_device(struct sim_attempt *a, const char *rule)
{
	struct sim *w = a->w;
	uint32_t next = 0;

	for (uint32_t b = 0; b < w->layout.n_buffers; b++) {
		uint32_t n = (uint32_t)kvs_buffer_items(&w->lb[b], a->pages);

		for (uint32_t i = 0; i < n; i++)
			check_item(a, b,
				   w->lb[b].items ? a->dev_items[next + i]
						  : a->dev_pages[i],
				   i, rule);
		if (w->lb[b].items)
			next += n;
	}
}

void sim_check_done(struct sim_attempt *a)
{
	if (!a->committed || !a->dev_held) {
		sim_fail(a->w, "attempt %u is DONE and was never committed",
			 a->nr);
		return;
	}
	sim_check_device(a, "R9");
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
	sim_cache_end(w);
	if (w->node.offload_pool) {
		kvs_pool_account(w->node.offload_pool, &acc);
		if (acc.bytes[KVS_EXTENT_FREE] != w->plan.offload)
			sim_fail(
				w, "%llu bytes of those away never came back",
				(unsigned long long)(w->plan.offload -
						     acc.bytes[KVS_EXTENT_FREE]));
	}
	kvs_pool_account(w->node.pool, &acc);
	if (acc.bytes[KVS_EXTENT_FREE] != w->plan.pool)
		sim_fail(w, "%llu bytes never came back",
			 (unsigned long long)(w->plan.pool -
					      acc.bytes[KVS_EXTENT_FREE]));
	for (size_t i = 0; i < KVS_ARRAY_SIZE(w->shadow); i++)
		if (w->shadow[i].generation)
			sim_fail(w, "granule %zu never came back", i);
}
