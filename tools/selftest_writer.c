/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/selftest_writer.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "lib/err.h"
#include "lib/random.h"
#include "pinned/arena.h"
#include "pipeline/auth.h"
#include "tools/marks.h"

/* ---- sockets ---- */

static int fail(struct kvs_writer *w, int err, const char *what)
{
	if (err == -EAGAIN || err == -EWOULDBLOCK)
		err = -ETIMEDOUT;
	snprintf(w->err, sizeof(w->err), "rank %u: %s: %s", w->rank, what,
		 kvs_err_name(err));
	return err;
}

static int dial(struct kvs_writer *w, int *ret)
{
	const struct timeval tv = { .tv_sec = w->seconds };
	int fd, on = 1, err = -ENOENT;

	for (unsigned int i = 0; i < w->addr.n; i++) {
		const struct sockaddr *sa =
			(const struct sockaddr *)&w->addr.a[i].ss;

		fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return fail(w, -errno, "socket");
		if (!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) &&
		    !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) &&
		    !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on,
				sizeof(on)) &&
		    !connect(fd, sa, w->addr.a[i].len)) {
			*ret = fd;
			return 0;
		}
		err = -errno;
		close(fd);
	}
	return fail(w, err, "cannot connect");
}

static int write_all(struct kvs_writer *w, int fd, const void *buf, size_t len)
{
	const unsigned char *p = buf;

	while (len) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(w, -errno, "send");
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int read_all(struct kvs_writer *w, int fd, void *buf, size_t len)
{
	unsigned char *p = buf;

	while (len) {
		ssize_t n = recv(fd, p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail(w, n ? -errno : -ECONNRESET,
				    "no answer of the daemon");
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int say(struct kvs_writer *w, int fd, const struct kvs_msg *m)
{
	_Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	int n = kvs_wire_encode(m, buf, sizeof(buf));

	return n < 0 ? fail(w, n, "message") : write_all(w, fd, buf, (size_t)n);
}

static int hear(struct kvs_writer *w, int fd, struct kvs_msg *m)
{
	_Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	struct kvs_frame *f = (struct kvs_frame *)buf;
	const char *reason;
	uint32_t len;
	int ret;

	ret = read_all(w, fd, buf, sizeof(*f));
	if (ret)
		return ret;
	len = kvs_get32(f->len);
	if (len < sizeof(*f) || len > sizeof(buf))
		return fail(w, -EPROTO, "what the daemon sent");
	ret = read_all(w, fd, buf + sizeof(*f), len - sizeof(*f));
	if (ret)
		return ret;
	if (kvs_wire_decode(f, len, w->scratch, m, &reason))
		return fail(w, -EPROTO, "what the daemon sent");
	if (m->type != KVS_WIRE_ERROR)
		return 0;
	snprintf(w->err, sizeof(w->err), "rank %u: the daemon refuses: %s",
		 w->rank, m->error.text);
	return -ECONNREFUSED;
}

/* The next message that is not a sign of life, which is answered. */
static int hear_news(struct kvs_writer *w, int fd, struct kvs_msg *m)
{
	int ret;

	for (;;) {
		ret = hear(w, fd, m);
		if (ret || m->type != KVS_WIRE_KEEPALIVE || m->keepalive.reply)
			return ret;
		m->keepalive.reply = 1;
		ret = say(w, fd, m);
		if (ret)
			return ret;
	}
}

/* ---- handshakes ---- */

/* Show that we know the key; @m becomes what comes after the proof. */
static int answer(struct kvs_writer *w, int fd, struct kvs_auth_sender *a,
		  struct kvs_msg *m)
{
	const char *why = "";
	struct kvs_msg out;
	int ret;

	ret = kvs_auth_sender_answer(a, &m->challenge, &out, &why);
	if (ret)
		return fail(w, ret, why);
	ret = say(w, fd, &out);
	if (!ret)
		ret = hear_news(w, fd, m);
	if (ret)
		return ret;
	if (m->type != KVS_WIRE_PROOF)
		return fail(w, -EPROTO, "answer to RESPONSE");
	ret = kvs_auth_sender_proof(a, &m->proof, &why);
	return ret ? fail(w, ret, why) : hear_news(w, fd, m);
}

static int hello(struct kvs_writer *w, int fd, unsigned int role)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_HELLO,
		.hello = {
			.version_min = KVS_WIRE_VERSION_MIN,
			.version_max = KVS_WIRE_VERSION_MAX,
			.role = (uint16_t)role,
			.caps = KVS_CAP_DRAIN_ACK | KVS_CAP_GENERATION,
			.instance = w->run,
			.rank = w->rank,
			.n_ranks = w->n_ranks,
		},
	};
	struct kvs_auth_keys keys = { 0 };
	struct kvs_auth_sender a;
	const char *why = "";
	int ret = 0;

	if (role == KVS_ROLE_DATA) {
		m.hello.session = w->session;
		m.hello.worker = w->worker;
	}
	snprintf(m.hello.name, sizeof(m.hello.name), "%s", w->peer);
	if (w->key_file)
		ret = kvs_auth_keys_load(w->key_file, &keys, w->err,
					 sizeof(w->err));
	if (!ret)
		ret = kvs_auth_sender_init(&a, &keys, &m.hello);
	kvs_auth_keys_clear(&keys);
	if (!ret)
		ret = say(w, fd, &m);
	if (!ret)
		ret = hear_news(w, fd, &m);
	if (!ret && m.type == KVS_WIRE_CHALLENGE)
		ret = answer(w, fd, &a, &m);
	if (!ret && m.type == KVS_WIRE_HELLO &&
	    kvs_auth_sender_check(&a, &m.hello, &why))
		ret = fail(w, -EACCES, why);
	kvs_auth_sender_fini(&a);
	if (ret)
		return ret;
	if (m.type != KVS_WIRE_HELLO)
		return fail(w, -EPROTO, "answer to HELLO");
	if (role == KVS_ROLE_CONTROL)
		w->session = m.hello.session;
	return 0;
}

int kvs_writer_open(struct kvs_writer *w, const char *addr)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAYOUT };
	int ret;

	w->control = -1;
	w->worker = UINT32_MAX;
	for (unsigned int i = 0; i < KVS_WRITER_CONNS; i++)
		w->data[i] = -1;
	w->scratch = malloc(sizeof(*w->scratch));
	if (!w->scratch)
		return fail(w, -ENOMEM, "memory");
	ret = kvs_addr_parse(addr, false, &w->addr, w->err, sizeof(w->err));
	if (!ret)
		ret = dial(w, &w->control);
	if (!ret)
		ret = hello(w, w->control, KVS_ROLE_CONTROL);
	if (ret)
		return ret;
	m.layout.l = *w->layout;
	ret = say(w, w->control, &m);
	if (!ret)
		ret = hear_news(w, w->control, &m);
	if (!ret && m.type != KVS_WIRE_LAYOUT)
		ret = fail(w, -EPROTO, "answer to LAYOUT");
	return ret;
}

