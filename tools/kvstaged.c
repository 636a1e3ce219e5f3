/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/units.h"
#include "pinned/region.h"
#include "tools/daemon.h"
#include "tools/daemon_accept.h"
#include "tools/notify.h"
#include "tools/output.h"

/* a cancelled start ends within this, or is ended */
#define KVS_CANCEL_SECONDS 4
/* descriptors of a daemon without peers and engines */
#define KVS_FILES_MIN 32

#define KVS_NAME_(n, s) s,
const char *const kvs_daemon_state_name[KVS_DAEMON_STATE_MAX] = {
	KVS_DAEMON_STATES(KVS_NAME_)
};

/* Message of the manager; it going missing is worth a line, no more. */
#define kvs_daemon_tell(...)                                               \
	do {                                                               \
		int ret_ = kvs_notify(__VA_ARGS__);                        \
		if (ret_)                                                  \
			kvs_log_warn("cannot notify the service manager: " \
				     "%s",                                 \
				     strerror(-ret_));                     \
	} while (0)

/* The first whose cache has lost its disk, or nearly so; NULL. */
static const struct kvs_worker_snapshot *
kvs_daemon_disk(const struct kvs_snapshot *s)
{
	for (unsigned int i = 0; i < s->n_workers; i++)
		if (s->workers[i].disk.wanted &&
		    (!s->workers[i].disk.on || s->workers[i].disk.degraded))
			return &s->workers[i];
	return NULL;
}

const char *kvs_daemon_status(struct kvs_daemon *d,
			      const struct kvs_snapshot *s, char *buf,
			      size_t len)
{
	struct kvs_daemon_progress p;

	pthread_mutex_lock(&d->lock);
	p = d->progress;
	pthread_mutex_unlock(&d->lock);
	if (d->state == KVS_DAEMON_STARTING && p.total)
		snprintf(buf, len, "starting: %s pool on node %d, %u %%",
			 p.pool, p.node,
			 (unsigned int)(100.0 * (double)p.done /
					(double)p.total));
	else if (d->state == KVS_DAEMON_RUNNING && s && s->degraded)
		snprintf(buf, len,
			 "degraded: %" PRIu64 " bytes of the pool of node %d "
			 "are quarantined, over health.quarantined "
			 "(%" PRIu32 " percent)",
			 s->degraded_bytes, s->degraded_node,
			 s->health_quarantined);
	else if (d->state == KVS_DAEMON_RUNNING && s && kvs_daemon_disk(s))
		snprintf(buf, len, "running; disk tier of node %d: %s: %.100s",
			 kvs_daemon_disk(s)->pools[0].node,
			 kvs_daemon_disk(s)->disk.health,
			 kvs_daemon_disk(s)->disk.why);
	else
		snprintf(buf, len, "%s", kvs_daemon_state_name[d->state]);
	return buf;
}

int kvs_daemon_snapshot(struct kvs_daemon *d, struct kvs_snapshot **ret)
{
	struct kvs_snapshot *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	/* until then svc is the helper's */
	if (d->state == KVS_DAEMON_RUNNING || d->state == KVS_DAEMON_DRAINING)
		kvs_service_snapshot(d->svc, s);
	*ret = s;
	return 0;
}

/* Any thread of the service. */
static void kvs_daemon_prefault(void *arg, const char *pool, int node,
				uint64_t done, uint64_t total)
{
	struct kvs_daemon *d = arg;
	char a[KVS_UNITS_BUF], b[KVS_UNITS_BUF];
	unsigned int percent = 0;

	if (total)
		percent = (unsigned int)(100.0 * (double)done / (double)total);
	pthread_mutex_lock(&d->lock);
	snprintf(d->progress.pool, sizeof(d->progress.pool), "%s", pool);
	d->progress.node = node;
	d->progress.done = done;
	d->progress.total = total;
	pthread_mutex_unlock(&d->lock);
	kvs_log_info("%s pool on node %d: %s of %s populated (%u %%)", pool,
		     node, kvs_format_size(done, a), kvs_format_size(total, b),
		     percent);
	/* the manager's start limit counts from the last sign of life */
	kvs_daemon_tell("EXTEND_TIMEOUT_USEC=30000000\n"
			"STATUS=Populating the %s pool on node %d: %u %%",
			pool, node, percent);
}

/* Any thread of the service. */
static void kvs_daemon_pool(void *arg, const char *pool, int node,
			    const char *why)
{
	(void)arg;
	kvs_log_notice("%s pool on node %d: %s", pool, node, why);
}

