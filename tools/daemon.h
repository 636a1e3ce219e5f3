/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon
 *
 * kvstaged around the service: one main thread with an event loop for
 * signals, HTTP and the control socket. Whatever blocks for long (making the
 * service, draining it) runs on a helper thread that reports by an eventfd,
 * so that the loop answers all the time.
 *
 *   STARTING --service made--> RUNNING --SIGTERM--> DRAINING --> OVER
 *       |                                                        ^
 *       +----------------- SIGTERM, failed ----------------------+
 */
#ifndef KVS_TOOLS_DAEMON_H
#define KVS_TOOLS_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pinned/topology.h"
#include "pipeline/service.h"
#include "tools/daemon_args.h"
#include "tools/daemon_listen.h"

#define KVS_DAEMON_STATES(X)                                        \
	X(STARTING, "starting") /* the helper makes the service */  \
	X(RUNNING, "running")                                       \
	X(DRAINING, "draining") /* the helper drains the service */ \
	X(OVER, "over") /* the loop ends */

#define KVS_ENUM_(n, s) KVS_DAEMON_##n,
enum kvs_daemon_state { KVS_DAEMON_STATES(KVS_ENUM_) KVS_DAEMON_STATE_MAX };
#undef KVS_ENUM_

extern const char *const kvs_daemon_state_name[KVS_DAEMON_STATE_MAX];

struct event;
struct event_base;
struct kvs_http;
struct kvs_ctl;

/* Pool memory being populated, as told by a thread of the service. */
struct kvs_daemon_progress {
	char pool[32]; /* "" before the first */
	int node;
	uint64_t done; /* bytes */
	uint64_t total; /* bytes */
};

/* The main thread's, but for what says otherwise. */
struct kvs_daemon {
	const struct kvs_daemon_args *args;
	struct kvs_settings settings;
	struct kvs_topology *topo;
	enum kvs_daemon_state state;
	bool stopping; /* asked to */
	bool reloaded; /* settings changed before there was a service */
	int status; /* exit status */

	struct event_base *base;
	struct event *signals[3];
	struct event *done; /* the helper has finished */
	struct event *watchdog;
	struct event *deadline;
	struct kvs_http *http;
	struct kvs_ctl *ctl;
	int ctl_lock;
	int engine_lock;
	int done_fd; /* eventfd, written by the helper */
	char listen[KVS_LISTEN_STR]; /* where peers connect, once bound */
	char http_bound[KVS_LISTEN_STR];

	pthread_t helper;
	bool helper_runs;
	/* the helper's until done_fd is readable, then the main thread's */
	struct kvs_settings start_settings;
	struct kvs_service *svc;
	int helper_ret;
	char helper_err[1024];

	atomic_bool cancel; /* read by the service */
	pthread_mutex_t lock; /* leaf; protects progress */
	struct kvs_daemon_progress progress;
};

/* A signal's work, also for the control socket. */
void kvs_daemon_stop(struct kvs_daemon *d);
void kvs_daemon_reload(struct kvs_daemon *d);

/*
 * "running", "starting: receive pool on node 0, 37 %", "degraded: ..."; @s says
 * whether it is degraded, and may be NULL. Returns buf.
 */
const char *kvs_daemon_status(struct kvs_daemon *d,
			      const struct kvs_snapshot *s, char *buf,
			      size_t len);

/**
 * kvs_daemon_snapshot() - numbers of the service, or of a daemon without one
 * @ret: free() it
 * Return: 0 or -ENOMEM.
 */
int kvs_daemon_snapshot(struct kvs_daemon *d, struct kvs_snapshot **ret);

/**
 * kvs_http_start() - serve /metrics, /healthz and /readyz
 * @ret: NULL when http.address is "off"
 * Return: 0; -ENOMEM; as kvs_listen_tcp() and kvs_port_file_write().
 */
int kvs_http_start(struct kvs_daemon *d, struct kvs_http **ret, char *err,
		   size_t errlen);
/* NULL ok. */
void kvs_http_stop(struct kvs_http *h);

/**
 * kvs_ctl_start() - answer kvstagectl(1)
 *
 * The socket's path is claimed already. Return: 0; -ENOMEM; as
 * kvs_unix_listen().
 */
int kvs_ctl_start(struct kvs_daemon *d, struct kvs_ctl **ret, char *err,
		  size_t errlen);
/* NULL ok. */
void kvs_ctl_stop(struct kvs_ctl *c);

/**
 * kvs_ctl_answer() - one request of the control socket
 * @line: NUL-terminated, from outside
 * @ret_text: lines of JSON, the last one the outcome; free() it
 * Return: 0 or -ENOMEM.
 */
int kvs_ctl_answer(struct kvs_daemon *d, const char *line, char **ret_text,
		   size_t *ret_len);

#endif /* KVS_TOOLS_DAEMON_H */
