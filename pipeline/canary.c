/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/random.h"
#include "lib/rng.h"
#include "pinned/arena.h"
#include "pipeline/canary.h"
#include "pipeline/layout.h"

/* Items ahead whose line is fetched: what a core keeps in flight. */
#define AHEAD 16

struct canary_value {
	uint64_t v[2];
};
static_assert(sizeof(struct canary_value) == KVS_CANARY_LEN, "canary");

/* The items of one buffer, or aux block, in one extent. */
struct canary_run {
	uint64_t end; /* of the first item, bytes from the extent's start */
	uint64_t stride; /* bytes */
	uint64_t n;
	size_t len; /* of a canary */
	uint64_t place; /* of the first canary, unique in the room */
};

int kvs_canary_secret_init(struct kvs_canary_secret *ret)
{
	return kvs_random_fill(ret, sizeof(*ret));
}

/* A bijection of the place in the first half: no two of a room are alike. */
static struct canary_value value_at(const struct kvs_canary_secret *s,
				    uint64_t place)
{
	struct canary_value c;

	c.v[0] = kvs_mix64(s->key[0] + place * 0x9e3779b97f4a7c15ULL);
	c.v[1] = kvs_mix64(s->key[1] ^ c.v[0]);
	return c;
}

static struct canary_run run_of(uint32_t e, uint64_t off, uint64_t item_len,
				uint64_t n)
{
	struct canary_run r = {
		.end = off + item_len,
		.stride = item_len,
		.n = n,
		.len = item_len < KVS_CANARY_LEN ? item_len : KVS_CANARY_LEN,
	};

	static_assert(KVS_ARENA_SEGMENT_MAX <= 1ULL << 30, "30 bits a place");
	r.place = (uint64_t)e << 30 | (r.end - r.len);
	return r;
}

/* A number, as it may lie past the end: never more than a hint. */
static uintptr_t ahead_of(const struct canary_run *r, const unsigned char *p)
{
	return (uintptr_t)p + AHEAD * r->stride;
}

static void run_write(unsigned char *base, const struct canary_run *r,
		      const struct kvs_canary_secret *s)
{
	unsigned char *p = base + r->end - r->len;
	uint64_t place = r->place;
	struct canary_value c;
	uint64_t i;

	for (i = 0; i < r->n; i++, place += r->stride) {
		__builtin_prefetch((void *)ahead_of(r, p), 1);
		c = value_at(s, place);
		if (r->len == KVS_CANARY_LEN)
			memcpy(p, &c, KVS_CANARY_LEN);
		else
			memcpy(p, &c, r->len);
		p += r->stride;
	}
}

/* The first item that still has its canary; r->n if none has. */
static uint64_t run_scan(const unsigned char *base, const struct canary_run *r,
			 const struct kvs_canary_secret *s)
{
	const unsigned char *p = base + r->end - r->len;
	uint64_t place = r->place;
	struct canary_value c, now;
	uint64_t i;

	for (i = 0; i < r->n; i++, place += r->stride) {
		__builtin_prefetch((const void *)ahead_of(r, p), 0);
		c = value_at(s, place);
		if (r->len == KVS_CANARY_LEN) {
			memcpy(&now, p, KVS_CANARY_LEN);
			if (now.v[0] == c.v[0] && now.v[1] == c.v[1])
				break;
		} else if (!memcmp(p, &c, r->len)) {
			break;
		}
		p += r->stride;
	}
	return i;
}

static struct canary_run buffer_run(const struct kvs_geometry *g, uint32_t e,
				    uint32_t b)
{
	uint64_t item_len = g->layout->buffers[b].item_len;
	uint64_t off, len;

	KVS_ASSERT(!kvs_geometry_run(g, e, b, &off, &len));
	return run_of(e, off, item_len, len / item_len);
}

/* A rank's aux block; empty in every extent but the last. */
static struct canary_run aux_run(const struct kvs_geometry *g, uint32_t e,
				 uint32_t rank)
{
	uint64_t off, len;

	KVS_ASSERT(!kvs_geometry_aux(g, rank, &off, &len));
	return run_of(e, off, len, len && e == g->n_extents - 1);
}

