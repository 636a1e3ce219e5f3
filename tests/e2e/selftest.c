/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about kvstagectl selftest against a real daemon: it aborts and looks
 * through what it says, finds nothing wrong, and leaves nothing behind, with
 * and without hold.require_ack; it finds single bits that were changed, says
 * where, and fails; beside rooms of others it leaves those alone; where there
 * is not enough memory, or nobody to ask, it says so instead of guessing; when
 * it is killed in the middle all of its memory comes back.
 *
 * usage: selftest TOOLS-FOLDER
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
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clock.h"
#include "tests/e2e/daemon_rig.h"
#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"

#define PATIENCE (20 * KVS_NSEC_PER_SEC)
#define PAGES 8u

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

static int ctl(const char *const *more)
{
	const char *args[16] = { "--socket", "ctl.sock", "--json" };
	size_t n = 3;

	while (*more)
		args[n++] = *more++;
	args[n] = NULL;
	kvs_rig_run(&rig, "kvstagectl", args, &res);
	return res.status;
}
#define CTL(...) ctl((const char *const[]){ __VA_ARGS__, NULL })

/* The only line of the output; json_decref() it. */
static json_t *line(void)
{
	json_t *o = json_loads(res.out, JSON_REJECT_DUPLICATES, NULL);

	if (!json_is_object(o))
		fail_msg("not one object: %s%s", res.out, res.err);
	return o;
}

static json_int_t number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_integer(v))
		fail_msg("no number \"%s\"", key);
	return json_integer_value(v);
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	if (!s)
		fail_msg("no text \"%s\"", key);
	return s;
}

/* Numbers of status, and free bytes of the only pool. */
static json_int_t status(const char *key)
{
	json_t *o;
	json_int_t n;

	assert_int_equal(CTL(key[0] == 'f' ? "pools" : "status"), 0);
	o = line();
	n = number(o, key);
	json_decref(o);
	return n;
}

static void nothing_left(void)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + PATIENCE;

	while (status("engines") || status("sessions") ||
	       status("free") != 64 << 20)
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("something was left behind: %s", res.out);
	assert_int_equal(CTL("rooms"), 0);
	assert_string_equal(res.out, "");
}

static void clean_run(const char *rounds, json_int_t n, const char *bytes,
		      json_int_t want)
{
	json_t *o;

	if (CTL("selftest", "--rounds", rounds, "--bytes", bytes))
		fail_msg("%d: %s%s", res.status, res.out, res.err);
	o = line();
	assert_string_equal(text(o, "selftest"), "ok");
	assert_string_equal(text(o, "fault"), "");
	assert_int_equal(number(o, "rounds"), n);
	assert_int_equal(number(o, "rooms_aborted"), 2 * n);
	assert_int_equal(number(o, "rooms_checked"), 2 * n);
	assert_int_equal(number(o, "bytes_checked"), n * want / 2);
	assert_int_equal(number(o, "foreign_marks"), 0);
	assert_int_equal(number(o, "moved_marks"), 0);
	assert_int_equal(number(o, "changed_marks"), 0);
	json_decref(o);
	kvs_rig_assert_has(res.err, "selftest on node ");
}

static void finds_nothing(void **state)
{
	static const char *const acks[] = { "--hold-require-ack", "yes", NULL };
	const char *const *extra[] = { NULL, acks };
	json_int_t failed;

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		kvs_rig_start_ready(&rig, extra[i]);
		clean_run("3", 3, "16M", 16 << 20);
		nothing_left();
		clean_run("2", 2, "1M", 1 << 20);
		nothing_left();
		/* they were aborted, and nothing else failed */
		failed = status("rooms_failed");
		assert_int_equal(failed, 10);
		assert_int_equal(status("rooms_done"), 10);
		assert_non_null(strstr(kvs_rig_http("GET", "/metrics"),
				       "cause=\"engine_abort\"} 10\n"));
		kvs_rig_assert_log("waiting for ");
		kvs_rig_stop(&rig);
	}
}

static void finds_changed_bits(void **state)
{
	static const char *const flip[] = { "--test-inject-flip", "3", NULL };
	json_t *o;

	(void)state;
	kvs_rig_start_ready(&rig, flip);
	assert_int_equal(CTL("selftest", "--rounds", "2"), 1);
	o = line();
	assert_string_equal(text(o, "selftest"), "fault");
	assert_true(number(o, "changed_marks") + number(o, "moved_marks") +
			    number(o, "foreign_marks") ==
		    3);
	assert_non_null(strstr(text(o, "fault"), " buffer "));
	json_decref(o);
	nothing_left();
	/* all were spent */
	clean_run("1", 1, "16M", 16 << 20);
	nothing_left();
	/* that log has a warning, and should */
	kill(rig.pid, SIGTERM);
	assert_int_equal(kvs_rig_join(&rig), 0);
}

