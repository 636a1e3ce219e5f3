/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R13, the cache: what an engine's copy reads of the cache stays where it is
 * until the copy's end, on abort as well, however much others want the memory
 * (sgl-project/sglang#26728). Without the rule it is evicted, the next room is
 * received over it, and the copy brings that to the device.
 */
#include <string.h>

#include "tests/claim/claim_rig.h"

#define PAGES 31u

static struct rig g;

static void turns(void)
{
	do
		kvs_worker_turn(g.w);
	while (kvs_worker_next(g.w) == 0);
}

/* The memory of the cached pages, as the launched copy has it, and what was
 * there. */
static struct {
	const unsigned char *at[4];
	unsigned char was[4][16 * CLAIM_PAGE];
	uint64_t len[4];
	unsigned int n;
} copy;

static void launch(void)
{
	const struct kvs_cached *c;

	copy.n = 0;
	kvs_list_for_each_entry(c, &g.w->cache.units, node) {
		assert_true(copy.n < KVS_ARRAY_SIZE(copy.at));
		copy.at[copy.n] = kvs_extent_addr(&c->ext, 0);
		copy.len[copy.n] = c->ext.v[0].len;
		memcpy(copy.was[copy.n], copy.at[copy.n], c->ext.v[0].len);
		copy.n++;
	}
}

static uint64_t changed(void)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < copy.n; i++)
		for (uint64_t k = 0; k < copy.len[i]; k++)
			n += copy.at[i][k] != copy.was[i][k];
	return n;
}

/* What is cached is copied as a part of a room, or without one. */
static uint64_t begin(bool room)
{
	uint64_t gen;

	if (room) {
		gen = rig_admit_named(&g, 2, 2, PAGES + 9, 7, true);
		rig_open(&g, 2, gen, 0);
		claim_send_rest(&g, 2, gen, 1, 0, 9, 2);
	} else {
		gen = rig_lookup(&g, KVS_LOOKUP_PIN, 2, 7, PAGES);
	}
	turns();
	rig_packet(&g, KVS_PACKET_COMMIT, 2, gen, 0);
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_COMMITTING);
	return gen;
}

static void wanted(bool room)
{
	uint64_t gen, other, bad;
	bool early;

	for (int given_up = 0; given_up < 2; given_up++) {
		rig_up(&g, 64);
		rig_sessions(&g, 1);
		kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE),
				 "m", 0);
		gen = rig_admit_named(&g, 1, 1, PAGES, 7, false);
		rig_open(&g, 1, gen, 0);
		claim_send_rest(&g, 1, gen, 1, 0, PAGES, 1);
		rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
		rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, 0);
		turns();
		gen = begin(room);
		launch();
		if (given_up)
			rig_packet(&g, KVS_PACKET_ABORT, 2, gen, 0);
		turns();
		other = rig_admit(&g, 3, 3, 40, 1);
		early = rig_status(&g, 3) == KVS_STATUS_ADMITTED;
		if (early) {
			rig_open(&g, 3, other, 0);
			claim_send_rest(&g, 3, other, 1, 0, 40, 3);
		}
		bad = changed();
		print_message("R13: %llu cached bytes changed under the copy\n",
			      (unsigned long long)bad);
		assert_int_equal(bad, 0);
		assert_false(early);
		rig_packet(&g,
			   given_up ? KVS_PACKET_COPY_OVER
				    : KVS_PACKET_COMMITTED,
			   2, gen, 0);
		turns();
		assert_int_equal(rig_status(&g, 3), KVS_STATUS_ADMITTED);
		rig_packet(&g, KVS_PACKET_ABORT, 3, other, 0);
		turns();
		kvs_cache_flush(g.w);
		rig_down(&g);
	}
}

static void memory_is_wanted(void **state)
{
	(void)state;
	wanted(true);
}

static void memory_is_wanted_of_a_recall(void **state)
{
	(void)state;
	wanted(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_wanted),
		cmocka_unit_test(memory_is_wanted_of_a_recall),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
