/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R12: a room has one outcome. Once it is READY nobody but its engine can end
 * it: a sender that gives up late, refuses late or is lost, and a daemon that
 * shuts down, change nothing, and the engine decodes. The first failure
 * decides as well, and an engine that takes the minimum of a room's status
 * over its ranks never sees it fall but to FAILED: a room that several ranks
 * share is DONE when all have it, and FAILED for all when one cannot.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>

#define PAGES 20u

static struct rig g;
static uint64_t gen;

static void late_abort(void)
{
	claim_say(&g, 100, KVS_WIRE_ABORT, 7, gen, 0, EIO);
}

static void late_refusal(void)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE,
			     .refuse = { .room = 7,
					 .generation = gen,
					 .rank = 0,
					 .err = E2BIG,
					 .class = 400 } };

	kvs_worker_message(g.w, 100, &m);
}

static void lost_sender(void)
{
	kvs_worker_session_lost(g.w, 100, -ECONNRESET, "reset");
}

static void lost_connection(void)
{
	kvs_worker_conn_lost(g.w, 100, 1, -EPIPE);
}

static void shutdown_begins(void)
{
	kvs_worker_shutdown(g.w);
}

static void (*const late[])(void) = { late_abort, late_refusal, lost_sender,
				      lost_connection, shutdown_begins };

static void check_monotone(uint32_t slot)
{
	enum kvs_status last = KVS_STATUS_PENDING;

	for (unsigned int i = 0; i < g.n; i++) {
		enum kvs_status now = KVS_WORD_STATUS(g.log[i].word);

		if (g.log[i].what != RIG_WORD || g.log[i].slot != slot)
			continue;
		assert_int_not_equal(last, KVS_STATUS_FAILED);
		assert_true(now == KVS_STATUS_FAILED || now >= last);
		last = now;
	}
}

static void ready_is_final(void **state)
{
	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(late); i++) {
		rig_up(&g, 64);
		rig_sessions(&g, 2);
		gen = rig_admit(&g, 7, 0, PAGES, 2);
		rig_open(&g, 7, gen, 0);
		rig_open(&g, 7, gen, 1);
		claim_send_rest(&g, 7, gen, 2, 0, PAGES, 1);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
		late[i]();
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
		rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_COMMITTING);
		late[(i + 1) % KVS_ARRAY_SIZE(late)]();
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_COMMITTING);
		rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_DONE);
		check_monotone(0);
		rig_down(&g);
	}
}

static void the_engine_may_still_abort(void **state)
{
	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, PAGES, 1);
	rig_open(&g, 7, gen, 0);
	claim_send_rest(&g, 7, gen, 1, 0, PAGES, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(rig_errno(&g, 0), ECANCELED);
	check_monotone(0);
	rig_down(&g);
}

static void the_first_failure_decides(void **state)
{
	unsigned int overs = 0, pos = 0;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.hold_require_ack = true;
	gen = rig_admit(&g, 7, 0, PAGES, 1);
	rig_open(&g, 7, gen, 0);
	late_abort();
	assert_int_equal(rig_errno(&g, 0), EIO);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	late_refusal();
	shutdown_begins();
	lost_sender();
	kvs_worker_turn(g.w);
	assert_int_equal(rig_errno(&g, 0), EIO);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_SENDER_ABORT], 1);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_ENGINE_ABORT], 0);
	while (rig_find(&g, RIG_OVER, &pos))
		overs++;
	assert_int_equal(overs, 1);
	check_monotone(0);
	rig_down(&g);
}

static void share(unsigned int members)
{
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit_shared(&g, 7, PAGES, members);
	rig_open(&g, 7, gen, 0);
	claim_send_rest(&g, 7, gen, 1, 0, PAGES, 1);
	for (uint32_t i = 0; i < members; i++)
		assert_int_equal(rig_status(&g, i), KVS_STATUS_READY);
}

static enum kvs_status least(void)
{
	enum kvs_status min = KVS_STATUS_DONE;

	for (uint32_t i = 0; i < RIG_MEMBERS; i++)
		if (rig_status(&g, i) < min)
			min = rig_status(&g, i);
	return min;
}

static void done_for_all(void **state)
{
	enum kvs_status last = KVS_STATUS_READY;

	(void)state;
	share(RIG_MEMBERS);
	for (uint32_t i = 0; i < 2 * RIG_MEMBERS; i++) {
		uint32_t who = i / 2;

		assert_int_equal(least(), last);
		assert_int_equal(g.w->stats.rooms_done, 0);
		rig_packet_of(&g, who,
			      i % 2 ? KVS_PACKET_COMMITTED : KVS_PACKET_COMMIT,
			      gen, 0);
		assert_true(least() >= last);
		last = least();
	}
	for (uint32_t i = 0; i < RIG_MEMBERS; i++) {
		assert_int_equal(rig_status(&g, i), KVS_STATUS_DONE);
		check_monotone(i);
	}
	assert_int_equal(g.w->stats.rooms_done, 1);
	rig_down(&g);
}

/* Each end by one of them: the others see no other one. */
static void failed_for_all(void **state)
{
	(void)state;
	for (unsigned int how = 0; how < 4; how++) {
		share(RIG_MEMBERS);
		rig_packet_of(&g, 0, KVS_PACKET_COMMIT, gen, 0);
		rig_packet_of(&g, 0, KVS_PACKET_COMMITTED, gen, 0);
		rig_packet_of(&g, 1, KVS_PACKET_COMMIT, gen, 0);
		switch (how) {
		case 0: /* dies before it claims, beside one that copies */
			kvs_worker_engine_lost(g.w, RIG_ENGINE + 2, true);
			break;
		case 1: /* dies while it copies */
			kvs_worker_engine_lost(g.w, RIG_ENGINE + 1, true);
			break;
		case 2:
			rig_packet_of(&g, 2, KVS_PACKET_ABORT, gen, 0);
			break;
		case 3:
			rig_packet_of(&g, 1, KVS_PACKET_COMMITTED, gen, EIO);
			break;
		default:
			fail();
		}
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
		for (uint32_t i = 1; i < RIG_MEMBERS; i++)
			if (how > 1 || i != 2 - how) /* not the dead one */
				assert_int_equal(rig_status(&g, i),
						 KVS_STATUS_FAILED);
		assert_int_equal(g.w->stats.rooms_done, 0);
		if (how == 0 || how == 2) {
			assert_true(rig_bytes(&g, KVS_EXTENT_HELD) > 0);
			rig_packet_of(&g, 1, KVS_PACKET_COPY_OVER, gen, 0);
		}
		for (uint32_t i = 0; i < RIG_MEMBERS; i++)
			check_monotone(i);
		rig_down(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ready_is_final),
		cmocka_unit_test(the_engine_may_still_abort),
		cmocka_unit_test(the_first_failure_decides),
		cmocka_unit_test(done_for_all),
		cmocka_unit_test(failed_for_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
