/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker tells about itself: snapshots, lists of rooms and of holds. */
#include <stdio.h>
#include <string.h>

#include "pipeline/worker.h"

static bool report_held(const struct kvs_room *r)
{
	return r->state == KVS_ROOM_DRAINING ||
	       r->state == KVS_ROOM_QUARANTINED;
}

void kvs_worker_snapshot(const struct kvs_worker *w,
			 struct kvs_worker_snapshot *ret)
{
	const struct kvs_room *r;
	size_t pos = 0;

	memset(ret, 0, sizeof(*ret));
	ret->index = w->o.index;
	ret->rooms_live = w->live;
	ret->rooms_waiting = kvs_admission_waiting(w);
	ret->reserve_bytes = w->admission.reserve.bytes;
	ret->stats = w->stats;
	kvs_retracts_snapshot(w, ret);
	kvs_cache_stats(w, &ret->cache);
	kvs_cache_disk_stats(w, &ret->disk);
	kvs_cache_shared_stats(w, &ret->shared);
	ret->n_pools = 1;
	ret->pools[0].name = kvs_pool_name(w->pool);
	ret->pools[0].node = kvs_pool_node(w->pool);
	kvs_pool_account(w->pool, &ret->pools[0].account);
	if (ret->pools[0].account.bytes[KVS_EXTENT_HELD] == 0 &&
	    ret->pools[0].account.bytes[KVS_EXTENT_QUARANTINED] == 0)
		return;
	while ((r = kvs_u64map_next(&w->rooms, &pos))) {
		if (!report_held(r))
			continue;
		ret->rooms_held++;
		ret->held_bytes[r->cause] += r->ext.bytes;
	}
}

size_t kvs_worker_rooms(const struct kvs_worker *w, struct kvs_room_info *v,
			size_t max)
{
	uint64_t now = kvs_clock_now(w->clock);
	const struct kvs_room *r;
	size_t pos = 0, n = 0;

	while ((r = kvs_u64map_next(&w->rooms, &pos))) {
		struct kvs_room_info *i = &v[n];

		if (n++ >= max)
			continue;
		memset(i, 0, sizeof(*i));
		i->room = r->id;
		i->generation = r->generation;
		i->state = kvs_room_state_name[r->state];
		i->worker = w->o.index;
		i->node = kvs_pool_node(w->pool);
		i->engine = r->members[0].engine->number;
		snprintf(i->peer, sizeof(i->peer), "%s", r->peer);
		i->tokens = r->geo.tokens;
		i->bytes = r->ext.bytes;
		i->expected = r->expected;
		i->received = r->received;
		i->age = now - r->since;
		i->cause = r->failed ? kvs_cause_name[r->cause] : "";
		i->parties = r->drain.live;
	}
	return kvs_retracts_list(w, v, n, max);
}

static uint64_t report_until(const struct kvs_timer *t, uint64_t now)
{
	if (!kvs_timer_is_set(t))
		return KVS_TIME_NEVER;
	return t->at > now ? t->at - now : 0;
}

static void report_parties(const struct kvs_drain *d, struct kvs_hold_info *i)
{
	const struct kvs_party *p;

	kvs_list_for_each_entry(p, &d->parties, node) {
		i->waits[p->ops->kind]++;
		i->revoking += p->revoking;
		if (p->ops->kind != KVS_PARTY_RANK)
			continue;
		i->ranks_mute += p->poisoned;
		if (i->n_ranks < KVS_HOLD_RANKS)
			i->ranks[i->n_ranks++] = (uint32_t)p->id;
	}
}

size_t kvs_worker_holds(const struct kvs_worker *w, struct kvs_hold_info *v,
			size_t max)
{
	uint64_t now = kvs_clock_now(w->clock);
	const struct kvs_room *r;
	size_t pos = 0, n = 0;

	while ((r = kvs_u64map_next(&w->rooms, &pos))) {
		struct kvs_hold_info *i;

		if (!report_held(r) || n++ >= max)
			continue;
		i = &v[n - 1];
		memset(i, 0, sizeof(*i));
		i->room = r->id;
		i->generation = r->generation;
		i->state = kvs_room_state_name[r->state];
		i->cause = kvs_cause_name[r->cause];
		i->worker = w->o.index;
		i->node = kvs_pool_node(w->pool);
		snprintf(i->peer, sizeof(i->peer), "%s", r->peer);
		i->engine = r->members[0].engine->number;
		i->bytes = r->ext.bytes;
		i->age = now - r->drain.armed_at;
		i->revoke_in = report_until(&r->drain.hold, now);
		i->ask_in = report_until(&r->deadline, now);
		/* Who is revoked by then is not asked. */
		if (i->ask_in > i->revoke_in)
			i->ask_in = KVS_TIME_NEVER;
		report_parties(&r->drain, i);
	}
	return kvs_retracts_holds(w, v, n, max);
}
