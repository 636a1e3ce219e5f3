/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of an OPEN that comes before its admit (sender and engine learn of
 * a request by different ways): it waits and is matched, may be withdrawn,
 * ends with ENOENT after open.timeout and with its connection, and only so
 * many may wait; it gets the room's answer when the room is refused; one of a
 * foreign peer or rank gets nothing and disturbs nobody. An admitted room
 * that nobody opens ends after open.timeout. A room that waits for memory
 * grants when it has it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

static struct rig g[1];

static void start(struct pe *e, const char *timeout, const char *parked)
{
	rig_init(g, "sock", "128K");
	rig_set(g, "open.timeout", timeout);
	rig_set(g, "open.parked", parked);
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_two_layers);
}

static void send_room(struct ps *p, uint64_t seed)
{
	struct ps_room w;
	struct kvs_msg m;

	ps_granted(p, &w, seed, PS_PAGE);
	assert_int_equal(ps_last(p, &w, ps_send_all(p, &w)), 0);
	if (p->n_ranks == 1)
		ps_expect(p, KVS_WIRE_COMPLETE, &m);
	ps_room_fini(&w);
}

static void expect_refuse(struct ps *p, uint64_t room, uint32_t err)
{
	struct kvs_msg m;

	ps_expect(p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.room, room);
	assert_int_equal(m.refuse.rank, p->rank);
	if (m.refuse.err != err)
		fail_msg("refused with %u (%s) and not %u", m.refuse.err,
			 m.refuse.text, err);
}

static void matched_by_the_admit(void **state)
{
	struct pe_room r;
	struct ps a, b;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&a, g->port, "p", 0, 2, &ps_two_layers);
	ps_up(&b, g->port, "p", 1, 2, &ps_two_layers);
	assert_int_equal(ps_open(&b, 7, 32), 0);
	assert_int_equal(ps_open(&a, 7, 32), 0);
	ps_quiet(&a);
	ps_quiet(&b);
	assert_int_equal(rig_rooms(g), 0);
	pe_admit(&e, &r, 0, 7, 32, 2);
	send_room(&a, 3);
	send_room(&b, 3);
	pe_wait(&e, &r, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &r, 32, 2, 3), 0);
	pe_commit(&e, &r);
	ps_down(&a);
	ps_down(&b);
	pe_down(&e);
	rig_down(g);
}

