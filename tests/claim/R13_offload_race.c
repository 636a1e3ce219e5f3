/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race of offload (R13): a request leaves the device while another wants
 * its pages, and the copy out is held open by the device's plan of faults. With
 * the rule the pages are reused only when the copy has ended, and no race is
 * lost. Without it (KVS_MUTATE_OFF=R13_LEAVE) the other request writes at
 * once, the copy takes that along, and what comes back is the other's, every
 * time: sgl-project/sglang#30899 as a program.
 */
#include <errno.h>
#include <string.h>

#include "gpu/device.h"
#include "lib/rule.h"
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

static void no_race_is_lost(void **state)
{
	unsigned int lost = 0;

	(void)state;
	for (unsigned int i = 0; i < ROUNDS; i++)
		lost += race(i) > 0;
	print_message("%u of %u races lost\n", lost, ROUNDS);
	if (!KVS_RULE(R13, LEAVE))
		assert_int_equal(lost, ROUNDS);
	assert_int_equal(lost, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_race_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
