/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims for the in-process fabric: the same seed gives the same trace of
 * events, another seed another interleaving, and in each every connection
 * keeps its order and every byte is right; stall and release, reset, kill,
 * stop_payload, detach and adopt, and refusal behave as over TCP; times of
 * arrival follow latency and rate on the virtual clock; nothing sleeps.
 */
/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rng.h"
#include "rdma/loop.h"

enum { MAX_CONNS = 16, LEN = 10000, WRITES = 8 };

struct net;

struct end {
	struct net *net;
	int id; /* in the trace */
	struct kvs_conn *c;
	unsigned char *mem;
	int opened;
	int frames;
	uint16_t last_type;
	int payloads;
	int done;
	int status;
	uint64_t got;
	bool in_rx;
	int closed;
	int err;
	int (*on_frame)(struct end *e, const struct kvs_frame *f);
};

struct write {
	struct kvs_tx tx;
	struct iovec iov[2];
	struct net *net;
	int done;
	int status;
};

struct net {
	struct kvs_vclock clk;
	struct kvs_fabric *f;
	struct kvs_transport *a; /* connects, sends */
	struct kvs_transport *b; /* listens, receives */
	struct kvs_listener *l;
	struct end ea[MAX_CONNS];
	struct end eb[MAX_CONNS];
	int n_accepted;
	int refuse;
	uint64_t trace; /* hash of every callback, its time and arguments */
	uint64_t order; /* hash of the order of connections only */
};

static void trace(struct net *n, int id, int what, uint64_t arg)
{
	n->trace = kvs_mix64(n->trace ^ kvs_clock_now(&n->clk.clk)) +
		   kvs_mix64((uint64_t)id * 1000003 + (uint64_t)what) +
		   kvs_mix64(arg + 17);
	n->order = kvs_mix64(n->order) + (uint64_t)id;
}

static struct end *end_of(struct kvs_conn *c)
{
	return kvs_conn_user(c);
}

static void on_opened(struct kvs_conn *c)
{
	struct end *e = end_of(c);

	e->opened++;
	trace(e->net, e->id, 1, 0);
}

static int on_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct end *e = end_of(c);

	assert_int_equal(e->closed, 0);
	e->frames++;
	e->last_type = kvs_get16(f->type);
	trace(e->net, e->id, 2, e->last_type);
	return e->on_frame ? e->on_frame(e, f) : 0;
}

static int on_payload(struct kvs_conn *c, const struct kvs_frame *f,
		      struct kvs_rx *rx)
{
	struct end *e = end_of(c);

	assert_false(e->in_rx);
	e->in_rx = true;
	e->payloads++;
	rx->addr = e->mem ? e->mem + (size_t)kvs_get16(f->type) * LEN : NULL;
	trace(e->net, e->id, 3, rx->len);
	return 0;
}

static int on_payload_done(struct kvs_conn *c, struct kvs_rx *rx, int status)
{
	struct end *e = end_of(c);

	assert_true(e->in_rx);
	e->in_rx = false;
	e->done++;
	e->status = status;
	e->got = rx->got;
	trace(e->net, e->id, 4, rx->got * 7 + (uint64_t)-status);
	return 0;
}

static void on_closed(struct kvs_conn *c, int err)
{
	struct end *e = end_of(c);

	assert_false(e->in_rx);
	e->closed++;
	e->err = err;
	e->c = NULL;
	trace(e->net, e->id, 5, (uint64_t)-err);
}

static const struct kvs_conn_ops ops = {
	.opened = on_opened,
	.frame = on_frame,
	.payload = on_payload,
	.payload_done = on_payload_done,
	.closed = on_closed,
};

static int accepted(struct kvs_conn *c, void *arg)
{
	struct net *n = arg;
	struct end *e = &n->eb[n->n_accepted];

	if (n->refuse)
		return n->refuse;
	e->net = n;
	e->id = 100 + n->n_accepted++;
	e->c = c;
	e->mem = calloc(WRITES, LEN);
	kvs_conn_set_ops(c, KVS_CONN_DATA, &ops, e);
	return 0;
}

static struct net *net_new(uint64_t seed, const struct kvs_loop_plan *plan)
{
	struct kvs_fabric_opts o = { .seed = seed };
	struct net *n = calloc(1, sizeof(*n));

