/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants, and those of the kind "mr": a registration of its own for each range, in the
 * owner's protection domain. The device confines a writer to it; closing is
 * ibv_dereg_mr(), and that it returned is the proof.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "rdma/verbs_internal.h"

static struct kvs_verbs_grant *grant_of_job(struct kvs_verbs_job *j)
{
	return kvs_container_of(j, struct kvs_verbs_grant, job);
}

static uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Side thread. What could not be is left in @vg->mr. */
static int dereg_all(struct kvs_verbs_grant *vg)
{
	int rc, first = 0;
	uint64_t t0;
	size_t i;

	for (i = 0; i < vg->g.n; i++) {
		if (!vg->mr[i])
			continue;
		t0 = kvs_clock_now(&kvs_clock_real);
		rc = ibv_dereg_mr(vg->mr[i]);
		vg->worst =
			max64(vg->worst, kvs_clock_now(&kvs_clock_real) - t0);
		if (rc)
			first = first ? first : -rc;
		else
			vg->mr[i] = NULL;
	}
	return first;
}

static void run_open(struct kvs_verbs_job *j)
{
	struct kvs_verbs_grant *vg = grant_of_job(j);
	struct kvs_grant *g = &vg->g;
	int access = IBV_ACCESS_LOCAL_WRITE | kvs_verbs_grant_access(g);
	uint64_t t0;
	size_t i;

	vg->worst = 0;
	vg->job_rc = 0;
	for (i = 0; i < g->n && !vg->job_rc; i++) {
		/* it might be cut, and nobody told */
		if (g->range[i].len > vg->own->dev->max_mr) {
			vg->job_rc = -EFBIG;
			break;
		}
		t0 = kvs_clock_now(&kvs_clock_real);
		vg->mr[i] = ibv_reg_mr(vg->own->pd, g->range[i].addr,
				       g->range[i].len, access);
		vg->worst =
			max64(vg->worst, kvs_clock_now(&kvs_clock_real) - t0);
		if (!vg->mr[i]) {
			vg->job_rc = errno ? -errno : -ENOMEM;
			break;
		}
		g->key[i].addr = (uintptr_t)g->range[i].addr;
		g->key[i].rkey = vg->mr[i]->rkey;
	}
	if (vg->job_rc)
		(void)dereg_all(vg);
}

/* It is not in the way of a new grant, and not freed either: whoever has its
 * key could still use it, in this domain. */
static void put_owner(struct kvs_verbs_grant *vg)
{
	size_t i;

	for (i = 0; i < vg->g.n; i++)
		if (vg->mr[i])
			vg->own->spent = true;
	kvs_list_del(&vg->node);
	kvs_verbs_owner_put(vg->own);
	vg->own = NULL;
	free(vg->mr);
	vg->mr = NULL;
}

static void opened(struct kvs_verbs_job *j)
{
	struct kvs_verbs_grant *vg = grant_of_job(j);
	struct kvs_verbs *vt = kvs_verbs_of(vg->g.t);

	vg->job_busy = false;
	vt->handled++;
	vt->counts.grant_ns_max = max64(vt->counts.grant_ns_max, vg->worst);
	if (vg->job_rc)
		put_owner(vg);
	else
		vt->counts.grants++;
	kvs_grant_opened(&vg->g, vg->job_rc);
}

static int mr_open(struct kvs_verbs_grant *vg)
{
	vg->want = NULL; /* its device is all that matters */
	vg->mr = calloc(vg->g.n, sizeof(*vg->mr));
	if (!vg->mr)
		return -ENOMEM;
	vg->job.run = run_open;
	vg->job.done = opened;
	vg->job_busy = true;
	kvs_verbs_submit(kvs_verbs_of(vg->g.t), KVS_VERBS_SIDE_MEM, &vg->job);
	return 0;
}

