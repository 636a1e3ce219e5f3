/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: crashes
 *
 * When prefill instances die and come back, as the plan says, on both clocks;
 * how they do it is their owner's.
 */
#ifndef KVS_TOOLS_TTFT_CRASH_H
#define KVS_TOOLS_TTFT_CRASH_H

#include "lib/timer.h"
#include "tools/ttft/ttft.h"

struct ttft_crashes {
	const struct ttft_opts *o;
	const struct ttft_plan *p;
	const struct kvs_clock *clock;
	struct kvs_timerq *timers;
	uint64_t start; /* ns of the clock */
	void (*down)(void *arg, uint32_t prefill);
	int (*up)(void *arg, uint32_t prefill); /* 0 or -errno */
	void *arg; /* the owner's */
	uint64_t *back_at; /* ns; it is down until then; 0: up */
	size_t next;
	struct kvs_timer t;
	int err; /* of up() */
};

/* All but the last four are set. 0 or -ENOMEM. */
int ttft_crashes_begin(struct ttft_crashes *c);
/* Nobody dies any more. */
void ttft_crashes_end(struct ttft_crashes *c);

#endif /* KVS_TOOLS_TTFT_CRASH_H */
