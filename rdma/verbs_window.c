/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants of the kind "window": memory that is registered once, without remote
 * access, and type-2 windows over the ranges of a grant, bound on the owner's
 * queue pair. A key works on that queue pair alone and goes with it.
 *
 *   open   the owner's connection is awaited, then BIND_MW for each range;
 *          keys are told after the last completion
 *   close  LOCAL_INV for each, once and never again (a second one is fatal on
 *          a soft device); its completion is proof where the driver is known
 *          for that. Else, or when it was flushed, or does not come, the queue
 *          pair goes: its windows are deallocated, and it is destroyed
 *
 * Windows are used again, by anybody's grants; each bind gives another key,
 * and before the eight bits that change have all been used the window is
 * replaced.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "rdma/verbs_internal.h"

#define BINDS_MAX 200 /* of the 256 keys of a window */
#define WINDOW_MAX (2ull << 30) /* bytes; mlx5 */
#define INVALIDATE_NS (5 * KVS_NSEC_PER_SEC)

/* ---- windows ---- */

static struct kvs_verbs_window *window_get(struct kvs_verbs_dev *d)
{
	struct kvs_verbs_window *w;

	if (!kvs_list_empty(&d->windows)) {
		w = kvs_list_first(&d->windows, struct kvs_verbs_window, node);
		kvs_list_del(&w->node);
		return w;
	}
	w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->mw = ibv_alloc_mw(d->pd, IBV_MW_TYPE_2);
	if (!w->mw) {
		free(w);
		return NULL;
	}
	kvs_list_init(&w->node);
	return w;
}

/* It is invalid, and nothing of it is under way. */
static void window_put(struct kvs_verbs_dev *d, struct kvs_verbs_window *w)
{
	kvs_list_del(&w->node);
	if (w->binds < BINDS_MAX) {
		kvs_list_add(&d->windows, &w->node);
		return;
	}
	if (ibv_dealloc_mw(w->mw))
		kvs_log_debug("%s: a window stays", d->name);
	free(w);
}

void kvs_verbs_windows_fini(struct kvs_verbs_dev *d)
{
	struct kvs_verbs_window *w;

	while (!kvs_list_empty(&d->windows)) {
		w = kvs_list_first(&d->windows, struct kvs_verbs_window, node);
		kvs_list_del(&w->node);
		if (ibv_dealloc_mw(w->mw))
			kvs_log_debug("%s: a window stays", d->name);
		free(w);
	}
}

int kvs_verbs_windows_drop(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_window *w, *tmp;
	int rc, first = 0;

	kvs_list_for_each_entry_safe(w, tmp, &vc->windows, node) {
		rc = ibv_dealloc_mw(w->mw);
		if (rc) {
			first = first ? first : -rc;
			continue;
		}
		kvs_list_del(&w->node);
		free(w);
	}
	return first;
}

/* ---- opening ---- */

struct kvs_verbs_conn *kvs_verbs_grant_conn(const struct kvs_verbs_grant *vg)
{
	struct kvs_verbs_conn *vc;

	if (vg->want)
		return vg->want->state == KVS_VERBS_UP ? vg->want : NULL;
	kvs_list_for_each_entry(vc, &vg->own->vt->conns, node)
		if (vc->own == vg->own && !vc->parent &&
		    vc->state == KVS_VERBS_UP)
			return vc;
	return NULL;
}

void kvs_verbs_grant_answer(struct kvs_verbs_grant *vg, int status)
{
	struct kvs_verbs *vt = kvs_verbs_of(vg->g.t);

	vg->answer = status;
	vg->want = NULL;
	kvs_list_del(&vg->wait);
	kvs_list_add_tail(&vt->answers, &vg->wait);
	/* there is something to do: it must not sleep */
	kvs_transport_wake(vt->inner);
}

static int take_windows(struct kvs_verbs_grant *vg, struct kvs_verbs_conn *vc)
{
	struct kvs_verbs *vt = kvs_verbs_of(vg->g.t);
	struct kvs_grant *g = &vg->g;
	size_t i;

	for (i = 0; i < g->n; i++) {
		const struct kvs_grant_range *v = &g->range[i];
		struct kvs_verbs_window *w;
		struct ibv_mr *mr;

		if (v->len > WINDOW_MAX ||
		    kvs_verbs_mem_find(vt, vc->dev, v->addr, v->len, &mr) !=
			    v->len)
			return -EFAULT;
		w = window_get(vc->dev);
		if (!w)
			return -ENOMEM;
		w->mr = mr;
		vg->window[i] = w;
	}
	return 0;
}

