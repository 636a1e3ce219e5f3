/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arrays of an index, and its hash table: open addressing, linear probing,
 * deletion by shifting back. A slot holds 32 bits of the hash, whose upper
 * ones are where the search begins, so neither probing nor shifting looks at
 * an entry that is not likely to be the one.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "hicache/index_internal.h"
#include "lib/rng.h"

#define SLOT_BITS_MIN 6u
#define GHOST_BITS_MIN 6u

static void *map(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* Every look-up is a jump to anywhere; without them it still works. */
	(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

static uint64_t entry_bytes(const struct kvs_index *ix)
{
	return (uint64_t)ix->max_entries * sizeof(*ix->entry);
}

static uint64_t unit_bytes(const struct kvs_index *ix)
{
	return (uint64_t)ix->max_units * sizeof(*ix->unit);
}

static uint64_t slot_bytes(const struct kvs_index *ix)
{
	return sizeof(*ix->slot) << ix->slot_bits;
}

static uint64_t ghost_bytes(const struct kvs_index *ix)
{
	return sizeof(*ix->tier[0].ghost) << ix->ghost_bits;
}

int kvs_ix_map(struct kvs_index *ix)
{
	/* Three quarters full at most. */
	ix->slot_bits = SLOT_BITS_MIN;
	while ((1ULL << ix->slot_bits) * 3 / 4 < ix->max_entries)
		ix->slot_bits++;
	ix->ghost_bits = GHOST_BITS_MIN;
	while (1ULL << ix->ghost_bits < ix->max_entries)
		ix->ghost_bits++;
	ix->entry = map(entry_bytes(ix));
	ix->unit = map(unit_bytes(ix));
	ix->slot = map(slot_bytes(ix));
	if (!ix->entry || !ix->unit || !ix->slot)
		return -ENOMEM;
	if (ix->policy != KVS_POLICY_S3FIFO)
		return 0;
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		ix->tier[t].ghost = map(ghost_bytes(ix));
		if (!ix->tier[t].ghost)
			return -ENOMEM;
	}
	return 0;
}

void kvs_ix_unmap(struct kvs_index *ix)
{
	if (ix->entry)
		munmap(ix->entry, entry_bytes(ix));
	if (ix->unit)
		munmap(ix->unit, unit_bytes(ix));
	if (ix->slot)
		munmap(ix->slot, slot_bytes(ix));
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++)
		if (ix->tier[t].ghost)
			munmap(ix->tier[t].ghost, ghost_bytes(ix));
}

uint64_t kvs_ix_memory(const struct kvs_index *ix)
{
	uint64_t n = sizeof(*ix) + slot_bytes(ix);

	n += (uint64_t)ix->fresh_entry * sizeof(*ix->entry);
	n += (uint64_t)ix->fresh_unit * sizeof(*ix->unit);
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++)
		if (ix->tier[t].ghost && ix->tier[t].evictions)
			n += ghost_bytes(ix);
	return n;
}

/* ---- keys ---- */

uint64_t kvs_ix_hash(const struct kvs_index *ix, const struct kvs_key *key)
{
	uint64_t w[2];

	/* Keys are hashes, but those of a stranger's file may be anything. */
	memcpy(w, key->b, sizeof(w));
	return kvs_mix64(w[0] ^ kvs_mix64(w[1] + ix->secret));
}

static uint64_t slot_home(const struct kvs_index *ix, uint32_t tag)
{
	return tag >> (32 - ix->slot_bits);
}

static uint64_t slot_mask(const struct kvs_index *ix)
{
	return (1ULL << ix->slot_bits) - 1;
}

uint32_t kvs_ix_find(const struct kvs_index *ix, const struct kvs_key *key)
{
	uint32_t tag = (uint32_t)(kvs_ix_hash(ix, key) >> 32);
	uint64_t i = slot_home(ix, tag);

	for (; ix->slot[i].entry; i = (i + 1) & slot_mask(ix)) {
		uint32_t e = ix->slot[i].entry - 1;

		if (ix->slot[i].tag == tag &&
		    kvs_key_equal(&ix->entry[e].key, key))
			return e;
	}
	return KVS_IX_NONE;
}

