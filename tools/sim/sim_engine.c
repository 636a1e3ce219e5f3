/* SPDX-License-Identifier: Apache-2.0 */
/* Engine processes: they attach, admit, look at their rooms now and then,
 * commit, abort, leave and die. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/cache.h"
#include "tools/sim/sim.h"

#define SIM_NAP_MAX (20 * SIM_MS)

void sim_engine_wake(struct sim_engine *g, uint64_t within)
{
	uint64_t at = sim_time(g->w) + sim_between(g->w, 0, within);

	if (g->dead || (kvs_timer_is_set(&g->tick) && g->tick.at <= at))
		return;
	g->nap = g->w->plan.gap;
	(void)kvs_timer_set(&g->w->acts, &g->tick, at);
}

/* ---- attempts ------------------------------------------------------------ */

void sim_pages_give(struct sim_attempt *a)
{
	struct sim_engine *g = a->eng;

	if (!a->dev_held)
		return;
	a->dev_held = false;
	for (uint32_t i = 0; i < a->pages; i++)
		g->free_pages[g->n_free++] = a->dev_pages[i];
	for (uint32_t i = 0; i < a->n_dev_items; i++)
		g->free_pages[g->n_free++] = a->dev_items[i];
}

static void attempt_over(struct sim_attempt *a, enum sim_attempt_state st)
{
	struct sim_engine *g = a->eng;

	a->state = st;
	kvs_timer_cancel(&a->w->acts, &a->act);
	if (!g)
		return;
	g->live--;
	if (!a->away.phase)
		sim_pages_give(a);
}

void sim_attempt_drop(struct sim_attempt *a)
{
	attempt_over(a, SIM_LOST);
}

struct sim_engine *sim_engine_any(struct sim *w)
{
	struct sim_engine *best = NULL;
	unsigned int n = 0;

	for (unsigned int i = 0; i < w->n_engines; i++) {
		struct sim_engine *g = &w->engine[i];

		if (g->attached && !g->dead && !g->leaving &&
		    kvs_rng_below(&w->rng, ++n) == 0)
			best = g;
	}
	return best;
}

static void attempt_admit(struct sim_attempt *a)
{
	struct sim *w = a->w;
	struct sim_engine *g = sim_engine_any(w);
	uint8_t hashes[SIM_PAGES][16];
	struct kvs_admit q = {
		.size = sizeof(q),
		.room = a->id,
		.peer = "prefill",
		.tokens = a->tokens,
		.n_ranks = a->n_ranks,
		.ranks = a->slice,
		.aux_len = a->aux_len,
		.node = -1,
	};
	int ret = -EAGAIN;

	/* The router does not give an id twice at a time. */
	if (g && (!a->follows || a->follows->state >= SIM_ENDED) &&
	    (!a->before || a->before->state >= SIM_ENDED ||
	     a->before->aborted)) {
		if (a->named) {
			q.n_hashes = sim_hashes(a, hashes);
			q.hashes = hashes;
		}
		if (a->use_cache)
			q.flags |= KVS_ADMIT_CACHED;
		if (a->nonce)
			memset(q.nonce, (int)a->nr + 1, sizeof(q.nonce));
		ret = kvs_engine_admit(g->e, &q, &a->h);
		sim_note(w, a->id, "", "engine %u admits attempt %u: %d", g->nr,
			 a->nr, ret);
	}
	if (ret) {
		sim_act(w, &a->act, sim_patience(w));
		return;
	}
	a->state = SIM_ADMITTED;
	a->eng = g;
	a->seen = KVS_STATUS_PENDING;
	g->live++;
	sim_engine_wake(g, w->plan.gap);
}

bool sim_pages_take(struct sim_attempt *a)
{
	struct sim_engine *g = a->eng;
	struct sim *w = a->w;
	uint32_t items = 0;

	for (uint32_t b = 0; b < w->layout.n_buffers; b++)
		if (w->lb[b].items)
			items +=
				(uint32_t)kvs_buffer_items(&w->lb[b], a->pages);
	if (a->dev_held)
		return true;
	if (g->n_free < a->pages + items)
		return false;
	a->dev_held = true;
	a->n_dev_items = items;
	for (uint32_t i = 0; i < a->pages; i++)
		a->dev_pages[i] = g->free_pages[--g->n_free];
	for (uint32_t i = 0; i < items; i++)
		a->dev_items[i] = g->free_pages[--g->n_free];
	return true;
}

