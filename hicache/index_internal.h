/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: index, inside
 *
 * Four arrays of fixed size: entries (pages), units, the hash table of keys,
 * and a ghost for each tier. They refer to one another by 32-bit numbers. All
 * are mapped whole at create and their memory comes as it is touched; entries
 * and units are used from the front, so an index that is never full costs what
 * is in it, and its hash table.
 *
 *   index.c        units, pages, pins
 *   index_find.c   looking up, reading the books
 *   index_queue.c  policies: queues, ghosts, choosing victims
 *   index_table.c  arrays, hash table
 */
#ifndef KVS_HICACHE_INDEX_INTERNAL_H
#define KVS_HICACHE_INDEX_INTERNAL_H

#include "hicache/index.h"
#include "lib/assert.h"

#define KVS_INDEX_MAGIC 0x6b76696eu
#define KVS_IX_NONE UINT32_MAX

/* Where a page lies in one tier. */
struct kvs_ix_at {
	uint32_t unit; /* NONE: not there */
	uint32_t next; /* entry: next page of the unit */
	uint32_t place;
};

/* A page; a cache line. */
struct kvs_ix_entry {
	_Alignas(64) struct kvs_key key;
	struct kvs_ix_at at[KVS_TIER_MAX];
	uint32_t free; /* next free entry */
	uint8_t resident; /* bits of tiers, as the units' states say */
	uint8_t coming;
};
_Static_assert(sizeof(struct kvs_ix_entry) == 64, "more than a cache line");

enum kvs_ix_queue {
	KVS_IX_SMALL, /* S3-FIFO: seen once; the queue of LRU */
	KVS_IX_MAIN,
	KVS_IX_QUEUES,
	/* FILLING and later than RESIDENT; or found pinned by an eviction, and
	 * set aside until the last unpin */
	KVS_IX_ASIDE = KVS_IX_QUEUES,
};

struct kvs_ix_unit {
	uint64_t cookie;
	uint64_t bytes;
	uint32_t generation; /* of the slot, counts up when it is freed */
	union {
		uint32_t first; /* entry; FILLING, RESIDENT */
		uint32_t only_copy; /* pages; DOOMED, LEAVING */
	};
	uint32_t last; /* entry */
	uint32_t pages;
	uint32_t prev; /* in its queue: towards the head, where units come in */
	uint32_t next; /* towards the tail; or next free unit */
	uint32_t pins;
	uint8_t tier; /* TIER_MAX: the slot is free */
	uint8_t state;
	uint8_t used; /* S3-FIFO: times, up to 3 */
	uint8_t queue;
};
_Static_assert(sizeof(struct kvs_ix_unit) == 48, "grew");

struct kvs_ix_list {
	uint32_t head;
	uint32_t tail;
	uint64_t bytes;
	uint64_t units;
};

/* Of the hash table. The upper bits of the tag say where the search begins. */
struct kvs_ix_slot {
	uint32_t tag;
	uint32_t entry; /* and 1; 0: empty */
};

/* Of a ghost: a unit that was evicted. */
struct kvs_ix_shade {
	uint32_t tag; /* of its first page's key */
	uint32_t at; /* number of the eviction; 0: empty */
};

struct kvs_ix_tier {
	struct kvs_tier_limits limits;
	struct kvs_ix_list queue[KVS_IX_QUEUES];
	struct kvs_ix_shade *ghost; /* NULL with LRU */
	uint32_t evictions;
	struct kvs_tier_account a;
};

struct kvs_index {
	uint32_t magic;
	enum kvs_policy policy;
	uint32_t small_share; /* per mille */
	uint32_t promote;
	uint64_t secret;
	const struct kvs_index_ops *ops;
	void *arg;

	struct kvs_ix_entry *entry;
	uint32_t max_entries;
	uint32_t fresh_entry; /* from here on never used */
	uint32_t free_entry; /* list, NONE: empty */
	uint32_t n_entries;

	struct kvs_ix_unit *unit;
	uint32_t max_units;
	uint32_t fresh_unit;
	uint32_t free_unit;

	struct kvs_ix_slot *slot;
	unsigned int slot_bits; /* log2 of their number */
	unsigned int ghost_bits; /* log2 of the shades of a ghost */

	struct kvs_ix_tier tier[KVS_TIER_MAX];
	uint64_t lookups;
	uint64_t asked;
	uint64_t missed;
};

/* ---- index_table.c ---- */

int kvs_ix_map(struct kvs_index *ix);
void kvs_ix_unmap(struct kvs_index *ix);
/* Bytes in use, as far as they were ever touched. */
uint64_t kvs_ix_memory(const struct kvs_index *ix);

uint64_t kvs_ix_hash(const struct kvs_index *ix, const struct kvs_key *key);
/* Entry or NONE. */
uint32_t kvs_ix_find(const struct kvs_index *ix, const struct kvs_key *key);
/* A new entry, in no tier, for a key that is not there. NONE: all are used. */
uint32_t kvs_ix_entry_get(struct kvs_index *ix, const struct kvs_key *key);
/* Forgets an entry that is in no tier. */
void kvs_ix_entry_put(struct kvs_index *ix, uint32_t e);
static inline void kvs_ix_prefetch(const struct kvs_index *ix,
				   const struct kvs_key *key)
{
	uint64_t home = kvs_ix_hash(ix, key) >> (64 - ix->slot_bits);

	__builtin_prefetch(&ix->slot[home]);
}

/* A free unit, with a handle's generation. NONE: all are used. */
uint32_t kvs_ix_unit_get(struct kvs_index *ix);
void kvs_ix_unit_put(struct kvs_index *ix, uint32_t u);
static inline uint64_t kvs_ix_handle(const struct kvs_index *ix, uint32_t u)
{
	return (uint64_t)ix->unit[u].generation << 32 | (u + 1);
}
/* Unit of a handle, or NONE. */
uint32_t kvs_ix_unit_of(const struct kvs_index *ix, uint64_t handle);

/* ---- index_queue.c ---- */

void kvs_ix_queues_init(struct kvs_ix_tier *t);
/* A unit became RESIDENT; its first page names it. */
void kvs_ix_enqueue(struct kvs_index *ix, uint32_t u);
/* It is no longer; wherever it was. */
void kvs_ix_dequeue(struct kvs_index *ix, uint32_t u);
/* The last pin went off a RESIDENT unit. */
void kvs_ix_unpinned(struct kvs_index *ix, uint32_t u);
void kvs_ix_used(struct kvs_index *ix, uint32_t u);

/* ---- index.c ---- */

/* RESIDENT and not pinned: to LEAVING, and to the owner. */
void kvs_ix_leave(struct kvs_index *ix, uint32_t u, bool evicted);

static inline uint64_t kvs_ix_bytes(const struct kvs_ix_tier *t)
{
	return t->a.bytes[KVS_UNIT_FILLING] + t->a.bytes[KVS_UNIT_RESIDENT] +
	       t->a.bytes[KVS_UNIT_DOOMED] + t->a.bytes[KVS_UNIT_LEAVING];
}

#endif /* KVS_HICACHE_INDEX_INTERNAL_H */
