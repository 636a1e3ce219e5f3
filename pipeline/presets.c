/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/presets.h"

#define KVS_PRESET_AUX 1024 /* bytes */
#define KVS_MLA_ELEMS (512 + 64) /* latent and rope part */
#define KVS_DSA_FP8_ROW 656 /* 512 fp8, 4 fp32 scales, 64 bf16 */
#define KVS_DSA_INDEX (128 + 4) /* fp8 key and its scale */

enum kvs_attention {
	KVS_ATTENTION_MHA,
	KVS_ATTENTION_MLA,
	KVS_ATTENTION_DSA, /* MLA with an indexer */
};

/**
 * struct kvs_preset - a model
 * @name: as the user says it
 * @attention: of its full layers
 * @layers: all layers
 * @heads: KV heads of the whole model (MHA)
 * @head_dim: elements of a head (MHA)
 * @dtype: of the KV
 * @page_size: tokens a page
 * @period: every @period-th layer is a full one, the last of each group; 1:
 *          all are
 * @window: tokens; the other layers keep a sliding window of this (0: none)
 * @state: bytes; the other layers keep a recurrent state of this (0: none)
 */
struct kvs_preset {
	const char *name;
	enum kvs_attention attention;
	uint16_t layers;
	uint16_t heads;
	uint16_t head_dim;
	uint16_t dtype;
	uint16_t page_size;
	uint16_t period;
	uint16_t window;
	uint16_t state;
};

#define KVS_MHA(n, l, h, d)                                             \
	{                                                               \
		.name = n, .attention = KVS_ATTENTION_MHA, .layers = l, \
		.heads = h, .head_dim = d, .dtype = KVS_DTYPE_BF16,     \
		.page_size = 64, .period = 1,                           \
	}
#define KVS_MLA(n, a, l, t)                                             \
	{                                                               \
		.name = n, .attention = KVS_ATTENTION_##a, .layers = l, \
		.dtype = KVS_DTYPE_##t, .page_size = 64, .period = 1,   \
	}

static const struct kvs_preset kvs_presets[] = {
	KVS_MHA("llama-3-70b", 80, 8, 128),
	KVS_MHA("qwen3-235b-a22b", 94, 4, 128),
	KVS_MHA("qwen3-32b", 64, 8, 128),
	KVS_MLA("deepseek-v3", MLA, 61, BF16),
	KVS_MLA("deepseek-v3-fp8", MLA, 61, FP8_E4M3),
	KVS_MLA("deepseek-r1", MLA, 61, BF16),
	KVS_MLA("deepseek-r1-fp8", MLA, 61, FP8_E4M3),
	KVS_MLA("kimi-k2", MLA, 61, BF16),
	KVS_MLA("kimi-k2-fp8", MLA, 61, FP8_E4M3),
	KVS_MLA("deepseek-v3.2", DSA, 61, BF16),
	KVS_MLA("deepseek-v3.2-fp8", DSA, 61, FP8_E4M3),
	KVS_MHA("glm-4.5", 92, 8, 128),
	KVS_MHA("glm-4.5-air", 46, 8, 128),
	KVS_MLA("glm-5", DSA, 78, BF16),
	KVS_MLA("glm-5-fp8", DSA, 78, FP8_E4M3),
	{
		.name = "gpt-oss-120b",
		.attention = KVS_ATTENTION_MHA,
		.layers = 36,
		.heads = 8,
		.head_dim = 64,
		.dtype = KVS_DTYPE_BF16,
		.page_size = 64,
		.period = 2,
		.window = 128,
	},
	{
		.name = "gpt-oss-20b",
		.attention = KVS_ATTENTION_MHA,
		.layers = 24,
		.heads = 8,
		.head_dim = 64,
		.dtype = KVS_DTYPE_BF16,
		.page_size = 64,
		.period = 2,
		.window = 128,
	},
	{
		.name = "tiny-mha",
		.attention = KVS_ATTENTION_MHA,
		.layers = 2,
		.heads = 2,
		.head_dim = 16,
		.dtype = KVS_DTYPE_BF16,
		.page_size = 16,
		.period = 1,
	},
	{
		.name = "tiny-mla",
		.attention = KVS_ATTENTION_MLA,
		.layers = 2,
		.dtype = KVS_DTYPE_BF16,
		.page_size = 16,
		.period = 1,
	},
	/* a request's state has three parts: layers 0, 1 and 2 */
	{
		.name = "tiny-hybrid",
		.attention = KVS_ATTENTION_MHA,
		.layers = 4,
		.heads = 2,
		.head_dim = 16,
		.dtype = KVS_DTYPE_BF16,
		.page_size = 16,
		.period = 4,
		.state = 1536,
	},
};

