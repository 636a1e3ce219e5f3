/* SPDX-License-Identifier: Apache-2.0 */
/* A writer's process of kvstage-bench abort. See bench_abort.h. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kvstage/sender.h"
#include "tools/bench_abort.h"
#include "tools/pattern.h"

#define CONNECT_TIMEOUT 10000000000ULL /* ns */
#define SEND_BUFFER 131072 /* bytes; a few segments of loopback */
#define NAP 1000000 /* ns */
#define NAPS 1000
#define FDS 64 /* of a writer, which has a handful */

struct writer {
	int fd;
	bool stalls;
	struct kvs_sender *s;
	void *source[KVS_ABORT_BUFFERS];
};

/* A room is used by the thread that queues its pages and by its done(): the
 * second to be through with it closes it. */
struct sent_room {
	const struct writer *w;
	atomic_int through;
};

/* ---- what all processes use ---- */

void kvs_abort_layout_init(struct kvs_abort_layout *ret)
{
	memset(ret, 0, sizeof(*ret));
	for (unsigned int b = 0; b < KVS_ABORT_BUFFERS; b++) {
		ret->buffers[b].kind = KVS_BUFFER_KV;
		ret->buffers[b].layer = (uint16_t)b;
		ret->buffers[b].item_len = KVS_ABORT_ITEM;
	}
	ret->l.size = sizeof(ret->l);
	ret->l.page_size = KVS_ABORT_PAGE_TOKENS;
	ret->l.dtype = KVS_DTYPE_BF16;
	ret->l.n_buffers = KVS_ABORT_BUFFERS;
	ret->l.buffers = ret->buffers;
}

uint64_t kvs_abort_seed(unsigned int writer, unsigned int b)
{
	return kvs_pattern_seed(writer, 1, KVS_BUFFER_KV, b);
}

void kvs_abort_peer(unsigned int number, char buf[KVS_ABORT_PEER_MAX])
{
	snprintf(buf, KVS_ABORT_PEER_MAX, "writer-%u", number);
}

int kvs_abort_say(int fd, const void *p, size_t len)
{
	ssize_t n;

	do {
		n = send(fd, p, len, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int kvs_abort_hear(int fd, int timeout_ms, void *p, size_t len)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	ssize_t n;
	int r;

	do {
		r = poll(&pfd, 1, timeout_ms);
	} while (r < 0 && errno == EINTR);
	if (r <= 0)
		return r ? -errno : -ETIMEDOUT;
	n = recv(fd, p, len, 0);
	if (n < 0 && errno != ECONNRESET)
		return -errno;
	return n == (ssize_t)len ? 0 : -EPIPE;
}

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

static void through(struct kvs_send_room *r, struct sent_room *x)
{
	if (!atomic_fetch_add(&x->through, 1))
		return;
	kvs_send_close(r);
	free(x);
}

/* After the pages_free() of all, so that nothing is queued any more. */
static void on_done(struct kvs_send_room *r, int status, const char *text)
{
	struct sent_room *x = kvs_send_user(r);
	struct kvs_abort_order o = {
		.op = KVS_ABORT_DONE,
		.room = kvs_send_room_id(r),
		.status = status,
	};

	snprintf(o.why, sizeof(o.why), "%s", text ? text : "");
	(void)kvs_abort_say(x->w->fd, &o, sizeof(o));
	through(r, x);
}

static const struct kvs_send_ops ops = {
	.granted = on_granted,
	.pages_free = on_pages_free,
	.done = on_done,
};

/* ---- this thread ---- */

/* Smaller than a chunk: whoever sends one waits within it for the receiver, so
 * that it is there that the process stops. Return: sockets. */
static unsigned int narrow(void)
{
	unsigned int n = 0;

	for (int fd = 0; fd < FDS; fd++) {
		int v = 0, size = SEND_BUFFER;
		socklen_t len = sizeof(v);

		if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &v, &len) &&
		    v == AF_INET &&
		    !setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)))
			n++;
	}
	return n;
}

