/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a room walks its edges; every state's abort gives back what the
 * state holds, once, and nothing while a party is alive; what does not belong
 * to a room never reaches its extents; deadlines bound each state and start
 * with it. Virtual clock, no threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct rig g;

#define S KVS_NSEC_PER_SEC
#define PAGE (4 * 1024u)

/* WAITING -> ADMITTED -> RECEIVING -> SEALING -> READY -> COMMITTING -> DONE
 * -> FREE, two ranks */
static void test_whole_life(void **state)
{
	uint64_t gen;
	const struct rig_event *e;
	unsigned int pos = 0;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	gen = rig_admit(&g, 7, 3, 20, 2);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	/* 20 pages lie in extents of 16 and 4 */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_RESERVED), 20 * PAGE);
	rig_open(&g, 7, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_RECEIVING);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 20 * PAGE);
	e = rig_msg(&g, 100, KVS_WIRE_GRANT);
	assert_non_null(e);
	assert_int_equal(e->msg.grant.generation, gen);
	assert_int_equal(e->msg.grant.n_extents, 2);
	assert_int_equal(e->msg.grant.first_layer, 0);
	assert_int_equal(e->msg.grant.n_layers, 1);
	rig_send_all(&g, 7, gen, 0, 2, 20);
	/* every byte of rank 0, nothing of rank 1: not complete */
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_RECEIVING);
	rig_open(&g, 7, gen, 1);
	rig_send_all(&g, 7, gen, 1, 2, 20);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_READY);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_STAGED), 20 * PAGE);
	assert_non_null(rig_msg(&g, 100, KVS_WIRE_COMPLETE));
	assert_non_null(rig_msg(&g, 101, KVS_WIRE_COMPLETE));
	rig_packet(&g, KVS_PACKET_COMMIT, 3, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_COMMITTING);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_COMMITTING), 20 * PAGE);
	assert_null(rig_find(&g, RIG_OVER, &pos));
	rig_packet(&g, KVS_PACKET_COMMITTED, 3, gen, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_DONE);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	assert_int_equal(
		g.w->stats.drains.total[KVS_DRAIN_DRAINED][KVS_PROOF_COPY_EVENT],
		1);
	assert_int_equal(g.w->stats.received_bytes, 20 * PAGE);
	rig_down(&g);
}

/* The bytes are where the geometry says, in the pool. */
static void test_bytes_in_place(void **state)
{
	const struct rig_event *e = NULL;
	uint64_t gen, off, len;
	struct kvs_geometry geo;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	rig_send_all(&g, 7, gen, 0, 1, 20);
	for (unsigned int i = 0; i < g.n; i++)
		if (g.log[i].what == RIG_WORD && g.log[i].n_extents)
			e = &g.log[i];
	assert_non_null(e);
	assert_int_equal(e->n_extents, 2);
	assert_int_equal(
		kvs_geometry_init(&geo, &g.layout, 80, 64, 1 << 30, 1, 0), 0);
	for (uint32_t p = 0; p < 20; p++) {
		for (uint32_t b = 0; b < 4; b++) {
			unsigned char *at;

			assert_int_equal(kvs_geometry_run(&geo, p / 16, b, &off,
							  &len),
					 0);
			at = g.base + e->off[p / 16] + off + p % 16 * 1024;
			for (int i = 0; i < 1024; i++)
				assert_int_equal(at[i], p + b / 2 + b % 2);
		}
	}
	kvs_geometry_fini(&geo);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
	rig_down(&g);
}

/* LMCache#4209: the whole pool fits, one page more can never; what does not
 * fit now waits, and is served when memory comes back. */
