/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: in a room where exactly one item did not arrive, whichever it is,
 * that item is named, and in one where all did nothing is; so for page size 1
 * with short items, partial last extents, fixed-count buffers and aux blocks.
 * Bytes of another room, its canaries included, and bytes of another page of
 * the same room do not pass for the canary that is looked for; no byte but
 * the canaries is touched; false alarms of short items are as frequent as
 * announced.
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
#include "lib/timer.h"
#include "pinned/pool.h"
#include "pipeline/canary.h"
#include "pipeline/layout.h"

#define BUFFERS 12
#define GIB (1ULL << 30)
#define POOL (4ULL << 20)

/* A room in a pool of its own. */
struct room {
	struct kvs_layout l;
	struct kvs_layer_buffer b[BUFFERS];
	struct kvs_geometry g;
	void *base;
	struct kvs_pool *pool;
	struct kvs_extents x;
};

static struct kvs_timerq timers;
static struct kvs_drain_stats stats;
static struct kvs_drain over; /* a drain that is over: nobody was granted */

static int setup(void **state)
{
	const struct kvs_drain_opts o = {
		.generation = 1,
		.hold_timeout = 1,
		.clock = &kvs_clock_real,
		.timers = &timers,
		.stats = &stats,
	};

	(void)state;
	kvs_timerq_init(&timers);
	kvs_drain_init(&over, &o);
	kvs_drain_arm(&over);
	return !kvs_drain_is_over(&over);
}

