/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about kvstagectl and the socket it asks: every command answers, as a
 * table and as one JSON object a line; failures are a message and status 1,
 * misuse status 2; without a daemon it says so; the socket is for its owner
 * alone; a disk tier is listed, read and emptied, and one that cannot be had
 * is said and nothing else; no bytes sent to it hurt the daemon, and neither those who ask nothing
 * nor a daemon that is stopped keep anyone waiting for long.
 *
 * usage: daemon_ctl TOOLS-FOLDER
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/e2e/daemon_rig.h"

#define LINES_MAX 128

static struct kvs_rig rig;
static struct kvs_rig_result res;
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

static int ctl(const char *a, const char *b, const char *c)
{
	const char *const args[] = { "--socket", "ctl.sock", a, b, c, NULL };

	kvs_rig_run(&rig, "kvstagectl", args, &res);
	return res.status;
}

/* Every line of the output is an object; all of them, by json_decref(). */
static json_t *lines(const char *text)
{
	json_t *all = json_array(), *o;
	const char *nl;

	for (; *text; text = nl + 1) {
		nl = strchr(text, '\n');
		assert_non_null(nl);
		o = json_loadb(text, (size_t)(nl - text),
			       JSON_REJECT_DUPLICATES, NULL);
		if (!json_is_object(o))
			fail_msg("not an object: %s", text);
		assert_null(json_object_get(o, "ok"));
		assert_int_equal(json_array_append_new(all, o), 0);
	}
	return all;
}

static json_t *ask(const char *command)
{
	assert_int_equal(ctl("--json", command, NULL), 0);
	assert_string_equal(res.err, "");
	return lines(res.out);
}

static void status(void **state)
{
	json_t *all = ask("status"), *o = json_array_get(all, 0);
	char address[64];

	(void)state;
	assert_int_equal(json_array_size(all), 1);
	assert_string_equal(json_string_value(json_object_get(o, "state")),
			    "running");
	assert_int_equal(json_integer_value(json_object_get(o, "pid")),
			 rig.pid);
	snprintf(address, sizeof(address), "127.0.0.1:%u",
		 kvs_rig_port("listen.port"));
	assert_string_equal(json_string_value(json_object_get(o, "listen")),
			    address);
	assert_int_equal(json_integer_value(json_object_get(o, "rooms_live")),
			 0);
	assert_true(json_real_value(json_object_get(o, "uptime_s")) > 0);
	/* 64 bits survive a reader that keeps numbers as doubles */
	assert_true(json_is_string(json_object_get(o, "instance")));
	json_decref(all);

	assert_int_equal(ctl("status", NULL, NULL), 0);
	kvs_rig_assert_has(res.out, address);
	kvs_rig_assert_has(res.out, "running");
}

static void pools(void **state)
{
	json_t *all = ask("pools"), *o;
	size_t i;

	(void)state;
	assert_true(json_array_size(all) > 0);
	json_array_foreach(all, i, o)
	{
		static const char *const states[] = {
			"free",	     "reserved", "granted",
			"staged",    "held",	 "committing",
			"retracted", "cached",	 "quarantined",
		};
		json_int_t sum = 0;
		size_t k;

		for (k = 0; k < 9; k++) {
			json_t *v = json_object_get(o, states[k]);

			assert_true(json_is_integer(v));
			sum += json_integer_value(v);
		}
		assert_int_equal(sum, 64 << 20);
		assert_int_equal(sum, json_integer_value(json_object_get(
					      o, "configured")));
	}
	json_decref(all);
	assert_int_equal(ctl("pools", NULL, NULL), 0);
	kvs_rig_assert_has(res.out, "64.0 MiB");
}

static void topo_and_settings(void **state)
{
	json_t *all = ask("topo"), *o;
	size_t i, found = 0;

	(void)state;
	assert_true(json_array_size(all) > 0);
	assert_true(
		json_is_array(json_object_get(json_array_get(all, 0), "cpus")));
	assert_true(
		json_is_array(json_object_get(json_array_get(all, 0), "rdma")));
	json_decref(all);
	all = ask("settings");
	json_array_foreach(all, i, o)
	{
		const char *name =
			json_string_value(json_object_get(o, "setting"));

		assert_non_null(name);
		if (strcmp(name, "pool.size"))
			continue;
		found++;
		assert_string_equal(
			json_string_value(json_object_get(o, "value")), "64M");
		assert_string_equal(
			json_string_value(json_object_get(o, "default")), "4G");
	}
	assert_int_equal(found, 1);
	json_decref(all);
	assert_int_equal(ctl("topo", NULL, NULL), 0);
	/* a table of devices, or that there is none */
	assert_int_equal(ctl("rdma", NULL, NULL), 0);
	kvs_rig_assert_has(res.out, "device");
	assert_int_equal(ctl("settings", NULL, NULL), 0);
	kvs_rig_assert_has(res.out, "hold.timeout");
}

