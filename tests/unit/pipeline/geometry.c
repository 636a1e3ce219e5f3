/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: against a model that writes a room page by page, every run lies
 * inside its extent, on its border, apart from every other, and all of them
 * together are exactly the room, for page size 1, partial last pages,
 * one-token prompts and a million tokens (sgl-project/sglang#19890,
 * kvcache-ai/Mooncake#609); no extent passes its segment; sizes that would
 * wrap are refused (kvcache-ai/Mooncake#1513).
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
#include "pipeline/geometry.h"
#include "pipeline/layout.h"

#define BUFFERS 24
#define GIB (1ULL << 30)

struct pool {
	struct kvs_layout l;
	struct kvs_layer_buffer b[BUFFERS];
};

static void pool_add(struct pool *p, unsigned int kind, uint32_t layer,
		     uint32_t item_len, uint32_t items)
{
	KVS_ASSERT(p->l.n_buffers < BUFFERS);
	p->b[p->l.n_buffers++] = (struct kvs_layer_buffer){
		.kind = (uint16_t)kind,
		.layer = (uint16_t)layer,
		.item_len = item_len,
		.items = items,
	};
}

static void pool_init(struct pool *p, uint32_t page_size)
{
	memset(p, 0, sizeof(*p));
	p->l.size = sizeof(p->l);
	p->l.page_size = page_size;
	p->l.dtype = KVS_DTYPE_BF16;
	p->l.buffers = p->b;
}

/* A paged kind and a fixed one mixed at random, odd lengths included. */
static void pool_random(struct pool *p, struct kvs_rng *r)
{
	static const uint32_t pages[] = { 1, 1, 3, 16, 64 };
	uint32_t n, i;

	pool_init(p, pages[kvs_rng_below(r, KVS_ARRAY_SIZE(pages))]);
	n = 1 + (uint32_t)kvs_rng_below(r, BUFFERS);
	for (i = 0; i < n; i++) {
		unsigned int kind =
			(unsigned int)kvs_rng_below(r, KVS_BUFFER_KIND_MAX);
		uint32_t items = 0;

		if (!kvs_buffer_kind_is_paged(kind))
			items = 1 + (uint32_t)kvs_rng_below(r, 4);
		pool_add(p, kind, i, 1 + (uint32_t)kvs_rng_below(r, 300),
			 items);
	}
}

/* Mark [off, off + len) of an extent as used; each byte once. */
static void claim(unsigned char *used, uint64_t extent_len, uint64_t off,
		  uint64_t len)
{
	uint64_t i;

	assert_true(off % KVS_RUN_ALIGN == 0);
	assert_true(off <= extent_len && len <= extent_len - off);
	for (i = off; i < off + len; i++) {
		assert_int_equal(used[i], 0);
		used[i] = 1;
	}
}

/* What the room must hold of a buffer, counted page by page. */
static uint64_t model_bytes(const struct pool *p, const struct kvs_geometry *g,
			    uint32_t b)
{
	uint64_t done, pages = 0, items = p->b[b].items;

	for (done = 0; done < g->tokens; done += p->l.page_size)
		pages++;
	if (kvs_buffer_kind_is_paged(p->b[b].kind) ||
	    (p->b[b].kind == KVS_BUFFER_SWA && pages < items))
		items = pages;
	return items * p->b[b].item_len;
}

static uint64_t check_extent(const struct pool *p, const struct kvs_geometry *g,
			     uint32_t e, uint64_t *sums)
{
	uint64_t len = kvs_geometry_len(g, e);
	unsigned char *used = calloc(1, len);
	uint64_t off, run, end = 0;
	uint32_t b, rank;

	assert_non_null(used);
	for (b = 0; b < p->l.n_buffers; b++) {
		assert_int_equal(kvs_geometry_run(g, e, b, &off, &run), 0);
		if (!kvs_buffer_kind_is_paged(p->b[b].kind) &&
		    e + 1 < g->n_extents)
			assert_true(run == 0);
		claim(used, len, off, run);
		sums[b] += run;
		if (run && off + run > end)
			end = off + run;
	}
	for (rank = 0; e + 1 == g->n_extents && rank < g->n_ranks; rank++) {
		assert_int_equal(kvs_geometry_aux(g, rank, &off, &run), 0);
		assert_true(run == g->aux_len);
		claim(used, len, off, run);
		if (run && off + run > end)
			end = off + run;
	}
	/* no more than the rounding is wasted at the end */
	assert_true(len - end < KVS_RUN_ALIGN);
	free(used);
	return len;
}

static void check_room(const struct pool *p, const struct kvs_geometry *g)
{
	uint64_t sums[BUFFERS] = { 0 }, total = 0, want = 0, pages = 0;
	uint32_t e, b;

	for (e = 0; e < g->n_extents; e++) {
		total += check_extent(p, g, e, sums);
		pages += kvs_geometry_pages(g, e);
	}
	assert_true(pages == g->pages);
	assert_true(pages * p->l.page_size >= g->tokens);
	assert_true((pages - 1) * p->l.page_size < g->tokens);
	assert_true(total == kvs_geometry_total(g));
	for (b = 0; b < p->l.n_buffers; b++) {
		assert_true(sums[b] == model_bytes(p, g, b));
		want += sums[b];
	}
	assert_true(kvs_geometry_rank_bytes(g, 0, 65536) == want + g->aux_len);
}

static void geometry_against_a_model(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	uint32_t laid_out = 0, many = 0, round;
	struct kvs_geometry g;
	struct kvs_rng r;
	struct pool p;
	int ret;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	for (round = 0; round < 600; round++) {
		uint64_t segment = 4096 * (1 + kvs_rng_below(&r, 64));
		uint32_t want = 1 + (uint32_t)kvs_rng_below(&r, 200);
		uint64_t tokens = 1 + kvs_rng_below(&r, 1000);
		uint32_t per_extent;

		pool_random(&p, &r);
		per_extent = kvs_geometry_extent_tokens(&p.l, want, segment);
		if (!per_extent)
			continue;
		assert_true(per_extent % p.l.page_size == 0);
		assert_true(per_extent <= want || per_extent == p.l.page_size);
		ret = kvs_geometry_init(&g, &p.l, tokens, per_extent, segment,
					1 + (uint32_t)kvs_rng_below(&r, 8),
					(uint32_t)kvs_rng_below(&r, 200));
		if (ret == -E2BIG)
			continue; /* the aux blocks did not fit */
		assert_int_equal(ret, 0);
		assert_true(kvs_geometry_len(&g, 0) <= segment);
		assert_true(g.last_len <= segment);
		check_room(&p, &g);
		laid_out++;
		many += g.n_extents > 2;
		kvs_geometry_fini(&g);
	}
	assert_true(laid_out > 200);
	assert_true(many > 50);
}

static void geometry_small_prompts(void **state)
{
	static const struct {
		uint32_t page;
		uint64_t tokens;
		uint32_t pages;
	} v[] = {
		{ 1, 1, 1 },	 { 1, 511, 511 }, { 1, 512, 512 },
		{ 1, 513, 513 }, { 64, 1, 1 },	  { 64, 63, 1 },
		{ 64, 64, 1 },	 { 64, 65, 2 },	  { 64, 511, 8 },
		{ 64, 513, 9 },
	};
	struct kvs_geometry g;
	struct pool p;
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		pool_init(&p, v[i].page);
		pool_add(&p, KVS_BUFFER_K, 0, 16 * v[i].page, 0);
		pool_add(&p, KVS_BUFFER_V, 0, 16 * v[i].page, 0);
		pool_add(&p, KVS_BUFFER_SWA, 1, 48, 8);
		pool_add(&p, KVS_BUFFER_MAMBA, 2, 100, 3);
		assert_int_equal(kvs_geometry_init(&g, &p.l, v[i].tokens, 256,
						   1 << 20, 2, 10),
				 0);
		assert_int_equal(g.pages, v[i].pages);
		check_room(&p, &g);
		kvs_geometry_fini(&g);
	}
}

/* Page size 1: 128 Ki tokens are 64 runs a buffer, not 128 Ki pieces. */
static void geometry_long_prompts(void **state)
{
	struct kvs_geometry g;
	uint64_t off, len;
	struct pool p;
	uint32_t per_extent;

	(void)state;
	pool_init(&p, 1);
	pool_add(&p, KVS_BUFFER_K, 0, 256, 0);
	pool_add(&p, KVS_BUFFER_V, 0, 256, 0);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 2048, GIB), 2048);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 131072, 2048, GIB, 1, 0),
			 0);
	assert_int_equal(g.n_extents, 64);
	assert_int_equal(kvs_geometry_run(&g, 5, 1, &off, &len), 0);
	assert_true(off == 2048 * 256 && len == 2048 * 256);
	assert_true(kvs_geometry_total(&g) == 131072ULL * 512);
	kvs_geometry_fini(&g);

	/* a million tokens of a large model: extents shrink to a segment */
	pool_init(&p, 64);
	for (per_extent = 0; per_extent < BUFFERS; per_extent++)
		pool_add(&p, KVS_BUFFER_KV, per_extent, 64 * 40000, 0);
	per_extent = kvs_geometry_extent_tokens(&p.l, 2048, GIB);
	assert_int_equal(per_extent, GIB / (24 * 64 * 40000) * 64);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1 << 20, per_extent, GIB,
					   16, 65536),
			 0);
	assert_true(g.full_len <= GIB && g.last_len <= GIB);
	assert_true(kvs_geometry_total(&g) >= (1ULL << 20) * 24 * 40000);
	assert_true(kvs_geometry_rank_bytes(&g, 3, 2) ==
		    2 * (1ULL << 20) * 40000 + 65536);
	kvs_geometry_fini(&g);
}

