/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R2: the drain is armed before ABORT is sent. With the quickest senders there
 * can be, whose acknowledgement is here before the call that sent the ABORT
 * has returned, every acknowledgement counts and the room is drained at once;
 * without the rule they come too early, are not counted, and the memory stays
 * away until the hold's limit.
 */
#include "tests/claim/claim_rig.h"

static struct rig g;
static struct kvs_worker_out out;
static void (*next_to_peer)(void *arg, uint64_t session,
			    const struct kvs_msg *m);
static unsigned int acked;

static void quick_sender(void *arg, uint64_t session, const struct kvs_msg *m)
{
	struct kvs_room *r;

	next_to_peer(arg, session, m);
	if (m->type != KVS_WIRE_ABORT)
		return;
	r = claim_room(&g, m->abort.generation);
	assert_non_null(r);
	acked += !kvs_drain_ack(&r->drain, KVS_PARTY_RANK, m->abort.rank,
				m->abort.generation);
}

static void no_answer_is_too_early(void **state)
{
	unsigned int pages = 20;
	uint64_t gen;

	(void)state;
	for (unsigned int ranks = 1; ranks <= 2; ranks++) {
		acked = 0;
		rig_up(&g, 64);
		rig_sessions(&g, ranks);
		g.set.hold_require_ack = true;
		out = *g.w->o.out;
		next_to_peer = out.to_peer;
		out.to_peer = quick_sender;
		g.w->o.out = &out;
		gen = rig_admit(&g, 7, 0, pages, ranks);
		for (unsigned int k = 0; k < ranks; k++)
			rig_open(&g, 7, gen, k);
		rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
		assert_int_equal(acked, ranks);
		assert_int_equal(
			g.w->stats.drains.ack_ignored[KVS_ACK_IGNORED_NOT_ARMED],
			0);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
		assert_int_equal(
			g.w->stats.drains.total[KVS_DRAIN_DRAINED]
					       [KVS_PROOF_ALL_ACKNOWLEDGED],
			1);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
		rig_down(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_answer_is_too_early),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