	kvs_vclock_init(&n->clk, 1000);
	o.clock = &n->clk.clk;
	if (plan)
		o.plan = *plan;
	assert_int_equal(kvs_fabric_create(&o, &n->f), 0);
	assert_int_equal(kvs_loop_create(n->f, "a", &n->a), 0);
	assert_int_equal(kvs_loop_create(n->f, "b", &n->b), 0);
	assert_int_equal(kvs_loop_create(n->f, "b", &n->b), -EEXIST);
	assert_int_equal(kvs_loop_listen(n->b, accepted, n, &n->l), 0);
	return n;
}

static void net_free(struct net *n)
{
	int i;

	kvs_transport_destroy(n->a);
	kvs_transport_destroy(n->b);
	kvs_fabric_destroy(n->f);
	for (i = 0; i < n->n_accepted; i++)
		free(n->eb[i].mem);
	free(n);
}

static void dial(struct net *n, int i)
{
	n->ea[i].net = n;
	n->ea[i].id = i;
	assert_int_equal(kvs_loop_connect(n->a, "b", KVS_CONN_DATA, &ops,
					  &n->ea[i], &n->ea[i].c),
			 0);
}

/* Run until nothing is due any more, moving the clock to each event. */
static void run(struct net *n)
{
	int rounds = 0;

	for (;;) {
		uint64_t next = kvs_fabric_next(n->f);
		uint64_t now = kvs_clock_now(&n->clk.clk);

		if (next == KVS_TIME_NEVER)
			return;
		assert_true(++rounds < 1000000);
		if (next > now)
			kvs_vclock_advance(&n->clk, next - now);
		assert_true(kvs_transport_poll(n->a, KVS_TIME_NEVER) >= 0);
		assert_true(kvs_transport_poll(n->b, KVS_TIME_NEVER) >= 0);
	}
}

static void tx_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct write *w = tx->user;

	(void)c;
	w->done++;
	w->status = status;
	trace(w->net, 50, 6, (uint64_t)-status);
}

static struct write *write_new(struct net *n, unsigned int slot, uint64_t seed)
{
	struct write *w = calloc(1, sizeof(*w) + LEN);
	unsigned char *src = (unsigned char *)(w + 1);
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16((uint16_t)slot),
		.len = kvs_put32(KVS_DATA_FRAME),
		.payload = kvs_put32(LEN),
	};
	size_t i;

	for (i = 0; i < LEN; i++)
		src[i] = (unsigned char)kvs_mix64(seed * 131071 + i);
	memcpy(w->tx.frame, &f, sizeof(f));
	w->iov[0].iov_base = src;
	w->iov[0].iov_len = 1234;
	w->iov[1].iov_base = src + 1234;
	w->iov[1].iov_len = LEN - 1234;
	w->tx.iov = w->iov;
	w->tx.n_iov = 2;
	w->tx.done = tx_done;
	w->tx.user = w;
	w->net = n;
	return w;
}

static struct kvs_frame small_frame(uint16_t type)
{
	return (struct kvs_frame){
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(type),
		.len = kvs_put32(sizeof(struct kvs_frame)),
	};
}

