/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>

#include "tools/ttft/ttft.h"

int ttft_real(const struct ttft_opts *o, const struct ttft_plan *p,
	      struct ttft_run *r)
{
	(void)o;
	(void)p;
	snprintf(r->why, sizeof(r->why), "not built");
	return -EOPNOTSUPP;
}
