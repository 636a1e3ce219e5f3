/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a grant that is the same on every transport: its states, so
 * that a transport only opens keys and takes them back.
 */
#include "rdma/grant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "rdma/transport_internal.h"

static bool range_ok(const struct kvs_grant_range *v)
{
	return v->len && v->len - 1 <= UINT64_MAX - (uintptr_t)v->addr;
}

static int grant_open(struct kvs_transport *t, uint64_t owner,
		      struct kvs_conn *on, const struct kvs_grant_range *v,
		      size_t n, const struct kvs_grant_ops *ops, void *user,
		      struct kvs_grant **ret)
{
	struct kvs_grant *g;
	size_t i;
	int rc;

	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (!t->one_sided || !t->ops->grant_open)
		return -EOPNOTSUPP;
	if (!owner || !v || !n || n > KVS_GRANT_RANGES_MAX || !ops)
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!range_ok(&v[i]))
			return -EINVAL;
	KVS_ASSERT(t->ops->grant_size >= sizeof(*g));
	g = calloc(1, t->ops->grant_size);
	if (!g)
		return -ENOMEM;
	g->range = malloc(n * sizeof(*g->range));
	g->key = calloc(n, sizeof(*g->key));
	rc = -ENOMEM;
	if (!g->range || !g->key)
		goto out_free;
	memcpy(g->range, v, n * sizeof(*v));
	g->magic = KVS_GRANT_MAGIC;
	g->t = t;
	g->ops = ops;
	g->user = user;
	g->owner = owner;
	g->n = n;
	g->state = KVS_GRANT_OPENING;
	g->on = on;
	rc = t->ops->grant_open(g);
	g->on = NULL;
	if (rc)
		goto out_free;
	*ret = g;
	return 0;
out_free:
	free(g->range);
	free(g->key);
	free(g);
	return rc;
}

int kvs_grant_open(struct kvs_transport *t, uint64_t owner,
		   const struct kvs_grant_range *v, size_t n,
		   const struct kvs_grant_ops *ops, void *user,
		   struct kvs_grant **ret)
{
	return grant_open(t, owner, NULL, v, n, ops, user, ret);
}

int kvs_grant_open_on(struct kvs_conn *c, const struct kvs_grant_range *v,
		      size_t n, const struct kvs_grant_ops *ops, void *user,
		      struct kvs_grant **ret)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	return grant_open(c->t, c->owner, c, v, n, ops, user, ret);
}

static void grant_free(struct kvs_grant *g)
{
	free(g->range);
	free(g->key);
	g->magic = 0;
	free(g);
}

void kvs_grant_opened(struct kvs_grant *g, int status)
{
	KVS_CHECK_MAGIC(g, KVS_GRANT_MAGIC);
	KVS_ASSERT(g->state == KVS_GRANT_OPENING);
	if (g->close_asked && !status) {
		g->state = KVS_GRANT_CLOSING;
		g->t->ops->grant_close(g);
		return;
	}
	g->state = KVS_GRANT_OPEN;
	if (g->close_asked) /* no key ever worked */
		g->ops->closed(g, 0, KVS_GRANT_INVALIDATED);
	else
		g->ops->opened(g, status);
	if (status)
		grant_free(g);
}

void kvs_grant_closed(struct kvs_grant *g, int status,
		      enum kvs_grant_proof proof)
{
	KVS_CHECK_MAGIC(g, KVS_GRANT_MAGIC);
	/* the callback may try again at once */
	g->state = KVS_GRANT_DOUBT;
	g->ops->closed(g, status, proof);
	if (!status)
		grant_free(g);
}

const struct kvs_grant_key *kvs_grant_keys(const struct kvs_grant *g)
{
	KVS_CHECK_MAGIC(g, KVS_GRANT_MAGIC);
	return g->key;
}

void *kvs_grant_user(const struct kvs_grant *g)
{
	KVS_CHECK_MAGIC(g, KVS_GRANT_MAGIC);
	return g->user;
}

void kvs_grant_close(struct kvs_grant *g)
{
	KVS_CHECK_MAGIC(g, KVS_GRANT_MAGIC);
	switch (g->state) {
	case KVS_GRANT_OPENING:
		if (!g->close_asked && g->t->ops->grant_cancel)
			g->t->ops->grant_cancel(g);
		g->close_asked = true;
		break;
	case KVS_GRANT_CLOSING:
		break;
	case KVS_GRANT_OPEN:
	case KVS_GRANT_DOUBT:
		g->state = KVS_GRANT_CLOSING;
		g->t->ops->grant_close(g);
		break;
	}
}
