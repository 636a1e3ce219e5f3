/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the machine, for numa_inside.py: an engine that sits next to a PCI
 * device or asks for a node, admits one room, prints "admitted" once memory
 * is reserved for it, and leaves at the end of its stdin.
 *
 *   engine_at SOCKET NODE [PCI]
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kvstage/engine.h"

#define ITEM_LEN 65536u
#define SECONDS 60

static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_K, 0, ITEM_LEN, 0 },
	{ KVS_BUFFER_V, 0, ITEM_LEN, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = 16,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 2,
	.buffers = buffers,
};

static int admit(struct kvs_engine *e)
{
	static const struct kvs_rank_slice ranks[] = { { 0, 1 } };
	struct kvs_admit a = {
		.size = sizeof(a),
		.room = 1,
		.peer = "prefill",
		.tokens = 100,
		.n_ranks = 1,
		.ranks = ranks,
		.node = -1,
	};
	struct pollfd p = { .fd = kvs_engine_fd(e), .events = POLLIN };
	enum kvs_status st;
	kvs_handle h;
	int i, err = 0;

	if (kvs_engine_admit(e, &a, &h))
		return -1;
	for (i = 0; i < SECONDS * 100; i++) {
		kvs_engine_progress(e);
		st = kvs_engine_poll(e, &h, &err);
		if (st == KVS_STATUS_FAILED)
			break;
		if (st >= KVS_STATUS_ADMITTED)
			return 0;
		poll(&p, 1, 10);
	}
	fprintf(stderr, "engine_at: not admitted: %d\n", err);
	return -1;
}

int main(int argc, char **argv)
{
	struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = argc > 1 ? argv[1] : NULL,
		.name = "engine_at",
		.layout = &layout,
		.pci = argc > 3 ? argv[3] : NULL,
	};
	struct kvs_engine *e;
	char err[256], byte;

	if (argc < 3)
		return 2;
	o.node = (int)strtol(argv[2], NULL, 10);
	if (kvs_engine_attach(&o, &e, err, sizeof(err))) {
		fprintf(stderr, "engine_at: %s\n", err);
		return 1;
	}
	if (admit(e)) {
		kvs_engine_detach(e);
		return 1;
	}
	puts("admitted");
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	kvs_engine_detach(e);
	return 0;
}
