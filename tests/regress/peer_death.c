/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a sender process that is killed at any step ends its own rooms
 * (ECONNRESET, never READY) and nobody else's (vllm-project/vllm#28120); a
 * connection that ends by FIN or by RST within a header or a body has the
 * same result whichever it was, at every position, and all memory comes back
 * (kvcache-ai/Mooncake#736), also when only the data connection went; a rank
 * that returns takes the place of its former self, whose token is stale
 * (smg-project/smg#2382), and so is a token of an earlier daemon on the same
 * port; a peer that closes in order is noticed at once, one that is stopped
 * within three keepalives (ai-dynamo/modelexpress#575).
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u /* of a room */
#define CHUNK (2 * PS_PAGE)

static struct rig g[1];

static void start(struct pe *e)
{
	rig_init(g, rig_engine(), "1M");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
}

static void admit(struct pe *e, struct pe_room *r, uint32_t slot,
		  const char *peer, uint64_t room)
{
	snprintf(e->peer, sizeof(e->peer), "%s", peer);
	pe_admit(e, r, slot, room, PAGES * PS_TOKENS, 1);
	pe_wait(e, r, KVS_STATUS_ADMITTED);
}

static void open_room(struct ps *p, struct ps_room *w, uint64_t room,
		      uint64_t seed)
{
	assert_int_equal(ps_open(p, room, PAGES * PS_TOKENS), 0);
	ps_granted(p, w, seed, CHUNK);
}

static void finish(struct ps *p, struct ps_room *w, struct pe *e,
		   struct pe_room *r, uint32_t from)
{
	uint64_t seed = w->seed;

	ps_finish(p, w, from);
	pe_take(e, r, PAGES * PS_TOKENS, 1, seed);
}

/* ---- a process that is killed ------------------------------------------- */

static const char *const steps[] = { "hello",  "up",   "open", "grant",
				     "header", "body", "all",  NULL };

/* argv: step, port, room. Comes to the step, says so, and waits. */
static _Noreturn void child(char **argv)
{
	unsigned int port = (unsigned int)strtoul(argv[2], NULL, 10);
	uint64_t room = strtoull(argv[3], NULL, 10);
	const char *step = argv[1];
	struct ps_room w;
	struct ps p;

	if (!strcmp(step, "hello")) {
		ps_init(&p, port, "w1", 0, 1, &ps_one_layer);
		assert_int_equal(ps_hello(&p), 0);
	} else {
		ps_up(&p, port, "w1", 0, 1, &ps_one_layer);
	}
	if (strcmp(step, "hello") != 0 && strcmp(step, "up") != 0)
		assert_int_equal(ps_open(&p, room, PAGES * PS_TOKENS), 0);
	if (!strcmp(step, "grant") || !strcmp(step, "header") ||
	    !strcmp(step, "body") || !strcmp(step, "all"))
		ps_granted(&p, &w, 1, CHUNK);
	if (!strcmp(step, "header"))
		assert_true(ps_send_part(&p, 0, &w, 0, 0, 30) > 0);
	if (!strcmp(step, "body"))
		assert_true(ps_send_part(&p, 0, &w, 0, 0, CHUNK / 2) > 0);
	if (!strcmp(step, "all"))
		assert_int_equal(ps_send_all(&p, &w), w.bytes);
	rig_child_say();
	for (;;)
		pause();
}

static void kill_at(struct pe *e, struct ps *p2, const char *step,
		    uint64_t room)
{
	bool opens = strcmp(step, "hello") != 0 && strcmp(step, "up") != 0;
	char port[16], id[24];
	const char *const args[] = { step, port, id, NULL };
	uint64_t lost = rig_failures(g, KVS_CAUSE_PEER_LOST);
	struct pe_room r1, r2;
	struct ps_room w2;
	struct ps p1;
	pid_t pid;
	int fd;

	snprintf(port, sizeof(port), "%u", g->port);
	snprintf(id, sizeof(id), "%llu", (unsigned long long)room);
	admit(e, &r2, 1, "w2", room + 1);
	open_room(p2, &w2, room + 1, room);
	assert_true(ps_send_part(p2, 0, &w2, 0, 0, 0) > 0);
	admit(e, &r1, 0, "w1", room);
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	if (opens)
		pe_wait(e, &r1, KVS_STATUS_RECEIVING);
	if (!strcmp(step, "all"))
		rig_wait(g, rig_room_in(g, room, "receiving") &&
				    rig_parties(g, room) == 0);
	rig_kill(pid, &fd);
	if (opens)
		pe_wait_failed(e, &r1, ECONNRESET);
	assert_false(r1.ready);
	rig_wait(g, g->snap->sessions == 1);
	assert_int_equal(rig_failures(g, KVS_CAUSE_PEER_LOST), lost + opens);
	finish(p2, &w2, e, &r2, 1);

	/* the peer comes back and is served */
	if (opens)
		admit(e, &r1, 0, "w1", room);
	ps_up(&p1, g->port, "w1", 0, 1, &ps_one_layer);
	open_room(&p1, &w2, room, 99);
	finish(&p1, &w2, e, &r1, 0);
	ps_down(&p1);
	rig_wait(g, g->snap->sessions == 1);
}

static void killed_at_each_step(void **state)
{
	struct ps p2;
	struct pe e;

	(void)state;
	start(&e);
	ps_up(&p2, g->port, "w2", 0, 1, &ps_one_layer);
	for (uint32_t i = 0; steps[i]; i++)
		kill_at(&e, &p2, steps[i], 100 * (i + 1));
	ps_down(&p2);
	pe_down(&e);
	rig_down(g);
}

/* ---- FIN and RST at every position --------------------------------------- */

static void cut_at(struct pe *e, uint64_t room, size_t at, bool reset,
		   bool control_too)
{
	uint64_t before[2];
	struct pe_room r;
	struct ps_room w;
	struct ps p;

	rig_refresh(g);
	before[0] = rig_failures(g, KVS_CAUSE_PEER_LOST);
	before[1] = rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_COPY_EVENT);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	admit(e, &r, 0, "p", room);
	open_room(&p, &w, room, room);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);
	if (at)
		assert_true(ps_send_part(&p, 0, &w, 1, 0, at) > 0);
	if (reset)
		ps_reset(&p.data[0]);
	else
		ps_fin(&p.data[0]);
	if (control_too && reset)
		ps_reset(&p.ctl);
	else if (control_too)
		ps_fin(&p.ctl);
	pe_wait_failed(e, &r, ECONNRESET);
	assert_int_equal(r.failure.class, 503);
	assert_false(r.ready);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(rig_failures(g, KVS_CAUSE_PEER_LOST), before[0] + 1);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_COPY_EVENT),
			 before[1]);
	ps_room_fini(&w);
	ps_down(&p);
	rig_wait(g, g->snap->sessions == 0 && !rig_data_connections(g));
}

