/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R12, the cache: a room that takes a part of its tokens from the cache has one
 * word for both. It is not READY when only what was received is whole, and a
 * page of the cache that is not what was kept fails it before anybody was told
 * READY. Without the rule the engine commits what is then found to be bad.
 */
#include <errno.h>
#include <string.h>

#include "lib/log.h"
#include "tests/claim/claim_rig.h"

#define PAGES 31u

static struct rig g;

static void turns(void)
{
	do
		kvs_worker_turn(g.w);
	while (kvs_worker_next(g.w) == 0);
}

/* A second room that takes 31 pages from the cache and has received the rest,
 * before anybody looked at these. */
static uint64_t second(void)
{
	uint64_t gen;

	rig_up(&g, 96);
	kvs_log_set_level(KVS_LOG_ERR);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE), "m", 0);
	gen = rig_admit_named(&g, 1, 1, PAGES, 7, false);
	rig_open(&g, 1, gen, 0);
	claim_send_rest(&g, 1, gen, 1, 0, PAGES, 1);
	rig_packet(&g, KVS_PACKET_COMMIT, 1, gen, 0);
	rig_packet(&g, KVS_PACKET_COMMITTED, 1, gen, 0);
	turns();
	assert_int_equal(rig_cached(&g, 7, PAGES), PAGES);
	gen = rig_admit_named(&g, 2, 2, PAGES + 9, 7, true);
	rig_open(&g, 2, gen, 0);
	claim_send_rest(&g, 2, gen, 1, 0, 9, 2);
	return gen;
}

static void not_ready_before_both_are(void **state)
{
	uint64_t gen;

	(void)state;
	gen = second();
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_SEALING);
	turns();
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_READY);
	rig_packet(&g, KVS_PACKET_ABORT, 2, gen, 0);
	turns();
	kvs_cache_flush(g.w);
	rig_down(&g);
}

static void ready_is_final(void **state)
{
	const struct kvs_cached *c;
	unsigned int pos = 0;
	const struct rig_event *e;

	(void)state;
	(void)second();
	c = kvs_list_first(&g.w->cache.units, struct kvs_cached, node);
	((unsigned char *)kvs_extent_addr(&c->ext, 0))[99] ^= 1;
	turns();
	assert_int_equal(rig_status(&g, 2), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 2), EBADMSG);
	while ((e = rig_find(&g, RIG_WORD, &pos)))
		assert_false(e->slot == 2 &&
			     KVS_WORD_STATUS(e->word) >= KVS_STATUS_READY);
	kvs_cache_flush(g.w);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(not_ready_before_both_are),
		cmocka_unit_test(ready_is_final),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
