/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/cuda/cuda_internal.h"
#include "gpu/shape.h"
#include "lib/assert.h"

#define REGISTER_CHUNK ((uint64_t)64 << 30) /* bytes */

struct kvs_cuda *kvs_to_cuda(struct kvs_device *d)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	KVS_ASSERT(d->ops == &kvs_cuda_ops);
	return kvs_container_of(d, struct kvs_cuda, dev);
}

uint64_t kvs_cuda_host_len(const struct kvs_copy *c, size_t i)
{
	struct kvs_copy_shape s = kvs_copy_shape_of(c, i);
	uint64_t len = 0;

	(void)kvs_copy_reach(s.host_item, c->runs[i].n, s.host_row, &s, &len);
	return len;
}

/* ---- opening ---- */

static int attr(const struct kvs_cuda *k, int which, int unknown)
{
	int v = unknown;

	return k->api->device_attr(&v, which, k->cudev) ? unknown : v;
}

static void describe(struct kvs_cuda *k)
{
	char *p;

	if (k->api->device_name(k->name, (int)sizeof(k->name), k->cudev))
		(void)snprintf(k->name, sizeof(k->name), "CUDA device");
	if (k->api->device_bus(k->bus, (int)sizeof(k->bus), k->cudev))
		k->bus[0] = '\0';
	/* as it is written in /sys */
	for (p = k->bus; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	k->numa_node = attr(k, KVS_CUDA_ATTR_HOST_NUMA_ID, -1);
	k->same_pointer =
		attr(k, KVS_CUDA_ATTR_HOST_POINTER_IS_DEVICE_POINTER, 0);
	k->peer_mem = attr(k, KVS_CUDA_ATTR_GPU_DIRECT_RDMA, 0);
	k->dma_buf = k->api->range_handle && attr(k, KVS_CUDA_ATTR_DMA_BUF, 0);
	k->read_only_ok = attr(k, KVS_CUDA_ATTR_READ_ONLY_HOST_REGISTER, 0);
}

static int load_kernels(struct kvs_cuda *k)
{
	static const char *const names[] = {
		[KVS_COPY_H2D] = KVS_SCATTER_TO_DEVICE,
		[KVS_COPY_D2H] = KVS_SCATTER_TO_HOST,
	};
	size_t i;
	int r;

	if (!kvs_cuda_image_len)
		return KVS_CUDA_NOT_FOUND;
	r = k->api->module_load(&k->module, kvs_cuda_image);
	for (i = 0; i < KVS_ARRAY_SIZE(names) && !r; i++)
		r = k->api->module_func(&k->func[i], k->module, names[i]);
	return r;
}

/* Without kernels everything goes piece by piece, if that is all right. */
static int choose_way(struct kvs_cuda *k, char *err, size_t errlen)
{
	int r;

	k->way = k->opts.way == KVS_COPY_AUTO ? KVS_COPY_SLOTS : k->opts.way;
	k->blocks = k->opts.blocks ? k->opts.blocks : KVS_PLAN_BLOCKS;
	if (k->way == KVS_COPY_DIRECT)
		return 0;
	r = load_kernels(k);
	if (!r)
		return 0;
	if (k->opts.way == KVS_COPY_AUTO && !kvs_cuda_is_sticky(r)) {
		k->way = KVS_COPY_DIRECT;
		return 0;
	}
	(void)snprintf(err, errlen, "cuda:%d: no kernels: %s", k->ordinal,
		       kvs_cuda_image_len ? kvs_cuda_error_name(r)
					  : "none are built in");
	return -EOPNOTSUPP;
}

static int start(struct kvs_cuda *k)
{
	sigset_t all, old;
	int r;

	/* signals are for the program's own threads */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&k->thread, NULL, kvs_cuda_main, k);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

/* In the context. */
static int set_up(struct kvs_cuda *k, char *err, size_t errlen)
{
	int r;

	describe(k);
	r = choose_way(k, err, errlen);
	if (r)
		return r;
	r = kvs_cuda_steps_init(k);
	if (r) {
		(void)snprintf(err, errlen,
			       "cuda:%d: no streams, events or memory: %s",
			       k->ordinal, strerror(-r));
		return r;
	}
	r = start(k);
	if (r)
		(void)snprintf(err, errlen, "cuda:%d: no copy thread: %s",
			       k->ordinal, strerror(-r));
	return r;
}

static void tear_down(struct kvs_cuda *k)
{
	kvs_cuda_steps_fini(k);
	if (k->module)
		(void)k->api->module_unload(k->module);
	kvs_cuda_unregister_all(k);
}

static void release(struct kvs_cuda *k)
{
	(void)k->api->ctx_release(k->cudev);
	(void)pthread_mutex_destroy(&k->lock);
	(void)sem_destroy(&k->work);
	k->dev.magic = 0;
	free(k);
}

static int retain(struct kvs_cuda *k, char *err, size_t errlen)
{
	int n = 0;
	int r;

	if (k->api->device_count(&n) || k->ordinal < 0 || k->ordinal >= n) {
		(void)snprintf(err, errlen, "cuda:%d: there are %d devices",
			       k->ordinal, n);
		return -EOPNOTSUPP;
	}
	r = k->api->device_get(&k->cudev, k->ordinal);
	if (!r)
		r = k->api->ctx_retain(&k->ctx, k->cudev);
	if (r) {
		(void)snprintf(err, errlen, "cuda:%d: no context: %s",
			       k->ordinal, kvs_cuda_error_name(r));
		return kvs_cuda_errno(r);
	}
	return 0;
}

static int kvs_cuda_open(const struct kvs_device_opts *o,
			 struct kvs_device **ret, char *err, size_t errlen)
{
	const struct kvs_cuda_api *api;
	struct kvs_cuda *k = NULL;
	kvs_cuda_ctx ctx;
	int r;

	r = kvs_cuda_driver(&api, err, errlen);
	if (r)
		return r;
	r = -posix_memalign((void **)&k, _Alignof(struct kvs_cuda), sizeof(*k));
	if (r) {
		(void)snprintf(err, errlen, "cuda:%d: out of memory",
			       o->device);
		return r;
	}
	memset(k, 0, sizeof(*k));
	k->dev.magic = KVS_DEVICE_MAGIC;
	k->dev.ops = &kvs_cuda_ops;
	k->api = api;
	k->ordinal = o->device;
	k->opts = o->copy;
	k->register_chunk = o->register_chunk ? o->register_chunk
					      : REGISTER_CHUNK;
	kvs_mpsc_init(&k->queue);
	r = retain(k, err, errlen);
	if (r) {
		free(k);
		return r;
	}
	(void)pthread_mutex_init(&k->lock, NULL);
	(void)sem_init(&k->work, 0, 0);
	r = kvs_cuda_errno(k->api->ctx_push(k->ctx));
	if (r) {
		(void)snprintf(err, errlen, "cuda:%d: no context: %s",
			       k->ordinal, strerror(-r));
		release(k);
		return r;
	}
	r = set_up(k, err, errlen);
	if (r)
		tear_down(k);
	(void)k->api->ctx_pop(&ctx);
	if (r) {
		release(k);
		return r;
	}
	*ret = &k->dev;
	return 0;
}

static void kvs_cuda_close(struct kvs_device *d)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	kvs_cuda_ctx ctx;
	uint32_t i;

	/* pairs with the acquire in kvs_cuda_main() */
	atomic_store_explicit(&k->stop, true, memory_order_release);
	(void)sem_post(&k->work);
	(void)pthread_join(k->thread, NULL);
	(void)k->api->ctx_push(k->ctx);
	tear_down(k);
	(void)k->api->ctx_pop(&ctx);
	/* nobody can ask any more after this */
	for (i = 0; i < k->n_orphans; i++)
		kvs_cuda_finish(k, k->orphan[i], -EIO);
	release(k);
}

