/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row of the cuda backend where it is not built. open() never makes a
 * device, so the other members cannot be reached; they are there because the
 * table has no empty places.
 */
#include <errno.h>
#include <stdio.h>

#include "gpu/device_internal.h"
#include "lib/assert.h"

static int kvs_cuda_none_open(const struct kvs_device_opts *o,
			      struct kvs_device **ret, char *err, size_t errlen)
{
	(void)ret;
	(void)snprintf(err, errlen,
		       "copy backend \"cuda\" (device %d) is not built into "
		       "this kvstage; \"soft\" is",
		       o->device);
	return -EOPNOTSUPP;
}

static void kvs_cuda_none_close(struct kvs_device *d)
{
	(void)d;
	KVS_ASSERT(!"no cuda device can be open");
}

static int kvs_cuda_none_alloc(struct kvs_device *d, uint64_t len, void **ret)
{
	(void)d, (void)len, (void)ret;
	return -EOPNOTSUPP;
}

static void kvs_cuda_none_free(struct kvs_device *d, void *p)
{
	(void)d, (void)p;
	KVS_ASSERT(!"no cuda device can be open");
}

static int kvs_cuda_none_register(struct kvs_device *d, void *addr,
				  uint64_t len, unsigned int flags)
{
	(void)d, (void)addr, (void)len, (void)flags;
	return -EOPNOTSUPP;
}

static int kvs_cuda_none_unregister(struct kvs_device *d, void *addr,
				    uint64_t len)
{
	(void)d, (void)addr, (void)len;
	return -EOPNOTSUPP;
}

static int kvs_cuda_none_copy(struct kvs_device *d, struct kvs_copy *c)
{
	(void)d, (void)c;
	return -EOPNOTSUPP;
}

static int kvs_cuda_none_query(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d, (void)c;
	return -EOPNOTSUPP;
}

static size_t kvs_cuda_none_progress(struct kvs_device *d,
				     const struct kvs_copy *c)
{
	(void)d, (void)c;
	return 0;
}

static int kvs_cuda_none_peek(struct kvs_device *d, void *host, const void *dev,
			      uint64_t len)
{
	(void)d, (void)host, (void)dev, (void)len;
	return -EOPNOTSUPP;
}

static void kvs_cuda_none_info(struct kvs_device *d,
			       struct kvs_device_info *ret)
{
	(void)d, (void)ret;
}

static int kvs_cuda_none_export(struct kvs_device *d, const void *addr,
				uint64_t len, int *ret_fd, uint64_t *ret_offset)
{
	(void)d, (void)addr, (void)len, (void)ret_fd, (void)ret_offset;
	return -EOPNOTSUPP;
}

const struct kvs_device_ops kvs_cuda_ops = {
	.name = "cuda",
	.open = kvs_cuda_none_open,
	.close = kvs_cuda_none_close,
	.alloc = kvs_cuda_none_alloc,
	.free = kvs_cuda_none_free,
	.register_host = kvs_cuda_none_register,
	.unregister_host = kvs_cuda_none_unregister,
	.copy = kvs_cuda_none_copy,
	.query = kvs_cuda_none_query,
	.progress = kvs_cuda_none_progress,
	.peek = kvs_cuda_none_peek,
	.info = kvs_cuda_none_info,
	.export = kvs_cuda_none_export,
};
