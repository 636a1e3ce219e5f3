/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race over real TCP: a daemon core with its threads, the library's
 * engine, senders of plain sockets. hold.require_ack = yes makes ranks what
 * they are with one-sided writes; what writes late is the daemon's own receive
 * into A's extent, and the sender decides when its bytes come.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/device.h"
#include "tests/claim/race_rig.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define ITEM 8192u /* bytes of a page in one buffer */
#define TOKENS 16u /* of a page */
#define EXTENT_PAGES (2048u / TOKENS) /* the default of extent.tokens */
#define EARLY 5000u /* bytes of the late write that come in time */
#define PEERS 2u
#define HELD_CONN 0u /* of rank 1: the late write is on it */
#define FREE_CONN 1u

static struct kvs_layer_buffer buffers[RACE_BUFFERS] = {
	{ KVS_BUFFER_K, 0, ITEM, 0 },
	{ KVS_BUFFER_K, 1, ITEM, 0 },
	{ KVS_BUFFER_V, 0, ITEM, 0 },
	{ KVS_BUFFER_V, 1, ITEM, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = RACE_BUFFERS,
	.buffers = buffers,
};
static const char *const peers[PEERS] = { "p", "q" };

static struct rig g[1];
static struct kvs_engine *engine;
static struct ps writers[PEERS][RACE_RANKS];
static kvs_handle handles[2]; /* of A and B */
static struct ps_room sides[2][RACE_RANKS];

static kvs_handle *handle(const struct race_room *r)
{
	return &handles[r->index];
}

static struct ps *writer(const struct race_room *r, unsigned int rank)
{
	return &writers[r->peer][rank];
}

static struct ps_room *side(const struct race_room *r, unsigned int rank)
{
	return &sides[r->index][rank];
}

static void tcp_up(struct race *x)
{
	struct kvs_engine_opts eo = { .size = sizeof(eo),
				      .name = "decode",
				      .layout = &layout,
				      .node = -1 };
	char pool[32], err[256];

	snprintf(pool, sizeof(pool), "%uK",
		 x->shape.pool * (unsigned int)(x->page / 1024));
	rig_init(g, x->t == &race_tcp_uring ? "uring" : "sock", pool);
	rig_set(g, "hold.require_ack", "yes");
	/* nobody is asked twice, however slow the machine */
	rig_set(g, "hold.reask", "0");
	g->log = race_log;
	g->log_arg = x;
	kvs_log_set_level(KVS_LOG_DEBUG);
	rig_up(g);
	eo.socket = g->set.engine_socket;
	if (kvs_engine_attach(&eo, &engine, err, sizeof(err)))
		fail_msg("attach: %s", err);
	for (unsigned int p = 0; p < PEERS; p++) {
		for (unsigned int k = 0; k < RACE_RANKS; k++) {
			ps_up(&writers[p][k], g->port, peers[p], k, RACE_RANKS,
			      &layout);
			assert_int_equal(ps_data(&writers[p][k]), FREE_CONN);
		}
	}
}

static void sides_fini(unsigned int index)
{
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		if (sides[index][k].chunks)
			ps_room_fini(&sides[index][k]);
}

static void tcp_down(struct race *x)
{
	(void)x;
	for (unsigned int i = 0; i < 2; i++)
		sides_fini(i);
	for (unsigned int p = 0; p < PEERS; p++)
		for (unsigned int k = 0; k < RACE_RANKS; k++)
			ps_down(&writers[p][k]);
	kvs_engine_detach(engine);
	rig_down(g);
	kvs_log_set_level(KVS_LOG_INFO);
}

static enum kvs_status tcp_status(struct race *x, struct race_room *r)
{
	(void)x;
	assert_true(kvs_engine_progress(engine) >= 0);
	return kvs_engine_poll(engine, handle(r), NULL);
}

static void wait_status(struct race *x, struct race_room *r,
			enum kvs_status want)
{
	uint64_t until = rig_until();
	struct kvs_failure f = { .text = "" };
	enum kvs_status st;

