/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, registered and pinned host memory, and whose an address is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <time.h>

#include "lib/assert.h"
#include "tests/fake_cuda/internal.h"

#define KNOWN_FLAGS                                                 \
	(KVS_CUDA_REGISTER_PORTABLE | KVS_CUDA_REGISTER_DEVICEMAP | \
	 KVS_CUDA_REGISTER_READ_ONLY)

/* Of a file, as others may be given a descriptor of it. */
static int map_memory(size_t len, void **ret, int *ret_fd)
{
	int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
	void *p = MAP_FAILED;

	if (fd >= 0 && len < SIZE_MAX / 2 && !ftruncate(fd, (off_t)len))
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		if (fd >= 0)
			(void)close(fd);
		return -ENOMEM;
	}
	*ret = p;
	*ret_fd = fd;
	return 0;
}

int fake_range_handle(void *ret, kvs_cuda_ptr p, size_t len, int type,
		      unsigned long long flags)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int r = enter("cuMemGetHandleForAddressRange", true);
	const struct kvs_span *s = NULL;
	char path[64];
	int fd;

	if (!r && !fake.c.dma_buf)
		r = KVS_CUDA_NOT_SUPPORTED;
	if (!r && (type != KVS_CUDA_HANDLE_DMA_BUF_FD || flags || p % page ||
		   len % page ||
		   kvs_spans_find(&fake.allocs, (void *)(uintptr_t)p, 1, &s) ||
		   !s || p - s->addr + len > (s->len + page - 1) / page * page))
		r = KVS_CUDA_INVALID_VALUE;
	if (r)
		return leave(r);
	/* a file of its own, so that its position is */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", (int)s->dev);
	fd = open(path, O_RDWR | O_CLOEXEC);
	KVS_ASSERT(fd >= 0);
	(void)lseek(fd, (off_t)(p - s->addr), SEEK_SET);
	memcpy(ret, &fd, sizeof(fd));
	return leave(0);
}

int fake_mem_alloc(kvs_cuda_ptr *ret, size_t len)
{
	int r = enter("cuMemAlloc", true);
	void *p = NULL;
	int fd = -1;

	if (!r && !len)
		r = KVS_CUDA_INVALID_VALUE;
	if (!r && fake.c.memory && len > fake.c.memory - fake.used)
		r = KVS_CUDA_OUT_OF_MEMORY;
	if (!r && map_memory(len, &p, &fd))
		r = KVS_CUDA_OUT_OF_MEMORY;
	if (r)
		return leave(r);
	memset(p, 0xcd, len);
	KVS_ASSERT(!kvs_spans_add(&fake.allocs, p, len, false));
	/* there is a place for it, and nobody else needs it */
	kvs_spans_set_dev(&fake.allocs, p, (uint64_t)fd);
	fake.used += len;
	*ret = (uintptr_t)p;
	return leave(0);
}

void wait_idle(void)
{
	while (fake.working)
		(void)pthread_cond_wait(&fake.changed, &fake.lock);
}

int fake_mem_free(kvs_cuda_ptr p)
{
	const struct kvs_span *s;
	int r = enter("cuMemFree", false);
	size_t len;
	int fd;

	if (kvs_spans_find(&fake.allocs, (void *)(uintptr_t)p, 1, &s) || !s ||
	    s->addr != p)
		return leave(KVS_CUDA_INVALID_VALUE);
	fake.used -= s->len;
	fd = (int)s->dev;
	len = s->len;
	wait_idle();
	(void)close(fd);
	(void)munmap((void *)(uintptr_t)p, len);
	(void)kvs_spans_del(&fake.allocs, (void *)(uintptr_t)p, 0);
	return leave(r ? r : fake.dead);
}

int fake_host_alloc(void **ret, size_t len, unsigned int flags)
{
	int r = enter("cuMemHostAlloc", true);
	void *p = NULL;

	if (!r && flags != KVS_CUDA_HOST_PORTABLE)
		r = KVS_CUDA_INVALID_VALUE;
	if (!r && posix_memalign(&p, 4096, len))
		r = KVS_CUDA_OUT_OF_MEMORY;
	if (r)
		return leave(r);
	KVS_ASSERT(!kvs_spans_add(&fake.hosts, p, len, false));
	/* such memory has one address, whatever registered memory has */
	kvs_spans_set_dev(&fake.hosts, p, (uintptr_t)p);
	fake.n.pinned++;
	*ret = p;
	return leave(0);
}

int fake_host_free(void *p)
{
	int r = enter("cuMemFreeHost", false);

	wait_idle();
	KVS_ASSERT(!kvs_spans_del(&fake.hosts, p, 0));
	fake.n.pinned--;
	free(p);
	return leave(r);
}

