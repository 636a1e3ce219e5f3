/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of the prefill instance: what they send, do wrong, and how they
 * die and come back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/layout.h"
#include "tools/sim/sim.h"

static unsigned char source_memory[SIM_RANKS][SIM_BUFFERS]
				  [SIM_ITEMS * SIM_ITEM_LEN];

/* The source items of one call, until they may be reused. */
struct sim_job {
	struct kvs_list node; /* on the rank's jobs */
	uint32_t buffer; /* UINT32_MAX: all paged ones */
	uint32_t n;
	uint32_t items[];
};

/* ---- callbacks of the library -------------------------------------------- */

static void scribble(struct sim_rank *k, uint32_t b, uint32_t item)
{
	memset(k->base[b] + (size_t)item * k->lb[b].item_len, 0xee,
	       k->lb[b].item_len);
}

static void pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	struct sim_send *s = kvs_send_user(r);
	struct sim_job *j = cookie;
	struct sim_rank *k = s->k;

	(void)status;
	if (!j) {
		memset(s->aux, 0xee, sizeof(s->aux));
		return;
	}
	/* whoever still reads them sends what cannot be right */
	for (uint32_t i = 0; i < j->n; i++) {
		for (uint32_t b = 0; b < k->layout.n_buffers; b++)
			if (j->buffer == b ||
			    (j->buffer == UINT32_MAX && !k->lb[b].items))
				scribble(k, b, j->items[i]);
		if (k->s)
			k->free_items[k->n_free++] = j->items[i];
	}
	kvs_list_del(&j->node);
	free(j);
}

static void room_granted(struct kvs_send_room *r, uint64_t generation)
{
	struct sim_send *s = kvs_send_user(r);

	sim_note(s->w, s->a->id, "", "rank %u is granted, generation %llu",
		 s->k->nr, (unsigned long long)generation);
}

static void room_done(struct kvs_send_room *r, int status, const char *text)
{
	struct sim_send *s = kvs_send_user(r);

	if (!s->k->s)
		return; /* its process is gone */
	sim_note(s->w, s->a->id, "", "rank %u is done: %d %s", s->k->nr, status,
		 text);
	if (s->done)
		sim_fail(s->w, "rank %u: done() twice", s->k->nr);
	s->done = true;
	s->status = status;
	if (s->r)
		sim_act(s->w, &s->act,
			sim_between(s->w, 0, 5 * s->w->plan.gap));
}

static const struct kvs_send_ops send_ops = {
	.granted = room_granted,
	.pages_free = pages_free,
	.done = room_done,
};

/* ---- one room of one rank ------------------------------------------------ */

static struct sim_job *job_new(struct sim_rank *k, uint32_t buffer, uint32_t n)
{
	struct sim_job *j = malloc(sizeof(*j) + n * sizeof(j->items[0]));

	if (!j)
		return NULL;
	j->buffer = buffer;
	j->n = n;
	for (uint32_t i = 0; i < n; i++)
		j->items[i] = k->free_items[--k->n_free];
	kvs_list_add_tail(&k->jobs, &j->node);
	return j;
}

static void job_undo(struct sim_rank *k, struct sim_job *j)
{
	for (uint32_t i = 0; i < j->n; i++)
		k->free_items[k->n_free++] = j->items[i];
	kvs_list_del(&j->node);
	free(j);
}

static bool has_layer(const struct sim_send *s, unsigned int layer)
{
	const struct kvs_rank_slice *c = &s->a->slice[s->k->nr];

	return layer >= c->first_layer && layer - c->first_layer < c->n_layers;
}

static void fill(struct sim_send *s, uint32_t b, uint32_t item, uint32_t nr)
{
	struct sim_rank *k = s->k;
	const struct kvs_layer_buffer *lb = &k->lb[b];

	/* its buffers have another order than the engines' */
	sim_item(s->a,
		 (uint32_t)kvs_layout_find(&s->w->layout, lb->kind, lb->layer),
		 nr, k->base[b] + (size_t)item * lb->item_len);
}

