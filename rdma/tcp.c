/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP event loop: listeners, connecting, watches. See tcp_internal.h. */
#include "rdma/tcp_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEFAULT_MAX_CONNS 4096
#define BACKLOG 4096 /* the kernel cuts it to somaxconn */
#define ACCEPT_BATCH 64 /* then other connections get their turn */
#define ACCEPT_RETRY_NS (50 * KVS_NSEC_PER_MSEC)
#define KEEPALIVE_IDLE 15 /* s; a silent peer is found within */
#define KEEPALIVE_INTVL 5 /* idle + intvl * cnt = 30 s */
#define KEEPALIVE_CNT 3
#define PENDING_ROUNDS 4

size_t (*kvs_tcp_test_shorten)(size_t want);
unsigned int kvs_tcp_test_ring_entries;

static struct kvs_tcp *tcp_of(struct kvs_transport *t)
{
	return kvs_container_of(t, struct kvs_tcp, t);
}

/* ---- event loop ---- */

static void run_gone(struct kvs_tcp *t)
{
	struct kvs_tcp_poll *p;

	while (!kvs_list_empty(&t->gone)) {
		p = kvs_list_first(&t->gone, struct kvs_tcp_poll, pend);
		kvs_list_del(&p->pend);
		p->gone(p);
	}
}

static void run_pending(struct kvs_tcp *t)
{
	int i;

	run_gone(t);
	for (i = 0; i < PENDING_ROUNDS && !kvs_list_empty(&t->pend); i++) {
		kvs_tcp_run_pending(t);
		run_gone(t);
	}
}

static void resume_accept(struct kvs_tcp *t, uint64_t now)
{
	struct kvs_tcp_listener *l;

	if (!t->n_paused)
		return;
	kvs_list_for_each_entry(l, &t->listeners, node) {
		if (!l->resume_at || l->resume_at > now || l->poll.dead)
			continue;
		l->resume_at = 0;
		t->n_paused--;
		l->poll.events = POLLIN;
		t->eng->poll_set(t, &l->poll);
	}
}

void kvs_tcp_resume_accept(struct kvs_tcp *t)
{
	resume_accept(t, KVS_TIME_NEVER);
}

static uint64_t next_deadline(const struct kvs_tcp *t)
{
	uint64_t next = KVS_TIME_NEVER;
	struct kvs_tcp_listener *l;

	if (!kvs_list_empty(&t->flush))
		next = kvs_list_first(&t->flush, struct kvs_tcp_conn, flush)
			       ->deadline;
	if (t->n_paused)
		kvs_list_for_each_entry(l, &t->listeners, node)
			if (l->resume_at && l->resume_at < next)
				next = l->resume_at;
	return next;
}

static void run_deadlines(struct kvs_tcp *t)
{
	struct kvs_tcp_conn *c;
	uint64_t now;

	if (kvs_list_empty(&t->flush) && !t->n_paused)
		return;
	now = kvs_clock_now(t->t.clock);
	while (!kvs_list_empty(&t->flush)) {
		c = kvs_list_first(&t->flush, struct kvs_tcp_conn, flush);
		if (c->deadline > now)
			break;
		kvs_tcp_die(c, c->err);
	}
	resume_accept(t, now);
}

int kvs_tcp_poll(struct kvs_transport *transport, uint64_t timeout_ns)
{
	struct kvs_tcp *t = tcp_of(transport);
	uint64_t next;
	uint64_t now;
	int rc;

	t->handled = 0;
	run_pending(t);
	if (t->handled || !kvs_list_empty(&t->pend)) {
		timeout_ns = 0;
	} else if (timeout_ns) {
		next = next_deadline(t);
		if (next != KVS_TIME_NEVER) {
			now = kvs_clock_now(t->t.clock);
			next = next > now ? next - now : 0;
			if (timeout_ns > next)
				timeout_ns = next;
		}
	}
	rc = t->eng->wait(t, timeout_ns);
	run_pending(t);
	/* Completions came first; what they did not settle may time out. */
	run_deadlines(t);
	run_pending(t);
	if (rc < 0 && rc != -EINTR)
		return rc;
	return (int)t->handled;
}

