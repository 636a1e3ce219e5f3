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
	rig_last(&g, 7, gen, 0, 0);
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
	/* once more what came already: it lands nowhere and changes nothing */
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 1, 1);
	rig_open(&g, 7, gen, 0);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 1, &addr), 0);
	kvs_worker_receive_end(g.w, &rx, 0, PAGE / 4);
	rig_last(&g, 7, gen, 0, PAGE);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 1, &addr), 0);
	assert_null(addr);
	assert_int_equal(g.w->stats.chunks_repeated, 1);
	pos = 0;
	assert_null(rig_find(&g, RIG_CLOSE, &pos));
	for (unsigned int i = 1; i < 4; i++) {
		assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, i % 2, i / 2, 0,
					   1, &addr),
				 0);
		assert_non_null(addr);
		kvs_worker_receive_end(g.w, &rx, 0, PAGE / 4);
	}
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
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
	 * first is still under way, and is counted; a part of them and more
	 * is a lie */
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 2, 2, &addr), 0);
	assert_non_null(addr);
	{
		struct kvs_receive twice;
		void *addr2;

		assert_int_equal(rig_begin(&g, &twice, 7, gen, 0, 0, 0, 3, 1,
					   &addr2),
				 0);
		assert_null(addr2);
		assert_int_equal(g.w->stats.chunks_repeated, 1);
		assert_int_equal(rig_begin(&g, &twice, 7, gen, 0, 0, 0, 3, 2,
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
		cmocka_unit_test(test_abort_while_receiving),
		cmocka_unit_test(test_abort_in_each_state),
		cmocka_unit_test(test_engine_death),
		cmocka_unit_test(test_missing_bytes),
		cmocka_unit_test(test_last_overtakes),
		cmocka_unit_test(test_hostile_chunks),
		cmocka_unit_test(test_deadlines),
		cmocka_unit_test(test_require_ack),
		cmocka_unit_test(test_session_lost),
		cmocka_unit_test(test_shutdown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
