/* SPDX-License-Identifier: Apache-2.0 */
/* One TCP connection: framing, send queue, closing. See tcp_internal.h. */
#include "rdma/tcp_internal.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TX_BATCH (256u << 10) /* bytes; a message ends at the next tx */
#define TX_CLIP (1u << 30) /* bytes of one message; res is an int */

struct frame_tx {
	struct kvs_tx tx; /* first; done = frame_sent */
	size_t len;
	unsigned char data[];
};

/* Marks a copied frame in the queue; its memory is ours. */
static void frame_sent(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	(void)c;
	(void)status;
	free(kvs_container_of(tx, struct frame_tx, tx));
}

static struct kvs_tcp_conn *conn_of(struct kvs_conn *c)
{
	return kvs_container_of(c, struct kvs_tcp_conn, c);
}

void kvs_tcp_pend(struct kvs_tcp_conn *c, unsigned int flags)
{
	if (c->detached)
		return;
	c->pend_flags |= flags;
	if (kvs_list_empty(&c->pend))
		kvs_list_add_tail(&kvs_tcp_of(&c->c)->pend, &c->pend);
}

static void conn_ready(struct kvs_tcp_poll *p, short revents)
{
	/* Engines that read on readiness put their own function here. */
	(void)revents;
	kvs_tcp_connect_ready(kvs_container_of(p, struct kvs_tcp_conn, poll));
}

static void conn_gone(struct kvs_tcp_poll *p)
{
	struct kvs_tcp_conn *c = kvs_container_of(p, struct kvs_tcp_conn, poll);

	c->held--;
	kvs_tcp_pend(c, 0);
}

struct kvs_tcp_conn *kvs_tcp_conn_new(struct kvs_tcp *t, int fd)
{
	struct kvs_tcp_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->c.magic = KVS_CONN_MAGIC;
	c->c.t = &t->t;
	c->fd = fd;
	c->state = KVS_TCP_CONNECTING;
	c->buf = c->small;
	c->cap = sizeof(c->small);
	c->lowat = 1;
	c->tx_msg.msg_iov = c->tx_small;
	c->tx_cap = KVS_ARRAY_SIZE(c->tx_small);
	c->poll.fd = fd;
	c->poll.ready = conn_ready;
	c->poll.gone = conn_gone;
	kvs_list_init(&c->poll.pend);
	kvs_list_init(&c->pend);
	kvs_list_init(&c->flush);
	kvs_list_init(&c->txq);
	kvs_list_add_tail(&t->conns, &c->node);
	return c;
}

static void small_buf(struct kvs_tcp_conn *c)
{
	if (c->buf == c->small)
		return;
	memcpy(c->small, c->buf, c->have);
	free(c->buf);
	c->buf = c->small;
	c->cap = sizeof(c->small);
}

static void uncount(struct kvs_tcp_conn *c)
{
	if (c->accepted)
		kvs_tcp_of(&c->c)->n_accepted--;
	c->accepted = false;
}

void kvs_tcp_conn_free(struct kvs_tcp_conn *c)
{
	struct kvs_tcp *t = kvs_tcp_of(&c->c);

	KVS_ASSERT(!c->held && !c->rx_op.busy && !c->tx_op.busy);
	KVS_ASSERT(kvs_list_empty(&c->txq) && !c->rx_live);
	if (c->fd >= 0)
		close(c->fd);
	uncount(c);
	kvs_list_del(&c->node);
	kvs_list_del(&c->pend);
	kvs_list_del(&c->flush);
	if (c->buf != c->small)
		free(c->buf);
	if (c->tx_msg.msg_iov != c->tx_small)
		free(c->tx_msg.msg_iov);
	free(c->addrs);
	c->c.magic = 0;
	free(c);
	kvs_tcp_resume_accept(t);
}

int kvs_tcp_conn_poll(struct kvs_tcp_conn *c, short events)
{
	struct kvs_tcp *t = kvs_tcp_of(&c->c);
	bool added = c->poll.added;
	int rc;

	c->poll.fd = c->fd;
	c->poll.events = events;
	rc = t->eng->poll_set(t, &c->poll);
	if (!added && c->poll.added)
		c->held++;
	return rc;
}

