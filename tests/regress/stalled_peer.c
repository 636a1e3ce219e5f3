/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a peer that does not read, or whose process is stopped, keeps nobody
 * waiting: a hundred rooms with it are aborted while a hundred of another peer
 * run as before; what is queued for it is bounded, and it is lost at a limit
 * of its own (sgl-project/sglang#31144, #31306, #29570). A link so slow that a
 * hold ends before its chunks do trips nothing: who answers in time is drained,
 * the others are revoked, which is counted apart, nothing is quarantined, the
 * daemon stays ready and the slow peer is served again
 * (NVIDIA/TensorRT-LLM#13831).
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 4u
#define TOKENS (PAGES * PS_TOKENS)
#define ROOM_BYTES (PAGES * PS_PAGE)
#define POOL_BYTES (4u << 20)
#define ROOMS 100u
#define SLOW_ROOMS 128u
#define RATE 375u /* bytes a millisecond: 3 Mbit/s */

static struct rig g[1];
static struct pe e[1];
static struct ps good[1], bad[1];
static struct pe_room r[SLOW_ROOMS];
static struct ps_room w[SLOW_ROOMS];
static uint64_t room;
static uint64_t took[ROOMS];

static void start(const char *keepalive, const char *hold)
{
	rig_init(g, rig_engine(), "4M");
	rig_set(g, "listen.keepalive", keepalive);
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", hold);
	rig_set(g, "hold.reask", "0");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	ps_up(good, g->port, "good", 0, 1, &ps_one_layer);
	room = 1000;
}

static void stop(void)
{
	ps_down(good);
	pe_down(e);
	rig_down(g);
}

static void admit(struct pe_room *q, uint32_t slot, const char *peer,
		  uint64_t id)
{
	snprintf(e->peer, sizeof(e->peer), "%s", peer);
	pe_admit(e, q, slot, id, TOKENS, 1);
}

static void serve(struct ps *p)
{
	struct pe_room q;
	struct ps_room v;

	admit(&q, 200, p->peer, ++room);
	assert_int_equal(ps_open(p, room, TOKENS), 0);
	ps_granted(p, &v, room, PS_PAGE);
	ps_finish(p, &v, 0);
	pe_take(e, &q, TOKENS, 1, room);
}

static void serve_good(const char *when)
{
	for (uint32_t i = 0; i < ROOMS; i++) {
		uint64_t began = rig_now();

		serve(good);
		took[i] = rig_now() - began;
	}
	assert_true(rig_print_times(when, took, ROOMS) < 10 * KVS_NSEC_PER_SEC);
}

static void abort_all(void)
{
	for (uint32_t i = 0; i < ROOMS; i++)
		assert_int_equal(pe_say(e, KVS_PACKET_ABORT, &r[i], 0), 0);
	for (uint32_t i = 0; i < ROOMS; i++)
		pe_wait_failed(e, &r[i], ECANCELED);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), ROOMS * ROOM_BYTES);
}

/* The peer is lost, and all its rooms with it. */
static void lost(void)
{
	rig_wait(g, g->snap->sessions == 1 &&
			    rig_bytes(g, KVS_EXTENT_FREE) == POOL_BYTES);
	assert_int_equal(rig_drains(g, KVS_DRAIN_REVOKED,
				    KVS_PROOF_GRANT_INVALIDATED),
			 ROOMS);
}

static void does_not_read(void **state)
{
	uint64_t rss;

	(void)state;
	start("60s", "60s");
	ps_up(bad, g->port, "bad", 0, 1, &ps_one_layer);
	for (uint32_t i = 0; i < ROOMS; i++) {
		admit(&r[i], i, "bad", 1 + i);
		assert_int_equal(ps_open(bad, 1 + i, TOKENS), 0);
		ps_granted(bad, &w[i], i, PS_PAGE);
		ps_room_fini(&w[i]);
		pe_wait(e, &r[i], KVS_STATUS_RECEIVING);
	}
	serve_good("before");
	rss = rig_rss();
	/* every one is answered (it is open already): more than sockets hold */
	for (uint32_t i = 0; i < 25000; i++)
		assert_int_equal(ps_open(bad, 1, TOKENS), 0);
	abort_all();
	serve_good("while it does not read");
	/* and on, until what is queued for it is too much */
	for (uint32_t i = 1; i < 400000 && g->snap->sessions > 1; i++) {
		if (ps_open(bad, 1, TOKENS))
			break;
		if (i % 1000 == 0)
			rig_refresh(g);
	}
	lost();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	assert_true(rig_rss() < rss + (32 << 20));
#else
	(void)rss;
#endif
	serve(good);
	ps_down(bad);
	stop();
}

/* argv: port. All rooms are granted to this process, which then says so. */
static _Noreturn void child(const char *port)
{
	struct ps_room v;
	struct ps p;

	ps_up(&p, (unsigned int)strtoul(port, NULL, 10), "bad", 0, 1,
	      &ps_one_layer);
	for (uint32_t i = 0; i < ROOMS; i++) {
		assert_int_equal(ps_open(&p, 1 + i, TOKENS), 0);
		ps_granted(&p, &v, i, PS_PAGE);
	}
	rig_child_say();
	for (;;)
		pause();
}