static void wake_ready(struct kvs_tcp_poll *p, short revents)
{
	uint64_t n;

	(void)revents;
	while (read(p->fd, &n, sizeof(n)) < 0 && errno == EINTR)
		;
}

static void wake_gone(struct kvs_tcp_poll *p)
{
	close(p->fd);
	p->fd = -1;
}

void kvs_tcp_wake(struct kvs_transport *transport)
{
	int saved = errno;
	uint64_t one = 1;

	/* Full means a wake is pending already. */
	while (write(tcp_of(transport)->wake.fd, &one, sizeof(one)) < 0 &&
	       errno == EINTR)
		;
	errno = saved;
}

/* ---- sockets ---- */

static int set_block(int fd, bool nonblock)
{
	int fl = fcntl(fd, F_GETFL);
	int want = nonblock ? fl | O_NONBLOCK : fl & ~O_NONBLOCK;

	if (fl < 0 || (want != fl && fcntl(fd, F_SETFL, want)))
		return -errno;
	return 0;
}

/*
 * None of these may fail a connection: a Unix socket given to adopt has no
 * TCP level, and a buffer size is a wish.
 */
static void tune(const struct kvs_tcp *t, int fd)
{
	int on = 1;
	int idle = KEEPALIVE_IDLE;
	int intvl = KEEPALIVE_INTVL;
	int cnt = KEEPALIVE_CNT;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &intvl, sizeof(intvl));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &cnt, sizeof(cnt));
	if (t->user_timeout_ms)
		setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
			   &t->user_timeout_ms, sizeof(t->user_timeout_ms));
	if (t->rcvbuf)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &t->rcvbuf,
			   sizeof(t->rcvbuf));
	if (t->sndbuf)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &t->sndbuf,
			   sizeof(t->sndbuf));
}

/* ---- listening ---- */

static void pause_accept(struct kvs_tcp *t, struct kvs_tcp_listener *l)
{
	t->t.stats.refused_fds++;
	l->resume_at = kvs_clock_now(t->t.clock) + ACCEPT_RETRY_NS;
	t->n_paused++;
	l->poll.events = 0;
	t->eng->poll_set(t, &l->poll);
}

static void accept_one(struct kvs_tcp *t, struct kvs_tcp_listener *l, int fd,
		       const struct sockaddr_storage *ss, socklen_t len)
{
	struct kvs_tcp_conn *c;

	if (t->n_accepted >= t->max_conns) {
		t->t.stats.refused_limit++;
		close(fd);
		return;
	}
	c = kvs_tcp_conn_new(t, fd);
	if (!c) {
		close(fd);
		return;
	}
	tune(t, fd);
	kvs_addr_format((const struct sockaddr *)ss, len, c->c.peer);
	c->accepted = true;
	t->n_accepted++;
	if (kvs_tcp_conn_open(c)) {
		kvs_tcp_conn_free(c);
		return;
	}
	t->handled++;
	if (l->l.accepted(&c->c, l->l.arg) || !c->c.ops) {
		c->c.ops = NULL;
		kvs_tcp_die(c, -ECONNREFUSED);
		return;
	}
	t->t.stats.accepted++;
}

