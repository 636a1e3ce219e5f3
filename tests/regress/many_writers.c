/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, with hold.require_ack: of twelve writers that give up six of ten
 * requests in the middle each is heard at once, and where nothing is said the
 * limits end them: survivors go on in both cases (sgl-project/sglang#28651);
 * of fifty transfers whose writer process is killed each is out of its hold
 * when the connection is known to be gone, and others are admitted and served
 * all the time (vllm-project/vllm#46283). Times are printed, and bounded.
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

#define WRITERS 12u
#define PAGES 4u
#define TOKENS (PAGES * PS_TOKENS)
#define ROOM_BYTES (PAGES * PS_PAGE)
#define POOL_BYTES (64u * ROOM_BYTES) /* 1 MiB */
#define SENT (KVS_DATA_FRAME + 500) /* of the first chunk */
#define REQUESTS 600u
#define KILLS 50u

static struct rig g[1];
static struct pe e[1];
static struct ps p[WRITERS];
static uint64_t took[REQUESTS], ttft[REQUESTS];
static uint64_t peak_held;

static void up(const char *transfer_timeout, const char *hold_timeout)
{
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", hold_timeout);
	rig_set(g, "hold.reask", "0");
	rig_set(g, "transfer.timeout", transfer_timeout);
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), POOL_BYTES);
}

static void writers_up(void)
{
	char name[16];

	for (uint32_t i = 0; i < WRITERS; i++) {
		snprintf(name, sizeof(name), "w%u", i);
		ps_up(&p[i], g->port, name, 0, 1, &ps_one_layer);
	}
}

static void writers_down(void)
{
	for (uint32_t i = 0; i < WRITERS; i++)
		ps_down(&p[i]);
}

static void admit(struct pe_room *r, uint32_t slot, const char *peer,
		  uint64_t room)
{
	snprintf(e->peer, sizeof(e->peer), "%s", peer);
	pe_admit(e, r, slot, room, TOKENS, 1);
}

static bool gives_up(uint64_t room)
{
	return room % 10 < 6;
}

/* One request on each writer; those that give up have begun a chunk. */
static void turn(uint64_t first, bool said, unsigned int *n_took,
		 unsigned int *n_ttft)
{
	uint64_t began[WRITERS], gave_up[WRITERS];
	struct pe_room r[WRITERS];
	struct ps_room w[WRITERS];
	struct kvs_msg m;

	for (uint32_t i = 0; i < WRITERS; i++) {
		began[i] = rig_now();
		admit(&r[i], i, p[i].peer, first + i);
		assert_int_equal(ps_open(&p[i], first + i, TOKENS), 0);
	}
	for (uint32_t i = 0; i < WRITERS; i++) {
		ps_granted(&p[i], &w[i], first + i, PS_PAGE);
		pe_wait(e, &r[i], KVS_STATUS_RECEIVING);
		gave_up[i] = rig_now();
		if (!gives_up(first + i))
			continue;
		assert_true(ps_send_part(&p[i], 0, &w[i], 0, 0, SENT) > 0);
		if (said)
			assert_int_equal(ps_answer(&p[i], KVS_WIRE_ABORT,
						   first + i, r[i].generation),
					 0);
	}
	for (uint32_t i = 0; i < WRITERS; i++) {
		if (gives_up(first + i))
			continue;
		ps_finish(&p[i], &w[i], 0);
		pe_take(e, &r[i], TOKENS, 1, first + i);
		ttft[(*n_ttft)++] = rig_now() - began[i];
	}
	rig_refresh(g);
	for (uint32_t i = 0; i < WRITERS; i++) {
		if (!gives_up(first + i))
			continue;
		pe_wait_failed(e, &r[i], said ? EIO : ETIMEDOUT);
		took[(*n_took)++] = rig_now() - gave_up[i];
		ps_expect(&p[i], KVS_WIRE_ABORT, &m);
		if (rig_bytes(g, KVS_EXTENT_HELD) > peak_held)
			peak_held = rig_bytes(g, KVS_EXTENT_HELD);
		/* it does end its chunk, and answers only if it is well */
		assert_true(ps_send_part(&p[i], 0, &w[i], 0, SENT, 0) > 0);
		if (said)
			assert_int_equal(ps_answer(&p[i], KVS_WIRE_ABORT_ACK,
						   first + i, r[i].generation),
					 0);
		ps_room_fini(&w[i]);
	}
}

