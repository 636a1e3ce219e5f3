/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A full device: a running request is moved to host memory, another one uses
 * its pages, and it comes back to other pages as it was. Run kvstaged with an
 * offload pool (--pool-offload-size 64M), then this:
 *
 *   kvstage-example-retract /run/kvstage/kvstaged.sock
 *
 * Exit 0 when it came back, 1 when it did not, 2 usage.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <kvstage/cache.h>
#include <kvstage/device.h>

#define PAGE_SIZE 16
#define PAGES 20 /* of a request */
#define DEVICE_PAGES 40
#define ITEM_LEN 1024 /* bytes of one page in one layer buffer */

/* The KV pool of a one-layer model: keys, then values. */
static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_K, 0, ITEM_LEN, 0 },
	{ KVS_BUFFER_V, 0, ITEM_LEN, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = PAGE_SIZE,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 2,
	.buffers = buffers,
	.capacity = DEVICE_PAGES * PAGE_SIZE,
	.max_context = PAGES * PAGE_SIZE,
};

static int open_device(struct kvs_device **ret, void *tensors[2])
{
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "soft" };
	char err[128];
	int i, r;

	r = kvs_device_open(&o, ret, err, sizeof(err));
	if (r) {
		fprintf(stderr, "device: %s\n", err);
		return r;
	}
	for (i = 0; i < 2 && !r; i++)
		r = kvs_device_alloc(*ret, DEVICE_PAGES * ITEM_LEN,
				     &tensors[i]);
	return r;
}

/* What the model's kernels do; the soft device's memory is ordinary. */
static void compute(void *tensors[2], const uint32_t *pages, int value)
{
	uint32_t i;

	for (i = 0; i < PAGES; i++) {
		memset((char *)tensors[0] + pages[i] * ITEM_LEN, value,
		       ITEM_LEN);
		memset((char *)tensors[1] + pages[i] * ITEM_LEN, value + 1,
		       ITEM_LEN);
	}
}

/* A scheduler would do this for all its requests once a turn, and let others
 * decode meanwhile. */
static enum kvs_status wait_until(struct kvs_engine *e, kvs_handle *h,
				  enum kvs_status want)
{
	struct pollfd p = { .fd = kvs_engine_fd(e), .events = POLLIN };
	enum kvs_status st;

	for (;;) {
		kvs_engine_progress(e);
		st = kvs_engine_poll(e, h, NULL);
		if ((st == KVS_STATUS_FAILED || st >= want) &&
		    !kvs_engine_copy_live(e, h))
			return st;
		poll(&p, 1, 1);
	}
}

static int there_and_back(struct kvs_engine *e, struct kvs_device *d,
			  void *tensors[2])
{
	uint32_t old[PAGES], new[PAGES], i;
	struct kvs_retract out = { .size = sizeof(out),
				   .id = 1,
				   .tokens = PAGES * PAGE_SIZE,
				   .node = -1,
				   .device = d,
				   .buffers = tensors,
				   .pages = old,
				   .n_pages = PAGES };
	struct kvs_commit back = { .size = sizeof(back),
				   .device = d,
				   .buffers = tensors,
				   .pages = new,
				   .n_pages = PAGES };
	struct kvs_failure why;
	unsigned char first;
	kvs_handle h;

	for (i = 0; i < PAGES; i++) {
		old[i] = 2 * i;
		new[i] = 2 * i + 1;
	}
	compute(tensors, old, 7);
	if (kvs_retract(e, &out, &h))
		return -1;
	if (wait_until(e, &h, KVS_STATUS_READY) == KVS_STATUS_READY) {
		compute(tensors, old, 99); /* now they are another's */
		if (!kvs_resume(e, &h, &back) &&
		    wait_until(e, &h, KVS_STATUS_DONE) == KVS_STATUS_DONE) {
			kvs_device_peek(d, &first,
					(char *)tensors[0] + new[0] * ITEM_LEN,
					1);
			printf("back on %d other pages, first byte %d\n", PAGES,
			       first);
			return kvs_engine_release(e, &h) || first != 7;
		}
	}
	if (!kvs_engine_failure(e, &h, &why))
		fprintf(stderr, "%s\n", why.text);
	return -1;
}

int main(int argc, char **argv)
{
	struct kvs_engine_opts o = { .size = sizeof(o),
				     .name = "example",
				     .layout = &layout,
				     .node = -1 };
	struct kvs_engine *e = NULL;
	struct kvs_device *d = NULL;
	void *tensors[2];
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
		r = there_and_back(e, d, tensors);
	kvs_engine_detach(e);
	kvs_device_close(d); /* after the engine; frees its memory too */
	return r ? 1 : 0;
}
