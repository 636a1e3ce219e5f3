/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: tcp_internal
 *
 * Theory of operation. tcp.c (event loop, listeners, connecting, watches) and
 * tcp_conn.c (framing, send queue, closing) are one state machine over an
 * *engine*, which is all that knows how bytes move: tcp_sock.c does a
 * recvmsg() when epoll says so, tcp_uring.c has the receive in the kernel and
 * hears of it later. Both report through kvs_tcp_rx_done() and
 * kvs_tcp_tx_done().
 *
 * Nothing happens from inside a call of the upper layer: it puts the
 * connection on the transport's pending list, and kvs_tcp_run_pending(),
 * called from poll only, acts on it. So a callback may close or stop anything,
 * its own connection included.
 *
 * What the engine or the kernel still refers to is counted in conn->held.
 * A closing connection owes payload_done() until held is 0: a cancelled
 * receive may still complete with bytes, and only that completion ends its
 * right to write. Objects an epoll batch may still name are freed after it.
 *
 *   CONNECTING -> OPEN -> FLUSHING -> LINGERING -> DYING -> freed
 *        \__________\_________\_____________________^
 */
#ifndef KVS_RDMA_TCP_INTERNAL_H
#define KVS_RDMA_TCP_INTERNAL_H

#include <sys/socket.h>
#include <sys/types.h>

#include "rdma/transport_internal.h"

#define KVS_TCP_SCRATCH (256u << 10) /* bytes; dropped payload lands here */
#define KVS_TCP_FLUSH_NS KVS_NSEC_PER_SEC
#define KVS_TCP_SMALL 256u /* bytes of frame kept inside the conn */

struct kvs_tcp;
struct kvs_tcp_conn;

/* A descriptor watched for readiness. Embedded in its owner. */
struct kvs_tcp_poll {
	struct kvs_list pend; /* engine's; or t->gone */
	int fd;
	short events; /* 0: paused */
	short armed; /* uring: events of the poll in the kernel */
	bool busy; /* uring: a poll is in the kernel */
	bool added; /* sock: known to epoll */
	bool dead; /* deleted; no call back any more */
	bool stale; /* uring: the armed events are to be replaced */
	void (*ready)(struct kvs_tcp_poll *p, short revents);
	/* after poll_del(): the engine does not refer to it any more */
	void (*gone)(struct kvs_tcp_poll *p);
};

/* uring: one operation of a connection. */
struct kvs_tcp_op {
	bool busy; /* in the kernel: what it points at must stay */
	size_t want; /* bytes asked for by the upper half */
};

enum kvs_tcp_state {
	KVS_TCP_CONNECTING, /* socket (if any); the kernel moves it on */
	KVS_TCP_OPEN, /* socket; ended by either side */
	KVS_TCP_FLUSHING, /* closing: queue goes out, input dropped; 1 s */
	KVS_TCP_LINGERING, /* FIN sent, input dropped until EOF; same 1 s */
	KVS_TCP_DYING, /* waits for held == 0 */
};

enum kvs_tcp_rx_state {
	KVS_TCP_RX_FRAME, /* into buf */
	KVS_TCP_RX_PAYLOAD, /* into rx.addr */
	KVS_TCP_RX_DROP, /* rest of a payload, into scratch */
	KVS_TCP_RX_SINK, /* closing: everything, into scratch */
};

enum kvs_tcp_pend {
	KVS_TCP_PEND_RX = 1, /* post a receive */
	KVS_TCP_PEND_TX = 2, /* post a send */
	KVS_TCP_PEND_STOP = 4, /* take the receive back */
};

struct kvs_tcp_conn {
	struct kvs_conn c; /* first */
	struct kvs_list node; /* t->conns */
	struct kvs_list pend; /* t->pend */
	struct kvs_list flush; /* t->flush, in order of deadline */
	struct kvs_tcp_poll poll;
	struct kvs_tcp_op rx_op;
	struct kvs_tcp_op tx_op;
	int fd;
	int err; /* for closed() */
	enum kvs_tcp_state state;
	unsigned int pend_flags; /* enum kvs_tcp_pend */
	unsigned int held; /* references of the engine */
	bool accepted; /* counted against max_conns; not when DYING */
	bool released; /* engine was asked to let go */
	bool in_frame; /* inside frame(): detach allowed */
	bool detached; /* free when frame() returns */
	uint64_t deadline; /* ns; FLUSHING and LINGERING */

	/* receive */
	enum kvs_tcp_rx_state rx_state;
	unsigned char *buf; /* small, or allocated for a large frame */
	size_t cap;
	size_t have; /* bytes in buf */
	struct kvs_rx rx;
	bool rx_live; /* payload_done() is owed */
	bool stopping; /* stop asked for, receive still in the kernel */
	bool rx_eof; /* nothing more will come */
	uint64_t drop_left; /* bytes */
	int lowat; /* SO_RCVLOWAT as set */

