/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what can never fit is refused before it exists, what does not fit
 * now waits its turn and starves nobody; only the rank that was meant opens a
 * room, with the tokens, the attempt and the checksum that were agreed.
 * Virtual clock, no threads.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct rig g;

#define PAGE (4 * 1024u)

/* LMCache#4209: the whole pool fits, one page more can never; what does not
 * fit now waits, and is served when memory comes back. */
static void test_fit_never_or_not_now(void **state)
{
	uint64_t big, small;
	const struct rig_event *e;
	unsigned int pos = 0;

	(void)state;
	rig_up(&g, 64);
	rig_admit(&g, 1, 1, 65, 1);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	e = rig_find(&g, RIG_WORD, &pos);
	assert_int_equal(e->failed.class, 400);
	assert_non_null(strstr(e->failed.text, "pool.size"));
	/* its sender, if it asks, hears the same (and class 400) at once */
	rig_sessions(&g, 1);
	rig_open(&g, 1, 1, 0);
	e = rig_msg(&g, 100, KVS_WIRE_REFUSE);
	assert_non_null(e);
	assert_int_equal(e->msg.refuse.err, E2BIG);
	assert_int_equal(e->msg.refuse.class, 400);
	kvs_worker_session_lost(g.w, 100, 0, "closed");
	g.n = 0;
	/* no trace: no room, no message to any peer, id free */
	assert_int_equal(g.w->rooms.n, 0);
	assert_int_equal(g.w->stats.admits[KVS_ADMIT_NOFIT], 1);
	pos = 0;
	assert_null(rig_find(&g, RIG_PEER, &pos));
	big = rig_admit(&g, 2, 2, 64, 1);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_ADMITTED);
	small = rig_admit(&g, 3, 3, 1, 1);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_WAITING);
	rig_packet(&g, KVS_PACKET_ABORT, 2, big, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 3, small, 0);
	rig_down(&g);
}

/* sglang#31205: a head that can never run must not stop those behind it. */
static void test_oversize_head(void **state)
{
	(void)state;
	rig_up(&g, 64);
	rig_admit(&g, 1, 0, 64, 1);
	rig_admit(&g, 2, 1, 65, 1);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	for (uint32_t i = 0; i < 20; i++)
		rig_admit(&g, 10 + i, 2 + i, 3, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1, 0);
	kvs_worker_turn(g.w);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(rig_status(&g, 2 + i), KVS_STATUS_ADMITTED);
	for (uint32_t i = 0; i < 20; i++)
		rig_packet(&g, KVS_PACKET_ABORT, 2 + i, 3 + i, 0);
	rig_down(&g);
}

/* A big head is passed by small rooms only so often. */
static void test_head_not_starved(void **state)
{
	unsigned int passed = 0;
	uint64_t first, gen[2];

	(void)state;
	rig_up(&g, 64);
	first = rig_admit(&g, 1, 0, 32, 1);
	rig_admit(&g, 2, 1, 40, 1); /* the head: waits for the first */
	for (uint32_t i = 0; i < 100; i++) {
		gen[0] = rig_admit(&g, 100 + i, 10 + i, 1, 1);
		if (rig_status(&g, 10 + i) == KVS_STATUS_ADMITTED)
			passed++;
		rig_packet(&g, KVS_PACKET_ABORT, 10 + i, gen[0], 0);
		kvs_worker_turn(g.w);
	}
	assert_in_range(passed, 1, g.set.overtake);
	rig_packet(&g, KVS_PACKET_ABORT, 0, first, 0);
	kvs_worker_turn(g.w);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_ADMITTED);
	rig_packet(&g, KVS_PACKET_ABORT, 1, first + 1, 0);
	rig_down(&g);
}

/* Who may open: the named peer, its own rank, the tokens agreed, this
 * attempt's nonce, once. */
