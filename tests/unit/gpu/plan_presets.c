/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: for every preset, TP 1, 2, 4 and 8, and page sizes of 1, 16, 64 and
 * 128 tokens, rooms in scattered extents with random page lists, a partial
 * last page and guards around every page come out byte for byte, whichever way
 * the copies of the soft device are planned, and go back the same. The number
 * of operations of a room of 32,768 tokens is printed and bounded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/plan.h"
#include "gpu/shape.h"
#include "gpu/soft.h"
#include "lib/rng.h"
#include "pipeline/geometry.h"
#include "pipeline/presets.h"

#define GUARD 64u /* bytes behind every page of the device */
#define GUARD_BYTE 0xa5
#define LONG_ROOM 32768u /* tokens */
#define SEGMENT (1ull << 30)

static const uint32_t tps[] = { 1, 2, 4, 8 };
static const uint32_t page_sizes[] = { 1, 16, 64, 128 };

struct rig {
	struct kvs_rng rng;
	const char *model;
	struct kvs_layout *l;
	struct kvs_geometry g;
	struct kvs_device *d;
	struct kvs_copy copy;
	struct kvs_copy_run *runs;
	struct kvs_copy_shape *shapes;
	uint32_t *pages;
	uint32_t device_pages;
	uint8_t *host; /* extents, in a random order, a gap between them */
	uint64_t host_len;
	uint64_t *at; /* of an extent in it */
	uint8_t *dev, *want;
	uint64_t dev_len;
	uint64_t *buf; /* of a layer buffer in them */
};

static void *xalloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	assert_non_null(p);
	return p;
}

static bool layout(struct rig *r, uint32_t tp, uint32_t page_size,
		   uint32_t layers)
{
	const struct kvs_preset_opts o = { .tp = tp,
					   .page_size = page_size,
					   .layers = layers };
	char err[256];
	int ret = kvs_preset_layout(r->model, &o, &r->l, err, sizeof(err));

	/* heads that cannot be divided so far */
	assert_true(!ret || ret == -EINVAL);
	return !ret;
}

static void shuffle(struct rig *r, uint32_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	for (uint32_t i = n - 1; n && i > 0; i--) {
		uint32_t j = (uint32_t)kvs_rng_below(&r->rng, i + 1u);
		uint32_t t = v[i];

		v[i] = v[j];
		v[j] = t;
	}
}

static void place_extents(struct rig *r)
{
	uint32_t n = r->g.n_extents;
	uint32_t *order = xalloc(n, sizeof(*order));

	shuffle(r, order, n);
	r->at = xalloc(n, sizeof(*r->at));
	r->host_len = 0;
	for (uint32_t i = 0; i < n; i++) {
		r->at[order[i]] = r->host_len;
		r->host_len += kvs_geometry_len(&r->g, order[i]) + 64;
		r->host_len &= ~63ull;
	}
	free(order);
}

static uint64_t stride(const struct rig *r, uint32_t b)
{
	return r->l->buffers[b].item_len + GUARD;
}

/* As the engine side does it, but with guards between the pages. */
static void runs(struct rig *r)
{
	const struct kvs_layout *l = r->l;
	uint64_t off, len, buf = 0;
	size_t n = 0;

	r->buf = xalloc(l->n_buffers, sizeof(*r->buf));
	r->runs =
		xalloc((size_t)l->n_buffers * r->g.n_extents, sizeof(*r->runs));
	r->shapes = xalloc((size_t)l->n_buffers * r->g.n_extents,
			   sizeof(*r->shapes));
	r->device_pages = r->g.pages + 3;
	r->pages = xalloc(r->device_pages, sizeof(*r->pages));
	shuffle(r, r->pages, r->device_pages);
	for (uint32_t b = 0; b < l->n_buffers; b++) {
		bool paged = kvs_buffer_kind_is_paged(l->buffers[b].kind);
		uint64_t items = paged ? r->device_pages : l->buffers[b].items;

		r->buf[b] = buf;
		buf += items * stride(r, b);
		for (uint32_t x = 0; x < r->g.n_extents; x++) {
			assert_int_equal(
				kvs_geometry_run(&r->g, x, b, &off, &len), 0);
			if (!len)
				continue;
			r->shapes[n] = (struct kvs_copy_shape){
				.rows = 1,
				.row_len = l->buffers[b].item_len,
				.host_item = l->buffers[b].item_len,
				.dev_item = stride(r, b),
			};
			r->runs[n++] = (struct kvs_copy_run){
				.host = (void *)(uintptr_t)(r->at[x] + off),
				.dev = (void *)(uintptr_t)r->buf[b],
				.item_len = l->buffers[b].item_len,
				.pages =
					paged ? r->pages +
							(size_t)x *
								r->g.extent_pages
					      : NULL,
				.n = len / l->buffers[b].item_len,
			};
		}
	}
	r->dev_len = buf;
	r->copy.runs = r->runs;
	r->copy.shapes = r->shapes;
	r->copy.n_runs = n;
}

