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

/**
 * struct kvs_serving_load - what is asked of it
 * @rate: requests a second
 * @tokens: mean of the prompt lengths
 * @tokens2: mean of their squares
 * @tokens3: mean of their cubes
 * @max_tokens: longest prompt
 * @abort: share of the requests that are given up
 * @acked: their acknowledgements come, so that nothing is held for long
 */
struct kvs_serving_load {
	double rate;
	double tokens;
	double tokens2;
	double tokens3;
	uint32_t max_tokens;
	double abort;
	bool acked;
};

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
 * kvs_serving_pool() - bytes of host pool that the load wants
 *
 * Memory of a room is taken when it is admitted and kept while it waits for
 * its prefill instance, is computed, is sent, and is copied to the device; of
 * one that is given up, hold_timeout longer. Each is the rate times the time
 * times the tokens; the sum varies as shot noise does, and three standard
 * deviations and the longest prompt are added.
 */
uint64_t kvs_serving_pool(const struct kvs_serving *s,
			  const struct kvs_serving_load *l);

#endif /* KVS_TOOLS_SERVING_H */