int kvs_tcp_conn_open(struct kvs_tcp_conn *c)
{
	int rc = kvs_tcp_of(&c->c)->eng->attach(c);

	if (rc)
		return rc;
	c->state = KVS_TCP_OPEN;
	kvs_tcp_pend(c, KVS_TCP_PEND_RX | KVS_TCP_PEND_TX);
	return 0;
}

void kvs_tcp_die(struct kvs_tcp_conn *c, int err)
{
	if (c->state == KVS_TCP_DYING)
		return;
	/* It goes as soon as the kernel lets go of it; who comes meanwhile has
	 * its place. */
	uncount(c);
	if (!err)
		err = c->tx_err;
	c->state = KVS_TCP_DYING;
	c->err = err;
	kvs_list_del(&c->flush);
	kvs_tcp_pend(c, 0);
}

void kvs_tcp_close(struct kvs_conn *conn, int err, bool flush)
{
	struct kvs_tcp_conn *c = conn_of(conn);
	struct kvs_tcp *t = kvs_tcp_of(conn);

	if (err > 0)
		err = -err;
	if (c->state == KVS_TCP_FLUSHING || c->state == KVS_TCP_LINGERING) {
		if (!flush)
			kvs_tcp_die(c, c->err);
		return;
	}
	if (c->state != KVS_TCP_OPEN || !flush || c->tx_err) {
		kvs_tcp_die(c, err);
		return;
	}
	c->state = KVS_TCP_FLUSHING;
	c->err = err;
	c->deadline = kvs_clock_now(t->t.clock) + KVS_TCP_FLUSH_NS;
	kvs_list_add_tail(&t->flush, &c->flush);
	if (c->rx_state == KVS_TCP_RX_PAYLOAD && c->rx_op.busy)
		c->stopping = true;
	kvs_tcp_pend(c, KVS_TCP_PEND_TX | KVS_TCP_PEND_RX |
				(c->stopping ? KVS_TCP_PEND_STOP : 0));
}

int kvs_tcp_detach(struct kvs_conn *conn)
{
	struct kvs_tcp_conn *c = conn_of(conn);
	const struct kvs_frame *f = (const void *)c->buf;
	int fd = c->fd;

	if (!c->in_frame || c->state != KVS_TCP_OPEN || c->rx_op.busy ||
	    c->tx_op.busy || !kvs_list_empty(&c->txq) ||
	    c->have != kvs_get32(f->len))
		return -EBUSY;
	kvs_tcp_of(conn)->eng->forget(c);
	c->detached = true;
	c->state = KVS_TCP_DYING;
	kvs_list_del(&c->pend);
	c->fd = -1;
	return fd;
}

void kvs_tcp_discard(struct kvs_transport *t, int fd)
{
	(void)t;
	close(fd);
}

/* ---- receive ---- */

/* The transport's right to write to rx.addr ends here. */
static void payload_done(struct kvs_tcp_conn *c, int status)
{
	int rc;

	KVS_ASSERT(c->rx_live && !c->rx_op.busy);
	c->rx_live = false;
	c->stopping = false;
	kvs_tcp_of(&c->c)->handled++;
	rc = c->c.ops->payload_done(&c->c, &c->rx, status);
	if (rc < 0)
		kvs_tcp_die(c, rc);
}

static void stopped(struct kvs_tcp_conn *c)
{
	c->drop_left = c->rx.len - c->rx.got;
	c->rx_state = c->drop_left ? KVS_TCP_RX_DROP : KVS_TCP_RX_FRAME;
	payload_done(c, c->drop_left ? -ECANCELED : 0);
}

void kvs_tcp_stop_payload(struct kvs_conn *conn)
{
	struct kvs_tcp_conn *c = conn_of(conn);

	if (!c->rx_live || c->stopping || c->state != KVS_TCP_OPEN)
		return;
	if (c->rx_state == KVS_TCP_RX_DROP) { /* nothing was ever written */
		payload_done(c, -ECANCELED);
		return;
	}
	if (!c->rx_op.busy) {
		stopped(c);
		return;
	}
	c->stopping = true;
	kvs_tcp_pend(c, KVS_TCP_PEND_STOP);
}

