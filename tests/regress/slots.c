/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: a small result that comes late is never taken from who had the place
 * before (sgl-project/sglang#27374, where zero meant "not yet written" and a
 * place that was given back was not cleared): 2000 requests, 32 of them under
 * way, over eight slots and little memory, the aux block of each sent only
 * after the pages of all others that are under way: none fails, none is READY
 * before its own block is there, and each has its own.
 */
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define REQUESTS 2000u
#define AHEAD 32u /* OPENs that the sender is ahead */
#define SLOTS 8u
#define AUX 96u

static struct kvs_layout layout;
static struct rig g[1];
static struct pe e[1];
static struct ps p[1];
static struct pe_room r[SLOTS];
static struct ps_room w[SLOTS];

static bool is_aux(const struct ps_room *room, uint32_t chunk)
{
	return room->chunks[chunk].kind == KVS_KIND_AUX;
}

/* Those that hold a slot: pages of all, then, last one first, what is left. */
static void serve(uint64_t first)
{
	struct kvs_msg m;

	for (uint32_t i = 0; i < SLOTS; i++) {
		pe_admit(e, &r[i], i, first + i, PS_TOKENS, 1);
		ps_granted(p, &w[i], first + i, PS_PAGE);
		assert_int_equal(w[i].grant.room, first + i);
		assert_int_equal(w[i].n_chunks, 2);
		assert_true(is_aux(&w[i], 1));
		assert_true(ps_send_part(p, 0, &w[i], 0, 0, 0) > 0);
	}
	for (uint32_t i = SLOTS; i-- > 0;) {
		assert_int_equal(ps_last(p, &w[i], w[i].bytes), 0);
		assert_int_equal(pe_status(e, &r[i]), KVS_STATUS_RECEIVING);
		assert_int_equal(r[i].generation, w[i].grant.generation);
		assert_true(ps_send_part(p, 0, &w[i], 1, 0, 0) > 0);
		ps_expect(p, KVS_WIRE_COMPLETE, &m);
		assert_int_equal(m.complete.room, first + i);
		assert_int_equal(m.complete.generation, r[i].generation);
		pe_take(e, &r[i], PS_TOKENS, 1, first + i);
		ps_room_fini(&w[i]);
	}
}

static void late_block_is_its_own(void **state)
{
	uint64_t opened = 0, failed = 0;

	(void)state;
	layout = ps_one_layer;
	layout.aux_max = AUX;
	rig_init(g, rig_engine(), "64K");
	rig_set(g, "engine.slots", "8");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &layout);
	assert_int_equal(e->n_slots, SLOTS);
	e->aux_len = AUX;
	ps_up(p, g->port, "p", 0, 1, &layout);
	for (uint64_t first = 1; first <= REQUESTS; first += SLOTS) {
		while (opened < REQUESTS && opened + 1 < first + AHEAD)
			assert_int_equal(ps_open(p, ++opened, PS_TOKENS), 0);
		serve(first);
	}
	rig_refresh(g);
	for (int c = 0; c < KVS_CAUSE_MAX; c++)
		failed += rig_failures(g, c);
	assert_int_equal(failed, 0);
	assert_int_equal(rig_done(g), REQUESTS);
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_block_is_its_own),
	};

	return rig_run_both(tests);
}
