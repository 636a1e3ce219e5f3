/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/keep_rig.h"

#include <errno.h>
#include <string.h>

#include "gpu/device.h"

static struct kvs_layer_buffer buffers[KP_BUFFERS] = {
	{ KVS_BUFFER_K, 0, KP_ITEM, 0 },
	{ KVS_BUFFER_V, 0, KP_ITEM, 0 },
	{ KVS_BUFFER_K, 1, KP_ITEM, 0 },
	{ KVS_BUFFER_V, 1, KP_ITEM, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = KP_PAGE_SIZE,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = KP_BUFFERS,
	.buffers = buffers,
	.max_context = KP_PAGES_MAX * KP_PAGE_SIZE,
};

void kp_attach(struct kp *k, const char *socket, const char *space)
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

	if (kvs_engine_attach(&o, &k->e, err, sizeof(err)))
		fail_msg("attach: %s", err);
}

void kp_device(struct kp *k, const struct kvs_soft_plan *plan, bool page_first)
{
	static const uint64_t apart[KP_BUFFERS] = { KP_BUFFERS * KP_ITEM,
						    KP_BUFFERS * KP_ITEM,
						    KP_BUFFERS * KP_ITEM,
						    KP_BUFFERS * KP_ITEM };
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "soft" };
	char err[256];

	if (plan)
		o.plan = *plan;
	assert_int_equal(kvs_device_open(&o, &k->d, err, sizeof(err)), 0);
	k->strides = page_first ? apart : NULL;
	k->first_of = NULL;
	if (page_first)
		assert_int_equal(kvs_device_alloc(k->d,
						  (size_t)KP_DEVICE_PAGES *
							  KP_BUFFERS * KP_ITEM,
						  &k->first_of),
				 0);
	for (uint32_t b = 0; b < KP_BUFFERS; b++) {
		k->dev[b] = (char *)k->first_of + b * KP_ITEM;
		if (!page_first)
			assert_int_equal(
				kvs_device_alloc(k->d,
						 KP_DEVICE_PAGES * KP_ITEM,
						 &k->dev[b]),
				0);
	}
	kvs_rng_init(&k->rng, 77);
}

static void device_down(struct kp *k)
{
	for (uint32_t b = 0; b < KP_BUFFERS && !k->first_of; b++)
		kvs_device_free(k->d, k->dev[b]);
	if (k->first_of)
		kvs_device_free(k->d, k->first_of);
	kvs_device_close(k->d);
}

void kp_start(struct kp *k, const char *offload,
	      const struct kvs_soft_plan *plan, bool page_first)
{
	rig_init(&k->r, "sock", "2M");
	rig_set(&k->r, "pool.offload_size", offload);
	rig_set(&k->r, "reserve.retraction", "64K");
	rig_set(&k->r, "extent.tokens", "64");
	rig_set(&k->r, "admission.health_reserve", "0");
	rig_up(&k->r);
	kp_attach(k, k->r.set.engine_socket, "model 1");
	kp_device(k, plan, page_first);
}

void kp_stop(struct kp *k)
{
	kvs_engine_detach(k->e);
	device_down(k);
	rig_wait(&k->r,
		 k->r.snap->workers[0].n_pools == 1 ||
			 k->r.snap->workers[0]
					 .pools[1]
					 .account.bytes[KVS_EXTENT_FREE] ==
				 k->r.snap->workers[0]
					 .pools[1]
					 .account.configured);
	rig_down(&k->r);
}

void kp_place(struct kp *k, struct kp_talk *t)
{
	uint32_t all[KP_DEVICE_PAGES];

	for (uint32_t i = 0; i < KP_DEVICE_PAGES; i++)
		all[i] = i;
	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t j = i + (uint32_t)kvs_rng_below(&k->rng,
							 KP_DEVICE_PAGES - i);
		uint32_t x = all[i];

		all[i] = all[j];
		all[j] = x;
		t->pages[i] = all[i];
	}
}

void kp_talk(struct kp *k, struct kp_talk *t, uint32_t id, uint32_t n)
{
	memset(t, 0, sizeof(*t));
	t->id = id;
	t->n = n;
	for (uint32_t i = 0; i < n; i++) {
		t->hashes[i][0] = (uint8_t)id;
		t->hashes[i][1] = (uint8_t)i;
	}
	kp_place(k, t);
}

static unsigned char *item(struct kp *k, const struct kp_talk *t, uint32_t b,
			   uint32_t i)
{
	return (unsigned char *)k->dev[b] +
	       t->pages[i] * (k->strides ? k->strides[b] : KP_ITEM);
}

static unsigned char byte_of(uint32_t id, uint32_t b, uint32_t i, uint32_t k)
{
	return (unsigned char)(id * 131 + b * 29 + i * 7 + k * 3 + 1);
}

void kp_fill_as(struct kp *k, const struct kp_talk *t, uint32_t id)
{
	for (uint32_t b = 0; b < KP_BUFFERS; b++)
		for (uint32_t i = 0; i < t->n; i++)
			for (uint32_t x = 0; x < KP_ITEM; x++)
				item(k, t, b, i)[x] = byte_of(id, b, i, x);
}