int kvs_tcp_rx_want(struct kvs_tcp_conn *c, struct iovec iov[2])
{
	const struct kvs_frame *f = (const void *)c->buf;
	bool data = c->c.kind == KVS_CONN_DATA;
	size_t need;

	if (c->rx_eof || c->stopping || c->state == KVS_TCP_CONNECTING ||
	    c->state == KVS_TCP_DYING)
		return 0;
	switch (c->rx_state) {
	case KVS_TCP_RX_FRAME:
		if (c->state != KVS_TCP_OPEN)
			return 0;
		/*
		 * Exactly one frame: what follows may be another thread's
		 * (detach) or a payload. Data frames are 64 bytes, so that
		 * much can be asked for at once; of a shorter one the excess
		 * is the start of the next.
		 */
		if (c->have >= sizeof(*f))
			need = kvs_get32(f->len);
		else
			need = data ? KVS_DATA_FRAME : sizeof(*f);
		iov[0].iov_base = c->buf + c->have;
		iov[0].iov_len = need - c->have;
		return 1;
	case KVS_TCP_RX_PAYLOAD:
		if (c->state != KVS_TCP_OPEN)
			return 0;
		iov[0].iov_base = (char *)c->rx.addr + c->rx.got;
		iov[0].iov_len = c->rx.len - c->rx.got;
		iov[1].iov_base = c->buf;
		iov[1].iov_len = KVS_DATA_FRAME;
		return data ? 2 : 1;
	case KVS_TCP_RX_DROP:
		need = KVS_TCP_SCRATCH;
		if (need > c->drop_left)
			need = c->drop_left;
		iov[0].iov_base = kvs_tcp_of(&c->c)->scratch;
		iov[0].iov_len = need;
		return 1;
	case KVS_TCP_RX_SINK:
		iov[0].iov_base = kvs_tcp_of(&c->c)->scratch;
		iov[0].iov_len = KVS_TCP_SCRATCH;
		return 1;
	}
	return 0;
}

static void rx_payload(struct kvs_tcp_conn *c, const struct kvs_frame *f)
{
	uint32_t len = kvs_get32(f->payload);
	int rc;

	memset(&c->rx, 0, sizeof(c->rx));
	c->rx.len = len;
	rc = c->c.ops->payload(&c->c, f, &c->rx);
	if (rc < 0) {
		kvs_tcp_die(c, rc);
		return;
	}
	c->rx.len = len;
	c->rx.got = 0;
	c->rx_live = true;
	c->have = 0;
	if (c->rx.addr) {
		c->rx_state = KVS_TCP_RX_PAYLOAD;
	} else {
		c->rx_state = KVS_TCP_RX_DROP;
		c->drop_left = len;
	}
}

/* Room in buf for a frame of @len bytes. */
static int reserve(struct kvs_tcp_conn *c, size_t len)
{
	unsigned char *p;

	if (len <= c->cap)
		return 0;
	p = malloc(len);
	if (!p)
		return -ENOMEM;
	memcpy(p, c->buf, c->have);
	if (c->buf != c->small)
		free(c->buf);
	c->buf = p;
	c->cap = len;
	return 0;
}

/* Whole frames in buf, one after another. Return: false = @c was freed. */
static bool rx_frames(struct kvs_tcp_conn *c)
{
	while (c->state == KVS_TCP_OPEN && c->rx_state == KVS_TCP_RX_FRAME &&
	       c->have >= sizeof(struct kvs_frame)) {
		const struct kvs_frame *f = (const void *)c->buf;
		size_t len = kvs_get32(f->len);
		int rc = kvs_frame_check(&c->c, f);

		if (!rc && c->have < len && c->c.ops->head)
			rc = c->c.ops->head(&c->c, f);
		if (c->state != KVS_TCP_OPEN)
			return true;
		if (!rc && c->have < len)
			rc = reserve(c, len);
		if (rc) {
			kvs_tcp_die(c, rc);
			return true;
		}
		if (c->have < len)
			return true;
		kvs_tcp_of(&c->c)->handled++;
		if (kvs_get32(f->payload)) {
			KVS_ASSERT(c->have == len);
			rx_payload(c, f);
			return true;
		}
		c->in_frame = true;
		rc = c->c.ops->frame ? c->c.ops->frame(&c->c, f) : -EPROTO;
		c->in_frame = false;
		if (c->detached) {
			kvs_tcp_conn_free(c);
			return false;
		}
		c->have -= len;
		memmove(c->buf, c->buf + len, c->have);
		small_buf(c);
		if (rc < 0)
			kvs_tcp_die(c, rc);
	}
	return true;
}

