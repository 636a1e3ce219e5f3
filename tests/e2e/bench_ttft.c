/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvstage-bench ttft prints one object for each mode, with the fields
 * that others rely on; all modes compare the same requests; staged holds
 * nothing on the device, and its p99 is that of nobody giving up, within 5 %;
 * what is received directly is held there. The same seed gives the same
 * output, another seed another. A build that holds staged memory on the device
 * shows as bad. Slow acknowledgements hold longer than fast ones, lost ones
 * for hold.timeout; instances that die cost what they had under way and no
 * more. Stopped half-way it prints what it has. A gap of days is nothing, one
 * of years is refused; where nothing is completed there are no latencies; a
 * folder that cannot be written to is said before the run. On the real clock bytes are
 * compared. kvstage-bench report draws what --out wrote, or says why not.
 *
 * The first argument is the program.
 */
#include "tests/e2e/bench_rig.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL "ttft --json --requests 1000 --speed 1.3 "

static json_t *line[LINES_MAX];
static size_t n_lines;

static void again(void)
{
	while (n_lines)
		json_decref(line[--n_lines]);
}

static void bench(const char *args)
{
	again();
	assert_int_equal(run(args), 0);
	n_lines = parse(line);
}

static const json_t *mode(const char *name)
{
	for (size_t i = 0; i < n_lines; i++)
		if (!strcmp(text(line[i], "mode"), name))
			return line[i];
	print_message("no mode %s\n", name);
	fail();
	return NULL;
}

static double drains(const json_t *v, const char *name)
{
	const json_t *d = json_object_get(v, "drains");
	const json_t *x = json_object_get(d, name);

	return x ? json_number_value(x) : 0;
}

static void fields(const json_t *v)
{
	static const char *const what[] = { "ttft", "tpot", "itl",
					    "e2e_latency", "admission_wait" };
	static const char *const of[] = { "mean", "median", "std",
					  "p90",  "p95",    "p99" };
	static const char *const more[] = {
		"seed",
		"abort",
		"host_pool_bytes",
		"device_pool_tokens",
		"completed",
		"aborted",
		"failed",
		"unfinished",
		"compared",
		"held_device_byte_s",
		"held_host_byte_s",
		"copy_held_device_byte_s",
		"peak_held_device_bytes",
		"peak_held_host_bytes",
		"host_pool_high_water_bytes",
		"wire_bytes",
		"request_throughput",
		"output_throughput",
		"duration",
		"hold_timeout_s",
		"p99_ttft_ratio_to_ideal",
	};
	char key[64];

	for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++)
		for (size_t k = 0; k < sizeof(of) / sizeof(of[0]); k++) {
			snprintf(key, sizeof(key), "%s_%s_ms", of[k], what[i]);
			assert_true(number(v, key) >= 0);
		}
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		assert_true(number(v, more[i]) >= 0);
	assert_string_equal(text(v, "bench"), "ttft");
	assert_string_equal(text(v, "clock"), "virtual");
	assert_string_equal(text(v, "acks"), "lost");
	assert_true(json_is_object(json_object_get(v, "drains")));
	assert_true(json_is_false(json_object_get(v, "partial")));
	assert_true(number(v, "median_ttft_ms") <= number(v, "p90_ttft_ms"));
	assert_true(number(v, "p90_ttft_ms") <= number(v, "p95_ttft_ms"));
	assert_true(number(v, "p95_ttft_ms") <= number(v, "p99_ttft_ms"));
	assert_true(number(v, "mean_ttft_ms") <
		    number(v, "mean_e2e_latency_ms"));
	/* a step is 20 ms and a little for each request of the batch */
	assert_true(number(v, "median_itl_ms") > 20);
	assert_true(number(v, "median_itl_ms") < 25);
}

