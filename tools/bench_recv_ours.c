/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our side of kvstage-bench recv: a node with its thread, as the daemon starts
 * one, and a conductor (this file, on the calling thread) that is front and
 * engine to it. The node's thread tells the conductor by a pipe what happened;
 * the conductor answers by posts, exactly as the front does:
 *
 *   admit + open -> GRANT (to the sender) -> LAST (from it) -> READY ->
 *   COMMIT + COMMITTED -> room over -> admit the next
 *
 * WINDOW rooms are under way at a time, so the sender always has a granted
 * room in hand. With a checksum one more follows when they are over, whose
 * LAST gets a wrong one: it must end with FAILED.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/clock.h"
#include "pipeline/node.h"
#include "tools/bench_recv.h"

#define WINDOW 3u /* rooms under way; the pool holds four */
#define ENGINE 1
#define SESSION 1
#define PEER "bench"
#define PAGE_TOKENS 16 /* of a page, which is a chunk */

enum event_type {
	EVENT_GRANT,
	EVENT_READY,
	EVENT_OVER,
	EVENT_FAILED,
	EVENT_CLOSE, /* the session broke the protocol */
};

/* One write to the pipe. */
struct event {
	enum event_type type;
	uint64_t room;
	uint64_t generation;
	uint32_t slot;
	uint32_t extent_chunks;
	int err;
	char text[128];
};
static_assert(sizeof(struct event) < 4096, "a pipe takes it whole");

struct ours {
	const struct kvs_recv_run *run;
	struct kvs_node node;
	struct kvs_layer_buffer buffer;
	struct kvs_layout layout;
	int pipe[2];
	uint64_t generation; /* the last admitted */
	uint64_t rooms; /* committed */
	uint32_t live;
	bool stopping; /* admit no more */
	uint64_t wrong; /* generation whose checksum is spoilt; 0: none */
	bool caught; /* it has failed for that */
	bool stopped; /* the sender has closed */
	char *why;
	size_t len;
};

/* ---- the node's thread ---- */

static void tell(struct ours *o, const struct event *e)
{
	/* A room causes a handful, so the pipe is never full. */
	while (write(o->pipe[1], e, sizeof(*e)) < 0 && errno == EINTR)
		;
}

static void up_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	struct event e = { .type = EVENT_GRANT };

	(void)session;
	if (m->type == KVS_WIRE_GRANT) {
		e.room = m->grant.room;
		e.generation = m->grant.generation;
		e.extent_chunks = m->grant.extent_tokens / m->grant.page_size;
		tell(arg, &e);
	}
}

static void up_to_engine(void *arg, uint32_t engine, uint32_t slot,
			 uint64_t word, const struct kvs_packet *p, size_t len)
{
	const struct kvs_packet_failed *f = (const void *)p;
	struct event e = {
		.type = EVENT_READY,
		.generation = KVS_WORD_GEN(word),
		.slot = slot,
	};

	(void)engine;
	if (KVS_WORD_STATUS(word) == KVS_STATUS_READY) {
		tell(arg, &e);
	} else if (KVS_WORD_STATUS(word) == KVS_STATUS_FAILED) {
		e.type = EVENT_FAILED;
		e.err = KVS_WORD_ERR(word);
		if (p && len >= sizeof(*f))
			snprintf(e.text, sizeof(e.text), "%.127s", f->text);
		tell(arg, &e);
	}
}

static void up_room_over(void *arg, uint64_t room, uint64_t generation, int err,
			 const char *text)
{
	(void)text;
	const struct event e = {
		.type = EVENT_OVER,
		.room = room,
		.generation = generation,
		.err = err,
	};

	tell(arg, &e);
}

static void up_close_session(void *arg, uint64_t session, int err,
			     const char *why)
{
	struct event e = { .type = EVENT_CLOSE, .err = -err };

	(void)session;
	snprintf(e.text, sizeof(e.text), "%s", why);
	tell(arg, &e);
}

static const struct kvs_node_up ours_up = {
	.to_peer = up_to_peer,
	.to_engine = up_to_engine,
	.room_over = up_room_over,
	.close_session = up_close_session,
};

static void take_sample(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;
	struct kvs_recv_sample *s = arg;

	s->now = kvs_clock_now(&kvs_clock_real);
	s->bytes = n->worker->stats.received_bytes;
	s->cpu = kvs_clock_thread_cpu();
}

/* ---- the conductor ---- */

