/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/send_run.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvstage/sender.h"
#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/err.h"
#include "pipeline/layout.h"
#include "pipeline/room.h"
#include "tools/pattern.h"
#include "tools/progress.h"
#include "tools/send_source.h"

#define KVS_SEND_TICK (200 * KVS_NSEC_PER_MSEC) /* looks for a signal */
#define KVS_SEND_STOP_WAIT (5 * KVS_NSEC_PER_SEC)

struct send_run;

/* A request under way; a place is used again for the next one. */
struct send_request {
	struct send_run *run;
	size_t index; /* in the workload */
	struct kvs_send_room *r; /* NULL: the place is free */
	uint32_t place; /* set of state items */
	uint32_t pages;
	uint32_t computed; /* pages */
	bool tail; /* state, aux and finish were called */
	unsigned char *aux;
	uint64_t bytes;

	/* under the run's lock */
	bool granted;
	bool over;
	uint32_t held; /* source pages */
	int status;
	char text[256];
};

/* Source pages of one kvs_send_pages() call. */
struct send_piece {
	struct send_request *q;
	uint32_t n;
	uint32_t pages[];
};

struct send_run {
	const struct kvs_send_run_opts *o;
	struct kvs_send_source *src;
	struct kvs_sender *s;
	struct kvs_rank_slice slice;
	struct kvs_slice sends;
	uint32_t unit; /* pages computed at a time */
	struct send_request *q; /* o->concurrency places */
	size_t next; /* request to open */
	uint32_t live;
	bool gone; /* the daemon: nothing more can be opened */
	uint64_t compute_at; /* ns; when the rate allows the next unit */
	struct kvs_send_run_result res;
	uint64_t last_end; /* ns */

	pthread_mutex_t lock; /* the source's pages and the next block */
	pthread_cond_t cond;
	uint32_t early; /* pages held by rooms without a grant */
	uint64_t first_grant; /* ns */
};

/* ---- callbacks, from the sender's thread ---- */

static void run_granted(struct kvs_send_room *r, uint64_t generation)
{
	struct send_request *q = kvs_send_user(r);
	struct send_run *run = q->run;

	(void)generation;
	pthread_mutex_lock(&run->lock);
	q->granted = true;
	run->early -= q->held;
	if (!run->first_grant)
		run->first_grant = kvs_clock_now(&kvs_clock_real);
	pthread_cond_signal(&run->cond);
	pthread_mutex_unlock(&run->lock);
}

static void give_back_locked(struct send_run *run, struct send_piece *p)
{
	kvs_send_source_put(run->src, p->pages, p->n);
	p->q->held -= p->n;
	if (!p->q->granted)
		run->early -= p->n;
}

static void run_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	struct send_request *q = kvs_send_user(r);
	struct send_run *run = q->run;

	(void)status;
	if (!cookie)
		return; /* state and aux: with the room */
	pthread_mutex_lock(&run->lock);
	give_back_locked(run, cookie);
	pthread_cond_signal(&run->cond);
	pthread_mutex_unlock(&run->lock);
	free(cookie);
}

static void run_done(struct kvs_send_room *r, int status, const char *text)
{
	struct send_request *q = kvs_send_user(r);
	struct send_run *run = q->run;

	pthread_mutex_lock(&run->lock);
	q->over = true;
	q->status = status;
	snprintf(q->text, sizeof(q->text), "%s", text);
	pthread_cond_signal(&run->cond);
	pthread_mutex_unlock(&run->lock);
}

static const struct kvs_send_ops run_ops = {
	.granted = run_granted,
	.pages_free = run_pages_free,
	.done = run_done,
};

/* ---- opening and reaping ---- */

static bool stopping(const struct send_run *run)
{
	return run->o->stop && *run->o->stop;
}

static uint64_t request_bytes(const struct send_run *run, uint32_t pages)
{
	const struct kvs_layout *l = run->src->layout;
	uint64_t bytes = run->o->w->o.aux_len;
	uint32_t b;

	for (b = 0; b < l->n_buffers; b++)
		if (kvs_slice_has(&run->sends, l, b))
			bytes += (uint64_t)l->buffers[b].item_len *
				 kvs_workload_items(&l->buffers[b], pages);
	return bytes;
}

static void room_failed(struct send_run *run, uint64_t room, int status,
			const char *text)
{
	run->res.failed++;
	if (kvs_error_class(status) == 400)
		run->res.never++;
	else
		run->res.later++;
	if (run->o->failed)
		run->o->failed(room, -status, text);
}

