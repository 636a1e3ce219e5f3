/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over TCP with plain sockets and with io_uring: memory of an aborted
 * room whose writer has stalled within a chunk goes to another room only
 * after our own receive into it is over (sgl-project/sglang#24527,
 * axboe/liburing#1375, netty/netty#17238), what that receive had got so far is
 * no progress of anybody, and where the writer's word is asked for, only after
 * that too; what the old writer sends afterwards is counted and lands
 * nowhere; a retry under the same room id gets a new generation, and what is
 * left of the first attempt, bytes, totals and acknowledgement, does not
 * reach it (volcano-sh/kthena#1423); the connection goes on being usable.
 */
#include <errno.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGE 32768u /* bytes */
#define TOKENS 16u /* of a page */
#define CHUNK (8 * PAGE)

static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_K, 0, PAGE, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 1,
	.buffers = buffers,
};

static struct rig g[1];

/* A pool of 96 pages; one rank with two data connections. */
static void start(struct pe *e, struct ps *p, const char *require_ack)
{
	rig_init(g, rig_engine(), "3M");
	rig_set(g, "hold.require_ack", require_ack);
	rig_up(g);
	pe_up(e, g->set.engine_socket, &layout);
	ps_up(p, g->port, "p", 0, 1, &layout);
	assert_int_equal(ps_data(p), 1);
}

static void stop(struct pe *e, struct ps *p)
{
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

/* The room is granted, and @sent bytes of its first chunk's payload are here,
 * on data connection 0. */
static void stall(struct pe *e, struct ps *p, struct pe_room *r,
		  struct ps_room *w, uint32_t slot, uint64_t room,
		  uint32_t pages, uint32_t chunk, size_t sent)
{
	pe_admit(e, r, slot, room, pages * TOKENS, 1);
	pe_wait(e, r, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(p, room, pages * TOKENS), 0);
	ps_granted(p, w, 0xaa, chunk);
	assert_true(ps_send_part(p, 0, w, 0, 0, KVS_DATA_FRAME + sent) > 0);
	rig_wait(g, rig_parties(g, room) >= 1 + g->set.hold_require_ack);
}

static void abort_room(struct pe *e, struct ps *p, struct pe_room *r)
{
	struct kvs_msg m;

	pe_abort(e, r);
	ps_expect(p, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.generation, r->generation);
}

/* The second room's first half goes first, then what is left of the stalled
 * chunk, then, behind it on the same connection, the second half: when that
 * is there, the old bytes were read as well. */
static void resume_between(struct ps *p, const struct ps_room *old,
			   const struct ps_room *w, size_t sent)
{
	uint32_t half = w->n_chunks / 2;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < w->n_chunks; i++) {
		if (i == half) {
			assert_true(ps_send_part(p, 0, old, 0,
						 KVS_DATA_FRAME + sent, 0) > 0);
			/* and a whole further chunk of it */
			assert_true(ps_send_part(p, 0, old, 1, 0, 0) > 0);
			assert_int_equal(ps_last(p, old, old->bytes), 0);
		}
		assert_true(ps_send_part(p, i < half, w, i, 0, 0) > 0);
		bytes += w->chunks[i].len;
	}
	assert_int_equal(ps_last(p, w, bytes), 0);
}

static void reuse_waits_for_our_receive(void **state)
{
	static const size_t sent[] = { 0, 1, 5000, CHUNK - 1 };
	struct ps_room old, w;
	struct pe_room a, b;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, &p, "no");
	for (uint32_t i = 0; i < KVS_ARRAY_SIZE(sent); i++) {
		uint64_t late;

		stall(&e, &p, &a, &old, 0, 10 + i, 31, CHUNK, sent[i]);
		late = rig_late_bytes(g);
		/* needs what A has */
		pe_admit(&e, &b, 1, 20 + i, 96 * TOKENS, 1);
		pe_wait(&e, &b, KVS_STATUS_WAITING);
		abort_room(&e, &p, &a);
		pe_wait(&e, &b, KVS_STATUS_ADMITTED);
		rig_refresh(g);
		assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
					    KVS_PROOF_RECEIVE_REAPED),
				 i + 1);
		assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 0);
		assert_int_equal(rig_late_bytes(g), late + CHUNK);

		assert_int_equal(ps_open(&p, 20 + i, 96 * TOKENS), 0);
		ps_granted(&p, &w, 0xb0 + i, CHUNK);
		resume_between(&p, &old, &w, sent[i]);
		ps_expect(&p, KVS_WIRE_COMPLETE, &m);
		pe_wait(&e, &b, KVS_STATUS_READY);
		assert_int_equal(pe_differ(&e, &b, 96 * TOKENS, 1, 0xb0 + i),
				 0);
		rig_refresh(g);
		assert_int_equal(rig_late_bytes(g), late + 2 * CHUNK);
		pe_commit(&e, &b);
		assert_int_equal(pe_differ(&e, &b, 96 * TOKENS, 1, 0xb0 + i),
				 0);
		ps_room_fini(&old);
		ps_room_fini(&w);
	}
	stop(&e, &p);
}