static void run(const char *what, unsigned int requests, bool said)
{
	unsigned int n_took = 0, n_ttft = 0;

	peak_held = 0;
	for (uint64_t first = 1; first <= requests; first += WRITERS)
		turn(first, said, &n_took, &n_ttft);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == POOL_BYTES);
	print_message("# %s, peak of held bytes %llu\n", what,
		      (unsigned long long)peak_held);
	assert_true(rig_print_times("given up", took, n_took) <
		    10 * KVS_NSEC_PER_SEC +
			    (said ? 0 : g->set.transfer_timeout));
	(void)rig_print_times("survivors", ttft, n_ttft);
	assert_int_equal(rig_done(g), n_ttft);
	assert_int_equal(rig_failures(g, said ? KVS_CAUSE_SENDER_ABORT
					      : KVS_CAUSE_TRANSFER_TIMEOUT),
			 n_took);
	assert_int_equal(
		rig_drains(g, said ? KVS_DRAIN_DRAINED : KVS_DRAIN_REVOKED,
			   said ? KVS_PROOF_ALL_ACKNOWLEDGED
				: KVS_PROOF_GRANT_INVALIDATED),
		n_took);
}

static void writers_give_up(void **state)
{
	(void)state;
	up("60s", "60s");
	writers_up();
	run("told", REQUESTS, true);
	writers_down();
	pe_down(e);
	rig_down(g);

	up("200ms", "200ms");
	writers_up();
	run("not told", 5 * WRITERS, false);
	writers_down();
	pe_down(e);
	rig_down(g);
}

/* ---- killed ---------------------------------------------------------------- */

/* argv: name, port, room. Half a chunk, and then nothing any more. */
static _Noreturn void child(char **argv)
{
	unsigned int port = (unsigned int)strtoul(argv[2], NULL, 10);
	uint64_t room = strtoull(argv[3], NULL, 10);
	struct ps_room w;
	struct ps q;

	ps_up(&q, port, argv[1], 0, 1, &ps_one_layer);
	assert_int_equal(ps_open(&q, room, TOKENS), 0);
	ps_granted(&q, &w, room, PS_PAGE);
	assert_true(ps_send_part(&q, 0, &w, 0, 0, SENT) > 0);
	rig_child_say();
	for (;;)
		pause();
}

static void serve(uint64_t room)
{
	struct pe_room r;
	struct ps_room w;

	admit(&r, 100, p[0].peer, room);
	assert_int_equal(ps_open(&p[0], room, TOKENS), 0);
	ps_granted(&p[0], &w, room, PS_PAGE);
	ps_finish(&p[0], &w, 0);
	pe_take(e, &r, TOKENS, 1, room);
}

static void writers_are_killed(void **state)
{
	char port[16], name[16], id[24];
	const char *const args[] = { name, port, id, NULL };
	struct pe_room r;
	uint64_t began;
	pid_t pid;
	int fd;

	(void)state;
	up("60s", "2s");
	ps_up(&p[0], g->port, "w0", 0, 1, &ps_one_layer);
	snprintf(port, sizeof(port), "%u", g->port);
	for (uint32_t i = 0; i < KILLS; i++) {
		snprintf(name, sizeof(name), "k%u", i);
		snprintf(id, sizeof(id), "%u", 1000 + i);
		admit(&r, i, name, 1000 + i);
		pid = rig_spawn(args, &fd);
		rig_child_said(fd);
		rig_wait(g, rig_parties(g, 1000 + i) == 2);
		began = rig_now();
		rig_kill(pid, &fd);
		pe_wait_failed(e, &r, ECONNRESET);
		rig_wait(g, rig_bytes(g, KVS_EXTENT_HELD) == 0);
		took[i] = rig_now() - began;
		assert_int_equal(rig_bytes(g, KVS_EXTENT_QUARANTINED), 0);
		assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), POOL_BYTES);
		serve(1 + i);
	}
	assert_true(rig_print_times("out of their hold", took, KILLS) <
		    10 * KVS_NSEC_PER_SEC);
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_PEER_LOST), KILLS);
	assert_int_equal(rig_drains(g, KVS_DRAIN_REVOKED,
				    KVS_PROOF_GRANT_INVALIDATED) +
				 rig_drains(g, KVS_DRAIN_REVOKED,
					    KVS_PROOF_RECEIVE_REAPED),
			 KILLS);
	assert_int_equal(rig_done(g), KILLS);
	ps_down(&p[0]);
	pe_down(e);
	rig_down(g);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writers_give_up),
		cmocka_unit_test(writers_are_killed),
	};

	if (argc == 4)
		child(argv);
	return rig_run_both(tests);
}