const char *kvs_preset_next(const char *prev)
{
	size_t i;

	if (!prev)
		return kvs_presets[0].name;
	for (i = 0; i + 1 < KVS_ARRAY_SIZE(kvs_presets); i++) {
		if (!strcmp(kvs_presets[i].name, prev))
			return kvs_presets[i + 1].name;
	}
	return NULL;
}

static const struct kvs_preset *kvs_preset_find(const char *model, char *err,
						size_t errlen)
{
	const char *name;
	size_t i, used;
	int n;

	for (i = 0; i < KVS_ARRAY_SIZE(kvs_presets); i++) {
		if (!strcmp(kvs_presets[i].name, model))
			return &kvs_presets[i];
	}
	n = snprintf(err, errlen, "model \"%.64s\": unknown; known are", model);
	used = n < 0 ? 0 : (size_t)n;
	for (name = kvs_preset_next(NULL); name && used < errlen;
	     name = kvs_preset_next(name)) {
		n = snprintf(err + used, errlen - used, " %s", name);
		used += n < 0 ? 0 : (size_t)n;
	}
	return NULL;
}

/* Half bytes of one element; the table of dtypes has whole ones. */
static uint32_t kvs_dtype_nibbles(uint32_t dtype)
{
	static const uint8_t bytes[] = {
#define KVS_BYTES_(n, v, s, b) [v] = b,
		KVS_DTYPES(KVS_BYTES_)
#undef KVS_BYTES_
	};

	return dtype == KVS_DTYPE_FP4 ? 1 : 2u * bytes[dtype];
}

/* One layer of one rank, bytes a token; K alone for MHA. 0: not possible. */
static uint32_t kvs_preset_row(const struct kvs_preset *p, uint32_t tp,
			       uint32_t dtype)
{
	uint32_t nibbles = kvs_dtype_nibbles(dtype);
	uint32_t heads;

	switch (p->attention) {
	case KVS_ATTENTION_MHA:
		if (!p->heads ||
		    (tp > p->heads ? tp % p->heads : p->heads % tp))
			return 0;
		/* more ranks than heads: some hold the same head */
		heads = tp > p->heads ? 1 : p->heads / tp;
		return heads * p->head_dim * nibbles / 2;
	case KVS_ATTENTION_MLA:
		return KVS_MLA_ELEMS * nibbles / 2;
	case KVS_ATTENTION_DSA:
		if (dtype == KVS_DTYPE_BF16 || dtype == KVS_DTYPE_F16)
			return KVS_MLA_ELEMS * 2;
		return dtype == KVS_DTYPE_FP8_E4M3 ? KVS_DSA_FP8_ROW : 0;
	}
	return 0;
}

static bool kvs_preset_is_full(const struct kvs_preset *p, uint32_t layer)
{
	return layer % p->period == p->period - 1u;
}

static void kvs_preset_add(struct kvs_layout *l, unsigned int kind,
			   uint32_t layer, uint32_t item_len, uint32_t items)
{
	KVS_ASSERT(l->n_buffers < KVS_LAYOUT_BUFFERS_MAX);
	l->buffers[l->n_buffers++] = (struct kvs_layer_buffer){
		.kind = (uint16_t)kind,
		.layer = (uint16_t)layer,
		.item_len = item_len,
		.items = items,
	};
}

/* A buffer of @kind for every full layer, in the order engines register. */
static void kvs_preset_add_full(struct kvs_layout *l,
				const struct kvs_preset *p, uint32_t layers,
				unsigned int kind, uint32_t item_len)
{
	uint32_t i;

	for (i = 0; i < layers; i++) {
		if (kvs_preset_is_full(p, i))
			kvs_preset_add(l, kind, i, item_len, 0);
	}
}

/* Pages that a window of @tokens can touch, wherever it starts. */
static uint32_t kvs_window_pages(uint32_t tokens, uint32_t page_size)
{
	return (tokens - 1 + page_size - 1) / page_size + 1;
}

static void kvs_preset_fill(struct kvs_layout *l, const struct kvs_preset *p,
			    uint32_t layers, uint32_t row)
{
	uint32_t page = l->page_size;
	uint32_t i;

	if (p->attention == KVS_ATTENTION_MHA) {
		kvs_preset_add_full(l, p, layers, KVS_BUFFER_K, row * page);
		kvs_preset_add_full(l, p, layers, KVS_BUFFER_V, row * page);
	} else {
		kvs_preset_add_full(l, p, layers, KVS_BUFFER_KV, row * page);
	}
	if (p->attention == KVS_ATTENTION_DSA)
		kvs_preset_add_full(l, p, layers, KVS_BUFFER_DSA,
				    KVS_DSA_INDEX * page);
	for (i = 0; i < layers; i++) {
		if (kvs_preset_is_full(p, i))
			continue;
		if (p->window)
			kvs_preset_add(l, KVS_BUFFER_SWA, i, 2 * row * page,
				       kvs_window_pages(p->window, page));
		if (p->state)
			kvs_preset_add(l, KVS_BUFFER_MAMBA, i, p->state, 1);
	}
}

