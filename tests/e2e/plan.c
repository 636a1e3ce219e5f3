/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what kvstage-plan says a pool must hold at its peak is within a
 * tenth of the high-water mark that kvstage-bench ttft measures with a pool
 * that has no end, over rates, aborts (none too) and models, as a mean of some
 * seeds, and of a trace whose arrivals come in bunches as well, which nothing
 * but its arrivals tells; its numbers go the way they must, at any rate and none
 * of them negative; its file is one that kvstaged takes, or there is none; what
 * cannot be is refused, and what no pool helps is said.
 *
 * usage: e2e_plan TOOLS
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *tools;

#define SEEDS 3
#define ENDLESS "4T"

/* Runs "TOOLS/what"; its stdout, and its exit status. */
static char *output(int *ret_status, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static char *output(int *ret_status, const char *fmt, ...)
{
	char what[1024], command[2048], *text = calloc(1, 1 << 20);
	va_list ap;
	int status;
	FILE *f;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "exec 2>&1; %s/%s", tools, what);
	assert_non_null(text);
	f = popen(command, "re");
	assert_non_null(f);
	(void)!fread(text, 1, (1 << 20) - 1, f);
	status = pclose(f);
	assert_true(WIFEXITED(status));
	*ret_status = WEXITSTATUS(status);
	return text;
}

static json_t *plan(const char *args)
{
	int status;
	char *text = output(&status, "kvstage-plan --json %s", args);
	json_t *j = json_loads(text, 0, NULL);

	if (status || !j)
		fail_msg("kvstage-plan %s: %d: %s", args, status, text);
	/* one line, and nothing else */
	assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
	free(text);
	return j;
}

static double of(json_t *j, const char *key)
{
	json_t *v = json_object_get(j, key);

	if (!json_is_number(v))
		fail_msg("no number %s", key);
	return json_number_value(v);
}

static double planned(const char *key, const char *args)
{
	json_t *j = plan(args);
	double v = of(j, key);

	json_decref(j);
	return v;
}

/* As the benchmark's own requests are. */
#define SAME                                                            \
	"--nodes 1 --p50 6900 --p99 85000 --context 126000 --hold 30s " \
	"--horizon 1h "

/* Adds the high-water marks of one command's runs, in their order. */
static void measure(const char *args, unsigned int seed, double *sum,
		    unsigned int n)
{
	int status;
	char *text = output(&status,
			    "kvstage-bench ttft --json --modes staged "
			    "--host-pool " ENDLESS " --seed %u %s 2>/dev/null",
			    seed, args);
	char *line = text, *next;

	for (unsigned int i = 0; i < n; i++, line = next + 1) {
		json_t *j;

		next = strchr(line, '\n');
		if (status || !next)
			fail_msg("kvstage-bench ttft %s: %d: %s", args, status,
				 text);
		*next = '\0';
		j = json_loads(line, 0, NULL);
		assert_non_null(j);
		sum[i] += of(j, "host_pool_high_water_bytes");
		json_decref(j);
	}
	free(text);
}

static void compare(const char *what, double plan_bytes, double measured)
{
	print_message("%-28s planned %6.1f GB, measured %6.1f GB: %+.1f %%\n",
		      what, plan_bytes / 1e9, measured / 1e9,
		      100 * (plan_bytes / measured - 1));
	assert_true(plan_bytes > 0.9 * measured);
	assert_true(plan_bytes < 1.1 * measured);
}

static void within_a_tenth_of_the_benchmark(void **state)
{
	static const char *const abort[] = { "0", "0.1", "0.3", "0.6" };
	/* an hour each */
	static const struct {
		const char *rate, *bench;
		unsigned int seeds;
	} at[] = { { "0.85", "--speed 0.25 --requests 3060", 8 },
		   { "1.7", "--speed 0.5 --requests 6120", 6 } };
	char args[512];

	(void)state;
	for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
		double high[4] = { 0 };

		snprintf(args, sizeof(args), "--abort 0,0.1,0.3,0.6 %s",
			 at[k].bench);
		for (unsigned int seed = 1; seed <= at[k].seeds; seed++)
			measure(args, seed, high, 4);
		for (int i = 0; i < 4; i++) {
			snprintf(args, sizeof(args),
				 SAME "--rate %s --abort %s", at[k].rate,
				 abort[i]);
			compare(args + sizeof(SAME) - 1,
				planned("peak_bytes", args),
				high[i] / at[k].seeds);
		}
	}
}

#define BUNCH 12
#define BUNCHES 150