	while ((st = tcp_status(x, r)) != want) {
		if (st == KVS_STATUS_FAILED) {
			kvs_engine_failure(engine, handle(r), &f);
			fail_msg("room %llu: %s", (unsigned long long)r->id,
				 f.text);
		}
		rig_pause(until, "status of a room", __FILE__, __LINE__);
	}
}

static void tcp_admit(struct race *x, struct race_room *r)
{
	static const struct kvs_rank_slice slices[RACE_RANKS] = { { 0, 1 },
								  { 1, 1 } };
	struct kvs_admit a = {
		.size = sizeof(a),
		.room = r->id,
		.peer = peers[r->peer],
		.tokens = (uint64_t)r->pages * TOKENS,
		.n_ranks = RACE_RANKS,
		.ranks = slices,
		.node = -1,
	};
	uint64_t until = rig_until();

	assert_int_equal(kvs_engine_admit(engine, &a, handle(r)), 0);
	while (tcp_status(x, r) == KVS_STATUS_PENDING)
		rig_pause(until, "answer to an admit", __FILE__, __LINE__);
}

static void tcp_grant(struct race *x, struct race_room *r)
{
	wait_status(x, r, KVS_STATUS_ADMITTED);
	sides_fini(r->index);
	for (unsigned int k = 0; k < RACE_RANKS; k++) {
		assert_int_equal(ps_open(writer(r, k), r->id,
					 (uint64_t)r->pages * TOKENS),
				 0);
		ps_granted(writer(r, k), side(r, k), r->seed, UINT32_MAX);
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
	rig_wait(g, rig_parties(g, r->id) == RACE_RANKS + 1);
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

static void tcp_abort(struct race *x, struct race_room *r)
{
	uint64_t until = rig_until();
	struct kvs_msg m;

	assert_int_equal(kvs_engine_abort(engine, handle(r)), 0);
	while (tcp_status(x, r) != KVS_STATUS_FAILED)
		rig_pause(until, "end of a room", __FILE__, __LINE__);
	for (unsigned int k = 0; k < RACE_RANKS; k++) {
		ps_expect(writer(r, k), KVS_WIRE_ABORT, &m);
		assert_int_equal(m.abort.room, r->id);
	}
	/* our own receive is stopped, and reaped; without the rule it is what
	 * goes on */
	if (race_held())
		rig_wait(g, rig_parties(g, r->id) == RACE_RANKS);
	while (kvs_engine_release(engine, handle(r)))
		rig_pause(until, "release of a room", __FILE__, __LINE__);
}

static void tcp_answer(struct race *x, struct race_room *r, unsigned int rank,
		       enum race_end how)
{
	int before = rig_parties(g, r->id);

	(void)x;
	assert_int_equal(ps_answer(writer(r, rank),
				   how == RACE_ACK ? KVS_WIRE_ABORT_ACK
						   : KVS_WIRE_ABORT_NAK,
				   r->id, side(r, rank)->grant.generation),
			 0);
	/* without the rule there is nobody left to hear it */
	if (race_held())
		rig_wait(g, rig_parties(g, r->id) < before);
}

static void tcp_fill(struct race *x, struct race_room *r)
{
	uint64_t before;

	rig_refresh(g);
	before = rig_received(g);
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		for (uint32_t i = 0; i < side(r, k)->n_chunks; i++)
			assert_true(ps_send_part(writer(r, k), FREE_CONN,
						 side(r, k), i, 0, 0) > 0);
	rig_wait(g, rig_received(g) == before + r->pages * x->page);
}

static void tcp_last(struct race *x, struct race_room *r)
{
	struct kvs_msg m;

	for (unsigned int k = 0; k < RACE_RANKS; k++)
		assert_int_equal(ps_last(writer(r, k), side(r, k),
					 side(r, k)->bytes),
				 0);
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		ps_expect(writer(r, k), KVS_WIRE_COMPLETE, &m);
	wait_status(x, r, KVS_STATUS_READY);
}

static void tcp_commit(struct race *x, struct race_room *r)
{
	struct kvs_commit c = {
		.size = sizeof(c),
		.device = x->device,
		.buffers = x->dev,
		.pages = x->slots,
		.n_pages = r->pages,
	};
	uint64_t until = rig_until();

	assert_int_equal(kvs_engine_commit(engine, handle(r), &c), 0);
	/* a copy that is not held may be over already */
	while (tcp_status(x, r) < KVS_STATUS_COMMITTING)
		rig_pause(until, "commit of a room", __FILE__, __LINE__);
	assert_true(kvs_engine_progress(engine) >= 0);
}

static void tcp_done(struct race *x, struct race_room *r)
{
	assert_int_equal(kvs_soft_release(x->device), 0);
	wait_status(x, r, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(engine, handle(r)), 0);
}

static void tcp_settle(struct race *x)
{
	(void)x;
	rig_wait(g, rig_rooms(g) == 0);
}

static uint64_t tcp_bytes(struct race *x, enum kvs_extent_state st)
{
	(void)x;
	rig_refresh(g);
	return rig_bytes(g, st);
}

static uint64_t tcp_drains(struct race *x, enum kvs_drain_outcome o,
			   enum kvs_proof p)
{
	(void)x;
	rig_refresh(g);
	return rig_drains(g, o, p);
}

static unsigned char tcp_byte(const struct race_room *r, uint32_t buffer,
			      uint32_t page, uint32_t at)
{
	return ps_byte(r->seed, page / EXTENT_PAGES, buffers[buffer].kind,
		       (uint16_t)buffers[buffer].layer,
		       (uint64_t)(page % EXTENT_PAGES) * ITEM + at);
}

#define RACE_TCP(n)                                                           \
	{                                                                     \
		.name = (n), .item = ITEM, .extent_pages = EXTENT_PAGES,      \
		.byte = tcp_byte, .up = tcp_up, .down = tcp_down,             \
		.admit = tcp_admit, .grant = tcp_grant, .launch = tcp_launch, \
		.land = tcp_land, .abort = tcp_abort, .answer = tcp_answer,   \
		.fill = tcp_fill, .last = tcp_last, .commit = tcp_commit,     \
		.done = tcp_done, .settle = tcp_settle, .status = tcp_status, \
		.bytes = tcp_bytes, .drains = tcp_drains,                     \
	}
const struct race_transport race_tcp_sock = RACE_TCP("tcp, sockets");
const struct race_transport race_tcp_uring = RACE_TCP("tcp, io_uring");
