/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a refusal of class 400 ends the room at once with its text; one that
 * asks for patience is tried again until the room's time limit; a lost control
 * connection ends everything; a lost data connection poisons the rooms that
 * have unconfirmed bytes on it, and only those, and is opened again for later
 * rooms; a data connection that cannot be had is reported with its errno.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "tests/unit/pipeline/sender_rig.h"

#define PAGES 16

static const struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_KV, 0, 1024, 0 },
};
static const uint32_t map[PAGES] = { 3, 1, 4,  15, 9,  2,  6,  5,
				     8, 7, 10, 0,  11, 12, 14, 13 };

static struct rig *new_rig(void)
{
	struct kvs_rng rng;

	kvs_rng_init(&rng, 5);
	return rig_new(buffers, 1, 16, PAGES, &rng);
}

static struct kvs_send_room *open_room(struct rig *g, uint64_t id)
{
	struct kvs_send_room *r;
	struct kvs_msg m;

	assert_int_equal(kvs_send_open(g->s, id, NULL, PAGES * 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	assert_int_equal(m.open.room, id);
	return r;
}

static void whole_room(struct rig *g, uint64_t id)
{
	struct kvs_send_room *r = open_room(g, id);
	struct rig_room *w;

	w = rig_room_new(g, id, 500 + id, PAGES * 16, 64, 0, 1, 0);
	rig_grant(g, w);
	assert_int_equal(kvs_send_pages(r, 0, map, PAGES, NULL), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, id, 0).status, 0);
	rig_check_pages(g, w, map);
	kvs_send_close(r);
	rig_room_forget(g, w);
}

static void class_400_at_once(void **state)
{
	static const int errs[] = { E2BIG, EAGAIN, ENOENT, EEXIST };
	struct rig *g = new_rig();
	struct kvs_send_room *r;
	struct rig_event e;
	unsigned int i;

	(void)state;
	rig_start(g);
	for (i = 0; i < KVS_ARRAY_SIZE(errs); i++) {
		r = open_room(g, i + 1);
		assert_int_equal(kvs_send_pages(r, 0, map, PAGES, NULL), 0);
		rig_refuse(g, i + 1, errs[i], 400, "131072 tokens need 9 GiB");
		e = rig_wait(g, RIG_DONE, i + 1, 0);
		assert_int_equal(e.status, -errs[i]);
		assert_string_equal(e.text, "131072 tokens need 9 GiB");
		assert_int_equal(rig_wait(g, RIG_FREE, i + 1, 0).status,
				 -errs[i]);
		assert_int_equal(kvs_send_pages(r, 0, map, 1, NULL),
				 -ECANCELED);
		kvs_send_close(r);
	}
	/* not asked again, nothing to undo */
	rig_quiet(g);
	rig_free(g);
}

static void later_is_tried_again(void **state)
{
	static const int errs[] = { EAGAIN, ENOENT, EAGAIN, EAGAIN };
	struct rig *g = new_rig();
	struct kvs_send_room *r;
	struct rig_room *w;
	struct kvs_msg m;
	unsigned int i;

	(void)state;
	rig_start(g);
	r = open_room(g, 1);
	for (i = 0; i < KVS_ARRAY_SIZE(errs); i++) {
		rig_refuse(g, 1, errs[i], 503, "no room now");
		rig_expect(g, KVS_WIRE_OPEN, &m);
		assert_int_equal(m.open.room, 1);
	}
	assert_int_equal(rig_count(g, RIG_DONE, 1), 0);
	w = rig_room_new(g, 1, 9, PAGES * 16, 64, 0, 1, 0);
	rig_grant(g, w);
	assert_int_equal(kvs_send_pages(r, 0, map, PAGES, NULL), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, 0);
	kvs_send_close(r);
	rig_free(g);
}

static bool asked_again_or_done(struct rig *g, void *arg)
{
	(void)arg;
	return rig_control_readable(g) || rig_count(g, RIG_DONE, 1);
}

static void patience_has_an_end(void **state)
{
	unsigned int opens = 0;
	struct rig *g = new_rig();
	struct kvs_send_room *r;
	struct rig_event e;
	struct kvs_msg m;

	(void)state;
	g->o.open_timeout = 300 * KVS_NSEC_PER_MSEC;
	rig_start(g);
	/* refused until then: the daemon's reason */
	r = open_room(g, 1);
	for (;;) {
		rig_refuse(g, 1, EAGAIN, 503, "pool is full");
		rig_serve_until(g, asked_again_or_done, NULL);
		if (rig_count(g, RIG_DONE, 1))
			break;
		rig_expect(g, KVS_WIRE_OPEN, &m);
		opens++;
	}
	assert_in_range(opens, 1, 40);
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_int_equal(e.status, -EAGAIN);
	assert_string_equal(e.text, "pool is full");
	kvs_send_close(r);
	rig_free(g);
}

static void no_answer_to_open(void **state)
{
	struct rig *g = new_rig();
	struct kvs_send_room *r;
	struct kvs_msg m;

	(void)state;
	g->o.open_timeout = 100 * KVS_NSEC_PER_MSEC;
	rig_start(g);
	r = open_room(g, 1);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ETIME);
	rig_expect(g, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.err, ETIME);
	kvs_send_close(r);
	rig_free(g);
}

