/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least a prefill rank does: connect, open one room, queue its pages,
 * wait until the daemon has them. See engine.c for the other end:
 *
 *   kvstage-example-sender 127.0.0.1:7410 7
 *
 * Exit 0 when the daemon has every byte, 1 when not, 2 usage.
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvstage/sender.h>

#define TOKENS 100
#define PAGE_SIZE 16
#define PAGES ((TOKENS + PAGE_SIZE - 1) / PAGE_SIZE)
#define ITEM_LEN 1024

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
};

static sem_t over;
static int result;

/* Callbacks come from the sender's own thread and must not block. */
static void granted(struct kvs_send_room *r, uint64_t generation)
{
	printf("room %llu: granted as generation %llu\n",
	       (unsigned long long)kvs_send_room_id(r),
	       (unsigned long long)generation);
}

static void pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	(void)r;
	(void)cookie; /* the source pages of this call may be used again */
	if (status)
		fprintf(stderr, "pages not sent: %s\n", strerror(-status));
}

static void done(struct kvs_send_room *r, int status, const char *text)
{
	if (status)
		fprintf(stderr, "room %llu: %s\n",
			(unsigned long long)kvs_send_room_id(r), text);
	result = status;
	sem_post(&over);
}

static const struct kvs_send_ops ops = {
	.granted = granted,
	.pages_free = pages_free,
	.done = done,
};

static int send_room(struct kvs_sender *s, uint64_t room)
{
	struct kvs_send_room *r;
	uint32_t pages[PAGES];
	uint32_t i;
	int ret;

	ret = kvs_send_open(s, room, NULL, TOKENS, NULL, &r);
	if (ret)
		return ret;
	/* Prefill would compute, and queue each piece when it is ready. */
	for (i = 0; i < PAGES; i++)
		pages[i] = i;
	ret = kvs_send_pages(r, 0, pages, PAGES, NULL);
	if (!ret)
		ret = kvs_send_finish(r);
	if (ret)
		kvs_send_abort(r, -ret, "cannot queue pages");
	sem_wait(&over);
	kvs_send_close(r);
	return result;
}

int main(int argc, char **argv)
{
	static unsigned char kv[2][PAGES * ITEM_LEN];
	void *bases[2] = { kv[0], kv[1] };
	struct kvs_sender_opts o = { .size = sizeof(o),
				     .peer = "example",
				     .n_ranks = 1,
				     .layout = &layout,
				     .buffers = bases,
				     .ops = &ops };
	struct kvs_sender *s;
	unsigned long long room;
	char err[256], *end;
	int r;

	if (argc != 3) {
		fprintf(stderr, "usage: %s HOST:PORT ROOM\n", argv[0]);
		return 2;
	}
	room = strtoull(argv[2], &end, 10);
	if (!room || *end || *argv[2] == '-') {
		fprintf(stderr, "%s: %s is not a room id, a number from 1\n",
			argv[0], argv[2]);
		return 2;
	}
	o.daemon = argv[1];
	memset(kv, 42, sizeof(kv));
	sem_init(&over, 0, 0);
	r = kvs_sender_create(&o, &s, err, sizeof(err));
	if (r) {
		fprintf(stderr, "connect: %s\n", err);
		return 1;
	}
	r = send_room(s, room);
	kvs_sender_destroy(s);
	return r ? 1 : 0;
}
