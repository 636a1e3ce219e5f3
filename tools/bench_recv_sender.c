/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending process of kvstage-bench recv: on each connection a thread that
 * takes the next chunk, encodes its frame and calls sendmsg() with it and the
 * payload, until all is taken. Which receiver is at the other end makes no
 * difference to the loop.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pipeline/wire.h"
#include "tools/bench_recv.h"
#include "tools/pattern.h"

#define SOURCE_MIN (64ULL << 20) /* bytes: more than a cache keeps */
#define ROOMS_MAX 16u
#define HELLO_BYTES 128 /* the node's answer on each connection */

struct sender_room {
	uint64_t room;
	uint64_t generation;
	uint32_t extent_chunks;
	uint32_t next; /* chunk to be taken */
	uint32_t sent;
	struct kvs_digest digest; /* of the chunks sent */
};

struct sender {
	int orders;
	struct kvs_recv_order start;
	unsigned char *source;
	uint64_t source_len;
	struct kvs_digest *kept; /* of each chunk of the source, or NULL */

	pthread_mutex_t lock;
	pthread_cond_t more; /* a room came, or stop */
	struct sender_room rooms[ROOMS_MAX]; /* in the order of their grants */
	uint32_t n_rooms;
	uint64_t made; /* rooms made up, endless only */
	bool stop;

	unsigned int n;
	struct sender_conn {
		struct sender *s;
		pthread_t thread;
		int fd;
		bool started;
	} conn[KVS_RECV_CONNECTIONS_MAX];
};

/* ---- what both processes use ---- */

