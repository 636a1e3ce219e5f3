/* SPDX-License-Identifier: Apache-2.0 */
/* Engines over a Unix socket: listening, packets, descriptors that come and
 * go with them, and the pidfd that tells of a process's exit. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/log.h"
#include "pipeline/front.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Out of descriptors: how long the socket rests, and how far apart failures
 * are that are worth a line each. */
#define KVS_ENGINE_REST (100 * KVS_NSEC_PER_MSEC)
#define KVS_ENGINE_EPISODE (10 * KVS_NSEC_PER_SEC)

/* ---- the port ------------------------------------------------------------ */

static int socket_send(struct kvs_front_engine *e, const void *p, size_t len)
{
	if (send(e->fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	return errno == ENOBUFS ? -EAGAIN : -errno;
}

static void socket_want(struct kvs_front_engine *e, bool on)
{
	(void)kvs_watch_events(e->watch, on ? POLLIN | POLLOUT : POLLIN);
}

static void accept_again(struct kvs_front *f)
{
	if (!kvs_timer_is_set(&f->attach_again))
		return;
	kvs_timer_cancel(&f->timers, &f->attach_again);
	if (f->attach_watch && kvs_watch_events(f->attach_watch, POLLIN))
		kvs_log_err("engine socket: cannot be watched any more");
}

static void socket_close(struct kvs_front_engine *e)
{
	kvs_watch_remove(e->watch);
	e->watch = NULL;
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
	accept_again(e->f);
}

static void socket_free(struct kvs_front_engine *e)
{
	kvs_watch_remove(e->pid_watch);
	if (e->pidfd >= 0)
		close(e->pidfd);
	if (e->words)
		munmap((void *)e->words, e->n_slots * sizeof(e->words[0]));
	if (e->status_fd >= 0)
		close(e->status_fd);
}

/* Is this descriptor a pidfd of the process on the other side? */
static int socket_identify(struct kvs_front_engine *e)
{
	char path[64], line[128];
	int ret = -EINVAL;
	long got;
	FILE *f;

	if (e->pidfd < 0)
		return -EBADF;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", e->pidfd);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "Pid: %ld", &got) == 1)
			ret = got == (long)e->pid ? 0 : -EACCES;
	(void)fclose(f);
	return ret;
}

static int socket_pages(struct kvs_front_engine *e)
{
	size_t len = e->n_slots * sizeof(e->words[0]);
	int ret;

	e->status_fd =
		memfd_create("kvstage-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (e->status_fd < 0)
		return -errno;
	if (ftruncate(e->status_fd, (off_t)len))
		return -errno;
	e->words = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED,
			e->status_fd, 0);
	if (e->words == MAP_FAILED) {
		ret = -errno;
		e->words = NULL;
		return ret;
	}
	if (fcntl(e->status_fd, F_ADD_SEALS,
		  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE |
			  F_SEAL_SEAL))
		return -errno;
	return 0;
}

static int socket_answer(struct kvs_front_engine *e,
			 const struct kvs_packet_attached *p,
			 const struct kvs_region *const *pools)
{
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE((1 + KVS_ATTACH_POOLS_MAX) * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { (void *)p, sizeof(*p) };
	struct msghdr mh = { .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &ctl };
	int fds[1 + KVS_ATTACH_POOLS_MAX];
	unsigned int n = 0;

	fds[n++] = e->status_fd;
	for (unsigned int i = 0; i < p->n_pools; i++)
		fds[n++] = pools[i]->fd;
	mh.msg_controllen = CMSG_SPACE(n * sizeof(int));
	ctl.h.cmsg_level = SOL_SOCKET;
	ctl.h.cmsg_type = SCM_RIGHTS;
	ctl.h.cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(&ctl.h), fds, n * sizeof(int));
	return sendmsg(e->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno
								    : 0;
}

static void socket_exited(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_front_engine *e = arg;

	(void)w;
	(void)revents;
	kvs_watch_remove(e->pid_watch);
	e->pid_watch = NULL;
	kvs_front_engine_exited(e);
}

static int socket_watch_exit(struct kvs_front_engine *e)
{
	return kvs_transport_watch(e->f->transport, e->pidfd, POLLIN,
				   socket_exited, e, &e->pid_watch);
}

static const struct kvs_front_port socket_port = {
	.send = socket_send,
	.want = socket_want,
	.close = socket_close,
	.free = socket_free,
	.identify = socket_identify,
	.pages = socket_pages,
	.answer = socket_answer,
	.watch_exit = socket_watch_exit,
};

/* ---- what comes in ------------------------------------------------------- */

static unsigned int take_fds(struct msghdr *mh, int *fds)
{
	unsigned int n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (unsigned int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), n * sizeof(int));
	}
	return n;
}

static void engine_receive(struct kvs_front_engine *e)
{
	static _Thread_local union {
		uint64_t align; /* of every packet's members */
		struct kvs_packet h;
		unsigned char b[KVS_PACKET_MAX];
	} buf;
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE(4 * sizeof(int))];
	} ctl;
	int fds[4];

	for (int turn = 0; turn < 64 && e->open; turn++) {
		struct iovec iov = { &buf, sizeof(buf) };
		struct msghdr mh = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = &ctl,
			.msg_controllen = sizeof(ctl),
		};
		ssize_t n =
			recvmsg(e->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		unsigned int n_fds;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			kvs_front_engine_lost(e, e->detached ? "detached"
							     : "socket closed");
			return;
		}
		n_fds = take_fds(&mh, fds);
		/* ATTACH brings one, its pidfd. */
		if (!e->attached && e->pidfd < 0 && n_fds == 1) {
			e->pidfd = fds[0];
			n_fds = 0;
		}
		for (unsigned int i = 0; i < n_fds; i++)
			close(fds[i]);
		kvs_front_engine_receive(e, &buf, (size_t)n,
					 mh.msg_flags &
						 (MSG_TRUNC | MSG_CTRUNC));
	}
}

