/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants of the kind "qp": memory that is registered once, with remote access,
 * and a queue pair of its own for each grant, a *branch* of the connection it
 * was granted to. Only branches let writes in; the connection itself does not.
 *
 *   open   the owner's connection is awaited; then the two sides make the
 *          branch, over the connection's TCP side; then the keys are told
 *   close  the branch goes: ERR, everything back, a while, destroyed. A write
 *          that was launched on it has nowhere to arrive. Nobody else notices
 *
 * The number of the branch is in the upper bits of the keys' addresses, which
 * no memory of a process has: by it the writer's side finds the queue pair, and
 * it sends the frame behind the write on the same one. A branch that breaks
 * takes the connection with it, as a refused write does with other kinds.
 *
 * This revokes, and does not confine: the device holds a writer to the
 * registration, not to its grant. Through any branch that is open it reaches
 * all of the pool.
 */
#include <errno.h>
#include <string.h>

#include "lib/assert.h"
#include "rdma/verbs_internal.h"

#define BRANCHES_MAX 1024u /* of a connection */

struct kvs_verbs_conn *kvs_verbs_branch_find(const struct kvs_verbs_conn *vc,
					     uint32_t number)
{
	struct kvs_verbs_conn *b;

	kvs_list_for_each_entry(b, &vc->branches, sibling)
		if (b->number == number)
			return b;
	return NULL;
}

static unsigned int count(const struct kvs_verbs_conn *vc)
{
	const struct kvs_verbs_conn *b;
	unsigned int n = 0;

	kvs_list_for_each_entry(b, &vc->branches, sibling)
		n++;
	return n;
}

static struct kvs_verbs_conn *branch_new(struct kvs_verbs_conn *parent,
					 uint32_t number)
{
	struct kvs_verbs *vt = kvs_verbs_of(parent->c.t);
	struct kvs_verbs_conn *b = kvs_verbs_conn_new(vt, parent->c.ops, NULL);

	if (!b)
		return NULL;
	b->parent = parent;
	b->number = number;
	b->adopted = parent->adopted;
	b->gid = parent->gid;
	b->gid_index = parent->gid_index;
	memcpy(b->c.peer, parent->c.peer, sizeof(b->c.peer));
	kvs_list_add_tail(&parent->branches, &b->sibling);
	return b;
}

/* ---- the side that grants ---- */

static int next_number(struct kvs_verbs_conn *vc, uint32_t *ret)
{
	if (count(vc) >= BRANCHES_MAX)
		return -EBUSY;
	do {
		vc->last_branch = vc->last_branch % KVS_VERBS_BRANCH_MAX + 1;
	} while (kvs_verbs_branch_find(vc, vc->last_branch));
	*ret = vc->last_branch;
	return 0;
}

static int fill_keys(struct kvs_verbs_grant *vg, struct kvs_verbs_conn *parent,
		     uint32_t number)
{
	struct kvs_grant *g = &vg->g;
	struct ibv_mr *mr;
	size_t i;

	for (i = 0; i < g->n; i++) {
		uint64_t at = (uintptr_t)g->range[i].addr;

		if ((at + (g->range[i].len - 1)) >> KVS_VERBS_BRANCH_SHIFT)
			return -ERANGE;
		if (kvs_verbs_mem_find(kvs_verbs_of(g->t), parent->dev,
				       g->range[i].addr, g->range[i].len,
				       &mr) != g->range[i].len)
			return -EFAULT;
		g->key[i].addr = at | (uint64_t)number
					      << KVS_VERBS_BRANCH_SHIFT;
		g->key[i].rkey = mr->rkey;
	}
	return 0;
}

void kvs_verbs_branch_begin(struct kvs_verbs_grant *vg,
			    struct kvs_verbs_conn *parent)
{
	struct kvs_verbs_conn *b = NULL;
	uint32_t number = 0;
	int rc = next_number(parent, &number);

	kvs_list_del(&vg->wait);
	vg->want = NULL;
	if (!rc)
		rc = fill_keys(vg, parent, number);
	if (!rc) {
		b = branch_new(parent, number);
		rc = b ? 0 : -ENOMEM;
	}
	if (rc) {
		kvs_verbs_grant_answer(vg, rc);
		return;
	}
	vg->vc = b;
	kvs_list_add_tail(&b->grants, &vg->on_conn);
	b->access = kvs_verbs_grant_access(&vg->g);
	b->c.owner = parent->c.owner;
	kvs_verbs_conn_offer(b, parent->dev);
}

