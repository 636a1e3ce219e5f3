/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: while a hold lasts, a rank whose acknowledgement is late is asked
 * again at hold.reask, in the same generation, until it answers, can no
 * longer answer, or the hold is over, and nobody else is; a hold is listed
 * with what it waits for and how long; a hold that is there when the daemon ends
 * is told as abandoned, and no proof of it is told or counted. Virtual clock, no
 * threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <string.h>

#include "lib/log.h"

static struct rig g;

#define S KVS_NSEC_PER_SEC
#define PAGE (4 * 1024u)

/* ABORTs of @gen sent to @session so far. */
static unsigned int aborts(uint64_t session, uint64_t gen)
{
	const struct rig_event *e;
	unsigned int pos = 0, n = 0;

	while ((e = rig_find(&g, RIG_PEER, &pos)))
		n += e->session == session && e->msg.type == KVS_WIRE_ABORT &&
		     e->msg.abort.generation == gen && e->msg.abort.room == 7 &&
		     e->msg.abort.rank == session - 100 &&
		     e->msg.abort.err == ECANCELED;
	return n;
}

static uint64_t opened(unsigned int ranks)
{
	uint64_t gen = rig_admit(&g, 7, 0, 20, ranks);

	for (unsigned int i = 0; i < ranks; i++)
		rig_open(&g, 7, gen, i);
	return gen;
}

static void acknowledge(uint64_t gen, unsigned int rank)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_ABORT_ACK,
		.abort = { .room = 7, .generation = gen, .rank = rank },
	};

	kvs_worker_message(g.w, 100 + rank, &m);
	kvs_worker_turn(g.w);
}

/* A rank whose acknowledgement is late is asked again, in the same words,
 * until it answers or can no longer answer; the answers to the repeated ones
 * are no stray ones. */
static void test_ask_again(void **state)
{
	struct kvs_msg nak = { .type = KVS_WIRE_ABORT_NAK };
	struct kvs_receive rx;
	uint64_t gen, every, *ign;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 3);
	ign = g.w->stats.drains.ack_ignored;
	every = g.set.hold_reask;
	assert_int_equal(every, 5 * S);
	g.set.hold_require_ack = true;
	gen = opened(3);
	/* one is in the middle of a chunk */
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 2, 0, 1, 0, 4, &addr), 0);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	assert_int_equal(aborts(101, gen), 1);
	rig_advance(&g, every - 1);
	assert_int_equal(aborts(101, gen), 1);
	acknowledge(gen, 0);
	rig_advance(&g, 1);
	assert_int_equal(aborts(100, gen), 1); /* it has answered */
	assert_int_equal(aborts(101, gen), 2);
	assert_int_equal(aborts(102, gen), 2);
	/* that one says that its answer will not come: not asked any more,
	 * though the chunk is still to end */
	nak.abort = (struct kvs_msg_abort){
		.room = 7, .generation = gen, .rank = 2, .err = EIO
	};
	kvs_worker_message(g.w, 102, &nak);
	rig_advance(&g, every);
	assert_int_equal(aborts(101, gen), 3);
	assert_int_equal(aborts(102, gen), 2);
	kvs_worker_receive_end(g.w, &rx, -ECANCELED, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
	acknowledge(gen, 1);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	/* it answers each of the three; one counted, and none is a stray */
	acknowledge(gen, 1);
	acknowledge(gen, 1);
	for (int i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		assert_int_equal(ign[i], 0);
	acknowledge(gen, 1);
	kvs_worker_message(g.w, 102, &nak); /* of the repeated one */
	acknowledge(gen, 0);
	assert_int_equal(ign[KVS_ACK_IGNORED_UNKNOWN_ROOM], 2);
	rig_advance(&g, 10 * every);
	assert_int_equal(aborts(101, gen), 3);
	/* while others are awaited, too */
	gen = opened(2);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	rig_advance(&g, every);
	acknowledge(gen, 0);
	acknowledge(gen, 0);
	assert_int_equal(ign[KVS_ACK_IGNORED_DUPLICATE], 0);
	acknowledge(gen, 0);
	assert_int_equal(ign[KVS_ACK_IGNORED_DUPLICATE], 1);
	/* and no longer than the hold lasts */
	rig_advance(&g, g.set.hold_timeout - every);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
	rig_advance(&g, 10 * every);
	assert_int_equal(aborts(100, gen), 2);
	rig_down(&g);
}

static void test_ask_once(void **state)
{
	struct kvs_receive rx;
	uint64_t gen;
	void *addr;

	(void)state;
	for (int how = 0; how < 2; how++) {
		rig_up(&g, 64);
		rig_sessions(&g, 1);
		/* ranks are no parties; or the setting says never */
		g.set.hold_require_ack = how == 1;
		g.set.hold_reask = how == 1 ? 0 : g.set.hold_reask;
		gen = rig_admit(&g, 7, 0, 20, 1);
		rig_open(&g, 7, gen, 0);
		assert_int_equal(
			rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 4, &addr), 0);
		rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
		/* nothing is planned but the end of the hold */
		assert_int_equal(kvs_worker_next(g.w),
				 kvs_clock_now(g.w->clock) +
					 g.set.hold_timeout);
		rig_advance(&g, g.set.hold_timeout - 1);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 20 * PAGE);
		assert_int_equal(aborts(100, gen), 1);
		acknowledge(gen, 0);
		kvs_worker_receive_end(g.w, &rx, -ECANCELED, 0);
		kvs_worker_turn(g.w);
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD), 0);
		rig_down(&g);
	}
}