/* K, V and both in one are cut by their heads; a state is the same on every
 * rank. */
static void kvs_preset_cut(const struct kvs_layout *l,
			   const struct kvs_preset *p,
			   struct kvs_buffer_cut *cuts)
{
	for (uint32_t i = 0; i < l->n_buffers; i++) {
		unsigned int kind = l->buffers[i].kind;

		if (kind == KVS_BUFFER_MAMBA)
			continue;
		cuts[i].heads = (uint8_t)p->heads;
		cuts[i].planes = kind == KVS_BUFFER_SWA ? 2 : 1;
	}
}

static int kvs_preset_refuse(char *err, size_t errlen, const char *model,
			     const char *what, uint32_t value, const char *why)
{
	snprintf(err, errlen, "model %s: %s %u: %s", model, what, value, why);
	return -EINVAL;
}

int kvs_preset_layout(const char *model, const struct kvs_preset_opts *o,
		      struct kvs_layout **ret, char *err, size_t errlen)
{
	static const struct kvs_preset_opts none;
	struct kvs_layout l = { .size = sizeof(l) };
	const struct kvs_preset *p;
	struct kvs_buffer_cut *cuts;
	uint32_t tp, layers, row;
	char why[64];
	int rc;

	if (!o)
		o = &none;
	p = kvs_preset_find(model, err, errlen);
	if (!p)
		return -ENOENT;
	tp = o->tp ? o->tp : 1;
	layers = o->layers ? o->layers : p->layers;
	l.page_size = o->page_size ? o->page_size : p->page_size;
	l.dtype = o->dtype ? o->dtype : p->dtype;
	l.aux_max = o->aux_max ? o->aux_max : KVS_PRESET_AUX;
	l.capacity = o->capacity;
	l.max_context = o->max_context;
	if (layers > p->layers) {
		snprintf(why, sizeof(why), "it has %u", p->layers);
		return kvs_preset_refuse(err, errlen, model, "layers", layers,
					 why);
	}
	if (layers < p->period) {
		snprintf(why, sizeof(why),
			 "no full attention layer among them, %u have one",
			 (unsigned int)p->period);
		return kvs_preset_refuse(err, errlen, model, "layers", layers,
					 why);
	}
	if (l.dtype >= KVS_DTYPE_MAX)
		return kvs_preset_refuse(err, errlen, model, "dtype", l.dtype,
					 "unknown");
	if (l.page_size > KVS_PAGE_SIZE_MAX)
		return kvs_preset_refuse(err, errlen, model, "page_size",
					 l.page_size, "more than 65536");
	row = kvs_preset_row(p, tp, l.dtype);
	if (!row && p->attention == KVS_ATTENTION_MHA) {
		snprintf(why, sizeof(why), "does not divide its %u KV heads",
			 (unsigned int)p->heads);
		return kvs_preset_refuse(err, errlen, model, "tp", tp, why);
	}
	if (!row)
		return kvs_preset_refuse(err, errlen, model, "dtype", l.dtype,
					 "no such KV row for this attention");
	if (o->tp_rank >= tp)
		return kvs_preset_refuse(err, errlen, model, "tp_rank",
					 o->tp_rank, "not below tp");
	/* K, V, or row and indexer of each layer: two at most */
	l.buffers = calloc(2 * (size_t)layers, sizeof(*l.buffers));
	cuts = calloc(2 * (size_t)layers, sizeof(*cuts));
	if (!l.buffers || !cuts) {
		snprintf(err, errlen, "model %s: no memory", model);
		free(l.buffers);
		free(cuts);
		return -ENOMEM;
	}
	kvs_preset_fill(&l, p, layers, row);
	if (p->attention == KVS_ATTENTION_MHA) {
		kvs_preset_cut(&l, p, cuts);
		l.tp = tp;
		l.tp_rank = o->tp_rank;
		l.cuts = cuts;
	}
	rc = kvs_layout_check(&l, err, errlen);
	if (!rc) {
		rc = kvs_layout_dup(&l, ret);
		if (rc)
			snprintf(err, errlen, "model %s: no memory", model);
	}
	free(l.buffers);
	free(cuts);
	return rc;
}
