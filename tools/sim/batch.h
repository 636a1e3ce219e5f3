/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: batch
 *
 * Many schedules in several processes. Each process takes every n-th seed and
 * counts in memory it shares with the first; one that dies (an assertion) or
 * hangs fails its schedule, and another goes on behind it.
 */
#ifndef KVS_TOOLS_SIM_BATCH_H
#define KVS_TOOLS_SIM_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#define KVS_SIM_JOBS_MAX 64

struct kvs_sim_batch {
	uint64_t first;
	uint64_t last; /* inclusive */
	unsigned int jobs;
	bool json;
	bool seeds; /* as asked for */
	bool replay;
};

/* Return: exit status, 0 or 1. */
int kvs_sim_batch(const struct kvs_sim_batch *b);
/* One schedule, with its history on stdout. Return: exit status. */
int kvs_sim_replay(uint64_t seed);

#endif /* KVS_TOOLS_SIM_BATCH_H */
