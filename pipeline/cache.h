/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: host cache
 *
 * A worker's memory of the prefixes of finished requests: the host tier of
 * hicache. No bytes are copied to fill it. The engine gives a hash for each
 * *block* of a room's tokens (one or more pages, the same number for all rooms
 * of an engine). When the room is DONE and its drain over, each of its extents
 * with whole blocks in it becomes a *unit* of the index (state cached), and
 * what has none, or holds what is there already, is free as ever.
 *
 *   room DONE --donated--> summed up --published--> found, pinned, read
 *                              |                        |
 *                              +--- memory is wanted ---+--> drain --> free
 *
 * What an engine offloads comes another way, see cache_fill.h.
 *
 * Never from a room that failed or is held (R10). A unit is published when
 * each of its blocks has been summed up (CRC-32C); a block that is found is
 * compared with that before the room that wants it is READY.
 *
 * A room that is admitted with hashes takes what it can from here: a *prefix*
 * of its tokens. The rest is received as if it were a room of its own, and it
 * is READY when both are there: one word for both (R12). Units that a room
 * uses are pinned until the room's own drain is over, so an engine's copy out
 * of them is a party of that (R13). A room that must wait for memory takes
 * nothing: what waits owns nothing.
 *
 * What is cached and not pinned goes before anybody waits for memory.
 *
 * With a disk tier (cache_disk.h) a block may lie there alone. A room that
 * wants it has it read into a unit of its own kind, which it pins, and which is
 * published when all of it is there: whoever else wants it meanwhile waits for
 * the same unit.
 *
 * Blocks are named by hash, layout and the engine's *space*: a text that says
 * model, weights, tensor-parallel rank and whatever else must agree. Engines
 * without one keep nothing; nor do those whose layout has fixed-count buffers,
 * as a state is that of its request's end alone.
 */
#ifndef KVS_PIPELINE_CACHE_H
#define KVS_PIPELINE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "hicache/index.h"
#include "lib/list.h"
#include "pinned/drain.h"
#include "pinned/pool.h"
#include "pipeline/attach_msg.h"
#include "pipeline/cache_disk.h"
#include "pipeline/cache_shared.h"
#include "pipeline/stats.h"

struct kvs_layout;
struct kvs_room;
struct kvs_retraction;
struct kvs_room_request;
struct kvs_worker;
struct kvs_worker_engine;

/* How an engine's rooms are kept. */
struct kvs_cache_engine {
	bool on;
	uint32_t block_pages;
	struct kvs_key_space space;
};

/* Blocks that an engine asks about; checked by whoever builds it. */
struct kvs_lookup_request {
	uint64_t id; /* the engine's, for listings */
	uint64_t generation;
	uint32_t engine;
	uint32_t slot;
	enum kvs_lookup what;
	uint32_t n_hashes;
	const uint8_t (*hashes)[16];
};

/* A buffer's run in a unit. */
struct kvs_cached_run {
	uint64_t off; /* bytes from the extent's start */
	uint64_t item_len; /* bytes of a page */
};

/* An extent with blocks in it: a unit of the index, whose cookie it is. */
struct kvs_cached {
	uint32_t magic;
	struct kvs_worker *w;
	struct kvs_list node; /* on cache->units */
	struct kvs_list sum_node; /* on cache->sums until published */
	struct kvs_list read_node; /* on cache->reads likewise */
	struct kvs_list gets; /* reads from disk, into it */
	struct kvs_extents ext; /* one */
	struct kvs_drain drain;
	uint64_t unit;
	bool written; /* the disk was offered it */
	uint32_t reading; /* blocks, until published */
	int err; /* of the first that could not be read */
	uint32_t pages; /* of the extent, as it was received */
	uint32_t block_pages;
	uint32_t n_blocks;
	uint32_t n_runs;
	struct kvs_cached_run *runs;
	uint32_t *crc; /* of each block */
};

/* Blocks being summed up, one run at a time. */
struct kvs_cache_sum {
	uint32_t block;
	uint32_t run;
	uint32_t crc; /* raw, of the runs before */
};

