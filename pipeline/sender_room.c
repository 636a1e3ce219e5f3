/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/err.h"
#include "lib/log.h"
#include "lib/rng.h"
#include "lib/rule.h"
#include "pipeline/layout.h"
#include "pipeline/room.h"
#include "pipeline/sender_internal.h"
#include "pipeline/wire_text.h"

#define KVS_SEND_OPEN_RETRY_MIN (10 * KVS_NSEC_PER_MSEC)
#define KVS_SEND_OPEN_RETRY_MAX (500 * KVS_NSEC_PER_MSEC)
#define KVS_SEND_BATCH_DEFAULT (64ULL << 20) /* bytes */
#define KVS_SEND_CALL_DEFAULT (10 * KVS_NSEC_PER_SEC)
#define KVS_SEND_ABORTS_MAX 64 /* unanswered ones of a room we count */

static struct kvs_list *bucket_of(struct kvs_sender *s, uint64_t id)
{
	return &s->bucket[kvs_mix64(id) & (KVS_SEND_BUCKETS - 1)];
}

struct kvs_send_room *kvs_send_room_find(struct kvs_sender *s, uint64_t id,
					 uint64_t generation)
{
	struct kvs_send_room *r, *found = NULL;

	pthread_mutex_lock(&s->lock);
	kvs_list_for_each_entry(r, bucket_of(s, id), hash_node) {
		if (r->id == id && r->generation == generation)
			found = r;
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

struct kvs_send_room *kvs_send_room_find_live(struct kvs_sender *s, uint64_t id)
{
	struct kvs_send_room *r, *found = NULL;

	pthread_mutex_lock(&s->lock);
	kvs_list_for_each_entry(r, bucket_of(s, id), hash_node) {
		if (r->id == id && r->live)
			found = r;
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

int kvs_send_room_insert(struct kvs_send_room *r)
{
	struct kvs_sender *s = r->s;
	struct kvs_send_room *o;
	int err = 0;

	pthread_mutex_lock(&s->lock);
	kvs_list_for_each_entry(o, bucket_of(s, r->id), hash_node) {
		if (o->id == r->id && o->live)
			err = -EEXIST;
	}
	if (atomic_load(&s->gone))
		err = -ECONNRESET;
	if (!err) {
		r->live = true;
		kvs_list_add(bucket_of(s, r->id), &r->hash_node);
		kvs_list_add_tail(&s->all, &r->all_node);
	}
	pthread_mutex_unlock(&s->lock);
	return err;
}

void kvs_send_room_free(struct kvs_send_room *r)
{
	pthread_mutex_destroy(&r->lock);
	r->magic = 0;
	free(r->seen);
	free(r->items);
	kvs_digest_map_fini(&r->map);
	kvs_send_remote_fini(&r->remote);
	free(r);
}

void kvs_send_room_dirty(struct kvs_send_room *r)
{
	if (kvs_list_empty(&r->dirty_node))
		kvs_list_add_tail(&r->s->dirty, &r->dirty_node);
}

static bool over(const struct kvs_send_room *r)
{
	return r->state == KVS_SEND_FAILED || r->state == KVS_SEND_DONE;
}

static void say_abort(struct kvs_sender *s, enum kvs_wire_type type,
		      uint64_t room, uint64_t generation, int err,
		      const char *text)
{
	struct kvs_msg m = {
		.type = type,
		.abort = {
			.room = room,
			.generation = generation,
			.rank = s->rank,
			.err = (uint32_t)err,
		},
	};

	kvs_wire_text_put(m.abort.text, sizeof(m.abort.text), text);
	kvs_sender_say(s, &m);
}

/* The daemon parks an OPEN; without a generation only REFUSE can undo it. */
static void say_refuse(struct kvs_send_room *r, int err, const char *text)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_REFUSE,
		.refuse = {
			.room = r->id,
			.rank = r->s->rank,
			.err = (uint32_t)err,
			.class = kvs_error_class(err),
		},
	};

	kvs_wire_text_put(m.refuse.text, sizeof(m.refuse.text), text);
	kvs_sender_say(r->s, &m);
}

void kvs_send_room_fail(struct kvs_send_room *r, int err, const char *text,
			bool tell)
{
	if (over(r))
		return;
	if (tell && r->generation)
		say_abort(r->s, KVS_WIRE_ABORT, r->id, r->generation, err,
			  text);
	else if (tell && r->opened)
		say_refuse(r, err, text);
	r->state = KVS_SEND_FAILED;
	r->opened = false;
	r->status = -err;
	if (text != r->text)
		kvs_wire_text_put(r->text, sizeof(r->text), text);
	kvs_timer_cancel(&r->s->timers, &r->timer);
	kvs_list_del(&r->run_node);
	pthread_mutex_lock(&r->lock);
	r->shut = KVS_RULE(R4, SHUT);
	pthread_mutex_unlock(&r->lock);
	kvs_log_debug("sender: room %llu gen %llu: failed: %s: %s",
		      (unsigned long long)r->id,
		      (unsigned long long)r->generation, kvs_err_name(err),
		      r->text);
	kvs_send_room_dirty(r);
}

void kvs_send_room_poison(struct kvs_send_room *r, int err, const char *text)
{
	if (r->state == KVS_SEND_DONE)
		return;
	if (!r->poison && KVS_RULE(R5, POISON))
		r->poison = err;
	kvs_send_room_fail(r, err, text, true);
	kvs_send_room_dirty(r);
}

void kvs_send_room_fail_all(struct kvs_sender *s, int err, const char *text,
			    bool tell)
{
	struct kvs_send_room *r;

	pthread_mutex_lock(&s->lock);
	kvs_list_for_each_entry(r, &s->all, all_node)
		kvs_send_room_fail(r, err, text, tell);
	pthread_mutex_unlock(&s->lock);
}

/* ---- opening ---- */

static void open_timer(struct kvs_send_room *r, uint64_t at)
{
	if (at > r->open_until)
		at = r->open_until;
	if (kvs_timer_set(&r->s->timers, &r->timer, at))
		kvs_send_room_fail(r, ENOMEM, "out of memory", true);
}

static void open_send(struct kvs_send_room *r)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_OPEN,
		.open = {
			.room = r->id,
			.rank = r->s->rank,
			.tokens = r->tokens,
		},
	};

	memcpy(m.open.nonce, r->nonce, sizeof(m.open.nonce));
	if (kvs_sender_say(r->s, &m)) {
		kvs_send_room_fail(r, ECONNRESET, "the daemon is gone", false);
		return;
	}
	r->opened = true;
	open_timer(r, r->open_until);
}