static void listener_ready(struct kvs_tcp_poll *p, short revents)
{
	struct kvs_tcp_listener *l =
		kvs_container_of(p, struct kvs_tcp_listener, poll);
	struct kvs_tcp *t = tcp_of(l->l.t);
	int flags = SOCK_CLOEXEC | (t->eng->nonblock ? SOCK_NONBLOCK : 0);
	struct sockaddr_storage ss;
	socklen_t len;
	int fd;
	int i;

	(void)revents;
	for (i = 0; i < ACCEPT_BATCH && !p->dead; i++) {
		len = sizeof(ss);
		fd = accept4(p->fd, (struct sockaddr *)&ss, &len, flags);
		if (fd >= 0) {
			accept_one(t, l, fd, &ss, len);
			continue;
		}
		switch (errno) {
		case EMFILE:
		case ENFILE:
		case ENOBUFS:
		case ENOMEM:
			pause_accept(t, l);
			return;
		case EAGAIN:
			return;
		default:
			/* That one connection is gone; see accept(2). */
			break;
		}
	}
}

static void listener_gone(struct kvs_tcp_poll *p)
{
	struct kvs_tcp_listener *l =
		kvs_container_of(p, struct kvs_tcp_listener, poll);

	kvs_list_del(&l->node);
	free(l);
}

