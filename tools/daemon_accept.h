/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon accept
 *
 * Listeners of the main thread that do not spin. libevent goes on calling
 * accept(2) when there is no descriptor left, and logs each failure; here the
 * listener rests a moment instead, and the log has one line.
 */
#ifndef KVS_TOOLS_DAEMON_ACCEPT_H
#define KVS_TOOLS_DAEMON_ACCEPT_H

struct event_base;
struct evconnlistener;
struct kvs_accept;

/* libevent's own messages go to our log, a few a minute at most. */
void kvs_accept_log_init(void);

/**
 * kvs_accept_start() - look after a listener
 * @name: for the log; static string
 * @l: stays the caller's; its error callback is ours from now on
 *
 * Return: 0 or -ENOMEM.
 */
int kvs_accept_start(struct event_base *base, const char *name,
		     struct evconnlistener *l, struct kvs_accept **ret);
/* Accept nothing for @ms milliseconds. */
void kvs_accept_pause(struct kvs_accept *a, unsigned int ms);
/* Before the listener is freed. NULL ok. */
void kvs_accept_stop(struct kvs_accept *a);

#endif /* KVS_TOOLS_DAEMON_ACCEPT_H */
