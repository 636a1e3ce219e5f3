/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/puppet_sender.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/rng.h"
#include "pipeline/layout.h"
#include "tests/regress/service_rig.h"

#define PS_TIMEOUT 10 /* s */

static struct kvs_layer_buffer ps_buffers[] = {
	{ KVS_BUFFER_KV, 0, PS_PAGE, 0 },
	{ KVS_BUFFER_KV, 1, PS_PAGE, 0 },
};

#define PS_LAYOUT(layers)                                                  \
	{                                                                  \
		.size = sizeof(struct kvs_layout), .page_size = PS_TOKENS, \
		.dtype = KVS_DTYPE_BF16, .n_buffers = (layers),            \
		.buffers = ps_buffers,                                     \
	}

const struct kvs_layout ps_one_layer = PS_LAYOUT(1);
const struct kvs_layout ps_two_layers = PS_LAYOUT(2);

/* ---- sockets -------------------------------------------------------------- */

/* An interrupted connect() goes on by itself. */
static int ps_connect(int fd, const struct sockaddr_in *sa)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	socklen_t len = sizeof(int);
	int err = 0;

	if (!connect(fd, (const struct sockaddr *)sa, sizeof(*sa)))
		return 0;
	if (errno != EINTR)
		return -errno;
	while (poll(&p, 1, PS_TIMEOUT * 1000) < 0)
		if (errno != EINTR)
			return -errno;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
		return -errno;
	return -err;
}

int ps_dial(unsigned int port)
{
	struct sockaddr_in sa = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct timeval tv = { PS_TIMEOUT, 0 };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1, ret = 0;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		ret = -errno;
	if (!ret)
		ret = ps_connect(fd, &sa);
	if (!ret)
		return fd;
	close(fd);
	return ret;
}

long ps_write(int fd, const void *buf, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = send(fd, (const char *)buf + done, len - done,
				 MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		done += (size_t)n;
	}
	return (long)done;
}

static int ps_read_all(int fd, void *buf, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = recv(fd, (char *)buf + done, len - done, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (!n)
			return -ENODATA;
		done += (size_t)n;
	}
	return 0;
}

int ps_read(struct ps *p, int fd, struct kvs_msg *m)
{
	static _Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	struct kvs_frame *f = (struct kvs_frame *)buf;
	const char *reason;
	uint32_t len;
	int ret;

	ret = ps_read_all(fd, buf, sizeof(*f));
	if (ret)
		return ret;
	len = kvs_get32(f->len);
	if (len < sizeof(*f) || len > sizeof(buf))
		return -EPROTO;
	ret = ps_read_all(fd, buf + sizeof(*f), len - sizeof(*f));
	if (ret)
		return ret;
	return kvs_wire_decode(f, len, p->scratch, m, &reason);
}

int ps_write_msg(int fd, const struct kvs_msg *m)
{
	static _Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	int len = kvs_wire_encode(m, buf, sizeof(buf));
	long ret;

	if (len < 0)
		return len;
	ret = ps_write(fd, buf, (size_t)len);
	return ret < 0 ? (int)ret : 0;
}