static void test_fit_never_or_not_now(void **state)
{
	uint64_t big, small;
	const struct rig_event *e;
	unsigned int pos = 0;

	(void)state;
	rig_up(&g, 64);
	rig_admit(&g, 1, 1, 65, 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	e = rig_find(&g, RIG_WORD, &pos);
	assert_int_equal(e->failed.class, 400);
	assert_non_null(strstr(e->failed.text, "pool.size"));
	/* its sender, if it asks, hears the same (and class 400) at once */
	rig_sessions(&g, 1);
	rig_open(&g, 1, 1, 0);
	e = rig_msg(&g, 100, KVS_WIRE_REFUSE);
	assert_non_null(e);
	assert_int_equal(e->msg.refuse.err, E2BIG);
	assert_int_equal(e->msg.refuse.class, 400);
	kvs_worker_session_lost(g.w, 100, 0, "closed");
	g.n = 0;
	/* no trace: no room, no message to any peer, id free */
	assert_int_equal(g.w->rooms.n, 0);
	assert_int_equal(g.w->stats.admits[KVS_ADMIT_NOFIT], 1);
	pos = 0;
	assert_null(rig_find(&g, RIG_PEER, &pos));
	big = rig_admit(&g, 2, 2, 64, 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	small = rig_admit(&g, 3, 3, 1, 1);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_WAITING);
	rig_packet(&g, KVS_PACKET_ABORT, 2, big, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 3, small, 0);
	rig_down(&g);
}

/* sglang#31205: a head that can never run must not stop those behind it. */
static void test_oversize_head(void **state)
{
	(void)state;
	rig_up(&g, 64);
	rig_admit(&g, 1, 0, 64, 1);
	rig_admit(&g, 2, 1, 65, 1);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	for (uint32_t i = 0; i < 20; i++)
		rig_admit(&g, 10 + i, 2 + i, 3, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1, 0);
	kvs_worker_turn(g.w);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(rig_status(&g, 2 + i), KVS_STATUS_ADMITTED);
	for (uint32_t i = 0; i < 20; i++)
		rig_packet(&g, KVS_PACKET_ABORT, 2 + i, 3 + i, 0);
	rig_down(&g);
}

/* A big head is passed by small rooms only so often. */
static void test_head_not_starved(void **state)
{
	unsigned int passed = 0;
	uint64_t first, gen[2];

	(void)state;
	rig_up(&g, 64);
	first = rig_admit(&g, 1, 0, 32, 1);
	rig_admit(&g, 2, 1, 40, 1); /* the head: waits for the first */
	for (uint32_t i = 0; i < 100; i++) {
		gen[0] = rig_admit(&g, 100 + i, 10 + i, 1, 1);
		if (rig_status(&g, 10 + i) == KVS_STATUS_ADMITTED)
			passed++;
		rig_packet(&g, KVS_PACKET_ABORT, 10 + i, gen[0], 0);
		kvs_worker_turn(g.w);
	}
	assert_in_range(passed, 1, g.set.overtake);
	rig_packet(&g, KVS_PACKET_ABORT, 0, first, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 1, first + 1, 0);
	rig_down(&g);
}

/* RECEIVING -> DRAINING with a receive under way: nothing is freed until the
 * receive has ended, whatever its end (R1, R13). */
static void test_abort_while_receiving(void **state)
{
	struct kvs_receive rx;
	const struct rig_event *e;
	unsigned int pos = 0, armed = 0;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 31, 1);
	rig_open(&g, 7, gen, 0);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 4, &addr), 0);
	assert_non_null(addr);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 0), ECANCELED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 31 * PAGE);
	/* the transport is asked to stop, the sender is told */
	e = rig_find(&g, RIG_STOP, &pos);
	assert_non_null(e);
	assert_ptr_equal(e->rx, &rx);
	assert_non_null(rig_msg(&g, 100, KVS_WIRE_ABORT));
	/* a second abort changes nothing */
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	armed = g.n;
	rig_advance(&g, 3600 * S); /* no clock frees it */
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 31 * PAGE);
	/* a room that needs these pages waits */
	rig_admit(&g, 8, 1, 40, 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_WAITING);
	/* all bytes had arrived before the stop took effect: still aborted */
	kvs_worker_receive_end(g.w, &rx, 0, 4 * 1024);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_DRAINED]
						[KVS_PROOF_RECEIVE_REAPED],
			 1);
	assert_true(armed > 0);
	rig_packet(&g, KVS_PACKET_ABORT, 1, gen + 1, 0);
	rig_down(&g);
}

