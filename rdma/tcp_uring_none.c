/* SPDX-License-Identifier: Apache-2.0 */
/* Engine: io_uring, in a build without liburing. */
#include "rdma/tcp_internal.h"

#include <errno.h>
#include <stdio.h>

static int none_init(struct kvs_tcp *t, char *err, size_t errlen)
{
	(void)t;
	snprintf(err, errlen,
		 "io_uring: this build has none (KVS_IO_URING); engine "
		 "\"sock\" works without it");
	return -EOPNOTSUPP;
}

/* Only init is ever reached: without an engine there is no transport. */
const struct kvs_tcp_engine kvs_tcp_uring = {
	.ops = { .name = "tcp/uring" },
	.init = none_init,
};
