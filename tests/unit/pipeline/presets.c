/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the presets give the bytes a token that the models' public shapes
 * come to; tensor parallelism divides heads and never a shared latent; what a
 * model cannot have is refused with a message, an unknown name with the list
 * of the known ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"

static struct kvs_layout *preset(const char *model,
				 const struct kvs_preset_opts *o)
{
	struct kvs_layout *l = NULL;
	char err[1024] = "";

	if (kvs_preset_layout(model, o, &l, err, sizeof(err)))
		fail_msg("%s: %s", model, err);
	assert_int_equal(kvs_layout_check(l, err, sizeof(err)), 0);
	return l;
}

static uint64_t per_token(const char *model, uint32_t tp, uint32_t page_size)
{
	struct kvs_preset_opts o = { .tp = tp, .page_size = page_size };
	struct kvs_layout *l = preset(model, &o);
	uint64_t bytes = kvs_layout_bytes_per_token(l);

	free(l);
	return bytes;
}

static void presets_bytes_per_token(void **state)
{
	static const struct {
		const char *model;
		uint32_t bytes;
	} v[] = {
		{ "llama-3-70b", 327680 },	{ "qwen3-235b-a22b", 192512 },
		{ "qwen3-32b", 262144 },	{ "deepseek-v3", 70272 },
		{ "deepseek-r1", 70272 },	{ "kimi-k2", 70272 },
		{ "deepseek-v3-fp8", 35136 },	{ "deepseek-r1-fp8", 35136 },
		{ "kimi-k2-fp8", 35136 },	{ "deepseek-v3.2", 78324 },
		{ "deepseek-v3.2-fp8", 48068 }, { "glm-4.5", 376832 },
		{ "glm-4.5-air", 188416 },	{ "glm-5", 100152 },
		{ "glm-5-fp8", 61464 },		{ "gpt-oss-120b", 36864 },
		{ "gpt-oss-20b", 24576 },
	};
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		assert_int_equal(per_token(v[i].model, 0, 0), v[i].bytes);
		assert_int_equal(per_token(v[i].model, 1, 1), v[i].bytes);
		assert_int_equal(per_token(v[i].model, 1, 128), v[i].bytes);
	}
}

/* The default of the demonstration: four layers of an MLA model. */
static void presets_four_layers(void **state)
{
	struct kvs_preset_opts o = { .layers = 4, .tp = 2 };
	struct kvs_layout *l = preset("deepseek-v3", &o);

	(void)state;
	assert_int_equal(kvs_layout_bytes_per_token(l), 4608);
	assert_int_equal(l->n_buffers, 4);
	assert_int_equal(l->page_size, 64);
	assert_int_equal(l->dtype, KVS_DTYPE_BF16);
	assert_int_equal(l->buffers[3].kind, KVS_BUFFER_KV);
	assert_int_equal(l->buffers[3].layer, 3);
	assert_int_equal(l->buffers[3].item_len, 73728);
	free(l);
}

static void presets_tp(void **state)
{
	(void)state;
	assert_int_equal(per_token("llama-3-70b", 8, 0), 327680 / 8);
	/* more ranks than heads: a head each, some twice */
	assert_int_equal(per_token("llama-3-70b", 16, 0), 327680 / 8);
	assert_int_equal(per_token("qwen3-235b-a22b", 4, 0), 192512 / 4);
	assert_int_equal(per_token("deepseek-v3", 8, 0), 70272);
	assert_int_equal(per_token("deepseek-v3", 7, 0), 70272);
	assert_int_equal(per_token("glm-5", 8, 0), 100152);
}

/* All K in layer order, then all V. */
static void presets_order(void **state)
{
	struct kvs_preset_opts o = { .tp = 8 };
	struct kvs_layout *l = preset("llama-3-70b", &o);
	uint32_t i;

	(void)state;
	assert_int_equal(l->n_buffers, 160);
	for (i = 0; i < 160; i++) {
		assert_int_equal(l->buffers[i].kind,
				 i < 80 ? KVS_BUFFER_K : KVS_BUFFER_V);
		assert_int_equal(l->buffers[i].layer, i % 80);
		assert_int_equal(l->buffers[i].item_len, 16384);
		assert_int_equal(l->buffers[i].items, 0);
	}
	free(l);
}

static void presets_indexer(void **state)
{
	struct kvs_layout *l = preset("deepseek-v3.2-fp8", NULL);
	int b;

	(void)state;
	assert_int_equal(l->n_buffers, 2 * 61);
	b = kvs_layout_find(l, KVS_BUFFER_DSA, 60);
	assert_true(b >= 0);
	assert_int_equal(l->buffers[b].item_len, 8448);
	b = kvs_layout_find(l, KVS_BUFFER_KV, 60);
	assert_true(b >= 0);
	assert_int_equal(l->buffers[b].item_len, 41984);
	free(l);
}

static uint64_t window_bytes(const char *model, uint32_t page_size)
{
	struct kvs_preset_opts o = { .page_size = page_size };
	struct kvs_layout *l = preset(model, &o);
	uint64_t bytes = 0;
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++) {
		if (l->buffers[i].kind != KVS_BUFFER_SWA)
			continue;
		assert_int_equal(l->buffers[i].layer % 2, 0);
		bytes += (uint64_t)l->buffers[i].items * l->buffers[i].item_len;
	}
	free(l);
	return bytes;
}

