/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/timer.h"

#define KVS_TIMERQ_MIN_CAP 16

static bool kvs_timer_before(const struct kvs_timer *a,
			     const struct kvs_timer *b)
{
	return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void kvs_timerq_place(struct kvs_timerq *q, size_t i,
			     struct kvs_timer *t)
{
	q->heap[i] = t;
	t->pos = i + 1;
}

static void kvs_timerq_up(struct kvs_timerq *q, size_t i, struct kvs_timer *t)
{
	while (i) {
		size_t parent = (i - 1) / 2;

		if (!kvs_timer_before(t, q->heap[parent]))
			break;
		kvs_timerq_place(q, i, q->heap[parent]);
		i = parent;
	}
	kvs_timerq_place(q, i, t);
}

static void kvs_timerq_down(struct kvs_timerq *q, size_t i, struct kvs_timer *t)
{
	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= q->in_heap)
			break;
		if (child + 1 < q->in_heap &&
		    kvs_timer_before(q->heap[child + 1], q->heap[child]))
			child++;
		if (!kvs_timer_before(q->heap[child], t))
			break;
		kvs_timerq_place(q, i, q->heap[child]);
		i = child;
	}
	kvs_timerq_place(q, i, t);
}

/* Put @t, whose key is new, where it belongs, starting from hole @i. */
static void kvs_timerq_sift(struct kvs_timerq *q, size_t i, struct kvs_timer *t)
{
	if (i && kvs_timer_before(t, q->heap[(i - 1) / 2]))
		kvs_timerq_up(q, i, t);
	else
		kvs_timerq_down(q, i, t);
}

static int kvs_timerq_grow(struct kvs_timerq *q)
{
	size_t cap = q->cap ? q->cap * 2 : KVS_TIMERQ_MIN_CAP;
	struct kvs_timer **heap;

	if (cap < q->cap)
		return -ENOMEM;
	heap = reallocarray(q->heap, cap, sizeof(struct kvs_timer *));
	if (!heap)
		return -ENOMEM;
	q->heap = heap;
	q->cap = cap;
	return 0;
}

void kvs_timerq_init(struct kvs_timerq *q)
{
	*q = (struct kvs_timerq){ 0 };
	for (unsigned int i = 0; i < KVS_TIMER_LISTS; i++)
		kvs_list_init(&q->list[i]);
}

void kvs_timerq_fini(struct kvs_timerq *q)
{
	/* the timers are not touched: their owners may be gone already */
	free(q->heap);
	kvs_timerq_init(q);
}

void kvs_timer_init(struct kvs_timer *t, void (*fire)(struct kvs_timer *t))
{
	*t = (struct kvs_timer){ .fire = fire };
	kvs_list_init(&t->node);
}

/* The list whose last deadline is closest below @at: a class of timers keeps
 * to its own list. Else an empty one, else NULL. */
static struct kvs_list *kvs_timerq_list(struct kvs_timerq *q, uint64_t at)
{
	struct kvs_list *best = NULL;
	uint64_t best_at = 0;

	for (unsigned int i = 0; i < KVS_TIMER_LISTS; i++) {
		struct kvs_list *l = &q->list[i];
		uint64_t last;

		if (kvs_list_empty(l)) {
			best = best ? best : l;
			continue;
		}
		last = kvs_list_entry(l->prev, struct kvs_timer, node)->at;
		if (last > at || last < best_at)
			continue;
		best = l;
		best_at = last;
	}
	return best;
}

int kvs_timer_set(struct kvs_timerq *q, struct kvs_timer *t, uint64_t at)
{
	struct kvs_list *l;
	int ret;

	/* Room in the heap for every timer, listed or not: one that is moved
	 * must not be lost for want of memory. */
	if (!t->pos && q->n == q->cap) {
		ret = kvs_timerq_grow(q);
		if (ret)
			return ret;
	}
	kvs_timer_cancel(q, t);

	/*
	 * The floor keeps what a callback sets behind every timer of the
	 * running call: with an earlier deadline it would come to the top and
	 * hide those that are still to fire.
	 */
	t->at = at > q->floor ? at : q->floor;
	t->seq = q->seq++;
	q->n++;
	l = kvs_timerq_list(q, t->at);
	if (l) {
		t->pos = KVS_TIMER_LISTED;
		kvs_list_add_tail(l, &t->node);
	} else {
		kvs_timerq_up(q, q->in_heap++, t);
	}
	return 0;
}

void kvs_timer_cancel(struct kvs_timerq *q, struct kvs_timer *t)
{
	struct kvs_timer *last;
	size_t i;

	if (!t->pos)
		return;
	q->n--;
	if (t->pos == KVS_TIMER_LISTED) {
		t->pos = 0;
		kvs_list_del(&t->node);
		return;
	}
	i = t->pos - 1;
	KVS_ASSERT(i < q->in_heap && q->heap[i] == t);
	t->pos = 0;
	last = q->heap[--q->in_heap];
	if (last != t)
		kvs_timerq_sift(q, i, last);
}

static struct kvs_timer *kvs_timerq_first(const struct kvs_timerq *q)
{
	struct kvs_timer *first = q->in_heap ? q->heap[0] : NULL;

	for (unsigned int i = 0; i < KVS_TIMER_LISTS; i++) {
		struct kvs_timer *t;

		if (kvs_list_empty(&q->list[i]))
			continue;
		t = kvs_list_first(&q->list[i], struct kvs_timer, node);
		if (!first || kvs_timer_before(t, first))
			first = t;
	}
	return first;
}

uint64_t kvs_timerq_next(const struct kvs_timerq *q)
{
	const struct kvs_timer *t = kvs_timerq_first(q);

	return t ? t->at : KVS_TIME_NEVER;
}

unsigned int kvs_timerq_run(struct kvs_timerq *q, uint64_t now)
{
	uint64_t limit = q->seq;
	uint64_t floor = q->floor;
	unsigned int fired = 0;
	struct kvs_timer *t;

	q->floor = now;
	while ((t = kvs_timerq_first(q)) && t->at <= now && t->seq < limit) {
		kvs_timer_cancel(q, t);
		fired++;
		/* may free @t */
		t->fire(t);
	}
	q->floor = floor;
	return fired;
}