void ps_reset(int *fd)
{
	struct linger l = { 1, 0 };

	if (*fd < 0)
		return;
	(void)setsockopt(*fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(*fd);
	*fd = -1;
}

void ps_fin(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

bool ps_is_closed(int fd)
{
	char drop[4096];
	ssize_t n;

	do {
		n = recv(fd, drop, sizeof(drop), MSG_DONTWAIT);
	} while (n > 0 || (n < 0 && errno == EINTR));
	return !n || (errno != EAGAIN);
}

/* ---- a rank --------------------------------------------------------------- */

static const struct kvs_auth_keys *ps_keys;

void ps_use_keys(const struct kvs_auth_keys *keys)
{
	ps_keys = keys;
}

void ps_init(struct ps *p, unsigned int port, const char *peer, uint32_t rank,
	     uint32_t n_ranks, const struct kvs_layout *layout)
{
	memset(p, 0, sizeof(*p));
	p->port = port;
	p->ctl = -1;
	for (int i = 0; i < PS_DATA_MAX; i++)
		p->data[i] = -1;
	snprintf(p->peer, sizeof(p->peer), "%s", peer);
	p->rank = rank;
	p->n_ranks = n_ranks;
	p->caps = KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK;
	p->layout = layout;
	p->keys = ps_keys;
	p->scratch = malloc(sizeof(*p->scratch));
	assert_non_null(p->scratch);
}

void ps_hello_msg(const struct ps *p, uint16_t role, struct kvs_msg *m)
{
	memset(m, 0, sizeof(*m));
	m->type = KVS_WIRE_HELLO;
	m->hello.version_min = KVS_WIRE_VERSION_MIN;
	m->hello.version_max = KVS_WIRE_VERSION_MAX;
	m->hello.role = role;
	m->hello.caps = p->caps;
	m->hello.instance = 0x1234;
	m->hello.session = role == KVS_ROLE_DATA ? p->token : 0;
	m->hello.rank = p->rank;
	m->hello.n_ranks = p->n_ranks;
	snprintf(m->hello.name, sizeof(m->hello.name), "%s", p->peer);
}

int ps_greet(struct ps *p, int fd, struct kvs_msg *m)
{
	struct kvs_auth_sender a;
	const char *why = "";
	struct kvs_msg out;
	int ret;

	ret = kvs_auth_sender_init(&a, p->keys, &m->hello);
	if (!ret)
		ret = ps_write_msg(fd, m);
	while (!ret) {
		ret = ps_read(p, fd, m);
		if (ret || m->type == KVS_WIRE_HELLO)
			break;
		if (m->type == KVS_WIRE_ERROR)
			return -(int)m->error.err;
		if (m->type == KVS_WIRE_CHALLENGE) {
			ret = kvs_auth_sender_answer(&a, &m->challenge, &out,
						     &why);
			if (!ret)
				ret = ps_write_msg(fd, &out);
		} else if (m->type == KVS_WIRE_PROOF) {
			ret = kvs_auth_sender_proof(&a, &m->proof, &why);
		} else {
			ret = -EPROTO;
		}
	}
	return ret ? ret : kvs_auth_sender_check(&a, &m->hello, &why);
}

int ps_hello(struct ps *p)
{
	struct kvs_msg m;
	int ret;

	p->ctl = ps_dial(p->port);
	if (p->ctl < 0)
		return p->ctl;
	ps_hello_msg(p, KVS_ROLE_CONTROL, &m);
	ret = ps_greet(p, p->ctl, &m);
	if (ret)
		return ret;
	p->token = m.hello.session;
	p->instance = m.hello.instance;
	p->keepalive_ms = m.hello.keepalive_ms;
	p->paths = m.hello.paths;
	return 0;
}

int ps_layout(struct ps *p, char *text, size_t len)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAYOUT };
	int ret;

	m.layout.l = *p->layout;
	ret = ps_say(p, &m);
	if (!ret)
		ret = ps_next(p, &m);
	if (ret < 0)
		return ret;
	if (m.type == KVS_WIRE_LAYOUT)
		return 0;
	if (m.type != KVS_WIRE_ERROR)
		return -EPROTO;
	snprintf(text, len, "%s", m.error.text);
	return (int)m.error.err;
}

int ps_data(struct ps *p)
{
	struct kvs_msg m;
	int fd, ret;

	if (p->n_data == PS_DATA_MAX)
		return -ENOBUFS;
	fd = ps_dial(p->port);
	if (fd < 0)
		return fd;
	ps_hello_msg(p, KVS_ROLE_DATA, &m);
	ret = ps_greet(p, fd, &m);
	if (ret) {
		close(fd);
		return ret;
	}
	p->data[p->n_data] = fd;
	return (int)p->n_data++;
}

void ps_control_up(struct ps *p)
{
	char text[KVS_WIRE_TEXT] = "";
	int ret;

	assert_int_equal(ps_hello(p), 0);
	ret = ps_layout(p, text, sizeof(text));
	if (ret)
		fail_msg("LAYOUT: %d %s", ret, text);
}

void ps_up(struct ps *p, unsigned int port, const char *peer, uint32_t rank,
	   uint32_t n_ranks, const struct kvs_layout *layout)
{
	ps_init(p, port, peer, rank, n_ranks, layout);
	ps_control_up(p);
	assert_int_equal(ps_data(p), 0);
}

void ps_down(struct ps *p)
{
	for (unsigned int i = 0; i < PS_DATA_MAX; i++)
		ps_fin(&p->data[i]);
	ps_fin(&p->ctl);
	p->n_data = 0;
	free(p->scratch);
	p->scratch = NULL;
}

void ps_die(struct ps *p)
{
	for (unsigned int i = 0; i < PS_DATA_MAX; i++)
		ps_reset(&p->data[i]);
	ps_reset(&p->ctl);
	ps_down(p);
}

