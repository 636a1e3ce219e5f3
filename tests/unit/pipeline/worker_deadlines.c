/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: a room of several ranks ends when one of them never opens it, and
 * does not hold its memory for the whole transfer's time; once all have, the
 * transfer's limit holds, from the first OPEN.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <errno.h>

static struct rig g;

#define S KVS_NSEC_PER_SEC

static void test_rank_never_opens(void **state)
{
	uint64_t gen;

	(void)state;
	rig_up(&g, 64);
	rig_sessions(&g, 2);
	gen = rig_admit(&g, 1, 0, 64, 2);
	rig_advance(&g, g.set.open_timeout - 2 * S);
	rig_open(&g, 1, gen, 1);
	rig_advance(&g, 2 * S - 1);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	rig_advance(&g, 1);
	assert_int_equal(rig_errno(&g, 0), ETIME);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_OPEN_TIMEOUT], 1);
	/* the last one just in time: the transfer's limit holds, from the
	 * first OPEN */
	gen = rig_admit(&g, 2, 0, 64, 2);
	rig_open(&g, 2, gen, 0);
	rig_advance(&g, g.set.open_timeout - 1);
	rig_open(&g, 2, gen, 1);
	rig_advance(&g, g.set.transfer_timeout - g.set.open_timeout);
	assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
	rig_advance(&g, 1);
	assert_int_equal(rig_errno(&g, 0), ETIMEDOUT);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_TRANSFER_TIMEOUT], 1);
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rank_never_opens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
