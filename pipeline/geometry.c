/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pinned/arena.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"

/* Add a run of @items times @item bytes at @at; false when over @segment. */
static bool kvs_run_append(uint64_t *at, uint64_t items, uint64_t item,
			   uint64_t segment)
{
	uint64_t len, end;

	if (__builtin_mul_overflow(items, item, &len) ||
	    __builtin_add_overflow(*at, len, &end) ||
	    __builtin_add_overflow(end, KVS_RUN_ALIGN - 1, &end))
		return false;
	end -= end % KVS_RUN_ALIGN;
	if (end > segment)
		return false;
	*at = end;
	return true;
}

/* The same for the runs of all paged buffers of @pages pages. */
static bool kvs_paged_append(uint64_t *at, const struct kvs_layout *l,
			     uint64_t pages, uint64_t segment, uint64_t *off)
{
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++) {
		if (!kvs_buffer_kind_is_paged(l->buffers[i].kind))
			continue;
		if (off)
			off[i] = *at;
		if (!kvs_run_append(at, pages, l->buffers[i].item_len, segment))
			return false;
	}
	return true;
}

uint64_t kvs_buffer_items(const struct kvs_layer_buffer *b, uint64_t pages)
{
	if (kvs_buffer_kind_is_paged(b->kind))
		return pages;
	/* SWA keeps a tail of the pages: a short request has fewer of them */
	if (b->kind == KVS_BUFFER_SWA && pages < b->items)
		return pages;
	return b->items;
}

static bool kvs_fixed_append(uint64_t *at, const struct kvs_layout *l,
			     uint64_t pages, uint64_t segment, uint64_t *off)
{
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++) {
		const struct kvs_layer_buffer *b = &l->buffers[i];

		if (kvs_buffer_kind_is_paged(b->kind))
			continue;
		if (off)
			off[i] = *at;
		if (!kvs_run_append(at, kvs_buffer_items(b, pages), b->item_len,
				    segment))
			return false;
	}
	return true;
}

static uint64_t kvs_segment_clamp(uint64_t segment)
{
	return segment < KVS_ARENA_SEGMENT_MAX ? segment
					       : KVS_ARENA_SEGMENT_MAX;
}

/* Would @pages pages and everything a last extent holds besides fit? */
static bool kvs_last_fits(const struct kvs_layout *l, uint64_t pages,
			  uint64_t segment)
{
	uint64_t at = 0;

	return kvs_paged_append(&at, l, pages, segment, NULL) &&
	       kvs_fixed_append(&at, l, UINT64_MAX, segment, NULL);
}

uint32_t kvs_geometry_extent_tokens(const struct kvs_layout *l, uint32_t want,
				    uint64_t segment)
{
	uint64_t aux = (uint64_t)l->aux_max * KVS_RANKS_MAX;
	uint64_t lo = 1, hi, room;

	segment = kvs_segment_clamp(segment);
	if (want > KVS_TOKENS_MAX)
		want = KVS_TOKENS_MAX;
	hi = want / l->page_size;
	if (!kvs_last_fits(l, 1, segment))
		return 0;
	/* leave the last extent a little room for the aux blocks of all ranks,
	 * or every room that ends in a full extent would be too big for it */
	room = segment - (aux < segment / 64 ? aux : segment / 64);
	while (lo < hi) {
		uint64_t mid = lo + (hi - lo + 1) / 2;

		if (kvs_last_fits(l, mid, room))
			lo = mid;
		else
			hi = mid - 1;
	}
	return (uint32_t)(lo * l->page_size);
}

static int kvs_geometry_place(struct kvs_geometry *g, uint64_t segment)
{
	const struct kvs_layout *l = g->layout;
	uint64_t at = 0;
	uint32_t i;

	if (g->n_extents > 1 &&
	    !kvs_paged_append(&at, l, g->extent_pages, segment, g->full_off))
		return -E2BIG;
	g->full_len = at;
	at = 0;
	if (!kvs_paged_append(&at, l, g->last_pages, segment, g->last_off) ||
	    !kvs_fixed_append(&at, l, g->pages, segment, g->last_off))
		return -E2BIG;
	g->aux_off = at;
	for (i = 0; i < g->n_ranks; i++) {
		if (!kvs_run_append(&at, 1, g->aux_len, segment))
			return -E2BIG;
	}
	g->last_len = at;
	return 0;
}

uint64_t kvs_geometry_offsets(const struct kvs_layout *l, uint32_t pages,
			      uint64_t *ret_off)
{
	uint64_t at = 0;

	(void)kvs_paged_append(&at, l, pages, UINT64_MAX, ret_off);
	return at;
}

static bool kvs_layout_has_paged(const struct kvs_layout *l)
{
	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (kvs_buffer_kind_is_paged(l->buffers[b].kind))
			return true;
	return false;
}