static int admit(struct ours *o)
{
	const struct kvs_rank_slice slice = { .first_layer = 0, .n_layers = 1 };
	struct kvs_room_request q = {
		.room = ++o->generation,
		.generation = o->generation,
		.engine = ENGINE,
		.slot = (uint32_t)(o->generation % WINDOW),
		.peer = PEER,
		.tokens = (uint64_t)o->run->chunks * PAGE_TOKENS,
		.n_ranks = 1,
		.ranks = &slice,
	};
	const struct kvs_msg_open open = {
		.room = q.room,
		.tokens = q.tokens,
	};
	int r = kvs_node_admit(&o->node, &q);

	if (!r)
		r = kvs_node_open(&o->node, SESSION, q.generation, &open);
	o->live += !r;
	return r;
}

static int commit(struct ours *o, const struct event *e)
{
	const struct kvs_packet_room p = {
		.generation = e->generation,
		.slot = e->slot,
	};
	int r = kvs_node_packet(&o->node, ENGINE, KVS_PACKET_COMMIT, &p);

	if (!r)
		r = kvs_node_packet(&o->node, ENGINE, KVS_PACKET_COMMITTED, &p);
	return r;
}

static int on_event(struct ours *o, const struct event *e)
{
	const struct kvs_recv_order grant = {
		.op = KVS_RECV_GRANT,
		.room = e->room,
		.generation = e->generation,
		.extent_chunks = e->extent_chunks,
	};

	switch (e->type) {
	case EVENT_GRANT:
		return kvs_recv_order(o->run->orders, &grant);
	case EVENT_READY:
		if (e->generation == o->wrong) {
			snprintf(o->why, o->len,
				 "a wrong checksum was not noticed");
			return -EBADMSG;
		}
		return commit(o, e);
	case EVENT_OVER:
		o->live--;
		o->rooms += !e->err;
		return o->stopping ? 0 : admit(o);
	case EVENT_FAILED:
		o->caught = e->generation == o->wrong && e->err == EBADMSG;
		if (o->caught)
			return 0;
		break;
	case EVENT_CLOSE:
		break;
	}
	snprintf(o->why, o->len, "%s: %s", strerror(e->err), e->text);
	return e->err ? -e->err : -EPROTO;
}

static int on_order(struct ours *o)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAST };
	struct kvs_recv_order in;
	int r = kvs_recv_await(o->run->orders, 0, &in);

	if (r) {
		snprintf(o->why, o->len, "sender: %s", strerror(-r));
		return r;
	}
	if (in.op == KVS_RECV_STOPPED) {
		o->stopped = true;
		return 0;
	}
	m.last.room = in.room;
	m.last.generation = in.generation;
	m.last.bytes = o->run->chunks * o->run->size;
	m.last.digest_kind = (uint16_t)o->run->digest;
	m.last.digest = in.digest ^ (in.generation == o->wrong);
	return kvs_node_message(&o->node, SESSION, &m);
}

/* Until @until, ns. 0, -ETIMEDOUT, or what went wrong. */
static int conduct(struct ours *o, uint64_t until)
{
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	struct pollfd p[2] = {
		{ .fd = o->pipe[0], .events = POLLIN },
		{ .fd = o->run->orders, .events = POLLIN },
	};
	struct event e;
	int r;

	if (now >= until)
		return -ETIMEDOUT;
	r = poll(p, 2, (int)((until - now) / KVS_NSEC_PER_MSEC) + 1);
	if (r < 0)
		return errno == EINTR ? 0 : -errno;
	if (p[0].revents) {
		if (read(o->pipe[0], &e, sizeof(e)) != sizeof(e))
			return -EIO;
		r = on_event(o, &e);
		if (r)
			return r;
	}
	return p[1].revents ? on_order(o) : 0;
}

static int conduct_for(struct ours *o, double seconds)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 (uint64_t)(seconds * (double)KVS_NSEC_PER_SEC);
	int r;

	do {
		r = conduct(o, until);
	} while (!r);
	return r == -ETIMEDOUT ? 0 : r;
}

/* No new rooms; those under way are sent, committed, and given back; then the
 * one that must fail. */
static int finish(struct ours *o)
{
	const struct kvs_recv_order stop = { .op = KVS_RECV_STOP };
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 KVS_RECV_PATIENCE_MS * KVS_NSEC_PER_MSEC;
	int r = 0;

	o->stopping = true;
	while (!r && o->live)
		r = conduct(o, until);
	if (!r && o->run->digest != KVS_DIGEST_NONE) {
		o->wrong = o->generation + 1;
		r = admit(o);
		while (!r && (o->live || !o->caught))
			r = conduct(o, until);
	}
	if (!r)
		r = kvs_recv_order(o->run->orders, &stop);
	while (!r && !o->stopped)
		r = conduct(o, until);
	return r;
}