static void engine_ready(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_front_engine *e = arg;

	(void)w;
	if (revents & POLLOUT)
		kvs_front_engine_flush(e);
	if (e->open && (revents & (POLLIN | POLLHUP | POLLERR)))
		engine_receive(e);
}

/* ---- listening ----------------------------------------------------------- */

static void engine_rested(struct kvs_timer *t)
{
	struct kvs_front *f =
		kvs_container_of(t, struct kvs_front, attach_again);

	if (f->attach_watch && kvs_watch_events(f->attach_watch, POLLIN))
		kvs_log_err("engine socket: cannot be watched any more");
}

/* The socket stays readable, and to be called for it again and again helps
 * nobody. */
static void engine_accept_failed(struct kvs_front *f, int err)
{
	uint64_t now = kvs_clock_now(f->clock);

	if (err != EMFILE && err != ENFILE && err != ENOBUFS && err != ENOMEM)
		return;
	if (!f->attach_failed || now - f->attach_failed > KVS_ENGINE_EPISODE)
		kvs_log_warn("engine socket: cannot accept: %s; engines wait "
			     "until it can",
			     strerror(err));
	f->attach_failed = now;
	/* without the timer nothing would wake it */
	if (!kvs_timer_set(&f->timers, &f->attach_again, now + KVS_ENGINE_REST))
		(void)kvs_watch_events(f->attach_watch, 0);
}

static void engine_accept(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_front *f = arg;
	struct kvs_front_engine *e;
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int fd;

	(void)w;
	(void)revents;
	fd = accept4(f->attach_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		engine_accept_failed(f, errno);
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) ||
	    kvs_front_engine_new(f, &socket_port, cred.pid, &e)) {
		kvs_log_warn("engine socket: a connection was refused (%u are "
			     "open)",
			     f->n_engines);
		close(fd);
		return;
	}
	e->fd = fd;
	if (kvs_transport_watch(f->transport, fd, POLLIN, engine_ready, e,
				&e->watch))
		kvs_front_engine_lost(e, "cannot be watched");
}

/* A socket file nobody answers on is left over from a crash. */
static int socket_in_use(const struct sockaddr_un *sa)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int ret;

	if (fd < 0)
		return -errno;
	ret = connect(fd, (const struct sockaddr *)sa, sizeof(*sa));
	ret = ret ? -errno : 0;
	close(fd);
	if (!ret)
		return 1;
	return ret == -ECONNREFUSED || ret == -ENOENT ? 0 : ret;
}

int kvs_engine_listen(struct kvs_front *f, char *err, size_t errlen)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const char *path = f->settings.engine_socket;
	int ret;

	if (strlen(path) >= sizeof(sa.sun_path)) {
		snprintf(err, errlen,
			 "engine.socket: %s is longer than %zu bytes", path,
			 sizeof(sa.sun_path) - 1);
		return -EINVAL;
	}
	memcpy(sa.sun_path, path, strlen(path));
	ret = socket_in_use(&sa);
	if (ret > 0) {
		snprintf(err, errlen,
			 "engine.socket: %s is in use by another daemon", path);
		return -EADDRINUSE;
	}
	if (!ret)
		(void)unlink(path);
	f->attach_fd = socket(AF_UNIX,
			      SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (f->attach_fd < 0)
		return -errno;
	if (bind(f->attach_fd, (struct sockaddr *)&sa, sizeof(sa)) ||
	    chmod(path, 0660) || listen(f->attach_fd, 64)) {
		ret = -errno;
		snprintf(err, errlen, "engine.socket: %s: %s", path,
			 strerror(-ret));
		return ret;
	}
	snprintf(f->attach_path, sizeof(f->attach_path), "%s", path);
	kvs_timer_init(&f->attach_again, engine_rested);
	return kvs_transport_watch(f->transport, f->attach_fd, POLLIN,
				   engine_accept, f, &f->attach_watch);
}
