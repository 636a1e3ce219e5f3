/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims for writers that write by themselves, where a launched write cannot
 * be called back. Memory of an aborted room goes to nobody while a write into
 * it is under way, with the writer's word (sgl-project/sglang#24527, #35049)
 * and, from a second writer, in spite of its order (#36610); at hold.timeout
 * the grant is taken back and what comes after that lands nowhere. A writer
 * that reports a failed send has not stopped: its room is never drained, it is
 * revoked, and others on its connection drain as ever (sgl-project/sglang
 * #43719, #45973, kvcache-ai/Mooncake#4247). Keys of an earlier daemon reach
 * nothing and its writer is served again at once (smg-project/smg#2382). A
 * peer that is removed with 64 writes under way: all of them end before its
 * connection does, its memory is given back after that; where a grant cannot be
 * closed its writer's connections go, and that is the proof (kvcache-ai/Mooncake#1903,
 * ai-dynamo/nixl#2044).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/regress/onesided_peers.h"

#define CHUNK 16u /* pages of a write */

static struct op_rig g[1];

/* Pages of a source, all of one byte. */
static const unsigned char *source(unsigned char v)
{
	static unsigned char pages[256][CHUNK * OP_PAGE];

	memset(pages[v], v, sizeof(pages[v]));
	return pages[v];
}

static uint64_t wrong_bytes(uint32_t slot, uint32_t pages, unsigned char v)
{
	uint64_t bad = 0;

	for (uint32_t p = 0; p < pages; p++)
		for (uint32_t i = 0; i < OP_PAGE; i++)
			bad += op_page(g, slot, p)[i] != v;
	return bad;
}

/* All pages from @first on, and LAST of @pages. */
static void send_rest(struct op_writer *w, const struct op_grant *r,
		      uint32_t first, uint32_t pages, unsigned char v)
{
	struct op_write x;
	uint32_t n;

	for (; first < pages; first += n) {
		n = pages - first < CHUNK ? pages - first : CHUNK;
		n -= first / OP_EXTENT_PAGES ==
				     (first + n - 1) / OP_EXTENT_PAGES
			     ? 0
			     : (first + n) % OP_EXTENT_PAGES;
		op_write(w, r, first, n, source(v), &x);
		op_run(g);
		assert_int_equal(x.done, 1);
		assert_int_equal(x.status, 0);
	}
	op_last(w, r, pages);
}

static void strike(enum kvs_loop_event_kind kind, enum kvs_loop_fault fault,
		   unsigned int skip, unsigned int count, uint64_t at)
{
	g->script.kind = kind;
	g->script.fault = fault;
	g->script.skip = skip;
	g->script.count = count;
	g->script.at = at;
}

static void commit(uint32_t slot)
{
	op_packet(g, KVS_PACKET_COMMIT, slot);
	op_packet(g, KVS_PACKET_COMMITTED, slot);
	assert_int_equal(op_status(g, slot), KVS_STATUS_DONE);
}

/* ---- a late write ---------------------------------------------------------- */

/* A's second write has stopped 5000 bytes into its memory when A is aborted;
 * B, of another writer, needs that memory. */
static struct op_grant *begin_race(struct op_writer *w1, uint32_t a_pages,
				   struct op_write *x)
{
	struct op_grant *a;

	op_admit(g, 0, 1, 0, a_pages);
	a = op_open(w1, 1, a_pages);
	assert_non_null(a);
	op_write(w1, a, 0, CHUNK, source(0xaa), &x[0]);
	op_run(g);
	assert_int_equal(x[0].done, 1);
	strike(KVS_LOOP_WRITE, KVS_LOOP_STALL, 0, 1, 5000);
	/* a whole write, at the end of an extent */
	op_write(w1, a, CHUNK, 15, source(0xaa), &x[1]);
	op_run(g);
	assert_int_equal(x[1].done, 0);
	op_packet(g, KVS_PACKET_ABORT, 0);
	assert_int_equal(op_status(g, 0), KVS_STATUS_FAILED);
	assert_int_equal(op_bytes(g, KVS_EXTENT_HELD),
			 (uint64_t)a_pages * OP_PAGE);
	return a;
}

/* B as a whole, from writer 2; W1's write goes on before it is complete, when
 * it is, and in the middle of its copy, whichever is @when. */
static void send_b(struct op_writer *w2, uint32_t pages, int when)
{
	struct op_grant *b = op_open(w2, 2, pages);
	unsigned char *device = malloc((size_t)pages * OP_PAGE);
	struct op_write x;
	uint64_t bad = 0;

	assert_non_null(device);
	assert_non_null(b);
	op_write(w2, b, 0, CHUNK, source(0xbb), &x);
	op_run(g);
	if (when == 0)
		kvs_fabric_release(g->fabric);
	send_rest(w2, b, CHUNK, pages, 0xbb);
	assert_int_equal(op_status(g, 1), KVS_STATUS_READY);
	if (when == 1)
		kvs_fabric_release(g->fabric);
	op_run(g);
	op_packet(g, KVS_PACKET_COMMIT, 1);
	for (uint32_t p = 0; p < pages; p++) {
		if (p == pages / 2 && when == 2) {
			kvs_fabric_release(g->fabric);
			op_run(g);
		}
		memcpy(device + (size_t)p * OP_PAGE, op_page(g, 1, p), OP_PAGE);
	}
	op_packet(g, KVS_PACKET_COMMITTED, 1);
	assert_int_equal(op_status(g, 1), KVS_STATUS_DONE);
	for (size_t i = 0; i < (size_t)pages * OP_PAGE; i++)
		bad += device[i] != 0xbb;
	assert_int_equal(bad, 0);
	free(device);
}

/* The writer answers when its write has ended, which it does in A's memory. */
static void reuse_waits_for_the_writer(void **state)
{
	struct op_writer *w1, *w2;
	struct op_write x[2];
	struct op_grant *a;

	(void)state;
	op_up(g, 96);
	w1 = op_writer(g, 0);
	w2 = op_writer(g, 1);
	a = begin_race(w1, 31, x);
	op_admit(g, 1, 2, 1, 96);
	assert_int_equal(op_status(g, 1), KVS_STATUS_WAITING);
	/* six seconds later */
	op_advance(g, 6 * KVS_NSEC_PER_SEC);
	assert_int_equal(op_status(g, 1), KVS_STATUS_WAITING);
	assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), 31 * OP_PAGE);
	assert_int_equal(kvs_fabric_release(g->fabric), 1);
	op_run(g);
	assert_int_equal(x[1].done, 1);
	assert_int_equal(op_status(g, 1), KVS_STATUS_WAITING);
	op_say(w1, KVS_WIRE_ABORT_ACK, a);
	assert_int_equal(op_status(g, 1), KVS_STATUS_ADMITTED);
	assert_int_equal(
		op_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_ALL_ACKNOWLEDGED), 1);
	send_b(w2, 96, -1);
	op_down(g);
}