/* Any thread of the service. */
static void kvs_daemon_network(void *arg, int node, const char *what)
{
	(void)arg;
	if (node < 0)
		kvs_log_notice("%s", what);
	else
		kvs_log_notice("node %d: %s", node, what);
}

static void kvs_daemon_helper_done(struct kvs_daemon *d, int ret)
{
	const uint64_t one = 1;

	d->helper_ret = ret;
	if (write(d->done_fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
		kvs_log_err("cannot report to the main thread: %m");
}

static void *kvs_daemon_start_thread(void *arg)
{
	struct kvs_daemon *d = arg;
	const struct kvs_service_events ev = {
		.prefault = kvs_daemon_prefault,
		.pool = kvs_daemon_pool,
		.network = kvs_daemon_network,
		.arg = d,
	};

	kvs_daemon_helper_done(d, kvs_service_create(&d->start_settings,
						     d->topo, &ev, &d->cancel,
						     &d->svc, d->helper_err,
						     sizeof(d->helper_err)));
	return NULL;
}

static void *kvs_daemon_drain_thread(void *arg)
{
	struct kvs_daemon *d = arg;

	kvs_daemon_helper_done(d, kvs_service_drain(d->svc));
	return NULL;
}

/* Its threads leave signals to the main thread. */
static int kvs_daemon_helper(struct kvs_daemon *d, void *(*fn)(void *))
{
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = pthread_create(&d->helper, NULL, fn, d);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	d->helper_runs = !ret;
	return -ret;
}

static void kvs_daemon_over(struct kvs_daemon *d, int status)
{
	d->state = KVS_DAEMON_OVER;
	d->status = status;
	event_base_loopbreak(d->base);
}

static void kvs_daemon_unlink(struct kvs_daemon *d)
{
	if (*d->settings.listen_port_file && *d->listen)
		kvs_port_file_remove(d->settings.listen_port_file, d->listen);
	if (*d->settings.http_port_file && *d->http_bound)
		kvs_port_file_remove(d->settings.http_port_file, d->http_bound);
	kvs_unix_release(d->settings.engine_socket, d->engine_lock);
	kvs_unix_release(d->settings.ctl_socket, d->ctl_lock);
}

/* No way back: memory and sockets go with the process. */
static _Noreturn void kvs_daemon_force(struct kvs_daemon *d, int status)
{
	kvs_daemon_unlink(d);
	_exit(status);
}

static void kvs_daemon_deadline(evutil_socket_t fd, short what, void *arg)
{
	struct kvs_daemon *d = arg;

	(void)fd;
	(void)what;
	kvs_log_warn("the start does not end by itself: leaving now");
	kvs_daemon_force(d, 0);
}

void kvs_daemon_stop(struct kvs_daemon *d)
{
	const struct timeval limit = { .tv_sec = KVS_CANCEL_SECONDS };
	int ret;

	if (d->stopping) {
		kvs_log_warn("asked to stop again: leaving now, rooms that "
			     "are live are cut off");
		kvs_daemon_force(d, 1);
	}
	d->stopping = true;
	kvs_daemon_tell("STOPPING=1\nSTATUS=Stopping");
	if (d->state == KVS_DAEMON_STARTING) {
		kvs_log_notice("asked to stop: giving up the start");
		atomic_store(&d->cancel, true);
		event_add(d->deadline, &limit);
		return;
	}
	kvs_log_notice("asked to stop: no new rooms; complete ones have %s to "
		       "be copied (drain.timeout)",
		       kvs_format_duration(d->settings.shutdown_timeout,
					   (char[KVS_UNITS_BUF]){ 0 }));
	d->state = KVS_DAEMON_DRAINING;
	ret = kvs_daemon_helper(d, kvs_daemon_drain_thread);
	if (ret) {
		kvs_log_err("cannot start a thread: %s; stopping without "
			    "waiting",
			    strerror(-ret));
		kvs_daemon_over(d, 1);
	}
}

static void kvs_daemon_reloading(const struct kvs_daemon *d)
{
	if (d->state == KVS_DAEMON_RUNNING)
		kvs_daemon_tell("RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
				kvs_clock_now(&kvs_clock_real) /
					(uint64_t)KVS_NSEC_PER_USEC);
}

/* An operator who allowed it is told each time; others see the sum. */
static void kvs_daemon_say_hold(const struct kvs_settings *s)
{
	char text[512];

	if (kvs_settings_hold_suffices(s, text, sizeof(text)))
		kvs_log_info("%s", text);
	else
		kvs_log_warn("%s: senders that are well may be revoked", text);
}

/* It is read again, so that it would seem to be the new one. */
static void kvs_daemon_say_key_file(const struct kvs_settings *now,
				    const struct kvs_settings *fresh)
{
	const char *will = *fresh->auth_key_file ? fresh->auth_key_file
						 : "none";

	if (!strcmp(now->auth_key_file, fresh->auth_key_file))
		return;
	if (*now->auth_key_file)
		kvs_log_warn("reload: auth.key_file: %s stays in force, and is "
			     "read again; %s will be with a restart",
			     now->auth_key_file, will);
	else
		kvs_log_warn("reload: auth.key_file: none stays in force, and "
			     "nobody is asked; %s will be with a restart",
			     will);
}

void kvs_daemon_reload(struct kvs_daemon *d)
{
	char err[1024];
	struct kvs_settings fresh;
	int n;

	kvs_daemon_reloading(d);
	if (!d->args->config)
		kvs_log_notice("reload: there is no --config file");
	if (kvs_daemon_args_settings(d->args, &fresh, err, sizeof(err)) ||
	    (d->state == KVS_DAEMON_RUNNING &&
	     kvs_service_check_reload(d->svc, &fresh, err, sizeof(err)))) {
		kvs_log_err("reload: %s; nothing is changed", err);
	} else {
		n = kvs_settings_reload(&d->settings, &fresh, err, sizeof(err));
		if (n)
			kvs_log_warn("reload: a restart is needed for %s", err);
		kvs_daemon_say_key_file(&d->settings, &fresh);
		kvs_log_set_level((enum kvs_log_level)kvs_log_level_parse(
			d->settings.log_level));
		if (d->state == KVS_DAEMON_RUNNING)
			kvs_service_reload(d->svc, &d->settings);
		d->reloaded = true;
		kvs_daemon_say_hold(&d->settings);
		kvs_log_notice("reload: done");
	}
	if (d->state == KVS_DAEMON_RUNNING)
		kvs_daemon_tell("READY=1");
}

static void kvs_daemon_signal(evutil_socket_t sig, short what, void *arg)
{
	struct kvs_daemon *d = arg;

	(void)what;
	if (sig == SIGHUP)
		kvs_daemon_reload(d);
	else
		kvs_daemon_stop(d);
}

static void kvs_daemon_log_pools(struct kvs_daemon *d)
{
	struct kvs_snapshot *s;
	unsigned int w, p;

	if (kvs_daemon_snapshot(d, &s))
		return;
	for (w = 0; w < s->n_workers; w++) {
		for (p = 0; p < s->workers[w].n_pools; p++) {
			const struct kvs_pool_snapshot *pool =
				&s->workers[w].pools[p];
			char size[KVS_UNITS_BUF], page[16];

			kvs_log_notice(
				"%s pool on node %d: %s in %s pages, %s",
				pool->name, pool->node,
				kvs_format_size(pool->account.configured, size),
				kvs_page_size_name(pool->page_size, page),
				pool->bound ? "on its node"
					    : "NOT bound to its node");
		}
	}
	free(s);
}

static int kvs_daemon_announce(struct kvs_daemon *d)
{
	const char *address = d->settings.listen_address;
	const char *colon = strrchr(address, ':');
	char err[512];
	int ret;

	snprintf(d->listen, sizeof(d->listen), "%.*s:%u",
		 colon ? (int)(colon - address) : 0, address,
		 kvs_service_port(d->svc));
	if (*d->settings.listen_port_file) {
		ret = kvs_port_file_write("listen.port_file",
					  d->settings.listen_port_file,
					  kvs_service_port(d->svc), err,
					  sizeof(err));
		if (ret) {
			kvs_log_err("cannot start: %s", err);
			return ret;
		}
	}
	kvs_daemon_log_pools(d);
	if (*d->settings.auth_key_file)
		kvs_log_notice("prefill ranks connect to %s with a key of %s; "
			       "what they send then is neither encrypted nor "
			       "protected",
			       d->listen, d->settings.auth_key_file);
	else
		kvs_log_notice("prefill ranks connect to %s, on loopback only: "
			       "without auth.key_file they are not asked who "
			       "they are",
			       d->listen);
	kvs_log_notice("engines attach at %s", d->settings.engine_socket);
	kvs_daemon_say_hold(&d->settings);
	if (d->settings.hold_require_ack)
		kvs_log_notice("hold.require_ack: rooms also wait for "
			       "acknowledgements on TCP");
	if (d->settings.inject_flip)
		kvs_log_warn("test.inject_flip: %u bits of received data WILL "
			     "BE CORRUPTED",
			     d->settings.inject_flip);
	return 0;
}

static void kvs_daemon_started(struct kvs_daemon *d)
{
	if (d->helper_ret) {
		d->svc = NULL;
		if (d->stopping) {
			kvs_log_notice("start given up: %s",
				       *d->helper_err
					       ? d->helper_err
					       : strerror(-d->helper_ret));
			kvs_daemon_over(d, 0);
			return;
		}
		kvs_log_err("cannot start: %s",
			    *d->helper_err ? d->helper_err
					   : strerror(-d->helper_ret));
		kvs_daemon_over(d, 1);
		return;
	}
	if (d->stopping) {
		kvs_daemon_over(d, 0);
		return;
	}
	d->state = KVS_DAEMON_RUNNING;
	if (d->reloaded)
		kvs_service_reload(d->svc, &d->settings);
	if (kvs_daemon_announce(d)) {
		kvs_daemon_over(d, 1);
		return;
	}
	kvs_log_notice("ready");
	kvs_daemon_tell("READY=1\nSTATUS=Ready, listening on %s", d->listen);
}

static void kvs_daemon_helper_event(evutil_socket_t fd, short what, void *arg)
{
	struct kvs_daemon *d = arg;
	uint64_t n;

	(void)what;
	if (read(fd, &n, sizeof(n)) != (ssize_t)sizeof(n))
		return;
	pthread_join(d->helper, NULL);
	d->helper_runs = false;
	if (d->state == KVS_DAEMON_STARTING) {
		kvs_daemon_started(d);
		return;
	}
	if (d->helper_ret > 0)
		kvs_log_warn("%d rooms were still live after drain.timeout",
			     d->helper_ret);
	kvs_daemon_over(d, 0);
}

/* The snapshot makes every worker turn: a stuck one starves the watchdog. */
static void kvs_daemon_watchdog(evutil_socket_t fd, short what, void *arg)
{
	struct kvs_daemon *d = arg;
	struct kvs_snapshot *s;

	(void)fd;
	(void)what;
	if (!kvs_daemon_snapshot(d, &s)) {
		free(s);
		kvs_daemon_tell("WATCHDOG=1");
	}
}

/*
 * A few descriptors short, and what fails first is some library that says
 * that it has no memory.
 */
static int kvs_daemon_check_files(char *err, size_t errlen)
{
	int fd[KVS_FILES_MIN], n = 0, ret = 0;
	struct rlimit rl = { 0 };

	while (n < KVS_FILES_MIN && !ret) {
		fd[n] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (fd[n] < 0)
			ret = -errno;
		else
			n++;
	}
	while (n)
		close(fd[--n]);
	if (ret != -EMFILE && ret != -ENFILE)
		return 0;
	if (ret == -EMFILE && !getrlimit(RLIMIT_NOFILE, &rl))
		snprintf(err, errlen,
			 "too many open files (ulimit -n %" PRIu64 "); the "
			 "daemon needs %d of its own, and one for each "
			 "connection",
			 (uint64_t)rl.rlim_cur, KVS_FILES_MIN);
	else
		snprintf(err, errlen,
			 "too many open files on this machine "
			 "(fs.file-max)");
	return ret;
}

/* What that is not enough for, the service says. */
static void kvs_daemon_raise_files(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl))
		return;
	rl.rlim_cur = rl.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &rl))
		kvs_log_warn("cannot raise the number of open files: %m");
}

