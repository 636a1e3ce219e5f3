/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a CUDA device: takes copies, launches their steps as flights
 * become free, polls the events of those under way, oldest first.
 */
#include <errno.h>
#include <time.h>

#include "gpu/cuda/cuda_internal.h"
#include "lib/assert.h"
#include "lib/clock.h"

#define NAP_NS 20000 /* between two looks at an event */

static void count(_Atomic uint64_t *c, uint64_t n)
{
	/* one writer, and the status publishes it */
	atomic_store_explicit(c,
			      atomic_load_explicit(c, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

void kvs_cuda_finish(struct kvs_cuda *k, struct kvs_copy *c, int status)
{
	count(&k->copies, 1);
	if (status)
		count(&k->failed, 1);
	/* pairs with the acquire in kvs_cuda_query(); @c may be gone after */
	atomic_store_explicit(&c->status, status, memory_order_release);
}

static int sticky(const struct kvs_cuda *k)
{
	return atomic_load_explicit(&k->sticky, memory_order_relaxed);
}

static struct kvs_copy *next_copy(struct kvs_cuda *k)
{
	struct kvs_mpsc_node *n = kvs_mpsc_pop(&k->queue);

	return n ? kvs_container_of(n, struct kvs_copy, node) : NULL;
}

/* Which copies the kernel can make, and which it cannot. */
static const struct kvs_plan_tuning *tuning_of(struct kvs_cuda *k,
					       const struct kvs_copy *c)
{
	bool pinned = true;
	size_t i;

	(void)pthread_mutex_lock(&k->lock);
	for (i = 0; i < c->n_runs && pinned; i++)
		if (c->runs[i].n)
			(void)kvs_cuda_host_check(k, c->runs[i].host,
						  kvs_cuda_host_len(c, i),
						  false, &pinned);
	(void)pthread_mutex_unlock(&k->lock);
	return pinned ? &k->tuning : &k->pageable;
}

/* The last flight of the copy being planned is the last it will have. */
static void plan_over(struct kvs_cuda *k, int status)
{
	struct kvs_copy *c = k->cur;
	struct kvs_cuda_flight *f;

	k->cur = NULL;
	if (k->n_flights) {
		f = &k->flight[(k->first + k->n_flights - 1) % KVS_CUDA_FLIGHTS];
		if (f->c == c) {
			f->last = true;
			f->status = status;
			return;
		}
	}
	kvs_cuda_finish(k, c, status);
}

static void step(struct kvs_cuda *k)
{
	struct kvs_cuda_flight *f =
		&k->flight[(k->first + k->n_flights) % KVS_CUDA_FLIGHTS];
	bool more;
	int r;

	kvs_plan_step_table(&k->step, &k->tuning, f->table);
	(void)pthread_mutex_lock(&k->lock);
	more = kvs_plan_next(&k->plan, &k->step);
	(void)pthread_mutex_unlock(&k->lock);
	if (!more) {
		plan_over(k, 0);
		return;
	}
	r = kvs_cuda_launch(k, k->cur, f);
	if (sticky(k))
		return;
	k->n_flights++;
	count(&k->steps, 1);
	count(&k->pieces, k->step.n_pieces);
	count(&k->launches, k->step.n_runs > 0);
	count(&k->bytes, k->step.bytes);
	if (r || k->step.runs_done == k->cur->n_runs)
		plan_over(k, r);
}

/* Launch what there is room for. Return: did anything happen? */
static bool launch(struct kvs_cuda *k)
{
	bool any = false;

	while (!sticky(k) && k->n_flights < KVS_CUDA_FLIGHTS) {
		if (!k->cur) {
			k->cur = next_copy(k);
			if (!k->cur)
				break;
			kvs_plan_init(&k->plan, k->cur, tuning_of(k, k->cur),
				      &k->hosts);
		}
		step(k);
		any = true;
	}
	return any;
}

static bool reap(struct kvs_cuda *k)
{
	bool any = false;
	int r;

	while (!sticky(k) && k->n_flights) {
		struct kvs_cuda_flight *f = &k->flight[k->first];
		struct kvs_copy *c = f->c;

		r = k->api->event_query(f->done);
		if (r == KVS_CUDA_NOT_READY)
			break;
		any = true;
		if (r) {
			/* of work launched earlier, ours or the engine's */
			(void)kvs_cuda_noted(k, KVS_CUDA_UNKNOWN);
			break;
		}
		k->first = (k->first + 1) % KVS_CUDA_FLIGHTS;
		k->n_flights--;
		f->c = NULL;
		/* pairs with the acquire in kvs_cuda_progress() */
		atomic_store_explicit(&c->runs_done, f->runs_done,
				      memory_order_release);
		if (f->last)
			kvs_cuda_finish(k, c, f->status);
	}
	return any;
}

/* Ends with the context, unless it may still write to the host. */
static void give_up_on(struct kvs_cuda *k, struct kvs_copy *c, bool launched)
{
	if (launched && c->dir == KVS_COPY_D2H) {
		KVS_ASSERT(k->n_orphans < KVS_ARRAY_SIZE(k->orphan));
		k->orphan[k->n_orphans++] = c;
		return;
	}
	kvs_cuda_finish(k, c, -EIO);
}

/* The context is dead: see cuda_internal.h. */
static bool bury(struct kvs_cuda *k)
{
	struct kvs_copy *c;
	bool any = k->n_flights || k->cur;
	uint32_t i;

	for (i = 0; i < k->n_flights; i++) {
		struct kvs_cuda_flight *f =
			&k->flight[(k->first + i) % KVS_CUDA_FLIGHTS];

		if (f->last)
			give_up_on(k, f->c, true);
	}
	k->n_flights = 0;
	if (k->cur) {
		/* a step of it may have been launched, if only in part */
		give_up_on(k, k->cur,
			   k->plan.run || k->plan.item || k->plan.row);
		k->cur = NULL;
	}
	while ((c = next_copy(k))) {
		kvs_cuda_finish(k, c, -EIO);
		any = true;
	}
	return any;
}

static void rest(struct kvs_cuda *k)
{
	struct timespec ts;

	if (!k->n_flights) {
		while (sem_wait(&k->work))
			KVS_ASSERT(errno == EINTR);
		return;
	}
	(void)clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_nsec += NAP_NS;
	if (ts.tv_nsec >= (long)KVS_NSEC_PER_SEC) {
		ts.tv_nsec -= (long)KVS_NSEC_PER_SEC;
		ts.tv_sec++;
	}
	(void)sem_timedwait(&k->work, &ts);
}

void *kvs_cuda_main(void *arg)
{
	struct kvs_cuda *k = arg;
	kvs_cuda_ctx ctx;
	bool stop;

	(void)pthread_setname_np(pthread_self(), "kvs-cuda-copy");
	(void)kvs_cuda_noted(k, k->api->ctx_push(k->ctx));
	kvs_cuda_measure(k);
	for (;;) {
		bool any;

		/* looked at before the queue: close pushes nothing after it */
		stop = atomic_load_explicit(&k->stop, memory_order_acquire);
		any = reap(k);
		any = launch(k) || any;
		if (sticky(k))
			any = bury(k) || any;
		if (any)
			continue;
		if (stop && !k->n_flights && !k->cur)
			break;
		rest(k);
	}
	(void)k->api->ctx_pop(&ctx);
	return NULL;
}