/* Eight connections, eight payloads each, frames between. */
static void scenario(uint64_t seed, uint64_t *ret_trace, uint64_t *ret_order)
{
	static const struct kvs_loop_plan plan = {
		.latency_min = 1000,
		.latency_max = 50000,
		.bytes_per_sec = 1000000000,
		.split_max = 3000,
	};
	struct net *n = net_new(seed, &plan);
	struct write *w[8][WRITES];
	struct kvs_frame f;
	unsigned int k;
	int i;

	for (i = 0; i < 8; i++)
		dial(n, i);
	run(n);
	assert_int_equal(n->n_accepted, 8);
	for (k = 0; k < WRITES; k++) {
		for (i = 0; i < 8; i++) {
			w[i][k] = write_new(n, k, (uint64_t)i * 100 + k);
			assert_int_equal(
				kvs_conn_write(n->ea[i].c, &w[i][k]->tx), 0);
			f = small_frame((uint16_t)k);
			assert_int_equal(kvs_conn_send(n->ea[i].c, &f), 0);
			assert_int_equal(kvs_conn_send(n->eb[i].c, &f), 0);
		}
	}
	run(n);
	for (i = 0; i < 8; i++) {
		assert_int_equal(n->eb[i].done, WRITES);
		assert_int_equal(n->eb[i].frames, WRITES);
		assert_int_equal(n->eb[i].last_type, WRITES - 1);
		assert_int_equal(n->ea[i].frames, WRITES);
		assert_int_equal(n->ea[i].opened, 1);
	}
	/* accepted in another order, perhaps: compare as sets of content */
	for (i = 0; i < 8; i++) {
		const void *sent = w[i][0] + 1; /* the bytes behind it */
		int j;

		for (j = 0; j < 8; j++)
			if (!memcmp(n->eb[j].mem, sent, LEN))
				break;
		assert_true(j < 8);
		for (k = 0; k < WRITES; k++) {
			assert_memory_equal(n->eb[j].mem + (size_t)k * LEN,
					    w[i][k] + 1, LEN);
			assert_int_equal(w[i][k]->done, 1);
			assert_int_equal(w[i][k]->status, 0);
			free(w[i][k]);
		}
	}
	*ret_trace = n->trace;
	*ret_order = n->order;
	net_free(n);
}

static void determinism(void **state)
{
	uint64_t t1, t2, t3, o1, o2, o3;

	(void)state;
	scenario(1, &t1, &o1);
	scenario(1, &t2, &o2);
	scenario(2, &t3, &o3);
	assert_int_equal(t1, t2);
	assert_int_equal(o1, o2);
	assert_true(t1 != t3);
	assert_true(o1 != o3);
}

/* Without any latency the seed still interleaves connections. */
static uint64_t instant(uint64_t seed)
{
	struct net *n = net_new(seed, NULL);
	struct kvs_frame f;
	uint64_t order;
	int i;
	int k;

	for (i = 0; i < 8; i++)
		dial(n, i);
	run(n);
	n->order = 0;
	for (i = 0; i < 8; i++) {
		for (k = 0; k < 5; k++) {
			f = small_frame((uint16_t)k);
			assert_int_equal(kvs_conn_send(n->ea[i].c, &f), 0);
		}
	}
	run(n);
	for (i = 0; i < 8; i++) {
		assert_int_equal(n->eb[i].frames, 5);
		assert_int_equal(n->eb[i].last_type, 4);
	}
	assert_int_equal(kvs_clock_now(&n->clk.clk), 1000); /* no time passed */
	order = n->order;
	net_free(n);
	return order;
}

static void interleaving(void **state)
{
	(void)state;
	assert_int_equal(instant(5), instant(5));
	assert_true(instant(5) != instant(6));
}

static void rate_and_latency(void **state)
{
	static const struct kvs_loop_plan plan = {
		.latency_min = 5000,
		.latency_max = 5000,
		.bytes_per_sec = 1000000, /* 10 ms for LEN bytes */
		.split_max = 1000,
	};
	struct net *n = net_new(1, &plan);
	struct write *w[2];
	uint64_t t0;

	(void)state;
	dial(n, 0);
	run(n);
	t0 = kvs_clock_now(&n->clk.clk);
	w[0] = write_new(n, 0, 1);
	w[1] = write_new(n, 1, 2);
	kvs_conn_write(n->ea[0].c, &w[0]->tx);
	kvs_conn_write(n->ea[0].c, &w[1]->tx);
	run(n);
	/* one latency, then the line is busy with both */
	assert_int_equal(kvs_clock_now(&n->clk.clk) - t0, 5000 + 20000000);
	free(w[0]);
	free(w[1]);
	net_free(n);
}

