/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a room that ranks of one engine share is received once and lies in
 * the pool once, whatever their number; each commits it once (a second COMMIT
 * is refused and counted) and its extents are free after the last copy event,
 * never before; whichever rank comes late gets the room as it is. A rank that
 * is killed before its commit, in the middle of it, or before it has admitted
 * the room, fails it for all, and what the others copy is held until they have
 * ended; one that is killed behind its copy fails nothing. A rank that attaches
 * again is another member and has no part in an older room.
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
#define ROOM_BYTES (PAGES * PS_PAGE)
#define POOL (1u << 20)
#define RANKS 8u
#define TOKENS ((uint64_t)PAGES * PS_TOKENS)
#define NONCE 0x5a

static struct rig g[1];
static struct ps p[1];
static struct pe e[RANKS];
static struct pe_room r[RANKS];

static void nobody(void)
{
	memset(e, 0, sizeof(e));
	for (unsigned int i = 0; i < RANKS; i++) {
		e[i].fd = -1;
		e[i].pidfd = -1;
	}
}

static void start(unsigned int ranks)
{
	nobody();
	rig_init(g, rig_engine(), "1M");
	rig_up(g);
	for (unsigned int i = 0; i < ranks; i++) {
		pe_rank_up(&e[i], g->set.engine_socket, &ps_one_layer, "g", i,
			   RANKS);
		memset(e[i].nonce, NONCE, sizeof(e[i].nonce));
	}
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
}

static void stop(void)
{
	ps_down(p);
	for (unsigned int i = 0; i < RANKS; i++)
		pe_down(&e[i]);
	rig_down(g);
}

static void admit(unsigned int i, uint64_t room)
{
	/* a slot of its own, so that a mix-up would show */
	pe_admit(&e[i], &r[i], 3 * i, room, TOKENS, 1);
}

static void receive(uint64_t room)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_OPEN,
		.open = { .room = room, .tokens = TOKENS },
	};
	struct ps_room w;

	memset(m.open.nonce, NONCE, sizeof(m.open.nonce));
	assert_int_equal(ps_say(p, &m), 0);
	ps_granted(p, &w, room, PS_PAGE);
	ps_finish(p, &w, 0);
}

static void held(uint64_t bytes)
{
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), POOL - bytes);
}

/* ---- all goes well ---- */

static void received_once(void **state)
{
	(void)state;
	start(RANKS);
	for (unsigned int i = 0; i < RANKS; i++)
		admit(i, 7);
	receive(7);
	for (unsigned int i = 0; i < RANKS; i++) {
		pe_wait(&e[i], &r[i], KVS_STATUS_READY);
		assert_int_equal(pe_differ(&e[i], &r[i], TOKENS, 1, 7), 0);
		assert_int_equal(r[i].generation, r[0].generation);
		assert_memory_equal(r[i].off, r[0].off, sizeof(r[0].off));
	}
	held(ROOM_BYTES);
	assert_int_equal(rig_received(g), ROOM_BYTES);
	for (unsigned int i = 0; i < RANKS; i++) {
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMIT, &r[i], 0), 0);
		pe_wait(&e[i], &r[i], KVS_STATUS_COMMITTING);
	}
	/* the others' words have not moved with it */
	for (unsigned int i = 0; i < RANKS; i++) {
		held(ROOM_BYTES);
		assert_int_equal(rig_done(g), 0);
		assert_int_equal(rig_parties(g, 7), RANKS - i);
		assert_int_equal(pe_status(&e[i], &r[i]),
				 KVS_STATUS_COMMITTING);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMITTED, &r[i], 0),
				 0);
		if (i < RANKS - 1)
			rig_wait(g, rig_parties(g, 7) == (int)(RANKS - i - 1));
	}
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_DONE);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	assert_int_equal(rig_done(g), 1);
	assert_int_equal(rig_received(g), ROOM_BYTES);
	print_message("%u ranks: %llu bytes received, %u in the pool\n", RANKS,
		      (unsigned long long)rig_received(g), ROOM_BYTES);
	stop();
}

