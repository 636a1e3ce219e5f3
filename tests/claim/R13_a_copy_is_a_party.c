/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R13, the daemon's end: an engine's copy is a party of the room. An abort
 * while it runs gives nothing back until the engine has seen its event, or is
 * dead; without the rule the copy goes on in the extents of the next room and
 * puts its bytes on the device.
 */
#include "tests/claim/claim_rig.h"

static struct rig g;
static struct claim_copy copy;

static void abort_while_copying(void **state)
{
	uint64_t a, b, wrong;
	bool early;

	(void)state;
	for (int dies = 0; dies < 2; dies++) {
		rig_up(&g, 96);
		rig_sessions(&g, 1);
		a = rig_admit(&g, 1, 1, 31, 1);
		rig_open(&g, 1, a, 0);
		claim_send_rest(&g, 1, a, 1, 0, 31, 1);
		rig_packet(&g, KVS_PACKET_COMMIT, 1, a, 0);
		claim_copy_launch(&copy, claim_room(&g, a));
		claim_copy_run(&copy, 0, 2);
		rig_packet(&g, KVS_PACKET_ABORT, 1, a, 0);
		kvs_worker_turn(g.w);
		b = rig_admit(&g, 2, 2, 80, 1);
		early = rig_status(&g, 2) == KVS_STATUS_ADMITTED;
		if (early) {
			rig_open(&g, 2, b, 0);
			claim_send_rest(&g, 2, b, 1, 0, 80, 2);
		}
		claim_copy_run(&copy, 1, 2);
		wrong = claim_copy_wrong(&copy, 1);
		print_message("R13: %llu bytes of another room copied\n",
			      (unsigned long long)wrong);
		assert_int_equal(wrong, 0);
		assert_false(early);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
				 31 * CLAIM_PAGE);
		if (dies) {
			kvs_worker_engine_lost(g.w, RIG_ENGINE, false);
			kvs_worker_turn(g.w);
			assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
					 31 * CLAIM_PAGE);
			kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
			kvs_worker_turn(g.w);
		} else {
			rig_packet(&g, KVS_PACKET_COPY_OVER, 1, a, 0);
			kvs_worker_turn(g.w);
			assert_int_equal(rig_status(&g, 2),
					 KVS_STATUS_ADMITTED);
			rig_packet(&g, KVS_PACKET_ABORT, 2, b, 0);
		}
		rig_down(&g);
	}
}

/* And on success: the extents belong to the copy until it says so. */
static void done_means_copied(void **state)
{
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 1, 1, 31, 1);
	rig_open(&g, 1, gen, 0);
	claim_send_rest(&g, 1, gen, 1, 0, 31, 1);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	rig_advance(&g, 86400 * KVS_NSEC_PER_SEC);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_COMMITTING), 31 * CLAIM_PAGE);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, 0);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_DONE);
	assert_int_equal(
		g.w->stats.drains.total[KVS_DRAIN_DRAINED][KVS_PROOF_COPY_EVENT],
		1);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(abort_while_copying),
		cmocka_unit_test(done_means_copied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
