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

#define TRIES 3 /* when the connection ends before the grant is open */

/* Of one connection's; or of any, where they have no numbers. */
struct node_part {
	struct node_grant *ng;
	struct kvs_grant *g; /* NULL: none, or none any more */
	const struct node_part *same; /* its keys are those of that; or NULL */
	uint64_t bit; /* of its connection */
	uint16_t path;
	unsigned int rail; /* its device */
	uint64_t bytes; /* counted there */
	bool asked; /* to close, and not answered */
};

struct node_grant {
	struct kvs_list node; /* on n->grants */
	struct kvs_list pend; /* on n->pending */
	struct kvs_node *n;
	struct kvs_room_rank *k;
	struct node_part *part;
	unsigned int n_parts;
	unsigned int opening; /* of these: not answered */
	unsigned int closing; /* likewise */
	unsigned int tries;
	bool numbered; /* its parts are */
	int status; /* of one that failed */
	bool torn_down; /* one was, as its connections are gone */
	bool tear; /* its session's connections are being torn down */
	uint64_t tear_by; /* ns; with @tear: they should have ended */
	bool overdue; /* they did not, and that was told */
};

static void drop_parts(struct node_grant *ng)
{
	for (unsigned int i = 0; i < ng->n_parts; i++)
		if (ng->numbered)
			kvs_node_path_release(ng->n, ng->k->session_id,
					      ng->part[i].path,
					      ng->part[i].bytes);
	free(ng->part);
	ng->part = NULL;
	ng->n_parts = 0;
}

static void grant_free(struct node_grant *ng)
{
	drop_parts(ng);
	kvs_list_del(&ng->node);
	kvs_list_del(&ng->pend);
	ng->k->grant_owner = NULL;
	free(ng);
}

static unsigned int parts_left(const struct node_grant *ng)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < ng->n_parts; i++)
		n += !!ng->part[i].g;
	return n;
}

/* None was opened, and the answer is due. */
static void not_opened(struct node_grant *ng, int status)
{
	struct kvs_room_rank *k = ng->k;
	struct kvs_node *n = ng->n;

	grant_free(ng);
	kvs_worker_grant_opened(n->worker, k, status, NULL);
}

/* Keys of every part that is open, in the order that GRANT has them in. */
static void tell_opened(struct node_grant *ng)
{
	uint32_t each = ng->k->room->ext.n;
	struct kvs_granted what = { 0 };
	struct kvs_room_rank *k = ng->k;
	struct kvs_node *n = ng->n;
	struct kvs_grant_key *keys;
	uint16_t paths[KVS_PATHS_MAX];

	keys = calloc((size_t)ng->n_parts * each, sizeof(*keys));
	if (!keys) {
		/* told nobody: it is closed as it would be anyway */
		kvs_room_fail(k->room, KVS_CAUSE_INTERNAL, ENOMEM,
			      "no memory for a grant");
	}
	for (unsigned int i = 0; keys && i < ng->n_parts; i++) {
		const struct node_part *p = &ng->part[i];
		const struct kvs_grant *g = p->same ? p->same->g : p->g;

		if (!g)
			continue;
		memcpy(keys + what.n_keys, kvs_grant_keys(g),
		       each * sizeof(*keys));
		what.n_keys += each;
		if (ng->numbered)
			paths[what.n_paths++] = p->path;
	}
	what.keys = keys;
	what.paths = what.n_paths ? paths : NULL;
	kvs_worker_grant_opened(n->worker, k, 0, &what);
	free(keys);
}

static bool wanted(const struct node_grant *ng)
{
	return ng->k->session && !ng->k->room->failed && ng->n->transport;
}

static void grant_opened(struct kvs_grant *g, int status)
{
	struct node_part *p = kvs_grant_user(g);
	struct node_grant *ng = p->ng;

	if (status) {
		p->g = NULL;
		ng->status = status;
	} else if (ng->n->key_per_conn && ng->numbered) {
		/* it goes with its connection, and the room with it */
		ng->k->conns |= p->bit;
	}
	if (--ng->opening)
		return;
	if (parts_left(ng)) {
		tell_opened(ng);
	} else if (ng->numbered && wanted(ng) && ++ng->tries < TRIES) {
		drop_parts(ng);
		kvs_list_add_tail(&ng->n->pending, &ng->pend);
		ng->n->deferred = true;
	} else {
		not_opened(ng, ng->status ? ng->status : -ESHUTDOWN);
	}
}

static void grant_closed(struct kvs_grant *g, int status,
			 enum kvs_grant_proof proof)
{
	struct node_part *p = kvs_grant_user(g);
	struct node_grant *ng = p->ng;
	struct kvs_room_rank *k = ng->k;
	struct kvs_node *n = ng->n;
	bool torn_down;

	if (status)
		ng->status = status;
	else
		p->g = NULL;
	ng->torn_down |= !status && proof == KVS_GRANT_TORN_DOWN;
	if (p->asked)
		ng->closing--;
	p->asked = false;
	/* proven when it is on every connection, and not before */
	if (ng->closing || ng->opening)
		return;
	if (parts_left(ng)) {
		if (ng->status)
			kvs_worker_grant_closed(n->worker, k, ng->status,
						false);
		return;
	}
	torn_down = ng->torn_down;
	grant_free(ng);
	kvs_worker_grant_closed(n->worker, k, 0, torn_down);
}