static int kvs_daemon_events(struct kvs_daemon *d)
{
	static const int signals[3] = { SIGTERM, SIGINT, SIGHUP };
	uint64_t watchdog = kvs_notify_watchdog();
	size_t i;

	kvs_accept_log_init();
	d->base = event_base_new();
	d->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!d->base || d->done_fd < 0)
		return -ENOMEM;
	for (i = 0; i < KVS_ARRAY_SIZE(signals); i++) {
		d->signals[i] =
			evsignal_new(d->base, signals[i], kvs_daemon_signal, d);
		if (!d->signals[i] || event_add(d->signals[i], NULL))
			return -ENOMEM;
	}
	d->done = event_new(d->base, d->done_fd, EV_READ | EV_PERSIST,
			    kvs_daemon_helper_event, d);
	d->deadline = evtimer_new(d->base, kvs_daemon_deadline, d);
	if (!d->done || event_add(d->done, NULL) || !d->deadline)
		return -ENOMEM;
	if (watchdog) {
		uint64_t us = watchdog / (2 * KVS_NSEC_PER_USEC);
		const struct timeval tv = {
			.tv_sec = (time_t)(us / 1000000),
			.tv_usec = (suseconds_t)(us % 1000000),
		};

		d->watchdog = event_new(d->base, -1, EV_PERSIST,
					kvs_daemon_watchdog, d);
		if (!d->watchdog || event_add(d->watchdog, &tv))
			return -ENOMEM;
	}
	return 0;
}