void kvs_send_room_open_due(struct kvs_timer *t)
{
	struct kvs_send_room *r =
		kvs_container_of(t, struct kvs_send_room, timer);

	if (kvs_sender_now(r->s) < r->open_until)
		open_send(r);
	else if (r->refused)
		kvs_send_room_fail(r, r->refused, r->text, true);
	else
		kvs_send_room_fail(r, ETIME, "no grant within the time limit",
				   true);
}

/* What the engine asked for must be what is queued; else the room has failed. */
static bool aux_wrong(struct kvs_send_room *r, const struct kvs_send_job *j)
{
	char text[128];

	if (j->g.what != KVS_GATHER_AUX || j->g.n == r->aux_len)
		return false;
	snprintf(text, sizeof(text),
		 "aux_len: this rank's is %llu bytes, the engine expects %llu",
		 (unsigned long long)j->g.n, (unsigned long long)r->aux_len);
	kvs_send_room_fail(r, EPROTOTYPE, text, true);
	return true;
}

static int digest_begin(struct kvs_send_room *r, const struct kvs_msg_grant *g)
{
	int err;

	if (r->s->digest == KVS_DIGEST_NONE)
		return 0;
	err = kvs_digest_map_init(&r->map, r->s->layout, r->tokens,
				  g->extent_tokens, &r->slice, g->aux_len);
	if (err)
		return err;
	kvs_digest_init(&r->digest, r->s->digest, r->map.total);
	return 0;
}

/* Of two limits the smaller; 0 is no limit. */
static uint64_t smaller(uint64_t a, uint64_t b, uint64_t neither)
{
	if (!a || !b)
		return a | b ? a | b : neither;
	return a < b ? a : b;
}