/* as many as a puppet engine takes */
static const char *const slots[] = { "--engine-slots", "64", NULL };

static void beside_others(void **state)
{
	struct pe_room r;
	struct ps_room w;
	struct ps p;
	struct pe e;

	(void)state;
	kvs_rig_start_ready(&rig, slots);
	/* in the middle of a chunk while the test runs, and READY */
	pe_up(&e, "engine.sock", &ps_two_layers);
	snprintf(e.peer, sizeof(e.peer), "prefill-7");
	ps_up(&p, kvs_rig_port("listen.port"), "prefill-7", 0, 1,
	      &ps_two_layers);
	pe_admit(&e, &r, 0, 7, PAGES * PS_TOKENS, 1);
	assert_int_equal(ps_open(&p, 7, PAGES * PS_TOKENS), 0);
	ps_granted(&p, &w, 99, PAGES * PS_PAGE);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 1000) > 0);
	clean_run("2", 2, "16M", 16 << 20);
	assert_true(ps_send_part(&p, 0, &w, 0, 1000, 0) > 0);
	for (uint32_t i = 1; i < w.n_chunks; i++)
		assert_true(ps_send_part(&p, 0, &w, i, 0, 0) > 0);
	assert_int_equal(ps_last(&p, &w, w.bytes), 0);
	pe_wait(&e, &r, KVS_STATUS_READY);
	clean_run("2", 2, "16M", 16 << 20);
	pe_take(&e, &r, PAGES * PS_TOKENS, 1, 99);
	ps_room_fini(&w);
	ps_down(&p);
	pe_down(&e);
	nothing_left();
	kvs_rig_stop(&rig);
}

static void cannot_run(void **state)
{
	struct pe_room r;
	struct pe e;

	(void)state;
	assert_int_equal(CTL("selftest"), 1);
	kvs_rig_assert_has(res.err, "kvstaged is not running");
	kvs_rig_start_ready(&rig, slots);
	assert_int_equal(CTL("selftest", "--bytes", "64M"), 77);
	assert_string_equal(res.out, "");
	kvs_rig_assert_has(res.err, "of a pool are free");
	/* most of it is somebody else's */
	pe_up(&e, "engine.sock", &ps_one_layer);
	pe_admit(&e, &r, 0, 7, 8192 * PS_TOKENS, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	assert_int_equal(CTL("selftest", "--bytes", "20M"), 77);
	kvs_rig_assert_has(res.err, "of a pool are free");
	pe_abort(&e, &r);
	pe_down(&e);
	nothing_left();
	kvs_rig_stop(&rig);

	assert_int_equal(CTL("selftest", "--bytes", "1K"), 2);
	assert_int_equal(CTL("selftest", "--rounds", "0"), 2);
	assert_int_equal(CTL("rooms", "--rounds", "1"), 2);
	assert_int_equal(CTL("selftest", "7"), 2);
}

/* The pool can have the room; the engine has no slot for it. */
static void no_slot(void **state)
{
	static const char *const few[] = { "--engine-max", "1",
					   "--engine-slots", "64", NULL };
	struct pe e;

	(void)state;
	kvs_rig_start_ready(&rig, few);
	pe_up(&e, "engine.sock", &ps_one_layer);
	assert_int_equal(CTL("selftest"), 77);
	kvs_rig_assert_has(res.err, "engine.max");
	pe_down(&e);
	nothing_left();
	kill(rig.pid, SIGTERM);
	assert_int_equal(kvs_rig_join(&rig), 0);
}

static void killed(void **state)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + PATIENCE;
	char path[4096];
	pid_t pid;
	int st;

	(void)state;
	snprintf(path, sizeof(path), "%s/kvstagectl", tools);
	kvs_rig_start_ready(&rig, NULL);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		execl(path, path, "--socket", "ctl.sock", "selftest",
		      "--rounds", "1000000", (char *)NULL);
		_exit(127);
	}
	while (status("rooms_done") < 4)
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("it does not do anything");
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &st, 0), pid);
	assert_true(WIFSIGNALED(st));
	nothing_left();
	clean_run("1", 1, "16M", 16 << 20);
	kvs_rig_stop(&rig);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(finds_nothing), T(finds_changed_bits),
		T(beside_others), T(cannot_run),
		T(no_slot),	  T(killed),
#undef T
	};

	if (argc != 2) {
		fprintf(stderr, "usage: selftest TOOLS-FOLDER\n");
		return 2;
	}
	tools = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
