/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ttft/ttft_prefill.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_RETRY KVS_NSEC_PER_MSEC

/* A request at its instance. */
struct ttft_push {
	struct kvs_list node; /* pending, queue */
	struct ttft_prefill *f;
	size_t i; /* of the plan */
	struct kvs_send_room *room; /* NULL: not open, or closed */
	enum ttft_rx rx;
	bool granted;
	bool over; /* done() came */
	uint32_t sent; /* tokens computed and pushed */
};

/* Source pages of one call, until they may be used again. */
struct push_job {
	struct kvs_list node; /* on the instance's jobs */
	uint32_t n;
	uint32_t pages[];
};

/* An acknowledgement on its slow way. */
struct late_ack {
	struct kvs_list node;
	struct kvs_timer t;
	struct ttft_prefill *f;
	enum ttft_rx rx;
	struct kvs_msg m;
	bool due;
};

static uint64_t now(const struct ttft_prefill *f)
{
	return kvs_clock_now(f->clock);
}

static uint64_t since_start(const struct ttft_prefill *f)
{
	uint64_t t = now(f) - f->start;

	return t ? t : 1; /* 0 is never */
}

static const struct ttft_req *req(const struct ttft_push *u)
{
	return &u->f->p->v[u->i];
}

/* ---- computing ----------------------------------------------------------- */

static uint32_t next_chunk(const struct ttft_push *u)
{
	uint32_t left = req(u)->input - u->sent;
	uint32_t most = u->f->o->s.prefill_chunk;

	return left < most ? left : most;
}

static void compute(struct ttft_prefill *f)
{
	struct ttft_push *u;

	if (!f->now) {
		if (kvs_list_empty(&f->queue))
			return;
		u = kvs_list_first(&f->queue, struct ttft_push, node);
		kvs_list_del(&u->node);
		f->now = u;
		atomic_store(&f->r->rec[u->i].started, since_start(f));
	}
	(void)kvs_timer_set(f->timers, &f->chunk,
			    now(f) + (uint64_t)(next_chunk(f->now) /
						f->o->s.prefill_rate * 1e9));
}

static void job_free(struct ttft_prefill *f, struct push_job *j)
{
	while (j->n)
		f->pages[f->n_free++] = j->pages[--j->n];
	kvs_list_del(&j->node);
	free(j);
}

/* NULL: not so many are free now. */
static struct push_job *job_new(struct ttft_prefill *f, uint32_t n)
{
	struct push_job *j;

	if (n > f->n_free)
		return NULL;
	j = malloc(sizeof(*j) + n * sizeof(j->pages[0]));
	if (!j)
		return NULL;
	j->n = n;
	for (uint32_t i = 0; i < n; i++)
		j->pages[i] = f->pages[--f->n_free];
	kvs_list_add_tail(&f->jobs, &j->node);
	return j;
}

/* Whole pages: chunks are, but for the last one. False: not now. */
static bool push_chunk(struct ttft_push *u)
{
	struct ttft_prefill *f = u->f;
	uint32_t size = f->layout->page_size;
	uint32_t first = u->sent / size;
	uint32_t n = next_chunk(u);
	uint32_t pages = (u->sent + n + size - 1) / size - first;
	struct push_job *j;

	if (u->room && !u->over) {
		j = job_new(f, pages);
		if (!j)
			return false;
		if (f->fill)
			f->fill(f, u->i, first, j->pages, pages);
		f->way[u->rx].dirty = true;
		if (kvs_send_pages(u->room, first, j->pages, pages, j))
			job_free(f, j);
		else if (u->sent + n == req(u)->input)
			(void)kvs_send_finish(u->room);
	}
	u->sent += n;
	return true;
}

static void chunk_ends(struct kvs_timer *t)
{
	struct ttft_prefill *f =
		kvs_container_of(t, struct ttft_prefill, chunk);
	struct ttft_push *u = f->now;

	if (!push_chunk(u)) {
		(void)kvs_timer_set(f->timers, t, now(f) + PAGES_RETRY);
		return;
	}
	if (u->over || !u->room || u->sent == req(u)->input)
		f->now = NULL;
	compute(f);
}