/* Bytes of its pages that this rank sends. */
static uint64_t page_bytes(const struct kvs_send_room *r)
{
	const struct kvs_layout *l = r->s->layout;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < l->n_buffers; i++) {
		const struct kvs_layer_buffer *b = &l->buffers[i];

		if (kvs_buffer_kind_is_paged(b->kind) &&
		    kvs_slice_has(&r->slice, l, i))
			bytes += (uint64_t)b->item_len * r->pages;
	}
	return bytes;
}

/* What is cut is sent as this rank has it. */
static bool heads_differ(const struct kvs_layout *l,
			 const struct kvs_msg_grant *g)
{
	const struct kvs_slice s = kvs_send_slice(g);

	for (uint32_t b = 0; l->cuts && b < l->n_buffers; b++)
		if (l->cuts[b].heads && kvs_slice_has(&s, l, b) &&
		    (s.tp != kvs_layout_tp(l) || s.tp_rank != l->tp_rank))
			return true;
	return false;
}

static void take_grant(struct kvs_send_room *r, const struct kvs_msg_grant *g)
{
	struct kvs_sender *s = r->s;
	const char *wrong = NULL;
	struct kvs_send_job *j;

	r->generation = g->generation;
	r->opened = false;
	kvs_timer_cancel(&s->timers, &r->timer);
	r->extent_pages = g->extent_tokens / g->page_size;
	r->n_extents = g->n_extents;
	r->slice = kvs_send_slice(g);
	r->aux_len = g->aux_len;
	r->batch_max =
		smaller(s->max_batch, g->batch_bytes, KVS_SEND_BATCH_DEFAULT);
	r->call_timeout = smaller(s->call_timeout,
				  g->call_timeout_ms * KVS_NSEC_PER_MSEC,
				  KVS_SEND_CALL_DEFAULT);
	s->ring.limit = r->call_timeout;
	if (g->tokens != r->tokens)
		wrong = "GRANT: tokens differ from this rank's";
	else if (g->page_size != s->layout->page_size)
		wrong = "GRANT: page size differs from this rank's";
	else if (g->aux_len > s->layout->aux_max)
		wrong = "GRANT: aux block is larger than this rank's aux_max";
	else if (heads_differ(s->layout, g))
		wrong = "GRANT: heads are divided otherwise than this rank's";
	else
		wrong = kvs_send_remote_init(&r->remote, s->layout,
					     s->one_sided, g);
	if (!wrong && r->remote.paths &&
	    (!s->paths || r->remote.paths >> (s->slots - 1) > 1))
		wrong = "GRANT: for data connections that this rank does not "
			"have";
	if (wrong) {
		kvs_send_room_fail(r, EPROTO, wrong, true);
		return;
	}
	kvs_list_for_each_entry(j, &r->jobs, node) {
		if (aux_wrong(r, j))
			return;
	}
	if (digest_begin(r, g)) {
		kvs_send_room_fail(r, ENOMEM, "no memory for the checksum",
				   true);
		return;
	}
	r->worker = kvs_send_worker_get(s, g->worker);
	if (!r->worker) {
		kvs_send_room_fail(r, ENOMEM, "no memory for another worker",
				   true);
		return;
	}
	/* what TCP loses its receiver knows to the byte */
	r->striped = !s->one_sided || page_bytes(r) >= s->stripe_min;
	r->state = KVS_SEND_GRANTED;
	r->text[0] = '\0';
	if (!kvs_list_empty(&r->jobs))
		kvs_send_worker_run(r->worker, r);
	kvs_send_room_dirty(r);
	if (s->ops->granted)
		s->ops->granted(r, r->generation);
}

void kvs_send_room_granted(struct kvs_sender *s, const struct kvs_msg_grant *g)
{
	struct kvs_send_room *r = kvs_send_room_find_live(s, g->room);

	if (r && r->state == KVS_SEND_OPENING) {
		take_grant(r, g);
		return;
	}
	if (kvs_send_room_find(s, g->room, g->generation))
		return;
	/* given up here while the grant was on its way */
	kvs_send_past_add(&s->past, g->room, g->generation, 0);
	say_abort(s, KVS_WIRE_ABORT, g->room, g->generation, ECANCELED,
		  "the room is not open at this rank any more");
}