/* Everything up to the loop; what goes wrong is in @err. */
static int kvs_daemon_prepare(struct kvs_daemon *d, char *err, size_t errlen)
{
	int ret;

	ret = kvs_daemon_check_files(err, errlen);
	if (ret)
		return ret;
	snprintf(err, errlen, "%s", strerror(ENOMEM));
	ret = kvs_daemon_events(d);
	if (ret)
		return ret;
	ret = kvs_topology_load(NULL, &d->topo);
	if (ret) {
		snprintf(err, errlen, "cannot read the topology: %s",
			 strerror(-ret));
		return ret;
	}
	ret = kvs_unix_claim("ctl.socket", d->settings.ctl_socket, &d->ctl_lock,
			     err, errlen);
	if (!ret)
		ret = kvs_unix_claim("engine.socket", d->settings.engine_socket,
				     &d->engine_lock, err, errlen);
	/* now, and not when the pools are made */
	if (!ret && *d->settings.listen_port_file)
		ret = kvs_port_file_check("listen.port_file",
					  d->settings.listen_port_file, err,
					  errlen);
	if (!ret)
		ret = kvs_ctl_start(d, &d->ctl, err, errlen);
	if (!ret)
		ret = kvs_http_start(d, &d->http, err, errlen);
	if (ret)
		return ret;
	kvs_log_notice("kvstagectl connects to %s", d->settings.ctl_socket);
	if (d->http)
		kvs_log_notice("metrics at http://%s/metrics", d->http_bound);
	kvs_daemon_tell("STATUS=Starting");
	d->start_settings = d->settings;
	ret = kvs_daemon_helper(d, kvs_daemon_start_thread);
	if (ret)
		snprintf(err, errlen, "cannot start a thread: %s",
			 strerror(-ret));
	return ret;
}

