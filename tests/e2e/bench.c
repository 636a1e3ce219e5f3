/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: each subcommand of kvstage-bench runs at a tiny size and prints,
 * with --json, one object a line with the fields that others rely on and
 * nothing else on stdout; bytes and rooms were really moved; rooms ended in
 * mid-transfer give their memory back as they must; without --json a table
 * comes. Wrong arguments end with 2 and a usage message that names
 * them, what cannot be had here with 77 and the reason. No rate is asserted.
 *
 * The first argument is the program.
 */
#include "tests/e2e/bench_rig.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_help(void **state)
{
	(void)state;
	assert_int_equal(run("--help"), 0);
	assert_non_null(strstr(out, "abort"));
	assert_non_null(strstr(out, "pool"));
	assert_non_null(strstr(out, "recv"));
	assert_non_null(strstr(out, "rooms"));
	assert_int_equal(run("recv --help"), 0);
	assert_non_null(strstr(out, "Usage: kvstage-bench recv"));
	assert_non_null(strstr(out, "--connections"));
	assert_int_equal(run("--version"), 0);
	assert_memory_equal(out, "kvstage-bench ", 14);
}

static void test_usage(void **state)
{
	/* arguments, what the message must name */
	static const char *const bad[][2] = {
		{ "", "Usage" },
		{ "nosuch", "nosuch" },
		{ "receive --json", "receive" },
		{ "--nosuch", "nosuch" },
		{ "pool --size 1", "--size" },
		{ "pool --repeats 0", "--repeats" },
		{ "pool surplus", "Too many arguments" },
		{ "recv --size 1M,,2M", "--size" },
		{ "recv --size 1", "--size" },
		{ "recv --size -1", "--size" },
		{ "recv --size 1T", "--size" },
		{ "recv --connections 0", "--connections" },
		{ "recv --connections 1,65", "--connections" },
		{ "recv --seconds 0", "--seconds" },
		{ "recv --seconds nan", "--seconds" },
		{ "recv --seconds 1x", "--seconds" },
		{ "recv --repeats 2", "--repeats" },
		{ "recv --transport udp", "--transport" },
		{ "recv --checksum md5", "--checksum" },
		{ "recv --item-len 15", "--item-len" },
		{ "recv --item-len 1G", "--item-len" },
		{ "recv --engine epoll", "--engine" },
		{ "recv --size 16M --pool 32M", "--pool" },
		{ "recv --device mlx5_0", "--device" },
		{ "recv --transport verbs --device a,b", "--device" },
		{ "recv --transport verbs --size 1M --pool 4M", "--pool" },
		{ "recv --transport verbs --size 100000 --item-len 4K",
		  "--item-len" },
		{ "recv --transport verbs --size 1M --item-len 16",
		  "--item-len" },
		{ "abort --count 0", "--count" },
		{ "abort --count -1", "--count" },
		{ "abort --writer mute", "--writer" },
		{ "abort --room 1M", "--room" },
		{ "abort --room 16777217", "--room" },
		{ "abort --room 2G", "--room" },
		{ "abort --hold-timeout 300", "--hold-timeout" },
		{ "abort --hold-timeout 0", "--hold-timeout" },
		{ "abort --writer stalled --hold-timeout 11s",
		  "transfer.call_timeout" },
		{ "abort --engine epoll", "--engine" },
		{ "abort surplus", "Too many arguments" },
		{ "rooms --live 7", "--live" },
		{ "rooms --live 100,", "--live" },
		{ "rooms --live 99999999", "--live" },
		{ "rooms --rooms 0", "--rooms" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int rc = run(bad[i][0]);

		if (rc != 2 || !strstr(err, bad[i][1]))
			print_message("'%s': %d, %s\n", bad[i][0], rc, err);
		assert_int_equal(rc, 2);
		assert_string_equal(out, "");
		assert_non_null(strstr(err, bad[i][1]));
	}
}

/* With a device, and with ib_write_bw, it is tests/vm/recv.sh. */
static void test_no_verbs(void **state)
{
	char *path = strdup(getenv("PATH"));
	DIR *d = opendir("/sys/class/infiniband");
	const struct dirent *e;
	bool any = false;

	(void)state;
	while (d && (e = readdir(d)))
		any |= e->d_name[0] != '.';
	if (d)
		closedir(d);
	/* nothing to compare with, whatever else there is */
	assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
	assert_int_equal(run("recv --json --transport verbs"), 77);
	assert_int_equal(setenv("PATH", path, 1), 0);
	free(path);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "recv: --transport verbs: "));
	if (!any)
		assert_non_null(strstr(err, "verbs: no verbs device"));
}