/* ---- callbacks of the library -------------------------------------------- */

static void room_granted(struct kvs_send_room *room, uint64_t generation)
{
	struct ttft_push *u = kvs_send_user(room);
	struct ttft_prefill *f = u->f;

	(void)generation;
	u->granted = true;
	atomic_store(&f->r->rec[u->i].granted, since_start(f));
	atomic_fetch_add(&f->r->n_granted, 1);
	kvs_list_add_tail(&f->queue, &u->node);
	if (!f->now)
		compute(f);
}

static void pages_free(struct kvs_send_room *room, void *cookie, int status)
{
	struct ttft_push *u = kvs_send_user(room);

	(void)status;
	/* its process is gone, and the job with it */
	if (u->room)
		job_free(u->f, cookie);
}

static void room_done(struct kvs_send_room *room, int status, const char *text)
{
	struct ttft_push *u = kvs_send_user(room);

	(void)text;
	(void)status;
	if (!u->room)
		return; /* its process is gone */
	u->over = true;
	/* what is queued and not begun is dropped */
	if (u->f->now != u)
		kvs_list_del(&u->node);
	u->room = NULL;
	u->f->way[u->rx].dirty = true;
	kvs_send_close(room);
}

static const struct kvs_send_ops send_ops = {
	.granted = room_granted,
	.pages_free = pages_free,
	.done = room_done,
};

/* ---- acknowledgements that do not arrive, or late ------------------------ */

static struct late_ack *find_ack(struct ttft_prefill *f, uint64_t room)
{
	struct late_ack *a;

	kvs_list_for_each_entry(a, &f->acks, node)
		if (a->m.abort.room == room)
			return a;
	return NULL;
}

static void ack_due(struct kvs_timer *t)
{
	struct late_ack *a = kvs_container_of(t, struct late_ack, t);
	struct ttft_prefill *f = a->f;

	a->due = true;
	if (f->way[a->rx].s && !kvs_sender_say(f->way[a->rx].s, &a->m))
		f->way[a->rx].dirty = true;
	kvs_list_del(&a->node);
	free(a);
}

static bool lose(void *arg, const struct kvs_msg *m)
{
	const struct ttft_way *w = arg;
	struct ttft_prefill *f = w->f;
	struct late_ack *a;
	uint64_t delay;

	if (m->type != KVS_WIRE_ABORT_ACK || !m->abort.room ||
	    m->abort.room > f->p->n)
		return false;
	delay = f->p->v[m->abort.room - 1].ack;
	if (!delay || delay == KVS_TIME_NEVER)
		return delay != 0;
	a = find_ack(f, m->abort.room);
	if (a)
		return !a->due; /* asked again meanwhile */
	a = calloc(1, sizeof(*a));
	if (!a)
		return false;
	a->f = f;
	a->rx = w->rx;
	a->m = *m;
	kvs_timer_init(&a->t, ack_due);
	kvs_list_add_tail(&f->acks, &a->node);
	(void)kvs_timer_set(f->timers, &a->t, now(f) + delay);
	return true;
}

/* ---- life ---------------------------------------------------------------- */

void ttft_prefill_sender(struct ttft_way *w, struct kvs_sender_opts *o,
			 struct kvs_sender_place *p)
{
	struct ttft_prefill *f = w->f;

	*o = (struct kvs_sender_opts){
		.size = sizeof(*o),
		.peer = f->name,
		.n_ranks = 1,
		.layout = f->layout,
		.data_connections = 1,
		.ops = &send_ops,
		.open_timeout = 1000 * 3600 * KVS_NSEC_PER_SEC,
	};
	p->clock = f->clock;
	p->lose = lose;
	p->lose_arg = w;
}