void kvs_send_room_refused(struct kvs_sender *s, const struct kvs_msg_refuse *m)
{
	struct kvs_send_room *r = kvs_send_room_find_live(s, m->room);
	uint64_t now = kvs_sender_now(s);

	if (!r || over(r) ||
	    (r->generation && m->generation && r->generation != m->generation))
		return;
	if (r->state != KVS_SEND_OPENING) {
		kvs_send_room_fail(r, (int)m->err, m->text, true);
		return;
	}
	r->opened = false;
	r->refused = (int)m->err;
	memcpy(r->text, m->text, sizeof(r->text));
	if (m->class == 400 || (m->err != EAGAIN && m->err != ENOENT)) {
		kvs_send_room_fail(r, (int)m->err, m->text, false);
		return;
	}
	/* spread, so that ranks refused together do not come back together */
	open_timer(r, now + r->backoff / 2 +
			      kvs_mix64(r->id ^ now) % (r->backoff / 2));
	r->backoff *= 2;
	if (r->backoff > KVS_SEND_OPEN_RETRY_MAX)
		r->backoff = KVS_SEND_OPEN_RETRY_MAX;
}

/* ---- the rest of what the daemon says ---- */

int kvs_send_room_completed(struct kvs_sender *s,
			    const struct kvs_msg_complete *m)
{
	struct kvs_send_room *r = kvs_send_room_find(s, m->room, m->generation);

	if (!r || over(r))
		return 0; /* crossed with our abort */
	if (r->state != KVS_SEND_LAST)
		return -EPROTO;
	r->complete = true;
	kvs_send_room_dirty(r);
	return 0;
}

/* No room of this name: nothing is outstanding for it. */
static void answer_forgotten(struct kvs_sender *s,
			     const struct kvs_msg_abort *m)
{
	int poison = kvs_send_past_poison(&s->past, m->room, m->generation);

	if (poison)
		say_abort(s, KVS_WIRE_ABORT_NAK, m->room, m->generation, poison,
			  "a send of this room failed");
	else
		say_abort(s, KVS_WIRE_ABORT_ACK, m->room, m->generation, 0, "");
}

void kvs_send_room_aborted(struct kvs_sender *s, const struct kvs_msg_abort *m)
{
	struct kvs_send_room *r = kvs_send_room_find(s, m->room, m->generation);

	if (!r) {
		/* an attempt that was never granted, unless it is about one
		 * of the past */
		r = kvs_send_room_find_live(s, m->room);
		if (!r || r->state != KVS_SEND_OPENING || !r->opened ||
		    kvs_send_past_known(&s->past, m->room, m->generation)) {
			if (KVS_RULE(R6, FORGOTTEN))
				answer_forgotten(s, m);
			return;
		}
		r->generation = m->generation;
	}
	if (r->aborts < KVS_SEND_ABORTS_MAX)
		r->aborts++;
	kvs_send_room_fail(r, (int)m->err, m->text, false);
	kvs_send_room_dirty(r);
}

/* ---- mail ---- */

void kvs_send_room_mail(struct kvs_send_mail *m)
{
	struct kvs_send_room *r = m->room;
	struct kvs_send_job *j;

	switch (m->type) {
	case KVS_SEND_MAIL_OPEN:
		r->backoff = KVS_SEND_OPEN_RETRY_MIN;
		r->open_until = kvs_sender_now(r->s) + r->s->open_timeout;
		open_send(r);
		break;
	case KVS_SEND_MAIL_JOB:
		j = kvs_container_of(m, struct kvs_send_job, mail);
		r->popped++;
		kvs_list_add_tail(&r->jobs, &j->node);
		if (r->state != KVS_SEND_GRANTED)
			break;
		if (!aux_wrong(r, j))
			kvs_send_worker_run(r->worker, r);
		break;
	case KVS_SEND_MAIL_FINISH:
		r->finish = true;
		break;
	case KVS_SEND_MAIL_ABORT:
		kvs_send_room_fail(r, r->abort_err, r->abort_text, true);
		break;
	case KVS_SEND_MAIL_CLOSE:
		r->closed = true;
		kvs_send_room_fail(r, ECANCELED, "closed by the prefill side",
				   true);
		break;
	case KVS_SEND_MAIL_STOP:
		return;
	}
	kvs_send_room_dirty(r);
}