/* An abort in each state, once and twice, gives everything back exactly. */
static void test_abort_in_each_state(void **state)
{
	(void)state;
	for (int at = 0; at < 6; at++) {
		uint64_t blocker = 0, gen;
		unsigned int overs = 0, pos = 0;

		rig_up(&g, 64);
		rig_sessions(&g, 1);
		if (at == 0)
			blocker = rig_admit(&g, 1, 1, 64, 1);
		gen = rig_admit(&g, 7, 0, 20, 1);
		if (at >= 2)
			rig_open(&g, 7, gen, 0);
		if (at >= 3)
			rig_send_all(&g, 7, gen, 0, 1, 20);
		if (at >= 4)
			rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
		if (at >= 5)
			rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
		rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
		rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
		if (at == 4) {
			/* COMMITTING: the copy still reads the extents */
			assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
					 20 * PAGE);
			rig_packet(&g, KVS_PACKET_COPY_OVER, 0, gen, 0);
			assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
			rig_packet(&g, KVS_PACKET_COPY_OVER, 0, gen, 0);
		}
		assert_int_equal(rig_status(&g, 0),
				 at == 5 ? KVS_STATUS_DONE : KVS_STATUS_FAILED);
		while (rig_find(&g, RIG_OVER, &pos))
			overs++;
		assert_int_equal(overs, 1);
		if (blocker)
			rig_packet(&g, KVS_PACKET_ABORT, 1, blocker, 0);
		rig_down(&g);
	}
}

/* An engine that dies while copying: held until its process is gone. */
static void test_engine_death(void **state)
{
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	rig_send_all(&g, 7, gen, 0, 1, 20);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	kvs_worker_engine_lost(g.w, RIG_ENGINE, false);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	/* its copy cannot be revoked: after the hold it is quarantined, and
	 * still owned */
	rig_advance(&g, g.set.hold_timeout);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_QUARANTINED), 20 * PAGE);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_QUARANTINED]
						[KVS_PROOF_CANNOT_REVOKE],
			 1);
	kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 64 * PAGE);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_DRAINED]
						[KVS_PROOF_PROCESS_EXIT],
			 1);
	rig_down(&g);
}

/* A sender that says done without having sent everything (sglang#23773): not
 * complete, and what is missing is named. */
static void test_missing_bytes(void **state)
{
	const struct rig_event *e = NULL;
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	rig_last(&g, 7, gen, 0, 20 * PAGE - 1024);
	assert_int_equal(rig_errno(&g, 0), ENODATA);
	for (unsigned int i = 0; i < g.n; i++)
		if (g.log[i].failed.err)
			e = &g.log[i];
	assert_non_null(e);
	assert_non_null(strstr(e->failed.text, "k layer 0 page 0"));
	rig_down(&g);
	/* LAST with the right total but bytes that never come: not READY */
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	rig_last(&g, 7, gen, 0, 20 * PAGE);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	rig_advance(&g, g.set.transfer_timeout);
	assert_int_equal(rig_errno(&g, 0), ETIMEDOUT);
	rig_down(&g);
}

/* LAST comes by another connection than the chunks and may overtake them: the
 * room is READY with the last byte, and a byte beyond it is a violation. */
static void test_last_overtakes(void **state)
{
	struct kvs_receive rx;
	unsigned int pos = 0;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 1, 1);
	rig_open(&g, 7, gen, 0);
	rig_last(&g, 7, gen, 0, PAGE);
	for (unsigned int i = 0; i < 4; i++) {
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
		assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, i % 2, i / 2, 0,
					   1, &addr),
				 0);
		assert_non_null(addr);
		kvs_worker_receive_end(g.w, &rx, 0, PAGE / 4);
	}
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	assert_null(rig_find(&g, RIG_CLOSE, &pos));
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
	rig_down(&g);
	/* once more what came already */
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 1, 1);
	rig_open(&g, 7, gen, 0);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 1, &addr), 0);
	kvs_worker_receive_end(g.w, &rx, 0, PAGE / 4);
	rig_last(&g, 7, gen, 0, PAGE);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 1, &addr),
			 -EPROTO);
	pos = 0;
	assert_non_null(rig_find(&g, RIG_CLOSE, &pos));
	kvs_worker_session_lost(g.w, 100, -EPROTO, "closed");
	rig_down(&g);
}

/* Mooncake#2313, #1513: a chunk outside what its sender was granted never
 * gets an address; the sender loses its connection, others nothing. */