/* @n bytes into the payload or the frame after it; no callbacks. */
static void rx_account(struct kvs_tcp_conn *c, size_t n)
{
	struct kvs_transport_stats *st = &c->c.t->stats;
	size_t m = n;

	switch (c->rx_state) {
	case KVS_TCP_RX_PAYLOAD:
		if (m > c->rx.len - c->rx.got)
			m = c->rx.len - c->rx.got;
		c->rx.got += m;
		st->rx_bytes += m;
		c->have += n - m;
		break;
	case KVS_TCP_RX_FRAME:
		c->have += n;
		break;
	case KVS_TCP_RX_DROP:
		c->drop_left -= n;
		st->rx_dropped += n;
		break;
	case KVS_TCP_RX_SINK:
		break;
	}
}

static void rx_ended(struct kvs_tcp_conn *c, int res)
{
	c->rx_eof = true;
	if (c->state != KVS_TCP_OPEN) {
		/* Closing already: our reason stands. */
		if (c->state == KVS_TCP_LINGERING || res)
			kvs_tcp_die(c, c->err);
		return;
	}
	if (res)
		kvs_tcp_die(c, res);
	else if (c->rx_state == KVS_TCP_RX_FRAME && !c->have)
		kvs_tcp_die(c, 0);
	else /* inside a frame an orderly end is as bad as a reset */
		kvs_tcp_die(c, -ECONNRESET);
}

bool kvs_tcp_rx_done(struct kvs_tcp_conn *c, ssize_t res)
{
	if (res > 0)
		rx_account(c, (size_t)res);
	if (c->state == KVS_TCP_DYING)
		return false;
	kvs_tcp_of(&c->c)->handled++;
	if (res == 0 ||
	    (res < 0 && res != -ECANCELED && res != -EINTR && res != -EAGAIN)) {
		rx_ended(c, (int)res);
		kvs_tcp_pend(c, 0);
		return false;
	}
	if (c->state != KVS_TCP_OPEN) {
		kvs_tcp_pend(c, KVS_TCP_PEND_RX);
		return true;
	}
	if (c->rx_state == KVS_TCP_RX_PAYLOAD) {
		if (c->rx.got == c->rx.len) {
			c->rx_state = KVS_TCP_RX_FRAME;
			payload_done(c, 0);
		} else if (c->stopping) {
			stopped(c);
		}
	} else if (c->rx_state == KVS_TCP_RX_DROP && !c->drop_left) {
		c->rx_state = KVS_TCP_RX_FRAME;
		if (c->rx_live)
			payload_done(c, 0);
	}
	if (!rx_frames(c))
		return false;
	return c->state == KVS_TCP_OPEN;
}

/* ---- send ---- */

static void tx_fail(struct kvs_tcp_conn *c, int err)
{
	struct kvs_list failed;
	struct kvs_tx *tx;

	kvs_list_init(&failed);
	kvs_list_splice_tail(&failed, &c->txq);
	c->txq_bytes = 0;
	c->tx_piece = 0;
	c->tx_off = 0;
	while (!kvs_list_empty(&failed)) {
		tx = kvs_list_first(&failed, struct kvs_tx, node);
		kvs_list_del(&tx->node);
		kvs_tcp_of(&c->c)->handled++;
		tx->done(&c->c, tx, err);
	}
}

static bool can_send(const struct kvs_tcp_conn *c)
{
	return !c->tx_err && !kvs_tcp_of(&c->c)->closing &&
	       (c->state == KVS_TCP_OPEN || c->state == KVS_TCP_CONNECTING);
}

int kvs_tcp_send(struct kvs_conn *conn, const struct kvs_frame *f, size_t len)
{
	struct kvs_tcp_conn *c = conn_of(conn);
	struct frame_tx *ft;

	if (!can_send(c))
		return -EPIPE;
	if (c->txq_bytes + len > conn->t->send_queue_max)
		return -ENOBUFS;
	ft = malloc(sizeof(*ft) + len);
	if (!ft)
		return -ENOMEM;
	memset(&ft->tx, 0, sizeof(ft->tx));
	ft->tx.done = frame_sent;
	ft->len = len;
	memcpy(ft->data, f, len);
	c->txq_bytes += len;
	kvs_list_add_tail(&c->txq, &ft->tx.node);
	kvs_tcp_pend(c, KVS_TCP_PEND_TX);
	return 0;
}

