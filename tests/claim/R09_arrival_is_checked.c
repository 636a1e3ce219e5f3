/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R9 where the sender writes by itself: the CPU sees nothing of it, and a
 * completion is only the sender's word. A room is READY when its grants are
 * closed with proof and no page still has the canary that was written before
 * the grant: a page that never arrived, whoever says that it did, fails the
 * room as missing bytes, and is named. So a room id used again, a request the
 * sender refused and a sender that reports success without writing hand over
 * nothing of what lay in the memory before. And once READY, nothing changes.
 */
#include "tests/unit/pipeline/onesided_rig.h"

#include <errno.h>
#include <string.h>

#define PAGES 40u

static struct os_rig g;

/* The whole pool is full of the bytes of room 1 (seed 1), and free. */
static void leave_old_bytes(unsigned int ranks)
{
	os_up(&g, PAGES, ranks, NULL);
	os_admit(&g, 1, 1, PAGES);
	for (unsigned int k = 0; k < ranks; k++)
		os_write_all(&g, 1, k, 1, 0, 0);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_READY);
	assert_int_equal(os_wrong(&g, 1, 1), 0);
	os_packet(&g, 1, KVS_PACKET_COMMIT);
	os_packet(&g, 1, KVS_PACKET_COMMITTED);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_DONE);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
}

static void must_be_missing(unsigned int slot, const char *where)
{
	if (os_status(&g, slot) == KVS_STATUS_READY)
		print_message("R9: %llu bytes of an earlier room handed over\n",
			      (unsigned long long)os_wrong(&g, slot, 2));
	assert_int_equal(os_status(&g, slot), KVS_STATUS_FAILED);
	assert_int_equal(os_errno(&g, slot), ENODATA);
	assert_non_null(strstr(g.room[slot].text, where));
	assert_int_equal(g.n.worker->stats.failures[KVS_CAUSE_MISSING_BYTES],
			 1);
}

/* One page of one buffer is reported and was never written. */
static void reported_and_not_written(void **state)
{
	static const char *const name[] = { "k layer 0", "k layer 1",
					    "v layer 0", "v layer 1" };
	char where[64];

	(void)state;
	for (unsigned int b = 0; b < OS_BUFFERS; b++) {
		unsigned int page = b * 13; /* 0, 13, 26, 39: the last */

		leave_old_bytes(1);
		os_admit(&g, 2, 2, PAGES);
		os_write_all(&g, 2, 0, 2, page, 1);
		for (unsigned int i = 0; i < OS_BUFFERS; i++) {
			if (i == b)
				os_claim(&g, 2, 0, i, page);
			else
				os_write(&g, 2, 0, i, page, 2);
		}
		os_run(&g, 0);
		os_last(&g, 2, 0);
		snprintf(where, sizeof(where), "%s page %u", name[b], page);
		must_be_missing(2, where);
		os_down(&g);
	}
}

/* Nothing is written at all, by both ranks or by the second alone. */
static void success_without_writing(void **state)
{
	(void)state;
	for (unsigned int honest = 0; honest < 2; honest++) {
		leave_old_bytes(2);
		os_admit(&g, 2, 2, PAGES);
		for (unsigned int k = 0; k < 2; k++) {
			if (k < honest) {
				os_write_all(&g, 2, k, 2, 0, 0);
				continue;
			}
			for (unsigned int p = 0; p < PAGES; p++) {
				os_claim(&g, 2, k, k, p);
				os_claim(&g, 2, k, 2 + k, p);
			}
			os_run(&g, 0);
			os_last(&g, 2, k);
		}
		must_be_missing(2, honest ? "k layer 1 page 0"
					  : "k layer 0 page 0");
		os_down(&g);
	}
}

/* The id of a room that was handed over is used again; what a sender of the
 * first attempt still says is not about the second. */
