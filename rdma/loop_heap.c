/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/loop_heap.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"

static bool before(const struct loop_slot *a, const struct loop_slot *b)
{
	if (a->due != b->due)
		return a->due < b->due;
	if (a->tie != b->tie)
		return a->tie < b->tie;
	return a->id < b->id;
}

static void set(struct loop_heap *h, size_t i, struct loop_slot *s)
{
	h->v[i] = s;
	s->place = i;
}

static void sift(struct loop_heap *h, size_t i)
{
	struct loop_slot *s = h->v[i];
	size_t child;

	while (i && before(s, h->v[(i - 1) / 2])) {
		set(h, i, h->v[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	while ((child = 2 * i + 1) < h->n) {
		if (child + 1 < h->n && before(h->v[child + 1], h->v[child]))
			child++;
		if (!before(h->v[child], s))
			break;
		set(h, i, h->v[child]);
		i = child;
	}
	set(h, i, s);
}

int kvs_loop_heap_reserve(struct loop_heap *h, size_t n)
{
	size_t cap = h->cap ? h->cap : 16;
	struct loop_slot **v;

	if (n <= h->cap)
		return 0;
	while (cap < n)
		cap *= 2;
	v = realloc(h->v, cap * sizeof(struct loop_slot *));
	if (!v)
		return -ENOMEM;
	h->v = v;
	h->cap = cap;
	return 0;
}

void kvs_loop_heap_fini(struct loop_heap *h)
{
	KVS_ASSERT(!h->n);
	free(h->v);
	h->v = NULL;
	h->cap = 0;
}

void kvs_loop_heap_put(struct loop_heap *h, struct loop_slot *s)
{
	if (!kvs_loop_heap_has(s)) {
		KVS_ASSERT(h->n < h->cap);
		set(h, h->n, s);
		h->n++;
	}
	sift(h, s->place);
}

void kvs_loop_heap_del(struct loop_heap *h, struct loop_slot *s)
{
	size_t i = s->place;
	struct loop_slot *last;

	if (!kvs_loop_heap_has(s))
		return;
	s->place = KVS_LOOP_NO_PLACE;
	last = h->v[--h->n];
	if (last != s) {
		set(h, i, last);
		sift(h, i);
	}
}