	/* send */
	struct kvs_list txq; /* struct kvs_tx; the first is being sent */
	size_t txq_bytes; /* of frames */
	size_t tx_piece; /* of the first: 0 = frame, then iov[piece - 1] */
	size_t tx_off; /* in that piece */
	int tx_err; /* the sending half is dead */
	size_t tx_want; /* bytes of the message being sent */
	struct msghdr tx_msg;
	unsigned int tx_cap; /* of tx_msg.msg_iov */
	struct iovec tx_small[4];

	/* connecting */
	struct kvs_addr *addrs; /* NULL when not connecting */
	unsigned int addr_next;
	int connect_err; /* of the last address tried */

	unsigned char small[KVS_TCP_SMALL] __attribute__((aligned(8)));
};

struct kvs_tcp_listener {
	struct kvs_listener l; /* first */
	struct kvs_list node; /* t->listeners */
	struct kvs_tcp_poll poll;
	uint64_t resume_at; /* ns; 0: accepting */
};

struct kvs_tcp_watch {
	struct kvs_watch w; /* first */
	struct kvs_list node; /* t->watches */
	struct kvs_tcp_poll poll;
};

/**
 * struct kvs_tcp_engine - how bytes move
 *
 * recv, send and stop answer -EBUSY when the request cannot be taken now
 * (ring full): the connection stays pending. They may call kvs_tcp_rx_done()
 * and kvs_tcp_tx_done() from inside.
 * @nonblock: sockets are O_NONBLOCK (io_uring wants blocking ones)
 * @init: allocate t->engine
 * @fini: nothing is held any more
 * @wait: wait for and run events; count, or -errno. 0 on timeout.
 * @attach: a connected socket comes under the engine
 * @forget: take it out at once; nothing of it is in the kernel
 * @release: stop everything; conn->held falls to 0, maybe later
 * @poll_set: apply p->events; -errno
 * @poll_del: p->gone() follows from poll, never from inside
 */
struct kvs_tcp_engine {
	struct kvs_transport_ops ops;
	bool nonblock;
	int (*init)(struct kvs_tcp *t, char *err, size_t errlen);
	void (*fini)(struct kvs_tcp *t);
	int (*wait)(struct kvs_tcp *t, uint64_t timeout_ns);
	int (*attach)(struct kvs_tcp_conn *c);
	void (*forget)(struct kvs_tcp_conn *c);
	int (*recv)(struct kvs_tcp_conn *c);
	int (*send)(struct kvs_tcp_conn *c);
	int (*stop)(struct kvs_tcp_conn *c);
	void (*release)(struct kvs_tcp_conn *c);
	int (*poll_set)(struct kvs_tcp *t, struct kvs_tcp_poll *p);
	void (*poll_del)(struct kvs_tcp *t, struct kvs_tcp_poll *p);
};

struct kvs_tcp {
	struct kvs_transport t; /* first */
	const struct kvs_tcp_engine *eng;
	void *engine; /* the engine's own */
	struct kvs_list conns;
	struct kvs_list pend;
	struct kvs_list flush;
	struct kvs_list listeners;
	struct kvs_list watches;
	struct kvs_list gone; /* struct kvs_tcp_poll, to be reported */
	struct kvs_tcp_poll wake;
	unsigned char *scratch;
	unsigned int n_accepted; /* alive, and not DYING */
	unsigned int max_conns;
	unsigned int n_paused; /* listeners out of descriptors */
	int rcvbuf;
	int sndbuf;
	unsigned int user_timeout_ms;
	unsigned int handled; /* events in this poll */
	bool closing; /* being destroyed */
};

static inline struct kvs_tcp *kvs_tcp_of(const struct kvs_conn *c)
{
	return kvs_container_of(c->t, struct kvs_tcp, t);
}

extern const struct kvs_tcp_engine kvs_tcp_sock;
extern const struct kvs_tcp_engine kvs_tcp_uring;

/* Shared operations, for the engines' tables (tcp.c, tcp_conn.c). */
#define KVS_TCP_SHARED_OPS                                                  \
	.destroy = kvs_tcp_destroy, .poll = kvs_tcp_poll,                   \
	.wake = kvs_tcp_wake, .listen = kvs_tcp_listen,                     \
	.listener_close = kvs_tcp_listener_close,                           \
	.listener_addr = kvs_tcp_listener_addr, .connect = kvs_tcp_connect, \
	.adopt = kvs_tcp_adopt, .detach = kvs_tcp_detach,                   \
	.discard = kvs_tcp_discard, .send = kvs_tcp_send,                   \
	.write = kvs_tcp_write, .stop_payload = kvs_tcp_stop_payload,       \
	.close = kvs_tcp_close, .watch = kvs_tcp_watch,                     \
	.watch_events = kvs_tcp_watch_events,                               \
	.watch_remove = kvs_tcp_watch_remove