/* A bunch every six seconds. */
static void bunches(char *path)
{
	int fd = mkstemp(path);
	unsigned int x = 1;

	assert_true(fd >= 0);
	for (int i = 0; i < BUNCHES * BUNCH; i++) {
		x = x * 1103515245 + 12345;
		assert_true(dprintf(fd,
				    "{\"timestamp\": %d, \"input_length\": %u, "
				    "\"output_length\": 100}\n",
				    i / BUNCH * 6000,
				    1000 + (x >> 8) % 20000) > 0);
	}
	close(fd);
}

static void of_arrivals_in_bunches(void **state)
{
	static const char *const abort[] = { "0", "0.1", "0.3", "0.6" };
	char path[] = "/tmp/kvs-plan-XXXXXX", args[512];
	double high[4] = { 0 }, alone, v;
	json_t *j;

	(void)state;
	bunches(path);
	snprintf(args, sizeof(args), "--abort 0,0.1,0.3,0.6 --trace %s", path);
	for (unsigned int seed = 1; seed <= SEEDS; seed++)
		measure(args, seed, high, 4);
	for (int i = 0; i < 4; i++) {
		snprintf(args, sizeof(args),
			 "--nodes 1 --hold 30s --horizon 15m --trace %s "
			 "--abort %s",
			 path, abort[i]);
		j = plan(args);
		v = of(j, "peak_bytes");
		compare(strstr(args, "--abort"), v, high[i] / SEEDS);
		if (!i) {
			/* no chance is in it */
			assert_true(of(j, "replays") == 1);
			assert_true(fabs(v / high[i] * SEEDS - 1) < 0.02);
			/* as many at any time would reach something else */
			alone = of(j, "independent_peak_bytes");
			assert_true(alone < 0.9 * v || alone > 1.1 * v);
		}
		json_decref(j);
	}
	/* a day has what 15 minutes have not */
	snprintf(args, sizeof(args),
		 "--nodes 1 --hold 30s --horizon 24h --abort 0.6 --trace %s",
		 path);
	assert_true(planned("peak_bytes", args) > v);
	unlink(path);
}

static void and_with_another_model(void **state)
{
	double high = 0;

	(void)state;
	for (unsigned int seed = 1; seed <= SEEDS; seed++)
		measure("--model deepseek-v3-fp8 --abort 0.3 --acks fast", seed,
			&high, 1);
	compare("deepseek-v3-fp8, acks fast",
		planned("peak_bytes", SAME "--model deepseek-v3-fp8 --rate "
					   "3.4 --abort 0.3 --acks fast"),
		high / SEEDS);
}

static void numbers_go_the_right_way(void **state)
{
	double base = planned("pool_bytes", "--nodes 1"), v;
	json_t *j;

	(void)state;
	assert_true(planned("pool_bytes", "--nodes 1 --abort 0.6") > base);
	assert_true(planned("pool_bytes", "--nodes 1 --hold 120s") > base);
	assert_true(planned("pool_bytes", "--nodes 1 --rate 10") > base);
	assert_true(planned("pool_bytes", "--nodes 1 --horizon 24h") > base);
	assert_true(planned("pool_bytes", "--nodes 1 --acks fast") < base);
	/* two nodes share the load, but each has peaks of its own */
	v = planned("pool_bytes", "--nodes 2");
	assert_true(v < base && 2 * v > base);
	/* nothing to do, but one maximum-length request must fit (R11) */
	j = plan("--nodes 1 --rate 0.001 --context 1048576");
	assert_true(of(j, "pool_bytes") >=
		    of(j, "context_bytes") + of(j, "health_reserve_bytes"));
	assert_true(of(j, "context_bytes") >= 1048576.0 * of(j, "token_bytes"));
	/* under a device pool of 681,280 tokens: said */
	assert_int_equal(json_array_size(json_object_get(j, "notes")), 1);
	assert_non_null(
		strstr(json_string_value(
			       json_array_get(json_object_get(j, "notes"), 0)),
		       "1048576 tokens, the device's KV pool holds 681280"));
	json_decref(j);
	/* held = rate x aborts x T_hold x bytes, exactly */
	j = plan("--nodes 1 --rate 2 --abort 0.25 --hold 60s");
	v = 2 * 0.25 * 60 * of(json_object_get(j, "load"), "mean_tokens") *
	    of(j, "token_bytes");
	assert_true(of(j, "held_bytes") > 0.999999 * v - 1);
	assert_true(of(j, "held_bytes") < 1.000001 * v + 1);
	json_decref(j);
	/* heads are shared by the ranks, a latent is not */
	j = plan("--model llama-3-70b --ranks 8");
	v = of(json_array_get(json_object_get(j, "ttft_cost"), 0), "copy_ms");
	assert_true(v > 0.99 * 6900 * 327680.0 / 8 / 50e9 * 1e3);
	assert_true(v < 1.01 * 6900 * 327680.0 / 8 / 50e9 * 1e3);
	json_decref(j);
	v = planned("offload_bytes", "--hicache 100GB --nodes 2");
	assert_true(v >= 50e9 && v < 51.1e9);
	v = planned("token_bytes", "--token-bytes 70272 --layers 61");
	assert_true(v == 70272);
}

