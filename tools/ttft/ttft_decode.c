/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ttft/ttft_decode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A request at the engine. */
struct ttft_room {
	struct kvs_list node; /* in the list that says its state */
	struct ttft_decode *d;
	size_t i; /* of the plan */
	enum ttft_rx rx;
	kvs_handle h;
	bool admitted; /* ->h is one */
	struct kvs_list early; /* likewise */
	uint64_t commit_at; /* ns */
	bool over;
	bool in_batch;
	bool armed; /* ->give_up is, or was, set */
	struct kvs_timer give_up;
	struct kvs_timer release; /* of held pages */
	uint32_t *pages; /* on the device; NULL: none */
	uint32_t n_pages;
	uint32_t n_held; /* of these */
	uint64_t copy_held; /* ns; since when a copy keeps the pages of one
			     * that was given up; 0: none does */
	uint32_t tokens; /* decoded */
};

static uint64_t now(const struct ttft_decode *d)
{
	return kvs_clock_now(d->clock);
}

static uint64_t since_start(const struct ttft_decode *d)
{
	return now(d) - d->start;
}

static const struct ttft_req *req(const struct ttft_room *m)
{
	return &m->d->p->v[m->i];
}

static struct ttft_rec *rec(const struct ttft_room *m)
{
	return &m->d->r->rec[m->i];
}

static uint64_t page_bytes(const struct ttft_decode *d)
{
	return d->o->s.token_bytes * d->o->s.page_size;
}

static uint32_t pages_of(const struct ttft_decode *d, uint64_t tokens)
{
	return (uint32_t)((tokens + d->layout->page_size - 1) /
			  d->layout->page_size);
}

static void move(struct ttft_room *m, struct kvs_list *to)
{
	kvs_list_del(&m->node);
	kvs_list_add_tail(to, &m->node);
}

/* ---- device pages -------------------------------------------------------- */

static uint32_t need(const struct ttft_room *m)
{
	return pages_of(m->d, (uint64_t)req(m)->input + req(m)->output);
}

static bool pages_take(struct ttft_room *m, uint32_t n)
{
	struct ttft_decode *d = m->d;

	if (n > d->n_free)
		return false;
	m->pages = malloc(n * sizeof(*m->pages));
	if (!m->pages)
		return false;
	d->n_free -= n;
	memcpy(m->pages, d->free_pages + d->n_free, n * sizeof(*m->pages));
	m->n_pages = n;
	return true;
}

/* All but the first @keep. */
static void pages_give(struct ttft_room *m, uint32_t keep)
{
	struct ttft_decode *d = m->d;

	while (m->n_pages > keep)
		d->free_pages[d->n_free++] = m->pages[--m->n_pages];
	if (keep)
		return;
	free(m->pages);
	m->pages = NULL;
}

static void held_change(struct ttft_decode *d, int64_t pages)
{
	struct ttft_totals *t = &d->r->t;
	uint64_t at = now(d);

	t->held_device += (double)d->held * (double)(at - d->held_at) / 1e9;
	d->held_at = at;
	d->held += (uint64_t)(pages * (int64_t)page_bytes(d));
	if (d->held > t->peak_held_device)
		t->peak_held_device = d->held;
}

void ttft_decode_host(struct ttft_decode *d, uint64_t held, uint64_t used)
{
	struct ttft_totals *t = &d->r->t;
	uint64_t at = now(d);

	t->held_host +=
		(double)d->host_held * (double)(at - d->host_held_at) / 1e9;
	d->host_held_at = at;
	d->host_held = held;
	d->host_used = used;
	if (held > t->peak_held_host)
		t->peak_held_host = held;
}

/* ---- the end of a request ------------------------------------------------ */

static void library_leaves(struct ttft_room *m)
{
	struct ttft_decode *d = m->d;

	if (m->admitted && kvs_engine_release(d->e[m->rx], &m->h) == -EBUSY) {
		move(m, &d->leaving);
		return;
	}
	if (m->copy_held) {
		d->r->t.copy_held_device += (double)page_bytes(d) * m->n_pages *
					    (double)(now(d) - m->copy_held) /
					    1e9;
		pages_give(m, 0);
	}
	m->copy_held = 0;
	m->admitted = false;
	kvs_list_del(&m->node);
}

