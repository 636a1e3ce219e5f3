/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/device_internal.h"
#include "gpu/plan.h"
#include "gpu/shape.h"
#include "lib/assert.h"

enum kvs_backend {
	KVS_BACKEND_SOFT,
	KVS_BACKEND_CUDA,
	KVS_BACKEND_MAX,
};

static const struct kvs_device_ops *const kvs_backends[] = {
	[KVS_BACKEND_SOFT] = &kvs_soft_ops,
	[KVS_BACKEND_CUDA] = &kvs_cuda_ops,
};

_Static_assert(KVS_ARRAY_SIZE(kvs_backends) == KVS_BACKEND_MAX,
	       "every backend has its row");

bool kvs_device_ops_complete(const struct kvs_device_ops *ops)
{
	return ops && ops->name && ops->open && ops->close && ops->alloc &&
	       ops->free && ops->register_host && ops->unregister_host &&
	       ops->copy && ops->query && ops->progress && ops->peek &&
	       ops->info && ops->export;
}

int kvs_device_open(const struct kvs_device_opts *o, struct kvs_device **ret,
		    char *err, size_t errlen)
{
	const struct kvs_device_ops *ops = NULL;
	const char *name;
	int used;
	size_t i;

	if (!o || o->size < sizeof(*o)) {
		(void)snprintf(err, errlen,
			       "device options: size is %zu, not %zu",
			       o ? o->size : 0, sizeof(*o));
		return -EINVAL;
	}
	name = o->backend ? o->backend : "";

	/* the whole table, so that a gap shows on machines without the row */
	for (i = 0; i < KVS_BACKEND_MAX; i++) {
		KVS_ASSERT(kvs_device_ops_complete(kvs_backends[i]));
		if (!strcmp(kvs_backends[i]->name, name))
			ops = kvs_backends[i];
	}
	if (ops && kvs_copy_opts_check(&o->copy, err, errlen))
		return -EINVAL;
	if (ops)
		return ops->open(o, ret, err, errlen);

	used = snprintf(err, errlen,
			"no copy backend \"%.32s\"; there are:", name);
	for (i = 0; i < KVS_BACKEND_MAX; i++) {
		if (used < 0 || (size_t)used >= errlen)
			break;
		used += snprintf(err + used, errlen - (size_t)used, " %s",
				 kvs_backends[i]->name);
	}
	return -EINVAL;
}

void kvs_device_close(struct kvs_device *d)
{
	if (!d)
		return;
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	d->ops->close(d);
}

const char *kvs_device_name(const struct kvs_device *d)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	return d->ops->name;
}

int kvs_device_alloc(struct kvs_device *d, uint64_t len, void **ret)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (!len)
		return -EINVAL;
	return d->ops->alloc(d, len, ret);
}

void kvs_device_free(struct kvs_device *d, void *p)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (p)
		d->ops->free(d, p);
}

/* A range that ends past the address space is nobody's memory. */
static bool kvs_range_ok(const void *addr, uint64_t len)
{
	return addr && len && len - 1 <= UINTPTR_MAX - (uintptr_t)addr;
}

int kvs_device_register_host(struct kvs_device *d, void *addr, uint64_t len,
			     unsigned int flags)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (!kvs_range_ok(addr, len))
		return -EINVAL;
	return d->ops->register_host(d, addr, len, flags);
}

int kvs_device_unregister_host(struct kvs_device *d, void *addr, uint64_t len)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (!kvs_range_ok(addr, len))
		return -EINVAL;
	return d->ops->unregister_host(d, addr, len);
}

static bool kvs_copy_run_ok(const struct kvs_copy *c, size_t i)
{
	const struct kvs_copy_run *r = &c->runs[i];
	struct kvs_copy_shape s = kvs_copy_shape_of(c, i);
	uint64_t len;

	if (!r->n)
		return true;
	if (!r->dev || !r->item_len)
		return false;
	if (__builtin_mul_overflow(r->item_len, r->n, &len) ||
	    __builtin_mul_overflow(s.rows, s.row_len, &len) ||
	    len != r->item_len)
		return false;
	return kvs_copy_reach(s.host_item, r->n, s.host_row, &s, &len) &&
	       kvs_range_ok(r->host, len);
}

int kvs_device_copy(struct kvs_device *d, struct kvs_copy *c)
{
	size_t i;

	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (c->dir != KVS_COPY_H2D && c->dir != KVS_COPY_D2H)
		return -EINVAL;
	if (c->n_runs && !c->runs)
		return -EINVAL;
	for (i = 0; i < c->n_runs; i++)
		if (!kvs_copy_run_ok(c, i))
			return -EINVAL;
	return d->ops->copy(d, c);
}

int kvs_device_query(struct kvs_device *d, const struct kvs_copy *c)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	return d->ops->query(d, c);
}

size_t kvs_device_progress(struct kvs_device *d, const struct kvs_copy *c)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	return d->ops->progress(d, c);
}

int kvs_device_peek(struct kvs_device *d, void *host, const void *dev,
		    uint64_t len)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (!len)
		return 0;
	if (!kvs_range_ok(host, len) || !kvs_range_ok(dev, len))
		return -EINVAL;
	return d->ops->peek(d, host, dev, len);
}

void kvs_device_info(struct kvs_device *d, struct kvs_device_info *ret)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	*ret = (struct kvs_device_info){ .numa_node = -1 };
	d->ops->info(d, ret);
}

int kvs_device_export(struct kvs_device *d, const void *addr, uint64_t len,
		      int *ret_fd, uint64_t *ret_offset)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (!kvs_range_ok(addr, len))
		return -EINVAL;
	return d->ops->export(d, addr, len, ret_fd, ret_offset);
}

const char *kvs_copy_way_name(enum kvs_copy_way way)
{
	static const char *const names[] = {
		[KVS_COPY_AUTO] = "auto",
		[KVS_COPY_DIRECT] = "direct",
		[KVS_COPY_SLOTS] = "slots",
		[KVS_COPY_MAPPED] = "mapped",
	};

	return (size_t)way < KVS_ARRAY_SIZE(names) ? names[way] : "?";
}
