/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "gpu/device.h"
#include "lib/clock.h"
#include "tests/unit/pipeline/sender_rig.h"

/* largest extent, bytes */
#define SEGMENT (1ULL << 30)

/* ---- the sender's callbacks ---- */

static void log_event(struct rig *g, const struct rig_event *e)
{
	pthread_mutex_lock(&g->lock);
	if (g->n_ev < RIG_EVENTS_MAX)
		g->ev[g->n_ev++] = *e;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
}

static void on_granted(struct kvs_send_room *r, uint64_t generation)
{
	struct rig_event e = { .type = RIG_GRANTED,
			       .room = r,
			       .id = kvs_send_room_id(r),
			       .generation = generation };

	log_event(kvs_send_user(r), &e);
}

static void on_free(struct kvs_send_room *r, void *cookie, int status)
{
	struct rig_event e = { .type = RIG_FREE,
			       .room = r,
			       .id = kvs_send_room_id(r),
			       .cookie = cookie,
			       .status = status };

	log_event(kvs_send_user(r), &e);
}

static void on_done(struct kvs_send_room *r, int status, const char *text)
{
	struct rig_event e = { .type = RIG_DONE,
			       .room = r,
			       .id = kvs_send_room_id(r),
			       .status = status };

	snprintf(e.text, sizeof(e.text), "%s", text);
	log_event(kvs_send_user(r), &e);
}

static const struct kvs_send_ops rig_ops = {
	.granted = on_granted,
	.pages_free = on_free,
	.done = on_done,
};

struct rig_event rig_wait(struct rig *g, enum rig_event_type type, uint64_t id,
			  unsigned int n)
{
	struct timespec until;
	unsigned int seen = 0;
	size_t i = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += RIG_WAIT_MS / 1000;
	pthread_mutex_lock(&g->lock);
	for (;;) {
		for (; i < g->n_ev; i++) {
			struct rig_event e = g->ev[i];

			if (e.type != type || e.id != id || seen++ != n)
				continue;
			pthread_mutex_unlock(&g->lock);
			return e;
		}
		if (pthread_cond_timedwait(&g->cond, &g->lock, &until)) {
			pthread_mutex_unlock(&g->lock);
			fail_msg("event %d of room %llu did not come", type,
				 (unsigned long long)id);
		}
	}
}

unsigned int rig_count(struct rig *g, enum rig_event_type type, uint64_t id)
{
	unsigned int n = 0;
	size_t i;

	pthread_mutex_lock(&g->lock);
	for (i = 0; i < g->n_ev; i++)
		n += g->ev[i].type == type && g->ev[i].id == id;
	pthread_mutex_unlock(&g->lock);
	return n;
}

/* ---- set up ---- */

uint64_t rig_seed(void)
{
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0)
			    : kvs_clock_now(&kvs_clock_real);

	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed;
}

static void fill(unsigned char *p, size_t n, struct kvs_rng *rng)
{
	size_t i;

	for (i = 0; i + 8 <= n; i += 8) {
		uint64_t v = kvs_rng_next(rng);

		memcpy(p + i, &v, 8);
	}
	for (; i < n; i++)
		p[i] = (unsigned char)kvs_rng_next(rng);
}

static void rig_listen(struct rig *g)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int one = 1;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	g->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(g->listener >= 0);
	assert_int_equal(setsockopt(g->listener, SOL_SOCKET, SO_REUSEADDR, &one,
				    sizeof(one)),
			 0);
	assert_int_equal(bind(g->listener, (struct sockaddr *)&a, sizeof(a)),
			 0);
	assert_int_equal(listen(g->listener, 64), 0);
	assert_int_equal(getsockname(g->listener, (struct sockaddr *)&a, &len),
			 0);
	g->port = ntohs(a.sin_port);
}

struct rig *rig_new(const struct kvs_layer_buffer *buffers, uint32_t n,
		    uint32_t page_size, uint32_t source_pages,
		    struct kvs_rng *rng)
{
	struct kvs_layout l = {
		.size = sizeof(l),
		.page_size = page_size,
		.dtype = KVS_DTYPE_BF16,
		.n_buffers = n,
		.buffers = (struct kvs_layer_buffer *)(uintptr_t)buffers,
		.aux_max = 4096,
		.capacity = (uint64_t)source_pages * page_size,
	};
	struct rig *g = calloc(1, sizeof(*g));
	uint32_t i;

