/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R13, the engine's end: after an abort the device pages stay the copy's until
 * its event, and only then is the daemon told that the copy is over. Without
 * the rule the engine gives the pages to another request while the copy still
 * writes them.
 */
#include "tests/unit/pipeline/engine_rig.h"

#include <errno.h>

static void abort_of_a_running_copy(void **state)
{
	struct rig g = { .plan = { .hold_nth = 1 } };
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), 0);
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
	rig_word(&g, &m, ECANCELED, KVS_STATUS_FAILED);
	assert_true(kvs_engine_progress(g.engine) >= 0);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_FAILED);
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_engine_release(g.engine, &m.h), -EBUSY);
	rig_quiet(&g);
	assert_int_equal(kvs_soft_release(g.device), 0);
	rig_copied(&g, &m);
	(void)rig_expect_room(&g, KVS_PACKET_COPY_OVER, &m);
	rig_quiet(&g);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(abort_of_a_running_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
