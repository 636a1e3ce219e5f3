/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/admission.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

#define ADMISSION_WINDOW (5 * KVS_NSEC_PER_SEC)
#define ADMISSION_RETRY_MIN 100u /* ms */
#define ADMISSION_RETRY_UNKNOWN 1000u /* ms */
#define ADMISSION_RESERVE_PART 16u /* of the pool at most */

void kvs_admission_init(struct kvs_worker *w)
{
	struct kvs_admission *a = &w->admission;

	kvs_u64map_init(&a->peers, w->o.secret);
	kvs_list_init(&a->loans);
	kvs_waitq_init(&a->unopened, w->clock, w->set->overtake,
		       w->set->overtake_time);
	kvs_waitq_init(&a->health, w->clock, w->set->overtake,
		       w->set->overtake_time);
	a->window_at = kvs_clock_now(w->clock);
}

/* What was granted to nobody goes back at once (R1): its drain has no party
 * and is over as it is armed. Not one of the drains that are counted. */
static void give_back(struct kvs_worker *w, struct kvs_extents *x)
{
	struct kvs_drain_stats uncounted = { 0 };
	const struct kvs_drain_opts o = {
		.clock = w->clock,
		.timers = &w->timers,
		.stats = &uncounted,
	};
	struct kvs_drain d;

	if (!x->pool)
		return;
	kvs_drain_init(&d, &o);
	kvs_drain_arm(&d);
	kvs_pool_release(x, &d);
	kvs_drain_fini(&d);
	memset(x, 0, sizeof(*x));
}

void kvs_admission_fini(struct kvs_worker *w)
{
	struct kvs_admission *a = &w->admission;

	KVS_ASSERT(!a->peers.n && !a->unopened.len && !a->health.len);
	give_back(w, &a->reserve);
	kvs_u64map_fini(&a->peers);
}

/* ---- peers --------------------------------------------------------------- */

/* The map mixes the key with its secret; equal keys are told by the name. */
static uint64_t peer_key(const char *name)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 0x100000001b3u;
	return h ? h : 1;
}

static struct kvs_admission_peer *peer_find(const struct kvs_admission *a,
					    const char *name)
{
	struct kvs_admission_peer *p;

	p = kvs_u64map_get(&a->peers, peer_key(name));
	while (p && strcmp(p->name, name))
		p = p->next;
	return p;
}

int kvs_admission_check(struct kvs_worker *w, const struct kvs_room_request *q,
			uint64_t need, char *err, size_t errlen)
{
	const struct kvs_admission_peer *p = peer_find(&w->admission, q->peer);
	uint64_t most = w->set->peer_bytes;
	uint64_t reserve = kvs_admission_reserve_size(w);

	if (q->health && reserve && need > reserve) {
		snprintf(err, errlen,
			 "a health check of %llu tokens needs %llu bytes, "
			 "admission.health_reserve gives %llu",
			 (unsigned long long)q->tokens,
			 (unsigned long long)need, (unsigned long long)reserve);
		return -E2BIG;
	}
	if (q->health)
		return 0;
	if (most && need > most) {
		snprintf(err, errlen,
			 "%llu tokens need %llu bytes of host memory, "
			 "admission.peer_bytes is %llu",
			 (unsigned long long)q->tokens,
			 (unsigned long long)need, (unsigned long long)most);
		return -E2BIG;
	}
	if (p && p->rooms >= w->set->peer_rooms) {
		snprintf(err, errlen,
			 "peer %s has %u rooms, admission.peer_rooms is %u",
			 q->peer, p->rooms, w->set->peer_rooms);
		return -EDQUOT;
	}
	if (p && most && p->bytes > most - need) {
		snprintf(err, errlen,
			 "peer %s has %llu bytes and asks for %llu more, "
			 "admission.peer_bytes is %llu",
			 q->peer, (unsigned long long)p->bytes,
			 (unsigned long long)need, (unsigned long long)most);
		return -EDQUOT;
	}
	return 0;
}

int kvs_admission_enter(struct kvs_room *r)
{
	struct kvs_admission *a = &r->w->admission;
	struct kvs_admission_peer *p = peer_find(a, r->peer);

	if (!p) {
		size_t len = strlen(r->peer) + 1;

		p = calloc(1, sizeof(*p) + len);
		if (!p)
			return -ENOMEM;
		memcpy(p->name, r->peer, len);
		p->key = peer_key(r->peer);
		p->next = kvs_u64map_del(&a->peers, p->key);
		/* with one of its key gone there is a place for it */
		if (kvs_u64map_add(&a->peers, p->key, p)) {
			KVS_ASSERT(!p->next);
			free(p);
			return -ENOMEM;
		}
	}
	p->rooms++;
	p->bytes += r->need;
	r->account = p;
	return 0;
}