static void test_modes(void **state)
{
	const json_t *direct, *staged, *ideal;
	double done;

	(void)state;
	bench(SMALL);
	assert_int_equal(n_lines, 6);
	direct = mode("direct");
	staged = mode("staged");
	ideal = mode("ideal");
	done = number(staged, "completed");
	for (size_t i = 0; i < n_lines; i++) {
		fields(line[i]);
		assert_true(number(line[i], "failed") == 0);
		assert_true(number(line[i], "unfinished") == 0);
		assert_true(number(line[i], "compared") == done);
		if (line[i] == ideal)
			continue;
		assert_true(number(line[i], "completed") == done);
		assert_true(number(line[i], "aborted") == 1000 - done);
	}
	assert_true(done > 650 && done < 750);
	assert_true(number(ideal, "completed") == 1000);
	assert_true(number(staged, "p99_ttft_ms") <=
		    1.05 * number(ideal, "p99_ttft_ms"));
	assert_true(number(staged, "held_device_byte_s") == 0);
	assert_true(number(staged, "peak_held_device_bytes") == 0);
	assert_true(number(staged, "held_host_byte_s") > 0);
	assert_true(number(direct, "held_device_byte_s") > 0);
	assert_true(number(direct, "median_ttft_ms") >
		    number(staged, "median_ttft_ms"));
	/* each of those that were given up, and nothing else */
	assert_true(drains(staged, "drained/copy_event") == done);
	assert_true(drains(staged, "revoked/grant_invalidated") == 1000 - done);
	assert_true(number(mode("staged-half"), "host_pool_bytes") <=
		    number(staged, "host_pool_bytes") / 2 + (2 << 20));
	assert_true(number(staged, "host_pool_high_water_bytes") <=
		    number(staged, "host_pool_bytes"));
	assert_string_equal(text(mode("auto-half"), "host_pool"), "half");
}

/* Nobody gives up: whoever does not stage pays nothing for it. */
static void test_no_pressure(void **state)
{
	double direct, staged, best;

	(void)state;
	bench(SMALL "--abort 0 --host-pool planned");
	assert_int_equal(n_lines, 4);
	direct = number(mode("direct"), "median_ttft_ms");
	staged = number(mode("staged"), "median_ttft_ms");
	best = direct < staged ? direct : staged;
	assert_true(number(mode("auto"), "median_ttft_ms") <= 1.05 * best);
	assert_true(number(mode("auto"), "direct_received") > 0);
	assert_true(number(mode("staged"), "held_host_byte_s") == 0);
}

static void test_seed(void **state)
{
	static char first[TEXT_MAX];

	(void)state;
	again();
	assert_int_equal(run(SMALL "--trace /dev/null"), 1);
	assert_int_equal(run(SMALL "--seed 5 --modes staged,auto"), 0);
	memcpy(first, out, sizeof(first));
	assert_int_equal(run(SMALL "--seed 5 --modes staged,auto --jobs 1"), 0);
	assert_string_equal(out, first);
	n_lines = parse(line);
	assert_true(number(line[0], "seed") == 5);
	again();
	assert_int_equal(run(SMALL "--seed 6 --modes staged,auto"), 0);
	assert_string_not_equal(strstr(out, "\"completed"),
				strstr(first, "\"completed"));
}

static void test_broken(void **state)
{
	(void)state;
	bench(SMALL "--break hold-in-device --modes staged,ideal "
		    "--host-pool planned");
	assert_true(number(mode("staged"), "held_device_byte_s") > 0);
	assert_true(number(mode("staged"), "p99_ttft_ratio_to_ideal") > 1.05);
}

static double held(const char *acks)
{
	char args[256];

	snprintf(args, sizeof(args),
		 SMALL "--modes staged --host-pool 200GB --hold 20s --acks %s",
		 acks);
	bench(args);
	assert_string_equal(text(line[0], "acks"), acks);
	return number(line[0], "held_host_byte_s") / number(line[0], "aborted");
}

static void test_acks(void **state)
{
	double fast, fixed, slow, lost;

	(void)state;
	fast = held("fast");
	assert_true(drains(line[0], "drained/all_acknowledged") > 200);
	fixed = held("slow:5s");
	slow = held("slow:5s-15s");
	lost = held("lost");
	assert_true(drains(line[0], "drained/all_acknowledged") == 0);
	assert_true(fast < 0.01 * lost);
	assert_true(fabs(fixed / lost - 0.25) < 0.01);
	assert_true(fabs(slow / lost - 0.5) < 0.1);
}

static void test_crashes(void **state)
{
	(void)state;
	bench(SMALL "--sender-crash 40 --host-pool planned");
	for (size_t i = 0; i < n_lines; i++) {
		assert_true(number(line[i], "sender_crashes") > 10);
		assert_true(number(line[i], "failed") > 0);
		assert_true(number(line[i], "failed") < 100);
		assert_true(number(line[i], "unfinished") == 0);
	}
	/* who is gone is revoked, and nothing waits for it */
	assert_true(
		drains(mode("ideal"), "revoked/grant_invalidated") +
			drains(mode("ideal"), "revoked/connection_torn_down") >
		0);
}