static void test_hostile_chunks(void **state)
{
	struct kvs_msg_chunk good = { .room = 7, .len = 1024 };
	struct kvs_receive rx;
	enum kvs_proto_error why;
	uint64_t gen, other;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	gen = rig_admit(&g, 7, 0, 20, 2);
	other = rig_admit(&g, 8, 1, 20, 2);
	rig_open(&g, 7, gen, 0);
	rig_open(&g, 7, gen, 1);
	good.generation = gen;
	for (int i = 0; i < 12; i++) {
		struct kvs_msg_chunk m = good;
		unsigned int closes = 0, pos = 0;
		enum kvs_proto_error want = KVS_PROTO_RANGE;

		switch (i) {
		case 0:
			m.extent = 2;
			break;
		case 1:
			m.extent = UINT32_MAX;
			break;
		case 2: /* extent 1 has 4 pages */
			m.extent = 1;
			m.offset = 4 * 1024;
			break;
		case 3: /* last byte, length 2 */
			m.offset = 16 * 1024 - 1;
			m.len = 2;
			break;
		case 4: /* sum wraps */
			m.offset = UINT64_MAX - 100;
			break;
		case 5:
			m.len = 0;
			break;
		case 6: /* a layer of the other rank */
			m.layer = 1;
			break;
		case 7:
			m.kind = KVS_BUFFER_MAMBA;
			break;
		case 8: /* no aux block was agreed */
			m.kind = KVS_KIND_AUX;
			m.extent = 1;
			break;
		case 9: /* the other rank's number */
			m.rank = 1;
			want = KVS_PROTO_FOREIGN;
			break;
		case 10: /* the right generation under another room's id */
			m.room = 8;
			want = KVS_PROTO_FOREIGN;
			break;
		case 11:
			m.len = UINT32_MAX;
			break;
		}
		memset(&rx, 0, sizeof(rx));
		addr = &rx;
		assert_int_equal(kvs_worker_receive_begin(g.w, 100, &m, &rx,
							  &addr, &why),
				 -EPROTO);
		assert_null(addr);
		assert_int_equal(why, want);
		while (rig_find(&g, RIG_CLOSE, &pos))
			closes++;
		assert_int_equal(closes, i + 1);
	}
	/* bytes of a room this session has not opened, or that is no more,
	 * land nowhere */
	good.room = 8;
	good.generation = other;
	assert_int_equal(
		kvs_worker_receive_begin(g.w, 100, &good, &rx, &addr, &why), 0);
	assert_null(addr);
	good.generation = 12345;
	assert_int_equal(
		kvs_worker_receive_begin(g.w, 100, &good, &rx, &addr, &why), 0);
	assert_null(addr);
	assert_int_equal(g.w->stats.late_bytes, 2 * 1024);
	/* nothing was written anywhere */
	for (size_t i = 0; i < 1; i++)
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	/* the same bytes twice: the second has no address, also while the
	 * first is still under way */
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 2, 2, &addr), 0);
	assert_non_null(addr);
	{
		struct kvs_receive twice;
		void *addr2;

		assert_int_equal(rig_begin(&g, &twice, 7, gen, 0, 0, 0, 3, 1,
					   &addr2),
				 -EPROTO);
		assert_null(addr2);
	}
	assert_int_equal(g.w->stats.protocol_errors[KVS_PROTO_OVERLAP], 1);
	kvs_worker_session_lost(g.w, 100, -EPROTO, "protocol");
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	kvs_worker_receive_end(g.w, &rx, -ECONNRESET, 100);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	rig_packet(&g, KVS_PACKET_ABORT, 1, other, 0);
	rig_down(&g);
}

/* TensorRT-LLM#13824: waiting for memory does not use up the transfer's time,
 * and each state has a bound of its own with a code of its own. */
static void test_deadlines(void **state)
{
	uint64_t a, b;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.admission_timeout = 1000 * S;
	a = rig_admit(&g, 1, 0, 64, 1);
	rig_open(&g, 1, a, 0);
	b = rig_admit(&g, 2, 1, 64, 1);
	rig_advance(&g, g.set.transfer_timeout - S);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	rig_advance(&g, S);
	assert_int_equal(rig_errno(&g, 0), ETIMEDOUT);
	/* b has waited for 300 s and begins its own 60 s to be opened */
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	rig_advance(&g, g.set.open_timeout - 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	rig_open(&g, 2, b, 0);
	rig_advance(&g, g.set.transfer_timeout - 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_RECEIVING);
	rig_send_all(&g, 2, b, 0, 1, 64);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_READY);
	rig_advance(&g, g.set.claim_timeout);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 1), ETIME);
	/* and one that nobody opens; one that never gets memory */
	a = rig_admit(&g, 3, 0, 64, 1);
	b = rig_admit(&g, 4, 1, 64, 1);
	rig_advance(&g, g.set.open_timeout);
	assert_int_equal(rig_errno(&g, 0), ETIME);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	g.set.admission_timeout = 10 * S;
	rig_admit(&g, 5, 2, 64, 1);
	rig_advance(&g, 10 * S);
	assert_int_equal(rig_errno(&g, 2), ETIME);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_ADMISSION_TIMEOUT], 1);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_OPEN_TIMEOUT], 1);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_TRANSFER_TIMEOUT], 1);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_CLAIM_TIMEOUT], 1);
	rig_packet(&g, KVS_PACKET_ABORT, 1, b, 0);
	rig_down(&g);
}