static int teardown(void **state)
{
	(void)state;
	kvs_drain_fini(&over);
	kvs_timerq_fini(&timers);
	return 0;
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

static void room_layout(struct room *m, uint32_t page_size)
{
	memset(m, 0, sizeof(*m));
	m->l.size = sizeof(m->l);
	m->l.page_size = page_size;
	m->l.dtype = KVS_DTYPE_BF16;
	m->l.buffers = m->b;
}

/* Memory for the room, granted; filled with @fill. */
static void room_begin(struct room *m, uint64_t tokens, uint32_t extent_tokens,
		       uint32_t ranks, uint32_t aux_len, unsigned char fill,
		       bool phantom)
{
	struct kvs_pool_opts o = {
		.name = "test",
		.node = -1,
		.size = POOL,
		.clock = &kvs_clock_real,
	};
	uint64_t lens[64];
	uint32_t e;

	assert_int_equal(kvs_geometry_init(&m->g, &m->l, tokens, extent_tokens,
					   GIB, ranks, aux_len),
			 0);
	assert_in_range(m->g.n_extents, 1, 64);
	if (!phantom) {
		m->base = aligned_alloc(KVS_ARENA_ALIGN, POOL);
		assert_non_null(m->base);
		memset(m->base, fill, POOL);
	}
	o.base = m->base;
	assert_int_equal(kvs_pool_create(&o, &m->pool), 0);
	for (e = 0; e < m->g.n_extents; e++)
		lens[e] = kvs_geometry_len(&m->g, e);
	assert_int_equal(kvs_pool_alloc(m->pool, lens, e, &m->x), 0);
	kvs_extents_set_state(&m->x, KVS_EXTENT_GRANTED);
}

static void room_end(struct room *m)
{
	kvs_extents_set_state(&m->x, KVS_EXTENT_HELD);
	kvs_pool_release(&m->x, &over);
	kvs_pool_destroy(m->pool);
	free(m->base);
	kvs_geometry_fini(&m->g);
}

/* One item of a room, found without the code under test. */
struct item {
	unsigned char *p;
	uint32_t len;
	struct kvs_canary_missing name;
};

/* Calls back for every item in the order in which they are named. */
static size_t items_of(struct room *m, struct item *v, size_t cap)
{
	uint64_t off, len, i;
	uint32_t e, b;
	size_t n = 0;

	for (e = 0; e < m->g.n_extents; e++) {
		unsigned char *base = kvs_extent_addr(&m->x, e);

		for (b = 0; b < m->l.n_buffers; b++) {
			uint32_t item_len = m->b[b].item_len;
			uint32_t first = e * m->g.extent_pages;

			if (!kvs_buffer_kind_is_paged(m->b[b].kind))
				first = 0;
			assert_int_equal(
				kvs_geometry_run(&m->g, e, b, &off, &len), 0);
			for (i = 0; i < len / item_len; i++) {
				KVS_ASSERT(n < cap);
				v[n].p = base + off + i * item_len;
				v[n].len = item_len;
				v[n].name.buffer = b;
				v[n].name.item = first + (uint32_t)i;
				n++;
			}
		}
		if (e + 1 < m->g.n_extents || !m->g.aux_len)
			continue;
		for (b = 0; b < m->g.n_ranks; b++) {
			assert_int_equal(kvs_geometry_aux(&m->g, b, &off, &len),
					 0);
			KVS_ASSERT(n < cap);
			v[n].p = base + off;
			v[n].len = (uint32_t)len;
			v[n].name.buffer = KVS_CANARY_AUX;
			v[n].name.item = b;
			n++;
		}
	}
	return n;
}

static void arrive(const struct item *it)
{
	/* inverted: differs from the canary whatever that is */
	uint32_t i;

	for (i = 0; i < it->len; i++)
		it->p[i] = (unsigned char)~it->p[i];
}

static void expect_missing(struct room *m, const struct kvs_canary_secret *s,
			   const struct item *it)
{
	struct kvs_canary_missing missing = { 77, 77 };

	if (!it) {
		assert_int_equal(kvs_canary_scan(&m->x, &m->g, s, &missing), 0);
		assert_true(missing.buffer == 77 && missing.item == 77);
		return;
	}
	assert_int_equal(kvs_canary_scan(&m->x, &m->g, s, &missing), -ENODATA);
	assert_int_equal(missing.buffer, it->name.buffer);
	assert_int_equal(missing.item, it->name.item);
}

/* Each item in turn is the only one missing. */
static void check_each(struct room *m, const struct kvs_canary_secret *s)
{
	static struct item v[16384];
	size_t n = items_of(m, v, KVS_ARRAY_SIZE(v)), i;

	kvs_canary_write(&m->x, &m->g, s);
	for (i = 0; i < n; i++) {
		/* in order, so the first that is left is named */
		expect_missing(m, s, &v[i]);
		arrive(&v[i]);
	}
	expect_missing(m, s, NULL);
	for (i = 0; i < n; i++) {
		arrive(&v[i]); /* twice inverted: as it was */
		expect_missing(m, s, &v[i]);
		arrive(&v[i]);
	}
}

static void new_secret(struct kvs_canary_secret *s)
{
	assert_int_equal(kvs_canary_secret_init(s), 0);
}

static void canary_secrets_differ(void **state)
{
	static const struct kvs_canary_secret none;
	struct kvs_canary_secret a = none, b = none;

	(void)state;
	new_secret(&a);
	new_secret(&b);
	assert_memory_not_equal(&a, &b, sizeof(a));
	assert_memory_not_equal(&a, &none, sizeof(a));
	assert_true(a.key[0] != b.key[0] && a.key[1] != b.key[1]);
}

static void canary_names_the_one(void **state)
{
	struct kvs_canary_secret s;
	struct room m;

	(void)state;
	new_secret(&s);
	/* page size 1, 256-byte items, partial last extent */
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 256, 0);
	room_add(&m, KVS_BUFFER_V, 0, 256, 0);
	room_begin(&m, 300, 128, 2, 100, 0, false);
	assert_int_equal(m.g.last_pages, 300 - 256);
	check_each(&m, &s);
	room_end(&m);
	/* all sorts of items, odd lengths, a partial last page */
	room_layout(&m, 16);
	room_add(&m, KVS_BUFFER_KV, 5, 1153, 0);
	room_add(&m, KVS_BUFFER_MAMBA, 7, 777, 3);
	room_add(&m, KVS_BUFFER_DSA, 5, 17, 0);
	room_add(&m, KVS_BUFFER_SWA, 6, 16, 4);
	room_add(&m, KVS_BUFFER_OTHER, 0, 31, 1);
	room_begin(&m, 16 * 21 + 1, 16 * 5, 3, 16, 0xff, false);
	check_each(&m, &s);
	room_end(&m);
	/* shorter than a canary, but not so short that chance plays a part */
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 8, 0);
	room_add(&m, KVS_BUFFER_V, 0, 15, 0);
	room_add(&m, KVS_BUFFER_MAMBA, 1, 9, 5);
	room_begin(&m, 200, 64, 2, 11, 0, false);
	check_each(&m, &s);
	room_end(&m);
	/* a single page; no aux blocks */
	room_layout(&m, 64);
	room_add(&m, KVS_BUFFER_KV, 0, 4096, 0);
	room_begin(&m, 1, 64, 1, 0, 0, false);
	check_each(&m, &s);
	room_end(&m);
}

