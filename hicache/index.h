/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: index
 *
 * Which pages of KV are kept, and where. A *page* is named by its key and may
 * lie in several tiers at once. In a tier it lies in a *unit*: what that tier
 * takes and gives back as one, an extent of the host pool with the pages of
 * up to 2048 tokens in it, or a single record on disk. A page's place is the
 * unit's cookie (64 bits that mean something to the tier alone) and a 32-bit
 * place in the unit.
 *
 *                put, ...           pin / unpin / touch
 *   add --> FILLING --publish--> RESIDENT
 *              |                    | evicted, drop, last page forgotten
 *              |                    v
 *              +--drop--> [DOOMED while pinned] --> LEAVING --gone--> no more
 *
 *   FILLING   bytes are on their way. Its pages count as coming: found by
 *             lookups, never handed out. publish() when every one of them is
 *             there and checked, drop() when not.
 *   RESIDENT  its pages are hits. May be evicted while no pin is on it.
 *   DOOMED    nobody finds its pages any more, but somebody still reads them:
 *             the last unpin moves it on.
 *   LEAVING   handed to ops->victim: the owner of the memory runs its drain
 *             and says kvs_index_gone() when that is over. Until then its
 *             bytes count, and they may be written by whoever was late.
 *
 * The index is books only. It never reads, frees or reuses a byte, and knows
 * no clock: memory comes back through the drain and nothing else.
 *
 * Of a page: absent; loading (coming in some tier, resident in none);
 * resident; writing out (resident, and coming in a slower tier).
 *
 * Eviction, by tier. S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are
 * all you need for cache eviction", SOSP 2023): a small queue that new units
 * pass through once, a main queue for those used again there, and a ghost that
 * remembers as many keys as the main queue has room for; pages read once, as
 * those of a long prompt nobody continues, never push out what is read again
 * and again. The paper has 10 % for the small queue and two uses to be moved
 * on. Here it is half, and one use: KV is used again in the next turn of a
 * conversation, once, and after minutes, when a tenth of the memory has long
 * been overwritten. Or LRU. Of a prefix the last pages should go
 * first, as those before them are of use without them: publish and touch the
 * last unit of a prefix first.
 *
 * Memory is allocated at create for @max_entries pages and touched as they
 * come; nothing is allocated afterwards. Handles carry a generation: one kept
 * too long is -ESTALE, never somebody else's unit.
 *
 * One owner thread. Equal calls give equal results: no clock, no random
 * numbers.
 */
#ifndef KVS_HICACHE_INDEX_H
#define KVS_HICACHE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hicache/key.h"

/* X(NAME, string), fastest first */
#define KVS_TIERS(X)                                     \
	X(HOST, "host") /* pinned memory of this node */ \
	X(NVME, "nvme") /* this node's disk */           \
	X(SHARED, "shared") /* a directory of many nodes */

/* X(NAME, string): what an index evicts */
#define KVS_POLICIES(X)     \
	X(S3FIFO, "s3fifo") \
	X(LRU, "lru")

#define KVS_UNIT_STATES(X)      \
	X(FILLING, "filling")   \
	X(RESIDENT, "resident") \
	X(DOOMED, "doomed")     \
	X(LEAVING, "leaving")

#define KVS_PAGE_STATES(X)      \
	X(ABSENT, "absent")     \
	X(LOADING, "loading")   \
	X(RESIDENT, "resident") \
	X(WRITING_OUT, "writing_out")

