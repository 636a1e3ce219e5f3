/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "lib/assert.h"
#include "lib/clock.h"

static uint64_t kvs_clock_read(clockid_t id)
{
	struct timespec ts;
	int ret;

	/* fails only for a clock the kernel does not have */
	ret = clock_gettime(id, &ts);
	KVS_ASSERT(!ret);
	return (uint64_t)ts.tv_sec * KVS_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static uint64_t kvs_clock_real_now(const struct kvs_clock *clk)
{
	(void)clk;
	return kvs_clock_read(CLOCK_MONOTONIC);
}

const struct kvs_clock kvs_clock_real = {
	.now = kvs_clock_real_now,
};

uint64_t kvs_clock_thread_cpu(void)
{
	return kvs_clock_read(CLOCK_THREAD_CPUTIME_ID);
}

/*
 * Relaxed atomics: a test moves the clock while worker threads read it, and
 * nothing else is published through the time.
 */
static uint64_t kvs_vclock_now(const struct kvs_clock *clk)
{
	const struct kvs_vclock *v =
		kvs_container_of(clk, struct kvs_vclock, clk);

	return __atomic_load_n(&v->t, __ATOMIC_RELAXED);
}

void kvs_vclock_init(struct kvs_vclock *v, uint64_t start)
{
	v->clk.now = kvs_vclock_now;
	v->t = start < KVS_TIME_NEVER ? start : KVS_TIME_NEVER - 1;
}

void kvs_vclock_advance(struct kvs_vclock *v, uint64_t delta)
{
	uint64_t t = __atomic_load_n(&v->t, __ATOMIC_RELAXED);

	if (delta > KVS_TIME_NEVER - 1 - t)
		t = KVS_TIME_NEVER - 1;
	else
		t += delta;
	__atomic_store_n(&v->t, t, __ATOMIC_RELAXED);
}
