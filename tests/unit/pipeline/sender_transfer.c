/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what is queued arrives, every byte once and at its place, whatever
 * the order, page permutation, page size and cutting; LAST carries the true
 * total and comes after the last byte; pages_free() comes exactly once per
 * call; each page is taken once; a rank without layers sends its aux block
 * only; rooms share the connections, whose number does not grow with them
 * (kvcache-ai/Mooncake#1954); with small socket buffers frames stay whole
 * (tokio-rs/io-uring#249).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "tests/unit/pipeline/sender_rig.h"

#define SOURCE_PAGES 256

static const struct kvs_layer_buffer small[] = {
	{ KVS_BUFFER_K, 0, 320, 0 },  { KVS_BUFFER_K, 1, 320, 0 },
	{ KVS_BUFFER_K, 2, 320, 0 },  { KVS_BUFFER_V, 0, 192, 0 },
	{ KVS_BUFFER_V, 1, 192, 0 },  { KVS_BUFFER_V, 2, 192, 0 },
	{ KVS_BUFFER_SWA, 1, 24, 4 }, { KVS_BUFFER_MAMBA, 2, 40, 2 },
};

static void shuffle(uint32_t *v, uint32_t n, struct kvs_rng *rng)
{
	uint32_t i, j, t;

	for (i = n; i > 1; i--) {
		j = (uint32_t)kvs_rng_below(rng, i);
		t = v[i - 1];
		v[i - 1] = v[j];
		v[j] = t;
	}
}

static void permutation(uint32_t *v, uint32_t n, struct kvs_rng *rng)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		v[i] = i;
	shuffle(v, n, rng);
}

static void *cookie(uintptr_t n)
{
	return (void *)n;
}

/* Queue all pages in random pieces, in random order; returns the calls. */
static uint32_t queue_pages(struct kvs_send_room *r, uint32_t pages,
			    const uint32_t *map, struct kvs_rng *rng)
{
	uint32_t start[SOURCE_PAGES + 1], order[SOURCE_PAGES];
	uint32_t n = 0, p, i;

	for (p = 0; p < pages; n++) {
		start[n] = p;
		p += 1 + (uint32_t)kvs_rng_below(rng, 9);
	}
	start[n] = pages;
	permutation(order, n, rng);
	for (i = 0; i < n; i++) {
		uint32_t k = order[i];

		assert_int_equal(kvs_send_pages(r, start[k], map + start[k],
						start[k + 1] - start[k],
						cookie(k + 1)),
				 0);
	}
	return n;
}

/* Each cookie of 1..n was freed once, with 0. */
static void check_freed(struct rig *g, uint64_t id, uint32_t n)
{
	bool seen[SOURCE_PAGES + 16] = { false };
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct rig_event e = rig_wait(g, RIG_FREE, id, i);
		uintptr_t k = (uintptr_t)e.cookie;

		assert_int_equal(e.status, 0);
		assert_in_range(k, 1, n);
		assert_false(seen[k]);
		seen[k] = true;
	}
	assert_int_equal(rig_count(g, RIG_FREE, id), n);
}