#define KVS_ENUM_(n, s) KVS_TIER_##n,
enum kvs_tier { KVS_TIERS(KVS_ENUM_) KVS_TIER_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_POLICY_##n,
enum kvs_policy { KVS_POLICIES(KVS_ENUM_) KVS_POLICY_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_UNIT_##n,
enum kvs_unit_state { KVS_UNIT_STATES(KVS_ENUM_) KVS_UNIT_STATE_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_PAGE_##n,
enum kvs_page_state { KVS_PAGE_STATES(KVS_ENUM_) KVS_PAGE_STATE_MAX };
#undef KVS_ENUM_

extern const char *const kvs_tier_name[KVS_TIER_MAX];
extern const char *const kvs_policy_name[KVS_POLICY_MAX];
extern const char *const kvs_unit_state_name[KVS_UNIT_STATE_MAX];
extern const char *const kvs_page_state_name[KVS_PAGE_STATE_MAX];

#define KVS_INDEX_ENTRIES_MAX (1u << 30)
#define KVS_INDEX_PER_MILLE 1000u
#define KVS_INDEX_SMALL_SHARE 500u /* see DOC */
#define KVS_INDEX_PROMOTE 1u
#define KVS_INDEX_USED_MAX 3u /* uses that are counted */

struct kvs_index;

/**
 * struct kvs_victim - a unit that must go
 * @unit: its handle, for kvs_index_gone()
 * @cookie: the tier's
 * @bytes: of the unit
 * @tier: where
 * @pages: that lay in it when it was taken out
 * @only_copy: of these, how many are resident nowhere now
 * @evicted: chosen by the index; else it was dropped
 */
struct kvs_victim {
	uint64_t unit;
	uint64_t cookie;
	uint64_t bytes;
	enum kvs_tier tier;
	uint32_t pages;
	uint32_t only_copy;
	bool evicted;
};

/**
 * struct kvs_index_ops - what the index asks its owner to do
 * @victim: @v is LEAVING: nobody finds or pins it any more. Arm its drain, and
 *	    call kvs_index_gone() when that is over, which may be before this
 *	    returns. Called from inside publish, drop, unpin, forget, make_room,
 *	    evict and trim. May call kvs_index_gone() and what only reads.
 */
struct kvs_index_ops {
	void (*victim)(void *arg, const struct kvs_victim *v);
};

/**
 * struct kvs_tier_limits - how much a tier may hold
 * @quota: bytes; 0: the tier is not there
 * @high: per mille of @quota above which kvs_index_trim() begins
 * @low: per mille of @quota at which it ends; low <= high <= 1000
 */
struct kvs_tier_limits {
	uint64_t quota;
	uint32_t high;
	uint32_t low;
};

/**
 * struct kvs_index_opts - an index
 * @max_entries: pages it can know, in all tiers together; from 1 to
 *		 KVS_INDEX_ENTRIES_MAX
 * @policy: what is evicted
 * @small_share: S3-FIFO: per mille of the quota for the small queue, up to
 *		 1000; 0: KVS_INDEX_SMALL_SHARE
 * @promote: S3-FIFO: uses on the way through the small queue, 1 to 3, that
 *	     move a unit to the main one; 0: KVS_INDEX_PROMOTE
 * @tier: limits of each tier
 * @secret: any number; unpredictable where keys come from strangers' files
 * @ops: not copied
 * @arg: for @ops
 */
struct kvs_index_opts {
	uint32_t max_entries;
	enum kvs_policy policy;
	uint32_t small_share;
	uint32_t promote;
	struct kvs_tier_limits tier[KVS_TIER_MAX];
	uint64_t secret;
	const struct kvs_index_ops *ops;
	void *arg;
};

/**
 * struct kvs_found - a page, as it lies in one tier
 * @unit: handle
 * @cookie: the unit's
 * @place: the page's place in it
 * @tier: the fastest in which the page is resident, or coming if none is
 * @resident: bit of each tier that has it
 * @coming: bit of each tier it is on its way to
 */
struct kvs_found {
	uint64_t unit;
	uint64_t cookie;
	uint32_t place;
	enum kvs_tier tier;
	uint8_t resident;
	uint8_t coming;
};

/* A unit, read. */
struct kvs_unit_info {
	uint64_t cookie;
	uint64_t bytes;
	uint32_t pages;
	uint32_t pins;
	enum kvs_tier tier;
	enum kvs_unit_state state;
};

/* A page of a unit, read. */
struct kvs_unit_page {
	struct kvs_key key;
	uint32_t place;
	uint8_t resident;
	uint8_t coming;
};

/**
 * struct kvs_tier_account - books of a tier
 * @bytes: of the units in each state; the sum is never above @quota, unless
 *	   the quota was lowered
 * @quota: bytes
 * @pinned: bytes of RESIDENT and DOOMED units with a pin
 * @units: that are there, in any state
 * @pages: that are resident or coming
 * @hits: pages that lookups found here first
 * @added: units ever added
 * @evicted: units the index chose
 * @evicted_pages: pages that lay in these
 * @lost_pages: of these, resident nowhere else then
 * @dropped: units taken out by their owner, or failed while FILLING
 * @duplicates: pages not added because the tier has them
 * @again: units that came back while the ghost remembered them (S3-FIFO)
 */
struct kvs_tier_account {
	uint64_t bytes[KVS_UNIT_STATE_MAX];
	uint64_t quota;
	uint64_t pinned;
	uint64_t units;
	uint64_t pages;
	uint64_t hits;
	uint64_t added;
	uint64_t evicted;
	uint64_t evicted_pages;
	uint64_t lost_pages;
	uint64_t dropped;
	uint64_t duplicates;
	uint64_t again;
};

/**
 * struct kvs_index_account - books of the index
 * @entries: pages known
 * @max_entries: that can be known
 * @memory: bytes it uses when it is full
 * @lookups: calls
 * @asked: pages these asked for
 * @missed: of these, not resident, or behind one that is not
 */
struct kvs_index_account {
	uint64_t entries;
	uint64_t max_entries;
	uint64_t memory;
	uint64_t lookups;
	uint64_t asked;
	uint64_t missed;
	struct kvs_tier_account tier[KVS_TIER_MAX];
};

/**
 * kvs_index_create() - an empty index
 * Return: 0; -EINVAL options out of range; -ENOMEM.
 */
int kvs_index_create(const struct kvs_index_opts *o, struct kvs_index **ret);

/* Accepts NULL. Forgets everything, without a word to the owner: what is kept
 * on disk stays there, memory is the owner's to drain. */
void kvs_index_destroy(struct kvs_index *ix);

/**
 * kvs_index_set_limits() - other limits for a tier, at any time
 *
 * Evicts nothing by itself: kvs_index_trim().
 * Return: 0; -EINVAL low > high, or high above 1000.
 */
int kvs_index_set_limits(struct kvs_index *ix, enum kvs_tier tier,
			 const struct kvs_tier_limits *l);

/* ---- units ---- */

/**
 * kvs_index_add() - a new unit, FILLING
 * @ix: index
 * @tier: where
 * @bytes: what it takes of the tier, > 0
 * @cookie: the tier's
 * @ret_unit: handle, never 0
 *
 * Return: 0; -EINVAL @bytes is 0; -ENXIO the tier is not there; -ENOSPC over
 * the quota (kvs_index_make_room() first), or too many units.
 */
int kvs_index_add(struct kvs_index *ix, enum kvs_tier tier, uint64_t bytes,
		  uint64_t cookie, uint64_t *ret_unit);

/**
 * kvs_index_put() - a page into a FILLING unit
 * @ix: index
 * @unit: handle
 * @key: page
 * @place: where in the unit
 *
 * Return: 0; -EEXIST the tier has this page, resident or coming (counted, and
 * nothing changed: the bytes here are of no use); -ENOSPC as many pages as it
 * can know; -EINVAL not FILLING; -ESTALE no such unit any more.
 */
int kvs_index_put(struct kvs_index *ix, uint64_t unit,
		  const struct kvs_key *key, uint32_t place);

/**
 * kvs_index_set_cookie() - where a FILLING unit lies is known only now
 *
 * Return: 0; -EINVAL not FILLING; -ESTALE.
 */
int kvs_index_set_cookie(struct kvs_index *ix, uint64_t unit, uint64_t cookie);

/**
 * kvs_index_publish() - every page of a unit is there and checked
 *
 * FILLING -> RESIDENT. A unit without any page is of no use and LEAVING at
 * once.
 * Return: 0; -EINVAL not FILLING; -ESTALE.
 */
int kvs_index_publish(struct kvs_index *ix, uint64_t unit);

/**
 * kvs_index_drop() - take a unit out
 *
 * From now on nobody finds its pages here; it is LEAVING, or DOOMED until the
 * last pin is off. The end of a unit that could not be filled, whose bytes
 * are bad, or that the operator wants out.
 * Return: 0; -EALREADY DOOMED or LEAVING; -ESTALE.
 */
int kvs_index_drop(struct kvs_index *ix, uint64_t unit);

/**
 * kvs_index_gone() - the drain of a LEAVING unit is over
 *
 * Its bytes no longer count and the handle is stale.
 * Return: 0; -EBUSY not LEAVING; -ESTALE.
 */
int kvs_index_gone(struct kvs_index *ix, uint64_t unit);

/**
 * kvs_index_forget() - take one page out of a tier
 *
 * Its checksum is wrong, or somebody asked. A RESIDENT unit whose last page
 * this was is dropped.
 * Return: 0; -ENOENT the tier does not have it.
 */
int kvs_index_forget(struct kvs_index *ix, enum kvs_tier tier,
		     const struct kvs_key *key);

/* ---- finding ---- */

/**
 * kvs_index_lookup() - longest prefix that is there
 * @ix: index
 * @keys: pages of a prompt, in order
 * @n: how many
 * @v: @n of them; as many are written as *@ret_coming says
 * @ret_coming: pages from the start that are resident or coming; may be NULL
 *
 * Counts, and changes nothing: kvs_index_pin_prefix() is what keeps the pages
 * there and tells the policy that they are used.
 * Return: pages from the start that are resident in some tier.
 */
size_t kvs_index_lookup(struct kvs_index *ix, const struct kvs_key *keys,
			size_t n, struct kvs_found *v, size_t *ret_coming);

/**
 * kvs_index_find() - one page in one tier, not counted
 *
 * @ret_found: tier is @tier, whether resident or coming there.
 * Return: 0; -ENOENT.
 */
int kvs_index_find(const struct kvs_index *ix, enum kvs_tier tier,
		   const struct kvs_key *key, struct kvs_found *ret_found);

/* State of a page over all tiers. */
enum kvs_page_state kvs_index_page_state(const struct kvs_index *ix,
					 const struct kvs_key *key);

/* ---- using ---- */

/**
 * kvs_index_pin() - somebody reads the unit: it stays where it is
 *
 * Pins count. FILLING units may be pinned: they stay when published.
 * Return: 0; -EBUSY DOOMED or LEAVING; -ESTALE; -EOVERFLOW 2^32 pins.
 */
int kvs_index_pin(struct kvs_index *ix, uint64_t unit);

/**
 * kvs_index_unpin() - one reader has finished, with proof
 *
 * The last pin of a DOOMED unit makes it LEAVING.
 * Return: 0; -EINVAL no pin is on it; -ESTALE.
 */
int kvs_index_unpin(struct kvs_index *ix, uint64_t unit);

/* The unit was used, for the policy. Return: 0; -EINVAL not RESIDENT;
 * -ESTALE. */
int kvs_index_touch(struct kvs_index *ix, uint64_t unit);

/**
 * kvs_index_pin_prefix() - pin and touch what a lookup found
 * @ix: index
 * @v: of kvs_index_lookup()
 * @n: pages, resident ones
 *
 * One pin for each page, one touch for each run of pages of one unit, the last
 * first. All or nothing.
 * Return: 0; as kvs_index_pin().
 */
int kvs_index_pin_prefix(struct kvs_index *ix, const struct kvs_found *v,
			 size_t n);
/* Takes these pins off. Asserts that they are on. */
void kvs_index_unpin_prefix(struct kvs_index *ix, const struct kvs_found *v,
			    size_t n);

/* ---- making room ---- */

/**
 * kvs_index_make_room() - evict until @bytes more fit the quota
 *
 * Return: 0 they fit now; -EAGAIN they fit when what is LEAVING is gone;
 * -EBUSY the rest is pinned or FILLING; -E2BIG over the quota by themselves;
 * -ENXIO the tier is not there. What could go has gone, whatever it returns,
 * but for -E2BIG.
 */
int kvs_index_make_room(struct kvs_index *ix, enum kvs_tier tier,
			uint64_t bytes);

/* Evict @bytes or more if that much can go. Return: bytes made LEAVING. */
uint64_t kvs_index_evict(struct kvs_index *ix, enum kvs_tier tier,
			 uint64_t bytes);

/**
 * kvs_index_trim() - from above the high watermark down to the low one
 *
 * Return: bytes made LEAVING; 0 below the high watermark, or all pinned.
 */
uint64_t kvs_index_trim(struct kvs_index *ix, enum kvs_tier tier);

/**
 * kvs_index_next_cold() - RESIDENT units, those likely to go first first
 * @ix: index
 * @tier: where
 * @unit: 0 at first; moved on
 *
 * For writing out what will soon be evicted. Changes nothing; pins are not
 * looked at.
 * Return: 0; -ENOENT the end; -ESTALE *@unit has gone, or is no longer
 * RESIDENT: begin again.
 */
int kvs_index_next_cold(const struct kvs_index *ix, enum kvs_tier tier,
			uint64_t *unit);

/* ---- reading ---- */

/* Return: 0; -ESTALE. */
int kvs_index_unit(const struct kvs_index *ix, uint64_t unit,
		   struct kvs_unit_info *ret_info);

/**
 * kvs_index_pages() - pages of a FILLING or RESIDENT unit
 * @ix: index
 * @unit: handle
 * @v: written
 * @max: room in @v
 *
 * Return: pages of the unit (more than @max: call again with more room);
 * -ESTALE.
 */
int64_t kvs_index_pages(const struct kvs_index *ix, uint64_t unit,
			struct kvs_unit_page *v, size_t max);

void kvs_index_account(const struct kvs_index *ix,
		       struct kvs_index_account *ret);

/* Asserts that all books agree; O(everything). For tests. */
void kvs_index_check(const struct kvs_index *ix);

#endif /* KVS_HICACHE_INDEX_H */
