/* SPDX-License-Identifier: Apache-2.0 */
/* Grants of an endpoint, and the fabric's table of keys. See loop_internal.h */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "rdma/loop_internal.h"

#define ADDR_MASK 0x00007ffffffff000ull /* what a user address looks like */

static struct loop_grant *grant_of(struct kvs_grant *g)
{
	return kvs_container_of(g, struct loop_grant, g);
}

/* Told addresses are drawn too: the same seed tells the same ones. */
static void draw_keys(struct kvs_fabric *f, struct kvs_grant *g)
{
	size_t i;

	for (i = 0; i < g->n; i++) {
		g->key[i].addr = kvs_rng_next(&f->rng) & ADDR_MASK;
		do
			g->key[i].rkey = (uint32_t)kvs_rng_next(&f->rng);
		while (!g->key[i].rkey ||
		       kvs_u64map_get(&f->keys, g->key[i].rkey));
	}
}

static void schedule(struct loop_ep *ep, struct loop_grant *lg, uint64_t more)
{
	struct loop_grant *prev;
	struct kvs_list *at = &ep->granting;

	lg->due = kvs_loop_now(ep->f) + kvs_loop_latency(ep->f) + more;
	for (; at->prev != &ep->granting; at = at->prev) {
		prev = kvs_list_entry(at->prev, struct loop_grant, due_node);
		if (prev->due <= lg->due)
			break;
	}
	/* in front of @at */
	kvs_list_add_tail(at, &lg->due_node);
}

int kvs_loop_grant_open(struct kvs_grant *g)
{
	struct loop_ep *ep = kvs_loop_ep_of(g->t);
	struct loop_grant *lg = grant_of(g);
	struct kvs_fabric *f = ep->f;
	enum kvs_loop_fault k;
	uint64_t at;

	if (ep->closing || ep->dead)
		return -ESHUTDOWN;
	lg->keys = calloc(g->n, sizeof(*lg->keys));
	if (!lg->keys)
		return -ENOMEM;
	draw_keys(f, g);
	k = kvs_loop_decide_grant(ep, lg, KVS_LOOP_OPEN, &at);
	lg->open_fails = k == KVS_LOOP_OPEN_FAILS;
	if (k == KVS_LOOP_DELAY)
		kvs_loop_count(f, k);
	kvs_list_init(&lg->due_node);
	kvs_list_add_tail(&ep->grants, &lg->node);
	schedule(ep, lg, k == KVS_LOOP_DELAY ? at : 0);
	return 0;
}

void kvs_loop_grant_close(struct kvs_grant *g)
{
	struct loop_ep *ep = kvs_loop_ep_of(g->t);
	struct loop_grant *lg = grant_of(g);
	enum kvs_loop_fault k = KVS_LOOP_NO_FAULT;
	uint64_t at = 0;

	if (!lg->asked) {
		k = kvs_loop_decide_grant(ep, lg, KVS_LOOP_CLOSE, &at);
		lg->asked = true;
	}
	if (k == KVS_LOOP_CLOSE_FAILS)
		lg->close_fails = at < UINT_MAX ? (unsigned int)at : UINT_MAX;
	if (k == KVS_LOOP_DELAY)
		kvs_loop_count(ep->f, k);
	schedule(ep, lg, k == KVS_LOOP_DELAY ? at : 0);
}

/* From here on nothing lands through it, and who waited for that may try. */
static void shut(struct loop_ep *ep, struct loop_grant *lg)
{
	struct kvs_fabric *f = ep->f;
	struct loop_event *e;
	struct loop_event *tmp;
	size_t i;

	for (i = 0; i < lg->g.n; i++)
		if (kvs_u64map_get(&f->keys, lg->g.key[i].rkey) == &lg->keys[i])
			kvs_u64map_del(&f->keys, lg->g.key[i].rkey);
	kvs_list_for_each_entry_safe(e, tmp, &f->late, held)
		if (!kvs_u64map_get(&f->keys, e->remote.rkey))
			kvs_loop_wire_resume(f, e, kvs_loop_latency(f));
	free(lg->keys);
	lg->keys = NULL;
	kvs_list_del(&lg->node);
	kvs_list_del(&lg->due_node);
}