/* The writer never answers: its grant is taken back at hold.timeout, and its
 * write, let go after that, lands nowhere. */
static void late_write_lands_nowhere(uint32_t pool, uint32_t a, uint32_t b,
				     int when)
{
	struct op_writer *w1, *w2;
	struct op_write x[2];

	op_up(g, pool);
	w1 = op_writer(g, 0);
	w2 = op_writer(g, 1);
	(void)begin_race(w1, a, x);
	op_admit(g, 1, 2, 1, b);
	assert_int_equal(op_status(g, 1), KVS_STATUS_WAITING);
	op_advance(g, g->set.hold_timeout - 1);
	assert_int_equal(op_status(g, 1), KVS_STATUS_WAITING);
	assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), (uint64_t)a * OP_PAGE);
	op_advance(g, 1);
	assert_int_equal(op_status(g, 1), KVS_STATUS_ADMITTED);
	assert_int_equal(op_drains(g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_GRANT_INVALIDATED),
			 1);
	send_b(w2, b, when);
	assert_int_equal(op_faults(g).refused_late, 1);
	assert_int_equal(x[1].status, -EREMOTEIO);
	assert_int_equal(w1->close_err, -EREMOTEIO);
	op_down(g);
}

static void taken_back_at_the_limit(void **state)
{
	(void)state;
	for (int when = 0; when < 3; when++) {
		late_write_lands_nowhere(96, 31, 96, when);
		late_write_lands_nowhere(430, 430, 105, when);
	}
}

/* Pool of both: B gets other memory at once, A's is held, and the write that
 * goes on lands there. */