static void test_pool(void **state)
{
	json_t *v[LINES_MAX];
	size_t n;

	(void)state;
	assert_int_equal(run("pool --json --size 16M --repeats 1"), 0);
	n = parse(v);
	assert_true(n >= 1);
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(text(v[i], "bench"), "pool");
		assert_true(number(v[i], "page_size") >= 4096);
		assert_true(number(v[i], "prefault_gbps") > 0);
		assert_true(number(v[i], "baseline_gbps") > 0);
		assert_true(number(v[i], "ratio") > 0);
		json_decref(v[i]);
	}
}

static void check_recv(const json_t *v, int size, int connections,
		       const char *checksum)
{
	assert_string_equal(text(v, "bench"), "recv");
	assert_string_equal(text(v, "transport"), "tcp");
	assert_string_equal(text(v, "checksum"), checksum);
	assert_int_equal(number(v, "size"), size);
	assert_int_equal(number(v, "connections"), connections);
	assert_int_equal(number(v, "repeats"), 1);
	assert_true(number(v, "ours_gbps") > 0);
	assert_true(number(v, "baseline_gbps") > 0);
	assert_true(number(v, "ratio") > 0);
	assert_true(number(v, "bytes") >= size);
	assert_true(number(v, "canary_items") ==
		    floor(number(v, "canary_bytes") /
			  number(v, "canary_item_len")));
	assert_true(number(v, "canary_items") >= 1);
	assert_true(number(v, "canary_write_ns_per_gib") > 0);
	assert_true(number(v, "canary_scan_ns_per_gib") > 0);
	assert_true(number(v, "canary_share") > 0);
	/* a mismatch is made in each run, and found */
	assert_true(!json_object_get(v, "checksum_ratio") ==
		    !strcmp(checksum, "none"));
	if (!strcmp(checksum, "none"))
		return;
	assert_true(number(v, "none_gbps") > 0);
	assert_true(number(v, "checksum_ratio") > 0);
	assert_true(number(v, "receive_checksum_ratio") > 0);
	assert_int_equal(number(v, "wrong_checksums_caught"), 2);
}

static void test_recv(void **state)
{
	json_t *v[LINES_MAX];

	(void)state;
	assert_int_equal(run("recv --json --size 64K,1000000 --connections 1,3 "
			     "--seconds 0.2 --repeats 1 --pool 16M"),
			 0);
	assert_int_equal(parse(v), 4);
	check_recv(v[0], 65536, 1, "none");
	check_recv(v[1], 65536, 3, "none");
	check_recv(v[2], 1000000, 1, "none");
	check_recv(v[3], 1000000, 3, "none");
	assert_int_equal(number(v[3], "canary_item_len"), 1000000);
	for (int i = 0; i < 4; i++)
		json_decref(v[i]);
}

/* Rooms become READY with a right checksum, over connections that interleave,
 * and fail with a wrong one: else the run fails. */
static void test_recv_checksum(void **state)
{
	static const char *const kinds[] = { "crc32c", "adler32" };
	json_t *v[LINES_MAX];
	char args[256];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		snprintf(args, sizeof(args),
			 "recv --json --size 100000 --connections 1,3 "
			 "--seconds 0.1 --repeats 1 --pool 8M --item-len 576 "
			 "--checksum %s",
			 kinds[i]);
		assert_int_equal(run(args), 0);
		assert_int_equal(parse(v), 2);
		for (int k = 0; k < 2; k++) {
			check_recv(v[k], 100000, k ? 3 : 1, kinds[i]);
			assert_int_equal(number(v[k], "canary_item_len"), 576);
			json_decref(v[k]);
		}
	}
}

