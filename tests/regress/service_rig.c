/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/service_rig.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/log.h"
#include "pinned/topology.h"
#include "rdma/transport.h"

static const char *group_engine = "sock";

void rig_group(const char *engine)
{
	group_engine = engine;
	print_message("# tcp.engine = %s\n", engine);
}

const char *rig_engine(void)
{
	return group_engine;
}

static void rig_sink(enum kvs_log_level level, const char *line, void *arg)
{
	struct rig *g = arg;

	if (getenv("KVS_TEST_LOG"))
		fprintf(stderr, "<%d> %s\n", level, line);
	if (level == KVS_LOG_WARN)
		atomic_fetch_add(&g->warnings, 1);
	if (g->log)
		g->log(level, line, g->log_arg);
	if (level > KVS_LOG_ERR)
		return;
	if (!atomic_fetch_add(&g->errors, 1))
		snprintf(g->first_error, sizeof(g->first_error), "%s", line);
}

void rig_init(struct rig *g, const char *engine, const char *pool)
{
	char path[128];

	memset(g, 0, sizeof(*g));
	atomic_init(&g->errors, 0);
	atomic_init(&g->warnings, 0);
	snprintf(g->dir, sizeof(g->dir), "/tmp/kvs-regress-XXXXXX");
	assert_non_null(mkdtemp(g->dir));
	kvs_settings_init(&g->set);
	rig_set(g, "listen.address", "127.0.0.1:0");
	rig_set(g, "pool.size", pool);
	rig_set(g, "pool.page_size", "4K");
	rig_set(g, "pool.strict", "no");
	/* some wait for the hold's end */
	rig_set(g, "hold.check", "warn");
	rig_set(g, "tcp.engine", engine);
	snprintf(path, sizeof(path), "%s/engine.sock", g->dir);
	rig_set(g, "engine.socket", path);
	snprintf(path, sizeof(path), "%s/ctl.sock", g->dir);
	rig_set(g, "ctl.socket", path);
	rig_set(g, "engine.slots", "256");
	kvs_log_set_level(KVS_LOG_INFO);
}

void rig_set(struct rig *g, const char *name, const char *value)
{
	char err[512];

	if (kvs_settings_set(&g->set, name, value, err, sizeof(err)))
		fail_msg("%s", err);
}

void rig_up(struct rig *g)
{
	char err[512] = "", number[16];
	int node;

	kvs_log_set_sink(rig_sink, g);
	g->snap = calloc(1, sizeof(*g->snap));
	assert_non_null(g->snap);
	assert_int_equal(kvs_topology_load(NULL, &g->topo), 0);
	/* one pool, also on a machine with several nodes */
	assert_int_equal(kvs_topology_auto_node(g->topo, -1, &node), 0);
	snprintf(number, sizeof(number), "%d", node);
	rig_set(g, "pool.nodes", number);
	if (kvs_service_create(&g->set, g->topo, NULL, NULL, &g->svc, err,
			       sizeof(err)))
		fail_msg("service: %s", err);
	g->port = kvs_service_port(g->svc);
	rig_refresh(g);
	assert_int_equal(g->snap->n_workers, 1);
}

static bool rig_all_free(const struct rig *g)
{
	const struct kvs_pool_account *a =
		&g->snap->workers[0].pools[0].account;

	/* what is set aside for health checks is nobody's either, nor is what is
	 * cached */
	return a->bytes[KVS_EXTENT_FREE] + a->bytes[KVS_EXTENT_CACHED] +
		       g->snap->workers[0].reserve_bytes ==
	       a->configured;
}

void rig_down(struct rig *g)
{
	rig_wait(g, rig_rooms(g) == 0 && rig_all_free(g));
	assert_int_equal(g->snap->workers[0].rooms_live, 0);
	assert_int_equal(g->snap->workers[0].rooms_waiting, 0);
	assert_int_equal(g->snap->workers[0].rooms_held, 0);
	kvs_service_destroy(g->svc);
	kvs_log_set_sink(NULL, NULL);
	if (!g->errors_expected && atomic_load(&g->errors))
		fail_msg("logged as an error: %s", g->first_error);
	kvs_topology_destroy(g->topo);
	free(g->snap);
	/* the daemon removes its socket */
	assert_int_equal(rmdir(g->dir), 0);
}

