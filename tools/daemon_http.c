/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon http
 *
 * Read-only, on loopback, on the main thread. A scrape asks every worker for
 * one turn, so its numbers belong together.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "pipeline/metrics.h"
#include "tools/daemon.h"
#include "tools/daemon_accept.h"

#define KVS_HTTP_TIMEOUT 10 /* s for a request, and between two */
#define KVS_HTTP_CONNECTIONS 128 /* beyond that the oldest is cut off */
#define KVS_HTTP_SPARE 8 /* cut off and not gone yet */
#define KVS_HTTP_HEADERS_MAX 16384 /* bytes */
#define KVS_HTTP_BODY_MAX 4096 /* bytes; we read none */

/* A connection of evhttp: it tells of its birth but not of its end. */
struct kvs_http_connection {
	struct bufferevent *bev; /* we have a reference; NULL: unused */
	uint64_t since; /* ns; connected, or asked last */
	bool cut;
};

struct kvs_http {
	struct kvs_daemon *d;
	struct evhttp *http;
	struct kvs_accept *accept;
	unsigned int max; /* connections */
	struct event *tick; /* looks for those that take too long */
	struct kvs_http_connection
		connections[KVS_HTTP_CONNECTIONS + KVS_HTTP_SPARE];
};

/* What evhttp has freed has no callbacks any more. */
static bool kvs_http_is_gone(struct bufferevent *bev)
{
	bufferevent_data_cb readcb, writecb;
	bufferevent_event_cb eventcb;
	void *arg;

	bufferevent_getcb(bev, &readcb, &writecb, &eventcb, &arg);
	return !readcb && !writecb && !eventcb;
}

/* evhttp sees the end of file and cleans up. */
static void kvs_http_cut(struct kvs_http_connection *c)
{
	int fd = bufferevent_getfd(c->bev);

	c->cut = true;
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR);
}

/* Forget those that are gone; returns how many are left. */
static unsigned int kvs_http_sweep(struct kvs_http *h)
{
	unsigned int n = 0;
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(h->connections); i++) {
		struct kvs_http_connection *c = &h->connections[i];

		if (c->bev && kvs_http_is_gone(c->bev)) {
			bufferevent_decref(c->bev);
			c->bev = NULL;
		}
		n += c->bev != NULL;
	}
	return n;
}

static void kvs_http_cut_oldest(struct kvs_http *h)
{
	struct kvs_http_connection *oldest = NULL;
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(h->connections); i++) {
		struct kvs_http_connection *c = &h->connections[i];

		if (c->bev && !c->cut && (!oldest || c->since < oldest->since))
			oldest = c;
	}
	if (oldest)
		kvs_http_cut(oldest);
}

/* A connection was accepted: give it its buffers. */
static struct bufferevent *kvs_http_accepted(struct event_base *base, void *arg)
{
	struct kvs_http *h = arg;
	struct bufferevent *bev = bufferevent_socket_new(base, -1, 0);
	unsigned int n = kvs_http_sweep(h);
	size_t i;

	/* those cut off go before the listener is called again */
	if (n >= h->max) {
		kvs_http_cut_oldest(h);
		kvs_accept_pause(h->accept,
				 n + 1 < h->max + KVS_HTTP_SPARE ? 0 : 100);
	}
	for (i = 0; bev && i < KVS_ARRAY_SIZE(h->connections); i++) {
		struct kvs_http_connection *c = &h->connections[i];

		if (c->bev)
			continue;
		bufferevent_incref(bev);
		*c = (struct kvs_http_connection){
			.bev = bev,
			.since = kvs_clock_now(&kvs_clock_real),
		};
		break;
	}
	return bev;
}

static void kvs_http_tick(evutil_socket_t fd, short what, void *arg)
{
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	struct kvs_http *h = arg;
	size_t i;

	(void)fd;
	(void)what;
	kvs_http_sweep(h);
	for (i = 0; i < KVS_ARRAY_SIZE(h->connections); i++) {
		struct kvs_http_connection *c = &h->connections[i];

		if (c->bev && !c->cut &&
		    now - c->since > KVS_HTTP_TIMEOUT * KVS_NSEC_PER_SEC)
			kvs_http_cut(c);
	}
}