static void rooms_and_abort(void **state)
{
	json_t *all = ask("rooms");

	(void)state;
	assert_int_equal(json_array_size(all), 0);
	json_decref(all);
	assert_int_equal(ctl("rooms", NULL, NULL), 0);
	assert_string_equal(res.out, "no rooms\n");

	assert_int_equal(ctl("abort", "18446744073709551615", NULL), 1);
	kvs_rig_assert_has(res.err, "no live room 18446744073709551615");
	assert_int_equal(ctl("--json", "abort", "0x7"), 1);
	assert_string_equal(res.out, "");
	kvs_rig_assert_has(res.err, "no live room 7");
}

static void commands(void **state)
{
	static const char *const misuse[][2] = {
		{ NULL, NULL },	   { "nope", NULL },
		{ "abort", NULL }, { "abort", "seven" },
		{ "abort", "-1" }, { "abort", "18446744073709551616" },
		{ "rooms", "7" },  { "--nope", NULL },
	};
	size_t i;

	kvs_rig_start_ready(&rig, NULL);
	status(state);
	pools(state);
	topo_and_settings(state);
	rooms_and_abort(state);
	for (i = 0; i < sizeof(misuse) / sizeof(misuse[0]); i++) {
		assert_int_equal(ctl(misuse[i][0], misuse[i][1], NULL), 2);
		assert_string_equal(res.out, "");
		kvs_rig_assert_has(res.err, "kvstagectl: ");
	}
	assert_int_equal(ctl("--help", NULL, NULL), 0);
	kvs_rig_assert_has(res.out, "abort ROOM");
	kvs_rig_stop(&rig);
}

static void no_daemon(void **state)
{
	(void)state;
	assert_int_equal(ctl("status", NULL, NULL), 1);
	kvs_rig_assert_has(res.err, "cannot connect to ctl.sock: No such file");
	kvs_rig_assert_has(res.err, "kvstaged is not running");
	kvs_rig_write_file("ctl.sock", "");
	assert_int_equal(ctl("--json", "rooms", NULL), 1);
	assert_string_equal(res.out, "");
	kvs_rig_assert_has(res.err, "Connection refused");
}

static void send_raw(const char *bytes, size_t n, char *answer, size_t len)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX,
				   .sun_path = "ctl.sock" };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	/* it may hang up in the middle: that is an answer too */
	(void)!send(fd, bytes, n, MSG_NOSIGNAL);
	kvs_rig_read(fd, answer, len);
	close(fd);
}

static void garbage(void **state)
{
	static const char *const bad[] = {
		"\n",
		"status\n",
		"[]\n",
		"{}\n",
		"{\"command\":7}\n",
		"{\"command\":\"stop\"}\n",
		"{\"command\":\"abort\"}\n",
		"{\"command\":\"abort\",\"room\":7}\n",
		"{\"command\":\"abort\",\"room\":\"-1\"}\n",
		"{\"command\":\"rooms\",\"command\":\"rooms\"}\n",
		"{\"command\":\"\\u0000rooms\"}\n",
		"\xff\xfe{}\n",
	};
	static char huge[100000];
	char answer[4096];
	struct stat st;
	size_t i;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	assert_int_equal(stat("ctl.sock", &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		send_raw(bad[i], strlen(bad[i]), answer, sizeof(answer));
		if (!strstr(answer, "\"ok\":false,\"errno\":\"EINVAL\""))
			fail_msg("%s: %s", bad[i], answer);
	}
	send_raw("{\"command\":\0\"rooms\"}\n", 21, answer, sizeof(answer));
	kvs_rig_assert_has(answer, "EINVAL");
	/* a line without an end is not waited for */
	memset(huge, '{', sizeof(huge));
	send_raw(huge, sizeof(huge), answer, sizeof(answer));
	assert_null(strstr(answer, "\"ok\":true"));
	/* what comes after a request is ignored */
	send_raw("{\"command\":\"rooms\"}\n{\"command\":\"topo\"}\n", 39,
		 answer, sizeof(answer));
	assert_string_equal(answer, "{\"ok\":true}\n");
	assert_int_equal(ctl("status", NULL, NULL), 0);
	kvs_rig_stop(&rig);
}

/* Those that connect and ask nothing do not lock others out, nor for long. */
static void silent(void **state)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX,
				   .sun_path = "ctl.sock" };
	char answer[256];
	int fd[40], i;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	for (i = 0; i < 40; i++) {
		fd[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_true(fd[i] >= 0);
		assert_int_equal(connect(fd[i], (struct sockaddr *)&sun,
					 sizeof(sun)),
				 0);
	}
	assert_int_equal(ctl("status", NULL, NULL), 1);
	kvs_rig_assert_has(res.err, "the daemon is busy");
	assert_string_equal(res.out, "");
	/* the first of them is hung up on, the last was told */
	assert_int_equal(kvs_rig_read(fd[0], answer, sizeof(answer)), 0);
	assert_true(kvs_rig_read(fd[39], answer, sizeof(answer)) > 0);
	kvs_rig_assert_has(answer, "\"errno\":\"EBUSY\"");
	assert_int_equal(ctl("status", NULL, NULL), 0);
	for (i = 0; i < 40; i++)
		close(fd[i]);
	kvs_rig_stop(&rig);
}

