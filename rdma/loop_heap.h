/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: loop_heap
 *
 * What is due first: a binary heap of slots that their owners embed, so that
 * taking one out of the middle is cheap. Ties are broken by a number that the
 * seed drew, then by id.
 */
#ifndef KVS_RDMA_LOOP_HEAP_H
#define KVS_RDMA_LOOP_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVS_LOOP_NO_PLACE SIZE_MAX

struct loop_slot {
	uint64_t due; /* ns */
	uint64_t tie;
	uint64_t id;
	size_t place; /* in the heap, or KVS_LOOP_NO_PLACE */
};

struct loop_heap {
	struct loop_slot **v;
	size_t n;
	size_t cap;
};

/* Room for @n slots in all. Return: 0; -ENOMEM. */
int kvs_loop_heap_reserve(struct loop_heap *h, size_t n);
void kvs_loop_heap_fini(struct loop_heap *h);
/* Put @s where it belongs, whether it is in already or not. */
void kvs_loop_heap_put(struct loop_heap *h, struct loop_slot *s);
/* Nothing happens when it is not in. */
void kvs_loop_heap_del(struct loop_heap *h, struct loop_slot *s);

static inline struct loop_slot *kvs_loop_heap_first(const struct loop_heap *h)
{
	return h->n ? h->v[0] : NULL;
}

static inline bool kvs_loop_heap_has(const struct loop_slot *s)
{
	return s->place != KVS_LOOP_NO_PLACE;
}

#endif /* KVS_RDMA_LOOP_HEAP_H */
