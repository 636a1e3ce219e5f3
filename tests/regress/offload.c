/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of blocks that an engine decoded and offloads, and of cached ones
 * that it recalls without a room, by the library's engine against a daemon
 * core:
 *
 * - they come back from the cache as they went, to other pages, layer by layer;
 *   also where the device pool is page first, as do retracted requests
 * - device pages are the copy's until all of it is out, and nothing is found
 *   before (sgl-project/sglang#24226, #30899)
 * - an abort in any state leaves nothing behind, and what a copy reads of the
 *   cache stays until its end, however the engine gave it up
 *   (sgl-project/sglang#26728)
 * - an engine that dies while its copy runs leaves nothing in the cache, and
 *   the memory comes back when it is gone
 * - what cannot be had is told, and the device pages are whole
 * - many are asked for, and end, in one call
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/device.h"
#include "kvstage/cache.h"
#include "lib/rule.h"
#include "tests/regress/service_rig.h"

#define PAGE_SIZE 4u /* tokens */
#define BUFFERS 4u
#define ITEM 1024u
#define DEVICE_PAGES 128u
#define PAGES_MAX 64u
#define MANY 3u

static struct kvs_layer_buffer buffers[BUFFERS] = {
	{ KVS_BUFFER_K, 0, ITEM, 0 },
	{ KVS_BUFFER_V, 0, ITEM, 0 },
	{ KVS_BUFFER_K, 1, ITEM, 0 },
	{ KVS_BUFFER_V, 1, ITEM, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = PAGE_SIZE,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = BUFFERS,
	.buffers = buffers,
	.max_context = PAGES_MAX * PAGE_SIZE,
};

static struct rig g[1];
static struct kvs_engine *e;
static struct kvs_device *d;
static void *dev[BUFFERS];
static void *first_of; /* of a pool that is page first */
static const uint64_t *strides;
static struct kvs_rng rng;

/* ---- rig ------------------------------------------------------------- */

static void attach(const char *socket, const char *space)
{
	const struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = socket,
		.name = "offload",
		.layout = &layout,
		.node = -1,
		.cache_space = space,
	};
	char err[256];

	if (kvs_engine_attach(&o, &e, err, sizeof(err)))
		fail_msg("attach: %s", err);
}

/* Where pages are further apart than they are long they lie behind each other,
 * with all their layers. */
static void device(const struct kvs_soft_plan *plan, bool page_first)
{
	static const uint64_t apart[BUFFERS] = { BUFFERS * ITEM, BUFFERS * ITEM,
						 BUFFERS * ITEM,
						 BUFFERS * ITEM };
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "soft" };
	char err[256];

	if (plan)
		o.plan = *plan;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), 0);
	strides = page_first ? apart : NULL;
	first_of = NULL;
	if (page_first)
		assert_int_equal(
			kvs_device_alloc(d,
					 (size_t)DEVICE_PAGES * BUFFERS * ITEM,
					 &first_of),
			0);
	for (uint32_t b = 0; b < BUFFERS; b++) {
		dev[b] = (char *)first_of + b * ITEM;
		if (!page_first)
			assert_int_equal(kvs_device_alloc(d,
							  DEVICE_PAGES * ITEM,
							  &dev[b]),
					 0);
	}
	kvs_rng_init(&rng, 77);
}

static void device_down(void)
{
	for (uint32_t b = 0; b < BUFFERS && !first_of; b++)
		kvs_device_free(d, dev[b]);
	if (first_of)
		kvs_device_free(d, first_of);
	kvs_device_close(d);
}

static void start(const char *offload, const struct kvs_soft_plan *plan,
		  bool page_first)
{
	rig_init(g, "sock", "2M");
	rig_set(g, "pool.offload_size", offload);
	rig_set(g, "reserve.retraction", "64K");
	rig_set(g, "extent.tokens", "64");
	rig_set(g, "admission.health_reserve", "0");
	rig_up(g);
	attach(g->set.engine_socket, "model 1");
	device(plan, page_first);
}

