/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: device
 *
 * The device that rooms are committed to, see struct kvs_commit. Backends:
 *
 *   soft  device memory is ordinary memory, copies run on a thread of the
 *         device, with a settable bandwidth and a fault plan; for tests and
 *         for machines without a GPU
 *   cuda  an NVIDIA GPU, in the primary context of this process; the driver
 *         is loaded when a device is opened, see kvstage-gpu(7)
 *
 * A device outlives every engine that committed to it.
 */
#ifndef KVSTAGE_DEVICE_H
#define KVSTAGE_DEVICE_H

#include <stdbool.h>
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
 * enum kvs_copy_way - how small pieces travel
 * @KVS_COPY_AUTO: cuda: by slots, else mapped, else direct, as can be had;
 *                 soft: direct
 * @KVS_COPY_DIRECT: each by itself, in batches
 * @KVS_COPY_SLOTS: many at once to a ring in device memory, whence a kernel
 *                  takes them; mapped where the host side has gaps
 * @KVS_COPY_MAPPED: a kernel reads and writes registered host memory
 */
enum kvs_copy_way {
	KVS_COPY_AUTO,
	KVS_COPY_DIRECT,
	KVS_COPY_SLOTS,
	KVS_COPY_MAPPED,
};

/**
 * struct kvs_copy_opts - how copies are made; all zero: as is best
 * @way: of small pieces
 * @batch_min: bytes; a piece this long is not small. 0: cuda: measured; soft:
 *             28 KiB
 * @few: up to so many small pieces go directly. 0: 64
 * @slot_bytes: of a slot of the ring. 0: 32 MiB
 * @slots: of the ring. 0: 2
 * @blocks: thread blocks that the kernel may have, 1 to 64. 0: 4
 */
struct kvs_copy_opts {
	enum kvs_copy_way way;
	uint32_t few;
	uint64_t batch_min;
	uint64_t slot_bytes;
	uint32_t slots;
	uint32_t blocks;
};

/**
 * struct kvs_device_opts - which device
 * @size: sizeof(struct kvs_device_opts)
 * @backend: "soft", "cuda"
 * @bytes_per_sec: soft: copy rate; 0: as fast as memory
 * @plan: soft: faults
 * @device: cuda: ordinal
 * @copy: how copies are made
 * @hidden: soft: no CPU address leads to device memory; who follows one
 *          dies. Copies are made directly then
 * @register_chunk: cuda: bytes that one call of the driver registers at most,
 *                  a multiple of 4096. 0: 64 GiB
 */
struct kvs_device_opts {
	size_t size;
	const char *backend;
	uint64_t bytes_per_sec;
	struct kvs_soft_plan plan;
	int device;
	struct kvs_copy_opts copy;
	uint64_t register_chunk;
	bool hidden;
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
