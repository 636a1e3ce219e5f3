/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon does about requests that leave the device and about memory
 * that is kept: as sim_watch.c does of rooms. */
#include "tools/sim/sim.h"

void sim_seen_away(const struct kvs_retraction *t, enum sim_away_event e)
{
	unsigned int st = t ? t->state : SIM_AWAY_GONE;

	sim_now->cover->away[st][e]++;
	sim_note(sim_now, t ? t->id : 0, sim_away_state_name(st),
		 "retraction: %s", sim_away_event_name[e]);
}

void sim_seen_aways(struct kvs_worker *w, enum sim_away_event e)
{
	const struct kvs_retraction *t;
	size_t pos = 0;

	while ((t = kvs_u64map_next(&w->retracts.map, &pos)))
		sim_seen_away(t, e);
}

static enum sim_away_event packet_event(enum kvs_packet_type type, int err)
{
	switch (type) {
	case KVS_PACKET_RETRACTED:
		return err ? SIM_AWAY_EV_OUT_FAILED : SIM_AWAY_EV_OUT;
	case KVS_PACKET_COMMIT:
		return SIM_AWAY_EV_COMMIT;
	case KVS_PACKET_COMMITTED:
		return err ? SIM_AWAY_EV_COPY_FAILED : SIM_AWAY_EV_COMMITTED;
	case KVS_PACKET_COPY_OVER:
		return SIM_AWAY_EV_COPY_OVER;
	case KVS_PACKET_ABORT:
		return SIM_AWAY_EV_ABORT;
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
	case KVS_PACKET_LOOKUP:
	case KVS_PACKET_CACHED:
	case KVS_PACKET_TYPE_MAX:
		break;
	}
	return SIM_AWAY_EV_MAX;
}

bool sim_away_packet(struct kvs_worker *w, enum kvs_packet_type type,
		     const struct kvs_packet_room *p)
{
	enum sim_away_event e = packet_event(type, p->err);
	const struct sim *s = sim_now;
	bool away = false;

	for (uint32_t i = 0; i < s->n_aways && i < SIM_AWAYS; i++)
		away |= s->away[i] == p->generation;
	if (away && e != SIM_AWAY_EV_MAX)
		sim_seen_away(kvs_u64map_get(&w->retracts.map, p->generation),
			      e);
	return away;
}

REAL(void, kvs_worker_retract, struct kvs_worker *w,
     const struct kvs_retract_request *q);
void __wrap_kvs_worker_retract(struct kvs_worker *w,
			       const struct kvs_retract_request *q)
{
	sim_now->retracting = q->generation;
	__real_kvs_worker_retract(w, q);
}

/* Bytes to be summed up are few here, and time stands still in a turn: some
 * turns do not come to them, and the next one takes its time. */
static bool idle(bool busy)
{
	struct sim *w = sim_now;

	if (!busy || !w->daemon_up || w->healing ||
	    !sim_chance(w, w->plan.idle_sums))
		return false;
	w->node_not_before = sim_time(w) + sim_between(w, 0, w->plan.gap);
	return true;
}

REAL(void, kvs_retracts_turn, struct kvs_worker *w);
void __wrap_kvs_retracts_turn(struct kvs_worker *w)
{
	if (!idle(kvs_retracts_busy(w)))
		__real_kvs_retracts_turn(w);
}

REAL(void, kvs_cache_turn, struct kvs_worker *w);
void __wrap_kvs_cache_turn(struct kvs_worker *w)
{
	if (!idle(kvs_cache_busy(w)))
		__real_kvs_cache_turn(w);
}

/* The cache is asked for memory, or to forget. */
REAL(int, kvs_index_drop, struct kvs_index *ix, uint64_t unit);
int __wrap_kvs_index_drop(struct kvs_index *ix, uint64_t unit)
{
	struct kvs_unit_info info;

	if (sim_now->daemon_up && !kvs_index_unit(ix, unit, &info) &&
	    info.state == KVS_UNIT_FILLING)
		sim_kept(sim_now, SIM_KEPT_UNSUMMED);
	return __real_kvs_index_drop(ix, unit);
}