static void stop(void)
{
	kvs_engine_detach(e);
	device_down();
	rig_wait(
		g,
		g->snap->workers[0].n_pools == 1 ||
			g->snap->workers[0]
					.pools[1]
					.account.bytes[KVS_EXTENT_FREE] ==
				g->snap->workers[0].pools[1].account.configured);
	rig_down(g);
}

/* Blocks of a talk, where they are on the device. */
struct talk {
	uint32_t id;
	uint32_t n;
	uint32_t pages[PAGES_MAX];
	uint8_t hashes[PAGES_MAX][16];
	kvs_handle h;
};

static void place(struct talk *t)
{
	uint32_t all[DEVICE_PAGES];

	for (uint32_t i = 0; i < DEVICE_PAGES; i++)
		all[i] = i;
	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t j =
			i + (uint32_t)kvs_rng_below(&rng, DEVICE_PAGES - i);
		uint32_t x = all[i];

		all[i] = all[j];
		all[j] = x;
		t->pages[i] = all[i];
	}
}

static void talk(struct talk *t, uint32_t id, uint32_t n)
{
	memset(t, 0, sizeof(*t));
	t->id = id;
	t->n = n;
	for (uint32_t i = 0; i < n; i++) {
		t->hashes[i][0] = (uint8_t)id;
		t->hashes[i][1] = (uint8_t)i;
	}
	place(t);
}

static unsigned char *item(const struct talk *t, uint32_t b, uint32_t i)
{
	return (unsigned char *)dev[b] +
	       t->pages[i] * (strides ? strides[b] : ITEM);
}

static unsigned char byte_of(uint32_t id, uint32_t b, uint32_t i, uint32_t k)
{
	return (unsigned char)(id * 131 + b * 29 + i * 7 + k * 3 + 1);
}

static void fill_as(const struct talk *t, uint32_t id)
{
	for (uint32_t b = 0; b < BUFFERS; b++)
		for (uint32_t i = 0; i < t->n; i++)
			for (uint32_t k = 0; k < ITEM; k++)
				item(t, b, i)[k] = byte_of(id, b, i, k);
}

static uint64_t wrong(const struct talk *t)
{
	uint64_t n = 0;

	for (uint32_t b = 0; b < BUFFERS; b++)
		for (uint32_t i = 0; i < t->n; i++)
			for (uint32_t k = 0; k < ITEM; k++)
				n += item(t, b, i)[k] !=
				     byte_of(t->id, b, i, k);
	return n;
}

static enum kvs_status status(kvs_handle *h, int *ret_err)
{
	int err = 0;
	enum kvs_status st;

	assert_true(kvs_engine_progress(e) >= 0);
	st = kvs_engine_poll(e, h, &err);
	if (ret_err)
		*ret_err = err;
	return st;
}

static void wait_for(kvs_handle *h, enum kvs_status want)
{
	uint64_t until = rig_until();
	enum kvs_status st;
	int err;

	while ((st = status(h, &err)) < want || kvs_engine_copy_live(e, h)) {
		if (st == KVS_STATUS_FAILED)
			fail_msg("failed: %s", strerror(err));
		if (st >= want && want < KVS_STATUS_SEALING)
			break; /* the copy is to be under way */
		rig_pause(until, "a status", __FILE__, __LINE__);
	}
}

static void wait_failed(kvs_handle *h, int err)
{
	uint64_t until = rig_until();
	int got = 0;

	while (status(h, &got) != KVS_STATUS_FAILED ||
	       kvs_engine_copy_live(e, h))
		rig_pause(until, "a failure", __FILE__, __LINE__);
	assert_int_equal(got, err);
	assert_int_equal(kvs_engine_release(e, h), 0);
}

static struct kvs_offload request(const struct talk *t)
{
	return (struct kvs_offload){
		.size = sizeof(struct kvs_offload),
		.id = t->id,
		.hashes = t->hashes,
		.n_hashes = t->n,
		.node = -1,
		.device = d,
		.buffers = dev,
		.pages = t->pages,
		.n_pages = t->n,
		.strides = strides,
	};
}

static struct kvs_commit places(const struct talk *t)
{
	return (struct kvs_commit){
		.size = sizeof(struct kvs_commit),
		.device = d,
		.buffers = dev,
		.pages = t->pages,
		.n_pages = t->n,
		.strides = strides,
	};
}