/* The library connects them now. Where it does not, stops are tried again. */
static void narrow_all(void)
{
	const struct timespec nap = { .tv_nsec = NAP };

	for (int i = 0; i < NAPS; i++) {
		if (narrow() > KVS_ABORT_CONNECTIONS)
			break;
		(void)nanosleep(&nap, NULL);
	}
}

static int queue_pages(const struct writer *w, struct kvs_send_room *r,
		       const struct kvs_abort_order *o)
{
	uint32_t first = 0, n = (uint32_t)(o->tokens / KVS_ABORT_PAGE_TOKENS);
	uint32_t *pages = calloc(n, sizeof(*pages));
	int err = 0;

	if (!pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		pages[i] = i % KVS_ABORT_SOURCE_PAGES;
	if (!o->complete)
		n--;
	if (w->stalls) {
		/* connections come with the first page */
		first = 1;
		err = kvs_send_pages(r, 0, pages, 1, NULL);
		narrow_all();
	}
	if (!err)
		err = kvs_send_pages(r, first, pages + first, n - first, NULL);
	if (!err && o->complete)
		err = kvs_send_finish(r);
	free(pages);
	/* It has ended already: its done() says so. */
	return err == -ECANCELED ? 0 : err;
}

static int send_room(struct writer *w, const struct kvs_abort_order *o)
{
	struct sent_room *x = calloc(1, sizeof(*x));
	struct kvs_send_room *r;
	int err;

	if (!x)
		return -ENOMEM;
	x->w = w;
	atomic_init(&x->through, 0);
	err = kvs_send_open(w->s, o->room, NULL, o->tokens, x, &r);
	if (err) {
		free(x);
		return err;
	}
	err = queue_pages(w, r, o);
	through(r, x);
	return err;
}

static int make_source(struct writer *w, unsigned int number)
{
	const size_t len = KVS_ABORT_SOURCE_PAGES * KVS_ABORT_ITEM;

	for (unsigned int b = 0; b < KVS_ABORT_BUFFERS; b++) {
		w->source[b] = malloc(len);
		if (!w->source[b])
			return -ENOMEM;
		kvs_pattern_fill(w->source[b], len, kvs_abort_seed(number, b),
				 0);
	}
	return 0;
}

static int up(struct writer *w, unsigned int port, unsigned int number,
	      const char *engine, char *why)
{
	char daemon[32], peer[KVS_ABORT_PEER_MAX];
	struct kvs_abort_layout layout;
	struct kvs_sender_opts o = {
		.size = sizeof(o),
		.daemon = daemon,
		.peer = peer,
		.n_ranks = 1,
		.layout = &layout.l,
		.buffers = w->source,
		.data_connections = KVS_ABORT_CONNECTIONS,
		.connect_timeout = CONNECT_TIMEOUT,
		.engine = engine,
		.ops = &ops,
	};
	int r = make_source(w, number);

	if (r)
		return r;
	snprintf(daemon, sizeof(daemon), "127.0.0.1:%u", port);
	kvs_abort_peer(number, peer);
	kvs_abort_layout_init(&layout);
	return kvs_sender_create(&o, &w->s, why, KVS_ABORT_WHY_MAX);
}

int kvs_abort_writer(int fd, unsigned int port, unsigned int number,
		     const char *engine, bool stalls)
{
	struct kvs_abort_order o = { .op = KVS_ABORT_UP };
	struct writer w = { .fd = fd, .stalls = stalls };
	int r = up(&w, port, number, engine, o.why);

	if (!r)
		r = kvs_abort_say(fd, &o, sizeof(o));
	while (!r && !kvs_abort_hear(fd, -1, &o, sizeof(o)) &&
	       o.op != KVS_ABORT_QUIT) {
		r = send_room(&w, &o);
		o.why[0] = '\0';
	}
	kvs_sender_destroy(w.s);
	for (unsigned int b = 0; b < KVS_ABORT_BUFFERS; b++)
		free(w.source[b]);
	if (!r)
		return EXIT_SUCCESS;
	o.op = KVS_ABORT_BROKEN;
	o.status = r;
	if (!o.why[0])
		snprintf(o.why, sizeof(o.why), "%s", strerror(-r));
	(void)kvs_abort_say(fd, &o, sizeof(o));
	return EXIT_FAILURE;
}
