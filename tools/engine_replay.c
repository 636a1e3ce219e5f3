/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/engine_replay.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/clock.h"
#include "lib/err.h"
#include "lib/units.h"
#include "tools/pattern.h"
#include "tools/progress.h"

#define REPLAY_STEP (2u << 20) /* bytes compared between two polls */
#define REPLAY_NAP (50 * KVS_NSEC_PER_USEC) /* while a copy runs */
#define REPLAY_WAIT 5 /* ms for the daemon's next packet */
#define REPLAY_TOLD 20u /* failures told in full */
#define REPLAY_ABORT_AFTER (4 * KVS_NSEC_PER_MSEC)
#define REPLAY_SILENCE (10 * KVS_NSEC_PER_SEC)

enum flight_state {
	FLIGHT_FREE,
	FLIGHT_ADMITTED, /* holds: a handle of each rank that has admitted it */
	FLIGHT_COMMITTED, /* holds: handles, device pages */
	FLIGHT_DYING, /* aborted or failed; holds the same until no copy runs */
	FLIGHT_CHECK, /* holds: device pages */
};

/* A request on one rank. */
struct flight_rank {
	kvs_handle h; /* all zero: none */
	bool committed;
	struct kvs_kv_place place;
};

struct flight {
	enum flight_state state;
	size_t request;
	uint32_t n_admitted; /* ranks, from the first on */
	uint64_t generation;
	uint64_t room;
	uint64_t tokens;
	uint64_t admit_at; /* ns */
	bool to_abort;
	uint64_t abort_after; /* ns from the first byte */
	uint64_t first_byte; /* ns; 0: none seen */
	uint32_t checked; /* ranks */
	struct kvs_kv_cursor cursor;
	struct flight_rank *ranks; /* o.n */
};

struct replay {
	struct kvs_replay_opts o;
	struct kvs_replay_result res;
	struct flight *flights;
	struct flight_rank *ranks; /* of all flights */
	uint16_t *tp_ranks; /* of the prefill's ranks */
	struct kvs_rng rng;
	struct kvs_progress progress;
	size_t next; /* request to admit */
	unsigned int busy; /* flights not free */
	unsigned int told;
	uint64_t first_admit;
	uint64_t last_commit;
	uint64_t behind; /* bytes of requests that are over */
	struct kvs_rank_slice *slices;
	bool idle; /* nothing happened in this turn */
	uint64_t moved; /* ns; when something happened last */
	uint64_t waited; /* ns; when a line said that nothing does */
};