static void is_stopped(void **state)
{
	char port[16];
	const char *const args[] = { port, NULL };
	uint64_t began, until;
	pid_t pid;
	int fd;

	(void)state;
	start("500ms", "60s");
	ps_down(good); /* or a slow machine loses it meanwhile */
	snprintf(port, sizeof(port), "%u", g->port);
	for (uint32_t i = 0; i < ROOMS; i++)
		admit(&r[i], i, "bad", 1 + i);
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	began = rig_now();
	ps_up(good, g->port, "good", 0, 1, &ps_one_layer);
	abort_all();
	serve_good("while it is stopped");
	/* the good one goes on answering */
	until = rig_until();
	while (rig_refresh(g), g->snap->sessions > 1) {
		ps_quiet(good);
		rig_pause(until, "the loss of it", __FILE__, __LINE__);
	}
	print_message(
		"# lost after %llu ms\n",
		(unsigned long long)((rig_now() - began) / KVS_NSEC_PER_MSEC));
	lost();
	/* it goes on, to hear that it is over */
	assert_int_equal(kill(pid, SIGCONT), 0);
	serve(good);
	rig_kill(pid, &fd);
	stop();
}

/* ---- 3 Mbit/s --------------------------------------------------------------- */

static unsigned char *slow_bytes[PS_DATA_MAX];
static size_t slow_len, slow_at[PS_DATA_MAX];

/* What the link takes in a millisecond, over all connections in turn. */
static void trickle(void)
{
	const struct timespec t = { 0, 1000 * 1000 };
	static unsigned int d;
	size_t n = RATE;

	d = (d + 1) % PS_DATA_MAX;
	if (slow_at[d] == slow_len)
		return;
	if (n > slow_len - slow_at[d])
		n = slow_len - slow_at[d];
	assert_int_equal(ps_write(bad->data[d], slow_bytes[d] + slow_at[d], n),
			 n);
	slow_at[d] += n;
	nanosleep(&t, NULL);
}

static void answer(uint32_t i)
{
	assert_int_equal(ps_answer(bad, KVS_WIRE_ABORT_ACK, w[i].grant.room,
				   w[i].grant.generation),
			 0);
}

/* A chunk is under way on each connection. */
static void begin_slowly(void)
{
	for (uint32_t i = 0; i < SLOW_ROOMS; i++) {
		admit(&r[i], i, "bad", 1 + i);
		assert_int_equal(ps_open(bad, 1 + i, TOKENS), 0);
		ps_granted(bad, &w[i], i, ROOM_BYTES);
		pe_wait(e, &r[i], KVS_STATUS_RECEIVING);
	}
	for (unsigned int d = 0; d < PS_DATA_MAX; d++) {
		slow_bytes[d] = ps_chunk_bytes(bad, &w[2 * d], 0, &slow_len);
		slow_at[d] = 0;
	}
	for (unsigned int d = 0; d < PS_DATA_MAX; d++)
		trickle();
	for (unsigned int d = 0; d < PS_DATA_MAX; d++)
		rig_wait(g, rig_parties(g, 1 + 2 * d) == 2);
}

static void is_slow(void **state)
{
	unsigned int turns = 0;
	struct kvs_msg m;

	(void)state;
	start("60s", "150ms");
	ps_up(bad, g->port, "bad", 0, 1, &ps_one_layer);
	while (bad->n_data < PS_DATA_MAX)
		assert_true(ps_data(bad) > 0);
	begin_slowly();
	for (uint32_t i = 0; i < SLOW_ROOMS; i++)
		assert_int_equal(pe_say(e, KVS_PACKET_ABORT, &r[i], 0), 0);
	for (uint32_t i = 0; i < SLOW_ROOMS; i++)
		pe_wait_failed(e, &r[i], ECANCELED);
	/* those with nothing under way answer at once, behind each other */
	for (uint32_t i = 0; i < SLOW_ROOMS; i++) {
		ps_expect(bad, KVS_WIRE_ABORT, &m);
		if (i % 2)
			answer(i);
	}
	while (rig_refresh(g), rig_bytes(g, KVS_EXTENT_HELD) > 0) {
		assert_int_equal(rig_bytes(g, KVS_EXTENT_QUARANTINED), 0);
		assert_int_equal(g->snap->ready, 1);
		trickle();
		if (turns++ % 16 == 0)
			serve(good);
	}
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
				    KVS_PROOF_ALL_ACKNOWLEDGED),
			 SLOW_ROOMS / 2);
	assert_int_equal(rig_drains(g, KVS_DRAIN_REVOKED,
				    KVS_PROOF_GRANT_INVALIDATED),
			 SLOW_ROOMS / 2);
	/* the chunks end after that, and the others answer */
	for (unsigned int d = 0; d < PS_DATA_MAX; d++) {
		assert_true(slow_at[d] < slow_len);
		assert_true(ps_write(bad->data[d], slow_bytes[d] + slow_at[d],
				     slow_len - slow_at[d]) > 0);
		free(slow_bytes[d]);
	}
	for (uint32_t i = 0; i < SLOW_ROOMS; i += 2)
		answer(i);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_UNKNOWN_ROOM) ==
			    SLOW_ROOMS / 2);
	assert_int_equal(rig_late_bytes(g), PS_DATA_MAX * ROOM_BYTES);
	assert_int_equal(rig_drains(g, KVS_DRAIN_QUARANTINED,
				    KVS_PROOF_CANNOT_REVOKE),
			 0);
	for (uint32_t i = 0; i < SLOW_ROOMS; i++)
		ps_room_fini(&w[i]);
	serve(bad);
	ps_down(bad);
	stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(does_not_read),
		cmocka_unit_test(is_stopped),
		cmocka_unit_test(is_slow),
	};

	if (argc == 2)
		child(argv[1]);
	return rig_run_both(tests);
}