static void attempt_commit(struct sim_attempt *a)
{
	struct sim_engine *g = a->eng;
	struct kvs_commit c = {
		.size = sizeof(c),
		.device = g->dev,
		.buffers = g->buffer,
		.pages = a->dev_pages,
		.n_pages = a->pages,
		.items = a->dev_items,
	};
	int ret = -EAGAIN;

	if (sim_pages_take(a)) {
		c.n_items = a->n_dev_items;
		ret = kvs_engine_commit(g->e, &a->h, &c);
		sim_note(a->w, a->id, "", "engine %u commits: %d", g->nr, ret);
	}
	if (ret == -EINVAL || ret == -ENOENT)
		sim_fail(a->w, "commit of attempt %u: %d", a->nr, ret);
	if (!ret)
		a->committed = true;
	else if (ret == -EAGAIN)
		sim_act(a->w, &a->act, sim_patience(a->w));
	sim_engine_wake(g, a->w->plan.gap);
}

static void attempt_act(struct kvs_timer *t)
{
	struct sim_attempt *a = kvs_container_of(t, struct sim_attempt, act);
	int ret;

	a->w->actor = "engine";
	if (a->state == SIM_PLANNED) {
		attempt_admit(a);
		return;
	}
	if (a->state != SIM_ADMITTED || a->eng->dead)
		return;
	if (a->abort_due && !a->aborted) {
		a->aborted = true;
		ret = kvs_engine_abort(a->eng->e, &a->h);
		sim_note(a->w, a->id, "", "engine %u aborts: %d", a->eng->nr,
			 ret);
		sim_engine_wake(a->eng, a->w->plan.gap);
		return;
	}
	if (a->seen == KVS_STATUS_READY && !a->committed)
		attempt_commit(a);
}

void sim_attempt_init(struct sim_attempt *a)
{
	struct sim *w = a->w;

	kvs_timer_init(&a->act, attempt_act);
	sim_act(w, &a->act, sim_between(w, 0, (a->nr + 1) * 10 * w->plan.gap));
}

/* An end is an end: once, and nothing after it. */
static void attempt_end(struct sim_attempt *a, int err)
{
	struct sim *w = a->w;

	if (a->ends)
		return;
	a->ends++;
	sim_note(w, a->id, "", "attempt %u ends: %s %d", a->nr,
		 a->seen == KVS_STATUS_DONE ? "done" : "failed", err);
	if (a->seen != KVS_STATUS_DONE) {
		w->cover->rooms_failed++;
		/* one that is still on its way when all is put right is ended
		 * by its rank, which closes its handle */
		a->cut = w->healing && err == ECANCELED;
		if (w->plan.clean && !a->cut)
			sim_fail(w, "attempt %u failed (%d) with no fault",
				 a->nr, err);
		return;
	}
	w->cover->rooms_done++;
	sim_check_done(a);
}

static void attempt_ready(struct sim_attempt *a)
{
	struct sim *w = a->w;
	const void *p;
	uint32_t len;

	if (a->cached)
		sim_kept(w, SIM_KEPT_READY);
	for (uint32_t r = 0; r < a->n_ranks; r++)
		if (!kvs_engine_aux(a->eng->e, &a->h, r, &p, &len))
			sim_check_aux(a, r, p, len);
	if (a->no_commit)
		sim_fault(w, SIM_FAULT_NO_COMMIT);
	else
		sim_act(w, &a->act, sim_between(w, 0, 4 * w->plan.gap));
}

/* So much of it need not be sent: its router waits for that. */
static void attempt_cached(struct sim_attempt *a)
{
	struct sim *w = a->w;
	uint64_t tokens;
	int ret;

	ret = kvs_engine_cached(a->eng->e, &a->h, &tokens);
	if (ret == -EAGAIN)
		return;
	if (ret || tokens >= a->tokens || tokens % w->layout.page_size) {
		sim_fail(w, "attempt %u: of %llu tokens %llu are cached: %d",
			 a->nr, (unsigned long long)a->tokens,
			 (unsigned long long)tokens, ret);
		return;
	}
	a->cached_known = true;
	a->cached = (uint32_t)(tokens / w->layout.page_size);
	if (a->cached)
		sim_note(w, a->id, "", "%u of %u pages are cached", a->cached,
			 a->pages);
}