static void kvs_daemon_close(struct kvs_daemon *d)
{
	size_t i;

	kvs_http_stop(d->http);
	kvs_ctl_stop(d->ctl);
	atomic_store(&d->cancel, true);
	if (d->helper_runs)
		pthread_join(d->helper, NULL);
	kvs_service_destroy(d->svc);
	kvs_topology_destroy(d->topo);
	kvs_daemon_unlink(d);
	for (i = 0; i < KVS_ARRAY_SIZE(d->signals); i++)
		if (d->signals[i])
			event_free(d->signals[i]);
	if (d->done)
		event_free(d->done);
	if (d->watchdog)
		event_free(d->watchdog);
	if (d->deadline)
		event_free(d->deadline);
	if (d->base)
		event_base_free(d->base);
	if (d->done_fd >= 0)
		close(d->done_fd);
	libevent_global_shutdown();
}

static int kvs_daemon_run(const struct kvs_daemon_args *args,
			  const struct kvs_settings *settings)
{
	static struct kvs_daemon d;
	char err[1024];

	d.args = args;
	d.settings = *settings;
	d.state = KVS_DAEMON_STARTING;
	d.ctl_lock = d.engine_lock = d.done_fd = -1;
	pthread_mutex_init(&d.lock, NULL);
	kvs_log_notice("kvstaged %s, process %d", KVS_VERSION, (int)getpid());
	kvs_daemon_raise_files();
	if (kvs_daemon_prepare(&d, err, sizeof(err))) {
		kvs_log_err("cannot start: %s", err);
		d.status = 1;
	} else {
		event_base_dispatch(d.base);
	}
	kvs_daemon_close(&d);
	pthread_mutex_destroy(&d.lock);
	kvs_log_notice("stopped");
	return d.status;
}

int main(int argc, char **argv)
{
	struct kvs_daemon_args args;
	struct kvs_settings settings;
	char err[1024];
	int ret;

	kvs_output_watch("kvstaged");
	/* nothing we make is for others */
	umask(0077);
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return 1;
	kvs_log_init("kvstaged");
	ret = kvs_daemon_args_parse(argc, argv, &args);
	if (ret) {
		fprintf(stderr, "kvstaged: %s\n", strerror(-ret));
		return 1;
	}
	ret = kvs_daemon_args_settings(&args, &settings, err, sizeof(err));
	if (ret) {
		kvs_log_err("%s", err);
		ret = 2;
	} else if (args.print) {
		ret = kvs_settings_print(&settings, stdout) ? 1 : 0;
	} else if (args.check) {
		printf("the settings are good\n");
		ret = 0;
	} else {
		kvs_log_set_level((enum kvs_log_level)kvs_log_level_parse(
			settings.log_level));
		ret = kvs_daemon_run(&args, &settings);
	}
	kvs_daemon_args_fini(&args);
	return ret;
}
