/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: geometry
 *
 * Where each byte of a room lies in its extents. The tokens are cut into
 * extents of extent_tokens (a multiple of the page size; fewer where that
 * many would pass 1 GiB). Within an extent the runs of all paged buffers
 * follow one another in layout order, pages in order, each run starting on a
 * 64-byte border. The last extent also holds, after those, the runs of the
 * fixed-count buffers and then one aux area per rank. The last page of a
 * request may be partial: it travels and is stored whole. A layout without
 * paged buffers (state only) has one extent, however many tokens.
 *
 * Every number comes from the decode engine's admit and layout.
 */
#ifndef KVS_PIPELINE_GEOMETRY_H
#define KVS_PIPELINE_GEOMETRY_H

#include <stdint.h>

#include "pipeline/layout.h"

#define KVS_EXTENTS_MAX 2048 /* of one room */
#define KVS_RUN_ALIGN 64 /* bytes */

struct kvs_geometry {
	const struct kvs_layout *layout; /* caller's; outlives the geometry */
	uint64_t tokens;
	uint32_t pages;
	uint32_t extent_pages; /* of every extent but the last */
	uint32_t n_extents;
	uint32_t last_pages; /* of the last extent, 1..extent_pages */
	uint32_t n_ranks;
	uint32_t aux_len; /* bytes of each rank's aux block; may be 0 */
	uint64_t full_len; /* bytes of a full extent; 0 if there is none */
	uint64_t last_len; /* bytes of the last extent */
	/* per buffer: bytes from the start of an extent of extent_pages */
	uint64_t *full_off;
	/* the same in the last extent; then fixed buffers and aux start */
	uint64_t *last_off;
	uint64_t aux_off; /* in the last extent */
};

/**
 * kvs_geometry_extent_tokens() - tokens of a full extent
 * @l: checked layout
 * @want: setting extent.tokens
 * @segment: bytes; largest extent a pool gives (at most 1 GiB counts)
 *
 * So many that a full last extent, with the fixed-count buffers and some aux
 * blocks (1/64 of @segment), fits @segment.
 * Return: multiple of page_size, at least one page; 0 when one page of all
 * paged buffers and the fixed-count ones together are larger than @segment.
 */
uint32_t kvs_geometry_extent_tokens(const struct kvs_layout *l, uint32_t want,
				    uint64_t segment);

/**
 * kvs_geometry_init() - lay a room out
 * @g: written; all zero on failure, and kvs_geometry_fini() is harmless then
 * @l: checked layout; must outlive @g
 * @tokens: of the request
 * @extent_tokens: of a full extent, a multiple of the page size
 * @segment: bytes; largest extent a pool gives (at most 1 GiB counts)
 * @n_ranks: 1..KVS_RANKS_MAX
 * @aux_len: bytes of each rank's aux block
 *
 * Return: 0; -EINVAL (no tokens, bad extent_tokens, too many ranks, aux over
 * KVS_AUX_MAX); -E2BIG (tokens or extents over the limits, an extent over
 * @segment); -ENOMEM.
 */
int kvs_geometry_init(struct kvs_geometry *g, const struct kvs_layout *l,
		      uint64_t tokens, uint32_t extent_tokens, uint64_t segment,
		      uint32_t n_ranks, uint32_t aux_len);
void kvs_geometry_fini(struct kvs_geometry *g);

/* Items of buffer @b in a request of @pages pages: as many, or the fixed
 * count of its kind. */
uint64_t kvs_buffer_items(const struct kvs_layer_buffer *b, uint64_t pages);

/* Where the runs of all paged buffers begin in an extent of @pages pages: bytes
 * from its start, l->n_buffers of them; others are left as they are. Returns
 * the end of the last. */
uint64_t kvs_geometry_offsets(const struct kvs_layout *l, uint32_t pages,
			      uint64_t *ret_off);

/* Pages of extent @e. */
uint32_t kvs_geometry_pages(const struct kvs_geometry *g, uint32_t e);
/* Bytes of extent @e. */
uint64_t kvs_geometry_len(const struct kvs_geometry *g, uint32_t e);
/**
 * kvs_geometry_lens() - bytes of every extent, as kvs_pool_alloc() wants them
 * @g: geometry
 * @ret: @g->n_extents lengths, the caller's to free
 * Return: 0 or -ENOMEM.
 */
int kvs_geometry_lens(const struct kvs_geometry *g, uint64_t **ret);
/* Sum over all extents, bytes (without rounding to pool alignment). */
uint64_t kvs_geometry_total(const struct kvs_geometry *g);

/**
 * kvs_geometry_run() - a buffer's run in an extent
 * @g: geometry
 * @e: extent number
 * @b: buffer index in the layout
 * @ret_off: bytes from the extent's start
 * @ret_len: bytes (0: a fixed-count buffer in an extent that is not the last)
 * Return: 0 or -ERANGE.
 */
int kvs_geometry_run(const struct kvs_geometry *g, uint32_t e, uint32_t b,
		     uint64_t *ret_off, uint64_t *ret_len);
/* A rank's aux area in the last extent; 0 or -ERANGE. */
int kvs_geometry_aux(const struct kvs_geometry *g, uint32_t rank,
		     uint64_t *ret_off, uint64_t *ret_len);
/* Bytes a rank must send that has this slice: all runs of its buffers over all
 * extents, plus its aux block. */
uint64_t kvs_geometry_slice_bytes(const struct kvs_geometry *g,
				  const struct kvs_slice *s);
/* The same for all of layers [first, first + n). */
uint64_t kvs_geometry_rank_bytes(const struct kvs_geometry *g,
				 uint32_t first_layer, uint32_t n_layers);

#endif /* KVS_PIPELINE_GEOMETRY_H */