int kvs_verbs_grant_open(struct kvs_grant *g)
{
	struct kvs_verbs *vt = kvs_verbs_of(g->t);
	struct kvs_verbs_grant *vg = kvs_verbs_grant_of(g);
	int rc;

	if (vt->closing)
		return -ESHUTDOWN;
	kvs_list_init(&vg->wait);
	kvs_list_init(&vg->on_conn);
	vg->want = g->on ? kvs_verbs_conn_of(g->on) : NULL;
	if (vg->want && (!vg->want->own || vg->want->state == KVS_VERBS_DYING ||
			 vg->want->state == KVS_VERBS_FLUSHING))
		return -ENOTCONN;
	rc = kvs_verbs_owner_get(vt, g->owner, vg->want ? vg->want->dev : NULL,
				 &vg->own);
	if (rc)
		return rc;
	if (vg->own->dev->grant == KVS_VERBS_GRANT_WINDOW)
		rc = kvs_verbs_window_open(vg);
	else if (vg->own->dev->grant == KVS_VERBS_GRANT_QP)
		rc = kvs_verbs_branch_open(vg);
	else
		rc = mr_open(vg);
	if (rc) {
		kvs_verbs_owner_put(vg->own);
		vg->own = NULL;
		return rc;
	}
	kvs_list_add_tail(&vt->grants, &vg->node);
	return 0;
}

static void run_close(struct kvs_verbs_job *j)
{
	struct kvs_verbs_grant *vg = grant_of_job(j);

	vg->worst = 0;
	vg->job_rc = dereg_all(vg);
}

bool kvs_verbs_owner_alive(struct kvs_verbs *vt, uint64_t owner)
{
	const struct kvs_verbs_owner *own;

	kvs_list_for_each_entry(own, &vt->owners, node)
		if (own->owner == owner && own->conns)
			return true;
	return false;
}

static void closed(struct kvs_verbs_job *j)
{
	struct kvs_verbs_grant *vg = grant_of_job(j);
	struct kvs_verbs *vt = kvs_verbs_of(vg->g.t);
	bool alive = kvs_verbs_owner_alive(vt, vg->g.owner);

	vg->job_busy = false;
	vt->handled++;
	vt->counts.close_ns_max = max64(vt->counts.close_ns_max, vg->worst);
	if (vg->job_rc && alive) {
		kvs_log_debug("%s: a grant stays registered: %d",
			      vg->own->dev->name, vg->job_rc);
		kvs_grant_closed(&vg->g, vg->job_rc, KVS_GRANT_INVALIDATED);
		return;
	}
	put_owner(vg);
	kvs_grant_closed(&vg->g, 0,
			 alive ? KVS_GRANT_INVALIDATED : KVS_GRANT_TORN_DOWN);
}

void kvs_verbs_grant_close(struct kvs_grant *g)
{
	struct kvs_verbs_grant *vg = kvs_verbs_grant_of(g);

	if (vg->window) {
		kvs_verbs_window_close(vg);
		return;
	}
	if (vg->by_branch) {
		kvs_verbs_branch_close(vg);
		return;
	}
	KVS_ASSERT(!vg->job_busy);
	vg->job.run = run_close;
	vg->job.done = closed;
	vg->job_busy = true;
	kvs_verbs_submit(kvs_verbs_of(g->t), KVS_VERBS_SIDE_MEM, &vg->job);
}

void kvs_verbs_grants_dereg(struct kvs_verbs *vt)
{
	struct kvs_verbs_grant *vg;

	kvs_list_for_each_entry(vg, &vt->grants, node) {
		if (vg->mr)
			(void)dereg_all(vg);
		kvs_verbs_owner_put(vg->own);
		vg->own = NULL;
	}
}

void kvs_verbs_grants_end(struct kvs_verbs *vt)
{
	struct kvs_verbs_grant *vg;

	while (!kvs_list_empty(&vt->grants)) {
		vg = kvs_list_first(&vt->grants, struct kvs_verbs_grant, node);
		kvs_list_del(&vg->node);
		kvs_list_del(&vg->wait);
		free(vg->mr);
		free(vg->window);
		if (vg->g.state == KVS_GRANT_OPENING)
			kvs_grant_opened(&vg->g, -ESHUTDOWN);
		else
			kvs_grant_closed(&vg->g, 0, KVS_GRANT_TORN_DOWN);
	}
}
