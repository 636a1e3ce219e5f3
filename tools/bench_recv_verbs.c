/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our side of kvstage-bench recv over verbs: the core of kvstaged with its
 * threads, and, on the calling thread, a decode engine on libkvstage. The rank
 * is bench_recv_rank.c, in the sender's process.
 *
 *   admit + ROOM (to the rank) -> READY -> commit -> DONE -> admit the next
 *
 * WINDOW rooms are under way at a time, so the rank always has a granted room
 * in hand. The device that they are committed to copies nothing.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gpu/device_internal.h"
#include "kvstage/engine.h"
#include "lib/clock.h"
#include "pipeline/service.h"
#include "tools/bench_recv.h"

#define WINDOW 3u /* rooms under way; the pool holds four */
#define PEER "bench"
#define NAP_MS 20 /* between two looks, when no packet comes */
#define NAP_COPYING_MS 1 /* the same: words of a commit make no noise */

struct verbs_room {
	uint64_t id; /* 0: the place is free */
	kvs_handle h;
	bool committed;
	bool sent; /* the rank is through with it */
};

struct verbs {
	const struct kvs_recv_run *run;
	struct kvs_topology *topo;
	struct kvs_service *svc;
	struct kvs_snapshot *snap;
	struct kvs_engine *e;
	struct kvs_layer_buffer buffers[KVS_RECV_BUFFERS];
	struct kvs_layout layout;
	uint32_t *pages; /* of a room, on the device: in order */
	uint32_t n_pages;
	char dir[64];
	struct verbs_room rooms[WINDOW];
	uint64_t admitted;
	uint64_t done;
	bool stopping; /* admit no more */
	bool stopped; /* the rank is */
	struct kvs_recv_order end; /* what STOPPED said */
	char *why;
	size_t len;
};

/* ---- a device without memory, whose copies end as they begin ---- */

static int none_register(struct kvs_device *d, void *addr, uint64_t len,
			 unsigned int flags)
{
	(void)d;
	(void)addr;
	(void)len;
	(void)flags;
	return 0;
}

static int none_unregister(struct kvs_device *d, void *addr, uint64_t len)
{
	(void)d;
	(void)addr;
	(void)len;
	return 0;
}

static int none_copy(struct kvs_device *d, struct kvs_copy *c)
{
	(void)d;
	atomic_store(&c->status, 0);
	return 0;
}

static int none_query(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d;
	return atomic_load(&c->status);
}

static size_t none_progress(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d;
	return c->n_runs;
}

static void none_info(struct kvs_device *d, struct kvs_device_info *ret)
{
	(void)d;
	(void)ret;
}

static const struct kvs_device_ops none_ops = {
	.name = "none",
	.register_host = none_register,
	.unregister_host = none_unregister,
	.copy = none_copy,
	.query = none_query,
	.progress = none_progress,
	.info = none_info,
};

static struct kvs_device none = {
	.magic = KVS_DEVICE_MAGIC,
	.ops = &none_ops,
};

/* ---- which device ---- */

int kvs_recv_device(const char *name, struct kvs_verbs_info *ret, char *why,
		    size_t len)
{
	struct kvs_network_opts o = {
		.data = "verbs",
		.device = name,
		.node = -1,
	};
	struct kvs_verbs_info *v = calloc(KVS_VERBS_DEVS_MAX, sizeof(*v));
	char note[KVS_NETWORK_NOTE];
	struct kvs_transport *t;
	unsigned int n, i;
	int r;

	if (!v)
		return -ENOMEM;
	r = kvs_network_create(&o, &t, note, why, len);
	if (r) {
		free(v);
		return r == -ENODEV ? -EOPNOTSUPP : r;
	}
	n = kvs_verbs_devices(t, v, KVS_VERBS_DEVS_MAX);
	for (i = 0; i < n && !v[i].used; i++)
		;
	if (i < n) {
		*ret = v[i];
	} else {
		snprintf(why, len, "no verbs device can be used");
		r = -EOPNOTSUPP;
	}
	kvs_transport_destroy(t);
	free(v);
	return r;
}

