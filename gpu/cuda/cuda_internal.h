/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: cuda device
 *
 * The device runs in the engine's own process and in the primary context, the
 * one that frameworks use, so the engine's pointers are valid here. A thread
 * of the device plans, launches and polls; submitters and queries touch
 * nothing but a queue and a status.
 *
 * A copy is a row of *flights*, one for each step of its plan, in order, six
 * under way at most. A flight keeps its launch table (pinned, and its image on
 * the device) until the event behind its last operation was seen; a ring slot
 * is filled again only behind the event of its last reader. Both orders are
 * the GPU's: three streams (up, down, kernels) wait for each other's events,
 * the thread waits for none but by polling. No function of ours is ever called
 * by the driver.
 *
 * An error of a call fails its copy, once what was launched of it is finished.
 * An error of an event is the context's end (sticky): every later call fails.
 * What goes to the device then ends with -EIO, as at worst it reads a room's
 * memory into a context that nobody can use any more. What goes to the host
 * and was launched stays under way: nothing proves that it does not write any
 * more, until the process is gone.
 */
#ifndef KVS_GPU_CUDA_INTERNAL_H
#define KVS_GPU_CUDA_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "gpu/cuda/driver.h"
#include "gpu/device_internal.h"
#include "gpu/plan.h"
#include "gpu/spans.h"
#include "lib/mpsc.h"

#define KVS_CUDA_FLIGHTS 6u
#define KVS_CUDA_BATCH (KVS_PLAN_PIECES + 2u)

enum kvs_cuda_lane {
	KVS_CUDA_UP,
	KVS_CUDA_DOWN,
	KVS_CUDA_KERNEL,
	KVS_CUDA_LANES,
};

struct kvs_cuda_slot {
	kvs_cuda_ptr mem;
	kvs_cuda_event free; /* behind its last reader */
	bool used;
};

/* A step under way. */
struct kvs_cuda_flight {
	struct kvs_copy *c;
	size_t runs_done;
	bool last; /* of its copy */
	int status; /* that the copy ends with, if last */
	void *table;
	kvs_cuda_ptr table_dev;
	kvs_cuda_event up; /* behind what it has on that lane */
	kvs_cuda_event kernel;
	kvs_cuda_event done;
};

struct kvs_cuda {
	struct kvs_device dev;
	const struct kvs_cuda_api *api;
	int ordinal;
	int cudev;
	kvs_cuda_ctx ctx;
	kvs_cuda_module module;
	kvs_cuda_func func[2]; /* by direction */
	char name[64];
	char bus[20];
	int numa_node;
	bool same_pointer; /* host pointers are device pointers */
	bool read_only_ok;
	bool peer_mem;
	bool dma_buf;
	uint64_t register_chunk;
	struct kvs_copy_opts opts;
	enum kvs_copy_way way; /* what is had */
	uint32_t blocks;

	/* ->lock: what follows; nothing else is taken under it */
	pthread_mutex_t lock;
	struct kvs_spans ranges; /* as they were registered */
	struct kvs_spans hosts; /* chunks of them */
	uint64_t pinned_bytes; /* of them; the others are pageable */

	/* submitters */
	_Atomic uint64_t order;

	/* submitter to thread */
	struct kvs_mpsc queue;
	sem_t work;
	_Atomic bool stop; /* release in close, acquire in the thread */

	/* thread; ->sticky is loaded (acquire) by submitters */
	_Alignas(64) pthread_t thread;
	_Atomic int sticky;
	_Atomic uint64_t batch_min; /* bytes; with ->measured */
	_Atomic bool measured;
	struct kvs_plan_tuning tuning;
	struct kvs_plan_tuning pageable; /* the same without zero copy */
	kvs_cuda_stream lane[KVS_CUDA_LANES];
	struct kvs_cuda_slot slot[KVS_PLAN_SLOTS_MAX];
	uint32_t n_slots;
	uint32_t next_slot;
	struct kvs_cuda_flight flight[KVS_CUDA_FLIGHTS];
	uint32_t first; /* of those under way */
	uint32_t n_flights;
	enum kvs_cuda_lane wrote_lane; /* where device rows were last written */
	kvs_cuda_event wrote; /* behind it; NULL: never */
	struct kvs_plan_step step;
	struct kvs_plan plan;
	struct kvs_copy *cur; /* being planned */
	struct kvs_copy *orphan[KVS_CUDA_FLIGHTS + 1]; /* never proven over */
	uint32_t n_orphans;
	kvs_cuda_ptr batch_dst[KVS_CUDA_BATCH];
	kvs_cuda_ptr batch_src[KVS_CUDA_BATCH];
	size_t batch_len[KVS_CUDA_BATCH];
	uint32_t n_batch;

	_Atomic uint64_t copies;
	_Atomic uint64_t failed;
	_Atomic uint64_t bytes;
	_Atomic uint64_t pieces;
	_Atomic uint64_t launches;
	_Atomic uint64_t steps;
};

/* The module with the kernels: a fat binary or PTX; no bytes: none is built. */
extern const unsigned char kvs_cuda_image[];
extern const size_t kvs_cuda_image_len;
extern const char kvs_cuda_image_how[]; /* what made it */

struct kvs_cuda *kvs_to_cuda(struct kvs_device *d);

/* Bytes of a run's host side, gaps included. */
uint64_t kvs_cuda_host_len(const struct kvs_copy *c, size_t i);

/* hosts.c */
int kvs_cuda_register(struct kvs_device *d, void *addr, uint64_t len,
		      unsigned int flags);
int kvs_cuda_unregister(struct kvs_device *d, void *addr, uint64_t len);
void kvs_cuda_unregister_all(struct kvs_cuda *k);
/* Is host memory of a run all known, or none of it, and may it be written to?
 * *@pinned is cleared where the kernel cannot reach it. Return: 0; -EINVAL. */
int kvs_cuda_host_check(const struct kvs_cuda *k, const void *addr,
			uint64_t len, bool written, bool *pinned);
/* Device address of pinned memory and the bytes from there on that are one
 * registration (@len at most); false: it is pageable. */
bool kvs_cuda_host_at(const struct kvs_cuda *k, uint64_t host, uint64_t len,
		      kvs_cuda_ptr *ret, uint64_t *ret_len);

/* steps.c: thread, context current */
int kvs_cuda_steps_init(struct kvs_cuda *k);
void kvs_cuda_steps_fini(struct kvs_cuda *k);
/* Launch a step of @c into a free flight. Return: 0; -errno of the call that
 * failed, and the flight is under way all the same unless the error is
 * sticky. */
int kvs_cuda_launch(struct kvs_cuda *k, struct kvs_copy *c,
		    struct kvs_cuda_flight *f);
/* Note an error that came from a call; return its errno. */
int kvs_cuda_noted(struct kvs_cuda *k, int error);

/* pump.c */
void *kvs_cuda_main(void *arg);
void kvs_cuda_finish(struct kvs_cuda *k, struct kvs_copy *c, int status);

/* measure.c: thread, before its first copy */
void kvs_cuda_measure(struct kvs_cuda *k);

#endif /* KVS_GPU_CUDA_INTERNAL_H */
