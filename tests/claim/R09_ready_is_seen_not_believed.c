/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R9: READY is seen, not believed, on a transport whose receives are our own.
 * What must arrive comes from the engine's admit; a sender that says it has
 * sent everything, and has not, makes nothing READY: the engine would decode
 * from bytes of the room that had the memory before. READY waits for the last
 * receive; before it nothing is handed over, and after it nothing changes.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>
#include <string.h>

#define PAGES 40u

static struct rig g;
static struct claim_copy copy;

/* The pool is full of room 1's bytes, and free. */
static uint64_t leave_old_bytes(unsigned int ranks)
{
	uint64_t gen;

	rig_up(&g, PAGES);
	rig_sessions(&g, ranks);
	gen = rig_admit(&g, 1, 1, PAGES, ranks);
	for (unsigned int k = 0; k < ranks; k++)
		rig_open(&g, 1, gen, k);
	claim_send_rest(&g, 1, gen, ranks, 0, PAGES, 1);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, 0);
	kvs_worker_turn(g.w);
	gen = rig_admit(&g, 2, 2, PAGES, ranks);
	for (unsigned int k = 0; k < ranks; k++)
		rig_open(&g, 2, gen, k);
	return gen;
}

static uint64_t bytes_at_ready(uint64_t gen)
{
	claim_copy_launch(&copy, claim_room(&g, gen));
	claim_copy_run(&copy, 0, 1);
	return claim_copy_wrong(&copy, 2);
}

static void totals_are_not_bytes(void **state)
{
	uint64_t gen, stale = 0;
	bool early;

	(void)state;
	gen = leave_old_bytes(2);
	/* rank 0 does its work, rank 1 only says so */
	claim_send(&g, 2, gen, 0, 2, 0, PAGES, 2);
	rig_last(&g, 2, gen, 0, PAGES * CLAIM_PAGE / 2);
	rig_last(&g, 2, gen, 1, PAGES * CLAIM_PAGE / 2);
	early = rig_status(&g, 2) == KVS_STATUS_READY;
	if (early)
		stale = bytes_at_ready(gen);
	print_message("R9: %llu bytes of an earlier room handed over\n",
		      (unsigned long long)stale);
	assert_int_equal(stale, 0);
	assert_false(early);
	rig_advance(&g, g.set.transfer_timeout);
	assert_int_equal(rig_errno(&g, 2), ETIMEDOUT);
	rig_down(&g);
}

static void no_receive_is_live_at_ready(void **state)
{
	struct kvs_receive rx;
	uint64_t gen;
	void *addr;

	(void)state;
	gen = leave_old_bytes(1);
	claim_send(&g, 2, gen, 0, 1, 1, PAGES - 1, 2);
	/* of page 0 all but K of layer 0 */
	for (unsigned int b = 1; b < CLAIM_BUFFERS; b++) {
		assert_int_equal(rig_begin(&g, &rx, 2, gen, 0, b / 2, b % 2, 0,
					   1, &addr),
				 0);
		memset(addr, 2 * 31 + (int)b + 1, CLAIM_ITEM);
		kvs_worker_receive_end(g.w, &rx, 0, CLAIM_ITEM);
	}
	assert_int_equal(rig_begin(&g, &rx, 2, gen, 0, 0, 0, 0, 1, &addr), 0);
	rig_last(&g, 2, gen, 0, PAGES * CLAIM_PAGE);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_RECEIVING);
	/* not before READY, whoever asks */
	rig_packet(&g, KVS_PACKET_COMMIT, 2, gen, 0);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_RECEIVING);
	memset(addr, 2 * 31 + 1, CLAIM_ITEM);
	kvs_worker_receive_end(g.w, &rx, 0, CLAIM_ITEM);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_READY);
	assert_int_equal(claim_room(&g, gen)->drain.live, 0);
	assert_int_equal(bytes_at_ready(gen), 0);
	/* a chunk that comes now has nowhere to go */
	assert_int_equal(rig_begin(&g, &rx, 2, gen, 0, 0, 0, 0, 1, &addr), 0);
	assert_null(addr);
	rig_packet(&g, KVS_PACKET_COMMIT, 2, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 2, gen, 0);
	rig_down(&g);
}

static void expected_bytes_are_the_engines(void **state)
{
	const struct rig_event *e = NULL;
	unsigned int pos = 0;
	uint64_t gen;

	(void)state;
	/* fewer: it names what is missing */
	gen = leave_old_bytes(1);
	claim_send(&g, 2, gen, 0, 1, 0, 3, 2);
	rig_last(&g, 2, gen, 0, 3 * CLAIM_PAGE);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 2), ENODATA);
	for (unsigned int i = 0; i < g.n; i++)
		if (g.log[i].failed.err)
			e = &g.log[i];
	assert_non_null(e);
	assert_non_null(strstr(e->failed.text, "k layer 0 page 3"));
	rig_down(&g);
	/* more: it is another request's total */
	gen = leave_old_bytes(1);
	claim_send(&g, 2, gen, 0, 1, 0, PAGES, 2);
	rig_last(&g, 2, gen, 0, PAGES * CLAIM_PAGE + 1);
	assert_int_not_equal(rig_status(&g, 2), KVS_STATUS_READY);
	assert_non_null(rig_find(&g, RIG_CLOSE, &pos));
	kvs_worker_session_lost(g.w, 100, -EPROTO, "totals");
	assert_int_equal(rig_errno(&g, 2), EPROTO);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(totals_are_not_bytes),
		cmocka_unit_test(no_receive_is_live_at_ready),
		cmocka_unit_test(expected_bytes_are_the_engines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