static void over(struct ttft_room *m, enum ttft_end end)
{
	struct ttft_decode *d = m->d;

	if (m->over)
		return;
	m->over = true;
	rec(m)->end = end;
	kvs_timer_cancel(d->timers, &m->give_up);
	d->n_over++;
	if (!atomic_load(&rec(m)->granted))
		d->n_ungranted++;
	d->r->t.duration = since_start(d);
	atomic_store(&d->r->settled, d->n_over);
}

static void release_due(struct kvs_timer *t)
{
	struct ttft_room *m = kvs_container_of(t, struct ttft_room, release);

	held_change(m->d, -(int64_t)m->n_held);
	m->n_held = 0;
	pages_give(m, 0);
	ttft_decode_turn(m->d);
}

static void hold(struct ttft_room *m, uint64_t for_ns)
{
	struct ttft_decode *d = m->d;

	m->n_held = m->n_pages;
	held_change(d, m->n_held);
	(void)kvs_timer_set(d->timers, &m->release, now(d) + for_ns);
}

/* Writers may still reach its pages. @acks: its sender is able to say when
 * they cannot. */
static void hold_direct(struct ttft_room *m, bool acks)
{
	const struct kvs_serving *s = &m->d->o->s;
	uint64_t ack = acks ? req(m)->ack : KVS_TIME_NEVER;

	/* there and back */
	if (ack != KVS_TIME_NEVER)
		ack += 2 * s->link_latency;
	pages_give(m, pages_of(m->d, req(m)->input));
	hold(m, ack < s->hold_timeout ? ack : s->hold_timeout);
}

/* Given up or failed. */
static void lose(struct ttft_room *m, enum ttft_end end, bool acks)
{
	struct ttft_decode *d = m->d;
	bool receiving = m->rx == TTFT_DEVICE && m->admitted && !rec(m)->ready;

	over(m, end);
	if (receiving && m->pages)
		hold_direct(m, acks);
	else if (m->admitted && kvs_engine_copy_live(d->e[m->rx], &m->h))
		m->copy_held = now(d);
	else if (m->pages)
		pages_give(m, 0);
	if (d->o->hold_in_device && m->rx == TTFT_HOST && !m->pages &&
	    pages_take(m, need(m) < d->n_free ? need(m) : d->n_free))
		hold(m, d->o->s.hold_timeout);
	library_leaves(m);
}

static void leave_batch(struct ttft_room *m)
{
	m->d->n_batch -= m->in_batch;
	m->in_batch = false;
	kvs_list_del(&m->early);
}

static void give_up_due(struct kvs_timer *t)
{
	struct ttft_room *m = kvs_container_of(t, struct ttft_room, give_up);
	struct ttft_decode *d = m->d;

	if (m->over)
		return;
	if (m->admitted)
		(void)kvs_engine_abort(d->e[m->rx], &m->h);
	leave_batch(m);
	lose(m, TTFT_GAVE_UP, true);
	ttft_decode_turn(d);
}

/* The daemon, or the library, says that the request is no more. */
static void refused(struct ttft_room *m)
{
	struct ttft_decode *d = m->d;
	struct kvs_failure why;

	if (m->rx == TTFT_HOST &&
	    !kvs_engine_failure(d->e[m->rx], &m->h, &why) && why.err == E2BIG)
		d->r->t.never_host++;
	lose(m, TTFT_FAILED, false);
}

/* ---- admission ----------------------------------------------------------- */

static void admit(struct ttft_room *m)
{
	const struct kvs_rank_slice all = { 0, UINT16_MAX };
	struct ttft_decode *d = m->d;
	struct kvs_rank_slice slice = all;
	char peer[32];
	struct kvs_admit a = {
		.size = sizeof(a),
		.room = ttft_room_id(m->i),
		.peer = peer,
		.tokens = req(m)->input,
		.n_ranks = 1,
		.ranks = &slice,
		.node = -1,
	};
	int r;

	slice.n_layers = d->layers;
	snprintf(peer, sizeof(peer), "prefill-%u", req(m)->prefill);
	r = kvs_engine_admit(d->e[m->rx], &a, &m->h);
	if (r == -EAGAIN) {
		move(m, &d->admitting);
		return;
	}
	if (r) {
		lose(m, TTFT_FAILED, false);
		return;
	}
	m->admitted = true;
	move(m, &d->receiving);
	atomic_store(&rec(m)->route, 1 + (uint32_t)m->rx);
	if (d->routed)
		d->routed(d, m->i);
}