/* A receive that is told to stop may end with a part of its bytes. */
static void short_receive_is_no_progress(void **state)
{
	const uint32_t chunk = 32 * PAGE; /* 1 MiB */
	struct ps_room old, w;
	struct pe_room a, b;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, &p, "no");
	stall(&e, &p, &a, &old, 0, 1, 32, chunk, 5000);
	assert_int_equal(old.n_chunks, 1);
	abort_room(&e, &p, &a);
	pe_admit(&e, &b, 1, 2, 96 * TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	rig_refresh(g);
	assert_int_equal(rig_received(g), 0);
	assert_int_equal(rig_late_bytes(g), chunk);
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_RECEIVE_REAPED), 1);
	/* what is left of it, and right behind it another room's bytes */
	assert_int_equal(ps_open(&p, 2, 96 * TOKENS), 0);
	ps_granted(&p, &w, 0xbb, chunk);
	assert_true(ps_send_part(&p, 0, &old, 0, KVS_DATA_FRAME + 5000, 0) > 0);
	for (uint32_t i = 0; i < w.n_chunks; i++)
		assert_true(ps_send_part(&p, 0, &w, i, 0, 0) > 0);
	ps_finish(&p, &w, w.n_chunks);
	pe_take(&e, &b, 96 * TOKENS, 1, 0xbb);
	rig_refresh(g);
	assert_int_equal(rig_received(g), 96 * PAGE);
	assert_int_equal(rig_late_bytes(g), chunk);
	assert_int_equal(a.ready, false);
	ps_room_fini(&old);
	stop(&e, &p);
}

/* hold.require_ack: the memory is out of reach until the rank has said that
 * it is through, however often others are served meanwhile. */
static void reuse_waits_for_the_word(void **state)
{
	struct ps_room old, w;
	struct pe_room a, b, c;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, &p, "yes");
	stall(&e, &p, &a, &old, 0, 1, 31, CHUNK, 5000);
	abort_room(&e, &p, &a);
	rig_wait(g, rig_late_bytes(g) == CHUNK);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 31 * PAGE);

	/* what is free is enough for C and not for B */
	pe_admit(&e, &b, 1, 2, 66 * TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_WAITING);
	pe_admit(&e, &c, 2, 3, 65 * TOKENS, 1);
	pe_wait(&e, &c, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(&p, 3, 65 * TOKENS), 0);
	ps_granted(&p, &w, 0xcc, CHUNK);
	for (uint32_t i = 0; i < w.n_chunks; i++)
		assert_true(ps_send_part(&p, 1, &w, i, 0, 0) > 0);
	ps_finish(&p, &w, w.n_chunks);
	pe_take(&e, &c, 65 * TOKENS, 1, 0xcc);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 31 * PAGE);
	assert_int_equal(pe_status(&e, &b), KVS_STATUS_WAITING);

	/* of another generation: counted, and nothing else */
	assert_int_equal(
		ps_answer(&p, KVS_WIRE_ABORT_ACK, 1, a.generation + 32), 0);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_STALE) == 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 31 * PAGE);

	assert_int_equal(ps_answer(&p, KVS_WIRE_ABORT_ACK, 1, a.generation), 0);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	rig_refresh(g);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
				    KVS_PROOF_ALL_ACKNOWLEDGED),
			 1);
	assert_int_equal(ps_open(&p, 2, 66 * TOKENS), 0);
	ps_granted(&p, &w, 0xbb, CHUNK);
	resume_between(&p, &old, &w, 5000);
	ps_expect(&p, KVS_WIRE_COMPLETE, &m);
	pe_wait(&e, &b, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &b, 66 * TOKENS, 1, 0xbb), 0);
	pe_commit(&e, &b);
	ps_room_fini(&old);
	ps_room_fini(&w);
	stop(&e, &p);
}