static void places_are_disjoint(void **state)
{
	struct op_writer *w1, *w2;
	struct op_write x[2];
	struct op_grant *a;

	(void)state;
	for (int when = 0; when < 3; when++) {
		op_up(g, 535);
		w1 = op_writer(g, 0);
		w2 = op_writer(g, 1);
		a = begin_race(w1, 430, x);
		op_admit(g, 1, 2, 1, 105);
		assert_int_equal(op_status(g, 1), KVS_STATUS_ADMITTED);
		assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), 430 * OP_PAGE);
		assert_int_equal(op_bytes(g, KVS_EXTENT_FREE), 0);
		send_b(w2, 105, when);
		assert_int_equal(x[1].done, 1);
		assert_int_equal(x[1].status, 0);
		assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), 430 * OP_PAGE);
		op_say(w1, KVS_WIRE_ABORT_ACK, a);
		assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), 0);
		op_down(g);
	}
}

/* ---- a failed send --------------------------------------------------------- */

static void failed_send_is_not_drained(void **state)
{
	struct op_write x[8];
	struct op_grant *a, *b;
	uint64_t before;
	struct op_writer *w;

	(void)state;
	op_up(g, 256);
	w = op_writer(g, 0);
	op_admit(g, 0, 1, 0, 128);
	a = op_open(w, 1, 128);
	op_admit(g, 1, 2, 0, 16);
	b = op_open(w, 2, 16);
	/* chunk 3 of 8 is called failed, and goes on for four seconds */
	strike(KVS_LOOP_WRITE, KVS_LOOP_STALL, 2, 1, 5000);
	for (uint32_t i = 0; i < 3; i++)
		op_write(w, a, i * CHUNK, CHUNK, source(0xaa), &x[i]);
	op_run(g);
	assert_int_equal(x[1].done, 1);
	assert_int_equal(x[2].done, 0);
	op_packet(g, KVS_PACKET_ABORT, 0);
	op_say(w, KVS_WIRE_ABORT_NAK, a);
	/* not waited for, as no answer can come: taken back at once */
	assert_int_equal(op_drains(g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_GRANT_INVALIDATED),
			 1);
	for (int p = 0; p < KVS_PROOF_MAX; p++)
		assert_int_equal(
			op_drains(g, KVS_DRAIN_DRAINED, (enum kvs_proof)p), 0);
	/* an acknowledgement after that is no proof of anything */
	op_say(w, KVS_WIRE_ABORT_ACK, a);
	/* the other room of the connection drains as ever */
	op_packet(g, KVS_PACKET_ABORT, 1);
	op_say(w, KVS_WIRE_ABORT_ACK, b);
	assert_int_equal(op_bytes(g, KVS_EXTENT_FREE), 256 * OP_PAGE);
	assert_int_equal(
		op_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_ALL_ACKNOWLEDGED), 1);
	before = op_sum(g);
	op_advance(g, 4 * KVS_NSEC_PER_SEC);
	kvs_fabric_release(g->fabric);
	op_run(g);
	assert_int_equal(x[2].done, 1);
	assert_int_equal(x[2].status, -EREMOTEIO);
	assert_true(op_sum(g) == before);
	op_down(g);
}

/* ---- a restarted daemon ---------------------------------------------------- */

static void old_keys_reach_nothing(void **state)
{
	struct op_grant old, *now;
	struct op_write x;
	struct op_writer *w;
	uint64_t before;

	(void)state;
	op_up(g, 64);
	w = op_writer(g, 0);
	op_admit(g, 0, 1, 0, 32);
	old = *op_open(w, 1, 32);
	op_write(w, &old, 0, CHUNK, source(0xaa), &x);
	op_run(g);
	op_restart(g);
	assert_null(w->c);

	/* the same writer, without a restart of its own */
	w = op_writer(g, 0);
	op_admit(g, 1, 1, 0, 32);
	now = op_open(w, 1, 32);
	assert_non_null(now);
	before = op_sum(g);
	op_write(w, &old, 0, CHUNK, source(0xaa), &x);
	op_run(g);
	assert_int_equal(x.status, -EREMOTEIO);
	assert_true(op_sum(g) == before);
	/* it has cost the connection; with what is said now it works */
	assert_null(w->c);
	op_run(g);
	assert_int_equal(op_status(g, 1), KVS_STATUS_FAILED);
	op_say(w, KVS_WIRE_ABORT_ACK, now);
	op_connect(w);
	op_admit(g, 2, 3, 0, 32);
	now = op_open(w, 3, 32);
	send_rest(w, now, 0, 32, 0xbb);
	assert_int_equal(op_status(g, 2), KVS_STATUS_READY);
	assert_int_equal(wrong_bytes(2, 32, 0xbb), 0);
	commit(2);
	op_down(g);
}

/* ---- a peer is removed ----------------------------------------------------- */

