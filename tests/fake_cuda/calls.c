/* SPDX-License-Identifier: Apache-2.0 */
/* Entry, devices, contexts, modules; faults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/fake_cuda/internal.h"

struct fake fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.register_left = UINT64_MAX,
	.c = { .devices = 1,
	       .driver = 13000,
	       .read_only = true,
	       .kernels = true,
	       .peer_mem = true,
	       .dma_buf = true },
};

static struct fake_cuda_config base; /* as KVS_FAKE_CUDA has it */
static _Thread_local int depth; /* of the stack of contexts */

struct kvs_cuda_ctx {
	int unused;
};

struct kvs_cuda_module {
	int unused;
};

struct kvs_cuda_func {
	bool to_host;
};

static struct kvs_cuda_ctx the_context;
static struct kvs_cuda_func funcs[2] = { { false }, { true } };

int enter(const char *name, bool in_context)
{
	int r = 0;
	size_t i;

	(void)pthread_mutex_lock(&fake.lock);
	for (i = 0; i < FAULTS; i++) {
		struct fault *f = &fake.fault[i];

		if (f->nth && !strcmp(f->name, name) && !--f->nth)
			r = f->error;
	}
	if (!r && in_context && !depth)
		r = KVS_CUDA_INVALID_CONTEXT;
	if (!r && in_context)
		r = fake.dead;
	return r;
}

int leave(int result)
{
	(void)pthread_mutex_unlock(&fake.lock);
	return result;
}

void die(int error)
{
	if (!fake.dead)
		fake.dead = error;
	(void)pthread_cond_broadcast(&fake.changed);
}

/* ---- what a test says ---- */

void fake_cuda_config_init(struct fake_cuda_config *c)
{
	*c = base;
}

