/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: whoever ends a room (the engine, the sender, the clock, a lost
 * connection, a checksum), with a chunk under way and a rank that has not
 * acknowledged, its memory is held and has an outcome later; none goes
 * straight to free (sgl-project/sglang#38961, #41404). An abort in any state
 * gives everything back exactly once; a second one says that there is nothing
 * to abort, and what was under way may end after it (sgl-project/sglang#17483,
 * #30937, #21652).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u
#define TOKENS (PAGES * PS_TOKENS)
#define ROOM_BYTES (2 * PAGES * PS_PAGE)
#define POOL_BYTES (1u << 20)
#define SENT (KVS_DATA_FRAME + 1000) /* of the chunk that is under way */

static struct rig g[1];
static struct pe e[1];
static struct ps p[2];
static struct pe_room r[1];
static struct ps_room w[2];

static void up(uint64_t caps)
{
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_two_layers);
	for (uint32_t i = 0; i < 2; i++) {
		ps_init(&p[i], g->port, "p", i, 2, &ps_two_layers);
		p[i].caps |= caps;
		assert_int_equal(ps_hello(&p[i]), 0);
		assert_int_equal(ps_layout(&p[i], NULL, 0), 0);
		assert_int_equal(ps_data(&p[i]), 0);
	}
}

static void down(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		ps_room_fini(&w[i]);
		ps_down(&p[i]);
	}
	pe_down(e);
	rig_down(g);
}

static void grant(uint64_t room)
{
	pe_admit(e, r, 0, room, TOKENS, 2);
	for (uint32_t i = 0; i < 2; i++) {
		ps_room_fini(&w[i]);
		assert_int_equal(ps_open(&p[i], room, TOKENS), 0);
		ps_granted(&p[i], &w[i], room, 2 * PS_PAGE);
	}
	pe_wait(e, r, KVS_STATUS_RECEIVING);
}

/* ---- five ends ------------------------------------------------------------- */

static void client_aborts(void)
{
	assert_int_equal(pe_say(e, KVS_PACKET_ABORT, r, 0), 0);
}

static void writer_reports_failure(void)
{
	assert_int_equal(ps_answer(&p[0], KVS_WIRE_ABORT, 7, r->generation), 0);
}

static void time_is_over(void)
{
}

static void control_is_lost(void)
{
	ps_reset(&p[0].ctl);
}

static const struct {
	const char *what;
	void (*end)(void);
	int err;
	enum kvs_room_cause cause;
	enum kvs_drain_outcome outcome;
	bool rank0_gone;
} ends[] = {
	{ "client's abort", client_aborts, ECANCELED, KVS_CAUSE_ENGINE_ABORT,
	  KVS_DRAIN_DRAINED, false },
	{ "writer's failure", writer_reports_failure, EIO,
	  KVS_CAUSE_SENDER_ABORT, KVS_DRAIN_DRAINED, false },
	{ "transfer.timeout", time_is_over, ETIMEDOUT,
	  KVS_CAUSE_TRANSFER_TIMEOUT, KVS_DRAIN_DRAINED, false },
	{ "lost control connection", control_is_lost, ECONNRESET,
	  KVS_CAUSE_PEER_LOST, KVS_DRAIN_REVOKED, true },
};

static void held_and_then_over(unsigned int k)
{
	struct kvs_msg m;

	print_message("# %s\n", ends[k].what);
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", "60s");
	rig_set(g, "hold.reask", "0");
	rig_set(g, "transfer.timeout",
		ends[k].end == time_is_over ? "500ms" : "300s");
	up(0);
	grant(7);
	assert_true(ps_send_part(&p[0], 0, &w[0], 0, 0, SENT) > 0);
	rig_wait(g, rig_parties(g, 7) == 3);
	ends[k].end();
	pe_wait_failed(e, r, ends[k].err);
	rig_refresh(g);
	assert_int_equal(rig_failures(g, ends[k].cause), 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE),
			 POOL_BYTES - ROOM_BYTES);
	ps_expect(&p[1], KVS_WIRE_ABORT, &m);
	if (!ends[k].rank0_gone) {
		ps_expect(&p[0], KVS_WIRE_ABORT, &m);
		assert_true(ps_send_part(&p[0], 0, &w[0], 0, SENT, 0) > 0);
		ps_answer(&p[0], KVS_WIRE_ABORT_ACK, 7, r->generation);
	}
	/* the chunk is over, rank 0 finished or gone: one is awaited */
	rig_wait(g, rig_parties(g, 7) == 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	ps_answer(&p[1], KVS_WIRE_ABORT_ACK, 7, r->generation);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL_BYTES);
	assert_int_equal(
		rig_drains(g, ends[k].outcome, KVS_PROOF_ALL_ACKNOWLEDGED), 1);
	assert_int_equal(rig_received(g), 0);
	down();
}

