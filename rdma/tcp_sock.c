/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine: plain non-blocking sockets and epoll, level triggered.
 *
 * A payload is read by recvmsg() straight into its place, together with the
 * frame that follows it. SO_RCVLOWAT keeps the thread asleep until enough
 * has arrived to be worth a wake-up; it is never more than what is still
 * missing, so the end of a payload always wakes us.
 */
#include "rdma/tcp_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64 /* events of one epoll_wait() */
#define RX_BUDGET 16 /* receives of one conn in a row */
#define TX_BUDGET 16
/*
 * Enough to make wake-ups rare, little enough to overlap with the sender. The
 * kernel holds it down to half the buffer, and wakes early when memory is
 * short or the window closes, so that it cannot deadlock.
 */
#define LOWAT_MAX (256 << 10) /* bytes */
#define LOWAT_MIN (64 << 10) /* below, the call costs more than it saves */

struct sock {
	int ep;
};

static struct sock *sock_of(const struct kvs_tcp *t)
{
	return t->engine;
}

static int sock_init(struct kvs_tcp *t, char *err, size_t errlen)
{
	struct sock *s = calloc(1, sizeof(*s));
	int rc;

	if (!s) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	s->ep = epoll_create1(EPOLL_CLOEXEC);
	if (s->ep < 0) {
		rc = -errno;
		snprintf(err, errlen, "epoll_create1: %s", strerror(-rc));
		free(s);
		return rc;
	}
	t->engine = s;
	return 0;
}

static void sock_fini(struct kvs_tcp *t)
{
	close(sock_of(t)->ep);
	free(t->engine);
}

/* EPOLLIN and EPOLLOUT have the values of POLLIN and POLLOUT. */
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT, "event bits");
static_assert(EPOLLERR == POLLERR && EPOLLHUP == POLLHUP, "event bits");

static int sock_poll_set(struct kvs_tcp *t, struct kvs_tcp_poll *p)
{
	struct epoll_event ev = {
		.events = (uint32_t)p->events,
		.data.ptr = p,
	};
	int op = EPOLL_CTL_MOD;

	if (p->added && p->armed == p->events)
		return 0;
	/*
	 * Paused: out of epoll altogether, or an error condition would be
	 * reported over and over.
	 */
	if (!p->events)
		op = EPOLL_CTL_DEL;
	else if (!p->armed)
		op = EPOLL_CTL_ADD;
	if (op == EPOLL_CTL_DEL && !p->armed) {
		p->added = true;
		return 0;
	}
	if (epoll_ctl(sock_of(t)->ep, op, p->fd, &ev))
		return -errno;
	p->added = true;
	p->armed = p->events;
	return 0;
}

static void sock_poll_out(struct kvs_tcp *t, struct kvs_tcp_poll *p)
{
	struct epoll_event ev = { 0 };

	if (p->armed)
		epoll_ctl(sock_of(t)->ep, EPOLL_CTL_DEL, p->fd, &ev);
	p->armed = 0;
	p->added = false;
}

static void sock_poll_del(struct kvs_tcp *t, struct kvs_tcp_poll *p)
{
	sock_poll_out(t, p);
	p->dead = true;
	/* The batch of events being handled may still name it. */
	kvs_list_add_tail(&t->gone, &p->pend);
}

/* ---- connections ---- */

static void set_lowat(struct kvs_tcp_conn *c, size_t missing)
{
	int want = missing > LOWAT_MAX ? LOWAT_MAX : (int)missing;

	if (want < LOWAT_MIN && c->lowat <= want)
		return;
	if (c->rx_state != KVS_TCP_RX_PAYLOAD && c->rx_state != KVS_TCP_RX_DROP)
		want = 1;
	if (want == c->lowat)
		return;
	if (!setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof(want)))
		c->lowat = want;
}

static void sock_read(struct kvs_tcp_conn *c)
{
	struct msghdr msg = { 0 };
	struct iovec iov[2];
	size_t total;
	size_t want;
	ssize_t res;
	int budget;
	int n;

	for (budget = RX_BUDGET; budget; budget--) {
		n = kvs_tcp_rx_want(c, iov);
		if (!n)
			return;
		total = iov[0].iov_len + (n > 1 ? iov[1].iov_len : 0);
		want = kvs_tcp_shorten(total);
		if (want <= iov[0].iov_len) {
			iov[0].iov_len = want;
			n = 1;
		} else if (n > 1) {
			iov[1].iov_len = want - iov[0].iov_len;
		}
		msg.msg_iov = iov;
		msg.msg_iovlen = (size_t)n;
		res = recvmsg(c->fd, &msg, MSG_DONTWAIT);
		if (res < 0 && errno == EINTR)
			continue;
		if (res < 0 && errno == EAGAIN) {
			set_lowat(c, iov[0].iov_len);
			return;
		}
		if (res > 0 && (size_t)res < total)
			c->c.t->stats.io_short++;
		if (!kvs_tcp_rx_done(c, res < 0 ? -errno : res))
			return;
		/* Less than asked for: the socket is empty now. */
		if ((size_t)res < want) {
			n = kvs_tcp_rx_want(c, iov);
			if (n)
				set_lowat(c, iov[0].iov_len);
			return;
		}
	}
	/* More may be there: let a low mark not hide it. */
	if (kvs_tcp_rx_want(c, iov))
		set_lowat(c, iov[0].iov_len);
}