static void test_open_refused(void **state)
{
	struct kvs_rank_slice all = { 0, 2 };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1000,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 80,
				      .n_ranks = 1,
				      .ranks = &all };
	struct kvs_msg_open m = { .room = 7 };
	static const struct {
		uint64_t session;
		uint32_t rank;
		uint64_t tokens;
		unsigned char nonce;
		uint32_t err;
	} t[] = {
		{ 101, 1, 0, 9, EACCES }, /* a rank too many */
		{ 200, 0, 0, 9, EACCES }, /* another peer */
		{ 101, 0, 0, 9, EACCES }, /* another rank's name */
		{ 100, 0, 0, 8, ESTALE }, /* an earlier attempt */
		{ 100, 0, 0, 9, 0 },	  { 100, 0, 80, 9, EEXIST },
	};

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	assert_int_equal(kvs_worker_session_add(g.w, 200, "q", 0, 0), 0);
	q.nonce[0] = 9;
	kvs_worker_admit(g.w, &q);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		unsigned int before = g.n;
		const struct rig_event *e;

		m.rank = t[i].rank;
		m.tokens = t[i].tokens;
		m.nonce[0] = t[i].nonce;
		kvs_worker_open(g.w, t[i].session, 1000, &m);
		e = &g.log[g.n - 1];
		assert_true(g.n > before);
		assert_int_equal(e->session, t[i].session);
		if (!t[i].err) {
			assert_int_equal(e->msg.type, KVS_WIRE_GRANT);
			continue;
		}
		assert_int_equal(e->msg.type, KVS_WIRE_REFUSE);
		assert_int_equal(e->msg.refuse.err, t[i].err);
	}
	/* tokens that differ end the room: the two sides disagree for good */
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1000, 0);
	q.generation = 1001;
	kvs_worker_admit(g.w, &q);
	m.tokens = 79;
	kvs_worker_open(g.w, 100, 1001, &m);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	rig_down(&g);
}

/* A rank that gives up while its room waits for memory ends the room; one
 * that never opened it ends nothing, and is no violation either. */
static void test_refuse_while_waiting(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE };
	unsigned int pos = 0;
	uint64_t a, b;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	a = rig_admit(&g, 1, 0, 64, 1);
	rig_open(&g, 1, a, 0);
	b = rig_admit(&g, 2, 1, 64, 1);
	rig_open(&g, 2, b, 0);
	m.refuse.room = 2;
	m.refuse.generation = b;
	m.refuse.rank = 0;
	m.refuse.err = E2BIG;
	m.refuse.class = 400;
	snprintf(m.refuse.text, sizeof(m.refuse.text), "prompt too long");
	kvs_worker_message(g.w, 101, &m);
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_WAITING);
	kvs_worker_message(g.w, 100, &m);
	assert_int_equal(rig_errno(&g, 1), E2BIG);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_SENDER_REFUSED], 1);
	assert_null(rig_find(&g, RIG_CLOSE, &pos));
	rig_packet(&g, KVS_PACKET_ABORT, 0, a, 0);
	rig_down(&g);
}

static uint64_t digest_room(uint64_t room, uint32_t slot, uint16_t kind,
			    uint32_t xor)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAST };
	uint64_t gen = rig_admit(&g, room, slot, 1, 1);
	struct kvs_digest d;

	/* one page of k 0, k 1, v 0, v 1: the stream in that order */
	kvs_digest_init(&d, KVS_DIGEST_CRC32C, PAGE);
	rig_open(&g, room, gen, 0);
	for (unsigned int i = 4; i-- > 0;) {
		struct kvs_receive rx;
		void *addr;

		assert_int_equal(rig_begin(&g, &rx, room, gen, 0, i / 2, i % 2,
					   0, 1, &addr),
				 0);
		memset(addr, (int)(i + 1), 1024);
		assert_int_equal(kvs_digest_add(&d, i * 1024, addr, 1024), 0);
		kvs_worker_receive_end(g.w, &rx, 0, 1024);
	}
	m.last = (struct kvs_msg_last){ .room = room,
					.generation = gen,
					.bytes = PAGE,
					.digest_kind = kind,
					.digest = kvs_digest_value(&d) ^ xor};
	kvs_worker_message(g.w, 100, &m);
	return gen;
}

/* checksum.kind: what arrived must be what was sent, or the room fails and
 * nothing else does; a sender that leaves its digest out breaks the protocol;
 * one that cannot compute any is counted. */