/* Pages that it sends: all but what is cached. */
static uint32_t pages_of(const struct sim_send *s)
{
	return s->a->pages - s->a->cached;
}

/* 0; -EBUSY: no source items left now. */
static int send_pages(struct sim_send *s)
{
	struct sim_rank *k = s->k;
	uint32_t n = (uint32_t)sim_between(s->w, 1, 4);
	struct sim_job *j;
	int ret;

	if (n > pages_of(s) - s->next_page)
		n = pages_of(s) - s->next_page;
	if (n > k->n_free)
		n = k->n_free;
	j = n ? job_new(k, UINT32_MAX, n) : NULL;
	if (!j)
		return -EBUSY;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t b = 0; b < k->layout.n_buffers; b++)
			if (!k->lb[b].items && has_layer(s, k->lb[b].layer))
				fill(s, b, j->items[i],
				     s->a->cached + s->next_page + i);
	ret = kvs_send_pages(s->r, s->next_page, j->items, n, j);
	if (ret)
		job_undo(k, j);
	else
		s->next_page += n;
	return ret;
}

static int send_state(struct sim_send *s)
{
	struct sim_rank *k = s->k;
	uint32_t b = s->buffer;
	uint32_t n = (uint32_t)kvs_buffer_items(&k->lb[b], s->a->pages);
	struct sim_job *j;
	int ret;

	if (n > k->n_free)
		return -EBUSY;
	j = job_new(k, b, n);
	if (!j)
		return -EBUSY;
	for (uint32_t i = 0; i < n; i++)
		fill(s, b, j->items[i], i);
	ret = kvs_send_state(s->r, b, j->items, n, j);
	if (ret)
		job_undo(k, j);
	else
		s->buffer++;
	return ret;
}

static int send_aux(struct sim_send *s)
{
	uint32_t len = s->a->aux_len;
	int ret;

	if (s->wrong == SIM_WRONG_AUX && len > 1) {
		sim_fault(s->w, SIM_FAULT_AUX);
		len--;
	}
	sim_bytes(s->aux, len, s->a->nr, s->k->nr, KVS_KIND_AUX, s->k->nr, 0);
	ret = kvs_send_aux(s->r, s->aux, len, NULL);
	s->aux_sent = !ret;
	return ret;
}

/* The next state buffer of this rank's layers, if any. */
static bool next_state(struct sim_send *s)
{
	struct sim_rank *k = s->k;

	while (s->buffer < k->layout.n_buffers &&
	       (!k->lb[s->buffer].items ||
		!has_layer(s, k->lb[s->buffer].layer)))
		s->buffer++;
	return s->buffer < k->layout.n_buffers;
}

/* One call of what is left to send, or the last one. */
static int send_step(struct sim_send *s)
{
	bool pages = s->a->slice[s->k->nr].n_layers &&
		     s->next_page < pages_of(s);
	bool state = next_state(s);
	bool aux = s->a->aux_len && !s->aux_sent;
	unsigned int left = (unsigned int)pages + state + aux;

	s->steps++;
	if (s->wrong == SIM_WRONG_NO_FINISH && s->steps > s->wrong_at) {
		sim_fault(s->w, SIM_FAULT_NO_FINISH);
		return -ECANCELED;
	}
	if (left == 1 && s->wrong == SIM_WRONG_SHORT &&
	    (!pages || pages_of(s) - s->next_page <= 4)) {
		sim_fault(s->w, SIM_FAULT_SHORT);
		left = 0;
	}
	if (!left) {
		s->finished = true;
		return kvs_send_finish(s->r);
	}
	if (pages && (left == 1 || sim_chance(s->w, 0.6)))
		return send_pages(s);
	if (state && (!aux || sim_chance(s->w, 0.5)))
		return send_state(s);
	return aux ? send_aux(s) : send_pages(s);
}