static int bind_one(struct kvs_tcp *t, const struct kvs_addr *addr,
		    unsigned int i, int *ret_fd)
{
	const struct sockaddr *sa = (const struct sockaddr *)&addr->a[i].ss;
	int off = 0;
	int on = 1;
	int rc;
	int fd = socket(sa->sa_family,
			SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (sa->sa_family == AF_INET6 && kvs_addr_is_wildcard(sa))
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	/* Buffers are inherited, and fix the window scale before it is sent. */
	tune(t, fd);
	if (bind(fd, sa, addr->a[i].len) || listen(fd, BACKLOG)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*ret_fd = fd;
	return 0;
}

int kvs_tcp_listen(struct kvs_transport *transport, const struct kvs_addr *addr,
		   int (*accepted)(struct kvs_conn *c, void *arg), void *arg,
		   struct kvs_listener **ret)
{
	struct kvs_tcp *t = tcp_of(transport);
	struct kvs_tcp_listener *l;
	int first = 0;
	unsigned int i;
	int fd = -1;
	int rc = -EINVAL;

	if (t->closing)
		return -ESHUTDOWN;
	for (i = 0; i < addr->n; i++) {
		rc = bind_one(t, addr, i, &fd);
		if (!rc)
			break;
		/* "no IPv6 here" must not hide "port taken" */
		if (!first || first == -EAFNOSUPPORT || first == -EADDRNOTAVAIL)
			first = rc;
	}
	if (rc)
		return first ? first : rc;
	l = calloc(1, sizeof(*l));
	if (!l) {
		close(fd);
		return -ENOMEM;
	}
	l->l.magic = KVS_LISTENER_MAGIC;
	l->l.t = transport;
	l->l.accepted = accepted;
	l->l.arg = arg;
	l->poll.fd = fd;
	l->poll.events = POLLIN;
	l->poll.ready = listener_ready;
	l->poll.gone = listener_gone;
	kvs_list_init(&l->poll.pend);
	rc = t->eng->poll_set(t, &l->poll);
	if (rc) {
		close(fd);
		free(l);
		return rc;
	}
	kvs_list_add_tail(&t->listeners, &l->node);
	*ret = &l->l;
	return 0;
}

void kvs_tcp_listener_close(struct kvs_listener *listener)
{
	struct kvs_tcp_listener *l =
		kvs_container_of(listener, struct kvs_tcp_listener, l);
	struct kvs_tcp *t = tcp_of(listener->t);
	int fd = l->poll.fd;

	if (l->poll.dead)
		return;
	if (l->resume_at) {
		l->resume_at = 0;
		t->n_paused--;
	}
	t->eng->poll_del(t, &l->poll);
	/* A poll in the kernel keeps the file: stop accepting now anyway. */
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

int kvs_tcp_listener_addr(const struct kvs_listener *l,
			  struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const struct kvs_tcp_listener *tl = (const void *)l;
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	if (getsockname(tl->poll.fd, (struct sockaddr *)&ss, &len))
		return -errno;
	*ret = ss;
	*ret_len = len;
	return 0;
}

/* ---- connecting ---- */

/* Start with the next address that lets us. Return: 0 = in progress. */
static int connect_next(struct kvs_tcp_conn *c, bool *ret_tried)
{
	struct kvs_tcp *t = kvs_tcp_of(&c->c);
	const struct sockaddr *sa;
	socklen_t len;
	int rc = c->connect_err;

	while (c->addr_next < c->addrs->n) {
		sa = (const struct sockaddr *)&c->addrs->a[c->addr_next].ss;
		len = c->addrs->a[c->addr_next++].len;
		c->fd = socket(sa->sa_family,
			       SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (c->fd < 0) {
			rc = -errno;
			continue;
		}
		tune(t, c->fd);
		kvs_addr_format(sa, len, c->c.peer);
		*ret_tried = true;
		if (!connect(c->fd, sa, len) || errno == EINPROGRESS ||
		    errno == EINTR)
			rc = kvs_tcp_conn_poll(c, POLLOUT);
		else
			rc = -errno;
		if (!rc)
			return 0;
		close(c->fd);
		c->fd = -1;
	}
	return rc;
}

/*
 * Loopback, no listener, a port of the ephemeral range: the kernel may pick
 * that very port as the source and connect the socket to itself.
 */
static bool connected_to_self(int fd)
{
	struct sockaddr_storage a = { 0 };
	struct sockaddr_storage b = { 0 };
	socklen_t la = sizeof(a);
	socklen_t lb = sizeof(b);

	return !getsockname(fd, (struct sockaddr *)&a, &la) &&
	       !getpeername(fd, (struct sockaddr *)&b, &lb) && la == lb &&
	       !memcmp(&a, &b, la);
}

void kvs_tcp_connect_ready(struct kvs_tcp_conn *c)
{
	struct kvs_tcp *t = kvs_tcp_of(&c->c);
	socklen_t len = sizeof(int);
	bool tried;
	int err = 0;

	if (c->state != KVS_TCP_CONNECTING)
		return;
	t->handled++;
	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len))
		err = errno;
	if (!err && connected_to_self(c->fd))
		err = ECONNREFUSED;
	if (!err)
		err = -set_block(c->fd, t->eng->nonblock);
	if (!err)
		err = -kvs_tcp_conn_open(c);
	if (!err) {
		free(c->addrs);
		c->addrs = NULL;
		if (c->c.ops->opened)
			c->c.ops->opened(&c->c);
		return;
	}
	c->connect_err = -err;
	t->eng->forget(c);
	close(c->fd);
	c->fd = -1;
	err = connect_next(c, &tried);
	if (err)
		kvs_tcp_die(c, err);
}

int kvs_tcp_connect(struct kvs_transport *transport,
		    const struct kvs_addr *addr, enum kvs_conn_kind kind,
		    const struct kvs_conn_ops *ops, void *user,
		    struct kvs_conn **ret)
{
	struct kvs_tcp *t = tcp_of(transport);
	struct kvs_tcp_conn *c;
	bool tried = false;
	int rc;

	if (t->closing)
		return -ESHUTDOWN;
	c = kvs_tcp_conn_new(t, -1);
	if (!c)
		return -ENOMEM;
	kvs_conn_set_ops(&c->c, kind, ops, user);
	c->addrs = malloc(sizeof(*c->addrs));
	if (!c->addrs) {
		kvs_tcp_conn_free(c);
		return -ENOMEM;
	}
	*c->addrs = *addr;
	rc = connect_next(c, &tried);
	if (rc && !tried) {
		kvs_tcp_conn_free(c);
		return rc;
	}
	*ret = &c->c;
	if (rc)
		kvs_tcp_die(c, rc);
	return 0;
}

int kvs_tcp_adopt(struct kvs_transport *transport, int fd,
		  enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		  void *user, struct kvs_conn **ret)
{
	struct kvs_tcp *t = tcp_of(transport);
	struct sockaddr_storage ss;
	socklen_t len = sizeof(int);
	struct kvs_tcp_conn *c;
	int type;
	int rc;

	if (t->closing)
		return -ESHUTDOWN;
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len))
		return -errno;
	if (type != SOCK_STREAM)
		return -EINVAL;
	len = sizeof(ss);
	if (getpeername(fd, (struct sockaddr *)&ss, &len))
		return -errno;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC))
		return -errno;
	rc = set_block(fd, t->eng->nonblock);
	if (rc)
		return rc;
	c = kvs_tcp_conn_new(t, fd);
	if (!c)
		return -ENOMEM;
	tune(t, fd);
	kvs_addr_format((const struct sockaddr *)&ss, len, c->c.peer);
	kvs_conn_set_ops(&c->c, kind, ops, user);
	rc = kvs_tcp_conn_open(c);
	if (rc) {
		c->fd = -1; /* stays the caller's */
		kvs_tcp_conn_free(c);
		return rc;
	}
	*ret = &c->c;
	return 0;
}

