/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over random histories of puts, gets, drops and crashes at any
 * moment: whatever is served afterwards is byte-exact. What was acknowledged
 * is there after the end of the process with either durability, and after the
 * loss of power, which drops or tears whatever was not synced, with
 * durability = fdatasync. No state of the files makes an open fail.
 * KVS_TEST_SEED replays, KVS_TEST_ROUNDS makes more.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/units.h"
#include "tests/unit/hicache/disk_rig.h"
#include "tests/unit/pinned/seed.h"

#define ROUNDS 150u
#define CRASHES 4u
#define UNDER_WAY 12u

static struct disk_rig g;
static bool promised[RIG_PAGES]; /* put, and nobody took it back */

struct history {
	struct kvs_rng rng;
	struct rig_req *q[UNDER_WAY];
	uint32_t next; /* page that was never put */
	bool power;
	uint64_t served;
	uint64_t lost; /* pages that were promised nothing */
};

static void take(struct history *h, unsigned int i)
{
	struct rig_req *q = h->q[i];

	if (!q || !q->over)
		return;
	if (!q->result) {
		g.loc[q->n] = q->r.loc;
		promised[q->n] = true;
	}
	disk_rig_req_free(q);
	h->q[i] = NULL;
}

static void put_some(struct history *h)
{
	unsigned int i = (unsigned int)kvs_rng_below(&h->rng, UNDER_WAY);

	take(h, i);
	if (h->q[i] || h->next == RIG_PAGES)
		return;
	h->q[i] = disk_rig_req(&g, h->next, 1 + i % 3, i % 2 * 8);
	if (kvs_disk_store_put(g.store, &h->q[i]->r)) {
		disk_rig_req_free(h->q[i]);
		h->q[i] = NULL;
	} else {
		h->next++;
	}
}

static void step(struct history *h)
{
	uint32_t n = h->next ? (uint32_t)kvs_rng_below(&h->rng, h->next) : 0;
	int rc;

	switch (kvs_rng_below(&h->rng, 8)) {
	case 0:
	case 1:
	case 2:
		put_some(h);
		break;
	case 3:
		if (g.loc[n]) {
			rc = disk_rig_get(&g, n);
			assert_int_equal(rc, 0);
			h->served++;
		}
		break;
	case 4:
		if (g.loc[n] && !kvs_rng_below(&h->rng, 4)) {
			assert_int_equal(kvs_disk_store_drop(g.store, g.loc[n]),
					 0);
			g.loc[n] = 0;
			promised[n] = false;
		}
		break;
	default:
		kvs_disk_store_turn(g.store);
		kvs_vclock_advance(&g.clock, kvs_rng_below(&h->rng, 3000));
		break;
	}
}

static void crash(struct history *h)
{
	bool hard = g.o.durability == KVS_DURABILITY_FDATASYNC || !h->power;
	unsigned int i;
	uint32_t n;
	int rc;

	for (i = 0; i < UNDER_WAY; i++)
		take(h, i);
	disk_rig_crash(&g, h->power);
	for (i = 0; i < UNDER_WAY; i++) {
		if (h->q[i])
			disk_rig_req_free(h->q[i]);
		h->q[i] = NULL;
	}
	disk_rig_open(&g);
	for (n = 0; n < h->next; n++) {
		rc = g.loc[n] ? disk_rig_get(&g, n) : -ENOENT;
		assert_int_not_equal(rc, -EILSEQ);
		h->served += !rc;
		if (rc && promised[n]) {
			h->lost++;
			if (hard)
				print_error("page %u was promised: %d\n", n,
					    rc);
			assert_false(hard);
			promised[n] = false;
		}
		if (rc)
			g.loc[n] = 0;
	}
}

static void one_history(struct history *h, uint64_t seed, bool power,
			enum kvs_durability durability)
{
	unsigned int i, steps;

	memset(promised, 0, sizeof(promised));
	h->next = 0;
	h->power = power;
	kvs_rng_init(&h->rng, seed);
	disk_rig_init(&g, seed);
	g.page_bytes = kvs_rng_below(&h->rng, 2) ? 1000 : 4096;
	g.o.segment_bytes = 64 << 10;
	g.o.durability = durability;
	g.o.commit_pages = 1 + (unsigned int)kvs_rng_below(&h->rng, 8);
	g.io.latency = 2000;
	g.f.no_allocate = kvs_rng_below(&h->rng, 2);
	if (!kvs_rng_below(&h->rng, 3))
		g.f.short_every = 3;
	disk_rig_open(&g);
	for (i = 0; i < CRASHES; i++) {
		steps = (unsigned int)kvs_rng_below(&h->rng, 400);
		while (steps--)
			step(h);
		crash(h);
	}
	disk_rig_fini(&g);
}

static unsigned int rounds(void)
{
	const char *s = getenv("KVS_TEST_ROUNDS");
	uint64_t n;

	return s && !kvs_parse_u64(s, &n) && n ? (unsigned int)n : ROUNDS;
}

static void many(bool power, enum kvs_durability durability)
{
	static struct history h;
	struct kvs_rng seeds;
	unsigned int i, n = rounds();

	memset(&h, 0, sizeof(h));
	seed_rng(&seeds);
	for (i = 0; i < n; i++)
		one_history(&h, kvs_rng_next(&seeds), power, durability);
	print_message("%u histories, %u crashes: %llu pages served, all "
		      "exact; %llu lost that were promised\n",
		      n, n * CRASHES, (unsigned long long)h.served,
		      (unsigned long long)h.lost);
	assert_true(h.served > n);
	if (power && durability == KVS_DURABILITY_NONE)
		assert_true(h.lost > 0); /* or the double loses nothing */
	else
		assert_int_equal(h.lost, 0);
}

static void killed(void **state)
{
	(void)state;
	many(false, KVS_DURABILITY_NONE);
}

static void power_lost_synced(void **state)
{
	(void)state;
	many(true, KVS_DURABILITY_FDATASYNC);
}

static void power_lost_unsynced(void **state)
{
	(void)state;
	many(true, KVS_DURABILITY_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed),
		cmocka_unit_test(power_lost_synced),
		cmocka_unit_test(power_lost_unsynced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
