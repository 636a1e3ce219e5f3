/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: hist
 *
 * Log-linear histogram of uint64_t values. Every power of two is cut into
 * 2^KVS_HIST_BITS linear buckets, so a reported quantile is at most a factor
 * 1 + 2^-KVS_HIST_BITS above the true value (values below 2^KVS_HIST_BITS are
 * exact). Fixed size, no allocation; one owner thread; merge to combine.
 */
#ifndef KVS_LIB_HIST_H
#define KVS_LIB_HIST_H

#include <stdint.h>

#define KVS_HIST_BITS 6
#define KVS_HIST_BUCKETS ((64 - KVS_HIST_BITS + 1) << KVS_HIST_BITS)

struct kvs_hist {
	uint64_t count;
	uint64_t sum; /* saturates */
	uint64_t min; /* UINT64_MAX when empty */
	uint64_t max;
	uint32_t bucket[KVS_HIST_BUCKETS]; /* each saturates */
};

void kvs_hist_init(struct kvs_hist *h);
void kvs_hist_record(struct kvs_hist *h, uint64_t v);
void kvs_hist_merge(struct kvs_hist *to, const struct kvs_hist *from);
/* @q in [0, 1], nearest rank; 0 when empty; never above max nor below min. */
uint64_t kvs_hist_quantile(const struct kvs_hist *h, double q);
/* 0 when empty (never NaN). */
double kvs_hist_mean(const struct kvs_hist *h);
/*
 * Number of recorded values <= @v, to the bucket's resolution: all of @v's own
 * bucket counts. Never falls as @v grows; equals count from max on.
 */
uint64_t kvs_hist_count_le(const struct kvs_hist *h, uint64_t v);

#endif /* KVS_LIB_HIST_H */
