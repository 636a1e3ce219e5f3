/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: uring_buffers
 *
 * Registers a pool with an io_uring as fixed buffers, through the pool's
 * registration list (pinned/reglist.h): the kernel takes at most 1 GiB a
 * buffer, so a large pool becomes several, each holding whole extents. The
 * handle of a chunk is its buffer index.
 *
 * Registered memory counts against RLIMIT_MEMLOCK without CAP_IPC_LOCK; a
 * refusal is -ENOMEM from kvs_reglist_create() with nothing left registered,
 * and the caller goes on with ordinary buffers.
 */
#ifndef KVS_RDMA_URING_BUFFERS_H
#define KVS_RDMA_URING_BUFFERS_H

#include "pinned/reglist.h"

struct io_uring;

/* Most buffers one ring is prepared for: a pool of 1 TiB in 1 GiB chunks. */
#define KVS_URING_BUFFERS_MAX 1024u

struct kvs_uring_buffers {
	struct io_uring *ring; /* caller's; must outlive this */
	uint32_t used; /* indexes handed out; freed ones are not used again */
};

/* For kvs_reglist_create(); ctx is a struct kvs_uring_buffers. */
extern const struct kvs_registrar_ops kvs_uring_registrar;

/**
 * kvs_uring_buffers_init() - make an empty table of fixed buffers
 * @b: caller's memory
 * @ring: ring without fixed buffers
 * Return: 0; -EOPNOTSUPP built without io_uring; -errno of the kernel.
 */
int kvs_uring_buffers_init(struct kvs_uring_buffers *b, struct io_uring *ring);
/* After the registration lists are destroyed. */
void kvs_uring_buffers_fini(struct kvs_uring_buffers *b);

#endif /* KVS_RDMA_URING_BUFFERS_H */