static uint64_t now_ns(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

/* @retry_ms: when to ask again; 0: not known */
static void tell_when(struct replay *r, uint64_t room, const char *what,
		      unsigned int class, unsigned int retry_ms,
		      const char *why)
{
	char again[48] = "";

	if (r->told++ >= REPLAY_TOLD)
		return;
	if (retry_ms)
		snprintf(again, sizeof(again), ", again in %u ms", retry_ms);
	kvs_progress_clear(&r->progress);
	fprintf(stderr, "room %llu %s (class %u%s): %s\n",
		(unsigned long long)room, what, class, again, why);
	if (r->told == REPLAY_TOLD)
		fprintf(stderr, "further ones are only counted\n");
}

static void tell(struct replay *r, uint64_t room, const char *what,
		 unsigned int class, const char *why)
{
	tell_when(r, room, what, class, 0, why);
}

static void mismatch(struct replay *r, const struct flight *f,
		     const struct kvs_kv_wrong *w)
{
	kvs_progress_clear(&r->progress);
	fprintf(r->o.quiet ? stderr : stdout,
		"mismatch: room %llu gen %llu buffer %u page %u offset %llu\n",
		(unsigned long long)f->room, (unsigned long long)f->generation,
		w->buffer, w->page, (unsigned long long)w->offset);
	r->res.wrong_pages++;
	r->res.wrong_bytes += w->bytes;
}

static void give_places(struct replay *r, struct flight *f)
{
	for (uint32_t k = 0; k < r->o.n; k++)
		kvs_kv_give(&r->o.kv[k], &f->ranks[k].place);
}

/* Of a request, on all ranks. */
static uint64_t flight_bytes(const struct replay *r, uint64_t tokens)
{
	uint64_t n = 0;

	for (uint32_t k = 0; k < r->o.n; k++)
		n += kvs_kv_bytes(&r->o.kv[k], tokens);
	return n;
}

static void flight_end(struct replay *r, struct flight *f)
{
	struct flight_rank *ranks = f->ranks;

	give_places(r, f);
	r->behind += flight_bytes(r, f->tokens);
	memset(ranks, 0, r->o.n * sizeof(*ranks));
	*f = (struct flight){ .ranks = ranks };
	r->busy--;
	r->idle = false;
}

/* What the router of a real system would have to know before it asks. */
static bool refuse_locally(struct replay *r, size_t i)
{
	uint64_t tokens = kvs_workload_tokens(r->o.w, i);
	uint32_t pages = kvs_workload_pages(r->o.w, tokens);
	char text[128];

	if (pages <= r->o.kv->n_pages)
		return false;
	snprintf(text, sizeof(text),
		 "%llu tokens need %u device pages, there are %u",
		 (unsigned long long)tokens, pages, r->o.kv->n_pages);
	tell(r, kvs_workload_room(r->o.w, i), "refused", 400, text);
	r->res.refused_400++;
	r->behind += flight_bytes(r, tokens);
	return true;
}

/* For the next rank. */
static int rank_admit(struct replay *r, struct flight *f, size_t i)
{
	const struct kvs_workload *w = r->o.w;
	struct kvs_admit a = {
		.size = sizeof(a),
		.room = kvs_workload_room(w, i),
		.peer = w->o.peer,
		.tokens = kvs_workload_tokens(w, i),
		.n_ranks = w->o.n_ranks,
		.ranks = r->slices,
		.aux_len = w->o.aux_len,
		.node = -1,
		.tp = w->o.prefill_tp,
		.tp_ranks = r->tp_ranks,
		.page_size = w->prefill->page_size,
	};
	int ret;

	kvs_workload_nonce(w, i, a.nonce);
	ret = kvs_engine_admit(r->o.engine[f->n_admitted], &a,
			       &f->ranks[f->n_admitted].h);
	f->n_admitted += !ret;
	return ret;
}

static int flight_admit(struct replay *r, struct flight *f, size_t i)
{
	int ret;

	f->admit_at = now_ns();
	ret = rank_admit(r, f, i);
	if (ret)
		return ret;
	if (!r->first_admit)
		r->first_admit = f->admit_at;
	f->state = FLIGHT_ADMITTED;
	f->request = i;
	f->room = kvs_workload_room(r->o.w, i);
	f->tokens = kvs_workload_tokens(r->o.w, i);
	f->to_abort = kvs_rng_double(&r->rng) < r->o.abort;
	f->abort_after = kvs_rng_below(&r->rng, REPLAY_ABORT_AFTER);
	r->busy++;
	r->idle = false;
	return 0;
}

static void admit_more(struct replay *r)
{
	struct flight *f = r->flights;
	int ret;

	for (unsigned int n = 0; n < r->o.concurrency; n++, f++) {
		if (f->state != FLIGHT_FREE)
			continue;
		while (r->next < r->o.w->trace.n && refuse_locally(r, r->next))
			r->next++;
		if (r->next == r->o.w->trace.n)
			return;
		ret = flight_admit(r, f, r->next);
		if (ret == -EAGAIN || ret == -ECONNRESET)
			return;
		if (ret) {
			tell(r, kvs_workload_room(r->o.w, r->next),
			     "not admitted", 400, kvs_err_name(ret));
			r->res.failed++;
		}
		r->next++;
	}
}

/* By all of its ranks; false: it has just ended. */
static bool abort_ranks(struct replay *r, struct flight *f)
{
	bool any = false;

	for (uint32_t k = 0; k < f->n_admitted; k++)
		any |= !kvs_engine_abort(r->o.engine[k], &f->ranks[k].h);
	return any;
}

static void flight_abort(struct replay *r, struct flight *f)
{
	if (!abort_ranks(r, f))
		return; /* it has just ended: the next poll says how */
	r->res.aborted++;
	f->state = FLIGHT_DYING;
	r->idle = false;
}

static void flight_failed(struct replay *r, struct flight *f)
{
	struct kvs_failure why = { .http_class = 503 };

	for (uint32_t k = 0; k < f->n_admitted; k++)
		if (!kvs_engine_failure(r->o.engine[k], &f->ranks[k].h, &why))
			break;
	switch (why.err) {
	case E2BIG:
	case EPROTOTYPE:
	case EEXIST:
		tell(r, f->room, "refused", why.http_class, why.text);
		r->res.refused_400++;
		break;
	case EAGAIN:
	case ETIME:
		tell_when(r, f->room, "refused", why.http_class, why.retry_ms,
			  why.text);
		r->res.refused_503++;
		break;
	default:
		tell_when(r, f->room, "failed", why.http_class, why.retry_ms,
			  why.text);
		r->res.failed++;
	}
	/* those that have not heard of it yet */
	(void)abort_ranks(r, f);
	f->state = FLIGHT_DYING;
	r->idle = false;
}

static void check_aux(struct replay *r, struct flight *f, uint32_t rank)
{
	const struct kvs_workload *w = r->o.w;
	struct kvs_kv_wrong wrong;
	const void *p;
	uint32_t len;
	size_t first, bad;

	for (uint32_t k = 0; k < w->o.n_ranks; k++) {
		if (kvs_engine_aux(r->o.engine[rank], &f->ranks[rank].h, k, &p,
				   &len))
			return; /* failed meanwhile */
		if (!kvs_pattern_check(p, len,
				       kvs_workload_seed(w, f->room,
							 KVS_PATTERN_AUX, k),
				       0, &first, &bad))
			continue;
		/* Numbered as if the aux blocks were one more buffer. */
		wrong = (struct kvs_kv_wrong){ w->layout->n_buffers, k, first,
					       bad };
		mismatch(r, f, &wrong);
	}
}

/* Pages on every rank, or on none. */
static int take_places(struct replay *r, struct flight *f)
{
	int ret = 0;

	for (uint32_t k = 0; k < r->o.n && !ret; k++)
		if (!f->ranks[k].place.pages)
			ret = kvs_kv_take(&r->o.kv[k], f->tokens,
					  &f->ranks[k].place);
	if (ret)
		give_places(r, f);
	return ret;
}

static int rank_commit(struct replay *r, struct flight *f, uint32_t k)
{
	const struct kvs_kv_place *p = &f->ranks[k].place;
	struct kvs_commit c = {
		.size = sizeof(c),
		.device = r->o.kv[k].device,
		.buffers = r->o.kv[k].buffers,
		.pages = p->pages,
		.n_pages = p->n_pages,
		.items = p->items,
		.n_items = p->n_items,
	};
	int ret;

	check_aux(r, f, k);
	ret = kvs_engine_commit(r->o.engine[k], &f->ranks[k].h, &c);
	f->ranks[k].committed = !ret;
	return ret;
}

/* READY for all; some may have committed it in an earlier turn. */
static void flight_commit(struct replay *r, struct flight *f)
{
	int ret = 0;

	if (!f->ranks[0].committed)
		ret = take_places(r, f);
	if (ret == -EAGAIN)
		return; /* pages come back from requests under way */
	for (uint32_t k = 0; k < r->o.n && !ret; k++)
		if (!f->ranks[k].committed)
			ret = rank_commit(r, f, k);
	if (!ret) {
		f->state = FLIGHT_COMMITTED;
		r->idle = false;
		return;
	}
	if (ret == -ECANCELED || ret == -EAGAIN) {
		if (!f->ranks[0].committed)
			give_places(r, f);
		return;
	}
	tell(r, f->room, "not committed", 503, kvs_err_name(ret));
	(void)abort_ranks(r, f);
	r->res.failed++;
	f->state = FLIGHT_DYING;
}

static void flight_done(struct replay *r, struct flight *f)
{
	r->last_commit = now_ns();
	r->res.ttft[r->res.completed++] = r->last_commit - f->admit_at;
	r->res.bytes += flight_bytes(r, f->tokens);
	r->res.rank_bytes += kvs_kv_bytes(r->o.kv, f->tokens);
	for (uint32_t k = 0; k < r->o.n; k++)
		(void)kvs_engine_release(r->o.engine[k], &f->ranks[k].h);
	f->state = FLIGHT_CHECK;
	r->idle = false;
}

/* The least of its ranks: what an engine reduces to. */
static enum kvs_status flight_status(struct replay *r, struct flight *f)
{
	enum kvs_status st, min = KVS_STATUS_DONE;

	for (uint32_t k = 0; k < f->n_admitted; k++) {
		st = kvs_engine_poll(r->o.engine[k], &f->ranks[k].h, NULL);
		if (st < min)
			min = st;
	}
	f->generation = f->ranks[0].h.generation;
	if (min != KVS_STATUS_FAILED && f->n_admitted < r->o.n)
		min = KVS_STATUS_PENDING;
	return min;
}

static void flight_poll(struct replay *r, struct flight *f)
{
	enum kvs_status st;

	while (f->n_admitted < r->o.n && !rank_admit(r, f, f->request))
		r->idle = false;
	st = flight_status(r, f);
	switch (st) {
	case KVS_STATUS_FAILED:
		flight_failed(r, f);
		return;
	case KVS_STATUS_PENDING:
	case KVS_STATUS_WAITING:
	case KVS_STATUS_ADMITTED:
		return;
	case KVS_STATUS_RECEIVING:
	case KVS_STATUS_SEALING:
		if (!f->first_byte)
			f->first_byte = now_ns();
		if (f->to_abort && now_ns() - f->first_byte >= f->abort_after)
			flight_abort(r, f);
		return;
	case KVS_STATUS_READY:
		if (f->to_abort)
			flight_abort(r, f);
		else if (f->state == FLIGHT_ADMITTED)
			flight_commit(r, f);
		return;
	case KVS_STATUS_COMMITTING:
		return;
	case KVS_STATUS_DONE:
		flight_done(r, f);
		return;
	}
}

static uint64_t flight_dying(struct replay *r, struct flight *f)
{
	uint64_t held = 0;
	bool left = false;

	for (uint32_t k = 0; k < f->n_admitted; k++) {
		struct flight_rank *x = &f->ranks[k];

		if (!x->h.slot)
			continue;
		if (!kvs_engine_copy_live(r->o.engine[k], &x->h) &&
		    kvs_engine_release(r->o.engine[k], &x->h) != -EBUSY) {
			x->h.slot = 0;
			continue;
		}
		left = true;
		held += x->place.n_pages * r->o.kv[k].page_bytes;
	}
	if (!left)
		flight_end(r, f);
	return held;
}

static void flight_check(struct replay *r, struct flight *f)
{
	uint32_t k = f->checked;
	struct kvs_kv_wrong wrong;
	int64_t n;

	n = kvs_kv_check(&r->o.kv[k], &f->ranks[k].place, f->room, f->tokens,
			 &f->cursor, REPLAY_STEP, &wrong);
	r->idle = false;
	if (n == -EBADMSG)
		mismatch(r, f, &wrong);
	if (n < 0 && n != -EBADMSG) {
		tell(r, f->room, "not compared", 503, kvs_err_name((int)n));
		r->res.failed++;
	}
	if (n > 0 || n == -EBADMSG)
		return;
	f->cursor = (struct kvs_kv_cursor){ 0 };
	if (n < 0 || ++f->checked == r->o.n)
		flight_end(r, f);
}

/* What is on the device already is still compared. */
static void stop_all(struct replay *r)
{
	struct flight *f = r->flights;

	r->res.stopped = true;
	kvs_progress_clear(&r->progress);
	fprintf(stderr, "stopped by a signal\n");
	for (unsigned int n = 0; n < r->o.concurrency; n++, f++)
		if (f->state == FLIGHT_ADMITTED || f->state == FLIGHT_COMMITTED)
			flight_abort(r, f);
}

static void turn(struct replay *r)
{
	uint64_t held = 0;
	struct flight *f = r->flights;

	for (uint32_t k = 0; k < r->o.n; k++) {
		if (kvs_engine_progress(r->o.engine[k]) != -ECONNRESET ||
		    r->res.lost)
			continue;
		r->res.lost = true;
		kvs_progress_clear(&r->progress);
		fprintf(stderr, "the daemon is gone\n");
	}
	if (r->o.stop && *r->o.stop && !r->res.stopped)
		stop_all(r);
	if (!r->res.lost && !r->res.stopped)
		admit_more(r);
	for (unsigned int n = 0; n < r->o.concurrency; n++, f++) {
		switch (f->state) {
		case FLIGHT_FREE:
			break;
		case FLIGHT_ADMITTED:
		case FLIGHT_COMMITTED:
			flight_poll(r, f);
			break;
		case FLIGHT_DYING:
			held += flight_dying(r, f);
			break;
		case FLIGHT_CHECK:
			flight_check(r, f);
			break;
		}
	}
	r->res.held = held;
	if (held > r->res.held_peak)
		r->res.held_peak = held;
}

/* Words and copies make no noise; packets do. */
static void rest(const struct replay *r)
{
	struct pollfd p[KVS_GROUP_MAX];
	const struct timespec nap = { .tv_nsec = (long)REPLAY_NAP };

	for (unsigned int n = 0; n < r->o.concurrency; n++)
		if (r->flights[n].state == FLIGHT_COMMITTED ||
		    r->flights[n].state == FLIGHT_DYING) {
			(void)nanosleep(&nap, NULL);
			return;
		}
	for (uint32_t k = 0; k < r->o.n; k++)
		p[k] = (struct pollfd){ .fd = kvs_engine_fd(r->o.engine[k]),
					.events = POLLIN };
	if (r->res.lost)
		(void)nanosleep(&nap, NULL);
	else
		(void)poll(p, r->o.n, REPLAY_WAIT);
}

static const char *waits_for(struct replay *r, struct flight *f)
{
	if (f->state == FLIGHT_DYING)
		return "its copies to end";
	switch (flight_status(r, f)) {
	case KVS_STATUS_PENDING:
		return "the daemon to answer";
	case KVS_STATUS_WAITING:
		return "memory of the daemon";
	case KVS_STATUS_ADMITTED:
		return "its sender";
	case KVS_STATUS_RECEIVING:
		return "bytes of its sender";
	case KVS_STATUS_SEALING:
		return "the daemon to complete it";
	case KVS_STATUS_READY:
		return "device pages";
	case KVS_STATUS_COMMITTING:
		return "its copy";
	case KVS_STATUS_DONE:
	case KVS_STATUS_FAILED:
		break;
	}
	return "its end";
}

/* Who waits without a word cannot tell a stopped daemon from a slow sender. */
static void say_waiting(struct replay *r)
{
	uint64_t now = now_ns();
	struct flight *f = r->flights, *oldest = NULL;
	const char *what;
	char ago[KVS_UNITS_BUF];

	if (!r->idle)
		r->moved = now;
	if (!r->idle || now - r->moved < REPLAY_SILENCE ||
	    now - r->waited < REPLAY_SILENCE)
		return;
	r->waited = now;
	for (unsigned int n = 0; n < r->o.concurrency; n++, f++)
		if (f->state != FLIGHT_FREE &&
		    (!oldest || f->admit_at < oldest->admit_at))
			oldest = f;
	kvs_progress_clear(&r->progress);
	kvs_format_duration(now - r->moved, ago);
	if (!oldest) {
		fprintf(stderr, "nothing for %s: no request can be admitted\n",
			ago);
		return;
	}
	what = waits_for(r, oldest);
	fprintf(stderr,
		"nothing for %s: room %llu waits for %s; %u under way\n", ago,
		(unsigned long long)oldest->room, what, r->busy);
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static uint64_t replay_total(const struct replay *r)
{
	uint64_t n = 0;

	for (size_t i = 0; i < r->o.w->trace.n; i++)
		n += flight_bytes(r, kvs_workload_tokens(r->o.w, i));
	return n;
}

int kvs_replay(const struct kvs_replay_opts *o, struct kvs_replay_result *ret)
{
	struct replay r = { .o = *o };
	int res = -ENOMEM;

	kvs_rng_init(&r.rng, o->w->o.seed ^ 0x61626f7274);
	r.flights = calloc(o->concurrency, sizeof(*r.flights));
	r.ranks = calloc((size_t)o->concurrency * o->n, sizeof(*r.ranks));
	r.tp_ranks = calloc(o->w->o.n_ranks, sizeof(*r.tp_ranks));
	r.slices = calloc(o->w->o.n_ranks, sizeof(*r.slices));
	r.res.ttft = calloc(o->w->trace.n, sizeof(*r.res.ttft));
	if (!r.flights || !r.ranks || !r.tp_ranks || !r.slices || !r.res.ttft)
		goto out_free;
	for (uint32_t n = 0; n < o->concurrency; n++)
		r.flights[n].ranks = &r.ranks[(size_t)n * o->n];
	for (uint32_t k = 0; k < o->w->o.n_ranks; k++) {
		r.slices[k] = kvs_workload_slice(o->w, k);
		r.tp_ranks[k] = (uint16_t)kvs_workload_sends(o->w, k).tp_rank;
	}
	kvs_progress_init(&r.progress, "replay", KVS_PROGRESS_BYTES,
			  replay_total(&r), NULL, NULL);
	r.moved = now_ns();
	while (r.busy ||
	       (r.next < o->w->trace.n && !r.res.lost && !r.res.stopped)) {
		r.idle = true;
		turn(&r);
		kvs_registering_turn(o->registering, &r.progress);
		kvs_progress_update(&r.progress, r.behind);
		say_waiting(&r);
		if (r.idle)
			rest(&r);
	}
	kvs_progress_end(&r.progress, r.res.bytes);
	r.res.failed += o->w->trace.n - r.next;
	if (r.last_commit)
		r.res.ns = r.last_commit - r.first_admit;
	qsort(r.res.ttft, r.res.completed, sizeof(*r.res.ttft), by_value);
	*ret = r.res;
	r.res.ttft = NULL;
	res = 0;

out_free:
	free(r.flights);
	free(r.ranks);
	free(r.tp_ranks);
	free(r.slices);
	free(r.res.ttft);
	return res;
}

uint64_t kvs_replay_errors(const struct kvs_replay_result *r)
{
	return r->refused_400 + r->refused_503 + r->failed;
}