static void room_random(struct room *m, struct kvs_rng *r)
{
	static const uint32_t pages[] = { 1, 1, 3, 16, 64 };
	uint32_t n, i, page;

	page = pages[kvs_rng_below(r, KVS_ARRAY_SIZE(pages))];
	room_layout(m, page);
	n = 1 + (uint32_t)kvs_rng_below(r, BUFFERS);
	for (i = 0; i < n; i++) {
		uint32_t kind = (uint32_t)kvs_rng_below(r, KVS_BUFFER_KIND_MAX);

		/* a pool gives no empty extents: one kind at least is paged */
		if (!i)
			kind = KVS_BUFFER_KV;
		room_add(m, kind, i, 8 + (uint32_t)kvs_rng_below(r, 600),
			 kvs_buffer_kind_is_paged(kind)
				 ? 0
				 : 1 + (uint32_t)kvs_rng_below(r, 5));
	}
	room_begin(m, 1 + kvs_rng_below(r, 60 * page),
		   page * (1 + (uint32_t)kvs_rng_below(r, 20)),
		   1 + (uint32_t)kvs_rng_below(r, 4),
		   8 * (uint32_t)kvs_rng_below(r, 8),
		   (unsigned char)kvs_rng_next(r), false);
}

static void canary_random_rooms(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	struct kvs_canary_secret s;
	struct kvs_rng r;
	struct room m;
	int i;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	for (i = 0; i < 60; i++) {
		s.key[0] = kvs_rng_next(&r);
		s.key[1] = kvs_rng_next(&r);
		room_random(&m, &r);
		check_each(&m, &s);
		room_end(&m);
	}
}

/* Only the ends of items change, and all of each end is the canary's. */
static void canary_touches_nothing_else(void **state)
{
	static unsigned char was[POOL], one[POOL], allowed[POOL];
	static struct item v[4096];
	struct kvs_canary_secret s;
	struct room m;
	size_t n, i;
	uint64_t e, k, wrong = 0, same = 0;

	(void)state;
	new_secret(&s);
	room_layout(&m, 4);
	room_add(&m, KVS_BUFFER_KV, 0, 33, 0);
	room_add(&m, KVS_BUFFER_DSA, 0, 9, 0);
	room_add(&m, KVS_BUFFER_MAMBA, 0, 100, 2);
	room_begin(&m, 100, 24, 2, 40, 0x5a, false);
	n = items_of(&m, v, KVS_ARRAY_SIZE(v));
	for (i = 0; i < n; i++) {
		uint64_t len = v[i].len < 16 ? v[i].len : 16;
		uint64_t at = (uint64_t)(v[i].p - (unsigned char *)m.base);

		memset(allowed + at + v[i].len - len, 1, len);
	}
	memset(was, 0x5a, sizeof(was));
	kvs_canary_write(&m.x, &m.g, &s);
	for (e = 0; e < m.x.n; e++) {
		uint64_t len = m.x.v[e].len;
		uint64_t at = m.x.v[e].off;

		memcpy(one + at, kvs_extent_addr(&m.x, (uint32_t)e), len);
		for (k = at; k < at + len; k++) {
			if (!allowed[k])
				wrong += one[k] != was[k];
			else
				same += one[k] == was[k];
		}
	}
	assert_true(wrong == 0);
	/* a canary's byte is 0x5a by chance one time in 256 */
	assert_true(same < n);
	room_end(&m);
}

