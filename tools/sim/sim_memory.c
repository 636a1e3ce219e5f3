/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who owns each piece of the daemon's pools, written down as it is handed out
 * and given back, and who could still reach it then. See sim_watch.c.
 */
#include <errno.h>

#include "tools/sim/sim.h"

static struct sim_shadow *shadow_of(struct sim *w, const struct kvs_extents *x)
{
	return x->pool == w->node.pool ? w->shadow : w->offload_shadow;
}

static void own(const struct kvs_extents *x, uint64_t generation)
{
	struct sim *w = sim_now;
	struct sim_shadow *all = shadow_of(w, x);

	for (uint32_t i = 0; i < x->n; i++) {
		const struct kvs_extent *e = &x->v[i];

		for (uint64_t at = 0; at < e->len; at += SIM_GRANULE) {
			struct sim_shadow *s =
				&all[(e->off + at) / SIM_GRANULE];

			if (s->generation)
				sim_fail(w,
					 "R1: memory of generation %llu was "
					 "given to generation %llu",
					 (unsigned long long)s->generation,
					 (unsigned long long)generation);
			s->generation = generation;
			s->cached = false;
		}
	}
}

static void disown(const struct kvs_extents *x, uint64_t generation,
		   bool cached)
{
	struct sim *w = sim_now;
	struct sim_shadow *all = shadow_of(w, x);

	for (uint32_t i = 0; i < x->n; i++) {
		const struct kvs_extent *e = &x->v[i];

		for (uint64_t at = 0; at < e->len; at += SIM_GRANULE) {
			struct sim_shadow *s =
				&all[(e->off + at) / SIM_GRANULE];

			if (w->daemon_up && (s->cached != cached ||
					     s->generation != generation))
				sim_fail(w,
					 "R1: memory of generation %llu is "
					 "released by generation %llu",
					 (unsigned long long)s->generation,
					 (unsigned long long)generation);
			*s = (struct sim_shadow){ 0 };
		}
	}
}

static void note_retraction(struct sim *w)
{
	w->away[w->n_aways++ % SIM_AWAYS] = w->retracting;
}

REAL(int, kvs_pool_alloc, struct kvs_pool *p, const uint64_t *lens, uint32_t n,
     struct kvs_extents *ret);
int __wrap_kvs_pool_alloc(struct kvs_pool *p, const uint64_t *lens, uint32_t n,
			  struct kvs_extents *ret)
{
	int res = __real_kvs_pool_alloc(p, lens, n, ret);
	struct kvs_pool_account acc;
	const struct kvs_room *r;

	if (p != sim_now->node.pool) {
		sim_seen_away(NULL,
			      res ? SIM_AWAY_EV_NO_MEMORY : SIM_AWAY_EV_MEMORY);
		if (res)
			return res;
		note_retraction(sim_now);
		own(ret, sim_now->retracting);
		return 0;
	}
	r = kvs_container_of(ret, struct kvs_room, ext);
	if (res) {
		sim_seen(r, SIM_EV_NO_MEMORY);
		kvs_pool_account(p, &acc);
		if (res == -E2BIG && !acc.bytes[KVS_EXTENT_QUARANTINED])
			sim_fail(sim_now, "R11: a room exists that can never "
					  "fit");
		return res;
	}
	sim_seen(r, SIM_EV_MEMORY);
	own(&r->ext, r->generation);
	if (r->prefix) {
		sim_kept(sim_now, SIM_KEPT_PREFIX);
		if (r->prefix->n_segs > 1)
			sim_kept(sim_now, SIM_KEPT_PIECES);
	}
	return 0;
}

/* An extent of a finished room is kept, and is nobody's now. */
REAL(int, kvs_extents_split, struct kvs_extents *x, uint32_t i,
     struct kvs_extents *ret);
int __wrap_kvs_extents_split(struct kvs_extents *x, uint32_t i,
			     struct kvs_extents *ret)
{
	const struct kvs_room *r = kvs_container_of(x, struct kvs_room, ext);
	int res = __real_kvs_extents_split(x, i, ret);
	struct sim *w = sim_now;

	if (res)
		return res;
	if (r->failed || r->state != KVS_ROOM_DONE)
		sim_fail(
			w,
			"R10: memory of generation %llu, %s, goes to the cache",
			(unsigned long long)r->generation,
			kvs_room_state_name[r->state]);
	sim_kept(w, SIM_KEPT_DONATED);
	for (uint64_t at = 0; at < ret->v[0].len; at += SIM_GRANULE)
		w->shadow[(ret->v[0].off + at) / SIM_GRANULE].cached = true;
	return 0;
}

