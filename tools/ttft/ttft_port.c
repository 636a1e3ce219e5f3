/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between the engine and a daemon in the place of their socket and
 * memfds: two queues, and words that both can see. It never fails. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ttft/ttft_world.h"

/* An address for the daemon's pool in the engine; nothing is there. */
#define PHANTOM_POOL ((void *)((uintptr_t)1 << 56))

struct ttft_packet {
	struct kvs_list node;
	size_t len;
	_Alignas(8) unsigned char b[];
};

static int queue(struct kvs_list *to, const void *p, size_t len)
{
	struct ttft_packet *k = malloc(sizeof(*k) + len);

	if (!k)
		return -ENOMEM;
	k->len = len;
	memcpy(k->b, p, len);
	kvs_list_add_tail(to, &k->node);
	return 0;
}

static int eng_send(struct kvs_engine *e, const void *p, size_t len)
{
	struct ttft_daemon *m = e->port_arg;

	if (m->closed || m->shut)
		return -EPIPE;
	return queue(&m->to_daemon, p, len);
}

static ssize_t eng_receive(struct kvs_engine *e, bool *ret_cut)
{
	struct ttft_daemon *m = e->port_arg;
	struct ttft_packet *k;
	ssize_t len;

	*ret_cut = false;
	if (kvs_list_empty(&m->to_engine))
		return m->closed ? 0 : -EAGAIN;
	k = kvs_list_first(&m->to_engine, struct ttft_packet, node);
	kvs_list_del(&k->node);
	len = (ssize_t)k->len;
	memcpy(&e->buf, k->b, k->len);
	free(k);
	return len;
}

static void eng_shut(struct kvs_engine *e)
{
	struct ttft_daemon *m = e->port_arg;

	m->shut = true;
}

static int eng_map(struct kvs_engine *e, const struct kvs_packet_attached *p,
		   char *err, size_t errlen)
{
	struct ttft_daemon *m = e->port_arg;

	(void)err;
	(void)errlen;
	e->words = m->words;
	e->n_slots = p->n_slots;
	e->pools[0].base = PHANTOM_POOL;
	e->pools[0].size = p->pools[0].size;
	e->n_pools = 1;
	return 0;
}

static void eng_free(struct kvs_engine *e)
{
	e->words = NULL;
}

const struct kvs_eng_port ttft_eng_port = {
	.send = eng_send,
	.receive = eng_receive,
	.shut = eng_shut,
	.map = eng_map,
	.free = eng_free,
};

static int front_send(struct kvs_front_engine *e, const void *p, size_t len)
{
	struct ttft_daemon *m = e->port_arg;

	if (m->shut)
		return -EPIPE;
	m->w->engine_turn = true;
	return queue(&m->to_engine, p, len);
}

static void front_want(struct kvs_front_engine *e, bool on)
{
	(void)e;
	(void)on;
}

static void front_close(struct kvs_front_engine *e)
{
	struct ttft_daemon *m = e->port_arg;

	m->closed = true;
}

static void front_free(struct kvs_front_engine *e)
{
	struct ttft_daemon *m = e->port_arg;

	m->fe = NULL;
}

static int front_identify(struct kvs_front_engine *e)
{
	(void)e;
	return 0;
}

static int front_pages(struct kvs_front_engine *e)
{
	struct ttft_daemon *m = e->port_arg;

	m->words = calloc(e->n_slots, sizeof(*m->words));
	e->words = m->words;
	return m->words ? 0 : -ENOMEM;
}

static int front_answer(struct kvs_front_engine *e,
			const struct kvs_packet_attached *p,
			const struct kvs_region *const *pools)
{
	(void)pools;
	return front_send(e, p, sizeof(*p));
}

static int front_watch_exit(struct kvs_front_engine *e)
{
	(void)e;
	return 0;
}

const struct kvs_front_port ttft_front_port = {
	.send = front_send,
	.want = front_want,
	.close = front_close,
	.free = front_free,
	.identify = front_identify,
	.pages = front_pages,
	.answer = front_answer,
	.watch_exit = front_watch_exit,
};

bool ttft_port_due(const struct ttft_daemon *m)
{
	return m->fe && m->fe->open && !kvs_list_empty(&m->to_daemon);
}

void ttft_port_deliver(struct ttft_daemon *m)
{
	struct ttft_packet *k =
		kvs_list_first(&m->to_daemon, struct ttft_packet, node);

	kvs_list_del(&k->node);
	kvs_front_engine_receive(m->fe, k->b, k->len, false);
	free(k);
}

void ttft_port_free(struct ttft_daemon *m)
{
	struct kvs_list *const q[] = { &m->to_daemon, &m->to_engine };

	for (size_t i = 0; i < sizeof(q) / sizeof(q[0]); i++) {
		while (!kvs_list_empty(q[i])) {
			struct ttft_packet *k =
				kvs_list_first(q[i], struct ttft_packet, node);

			kvs_list_del(&k->node);
			free(k);
		}
	}
	free(m->words);
	m->words = NULL;
}
