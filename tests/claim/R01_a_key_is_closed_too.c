/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R1 where the sender writes by itself: an acknowledgement is its word. What
 * ends a hold is that the key to the memory is closed with proof; the
 * acknowledgement only makes that cheap. A writer that acknowledges while a
 * write of its is under way, or launches another one afterwards, reaches no
 * other room.
 */
#include "tests/unit/pipeline/onesided_rig.h"

#include <errno.h>

#define PAGES 40u

static struct os_rig g;

/* All rooms are of the whole pool, so that B has what A had. */
static void abort_a_and_admit_b(const struct kvs_loop_plan *plan)
{
	os_up(&g, PAGES, 1, plan);
	os_admit(&g, 1, 1, PAGES);
	assert_true(g.room[1].granted[0]);
	for (unsigned int p = 0; p < 3; p++)
		os_write(&g, 1, 0, 0, p, 1);
	os_run(&g, 0);
}

/* The writer acknowledges at once, and writes on: with a key it still has. */
static void acknowledged_and_written_on(void **state)
{
	struct kvs_loop_faults faults;
	uint64_t wrong;

	(void)state;
	abort_a_and_admit_b(NULL);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	assert_int_equal(g.w[0].aborts, 1);
	os_admit(&g, 2, 2, PAGES);
	os_write_all(&g, 2, 0, 2, 0, 0);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_READY);
	/* after everything that could stop it but the key */
	os_write(&g, 1, 0, 0, 7, 9);
	os_run(&g, KVS_NSEC_PER_MSEC);
	wrong = os_wrong(&g, 2, 2);
	print_message("R1: %llu bytes of a stranger in a READY room\n",
		      (unsigned long long)wrong);
	assert_int_equal(wrong, 0);
	kvs_fabric_faults(g.f, &faults);
	assert_int_equal(faults.refused, 1);
	assert_int_equal(os_drains(&g, KVS_DRAIN_DRAINED,
				   KVS_PROOF_ALL_ACKNOWLEDGED),
			 1);
	os_packet(&g, 2, KVS_PACKET_COMMIT);
	os_packet(&g, 2, KVS_PACKET_COMMITTED);
	os_down(&g);
}

/* Closing takes its time: nothing is free before it is proven. */
static void held_until_the_key_is_closed(void **state)
{
	const struct kvs_loop_plan plan = {
		.latency_min = KVS_NSEC_PER_MSEC,
		.latency_max = KVS_NSEC_PER_MSEC,
	};

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, PAGES);
	assert_int_equal(kvs_fabric_set_plan(g.f, &plan), 0);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	/* acknowledged, counted, and still held */
	assert_non_null(os_room_of(&g, 1));
	assert_true(os_room_of(&g, 1)->ranks[0].party.acked);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), g.region.size);
	os_admit(&g, 2, 2, PAGES);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_WAITING);
	os_run(&g, 2 * KVS_NSEC_PER_MSEC);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_true(g.room[2].granted[0]);
	os_packet(&g, 2, KVS_PACKET_ABORT);
	os_run(&g, 2 * KVS_NSEC_PER_MSEC);
	os_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(acknowledged_and_written_on),
		cmocka_unit_test(held_until_the_key_is_closed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
