/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants of a node's transport, for its worker. One for each one-sided rank
 * that a room has granted; it reaches the extents of that room, for the
 * connections of that rank's session, and nothing else.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "pipeline/node.h"
#include "pipeline/node_internal.h"
#include "rdma/grant.h"

/* ---- memory ---- */

/* A failure leaves its reason where the note of the transport was. */
static int pool_reg(void *arg, void *addr, uint64_t len, uint64_t *ret_handle)
{
	struct kvs_node *n = arg;
	struct kvs_mem *m;
	char why[KVS_NETWORK_NOTE];
	int ret;

	ret = kvs_transport_register(n->transport, addr, len, &m, why,
				     sizeof(why));
	if (!ret)
		*ret_handle = (uint64_t)(uintptr_t)m;
	else
		snprintf(n->network, sizeof(n->network),
			 "piece %u of it: %.200s",
			 1 + (unsigned int)(((uint64_t)(uintptr_t)addr -
					     (uintptr_t)n->region->base) /
					    kvs_pool_segment(n->pool)),
			 why);
	return ret;
}

static int pool_unreg(void *arg, void *addr, uint64_t len, uint64_t handle)
{
	struct kvs_node *n = arg;

	(void)addr;
	(void)len;
	/* afterwards it has gone with the transport */
	if (n->transport)
		kvs_mem_release((struct kvs_mem *)(uintptr_t)handle);
	return 0;
}

int kvs_node_register(struct kvs_node *n, char *err, size_t errlen)
{
	struct kvs_registrar_ops *ops = &n->registrar;
	char what[KVS_NETWORK_NOTE];
	int ret;

	if (!n->key_per_conn)
		return 0;
	*ops = (struct kvs_registrar_ops){
		.name = "verbs",
		.max_chunk = kvs_transport_register_max(n->transport),
		.reg = pool_reg,
		.unreg = pool_unreg,
	};
	memcpy(what, n->network, sizeof(what));
	n->network[0] = '\0';
	ret = kvs_reglist_create(n->pool, ops, n, 0, &n->registered);
	if (ret)
		snprintf(err, errlen, "pool of node %d: %s", n->numa,
			 *n->network ? n->network : strerror(-ret));
	memcpy(n->network, what, sizeof(what));
	return ret;
}

/* ---- grants ---- */

struct node_grant {
	struct kvs_list node; /* on n->grants */
	struct kvs_node *n;
	struct kvs_room_rank *k;
	struct kvs_grant *g;
	bool tear; /* its session's connections are being torn down */
	uint64_t tear_by; /* ns; with @tear: they should have ended */
	bool overdue; /* they did not, and that was told */
};

static void grant_free(struct node_grant *ng)
{
	kvs_list_del(&ng->node);
	ng->k->grant_owner = NULL;
	free(ng);
}

static void grant_opened(struct kvs_grant *g, int status)
{
	struct node_grant *ng = kvs_grant_user(g);
	struct kvs_room_rank *k = ng->k;
	struct kvs_node *n = ng->n;

	if (status)
		grant_free(ng);
	kvs_worker_grant_opened(n->worker, k, status,
				status ? NULL : kvs_grant_keys(g),
				k->room->ext.n);
}

static void grant_closed(struct kvs_grant *g, int status,
			 enum kvs_grant_proof proof)
{
	struct node_grant *ng = kvs_grant_user(g);
	struct kvs_room_rank *k = ng->k;
	struct kvs_node *n = ng->n;

	if (!status)
		grant_free(ng);
	kvs_worker_grant_closed(n->worker, k, status,
				proof == KVS_GRANT_TORN_DOWN);
}

static const struct kvs_grant_ops node_grant_ops = {
	.write_only = true,
	.opened = grant_opened,
	.closed = grant_closed,
};

int kvs_node_grant_open(void *arg, struct kvs_room_rank *k)
{
	struct kvs_extents *x = &k->room->ext;
	struct kvs_grant_range *v;
	struct kvs_node *n = arg;
	struct node_grant *ng;
	int ret;

	v = calloc(x->n, sizeof(*v));
	ng = calloc(1, sizeof(*ng));
	if (!v || !ng) {
		ret = -ENOMEM;
		goto out_free;
	}
	for (uint32_t i = 0; i < x->n; i++) {
		v[i].addr = kvs_extent_addr(x, i);
		v[i].len = kvs_geometry_len(&k->room->geo, i);
	}
	ng->n = n;
	ng->k = k;
	ret = kvs_grant_open(n->transport, k->session_id, v, x->n,
			     &node_grant_ops, ng, &ng->g);
	if (ret)
		goto out_free;
	kvs_list_add_tail(&n->grants, &ng->node);
	k->grant_owner = ng;
	ng = NULL;
out_free:
	free(ng);
	free(v);
	return ret;
}

void kvs_node_grant_close(void *arg, struct kvs_room_rank *k)
{
	struct node_grant *ng = k->grant_owner;

	(void)arg;
	kvs_grant_close(ng->g);
}

/* What is left of the ladder when a grant cannot be closed: whoever writes
 * through it loses its connections, and the rooms on them with it. */
void kvs_node_tear_down(void *arg, uint64_t session)
{
	struct kvs_node *n = arg;
	struct kvs_worker_session *s =
		kvs_u64map_get(&n->worker->sessions, session);
	struct node_grant *ng;

	if (s)
		s->torn = true;
	kvs_list_for_each_entry(ng, &n->grants, node) {
		if (ng->k->session_id != session || ng->tear)
			continue;
		ng->tear = true;
		ng->tear_by =
			kvs_clock_now(n->clock) + n->settings.hold_timeout;
	}
	n->tearing = true;
	kvs_node_drop_conns(n, session);
	n->up->close_session(n->up_arg, session, -ECONNABORTED,
			     "its writes could not be stopped otherwise");
}

/* The last step does not end either: to be seen as that (R8). */
static void tear_overdue(struct node_grant *ng)
{
	if (ng->overdue || kvs_clock_now(ng->n->clock) < ng->tear_by)
		return;
	ng->overdue = true;
	kvs_worker_tear_overdue(ng->n->worker, ng->k);
}

void kvs_node_torn_down(struct kvs_node *n)
{
	struct node_grant *ng, *tmp;
	bool left = false;

	if (!n->tearing)
		return;
	kvs_list_for_each_entry_safe(ng, tmp, &n->grants, node) {
		if (!ng->tear)
			continue;
		if (kvs_node_has_conns(n, ng->k->session_id)) {
			left = true;
			tear_overdue(ng);
			continue;
		}
		ng->tear = false;
		kvs_worker_torn_down(n->worker, ng->k);
	}
	n->tearing = left;
}
