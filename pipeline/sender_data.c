/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "pipeline/layout.h"
#include "pipeline/sender_internal.h"

#define KVS_SEND_RETRY_MIN (10 * KVS_NSEC_PER_MSEC)
#define KVS_SEND_RETRY_MAX (1000 * KVS_NSEC_PER_MSEC)

static void worker_due(struct kvs_timer *t);

struct kvs_send_worker *kvs_send_worker_get(struct kvs_sender *s,
					    uint32_t index)
{
	struct kvs_send_worker *w;
	unsigned int i;

	kvs_list_for_each_entry(w, &s->workers, node) {
		if (w->index == index)
			return w;
	}
	if (s->n_workers == KVS_SEND_WORKERS_MAX)
		return NULL;
	w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->s = s;
	w->index = index;
	kvs_list_init(&w->run);
	kvs_list_init(&w->copied);
	kvs_timer_init(&w->timer, worker_due);
	for (i = 0; i < KVS_SEND_SLOTS_MAX; i++) {
		w->slot[i].w = w;
		w->slot[i].index = i;
		kvs_list_init(&w->slot[i].calls);
	}
	kvs_list_add_tail(&s->workers, &w->node);
	s->n_workers++;
	return w;
}

static uint64_t chunk_max(const struct kvs_send_room *r)
{
	return r->batch_max < r->s->chunk_max ? r->batch_max : r->s->chunk_max;
}

/* What one hung call may strand is not exceeded by another chunk. */
static bool batch_open(const struct kvs_send_room *r)
{
	return !r->inflight || r->inflight + chunk_max(r) <= r->batch_max;
}

void kvs_send_worker_run(struct kvs_send_worker *w, struct kvs_send_room *r)
{
	if (!kvs_list_empty(&r->run_node) || !batch_open(r))
		return;
	/* trouble of a time when nobody waited is not held against this one */
	if (kvs_list_empty(&w->run))
		w->trouble = 0;
	kvs_list_add_tail(&w->run, &r->run_node);
}

static bool has_ready(const struct kvs_send_worker *w)
{
	unsigned int i;

	for (i = 0; i < w->s->slots; i++) {
		if (w->slot[i].state == KVS_SEND_SLOT_READY)
			return true;
	}
	return false;
}

/* When the call at the head of a connection is overdue; the others wait for it
 * and have not begun (R14). */
static uint64_t call_due(const struct kvs_send_slot *sl)
{
	const struct kvs_send_chunk *k;

	if (sl->state != KVS_SEND_SLOT_READY || kvs_list_empty(&sl->calls))
		return KVS_TIME_NEVER;
	k = kvs_list_first(&sl->calls, struct kvs_send_chunk, node);
	return sl->call_at + k->room->call_timeout;
}

/* Has it work, or must it be ready before it can have any? */
static bool wanted(const struct kvs_send_worker *w)
{
	return !kvs_list_empty(&w->run) || !kvs_list_empty(&w->copied) ||
	       w->index < w->s->at_once;
}

/* Next retry or deadline of a slot; none when there is nothing to wait for. */
static void worker_arm(struct kvs_send_worker *w)
{
	uint64_t at = KVS_TIME_NEVER;
	bool idle = false;
	unsigned int i;

	for (i = 0; i < w->s->slots; i++) {
		struct kvs_send_slot *sl = &w->slot[i];

		if (sl->state == KVS_SEND_SLOT_IDLE)
			idle = true;
		else if (sl->state != KVS_SEND_SLOT_READY &&
			 sl->state != KVS_SEND_SLOT_CLOSING &&
			 sl->deadline < at)
			at = sl->deadline;
		if (call_due(sl) < at)
			at = call_due(sl);
	}
	if (idle && wanted(w) && w->retry_at < at)
		at = w->retry_at;
	if (at == KVS_TIME_NEVER)
		kvs_timer_cancel(&w->s->timers, &w->timer);
	else if (kvs_timer_set(&w->s->timers, &w->timer, at))
		kvs_log_debug("sender: timer: out of memory");
}

/* May its chunks go there? */
static bool may_carry(const struct kvs_send_room *r, unsigned int slot)
{
	return !r->remote.paths || r->remote.paths & 1ULL << slot;
}