/* ---- watches ---- */

static void watch_ready(struct kvs_tcp_poll *p, short revents)
{
	struct kvs_tcp_watch *w =
		kvs_container_of(p, struct kvs_tcp_watch, poll);

	tcp_of(w->w.t)->handled++;
	w->w.ready(&w->w, revents, w->w.arg);
}

static void watch_gone(struct kvs_tcp_poll *p)
{
	struct kvs_tcp_watch *w =
		kvs_container_of(p, struct kvs_tcp_watch, poll);

	kvs_list_del(&w->node);
	free(w);
}

int kvs_tcp_watch(struct kvs_transport *transport, int fd, short events,
		  void (*ready)(struct kvs_watch *w, short revents, void *arg),
		  void *arg, struct kvs_watch **ret)
{
	struct kvs_tcp *t = tcp_of(transport);
	struct kvs_tcp_watch *w;
	int rc;

	if (t->closing)
		return -ESHUTDOWN;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->w.magic = KVS_WATCH_MAGIC;
	w->w.t = transport;
	w->w.ready = ready;
	w->w.arg = arg;
	w->poll.fd = fd;
	w->poll.events = events;
	w->poll.ready = watch_ready;
	w->poll.gone = watch_gone;
	kvs_list_init(&w->poll.pend);
	rc = t->eng->poll_set(t, &w->poll);
	if (rc) {
		free(w);
		return rc;
	}
	kvs_list_add_tail(&t->watches, &w->node);
	*ret = &w->w;
	return 0;
}

int kvs_tcp_watch_events(struct kvs_watch *watch, short events)
{
	struct kvs_tcp_watch *w =
		kvs_container_of(watch, struct kvs_tcp_watch, w);

	w->poll.events = events;
	return tcp_of(watch->t)->eng->poll_set(tcp_of(watch->t), &w->poll);
}

void kvs_tcp_watch_remove(struct kvs_watch *watch)
{
	struct kvs_tcp_watch *w =
		kvs_container_of(watch, struct kvs_tcp_watch, w);

	if (w->poll.dead)
		return;
	tcp_of(watch->t)->eng->poll_del(tcp_of(watch->t), &w->poll);
}

/* ---- life ---- */

void kvs_tcp_destroy(struct kvs_transport *transport)
{
	struct kvs_tcp *t = tcp_of(transport);
	struct kvs_tcp_listener *l;
	struct kvs_tcp_watch *w;
	struct kvs_tcp_conn *c;

	t->closing = true;
	kvs_list_for_each_entry(l, &t->listeners, node)
		kvs_tcp_listener_close(&l->l);
	kvs_list_for_each_entry(w, &t->watches, node)
		kvs_tcp_watch_remove(&w->w);
	t->eng->poll_del(t, &t->wake);
	kvs_list_for_each_entry(c, &t->conns, node)
		kvs_tcp_die(c, -ESHUTDOWN);
	for (;;) {
		run_pending(t);
		if (kvs_list_empty(&t->conns) && t->wake.fd < 0 &&
		    kvs_list_empty(&t->listeners) &&
		    kvs_list_empty(&t->watches))
			break;
		t->eng->wait(t,
			     kvs_list_empty(&t->pend) ? KVS_NSEC_PER_SEC : 0);
	}
	t->eng->fini(t);
	t->t.magic = 0;
	free(t->scratch);
	free(t);
}

