/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race of offload (R13): a request leaves the device, to come back or to be
 * cached, while another wants its pages, and the copy out is held open by the device's plan of faults. With
 * the rule the pages are reused only when the copy has ended, and no race is
 * lost. Without it (KVS_MUTATE_OFF=R13_LEAVE) the other request writes at
 * once, the copy takes that along, and what comes back is the other's, every
 * time: sgl-project/sglang#30899 as a program.
 */
#include <errno.h>
#include <string.h>

#include "gpu/device.h"
#include "lib/rule.h"
#include "tests/regress/keep_rig.h"
#include "tests/regress/offload_rig.h"

#define ROUNDS 12u
#define PAGES 40u

static struct of o[1];

/* One race: the pages of a request that leaves, wanted by another. Bytes that
 * came back wrong. */
static uint64_t race(unsigned int i)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct of_request q, other;
	unsigned int waited = 0;
	uint64_t wrong;

	of_up(o, "256K", &plan);
	of_place(o, &q, 100 + i, PAGES);
	of_fill(o, &q);
	other = q;
	other.id = 200 + i;
	assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
	of_wait(o, &q, KVS_STATUS_ADMITTED);
	/* The scheduler: as soon as nothing can touch the pages, they are the
	 * other's. The copy is let go after a while of waiting. */
	while (kvs_engine_copy_live(o->e, &q.h)) {
		(void)of_status(o, &q, NULL);
		if (++waited == 20 + i)
			assert_int_equal(kvs_soft_release(o->d), 0);
	}
	of_fill(o, &other);
	if (!waited)
		assert_int_equal(kvs_soft_release(o->d), 0);
	of_wait(o, &q, KVS_STATUS_READY);
	/* back to other pages, while the other runs on */
	of_place(o, &q, q.id, PAGES);
	assert_int_equal(of_back(o, &q), 0);
	of_wait(o, &q, KVS_STATUS_DONE);
	wrong = of_wrong(o, &q);
	of_release(o, &q);
	of_down(o);
	print_message("race %u: waited %u turns, %llu bytes of the other\n", i,
		      waited, (unsigned long long)wrong);
	return wrong;
}

static struct kp k[1];

/* The same of blocks that are to be cached. */
static uint64_t race_to_the_cache(unsigned int i)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	unsigned int waited = 0;
	struct kp_talk t;
	uint64_t wrong;

	kp_start(k, "256K", &plan, false);
	kp_talk(k, &t, 100 + i, PAGES);
	kp_fill_as(k, &t, t.id);
	kp_leave(k, &t);
	kp_wait_for(k, &t.h, KVS_STATUS_ADMITTED);
	while (kvs_engine_copy_live(k->e, &t.h)) {
		(void)kp_status(k, &t.h, NULL);
		if (++waited == 20 + i)
			assert_int_equal(kvs_soft_release(k->d), 0);
	}
	kp_fill_as(k, &t, 200 + i);
	if (!waited)
		assert_int_equal(kvs_soft_release(k->d), 0);
	kp_wait_for(k, &t.h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
	/* the next turn takes them from the cache */
	kp_pin(k, &t);
	kp_recall(k, &t);
	kp_wait_for(k, &t.h, KVS_STATUS_DONE);
	wrong = kp_wrong(k, &t);
	assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
	kp_stop(k);
	print_message("race %u: waited %u turns, %llu cached bytes of the "
		      "other\n",
		      i, waited, (unsigned long long)wrong);
	return wrong;
}

static void run(uint64_t (*one)(unsigned int i))
{
	unsigned int lost = 0;

	for (unsigned int i = 0; i < ROUNDS; i++)
		lost += one(i) > 0;
	print_message("%u of %u races lost\n", lost, ROUNDS);
	if (!KVS_RULE(R13, LEAVE))
		assert_int_equal(lost, ROUNDS);
	assert_int_equal(lost, 0);
}

static void no_race_is_lost(void **state)
{
	(void)state;
	run(race);
}

static void nothing_else_is_cached(void **state)
{
	(void)state;
	run(race_to_the_cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_race_is_lost),
		cmocka_unit_test(nothing_else_is_cached),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
