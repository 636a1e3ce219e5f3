/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R5, at the sender: a send that failed is not a finished send. Nobody knows
 * how much of it arrived, or still may, so every ABORT about its room is
 * answered with a negative acknowledgement: of one that asked before, of one
 * that asks later, and when the room is long forgotten.
 */
#include "tests/claim/claim_sender.h"

static void never_acknowledged(void **state)
{
	struct claim_heard h = { 0 };
	struct rig *g = claim_sender();
	struct kvs_send_room *r;
	struct rig_room *w;

	(void)state;
	r = claim_stuck(g, 1, 7, &w);
	rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks + h.naks, 0);
	rig_close_data(g, 0, true);
	rig_wait_outstanding(g, r, false);
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks, 0);
	assert_int_equal(h.naks, 1);
	rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	rig_wait(g, RIG_DONE, 1, 0);
	kvs_send_close(r);
	rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks, 0);
	assert_int_equal(h.naks, 3);
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(never_acknowledged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
