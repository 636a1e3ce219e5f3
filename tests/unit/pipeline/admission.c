/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: memory of a room that nobody has opened goes to one that is being
 * sent, the latest loan first and no more than is needed, and what the engine
 * was told only grows; a peer's rooms and bytes are limited, held ones
 * included, and nobody else's are; a health check has its memory whatever the
 * load, and takes nothing from a room that needs the whole pool; "not now"
 * says when to ask again. Virtual clock, no threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct rig g;

#define PAGE (4 * 1024u)
#define S KVS_NSEC_PER_SEC

static enum kvs_room_state state_of(uint64_t generation)
{
	const struct kvs_room *r = kvs_u64map_get(&g.w->rooms, generation);

	assert_non_null(r);
	return r->state;
}

static void end(uint32_t slot, uint64_t generation)
{
	rig_packet(&g, KVS_PACKET_ABORT, slot, generation, 0);
	kvs_worker_turn(g.w);
}

/* Why the slot's room failed. */
static const struct kvs_packet_failed *failure(uint32_t slot)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    g.log[i].failed.h.type == KVS_PACKET_FAILED)
			return &g.log[i].failed;
	fail_msg("slot %u did not fail", slot);
	return NULL;
}

static uint64_t admit_as(const char *peer, uint64_t room, uint32_t slot,
			 unsigned int pages, bool health)
{
	struct kvs_rank_slice all = { 0, 2 };
	struct kvs_room_request q = {
		.room = room,
		.generation = ++g.generation,
		.engine = RIG_ENGINE,
		.slot = slot,
		.tokens = pages * 4u,
		.health = health,
		.n_ranks = 1,
		.ranks = &all,
	};

	snprintf(q.peer, sizeof(q.peer), "%s", peer);
	kvs_worker_admit(g.w, &q);
	return q.generation;
}

/* ADMITTED -> WAITING -> ADMITTED -> RECEIVING */
static void loan_is_called_in(void **state)
{
	unsigned int words = 0, pos = 0;
	const struct rig_event *e;
	uint64_t a, b;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	a = rig_admit(&g, 1, 0, 64, 1);
	assert_int_equal(state_of(a), KVS_ROOM_ADMITTED);
	b = rig_admit(&g, 2, 1, 64, 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_WAITING);
	rig_open(&g, 2, b, 0);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_RECEIVING);
	assert_int_equal(state_of(a), KVS_ROOM_WAITING);
	assert_int_equal(g.w->stats.loans_called, 1);
	/* no drain of it is counted: it was granted to nobody, and goes on */
	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (int p = 0; p < KVS_PROOF_MAX; p++)
			assert_int_equal(g.w->stats.drains.total[o][p], 0);
	/* b's bytes have a writer: a waits for them now */
	rig_open(&g, 1, a, 0);
	assert_int_equal(state_of(a), KVS_ROOM_WAITING);
	assert_int_equal(state_of(b), KVS_ROOM_RECEIVING);
	rig_send_all(&g, 2, b, 0, 1, 64);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, b, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, b, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_DONE);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	assert_non_null(rig_msg(&g, 100, KVS_WIRE_GRANT));
	while ((e = rig_find(&g, RIG_WORD, &pos))) {
		if (e->slot)
			continue;
		assert_true(KVS_WORD_STATUS(e->word) >= words);
		words = KVS_WORD_STATUS(e->word);
	}
	end(0, a);
	rig_down(&g);
}

static void latest_first_and_no_more(void **state)
{
	uint64_t v[3], d;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	for (uint32_t i = 0; i < 3; i++)
		v[i] = rig_admit(&g, 1 + i, i, 20, 1);
	d = rig_admit(&g, 10, 3, 24, 1);
	rig_open(&g, 10, d, 0);
	assert_int_equal(state_of(d), KVS_ROOM_RECEIVING);
	assert_int_equal(state_of(v[2]), KVS_ROOM_WAITING);
	assert_int_equal(state_of(v[1]), KVS_ROOM_ADMITTED);
	assert_int_equal(state_of(v[0]), KVS_ROOM_ADMITTED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 0);
	/* it gets memory again as soon as there is some, ahead of nobody */
	end(3, d);
	assert_int_equal(state_of(v[2]), KVS_ROOM_ADMITTED);
	for (uint32_t i = 0; i < 3; i++)
		end(i, v[i]);
	assert_int_equal(g.w->admission.loan_bytes, 0);
	rig_down(&g);
}