	assert_non_null(g);
	assert_int_equal(kvs_layout_dup(&l, &g->layout), 0);
	g->layout->size = sizeof(l);
	g->source_pages = source_pages;
	g->buffers = calloc(n, sizeof(*g->buffers));
	assert_non_null(g->buffers);
	for (i = 0; i < n; i++) {
		size_t bytes = (size_t)buffers[i].item_len * source_pages;

		g->buffers[i] = malloc(bytes);
		assert_non_null(g->buffers[i]);
		fill(g->buffers[i], bytes, rng);
	}
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->cond, NULL);
	g->ev = calloc(RIG_EVENTS_MAX, sizeof(*g->ev));
	assert_non_null(g->ev);
	g->control = -1;
	rig_listen(g);
	g->o.rank = 0;
	g->o.n_ranks = 2;
	return g;
}

void rig_to_device(struct rig *g, const struct kvs_device_opts *opts)
{
	struct kvs_device_opts o = *opts;
	char err[256];
	uint32_t i;

	o.size = sizeof(o);
	o.backend = "soft";
	o.hidden = true;
	if (kvs_device_open(&o, &g->o.device, err, sizeof(err)))
		fail_msg("%s", err);
	g->on_device = calloc(g->layout->n_buffers, sizeof(*g->on_device));
	assert_non_null(g->on_device);
	for (i = 0; i < g->layout->n_buffers; i++) {
		struct kvs_copy_run run = {
			.host = g->buffers[i],
			.item_len = g->layout->buffers[i].item_len,
			.n = g->source_pages,
		};
		struct kvs_copy c = { .runs = &run,
				      .n_runs = 1,
				      .dir = KVS_COPY_H2D };

		assert_int_equal(kvs_device_alloc(g->o.device,
						  run.item_len * run.n,
						  &g->on_device[i]),
				 0);
		run.dev = g->on_device[i];
		assert_int_equal(kvs_device_copy(g->o.device, &c), 0);
		while (kvs_device_query(g->o.device, &c) == -EINPROGRESS)
			sched_yield();
		assert_int_equal(kvs_device_query(g->o.device, &c), 0);
	}
}

static void *destroy_main(void *arg)
{
	struct rig *g = arg;

	kvs_sender_destroy(g->s);
	return NULL;
}

void rig_free(struct rig *g)
{
	unsigned int i;
	pthread_t t;

	/* the sender flushes into sockets that somebody must read or close */
	assert_int_equal(pthread_create(&t, NULL, destroy_main, g), 0);
	for (i = 0; i < g->n_data; i++)
		close(g->data[i]);
	if (g->control >= 0)
		close(g->control);
	assert_int_equal(pthread_join(t, NULL), 0);
	if (g->listener >= 0)
		close(g->listener);
	while (g->n_rooms)
		rig_room_forget(g, g->room[0]);
	for (i = 0; i < g->layout->n_buffers; i++)
		free(g->buffers[i]);
	free(g->buffers);
	free(g->on_device);
	/* and all of its memory */
	kvs_device_close(g->o.device);
	free(g->layout);
	free(g->ev);
	pthread_mutex_destroy(&g->lock);
	pthread_cond_destroy(&g->cond);
	free(g);
}

static void *create_main(void *arg)
{
	struct rig *g = arg;
	struct kvs_sender_opts o = g->o;
	char daemon[32];

	snprintf(daemon, sizeof(daemon), "127.0.0.1:%u", g->port);
	o.size = sizeof(o);
	if (!o.daemon)
		o.daemon = daemon;
	if (!o.peer)
		o.peer = "prefill-a";
	o.layout = g->layout;
	o.buffers = g->on_device ? g->on_device : g->buffers;
	o.ops = &rig_ops;
	g->create_err = kvs_sender_create(&o, &g->s, g->err, sizeof(g->err));
	return NULL;
}

