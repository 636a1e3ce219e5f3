/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of the page index: plain lists, searched from end to end, that say
 * what each call must do. Its functions are named after what happens to a
 * unit; units are numbers.
 */
#ifndef KVS_TESTS_UNIT_HICACHE_MODEL_H
#define KVS_TESTS_UNIT_HICACHE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "hicache/index.h"
#include "lib/rng.h"

#define KEYS 48
#define UNITS 400
#define PAGES 6 /* of a unit */
#define BIG 4096 /* entries, so that no ghost forgets early */
#define QUOTA 1000
#define STEPS 6000

enum { SMALL, MAIN, ASIDE };

struct m_unit {
	bool there;
	uint64_t handle;
	uint64_t cookie;
	uint64_t bytes;
	unsigned int tier;
	unsigned int state;
	uint32_t pins;
	uint32_t n;
	int key[PAGES]; /* -1: forgotten */
	uint32_t place[PAGES];
	uint32_t pages; /* when it was taken out */
	uint32_t only_copy;
	unsigned int used;
	int queue;
};

struct m_list {
	int v[UNITS]; /* tail first */
	int n;
};

struct model {
	enum kvs_policy policy;
	uint32_t small_share; /* per mille */
	uint32_t promote;
	uint32_t max_entries;
	struct kvs_tier_limits limits[KVS_TIER_MAX];
	struct m_unit unit[UNITS];
	struct m_list q[KVS_TIER_MAX][2];
	/* evictions from the small queue: the key, or -1 when taken */
	int ghost[KVS_TIER_MAX][STEPS + 1];
	int n_ghost[KVS_TIER_MAX];
	struct kvs_tier_account a[KVS_TIER_MAX];
};

struct rig {
	struct kvs_rng rng;
	struct kvs_index *ix;
	struct model m;
	struct kvs_key key[KEYS];
	/* victims: those that the model expects and those that came */
	struct kvs_victim want[UNITS], got[UNITS];
	int n_want, n_got;
	bool gone_at_once;
	uint64_t stale[UNITS]; /* handles that are no more */
	int n_stale;
};

int m_pages(const struct m_unit *u);
/* Where a key is in a tier: unit, or -1. */
int m_where(const struct model *m, unsigned int tier, int key, int *at);
unsigned int m_mask(const struct model *m, int key, unsigned int state);
uint32_t m_entries(const struct model *m);
uint64_t m_bytes(const struct model *m, unsigned int tier, unsigned int state);
uint64_t m_staying(const struct model *m, unsigned int tier);
void m_gone(struct rig *r, int u);
void m_leave(struct rig *r, int u, bool evicted);
void m_enqueue(struct model *m, int u);
uint64_t m_evict_one(struct rig *r, unsigned int t);
void m_unpin(struct rig *r, int u);
void m_touch(struct model *m, int u);

#endif /* KVS_TESTS_UNIT_HICACHE_MODEL_H */