static int sock_send(struct kvs_tcp_conn *c)
{
	size_t want;
	ssize_t res;
	bool more = true;
	int budget;

	for (budget = TX_BUDGET; more && budget; budget--) {
		want = kvs_tcp_shorten(c->tx_want);
		if (want < c->tx_want)
			kvs_tcp_tx_trim(c, want);
		res = sendmsg(c->fd, &c->tx_msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (res < 0)
			res = -errno;
		if (res == -EAGAIN)
			return kvs_tcp_conn_poll(c, c->poll.events | POLLOUT);
		if (res > 0 && (size_t)res < c->tx_want)
			c->c.t->stats.io_short++;
		more = kvs_tcp_tx_done(c, res) && kvs_tcp_tx_build(c);
	}
	if (c->state == KVS_TCP_DYING)
		return 0;
	if (more)
		kvs_tcp_pend(c, KVS_TCP_PEND_TX);
	if (c->poll.events & POLLOUT)
		return kvs_tcp_conn_poll(c, c->poll.events & ~POLLOUT);
	return 0;
}

static int sock_recv(struct kvs_tcp_conn *c)
{
	short events = c->poll.events & ~POLLIN;

	/* Level triggered: nothing to post. After the end it would spin. */
	return kvs_tcp_conn_poll(c, c->rx_eof ? events : events | POLLIN);
}

static int sock_stop(struct kvs_tcp_conn *c)
{
	/* Never called: no receive is ever in the kernel between calls. */
	(void)c;
	return 0;
}

static void sock_ready(struct kvs_tcp_poll *p, short revents)
{
	struct kvs_tcp_conn *c = kvs_container_of(p, struct kvs_tcp_conn, poll);

	if (c->state == KVS_TCP_CONNECTING) {
		kvs_tcp_connect_ready(c);
		return;
	}
	if (revents & POLLOUT)
		kvs_tcp_pend(c, KVS_TCP_PEND_TX);
	if (c->rx_eof && (revents & (POLLERR | POLLHUP))) {
		kvs_tcp_die(c, c->err);
		return;
	}
	if (revents & (POLLIN | POLLERR | POLLHUP))
		sock_read(c);
}

static int sock_attach(struct kvs_tcp_conn *c)
{
	c->poll.ready = sock_ready;
	return kvs_tcp_conn_poll(c, POLLIN);
}

static void sock_forget(struct kvs_tcp_conn *c)
{
	int one = 1;

	if (c->lowat != 1)
		setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
	c->lowat = 1;
	if (!c->poll.added)
		return;
	sock_poll_out(kvs_tcp_of(&c->c), &c->poll);
	c->held--;
}

static void sock_release(struct kvs_tcp_conn *c)
{
	if (c->poll.added)
		sock_poll_del(kvs_tcp_of(&c->c), &c->poll);
}

/* Rounded up, so as not to spin through the last millisecond. */
static int timeout_ms(uint64_t ns)
{
	if (ns == KVS_TIME_NEVER)
		return -1;
	if (ns >= 1000000 * KVS_NSEC_PER_MSEC)
		return 1000000;
	return (int)((ns + KVS_NSEC_PER_MSEC - 1) / KVS_NSEC_PER_MSEC);
}

static int sock_wait(struct kvs_tcp *t, uint64_t timeout_ns)
{
	struct epoll_event ev[BATCH];
	struct kvs_tcp_poll *p;
	struct timespec ts;
	int n;
	int i;

	ts.tv_sec = (time_t)(timeout_ns / KVS_NSEC_PER_SEC);
	ts.tv_nsec = (long)(timeout_ns % KVS_NSEC_PER_SEC);
	n = epoll_pwait2(sock_of(t)->ep, ev, BATCH,
			 timeout_ns == KVS_TIME_NEVER ? NULL : &ts, NULL);
	if (n < 0 && errno == ENOSYS)
		n = epoll_wait(sock_of(t)->ep, ev, BATCH,
			       timeout_ms(timeout_ns));
	if (n < 0)
		return -errno;
	for (i = 0; i < n; i++) {
		p = ev[i].data.ptr;
		if (!p->dead)
			p->ready(p, (short)ev[i].events);
	}
	return n;
}

const struct kvs_tcp_engine kvs_tcp_sock = {
	.ops = { .name = "tcp/sock", KVS_TCP_SHARED_OPS },
	.nonblock = true,
	.init = sock_init,
	.fini = sock_fini,
	.wait = sock_wait,
	.attach = sock_attach,
	.forget = sock_forget,
	.recv = sock_recv,
	.send = sock_send,
	.stop = sock_stop,
	.release = sock_release,
	.poll_set = sock_poll_set,
	.poll_del = sock_poll_del,
};