int ps_next(struct ps *p, struct kvs_msg *m)
{
	int ret;

	for (;;) {
		ret = ps_read(p, p->ctl, m);
		if (ret)
			return ret;
		if (m->type != KVS_WIRE_KEEPALIVE)
			return (int)m->type;
		if (m->keepalive.reply)
			continue;
		m->keepalive.reply = 1;
		ret = ps_say(p, m);
		if (ret)
			return ret;
	}
}

void ps_expect(struct ps *p, enum kvs_wire_type type, struct kvs_msg *m)
{
	int got = ps_next(p, m);

	if (got == (int)type)
		return;
	if (got == KVS_WIRE_REFUSE)
		fail_msg("wanted %s, got REFUSE %u: %s",
			 kvs_wire_type_name(type), m->refuse.err,
			 m->refuse.text);
	if (got == KVS_WIRE_ERROR)
		fail_msg("wanted %s, got ERROR %u: %s",
			 kvs_wire_type_name(type), m->error.err, m->error.text);
	if (got < 0)
		fail_msg("wanted %s: %s", kvs_wire_type_name(type),
			 strerror(-got));
	fail_msg("wanted %s, got %s", kvs_wire_type_name(type),
		 kvs_wire_type_name((unsigned int)got));
}

void ps_quiet(struct ps *p)
{
	static uint64_t seq;
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE };

	m.keepalive.seq = ++seq;
	assert_int_equal(ps_say(p, &m), 0);
	for (;;) {
		assert_int_equal(ps_read(p, p->ctl, &m), 0);
		if (m.type != KVS_WIRE_KEEPALIVE)
			fail_msg("%s was said to the sender",
				 kvs_wire_type_name(m.type));
		if (m.keepalive.reply && m.keepalive.seq == seq)
			return;
	}
}

int ps_say(struct ps *p, const struct kvs_msg *m)
{
	return ps_write_msg(p->ctl, m);
}

int ps_open(struct ps *p, uint64_t room, uint64_t tokens)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_OPEN,
		.open = { .room = room, .rank = p->rank, .tokens = tokens },
	};

	return ps_say(p, &m);
}

int ps_answer(struct ps *p, enum kvs_wire_type type, uint64_t room,
	      uint64_t generation)
{
	struct kvs_msg m = {
		.type = type,
		.abort = { .room = room,
			   .generation = generation,
			   .rank = p->rank,
			   .err = type == KVS_WIRE_ABORT_ACK ? 0 : EIO },
	};

	return ps_say(p, &m);
}

int ps_last(struct ps *p, const struct ps_room *r, uint64_t bytes)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = { .room = r->grant.room,
			  .generation = r->grant.generation,
			  .rank = p->rank,
			  .bytes = bytes },
	};

	return ps_say(p, &m);
}

/* ---- rooms ---------------------------------------------------------------- */

static void ps_cut(struct ps_room *r, uint32_t extent, uint16_t kind,
		   uint16_t layer, uint64_t run, uint32_t max)
{
	for (uint64_t off = 0; off < run; off += max) {
		uint64_t left = run - off;

		r->chunks = realloc(r->chunks,
				    (r->n_chunks + 1) * sizeof(r->chunks[0]));
		assert_non_null(r->chunks);
		r->chunks[r->n_chunks++] = (struct ps_chunk){
			.extent = extent,
			.kind = kind,
			.layer = layer,
			.off = off,
			.len = left < max ? (uint32_t)left : max,
		};
	}
	r->bytes += run;
}

static void ps_cut_all(struct ps *p, struct ps_room *r, uint32_t max)
{
	const struct kvs_msg_grant *g = &r->grant;
	uint64_t off, run;

	for (uint32_t e = 0; e < r->geo.n_extents; e++) {
		for (uint32_t b = 0; b < r->l.n_buffers; b++) {
			uint32_t layer = r->l.buffers[b].layer;

			if (layer < g->first_layer ||
			    layer - g->first_layer >= g->n_layers)
				continue;
			assert_int_equal(
				kvs_geometry_run(&r->geo, e, b, &off, &run), 0);
			ps_cut(r, e, r->l.buffers[b].kind, (uint16_t)layer, run,
			       max);
		}
	}
	ps_cut(r, r->geo.n_extents - 1, KVS_KIND_AUX, (uint16_t)p->rank,
	       g->aux_len, max);
}