/* What a scheduler sees of the room at this moment. */
static void attempt_look(struct sim_attempt *a)
{
	struct sim_engine *g = a->eng;
	struct sim *w = a->w;
	enum kvs_status st;
	int err = 0, ret;

	st = kvs_engine_poll(g->e, &a->h, &err);
	if (st != KVS_STATUS_FAILED && st < a->seen)
		sim_fail(w, "R12: attempt %u: status %d after %d", a->nr, st,
			 a->seen);
	if (a->ends && st != a->seen)
		sim_fail(w, "R12: attempt %u ended as %d, then %d", a->nr,
			 a->seen, st);
	if (a->generation && a->h.generation &&
	    a->h.generation != a->generation)
		sim_fail(w, "attempt %u: generation changed", a->nr);
	a->generation = a->h.generation;
	if (a->use_cache && !a->cached_known)
		attempt_cached(a);
	if (st != a->seen) {
		g->nap = w->plan.gap;
		a->seen = st;
		if (st == KVS_STATUS_READY)
			attempt_ready(a);
	}
	if (a->abort_status >= 0 && (int)st >= a->abort_status &&
	    st != KVS_STATUS_FAILED && !a->abort_due) {
		a->abort_due = true;
		sim_act(w, &a->act, sim_between(w, 0, 4 * w->plan.gap));
	}
	if (st != KVS_STATUS_DONE && st != KVS_STATUS_FAILED)
		return;
	attempt_end(a, err);
	/* its handle is given back when it comes to that */
	if (sim_chance(w, 0.3))
		return;
	ret = kvs_engine_release(g->e, &a->h);
	if (!ret && st == KVS_STATUS_DONE && sim_away_begin(a))
		sim_note(w, a->id, "", "attempt %u goes on", a->nr);
	if (!ret)
		attempt_over(a, SIM_ENDED);
	else if (ret != -EBUSY)
		sim_fail(w, "release of attempt %u: %d", a->nr, ret);
}

/* ---- the process --------------------------------------------------------- */

static struct kvs_engine_opts engine_opts(const struct sim_engine *g)
{
	const struct sim *w = g->w;

	return (struct kvs_engine_opts){
		.size = sizeof(struct kvs_engine_opts),
		.name = "engine",
		.layout = &w->layout,
		.node = -1,
		.cache_space = g->keeps ? "model" : NULL,
		.cache_block = w->plan.block_pages * w->layout.page_size,
	};
}

static void engine_offer(struct sim_engine *g)
{
	struct kvs_engine_opts o = engine_opts(g);
	struct kvs_packet_attach *p;
	size_t len;

	p = kvs_eng_offer(g->e, &o, &len);
	while (p && g->e->port->send(g->e, p, len) == -EAGAIN)
		;
	free(p);
}

static int device_fault(void *arg, const struct kvs_soft_event *e)
{
	const struct sim *w = arg;

	(void)e;
	return w->healing ? KVS_SOFT_NO_FAULT : -1;
}

static int device_open(struct sim_engine *g)
{
	struct sim *w = g->w;
	struct kvs_soft_virtual_opts o = {
		.clock = &w->clock.clk,
		.seed = kvs_rng_next(&w->rng),
		.chances = w->plan.gpu,
		.fault = device_fault,
		.arg = w,
	};
	int ret;

	ret = kvs_soft_open_virtual(&o, &g->dev);
	for (uint32_t b = 0; b < w->layout.n_buffers && !ret; b++)
		ret = kvs_device_alloc(g->dev,
				       (uint64_t)SIM_ITEMS * w->lb[b].item_len,
				       &g->buffer[b]);
	return ret;
}

/* Nothing it had under way goes on. */
static void device_close(struct sim_engine *g)
{
	const uint64_t *n;

	if (!g->dev)
		return;
	n = kvs_soft_faults(g->dev);
	for (unsigned int i = 0; i < KVS_SOFT_FAULT_MAX; i++)
		g->w->cover->gpu[i] += n[i];
	kvs_soft_kill(g->dev);
	for (uint32_t b = 0; b < g->w->layout.n_buffers; b++)
		kvs_device_free(g->dev, g->buffer[b]);
	kvs_device_close(g->dev);
	g->dev = NULL;
}