static const struct kvs_grant_ops node_grant_ops = {
	.write_only = true,
	.opened = grant_opened,
	.closed = grant_closed,
};

/* Connections of one device have the same keys, where they are for any. */
static const struct node_part *same_keys(const struct node_grant *ng,
					 unsigned int i)
{
	const struct node_part *p = ng->part;

	for (unsigned int j = 0; j < i && !ng->n->key_per_conn; j++)
		if (p[j].g && p[j].rail == p[i].rail)
			return &p[j];
	return NULL;
}

/* One part for each of @dc. Return: 0; -errno: none was begun. */
static int open_on(struct node_grant *ng, const struct kvs_grant_range *v,
		   struct kvs_data_conn **dc, unsigned int count)
{
	struct kvs_room_rank *k = ng->k;
	int ret = 0;

	for (unsigned int i = 0; i < count; i++) {
		struct node_part *p = &ng->part[ng->n_parts];

		*p = (struct node_part){ .ng = ng };
		if (dc) {
			p->path = dc[i]->path;
			p->bit = dc[i]->bit;
			p->rail = kvs_conn_rail(dc[i]->c);
			p->same = same_keys(ng, ng->n_parts);
		}
		if (p->same)
			ret = 0;
		else if (dc)
			ret = kvs_grant_open_on(dc[i]->c, v, k->room->ext.n,
						&node_grant_ops, p, &p->g);
		else
			ret = kvs_grant_open(ng->n->transport, k->session_id, v,
					     k->room->ext.n, &node_grant_ops, p,
					     &p->g);
		if (ret) {
			p->g = NULL;
			if (dc && ret == -ENOTCONN)
				dc[i]->dying = true;
			continue;
		}
		ng->opening += !p->same;
		if (dc) {
			p->bytes = k->expected / count;
			kvs_node_path_use(ng->n, k->session_id, p->path,
					  p->bytes);
		}
		ng->n_parts++;
	}
	return ng->n_parts ? 0 : ret;
}

/* Return: 0; -EAGAIN no connection yet; or -errno. */
static int begin(struct node_grant *ng)
{
	struct kvs_data_conn *dc[KVS_PATHS_MAX];
	struct kvs_room_rank *k = ng->k;
	struct kvs_extents *x = &k->room->ext;
	struct kvs_grant_range *v;
	unsigned int count = 1;
	int ret;

	ng->status = 0;
	if (ng->numbered)
		count = kvs_node_paths_choose(ng->n, k->session, k->expected,
					      KVS_WIRE_GRANT_KEYS_MAX / x->n,
					      dc);
	if (!count)
		return -EAGAIN;
	v = calloc(x->n, sizeof(*v));
	ng->part = calloc(count, sizeof(*ng->part));
	ret = -ENOMEM;
	if (!v || !ng->part)
		goto out_free;
	for (uint32_t i = 0; i < x->n; i++) {
		v[i].addr = kvs_extent_addr(x, i);
		v[i].len = kvs_geometry_len(&k->room->geo, i);
	}
	ret = open_on(ng, v, ng->numbered ? dc : NULL, count);
	if (ret == -ENOTCONN)
		ret = -EAGAIN;
out_free:
	if (ret)
		drop_parts(ng);
	free(v);
	return ret;
}

int kvs_node_grant_open(void *arg, struct kvs_room_rank *k)
{
	struct kvs_node *n = arg;
	struct node_grant *ng;
	int ret;

	ng = calloc(1, sizeof(*ng));
	if (!ng)
		return -ENOMEM;
	ng->n = n;
	ng->k = k;
	ng->numbered = k->session->numbered;
	kvs_list_init(&ng->pend);
	kvs_list_add_tail(&n->grants, &ng->node);
	k->grant_owner = ng;
	ret = begin(ng);
	if (ret == -EAGAIN) {
		kvs_list_add_tail(&n->pending, &ng->pend);
		return 0;
	}
	if (ret)
		grant_free(ng);
	return ret;
}

bool kvs_node_grants_pending(struct kvs_node *n)
{
	struct kvs_list now;
	bool any = false;
	int ret;

	kvs_list_init(&now);
	kvs_list_splice_tail(&now, &n->pending);
	while (!kvs_list_empty(&now)) {
		struct node_grant *ng =
			kvs_list_first(&now, struct node_grant, pend);

		kvs_list_del(&ng->pend);
		ret = wanted(ng) ? begin(ng) : -ECANCELED;
		if (ret == -EAGAIN) {
			kvs_list_add_tail(&n->pending, &ng->pend);
			continue;
		}
		any = true;
		if (ret)
			not_opened(ng, ret);
	}
	return any;
}

void kvs_node_grant_close(void *arg, struct kvs_room_rank *k)
{
	struct node_grant *ng = k->grant_owner;
	unsigned int i;

	(void)arg;
	ng->status = 0;
	for (i = 0; i < ng->n_parts; i++)
		if (ng->part[i].g && !ng->part[i].asked) {
			ng->part[i].asked = true;
			ng->closing++;
		}
	KVS_ASSERT(ng->closing);
	for (i = 0; i < ng->n_parts; i++)
		if (ng->part[i].asked)
			kvs_grant_close(ng->part[i].g);
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