/* ---- memory ---- */

static int kvs_cuda_alloc(struct kvs_device *d, uint64_t len, void **ret)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	kvs_cuda_ptr p = 0;
	kvs_cuda_ctx ctx;
	int r;

	r = k->api->ctx_push(k->ctx);
	if (r)
		return kvs_cuda_noted(k, r);
	r = k->api->mem_alloc(&p, len);
	(void)k->api->ctx_pop(&ctx);
	if (r)
		return kvs_cuda_noted(k, r);
	*ret = (void *)(uintptr_t)p;
	return 0;
}

static void kvs_cuda_free(struct kvs_device *d, void *p)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	kvs_cuda_ctx ctx;

	if (k->api->ctx_push(k->ctx))
		return; /* the context is gone, and the memory with it */
	(void)kvs_cuda_noted(k, k->api->mem_free((uintptr_t)p));
	(void)k->api->ctx_pop(&ctx);
}

static int kvs_cuda_peek(struct kvs_device *d, void *host, const void *dev,
			 uint64_t len)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	kvs_cuda_ctx ctx;
	int r;

	r = k->api->ctx_push(k->ctx);
	if (r)
		return kvs_cuda_noted(k, r);
	r = k->api->copy_to_host(host, (uintptr_t)dev, len);
	(void)k->api->ctx_pop(&ctx);
	return kvs_cuda_noted(k, r);
}

