/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes next: of all that could, one is drawn; when nobody can, the clock
 * goes to the next moment at which somebody can. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/sim/sim.h"

#define SIM_STEPS_MAX 1000000
/* Virtual time for faults, and how long engines may take from then on. */
#define SIM_FAULTS_MAX (3 * KVS_NSEC_PER_SEC)
#define SIM_MERCY (1500 * SIM_MS)
/* Virtual time from the last fault to an empty pool, beyond what settings
 * allow. */
#define SIM_HEAL_MAX (5 * KVS_NSEC_PER_SEC)

void sim_fail(struct sim *w, const char *fmt, ...)
{
	va_list ap;

	if (w->failure[0])
		return;
	va_start(ap, fmt);
	vsnprintf(w->failure, sizeof(w->failure), fmt, ap);
	va_end(ap);
	sim_note(w, 0, "", "FAILURE: %s", w->failure);
}

void sim_note(struct sim *w, uint64_t room, const char *state, const char *fmt,
	      ...)
{
	char text[320], id[24] = "-";
	uint64_t ns = sim_time(w) - KVS_NSEC_PER_SEC;
	va_list ap;

	if (!w->verbose)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (unsigned int i = 0; room && i < w->plan.n_attempts; i++)
		if (w->attempt[i].id == room) {
			snprintf(id, sizeof(id), "room %u", i);
			break;
		}
	printf("%10.3f ms  %-8s %-8s %-12s %s\n", (double)ns / 1e6,
	       w->actor ? w->actor : "", id, state, text);
}

enum sim_actor {
	SIM_FRONT,
	SIM_NODE,
	SIM_ACTS,
	SIM_NET,
	SIM_RANK0,
	SIM_PORT0 = SIM_RANK0 + SIM_RANKS,
	SIM_DEVICE0 = SIM_PORT0 + SIM_ENGINES,
	SIM_ACTORS = SIM_DEVICE0 + SIM_ENGINES,
};

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool has_mail(struct kvs_mailbox *mb)
{
	return atomic_load_explicit(&mb->pending, memory_order_relaxed);
}

static uint64_t front_next(struct sim *w)
{
	if (!w->daemon_up)
		return KVS_TIME_NEVER;
	if (has_mail(&w->front.mailbox) || w->front.reap)
		return w->front_not_before;
	return later(earlier(kvs_loop_next(w->front_t),
			     kvs_front_next(&w->front)),
		     w->front_not_before);
}

static uint64_t node_next(struct sim *w)
{
	const struct kvs_worker *k = w->node.worker;

	if (!w->daemon_up)
		return KVS_TIME_NEVER;
	if (has_mail(&w->node.mailbox) || w->node.deferred || k->released ||
	    !kvs_list_empty(&k->dead))
		return w->node_not_before;
	return later(earlier(kvs_loop_next(w->node_t), kvs_worker_next(k)),
		     w->node_not_before);
}

static uint64_t actor_next(struct sim *w, unsigned int i)
{
	struct sim_engine *g;

	if (i == SIM_FRONT)
		return front_next(w);
	if (i == SIM_NODE)
		return node_next(w);
	if (i == SIM_ACTS)
		return kvs_timerq_next(&w->acts);
	if (i == SIM_NET)
		return kvs_fabric_next_wire(w->net);
	if (i < SIM_PORT0) {
		if (i - SIM_RANK0 >= w->plan.n_ranks)
			return KVS_TIME_NEVER;
		return later(sim_rank_next(&w->rank[i - SIM_RANK0]),
			     w->rank[i - SIM_RANK0].not_before);
	}
	if (i < SIM_DEVICE0) {
		if (i - SIM_PORT0 >= w->n_engines || !w->daemon_up)
			return KVS_TIME_NEVER;
		return later(sim_port_next(&w->engine[i - SIM_PORT0]),
			     w->front_not_before);
	}
	if (i - SIM_DEVICE0 >= w->n_engines)
		return KVS_TIME_NEVER;
	g = &w->engine[i - SIM_DEVICE0];
	return g->dev ? kvs_soft_next(g->dev) : KVS_TIME_NEVER;
}

/* A thread may not run for a while, whatever waits for it. */
static bool paused(struct sim *w, uint64_t *not_before)
{
	if (w->healing || !sim_chance(w, w->plan.pause))
		return false;
	sim_fault(w, SIM_FAULT_PAUSE);
	*not_before = sim_time(w) + sim_between(w, 1, w->plan.pause_max);
	return true;
}

static void actor_run(struct sim *w, unsigned int i)
{
	w->node_ran = false;
	w->polled = false;
	w->look = false;
	if (i == SIM_FRONT) {
		w->actor = "front";
		if (!paused(w, &w->front_not_before))
			kvs_front_turn(&w->front, 0);
	} else if (i == SIM_NODE) {
		w->actor = "node";
		w->node_ran = !paused(w, &w->node_not_before);
		w->look = w->node_ran;
		if (w->node_ran)
			kvs_node_turn(&w->node, 0);
	} else if (i == SIM_ACTS) {
		kvs_timerq_run(&w->acts, sim_time(w));
	} else if (i == SIM_NET) {
		w->actor = "network";
		kvs_fabric_run(w->net);
	} else if (i < SIM_PORT0) {
		struct sim_rank *k = &w->rank[i - SIM_RANK0];

		w->actor = "rank";
		if (!paused(w, &k->not_before))
			sim_rank_turn(k);
	} else if (i < SIM_DEVICE0) {
		w->actor = "front";
		sim_port_deliver(&w->engine[i - SIM_PORT0]);
	} else {
		struct sim_engine *g = &w->engine[i - SIM_DEVICE0];

		w->actor = "device";
		kvs_soft_run(g->dev);
		sim_engine_wake(g, w->plan.gap);
	}
}

