/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: soft device
 *
 * What only the soft device can tell. kvs_soft_release() is in device.h.
 *
 * A *virtual* soft device has no thread: its copies move in pieces, each due
 * at a time of the caller's clock, when kvs_soft_run() is called, and faults
 * strike them by the seed or by a hook. Copies are made one after another as
 * they were submitted, but for those that a fault takes out of that order.
 */
#ifndef KVS_GPU_SOFT_H
#define KVS_GPU_SOFT_H

#include <stdint.h>

#include "gpu/device.h"
#include "lib/clock.h"

/**
 * struct kvs_soft_stats - counts since the device was opened
 * @copies: finished copies, failed ones included
 * @failed: finished with an error
 * @bytes: moved, those of failed copies included
 * @moves: contiguous pieces moved; pages that lie next to each other count
 *         as one
 * @launches: of the scatter kernel; copies that are planned only, see struct
 *            kvs_copy_opts
 * @steps: of their plans
 * @allocs: allocations alive
 * @alloc_bytes: bytes alive
 * @registered: host ranges registered now
 * @registered_bytes: their bytes
 */
struct kvs_soft_stats {
	uint64_t copies;
	uint64_t failed;
	uint64_t bytes;
	uint64_t moves;
	uint64_t launches;
	uint64_t steps;
	uint64_t allocs;
	uint64_t alloc_bytes;
	uint64_t registered;
	uint64_t registered_bytes;
};

/**
 * kvs_soft_stats() - read the counts
 *
 * What a copy did is in them once kvs_device_query() has said it is complete.
 * Context: any thread. Return: 0, or -EOPNOTSUPP for another backend.
 */
int kvs_soft_stats(struct kvs_device *d, struct kvs_soft_stats *ret);

/* The kinds of fault of a virtual device: X(NAME, text) */
#define KVS_SOFT_FAULTS(X)                                                     \
	/* begins @delay_max later at most, and so do those behind it */       \
	X(DELAY, "delay")                                                      \
	/* stops part way, and those behind it too, until kvs_soft_release() \
	 */ \
	X(HOLD, "hold")                                                        \
	/* fails with -EIO, no byte touched */                                 \
	X(FAIL, "fail")                                                        \
	/* moves a part, then fails with -EIO */                               \
	X(PARTIAL, "partial")                                                  \
	/* is made before the copy in front of it, if that has not begun */    \
	X(REORDER, "reorder")                                                  \
	/* moves all, lets others pass, moves all again, and is complete */    \
	X(LATE, "late")                                                        \
	/* fails with -EIO, as all do from then on */                          \
	X(STICKY, "sticky")                                                    \
	/* moves a part, lets others pass, and is never complete */            \
	X(NEVER, "never")

enum kvs_soft_fault {
	KVS_SOFT_NO_FAULT,
#define X(name, text) KVS_SOFT_##name,
	KVS_SOFT_FAULTS(X)
#undef X
		KVS_SOFT_FAULT_MAX,
};

/**
 * struct kvs_soft_chances - how a virtual device behaves
 * @latency_min, @latency_max: ns from the submission to the begin
 * @bytes_per_sec: rate; 0: pieces take no time
 * @piece: bytes of a piece; 0: whole copies
 * @delay_max: ns, of DELAY and LATE; 0: 1 ms
 * @delay and so on: chance of each kind, per copy; at most one strikes
 */
struct kvs_soft_chances {
	uint64_t latency_min;
	uint64_t latency_max;
	uint64_t bytes_per_sec;
	uint64_t piece;
	uint64_t delay_max;
	double delay;
	double hold;
	double fail;
	double partial;
	double reorder;
	double late;
	double sticky;
	double never;
};

/**
 * struct kvs_soft_event - a copy as it is submitted
 * @order: copies of the device so far, this one included
 * @dir: which way
 * @bytes: in all
 * @at: where the fault strikes; left as it is, it is drawn. DELAY, LATE: ns.
 *      HOLD, PARTIAL, NEVER: bytes moved before
 */
struct kvs_soft_event {
	uint64_t order;
	enum kvs_copy_dir dir;
	uint64_t bytes;
	uint64_t *at;
};

/**
 * struct kvs_soft_virtual_opts - a virtual device
 * @clock: whose time it is; must outlive the device
 * @seed: of all that is drawn
 * @chances: faults by chance, and times
 * @fault: asked once about every copy, before the chances. May be NULL.
 *         Return: an enum kvs_soft_fault, or negative: as the chances say
 * @arg: for @fault
 * @phantom: addresses with no memory behind, so that any size can be had;
 *           copies take their time and move nothing
 */
struct kvs_soft_virtual_opts {
	const struct kvs_clock *clock;
	uint64_t seed;
	struct kvs_soft_chances chances;
	int (*fault)(void *arg, const struct kvs_soft_event *e);
	void *arg;
	bool phantom;
};

/**
 * kvs_soft_open_virtual() - open a device without a thread
 *
 * kvs_device_close() makes what can still be made, whatever the time, and
 * fails the copies that never end with -EIO, so that both ends stay the
 * device's until then. To leave them all where they are: kvs_soft_kill().
 * Context: the whole device belongs to one thread.
 * Return: 0; -EINVAL no clock, or latencies the wrong way round; -ENOMEM.
 */
int kvs_soft_open_virtual(const struct kvs_soft_virtual_opts *o,
			  struct kvs_device **ret);
/*
 * These four: virtual devices only.
 * Move every piece that is due. Return: how many.
 */
unsigned int kvs_soft_run(struct kvs_device *d);
/* When the next piece is due, ns; KVS_TIME_NEVER: none is. */
uint64_t kvs_soft_next(const struct kvs_device *d);
/*
 * As when the process dies: no byte moves any more, no copy is completed, new
 * ones are refused with -ENODEV.
 */
void kvs_soft_kill(struct kvs_device *d);
/* How often each kind took effect, KVS_SOFT_FAULT_MAX of them. */
const uint64_t *kvs_soft_faults(const struct kvs_device *d);
const char *kvs_soft_fault_name(enum kvs_soft_fault k);

#endif /* KVS_GPU_SOFT_H */