static bool stages(const struct ttft_room *m)
{
	const struct ttft_decode *d = m->d;
	double use = 1 - (double)d->n_free / d->n_pages;

	switch (d->r->mode) {
	case TTFT_DIRECT:
		return false;
	case TTFT_AUTO:
		return need(m) > d->n_free || !kvs_list_empty(&d->ready) ||
		       kvs_should_stage(use, d->o->threshold);
	case TTFT_STAGED:
	case TTFT_IDEAL:
	case TTFT_MODES:
		break;
	}
	return true;
}

static void arrive(struct ttft_room *m)
{
	struct ttft_decode *d = m->d;

	m->rx = stages(m) ? TTFT_HOST : TTFT_DEVICE;
	if (need(m) > d->n_pages) {
		d->r->t.never_device++;
		over(m, TTFT_FAILED);
		return;
	}
	if (m->rx == TTFT_HOST)
		admit(m);
	else
		move(m, &d->waiting);
}

static void arrival_due(struct kvs_timer *t)
{
	struct ttft_decode *d =
		kvs_container_of(t, struct ttft_decode, arrival);
	uint64_t at = since_start(d);

	while (d->n_came < d->p->n && d->p->v[d->n_came].at <= at)
		arrive(&d->room[d->n_came++]);
	if (d->n_came < d->p->n)
		(void)kvs_timer_set(d->timers, t,
				    d->start + d->p->v[d->n_came].at);
	ttft_decode_turn(d);
}

/* ---- batch --------------------------------------------------------------- */

static void step_begin(struct ttft_decode *d)
{
	const struct kvs_serving *s = &d->o->s;

	if (kvs_timer_is_set(&d->step) || d->late)
		return;
	while (!kvs_list_empty(&d->joining)) {
		struct ttft_room *m =
			kvs_list_first(&d->joining, struct ttft_room, node);

		move(m, &d->batch);
		m->in_batch = true;
		d->n_batch++;
	}
	if (d->n_batch)
		(void)kvs_timer_set(d->timers, &d->step,
				    now(d) + s->step_base +
					    d->n_batch * s->step_request);
}

static void step_over(struct ttft_decode *d)
{
	uint32_t nr = d->r->n_steps;
	uint64_t at = since_start(d);
	struct ttft_room *m, *tmp;

	d->late = false;
	if (nr < TTFT_STEPS)
		d->r->step[d->r->n_steps++] = at;
	kvs_list_for_each_entry_safe(m, tmp, &d->batch, node) {
		if (!m->tokens++) {
			rec(m)->first = at;
			rec(m)->first_step = nr;
		}
		if (m->tokens < req(m)->output)
			continue;
		rec(m)->last = at;
		rec(m)->last_step = nr;
		kvs_list_del(&m->node);
		leave_batch(m);
		over(m, TTFT_DONE);
		pages_give(m, 0);
	}
}

/* It has come to layers that are not there. */
static bool step_waits(const struct ttft_decode *d)
{
	const struct ttft_room *m;

	kvs_list_for_each_entry(m, &d->early, early)
		if (m->in_batch)
			return true;
	return false;
}

static void step_ends(struct kvs_timer *t)
{
	struct ttft_decode *d = kvs_container_of(t, struct ttft_decode, step);

	d->late = step_waits(d);
	if (!d->late)
		step_over(d);
	ttft_decode_turn(d);
}

/* ---- rooms --------------------------------------------------------------- */

static void arm(struct ttft_room *m)
{
	struct ttft_decode *d = m->d;
	uint64_t started = atomic_load(&rec(m)->started);
	double ns = req(m)->where * req(m)->input / d->o->s.prefill_rate * 1e9;

	if (m->armed || !started || !ttft_gives_up(d->r, req(m)))
		return;
	m->armed = true;
	(void)kvs_timer_set(d->timers, &m->give_up,
			    d->start + started + (uint64_t)ns);
}

