/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about kvstaged as a process: HTTP answers before the pools are whole
 * and says so; a scrape is whole and its pools add up, also under 100 at a
 * time; SIGHUP applies what can change, names what cannot and takes nothing of
 * a bad file; SIGTERM ends it with 0 and leaves no file behind, within 5 s
 * also while a pool is being populated; a second signal does not wait; the
 * service manager is told all of it.
 *
 * usage: daemon TOOLS-FOLDER
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/daemon_rig.h"

static struct kvs_rig rig;
static const char *tools;

static int setup(void **state)
{
	(void)state;
	kvs_rig_init(&rig, tools);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvs_rig_fini(&rig);
	return 0;
}

static void assert_gone(const char *name)
{
	if (!access(name, F_OK))
		fail_msg("%s is left behind", name);
}

/* Value of an unlabelled or fully named series. */
static double metric(const char *page, const char *series)
{
	char line[256];
	const char *at;

	snprintf(line, sizeof(line), "\n%s ", series);
	at = strstr(page, line);
	if (!at)
		fail_msg("no series %s", series);
	return strtod(at + strlen(line), NULL);
}

/* Sum of all series that begin with @head; their number in @ret_n. */
static double metric_sum(const char *page, const char *head,
			 unsigned int *ret_n)
{
	const char *at = page;
	double sum = 0;

	*ret_n = 0;
	while ((at = strstr(at, head))) {
		at = strchr(at + 1, '}');
		assert_non_null(at);
		sum += strtod(at + 1, NULL);
		(*ret_n)++;
	}
	return sum;
}

/* The pools' states add up to their sizes, in this one page. */
static void assert_pools_add_up(const char *page)
{
	unsigned int states, pools;
	double sum, size;

	sum = metric_sum(page, "\nkvstage_pool_bytes{", &states);
	size = metric_sum(page, "\nkvstage_pool_configured_bytes{", &pools);
	assert_true(pools > 0);
	assert_int_equal(states, 9 * pools);
	assert_true(size == (double)(64 << 20) * pools);
	assert_true(sum == size);
	assert_null(strstr(page, "NaN"));
	assert_null(strstr(page, "nan"));
}

/* The daemon waits in its first message: whatever comes now comes early. */
static void not_ready_then_ready(void **state)
{
	static const char *const big[] = { "--pool-size", "512M", NULL };
	char early[65536];
	const char *page;
	int watch, fd;

	(void)state;
	kvs_rig_block(&rig);
	watch = kvs_rig_watch(&rig);
	kvs_rig_start(&rig, big);
	kvs_rig_wait_file(watch, "http.port");
	fd = kvs_rig_connect(kvs_rig_port("http.port"));
	assert_true(dprintf(fd, "GET /readyz HTTP/1.0\r\n\r\n") > 0);
	kvs_rig_wait(&rig, "STATUS=Starting", NULL, 0);
	assert_true(kvs_rig_read(fd, early, sizeof(early)) > 0);
	close(fd);
	kvs_rig_assert_has(early, " 503 ");
	kvs_rig_assert_has(early, "\r\n\r\nstarting");

	kvs_rig_wait(&rig, "READY=1", NULL, 0);
	page = kvs_rig_http("GET", "/readyz");
	kvs_rig_assert_has(page, " 200 OK\r\n");
	kvs_rig_assert_has(page, "\r\n\r\nready\n");
	kvs_rig_stop(&rig);
}

static void pages(void **state)
{
	const char *page;
	unsigned int n;
	char line[64];

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	kvs_rig_assert_has(kvs_rig_http("GET", "/healthz"), "\r\n\r\nok\n");
	kvs_rig_assert_has(kvs_rig_http("GET", "/healthz?x=y"), " 200 OK");
	kvs_rig_assert_has(kvs_rig_http("GET", "/"), "/metrics");
	kvs_rig_assert_has(kvs_rig_http("GET", "/nope"), " 404 ");
	kvs_rig_assert_has(kvs_rig_http("GET", "/metrics/../etc"), " 404 ");
	kvs_rig_assert_has(kvs_rig_http("POST", "/metrics"), " 405 ");
	kvs_rig_assert_has(kvs_rig_http("DELETE", "/"), "Allow: GET, HEAD");
	page = kvs_rig_http("HEAD", "/metrics");
	kvs_rig_assert_has(page, " 200 OK");
	assert_null(strstr(page, "kvstage_"));
	assert_null(strstr(page, "Content-Length: 0\r\n"));
	page = kvs_rig_http("GET", "/metrics");
	kvs_rig_assert_has(page, "text/plain; version=0.0.4");
	assert_pools_add_up(page);
	assert_true(metric(page, "kvstage_ready") == 1);
	assert_true(metric(page, "kvstage_sessions") == 0);
	assert_true(metric_sum(page, "\nkvstage_pool_page_bytes{", &n) / n ==
		    (double)sysconf(_SC_PAGESIZE));

	/* loud lines: where it listens and what memory it got */
	snprintf(line, sizeof(line), "prefill ranks connect to 127.0.0.1:%u",
		 kvs_rig_port("listen.port"));
	kvs_rig_assert_log(line);
	snprintf(line, sizeof(line), "metrics at http://127.0.0.1:%u/metrics",
		 kvs_rig_port("http.port"));
	kvs_rig_assert_log(line);
	kvs_rig_assert_log(": 64.0 MiB in 4K pages");
	kvs_rig_stop(&rig);
	assert_gone("ctl.sock");
	assert_gone("ctl.sock.lock");
	assert_gone("engine.sock");
	assert_gone("engine.sock.lock");
	assert_gone("http.port");
	assert_gone("listen.port");
}