void kvs_admission_leave(struct kvs_room *r)
{
	struct kvs_admission *a = &r->w->admission;
	struct kvs_admission_peer *p = r->account, *first;

	r->account = NULL;
	if (!p)
		return;
	KVS_ASSERT(p->rooms && p->bytes >= r->need);
	p->bytes -= r->need;
	if (--p->rooms)
		return;
	first = kvs_u64map_del(&a->peers, p->key);
	if (first == p) {
		first = p->next;
	} else {
		struct kvs_admission_peer *before = first;

		while (before->next != p)
			before = before->next;
		before->next = p->next;
	}
	if (first)
		KVS_ASSERT(!kvs_u64map_add(&a->peers, first->key, first));
	free(p);
}

/* ---- the reserve --------------------------------------------------------- */

uint64_t kvs_admission_reserve_size(const struct kvs_worker *w)
{
	uint64_t most = kvs_pool_size(w->pool) / ADMISSION_RESERVE_PART;
	uint64_t size = w->set->health_reserve;

	if (most > kvs_pool_segment(w->pool))
		most = kvs_pool_segment(w->pool);
	if (size > most)
		size = most;
	return size - size % KVS_ARENA_ALIGN;
}

/* What health rooms do not use of it. */
static uint64_t reserve_due(const struct kvs_worker *w)
{
	const struct kvs_admission *a = &w->admission;
	uint64_t size = kvs_admission_reserve_size(w);

	if (!a->reserve_wanted || a->health_bytes >= size)
		return 0;
	return size - a->health_bytes;
}

/* Set aside what is due, as far as it can be had. */
static void reserve_take(struct kvs_worker *w)
{
	struct kvs_admission *a = &w->admission;
	uint64_t had = a->reserve.bytes, due = reserve_due(w);

	if (had == due)
		return;
	give_back(w, &a->reserve);
	if (!due || !kvs_cache_alloc(w, &due, 1, &a->reserve) || !had)
		return;
	/* what it had is there still; overlooked, it is taken later */
	(void)kvs_cache_alloc(w, &had, 1, &a->reserve);
}

/* ---- queues -------------------------------------------------------------- */

static struct kvs_waitq *queue_of(const struct kvs_room *r)
{
	struct kvs_admission *a = &r->w->admission;

	if (r->health)
		return &a->health;
	return r->opened ? kvs_pool_waitq(r->w->pool) : &a->unopened;
}

bool kvs_admission_may_pass(struct kvs_room *r)
{
	if (!r->health && !r->opened && kvs_pool_waitq(r->w->pool)->len)
		return false;
	return kvs_waitq_may_pass(queue_of(r));
}

void kvs_admission_passed(struct kvs_room *r)
{
	kvs_waitq_passed(queue_of(r));
}

uint32_t kvs_admission_waiting(const struct kvs_worker *w)
{
	return kvs_pool_waitq(w->pool)->len + w->admission.unopened.len +
	       w->admission.health.len;
}

bool kvs_admission_full(const struct kvs_room *r)
{
	const struct kvs_worker *w = r->w;
	uint32_t n = w->admission.health.len;

	if (!r->health)
		n = kvs_admission_waiting(w) - n;
	return n >= w->set->admission_queue;
}

void kvs_admission_queue(struct kvs_room *r)
{
	r->queue = queue_of(r);
	kvs_waitq_add(r->queue, &r->wait, r->need);
	r->w->admission.waiting_bytes += r->need;
}

void kvs_admission_cancel(struct kvs_room *r)
{
	if (!r->queue)
		return;
	/* off the list while it is tried */
	kvs_waitq_cancel(r->queue, &r->wait);
	r->queue = NULL;
	r->w->admission.waiting_bytes -= r->need;
}

static void queue_settings(struct kvs_waitq *q, const struct kvs_settings *set)
{
	q->overtake_max = set->overtake;
	q->overtake_ns = set->overtake_time;
}