/* It has asked, so it has time for the next. */
static void kvs_http_heard(struct kvs_http *h, struct evhttp_request *req)
{
	struct evhttp_connection *conn = evhttp_request_get_connection(req);
	struct bufferevent *bev = conn ? evhttp_connection_get_bufferevent(conn)
				       : NULL;
	size_t i;

	for (i = 0; bev && i < KVS_ARRAY_SIZE(h->connections); i++)
		if (h->connections[i].bev == bev)
			h->connections[i].since =
				kvs_clock_now(&kvs_clock_real);
}

static void kvs_http_reply(struct evhttp_request *req, int code,
			   const char *reason, const char *type,
			   const char *text, size_t len)
{
	struct evkeyvalq *out = evhttp_request_get_output_headers(req);
	bool head = evhttp_request_get_command(req) == EVHTTP_REQ_HEAD;
	struct evbuffer *body = evbuffer_new();
	char length[32];

	/* evhttp would send the body on HEAD too */
	snprintf(length, sizeof(length), "%zu", len);
	if (!body || (!head && evbuffer_add(body, text, len)) ||
	    evhttp_add_header(out, "Content-Type", type) ||
	    evhttp_add_header(out, "Content-Length", length) ||
	    evhttp_add_header(out, "Cache-Control", "no-store"))
		evhttp_send_error(req, HTTP_INTERNAL, NULL);
	else
		evhttp_send_reply(req, code, reason, body);
	if (body)
		evbuffer_free(body);
}

static void kvs_http_text(struct evhttp_request *req, int code,
			  const char *reason, const char *text)
{
	char line[512];
	int n = snprintf(line, sizeof(line), "%s\n", text);

	kvs_http_reply(req, code, reason, "text/plain; charset=utf-8", line,
		       n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

static void kvs_http_metrics(struct kvs_http *h, struct evhttp_request *req)
{
	struct kvs_snapshot *s;
	char *text;
	size_t len;
	int ret;

	ret = kvs_daemon_snapshot(h->d, &s);
	if (!ret) {
		ret = kvs_metrics_text(s, &text, &len);
		free(s);
	}
	if (ret) {
		kvs_http_text(req, HTTP_INTERNAL, "Internal Server Error",
			      strerror(-ret));
		return;
	}
	kvs_http_reply(req, HTTP_OK, "OK", KVS_METRICS_CONTENT_TYPE, text, len);
	free(text);
}

static void kvs_http_healthz(struct kvs_http *h, struct evhttp_request *req)
{
	(void)h;
	kvs_http_text(req, HTTP_OK, "OK", "ok");
}

static void kvs_http_readyz(struct kvs_http *h, struct evhttp_request *req)
{
	struct kvs_snapshot *s = NULL;
	char text[256];

	if (h->d->state == KVS_DAEMON_RUNNING &&
	    !kvs_daemon_snapshot(h->d, &s) && s->ready) {
		kvs_http_text(req, HTTP_OK, "OK", "ready");
	} else {
		kvs_http_text(req, HTTP_SERVUNAVAIL, "Service Unavailable",
			      kvs_daemon_status(h->d, s, text, sizeof(text)));
	}
	free(s);
}

static void kvs_http_index(struct kvs_http *h, struct evhttp_request *req)
{
	(void)h;
	kvs_http_text(req, HTTP_OK, "OK",
		      "kvstaged " KVS_VERSION ": /metrics /healthz /readyz");
}

static void kvs_http_request(struct evhttp_request *req, void *arg)
{
	static const struct {
		const char *path;
		void (*fn)(struct kvs_http *h, struct evhttp_request *req);
	} paths[] = {
		{ "/metrics", kvs_http_metrics },
		{ "/healthz", kvs_http_healthz },
		{ "/readyz", kvs_http_readyz },
		{ "/", kvs_http_index },
	};
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
	enum evhttp_cmd_type method = evhttp_request_get_command(req);
	size_t i;

	kvs_http_heard(arg, req);
	if (method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD) {
		if (!evhttp_add_header(evhttp_request_get_output_headers(req),
				       "Allow", "GET, HEAD"))
			kvs_http_text(req, HTTP_BADMETHOD, "Method Not Allowed",
				      "only GET and HEAD");
		else
			evhttp_send_error(req, HTTP_INTERNAL, NULL);
		return;
	}
	if (!path || !*path)
		path = "/";
	for (i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		if (!strcmp(path, paths[i].path)) {
			paths[i].fn(arg, req);
			return;
		}
	}
	kvs_http_text(req, HTTP_NOTFOUND, "Not Found", "no such page");
}

/* A quarter of what may be open at most: peers and engines need the rest. */
static unsigned int kvs_http_max(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) ||
	    rl.rlim_cur / 4 >= KVS_HTTP_CONNECTIONS)
		return KVS_HTTP_CONNECTIONS;
	return (unsigned int)(rl.rlim_cur / 4);
}

