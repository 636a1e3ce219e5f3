/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gpu/preset_room.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/presets.h"

#define GUARD 64u /* bytes behind every page of the device */
#define GUARD_BYTE 0xa5
#define SEGMENT (1ull << 30)

void *preset_alloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	assert_non_null(p);
	return p;
}

bool preset_room_layout(struct preset_room *r, uint32_t tp, uint32_t page_size,
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

static void shuffle(struct preset_room *r, uint32_t *v, uint32_t n)
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

static void place_extents(struct preset_room *r)
{
	uint32_t n = r->g.n_extents;
	uint32_t *order = preset_alloc(n, sizeof(*order));

	shuffle(r, order, n);
	r->at = preset_alloc(n, sizeof(*r->at));
	r->host_len = 0;
	for (uint32_t i = 0; i < n; i++) {
		r->at[order[i]] = r->host_len;
		r->host_len += kvs_geometry_len(&r->g, order[i]) + 64;
		r->host_len &= ~63ull;
	}
	free(order);
}

static uint64_t stride(const struct preset_room *r, uint32_t b)
{
	return r->l->buffers[b].item_len + GUARD;
}

/* As the engine side does it, but with guards between the pages. */
static void runs(struct preset_room *r)
{
	const struct kvs_layout *l = r->l;
	uint64_t off, len, buf = 0;
	size_t n = 0;

	r->buf = preset_alloc(l->n_buffers, sizeof(*r->buf));
	r->runs = preset_alloc((size_t)l->n_buffers * r->g.n_extents,
			       sizeof(*r->runs));
	r->shapes = preset_alloc((size_t)l->n_buffers * r->g.n_extents,
				 sizeof(*r->shapes));
	r->device_pages = r->g.pages + 3;
	r->pages = preset_alloc(r->device_pages, sizeof(*r->pages));
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

void preset_room_init(struct preset_room *r, uint32_t tokens,
		      uint32_t extent_tokens)
{
	extent_tokens = (extent_tokens + r->l->page_size - 1) /
			r->l->page_size * r->l->page_size;
	assert_int_equal(kvs_geometry_init(&r->g, r->l, tokens, extent_tokens,
					   SEGMENT, 1, 256),
			 0);
	place_extents(r);
	runs(r);
}

void preset_room_fini(struct preset_room *r)
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
void preset_room_rebase(struct preset_room *r, uintptr_t host, uintptr_t dev)
{
	for (size_t i = 0; i < r->copy.n_runs; i++) {
		struct kvs_copy_run *c = &r->runs[i];

		c->host = (void *)((uintptr_t)c->host + host);
		c->dev = (void *)((uintptr_t)c->dev + dev);
	}
}

static void model(const struct preset_room *r)
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

static void go(struct preset_room *r, enum kvs_copy_dir dir)
{
	int ret;

	r->copy.dir = dir;
	assert_int_equal(kvs_device_copy(r->d, &r->copy), 0);
	while ((ret = kvs_device_query(r->d, &r->copy)) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(ret, 0);
	assert_int_equal(kvs_device_progress(r->d, &r->copy), r->copy.n_runs);
}

/* Copy all of one side in one piece. */
static void fill_device(struct preset_room *r, uint8_t byte)
{
	uint8_t *p = preset_alloc(1, r->dev_len);
	struct kvs_copy_run run = {
		.host = p, .dev = r->dev, .item_len = r->dev_len, .n = 1
	};
	struct kvs_copy c = { .runs = &run, .n_runs = 1, .dir = KVS_COPY_H2D };
	int ret;

	memset(p, byte, r->dev_len);
	assert_int_equal(kvs_device_copy(r->d, &c), 0);
	while ((ret = kvs_device_query(r->d, &c)) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(ret, 0);
	free(p);
}

void preset_room_there_and_back(struct preset_room *r)
{
	uint8_t *back, *host, *seen;
	void *mem = NULL;

	assert_int_equal(kvs_device_alloc(r->d, r->dev_len, &mem), 0);
	r->dev = mem;
	host = preset_alloc(r->host_len, 1);
	assert_int_equal(kvs_device_register_host(r->d, host, r->host_len, 0),
			 0);
	fill_device(r, GUARD_BYTE);
	for (uint64_t i = 0; i < r->host_len; i++)
		host[i] = (uint8_t)kvs_rng_next(&r->rng);
	preset_room_rebase(r, (uintptr_t)host, (uintptr_t)mem);
	r->want = preset_alloc(r->dev_len, 1);
	seen = preset_alloc(r->dev_len, 1);
	model(r);
	go(r, KVS_COPY_H2D);
	assert_int_equal(kvs_device_peek(r->d, seen, mem, r->dev_len), 0);
	assert_memory_equal(seen, r->want, r->dev_len);

	/* what is beside the runs on the host is not touched on the way back */
	back = preset_alloc(r->host_len, 1);
	memcpy(back, host, r->host_len);
	for (size_t i = 0; i < r->copy.n_runs; i++)
		memset(r->runs[i].host, 0, r->runs[i].n * r->runs[i].item_len);
	go(r, KVS_COPY_D2H);
	assert_memory_equal(host, back, r->host_len);
	preset_room_rebase(r, -(uintptr_t)host, -(uintptr_t)mem);
	assert_int_equal(kvs_device_unregister_host(r->d, host, r->host_len),
			 0);
	kvs_device_free(r->d, mem);
	free(r->want);
	free(seen);
	free(back);
	free(host);
}
