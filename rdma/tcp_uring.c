/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine: io_uring (liburing 2.3).
 *
 * One receive and one send of a connection are in the kernel at a time, each
 * for all it is worth (MSG_WAITALL) where it is known how much will come: a
 * payload is one operation straight into its place. The receive of the next frame is not linked to it: a chain cut
 * at a submission boundary would run as two independent receives on one
 * stream.
 *
 * The ring is made disabled and enabled by the first poll, so that the
 * thread which polls is its single issuer, whoever created it.
 */
#include "rdma/tcp_internal.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/uring.h"

#define INSTEAD "engine \"sock\""
#define SQ_ENTRIES 256u
#define CQ_FACTOR 16u /* completions that fit, per submission entry */
#define LOWAT (256 << 10) /* bytes, see gather() */
#define LOWAT_PAYLOAD (8u << 20) /* bytes; longer ones go without */
#define BATCH 64
#define REAP_BUDGET 1024u

struct uring {
	struct io_uring ring;
	struct kvs_list arm; /* polls to arm or to cancel */
	const void *owner; /* of the thread that polls */
	bool enabled;
	bool overflowing;
};

/* Low bits of the user data. 0: nobody waits for this completion. */
enum tag {
	TAG_NONE,
	TAG_POLL,
	TAG_RX,
	TAG_TX,
};
#define TAG_MASK 3

static struct uring *uring_of(const struct kvs_tcp *t)
{
	return t->engine;
}

static uint64_t tagged(void *p, enum tag tag)
{
	return (uint64_t)(uintptr_t)p | (uint64_t)tag;
}

static const void *this_thread(void)
{
	static __thread char self;

	return &self;
}

/* ---- setting up ---- */

static int ring_init(struct io_uring *ring)
{
	unsigned int test = kvs_tcp_test_ring_entries;
	unsigned int entries = test ? test : SQ_ENTRIES;

	return kvs_uring_init(ring, entries,
			      test ? entries : entries * CQ_FACTOR);
}

static int uring_init(struct kvs_tcp *t, char *err, size_t errlen)
{
	static const int ops[] = { IORING_OP_RECV, IORING_OP_SENDMSG,
				   IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL };
	struct uring *u;
	int rc =
		kvs_uring_trial(ops, KVS_ARRAY_SIZE(ops), INSTEAD, err, errlen);

	if (rc)
		return rc;
	u = calloc(1, sizeof(*u));
	if (!u) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	rc = ring_init(&u->ring);
	if (rc) {
		free(u);
		return kvs_uring_refuse("io_uring_setup", rc, INSTEAD, err,
					errlen);
	}
	kvs_list_init(&u->arm);
	t->engine = u;
	return 0;
}

static void uring_fini(struct kvs_tcp *t)
{
	io_uring_queue_exit(&uring_of(t)->ring);
	free(t->engine);
}

static int enable(struct uring *u)
{
	int rc;

	if (u->enabled) {
		/* Another thread could neither submit nor reap. */
		KVS_ASSERT(u->owner == this_thread());
		return 0;
	}
	rc = kvs_uring_enable(&u->ring);
	if (rc)
		return rc;
	u->enabled = true;
	u->owner = this_thread();
	return 0;
}

static struct io_uring_sqe *get_sqe(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	if (!sqe && u->enabled) {
		io_uring_submit(&u->ring);
		sqe = io_uring_get_sqe(&u->ring);
	}
	return sqe;
}

/* The operation's own completion still comes, and only that one counts. */
static int cancel(struct uring *u, uint64_t user_data)
{
	struct io_uring_sqe *sqe = get_sqe(u);

	if (!sqe)
		return -EBUSY;
	io_uring_prep_cancel64(sqe, user_data, 0);
	io_uring_sqe_set_data64(sqe, TAG_NONE);
	return 0;
}

/* ---- readiness ---- */

static void queue_arm(struct uring *u, struct kvs_tcp_poll *p)
{
	if (kvs_list_empty(&p->pend))
		kvs_list_add_tail(&u->arm, &p->pend);
}

static int uring_poll_set(struct kvs_tcp *t, struct kvs_tcp_poll *p)
{
	p->added = true;
	if (p->busy && p->armed == p->events)
		return 0;
	p->stale = p->busy;
	if (p->busy || p->events)
		queue_arm(uring_of(t), p);
	return 0;
}

static void uring_poll_del(struct kvs_tcp *t, struct kvs_tcp_poll *p)
{
	p->dead = true;
	kvs_list_del(&p->pend);
	if (p->busy)
		queue_arm(uring_of(t), p);
	else
		kvs_list_add_tail(&t->gone, &p->pend);
}

