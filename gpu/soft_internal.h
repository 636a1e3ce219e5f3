/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: soft_internal
 *
 * The soft device with its thread (soft.c) and the one without
 * (soft_virtual.c): memory, checks and counters are the same.
 */
#ifndef KVS_GPU_SOFT_INTERNAL_H
#define KVS_GPU_SOFT_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "gpu/device_internal.h"
#include "gpu/soft.h"
#include "gpu/spans.h"
#include "lib/mpsc.h"

struct kvs_soft {
	struct kvs_device dev;
	uint64_t bytes_per_sec;
	struct kvs_soft_plan plan;
	pthread_t thread;
	struct kvs_soft_virtual *v; /* instead of the thread, or NULL */
	bool hidden; /* device addresses lead nowhere */

	/* ->lock protects both sets; nothing else is taken under it */
	pthread_mutex_t lock;
	struct kvs_spans allocs;
	struct kvs_spans hosts;

	/* submitters */
	_Atomic uint64_t order;

	/* submitter to copy thread */
	struct kvs_mpsc queue;
	sem_t work; /* posted after each push, and by close */
	sem_t held; /* posted by release and by close */
	_Atomic bool stop; /* release in close, acquire in the thread's loop */

	/* copy thread */
	_Alignas(64) uint64_t pace_from; /* ns; 0: begin with the next copy */
	uint64_t pace_bytes; /* moved since */
	_Atomic int sticky; /* see above */
	_Atomic uint64_t copies; /* these are ordered by the status */
	_Atomic uint64_t failed;
	_Atomic uint64_t bytes;
	_Atomic uint64_t moves;
	_Atomic uint64_t launches;
	_Atomic uint64_t steps;
	struct kvs_soft_ring *ring; /* copies are planned; or NULL */
};

extern const struct kvs_device_ops kvs_soft_virtual_ops;

struct kvs_soft *kvs_to_soft(struct kvs_device *d);
/* A device with no memory and no thread. Return: 0; -ENOMEM. */
int kvs_soft_new(const struct kvs_device_ops *ops, struct kvs_soft **ret);
/* The device, and every allocation left. */
void kvs_soft_free_all(struct kvs_soft *s);
void kvs_soft_count(_Atomic uint64_t *c, uint64_t n);
/* The first @n runs are there, and the device is through with them. */
void kvs_soft_run_done(struct kvs_copy *c, size_t n);
/* Count and publish; @c may be gone after. */
void kvs_soft_finish(struct kvs_soft *s, struct kvs_copy *c, int status);
/* May the device make this copy? Return: 0; -EINVAL. */
int kvs_soft_check(struct kvs_soft *s, const struct kvs_copy *c);

int kvs_soft_alloc(struct kvs_device *d, uint64_t len, void **ret);
void kvs_soft_free(struct kvs_device *d, void *p);
int kvs_soft_register(struct kvs_device *d, void *addr, uint64_t len,
		      unsigned int flags);
int kvs_soft_unregister(struct kvs_device *d, void *addr, uint64_t len);
int kvs_soft_query(struct kvs_device *d, const struct kvs_copy *c);
size_t kvs_soft_progress(struct kvs_device *d, const struct kvs_copy *c);
int kvs_soft_peek(struct kvs_device *d, void *host, const void *dev,
		  uint64_t len);

/* One contiguous piece, at the device's rate. */
void kvs_soft_move(struct kvs_soft *s, enum kvs_copy_dir dir, char *host,
		   char *dev, uint64_t len);

void kvs_soft_info(struct kvs_device *d, struct kvs_device_info *ret);
int kvs_soft_export(struct kvs_device *d, const void *addr, uint64_t len,
		    int *ret_fd, uint64_t *ret_offset);

/* soft_plan.c */
/* From here on copies are planned. Return: 0; -ENOMEM. */
int kvs_soft_plan_copies(struct kvs_soft *s, const struct kvs_copy_opts *o);
void kvs_soft_plan_free(struct kvs_soft *s);
void kvs_soft_plan_info(const struct kvs_soft *s, struct kvs_device_info *ret);
/* Make a copy by its plan; @half: stop in the middle. Return: 0; -EIO. */
int kvs_soft_make_plan(struct kvs_soft *s, struct kvs_copy *c, bool half);

/* soft_virtual.c */
void kvs_soft_virtual_release(struct kvs_soft *s);

#endif /* KVS_GPU_SOFT_INTERNAL_H */
