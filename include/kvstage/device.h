/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: device
 *
 * The device that rooms are committed to, see struct kvs_commit. Backends:
 *
 *   soft  device memory is ordinary memory, copies run on a thread of the
 *         device, with a settable bandwidth and a fault plan; for tests and
 *         for machines without a GPU
 *   cuda  has its place and is not built yet (-EOPNOTSUPP)
 *
 * A device outlives every engine that committed to it.
 */
#ifndef KVSTAGE_DEVICE_H
#define KVSTAGE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "kvstage/errors.h"

#pragma GCC visibility push(default)

struct kvs_device;

/**
 * struct kvs_soft_plan - faults of the soft device; all zero: none
 *
 * Copies are counted from 1.
 * @fail_nth: this copy fails with -EIO, bytes untouched
 * @fail_late_nth: this one fails after half its runs
 * @sticky_nth: this one and all later ones fail
 * @hold_nth: this copy does not begin until it is released, which closing the
 *            device does
 */
struct kvs_soft_plan {
	uint64_t fail_nth;
	uint64_t fail_late_nth;
	uint64_t sticky_nth;
	uint64_t hold_nth;
};

/**
 * struct kvs_device_opts - which device
 * @size: sizeof(struct kvs_device_opts)
 * @backend: "soft", "cuda"
 * @bytes_per_sec: soft: copy rate; 0: as fast as memory
 * @plan: soft: faults
 * @device: cuda: ordinal
 */
struct kvs_device_opts {
	size_t size;
	const char *backend;
	uint64_t bytes_per_sec;
	struct kvs_soft_plan plan;
	int device;
};

/**
 * kvs_device_open() - open a backend by name
 * @o: which
 * @ret: the device
 * @err: message on failure
 * @errlen: its size
 * Return: 0; -EINVAL unknown name or bad @o; -EOPNOTSUPP not built or no such
 * device; -ENOMEM; what starting its thread gave.
 */
int kvs_device_open(const struct kvs_device_opts *o, struct kvs_device **ret,
		    char *err, size_t errlen);
/* Waits for copies in flight (a held one is released), frees. NULL ok. */
void kvs_device_close(struct kvs_device *d);
const char *kvs_device_name(const struct kvs_device *d);
/* Device memory, not cleared; -ENOMEM, -EINVAL (no bytes). */
int kvs_device_alloc(struct kvs_device *d, uint64_t len, void **ret);
/* NULL ok. */
void kvs_device_free(struct kvs_device *d, void *p);
/* Read device memory synchronously (tests, checks); -EINVAL. Copies in
 * flight are not waited for. */
int kvs_device_peek(struct kvs_device *d, void *host, const void *dev,
		    uint64_t len);

#pragma GCC visibility pop

#endif /* KVSTAGE_DEVICE_H */