static void stall_and_release(void **state)
{
	static const struct kvs_loop_plan plan = { .stall = 1 };
	struct net *n = net_new(1, &plan);
	struct write *w;
	struct kvs_frame f = small_frame(9);

	(void)state;
	dial(n, 0);
	run(n);
	w = write_new(n, 2, 5);
	kvs_conn_write(n->ea[0].c, &w->tx);
	kvs_conn_send(n->ea[0].c, &f); /* behind it */
	run(n);
	assert_int_equal(n->eb[0].payloads, 1);
	assert_int_equal(n->eb[0].done, 0);
	assert_int_equal(n->eb[0].frames, 0);
	assert_memory_equal(n->eb[0].mem + 2 * LEN, w + 1, LEN / 2);
	assert_int_equal(n->eb[0].mem[2 * LEN + LEN - 1], 0);
	assert_int_equal(w->done, 0);
	assert_int_equal(kvs_fabric_release(n->f), 1);
	assert_int_equal(kvs_fabric_release(n->f), 0);
	run(n);
	assert_int_equal(n->eb[0].done, 1);
	assert_int_equal(n->eb[0].status, 0);
	assert_int_equal(n->eb[0].frames, 1);
	assert_int_equal(w->done, 1);
	assert_memory_equal(n->eb[0].mem + 2 * LEN, w + 1, LEN);
	free(w);
	net_free(n);
}

static void stop_stalled(void **state)
{
	static const struct kvs_loop_plan plan = { .stall = 1 };
	struct net *n = net_new(1, &plan);
	struct kvs_transport_stats st;
	struct write *w[2];

	(void)state;
	dial(n, 0);
	run(n);
	w[0] = write_new(n, 0, 5);
	w[1] = write_new(n, 1, 6);
	kvs_conn_write(n->ea[0].c, &w[0]->tx);
	kvs_conn_write(n->ea[0].c, &w[1]->tx);
	run(n);
	kvs_conn_stop_payload(n->eb[0].c);
	assert_int_equal(n->eb[0].done,
			 1); /* from inside: nothing in a kernel */
	assert_int_equal(n->eb[0].status, -ECANCELED);
	assert_int_equal(n->eb[0].got, LEN / 2);
	memset(n->eb[0].mem, 0xee, LEN);
	while (kvs_fabric_release(n->f))
		run(n);
	assert_int_equal(n->eb[0].done, 2);
	assert_int_equal(n->eb[0].status, 0);
	assert_int_equal(n->eb[0].mem[LEN - 1], 0xee);
	assert_memory_equal(n->eb[0].mem + LEN, w[1] + 1, LEN);
	kvs_transport_stats(n->b, &st);
	assert_int_equal(st.rx_dropped, LEN - LEN / 2);
	assert_int_equal(w[0]->status, 0);
	free(w[0]);
	free(w[1]);
	net_free(n);
}

/* Everything that was owed is paid, once, whatever dies. */
static void resets(void **state)
{
	struct kvs_loop_plan plan = { .split_max = 500, .reset = 0.05 };
	unsigned int died = 0;
	unsigned int lived = 0;
	uint64_t seed;

	(void)state;
	for (seed = 0; seed < 200; seed++) {
		struct net *n = net_new(seed, &plan);
		struct write *w[4] = { 0 };
		int i;

		for (i = 0; i < 4; i++)
			dial(n, i);
		run(n);
		for (i = 0; i < 4; i++) {
			w[i] = write_new(n, 0, 1);
			if (!n->ea[i].c ||
			    kvs_conn_write(n->ea[i].c, &w[i]->tx)) {
				free(w[i]);
				w[i] = NULL;
			}
		}
		run(n);
		for (i = 0; i < 4; i++) {
			if (n->ea[i].closed) {
				died++;
				assert_int_equal(n->ea[i].closed, 1);
				assert_int_equal(n->ea[i].err, -ECONNRESET);
			}
			if (!w[i])
				continue;
			assert_int_equal(w[i]->done, 1);
			if (!w[i]->status)
				lived++;
			/* the sender's memory is its own again */
			memset(w[i] + 1, 0, LEN);
			free(w[i]);
		}
		for (i = 0; i < n->n_accepted; i++) {
			assert_true(n->eb[i].closed <= 1);
			assert_int_equal(n->eb[i].payloads, n->eb[i].done);
		}
		run(n);
		net_free(n);
	}
	assert_true(died > 50 && lived > 50);
}

