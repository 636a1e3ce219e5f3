/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race over real TCP. hold.require_ack = yes makes ranks what they are
 * with one-sided writes; what writes late is the daemon's own receive into A's
 * extent, and the sender decides when its bytes come.
 */
#include "tests/claim/race_service.h"

#define EARLY 5000u /* bytes of the late write that come in time */
#define HELD_CONN 0u /* of rank 1: the late write is on it */
#define FREE_CONN 1u

static struct ps *writer(const struct race_room *r, unsigned int rank)
{
	return race_service_writer(r->peer, rank);
}

static struct ps_room *side(const struct race_room *r, unsigned int rank)
{
	return race_service_side(r, rank);
}

static void tcp_up(struct race *x)
{
	struct ps *w;

	race_service_up(x, x->t == &race_tcp_uring ? "uring" : "sock", 0, NULL);
	for (unsigned int p = 0; p < RACE_SERVICE_PEERS; p++) {
		for (unsigned int k = 0; k < RACE_RANKS; k++) {
			w = race_service_writer(p, k);
			assert_int_equal(ps_data(w), HELD_CONN);
			assert_int_equal(ps_data(w), FREE_CONN);
		}
	}
}

static void tcp_launch(struct race *x, struct race_room *r)
{
	const struct ps_room *w = side(r, 1);

	(void)x;
	assert_int_equal(w->chunks[0].kind, KVS_BUFFER_K);
	assert_int_equal(w->chunks[0].layer, 1);
	assert_true(ps_send_part(writer(r, 1), HELD_CONN, w, 0, 0,
				 KVS_DATA_FRAME + EARLY) > 0);
	rig_wait(race_rig, rig_parties(race_rig, r->id) == RACE_RANKS + 1);
}

/* What is behind it on its connection is answered: it is read as well. */
static void tcp_land(struct race *x, struct race_room *r)
{
	struct ps *p = writer(r, 1);
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE,
			     .keepalive.seq = r->id };

	(void)x;
	assert_true(ps_send_part(p, HELD_CONN, side(r, 1), 0,
				 KVS_DATA_FRAME + EARLY, 0) > 0);
	assert_int_equal(ps_write_msg(p->data[HELD_CONN], &m), 0);
	do {
		assert_int_equal(ps_read(p, p->data[HELD_CONN], &m), 0);
		assert_int_equal(m.type, KVS_WIRE_KEEPALIVE);
	} while (!m.keepalive.reply || m.keepalive.seq != r->id);
}

static void tcp_fill(struct race *x, struct race_room *r)
{
	uint64_t before;

	rig_refresh(race_rig);
	before = rig_received(race_rig);
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		for (uint32_t i = 0; i < side(r, k)->n_chunks; i++)
			assert_true(ps_send_part(writer(r, k), FREE_CONN,
						 side(r, k), i, 0, 0) > 0);
	rig_wait(race_rig,
		 rig_received(race_rig) == before + r->pages * x->page);
}

#define RACE_TCP(n)                                                            \
	{                                                                      \
		RACE_SERVICE, .name = (n), .up = tcp_up,                       \
			      .down = race_service_down, .launch = tcp_launch, \
			      .land = tcp_land, .fill = tcp_fill,              \
			      .answer = race_service_answer,                   \
	}
const struct race_transport race_tcp_sock = RACE_TCP("tcp, sockets");
const struct race_transport race_tcp_uring = RACE_TCP("tcp, io_uring");