static void test_storm(void **state)
{
	(void)state;
	bench("ttft --json --requests 4200 --abort 0 --storm --modes "
	      "staged,ideal --host-pool planned");
	/* ten minutes of the twenty */
	assert_true(number(mode("staged"), "aborted") > 800);
	assert_true(number(mode("staged"), "held_device_byte_s") == 0);
}

/* Decoding that begins with the first layers shows, and by less than a copy. */
static void test_layerwise(void **state)
{
	double whole, early;

	(void)state;
	bench(SMALL "--modes staged --host-pool planned --buffers 8");
	whole = number(line[0], "mean_ttft_ms");
	assert_true(json_is_false(json_object_get(line[0], "layerwise")));
	bench(SMALL "--modes staged --host-pool planned --layerwise");
	early = number(line[0], "mean_ttft_ms");
	assert_true(json_is_true(json_object_get(line[0], "layerwise")));
	assert_true(early < whole - 2);
	/* 14,000 tokens of 100 kB at 50 GB/s are 28 ms */
	assert_true(early > whole - 28);
}

/* Progress comes when it has gone on for a while: then it is told to stop. */
static void interrupt(const char *modes)
{
	int o = memfd_create("out", MFD_CLOEXEC);
	char buf[4096];
	int fd[2], status;
	ssize_t n;
	pid_t pid;

	again();
	assert_int_equal(pipe(fd), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(o, STDOUT_FILENO);
		dup2(fd[1], STDERR_FILENO);
		close(fd[0]);
		close(fd[1]);
		execl(program, program, "ttft", "--json", "--requests",
		      "500000", "--modes", modes, (char *)NULL);
		_exit(127);
	}
	close(fd[1]);
	while ((n = read(fd[0], buf, sizeof(buf) - 1)) > 0) {
		buf[n] = '\0';
		if (strstr(buf, " left"))
			kill(pid, SIGINT);
	}
	close(fd[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	/* no run died of it */
	assert_int_equal(WEXITSTATUS(status), 0);
	slurp(o, out);
	n_lines = parse(line);
	assert_true(n_lines > 0);
	for (size_t i = 0; i < n_lines; i++) {
		assert_true(json_is_true(json_object_get(line[i], "partial")));
		assert_true(number(line[i], "completed") > 0);
		assert_true(number(line[i], "unfinished") > 0);
	}
}

static void test_interrupted(void **state)
{
	(void)state;
	interrupt("staged,ideal");
	interrupt("direct");
}

/* Real processes, bytes and time: what came is compared, and how long it took
 * is not. */
static void test_real(void **state)
{
	const json_t *staged, *direct, *both;

	(void)state;
	bench("ttft --json --clock real --requests 150 --scale 30 "
	      "--modes direct,staged,auto");
	assert_int_equal(n_lines, 3);
	staged = mode("staged");
	direct = mode("direct");
	both = mode("auto");
	for (size_t i = 0; i < n_lines; i++) {
		assert_string_equal(text(line[i], "clock"), "real");
		assert_true(number(line[i], "failed") == 0);
		assert_true(number(line[i], "unfinished") == 0);
		assert_true(number(line[i], "completed") +
				    number(line[i], "aborted") ==
			    150);
		/* one may be whole before it is told to give up */
		assert_true(number(line[i], "aborted") > 25);
		assert_true(number(line[i], "bytes_compared") > 1e8);
		assert_true(number(line[i], "byte_mismatches") == 0);
		assert_true(number(line[i], "mean_ttft_ms") > 0);
	}
	assert_true(number(staged, "held_device_byte_s") == 0);
	assert_true(number(staged, "held_host_byte_s") > 0);
	assert_true(number(direct, "held_device_byte_s") > 0);
	assert_true(number(direct, "direct_received") == 150);
	assert_true(number(both, "direct_received") > 0);
	/* who gives up may be on the device already: this machine is slow */
	assert_true(drains(staged, "drained/copy_event") >=
		    number(staged, "completed"));
	assert_true(drains(staged, "drained/copy_event") < 150);
}

/* They are killed, and begun again; what they had is lost, and no more. */
static void test_real_crashes(void **state)
{
	(void)state;
	bench("ttft --json --clock real --requests 400 --scale 30 --abort 0.1 "
	      "--sender-crash 200 --modes staged,direct");
	assert_int_equal(n_lines, 2);
	for (size_t i = 0; i < n_lines; i++) {
		assert_true(number(line[i], "sender_crashes") > 10);
		assert_true(number(line[i], "failed") > 0);
		assert_true(number(line[i], "failed") < 200);
		assert_true(number(line[i], "unfinished") == 0);
		assert_true(number(line[i], "completed") > 150);
		assert_true(number(line[i], "byte_mismatches") == 0);
	}
	/* nobody answers for them */
	assert_true(
		drains(mode("staged"), "revoked/connection_torn_down") +
			drains(mode("staged"), "revoked/receives_ended") +
			drains(mode("staged"), "revoked/grant_invalidated") >
		0);
}

static void in_dir(const char *dir, const char *name, char *buf, size_t len)
{
	snprintf(buf, len, "%s/%s", dir, name);
}

/* Pictures that are pictures, and a page with all of them and nothing that
 * is somewhere else. */
static void test_report(void **state)
{
	static const char *const png[] = { "ttft_cdf.png", "held.png",
					   "queue.png", "ttft_abort.png" };
	char dir[] = "/tmp/kvs-ttft-XXXXXX", path[128], args[256];
	static char page[4 << 20];
	char *at = page;
	size_t n;
	FILE *f;
	int r;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(args, sizeof(args),
		 "ttft --json --requests 300 --abort 0.1,0.3 --out %s", dir);
	bench(args);
	assert_int_equal(n_lines, 12);
	snprintf(args, sizeof(args), "report %s", dir);
	r = run(args);
	if (r == 77)
		assert_non_null(strstr(err, "gnuplot"));
	else
		assert_int_equal(r, 0);
	for (size_t i = 0; !r && i < sizeof(png) / sizeof(png[0]); i++) {
		in_dir(dir, png[i], path, sizeof(path));
		assert_non_null(strstr(out, path));
		f = fopen(path, "r");
		assert_non_null(f);
		assert_int_equal(fread(page, 1, 8, f), 8);
		assert_memory_equal(page, "\x89PNG\r\n\x1a\n", 8);
		fclose(f);
	}
	in_dir(dir, "report.html", path, sizeof(path));
	f = r ? NULL : fopen(path, "r");
	if (f) {
		n = fread(page, 1, sizeof(page) - 1, f);
		page[n] = '\0';
		fclose(f);
		for (n = 0; (at = strstr(at, "src=\"")); n++, at++)
			assert_memory_equal(at + 5,
					    "data:image/png;base64,iVBOR", 27);
		assert_int_equal(n, 4);
		assert_null(strstr(page, "http"));
		assert_non_null(strstr(page, "</html>"));
	}
	/* whoever edited it is told where it is wrong */
	in_dir(dir, "results.jsonl", path, sizeof(path));
	f = fopen(path, "a");
	assert_non_null(f);
	fprintf(f, "{\"mode\": \"'; system('id')\"}\n");
	fclose(f);
	assert_int_equal(run(args), 1);
	assert_non_null(strstr(err, "results.jsonl:13"));
	snprintf(args, sizeof(args), "rm -r %s", dir);
	assert_int_equal(system(args), 0);
	assert_int_equal(run("report /nowhere"), 1);
	assert_int_equal(run("report"), 2);
}

/* Dies while it writes: what is on the wire goes on, and so does the run. */
static void test_crash_mid_write(void **state)
{
	(void)state;
	bench(SMALL "--sender-crash 400 --host-pool planned");
	assert_int_equal(n_lines, 4);
	for (size_t i = 0; i < n_lines; i++) {
		assert_true(json_is_false(json_object_get(line[i], "partial")));
		assert_true(number(line[i], "completed") > 0);
		assert_true(number(line[i], "failed") > 0);
	}
}

/* A temporary file with @lines in it. */
static void trace_of(char *path, const char *lines)
{
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, lines, strlen(lines)), strlen(lines));
	close(fd);
}