/* hold.require_ack: a rank's bytes may still be on their way until it says
 * otherwise; the acknowledgement must be its own, current, and counted once */
static void test_require_ack(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_ABORT_ACK };
	uint64_t gen;
	uint64_t *ign;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	ign = g.w->stats.drains.ack_ignored;
	g.set.hold_require_ack = true;
	gen = rig_admit(&g, 7, 0, 20, 2);
	rig_open(&g, 7, gen, 0);
	rig_open(&g, 7, gen, 1);
	m.abort.room = 7;
	m.abort.generation = gen;
	m.abort.rank = 0;
	kvs_worker_message(g.w, 100, &m); /* nobody asked yet */
	assert_int_equal(ign[KVS_ACK_IGNORED_NOT_ARMED], 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	kvs_worker_message(g.w, 100, &m);
	kvs_worker_message(g.w, 100, &m); /* twice: counts once */
	assert_int_equal(ign[KVS_ACK_IGNORED_DUPLICATE], 1);
	kvs_worker_message(g.w, 101, &m); /* in another rank's name */
	assert_int_equal(ign[KVS_ACK_IGNORED_UNKNOWN_ROOM], 1);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	m.abort.rank = 1;
	kvs_worker_message(g.w, 101, &m);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_DRAINED]
						[KVS_PROOF_ALL_ACKNOWLEDGED],
			 1);
	/* a rank that cannot answer any more is revoked at once (R5) */
	gen = rig_admit(&g, 8, 0, 20, 2);
	rig_open(&g, 8, gen, 0);
	rig_open(&g, 8, gen, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	m.type = KVS_WIRE_ABORT_NAK;
	m.abort = (struct kvs_msg_abort){
		.room = 8, .generation = gen, .rank = 0, .err = EIO
	};
	kvs_worker_message(g.w, 100, &m);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	/* and at the hold timeout the other one is, not merely forgotten */
	rig_advance(&g, g.set.hold_timeout);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(g.w->stats.drains.total[KVS_DRAIN_REVOKED]
						[KVS_PROOF_GRANT_INVALIDATED],
			 1);
	rig_down(&g);
}

/* A lost sender fails its unfinished rooms only, and each just once. */
static void test_session_lost(void **state)
{
	uint64_t done, part;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	done = rig_admit(&g, 1, 0, 10, 1);
	part = rig_admit(&g, 2, 1, 10, 1);
	rig_open(&g, 1, done, 0);
	rig_open(&g, 2, part, 0);
	rig_send_all(&g, 1, done, 0, 1, 10);
	kvs_worker_session_lost(g.w, 100, -ECONNRESET, "reset");
	kvs_worker_session_lost(g.w, 100, -ECONNRESET, "reset");
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 1), ECONNRESET);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_PEER_LOST], 1);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, done, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, done, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_DONE);
	rig_down(&g);
}

/* Who may open: the named peer, its own rank, the tokens agreed, this
 * attempt's nonce, once. */
static void test_open_refused(void **state)
{
	struct kvs_rank_slice all = { 0, 2 };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1000,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 80,
				      .n_ranks = 1,
				      .ranks = &all };
	struct kvs_msg_open m = { .room = 7 };
	static const struct {
		uint64_t session;
		uint32_t rank;
		uint64_t tokens;
		unsigned char nonce;
		uint32_t err;
	} t[] = {
		{ 101, 1, 0, 9, EACCES }, /* a rank too many */
		{ 200, 0, 0, 9, EACCES }, /* another peer */
		{ 101, 0, 0, 9, EACCES }, /* another rank's name */
		{ 100, 0, 0, 8, ESTALE }, /* an earlier attempt */
		{ 100, 0, 0, 9, 0 },	  { 100, 0, 80, 9, EEXIST },
	};

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	assert_int_equal(kvs_worker_session_add(g.w, 200, "q", 0, 0), 0);
	q.nonce[0] = 9;
	kvs_worker_admit(g.w, &q);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		unsigned int before = g.n;
		const struct rig_event *e;

		m.rank = t[i].rank;
		m.tokens = t[i].tokens;
		m.nonce[0] = t[i].nonce;
		kvs_worker_open(g.w, t[i].session, 1000, &m);
		e = &g.log[g.n - 1];
		assert_true(g.n > before);
		assert_int_equal(e->session, t[i].session);
		if (!t[i].err) {
			assert_int_equal(e->msg.type, KVS_WIRE_GRANT);
			continue;
		}
		assert_int_equal(e->msg.type, KVS_WIRE_REFUSE);
		assert_int_equal(e->msg.refuse.err, t[i].err);
	}
	/* tokens that differ end the room: the two sides disagree for good */
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1000, 0);
	q.generation = 1001;
	kvs_worker_admit(g.w, &q);
	m.tokens = 79;
	kvs_worker_open(g.w, 100, 1001, &m);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	rig_down(&g);
}