/* The process is gone, and everything it had under way with it. */
static void engine_gone(struct sim_engine *g)
{
	if (!g->eof || !g->exited || !g->e)
		return;
	device_close(g);
	kvs_eng_free(g->e);
	g->e = NULL;
}

static void engine_ended(struct kvs_timer *t)
{
	struct sim_engine *g = kvs_container_of(t, struct sim_engine, end);

	g->w->actor = "engine";
	sim_note(g->w, 0, "", "engine %u: its socket closes", g->nr);
	g->eof = true;
	engine_gone(g);
}

static void engine_exited(struct kvs_timer *t)
{
	struct sim_engine *g = kvs_container_of(t, struct sim_engine, exit);

	g->w->actor = "engine";
	sim_note(g->w, 0, "", "engine %u: its process exits", g->nr);
	g->exited = true;
	engine_gone(g);
	if (g->fe && g->watched && g->w->daemon_up)
		kvs_front_engine_exited(g->fe);
}

/* It runs no more. What the kernel takes down comes in any order. */
static void engine_stop(struct sim_engine *g, bool crash)
{
	struct sim *w = g->w;
	uint64_t soon = sim_between(w, 0, 2 * w->plan.gap);
	uint64_t late = sim_between(w, 0, crash ? 60 * SIM_MS : 2 * SIM_MS);
	bool forked = crash && sim_chance(w, 0.4);

	g->dead = true;
	kvs_timer_cancel(&w->acts, &g->tick);
	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		if (w->attempt[i].eng != g)
			continue;
		if (w->attempt[i].state == SIM_ADMITTED)
			sim_attempt_drop(&w->attempt[i]);
		sim_away_drop(&w->attempt[i]);
	}
	sim_queries_drop(g);
	if (crash)
		sim_fault(w, forked ? SIM_FAULT_ENGINE_FORKED
				    : SIM_FAULT_ENGINE_LATE_EXIT);
	sim_act(w, &g->end, forked ? late : soon);
	sim_act(w, &g->exit, forked ? soon : late);
	if (w->n_engines < SIM_ENGINES && !w->healing && w->daemon_up &&
	    !w->daemon_draining)
		(void)sim_engine_begin(w);
}

static void engine_die(struct kvs_timer *t)
{
	struct sim_engine *g = kvs_container_of(t, struct sim_engine, act);
	struct sim *w = g->w;

	w->actor = "engine";
	if (g->dead || w->healing)
		return;
	if (g->attached && sim_chance(w, 0.4)) {
		sim_note(w, 0, "", "engine %u detaches", g->nr);
		sim_fault(w, SIM_FAULT_ENGINE_DETACH);
		g->leaving = true;
		kvs_eng_give_up(g->e);
		sim_engine_wake(g, w->plan.gap);
		return;
	}
	sim_note(w, 0, "", "engine %u is killed", g->nr);
	sim_fault(w, SIM_FAULT_ENGINE_CRASH);
	engine_stop(g, true);
}

static void engine_attach(struct sim_engine *g)
{
	char err[256] = "";
	bool cut;
	ssize_t n;
	int ret;

	n = g->e->port->receive(g->e, &cut);
	if (n == -EAGAIN)
		return;
	ret = n > 0 ? kvs_eng_answer(g->e, (size_t)n, err, sizeof(err))
		    : -ECONNRESET;
	sim_note(g->w, 0, "", "engine %u attach: %d %s", g->nr, ret, err);
	if (!ret) {
		g->attached = true;
		return;
	}
	g->refused = true;
	engine_stop(g, false);
}

static void engine_leave(struct sim_engine *g)
{
	if (!kvs_list_empty(&g->e->active) || !kvs_eng_goodbye(g->e)) {
		sim_act(g->w, &g->tick, sim_patience(g->w));
		return;
	}
	engine_stop(g, false);
}

