/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about what kvstaged does not do: it listens on no address but
 * loopback ones and takes no half address (sglang#10389, vllm#17192); a wrong
 * setting is status 2 and a message that names where it came from, the value
 * and the range; a second daemon never takes a first one's socket, while what
 * a crash left behind is no obstacle; what cannot be written or allocated is
 * named with its setting, and memory that is not there is called host memory
 * (LMCache#5177), and descriptors that are not there are not called memory.
 * A port file replaces a port file and nothing else. --help has every option, in
 * 80 columns, and every line of a text in its column.
 *
 * usage: daemon_refuses TOOLS-FOLDER
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/e2e/daemon_rig.h"

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

/* kvstaged with @args ends with @status and says @part. */
static void expect(int status, const char *part, const char *const *args)
{
	kvs_rig_run(&rig, "kvstaged", args, &res);
	if (res.status != status)
		fail_msg("status %d, want %d (\"%s\"):\n%s", res.status, status,
			 part, res.err);
	kvs_rig_assert_has(res.err, part);
}

#define ARGS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void addresses(void **state)
{
	static const struct {
		const char *address;
		int status;
		const char *part;
	} tries[] = {
		{ "127.0.0.1:0", 0, "" },
		{ "localhost:7000", 0, "" },
		{ "[::1]:7000", 0, "" },
		{ "127.200.3.4:7000", 0, "" },
		{ "0.0.0.0:7000", 2, "not a loopback address" },
		{ "[::]:7000", 2, "not a loopback address" },
		{ "*:7000", 2, "not a loopback address" },
		{ "192.0.2.7:7000", 2, "not a loopback address" },
		{ "[fe80::1]:7000", 2, "not a loopback address" },
		{ "127.0.0.1", 2, "127.0.0.1" },
		{ "::1", 2, "::1" },
		{ "[::1]", 2, "[::1]" },
		{ "host", 2, "host" },
		{ "127.0.0.1:65536", 2, "65536" },
		{ "127.0.0.1:-1", 2, "-1" },
		{ "127.0.0.1:", 2, "127.0.0.1:" },
		{ ":7000", 2, ":7000" },
		{ "", 2, "listen.address" },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		expect(tries[i].status, tries[i].part,
		       ARGS("--check-config", "--listen-address",
			    tries[i].address));
		if (tries[i].status)
			kvs_rig_assert_has(res.err, "listen.address");
		expect(tries[i].status, "",
		       ARGS("--check-config", "--http-address",
			    tries[i].address));
		if (tries[i].status)
			kvs_rig_assert_has(res.err, "http.address");
	}
	expect(0, "", ARGS("--check-config", "--http-address", "off"));
	expect(2, "listen.address",
	       ARGS("--check-config", "--listen-address", "off"));
}

static void settings(void **state)
{
	(void)state;
	expect(2,
	       "option --pool-size: pool.size = \"8GiBx\": not a size such as "
	       "512M, 4GiB or 4294967296; allowed: 64K to 1024T",
	       ARGS("--pool-size", "8GiBx"));
	expect(2, "allowed: 1 to 64", ARGS("--engine-max=0"));
	expect(2, "unrecognized option", ARGS("--pool-syze", "8G"));
	expect(2, "unexpected argument", ARGS("8G"));
	expect(2, "nowhere.conf: cannot open: No such file",
	       ARGS("--config", "nowhere.conf"));
	kvs_rig_write_file("k.conf", "# good\n[pool]\nsize = 8 G\n");
	expect(2, "k.conf:3: pool.size = \"8 G\": not a size",
	       ARGS("--config", "k.conf"));
	kvs_rig_write_file("k.conf", "[pool]\nsizes = 8G\n");
	expect(2,
	       "k.conf:2: pool.sizes = \"8G\": there is no such setting; the "
	       "closest is \"pool.size\"",
	       ARGS("--config", "k.conf"));
	/* what only a check finds has its place as well */
	kvs_rig_write_file("k.conf", "[pool]\nnodes = 0,x\n");
	expect(2,
	       "k.conf:2: pool.nodes = \"0,x\": ", ARGS("--config", "k.conf"));
	expect(2, "option --listen-address: listen.address = \"*:7\": ",
	       ARGS("--check-config", "--listen-address", "*:7"));
	expect(2, "engine.socket and ctl.socket are both",
	       ARGS("--engine-socket", "ctl.sock"));
	/* a check does not start anything */
	kvs_rig_write_file("k.conf", "[pool]\nsize = 1T\n");
	expect(0, "", ARGS("--config", "k.conf", "--check-config"));
	assert_true(access("ctl.sock", F_OK));
}

/* Printed settings, as a file, print the same again. */
static void printed(void **state)
{
	static char first[65536];

	(void)state;
	expect(0, "",
	       ARGS("--print-config", "--hold-timeout", "1500ms",
		    "--hold-check", "warn"));
	kvs_rig_assert_has(res.out, "\ntimeout = 1500ms\n");
	kvs_rig_assert_has(res.out, "\nsocket = engine.sock\n");
	memcpy(first, res.out, sizeof(first));
	kvs_rig_write_file("k.conf", first);
	expect(0, "", ARGS("--print-config", "--config", "k.conf"));
	assert_string_equal(res.out, first);
}

static void second_daemon(void **state)
{
	char port[64];

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	expect(1, "ctl.socket = \"ctl.sock\": another kvstaged has it",
	       ARGS("--engine-socket", "other.sock", "--http-port-file=p",
		    "--listen-port-file=q"));
	expect(1, "engine.socket = \"engine.sock\": another kvstaged has it",
	       ARGS("--ctl-socket", "other.sock", "--http-port-file=p",
		    "--listen-port-file=q"));
	snprintf(port, sizeof(port), "127.0.0.1:%u", kvs_rig_port("http.port"));
	expect(1, "http.address",
	       ARGS("--ctl-socket", "other.sock", "--engine-socket",
		    "other2.sock", "--http-address", port,
		    "--http-port-file=p"));
	kvs_rig_assert_has(res.err, "Address already in use");
	snprintf(port, sizeof(port), "127.0.0.1:%u",
		 kvs_rig_port("listen.port"));
	expect(1, "listen.address",
	       ARGS("--ctl-socket", "other.sock", "--engine-socket",
		    "other2.sock", "--listen-address", port,
		    "--http-port-file=p"));
	/* it took nothing away from the first */
	kvs_rig_run(&rig, "kvstagectl", ARGS("-s", "ctl.sock", "status"), &res);
	assert_int_equal(res.status, 0);
	kvs_rig_assert_has(kvs_rig_http("GET", "/readyz"), " 200 OK");
	kvs_rig_stop(&rig);
}

static void after_a_crash(void **state)
{
	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	kill(rig.pid, SIGKILL);
	assert_int_equal(kvs_rig_join(&rig), 256 + SIGKILL);
	assert_int_equal(access("ctl.sock", F_OK), 0);
	assert_int_equal(access("engine.sock", F_OK), 0);
	kvs_rig_start_ready(&rig, NULL);
	kvs_rig_stop(&rig);
}

/* Something of somebody else's lies at the path. */
static void foreign_paths(void **state)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX,
				   .sun_path = "ctl.sock" };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	assert_int_equal(listen(fd, 1), 0);
	expect(1, "ctl.socket = \"ctl.sock\": another process listens there",
	       NULL);
	assert_int_equal(access("ctl.sock", F_OK), 0);
	close(fd);
	/* the same file, now that nobody listens */
	kvs_rig_start_ready(&rig, NULL);
	kvs_rig_stop(&rig);

	kvs_rig_write_file("ctl.sock", "precious\n");
	expect(1, "something that is not a socket", NULL);
	assert_int_equal(access("ctl.sock", F_OK), 0);
	assert_int_equal(unlink("ctl.sock"), 0);
	assert_int_equal(symlink("precious", "ctl.sock"), 0);
	expect(1, "something that is not a socket", NULL);
}

