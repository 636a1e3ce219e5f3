/* SPDX-License-Identifier: Apache-2.0 */
/* Built when there is no io_uring: every call says so. */
#include "rdma/uring_buffers.h"

#include <errno.h>

int kvs_uring_buffers_init(struct kvs_uring_buffers *b, struct io_uring *ring)
{
	b->ring = ring;
	b->used = 0;
	return -EOPNOTSUPP;
}

void kvs_uring_buffers_fini(struct kvs_uring_buffers *b)
{
	b->ring = NULL;
}

static int none_reg(void *ctx, void *addr, uint64_t len, uint64_t *ret_handle)
{
	(void)ctx;
	(void)addr;
	(void)len;
	(void)ret_handle;
	return -EOPNOTSUPP;
}

static int none_unreg(void *ctx, void *addr, uint64_t len, uint64_t handle)
{
	(void)ctx;
	(void)addr;
	(void)len;
	(void)handle;
	return -EOPNOTSUPP;
}

const struct kvs_registrar_ops kvs_uring_registrar = {
	.name = "io_uring",
	.reg = none_reg,
	.unreg = none_unreg,
};
