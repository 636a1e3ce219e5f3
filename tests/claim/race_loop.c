/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race where ranks write by themselves: a node of the daemon on the loop
 * transport's one-sided mode, under a virtual clock. The late write is one that
 * the fabric has taken and holds part way; neither its sender nor the node
 * can call it back, and it lands as long as its key is open.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "gpu/device.h"
#include "tests/claim/race_rig.h"
#include "tests/unit/pipeline/onesided_rig.h"

static struct os_rig g[1];
static struct kvs_copy copy;
static struct kvs_copy_run runs[RACE_EXTENTS * RACE_BUFFERS];
static unsigned int used; /* slots: each room has its own */
static unsigned int slots[2]; /* of A and B */

static unsigned int slot_of(const struct race_room *r)
{
	return slots[r->index];
}

static unsigned int seed_of(const struct race_room *r)
{
	return r->index + 1;
}

/* Rank @rank of the room, as a writer. */
static unsigned int writer_of(const struct race_room *r, unsigned int rank)
{
	return r->peer * RACE_RANKS + rank;
}

static void loop_up(struct race *x)
{
	os_up(g, x->shape.pool, RACE_RANKS, NULL);
	kvs_log_set_sink(race_log, x);
	kvs_log_set_level(KVS_LOG_DEBUG);
	os_second_peer(g);
	for (unsigned int i = 0; i < g->n_writers; i++)
		g->w[i].acks = false;
	used = 0;
}

static void loop_down(struct race *x)
{
	(void)x;
	os_down(g);
	kvs_log_set_sink(NULL, NULL);
	kvs_log_set_level(KVS_LOG_INFO);
}

static void loop_admit(struct race *x, struct race_room *r)
{
	(void)x;
	slots[r->index] = used++ % OS_ROOMS;
	os_admit_of(g, slot_of(r), r->id, r->pages, r->peer);
}

/* The ranks opened at admit; the grants came with the memory. */
static void loop_grant(struct race *x, struct race_room *r)
{
	(void)x;
	os_run(g, 0);
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		assert_true(g->room[slot_of(r)].granted[k]);
}

/* All pages of the extent, one behind the other: the first stops part way. */
static void loop_launch(struct race *x, struct race_room *r)
{
	static const struct kvs_loop_plan stall = { .stall = 1.0 };
	static const struct kvs_loop_plan none;
	struct kvs_loop_faults before, now;

	(void)x;
	kvs_fabric_faults(g->f, &before);
	assert_int_equal(kvs_fabric_set_plan(g->f, &stall), 0);
	os_write(g, slot_of(r), 1, 1, 0, seed_of(r));
	assert_int_equal(kvs_fabric_set_plan(g->f, &none), 0);
	for (unsigned int p = 1; p < OS_EXTENT; p++)
		os_write(g, slot_of(r), 1, 1, p, seed_of(r));
	os_run(g, 0);
	kvs_fabric_faults(g->f, &now);
	assert_int_equal(now.n[KVS_LOOP_STALL], before.n[KVS_LOOP_STALL] + 1);
	/* what comes now is not behind it */
	os_connect(g, writer_of(r, 1));
}

static void loop_land(struct race *x, struct race_room *r)
{
	(void)x, (void)r;
	assert_int_equal(kvs_fabric_release(g->f), 1);
	os_run(g, 0);
}

static void loop_abort(struct race *x, struct race_room *r)
{
	unsigned int before[RACE_RANKS];

	(void)x;
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		before[k] = g->w[writer_of(r, k)].aborts;
	os_packet(g, slot_of(r), KVS_PACKET_ABORT);
	assert_int_equal(os_status(g, slot_of(r)), KVS_STATUS_FAILED);
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		assert_int_equal(g->w[writer_of(r, k)].aborts, before[k] + 1);
}

