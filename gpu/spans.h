/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: spans
 *
 * A sorted set of address ranges that do not overlap: what a device has
 * allocated, what host memory it knows. Not thread safe.
 */
#ifndef KVS_GPU_SPANS_H
#define KVS_GPU_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvs_span {
	uintptr_t addr;
	uint64_t len; /* bytes, above 0 */
	bool read_only;
	uint64_t dev; /* address on the device, see kvs_spans_set_dev(); or 0 */
};

struct kvs_spans {
	struct kvs_span *v; /* by address */
	size_t n;
	size_t cap;
	uint64_t bytes; /* sum of len */
};

/* Frees the table only; all zero is an empty set. */
void kvs_spans_fini(struct kvs_spans *s);

/**
 * kvs_spans_add() - add a range
 * @s: set
 * @addr: start; the range must not wrap around
 * @len: bytes, above 0
 * @read_only: kept with it
 * Return: 0; -EEXIST when any byte of it is in the set; -ENOMEM.
 */
int kvs_spans_add(struct kvs_spans *s, const void *addr, uint64_t len,
		  bool read_only);

/* Note the device address of the range that begins at @addr. */
void kvs_spans_set_dev(struct kvs_spans *s, const void *addr, uint64_t dev);

/* Remove exactly this range; -ENOENT. @len 0: whatever its length. */
int kvs_spans_del(struct kvs_spans *s, const void *addr, uint64_t len);

/**
 * kvs_spans_find() - the range that holds [addr, addr + len)
 * @s: set
 * @addr: start
 * @len: bytes, above 0
 * @ret: the range, NULL when no byte of it is in the set
 * Return: 0; -ERANGE when it lies partly in a range, or in two.
 */
int kvs_spans_find(const struct kvs_spans *s, const void *addr, uint64_t len,
		   const struct kvs_span **ret);

#endif /* KVS_GPU_SPANS_H */
