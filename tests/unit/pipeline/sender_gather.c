/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvs_gather_next() cuts page lists into chunks that together hold
 * every byte once, each at its place, none over chunk_max, none across an
 * extent's end, with neighbours merged; only paged buffers of the layers in
 * range; state items and aux go to the last extent. kvs_send_past remembers
 * poisoned attempts, and answers for all when it could not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/sender_internal.h"
#include "tests/unit/pipeline/sender_rig.h"

#define SOURCE_PAGES 97

static const struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_K, 0, 48, 0 },   { KVS_BUFFER_K, 1, 48, 0 },
	{ KVS_BUFFER_V, 0, 64, 0 },   { KVS_BUFFER_V, 1, 64, 0 },
	{ KVS_BUFFER_KV, 2, 7, 0 },   { KVS_BUFFER_DSA, 2, 1, 0 },
	{ KVS_BUFFER_MAMBA, 1, 9, 3 }
};
#define N_BUFFERS KVS_ARRAY_SIZE(buffers)

static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = 4,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = N_BUFFERS,
	.buffers = (struct kvs_layer_buffer *)(uintptr_t)buffers,
	.aux_max = 64,
};

static unsigned int buffer_of(const struct kvs_msg_chunk *c)
{
	unsigned int i;

	for (i = 0; i < N_BUFFERS; i++) {
		if (buffers[i].kind == c->kind && buffers[i].layer == c->layer)
			return i;
	}
	fail_msg("chunk of a buffer that is not there");
	return 0;
}

static void cut_all(struct kvs_gather *g, const struct kvs_gather_map *map,
		    size_t cap, unsigned char *out[], unsigned char *flag[])
{
	struct kvs_msg_chunk c;
	struct iovec iov[64];
	size_t n, i;

	while (kvs_gather_next(g, map, iov, cap, &c, &n)) {
		unsigned int b = buffer_of(&c);
		uint64_t item = buffers[b].item_len;
		uint64_t at = (uint64_t)c.extent * map->extent_pages * item +
			      c.offset;
		uint64_t sum = 0;

		assert_in_range(c.len, 1, map->chunk_max);
		assert_in_range(n, 1, cap);
		assert_true(c.extent < map->n_extents);
		assert_true(c.offset + c.len <= map->extent_pages * item);
		for (i = 0; i < n; i++) {
			memcpy(out[b] + at + sum, iov[i].iov_base,
			       iov[i].iov_len);
			sum += iov[i].iov_len;
			if (i)
				assert_true((char *)iov[i - 1].iov_base +
						    iov[i - 1].iov_len !=
					    (char *)iov[i].iov_base);
		}
		assert_int_equal(sum, c.len);
		for (i = 0; i < sum; i++)
			assert_int_equal(flag[b][at + i]++, 0);
	}
	/* and it stays over */
	assert_false(kvs_gather_next(g, map, iov, cap, &c, &n));
}

static void random_round(struct kvs_rng *rng)
{
	uint32_t pages = 1 + (uint32_t)kvs_rng_below(rng, 60);
	unsigned char *src[N_BUFFERS], *out[N_BUFFERS], *flag[N_BUFFERS];
	uint32_t list[60], order[60];
	struct kvs_gather_map map = {
		.layout = &layout,
		.buffers = (void *const *)src,
		.extent_pages = 1 + (uint32_t)kvs_rng_below(rng, 20),
		.slice.first_layer = (uint32_t)kvs_rng_below(rng, 3),
		.slice.n_layers = (uint32_t)kvs_rng_below(rng, 4),
		.slice.tp = 1,
		.chunk_max = 1 + kvs_rng_below(rng, 400),
	};
	size_t cap = 1 + kvs_rng_below(rng, 64);
	uint32_t b, p, done, n;
	size_t i;

	map.n_extents = (pages + map.extent_pages - 1) / map.extent_pages;
	for (b = 0; b < N_BUFFERS; b++) {
		size_t len = (size_t)buffers[b].item_len * SOURCE_PAGES;
		size_t room = (size_t)buffers[b].item_len * map.n_extents *
			      map.extent_pages;

		src[b] = malloc(len);
		out[b] = calloc(1, room);
		flag[b] = calloc(1, room);
		assert_true(src[b] && out[b] && flag[b]);
		for (i = 0; i < len; i++)
			src[b][i] = (unsigned char)kvs_rng_next(rng);
	}
	for (p = 0; p < pages; p++) {
		/* runs of neighbours now and then */
		list[p] = p && kvs_rng_below(rng, 2) &&
					  list[p - 1] + 1 < SOURCE_PAGES
				  ? list[p - 1] + 1
				  : (uint32_t)kvs_rng_below(rng, SOURCE_PAGES);
		order[p] = p;
	}
	/* queued in pieces, the last piece first */
	for (done = 0; done < pages; done += n) {
		struct kvs_gather g = { .what = KVS_GATHER_PAGES };

		n = 1 + (uint32_t)kvs_rng_below(rng, pages - done);
		g.first = order[pages - done - n];
		g.n = n;
		g.items = list + g.first;
		cut_all(&g, &map, cap, out, flag);
	}
	for (b = 0; b < N_BUFFERS; b++) {
		size_t item = buffers[b].item_len;
		bool in = kvs_buffer_kind_is_paged(buffers[b].kind) &&
			  buffers[b].layer >= map.slice.first_layer &&
			  buffers[b].layer <
				  map.slice.first_layer + map.slice.n_layers;

		for (i = 0; i < (size_t)pages * item; i++)
			assert_int_equal(flag[b][i], in);
		for (; i < item * map.n_extents * map.extent_pages; i++)
			assert_int_equal(flag[b][i], 0);
		for (p = 0; in && p < pages; p++)
			assert_memory_equal(out[b] + p * item,
					    src[b] + list[p] * item, item);
		free(src[b]);
		free(out[b]);
		free(flag[b]);
	}
}