static void answer_open(struct loop_ep *ep, struct loop_grant *lg)
{
	struct kvs_fabric *f = ep->f;
	int rc = 0;
	size_t i;

	if (lg->open_fails) {
		kvs_loop_count(f, KVS_LOOP_OPEN_FAILS);
		rc = -EIO;
	}
	for (i = 0; i < lg->g.n && !rc; i++) {
		lg->keys[i].lg = lg;
		lg->keys[i].i = i;
		/* two that were opening may have drawn the same: no grant */
		rc = kvs_u64map_add(&f->keys, lg->g.key[i].rkey, &lg->keys[i]);
	}
	if (rc)
		shut(ep, lg);
	kvs_grant_opened(&lg->g, rc);
}

static bool owner_alive(const struct loop_ep *ep, uint64_t owner)
{
	const struct loop_conn *c;

	kvs_list_for_each_entry(c, &ep->conns, node)
		if (c->c.owner == owner)
			return true;
	return false;
}

static void answer_close(struct loop_ep *ep, struct loop_grant *lg)
{
	bool alive = owner_alive(ep, lg->g.owner);

	if (alive && lg->close_fails) {
		lg->close_fails--;
		kvs_loop_count(ep->f, KVS_LOOP_CLOSE_FAILS);
		kvs_grant_closed(&lg->g, -EIO, KVS_GRANT_INVALIDATED);
		return;
	}
	shut(ep, lg);
	kvs_grant_closed(&lg->g, 0,
			 alive ? KVS_GRANT_INVALIDATED : KVS_GRANT_TORN_DOWN);
}

static struct loop_grant *first(const struct loop_ep *ep)
{
	if (kvs_list_empty(&ep->granting))
		return NULL;
	return kvs_list_first(&ep->granting, struct loop_grant, due_node);
}

void kvs_loop_grants_run(struct loop_ep *ep, uint64_t now)
{
	struct loop_grant *lg;

	while ((lg = first(ep)) && lg->due <= now) {
		kvs_list_del(&lg->due_node);
		ep->handled++;
		if (lg->g.state == KVS_GRANT_OPENING)
			answer_open(ep, lg);
		else
			answer_close(ep, lg);
	}
}

uint64_t kvs_loop_grants_next(const struct loop_ep *ep)
{
	struct loop_grant *lg = first(ep);

	return lg ? lg->due : KVS_TIME_NEVER;
}

void kvs_loop_grants_end(struct loop_ep *ep)
{
	struct loop_grant *lg;

	while (!kvs_list_empty(&ep->grants)) {
		lg = kvs_list_first(&ep->grants, struct loop_grant, node);
		shut(ep, lg);
		if (lg->g.state == KVS_GRANT_OPENING)
			kvs_grant_opened(&lg->g, -ESHUTDOWN);
		else
			kvs_grant_closed(&lg->g, 0, KVS_GRANT_TORN_DOWN);
	}
}

const struct kvs_grant_range *
kvs_loop_grant_find(const struct loop_conn *c, const struct kvs_grant_key *at,
		    uint64_t len, bool read, uint64_t *ret_off)
{
	const struct kvs_grant_range *r;
	const struct loop_key *k;
	uint64_t off;

	if (!at->rkey || !c->ep || c->ep->dead || !c->c.owner)
		return NULL;
	k = kvs_u64map_get(&c->f->keys, at->rkey);
	if (!k || k->lg->g.t != &c->ep->t || k->lg->g.owner != c->c.owner ||
	    (read && k->lg->g.ops->write_only))
		return NULL;
	r = &k->lg->g.range[k->i];
	off = at->addr - k->lg->g.key[k->i].addr;
	if (at->addr < k->lg->g.key[k->i].addr || off > r->len ||
	    len > r->len - off)
		return NULL;
	*ret_off = off;
	return r;
}