int kvs_geometry_init(struct kvs_geometry *g, const struct kvs_layout *l,
		      uint64_t tokens, uint32_t extent_tokens, uint64_t segment,
		      uint32_t n_ranks, uint32_t aux_len)
{
	uint64_t pages, extents;
	int err;

	memset(g, 0, sizeof(*g));
	if (!tokens || !extent_tokens || extent_tokens % l->page_size ||
	    !n_ranks || n_ranks > KVS_RANKS_MAX || aux_len > KVS_AUX_MAX)
		return -EINVAL;
	if (tokens > KVS_TOKENS_MAX)
		return -E2BIG;
	pages = (tokens + l->page_size - 1) / l->page_size;
	g->layout = l;
	g->tokens = tokens;
	g->pages = (uint32_t)pages;
	/* A model with state only: nothing grows with the tokens, and an
	 * extent without bytes could not be allocated. */
	g->extent_pages = kvs_layout_has_paged(l) ? extent_tokens / l->page_size
						  : g->pages;
	extents = (pages + g->extent_pages - 1) / g->extent_pages;
	if (extents > KVS_EXTENTS_MAX) {
		err = -E2BIG;
		goto out_clear;
	}
	g->n_extents = (uint32_t)extents;
	g->last_pages = (uint32_t)(pages - (extents - 1) * g->extent_pages);
	g->n_ranks = n_ranks;
	g->aux_len = aux_len;
	g->full_off = calloc(l->n_buffers, 2 * sizeof(*g->full_off));
	if (!g->full_off) {
		err = -ENOMEM;
		goto out_clear;
	}
	g->last_off = g->full_off + l->n_buffers;
	err = kvs_geometry_place(g, kvs_segment_clamp(segment));
	if (err)
		goto out_free;
	return 0;

out_free:
	free(g->full_off);
out_clear:
	memset(g, 0, sizeof(*g));
	return err;
}

void kvs_geometry_fini(struct kvs_geometry *g)
{
	free(g->full_off);
	memset(g, 0, sizeof(*g));
}

static bool kvs_geometry_is_last(const struct kvs_geometry *g, uint32_t e)
{
	return e == g->n_extents - 1;
}

uint32_t kvs_geometry_pages(const struct kvs_geometry *g, uint32_t e)
{
	if (e >= g->n_extents)
		return 0;
	return kvs_geometry_is_last(g, e) ? g->last_pages : g->extent_pages;
}

uint64_t kvs_geometry_len(const struct kvs_geometry *g, uint32_t e)
{
	if (e >= g->n_extents)
		return 0;
	return kvs_geometry_is_last(g, e) ? g->last_len : g->full_len;
}

int kvs_geometry_lens(const struct kvs_geometry *g, uint64_t **ret)
{
	uint64_t *lens = malloc(g->n_extents * sizeof(*lens));

	if (!lens)
		return -ENOMEM;
	for (uint32_t e = 0; e < g->n_extents; e++)
		lens[e] = kvs_geometry_len(g, e);
	*ret = lens;
	return 0;
}

uint64_t kvs_geometry_total(const struct kvs_geometry *g)
{
	if (!g->n_extents)
		return 0;
	return (g->n_extents - 1) * g->full_len + g->last_len;
}

int kvs_geometry_run(const struct kvs_geometry *g, uint32_t e, uint32_t b,
		     uint64_t *ret_off, uint64_t *ret_len)
{
	const struct kvs_layer_buffer *buf;
	bool last;

	if (e >= g->n_extents || b >= g->layout->n_buffers)
		return -ERANGE;
	buf = &g->layout->buffers[b];
	last = kvs_geometry_is_last(g, e);
	*ret_off = last ? g->last_off[b] : g->full_off[b];
	if (kvs_buffer_kind_is_paged(buf->kind))
		*ret_len = (uint64_t)kvs_geometry_pages(g, e) * buf->item_len;
	else
		*ret_len =
			last ? kvs_buffer_items(buf, g->pages) * buf->item_len
			     : 0;
	return 0;
}

int kvs_geometry_aux(const struct kvs_geometry *g, uint32_t rank,
		     uint64_t *ret_off, uint64_t *ret_len)
{
	uint64_t stride;

	if (rank >= g->n_ranks)
		return -ERANGE;
	stride = ((uint64_t)g->aux_len + KVS_RUN_ALIGN - 1) / KVS_RUN_ALIGN *
		 KVS_RUN_ALIGN;
	*ret_off = g->aux_off + rank * stride;
	*ret_len = g->aux_len;
	return 0;
}

uint64_t kvs_geometry_slice_bytes(const struct kvs_geometry *g,
				  const struct kvs_slice *s)
{
	uint64_t bytes = g->aux_len;
	uint32_t i;

	for (i = 0; i < g->layout->n_buffers; i++) {
		const struct kvs_layer_buffer *b = &g->layout->buffers[i];
		uint64_t items = kvs_buffer_items(b, g->pages);

		if (!kvs_slice_has(s, g->layout, i))
			continue;
		bytes += items * b->item_len;
	}
	return bytes;
}

uint64_t kvs_geometry_rank_bytes(const struct kvs_geometry *g,
				 uint32_t first_layer, uint32_t n_layers)
{
	const struct kvs_slice s = { first_layer, n_layers, 1, 0 };

	return kvs_geometry_slice_bytes(g, &s);
}
