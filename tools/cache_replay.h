/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: cache replay
 *
 * Drives hicache's index by the blocks of a trace, one page of one unit each:
 * what is there is used, what is not is added at once, in the order of the
 * trace. So with room for everything a block hits if it came before, whatever
 * the policy.
 *
 * With a second tier what the first one evicts is written to it unless it has
 * it, and a hit there is recalled into the first one and stays.
 */
#ifndef KVS_TOOLS_CACHE_REPLAY_H
#define KVS_TOOLS_CACHE_REPLAY_H

#include <stdint.h>

#include "hicache/index.h"
#include "tools/cache_bounds.h"
#include "tools/trace.h"

/* Tokens of a request's prefix that are cached when it comes, by the tier that
 * has them; no more than it has. */
struct kvs_replay_hit {
	uint32_t tokens[KVS_TIER_MAX];
};

/**
 * struct kvs_replay_opts - a cache
 * @blocks: capacity of each tier, in blocks; at least 1 in KVS_TIER_HOST,
 *	    0: the tier is not there
 * @block_tokens: tokens of a block
 * @policy: what is evicted
 * @small_share: as of struct kvs_index_opts
 * @promote: likewise
 * @hit: written, of each request of the trace; or NULL
 */
struct kvs_replay_opts {
	uint64_t blocks[KVS_TIER_MAX];
	uint32_t block_tokens;
	enum kvs_policy policy;
	uint32_t small_share;
	uint32_t promote;
	struct kvs_replay_hit *hit;
};

/**
 * struct kvs_replay_result - what became of it
 * @hits: blocks that were there when their turn came
 * @tier_hits: of these, in which tier
 * @prefix_hits: blocks of the longest prefix that was there when the request
 *		 came: prefill for these need not be done, or sent
 * @prefix_tokens: tokens of these
 * @written: blocks written to the second tier
 * @evicted: blocks that are gone from all tiers
 * @memory: bytes of the index
 */
struct kvs_replay_result {
	uint64_t hits;
	uint64_t tier_hits[KVS_TIER_MAX];
	uint64_t prefix_hits;
	uint64_t prefix_tokens;
	uint64_t written;
	uint64_t evicted;
	uint64_t memory;
};

/**
 * kvs_replay() - a trace through the index
 * @t: trace
 * @s: its blocks
 * @o: cache
 * @ret: result
 * Return: 0; -EINVAL options; -ENOSYS no libsodium; -ENOMEM.
 */
int kvs_replay(const struct kvs_trace *t, const struct kvs_block_stream *s,
	       const struct kvs_replay_opts *o, struct kvs_replay_result *ret);

#endif /* KVS_TOOLS_CACHE_REPLAY_H */