static void open_one(struct send_run *run, struct send_request *q)
{
	const struct kvs_workload *w = run->o->w;
	uint64_t room = kvs_workload_room(w, run->next);
	uint64_t tokens = kvs_workload_tokens(w, run->next);
	unsigned char nonce[16];
	int ret;

	kvs_workload_nonce(w, run->next, nonce);
	*q = (struct send_request){
		.run = run,
		.index = run->next++,
		.place = q->place,
		.pages = kvs_workload_prefill_pages(w, tokens),
	};
	q->bytes = request_bytes(run, q->pages);
	ret = kvs_send_open(run->s, room, nonce, tokens, q, &q->r);
	if (!ret) {
		run->live++;
		return;
	}
	q->r = NULL;
	if (ret == -ECONNRESET)
		run->gone = true;
	room_failed(run, room, ret, "cannot be opened");
}

static void open_more(struct send_run *run)
{
	uint32_t i;

	for (i = 0; i < run->o->concurrency; i++) {
		if (run->next == run->o->w->trace.n || run->gone ||
		    stopping(run))
			return;
		if (!run->q[i].r)
			open_one(run, &run->q[i]);
	}
}

/* Close what is over; the sender calls nothing back for it any more. */
static void reap(struct send_run *run)
{
	uint32_t i;

	for (i = 0; i < run->o->concurrency; i++) {
		struct send_request *q = &run->q[i];
		bool over;

		if (!q->r)
			continue;
		pthread_mutex_lock(&run->lock);
		over = q->over;
		pthread_mutex_unlock(&run->lock);
		if (!over)
			continue;
		if (q->status) {
			room_failed(run, kvs_workload_room(run->o->w, q->index),
				    q->status, q->text);
		} else {
			run->res.ok++;
			run->res.bytes += q->bytes;
		}
		run->last_end = kvs_clock_now(&kvs_clock_real);
		kvs_send_close(q->r);
		free(q->aux);
		q->aux = NULL;
		q->r = NULL;
		run->live--;
	}
}

/* ---- computing ---- */

/* Pages of @q that can be computed now; 0: not yet. */
static uint32_t can_compute_locked(const struct send_run *run,
				   const struct send_request *q)
{
	uint32_t want = q->pages - q->computed;
	uint32_t avail = run->src->n_free;

	if (!q->r || q->over || q->computed == q->pages)
		return 0;
	if (!q->granted) {
		uint32_t half = run->src->pages / 2;

		if (run->early >= half)
			return 0;
		if (avail > half - run->early)
			avail = half - run->early;
	}
	if (want > run->unit)
		want = run->unit;
	return avail >= want ? want : 0;
}

/* The oldest granted request, else the oldest one. */
static struct send_request *pick_locked(const struct send_run *run,
					uint32_t *ret_pages)
{
	struct send_request *best = NULL;
	uint32_t i, n;

	for (i = 0; i < run->o->concurrency; i++) {
		struct send_request *q = &run->q[i];

		n = can_compute_locked(run, q);
		if (!n || (best && (q->granted < best->granted ||
				    (q->granted == best->granted &&
				     q->index > best->index))))
			continue;
		best = q;
		*ret_pages = n;
	}
	return best;
}

static void compute(struct send_run *run, struct send_request *q,
		    struct send_piece *p)
{
	uint64_t room = kvs_workload_room(run->o->w, q->index);
	uint32_t first = q->computed;
	int ret;

	ret = kvs_send_source_fill(run->src, room, first, p->pages, p->n);
	q->computed += p->n;
	if (ret)
		kvs_send_abort(q->r, ret, "the device takes no pages");
	else if (!kvs_send_pages(q->r, first, p->pages, p->n, p))
		return;
	/* failed meanwhile: done() says why */
	pthread_mutex_lock(&run->lock);
	give_back_locked(run, p);
	pthread_mutex_unlock(&run->lock);
	free(p);
}