static void kill_one(void **state)
{
	static const struct kvs_loop_plan plan = { .split_max = 100,
						   .stall = 1 };
	struct net *n = net_new(3, &plan);
	struct kvs_transport *again;
	struct write *w;

	(void)state;
	dial(n, 0);
	dial(n, 1);
	run(n);
	w = write_new(n, 0, 1);
	kvs_conn_write(n->ea[0].c, &w->tx);
	run(n);
	assert_true(n->eb[0].in_rx || n->eb[1].in_rx);
	kvs_fabric_kill(n->a);
	run(n);
	/* the survivor sees both die; the dead see nothing */
	assert_int_equal(n->eb[0].closed + n->eb[1].closed, 2);
	assert_int_equal(n->eb[0].err, -ECONNRESET);
	assert_int_equal(n->eb[0].done + n->eb[1].done, 1);
	assert_int_equal(n->ea[0].closed, 0);
	assert_int_equal(w->done, 0);
	assert_int_equal(kvs_transport_poll(n->a, 0), 0);
	/* a new process under the old name */
	assert_int_equal(kvs_loop_create(n->f, "a", &again), 0);
	kvs_transport_destroy(again);
	kvs_transport_destroy(n->a);
	assert_int_equal(n->ea[0].closed, 1);
	assert_int_equal(w->done, 1);
	assert_true(w->status < 0);
	assert_int_equal(kvs_loop_create(n->f, "a", &n->a), 0);
	free(w);
	net_free(n);
}

static void refusals(void **state)
{
	struct net *n = net_new(1, NULL);
	struct kvs_conn *c;
	struct end e = { .net = n };

	(void)state;
	assert_int_equal(kvs_loop_connect(n->a, "nobody", KVS_CONN_CONTROL,
					  &ops, &e, &c),
			 0);
	assert_int_equal(e.closed, 0);
	run(n);
	assert_int_equal(e.closed, 1);
	assert_int_equal(e.err, -ECONNREFUSED);
	n->refuse = -EACCES;
	dial(n, 0);
	run(n);
	assert_int_equal(n->ea[0].err, -ECONNREFUSED);
	n->refuse = 0;
	kvs_listener_close(n->l);
	dial(n, 1);
	run(n);
	assert_int_equal(n->ea[1].err, -ECONNREFUSED);
	net_free(n);
}

static void orderly_close(void **state)
{
	static const struct kvs_loop_plan plan = { .latency_min = 1000,
						   .latency_max = 1000 };
	struct net *n = net_new(1, &plan);
	struct kvs_frame f = small_frame(4);
	struct write *w;

	(void)state;
	dial(n, 0);
	run(n);
	w = write_new(n, 1, 1);
	kvs_conn_write(n->ea[0].c, &w->tx);
	kvs_conn_send(n->ea[0].c, &f);
	kvs_conn_close(n->ea[0].c, -EBUSY, true);
	assert_int_equal(kvs_conn_send(n->ea[0].c, &f), -EPIPE);
	assert_int_equal(n->ea[0].closed, 0);
	run(n);
	assert_int_equal(n->ea[0].err, -EBUSY);
	assert_int_equal(w->status, 0);
	assert_int_equal(n->eb[0].done, 1);
	assert_int_equal(n->eb[0].status, 0);
	assert_int_equal(n->eb[0].frames, 1);
	assert_int_equal(n->eb[0].closed, 1);
	assert_int_equal(n->eb[0].err, 0);
	free(w);
	net_free(n);
}

static void flush_has_an_end(void **state)
{
	static const struct kvs_loop_plan plan = { .stall = 1 };
	struct net *n = net_new(1, &plan);
	uint64_t t0 = kvs_clock_now(&n->clk.clk);
	struct write *w;

	(void)state;
	dial(n, 0);
	run(n);
	w = write_new(n, 1, 1);
	kvs_conn_write(n->ea[0].c, &w->tx);
	kvs_transport_poll(n->b, 0);
	kvs_conn_close(n->ea[0].c, -EBUSY, true);
	run(n);
	assert_int_equal(n->ea[0].closed, 1);
	assert_int_equal(kvs_clock_now(&n->clk.clk) - t0, KVS_NSEC_PER_SEC);
	assert_true(w->done == 1 && w->status < 0);
	/* cut in the middle of a payload: no orderly end */
	assert_int_equal(n->eb[0].err, -ECONNRESET);
	assert_true(n->eb[0].done == 1 && n->eb[0].status < 0);
	free(w);
	net_free(n);
}

