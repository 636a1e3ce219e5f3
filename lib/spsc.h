/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: spsc
 *
 * Bounded single-producer single-consumer ring of pointers. Capacity is a
 * power of two, storage is the caller's. The release store of an index pairs
 * with the acquire load of the same index on the other side.
 */
#ifndef KVS_LIB_SPSC_H
#define KVS_LIB_SPSC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/assert.h"

struct kvs_spsc {
	void **slot;
	uint32_t mask;
	/* producer's line */
	_Alignas(64) _Atomic uint32_t head;
	/* consumer's line */
	_Alignas(64) _Atomic uint32_t tail;
};

/* @cap: power of two, entries in @slot. */
static inline void kvs_spsc_init(struct kvs_spsc *r, void **slot, uint32_t cap)
{
	KVS_ASSERT(cap && !(cap & (cap - 1)));
	r->slot = slot;
	r->mask = cap - 1;
	atomic_init(&r->head, 0);
	atomic_init(&r->tail, 0);
}

/* Producer only. False when full. */
static inline bool kvs_spsc_push(struct kvs_spsc *r, void *p)
{
	uint32_t h = atomic_load_explicit(&r->head, memory_order_relaxed);
	uint32_t t = atomic_load_explicit(&r->tail, memory_order_acquire);

	if (h - t > r->mask)
		return false;
	r->slot[h & r->mask] = p;
	atomic_store_explicit(&r->head, h + 1, memory_order_release);
	return true;
}

/* Consumer only. NULL when empty. */
static inline void *kvs_spsc_pop(struct kvs_spsc *r)
{
	uint32_t t = atomic_load_explicit(&r->tail, memory_order_relaxed);
	uint32_t h = atomic_load_explicit(&r->head, memory_order_acquire);
	void *p;

	if (t == h)
		return NULL;
	p = r->slot[t & r->mask];
	atomic_store_explicit(&r->tail, t + 1, memory_order_release);
	return p;
}

#endif /* KVS_LIB_SPSC_H */