static int send_state(struct send_run *run, struct send_request *q)
{
	const struct kvs_layout *l = run->src->layout;
	uint64_t room = kvs_workload_room(run->o->w, q->index);
	uint32_t b, n, *items;
	int ret = 0;

	for (b = 0; !ret && b < l->n_buffers; b++) {
		if (kvs_buffer_kind_is_paged(l->buffers[b].kind))
			continue;
		n = kvs_workload_items(&l->buffers[b], q->pages);
		if (!n)
			continue;
		items = malloc(n * sizeof(*items));
		if (!items)
			return -ENOMEM;
		ret = kvs_send_source_fill_state(run->src, room, b, q->place, n,
						 items);
		if (!ret)
			ret = kvs_send_state(q->r, b, items, n, NULL);
		free(items);
	}
	return ret;
}

/* After the last page: state, the aux block, the end. */
static void send_tail(struct send_run *run, struct send_request *q)
{
	const struct kvs_workload *w = run->o->w;
	uint64_t room = kvs_workload_room(w, q->index);
	uint32_t aux_len = w->o.aux_len;
	int ret = 0;

	q->tail = true;
	if (run->slice.n_layers)
		ret = send_state(run, q);
	if (!ret && aux_len) {
		q->aux = malloc(aux_len);
		if (q->aux) {
			kvs_send_source_bytes(run->src, q->aux, aux_len,
					      kvs_workload_seed(w, room,
								KVS_PATTERN_AUX,
								run->o->rank),
					      0);
			ret = kvs_send_aux(q->r, q->aux, aux_len, NULL);
		} else {
			ret = -ENOMEM;
		}
	}
	if (!ret)
		ret = kvs_send_finish(q->r);
	if (ret && ret != -ECANCELED)
		kvs_send_abort(q->r, ret, "kvstage-send cannot go on");
}

static bool send_tails(struct send_run *run)
{
	bool any = false;
	uint32_t i;

	for (i = 0; i < run->o->concurrency; i++) {
		struct send_request *q = &run->q[i];

		if (!q->r || q->tail)
			continue;
		/* a rank without layers computes nothing that is sent */
		if (!run->slice.n_layers)
			q->computed = q->pages;
		if (q->computed < q->pages)
			continue;
		send_tail(run, q);
		any = true;
	}
	return any;
}

static bool any_over_locked(const struct send_run *run)
{
	uint32_t i;

	for (i = 0; i < run->o->concurrency; i++) {
		if (run->q[i].r && run->q[i].over)
			return true;
	}
	return false;
}

static void wait_locked(struct send_run *run, uint64_t ns)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ns += (uint64_t)ts.tv_nsec;
	ts.tv_sec += (time_t)(ns / KVS_NSEC_PER_SEC);
	ts.tv_nsec = (long)(ns % KVS_NSEC_PER_SEC);
	pthread_cond_timedwait(&run->cond, &run->lock, &ts);
}

/* One unit of work, or a wait for something to change. */
static int step(struct send_run *run)
{
	const struct kvs_send_run_opts *o = run->o;
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	struct send_request *q = NULL;
	struct send_piece *p = NULL;
	uint64_t wait = KVS_SEND_TICK;
	uint32_t n = 0;

	pthread_mutex_lock(&run->lock);
	if (now >= run->compute_at)
		q = pick_locked(run, &n);
	else if (run->compute_at - now < wait)
		wait = run->compute_at - now;
	if (q) {
		p = malloc(sizeof(*p) + n * sizeof(p->pages[0]));
		if (p) {
			p->q = q;
			p->n = n;
			kvs_send_source_take(run->src, n, p->pages);
			q->held += n;
			if (!q->granted)
				run->early += n;
		}
	} else if (!any_over_locked(run)) {
		wait_locked(run, wait);
	}
	pthread_mutex_unlock(&run->lock);
	if (!q)
		return 0;
	if (!p)
		return -ENOMEM;
	compute(run, q, p);
	if (o->rate) {
		/* at the rate, whatever the filling took */
		if (run->compute_at + KVS_SEND_TICK < now)
			run->compute_at = now;
		run->compute_at +=
			(uint64_t)((double)n * o->w->prefill->page_size /
				   (double)o->rate * 1e9);
	}
	return 0;
}

static void abort_all(struct send_run *run, int err, const char *text)
{
	uint32_t i;

	for (i = 0; i < run->o->concurrency; i++) {
		if (run->q[i].r)
			kvs_send_abort(run->q[i].r, err, text);
	}
}

static uint64_t total_bytes(const struct send_run *run)
{
	const struct kvs_workload *w = run->o->w;
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < w->trace.n; i++)
		sum += request_bytes(run,
				     kvs_workload_prefill_pages(
					     w, kvs_workload_tokens(w, i)));
	return sum;
}