static void loop_answer(struct race *x, struct race_room *r, unsigned int rank,
			enum race_end how)
{
	(void)x;
	os_say(g, slot_of(r), rank,
	       how == RACE_ACK ? KVS_WIRE_ABORT_ACK : KVS_WIRE_ABORT_NAK);
}

static void loop_fill(struct race *x, struct race_room *r)
{
	(void)x;
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		for (unsigned int p = 0; p < r->pages; p++)
			for (unsigned int b = k; b < RACE_BUFFERS; b += 2)
				os_write(g, slot_of(r), k, b, p, seed_of(r));
	os_run(g, 0);
}

static void loop_last(struct race *x, struct race_room *r)
{
	(void)x;
	for (unsigned int k = 0; k < RACE_RANKS; k++)
		os_last(g, slot_of(r), k);
	assert_int_equal(os_status(g, slot_of(r)), KVS_STATUS_READY);
}

static void loop_commit(struct race *x, struct race_room *r)
{
	const struct os_room *o = &g->room[slot_of(r)];
	struct kvs_copy_run *run = runs;

	os_packet(g, slot_of(r), KVS_PACKET_COMMIT);
	assert_int_equal(os_status(g, slot_of(r)), KVS_STATUS_COMMITTING);
	for (uint32_t e = 0; e < o->n_off; e++) {
		unsigned int n = r->pages - e * OS_EXTENT;

		n = n < OS_EXTENT ? n : OS_EXTENT;
		for (uint32_t b = 0; b < RACE_BUFFERS; b++)
			*run++ = (struct kvs_copy_run){
				.host = (char *)g->region.base + o->off[e] +
					(size_t)b * n * OS_ITEM,
				.dev = x->dev[b],
				.item_len = OS_ITEM,
				.pages = x->slots + e * OS_EXTENT,
				.n = n,
			};
	}
	memset(&copy, 0, sizeof(copy));
	copy.runs = runs;
	copy.n_runs = (size_t)(run - runs);
	copy.dir = KVS_COPY_H2D;
	assert_int_equal(kvs_device_copy(x->device, &copy), 0);
}

static void loop_done(struct race *x, struct race_room *r)
{
	assert_int_equal(kvs_soft_release(x->device), 0);
	while (kvs_device_query(x->device, &copy) == -EINPROGRESS)
		sched_yield();
	assert_int_equal(kvs_device_query(x->device, &copy), 0);
	os_packet(g, slot_of(r), KVS_PACKET_COMMITTED);
	assert_int_equal(os_status(g, slot_of(r)), KVS_STATUS_DONE);
}

static void loop_settle(struct race *x)
{
	(void)x;
	os_run(g, 0);
	assert_int_equal(g->n.worker->rooms.n, 0);
}

static enum kvs_status loop_status(struct race *x, struct race_room *r)
{
	(void)x;
	return os_status(g, slot_of(r));
}

static uint64_t loop_bytes(struct race *x, enum kvs_extent_state st)
{
	(void)x;
	return os_bytes(g, st);
}

static uint64_t loop_drains(struct race *x, enum kvs_drain_outcome o,
			    enum kvs_proof p)
{
	(void)x;
	return os_drains(g, o, p);
}

static unsigned char loop_byte(const struct race_room *r, uint32_t buffer,
			       uint32_t page, uint32_t at)
{
	(void)at;
	return os_byte(seed_of(r), buffer, page);
}

const struct race_transport race_loop = {
	.name = "loop, one-sided",
	.item = OS_ITEM,
	.extent_pages = OS_EXTENT,
	.byte = loop_byte,
	.up = loop_up,
	.down = loop_down,
	.admit = loop_admit,
	.grant = loop_grant,
	.launch = loop_launch,
	.land = loop_land,
	.abort = loop_abort,
	.answer = loop_answer,
	.fill = loop_fill,
	.last = loop_last,
	.commit = loop_commit,
	.done = loop_done,
	.settle = loop_settle,
	.status = loop_status,
	.bytes = loop_bytes,
	.drains = loop_drains,
};