REAL(void, kvs_room_take_back, struct kvs_room *r);
void __wrap_kvs_room_take_back(struct kvs_room *r)
{
	if (r->opened || r->drain.was_granted)
		sim_fail(sim_now,
			 "R1: memory of generation %llu is taken back "
			 "from under its ranks",
			 (unsigned long long)r->generation);
	sim_seen(r, SIM_EV_LOAN);
	__real_kvs_room_take_back(r);
}

static bool is_member(const struct kvs_room *r, uint32_t engine)
{
	for (uint32_t i = 0; i < r->n_members; i++)
		if (r->members[i].engine->number == engine)
			return true;
	return false;
}

/* R13: of our own knowledge, and not the daemon's. */
static void check_room_copies(const struct kvs_room *r)
{
	struct sim *w = sim_now;
	const struct kvs_eng_room *x;

	for (unsigned int i = 0; i < w->n_engines; i++) {
		const struct sim_engine *g = &w->engine[i];

		if (!g->e || !g->fe || !is_member(r, g->fe->number))
			continue;
		kvs_list_for_each_entry(x, &g->e->active, node)
			if (x->phase == KVS_ENG_PHASE_COPYING &&
			    x->ready_generation == r->generation &&
			    kvs_device_query(g->dev, &x->copy) == -EINPROGRESS)
				sim_fail(w,
					 "R13: memory of generation %llu is "
					 "released while it is copied",
					 (unsigned long long)r->generation);
	}
}

/* R3: of our own records. */
static void check_acks(const struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		const struct sim_record *had =
			sim_record_find(r->generation, i);

		if (r->ranks[i].party.acked && (!had || !had->acked))
			sim_fail(sim_now,
				 "R3: generation %llu counts an "
				 "acknowledgement of rank %u, who gave none",
				 (unsigned long long)r->generation, i);
	}
}

/* Nobody may be left who can reach it. */
static void check_release(const struct kvs_room *r)
{
	struct sim *w = sim_now;

	if (!kvs_list_empty(&r->drain.parties))
		sim_fail(w,
			 "R1: memory of generation %llu is released with "
			 "%u parties alive",
			 (unsigned long long)r->generation, r->drain.live);
	check_room_copies(r);
	check_acks(r);
	if (sim_pull_reads(w, r->generation))
		sim_fail(w,
			 "R1: memory of generation %llu is released while "
			 "it is read into",
			 (unsigned long long)r->generation);
	if (!kvs_list_empty(&r->receives))
		sim_fail(w,
			 "R1: memory of generation %llu is released while "
			 "it is received into",
			 (unsigned long long)r->generation);
}

static bool overlaps(const struct kvs_packet_seg *s, const struct kvs_extent *e)
{
	return s->off >= e->off && s->off < e->off + e->len;
}

/* R13: an extent that is kept goes; of those who have it in their prefix none
 * may be left, nor any copy of theirs. */
static void check_kept(const struct kvs_cached *c)
{
	struct sim *w = sim_now;
	const struct kvs_eng_room *x;
	const struct kvs_room *r;
	size_t pos = 0;

	while ((r = kvs_u64map_next(&w->node.worker->rooms, &pos))) {
		for (uint32_t i = 0; r->prefix && i < r->prefix->n; i++) {
			if (r->prefix->v[i].cookie != (uint64_t)(uintptr_t)c)
				continue;
			if (!kvs_drain_is_over(&r->drain))
				sim_fail(w,
					 "R13: what generation %llu has in the "
					 "cache is released",
					 (unsigned long long)r->generation);
			sim_kept(w, SIM_KEPT_LAST_READER);
			break;
		}
	}
	for (unsigned int i = 0; i < w->n_engines; i++) {
		const struct sim_engine *g = &w->engine[i];

		if (!g->e || !g->fe)
			continue;
		kvs_list_for_each_entry(x, &g->e->active, node)
			for (uint32_t k = 0; k < x->n_segs; k++)
				if (x->phase == KVS_ENG_PHASE_COPYING &&
				    overlaps(&x->segs[k], &c->ext.v[0]) &&
				    kvs_device_query(g->dev, &x->copy) ==
					    -EINPROGRESS)
					sim_fail(w, "R13: what is kept is "
						    "released while it is "
						    "copied");
	}
}