static struct kvs_cache_query query(const struct talk *t)
{
	return (struct kvs_cache_query){ .size = sizeof(struct kvs_cache_query),
					 .hashes = t->hashes,
					 .n_hashes = t->n,
					 .node = -1 };
}

static void leave(struct talk *t)
{
	const struct kvs_offload q = request(t);

	assert_int_equal(kvs_offload(e, &q, &t->h), 0);
}

static uint32_t cached(const kvs_handle *h)
{
	uint64_t tokens, until = rig_until();

	while (kvs_engine_cached(e, h, &tokens) == -EAGAIN)
		rig_pause(until, "CACHED", __FILE__, __LINE__);
	return (uint32_t)(tokens / PAGE_SIZE);
}

static uint32_t found(const struct talk *t)
{
	const struct kvs_cache_query q = query(t);
	kvs_handle h;
	uint32_t n;

	assert_int_equal(kvs_cache_lookup(e, &q, &h), 0);
	wait_for(&h, KVS_STATUS_DONE);
	n = cached(&h);
	assert_int_equal(kvs_engine_release(e, &h), 0);
	return n;
}

/* Pinned, and its pages are elsewhere from now on. */
static void pin(struct talk *t)
{
	const struct kvs_cache_query q = query(t);

	assert_int_equal(kvs_cache_pin(e, &q, &t->h), 0);
	wait_for(&t->h, KVS_STATUS_READY);
	assert_int_equal(cached(&t->h), t->n);
	place(t);
}

static void recall(struct talk *t)
{
	const struct kvs_commit c = places(t);

	assert_int_equal(kvs_recall(e, &t->h, &c), 0);
}

static void back(struct talk *t)
{
	pin(t);
	recall(t);
	wait_for(&t->h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_copied_layers(e, &t->h), 2);
	assert_int_equal(wrong(t), 0);
	assert_int_equal(kvs_engine_release(e, &t->h), 0);
}

/* Of the offload pool, now. */
static uint64_t bytes(enum kvs_extent_state st)
{
	rig_refresh(g);
	return g->snap->workers[0].pools[1].account.bytes[st];
}

#define BYTES(pages) ((uint64_t)(pages)*BUFFERS * ITEM)

/* ---- tests ----------------------------------------------------------- */

static void test_there_and_back(void **state)
{
	struct talk t;

	(void)state;
	for (int page_first = 0; page_first < 2; page_first++) {
		start("512K", NULL, page_first);
		for (uint32_t n = 1; n < PAGES_MAX; n += 13) {
			talk(&t, n, n);
			fill_as(&t, t.id);
			leave(&t);
			assert_true(kvs_engine_copy_live(e, &t.h));
			wait_for(&t.h, KVS_STATUS_SEALING);
			/* free, and used by another at once */
			fill_as(&t, 200);
			wait_for(&t.h, KVS_STATUS_DONE);
			assert_int_equal(kvs_engine_release(e, &t.h), 0);
			assert_int_equal(found(&t), n);
			back(&t);
		}
		/* again, and more: what is there need not be copied */
		talk(&t, 27, 40);
		fill_as(&t, t.id);
		leave(&t);
		assert_int_equal(cached(&t.h), 27);
		wait_for(&t.h, KVS_STATUS_DONE);
		assert_int_equal(kvs_engine_release(e, &t.h), 0);
		stop();
	}
}

/* A retracted request of a pool that is page first. */
static void test_retract_page_first(void **state)
{
	struct kvs_retract r = { .size = sizeof(r), .id = 1, .node = -1 };
	struct kvs_commit c;
	struct talk t;

	(void)state;
	start("512K", NULL, true);
	talk(&t, 1, 50);
	fill_as(&t, 1);
	r.tokens = t.n * PAGE_SIZE - 1;
	r.device = d;
	r.buffers = dev;
	r.pages = t.pages;
	r.n_pages = t.n;
	r.strides = strides;
	assert_int_equal(kvs_retract(e, &r, &t.h), 0);
	wait_for(&t.h, KVS_STATUS_READY);
	fill_as(&t, 200);
	place(&t);
	c = places(&t);
	assert_int_equal(kvs_recall(e, &t.h, &c), -ENOENT);
	assert_int_equal(kvs_resume(e, &t.h, &c), 0);
	wait_for(&t.h, KVS_STATUS_DONE);
	assert_int_equal(wrong(&t), 0);
	assert_int_equal(kvs_engine_release(e, &t.h), 0);
	stop();
}