static void commit(struct ttft_room *m)
{
	struct ttft_decode *d = m->d;
	struct kvs_commit c = {
		.size = sizeof(c),
		.device = d->dev[m->rx],
		.buffers = d->buffers[m->rx],
		.pages = m->pages,
		.n_pages = pages_of(d, req(m)->input),
	};

	if (kvs_engine_commit(d->e[m->rx], &m->h, &c)) {
		lose(m, TTFT_FAILED, false);
		return;
	}
	m->commit_at = now(d);
	move(m, &d->copying);
}

static void look_receiving(struct ttft_decode *d)
{
	struct ttft_room *m, *tmp;

	kvs_list_for_each_entry_safe(m, tmp, &d->receiving, node) {
		enum kvs_status st = kvs_engine_poll(d->e[m->rx], &m->h, NULL);

		arm(m);
		if (st == KVS_STATUS_FAILED) {
			refused(m);
		} else if (st == KVS_STATUS_READY) {
			rec(m)->ready = since_start(d);
			if (m->rx == TTFT_DEVICE)
				commit(m);
			else
				move(m, &d->ready);
		}
	}
}

/* In order: the first that does not fit holds up those behind it. */
static void serve(struct ttft_decode *d)
{
	struct ttft_room *m;

	while (!kvs_list_empty(&d->admitting)) {
		m = kvs_list_first(&d->admitting, struct ttft_room, node);
		kvs_list_del(&m->node);
		admit(m);
		if (!m->admitted && !m->over)
			break;
	}
	while (!kvs_list_empty(&d->ready)) {
		m = kvs_list_first(&d->ready, struct ttft_room, node);
		if (!pages_take(m, need(m)))
			break;
		commit(m);
	}
	while (!kvs_list_empty(&d->waiting) && kvs_list_empty(&d->ready)) {
		m = kvs_list_first(&d->waiting, struct ttft_room, node);
		if (!pages_take(m, need(m)))
			break;
		admit(m);
	}
}

/* All of it is on the device. */
static void placed(struct ttft_room *m)
{
	struct ttft_decode *d = m->d;

	rec(m)->placed = since_start(d);
	if (d->check)
		d->check(d, m->i, m->pages, pages_of(d, req(m)->input));
	(void)kvs_engine_release(d->e[m->rx], &m->h);
	m->admitted = false;
}

/* As fast as until now, the rest is there before a step is over. */
static bool soon(const struct ttft_room *m)
{
	const struct ttft_decode *d = m->d;
	uint64_t took = now(d) - m->commit_at;
	int n;

	if (!d->o->layerwise || m->rx == TTFT_DEVICE)
		return false;
	n = kvs_engine_copied_layers(d->e[m->rx], &m->h);
	return n > 0 && took * (d->layers - (uint32_t)n) / (uint32_t)n <=
				d->o->s.step_base;
}

static void look_copying(struct ttft_decode *d)
{
	struct ttft_room *m, *tmp;

	kvs_list_for_each_entry_safe(m, tmp, &d->copying, node) {
		enum kvs_status st = kvs_engine_poll(d->e[m->rx], &m->h, NULL);

		if (st == KVS_STATUS_FAILED) {
			lose(m, TTFT_FAILED, false);
		} else if (st == KVS_STATUS_DONE) {
			placed(m);
			move(m, &d->joining);
		} else if (soon(m)) {
			kvs_list_add_tail(&d->early, &m->early);
			move(m, &d->joining);
		}
	}
}

static void look_early(struct ttft_decode *d)
{
	struct ttft_room *m, *tmp;

	kvs_list_for_each_entry_safe(m, tmp, &d->early, early) {
		enum kvs_status st = kvs_engine_poll(d->e[m->rx], &m->h, NULL);

		if (st == KVS_STATUS_FAILED) {
			/* what was computed with it is of no use */
			leave_batch(m);
			lose(m, TTFT_FAILED, false);
		} else if (st == KVS_STATUS_DONE) {
			placed(m);
			kvs_list_del(&m->early);
		}
	}
	if (d->late && !step_waits(d))
		step_over(d);
}

static void look_leaving(struct ttft_decode *d)
{
	struct ttft_room *m, *tmp;

	kvs_list_for_each_entry_safe(m, tmp, &d->leaving, node)
		library_leaves(m);
}

