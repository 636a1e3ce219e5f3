/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R11: a request that can never fit is refused at once, with -E2BIG and class
 * 400, before anything exists for it, also when others wait: without the rule
 * it becomes a room and waits behind them for memory that cannot come. What
 * does not fit now waits in order, or gets -EAGAIN and class 503.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>
#include <string.h>

static struct rig g;

static const struct kvs_packet_failed *failure(uint32_t slot)
{
	const struct kvs_packet_failed *f = NULL;

	for (unsigned int i = 0; i < g.n; i++)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    g.log[i].failed.err)
			f = &g.log[i].failed;
	assert_non_null(f);
	return f;
}

static void never_means_at_once(void **state)
{
	uint64_t first, head, never;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.overtake = 0;
	first = rig_admit(&g, 1, 1, 64, 1);
	head = rig_admit(&g, 2, 2, 60, 1);
	/* long enough for nobody to pass the head any more */
	rig_advance(&g, 5 * KVS_NSEC_PER_SEC);
	never = rig_admit(&g, 3, 3, 65, 1);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 3), E2BIG);
	assert_int_equal(failure(3)->class, 400);
	assert_non_null(strstr(failure(3)->text, "pool.size"));
	/* there is nothing of it */
	assert_null(claim_room(&g, never));
	assert_int_equal(g.w->rooms.n, 2);
	assert_int_equal(g.w->live, 2);
	assert_int_equal(kvs_admission_waiting(g.w), 1);
	assert_int_equal(g.w->stats.admits[KVS_ADMIT_NOFIT], 1);
	for (unsigned int c = 0; c < KVS_CAUSE_MAX; c++)
		assert_int_equal(g.w->stats.failures[c], 0);
	/* and its sender hears the same, without a grant */
	rig_open(&g, 3, never, 0);
	assert_int_equal(rig_msg(&g, 100, KVS_WIRE_REFUSE)->msg.refuse.err,
			 E2BIG);
	assert_null(rig_msg(&g, 100, KVS_WIRE_GRANT));
	rig_packet(&g, KVS_PACKET_ABORT, 1, first, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 2, head, 0);
	rig_down(&g);
}

static void not_now_waits_or_comes_again(void **state)
{
	uint64_t first, waits;

	(void)state;
	rig_up(&g, 64);
	g.set.admission_queue = 1;
	first = rig_admit(&g, 1, 1, 64, 1);
	waits = rig_admit(&g, 2, 2, 64, 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_WAITING);
	rig_admit(&g, 3, 3, 64, 1);
	assert_int_equal(rig_errno(&g, 3), EAGAIN);
	assert_int_equal(failure(3)->class, 503);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_RESERVED), 64 * CLAIM_PAGE);
	rig_packet(&g, KVS_PACKET_ABORT, 1, first, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 2, waits, 0);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(never_means_at_once),
		cmocka_unit_test(not_now_waits_or_comes_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