/* What an earlier room left in the memory is no canary of this one. */
static void canary_of_another_room(void **state)
{
	static struct item v[4096];
	struct kvs_canary_secret old, s;
	struct room m;
	size_t n, i;

	(void)state;
	new_secret(&old);
	new_secret(&s);
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 256, 0);
	room_add(&m, KVS_BUFFER_MAMBA, 1, 8, 3);
	room_begin(&m, 500, 128, 1, 24, 0, false);
	n = items_of(&m, v, KVS_ARRAY_SIZE(v));
	/* a page that really holds another room's canary has arrived */
	kvs_canary_write(&m.x, &m.g, &old);
	expect_missing(&m, &old, &v[0]);
	expect_missing(&m, &s, NULL);
	/* and one that nobody wrote is missing, whatever lay there before */
	kvs_canary_write(&m.x, &m.g, &s);
	expect_missing(&m, &s, &v[0]);
	expect_missing(&m, &old, NULL);
	for (i = 0; i < n; i++) {
		if (i != n / 2)
			arrive(&v[i]);
	}
	expect_missing(&m, &s, &v[n / 2]);
	room_end(&m);
}

struct canary {
	unsigned char v[KVS_CANARY_LEN];
};

static int canary_cmp(const void *a, const void *b)
{
	return memcmp(a, b, KVS_CANARY_LEN);
}

/* A page written to another's place takes its own canary to it: no match. */
static void canary_of_another_page(void **state)
{
	static struct item v[4096];
	static struct canary all[4096];
	struct kvs_canary_secret s;
	struct room m;
	size_t n, i;

	(void)state;
	new_secret(&s);
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 64, 0);
	room_add(&m, KVS_BUFFER_V, 0, 64, 0);
	room_begin(&m, 1000, 300, 1, 0, 0, false);
	n = items_of(&m, v, KVS_ARRAY_SIZE(v));
	kvs_canary_write(&m.x, &m.g, &s);
	for (i = 0; i < n; i++)
		memcpy(all[i].v, v[i].p + 64 - 16, 16);
	for (i = 0; i + 1 < n; i++) {
		memcpy(v[i].p, v[i + 1].p, 64);
		expect_missing(&m, &s, &v[i + 1]);
	}
	qsort(all, n, sizeof(all[0]), canary_cmp);
	for (i = 1; i < n; i++)
		assert_true(canary_cmp(&all[i - 1], &all[i]) != 0);
	room_end(&m);
}

/* One bit of the canary is enough to count as written. */
static void canary_any_bit(void **state)
{
	static struct item v[64];
	struct kvs_canary_secret s;
	struct room m;
	int bit;

	(void)state;
	new_secret(&s);
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 64, 0);
	room_begin(&m, 1, 1, 1, 0, 0, false);
	assert_int_equal(items_of(&m, v, KVS_ARRAY_SIZE(v)), 1);
	kvs_canary_write(&m.x, &m.g, &s);
	for (bit = 0; bit < 64 * 8; bit++) {
		v[0].p[bit / 8] ^= (unsigned char)(1u << bit % 8);
		expect_missing(&m, &s, bit / 8 < 64 - 16 ? &v[0] : NULL);
		v[0].p[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	room_end(&m);
}

static void canary_false_alarms(void **state)
{
	const struct kvs_canary_secret s = { { 11, 22 } };
	static struct item v[65536];
	struct kvs_canary_missing missing;
	uint64_t alarms = 0, i, k;
	struct kvs_rng r;
	struct room m;
	double p;
	size_t n;

	(void)state;
	/* items of a byte: each arrives equal to its canary 1 time in 256 */
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 1, 0);
	room_begin(&m, 1, 1, 1, 0, 0, false);
	p = kvs_canary_false_alarm(&m.g);
	assert_true(p > 0.0039 && p < 0.00391);
	n = items_of(&m, v, KVS_ARRAY_SIZE(v));
	kvs_rng_init(&r, 1);
	for (i = 0; i < 65536; i++) {
		struct kvs_canary_secret t;

		t.key[0] = kvs_rng_next(&r);
		t.key[1] = kvs_rng_next(&r);
		kvs_canary_write(&m.x, &m.g, &t);
		for (k = 0; k < n; k++)
			v[k].p[0] = 0x5a;
		alarms += kvs_canary_scan(&m.x, &m.g, &t, &missing) != 0;
	}
	/* 256 expected, standard deviation 16 */
	assert_in_range(alarms, 256 - 5 * 16, 256 + 5 * 16);
	room_end(&m);
	/* 1000 pages of 8 bytes, 3 ranks' aux blocks of 2 */
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 8, 0);
	room_begin(&m, 1000, 100, 3, 2, 0, false);
	p = kvs_canary_false_alarm(&m.g);
	assert_true(p > 3.0 / 65536 * 0.999 && p < 3.0 / 65536 * 1.001);
	kvs_canary_write(&m.x, &m.g, &s);
	room_end(&m);
	/* of 16 bytes and more: nothing to think of */
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 16, 0);
	room_add(&m, KVS_BUFFER_V, 0, 4096, 0);
	room_begin(&m, 400, 100, 1, 0, 0, false);
	p = kvs_canary_false_alarm(&m.g);
	assert_true(p > 0 && p < 1e-35);
	room_end(&m);
}