void rig_create_begin(struct rig *g)
{
	assert_int_equal(pthread_create(&g->creating, NULL, create_main, g), 0);
}

void rig_create_end(struct rig *g)
{
	assert_int_equal(pthread_join(g->creating, NULL), 0);
	if (!g->create_err)
		assert_string_equal(g->err, "");
}

/* ---- the daemon ---- */

static void wait_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (poll(&p, 1, RIG_WAIT_MS) != 1)
		fail_msg("nothing came from the sender");
}

static int accept_one(struct rig *g)
{
	int fd;

	wait_readable(g->listener);
	fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

void rig_send(int fd, const struct kvs_msg *m)
{
	static _Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	int n = kvs_wire_encode(m, buf, sizeof(buf));

	assert_true(n > 0);
	assert_int_equal(send(fd, buf, (size_t)n, MSG_NOSIGNAL), n);
}

/* False at end of file or when the other side has reset. */
static bool read_full(int fd, void *buf, size_t n)
{
	unsigned char *p = buf;

	while (n) {
		ssize_t r;

		wait_readable(fd);
		r = recv(fd, p, n, 0);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return false;
		p += r;
		n -= (size_t)r;
	}
	return true;
}

static bool read_msg(struct rig *g, int fd, struct kvs_msg *ret)
{
	static _Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	struct kvs_frame *f = (struct kvs_frame *)buf;
	const char *reason = "";
	uint32_t len;

	if (!read_full(fd, buf, sizeof(*f)))
		return false;
	len = kvs_get32(f->len);
	assert_int_equal(kvs_get32(f->magic), KVS_FRAME_MAGIC);
	assert_in_range(len, sizeof(*f), sizeof(buf));
	assert_true(read_full(fd, buf + sizeof(*f), len - sizeof(*f)));
	if (kvs_wire_decode(f, len, &g->scratch, ret, &reason))
		fail_msg("the sender broke the protocol: %s", reason);
	return true;
}

static struct rig_room *room_find(struct rig *g, uint64_t generation)
{
	unsigned int i;

	for (i = 0; i < g->n_rooms; i++) {
		if (g->room[i]->generation == generation)
			return g->room[i];
	}
	return NULL;
}

/* Where the chunk belongs; every byte may come once. */
static unsigned char *place(struct rig *g, struct rig_room *r,
			    const struct kvs_msg_chunk *c)
{
	uint64_t off, len, at;
	int b;

	assert_int_equal(c->room, r->id);
	assert_in_range(c->extent, 0, r->geo.n_extents - 1);
	if (c->kind == KVS_KIND_AUX) {
		assert_int_equal(c->layer, g->o.rank);
		assert_int_equal(c->extent, r->geo.n_extents - 1);
		assert_int_equal(kvs_geometry_aux(&r->geo, c->rank, &off, &len),
				 0);
	} else {
		assert_true(c->layer >= r->first_layer &&
			    c->layer < r->first_layer + r->n_layers);
		b = kvs_layout_find(g->layout, c->kind, c->layer);
		assert_true(b >= 0);
		assert_int_equal(kvs_geometry_run(&r->geo, c->extent,
						  (uint32_t)b, &off, &len),
				 0);
	}
	assert_true(c->offset + c->len <= len);
	at = c->extent * r->geo.full_len + off + c->offset;
	for (off = at; off < at + c->len; off++) {
		if (r->got[off]++)
			fail_msg("byte %llu came twice",
				 (unsigned long long)off);
	}
	r->bytes += c->len;
	return r->mem + at;
}

static void drop_bytes(int fd, uint64_t n)
{
	static unsigned char sink[65536];

	while (n) {
		size_t piece = n < sizeof(sink) ? (size_t)n : sizeof(sink);

		assert_true(read_full(fd, sink, piece));
		n -= piece;
	}
}

static void remove_data(struct rig *g, unsigned int i)
{
	close(g->data[i]);
	g->data[i] = g->data[--g->n_data];
}

static void serve_data(struct rig *g, unsigned int i)
{
	struct rig_room *r;
	struct kvs_msg m;

	if (!read_msg(g, g->data[i], &m)) {
		remove_data(g, i);
		return;
	}
	assert_int_equal(m.type, KVS_WIRE_CHUNK);
	assert_int_equal(m.chunk.rank, g->o.rank);
	if (m.chunk.len > g->chunk_most)
		g->chunk_most = m.chunk.len;
	r = room_find(g, m.chunk.generation);
	if (r) {
		/* fewer where the sender dropped the connection */
		if (!read_full(g->data[i], place(g, r, &m.chunk), m.chunk.len))
			remove_data(g, i);
		return;
	}
	g->late_bytes += m.chunk.len;
	drop_bytes(g->data[i], m.chunk.len);
}

static void accept_data(struct rig *g)
{
	int fd = accept_one(g);
	struct kvs_msg m;

	g->accepted++;
	if (g->rcvbuf)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &g->rcvbuf,
			   sizeof(g->rcvbuf));
	assert_true(read_msg(g, fd, &m));
	assert_int_equal(m.type, KVS_WIRE_HELLO);
	assert_int_equal(m.hello.role, KVS_ROLE_DATA);
	assert_int_equal(m.hello.session, RIG_SESSION);
	assert_int_equal(m.hello.rank, g->o.rank);
	if (g->refuse_data) {
		struct kvs_msg e = { .type = KVS_WIRE_ERROR,
				     .error = { .err = EACCES } };

		snprintf(e.error.text, sizeof(e.error.text), "not you");
		rig_send(fd, &e);
		close(fd);
		return;
	}
	m.hello.version_min = 1;
	m.hello.version_max = 1;
	m.hello.instance = 77;
	rig_send(fd, &m);
	assert_true(g->n_data < RIG_DATA_MAX);
	g->data[g->n_data++] = fd;
}

