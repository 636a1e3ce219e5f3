/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two turns of a conversation: what the first one decoded is offloaded to the
 * node's cache, another request uses its device pages, and the second turn
 * recalls it to other pages and goes on from there. Run kvstaged with an
 * offload pool that is larger than what it keeps for retracted requests
 * (--pool-offload-size 64M --reserve-retraction 16M), then this:
 *
 *   kvstage-example-offload /run/kvstage/kvstaged.sock
 *
 * Exit 0 when it came back, 1 when it did not, 2 usage.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <kvstage/cache.h>
#include <kvstage/device.h>

#define PAGE_SIZE 16 /* tokens, and of a block of the cache as well */
#define PAGES 20 /* of the first turn */
#define DEVICE_PAGES 40
#define ITEM_LEN 1024 /* bytes of one page in one layer buffer */

/* The KV pool of a two-layer model. */
static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_K, 0, ITEM_LEN, 0 },
	{ KVS_BUFFER_K, 1, ITEM_LEN, 0 },
	{ KVS_BUFFER_V, 0, ITEM_LEN, 0 },
	{ KVS_BUFFER_V, 1, ITEM_LEN, 0 },
};
#define BUFFERS 4
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = PAGE_SIZE,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = BUFFERS,
	.buffers = buffers,
	.capacity = DEVICE_PAGES * PAGE_SIZE,
	.max_context = DEVICE_PAGES * PAGE_SIZE,
};

static int open_device(struct kvs_device **ret, void *tensors[BUFFERS])
{
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "soft" };
	char err[128];
	int i, r;

	r = kvs_device_open(&o, ret, err, sizeof(err));
	if (r) {
		fprintf(stderr, "device: %s\n", err);
		return r;
	}
	for (i = 0; i < BUFFERS && !r; i++)
		r = kvs_device_alloc(*ret, DEVICE_PAGES * ITEM_LEN,
				     &tensors[i]);
	return r;
}

/* What the model's kernels do; the soft device's memory is ordinary. */
static void compute(void *tensors[BUFFERS], const uint32_t *pages, int value)
{
	uint32_t i, b;

	for (i = 0; i < PAGES; i++)
		for (b = 0; b < BUFFERS; b++)
			memset((char *)tensors[b] + pages[i] * ITEM_LEN,
			       value + (int)i, ITEM_LEN);
}

/* A name for each block: over its tokens and all before them. A real engine has
 * such a chain for its own prefix cache; this one is not one to copy. */
static void name(unsigned char hashes[PAGES][16], const uint32_t *tokens)
{
	uint64_t h[2] = { 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f };
	uint32_t i, k;

	for (i = 0; i < PAGES; i++) {
		for (k = 0; k < PAGE_SIZE; k++) {
			h[0] = (h[0] ^ tokens[i * PAGE_SIZE + k]) *
			       0x100000001b3;
			h[1] = (h[1] + h[0]) * 0xff51afd7ed558ccd;
		}
		memcpy(hashes[i], h, 16);
	}
}

/* A scheduler would do this for all its requests once a turn, and let others
 * decode meanwhile. */
static enum kvs_status wait_until(struct kvs_engine *e, kvs_handle *h,
				  enum kvs_status want)
{
	struct pollfd p = { .fd = kvs_engine_fd(e), .events = POLLIN };
	struct kvs_failure why;
	enum kvs_status st;

	for (;;) {
		kvs_engine_progress(e);
		st = kvs_engine_poll(e, h, NULL);
		if ((st == KVS_STATUS_FAILED || st >= want) &&
		    !kvs_engine_copy_live(e, h))
			break;
		poll(&p, 1, 1);
	}
	if (st == KVS_STATUS_FAILED && !kvs_engine_failure(e, h, &why))
		fprintf(stderr, "%s\n", why.text);
	return st;
}

