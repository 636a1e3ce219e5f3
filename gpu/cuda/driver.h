/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: driver
 *
 * The CUDA driver, opened at run time by the name that is its stable one
 * (libcuda.so.1), its functions taken by name and version: one program runs
 * with any driver from 12.0 on, and where there is none. It is opened once and
 * never closed, as the driver has threads of its own.
 */
#ifndef KVS_GPU_CUDA_DRIVER_H
#define KVS_GPU_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cuda/api.h"

/**
 * kvs_cuda_driver() - the driver, opened and initialised at the first call
 * @ret: its functions
 * @err: message on failure
 * @errlen: its size
 *
 * What failed is not tried again.
 * Context: any thread; the first call takes as long as the driver does.
 * Return: 0; -EOPNOTSUPP no driver, one older than 12.0, or no device.
 */
int kvs_cuda_driver(const struct kvs_cuda_api **ret, char *err, size_t errlen);

/* What the driver said, as an errno; 0 stays 0. */
int kvs_cuda_errno(int error);
/* Name of an error, "CUDA error" if it has none. */
const char *kvs_cuda_error_name(int error);
/* Is the context dead, so that every later call will fail? */
bool kvs_cuda_is_sticky(int error);

#endif /* KVS_GPU_CUDA_DRIVER_H */