static void all_end_before_the_connection(void **state)
{
	struct op_write *x = calloc(64, sizeof(*x));
	struct op_grant *a;
	struct op_writer *w;

	(void)state;
	assert_non_null(x);
	op_up(g, 64);
	w = op_writer(g, 0);
	op_admit(g, 0, 1, 0, 64);
	a = op_open(w, 1, 64);
	strike(KVS_LOOP_WRITE, KVS_LOOP_STALL, 0, 64, 100);
	for (uint32_t i = 0; i < 64; i++)
		op_write(w, a, i, 1, source(0xaa), &x[i]);
	op_run(g);
	assert_int_equal(w->completed, 0);
	/* its memory is held as long as one of them may land */
	assert_int_equal(kvs_node_session_lost(&g->node, w->session,
					       -ECONNRESET, "removed"),
			 0);
	op_run(g);
	assert_int_equal(op_status(g, 0), KVS_STATUS_FAILED);
	assert_null(w->c);
	assert_int_equal(w->completed_at_close, 64);
	for (uint32_t i = 0; i < 64; i++) {
		assert_int_equal(x[i].done, 1);
		assert_true(x[i].status < 0);
		assert_int_equal(x[i].nr, i);
	}
	assert_int_equal(op_bytes(g, KVS_EXTENT_FREE), 64 * OP_PAGE);
	assert_int_equal(op_drains(g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_CONNECTION_TORN_DOWN),
			 1);
	free(x);
	op_down(g);
}

/* A grant whose closing fails: the connections go, and with them the last way
 * to write; the memory comes back with that proof and not before. */
static void grant_that_cannot_be_closed(void **state)
{
	(void)state;
	for (unsigned int attempts = 1; attempts < 4; attempts++) {
		struct op_writer *w;

		op_up(g, 64);
		w = op_writer(g, 0);
		op_admit(g, 0, 1, 0, 64);
		assert_non_null(op_open(w, 1, 64));
		strike(KVS_LOOP_CLOSE, KVS_LOOP_CLOSE_FAILS, 0, 1, attempts);
		op_packet(g, KVS_PACKET_ABORT, 0);
		op_advance(g, g->set.hold_timeout);
		assert_int_equal(g->errors, 1);
		assert_int_equal(g->closes, 1);
		assert_null(w->c);
		assert_int_equal(op_drains(g, KVS_DRAIN_REVOKED,
					   KVS_PROOF_CONNECTION_TORN_DOWN),
				 1);
		g->errors = 0;
		op_down(g);
	}
}

/* ---- SEALING --------------------------------------------------------------- */

/* Everything is there and the grant is being closed: an abort now is one like
 * any other, and a second one finds nothing (sgl-project/sglang#17483). */
static void aborted_while_sealing(void **state)
{
	struct op_grant *a;
	struct op_writer *w;

	(void)state;
	op_up(g, 64);
	w = op_writer(g, 0);
	op_admit(g, 0, 1, 0, 32);
	a = op_open(w, 1, 32);
	strike(KVS_LOOP_CLOSE, KVS_LOOP_DELAY, 0, 1, KVS_NSEC_PER_SEC);
	send_rest(w, a, 0, 32, 0xaa);
	assert_int_equal(op_status(g, 0), KVS_STATUS_SEALING);
	op_packet(g, KVS_PACKET_ABORT, 0);
	op_packet(g, KVS_PACKET_ABORT, 0);
	assert_int_equal(op_status(g, 0), KVS_STATUS_FAILED);
	assert_int_equal(g->node.worker->stats.failures[KVS_CAUSE_ENGINE_ABORT],
			 1);
	assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), 32 * OP_PAGE);
	op_say(w, KVS_WIRE_ABORT_ACK, a);
	/* its word alone is not enough: the grant may still be open */
	assert_int_equal(op_bytes(g, KVS_EXTENT_HELD), 32 * OP_PAGE);
	op_advance(g, KVS_NSEC_PER_SEC);
	assert_int_equal(op_bytes(g, KVS_EXTENT_FREE), 64 * OP_PAGE);
	assert_int_equal(w->completes, 0);
	op_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reuse_waits_for_the_writer),
		cmocka_unit_test(taken_back_at_the_limit),
		cmocka_unit_test(places_are_disjoint),
		cmocka_unit_test(failed_send_is_not_drained),
		cmocka_unit_test(old_keys_reach_nothing),
		cmocka_unit_test(all_end_before_the_connection),
		cmocka_unit_test(grant_that_cannot_be_closed),
		cmocka_unit_test(aborted_while_sealing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