/* One round of poll; true when the control connection is readable. */
static bool serve_once(struct rig *g, int timeout_ms)
{
	struct pollfd p[RIG_DATA_MAX + 2];
	bool control;
	int n = 0;
	int i;

	p[n++] = (struct pollfd){ .fd = g->listener, .events = POLLIN };
	p[n++] = (struct pollfd){ .fd = g->control, .events = POLLIN };
	for (i = 0; !g->hold && i < (int)g->n_data; i++)
		p[n++] = (struct pollfd){ .fd = g->data[i], .events = POLLIN };
	if (poll(p, (nfds_t)n, timeout_ms) <= 0)
		return false;
	control = p[1].revents != 0;
	/* backwards: a closed one is replaced by the last */
	for (i = n - 1; i >= 2; i--) {
		if (p[i].revents)
			serve_data(g, (unsigned int)(i - 2));
	}
	if (p[0].revents)
		accept_data(g);
	return control;
}

static uint64_t now_ms(void)
{
	return kvs_clock_now(&kvs_clock_real) / KVS_NSEC_PER_MSEC;
}

void rig_serve_until(struct rig *g, bool (*cond)(struct rig *g, void *arg),
		     void *arg)
{
	uint64_t until = now_ms() + RIG_WAIT_MS;

	/* the short wait is for what is not seen on any socket */
	while (!cond(g, arg)) {
		if (now_ms() > until)
			fail_msg("what was waited for did not come");
		serve_once(g, 5);
	}
}