/* Held part way: none of its pages are free, and none of it is found. */
static void test_pages_wait_for_all(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct talk t;

	(void)state;
	start("512K", &plan, false);
	talk(&t, 1, 50);
	fill_as(&t, 1);
	leave(&t);
	wait_for(&t.h, KVS_STATUS_ADMITTED);
	for (int i = 0; i < 30; i++) {
		assert_int_equal(status(&t.h, NULL), KVS_STATUS_ADMITTED);
		assert_true(kvs_engine_copy_live(e, &t.h));
		assert_int_equal(kvs_engine_release(e, &t.h), -EBUSY);
		assert_int_equal(found(&t), 0);
	}
	assert_int_equal(bytes(KVS_EXTENT_GRANTED), BYTES(50));
	assert_int_equal(kvs_soft_release(d), 0);
	wait_for(&t.h, KVS_STATUS_DONE);
	fill_as(&t, 200);
	assert_int_equal(kvs_engine_release(e, &t.h), 0);
	back(&t);
	stop();
}

enum far { CALLED, PLACED, COPYING, FARS };

static void test_abort_anywhere(void **state)
{
	struct talk t;

	(void)state;
	for (int far = CALLED; far < FARS; far++) {
		const struct kvs_soft_plan plan = { .hold_nth = far ==
								COPYING };

		start("512K", &plan, false);
		talk(&t, 1, 50);
		fill_as(&t, 1);
		leave(&t);
		if (far == PLACED)
			rig_wait(g, bytes(KVS_EXTENT_GRANTED) == BYTES(50));
		if (far == COPYING)
			wait_for(&t.h, KVS_STATUS_ADMITTED);
		assert_int_equal(kvs_drop(e, &t.h), -ENOENT);
		assert_int_equal(kvs_engine_abort(e, &t.h), 0);
		assert_int_equal(kvs_engine_abort(e, &t.h), 0);
		if (far == COPYING) {
			rig_wait(g, bytes(KVS_EXTENT_HELD) == BYTES(50));
			for (int i = 0; i < 20; i++) {
				(void)status(&t.h, NULL);
				assert_true(kvs_engine_copy_live(e, &t.h));
			}
			assert_int_equal(bytes(KVS_EXTENT_HELD), BYTES(50));
			assert_int_equal(kvs_soft_release(d), 0);
		}
		wait_failed(&t.h, ECANCELED);
		for (uint64_t until = rig_until();
		     bytes(KVS_EXTENT_FREE) != 512 * 1024;
		     rig_pause(until, "memory", __FILE__, __LINE__))
			assert_true(kvs_engine_progress(e) >= 0);
		assert_int_equal(found(&t), 0);
		assert_int_equal(wrong(&t), 0);
		/* the same again, which is kept */
		leave(&t);
		wait_for(&t.h, KVS_STATUS_DONE);
		assert_int_equal(kvs_engine_abort(e, &t.h), -EALREADY);
		assert_int_equal(kvs_engine_release(e, &t.h), 0);
		back(&t);
		stop();
	}
}

/* A recall that is given up while its copy is held: what it reads stays, though
 * all that is cached is to go, until the copy has ended. */
