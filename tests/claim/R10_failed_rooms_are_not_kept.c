/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R10, the cache: a room that ended otherwise than DONE leaves nothing that a
 * later one could find, though its bytes are all there and its drain is over.
 * Without the rule what the engine gave up is handed to the next who asks.
 */
#include "tests/claim/claim_rig.h"

static struct rig g;

static void given_up_when_complete(void **state)
{
	uint64_t gen;

	(void)state;
	rig_up(&g, 96);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE), "m", 0);
	gen = rig_admit_named(&g, 1, 1, 31, 7, false);
	rig_open(&g, 1, gen, 0);
	claim_send_rest(&g, 1, gen, 1, 0, 31, 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
	do
		kvs_worker_turn(g.w);
	while (kvs_worker_next(g.w) == 0);
	print_message("R10: %u pages of a room that failed are found\n",
		      rig_cached(&g, 7, 31));
	assert_int_equal(rig_cached(&g, 7, 31), 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 0);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(given_up_when_complete),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
