/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a plan moves exactly the bytes that its copy names, both ways, for
 * random runs with strides, rows, pitches and page lists, and tunings down to
 * one piece or one page number a step; it moves each once, never more than
 * its tuning allows at a time, no piece over the border of a registered range;
 * what runs_done says is true; short pieces go in a handful of operations,
 * long ones directly, neighbours as one; to the host nothing beside the rows
 * is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/plan.h"
#include "lib/rng.h"

#define RUNS 6
#define ITEMS 16u
#define SIDE (64u << 10) /* bytes of a run's memory on either side */
#define ROUNDS 1000

struct rig {
	struct kvs_rng rng;
	uint64_t seed;
	uint8_t *host, *dev; /* RUNS * SIDE each */
	uint8_t *want;
	uint8_t *slot;
	uint32_t pages[RUNS][ITEMS];
	struct kvs_copy_run run[RUNS];
	struct kvs_copy_shape shape[RUNS]; /* rows 0: plain */
	struct kvs_copy copy;
	struct kvs_plan_tuning t;
	struct kvs_spans hosts;
	void *table;
};

static uint64_t below(struct rig *g, uint64_t n)
{
	return kvs_rng_below(&g->rng, n);
}

static bool coin(struct rig *g)
{
	return below(g, 2);
}

static void random_bytes(struct rig *g, uint8_t *p, size_t len)
{
	for (size_t i = 0; i + 8 <= len; i += 8) {
		uint64_t v = kvs_rng_next(&g->rng);

		memcpy(p + i, &v, 8);
	}
}

/* Powers of two below 16 times something, so that units of all sizes occur. */
static uint64_t some_len(struct rig *g, uint64_t max)
{
	uint64_t unit = 1u << below(g, 7);
	uint64_t n = max / unit;

	return n ? unit * (1 + below(g, n)) : 1 + below(g, max);
}

static void random_list(struct rig *g, uint32_t *list, uint32_t total)
{
	uint64_t style = below(g, 3);

	for (uint32_t i = 0; i < total; i++)
		list[i] = i;
	for (uint32_t i = total - 1; i > 0; i--) {
		uint32_t j = (uint32_t)below(g, i + 1u);
		uint32_t t = list[i];

		if (!style || (style == 1 && below(g, 4)))
			continue;
		list[i] = list[j];
		list[j] = t;
	}
}

/* Items that fit into SIDE on both sides, whatever the page. */
static void random_run(struct rig *g, unsigned int i)
{
	struct kvs_copy_run *r = &g->run[i];
	struct kvs_copy_shape *h = &g->shape[i];
	uint64_t row = some_len(g, 600);
	uint64_t host, dev;

	*r = (struct kvs_copy_run){ .host = g->host + (uint64_t)i * SIDE,
				    .dev = g->dev + (uint64_t)i * SIDE };
	*h = (struct kvs_copy_shape){ 0 };
	if (!below(g, 12))
		return; /* no items, no lengths */
	r->n = 1 + below(g, ITEMS);
	r->item_len = row;
	if (coin(g)) {
		h->rows = 1 + below(g, 5);
		h->row_len = row;
		r->item_len = h->rows * row;
		h->host_row = row + (coin(g) ? some_len(g, 64) : 0);
		h->dev_row = row + (coin(g) ? some_len(g, 64) : 0);
		host = (h->rows - 1) * h->host_row + row;
		dev = (h->rows - 1) * h->dev_row + row;
		h->host_item = host + (coin(g) ? some_len(g, 64) : 0);
		h->dev_item = dev + (coin(g) ? some_len(g, 64) : 0);
		assert_true(ITEMS * (host + 64) < SIDE &&
			    ITEMS * (dev + 64) < SIDE);
		/* one read many times over, as by a broadcast */
		if (g->copy.dir == KVS_COPY_H2D && !below(g, 20))
			h->host_item = 0;
	}
	if (!coin(g))
		return;
	random_list(g, g->pages[i], ITEMS);
	r->pages = g->pages[i];
	/* as the layers of a room: the same list, the same items */
	if (i && coin(g) && g->run[i - 1].pages) {
		r->pages = g->run[i - 1].pages;
		r->n = g->run[i - 1].n;
	}
}

