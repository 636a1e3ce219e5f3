/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/offload_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvs_layer_buffer buffers[OF_BUFFERS] = {
	{ KVS_BUFFER_K, 0, OF_ITEM, 0 },
	{ KVS_BUFFER_K, 1, OF_ITEM, 0 },
	{ KVS_BUFFER_V, 0, OF_ITEM, 0 },
	{ KVS_BUFFER_V, 1, OF_ITEM, 0 },
	{ KVS_BUFFER_MAMBA, 2, OF_ITEM, OF_ITEMS },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = OF_PAGE_SIZE,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = OF_BUFFERS,
	.buffers = buffers,
	.max_context = OF_PAGES * OF_PAGE_SIZE,
};

static uint64_t items_of(uint32_t b, const struct of_request *q,
			 const uint32_t **ret)
{
	*ret = b < OF_BUFFERS - 1 ? q->pages : q->items;
	return b < OF_BUFFERS - 1 ? q->n_pages : OF_ITEMS;
}

static unsigned char byte_of(const struct of_request *q, uint32_t b,
			     uint64_t item, uint32_t at)
{
	return (unsigned char)(q->id * 131 + b * 29 + item * 7 + at * 3 + 1);
}

void of_attach(struct of *o, const char *socket,
	       const struct kvs_soft_plan *plan)
{
	struct kvs_engine_opts eo = {
		.size = sizeof(eo),
		.socket = socket,
		.name = "offload",
		.layout = &layout,
		.node = -1,
	};
	struct kvs_device_opts dopt = { .size = sizeof(dopt),
					.backend = "soft" };
	char err[256] = "";

	if (plan)
		dopt.plan = *plan;
	kvs_rng_init(&o->rng, 4711);
	if (kvs_engine_attach(&eo, &o->e, err, sizeof(err)))
		fail_msg("attach: %s", err);
	if (kvs_device_open(&dopt, &o->d, err, sizeof(err)))
		fail_msg("device: %s", err);
	for (uint32_t b = 0; b < OF_BUFFERS; b++) {
		uint64_t n = b < OF_BUFFERS - 1 ? OF_PAGES : OF_STATES;

		assert_int_equal(
			kvs_device_alloc(o->d, n * OF_ITEM, &o->dev[b]), 0);
		memset(o->dev[b], 0xa5, n * OF_ITEM);
	}
}

void of_up(struct of *o, const char *offload, const struct kvs_soft_plan *plan)
{
	memset(o, 0, sizeof(*o));
	rig_init(&o->r, "sock", OF_POOL);
	rig_set(&o->r, "pool.offload_size", offload);
	rig_set(&o->r, "extent.tokens", "64");
	rig_up(&o->r);
	of_attach(o, o->r.set.engine_socket, plan);
}

void of_down(struct of *o)
{
	kvs_engine_detach(o->e);
	for (uint32_t b = 0; b < OF_BUFFERS; b++)
		kvs_device_free(o->d, o->dev[b]);
	kvs_device_close(o->d);
	rig_wait(&o->r,
		 o->r.snap->workers[0].n_pools == 1 ||
			 o->r.snap->workers[0]
					 .pools[1]
					 .account.bytes[KVS_EXTENT_FREE] ==
				 o->r.snap->workers[0]
					 .pools[1]
					 .account.configured);
	rig_down(&o->r);
}

static void draw(struct kvs_rng *rng, uint32_t *v, uint32_t n, uint32_t of)
{
	uint32_t all[OF_PAGES];

	for (uint32_t i = 0; i < of; i++)
		all[i] = i;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = i + (uint32_t)kvs_rng_below(rng, of - i);
		uint32_t x = all[i];

		all[i] = all[j];
		all[j] = x;
		v[i] = all[i];
	}
}

void of_place(struct of *o, struct of_request *q, uint64_t id, uint32_t pages)
{
	q->id = id;
	q->n_pages = pages;
	draw(&o->rng, q->pages, pages, OF_PAGES);
	draw(&o->rng, q->items, OF_ITEMS, OF_STATES);
}

void of_fill(const struct of *o, const struct of_request *q)
{
	const uint32_t *at;
	uint64_t n;

	for (uint32_t b = 0; b < OF_BUFFERS; b++) {
		n = items_of(b, q, &at);
		for (uint64_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < OF_ITEM; k++)
				((unsigned char *)
					 o->dev[b])[at[i] * OF_ITEM + k] =
					byte_of(q, b, i, k);
	}
}

uint64_t of_wrong(const struct of *o, const struct of_request *q)
{
	const uint32_t *at;
	uint64_t n, wrong = 0;

	for (uint32_t b = 0; b < OF_BUFFERS; b++) {
		n = items_of(b, q, &at);
		for (uint64_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < OF_ITEM; k++)
				wrong += ((const unsigned char *)
						  o->dev[b])[at[i] * OF_ITEM +
							     k] !=
					 byte_of(q, b, i, k);
	}
	return wrong;
}

int of_leave(struct of *o, struct of_request *q, int (*written)(void *arg),
	     void *arg)
{
	const struct kvs_retract r = {
		.size = sizeof(r),
		.id = q->id,
		/* its last page is partial */
		.tokens = q->n_pages * OF_PAGE_SIZE - 1,
		.node = -1,
		.device = o->d,
		.buffers = o->dev,
		.pages = q->pages,
		.n_pages = q->n_pages,
		.items = q->items,
		.n_items = OF_ITEMS,
		.written = written,
		.arg = arg,
	};

	return kvs_retract(o->e, &r, &q->h);
}

int of_back(struct of *o, struct of_request *q)
{
	const struct kvs_commit c = {
		.size = sizeof(c),
		.device = o->d,
		.buffers = o->dev,
		.pages = q->pages,
		.n_pages = q->n_pages,
		.items = q->items,
		.n_items = OF_ITEMS,
	};

	return kvs_resume(o->e, &q->h, &c);
}

enum kvs_status of_status(struct of *o, struct of_request *q, int *ret_err)
{
	int err = 0;
	enum kvs_status st;

	assert_true(kvs_engine_progress(o->e) >= 0);
	st = kvs_engine_poll(o->e, &q->h, &err);
	if (ret_err)
		*ret_err = err;
	return st;
}

void of_wait(struct of *o, struct of_request *q, enum kvs_status st)
{
	uint64_t until = rig_until();
	enum kvs_status now;
	int err;

	while ((now = of_status(o, q, &err)) != st) {
		if (now == KVS_STATUS_FAILED || now > st)
			fail_msg("request %llu: status %d (%s), not %d",
				 (unsigned long long)q->id, now, strerror(err),
				 st);
		rig_pause(until, "a status", __FILE__, __LINE__);
	}
}

void of_wait_failed(struct of *o, struct of_request *q, int err)
{
	uint64_t until = rig_until();
	int got = 0;

	while (of_status(o, q, &got) != KVS_STATUS_FAILED ||
	       kvs_engine_copy_live(o->e, &q->h))
		rig_pause(until, "a failure", __FILE__, __LINE__);
	assert_int_equal(got, err);
	of_release(o, q);
}

void of_release(struct of *o, struct of_request *q)
{
	assert_int_equal(kvs_engine_release(o->e, &q->h), 0);
	memset(&q->h, 0, sizeof(q->h));
}

uint64_t of_bytes(struct of *o, enum kvs_extent_state st)
{
	rig_refresh(&o->r);
	return o->r.snap->workers[0].pools[1].account.bytes[st];
}

uint64_t of_count(struct of *o, enum kvs_retract_result res)
{
	rig_refresh(&o->r);
	return o->r.snap->workers[0].stats.retracts[res];
}