static int arm_one(struct uring *u, struct kvs_tcp_poll *p)
{
	struct io_uring_sqe *sqe;

	if (p->busy)
		return p->dead || p->stale ? cancel(u, tagged(p, TAG_POLL)) : 0;
	if (!p->events)
		return 0;
	sqe = get_sqe(u);
	if (!sqe)
		return -EBUSY;
	io_uring_prep_poll_add(sqe, p->fd, (unsigned int)p->events);
	io_uring_sqe_set_data64(sqe, tagged(p, TAG_POLL));
	p->busy = true;
	p->stale = false;
	p->armed = p->events;
	return 0;
}

/* Return: all could be armed. */
static bool arm(struct uring *u)
{
	struct kvs_tcp_poll *p;

	while (!kvs_list_empty(&u->arm)) {
		p = kvs_list_first(&u->arm, struct kvs_tcp_poll, pend);
		if (arm_one(u, p))
			return false;
		kvs_list_del(&p->pend);
	}
	return true;
}

static void poll_complete(struct kvs_tcp *t, struct kvs_tcp_poll *p, int res)
{
	short revents = POLLERR;

	p->busy = false;
	p->stale = false;
	if (p->dead) {
		kvs_list_del(&p->pend);
		kvs_list_add_tail(&t->gone, &p->pend);
		return;
	}
	if (res == -ECANCELED)
		revents = 0;
	else if (res >= 0)
		revents = (short)res & (p->events | POLLERR | POLLHUP);
	if (revents && p->events)
		p->ready(p, revents);
	if (!p->dead && p->added && p->events)
		queue_arm(uring_of(t), p);
}

/* ---- connections ---- */

static void uring_forget(struct kvs_tcp_conn *c)
{
	if (!c->poll.added)
		return;
	KVS_ASSERT(!c->poll.busy);
	kvs_list_del(&c->poll.pend);
	c->poll.added = false;
	c->poll.events = 0;
	c->held--;
}

static int uring_attach(struct kvs_tcp_conn *c)
{
	/* Waiting for the connection is over; receives need no poll. */
	uring_forget(c);
	return 0;
}

/*
 * Every segment that arrives would wake a waiting receive. A low-water mark
 * lets them gather; the last LOWAT bytes of a payload are asked for apart,
 * without it, as nothing need come after them. On long payloads it gained
 * nothing: copying there overlaps with arriving.
 */
static size_t gather(struct kvs_tcp_conn *c, size_t left)
{
	bool big = c->rx_state == KVS_TCP_RX_PAYLOAD && left > 2 * LOWAT &&
		   c->rx.len <= LOWAT_PAYLOAD;
	int want = big ? LOWAT : 1;

	if (want != c->lowat &&
	    !setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof(want)))
		c->lowat = want;
	return big && c->lowat == LOWAT ? left - LOWAT : left;
}

/* How long a frame is stands in its head; until that is here more was asked
 * for than may ever come. */
static bool may_be_short(const struct kvs_tcp_conn *c)
{
	return c->rx_state == KVS_TCP_RX_SINK ||
	       (c->rx_state == KVS_TCP_RX_FRAME && c->c.kind == KVS_CONN_DATA &&
		c->have < sizeof(struct kvs_frame));
}

static int uring_recv(struct kvs_tcp_conn *c)
{
	bool all = !may_be_short(c);
	struct io_uring_sqe *sqe;
	struct iovec iov[2];
	size_t len;

	if (!kvs_tcp_rx_want(c, iov))
		return 0;
	iov[0].iov_len = gather(c, iov[0].iov_len);
	sqe = get_sqe(uring_of(kvs_tcp_of(&c->c)));
	if (!sqe)
		return -EBUSY;
	len = kvs_tcp_shorten(iov[0].iov_len);
	io_uring_prep_recv(sqe, c->fd, iov[0].iov_base, len,
			   all ? MSG_WAITALL : 0);
	io_uring_sqe_set_data64(sqe, tagged(c, TAG_RX));
	c->rx_op.busy = true;
	/* what is less by right is not a partial read */
	c->rx_op.want = all || len < iov[0].iov_len ? iov[0].iov_len : 0;
	return 0;
}

static int uring_send(struct kvs_tcp_conn *c)
{
	struct io_uring_sqe *sqe = get_sqe(uring_of(kvs_tcp_of(&c->c)));
	size_t want;

	if (!sqe)
		return -EBUSY;
	want = kvs_tcp_shorten(c->tx_want);
	if (want < c->tx_want)
		kvs_tcp_tx_trim(c, want);
	io_uring_prep_sendmsg(sqe, c->fd, &c->tx_msg,
			      MSG_NOSIGNAL | MSG_WAITALL);
	io_uring_sqe_set_data64(sqe, tagged(c, TAG_TX));
	c->tx_op.busy = true;
	c->tx_op.want = c->tx_want;
	return 0;
}

static int uring_stop(struct kvs_tcp_conn *c)
{
	return cancel(uring_of(kvs_tcp_of(&c->c)), tagged(c, TAG_RX));
}

