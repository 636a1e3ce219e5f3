/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, for each engine: connecting tries the addresses in order and names
 * the errno; a connection can be handed to another thread's loop between two
 * frames and loses no byte; callbacks may close what they are called for;
 * frames before a flushing close arrive, also when the other side was sending;
 * the send queue has a limit; a descriptor can be watched; another thread can
 * wake the loop; a clean close is noticed (ai-dynamo/modelexpress#575).
 */
#include "tests/unit/rdma/rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "lib/clock.h"

/* A port nobody listens on: bound, not listening. */
static int dead_port(struct sockaddr_in *sin)
{
	socklen_t len = sizeof(*sin);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	memset(sin, 0, sizeof(*sin));
	sin->sin_family = AF_INET;
	sin->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)sin, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)sin, &len), 0);
	return fd;
}

static void refused(void **state)
{
	struct rig *r = rig_new(NULL);
	struct kvs_addr a = { .n = 1 };
	struct side us = { 0 };
	struct sockaddr_in sin;
	unsigned char f[16];
	int fd = dead_port(&sin);

	(void)state;
	memcpy(&a.a[0].ss, &sin, sizeof(sin));
	a.a[0].len = sizeof(sin);
	assert_int_equal(kvs_transport_connect(r->t, &a, KVS_CONN_CONTROL,
					       &rig_ops, &us, &us.c),
			 0);
	/* frames may be queued already; they are lost with it */
	mkframe(f, 1, 16, 0);
	assert_int_equal(kvs_conn_send(us.c, (void *)f), 0);
	assert_int_equal(us.closed, 0);
	rig_until(r, us.closed);
	assert_int_equal(us.err, -ECONNREFUSED);
	assert_int_equal(us.opened, 0);
	close(fd);
	rig_free(r);
}

static void addresses_in_order(void **state)
{
	struct rig *r = rig_new(NULL);
	struct kvs_addr a = { .n = 3 };
	char want[KVS_ADDR_STR];
	struct side us = { 0 };
	struct sockaddr_in sin;
	unsigned char f[48];
	int fd = dead_port(&sin);

	(void)state;
	memcpy(&a.a[0].ss, &sin, sizeof(sin));
	a.a[0].len = sizeof(sin);
	/* not connectable at all; the broadcast address */
	sin.sin_addr.s_addr = htonl(INADDR_BROADCAST);
	memcpy(&a.a[1].ss, &sin, sizeof(sin));
	a.a[1].len = sizeof(sin);
	a.a[2] = r->addr.a[0];
	assert_int_equal(kvs_transport_connect(r->t, &a, KVS_CONN_CONTROL,
					       &rig_ops, &us, &us.c),
			 0);
	mkframe(f, 1, 48, 0);
	assert_int_equal(kvs_conn_send(us.c, (void *)f), 0);
	rig_until(r, us.opened && r->n_sides == 1 && r->side[0].frames == 1);
	assert_string_equal(kvs_conn_peer(us.c),
			    kvs_addr_format((void *)&a.a[2].ss, a.a[2].len,
					    want));
	assert_ptr_equal(kvs_conn_transport(us.c), r->t);
	close(fd);
	rig_free(r);
	assert_int_equal(us.closed, 1);
	assert_int_equal(us.err, -ESHUTDOWN);
}

static void closed_while_connecting(void **state)
{
	struct rig *r = rig_new(NULL);
	struct side us = { 0 };

	(void)state;
	assert_int_equal(kvs_transport_connect(r->t, &r->addr, KVS_CONN_CONTROL,
					       &rig_ops, &us, &us.c),
			 0);
	kvs_conn_close(us.c, -ETIMEDOUT, true);
	assert_int_equal(us.closed, 0); /* never from inside */
	rig_until(r, us.closed);
	assert_int_equal(us.err, -ETIMEDOUT);
	assert_int_equal(us.opened, 0);
	rig_free(r);
}

static void port_taken(void **state)
{
	struct rig *r = rig_new(NULL);
	struct kvs_listener *l = NULL;

	(void)state;
	assert_int_equal(
		kvs_transport_listen(r->t, &r->addr,
				     (int (*)(struct kvs_conn *, void *))abort,
				     NULL, &l),
		-EADDRINUSE);
	assert_null(l);
	/* closed, its port is free at once */
	kvs_listener_close(r->l);
	assert_int_equal(
		kvs_transport_listen(r->t, &r->addr,
				     (int (*)(struct kvs_conn *, void *))abort,
				     NULL, &l),
		0);
	rig_free(r);
}

/* ---- closing ---- */

