/* SPDX-License-Identifier: Apache-2.0 */
/* See ttft_world.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/log.h"
#include "lib/random.h"
#include "pipeline/layout.h"
#include "tools/ttft/ttft_world.h"

#define CHUNK_MAX (32ULL << 20) /* bytes; two of them in flight */
#define COPY_PIECE (64ULL << 20) /* bytes */
#define DEVICE_POOLS 8 /* TTFT_DEVICE's pool, in devices: never in the way */
/* Longer than what is asked for: who is still waiting then never gets it. */
#define OVERTIME (4 * 3600 * KVS_NSEC_PER_SEC)

static int draw_ids(void *arg, void *buf, size_t len)
{
	struct ttft_world *w = arg;
	uint64_t v;

	for (size_t i = 0; i < len; i += sizeof(v)) {
		v = kvs_rng_next(&w->ids);
		memcpy((char *)buf + i, &v,
		       len - i < sizeof(v) ? len - i : sizeof(v));
	}
	return 0;
}

static int fail(struct ttft_world *w, int err, const char *what)
{
	if (!w->r->why[0])
		snprintf(w->r->why, sizeof(w->r->why), "%s: %s", what,
			 strerror(-err));
	return err;
}

/* ---- daemons ------------------------------------------------------------- */

static int daemon_begin(struct ttft_world *w, enum ttft_rx rx)
{
	struct ttft_daemon *m = &w->daemon[rx];
	struct kvs_front_opts o = {
		.settings = &m->set,
		.clock = &w->clock.clk,
		.nodes = &m->node,
		.secret = kvs_rng_next(&w->ids),
	};
	struct kvs_addr addr;
	int r;

	r = ttft_settings(w->o, &m->set, w->r->why, sizeof(w->r->why));
	m->region.size = rx == TTFT_HOST ? w->r->host_pool
					 : ttft_device_pool(w->o, DEVICE_POOLS);
	m->region.page_size = 4096;
	m->region.fd = -1;
	snprintf(m->name, sizeof(m->name), "daemon-%d", (int)rx);
	if (!r)
		r = kvs_front_init(&m->front, &o);
	if (!r)
		r = kvs_loop_create(w->net, m->name, &m->front_t);
	if (!r)
		r = kvs_loop_addr(m->name, &addr);
	if (r)
		return fail(w, r, "the daemon's front");
	kvs_front_bind(&m->front, m->front_t);
	r = kvs_transport_listen(m->front_t, &addr, kvs_session_accept,
				 &m->front, &m->front.listener);
	if (!r)
		r = kvs_loop_create(w->net,
				    rx == TTFT_HOST ? "node-0" : "node-1",
				    &m->node_t);
	if (r)
		return fail(w, r, "the daemon's endpoints");
	m->node.region = &m->region;
	m->node.up = &kvs_front_up;
	m->node.up_arg = &m->front;
	r = kvs_node_init(&m->node, &m->set, &w->clock.clk, m->node_t, o.secret,
			  w->r->why, sizeof(w->r->why));
	if (r)
		return fail(w, r, "the daemon's node");
	m->front.n_nodes = 1;
	m->up = true;
	return 0;
}

static int engine_begin(struct ttft_world *w, enum ttft_rx rx)
{
	struct ttft_daemon *m = &w->daemon[rx];
	struct kvs_engine_opts o = {
		.size = sizeof(o),
		.name = "decode",
		.layout = w->layout,
		.node = -1,
	};
	struct kvs_packet_attach *p;
	size_t len;
	int r;

	r = kvs_eng_new(&o, &m->e, w->r->why, sizeof(w->r->why));
	if (r)
		return r;
	m->e->port = &ttft_eng_port;
	m->e->port_arg = m;
	r = kvs_front_engine_new(&m->front, &ttft_front_port, 1000, &m->fe);
	if (r)
		return fail(w, r, "the engine");
	m->fe->port_arg = m;
	p = kvs_eng_offer(m->e, &o, &len);
	r = p ? m->e->port->send(m->e, p, len) : -ENOMEM;
	free(p);
	return r ? fail(w, r, "the engine's attach") : 0;
}

