/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least a decode engine does: attach, admit one room, wait for it, commit
 * it to device pages of its choice, use it. Run kvstaged, then this, then the
 * sender of sender.c:
 *
 *   kvstage-example-engine /run/kvstage/kvstaged.sock 7
 *
 * Exit 0 when the room reached the device, 1 when it did not, 2 usage.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvstage/device.h>
#include <kvstage/engine.h>

#define TOKENS 100
#define PAGE_SIZE 16
#define PAGES ((TOKENS + PAGE_SIZE - 1) / PAGE_SIZE)
#define DEVICE_PAGES 64
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

/* A scheduler would do this for all its rooms once a turn. */
static enum kvs_status wait_until(struct kvs_engine *e, kvs_handle *h,
				  enum kvs_status want)
{
	struct pollfd p = { .fd = kvs_engine_fd(e), .events = POLLIN };
	enum kvs_status st;

	for (;;) {
		kvs_engine_progress(e);
		st = kvs_engine_poll(e, h, NULL);
		if (st == KVS_STATUS_FAILED || st >= want)
			return st;
		poll(&p, 1, 1);
	}
}

/* The first decode step runs layer by layer behind the copy; what it gives is
 * of use once the room is DONE. */
static enum kvs_status decode_early(struct kvs_engine *e, kvs_handle *h)
{
	enum kvs_status st;
	int there, next = 0;

	do {
		kvs_engine_progress(e);
		st = kvs_engine_poll(e, h, NULL);
		there = kvs_engine_copied_layers(e, h);
		for (; next < there; next++)
			printf("layer %d is there\n", next);
	} while (st == KVS_STATUS_COMMITTING);
	return st;
}

static int receive(struct kvs_engine *e, struct kvs_device *d, void **tensors,
		   uint64_t room)
{
	static const struct kvs_rank_slice ranks[] = { { 0, 1 } };
	struct kvs_admit a = { .size = sizeof(a),
			       .room = room,
			       .peer = "example",
			       .tokens = TOKENS,
			       .n_ranks = 1,
			       .ranks = ranks,
			       .node = -1 };
	uint32_t pages[PAGES];
	struct kvs_commit c = { .size = sizeof(c),
				.device = d,
				.buffers = tensors,
				.pages = pages,
				.n_pages = PAGES };
	struct kvs_failure why;
	unsigned char first;
	kvs_handle h;
	uint32_t i;

	for (i = 0; i < PAGES; i++) /* any free pages will do */
		pages[i] = DEVICE_PAGES - 1 - 2 * i;
	if (kvs_engine_admit(e, &a, &h))
		return -1;
	if (wait_until(e, &h, KVS_STATUS_READY) == KVS_STATUS_READY &&
	    !kvs_engine_commit(e, &h, &c) &&
	    decode_early(e, &h) == KVS_STATUS_DONE) {
		kvs_device_peek(d, &first,
				(char *)tensors[0] + pages[0] * ITEM_LEN, 1);
		printf("room %llu: %d pages, first byte %d\n",
		       (unsigned long long)room, PAGES, first);
		return kvs_engine_release(e, &h);
	}
	if (!kvs_engine_failure(e, &h, &why))
		fprintf(stderr, "room %llu: %s (class %u)\n",
			(unsigned long long)room, why.text, why.http_class);
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
	unsigned long long room;
	char err[256], *end;
	int r;

	if (argc != 3) {
		fprintf(stderr, "usage: %s SOCKET ROOM\n", argv[0]);
		return 2;
	}
	room = strtoull(argv[2], &end, 10);
	if (!room || *end || *argv[2] == '-') {
		fprintf(stderr, "%s: %s is not a room id, a number from 1\n",
			argv[0], argv[2]);
		return 2;
	}
	o.socket = argv[1];
	if (open_device(&d, tensors))
		return 1;
	r = kvs_engine_attach(&o, &e, err, sizeof(err));
	if (r)
		fprintf(stderr, "attach: %s\n", err);
	else
		r = receive(e, d, tensors, room);
	kvs_engine_detach(e);
	kvs_device_close(d); /* after the engine; frees its memory too */
	return r ? 1 : 0;
}