static int close_inside(struct side *s, const struct kvs_frame *f)
{
	(void)f;
	kvs_conn_close(s->c, -EBADMSG, false);
	kvs_conn_close(s->c, 0, true); /* harmless, changes nothing */
	assert_int_equal(s->closed, 0);
	assert_int_equal(kvs_conn_send(s->c, f), -EPIPE);
	return 0;
}

static int negative(struct side *s, const struct kvs_frame *f)
{
	(void)s;
	(void)f;
	return -EILSEQ;
}

/* Two frames in one segment: the second must not be delivered. */
static void close_in_callback(void **state)
{
	unsigned char b[64];
	int how;

	(void)state;
	for (how = 0; how < 2; how++) {
		struct rig *r = rig_new(NULL);
		int fd = puppet(r);

		mkframe(b, 1, 32, 0);
		mkframe(b + 32, 2, 32, 0);
		rig_until(r, r->n_sides == 1);
		r->side[0].on_frame = how ? negative : close_inside;
		puppet_send(r, fd, b, sizeof(b));
		rig_until(r, r->side[0].closed);
		assert_int_equal(r->side[0].err, how ? -EILSEQ : -EBADMSG);
		assert_int_equal(r->side[0].frames, 1);
		close(fd);
		rig_free(r);
	}
}

static void flush_close(void **state)
{
	enum { N = 50 };
	struct kvs_transport_opts o = { .sndbuf = 4096 };
	struct rig *r = rig_new(&o);
	unsigned char f[4000];
	unsigned char got[4000];
	int fd = puppet(r);
	uint64_t t0;
	char ch;
	int i;

	(void)state;
	rig_until(r, r->n_sides == 1);
	mkframe(f, 5, sizeof(f), 0);
	for (i = 0; i < N; i++)
		assert_int_equal(kvs_conn_send(r->side[0].c, (void *)f), 0);
	/* unread input must not turn the close into a reset of the output */
	puppet_send(r, fd, f, sizeof(f));
	puppet_send(r, fd, f, 100);
	t0 = rig_now();
	kvs_conn_close(r->side[0].c, -ECANCELED, true);
	for (i = 0; i < N; i++) {
		puppet_recv(r, fd, got, sizeof(got));
		assert_memory_equal(got, f, sizeof(f));
	}
	rig_settle(r);
	assert_int_equal(recv(fd, &ch, 1, 0), 0);
	close(fd);
	rig_until(r, r->side[0].closed);
	assert_true(rig_now() - t0 < 20 * KVS_NSEC_PER_SEC);
	assert_int_equal(r->side[0].err, -ECANCELED);
	assert_int_equal(r->side[0].frames, 0);
	rig_free(r);
}

/* A peer that never reads or closes does not hold a flush for ever. */
static void flush_has_an_end(void **state)
{
	struct rig *r = rig_new(NULL);
	unsigned char f[1000];
	int fd = puppet(r);
	uint64_t t0;

	(void)state;
	rig_until(r, r->n_sides == 1);
	mkframe(f, 5, sizeof(f), 0);
	assert_int_equal(kvs_conn_send(r->side[0].c, (void *)f), 0);
	t0 = rig_now();
	kvs_conn_close(r->side[0].c, -EBUSY, true);
	rig_until(r, r->side[0].closed);
	assert_true(rig_now() - t0 >= KVS_NSEC_PER_SEC * 9 / 10);
	assert_int_equal(r->side[0].err, -EBUSY);
	close(fd);
	rig_free(r);
}

static void queue_limit(void **state)
{
	struct kvs_transport_opts o = { .send_queue_max = 10000 };
	struct rig *r = rig_new(&o);
	unsigned char f[1000];
	int fd = puppet(r);
	int rc;
	int n;

	(void)state;
	rig_until(r, r->n_sides == 1);
	mkframe(f, 5, sizeof(f), 0);
	for (n = 0; !(rc = kvs_conn_send(r->side[0].c, (void *)f)); n++)
		;
	assert_int_equal(rc, -ENOBUFS);
	assert_int_equal(n, 10);
	/* it drains, and takes more */
	rig_settle(r);
	assert_int_equal(kvs_conn_send(r->side[0].c, (void *)f), 0);
	assert_int_equal(r->side[0].closed, 0);
	close(fd);
	rig_free(r);
}

/* The last words of a peer that dies on us are still delivered. */
static void last_words(void **state)
{
	struct rig *r = rig_new(NULL);
	unsigned char f[64];
	int fd = puppet(r);
	int i;

	(void)state;
	rig_until(r, r->n_sides == 1);
	mkframe(f, 9, 64, 0);
	puppet_send(r, fd, f, 64);
	/* never reads: what we send resets the connection */
	close(fd);
	for (i = 0; i < 3 && r->side[0].c; i++)
		kvs_conn_send(r->side[0].c, (void *)f);
	rig_until(r, r->side[0].closed);
	assert_int_equal(r->side[0].frames, 1);
	rig_free(r);
}

