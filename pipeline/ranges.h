/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: ranges
 *
 * A set of disjoint byte ranges, merged when they touch. It says which bytes
 * of a room are spoken for, so that a byte is never counted twice. Bounded:
 * a sender that leaves holes everywhere runs into @max, not into our memory.
 */
#ifndef KVS_PIPELINE_RANGES_H
#define KVS_PIPELINE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

struct kvs_range {
	uint64_t start;
	uint64_t end; /* exclusive */
};

struct kvs_ranges {
	struct kvs_range *v; /* sorted; first few are inline */
	uint32_t n;
	uint32_t cap;
	uint32_t max;
	uint64_t bytes; /* sum of lengths */
	struct kvs_range few[4];
};

void kvs_ranges_init(struct kvs_ranges *r, uint32_t max);
void kvs_ranges_fini(struct kvs_ranges *r);
/**
 * kvs_ranges_add() - claim [start, start + len)
 * Return: 0; -EEXIST when any byte is in the set already (nothing changes);
 * -EINVAL len 0 or overflow; -E2BIG more than max pieces; -ENOMEM.
 */
int kvs_ranges_add(struct kvs_ranges *r, uint64_t start, uint64_t len);
/* Is every byte of [start, start + len) in the set? */
bool kvs_ranges_covers(const struct kvs_ranges *r, uint64_t start,
		       uint64_t len);
/* First byte of [start, end) not in the set; end when all are. */
uint64_t kvs_ranges_first_hole(const struct kvs_ranges *r, uint64_t start,
			       uint64_t end);

#endif /* KVS_PIPELINE_RANGES_H */
