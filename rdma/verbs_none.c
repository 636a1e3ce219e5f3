/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rdma/verbs.h"

int kvs_verbs_create(const struct kvs_transport_opts *o,
		     const struct kvs_verbs_opts *v, struct kvs_transport **ret,
		     char *err, size_t errlen)
{
	(void)o;
	(void)v;
	(void)ret;
	if (err && errlen)
		snprintf(err, errlen,
			 "verbs: this build has no verbs transport; use tcp");
	return -EOPNOTSUPP;
}

unsigned int kvs_verbs_devices(const struct kvs_transport *t,
			       struct kvs_verbs_info *ret, unsigned int n)
{
	(void)t;
	(void)ret;
	(void)n;
	return 0;
}

void kvs_verbs_counters(const struct kvs_transport *t,
			struct kvs_verbs_counts *ret)
{
	(void)t;
	memset(ret, 0, sizeof(*ret));
}
