/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the races over real networks have in common: a daemon core with its
 * threads, the library's engine, ranks whose control connections are plain
 * sockets.
 */
#include "tests/claim/race_service.h"

#include <stdio.h>
#include <string.h>

#include "gpu/device.h"

static struct kvs_layer_buffer buffers[RACE_BUFFERS] = {
	{ KVS_BUFFER_K, 0, RACE_SERVICE_ITEM, 0 },
	{ KVS_BUFFER_K, 1, RACE_SERVICE_ITEM, 0 },
	{ KVS_BUFFER_V, 0, RACE_SERVICE_ITEM, 0 },
	{ KVS_BUFFER_V, 1, RACE_SERVICE_ITEM, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = RACE_SERVICE_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = RACE_BUFFERS,
	.buffers = buffers,
};
static const char *const peers[RACE_SERVICE_PEERS] = { "p", "q" };

struct rig race_rig[1];
static struct kvs_engine *engine;
static struct ps writers[RACE_SERVICE_PEERS][RACE_RANKS];
static kvs_handle handles[2]; /* of A and B */
static struct ps_room sides[2][RACE_RANKS];

static kvs_handle *handle(const struct race_room *r)
{
	return &handles[r->index];
}

struct ps *race_service_writer(unsigned int peer, unsigned int rank)
{
	return &writers[peer][rank];
}

static struct ps *writer(const struct race_room *r, unsigned int rank)
{
	return &writers[r->peer][rank];
}

struct ps_room *race_service_side(const struct race_room *r, unsigned int rank)
{
	return &sides[r->index][rank];
}

static struct ps_room *side(const struct race_room *r, unsigned int rank)
{
	return &sides[r->index][rank];
}

void race_service_up(struct race *x, const char *tcp, uint64_t caps,
		     const char *const set[][2])
{
	struct kvs_engine_opts eo = { .size = sizeof(eo),
				      .name = "decode",
				      .layout = &layout,
				      .node = -1 };
	struct rig *g = race_rig;
	char pool[32], err[256];

	snprintf(pool, sizeof(pool), "%uK",
		 x->shape.pool * (unsigned int)(x->page / 1024));
	rig_init(g, tcp, pool);
	rig_set(g, "hold.require_ack", "yes");
	/* nobody is asked twice, however slow the machine */
	rig_set(g, "hold.reask", "0");
	for (unsigned int i = 0; set && set[i][0]; i++)
		rig_set(g, set[i][0], set[i][1]);
	g->log = race_log;
	g->log_arg = x;
	kvs_log_set_level(KVS_LOG_DEBUG);
	rig_up(g);
	eo.socket = g->set.engine_socket;
	if (kvs_engine_attach(&eo, &engine, err, sizeof(err)))
		fail_msg("attach: %s", err);
	for (unsigned int p = 0; p < RACE_SERVICE_PEERS; p++) {
		for (unsigned int k = 0; k < RACE_RANKS; k++) {
			ps_init(&writers[p][k], g->port, peers[p], k,
				RACE_RANKS, &layout);
			writers[p][k].caps |= caps;
			ps_control_up(&writers[p][k]);
		}
	}
}

static void sides_fini(unsigned int index)
{
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		if (sides[index][k].chunks)
			ps_room_fini(&sides[index][k]);
}

void race_service_down(struct race *x)
{
	(void)x;
	for (unsigned int i = 0; i < 2; i++)
		sides_fini(i);
	for (unsigned int p = 0; p < RACE_SERVICE_PEERS; p++)
		for (unsigned int k = 0; k < RACE_RANKS; k++)
			ps_down(&writers[p][k]);
	kvs_engine_detach(engine);
	rig_down(race_rig);
	kvs_log_set_level(KVS_LOG_INFO);
}

enum kvs_status race_service_status(struct race *x, struct race_room *r)
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

	while ((st = race_service_status(x, r)) != want) {
		if (st == KVS_STATUS_FAILED) {
			kvs_engine_failure(engine, handle(r), &f);
			fail_msg("room %llu: %s", (unsigned long long)r->id,
				 f.text);
		}
		rig_pause(until, "status of a room", __FILE__, __LINE__);
	}
}