/* Processes that the network's plan has killed. */
static void bury(struct sim *w)
{
	if (w->daemon_crashed && w->daemon_up) {
		w->actor = "daemon";
		sim_note(w, 0, "", "the daemon is killed");
		sim_daemon_end(w);
	}
	for (unsigned int i = 0; i < w->plan.n_ranks; i++) {
		if (!w->rank[i].s || !w->rank[i].crashed)
			continue;
		w->actor = "rank";
		sim_rank_crash(&w->rank[i]);
	}
}

/* False: nothing can happen any more. */
static bool step(struct sim *w)
{
	uint64_t now = sim_time(w), at = KVS_TIME_NEVER;
	unsigned int ready[SIM_ACTORS], n = 0;

	for (unsigned int i = 0; i < SIM_ACTORS; i++) {
		uint64_t t = actor_next(w, i);

		if (t <= now)
			ready[n++] = i;
		at = earlier(at, t);
	}
	if (n) {
		actor_run(w, ready[n > 1 ? kvs_rng_below(&w->rng, n) : 0]);
		return true;
	}
	if (at == KVS_TIME_NEVER)
		return false;
	kvs_vclock_advance(&w->clock, at - now);
	return true;
}

static void release_stalled(struct kvs_timer *t)
{
	struct sim *w = kvs_container_of(t, struct sim, release);

	w->actor = "network";
	if (kvs_fabric_release(w->net))
		sim_note(w, 0, "", "what is stalled goes on");
	for (unsigned int i = 0; i < w->n_engines; i++)
		if (w->engine[i].dev)
			(void)kvs_soft_release(w->engine[i].dev);
	sim_act(w, t, sim_between(w, 1, 60 * SIM_MS));
}

/* No attempt is or will be under way at an engine. */
static bool attempts_over(struct sim *w)
{
	bool hope = false;

	for (unsigned int i = 0; i < w->n_engines; i++)
		hope |= !w->engine[i].dead && !w->engine[i].leaving &&
			!w->engine[i].refused;
	if (!w->daemon_up)
		hope = false;
	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		struct sim_attempt *a = &w->attempt[i];

		if (a->state == SIM_PLANNED && !hope)
			sim_attempt_drop(a);
		if (a->state < SIM_ENDED || a->away.phase)
			return false;
	}
	return true;
}

static void heal(struct sim *w)
{
	static const struct kvs_loop_plan calm;

	w->actor = "network";
	sim_note(w, 0, "", "no faults from here on");
	w->healing = true;
	w->healed_at = sim_time(w);
	(void)kvs_fabric_set_plan(w->net, &calm);
	for (unsigned int i = 0; i < w->plan.n_ranks; i++)
		sim_rank_heal(&w->rank[i]);
	for (unsigned int i = 0; i < w->n_engines; i++)
		sim_engine_heal(&w->engine[i]);
	sim_act(w, &w->release, 0);
}

static bool settled(struct sim *w)
{
	if (w->daemon_up &&
	    (w->node.worker->rooms.n || w->node.worker->retracts.map.n ||
	     kvs_cache_busy(w->node.worker) || w->daemon_draining))
		return false;
	for (unsigned int i = 0; i < w->plan.n_ranks; i++)
		if (!sim_rank_idle(&w->rank[i]))
			return false;
	for (unsigned int i = 0; i < w->n_engines; i++)
		if (!sim_engine_idle(&w->engine[i]))
			return false;
	return true;
}

static bool go_on(struct sim *w)
{
	uint64_t bound =
		w->set.hold_timeout + SIM_HEAL_MAX + w->set.shutdown_timeout;

	if (!w->healing) {
		if (attempts_over(w) ||
		    sim_time(w) > KVS_NSEC_PER_SEC + SIM_FAULTS_MAX)
			heal(w);
		return true;
	}
	if (settled(w))
		return false;
	if (!w->mercy && sim_time(w) - w->healed_at > SIM_MERCY) {
		w->mercy = true;
		for (unsigned int i = 0; i < w->n_engines; i++)
			sim_engine_stuck(&w->engine[i]);
	}
	if (sim_time(w) - w->healed_at > bound) {
		sim_fail(w, "not settled %llu ms after the last fault",
			 (unsigned long long)(bound / SIM_MS));
		return false;
	}
	return true;
}

static void sim_count_net(struct sim *w)
{
	struct kvs_loop_faults f;

	kvs_fabric_faults(w->net, &f);
	for (unsigned int i = 0; i < KVS_LOOP_FAULT_MAX; i++)
		w->cover->net[i] += f.n[i];
	w->cover->refused += f.refused;
	w->cover->refused_late += f.refused_late;
}

int sim_run(struct sim *w)
{
	kvs_rng_init(&w->rng, w->seed);
	kvs_rng_init(&w->ids, ~w->seed);
	sim_now = w;
	sim_plan(w);
	if (sim_world_open(w))
		sim_fail(w, "the world cannot be made");
	kvs_timer_init(&w->release, release_stalled);
	sim_act(w, &w->release, 60 * SIM_MS);
	while (!w->failure[0] && go_on(w)) {
		if (!step(w))
			sim_fail(w, "nothing can happen any more");
		if (++w->steps > SIM_STEPS_MAX)
			sim_fail(w, "no end in sight");
		bury(w);
		/* of the rest, nobody can touch what is looked at */
		if (w->look)
			sim_check_step(w);
	}
	w->cover->steps += w->steps;
	if (w->failure[0])
		return -1;
	sim_count_net(w);
	sim_check_end(w);
	if (!w->failure[0])
		sim_world_close(w);
	return w->failure[0] ? -1 : 0;
}