/* Into the cache. The device pages are free when this returns 0. */
static int offload(struct kvs_engine *e, struct kvs_device *d,
		   void *tensors[BUFFERS], const uint32_t *pages,
		   const void *hashes)
{
	struct kvs_offload q = { .size = sizeof(q),
				 .id = 1,
				 .hashes = hashes,
				 .n_hashes = PAGES,
				 .node = -1,
				 .device = d,
				 .buffers = tensors,
				 .pages = pages,
				 .n_pages = PAGES };
	uint64_t had = 0;
	kvs_handle h;

	if (kvs_offload(e, &q, &h))
		return -1;
	/* From SEALING on the pages are free; here, wait for all of it. */
	if (wait_until(e, &h, KVS_STATUS_DONE) != KVS_STATUS_DONE)
		return -1;
	kvs_engine_cached(e, &h, &had);
	printf("offloaded: %d tokens, %d of them were cached\n",
	       PAGES * PAGE_SIZE, (int)had);
	return kvs_engine_release(e, &h);
}

/* From the cache to device pages: how many pages, or -1. */
static int recall(struct kvs_engine *e, struct kvs_device *d,
		  void *tensors[BUFFERS], const uint32_t *pages,
		  const void *hashes)
{
	struct kvs_cache_query q = { .size = sizeof(q),
				     .hashes = hashes,
				     .n_hashes = PAGES,
				     .node = -1 };
	struct kvs_commit to = { .size = sizeof(to),
				 .device = d,
				 .buffers = tensors,
				 .pages = pages };
	uint64_t tokens = 0;
	kvs_handle h;

	if (kvs_cache_pin(e, &q, &h))
		return -1;
	if (wait_until(e, &h, KVS_STATUS_READY) != KVS_STATUS_READY)
		return -1;
	kvs_engine_cached(e, &h, &tokens);
	to.n_pages = (uint32_t)(tokens / PAGE_SIZE);
	if (kvs_recall(e, &h, &to))
		return -1;
	/* Decode may begin with the first layer while others still come. */
	if (wait_until(e, &h, KVS_STATUS_DONE) != KVS_STATUS_DONE ||
	    kvs_engine_copied_layers(e, &h) != 2)
		return -1;
	return kvs_engine_release(e, &h) ? -1 : (int)to.n_pages;
}

static int two_turns(struct kvs_engine *e, struct kvs_device *d,
		     void *tensors[BUFFERS])
{
	uint32_t tokens[PAGES * PAGE_SIZE], old[PAGES], new[PAGES], i;
	unsigned char hashes[PAGES][16], last;
	int n;

	for (i = 0; i < PAGES * PAGE_SIZE; i++)
		tokens[i] = i * i;
	for (i = 0; i < PAGES; i++) {
		old[i] = 2 * i;
		new[i] = 2 * i + 1;
	}
	name(hashes, tokens);
	compute(tensors, old, 7);
	if (offload(e, d, tensors, old, hashes))
		return -1;
	compute(tensors, old, 99); /* now they are another's */
	n = recall(e, d, tensors, new, hashes);
	if (n < 0)
		return -1;
	kvs_device_peek(d, &last,
			(char *)tensors[3] + new[PAGES - 1] * ITEM_LEN, 1);
	printf("recalled: %d pages, last byte %d\n", n, last);
	return n != PAGES || last != 7 + PAGES - 1;
}

int main(int argc, char **argv)
{
	struct kvs_engine_opts o = { .size = sizeof(o),
				     .name = "example",
				     .layout = &layout,
				     .node = -1,
				     .cache_space = "example model" };
	struct kvs_engine *e = NULL;
	struct kvs_device *d = NULL;
	void *tensors[BUFFERS];
	char err[256];
	int r;

	if (argc != 2) {
		fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
		return 2;
	}
	o.socket = argv[1];
	if (open_device(&d, tensors))
		return 1;
	r = kvs_engine_attach(&o, &e, err, sizeof(err));
	if (r)
		fprintf(stderr, "attach: %s\n", err);
	else
		r = two_turns(e, d, tensors);
	kvs_engine_detach(e);
	kvs_device_close(d); /* after the engine; frees its memory too */
	return r ? 1 : 0;
}
