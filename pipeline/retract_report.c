/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker tells about retractions, and how much memory is kept for
 * them. */
#include <stdio.h>
#include <string.h>

#include "lib/log.h"
#include "pipeline/layout.h"
#include "pipeline/retract_internal.h"
#include "pipeline/worker.h"

/* Bytes of the largest request that an engine may run; 0: it does not say. */
static uint64_t largest(const struct kvs_layout *l)
{
	uint64_t tokens = l->max_context ? l->max_context : l->capacity;
	uint64_t each = kvs_layout_bytes_per_token(l);

	return tokens > UINT64_MAX / 2 / each ? UINT64_MAX / 2 : tokens * each;
}

void kvs_retracts_engines(struct kvs_worker *w)
{
	const struct kvs_worker_engine *e;
	uint64_t one = 0, was = w->retracts.reserve, want, size;

	if (!w->retracts.pool)
		return;
	size = kvs_pool_size(w->retracts.pool);
	kvs_list_for_each_entry(e, &w->engines, node)
		if (!e->gone && largest(e->layout) > one)
			one = largest(e->layout);
	want = w->set->reserve_retraction ? w->set->reserve_retraction
					  : 2 * one;
	w->retracts.reserve = want < size ? want : size;
	if (want > size && w->retracts.reserve != was)
		kvs_log_warn("pool.offload_size is %llu on node %d, less than "
			     "the %llu that are to be kept for retracted "
			     "requests (reserve.retraction): some may not be "
			     "let out of the device",
			     (unsigned long long)size,
			     kvs_pool_node(w->retracts.pool),
			     (unsigned long long)want);
}

uint64_t kvs_retracts_room(const struct kvs_worker *w)
{
	const struct kvs_retracts *all = &w->retracts;
	uint64_t most = kvs_pool_size(all->pool) - all->reserve;

	return most > all->kept_bytes ? most - all->kept_bytes : 0;
}

/* The pool that it has something of. */
static const struct kvs_pool *pool_of(const struct kvs_worker *w,
				      const struct kvs_retraction *t)
{
	return t->ext.n ? w->retracts.pool : w->pool;
}

static bool held(const struct kvs_retraction *t)
{
	return t->state == KVS_RETRACT_DRAINING ||
	       t->state == KVS_RETRACT_QUARANTINED;
}

size_t kvs_retracts_list(const struct kvs_worker *w, struct kvs_room_info *v,
			 size_t n, size_t max)
{
	uint64_t now = kvs_clock_now(w->clock);
	const struct kvs_retraction *t;
	size_t pos = 0;

	while ((t = kvs_u64map_next(&w->retracts.map, &pos))) {
		struct kvs_room_info *i = &v[n];

		if (n++ >= max)
			continue;
		memset(i, 0, sizeof(*i));
		i->room = t->id;
		i->generation = t->generation;
		i->state = kvs_retract_state_name[t->state];
		i->worker = w->o.index;
		i->node = kvs_pool_node(pool_of(w, t));
		i->engine = t->engine->number;
		i->tokens = t->prefix ? t->prefix->tokens : t->geo.tokens;
		i->bytes = t->ext.bytes;
		i->age = now - t->since;
		i->cause = t->failed ? kvs_cause_name[t->cause] : "";
		i->parties = t->drain.live;
	}
	return n;
}

size_t kvs_retracts_holds(const struct kvs_worker *w, struct kvs_hold_info *v,
			  size_t n, size_t max)
{
	uint64_t now = kvs_clock_now(w->clock);
	const struct kvs_retraction *t;
	size_t pos = 0;

	while ((t = kvs_u64map_next(&w->retracts.map, &pos))) {
		struct kvs_hold_info *i;

		if (!held(t) || n++ >= max)
			continue;
		i = &v[n - 1];
		memset(i, 0, sizeof(*i));
		i->room = t->id;
		i->generation = t->generation;
		i->state = kvs_retract_state_name[t->state];
		i->cause = kvs_cause_name[t->cause];
		i->worker = w->o.index;
		i->node = kvs_pool_node(pool_of(w, t));
		i->engine = t->engine->number;
		i->bytes = t->ext.bytes;
		i->age = now - t->drain.armed_at;
		i->revoke_in = kvs_timer_is_set(&t->drain.hold) &&
					       t->drain.hold.at > now
				       ? t->drain.hold.at - now
				       : KVS_TIME_NEVER;
		i->ask_in = KVS_TIME_NEVER;
		i->waits[KVS_PARTY_COPY] = t->drain.live;
	}
	return n;
}

void kvs_retracts_snapshot(const struct kvs_worker *w,
			   struct kvs_worker_snapshot *ret)
{
	const struct kvs_retraction *t;
	size_t pos = 0;

	ret->retract_reserve_bytes = w->retracts.reserve;
	while ((t = kvs_u64map_next(&w->retracts.map, &pos))) {
		ret->retractions++;
		if (!held(t))
			continue;
		ret->rooms_held++;
		ret->held_bytes[t->cause] += t->ext.bytes;
	}
}
