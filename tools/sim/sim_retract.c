/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that go on when they are on the device: they leave it, so that
 * others have their pages, and come back to others. */
#include <errno.h>
#include <string.h>

#include "kvstage/cache.h"
#include "tools/sim/sim.h"

static struct sim_attempt *attempt_of(struct sim_away *y)
{
	return kvs_container_of(y, struct sim_attempt, away);
}

static unsigned char *page_at(struct sim_attempt *a, uint32_t b, uint32_t page)
{
	return (unsigned char *)a->eng->buffer[b] +
	       (size_t)page * a->w->lb[b].item_len;
}

/* The pages are free: whoever comes writes something else there. */
static void scribble(struct sim_attempt *a)
{
	const struct sim *w = a->w;

	for (uint32_t b = 0; b < w->layout.n_buffers; b++) {
		const uint32_t *v = w->lb[b].items ? a->dev_items
						   : a->dev_pages;
		uint32_t n = w->lb[b].items ? a->n_dev_items : a->pages;

		for (uint32_t i = 0; i < n; i++)
			memset(page_at(a, b, v[i]), 0xdd, w->lb[b].item_len);
	}
}

/* The last page, which the device computes when it is to leave. */
static void write_last(struct sim_attempt *a, bool done)
{
	const struct sim *w = a->w;
	uint32_t last = a->pages - 1;

	for (uint32_t b = 0; b < w->layout.n_buffers; b++) {
		unsigned char *p = page_at(a, b, a->dev_pages[last]);

		if (w->lb[b].items)
			continue;
		if (done)
			sim_item(a, b, last, p);
		else
			memset(p, 0xee, w->lb[b].item_len);
	}
	a->away.scribbled = !done;
}

static int written(void *arg)
{
	struct sim_attempt *a = arg;
	struct sim_away *y = &a->away;

	if (sim_time(a->w) < y->written_at)
		return -EINPROGRESS;
	if (y->scribbled)
		write_last(a, true);
	return y->write_error;
}

static void away_over(struct sim_attempt *a)
{
	struct sim_away *y = &a->away;

	kvs_timer_cancel(&a->w->acts, &y->act);
	y->phase = SIM_AWAY_NONE;
	a->eng->live--;
	sim_pages_give(a);
}

/* ---- what its engine does ------------------------------------------------ */

static struct kvs_commit places(struct sim_attempt *a)
{
	return (struct kvs_commit){
		.size = sizeof(struct kvs_commit),
		.device = a->eng->dev,
		.buffers = a->eng->buffer,
		.pages = a->dev_pages,
		.n_pages = a->pages,
		.items = a->dev_items,
		.n_items = a->n_dev_items,
	};
}

static void away_leave(struct sim_attempt *a)
{
	struct kvs_commit c = places(a);
	struct sim_away *y = &a->away;
	struct sim *w = a->w;
	struct kvs_retract r = {
		.size = sizeof(r),
		.id = a->id,
		.tokens = a->tokens,
		.node = -1,
		.device = c.device,
		.buffers = c.buffers,
		.pages = c.pages,
		.n_pages = c.n_pages,
		.items = c.items,
		.n_items = c.n_items,
	};
	int ret;

	if (sim_chance(w, 0.4)) {
		r.written = written;
		r.arg = a;
	}
	ret = kvs_retract(a->eng->e, &r, &y->h);
	sim_note(w, a->id, "", "engine %u retracts attempt %u: %d", a->eng->nr,
		 a->nr, ret);
	if (ret == -EAGAIN) {
		sim_act(w, &y->act, sim_patience(w));
		return;
	}
	if (ret) {
		if (ret != -ECONNRESET)
			sim_fail(w, "retraction of attempt %u: %d", a->nr, ret);
		away_over(a);
		return;
	}
	y->phase = SIM_AWAY_LEAVING;
	y->seen = KVS_STATUS_PENDING;
	y->aborted = false;
	y->abort_status = -1;
	y->write_error = 0;
	y->drop = false;
	if (!w->plan.clean) {
		if (sim_chance(w, 0.3))
			y->abort_status = (int)sim_between(
				w, KVS_STATUS_PENDING, KVS_STATUS_COMMITTING);
		y->drop = sim_chance(w, 0.2);
		if (r.written && sim_chance(w, 0.1)) {
			sim_fault(w, SIM_FAULT_NO_WRITE);
			y->write_error = -EIO;
		}
	}
	if (r.written) {
		write_last(a, false);
		y->written_at =
			sim_time(w) + sim_between(w, 0, 20 * w->plan.gap);
	}
	sim_engine_wake(a->eng, w->plan.gap);
}

static void away_come(struct sim_attempt *a)
{
	struct sim_away *y = &a->away;
	struct kvs_commit c;
	struct sim *w = a->w;
	int ret = -EAGAIN;

	if (sim_pages_take(a)) {
		c = places(a);
		ret = kvs_resume(a->eng->e, &y->h, &c);
		sim_note(w, a->id, "", "engine %u resumes attempt %u: %d",
			 a->eng->nr, a->nr, ret);
	}
	/* ended meanwhile: look() sees that */
	if (ret && ret != -EAGAIN && ret != -ECANCELED)
		sim_fail(w, "resumption of attempt %u: %d", a->nr, ret);
	if (ret)
		sim_pages_give(a);
	else
		y->phase = SIM_AWAY_COMING;
	if (ret == -EAGAIN)
		sim_act(w, &y->act, sim_patience(w));
	sim_engine_wake(a->eng, w->plan.gap);
}

