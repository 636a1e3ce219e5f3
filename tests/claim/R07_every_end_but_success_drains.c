/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R7: every end but success takes one path. Whatever ends a room while its
 * ranks write and a receive is under way, the room fails once with its cause,
 * every rank is told, the memory is held until the receive is reaped and the
 * ranks have answered, and then it is all there again. No clock is needed for
 * any of it but the deadline's own.
 */
#include "tests/claim/claim_rig.h"

#include <errno.h>
#include <string.h>

#define PAGES 20u

static struct rig g;
static struct kvs_receive rx; /* of rank 0 */
static uint64_t gen;

static void abort_by_engine(void)
{
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
}

static void abort_by_hand(void)
{
	assert_int_equal(kvs_worker_abort(g.w, gen, KVS_CAUSE_ENGINE_ABORT,
					  ECANCELED, "by hand"),
			 0);
}

static void abort_by_sender(void)
{
	claim_say(&g, 100, KVS_WIRE_ABORT, 7, gen, 0, EIO);
}

static void refused_by_sender(void)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE,
			     .refuse = { .room = 7,
					 .generation = gen,
					 .rank = 1,
					 .err = E2BIG,
					 .class = 400,
					 .text = "too long" } };

	kvs_worker_message(g.w, 101, &m);
}

static void session_lost(void)
{
	kvs_worker_session_lost(g.w, 100, -ECONNRESET, "reset");
}

static void connection_lost(void)
{
	kvs_worker_conn_lost(g.w, 101, 1, -EPIPE);
}

static void receive_failed(void)
{
	kvs_worker_receive_end(g.w, &rx, -ECONNRESET, 100);
}

static void deadline(void)
{
	rig_advance(&g, g.set.transfer_timeout);
}

static void bytes_missing(void)
{
	/* it sent nothing, and says so */
	rig_last(&g, 7, gen, 1, 0);
}

static void broken_protocol(void)
{
	kvs_worker_session_lost(g.w, 101, -EPROTO, "nonsense");
}

static void engine_lost(void)
{
	kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
}

static void shutdown_begins(void)
{
	kvs_worker_shutdown(g.w);
}

static const struct {
	const char *name;
	void (*end)(void);
	enum kvs_room_cause cause;
	int err; /* told to the engine; 0: there is none */
} ends[] = {
	{ "engine's abort", abort_by_engine, KVS_CAUSE_ENGINE_ABORT,
	  ECANCELED },
	{ "abort by hand", abort_by_hand, KVS_CAUSE_ENGINE_ABORT, ECANCELED },
	{ "sender's abort", abort_by_sender, KVS_CAUSE_SENDER_ABORT, EIO },
	{ "sender's refusal", refused_by_sender, KVS_CAUSE_SENDER_REFUSED,
	  E2BIG },
	{ "lost session", session_lost, KVS_CAUSE_PEER_LOST, ECONNRESET },
	{ "lost data connection", connection_lost, KVS_CAUSE_PEER_LOST, EPIPE },
	{ "chunk cut short", receive_failed, KVS_CAUSE_PEER_LOST, ECONNRESET },
	{ "deadline", deadline, KVS_CAUSE_TRANSFER_TIMEOUT, ETIMEDOUT },
	{ "missing bytes", bytes_missing, KVS_CAUSE_MISSING_BYTES, ENODATA },
	{ "broken protocol", broken_protocol, KVS_CAUSE_PROTOCOL, EPROTO },
	{ "death of the engine", engine_lost, KVS_CAUSE_ENGINE_LOST, 0 },
	{ "shutdown", shutdown_begins, KVS_CAUSE_SHUTDOWN, ESHUTDOWN },
};

static bool is_there(uint64_t session)
{
	return kvs_u64map_get(&g.w->sessions, session) != NULL;
}

static void one_end(unsigned int i)
{
	void *addr;

	rig_up(&g, 64);
	rig_sessions(&g, 2);
	g.set.hold_require_ack = true;
	gen = rig_admit(&g, 7, 0, PAGES, 2);
	rig_open(&g, 7, gen, 0);
	rig_open(&g, 7, gen, 1);
	claim_send(&g, 7, gen, 0, 2, 2, 3, 1);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 2, &addr), 0);

	ends[i].end();
	/* a second end changes nothing */
	claim_say(&g, 101, KVS_WIRE_ABORT, 7, gen, 1, EXDEV);

	if (ends[i].err) {
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
		assert_int_equal(rig_errno(&g, 0), ends[i].err);
	}
	for (unsigned int c = 0; c < KVS_CAUSE_MAX; c++)
		assert_int_equal(g.w->stats.failures[c], c == ends[i].cause);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), PAGES * CLAIM_PAGE);
	for (unsigned int s = 100; s < 102; s++)
		if (is_there(s))
			assert_non_null(rig_msg(&g, s, KVS_WIRE_ABORT));

	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), PAGES * CLAIM_PAGE);
	for (unsigned int k = 0; k < 2; k++)
		claim_say(&g, 100 + k, KVS_WIRE_ABORT_ACK, 7, gen, k, 0);
	if (rx.room) {
		/* the receive that was under way writes still */
		kvs_worker_turn(g.w);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
				 PAGES * CLAIM_PAGE);
		kvs_worker_receive_end(g.w, &rx, -ECANCELED, 9);
	}
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * CLAIM_PAGE);
	rig_down(&g);
}

static void while_receiving(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(ends); i++) {
		print_message("R7: %s\n", ends[i].name);
		one_end(i);
	}
}

/* READY that nobody claims; a copy that fails; a room that nobody opens. */
static void in_other_states(void **state)
{
	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, PAGES, 1);
	rig_advance(&g, g.set.open_timeout);
	assert_int_equal(rig_errno(&g, 0), ETIME);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * CLAIM_PAGE);

	gen = rig_admit(&g, 8, 1, PAGES, 1);
	rig_open(&g, 8, gen, 0);
	claim_send_rest(&g, 8, gen, 1, 0, PAGES, 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_READY);
	rig_advance(&g, g.set.claim_timeout);
	assert_int_equal(rig_errno(&g, 1), ETIME);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * CLAIM_PAGE);

	gen = rig_admit(&g, 9, 2, PAGES, 1);
	rig_open(&g, 9, gen, 0);
	claim_send_rest(&g, 9, gen, 1, 0, PAGES, 1);
	rig_packet(&g, KVS_PACKET_COMMIT, 2, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 2, gen, EFAULT);
	assert_int_equal(rig_errno(&g, 2), EFAULT);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_COPY_FAILED], 1);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * CLAIM_PAGE);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(while_receiving),
		cmocka_unit_test(in_other_states),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