static void control_lost(void **state)
{
	struct kvs_send_room *a, *b, *c;
	struct rig *g = new_rig();
	struct rig_room *w;
	struct kvs_msg m;

	(void)state;
	rig_start(g);
	whole_room(g, 7);
	a = open_room(g, 1);
	b = open_room(g, 2);
	w = rig_room_new(g, 2, 20, PAGES * 16, 64, 0, 1, 0);
	rig_grant(g, w);
	assert_int_equal(kvs_send_pages(a, 0, map, 4, NULL), 0);
	assert_int_equal(kvs_send_pages(b, 0, map, PAGES, NULL), 0);
	assert_int_equal(kvs_send_finish(b), 0);
	rig_expect(g, KVS_WIRE_LAST, &m);
	close(g->control);
	g->control = -1;
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ECONNRESET);
	assert_int_equal(rig_wait(g, RIG_DONE, 2, 0).status, -ECONNRESET);
	assert_int_equal(rig_wait(g, RIG_FREE, 1, 0).status, -ECONNRESET);
	assert_int_equal(rig_count(g, RIG_FREE, 2), 1);
	assert_int_equal(kvs_send_open(g->s, 3, NULL, 16, g, &c), -ECONNRESET);
	assert_int_equal(kvs_send_pages(a, 4, map, 1, NULL), -ECANCELED);
	kvs_send_close(a);
	kvs_send_close(b);
	rig_free(g);
}

static void protocol_broken_by_the_daemon(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_COMPLETE,
			     .complete = { .room = 1, .generation = 5 } };
	struct rig *g = new_rig();
	struct kvs_send_room *r;
	struct rig_room *w;

	(void)state;
	rig_start(g);
	r = open_room(g, 1);
	w = rig_room_new(g, 1, 5, PAGES * 16, 64, 0, 1, 0);
	rig_grant(g, w);
	rig_wait(g, RIG_GRANTED, 1, 0);
	/* COMPLETE of a room that has sent nothing: not believed */
	rig_send(g->control, &m);
	rig_expect_end(g);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ECONNRESET);
	kvs_send_close(r);
	rig_free(g);
}

