/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by node.c, node_grant.c and node_post.c. */
#ifndef KVS_PIPELINE_NODE_INTERNAL_H
#define KVS_PIPELINE_NODE_INTERNAL_H

#include "pipeline/node.h"

/* Node's thread: take a data connection and say so on it, after the proof if
 * there is one (KVS_AUTH_MAC bytes). 0 or -errno (@fd stays the caller's). */
int kvs_node_adopt_here(struct kvs_node *n, int fd, uint64_t session,
			const struct kvs_msg *reply,
			const unsigned char *proof);
/* Node's thread: close the data connections of a session, at the end of the
 * turn. */
void kvs_node_drop_conns(struct kvs_node *n, uint64_t session);
bool kvs_node_has_conns(const struct kvs_node *n, uint64_t session);

/* node_grant.c: see struct kvs_worker_out */
int kvs_node_grant_open(void *node, struct kvs_room_rank *k);
void kvs_node_grant_close(void *node, struct kvs_room_rank *k);
void kvs_node_tear_down(void *node, uint64_t session);
/* The pool, where grants are of registered memory. 0 or -errno with @err. */
int kvs_node_register(struct kvs_node *n, char *err, size_t errlen);
/* Tell the worker of sessions whose last connection is gone. */
void kvs_node_torn_down(struct kvs_node *n);

#endif /* KVS_PIPELINE_NODE_INTERNAL_H */