/* A rank that gives up while its room waits for memory ends the room; one
 * that never opened it ends nothing, and is no violation either. */
static void test_refuse_while_waiting(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE };
	unsigned int pos = 0;
	uint64_t a, b;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	a = rig_admit(&g, 1, 0, 64, 1);
	b = rig_admit(&g, 2, 1, 64, 1);
	rig_open(&g, 2, b, 0);
	m.refuse.room = 2;
	m.refuse.generation = b;
	m.refuse.rank = 0;
	m.refuse.err = E2BIG;
	m.refuse.class = 400;
	snprintf(m.refuse.text, sizeof(m.refuse.text), "prompt too long");
	kvs_worker_message(g.w, 101, &m);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_WAITING);
	kvs_worker_message(g.w, 100, &m);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_SENDER_REFUSED], 1);
	assert_null(rig_find(&g, RIG_CLOSE, &pos));
	rig_packet(&g, KVS_PACKET_ABORT, 0, a, 0);
	rig_down(&g);
}

static uint64_t digest_room(uint64_t room, uint32_t slot, uint16_t kind,
			    uint32_t xor)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAST };
	uint64_t gen = rig_admit(&g, room, slot, 1, 1);
	struct kvs_digest d;

	/* one page of k 0, k 1, v 0, v 1: the stream in that order */
	kvs_digest_init(&d, KVS_DIGEST_CRC32C, PAGE);
	rig_open(&g, room, gen, 0);
	for (unsigned int i = 4; i-- > 0;) {
		struct kvs_receive rx;
		void *addr;

		assert_int_equal(rig_begin(&g, &rx, room, gen, 0, i / 2, i % 2,
					   0, 1, &addr),
				 0);
		memset(addr, (int)(i + 1), 1024);
		assert_int_equal(kvs_digest_add(&d, i * 1024, addr, 1024), 0);
		kvs_worker_receive_end(g.w, &rx, 0, 1024);
	}
	m.last = (struct kvs_msg_last){ .room = room,
					.generation = gen,
					.bytes = PAGE,
					.digest_kind = kind,
					.digest = kvs_digest_value(&d) ^ xor};
	kvs_worker_message(g.w, 100, &m);
	return gen;
}

/* checksum.kind: what arrived must be what was sent, or the room fails and
 * nothing else does; a sender that leaves its digest out breaks the protocol;
 * one that cannot compute any is counted. */
static void test_checksum(void **state)
{
	unsigned int pos = 0;
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	snprintf(g.set.checksum_kind, sizeof(g.set.checksum_kind), "crc32c");
	assert_int_equal(kvs_worker_session_add(g.w, 100, "p", 0,
						KVS_CAP_DRAIN_ACK |
							KVS_CAP_CRC32C),
			 0);
	gen = digest_room(1, 0, KVS_DIGEST_CRC32C, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	digest_room(2, 1, KVS_DIGEST_CRC32C, 0x100);
	assert_int_equal(rig_errno(&g, 1), EBADMSG);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_CHECKSUM], 1);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	assert_null(rig_find(&g, RIG_CLOSE, &pos));
	digest_room(3, 2, KVS_DIGEST_NONE, 0);
	pos = 0;
	assert_non_null(rig_find(&g, RIG_CLOSE, &pos));
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_RECEIVING);
	kvs_worker_session_lost(g.w, 100, -EPROTO, "protocol");
	assert_int_equal(g.w->stats.checksum_skipped, 0);
	rig_sessions(&g, 1);
	digest_room(4, 3, KVS_DIGEST_NONE, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_READY);
	assert_int_equal(g.w->stats.checksum_skipped, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 3, gen + 3, 0);
	rig_down(&g);
}

