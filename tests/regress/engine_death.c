/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: an engine process that dies takes its rooms with it and nobody
 * else's; extents that its copies may still read are held until both its
 * process and its socket are gone, as a child of it may still hold the
 * device: neither alone frees them; a copy that ended is told by COPY_OVER,
 * once. What the engine gets is mapped read only, and stays so.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u /* of a room */
#define ROOM_BYTES (PAGES * PS_PAGE)

static struct rig g[1];

/* argv: how far, socket. An engine with room 1 for peer "p"; "closed" and
 * "forked" are further on than "committing". */
static _Noreturn void child(char **argv)
{
	const char *far = argv[1];
	struct pe_room r;
	pid_t pid = 0;
	struct pe e;

	pe_up(&e, argv[2], &ps_one_layer);
	pe_admit(&e, &r, 0, 1, PAGES * PS_TOKENS, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	rig_child_say();
	if (!strcmp(far, "admitted"))
		pause();
	if (!strcmp(far, "receiving"))
		for (;;)
			pause();
	pe_wait(&e, &r, KVS_STATUS_READY);
	if (strcmp(far, "ready") != 0) {
		assert_int_equal(pe_say(&e, KVS_PACKET_COMMIT, &r, 0), 0);
		pe_wait(&e, &r, KVS_STATUS_COMMITTING);
	}
	if (!strcmp(far, "closed"))
		close(e.fd);
	if (!strcmp(far, "forked")) {
		/* it inherits the socket and does nothing with it */
		pid = fork();
		assert_true(pid >= 0);
		while (!pid)
			pause();
	}
	rig_child_say();
	if (write(RIG_CHILD_FD, &pid, sizeof(pid)) != sizeof(pid))
		_exit(1);
	for (;;)
		pause();
}

struct victim {
	pid_t pid;
	int fd;
	pid_t grandchild; /* of "forked" */
};

/* Another engine lives on; its room 2 is transferred by finish_other(). */
static struct pe other[1];
static struct ps p[1];

static void start(void)
{
	rig_init(g, rig_engine(), "1M");
	rig_up(g);
	pe_up(other, g->set.engine_socket, &ps_one_layer);
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
}

static void finish_other(void)
{
	struct pe_room r;
	struct ps_room w;

	pe_admit(other, &r, 0, 2, PAGES * PS_TOKENS, 1);
	assert_int_equal(ps_open(p, 2, PAGES * PS_TOKENS), 0);
	ps_granted(p, &w, 2, PS_PAGE);
	ps_finish(p, &w, 0);
	pe_take(other, &r, PAGES * PS_TOKENS, 1, 2);
}

static void stop(void)
{
	finish_other();
	ps_down(p);
	pe_down(other);
	rig_down(g);
}

static void come_so_far(struct victim *v, const char *far)
{
	const char *const args[] = { far, g->set.engine_socket, NULL };
	struct ps_room w;

	v->pid = rig_spawn(args, &v->fd);
	rig_child_said(v->fd);
	if (!strcmp(far, "admitted"))
		return;
	assert_int_equal(ps_open(p, 1, PAGES * PS_TOKENS), 0);
	ps_granted(p, &w, 1, PS_PAGE);
	assert_true(ps_send_part(p, 0, &w, 0, 0, 0) > 0);
	if (!strcmp(far, "receiving")) {
		ps_room_fini(&w);
		return;
	}
	ps_finish(p, &w, 1);
	rig_child_said(v->fd);
	assert_int_equal(read(v->fd, &v->grandchild, sizeof(v->grandchild)),
			 sizeof(v->grandchild));
}

static void killed_at_each_step(void **state)
{
	static const char *const steps[] = { "admitted", "receiving", "ready",
					     "committing" };
	struct victim v;
	struct kvs_msg m;

	(void)state;
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(steps); i++) {
		start();
		come_so_far(&v, steps[i]);
		rig_refresh(g);
		assert_int_equal(g->snap->engines, 2);
		rig_kill(v.pid, &v.fd);
		rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
		assert_int_equal(rig_failures(g, KVS_CAUSE_ENGINE_LOST), 1);
		assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
					    KVS_PROOF_PROCESS_EXIT),
				 !strcmp(steps[i], "committing"));
		rig_wait(g, g->snap->engines == 1);
		if (!strcmp(steps[i], "receiving")) {
			ps_expect(p, KVS_WIRE_ABORT, &m);
			assert_int_equal(m.abort.room, 1);
		}
		ps_quiet(p);
		stop();
	}
}

/* The process is gone; its child has the socket. */
static void held_by_a_child(void **state)
{
	struct victim v;

	(void)state;
	start();
	come_so_far(&v, "forked");
	assert_true(v.grandchild > 0);
	rig_kill(v.pid, &v.fd);
	/* others are served, and the room stays where it is */
	for (int i = 0; i < 20; i++) {
		finish_other();
		rig_refresh(g);
		assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE),
				 (1 << 20) - ROOM_BYTES);
	}
	assert_int_equal(rig_bytes(g, KVS_EXTENT_COMMITTING) +
				 rig_bytes(g, KVS_EXTENT_HELD),
			 ROOM_BYTES);
	assert_int_equal(kill(v.grandchild, SIGKILL), 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_PROCESS_EXIT), 1);
	stop();
}