static void retry_under_the_same_id(void **state)
{
	struct ps_room old, w;
	struct pe_room a, b;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, &p, "yes");
	memset(e.nonce, 1, sizeof(e.nonce));
	pe_admit(&e, &a, 0, 9, 31 * TOKENS, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	m = (struct kvs_msg){ .type = KVS_WIRE_OPEN,
			      .open = { .room = 9, .tokens = 31 * TOKENS } };
	memset(m.open.nonce, 1, sizeof(m.open.nonce));
	assert_int_equal(ps_say(&p, &m), 0);
	ps_granted(&p, &old, 0xaa, CHUNK);
	assert_true(ps_send_part(&p, 0, &old, 0, 0, 6000) > 0);
	rig_wait(g, rig_parties(g, 9) == 2);
	abort_room(&e, &p, &a);

	/* at once, while attempt 1 still holds its memory */
	memset(e.nonce, 2, sizeof(e.nonce));
	pe_admit(&e, &b, 1, 9, 31 * TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	assert_true(b.generation > a.generation);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 31 * PAGE);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_RESERVED), 31 * PAGE);

	/* a late OPEN of attempt 1 does not get what is meant for 2 */
	m = (struct kvs_msg){ .type = KVS_WIRE_OPEN,
			      .open = { .room = 9, .tokens = 31 * TOKENS } };
	memset(m.open.nonce, 1, sizeof(m.open.nonce));
	assert_int_equal(ps_say(&p, &m), 0);
	ps_expect(&p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.err, ESTALE);
	m = (struct kvs_msg){ .type = KVS_WIRE_OPEN,
			      .open = { .room = 9, .tokens = 31 * TOKENS } };
	memset(m.open.nonce, 2, sizeof(m.open.nonce));
	assert_int_equal(ps_say(&p, &m), 0);
	ps_granted(&p, &w, 0xbb, CHUNK);
	assert_int_equal(w.grant.generation, b.generation);

	/* writer 1 finishes its chunk, its totals, and acknowledges, twice */
	resume_between(&p, &old, &w, 6000 - KVS_DATA_FRAME);
	assert_int_equal(ps_answer(&p, KVS_WIRE_ABORT_ACK, 9, a.generation), 0);
	assert_int_equal(ps_answer(&p, KVS_WIRE_ABORT_ACK, 9, a.generation), 0);
	ps_expect(&p, KVS_WIRE_COMPLETE, &m);
	assert_int_equal(m.complete.generation, b.generation);
	pe_wait(&e, &b, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &b, 31 * TOKENS, 1, 0xbb), 0);
	/* attempt 1 is gone, or about to be */
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_STALE) +
				    rig_acks_ignored(
					    g, KVS_ACK_IGNORED_DUPLICATE) ==
			    1);
	assert_int_equal(rig_late_bytes(g), 2 * CHUNK);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 0);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_STAGED), 31 * PAGE);
	pe_commit(&e, &b);
	ps_room_fini(&old);
	ps_room_fini(&w);
	stop(&e, &p);
}

/* Without acknowledgements too an id is free as soon as its room has failed;
 * no attempt sees the bytes of another. */
static void retries_do_not_mix(void **state)
{
	struct ps_room w;
	struct pe_room r;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, &p, "no");
	for (uint32_t i = 0; i < 100; i++) {
		pe_admit(&e, &r, i % 2, 5, 8 * TOKENS, 1);
		pe_wait(&e, &r, KVS_STATUS_ADMITTED);
		assert_int_equal(ps_open(&p, 5, 8 * TOKENS), 0);
		ps_granted(&p, &w, i, PAGE);
		for (uint32_t c = 0; c < w.n_chunks; c++)
			assert_true(ps_send_part(&p, c % 2, &w, c, 0, 0) > 0);
		if (i % 3) {
			abort_room(&e, &p, &r);
			ps_room_fini(&w);
			continue;
		}
		assert_int_equal(ps_last(&p, &w, w.bytes), 0);
		ps_expect(&p, KVS_WIRE_COMPLETE, &m);
		pe_wait(&e, &r, KVS_STATUS_READY);
		assert_int_equal(pe_differ(&e, &r, 8 * TOKENS, 1, i), 0);
		pe_commit(&e, &r);
		ps_room_fini(&w);
	}
	stop(&e, &p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reuse_waits_for_our_receive),
		cmocka_unit_test(short_receive_is_no_progress),
		cmocka_unit_test(reuse_waits_for_the_word),
		cmocka_unit_test(retry_under_the_same_id),
		cmocka_unit_test(retries_do_not_mix),
	};

	return rig_run_both(tests);
}