static void one_room(struct rig *g, uint64_t id, uint64_t tokens,
		     uint32_t extent_tokens, struct kvs_rng *rng,
		     bool before_grant)
{
	uint32_t map[SOURCE_PAGES], calls;
	struct kvs_send_room *r;
	struct rig_room *w;
	struct rig_event e;
	struct kvs_msg m;

	permutation(map, SOURCE_PAGES, rng);
	assert_int_equal(kvs_send_open(g->s, id, NULL, tokens, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	assert_int_equal(m.open.room, id);
	assert_int_equal(m.open.tokens, tokens);
	w = rig_room_new(g, id, 1000 + id, tokens, extent_tokens, 0, 8, 0);
	if (!before_grant) {
		rig_grant(g, w);
		e = rig_wait(g, RIG_GRANTED, id, 0);
		assert_int_equal(e.generation, 1000 + id);
	}
	calls = queue_pages(r, w->geo.pages, map, rng);
	assert_int_equal(kvs_send_finish(r), 0);
	if (before_grant) {
		/* nothing is sent, and nothing freed, without a grant */
		rig_quiet(g);
		assert_int_equal(rig_count(g, RIG_FREE, id), 0);
		rig_grant(g, w);
	}
	rig_finish_room(g, w);
	e = rig_wait(g, RIG_DONE, id, 0);
	assert_int_equal(e.status, 0);
	check_freed(g, id, calls);
	rig_check_pages(g, w, map);
	assert_int_equal(kvs_send_outstanding(r), 0);
	kvs_send_close(r);
	rig_room_forget(g, w);
}

static void every_byte_once_at_its_place(void **state)
{
	static const uint32_t page_sizes[] = { 1, 16, 64 };
	struct kvs_rng rng;
	unsigned int i, k;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	for (i = 0; i < KVS_ARRAY_SIZE(page_sizes); i++) {
		uint32_t ps = page_sizes[i];
		struct rig *g = rig_new(small, 6, ps, SOURCE_PAGES, &rng);

		g->o.chunk_max = 1 + kvs_rng_below(&rng, 5000);
		g->o.window = g->o.chunk_max + kvs_rng_below(&rng, 50000);
		g->o.data_connections = 1 + (unsigned int)(i % 3);
		rig_start(g);
		for (k = 1; k <= 8; k++) {
			uint64_t pages = 1 + kvs_rng_below(&rng, SOURCE_PAGES);
			/* a partial last page as often as not */
			uint64_t tokens = pages * ps - kvs_rng_below(&rng, ps);

			one_room(g, k, tokens,
				 ps * (1 + (uint32_t)kvs_rng_below(&rng, 64)),
				 &rng, k % 2);
		}
		rig_free(g);
	}
}

static void only_the_layers_granted(void **state)
{
	uint32_t map[20], calls;
	struct kvs_send_room *r;
	struct rig_room *w;
	struct kvs_rng rng;
	struct kvs_msg m;
	struct rig *g;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	g = rig_new(small, 6, 16, SOURCE_PAGES, &rng);
	rig_start(g);
	permutation(map, 20, &rng);
	assert_int_equal(kvs_send_open(g->s, 9, NULL, 320, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	/* the rig fails on a chunk of another layer */
	w = rig_room_new(g, 9, 3, 320, 64, 1, 1, 0);
	rig_grant(g, w);
	calls = queue_pages(r, 20, map, &rng);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, 9, 0).status, 0);
	check_freed(g, 9, calls);
	rig_check_pages(g, w, map);
	kvs_send_close(r);
	rig_free(g);
}

static void state_items_and_aux(void **state)
{
	static const uint32_t swa[] = { 9, 3, 200, 17 }, mamba[] = { 5, 4 };
	unsigned char aux[100];
	struct kvs_send_room *r;
	uint32_t map[5];
	struct rig_room *w;
	struct kvs_rng rng;
	uint64_t off, len;
	struct kvs_msg m;
	struct rig *g;
	uint32_t i;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	g = rig_new(small, 8, 16, SOURCE_PAGES, &rng);
	g->o.rank = 1;
	g->o.chunk_max = 70;
	rig_start(g);
	for (i = 0; i < sizeof(aux); i++)
		aux[i] = (unsigned char)(i * 7);
	permutation(map, 5, &rng);
	assert_int_equal(kvs_send_open(g->s, 4, NULL, 75, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	assert_int_equal(m.open.rank, 1);
	w = rig_room_new(g, 4, 8, 75, 32, 0, 3, sizeof(aux));
	rig_grant(g, w);

	/* wrong ones first: they must leave nothing behind */
	assert_int_equal(kvs_send_state(r, 0, swa, 1, NULL), -EINVAL);
	assert_int_equal(kvs_send_state(r, 8, swa, 1, NULL), -EINVAL);
	assert_int_equal(kvs_send_state(r, 7, swa, 3, NULL), -ERANGE);
	assert_int_equal(kvs_send_aux(r, aux, 5000, NULL), -ERANGE);

	assert_int_equal(kvs_send_state(r, 6, swa, 1, cookie(1)), 0);
	assert_int_equal(kvs_send_state(r, 6, swa + 1, 3, cookie(2)), 0);
	assert_int_equal(kvs_send_state(r, 6, swa, 1, NULL), -ERANGE);
	assert_int_equal(kvs_send_state(r, 7, mamba, 2, cookie(3)), 0);
	assert_int_equal(kvs_send_aux(r, aux, sizeof(aux), cookie(4)), 0);
	assert_int_equal(kvs_send_aux(r, aux, sizeof(aux), NULL), -EINVAL);
	assert_int_equal(kvs_send_pages(r, 0, map, 5, cookie(5)), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	assert_int_equal(kvs_send_finish(r), -EINVAL);
	assert_int_equal(kvs_send_state(r, 7, mamba, 1, NULL), -EINVAL);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, 4, 0).status, 0);
	check_freed(g, 4, 5);
	rig_check_pages(g, w, map);

	assert_int_equal(kvs_geometry_run(&w->geo, 2, 6, &off, &len), 0);
	assert_int_equal(len, 4 * 24);
	for (i = 0; i < 4; i++)
		assert_memory_equal(w->mem + 2 * w->geo.full_len + off + i * 24,
				    (char *)g->buffers[6] + swa[i] * 24, 24);
	assert_int_equal(kvs_geometry_run(&w->geo, 2, 7, &off, &len), 0);
	for (i = 0; i < 2; i++)
		assert_memory_equal(w->mem + 2 * w->geo.full_len + off + i * 40,
				    (char *)g->buffers[7] + mamba[i] * 40, 40);
	assert_int_equal(kvs_geometry_aux(&w->geo, 1, &off, &len), 0);
	assert_memory_equal(w->mem + 2 * w->geo.full_len + off, aux,
			    sizeof(aux));
	kvs_send_close(r);
	rig_free(g);
}

static void zero_byte_rank(void **state)
{
	static const uint32_t map[] = { 1, 2, 3 };
	struct kvs_send_room *r;
	struct rig_room *w;
	struct kvs_rng rng;
	struct kvs_msg m;
	char aux[12] = "hello world";
	struct rig *g;

	(void)state;
	kvs_rng_init(&rng, 3);
	g = rig_new(small, 6, 16, SOURCE_PAGES, &rng);
	rig_start(g);
	/* nothing at all: LAST without a data connection */
	assert_int_equal(kvs_send_open(g->s, 1, NULL, 48, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	w = rig_room_new(g, 1, 1, 48, 48, 0, 0, 0);
	rig_grant(g, w);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, 0);
	assert_int_equal(g->accepted, 0);
	kvs_send_close(r);
	/* pages that are not its to send are freed; the aux block goes */
	assert_int_equal(kvs_send_open(g->s, 2, NULL, 48, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	w = rig_room_new(g, 2, 2, 48, 48, 0, 0, sizeof(aux));
	rig_grant(g, w);
	assert_int_equal(kvs_send_pages(r, 0, map, 3, cookie(1)), 0);
	assert_int_equal(kvs_send_aux(r, aux, sizeof(aux), cookie(2)), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, 2, 0).status, 0);
	check_freed(g, 2, 2);
	assert_int_equal(w->bytes, sizeof(aux));
	kvs_send_close(r);
	rig_free(g);
}

static void arguments_are_checked(void **state)
{
	static const uint32_t map[] = { 1, 2, 3, SOURCE_PAGES };
	struct kvs_send_room *r, *again;
	struct kvs_rng rng;
	struct rig *g;

	(void)state;
	kvs_rng_init(&rng, 3);
	g = rig_new(small, 6, 16, SOURCE_PAGES, &rng);
	rig_start(g);
	assert_int_equal(kvs_send_open(g->s, 0, NULL, 48, g, &r), -EINVAL);
	assert_int_equal(kvs_send_open(g->s, 1, NULL, 0, g, &r), -EINVAL);
	assert_int_equal(kvs_send_open(g->s, 1, NULL, KVS_TOKENS_MAX + 1, g,
				       &r),
			 -EINVAL);
	assert_int_equal(kvs_send_open(g->s, 1, NULL, 48, g, &r), 0);
	assert_int_equal(kvs_send_open(g->s, 1, NULL, 48, g, &again), -EEXIST);
	assert_ptr_equal(kvs_send_user(r), g);
	assert_int_equal(kvs_send_room_id(r), 1);
	assert_int_equal(kvs_send_pages(r, 3, map, 1, NULL), -ERANGE);
	assert_int_equal(kvs_send_pages(r, 1, map, 3, NULL), -ERANGE);
	assert_int_equal(kvs_send_pages(r, UINT32_MAX, map, 2, NULL), -ERANGE);
	assert_int_equal(kvs_send_pages(r, 0, map + 3, 1, NULL), -ERANGE);
	assert_int_equal(kvs_send_pages(r, 0, map, 0, NULL), -EINVAL);
	assert_int_equal(kvs_send_pages(r, 0, NULL, 1, NULL), -EINVAL);
	assert_int_equal(kvs_send_pages(r, 1, map, 1, NULL), 0);
	/* each page once, and a refused call marks none */
	assert_int_equal(kvs_send_pages(r, 0, map, 2, NULL), -EINVAL);
	assert_int_equal(kvs_send_pages(r, 0, map, 1, NULL), 0);
	assert_int_equal(kvs_send_pages(r, 2, map, 1, NULL), 0);
	kvs_send_close(r);
	rig_wait(g, RIG_DONE, 1, 0);
	rig_free(g);
}

static void many_rooms_few_connections(void **state)
{
	enum { ROOMS = 48 };
	struct kvs_send_room *r[ROOMS];
	struct rig_room *w[ROOMS];
	uint32_t map[ROOMS][40];
	struct kvs_rng rng;
	unsigned int i, left;
	struct kvs_msg m;
	struct rig *g;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	g = rig_new(small, 6, 16, SOURCE_PAGES, &rng);
	g->o.chunk_max = 3000;
	g->o.window = 20000;
	g->o.data_connections = 3;
	/* frames in the stream must survive partial sends of every length */
	g->rcvbuf = 4096;
	rig_start(g);
	for (i = 0; i < ROOMS; i++) {
		assert_int_equal(
			kvs_send_open(g->s, i + 1, NULL, 640, g, &r[i]), 0);
		rig_expect(g, KVS_WIRE_OPEN, &m);
		permutation(map[i], 40, &rng);
		queue_pages(r[i], 40, map[i], &rng);
		assert_int_equal(kvs_send_finish(r[i]), 0);
		w[i] = rig_room_new(g, i + 1, i + 100, 640, 128, 0, 3, 0);
	}
	for (i = 0; i < ROOMS; i++)
		rig_grant(g, w[i]);
	for (left = ROOMS; left; left--) {
		rig_expect(g, KVS_WIRE_LAST, &m);
		assert_in_range(m.last.room, 1, ROOMS);
		i = (unsigned int)m.last.room - 1;
		rig_finish_last(g, w[i], &m);
		assert_int_equal(rig_wait(g, RIG_DONE, i + 1, 0).status, 0);
		rig_check_pages(g, w[i], map[i]);
		kvs_send_close(r[i]);
	}
	assert_int_equal(g->accepted, 3);
	rig_free(g);
}

static void connections_are_reused(void **state)
{
	struct kvs_rng rng;
	uint64_t id;
	struct rig *g;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	g = rig_new(small, 6, 16, SOURCE_PAGES, &rng);
	rig_start(g);
	for (id = 1; id <= 500; id++)
		one_room(g, id, 16 + id % 64, 64, &rng, id % 2);
	/* one transfer after the other: two data connections, ever */
	assert_in_range(g->accepted, 1, 2);
	rig_free(g);
}

static void bad_grants_fail_the_room(void **state)
{
	struct kvs_send_room *r;
	struct rig_room *w;
	struct kvs_rng rng;
	struct kvs_msg m;
	char aux[8] = { 0 };
	uint64_t id;
	struct rig *g;

	(void)state;
	kvs_rng_init(&rng, 3);
	g = rig_new(small, 6, 16, SOURCE_PAGES, &rng);
	rig_start(g);
	for (id = 1; id <= 3; id++) {
		uint64_t tokens = id == 1 ? 64 : 48;
		uint32_t aux_len = id == 2 ? 5000 : id == 3 ? 9 : 0;

		assert_int_equal(kvs_send_open(g->s, id, NULL, 48, g, &r), 0);
		rig_expect(g, KVS_WIRE_OPEN, &m);
		assert_int_equal(kvs_send_aux(r, aux, sizeof(aux), NULL), 0);
		w = rig_room_new(g, id, id, tokens, 48, 0, 3, aux_len);
		rig_grant(g, w);
		rig_expect(g, KVS_WIRE_ABORT, &m);
		assert_int_equal(m.abort.room, id);
		assert_int_equal(m.abort.generation, id);
		/* what the two were set up with will not change */
		assert_int_equal(rig_wait(g, RIG_DONE, id, 0).status,
				 id == 3 ? -EPROTOTYPE : -EPROTO);
		if (id == 3)
			assert_string_equal(m.abort.text,
					    "aux_len: this rank's is 8 bytes, "
					    "the engine expects 9");
		assert_int_equal(rig_count(g, RIG_FREE, id), 1);
		kvs_send_close(r);
	}
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_once_at_its_place),
		cmocka_unit_test(only_the_layers_granted),
		cmocka_unit_test(state_items_and_aux),
		cmocka_unit_test(zero_byte_rank),
		cmocka_unit_test(arguments_are_checked),
		cmocka_unit_test(many_rooms_few_connections),
		cmocka_unit_test(connections_are_reused),
		cmocka_unit_test(bad_grants_fail_the_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