void ps_granted(struct ps *p, struct ps_room *r, uint64_t seed, uint32_t max)
{
	struct kvs_msg m;

	memset(r, 0, sizeof(*r));
	ps_expect(p, KVS_WIRE_GRANT, &m);
	r->grant = m.grant;
	r->grant.keys = NULL;
	r->seed = seed;
	r->l = *p->layout;
	assert_int_equal(m.grant.rank, p->rank);
	assert_int_equal(m.grant.page_size, r->l.page_size);
	assert_int_equal(kvs_geometry_init(&r->geo, &r->l, m.grant.tokens,
					   m.grant.extent_tokens,
					   KVS_ARENA_SEGMENT_MAX, p->n_ranks,
					   m.grant.aux_len),
			 0);
	assert_int_equal(r->geo.n_extents, m.grant.n_extents);
	assert_null(kvs_send_remote_init(
		&r->remote, &r->l, p->caps & KVS_CAP_ONE_SIDED, &m.grant));
	ps_cut_all(p, r, max);
}

void ps_room_fini(struct ps_room *r)
{
	kvs_geometry_fini(&r->geo);
	kvs_send_remote_fini(&r->remote);
	free(r->chunks);
	memset(r, 0, sizeof(*r));
}

unsigned char ps_byte(uint64_t seed, uint32_t extent, uint16_t kind,
		      uint16_t layer, uint64_t off)
{
	uint64_t at = seed * 0x9e3779b97f4a7c15ULL + off / 8;

	at += (uint64_t)extent << 56 ^ (uint64_t)kind << 40 ^
	      (uint64_t)layer << 48;
	return (unsigned char)(kvs_mix64(at) >> (off % 8 * 8));
}

void ps_chunk_msg(const struct ps *p, const struct ps_room *r, uint32_t i,
		  struct kvs_msg *m)
{
	const struct ps_chunk *c = &r->chunks[i];

	assert_true(i < r->n_chunks);
	memset(m, 0, sizeof(*m));
	m->type = p->caps & KVS_CAP_ONE_SIDED ? KVS_WIRE_CHUNK_DONE
					      : KVS_WIRE_CHUNK;
	m->chunk = (struct kvs_msg_chunk){
		.room = r->grant.room,
		.generation = r->grant.generation,
		.rank = p->rank,
		.extent = c->extent,
		.kind = c->kind,
		.layer = c->layer,
		.offset = c->off,
		.len = c->len,
	};
}

unsigned char *ps_chunk_bytes(const struct ps *p, const struct ps_room *r,
			      uint32_t i, size_t *ret_len)
{
	const struct ps_chunk *c = &r->chunks[i];
	unsigned char *buf = malloc(KVS_DATA_FRAME + c->len);
	struct kvs_msg m;

	assert_non_null(buf);
	ps_chunk_msg(p, r, i, &m);
	assert_int_equal(kvs_wire_encode(&m, buf, KVS_DATA_FRAME),
			 KVS_DATA_FRAME);
	for (uint32_t k = 0; k < c->len; k++)
		buf[KVS_DATA_FRAME + k] = ps_byte(r->seed, c->extent, c->kind,
						  c->layer, c->off + k);
	*ret_len = KVS_DATA_FRAME + c->len;
	return buf;
}

long ps_send_part(struct ps *p, unsigned int d, const struct ps_room *r,
		  uint32_t i, size_t from, size_t to)
{
	unsigned char *buf;
	size_t len;
	long ret;

	buf = ps_chunk_bytes(p, r, i, &len);
	if (!to)
		to = len;
	assert_true(from <= to && to <= len);
	ret = ps_write(p->data[d], buf + from, to - from);
	free(buf);
	return ret;
}

uint64_t ps_send_all(struct ps *p, const struct ps_room *r)
{
	uint64_t sent = 0;

	for (uint32_t i = 0; i < r->n_chunks; i++) {
		assert_true(ps_send_part(p, i % p->n_data, r, i, 0, 0) > 0);
		sent += r->chunks[i].len;
	}
	return sent;
}

void ps_finish(struct ps *p, struct ps_room *r, uint32_t from)
{
	struct kvs_msg m;

	for (uint32_t i = from; i < r->n_chunks; i++)
		assert_true(ps_send_part(p, i % p->n_data, r, i, 0, 0) > 0);
	assert_int_equal(ps_last(p, r, r->bytes), 0);
	ps_expect(p, KVS_WIRE_COMPLETE, &m);
	assert_int_equal(m.complete.generation, r->grant.generation);
	ps_room_fini(r);
}
