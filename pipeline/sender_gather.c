/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/layout.h"
#include "pipeline/sender_internal.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static bool in_range(const struct kvs_gather_map *map,
		     const struct kvs_layer_buffer *b)
{
	return kvs_slice_has(&map->slice, map->layout,
			     (uint32_t)(b - map->layout->buffers));
}

/* Layer buffer the cursor stands on, once the finished ones are skipped. */
static const struct kvs_layer_buffer *
buffer_now(struct kvs_gather *g, const struct kvs_gather_map *map)
{
	const struct kvs_layer_buffer *b;

	if (g->what == KVS_GATHER_STATE) {
		b = &map->layout->buffers[g->buffer];
		if (!in_range(map, b) || g->at >= (uint64_t)g->n * b->item_len)
			return NULL;
		return b;
	}
	for (; g->buffer < map->layout->n_buffers; g->buffer++, g->at = 0) {
		b = &map->layout->buffers[g->buffer];
		if (kvs_buffer_kind_is_paged(b->kind) && in_range(map, b) &&
		    g->at < (uint64_t)g->n * b->item_len)
			return b;
	}
	return NULL;
}

static bool next_aux(struct kvs_gather *g, const struct kvs_gather_map *map,
		     struct iovec *iov, struct kvs_msg_chunk *ret_chunk,
		     size_t *ret_n)
{
	uint64_t len = g->n - g->at;

	if (!map->whole)
		len = min_u64(len, map->chunk_max);
	if (!len)
		return false;
	ret_chunk->extent = map->n_extents - 1;
	ret_chunk->kind = KVS_KIND_AUX;
	ret_chunk->layer = (uint16_t)map->rank;
	ret_chunk->offset = g->at;
	ret_chunk->len = (uint32_t)len;
	iov[0].iov_base = (void *)(uintptr_t)(g->data + g->at);
	iov[0].iov_len = len;
	*ret_n = 1;
	g->at += len;
	return true;
}

/* Pieces for @len bytes from the cursor; returns how many bytes they hold. */
static uint64_t gather(const struct kvs_gather *g, unsigned char *base,
		       uint32_t item_len, uint64_t len, struct iovec *iov,
		       size_t cap, size_t *ret_n)
{
	uint64_t at = g->at;
	uint64_t end = at + len;
	size_t n = 0;

	while (at < end) {
		uint64_t in = at % item_len;
		uint64_t piece = min_u64(item_len - in, end - at);
		unsigned char *p =
			base + (uint64_t)g->items[at / item_len] * item_len +
			in;

		if (n &&
		    (unsigned char *)iov[n - 1].iov_base + iov[n - 1].iov_len ==
			    p) {
			iov[n - 1].iov_len += piece;
		} else {
			if (n == cap)
				break;
			iov[n].iov_base = p;
			iov[n].iov_len = piece;
			n++;
		}
		at += piece;
	}
	*ret_n = n;
	return at - g->at;
}

bool kvs_gather_next(struct kvs_gather *g, const struct kvs_gather_map *map,
		     struct iovec *iov, size_t cap,
		     struct kvs_msg_chunk *ret_chunk, size_t *ret_n)
{
	const struct kvs_layer_buffer *b;
	uint64_t item_len, in, left, len, place;
	uint32_t extent;

	if (g->what == KVS_GATHER_AUX)
		return next_aux(g, map, iov, ret_chunk, ret_n);
	b = buffer_now(g, map);
	if (!b)
		return false;
	item_len = b->item_len;
	in = g->at % item_len;
	place = g->first + g->at / item_len;
	left = (uint64_t)g->n * item_len - g->at;
	if (g->what == KVS_GATHER_PAGES) {
		extent = (uint32_t)(place / map->extent_pages);
		place %= map->extent_pages;
		left = min_u64(left,
			       (map->extent_pages - place) * item_len - in);
	} else {
		extent = map->n_extents - 1;
	}
	len = min_u64(left, map->chunk_max);
	if (map->whole && len < item_len)
		len = item_len;
	/* Whole items where a chunk holds any: fewer odd edges. */
	if (len < left && (in + len) / item_len > 0)
		len = (in + len) / item_len * item_len - in;

	len = gather(g, map->buffers[b - map->layout->buffers], b->item_len,
		     len, iov, cap, ret_n);
	ret_chunk->extent = extent;
	ret_chunk->kind = b->kind;
	ret_chunk->layer = b->layer;
	ret_chunk->offset = place * item_len + in;
	ret_chunk->len = (uint32_t)len;
	g->at += len;
	return true;
}
