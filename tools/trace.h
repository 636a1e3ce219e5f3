/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: trace
 *
 * Requests to replay, from a file or from a generator.
 *
 * A trace file holds one JSON object a line, as the Mooncake trace release
 * has them; lines of white space only are skipped, fields not named here are
 * ignored:
 *
 *   {"timestamp": 1500, "input_length": 1100, "output_length": 52,
 *    "hash_ids": [0, 17, 18]}            (on one line)
 *
 *   timestamp      integer, ms from the start, never less than on the line
 *                  before, up to KVS_TRACE_MS_MAX
 *   input_length   integer, tokens of the prompt, 1..KVS_TOKENS_MAX
 *   output_length  integer, tokens generated, 0..KVS_TOKENS_MAX
 *   hash_ids       may be missing: integers from 0 on, one per block of the
 *                  prompt (512 tokens in the published traces); equal ids
 *                  are equal blocks with equal blocks before them. No more
 *                  of them than tokens
 *
 * A line is at most KVS_TRACE_LINE_MAX bytes. The first thing wrong ends the
 * reading: "trace.jsonl:17: input_length: -3 is not in 1..16777216".
 */
#ifndef KVS_TOOLS_TRACE_H
#define KVS_TOOLS_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define KVS_TRACE_LINE_MAX (4u << 20) /* bytes */
#define KVS_TRACE_REQUESTS_MAX 10000000u
#define KVS_TRACE_MS_MAX (1LL << 40) /* 34 years */
#define KVS_TRACE_BLOCK 512u /* tokens of a generated block */

/**
 * struct kvs_trace_request - one request
 * @at_ms: ms from the start of the trace
 * @input: tokens, at least 1, after the clamp
 * @output: tokens
 * @n_ids: block ids
 * @ids: index of the first of them in kvs_trace.ids
 */
struct kvs_trace_request {
	uint64_t at_ms;
	uint32_t input;
	uint32_t output;
	uint32_t n_ids;
	uint64_t ids;
};

/* All zero is an empty trace. */
struct kvs_trace {
	struct kvs_trace_request *req;
	size_t n;
	size_t cap;
	uint64_t *ids;
	size_t n_ids;
	size_t ids_cap;
	uint64_t tokens; /* sum of input */
	uint32_t max_input; /* longest, after the clamp */
	size_t clamped; /* requests made shorter */
};

/**
 * kvs_trace_read() - read a trace file
 * @path: file, or a pipe: nothing after the last wanted line is parsed
 * @max_requests: how many are wanted; 0: all there are
 * @max_input: longer prompts are cut to this many tokens, their block ids in
 *             proportion; 0: they are not
 * @ret: the trace, for kvs_trace_fini()
 * @err: message, see above
 * @errlen: size of @err
 *
 * Fewer requests than wanted is no error, none at all is (-ENODATA).
 * Return: 0; -EINVAL (what the file says); -E2BIG (over a limit of this
 * reader); -ENODATA; -ENOMEM; or why the file could not be read.
 */
int kvs_trace_read(const char *path, size_t max_requests, uint32_t max_input,
		   struct kvs_trace *ret, char *err, size_t errlen);

/* Tokens at these points of a distribution; p50 <= p90 <= p99 <= max. */
struct kvs_trace_lengths {
	uint32_t p50;
	uint32_t p90;
	uint32_t p99;
	uint32_t max;
};

/* An hour of a chat service: long prompts, a longer tail. */
#define KVS_TRACE_CHAT_INPUT \
	((struct kvs_trace_lengths){ 6900, 27000, 85000, 126000 })
#define KVS_TRACE_CHAT_OUTPUT \
	((struct kvs_trace_lengths){ 350, 600, 1120, 2000 })
#define KVS_TRACE_CHAT_RATE 3.4 /* requests a second */

/**
 * struct kvs_trace_shape - what to generate
 * @n: requests, 1..KVS_TRACE_REQUESTS_MAX
 * @input: prompt tokens; the shortest is an eighth of the median
 * @output: generated tokens
 * @rate: requests a second, arrivals independent of each other; 0: all at 0
 * @max_input: as for kvs_trace_read()
 */
struct kvs_trace_shape {
	size_t n;
	struct kvs_trace_lengths input;
	struct kvs_trace_lengths output;
	double rate;
	uint32_t max_input;
};

/**
 * kvs_trace_generate() - make a trace up
 * @seed: equal seeds and shapes give equal traces
 * @shape: what it should look like
 * @ret: the trace, for kvs_trace_fini(); all begin with block 0, as after one
 *       system prompt, and share nothing else
 *
 * Lengths: the logarithm runs linearly through the points given, below the
 * median in the share of requests, above it in the logarithm of the share
 * that is longer, so the tail is that of a log-normal or heavier.
 * Return: 0; -EINVAL (points out of order or out of range, no requests or too
 * many, a negative rate, arrivals past KVS_TRACE_MS_MAX); -ENOMEM.
 */
int kvs_trace_generate(uint64_t seed, const struct kvs_trace_shape *shape,
		       struct kvs_trace *ret);

/* Frees what is in it; twice is harmless. */
void kvs_trace_fini(struct kvs_trace *t);

#endif /* KVS_TOOLS_TRACE_H */