/* In order: what the daemon said last is read, so that its end of the
 * connection does not find a reset. */
static void hang_up(int *fd)
{
	char sink[4096];

	if (*fd < 0)
		return;
	if (!shutdown(*fd, SHUT_WR))
		while (recv(*fd, sink, sizeof(sink), 0) > 0)
			;
	close(*fd);
	*fd = -1;
}

static void data_close(struct kvs_writer *w)
{
	for (unsigned int i = 0; i < KVS_WRITER_CONNS; i++)
		hang_up(&w->data[i]);
}

void kvs_writer_close(struct kvs_writer *w)
{
	data_close(w);
	hang_up(&w->control);
	free(w->scratch);
	w->scratch = NULL;
}

static int data_open(struct kvs_writer *w, uint32_t worker)
{
	int ret = 0;

	if (w->worker == worker)
		return 0;
	data_close(w);
	w->worker = worker;
	for (unsigned int i = 0; !ret && i < KVS_WRITER_CONNS; i++) {
		ret = dial(w, &w->data[i]);
		if (!ret)
			ret = hello(w, w->data[i], KVS_ROLE_DATA);
	}
	return ret;
}

/* ---- rooms ---- */

/* Answers about other rooms are late ones, of rooms that are over. */
static int await_grant(struct kvs_writer *w, uint64_t id,
		       struct kvs_msg_grant *ret)
{
	struct kvs_msg m;
	int r;

	for (;;) {
		r = hear_news(w, w->control, &m);
		if (r)
			return r;
		if (m.type == KVS_WIRE_REFUSE && m.refuse.room == id) {
			snprintf(w->err, sizeof(w->err),
				 "rank %u: the daemon refuses the room: %s",
				 w->rank, m.refuse.text);
			return -ECONNREFUSED;
		}
		if (m.type == KVS_WIRE_ABORT && m.abort.room == id) {
			snprintf(w->err, sizeof(w->err),
				 "rank %u: the room was aborted: %s", w->rank,
				 m.abort.text);
			return -ECONNREFUSED;
		}
		if (m.type == KVS_WIRE_GRANT && m.grant.room == id)
			break;
	}
	*ret = m.grant;
	ret->keys = NULL;
	ret->places = NULL;
	return 0;
}