/* ---- up and down ---- */

static int settings(const struct verbs *v, struct kvs_settings *s)
{
	const struct kvs_recv_run *run = v->run;
	char pool[32], tokens[32], sock[80], gid[16], mtu[16], port[16];
	char connections[16];
	const char *const set[][2] = {
		{ "listen.address", "127.0.0.1:0" },
		{ "listen.max_connections", "128" },
		{ "engine.socket", sock },
		{ "engine.slots", "64" },
		{ "pool.size", pool },
		/* what ib_write_bw gets */
		{ "pool.page_size", "4K" },
		{ "pool.strict", "no" },
		{ "extent.tokens", tokens },
		{ "admission.health_reserve", "0" },
		{ "hold.check", "warn" },
		{ "checksum.kind", kvs_digest_kind_name(run->digest) },
		{ "tcp.engine", run->engine },
		{ "transport.data", "verbs" },
		{ "rdma.device", run->device->device },
		{ "rdma.port", port },
		{ "rdma.gid_index", gid },
		{ "rdma.mtu", mtu },
		{ "rdma.connections", connections },
		{ "rdma.stripe_min", "1" },
	};
	int r = 0;

	snprintf(pool, sizeof(pool), "%llu", (unsigned long long)run->pool);
	snprintf(tokens, sizeof(tokens), "%u", run->chunks);
	snprintf(sock, sizeof(sock), "%s/engine", v->dir);
	snprintf(gid, sizeof(gid), "%d", run->device->gid_index);
	snprintf(mtu, sizeof(mtu), "%u", run->device->mtu);
	snprintf(port, sizeof(port), "%u", run->device->port);
	snprintf(connections, sizeof(connections), "%u", run->connections);
	kvs_settings_init(s);
	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]) && !r; i++)
		r = kvs_settings_set(s, set[i][0], set[i][1], v->why, v->len);
	return r ? r : kvs_settings_check(s, v->why, v->len);
}

/* One token a page: a page is what has the length that was asked for. */
static void make_layout(struct verbs *v)
{
	for (uint32_t i = 0; i < KVS_RECV_BUFFERS; i++) {
		v->buffers[i].kind = KVS_BUFFER_KV;
		v->buffers[i].layer = (uint16_t)i;
		v->buffers[i].item_len = v->run->item_len;
	}
	v->layout = (struct kvs_layout){
		.size = sizeof(v->layout),
		.page_size = 1,
		.dtype = KVS_DTYPE_BF16,
		.n_buffers = KVS_RECV_BUFFERS,
		.buffers = v->buffers,
	};
}

static int attach(struct verbs *v)
{
	char sock[80];
	const struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = sock,
		.name = PEER,
		.layout = &v->layout,
		.node = -1,
	};

	snprintf(sock, sizeof(sock), "%s/engine", v->dir);
	return kvs_engine_attach(&o, &v->e, v->why, v->len);
}

static int up(struct verbs *v)
{
	struct kvs_settings s;
	int r;

	make_layout(v);
	v->n_pages = v->run->extents * v->run->chunks;
	v->pages = calloc(v->n_pages, sizeof(*v->pages));
	v->snap = calloc(1, sizeof(*v->snap));
	if (!v->pages || !v->snap)
		return -ENOMEM;
	for (uint32_t i = 0; i < v->n_pages; i++)
		v->pages[i] = i;
	snprintf(v->dir, sizeof(v->dir), "/tmp/kvstage-bench.XXXXXX");
	if (!mkdtemp(v->dir)) {
		v->dir[0] = '\0';
		return -errno;
	}
	r = settings(v, &s);
	if (!r)
		r = kvs_topology_load(NULL, &v->topo);
	if (!r)
		r = kvs_service_create(&s, v->topo, NULL, NULL, &v->svc, v->why,
				       v->len);
	return r ? r : attach(v);
}

