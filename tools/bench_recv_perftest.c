/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline of kvstage-bench recv over verbs: ib_write_bw (perftest), a
 * server and a client on the device that ours uses. The client's own figure is
 * taken: all writes of one queue pair, from the first post to the last
 * completion.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "tools/bench_recv.h"

#define PROGRAM "ib_write_bw"
#define WRITES_MIN 20
#define WRITES_MAX 100000
#define NAP (10 * KVS_NSEC_PER_MSEC)
#define OUTPUT_MAX 16384
#define MIB (1 << 20)
#define HOST_ARG 16 /* behind the options, see kvs_recv_write_bw() */

struct child {
	pid_t pid; /* 0: none, or it has ended */
	int out; /* what it prints; -1: nothing */
	int status;
};

int kvs_recv_write_bw_there(char *why, size_t len)
{
	const char *path = getenv("PATH");
	char file[512];

	while (path && *path) {
		size_t n = strcspn(path, ":");

		snprintf(file, sizeof(file), "%.*s/" PROGRAM, (int)n, path);
		if (n && n < sizeof(file) - sizeof(PROGRAM) - 1 &&
		    !access(file, X_OK))
			return 0;
		path += n + (path[n] == ':');
	}
	snprintf(why, len,
		 "no " PROGRAM " in PATH to compare with (package perftest)");
	return -EOPNOTSUPP;
}

/* ---- processes ---- */

static int start(struct child *c, char *const argv[])
{
	pid_t parent = getpid();

	c->out = memfd_create(PROGRAM, MFD_CLOEXEC);
	if (c->out < 0)
		return -errno;
	(void)fflush(NULL);
	c->pid = fork();
	if (c->pid < 0) {
		c->pid = 0;
		return -errno;
	}
	if (c->pid)
		return 0;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || dup2(c->out, 1) < 0 || dup2(c->out, 2) < 0)
		_exit(127);
	execvp(PROGRAM, argv);
	_exit(127);
}

static void end(struct child *c)
{
	if (c->pid) {
		(void)kill(c->pid, SIGKILL);
		while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR)
			;
	}
	if (c->out >= 0)
		close(c->out);
}

static bool ended(struct child *c)
{
	if (c->pid && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
		c->pid = 0;
	return !c->pid;
}

static bool went_well(const struct child *c)
{
	return WIFEXITED(c->status) && !WEXITSTATUS(c->status);
}

static void nap(void)
{
	const struct timespec ts = { .tv_nsec = NAP };

	(void)nanosleep(&ts, NULL);
}

/* All that it printed; a text. */
static void printed(const struct child *c, char *buf, size_t len)
{
	ssize_t n = pread(c->out, buf, len - 1, 0);

	buf[n > 0 ? n : 0] = '\0';
}

/* ---- ports ---- */

/* Somebody else may take it before the server does; then it fails. */
static int free_port(uint16_t *ret)
{
	struct sockaddr_in sin = { .sin_family = AF_INET };
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int r = 0;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&sin, sizeof(sin)) ||
	    getsockname(fd, (struct sockaddr *)&sin, &len))
		r = -errno;
	close(fd);
	*ret = ntohs(sin.sin_port);
	return r;
}

static bool listens(const char *table, uint16_t port)
{
	FILE *f = fopen(table, "re");
	char line[512];
	unsigned int at, st;
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*d: %*[0-9A-F]:%x %*[0-9A-F:] %x", &at,
			       &st) == 2 &&
			at == port && st == 0x0a;
	if (f)
		(void)fclose(f);
	return found;
}

/* ---- one run ---- */

static unsigned int writes(const struct kvs_recv_run *run)
{
	double n = run->seconds * run->expect * 1e9 / (double)run->size;

	return n < WRITES_MIN	? WRITES_MIN
	       : n > WRITES_MAX ? WRITES_MAX
				: (unsigned int)n;
}

/* The line of our size: bytes, iterations, peak, average. */
static int parse(const struct kvs_recv_run *run, const char *text,
		 struct kvs_recv_rate *ret)
{
	uint64_t size, n;
	double peak, average;