static void send_close(struct sim_send *s)
{
	struct kvs_send_room *r = s->r;

	sim_note(s->w, s->a->id, "", "rank %u closes its handle", s->k->nr);
	s->r = NULL;
	kvs_timer_cancel(&s->w->acts, &s->act);
	kvs_send_close(r);
}

/* The way it goes wrong, when it is time. True: nothing else to do now. */
static bool send_goes_wrong(struct sim_send *s)
{
	if (s->steps != s->wrong_at)
		return false;
	if (s->wrong == SIM_WRONG_ABORT) {
		sim_fault(s->w, SIM_FAULT_GIVE_UP);
		sim_note(s->w, s->a->id, "", "rank %u gives up", s->k->nr);
		(void)kvs_send_abort(s->r, ENOSPC, "gives up");
		s->wrong = SIM_RIGHT;
		return true;
	}
	if (s->wrong == SIM_WRONG_CLOSE) {
		sim_fault(s->w, SIM_FAULT_CLOSE);
		send_close(s);
		return true;
	}
	return false;
}

static void send_open(struct sim_send *s)
{
	struct sim_rank *k = s->k;
	struct sim_attempt *a = s->a;
	struct sim *w = s->w;
	unsigned char nonce[16];
	uint64_t tokens = a->tokens - (uint64_t)a->cached * w->layout.page_size;
	int ret = -EAGAIN;

	if (s->wrong == SIM_WRONG_NO_OPEN) {
		sim_fault(w, SIM_FAULT_NO_OPEN);
		return;
	}
	if (s->wrong == SIM_WRONG_TOKENS) {
		sim_fault(w, SIM_FAULT_TOKENS);
		tokens += w->layout.page_size;
	}
	memset(nonce, (int)a->nr + 1, sizeof(nonce));
	/* A router tells both sides at about the same time, and of a second
	 * attempt when the first is known to have ended. */
	if ((a->state != SIM_PLANNED || sim_chance(w, 0.1)) &&
	    (!a->use_cache || a->cached_known || a->state >= SIM_ENDED) &&
	    (!a->before || a->before->state >= SIM_ENDED ||
	     a->before->aborted) &&
	    k->s && k->s->agreed && !k->stopping)
		ret = kvs_send_open(k->s, a->id, a->nonce ? nonce : NULL,
				    tokens, s, &s->r);
	if (!ret) {
		sim_note(w, a->id, "", "rank %u opens for attempt %u", k->nr,
			 a->nr);
		s->opened = true;
	}
	sim_act(w, &s->act,
		ret ? sim_patience(w) : sim_between(w, 0, 2 * w->plan.gap));
}

static void send_act(struct kvs_timer *t)
{
	struct sim_send *s = kvs_container_of(t, struct sim_send, act);
	struct sim *w = s->w;
	bool failed;
	int ret;

	w->actor = "rank";
	if (!s->opened) {
		if (w->healing || s->a->state == SIM_LOST)
			return;
		send_open(s);
		s->k->dirty = true;
		return;
	}
	if (!s->r)
		return;
	s->k->dirty = true;
	if (s->done) {
		send_close(s);
		return;
	}
	if (s->finished || send_goes_wrong(s))
		return;
	failed = s->r->state == KVS_SEND_FAILED;
	ret = send_step(s);
	if (!ret && failed)
		sim_fail(w, "R4: a room that has failed takes more");
	if (ret && ret != -EBUSY && ret != -ECANCELED)
		sim_fail(w, "rank %u, attempt %u: a call was refused: %d",
			 s->k->nr, s->a->nr, ret);
	if (ret == -EBUSY)
		sim_act(w, &s->act, sim_patience(w));
	else if (ret != -ECANCELED && !s->finished)
		sim_act(w, &s->act, sim_between(w, 0, 2 * w->plan.gap));
}

void sim_send_init(struct sim_send *s)
{
	struct sim *w = s->w;

	kvs_timer_init(&s->act, send_act);
	sim_act(w, &s->act,
		sim_between(w, 0, (s->a->nr + 1) * 10 * w->plan.gap));
}

