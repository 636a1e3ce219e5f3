/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of engine processes: accept, packets, status words, death. An
 * engine is dead when its pidfd is readable AND its socket is at end of file:
 * a forked child may still hold the device.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "pipeline/front.h"
#include "pipeline/front_internal.h"

/* Rooms of an engine that is gone end in a moment, unless it left copies. */
#define KVS_ENGINE_LINGER KVS_NSEC_PER_SEC

/* Out of descriptors: how long the socket rests, and how far apart failures
 * are that are worth a line each. */
#define KVS_ENGINE_REST (100 * KVS_NSEC_PER_MSEC)
#define KVS_ENGINE_EPISODE (10 * KVS_NSEC_PER_SEC)

struct kvs_front_engine *kvs_front_engine(struct kvs_front *f, uint32_t number)
{
	struct kvs_front_engine *e;

	kvs_list_for_each_entry(e, &f->engines, node)
		if (e->number == number && e->attached)
			return e;
	return NULL;
}

void kvs_front_engine_free(struct kvs_front_engine *e)
{
	struct kvs_engine_out *o;

	kvs_watch_remove(e->watch);
	kvs_watch_remove(e->pid_watch);
	kvs_timer_cancel(&e->f->timers, &e->handshake);
	if (e->fd >= 0)
		close(e->fd);
	if (e->pidfd >= 0)
		close(e->pidfd);
	if (e->words)
		munmap((void *)e->words, e->n_slots * sizeof(e->words[0]));
	if (e->status_fd >= 0)
		close(e->status_fd);
	while (!kvs_list_empty(&e->out)) {
		o = kvs_list_first(&e->out, struct kvs_engine_out, node);
		kvs_list_del(&o->node);
		free(o);
	}
	kvs_list_del(&e->node);
	e->f->n_engines--;
	free(e->layout);
	free(e->slots);
	free(e);
}

void kvs_engines_reap(struct kvs_front *f)
{
	struct kvs_front_engine *e, *tmp;

	if (!f->reap)
		return;
	f->reap = false;
	kvs_list_for_each_entry_safe(e, tmp, &f->engines, node)
		if (e->dead)
			kvs_front_engine_free(e);
}

static void engine_post_lost(struct kvs_front_engine *e, bool proof)
{
	for (unsigned int i = 0; i < e->f->n_nodes; i++)
		if (kvs_node_engine_lost(&e->f->nodes[i], e->number, proof))
			kvs_log_err("engine %u: out of memory, its rooms stay",
				    e->number);
}

static void engine_check_dead(struct kvs_front_engine *e)
{
	if (e->dead || e->fd >= 0)
		return;
	if (e->attached && !e->exited && e->nodes_left)
		return;
	if (e->attached)
		engine_post_lost(e, true);
	e->dead = true;
	e->f->reap = true;
}

void kvs_front_engine_over(struct kvs_front *f, uint32_t number)
{
	struct kvs_front_engine *e = kvs_front_engine(f, number);

	if (!e || !e->nodes_left)
		return;
	e->nodes_left--;
	engine_check_dead(e);
}

static void engine_accept_again(struct kvs_front *f)
{
	if (!kvs_timer_is_set(&f->attach_again))
		return;
	kvs_timer_cancel(&f->timers, &f->attach_again);
	if (f->attach_watch && kvs_watch_events(f->attach_watch, POLLIN))
		kvs_log_err("engine socket: cannot be watched any more");
}

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

void kvs_front_engine_lost(struct kvs_front_engine *e, const char *why)
{
	if (e->fd < 0)
		return;
	kvs_watch_remove(e->watch);
	e->watch = NULL;
	close(e->fd);
	e->fd = -1;
	engine_accept_again(e->f);
	kvs_timer_cancel(&e->f->timers, &e->handshake);
	if (e->attached) {
		kvs_log_notice("engine %u (%s, pid %d): %s", e->number, e->name,
			       (int)e->pid, why);
		/* Room ids of its live rooms are free again at once. */
		for (uint32_t i = 0; i < e->n_slots; i++)
			if (e->slots[i].generation)
				kvs_directory_end(e->f, e->slots[i].room,
						  e->slots[i].generation,
						  ECONNRESET);
		engine_post_lost(e, false);
		/* without the timer only a line of the log is missing */
		(void)kvs_timer_set(&e->f->timers, &e->handshake,
				    kvs_clock_now(e->f->clock) +
					    KVS_ENGINE_LINGER);
	}
	engine_check_dead(e);
}

static void engine_exited(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_front_engine *e = arg;

	(void)w;
	(void)revents;
	kvs_watch_remove(e->pid_watch);
	e->pid_watch = NULL;
	e->exited = true;
	if (e->fd >= 0)
		kvs_log_warn("engine %u: pid %d has exited but its socket is "
			     "open in another process (ss -xp shows which); "
			     "its copies are held until that closes",
			     e->number, (int)e->pid);
	engine_check_dead(e);
}

