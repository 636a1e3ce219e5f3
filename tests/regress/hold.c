/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, with hold.require_ack = yes, which makes ranks on TCP what they are
 * with one-sided writes: memory of an aborted room comes back when every rank
 * that was granted has acknowledged, each counted once and only for its own
 * room, rank and generation (sgl-project/sglang#24527); ranks that send
 * nothing are asked too; a negative answer, a lost connection or a rank that
 * cannot answer is revoked at once and one that keeps silent at hold.timeout,
 * not before; a room that succeeds asks nobody.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u /* of a room */
#define ROOM_BYTES (2 * PAGES * PS_PAGE)
#define N 3u /* ranks; the last has no layer */

static struct rig g[1];
static struct pe e[1];
static struct ps p[N];
static struct ps_room w[N];
static struct pe_room r[1];

/* Three ranks of two layers: one of them gets none. */
static uint32_t zero_rank(void)
{
	for (uint32_t i = 0; i < N; i++)
		if (!w[i].grant.n_layers)
			return i;
	fail_msg("every rank has a layer");
	return 0;
}

static void start(const char *hold)
{
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", hold);
	/* ranks here say that nothing came unasked, on slow machines too */
	rig_set(g, "hold.reask", "0");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_two_layers);
	for (uint32_t i = 0; i < N; i++)
		ps_up(&p[i], g->port, "p", i, N, &ps_two_layers);
}

static void stop(void)
{
	for (uint32_t i = 0; i < N; i++) {
		ps_room_fini(&w[i]);
		ps_down(&p[i]);
	}
	pe_down(e);
	rig_down(g);
}

/* Granted to every rank; those with bytes have sent some. */
static void receive(uint64_t room)
{
	pe_admit(e, r, 0, room, PAGES * PS_TOKENS, N);
	for (uint32_t i = 0; i < N; i++) {
		ps_room_fini(&w[i]);
		assert_int_equal(ps_open(&p[i], room, PAGES * PS_TOKENS), 0);
		ps_granted(&p[i], &w[i], room, 2 * PS_PAGE);
		if (w[i].n_chunks)
			assert_true(ps_send_part(&p[i], 0, &w[i], 0, 0, 0) > 0);
	}
	pe_wait(e, r, KVS_STATUS_RECEIVING);
	rig_wait(g, rig_parties(g, room) == N);
}

static void aborted(uint64_t room)
{
	struct kvs_msg m;

	pe_abort(e, r);
	for (uint32_t i = 0; i < N; i++) {
		ps_expect(&p[i], KVS_WIRE_ABORT, &m);
		assert_int_equal(m.abort.room, room);
		assert_int_equal(m.abort.rank, i);
		assert_int_equal(m.abort.generation, r->generation);
	}
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	assert_int_equal(g->snap->workers[0].rooms_held, 1);
	assert_true(rig_room_in(g, room, "draining"));
}

static void answer(uint32_t rank, enum kvs_wire_type type, uint64_t room,
		   uint64_t generation)
{
	assert_int_equal(ps_answer(&p[rank], type, room, generation), 0);
	ps_quiet(&p[rank]);
}

static uint64_t ignored(void)
{
	uint64_t n = 0;

	for (int i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		n += rig_acks_ignored(g, i);
	return n;
}

static void every_rank_once(void **state)
{
	uint32_t zero;

	(void)state;
	start("60s");
	receive(1);
	zero = zero_rank();
	aborted(1);
	/* two, and one of them over and over */
	for (uint32_t i = 0; i < N; i++)
		if (i != zero)
			answer(i, KVS_WIRE_ABORT_ACK, 1, r->generation);
	for (int i = 0; i < 5; i++)
		answer((zero + 1) % N, KVS_WIRE_ABORT_ACK, 1, r->generation);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_DUPLICATE) == 5);
	assert_int_equal(rig_parties(g, 1), 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	answer(zero, KVS_WIRE_ABORT_ACK, 1, r->generation);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
				    KVS_PROOF_ALL_ACKNOWLEDGED),
			 1);
	assert_int_equal(ignored(), 5);
	stop();
}

static void only_true_ones(void **state)
{
	struct ps other;

	(void)state;
	start("60s");
	ps_up(&other, g->port, "q", 0, 1, &ps_two_layers);
	receive(1);
	/* before anybody asked */
	answer(0, KVS_WIRE_ABORT_ACK, 1, r->generation);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_NOT_ARMED) == 1);
	aborted(1);
	/* of another room, of another generation */
	answer(0, KVS_WIRE_ABORT_ACK, 2, r->generation);
	answer(0, KVS_WIRE_ABORT_ACK, 1, r->generation + 64);
	answer(0, KVS_WIRE_ABORT_ACK, 1, r->generation + 32);
	rig_wait(g, ignored() == 4);
	/* of another rank, in its name */
	p[0].rank = 1;
	answer(0, KVS_WIRE_ABORT_ACK, 1, r->generation);
	p[0].rank = 0;
	rig_wait(g, ignored() == 5);
	/* of another peer's rank of that number */
	assert_int_equal(
		ps_answer(&other, KVS_WIRE_ABORT_ACK, 1, r->generation), 0);
	rig_wait(g, ignored() == 6);
	assert_int_equal(rig_parties(g, 1), N);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	for (uint32_t i = 0; i < N; i++)
		answer(i, KVS_WIRE_ABORT_ACK, 1, r->generation);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(ignored(), 6);
	ps_down(&other);
	stop();
}

