/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a room is complete when all of it is there and not when what is
 * called last comes (sgl-project/sglang#37697): five pieces in each of their
 * 120 orders, LAST before, between and behind them, on one connection and
 * spread over two, make the same bytes; a piece that is sent twice is counted
 * once and flagged: the room fails, its first bytes stay.
 */
#include <errno.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PIECES 5u
#define TOKENS (PIECES * PS_TOKENS)

static struct rig g[1];
static struct pe e[1];
static struct ps p[1];
static uint64_t room;

static void start(void)
{
	rig_init(g, rig_engine(), "1M");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
}

/* Sends the pieces in this order, and LAST before the one at @last. */
static void send_in_order(const unsigned int *order, unsigned int last,
			  bool spread)
{
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;

	room++;
	pe_admit(e, &r, 0, room, TOKENS, 1);
	assert_int_equal(ps_open(p, room, TOKENS), 0);
	ps_granted(p, &w, room, PS_PAGE);
	assert_int_equal(w.n_chunks, PIECES);
	for (unsigned int i = 0; i < PIECES; i++) {
		if (i == last)
			assert_int_equal(ps_last(p, &w, w.bytes), 0);
		assert_true(ps_send_part(p, spread * (i % 2), &w, order[i], 0,
					 0) > 0);
	}
	if (last == PIECES)
		assert_int_equal(ps_last(p, &w, w.bytes), 0);
	ps_expect(p, KVS_WIRE_COMPLETE, &m);
	pe_take(e, &r, TOKENS, 1, room);
	ps_room_fini(&w);
}

/* All orders, by exchanging (Heap). */
static unsigned int permute(unsigned int *v, unsigned int n)
{
	unsigned int made = 0, swap, at;

	if (n == 1) {
		for (unsigned int last = 0; last <= PIECES; last++)
			send_in_order(v, last, (last + v[0]) % 2);
		return 1;
	}
	for (unsigned int i = 0; i < n; i++) {
		made += permute(v, n - 1);
		at = n % 2 ? 0 : i;
		swap = v[at];
		v[at] = v[n - 1];
		v[n - 1] = swap;
	}
	return made;
}

static void any_order_completes(void **state)
{
	unsigned int v[PIECES] = { 0, 1, 2, 3, 4 };

	(void)state;
	start();
	room = 0;
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
	assert_int_equal(ps_data(p), 1);
	assert_int_equal(permute(v, PIECES), 120);
	rig_refresh(g);
	assert_int_equal(rig_done(g), 120 * (PIECES + 1));
	assert_int_equal(rig_received(g),
			 120ull * (PIECES + 1) * PIECES * PS_PAGE);
	assert_int_equal(rig_proto(g, KVS_PROTO_OVERLAP), 0);
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

/* Each piece twice in turn, the second time with other bytes: the first one
 * counts, and the room is complete. */
static void twice_is_counted_once(void **state)
{
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;

	(void)state;
	start();
	for (uint32_t twice = 0; twice < PIECES; twice++) {
		ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
		pe_admit(e, &r, 0, 1 + twice, TOKENS, 1);
		assert_int_equal(ps_open(p, 1 + twice, TOKENS), 0);
		ps_granted(p, &w, twice, PS_PAGE);
		for (uint32_t i = 0; i <= twice; i++)
			assert_true(ps_send_part(p, 0, &w, i, 0, 0) > 0);
		w.seed = ~w.seed;
		assert_true(ps_send_part(p, 0, &w, twice, 0, 0) > 0);
		w.seed = ~w.seed;
		for (uint32_t i = twice + 1; i < PIECES; i++)
			assert_true(ps_send_part(p, 0, &w, i, 0, 0) > 0);
		/* before LAST: one behind READY is late, not repeated */
		rig_wait(g, rig_repeated(g) == twice + 1);
		assert_int_equal(ps_last(p, &w, w.bytes), 0);
		ps_expect(p, KVS_WIRE_COMPLETE, &m);
		pe_take(e, &r, TOKENS, 1, twice);
		assert_int_equal(rig_received(g), (twice + 1ull) * w.bytes);
		assert_int_equal(rig_proto(g, KVS_PROTO_OVERLAP), 0);
		ps_room_fini(&w);
		ps_down(p);
	}
	pe_down(e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_order_completes),
		cmocka_unit_test(twice_is_counted_once),
	};

	return rig_run_both(tests);
}
