/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From which length on is a piece better off alone? Asked once, on the device
 * itself, before its first copy: 8 MiB of pieces of one length, directly and
 * through the ring, half a dozen lengths, best of three. Takes some 20 ms.
 */
#include <sched.h>
#include <stdlib.h>

#include "gpu/cuda/cuda_internal.h"
#include "lib/clock.h"

#define BYTES (8u << 20)
#define TIMES 3
#define LIMIT (200 * KVS_NSEC_PER_MSEC) /* for one copy; then it is given up */

struct ground {
	void *host;
	kvs_cuda_ptr dev;
	uint32_t *pages;
};

static void close_ground(struct kvs_cuda *k, struct ground *g)
{
	if (g->dev)
		(void)k->api->mem_free(g->dev);
	if (g->host) {
		(void)pthread_mutex_lock(&k->lock);
		(void)kvs_spans_del(&k->hosts, g->host, BYTES);
		(void)pthread_mutex_unlock(&k->lock);
		(void)k->api->host_free(g->host);
	}
	free(g->pages);
}

static int open_ground(struct kvs_cuda *k, struct ground *g)
{
	int r;

	*g = (struct ground){ 0 };
	g->pages = malloc(BYTES / 1024 * sizeof(*g->pages));
	if (!g->pages)
		return KVS_CUDA_OUT_OF_MEMORY;
	r = k->api->host_alloc(&g->host, BYTES, KVS_CUDA_HOST_PORTABLE);
	if (!r)
		r = k->api->mem_alloc(&g->dev, BYTES);
	if (r)
		return r;
	/* pinned, as a pool is: an address that is good on both sides */
	(void)pthread_mutex_lock(&k->lock);
	if (kvs_spans_add(&k->hosts, g->host, BYTES, false))
		r = KVS_CUDA_OUT_OF_MEMORY;
	else
		kvs_spans_set_dev(&k->hosts, g->host, (uintptr_t)g->host);
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

static bool next(struct kvs_cuda *k, uint32_t n)
{
	bool r;

	if (n == KVS_CUDA_FLIGHTS)
		return false;
	kvs_plan_step_table(&k->step, &k->tuning, k->flight[n].table);
	(void)pthread_mutex_lock(&k->lock);
	r = kvs_plan_next(&k->plan, &k->step);
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

/* One copy, all its flights. Return: ns; 0: it failed. */
static uint64_t once(struct kvs_cuda *k, const struct kvs_plan_tuning *t,
		     struct kvs_copy *c)
{
	uint64_t from = kvs_clock_now(&kvs_clock_real);
	uint32_t n = 0, i;
	int r = 0;

	kvs_plan_init(&k->plan, c, t, &k->hosts);
	while (!r && next(k, n)) {
		r = kvs_cuda_launch(k, c, &k->flight[n]);
		if (!atomic_load_explicit(&k->sticky, memory_order_relaxed))
			n++;
	}
	for (i = 0; i < n; i++) {
		int q;

		while ((q = k->api->event_query(k->flight[i].done)) ==
		       KVS_CUDA_NOT_READY)
			(void)sched_yield();
		if (q)
			r = kvs_cuda_noted(k, KVS_CUDA_UNKNOWN);
	}
	if (r || k->plan.run < c->n_runs)
		return 0;
	return kvs_clock_now(&kvs_clock_real) - from;
}

static uint64_t best(struct kvs_cuda *k, const struct kvs_plan_tuning *t,
		     struct kvs_copy *c)
{
	uint64_t ns = 0, one;
	int i;

	for (i = 0; i < TIMES && ns < LIMIT; i++) {
		one = once(k, t, c);
		if (!one)
			return 0;
		ns = !ns || one < ns ? one : ns;
	}
	return ns;
}

static void far_apart(uint32_t *pages, uint32_t n)
{
	uint32_t i;

	/* even ones up, odd ones down: no two neighbours */
	for (i = 0; i < n; i++)
		pages[i] = i < n / 2 ? 2 * i : 2 * (n - 1 - i) + 1;
}

/* Longer than the longest that is better off in the ring. */
static uint64_t find(struct kvs_cuda *k, struct ground *g)
{
	struct kvs_plan_tuning direct = k->tuning;
	struct kvs_plan_tuning ring = k->tuning;
	uint64_t min = 0;
	uint64_t len;

	direct.batch_min = 1;
	direct.pieces = k->tuning.pieces;
	ring.batch_min = UINT64_MAX;
	ring.few = 1;
	for (len = 8 << 10; len <= 256 << 10; len *= 2) {
		const struct kvs_copy_run run = {
			.host = g->host,
			.dev = (void *)(uintptr_t)g->dev,
			.item_len = len,
			.pages = g->pages,
			.n = BYTES / len,
		};
		struct kvs_copy c = { .runs = &run,
				      .n_runs = 1,
				      .dir = KVS_COPY_H2D };
		uint64_t a, b;

		far_apart(g->pages, (uint32_t)run.n);
		a = best(k, &direct, &c);
		b = best(k, &ring, &c);
		if (!a || !b)
			return 0;
		if (a > b)
			min = 2 * len;
	}
	return min ? min : 8 << 10;
}

void kvs_cuda_measure(struct kvs_cuda *k)
{
	struct ground g;
	uint64_t min = 0;

	atomic_store_explicit(&k->batch_min, k->tuning.batch_min,
			      memory_order_relaxed);
	/* a ring too small for the question is asked for by tests only */
	if (k->opts.batch_min || k->way != KVS_COPY_SLOTS ||
	    k->tuning.slot_bytes < BYTES)
		return;
	if (!open_ground(k, &g))
		min = find(k, &g);
	close_ground(k, &g);
	if (!min)
		return;
	k->tuning.batch_min = min;
	k->pageable.batch_min = min;
	atomic_store_explicit(&k->batch_min, min, memory_order_relaxed);
	atomic_store_explicit(&k->measured, true, memory_order_release);
}
