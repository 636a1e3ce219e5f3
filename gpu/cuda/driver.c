/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gpu/cuda/driver.h"
#include "lib/assert.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct kvs_cuda_api api;
static int result;
static char why[160];

const char *kvs_cuda_error_name(int error)
{
	const char *name = NULL;

	if (!api.error_name || api.error_name(error, &name) || !name)
		return "CUDA error";
	return name;
}

int kvs_cuda_errno(int error)
{
	switch (error) {
	case KVS_CUDA_OK:
		return 0;
	case KVS_CUDA_INVALID_VALUE:
		return -EINVAL;
	case KVS_CUDA_OUT_OF_MEMORY:
		return -ENOMEM;
	case KVS_CUDA_NO_DEVICE:
	case KVS_CUDA_INVALID_DEVICE:
		return -ENODEV;
	case KVS_CUDA_NOT_READY:
		return -EINPROGRESS;
	case KVS_CUDA_HOST_ALREADY_REGISTERED:
		return -EEXIST;
	case KVS_CUDA_HOST_NOT_REGISTERED:
		return -ENOENT;
	case KVS_CUDA_NOT_PERMITTED:
		return -EPERM;
	case KVS_CUDA_NOT_SUPPORTED:
	case KVS_CUDA_STUB_LIBRARY:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

bool kvs_cuda_is_sticky(int error)
{
	switch (error) {
	case KVS_CUDA_DEINITIALIZED:
	case KVS_CUDA_ECC_UNCORRECTABLE:
	case KVS_CUDA_NVLINK_UNCORRECTABLE:
	case KVS_CUDA_LAUNCH_TIMEOUT:
	case KVS_CUDA_CONTEXT_IS_DESTROYED:
	case KVS_CUDA_UNKNOWN:
		return true;
	default:
		/* illegal address, and stack error to launch failed */
		return error == KVS_CUDA_ILLEGAL_ADDRESS ||
		       (error >= KVS_CUDA_HARDWARE_STACK_ERROR &&
			error <= KVS_CUDA_LAUNCH_FAILED);
	}
}

/* POSIX has dlsym() return a function as a pointer to data. */
static int sym(void *lib, const char *name, void *ret)
{
	void *p = dlsym(lib, name);

	if (!p)
		return -ENOENT;
	memcpy(ret, &p, sizeof(p));
	return 0;
}

struct call {
	const char *symbol;
	int version;
	size_t at; /* in the table of functions */
	bool needed;
};

static const struct call calls[] = {
#define NEEDED(name, symbol, version, args) \
	{ #symbol, version, offsetof(struct kvs_cuda_api, name), true },
#define MAYBE(name, symbol, version, args) \
	{ #symbol, version, offsetof(struct kvs_cuda_api, name), false },
	KVS_CUDA_CALLS(NEEDED) KVS_CUDA_MAYBE_CALLS(MAYBE)
#undef MAYBE
#undef NEEDED
};

static int find(const struct call *c)
{
	void *p = NULL;
	int status = 0;

	if (c->version > api.version ||
	    api.find(c->symbol, &p, c->version, 0, &status) || status || !p)
		return -ENOENT;
	memcpy((char *)&api + c->at, &p, sizeof(p));
	return 0;
}

static int find_all(void)
{
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(calls); i++) {
		if (!find(&calls[i]) || !calls[i].needed)
			continue;
		(void)snprintf(why, sizeof(why), "CUDA driver %d.%d lacks %s",
			       api.version / 1000, api.version % 1000 / 10,
			       calls[i].symbol);
		return -EOPNOTSUPP;
	}
	return 0;
}

static int start(void)
{
	int n = 0;
	int r;

	if (api.driver_version(&api.version) || api.version < 12000) {
		(void)snprintf(why, sizeof(why),
			       "CUDA driver %d.%d is too old: 12.0 is needed",
			       api.version / 1000, api.version % 1000 / 10);
		return -EOPNOTSUPP;
	}
	r = find_all();
	if (r)
		return r;
	r = api.init(0);
	if (!r)
		r = api.device_count(&n);
	if (r || !n) {
		(void)snprintf(why, sizeof(why),
			       "CUDA driver %d.%d finds no device: %s",
			       api.version / 1000, api.version % 1000 / 10,
			       r ? kvs_cuda_error_name(r) : "there is none");
		return -EOPNOTSUPP;
	}
	return 0;
}

static void load(void)
{
	void *lib = dlopen(KVS_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		(void)snprintf(why, sizeof(why), "no CUDA driver: %s",
			       dlerror());
		result = -EOPNOTSUPP;
		return;
	}
#define FIRST(name, symbol, ver, args)                                  \
	if (!result && sym(lib, #symbol, &api.name)) {                  \
		(void)snprintf(why, sizeof(why),                        \
			       "%s lacks %s: a CUDA driver of 12.0 or " \
			       "later is needed",                       \
			       KVS_CUDA_LIBRARY, #symbol);              \
		result = -EOPNOTSUPP;                                   \
	}
	KVS_CUDA_FIRST_CALLS(FIRST)
#undef FIRST
	if (!result)
		result = start();
}

int kvs_cuda_driver(const struct kvs_cuda_api **ret, char *err, size_t errlen)
{
	(void)pthread_once(&once, load);
	if (result) {
		(void)snprintf(err, errlen, "%s", why);
		return result;
	}
	*ret = &api;
	return 0;
}
