/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R4: told to stop, a sender marks the room failed, takes no more of it, and
 * acknowledges when nothing of it is outstanding. The daemon here believes an
 * acknowledgement as ours does: it uses the memory again. Not a byte of the
 * room may come after that; without the rule the chunk that was under way
 * does.
 */
#include "tests/claim/claim_sender.h"

#include <errno.h>

static void nothing_comes_after_the_acknowledgement(void **state)
{
	struct claim_heard h = { 0 };
	struct rig *g = claim_sender();
	struct kvs_send_room *r;
	struct rig_room *w;

	(void)state;
	r = claim_stuck(g, 1, 7, &w);
	rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	if (h.acks)
		rig_room_forget(g, w);
	else
		assert_true(kvs_send_outstanding(r) > 0);
	g->hold = false;
	rig_wait_outstanding(g, r, false);
	claim_hear(g, 7, &h);
	print_message("R4: %llu bytes after the acknowledgement\n",
		      (unsigned long long)g->late_bytes);
	assert_int_equal(g->late_bytes, 0);
	assert_int_equal(h.acks, 1);
	assert_int_equal(h.naks, 0);
	/* the chunk that was under way, and not the one in the queue */
	assert_int_equal(w->bytes, CLAIM_CHUNK * CLAIM_PAGE);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ECANCELED);
	assert_int_equal(rig_count(g, RIG_FREE, 1), CLAIM_PAGES / CLAIM_CHUNK);
	kvs_send_close(r);
	rig_free(g);
}

static void a_room_told_to_stop_takes_no_more(void **state)
{
	struct claim_heard h = { 0 };
	struct rig *g = claim_sender();
	struct kvs_send_room *r;
	uint32_t page = 0;
	struct rig_room *w;

	(void)state;
	r = claim_stuck(g, 1, 7, &w);
	rig_abort(g, 1, 7);
	claim_hear(g, 7, &h);
	assert_int_equal(kvs_send_pages(r, 0, &page, 1, NULL), -ECANCELED);
	assert_int_equal(kvs_send_finish(r), -ECANCELED);
	g->hold = false;
	rig_wait_outstanding(g, r, false);
	claim_hear(g, 7, &h);
	assert_int_equal(h.lasts, 0);
	assert_int_equal(h.acks, 1);
	kvs_send_close(r);
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_comes_after_the_acknowledgement),
		cmocka_unit_test(a_room_told_to_stop_takes_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
