/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvstagectl holds lists a held room with who has not answered, what
 * comes next and when, and no room once its memory is back; a copy's hold
 * names the process, and is still there, quarantined, after hold.timeout; a
 * rank that does not acknowledge is asked again, and what will not happen is not
 * announced; kvstagectl status calls a daemon degraded that /readyz does, in the
 * same words; kvstagectl bugreport has
 * every section, settings only where they differ, and says what is missing
 * when the daemon is not there.
 *
 * usage: holds TOOLS-FOLDER
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "tests/e2e/daemon_rig.h"
#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"

#define PAGE 4096u /* bytes */
#define TOKENS 16u /* of a page */
#define PAGES 8u /* of a room */
#define ROOM_BYTES (2 * PAGES * PAGE)
#define N 3u /* ranks; the first has no layer */
#define PATIENCE (20 * KVS_NSEC_PER_SEC)

static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_KV, 0, PAGE, 0 },
	{ KVS_BUFFER_KV, 1, PAGE, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = KVS_ARRAY_SIZE(buffers),
	.buffers = buffers,
};

static struct kvs_rig rig;
static struct kvs_rig_result res;
static const char *tools;
static struct pe e;
static struct pe_room r;
static struct ps p[N];
static struct ps_room w[N];

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

static int ctl(const char *a, const char *b)
{
	const char *const args[] = { "--socket", "ctl.sock", a, b, NULL };

	kvs_rig_run(&rig, "kvstagectl", args, &res);
	return res.status;
}

/* Lines of the output, each an object; json_decref() it. */
static json_t *lines(void)
{
	json_t *all = json_array(), *o;
	const char *at = res.out, *nl;

	for (; *at; at = nl + 1) {
		nl = strchr(at, '\n');
		assert_non_null(nl);
		o = json_loadb(at, (size_t)(nl - at), JSON_REJECT_DUPLICATES,
			       NULL);
		if (!json_is_object(o))
			fail_msg("not an object: %s", at);
		assert_int_equal(json_array_append_new(all, o), 0);
	}
	return all;
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	if (!s)
		fail_msg("no text \"%s\"", key);
	return s;
}

static json_int_t number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_integer(v))
		fail_msg("no number \"%s\"", key);
	return json_integer_value(v);
}

static double seconds(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_real(v))
		fail_msg("no time \"%s\"", key);
	return json_real_value(v);
}

/* The only hold, once it waits for @waits; json_decref() it. */
static json_t *hold(const char *state, const char *waits)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + PATIENCE;
	json_t *all, *o;

	for (;;) {
		assert_int_equal(ctl("--json", "holds"), 0);
		all = lines();
		if (json_array_size(all) == 1) {
			o = json_incref(json_array_get(all, 0));
			json_decref(all);
			if (!strcmp(text(o, "state"), state) &&
			    !strcmp(text(o, "waits_for"), waits))
				return o;
			json_decref(o);
		} else {
			json_decref(all);
		}
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("no %s hold for \"%s\", but: %s", state, waits,
				 res.out);
	}
}

static void no_holds(void)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + PATIENCE;

	do {
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("still held: %s", res.out);
		assert_int_equal(ctl("--json", "holds"), 0);
	} while (res.out[0]);
	assert_int_equal(ctl("holds", NULL), 0);
	assert_string_equal(res.out, "no holds\n");
}

static void up(const char *const *extra)
{
	kvs_rig_start_ready(&rig, extra);
	pe_up(&e, "engine.sock", &layout);
	snprintf(e.peer, sizeof(e.peer), "prefill-7");
	for (uint32_t i = 0; i < N; i++)
		ps_up(&p[i], kvs_rig_port("listen.port"), "prefill-7", i, N,
		      &layout);
}

static void down(void)
{
	for (uint32_t i = 0; i < N; i++) {
		ps_room_fini(&w[i]);
		ps_down(&p[i]);
	}
	pe_down(&e);
}

/* Granted to every rank. */
static void receive(uint64_t room)
{
	pe_admit(&e, &r, 0, room, PAGES * TOKENS, N);
	for (uint32_t i = 0; i < N; i++) {
		ps_room_fini(&w[i]);
		assert_int_equal(ps_open(&p[i], room, PAGES * TOKENS), 0);
		ps_granted(&p[i], &w[i], room, 2 * PAGE);
	}
}

