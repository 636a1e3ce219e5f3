/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the stream of a rank is what kvstage-wire(7) says, against a model
 * that lays it out byte by byte: its test vectors come out, each byte of the
 * rank lies in it once, and a room taken apart at random places, also inside
 * pages, gives the digest of that stream; the two sides agree though they
 * number their buffers differently and one has other layers besides; places
 * outside the room or of another rank are refused.
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
#include "pipeline/digest.h"
#include "pipeline/digest_map.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"

#define BUFFERS 16
#define LAYERS 6
#define SEGMENT (1u << 20)
#define STREAM_CAP (1u << 20)

/* A byte of the room: where it lies and what it is. */
struct place {
	bool aux;
	uint32_t extent;
	uint32_t b;
	uint64_t offset;
	unsigned char value;
};

struct room {
	struct kvs_layout l;
	struct kvs_layer_buffer b[BUFFERS];
	uint64_t tokens;
	uint32_t extent_tokens;
	uint32_t aux_len;
	uint64_t n; /* bytes of the stream */
	struct place at[STREAM_CAP];
};

static uint32_t naive_crc32c(const struct room *m)
{
	uint32_t crc = 0xffffffff;
	uint64_t i;
	int bit;

	for (i = 0; i < m->n; i++) {
		crc ^= m->at[i].value;
		for (bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
	}
	return crc ^ 0xffffffff;
}

static uint32_t naive_adler32(const struct room *m)
{
	uint32_t a = 1, b = 0;
	uint64_t i;

	for (i = 0; i < m->n; i++) {
		a = (a + m->at[i].value) % 65521;
		b = (b + a) % 65521;
	}
	return b << 16 | a;
}

static void room_init(struct room *m, uint32_t page_size)
{
	memset(&m->l, 0, sizeof(m->l));
	m->l.size = sizeof(m->l);
	m->l.page_size = page_size;
	m->l.dtype = KVS_DTYPE_BF16;
	m->l.buffers = m->b;
	m->n = 0;
}

static void room_add(struct room *m, unsigned int kind, uint32_t layer,
		     uint32_t item_len, uint32_t items)
{
	KVS_ASSERT(m->l.n_buffers < BUFFERS);
	m->b[m->l.n_buffers++] = (struct kvs_layer_buffer){
		.kind = (uint16_t)kind,
		.layer = (uint16_t)layer,
		.item_len = item_len,
		.items = items,
	};
}

/* What the vectors have at byte @o of item @i. */
static unsigned char vector_byte(const struct kvs_layer_buffer *b, uint64_t i,
				 uint64_t o)
{
	return (unsigned char)(64 * b->kind + 16 * b->layer + 3 * i + o);
}

static void model_byte(struct room *m, const struct place *p)
{
	KVS_ASSERT(m->n < STREAM_CAP);
	m->at[m->n++] = *p;
}

/* Items [first, first + n) of one buffer that lie in @extent. */
static void model_items(struct room *m, uint32_t b, uint32_t extent,
			uint64_t first, uint64_t n)
{
	uint64_t i, o;

	for (i = 0; i < n; i++) {
		for (o = 0; o < m->b[b].item_len; o++) {
			struct place p = {
				.extent = extent,
				.b = b,
				.offset = i * m->b[b].item_len + o,
				.value = vector_byte(&m->b[b], first + i, o),
			};

			model_byte(m, &p);
		}
	}
}

static uint64_t model_pages(const struct room *m)
{
	uint64_t pages = 0, done;

	for (done = 0; done < m->tokens; done += m->l.page_size)
		pages++;
	return pages;
}

static uint32_t model_extents(const struct room *m)
{
	uint64_t each = m->extent_tokens / m->l.page_size;

	return (uint32_t)((model_pages(m) + each - 1) / each);
}

/* In the words of the manual: kinds upwards, in a kind layers upwards. */
static void model_buffers(struct room *m, const struct kvs_slice *s, bool paged,
			  uint32_t extent)
{
	uint64_t pages = model_pages(m), each, first, n;
	uint32_t kind, layer, b;

	each = m->extent_tokens / m->l.page_size;
	first = extent * each;
	for (kind = 0; kind < KVS_BUFFER_KIND_MAX; kind++) {
		if (kvs_buffer_kind_is_paged(kind) != paged)
			continue;
		for (layer = s->first_layer;
		     layer < s->first_layer + s->n_layers; layer++) {
			for (b = 0; b < m->l.n_buffers; b++) {
				if (m->b[b].kind != kind ||
				    m->b[b].layer != layer)
					continue;
				n = m->b[b].items;
				if (kind == KVS_BUFFER_SWA && n > pages)
					n = pages;
				if (paged)
					n = pages - first < each ? pages - first
								 : each;
				model_items(m, b, extent, paged ? first : 0, n);
			}
		}
	}
}

static void model(struct room *m, const struct kvs_slice *s, uint32_t rank)
{
	uint32_t e, o;

	m->n = 0;
	for (e = 0; e < model_extents(m); e++)
		model_buffers(m, s, true, e);
	model_buffers(m, s, false, e - 1);
	for (o = 0; o < m->aux_len; o++) {
		struct place p = {
			.aux = true,
			.offset = o,
			.value = (unsigned char)(200 + 8 * rank + o),
		};

		model_byte(m, &p);
	}
}

static uint64_t where(const struct kvs_digest_map *map, const struct place *p,
		      uint64_t len)
{
	uint64_t at = UINT64_MAX;

	if (p->aux)
		assert_int_equal(kvs_digest_map_aux(map, p->offset, len, &at),
				 0);
	else
		assert_int_equal(kvs_digest_map_run(map, p->extent, p->b,
						    p->offset, len, &at),
				 0);
	return at;
}

/* Bytes from @i on that follow one another in the room's memory too. */
static uint64_t contiguous(const struct room *m, uint64_t i, uint64_t most)
{
	uint64_t n = 1;

	while (n < most && i + n < m->n && m->at[i + n].aux == m->at[i].aux &&
	       (m->at[i].aux || (m->at[i + n].b == m->at[i].b &&
				 m->at[i + n].extent == m->at[i].extent)))
		n++;
	return n;
}

static void check_bytes(const struct room *m, const struct kvs_digest_map *map)
{
	uint64_t i;

	assert_true(map->total == m->n);
	for (i = 0; i < m->n; i++)
		assert_true(where(map, &m->at[i], 1) == i);
}

struct chunk {
	uint64_t first, len, key;
};

static int chunk_cmp(const void *a, const void *b)
{
	const struct chunk *x = a, *y = b;

	return x->key < y->key ? -1 : x->key > y->key;
}

/* Send the room in shuffled chunks of random lengths; the value is right. */
static void check_digest(const struct room *m, const struct kvs_digest_map *map,
			 struct kvs_rng *r)
{
	static unsigned char bytes[STREAM_CAP];
	static struct chunk v[STREAM_CAP];
	enum kvs_digest_kind kind = kvs_rng_below(r, 2) ? KVS_DIGEST_CRC32C
							: KVS_DIGEST_ADLER32;
	uint64_t most = 1 + kvs_rng_below(r, 1ULL << kvs_rng_below(r, 14));
	struct kvs_digest d;
	uint64_t i, j;
	size_t n = 0;

	for (i = 0; i < m->n; i += v[n++].len) {
		v[n].first = i;
		v[n].len = contiguous(m, i, 1 + kvs_rng_below(r, most));
		v[n].key = kvs_rng_next(r);
	}
	qsort(v, n, sizeof(v[0]), chunk_cmp);
	kvs_digest_init(&d, kind, map->total);
	for (i = 0; i < n; i++) {
		for (j = 0; j < v[i].len; j++)
			bytes[j] = m->at[v[i].first + j].value;
		assert_int_equal(
			kvs_digest_add(&d,
				       where(map, &m->at[v[i].first], v[i].len),
				       bytes, v[i].len),
			0);
	}
	assert_true(d.bytes == map->total);
	assert_int_equal(kvs_digest_value(&d), kind == KVS_DIGEST_CRC32C
						       ? naive_crc32c(m)
						       : naive_adler32(m));
}

/* The tables of kvstage-wire(7). */
static void map_vectors(void **state)
{
	static const struct {
		struct kvs_slice slice;
		uint64_t bytes;
		uint32_t crc32c, adler32;
	} v[] = {
		{ { 0, 1, 1, 0 }, 73, 0x6b158b4c, 0xac720fcc },
		{ { 1, 2, 1, 0 }, 117, 0x69a4d451, 0x859e352c },
		{ { 3, 0, 1, 0 }, 3, 0x6943488f, 0x0517028c },
	};
	struct room *m = *state;
	struct kvs_digest_map map;
	struct kvs_digest crc, adler;
	uint64_t i;
	size_t k;

	room_init(m, 4);
	m->tokens = 18;
	m->extent_tokens = 8;
	m->aux_len = 3;
	room_add(m, KVS_BUFFER_V, 1, 6, 0);
	room_add(m, KVS_BUFFER_K, 0, 5, 0);
	room_add(m, KVS_BUFFER_MAMBA, 1, 7, 2);
	room_add(m, KVS_BUFFER_K, 1, 5, 0);
	room_add(m, KVS_BUFFER_SWA, 0, 3, 8);
	room_add(m, KVS_BUFFER_V, 0, 6, 0);
	room_add(m, KVS_BUFFER_KV, 2, 9, 0);
	for (k = 0; k < KVS_ARRAY_SIZE(v); k++) {
		model(m, &v[k].slice, (uint32_t)k);
		assert_int_equal(kvs_digest_map_init(&map, &m->l, m->tokens,
						     m->extent_tokens,
						     &v[k].slice, m->aux_len),
				 0);
		assert_true(map.total == v[k].bytes);
		check_bytes(m, &map);
		assert_int_equal(naive_crc32c(m), v[k].crc32c);
		assert_int_equal(naive_adler32(m), v[k].adler32);
		kvs_digest_init(&crc, KVS_DIGEST_CRC32C, map.total);
		kvs_digest_init(&adler, KVS_DIGEST_ADLER32, map.total);
		for (i = m->n; i-- > 0;) {
			assert_int_equal(
				kvs_digest_add(&crc, i, &m->at[i].value, 1), 0);
			assert_int_equal(kvs_digest_add(&adler, i,
							&m->at[i].value, 1),
					 0);
		}
		assert_int_equal(kvs_digest_value(&crc), v[k].crc32c);
		assert_int_equal(kvs_digest_value(&adler), v[k].adler32);
		kvs_digest_map_fini(&map);
	}
}

static void room_random(struct room *m, struct kvs_rng *r)
{
	static const uint32_t pages[] = { 1, 1, 3, 16, 64 };
	uint32_t n, i, kind, layer;
	bool taken[KVS_BUFFER_KIND_MAX][LAYERS] = { { false } };

	room_init(m, pages[kvs_rng_below(r, KVS_ARRAY_SIZE(pages))]);
	n = 1 + (uint32_t)kvs_rng_below(r, BUFFERS);
	for (i = 0; i < n; i++) {
		kind = (uint32_t)kvs_rng_below(r, KVS_BUFFER_KIND_MAX);
		layer = (uint32_t)kvs_rng_below(r, LAYERS);
		if (taken[kind][layer])
			continue;
		taken[kind][layer] = true;
		room_add(m, kind, layer, 1 + (uint32_t)kvs_rng_below(r, 40),
			 kvs_buffer_kind_is_paged(kind)
				 ? 0
				 : 1 + (uint32_t)kvs_rng_below(r, 5));
	}
	m->tokens = 1 + kvs_rng_below(r, 40 * m->l.page_size);
	m->extent_tokens =
		m->l.page_size * (1 + (uint32_t)kvs_rng_below(r, 12));
	m->aux_len = (uint32_t)kvs_rng_below(r, 100);
}

static void map_against_a_model(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	struct room *m = *state;
	struct kvs_digest_map map;
	struct kvs_geometry g;
	struct kvs_layout *dup;
	struct kvs_rng r;
	unsigned int round;

	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	for (round = 0; round < 300; round++) {
		struct kvs_slice s = {
			.first_layer = (uint32_t)kvs_rng_below(&r, LAYERS + 1),
			.n_layers = (uint32_t)kvs_rng_below(&r, LAYERS + 1),
			.tp = 1,
		};

		room_random(m, &r);
		model(m, &s, 0);
		/* the daemon's layouts carry an index, a sender's need not */
		assert_int_equal(kvs_layout_dup(&m->l, &dup), 0);
		assert_int_equal(
			kvs_digest_map_init(&map, round % 2 ? dup : &m->l,
					    m->tokens, m->extent_tokens, &s,
					    m->aux_len),
			0);
		check_bytes(m, &map);
		check_digest(m, &map, &r);
		assert_int_equal(kvs_geometry_init(&g, &m->l, m->tokens,
						   m->extent_tokens, SEGMENT, 1,
						   m->aux_len),
				 0);
		assert_true(kvs_geometry_rank_bytes(&g, s.first_layer,
						    s.n_layers) == map.total);
		/* state only: one extent; GRANT then says so to the sender */
		for (uint32_t b = 0; g.n_extents != map.n_extents; b++) {
			assert_int_equal(g.n_extents, 1);
			if (b == m->l.n_buffers)
				break;
			assert_false(
				kvs_buffer_kind_is_paged(m->l.buffers[b].kind));
		}
		kvs_geometry_fini(&g);
		kvs_digest_map_fini(&map);
		free(dup);
	}
}

/* A rank whose own list is backwards, and longer by what others send. */
static void map_is_the_same_on_both_sides(void **state)
{
	static const struct kvs_slice s = { 1, 2, 1, 0 };
	struct room *m = *state;
	struct kvs_layer_buffer other[BUFFERS];
	struct kvs_layout l;
	struct kvs_digest_map ours, theirs;
	uint64_t a, b;
	uint32_t i, e, n;
	int at;

	room_init(m, 16);
	for (i = 1; i < 3; i++) {
		room_add(m, KVS_BUFFER_KV, i, 100 + i, 0);
		room_add(m, KVS_BUFFER_DSA, i, 10 + i, 0);
		room_add(m, KVS_BUFFER_MAMBA, i, 1000 + i, 2);
	}
	n = m->l.n_buffers;
	l = m->l;
	l.buffers = other;
	for (i = 0; i < n; i++)
		other[i] = m->b[n - 1 - i];
	other[n] = (struct kvs_layer_buffer){ KVS_BUFFER_KV, 0, 77, 0 };
	other[n + 1] = (struct kvs_layer_buffer){ KVS_BUFFER_KV, 3, 78, 0 };
	l.n_buffers = n + 2;
	assert_int_equal(kvs_digest_map_init(&ours, &m->l, 1000, 160, &s, 9),
			 0);
	assert_int_equal(kvs_digest_map_init(&theirs, &l, 1000, 160, &s, 9), 0);
	assert_true(ours.total == theirs.total);
	for (e = 0; e < ours.n_extents; e++) {
		for (i = 0; i < n; i++) {
			if (!kvs_buffer_kind_is_paged(m->b[i].kind) &&
			    e != ours.n_extents - 1)
				continue;
			at = kvs_layout_find(&l, m->b[i].kind, m->b[i].layer);
			assert_int_equal(
				kvs_digest_map_run(&ours, e, i, 5, 7, &a), 0);
			assert_int_equal(kvs_digest_map_run(&theirs, e,
							    (uint32_t)at, 5, 7,
							    &b),
					 0);
			assert_true(a == b);
		}
		/* not of this rank */
		assert_int_equal(kvs_digest_map_run(&theirs, e, n, 0, 1, &b),
				 -ERANGE);
		assert_int_equal(kvs_digest_map_run(&theirs, e, n + 1, 0, 1,
						    &b),
				 -ERANGE);
	}
	kvs_digest_map_fini(&ours);
	kvs_digest_map_fini(&theirs);
}

static void map_refuses(void **state)
{
	static const struct kvs_slice all = { 0, 9, 1, 0 },
				      none = { 0, 0, 1, 0 };
	struct room *m = *state;
	struct kvs_digest_map map;
	const struct kvs_layout *l = &m->l;
	uint64_t at = 7;

	room_init(m, 16);
	room_add(m, KVS_BUFFER_KV, 0, 10, 0);
	room_add(m, KVS_BUFFER_MAMBA, 1, 10, 3);
	assert_int_equal(kvs_digest_map_init(&map, l, 0, 16, &all, 0), -EINVAL);
	assert_int_equal(kvs_digest_map_init(&map, l, KVS_TOKENS_MAX + 1, 16,
					     &all, 0),
			 -EINVAL);
	assert_int_equal(kvs_digest_map_init(&map, l, 1, 0, &all, 0), -EINVAL);
	assert_int_equal(kvs_digest_map_init(&map, l, 1, 17, &all, 0), -EINVAL);
	assert_int_equal(kvs_digest_map_init(&map, l, 1, 16, &all,
					     KVS_AUX_MAX + 1),
			 -EINVAL);
	assert_int_equal(kvs_digest_map_init(&map, l, 16 * 2048 + 1, 16, &all,
					     0),
			 -E2BIG);
	kvs_digest_map_fini(&map);
	m->b[0].item_len = KVS_ITEM_LEN_MAX;
	assert_int_equal(kvs_digest_map_init(&map, l, KVS_TOKENS_MAX,
					     KVS_TOKENS_MAX, &all, 0),
			 -E2BIG);
	m->b[0].item_len = 10;

	/* 5 pages in extents of 2 */
	assert_int_equal(kvs_digest_map_init(&map, l, 80, 32, &all, 4), 0);
	assert_true(map.total == 5 * 10 + 3 * 10 + 4);
	assert_int_equal(kvs_digest_map_run(&map, 0, 0, 0, 20, &at), 0);
	assert_int_equal(kvs_digest_map_run(&map, 0, 0, 20, 0, &at), 0);
	at = 7;
	assert_int_equal(kvs_digest_map_run(&map, 0, 0, 0, 21, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, 0, 0, 21, 0, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, 0, 0, 1, UINT64_MAX, &at),
			 -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, 2, 0, 0, 11, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, 3, 0, 0, 1, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, UINT32_MAX, 0, 0, 1, &at),
			 -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, 0, 2, 0, 1, &at), -ERANGE);
	/* fixed-count buffers lie in the last extent */
	assert_int_equal(kvs_digest_map_run(&map, 1, 1, 0, 1, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_run(&map, 2, 1, 0, 31, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_aux(&map, 0, 5, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_aux(&map, 5, 0, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_aux(&map, 1, UINT64_MAX, &at), -ERANGE);
	assert_true(at == 7);
	kvs_digest_map_fini(&map);
	kvs_digest_map_fini(&map);

	/* a zero-byte rank has its aux block and nothing else */
	assert_int_equal(kvs_digest_map_init(&map, l, 80, 32, &none, 4), 0);
	assert_true(map.total == 4);
	assert_int_equal(kvs_digest_map_run(&map, 0, 0, 0, 1, &at), -ERANGE);
	assert_int_equal(kvs_digest_map_aux(&map, 3, 1, &at), 0);
	assert_true(at == 3);
	kvs_digest_map_fini(&map);
}

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct room));
	return *state ? 0 : -1;
}

static int teardown(void **state)
{
	free(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(map_vectors),
		cmocka_unit_test(map_against_a_model),
		cmocka_unit_test(map_is_the_same_on_both_sides),
		cmocka_unit_test(map_refuses),
	};

	return cmocka_run_group_tests_name("digest_map", tests, setup,
					   teardown);
}