static void begin_bind(struct kvs_verbs_grant *vg, struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_op *op;
	size_t i;
	int rc;

	kvs_list_del(&vg->wait);
	vg->want = NULL;
	rc = take_windows(vg, vc);
	op = rc ? NULL : kvs_verbs_op_new(vc, KVS_VERBS_OP_BIND);
	if (op) {
		op->vg = vg;
		op->len = vg->g.n;
		vg->vc = vc;
		kvs_list_add_tail(&vc->grants, &vg->on_conn);
		return;
	}
	for (i = 0; i < vg->g.n && vg->window[i]; i++) {
		window_put(vc->dev, vg->window[i]);
		vg->window[i] = NULL;
	}
	kvs_verbs_grant_answer(vg, rc ? rc : -ENOMEM);
}

int kvs_verbs_window_open(struct kvs_verbs_grant *vg)
{
	struct kvs_verbs *vt = kvs_verbs_of(vg->g.t);
	struct kvs_verbs_conn *vc;

	vg->window = calloc(vg->g.n, sizeof(*vg->window));
	if (!vg->window)
		return -ENOMEM;
	vc = kvs_verbs_grant_conn(vg);
	if (vc)
		begin_bind(vg, vc);
	else
		kvs_list_add_tail(&vt->waiting, &vg->wait);
	return 0;
}

void kvs_verbs_windows_conn_up(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_grant *vg, *tmp;

	kvs_list_for_each_entry_safe(vg, tmp, &kvs_verbs_of(vc->c.t)->waiting,
				     wait) {
		if (vg->want ? vg->want != vc : vg->own != vc->own)
			continue;
		if (vg->by_branch)
			kvs_verbs_branch_begin(vg, vc);
		else
			begin_bind(vg, vc);
	}
}

void kvs_verbs_windows_conn_never(struct kvs_verbs_conn *vc, int err)
{
	struct kvs_verbs_grant *vg, *tmp;

	kvs_list_for_each_entry_safe(vg, tmp, &kvs_verbs_of(vc->c.t)->waiting,
				     wait)
		if (vg->want == vc)
			kvs_verbs_grant_answer(vg, err);
}

void kvs_verbs_grant_cancel(struct kvs_grant *g)
{
	struct kvs_verbs_grant *vg = kvs_verbs_grant_of(g);

	/* a connection may never come */
	if ((vg->window || vg->by_branch) && !vg->vc && !vg->job_busy)
		kvs_verbs_grant_answer(vg, -ECANCELED);
}

/* The next request of a grant's; its key, when it is a bind. */
void kvs_verbs_window_wr(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op,
			 struct ibv_send_wr *wr)
{
	const struct kvs_grant_range *v = &op->vg->g.range[op->at];
	struct kvs_verbs_window *w = op->vg->window[op->at];

	if (op->type == KVS_VERBS_OP_INV) {
		wr->opcode = IBV_WR_LOCAL_INV;
		wr->invalidate_rkey = w->rkey;
		return;
	}
	w->rkey = ibv_inc_rkey(w->binds ? w->rkey : w->mw->rkey);
	w->binds++;
	/* from here on it is this connection's, whatever becomes of it */
	kvs_list_add_tail(&vc->windows, &w->node);
	wr->opcode = IBV_WR_BIND_MW;
	wr->bind_mw.mw = w->mw;
	wr->bind_mw.rkey = w->rkey;
	wr->bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = w->mr,
		.addr = (uintptr_t)v->addr,
		.length = v->len,
		.mw_access_flags =
			(unsigned int)kvs_verbs_grant_access(&op->vg->g),
	};
}

/* ---- what came of it ---- */

static void forget(struct kvs_verbs_grant *vg)
{
	kvs_list_del(&vg->node);
	kvs_list_del(&vg->wait);
	kvs_list_del(&vg->on_conn);
	kvs_verbs_owner_put(vg->own);
	vg->own = NULL;
	vg->vc = NULL;
	free(vg->window);
	vg->window = NULL;
	free(vg->mr);
	vg->mr = NULL;
}

void kvs_verbs_window_bound(struct kvs_verbs_grant *vg, int status)
{
	struct kvs_verbs *vt = kvs_verbs_of(vg->g.t);
	size_t i;

	if (status) {
		/* those that were posted stay with the connection, which dies
		 * of it; the others are as they were */
		for (i = 0; i < vg->g.n; i++)
			if (kvs_list_empty(&vg->window[i]->node))
				window_put(vg->vc->dev, vg->window[i]);
		forget(vg);
		kvs_grant_opened(&vg->g, status);
		return;
	}
	for (i = 0; i < vg->g.n; i++) {
		vg->window[i]->mw->rkey = vg->window[i]->rkey;
		vg->g.key[i].addr = (uintptr_t)vg->g.range[i].addr;
		vg->g.key[i].rkey = vg->window[i]->rkey;
	}
	vt->counts.grants++;
	kvs_grant_opened(&vg->g, 0);
}