/* The socket is gone; the process may still copy. */
static void held_by_the_process(void **state)
{
	struct victim v;

	(void)state;
	start();
	come_so_far(&v, "closed");
	rig_wait(g, rig_bytes(g, KVS_EXTENT_HELD) == ROOM_BYTES);
	for (int i = 0; i < 20; i++) {
		finish_other();
		rig_refresh(g);
		assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	}
	assert_int_equal(rig_failures(g, KVS_CAUSE_ENGINE_LOST), 1);
	rig_kill(v.pid, &v.fd);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(
		rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_PROCESS_EXIT), 1);
	stop();
}

/* The id of a lost engine's room is free while its memory is held. */
static void id_is_free_at_once(void **state)
{
	struct pe_room r;
	struct victim v;

	(void)state;
	start();
	come_so_far(&v, "closed");
	rig_wait(g, rig_bytes(g, KVS_EXTENT_HELD) == ROOM_BYTES);
	pe_admit(other, &r, 1, 1, PAGES * PS_TOKENS, 1);
	pe_wait(other, &r, KVS_STATUS_ADMITTED);
	pe_abort(other, &r);
	rig_kill(v.pid, &v.fd);
	stop();
}

static void send_one(struct pe *e, struct pe_room *r, uint64_t room)
{
	struct ps_room w;

	pe_admit(e, r, 3, room, PAGES * PS_TOKENS, 1);
	assert_int_equal(ps_open(p, room, PAGES * PS_TOKENS), 0);
	ps_granted(p, &w, room, PS_PAGE);
	ps_finish(p, &w, 0);
	pe_wait(e, r, KVS_STATUS_READY);
}

static void abort_while_copying(void **state)
{
	struct pe_room r;

	(void)state;
	start();
	send_one(other, &r, 5);
	assert_int_equal(pe_say(other, KVS_PACKET_COMMIT, &r, 0), 0);
	pe_wait(other, &r, KVS_STATUS_COMMITTING);
	/* too early for that one: the room has not ended */
	assert_int_equal(pe_say(other, KVS_PACKET_COPY_OVER, &r, 0), 0);
	rig_wait(g, rig_proto(g, KVS_PROTO_ENGINE) == 1);
	pe_abort(other, &r);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOM_BYTES);
	assert_int_equal(rig_parties(g, 5), 1);
	assert_int_equal(pe_say(other, KVS_PACKET_COPY_OVER, &r, 0), 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED, KVS_PROOF_COPY_EVENT),
			 1);
	/* a second one is of nothing */
	assert_int_equal(pe_say(other, KVS_PACKET_COPY_OVER, &r, 0), 0);
	/* a copy that failed */
	send_one(other, &r, 6);
	assert_int_equal(pe_say(other, KVS_PACKET_COMMIT, &r, 0), 0);
	assert_int_equal(pe_say(other, KVS_PACKET_COMMITTED, &r, EIO), 0);
	pe_wait_failed(other, &r, EIO);
	rig_wait(g, rig_failures(g, KVS_CAUSE_COPY_FAILED) == 1);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	stop();
}

/* Without a bound a READY room that nobody claims would stay for ever. */
static void never_claimed(void **state)
{
	struct pe_room r;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "claim.timeout", "50ms");
	rig_up(g);
	pe_up(other, g->set.engine_socket, &ps_one_layer);
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
	send_one(other, &r, 5);
	pe_wait_failed(other, &r, ETIME);
	/* the claim comes too late */
	assert_int_equal(pe_say(other, KVS_PACKET_COMMIT, &r, 0), 0);
	rig_wait(g, rig_failures(g, KVS_CAUSE_CLAIM_TIMEOUT) == 1);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(rig_done(g), 0);
	ps_down(p);
	pe_down(other);
	rig_down(g);
}

static void mapped_read_only(void **state)
{
	(void)state;
	start();
	assert_int_not_equal(mprotect((void *)other->pool, other->pool_size,
				      PROT_READ | PROT_WRITE),
			     0);
	assert_int_not_equal(mprotect((void *)other->words,
				      other->n_slots * sizeof(uint64_t),
				      PROT_READ | PROT_WRITE),
			     0);
	assert_int_not_equal(
		madvise((void *)other->pool, other->pool_size, MADV_REMOVE), 0);
	stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_at_each_step),
		cmocka_unit_test(held_by_a_child),
		cmocka_unit_test(held_by_the_process),
		cmocka_unit_test(id_is_free_at_once),
		cmocka_unit_test(abort_while_copying),
		cmocka_unit_test(never_claimed),
		cmocka_unit_test(mapped_read_only),
	};

	if (argc == 3)
		child(argv);
	return rig_run_both(tests);
}