/* Takes @fd, also when it fails. */
static int kvs_http_listen(struct kvs_http *h, int fd)
{
	const struct timeval second = { .tv_sec = 1 };
	struct evconnlistener *l;

	l = evconnlistener_new(h->d->base, NULL, NULL,
			       LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0,
			       fd);
	if (!l) {
		close(fd);
		return -ENOMEM;
	}
	if (!evhttp_bind_listener(h->http, l)) {
		evconnlistener_free(l);
		return -ENOMEM;
	}
	h->tick = event_new(h->d->base, -1, EV_PERSIST, kvs_http_tick, h);
	if (!h->tick || event_add(h->tick, &second))
		return -ENOMEM;
	evhttp_set_bevcb(h->http, kvs_http_accepted, h);
	return kvs_accept_start(h->d->base, "http.address", l, &h->accept);
}

int kvs_http_start(struct kvs_daemon *d, struct kvs_http **ret, char *err,
		   size_t errlen)
{
	const struct kvs_settings *s = &d->settings;
	struct kvs_http *h;
	unsigned int port;
	int fd = -1, r;

	*ret = NULL;
	if (!strcmp(s->http_address, "off"))
		return 0;
	h = calloc(1, sizeof(*h));
	if (h)
		h->http = evhttp_new(d->base);
	if (!h || !h->http) {
		snprintf(err, errlen, "%s", strerror(ENOMEM));
		free(h);
		return -ENOMEM;
	}
	h->d = d;
	h->max = kvs_http_max();
	evhttp_set_timeout(h->http, KVS_HTTP_TIMEOUT);
	evhttp_set_max_headers_size(h->http, KVS_HTTP_HEADERS_MAX);
	evhttp_set_max_body_size(h->http, KVS_HTTP_BODY_MAX);
	/* all of them, so that the answer is our 405 and not evhttp's 501 */
	evhttp_set_allowed_methods(
		h->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST |
				 EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
				 EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
	evhttp_set_gencb(h->http, kvs_http_request, h);
	r = kvs_listen_tcp("http.address", s->http_address, &fd, d->http_bound,
			   &port, err, errlen);
	if (r)
		goto out_free;
	r = kvs_http_listen(h, fd);
	if (r) {
		snprintf(err, errlen, "http.address: cannot accept: %s",
			 strerror(-r));
		goto out_free;
	}
	if (*s->http_port_file)
		r = kvs_port_file_write("http.port_file", s->http_port_file,
					port, err, errlen);
	if (r)
		goto out_free;
	*ret = h;
	return 0;
out_free:
	kvs_http_stop(h);
	return r;
}

void kvs_http_stop(struct kvs_http *h)
{
	if (!h)
		return;
	kvs_accept_stop(h->accept);
	if (h->tick)
		event_free(h->tick);
	evhttp_free(h->http);
	kvs_http_sweep(h);
	free(h);
}