int kvs_verbs_branch_open(struct kvs_verbs_grant *vg)
{
	struct kvs_verbs_conn *parent = kvs_verbs_grant_conn(vg);

	vg->by_branch = true;
	if (parent)
		kvs_verbs_branch_begin(vg, parent);
	else
		kvs_list_add_tail(&kvs_verbs_of(vg->g.t)->waiting, &vg->wait);
	return 0;
}

void kvs_verbs_branch_up(struct kvs_verbs_conn *b)
{
	struct kvs_verbs_grant *vg;

	if (kvs_list_empty(&b->grants))
		return; /* the side that writes */
	vg = kvs_list_first(&b->grants, struct kvs_verbs_grant, on_conn);
	kvs_verbs_of(b->c.t)->counts.grants++;
	kvs_grant_opened(&vg->g, 0);
}

void kvs_verbs_branch_close(struct kvs_verbs_grant *vg)
{
	struct kvs_verbs_conn *b = vg->vc;

	vg->closing = true;
	if (!b) {
		kvs_verbs_grant_answer(vg, 0);
		return;
	}
	if (b->state == KVS_VERBS_DYING) {
		if (b->end == KVS_VERBS_END_STUCK)
			kvs_verbs_grant_answer(vg, -EBUSY);
		return; /* its end answers */
	}
	b->expected = true;
	kvs_verbs_die(b, -ECONNABORTED, false);
}

/* ---- the side that writes ---- */

static int offered(struct kvs_verbs_conn *parent,
		   const struct kvs_verbs_blob *offer)
{
	struct kvs_verbs_conn *b;

	if (parent->adopted)
		return -EPROTO;
	if (parent->state == KVS_VERBS_DYING ||
	    parent->state == KVS_VERBS_FLUSHING)
		return 0;
	if ((parent->state != KVS_VERBS_UP &&
	     parent->state != KVS_VERBS_ANSWERING) ||
	    offer->link != parent->dev->link || count(parent) >= BRANCHES_MAX ||
	    kvs_verbs_branch_find(parent, offer->number))
		return -EPROTO;
	b = branch_new(parent, offer->number);
	if (!b)
		return -ENOMEM;
	return kvs_verbs_conn_answer(b, parent->dev, offer);
}

/* ---- both ---- */

int kvs_verbs_branch_blob(struct kvs_verbs_conn *vc,
			  const struct kvs_verbs_blob *blob)
{
	struct kvs_verbs_conn *b = kvs_verbs_branch_find(vc, blob->number);

	if (blob->what == KVS_VERBS_OFFER)
		return offered(vc, blob);
	if (!b || b->state == KVS_VERBS_DYING)
		return 0; /* it was given up in between */
	if (blob->what == KVS_VERBS_ANSWER)
		return b->adopted ? kvs_verbs_conn_answered(b, blob) : -EPROTO;
	if (b->state == KVS_VERBS_UP)
		(void)kvs_verbs_drain(b);
	b->expected = true;
	kvs_verbs_die(b,
		      blob->err ? kvs_verbs_their_err((int)blob->err)
				: -ECONNRESET,
		      true);
	return 0;
}

void kvs_verbs_branch_dies(struct kvs_verbs_conn *b, int err, bool weak)
{
	if (b->expected)
		return;
	if (b->state == KVS_VERBS_UP || b->state == KVS_VERBS_DYING)
		kvs_verbs_die(b->parent, err, weak);
	else /* it never was: the grant alone fails */
		b->expected = true;
}

void kvs_verbs_branches_drain(struct kvs_verbs_conn *parent)
{
	struct kvs_verbs_conn *b;

	kvs_list_for_each_entry(b, &parent->branches, sibling)
		if (b->state == KVS_VERBS_UP)
			(void)kvs_verbs_drain(b);
}

bool kvs_verbs_branches_idle(const struct kvs_verbs_conn *parent)
{
	const struct kvs_verbs_conn *b;

	kvs_list_for_each_entry(b, &parent->branches, sibling)
		if (!kvs_list_empty(&b->ops) || !kvs_list_empty(&b->flying))
			return false;
	return true;
}

bool kvs_verbs_branches_end(struct kvs_verbs_conn *parent)
{
	struct kvs_verbs_conn *b;
	bool left = false;

	kvs_list_for_each_entry(b, &parent->branches, sibling) {
		if (b->given_up)
			continue;
		left = true;
		b->expected = true;
		kvs_verbs_die(b, parent->err < 0 ? parent->err : -ECONNABORTED,
			      false);
	}
	return !left;
}
