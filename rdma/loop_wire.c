/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fabric itself carries: one-sided writes and reads, and whatever
 * was sent behind them. See loop_internal.h. No callback comes from here.
 *
 * Of each wire only the first event has a place in f->wire, so that a
 * connection keeps its order as a reliable queue pair does; ghosts have theirs
 * each. n_wire counts both: the heap has room before it is needed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pinned/poison.h"
#include "rdma/loop_internal.h"

#define RUN_BUDGET 4096 /* pieces of one run */
#define GHOST_MAX KVS_NSEC_PER_MSEC

static struct loop_event *first(const struct loop_conn *c)
{
	return kvs_list_first(&c->wire, struct loop_event, node);
}

static bool one_sided(const struct loop_event *e)
{
	return e->type == LOOP_WRITE || e->type == LOOP_READ;
}

static void put(struct kvs_fabric *f, struct loop_event *e, uint64_t due)
{
	e->slot.due = due;
	e->slot.tie = kvs_rng_next(&f->rng);
	e->slot.id = f->next_id++;
	kvs_loop_heap_put(&f->wire, &e->slot);
}

/* The next piece of the first event: when? */
static void schedule(struct loop_conn *c)
{
	struct loop_event *e;
	uint64_t t;

	if (kvs_list_empty(&c->wire))
		return;
	e = first(c);
	if (!kvs_list_empty(&e->held))
		return;
	t = e->ready > c->wire_free_at ? e->ready : c->wire_free_at;
	if (one_sided(e))
		t = kvs_loop_line(c->f, e, t);
	put(c->f, e, t);
}

static void unlink_event(struct loop_conn *c, struct loop_event *e)
{
	struct kvs_fabric *f = c->f;

	kvs_loop_heap_del(&f->wire, &e->slot);
	kvs_list_del(&e->held);
	kvs_list_del(&e->node);
	if (e->ghost || kvs_list_empty(&c->wire))
		f->n_wire--;
}

/* Take the first event off; the next one moves up. */
static void pop(struct loop_conn *c, struct loop_event *e)
{
	c->wire_free_at = e->slot.due;
	unlink_event(c, e);
	schedule(c);
}

static void hold(struct loop_event *e, struct kvs_list *where)
{
	kvs_loop_heap_del(&e->to->f->wire, &e->slot);
	kvs_list_add_tail(where, &e->held);
}

void kvs_loop_wire_resume(struct kvs_fabric *f, struct loop_event *e,
			  uint64_t delay)
{
	kvs_list_del(&e->held);
	if (e->fault == KVS_LOOP_LATE)
		kvs_loop_count(f, e->fault);
	put(f, e, kvs_loop_now(f) + delay);
}

/* ---- launching ---- */

static uint64_t payload_len(const struct kvs_tx *tx)
{
	uint64_t len = 0;
	size_t i;

	for (i = 0; i < tx->n_iov; i++)
		len += tx->iov[i].iov_len;
	return len;
}

/* Not before anything that began, and only before a write. */
static bool overtake(struct loop_conn *to, struct loop_event *e)
{
	struct loop_event *prev;

	if (kvs_list_empty(&to->wire))
		return false;
	prev = kvs_list_entry(to->wire.prev, struct loop_event, node);
	if (prev->type != LOOP_WRITE || prev->begun)
		return false;
	kvs_loop_heap_del(&to->f->wire, &prev->slot);
	kvs_list_add_tail(&prev->node, &e->node);
	kvs_loop_count(to->f, KVS_LOOP_REORDER);
	return true;
}