static int handle = -1;

static int give_away(struct end *e, const struct kvs_frame *f)
{
	if (kvs_get16(f->type) != 2)
		return 0;
	handle = kvs_conn_detach(e->c);
	assert_true(handle >= 0);
	e->c = NULL;
	return 0;
}

static void hand_over(void **state)
{
	struct net *n = net_new(1, NULL);
	struct kvs_transport *third;
	struct kvs_frame f;
	struct end e = { .net = n, .id = 7 };
	struct write *w;

	(void)state;
	assert_int_equal(kvs_loop_create(n->f, "c", &third), 0);
	dial(n, 0);
	run(n);
	n->eb[0].on_frame = give_away;
	f = small_frame(2);
	kvs_conn_send(n->ea[0].c, &f);
	f = small_frame(3);
	kvs_conn_send(n->ea[0].c, &f);
	w = write_new(n, 1, 9);
	kvs_conn_write(n->ea[0].c, &w->tx);
	run(n);
	assert_true(handle >= 0);
	assert_int_equal(n->eb[0].frames, 1);
	assert_int_equal(n->eb[0].closed, 0);
	e.mem = calloc(WRITES, LEN);
	assert_int_equal(kvs_transport_adopt(third, handle + 1, KVS_CONN_DATA,
					     &ops, &e, &e.c),
			 -EBADF);
	assert_int_equal(kvs_transport_adopt(third, handle, KVS_CONN_DATA, &ops,
					     &e, &e.c),
			 0);
	while (kvs_transport_poll(third, 0) > 0)
		run(n);
	assert_int_equal(e.frames, 1);
	assert_int_equal(e.last_type, 3);
	assert_int_equal(e.done, 1);
	assert_memory_equal(e.mem + LEN, w + 1, LEN);
	run(n);
	assert_int_equal(w->status, 0);
	kvs_transport_destroy(third);
	assert_int_equal(e.closed, 1);
	free(e.mem);
	free(w);
	net_free(n);
}

/* Addresses are names; a handle that nobody adopts can be ended. */
static void addresses(void **state)
{
	struct net *n = net_new(1, NULL);
	struct sockaddr_storage ss;
	struct kvs_addr a;
	struct kvs_addr far;
	socklen_t len;
	struct kvs_frame f = small_frame(2);

	(void)state;
	assert_int_equal(kvs_loop_addr("", &a), -EINVAL);
	assert_int_equal(kvs_loop_addr("a name that is longer than the 63 that "
				       "a name of an endpoint may be",
				       &a),
			 -EINVAL);
	assert_int_equal(kvs_loop_addr("b", &a), 0);
	assert_int_equal(kvs_loop_addr("nobody", &far), 0);
	kvs_listener_close(n->l);
	assert_int_equal(kvs_transport_listen(n->a, &a, accepted, n, &n->l),
			 -EADDRNOTAVAIL);
	assert_int_equal(kvs_transport_listen(n->b, &a, accepted, n, &n->l), 0);
	assert_int_equal(kvs_listener_addr(n->l, &ss, &len), 0);
	assert_int_equal(len, a.a[0].len);
	assert_memory_equal(&ss, &a.a[0].ss, sizeof(ss));

	n->ea[0].net = n;
	n->ea[1].net = n;
	assert_int_equal(kvs_transport_connect(n->a, &far, KVS_CONN_CONTROL,
					       &ops, &n->ea[1], &n->ea[1].c),
			 0);
	assert_int_equal(kvs_transport_connect(n->a, &a, KVS_CONN_CONTROL, &ops,
					       &n->ea[0], &n->ea[0].c),
			 0);
	run(n);
	assert_int_equal(n->ea[0].opened, 1);
	assert_int_equal(n->ea[1].err, -ECONNREFUSED);

	n->eb[0].on_frame = give_away;
	kvs_conn_send(n->ea[0].c, &f);
	run(n);
	assert_int_equal(n->ea[0].closed, 0);
	kvs_transport_discard(n->b, -1);
	kvs_transport_discard(n->b, handle + 1);
	kvs_transport_discard(n->b, handle);
	kvs_transport_discard(n->b, handle);
	run(n);
	assert_int_equal(n->ea[0].closed, 1);
	assert_int_equal(n->ea[0].err, -ECONNRESET);
	net_free(n);
}