/* Runs that go on where the one before ends, on the host or on both sides. */
static void chain(struct rig *g, unsigned int i)
{
	const struct kvs_copy_run *a = &g->run[i - 1];
	struct kvs_copy_run *r = &g->run[i];

	if (!a->n || !r->n || g->shape[i - 1].rows || g->shape[i].rows ||
	    coin(g))
		return;
	r->host = (uint8_t *)a->host + a->n * a->item_len;
	if (!a->pages && !r->pages && coin(g))
		r->dev = (uint8_t *)a->dev + a->n * a->item_len;
}

static void random_tuning(struct rig *g)
{
	struct kvs_plan_tuning *t = &g->t;

	*t = (struct kvs_plan_tuning){
		.batch_min = 1 + below(g, 1000),
		.few = below(g, 3) ? 1 : below(g, 200),
		.step_bytes = 1 + (coin(g) ? below(g, 4096) : 1u << 20),
		.pieces = 1 + (uint32_t)below(g, 8),
	};
	if (!below(g, 4))
		return;
	t->runs = 1 + (uint32_t)below(g, 6);
	t->pages = 1 + (uint32_t)below(g, 100);
	t->zero_copy = coin(g);
	if (below(g, 3))
		t->slot_bytes = 1 + below(g, 40000);
}

static void random_spans(struct rig *g)
{
	uint64_t at = 0, len;

	while (at < RUNS * SIDE) {
		/* runs that are chained begin in the SIDE of the one before */
		len = SIDE * (1 + below(g, RUNS));
		if (len > RUNS * SIDE - at)
			len = RUNS * SIDE - at;
		assert_int_equal(
			kvs_spans_add(&g->hosts, g->host + at, len, false), 0);
		at += len;
	}
}

/* The plain model: one row after another. */
static void model(const struct rig *g, size_t runs, const uint8_t *from,
		  uint8_t *to)
{
	for (size_t i = 0; i < runs; i++) {
		const struct kvs_copy_run *r = &g->run[i];
		struct kvs_copy_shape s = g->shape[i];

		if (!s.rows)
			s = (struct kvs_copy_shape){
				1, r->item_len, 0, 0, r->item_len, r->item_len
			};
		for (uint64_t k = 0; k < r->n * s.rows; k++) {
			uint64_t item = k / s.rows, row = k % s.rows;
			uint64_t page = r->pages ? r->pages[item] : item;
			uint64_t h, d;

			h = (uint64_t)((uint8_t *)r->host - g->host) +
			    item * s.host_item + row * s.host_row;
			d = (uint64_t)((uint8_t *)r->dev - g->dev) +
			    page * s.dev_item + row * s.dev_row;
			if (g->copy.dir == KVS_COPY_H2D)
				memcpy(to + d, from + h, s.row_len);
			else
				memcpy(to + h, from + d, s.row_len);
		}
	}
}

static void check_limits(const struct rig *g, const struct kvs_plan_step *s)
{
	const struct kvs_span *span;

	assert_in_range(s->n_pieces, 0, g->t.pieces);
	assert_in_range(s->n_runs, 0, g->t.runs);
	assert_in_range(s->n_pages, 0, g->t.pages);
	assert_true(s->slot_used <= g->t.slot_bytes);
	for (uint32_t i = 0; i < s->n_pieces; i++) {
		const struct kvs_plan_piece *p = &s->pieces[i];

		assert_true(p->len > 0);
		assert_int_equal(kvs_spans_find(&g->hosts, (void *)p->host,
						p->len, &span),
				 0);
		if (p->slot)
			assert_true(p->dev + p->len <= g->t.slot_bytes);
	}
	for (uint32_t i = 0; i < s->n_runs; i++)
		assert_int_equal(!(s->runs[i].flags & KVS_SCATTER_SLOT) &&
					 !g->t.zero_copy,
				 0);
}