static void canary_phantom(void **state)
{
	struct kvs_canary_secret s;
	struct room m;

	(void)state;
	new_secret(&s);
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 0, 64, 0);
	room_begin(&m, 100, 30, 1, 0, 0, true);
	kvs_canary_write(&m.x, &m.g, &s);
	expect_missing(&m, &s, NULL);
	room_end(&m);
}

static void canary_names(void **state)
{
	static const struct {
		struct kvs_canary_missing m;
		const char *text;
	} v[] = {
		{ { 0, 17 }, "k layer 3 page 17" },
		{ { 1, 2 }, "mamba layer 9 item 2" },
		{ { KVS_CANARY_AUX, 1 }, "aux block of rank 1" },
	};
	struct room m;
	char buf[64], tiny[8];
	size_t i;

	(void)state;
	room_layout(&m, 1);
	room_add(&m, KVS_BUFFER_K, 3, 64, 0);
	room_add(&m, KVS_BUFFER_MAMBA, 9, 64, 3);
	assert_int_equal(kvs_geometry_init(&m.g, &m.l, 30, 30, GIB, 2, 8), 0);
	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		kvs_canary_describe(&m.g, &v[i].m, buf, sizeof(buf));
		assert_string_equal(buf, v[i].text);
	}
	kvs_canary_describe(&m.g, &v[0].m, tiny, sizeof(tiny));
	assert_string_equal(tiny, "k layer");
	kvs_geometry_fini(&m.g);
}

static void canary_bench(void **state)
{
	struct kvs_canary_cost c = { 0 };

	(void)state;
	assert_int_equal(kvs_canary_bench(1 << 20, 0, 256, &c), -EINVAL);
	assert_int_equal(kvs_canary_bench(1 << 20, 5000, 256, &c), -EINVAL);
	assert_int_equal(kvs_canary_bench(1 << 20, 4, 15, &c), -EINVAL);
	assert_int_equal(kvs_canary_bench(100, 4, 256, &c), -E2BIG);
	assert_int_equal(kvs_canary_bench(UINT64_MAX, 4, 256, &c), -E2BIG);
	assert_true(c.items == 0 && c.bytes == 0);
	assert_int_equal(kvs_canary_bench(8 << 20, 4, 256, &c), 0);
	assert_true(c.bytes == 8 << 20 && c.items == (8 << 20) / 256);
	assert_true(c.write_ns && c.scan_ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(canary_secrets_differ),
		cmocka_unit_test(canary_names_the_one),
		cmocka_unit_test(canary_random_rooms),
		cmocka_unit_test(canary_touches_nothing_else),
		cmocka_unit_test(canary_of_another_room),
		cmocka_unit_test(canary_of_another_page),
		cmocka_unit_test(canary_any_bit),
		cmocka_unit_test(canary_false_alarms),
		cmocka_unit_test(canary_phantom),
		cmocka_unit_test(canary_names),
		cmocka_unit_test(canary_bench),
	};

	return cmocka_run_group_tests_name("canary", tests, setup, teardown);
}