static void data_lost_with_unconfirmed_bytes(void **state)
{
	struct kvs_send_room *a, *b;
	struct rig *g = new_rig();
	struct rig_room *wa;
	struct rig_event e;
	struct kvs_msg m;

	(void)state;
	g->o.data_connections = 1;
	rig_start(g);
	a = open_room(g, 1);
	b = open_room(g, 2);
	wa = rig_room_new(g, 1, 11, PAGES * 16, 64, 0, 1, 0);
	rig_grant(g, wa);
	assert_int_equal(kvs_send_pages(a, 0, map, PAGES, NULL), 0);
	assert_int_equal(kvs_send_finish(a), 0);
	/* the kernel has taken it all; the daemon has not said it has it */
	rig_expect(g, KVS_WIRE_LAST, &m);
	assert_int_equal(rig_wait(g, RIG_FREE, 1, 0).status, 0);
	rig_close_data(g, 0, false);
	rig_expect(g, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, 1);
	assert_int_equal(m.abort.generation, 11);
	assert_non_null(strstr(m.abort.text, "worker 0"));
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_int_equal(e.status, -ECONNRESET);
	rig_abort(g, 1, 11);
	rig_expect(g, KVS_WIRE_ABORT_NAK, &m);
	assert_int_equal(m.abort.room, 1);
	/* nothing else is touched, and the next room gets a new one */
	rig_quiet(g);
	assert_int_equal(rig_count(g, RIG_DONE, 2), 0);
	whole_room(g, 3);
	assert_int_equal(g->accepted, 2);
	kvs_send_close(a);
	kvs_send_close(b);
	rig_free(g);
}

/* A room that is confirmed does not care what becomes of the connection. */
static void data_lost_after_complete(void **state)
{
	struct rig *g = new_rig();
	struct kvs_msg m;

	(void)state;
	g->o.data_connections = 1;
	rig_start(g);
	whole_room(g, 1);
	rig_close_data(g, 0, true);
	rig_quiet(g);
	rig_abort(g, 1, 501);
	rig_expect(g, KVS_WIRE_ABORT_ACK, &m);
	whole_room(g, 2);
	rig_free(g);
}

static void data_connection_refused(void **state)
{
	struct rig *g = new_rig();
	struct kvs_send_room *r;
	struct rig_room *w;
	struct rig_event e;
	struct kvs_msg m;

	(void)state;
	g->o.connect_timeout = 300 * KVS_NSEC_PER_MSEC;
	g->refuse_data = true;
	rig_start(g);
	r = open_room(g, 1);
	w = rig_room_new(g, 1, 11, PAGES * 16, 64, 0, 1, 0);
	rig_grant(g, w);
	assert_int_equal(kvs_send_pages(r, 0, map, PAGES, NULL), 0);
	rig_expect(g, KVS_WIRE_ABORT, &m);
	/* why is said; that it is for ever (class 400) is not known */
	assert_int_equal(m.abort.err, ECONNREFUSED);
	assert_non_null(strstr(m.abort.text, "EACCES: not you"));
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_int_equal(e.status, -ECONNREFUSED);
	/* it was tried more than once, and nothing is poisoned */
	assert_true(g->accepted > 2);
	rig_abort(g, 1, 11);
	rig_expect(g, KVS_WIRE_ABORT_ACK, &m);
	kvs_send_close(r);
	/* later it works */
	g->refuse_data = false;
	whole_room(g, 2);
	rig_free(g);
}

/* Pages go out although one of two connections cannot be had. */
static void one_of_two_is_enough(void **state)
{
	struct rig *g = new_rig();
	unsigned int i;

	(void)state;
	rig_start(g);
	whole_room(g, 1);
	while (g->n_data > 1)
		rig_close_data(g, 1, true);
	rig_quiet(g);
	g->refuse_data = true;
	for (i = 2; i < 6; i++)
		whole_room(g, i);
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(class_400_at_once),
		cmocka_unit_test(later_is_tried_again),
		cmocka_unit_test(patience_has_an_end),
		cmocka_unit_test(no_answer_to_open),
		cmocka_unit_test(control_lost),
		cmocka_unit_test(protocol_broken_by_the_daemon),
		cmocka_unit_test(data_lost_with_unconfirmed_bytes),
		cmocka_unit_test(data_lost_after_complete),
		cmocka_unit_test(data_connection_refused),
		cmocka_unit_test(one_of_two_is_enough),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
