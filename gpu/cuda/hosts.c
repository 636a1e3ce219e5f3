/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that the device knows. One call of the driver takes 64 GiB at
 * most: larger ones were seen to fail (LMCache/LMCache#5177). Chunks are
 * counted from the start of a range, so they end where segments of a pool do.
 */
#include <errno.h>

#include "gpu/cuda/cuda_internal.h"

static uint64_t chunk_at(const struct kvs_cuda *k, uint64_t off, uint64_t len)
{
	uint64_t left = len - off;

	return left < k->register_chunk ? left : k->register_chunk;
}

/* Pin one chunk and find its address on the device. */
static int pin(struct kvs_cuda *k, void *addr, uint64_t len, bool read_only,
	       kvs_cuda_ptr *ret)
{
	unsigned int flags = KVS_CUDA_REGISTER_PORTABLE |
			     KVS_CUDA_REGISTER_DEVICEMAP;
	int r;

	if (read_only)
		flags |= KVS_CUDA_REGISTER_READ_ONLY;
	r = k->api->host_register(addr, len, flags);
	if (r)
		return r;
	*ret = (uintptr_t)addr;
	if (k->same_pointer)
		return 0;
	r = k->api->host_pointer(ret, addr, 0);
	if (r)
		(void)k->api->host_unregister(addr);
	return r;
}

static void forget(struct kvs_cuda *k, void *addr, uint64_t len, bool pinned)
{
	(void)pthread_mutex_lock(&k->lock);
	(void)kvs_spans_del(&k->hosts, addr, len);
	if (pinned)
		k->pinned_bytes -= len;
	(void)pthread_mutex_unlock(&k->lock);
	if (pinned)
		(void)k->api->host_unregister(addr);
}

/* In the set first: what is there already must not be pinned twice. */
static int add(struct kvs_cuda *k, void *addr, uint64_t len, bool read_only,
	       bool pageable)
{
	kvs_cuda_ptr dev = 0;
	int r;

	(void)pthread_mutex_lock(&k->lock);
	r = kvs_spans_add(&k->hosts, addr, len, read_only);
	(void)pthread_mutex_unlock(&k->lock);
	if (r || pageable)
		return r;
	r = pin(k, addr, len, read_only, &dev);
	if (r) {
		forget(k, addr, len, false);
		return kvs_cuda_noted(k, r);
	}
	(void)pthread_mutex_lock(&k->lock);
	kvs_spans_set_dev(&k->hosts, addr, dev);
	k->pinned_bytes += len;
	(void)pthread_mutex_unlock(&k->lock);
	return 0;
}

static bool is_pinned(struct kvs_cuda *k, const void *addr)
{
	const struct kvs_span *s;
	bool r;

	(void)pthread_mutex_lock(&k->lock);
	r = !kvs_spans_find(&k->hosts, addr, 1, &s) && s && s->dev;
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

/* Backwards. */
static void forget_chunks(struct kvs_cuda *k, void *addr, uint64_t len)
{
	uint64_t n;

	for (; len; len -= n) {
		n = len % k->register_chunk;
		n = n ? n : k->register_chunk;
		forget(k, (char *)addr + (len - n), n,
		       is_pinned(k, (char *)addr + (len - n)));
	}
}

static int add_range(struct kvs_cuda *k, void *addr, uint64_t len,
		     bool read_only)
{
	int r;

	(void)pthread_mutex_lock(&k->lock);
	r = kvs_spans_add(&k->ranges, addr, len, read_only);
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

static int del_range(struct kvs_cuda *k, void *addr, uint64_t len)
{
	int r;

	(void)pthread_mutex_lock(&k->lock);
	r = kvs_spans_del(&k->ranges, addr, len);
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

int kvs_cuda_register(struct kvs_device *d, void *addr, uint64_t len,
		      unsigned int flags)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	bool read_only = flags & KVS_HOST_READ_ONLY;
	bool unable = read_only && !k->read_only_ok;
	bool pageable = unable || (flags & KVS_HOST_PAGEABLE);
	kvs_cuda_ctx ctx;
	uint64_t off, n;
	int r;

	r = pageable ? 0 : k->api->ctx_push(k->ctx);
	if (r)
		return kvs_cuda_noted(k, r);
	r = add_range(k, addr, len, read_only);
	if (r)
		goto out_pop;
	for (off = 0; off < len; off += n) {
		n = chunk_at(k, off, len);
		r = add(k, (char *)addr + off, n, read_only, pageable);
		if (r)
			goto out_forget;
	}
	r = unable && !(flags & KVS_HOST_PAGEABLE);
	goto out_pop;

out_forget:
	/* all of them: half a pool is of no use to anybody */
	forget_chunks(k, addr, off);
	(void)del_range(k, addr, len);
out_pop:
	if (!pageable)
		(void)k->api->ctx_pop(&ctx);
	return r;
}

int kvs_cuda_unregister(struct kvs_device *d, void *addr, uint64_t len)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	kvs_cuda_ctx ctx;
	int r;

	r = del_range(k, addr, len);
	if (r)
		return r;
	/* of a context that is dead nothing is pinned any more */
	r = k->api->ctx_push(k->ctx);
	forget_chunks(k, addr, len);
	if (!r)
		(void)k->api->ctx_pop(&ctx);
	return 0;
}

void kvs_cuda_unregister_all(struct kvs_cuda *k)
{
	while (k->hosts.n) {
		const struct kvs_span *s = &k->hosts.v[k->hosts.n - 1];

		forget(k, (void *)s->addr, s->len, s->dev);
	}
	kvs_spans_fini(&k->hosts);
	kvs_spans_fini(&k->ranges);
}

bool kvs_cuda_host_at(const struct kvs_cuda *k, uint64_t host, uint64_t len,
		      kvs_cuda_ptr *ret, uint64_t *ret_len)
{
	const struct kvs_span *s;

	*ret = host;
	*ret_len = len;
	if (kvs_spans_find(&k->hosts, (void *)(uintptr_t)host, 1, &s) || !s)
		return false;
	if (s->len - (host - s->addr) < len)
		*ret_len = s->len - (host - s->addr);
	if (!s->dev)
		return false;
	*ret = s->dev + (host - s->addr);
	return true;
}

int kvs_cuda_host_check(const struct kvs_cuda *k, const void *addr,
			uint64_t len, bool written, bool *pinned)
{
	const struct kvs_span *s;
	uintptr_t at = (uintptr_t)addr;
	uint64_t n;
	int r;

	r = kvs_spans_find(&k->hosts, addr, len, &s);
	if (!r && !s) {
		*pinned = false;
		return 0;
	}
	if (r) {
		/* it lies over several: without a gap between them? The
		 * kernel has one base address only, so it is not for it. */
		*pinned = false;
	}
	for (; len; at += n, len -= n) {
		if (kvs_spans_find(&k->hosts, (void *)at, 1, &s) || !s)
			return -EINVAL;
		if (written && s->read_only)
			return -EINVAL;
		if (!s->dev)
			*pinned = false;
		n = s->len - (at - s->addr);
		n = n < len ? n : len;
	}
	return 0;
}
