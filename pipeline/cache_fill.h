/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: filling the host cache
 *
 * Pages that no room received, but a device had: they lie in extents of the
 * offload pool, which every engine may write, and go from there to extents of
 * the receive pool, which no engine may. Each block is summed up where it will
 * be read from, and a unit is in the index, and so can be found, when all of
 * its blocks have been (R13).
 *
 *   begin: memory for all, or -ENOSPC
 *   some:  some bytes a turn, the last extent first, as the last pages of a
 *          prefix should go first
 *   end:   what has not been published is given back
 */
#ifndef KVS_PIPELINE_CACHE_FILL_H
#define KVS_PIPELINE_CACHE_FILL_H

#include <stdbool.h>
#include <stdint.h>

#include "pipeline/cache.h"
#include "pipeline/geometry.h"

/* Blocks on their way into the cache. Zero: none, and over. */
struct kvs_fill {
	struct kvs_worker *w;
	const struct kvs_geometry *geo; /* of what they come from */
	const struct kvs_key *keys; /* n of them */
	uint32_t n;
	uint32_t block_pages;
	struct kvs_cached **v; /* of each extent; NULL: is here already */
	uint32_t left; /* extents; the next one is left - 1 */
	struct kvs_cache_sum sum; /* in it */
};

/**
 * kvs_fill_begin() - take memory for what is not cached yet
 * @f: zero; written
 * @w: worker
 * @generation: of whom they come from
 * @g: how they lie, whole blocks and nothing else; must outlive @f
 * @block_pages: of a block; divides an extent
 * @keys: of each block; must outlive @f
 * @n: blocks
 *
 * Memory that rooms wait for is not taken.
 * Return: 0; -ENOSPC none now, or not so much ever; -ENOMEM. Nothing is taken
 * then.
 */
int kvs_fill_begin(struct kvs_fill *f, struct kvs_worker *w,
		   uint64_t generation, const struct kvs_geometry *g,
		   uint32_t block_pages, const struct kvs_key *keys,
		   uint32_t n);
/* One run of a block out of @src, whose extents are those of the geometry.
 * Return: bytes. */
uint64_t kvs_fill_some(struct kvs_fill *f, const struct kvs_extents *src);
bool kvs_fill_over(const struct kvs_fill *f);
/* At any time; idempotent. */
void kvs_fill_end(struct kvs_fill *f);

#endif /* KVS_PIPELINE_CACHE_FILL_H */