void ttft_decode_turn(struct ttft_decode *d)
{
	for (int x = 0; x < TTFT_RX; x++)
		if (d->e[x])
			(void)kvs_engine_progress(d->e[x]);
	look_leaving(d);
	look_receiving(d);
	serve(d);
	look_early(d);
	look_copying(d);
	for (int x = 0; x < TTFT_RX; x++)
		if (d->e[x])
			(void)kvs_engine_progress(d->e[x]);
	step_begin(d);
}

/* ---- samples ------------------------------------------------------------- */

static void sample_due(struct kvs_timer *t)
{
	struct ttft_decode *d = kvs_container_of(t, struct ttft_decode, sample);
	uint32_t waits = (uint32_t)d->n_came - d->n_ungranted;
	struct ttft_run *r = d->r;
	struct ttft_host h;

	if (d->host) {
		d->host(d, &h);
		ttft_decode_host(d, h.held, h.used);
	}
	if (r->n_samples < TTFT_SAMPLES)
		r->sample[r->n_samples++] = (struct ttft_sample){
			.held_device = (float)d->held,
			.held_host = (float)d->host_held,
			.use_device = 1 - (float)d->n_free / (float)d->n_pages,
			.use_host = (float)d->host_used,
			.queue = waits - atomic_load(&r->n_granted),
			.batch = d->n_batch,
		};
	(void)kvs_timer_set(d->timers, t, now(d) + TTFT_SAMPLE_EVERY);
}

/* ---- life ---------------------------------------------------------------- */

static void init_lists(struct ttft_decode *d)
{
	struct kvs_list *const l[] = {
		&d->waiting, &d->admitting, &d->receiving,
		&d->ready,   &d->copying,   &d->early,
		&d->joining, &d->batch,	    &d->leaving,
	};

	for (size_t i = 0; i < sizeof(l) / sizeof(l[0]); i++)
		kvs_list_init(l[i]);
	kvs_timer_init(&d->arrival, arrival_due);
	kvs_timer_init(&d->step, step_ends);
	kvs_timer_init(&d->sample, sample_due);
}

int ttft_decode_init(struct ttft_decode *d)
{
	init_lists(d);
	for (uint32_t b = 0; b < d->layout->n_buffers; b++)
		if (d->layout->buffers[b].layer >= d->layers)
			d->layers = d->layout->buffers[b].layer + 1u;
	d->n_pages = (uint32_t)(d->o->s.device_tokens / d->layout->page_size);
	d->room = calloc(d->p->n, sizeof(*d->room));
	d->free_pages = calloc(d->n_pages, sizeof(*d->free_pages));
	if (!d->room || !d->free_pages)
		return -ENOMEM;
	while (d->n_free < d->n_pages) {
		/* the lowest on top */
		d->free_pages[d->n_free] = d->n_pages - 1 - d->n_free;
		d->n_free++;
	}
	for (size_t i = 0; i < d->p->n; i++) {
		struct ttft_room *m = &d->room[i];

		m->d = d;
		m->i = i;
		kvs_list_init(&m->node);
		kvs_list_init(&m->early);
		kvs_timer_init(&m->give_up, give_up_due);
		kvs_timer_init(&m->release, release_due);
	}
	return 0;
}

void ttft_decode_begin(struct ttft_decode *d)
{
	d->held_at = now(d);
	d->host_held_at = now(d);
	(void)kvs_timer_set(d->timers, &d->arrival, d->start + d->p->v[0].at);
	/* half-way between full seconds, at which many traces have arrivals */
	(void)kvs_timer_set(d->timers, &d->sample,
			    d->start + TTFT_SAMPLE_EVERY / 2);
}

bool ttft_decode_over(const struct ttft_decode *d)
{
	return d->n_over == d->p->n;
}

void ttft_decode_end(struct ttft_decode *d)
{
	held_change(d, 0);
	ttft_decode_host(d, d->host_held, d->host_used);
}

void ttft_decode_fini(struct ttft_decode *d)
{
	for (size_t i = 0; d->room && i < d->p->n; i++)
		free(d->room[i].pages);
	free(d->room);
	free(d->free_pages);
	d->room = NULL;
	d->free_pages = NULL;
}