static int device_open(struct ttft_world *w, enum ttft_rx rx)
{
	struct ttft_decode *d = &w->d;
	struct kvs_soft_virtual_opts o = {
		.clock = &w->clock.clk,
		.seed = w->o->seed,
		.phantom = true,
	};
	uint64_t pages = w->o->s.device_tokens / w->layout->page_size;
	int r;

	/* what came directly is there already */
	if (rx == TTFT_HOST)
		o.chances.bytes_per_sec = w->o->s.h2d_rate;
	/* how far it is, is seen between pieces */
	if (w->o->layerwise)
		o.chances.piece = COPY_PIECE;
	d->buffers[rx] = calloc(w->layout->n_buffers, sizeof(void *));
	if (!d->buffers[rx])
		return -ENOMEM;
	r = kvs_soft_open_virtual(&o, &d->dev[rx]);
	for (uint32_t b = 0; b < w->layout->n_buffers && !r; b++)
		r = kvs_device_alloc(d->dev[rx],
				     pages * w->layout->buffers[b].item_len,
				     &d->buffers[rx][b]);
	return r ? fail(w, r, "the device") : 0;
}

/* ---- prefill instances --------------------------------------------------- */

static int way_begin(struct ttft_world *w, struct ttft_way *v)
{
	struct ttft_prefill *f = v->f;
	struct kvs_transport **t = &w->prefill_t[f->nr * TTFT_RX + v->rx];
	struct kvs_sender_place p = { 0 };
	struct kvs_sender_opts o;
	char name[32];
	int r;

	if (!ttft_uses(w->r->mode, v->rx))
		return 0;
	snprintf(name, sizeof(name), "p%u-%d-%u", f->nr, (int)v->rx,
		 w->lives[f->nr]);
	r = kvs_loop_create(w->net, name, t);
	if (!r)
		r = kvs_loop_addr(w->daemon[v->rx].name, &p.addr);
	if (r)
		return fail(w, r, "a sender's endpoint");
	ttft_prefill_sender(v, &o, &p);
	o.daemon = w->daemon[v->rx].name;
	o.buffers = w->source;
	o.window = 2 * CHUNK_MAX;
	o.chunk_max = CHUNK_MAX;
	p.t = *t;
	r = kvs_sender_init(&o, &p, &v->s, w->r->why, sizeof(w->r->why));
	if (r) {
		kvs_transport_destroy(*t);
		*t = NULL;
		return r;
	}
	kvs_sender_begin(v->s);
	v->dirty = true;
	return 0;
}

static int prefill_begin(struct ttft_world *w, uint32_t nr)
{
	struct ttft_prefill *f = &w->prefill[nr];
	int r;

	f->o = w->o;
	f->p = w->p;
	f->r = w->r;
	f->nr = nr;
	f->start = w->clock.t;
	f->clock = &w->clock.clk;
	f->timers = &w->timers;
	f->layout = w->layout;
	r = ttft_prefill_init(f);
	for (int x = 0; x < TTFT_RX && !r; x++)
		r = way_begin(w, &f->way[x]);
	return r;
}

static void way_kill(struct ttft_world *w, struct ttft_way *v)
{
	struct kvs_transport **t = &w->prefill_t[v->f->nr * TTFT_RX + v->rx];
	struct kvs_sender *s = v->s;

	if (!s)
		return;
	v->s = NULL;
	v->up = false;
	kvs_fabric_kill(*t);
	kvs_sender_fini(s);
	*t = NULL;
}

static void crash_down(void *arg, uint32_t i)
{
	struct ttft_world *w = arg;
	struct ttft_prefill *f = &w->prefill[i];

	/* callbacks of what goes down find nothing */
	ttft_prefill_crash(f);
	for (int x = 0; x < TTFT_RX; x++)
		way_kill(w, &f->way[x]);
}

static int crash_up(void *arg, uint32_t i)
{
	struct ttft_world *w = arg;
	int r = 0;

	w->lives[i]++;
	for (int x = 0; x < TTFT_RX && !r; x++)
		r = way_begin(w, &w->prefill[i].way[x]);
	return r;
}

/* ---- who goes next ------------------------------------------------------- */

