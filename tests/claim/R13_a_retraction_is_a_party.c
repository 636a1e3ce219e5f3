/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R13, the daemon's end of offload: the engine's copy of a request that leaves
 * the device, to come back or to be cached, or comes back, is a party of its
 * extents. An abort while it runs
 * gives nothing back until the copy's end is told; without the rule the copy
 * out goes on in the extents of the next request, and the copy back brings the
 * next one's bytes to the device.
 */
#include "tests/claim/claim_rig.h"

#include <string.h>

#define PAGES 40u

static struct rig g;

static struct kvs_retraction *of(uint64_t gen)
{
	return kvs_u64map_get(&g.w->retracts.map, gen);
}

static void turns(void)
{
	do
		kvs_worker_turn(g.w);
	while (kvs_worker_next(g.w) == 0);
}

/* The places of a launched copy are fixed. */
struct launched {
	unsigned char *at[8];
	uint64_t len[8];
	uint32_t n;
};

static void launch(struct launched *l, uint64_t gen)
{
	struct kvs_retraction *t = of(gen);

	assert_true(t->ext.n <= KVS_ARRAY_SIZE(l->at));
	l->n = t->ext.n;
	for (uint32_t i = 0; i < t->ext.n; i++) {
		l->at[i] = kvs_extent_addr(&t->ext, i);
		l->len[i] = t->ext.v[i].len;
	}
}

static void out(const struct launched *l, unsigned char v)
{
	for (uint32_t i = 0; i < l->n; i++)
		claim_device_write(l->at[i], v, l->len[i]);
}

static uint64_t other_bytes(const struct launched *l, unsigned char v)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < l->n; i++)
		for (uint64_t k = 0; k < l->len[i]; k++)
			n += l->at[i][k] != v;
	return n;
}

/* Another request wants to leave: does it get memory? */
static bool another(uint64_t *ret_gen)
{
	*ret_gen = rig_retract(&g, 2, PAGES);
	return rig_status(&g, 2) == KVS_STATUS_ADMITTED;
}

static void given_up_while_leaving(bool to_the_cache)
{
	struct launched a, b;
	uint64_t gen, next, wrong = 0;
	bool early;

	rig_up_offload(&g, 64, 64);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE), "m", 0);
	gen = to_the_cache ? rig_lookup(&g, KVS_LOOKUP_OFFLOAD, 1, 7, PAGES)
			   : rig_retract(&g, 1, PAGES);
	launch(&a, gen);
	rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
	turns();
	early = another(&next);
	if (early) {
		launch(&b, next);
		out(&b, 2);
		out(&a, 1); /* the first copy was still running */
		wrong = other_bytes(&b, 2);
	}
	print_message("R13: %llu bytes of a request overwritten by the copy "
		      "of another\n",
		      (unsigned long long)wrong);
	assert_int_equal(wrong, 0);
	assert_false(early);
	assert_int_equal(rig_offload_bytes(&g, KVS_EXTENT_HELD),
			 PAGES * CLAIM_PAGE);
	rig_packet(&g, KVS_PACKET_COPY_OVER, 1, gen, 0);
	turns();
	assert_true(another(&next));
	rig_packet(&g, KVS_PACKET_RETRACTED, 2, next, 0);
	turns();
	rig_packet(&g, KVS_PACKET_ABORT, 2, next, 0);
	rig_down(&g);
}

static void abort_while_leaving(void **state)
{
	(void)state;
	given_up_while_leaving(false);
}

static void abort_on_the_way_to_the_cache(void **state)
{
	(void)state;
	given_up_while_leaving(true);
}

static void abort_while_coming_back(void **state)
{
	struct launched a, b;
	uint64_t gen, next, wrong = 0;
	bool early;

	(void)state;
	rig_up_offload(&g, 64, 64);
	gen = rig_retract(&g, 1, PAGES);
	launch(&a, gen);
	out(&a, 1);
	rig_packet(&g, KVS_PACKET_RETRACTED, 1, gen, 0);
	turns();
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	turns();
	assert_int_equal(rig_status(&g, 1), KVS_STATUS_COMMITTING);
	rig_packet(&g, KVS_PACKET_ABORT, 1, gen, 0);
	turns();
	early = another(&next);
	if (early) {
		launch(&b, next);
		out(&b, 2);
		wrong = other_bytes(&a, 1);
	}
	print_message("R13: %llu bytes of another request copied to the "
		      "device\n",
		      (unsigned long long)wrong);
	assert_int_equal(wrong, 0);
	assert_false(early);
	rig_packet(&g, KVS_PACKET_COPY_OVER, 1, gen, 0);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(abort_while_leaving),
		cmocka_unit_test(abort_on_the_way_to_the_cache),
		cmocka_unit_test(abort_while_coming_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
