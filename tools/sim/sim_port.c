/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between an engine and the daemon, in the place of their socket,
 * memfds and pidfd: two queues, words both can see, and two ends. */
#include <errno.h>

#include "tools/packets.h"
#include "tools/sim/sim.h"

static int port_queue(struct sim_engine *g, struct kvs_list *to, const void *p,
		      size_t len, uint64_t due)
{
	if (sim_chance(g->w, g->w->healing ? 0 : g->w->plan.eagain)) {
		sim_fault(g->w, SIM_FAULT_SOCKET_FULL);
		return -EAGAIN;
	}
	return kvs_packets_put(to, p, len, due);
}

/* ---- the engine's end ---------------------------------------------------- */

static int eng_send(struct kvs_engine *e, const void *p, size_t len)
{
	struct sim_engine *g = e->port_arg;

	if (g->daemon_closed || g->eof)
		return -EPIPE;
	return port_queue(g, &g->to_daemon, p, len,
			  sim_time(g->w) +
				  sim_between(g->w, 0, g->w->plan.gap));
}

static ssize_t eng_receive(struct kvs_engine *e, bool *ret_cut)
{
	struct sim_engine *g = e->port_arg;
	size_t len = kvs_packets_take(&g->to_engine, &e->buf);

	*ret_cut = false;
	if (!len)
		return g->daemon_closed ? 0 : -EAGAIN;
	return (ssize_t)len;
}

static void eng_shut(struct kvs_engine *e)
{
	struct sim_engine *g = e->port_arg;

	g->eof = true;
}

static int eng_map(struct kvs_engine *e, const struct kvs_packet_attached *p,
		   char *err, size_t errlen)
{
	struct sim_engine *g = e->port_arg;

	(void)err;
	(void)errlen;
	e->words = g->words;
	e->n_slots = p->n_slots;
	e->pools[0].base = g->w->region.base;
	e->pools[0].size = p->pools[0].size;
	e->n_pools = p->n_pools;
	if (p->n_pools > 1) {
		e->pools[1].base = g->w->offload.base;
		e->pools[1].size = p->pools[1].size;
		e->pools[1].writable = p->pools[1].writable;
	}
	return 0;
}

static void eng_free(struct kvs_engine *e)
{
	e->words = NULL;
}

const struct kvs_eng_port sim_eng_port = {
	.send = eng_send,
	.receive = eng_receive,
	.shut = eng_shut,
	.map = eng_map,
	.free = eng_free,
};

/* ---- the daemon's end ---------------------------------------------------- */

static int front_send(struct kvs_front_engine *e, const void *p, size_t len)
{
	struct sim_engine *g = e->port_arg;

	if (g->eof)
		return -EPIPE;
	sim_engine_wake(g, g->w->plan.gap);
	return port_queue(g, &g->to_engine, p, len, 0);
}

static void front_want(struct kvs_front_engine *e, bool on)
{
	struct sim_engine *g = e->port_arg;

	g->want = on;
	if (on)
		sim_act(g->w, &g->flush,
			sim_between(g->w, 0, 2 * g->w->plan.gap));
}

static void front_close(struct kvs_front_engine *e)
{
	struct sim_engine *g = e->port_arg;

	g->daemon_closed = true;
	g->want = false;
	sim_engine_wake(g, g->w->plan.gap);
}

static void front_free(struct kvs_front_engine *e)
{
	struct sim_engine *g = e->port_arg;

	g->fe = NULL;
}

static int front_identify(struct kvs_front_engine *e)
{
	(void)e;
	return 0;
}

static int front_pages(struct kvs_front_engine *e)
{
	struct sim_engine *g = e->port_arg;

	e->words = g->words;
	return e->n_slots <= SIM_SLOTS ? 0 : -ENOMEM;
}

static int front_answer(struct kvs_front_engine *e,
			const struct kvs_packet_attached *p,
			const struct kvs_region *const *pools)
{
	int ret;

	(void)pools;
	do {
		ret = front_send(e, p, sizeof(*p));
	} while (ret == -EAGAIN);
	return ret;
}

static int front_watch_exit(struct kvs_front_engine *e)
{
	struct sim_engine *g = e->port_arg;

	g->watched = true;
	return 0;
}

const struct kvs_front_port sim_front_port = {
	.send = front_send,
	.want = front_want,
	.close = front_close,
	.free = front_free,
	.identify = front_identify,
	.pages = front_pages,
	.answer = front_answer,
	.watch_exit = front_watch_exit,
};

/* ---- what the daemon is told --------------------------------------------- */

uint64_t sim_port_next(const struct sim_engine *g)
{
	if (!g->fe || !g->fe->open)
		return KVS_TIME_NEVER;
	if (!kvs_list_empty(&g->to_daemon))
		return kvs_packets_first(&g->to_daemon)->due;
	return g->eof ? sim_time(g->w) : KVS_TIME_NEVER;
}

bool sim_port_due(const struct sim_engine *g)
{
	return sim_port_next(g) <= sim_time(g->w);
}

void sim_port_deliver(struct sim_engine *g)
{
	if (kvs_list_empty(&g->to_daemon)) {
		sim_note(g->w, 0, "", "engine %u: end of file", g->nr);
		kvs_front_engine_lost(g->fe, "socket closed");
		return;
	}
	kvs_packets_deliver(&g->to_daemon, g->fe);
}

void sim_port_free(struct sim_engine *g)
{
	kvs_packets_free(&g->to_daemon);
	kvs_packets_free(&g->to_engine);
}
