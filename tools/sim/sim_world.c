/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon and what lies around it: made for a schedule, and taken down. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/canary.h"
#include "pipeline/layout.h"
#include "tools/sim/sim.h"

static _Alignas(4096) unsigned char pool_memory[SIM_POOL_MAX];
static _Alignas(4096) unsigned char offload_memory[SIM_POOL_MAX];

static int draw_ids(void *arg, void *buf, size_t len)
{
	struct sim *w = arg;
	uint64_t v;

	for (size_t i = 0; i < len; i += sizeof(v)) {
		v = kvs_rng_next(&w->ids);
		memcpy((char *)buf + i, &v,
		       len - i < sizeof(v) ? len - i : sizeof(v));
	}
	return 0;
}

/* Items of a written chunk are this long; 0: it is none. */
static uint32_t item_len(const struct sim *w, const struct kvs_frame *f)
{
	static struct kvs_wire_scratch scratch;
	const char *reason;
	struct kvs_msg m;
	int b;

	if (kvs_wire_decode(f, kvs_get32(f->len), &scratch, &m, &reason) ||
	    m.type != KVS_WIRE_CHUNK_DONE)
		return 0;
	if (m.chunk.kind == KVS_KIND_AUX)
		return m.chunk.len;
	b = kvs_layout_find(&w->layout, m.chunk.kind, m.chunk.layer);
	return b < 0 ? 0 : w->lb[b].item_len;
}

/*
 * Where a write may stop short. What is looked at without a checksum are the
 * last bytes of each item, and they come together or not at all: a network
 * loses packets, and not half a dozen bytes.
 */
static int net_fault(void *arg, const struct kvs_loop_event_info *e)
{
	struct sim *w = arg;
	uint64_t at, tail;
	uint32_t item;

	/* our own reads end as they say */
	if (e->kind == KVS_LOOP_READ && !w->healing)
		return !w->plan.net.stall || !sim_chance(w, 0.1)
			       ? KVS_LOOP_NO_FAULT
		       : sim_chance(w, 0.5) ? KVS_LOOP_STALL
					    : KVS_LOOP_DELAY;
	if (e->kind != KVS_LOOP_WRITE || w->healing ||
	    !sim_chance(w, w->plan.short_write))
		return -1;
	at = kvs_rng_below(&w->rng, e->len + 1);
	item = item_len(w, e->frame);
	if (item && !strcmp(w->set.checksum_kind, "none")) {
		tail = item < KVS_CANARY_LEN ? item : KVS_CANARY_LEN;
		if (at % item > item - tail)
			at -= at % item - (item - tail);
	}
	*e->at = at;
	return KVS_LOOP_SHORT;
}

static void daemon_act(struct kvs_timer *t)
{
	struct sim *w = kvs_container_of(t, struct sim, daemon_act);

	w->actor = "daemon";
	if (!w->daemon_up)
		return;
	if (!w->daemon_draining) {
		sim_note(w, 0, "", "the daemon goes down");
		sim_fault(w, SIM_FAULT_DAEMON_DRAIN);
		w->daemon_draining = true;
		w->front.draining = true;
		kvs_worker_shutdown(w->node.worker);
		w->look = true;
		sim_act(w, t, w->set.shutdown_timeout);
		return;
	}
	sim_note(w, 0, "", "the daemon ends");
	sim_daemon_end(w);
}