static void committed_once(void **state)
{
	(void)state;
	start(RANKS);
	for (unsigned int i = 0; i < RANKS; i++)
		admit(i, 7);
	receive(7);
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_READY);
	/* seven times by one is not once by seven */
	for (unsigned int i = 0; i < RANKS; i++)
		assert_int_equal(pe_say(&e[0], KVS_PACKET_COMMIT, &r[0], 0), 0);
	rig_wait(g, rig_proto(g, KVS_PROTO_ENGINE) == RANKS - 1);
	for (unsigned int i = 0; i < RANKS; i++)
		assert_int_equal(pe_say(&e[0], KVS_PACKET_COMMITTED, &r[0], 0),
				 0);
	rig_wait(g, rig_proto(g, KVS_PROTO_ENGINE) == 2 * (RANKS - 1));
	assert_int_equal(rig_done(g), 0);
	held(ROOM_BYTES);
	assert_int_equal(pe_status(&e[0], &r[0]), KVS_STATUS_COMMITTING);
	assert_int_equal(pe_status(&e[1], &r[1]), KVS_STATUS_READY);
	for (unsigned int i = 1; i < RANKS; i++) {
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMIT, &r[i], 0), 0);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMITTED, &r[i], 0),
				 0);
	}
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_DONE);
	rig_wait(g, rig_done(g) == 1);
	stop();
}

/* The last rank admits the room when it is READY, even COMMITTING. */
static void late_rank(void **state)
{
	(void)state;
	start(RANKS);
	for (unsigned int i = 0; i < RANKS - 1; i++)
		admit(i, 7);
	receive(7);
	for (unsigned int i = 0; i < RANKS - 1; i++) {
		pe_wait(&e[i], &r[i], KVS_STATUS_READY);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMIT, &r[i], 0), 0);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMITTED, &r[i], 0),
				 0);
	}
	rig_wait(g, rig_parties(g, 7) == 0);
	held(ROOM_BYTES);
	assert_int_equal(rig_done(g), 0);
	admit(RANKS - 1, 7);
	pe_wait(&e[RANKS - 1], &r[RANKS - 1], KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e[RANKS - 1], &r[RANKS - 1], TOKENS, 1, 7),
			 0);
	pe_commit(&e[RANKS - 1], &r[RANKS - 1]);
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_DONE);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	stop();
}

/* claim.timeout is for each of them. */
static void one_never_claims(void **state)
{
	(void)state;
	nobody();
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "claim.timeout", "300ms");
	rig_up(g);
	for (unsigned int i = 0; i < RANKS; i++) {
		pe_rank_up(&e[i], g->set.engine_socket, &ps_one_layer, "g", i,
			   RANKS);
		memset(e[i].nonce, NONCE, sizeof(e[i].nonce));
	}
	for (unsigned int i = 0; i < RANKS; i++)
		admit(i, 7);
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
	receive(7);
	for (unsigned int i = 0; i < RANKS - 1; i++) {
		pe_wait(&e[i], &r[i], KVS_STATUS_READY);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMIT, &r[i], 0), 0);
	}
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait_failed(&e[i], &r[i], ETIME);
	/* seven copies may run: held until each has said that it does not */
	for (unsigned int i = 0; i < RANKS - 1; i++) {
		held(ROOM_BYTES);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COPY_OVER, &r[i], 0),
				 0);
		if (i < RANKS - 2)
			rig_wait(g, rig_parties(g, 7) == (int)(RANKS - 2 - i));
	}
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	assert_int_equal(rig_failures(g, KVS_CAUSE_CLAIM_TIMEOUT), 1);
	stop();
}

static void one_aborts(void **state)
{
	(void)state;
	start(RANKS);
	for (unsigned int i = 0; i < RANKS; i++)
		admit(i, 7);
	receive(7);
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_READY);
	/* one has its copy, one is copying, one gives up */
	assert_int_equal(pe_say(&e[0], KVS_PACKET_COMMIT, &r[0], 0), 0);
	assert_int_equal(pe_say(&e[0], KVS_PACKET_COMMITTED, &r[0], 0), 0);
	assert_int_equal(pe_say(&e[1], KVS_PACKET_COMMIT, &r[1], 0), 0);
	pe_wait(&e[1], &r[1], KVS_STATUS_COMMITTING);
	pe_abort(&e[2], &r[2]);
	for (unsigned int i = 0; i < RANKS; i++)
		pe_wait_failed(&e[i], &r[i], ECANCELED);
	held(ROOM_BYTES);
	assert_int_equal(rig_parties(g, 7), 1);
	assert_int_equal(pe_say(&e[1], KVS_PACKET_COPY_OVER, &r[1], 0), 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	stop();
}

