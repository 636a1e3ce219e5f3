/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: workload
 *
 * What kvstage-send and kvstage-engine must agree on without a router between
 * them: the requests (a trace or the generator), their room ids and nonces,
 * the layout, which rank sends which layers, and what every byte is. Both
 * take the same options and make the same workload of them.
 *
 *   room of request i     room_base + i
 *   layers of rank r      [s * L / n, (s + 1) * L / n) of L layers, for stage
 *                         s = r / prefill_tp of n; its heads are those of
 *                         tp_rank r % prefill_tp
 *   bytes of a buffer     the pattern of (seed, room, kind, layer): a stream
 *                         of tokens, in each planes, in each all heads of the
 *                         model; of what is not cut page p at p * item_len
 *   bytes of an aux block the pattern of (seed, room, KVS_PATTERN_AUX, rank)
 */
#ifndef KVS_TOOLS_WORKLOAD_H
#define KVS_TOOLS_WORKLOAD_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "kvstage/layout.h"
#include "pipeline/layout.h"
#include "tools/trace.h"

#define KVS_WORKLOAD_MODEL "deepseek-v3" /* with KVS_WORKLOAD_LAYERS: */
#define KVS_WORKLOAD_LAYERS 4u /* 4,608 bytes a token */
#define KVS_WORKLOAD_REQUESTS 300u
#define KVS_WORKLOAD_AUX 256u /* bytes */

/**
 * struct kvs_workload_opts - as given on the command line
 * @trace: file; NULL: the generator
 * @generate: the generator was asked for by name
 * @requests: how many at most
 * @model: preset; NULL: KVS_WORKLOAD_MODEL, cut to KVS_WORKLOAD_LAYERS
 * @tp: tensor parallel ranks of the decode engine
 * @layers: first so many layers; 0: all, see @model
 * @page_size: tokens; 0: the model's
 * @max_input: longer prompts are cut; 0: they are not
 * @seed: of the generator and of the data
 * @room_base: room id of the first request, not 0
 * @aux_len: bytes of each rank's aux block
 * @peer: name of the prefill instance
 * @n_ranks: its ranks
 * @prefill_tp: ranks that its heads are divided between; divides @n_ranks
 * @prefill_page: tokens of its pages; 0: as the engine's
 * @capacity: tokens of the caller's own KV pool, for its layout; 0: not said
 * @max_context: tokens of the longest request that it accepts; 0: not said
 *
 * The last two differ between the two sides and are no options here.
 */
struct kvs_workload_opts {
	const char *trace;
	bool generate;
	size_t requests;
	const char *model;
	uint32_t tp;
	uint32_t layers;
	uint32_t page_size;
	uint32_t max_input;
	uint64_t seed;
	uint64_t room_base;
	uint32_t aux_len;
	const char *peer;
	uint32_t n_ranks;
	uint32_t prefill_tp;
	uint32_t prefill_page;
	uint64_t capacity;
	uint64_t max_context;
};

struct kvs_workload {
	struct kvs_workload_opts o;
	struct kvs_trace trace;
	struct kvs_layout *layout; /* decode rank 0 of tp */
	struct kvs_layout *prefill; /* prefill tp_rank 0, all layers */
	uint32_t n_layers; /* highest layer of it, plus 1 */
};

/* argp child; its input is a struct kvs_workload_opts, which it fills with
 * the defaults before the first option. */
extern const struct argp kvs_workload_argp;
/* The same defaults, for those who do not parse. */
void kvs_workload_defaults(struct kvs_workload_opts *o);

/**
 * kvs_workload_open() - read or make the requests, and the layout
 * @o: options
 * @ret: for kvs_workload_close(); the strings of @o must outlive it
 * @err: message
 * @errlen: its size
 * Return: 0; -EINVAL, -ENOENT (model or trace), -ENODATA, -E2BIG, -ENOMEM.
 */
int kvs_workload_open(const struct kvs_workload_opts *o,
		      struct kvs_workload *ret, char *err, size_t errlen);
void kvs_workload_close(struct kvs_workload *w);

/* Of request @i, below w->trace.n. */
uint64_t kvs_workload_room(const struct kvs_workload *w, size_t i);
uint64_t kvs_workload_tokens(const struct kvs_workload *w, size_t i);
void kvs_workload_nonce(const struct kvs_workload *w, size_t i,
			unsigned char ret[16]);
/* Pattern seed of a buffer, or of rank @layer's aux block with @kind
 * KVS_PATTERN_AUX. */
uint64_t kvs_workload_seed(const struct kvs_workload *w, uint64_t room,
			   unsigned int kind, unsigned int layer);
/* Items of a buffer that a request of @pages pages has. */
uint32_t kvs_workload_items(const struct kvs_layer_buffer *b, uint32_t pages);
uint32_t kvs_workload_pages(const struct kvs_workload *w, uint64_t tokens);

/* The same of the prefill's pages. */
uint32_t kvs_workload_prefill_pages(const struct kvs_workload *w,
				    uint64_t tokens);
/* Tokens of the request that the prefill has pages for. */
uint64_t kvs_workload_covered(const struct kvs_workload *w, uint64_t tokens);
/* The buffers of a decode rank, below tp. 0, -ENOMEM. */
int kvs_workload_decode_layout(const struct kvs_workload *w, uint32_t rank,
			       struct kvs_layout **ret);
/* What prefill rank @rank sends. */
struct kvs_slice kvs_workload_sends(const struct kvs_workload *w,
				    uint32_t rank);

/* Bytes of an item that follow one another in the buffer's stream. */
struct kvs_workload_piece {
	uint64_t off; /* in the item */
	uint64_t at; /* in the stream */
	uint64_t len;
	uint64_t token; /* of a paged buffer: the first one */
};

/* How many pieces an item of buffer @b has, and the @k-th of item @item. */
uint32_t kvs_workload_n_pieces(const struct kvs_layout *l, uint32_t b);
struct kvs_workload_piece kvs_workload_piece(const struct kvs_layout *l,
					     uint32_t b, uint64_t item,
					     uint32_t k);

/* Layers of @rank; none where there are more ranks than layers. */
struct kvs_rank_slice kvs_workload_slice(const struct kvs_workload *w,
					 uint32_t rank);
/**
 * kvs_workload_rank_layout() - the buffers of one rank, in layout order
 * @ret: as of kvs_layout_dup(); a rank without layers gets the first buffer,
 *       for a layout cannot be empty, and sends nothing of it
 * Return: 0, -ENOMEM.
 */
int kvs_workload_rank_layout(const struct kvs_workload *w, uint32_t rank,
			     struct kvs_layout **ret);

#endif /* KVS_TOOLS_WORKLOAD_H */
