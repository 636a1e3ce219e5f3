/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/uring_buffers.h"

#include <errno.h>
#include <liburing.h>

/* io_uring_register(2): a buffer may not be larger than 1 GiB. */
#define URING_BUFFER_MAX (1ULL << 30)

int kvs_uring_buffers_init(struct kvs_uring_buffers *b, struct io_uring *ring)
{
	int ret = io_uring_register_buffers_sparse(ring, KVS_URING_BUFFERS_MAX);

	b->ring = ring;
	b->used = 0;
	return ret < 0 ? ret : 0;
}

void kvs_uring_buffers_fini(struct kvs_uring_buffers *b)
{
	(void)io_uring_unregister_buffers(b->ring);
	b->ring = NULL;
}

static int buffers_update(struct kvs_uring_buffers *b, uint32_t index,
			  void *addr, uint64_t len)
{
	struct iovec iov = { addr, len };
	__u64 tag = 0;
	int ret;

	ret = io_uring_register_buffers_update_tag(b->ring, index, &iov, &tag,
						   1);
	if (ret < 0)
		return ret;
	return ret == 1 ? 0 : -EIO;
}

static int buffers_reg(void *ctx, void *addr, uint64_t len,
		       uint64_t *ret_handle)
{
	struct kvs_uring_buffers *b = ctx;
	int ret;

	if (b->used == KVS_URING_BUFFERS_MAX)
		return -ENOSPC;
	ret = buffers_update(b, b->used, addr, len);
	if (ret)
		return ret;
	*ret_handle = b->used++;
	return 0;
}

static int buffers_unreg(void *ctx, void *addr, uint64_t len, uint64_t handle)
{
	(void)addr;
	(void)len;
	return buffers_update(ctx, (uint32_t)handle, NULL, 0);
}

const struct kvs_registrar_ops kvs_uring_registrar = {
	.name = "io_uring",
	.max_chunk = URING_BUFFER_MAX,
	.reg = buffers_reg,
	.unreg = buffers_unreg,
};