/* A loan is not called in where that does not help. */
static void not_in_vain(void **state)
{
	uint64_t a, b, c;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	a = rig_admit(&g, 1, 0, 56, 1);
	rig_open(&g, 1, a, 0);
	b = rig_admit(&g, 2, 1, 4, 1);
	c = rig_admit(&g, 3, 2, 9, 1);
	rig_open(&g, 3, c, 0);
	assert_int_equal(state_of(c), KVS_ROOM_WAITING);
	assert_int_equal(state_of(b), KVS_ROOM_ADMITTED);
	assert_int_equal(g.w->stats.loans_called, 0);
	/* what has a writer is never touched */
	rig_open(&g, 2, b, 0);
	assert_int_equal(state_of(b), KVS_ROOM_RECEIVING);
	end(0, a);
	assert_int_equal(state_of(c), KVS_ROOM_RECEIVING);
	end(1, b);
	end(2, c);
	rig_down(&g);
}

/* An engine that admits far more than is sent: those that are sent never
 * wait. */
static void unopened_flood(void **state)
{
	uint64_t v[200];

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	for (uint32_t i = 0; i < KVS_ARRAY_SIZE(v); i++)
		v[i] = rig_admit(&g, 1 + i, i, 16, 1);
	for (uint32_t i = KVS_ARRAY_SIZE(v); i-- > 150;) {
		g.n = 0;
		rig_open(&g, 1 + i, v[i], 0);
		assert_int_equal(rig_status(&g, i), KVS_STATUS_RECEIVING);
		rig_send_all(&g, 1 + i, v[i], 0, 1, 16);
		rig_packet(&g, KVS_PACKET_COMMIT, i, v[i], 0);
		rig_packet(&g, KVS_PACKET_COMMITTED, i, v[i], 0);
		assert_int_equal(rig_status(&g, i), KVS_STATUS_DONE);
		rig_advance(&g, S);
	}
	assert_int_equal(g.w->stats.rooms_done, 50);
	/* the rest end by the limits of each: nobody opened them */
	g.n = 0;
	rig_advance(&g, 61 * S);
	rig_advance(&g, 61 * S);
	assert_int_equal(g.w->rooms.n, 0);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_ADMISSION_TIMEOUT] +
				 g.w->stats.failures[KVS_CAUSE_OPEN_TIMEOUT],
			 150);
	rig_down(&g);
}

/* The limits of a room whose loan was called in. */
static void deadlines_go_on(void **state)
{
	uint64_t a, b, c;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.open_timeout = 20 * S;
	g.set.admission_timeout = 50 * S;
	a = rig_admit(&g, 1, 0, 32, 1);
	b = rig_admit(&g, 2, 1, 32, 1);
	c = rig_admit(&g, 3, 2, 64, 1);
	rig_open(&g, 3, c, 0);
	assert_int_equal(state_of(c), KVS_ROOM_RECEIVING);
	rig_advance(&g, 19 * S);
	rig_open(&g, 1, a, 0);
	/* b is not opened within open.timeout of its first memory */
	rig_advance(&g, S);
	assert_int_equal(rig_errno(&g, 1), ETIME);
	assert_non_null(strstr(failure(1)->text, "open.timeout"));
	/* a is: it waits for memory now, for as long as any */
	rig_advance(&g, 48 * S);
	assert_int_equal(state_of(a), KVS_ROOM_WAITING);
	rig_advance(&g, S);
	assert_int_equal(rig_errno(&g, 0), ETIME);
	assert_non_null(strstr(failure(0)->text, "admission.timeout"));
	(void)b;
	end(2, c);
	rig_down(&g);
}