static int open_room(struct ttft_push *u)
{
	struct ttft_prefill *f = u->f;
	uint32_t route = atomic_load(&f->r->rec[u->i].route);
	int r;

	if (!route)
		return -EAGAIN;
	u->rx = (enum ttft_rx)(route - 1);
	if (!f->way[u->rx].s || !f->way[u->rx].s->agreed)
		return -EAGAIN;
	r = kvs_send_open(f->way[u->rx].s, ttft_room_id(u->i), NULL,
			  req(u)->input, u, &u->room);
	f->way[u->rx].dirty = true;
	return r;
}

/* A process that died had it, or it has ended meanwhile. */
static bool is_lost(const struct ttft_push *u)
{
	struct ttft_rec *c = &u->f->r->rec[u->i];

	return atomic_load(&c->granted) || c->end != TTFT_OPEN;
}

void ttft_prefill_turn(struct ttft_prefill *f)
{
	uint64_t t = since_start(f);
	struct ttft_push *u, *tmp;

	while (f->n_came < f->n_push && f->p->v[f->push[f->n_came].i].at <= t) {
		u = &f->push[f->n_came++];
		if (!is_lost(u))
			kvs_list_add_tail(&f->pending, &u->node);
	}
	kvs_list_for_each_entry_safe(u, tmp, &f->pending, node) {
		if (open_room(u))
			continue;
		kvs_list_del(&u->node);
	}
}

/* What was granted is lost; the rest is asked for again. */
void ttft_prefill_crash(struct ttft_prefill *f)
{
	f->now = NULL;
	kvs_timer_cancel(f->timers, &f->chunk);
	for (size_t i = f->n_came; i-- > 0;) {
		struct ttft_push *u = &f->push[i];

		if (!u->room || u->over)
			continue;
		u->room = NULL;
		kvs_list_del(&u->node);
		if (u->granted)
			u->over = true;
		else
			kvs_list_add(&f->pending, &u->node);
	}
	while (!kvs_list_empty(&f->acks)) {
		struct late_ack *a =
			kvs_list_first(&f->acks, struct late_ack, node);

		kvs_timer_cancel(f->timers, &a->t);
		kvs_list_del(&a->node);
		free(a);
	}
	while (!kvs_list_empty(&f->jobs))
		job_free(f, kvs_list_first(&f->jobs, struct push_job, node));
}

uint32_t ttft_prefill_pages(const struct ttft_plan *p,
			    const struct kvs_layout *l)
{
	/* two of the longest prompts on their way */
	return 2 * (p->max_input / l->page_size + 1);
}

int ttft_prefill_init(struct ttft_prefill *f)
{
	size_t n = 0;

	f->n_pages = ttft_prefill_pages(f->p, f->layout);
	kvs_list_init(&f->pending);
	kvs_list_init(&f->queue);
	kvs_list_init(&f->acks);
	kvs_list_init(&f->jobs);
	kvs_timer_init(&f->chunk, chunk_ends);
	snprintf(f->name, sizeof(f->name), "prefill-%u", f->nr);
	for (int x = 0; x < TTFT_RX; x++) {
		f->way[x].f = f;
		f->way[x].rx = (enum ttft_rx)x;
	}
	for (size_t i = 0; i < f->p->n; i++)
		n += f->p->v[i].prefill == f->nr;
	f->push = calloc(n + 1, sizeof(*f->push));
	f->pages = calloc(f->n_pages, sizeof(*f->pages));
	if (!f->push || !f->pages)
		return -ENOMEM;
	while (f->n_free < f->n_pages) {
		f->pages[f->n_free] = f->n_pages - 1 - f->n_free;
		f->n_free++;
	}
	for (size_t i = 0; i < f->p->n; i++) {
		struct ttft_push *u = &f->push[f->n_push];

		if (f->p->v[i].prefill != f->nr)
			continue;
		u->f = f;
		u->i = i;
		kvs_list_init(&u->node);
		f->n_push++;
	}
	return 0;
}

void ttft_prefill_fini(struct ttft_prefill *f)
{
	if (f->push)
		ttft_prefill_crash(f);
	free(f->push);
	free(f->pages);
	f->push = NULL;
	f->pages = NULL;
}
