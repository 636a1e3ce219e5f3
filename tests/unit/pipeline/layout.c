/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: two layouts that differ are refused, and the message names the
 * field and both values (sgl-project/sglang#19398); buffers are paired by
 * layer number, never by position (sgl-project/sglang#37175); a state buffer
 * that only one side has is a difference (sgl-project/sglang#23773); a layout
 * from outside is checked before use.
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
#include "lib/clock.h"
#include "lib/rng.h"
#include "pipeline/layout.h"

#define LAYERS 61

/* A layout with room for its buffers, small enough to copy about. */
struct side {
	struct kvs_layout l;
	struct kvs_layer_buffer b[4 * LAYERS];
};

static void side_add(struct side *s, unsigned int kind, uint32_t layer,
		     uint32_t item_len, uint32_t items)
{
	s->l.buffers = s->b;
	s->b[s->l.n_buffers++] = (struct kvs_layer_buffer){
		.kind = (uint16_t)kind,
		.layer = (uint16_t)layer,
		.item_len = item_len,
		.items = items,
	};
}

static void side_init(struct side *s)
{
	memset(s, 0, sizeof(*s));
	s->l.size = sizeof(s->l);
	s->l.page_size = 64;
	s->l.dtype = KVS_DTYPE_BF16;
	s->l.aux_max = 1024;
	s->l.buffers = s->b;
}

/* K of [first, first + n), then V, as engines register them. */
static void side_mha(struct side *s, uint32_t first, uint32_t n,
		     uint32_t item_len)
{
	uint32_t i;

	side_init(s);
	for (i = 0; i < n; i++)
		side_add(s, KVS_BUFFER_K, first + i, item_len, 0);
	for (i = 0; i < n; i++)
		side_add(s, KVS_BUFFER_V, first + i, item_len, 0);
}

static void side_mla(struct side *s, uint32_t first, uint32_t n)
{
	uint32_t i;

	side_init(s);
	for (i = 0; i < n; i++)
		side_add(s, KVS_BUFFER_KV, first + i, 73728, 0);
}

static void assert_match(struct side *p, struct side *d, uint32_t first,
			 uint32_t n)
{
	char err[256] = "";

	assert_int_equal(
		kvs_layout_match(&p->l, &d->l, first, n, err, sizeof(err)), 0);
	assert_string_equal(err, "");
}

static void assert_differs(struct side *p, struct side *d, uint32_t first,
			   uint32_t n, const char *want)
{
	char err[256] = "";

	assert_int_equal(kvs_layout_match(&p->l, &d->l, first, n, err,
					  sizeof(err)),
			 -EPROTOTYPE);
	assert_string_equal(err, want);
}

static void layout_one_difference_each(void **state)
{
	struct side p, d;

	(void)state;
	side_mha(&d, 0, LAYERS, 32768);
	side_mha(&p, 0, LAYERS, 32768);
	assert_match(&p, &d, 0, LAYERS);

	p.l.dtype = KVS_DTYPE_FP8_E4M3;
	assert_differs(&p, &d, 0, LAYERS,
		       "dtype: prefill fp8_e4m3, decode bfloat16");
	p.l.dtype = 77;
	assert_differs(&p, &d, 0, LAYERS,
		       "dtype: prefill dtype 77, decode bfloat16");
	p.l.dtype = KVS_DTYPE_BF16;
	p.l.page_size = 32;
	assert_differs(&p, &d, 0, LAYERS, "page_size: prefill 32, decode 64");

	/* half the heads */
	side_mha(&p, 0, LAYERS, 16384);
	assert_differs(&p, &d, 0, LAYERS,
		       "item_len of k layer 0: prefill 16384, decode 32768");
	side_mha(&p, 0, LAYERS, 32768);
	p.b[LAYERS + 7].item_len = 16384;
	assert_differs(&p, &d, 0, LAYERS,
		       "item_len of v layer 7: prefill 16384, decode 32768");

	side_mla(&p, 0, LAYERS);
	assert_differs(&p, &d, 0, LAYERS,
		       "k layer 0: missing on prefill (k layers: prefill 0, "
		       "decode 61)");
}

static void layout_layer_count(void **state)
{
	struct side p, d;

	(void)state;
	side_mla(&p, 0, 61);
	side_mla(&d, 0, 60);
	assert_differs(&p, &d, 0, 61,
		       "kv layer 60: missing on decode (kv layers: prefill "
		       "61, decode 60)");
	assert_differs(&d, &p, 0, 61,
		       "kv layer 60: missing on prefill (kv layers: prefill "
		       "60, decode 61)");
}

static void layout_state_buffers(void **state)
{
	struct side p, d;

	(void)state;
	side_mha(&d, 3, 1, 4096);
	side_add(&d, KVS_BUFFER_MAMBA, 0, 1536, 1);
	side_add(&d, KVS_BUFFER_MAMBA, 1, 1536, 1);
	side_add(&d, KVS_BUFFER_MAMBA, 2, 1536, 3);
	p = d;
	p.l.buffers = p.b;
	assert_match(&p, &d, 0, 4);
	p.l.n_buffers--;
	assert_differs(&p, &d, 0, 4,
		       "mamba layer 2: missing on prefill (mamba layers: "
		       "prefill 2, decode 3)");
	/* the paged half alone is not enough to call it a match */
	p.l.n_buffers -= 2;
	assert_differs(&p, &d, 0, 4,
		       "mamba layer 0: missing on prefill (mamba layers: "
		       "prefill 0, decode 3)");
	assert_differs(&d, &p, 0, 4,
		       "mamba layer 0: missing on decode (mamba layers: "
		       "prefill 3, decode 0)");
	p.l.n_buffers += 3;
	p.b[4].items = 2;
	p.b[4].layer = 2;
	p.b[3].layer = 1;
	p.b[2].layer = 0;
	assert_differs(&p, &d, 0, 4,
		       "items of mamba layer 2: prefill 2, decode 3");
	/* a kind this side has never heard of */
	p.b[4] = d.b[4];
	side_add(&p, 99, 3, 100, 1);
	assert_differs(&p, &d, 0, 4,
		       "kind 99 layer 3: missing on decode (kind 99 layers: "
		       "prefill 1, decode 0)");
}

static void layout_order_does_not_matter(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	struct kvs_rng rng;
	struct side p, d;
	uint32_t i, round;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	side_mha(&d, 0, LAYERS, 4096);
	side_mha(&p, 0, LAYERS, 4096);
	for (i = 0; i < LAYERS; i++) {
		p.b[i].item_len = d.b[i].item_len = 4096 + i;
		side_add(&p, KVS_BUFFER_DSA, i, 8448, 0);
		side_add(&d, KVS_BUFFER_DSA, i, 8448, 0);
	}
	for (round = 0; round < 50; round++) {
		for (i = p.l.n_buffers - 1; i > 0; i--) {
			uint32_t j = (uint32_t)kvs_rng_below(&rng, i + 1);
			struct kvs_layer_buffer b = p.b[i];

			p.b[i] = p.b[j];
			p.b[j] = b;
		}
		assert_match(&p, &d, 0, LAYERS);
	}
	/* K and V interleaved differ from K then V by order only: fine. Both
	 * in one tensor are another thing: see layout_one_difference_each */
}

/* Two stages of 60 layers, even then uneven; each has its own layers only. */
static void layout_stages_by_number(void **state)
{
	static const uint32_t cut[] = { 30, 20 };
	struct side d, a, b;
	uint32_t i;

	(void)state;
	side_mha(&d, 0, 60, 4096);
	for (i = 0; i < 120; i++)
		d.b[i].item_len = 4096 + 64 * d.b[i].layer;
	for (i = 0; i < KVS_ARRAY_SIZE(cut); i++) {
		uint32_t c = cut[i], j;

		side_mha(&a, 0, c, 4096);
		side_mha(&b, c, 60 - c, 4096);
		for (j = 0; j < a.l.n_buffers; j++)
			a.b[j].item_len = 4096 + 64 * a.b[j].layer;
		for (j = 0; j < b.l.n_buffers; j++)
			b.b[j].item_len = 4096 + 64 * b.b[j].layer;
		assert_match(&a, &d, 0, c);
		/* by position its first layer would be the decode's first,
		 * with another item_len */
		assert_match(&b, &d, c, 60 - c);
		/* one layer more than it has */
		assert_int_equal(kvs_layout_match(&a.l, &d.l, 0, c + 1,
						  (char[256]){ 0 }, 256),
				 -EPROTOTYPE);
		/* the whole model registered, only a part of it asked for */
		assert_match(&d, &d, c, 60 - c);
	}
	/* a zero-byte rank: the page size counts, nothing else */
	side_mla(&a, 7, 1);
	a.l.dtype = KVS_DTYPE_INT8;
	assert_match(&a, &d, 0, 0);
	a.l.page_size = 1;
	assert_differs(&a, &d, 0, 0, "page_size: prefill 1, decode 64");
}

static void owners(const struct kvs_rank_slice *v, uint32_t n, int want,
		   const char *text)
{
	char err[256] = "";
	struct side d;

	side_mha(&d, 0, 60, 4096);
	assert_int_equal(kvs_layout_check_owners(&d.l, v, n, err, sizeof(err)),
			 want);
	assert_string_equal(err, text);
}

static void layout_every_layer_has_one_owner(void **state)
{
	(void)state;
	owners((struct kvs_rank_slice[]){ { 0, 30 }, { 30, 30 } }, 2, 0, "");
	owners((struct kvs_rank_slice[]){ { 20, 40 }, { 0, 20 }, { 0, 0 } }, 3,
	       0, "");
	owners((struct kvs_rank_slice[]){ { 0, 30 }, { 31, 29 } }, 2,
	       -EPROTOTYPE, "layer 30: given to no rank");
	owners((struct kvs_rank_slice[]){ { 0, 30 }, { 29, 31 } }, 2,
	       -EPROTOTYPE, "layer 29: given to rank 0 and rank 1");
	owners((struct kvs_rank_slice[]){ { 0, 59 } }, 1, -EPROTOTYPE,
	       "layer 59: given to no rank");
	owners((struct kvs_rank_slice[]){ { 0, 60 }, { 10, 1 } }, 2,
	       -EPROTOTYPE, "layer 10: given to rank 0 and rank 1");
	owners(NULL, 0, -EPROTOTYPE, "layer 0: given to no rank");
	/* ends that wrap */
	owners((struct kvs_rank_slice[]){ { 0, UINT32_MAX },
					  { UINT32_MAX, UINT32_MAX } },
	       2, 0, "");
}

static void assert_bad(struct side *s, const char *want)
{
	char err[256] = "";

	assert_int_equal(kvs_layout_check(&s->l, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, want);
}

static void layout_check_fields(void **state)
{
	char err[256] = "untouched";
	struct side s;

	(void)state;
	side_mha(&s, 0, 2, 4096);
	assert_int_equal(kvs_layout_check(&s.l, err, sizeof(err)), 0);
	assert_string_equal(err, "untouched");
	s.l.size = 8;
	assert_bad(&s, "size: 8, this version has 72");
	side_mha(&s, 0, 2, 4096);
	s.l.page_size = 0;
	assert_bad(&s, "page_size: 0, allowed 1..65536");
	s.l.page_size = 65537;
	assert_bad(&s, "page_size: 65537, allowed 1..65536");
	s.l.page_size = 65536;
	s.l.dtype = 0;
	assert_bad(&s, "dtype: 0, not a dtype");
	s.l.dtype = KVS_DTYPE_MAX;
	assert_bad(&s, "dtype: unknown value 8");
	s.l.dtype = KVS_DTYPE_F16;
	s.l.n_buffers = 0;
	assert_bad(&s, "n_buffers: 0, allowed 1..4096");
	s.l.n_buffers = 4097;
	assert_bad(&s, "n_buffers: 4097, allowed 1..4096");
	s.l.n_buffers = 4;
	s.l.buffers = NULL;
	assert_bad(&s, "n_buffers: 0, allowed 1..4096");
	s.l.buffers = s.b;
	s.l.aux_max = 65537;
	assert_bad(&s, "aux_max: 65537, allowed 0..65536");
	s.l.aux_max = 65536;
	assert_int_equal(kvs_layout_check(&s.l, err, sizeof(err)), 0);
}

static void layout_check_buffers(void **state)
{
	char err[256] = "";
	struct side s;

	(void)state;
	side_mha(&s, 0, 2, 4096);
	s.b[1].item_len = 0;
	assert_bad(&s, "item_len of buffer 1: 0, allowed 1..1073741824");
	s.b[1].item_len = (1u << 30) + 1;
	assert_bad(&s,
		   "item_len of buffer 1: 1073741825, allowed 1..1073741824");
	s.b[1].item_len = 1u << 30;
	s.b[1].items = 1;
	assert_bad(&s, "items of k layer 1: 1, must be 0 for a paged kind");
	s.b[1].items = 0;
	s.b[3].layer = 0;
	assert_bad(&s, "v layer 0: given twice");
	s.b[3].layer = 65535;
	assert_int_equal(kvs_layout_check(&s.l, err, sizeof(err)), 0);
	s.b[3].kind = KVS_BUFFER_KIND_MAX;
	assert_bad(&s, "kind of buffer 3: unknown value 8");
	assert_int_equal(kvs_layout_check_foreign(&s.l, err, sizeof(err)), 0);
	s.b[3].kind = KVS_BUFFER_SWA;
	assert_bad(&s, "items of swa layer 65535: 0, at least 1");
	s.b[3].items = UINT32_MAX;
	assert_bad(&s, "items of swa layer 65535: 4294967295 of 4096 bytes, "
		       "more than 1073741824 bytes in all");
	s.b[3].items = 1u << 18;
	assert_int_equal(kvs_layout_check(&s.l, err, sizeof(err)), 0);
}

static void layout_find_and_dup(void **state)
{
	struct kvs_layout *d, *dd, copy;
	char err[256];
	struct side s;
	uint32_t i;

	(void)state;
	side_mha(&s, 0, LAYERS, 4096);
	s.b[3].layer = 65535;
	assert_int_equal(kvs_layout_dup(&s.l, &d), 0);
	assert_int_equal(kvs_layout_check(d, err, sizeof(err)), 0);
	for (i = 0; i < s.l.n_buffers; i++) {
		const struct kvs_layer_buffer *b = &s.b[i];

		assert_int_equal(kvs_layout_find(&s.l, b->kind, b->layer), i);
		assert_int_equal(kvs_layout_find(d, b->kind, b->layer), i);
	}
	assert_int_equal(kvs_layout_find(d, KVS_BUFFER_K, 3), -ENOENT);
	assert_int_equal(kvs_layout_find(&s.l, KVS_BUFFER_K, 3), -ENOENT);
	assert_int_equal(kvs_layout_find(d, KVS_BUFFER_KV, 0), -ENOENT);
	assert_int_equal(kvs_layout_find(d, 0, 65536), -ENOENT);
	assert_int_equal(kvs_layout_find(d, 65536, 0), -ENOENT);
	/* a copy of a copy, and of one whose buffers were exchanged */
	assert_int_equal(kvs_layout_dup(d, &dd), 0);
	assert_int_equal(kvs_layout_find(dd, KVS_BUFFER_V, 60), 121);
	free(dd);
	copy = *d;
	assert_int_equal(kvs_layout_find(&copy, KVS_BUFFER_V, 60), 121);
	copy.buffers = s.b + 1;
	copy.n_buffers = 1;
	assert_int_equal(kvs_layout_find(&copy, KVS_BUFFER_K, 1), 0);
	assert_int_equal(kvs_layout_find(&copy, KVS_BUFFER_K, 0), -ENOENT);
	d->n_buffers = 2;
	assert_int_equal(kvs_layout_find(d, KVS_BUFFER_K, 1), 1);
	assert_int_equal(kvs_layout_find(d, KVS_BUFFER_K, 2), -ENOENT);
	free(d);
}

static void layout_names(void **state)
{
	(void)state;
	assert_string_equal(kvs_buffer_kind_name(KVS_BUFFER_MAMBA), "mamba");
	assert_string_equal(kvs_buffer_kind_name(KVS_BUFFER_KIND_MAX), "?");
	assert_string_equal(kvs_dtype_name(KVS_DTYPE_BF16), "bfloat16");
	assert_string_equal(kvs_dtype_name(0), "?");
	assert_string_equal(kvs_dtype_name(UINT32_MAX), "?");
	assert_true(kvs_buffer_kind_is_paged(KVS_BUFFER_BLOCK_SCALE));
	assert_false(kvs_buffer_kind_is_paged(KVS_BUFFER_SWA));
	assert_false(kvs_buffer_kind_is_paged(UINT32_MAX));
}

static void layout_bytes_per_token(void **state)
{
	struct side s;

	(void)state;
	side_mla(&s, 0, 4);
	assert_int_equal(kvs_layout_bytes_per_token(&s.l), 4608);
	side_add(&s, KVS_BUFFER_MAMBA, 0, 100000, 1);
	assert_int_equal(kvs_layout_bytes_per_token(&s.l), 4608);
	side_add(&s, KVS_BUFFER_DSA, 0, 1, 0);
	assert_int_equal(kvs_layout_bytes_per_token(&s.l), 4609);
	s.l.buffers = &s.b[4];
	s.l.n_buffers = 1;
	assert_int_equal(kvs_layout_bytes_per_token(&s.l), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout_one_difference_each),
		cmocka_unit_test(layout_layer_count),
		cmocka_unit_test(layout_state_buffers),
		cmocka_unit_test(layout_order_does_not_matter),
		cmocka_unit_test(layout_stages_by_number),
		cmocka_unit_test(layout_every_layer_has_one_owner),
		cmocka_unit_test(layout_check_fields),
		cmocka_unit_test(layout_check_buffers),
		cmocka_unit_test(layout_find_and_dup),
		cmocka_unit_test(layout_names),
		cmocka_unit_test(layout_bytes_per_token),
	};

	return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
