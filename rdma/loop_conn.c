/* SPDX-License-Identifier: Apache-2.0 */
/* One side of an in-process connection: events. See loop_internal.h. */
#include "rdma/loop_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pinned/poison.h"

static struct loop_event *first(struct loop_conn *c)
{
	return kvs_list_first(&c->events, struct loop_event, node);
}

uint64_t kvs_loop_latency(struct kvs_fabric *f)
{
	const struct kvs_loop_plan *p = &f->plan;

	if (p->latency_max <= p->latency_min)
		return p->latency_min;
	return p->latency_min +
	       kvs_rng_below(&f->rng, p->latency_max - p->latency_min + 1);
}

uint64_t kvs_loop_piece(const struct kvs_fabric *f, const struct loop_event *e)
{
	uint64_t end = e->pos < e->stop_at ? e->stop_at : e->len;
	uint64_t n = end - e->pos;

	if (f->plan.split_max && n > f->plan.split_max)
		n = f->plan.split_max;
	return n;
}

uint64_t kvs_loop_line(const struct kvs_fabric *f, const struct loop_event *e,
		       uint64_t t)
{
	if (!f->plan.bytes_per_sec)
		return t;
	return t + (uint64_t)((double)kvs_loop_piece(f, e) * 1e9 /
			      (double)f->plan.bytes_per_sec);
}

/* A new event is first: when is it due? The line is busy until free_at. */
static void schedule(struct loop_conn *c)
{
	struct kvs_fabric *f = c->f;
	const struct loop_event *e;
	uint64_t t;

	if (!kvs_list_empty(&c->events)) {
		e = first(c);
		t = e->ready > c->free_at ? e->ready : c->free_at;
		if (e->type == LOOP_DATA)
			t = kvs_loop_line(f, e, t);
		c->slot.due = t;
		c->slot.tie = kvs_rng_next(&f->rng);
	}
	kvs_loop_sort(c);
}

void kvs_loop_queue(struct loop_conn *to, struct loop_event *e)
{
	bool idle = kvs_list_empty(&to->events);
	struct loop_event *last;

	if (!idle) {
		/* what comes off the wire beats an end that is on its way */
		last = kvs_list_entry(to->events.prev, struct loop_event, node);
		if ((last->type == LOOP_FIN || last->type == LOOP_RST) &&
		    last->ready > e->ready) {
			kvs_list_add_tail(&last->node, &e->node);
			if (first(to) == e)
				schedule(to);
			return;
		}
	}
	kvs_list_add_tail(&to->events, &e->node);
	if (idle)
		schedule(to);
}

static void post(struct kvs_fabric *f, struct loop_conn *to,
		 struct loop_event *e)
{
	e->ready = kvs_loop_now(f) + kvs_loop_latency(f);
	kvs_loop_queue(to, e);
}

/* What @c says itself: the plan may strike it, the wire goes first. */
static void launch(struct loop_conn *c, struct loop_event *e)
{
	struct kvs_fabric *f = c->f;

	kvs_loop_decide(c, e);
	e->ready = kvs_loop_now(f) + kvs_loop_latency(f);
	if (e->fault == KVS_LOOP_DELAY) {
		e->ready += e->at;
		kvs_loop_count(f, e->fault);
	}
	if (kvs_list_empty(&c->peer->wire))
		kvs_loop_queue(c->peer, e);
	else
		kvs_loop_wire_add(c->peer, e);
}

struct loop_event *kvs_loop_event_new(enum loop_event_type type, size_t size)
{
	struct loop_event *e = calloc(1, sizeof(*e) + size);

	if (e) {
		e->type = type;
		e->size = size;
		e->slot.place = KVS_LOOP_NO_PLACE;
		kvs_list_init(&e->held);
	}
	return e;
}

void kvs_loop_event_free(struct loop_event *e)
{
	free(e->data);
	free(e);
}

int kvs_loop_post(struct kvs_fabric *f, struct loop_conn *to,
		  enum loop_event_type type)
{
	struct loop_event *e;

	if (!to)
		return 0;
	e = kvs_loop_event_new(type, 0);
	if (!e)
		return -ENOMEM;
	post(f, to, e);
	return 0;
}

void kvs_loop_want_self(struct loop_conn *c)
{
	if (c->ep && kvs_list_empty(&c->self))
		kvs_list_add_tail(&c->ep->self, &c->self);
}

void kvs_loop_die(struct loop_conn *c, int err)
{
	if (c->dying)
		return;
	c->dying = true;
	c->err = c->flushing ? c->err : err;
	kvs_list_del(&c->flush);
	kvs_loop_want_self(c);
}

/* Forget the first event. */
static void pop(struct loop_conn *c)
{
	struct loop_event *e = first(c);

	c->free_at = c->slot.due;
	kvs_list_del(&e->node);
	kvs_loop_event_free(e);
	schedule(c);
}

