/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about kvstage-bench ttft where something is not as usual. What an
 * option cannot be is said with the option, the setting it is for and what is
 * allowed; one that would do nothing is refused, and so is a mode or a share
 * that is there twice. Any number of bytes a token works. Requests that no such
 * pool ever holds are counted and named, and where they leave nothing to
 * compare it is said what each run completed. A pool is called what it is. On
 * the real clock the table says what was compared, and on none that little is
 * nothing. A folder has the files of the last run, and nothing of an earlier
 * one; what stands in the way there is said before the run. Stopped before
 * anything is over, there are no results, and that is no success. The report
 * names a table that is missing, damaged or cut, and draws nothing of nothing.
 *
 * The first argument is the program.
 */
#include "tests/e2e/bench_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static json_t *line[LINES_MAX];
static size_t n_lines;

static void again(void)
{
	while (n_lines)
		json_decref(line[--n_lines]);
}

static void test_usage(void **state)
{
	static const char *const bad[][2] = {
		{ "--hold 1ns", "hold.timeout = \"1ns\": too small; allowed: "
				"1ms to 24h" },
		{ "--hold 25h", "hold.timeout = \"25h\": too large" },
		{ "--clock real --hold 5ms --scale 1000",
		  "--hold as short as --scale 1000 makes it: hold.timeout" },
		{ "--scale 5", "--scale: only with --clock real" },
		{ "--modes staged,ideal,staged", "--modes staged,ideal,staged: "
						 "of direct, staged, auto, "
						 "ideal, each once" },
		{ "--abort 0.1,0.3,0.10", "--abort 0.1,0.3,0.10: 0.10 is there "
					  "twice" },
		/* all names, and the option once */
		{ "--model none", "ttft: --model \"none\": unknown; known are "
				  "llama-3-70b" },
		{ "--model none", " tiny-hybrid\n" },
	};
	char args[128];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(args, sizeof(args), "ttft %s", bad[i][0]);
		assert_int_equal(run(args), 2);
		if (!strstr(err, bad[i][1]))
			fail_msg("%s: not \"%s\" in: %s", args, bad[i][1], err);
		assert_string_equal(out, "");
	}
}

/* The pools are whole pages of the machine whatever a token has. */
static void test_token_bytes(void **state)
{
	static const char *const bytes[] = { "1", "100", "4097" };
	char args[128];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
		again();
		snprintf(args, sizeof(args),
			 "ttft --json --requests 20 --token-bytes %s",
			 bytes[i]);
		assert_int_equal(run(args), 0);
		n_lines = parse(line);
		assert_int_equal(n_lines, 6);
		for (size_t k = 0; k < n_lines; k++)
			assert_true(number(line[k], "failed") == 0);
	}
}

static void bench(const char *args, int status)
{
	again();
	assert_int_equal(run(args), status);
	n_lines = parse(line);
}

static void test_never_fit(void **state)
{
	(void)state;
	bench("ttft --json --requests 60 --host-pool 512M "
	      "--modes direct,staged",
	      0);
	assert_int_equal(n_lines, 2);
	assert_string_equal(text(line[0], "host_pool"), "none");
	assert_true(number(line[0], "host_pool_bytes") == 0);
	assert_true(number(line[0], "never_fit") == 0);
	assert_string_equal(text(line[1], "host_pool"), "given");
	assert_true(number(line[1], "host_pool_bytes") == 512 << 20);
	assert_true(number(line[1], "never_fit") > 10);
	assert_true(number(line[1], "failed") == number(line[1], "never_fit"));
	assert_non_null(strstr(err, "of 60 requests failed, as a host pool of "
				    "512.0 MiB can never hold them; the "
				    "longest prompt has"));
	bench("ttft --json --requests 20 --device-tokens 20000 --modes direct",
	      0);
	assert_true(number(line[0], "never_fit") > 0);
	assert_non_null(strstr(err, "a device of 20000 tokens can never"));
	bench("ttft --json --requests 20 --host-pool 64M --abort 0 "
	      "--modes direct,ideal",
	      1);
	assert_non_null(strstr(err, "there are no latencies to compare; "
				    "completed were direct 20, ideal 0\n"));
}

/* Cells of the row of @mode. */
static size_t cells(const char *mode, char row[32][32])
{
	const char *row_of = strstr(out, mode);
	char *at, *save = NULL;
	size_t n = 0;

	assert_non_null(row_of);
	at = strdup(row_of + (*row_of == '\n'));
	assert_non_null(at);
	at[strcspn(at, "\n")] = '\0';
	for (char *w = strtok_r(at, " ", &save); w && n < 32;
	     w = strtok_r(NULL, " ", &save))
		snprintf(row[n++], 32, "%s", w);
	free(at);
	return n;
}

static void test_table(void **state)
{
	char head[32][32], direct[32][32], staged[32][32];
	size_t n;

	(void)state;
	assert_int_equal(run("ttft --clock real --requests 20 --scale 100 "
			     "--max-input 4000 --modes direct,staged"),
			 0);
	n = cells("mode", head);
	assert_int_equal(cells("\ndirect", direct), n);
	assert_int_equal(cells("\nstaged", staged), n);
	assert_string_equal(direct[1], "none");
	assert_string_equal(staged[1], "planned");
	assert_string_equal(head[n - 3], "host_peak_GB");
	assert_string_equal(direct[n - 3], "-");
	/* some MB */
	assert_true(strtod(staged[n - 3], NULL) > 0);
	assert_string_equal(head[n - 2], "compared_GB");
	assert_true(strtod(staged[n - 2], NULL) > 0);
	assert_string_equal(head[n - 1], "mismatches");
	assert_string_equal(direct[n - 1], "0");
	assert_non_null(strstr(err, "hold timeout 300 ms and all other times: "
				    "1/100 of what they are for"));
}