/* A model that keeps only state: one extent, however long the prompt. */
static void test_state_only(void **state)
{
	struct kvs_layer_buffer b = { KVS_BUFFER_MAMBA, 0, 4096, 3 };
	struct kvs_layout l = { .size = sizeof(l),
				.page_size = 4,
				.dtype = KVS_DTYPE_BF16,
				.n_buffers = 1,
				.buffers = &b };
	struct kvs_rank_slice all = { 0, 1 };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 100000,
				      .n_ranks = 1,
				      .ranks = &all };
	enum kvs_proto_error why;
	struct kvs_msg_chunk m = { .room = 7,
				   .generation = 1,
				   .kind = KVS_BUFFER_MAMBA,
				   .len = 3 * 4096 };
	struct kvs_receive rx = { 0 };
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
	kvs_worker_turn(g.w);
	assert_int_equal(kvs_worker_engine_add(g.w, RIG_ENGINE, &l), 0);
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_ADMITTED);
	rig_open(&g, 7, 1, 0);
	assert_int_equal(
		kvs_worker_receive_begin(g.w, 100, &m, &rx, &addr, &why), 0);
	assert_non_null(addr);
	kvs_worker_receive_end(g.w, &rx, 0, m.len);
	rig_last(&g, 7, 1, 0, m.len);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1, 0);
	rig_down(&g);
}

/* A room whose ranks do not cover each layer once is refused before it
 * exists. */
static void test_slices(void **state)
{
	struct kvs_rank_slice two[2] = { { 0, 1 }, { 0, 2 } };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1000,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 80,
				      .n_ranks = 2,
				      .ranks = two };

	(void)state;
	rig_up(&g, 64);
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	two[1].first_layer = 3;
	q.generation++;
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	two[1].first_layer = UINT32_MAX;
	two[1].n_layers = UINT32_MAX;
	q.generation++;
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	assert_int_equal(g.w->stats.admits[KVS_ADMIT_LAYOUT], 3);
	/* a zero-byte rank is fine: it must still open and say LAST */
	two[0] = (struct kvs_rank_slice){ 0, 2 };
	two[1] = (struct kvs_rank_slice){ 0, 0 };
	q.generation++;
	kvs_worker_admit(g.w, &q);
	rig_sessions(&g, 2);
	rig_open(&g, 7, q.generation, 0);
	rig_send_all(&g, 7, q.generation, 0, 1, 20);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	rig_open(&g, 7, q.generation, 1);
	rig_last(&g, 7, q.generation, 1, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 0, q.generation, 0);
	rig_down(&g);
}

/* Shutdown: before READY aborted, READY may finish, nothing new. */
static void test_shutdown(void **state)
{
	uint64_t ready, part;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	ready = rig_admit(&g, 1, 0, 10, 1);
	part = rig_admit(&g, 2, 1, 10, 1);
	rig_open(&g, 1, ready, 0);
	rig_open(&g, 2, part, 0);
	rig_send_all(&g, 1, ready, 0, 1, 10);
	kvs_worker_shutdown(g.w);
	assert_int_equal(rig_errno(&g, 1), ESHUTDOWN);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_admit(&g, 3, 2, 10, 1);
	assert_int_equal(rig_errno(&g, 2), ESHUTDOWN);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, ready, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, ready, 0);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole_life),
		cmocka_unit_test(test_bytes_in_place),
		cmocka_unit_test(test_fit_never_or_not_now),
		cmocka_unit_test(test_oversize_head),
		cmocka_unit_test(test_head_not_starved),
		cmocka_unit_test(test_abort_while_receiving),
		cmocka_unit_test(test_abort_in_each_state),
		cmocka_unit_test(test_engine_death),
		cmocka_unit_test(test_missing_bytes),
		cmocka_unit_test(test_last_overtakes),
		cmocka_unit_test(test_hostile_chunks),
		cmocka_unit_test(test_deadlines),
		cmocka_unit_test(test_require_ack),
		cmocka_unit_test(test_session_lost),
		cmocka_unit_test(test_open_refused),
		cmocka_unit_test(test_refuse_while_waiting),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_state_only),
		cmocka_unit_test(test_slices),
		cmocka_unit_test(test_shutdown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
