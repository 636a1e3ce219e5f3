/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: backends
 *
 * What device.c and the backends share. A backend is a row of the table in
 * device.c. A part that is not built has its row all the same: the file
 * x_none.c takes the place of x.c in the build and its open() answers
 * -EOPNOTSUPP, so no other member is ever reached.
 */
#ifndef KVS_GPU_DEVICE_INTERNAL_H
#define KVS_GPU_DEVICE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/device.h"

#define KVS_DEVICE_MAGIC 0x6b766465u

/* First member of every backend's device. */
struct kvs_device {
	uint32_t magic; /* KVS_DEVICE_MAGIC while open */
	const struct kvs_device_ops *ops;
};

extern const struct kvs_device_ops kvs_soft_ops;
extern const struct kvs_device_ops kvs_cuda_ops;

/* Has a row of the table all it must have? */
bool kvs_device_ops_complete(const struct kvs_device_ops *ops);

#endif /* KVS_GPU_DEVICE_INTERNAL_H */