static void down(struct verbs *v)
{
	char sock[80];

	kvs_engine_detach(v->e);
	kvs_service_destroy(v->svc);
	kvs_topology_destroy(v->topo);
	if (v->dir[0]) {
		snprintf(sock, sizeof(sock), "%s/engine", v->dir);
		(void)unlink(sock);
		(void)rmdir(v->dir);
	}
	free(v->snap);
	free(v->pages);
}

/* ---- rooms ---- */

static int admit(struct verbs *v, struct verbs_room *m)
{
	const struct kvs_rank_slice slice = { 0, KVS_RECV_BUFFERS };
	const struct kvs_admit a = {
		.size = sizeof(a),
		.room = v->admitted + 1,
		.peer = PEER,
		.tokens = v->n_pages,
		.n_ranks = 1,
		.ranks = &slice,
		.node = -1,
	};
	const struct kvs_recv_order o = {
		.op = KVS_RECV_ROOM,
		.room = a.room,
	};
	int r = kvs_engine_admit(v->e, &a, &m->h);

	if (r)
		return r;
	m->id = a.room;
	m->committed = false;
	m->sent = false;
	v->admitted++;
	return kvs_recv_order(v->run->orders, &o);
}

static int commit(struct verbs *v, struct verbs_room *m)
{
	void *const anywhere[KVS_RECV_BUFFERS] = { &none, &none };
	const struct kvs_commit c = {
		.size = sizeof(c),
		.device = &none,
		.buffers = anywhere,
		.pages = v->pages,
		.n_pages = v->n_pages,
	};

	m->committed = true;
	return kvs_engine_commit(v->e, &m->h, &c);
}

static int failed(struct verbs *v, const struct verbs_room *m, int err)
{
	struct kvs_failure f = { 0 };

	(void)kvs_engine_failure(v->e, &m->h, &f);
	snprintf(v->why, v->len, "room %llu: %s: %s", (unsigned long long)m->id,
		 strerror(err), f.text);
	return err ? -err : -EPROTO;
}

/* What its status asks for. @copying: it is being committed. */
static int room_step(struct verbs *v, struct verbs_room *m, bool *copying)
{
	enum kvs_status st;
	int err = 0, r;

	if (!m->id)
		return 0;
	st = kvs_engine_poll(v->e, &m->h, &err);
	if (st == KVS_STATUS_FAILED)
		return failed(v, m, err);
	if (st == KVS_STATUS_READY && !m->committed)
		return commit(v, m);
	*copying |= m->committed && st != KVS_STATUS_DONE;
	if (st != KVS_STATUS_DONE || !m->sent)
		return 0;
	r = kvs_engine_release(v->e, &m->h);
	if (r)
		return r == -EBUSY ? 0 : r;
	m->id = 0;
	v->done++;
	return v->stopping ? 0 : admit(v, m);
}

static int on_order(struct verbs *v)
{
	struct kvs_recv_order o;
	int r = kvs_recv_await(v->run->orders, 0, &o);

	if (!r && o.op == KVS_RECV_DONE)
		r = -o.err;
	if (r) {
		snprintf(v->why, v->len, "rank: %s", strerror(-r));
		return r;
	}
	if (o.op == KVS_RECV_STOPPED) {
		v->stopped = true;
		v->end = o;
	}
	for (uint32_t i = 0; i < WINDOW; i++)
		v->rooms[i].sent |= o.op == KVS_RECV_DONE &&
				    v->rooms[i].id == o.room;
	return 0;
}

/* Until @until, ns. 0, -ETIMEDOUT, or what went wrong. */
static int conduct(struct verbs *v, uint64_t until)
{
	struct pollfd p[2] = {
		{ .fd = kvs_engine_fd(v->e), .events = POLLIN },
		{ .fd = v->run->orders, .events = POLLIN },
	};
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	uint64_t left = until > now ? (until - now) / KVS_NSEC_PER_MSEC : 0;
	bool copying = false;
	int nap, r;

	if (now >= until)
		return -ETIMEDOUT;
	r = kvs_engine_progress(v->e);
	for (uint32_t i = 0; i < WINDOW && r >= 0; i++)
		r = room_step(v, &v->rooms[i], &copying);
	if (r < 0)
		return r;
	nap = copying ? NAP_COPYING_MS : NAP_MS;
	if (left < (uint64_t)nap)
		nap = (int)left + 1;
	if (poll(p, 2, nap) < 0 && errno != EINTR)
		return -errno;
	return p[1].revents ? on_order(v) : 0;
}