/* ---- settling ---- */

void kvs_send_job_put(struct kvs_send_room *r, struct kvs_send_job *j)
{
	if (j->chunks || !kvs_list_empty(&j->node))
		return;
	r->s->ops->pages_free(r, j->cookie, j->status);
	free(j);
}

static void drop_queue(struct kvs_send_room *r)
{
	while (!kvs_list_empty(&r->jobs)) {
		struct kvs_send_job *j =
			kvs_list_first(&r->jobs, struct kvs_send_job, node);

		kvs_list_del(&j->node);
		if (!j->status)
			j->status = r->status;
		kvs_send_job_put(r, j);
	}
}

static void send_last(struct kvs_send_room *r)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = {
			.room = r->id,
			.generation = r->generation,
			.rank = r->s->rank,
			.bytes = r->bytes,
			.digest_kind = (uint16_t)r->digest.kind,
			.digest = kvs_digest_value(&r->digest),
		},
	};

	r->state = KVS_SEND_LAST;
	kvs_sender_say(r->s, &m);
}

/*
 * An acknowledgement is a promise that this rank writes no more: not while
 * anything is outstanding, and never when a send ended in an unknown way.
 */
static void answer_aborts(struct kvs_send_room *r)
{
	if (!r->poison && atomic_load(&r->outstanding) &&
	    KVS_RULE(R4, OUTSTANDING))
		return;
	if (r->aborts && !KVS_RULE(R6, EACH))
		r->aborts = 1;
	for (; r->aborts; r->aborts--) {
		if (r->poison)
			say_abort(r->s, KVS_WIRE_ABORT_NAK, r->id,
				  r->generation, r->poison, r->text);
		else
			say_abort(r->s, KVS_WIRE_ABORT_ACK, r->id,
				  r->generation, 0, "");
	}
}

static void end(struct kvs_send_room *r, int status)
{
	struct kvs_sender *s = r->s;

	r->state = KVS_SEND_DONE;
	pthread_mutex_lock(&r->lock);
	r->shut = true;
	pthread_mutex_unlock(&r->lock);
	pthread_mutex_lock(&s->lock);
	r->live = false;
	pthread_mutex_unlock(&s->lock);
	s->ops->done(r, status, status ? r->text : "");
}

static void settle(struct kvs_send_room *r)
{
	struct kvs_sender *s = r->s;
	bool idle;
	bool mail_read;

	pthread_mutex_lock(&r->lock);
	mail_read = r->popped == r->posted;
	pthread_mutex_unlock(&r->lock);

	if (r->state == KVS_SEND_FAILED) {
		if (r->worker)
			kvs_send_worker_drop(r->worker, r);
		drop_queue(r);
	}
	/* a copy reads the source; it writes nothing that the daemon has, so
	 * no acknowledgement waits for it */
	idle = !atomic_load(&r->outstanding) && !r->staged;
	if (r->state == KVS_SEND_GRANTED && r->finish && idle && mail_read &&
	    kvs_list_empty(&r->jobs))
		send_last(r);
	answer_aborts(r);
	if (r->state == KVS_SEND_LAST && r->complete)
		end(r, 0);
	/* done() is the last callback: pages_free() of all mail came before */
	if (r->state == KVS_SEND_FAILED && idle && mail_read)
		end(r, r->status);
	if (r->state != KVS_SEND_DONE || !r->closed)
		return;
	if (r->generation)
		kvs_send_past_add(&s->past, r->id, r->generation, r->poison);
	pthread_mutex_lock(&s->lock);
	kvs_list_del(&r->hash_node);
	kvs_list_del(&r->all_node);
	pthread_mutex_unlock(&s->lock);
	kvs_list_del(&r->dirty_node);
	kvs_send_room_free(r);
}

void kvs_send_room_settle_all(struct kvs_sender *s)
{
	while (!kvs_list_empty(&s->dirty)) {
		struct kvs_send_room *r = kvs_list_first(
			&s->dirty, struct kvs_send_room, dirty_node);

		kvs_list_del(&r->dirty_node);
		settle(r);
	}
}