static void test_checksum(void **state)
{
	unsigned int pos = 0;
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	snprintf(g.set.checksum_kind, sizeof(g.set.checksum_kind), "crc32c");
	assert_int_equal(kvs_worker_session_add(g.w, 100, "p", 0,
						KVS_CAP_DRAIN_ACK |
							KVS_CAP_CRC32C),
			 0);
	gen = digest_room(1, 0, KVS_DIGEST_CRC32C, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	digest_room(2, 1, KVS_DIGEST_CRC32C, 0x100);
	assert_int_equal(rig_errno(&g, 1), EBADMSG);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_CHECKSUM], 1);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	assert_null(rig_find(&g, RIG_CLOSE, &pos));
	digest_room(3, 2, KVS_DIGEST_NONE, 0);
	pos = 0;
	assert_non_null(rig_find(&g, RIG_CLOSE, &pos));
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_RECEIVING);
	kvs_worker_session_lost(g.w, 100, -EPROTO, "protocol");
	assert_int_equal(g.w->stats.checksum_skipped, 0);
	rig_sessions(&g, 1);
	digest_room(4, 3, KVS_DIGEST_NONE, 0);
	assert_int_equal(rig_status(&g, 3), KVS_STATUS_READY);
	assert_int_equal(g.w->stats.checksum_skipped, 1);
	rig_packet(&g, KVS_PACKET_ABORT, 0, gen, 0);
	rig_packet(&g, KVS_PACKET_ABORT, 3, gen + 3, 0);
	rig_down(&g);
}

/* A model that keeps only state: one extent, however long the prompt. */
static void test_state_only(void **state)
{
	struct kvs_layer_buffer b = { KVS_BUFFER_MAMBA, 0, 4096, 3 };
	struct kvs_layout l = { .size = sizeof(l),
				.page_size = 4,
				.dtype = KVS_DTYPE_BF16,
				.n_buffers = 1,
				.buffers = &b };
	struct kvs_rank_slice all = { 0, 1 };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 100000,
				      .n_ranks = 1,
				      .ranks = &all };
	enum kvs_proto_error why;
	struct kvs_msg_chunk m = { .room = 7,
				   .generation = 1,
				   .kind = KVS_BUFFER_MAMBA,
				   .len = 3 * 4096 };
	struct kvs_receive rx = { 0 };
	void *addr;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 1);
	kvs_worker_engine_lost(g.w, RIG_ENGINE, true);
	kvs_worker_turn(g.w);
	assert_int_equal(kvs_worker_engine_add(g.w, RIG_ENGINE, &l), 0);
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_ADMITTED);
	rig_open(&g, 7, 1, 0);
	assert_int_equal(
		kvs_worker_receive_begin(g.w, 100, &m, &rx, &addr, &why), 0);
	assert_non_null(addr);
	kvs_worker_receive_end(g.w, &rx, 0, m.len);
	rig_last(&g, 7, 1, 0, m.len);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 0, 1, 0);
	rig_down(&g);
}

/* A room whose ranks do not cover each layer once is refused before it
 * exists. */
static void test_slices(void **state)
{
	struct kvs_rank_slice two[2] = { { 0, 1 }, { 0, 2 } };
	struct kvs_room_request q = { .room = 7,
				      .generation = 1000,
				      .engine = RIG_ENGINE,
				      .peer = "p",
				      .tokens = 80,
				      .n_ranks = 2,
				      .ranks = two };

	(void)state;
	rig_up(&g, 64);
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	two[1].first_layer = 3;
	q.generation++;
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	two[1].first_layer = UINT32_MAX;
	two[1].n_layers = UINT32_MAX;
	q.generation++;
	kvs_worker_admit(g.w, &q);
	assert_int_equal(rig_errno(&g, 0), EPROTOTYPE);
	assert_int_equal(g.w->stats.admits[KVS_ADMIT_LAYOUT], 3);
	/* a zero-byte rank is fine: it must still open and say LAST */
	two[0] = (struct kvs_rank_slice){ 0, 2 };
	two[1] = (struct kvs_rank_slice){ 0, 0 };
	q.generation++;
	kvs_worker_admit(g.w, &q);
	rig_sessions(&g, 2);
	rig_open(&g, 7, q.generation, 0);
	rig_send_all(&g, 7, q.generation, 0, 1, 20);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	rig_open(&g, 7, q.generation, 1);
	rig_last(&g, 7, q.generation, 1, 0);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 0, q.generation, 0);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fit_never_or_not_now),
		cmocka_unit_test(test_oversize_head),
		cmocka_unit_test(test_head_not_starved),
		cmocka_unit_test(test_open_refused),
		cmocka_unit_test(test_refuse_while_waiting),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_state_only),
		cmocka_unit_test(test_slices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