static void cut_everywhere(void **state)
{
	static const size_t body[] = { 0, 1, CHUNK / 2, CHUNK - 1 };
	uint64_t room = 1;
	struct pe e;

	(void)state;
	start(&e);
	for (int reset = 0; reset < 2; reset++) {
		for (size_t at = 0; at < KVS_DATA_FRAME; at++)
			cut_at(&e, room++, at, reset, true);
		for (size_t i = 0; i < KVS_ARRAY_SIZE(body); i++)
			cut_at(&e, room++, KVS_DATA_FRAME + body[i], reset,
			       true);
	}
	pe_down(&e);
	rig_down(g);
}

/* The control connection lives on: the sender may believe in what it sent. */
static void cut_data_only(void **state)
{
	static const size_t at[] = {
		1, 15, 16, 63, 64, 65, 64 + CHUNK / 2, 64 + CHUNK - 1
	};
	uint64_t room = 1;
	struct pe e;

	(void)state;
	start(&e);
	for (int reset = 0; reset < 2; reset++)
		for (size_t i = 0; i < KVS_ARRAY_SIZE(at); i++)
			cut_at(&e, room++, at[i], reset, false);
	pe_down(&e);
	rig_down(g);
}

/* In order, between two frames, nothing is lost: another connection goes on
 * where this one ended. */