int kvs_recv_order(int orders, const struct kvs_recv_order *o)
{
	ssize_t n;

	do {
		n = send(orders, o, sizeof(*o), MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int kvs_recv_await(int orders, int timeout_ms, struct kvs_recv_order *ret)
{
	struct pollfd p = { .fd = orders, .events = POLLIN };
	ssize_t n;
	int r;

	do {
		r = poll(&p, 1, timeout_ms);
	} while (r < 0 && errno == EINTR);
	if (r <= 0)
		return r ? -errno : -ETIMEDOUT;
	n = recv(orders, ret, sizeof(*ret), 0);
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	if (n != sizeof(*ret))
		return -EPIPE;
	return ret->op == KVS_RECV_BROKEN ? -ret->err : 0;
}

void kvs_recv_tune(int fd)
{
	int on = 1;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* ---- chunks ---- */

static bool have_chunk(const struct sender *s, uint32_t *ret_room)
{
	for (uint32_t i = 0; i < s->n_rooms; i++) {
		if (s->rooms[i].next == s->start.chunks)
			continue;
		*ret_room = i;
		return true;
	}
	return false;
}

static void new_digest(const struct sender *s, struct kvs_digest *ret)
{
	kvs_digest_init(ret, s->start.digest_kind,
			s->start.chunks * s->start.size);
}

static void new_room(struct sender *s, uint64_t room, uint64_t generation,
		     uint32_t extent_chunks)
{
	struct sender_room *r = &s->rooms[s->n_rooms++];

	*r = (struct sender_room){
		.room = room,
		.generation = generation,
		.extent_chunks = extent_chunks,
	};
	new_digest(s, &r->digest);
}

/* The next chunk in order of rooms, and where it lies in the stream of its
 * room: one rank with one buffer, so chunk after chunk. Return: false = stop.
 */
static bool take_chunk(struct sender *s, struct kvs_msg *ret, uint64_t *ret_at)
{
	struct sender_room *r;
	uint32_t i = 0;

	pthread_mutex_lock(&s->lock);
	while (!s->stop && !have_chunk(s, &i)) {
		if (s->start.endless && s->n_rooms < ROOMS_MAX) {
			s->made++;
			new_room(s, s->made, s->made, s->start.extent_chunks);
		} else {
			pthread_cond_wait(&s->more, &s->lock);
		}
	}
	if (s->stop) {
		pthread_mutex_unlock(&s->lock);
		return false;
	}
	r = &s->rooms[i];
	memset(ret, 0, sizeof(*ret));
	ret->type = KVS_WIRE_CHUNK;
	ret->chunk.room = r->room;
	ret->chunk.generation = r->generation;
	ret->chunk.kind = KVS_BUFFER_KV;
	ret->chunk.extent = r->next / r->extent_chunks;
	ret->chunk.offset = r->next % r->extent_chunks * s->start.size;
	ret->chunk.len = (uint32_t)s->start.size;
	*ret_at = r->next * s->start.size;
	r->next++;
	pthread_mutex_unlock(&s->lock);
	return true;
}

/* Counts it, and its checksum to that of its room; the last one of a room is
 * told. */
static int chunk_sent(struct sender *s, const struct kvs_msg *m,
		      const struct kvs_digest *d)
{
	struct kvs_recv_order o = {
		.op = KVS_RECV_LAST,
		.room = m->chunk.room,
		.generation = m->chunk.generation,
	};
	bool last = false;
	int r = 0;
	uint32_t i;

	pthread_mutex_lock(&s->lock);
	for (i = 0; i < s->n_rooms; i++)
		if (s->rooms[i].generation == m->chunk.generation)
			break;
	if (i < s->n_rooms)
		r = kvs_digest_combine(&s->rooms[i].digest, d);
	if (i < s->n_rooms && ++s->rooms[i].sent == s->start.chunks) {
		last = true;
		o.digest = kvs_digest_value(&s->rooms[i].digest);
		s->n_rooms--;
		memmove(&s->rooms[i], &s->rooms[i + 1],
			(s->n_rooms - i) * sizeof(s->rooms[0]));
		pthread_cond_signal(&s->more);
	}
	pthread_mutex_unlock(&s->lock);
	if (!r && last && !s->start.endless)
		r = kvs_recv_order(s->orders, &o);
	return r;
}

static int send_whole(int fd, void *frame, void *payload, size_t len)
{
	struct iovec iov[2] = { { frame, KVS_DATA_FRAME }, { payload, len } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;

	while (m.msg_iovlen) {
		n = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		while (m.msg_iovlen && (size_t)n >= m.msg_iov->iov_len) {
			n -= (ssize_t)m.msg_iov->iov_len;
			m.msg_iov++;
			m.msg_iovlen--;
		}
		if (m.msg_iovlen) {
			m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + n;
			m.msg_iov->iov_len -= (size_t)n;
		}
	}
	return 0;
}

/* Of the chunk at @at of the source, which goes to @stream_at of its room. */
static int chunk_digest(const struct sender *s, uint64_t at, uint64_t stream_at,
			struct kvs_digest *ret)
{
	new_digest(s, ret);
	if (!s->kept)
		return kvs_digest_add(ret, stream_at, s->source + at,
				      s->start.size);
	/* One piece: its sum is the same wherever it lies. */
	ret->bytes = s->start.size;
	ret->run = s->kept[at / s->start.size].run;
	ret->run_end = stream_at + s->start.size;
	return 0;
}

static int send_chunks(struct sender_conn *c)
{
	_Alignas(8) unsigned char frame[HELLO_BYTES];
	struct sender *s = c->s;
	uint64_t at = 0, stream_at;
	struct kvs_digest d;
	struct kvs_msg m;
	int r;

	/* A node answers when it has taken the connection. */
	if (!s->start.endless &&
	    recv(c->fd, frame, HELLO_BYTES, MSG_WAITALL) != HELLO_BYTES)
		return -ECONNRESET;
	while (take_chunk(s, &m, &stream_at)) {
		r = kvs_wire_encode(&m, frame, sizeof(frame));
		if (r != KVS_DATA_FRAME)
			return r < 0 ? r : -EPROTO;
		if (at + s->start.size > s->source_len)
			at = 0;
		r = chunk_digest(s, at, stream_at, &d);
		if (!r)
			r = send_whole(c->fd, frame, s->source + at,
				       s->start.size);
		if (!r)
			r = chunk_sent(s, &m, &d);
		if (r)
			return r;
		at += s->start.size;
	}
	return 0;
}

static void *conn_main(void *arg)
{
	struct kvs_recv_order o = { .op = KVS_RECV_BROKEN };
	struct sender_conn *c = arg;
	int r = send_chunks(c);

	if (r) {
		o.err = -r;
		(void)kvs_recv_order(c->s->orders, &o);
	}
	return NULL;
}

/* ---- one measurement ---- */

static int make_source(struct sender *s)
{
	uint64_t len = s->start.size > SOURCE_MIN ? s->start.size : SOURCE_MIN;
	void *p;

	if (s->source_len >= len)
		return 0;
	if (s->source)
		munmap(s->source, s->source_len);
	s->source = NULL;
	s->source_len = 0;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		 -1, 0);
	if (p == MAP_FAILED)
		return -errno;
	/* Pages never written would all be the one page of zeros; a checksum
	 * would not see equal ones in each other's place. */
	kvs_pattern_fill(p, len, kvs_pattern_seed(1, 1, 0, 0), 0);
	s->source = p;
	s->source_len = len;
	return 0;
}

static int keep_digests(struct sender *s)
{
	uint64_t n = s->source_len / s->start.size;
	struct kvs_digest *v = calloc(n, sizeof(*v));
	int r = v ? 0 : -ENOMEM;

	for (uint64_t i = 0; i < n && !r; i++) {
		kvs_digest_init(&v[i], s->start.digest_kind, s->start.size);
		r = kvs_digest_add(&v[i], 0, s->source + i * s->start.size,
				   s->start.size);
	}
	if (r)
		free(v);
	else
		s->kept = v;
	return r;
}

static int connect_one(struct sender_conn *c, uint16_t port)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int r;

	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		return -errno;
	kvs_recv_tune(c->fd);
	if (!connect(c->fd, (struct sockaddr *)&sin, sizeof(sin)))
		return 0;
	r = -errno;
	close(c->fd);
	return r;
}

static int begin(struct sender *s)
{
	struct sender_conn *c;
	int r = make_source(s);

	if (!r && s->start.keep_digests)
		r = keep_digests(s);
	s->n_rooms = 0;
	s->made = 0;
	s->stop = false;
	for (s->n = 0; !r && s->n < s->start.connections;) {
		c = &s->conn[s->n];
		c->s = s;
		c->started = false;
		r = connect_one(c, s->start.port);
		if (!r)
			s->n++;
	}
	for (unsigned int i = 0; !r && i < s->n; i++) {
		r = -pthread_create(&s->conn[i].thread, NULL, conn_main,
				    &s->conn[i]);
		s->conn[i].started = !r;
	}
	return r;
}

static void end(struct sender *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
	for (unsigned int i = 0; i < s->n; i++) {
		if (s->conn[i].started)
			pthread_join(s->conn[i].thread, NULL);
		close(s->conn[i].fd);
	}
	s->n = 0;
	free(s->kept);
	s->kept = NULL;
}

static void add_room(struct sender *s, const struct kvs_recv_order *o)
{
	pthread_mutex_lock(&s->lock);
	if (s->n_rooms < ROOMS_MAX)
		new_room(s, o->room, o->generation, o->extent_chunks);
	pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
}

int kvs_recv_sender(int orders)
{
	struct kvs_recv_order o = { .op = KVS_RECV_STOP };
	struct sender *s = calloc(1, sizeof(*s));

	if (!s)
		return EXIT_FAILURE;
	s->orders = orders;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->more, NULL);
	while (!kvs_recv_await(orders, -1, &o)) {
		if (o.op == KVS_RECV_GRANT) {
			add_room(s, &o);
			continue;
		}
		if (o.op == KVS_RECV_STOP) {
			end(s);
			o.op = KVS_RECV_STOPPED;
		} else if (o.verbs) {
			o.err = -kvs_recv_rank(orders, &o);
			o.op = o.err ? KVS_RECV_BROKEN : KVS_RECV_STOPPED;
		} else {
			s->start = o;
			o.err = -begin(s);
			o.op = KVS_RECV_BROKEN;
			if (!o.err)
				continue;
		}
		if (kvs_recv_order(orders, &o))
			break;
	}
	end(s);
	if (s->source)
		munmap(s->source, s->source_len);
	pthread_cond_destroy(&s->more);
	pthread_mutex_destroy(&s->lock);
	free(s);
	return EXIT_SUCCESS;
}