bool rig_has_uring(void)
{
#ifdef __SANITIZE_THREAD__
	print_message("# no run with io_uring: the thread sanitizer does not "
		      "see what the kernel writes\n");
	return false;
#else
	struct kvs_transport_opts o = { .engine = "uring" };
	struct kvs_transport *t;
	char err[256];
	int ret = kvs_tcp_create(&o, &t, err, sizeof(err));

	if (ret) {
		print_message("# no run with io_uring: %s\n", err);
		return false;
	}
	kvs_transport_destroy(t);
	return true;
#endif
}

void rig_refresh(struct rig *g)
{
	const struct kvs_pool_account *a;
	uint64_t sum = 0;

	kvs_service_snapshot(g->svc, g->snap);
	for (unsigned int i = 0; i < g->snap->n_workers; i++) {
		a = &g->snap->workers[i].pools[0].account;
		for (int s = 0; s < KVS_EXTENT_STATE_MAX; s++)
			sum += a->bytes[s];
		sum -= a->configured;
	}
	assert_int_equal(sum, 0);
}

#define RIG_SUM(name, arg, expr)                                        \
	uint64_t name arg                                               \
	{                                                               \
		const struct kvs_worker_snapshot *w;                    \
		uint64_t n = 0;                                         \
                                                                        \
		for (unsigned int i = 0; i < g->snap->n_workers; i++) { \
			w = &g->snap->workers[i];                       \
			n += (expr);                                    \
		}                                                       \
		return n;                                               \
	}

RIG_SUM(rig_bytes, (const struct rig *g, enum kvs_extent_state st),
	w->pools[0].account.bytes[st])
RIG_SUM(rig_failures, (const struct rig *g, enum kvs_room_cause c),
	w->stats.failures[c])
RIG_SUM(rig_late_bytes, (const struct rig *g), w->stats.late_bytes)
RIG_SUM(rig_repeated, (const struct rig *g), w->stats.chunks_repeated)
RIG_SUM(rig_received, (const struct rig *g), w->stats.received_bytes)
RIG_SUM(rig_done, (const struct rig *g), w->stats.rooms_done)
RIG_SUM(rig_drains,
	(const struct rig *g, enum kvs_drain_outcome o, enum kvs_proof p),
	w->stats.drains.total[o][p])
RIG_SUM(rig_acks_ignored, (const struct rig *g, enum kvs_ack_ignored why),
	w->stats.drains.ack_ignored[why])

#define RIG_SUM_STATIC(name, arg, expr) static RIG_SUM(name, arg, expr)

RIG_SUM_STATIC(worker_strays, (const struct rig *g, enum kvs_stray st),
	       w->stats.strays[st])
RIG_SUM_STATIC(worker_proto, (const struct rig *g, enum kvs_proto_error e),
	       w->stats.protocol_errors[e])
RIG_SUM_STATIC(worker_admits, (const struct rig *g, enum kvs_admit_result r),
	       w->stats.admits[r])

uint64_t rig_proto(const struct rig *g, enum kvs_proto_error e)
{
	return worker_proto(g, e) + g->snap->protocol_errors[e];
}

uint64_t rig_strays(const struct rig *g, enum kvs_stray s)
{
	return worker_strays(g, s) + g->snap->strays[s];
}

uint64_t rig_admits(const struct rig *g, enum kvs_admit_result r)
{
	return worker_admits(g, r) + g->snap->admits[r];
}

unsigned int rig_warnings(const struct rig *g)
{
	return atomic_load(&g->warnings);
}

uint32_t rig_data_connections(const struct rig *g)
{
	return g->snap->workers[0].data_connections;
}

unsigned int rig_rooms(struct rig *g)
{
	struct kvs_room_info *v = NULL;
	int n = kvs_service_rooms(g->svc, &v);

	assert_true(n >= 0);
	free(v);
	return (unsigned int)n;
}