static void data_closed_in_order(void **state)
{
	struct pe_room r;
	struct ps_room w;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	admit(&e, &r, 0, "p", 1);
	open_room(&p, &w, 1, 7);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);
	ps_fin(&p.data[0]);
	rig_wait(g, rig_data_connections(g) == 0);
	assert_true(rig_room_in(g, 1, "receiving"));
	assert_int_equal(rig_received(g), CHUNK);
	p.n_data = 0;
	assert_int_equal(ps_data(&p), 0);
	finish(&p, &w, &e, &r, 1);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* Rooms of the same rank that have all their bytes do not mind. */
static void broken_data_spares_complete_rooms(void **state)
{
	struct pe_room r1, r2, r3;
	struct ps_room w1, w2;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	admit(&e, &r1, 0, "p", 1);
	admit(&e, &r2, 1, "p", 2);
	admit(&e, &r3, 2, "p", 3); /* not opened: nothing of it was sent */
	open_room(&p, &w1, 1, 7);
	open_room(&p, &w2, 2, 8);
	assert_int_equal(ps_send_all(&p, &w1), w1.bytes);
	rig_wait(g, rig_received(g) == w1.bytes);
	assert_true(ps_send_part(&p, 0, &w2, 0, 0, 100) > 0);
	ps_reset(&p.data[0]);
	pe_wait_failed(&e, &r2, ECONNRESET);
	ps_expect(&p, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, 2);
	p.n_data = 0;
	assert_int_equal(ps_data(&p), 0);
	finish(&p, &w1, &e, &r1, w1.n_chunks);
	ps_room_fini(&w2);
	open_room(&p, &w2, 3, 9);
	finish(&p, &w2, &e, &r3, 0);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* ---- a rank that returns ------------------------------------------------- */

static void newer_connection_wins(void **state)
{
	struct ps p, q, ghost;
	struct pe_room r, s;
	struct ps_room w, v;
	struct kvs_msg m;
	struct pe e;

	(void)state;
	start(&e);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	admit(&e, &r, 0, "p", 1);
	open_room(&p, &w, 1, 7);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 1000) > 0);
	rig_wait(g, rig_parties(g, 1) == 1);

	ps_up(&q, g->port, "p", 0, 1, &ps_one_layer);
	assert_int_not_equal(p.token, q.token);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	assert_int_equal(m.error.err, ESTALE);
	pe_wait_failed(&e, &r, ESTALE);
	assert_false(r.ready);
	/* the old token opens nothing any more */
	ghost = p;
	ghost.n_data = 0;
	assert_int_equal(ps_data(&ghost), -ESTALE);
	rig_wait(g, rig_proto(g, KVS_PROTO_FOREIGN) == 1);

	admit(&e, &s, 1, "p", 2);
	open_room(&q, &v, 2, 8);
	/* bytes of the old connection go nowhere, if it still takes them */
	(void)ps_send_part(&p, 0, &w, 0, 1000, 0);
	(void)ps_send_part(&p, 0, &w, 1, 0, 0);
	finish(&q, &v, &e, &s, 0);
	rig_refresh(g);
	assert_int_equal(rig_received(g), PAGES * PS_PAGE);
	ps_room_fini(&w);
	ps_down(&p);
	rig_wait(g, g->snap->sessions == 1);
	ps_quiet(&q);
	ps_down(&q);
	pe_down(&e);
	rig_down(g);
}

/* Another rank or another peer's rank of that number is somebody else. */
static void only_the_same_rank_is_replaced(void **state)
{
	struct ps a, b, c;
	struct pe e;

	(void)state;
	start(&e);
	ps_up(&a, g->port, "p", 0, 2, &ps_one_layer);
	ps_up(&b, g->port, "p", 1, 2, &ps_one_layer);
	ps_up(&c, g->port, "q", 0, 2, &ps_one_layer);
	ps_quiet(&a);
	ps_quiet(&b);
	ps_quiet(&c);
	rig_refresh(g);
	assert_int_equal(g->snap->sessions, 3);
	ps_down(&a);
	ps_down(&b);
	ps_down(&c);
	pe_down(&e);
	rig_down(g);
}

