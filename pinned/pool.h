/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: pool
 *
 * Extents over one pinned region, with the books kept: every byte is in
 * exactly one state and the sum is the configured size, at any moment.
 *
 *   free + reserved + granted + staged + committing + held + quarantined
 *        + cached + retracted = configured
 *
 * A pool has one owner thread (its worker). Memory the CPU may not touch
 * (free, or owned by nobody we wait for) is poisoned for ASan.
 *
 *   who may write the bytes in each state
 *   FREE, RESERVED, HELD*, QUARANTINED*   nobody of ours (*a late writer may)
 *   GRANTED                               the room's writers
 *   STAGED, COMMITTING, CACHED, RETRACTED nobody; they are read
 *
 * A phantom pool (@base NULL) keeps the same books with no memory behind.
 */
#ifndef KVS_PINNED_POOL_H
#define KVS_PINNED_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/list.h"
#include "pinned/arena.h"
#include "pinned/drain.h"
#include "pinned/wait.h"

#define KVS_EXTENT_STATES(X)                                              \
	X(FREE, "free")                                                   \
	X(RESERVED, "reserved") /* allocated, no writer knows it yet */   \
	X(GRANTED, "granted") /* writers may reach it */                  \
	X(STAGED, "staged") /* complete, checked, waiting for its copy */ \
	X(COMMITTING, "committing") /* being copied to the device */      \
	X(HELD, "held") /* aborted, drain not over */                     \
	X(QUARANTINED, "quarantined") /* held, and cannot be revoked */   \
	X(CACHED, "cached") /* hicache entry */                           \
	X(RETRACTED, "retracted") /* a request that left VRAM */

#define KVS_ENUM_(n, s) KVS_EXTENT_##n,
enum kvs_extent_state { KVS_EXTENT_STATES(KVS_ENUM_) KVS_EXTENT_STATE_MAX };
#undef KVS_ENUM_
extern const char *const kvs_extent_state_name[KVS_EXTENT_STATE_MAX];

struct kvs_pool;

/**
 * struct kvs_extent - a contiguous piece of a pool
 * @off: bytes from the pool's start; multiple of KVS_ARENA_ALIGN
 * @len: usable bytes as asked for
 * @generation: of this hand-out; counts up, never repeats in its pool
 */
struct kvs_extent {
	uint32_t magic;
	enum kvs_extent_state state;
	uint64_t off;
	uint64_t len;
	uint64_t generation;
	struct kvs_block *block;
};

/* All extents of one room: allocated together, freed together. */
struct kvs_extents {
	struct kvs_pool *pool;
	struct kvs_extent *v; /* n of them; NULL when n is 0 */
	uint32_t n;
	uint64_t bytes; /* sum of the blocks' lengths (what the books count) */
};

struct kvs_pool_opts {
	const char *name; /* "receive", "offload"; static */
	int node; /* NUMA node, -1 unknown */
	void *base; /* mapping, or NULL: phantom */
	uint64_t size; /* bytes */
	uint64_t segment; /* see kvs_arena_create(); 0 = 1 GiB */
	const struct kvs_clock *clock;
	unsigned int overtake_max;
	uint64_t overtake_ns;
};

struct kvs_pool_account {
	uint64_t bytes[KVS_EXTENT_STATE_MAX];
	uint64_t configured;
	uint64_t high_water; /* most bytes not free at any time */
};

int kvs_pool_create(const struct kvs_pool_opts *o, struct kvs_pool **ret);
/* Accepts NULL. Asserts that all is free and nobody waits. */
void kvs_pool_destroy(struct kvs_pool *p);

/**
 * kvs_pool_can_fit() - could this ever be allocated, in an empty pool?
 * @p: pool
 * @lens: bytes of each
 * @n: how many
 * @ret_quarantine_blocks: may be NULL; set on every return
 *
 * O(n). Tries it on an empty arena where the sum alone does not tell.
 * Return: 0; -E2BIG never (a single length over the segment, or the sum over
 * the pool less what is quarantined, or the segments cannot be filled that
 * way; *@ret_quarantine_blocks says that only quarantined bytes are in the
 * way); -EINVAL zero lengths.
 */
int kvs_pool_can_fit(const struct kvs_pool *p, const uint64_t *lens, uint32_t n,
		     bool *ret_quarantine_blocks);

/**
 * kvs_pool_alloc() - all of @n extents or none, in state RESERVED
 * @p: pool
 * @lens: bytes of each
 * @n: how many, > 0
 * @ret: filled only on success; caller owns it until kvs_pool_release()
 *
 * Return: 0; -E2BIG never: as kvs_pool_can_fit(), or what is quarantined is
 * all that is out and still in the way; -EAGAIN not now; -ENOMEM; -EINVAL.
 */
int kvs_pool_alloc(struct kvs_pool *p, const uint64_t *lens, uint32_t n,
		   struct kvs_extents *ret);

/**
 * kvs_extents_set_state() - all extents of a room move to @to
 *
 * Asserts the edge is legal (table in pool.c) and that @to is not FREE. The
 * CPU may touch the bytes when GRANTED, STAGED, COMMITTING, CACHED or
 * RETRACTED; only the @len asked for, not the rest of the block.
 */
void kvs_extents_set_state(struct kvs_extents *x, enum kvs_extent_state to);

/**
 * kvs_extents_split() - take one extent out, into a set of its own
 * @x: loses extent @i, whose place the last one takes; emptied with the last
 * @i: which
 * @ret: filled only on success; state and generation stay
 *
 * Of a room that is over some may stay (hicache) and the others go.
 * Return: 0; -ENOMEM.
 */
int kvs_extents_split(struct kvs_extents *x, uint32_t i,
		      struct kvs_extents *ret);

/**
 * kvs_pool_release() - give the extents back
 * @x: emptied; harmless when it is empty
 * @d: the drain that protected them; asserts it is over (R1). There is no
 *     other way to a free list.
 *
 * Does not serve waiters: call kvs_waitq_run(kvs_pool_waitq(p)) after the
 * caller's own state is consistent.
 */
void kvs_pool_release(struct kvs_extents *x, const struct kvs_drain *d);

void *kvs_extent_addr(const struct kvs_extents *x, uint32_t i);
struct kvs_waitq *kvs_pool_waitq(struct kvs_pool *p);
void kvs_pool_account(const struct kvs_pool *p, struct kvs_pool_account *ret);
/* Asserts the identity above, O(1). Quiet points and tests. */
void kvs_pool_check(const struct kvs_pool *p);
const char *kvs_pool_name(const struct kvs_pool *p);
int kvs_pool_node(const struct kvs_pool *p);
void *kvs_pool_base(const struct kvs_pool *p);
uint64_t kvs_pool_size(const struct kvs_pool *p);
uint64_t kvs_pool_segment(const struct kvs_pool *p);
/* Bytes rounded as the books count them. */
uint64_t kvs_pool_round(uint64_t len);

#endif /* KVS_PINNED_POOL_H */