static void peers_are_limited(void **state)
{
	struct kvs_receive rx;
	uint64_t a, b, other;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.peer_rooms = 2;
	a = rig_admit(&g, 1, 0, 4, 1);
	b = rig_admit(&g, 2, 1, 4, 1);
	rig_admit(&g, 3, 2, 4, 1);
	assert_int_equal(rig_errno(&g, 2), EAGAIN);
	assert_int_equal(failure(2)->class, 503);
	assert_in_range(failure(2)->retry_ms, 1, 60000);
	assert_string_equal(failure(2)->text,
			    "peer p has 2 rooms, admission.peer_rooms is 2");
	assert_int_equal(g.w->stats.admits[KVS_ADMIT_PEER_LIMIT], 1);
	other = admit_as("q", 4, 3, 4, false);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);

	/* held memory is the peer's until nobody can reach it */
	rig_open(&g, 2, b, 0);
	assert_int_equal(rig_begin(&g, &rx, 2, b, 0, 0, 0, 0, 1, &addr), 0);
	end(1, b);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 4 * PAGE);
	rig_admit(&g, 5, 4, 4, 1);
	assert_int_equal(rig_errno(&g, 4), EAGAIN);
	kvs_worker_receive_end(g.w, &rx, -ECANCELED, 0);
	kvs_worker_turn(g.w);
	b = rig_admit(&g, 5, 4, 4, 1);
	assert_int_equal(rig_status(&g, 4), KVS_STATUS_ADMITTED);
	end(4, b);

	g.set.peer_rooms = 100;
	g.set.peer_bytes = 10 * PAGE;
	rig_admit(&g, 6, 5, 11, 1);
	assert_int_equal(rig_errno(&g, 5), E2BIG);
	assert_int_equal(failure(5)->class, 400);
	assert_int_equal(failure(5)->retry_ms, 0);
	assert_non_null(strstr(failure(5)->text, "admission.peer_bytes"));
	rig_admit(&g, 7, 5, 7, 1);
	assert_int_equal(rig_errno(&g, 5), EAGAIN);
	assert_string_equal(failure(5)->text,
			    "peer p has 16384 bytes and asks for 28672 more, "
			    "admission.peer_bytes is 40960");
	b = rig_admit(&g, 8, 5, 6, 1);
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_ADMITTED);
	assert_int_equal(g.w->admission.peers.n, 2);
	end(5, b);
	end(0, a);
	end(3, other);
	assert_int_equal(g.w->admission.peers.n, 0);
	rig_down(&g);
}

/* sgl-project/sglang#31205: a probe each second never fails, whatever waits,
 * is sent or is held. */
static void health_is_never_starved(void **state)
{
	uint64_t load[4], big, h, extra;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	/* a sixteenth: 4 pages, from the first probe on */
	h = admit_as("p", 1, 0, 1, true);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_RESERVED), 4 * PAGE);
	end(0, h);
	assert_int_equal(g.w->admission.reserve.bytes, 4 * PAGE);

	/* everything else is taken, by writers that may not be stopped, and
	 * more waits; one room is far too large */
	for (uint32_t i = 0; i < 4; i++) {
		load[i] = rig_admit(&g, 10 + i, 10 + i, 15, 1);
		rig_open(&g, 10 + i, load[i], 0);
		assert_int_equal(rig_status(&g, 10 + i), KVS_STATUS_RECEIVING);
	}
	big = rig_admit(&g, 20, 20, 63, 1);
	rig_open(&g, 20, big, 0);
	for (uint32_t i = 0; i < 20; i++) {
		extra = rig_admit(&g, 30 + i, 30 + i, 3, 1);
		rig_open(&g, 30 + i, extra, 0);
		assert_int_equal(rig_status(&g, 30 + i), KVS_STATUS_WAITING);
	}
	for (unsigned int i = 0; i < 40; i++) {
		h = admit_as("p", 1, 0, 1 + i % 4, true);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_ADMITTED);
		rig_open(&g, 1, h, 0);
		rig_send_all(&g, 1, h, 0, 1, 1 + i % 4);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
		rig_packet(&g, KVS_PACKET_COMMIT, 0, h, 0);
		rig_packet(&g, KVS_PACKET_COMMITTED, 0, h, 0);
		rig_advance(&g, S);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_DONE);
		g.n = 0;
	}
	assert_int_equal(state_of(big), KVS_ROOM_WAITING);
	assert_int_equal(g.w->admission.reserve.bytes, 4 * PAGE);
	/* two at a time share it; a third waits for one of them */
	h = admit_as("p", 1, 0, 2, true);
	extra = admit_as("p", 2, 1, 2, true);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	admit_as("p", 3, 2, 1, true);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_WAITING);
	end(0, h);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	end(2, extra + 1);
	end(1, extra);
	/* what does not fit it is no health check */
	admit_as("p", 4, 3, 5, true);
	assert_int_equal(rig_errno(&g, 3), E2BIG);
	assert_non_null(strstr(failure(3)->text, "admission.health_reserve"));

	for (uint32_t i = 0; i < 4; i++)
		end(10 + i, load[i]);
	assert_int_equal(state_of(big), KVS_ROOM_RECEIVING);
	end(20, big);
	for (uint32_t i = 0; i < 20; i++)
		end(30 + i, big + 1 + i);
	assert_int_equal(g.w->rooms.n, 0);
	/* and one that needs the whole pool still fits */
	big = rig_admit(&g, 50, 50, 64, 1);
	assert_int_equal(rig_status(&g, 50), KVS_STATUS_ADMITTED);
	end(50, big);
	assert_int_equal(g.w->admission.reserve.bytes, 4 * PAGE);
	/* a reload takes it away */
	g.set.health_reserve = 0;
	g.w->released = true;
	rig_down(&g);
}

