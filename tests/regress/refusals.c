/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about a sender that does not want a request, whenever it says so:
 * its engine hears the errno, the class and the words within a second, be it
 * before the admit, while the room waits for memory, before the grant was
 * used, or in the middle of a chunk; a refusal is for the attempt with its
 * nonce and no other, and not for one that the sender opens again; when both
 * sides refuse there is one answer of class 400 at once, and nobody waits. A
 * peer without generations is refused at HELLO with a message, one without
 * drain_ack is not waited for and counted, and so is what comes about rooms
 * that have ended.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/service_rig.h"

#define PAGES 8
#define TOKENS (PAGES * PS_TOKENS)

static struct rig rig;
static struct rig *g = &rig;
static struct pe e;
static struct pe_room r;
static struct ps p;

static void start(const char *pool, const char *ack)
{
	rig_init(g, rig_engine(), pool);
	rig_set(g, "hold.require_ack", ack);
	rig_set(g, "hold.timeout", "60s");
	/* whoever waits for them fails the test */
	rig_set(g, "open.timeout", "60s");
	rig_set(g, "admission.timeout", "60s");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &ps_one_layer);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	memset(e.nonce, 0x5a, sizeof(e.nonce));
}

static void stop(void)
{
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void open_attempt(uint64_t room, unsigned char nonce)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_OPEN,
		.open = { .room = room, .tokens = TOKENS },
	};

	memset(m.open.nonce, nonce, sizeof(m.open.nonce));
	assert_int_equal(ps_say(&p, &m), 0);
}

static void refuse(uint64_t room, uint64_t generation, int err)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_REFUSE,
		.refuse = { .room = room,
			    .generation = generation,
			    .err = (uint32_t)err,
			    .class = err == E2BIG ? 400 : 503,
			    .text = "the prompt has 9 tokens too many" },
	};

	assert_int_equal(ps_say(&p, &m), 0);
}

/* FAILED within a second of @since, with the sender's words. */
static void expect_failed(uint64_t since, int err, unsigned int class)
{
	uint64_t now;

	pe_wait_failed(&e, &r, err);
	now = kvs_clock_now(&kvs_clock_real);
	assert_true(now - since < KVS_NSEC_PER_SEC);
	assert_int_equal(r.failure.class, class);
	if (!strstr(r.failure.text, "9 tokens too many"))
		fail_msg("\"%s\" is not what the sender said", r.failure.text);
}