static void move_pieces(const struct rig *g, const struct kvs_plan_step *s)
{
	for (uint32_t i = 0; i < s->n_pieces; i++) {
		const struct kvs_plan_piece *p = &s->pieces[i];

		if (g->copy.dir == KVS_COPY_H2D)
			memcpy((void *)p->dev, (void *)p->host, p->len);
		else
			memcpy((void *)p->host, (void *)p->dev, p->len);
	}
}

static void launch(struct rig *g, const struct kvs_plan_step *s)
{
	const struct kvs_scatter_launch l = { s->runs, s->pages, s->units,
					      s->n_runs };
	uint32_t threads = 1 + (uint32_t)below(g, 64);

	for (uint32_t t = 0; s->n_runs && t < threads; t++)
		kvs_scatter_thread(&l, t, threads, g->copy.dir);
}

static void one_round(struct rig *g)
{
	bool h2d = g->copy.dir == KVS_COPY_H2D;
	uint8_t *to = h2d ? g->dev : g->host;
	const uint8_t *from = h2d ? g->host : g->dev;
	uint64_t bytes = 0, all = 0;
	struct kvs_plan_step s;
	struct kvs_plan p;
	size_t done = 0;

	memset(to, 0xa5, RUNS * SIDE);
	memset(g->want, 0xa5, RUNS * SIDE);
	random_bytes(g, h2d ? g->host : g->dev, RUNS * SIDE);
	for (size_t i = 0; i < RUNS; i++)
		all += g->run[i].n * g->run[i].item_len;
	assert_int_equal(kvs_plan_step_init(&s, &g->t, g->table), 0);
	kvs_plan_init(&p, &g->copy, &g->t, &g->hosts);
	while (kvs_plan_next(&p, &s)) {
		check_limits(g, &s);
		kvs_plan_place(&s, (uintptr_t)g->slot);
		memset(g->slot, 0x5a, g->t.slot_bytes);
		if (h2d)
			move_pieces(g, &s);
		launch(g, &s);
		if (!h2d)
			move_pieces(g, &s);
		bytes += s.bytes;
		assert_true(s.runs_done >= done && s.runs_done <= RUNS);
		if (done == s.runs_done)
			continue;
		done = s.runs_done;
		/* those that are said to be there are there */
		model(g, done, from, g->want);
		for (size_t i = 0; i < done && h2d; i++) {
			const uint8_t *at = g->dev + i * SIDE;

			/* a chained run shares the memory of the one before */
			if (i + 1 == RUNS ||
			    (uint8_t *)g->run[i + 1].dev == at + SIDE)
				assert_memory_equal(at, g->want + i * SIDE,
						    SIDE);
		}
	}
	assert_int_equal(done == RUNS || !all, 1);
	assert_int_equal(bytes, all);
	model(g, RUNS, from, g->want);
	assert_memory_equal(to, g->want, RUNS * SIDE);
	kvs_plan_step_fini(&s);
}

static bool in_two(const struct rig *g, unsigned int i)
{
	const struct kvs_copy_run *r = &g->run[i];
	const struct kvs_span *span;

	return r->n && !g->shape[i].rows &&
	       kvs_spans_find(&g->hosts, r->host, r->n * r->item_len, &span);
}