/* A health check says that the path works, not that its bytes are right. */
static void health_skips_the_checksum(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAST };
	uint64_t h;

	(void)state;
	rig_up(&g, 64);
	g.set.health_reserve = 0;
	snprintf(g.set.checksum_kind, sizeof(g.set.checksum_kind), "crc32c");
	assert_int_equal(kvs_worker_session_add(g.w, 100, "p", 0,
						KVS_CAP_DRAIN_ACK |
							KVS_CAP_CRC32C),
			 0);
	h = admit_as("p", 1, 0, 1, true);
	rig_open(&g, 1, h, 0);
	for (unsigned int i = 0; i < 4; i++) {
		struct kvs_receive rx;
		void *addr;

		assert_int_equal(rig_begin(&g, &rx, 1, h, 0, i / 2, i % 2, 0, 1,
					   &addr),
				 0);
		kvs_worker_receive_end(g.w, &rx, 0, 1024);
	}
	m.last = (struct kvs_msg_last){ .room = 1,
					.generation = h,
					.bytes = PAGE,
					.digest_kind = KVS_DIGEST_CRC32C,
					.digest = 0xdead };
	kvs_worker_message(g.w, 100, &m);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	assert_int_equal(g.w->stats.checksum_skipped, 0);
	end(0, h);
	rig_down(&g);
}

/* What waits and what is asked for, over what came back: nothing of it is the
 * device's. */
static void when_to_ask_again(void **state)
{
	uint64_t a, w[2];

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	g.set.admission_queue = 2;
	/* nothing came back yet: a second */
	assert_int_equal(kvs_admission_retry(g.w, 64 * PAGE), 1000);
	/* 8 pages a second for ten seconds */
	for (unsigned int i = 0; i < 10; i++) {
		a = rig_admit(&g, 1, 0, 8, 1);
		rig_advance(&g, S);
		end(0, a);
	}
	a = rig_admit(&g, 1, 0, 64, 1);
	rig_open(&g, 1, a, 0);
	for (uint32_t i = 0; i < 2; i++)
		w[i] = rig_admit(&g, 2 + i, 1 + i, 16, 1);
	g.n = 0;
	rig_admit(&g, 4, 3, 8, 1);
	assert_int_equal(failure(3)->err, EAGAIN);
	assert_int_equal(failure(3)->class, 503);
	/* 40 pages are in front of it or it: five seconds, as an estimate */
	assert_in_range(failure(3)->retry_ms, 4000, 7000);
	/* never longer than one would have waited anyway */
	g.set.admission_timeout = 2 * S;
	rig_admit(&g, 5, 3, 8, 1);
	assert_int_equal(failure(3)->retry_ms, 2000);
	for (uint32_t i = 0; i < 2; i++)
		end(1 + i, w[i]);
	assert_int_equal(g.w->admission.waiting_bytes, 0);
	end(0, a);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loan_is_called_in),
		cmocka_unit_test(latest_first_and_no_more),
		cmocka_unit_test(not_in_vain),
		cmocka_unit_test(unopened_flood),
		cmocka_unit_test(deadlines_go_on),
		cmocka_unit_test(peers_are_limited),
		cmocka_unit_test(health_is_never_starved),
		cmocka_unit_test(health_skips_the_checksum),
		cmocka_unit_test(when_to_ask_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