/* ---- who may be in it ---- */

static void refused(void **state)
{
	struct pe other, again;
	struct pe_room x;
	static struct kvs_layer_buffer wide = { KVS_BUFFER_KV, 0, 2 * PS_PAGE,
						0 };
	struct kvs_layout wider = ps_one_layer;
	char text[256] = "";

	(void)state;
	wider.buffers = &wide;
	start(RANKS - 1);
	/* not all are there */
	admit(0, 7);
	pe_wait_failed(&e[0], &r[0], EAGAIN);
	assert_non_null(
		strstr(r[0].failure.text, "rank 7 of group g is not attached"));
	/* a rank twice, another number of ranks, another layout */
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket,
					&ps_one_layer, "g", 0, RANKS, text,
					sizeof(text)),
			 EEXIST);
	assert_non_null(strstr(text, "rank 0 of group g is attached"));
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket,
					&ps_one_layer, "g", 7, RANKS + 1, text,
					sizeof(text)),
			 EPROTOTYPE);
	assert_non_null(strstr(text, "9 ranks, rank 0 says 8"));
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket, &wider,
					"g", 7, RANKS, text, sizeof(text)),
			 EPROTOTYPE);
	assert_non_null(strstr(text, "item_len of kv layer 0: 8192 and 4096"));
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket,
					&ps_one_layer, "g", RANKS, RANKS, text,
					sizeof(text)),
			 EINVAL);
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket,
					&ps_one_layer, "g\n", 0, RANKS, text,
					sizeof(text)),
			 EINVAL);
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket,
					&ps_one_layer, "g", 7, 1000, text,
					sizeof(text)),
			 EINVAL);
	assert_int_equal(pe_attach_rank(&again, g->set.engine_socket,
					&ps_one_layer, "", 1, 2, text,
					sizeof(text)),
			 EINVAL);
	pe_rank_up(&e[7], g->set.engine_socket, &ps_one_layer, "g", 7, RANKS);
	/* without a nonce nobody could tell one attempt from the next */
	admit(7, 7);
	pe_wait_failed(&e[7], &r[7], EINVAL);
	memset(e[7].nonce, NONCE, sizeof(e[7].nonce));
	admit(0, 8);
	pe_wait(&e[0], &r[0], KVS_STATUS_ADMITTED);
	/* one that asks for something else, one of no group, one twice */
	pe_admit(&e[1], &r[1], 0, 8, TOKENS + 1, 1);
	pe_wait_failed(&e[1], &r[1], EINVAL);
	assert_non_null(strstr(r[1].failure.text, "tokens: 129"));
	pe_up(&other, g->set.engine_socket, &ps_one_layer);
	memset(other.nonce, NONCE, sizeof(other.nonce));
	pe_admit(&other, &x, 0, 8, TOKENS, 1);
	pe_wait_failed(&other, &x, EEXIST);
	pe_admit(&e[0], &x, 1, 8, TOKENS, 1);
	pe_wait_failed(&e[0], &x, EEXIST);
	admit(1, 8);
	pe_wait(&e[1], &r[1], KVS_STATUS_ADMITTED);
	pe_abort(&e[1], &r[1]);
	pe_wait_failed(&e[0], &r[0], ECANCELED);
	/* too late for the others: it does not begin anew for one alone */
	admit(2, 8);
	pe_wait_failed(&e[2], &r[2], ECANCELED);
	rig_refresh(g);
	assert_int_equal(rig_rooms(g), 0);
	pe_down(&other);
	stop();
}

/* ---- deaths ---- */

/* argv: how far, socket. Rank 7, in a process of its own. */
static _Noreturn void child(char **argv)
{
	struct pe me;
	struct pe_room x;

	pe_rank_up(&me, argv[2], &ps_one_layer, "g", RANKS - 1, RANKS);
	memset(me.nonce, NONCE, sizeof(me.nonce));
	rig_child_say();
	if (!strcmp(argv[1], "absent"))
		for (;;)
			pause();
	pe_admit(&me, &x, 0, 7, TOKENS, 1);
	pe_wait(&me, &x, KVS_STATUS_READY);
	if (strcmp(argv[1], "ready") != 0) {
		assert_int_equal(pe_say(&me, KVS_PACKET_COMMIT, &x, 0), 0);
		pe_wait(&me, &x, KVS_STATUS_COMMITTING);
	}
	if (!strcmp(argv[1], "copied"))
		assert_int_equal(pe_say(&me, KVS_PACKET_COMMITTED, &x, 0), 0);
	rig_child_say();
	for (;;)
		pause();
}