static void test_recall_is_given_up(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 2 };
	struct kvs_cache_query q;
	struct talk t;
	kvs_handle h;

	(void)state;
	start("512K", &plan, false);
	talk(&t, 1, 60);
	fill_as(&t, 1);
	leave(&t);
	wait_for(&t.h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(e, &t.h), 0);
	pin(&t);
	recall(&t);
	for (uint64_t until = rig_until();
	     status(&t.h, NULL) != KVS_STATUS_COMMITTING ||
	     g->snap->workers[0].stats.recalls[KVS_RECALL_RESULT_PINNED] == 0;
	     rig_pause(until, "a copy", __FILE__, __LINE__))
		rig_refresh(g);
	q = query(&t);
	assert_int_equal(kvs_cache_drop(e, &q, &h), 0);
	wait_for(&h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(e, &h), 0);
	assert_int_equal(kvs_cache_unpin(e, &t.h), 0);
	assert_int_equal(found(&t), 0);
	for (int i = 0; i < 20; i++) {
		(void)status(&t.h, NULL);
		assert_true(kvs_engine_copy_live(e, &t.h));
		assert_int_equal(kvs_engine_release(e, &t.h), -EBUSY);
	}
	rig_wait(g, g->snap->workers[0].cache.pinned_bytes == BYTES(60));
	assert_int_equal(kvs_soft_release(d), 0);
	wait_failed(&t.h, ECANCELED);
	rig_wait(g, g->snap->workers[0].cache.bytes == 0);
	assert_int_equal(wrong(&t), 0); /* it read nothing but them */
	stop();
}

static void test_refused(void **state)
{
	const struct kvs_soft_plan plan = { .fail_nth = 1 };
	struct kvs_offload q;
	struct kvs_failure f;
	struct kvs_cache_query c;
	struct talk t;

	(void)state;
	start("192K", &plan, false); /* 64K of it are the reserve */
	talk(&t, 1, 40);
	fill_as(&t, 1);
	leave(&t);
	while (status(&t.h, NULL) != KVS_STATUS_FAILED)
		;
	assert_int_equal(kvs_engine_failure(e, &t.h, &f), 0);
	assert_int_equal(f.err, ENOSPC);
	assert_int_equal(f.http_class, 503);
	assert_non_null(strstr(f.text, "reserve.retraction"));
	wait_failed(&t.h, ENOSPC);
	/* a copy that fails */
	talk(&t, 1, 20);
	fill_as(&t, 1);
	leave(&t);
	wait_failed(&t.h, EIO);
	assert_int_equal(wrong(&t), 0);
	assert_int_equal(found(&t), 0);
	/* what is not cached cannot be pinned */
	c = query(&t);
	assert_int_equal(kvs_cache_pin(e, &c, &t.h), 0);
	wait_failed(&t.h, ENOENT);
	/* arguments */
	q = request(&t);
	q.n_pages--;
	assert_int_equal(kvs_offload(e, &q, &t.h), -EINVAL);
	q = request(&t);
	q.hashes = NULL;
	assert_int_equal(kvs_offload(e, &q, &t.h), -EINVAL);
	q = request(&t);
	q.size--;
	assert_int_equal(kvs_offload(e, &q, &t.h), -EINVAL);
	q = request(&t);
	q.node = 1023;
	assert_int_equal(kvs_offload(e, &q, &t.h), 0);
	wait_failed(&t.h, ENXIO);
	assert_int_equal(kvs_cache_unpin(e, &t.h), -ENOENT);
	/* an engine that named no space */
	kvs_engine_detach(e);
	attach(g->set.engine_socket, NULL);
	leave(&t);
	wait_failed(&t.h, EOPNOTSUPP);
	assert_int_equal(kvs_cache_pin(e, &c, &t.h), 0);
	wait_failed(&t.h, EOPNOTSUPP);
	stop();
	/* nor is there a pool */
	start("0", NULL, false);
	leave(&t);
	wait_failed(&t.h, E2BIG);
	stop();
}

/* As many as there are, in one call; pins of the same blocks are each other's
 * business no more than rooms are. */
