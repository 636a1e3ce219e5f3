/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: cache bounds
 *
 * What a cache of so many blocks could make of a trace, computed without the
 * product's index: a plain LRU, and a cache that knows the future. The latter
 * evicts the block whose next use is furthest away (Belady: "A study of
 * replacement algorithms for a virtual-storage computer", IBM Systems Journal
 * 5(2), 1966), and does not take one in that is used later than all it has, so
 * that nothing that holds as many blocks has more hits.
 */
#ifndef KVS_TOOLS_CACHE_BOUNDS_H
#define KVS_TOOLS_CACHE_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

#include "tools/trace.h"

/**
 * struct kvs_block_stream - the blocks of a trace, in order
 * @id: numbers from 0 on, equal for equal blocks, in order of first use
 * @n: blocks in all
 * @unique: different ones
 */
struct kvs_block_stream {
	uint32_t *id;
	size_t n;
	uint32_t unique;
};

/**
 * kvs_block_stream_make() - number the blocks of a trace
 * @t: trace; at least one block is in it
 * @ret: for kvs_block_stream_fini()
 * Return: 0; -ENODATA no blocks; -E2BIG over 2^31; -ENOMEM.
 */
int kvs_block_stream_make(const struct kvs_trace *t,
			  struct kvs_block_stream *ret);
void kvs_block_stream_fini(struct kvs_block_stream *s);

/* Hits when every block is kept. */
uint64_t kvs_bound_ideal(const struct kvs_block_stream *s);

/**
 * kvs_bound_lru() - hits of a plain LRU
 * @s: stream
 * @capacity: blocks, > 0
 * @ret_hits: hits
 * Return: 0; -ENOMEM.
 */
int kvs_bound_lru(const struct kvs_block_stream *s, uint64_t capacity,
		  uint64_t *ret_hits);

/* Hits of a cache that knows the future; as kvs_bound_lru(). */
int kvs_bound_clairvoyant(const struct kvs_block_stream *s, uint64_t capacity,
			  uint64_t *ret_hits);

#endif /* KVS_TOOLS_CACHE_BOUNDS_H */