static void uring_release(struct kvs_tcp_conn *c)
{
	struct kvs_tcp *t = kvs_tcp_of(&c->c);

	if (c->poll.added)
		uring_poll_del(t, &c->poll);
	/*
	 * Shutting the socket down ends both operations even when there is no
	 * room to ask for their cancellation.
	 */
	if (c->rx_op.busy || c->tx_op.busy)
		shutdown(c->fd, SHUT_RDWR);
	if (c->rx_op.busy)
		cancel(uring_of(t), tagged(c, TAG_RX));
	if (c->tx_op.busy)
		cancel(uring_of(t), tagged(c, TAG_TX));
}

static bool is_short(const struct kvs_tcp_op *op, int res)
{
	return res > 0 && (size_t)res < op->want;
}

static void rx_complete(struct kvs_tcp_conn *c, int res)
{
	c->rx_op.busy = false;
	/* What a FIN, a close or a stop cut off is not a partial read. */
	if (is_short(&c->rx_op, res) && c->rx_state != KVS_TCP_RX_SINK)
		c->c.t->stats.io_short++;
	if (c->state == KVS_TCP_DYING) {
		kvs_tcp_rx_done(c, res);
		kvs_tcp_pend(c, 0);
	} else if (kvs_tcp_rx_done(c, res)) {
		kvs_tcp_pend(c, KVS_TCP_PEND_RX);
	}
}

static void tx_complete(struct kvs_tcp_conn *c, int res)
{
	c->tx_op.busy = false;
	if (is_short(&c->tx_op, res))
		c->c.t->stats.io_short++;
	if (c->state == KVS_TCP_DYING) {
		kvs_tcp_tx_done(c, res);
		kvs_tcp_pend(c, 0);
	} else if (kvs_tcp_tx_done(c, res)) {
		kvs_tcp_pend(c, KVS_TCP_PEND_TX);
	}
}

/* ---- the loop ---- */

static void complete(struct kvs_tcp *t, uint64_t user_data, int res)
{
	void *p = (void *)(uintptr_t)(user_data & ~(uint64_t)TAG_MASK);

	switch ((enum tag)(user_data & TAG_MASK)) {
	case TAG_POLL:
		poll_complete(t, p, res);
		break;
	case TAG_RX:
		rx_complete(p, res);
		break;
	case TAG_TX:
		tx_complete(p, res);
		break;
	case TAG_NONE:
		break;
	}
}

/*
 * The kernel keeps completions that did not fit and says so by a flag only;
 * submitting never fails for it.
 */
static bool overflow(struct kvs_tcp *t)
{
	struct uring *u = uring_of(t);

	if (!io_uring_cq_has_overflow(&u->ring)) {
		u->overflowing = false;
		return false;
	}
	if (!u->overflowing)
		t->t.stats.cq_overflow++;
	u->overflowing = true;
	io_uring_get_events(&u->ring);
	return true;
}

static int reap(struct kvs_tcp *t)
{
	struct uring *u = uring_of(t);
	struct io_uring_cqe *cqe[BATCH];
	unsigned int total = 0;
	unsigned int n;
	unsigned int i;

	overflow(t); /* peeking would take them, and the flag, quietly */
	do {
		n = io_uring_peek_batch_cqe(&u->ring, cqe, BATCH);
		for (i = 0; i < n; i++)
			complete(t, cqe[i]->user_data, cqe[i]->res);
		io_uring_cq_advance(&u->ring, n);
		total += n;
	} while (total < REAP_BUDGET && (overflow(t) || n == BATCH));
	return (int)total;
}

static int uring_wait(struct kvs_tcp *t, uint64_t timeout_ns)
{
	struct uring *u = uring_of(t);
	struct __kernel_timespec ts;
	struct io_uring_cqe *cqe;
	int rc = enable(u);

	if (rc)
		return rc;
	if (!arm(u))
		timeout_ns = 0;
	ts.tv_sec = (long long)(timeout_ns / KVS_NSEC_PER_SEC);
	ts.tv_nsec = (long long)(timeout_ns % KVS_NSEC_PER_SEC);
	if (timeout_ns)
		rc = io_uring_submit_and_wait_timeout(
			&u->ring, &cqe, 1,
			timeout_ns == KVS_TIME_NEVER ? NULL : &ts, NULL);
	else
		rc = io_uring_submit_and_get_events(&u->ring);
	/* EBUSY, EAGAIN: the completions reaped now make room. */
	if (rc < 0 && rc != -ETIME && rc != -EINTR && rc != -EBUSY &&
	    rc != -EAGAIN)
		return rc;
	return reap(t);
}

const struct kvs_tcp_engine kvs_tcp_uring = {
	.ops = { .name = "tcp/uring", KVS_TCP_SHARED_OPS },
	.nonblock = false,
	.init = uring_init,
	.fini = uring_fini,
	.wait = uring_wait,
	.attach = uring_attach,
	.forget = uring_forget,
	.recv = uring_recv,
	.send = uring_send,
	.stop = uring_stop,
	.release = uring_release,
	.poll_set = uring_poll_set,
	.poll_del = uring_poll_del,
};