uint64_t kp_wrong(struct kp *k, const struct kp_talk *t)
{
	uint64_t n = 0;

	for (uint32_t b = 0; b < KP_BUFFERS; b++)
		for (uint32_t i = 0; i < t->n; i++)
			for (uint32_t x = 0; x < KP_ITEM; x++)
				n += item(k, t, b, i)[x] !=
				     byte_of(t->id, b, i, x);
	return n;
}

enum kvs_status kp_status(struct kp *k, kvs_handle *h, int *ret_err)
{
	int err = 0;
	enum kvs_status st;

	assert_true(kvs_engine_progress(k->e) >= 0);
	st = kvs_engine_poll(k->e, h, &err);
	if (ret_err)
		*ret_err = err;
	return st;
}

void kp_wait_for(struct kp *k, kvs_handle *h, enum kvs_status want)
{
	uint64_t until = rig_until();
	enum kvs_status st;
	int err;

	while ((st = kp_status(k, h, &err)) < want ||
	       kvs_engine_copy_live(k->e, h)) {
		if (st == KVS_STATUS_FAILED)
			fail_msg("failed: %s", strerror(err));
		if (st >= want && want < KVS_STATUS_SEALING)
			break; /* the copy is to be under way */
		rig_pause(until, "a status", __FILE__, __LINE__);
	}
}

void kp_wait_failed(struct kp *k, kvs_handle *h, int err)
{
	uint64_t until = rig_until();
	int got = 0;

	while (kp_status(k, h, &got) != KVS_STATUS_FAILED ||
	       kvs_engine_copy_live(k->e, h))
		rig_pause(until, "a failure", __FILE__, __LINE__);
	assert_int_equal(got, err);
	assert_int_equal(kvs_engine_release(k->e, h), 0);
}

struct kvs_offload kp_request(struct kp *k, const struct kp_talk *t)
{
	return (struct kvs_offload){
		.size = sizeof(struct kvs_offload),
		.id = t->id,
		.hashes = t->hashes,
		.n_hashes = t->n,
		.node = -1,
		.device = k->d,
		.buffers = k->dev,
		.pages = t->pages,
		.n_pages = t->n,
		.strides = k->strides,
	};
}

struct kvs_commit kp_places(struct kp *k, const struct kp_talk *t)
{
	return (struct kvs_commit){
		.size = sizeof(struct kvs_commit),
		.device = k->d,
		.buffers = k->dev,
		.pages = t->pages,
		.n_pages = t->n,
		.strides = k->strides,
	};
}

struct kvs_cache_query kp_query(const struct kp_talk *t)
{
	return (struct kvs_cache_query){ .size = sizeof(struct kvs_cache_query),
					 .hashes = t->hashes,
					 .n_hashes = t->n,
					 .node = -1 };
}

void kp_leave(struct kp *k, struct kp_talk *t)
{
	const struct kvs_offload q = kp_request(k, t);

	assert_int_equal(kvs_offload(k->e, &q, &t->h), 0);
}

uint32_t kp_cached(struct kp *k, const kvs_handle *h)
{
	uint64_t tokens, until = rig_until();

	while (kvs_engine_cached(k->e, h, &tokens) == -EAGAIN)
		rig_pause(until, "CACHED", __FILE__, __LINE__);
	return (uint32_t)(tokens / KP_PAGE_SIZE);
}

uint32_t kp_found(struct kp *k, const struct kp_talk *t)
{
	const struct kvs_cache_query q = kp_query(t);
	kvs_handle h;
	uint32_t n;

	assert_int_equal(kvs_cache_lookup(k->e, &q, &h), 0);
	kp_wait_for(k, &h, KVS_STATUS_DONE);
	n = kp_cached(k, &h);
	assert_int_equal(kvs_engine_release(k->e, &h), 0);
	return n;
}

void kp_pin(struct kp *k, struct kp_talk *t)
{
	const struct kvs_cache_query q = kp_query(t);

	assert_int_equal(kvs_cache_pin(k->e, &q, &t->h), 0);
	kp_wait_for(k, &t->h, KVS_STATUS_READY);
	assert_int_equal(kp_cached(k, &t->h), t->n);
	kp_place(k, t);
}

void kp_recall(struct kp *k, struct kp_talk *t)
{
	const struct kvs_commit c = kp_places(k, t);

	assert_int_equal(kvs_recall(k->e, &t->h, &c), 0);
}

void kp_back(struct kp *k, struct kp_talk *t)
{
	kp_pin(k, t);
	kp_recall(k, t);
	kp_wait_for(k, &t->h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_copied_layers(k->e, &t->h), 2);
	assert_int_equal(kp_wrong(k, t), 0);
	assert_int_equal(kvs_engine_release(k->e, &t->h), 0);
}

uint64_t kp_bytes(struct kp *k, enum kvs_extent_state st)
{
	rig_refresh(&k->r);
	return k->r.snap->workers[0].pools[1].account.bytes[st];
}