/* What a hold waits for is told as it is. */
static void test_holds(void **state)
{
	struct kvs_hold_info v[4];
	struct kvs_receive rx;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	g.set.hold_require_ack = true;
	assert_int_equal(kvs_worker_holds(g.w, v, 4), 0);
	gen = rig_admit(&g, 7, 0, 20, 2);
	rig_open(&g, 7, gen, 0);
	rig_open(&g, 7, gen, 1);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 4, &addr), 0);
	assert_int_equal(kvs_worker_holds(g.w, v, 4), 0); /* not held */
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	rig_advance(&g, S);
	acknowledge(gen, 0);
	assert_int_equal(kvs_worker_holds(g.w, NULL, 0), 1);
	assert_int_equal(kvs_worker_holds(g.w, v, 4), 1);
	assert_int_equal(v[0].room, 7);
	assert_int_equal(v[0].generation, gen);
	assert_int_equal(v[0].bytes, 20 * PAGE);
	assert_int_equal(v[0].age, S);
	assert_string_equal(v[0].cause, "engine_abort");
	assert_string_equal(v[0].state, "draining");
	assert_int_equal(v[0].waits[KVS_PARTY_RANK], 1);
	assert_int_equal(v[0].n_ranks, 1);
	assert_int_equal(v[0].ranks[0], 1);
	assert_int_equal(v[0].ranks_mute, 0);
	assert_int_equal(v[0].waits[KVS_PARTY_RECEIVE], 1);
	assert_int_equal(v[0].waits[KVS_PARTY_COPY], 0);
	assert_int_equal(v[0].revoke_in, g.set.hold_timeout - S);
	assert_int_equal(v[0].ask_in, g.set.hold_reask - S);
	acknowledge(gen, 1);
	kvs_worker_receive_end(g.w, &rx, -ECANCELED, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(kvs_worker_holds(g.w, v, 4), 0);
	/* a copy: nobody to ask, and after the timeout no time any more */
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	rig_send_all(&g, 7, gen, 0, 1, 20);
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	rig_advance(&g, g.set.hold_timeout);
	assert_int_equal(kvs_worker_holds(g.w, v, 4), 1);
	assert_string_equal(v[0].state, "quarantined");
	assert_int_equal(v[0].waits[KVS_PARTY_COPY], 1);
	assert_int_equal(v[0].engine, RIG_ENGINE);
	assert_true(v[0].revoke_in == KVS_TIME_NEVER);
	assert_true(v[0].ask_in == KVS_TIME_NEVER);
	rig_packet(&g, KVS_PACKET_COPY_OVER, 0, gen, 0);
	assert_int_equal(kvs_worker_holds(g.w, v, 4), 0);
	rig_down(&g);
}

static unsigned int told_abandoned, told_over;

static void log_line(enum kvs_log_level level, const char *line, void *arg)
{
	(void)level;
	(void)arg;
	told_abandoned += strstr(line, " abandoned: ") != NULL;
	told_over += strstr(line, " released: ") || strstr(line, " party ");
}

/* The copy of an engine that lives may go on reading after the daemon. */
static void test_abandoned(void **state)
{
	uint64_t gen, n = 0;

	(void)state;
	for (int late = 0; late < 2; late++) {
		rig_up(&g, 64);
		rig_sessions(&g, 1);
		gen = rig_admit(&g, 7, 0, 20, 1);
		rig_open(&g, 7, gen, 0);
		rig_send_all(&g, 7, gen, 0, 1, 20);
		rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
		if (late) {
			rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
			rig_advance(&g, g.set.hold_timeout);
			assert_int_equal(rig_bytes(&g, KVS_EXTENT_QUARANTINED),
					 20 * PAGE);
		}
		told_abandoned = told_over = 0;
		kvs_log_set_level(KVS_LOG_INFO);
		kvs_log_set_sink(log_line, NULL);
		kvs_worker_abandon(g.w);
		kvs_log_set_sink(NULL, NULL);
		kvs_log_set_level(KVS_LOG_ERR);
		assert_int_equal(told_abandoned, 1);
		assert_int_equal(told_over, 0);
		n = 0;
		for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
			for (int p = 0; p < KVS_PROOF_MAX; p++)
				n += g.w->stats.drains.total[o][p];
		/* becoming stuck was counted when it was */
		assert_int_equal(n, late);
		rig_down(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ask_again),
		cmocka_unit_test(test_ask_once),
		cmocka_unit_test(test_holds),
		cmocka_unit_test(test_abandoned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