static void test_random_plans(void **state)
{
	const char *env = getenv("KVS_TEST_SEED");
	struct rig g = { 0 };

	(void)state;
	g.seed = env ? strtoull(env, NULL, 0) : 7;
	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)g.seed);
	kvs_rng_init(&g.rng, g.seed);
	g.host = aligned_alloc(4096, RUNS * SIDE);
	g.dev = aligned_alloc(4096, RUNS * SIDE);
	g.want = malloc(RUNS * SIDE);
	g.slot = aligned_alloc(4096, 65536);
	g.table = aligned_alloc(16, 4096);
	assert_true(g.host && g.dev && g.want && g.slot && g.table);
	g.copy.runs = g.run;
	g.copy.n_runs = RUNS;
	g.copy.shapes = g.shape;
	for (unsigned int n = 0; n < ROUNDS; n++) {
		g.copy.dir = coin(&g) ? KVS_COPY_H2D : KVS_COPY_D2H;
		for (unsigned int i = 0; i < RUNS; i++)
			random_run(&g, i);
		for (unsigned int i = 1; i < RUNS; i++)
			chain(&g, i);
		random_tuning(&g);
		random_spans(&g);
		/* a chained one may lie in two: the device refuses that */
		for (unsigned int i = 0; i < RUNS; i++)
			if (in_two(&g, i)) {
				kvs_spans_fini(&g.hosts);
				assert_int_equal(kvs_spans_add(&g.hosts, g.host,
							       RUNS * SIDE,
							       false),
						 0);
			}
		one_round(&g);
		kvs_spans_fini(&g.hosts);
	}
	free(g.host);
	free(g.dev);
	free(g.want);
	free(g.slot);
	free(g.table);
}

struct counts {
	uint64_t pieces, launches, steps, bytes, largest;
};

/* Plans only: the addresses need not be anybody's. */
static struct counts count(const struct kvs_copy *c,
			   const struct kvs_plan_tuning *t)
{
	void *table = malloc(kvs_plan_table_bytes(t) + 1);
	struct counts n = { 0 };
	struct kvs_plan_step s;
	struct kvs_plan p;

	assert_non_null(table);
	assert_int_equal(kvs_plan_step_init(&s, t, table), 0);
	kvs_plan_init(&p, c, t, NULL);
	while (kvs_plan_next(&p, &s)) {
		n.steps++;
		n.pieces += s.n_pieces;
		n.launches += s.n_runs > 0;
		n.bytes += s.bytes;
		for (uint32_t i = 0; i < s.n_pieces; i++)
			if (s.pieces[i].len > n.largest)
				n.largest = s.pieces[i].len;
	}
	kvs_plan_step_fini(&s);
	free(table);
	return n;
}

#define TOKENS 131072u

/* 131,072 scattered tokens of one page each, 576 bytes, 8 layers whose host
 * side is one piece after another (sgl-project/sglang#19890). */
static void test_scattered_tokens_are_a_handful(void **state)
{
	static const struct kvs_copy_opts o;
	struct kvs_copy_run run[8];
	struct kvs_copy c = { .runs = run, .n_runs = 8, .dir = KVS_COPY_H2D };
	uint32_t *pages = malloc(TOKENS * sizeof(*pages));
	uint64_t bytes = 8ull * TOKENS * 576;
	struct kvs_plan_tuning t;
	struct counts n;

	(void)state;
	assert_non_null(pages);
	for (uint32_t i = 0; i < TOKENS; i++)
		pages[i] = TOKENS - i;
	for (uint64_t i = 0; i < 8; i++)
		run[i] = (struct kvs_copy_run){
			.host = (void *)(0x10000000 + i * TOKENS * 576),
			.dev = (void *)(0x7000000000 + i * (TOKENS + 1) * 576),
			.item_len = 576,
			.pages = pages,
			.n = TOKENS,
		};
	kvs_plan_tuning_init(&t, &o, KVS_COPY_SLOTS);
	n = count(&c, &t);
	print_message("slots: %llu MiB, %llu pieces, %llu launches; a step "
		      "keeps %zu KiB\n",
		      (unsigned long long)bytes >> 20,
		      (unsigned long long)n.pieces,
		      (unsigned long long)n.launches,
		      (kvs_plan_table_bytes(&t) +
		       t.pieces * sizeof(struct kvs_plan_piece)) >>
			      10);
	assert_int_equal(n.bytes, bytes);
	assert_true(n.pieces <= bytes / t.slot_bytes + 1);
	assert_int_equal(n.launches, n.steps);

	kvs_plan_tuning_init(&t, &o, KVS_COPY_MAPPED);
	n = count(&c, &t);
	assert_int_equal(n.bytes, bytes);
	assert_int_equal(n.pieces, 0);
	assert_true(n.launches <= bytes / t.step_bytes + 8);

	kvs_plan_tuning_init(&t, &o, KVS_COPY_DIRECT);
	n = count(&c, &t);
	assert_int_equal(n.pieces, 8 * TOKENS);

	/* in order they are one piece per step_bytes, whatever the way */
	for (uint32_t i = 0; i < TOKENS; i++)
		pages[i] = i;
	kvs_plan_tuning_init(&t, &o, KVS_COPY_SLOTS);
	n = count(&c, &t);
	assert_int_equal(n.launches, 0);
	assert_true(n.pieces <= bytes / t.step_bytes + 9);
	free(pages);
}

