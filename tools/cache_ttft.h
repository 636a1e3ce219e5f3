/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: cache ttft
 *
 * What a cache makes of the time to first token: the requests of a trace at
 * the prefill instances of tools/serving.h, each less the tokens that a replay
 * found cached. A request goes to the instance with the least queued; its
 * prompt is computed in order of arrival there and pushed chunk by chunk, what
 * lies on the disk is read meanwhile, by one disk, in order of arrival; when
 * both are there all of it is copied to the device, and a decode step gives the
 * first token. The device has room for all, and nobody gives up: only what the
 * cache changes is looked at. kvstage-bench ttft runs the product instead.
 */
#ifndef KVS_TOOLS_CACHE_TTFT_H
#define KVS_TOOLS_CACHE_TTFT_H

#include <stdint.h>

#include "tools/cache_replay.h"
#include "tools/serving.h"
#include "tools/trace.h"

/**
 * struct kvs_cache_ttft - what users see
 * @mean, @median, @p90, @p99: ms from the arrival to the first token
 * @wait: ms of these, mean, until an instance was free
 */
struct kvs_cache_ttft {
	double mean;
	double median;
	double p90;
	double p99;
	double wait;
};

/**
 * kvs_cache_ttft() - TTFT of a trace
 * @s: the cluster; token_bytes set
 * @t: trace, by time
 * @hit: of each request; NULL: nothing is cached
 * @disk_rate: bytes a second that the disk tier gives; above 0
 * @ret: result
 *
 * At least one token of a prompt is computed.
 * Return: 0 or -ENOMEM.
 */
int kvs_cache_ttft(const struct kvs_serving *s, const struct kvs_trace *t,
		   const struct kvs_replay_hit *hit, double disk_rate,
		   struct kvs_cache_ttft *ret);

#endif /* KVS_TOOLS_CACHE_TTFT_H */
