/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by node.c and node_post.c. */
#ifndef KVS_PIPELINE_NODE_INTERNAL_H
#define KVS_PIPELINE_NODE_INTERNAL_H

#include "pipeline/node.h"

/* Node's thread: take a data connection and say so on it. 0 or -errno (@fd
 * stays the caller's). */
int kvs_node_adopt_here(struct kvs_node *n, int fd, uint64_t session,
			const struct kvs_msg *reply);
/* Node's thread: close the data connections of a session, at the end of the
 * turn. */
void kvs_node_drop_conns(struct kvs_node *n, uint64_t session);

#endif /* KVS_PIPELINE_NODE_INTERNAL_H */
