/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of kvstage-bench cache. */
#ifndef KVS_TOOLS_BENCH_CACHE_H
#define KVS_TOOLS_BENCH_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "hicache/index.h"

#define CACHE_LIST_MAX 16u
#define CACHE_WORD_MAX 32u

/* How much a cache holds; unlimited when neither is set. */
struct cache_capacity {
	char text[CACHE_WORD_MAX]; /* as it was given */
	uint64_t bytes; /* 0: not given so */
	double share; /* of the footprint; 0: not given so */
};

struct cache_args {
	const char *trace;
	uint64_t entries;
	struct cache_capacity capacity[CACHE_LIST_MAX];
	unsigned int n_capacities;
	struct cache_capacity nvme;
	bool nvme_given;
	enum kvs_policy policy[KVS_POLICY_MAX];
	unsigned int n_policies;
	uint32_t small_share; /* per mille */
	uint32_t promote;
	const char *model;
	uint32_t tp;
	uint32_t block_tokens;
	uint64_t requests;
	uint32_t prefills;
	uint64_t nvme_rate; /* bytes a second */
	uint64_t recall; /* bytes; 0: not measured */
	const char *dir; /* of the disk tier, for recall */
	bool json;
};

/* Nanoseconds of its calls with so many entries. 0 or -errno. */
int kvs_bench_cache_entries(const struct cache_args *a);

/* How fast cached bytes come back, from each tier. 0, -errno; -ENOEXEC: it
 * cannot be measured here. */
int kvs_bench_cache_recall(const struct cache_args *a);

#endif /* KVS_TOOLS_BENCH_CACHE_H */