static void pages_land_once_at_their_place(void **state)
{
	struct kvs_rng rng;
	int i;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	for (i = 0; i < 400; i++)
		random_round(&rng);
}

static void neighbours_are_one_piece(void **state)
{
	static unsigned char src[48 * 8];
	void *bases[N_BUFFERS] = { src };
	uint32_t list[] = { 2, 3, 4, 0, 1 };
	struct kvs_gather_map map = { .layout = &layout,
				      .buffers = bases,
				      .extent_pages = 8,
				      .n_extents = 1,
				      .slice.n_layers = 1,
				      .slice.tp = 1,
				      .chunk_max = 4096 };
	struct kvs_gather g = { .what = KVS_GATHER_PAGES,
				.n = 5,
				.items = list };
	struct kvs_msg_chunk c;
	struct iovec iov[8];
	size_t n;

	(void)state;
	assert_true(kvs_gather_next(&g, &map, iov, 8, &c, &n));
	assert_int_equal(n, 2);
	assert_int_equal(iov[0].iov_len, 3 * 48);
	assert_int_equal(iov[1].iov_len, 2 * 48);
	assert_int_equal(c.len, 5 * 48);
}

static void chunks_hold_whole_items_where_they_can(void **state)
{
	static unsigned char src[48 * 8];
	void *bases[N_BUFFERS] = { src };
	uint32_t list[] = { 0, 2, 4, 6 };
	struct kvs_gather_map map = { .layout = &layout,
				      .buffers = bases,
				      .extent_pages = 8,
				      .n_extents = 1,
				      .slice.n_layers = 1,
				      .slice.tp = 1,
				      .chunk_max = 100 };
	struct kvs_gather g = { .what = KVS_GATHER_PAGES,
				.n = 4,
				.items = list };
	struct kvs_msg_chunk c;
	struct iovec iov[8];
	size_t n;

	(void)state;
	assert_true(kvs_gather_next(&g, &map, iov, 8, &c, &n));
	assert_int_equal(c.len, 96);
	assert_true(kvs_gather_next(&g, &map, iov, 8, &c, &n));
	assert_int_equal(c.offset, 96);
}

/* One-sided: no item is cut, however short the chunks are. */
static void whole_items_only(void **state)
{
	static unsigned char src[48 * 8], aux[50];
	void *bases[N_BUFFERS] = { src };
	uint32_t list[] = { 0, 2, 4, 6 };
	struct kvs_gather_map map = { .layout = &layout,
				      .buffers = bases,
				      .extent_pages = 8,
				      .n_extents = 1,
				      .slice.n_layers = 1,
				      .slice.tp = 1,
				      .chunk_max = 7,
				      .whole = true };
	struct kvs_gather g = { .what = KVS_GATHER_PAGES,
				.n = 4,
				.items = list };
	struct kvs_gather a = { .what = KVS_GATHER_AUX,
				.n = sizeof(aux),
				.data = aux };
	struct kvs_msg_chunk c;
	struct iovec iov[8];
	size_t n;

	(void)state;
	for (unsigned int i = 0; i < 4; i++) {
		assert_true(kvs_gather_next(&g, &map, iov, 8, &c, &n));
		assert_int_equal(c.offset, 48 * i);
		assert_int_equal(c.len, 48);
	}
	assert_true(kvs_gather_next(&a, &map, iov, 8, &c, &n));
	assert_int_equal(c.len, sizeof(aux));
	assert_false(kvs_gather_next(&a, &map, iov, 8, &c, &n));
}