static void away_abort(struct sim_attempt *a)
{
	struct sim_away *y = &a->away;
	int ret;

	y->aborted = true;
	ret = kvs_drop(a->eng->e, &y->h);
	sim_note(a->w, a->id, "", "engine %u drops attempt %u: %d", a->eng->nr,
		 a->nr, ret);
	if (ret && ret != -EALREADY)
		sim_fail(a->w, "drop of attempt %u: %d", a->nr, ret);
	sim_engine_wake(a->eng, a->w->plan.gap);
}

static void away_act(struct kvs_timer *t)
{
	struct sim_away *y = kvs_container_of(t, struct sim_away, act);
	struct sim_attempt *a = attempt_of(y);
	struct sim *w = a->w;

	w->actor = "engine";
	if (!y->phase || a->eng->dead)
		return;
	if (y->phase == SIM_AWAY_HERE) {
		if (a->eng->leaving)
			away_over(a);
		else
			away_leave(a);
		return;
	}
	if (!y->aborted && y->abort_status >= 0 &&
	    (int)y->seen >= y->abort_status) {
		away_abort(a);
		return;
	}
	if (y->phase != SIM_AWAY_OUT || y->aborted)
		return;
	if (y->drop) {
		sim_kept(w, SIM_KEPT_DROPPED);
		away_abort(a);
		return;
	}
	away_come(a);
}

/* ---- what it sees -------------------------------------------------------- */

static void away_failed(struct sim_attempt *a, int err)
{
	struct sim_away *y = &a->away;
	struct sim *w = a->w;

	if (w->plan.clean)
		sim_fail(w,
			 "retraction of attempt %u failed (%d) with no fault",
			 a->nr, err);
	if (err == EBADMSG)
		sim_fail(w, "R13: attempt %u has changed while it was away",
			 a->nr);
	/* what it has written since is its own affair */
	if (y->phase == SIM_AWAY_LEAVING) {
		if (y->scribbled)
			write_last(a, true);
		sim_check_device(a, "R13");
		sim_kept(w, SIM_KEPT_WHOLE);
	}
}

/* False: not yet. */
static bool away_release(struct sim_attempt *a)
{
	int ret = kvs_engine_release(a->eng->e, &a->away.h);

	if (ret && ret != -EBUSY)
		sim_fail(a->w, "release of attempt %u: %d", a->nr, ret);
	return !ret;
}

static void away_back(struct sim_attempt *a)
{
	struct sim_away *y = &a->away;
	struct sim *w = a->w;

	if (y->phase != SIM_AWAY_COMING) {
		sim_fail(w, "attempt %u is back, and was not asked for", a->nr);
		return;
	}
	if (!away_release(a))
		return;
	sim_check_device(a, "R13");
	sim_kept(w, SIM_KEPT_BACK);
	if (!--y->rounds || a->eng->leaving || w->healing) {
		away_over(a);
		return;
	}
	y->phase = SIM_AWAY_HERE;
	sim_act(w, &y->act, sim_between(w, 0, 20 * w->plan.gap));
}

void sim_away_look(struct sim_attempt *a)
{
	struct sim_away *y = &a->away;
	struct sim *w = a->w;
	enum kvs_status st;
	int err = 0;
	bool live;

	if (y->phase < SIM_AWAY_LEAVING)
		return;
	live = kvs_engine_copy_live(a->eng->e, &y->h);
	st = kvs_engine_poll(a->eng->e, &y->h, &err);
	if (st != KVS_STATUS_FAILED && st < y->seen)
		sim_fail(w, "R12: attempt %u: status %d after %d on its way",
			 a->nr, st, y->seen);
	if (st != y->seen)
		a->eng->nap = w->plan.gap;
	y->seen = st;
	if (y->abort_status >= 0 && (int)st >= y->abort_status && !y->aborted &&
	    !kvs_timer_is_set(&y->act))
		sim_act(w, &y->act, sim_between(w, 0, 4 * w->plan.gap));
	if (st == KVS_STATUS_FAILED) {
		if (live)
			return;
		away_failed(a, err);
		if (away_release(a))
			away_over(a);
		return;
	}
	if (st == KVS_STATUS_DONE) {
		away_back(a);
		return;
	}
	if (y->phase != SIM_AWAY_LEAVING || st != KVS_STATUS_READY || live)
		return;
	sim_note(w, a->id, "", "attempt %u is out", a->nr);
	sim_kept(w, SIM_KEPT_OUT);
	scribble(a);
	sim_pages_give(a);
	y->phase = SIM_AWAY_OUT;
	sim_act(w, &y->act, sim_between(w, 0, 50 * w->plan.gap));
}

/* ---- its beginning and end ----------------------------------------------- */

void sim_away_init(struct sim_attempt *a)
{
	kvs_timer_init(&a->away.act, away_act);
}

bool sim_away_begin(struct sim_attempt *a)
{
	struct sim_away *y = &a->away;
	struct sim *w = a->w;

	if (!y->rounds || a->eng->leaving || w->healing)
		return false;
	y->phase = SIM_AWAY_HERE;
	a->eng->live++;
	sim_act(w, &y->act, sim_between(w, 0, 20 * w->plan.gap));
	return true;
}

void sim_away_drop(struct sim_attempt *a)
{
	if (a->away.phase)
		away_over(a);
}