static void earlier_daemon_is_forgotten(void **state)
{
	char address[32];
	struct ps old, p;
	uint64_t began;
	struct ps_room w;
	struct pe_room r;
	struct pe e;

	(void)state;
	start(&e);
	snprintf(address, sizeof(address), "127.0.0.1:%u", g->port);
	ps_up(&old, g->port, "p", 0, 1, &ps_one_layer);
	pe_down(&e);
	rig_down(g);

	rig_init(g, rig_engine(), "1M");
	rig_set(g, "listen.address", address);
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &ps_one_layer);
	old.n_data = 0;
	began = rig_now();
	assert_int_equal(ps_data(&old), -ESTALE);
	rig_wait(g, ps_is_closed(old.ctl));
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	assert_int_not_equal(p.instance, old.instance);
	admit(&e, &r, 0, "p", 1);
	open_room(&p, &w, 1, 3);
	finish(&p, &w, &e, &r, 0);
	assert_true(rig_now() - began < KVS_NSEC_PER_SEC);
	ps_down(&old);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* ---- silence -------------------------------------------------------------- */

static void orderly_close_is_noticed(void **state)
{
	struct pe_room r;
	struct ps_room w;
	struct ps p;
	struct pe e;

	(void)state;
	start(&e);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	admit(&e, &r, 0, "p", 1);
	open_room(&p, &w, 1, 1);
	ps_fin(&p.ctl);
	pe_wait_failed(&e, &r, ECONNRESET);
	/* its data connections with it */
	rig_wait(g, g->snap->sessions == 0 && !rig_data_connections(g));
	rig_wait(g, ps_is_closed(p.data[0]));
	ps_room_fini(&w);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void stopped_process_is_noticed(void **state)
{
	char port[16];
	const char *const args[] = { "body", port, "1", NULL };
	uint64_t began, took;
	struct pe_room r;
	struct pe e;
	pid_t pid;
	int fd;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "listen.keepalive", "200ms");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &ps_one_layer);
	admit(&e, &r, 0, "w1", 1);
	snprintf(port, sizeof(port), "%u", g->port);
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	began = kvs_clock_now(&kvs_clock_real);
	pe_wait_failed(&e, &r, ETIMEDOUT);
	took = kvs_clock_now(&kvs_clock_real) - began;
	/* three keepalives, one turn of the timer, a second to say goodbye */
	print_message("# noticed after %llu ms\n",
		      (unsigned long long)(took / KVS_NSEC_PER_MSEC));
	assert_true(took < 15 * KVS_NSEC_PER_SEC);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	rig_wait(g, g->snap->sessions == 0 && !rig_data_connections(g));
	rig_kill(pid, &fd);
	pe_down(&e);
	rig_down(g);
}

/* One that answers is never lost, however quiet it is otherwise. */
static void answering_is_enough(void **state)
{
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "listen.keepalive", "150ms");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &ps_one_layer);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	assert_int_equal(p.keepalive_ms, 150);
	/* longer than a silent one would be given */
	for (int i = 0; i < 6; i++) {
		assert_int_equal(ps_read(&p, p.ctl, &m), 0);
		assert_int_equal(m.type, KVS_WIRE_KEEPALIVE);
		assert_int_equal(m.keepalive.reply, 0);
		m.keepalive.reply = 1;
		assert_int_equal(ps_say(&p, &m), 0);
	}
	rig_refresh(g);
	assert_int_equal(g->snap->sessions, 1);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_at_each_step),
		cmocka_unit_test(cut_everywhere),
		cmocka_unit_test(cut_data_only),
		cmocka_unit_test(data_closed_in_order),
		cmocka_unit_test(broken_data_spares_complete_rooms),
		cmocka_unit_test(newer_connection_wins),
		cmocka_unit_test(only_the_same_rank_is_replaced),
		cmocka_unit_test(earlier_daemon_is_forgotten),
		cmocka_unit_test(orderly_close_is_noticed),
		cmocka_unit_test(stopped_process_is_noticed),
		cmocka_unit_test(answering_is_enough),
	};

	if (argc == 4)
		child(argv);
	return rig_run_both(tests);
}