/* Others go on meanwhile. Lock held, dropped. */
static void wait_to_register(void)
{
	struct timespec t = {
		.tv_sec = (time_t)(fake.c.register_ns / 1000000000),
		.tv_nsec = (long)(fake.c.register_ns % 1000000000)
	};

	fake.n.registering++;
	while (!fake.register_left)
		(void)pthread_cond_wait(&fake.changed, &fake.lock);
	if (fake.register_left != UINT64_MAX)
		fake.register_left--;
	if (fake.c.register_ns) {
		(void)pthread_mutex_unlock(&fake.lock);
		(void)nanosleep(&t, NULL);
		(void)pthread_mutex_lock(&fake.lock);
	}
	fake.n.registering--;
}

int fake_host_register(void *p, size_t len, unsigned int flags)
{
	bool ro = flags & KVS_CUDA_REGISTER_READ_ONLY;
	int r = enter("cuMemHostRegister", true);

	wait_to_register();
	if (r)
		return leave(r);
	if (!p || !len || (flags & ~KNOWN_FLAGS))
		return leave(KVS_CUDA_INVALID_VALUE);
	if (ro && !fake.c.read_only)
		return leave(KVS_CUDA_NOT_SUPPORTED);
	if (fake.c.register_max && len > fake.c.register_max)
		return leave(KVS_CUDA_OUT_OF_MEMORY);
	if (kvs_spans_add(&fake.hosts, p, len, ro))
		return leave(KVS_CUDA_HOST_ALREADY_REGISTERED);
	kvs_spans_set_dev(&fake.hosts, p,
			  (uintptr_t)p + (fake.c.alias ? ALIAS : 0));
	fake.n.registered_bytes += len;
	if (len > fake.n.registered_max)
		fake.n.registered_max = len;
	return leave(0);
}

int fake_host_unregister(void *p)
{
	int r = enter("cuMemHostUnregister", false);
	const struct kvs_span *s;

	if (kvs_spans_find(&fake.hosts, p, 1, &s) || !s ||
	    s->addr != (uintptr_t)p)
		return leave(KVS_CUDA_HOST_NOT_REGISTERED);
	fake.n.registered_bytes -= s->len;
	wait_idle();
	(void)kvs_spans_del(&fake.hosts, p, 0);
	fake.unregistered[fake.n.unregistered++ %
			  KVS_ARRAY_SIZE(fake.unregistered)] = (uintptr_t)p;
	return leave(r);
}

size_t fake_cuda_unregistered(uintptr_t *ret, size_t max)
{
	size_t n, i;

	(void)pthread_mutex_lock(&fake.lock);
	n = fake.n.unregistered;
	KVS_ASSERT(n <= KVS_ARRAY_SIZE(fake.unregistered));
	for (i = 0; i < n && i < max; i++)
		ret[i] = fake.unregistered[i];
	(void)pthread_mutex_unlock(&fake.lock);
	return i;
}

int fake_host_pointer(kvs_cuda_ptr *ret, void *p, unsigned int flags)
{
	int r = enter("cuMemHostGetDevicePointer", true);
	const struct kvs_span *s;

	if (!r && (flags || kvs_spans_find(&fake.hosts, p, 1, &s) || !s))
		r = KVS_CUDA_INVALID_VALUE;
	if (!r)
		*ret = s->dev + ((uintptr_t)p - s->addr);
	return leave(r);
}

/* Within one range of @s? */
static bool within(const struct kvs_spans *set, uint64_t p, uint64_t len,
		   const struct kvs_span **ret, int *err)
{
	if (kvs_spans_find(set, (void *)(uintptr_t)p, len, ret)) {
		*err = KVS_CUDA_INVALID_VALUE;
		return false;
	}
	return *ret;
}

int resolve(kvs_cuda_ptr p, size_t len, bool *pageable, bool *raw, void **ret)
{
	const struct kvs_span *s = NULL;
	int err = 0;

	*pageable = false;
	*raw = false;
	*ret = (void *)(uintptr_t)p;
	if (within(&fake.allocs, p, len, &s, &err))
		return 0;
	if (!err && within(&fake.hosts, p, len, &s, &err)) {
		*raw = s->dev != s->addr;
		return 0;
	}
	if (!err && p >= ALIAS && fake.c.alias &&
	    within(&fake.hosts, p - ALIAS, len, &s, &err)) {
		*ret = (void *)(uintptr_t)(p - ALIAS);
		return 0;
	}
	/* nobody's: ordinary memory of the process, as far as anyone knows */
	*pageable = true;
	return err;
}

bool reach(uint64_t p, uint64_t len, void **ret)
{
	bool pageable, raw;

	return len && !resolve(p, len, &pageable, &raw, ret) && !pageable &&
	       !raw;
}