static struct counts scattered(uint64_t len, uint64_t n_items,
			       const struct kvs_copy_opts *o,
			       enum kvs_copy_dir dir, uint64_t host_item)
{
	uint32_t pages[256];
	struct kvs_copy_run run = {
		.host = (void *)0x10000000,
		.dev = (void *)0x7000000000,
		.item_len = len,
		.pages = pages,
		.n = n_items,
	};
	const struct kvs_copy_shape shape = {
		.rows = 1,
		.row_len = len,
		.host_item = host_item ? host_item : len,
		.dev_item = len,
	};
	struct kvs_copy c = {
		.runs = &run, .n_runs = 1, .shapes = &shape, .dir = dir
	};
	struct kvs_plan_tuning t;

	assert_true(n_items <= 256);
	for (uint32_t i = 0; i < n_items; i++)
		pages[i] = 2 * i;
	kvs_plan_tuning_init(&t, o, KVS_COPY_SLOTS);
	return count(&c, &t);
}

static void test_the_way_follows_size_and_number(void **state)
{
	const struct kvs_copy_opts o = { .way = KVS_COPY_SLOTS };
	struct counts n;

	(void)state;
	/* long pieces: each by itself */
	n = scattered(28 << 10, 256, &o, KVS_COPY_H2D, 0);
	assert_int_equal(n.pieces, 256);
	assert_int_equal(n.launches, 0);
	/* short ones: through the slot */
	n = scattered((28 << 10) - 16, 256, &o, KVS_COPY_H2D, 0);
	assert_int_equal(n.pieces, 1);
	assert_int_equal(n.launches, 1);
	/* a few short ones: each by itself */
	n = scattered(576, 63, &o, KVS_COPY_H2D, 0);
	assert_int_equal(n.pieces, 63);
	assert_int_equal(n.launches, 0);
	n = scattered(576, 64, &o, KVS_COPY_H2D, 0);
	assert_int_equal(n.pieces, 1);
	assert_int_equal(n.launches, 1);
	/* the host side has gaps: a quarter goes along to the device, more
	 * does not, and to the host nothing does */
	n = scattered(768, 128, &o, KVS_COPY_H2D, 1024);
	assert_int_equal(n.pieces, 1);
	n = scattered(764, 128, &o, KVS_COPY_H2D, 1024);
	assert_int_equal(n.pieces, 0);
	assert_int_equal(n.launches, 1);
	n = scattered(1020, 128, &o, KVS_COPY_D2H, 1024);
	assert_int_equal(n.pieces, 0);
	n = scattered(1024, 128, &o, KVS_COPY_D2H, 1024);
	assert_int_equal(n.pieces, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_plans),
		cmocka_unit_test(test_scattered_tokens_are_a_handful),
		cmocka_unit_test(test_the_way_follows_size_and_number),
	};

	return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