static void room(struct rig *r, uint32_t tokens, uint32_t extent_tokens)
{
	extent_tokens = (extent_tokens + r->l->page_size - 1) /
			r->l->page_size * r->l->page_size;
	assert_int_equal(kvs_geometry_init(&r->g, r->l, tokens, extent_tokens,
					   SEGMENT, 1, 256),
			 0);
	place_extents(r);
	runs(r);
}

static void room_fini(struct rig *r)
{
	free(r->at);
	free(r->buf);
	free(r->runs);
	free(r->shapes);
	free(r->pages);
	kvs_geometry_fini(&r->g);
	free(r->l);
	r->l = NULL;
}

/* From offsets to addresses, or back with the negative ones. */
static void rebase(struct rig *r, uintptr_t host, uintptr_t dev)
{
	for (size_t i = 0; i < r->copy.n_runs; i++) {
		struct kvs_copy_run *c = &r->runs[i];

		c->host = (void *)((uintptr_t)c->host + host);
		c->dev = (void *)((uintptr_t)c->dev + dev);
	}
}

static void model(const struct rig *r)
{
	memset(r->want, GUARD_BYTE, r->dev_len);
	for (size_t i = 0; i < r->copy.n_runs; i++) {
		const struct kvs_copy_run *c = &r->runs[i];
		uint8_t *to = r->want + ((uint8_t *)c->dev - r->dev);

		for (uint64_t k = 0; k < c->n; k++)
			memcpy(to + (c->pages ? c->pages[k] : k) *
					       r->shapes[i].dev_item,
			       (uint8_t *)c->host + k * c->item_len,
			       c->item_len);
	}
}

static void go(struct rig *r, enum kvs_copy_dir dir)
{
	int ret;

	r->copy.dir = dir;
	assert_int_equal(kvs_device_copy(r->d, &r->copy), 0);
	while ((ret = kvs_device_query(r->d, &r->copy)) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(ret, 0);
	assert_int_equal(kvs_device_progress(r->d, &r->copy), r->copy.n_runs);
}

static void open_soft(struct rig *r, enum kvs_copy_way way)
{
	const struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = "soft",
		.copy = { .way = way,
			  .few = 8,
			  .slot_bytes = 192 << 10,
			  .slots = 3,
			  .blocks = 1 },
	};
	char err[128];

	assert_int_equal(kvs_device_open(&o, &r->d, err, sizeof(err)), 0);
}

static void there_and_back(struct rig *r, enum kvs_copy_way way)
{
	uint8_t *back, *host, *dev;
	void *mem = NULL;

	open_soft(r, way);
	assert_int_equal(kvs_device_alloc(r->d, r->dev_len, &mem), 0);
	dev = mem;
	memset(dev, GUARD_BYTE, r->dev_len);
	host = xalloc(r->host_len, 1);
	for (uint64_t i = 0; i < r->host_len; i++)
		host[i] = (uint8_t)kvs_rng_next(&r->rng);
	rebase(r, (uintptr_t)host, (uintptr_t)dev);
	r->dev = dev;
	r->want = xalloc(r->dev_len, 1);
	model(r);
	go(r, KVS_COPY_H2D);
	assert_memory_equal(dev, r->want, r->dev_len);

	/* what is beside the runs on the host is not touched on the way back */
	back = xalloc(r->host_len, 1);
	memcpy(back, host, r->host_len);
	for (size_t i = 0; i < r->copy.n_runs; i++)
		memset(r->runs[i].host, 0, r->runs[i].n * r->runs[i].item_len);
	go(r, KVS_COPY_D2H);
	assert_memory_equal(host, back, r->host_len);
	rebase(r, -(uintptr_t)host, -(uintptr_t)dev);
	free(r->want);
	free(back);
	free(host);
	kvs_device_close(r->d);
}