static void none_goes_straight_to_free(void **state)
{
	(void)state;
	for (unsigned int k = 0; k < KVS_ARRAY_SIZE(ends); k++)
		held_and_then_over(k);
}

/* A mismatch is found when nothing is under way any more; it takes the same
 * path: an outcome is counted, READY is never seen. */
static void checksum_takes_the_same_path(void **state)
{
	struct kvs_msg m;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "checksum.kind", "crc32c");
	rig_set(g, "hold.require_ack", "yes");
	up(KVS_CAP_CRC32C);
	grant(7);
	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t c = 0; c < w[i].n_chunks; c++)
			assert_true(ps_send_part(&p[i], 0, &w[i], c, 0, 0) > 0);
		m = (struct kvs_msg){ .type = KVS_WIRE_LAST };
		m.last.room = 7;
		m.last.generation = r->generation;
		m.last.rank = i;
		m.last.bytes = w[i].bytes;
		m.last.digest_kind = KVS_DIGEST_CRC32C;
		m.last.digest = 1;
		assert_int_equal(ps_say(&p[i], &m), 0);
	}
	pe_wait_failed(e, r, EBADMSG);
	assert_false(r->ready);
	for (uint32_t i = 0; i < 2; i++)
		ps_expect(&p[i], KVS_WIRE_ABORT, &m);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL_BYTES);
	assert_int_equal(rig_failures(g, KVS_CAUSE_CHECKSUM), 1);
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_RECEIVE_REAPED), 1);
	down();
}

/* ---- each state, twice ------------------------------------------------------ */

static void send_both(uint32_t from)
{
	struct kvs_msg m;

	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t c = from; c < w[i].n_chunks; c++)
			assert_true(ps_send_part(&p[i], 0, &w[i], c, 0, 0) > 0);
		assert_int_equal(ps_last(&p[i], &w[i], w[i].bytes), 0);
	}
	for (uint32_t i = 0; i < 2; i++)
		ps_expect(&p[i], KVS_WIRE_COMPLETE, &m);
	pe_wait(e, r, KVS_STATUS_READY);
}

/* Once, and then there is nothing to abort, whoever asks. */
static void abort_twice(uint64_t room)
{
	int again;

	assert_int_equal(kvs_service_abort(g->svc, room), 0);
	again = kvs_service_abort(g->svc, room);
	assert_true(again == -EALREADY || again == -ENOENT);
	assert_int_equal(pe_say(e, KVS_PACKET_ABORT, r, 0), 0);
	pe_wait_failed(e, r, ECANCELED);
	assert_int_equal(kvs_service_abort(g->svc, room), -ENOENT);
}

static void waiting(uint64_t room)
{
	struct pe_room all;

	pe_admit(e, &all, 1, 1000 + room,
		 POOL_BYTES / (2 * PS_PAGE) * PS_TOKENS, 2);
	pe_admit(e, r, 0, room, TOKENS, 2);
	pe_wait(e, r, KVS_STATUS_WAITING);
	abort_twice(room);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_RESERVED), POOL_BYTES);
	pe_abort(e, &all);
}

static void admitted(uint64_t room)
{
	pe_admit(e, r, 0, room, TOKENS, 2);
	pe_wait(e, r, KVS_STATUS_ADMITTED);
	abort_twice(room);
}