bool rig_control_readable(struct rig *g)
{
	struct pollfd p = { .fd = g->control, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static bool control_readable(struct rig *g, void *arg)
{
	(void)arg;
	return rig_control_readable(g);
}

void rig_recv(struct rig *g, struct kvs_msg *ret)
{
	rig_serve_until(g, control_readable, NULL);
	if (!read_msg(g, g->control, ret))
		fail_msg("the sender closed the control connection");
}

void rig_expect(struct rig *g, enum kvs_wire_type type, struct kvs_msg *ret)
{
	rig_recv(g, ret);
	if (ret->type != type)
		fail_msg("%s came instead of %s", kvs_wire_type_name(ret->type),
			 kvs_wire_type_name(type));
}

void rig_expect_end(struct rig *g)
{
	struct kvs_msg m;

	rig_serve_until(g, control_readable, NULL);
	if (read_msg(g, g->control, &m))
		fail_msg("%s came instead of the end",
			 kvs_wire_type_name(m.type));
	close(g->control);
	g->control = -1;
}

void rig_quiet(struct rig *g)
{
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE };
	struct kvs_msg a;
	uint64_t i;

	for (i = 1; i <= 2; i++) {
		m.keepalive.seq = i;
		rig_send(g->control, &m);
		rig_expect(g, KVS_WIRE_KEEPALIVE, &a);
		assert_int_equal(a.keepalive.reply, 1);
		assert_int_equal(a.keepalive.seq, i);
	}
}

void rig_close_data(struct rig *g, unsigned int i, bool reset)
{
	struct linger lin = { .l_onoff = 1, .l_linger = 0 };

	assert_true(i < g->n_data);
	if (reset)
		setsockopt(g->data[i], SOL_SOCKET, SO_LINGER, &lin,
			   sizeof(lin));
	remove_data(g, i);
}

void rig_accept_control(struct rig *g)
{
	/* before accept, so that the sender finds it small from the start */
	if (g->rcvbuf)
		setsockopt(g->listener, SOL_SOCKET, SO_RCVBUF, &g->rcvbuf,
			   sizeof(g->rcvbuf));
	g->control = accept_one(g);
}

void rig_reply_hello(struct rig *g, uint16_t version)
{
	struct kvs_msg m;

	assert_true(read_msg(g, g->control, &m));
	assert_int_equal(m.type, KVS_WIRE_HELLO);
	assert_int_equal(m.hello.role, KVS_ROLE_CONTROL);
	assert_int_equal(m.hello.version_min, KVS_WIRE_VERSION_MIN);
	assert_int_equal(m.hello.version_max, KVS_WIRE_VERSION_MAX);
	assert_true(m.hello.caps & KVS_CAP_DRAIN_ACK);
	assert_true(m.hello.caps & KVS_CAP_GENERATION);
	assert_int_equal(m.hello.rank, g->o.rank);
	assert_int_equal(m.hello.n_ranks, g->o.n_ranks);
	m.hello.version_min = version;
	m.hello.version_max = version;
	m.hello.instance = 77;
	m.hello.session = RIG_SESSION;
	m.hello.keepalive_ms = g->keepalive_ms;
	rig_send(g->control, &m);
}

void rig_start(struct rig *g)
{
	struct kvs_msg m;

	rig_create_begin(g);
	rig_accept_control(g);
	rig_reply_hello(g, 1);
	assert_true(read_msg(g, g->control, &m));
	assert_int_equal(m.type, KVS_WIRE_LAYOUT);
	assert_int_equal(m.layout.l.n_buffers, g->layout->n_buffers);
	rig_send(g->control, &m);
	rig_create_end(g);
	if (g->create_err)
		fail_msg("create: %s", g->err);
}

/* ---- rooms ---- */

struct rig_room *rig_room_new(struct rig *g, uint64_t id, uint64_t generation,
			      uint64_t tokens, uint32_t extent_tokens,
			      uint32_t first_layer, uint32_t n_layers,
			      uint32_t aux_len)
{
	struct rig_room *r = calloc(1, sizeof(*r));
	uint64_t total;

	assert_non_null(r);
	r->id = id;
	r->generation = generation;
	r->first_layer = first_layer;
	r->n_layers = n_layers;
	assert_int_equal(kvs_geometry_init(&r->geo, g->layout, tokens,
					   extent_tokens, SEGMENT, g->o.n_ranks,
					   aux_len),
			 0);
	total = r->geo.full_len * (r->geo.n_extents - 1) + r->geo.last_len;
	r->mem = calloc(1, total);
	r->got = calloc(1, total);
	assert_non_null(r->mem);
	assert_non_null(r->got);
	assert_true(g->n_rooms < 64);
	g->room[g->n_rooms++] = r;
	return r;
}

void rig_room_forget(struct rig *g, struct rig_room *r)
{
	unsigned int i;

	for (i = 0; g->room[i] != r; i++)
		assert_true(i + 1 < g->n_rooms);
	g->room[i] = g->room[--g->n_rooms];
	kvs_geometry_fini(&r->geo);
	free(r->mem);
	free(r->got);
	free(r);
}

void rig_grant(struct rig *g, const struct rig_room *r)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_GRANT,
		.grant = {
			.room = r->id,
			.generation = r->generation,
			.rank = g->o.rank,
			.worker = 0,
			.tokens = r->geo.tokens,
			.page_size = g->layout->page_size,
			.extent_tokens = r->geo.extent_pages *
					 g->layout->page_size,
			.n_extents = r->geo.n_extents,
			.first_layer = r->first_layer,
			.n_layers = r->n_layers,
			.aux_len = r->geo.aux_len,
			.call_timeout_ms = g->call_timeout_ms,
			.batch_bytes = g->batch_bytes,
		},
	};

	rig_send(g->control, &m);
}

