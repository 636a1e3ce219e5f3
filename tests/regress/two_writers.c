/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: with two senders on connections of their own nothing orders the late
 * write of the one before the bytes of the other (sgl-project/sglang#36610):
 * room A (430 pages) has a chunk half under way and is aborted, room B (105
 * pages) is sent by the other one; the first goes on while B is copied to the
 * device. B's device bytes are what its sender sent, whether B got other
 * memory than A (whose writer's word is awaited) or A's own (whose receive is
 * over), and nothing of A's late bytes lands anywhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define A_PAGES 430u
#define B_PAGES 105u
#define CHUNK (16 * PS_PAGE)
#define SENT (KVS_DATA_FRAME + 5000) /* of A's second chunk, before it stalls */

static struct rig g[1];
static struct pe e[1];
static struct ps w1[1], w2[1];
static struct pe_room a, b;
static struct ps_room wa, wb;

static void start(const char *pool, const char *require_ack)
{
	rig_init(g, rig_engine(), pool);
	rig_set(g, "hold.require_ack", require_ack);
	rig_set(g, "hold.timeout", "60s");
	rig_set(g, "hold.reask", "0");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	ps_up(w1, g->port, "w1", 0, 1, &ps_one_layer);
	ps_up(w2, g->port, "w2", 0, 1, &ps_one_layer);
}

static void stop(void)
{
	ps_down(w1);
	ps_down(w2);
	pe_down(e);
	rig_down(g);
}

static void admit(struct pe_room *r, uint32_t slot, const char *peer,
		  uint64_t room, uint32_t pages)
{
	snprintf(e->peer, sizeof(e->peer), "%s", peer);
	pe_admit(e, r, slot, room, pages * PS_TOKENS, 1);
}

/* A stalls within its second chunk and is aborted. */
static void abort_a(void)
{
	struct kvs_msg m;

	admit(&a, 0, "w1", 1, A_PAGES);
	assert_int_equal(ps_open(w1, 1, A_PAGES * PS_TOKENS), 0);
	ps_granted(w1, &wa, 0xaa, CHUNK);
	assert_true(ps_send_part(w1, 0, &wa, 0, 0, 0) > 0);
	assert_true(ps_send_part(w1, 0, &wa, 1, 0, SENT) > 0);
	rig_wait(g, rig_received(g) == CHUNK &&
			    rig_parties(g, 1) == 1 + g->set.hold_require_ack);
	pe_abort(e, &a);
	ps_expect(w1, KVS_WIRE_ABORT, &m);
	rig_wait(g, rig_late_bytes(g) == CHUNK);
}

/* W1 sends the rest of its chunk and one more, and all of it has been read
 * when this returns. */
static void resume_a(void)
{
	uint64_t late = rig_late_bytes(g);

	assert_true(ps_send_part(w1, 0, &wa, 1, SENT, 0) > 0);
	assert_true(ps_send_part(w1, 0, &wa, 2, 0, 0) > 0);
	rig_wait(g, rig_late_bytes(g) == late + CHUNK);
}

/* B arrives, and is copied to a device in two halves; W1 resumes between. */
static void copy_b(void)
{
	const size_t len = B_PAGES * PS_PAGE;
	unsigned char *device = malloc(len);
	const unsigned char *from;
	uint64_t bad = 0;

	assert_non_null(device);
	pe_wait(e, &b, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(w2, 2, B_PAGES * PS_TOKENS), 0);
	ps_granted(w2, &wb, 0xbb, CHUNK);
	ps_finish(w2, &wb, 0);
	pe_wait(e, &b, KVS_STATUS_READY);
	assert_int_equal(b.n_extents, 1);
	from = e->pool + b.off[0];
	assert_int_equal(pe_say(e, KVS_PACKET_COMMIT, &b, 0), 0);
	pe_wait(e, &b, KVS_STATUS_COMMITTING);
	memcpy(device, from, len / 2);
	resume_a();
	memcpy(device + len / 2, from + len / 2, len - len / 2);
	assert_int_equal(pe_say(e, KVS_PACKET_COMMITTED, &b, 0), 0);
	pe_wait(e, &b, KVS_STATUS_DONE);
	for (size_t i = 0; i < len; i++)
		bad += device[i] != ps_byte(0xbb, 0, KVS_BUFFER_KV, 0, i);
	assert_int_equal(bad, 0);
	free(device);
}

/* The pool is as large as both: held and staged bytes together are all there
 * are, so that no page is in both rooms. */
static void places_are_disjoint(void **state)
{
	unsigned char *before;
	uint64_t at;

	(void)state;
	start("2140K", "yes");
	abort_a();
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), A_PAGES * PS_PAGE);
	before = malloc(e->pool_size);
	assert_non_null(before);
	memcpy(before, e->pool, e->pool_size);
	admit(&b, 1, "w2", 2, B_PAGES);
	pe_wait(e, &b, KVS_STATUS_ADMITTED);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), A_PAGES * PS_PAGE);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_RESERVED), B_PAGES * PS_PAGE);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), 0);
	copy_b();
	/* nothing but B's place has changed since A was aborted */
	at = b.off[0];
	assert_memory_equal(before, e->pool, at);
	at += B_PAGES * PS_PAGE;
	assert_memory_equal(before + at, e->pool + at, e->pool_size - at);
	free(before);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), A_PAGES * PS_PAGE);
	assert_int_equal(ps_answer(w1, KVS_WIRE_ABORT_ACK, 1, a.generation), 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_HELD) == 0);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
				    KVS_PROOF_ALL_ACKNOWLEDGED),
			 1);
	ps_quiet(w1);
	ps_room_fini(&wa);
	stop();
}

/* The pool is as large as A: B gets what A had. */
static void place_is_the_same(void **state)
{
	(void)state;
	start("1720K", "no");
	abort_a();
	admit(&b, 1, "w2", 2, B_PAGES);
	copy_b();
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_RECEIVE_REAPED), 1);
	ps_room_fini(&wa);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(places_are_disjoint),
		cmocka_unit_test(place_is_the_same),
	};

	return rig_run_both(tests);
}