static void receiving(uint64_t room)
{
	struct kvs_msg m;

	grant(room);
	assert_true(ps_send_part(&p[0], 0, &w[0], 0, 0, SENT) > 0);
	rig_wait(g, rig_parties(g, room) == 3);
	abort_twice(room);
	/* held until they have answered; aborted a third time meanwhile */
	assert_true(rig_room_in(g, room, "draining"));
	assert_int_equal(kvs_service_abort(g->svc, room), -ENOENT);
	/* it finishes all the same: the rest, all other chunks, its totals */
	assert_true(ps_send_part(&p[0], 0, &w[0], 0, SENT, 0) > 0);
	for (uint32_t c = 1; c < w[0].n_chunks; c++)
		assert_true(ps_send_part(&p[0], 0, &w[0], c, 0, 0) > 0);
	assert_int_equal(ps_last(&p[0], &w[0], w[0].bytes), 0);
	for (uint32_t i = 0; i < 2; i++) {
		ps_expect(&p[i], KVS_WIRE_ABORT, &m);
		ps_answer(&p[i], KVS_WIRE_ABORT_ACK, room, r->generation);
	}
}

static void ready(uint64_t room)
{
	grant(room);
	send_both(0);
	abort_twice(room);
	/* the claim comes too late */
	assert_int_equal(pe_say(e, KVS_PACKET_COMMIT, r, 0), 0);
}

static void committing(uint64_t room)
{
	grant(room);
	send_both(0);
	assert_int_equal(pe_say(e, KVS_PACKET_COMMIT, r, 0), 0);
	pe_wait(e, r, KVS_STATUS_COMMITTING);
	abort_twice(room);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	assert_int_equal(pe_say(e, KVS_PACKET_COPY_OVER, r, 0), 0);
	assert_int_equal(pe_say(e, KVS_PACKET_COPY_OVER, r, 0), 0);
}

/* A copy cannot be revoked: past hold.timeout it is quarantined. */
static void quarantined(uint64_t room)
{
	struct kvs_settings s = g->set;
	char err[256];

	assert_int_equal(kvs_settings_set(&s, "hold.timeout", "20ms", err,
					  sizeof(err)),
			 0);
	kvs_service_reload(g->svc, &s);
	grant(room);
	send_both(0);
	assert_int_equal(pe_say(e, KVS_PACKET_COMMIT, r, 0), 0);
	pe_wait(e, r, KVS_STATUS_COMMITTING);
	abort_twice(room);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_QUARANTINED) == ROOM_BYTES);
	assert_true(rig_room_in(g, room, "quarantined"));
	assert_int_equal(kvs_service_abort(g->svc, room), -ENOENT);
	/* not so much that the daemon is of no use, unless the operator says
	 * that it is */
	assert_true(g->snap->ready && !g->snap->degraded);
	s.health_quarantined = 1;
	static_assert(ROOM_BYTES > POOL_BYTES / 100, "over a percent");
	kvs_service_reload(g->svc, &s);
	rig_wait(g, g->snap->degraded);
	assert_false(g->snap->ready);
	assert_int_equal(g->snap->degraded_bytes, ROOM_BYTES);
	assert_int_equal(pe_say(e, KVS_PACKET_COPY_OVER, r, 0), 0);
	rig_wait(g, g->snap->ready && !g->snap->degraded);
	kvs_service_reload(g->svc, &g->set);
}

static void done(uint64_t room)
{
	grant(room);
	send_both(0);
	pe_commit(e, r);
	assert_int_equal(kvs_service_abort(g->svc, room), -ENOENT);
	assert_int_equal(pe_say(e, KVS_PACKET_ABORT, r, 0), 0);
}

static void each_state_twice(void **state)
{
	static void (*const states[])(uint64_t room) = {
		waiting,    admitted,	 receiving, ready,
		committing, quarantined, done,
	};

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", "60s");
	rig_set(g, "hold.reask", "0");
	g->errors_expected = true; /* a quarantine is one */
	up(0);
	for (uint64_t i = 0; i < KVS_ARRAY_SIZE(states); i++) {
		states[i](100 + i);
		rig_wait(g, rig_rooms(g) == 0);
		assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), POOL_BYTES);
	}
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_ENGINE_ABORT) + rig_done(g),
			 KVS_ARRAY_SIZE(states) + 1);
	assert_int_equal(atomic_load(&g->errors), 1);
	down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(none_goes_straight_to_free),
		cmocka_unit_test(checksum_takes_the_same_path),
		cmocka_unit_test(each_state_twice),
	};

	return rig_run_both(tests);
}