static void room_id_used_again(void **state)
{
	uint64_t old;

	(void)state;
	leave_old_bytes(1);
	old = g.room[1].generation;
	os_admit(&g, 2, 1, PAGES);
	assert_true(g.room[2].generation != old);
	/* a sender that takes the new room for the old one, already sent */
	for (unsigned int p = 0; p < PAGES; p++)
		for (unsigned int b = 0; b < OS_BUFFERS; b++)
			os_claim(&g, 1, 0, b, p);
	os_run(&g, 0);
	os_last(&g, 1, 0);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_RECEIVING);
	/* and one that gives the new generation, but has sent before */
	for (unsigned int p = 0; p < PAGES; p++)
		for (unsigned int b = 0; b < OS_BUFFERS; b++)
			os_claim(&g, 2, 0, b, p);
	os_run(&g, 0);
	os_last(&g, 2, 0);
	must_be_missing(2, "k layer 0 page 0");
	os_down(&g);
}

/* A refused request is over; a LAST behind it makes nothing READY. */
static void refused_by_the_sender(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE };

	(void)state;
	leave_old_bytes(1);
	os_admit(&g, 2, 2, PAGES);
	m.refuse.room = 2;
	m.refuse.generation = g.room[2].generation;
	m.refuse.err = E2BIG;
	m.refuse.class = 400;
	snprintf(m.refuse.text, sizeof(m.refuse.text), "over the limit");
	assert_int_equal(kvs_node_message(&g.n, 100, &m), 0);
	for (unsigned int p = 0; p < PAGES; p++)
		for (unsigned int b = 0; b < OS_BUFFERS; b++)
			os_claim(&g, 2, 0, b, p);
	os_run(&g, 0);
	os_last(&g, 2, 0);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_FAILED);
	assert_int_equal(os_errno(&g, 2), E2BIG);
	os_down(&g);
}

/* Grants are closed first, however long that takes: what a writer launches at
 * READY lands nowhere, and the bytes stay as they were checked. */
static void nothing_changes_after_ready(void **state)
{
	const struct kvs_loop_plan slow = { .latency_min = KVS_NSEC_PER_MSEC,
					    .latency_max = KVS_NSEC_PER_MSEC };
	const struct kvs_loop_plan fast = { 0 };
	struct kvs_loop_faults faults;
	bool early;

	(void)state;
	leave_old_bytes(1);
	os_admit(&g, 2, 2, PAGES);
	os_write_all(&g, 2, 0, 2, 0, 1);
	for (unsigned int b = 0; b < OS_BUFFERS; b++)
		os_write(&g, 2, 0, b, 0, 2);
	os_run(&g, 0);
	assert_int_equal(kvs_fabric_set_plan(g.f, &slow), 0);
	os_last(&g, 2, 0);
	assert_int_equal(kvs_fabric_set_plan(g.f, &fast), 0);
	early = os_status(&g, 2) == KVS_STATUS_READY;
	if (early) {
		os_write(&g, 2, 0, 0, 3, 3);
		os_run(&g, 0);
		print_message("R9: %llu bytes changed after READY\n",
			      (unsigned long long)os_wrong(&g, 2, 2));
	}
	assert_false(early);
	os_run(&g, 2 * KVS_NSEC_PER_MSEC);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_READY);
	assert_int_equal(os_wrong(&g, 2, 2), 0);
	os_write(&g, 2, 0, 0, 3, 3);
	os_run(&g, KVS_NSEC_PER_MSEC);
	assert_int_equal(os_wrong(&g, 2, 2), 0);
	kvs_fabric_faults(g.f, &faults);
	assert_int_equal(faults.refused, 1);
	assert_int_equal(g.w[0].refused, 1);
	os_packet(&g, 2, KVS_PACKET_COMMIT);
	os_packet(&g, 2, KVS_PACKET_COMMITTED);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_DONE);
	os_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reported_and_not_written),
		cmocka_unit_test(success_without_writing),
		cmocka_unit_test(room_id_used_again),
		cmocka_unit_test(refused_by_the_sender),
		cmocka_unit_test(nothing_changes_after_ready),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