/* The driver gives whole pages of the host's size only. */
static int kvs_cuda_export(struct kvs_device *d, const void *addr, uint64_t len,
			   int *ret_fd, uint64_t *ret_offset)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t in = (uintptr_t)addr % page;
	uint64_t n = (in + len + page - 1) / page * page;
	kvs_cuda_ctx ctx;
	int fd = -1;
	int r;

	if (!k->dma_buf)
		return -EOPNOTSUPP;
	r = k->api->ctx_push(k->ctx);
	if (r)
		return kvs_cuda_noted(k, r);
	r = k->api->range_handle(&fd, (uintptr_t)addr - in, n,
				 KVS_CUDA_HANDLE_DMA_BUF_FD, 0);
	(void)k->api->ctx_pop(&ctx);
	if (r)
		return kvs_cuda_noted(k, r);
	*ret_fd = fd;
	*ret_offset = in;
	return 0;
}

/* ---- copies ---- */

static int host_ok(struct kvs_cuda *k, const struct kvs_copy *c)
{
	bool pinned = true;
	size_t i;
	int r = 0;

	(void)pthread_mutex_lock(&k->lock);
	for (i = 0; i < c->n_runs && !r; i++)
		if (c->runs[i].n)
			r = kvs_cuda_host_check(k, c->runs[i].host,
						kvs_cuda_host_len(c, i),
						c->dir == KVS_COPY_D2H,
						&pinned);
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

static int kvs_cuda_copy(struct kvs_device *d, struct kvs_copy *c)
{
	struct kvs_cuda *k = kvs_to_cuda(d);
	int r;

	/* pairs with the release in kvs_cuda_noted() */
	r = atomic_load_explicit(&k->sticky, memory_order_acquire);
	if (!r)
		r = host_ok(k, c);
	if (r)
		return r;
	c->order = atomic_fetch_add(&k->order, 1) + 1;
	atomic_store_explicit(&c->status, -EINPROGRESS, memory_order_relaxed);
	atomic_store_explicit(&c->runs_done, 0, memory_order_relaxed);
	kvs_mpsc_push(&k->queue, &c->node);
	(void)sem_post(&k->work);
	return 0;
}

static int kvs_cuda_query(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d;
	/* pairs with the release in kvs_cuda_finish() */
	return atomic_load_explicit(&c->status, memory_order_acquire);
}

static size_t kvs_cuda_progress(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d;
	/* pairs with the release in reap() */
	return atomic_load_explicit(&c->runs_done, memory_order_acquire);
}

static uint64_t load(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void kvs_cuda_info(struct kvs_device *d, struct kvs_device_info *ret)
{
	struct kvs_cuda *k = kvs_to_cuda(d);

	(void)snprintf(ret->name, sizeof(ret->name), "%s", k->name);
	(void)snprintf(ret->bus, sizeof(ret->bus), "%s", k->bus);
	(void)snprintf(ret->kernels, sizeof(ret->kernels), "%s",
		       k->module ? kvs_cuda_image_how : "none");
	ret->numa_node = k->numa_node;
	ret->peer_mem = k->peer_mem;
	ret->dma_buf = k->dma_buf;
	ret->driver = k->api->version;
	ret->way = k->way;
	ret->batch_min = load(&k->batch_min);
	ret->measured =
		atomic_load_explicit(&k->measured, memory_order_acquire);
	ret->few = k->tuning.few;
	ret->slots = k->n_slots;
	ret->slot_bytes = k->tuning.slot_bytes;
	ret->blocks = k->module ? k->blocks : 0;
	ret->copies = load(&k->copies);
	ret->failed = load(&k->failed);
	ret->bytes = load(&k->bytes);
	ret->pieces = load(&k->pieces);
	ret->launches = load(&k->launches);
	ret->steps = load(&k->steps);
	ret->sticky = atomic_load_explicit(&k->sticky, memory_order_acquire);
	(void)pthread_mutex_lock(&k->lock);
	ret->registered = k->hosts.n;
	ret->registered_bytes = k->hosts.bytes;
	ret->pinned_bytes = k->pinned_bytes;
	ret->register_chunk = k->register_chunk;
	(void)pthread_mutex_unlock(&k->lock);
}

const struct kvs_device_ops kvs_cuda_ops = {
	.name = "cuda",
	.open = kvs_cuda_open,
	.close = kvs_cuda_close,
	.alloc = kvs_cuda_alloc,
	.free = kvs_cuda_free,
	.register_host = kvs_cuda_register,
	.unregister_host = kvs_cuda_unregister,
	.copy = kvs_cuda_copy,
	.query = kvs_cuda_query,
	.progress = kvs_cuda_progress,
	.peek = kvs_cuda_peek,
	.info = kvs_cuda_info,
	.export = kvs_cuda_export,
};
