/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cache_bounds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/u64map.h"

#define NEVER UINT32_MAX
#define STREAM_MAX (1u << 31)

int kvs_block_stream_make(const struct kvs_trace *t,
			  struct kvs_block_stream *ret)
{
	struct kvs_block_stream s = { 0 };
	struct kvs_u64map map;
	int r = 0;

	if (!t->n_ids)
		return -ENODATA;
	if (t->n_ids > STREAM_MAX)
		return -E2BIG;
	s.id = calloc(t->n_ids, sizeof(*s.id));
	if (!s.id)
		return -ENOMEM;
	kvs_u64map_init(&map, 0);
	for (s.n = 0; s.n < t->n_ids; s.n++) {
		/* keys of the map are not 0, ids of a trace may be */
		uint64_t key = t->ids[s.n] + 1;
		uintptr_t known = (uintptr_t)kvs_u64map_get(&map, key);

		if (!known) {
			known = ++s.unique;
			r = kvs_u64map_add(&map, key, (void *)known);
			if (r)
				break;
		}
		s.id[s.n] = (uint32_t)(known - 1);
	}
	kvs_u64map_fini(&map);
	if (r)
		kvs_block_stream_fini(&s);
	else
		*ret = s;
	return r;
}

void kvs_block_stream_fini(struct kvs_block_stream *s)
{
	free(s->id);
	memset(s, 0, sizeof(*s));
}

uint64_t kvs_bound_ideal(const struct kvs_block_stream *s)
{
	return s->n - s->unique;
}

/* ---- LRU ---- */

struct lru_node {
	uint32_t older;
	uint32_t newer;
	uint32_t there;
};

int kvs_bound_lru(const struct kvs_block_stream *s, uint64_t capacity,
		  uint64_t *ret_hits)
{
	uint32_t end = s->unique; /* of the ring: newer is the oldest */
	uint64_t hits = 0, held = 0;
	struct lru_node *v;

	v = calloc((size_t)s->unique + 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	v[end].older = v[end].newer = end;
	for (size_t i = 0; i < s->n; i++) {
		uint32_t b = s->id[i], out = NEVER;

		if (v[b].there) {
			hits++;
			out = b;
		} else if (held == capacity) {
			out = v[end].newer;
		}
		if (out != NEVER) {
			v[v[out].older].newer = v[out].newer;
			v[v[out].newer].older = v[out].older;
			v[out].there = 0;
			held--;
		}
		v[b].there = 1;
		v[b].newer = end;
		v[b].older = v[end].older;
		v[v[end].older].newer = b;
		v[end].older = b;
		held++;
	}
	free(v);
	*ret_hits = hits;
	return 0;
}

/* ---- clairvoyant ---- */

struct use {
	uint32_t at; /* next use: a place in the stream */
	uint32_t block;
};

/* A heap, the furthest first; one that is no longer true stays in it. */
struct heap {
	struct use *v;
	size_t n;
};

static void heap_push(struct heap *h, struct use u)
{
	size_t i = h->n++;

	for (; i && h->v[(i - 1) / 2].at < u.at; i = (i - 1) / 2)
		h->v[i] = h->v[(i - 1) / 2];
	h->v[i] = u;
}

static void heap_pop(struct heap *h)
{
	struct use last = h->v[--h->n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < h->n) {
		if (child + 1 < h->n && h->v[child + 1].at > h->v[child].at)
			child++;
		if (h->v[child].at <= last.at)
			break;
		h->v[i] = h->v[child];
		i = child;
	}
	h->v[i] = last;
}

/* @next[i]: where the block at place i is used next. */
static void next_uses(const struct kvs_block_stream *s, uint32_t *next,
		      uint32_t *last)
{
	memset(last, 0xff, s->unique * sizeof(*last));
	for (size_t i = s->n; i-- > 0;) {
		next[i] = last[s->id[i]];
		last[s->id[i]] = (uint32_t)i;
	}
}

static uint64_t clairvoyant(const struct kvs_block_stream *s, uint64_t capacity,
			    const uint32_t *next, uint32_t *held,
			    struct heap *h)
{
	uint64_t hits = 0, n = 0;

	/* next use of each block that is held */
	memset(held, 0xff, s->unique * sizeof(*held));
	for (size_t i = 0; i < s->n; i++) {
		uint32_t b = s->id[i];

		if (held[b] != NEVER) {
			hits++;
			held[b] = NEVER;
			n--;
		}
		/* what is not used again needs no place */
		if (next[i] == NEVER)
			continue;
		if (n == capacity) {
			while (held[h->v[0].block] != h->v[0].at)
				heap_pop(h);
			if (h->v[0].at < next[i])
				continue;
			held[h->v[0].block] = NEVER;
			heap_pop(h);
			n--;
		}
		held[b] = next[i];
		heap_push(h, (struct use){ .at = next[i], .block = b });
		n++;
	}
	return hits;
}

int kvs_bound_clairvoyant(const struct kvs_block_stream *s, uint64_t capacity,
			  uint64_t *ret_hits)
{
	uint32_t *next = calloc(s->n, sizeof(*next));
	uint32_t *held = calloc(s->unique, sizeof(*held));
	struct heap h = { .v = calloc(s->n, sizeof(*h.v)) };
	int r = -ENOMEM;

	if (next && held && h.v) {
		next_uses(s, next, held);
		*ret_hits = clairvoyant(s, capacity, next, held, &h);
		r = 0;
	}
	free(next);
	free(held);
	free(h.v);
	return r;
}