void kvs_loop_cut(struct loop_conn *c, enum loop_event_type how)
{
	struct loop_conn *peer = c->peer;
	struct loop_event *e;
	struct loop_event *tmp;

	if (!peer)
		return;
	c->peer = NULL;
	peer->peer = NULL;
	kvs_list_for_each_entry_safe(e, tmp, &peer->events, node) {
		if (e->type != LOOP_DATA)
			continue;
		kvs_list_del(&e->node);
		kvs_loop_event_free(e);
	}
	peer->stalled = false;
	kvs_loop_wire_orphan(c);
	kvs_loop_wire_orphan(peer);
	/* It must learn of it even without memory for the event. */
	if (kvs_loop_post(c->f, peer, how))
		kvs_loop_die(peer, -ENOMEM);
	schedule(peer);
}

/* ---- receiving ---- */

static void payload_done(struct loop_conn *c, int status)
{
	int rc;

	c->rx_live = false;
	c->ep->handled++;
	rc = c->c.ops->payload_done(&c->c, &c->rx, status);
	if (rc < 0)
		kvs_loop_die(c, rc);
}

void kvs_loop_stop_payload(struct kvs_conn *conn)
{
	struct loop_conn *c = kvs_loop_conn_of(conn);

	if (!c->rx_live || c->dying || c->flushing)
		return;
	c->rx_drop = true;
	payload_done(c, -ECANCELED);
}

void kvs_loop_copy(const struct kvs_tx *tx, uint64_t pos, void *dst, uint64_t n)
{
	char *to = dst;
	size_t i;

	for (i = 0; i < tx->n_iov && n; i++) {
		uint64_t len = tx->iov[i].iov_len;
		uint64_t m;

		if (pos >= len) {
			pos -= len;
			continue;
		}
		m = len - pos < n ? len - pos : n;
		/* No bytes there or here: phantom memory. */
		if (tx->iov[i].iov_base && dst)
			kvs_dma_move(
				to, (const char *)tx->iov[i].iov_base + pos, m);
		if (dst)
			to += m;
		n -= m;
		pos = 0;
	}
}

/* Ask for a place. Return: false when the connection is over. */
static bool begin_payload(struct loop_conn *c, struct loop_event *e)
{
	const struct kvs_frame *f = (const void *)e->tx->frame;
	struct kvs_frame *lie = NULL;
	uint64_t len;
	int rc = 0;

	e->begun = true;
	c->rx_active = true;
	if (c->flushing) {
		c->rx_drop = true;
		return true;
	}
	if (e->fault == KVS_LOOP_LIE) {
		rc = kvs_loop_lie(c->f, e->at, f, &lie);
		f = lie;
	}
	if (!rc)
		rc = kvs_frame_check(&c->c, f);
	memset(&c->rx, 0, sizeof(c->rx));
	len = rc ? 0 : kvs_get32(f->payload);
	c->rx.len = len;
	if (!rc) {
		c->ep->handled++;
		rc = c->c.ops->payload(&c->c, f, &c->rx);
	}
	free(lie);
	if (rc < 0) {
		kvs_loop_die(c, rc);
		return false;
	}
	c->rx.len = len;
	c->rx.got = 0;
	c->rx_live = true;
	c->rx_drop = !c->rx.addr;
	/* The callback may have ended it, from either side. */
	if (c->dying || !c->peer)
		return false;
	if (e->len > len) {
		e->len = len;
		e->stop_at = len;
	}
	return true;
}

/* The bytes came to an end where the header said they would not. */
static void end_lie(struct loop_conn *c)
{
	if (c->rx_live && c->rx.got == c->rx.len)
		payload_done(c, 0);
	kvs_loop_die(c, -EPROTO);
}

static void deliver_data(struct loop_conn *c)
{
	struct kvs_fabric *f = c->f;
	struct loop_event *e = first(c);
	struct kvs_tx *tx = e->tx;
	uint64_t n;

	if (!e->begun && !begin_payload(c, e))
		return;
	n = kvs_loop_piece(f, e);
	if (c->rx_drop) {
		c->c.t->stats.rx_dropped += n;
	} else {
		kvs_loop_placing(f, (const void *)tx->frame, NULL, false,
				 (char *)c->rx.addr + c->rx.got, n);
		kvs_loop_copy(tx, e->pos, (char *)c->rx.addr + c->rx.got, n);
		c->rx.got += n;
		c->c.t->stats.rx_bytes += n;
	}
	e->pos += n;
	c->ep->handled++;
	c->peer->c.t->stats.tx_bytes += n;
	if (e->pos < e->len) {
		if (e->pos == e->stop_at) {
			e->stop_at = e->len;
			c->stalled = true;
			kvs_loop_count(f, KVS_LOOP_STALL);
		}
		c->free_at = c->slot.due;
		schedule(c);
		return;
	}
	if (e->fault == KVS_LOOP_LIE) {
		pop(c);
		end_lie(c);
		return;
	}
	pop(c);
	kvs_list_del(&tx->node);
	kvs_list_add_tail(&c->peer->txdone, &tx->node);
	kvs_loop_want_self(c->peer);
	c->rx_active = false;
	if (c->rx_live)
		payload_done(c, 0);
}