	for (; text; text = strchr(text, '\n')) {
		text += *text == '\n';
		if (sscanf(text, "%" SCNu64 " %" SCNu64 " %lf %lf", &size, &n,
			   &peak, &average) != 4 ||
		    size != run->size || !(average > 0))
			continue;
		ret->gbps = average * MIB / 1e9;
		ret->bytes = size * n;
		return 0;
	}
	return -EPROTO;
}

static void complain(const char *who, const struct child *c, char *why,
		     size_t len)
{
	char text[OUTPUT_MAX];
	size_t n;

	printed(c, text, sizeof(text));
	for (n = strlen(text); n && text[n - 1] == '\n'; n--)
		text[n - 1] = '\0';
	snprintf(why, len, PROGRAM ", %s: status 0x%x: ...%s", who,
		 (unsigned int)c->status, text + (n > 200 ? n - 200 : 0));
}

static int both(const struct kvs_recv_run *run, struct child *server,
		struct child *client, char *argv[], uint16_t port, char *why,
		size_t len)
{
	static char host[] = "127.0.0.1";
	uint64_t until =
		kvs_clock_now(&kvs_clock_real) +
		KVS_RECV_PATIENCE_MS * KVS_NSEC_PER_MSEC +
		(uint64_t)(10 * run->seconds * (double)KVS_NSEC_PER_SEC);
	int r = start(server, argv);

	while (!r && !listens("/proc/net/tcp", port) &&
	       !listens("/proc/net/tcp6", port)) {
		if (ended(server)) {
			complain("server", server, why, len);
			return -ECONNREFUSED;
		}
		if (kvs_clock_now(&kvs_clock_real) > until)
			return -ETIMEDOUT;
		nap();
	}
	argv[HOST_ARG] = host;
	if (!r)
		r = start(client, argv);
	while (!r && (!ended(client) || !ended(server))) {
		if (kvs_clock_now(&kvs_clock_real) > until)
			return -ETIMEDOUT;
		nap();
	}
	if (r)
		return r;
	if (went_well(client) && went_well(server))
		return 0;
	complain(went_well(client) ? "server" : "client",
		 went_well(client) ? server : client, why, len);
	return -EIO;
}

int kvs_recv_write_bw(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		      char *why, size_t len)
{
	char port[16], ib[16], gid[16], mtu[16], size[32], n[16];
	char device[KVS_RECV_DEVICE_MAX];
	char *argv[] = {
		(char[]){ PROGRAM },
		(char[]){ "-F" },
		(char[]){ "-d" },
		device,
		(char[]){ "-i" },
		ib,
		(char[]){ "-x" },
		gid,
		(char[]){ "-m" },
		mtu,
		(char[]){ "-s" },
		size,
		(char[]){ "-n" },
		n,
		(char[]){ "-p" },
		port,
		[HOST_ARG] = NULL, /* the server has none */
		NULL,
	};
	struct child server = { .out = -1 }, client = { .out = -1 };
	char text[OUTPUT_MAX];
	uint16_t tcp = 0;
	int r;

	memset(ret, 0, sizeof(*ret));
	r = free_port(&tcp);
	snprintf(port, sizeof(port), "%u", tcp);
	snprintf(device, sizeof(device), "%s", run->device->device);
	snprintf(ib, sizeof(ib), "%u", run->device->port);
	snprintf(gid, sizeof(gid), "%d", run->device->gid_index);
	snprintf(mtu, sizeof(mtu), "%u", run->device->mtu);
	snprintf(size, sizeof(size), "%" PRIu64, run->size);
	snprintf(n, sizeof(n), "%u", writes(run));
	if (!r)
		r = both(run, &server, &client, argv, tcp, why, len);
	if (!r) {
		printed(&client, text, sizeof(text));
		r = parse(run, text, ret);
		if (r)
			complain("client", &client, why, len);
	}
	if (r && !why[0])
		snprintf(why, len, PROGRAM ": %s", strerror(-r));
	end(&client);
	end(&server);
	return r;
}