static void state_and_aux_go_to_the_last_extent(void **state)
{
	static unsigned char src[9 * 8], aux[50];
	void *bases[N_BUFFERS];
	uint32_t list[] = { 7, 1 };
	struct kvs_gather_map map = { .layout = &layout,
				      .buffers = bases,
				      .rank = 5,
				      .extent_pages = 2,
				      .n_extents = 4,
				      .slice.first_layer = 1,
				      .slice.n_layers = 1,
				      .slice.tp = 1,
				      .chunk_max = 32 };
	struct kvs_gather g = { .what = KVS_GATHER_STATE,
				.buffer = 6,
				.first = 1,
				.n = 2,
				.items = list };
	struct kvs_gather a = { .what = KVS_GATHER_AUX,
				.n = sizeof(aux),
				.data = aux };
	struct kvs_gather out = g;
	struct kvs_msg_chunk c;
	struct iovec iov[8];
	size_t n;

	(void)state;
	bases[6] = src;
	assert_true(kvs_gather_next(&g, &map, iov, 8, &c, &n));
	assert_int_equal(c.extent, 3);
	assert_int_equal(c.kind, KVS_BUFFER_MAMBA);
	assert_int_equal(c.offset, 9);
	assert_int_equal(c.len, 18);
	assert_ptr_equal(iov[0].iov_base, src + 63);
	assert_ptr_equal(iov[1].iov_base, src + 9);
	assert_false(kvs_gather_next(&g, &map, iov, 8, &c, &n));

	assert_true(kvs_gather_next(&a, &map, iov, 8, &c, &n));
	assert_int_equal(c.extent, 3);
	assert_int_equal(c.kind, KVS_KIND_AUX);
	assert_int_equal(c.layer, 5);
	assert_int_equal(c.len, 32);
	assert_true(kvs_gather_next(&a, &map, iov, 8, &c, &n));
	assert_int_equal(c.offset, 32);
	assert_int_equal(c.len, 18);
	assert_false(kvs_gather_next(&a, &map, iov, 8, &c, &n));

	/* of a layer that is another rank's: nothing */
	map.slice.first_layer = 2;
	assert_false(kvs_gather_next(&out, &map, iov, 8, &c, &n));
}

static void past_keeps_poison_and_forgets_the_rest(void **state)
{
	struct kvs_send_past p;
	uint64_t i;

	(void)state;
	assert_int_equal(kvs_send_past_init(&p, 4, 2), 0);
	assert_int_equal(kvs_send_past_poison(&p, 1, 1), 0);
	kvs_send_past_add(&p, 1, 1, ECONNRESET);
	for (i = 0; i < 100; i++)
		kvs_send_past_add(&p, 1000 + i, 1, 0);
	assert_int_equal(p.n_clean, 4);
	assert_false(kvs_send_past_known(&p, 1000, 1));
	assert_true(kvs_send_past_known(&p, 1099, 1));
	assert_int_equal(kvs_send_past_poison(&p, 1, 1), ECONNRESET);
	/* by generation, not by room */
	assert_int_equal(kvs_send_past_poison(&p, 1, 2), 0);
	/* clean never washes poison off, poison replaces clean */
	kvs_send_past_add(&p, 1, 1, 0);
	assert_int_equal(kvs_send_past_poison(&p, 1, 1), ECONNRESET);
	kvs_send_past_add(&p, 1099, 1, EPIPE);
	assert_int_equal(kvs_send_past_poison(&p, 1099, 1), EPIPE);
	kvs_send_past_fini(&p);
}

static void past_that_overflows_trusts_nobody(void **state)
{
	struct kvs_send_past p;

	(void)state;
	assert_int_equal(kvs_send_past_init(&p, 4, 1), 0);
	kvs_send_past_add(&p, 3, 1, 0);
	kvs_send_past_add(&p, 4, 1, 0);
	kvs_send_past_add(&p, 1, 1, EPIPE);
	assert_int_equal(kvs_send_past_poison(&p, 2, 1), 0);
	/* no place for it: not even as the clean one it was */
	kvs_send_past_add(&p, 3, 1, EPIPE);
	assert_int_not_equal(kvs_send_past_poison(&p, 2, 1), 0);
	assert_int_not_equal(kvs_send_past_poison(&p, 3, 1), 0);
	/* known to have ended well */
	assert_int_equal(kvs_send_past_poison(&p, 4, 1), 0);
	kvs_send_past_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_land_once_at_their_place),
		cmocka_unit_test(neighbours_are_one_piece),
		cmocka_unit_test(chunks_hold_whole_items_where_they_can),
		cmocka_unit_test(whole_items_only),
		cmocka_unit_test(state_and_aux_go_to_the_last_extent),
		cmocka_unit_test(past_keeps_poison_and_forgets_the_rest),
		cmocka_unit_test(past_that_overflows_trusts_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