static uint64_t now(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

static void before_the_admit(void **state)
{
	static const int errs[] = { E2BIG, EAGAIN };
	uint64_t t;

	(void)state;
	start("1M", "no");
	for (unsigned int i = 0; i < 2; i++) {
		open_attempt(i + 1, 0x5a);
		refuse(i + 1, 0, errs[i]);
		ps_quiet(&p);
		t = now();
		pe_admit(&e, &r, 0, i + 1, TOKENS, 1);
		expect_failed(t, errs[i], errs[i] == E2BIG ? 400 : 503);
	}
	rig_wait(g, rig_failures(g, KVS_CAUSE_SENDER_REFUSED) == 2);
	/* nothing was ever granted or asked of it */
	ps_quiet(&p);
	stop();
}

static void only_its_own_attempt(void **state)
{
	struct ps_room w;

	(void)state;
	start("1M", "no");
	/* another attempt, one without a nonce, and one opened again */
	open_attempt(1, 0x11);
	refuse(1, 0, E2BIG);
	open_attempt(2, 0);
	refuse(2, 0, E2BIG);
	open_attempt(3, 0x5a);
	refuse(3, 0, E2BIG);
	open_attempt(3, 0x5a);
	ps_quiet(&p);
	for (uint64_t room = 1; room <= 3; room++) {
		pe_admit(&e, &r, 0, room, TOKENS, 1);
		if (room < 3) {
			pe_wait(&e, &r, KVS_STATUS_ADMITTED);
			open_attempt(room, 0x5a);
		}
		ps_granted(&p, &w, room, PS_PAGE);
		ps_finish(&p, &w, 0);
		pe_take(&e, &r, TOKENS, 1, room);
	}
	assert_int_equal(rig_failures(g, KVS_CAUSE_SENDER_REFUSED), 0);
	stop();
}

/* A refusal of somebody else's room changes nothing. */
static void not_somebody_elses(void **state)
{
	struct ps_room w;
	struct ps q;

	(void)state;
	start("1M", "no");
	ps_up(&q, g->port, "q", 0, 1, &ps_one_layer);
	{
		struct kvs_msg m = {
			.type = KVS_WIRE_OPEN,
			.open = { .room = 1, .tokens = TOKENS },
		};
		struct kvs_msg n = {
			.type = KVS_WIRE_REFUSE,
			.refuse = { .room = 1, .err = E2BIG, .class = 400 },
		};

		memset(m.open.nonce, 0x5a, sizeof(m.open.nonce));
		assert_int_equal(ps_say(&q, &m), 0);
		assert_int_equal(ps_say(&q, &n), 0);
	}
	ps_quiet(&q);
	pe_admit(&e, &r, 0, 1, TOKENS, 1);
	open_attempt(1, 0x5a);
	ps_granted(&p, &w, 1, PS_PAGE);
	ps_finish(&p, &w, 0);
	pe_take(&e, &r, TOKENS, 1, 1);
	ps_down(&q);
	stop();
}

static void while_it_waits(void **state)
{
	struct pe_room first;
	struct ps_room w;
	uint64_t t;

	(void)state;
	start("64K", "no");
	/* all memory, by one that is being sent */
	memset(e.nonce, 0, sizeof(e.nonce));
	pe_admit(&e, &first, 1, 100, 16 * PS_TOKENS, 1);
	memset(e.nonce, 0x5a, sizeof(e.nonce));
	assert_int_equal(ps_open(&p, 100, 16 * PS_TOKENS), 0);
	ps_granted(&p, &w, 1, PS_PAGE);
	pe_admit(&e, &r, 0, 1, TOKENS, 1);
	pe_wait(&e, &r, KVS_STATUS_WAITING);
	open_attempt(1, 0x5a);
	ps_quiet(&p);
	t = now();
	refuse(1, 0, E2BIG);
	expect_failed(t, E2BIG, 400);
	pe_abort(&e, &first);
	ps_room_fini(&w);
	stop();
}

static void after_the_grant(void **state)
{
	struct ps_room w;
	struct kvs_msg m;
	uint64_t t;

	(void)state;
	start("1M", "no");
	pe_admit(&e, &r, 0, 1, TOKENS, 1);
	open_attempt(1, 0x5a);
	ps_granted(&p, &w, 1, PS_PAGE);
	t = now();
	refuse(1, r.generation ? r.generation : w.grant.generation, E2BIG);
	expect_failed(t, E2BIG, 400);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	ps_room_fini(&w);
	/* in the middle of a chunk, by ABORT */
	pe_admit(&e, &r, 0, 2, TOKENS, 1);
	open_attempt(2, 0x5a);
	ps_granted(&p, &w, 2, TOKENS * PS_PAGE);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 1000) > 0);
	m = (struct kvs_msg){
		.type = KVS_WIRE_ABORT,
		.abort = { .room = 2,
			   .generation = w.grant.generation,
			   .err = ENOMEM,
			   .text = "out of memory for 9 tokens too many" },
	};
	t = now();
	assert_int_equal(ps_say(&p, &m), 0);
	expect_failed(t, ENOMEM, 503);
	assert_true(ps_send_part(&p, 0, &w, 0, 1000, 0) > 0);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	ps_room_fini(&w);
	stop();
}

/* Neither waits for the other, whoever is first. */
static void both_refuse(void **state)
{
	struct kvs_msg m;
	uint64_t t;

	(void)state;
	start("1M", "no");
	for (uint64_t room = 1; room <= 2; room++) {
		t = now();
		if (room == 1) {
			open_attempt(room, 0x5a);
			refuse(room, 0, E2BIG);
			ps_quiet(&p);
		}
		pe_admit(&e, &r, 0, room, 1 << 20, 1);
		pe_wait_failed(&e, &r, E2BIG);
		assert_true(now() - t < KVS_NSEC_PER_SEC);
		assert_int_equal(r.failure.class, 400);
		/* one answer: none behind it, and the slot serves again */
		if (room == 2) {
			open_attempt(room, 0x5a);
			refuse(room, 0, E2BIG);
			ps_expect(&p, KVS_WIRE_REFUSE, &m);
			assert_int_equal(m.refuse.class, 400);
		}
		ps_quiet(&p);
		r.failed = false;
		assert_true(pe_pump(&e));
		assert_false(r.failed);
	}
	pe_admit(&e, &r, 0, 3, TOKENS, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	pe_abort(&e, &r);
	stop();
}

static uint64_t strays(enum kvs_stray type)
{
	uint64_t n = g->snap->strays[type];

	for (unsigned int i = 0; i < g->snap->n_workers; i++)
		n += g->snap->workers[i].stats.strays[type];
	return n;
}

static void strays_are_counted(void **state)
{
	struct ps_room w;
	struct kvs_msg m;

	(void)state;
	start("1M", "no");
	pe_admit(&e, &r, 0, 1, TOKENS, 1);
	open_attempt(1, 0x5a);
	ps_granted(&p, &w, 1, PS_PAGE);
	pe_abort(&e, &r);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	assert_int_equal(ps_last(&p, &w, w.bytes), 0);
	assert_int_equal(ps_answer(&p, KVS_WIRE_ABORT, 1, r.generation), 0);
	assert_int_equal(ps_answer(&p, KVS_WIRE_ABORT, 1, r.generation), 0);
	refuse(1, r.generation, E2BIG);
	refuse(77, 0, E2BIG);
	rig_wait(g, strays(KVS_STRAY_LAST) == 1 &&
			    strays(KVS_STRAY_ABORT) == 2 &&
			    strays(KVS_STRAY_REFUSE) == 2);
	ps_room_fini(&w);
	stop();
}

static uint64_t impossible(enum kvs_ack_impossible why)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < g->snap->n_workers; i++)
		n += g->snap->workers[i].stats.acks_impossible[why];
	return n;
}