static int engine_flush(struct kvs_front_engine *e)
{
	struct kvs_engine_out *o;

	while (!kvs_list_empty(&e->out)) {
		o = kvs_list_first(&e->out, struct kvs_engine_out, node);
		if (o->len && send(e->fd, o->packet, o->len,
				   MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			return -errno;
		if (o->has_word)
			atomic_store_explicit(&e->words[o->slot], o->word,
					      memory_order_release);
		kvs_list_del(&o->node);
		e->n_out--;
		free(o);
	}
	return 0;
}

/* The word is stored after the packet that explains it is in the socket:
 * an engine that sees READY (acquire) can read the packet at once. */
static void engine_hand_over(struct kvs_front_engine *e, uint32_t slot,
			     uint64_t word, const void *p, size_t len)
{
	struct kvs_engine_out *o;

	if (kvs_list_empty(&e->out) &&
	    (!len || send(e->fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)) {
		atomic_store_explicit(&e->words[slot], word,
				      memory_order_release);
		return;
	}
	if (kvs_list_empty(&e->out) && errno != EAGAIN && errno != ENOBUFS) {
		kvs_front_engine_lost(e, "socket error");
		return;
	}
	/* Bounded by the rooms an engine may have: three words and two
	 * packets each. */
	o = malloc(sizeof(*o) + len);
	if (!o || e->n_out >= 8 * e->n_slots) {
		free(o);
		kvs_front_engine_lost(e, "it does not read its socket");
		return;
	}
	o->slot = slot;
	o->word = word;
	o->has_word = true;
	o->len = len;
	if (len)
		memcpy(o->packet, p, len);
	kvs_list_add_tail(&e->out, &o->node);
	e->n_out++;
	kvs_watch_events(e->watch, POLLIN | POLLOUT);
}

void kvs_front_engine_word(struct kvs_front_engine *e, uint32_t slot,
			   uint64_t word, const struct kvs_packet *p,
			   size_t len)
{
	enum kvs_status st = KVS_WORD_STATUS(word);

	if (e->fd < 0 || slot >= e->n_slots)
		return;
	if ((st == KVS_STATUS_FAILED || st == KVS_STATUS_DONE) &&
	    e->slots[slot].generation == KVS_WORD_GEN(word))
		e->slots[slot].generation = 0;
	engine_hand_over(e, slot, word, p, len);
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

	for (int turn = 0; turn < 64 && e->fd >= 0; turn++) {
		struct iovec iov = { &buf, sizeof(buf) };
		struct msghdr mh = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = &ctl,
			.msg_controllen = sizeof(ctl),
		};
		unsigned int n_fds = 0;
		ssize_t n =
			recvmsg(e->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			kvs_front_engine_lost(e, e->detached ? "detached"
							     : "socket closed");
			return;
		}
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&mh); c;
		     c = CMSG_NXTHDR(&mh, c)) {
			if (c->cmsg_level != SOL_SOCKET ||
			    c->cmsg_type != SCM_RIGHTS)
				continue;
			n_fds = (unsigned int)((c->cmsg_len - CMSG_LEN(0)) /
					       sizeof(int));
			memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
		}
		if ((size_t)n < sizeof(buf.h) ||
		    buf.h.magic != KVS_ATTACH_MAGIC ||
		    (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
			e->f->protocol_errors[KVS_PROTO_ENGINE]++;
			kvs_front_engine_lost(e, "sent a malformed packet");
		} else if (!e->attached) {
			kvs_front_attach(e, &buf, (size_t)n, fds, n_fds);
			n_fds = 0; /* taken or closed */
		} else {
			kvs_front_engine_packet(e, &buf, (size_t)n);
		}
		for (unsigned int i = 0; i < n_fds; i++)
			close(fds[i]);
	}
}

static void engine_ready(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_front_engine *e = arg;
	int ret;

	(void)w;
	if (revents & POLLOUT) {
		ret = engine_flush(e);
		if (!ret) {
			kvs_watch_events(e->watch, POLLIN);
		} else if (ret != -EAGAIN && ret != -ENOBUFS) {
			kvs_front_engine_lost(e, "socket error");
			return;
		}
	}
	if (revents & (POLLIN | POLLHUP | POLLERR))
		engine_receive(e);
}

static void engine_handshake_fired(struct kvs_timer *t)
{
	struct kvs_front_engine *e =
		kvs_container_of(t, struct kvs_front_engine, handshake);

	if (e->attached) {
		/* lost a while ago, and a node still has rooms of it */
		if (!e->dead && !e->exited && e->nodes_left)
			kvs_log_notice("engine %u: it left copies that may "
				       "still run; their memory is held until "
				       "pid %d is gone",
				       e->number, (int)e->pid);
		return;
	}
	e->f->protocol_errors[KVS_PROTO_HANDSHAKE]++;
	kvs_front_engine_lost(e, "did not attach in time");
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
	e = calloc(1, sizeof(*e));
	if (!e || f->n_engines >= 2 * f->settings.engine_max ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		kvs_log_warn("engine socket: a connection was refused (%u are "
			     "open)",
			     f->n_engines);
		free(e);
		close(fd);
		return;
	}
	e->f = f;
	e->fd = fd;
	e->pidfd = -1;
	e->status_fd = -1;
	e->pid = cred.pid;
	e->number = ++f->next_engine;
	kvs_list_init(&e->out);
	kvs_timer_init(&e->handshake, engine_handshake_fired);
	kvs_list_add_tail(&f->engines, &e->node);
	f->n_engines++;
	if (kvs_transport_watch(f->transport, fd, POLLIN, engine_ready, e,
				&e->watch) ||
	    kvs_timer_set(&f->timers, &e->handshake,
			  kvs_clock_now(f->clock) +
				  f->settings.handshake_timeout)) {
		e->dead = true;
		f->reap = true;
	}
}

int kvs_front_engine_watch_pid(struct kvs_front_engine *e)
{
	return kvs_transport_watch(e->f->transport, e->pidfd, POLLIN,
				   engine_exited, e, &e->pid_watch);
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