bool rig_room(struct rig *g, uint64_t room, struct kvs_room_info *ret)
{
	struct kvs_room_info *v = NULL;
	int n = kvs_service_rooms(g->svc, &v);
	bool found = false;

	assert_true(n >= 0);
	for (int i = 0; i < n; i++) {
		if (v[i].room != room ||
		    (found && v[i].generation < ret->generation))
			continue;
		*ret = v[i];
		found = true;
	}
	free(v);
	return found;
}

bool rig_room_in(struct rig *g, uint64_t room, const char *state)
{
	struct kvs_room_info i;

	return rig_room(g, room, &i) && !strcmp(i.state, state);
}

int rig_parties(struct rig *g, uint64_t room)
{
	struct kvs_room_info *v = NULL;
	int n = kvs_service_rooms(g->svc, &v);
	int parties = -1;

	assert_true(n >= 0);
	for (int i = 0; i < n; i++) {
		if (v[i].room != room)
			continue;
		parties = (parties < 0 ? 0 : parties) + (int)v[i].parties;
	}
	free(v);
	return parties;
}

pid_t rig_spawn(const char *const args[], int *ret_fd)
{
	posix_spawn_file_actions_t fa;
	char *argv[16] = { (char *)"child" };
	pid_t pid;
	int sv[2];

	for (int i = 0; args[i]; i++) {
		assert_true(i + 2 < (int)KVS_ARRAY_SIZE(argv));
		argv[i + 1] = (char *)args[i];
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv),
			 0);
	assert_int_equal(posix_spawn_file_actions_init(&fa), 0);
	assert_int_equal(
		posix_spawn_file_actions_adddup2(&fa, sv[1], RIG_CHILD_FD), 0);
	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &fa, NULL, argv,
				     environ),
			 0);
	posix_spawn_file_actions_destroy(&fa);
	close(sv[1]);
	*ret_fd = sv[0];
	return pid;
}

void rig_child_said(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;

	assert_int_equal(poll(&p, 1, RIG_DEADLINE / KVS_NSEC_PER_MSEC), 1);
	if (read(fd, &c, 1) != 1)
		fail_msg("the other process has ended too early");
}

void rig_child_say(void)
{
	if (write(RIG_CHILD_FD, "", 1) != 1)
		_exit(1);
}

void rig_kill(pid_t pid, int *fd)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(*fd);
	*fd = -1;
}

uint64_t rig_rss(void)
{
	unsigned long size, rss = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &size, &rss), 2);
	fclose(f);
	return rss * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t rig_seed(void)
{
	const char *s = getenv("KVS_TEST_SEED");
	uint64_t seed;

	if (s)
		seed = strtoull(s, NULL, 0);
	else
		assert_int_equal(getrandom(&seed, sizeof(seed), 0),
				 sizeof(seed));
	print_message("# KVS_TEST_SEED=0x%llx\n", (unsigned long long)seed);
	return seed;
}

uint64_t rig_now(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

uint64_t rig_print_times(const char *what, uint64_t *v, size_t n)
{
	size_t mid = n / 2, high = (n - 1) * 99 / 100;

	assert_true(n > 0);
	qsort(v, n, sizeof(*v), by_value);
	print_message("# %s: %zu, median %.3f ms, p99 %.3f ms, max %.3f ms\n",
		      what, n, (double)v[mid] / KVS_NSEC_PER_MSEC,
		      (double)v[high] / KVS_NSEC_PER_MSEC,
		      (double)v[n - 1] / KVS_NSEC_PER_MSEC);
	return v[n - 1];
}

uint64_t rig_until(void)
{
	return rig_now() + RIG_DEADLINE;
}

void rig_pause(uint64_t until, const char *what, const char *file, int line)
{
	const struct timespec t = { 0, 1000000 };

	if (kvs_clock_now(&kvs_clock_real) > until) {
		print_error("%s:%d: waited in vain for: %s\n", file, line,
			    what);
		_fail(file, line);
	}
	nanosleep(&t, NULL);
}
