/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon control
 *
 * kvstagectl(1)'s socket. A connection carries one request, a line of JSON
 * such as {"command":"rooms"}, and its answer: a JSON object a line, the last
 * one {"ok":true} or {"ok":false,"errno":"ENOENT","error":"..."}. Mode 0600,
 * and whoever connects must be root or of our own user.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/list.h"
#include "lib/log.h"
#include "tools/daemon.h"
#include "tools/daemon_accept.h"

#define KVS_CTL_LINE_MAX 4096 /* bytes of a request */
#define KVS_CTL_CONNECTIONS_MAX 32
#define KVS_CTL_TIMEOUT 10 /* s without progress */
#define KVS_CTL_FIRST 5 /* s until the request is there */
#define KVS_CTL_BUSY                                   \
	"{\"ok\":false,\"errno\":\"EBUSY\",\"error\":" \
	"\"the daemon is busy: too many ask at once\"}\n"

struct kvs_ctl {
	struct kvs_daemon *d;
	struct evconnlistener *listener;
	struct kvs_accept *accept;
	struct kvs_list connections;
	unsigned int n;
};

struct kvs_ctl_connection {
	struct kvs_ctl *ctl;
	struct bufferevent *bev;
	struct event *first; /* ends one that does not ask */
	struct kvs_list node;
	bool answered;
};

static void kvs_ctl_close(struct kvs_ctl_connection *c)
{
	kvs_list_del(&c->node);
	c->ctl->n--;
	bufferevent_free(c->bev);
	event_free(c->first);
	free(c);
}

static void kvs_ctl_too_late(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	kvs_ctl_close(arg);
}

static void kvs_ctl_read(struct bufferevent *bev, void *arg)
{
	struct kvs_ctl_connection *c = arg;
	struct evbuffer *in = bufferevent_get_input(bev);
	char *line, *text;
	size_t len;
	int ret;

	if (c->answered) {
		evbuffer_drain(in, evbuffer_get_length(in));
		return;
	}
	line = evbuffer_readln(in, &len, EVBUFFER_EOL_LF);
	if (!line) {
		if (evbuffer_get_length(in) >= KVS_CTL_LINE_MAX)
			kvs_ctl_close(c);
		return;
	}
	/* what follows a NUL would be lost, and is not JSON either */
	if (len != strlen(line) || len > KVS_CTL_LINE_MAX)
		line[0] = '\0';
	ret = kvs_ctl_answer(c->ctl->d, line, &text, &len);
	free(line);
	if (ret) {
		kvs_ctl_close(c);
		return;
	}
	c->answered = true;
	event_del(c->first);
	ret = bufferevent_write(bev, text, len);
	free(text);
	if (ret)
		kvs_ctl_close(c);
}

static void kvs_ctl_written(struct bufferevent *bev, void *arg)
{
	struct kvs_ctl_connection *c = arg;

	if (c->answered && !evbuffer_get_length(bufferevent_get_output(bev)))
		kvs_ctl_close(c);
}

static void kvs_ctl_event(struct bufferevent *bev, short what, void *arg)
{
	struct kvs_ctl_connection *c = arg;

	/* who has nothing more to ask may still be listening */
	if ((what & BEV_EVENT_EOF) && c->answered &&
	    evbuffer_get_length(bufferevent_get_output(bev)))
		return;
	kvs_ctl_close(c);
}

static bool kvs_ctl_may(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return false;
	return cred.uid == 0 || cred.uid == geteuid();
}

static void kvs_ctl_accept(struct evconnlistener *l, evutil_socket_t fd,
			   struct sockaddr *sa, int len, void *arg)
{
	const struct timeval tv = { .tv_sec = KVS_CTL_TIMEOUT };
	const struct timeval first = { .tv_sec = KVS_CTL_FIRST };
	struct kvs_ctl *ctl = arg;
	struct kvs_ctl_connection *c;

	(void)l;
	(void)sa;
	(void)len;
	if (!kvs_ctl_may(fd)) {
		close(fd);
		return;
	}
	if (ctl->n >= KVS_CTL_CONNECTIONS_MAX) {
		/* best effort: the socket is new and empty, so it fits */
		(void)send(fd, KVS_CTL_BUSY, strlen(KVS_CTL_BUSY),
			   MSG_DONTWAIT | MSG_NOSIGNAL);
		close(fd);
		return;
	}
	c = calloc(1, sizeof(*c));
	if (c)
		c->bev = bufferevent_socket_new(ctl->d->base, fd,
						BEV_OPT_CLOSE_ON_FREE);
	if (!c || !c->bev) {
		free(c);
		close(fd);
		return;
	}
	c->first = evtimer_new(ctl->d->base, kvs_ctl_too_late, c);
	if (!c->first || event_add(c->first, &first)) {
		if (c->first)
			event_free(c->first);
		bufferevent_free(c->bev);
		free(c);
		return;
	}
	c->ctl = ctl;
	kvs_list_add_tail(&ctl->connections, &c->node);
	ctl->n++;
	bufferevent_setcb(c->bev, kvs_ctl_read, kvs_ctl_written, kvs_ctl_event,
			  c);
	bufferevent_setwatermark(c->bev, EV_READ, 0, KVS_CTL_LINE_MAX);
	bufferevent_set_timeouts(c->bev, &tv, &tv);
	if (bufferevent_enable(c->bev, EV_READ | EV_WRITE))
		kvs_ctl_close(c);
}

int kvs_ctl_start(struct kvs_daemon *d, struct kvs_ctl **ret, char *err,
		  size_t errlen)
{
	struct kvs_ctl *c = calloc(1, sizeof(*c));
	int fd, r;

	if (!c) {
		snprintf(err, errlen, "%s", strerror(ENOMEM));
		return -ENOMEM;
	}
	c->d = d;
	kvs_list_init(&c->connections);
	r = kvs_unix_listen("ctl.socket", d->settings.ctl_socket, &fd, err,
			    errlen);
	if (r) {
		free(c);
		return r;
	}
	c->listener = evconnlistener_new(
		d->base, kvs_ctl_accept, c,
		LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
	if (!c->listener) {
		snprintf(err, errlen, "%s", strerror(ENOMEM));
		close(fd);
		free(c);
		return -ENOMEM;
	}
	r = kvs_accept_start(d->base, "ctl.socket", c->listener, &c->accept);
	if (r) {
		snprintf(err, errlen, "%s", strerror(-r));
		kvs_ctl_stop(c);
		return r;
	}
	*ret = c;
	return 0;
}

void kvs_ctl_stop(struct kvs_ctl *c)
{
	if (!c)
		return;
	kvs_accept_stop(c->accept);
	evconnlistener_free(c->listener);
	while (!kvs_list_empty(&c->connections))
		kvs_ctl_close(kvs_list_first(&c->connections,
					     struct kvs_ctl_connection, node));
	free(c);
}