/* With the largest aux blocks a room that ends in a full extent still fits. */
static void geometry_leaves_room_for_aux(void **state)
{
	struct kvs_geometry g;
	uint32_t per_extent;
	struct pool p;

	(void)state;
	pool_init(&p, 64);
	p.l.aux_max = KVS_AUX_MAX;
	pool_add(&p, KVS_BUFFER_KV, 0, 1 << 20, 0);
	pool_add(&p, KVS_BUFFER_MAMBA, 1, 1 << 20, 8);
	per_extent = kvs_geometry_extent_tokens(&p.l, UINT32_MAX, GIB);
	assert_int_equal(per_extent, (1024 - 16 - 8) * 64);
	assert_int_equal(kvs_geometry_init(&g, &p.l, per_extent, per_extent,
					   GIB, KVS_RANKS_MAX, KVS_AUX_MAX),
			 0);
	assert_true(g.last_len == GIB);
	kvs_geometry_fini(&g);
}

static void geometry_refuses(void **state)
{
	struct kvs_geometry g;
	uint64_t off, len;
	struct pool p;

	(void)state;
	pool_init(&p, 16);
	pool_add(&p, KVS_BUFFER_KV, 3, 1024, 0);
	pool_add(&p, KVS_BUFFER_MAMBA, 4, 1024, 1);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 0, 16, GIB, 1, 0),
			 -EINVAL);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 0, GIB, 1, 0), -EINVAL);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 17, GIB, 1, 0),
			 -EINVAL);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 16, GIB, 0, 0),
			 -EINVAL);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 16, GIB,
					   KVS_RANKS_MAX + 1, 0),
			 -EINVAL);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 16, GIB, 1,
					   KVS_AUX_MAX + 1),
			 -EINVAL);
	assert_int_equal(kvs_geometry_init(&g, &p.l, KVS_TOKENS_MAX + 1, 16384,
					   GIB, 1, 0),
			 -E2BIG);
	assert_int_equal(kvs_geometry_init(&g, &p.l, UINT64_MAX, 16384, GIB, 1,
					   0),
			 -E2BIG);
	/* one extent more than there may be */
	assert_int_equal(kvs_geometry_init(&g, &p.l, 16 * KVS_EXTENTS_MAX + 1,
					   16, GIB, 1, 0),
			 -E2BIG);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 16 * KVS_EXTENTS_MAX, 16,
					   GIB, 1, 0),
			 0);
	assert_int_equal(kvs_geometry_run(&g, KVS_EXTENTS_MAX, 0, &off, &len),
			 -ERANGE);
	assert_int_equal(kvs_geometry_run(&g, 0, 2, &off, &len), -ERANGE);
	assert_int_equal(kvs_geometry_run(&g, UINT32_MAX, 0, &off, &len),
			 -ERANGE);
	assert_int_equal(kvs_geometry_aux(&g, 1, &off, &len), -ERANGE);
	assert_int_equal(kvs_geometry_len(&g, UINT32_MAX), 0);
	assert_int_equal(kvs_geometry_pages(&g, KVS_EXTENTS_MAX), 0);
	kvs_geometry_fini(&g);
	/* harmless a second time, and after a failure */
	kvs_geometry_fini(&g);
	assert_int_equal(kvs_geometry_total(&g), 0);
}