int kvs_tcp_write(struct kvs_conn *conn, struct kvs_tx *tx)
{
	struct kvs_tcp_conn *c = conn_of(conn);

	if (!can_send(c))
		return -EPIPE;
	kvs_list_add_tail(&c->txq, &tx->node);
	kvs_tcp_pend(c, KVS_TCP_PEND_TX);
	return 0;
}

/* Piece @i of @tx: 0 is the frame. Return: false past the last. */
static bool tx_piece(struct kvs_tx *tx, size_t i, struct iovec *ret)
{
	struct frame_tx *ft = kvs_container_of(tx, struct frame_tx, tx);
	bool frame = tx->done == frame_sent;

	if (!i) {
		ret->iov_base = frame ? ft->data : tx->frame;
		ret->iov_len = frame ? ft->len : KVS_DATA_FRAME;
		return true;
	}
	if (i > tx->n_iov)
		return false;
	*ret = tx->iov[i - 1];
	return true;
}

static bool tx_grow(struct kvs_tcp_conn *c)
{
	unsigned int cap = c->tx_cap * 4;
	struct iovec *p;

	if (c->tx_cap >= IOV_MAX)
		return false;
	if (cap > IOV_MAX)
		cap = IOV_MAX;
	/* The old content matters: it is being filled. */
	p = malloc(cap * sizeof(*p));
	if (!p)
		return false;
	memcpy(p, c->tx_msg.msg_iov, c->tx_cap * sizeof(*p));
	if (c->tx_msg.msg_iov != c->tx_small)
		free(c->tx_msg.msg_iov);
	c->tx_msg.msg_iov = p;
	c->tx_cap = cap;
	return true;
}

bool kvs_tcp_tx_build(struct kvs_tcp_conn *c)
{
	size_t piece = c->tx_piece;
	size_t off = c->tx_off;
	size_t total = 0;
	struct kvs_tx *tx;
	struct iovec v;
	size_t n = 0;

	KVS_ASSERT(!c->tx_op.busy);
	kvs_list_for_each_entry(tx, &c->txq, node) {
		if (total >= TX_BATCH)
			break;
		for (; tx_piece(tx, piece, &v); piece++, off = 0) {
			if (v.iov_len == off)
				continue;
			if (n == c->tx_cap && !tx_grow(c))
				goto full;
			v.iov_base = (char *)v.iov_base + off;
			v.iov_len -= off;
			if (v.iov_len > TX_CLIP - total)
				v.iov_len = TX_CLIP - total;
			c->tx_msg.msg_iov[n++] = v;
			total += v.iov_len;
			if (total == TX_CLIP)
				goto full;
		}
		piece = 0;
		off = 0;
	}
full:
	c->tx_msg.msg_iovlen = n;
	c->tx_want = total;
	return n > 0;
}

void kvs_tcp_tx_trim(struct kvs_tcp_conn *c, size_t want)
{
	struct iovec *v = c->tx_msg.msg_iov;

	for (; want > v->iov_len; v++)
		want -= v->iov_len;
	v->iov_len = want;
	c->tx_msg.msg_iovlen = (size_t)(v - c->tx_msg.msg_iov) + 1;
}

/* Move the place in the queue on by @n bytes; complete what is through. */
static void tx_advance(struct kvs_tcp_conn *c, size_t n)
{
	struct kvs_tx *tx;
	struct iovec v;

	while (!kvs_list_empty(&c->txq)) {
		tx = kvs_list_first(&c->txq, struct kvs_tx, node);
		while (tx_piece(tx, c->tx_piece, &v) &&
		       v.iov_len - c->tx_off <= n) {
			n -= v.iov_len - c->tx_off;
			c->tx_piece++;
			c->tx_off = 0;
		}
		if (tx_piece(tx, c->tx_piece, &v)) {
			c->tx_off += n;
			return;
		}
		c->tx_piece = 0;
		c->tx_off = 0;
		kvs_list_del(&tx->node);
		if (tx->done == frame_sent)
			c->txq_bytes -=
				kvs_container_of(tx, struct frame_tx, tx)->len;
		tx->done(&c->c, tx, 0);
		if (!n)
			return;
	}
}