void kvs_verbs_window_close(struct kvs_verbs_grant *vg)
{
	struct kvs_verbs_conn *vc = vg->vc;
	struct kvs_verbs_op *op;

	vg->closing = true;
	if (!vc) {
		kvs_verbs_grant_answer(vg, 0);
		return;
	}
	if (vc->state == KVS_VERBS_DYING) {
		if (vc->end == KVS_VERBS_END_STUCK)
			kvs_verbs_grant_answer(vg, -EBUSY);
		return; /* its end answers */
	}
	op = vg->invalidated ? NULL : kvs_verbs_op_new(vc, KVS_VERBS_OP_INV);
	if (!op) {
		kvs_verbs_die(vc, -ECONNABORTED, false);
		return;
	}
	vg->invalidated = true; /* never a second time */
	op->vg = vg;
	op->len = vg->g.n;
	if (vc->state == KVS_VERBS_UP)
		kvs_verbs_conn_until(vc, kvs_verbs_now(kvs_verbs_of(vc->c.t)) +
						 INVALIDATE_NS);
}

static bool still_invalidating(const struct kvs_verbs_conn *vc)
{
	const struct kvs_verbs_grant *vg;

	kvs_list_for_each_entry(vg, &vc->grants, on_conn)
		if (vg->closing)
			return true;
	return false;
}

void kvs_verbs_window_invalidated(struct kvs_verbs_grant *vg, int status)
{
	struct kvs_verbs_conn *vc = vg->vc;
	size_t i;

	/* flushed: it may have taken effect, or not, and proves nothing */
	if (status)
		return;
	if (!vc->dev->prov->invalidate_proof) {
		kvs_log_debug("%s: an invalidation is no proof here: the "
			      "connection goes",
			      vc->dev->name);
		kvs_verbs_die(vc, -ECONNABORTED, false);
		return;
	}
	for (i = 0; i < vg->g.n; i++)
		window_put(vc->dev, vg->window[i]);
	forget(vg);
	if (!vc->fin && vc->state == KVS_VERBS_UP && !still_invalidating(vc))
		kvs_list_del(&vc->timed);
	kvs_grant_closed(&vg->g, 0, KVS_GRANT_INVALIDATED);
}

void kvs_verbs_windows_conn_stuck(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_grant *vg, *tmp;

	kvs_list_for_each_entry_safe(vg, tmp, &vc->grants, on_conn)
		if (vg->closing)
			kvs_verbs_grant_answer(vg, -EBUSY);
}

void kvs_verbs_windows_conn_gone(struct kvs_list *grants, int err)
{
	struct kvs_verbs_grant *vg;

	while (!kvs_list_empty(grants)) {
		vg = kvs_list_first(grants, struct kvs_verbs_grant, on_conn);
		kvs_list_del(&vg->on_conn);
		vg->vc = NULL;
		if (vg->closing)
			kvs_verbs_grant_answer(vg, 0);
		else if (vg->g.state == KVS_GRANT_OPENING) /* a branch */
			kvs_verbs_grant_answer(vg, err);
	}
}

void kvs_verbs_grants_answer(struct kvs_verbs *vt)
{
	struct kvs_verbs_grant *vg;
	struct kvs_list now;
	int status;

	kvs_list_init(&now);
	kvs_list_splice_tail(&now, &vt->answers);
	while (!kvs_list_empty(&now)) {
		vg = kvs_list_first(&now, struct kvs_verbs_grant, wait);
		kvs_list_del(&vg->wait);
		status = vg->answer;
		vt->handled++;
		if (vg->g.state == KVS_GRANT_OPENING) {
			KVS_ASSERT(status);
			forget(vg);
			kvs_grant_opened(&vg->g, status);
		} else if (status) {
			vg->closing = false;
			kvs_grant_closed(&vg->g, status, KVS_GRANT_INVALIDATED);
		} else {
			bool alive = kvs_verbs_owner_alive(vt, vg->g.owner);

			forget(vg);
			kvs_grant_closed(&vg->g, 0,
					 alive ? KVS_GRANT_INVALIDATED
					       : KVS_GRANT_TORN_DOWN);
		}
	}
}