/* A NAK, a lost connection: that rank is closed out now, the others are
 * still waited for. */
static void without_an_answer_at_once(void **state)
{
	(void)state;
	for (int how = 0; how < 3; how++) {
		start("60s");
		receive(1);
		if (how == 2) /* it was lost before */
			ps_die(&p[0]);
		if (how == 2) {
			pe_wait_failed(e, r, ECONNRESET);
			rig_wait(g, rig_parties(g, 1) == N - 1);
		} else {
			aborted(1);
			if (how == 0)
				answer(0, KVS_WIRE_ABORT_NAK, 1, r->generation);
			else
				ps_die(&p[0]);
			rig_wait(g, rig_parties(g, 1) == N - 1);
		}
		assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
		for (uint32_t i = 1; i < N; i++)
			assert_int_equal(ps_answer(&p[i], KVS_WIRE_ABORT_ACK, 1,
						   r->generation),
					 0);
		rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
		assert_int_equal(rig_drains(g, KVS_DRAIN_REVOKED,
					    KVS_PROOF_ALL_ACKNOWLEDGED),
				 1);
		stop();
	}
}

static void silent_until_the_timeout(void **state)
{
	uint64_t began, took;

	(void)state;
	start("300ms");
	receive(1);
	/* one is even in the middle of a chunk */
	if (w[1].n_chunks > 1)
		assert_true(ps_send_part(&p[1], 0, &w[1], 1, 0, 2000) > 0);
	rig_wait(g, rig_parties(g, 1) == N + 1);
	began = kvs_clock_now(&kvs_clock_real);
	aborted(1);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	took = kvs_clock_now(&kvs_clock_real) - began;
	assert_true(took >= 300 * KVS_NSEC_PER_MSEC);
	assert_int_equal(rig_drains(g, KVS_DRAIN_REVOKED,
				    KVS_PROOF_GRANT_INVALIDATED),
			 1);
	/* too late: nothing to count it for */
	answer(0, KVS_WIRE_ABORT_ACK, 1, r->generation);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_UNKNOWN_ROOM) == 1);
	/* the connection is in step: what is left of the chunk, and a room */
	assert_true(ps_send_part(&p[1], 0, &w[1], 1, 2000, 0) > 0);
	receive(2);
	stop();
}

static void cannot_acknowledge(void **state)
{
	(void)state;
	start("60s");
	ps_down(&p[0]);
	rig_wait(g, g->snap->sessions == N - 1);
	ps_init(&p[0], g->port, "p", 0, N, &ps_two_layers);
	p[0].caps = KVS_CAP_GENERATION;
	assert_int_equal(ps_hello(&p[0]), 0);
	assert_int_equal(ps_layout(&p[0], NULL, 0), 0);
	assert_int_equal(ps_data(&p[0]), 0);
	receive(1);
	pe_abort(e, r);
	rig_wait(g, rig_parties(g, 1) == N - 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	for (uint32_t i = 1; i < N; i++)
		assert_int_equal(ps_answer(&p[i], KVS_WIRE_ABORT_ACK, 1,
					   r->generation),
				 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	stop();
}

static void success_asks_nobody(void **state)
{
	struct kvs_msg m;

	(void)state;
	start("60s");
	receive(1);
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t c = 1; c < w[i].n_chunks; c++)
			assert_true(ps_send_part(&p[i], 0, &w[i], c, 0, 0) > 0);
		assert_int_equal(ps_last(&p[i], &w[i], w[i].bytes), 0);
	}
	for (uint32_t i = 0; i < N; i++)
		ps_expect(&p[i], KVS_WIRE_COMPLETE, &m);
	pe_wait(e, r, KVS_STATUS_READY);
	assert_int_equal(pe_differ(e, r, PAGES * PS_TOKENS, N, 1), 0);
	pe_commit(e, r);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	for (uint32_t i = 0; i < N; i++)
		ps_quiet(&p[i]);
	/* nor has a READY room that is given up later */
	receive(2);
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t c = 1; c < w[i].n_chunks; c++)
			assert_true(ps_send_part(&p[i], 0, &w[i], c, 0, 0) > 0);
		assert_int_equal(ps_last(&p[i], &w[i], w[i].bytes), 0);
	}
	for (uint32_t i = 0; i < N; i++)
		ps_expect(&p[i], KVS_WIRE_COMPLETE, &m);
	pe_wait(e, r, KVS_STATUS_READY);
	pe_abort(e, r);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	for (uint32_t i = 0; i < N; i++)
		ps_quiet(&p[i]);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_rank_once),
		cmocka_unit_test(only_true_ones),
		cmocka_unit_test(without_an_answer_at_once),
		cmocka_unit_test(silent_until_the_timeout),
		cmocka_unit_test(cannot_acknowledge),
		cmocka_unit_test(success_asks_nobody),
	};

	return rig_run_both(tests);
}