static int conduct_for(struct verbs *v, double seconds)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 (uint64_t)(seconds * (double)KVS_NSEC_PER_SEC);
	int r;

	do {
		r = conduct(v, until);
	} while (!r);
	return r == -ETIMEDOUT ? 0 : r;
}

static bool live(const struct verbs *v)
{
	for (uint32_t i = 0; i < WINDOW; i++)
		if (v->rooms[i].id)
			return true;
	return false;
}

/* No new rooms; those under way are sent, committed, and given back. */
static int finish(struct verbs *v)
{
	const struct kvs_recv_order stop = { .op = KVS_RECV_STOP };
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 KVS_RECV_PATIENCE_MS * KVS_NSEC_PER_MSEC;
	int r = 0;

	v->stopping = true;
	while (!r && live(v))
		r = conduct(v, until);
	if (!r)
		r = kvs_recv_order(v->run->orders, &stop);
	while (!r && !v->stopped)
		r = conduct(v, until);
	return r;
}

static uint64_t cpu(void)
{
	struct rusage u;

	(void)getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) *
		       KVS_NSEC_PER_SEC +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) *
		       KVS_NSEC_PER_USEC;
}

static void sample(struct verbs *v, struct kvs_recv_sample *ret)
{
	kvs_service_snapshot(v->svc, v->snap);
	ret->now = kvs_clock_now(&kvs_clock_real);
	ret->cpu = cpu();
	ret->bytes = 0;
	for (unsigned int i = 0; i < v->snap->n_workers; i++)
		ret->bytes += v->snap->workers[i].stats.received_bytes;
}

static int start_rank(struct verbs *v)
{
	const struct kvs_recv_run *run = v->run;
	struct kvs_recv_order o = {
		.op = KVS_RECV_START,
		.verbs = true,
		.connections = run->connections,
		.port = (uint16_t)kvs_service_port(v->svc),
		.size = run->size,
		.item_len = run->item_len,
		.run_pages = run->chunks,
		.extents = run->extents,
	};

	snprintf(o.device, sizeof(o.device), "%s", run->device->device);
	return kvs_recv_order(run->orders, &o);
}

static int measure(struct verbs *v, struct kvs_recv_rate *ret)
{
	const struct kvs_recv_run *run = v->run;
	struct kvs_recv_sample a, b;
	int r = start_rank(v);

	for (uint32_t i = 0; i < WINDOW && !r; i++)
		r = admit(v, &v->rooms[i]);
	/* Neither connecting is measured, nor that the first rooms, sent in
	 * turns, end together and leave the rank without one: those behind
	 * them come one by one. */
	while (!r && v->done <= WINDOW)
		r = conduct(v, UINT64_MAX);
	if (!r)
		r = conduct_for(v, run->seconds / 5);
	if (r)
		return r;
	sample(v, &a);
	r = conduct_for(v, run->seconds);
	if (r)
		return r;
	sample(v, &b);
	kvs_recv_rate_between(&a, &b, ret);
	r = finish(v);
	ret->rooms = v->done;
	ret->writes = v->end.writes;
	ret->messages = v->end.messages;
	ret->copied = v->end.copied;
	return r;
}

int kvs_recv_verbs(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		   char *why, size_t len)
{
	struct verbs v = { .run = run, .why = why, .len = len };
	int r = up(&v);

	memset(ret, 0, sizeof(*ret));
	if (!r) {
		snprintf(ret->engine, sizeof(ret->engine), "verbs, grants %s",
			 run->device->grant);
		r = measure(&v, ret);
	}
	if (r && !why[0])
		snprintf(why, len, "%s: %s", v.e ? "receive path" : "start",
			 strerror(-r));
	down(&v);
	return r;
}