static void slot_add(struct kvs_index *ix, const struct kvs_key *key,
		     uint32_t e)
{
	uint32_t tag = (uint32_t)(kvs_ix_hash(ix, key) >> 32);
	uint64_t i = slot_home(ix, tag);

	while (ix->slot[i].entry)
		i = (i + 1) & slot_mask(ix);
	ix->slot[i].tag = tag;
	ix->slot[i].entry = e + 1;
}

static void slot_del(struct kvs_index *ix, const struct kvs_key *key,
		     uint32_t e)
{
	uint32_t tag = (uint32_t)(kvs_ix_hash(ix, key) >> 32);
	uint64_t mask = slot_mask(ix);
	uint64_t hole = slot_home(ix, tag), i;

	while (ix->slot[hole].entry != e + 1) {
		KVS_ASSERT(ix->slot[hole].entry);
		hole = (hole + 1) & mask;
	}
	/* Shift back every one that was pushed over the hole. */
	for (i = (hole + 1) & mask; ix->slot[i].entry; i = (i + 1) & mask) {
		uint64_t home = slot_home(ix, ix->slot[i].tag);

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			ix->slot[hole] = ix->slot[i];
			hole = i;
		}
	}
	ix->slot[hole].entry = 0;
}

/* ---- entries ---- */

uint32_t kvs_ix_entry_get(struct kvs_index *ix, const struct kvs_key *key)
{
	uint32_t e = ix->free_entry;

	if (e != KVS_IX_NONE)
		ix->free_entry = ix->entry[e].free;
	else if (ix->fresh_entry < ix->max_entries)
		e = ix->fresh_entry++;
	else
		return KVS_IX_NONE;
	ix->entry[e] = (struct kvs_ix_entry){ .key = *key };
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++)
		ix->entry[e].at[t].unit = KVS_IX_NONE;
	slot_add(ix, key, e);
	ix->n_entries++;
	return e;
}

void kvs_ix_entry_put(struct kvs_index *ix, uint32_t e)
{
	KVS_ASSERT(!ix->entry[e].resident && !ix->entry[e].coming);
	slot_del(ix, &ix->entry[e].key, e);
	ix->entry[e].free = ix->free_entry;
	ix->free_entry = e;
	ix->n_entries--;
}

/* ---- units ---- */

uint32_t kvs_ix_unit_get(struct kvs_index *ix)
{
	uint32_t u = ix->free_unit, generation;

	if (u != KVS_IX_NONE)
		ix->free_unit = ix->unit[u].next;
	else if (ix->fresh_unit < ix->max_units)
		u = ix->fresh_unit++;
	else
		return KVS_IX_NONE;
	generation = ix->unit[u].generation;
	ix->unit[u] = (struct kvs_ix_unit){
		.generation = generation,
		.first = KVS_IX_NONE,
		.last = KVS_IX_NONE,
		.queue = KVS_IX_ASIDE,
	};
	return u;
}

void kvs_ix_unit_put(struct kvs_index *ix, uint32_t u)
{
	ix->unit[u].generation++;
	ix->unit[u].tier = KVS_TIER_MAX;
	ix->unit[u].next = ix->free_unit;
	ix->free_unit = u;
}

uint32_t kvs_ix_unit_of(const struct kvs_index *ix, uint64_t handle)
{
	uint32_t u = (uint32_t)handle - 1;

	/* 0 wraps to a number that no index has */
	if (u >= ix->fresh_unit || ix->unit[u].tier == KVS_TIER_MAX ||
	    ix->unit[u].generation != handle >> 32)
		return KVS_IX_NONE;
	return u;
}
