/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: serving
 *
 * What kvstage-bench ttft and kvstage-plan assume of the cluster around a
 * decode node: the same numbers, so that one can be checked against the
 * other. Each default names its source in serving.c; kvstage-bench(1) repeats
 * them.
 *
 * One decode engine with a KV pool in tokens; @prefills prefill instances,
 * each with a link of its own. A prompt is computed in chunks, one prompt at a
 * time on an instance, and each chunk is pushed as soon as it is computed. A
 * decode step takes @step_base + @step_request for each request in the batch
 * and gives each of them one token.
 */
#ifndef KVS_TOOLS_SERVING_H
#define KVS_TOOLS_SERVING_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct kvs_serving - the cluster around a decode node
 * @device_tokens: tokens of the decode engine's KV pool
 * @page_size: tokens a page
 * @token_bytes: KV bytes of a token, all layers
 * @prefills: prefill instances
 * @prefill_rate: prompt tokens a second that one instance computes
 * @prefill_chunk: tokens computed and pushed at a time
 * @link_rate: bytes a second from one instance to the decode node
 * @link_latency: ns, one way
 * @h2d_rate: bytes a second from host to device; every rank of the engine has
 *            a path of its own, so what is the same for all counts once
 * @step_base: ns of a decode step
 * @step_request: ns more for each request of the batch
 * @hold_timeout: ns, hold.timeout
 */
struct kvs_serving {
	uint64_t device_tokens;
	uint32_t page_size;
	uint64_t token_bytes;
	uint32_t prefills;
	double prefill_rate;
	uint32_t prefill_chunk;
	uint64_t link_rate;
	uint64_t link_latency;
	uint64_t h2d_rate;
	uint64_t step_base;
	uint64_t step_request;
	uint64_t hold_timeout;
};

#define KVS_SERVING_WINDOWS 8u /* of 1, 2, 4 .. 128 seconds */

/**
 * struct kvs_serving_load - what is asked of it
 * @rate: requests a second
 * @tokens: mean of the prompt lengths, in whole pages
 * @tokens2, @tokens3, @tokens4: means of their powers
 * @max_tokens: longest prompt
 * @output: mean of the tokens generated
 * @dispersion: variance over mean of the arrivals in such a window; 1 where
 *              they are independent of each other
 * @abort: share of the requests that are given up, anywhere in their prefill
 * @acked: their acknowledgements come, so that nothing is held for long
 */
struct kvs_serving_load {
	double rate;
	double tokens;
	double tokens2;
	double tokens3;
	double tokens4;
	uint32_t max_tokens;
	double output;
	double dispersion[KVS_SERVING_WINDOWS];
	double abort;
	bool acked;
};

/**
 * struct kvs_serving_size - what one NUMA node's pool has to hold
 * @wait: seconds a prompt waits for an instance, mean
 * @prefill, @push, @claim, @copy: seconds of the mean prompt
 * @in_flight: bytes of rooms that are received, claimed or copied, mean
 * @held: bytes of rooms that were given up, mean
 * @sigma: standard deviation of the sum, bytes
 * @skew: of it
 * @stay: seconds that a byte stays, mean
 * @dispersion: of the arrivals, over that
 * @peak: bytes that are passed once in the horizon, about as likely as not
 * @largest: bytes of the longest prompt
 * @pool: bytes: the peak, and never less than the largest; 1 << 62 where that
 *        or more
 */
struct kvs_serving_size {
	double wait;
	double prefill;
	double push;
	double claim;
	double copy;
	double in_flight;
	double held;
	double sigma;
	double skew;
	double stay;
	double dispersion;
	double peak;
	double largest;
	uint64_t pool;
};

struct kvs_trace;

/* All but page_size and token_bytes, which are the model's. */
void kvs_serving_defaults(struct kvs_serving *ret);

/**
 * kvs_serving_model() - page_size and token_bytes of a preset
 * @s: written on success
 * @model: name, see pipeline/presets.h
 * @err: message on failure
 * @errlen: its size
 *
 * Counts paged buffers only.
 * Return: 0; as kvs_preset_layout().
 */
int kvs_serving_model(struct kvs_serving *s, const char *model, char *err,
		      unsigned int errlen);

/**
 * kvs_serving_load_of() - the load that a trace is
 * @t: requests
 * @page_size: tokens; lengths are rounded up to it
 * @speed: arrivals come so many times as fast
 * @ret: all but @abort and @acked
 */
void kvs_serving_load_of(const struct kvs_trace *t, uint32_t page_size,
			 double speed, struct kvs_serving_load *ret);

#define KVS_SERVING_HORIZON 3600.0 /* seconds */

/**
 * kvs_serving_size() - the pool that the load wants
 * @s: the cluster; hold_timeout is what an abort may hold for
 * @l: its load
 * @nodes: NUMA nodes that share it; at least 1
 * @horizon: seconds in which the peak is to be expected once
 * @ret: for one of the nodes
 *
 * Memory of a room is taken when it is opened and kept while it waits for its
 * prefill instance, is computed, is sent, is claimed and is copied; of one
 * that is given up, until the hold ends. So many bytes for so long, at random
 * times: a shot noise, whose cumulants are the rate times the means of
 * bytes^k times seconds (Campbell's theorem). Arrivals in clusters widen it by
 * their dispersion. Its peak is the level of a Pearson III distribution with
 * these cumulants that is passed once in the horizon, by Wilson and Hilferty's
 * approximation, with two looks for each time that a byte stays. Where rooms
 * are few it is no less than the mean, than one room of the mean size, and
 * than so many of them as are there at once with that probability.
 */
void kvs_serving_size(const struct kvs_serving *s,
		      const struct kvs_serving_load *l, unsigned int nodes,
		      double horizon, struct kvs_serving_size *ret);

#endif /* KVS_TOOLS_SERVING_H */