static bool has_way(const struct kvs_send_worker *w,
		    const struct kvs_send_room *r)
{
	unsigned int i;

	for (i = 0; i < w->s->slots; i++)
		if (w->slot[i].state == KVS_SEND_SLOT_READY && may_carry(r, i))
			return true;
	return false;
}

static bool stranded(const struct kvs_send_slot *sl,
		     const struct kvs_send_room *r)
{
	return r->state == KVS_SEND_GRANTED && r->remote.paths &&
	       may_carry(r, sl->index) && !has_way(sl->w, r);
}

/* A room whose keys are for connections that are not to be had. */
static struct kvs_send_room *find_stranded(const struct kvs_send_slot *sl)
{
	struct kvs_send_room *r;
	struct kvs_send_chunk *k;

	kvs_list_for_each_entry(r, &sl->w->run, run_node)
		if (stranded(sl, r))
			return r;
	kvs_list_for_each_entry(k, &sl->w->copied, node)
		if (stranded(sl, k->room))
			return k->room;
	return NULL;
}

static void slot_given_up(struct kvs_send_slot *sl, int err, const char *why)
{
	struct kvs_send_room *r;

	while ((r = find_stranded(sl)))
		kvs_send_room_fail(r, err < 0 ? -err : err, why, true);
}

/* A connection could not be had: not a lost peer, so say what it was. */
static void slot_failed(struct kvs_send_slot *sl, int err, const char *text)
{
	struct kvs_send_worker *w = sl->w;
	struct kvs_sender *s = w->s;
	uint64_t now = kvs_sender_now(s);
	struct kvs_send_chunk *k;
	char why[KVS_SEND_TEXT + 128];
	int e = err < 0 ? -err : err;

	sl->state = KVS_SEND_SLOT_IDLE;
	/* once for all slots that failed together */
	if (now >= w->retry_at) {
		w->backoff = w->backoff ? w->backoff * 2 : KVS_SEND_RETRY_MIN;
		if (w->backoff > KVS_SEND_RETRY_MAX)
			w->backoff = KVS_SEND_RETRY_MAX;
		w->retry_at = now + w->backoff;
	}
	if (!sl->trouble)
		sl->trouble = now;
	snprintf(why, sizeof(why), "no data connection to worker %u: %s%s%s",
		 w->index, kvs_err_name(err), text[0] ? ": " : "", text);
	if (now - sl->trouble >= s->connect_timeout)
		slot_given_up(sl, err, why);
	if (has_ready(w))
		return;
	if (!w->trouble) {
		w->trouble = now;
		kvs_log_warn("sender %s/%u: no data connection to worker %u: "
			     "%s%s%s; its rooms wait",
			     s->peer, s->rank, w->index, kvs_err_name(err),
			     text[0] ? ": " : "", text);
	}
	if (now - w->trouble < s->connect_timeout)
		return;
	while (!kvs_list_empty(&w->run)) {
		struct kvs_send_room *r =
			kvs_list_first(&w->run, struct kvs_send_room, run_node);

		/* Nothing of it was sent, or it would be poisoned by now.
		 * What one connection was refused for, as its key, another
		 * need not be: never EACCES, which is class 400. */
		kvs_send_room_fail(r, e == EACCES ? ECONNREFUSED : e, why,
				   true);
	}
	kvs_list_for_each_entry(k, &w->copied, node)
		kvs_send_room_fail(k->room, e == EACCES ? ECONNREFUSED : e, why,
				   true);
	w->trouble = 0;
}

static int slot_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct kvs_send_slot *sl = kvs_conn_user(c);
	struct kvs_sender *s = sl->w->s;
	const char *reason;
	struct kvs_msg m;
	int r;

	if (kvs_wire_decode(f, kvs_get32(f->len), &s->scratch, &m, &reason))
		return -EPROTO;
	if (m.type == KVS_WIRE_ERROR) {
		sl->said = (int)m.error.err;
		memcpy(sl->text, m.error.text, sizeof(sl->text));
		return -sl->said;
	}
	if (m.type == KVS_WIRE_KEEPALIVE && !m.keepalive.reply) {
		m.keepalive.reply = 1;
		kvs_sender_say_on(s, c, &m);
		return 0;
	}
	if (sl->state != KVS_SEND_SLOT_HELLO)
		return -EPROTO;
	r = kvs_sender_greeted(s, c, &sl->auth, &m, &reason);
	if (r < 0)
		snprintf(sl->text, sizeof(sl->text), "%s", reason);
	if (r <= 0)
		return r;
	sl->state = KVS_SEND_SLOT_READY;
	sl->trouble = 0;
	sl->w->backoff = 0;
	sl->w->trouble = 0;
	worker_arm(sl->w);
	return 0;
}

