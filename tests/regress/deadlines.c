/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: one transfer that stalls for ever ends at its own limit and nobody
 * else waits for it (NVIDIA/TensorRT-LLM#12471, #15363, ai-dynamo/nixl#2047);
 * a request that waits for memory does not use up the time of its transfer,
 * and has a limit and an error of its own for that (NVIDIA/TensorRT-LLM
 * #13824); every limit is finite unless told otherwise, none may be 0, and its
 * end leaves no thread behind (sgl-project/sglang#33920); a notice that never
 * comes ends its own request at the limit and no other (NVIDIA/TensorRT-LLM
 * #17665); what comes after the limit is late and changes nothing
 * (sgl-project/sglang#34510).
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u
#define TOKENS (PAGES * PS_TOKENS)
#define CHUNK (2 * PS_PAGE)
#define SECOND KVS_NSEC_PER_SEC
#define MS KVS_NSEC_PER_MSEC

static struct rig g[1];
static struct pe e[1];
static struct ps p[1];

static void start(const char *pool, const char *transfer_timeout)
{
	rig_init(g, rig_engine(), pool);
	rig_set(g, "transfer.timeout", transfer_timeout);
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
	assert_int_equal(ps_data(p), 1);
}

static void stop(void)
{
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

static uint64_t now(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

static void open_room(struct pe_room *r, struct ps_room *w, uint32_t slot,
		      uint64_t room)
{
	pe_admit(e, r, slot, room, TOKENS, 1);
	pe_wait(e, r, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(p, room, TOKENS), 0);
	ps_granted(p, w, room, CHUNK);
}

static void whole_room(uint32_t slot, uint64_t room)
{
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;

	open_room(&r, &w, slot, room);
	for (uint32_t c = 0; c < w.n_chunks; c++)
		assert_true(ps_send_part(p, 1, &w, c, 0, 0) > 0);
	assert_int_equal(ps_last(p, &w, w.bytes), 0);
	do {
		assert_int_equal(ps_next(p, &m), KVS_WIRE_COMPLETE);
	} while (m.complete.room != room);
	pe_take(e, &r, TOKENS, 1, room);
	ps_room_fini(&w);
}

static unsigned int threads(void)
{
	DIR *d = opendir("/proc/self/task");
	unsigned int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void stalled_one_delays_nobody(void **state)
{
	struct pe_room stuck;
	struct ps_room w;
	struct kvs_msg m;
	uint64_t began, others, took;
	unsigned int before;

	(void)state;
	start("2M", "1s");
	before = threads();
	began = now();
	open_room(&stuck, &w, 0, 1);
	assert_true(ps_send_part(p, 0, &w, 0, 0, KVS_DATA_FRAME + 100) > 0);
	for (uint64_t room = 2; room <= 20; room++)
		whole_room((uint32_t)room, room);
	others = now() - began;
	assert_int_equal(pe_status(e, &stuck), KVS_STATUS_RECEIVING);
	pe_wait_failed(e, &stuck, ETIMEDOUT);
	took = now() - began;
	print_message("# 19 others after %llu ms, it after %llu ms\n",
		      (unsigned long long)(others / MS),
		      (unsigned long long)(took / MS));
	assert_true(took >= SECOND);
	assert_true(took < 10 * SECOND);
	assert_int_equal(stuck.failure.class, 503);
	ps_expect(p, KVS_WIRE_ABORT, &m);
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_TRANSFER_TIMEOUT), 1);
	assert_int_equal(rig_done(g), 19);
	assert_int_equal(threads(), before);

	/* what it sends now is late, its totals too; the next room is fine */
	assert_true(ps_send_part(p, 0, &w, 0, KVS_DATA_FRAME + 100, 0) > 0);
	assert_true(ps_send_part(p, 0, &w, 1, 0, 0) > 0);
	assert_int_equal(ps_last(p, &w, w.bytes), 0);
	rig_wait(g, rig_late_bytes(g) == 2 * CHUNK &&
			    rig_strays(g, KVS_STRAY_LAST) == 1);
	assert_int_equal(pe_status(e, &stuck), KVS_STATUS_FAILED);
	assert_false(stuck.ready);
	ps_room_fini(&w);
	whole_room(0, 21);
	stop();
}

/* Memory for one at a time; all twenty together need more than a transfer
 * may take. */
static void waiting_is_not_transferring(void **state)
{
	const struct timespec each = { 0, 60 * 1000 * 1000 };
	struct pe_room r[20], late;
	struct ps_room w;
	uint64_t began = now();

	(void)state;
	start("64K", "600ms");
	for (uint32_t i = 0; i < 20; i++)
		pe_admit(e, &r[i], i, 1 + i, 16 * PS_TOKENS, 1);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(ps_open(p, 1 + i, 16 * PS_TOKENS), 0);
	for (uint32_t i = 0; i < 20; i++) {
		ps_granted(p, &w, i, CHUNK);
		assert_int_equal(w.grant.room, 1 + i);
		nanosleep(&each, NULL); /* what is tested: a slow one */
		ps_finish(p, &w, 0);
		pe_take(e, &r[i], 16 * PS_TOKENS, 1, i);
	}
	assert_true(now() - began > 2 * g->set.transfer_timeout - 1);
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_TRANSFER_TIMEOUT), 0);
	assert_int_equal(rig_failures(g, KVS_CAUSE_ADMISSION_TIMEOUT), 0);
	assert_int_equal(rig_done(g), 20);
	stop();

	rig_init(g, rig_engine(), "64K");
	rig_set(g, "admission.timeout", "50ms");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	pe_admit(e, &r[0], 0, 1, 16 * PS_TOKENS, 1);
	pe_admit(e, &late, 1, 2, 16 * PS_TOKENS, 1);
	pe_wait_failed(e, &late, ETIME);
	assert_non_null(strstr(late.failure.text, "admission.timeout"));
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_ADMISSION_TIMEOUT), 1);
	pe_wait(e, &r[0], KVS_STATUS_ADMITTED);
	pe_down(e);
	rig_down(g);
}

static void limits_are_finite(void **state)
{
	static const char *const names[] = {
		"admission.timeout", "open.timeout",
		"transfer.timeout",  "transfer.call_timeout",
		"claim.timeout",     "hold.timeout",
		"listen.keepalive",  "listen.handshake_timeout",
	};
	struct kvs_settings s;
	char err[512];

	(void)state;
	kvs_settings_init(&s);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(names); i++) {
		err[0] = 0;
		assert_int_equal(kvs_settings_set(&s, names[i], "0", err,
						  sizeof(err)),
				 -ERANGE);
		assert_non_null(strstr(err, names[i]));
	}
	assert_in_range(s.admission_timeout, 1, 3600 * SECOND);
	assert_in_range(s.open_timeout, 1, 3600 * SECOND);
	assert_in_range(s.transfer_timeout, 1, 3600 * SECOND);
	assert_in_range(s.transfer_call_timeout, 1, 3600 * SECOND);
	assert_in_range(s.claim_timeout, 1, 3600 * SECOND);
	assert_in_range(s.hold_timeout, 1, 3600 * SECOND);
	assert_in_range(s.keepalive, 1, 3600 * SECOND);
}

/* One of fifty senders' LAST is lost; its bytes are all there. */
static void lost_notice(void **state)
{
	struct pe_room r[50];
	struct ps_room w[50];
	struct kvs_msg m;
	unsigned int lost = 17, completed = 0;

	(void)state;
	start("2M", "1s");
	for (uint32_t i = 0; i < 50; i++)
		open_room(&r[i], &w[i], i, 1 + i);
	for (uint32_t i = 0; i < 50; i++) {
		(void)ps_send_all(p, &w[i]);
		if (i != lost)
			assert_int_equal(ps_last(p, &w[i], w[i].bytes), 0);
	}
	while (completed < 49) {
		assert_int_equal(ps_next(p, &m), KVS_WIRE_COMPLETE);
		assert_int_not_equal(m.complete.room, 1 + lost);
		completed++;
	}
	for (uint32_t i = 0; i < 50; i++) {
		if (i != lost)
			pe_take(e, &r[i], TOKENS, 1, 1 + i);
	}
	pe_wait_failed(e, &r[lost], ETIMEDOUT);
	assert_false(r[lost].ready);
	ps_expect(p, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, 1 + lost);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 2 << 20);
	assert_int_equal(rig_done(g), 49);
	assert_int_equal(rig_failures(g, KVS_CAUSE_TRANSFER_TIMEOUT), 1);
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_RECEIVE_REAPED), 1);
	/* found again, too late */
	assert_int_equal(ps_last(p, &w[lost], w[lost].bytes), 0);
	rig_wait(g, rig_strays(g, KVS_STRAY_LAST) == 1);
	assert_int_equal(pe_status(e, &r[lost]), KVS_STATUS_FAILED);
	for (uint32_t i = 0; i < 50; i++)
		ps_room_fini(&w[i]);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stalled_one_delays_nobody),
		cmocka_unit_test(waiting_is_not_transferring),
		cmocka_unit_test(limits_are_finite),
		cmocka_unit_test(lost_notice),
	};

	return rig_run_both(tests);
}