void kvs_admission_run(struct kvs_worker *w)
{
	struct kvs_admission *a = &w->admission;
	struct kvs_waitq *opened = kvs_pool_waitq(w->pool);

	queue_settings(opened, w->set); /* a reload may change them */
	queue_settings(&a->unopened, w->set);
	queue_settings(&a->health, w->set);
	reserve_take(w);
	kvs_waitq_run(&a->health, 0);
	kvs_waitq_run(opened, 0);
	if (!opened->len)
		kvs_waitq_run(&a->unopened, 0);
}

/* ---- memory -------------------------------------------------------------- */

static uint64_t pool_free(const struct kvs_worker *w)
{
	struct kvs_pool_account acc;

	kvs_pool_account(w->pool, &acc);
	return acc.bytes[KVS_EXTENT_FREE];
}

/* Call loans in, the latest first: rooms are opened in the order of their
 * admits, as a rule. */
static int alloc_with_loans(struct kvs_room *r, const uint64_t *lens)
{
	struct kvs_admission *a = &r->w->admission;
	int ret;

	ret = kvs_cache_alloc(r->w, lens, r->geo.n_extents, &r->ext);
	if (ret != -EAGAIN || (!r->opened && !r->health) ||
	    pool_free(r->w) + a->loan_bytes < r->need)
		return ret;
	while (ret == -EAGAIN && !kvs_list_empty(&a->loans)) {
		kvs_room_take_back(kvs_list_entry(a->loans.prev,
						  struct kvs_room, loan_node));
		ret = kvs_cache_alloc(r->w, lens, r->geo.n_extents, &r->ext);
	}
	return ret;
}

int kvs_admission_alloc(struct kvs_room *r, const uint64_t *lens)
{
	struct kvs_worker *w = r->w;
	struct kvs_admission *a = &w->admission;
	uint64_t size = kvs_admission_reserve_size(w);
	int ret;

	if (r->health && size) {
		a->reserve_wanted = true;
		if (a->health_bytes + r->need > size)
			return -EAGAIN;
		give_back(w, &a->reserve);
	}
	ret = alloc_with_loans(r, lens);
	/* One that needs nearly the whole pool was told that it can fit. */
	if (ret == -EAGAIN && a->reserve.pool &&
	    r->need > kvs_pool_size(w->pool) - size) {
		give_back(w, &a->reserve);
		ret = alloc_with_loans(r, lens);
	}
	if (!ret && r->health)
		a->health_bytes += r->need;
	reserve_take(w);
	return ret;
}

void kvs_admission_lend(struct kvs_room *r)
{
	/* what waits owns nothing, and it has pins */
	if (r->opened || r->health || r->prefix)
		return;
	kvs_list_add_tail(&r->w->admission.loans, &r->loan_node);
	r->w->admission.loan_bytes += r->need;
}

void kvs_admission_unlend(struct kvs_room *r)
{
	if (kvs_list_empty(&r->loan_node))
		return;
	kvs_list_del(&r->loan_node);
	r->w->admission.loan_bytes -= r->need;
}

void kvs_admission_take(struct kvs_room *r)
{
	kvs_admission_unlend(r);
	give_back(r->w, &r->ext);
}

/* ---- when to come again -------------------------------------------------- */

void kvs_admission_released(struct kvs_room *r, uint64_t bytes)
{
	struct kvs_admission *a = &r->w->admission;
	uint64_t now = kvs_clock_now(r->w->clock);

	if (r->health)
		a->health_bytes -= r->need;
	if (now - a->window_at >= ADMISSION_WINDOW) {
		a->before_bytes = now - a->window_at < 2 * ADMISSION_WINDOW
					  ? a->window_bytes
					  : 0;
		a->window_bytes = 0;
		a->window_at = now;
	}
	a->window_bytes += bytes;
}

uint32_t kvs_admission_retry(const struct kvs_worker *w, uint64_t bytes)
{
	const struct kvs_admission *a = &w->admission;
	uint64_t max = w->set->admission_timeout / KVS_NSEC_PER_MSEC;
	uint64_t gone = kvs_clock_now(w->clock) - a->window_at;
	double back = (double)a->window_bytes + (double)a->before_bytes;
	double ms = ADMISSION_RETRY_UNKNOWN;

	if (back > 0)
		ms = ((double)a->waiting_bytes + (double)bytes) / back *
		     (double)(ADMISSION_WINDOW + gone) / KVS_NSEC_PER_MSEC;
	if (ms > (double)max)
		return (uint32_t)max;
	return ms < ADMISSION_RETRY_MIN ? ADMISSION_RETRY_MIN : (uint32_t)ms;
}