/* A frame that seems to be in front of a payload: a few bytes of one come. */
static int begin_lie(struct loop_conn *c, const struct kvs_frame *f)
{
	uint32_t len = kvs_get32(f->payload);
	int rc;

	memset(&c->rx, 0, sizeof(c->rx));
	c->rx.len = len;
	rc = c->c.ops->payload(&c->c, f, &c->rx);
	if (rc < 0)
		return rc;
	c->rx.len = len;
	c->rx.got = 0;
	c->rx_live = true;
	c->rx_active = true;
	if (c->rx.addr && !c->dying) {
		c->rx.got = len < 16 ? len : 16;
		memset(c->rx.addr, 0xa5, c->rx.got);
	}
	return -ECONNRESET;
}

static int take_frame(struct loop_conn *c, const struct loop_event *e)
{
	const struct kvs_frame *f = (const void *)e->frame;
	struct kvs_frame *lie = NULL;
	unsigned int gen = c->gen;
	int rc = 0;

	if (e->fault == KVS_LOOP_LIE) {
		rc = kvs_loop_lie(c->f, e->at, f, &lie);
		f = lie;
	}
	if (!rc)
		rc = kvs_frame_check(&c->c, f);
	if (!rc) {
		c->ep->handled++;
		c->in_frame = true;
		if (kvs_get32(f->payload))
			rc = begin_lie(c, f);
		else
			rc = c->c.ops->frame ? c->c.ops->frame(&c->c, f)
					     : -EPROTO;
	}
	free(lie);
	if (c->gen == gen && lie && rc >= 0)
		rc = -EPROTO; /* what follows would be out of step */
	return rc;
}

/* It comes once more, behind what is queued. */
static void repeat_frame(struct loop_conn *c, const struct loop_event *e)
{
	struct loop_event *again = kvs_loop_event_new(LOOP_FRAME, e->size);

	if (!again)
		return;
	memcpy(again->frame, e->frame, e->size);
	kvs_loop_count(c->f, e->fault);
	post(c->f, c, again);
}

static void deliver_frame(struct loop_conn *c)
{
	struct loop_event *e = first(c);
	unsigned int gen = c->gen;
	int rc = 0;

	/* Out of the queue first: frame() may detach, and must find it gone. */
	kvs_list_del(&e->node);
	c->free_at = c->slot.due;
	if (c->peer)
		c->peer->out_bytes -= e->charge;
	schedule(c);
	if (e->fault == KVS_LOOP_DUPLICATE || e->fault == KVS_LOOP_REPEAT)
		repeat_frame(c, e);
	if (e->fault == KVS_LOOP_DROP)
		kvs_loop_count(c->f, e->fault);
	else if (!c->flushing)
		rc = take_frame(c, e);
	kvs_loop_event_free(e);
	if (c->gen != gen)
		return;
	c->in_frame = false;
	if (rc < 0)
		kvs_loop_die(c, rc);
}

static void deliver_accept(struct loop_conn *c)
{
	struct loop_listener *l = c->ep->listener;
	struct kvs_fabric *f = c->f;

	pop(c);
	if (!l || c->ep->closing || l->l.accepted(&c->c, l->l.arg) ||
	    !c->c.ops) {
		c->c.ops = NULL;
		kvs_loop_cut(c, LOOP_REFUSED);
		kvs_loop_die(c, -ECONNREFUSED);
		return;
	}
	c->ep->handled++;
	c->c.t->stats.accepted++;
	if (kvs_loop_post(f, c->peer, LOOP_OPENED))
		kvs_loop_die(c, -ENOMEM);
}

void kvs_loop_deliver(struct loop_conn *c)
{
	enum loop_event_type type = first(c)->type;

	if (kvs_loop_strike(c, first(c)))
		return;
	switch (type) {
	case LOOP_ACCEPT:
		deliver_accept(c);
		break;
	case LOOP_OPENED:
		pop(c);
		c->ep->handled++;
		if (c->c.ops->opened)
			c->c.ops->opened(&c->c);
		break;
	case LOOP_REFUSED:
		pop(c);
		kvs_loop_die(c, -ECONNREFUSED);
		break;
	case LOOP_FRAME:
		deliver_frame(c);
		break;
	case LOOP_DATA:
		deliver_data(c);
		break;
	case LOOP_WRITE:
	case LOOP_READ:
		KVS_ASSERT(!"off the wire");
		break;
	case LOOP_FIN:
		/* A payload cut short is as bad as a reset. */
		pop(c);
		kvs_loop_die(c, c->rx_active ? -ECONNRESET : 0);
		break;
	case LOOP_RST:
		pop(c);
		kvs_loop_die(c, -ECONNRESET);
		break;
	}
}