static void other_versions(void **state)
{
	char text[KVS_WIRE_TEXT] = "";
	struct ps_room w;
	struct kvs_msg m;
	struct ps q;

	(void)state;
	start("1M", "yes");
	ps_init(&q, g->port, "old", 0, 1, &ps_one_layer);
	q.caps = KVS_CAP_DRAIN_ACK;
	assert_int_equal(ps_hello(&q), -EPROTONOSUPPORT);
	ps_down(&q);
	rig_wait(g, rig_proto(g, KVS_PROTO_VERSION) == 1);
	/* and in words */
	q.ctl = ps_dial(g->port);
	assert_true(q.ctl >= 0);
	q.scratch = malloc(sizeof(*q.scratch));
	assert_non_null(q.scratch);
	ps_hello_msg(&q, KVS_ROLE_CONTROL, &m);
	m.hello.caps = 0;
	assert_int_equal(ps_write_msg(q.ctl, &m), 0);
	assert_int_equal(ps_read(&q, q.ctl, &m), 0);
	assert_int_equal(m.type, KVS_WIRE_ERROR);
	assert_int_equal(m.error.err, EPROTONOSUPPORT);
	assert_string_equal(m.error.text, "peer does not carry generations");
	rig_wait(g, ps_is_closed(q.ctl));
	ps_down(&q);

	/* without drain_ack: not waited for */
	ps_down(&p);
	rig_wait(g, g->snap->sessions == 0);
	ps_init(&p, g->port, "p", 0, 1, &ps_one_layer);
	p.caps = KVS_CAP_GENERATION;
	assert_int_equal(ps_hello(&p), 0);
	assert_int_equal(ps_layout(&p, text, sizeof(text)), 0);
	assert_int_equal(ps_data(&p), 0);
	pe_admit(&e, &r, 0, 1, TOKENS, 1);
	open_attempt(1, 0x5a);
	ps_granted(&p, &w, 1, PS_PAGE);
	pe_abort(&e, &r);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(impossible(KVS_ACK_IMPOSSIBLE_NO_CAPABILITY), 1);
	assert_int_equal(rig_drains(g, KVS_DRAIN_REVOKED,
				    KVS_PROOF_GRANT_INVALIDATED),
			 1);
	ps_room_fini(&w);
	stop();
}

static void no_answer_is_counted(void **state)
{
	struct ps_room w;
	struct kvs_msg m;

	(void)state;
	start("1M", "yes");
	pe_admit(&e, &r, 0, 1, TOKENS, 1);
	open_attempt(1, 0x5a);
	ps_granted(&p, &w, 1, PS_PAGE);
	pe_abort(&e, &r);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	assert_int_equal(ps_answer(&p, KVS_WIRE_ABORT_NAK, 1, r.generation), 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(impossible(KVS_ACK_IMPOSSIBLE_NEGATIVE), 1);
	ps_room_fini(&w);

	pe_admit(&e, &r, 0, 2, TOKENS, 1);
	open_attempt(2, 0x5a);
	ps_granted(&p, &w, 2, PS_PAGE);
	pe_abort(&e, &r);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	ps_die(&p);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(impossible(KVS_ACK_IMPOSSIBLE_LOST), 1);
	assert_int_equal(impossible(KVS_ACK_IMPOSSIBLE_NO_CAPABILITY), 0);
	ps_room_fini(&w);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(before_the_admit),
		cmocka_unit_test(only_its_own_attempt),
		cmocka_unit_test(not_somebody_elses),
		cmocka_unit_test(while_it_waits),
		cmocka_unit_test(after_the_grant),
		cmocka_unit_test(both_refuse),
		cmocka_unit_test(strays_are_counted),
		cmocka_unit_test(other_versions),
		cmocka_unit_test(no_answer_is_counted),
	};

	return rig_run_both(tests);
}
