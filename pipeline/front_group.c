/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one decode engine that are attached by themselves. A room that one
 * of them admits is for all that are attached then, by the number of their
 * attachment: a rank that attaches again has another number, and nothing of an
 * older room.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "pipeline/front.h"
#include "pipeline/layout.h"

static struct kvs_front_engine *group_rank(const struct kvs_front_engine *e,
					   uint32_t rank)
{
	struct kvs_front_engine *o;

	kvs_list_for_each_entry(o, &e->f->engines, node)
		if (o != e && o->attached && o->open && o->rank == rank &&
		    !strcmp(o->group, e->group))
			return o;
	return NULL;
}

uint32_t kvs_front_group_layouts(const struct kvs_front_engine *e,
				 const struct kvs_layout *ret[KVS_GROUP_MAX])
{
	const struct kvs_front_engine *o;
	uint32_t n = 0;

	ret[n++] = e->layout;
	for (uint32_t i = 0; *e->group && i < e->n_ranks; i++) {
		o = group_rank(e, i);
		if (o)
			ret[n++] = o->layout;
	}
	return n;
}

int kvs_front_host(struct kvs_front_engine *e, const struct kvs_room_request *q,
		   struct kvs_host **ret, char *err, size_t errlen)
{
	const struct kvs_layout *layouts[KVS_GROUP_MAX] = { e->layout };
	const struct kvs_front_engine *o;

	for (uint32_t i = 0; i < q->n_members; i++) {
		o = kvs_front_engine(e->f, q->members[i]);
		layouts[i] = o->layout; /* attached a moment ago */
	}
	return kvs_host_get(&e->f->hosts, q, layouts,
			    q->n_members ? q->n_members : 1, ret, err, errlen);
}

/* Parts of one KV: what two ranks have both must be the same there. */
static int group_agrees(const struct kvs_front_engine *e, char *err,
			size_t errlen)
{
	static const struct kvs_slice all = { 0, UINT16_MAX + 1, 1, 0 };
	const struct kvs_layout *layouts[KVS_GROUP_MAX];
	uint32_t n = kvs_front_group_layouts(e, layouts);
	struct kvs_reshard_prefill p = { 1, e->layout->page_size, 1, &all };
	struct kvs_layout *l;
	char why[200];
	int ret;

	ret = kvs_reshard_layout(layouts, n, &p, false, &l, why, sizeof(why));
	if (ret)
		snprintf(err, errlen, "group %s: %s", e->group, why);
	else
		free(l);
	return ret;
}

int kvs_front_group_check(const struct kvs_front_engine *e, char *err,
			  size_t errlen)
{
	const struct kvs_front_engine *o = group_rank(e, e->rank);

	if (o) {
		snprintf(err, errlen,
			 "rank %u of group %s is attached: engine %u, pid %d",
			 e->rank, e->group, o->number, (int)o->pid);
		return -EEXIST;
	}
	for (uint32_t i = 0; i < KVS_GROUP_MAX; i++) {
		o = group_rank(e, i);
		if (!o)
			continue;
		if (o->n_ranks != e->n_ranks) {
			snprintf(err, errlen,
				 "group %s: %u ranks, rank %u says %u",
				 e->group, e->n_ranks, o->rank, o->n_ranks);
			return -EPROTOTYPE;
		}
	}
	return group_agrees(e, err, errlen);
}

int kvs_front_group_members(const struct kvs_front_engine *e,
			    uint32_t ret[KVS_GROUP_MAX], char *err,
			    size_t errlen)
{
	for (uint32_t i = 0; i < e->n_ranks; i++) {
		const struct kvs_front_engine *o =
			i == e->rank ? e : group_rank(e, i);

		if (!o) {
			snprintf(err, errlen,
				 "rank %u of group %s is not attached", i,
				 e->group);
			return -EAGAIN;
		}
		ret[i] = o->number;
	}
	return (int)e->n_ranks;
}

static int join_differs(const char *what, unsigned long long have,
			unsigned long long want, char *err, size_t errlen)
{
	snprintf(err, errlen,
		 "%s: %llu, the first rank that admitted the room said %llu",
		 what, have, want);
	return -EINVAL;
}

/* All ranks of a group decide alike, or one of them is wrong. */
static int join_check(const struct kvs_entry *x,
		      const struct kvs_packet_admit *p, char *err,
		      size_t errlen)
{
	if (p->tokens != x->tokens)
		return join_differs("tokens", p->tokens, x->tokens, err,
				    errlen);
	if (p->aux_len != x->aux_len)
		return join_differs("aux_len", p->aux_len, x->aux_len, err,
				    errlen);
	if (p->flags != x->flags)
		return join_differs("flags", p->flags, x->flags, err, errlen);
	if (p->n_ranks != x->n_ranks)
		return join_differs("n_ranks", p->n_ranks, x->n_ranks, err,
				    errlen);
	if (p->tp != x->tp)
		return join_differs("tp", p->tp, x->tp, err, errlen);
	if (p->page_size != x->page_size)
		return join_differs("page_size", p->page_size, x->page_size,
				    err, errlen);
	if (p->tp && memcmp(p->ranks + p->n_ranks, x->tp_ranks,
			    p->n_ranks * sizeof(x->tp_ranks[0])) != 0) {
		snprintf(err, errlen,
			 "tp_ranks: not those that the first rank said");
		return -EINVAL;
	}
	for (uint32_t i = 0; i < x->n_ranks; i++)
		if (p->ranks[i].first_layer != x->ranks[i].first_layer ||
		    p->ranks[i].n_layers != x->ranks[i].n_layers) {
			snprintf(err, errlen,
				 "layers of prefill rank %u: not those that "
				 "the first rank said",
				 i);
			return -EINVAL;
		}
	if (strncmp(p->peer, x->peer, sizeof(x->peer)) != 0) {
		snprintf(err, errlen,
			 "peer: %s, the first rank that admitted the room said "
			 "%s",
			 p->peer, x->peer);
		return -EINVAL;
	}
	return 0;
}

int kvs_front_group_join(struct kvs_front_engine *e, struct kvs_entry *x,
			 const struct kvs_packet_admit *p, char *err,
			 size_t errlen)
{
	struct kvs_entry_member *m = NULL;
	int ret;

	for (uint32_t i = 0; i < x->n_members; i++)
		if (x->members[i].engine == e->number)
			m = &x->members[i];
	/* Of another engine, of its own earlier attachment, another attempt,
	 * or a second time. */
	if (!m || m->slot != KVS_SLOT_NONE ||
	    memcmp(p->nonce, x->nonce, sizeof(x->nonce)) != 0) {
		snprintf(err, errlen, "a live room has this id");
		return -EEXIST;
	}
	ret = join_check(x, p, err, errlen);
	if (ret)
		return ret;
	if (kvs_node_join(&e->f->nodes[x->node], x->generation, e->number,
			  p->slot)) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	m->slot = p->slot;
	e->slots[p->slot].generation = x->generation;
	e->slots[p->slot].room = x->room;
	return 0;
}