/* ---- the process --------------------------------------------------------- */

static void shuffle_layout(struct sim_rank *k)
{
	struct sim *w = k->w;

	k->layout = w->layout;
	k->layout.buffers = k->lb;
	memcpy(k->lb, w->lb, sizeof(k->lb));
	for (uint32_t i = k->layout.n_buffers; i > 1; i--) {
		uint32_t o = (uint32_t)kvs_rng_below(&w->rng, i);
		struct kvs_layer_buffer t = k->lb[i - 1];

		k->lb[i - 1] = k->lb[o];
		k->lb[o] = t;
	}
}

static void rank_act(struct kvs_timer *t);

void sim_rank_init(struct sim_rank *k)
{
	struct sim *w = k->w;

	shuffle_layout(k);
	for (uint32_t b = 0; b < SIM_BUFFERS; b++)
		k->base[b] = source_memory[k->nr][b];
	k->two_sided = w->plan.one_sided && sim_chance(w, 0.3);
	k->pulled = k->two_sided && sim_chance(w, 0.7);
	kvs_list_init(&k->jobs);
	kvs_timer_init(&k->act, rank_act);
	sim_rank_begin(k);
	if (!w->plan.clean && sim_chance(w, 0.15))
		sim_act(w, &k->act, sim_between(w, 0, 300 * w->plan.gap));
}

void sim_rank_begin(struct sim_rank *k)
{
	struct sim *w = k->w;
	struct kvs_sender_opts o = {
		.size = sizeof(o),
		.daemon = "front",
		.peer = "prefill",
		.rank = k->nr,
		.n_ranks = w->plan.n_ranks,
		.layout = &k->layout,
		.buffers = (void *const *)k->base,
		.data_connections = (unsigned int)sim_between(w, 1, 3),
		.window = sim_between(w, 1, 3000),
		.chunk_max = sim_between(w, 16, 1500),
		.stripe_min = sim_between(w, 1, 20000),
		.connect_timeout = 500 * SIM_MS,
		.ops = &send_ops,
		.open_timeout = w->plan.clean ? 10 * KVS_NSEC_PER_SEC
					      : 300 * SIM_MS,
	};
	struct kvs_sender_place p = { .clock = &w->clock.clk };
	char name[16], err[256];

	for (uint32_t i = 0; i < SIM_ITEMS; i++)
		k->free_items[i] = i;
	k->n_free = SIM_ITEMS;
	k->crashed = false;
	k->stopping = false;
	k->asked = 0;
	k->answered = 0;
	snprintf(name, sizeof(name), "s%u.%u", k->nr, k->instance++);
	if (kvs_loop_create(w->net, name, &k->t) ||
	    kvs_loop_addr("front", &p.addr)) {
		sim_fail(w, "no endpoint for rank %u", k->nr);
		return;
	}
	p.t = k->t;
	if (kvs_sender_init(&o, &p, &k->s, err, sizeof(err))) {
		kvs_transport_destroy(k->t);
		k->s = NULL;
		sim_fail(w, "rank %u: %s", k->nr, err);
		return;
	}
	kvs_sender_begin(k->s);
	k->dirty = true;
}

/* Its rooms go with it; nobody calls the library for them any more. */
static void rank_forget(struct sim_rank *k)
{
	struct sim *w = k->w;

	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		struct sim_send *s = &w->attempt[i].send[k->nr];

		if (!s->opened)
			continue;
		s->r = NULL;
		kvs_timer_cancel(&w->acts, &s->act);
	}
}

static void rank_jobs_free(struct sim_rank *k)
{
	while (!kvs_list_empty(&k->jobs)) {
		struct sim_job *j =
			kvs_list_first(&k->jobs, struct sim_job, node);

		kvs_list_del(&j->node);
		free(j);
	}
}