static void slot_opened(struct kvs_conn *c)
{
	struct kvs_send_slot *sl = kvs_conn_user(c);

	sl->state = KVS_SEND_SLOT_HELLO;
	(void)kvs_sender_greet(sl->w->s, c, &sl->auth, KVS_ROLE_DATA,
			       sl->w->index, sl->index);
}

/*
 * What the kernel took may never have arrived: rooms that sent bytes here and
 * have no COMPLETE cannot say how much of them did.
 */
static void slot_lost(struct kvs_send_slot *sl, int err)
{
	struct kvs_sender *s = sl->w->s;
	struct kvs_send_room *r;
	char why[KVS_SEND_TEXT + 128];

	snprintf(why, sizeof(why), "data connection to worker %u lost: %s%s%s",
		 sl->w->index, kvs_err_name(err), sl->text[0] ? ": " : "",
		 sl->text);
	pthread_mutex_lock(&s->lock);
	kvs_list_for_each_entry(r, &s->all, all_node) {
		if (r->worker != sl->w || !(r->used & (1ULL << sl->index)))
			continue;
		kvs_send_room_poison(r, ECONNRESET, why);
	}
	pthread_mutex_unlock(&s->lock);
}

static void slot_closed(struct kvs_conn *c, int err)
{
	struct kvs_send_slot *sl = kvs_conn_user(c);
	struct kvs_send_worker *w = sl->w;
	bool was_ready = sl->state == KVS_SEND_SLOT_READY ||
			 sl->state == KVS_SEND_SLOT_CLOSING;

	w->s->n_conns--;
	kvs_auth_sender_fini(&sl->auth);
	sl->conn = NULL;
	sl->state = KVS_SEND_SLOT_IDLE;
	if (!err)
		err = sl->said ? -sl->said : -ECONNRESET;
	if (w->s->stopping || w->s->state == KVS_SENDER_GONE)
		return;
	if (was_ready)
		slot_lost(sl, err);
	else
		slot_failed(sl, err, sl->text);
	worker_arm(w);
}

static const struct kvs_conn_ops slot_ops = {
	.opened = slot_opened,
	.frame = slot_frame,
	.closed = slot_closed,
};

/* Connect what is missing, now that a room needs it. */
static void worker_kick(struct kvs_send_worker *w)
{
	struct kvs_sender *s = w->s;
	uint64_t now = kvs_sender_now(s);
	unsigned int i;
	int r;

	for (i = 0; i < s->slots && now >= w->retry_at; i++) {
		struct kvs_send_slot *sl = &w->slot[i];

		if (sl->state != KVS_SEND_SLOT_IDLE)
			continue;
		sl->said = 0;
		sl->text[0] = '\0';
		sl->deadline = now + s->connect_timeout;
		r = kvs_transport_connect(s->t, &s->addr, KVS_CONN_DATA,
					  &slot_ops, sl, &sl->conn);
		if (r) {
			sl->conn = NULL;
			slot_failed(sl, r, "");
			continue;
		}
		sl->state = KVS_SEND_SLOT_CONNECTING;
		s->n_conns++;
	}
	worker_arm(w);
}