static void presets_sliding_window(void **state)
{
	(void)state;
	assert_true(window_bytes("gpt-oss-120b", 1) == 9ULL << 19);
	assert_true(window_bytes("gpt-oss-20b", 1) == 3ULL << 20);
	/* 128 tokens can touch three pages of 64 and two of 128 */
	assert_true(window_bytes("gpt-oss-20b", 64) == (3ULL << 20) * 3 / 2);
	assert_true(window_bytes("gpt-oss-20b", 128) == (3ULL << 20) * 2);
}

static void presets_hybrid(void **state)
{
	struct kvs_layout *l = preset("tiny-hybrid", NULL);
	uint32_t i;

	(void)state;
	assert_int_equal(l->n_buffers, 5);
	for (i = 0; i < 3; i++)
		assert_true(kvs_layout_find(l, KVS_BUFFER_MAMBA, i) >= 0);
	assert_true(kvs_layout_find(l, KVS_BUFFER_K, 3) >= 0);
	assert_true(kvs_layout_find(l, KVS_BUFFER_V, 3) >= 0);
	free(l);
}

static void presets_options(void **state)
{
	struct kvs_preset_opts o = { .dtype = KVS_DTYPE_FP8_E4M3,
				     .page_size = 32,
				     .aux_max = 7,
				     .capacity = 1000000,
				     .max_context = 131072 };
	struct kvs_layout *l = preset("qwen3-32b", &o);

	(void)state;
	assert_int_equal(kvs_layout_bytes_per_token(l), 131072);
	assert_int_equal(l->dtype, KVS_DTYPE_FP8_E4M3);
	assert_int_equal(l->page_size, 32);
	assert_int_equal(l->aux_max, 7);
	assert_int_equal(l->capacity, 1000000);
	assert_int_equal(l->max_context, 131072);
	free(l);
	l = preset("deepseek-v3", &o);
	assert_int_equal(kvs_layout_bytes_per_token(l), 35136);
	free(l);
	o.dtype = KVS_DTYPE_FP4;
	l = preset("qwen3-32b", &o);
	assert_int_equal(kvs_layout_bytes_per_token(l), 65536);
	free(l);
}

static void refused(const char *model, struct kvs_preset_opts o,
		    const char *want)
{
	struct kvs_layout *l = NULL;
	char err[1024] = "";

	assert_int_equal(kvs_preset_layout(model, &o, &l, err, sizeof(err)),
			 -EINVAL);
	assert_string_equal(err, want);
	assert_null(l);
}

static void presets_refuse(void **state)
{
	(void)state;
	refused("llama-3-70b", (struct kvs_preset_opts){ .tp = 3 },
		"model llama-3-70b: tp 3: does not divide its 8 KV heads");
	refused("llama-3-70b", (struct kvs_preset_opts){ .tp = 12 },
		"model llama-3-70b: tp 12: does not divide its 8 KV heads");
	refused("glm-4.5", (struct kvs_preset_opts){ .layers = 93 },
		"model glm-4.5: layers 93: it has 92");
	refused("gpt-oss-20b", (struct kvs_preset_opts){ .layers = 1 },
		"model gpt-oss-20b: layers 1: no full attention layer among "
		"them, 2 have one");
	refused("deepseek-v3", (struct kvs_preset_opts){ .dtype = 99 },
		"model deepseek-v3: dtype 99: unknown");
	refused("glm-5", (struct kvs_preset_opts){ .dtype = KVS_DTYPE_INT8 },
		"model glm-5: dtype 7: no such KV row for this attention");
	refused("glm-5", (struct kvs_preset_opts){ .page_size = 65537 },
		"model glm-5: page_size 65537: more than 65536");
	refused("glm-5", (struct kvs_preset_opts){ .page_size = UINT32_MAX },
		"model glm-5: page_size 4294967295: more than 65536");
	refused("glm-5", (struct kvs_preset_opts){ .aux_max = 65537 },
		"aux_max: 65537, allowed 0..65536");
}

static void presets_unknown_name(void **state)
{
	struct kvs_layout *l = NULL;
	const char *name = NULL;
	char err[1024] = "", small[20] = "";
	int n = 0;

	(void)state;
	assert_int_equal(kvs_preset_layout("gpt-5", NULL, &l, err, sizeof(err)),
			 -ENOENT);
	assert_null(l);
	assert_non_null(strstr(err, "\"gpt-5\""));
	while ((name = kvs_preset_next(name))) {
		assert_non_null(strstr(err, name));
		free(preset(name, NULL));
		n++;
	}
	assert_true(n >= 17);
	assert_null(kvs_preset_next("gpt-5"));
	/* a short buffer is filled and ended, never passed */
	assert_int_equal(kvs_preset_layout("", NULL, &l, small, sizeof(small)),
			 -ENOENT);
	assert_int_equal(strlen(small), sizeof(small) - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(presets_bytes_per_token),
		cmocka_unit_test(presets_four_layers),
		cmocka_unit_test(presets_tp),
		cmocka_unit_test(presets_order),
		cmocka_unit_test(presets_indexer),
		cmocka_unit_test(presets_sliding_window),
		cmocka_unit_test(presets_hybrid),
		cmocka_unit_test(presets_options),
		cmocka_unit_test(presets_refuse),
		cmocka_unit_test(presets_unknown_name),
	};

	return cmocka_run_group_tests_name("presets", tests, NULL, NULL);
}