static void permissions(void **state)
{
	(void)state;
	expect(1,
	       "ctl.socket = \"no/such/ctl.sock\": cannot make "
	       "no/such/ctl.sock.lock: No such file or directory",
	       ARGS("--ctl-socket", "no/such/ctl.sock"));
	expect(1, "http.port_file = \"no/such/port\": cannot write it",
	       ARGS("--http-port-file", "no/such/port"));
	expect(1, "listen.port_file = \"no/such/port\": cannot write it",
	       ARGS("--listen-port-file", "no/such/port"));

	assert_int_equal(mkdir("closed", 0500), 0);
	/* root may write anywhere: our children shall not */
	if (!geteuid() && prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)) {
		print_message("root without CAP_SETPCAP: not tried\n");
		return;
	}
	expect(1, "cannot make closed/ctl.sock.lock: Permission denied",
	       ARGS("--ctl-socket", "closed/ctl.sock"));
	expect(1,
	       "ctl.socket = \"closed/k/ctl.sock\": cannot make the folder "
	       "closed/k: Permission denied",
	       ARGS("--ctl-socket", "closed/k/ctl.sock"));
}

/* As at a first start, when /run has no folder for the sockets. */
static void folder_is_made(void **state)
{
	struct stat st;

	(void)state;
	kvs_rig_start_ready(&rig, ARGS("--ctl-socket", "run/ctl.sock"));
	assert_int_equal(stat("run", &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0755);
	kvs_rig_run(&rig, "kvstagectl", ARGS("-s", "run/ctl.sock", "status"),
		    &res);
	assert_int_equal(res.status, 0);
	kvs_rig_stop(&rig);
	kvs_rig_assert_has(kvs_rig_log(), "ctl.socket: made the folder run");
	assert_int_equal(access("run/ctl.sock", F_OK), -1);
}

static void read_file(const char *name, char *buf, size_t len)
{
	FILE *f = fopen(name, "re");

	assert_non_null(f);
	buf[fread(buf, 1, len - 1, f)] = '\0';
	fclose(f);
}

/* What is not a port file stays as it is, and is not written through. */
static void port_files(void **state)
{
	static const char *const settings[] = { "listen", "http" };
	static const char *const names[] = { "link", "text", "folder", "fifo" };
	char option[64], part[128], text[64];
	size_t i, k;

	(void)state;
	kvs_rig_write_file("target", "7410\n");
	kvs_rig_write_file("text", "precious\n");
	assert_int_equal(symlink("target", "link"), 0);
	assert_int_equal(mkdir("folder", 0700), 0);
	assert_int_equal(mkfifo("fifo", 0600), 0);
	for (i = 0; i < 2; i++) {
		for (k = 0; k < 4; k++) {
			snprintf(option, sizeof(option), "--%s-port-file=%s",
				 settings[i], names[k]);
			snprintf(part, sizeof(part),
				 "%s.port_file = \"%s\": there is something",
				 settings[i], names[k]);
			expect(1, part, ARGS(option));
		}
	}
	read_file("target", text, sizeof(text));
	assert_string_equal(text, "7410\n");
	read_file("text", text, sizeof(text));
	assert_string_equal(text, "precious\n");
	assert_int_equal(access("link", F_OK), 0);
	/* of an earlier daemon, empty, or put there while it runs */
	kvs_rig_write_file("old", "65535\n");
	kvs_rig_write_file("empty", "");
	kvs_rig_start_ready(&rig, ARGS("--listen-port-file=old",
				       "--http-port-file=empty"));
	assert_true(kvs_rig_port("empty") != kvs_rig_port("old"));
	assert_int_equal(unlink("old"), 0);
	kvs_rig_write_file("old", "precious\n");
	kvs_rig_stop(&rig);
	assert_int_equal(access("empty", F_OK), -1);
	read_file("old", text, sizeof(text));
	assert_string_equal(text, "precious\n");
}

/* Too few descriptors are not called a lack of memory. */
static void few_descriptors(void **state)
{
	struct rlimit old, few;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = (struct rlimit){ 24, 24 };
	if (old.rlim_max < 24 || setrlimit(RLIMIT_NOFILE, &few))
		skip();
	kvs_rig_run(&rig, "kvstaged", NULL, &res);
	few = old;
	if (setrlimit(RLIMIT_NOFILE, &old))
		skip(); /* only root gets it back */
	assert_int_equal(res.status, 1);
	kvs_rig_assert_has(res.err, "too many open files (ulimit -n 24)");
}

/* 100 TiB: the kind of memory, the numbers and the knob are in the message. */
static void too_much_memory(void **state)
{
	(void)state;
	expect(1, "host memory", ARGS("--pool-size", "100T"));
	kvs_rig_assert_has(res.err, "pool.size");
	kvs_rig_assert_has(res.err, "109951162777600");
	assert_true(access("ctl.sock", F_OK));
	/* the daemon that asks for less starts */
	kvs_rig_start_ready(&rig, NULL);
	kvs_rig_stop(&rig);
}

/* Each setting of --print-config is an option; returns how many there are. */
static size_t options(const char *help)
{
	static struct kvs_rig_result all;
	char section[64] = "", key[64], option[192];
	const char *line, *nl;
	size_t n = 0;

	kvs_rig_run(&rig, "kvstaged", ARGS("--print-config"), &all);
	assert_int_equal(all.status, 0);
	for (line = all.out; (nl = strchr(line, '\n')); line = nl + 1) {
		if (sscanf(line, "[%63[a-z]]", section) == 1 ||
		    sscanf(line, "%63[a-z_] =", key) != 1)
			continue;
		snprintf(option, sizeof(option), "\n      --%s-%s=", section,
			 key);
		for (char *c = option; *c; c++)
			if (*c == '_')
				*c = '-';
		kvs_rig_assert_has(help, option);
		n++;
	}
	return n;
}

static void help(void **state)
{
	size_t col, texts = 0, names = 0;
	const char *line, *nl;

	(void)state;
	kvs_rig_run(&rig, "kvstaged", ARGS("--help"), &res);
	assert_int_equal(res.status, 0);
	line = strstr(res.out, "\n\n");
	assert_non_null(line);
	for (line += 2; (nl = strchr(line, '\n')); line = nl + 1) {
		if (nl - line > 79)
			fail_msg("%zu columns: %.*s", (size_t)(nl - line),
				 (int)(nl - line), line);
		if (!strncmp(line, "Options win", strlen("Options win")))
			break;
		col = strspn(line, " ");
		if (nl == line)
			continue;
		if (line[col] == '-' && col < 29)
			names++;
		else if (col != 29)
			fail_msg("column %zu: %.*s", col, (int)(nl - line),
				 line);
		else
			texts++;
	}
	assert_true(texts > names);
	assert_int_equal(names, options(res.out) + 6);
}

static void no_such_node(void **state)
{
	(void)state;
	expect(1, "pool.nodes", ARGS("--pool-nodes", "1023"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(addresses),	   T(settings),	       T(printed),
		T(second_daemon),  T(after_a_crash),   T(foreign_paths),
		T(no_such_node),   T(too_much_memory), T(permissions),
		T(folder_is_made), T(port_files),      T(few_descriptors),
		T(help),
#undef T
	};

	if (argc != 2) {
		fprintf(stderr, "usage: daemon_refuses TOOLS-FOLDER\n");
		return 2;
	}
	tools = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
