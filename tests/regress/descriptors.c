/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a daemon process with 64 descriptors: 200 connections at once
 * neither end it nor a transfer that is under way, those it had to turn away
 * or keep waiting cost no processor time, on the socket of engines neither,
 * and when they are gone ten senders
 * are served without a restart (PADL/IORingSwift#9, axboe/liburing#1275). While
 * they are there, the daemon has descriptors left for others, and an engine can
 * attach.
 * listen.max_connections refuses what is over it, says so in a counter, and
 * lets others in when there is room again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u /* of a room */
#define MANY 200
#define SPARE 8 /* of 64, for kvstagectl and HTTP */

/* What the daemon process tells when it is asked. */
struct report {
	unsigned int port;
	uint32_t sessions;
	uint32_t connections;
	uint64_t refused;
	uint64_t free_bytes;
	unsigned int spare; /* descriptors, SPARE at most */
	char socket[KVS_STRING_MAX];
};

static unsigned int spare(void)
{
	int fd[SPARE];
	unsigned int n = 0, i;

	while (n < SPARE && (fd[n] = dup(RIG_CHILD_FD)) >= 0)
		n++;
	for (i = 0; i < n; i++)
		close(fd[i]);
	return n;
}

/* argv: TCP engine. Answers each byte with a report; ends with the pipe. */
static _Noreturn void daemon_process(const char *engine)
{
	struct rlimit lim = { 64, 64 };
	struct report r;
	struct rig g;
	char c;

	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	rig_init(&g, engine, "1M");
	rig_up(&g);
	rig_child_say();
	while (read(RIG_CHILD_FD, &c, 1) == 1) {
		rig_refresh(&g);
		memset(&r, 0, sizeof(r));
		r.port = g.port;
		r.sessions = g.snap->sessions;
		r.connections = g.snap->connections;
		r.refused = g.snap->connections_refused;
		r.free_bytes = rig_bytes(&g, KVS_EXTENT_FREE);
		r.spare = spare();
		snprintf(r.socket, sizeof(r.socket), "%s", g.set.engine_socket);
		if (write(RIG_CHILD_FD, &r, sizeof(r)) != sizeof(r))
			_exit(1);
	}
	rig_down(&g);
	_exit(0);
}

static struct report ask(int fd)
{
	struct report r;

	assert_int_equal(write(fd, "", 1), 1);
	assert_int_equal(read(fd, &r, sizeof(r)), sizeof(r));
	return r;
}

/* Processor time of the daemon, ns. */
static uint64_t used(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
	assert_int_equal(clock_gettime(clock, &t), 0);
	return (uint64_t)t.tv_sec * KVS_NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

static void finish(struct ps *p, struct ps_room *w, uint32_t from, struct pe *e,
		   struct pe_room *r)
{
	uint64_t seed = w->seed;

	ps_finish(p, w, from);
	pe_take(e, r, PAGES * PS_TOKENS, 1, seed);
}

static void serve(unsigned int port, struct pe *e, uint64_t room)
{
	struct pe_room r;
	struct ps_room w;
	struct ps p;

	ps_up(&p, port, "q", 0, 1, &ps_one_layer);
	snprintf(e->peer, sizeof(e->peer), "q");
	pe_admit(e, &r, 1, room, PAGES * PS_TOKENS, 1);
	assert_int_equal(ps_open(&p, room, PAGES * PS_TOKENS), 0);
	ps_granted(&p, &w, room, PS_PAGE);
	finish(&p, &w, 0, e, &r);
	ps_down(&p);
}

/* An engine's connection that says nothing. */
static int silent_engine(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_true(strlen(path) < sizeof(sa.sun_path));
	memcpy(sa.sun_path, path, strlen(path));
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static void too_few_descriptors(void **state)
{
	const char *const args[] = { rig_engine(), NULL };
	const struct timespec window = { 0, 300 * 1000 * 1000 };
	int many[MANY], silent[8], fd;
	struct report r;
	struct pe_room room;
	struct ps_room w;
	uint64_t cpu, until;
	struct pe e, late;
	struct ps p;
	pid_t pid;

	(void)state;
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	r = ask(fd);
	pe_up(&e, r.socket, &ps_one_layer);
	ps_up(&p, r.port, "p", 0, 1, &ps_one_layer);
	pe_admit(&e, &room, 0, 1, PAGES * PS_TOKENS, 1);
	assert_int_equal(ps_open(&p, 1, PAGES * PS_TOKENS), 0);
	ps_granted(&p, &w, 1, PS_PAGE);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);

	for (int i = 0; i < MANY; i++) {
		many[i] = ps_dial(r.port);
		assert_true(many[i] >= 0);
	}
	/* they have all been heard, and most been refused */
	until = rig_until();
	while (ask(fd).refused < MANY - 64)
		rig_pause(until, "most refused", __FILE__, __LINE__);
	assert_int_equal(ask(fd).spare, SPARE);
	pe_up(&late, r.socket, &ps_one_layer);
	pe_down(&late);
	for (int i = 0; i < 8; i++)
		silent[i] = silent_engine(r.socket);
	/* the transfer goes on */
	for (uint32_t i = 1; i < w.n_chunks / 2; i++)
		assert_true(ps_send_part(&p, 0, &w, i, 0, 0) > 0);
	/* how long is no matter: a loop that spins uses all of it */
	cpu = used(pid);
	nanosleep(&window, NULL);
	cpu = used(pid) - cpu;
	print_message("# %llu ms of 300 used\n",
		      (unsigned long long)(cpu / KVS_NSEC_PER_MSEC));
	assert_true(cpu < 150 * KVS_NSEC_PER_MSEC);
	assert_true(ask(fd).refused > 0);
	for (int i = 0; i < MANY; i++)
		close(many[i]);
	for (int i = 0; i < 8; i++)
		close(silent[i]);
	finish(&p, &w, w.n_chunks / 2, &e, &room);
	pe_up(&late, r.socket, &ps_one_layer);
	pe_down(&late);
	for (uint64_t i = 0; i < 10; i++)
		serve(r.port, &e, 100 + i);
	ps_quiet(&p);
	ps_down(&p);
	pe_down(&e);
	rig_kill(pid, &fd);
	assert_int_equal(unlink(r.socket), 0);
	*strrchr(r.socket, '/') = 0;
	assert_int_equal(rmdir(r.socket), 0);
}

static void connection_limit(void **state)
{
	static struct rig g[1];
	int fd[8], left, closed;
	uint64_t until;
	struct ps p;
	struct pe e;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "listen.max_connections", "4");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &ps_one_layer);
	for (int i = 0; i < 8; i++) {
		fd[i] = ps_dial(g->port);
		assert_true(fd[i] >= 0);
	}
	rig_wait(g, g->snap->connections_refused == 4);
	until = rig_until();
	do {
		rig_pause(until, "four of them closed", __FILE__, __LINE__);
		closed = 0;
		for (int i = 0; i < 8; i++)
			closed += ps_is_closed(fd[i]);
	} while (closed < 4);
	assert_int_equal(closed, 4);
	for (int i = 0; i < 8; i++)
		close(fd[i]);
	/* room again */
	until = rig_until();
	do {
		ps_init(&p, g->port, "p", 0, 1, &ps_one_layer);
		left = ps_hello(&p);
		if (left) {
			ps_down(&p);
			rig_pause(until, "a place", __FILE__, __LINE__);
		}
	} while (left);
	assert_int_equal(ps_layout(&p, NULL, 0), 0);
	ps_quiet(&p);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* A session does not get round it by data connections. */
static void data_connection_limit(void **state)
{
	static struct rig g[1];
	struct ps p;
	struct pe e;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "listen.max_connections", "4");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &ps_one_layer);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	for (int i = 1; i < 4; i++)
		assert_int_equal(ps_data(&p), i);
	for (int i = 0; i < 3; i++)
		assert_true(ps_data(&p) < 0);
	rig_wait(g, g->snap->connections_refused == 3);
	assert_int_equal(rig_data_connections(g), 4);
	ps_quiet(&p);
	ps_fin(&p.data[3]);
	rig_wait(g, rig_data_connections(g) == 3);
	p.n_data = 3;
	assert_int_equal(ps_data(&p), 3);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(too_few_descriptors),
		cmocka_unit_test(connection_limit),
		cmocka_unit_test(data_connection_limit),
	};

	if (argc == 2)
		daemon_process(argv[1]);
	return rig_run_both(tests);
}
