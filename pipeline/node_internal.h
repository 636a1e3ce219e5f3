/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by node.c, node_grant.c and node_post.c. */
#ifndef KVS_PIPELINE_NODE_INTERNAL_H
#define KVS_PIPELINE_NODE_INTERNAL_H

#include "pipeline/node.h"

/* A sender's data connection: one chunk at a time is in flight on it. */
struct kvs_data_conn {
	struct kvs_receive rx;
	struct kvs_list node;
	struct kvs_node *n;
	struct kvs_conn *c;
	uint64_t session;
	uint64_t bit; /* among those of its session */
	uint16_t path; /* its number, where they have some */
	bool receiving; /* payload() was answered, payload_done() not here */
	bool stop; /* to be stopped at the end of the turn */
	bool close; /* to be closed at the end of the turn */
	bool closing; /* by us: its end is no news */
	bool dying; /* it is ending, says the transport */
};

/* What a node knows of the data connections of a session that numbers them. */
struct kvs_session_paths {
	struct kvs_data_conn *conn[KVS_PATHS_MAX]; /* NULL: not there */
	uint64_t bytes[KVS_PATHS_MAX]; /* of rooms that are granted on it */
	uint64_t avoid[KVS_PATHS_MAX]; /* ns; until then it gets no new ones */
};

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
/* node_paths.c */
/* A new one of @s. */
void kvs_node_path_add(struct kvs_worker_session *s, struct kvs_data_conn *dc);
/* Has @s one already? */
bool kvs_node_path_further(const struct kvs_worker_session *s);
/* It has closed, with @err. */
void kvs_node_path_lost(struct kvs_node *n, struct kvs_data_conn *dc, int err);
/**
 * kvs_node_paths_choose() - where the bytes of a rank of a room go
 * @s: its session; its connections have numbers
 * @bytes: so many
 * @most: connections
 * @ret: room for KVS_PATHS_MAX
 *
 * One, the least used; for many bytes several, on as many devices as there
 * are. None that is to be avoided while there is another.
 * Return: how many; 0: there is none yet.
 */
unsigned int kvs_node_paths_choose(const struct kvs_node *n,
				   const struct kvs_worker_session *s,
				   uint64_t bytes, unsigned int most,
				   struct kvs_data_conn **ret);
/* Bytes of a room are, or are no longer, granted on a connection. */
void kvs_node_path_use(struct kvs_node *n, uint64_t session, uint16_t path,
		       uint64_t bytes);
void kvs_node_path_release(struct kvs_node *n, uint64_t session, uint16_t path,
			   uint64_t bytes);

/* Grants that wait for a connection: those that can, or never will, open.
 * Return: true when there was one. */
bool kvs_node_grants_pending(struct kvs_node *n);
/* The pool, where grants are of registered memory. 0 or -errno with @err. */
int kvs_node_register(struct kvs_node *n, char *err, size_t errlen);
/* Tell the worker of sessions whose last connection is gone. */
void kvs_node_torn_down(struct kvs_node *n);

#endif /* KVS_PIPELINE_NODE_INTERNAL_H */