static int launch(struct loop_conn *c, struct loop_event *e)
{
	struct loop_conn *to = c->peer;
	struct kvs_fabric *f = c->f;
	uint64_t off;

	if (kvs_list_empty(&to->wire)) {
		if (kvs_loop_heap_reserve(&f->wire, f->n_wire + 1))
			return -ENOMEM;
		f->n_wire++;
	}
	e->to = to;
	e->stop_at = e->len;
	e->land = e->len;
	e->was_good = kvs_loop_grant_find(to, &e->remote, e->len,
					  e->type == LOOP_READ, &off);
	kvs_loop_decide(c, e);
	e->ready = kvs_loop_now(f) + kvs_loop_latency(f);
	if (e->fault == KVS_LOOP_DELAY) {
		e->ready += e->at;
		kvs_loop_count(f, e->fault);
	}
	if (e->fault != KVS_LOOP_REORDER || !overtake(to, e))
		kvs_list_add_tail(&to->wire, &e->node);
	if (first(to) == e)
		schedule(to);
	return 0;
}

int kvs_loop_launch_write(struct loop_conn *c, struct kvs_tx *tx)
{
	struct loop_event *e = kvs_loop_event_new(LOOP_WRITE, KVS_DATA_FRAME);
	int rc;

	if (!e)
		return -ENOMEM;
	memcpy(e->frame, tx->frame, KVS_DATA_FRAME);
	e->tx = tx;
	e->len = payload_len(tx);
	e->remote = tx->remote;
	rc = launch(c, e);
	if (rc) {
		kvs_loop_event_free(e);
		return rc;
	}
	kvs_list_add_tail(&c->txq, &tx->node);
	return 0;
}

int kvs_loop_launch_read(struct loop_conn *c, struct kvs_read *rd)
{
	struct loop_event *e = kvs_loop_event_new(LOOP_READ, 0);
	int rc;

	if (!e)
		return -ENOMEM;
	e->rd = rd;
	e->len = rd->len;
	e->remote = rd->remote;
	rc = launch(c, e);
	if (rc) {
		kvs_loop_event_free(e);
		return rc;
	}
	kvs_list_add_tail(&c->rdq, &rd->node);
	return 0;
}

void kvs_loop_wire_add(struct loop_conn *to, struct loop_event *e)
{
	KVS_ASSERT(!kvs_list_empty(&to->wire));
	e->to = to;
	kvs_list_add_tail(&to->wire, &e->node);
}

/* ---- bytes without their sender ---- */

/* A payload of nothing but lengths: a phantom pool is being simulated. */
static bool phantom(const struct kvs_tx *tx)
{
	size_t i;

	for (i = 0; i < tx->n_iov; i++)
		if (tx->iov[i].iov_base)
			return false;
	return true;
}

/* Bytes of @e from @pos on into @to's own memory. */
static int take_bytes(struct loop_event *to, const struct loop_event *e,
		      uint64_t pos)
{
	unsigned char *p;

	if (pos == e->len || (e->tx ? phantom(e->tx) : !e->data))
		return 0;
	p = calloc(1, e->len - pos);
	if (!p)
		return -ENOMEM;
	if (e->tx)
		kvs_loop_copy(e->tx, pos, p, e->len - pos);
	else
		memcpy(p, e->data + (pos - e->data_at), e->len - pos);
	to->data = p;
	to->data_at = pos;
	return 0;
}

void kvs_loop_wire_orphan(struct loop_conn *c)
{
	struct loop_event *e;
	struct loop_event *tmp;

	kvs_list_for_each_entry_safe(e, tmp, &c->wire, node) {
		if (e->type == LOOP_WRITE && e->tx) {
			/* out of memory: the rest of it is lost */
			if (take_bytes(e, e, e->pos))
				e->land = e->pos;
			e->tx = NULL;
		} else if (e->type == LOOP_READ || e->type == LOOP_DATA) {
			unlink_event(c, e);
			kvs_loop_event_free(e);
		}
	}
	if (!kvs_list_empty(&c->wire) && !kvs_loop_heap_has(&first(c)->slot))
		schedule(c);
}

