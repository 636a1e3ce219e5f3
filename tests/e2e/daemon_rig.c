/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/daemon_rig.h"

#define PATIENCE 60000 /* ms until we call it hung */

static char tools[PATH_MAX];

static const char *const own_options[] = {
	"--pool-size",
	KVS_RIG_POOL,
	"--pool-page-size",
	"4K",
	/* containers may not bind memory */
	"--pool-strict",
	"no",
	"--ctl-socket",
	"ctl.sock",
	"--engine-socket",
	"engine.sock",
	"--listen-address",
	"127.0.0.1:0",
	"--listen-port-file",
	"listen.port",
	"--http-address",
	"127.0.0.1:0",
	"--http-port-file",
	"http.port",
	NULL,
};

void kvs_rig_assert_has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in:\n%s", part, text);
}

void kvs_rig_write_file(const char *name, const char *text)
{
	FILE *f = fopen(name, "we");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static size_t read_file(const char *name, char *buf, size_t len)
{
	FILE *f = fopen(name, "re");
	size_t n = 0;

	if (f) {
		n = fread(buf, 1, len - 1, f);
		fclose(f);
	}
	buf[n] = '\0';
	return n;
}

const char *kvs_rig_log(void)
{
	static char text[262144];

	read_file("log", text, sizeof(text));
	return text;
}

void kvs_rig_assert_log(const char *part)
{
	kvs_rig_assert_has(kvs_rig_log(), part);
}

/* Pools are locked memory; without the right to it there is no daemon. */
static void skip_without_memory(void)
{
	const size_t n = 64 << 20;
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || mlock(p, n)) {
		printf("skipped: 64 MiB cannot be locked (%s): raise "
		       "RLIMIT_MEMLOCK\n",
		       strerror(errno));
		exit(77);
	}
	munmap(p, n);
}

void kvs_rig_init(struct kvs_rig *r, const char *tools_dir)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX,
				   .sun_path = "notify" };

	skip_without_memory();
	/* once: it may be relative, and we go elsewhere */
	if (!*tools)
		assert_non_null(realpath(tools_dir, tools));
	/* a daemon may hang up on what we send */
	assert_true(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "/tmp/kvs-daemon-XXXXXX");
	assert_non_null(mkdtemp(r->dir));
	assert_int_equal(chdir(r->dir), 0);
	r->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(r->notify >= 0);
	assert_int_equal(bind(r->notify, (struct sockaddr *)&sun, sizeof(sun)),
			 0);
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void kvs_rig_fini(struct kvs_rig *r)
{
	if (r->pid) {
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
		r->pid = 0;
	}
	close(r->notify);
	if (chdir("/"))
		perror("/");
	nftw(r->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* In the child: the rig's options first, since later ones win. */
static _Noreturn void exec_tool(const char *tool, bool daemon,
				const char *const *extra)
{
	const char *argv[KVS_RIG_ARGS + 32];
	char path[PATH_MAX + 32];
	int n = 0, i;

	snprintf(path, sizeof(path), "%s/%s", tools, tool);
	argv[n++] = tool;
	for (i = 0; daemon && own_options[i]; i++)
		argv[n++] = own_options[i];
	for (i = 0; extra && extra[i] && i < KVS_RIG_ARGS; i++)
		argv[n++] = extra[i];
	argv[n] = NULL;
	/* nothing outlives a test that is killed */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (signal(SIGPIPE, SIG_DFL) == SIG_ERR)
		_exit(126);
	execv(path, (char *const *)argv);
	perror(path);
	_exit(127);
}

static void redirect(const char *name, int to)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

	if (fd < 0 || dup2(fd, to) < 0)
		_exit(126);
	close(fd);
}

void kvs_rig_start(struct kvs_rig *r, const char *const *extra)
{
	char path[64];

	assert_int_equal(r->pid, 0);
	snprintf(path, sizeof(path), "%s/notify", r->dir);
	fflush(NULL);
	r->pid = fork();
	assert_true(r->pid >= 0);
	if (!r->pid) {
		setenv("NOTIFY_SOCKET", path, 1);
		redirect("log", STDERR_FILENO);
		redirect("out", STDOUT_FILENO);
		exec_tool("kvstaged", true, extra);
	}
}

static size_t receive(struct kvs_rig *r, char *buf, size_t len)
{
	struct pollfd p = { .fd = r->notify, .events = POLLIN };
	ssize_t n;

	if (poll(&p, 1, PATIENCE) != 1)
		fail_msg("no message from the daemon; its log:\n%s",
			 kvs_rig_log());
	n = recv(r->notify, buf, len - 1, 0);
	assert_true(n >= 0);
	buf[n] = '\0';
	return (size_t)n;
}

void kvs_rig_wait(struct kvs_rig *r, const char *part, char *seen, size_t len)
{
	char one[2048];
	size_t n = 0;

	for (;;) {
		receive(r, one, sizeof(one));
		if (seen && n < len)
			n += (size_t)snprintf(seen + n, len - n, "%s\n", one);
		if (strstr(one, part))
			return;
	}
}

void kvs_rig_start_ready(struct kvs_rig *r, const char *const *extra)
{
	kvs_rig_start(r, extra);
	kvs_rig_wait(r, "READY=1", NULL, 0);
}

void kvs_rig_block(struct kvs_rig *r)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX,
				   .sun_path = "notify" };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	(void)r;
	assert_true(fd >= 0);
	while (sendto(fd, "full", 4, 0, (struct sockaddr *)&sun, sizeof(sun)) ==
	       4)
		;
	assert_int_equal(errno, EAGAIN);
	close(fd);
}