static void worker_due(struct kvs_timer *t)
{
	struct kvs_send_worker *w =
		kvs_container_of(t, struct kvs_send_worker, timer);
	uint64_t now = kvs_sender_now(w->s);
	unsigned int i;

	for (i = 0; i < w->s->slots; i++) {
		struct kvs_send_slot *sl = &w->slot[i];

		if (now >= call_due(sl)) {
			/* R5: nobody knows how much of it arrived. */
			snprintf(sl->text, sizeof(sl->text),
				 "a chunk was not taken within "
				 "transfer.call_timeout");
			sl->state = KVS_SEND_SLOT_CLOSING;
			kvs_conn_close(sl->conn, -ETIMEDOUT, false);
			continue;
		}
		if ((sl->state != KVS_SEND_SLOT_CONNECTING &&
		     sl->state != KVS_SEND_SLOT_HELLO) ||
		    now < sl->deadline)
			continue;
		sl->deadline = KVS_TIME_NEVER;
		kvs_conn_close(sl->conn, -ETIMEDOUT, false);
	}
	/* the pump that follows kicks */
	worker_arm(w);
}

/* Least loaded, so that a slow connection does not gather the window. */
static struct kvs_send_slot *pick(struct kvs_send_worker *w,
				  const struct kvs_send_room *r)
{
	struct kvs_send_slot *best = NULL;
	unsigned int n = w->s->slots;
	unsigned int i;

	for (i = 0; i < n; i++) {
		struct kvs_send_slot *sl = &w->slot[(w->turn + i) % n];

		if (sl->state == KVS_SEND_SLOT_READY &&
		    may_carry(r, sl->index) &&
		    (!best || sl->inflight < best->inflight))
			best = sl;
	}
	if (best)
		w->turn = best->index + 1;
	return best;
}

/*
 * A queue pair goes with the first write that is refused on it, or is given up,
 * and takes with it the rooms that have bytes there. So a room has one, unless
 * it is too large for one. Which it may use the daemon says, or it is any.
 */
static struct kvs_send_slot *slot_for(struct kvs_send_worker *w,
				      struct kvs_send_room *r)
{
	if (r->striped)
		return pick(w, r);
	if (!r->home || r->home->state != KVS_SEND_SLOT_READY)
		r->home = pick(w, r);
	return r->home;
}

/* ---- chunks ---- */

/* It counts for the window and its room from when it is cut. */
static void chunk_charge(struct kvs_send_chunk *k)
{
	struct kvs_send_room *r = k->room;

	k->job->chunks++;
	r->s->chunks++;
	r->s->inflight += k->len;
	r->worker->inflight += k->len;
	r->inflight += k->len;
}

/* And no more; its job and its memory are given back. */
static void chunk_over(struct kvs_send_chunk *k)
{
	struct kvs_send_room *r = k->room;
	struct kvs_send_job *j = k->job;

	r->worker->inflight -= k->len;
	r->s->inflight -= k->len;
	r->s->chunks--;
	r->inflight -= k->len;
	j->chunks--;
	if (k->piece)
		kvs_send_piece_put(k->piece);
	free(k);
	kvs_send_job_put(r, j);
	kvs_send_room_dirty(r);
	if (r->state == KVS_SEND_GRANTED && !kvs_list_empty(&r->jobs))
		kvs_send_worker_run(r->worker, r);
}

/* Nothing of it is with the transport any more. */
static void chunk_take_back(struct kvs_send_chunk *k)
{
	kvs_list_del(&k->node);
	k->slot->inflight -= k->len;
	atomic_fetch_sub(&k->room->outstanding, 1);
}

static void chunk_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct kvs_send_chunk *k =
		kvs_container_of(tx, struct kvs_send_chunk, tx);
	struct kvs_send_room *r = k->room;
	char why[KVS_SEND_TEXT + 128];

	(void)c;
	chunk_take_back(k);
	k->slot->call_at = kvs_sender_now(r->s);
	if (status == -EPIPE || status == -ECONNABORTED)
		status = -ECONNRESET; /* the same to callers */
	if (status) {
		snprintf(why, sizeof(why),
			 "a send to worker %u failed, bytes unknown: %s%s%s",
			 k->slot->w->index, kvs_err_name(status),
			 k->slot->text[0] ? ": " : "", k->slot->text);
		k->job->status = status;
		kvs_send_room_poison(r, -status, why);
	} else {
		r->bytes += k->len;
	}
	chunk_over(k);
}

static struct kvs_send_chunk *chunk_create(struct kvs_send_room *r,
					   const struct kvs_send_slot *sl,
					   struct kvs_send_job *j,
					   struct kvs_msg *m, size_t n)
{
	struct kvs_sender *s = r->s;
	struct kvs_send_chunk *k;