/* A daemon that does not run is not waited for without an end. */
static void stopped(void **state)
{
	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	assert_int_equal(kill(rig.pid, SIGSTOP), 0);
	assert_int_equal(ctl("--timeout=1", "status", NULL), 1);
	kvs_rig_assert_has(res.err, "no answer from ctl.sock within 1 s");
	assert_int_equal(kill(rig.pid, SIGCONT), 0);
	assert_int_equal(ctl("--timeout=0", "status", NULL), 2);
	kvs_rig_stop(&rig);
}

/* Asked while the pools are being made. */
static void early(void **state)
{
	static const char *const big[] = { "--pool-size", "512M", NULL };
	json_t *all, *o;

	(void)state;
	kvs_rig_start(&rig, big);
	kvs_rig_wait(&rig, "STATUS=Starting", NULL, 0);
	all = ask("status");
	o = json_object_get(json_array_get(all, 0), "state");
	assert_true(json_is_string(o));
	/* a fast machine may be through already: then it says so */
	if (!strcmp(json_string_value(o), "starting") &&
	    ctl("rooms", NULL, NULL))
		kvs_rig_assert_has(res.err, "the daemon is not ready: start");
	json_decref(all);
	kvs_rig_wait(&rig, "READY=1", NULL, 0);
	assert_int_equal(ctl("rooms", NULL, NULL), 0);
	kvs_rig_stop(&rig);
}

static const char *text_of(json_t *all, size_t i, const char *key)
{
	return json_string_value(json_object_get(json_array_get(all, i), key));
}

static void disk(void **state)
{
	const char *const extra[] = { "--hicache-dir=cache", NULL };
	const char *const off[] = { "--hicache-dir=/nonexistent/cache",
				    "--hicache-shared-dir=/nonexistent/all",
				    NULL };
	json_t *all, *o;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	assert_int_equal(ctl("verify", NULL, NULL), 1);
	kvs_rig_assert_has(res.err, "hicache.dir");
	assert_int_equal(ctl("scrub", NULL, NULL), 1);
	kvs_rig_stop(&rig);

	kvs_rig_start_ready(&rig, extra);
	assert_int_equal(access("cache/node0/lock", F_OK), 0);
	all = ask("cache");
	assert_int_equal(json_array_size(all) % 2, 0);
	assert_string_equal(text_of(all, 0, "tier"), "host");
	assert_string_equal(text_of(all, 1, "tier"), "nvme");
	assert_string_equal(text_of(all, 1, "health"), "ok");
	o = json_array_get(all, 1);
	assert_int_equal(json_integer_value(json_object_get(o, "aside_files")),
			 0);
	json_decref(all);
	all = ask("scrub");
	assert_string_equal(text_of(all, 0, "tier"), "nvme");
	json_decref(all);
	all = ask("verify");
	o = json_array_get(all, 0);
	assert_true(json_is_true(json_object_get(o, "on")));
	assert_int_equal(
		json_integer_value(json_object_get(o, "damaged_blocks")), 0);
	json_decref(all);
	assert_int_equal(ctl("verify", NULL, NULL), 0);
	kvs_rig_assert_has(res.out, "0 did not match");
	assert_int_equal(ctl("evict", NULL, NULL), 0);
	assert_int_equal(ctl("evict", "nvme", NULL), 0);
	assert_int_equal(ctl("evict", "all", NULL), 0);
	assert_int_equal(ctl("evict", "tape", NULL), 1);
	kvs_rig_assert_has(res.err, "there is no tier \"tape\"");
	kvs_rig_stop(&rig);

	/* it serves without */
	kvs_rig_start_ready(&rig, off);
	kvs_rig_assert_log("hicache.dir: the disk tier is off");
	all = ask("cache");
	assert_string_equal(text_of(all, 1, "health"), "off");
	kvs_rig_assert_has(text_of(all, 1, "why"), "No such file");
	assert_string_equal(text_of(all, 2, "tier"), "shared");
	assert_string_equal(text_of(all, 2, "health"), "unreadable");
	kvs_rig_assert_has(text_of(all, 2, "why"), "No such file");
	json_decref(all);
	all = ask("status");
	assert_string_equal(text_of(all, 0, "state"), "running");
	kvs_rig_assert_has(text_of(all, 0, "status"), "disk tier of node");
	json_decref(all);
	assert_int_equal(ctl("verify", NULL, NULL), 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(commands), T(no_daemon), T(garbage), T(early),
		T(silent),   T(stopped),   T(disk),
#undef T
	};

	if (argc != 2) {
		fprintf(stderr, "usage: daemon_ctl TOOLS-FOLDER\n");
		return 2;
	}
	tools = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