int kvs_rig_watch(const struct kvs_rig *r)
{
	int fd = inotify_init1(IN_CLOEXEC);

	assert_true(fd >= 0);
	assert_true(inotify_add_watch(fd, r->dir, IN_MOVED_TO) >= 0);
	return fd;
}

void kvs_rig_wait_file(int watch, const char *name)
{
	struct pollfd p = { .fd = watch, .events = POLLIN };
	union {
		struct inotify_event e;
		char bytes[4096];
	} u;

	do {
		if (poll(&p, 1, PATIENCE) != 1)
			fail_msg("%s is not written; log:\n%s", name,
				 kvs_rig_log());
		assert_true(read(watch, &u, sizeof(u)) > 0);
	} while (strcmp(u.e.name, name));
	close(watch);
}

static int wait_status(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int kvs_rig_join(struct kvs_rig *r)
{
	int status = wait_status(r->pid);

	r->pid = 0;
	/* what it still said is of no interest to the next one */
	for (;;) {
		char buf[2048];

		if (recv(r->notify, buf, sizeof(buf), MSG_DONTWAIT) < 0)
			break;
	}
	return status;
}

void kvs_rig_stop(struct kvs_rig *r)
{
	const char *log;
	int status;

	assert_int_equal(kill(r->pid, SIGTERM), 0);
	status = kvs_rig_join(r);
	log = kvs_rig_log();
	if (status || strstr(log, " err: ") || strstr(log, " warn: ") ||
	    !strstr(log, "stopped"))
		fail_msg("status %d, log:\n%s", status, log);
}

void kvs_rig_run(const struct kvs_rig *r, const char *tool,
		 const char *const *args, struct kvs_rig_result *ret)
{
	pid_t pid;

	(void)r;
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		redirect("run.out", STDOUT_FILENO);
		redirect("run.err", STDERR_FILENO);
		exec_tool(tool, !strcmp(tool, "kvstaged"), args);
	}
	ret->status = wait_status(pid);
	read_file("run.out", ret->out, sizeof(ret->out));
	read_file("run.err", ret->err, sizeof(ret->err));
}

unsigned int kvs_rig_port(const char *file)
{
	char text[32];
	unsigned long port;
	char *end;

	read_file(file, text, sizeof(text));
	port = strtoul(text, &end, 10);
	if (!port || port > 65535 || *end != '\n' || end[1])
		fail_msg("%s has \"%s\"", file, text);
	return (unsigned int)port;
}

int kvs_rig_connect(unsigned int port)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	if (connect(fd, (struct sockaddr *)&sin, sizeof(sin)))
		fail_msg("port %u: %s", port, strerror(errno));
	return fd;
}

size_t kvs_rig_read(int fd, char *buf, size_t len)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t n = 0;
	ssize_t got;

	do {
		assert_int_equal(poll(&p, 1, PATIENCE), 1);
		got = recv(fd, buf + n, len - 1 - n, 0);
		n += got > 0 ? (size_t)got : 0;
	} while (got > 0 && n < len - 1);
	buf[n] = '\0';
	return n;
}

const char *kvs_rig_http(const char *method, const char *path)
{
	static char answer[131072];
	int fd = kvs_rig_connect(kvs_rig_port("http.port"));

	assert_true(dprintf(fd,
			    "%s %s HTTP/1.1\r\nHost: localhost\r\n"
			    "Connection: close\r\nContent-Length: 0\r\n\r\n",
			    method, path) > 0);
	assert_true(kvs_rig_read(fd, answer, sizeof(answer)) > 0);
	close(fd);
	return answer;
}
