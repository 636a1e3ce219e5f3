/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: layout
 *
 * How one side keeps its KV: layer buffers with the bytes of one page each,
 * as serving engines register them. Buffers are matched between the two
 * sides by (kind, layer), never by position.
 */
#ifndef KVSTAGE_LAYOUT_H
#define KVSTAGE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME, value, string, paged): value is on the wire. paged: one item per
 * page of the request; else a fixed number of items per request. */
#define KVS_BUFFER_KINDS(X)                                                 \
	X(K, 0, "k", 1) /* MHA/GQA keys */                                  \
	X(V, 1, "v", 1) /* MHA/GQA values */                                \
	X(KV, 2, "kv", 1) /* MLA latent, or K and V in one */               \
	X(DSA, 3, "dsa", 1) /* sparse-attention indexer keys */             \
	X(BLOCK_SCALE, 4, "block_scale", 1)                                 \
	X(SWA, 5, "swa", 0) /* sliding window tail; at most one per page */ \
	X(MAMBA, 6, "mamba", 0) /* recurrent state */                       \
	X(OTHER, 7, "other", 0) /* engine-defined, fixed count */

#define KVS_ENUM_(n, v, s, p) KVS_BUFFER_##n = (v),
enum kvs_buffer_kind { KVS_BUFFER_KINDS(KVS_ENUM_) KVS_BUFFER_KIND_MAX };
#undef KVS_ENUM_

/* X(NAME, value, string, bytes per element) */
#define KVS_DTYPES(X)                                          \
	X(BF16, 1, "bfloat16", 2)                              \
	X(F16, 2, "float16", 2)                                \
	X(FP8_E4M3, 3, "fp8_e4m3", 1)                          \
	X(FP8_E5M2, 4, "fp8_e5m2", 1)                          \
	X(F32, 5, "float32", 4)                                \
	X(FP4, 6, "fp4", 1) /* two a byte; item_len decides */ \
	X(INT8, 7, "int8", 1)

#define KVS_ENUM_(n, v, s, b) KVS_DTYPE_##n = (v),
enum kvs_dtype { KVS_DTYPES(KVS_ENUM_) KVS_DTYPE_MAX };
#undef KVS_ENUM_

#define KVS_LAYOUT_BUFFERS_MAX 4096 /* layer buffers of one layout */
#define KVS_ITEM_LEN_MAX (1u << 30) /* bytes */
#define KVS_PAGE_SIZE_MAX 65536 /* tokens */
#define KVS_AUX_MAX 65536 /* bytes of one rank's aux block */
#define KVS_RANKS_MAX 256 /* prefill ranks of one room */
#define KVS_TOKENS_MAX (1u << 24) /* tokens of one request */

/**
 * struct kvs_layer_buffer - one tensor of a KV pool
 * @kind: enum kvs_buffer_kind
 * @layer: model layer number, counted over the whole model
 * @item_len: bytes of one page (or one state item) in this buffer
 * @items: paged kinds: 0. Others: items of one request (SWA: at most, a
 *         request with fewer pages has as many as pages)
 */
struct kvs_layer_buffer {
	uint16_t kind;
	uint16_t layer;
	uint32_t item_len;
	uint32_t items;
};

/**
 * struct kvs_buffer_cut - how tensor parallelism cuts the items of a buffer
 *
 * An item is planes, one behind the other; a plane is tokens (page_size of
 * them, one for KVS_BUFFER_MAMBA and KVS_BUFFER_OTHER), one behind the other;
 * and a token is the neighbouring heads that the rank has.
 * @heads: of the whole model in this layer; 0: every rank has the same
 * @planes: K and V in one buffer: 2; 0: 1
 * @shard: private, 0
 */
struct kvs_buffer_cut {
	uint8_t heads;
	uint8_t planes;
	uint8_t shard;
};

#define KVS_TP_MAX 256 /* ranks that heads are divided between */

/**
 * struct kvs_layout - a side's KV pool
 * @size: sizeof(struct kvs_layout), set by the caller
 * @page_size: tokens a page
 * @dtype: enum kvs_dtype of the paged buffers
 * @n_buffers: entries of @buffers, 1..KVS_LAYOUT_BUFFERS_MAX
 * @buffers: layer buffers in any order; no (kind, layer) twice
 * @aux_max: most bytes of one rank's aux block this side handles
 * @capacity: tokens this side's KV pool holds; 0: not said
 * @max_context: longest request in tokens this side accepts; 0: not said
 * @tp: ranks that the heads are divided between, at most KVS_TP_MAX; 0: 1.
 *      Divides the heads of each cut buffer, or is a multiple of them: then
 *      neighbouring ranks have the same head
 * @tp_rank: which of them this one is
 * @cuts: of each buffer; NULL: none is cut, and the last two do not matter
 */
struct kvs_layout {
	size_t size;
	uint32_t page_size;
	uint32_t dtype;
	uint32_t n_buffers;
	struct kvs_layer_buffer *buffers;
	uint32_t aux_max;
	uint64_t capacity;
	uint64_t max_context;
	uint32_t tp;
	uint32_t tp_rank;
	const struct kvs_buffer_cut *cuts;
};

#endif /* KVSTAGE_LAYOUT_H */