/* ---- sending ---- */

static bool can_send(const struct loop_conn *c)
{
	return !c->dying && !c->flushing && c->peer && c->ep && !c->ep->dead &&
	       !c->ep->closing;
}

int kvs_loop_send(struct kvs_conn *conn, const struct kvs_frame *f, size_t len)
{
	struct loop_conn *c = kvs_loop_conn_of(conn);
	struct loop_event *e;

	if (!can_send(c))
		return -EPIPE;
	if (c->out_bytes + len > conn->t->send_queue_max)
		return -ENOBUFS;
	e = kvs_loop_event_new(LOOP_FRAME, len);
	if (!e)
		return -ENOMEM;
	memcpy(e->frame, f, len);
	c->out_bytes += len;
	e->charge = len;
	conn->t->stats.tx_bytes += len;
	launch(c, e);
	return 0;
}

int kvs_loop_write(struct kvs_conn *conn, struct kvs_tx *tx)
{
	struct loop_conn *c = kvs_loop_conn_of(conn);
	const struct kvs_frame *f = (const void *)tx->frame;
	struct loop_event *e;

	if (!can_send(c))
		return -EPIPE;
	if (tx->one_sided)
		return kvs_loop_launch_write(c, tx);
	if (!kvs_get32(f->payload)) {
		int rc = kvs_loop_send(conn, f, KVS_DATA_FRAME);

		if (!rc) {
			kvs_list_add_tail(&c->txdone, &tx->node);
			kvs_loop_want_self(c);
		}
		return rc;
	}
	e = kvs_loop_event_new(LOOP_DATA, 0);
	if (!e)
		return -ENOMEM;
	e->tx = tx;
	e->len = kvs_get32(f->payload);
	e->stop_at = e->len;
	kvs_list_add_tail(&c->txq, &tx->node);
	launch(c, e);
	return 0;
}

int kvs_loop_read(struct kvs_conn *conn, struct kvs_read *rd)
{
	struct loop_conn *c = kvs_loop_conn_of(conn);

	return can_send(c) ? kvs_loop_launch_read(c, rd) : -EPIPE;
}

void kvs_loop_close(struct kvs_conn *conn, int err, bool flush)
{
	struct loop_conn *c = kvs_loop_conn_of(conn);

	if (err > 0)
		err = -err;
	if (c->dying || (c->flushing && flush))
		return;
	if (c->flushing || !flush || kvs_list_empty(&c->txq)) {
		kvs_loop_die(c, err);
		return;
	}
	c->flushing = true;
	c->err = err;
	c->deadline = kvs_loop_now(c->f) + KVS_LOOP_FLUSH_NS;
	kvs_list_add_tail(&c->ep->flush, &c->flush);
	kvs_loop_want_self(c);
}

/* @status: of all, or 0: each has its own. */
static void tx_finish(struct loop_conn *c, struct kvs_list *l, int status)
{
	struct kvs_tx *tx;

	while (!kvs_list_empty(l)) {
		tx = kvs_list_first(l, struct kvs_tx, node);
		kvs_list_del(&tx->node);
		c->ep->handled++;
		tx->done(&c->c, tx, status ? status : tx->status);
	}
}

static void rd_finish(struct loop_conn *c, struct kvs_list *l, int status)
{
	struct kvs_read *rd;

	while (!kvs_list_empty(l)) {
		rd = kvs_list_first(l, struct kvs_read, node);
		kvs_list_del(&rd->node);
		c->ep->handled++;
		rd->done(&c->c, rd, status ? status : rd->status);
	}
}

void kvs_loop_self(struct loop_conn *c)
{
	int status;

	tx_finish(c, &c->txdone, 0);
	rd_finish(c, &c->rddone, 0);
	if (c->flushing && !c->dying) {
		if (c->rx_live)
			payload_done(c, c->err < 0 ? c->err : -ECONNABORTED);
		c->rx_drop = true;
		if (kvs_list_empty(&c->txq))
			kvs_loop_die(c, c->err);
	}
	if (!c->dying)
		return;
	kvs_loop_cut(c, LOOP_FIN);
	kvs_loop_wire_purge(c);
	status = c->err < 0 ? c->err : -ECONNABORTED;
	if (c->rx_live)
		payload_done(c, status);
	tx_finish(c, &c->txq, status);
	rd_finish(c, &c->rdq, status);
	c->ep->handled++;
	if (c->c.ops && c->c.ops->closed)
		c->c.ops->closed(&c->c, c->err);
	kvs_loop_conn_free(c);
}
