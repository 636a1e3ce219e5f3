/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: verbs
 *
 * The RDMA transport: one-sided writes into windows of the pool. The build
 * without it answers -EOPNOTSUPP, so that callers need no condition.
 */
#ifndef KVS_RDMA_VERBS_H
#define KVS_RDMA_VERBS_H

#include "rdma/transport.h"

/**
 * kvs_verbs_create() - event loop over RDMA verbs
 * @o: options; NULL: defaults
 * @ret: the loop
 * @err: buffer for a message
 * @errlen: its size
 *
 * Return: 0; -EOPNOTSUPP not built.
 */
int kvs_verbs_create(const struct kvs_transport_opts *o,
		     struct kvs_transport **ret, char *err, size_t errlen);

#endif /* KVS_RDMA_VERBS_H */
