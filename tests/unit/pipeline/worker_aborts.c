/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about what is measured of an abort, which hold.timeout has to
 * outlast: the acknowledgement of a rank that had nothing under way is one
 * sample of the propagation, once; that of a rank of which a chunk ended after
 * the ABORT is none, and each such chunk, received, stopped or thrown away, is
 * one of what remained; whatever is asked about rooms of another generation,
 * or long ago, is none; a chunk that arrives is one call. The last failed
 * rooms are remembered with their errno, also when their generations are those
 * of one node. Virtual clock, no threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>

static struct rig g;

#define MS KVS_NSEC_PER_MSEC

static void answer(enum kvs_wire_type type, uint64_t gen, unsigned int rank)
{
	struct kvs_msg m = {
		.type = type,
		.abort = { .room = 7, .generation = gen, .rank = rank },
	};

	kvs_worker_message(g.w, 100 + rank, &m);
}

static void expect(const struct kvs_hist *h, uint64_t count, uint64_t sum)
{
	assert_int_equal(h->count, count);
	assert_int_equal(h->sum, sum);
}

static void test_abort(void **state)
{
	const struct kvs_worker_stats *st;
	struct kvs_receive under, late;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 3);
	st = &g.w->stats;
	gen = rig_admit(&g, 7, 0, 20, 3);
	/* layers are split evenly: the last two write, the first does not */
	for (unsigned int i = 0; i < 3; i++)
		rig_open(&g, 7, gen, i);
	assert_int_equal(rig_begin(&g, &under, 7, gen, 1, 0, 0, 0, 4, &addr),
			 0);
	rig_advance(&g, 3 * MS);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	expect(&st->abort_propagation, 0, 0);
	/* the one under way was told to stop */
	rig_advance(&g, 2 * MS);
	kvs_worker_receive_end(g.w, &under, -ECANCELED, 0);
	expect(&st->abort_remaining, 1, 2 * MS);
	kvs_worker_turn(g.w);
	/* another comes when the room is gone */
	rig_advance(&g, 1 * MS);
	assert_int_equal(rig_begin(&g, &late, 7, gen, 2, 0, 1, 0, 4, &addr), 0);
	assert_null(addr);
	rig_advance(&g, 4 * MS);
	/* this is no acknowledgement, and this one no answer of its own */
	answer(KVS_WIRE_ABORT_NAK, gen, 0);
	kvs_worker_message(g.w, 101,
			   &(struct kvs_msg){ .type = KVS_WIRE_ABORT_ACK,
					      .abort = { .room = 7,
							 .generation = gen,
							 .rank = 0 } });
	expect(&st->abort_propagation, 0, 0);
	answer(KVS_WIRE_ABORT_ACK, gen, 0);
	expect(&st->abort_propagation, 1, 7 * MS);
	answer(KVS_WIRE_ABORT_ACK, gen, 0);
	expect(&st->abort_propagation, 1, 7 * MS);
	kvs_worker_receive_end(g.w, &late, 0, 0);
	expect(&st->abort_remaining, 2, 9 * MS);
	/* neither of these had nothing under way */
	answer(KVS_WIRE_ABORT_ACK, gen, 1);
	answer(KVS_WIRE_ABORT_ACK, gen, 2);
	answer(KVS_WIRE_ABORT_ACK, gen + 1, 0);
	expect(&st->abort_propagation, 1, 7 * MS);
	expect(&st->call, 0, 0);
	rig_down(&g);
}

static void test_call(void **state)
{
	struct kvs_receive rx;
	uint64_t gen;
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	gen = rig_admit(&g, 7, 0, 20, 1);
	rig_open(&g, 7, gen, 0);
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 0, 4, &addr), 0);
	rig_advance(&g, 5 * MS);
	kvs_worker_receive_end(g.w, &rx, 0, rx.len);
	expect(&g.w->stats.call, 1, 5 * MS);
	/* what broke off is none */
	assert_int_equal(rig_begin(&g, &rx, 7, gen, 0, 0, 0, 4, 4, &addr), 0);
	kvs_worker_receive_end(g.w, &rx, -ECONNRESET, 1);
	expect(&g.w->stats.call, 1, 5 * MS);
	expect(&g.w->stats.abort_remaining, 0, 0);
	kvs_worker_turn(g.w);
	rig_down(&g);
}

static void test_table(void **state)
{
	static struct kvs_aborts a;
	unsigned int i, known = 0;
	uint64_t ns;

	(void)state;
	assert_int_equal(kvs_aborts_err(&a, 0, NULL), 0);
	assert_false(kvs_aborts_answer(&a, 0, 0, 5, &ns));
	/* generations of one node, as the daemon gives them out */
	for (i = 1; i <= KVS_ABORTS; i++)
		kvs_aborts_add(&a, (uint64_t)i << 5 | 3, (int)i,
			       i % 2 ? "odd" : "even", i);
	for (i = 1; i <= KVS_ABORTS; i++) {
		const char *why;
		int err = kvs_aborts_err(&a, (uint64_t)i << 5 | 3, &why);

		assert_true(!err || err == (int)i);
		assert_string_equal(why, !err ? "" : i % 2 ? "odd" : "even");
		known += err != 0;
	}
	/* of 256 at random into 256 places about 162 stay */
	assert_in_range(known, 120, KVS_ABORTS);
	assert_int_equal(kvs_aborts_err(&a, KVS_ABORTS << 5 | 3, NULL),
			 KVS_ABORTS);
	assert_false(kvs_aborts_answer(&a, KVS_ABORTS << 5 | 3, KVS_RANKS_MAX,
				       999, &ns));
	assert_false(kvs_aborts_chunk(&a, KVS_ABORTS << 5 | 3, KVS_RANKS_MAX,
				      999, &ns));
	assert_true(kvs_aborts_answer(&a, KVS_ABORTS << 5 | 3,
				      KVS_RANKS_MAX - 1, 999, &ns));
	assert_int_equal(ns, 999 - KVS_ABORTS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_call),
		cmocka_unit_test(test_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
