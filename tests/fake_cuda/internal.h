/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: fake_cuda, inside
 *
 * One lock for everything, the memory that copies move excepted; streams wait
 * on one condition.
 */
#ifndef KVS_TESTS_FAKE_CUDA_INTERNAL_H
#define KVS_TESTS_FAKE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/cuda/api.h"
#include "gpu/scatter.h"
#include "gpu/spans.h"
#include "lib/list.h"
#include "lib/rng.h"
#include "tests/fake_cuda/fake_cuda.h"

#define ALIAS ((uint64_t)1 << 46) /* from a host address to the device's */
#define FAULTS 16

struct fault {
	const char *name;
	uint64_t nth;
	int error;
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fake_cuda_config c;
	struct fake_cuda_counts n;
	struct fault fault[FAULTS];
	uint64_t break_in; /* operations; 0: never */
	int break_error;
	int dead; /* error of the context, or 0 */
	bool hold;
	uint32_t working; /* streams that move bytes, without the lock */
	uint64_t slow_ns;
	uint64_t register_left; /* UINT64_MAX: any number */
	struct kvs_rng rng;
	bool shuffle;
	struct kvs_spans allocs; /* device memory */
	struct kvs_spans hosts; /* registered and pinned */
	uint64_t used; /* bytes of allocs */
	uintptr_t unregistered[64];
};

extern struct fake fake;

/* A call begins: the lock is taken. Return: 0, or what it returns at once;
 * leave() in any case. */
int enter(const char *name, bool in_context);
int leave(int result);

/* One copy, addresses being the CPU's. */
struct move {
	void *to;
	const void *from;
	size_t len;
};

/* CPU address of memory that a copy names; @raw: host memory by its own
 * address. Return: 0; KVS_CUDA_INVALID_VALUE. Lock held. */
int resolve(kvs_cuda_ptr p, size_t len, bool *pageable, bool *raw, void **ret);
/* May a kernel touch it? The CPU's address in @ret. Lock held. */
bool reach(uint64_t p, uint64_t len, void **ret);

/* Run a launch. Lock held, dropped meanwhile. Return: 0 or the error. */
int run_launch(const struct kvs_scatter_launch *l, bool to_host,
	       uint32_t threads);
/* Freeing waits for what is being moved, whosever it is. Lock held. */
void wait_idle(void);
/* The context ends. Lock held. */
void die(int error);

/* Which of the two kernels. */
bool func_to_host(kvs_cuda_func f);

/* the calls, by name */
#define CALL(name, symbol, version, args) int fake_##name args;
KVS_CUDA_CALLS(CALL)
KVS_CUDA_MAYBE_CALLS(CALL)
#undef CALL

#endif /* KVS_TESTS_FAKE_CUDA_INTERNAL_H */
