/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R5, at the receiver: where an acknowledgement has become impossible (the
 * rank said that it cannot, its session is lost, it never had the capability)
 * the rank is revoked at once and nobody waits for the hold's limit; and what
 * it may say afterwards is no proof.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>

static struct rig g;

static uint64_t start(uint64_t caps)
{
	uint64_t gen;

	rig_up(&g, 64);
	g.set.hold_require_ack = true;
	assert_int_equal(kvs_worker_session_add(g.w, 100, "p", 0, caps), 0);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	return gen;
}

/* The clock has not moved. */
static void check_revoked(void)
{
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_REVOKED]
						[KVS_PROOF_GRANT_INVALIDATED],
			 1);
	rig_down(&g);
}

static void negative_acknowledgement(void **state)
{
	uint64_t gen;

	(void)state;
	gen = start(KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	claim_say(&g, 100, KVS_WIRE_ABORT_NAK, 7, gen, 0, EIO);
	check_revoked();
}

static void lost_session(void **state)
{
	uint64_t gen;

	(void)state;
	gen = start(KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	kvs_worker_session_lost(g.w, 100, -ECONNRESET, "reset");
	check_revoked();
	/* and when the loss is what ended the room */
	gen = start(KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK);
	kvs_worker_session_lost(g.w, 100, -ECONNRESET, "reset");
	assert_int_equal(rig_errno(&g, 0), ECONNRESET);
	check_revoked();
}

static void peer_without_the_capability(void **state)
{
	uint64_t gen;

	(void)state;
	gen = start(KVS_CAP_GENERATION);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	check_revoked();
}

/* Revoked, but a receive of its bytes is not reaped yet. */
static void too_late_to_acknowledge(void **state)
{
	struct kvs_receive rx;
	uint64_t gen;
	void *addr;

	(void)state;
	gen = start(KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 2, &addr), 0);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	claim_say(&g, 100, KVS_WIRE_ABORT_NAK, 7, gen, 0, EIO);
	claim_say(&g, 100, KVS_WIRE_ABORT_ACK, 7, gen, 0, 0);
	assert_int_equal(
		g.w->stats.drains.ack_ignored[KVS_ACK_IGNORED_POISONED], 1);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * CLAIM_PAGE);
	kvs_worker_receive_end(g.w, &rx, -ECANCELED, 5);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_REVOKED]
						[KVS_PROOF_RECEIVE_REAPED],
			 1);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(negative_acknowledgement),
		cmocka_unit_test(lost_session),
		cmocka_unit_test(peer_without_the_capability),
		cmocka_unit_test(too_late_to_acknowledge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
