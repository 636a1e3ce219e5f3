/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: u64map
 *
 * Hash table from a non-zero 64-bit key to a pointer: open addressing, linear
 * probing, deletion by shifting back (no tombstones), grown at 1/2. Keys are
 * mixed, so ids chosen by a peer cannot be made to collide on purpose without
 * the table's secret. One owner thread.
 */
#ifndef KVS_LIB_U64MAP_H
#define KVS_LIB_U64MAP_H

#include <stddef.h>
#include <stdint.h>

struct kvs_u64map_slot {
	uint64_t key; /* 0: empty */
	void *value;
};

struct kvs_u64map {
	struct kvs_u64map_slot *slot;
	size_t n;
	size_t cap; /* power of two, or 0 */
	uint64_t secret;
};

/* @secret: any number; 0 keeps runs reproducible. */
void kvs_u64map_init(struct kvs_u64map *m, uint64_t secret);
void kvs_u64map_fini(struct kvs_u64map *m);

/**
 * kvs_u64map_add() - insert
 * Return: 0; -EEXIST; -EINVAL key 0; -ENOMEM.
 */
int kvs_u64map_add(struct kvs_u64map *m, uint64_t key, void *value);
/* NULL when absent. */
void *kvs_u64map_get(const struct kvs_u64map *m, uint64_t key);
/* The removed value, or NULL. */
void *kvs_u64map_del(struct kvs_u64map *m, uint64_t key);
/**
 * kvs_u64map_next() - walk
 * @pos: 0 at first; advanced
 * Return: a value, or NULL at the end. No insertion or deletion meanwhile.
 */
void *kvs_u64map_next(const struct kvs_u64map *m, size_t *pos);

#endif /* KVS_LIB_U64MAP_H */