void kvs_canary_write_extent(void *base, const struct kvs_geometry *g,
			     uint32_t e, const struct kvs_canary_secret *s)
{
	struct canary_run r;
	uint32_t i;

	KVS_ASSERT(e < g->n_extents);
	if (!base)
		return;
	for (i = 0; i < g->layout->n_buffers; i++) {
		r = buffer_run(g, e, i);
		run_write(base, &r, s);
	}
	for (i = 0; i < g->n_ranks; i++) {
		r = aux_run(g, e, i);
		run_write(base, &r, s);
	}
}

int kvs_canary_scan_extent(const void *base, const struct kvs_geometry *g,
			   uint32_t e, const struct kvs_canary_secret *s,
			   struct kvs_canary_missing *ret_missing)
{
	struct canary_run r;
	uint64_t at;
	uint32_t i;

	KVS_ASSERT(e < g->n_extents);
	if (!base)
		return 0;
	for (i = 0; i < g->layout->n_buffers; i++) {
		r = buffer_run(g, e, i);
		at = run_scan(base, &r, s);
		if (at == r.n)
			continue;
		if (kvs_buffer_kind_is_paged(g->layout->buffers[i].kind))
			at += (uint64_t)e * g->extent_pages;
		ret_missing->buffer = i;
		ret_missing->item = (uint32_t)at;
		return -ENODATA;
	}
	for (i = 0; i < g->n_ranks; i++) {
		r = aux_run(g, e, i);
		if (run_scan(base, &r, s) == r.n)
			continue;
		ret_missing->buffer = KVS_CANARY_AUX;
		ret_missing->item = i;
		return -ENODATA;
	}
	return 0;
}

static void *extent_base(const struct kvs_extents *x,
			 const struct kvs_geometry *g, uint32_t e)
{
	KVS_ASSERT(x->n == g->n_extents);
	KVS_ASSERT(x->v[e].len >= kvs_geometry_len(g, e));
	return kvs_extent_addr(x, e);
}

void kvs_canary_write(const struct kvs_extents *x, const struct kvs_geometry *g,
		      const struct kvs_canary_secret *s)
{
	uint32_t e;

	for (e = 0; e < g->n_extents; e++)
		kvs_canary_write_extent(extent_base(x, g, e), g, e, s);
}

int kvs_canary_scan(const struct kvs_extents *x, const struct kvs_geometry *g,
		    const struct kvs_canary_secret *s,
		    struct kvs_canary_missing *ret_missing)
{
	uint32_t e;
	int ret;

	for (e = 0; e < g->n_extents; e++) {
		ret = kvs_canary_scan_extent(extent_base(x, g, e), g, e, s,
					     ret_missing);
		if (ret)
			return ret;
	}
	return 0;
}

void kvs_canary_describe(const struct kvs_geometry *g,
			 const struct kvs_canary_missing *m, char *buf,
			 size_t len)
{
	const struct kvs_layer_buffer *b;

	if (m->buffer >= g->layout->n_buffers) {
		snprintf(buf, len, "aux block of rank %" PRIu32, m->item);
		return;
	}
	b = &g->layout->buffers[m->buffer];
	snprintf(buf, len, "%s layer %u %s %" PRIu32,
		 kvs_buffer_kind_name(b->kind), b->layer,
		 kvs_buffer_kind_is_paged(b->kind) ? "page" : "item", m->item);
}

/* 2^-(8 * canary length) for each of @n items */
static double false_alarms(uint64_t item_len, uint64_t n)
{
	double p = (double)n;
	uint64_t i;

	for (i = 0; i < item_len && i < KVS_CANARY_LEN; i++)
		p /= 256;
	return p;
}

double kvs_canary_false_alarm(const struct kvs_geometry *g)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < g->layout->n_buffers; i++) {
		const struct kvs_layer_buffer *b = &g->layout->buffers[i];

		sum += false_alarms(b->item_len, kvs_buffer_items(b, g->pages));
	}
	if (g->aux_len)
		sum += false_alarms(g->aux_len, g->n_ranks);
	return sum;
}
