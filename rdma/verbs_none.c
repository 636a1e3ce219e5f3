/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/verbs.h"

#include <errno.h>
#include <stdio.h>

int kvs_verbs_create(const struct kvs_transport_opts *o,
		     struct kvs_transport **ret, char *err, size_t errlen)
{
	(void)o;
	(void)ret;
	if (err && errlen)
		snprintf(err, errlen,
			 "verbs: this build has no verbs transport; use tcp");
	return -EOPNOTSUPP;
}
