/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: statistics of runs
 *
 * Of one abort fraction all runs are compared over the same requests: those
 * that do not give up in any of them, and were answered in each of them that
 * was begun. Quantiles are of nearest rank.
 */
#ifndef KVS_TOOLS_TTFT_STAT_H
#define KVS_TOOLS_TTFT_STAT_H

#include "tools/ttft/ttft.h"

/* ms */
struct ttft_dist_stat {
	uint64_t n; /* values; of none, the rest is 0 */
	double mean;
	double std;
	double median;
	double p90;
	double p95;
	double p99;
};

struct ttft_stat {
	uint64_t survivors; /* what the next five are of */
	struct ttft_dist_stat ttft;
	struct ttft_dist_stat tpot;
	struct ttft_dist_stat itl;
	struct ttft_dist_stat e2e;
	struct ttft_dist_stat wait; /* arrival to memory */
	uint64_t completed; /* all these: of all requests */
	uint64_t aborted;
	uint64_t failed;
	uint64_t unfinished;
	uint64_t direct; /* were received directly */
	uint64_t input_tokens; /* of the completed */
	uint64_t output_tokens;
	double seconds; /* first arrival to the last end */
};

/* Which requests count for the abort fraction of run @k; p->n bytes, free()
 * them. NULL: no memory. */
unsigned char *ttft_common(const struct ttft_set *s, size_t k);
/* 0 or -ENOMEM. */
int ttft_stat(const struct ttft_set *s, size_t k, const unsigned char *common,
	      struct ttft_stat *ret);
/* The run with everybody's patience to compare run @k with; s->n: none. */
size_t ttft_ideal_of(const struct ttft_set *s, size_t k);
bool ttft_begun(const struct ttft_run *r);

#endif /* KVS_TOOLS_TTFT_STAT_H */
