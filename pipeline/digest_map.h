/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: digest map
 *
 * Where a byte of a room lies in the stream that a rank's digest is of
 * (kvstage-wire(7), section DIGEST): extent by extent, in each the runs of
 * the rank's paged buffers by kind and layer; then the runs of its
 * fixed-count buffers by kind and layer; then its aux block; no padding
 * anywhere. Both sides have what it takes: the order does not depend on how
 * either of them numbers its buffers.
 */
#ifndef KVS_PIPELINE_DIGEST_MAP_H
#define KVS_PIPELINE_DIGEST_MAP_H

#include <stdint.h>

#include "pipeline/layout.h"

struct kvs_digest_map {
	const struct kvs_layout *layout; /* caller's; outlives the map */
	uint32_t pages; /* of the request */
	uint32_t extent_pages; /* of every extent but the last */
	uint32_t n_extents;
	uint32_t aux_len; /* bytes */
	uint64_t page_bytes; /* of one page in all paged buffers of the rank */
	uint64_t total; /* bytes of the stream; what LAST.bytes is */
	/* per buffer; NULL for a rank without any. Paged: bytes of one page in
	 * the buffers before it. Others: bytes from the stream's start. Not
	 * the rank's: UINT64_MAX. */
	uint64_t *before;
};

/**
 * kvs_digest_map_init() - lay the stream of a rank out
 * @m: written; all zero on failure, and kvs_digest_map_fini() is harmless then
 * @l: checked layout, the rank's own or the room's, with every buffer of the rank; must
 *     outlive @m. One from kvs_layout_dup() saves sorting.
 * @tokens: of the room, 1..KVS_TOKENS_MAX
 * @extent_tokens: of a full extent, a multiple of the page size
 * @slice: layers and heads of the rank
 * @aux_len: bytes of the rank's aux block, at most KVS_AUX_MAX
 *
 * Return: 0; -EINVAL; -E2BIG more than a room can have; -ENOMEM.
 */
int kvs_digest_map_init(struct kvs_digest_map *m, const struct kvs_layout *l,
			uint64_t tokens, uint32_t extent_tokens,
			const struct kvs_slice *slice, uint32_t aux_len);
void kvs_digest_map_fini(struct kvs_digest_map *m);

/**
 * kvs_digest_map_run() - stream offset of a place in a run
 * @m: map
 * @extent: extent number
 * @b: buffer index in the map's layout
 * @offset: bytes from the start of the buffer's run in the extent
 * @len: bytes from there on that must lie in the run; they follow one another
 *       in the stream too
 * @ret_at: bytes from the stream's start
 * Return: 0; -ERANGE no such place, or not the rank's.
 */
int kvs_digest_map_run(const struct kvs_digest_map *m, uint32_t extent,
		       uint32_t b, uint64_t offset, uint64_t len,
		       uint64_t *ret_at);
/* The same for the rank's aux block. */
int kvs_digest_map_aux(const struct kvs_digest_map *m, uint64_t offset,
		       uint64_t len, uint64_t *ret_at);

#endif /* KVS_PIPELINE_DIGEST_MAP_H */