/* What the front agrees on with a rank. */
static uint64_t caps(const struct ours *o)
{
	uint64_t c = KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK;

	if (o->run->digest == KVS_DIGEST_CRC32C)
		c |= KVS_CAP_CRC32C;
	if (o->run->digest == KVS_DIGEST_ADLER32)
		c |= KVS_CAP_ADLER32;
	return c;
}

/* As a rank would connect: the node answers HELLO on each connection. */
static int connect_sender(struct ours *o)
{
	const struct kvs_msg_hello hello = {
		.version_min = KVS_WIRE_VERSION_MAX,
		.version_max = KVS_WIRE_VERSION_MAX,
		.role = KVS_ROLE_DATA,
		.caps = caps(o),
		.instance = 1,
		.session = SESSION,
		.n_ranks = 1,
		.name = PEER,
	};
	const struct kvs_recv_order start = {
		.op = KVS_RECV_START,
		.connections = o->run->connections,
		.port = o->run->port,
		.size = o->run->size,
		.chunks = o->run->chunks,
		.digest_kind = o->run->digest,
		.keep_digests = o->run->keep_digests,
	};
	int r = kvs_recv_order(o->run->orders, &start);
	int fd;

	for (uint32_t i = 0; !r && i < o->run->connections; i++) {
		fd = kvs_recv_accept(o->run->listener);
		if (fd < 0)
			return fd;
		r = kvs_node_adopt(&o->node, fd, SESSION, &hello, NULL);
		if (r)
			close(fd);
	}
	return r;
}

static int measure(struct ours *o, struct kvs_recv_rate *ret)
{
	const struct kvs_recv_run *run = o->run;
	struct kvs_recv_sample a, b;
	int r;

	r = kvs_node_engine_add(&o->node, ENGINE, &o->layout);
	if (!r)
		r = kvs_node_session_add(&o->node, SESSION, PEER, 0, caps(o));
	if (!r)
		r = connect_sender(o);
	for (uint32_t i = 0; !r && i < WINDOW; i++)
		r = admit(o);
	if (!r)
		r = conduct_for(o, run->seconds / 5);
	if (r)
		return r;
	kvs_mailbox_call(&o->node.mailbox, take_sample, &a);
	r = conduct_for(o, run->seconds);
	if (r)
		return r;
	kvs_mailbox_call(&o->node.mailbox, take_sample, &b);
	kvs_recv_rate_between(&a, &b, ret);
	r = finish(o);
	ret->rooms = o->rooms;
	return r;
}

int kvs_recv_ours(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		  char *why, size_t len)
{
	struct kvs_settings set;
	struct ours o = {
		.run = run,
		.node = {
			.numa = run->region->node,
			.region = run->region,
			.up = &ours_up,
		},
		.buffer = {
			.kind = KVS_BUFFER_KV,
			.item_len = (uint32_t)run->size,
		},
		.layout = {
			.size = sizeof(o.layout),
			.page_size = PAGE_TOKENS,
			.dtype = KVS_DTYPE_BF16,
			.n_buffers = 1,
		},
		.why = why,
		.len = len,
	};
	int r;

	memset(ret, 0, sizeof(*ret));
	why[0] = '\0';
	o.node.up_arg = &o;
	o.layout.buffers = &o.buffer;
	if (pipe2(o.pipe, O_CLOEXEC) < 0)
		return -errno;
	kvs_settings_init(&set);
	snprintf(set.tcp_engine, sizeof(set.tcp_engine), "%s", run->engine);
	snprintf(set.checksum_kind, sizeof(set.checksum_kind), "%s",
		 kvs_digest_kind_name(run->digest));
	r = kvs_node_start(&o.node, &set, 1, NULL, why, len);
	if (!r) {
		snprintf(ret->engine, sizeof(ret->engine), "%s",
			 kvs_transport_name(o.node.transport));
		r = measure(&o, ret);
		if (r && !why[0])
			snprintf(why, len, "receive path: %s", strerror(-r));
	}
	kvs_node_stop(&o.node);
	close(o.pipe[0]);
	close(o.pipe[1]);
	return r;
}
