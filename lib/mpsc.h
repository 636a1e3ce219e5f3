/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: mpsc
 *
 * Intrusive multi-producer single-consumer queue (D. Vyukov's node-based
 * algorithm). Any thread pushes, without locks and without failing; one
 * thread pops. FIFO per producer.
 *
 * kvs_mpsc_pop() may return NULL although a push has begun: the producer is
 * between its two stores. The producer's wake-up comes after its push, so a
 * consumer that sleeps on that wake-up loses nothing.
 *
 * Ordering: the release store to ->next in push pairs with the acquire load
 * in pop, so what the producer wrote before the push is visible to the
 * consumer after the pop.
 */
#ifndef KVS_LIB_MPSC_H
#define KVS_LIB_MPSC_H

#include <stdatomic.h>
#include <stddef.h>

struct kvs_mpsc_node {
	_Atomic(struct kvs_mpsc_node *) next;
};

struct kvs_mpsc {
	/* written by producers */
	_Atomic(struct kvs_mpsc_node *) head;
	/* consumer only; own cache line */
	_Alignas(64) struct kvs_mpsc_node *tail;
	struct kvs_mpsc_node stub;
};

static inline void kvs_mpsc_init(struct kvs_mpsc *q)
{
	atomic_init(&q->stub.next, NULL);
	atomic_init(&q->head, &q->stub);
	q->tail = &q->stub;
}

/* Any thread. @n must stay valid until popped. */
static inline void kvs_mpsc_push(struct kvs_mpsc *q, struct kvs_mpsc_node *n)
{
	struct kvs_mpsc_node *prev;

	atomic_store_explicit(&n->next, NULL, memory_order_relaxed);
	prev = atomic_exchange_explicit(&q->head, n, memory_order_acq_rel);
	atomic_store_explicit(&prev->next, n, memory_order_release);
}

/* Consumer thread only. NULL when empty (or a push is half done). */
static inline struct kvs_mpsc_node *kvs_mpsc_pop(struct kvs_mpsc *q)
{
	struct kvs_mpsc_node *tail = q->tail;
	struct kvs_mpsc_node *next =
		atomic_load_explicit(&tail->next, memory_order_acquire);

	if (tail == &q->stub) {
		if (!next)
			return NULL;
		q->tail = next;
		tail = next;
		next = atomic_load_explicit(&tail->next, memory_order_acquire);
	}
	if (next) {
		q->tail = next;
		return tail;
	}
	if (tail != atomic_load_explicit(&q->head, memory_order_acquire))
		return NULL;
	kvs_mpsc_push(q, &q->stub);
	next = atomic_load_explicit(&tail->next, memory_order_acquire);
	if (next) {
		q->tail = next;
		return tail;
	}
	return NULL;
}

#endif /* KVS_LIB_MPSC_H */
