/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: clock
 *
 * Monotonic time behind one interface: the real clock (CLOCK_MONOTONIC) or a
 * virtual one that moves only when told, so that a whole pipeline is
 * deterministic. All times are nanoseconds in uint64_t. Wall time is used
 * for log lines only.
 */
#ifndef KVS_LIB_CLOCK_H
#define KVS_LIB_CLOCK_H

#include <stdint.h>

#define KVS_NSEC_PER_SEC 1000000000ULL
#define KVS_NSEC_PER_MSEC 1000000ULL
#define KVS_NSEC_PER_USEC 1000ULL
#define KVS_TIME_NEVER UINT64_MAX

struct kvs_clock {
	/* ns since an arbitrary start; never goes back */
	uint64_t (*now)(const struct kvs_clock *clk);
};

/* Any thread may read it, one thread moves it. */
struct kvs_vclock {
	struct kvs_clock clk; /* pass &v->clk on */
	uint64_t t; /* ns */
};

/* The real monotonic clock; shared, thread safe. */
extern const struct kvs_clock kvs_clock_real;

static inline uint64_t kvs_clock_now(const struct kvs_clock *clk)
{
	return clk->now(clk);
}

/**
 * kvs_vclock_init() - virtual clock that stands at @start
 * @v: clock, caller-owned, must outlive its users
 * @start: ns
 */
void kvs_vclock_init(struct kvs_vclock *v, uint64_t start);

/**
 * kvs_vclock_advance() - move the virtual clock forward
 * @v: clock
 * @delta: ns; saturates at KVS_TIME_NEVER - 1
 */
void kvs_vclock_advance(struct kvs_vclock *v, uint64_t delta);

/* CPU time of the calling thread, ns (CLOCK_THREAD_CPUTIME_ID). */
uint64_t kvs_clock_thread_cpu(void);

#endif /* KVS_LIB_CLOCK_H */
