/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R6: one sender rank may serve several receivers of one room, and one of them
 * may ask again: each ABORT is answered, with the generation it named, while
 * chunks are outstanding (afterwards), and when this side has forgotten the
 * room. Without the rule the others hold their memory to the limit.
 */
#include "tests/claim/claim_sender.h"

#include <errno.h>

static void each_of_them(void **state)
{
	struct claim_heard h = { 0 };
	struct rig *g = claim_sender();
	struct kvs_send_room *r;
	struct rig_room *w;

	(void)state;
	r = claim_stuck(g, 1, 7, &w);
	for (int i = 0; i < 3; i++)
		rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks, 0);
	g->hold = false;
	rig_wait_outstanding(g, r, false);
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks, 3);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ECANCELED);
	kvs_send_close(r);
	rig_free(g);
}

static void also_about_what_is_forgotten(void **state)
{
	struct claim_heard h = { 0 };
	struct rig *g = claim_sender();
	struct kvs_send_room *r;
	struct rig_room *w;

	(void)state;
	r = claim_stuck(g, 1, 7, &w);
	rig_abort(g, 1, 7);
	/* one that this rank never heard of, under the same id */
	rig_abort(g, 1, 6);
	claim_hear(g, 6, &h);
	assert_int_equal(h.acks, 1);
	g->hold = false;
	rig_wait_outstanding(g, r, false);
	h.acks = 0;
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks, 1);
	rig_wait(g, RIG_DONE, 1, 0);
	kvs_send_close(r);
	for (int i = 0; i < 2; i++)
		rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	assert_int_equal(h.acks, 3);
	assert_int_equal(h.naks, 0);
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_of_them),
		cmocka_unit_test(also_about_what_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