/* ---- handing over ---- */

static int detached_fd;

static int give_away(struct side *s, const struct kvs_frame *f)
{
	struct kvs_conn *c = s->c;

	if (kvs_get16(f->type) == 1) { /* something queued: not now */
		assert_int_equal(kvs_conn_send(c, f), 0);
		assert_int_equal(kvs_conn_detach(c), -EBUSY);
		return 0;
	}
	detached_fd = kvs_conn_detach(c);
	assert_true(detached_fd >= 0);
	s->c = NULL;
	return 0;
}

struct other {
	pthread_t thread;
	struct side side;
	unsigned char *mem;
	const char *engine;
};

static void *other_thread(void *arg)
{
	struct other *o = arg;
	struct kvs_transport_opts opts = { .engine = o->engine };
	struct kvs_transport *t;
	char err[256];

	assert_int_equal(kvs_tcp_create(&opts, &t, err, sizeof(err)), 0);
	o->side.mem = o->mem;
	assert_int_equal(kvs_transport_adopt(t, detached_fd, KVS_CONN_DATA,
					     &rig_ops, &o->side, &o->side.c),
			 0);
	while (!o->side.closed)
		assert_true(kvs_transport_poll(t, KVS_TIME_NEVER) >= 0);
	kvs_transport_destroy(t);
	return NULL;
}

static void hand_over(void **state)
{
	static const char *const engines[] = { "sock", "auto" };
	size_t n = 100000;
	unsigned char *b = malloc(32 + 16 + 64 + n + 64);
	unsigned char echo[32];
	size_t i;

	(void)state;
	for (i = 0; i < 2; i++) {
		struct rig *r = rig_new(NULL);
		struct other o = { .engine = engines[i] };
		int fd = puppet(r);

		/* Everything in one go: nothing past a frame may be read. */
		mkframe(b, 1, 32, 0);
		mkframe(b + 32, 2, 16, 0);
		mkframe(b + 48, 3, 64, (uint32_t)n);
		fill(b + 112, 6, n);
		mkframe(b + 112 + n, 4, 64, 0);
		rig_until(r, r->n_sides == 1);
		r->side[0].on_frame = give_away;
		detached_fd = -1;
		puppet_send(r, fd, b, 32);
		puppet_recv(r, fd, echo, 32);
		rig_settle(r);
		o.mem = calloc(1, n);
		puppet_send(r, fd, b + 32, 16 + 64 + n + 64);
		rig_until(r, detached_fd >= 0);
		assert_int_equal(r->side[0].frames, 2);
		assert_int_equal(
			pthread_create(&o.thread, NULL, other_thread, &o), 0);
		shutdown(fd, SHUT_WR);
		assert_int_equal(pthread_join(o.thread, NULL), 0);
		assert_int_equal(o.side.done, 1);
		assert_int_equal(o.side.status, 0);
		assert_int_equal(o.side.frames, 1);
		assert_int_equal(o.side.types[0], 4);
		assert_int_equal(o.side.err, 0);
		assert_true(matches(o.mem, 6, n));
		assert_int_equal(r->side[0].closed, 0);
		close(fd);
		rig_free(r);
		free(o.mem);
	}
	free(b);
}

static void adopt_refuses(void **state)
{
	struct rig *r = rig_new(NULL);
	struct side us = { 0 };
	int p[2];
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)state;
	assert_int_equal(pipe(p), 0);
	assert_int_equal(kvs_transport_adopt(r->t, p[0], KVS_CONN_CONTROL,
					     &rig_ops, &us, &us.c),
			 -ENOTSOCK);
	assert_int_equal(kvs_transport_adopt(r->t, fd, KVS_CONN_CONTROL,
					     &rig_ops, &us, &us.c),
			 -ENOTCONN);
	/* still the caller's */
	assert_int_equal(close(fd), 0);
	assert_int_equal(close(p[0]), 0);
	assert_int_equal(close(p[1]), 0);
	rig_free(r);
}

static void unix_pair(void **state)
{
	struct rig *r = rig_new(NULL);
	struct side us = { 0 };
	unsigned char f[100];
	unsigned char g[100];
	int sv[2];

	(void)state;
	us.echo = true;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	assert_int_equal(kvs_transport_adopt(r->t, sv[0], KVS_CONN_CONTROL,
					     &rig_ops, &us, &us.c),
			 0);
	mkframe(f, 1, sizeof(f), 0);
	puppet_send(r, sv[1], f, sizeof(f));
	puppet_recv(r, sv[1], g, sizeof(g));
	assert_memory_equal(f, g, sizeof(f));
	close(sv[1]);
	rig_until(r, us.closed);
	assert_int_equal(us.err, 0);
	rig_free(r);
}