static void expires(void **state)
{
	struct pe_room r;
	uint64_t began;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "100ms", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	began = kvs_clock_now(&kvs_clock_real);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(ps_open(&p, i, 16), 0);
	for (uint64_t i = 1; i <= 20; i++)
		expect_refuse(&p, i, ENOENT);
	assert_true(kvs_clock_now(&kvs_clock_real) - began >=
		    100 * KVS_NSEC_PER_MSEC);
	/* too late for that one, in time for the next */
	assert_int_equal(ps_open(&p, 1, 16), 0);
	pe_admit(&e, &r, 0, 1, 16, 1);
	send_room(&p, 1);
	pe_wait(&e, &r, KVS_STATUS_READY);
	pe_commit(&e, &r);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void admitted_and_never_opened(void **state)
{
	struct pe_room r;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "50ms", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	pe_admit(&e, &r, 0, 1, 16, 1);
	pe_wait_failed(&e, &r, ETIME);
	assert_int_equal(r.failure.class, 503);
	assert_non_null(strstr(r.failure.text, "open.timeout"));
	rig_wait(g, rig_failures(g, KVS_CAUSE_OPEN_TIMEOUT) == 1);
	ps_quiet(&p);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void only_so_many(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_REFUSE };
	struct pe_room r;
	struct ps p, q;
	struct pe e;

	(void)state;
	start(&e, "60s", "4");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	ps_up(&q, g->port, "q", 0, 1, &ps_two_layers);
	for (uint64_t i = 1; i <= 6; i++)
		assert_int_equal(ps_open(&p, i, 16), 0);
	expect_refuse(&p, 5, EAGAIN);
	expect_refuse(&p, 6, EAGAIN);
	/* another's do not count */
	assert_int_equal(ps_open(&q, 1, 16), 0);
	ps_quiet(&q);
	/* one is withdrawn */
	m.refuse.room = 2;
	m.refuse.err = ECANCELED;
	m.refuse.class = 503;
	assert_int_equal(ps_say(&p, &m), 0);
	assert_int_equal(ps_open(&p, 7, 16), 0);
	assert_int_equal(ps_open(&p, 8, 16), 0);
	expect_refuse(&p, 8, EAGAIN);
	pe_admit(&e, &r, 0, 2, 16, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	ps_quiet(&p);
	pe_abort(&e, &r);
	/* those that are left are in order, also of the same room */
	pe_admit(&e, &r, 0, 7, 16, 1);
	send_room(&p, 7);
	pe_wait(&e, &r, KVS_STATUS_READY);
	pe_commit(&e, &r);
	ps_down(&p);
	ps_down(&q);
	pe_down(&e);
	rig_down(g);
}

static void ends_with_its_connection(void **state)
{
	struct pe_room r;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	for (int i = 0; i < 3; i++) {
		ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
		for (uint64_t room = 1; room < 10; room++)
			assert_int_equal(ps_open(&p, room, 16), 0);
		ps_quiet(&p);
		ps_down(&p);
		rig_wait(g, g->snap->sessions == 0);
	}
	pe_admit(&e, &r, 0, 5, 16, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	ps_quiet(&p);
	assert_int_equal(ps_open(&p, 5, 16), 0);
	send_room(&p, 1);
	pe_wait(&e, &r, KVS_STATUS_READY);
	pe_commit(&e, &r);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void refused_with_its_room(void **state)
{
	struct pe_room r;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	assert_int_equal(ps_open(&p, 1, 1 << 20), 0);
	ps_quiet(&p);
	pe_admit(&e, &r, 0, 1, 1 << 20, 1);
	pe_wait_failed(&e, &r, E2BIG);
	ps_expect(&p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.room, 1);
	ps_quiet(&p);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void foreigners_get_nothing(void **state)
{
	struct ps p, q, other;
	struct pe_room r;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&p, g->port, "p", 0, 2, &ps_two_layers);
	ps_up(&q, g->port, "q", 0, 1, &ps_two_layers);
	ps_up(&other, g->port, "p", 1, 2, &ps_two_layers);
	assert_int_equal(ps_open(&q, 7, 16), 0);
	assert_int_equal(ps_open(&other, 7, 16), 0);
	ps_quiet(&q);
	ps_quiet(&other);
	pe_admit(&e, &r, 0, 7, 16, 1);
	expect_refuse(&q, 7, EACCES);
	expect_refuse(&other, 7, EACCES);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	/* too late is as good as too early */
	assert_int_equal(ps_open(&q, 7, 16), 0);
	expect_refuse(&q, 7, EACCES);
	assert_int_equal(ps_open(&p, 7, 16), 0);
	p.n_ranks = 1;
	send_room(&p, 4);
	pe_wait(&e, &r, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &r, 16, 1, 4), 0);
	pe_commit(&e, &r);
	ps_down(&p);
	ps_down(&q);
	ps_down(&other);
	pe_down(&e);
	rig_down(g);
}

/* An OPEN that names a generation means that attempt and no other, with or
 * without a nonce. */
static void open_of_another_attempt(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_OPEN };
	struct pe_room a, b;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	pe_admit(&e, &a, 0, 7, 16, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	pe_abort(&e, &a);
	pe_admit(&e, &b, 1, 7, 16, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	m.open.room = 7;
	m.open.tokens = 16;
	m.open.generation = a.generation;
	assert_int_equal(ps_say(&p, &m), 0);
	expect_refuse(&p, 7, ESTALE);
	m.open.generation = 1ULL << 63;
	assert_int_equal(ps_say(&p, &m), 0);
	expect_refuse(&p, 7, ESTALE);
	m.open.generation = b.generation;
	assert_int_equal(ps_say(&p, &m), 0);
	send_room(&p, 4);
	pe_wait(&e, &b, KVS_STATUS_READY);
	pe_commit(&e, &b);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* An instance with fewer ranks than the engine waits for can never complete
 * the room: both sides hear so at once, not after a timeout. */
static void too_few_ranks(void **state)
{
	struct pe_room r;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	pe_admit(&e, &r, 0, 7, 16, 2);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(&p, 7, 16), 0);
	expect_refuse(&p, 7, EPROTOTYPE);
	pe_wait_failed(&e, &r, EPROTOTYPE);
	assert_int_equal(r.failure.class, 400);
	assert_non_null(strstr(r.failure.text,
			       "n_ranks: prefill 1, the engine asked for 2"));
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* The two sides speak of another length: nobody guesses who is right. */
static void other_length(void **state)
{
	struct pe_room r;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	pe_admit(&e, &r, 0, 7, 16, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(&p, 7, 17), 0);
	expect_refuse(&p, 7, EPROTOTYPE);
	pe_wait_failed(&e, &r, EPROTOTYPE);
	assert_non_null(strstr(r.failure.text, "17"));
	assert_non_null(strstr(r.failure.text, "16"));
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void granted_when_there_is_memory(void **state)
{
	struct pe_room a, b, c;
	struct kvs_msg m;
	struct ps_room w;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e, "60s", "1024");
	ps_up(&p, g->port, "p", 0, 1, &ps_two_layers);
	pe_admit(&e, &a, 0, 1, 16 * PS_TOKENS, 1);
	assert_int_equal(ps_open(&p, 1, 16 * PS_TOKENS), 0);
	ps_granted(&p, &w, 1, PS_PAGE);
	pe_admit(&e, &b, 1, 2, 10 * PS_TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_WAITING);
	pe_admit(&e, &c, 2, 3, 10 * PS_TOKENS, 1);
	pe_wait(&e, &c, KVS_STATUS_WAITING);
	assert_int_equal(ps_open(&p, 2, 10 * PS_TOKENS), 0);
	assert_int_equal(ps_open(&p, 3, 10 * PS_TOKENS), 0);
	ps_quiet(&p);
	/* one that waits is given up: its rank hears of it */
	pe_abort(&e, &b);
	expect_refuse(&p, 2, ECANCELED);
	ps_quiet(&p);
	assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &a, 0), 0);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	ps_room_fini(&w);
	send_room(&p, 3);
	pe_wait(&e, &c, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &c, 10 * PS_TOKENS, 1, 3), 0);
	/* a rank that opens twice is told so, and nothing else happens */
	assert_int_equal(ps_open(&p, 3, 10 * PS_TOKENS), 0);
	ps_expect(&p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.err, EEXIST);
	pe_commit(&e, &c);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matched_by_the_admit),
		cmocka_unit_test(expires),
		cmocka_unit_test(admitted_and_never_opened),
		cmocka_unit_test(only_so_many),
		cmocka_unit_test(ends_with_its_connection),
		cmocka_unit_test(refused_with_its_room),
		cmocka_unit_test(foreigners_get_nothing),
		cmocka_unit_test(open_of_another_attempt),
		cmocka_unit_test(too_few_ranks),
		cmocka_unit_test(other_length),
		cmocka_unit_test(granted_when_there_is_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
