/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: retraction
 *
 * A running request that leaves the device: its engine copies it to extents
 * of the node's offload pool, gives the device pages to others, and brings it
 * back later. It is decided at once: who cannot be given memory is told so
 * before a byte has moved, while its device pages are whole (-ENOSPC).
 *
 *  LEAVING -> SUMMING -> RETRACTED -> CHECKING -> RESUMING -> DONE
 *     |          |           |           |            |          |
 *     +----------+-----------+-----------+------------+----> DRAINING
 *                                              FREE <------------+
 *                                       QUARANTINED (-> FREE) <--+
 *
 * The copies are parties of the drain of its extents (R13): out, from the
 * moment the engine is told where to; back, from the word COMMITTING on. An
 * abort, a failed copy or the engine's death holds the extents until the
 * copy's end is told, or the process is proven gone.
 *
 * What came out is summed up (CRC-32C) and compared before it goes back. Both
 * are done in pieces, some each turn, those that come back first, so that no
 * receive waits for them.
 *
 * An *offload* is a request's blocks that are to be cached: it leaves in the
 * same way, and its bytes go on into the cache (pipeline/cache_fill.h). It
 * takes of the offload pool only what is above the reserve of retractions.
 *
 *  LEAVING -> KEEPING -> DONE
 *
 * A *pin* keeps blocks of the cache where they are until its engine has copied
 * them to its device (recall), gives them up, or cache.pin_timeout is over. It
 * has no extents of its own: its drain, whose party the copy is, has pins on
 * units of the cache behind it (pipeline/recall.c).
 *
 *  VERIFYING -> PINNED -> RESUMING -> DONE
 *
 * Places, states and ends are this file's; slots, words and packets of an
 * engine are those of rooms (attach_msg.h).
 */
#ifndef KVS_PIPELINE_RETRACT_H
#define KVS_PIPELINE_RETRACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/list.h"
#include "lib/u64map.h"
#include "pinned/drain.h"
#include "pinned/pool.h"
#include "pipeline/attach_msg.h"
#include "pipeline/cache_fill.h"
#include "pipeline/digest.h"
#include "pipeline/geometry.h"
#include "pipeline/stats.h"

struct kvs_worker;
struct kvs_worker_engine;

#define KVS_RETRACT_STATES(X)                                                    \
	/* holds: extents (granted), the engine's copy writes them. Moves on: \
	 * its copy event. Ends: failed copy, engine's abort or death. */  \
	X(LEAVING, "leaving")                                                    \
	/* holds: extents (staged), being summed up. Moves on: the sum. Ends: \
	 * engine's abort or death. */  \
	X(SUMMING, "summing")                                                    \
	/* holds: extents (staged), and places in the cache; an offload, being \
	 * copied there. Moves on: the last block. Ends: no memory for it, \
	 * engine's abort or death. */ \
	X(KEEPING, "keeping")                                                    \
	/* holds: pins on cached units, being compared with their sums. Moves \
	 * on: all agree. Ends: one does not, engine's abort or death. */  \
	X(VERIFYING, "verifying")                                                \
	/* holds: extents (retracted); the device pages are free. Moves on: \
	 * the engine's commit. Ends: engine's abort or death; the daemon's \
	 * end. */    \
	X(RETRACTED, "retracted")                                                \
	/* holds: extents (retracted), being compared with the sum. Moves on: \
	 * they agree. Ends: they do not, engine's abort or death. */  \
	X(CHECKING, "checking")                                                  \
	/* holds: pins on cached units. Moves on: the engine's commit. Ends: \
	 * cache.pin_timeout, engine's abort or death; the daemon's end. */   \
	X(PINNED, "pinned")                                                      \
	/* holds: extents (committing), or pins; the engine copies them back. \
	 * Moves on: its copy event. Ends: failed copy, engine's abort or \
	 * death. */  \
	X(RESUMING, "resuming")                                                  \
	/* holds: extents until the drain, armed here, is over. */               \
	X(DONE, "done")                                                          \
	/* ended; holds: extents (held) until the drain is over. */              \
	X(DRAINING, "draining")                                                  \
	/* ended, the copy cannot be stopped; a late proof frees it. */          \
	X(QUARANTINED, "quarantined")                                            \
	/* holds: nothing; deleted at the end of the worker's turn. */           \
	X(FREE, "free")

#define KVS_ENUM_(n, s) KVS_RETRACT_##n,
enum kvs_retract_state { KVS_RETRACT_STATES(KVS_ENUM_) KVS_RETRACT_STATE_MAX };
#undef KVS_ENUM_
extern const char *const kvs_retract_state_name[KVS_RETRACT_STATE_MAX];

/* An offload's blocks, less those that were cached when it was asked for. */
struct kvs_keep {
	uint32_t block_pages;
	uint32_t n;
	struct kvs_fill fill; /* KEEPING */
	struct kvs_key keys[];
};