#define REQUEST(at, in)                                 \
	"{\"timestamp\": " at ", \"input_length\": " in \
	", \"output_length\": 4}\n"

/* Days in which nobody comes are nothing, years are refused. */
static void test_gap(void **state)
{
	char days[] = "/tmp/kvs-ttft-XXXXXX", years[] = "/tmp/kvs-ttft-XXXXXX";
	char args[256];

	(void)state;
	trace_of(days, REQUEST("0", "900") REQUEST("172800000", "900"));
	trace_of(years,
		 REQUEST("0", "900") "\n" REQUEST("900000000000", "900"));
	snprintf(args, sizeof(args),
		 "ttft --json --modes staged --abort 0 --trace %s", days);
	bench(args);
	assert_true(number(line[0], "completed") == 2);
	assert_true(number(line[0], "duration") > 172800);
	snprintf(args, sizeof(args), "ttft --trace %s", years);
	assert_int_equal(run(args), 1);
	assert_string_equal(out, "");
	/* the empty line counts */
	snprintf(args, sizeof(args), "%s:3: timestamp: 900000000000", years);
	assert_non_null(strstr(err, args));
	unlink(days);
	unlink(years);
}

/* Of nothing there are no latencies: no 0 in the table, and no success. */
static void test_all_failed(void **state)
{
	char path[] = "/tmp/kvs-ttft-XXXXXX", args[256];
	const char *row;

	(void)state;
	trace_of(path, REQUEST("0", "9000") REQUEST("10", "9000"));
	snprintf(args, sizeof(args),
		 "ttft --modes direct --abort 0 --device-tokens 640 --trace %s",
		 path);
	assert_int_equal(run(args), 1);
	assert_non_null(strstr(err, "no latencies"));
	row = strstr(out, "\ndirect");
	assert_non_null(row);
	assert_non_null(strstr(row, " -  "));
	assert_non_null(strstr(out, "unfinished"));
	snprintf(args, sizeof(args),
		 "ttft --json --modes direct --abort 0 --device-tokens 640 "
		 "--trace %s",
		 path);
	again();
	assert_int_equal(run(args), 1);
	n_lines = parse(line);
	assert_int_equal(n_lines, 1);
	assert_true(number(line[0], "failed") == 2);
	assert_true(number(line[0], "compared") == 0);
	assert_true(number(line[0], "p99_ttft_ms") == 0);
	unlink(path);
}

