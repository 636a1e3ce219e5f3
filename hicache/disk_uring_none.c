/* SPDX-License-Identifier: Apache-2.0 */
/* Engine: io_uring, in a build without liburing. */
#include <errno.h>
#include <stdio.h>

#include "hicache/disk_internal.h"

static int none_init(struct kvs_disk *d, const struct kvs_disk_opts *o,
		     char *err, size_t errlen)
{
	(void)d;
	(void)o;
	snprintf(err, errlen, "io_uring: this build has none");
	return -EOPNOTSUPP;
}

const struct kvs_disk_engine kvs_disk_uring = {
	.name = "uring",
	.init = none_init,
};