void kvs_tcp_destroy(struct kvs_transport *t);
int kvs_tcp_poll(struct kvs_transport *t, uint64_t timeout_ns);
void kvs_tcp_wake(struct kvs_transport *t);
int kvs_tcp_listen(struct kvs_transport *t, const struct kvs_addr *addr,
		   int (*accepted)(struct kvs_conn *c, void *arg), void *arg,
		   struct kvs_listener **ret);
void kvs_tcp_listener_close(struct kvs_listener *l);
int kvs_tcp_listener_addr(const struct kvs_listener *l,
			  struct sockaddr_storage *ret, socklen_t *ret_len);
int kvs_tcp_connect(struct kvs_transport *t, const struct kvs_addr *addr,
		    enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		    void *user, struct kvs_conn **ret);
int kvs_tcp_adopt(struct kvs_transport *t, int fd, enum kvs_conn_kind kind,
		  const struct kvs_conn_ops *ops, void *user,
		  struct kvs_conn **ret);
int kvs_tcp_detach(struct kvs_conn *c);
void kvs_tcp_discard(struct kvs_transport *t, int fd);
int kvs_tcp_send(struct kvs_conn *c, const struct kvs_frame *f, size_t len);
int kvs_tcp_write(struct kvs_conn *c, struct kvs_tx *tx);
void kvs_tcp_stop_payload(struct kvs_conn *c);
void kvs_tcp_close(struct kvs_conn *c, int err, bool flush);
int kvs_tcp_watch(struct kvs_transport *t, int fd, short events,
		  void (*ready)(struct kvs_watch *w, short revents, void *arg),
		  void *arg, struct kvs_watch **ret);
int kvs_tcp_watch_events(struct kvs_watch *w, short events);
void kvs_tcp_watch_remove(struct kvs_watch *w);

/* tcp.c */
/* A descriptor became free: paused listeners try again. */
void kvs_tcp_resume_accept(struct kvs_tcp *t);
/* The socket of a CONNECTING conn is writable, or failed. */
void kvs_tcp_connect_ready(struct kvs_tcp_conn *c);

/* tcp_conn.c */
struct kvs_tcp_conn *kvs_tcp_conn_new(struct kvs_tcp *t, int fd);
/* Without callbacks: never attached, or already forgotten by the engine. */
void kvs_tcp_conn_free(struct kvs_tcp_conn *c);
/* A connected socket: attach and post the first receive. */
int kvs_tcp_conn_open(struct kvs_tcp_conn *c);
void kvs_tcp_die(struct kvs_tcp_conn *c, int err);
void kvs_tcp_pend(struct kvs_tcp_conn *c, unsigned int flags);
/* Apply c->poll.events; counts the engine's reference. */
int kvs_tcp_conn_poll(struct kvs_tcp_conn *c, short events);
/* Take the next step of each pending connection; frees those that end. */
void kvs_tcp_run_pending(struct kvs_tcp *t);

/**
 * kvs_tcp_rx_want() - where the next bytes go
 * @c: connection
 * @iov: two pieces: the place, and (payload only) the frame that follows
 *
 * Return: pieces, 0 = no receive wanted.
 */
int kvs_tcp_rx_want(struct kvs_tcp_conn *c, struct iovec iov[2]);

/**
 * kvs_tcp_rx_done() - a receive ended
 * @c: connection; may be freed inside (detached)
 * @res: bytes, over the pieces of kvs_tcp_rx_want() in order; 0 = end of
 *       file; -errno
 *
 * Return: true when another receive is wanted (and @c is alive).
 */
bool kvs_tcp_rx_done(struct kvs_tcp_conn *c, ssize_t res);

/* Build tx_msg from the queue. Return: false = nothing to send. */
bool kvs_tcp_tx_build(struct kvs_tcp_conn *c);
/* Cut tx_msg down to its first @want bytes (test hook). */
void kvs_tcp_tx_trim(struct kvs_tcp_conn *c, size_t want);
/* Return: true when there is more to send. */
bool kvs_tcp_tx_done(struct kvs_tcp_conn *c, ssize_t res);

/* Tests only, NULL or 0 otherwise: shorten a request of that many bytes;
 * entries of the submission queue. */
extern size_t (*kvs_tcp_test_shorten)(size_t want);
extern unsigned int kvs_tcp_test_ring_entries;

static inline size_t kvs_tcp_shorten(size_t want)
{
	return __builtin_expect(!!kvs_tcp_test_shorten, 0)
		       ? kvs_tcp_test_shorten(want)
		       : want;
}

#endif /* KVS_RDMA_TCP_INTERNAL_H */