static void not_offered(void **state)
{
	struct net *n = net_new(1, NULL);
	struct kvs_addr a = { .n = 1 };
	struct kvs_read rd = { .done = (void (*)(struct kvs_conn *,
						 struct kvs_read *,
						 int))abort };
	struct kvs_grant_range r = { .addr = n, .len = 1 };
	static const struct kvs_grant_ops gops;
	struct kvs_grant *g;
	struct write *wr;
	struct kvs_conn *c;
	struct kvs_listener *l;
	struct kvs_watch *w;

	(void)state;
	assert_string_equal(kvs_transport_name(n->a), "loop");
	assert_int_equal(kvs_transport_connect(n->a, &a, KVS_CONN_CONTROL, &ops,
					       NULL, &c),
			 -EAFNOSUPPORT);
	assert_int_equal(kvs_transport_listen(n->a, &a, accepted, n, &l),
			 -EAFNOSUPPORT);
	assert_false(kvs_transport_one_sided(n->a));
	assert_int_equal(kvs_grant_open(n->a, 1, &r, 1, &gops, NULL, &g),
			 -EOPNOTSUPP);
	dial(n, 0);
	run(n);
	wr = write_new(n, 0, 1);
	memset(wr->tx.frame + offsetof(struct kvs_frame, payload), 0, 4);
	wr->tx.one_sided = true;
	assert_int_equal(kvs_conn_write(n->ea[0].c, &wr->tx), -EOPNOTSUPP);
	assert_int_equal(kvs_conn_read(n->ea[0].c, &rd), -EOPNOTSUPP);
	free(wr);
	assert_int_equal(kvs_transport_watch(n->a, 0, 1,
					     (void (*)(struct kvs_watch *,
						       short, void *))abort,
					     NULL, &w),
			 -EOPNOTSUPP);
	assert_int_equal(kvs_fabric_next(n->f), KVS_TIME_NEVER);
	net_free(n);
}

static void *waker(void *arg)
{
	kvs_transport_wake(arg);
	return NULL;
}

/* On the real clock poll waits, for an event of anyone or for a wake. */
static void real_clock(void **state)
{
	struct kvs_fabric_opts o = { .plan = { .latency_min = 20000000,
					       .latency_max = 20000000 } };
	struct kvs_transport *a;
	struct kvs_fabric *f;
	struct net n = { 0 };
	struct end e = { .net = &n };
	struct kvs_conn *c;
	uint64_t t0;
	pthread_t th;

	(void)state;
	kvs_vclock_init(&n.clk, 0);
	assert_int_equal(kvs_fabric_create(&o, &f), 0);
	assert_int_equal(kvs_loop_create(f, "a", &a), 0);
	assert_int_equal(
		kvs_loop_connect(a, "x", KVS_CONN_CONTROL, &ops, &e, &c), 0);
	t0 = kvs_clock_now(&kvs_clock_real);
	while (!e.closed)
		assert_true(kvs_transport_poll(a, KVS_TIME_NEVER) >= 0);
	assert_true(kvs_clock_now(&kvs_clock_real) - t0 >= 20000000);
	assert_int_equal(pthread_create(&th, NULL, waker, a), 0);
	assert_int_equal(kvs_transport_poll(a, KVS_TIME_NEVER), 0);
	pthread_join(th, NULL);
	kvs_transport_destroy(a);
	kvs_fabric_destroy(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(determinism),
		cmocka_unit_test(interleaving),
		cmocka_unit_test(rate_and_latency),
		cmocka_unit_test(stall_and_release),
		cmocka_unit_test(stop_stalled),
		cmocka_unit_test(resets),
		cmocka_unit_test(kill_one),
		cmocka_unit_test(refusals),
		cmocka_unit_test(orderly_close),
		cmocka_unit_test(flush_has_an_end),
		cmocka_unit_test(hand_over),
		cmocka_unit_test(addresses),
		cmocka_unit_test(not_offered),
		cmocka_unit_test(real_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