static int daemon_begin(struct sim *w)
{
	struct kvs_front_opts o = {
		.settings = &w->set,
		.clock = &w->clock.clk,
		.nodes = &w->node,
		.ended_max = 64,
		.secret = kvs_rng_next(&w->ids),
	};
	struct kvs_node *n = &w->node;
	struct kvs_addr addr;
	char err[256];
	int ret;

	w->region = (struct kvs_region){
		.base = pool_memory,
		.size = w->plan.pool,
		.page_size = 4096,
		.fd = -1,
	};
	ret = kvs_front_init(&w->front, &o);
	if (!ret)
		ret = kvs_loop_create(w->net, "front", &w->front_t);
	if (!ret)
		ret = kvs_loop_addr("front", &addr);
	if (ret)
		return ret;
	kvs_front_bind(&w->front, w->front_t);
	ret = kvs_transport_listen(w->front_t, &addr, kvs_session_accept,
				   &w->front, &w->front.listener);
	if (!ret)
		ret = kvs_loop_create(w->net, "node", &w->node_t);
	if (ret)
		return ret;
	memset(n, 0, sizeof(*n));
	n->region = &w->region;
	w->offload = (struct kvs_region){
		.base = offload_memory,
		.size = w->plan.offload,
		.page_size = 4096,
		.fd = -1,
	};
	if (w->plan.offload) {
		n->offload = &w->offload;
		n->offload_index = 1;
	}
	n->up = &kvs_front_up;
	n->up_arg = &w->front;
	ret = kvs_node_init(n, &w->set, &w->clock.clk, w->node_t, o.secret, err,
			    sizeof(err));
	if (ret)
		return ret;
	w->front.n_nodes = 1;
	w->daemon_up = true;
	kvs_timer_init(&w->daemon_act, daemon_act);
	if (w->plan.daemon_ends)
		sim_act(w, &w->daemon_act, w->plan.daemon_ends_at);
	return 0;
}

int sim_world_open(struct sim *w)
{
	struct kvs_fabric_opts o = {
		.seed = kvs_rng_next(&w->rng),
		.clock = &w->clock.clk,
		.one_sided = w->plan.one_sided,
		.plan = w->plan.net,
		.fault = net_fault,
		.crashed = sim_crashed,
		.placed = sim_placed,
		.arg = w,
	};
	int ret;

	kvs_vclock_init(&w->clock, KVS_NSEC_PER_SEC);
	kvs_random_use(draw_ids, w);
	kvs_timerq_init(&w->acts);
	kvs_list_init(&w->pulls);
	ret = kvs_fabric_create(&o, &w->net);
	if (!ret)
		ret = daemon_begin(w);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < w->plan.n_engines && !ret; i++)
		ret = sim_engine_begin(w);
	for (unsigned int i = 0; i < w->plan.n_ranks; i++) {
		w->rank[i].w = w;
		w->rank[i].nr = i;
		sim_rank_init(&w->rank[i]);
	}
	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		sim_attempt_init(&w->attempt[i]);
		sim_away_init(&w->attempt[i]);
		for (unsigned int r = 0; r < w->plan.n_ranks; r++)
			sim_send_init(&w->attempt[i].send[r]);
	}
	if (w->plan.cache)
		sim_cache_begin(w);
	return ret;
}

void sim_daemon_end(struct sim *w)
{
	if (!w->daemon_up)
		return;
	w->daemon_up = false;
	kvs_front_close(&w->front);
	kvs_node_stop(&w->node);
	kvs_front_stop(&w->front);
	kvs_front_fini(&w->front);
	memset(w->shadow, 0, sizeof(w->shadow));
	memset(w->offload_shadow, 0, sizeof(w->offload_shadow));
	kvs_timer_cancel(&w->acts, &w->daemon_act);
}

void sim_world_close(struct sim *w)
{
	bool daemon_first = sim_chance(w, 0.5);

	w->actor = "end";
	if (daemon_first)
		sim_daemon_end(w);
	for (unsigned int i = 0; i < w->plan.n_ranks; i++)
		sim_rank_kill(&w->rank[i]);
	sim_daemon_end(w);
	for (unsigned int i = 0; i < w->n_engines; i++)
		sim_engine_free(&w->engine[i]);
	sim_pull_free(w);
	kvs_fabric_destroy(w->net);
	kvs_timerq_fini(&w->acts);
	kvs_random_use(NULL, NULL);
}
