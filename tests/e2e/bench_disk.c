/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvstage-bench disk really writes and reads, beside fio, with each
 * engine and durability; prints, with --json, one object for each op with the
 * fields that others rely on; leaves no file behind; ends with 77 and a reason
 * where there is no fio, and with 2 on wrong arguments. No rate is asserted.
 *
 * The first argument is the program.
 */
#include "tests/e2e/bench_rig.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/kvs-bench-disk-XXXXXX";

static unsigned int files(void)
{
	struct dirent *e;
	DIR *d = opendir(dir);
	unsigned int n = 0;

	assert_non_null(d);
	while ((e = readdir(d)))
		n += *e->d_name != '.';
	closedir(d);
	return n;
}

static int disk(const char *args)
{
	char line[512];

	snprintf(line, sizeof(line),
		 "disk --json --dir %s --size 8M --bs 256K --pairs 1 %s", dir,
		 args);
	return run(line);
}

static void check(const json_t *v, const char *op)
{
	assert_string_equal(text(v, "bench"), "disk");
	assert_string_equal(text(v, "op"), op);
	assert_int_equal(number(v, "bs"), 256 << 10);
	assert_true(number(v, "ours_gbps") > 0);
	assert_true(number(v, "fio_gbps") > 0);
	assert_true(number(v, "ratio") > 0);
	assert_int_equal(number(v, "pairs"), 1);
	assert_int_equal(number(v, "size"), 8 << 20);
}

static void there_and_back(void **state)
{
	json_t *v[LINES_MAX];
	int rc = disk("--depth 4");

	(void)state;
	if (rc == 77) {
		assert_non_null(strstr(err, "no fio"));
		skip();
	}
	assert_int_equal(rc, 0);
	assert_int_equal(parse(v), 2);
	check(v[0], "write");
	check(v[1], "read");
	assert_int_equal(number(v[0], "depth"), 4);
	assert_string_equal(text(v[0], "durability"), "none");
	json_decref(v[0]);
	json_decref(v[1]);
	assert_int_equal(files(), 0);
}

static void each_way(void **state)
{
	json_t *v[LINES_MAX];
	int rc = disk("--ops write --engine plain --durability fdatasync");

	(void)state;
	if (rc == 77)
		skip();
	assert_int_equal(rc, 0);
	assert_int_equal(parse(v), 1);
	check(v[0], "write");
	assert_string_equal(text(v[0], "engine"), "plain");
	assert_string_equal(text(v[0], "durability"), "fdatasync");
	json_decref(v[0]);
	assert_int_equal(disk("--ops read"), 0);
	assert_int_equal(parse(v), 1);
	check(v[0], "read");
	json_decref(v[0]);
	assert_int_equal(files(), 0);
}

static void without_fio(void **state)
{
	char *path = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");

	(void)state;
	assert_non_null(path);
	setenv("PATH", "/nonexistent", 1);
	assert_int_equal(disk(""), 77);
	setenv("PATH", path, 1);
	free(path);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "no fio"));
	assert_int_equal(files(), 0);
}

static void usage(void **state)
{
	static const char *const bad[][2] = {
		{ "disk --size 1000", "--size" },
		{ "disk --bs 0", "--bs" },
		{ "disk --bs 2G", "--bs" },
		{ "disk --bs 3M --size 4M", "--bs" },
		{ "disk --depth 0", "0" },
		{ "disk --depth 5000", "5000" },
		{ "disk --pairs 0", "0" },
		{ "disk --ops erase", "erase" },
		{ "disk --engine aio", "aio" },
		{ "disk --durability fsync", "fsync" },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(run(bad[i][0]), 2);
		assert_string_equal(out, "");
		assert_non_null(strstr(err, bad[i][1]));
	}
	assert_int_equal(run("disk --dir /nonexistent --json"), 1);
	assert_non_null(strstr(err, "/nonexistent"));
	assert_int_equal(run("disk --help"), 0);
	assert_non_null(strstr(out, "--durability"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(each_way),
		cmocka_unit_test(without_fio),
		cmocka_unit_test(usage),
	};
	int rc;

	if (argc != 2 || !mkdtemp(dir))
		return 2;
	program = argv[1];
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(dir);
	return rc;
}
