/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: soft device
 *
 * What only the soft device can tell. kvs_soft_release() is in device.h.
 */
#ifndef KVS_GPU_SOFT_H
#define KVS_GPU_SOFT_H

#include <stdint.h>

#include "gpu/device.h"

/**
 * struct kvs_soft_stats - counts since the device was opened
 * @copies: finished copies, failed ones included
 * @failed: finished with an error
 * @bytes: moved, those of failed copies included
 * @moves: contiguous pieces moved; pages that lie next to each other count
 *         as one
 * @allocs: allocations alive
 * @alloc_bytes: bytes alive
 * @registered: host ranges registered now
 * @registered_bytes: their bytes
 */
struct kvs_soft_stats {
	uint64_t copies;
	uint64_t failed;
	uint64_t bytes;
	uint64_t moves;
	uint64_t allocs;
	uint64_t alloc_bytes;
	uint64_t registered;
	uint64_t registered_bytes;
};

/**
 * kvs_soft_stats() - read the counts
 *
 * What a copy did is in them once kvs_device_query() has said it is complete.
 * Context: any thread. Return: 0, or -EOPNOTSUPP for another backend.
 */
int kvs_soft_stats(struct kvs_device *d, struct kvs_soft_stats *ret);

#endif /* KVS_GPU_SOFT_H */