	m->type = s->one_sided ? KVS_WIRE_CHUNK_DONE : KVS_WIRE_CHUNK;
	m->chunk.room = r->id;
	m->chunk.generation = r->generation;
	m->chunk.rank = s->rank;
	k = calloc(1, sizeof(*k) + n * sizeof(k->iov[0]));
	if (!k)
		return NULL;
	kvs_list_init(&k->node);
	k->room = r;
	k->job = j;
	k->m = m->chunk;
	k->len = m->chunk.len;
	memcpy(k->iov, s->iov, n * sizeof(k->iov[0]));
	k->tx.iov = k->iov;
	k->tx.n_iov = n;
	k->tx.done = chunk_done;
	k->tx.one_sided = s->one_sided;
	if ((s->one_sided &&
	     kvs_send_remote_key(&r->remote, s->layout, &m->chunk, sl->index,
				 &k->tx.remote)) ||
	    kvs_wire_encode(m, s->frame, sizeof(s->frame)) != KVS_DATA_FRAME) {
		free(k);
		return NULL;
	}
	memcpy(k->tx.frame, s->frame, KVS_DATA_FRAME);
	return k;
}

/* The bytes are read here and by the kernel soon after: hot once. */
static void chunk_digest(const struct kvs_send_chunk *k)
{
	const struct kvs_msg_chunk *m = &k->m;
	struct kvs_send_room *r = k->room;
	uint64_t at;
	int b;

	if (r->digest.kind == KVS_DIGEST_NONE)
		return;
	if (m->kind == KVS_KIND_AUX) {
		if (kvs_digest_map_aux(&r->map, m->offset, m->len, &at))
			return;
	} else {
		b = kvs_layout_find(r->s->layout, m->kind, m->layer);
		if (b < 0 || kvs_digest_map_run(&r->map, m->extent, (uint32_t)b,
						m->offset, m->len, &at))
			return;
	}
	/* A place that is not the rank's adds nothing; the daemon refuses
	 * such a chunk anyway. */
	for (size_t i = 0; i < k->tx.n_iov; i++) {
		(void)kvs_digest_add(&r->digest, at, k->tx.iov[i].iov_base,
				     k->tx.iov[i].iov_len);
		at += k->tx.iov[i].iov_len;
	}
}

/* Alone on its connection, it begins now; the timer may be later than that. */
static void call_begin(struct kvs_send_slot *sl, const struct kvs_send_chunk *k)
{
	struct kvs_timer *t = &sl->w->timer;

	if (kvs_list_first(&sl->calls, struct kvs_send_chunk, node) != k)
		return;
	sl->call_at = kvs_sender_now(sl->w->s);
	if (kvs_timer_is_set(t) && t->at <= call_due(sl))
		return;
	if (kvs_timer_set(&sl->w->s->timers, t, call_due(sl)))
		kvs_log_debug("sender: timer: out of memory");
}

static bool chunk_write(struct kvs_send_chunk *k, struct kvs_send_slot *sl)
{
	struct kvs_send_room *r = k->room;

	/* it may have been cut when another one was there */
	if (k->tx.one_sided)
		KVS_ASSERT(!kvs_send_remote_key(&r->remote, r->s->layout, &k->m,
						sl->index, &k->tx.remote));
	/* up before it leaves the queue, whatever becomes of it */
	atomic_fetch_add(&r->outstanding, 1);
	sl->inflight += k->len;
	k->slot = sl;
	kvs_list_add_tail(&sl->calls, &k->node);
	if (!kvs_conn_write(sl->conn, &k->tx)) {
		r->used |= 1ULL << sl->index;
		call_begin(sl, k);
		chunk_digest(k);
		return true;
	}
	/* closing, and not one byte of this was taken: back it goes */
	chunk_take_back(k);
	sl->state = KVS_SEND_SLOT_CLOSING;
	return false;
}

/* ---- by the bounce ring ---- */

static void chunk_drop(struct kvs_send_chunk *k)
{
	kvs_list_del(&k->node);
	if (!k->job->status)
		k->job->status = k->room->status;
	k->room->staged--;
	chunk_over(k);
}