static void test_every_preset_comes_out(void **state)
{
	struct rig r = { 0 };
	unsigned int n = 0;

	(void)state;
	kvs_rng_init(&r.rng, 11);
	while ((r.model = kvs_preset_next(r.model)))
		for (size_t t = 0; t < 4; t++)
			for (size_t p = 0; p < 4; p++) {
				if (!layout(&r, tps[t], page_sizes[p], 1))
					continue;
				/* 3 extents, the last page partial */
				room(&r, 2 * 96 + 37, 96);
				there_and_back(&r, KVS_COPY_SLOTS);
				there_and_back(&r, KVS_COPY_MAPPED);
				there_and_back(&r, KVS_COPY_DIRECT);
				room_fini(&r);
				n++;
			}
	print_message("%u layouts\n", n);
	assert_true(n > 60);
}

struct ops {
	uint64_t direct, pieces, launches, bytes;
};

static void count(struct rig *r, struct ops *ret)
{
	static const struct kvs_copy_opts o;
	struct kvs_plan_tuning t;
	struct kvs_plan_step s;
	struct kvs_plan p;
	void *table;

	*ret = (struct ops){ 0 };
	rebase(r, 1ull << 40, 1ull << 41);
	for (size_t i = 0; i < r->copy.n_runs; i++)
		ret->direct += kvs_copy_pieces(&r->copy, i, UINT64_MAX - 1);
	kvs_plan_tuning_init(&t, &o, KVS_COPY_SLOTS);
	table = xalloc(1, kvs_plan_table_bytes(&t));
	assert_int_equal(kvs_plan_step_init(&s, &t, table), 0);
	r->copy.dir = KVS_COPY_H2D;
	kvs_plan_init(&p, &r->copy, &t, NULL);
	while (kvs_plan_next(&p, &s)) {
		ret->pieces += s.n_pieces;
		ret->launches += s.n_runs > 0;
		ret->bytes += s.bytes;
	}
	kvs_plan_step_fini(&s);
	free(table);
}

static void test_operations_of_a_long_room(void **state)
{
	struct rig r = { 0 };
	struct ops o;

	(void)state;
	kvs_rng_init(&r.rng, 12);
	print_message("%-20s %2s %4s %6s %8s %7s %8s %8s\n", "model", "tp",
		      "page", "MiB", "direct", "pieces", "launches", "ops/GiB");
	while ((r.model = kvs_preset_next(r.model)))
		for (size_t t = 0; t < 4; t += 3)
			for (size_t p = 0; p < 4; p += 2) {
				if (!layout(&r, tps[t], page_sizes[p], 0))
					continue;
				room(&r, LONG_ROOM, 2048);
				count(&r, &o);
				print_message(
					"%-20s %2u %4u %6llu %8llu %7llu %8llu %8.0f\n",
					r.model, tps[t], page_sizes[p],
					(unsigned long long)o.bytes >> 20,
					(unsigned long long)o.direct,
					(unsigned long long)o.pieces,
					(unsigned long long)o.launches,
					(double)(o.pieces + o.launches) *
						(double)(1 << 30) /
						(double)o.bytes);
				/* a run is a piece at most where it is short,
				 * and long pieces are few by themselves */
				assert_true(o.pieces <=
					    r.copy.n_runs +
						    o.bytes /
							    KVS_PLAN_BATCH_MIN);
				assert_true(o.launches <=
					    o.bytes / (8u << 20) + 64);
				room_fini(&r);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_preset_comes_out),
		cmocka_unit_test(test_operations_of_a_long_room),
	};

	return cmocka_run_group_tests_name("plan_presets", tests, NULL, NULL);
}