static void ranks(void **state)
{
	static const char *const extra[] = { "--hold-require-ack",
					     "yes",
					     "--hold-timeout",
					     "10m",
					     "--hold-reask",
					     "200ms",
					     "--engine-slots",
					     "64",
					     NULL };
	struct kvs_msg m;
	json_t *o, *list;

	(void)state;
	up(extra);
	no_holds();
	receive(0xfedcba9876543210);
	no_holds();
	assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &r, 0), 0);
	pe_wait_failed(&e, &r, ECANCELED);
	o = hold("draining", "ranks 0,1,2");
	assert_string_equal(text(o, "room"), "18364758544493064720");
	assert_string_equal(text(o, "cause"), "engine_abort");
	assert_string_equal(text(o, "peer"), "prefill-7");
	assert_int_equal(number(o, "bytes"), ROOM_BYTES);
	assert_int_equal(number(o, "ranks_waiting"), N);
	assert_int_equal(number(o, "ranks_mute"), 0);
	assert_int_equal(number(o, "receives"), 0);
	assert_int_equal(number(o, "copies"), 0);
	assert_true(seconds(o, "age_s") >= 0);
	assert_true(seconds(o, "revoke_in_s") > 500);
	assert_true(seconds(o, "revoke_in_s") <= 600);
	assert_true(seconds(o, "ask_in_s") <= 0.2);
	kvs_rig_assert_has(text(o, "next"), "revoked in ");
	kvs_rig_assert_has(text(o, "next"), "; asked again in ");
	json_decref(o);
	/* each is asked, and asked again in the same generation */
	for (uint32_t i = 0; i < N; i++) {
		for (int k = 0; k < 2; k++) {
			ps_expect(&p[i], KVS_WIRE_ABORT, &m);
			assert_true(m.abort.room == 0xfedcba9876543210);
			assert_true(m.abort.generation == r.generation);
			assert_int_equal(m.abort.rank, i);
		}
	}
	/* one answers, and is named no more */
	assert_int_equal(ps_answer(&p[1], KVS_WIRE_ABORT_ACK,
				   0xfedcba9876543210, r.generation),
			 0);
	o = hold("draining", "ranks 0,2");
	list = json_object_get(o, "ranks");
	assert_int_equal(json_array_size(list), 2);
	assert_int_equal(json_integer_value(json_array_get(list, 1)), 2);
	json_decref(o);
	assert_int_equal(ctl("holds", NULL), 0);
	kvs_rig_assert_has(res.out, "18364758544493064720");
	kvs_rig_assert_has(res.out, "ranks 0,2");
	kvs_rig_assert_has(res.out, "revoked in ");
	assert_int_equal(ps_answer(&p[0], KVS_WIRE_ABORT_ACK,
				   0xfedcba9876543210, r.generation),
			 0);
	o = hold("draining", "rank 2");
	json_decref(o);
	assert_int_equal(ps_answer(&p[2], KVS_WIRE_ABORT_ACK,
				   0xfedcba9876543210, r.generation),
			 0);
	no_holds();
	down();
	kvs_rig_stop(&rig);
}

/* Revoked before it would be asked again: only one of the two comes. */
static void revoked_first(void **state)
{
	static const char *const extra[] = { "--hold-require-ack",
					     "yes",
					     "--hold-timeout",
					     "10m",
					     "--hold-reask",
					     "1h",
					     "--engine-slots",
					     "64",
					     NULL };
	json_t *o;

	(void)state;
	up(extra);
	receive(9);
	assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &r, 0), 0);
	pe_wait_failed(&e, &r, ECANCELED);
	o = hold("draining", "ranks 0,1,2");
	kvs_rig_assert_has(text(o, "next"), "revoked in ");
	assert_null(strstr(text(o, "next"), "asked again"));
	assert_null(json_object_get(o, "ask_in_s"));
	json_decref(o);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(ps_answer(&p[i], KVS_WIRE_ABORT_ACK, 9,
					   r.generation),
				 0);
	no_holds();
	down();
	kvs_rig_stop(&rig);
}

/* The state that status names is the one that /readyz gives. */
static void same_state(const char *begin)
{
	const char *body = strstr(kvs_rig_http("GET", "/readyz"), "\r\n\r\n");
	char want[256];
	json_t *all;

	assert_non_null(body);
	snprintf(want, sizeof(want), "%s", body + 4);
	want[strcspn(want, "\n")] = '\0';
	if (strncmp(want, begin, strlen(begin)) != 0)
		fail_msg("/readyz: %s", want);
	assert_int_equal(ctl("--json", "status"), 0);
	all = lines();
	assert_string_equal(text(json_array_get(all, 0), "status"), want);
	assert_string_equal(text(json_array_get(all, 0), "state"), "running");
	json_decref(all);
}

