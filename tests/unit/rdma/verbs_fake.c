/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device of the double for the tests that run over the machine's as well;
 * with KVS_TEST_DRIVER=rxe it behaves as the soft one. At the end nothing may
 * be left of it, and nothing was done that none may do.
 */
#include <unistd.h>

#include "tests/fake_verbs/fake_verbs.h"
#include "tests/unit/rdma/verbs_rig.h"

bool vrig_is_double(void)
{
	return true;
}

static void world_ends(void)
{
	struct fv_counts n;

	fv_counts(&n);
	if (n.rnr)
		printf("%llu messages found no receive\n",
		       (unsigned long long)n.rnr);
	if (n.left_behind)
		printf("%llu objects went with their device\n",
		       (unsigned long long)n.left_behind);
	fflush(stdout);
	if (fv_end() || n.rnr || n.left_behind)
		_exit(1);
}

void vrig_world(void)
{
	const char *driver = getenv("KVS_TEST_DRIVER");
	struct fv_spec s = {
		.name = "fake0",
		.driver = driver ? driver : "mlx5_core",
	};

	if (!strcmp(s.driver, "rxe"))
		s.model = FV_RXE;
	fv_begin();
	fv_device_add(&s);
	atexit(world_ends);
}