static void test_many(void **state)
{
	struct kvs_offload out[MANY + 1];
	struct kvs_cache_query q[MANY];
	struct kvs_commit c[MANY];
	kvs_handle h[MANY + 1], again[MANY];
	struct talk t[MANY];
	int res[MANY];

	(void)state;
	start("512K", NULL, false);
	for (uint32_t i = 0; i < MANY; i++) {
		talk(&t[i], 1 + i, 10 + i);
		/* not each other's */
		for (uint32_t k = 0; k < t[i].n; k++)
			t[i].pages[k] = i * 32 + k;
		fill_as(&t[i], 1 + i);
		out[i] = request(&t[i]);
		q[i] = query(&t[i]);
		c[i] = places(&t[i]);
	}
	out[MANY] = out[0];
	out[MANY].n_pages++;
	assert_int_equal(kvs_offload_many(e, out, 0, NULL), 0);
	assert_int_equal(kvs_offload_many(e, NULL, 1, h), -EINVAL);
	assert_int_equal(kvs_offload_many(e, &out[MANY], 1, h), -EINVAL);
	/* those before the bad one are taken */
	assert_int_equal(kvs_offload_many(e, out, MANY + 1, h), MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		wait_for(&h[i], KVS_STATUS_DONE);
		fill_as(&t[i], 200);
		assert_int_equal(kvs_engine_release(e, &h[i]), 0);
	}
	assert_int_equal(kvs_cache_lookup_many(e, q, MANY, h), MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		wait_for(&h[i], KVS_STATUS_DONE);
		assert_int_equal(cached(&h[i]), 10 + i);
		assert_int_equal(kvs_engine_release(e, &h[i]), 0);
	}
	assert_int_equal(kvs_cache_pin_many(e, q, MANY, h), MANY);
	assert_int_equal(kvs_cache_pin_many(e, q, MANY, again), MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		wait_for(&h[i], KVS_STATUS_READY);
		wait_for(&again[i], KVS_STATUS_READY);
	}
	assert_int_equal(kvs_cache_unpin_many(e, again, MANY), MANY);
	assert_int_equal(kvs_cache_unpin_many(e, again, MANY), MANY);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(kvs_engine_release(e, &again[i]), 0);
	/* forgotten, but not by those that have them */
	assert_int_equal(kvs_cache_drop_many(e, q, MANY, again), MANY);
	for (uint32_t i = 0; i < MANY; i++)
		wait_for(&again[i], KVS_STATUS_DONE);
	c[1].n_pages--;
	assert_int_equal(kvs_recall_many(e, h, c, MANY, res), MANY - 1);
	assert_int_equal(res[1], -EINVAL);
	c[1].n_pages++;
	assert_int_equal(kvs_recall_many(e, h, c, MANY, res), 1);
	assert_int_equal(res[0], -EALREADY);
	for (uint32_t i = 0; i < MANY; i++) {
		wait_for(&h[i], KVS_STATUS_DONE);
		assert_int_equal(wrong(&t[i]), 0);
		assert_int_equal(kvs_engine_release(e, &h[i]), 0);
		assert_int_equal(kvs_engine_release(e, &again[i]), 0);
	}
	stop();
}

/* ---- an engine that dies ------------------------------------------------ */

/* argv: socket. It dies while its copy out runs. */
static _Noreturn void child(char **argv)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct talk t;

	attach(argv[1], "model 1");
	device(&plan, false);
	talk(&t, 1, 40);
	fill_as(&t, 200);
	leave(&t);
	while (kvs_engine_poll(e, &t.h, NULL) != KVS_STATUS_ADMITTED)
		(void)kvs_engine_progress(e);
	rig_child_say();
	for (;;)
		pause();
}

static void test_engine_dies(void **state)
{
	const char *args[2] = { NULL };
	struct talk t;
	pid_t pid;
	int fd;

	(void)state;
	start("256K", NULL, false);
	args[0] = g->set.engine_socket;
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	assert_int_equal(bytes(KVS_EXTENT_GRANTED), BYTES(40));
	talk(&t, 1, 40);
	fill_as(&t, 1);
	leave(&t);
	wait_failed(&t.h, ENOSPC);
	rig_kill(pid, &fd);
	rig_wait(g, bytes(KVS_EXTENT_FREE) == 256 * 1024);
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_PROCESS_EXIT), 1);
	assert_int_equal(found(&t), 0);
	leave(&t);
	wait_for(&t.h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(e, &t.h), 0);
	back(&t);
	stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_retract_page_first),
		cmocka_unit_test(test_pages_wait_for_all),
		cmocka_unit_test(test_abort_anywhere),
		cmocka_unit_test(test_recall_is_given_up),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_engine_dies),
	};

	if (argc > 1)
		child(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