void race_service_admit(struct race *x, struct race_room *r)
{
	static const struct kvs_rank_slice slices[RACE_RANKS] = { { 0, 1 },
								  { 1, 1 } };
	struct kvs_admit a = {
		.size = sizeof(a),
		.room = r->id,
		.peer = peers[r->peer],
		.tokens = (uint64_t)r->pages * RACE_SERVICE_TOKENS,
		.n_ranks = RACE_RANKS,
		.ranks = slices,
		.node = -1,
	};
	uint64_t until = rig_until();

	assert_int_equal(kvs_engine_admit(engine, &a, handle(r)), 0);
	while (race_service_status(x, r) == KVS_STATUS_PENDING)
		rig_pause(until, "answer to an admit", __FILE__, __LINE__);
}

void race_service_grant(struct race *x, struct race_room *r)
{
	wait_status(x, r, KVS_STATUS_ADMITTED);
	sides_fini(r->index);
	for (unsigned int k = 0; k < RACE_RANKS; k++) {
		assert_int_equal(
			ps_open(writer(r, k), r->id,
				(uint64_t)r->pages * RACE_SERVICE_TOKENS),
			0);
		ps_granted(writer(r, k), side(r, k), r->seed, UINT32_MAX);
	}
}

void race_service_abort(struct race *x, struct race_room *r)
{
	uint64_t until = rig_until();
	struct kvs_msg m;

	assert_int_equal(kvs_engine_abort(engine, handle(r)), 0);
	while (race_service_status(x, r) != KVS_STATUS_FAILED)
		rig_pause(until, "end of a room", __FILE__, __LINE__);
	for (unsigned int k = 0; k < RACE_RANKS; k++) {
		ps_expect(writer(r, k), KVS_WIRE_ABORT, &m);
		assert_int_equal(m.abort.room, r->id);
	}
	/* our own receive is stopped, and reaped; without the rule it is what
	 * goes on */
	if (race_held())
		rig_wait(race_rig, rig_parties(race_rig, r->id) == RACE_RANKS);
	while (kvs_engine_release(engine, handle(r)))
		rig_pause(until, "release of a room", __FILE__, __LINE__);
}

void race_service_answer(struct race *x, struct race_room *r, unsigned int rank,
			 enum race_end how)
{
	int before = rig_parties(race_rig, r->id);

	(void)x;
	assert_int_equal(ps_answer(writer(r, rank),
				   how == RACE_ACK ? KVS_WIRE_ABORT_ACK
						   : KVS_WIRE_ABORT_NAK,
				   r->id, side(r, rank)->grant.generation),
			 0);
	/* without the rule there is nobody left to hear it */
	if (race_held())
		rig_wait(race_rig, rig_parties(race_rig, r->id) < before);
}

void race_service_last(struct race *x, struct race_room *r)
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

void race_service_commit(struct race *x, struct race_room *r)
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
	while (race_service_status(x, r) < KVS_STATUS_COMMITTING)
		rig_pause(until, "commit of a room", __FILE__, __LINE__);
	assert_true(kvs_engine_progress(engine) >= 0);
}

void race_service_done(struct race *x, struct race_room *r)
{
	assert_int_equal(kvs_soft_release(x->device), 0);
	wait_status(x, r, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(engine, handle(r)), 0);
}

void race_service_settle(struct race *x)
{
	(void)x;
	rig_wait(race_rig, rig_rooms(race_rig) == 0);
}

uint64_t race_service_bytes(struct race *x, enum kvs_extent_state st)
{
	(void)x;
	rig_refresh(race_rig);
	return rig_bytes(race_rig, st);
}

uint64_t race_service_drains(struct race *x, enum kvs_drain_outcome o,
			     enum kvs_proof p)
{
	(void)x;
	rig_refresh(race_rig);
	return rig_drains(race_rig, o, p);
}

unsigned char race_service_byte(const struct race_room *r, uint32_t buffer,
				uint32_t page, uint32_t at)
{
	return ps_byte(r->seed, page / RACE_SERVICE_EXTENT_PAGES,
		       buffers[buffer].kind, (uint16_t)buffers[buffer].layer,
		       (uint64_t)(page % RACE_SERVICE_EXTENT_PAGES) *
				       RACE_SERVICE_ITEM +
			       at);
}