static void with_victim(const char *far, pid_t *ret_pid, int *ret_fd)
{
	const char *const args[] = { far, g->set.engine_socket, NULL };

	start(RANKS - 1);
	*ret_pid = rig_spawn(args, ret_fd);
	rig_child_said(*ret_fd);
	for (unsigned int i = 0; i < RANKS - 1; i++)
		admit(i, 7);
	receive(7);
	for (unsigned int i = 0; i < RANKS - 1; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_READY);
	if (strcmp(far, "absent") != 0)
		rig_child_said(*ret_fd);
	/* one copies meanwhile */
	assert_int_equal(pe_say(&e[0], KVS_PACKET_COMMIT, &r[0], 0), 0);
	pe_wait(&e[0], &r[0], KVS_STATUS_COMMITTING);
}

static void killed(void **state)
{
	static const char *const steps[] = { "absent", "ready", "committing" };
	pid_t pid;
	int fd;

	(void)state;
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(steps); i++) {
		with_victim(steps[i], &pid, &fd);
		rig_kill(pid, &fd);
		for (unsigned int k = 0; k < RANKS - 1; k++)
			pe_wait_failed(&e[k], &r[k], ECONNRESET);
		rig_wait(g, rig_failures(g, KVS_CAUSE_ENGINE_LOST) == 1);
		/* that one's copy ended with its process, the other's has not */
		rig_wait(g, rig_parties(g, 7) == 1);
		held(ROOM_BYTES);
		assert_int_equal(pe_say(&e[0], KVS_PACKET_COPY_OVER, &r[0], 0),
				 0);
		rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL);
		assert_int_equal(rig_done(g), 0);
		/* and its rank, attached again, has nothing of it */
		pe_rank_up(&e[RANKS - 1], g->set.engine_socket, &ps_one_layer,
			   "g", RANKS - 1, RANKS);
		memset(e[RANKS - 1].nonce, NONCE, sizeof(e[0].nonce));
		admit(RANKS - 1, 7);
		pe_wait_failed(&e[RANKS - 1], &r[RANKS - 1], ECONNRESET);
		stop();
	}
}

/* Its copy is there, and nothing of it is needed any more. */
static void killed_behind_its_copy(void **state)
{
	pid_t pid;
	int fd;

	(void)state;
	with_victim("copied", &pid, &fd);
	rig_wait(g, rig_parties(g, 7) == 1);
	rig_kill(pid, &fd);
	rig_wait(g, g->snap->engines == RANKS - 1);
	/* a new incarnation is no member of it */
	pe_rank_up(&e[RANKS - 1], g->set.engine_socket, &ps_one_layer, "g",
		   RANKS - 1, RANKS);
	memset(e[RANKS - 1].nonce, NONCE, sizeof(e[0].nonce));
	admit(RANKS - 1, 7);
	pe_wait_failed(&e[RANKS - 1], &r[RANKS - 1], ECONNRESET);
	assert_int_equal(rig_failures(g, KVS_CAUSE_ENGINE_LOST), 0);
	held(ROOM_BYTES);
	assert_int_equal(pe_say(&e[0], KVS_PACKET_COMMITTED, &r[0], 0), 0);
	for (unsigned int i = 1; i < RANKS - 1; i++) {
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMIT, &r[i], 0), 0);
		assert_int_equal(pe_say(&e[i], KVS_PACKET_COMMITTED, &r[i], 0),
				 0);
	}
	for (unsigned int i = 0; i < RANKS - 1; i++)
		pe_wait(&e[i], &r[i], KVS_STATUS_DONE);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	assert_int_equal(rig_done(g), 1);
	stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(received_once),
		cmocka_unit_test(committed_once),
		cmocka_unit_test(late_rank),
		cmocka_unit_test(one_never_claims),
		cmocka_unit_test(one_aborts),
		cmocka_unit_test(refused),
		cmocka_unit_test(killed),
		cmocka_unit_test(killed_behind_its_copy),
	};

	if (argc > 1)
		child(argv);
	return rig_run_both(tests);
}