/* Asked all at once, answered one by one; counters never fall. */
static void hundred_scrapes(void **state)
{
	static char page[131072];
	int fd[100], i;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	for (i = 0; i < 100; i++) {
		fd[i] = kvs_rig_connect(kvs_rig_port("http.port"));
		assert_true(dprintf(fd[i], "GET /metrics HTTP/1.0\r\n\r\n") >
			    0);
	}
	for (i = 0; i < 100; i++) {
		assert_true(kvs_rig_read(fd[i], page, sizeof(page)) > 0);
		close(fd[i]);
		kvs_rig_assert_has(page, " 200 OK");
		assert_pools_add_up(page);
	}
	kvs_rig_stop(&rig);
}

static unsigned int open_files(pid_t pid)
{
	char path[64];
	unsigned int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Half a request each: no more of them are kept than there is room for, and
 * who asks a whole one gets its answer. */
static void half_requests(void **state)
{
	int fd[400], i;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	for (i = 0; i < 400; i++) {
		fd[i] = kvs_rig_connect(kvs_rig_port("http.port"));
		assert_true(dprintf(fd[i], "GET /met") > 0);
	}
	kvs_rig_assert_has(kvs_rig_http("GET", "/metrics"), " 200 OK");
	assert_true(open_files(rig.pid) < 200);
	kvs_rig_assert_has(kvs_rig_http("GET", "/healthz"), " 200 OK");
	for (i = 0; i < 400; i++)
		close(fd[i]);
	kvs_rig_stop(&rig);
}

static void http_garbage(void **state)
{
	static char huge[70000];
	char answer[4096];
	int fd;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	memset(huge, 'a', sizeof(huge) - 1);
	fd = kvs_rig_connect(kvs_rig_port("http.port"));
	/* it may hang up in the middle: that is an answer too */
	(void)!dprintf(fd, "GET /%s HTTP/1.0\r\n\r\n", huge);
	kvs_rig_read(fd, answer, sizeof(answer));
	close(fd);
	fd = kvs_rig_connect(kvs_rig_port("http.port"));
	assert_true(dprintf(fd, "\x01\x02 nonsense\r\n\r\n") > 0);
	kvs_rig_read(fd, answer, sizeof(answer));
	close(fd);
	/* one that never speaks does not keep the others waiting */
	fd = kvs_rig_connect(kvs_rig_port("http.port"));
	kvs_rig_assert_has(kvs_rig_http("GET", "/readyz"), " 200 OK");
	close(fd);
	kvs_rig_stop(&rig);
}

/* The value kvstagectl shows for a setting, as JSON text. */
static void assert_setting(const char *name, const char *value)
{
	static const char *const args[] = { "-s", "ctl.sock", "--json",
					    "settings", NULL };
	static struct kvs_rig_result res;
	char part[256];

	kvs_rig_run(&rig, "kvstagectl", args, &res);
	assert_int_equal(res.status, 0);
	snprintf(part, sizeof(part), "\"setting\":\"%s\",\"value\":\"%s\"",
		 name, value);
	kvs_rig_assert_has(res.out, part);
}

static void reload(void **state)
{
	static const char *const conf[] = { "--config", "k.conf",
					    "--claim-timeout", "7s", NULL };
	char seen[4096];

	(void)state;
	kvs_rig_write_file("k.conf", "[hold]\ntimeout = 20s\n");
	kvs_rig_start_ready(&rig, conf);
	assert_setting("hold.timeout", "20s");

	kvs_rig_write_file("k.conf", "[hold]\ntimeout = 17s\n"
				     "[claim]\ntimeout = 9s\n"
				     "[extent]\ntokens = 64\n");
	kill(rig.pid, SIGHUP);
	kvs_rig_wait(&rig, "READY=1", seen, sizeof(seen));
	kvs_rig_assert_has(seen, "RELOADING=1\nMONOTONIC_USEC=");
	assert_setting("hold.timeout", "17s");
	/* the option still wins */
	assert_setting("claim.timeout", "7s");
	assert_setting("extent.tokens", "2048");
	kvs_rig_assert_log("a restart is needed for extent.tokens");

	kvs_rig_write_file("k.conf", "[hold]\ntimeout = 6s\ntimeout = 8s\n");
	kill(rig.pid, SIGHUP);
	kvs_rig_wait(&rig, "READY=1", NULL, 0);
	kvs_rig_assert_log("reload: k.conf:3: hold.timeout");
	assert_setting("hold.timeout", "17s");

	/* nor does what does not go together replace what does */
	kvs_rig_write_file("k.conf", "[transfer]\ncall_timeout = 30s\n");
	kill(rig.pid, SIGHUP);
	kvs_rig_wait(&rig, "READY=1", NULL, 0);
	kvs_rig_assert_log("reload: k.conf:2: hold.timeout (30s) does not "
			   "exceed hold.assume_propagation (1s) + "
			   "hold.assume_remaining (5s) + "
			   "transfer.call_timeout (30s) = 36s");
	assert_setting("transfer.call_timeout", "10s");
	kvs_rig_assert_has(kvs_rig_http("GET", "/readyz"), " 200 OK");

	/* that log has warnings, and should */
	kill(rig.pid, SIGTERM);
	assert_int_equal(kvs_rig_join(&rig), 0);
}

static void watchdog(void **state)
{
	char seen[8192];

	(void)state;
	setenv("WATCHDOG_USEC", "100000", 1);
	kvs_rig_start_ready(&rig, NULL);
	unsetenv("WATCHDOG_USEC");
	kvs_rig_wait(&rig, "WATCHDOG=1", NULL, 0);
	kvs_rig_wait(&rig, "WATCHDOG=1", NULL, 0);
	kill(rig.pid, SIGTERM);
	kvs_rig_wait(&rig, "STOPPING=1", seen, sizeof(seen));
	assert_int_equal(kvs_rig_join(&rig), 0);
}

/* A pool that takes a while: as much as is there to try it with. */
static const char *slow_pool(void)
{
	unsigned long kb = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %lu", &kb) == 1)
			break;
	fclose(f);
	return kb > 6UL << 20 ? "3G" : kb > 2UL << 20 ? "1G" : "256M";
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void stop_during_start(void **state)
{
	const char *const args[] = { "--pool-size", slow_pool(),
				     "--pool-prefault-threads", "1", NULL };
	uint64_t at;

	(void)state;
	kvs_rig_start(&rig, args);
	kvs_rig_wait(&rig, "STATUS=Starting", NULL, 0);
	at = now_ms();
	kill(rig.pid, SIGTERM);
	assert_int_equal(kvs_rig_join(&rig), 0);
	assert_true(now_ms() - at < 20000);
	kvs_rig_assert_log("giving up the start");
	assert_null(strstr(kvs_rig_log(), "ready\n"));
	assert_gone("ctl.sock");
	assert_gone("engine.sock");
	/* nothing stands in the way of the next one */
	kvs_rig_start_ready(&rig, NULL);
	kvs_rig_stop(&rig);
}

/* Both signals are pending when it goes on, so neither can come too late. */
static void second_signal_forces(void **state)
{
	const char *const args[] = { "--pool-size", slow_pool(),
				     "--pool-prefault-threads", "1", NULL };

	(void)state;
	kvs_rig_start(&rig, args);
	kvs_rig_wait(&rig, "STATUS=Starting", NULL, 0);
	kill(rig.pid, SIGSTOP);
	kill(rig.pid, SIGTERM);
	kill(rig.pid, SIGINT);
	kill(rig.pid, SIGCONT);
	assert_int_equal(kvs_rig_join(&rig), 1);
	kvs_rig_assert_log("leaving now");
	assert_gone("ctl.sock");
	assert_gone("ctl.sock.lock");
	assert_gone("http.port");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(not_ready_then_ready),
		T(pages),
		T(hundred_scrapes),
		T(half_requests),
		T(http_garbage),
		T(reload),
		T(watchdog),
		T(stop_during_start),
		T(second_signal_forces),
#undef T
	};

	if (argc != 2) {
		fprintf(stderr, "usage: daemon TOOLS-FOLDER\n");
		return 2;
	}
	tools = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