int kvs_writer_room(struct kvs_writer *w, uint64_t id,
		    const unsigned char nonce[16], uint32_t number,
		    uint64_t tokens, struct kvs_writer_room *ret)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_OPEN,
		.open = { .room = id, .rank = w->rank, .tokens = tokens },
	};
	int r;

	*ret = (struct kvs_writer_room){ .id = id, .number = number };
	memcpy(m.open.nonce, nonce, sizeof(m.open.nonce));
	r = say(w, w->control, &m);
	if (!r)
		r = await_grant(w, id, &ret->grant);
	if (!r)
		r = data_open(w, ret->grant.worker);
	if (r)
		return r;
	r = kvs_geometry_init(&ret->geo, w->layout, tokens,
			      ret->grant.extent_tokens, KVS_ARENA_SEGMENT_MAX,
			      w->n_ranks, 0);
	if (r || ret->geo.n_extents != ret->grant.n_extents)
		return fail(w, r ? r : -EPROTO, "grant");
	return 0;
}

void kvs_writer_room_fini(struct kvs_writer_room *r)
{
	kvs_geometry_fini(&r->geo);
	free(r->buf);
	*r = (struct kvs_writer_room){ 0 };
}

/* Place of the run's byte @off in the room, layer by layer. */
static uint32_t place_of(const struct kvs_writer *w,
			 const struct kvs_writer_room *r, uint64_t off)
{
	uint64_t item = w->layout->buffers[w->rank].item_len;
	uint64_t at = (uint64_t)w->rank * r->geo.pages * item;

	at += (uint64_t)r->extent * r->geo.extent_pages * item + off;
	return (uint32_t)(at / KVS_MARK);
}

/* Frame and payload of the next chunk; NULL with 0: none is left. */
static int cut(struct kvs_writer *w, struct kvs_writer_room *r)
{
	uint64_t start, run, len = KVS_WRITER_PIECE;
	struct kvs_msg m = { .type = KVS_WIRE_CHUNK };

	for (;;) {
		if (r->extent == r->geo.n_extents)
			return 0;
		if (kvs_geometry_run(&r->geo, r->extent, w->rank, &start, &run))
			return fail(w, -EPROTO, "grant");
		if (r->off < run)
			break;
		r->extent++;
		r->off = 0;
	}
	if (len > run - r->off)
		len = run - r->off;
	m.chunk = (struct kvs_msg_chunk){
		.room = r->id,
		.generation = r->grant.generation,
		.rank = w->rank,
		.extent = r->extent,
		.kind = w->layout->buffers[w->rank].kind,
		.layer = w->layout->buffers[w->rank].layer,
		.offset = r->off,
		.len = (uint32_t)len,
	};
	r->buf_len = KVS_DATA_FRAME + len;
	r->buf_done = 0;
	r->buf = malloc(r->buf_len);
	if (!r->buf)
		return fail(w, -ENOMEM, "memory");
	if (kvs_wire_encode(&m, r->buf, KVS_DATA_FRAME) != KVS_DATA_FRAME)
		return fail(w, -EPROTO, "chunk");
	kvs_marks_fill(r->buf + KVS_DATA_FRAME, len, w->run, r->number,
		       place_of(w, r, r->off));
	r->off += len;
	return 0;
}

int kvs_writer_go_on(struct kvs_writer *w, struct kvs_writer_room *r,
		     unsigned int part)
{
	size_t to = r->buf_len * part / 100;
	int ret;

	if (!r->buf || to <= r->buf_done)
		return 0;
	ret = write_all(w, w->data[r->conn], r->buf + r->buf_done,
			to - r->buf_done);
	if (ret)
		return ret;
	r->buf_done = to;
	if (to < r->buf_len)
		return 0;
	r->sent += r->buf_len - KVS_DATA_FRAME;
	free(r->buf);
	r->buf = NULL;
	return 0;
}

int kvs_writer_chunk(struct kvs_writer *w, struct kvs_writer_room *r,
		     unsigned int conn, unsigned int part)
{
	int ret = cut(w, r);

	if (ret || !r->buf)
		return ret;
	r->conn = conn;
	ret = kvs_writer_go_on(w, r, part);
	return ret ? ret : 1;
}

int kvs_writer_finish(struct kvs_writer *w, struct kvs_writer_room *r,
		      unsigned int conn)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = { .room = r->id,
			  .generation = r->grant.generation,
			  .rank = w->rank },
	};
	int ret;

	do
		ret = kvs_writer_chunk(w, r, conn, 100);
	while (ret > 0);
	if (ret)
		return ret;
	m.last.bytes = r->sent;
	return say(w, w->control, &m);
}

int kvs_writer_sync(struct kvs_writer *w, unsigned int conn)
{
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE,
			     .keepalive = { .seq = 1 } };
	int ret;

	if (w->data[conn] < 0)
		return 0;
	ret = say(w, w->data[conn], &m);
	while (!ret) {
		ret = hear_news(w, w->data[conn], &m);
		if (!ret && m.type == KVS_WIRE_KEEPALIVE)
			return 0;
	}
	return ret;
}

int kvs_writer_acknowledge(struct kvs_writer *w, struct kvs_writer_room *r)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_ABORT_ACK,
		.abort = { .room = r->id,
			   .generation = r->grant.generation,
			   .rank = w->rank },
	};

	return say(w, w->control, &m);
}
