/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R13, the disk: a transfer to or from the disk is a party of its memory. An
 * owner that wants the memory back waits for it, also when the disk is stuck
 * beyond the hold timeout; without the rule a late read lands in the next
 * owner's bytes, and a late write takes them for its page.
 */
#include <errno.h>
#include <string.h>

#include "tests/unit/hicache/disk_rig.h"

static struct disk_rig g;
static struct kvs_timerq timers;
static struct kvs_drain_stats stats;
static struct kvs_drain drain;

static void pass_time(uint64_t ns)
{
	kvs_vclock_advance(&g.clock, ns);
	kvs_timerq_run(&timers, kvs_clock_now(&g.clock.clk));
	kvs_disk_store_turn(g.store);
}

static void begin(void)
{
	const struct kvs_drain_opts o = {
		.generation = 1,
		.hold_timeout = 30 * KVS_NSEC_PER_SEC,
		.clock = &g.clock.clk,
		.timers = &timers,
		.stats = &stats,
	};

	disk_rig_init(&g, 1);
	memset(&stats, 0, sizeof(stats));
	kvs_timerq_init(&timers);
	disk_rig_open(&g);
	assert_int_equal(disk_rig_put(&g, 1), 0);
	kvs_drain_init(&drain, &o);
	kvs_disk_hold(g.disk, true);
}

static void end(struct rig_req *q)
{
	disk_rig_req_free(q);
	kvs_drain_fini(&drain);
	disk_rig_fini(&g);
	kvs_timerq_fini(&timers);
}

/* Abort; the memory's next owner takes it as soon as it may. */
static bool reuse_when_free(struct rig_req *q)
{
	bool early = kvs_drain_is_over(&drain);

	if (early)
		disk_rig_bytes(q->mem, RIG_PAGE, 77);
	return early;
}

static void late_read(void **state)
{
	struct rig_req *q;
	bool early;

	(void)state;
	begin();
	q = disk_rig_req(&g, 1, 1, 0);
	memset(q->mem, 0, RIG_PAGE);
	q->r.drain = &drain;
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), 0);
	pass_time(1);
	kvs_drain_arm(&drain);
	early = reuse_when_free(q);
	pass_time(31 * KVS_NSEC_PER_SEC);
	early |= !early && reuse_when_free(q);
	if (!early)
		assert_int_equal(drain.state, KVS_DRAIN_STUCK);
	kvs_disk_hold(g.disk, false);
	pass_time(1);
	assert_true(q->over);
	if (!early)
		assert_true(reuse_when_free(q));
	print_message("R13: %u bytes of the next owner overwritten\n",
		      disk_rig_wrong(q->mem, RIG_PAGE, 77));
	assert_int_equal(disk_rig_wrong(q->mem, RIG_PAGE, 77), 0);
	assert_false(early);
	assert_int_equal(
		stats.total[KVS_DRAIN_QUARANTINED][KVS_PROOF_CANNOT_REVOKE], 1);
	assert_int_equal(
		stats.total[KVS_DRAIN_DRAINED][KVS_PROOF_IO_COMPLETION], 1);
	end(q);
}

static void late_write(void **state)
{
	struct rig_req *q;
	bool early;

	(void)state;
	begin();
	q = disk_rig_req(&g, 2, 1, 0);
	q->r.drain = &drain;
	assert_int_equal(kvs_disk_store_put(g.store, &q->r), 0);
	pass_time(1);
	kvs_drain_arm(&drain);
	early = reuse_when_free(q);
	kvs_disk_hold(g.disk, false);
	pass_time(1);
	pass_time(1);
	assert_true(q->over);
	assert_int_equal(q->result, 0);
	assert_true(kvs_drain_is_over(&drain));
	g.loc[2] = q->r.loc;
	print_message("R13: the page that was put: %d\n", disk_rig_get(&g, 2));
	assert_false(early);
	assert_int_equal(disk_rig_get(&g, 2), 0);
	end(q);
}

/* What is only queued has touched nothing, but will. */
static void armed_before(void **state)
{
	struct rig_req *q;

	(void)state;
	begin();
	q = disk_rig_req(&g, 2, 1, 0);
	q->r.drain = &drain;
	kvs_drain_arm(&drain);
	assert_true(kvs_drain_is_over(&drain));
	assert_int_equal(kvs_disk_store_put(g.store, &q->r), -ESHUTDOWN);
	q->r.loc = g.loc[1];
	q->r.key = disk_rig_key(1);
	assert_int_equal(kvs_disk_store_get(g.store, &q->r), -ESHUTDOWN);
	assert_int_equal(kvs_disk_store_busy(g.store), 0);
	end(q);
}

/* A page that is copied for its alignment leaves the memory at once. */
static void a_copy_frees_the_memory(void **state)
{
	struct rig_req *q;

	(void)state;
	begin();
	q = disk_rig_req(&g, 3, 2, 4);
	q->r.drain = &drain;
	assert_int_equal(kvs_disk_store_put(g.store, &q->r), 0);
	pass_time(1);
	kvs_drain_arm(&drain);
	assert_true(kvs_drain_is_over(&drain));
	memset(q->mem, 0xee, RIG_PAGE);
	assert_false(q->over);
	kvs_disk_hold(g.disk, false);
	pass_time(1);
	pass_time(1);
	assert_int_equal(q->result, 0);
	g.loc[3] = q->r.loc;
	assert_int_equal(disk_rig_get(&g, 3), 0);
	end(q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_read),
		cmocka_unit_test(late_write),
		cmocka_unit_test(armed_before),
		cmocka_unit_test(a_copy_frees_the_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
