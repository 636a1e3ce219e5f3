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
#include <stddef.h>
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

#define KVS_SERVING_LENGTHS 512u

/* A prompt of a trace. */
struct kvs_serving_arrival {
	double at; /* seconds */
	double tokens; /* in whole pages */
};

/**
 * struct kvs_serving_load - what is asked of it
 * @rate: requests a second
 * @tokens: mean of the prompt lengths, in whole pages
 * @tokens2: mean of their squares
 * @length: prompt lengths, each as likely as the others, ascending
 * @max_tokens: longest prompt
 * @output: mean of the tokens generated
 * @abort: share of the requests that are given up, anywhere in their prefill
 * @acked: their acknowledgements come, so that nothing is held for long
 * @arrival: by time, where it is they that come; NULL: independent of each
 *           other, at @rate
 * @n: of these
 */
struct kvs_serving_load {
	double rate;
	double tokens;
	double tokens2;
	double length[KVS_SERVING_LENGTHS];
	uint32_t max_tokens;
	double output;
	double abort;
	bool acked;
	struct kvs_serving_arrival *arrival;
	size_t n;
};

/**
 * struct kvs_serving_size - what one NUMA node's pool has to hold
 * @wait: seconds a prompt waits for an instance, mean
 * @prefill, @push, @claim, @copy: seconds of the mean prompt
 * @in_flight: bytes of rooms that are received, claimed or copied, mean
 * @held: bytes of rooms that were given up, mean
 * @sigma: standard deviation of the sum where arrivals are independent, bytes
 * @stay: seconds that a byte stays, mean
 * @independent: bytes that are passed once in the horizon, about as likely as
 *               not, where arrivals are independent of each other
 * @replays: of the arrivals; 0: none
 * @peak: bytes: @independent, or what the replays reached, as a mean
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
	double stay;
	double independent;
	unsigned int replays;
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
 * @arrivals: it is they that come, not others like them
 * @ret: all but @abort and @acked; for kvs_serving_load_fini()
 *
 * Return: 0 or -ENOMEM.
 */
int kvs_serving_load_of(const struct kvs_trace *t, uint32_t page_size,
			double speed, bool arrivals,
			struct kvs_serving_load *ret);
void kvs_serving_load_fini(struct kvs_serving_load *l);

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
 * times: a shot noise, see kvs_shot_level().
 *
 * Arrivals of a trace are not independent of each other: where the load has
 * them, they are replayed with the same times, with other requests given up
 * each time, and the peak is the mean of what a pool without an end reached.
 * If the horizon is longer than they are, it is higher by what that makes
 * where they are independent.
 *
 * Where rooms are few it is no less than the mean, and than one room of the
 * mean size.
 * Return: 0 or -ENOMEM.
 */
int kvs_serving_size(const struct kvs_serving *s,
		     const struct kvs_serving_load *l, unsigned int nodes,
		     double horizon, struct kvs_serving_size *ret);

/**
 * kvs_serving_replay() - what a pool without an end reaches
 * @s: the cluster
 * @l: with arrivals
 * @nodes: that share it; rooms are spread over them by chance
 * @z: wait is not used; push, claim and copy are
 * @ret_peak: bytes of a node, mean over nodes and replays
 * @ret_replays: how many
 *
 * The same is always the same. Return: 0 or -ENOMEM.
 */
int kvs_serving_replay(const struct kvs_serving *s,
		       const struct kvs_serving_load *l, unsigned int nodes,
		       const struct kvs_serving_size *z, double *ret_peak,
		       unsigned int *ret_replays);

#endif /* KVS_TOOLS_SERVING_H */