void kvs_send_chunk_copied(struct kvs_send_piece *p, int status)
{
	struct kvs_send_chunk *k = p->user;
	struct kvs_send_room *r = k->room;
	char why[KVS_SEND_TEXT];

	if (status) {
		/* nothing of it was sent: a clean end */
		snprintf(why, sizeof(why),
			 "a copy from device %s to the bounce ring failed: %s",
			 kvs_device_name(r->s->device), kvs_err_name(status));
		k->job->status = status;
		kvs_send_room_fail(r, -status, why, true);
	}
	if (r->state != KVS_SEND_GRANTED)
		chunk_drop(k);
	else
		kvs_list_add_tail(&r->worker->copied, &k->node);
}

void kvs_send_worker_drop(struct kvs_send_worker *w, struct kvs_send_room *r)
{
	struct kvs_send_chunk *k, *tmp;

	kvs_list_for_each_entry_safe(k, tmp, &w->copied, node) {
		if (k->room == r)
			chunk_drop(k);
	}
}

void kvs_sender_staged_drop(struct kvs_sender *s)
{
	struct kvs_send_worker *w;
	struct kvs_send_piece *p;

	kvs_list_for_each_entry(w, &s->workers, node) {
		while (!kvs_list_empty(&w->copied))
			chunk_drop(kvs_list_first(&w->copied,
						  struct kvs_send_chunk, node));
	}
	if (!kvs_send_bounces(s))
		return;
	kvs_list_for_each_entry(p, &s->ring.copying, node) {
		if (!p->put)
			chunk_drop(p->user);
	}
}

/* To the connections, what was copied; what has none waits. */
static void push_copied(struct kvs_send_worker *w)
{
	struct kvs_send_chunk *k, *tmp;
	struct kvs_send_slot *sl;

	kvs_list_for_each_entry_safe(k, tmp, &w->copied, node) {
		sl = slot_for(w, k->room);
		while (sl) {
			kvs_list_del(&k->node);
			if (chunk_write(k, sl)) {
				k->room->staged--;
				break;
			}
			/* where it was */
			kvs_list_add_tail(&tmp->node, &k->node);
			sl = slot_for(w, k->room);
		}
	}
}

/* The bytes of a chunk that was cut, as they lie on the device. */
static struct kvs_send_from from_of(const struct kvs_send_chunk *k)
{
	const struct kvs_gather *g = &k->job->g;

	return (struct kvs_send_from){
		.base = k->room->s->buffers[g->buffer],
		.item_len = k->room->s->layout->buffers[g->buffer].item_len,
		.items = g->items,
		.at = g->at - k->len,
		.len = k->len,
	};
}

/* Copy it to the ring. 0; -EAGAIN: no room there now; else why it cannot. */
static int chunk_copy(struct kvs_send_chunk *k)
{
	struct kvs_send_from from = from_of(k);
	int err;

	err = kvs_send_ring_get(&k->room->s->ring, k->len, &k->piece);
	if (err)
		return err;
	k->piece->user = k;
	k->tx.iov = k->piece->iov;
	k->tx.n_iov = k->piece->n_iov;
	err = kvs_send_piece_copy(k->piece, &from);
	if (err) {
		kvs_send_piece_put(k->piece);
		return err;
	}
	chunk_charge(k);
	k->room->staged++;
	return 0;
}

/* ---- cutting ---- */

static bool window_open(const struct kvs_send_worker *w)
{
	const struct kvs_sender *s = w->s;

	if (s->chunks >= KVS_SEND_CHUNKS_MAX)
		return false;
	if (s->inflight && s->inflight + s->chunk_max > s->window)
		return false;
	/* a worker that stands still must not starve the others */
	return !w->inflight ||
	       w->inflight + s->chunk_max <= s->window / s->n_workers;
}

static void cut_failed(struct kvs_send_room *r, int err)
{
	char why[KVS_SEND_TEXT];

	if (err == -ENOMEM)
		snprintf(why, sizeof(why), "out of memory");
	else if (err == -ENOSPC)
		snprintf(why, sizeof(why),
			 "copies from device %s that do not end hold the "
			 "bounce ring",
			 kvs_device_name(r->s->device));
	else
		snprintf(why, sizeof(why), "device %s takes no copies: %s",
			 kvs_device_name(r->s->device), kvs_err_name(err));
	kvs_send_room_fail(r, -err, why, true);
}