void rig_refuse(struct rig *g, uint64_t id, int err, unsigned int class,
		const char *text)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE,
			     .refuse = { .room = id,
					 .rank = g->o.rank,
					 .err = (uint32_t)err,
					 .class = class } };

	snprintf(m.refuse.text, sizeof(m.refuse.text), "%s", text);
	rig_send(g->control, &m);
}

void rig_complete(struct rig *g, const struct rig_room *r)
{
	struct kvs_msg m = { .type = KVS_WIRE_COMPLETE,
			     .complete = { .room = r->id,
					   .generation = r->generation,
					   .rank = g->o.rank } };

	rig_send(g->control, &m);
}

void rig_abort(struct rig *g, uint64_t id, uint64_t generation)
{
	struct kvs_msg m = { .type = KVS_WIRE_ABORT,
			     .abort = { .room = id,
					.generation = generation,
					.rank = g->o.rank,
					.err = ECANCELED,
					.text = "client went away" } };

	rig_send(g->control, &m);
}

static bool all_bytes(struct rig *g, void *arg)
{
	struct rig_room *r = arg;

	(void)g;
	return r->bytes ==
	       kvs_geometry_rank_bytes(&r->geo, r->first_layer, r->n_layers);
}

void rig_finish_last(struct rig *g, struct rig_room *r,
		     const struct kvs_msg *last)
{
	assert_int_equal(last->last.room, r->id);
	assert_int_equal(last->last.generation, r->generation);
	assert_int_equal(last->last.bytes,
			 kvs_geometry_rank_bytes(&r->geo, r->first_layer,
						 r->n_layers));
	rig_serve_until(g, all_bytes, r);
	rig_complete(g, r);
}

void rig_finish_room(struct rig *g, struct rig_room *r)
{
	struct kvs_msg m;

	rig_expect(g, KVS_WIRE_LAST, &m);
	rig_finish_last(g, r, &m);
}

void rig_check_pages(struct rig *g, const struct rig_room *r,
		     const uint32_t *pages)
{
	const struct kvs_layout *l = g->layout;
	uint64_t off, len;
	uint32_t b, p;

	for (b = 0; b < l->n_buffers; b++) {
		uint32_t item = l->buffers[b].item_len;

		if (!kvs_buffer_kind_is_paged(l->buffers[b].kind) ||
		    l->buffers[b].layer < r->first_layer ||
		    l->buffers[b].layer >= r->first_layer + r->n_layers)
			continue;
		for (p = 0; p < r->geo.pages; p++) {
			uint32_t e = p / r->geo.extent_pages;
			uint32_t in = p % r->geo.extent_pages;

			assert_int_equal(
				kvs_geometry_run(&r->geo, e, b, &off, &len), 0);
			assert_memory_equal(r->mem + e * r->geo.full_len + off +
						    (uint64_t)in * item,
					    (unsigned char *)g->buffers[b] +
						    (uint64_t)pages[p] * item,
					    item);
		}
	}
}

struct outstanding {
	struct kvs_send_room *room;
	bool some;
};

static bool outstanding_is(struct rig *g, void *arg)
{
	struct outstanding *o = arg;

	(void)g;
	return (kvs_send_outstanding(o->room) > 0) == o->some;
}

void rig_wait_outstanding(struct rig *g, struct kvs_send_room *r, bool some)
{
	struct outstanding o = { .room = r, .some = some };

	rig_serve_until(g, outstanding_is, &o);
}
