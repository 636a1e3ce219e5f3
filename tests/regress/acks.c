/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about acknowledgements on a real connection: one that comes as soon
 * as it can, right behind the ABORT, is never too early, whoever ended the
 * room (sgl-project/sglang#41402): ten thousand times for each way to end one,
 * all end drained and none is ignored; of those with an old tag, no tag,
 * another room's or sent twice none counts, each is counted under its own
 * reason, and the operator is told once a peer, not once a message (#37077).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define AT_ONCE 200u /* rooms under way together */
#define POOL "16M"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ABORTS 1000u /* of each kind */
#else
#define ABORTS 10000u
#endif

static struct rig g[1];
static struct pe e[1];
static struct ps p[1];
static struct pe_room r[AT_ONCE];
static struct ps_room w[AT_ONCE];

static void start(const char *transfer_timeout)
{
	rig_init(g, rig_engine(), POOL);
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", "60s");
	rig_set(g, "hold.reask", "0");
	rig_set(g, "transfer.timeout", transfer_timeout);
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	ps_up(p, g->port, "p", 0, 1, &ps_one_layer);
}

static void stop(void)
{
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

static uint64_t ignored(void)
{
	uint64_t n = 0;

	for (int i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		n += rig_acks_ignored(g, i);
	return n;
}

/* ---- right behind the ABORT ------------------------------------------------ */

static void by_engine(void)
{
	for (uint32_t i = 0; i < AT_ONCE; i++)
		assert_int_equal(pe_say(e, KVS_PACKET_ABORT, &r[i], 0), 0);
}

static void by_hand(void)
{
	for (uint32_t i = 0; i < AT_ONCE; i++)
		assert_int_equal(kvs_service_abort(g->svc, w[i].grant.room), 0);
}

static void by_sender(void)
{
	for (uint32_t i = 0; i < AT_ONCE; i++)
		assert_int_equal(ps_answer(p, KVS_WIRE_ABORT, w[i].grant.room,
					   w[i].grant.generation),
				 0);
}

static void by_refusal(void)
{
	struct kvs_msg m;

	for (uint32_t i = 0; i < AT_ONCE; i++) {
		m = (struct kvs_msg){ .type = KVS_WIRE_REFUSE };
		m.refuse.room = w[i].grant.room;
		m.refuse.generation = w[i].grant.generation;
		m.refuse.err = EIO;
		m.refuse.class = 503;
		assert_int_equal(ps_say(p, &m), 0);
	}
}

static void by_missing_bytes(void)
{
	for (uint32_t i = 0; i < AT_ONCE; i++)
		assert_int_equal(ps_last(p, &w[i], 0), 0);
}

/* All rooms of the rank that still expect bytes. */
static void by_broken_connection(void)
{
	assert_true(ps_send_part(p, 0, &w[0], 0, 0, 30) > 0);
	ps_reset(&p->data[0]);
	p->n_data = 0;
	assert_int_equal(ps_data(p), 0);
}

static void by_engine_death(void)
{
	pe_down(e);
}

static const struct {
	const char *what;
	void (*end)(void); /* NULL: by itself */
	int err; /* that the engine hears; 0: it is gone */
	const char *transfer_timeout;
} ends[] = {
	{ "engine's abort", by_engine, ECANCELED, "300s" },
	{ "operator's abort", by_hand, ECANCELED, "300s" },
	{ "sender's abort", by_sender, EIO, "300s" },
	{ "sender's refusal", by_refusal, EIO, "300s" },
	{ "missing bytes", by_missing_bytes, ENODATA, "300s" },
	{ "broken data connection", by_broken_connection, ECONNRESET, "300s" },
	{ "deadline", NULL, ETIMEDOUT, "10ms" },
	{ "death of the engine", by_engine_death, 0, "300s" },
};

/* AT_ONCE rooms are granted, all end by ends[k], every ABORT is answered at
 * once. */
static void wave(unsigned int k, uint64_t first)
{
	uint32_t aborts = 0;
	struct kvs_msg m;
	int type;

	for (uint32_t i = 0; i < AT_ONCE; i++)
		pe_admit(e, &r[i], i, first + i, PS_TOKENS, 1);
	for (uint32_t i = 0; i < AT_ONCE; i++)
		assert_int_equal(ps_open(p, first + i, PS_TOKENS), 0);
	for (uint32_t i = 0; ends[k].end && i < AT_ONCE; i++) {
		ps_granted(p, &w[i], first + i, PS_PAGE);
		assert_int_not_equal(pe_status(e, &r[i]), KVS_STATUS_PENDING);
	}
	if (ends[k].end)
		ends[k].end();
	while (aborts < AT_ONCE) {
		type = ps_next(p, &m);
		if (type == KVS_WIRE_GRANT && !ends[k].end)
			continue;
		assert_int_equal(type, KVS_WIRE_ABORT);
		aborts++;
		assert_int_equal(ps_answer(p, KVS_WIRE_ABORT_ACK, m.abort.room,
					   m.abort.generation),
				 0);
	}
	for (uint32_t i = 0; i < AT_ONCE; i++) {
		if (ends[k].err)
			pe_wait_failed(e, &r[i], ends[k].err);
		ps_room_fini(&w[i]);
	}
	rig_wait(g, rig_rooms(g) == 0);
	if (!ends[k].err)
		pe_up(e, g->set.engine_socket, &ps_one_layer);
}

static void never_too_early(void **state)
{
	uint64_t drained;

	(void)state;
	for (unsigned int k = 0; k < KVS_ARRAY_SIZE(ends); k++) {
		uint64_t began = kvs_clock_now(&kvs_clock_real);

		start(ends[k].transfer_timeout);
		for (uint32_t n = 0; n < ABORTS; n += AT_ONCE)
			wave(k, 1 + n);
		rig_refresh(g);
		drained = rig_drains(g, KVS_DRAIN_DRAINED,
				     KVS_PROOF_ALL_ACKNOWLEDGED);
		print_message(
			"# %s: %llu drained, %llu ms\n", ends[k].what,
			(unsigned long long)drained,
			(unsigned long long)((kvs_clock_now(&kvs_clock_real) -
					      began) /
					     KVS_NSEC_PER_MSEC));
		assert_int_equal(drained, ABORTS);
		assert_int_equal(ignored(), 0);
		stop();
	}
}

/* ---- tags ------------------------------------------------------------------ */

static void only_the_right_tag(void **state)
{
	uint64_t old, gen;
	struct ps other;
	struct kvs_msg m;

	(void)state;
	rig_init(g, rig_engine(), "1M");
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", "60s");
	rig_set(g, "hold.reask", "0");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_two_layers);
	ps_up(p, g->port, "p", 0, 2, &ps_two_layers);
	ps_up(&other, g->port, "p", 1, 2, &ps_two_layers);
	for (int attempt = 0; attempt < 2; attempt++) {
		old = r[0].generation;
		pe_admit(e, &r[0], 0, 7, PS_TOKENS, 2);
		assert_int_equal(ps_open(p, 7, PS_TOKENS), 0);
		assert_int_equal(ps_open(&other, 7, PS_TOKENS), 0);
		ps_granted(p, &w[0], 1, PS_PAGE);
		ps_granted(&other, &w[1], 1, PS_PAGE);
		pe_abort(e, &r[0]);
		gen = r[0].generation;
		ps_expect(p, KVS_WIRE_ABORT, &m);
		ps_expect(&other, KVS_WIRE_ABORT, &m);
		ps_room_fini(&w[0]);
		ps_room_fini(&w[1]);
		if (attempt)
			break;
		ps_answer(p, KVS_WIRE_ABORT_ACK, 7, gen);
		ps_answer(&other, KVS_WIRE_ABORT_ACK, 7, gen);
		rig_wait(g, rig_rooms(g) == 0);
	}
	assert_true(old && old < gen);
	assert_int_equal(ignored(), 0);
	assert_int_equal(rig_warnings(g), 0);

	ps_answer(p, KVS_WIRE_ABORT_ACK, 7, old);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_STALE) == 1);
	ps_answer(p, KVS_WIRE_ABORT_ACK, 7, 0);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_MALFORMED) == 1);
	assert_int_equal(rig_parties(g, 7), 2);
	ps_answer(p, KVS_WIRE_ABORT_ACK, 7, gen);
	ps_answer(p, KVS_WIRE_ABORT_ACK, 7, gen);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_DUPLICATE) == 1);
	assert_int_equal(rig_parties(g, 7), 1);
	ps_answer(p, KVS_WIRE_ABORT_ACK, 8, gen);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_UNKNOWN_ROOM) == 1);
	/* the other rank of that peer does it as well: still one warning */
	ps_answer(&other, KVS_WIRE_ABORT_ACK, 7, old);
	rig_wait(g, rig_acks_ignored(g, KVS_ACK_IGNORED_STALE) == 2);
	assert_int_equal(ignored(), 5);
	assert_int_equal(rig_warnings(g), 1);
	assert_int_equal(rig_parties(g, 7), 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), 2 * PS_PAGE);
	/* nobody was closed for it */
	ps_quiet(p);
	ps_answer(&other, KVS_WIRE_ABORT_ACK, 7, gen);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
				    KVS_PROOF_ALL_ACKNOWLEDGED),
			 2);
	ps_down(&other);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(never_too_early),
		cmocka_unit_test(only_the_right_tag),
	};

	return rig_run_both(tests);
}