static bool has_mail(struct kvs_mailbox *mb)
{
	return atomic_load_explicit(&mb->pending, memory_order_relaxed);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t front_next(struct ttft_daemon *m)
{
	if (!m->up)
		return KVS_TIME_NEVER;
	if (has_mail(&m->front.mailbox) || m->front.reap || ttft_port_due(m))
		return 0;
	return earlier(kvs_loop_next(m->front_t), kvs_front_next(&m->front));
}

static uint64_t node_next(struct ttft_daemon *m)
{
	const struct kvs_worker *k = m->node.worker;

	if (!m->up)
		return KVS_TIME_NEVER;
	if (has_mail(&m->node.mailbox) || m->node.deferred || k->released ||
	    !kvs_list_empty(&k->dead))
		return 0;
	return earlier(kvs_loop_next(m->node_t), kvs_worker_next(k));
}

static uint64_t way_next(struct ttft_world *w, const struct ttft_way *v)
{
	if (!v->s)
		return KVS_TIME_NEVER;
	if (v->dirty)
		return 0;
	return earlier(kvs_loop_next(w->prefill_t[v->f->nr * TTFT_RX + v->rx]),
		       kvs_sender_next(v->s));
}

static void way_turn(struct ttft_world *w, struct ttft_way *v)
{
	bool more;

	/* what a poll completes is taken up by the next turn */
	do {
		more = way_next(w, v) <= w->clock.t;
		v->dirty = false;
		(void)kvs_sender_turn(v->s, 0);
	} while (more);
	if (v->up || !v->s->agreed)
		return;
	/* what came while it was down */
	v->up = true;
	ttft_prefill_turn(v->f);
}

static void daemon_turn(struct ttft_daemon *m)
{
	struct ttft_world *w = m->w;
	struct kvs_pool_account a;

	while (ttft_port_due(m))
		ttft_port_deliver(m);
	if (front_next(m) <= w->clock.t) {
		kvs_front_turn(&m->front, 0);
		w->engine_turn = true;
	}
	if (node_next(m) > w->clock.t)
		return;
	kvs_node_turn(&m->node, 0);
	if (m != &w->daemon[TTFT_HOST] || !w->d.room)
		return;
	kvs_pool_account(m->node.pool, &a);
	ttft_decode_host(&w->d,
			 a.bytes[KVS_EXTENT_HELD] +
				 a.bytes[KVS_EXTENT_QUARANTINED],
			 a.configured - a.bytes[KVS_EXTENT_FREE]);
}

/* One round of all at one moment. Return: when somebody can go on. */
static uint64_t round_of_all(struct ttft_world *w)
{
	uint64_t now = w->clock.t, next;

	if (kvs_timerq_next(&w->timers) <= now)
		kvs_timerq_run(&w->timers, now);
	if (kvs_fabric_next_wire(w->net) <= now)
		kvs_fabric_run(w->net);
	for (uint32_t i = 0; i < w->o->s.prefills; i++)
		for (int x = 0; x < TTFT_RX; x++)
			if (way_next(w, &w->prefill[i].way[x]) <= now)
				way_turn(w, &w->prefill[i].way[x]);
	for (int x = 0; x < TTFT_RX; x++)
		if (front_next(&w->daemon[x]) <= now ||
		    node_next(&w->daemon[x]) <= now)
			daemon_turn(&w->daemon[x]);
	for (int x = 0; x < TTFT_RX; x++)
		if (w->d.dev[x] && kvs_soft_next(w->d.dev[x]) <= now) {
			kvs_soft_run(w->d.dev[x]);
			w->engine_turn = true;
		}
	if (w->engine_turn && w->d.room) {
		w->engine_turn = false;
		ttft_decode_turn(&w->d);
	}

	next = earlier(kvs_timerq_next(&w->timers),
		       kvs_fabric_next_wire(w->net));
	for (uint32_t i = 0; i < w->o->s.prefills && next > now; i++)
		for (int x = 0; x < TTFT_RX; x++)
			next = earlier(next,
				       way_next(w, &w->prefill[i].way[x]));
	for (int x = 0; x < TTFT_RX && next > now; x++) {
		next = earlier(next, front_next(&w->daemon[x]));
		next = earlier(next, node_next(&w->daemon[x]));
		if (w->d.dev[x])
			next = earlier(next, kvs_soft_next(w->d.dev[x]));
	}
	return next;
}

static bool stopped(struct ttft_world *w)
{
	return atomic_load_explicit(&w->r->stop, memory_order_relaxed);
}

/* Until @over(), the time is up or somebody wants it to end. */
static int go(struct ttft_world *w, bool (*over)(struct ttft_world *w),
	      uint64_t until)
{
	uint64_t next;

	while (!over(w) && !w->crashes.err) {
		next = round_of_all(w);
		if (stopped(w))
			return 0;
		if (next <= w->clock.t || over(w))
			continue;
		if (next == KVS_TIME_NEVER)
			return fail(w, -EDEADLK, "nothing happens any more");
		if (next > until)
			return -ETIMEDOUT;
		kvs_vclock_advance(&w->clock, next - w->clock.t);
	}
	return w->crashes.err;
}

static bool attached(struct ttft_world *w)
{
	for (int x = 0; x < TTFT_RX; x++)
		if (w->daemon[x].up && kvs_list_empty(&w->daemon[x].to_engine))
			return false;
	return true;
}

static bool connected(struct ttft_world *w)
{
	for (uint32_t i = 0; i < w->o->s.prefills; i++)
		for (int x = 0; x < TTFT_RX; x++) {
			const struct ttft_way *v = &w->prefill[i].way[x];

			if (v->s && !v->s->agreed)
				return false;
		}
	return true;
}

static bool all_over(struct ttft_world *w)
{
	return ttft_decode_over(&w->d);
}

/* Holds that are left end too, and are counted. */
static bool all_free(struct ttft_world *w)
{
	for (int x = 0; x < TTFT_RX; x++)
		if (w->daemon[x].up && w->daemon[x].node.worker->rooms.n)
			return false;
	return !w->d.held;
}

/* ---- a run --------------------------------------------------------------- */

static void routed(struct ttft_decode *d, size_t i)
{
	struct ttft_world *w = d->arg;
	struct ttft_prefill *f = &w->prefill[w->p->v[i].prefill];

	ttft_prefill_turn(f);
}

/* Bytes of an instance's buffer. */
static uint64_t source_size(const struct ttft_world *w, uint32_t b)
{
	return (uint64_t)ttft_prefill_pages(w->p, w->layout) *
	       w->layout->buffers[b].item_len;
}

/* Nobody looks at what is sent, but for the wire: it keeps the bytes of a write
 * whose sender dies meanwhile. So they can be read, and are zero, and take no
 * memory. */
static int source_open(struct ttft_world *w)
{
	for (uint32_t b = 0; b < w->layout->n_buffers; b++) {
		void *m = mmap(NULL, source_size(w, b), PROT_READ,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			       0);

		if (m == MAP_FAILED)
			return -errno;
		w->source[b] = m;
	}
	return 0;
}

static int world_open(struct ttft_world *w)
{
	struct kvs_fabric_opts o = {
		.clock = &w->clock.clk,
		.one_sided = true,
		.plan = {
			.latency_min = w->o->s.link_latency,
			.latency_max = w->o->s.link_latency,
			.bytes_per_sec = w->o->s.link_rate,
		},
	};
	uint32_t n = w->o->s.prefills;
	int r;

	kvs_vclock_init(&w->clock, KVS_NSEC_PER_SEC);
	kvs_timerq_init(&w->timers);
	kvs_rng_init(&w->ids, w->o->seed);
	kvs_random_use(draw_ids, w);
	o.seed = kvs_rng_next(&w->ids);
	r = ttft_layout(w->o, &w->layout, w->r->why, sizeof(w->r->why));
	if (r)
		return r;
	w->prefill = calloc(n, sizeof(*w->prefill));
	w->prefill_t = calloc((size_t)n * TTFT_RX, sizeof(*w->prefill_t));
	w->lives = calloc(n, sizeof(*w->lives));
	w->source = calloc(w->layout->n_buffers, sizeof(*w->source));
	if (!w->prefill || !w->prefill_t || !w->lives || !w->source)
		return fail(w, -ENOMEM, "the world");
	r = source_open(w);
	if (r)
		return fail(w, r, "addresses for the longest prompt");
	r = kvs_fabric_create(&o, &w->net);
	if (r)
		return fail(w, r, "the fabric");
	for (int x = 0; x < TTFT_RX && !r; x++) {
		if (!ttft_uses(w->r->mode, (enum ttft_rx)x))
			continue;
		r = daemon_begin(w, (enum ttft_rx)x);
		if (!r)
			r = engine_begin(w, (enum ttft_rx)x);
		if (!r)
			r = device_open(w, (enum ttft_rx)x);
	}
	return r;
}

static int engine_up(struct ttft_world *w)
{
	struct ttft_decode *d = &w->d;
	bool cut;
	int r;

	d->o = w->o;
	d->p = w->p;
	d->r = w->r;
	d->clock = &w->clock.clk;
	d->timers = &w->timers;
	d->layout = w->layout;
	d->routed = routed;
	d->arg = w;
	for (int x = 0; x < TTFT_RX; x++) {
		struct kvs_engine *e = w->daemon[x].e;
		ssize_t len = e ? e->port->receive(e, &cut) : 0;

		if (!e)
			continue;
		r = kvs_eng_answer(e, (size_t)len, w->r->why,
				   sizeof(w->r->why));
		if (r)
			return r;
		d->e[x] = e;
	}
	return ttft_decode_init(d);
}

static void count(struct ttft_world *w)
{
	struct kvs_worker_snapshot *s = calloc(1, sizeof(*s));
	struct ttft_totals *t = &w->r->t;
	struct kvs_loop_faults f;

	kvs_fabric_faults(w->net, &f);
	t->wire_bytes = f.landed;
	if (s && w->daemon[TTFT_HOST].up) {
		kvs_worker_snapshot(w->daemon[TTFT_HOST].node.worker, s);
		memcpy(t->drains, s->stats.drains.total, sizeof(t->drains));
		t->high_water = s->pools[0].account.high_water;
		t->late_bytes = s->stats.late_bytes;
	}
	free(s);
	ttft_decode_end(&w->d);
}

static void world_close(struct ttft_world *w)
{
	for (uint32_t i = 0; w->prefill && i < w->o->s.prefills; i++) {
		struct ttft_prefill *f = &w->prefill[i];

		/* callbacks of what goes down find nothing, but they look */
		ttft_prefill_crash(f);
		for (int x = 0; x < TTFT_RX; x++)
			way_kill(w, &f->way[x]);
		ttft_prefill_fini(f);
	}
	for (int x = 0; x < TTFT_RX; x++) {
		struct ttft_daemon *m = &w->daemon[x];

		if (!m->up)
			continue;
		kvs_front_close(&m->front);
		kvs_node_stop(&m->node);
		kvs_front_stop(&m->front);
		kvs_front_fini(&m->front);
	}
	ttft_decode_fini(&w->d);
	for (int x = 0; x < TTFT_RX; x++) {
		if (w->d.dev[x]) {
			kvs_soft_kill(w->d.dev[x]);
			if (w->daemon[x].e)
				kvs_eng_free(w->daemon[x].e);
			w->daemon[x].e = NULL;
			kvs_device_close(w->d.dev[x]);
		}
		if (w->daemon[x].e)
			kvs_eng_free(w->daemon[x].e);
		ttft_port_free(&w->daemon[x]);
		free(w->d.buffers[x]);
	}
	ttft_crashes_end(&w->crashes);
	kvs_fabric_destroy(w->net);
	kvs_timerq_fini(&w->timers);
	kvs_random_use(NULL, NULL);
	free(w->prefill);
	free(w->prefill_t);
	free(w->lives);
	for (uint32_t b = 0; w->source && b < w->layout->n_buffers; b++)
		(void)munmap(w->source[b], source_size(w, b));
	free(w->source);
	free(w->layout);
}

static int run(struct ttft_world *w)
{
	uint64_t until;
	int r;

	r = world_open(w);
	if (!r)
		r = go(w, attached, 10 * KVS_NSEC_PER_SEC);
	if (!r && stopped(w))
		return 0;
	if (!r)
		r = engine_up(w);
	for (uint32_t i = 0; i < w->o->s.prefills && !r; i++)
		r = prefill_begin(w, i);
	if (!r)
		r = go(w, connected, 20 * KVS_NSEC_PER_SEC);
	if (r)
		return fail(w, r, "the world does not come up");
	if (stopped(w))
		return 0;
	w->up = true;
	/* from here on time counts */
	w->d.start = w->clock.t;
	for (uint32_t i = 0; i < w->o->s.prefills; i++)
		w->prefill[i].start = w->clock.t;
	w->crashes = (struct ttft_crashes){
		.o = w->o,
		.p = w->p,
		.clock = &w->clock.clk,
		.timers = &w->timers,
		.start = w->d.start,
		.down = crash_down,
		.up = crash_up,
		.arg = w,
	};
	r = ttft_crashes_begin(&w->crashes);
	if (r)
		return fail(w, r, "crashes");
	ttft_decode_begin(&w->d);
	until = w->clock.t + 4 * w->p->span + OVERTIME;
	r = go(w, all_over, until);
	if (!r)
		r = go(w, all_free, until);
	count(w);
	/* who waits for ever shows as not finished */
	return r == -ETIMEDOUT ? 0 : r;
}

int ttft_virtual(const struct ttft_opts *o, const struct ttft_plan *p,
		 struct ttft_run *r)
{
	struct ttft_world *w = calloc(1, sizeof(*w));
	int ret;

	if (!w)
		return -ENOMEM;
	w->o = o;
	w->p = p;
	w->r = r;
	for (int x = 0; x < TTFT_RX; x++) {
		w->daemon[x].w = w;
		kvs_list_init(&w->daemon[x].to_daemon);
		kvs_list_init(&w->daemon[x].to_engine);
	}
	ret = run(w);
	/* what is half made, or half done, goes with the process of the run */
	if (ret || !w->up || stopped(w))
		return ret;
	world_close(w);
	free(w);
	return 0;
}