static void geometry_segment(void **state)
{
	struct kvs_geometry g;
	struct pool p;

	(void)state;
	pool_init(&p, 16);
	pool_add(&p, KVS_BUFFER_KV, 0, 4096, 0);
	pool_add(&p, KVS_BUFFER_MAMBA, 1, 4096, 1);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 160, 8191), 0);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 160, 8192), 16);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 160, 5 * 4096), 64);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 160, GIB), 160);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 0, GIB), 16);
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 31, GIB), 16);
	/* a segment of more than a GiB gives no larger extents */
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, UINT32_MAX,
						    UINT64_MAX),
			 (GIB / 4096 - 1) * 16);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 64, 64, 5 * 4096, 1, 0),
			 0);
	assert_true(g.last_len == 5 * 4096);
	kvs_geometry_fini(&g);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 64, 64, 5 * 4096, 1, 1),
			 -E2BIG);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 64, 64, 5 * 4096 - 1, 1,
					   0),
			 -E2BIG);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 128, 96, 5 * 4096, 1, 0),
			 -E2BIG);
}

/* Products and sums over 64 bits: refused, not wrapped. */
static void geometry_overflow(void **state)
{
	struct kvs_geometry g;
	struct pool p;
	uint32_t i;

	(void)state;
	pool_init(&p, 1);
	for (i = 0; i < BUFFERS; i++)
		pool_add(&p, KVS_BUFFER_KV, i, KVS_ITEM_LEN_MAX, 0);
	assert_int_equal(
		kvs_geometry_extent_tokens(&p.l, UINT32_MAX, UINT64_MAX), 0);
	assert_int_equal(kvs_geometry_init(&g, &p.l, KVS_TOKENS_MAX,
					   KVS_TOKENS_MAX, UINT64_MAX, 1, 0),
			 -E2BIG);
	assert_int_equal(kvs_geometry_init(&g, &p.l, KVS_TOKENS_MAX, UINT32_MAX,
					   UINT64_MAX, 1, 0),
			 -E2BIG);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 1, UINT64_MAX, 1, 0),
			 -E2BIG);
	p.l.n_buffers = 1;
	assert_int_equal(kvs_geometry_extent_tokens(&p.l, 4, UINT64_MAX), 1);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 2048, 1, UINT64_MAX, 1, 0),
			 0);
	assert_true(kvs_geometry_total(&g) == 2048 * GIB);
	assert_true(kvs_geometry_rank_bytes(&g, 0, 1) == 2048 * GIB);
	kvs_geometry_fini(&g);
	p.b[0].kind = KVS_BUFFER_OTHER;
	p.b[0].items = UINT32_MAX;
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1, 1, UINT64_MAX, 1, 0),
			 -E2BIG);
}