/* The chunk that was cut, on its way. False: not now, nothing happened. */
static bool launch(struct kvs_send_room *r, struct kvs_send_job *j,
		   struct kvs_send_slot *sl, struct kvs_msg *m, size_t n,
		   const struct kvs_gather *before)
{
	bool bounce = kvs_send_bounces(r->s) && j->g.what != KVS_GATHER_AUX;
	struct kvs_send_chunk *k = chunk_create(r, sl, j, m, bounce ? 0 : n);
	int err = k ? 0 : -ENOMEM;

	if (!k) {
		cut_failed(r, err);
		return true;
	}
	if (!bounce) {
		chunk_charge(k);
		if (chunk_write(k, sl))
			return true;
		j->g = *before;
		chunk_over(k);
		return true;
	}
	err = chunk_copy(k);
	if (!err)
		return true;
	free(k);
	if (err != -EAGAIN) {
		cut_failed(r, err);
		return true;
	}
	j->g = *before;
	return false;
}

/* One chunk of the worker's next room. False: nothing could be done. */
static bool push_one(struct kvs_send_worker *w)
{
	struct kvs_gather_map map = {
		.layout = w->s->layout,
		.buffers = w->s->buffers,
		.rank = w->s->rank,
		.whole = w->s->one_sided,
	};
	struct kvs_send_slot *sl = NULL;
	struct kvs_send_room *r;
	struct kvs_gather before;
	struct kvs_send_job *j;
	struct kvs_msg m = { 0 };
	size_t n;

	if (!window_open(w) || !has_ready(w))
		return false;
	/* one whose connection is not there waits, and not those behind it */
	kvs_list_for_each_entry(r, &w->run, run_node) {
		sl = slot_for(w, r);
		if (sl)
			break;
	}
	if (!sl)
		return false;
	j = kvs_list_first(&r->jobs, struct kvs_send_job, node);
	map.chunk_max = chunk_max(r);
	map.extent_pages = r->extent_pages;
	map.n_extents = r->n_extents;
	map.slice = r->slice;
	/* last in the round, so that rooms share the window */
	kvs_list_del(&r->run_node);
	before = j->g;
	if (kvs_gather_next(&j->g, &map, w->s->iov, KVS_SEND_IOV_MAX, &m.chunk,
			    &n)) {
		if (!launch(r, j, sl, &m, n, &before)) {
			kvs_list_add(&w->run, &r->run_node);
			return false;
		}
	} else {
		kvs_list_del(&j->node);
		kvs_send_job_put(r, j);
	}
	if (!kvs_list_empty(&r->jobs))
		kvs_send_worker_run(w, r);
	else
		kvs_send_room_dirty(r);
	return true;
}

void kvs_sender_pump(struct kvs_sender *s)
{
	struct kvs_send_worker *w;
	bool more;

	if (s->state != KVS_SENDER_UP || s->stopping)
		return;
	kvs_list_for_each_entry(w, &s->workers, node) {
		if (wanted(w))
			worker_kick(w);
	}
	kvs_list_for_each_entry(w, &s->workers, node)
		push_copied(w);
	do {
		more = false;
		kvs_list_for_each_entry(w, &s->workers, node)
			more |= push_one(w);
	} while (more);
}

void kvs_sender_data_close(struct kvs_sender *s, int err, bool flush)
{
	struct kvs_send_worker *w;
	unsigned int i;

	kvs_list_for_each_entry(w, &s->workers, node) {
		kvs_timer_cancel(&s->timers, &w->timer);
		for (i = 0; i < KVS_SEND_SLOTS_MAX; i++) {
			if (w->slot[i].conn)
				kvs_conn_close(w->slot[i].conn, err, flush);
		}
	}
}

void kvs_sender_data_free(struct kvs_sender *s)
{
	while (!kvs_list_empty(&s->workers)) {
		struct kvs_send_worker *w = kvs_list_first(
			&s->workers, struct kvs_send_worker, node);

		kvs_list_del(&w->node);
		free(w);
	}
}