/* What an engine asked for; checked by whoever builds it. */
struct kvs_retract_request {
	uint64_t id; /* the engine's, for listings */
	uint64_t generation;
	uint32_t engine;
	uint32_t slot;
	uint64_t tokens;
};

/* One request that left the device, or is about to. */
struct kvs_retraction {
	uint32_t magic;
	enum kvs_retract_state state;
	uint64_t id;
	uint64_t generation;
	struct kvs_worker *w;
	struct kvs_worker_engine *engine;
	struct kvs_list engine_node;
	uint32_t slot;
	struct kvs_geometry geo;
	struct kvs_extents ext;
	struct kvs_drain drain;
	struct kvs_party copy; /* out, then back */
	uint64_t since; /* ns, of the present state */

	struct kvs_list sum_node; /* SUMMING, CHECKING; KEEPING */
	uint32_t sum_extent; /* where the summing is */
	uint64_t sum_off;
	uint64_t sum_at; /* bytes before */
	struct kvs_digest digest;
	uint32_t sum; /* of what came out */

	struct kvs_keep *keep; /* of an offload; else NULL */
	struct kvs_prefix *prefix; /* of a pin; else NULL */
	struct kvs_timer limit; /* PINNED */

	enum kvs_room_cause cause; /* why it ended */
	int err;
	bool failed;
	struct kvs_list dead_node;
};

/* A worker's retractions. */
struct kvs_retracts {
	struct kvs_pool *pool; /* offload pool, the caller's; NULL: none */
	uint32_t pool_index; /* as engines know it */
	struct kvs_u64map map; /* by generation */
	struct kvs_list sums; /* those that come back first */
	struct kvs_list keeps; /* offloads on their way to the cache */
	struct kvs_list dead;
	uint64_t reserve; /* bytes, see kvs_retracts_engines() */
	uint64_t kept_bytes; /* of offloads */
};

void kvs_retracts_init(struct kvs_worker *w, uint64_t secret);
/* Asserts that none is left. */
void kvs_retracts_fini(struct kvs_worker *w);

/**
 * kvs_retracts_engines() - an engine came or went: set the reserve anew
 *
 * reserve.retraction, or, where that is 0, twice the largest request that an
 * attached engine may run; no more than the pool. Says so when the pool has
 * less.
 */
void kvs_retracts_engines(struct kvs_worker *w);

/* Always answers through to_engine(): PLACED, and the word ADMITTED; or
 * FAILED: -ENOSPC not now, -E2BIG never. */
void kvs_worker_retract(struct kvs_worker *w,
			const struct kvs_retract_request *q);

/* Always answers through to_engine(): CACHED with the blocks that need not be
 * copied, then as kvs_worker_retract(); DONE when that is all of them.
 * FAILED: -EOPNOTSUPP nothing of this engine is cached. */
void kvs_worker_offload(struct kvs_worker *w,
			const struct kvs_lookup_request *q);

/* Always answers through to_engine(): CACHED with the blocks that are pinned,
 * SEALING, then READY with their places. FAILED: -ENOENT nothing is cached of
 * it; -ENOSPC more than cache.pin_share would be in use; -EOPNOTSUPP. */
void kvs_worker_pin(struct kvs_worker *w, const struct kvs_lookup_request *q);
/* The blocks of a pin are what was kept. */
void kvs_pin_verified(struct kvs_retraction *t);
/* They are not, or cannot be had: it is as with rooms. */
int kvs_pin_fail(struct kvs_retraction *t, enum kvs_room_cause cause, int err,
		 const char *text);

/**
 * kvs_retract_packet() - a packet of an engine that is about no room
 *
 * RETRACTED (the copy out has ended), COMMIT, COMMITTED, ABORT, COPY_OVER.
 * Return: 0; -EPROTO it makes no sense now.
 */
int kvs_retract_packet(struct kvs_worker *w, uint32_t engine,
		       enum kvs_packet_type type,
		       const struct kvs_packet_room *p);
/* See kvs_worker_engine_lost(). */
void kvs_retracts_engine_lost(struct kvs_worker_engine *e, bool proof);
/* Sum up some bytes, delete those that are over. */
void kvs_retracts_turn(struct kvs_worker *w);
/* Is there work for a turn at once? */
bool kvs_retracts_busy(const struct kvs_worker *w);
/* Those that are not out yet stay on the device. */
void kvs_retracts_shutdown(struct kvs_worker *w);
/* See kvs_worker_abandon(). */
void kvs_retracts_abandon(struct kvs_worker *w);

/* Listings, as those of rooms: see kvs_worker_rooms(), kvs_worker_holds(). The
 * first @n of @v are filled already. Return: how many there are now. */
size_t kvs_retracts_list(const struct kvs_worker *w, struct kvs_room_info *v,
			 size_t n, size_t max);
size_t kvs_retracts_holds(const struct kvs_worker *w, struct kvs_hold_info *v,
			  size_t n, size_t max);
void kvs_retracts_snapshot(const struct kvs_worker *w,
			   struct kvs_worker_snapshot *ret);

#endif /* KVS_PIPELINE_RETRACT_H */
