/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: 300 requests that finish while all are aborted end exactly once each,
 * as done or as aborted, and leave nothing (sgl-project/sglang#31965). The
 * sender's last words come from one thread, the engine commits and aborts on
 * another, the operator aborts on a third. In every other round the aborts wait
 * for some rooms to be done, and the last few rooms for the aborts, so that
 * rooms end in both ways however fast either side is. KVS_TEST_ROUNDS rounds,
 * 40 unless told otherwise.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define ROOMS 300u
#define ROUNDS 40u
#define LATE 10u /* rooms that wait for the aborts */

static struct rig g[1];
static struct pe e[1];
static struct ps p[1];
static struct pe_room r[ROOMS];
static struct ps_room w[ROOMS];
static bool claimed[ROOMS];
static struct kvs_rng rng;
static atomic_bool go, all_said, aborting;
static unsigned int n_claimed;
static unsigned int both, done_rooms, aborted_rooms;

static void wait_for_go(void)
{
	while (!atomic_load(&go))
		;
}

/* What is left of each transfer is its LAST. */
static void *say_last(void *arg)
{
	(void)arg;
	wait_for_go();
	for (uint32_t i = 0; i < ROOMS; i++) {
		while (i == ROOMS - LATE && !atomic_load(&aborting))
			;
		if (ps_last(p, &w[i], w[i].bytes))
			return w; /* an error */
	}
	atomic_store(&all_said, true);
	return NULL;
}

/* Every third, from the end. */
static void *operator_aborts(void *arg)
{
	int ret;

	(void)arg;
	wait_for_go();
	while (!atomic_load(&aborting))
		;
	for (uint32_t i = ROOMS; i >= 3; i -= 3) {
		ret = kvs_service_abort(g->svc, w[i - 1].grant.room);
		if (ret && ret != -ENOENT && ret != -EALREADY)
			return r; /* an error */
	}
	return NULL;
}

static void claim_ready_ones(void)
{
	for (uint32_t i = 0; i < ROOMS; i++) {
		if (claimed[i] || pe_status(e, &r[i]) != KVS_STATUS_READY)
			continue;
		claimed[i] = true;
		n_claimed++;
		assert_int_equal(pe_say(e, KVS_PACKET_COMMIT, &r[i], 0), 0);
		assert_int_equal(pe_say(e, KVS_PACKET_COMMITTED, &r[i], 0), 0);
	}
	assert_true(pe_pump(e));
}

/* The engine's side: claims what is READY, and at some time aborts all, while
 * it claims on. */
static void claim_and_abort(bool wait)
{
	uint64_t enough = 1 + kvs_rng_below(&rng, ROOMS - LATE);
	uint64_t until = rig_until();

	atomic_store(&aborting, !wait);
	atomic_store(&go, true);
	while (n_claimed < enough && (wait || !atomic_load(&all_said))) {
		claim_ready_ones();
		assert_true(kvs_clock_now(&kvs_clock_real) < until);
	}
	atomic_store(&aborting, true);
	for (uint32_t i = 0; i < ROOMS; i++) {
		claim_ready_ones();
		assert_int_equal(pe_say(e, KVS_PACKET_ABORT, &r[i], 0), 0);
	}
}

static void each_has_ended_once(void)
{
	enum kvs_status st;

	for (uint32_t i = 0; i < ROOMS; i++) {
		uint64_t until = rig_until();

		do {
			assert_true(pe_pump(e));
			st = pe_status(e, &r[i]);
			if (st != KVS_STATUS_DONE && st != KVS_STATUS_FAILED)
				rig_pause(until, "an end", __FILE__, __LINE__);
		} while (st != KVS_STATUS_DONE && st != KVS_STATUS_FAILED);
		assert_true(pe_pump(e));
		/* FAILED was told to those that are not done, and only once */
		assert_int_equal(r[i].failed, st == KVS_STATUS_FAILED);
		if (r[i].failed)
			assert_int_equal(r[i].failure.err, ECANCELED);
		done_rooms += st == KVS_STATUS_DONE;
		aborted_rooms += st == KVS_STATUS_FAILED;
	}
}

/* Everything that was said to the sender. */
static void drink(void)
{
	static uint64_t seq = 1000000;
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE };

	m.keepalive.seq = ++seq;
	assert_int_equal(ps_say(p, &m), 0);
	do {
		assert_int_equal(ps_read(p, p->ctl, &m), 0);
	} while (m.type != KVS_WIRE_KEEPALIVE || !m.keepalive.reply ||
		 m.keepalive.seq != seq);
}

static void one_round(uint64_t first, bool wait)
{
	unsigned int done_before = done_rooms;
	pthread_t sender, operator;
	void *err;

	memset(claimed, 0, sizeof(claimed));
	n_claimed = 0;
	atomic_store(&go, false);
	atomic_store(&all_said, false);
	for (uint32_t i = 0; i < ROOMS; i++)
		pe_admit(e, &r[i], i, first + i, PS_TOKENS, 1);
	for (uint32_t i = 0; i < ROOMS; i++)
		assert_int_equal(ps_open(p, first + i, PS_TOKENS), 0);
	for (uint32_t i = 0; i < ROOMS; i++) {
		ps_granted(p, &w[i], first + i, PS_PAGE);
		assert_true(ps_send_part(p, 0, &w[i], 0, 0, 0) > 0);
		pe_wait(e, &r[i], KVS_STATUS_RECEIVING);
	}
	assert_int_equal(pthread_create(&sender, NULL, say_last, NULL), 0);
	assert_int_equal(pthread_create(&operator, NULL, operator_aborts, NULL),
			 0);
	claim_and_abort(wait);
	assert_int_equal(pthread_join(sender, &err), 0);
	assert_null(err);
	assert_int_equal(pthread_join(operator, & err), 0);
	assert_null(err);
	each_has_ended_once();
	drink();
	for (uint32_t i = 0; i < ROOMS; i++)
		ps_room_fini(&w[i]);
	rig_wait(g,
		 rig_rooms(g) == 0 && rig_bytes(g, KVS_EXTENT_FREE) == 2 << 20);
	if (done_rooms > done_before && done_rooms - done_before < ROOMS)
		both++;
}

static void ends_exactly_once(void **state)
{
	const char *env = getenv("KVS_TEST_ROUNDS");
	unsigned long rounds = env ? strtoul(env, NULL, 0) : ROUNDS;

	(void)state;
	both = done_rooms = aborted_rooms = 0;
	kvs_rng_init(&rng, rig_seed());
	rig_init(g, rig_engine(), "2M");
	rig_set(g, "engine.slots", "512");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
	for (unsigned long n = 0; n < rounds; n++)
		one_round(1 + n * ROOMS, n % 2);
	rig_refresh(g);
	print_message("# %lu rounds of %u: %u done, %u aborted, both in %u "
		      "rounds\n",
		      rounds, ROOMS, done_rooms, aborted_rooms, both);
	assert_int_equal(done_rooms + aborted_rooms, rounds * ROOMS);
	assert_int_equal(rig_done(g), done_rooms);
	assert_int_equal(rig_failures(g, KVS_CAUSE_ENGINE_ABORT),
			 aborted_rooms);
	assert_true(both > 0);
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_exactly_once),
	};

	return rig_run_both(tests);
}