static int create(const struct kvs_tcp_engine *eng,
		  const struct kvs_transport_opts *o,
		  struct kvs_transport **ret, char *err, size_t errlen)
{
	struct kvs_tcp *t = calloc(1, sizeof(*t));
	int rc = -ENOMEM;

	if (!t)
		goto out_nomem;
	kvs_transport_init(&t->t, &eng->ops, o);
	t->eng = eng;
	t->max_conns = o && o->max_conns ? o->max_conns : DEFAULT_MAX_CONNS;
	t->rcvbuf = o ? o->rcvbuf : 0;
	t->sndbuf = o ? o->sndbuf : 0;
	t->user_timeout_ms = o ? o->user_timeout_ms : 0;
	kvs_list_init(&t->conns);
	kvs_list_init(&t->pend);
	kvs_list_init(&t->flush);
	kvs_list_init(&t->listeners);
	kvs_list_init(&t->watches);
	kvs_list_init(&t->gone);
	t->scratch = malloc(KVS_TCP_SCRATCH);
	if (!t->scratch)
		goto out_nomem;
	rc = eng->init(t, err, errlen);
	if (rc)
		goto out_free;
	t->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->wake.fd < 0) {
		rc = -errno;
		snprintf(err, errlen, "eventfd: %s", strerror(-rc));
		goto out_fini;
	}
	t->wake.events = POLLIN;
	t->wake.ready = wake_ready;
	t->wake.gone = wake_gone;
	kvs_list_init(&t->wake.pend);
	rc = eng->poll_set(t, &t->wake);
	if (rc) {
		snprintf(err, errlen, "eventfd: %s", strerror(-rc));
		close(t->wake.fd);
		goto out_fini;
	}
	*ret = &t->t;
	return 0;
out_fini:
	eng->fini(t);
	goto out_free;
out_nomem:
	snprintf(err, errlen, "out of memory");
out_free:
	if (t)
		free(t->scratch);
	free(t);
	return rc;
}

int kvs_tcp_create(const struct kvs_transport_opts *o,
		   struct kvs_transport **ret, char *err, size_t errlen)
{
	const char *engine = o && o->engine ? o->engine : "auto";
	char none[1];
	int rc;

	if (!err || !errlen) {
		err = none;
		errlen = sizeof(none);
	}
	if (o && o->frame_max &&
	    (o->frame_max < KVS_DATA_FRAME || o->frame_max > KVS_FRAME_MAX)) {
		snprintf(err, errlen, "frame_max %zu: allowed %u to %u",
			 o->frame_max, KVS_DATA_FRAME, KVS_FRAME_MAX);
		return -EINVAL;
	}
	if (o && (o->rcvbuf < 0 || o->sndbuf < 0)) {
		snprintf(err, errlen, "negative socket buffer size");
		return -EINVAL;
	}
	if (!strcmp(engine, "sock"))
		return create(&kvs_tcp_sock, o, ret, err, errlen);
	if (!strcmp(engine, "uring"))
		return create(&kvs_tcp_uring, o, ret, err, errlen);
	if (strcmp(engine, "auto")) {
		snprintf(err, errlen,
			 "engine \"%.32s\": allowed auto, uring, sock", engine);
		return -EINVAL;
	}
	rc = create(&kvs_tcp_uring, o, ret, err, errlen);
	if (!rc)
		return 0;
	/* why io_uring could not be had is no error of this call */
	err[0] = '\0';
	return create(&kvs_tcp_sock, o, ret, err, errlen);
}