/* Layers given to ranks add up to the room, whatever the cut. */
static void geometry_rank_bytes(void **state)
{
	struct kvs_geometry g;
	uint64_t all, sum;
	struct pool p;
	uint32_t i, cut;

	(void)state;
	pool_init(&p, 16);
	for (i = 0; i < 6; i++) {
		pool_add(&p, KVS_BUFFER_K, i, 100 + i, 0);
		pool_add(&p, KVS_BUFFER_V, i, 200 + i, 0);
	}
	pool_add(&p, KVS_BUFFER_MAMBA, 7, 999, 3);
	assert_int_equal(kvs_geometry_init(&g, &p.l, 1000, 128, GIB, 2, 77), 0);
	all = kvs_geometry_rank_bytes(&g, 0, 8);
	for (cut = 0; cut <= 8; cut++) {
		sum = kvs_geometry_rank_bytes(&g, 0, cut) +
		      kvs_geometry_rank_bytes(&g, cut, 8 - cut);
		assert_true(sum == all + 77);
	}
	assert_true(kvs_geometry_rank_bytes(&g, 3, 0) == 77);
	assert_true(kvs_geometry_rank_bytes(&g, 7, UINT32_MAX) == 3 * 999 + 77);
	assert_true(kvs_geometry_rank_bytes(&g, UINT32_MAX, UINT32_MAX) == 77);
	kvs_geometry_fini(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(geometry_against_a_model),
		cmocka_unit_test(geometry_small_prompts),
		cmocka_unit_test(geometry_long_prompts),
		cmocka_unit_test(geometry_leaves_room_for_aux),
		cmocka_unit_test(geometry_refuses),
		cmocka_unit_test(geometry_segment),
		cmocka_unit_test(geometry_overflow),
		cmocka_unit_test(geometry_rank_bytes),
	};

	return cmocka_run_group_tests_name("geometry", tests, NULL, NULL);
}
