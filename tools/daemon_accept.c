/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/list.h"
#include "lib/log.h"
#include "tools/daemon_accept.h"

#define KVS_ACCEPT_REST 100 /* ms without a descriptor */
/* failures closer together than this are one episode */
#define KVS_ACCEPT_EPISODE (10 * KVS_NSEC_PER_SEC)
#define KVS_ACCEPT_LINES 5 /* of libevent, a minute */

struct kvs_accept {
	struct kvs_list node;
	const char *name;
	struct evconnlistener *l;
	struct event *again;
	uint64_t failed_at; /* ns, the last time; 0: never */
	uint64_t failed; /* times */
};

/* the error callback of a listener knows no more than the listener */
static struct kvs_list kvs_accepts = { &kvs_accepts, &kvs_accepts };

static void kvs_accept_libevent(int severity, const char *msg)
{
	static uint64_t from;
	static unsigned int lines;
	uint64_t now = kvs_clock_now(&kvs_clock_real);

	if (!from || now - from > 60 * KVS_NSEC_PER_SEC) {
		from = now;
		lines = 0;
	}
	if (++lines > KVS_ACCEPT_LINES)
		return;
	kvs_log(severity >= EVENT_LOG_WARN ? KVS_LOG_WARN : KVS_LOG_DEBUG,
		"libevent: %s%s", msg,
		lines == KVS_ACCEPT_LINES ? " (no more of these for a minute)"
					  : "");
}

void kvs_accept_log_init(void)
{
	event_set_log_callback(kvs_accept_libevent);
}

static void kvs_accept_again(evutil_socket_t fd, short what, void *arg)
{
	struct kvs_accept *a = arg;

	(void)fd;
	(void)what;
	if (evconnlistener_enable(a->l))
		kvs_accept_pause(a, KVS_ACCEPT_REST);
}

void kvs_accept_pause(struct kvs_accept *a, unsigned int ms)
{
	const struct timeval tv = {
		.tv_sec = (time_t)(ms / 1000),
		.tv_usec = (suseconds_t)(ms % 1000) * 1000,
	};

	/* one that could not be waked again would be deaf for good */
	if (!event_add(a->again, &tv))
		evconnlistener_disable(a->l);
}

static void kvs_accept_error(struct evconnlistener *l, void *arg)
{
	int err = errno;
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	struct kvs_accept *a;

	(void)arg;
	kvs_list_for_each_entry(a, &kvs_accepts, node) {
		if (a->l != l)
			continue;
		a->failed++;
		if (!a->failed_at || now - a->failed_at > KVS_ACCEPT_EPISODE)
			kvs_log_warn("%s: cannot accept: %s; connections wait "
				     "until it can (%" PRIu64 " times so far)",
				     a->name, strerror(err), a->failed);
		a->failed_at = now;
		kvs_accept_pause(a, KVS_ACCEPT_REST);
		return;
	}
}

int kvs_accept_start(struct event_base *base, const char *name,
		     struct evconnlistener *l, struct kvs_accept **ret)
{
	struct kvs_accept *a = calloc(1, sizeof(*a));

	if (a)
		a->again = evtimer_new(base, kvs_accept_again, a);
	if (!a || !a->again) {
		free(a);
		return -ENOMEM;
	}
	a->name = name;
	a->l = l;
	kvs_list_add_tail(&kvs_accepts, &a->node);
	evconnlistener_set_error_cb(l, kvs_accept_error);
	*ret = a;
	return 0;
}

void kvs_accept_stop(struct kvs_accept *a)
{
	if (!a)
		return;
	evconnlistener_set_error_cb(a->l, NULL);
	kvs_list_del(&a->node);
	event_free(a->again);
	free(a);
}
