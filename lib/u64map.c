/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/u64map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rng.h"

#define KVS_U64MAP_MIN 64
/*
 * Four keys in a row share a cache line. Ids that are counted up, and looked
 * up in about that order, then cost one miss where the table is larger than
 * the caches, instead of four. Which line is still a secret.
 */
#define KVS_U64MAP_LINE 4

static size_t u64map_home(const struct kvs_u64map *m, uint64_t key)
{
	uint64_t line = kvs_mix64((key / KVS_U64MAP_LINE) ^ m->secret);

	return (line * KVS_U64MAP_LINE + key % KVS_U64MAP_LINE) & (m->cap - 1);
}

void kvs_u64map_init(struct kvs_u64map *m, uint64_t secret)
{
	m->slot = NULL;
	m->n = 0;
	m->cap = 0;
	m->secret = secret;
}

void kvs_u64map_fini(struct kvs_u64map *m)
{
	free(m->slot);
	kvs_u64map_init(m, 0);
}

static void u64map_put(struct kvs_u64map *m, uint64_t key, void *value)
{
	size_t i = u64map_home(m, key);

	while (m->slot[i].key)
		i = (i + 1) & (m->cap - 1);
	m->slot[i].key = key;
	m->slot[i].value = value;
}

static int u64map_grow(struct kvs_u64map *m)
{
	struct kvs_u64map_slot *old = m->slot;
	size_t old_cap = m->cap;
	size_t cap = old_cap ? old_cap * 2 : KVS_U64MAP_MIN;
	struct kvs_u64map_slot *slot;

	if (cap > SIZE_MAX / sizeof(*slot))
		return -ENOMEM;
	slot = aligned_alloc(KVS_U64MAP_LINE * sizeof(*slot),
			     cap * sizeof(*slot));
	if (!slot)
		return -ENOMEM;
	memset(slot, 0, cap * sizeof(*slot));
	m->slot = slot;
	m->cap = cap;
	for (size_t i = 0; i < old_cap; i++)
		if (old[i].key)
			u64map_put(m, old[i].key, old[i].value);
	free(old);
	return 0;
}

static struct kvs_u64map_slot *u64map_find(const struct kvs_u64map *m,
					   uint64_t key)
{
	size_t i;

	if (!m->cap || !key)
		return NULL;
	for (i = u64map_home(m, key); m->slot[i].key;
	     i = (i + 1) & (m->cap - 1))
		if (m->slot[i].key == key)
			return &m->slot[i];
	return NULL;
}

int kvs_u64map_add(struct kvs_u64map *m, uint64_t key, void *value)
{
	int r;

	if (!key)
		return -EINVAL;
	if (u64map_find(m, key))
		return -EEXIST;
	/* Half full at most: lines that are full make the runs longer. */
	if ((m->n + 1) * 2 > m->cap) {
		r = u64map_grow(m);
		if (r)
			return r;
	}
	u64map_put(m, key, value);
	m->n++;
	return 0;
}

void *kvs_u64map_get(const struct kvs_u64map *m, uint64_t key)
{
	const struct kvs_u64map_slot *s = u64map_find(m, key);

	return s ? s->value : NULL;
}

void *kvs_u64map_del(struct kvs_u64map *m, uint64_t key)
{
	struct kvs_u64map_slot *s = u64map_find(m, key);
	size_t mask = m->cap - 1;
	size_t hole, i;
	void *value;

	if (!s)
		return NULL;
	value = s->value;
	hole = (size_t)(s - m->slot);
	/* Shift back every entry that probed over the hole. */
	for (i = (hole + 1) & mask; m->slot[i].key; i = (i + 1) & mask) {
		size_t home = u64map_home(m, m->slot[i].key);

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			m->slot[hole] = m->slot[i];
			hole = i;
		}
	}
	m->slot[hole].key = 0;
	m->slot[hole].value = NULL;
	m->n--;
	return value;
}

void *kvs_u64map_next(const struct kvs_u64map *m, size_t *pos)
{
	while (*pos < m->cap) {
		const struct kvs_u64map_slot *s = &m->slot[(*pos)++];

		if (s->key)
			return s->value;
	}
	return NULL;
}
