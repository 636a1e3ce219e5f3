/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between the engine and a daemon in the place of their socket and
 * memfds: two queues, and words that both can see. It never fails. */
#include <errno.h>
#include <stdlib.h>

#include "tools/packets.h"
#include "tools/ttft/ttft_world.h"

/* An address for the daemon's pool in the engine; nothing is there. */
#define PHANTOM_POOL ((void *)((uintptr_t)1 << 56))

static int eng_send(struct kvs_engine *e, const void *p, size_t len)
{
	struct ttft_daemon *m = e->port_arg;

	if (m->closed || m->shut)
		return -EPIPE;
	return kvs_packets_put(&m->to_daemon, p, len, 0);
}

static ssize_t eng_receive(struct kvs_engine *e, bool *ret_cut)
{
	struct ttft_daemon *m = e->port_arg;
	size_t len = kvs_packets_take(&m->to_engine, &e->buf);

	*ret_cut = false;
	if (!len)
		return m->closed ? 0 : -EAGAIN;
	return (ssize_t)len;
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
	return kvs_packets_put(&m->to_engine, p, len, 0);
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
	kvs_packets_deliver(&m->to_daemon, m->fe);
}

void ttft_port_free(struct ttft_daemon *m)
{
	kvs_packets_free(&m->to_daemon);
	kvs_packets_free(&m->to_engine);
	free(m->words);
	m->words = NULL;
}