static void copy(void **state)
{
	static const char *const extra[] = { "--hold-timeout",
					     "300ms",
					     "--hold-assume-propagation",
					     "50ms",
					     "--hold-assume-remaining",
					     "50ms",
					     "--transfer-call-timeout",
					     "100ms",
					     "--health-quarantined",
					     "1",
					     "--pool-size",
					     "4M",
					     "--engine-slots",
					     "64",
					     NULL };
	char who[64], next[96];
	struct kvs_msg m;
	json_t *o;

	(void)state;
	up(extra);
	receive(7);
	for (uint32_t i = 0; i < N; i++) {
		ps_send_all(&p[i], &w[i]);
		assert_int_equal(ps_last(&p[i], &w[i], w[i].bytes), 0);
	}
	for (uint32_t i = 0; i < N; i++)
		ps_expect(&p[i], KVS_WIRE_COMPLETE, &m);
	pe_wait(&e, &r, KVS_STATUS_READY);
	assert_int_equal(pe_say(&e, KVS_PACKET_COMMIT, &r, 0), 0);
	pe_wait(&e, &r, KVS_STATUS_COMMITTING);
	assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &r, 0), 0);
	snprintf(who, sizeof(who), "the copy of engine %u, pid %d", e.number,
		 (int)getpid());
	snprintf(next, sizeof(next), "waits for %s", who);
	o = hold("quarantined", who);
	assert_string_equal(text(o, "next"), next);
	assert_int_equal(number(o, "engine_pid"), getpid());
	assert_int_equal(number(o, "copies"), 1);
	assert_null(json_object_get(o, "revoke_in_s"));
	assert_null(json_object_get(o, "ask_in_s"));
	json_decref(o);
	same_state("degraded: 65536 bytes of the pool of node ");
	/* a bug report of it has everything in one place */
	assert_int_equal(ctl("bugreport", NULL), 0);
	kvs_rig_assert_has(res.out, who);
	assert_int_equal(pe_say(&e, KVS_PACKET_COPY_OVER, &r, 0), 0);
	no_holds();
	down();
	/* its log has the quarantine as an error, so no kvs_rig_stop() */
}

static const char *const sections[] = {
	"version", "build", "settings", "topology", "rdma",    "limits",
	"pools",   "cache", "rooms",	"holds",    "metrics",
};

static void bugreport(void **state)
{
	unsigned int lines_of[KVS_ARRAY_SIZE(sections)] = { 0 };
	char title[64];
	json_t *all, *o;
	size_t i, k;

	(void)state;
	kvs_rig_start_ready(&rig, NULL);
	assert_int_equal(ctl("bugreport", NULL), 0);
	assert_string_equal(res.err, "");
	kvs_rig_assert_has(res.out, "kvstagectl ");
	for (i = 0; i < KVS_ARRAY_SIZE(sections); i++) {
		snprintf(title, sizeof(title), "\n== %s ==\n", sections[i]);
		kvs_rig_assert_has(res.out, title);
	}
	kvs_rig_assert_has(res.out, "CMAKE_BUILD_TYPE=");
	kvs_rig_assert_has(res.out, "memlock");
	kvs_rig_assert_has(res.out, "no rooms");
	kvs_rig_assert_has(res.out, "no holds");
	kvs_rig_assert_has(res.out, "64.0 MiB");
	kvs_rig_assert_has(res.out, "\nkvstage_rooms");
	/* of the settings, those that the rig set, and no default */
	kvs_rig_assert_has(res.out, "pool.size");
	assert_null(strstr(res.out, "hold.reask"));

	assert_int_equal(ctl("--json", "bugreport"), 0);
	all = lines();
	json_array_foreach(all, i, o)
	{
		assert_null(json_object_get(o, "ok"));
		for (k = 0; k < KVS_ARRAY_SIZE(sections); k++)
			lines_of[k] += !strcmp(text(o, "section"), sections[k]);
		if (!strcmp(text(o, "section"), "settings"))
			assert_string_not_equal(text(o, "value"),
						text(o, "default"));
	}
	json_decref(all);
	for (k = 0; k < KVS_ARRAY_SIZE(sections); k++)
		if (strcmp(sections[k], "rooms") &&
		    strcmp(sections[k], "holds") && strcmp(sections[k], "rdma"))
			assert_true(lines_of[k] > 0);
	kvs_rig_stop(&rig);

	/* and of a daemon that is not there, what can be said */
	assert_int_equal(ctl("bugreport", NULL), 1);
	kvs_rig_assert_has(res.out, "kvstagectl ");
	kvs_rig_assert_has(res.out, "== holds ==\nnot known: cannot connect");
	assert_int_equal(ctl("--json", "bugreport"), 1);
	all = lines();
	assert_int_equal(json_array_size(all), KVS_ARRAY_SIZE(sections));
	json_array_foreach(all, i, o)
		kvs_rig_assert_has(text(o, "error"), "cannot connect");
	json_decref(all);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(ranks),
		T(revoked_first),
		T(copy),
		T(bugreport),
#undef T
	};

	if (argc != 2) {
		fprintf(stderr, "usage: holds TOOLS-FOLDER\n");
		return 2;
	}
	tools = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
