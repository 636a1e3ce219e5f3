/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: reshard
 *
 * A room is stored as its prefill ranks have it: pages of their size, and of
 * each buffer that tensor parallelism cuts one run for each different piece of
 * the heads (a shard). So a sender writes contiguous runs, as many as it has
 * buffers, whatever the decode side looks like. Each decode rank takes what it
 * needs out of them when it commits: its heads of each token, into pages of its
 * size, of its layers. Everything about where a byte goes is here, and pure:
 * layouts and numbers in, a layout or pieces out.
 *
 * Buffers are matched by (kind, layer), never by position. What can be
 * resharded:
 *
 *   heads        any two divisions; of ranks that have the same head the first
 *                one sends it
 *   not cut      sent by prefill's tp_rank 0 of the slice that has the layer
 *   page size    one divides the other, for K, V, KV, MAMBA and OTHER. Tokens
 *                that the prefill has no pages for are not written.
 *   state        MAMBA and OTHER are cut by their heads like one token
 */
#ifndef KVS_PIPELINE_RESHARD_H
#define KVS_PIPELINE_RESHARD_H

#include "pipeline/geometry.h"
#include "pipeline/layout.h"

/* What an engine says of the prefill side when it admits. */
struct kvs_reshard_prefill {
	uint32_t tp; /* ranks that the heads are divided between, not 0 */
	uint32_t page_size; /* tokens */
	uint32_t n_ranks;
	const struct kvs_slice *slices; /* n_ranks, each with that tp */
};

/**
 * kvs_reshard_layout() - the layout of a room
 * @members: layouts of the decode ranks that it is for; each checked
 * @n_members: 1 at least
 * @p: the prefill side
 * @partial: not all of the prefill's ranks are known: do not miss any
 * @ret: as of kvs_layout_dup(); tp is the prefill's, tp_rank KVS_TP_RANK_ALL;
 *       its buffers are the shards that a slice has
 * @err: message that names the buffer and both numbers
 * @errlen: its size
 * Return: 0; -EPROTOTYPE (members differ in a buffer they share; heads or page
 * sizes that cannot be resharded; a layer or heads that no rank sends, or two);
 * -E2BIG more buffers or larger items than a layout can have; -ENOMEM.
 */
int kvs_reshard_layout(const struct kvs_layout *const *members,
		       uint32_t n_members, const struct kvs_reshard_prefill *p,
		       bool partial, struct kvs_layout **ret, char *err,
		       size_t errlen);

/**
 * kvs_reshard_same() - is the room's layout that of each member?
 *
 * Then there is nothing to reshard: nothing is cut, all members have the same
 * buffers in the same order, and the page size is the same.
 */
bool kvs_reshard_same(const struct kvs_layout *const *members,
		      uint32_t n_members, const struct kvs_reshard_prefill *p);

/**
 * struct kvs_reshard_piece - bytes of one extent that go to one device buffer
 *
 * Byte k of row j of item i is in extent @extent at @off + i * @host_item +
 * j * @host_row + k, and on the device in item @first + i of the request's
 * items of the buffer, at @at + j * @dev_row + k.
 * @n: items
 * @rows: of an item, 1 at least
 * @row_len: bytes
 */
struct kvs_reshard_piece {
	uint32_t extent;
	uint32_t first;
	uint32_t n;
	uint64_t off;
	uint64_t at;
	uint64_t rows;
	uint64_t row_len;
	uint64_t host_row;
	uint64_t dev_row;
	uint64_t host_item;
};

/**
 * kvs_reshard_pieces() - what a decode rank takes into one of its buffers
 * @g: geometry over the room's layout (or the rank's own, see
 *     kvs_reshard_same())
 * @dev: the rank's layout
 * @b: buffer of @dev
 * @ret: pieces, @max of them at most; NULL with @max 0: only count
 * @max: entries
 *
 * Context: does not allocate.
 * Return: pieces there are; -EPROTO: @g has not what @dev needs.
 */
int64_t kvs_reshard_pieces(const struct kvs_geometry *g,
			   const struct kvs_layout *dev, uint32_t b,
			   struct kvs_reshard_piece *ret, size_t max);

/* Pages of @dev that a request of so many tokens has. */
uint32_t kvs_reshard_pages(const struct kvs_layout *dev, uint64_t tokens);

#endif /* KVS_PIPELINE_RESHARD_H */