/* ---- watches and wakes ---- */

struct watched {
	struct kvs_watch *w;
	int calls;
	short revents;
	int fd;
	bool drain;
	bool remove;
};

static void watched_ready(struct kvs_watch *w, short revents, void *arg)
{
	struct watched *x = arg;
	char ch;

	x->calls++;
	x->revents = revents;
	if (x->drain)
		assert_int_equal(read(x->fd, &ch, 1), 1);
	if (x->remove)
		kvs_watch_remove(w);
}

static void watch(void **state)
{
	struct rig *r = rig_new(NULL);
	struct watched x = { 0 };
	struct watched y = { 0 };
	int calls;
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	x.fd = p[0];
	assert_int_equal(kvs_transport_watch(r->t, p[0], POLLIN, watched_ready,
					     &x, &x.w),
			 0);
	rig_settle(r);
	assert_int_equal(x.calls, 0);
	/* level: as long as it is readable */
	assert_int_equal(write(p[1], "ab", 2), 2);
	rig_until(r, x.calls >= 3);
	assert_int_equal(x.revents, POLLIN);
	/* paused */
	assert_int_equal(kvs_watch_events(x.w, 0), 0);
	kvs_transport_poll(r->t, 0);
	kvs_transport_poll(r->t, 0);
	calls = x.calls;
	rig_settle(r);
	assert_int_equal(x.calls, calls);
	/* resumed; both bytes are taken, then silence */
	x.drain = true;
	assert_int_equal(kvs_watch_events(x.w, POLLIN), 0);
	rig_until(r, x.calls == calls + 2);
	rig_settle(r);
	assert_int_equal(x.calls, calls + 2);
	/* the other end goes away */
	x.drain = false;
	x.remove = true;
	close(p[1]);
	rig_until(r, x.calls == calls + 3);
	assert_true(x.revents & POLLHUP);
	rig_settle(r);
	assert_int_equal(x.calls, calls + 3);
	close(p[0]);

	/* removed before it ever fires, while ready */
	assert_int_equal(pipe(p), 0);
	assert_int_equal(kvs_transport_watch(r->t, p[1], POLLOUT, watched_ready,
					     &y, &y.w),
			 0);
	kvs_watch_remove(y.w);
	kvs_watch_remove(NULL);
	close(p[0]);
	close(p[1]);
	rig_settle(r);
	assert_int_equal(y.calls, 0);
	assert_int_equal(kvs_transport_watch(r->t, -1, POLLIN, watched_ready,
					     &y, &y.w),
			 -EINVAL);
	/* left to destroy */
	assert_int_equal(pipe(p), 0);
	assert_int_equal(kvs_transport_watch(r->t, p[0], POLLIN, watched_ready,
					     &y, &y.w),
			 0);
	rig_free(r);
	close(p[0]);
	close(p[1]);
}

static void *waker(void *arg)
{
	kvs_transport_wake(arg);
	return NULL;
}

static void wake(void **state)
{
	struct rig *r = rig_new(NULL);
	pthread_t th;
	int i;

	(void)state;
	rig_settle(r);
	for (i = 0; i < 20; i++) {
		assert_int_equal(pthread_create(&th, NULL, waker, r->t), 0);
		/* without the wake this would wait for ever */
		assert_int_equal(kvs_transport_poll(r->t, KVS_TIME_NEVER), 0);
		pthread_join(th, NULL);
	}
	/* a time-out alone is no event */
	assert_int_equal(kvs_transport_poll(r->t, 1000000), 0);
	rig_free(r);
}

static void names(void **state)
{
	struct rig *r = rig_new(NULL);
	char want[32];

	(void)state;
	snprintf(want, sizeof(want), "tcp/%s", rig_engine);
	assert_string_equal(kvs_transport_name(r->t), want);
	rig_free(r);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(refused),
		cmocka_unit_test(addresses_in_order),
		cmocka_unit_test(closed_while_connecting),
		cmocka_unit_test(port_taken),
		cmocka_unit_test(close_in_callback),
		cmocka_unit_test(flush_close),
		cmocka_unit_test(flush_has_an_end),
		cmocka_unit_test(queue_limit),
		cmocka_unit_test(last_words),
		cmocka_unit_test(hand_over),
		cmocka_unit_test(adopt_refuses),
		cmocka_unit_test(unix_pair),
		cmocka_unit_test(watch),
		cmocka_unit_test(wake),
	};

	rig_main(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