/* From one request in hours to more than the prefill tier can do. */
static void any_rate(void **state)
{
	static const char *const with[] = { "", "--nodes 1", "--acks fast",
					    "--abort 0",
					    "--hold 1h --horizon 1m" };

	(void)state;
	for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++) {
		double peak = 0, pool = 0;

		for (double rate = 0.0001; rate < 200; rate *= 1.7) {
			char args[256];
			json_t *j;

			snprintf(args, sizeof(args), "%s --rate %.6f", with[i],
				 rate);
			j = plan(args);
			/* one room of the mean size at least, and the mean */
			if (of(j, "peak_bytes") < peak ||
			    of(j, "pool_bytes") < pool ||
			    of(j, "peak_bytes") + 1 <
				    of(json_object_get(j, "load"),
				       "mean_tokens") *
					    of(j, "token_bytes") ||
			    of(j, "peak_bytes") + 2 <
				    of(j, "in_flight_bytes") +
					    of(j, "held_bytes"))
				fail_msg("%s: peak %.0f after %.0f", args,
					 of(j, "peak_bytes"), peak);
			peak = of(j, "peak_bytes");
			pool = of(j, "pool_bytes");
			json_decref(j);
		}
	}
}

/* What no pool helps is said, with what it is. */
static void what_no_pool_helps(void **state)
{
	static const struct {
		const char *args, *says;
	} bad[] = {
		{ "--rate 40", "prefill cannot do it: 1" },
		{ "--rate 10 --nic 1GB", "network into the node cannot do it" },
		{ "--rate 10 --h2d 1GB", "way to the device cannot do it" },
		{ "--rate 9 --abort 0", "device's KV pool cannot do it" },
		{ "--rate 18", "prefill is 8" },
		{ "--rate 1000 --prefills 10000 --nodes 1",
		  "pool.size of a NUMA node is" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		json_t *j = plan(bad[i].args);
		char *all = json_dumps(json_object_get(j, "notes"), 0);

		if (!all || !strstr(all, bad[i].says))
			fail_msg("%s: %s", bad[i].args, all);
		free(all);
		json_decref(j);
	}
	/* and nothing where all is well */
	json_t *j = plan("");

	assert_int_equal(json_array_size(json_object_get(j, "notes")), 0);
	json_decref(j);
}

/* What pool.size cannot be is an error, not another number. */
static void too_large(void **state)
{
	static const struct {
		const char *args, *says;
	} bad[] = {
		{ "--hold 24h --rate 100000", "--rate 100000, --hold 86400s" },
		{ "--hold 24h --rate 100000 --token-bytes 16M",
		  "--rate 100000, --hold 86400s, 16777216 bytes a token" },
		{ "--context 16777216 --token-bytes 16M",
		  "--context 16777216" },
		{ "--rate 100000 --json --hold 24h", "--rate 100000" },
		{ "--hicache 1024T --nodes 1", "--hicache" },
		{ "--token-bytes 16M --retraction 10 --device-tokens 100000000",
		  "--hicache and --retraction" },
		{ "--token-bytes 16M --page-size 65536 --layers 1",
		  "--token-bytes 16777216 --page-size 65536 --layers 1" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int status;
		char *text = output(&status, "kvstage-plan %s", bad[i].args);

		if (status != 2 || !strstr(text, bad[i].says))
			fail_msg("%s: %d: %s", bad[i].args, status, text);
		free(text);
	}
}

/* Rate and lengths are the trace's. */
static void of_a_trace(void **state)
{
	char path[] = "/tmp/kvs-plan-XXXXXX", args[128];
	int fd = mkstemp(path);
	json_t *j;

	(void)state;
	assert_true(fd >= 0);
	for (int i = 0; i < 200; i++)
		assert_true(
			dprintf(fd,
				"{\"timestamp\": %d, \"input_length\": %d, "
				"\"output_length\": 10, \"hash_ids\": []}\n",
				i * 500, 64 * (200 - i)) > 0);
	close(fd);
	snprintf(args, sizeof(args), "--trace %s --speed 3", path);
	j = plan(args);
	unlink(path);
	assert_true(of(json_object_get(j, "load"), "requests_per_second") >
		    5.9);
	assert_true(of(json_object_get(j, "load"), "requests_per_second") <
		    6.1);
	for (int i = 0; i < 2; i++)
		assert_true(of(json_array_get(json_object_get(j, "ttft_cost"),
					      (size_t)i),
			       "tokens") == 64 * (i ? 199 : 101));
	json_decref(j);
}

static void t_hold(void **state)
{
	int status;
	char *text;

	(void)state;
	assert_true(planned("hold_advised_s", "") == 60);
	assert_true(planned("hold_least_s", "") == 16);
	assert_true(planned("hold_advised_s", "--call-timeout 60s") == 132);
	text = output(&status, "kvstage-plan --hold 16s");
	assert_int_equal(status, 2);
	assert_non_null(strstr(text, "16.0 s does not exceed"));
	free(text);
	free(output(&status, "kvstage-plan --hold 17s"));
	assert_int_equal(status, 0);
}

static void file_for_the_daemon(void **state)
{
	char path[] = "/tmp/kvs-plan-XXXXXX", *text;
	int fd = mkstemp(path), status;
	struct stat st;
	char other[64];

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	/* what is there stays, but by force */
	text = output(&status, "kvstage-plan --ini %s", path);
	assert_int_equal(status, 2);
	assert_non_null(strstr(text, "--force"));
	free(text);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	/* also where kvstaged would refuse what would come */
	text = output(&status,
		      "kvstage-plan --force --call-timeout 2h --ini %s", path);
	assert_int_equal(status, 2);
	assert_non_null(strstr(text, "transfer.call_timeout"));
	free(text);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	free(output(&status, "kvstage-plan --force --ini %s", path));
	assert_int_equal(status, 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	unlink(path);
	/* and no file is left that it refuses, nor half a one */
	free(output(&status, "kvstage-plan --remaining 24h --ini %s", path));
	assert_int_equal(status, 2);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(other, sizeof(other), "%s.new", path);
	assert_int_equal(access(other, F_OK), -1);
	free(output(&status, "kvstage-plan --force --ini /dev/null"));
	assert_int_equal(status, 2);
	text = output(&status,
		      "kvstage-plan --call-timeout 30s --hicache 10GB --ini %s",
		      path);
	assert_int_equal(status, 0);
	/* each number with where it comes from */
	assert_non_null(strstr(text, "aborts 0.30 x T_hold 72.0 s"));
	assert_non_null(strstr(text, "propagation 1.00 s + remaining 5.00 s + "
				     "call 30.0 s"));
	free(text);
	text = output(&status, "kvstaged --config %s --check-config", path);
	if (status)
		fail_msg("%s", text);
	free(text);
	text = output(&status, "kvstaged --config %s --print-config", path);
	assert_non_null(strstr(text, "timeout = 72s"));
	assert_non_null(strstr(text, "call_timeout = 30s"));
	free(text);
	unlink(path);
	/* not to be had, as no option says */
	text = output(&status, "kvstage-plan --ini /nowhere/at/all");
	assert_int_equal(status, 1);
	assert_non_null(strstr(text, "/nowhere/at/all"));
	free(text);
	text = output(&status, "kvstage-plan --trace /nowhere/at/all");
	assert_int_equal(status, 1);
	assert_non_null(strstr(text, "/nowhere/at/all"));
	free(text);
}

static void what_cannot_be(void **state)
{
	static const char *const bad[] = {
		"--model no-such-model",
		"--p50 90000 --p99 80000",
		"--p99 200000",
		"--rate 0",
		"--abort 1",
		"--acks maybe",
		"--nodes 0",
		"--context 0",
		"--horizon 1s",
		"--token-bytes 1T",
		"--hold 0",
		"--hold 25h",
		"--propagation 2h",
		"--remaining 61m",
		"--call-timeout 2h",
		"--call-timeout 0",
		"--trace /dev/null --rate 1",
		"--trace /dev/null --p50 7000",
		"--p99 90000 --trace /dev/null",
		"--speed 2",
		"--layers 61",
		"--replicated",
		"--page-size 64",
		"--model glm-5 --token-bytes 70272",
		"--token-bytes 70272 --model glm-5",
		"--force",
		"surplus",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int status;
		char *text = output(&status, "kvstage-plan %s", bad[i]);

		if (status != 2 || !*text ||
		    (strstr(bad[i], "--call-timeout") &&
		     !strstr(text, "transfer.call_timeout")) ||
		    (strstr(bad[i], "/dev/null") && !strstr(text, "not with")))
			fail_msg("%s: %d: %s", bad[i], status, text);
		free(text);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(within_a_tenth_of_the_benchmark),
		cmocka_unit_test(of_arrivals_in_bunches),
		cmocka_unit_test(and_with_another_model),
		cmocka_unit_test(numbers_go_the_right_way),
		cmocka_unit_test(any_rate),
		cmocka_unit_test(what_no_pool_helps),
		cmocka_unit_test(too_large),
		cmocka_unit_test(of_a_trace),
		cmocka_unit_test(t_hold),
		cmocka_unit_test(file_for_the_daemon),
		cmocka_unit_test(what_cannot_be),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: %s TOOLS\n", argv[0]);
		return 2;
	}
	tools = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