void sim_rank_kill(struct sim_rank *k)
{
	struct kvs_sender *s = k->s;

	if (!s)
		return;
	rank_forget(k);
	k->s = NULL;
	if (!kvs_fabric_killed(k->t))
		kvs_fabric_kill(k->t);
	sim_pull_abandon(k, s);
	kvs_sender_fini(s);
	k->t = NULL;
	rank_jobs_free(k);
}

void sim_rank_crash(struct sim_rank *k)
{
	struct sim *w = k->w;

	sim_note(w, 0, "", "rank %u is killed", k->nr);
	sim_rank_kill(k);
	if (sim_chance(w, 0.8) && !w->healing)
		sim_act(w, &k->act, sim_between(w, 0, 50 * w->plan.gap));
}

static void rank_act(struct kvs_timer *t)
{
	struct sim_rank *k = kvs_container_of(t, struct sim_rank, act);
	struct sim *w = k->w;

	w->actor = "rank";
	if (!k->s) {
		if (w->healing || !w->daemon_up)
			return;
		sim_note(w, 0, "", "rank %u comes back", k->nr);
		sim_fault(w, SIM_FAULT_SENDER_BACK);
		sim_rank_begin(k);
		return;
	}
	if (w->healing)
		return;
	sim_fault(w, SIM_FAULT_SENDER_CRASH);
	sim_rank_crash(k);
}

bool sim_rank_due(const struct sim_rank *k)
{
	return k->s && (k->dirty || sim_rank_next(k) <= sim_time(k->w));
}

uint64_t sim_rank_next(const struct sim_rank *k)
{
	uint64_t a, b;

	if (!k->s)
		return KVS_TIME_NEVER;
	if (k->dirty)
		return sim_time(k->w);
	a = kvs_loop_next(k->t);
	b = kvs_sender_next(k->s);
	return a < b ? a : b;
}

/* A sender whose daemon is gone, or that never agreed, is of no use. */
static bool rank_useless(const struct sim_rank *k)
{
	return k->s->agreed && (k->s->agreed_err || atomic_load(&k->s->gone));
}

void sim_rank_turn(struct sim_rank *k)
{
	struct kvs_transport_stats before, after;
	struct sim *w = k->w;
	bool due;

	k->dirty = false;
	due = sim_rank_next(k) <= sim_time(w);
	kvs_transport_stats(k->t, &before);
	if (!kvs_sender_turn(k->s, 0)) {
		struct kvs_sender *s = k->s;

		sim_note(w, 0, "", "rank %u has stopped", k->nr);
		rank_forget(k);
		k->s = NULL;
		sim_pull_abandon(k, s);
		kvs_sender_fini(s);
		k->t = NULL;
		rank_jobs_free(k);
		if (!w->healing && w->daemon_up && !w->daemon_draining)
			sim_act(w, &k->act, sim_between(w, 0, SIM_MS));
		return;
	}
	/* What its poll completed is taken up by the next turn. */
	kvs_transport_stats(k->t, &after);
	k->dirty = due || memcmp(&before, &after, sizeof(before)) != 0;
	if (!k->stopping && rank_useless(k)) {
		sim_note(w, 0, "", "rank %u gives its sender up", k->nr);
		k->stopping = true;
		k->dirty = true;
		kvs_sender_stop(k->s);
	}
}

bool sim_rank_idle(const struct sim_rank *k)
{
	const struct sim *w = k->w;

	if (!k->s)
		return true;
	for (unsigned int i = 0; i < w->plan.n_attempts; i++)
		if (w->attempt[i].send[k->nr].r)
			return false;
	return kvs_list_empty(&k->s->all);
}

void sim_rank_heal(struct sim_rank *k)
{
	struct sim *w = k->w;

	kvs_timer_cancel(&w->acts, &k->act);
	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		struct sim_send *s = &w->attempt[i].send[k->nr];

		if (s->r)
			send_close(s);
		kvs_timer_cancel(&w->acts, &s->act);
	}
	k->dirty = true;
}