bool kvs_tcp_tx_done(struct kvs_tcp_conn *c, ssize_t res)
{
	struct kvs_transport_stats *st = &c->c.t->stats;

	if (res > 0)
		st->tx_bytes += (uint64_t)res;
	if (c->state == KVS_TCP_DYING)
		return false;
	kvs_tcp_of(&c->c)->handled++;
	if (res == -EAGAIN || res == -EINTR)
		return true;
	if (res <= 0) {
		if (!res)
			res = -EPIPE;
		if (c->state != KVS_TCP_OPEN) {
			kvs_tcp_die(c, c->err);
			return false;
		}
		c->tx_err = (int)res;
		/*
		 * What the peer sent before it went away may still be in the
		 * socket (its reason, for one): the receive finds the end.
		 */
		if (res == -EPIPE || res == -ECONNRESET)
			tx_fail(c, (int)res);
		else
			kvs_tcp_die(c, (int)res);
		return false;
	}
	tx_advance(c, (size_t)res);
	if (c->state == KVS_TCP_DYING)
		return false;
	if (kvs_list_empty(&c->txq) && c->state == KVS_TCP_FLUSHING)
		kvs_tcp_pend(c, 0);
	return !kvs_list_empty(&c->txq);
}

/* ---- the next step ---- */

static void finish(struct kvs_tcp_conn *c)
{
	int status = c->err < 0 ? c->err : -ECONNABORTED;

	/* All bytes may have come before the end did: that is success. */
	if (c->rx_live)
		payload_done(c, c->rx.addr && c->rx.got == c->rx.len ? 0
				: c->stopping ? -ECANCELED
					      : status);
	tx_fail(c, status);
	kvs_tcp_of(&c->c)->handled++;
	if (c->c.ops && c->c.ops->closed)
		c->c.ops->closed(&c->c, c->err);
	kvs_tcp_conn_free(c);
}

/* FLUSHING and LINGERING: give back the payload, then send, then wait. */
static void closing_step(struct kvs_tcp_conn *c)
{
	if (!c->rx_op.busy) {
		c->stopping = false;
		if (c->rx_live)
			payload_done(c, c->rx.addr && c->rx.got == c->rx.len ? 0
					: c->err < 0 ? c->err
						     : -ECONNABORTED);
		if (c->state == KVS_TCP_DYING)
			return;
		c->rx_state = KVS_TCP_RX_SINK;
	}
	if (c->state != KVS_TCP_FLUSHING || !kvs_list_empty(&c->txq))
		return;
	if (c->rx_eof) {
		kvs_tcp_die(c, c->err);
		return;
	}
	shutdown(c->fd, SHUT_WR);
	c->state = KVS_TCP_LINGERING;
}

static void step(struct kvs_tcp_conn *c)
{
	const struct kvs_tcp_engine *eng = kvs_tcp_of(&c->c)->eng;
	unsigned int flags = c->pend_flags;

	c->pend_flags = 0;
	if (c->state == KVS_TCP_CONNECTING)
		return;
	if (c->state == KVS_TCP_FLUSHING || c->state == KVS_TCP_LINGERING)
		closing_step(c);
	if (c->state != KVS_TCP_DYING) {
		if ((flags & KVS_TCP_PEND_STOP) && c->stopping &&
		    c->rx_op.busy && eng->stop(c))
			kvs_tcp_pend(c, KVS_TCP_PEND_STOP);
		if ((flags & KVS_TCP_PEND_TX) && !c->tx_op.busy && !c->tx_err &&
		    kvs_tcp_tx_build(c) && eng->send(c))
			kvs_tcp_pend(c, KVS_TCP_PEND_TX);
	}
	if (c->state != KVS_TCP_DYING) {
		if ((flags & KVS_TCP_PEND_RX) && !c->rx_op.busy && eng->recv(c))
			kvs_tcp_pend(c, KVS_TCP_PEND_RX);
		return;
	}
	if (!c->released) {
		c->released = true;
		eng->release(c);
	}
	if (!c->held && !c->rx_op.busy && !c->tx_op.busy)
		finish(c);
}

void kvs_tcp_run_pending(struct kvs_tcp *t)
{
	struct kvs_list now;
	struct kvs_tcp_conn *c;

	kvs_list_init(&now);
	kvs_list_splice_tail(&now, &t->pend);
	while (!kvs_list_empty(&now)) {
		c = kvs_list_first(&now, struct kvs_tcp_conn, pend);
		kvs_list_del(&c->pend);
		step(c);
	}
}
