/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to the daemon and agreeing with it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"

#define ATTACH_RETRY (5 * KVS_NSEC_PER_MSEC)

static int connect_failed(const char *path, int err, char *text, size_t len)
{
	snprintf(text, len, "%s: %s", path, strerror(err));
	return -err;
}

static int socket_send(struct kvs_engine *e, const void *p, size_t len)
{
	if (send(e->fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	if (errno == EINTR || errno == ENOBUFS)
		return -EAGAIN;
	return -errno;
}

static ssize_t socket_receive(struct kvs_engine *e, bool *ret_cut)
{
	struct iovec iov = { &e->buf, sizeof(e->buf) };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t got;

	/* ECONNRESET: the daemon died with our packets unread; its own last
	 * ones are still here. */
	do {
		got = recvmsg(e->fd, &mh, MSG_DONTWAIT);
	} while (got < 0 && (errno == EINTR || errno == ECONNRESET));
	*ret_cut = mh.msg_flags & MSG_TRUNC;
	return got < 0 ? -errno : got;
}

/* Not closed: the number is still in the caller's poll set. */
static void socket_shut(struct kvs_engine *e)
{
	(void)shutdown(e->fd, SHUT_RDWR);
}

static void socket_free(struct kvs_engine *e)
{
	kvs_eng_unmap(e);
	close(e->fd);
}

static const struct kvs_eng_port socket_port = {
	.send = socket_send,
	.receive = socket_receive,
	.shut = socket_shut,
	.map = kvs_eng_map,
	.free = socket_free,
};

int kvs_eng_connect(struct kvs_engine *e, const char *path, uint64_t deadline,
		    char *err, size_t errlen)
{
	const struct timespec nap = { .tv_nsec = (long)ATTACH_RETRY };
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, ret;

	if (strlen(path) >= sizeof(sa.sun_path)) {
		snprintf(err, errlen, "%s: longer than %zu bytes", path,
			 sizeof(sa.sun_path) - 1);
		return -EINVAL;
	}
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return connect_failed(path, errno, err, errlen);
	/* EAGAIN: its backlog is full, and nothing tells when it is not. */
	while (connect(fd, (struct sockaddr *)&sa, sizeof(sa))) {
		ret = errno;
		if (ret == EAGAIN && kvs_clock_now(&kvs_clock_real) >= deadline)
			ret = ETIMEDOUT;
		if (ret != EAGAIN && ret != EINTR) {
			close(fd);
			return connect_failed(path, ret, err, errlen);
		}
		if (ret == EAGAIN)
			(void)nanosleep(&nap, NULL);
	}
	e->fd = fd;
	e->port = &socket_port;
	return 0;
}

/* Until the socket is ready for @events. */
static int attach_wait(int fd, short events, uint64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };
	uint64_t now;
	int n;

	for (;;) {
		now = kvs_clock_now(&kvs_clock_real);
		if (now >= deadline)
			return -ETIMEDOUT;
		n = poll(&p, 1,
			 (int)((deadline - now) / KVS_NSEC_PER_MSEC % 60000) +
				 1);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

/* The daemon tells our death by this descriptor, see front_engine.c. */
static int attach_send(struct kvs_engine *e, const void *p, size_t len,
		       uint64_t deadline)
{
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE(sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { (void *)p, len };
	struct msghdr mh = { .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &ctl,
			     .msg_controllen = sizeof(ctl) };
	int pidfd = pidfd_open(getpid(), 0);
	int ret;

	if (pidfd < 0)
		return -errno;
	ctl.h.cmsg_level = SOL_SOCKET;
	ctl.h.cmsg_type = SCM_RIGHTS;
	ctl.h.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&ctl.h), &pidfd, sizeof(pidfd));
	do {
		ret = attach_wait(e->fd, POLLOUT, deadline);
		if (!ret && sendmsg(e->fd, &mh, MSG_NOSIGNAL) < 0)
			ret = -errno;
	} while (ret == -EAGAIN || ret == -EINTR);
	close(pidfd);
	return ret == -EPIPE ? -ECONNRESET : ret;
}

struct kvs_packet_attach *kvs_eng_offer(const struct kvs_engine *e,
					const struct kvs_engine_opts *o,
					size_t *ret_len)
{
	const struct kvs_layout *l = e->layout;
	size_t buffers = l->n_buffers * sizeof(l->buffers[0]);
	size_t cuts = l->cuts ? l->n_buffers * sizeof(l->cuts[0]) : 0;
	size_t len = sizeof(struct kvs_packet_attach) + buffers + cuts;
	struct kvs_packet_attach *p = calloc(1, len);

	if (!p)
		return NULL;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_ATTACH;
	p->version = KVS_ATTACH_VERSION;
	p->node = o->node;
	snprintf(p->name, sizeof(p->name), "%s", o->name ? o->name : "engine");
	snprintf(p->pci, sizeof(p->pci), "%s", o->pci ? o->pci : "");
	if (o->group) {
		snprintf(p->group, sizeof(p->group), "%s", o->group);
		p->rank = o->rank;
		p->n_ranks = o->n_ranks;
	}
	snprintf(p->space, sizeof(p->space), "%s",
		 o->cache_space ? o->cache_space : "");
	p->cache_block = o->cache_block;
	p->page_size = l->page_size;
	p->dtype = l->dtype;
	p->aux_max = l->aux_max;
	p->n_buffers = l->n_buffers;
	p->capacity = l->capacity;
	p->max_context = l->max_context;
	memcpy(p->buffers, l->buffers, buffers);
	if (cuts) {
		p->tp = kvs_layout_tp(l);
		p->tp_rank = l->tp_rank;
		p->cut = 1;
		memcpy((char *)p->buffers + buffers, l->cuts, cuts);
	}
	*ret_len = len;
	return p;
}

static unsigned int attach_take_fds(struct msghdr *mh, int *fds,
				    unsigned int max)
{
	unsigned int n = 0, got;
	int fd;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		got = (unsigned int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (unsigned int i = 0; i < got; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (n < max)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

int kvs_eng_handshake(struct kvs_engine *e, const struct kvs_engine_opts *o,
		      uint64_t deadline, char *err, size_t errlen)
{
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE((1 + KVS_ATTACH_POOLS_MAX) * sizeof(int))];
	} ctl;
	struct iovec iov = { &e->buf, sizeof(e->buf) };
	struct msghdr mh = { .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &ctl,
			     .msg_controllen = sizeof(ctl) };
	struct kvs_packet_attach *p;
	ssize_t n = 0;
	size_t len;
	int ret;

	p = kvs_eng_offer(e, o, &len);
	ret = p ? attach_send(e, p, len, deadline) : -ENOMEM;
	free(p);
	/* A refusal may have overtaken the failed send: read it first. */
	if (ret && ret != -ECONNRESET)
		goto out;
	do {
		ret = attach_wait(e->fd, POLLIN, deadline);
		if (ret)
			goto out;
		n = recvmsg(e->fd, &mh, MSG_CMSG_CLOEXEC);
	} while (n < 0 && (errno == EAGAIN || errno == EINTR));
	if (n <= 0) {
		ret = n ? -errno : -ECONNRESET;
		goto out;
	}
	e->n_fds = attach_take_fds(&mh, e->fds, KVS_ARRAY_SIZE(e->fds));
	if (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		snprintf(err, errlen, "the daemon's answer was cut");
		ret = -EPROTO;
	} else {
		ret = kvs_eng_answer(e, (size_t)n, err, errlen);
	}
	while (e->n_fds)
		close(e->fds[--e->n_fds]);
	return ret;

out:
	snprintf(err, errlen, "%s",
		 ret == -ETIMEDOUT    ? "the daemon did not answer in time"
		 : ret == -ECONNRESET ? "the daemon closed the connection"
				      : strerror(-ret));
	return ret;
}