/* It will land once more, or at last, when nobody waits for it. */
static bool haunt(const struct loop_event *e)
{
	struct loop_conn *c = e->to;
	struct kvs_fabric *f = c->f;
	uint64_t max = f->plan.delay_max ? f->plan.delay_max : GHOST_MAX;
	struct loop_event *g;

	if (kvs_loop_heap_reserve(&f->wire, f->n_wire + 1))
		return false;
	g = kvs_loop_event_new(LOOP_WRITE, 0);
	if (!g)
		return false;
	g->pos = e->tx ? 0 : e->data_at;
	if (take_bytes(g, e, g->pos)) {
		kvs_loop_event_free(g);
		return false;
	}
	g->to = c;
	g->ghost = true;
	g->remote = e->remote;
	g->len = e->len;
	g->stop_at = e->len;
	g->land = e->len;
	g->was_good = true;
	kvs_list_add_tail(&c->ghosts, &g->node);
	f->n_wire++;
	put(f, g,
	    kvs_loop_now(f) + kvs_loop_latency(f) + 1 +
		    kvs_rng_below(&f->rng, max));
	return true;
}

/* ---- ends ---- */

static void purge(struct loop_conn *c, struct kvs_list *l)
{
	struct loop_event *e;

	while (!kvs_list_empty(l)) {
		e = kvs_list_first(l, struct loop_event, node);
		unlink_event(c, e);
		kvs_loop_event_free(e);
	}
}

void kvs_loop_wire_purge(struct loop_conn *c)
{
	purge(c, &c->wire);
	purge(c, &c->ghosts);
}

/* A reliable queue pair ends here, on both sides; a stray packet just does. */
static void refuse(struct loop_conn *c, struct loop_event *e)
{
	struct kvs_fabric *f = c->f;
	struct loop_conn *p = c->peer;

	f->faults.refused++;
	f->faults.refused_late += e->was_good;
	if (e->ghost) {
		unlink_event(c, e);
		kvs_loop_event_free(e);
		return;
	}
	if (e->tx) {
		e->tx->status = -EREMOTEIO;
		kvs_list_del(&e->tx->node);
		kvs_list_add_tail(&p->txdone, &e->tx->node);
	}
	if (e->rd) {
		e->rd->status = -EREMOTEIO;
		kvs_list_del(&e->rd->node);
		kvs_list_add_tail(&p->rddone, &e->rd->node);
	}
	/* what is queued behind it stays in txq and rdq, to fail there */
	purge(c, &c->wire);
	if (p) {
		kvs_loop_want_self(p);
		kvs_loop_die(p, -EREMOTEIO);
	}
	kvs_loop_die(c, -EACCES);
}

static void finish_write(struct loop_conn *c, struct loop_event *e)
{
	struct kvs_fabric *f = c->f;

	if (e->ghost) {
		unlink_event(c, e);
		kvs_loop_event_free(e);
		return;
	}
	if (e->fault == KVS_LOOP_DUPLICATE && e->len && haunt(e))
		kvs_loop_count(f, e->fault);
	if (e->tx) {
		kvs_list_del(&e->tx->node);
		kvs_list_add_tail(&c->peer->txdone, &e->tx->node);
		kvs_loop_want_self(c->peer);
	}
	pop(c, e);
	free(e->data);
	e->data = NULL;
	e->tx = NULL;
	e->type = LOOP_FRAME;
	if (e->fault != KVS_LOOP_REPEAT && e->fault != KVS_LOOP_LIE)
		e->fault = KVS_LOOP_NO_FAULT;
	e->ready = kvs_loop_now(f);
	kvs_loop_queue(c, e);
}

static void finish_read(struct loop_conn *c, struct loop_event *e)
{
	kvs_list_del(&e->rd->node);
	kvs_list_add_tail(&c->peer->rddone, &e->rd->node);
	kvs_loop_want_self(c->peer);
	pop(c, e);
	kvs_loop_event_free(e);
}

/* ---- pieces ---- */