static void test_recv_engines(void **state)
{
	json_t *v[LINES_MAX];
	int rc;

	(void)state;
	assert_int_equal(run("recv --json --size 256K --connections 2 "
			     "--seconds 0.2 --repeats 1 --pool 8M "
			     "--engine sock"),
			 0);
	assert_int_equal(parse(v), 1);
	check_recv(v[0], 256 << 10, 2, "none");
	assert_string_equal(text(v[0], "engine"), "tcp/sock");
	json_decref(v[0]);
	rc = run("recv --json --size 256K --connections 2 --seconds 0.2 "
		 "--repeats 1 --pool 8M --engine uring");
	if (rc == 77) {
		/* Forbidden here, or not built: it must say so. */
		assert_non_null(strstr(err, "uring"));
		return;
	}
	assert_int_equal(rc, 0);
	assert_int_equal(parse(v), 1);
	assert_string_equal(text(v[0], "engine"), "tcp/uring");
	json_decref(v[0]);
}

static void test_recv_table(void **state)
{
	(void)state;
	assert_int_equal(run("recv --size 64K --connections 1 --seconds 0.05 "
			     "--repeats 1 --pool 4M"),
			 0);
	assert_non_null(strstr(out, "ours_gbps"));
	assert_non_null(strstr(out, "64.0 KiB"));
	assert_non_null(strstr(out, "canary_scan_ns_per_gib"));
	assert_null(strstr(out, "checksum_ratio"));
	assert_null(strchr(out, '{'));
	assert_int_equal(run("recv --size 64K --connections 1 --seconds 0.05 "
			     "--repeats 1 --pool 4M --checksum crc32c"),
			 0);
	assert_non_null(strstr(out, "receive_checksum_ratio"));
}

static void test_rooms(void **state)
{
	static const int live[] = { 8, 100, 1000 };
	json_t *v[LINES_MAX];

	(void)state;
	assert_int_equal(run("rooms --json --live 8,100,1000 --rooms 3100"), 0);
	assert_int_equal(parse(v), 3);
	for (int i = 0; i < 3; i++) {
		assert_string_equal(text(v[i], "bench"), "rooms");
		assert_int_equal(number(v[i], "live"), live[i]);
		assert_true(number(v[i], "cpu_us_per_room") > 0);
		assert_true(number(v[i], "poll_us") > 0);
		assert_true(number(v[i], "rooms") >= 3100);
		/* -1: no filter can be set here */
		assert_true(number(v[i], "poll_syscalls") == 0 ||
			    (number(v[i], "poll_syscalls") == -1 &&
			     strstr(err, "not counted")));
		json_decref(v[i]);
	}
	assert_int_equal(run("rooms --live 10 --rooms 31"), 0);
	assert_non_null(strstr(out, "poll_syscalls"));
	assert_null(strchr(out, '{'));
}

/* Aborts of all kinds, each in mid-transfer: every drain has the outcome that
 * its kind must have, and nothing is held in the end. */
static void check_abort(const char *args, const char *writer,
			const char *outcome, json_t **ret)
{
	json_t *v[LINES_MAX], *n;
	const char *key;
	double sum = 0;
	int rc = run(args);

	if (rc == 77) {
		print_message("skipped: %s\n", err);
		skip();
	}
	if (rc)
		print_message("%s\n%s\n", out, err);
	assert_int_equal(rc, 0);
	assert_int_equal(parse(v), 1);
	assert_string_equal(text(v[0], "bench"), "abort");
	assert_string_equal(text(v[0], "writer"), writer);
	json_object_foreach(json_object_get(v[0], "outcomes"), key, n)
	{
		assert_memory_equal(key, outcome, strlen(outcome));
		assert_string_not_equal(key, "drained/never_granted");
		sum += json_number_value(n);
	}
	assert_true(sum == number(v[0], "count"));
	assert_int_equal(number(v[0], "unexpected"), 0);
	assert_int_equal(number(v[0], "held_bytes"), 0);
	assert_true(number(v[0], "median_ms") > 0);
	assert_true(number(v[0], "max_ms") >= number(v[0], "median_ms"));
	/* the engine sees what the daemon counts, and the way there */
	assert_true(number(v[0], "drain_max_ms") <= number(v[0], "max_ms"));
	*ret = v[0];
}