/* What a room takes from the cache, or an engine without a room. */
struct kvs_prefix {
	struct kvs_room *room;
	struct kvs_retraction *pin; /* in place of a room */
	/* on cache->checks until verified, or on cache->awaits while a unit
	 * of it is being filled */
	struct kvs_list node;
	bool verified;
	bool pinned; /* always */
	struct kvs_cache_sum sum;
	uint32_t tokens;
	uint32_t n_segs;
	uint32_t n; /* blocks */
	struct kvs_found v[];
};

struct kvs_cache {
	struct kvs_index *ix; /* NULL: no engine keeps anything */
	struct kvs_list units;
	struct kvs_list sums;
	struct kvs_list reads; /* units that are filled from disk */
	struct kvs_list checks; /* prefixes; before sums */
	struct kvs_list awaits; /* prefixes */
	struct kvs_cache_sum sum; /* of the first of sums */
	struct kvs_cache_disk disk;
	struct kvs_cache_shared shared;
	struct kvs_cache_stats stats;
};

void kvs_cache_init(struct kvs_worker *w);
/* Frees all; no room is left. */
void kvs_cache_fini(struct kvs_worker *w);
/**
 * kvs_cache_engine() - an engine's rooms may be kept
 * @space: its text; not empty
 * @block: tokens of a block; 0: of a page
 *
 * Says in the log why they are not, if so.
 */
void kvs_cache_engine(struct kvs_worker *w, struct kvs_worker_engine *e,
		      const char *space, uint32_t block);

/**
 * kvs_cache_prefix() - what of a request is here
 * @w: worker
 * @e: its engine
 * @q: request, with hashes
 * @ret: pinned; NULL when there is nothing
 *
 * At least one token is left to be received.
 */
void kvs_cache_prefix(struct kvs_worker *w, const struct kvs_worker_engine *e,
		      const struct kvs_room_request *q,
		      struct kvs_prefix **ret);
/* Blocks from the first on, as many as are here: pinned; NULL: none, or no
 * memory. */
struct kvs_prefix *kvs_prefix_pin(struct kvs_worker *w,
				  const struct kvs_worker_engine *e,
				  const uint8_t (*hashes)[16], uint32_t n);
/* Compare it; kvs_pin_verified() or kvs_pin_fail() follows, in a turn. */
void kvs_cache_check(struct kvs_worker *w, struct kvs_prefix *p,
		     struct kvs_retraction *t);
/* A room has it, or gives it back (which NULL is fine for). */
void kvs_cache_take(struct kvs_room *r, struct kvs_prefix *p);
void kvs_cache_put(struct kvs_worker *w, struct kvs_prefix *p);
/* Fills n_segs places of blocks that lie together. */
void kvs_cache_segs(const struct kvs_prefix *p, struct kvs_packet_seg *v);
/* Keep the hashes of what the room will have received: 0 or -ENOMEM. */
int kvs_cache_name(struct kvs_room *r, const struct kvs_worker_engine *e,
		   const struct kvs_room_request *q);
/* The room is DONE and its drain over: keep of its extents what is of use. */
void kvs_cache_donate(struct kvs_room *r);

/* kvs_pool_alloc() from the receive pool, with what is cached in its way. */
int kvs_cache_alloc(struct kvs_worker *w, const uint64_t *lens, uint32_t n,
		    struct kvs_extents *ret);

/* Blocks from the start that are here, in a row; with @drop each block of
 * them is forgotten. */
uint32_t kvs_cache_find(struct kvs_worker *w, const struct kvs_worker_engine *e,
			const uint8_t (*hashes)[16], uint32_t n, bool drop);
/* CACHED, and the word. */
void kvs_worker_tell_cached(struct kvs_worker *w,
			    const struct kvs_lookup_request *q,
			    enum kvs_status st, uint32_t blocks);
/* Let all go that is not in use. Return: bytes. */
uint64_t kvs_cache_flush(struct kvs_worker *w);

/* Compare and sum up some bytes. */
void kvs_cache_turn(struct kvs_worker *w);
bool kvs_cache_busy(const struct kvs_worker *w);
void kvs_cache_stats(const struct kvs_worker *w, struct kvs_cache_stats *ret);

#endif /* KVS_PIPELINE_CACHE_H */
