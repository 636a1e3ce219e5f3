/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, for a rank that is told to stop or stops by itself: ABORT with
 * chunks outstanding is acknowledged after the last of them completed and
 * exactly once (sgl-project/sglang#38961); ABORT for a room this side has
 * forgotten is acknowledged at once when nothing is outstanding and not
 * before (#37077); a room whose send failed answers a negative
 * acknowledgement, always (#43719); every ABORT that is repeated is answered
 * again; a late ABORT of an earlier attempt leaves the present one alone; an
 * aborted room takes no more pages and gives back the ones it has, once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/unit/pipeline/sender_rig.h"

#define PAGE (1u << 20) /* bytes; far over what socket buffers hold */
#define PAGES 32

static const struct kvs_layer_buffer big[] = { { KVS_BUFFER_K, 0, PAGE, 0 } };
static uint32_t map[PAGES];

static struct rig *new_rig(void)
{
	struct kvs_rng rng;
	struct rig *g;
	uint32_t i;

	kvs_rng_init(&rng, 11);
	g = rig_new(big, 1, 16, PAGES, &rng);
	for (i = 0; i < PAGES; i++)
		map[i] = PAGES - 1 - i;
	g->o.chunk_max = 8 * PAGE;
	g->o.window = 64ULL * PAGE;
	g->rcvbuf = 65536;
	return g;
}

/* A granted room with all pages queued and some of them stuck on the way. */
static struct kvs_send_room *stuck_room(struct rig *g, uint64_t id,
					uint64_t generation,
					struct rig_room **ret)
{
	struct kvs_send_room *r;
	struct rig_room *w;
	struct kvs_msg m;
	uint32_t p;

	g->hold = true;
	assert_int_equal(kvs_send_open(g->s, id, NULL, PAGES * 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	w = rig_room_new(g, id, generation, PAGES * 16, 8 * 16, 0, 1, 0);
	rig_grant(g, w);
	for (p = 0; p < PAGES; p += 8)
		assert_int_equal(kvs_send_pages(r, p, map + p, 8, NULL), 0);
	rig_wait_outstanding(g, r, true);
	*ret = w;
	return r;
}

static void expect_answer(struct rig *g, enum kvs_wire_type type, uint64_t id,
			  uint64_t generation)
{
	struct kvs_msg m;

	rig_expect(g, type, &m);
	assert_int_equal(m.abort.room, id);
	assert_int_equal(m.abort.generation, generation);
	assert_int_equal(m.abort.rank, g->o.rank);
	if (type == KVS_WIRE_ABORT_NAK)
		assert_int_not_equal(m.abort.err, 0);
}

static void ack_only_after_completion(void **state)
{
	struct rig *g = new_rig();
	uint64_t id;

	(void)state;
	rig_start(g);
	for (id = 1; id <= 4; id++) {
		struct kvs_send_room *r;
		struct rig_room *w;
		struct rig_event e;

		r = stuck_room(g, id, 100 + id, &w);
		rig_abort(g, id, 100 + id);
		rig_quiet(g);
		assert_true(kvs_send_outstanding(r) > 0);
		assert_int_equal(rig_count(g, RIG_DONE, id), 0);
		/* it takes no more, and does not promise to call back */
		assert_int_equal(kvs_send_pages(r, 0, map, 1, NULL),
				 -ECANCELED);
		assert_int_equal(kvs_send_finish(r), -ECANCELED);
		g->hold = false;
		expect_answer(g, KVS_WIRE_ABORT_ACK, id, 100 + id);
		assert_int_equal(kvs_send_outstanding(r), 0);
		e = rig_wait(g, RIG_DONE, id, 0);
		assert_int_equal(e.status, -ECANCELED);
		assert_string_equal(e.text, "client went away");
		assert_int_equal(rig_count(g, RIG_FREE, id), PAGES / 8);
		rig_quiet(g);
		kvs_send_close(r);
		rig_room_forget(g, w);
	}
	rig_free(g);
}

static void repeated_while_outstanding(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;
	int i;

	(void)state;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	for (i = 0; i < 3; i++)
		rig_abort(g, 1, 7);
	rig_quiet(g);
	g->hold = false;
	for (i = 0; i < 3; i++)
		expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	rig_quiet(g);
	kvs_send_close(r);
	/* and after everything is over and forgotten */
	for (i = 0; i < 3; i++) {
		rig_abort(g, 1, 7);
		expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	}
	rig_quiet(g);
	rig_free(g);
}

/* Its user has closed it, its chunk has not: not forgotten. */
static void closed_but_outstanding(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;
	struct kvs_msg m;

	(void)state;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	kvs_send_close(r);
	rig_expect(g, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.generation, 7);
	assert_int_equal(m.abort.err, ECANCELED);
	rig_abort(g, 1, 7);
	rig_quiet(g);
	/* a late grant of a second attempt must not disturb that */
	g->hold = false;
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ECANCELED);
	assert_int_equal(rig_count(g, RIG_FREE, 1), PAGES / 8);
	rig_quiet(g);
	rig_free(g);
}

static void never_heard_of_it(void **state)
{
	struct rig *g = new_rig();

	(void)state;
	rig_start(g);
	rig_abort(g, 99, 1234);
	expect_answer(g, KVS_WIRE_ABORT_ACK, 99, 1234);
	rig_quiet(g);
	rig_free(g);
}

static void failed_send_is_never_acknowledged(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;
	struct rig_event e;
	struct kvs_msg m;
	int i;

	(void)state;
	g->o.data_connections = 1;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	rig_close_data(g, 0, true);
	/* it tells by itself */
	rig_expect(g, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, 1);
	assert_int_equal(m.abort.generation, 7);
	assert_int_equal(m.abort.err, ECONNRESET);
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_true(e.status < 0);
	assert_int_equal(rig_count(g, RIG_FREE, 1), PAGES / 8);
	for (i = 0; i < 2; i++) {
		rig_abort(g, 1, 7);
		expect_answer(g, KVS_WIRE_ABORT_NAK, 1, 7);
	}
	kvs_send_close(r);
	/* forgotten here, but not that */
	for (i = 0; i < 2; i++) {
		rig_abort(g, 1, 7);
		expect_answer(g, KVS_WIRE_ABORT_NAK, 1, 7);
	}
	/* other rooms drain normally */
	g->hold = false;
	g->rcvbuf = 0;
	r = stuck_room(g, 2, 8, &w);
	rig_abort(g, 2, 8);
	g->hold = false;
	expect_answer(g, KVS_WIRE_ABORT_ACK, 2, 8);
	kvs_send_close(r);
	rig_quiet(g);
	rig_free(g);
}

/* ABORT came first, then the send failed: still no acknowledgement. */
static void send_fails_after_abort(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;

	(void)state;
	g->o.data_connections = 1;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	rig_abort(g, 1, 7);
	rig_quiet(g);
	rig_close_data(g, 0, true);
	expect_answer(g, KVS_WIRE_ABORT_NAK, 1, 7);
	rig_wait(g, RIG_DONE, 1, 0);
	rig_quiet(g);
	kvs_send_close(r);
	rig_free(g);
}

static void own_abort_tells_the_daemon(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;
	struct rig_event e;
	struct kvs_msg m;

	(void)state;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	assert_int_equal(kvs_send_abort(r, -EIO, "GPU fell\noff the bus"), 0);
	assert_int_equal(kvs_send_abort(r, ENOMEM, "again"), 0);
	rig_expect(g, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.err, EIO);
	assert_string_equal(m.abort.text, "GPU fell?off the bus");
	assert_int_equal(kvs_send_pages(r, 0, map, 1, NULL), -ECANCELED);
	/* the daemon drains it: the same rule holds */
	rig_abort(g, 1, 7);
	rig_quiet(g);
	assert_int_equal(rig_count(g, RIG_DONE, 1), 0);
	g->hold = false;
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_int_equal(e.status, -EIO);
	kvs_send_close(r);
	rig_quiet(g);
	rig_free(g);
}

static void abort_before_grant(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;
	struct rig_event e;
	struct kvs_msg m;

	(void)state;
	rig_start(g);
	/* by the daemon, which knows the generation first */
	assert_int_equal(kvs_send_open(g->s, 1, NULL, 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	assert_int_equal(kvs_send_pages(r, 0, map, 1, NULL), 0);
	rig_abort(g, 1, 5);
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 5);
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_int_equal(e.status, -ECANCELED);
	e = rig_wait(g, RIG_FREE, 1, 0);
	assert_int_equal(e.status, -ECANCELED);
	kvs_send_close(r);

	/* by this side; the grant crosses and is undone */
	assert_int_equal(kvs_send_open(g->s, 2, NULL, 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	assert_int_equal(kvs_send_abort(r, 0, NULL), 0);
	rig_expect(g, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.room, 2);
	assert_int_equal(rig_wait(g, RIG_DONE, 2, 0).status, -ECANCELED);
	kvs_send_close(r);
	w = rig_room_new(g, 2, 6, 16, 16, 0, 1, 0);
	rig_grant(g, w);
	rig_expect(g, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, 2);
	assert_int_equal(m.abort.generation, 6);
	assert_int_equal(rig_count(g, RIG_GRANTED, 2), 0);
	rig_free(g);
}

static void late_abort_of_an_earlier_attempt(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_room *w;
	struct kvs_msg m;

	(void)state;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	rig_abort(g, 1, 7);
	g->hold = false;
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	rig_wait(g, RIG_DONE, 1, 0);
	kvs_send_close(r);
	rig_room_forget(g, w);

	/* the id again: opened, not granted */
	assert_int_equal(kvs_send_open(g->s, 1, NULL, PAGES * 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	rig_abort(g, 1, 7);
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	/* and granted */
	w = rig_room_new(g, 1, 8, PAGES * 16, 8 * 16, 0, 1, 0);
	rig_grant(g, w);
	rig_wait(g, RIG_GRANTED, 1, 1);
	rig_abort(g, 1, 7);
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	assert_int_equal(kvs_send_pages(r, 0, map, PAGES, NULL), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 1).status, 0);
	rig_check_pages(g, w, map);
	kvs_send_close(r);
	rig_free(g);
}

/* One rank serves several rooms: the others go on while one is aborted. */
static void others_go_on(void **state)
{
	struct kvs_send_room *a, *b;
	struct rig *g = new_rig();
	struct rig_room *wa, *wb;

	(void)state;
	rig_start(g);
	a = stuck_room(g, 1, 7, &wa);
	b = stuck_room(g, 2, 8, &wb);
	rig_abort(g, 1, 7);
	rig_quiet(g);
	g->hold = false;
	expect_answer(g, KVS_WIRE_ABORT_ACK, 1, 7);
	/* only now, or its LAST may come before that answer */
	assert_int_equal(kvs_send_finish(b), 0);
	rig_finish_room(g, wb);
	assert_int_equal(rig_wait(g, RIG_DONE, 2, 0).status, 0);
	rig_check_pages(g, wb, map);
	kvs_send_close(a);
	kvs_send_close(b);
	rig_free(g);
}

static void destroy_aborts_what_is_open(void **state)
{
	struct rig *g = new_rig();
	struct rig_room *w;
	struct kvs_send_room *r;

	(void)state;
	rig_start(g);
	r = stuck_room(g, 1, 7, &w);
	(void)r;
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ack_only_after_completion),
		cmocka_unit_test(repeated_while_outstanding),
		cmocka_unit_test(closed_but_outstanding),
		cmocka_unit_test(never_heard_of_it),
		cmocka_unit_test(failed_send_is_never_acknowledged),
		cmocka_unit_test(send_fails_after_abort),
		cmocka_unit_test(own_abort_tells_the_daemon),
		cmocka_unit_test(abort_before_grant),
		cmocka_unit_test(late_abort_of_an_earlier_attempt),
		cmocka_unit_test(others_go_on),
		cmocka_unit_test(destroy_aborts_what_is_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
