/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R14: in one turn of a node completions are handled before timeouts, so that
 * a room that is complete, or drained, in the turn in which its limit passes
 * is complete, or drained; a deadline starts when the thing it bounds starts,
 * so that waiting for memory uses up nobody's transfer time.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>
#include <string.h>

#include "pipeline/node_internal.h"
#include "rdma/loop.h"

#define PAGES 20u

static struct rig g;
static struct kvs_fabric *fabric;
static struct kvs_node node;

/* The rig's worker on a node that has no thread. */
static void node_up(void)
{
	struct kvs_fabric_opts o = { .seed = 1, .clock = &g.clock.clk };

	rig_up(&g, 64);
	rig_sessions(&g, 1);
	memset(&node, 0, sizeof(node));
	assert_int_equal(kvs_fabric_create(&o, &fabric), 0);
	assert_int_equal(kvs_loop_create(fabric, "node", &node.transport), 0);
	kvs_mailbox_init(&node.mailbox, node.transport, &node);
	kvs_list_init(&node.conns);
	kvs_list_init(&node.pending);
	node.worker = g.w;
}

static void node_down(void)
{
	rig_down(&g);
	kvs_transport_destroy(node.transport);
	kvs_fabric_destroy(fabric);
}

static void last_message_at_the_deadline(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAST };
	uint64_t gen;

	(void)state;
	node_up();
	gen = rig_admit(&g, 7, 0, PAGES, 1);
	rig_open(&g, 7, gen, 0);
	claim_send(&g, 7, gen, 0, 1, 0, PAGES, 1);
	kvs_vclock_advance(&g.clock, g.set.transfer_timeout);
	m.last.room = 7;
	m.last.generation = gen;
	m.last.bytes = PAGES * CLAIM_PAGE;
	assert_int_equal(kvs_node_message(&node, 100, &m), 0);
	kvs_node_turn(&node, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
	node_down();
}

static void last_acknowledgement_at_the_limit(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_ABORT_ACK };
	uint64_t gen;

	(void)state;
	node_up();
	g.set.hold_require_ack = true;
	gen = rig_admit(&g, 7, 0, PAGES, 1);
	rig_open(&g, 7, gen, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	kvs_vclock_advance(&g.clock, g.set.hold_timeout);
	m.abort.room = 7;
	m.abort.generation = gen;
	assert_int_equal(kvs_node_message(&node, 100, &m), 0);
	kvs_node_turn(&node, 0);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_DRAINED]
						[KVS_PROOF_ALL_ACKNOWLEDGED],
			 1);
	node_down();
}

static void a_deadline_starts_with_what_it_bounds(void **state)
{
	uint64_t a, b;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.admission_timeout = 10 * g.set.transfer_timeout;
	a = rig_admit(&g, 1, 1, 64, 1);
	rig_open(&g, 1, a, 0);
	b = rig_admit(&g, 2, 2, 64, 1);
	rig_advance(&g, g.set.transfer_timeout - 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_WAITING);
	rig_packet(&g, KVS_PACKET_ABORT, 1, a, 0);
	kvs_worker_turn(g.w);
	/* it has waited for as long as a transfer may take */
	rig_advance(&g, g.set.open_timeout - 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	rig_open(&g, 2, b, 0);
	rig_advance(&g, g.set.transfer_timeout - 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_RECEIVING);
	claim_send_rest(&g, 2, b, 1, 0, 64, 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_READY);
	rig_advance(&g, g.set.claim_timeout - 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 2, b, 0);
	assert_int_equal(rig_errno(&g, 2), ECANCELED);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(last_message_at_the_deadline),
		cmocka_unit_test(last_acknowledgement_at_the_limit),
		cmocka_unit_test(a_deadline_starts_with_what_it_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