static bool there(const char *dir, const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return !access(path, F_OK);
}

static void test_folder(void **state)
{
	char dir[] = "/tmp/kvs-ttft-XXXXXX", args[256], path[128];

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(args, sizeof(args),
		 "ttft --json --requests 30 --abort 0.3 --modes staged,ideal "
		 "--out %s",
		 dir);
	bench(args, 0);
	assert_true(there(dir, "requests-staged-half-0.3000.tsv"));
	assert_true(there(dir, "samples-ideal-0.3000.tsv"));
	snprintf(path, sizeof(path), "%s/notes", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(args, sizeof(args),
		 "ttft --json --requests 30 --abort 0.2 --modes direct --out "
		 "%s",
		 dir);
	bench(args, 0);
	assert_false(there(dir, "requests-staged-half-0.3000.tsv"));
	assert_false(there(dir, "samples-ideal-0.3000.tsv"));
	assert_true(there(dir, "samples-direct-0.2000.tsv"));
	assert_true(there(dir, "results.jsonl"));
	/* not ours */
	assert_true(there(dir, "notes"));
	snprintf(path, sizeof(path), "%s/report.html", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(run(args), 1);
	assert_non_null(strstr(err, "/report.html: Is a directory"));
	assert_null(strstr(err, "requests over"));
	assert_string_equal(out, "");
	/* and the earlier results are still there */
	assert_true(there(dir, "results.jsonl"));
	snprintf(args, sizeof(args), "rm -r %s", dir);
	assert_int_equal(system(args), 0);
}

static void rewrite(const char *dir, const char *name, const char *bytes)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(bytes, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

/* What is missing or damaged is named before anything is drawn; where there is
 * nothing to draw, gnuplot is not asked to. */
static void test_report(void **state)
{
	static const char head[] = "# a b c d e f\n";
	static char page[1 << 21];
	char dir[] = "/tmp/kvs-ttft-XXXXXX", args[256], path[128];
	size_t n;
	FILE *f;
	int r;

	(void)state;
	assert_non_null(mkdtemp(dir));
	/* none is held, none waits, one request */
	snprintf(args, sizeof(args),
		 "ttft --json --requests 1 --abort 0,0.1 --out %s", dir);
	bench(args, 0);
	snprintf(args, sizeof(args), "report %s", dir);
	r = run(args);
	if (r == 77) {
		assert_non_null(strstr(err, "no gnuplot here"));
	} else {
		assert_int_equal(r, 0);
		assert_string_equal(err, "");
		snprintf(path, sizeof(path), "%s/report.html", dir);
		f = fopen(path, "r");
		assert_non_null(f);
		n = fread(page, 1, sizeof(page) - 1, f);
		page[n] = '\0';
		fclose(f);
		assert_non_null(strstr(page, "<td>direct</td><td>0 %</td>"
					     "<td>none</td>"));
		assert_non_null(strstr(page, "<th>share to give up</th>"));
		assert_non_null(strstr(page, "<th>given up</th>"));
	}
	snprintf(path, sizeof(path), "%s/requests-staged-0.1000.tsv", dir);
	rewrite(dir, "requests-staged-0.1000.tsv", head);
	assert_int_equal(run(args), 1);
	assert_non_null(strstr(err, "requests-staged-0.1000.tsv: has 0 "
				    "requests, and results.jsonl says 1"));
	rewrite(dir, "requests-staged-0.1000.tsv",
		"# a b c d e f\n0\t0\t0.1\t0.1\tx\t1\n");
	assert_int_equal(run(args), 1);
	assert_non_null(strstr(err, "requests-staged-0.1000.tsv:2: not 6 "
				    "numbers"));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(run(args), 1);
	assert_non_null(strstr(err, "requests-staged-0.1000.tsv: No such "
				    "file"));
	assert_string_equal(out, "");
	snprintf(args, sizeof(args), "rm -r %s", dir);
	assert_int_equal(system(args), 0);
}

/* The trace comes through a pipe, which is as long as we like: the signal is
 * there before the first request is. */
static void test_interrupted_early(void **state)
{
	char dir[] = "/tmp/kvs-ttft-XXXXXX", path[128];
	int o = memfd_create("out", MFD_CLOEXEC);
	int e = memfd_create("err", MFD_CLOEXEC), status, fd;
	pid_t pid;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/trace", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(o, STDOUT_FILENO);
		dup2(e, STDERR_FILENO);
		execl(program, program, "ttft", "--json", "--trace", path,
		      (char *)NULL);
		_exit(127);
	}
	/* until it reads */
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(kill(pid, SIGINT), 0);
	assert_true(dprintf(fd, "{\"timestamp\": 0, \"input_length\": 900, "
				"\"output_length\": 4}\n") > 0);
	close(fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	slurp(o, out);
	slurp(e, err);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "interrupted before any request was over: "
				    "there are no results"));
	unlink(path);
	rmdir(dir);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_token_bytes),
		cmocka_unit_test(test_never_fit),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_folder),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_interrupted_early),
	};
	int r;

	assert_true(argc > 1);
	program = argv[1];
	r = cmocka_run_group_tests(tests, NULL, NULL);
	again();
	return r;
}
