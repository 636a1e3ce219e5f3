/* SPDX-License-Identifier: Apache-2.0 */
/* What cache.c, which has rooms' extents, shares with those that fill units of
 * the host cache otherwise, and with cache_disk.c, which writes them out. */
#ifndef KVS_PIPELINE_CACHE_INTERNAL_H
#define KVS_PIPELINE_CACHE_INTERNAL_H

#include "pipeline/cache.h"
#include "pipeline/geometry.h"

#define KVS_CACHE_TURN (8u << 20) /* bytes summed up, or written, a turn */

/* Make the index, if there is none yet and something is to be kept: 0 or
 * -ENOMEM. */
int kvs_cache_open(struct kvs_worker *w);
/**
 * kvs_cached_new() - a unit without memory yet, in no list or index
 * @w: worker
 * @generation: of whom it comes from
 * @g: how that lies
 * @e: which extent of it
 * @block_pages: of a block
 * @n_blocks: in it
 * @ret: kvs_cached_free() while its drain has nobody
 *
 * Its drain gives the memory back and the unit with it; where @ret->unit is 0
 * the index is not told.
 * Return: 0 or -ENOMEM.
 */
int kvs_cached_new(struct kvs_worker *w, uint64_t generation,
		   const struct kvs_geometry *g, uint32_t e,
		   uint32_t block_pages, uint32_t n_blocks,
		   struct kvs_cached **ret);
void kvs_cached_free(struct kvs_cached *c);
/* Its blocks into its unit, n_blocks of @keys; what is there already counts as
 * a duplicate. */
void kvs_cached_put_blocks(struct kvs_cached *c, const struct kvs_key *keys);
/* One run of a block; its bytes. @s->block is moved on after the last, and
 * *@ret_crc is the block's then. */
uint64_t kvs_cached_sum_run(const struct kvs_cached *c, uint32_t block,
			    struct kvs_cache_sum *s, uint32_t *ret_crc);
/* Blocks' names; NULL: no memory. To be freed. */
struct kvs_key *kvs_cache_keys(const struct kvs_worker_engine *e,
			       const uint8_t (*hashes)[16], uint32_t n);
/* Of @keys, how many from the first on are here or coming. */
uint32_t kvs_cache_known(const struct kvs_worker *w, const struct kvs_key *keys,
			 uint32_t n);
struct kvs_cached *kvs_cached_of(const struct kvs_found *f);
/* What is read into it from disk is there: publish it. It may be gone on
 * return. */
void kvs_cached_filled(struct kvs_cached *c);
/* It will never be: the rooms that wait for it fail, and it goes. */
void kvs_cached_lost(struct kvs_cached *c, int err);
/* It is being freed: nobody tells of reads into it any more. */
void kvs_cache_recall_forget(struct kvs_cached *c);
/* Bytes of a block. */
uint64_t kvs_cached_block_bytes(const struct kvs_cached *c);
/* Where block @b lies: n_runs pieces. */
void kvs_cached_iov(const struct kvs_cached *c, uint32_t b, struct iovec *iov);

/* Whoever wants it does not get it: it may be gone on return. */
void kvs_prefix_fail(struct kvs_prefix *p, enum kvs_room_cause cause, int err,
		     const char *text);

#endif /* KVS_PIPELINE_CACHE_INTERNAL_H */