/* R13: nor may a request that leaves, or comes back, be on its way. */
static void check_away(const struct kvs_retraction *t)
{
	struct sim *w = sim_now;
	const struct kvs_eng_room *x;

	if (!kvs_list_empty(&t->drain.parties))
		sim_fail(w,
			 "R1: memory of retraction %llu is released with "
			 "%u parties alive",
			 (unsigned long long)t->generation, t->drain.live);
	for (unsigned int i = 0; i < w->n_engines; i++) {
		const struct sim_engine *g = &w->engine[i];

		if (!g->e || !g->fe || g->fe->number != t->engine->number)
			continue;
		kvs_list_for_each_entry(x, &g->e->active, node) {
			if (!x->out || x->ready_generation != t->generation)
				continue;
			if (x->phase == KVS_ENG_PHASE_LEAVING ||
			    ((x->phase == KVS_ENG_PHASE_LEAVING_COPY ||
			      x->phase == KVS_ENG_PHASE_COPYING) &&
			     kvs_device_query(g->dev, &x->copy) ==
				     -EINPROGRESS))
				sim_fail(w,
					 "R13: memory of retraction %llu is "
					 "released while it is copied",
					 (unsigned long long)t->generation);
		}
	}
}

static uint64_t released_by(struct kvs_extents *x, bool *ret_cached)
{
	struct sim *w = sim_now;

	*ret_cached = false;
	if (x->pool != w->node.pool) {
		const struct kvs_retraction *t =
			kvs_container_of(x, struct kvs_retraction, ext);

		if (w->daemon_up)
			check_away(t);
		return t->generation;
	}
	if (x->v[0].state == KVS_EXTENT_CACHED) {
		*ret_cached = true;
		if (w->daemon_up)
			check_kept(kvs_container_of(x, struct kvs_cached, ext));
		return w->shadow[x->v[0].off / SIM_GRANULE].generation;
	}
	if (w->daemon_up) {
		const struct kvs_room *r =
			kvs_container_of(x, struct kvs_room, ext);

		check_release(r);
		sim_note(w, r->id, sim_state_name(r->state),
			 "%llu bytes are released",
			 (unsigned long long)x->bytes);
	}
	return kvs_container_of(x, struct kvs_room, ext)->generation;
}

REAL(void, kvs_pool_release, struct kvs_extents *x, const struct kvs_drain *d);
void __wrap_kvs_pool_release(struct kvs_extents *x, const struct kvs_drain *d)
{
	uint64_t generation;
	bool cached;

	if (x->n) {
		generation = released_by(x, &cached);
		disown(x, generation, cached);
	}
	__real_kvs_pool_release(x, d);
}

/* A piece is about to be written; into memory of the pool only of the room
 * that it was meant for. */
void sim_placed(void *arg, const struct kvs_loop_placed *p)
{
	static struct kvs_wire_scratch scratch;
	struct sim *w = arg;
	uint64_t off = (uint64_t)((unsigned char *)p->addr -
				  (unsigned char *)w->region.base);
	uint64_t meant = 0, owner;
	bool cached;
	const char *reason;
	struct kvs_msg m;

	if (off >= w->region.size || !w->daemon_up)
		return;
	if (p->frame &&
	    !kvs_wire_decode(p->frame, kvs_get32(p->frame->len), &scratch, &m,
			     &reason) &&
	    m.type == KVS_WIRE_CHUNK)
		meant = m.chunk.generation;
	/* the latest first: it is one of those, as a rule */
	for (uint32_t i = 0; p->remote && i < w->n_keys && i < SIM_KEYS; i++) {
		const struct sim_key *k =
			&w->key[(w->n_keys - 1 - i) % SIM_KEYS];

		if (k->rkey != p->remote->rkey)
			continue;
		meant = k->generation;
		break;
	}
	owner = w->shadow[off / SIM_GRANULE].generation;
	cached = w->shadow[off / SIM_GRANULE].cached;
	if (!owner || owner != meant || cached)
		sim_fail(w,
			 "R1: bytes of generation %llu land in %s of "
			 "generation %llu",
			 (unsigned long long)meant,
			 cached ? "what is kept" : "memory",
			 (unsigned long long)owner);
}
