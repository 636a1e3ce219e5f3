/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this machine. */
#include "tests/unit/rdma/verbs_rig.h"

bool vrig_is_double(void)
{
	return false;
}

void vrig_world(void)
{
}
