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

#define ATTACH_RETRY (5 * KVS_NSEC_PER_MSEC)

static int connect_failed(const char *path, int err, char *text, size_t len)
{
	snprintf(text, len, "%s: %s", path, strerror(err));
	return -err;
}

int kvs_eng_connect(const char *path, uint64_t deadline, int *ret, char *err,
		    size_t errlen)
{
	const struct timespec nap = { .tv_nsec = (long)ATTACH_RETRY };
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, e;

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
		e = errno;
		if (e == EAGAIN && kvs_clock_now(&kvs_clock_real) >= deadline)
			e = ETIMEDOUT;
		if (e != EAGAIN && e != EINTR) {
			close(fd);
			return connect_failed(path, e, err, errlen);
		}
		if (e == EAGAIN)
			(void)nanosleep(&nap, NULL);
	}
	*ret = fd;
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

static int attach_offer(struct kvs_engine *e, const struct kvs_engine_opts *o,
			uint64_t deadline)
{
	const struct kvs_layout *l = e->layout;
	size_t len = sizeof(struct kvs_packet_attach) +
		     l->n_buffers * sizeof(l->buffers[0]);
	struct kvs_packet_attach *p = calloc(1, len);
	int ret;

	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_ATTACH;
	p->version = KVS_ATTACH_VERSION;
	p->node = o->node;
	snprintf(p->name, sizeof(p->name), "%s", o->name ? o->name : "engine");
	snprintf(p->pci, sizeof(p->pci), "%s", o->pci ? o->pci : "");
	p->page_size = l->page_size;
	p->dtype = l->dtype;
	p->aux_max = l->aux_max;
	p->n_buffers = l->n_buffers;
	p->capacity = l->capacity;
	p->max_context = l->max_context;
	memcpy(p->buffers, l->buffers, l->n_buffers * sizeof(l->buffers[0]));
	ret = attach_send(e, p, len, deadline);
	free(p);
	return ret;
}

static int attach_refused(const struct kvs_packet_refused *p, size_t len,
			  char *err, size_t errlen)
{
	if (len != sizeof(*p) || p->err <= 0 || p->err > 4095) {
		snprintf(err, errlen, "the daemon sent a malformed refusal");
		return -EPROTO;
	}
	snprintf(err, errlen, "%.*s", (int)sizeof(p->text) - 1, p->text);
	return -p->err;
}

static int attach_answer(struct kvs_engine *e, size_t len, const int *fds,
			 unsigned int n_fds, char *err, size_t errlen)
{
	const struct kvs_packet_attached *p = (const void *)&e->buf;

	if (len >= sizeof(p->h) && p->h.magic == KVS_ATTACH_MAGIC &&
	    p->h.type == KVS_PACKET_REFUSED)
		return attach_refused((const void *)&e->buf, len, err, errlen);
	if (len != sizeof(*p) || p->h.magic != KVS_ATTACH_MAGIC ||
	    p->h.type != KVS_PACKET_ATTACHED) {
		snprintf(err, errlen, "the daemon's answer is malformed");
		return -EPROTO;
	}
	return kvs_eng_map(e, p, fds, n_fds, err, errlen);
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
	int fds[1 + KVS_ATTACH_POOLS_MAX];
	unsigned int n_fds;
	ssize_t n = 0;
	int ret;

	ret = attach_offer(e, o, deadline);
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
	n_fds = attach_take_fds(&mh, fds, KVS_ARRAY_SIZE(fds));
	if (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		snprintf(err, errlen, "the daemon's answer was cut");
		ret = -EPROTO;
	} else {
		ret = attach_answer(e, (size_t)n, fds, n_fds, err, errlen);
	}
	for (unsigned int i = 0; i < n_fds; i++)
		close(fds[i]);
	return ret;

out:
	snprintf(err, errlen, "%s",
		 ret == -ETIMEDOUT    ? "the daemon did not answer in time"
		 : ret == -ECONNRESET ? "the daemon closed the connection"
				      : strerror(-ret));
	return ret;
}