void sim_engine_turn(struct sim_engine *g)
{
	struct sim *w = g->w;

	if (g->dead)
		return;
	if (!g->attached) {
		engine_attach(g);
		return;
	}
	(void)kvs_engine_progress(g->e);
	for (unsigned int i = 0; i < w->plan.n_attempts; i++) {
		if (w->attempt[i].eng != g)
			continue;
		if (w->attempt[i].state == SIM_ADMITTED)
			attempt_look(&w->attempt[i]);
		sim_away_look(&w->attempt[i]);
	}
	sim_queries_look(g);
	if (g->leaving) {
		engine_leave(g);
		return;
	}
	g->nap *= 2;
	if (g->nap > SIM_NAP_MAX)
		g->nap = SIM_NAP_MAX;
	if (g->live)
		sim_act(w, &g->tick, sim_between(w, 1, g->nap));
}

static void engine_tick(struct kvs_timer *t)
{
	struct sim_engine *g = kvs_container_of(t, struct sim_engine, tick);

	g->w->actor = "engine";
	sim_engine_turn(g);
}

static void engine_flush(struct kvs_timer *t)
{
	struct sim_engine *g = kvs_container_of(t, struct sim_engine, flush);

	g->w->actor = "front";
	if (!g->fe || !g->want || !g->w->daemon_up)
		return;
	kvs_front_engine_flush(g->fe);
	if (g->want && !kvs_timer_is_set(&g->flush))
		sim_act(g->w, &g->flush,
			sim_between(g->w, 1, 2 * g->w->plan.gap));
}

int sim_engine_begin(struct sim *w)
{
	struct sim_engine *g = &w->engine[w->n_engines];
	struct kvs_engine_opts o;
	char err[256];
	int ret;

	memset(g, 0, sizeof(*g));
	g->w = w;
	g->nr = w->n_engines++;
	g->nap = w->plan.gap;
	g->keeps = w->plan.cache && sim_chance(w, 0.95);
	o = engine_opts(g);
	kvs_list_init(&g->to_daemon);
	kvs_list_init(&g->to_engine);
	kvs_timer_init(&g->tick, engine_tick);
	kvs_timer_init(&g->act, engine_die);
	kvs_timer_init(&g->end, engine_ended);
	kvs_timer_init(&g->exit, engine_exited);
	kvs_timer_init(&g->flush, engine_flush);
	for (uint32_t i = 0; i < SIM_ITEMS; i++)
		g->free_pages[i] = i;
	g->n_free = SIM_ITEMS;
	ret = device_open(g);
	if (!ret)
		ret = kvs_eng_new(&o, &g->e, err, sizeof(err));
	if (ret)
		return ret;
	g->e->port = &sim_eng_port;
	g->e->port_arg = g;
	ret = kvs_front_engine_new(&w->front, &sim_front_port,
				   (pid_t)(1000 + g->nr), &g->fe);
	if (ret) {
		/* as many as the daemon takes are there already */
		g->refused = true;
		g->daemon_closed = true;
		sim_engine_wake(g, w->plan.gap);
		return 0;
	}
	g->fe->port_arg = g;
	engine_offer(g);
	if (!w->plan.clean && sim_chance(w, 0.2))
		sim_act(w, &g->act, sim_between(w, 0, 300 * w->plan.gap));
	return 0;
}

bool sim_engine_idle(const struct sim_engine *g)
{
	if (g->dead)
		return !g->e;
	return !g->live && !g->leaving;
}

void sim_engine_heal(struct sim_engine *g)
{
	struct sim *w = g->w;

	kvs_timer_cancel(&w->acts, &g->act);
	if (g->dev)
		(void)kvs_soft_release(g->dev);
	if (g->dead && kvs_timer_is_set(&g->end))
		sim_act(w, &g->end, sim_between(w, 0, SIM_MS));
	if (g->dead && kvs_timer_is_set(&g->exit))
		sim_act(w, &g->exit, sim_between(w, 0, SIM_MS));
	if (!g->dead)
		sim_engine_wake(g, w->plan.gap);
}

/* A copy of it may never end: only the end of the process ends that. */
void sim_engine_stuck(struct sim_engine *g)
{
	if (g->dead || sim_engine_idle(g))
		return;
	sim_note(g->w, 0, "", "engine %u is stuck, and killed", g->nr);
	engine_stop(g, true);
}

void sim_engine_free(struct sim_engine *g)
{
	device_close(g);
	if (g->e)
		kvs_eng_free(g->e);
	g->e = NULL;
	sim_port_free(g);
}