/* Return: false when it must wait. */
static bool begin(struct kvs_fabric *f, struct loop_event *e)
{
	e->begun = true;
	if (e->fault == KVS_LOOP_LATE && e->len) {
		hold(e, &f->late);
		return false;
	}
	if (e->fault == KVS_LOOP_DROP || e->fault == KVS_LOOP_SHORT) {
		e->land = e->fault == KVS_LOOP_DROP ? 0 : e->at;
		if (e->land < e->len)
			kvs_loop_count(f, e->fault);
	}
	if (e->fault == KVS_LOOP_OVERTAKE && e->len && haunt(e)) {
		e->land = 0;
		kvs_loop_count(f, e->fault);
	}
	if (!e->stop_at && e->len) {
		e->stop_at = e->len;
		kvs_loop_count(f, KVS_LOOP_STALL);
		hold(e, &f->held);
		return false;
	}
	return true;
}

static void land(struct loop_conn *c, const struct loop_event *e, void *there,
		 uint64_t n)
{
	struct kvs_fabric *f = c->f;
	void *to = there;

	if (e->rd)
		to = (char *)e->rd->addr + e->pos;
	kvs_loop_placing(f, NULL, &e->remote, e->rd != NULL, to, n);
	if (e->rd) {
		if (there)
			kvs_dma_move(to, there, n);
		c->peer->c.t->stats.rx_bytes += n;
		return;
	}
	if (e->tx)
		kvs_loop_copy(e->tx, e->pos, there, n);
	else if (e->data && there)
		kvs_dma_move(there, e->data + (e->pos - e->data_at), n);
	c->c.t->stats.rx_bytes += n;
	if (e->tx)
		c->peer->c.t->stats.tx_bytes += n;
	f->faults.landed += n;
	if (!e->tx && !c->peer)
		f->faults.orphaned += n;
}

static void step(struct loop_conn *c, struct loop_event *e)
{
	struct kvs_fabric *f = c->f;
	const struct kvs_grant_range *r = NULL;
	uint64_t off = 0;
	uint64_t n;
	uint64_t m;

	if (e->len) {
		r = kvs_loop_grant_find(c, &e->remote, e->len,
					e->type == LOOP_READ, &off);
		if (!r) {
			/* it came too late without being held for it */
			if (e->fault == KVS_LOOP_LATE && !e->begun &&
			    e->was_good)
				kvs_loop_count(f, e->fault);
			refuse(c, e);
			return;
		}
	}
	if (!e->begun && !begin(f, e))
		return;
	n = kvs_loop_piece(f, e);
	m = e->pos < e->land ? e->land - e->pos : 0;
	m = m < n ? m : n;
	if (m && r)
		land(c, e, r->addr ? (char *)r->addr + off + e->pos : NULL, m);
	e->pos += n;
	if (e->pos < e->len) {
		if (e->pos == e->stop_at) {
			e->stop_at = e->len;
			kvs_loop_count(f, KVS_LOOP_STALL);
			hold(e, &f->held);
		} else if (e->ghost) {
			put(f, e, kvs_loop_line(f, e, e->slot.due));
		} else {
			c->wire_free_at = e->slot.due;
			schedule(c);
		}
		return;
	}
	if (e->type == LOOP_READ)
		finish_read(c, e);
	else
		finish_write(c, e);
}

unsigned int kvs_loop_wire_run(struct kvs_fabric *f)
{
	uint64_t now = kvs_loop_now(f);
	struct loop_slot *s;
	struct loop_event *e;
	unsigned int n;

	for (n = 0; n < RUN_BUDGET; n++) {
		s = kvs_loop_heap_first(&f->wire);
		if (!s || s->due > now)
			break;
		e = kvs_container_of(s, struct loop_event, slot);
		if (one_sided(e)) {
			if (e->ghost || !kvs_loop_strike(e->to, e))
				step(e->to, e);
			continue;
		}
		pop(e->to, e);
		e->ready = now;
		kvs_loop_queue(e->to, e);
	}
	return n;
}
