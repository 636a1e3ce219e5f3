/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rank of kvstage-bench recv over verbs: libkvstage's sender in the
 * sending process. Each ROOM is opened, queued at once, and sent from the same
 * source, whose pages lie the wrong way round, so that no two neighbours of a
 * run are neighbours here.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kvstage/sender.h"
#include "lib/log.h"
#include "pipeline/sender_internal.h"
#include "rdma/verbs.h"
#include "tools/bench_recv.h"
#include "tools/pattern.h"

#define PEER "bench"
#define ROOMS 8u /* handles; more than are under way at a time */

struct rank_room {
	struct rank *k;
	struct kvs_send_room *r; /* NULL: the place is free */
	_Atomic bool over;
};

struct rank {
	int orders;
	const struct kvs_recv_order *start;
	struct kvs_layer_buffer buffers[KVS_RECV_BUFFERS];
	struct kvs_layout layout;
	void *source[KVS_RECV_BUFFERS];
	uint64_t len[KVS_RECV_BUFFERS]; /* bytes */
	uint32_t *pages; /* of a room, where they lie */
	uint32_t n_pages;
	struct kvs_sender *s;
	struct rank_room rooms[ROOMS];
};

/* ---- the sender's thread ---- */

static void on_granted(struct kvs_send_room *r, uint64_t generation)
{
	(void)r;
	(void)generation;
}

static void on_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	(void)r;
	(void)cookie;
	(void)status;
}

static void on_done(struct kvs_send_room *r, int status, const char *text)
{
	struct rank_room *m = kvs_send_user(r);
	const struct kvs_recv_order o = {
		.op = KVS_RECV_DONE,
		.room = kvs_send_room_id(r),
		.err = -status,
	};

	if (status)
		fprintf(stderr, "recv: rank: %s\n", text);
	(void)kvs_recv_order(m->k->orders, &o);
	atomic_store(&m->over, true);
}

static const struct kvs_send_ops ops = {
	.granted = on_granted,
	.pages_free = on_pages_free,
	.done = on_done,
};

/* ---- this thread ---- */

static int make_source(struct rank *k)
{
	const struct kvs_recv_order *o = k->start;
	uint32_t n = o->extents * o->run_pages;

	k->n_pages = n;
	k->pages = calloc(n, sizeof(*k->pages));
	if (!k->pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		k->pages[i] = n - 1 - i;
	k->layout = (struct kvs_layout){
		.size = sizeof(k->layout),
		.page_size = 1,
		.dtype = KVS_DTYPE_BF16,
		.n_buffers = KVS_RECV_BUFFERS,
		.buffers = k->buffers,
	};
	for (uint32_t b = 0; b < KVS_RECV_BUFFERS; b++) {
		void *p;

		k->buffers[b].kind = KVS_BUFFER_KV;
		k->buffers[b].layer = (uint16_t)b;
		k->buffers[b].item_len = o->item_len;
		k->len[b] = (uint64_t)n * o->item_len;
		p = mmap(NULL, k->len[b], PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return -errno;
		kvs_pattern_fill(p, k->len[b],
				 kvs_pattern_seed(1, 1, KVS_BUFFER_KV, b), 0);
		k->source[b] = p;
	}
	return 0;
}

static int connect_daemon(struct rank *k)
{
	const struct kvs_recv_order *o = k->start;
	char daemon[32], err[KVS_RECV_WHY_MAX];
	const struct kvs_sender_opts so = {
		.size = sizeof(so),
		.daemon = daemon,
		.peer = PEER,
		.n_ranks = 1,
		.layout = &k->layout,
		.buffers = k->source,
		.buffer_len = k->len,
		.data_connections = o->connections,
		.chunk_max = o->size,
		.stripe_min = 1,
		.ops = &ops,
		.transport = "verbs",
		.rdma_device = o->device,
	};
	int r;

	snprintf(daemon, sizeof(daemon), "127.0.0.1:%u", o->port);
	r = kvs_sender_create(&so, &k->s, err, sizeof(err));
	if (r)
		fprintf(stderr, "recv: rank: %s\n", err);
	return r;
}

static struct rank_room *free_place(struct rank *k)
{
	struct rank_room *found = NULL;

	for (uint32_t i = 0; i < ROOMS; i++) {
		struct rank_room *m = &k->rooms[i];

		if (m->r && atomic_load(&m->over)) {
			kvs_send_close(m->r);
			m->r = NULL;
		}
		if (!m->r)
			found = m;
	}
	return found;
}

static int send_room(struct rank *k, uint64_t room)
{
	struct rank_room *m = free_place(k);
	int r;

	if (!m)
		return -ENOBUFS;
	m->k = k;
	atomic_store(&m->over, false);
	r = kvs_send_open(k->s, room, NULL, k->n_pages, m, &m->r);
	if (r)
		return r;
	r = kvs_send_pages(m->r, 0, k->pages, k->n_pages, NULL);
	if (!r)
		r = kvs_send_finish(m->r);
	/* it has ended already: its done() says so */
	return r == -ECANCELED ? 0 : r;
}

static void down(struct rank *k)
{
	kvs_sender_destroy(k->s);
	for (uint32_t b = 0; b < KVS_RECV_BUFFERS; b++)
		if (k->source[b])
			munmap(k->source[b], k->len[b]);
	free(k->pages);
}

int kvs_recv_rank(int orders, struct kvs_recv_order *start)
{
	struct rank k = { .orders = orders, .start = start };
	struct kvs_verbs_counts c = { 0 };
	struct kvs_recv_order o;
	int r = make_source(&k);

	if (!r)
		r = connect_daemon(&k);
	while (!r) {
		r = kvs_recv_await(orders, -1, &o);
		if (r || o.op == KVS_RECV_STOP)
			break;
		if (o.op == KVS_RECV_ROOM)
			r = send_room(&k, o.room);
	}
	if (!r)
		kvs_verbs_counters(k.s->t, &c);
	start->writes = c.writes;
	start->messages = c.msgs_out;
	start->copied = c.staged_bytes;
	down(&k);
	return r;
}