static void test_abort_acks(void **state)
{
	json_t *v;

	(void)state;
	check_abort("abort --json --count 3 --writer acks", "acks", "drained/",
		    &v);
	assert_int_equal(number(v, "count"), 3);
	/* some bytes of each were under way */
	assert_true(number(v, "late_bytes") >= 3);
	assert_int_equal(number(v, "acks_ignored"), 0);
	json_decref(v);
}

static void test_abort_killed(void **state)
{
	json_t *v;

	(void)state;
	check_abort("abort --json --count 3 --writer killed", "killed",
		    "revoked/", &v);
	assert_int_equal(number(v, "count"), 3);
	assert_true(number(v, "loss_max_ms") <= number(v, "max_ms"));
	assert_true(number(v, "loss_median_ms") >= 0);
	json_decref(v);
}

static void test_abort_stalled(void **state)
{
	json_t *v;

	(void)state;
	check_abort("abort --json --count 2 --writer stalled "
		    "--hold-timeout 100ms",
		    "stalled", "revoked/", &v);
	assert_int_equal(number(v, "count"), 2);
	assert_true(number(v, "hold_timeout_ms") == 100);
	/* never before its time, and what comes afterwards lands nowhere */
	assert_true(number(v, "drain_median_ms") >= 100);
	assert_true(number(v, "late_bytes_after") > 0);
	assert_true(number(v, "bytes_compared") == 2 * number(v, "room_bytes"));
	assert_int_equal(number(v, "bytes_wrong"), 0);
	json_decref(v);
	/* it stops within a chunk, whatever its room and transport; how often
	 * it had to be tried is the scheduler's */
	check_abort("abort --json --count 5 --writer stalled --room 16M "
		    "--engine sock --hold-timeout 50ms",
		    "stalled", "revoked/", &v);
	assert_int_equal(number(v, "count"), 5);
	assert_true(number(v, "bytes_compared") == 5 * number(v, "room_bytes"));
	json_decref(v);
	check_abort("abort --json --count 5 --writer stalled --room 16M "
		    "--hold-timeout 50ms",
		    "stalled", "revoked/", &v);
	assert_int_equal(number(v, "count"), 5);
	assert_true(number(v, "bytes_compared") == 5 * number(v, "room_bytes"));
	json_decref(v);
}

static void test_abort_table(void **state)
{
	int rc;

	(void)state;
	rc = run("abort --count 1 --room 32M --engine sock");
	if (rc == 77)
		skip();
	assert_int_equal(rc, 0);
	assert_non_null(strstr(out, "drain_max_ms"));
	assert_non_null(strstr(out, "drained/"));
	/* of a killed writer only */
	assert_null(strstr(out, "loss_max_ms"));
	assert_null(strchr(out, '{'));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_help),
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_no_verbs),
		cmocka_unit_test(test_abort_acks),
		cmocka_unit_test(test_abort_killed),
		cmocka_unit_test(test_abort_stalled),
		cmocka_unit_test(test_abort_table),
		cmocka_unit_test(test_pool),
		cmocka_unit_test(test_recv),
		cmocka_unit_test(test_recv_checksum),
		cmocka_unit_test(test_recv_engines),
		cmocka_unit_test(test_recv_table),
		cmocka_unit_test(test_rooms),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: %s KVSTAGE-BENCH\n", argv[0]);
		return 2;
	}
	program = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