/* What cannot be written is said before it takes an hour. */
static void test_out(void **state)
{
	(void)state;
	assert_int_equal(run(SMALL "--out /proc/no/such"), 1);
	assert_non_null(strstr(err, "--out /proc/no/such: No such file"));
	assert_null(strstr(err, "requests over"));
	assert_string_equal(out, "");
	assert_int_equal(run(SMALL "--out /dev/null"), 1);
	assert_non_null(strstr(err, "--out /dev/null: Not a directory"));
	assert_string_equal(out, "");
}

static void test_usage(void **state)
{
	static const char *const bad[][2] = {
		{ "--clock slow", "--clock" },
		{ "--modes staged,twice", "--modes" },
		{ "--abort 1.5", "--abort" },
		{ "--abort 0.1,x", "--abort" },
		{ "--acks never", "--acks" },
		{ "--acks slow:", "--acks" },
		{ "--acks slow:9s-2s", "--acks" },
		{ "--abort-when later", "--abort-when" },
		{ "--hold 0", "--hold" },
		{ "--host-pool 1K", "--host-pool" },
		{ "--model none", "--model" },
		{ "--prefill-chunk 100", "--prefill-chunk" },
		{ "--prefills 0", "--prefills" },
		{ "--break else", "--break" },
		{ "--abort 0.1,,0.2", "--abort" },
		{ "--abort 0.1,", "--abort" },
		{ "--modes staged,,ideal", "--modes" },
	};
	char args[128];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(args, sizeof(args), "ttft %s", bad[i][0]);
		assert_int_equal(run(args), 2);
		assert_non_null(strstr(err, bad[i][1]));
		assert_string_equal(out, "");
	}
	/* an hour has a storm, the first minute has none */
	assert_int_equal(run("ttft --storm --requests 200"), 1);
	assert_non_null(strstr(err, "--storm: of 200 requests none"));
	assert_string_equal(out, "");
	assert_int_equal(run("ttft --trace /nowhere"), 1);
	assert_non_null(strstr(err, "/nowhere"));
	assert_int_equal(run("ttft --requests 200 --modes staged"), 0);
	assert_non_null(strstr(out, "held_dev_GB"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_modes),
		cmocka_unit_test(test_no_pressure),
		cmocka_unit_test(test_seed),
		cmocka_unit_test(test_broken),
		cmocka_unit_test(test_acks),
		cmocka_unit_test(test_crashes),
		cmocka_unit_test(test_crash_mid_write),
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_all_failed),
		cmocka_unit_test(test_out),
		cmocka_unit_test(test_storm),
		cmocka_unit_test(test_layerwise),
		cmocka_unit_test(test_interrupted),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_real),
		cmocka_unit_test(test_real_crashes),
	};
	int r;

	assert_true(argc > 1);
	program = argv[1];
	r = cmocka_run_group_tests(tests, NULL, NULL);
	again();
	return r;
}