void fake_cuda_reset(const struct fake_cuda_config *c)
{
	(void)pthread_mutex_lock(&fake.lock);
	KVS_ASSERT(!fake.n.streams && !fake.n.contexts);
	fake.c = *c;
	fake.n = (struct fake_cuda_counts){ 0 };
	memset(fake.fault, 0, sizeof(fake.fault));
	fake.break_in = 0;
	fake.dead = 0;
	fake.hold = false;
	fake.slow_ns = 0;
	fake.register_left = UINT64_MAX;
	fake.shuffle = false;
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_counts(struct fake_cuda_counts *ret)
{
	(void)pthread_mutex_lock(&fake.lock);
	*ret = fake.n;
	ret->allocations = fake.allocs.n;
	ret->registrations = fake.hosts.n - fake.n.pinned;
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_fail(const char *name, uint64_t nth, int error)
{
	size_t i;

	(void)pthread_mutex_lock(&fake.lock);
	for (i = 0; i < FAULTS && fake.fault[i].nth; i++)
		;
	KVS_ASSERT(i < FAULTS);
	fake.fault[i] = (struct fault){ name, nth, error };
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_break(uint64_t nth, int error)
{
	(void)pthread_mutex_lock(&fake.lock);
	fake.break_in = nth;
	fake.break_error = error;
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_reset_faults(void)
{
	(void)pthread_mutex_lock(&fake.lock);
	memset(fake.fault, 0, sizeof(fake.fault));
	fake.break_in = 0;
	fake.dead = 0;
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_hold(bool hold)
{
	(void)pthread_mutex_lock(&fake.lock);
	fake.hold = hold;
	(void)pthread_cond_broadcast(&fake.changed);
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_slow(uint64_t ns)
{
	(void)pthread_mutex_lock(&fake.lock);
	fake.slow_ns = ns;
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_register_only(uint64_t n)
{
	(void)pthread_mutex_lock(&fake.lock);
	fake.register_left = n;
	(void)pthread_cond_broadcast(&fake.changed);
	(void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_shuffle(uint64_t seed)
{
	(void)pthread_mutex_lock(&fake.lock);
	fake.shuffle = seed;
	kvs_rng_init(&fake.rng, seed);
	(void)pthread_mutex_unlock(&fake.lock);
}

static void word(const char *name, unsigned long long v)
{
	if (!strcmp(name, "devices"))
		fake.c.devices = (int)v;
	else if (!strcmp(name, "driver"))
		fake.c.driver = (int)v;
	else if (!strcmp(name, "stub"))
		fake.c.stub = v;
	else if (!strcmp(name, "read_only"))
		fake.c.read_only = v;
	else if (!strcmp(name, "alias"))
		fake.c.alias = v;
	else if (!strcmp(name, "kernels"))
		fake.c.kernels = v;
	else if (!strcmp(name, "register_max"))
		fake.c.register_max = v;
	else if (!strcmp(name, "register_ns"))
		fake.c.register_ns = v;
	else if (!strcmp(name, "peer_mem"))
		fake.c.peer_mem = v;
	else if (!strcmp(name, "dma_buf"))
		fake.c.dma_buf = v;
	else if (!strcmp(name, "memory"))
		fake.c.memory = v;
	else
		fprintf(stderr, "KVS_FAKE_CUDA: %s?\n", name);
}

__attribute__((constructor)) static void read_words(void)
{
	const char *env = getenv("KVS_FAKE_CUDA");
	char buf[256];
	char *p, *save = NULL, *eq;

	(void)snprintf(buf, sizeof(buf), "%s", env ? env : "");
	for (p = strtok_r(buf, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
		eq = strchr(p, '=');
		if (eq)
			*eq++ = '\0';
		word(p, eq ? strtoull(eq, NULL, 0) : 1);
	}
	base = fake.c;
}

/* ---- what dlsym() finds ---- */

__attribute__((visibility("default"))) int cuInit(unsigned int flags);
__attribute__((visibility("default"))) int cuDriverGetVersion(int *ret);
__attribute__((visibility("default"))) int
cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
		    int *ret_status);

int cuInit(unsigned int flags)
{
	int r = enter("cuInit", false);

	if (!r && flags)
		r = KVS_CUDA_INVALID_VALUE;
	if (!r && fake.c.stub)
		r = KVS_CUDA_STUB_LIBRARY;
	if (!r && !fake.c.devices)
		r = KVS_CUDA_NO_DEVICE;
	return leave(r);
}

int cuDriverGetVersion(int *ret)
{
	int r = enter("cuDriverGetVersion", false);

	*ret = fake.c.driver;
	return leave(r);
}

struct entry {
	const char *symbol;
	int version;
	void *f;
};

static const struct entry entries[] = {
#define ENTRY(name, symbol, version, args) \
	{ #symbol, version, (void *)(uintptr_t)&fake_##name },
	KVS_CUDA_MAYBE_CALLS(ENTRY) KVS_CUDA_CALLS(ENTRY)
#undef ENTRY
};

int cuGetProcAddress_v2(const char *symbol, void **ret, int version,
			uint64_t flags, int *ret_status)
{
	int r = enter("cuGetProcAddress", false);
	size_t i;

	*ret = NULL;
	*ret_status = 1;
	/* the newest form that both know: forms are listed newest first */
	for (i = 0; i < KVS_ARRAY_SIZE(entries) && !r && !flags; i++) {
		const struct entry *e = &entries[i];

		if (strcmp(e->symbol, symbol) || e->version > version ||
		    e->version > fake.c.driver)
			continue;
		*ret = e->f;
		*ret_status = 0;
		break;
	}
	return leave(!r && !*ret ? KVS_CUDA_NOT_FOUND : r);
}

/* ---- devices and contexts ---- */

int fake_error_name(int error, const char **ret)
{
	static const struct {
		int error;
		const char *name;
	} names[] = {
		{ KVS_CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ KVS_CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ KVS_CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
		{ KVS_CUDA_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY" },
		{ KVS_CUDA_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU" },
		{ KVS_CUDA_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED" },
	};
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(names); i++) {
		if (names[i].error != error)
			continue;
		*ret = names[i].name;
		return 0;
	}
	return KVS_CUDA_INVALID_VALUE;
}

int fake_device_count(int *ret)
{
	int r = enter("cuDeviceGetCount", false);

	*ret = fake.c.devices;
	return leave(r);
}

int fake_device_get(int *ret, int ordinal)
{
	int r = enter("cuDeviceGet", false);

	if (!r && (ordinal < 0 || ordinal >= fake.c.devices))
		r = KVS_CUDA_INVALID_DEVICE;
	*ret = ordinal;
	return leave(r);
}

int fake_device_name(char *name, int len, int dev)
{
	int r = enter("cuDeviceGetName", false);

	(void)snprintf(name, (size_t)len, "Double of a GPU %d", dev);
	return leave(r);
}

int fake_device_bus(char *id, int len, int dev)
{
	int r = enter("cuDeviceGetPCIBusId", false);

	(void)snprintf(id, (size_t)len, "0000:AB:%02X.0", (unsigned int)dev);
	return leave(r);
}

int fake_device_attr(int *ret, int attr, int dev)
{
	int r = enter("cuDeviceGetAttribute", false);

	(void)dev;
	if (attr == KVS_CUDA_ATTR_HOST_POINTER_IS_DEVICE_POINTER)
		*ret = !fake.c.alias;
	else if (attr == KVS_CUDA_ATTR_READ_ONLY_HOST_REGISTER)
		*ret = fake.c.read_only;
	else if (attr == KVS_CUDA_ATTR_GPU_DIRECT_RDMA)
		*ret = fake.c.peer_mem;
	else if (attr == KVS_CUDA_ATTR_DMA_BUF)
		*ret = fake.c.dma_buf;
	else if (attr == KVS_CUDA_ATTR_HOST_NUMA_ID)
		*ret = 0;
	else
		r = r ? r : KVS_CUDA_INVALID_VALUE;
	return leave(r);
}

int fake_ctx_retain(kvs_cuda_ctx *ret, int dev)
{
	int r = enter("cuDevicePrimaryCtxRetain", false);

	(void)dev;
	if (!r)
		fake.n.contexts++;
	*ret = &the_context;
	return leave(r);
}

int fake_ctx_release(int dev)
{
	int r = enter("cuDevicePrimaryCtxRelease", false);

	(void)dev;
	KVS_ASSERT(fake.n.contexts);
	fake.n.contexts--;
	return leave(r);
}

int fake_ctx_push(kvs_cuda_ctx ctx)
{
	int r = enter("cuCtxPushCurrent", false);

	KVS_ASSERT(ctx == &the_context);
	if (!r)
		depth++;
	return leave(r);
}

int fake_ctx_pop(kvs_cuda_ctx *ret)
{
	int r = enter("cuCtxPopCurrent", false);

	if (!r && !depth)
		r = KVS_CUDA_INVALID_CONTEXT;
	if (!r)
		depth--;
	*ret = &the_context;
	return leave(r);
}

/* ---- modules ---- */

int fake_module_load(kvs_cuda_module *ret, const void *image)
{
	int r = enter("cuModuleLoadData", true);

	if (!r && (!image || !fake.c.kernels))
		r = KVS_CUDA_NO_BINARY_FOR_GPU;
	if (!r) {
		*ret = malloc(sizeof(**ret));
		KVS_ASSERT(*ret);
		fake.n.modules++;
	}
	return leave(r);
}

int fake_module_unload(kvs_cuda_module module)
{
	int r = enter("cuModuleUnload", true);

	fake.n.modules--;
	free(module);
	return leave(r);
}

int fake_module_func(kvs_cuda_func *ret, kvs_cuda_module module,
		     const char *name)
{
	int r = enter("cuModuleGetFunction", true);

	KVS_ASSERT(module);
	if (!strcmp(name, KVS_SCATTER_TO_DEVICE))
		*ret = &funcs[0];
	else if (!strcmp(name, KVS_SCATTER_TO_HOST))
		*ret = &funcs[1];
	else
		r = r ? r : KVS_CUDA_NOT_FOUND;
	return leave(r);
}

bool func_to_host(kvs_cuda_func f)
{
	KVS_ASSERT(f == &funcs[0] || f == &funcs[1]);
	return f->to_host;
}