static void go_through(struct send_run *run)
{
	size_t n = run->o->w->trace.n;
	uint64_t stop_at = KVS_TIME_NEVER;
	struct kvs_progress progress;
	int ret = 0;

	kvs_progress_init(&progress, "send", KVS_PROGRESS_BYTES,
			  total_bytes(run), NULL, NULL);
	for (;;) {
		uint64_t now = kvs_clock_now(&kvs_clock_real);

		reap(run);
		if (stop_at == KVS_TIME_NEVER && (stopping(run) || ret)) {
			run->res.stopped = true;
			abort_all(run, ret ? -ret : ECANCELED,
				  ret ? "out of memory"
				      : "stopped by a signal");
			stop_at = now + KVS_SEND_STOP_WAIT;
		}
		if (!run->res.stopped)
			open_more(run);
		if ((!run->live &&
		     (run->next == n || run->gone || run->res.stopped)) ||
		    now >= stop_at)
			break;
		kvs_progress_update(&progress, run->res.bytes);
		if (!run->res.stopped && send_tails(run))
			continue;
		ret = step(run);
	}
	kvs_progress_end(&progress, run->res.bytes);
	/* opened and stuck, or never opened */
	run->res.unopened = n - run->next;
	run->res.failed += run->live + run->res.unopened;
	run->res.later += run->live + run->res.unopened;
}

int kvs_send_run(const struct kvs_send_run_opts *o,
		 struct kvs_send_run_result *ret, char *err, size_t errlen)
{
	struct send_run run = {
		.o = o,
		.slice = kvs_workload_slice(o->w, o->rank),
		.sends = kvs_workload_sends(o->w, o->rank),
		.res = { .rooms = o->w->trace.n },
	};
	struct kvs_sender_opts so = {
		.size = sizeof(so),
		.daemon = o->daemon,
		.peer = o->w->o.peer,
		.rank = o->rank,
		.n_ranks = o->w->o.n_ranks,
		.data_connections = o->data_connections,
		.stripe_min = o->stripe_min,
		.engine = o->io,
		.transport = o->transport,
		.rdma_device = o->rdma_device,
		.rdma_gid_index = o->rdma_gid_index,
		.ops = &run_ops,
		.open_timeout = o->open_timeout,
		.max_batch_bytes = o->max_batch_bytes,
		.call_timeout = o->call_timeout,
		.connect_timeout = o->connect_timeout,
		.key_file = o->key_file,
		.source = o->source,
		.bounce_bytes = o->bounce_bytes,
	};
	pthread_condattr_t attr;
	uint32_t i;
	int res;

	run.q = calloc(o->concurrency, sizeof(*run.q));
	if (!run.q) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	for (i = 0; i < o->concurrency; i++)
		run.q[i].place = i;
	pthread_mutex_init(&run.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&run.cond, &attr);
	pthread_condattr_destroy(&attr);
	res = kvs_send_source_create(o->w, o->rank, o->pool, o->concurrency,
				     o->file, o->device, o->ordinal, &run.src,
				     err, errlen);
	if (res)
		goto out;
	run.unit = o->chunk_tokens / o->w->prefill->page_size;
	/* a share of the pool, so that several rooms can be under way */
	if (run.unit > run.src->pages / 4)
		run.unit = run.src->pages / 4;
	if (!run.unit)
		run.unit = 1;
	so.layout = run.src->layout;
	so.buffers = run.src->buffers;
	so.buffer_len = run.src->len;
	so.device = run.src->device;
	res = kvs_sender_create(&so, &run.s, err, errlen);
	if (res)
		goto out;
	run.res.sender.size = sizeof(run.res.sender);
	(void)kvs_sender_stats(run.s, &run.res.sender);
	if (o->started)
		o->started(&run.res.sender);
	go_through(&run);
	(void)kvs_sender_stats(run.s, &run.res.sender);
	/* ends, with callbacks, what did not end in time */
	kvs_sender_destroy(run.s);
	if (run.first_grant && run.last_end > run.first_grant)
		run.res.ns = run.last_end - run.first_grant;
	for (i = 0; i < o->concurrency; i++)
		free(run.q[i].aux);
	*ret = run.res;
out:
	kvs_send_source_destroy(run.src);
	pthread_cond_destroy(&run.cond);
	pthread_mutex_destroy(&run.lock);
	free(run.q);
	return res;
}
