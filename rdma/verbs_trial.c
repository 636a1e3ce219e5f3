/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device is tried before it is trusted: two queue pairs of its own, connected
 * to each other, a write from one page to another. With windows: one is bound,
 * lets a write through, keeps one behind its end out, is invalidated, and lets
 * none through any more. A driver that says it has windows and fails here gets
 * registrations. With queue pairs of grants: the one is destroyed, and what the
 * other still writes changes nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rdma/verbs_internal.h"

#define PAGE 4096u
#define BYTES (4 * PAGE) /* source, window, behind it, spare */
#define WAIT_NS (2 * KVS_NSEC_PER_SEC)
#define NOBODY_NS (100 * KVS_NSEC_PER_MSEC) /* of a write that nobody takes */
#define PSN 7

struct trial {
	struct kvs_verbs_dev *d;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	unsigned char *mem;
	struct ibv_qp *qp[2]; /* writer, owner of the window */
	uint8_t timeout, retries; /* of a write */
	uint64_t wait; /* ns */
	char *why;
	size_t len;
};

static int say(struct trial *t, const char *what, int rc)
{
	snprintf(t->why, t->len, "%s%s%s", what, rc ? ": " : "",
		 rc ? strerror(-rc) : "");
	return rc ? rc : -EIO;
}

static int wait_one(struct trial *t, enum ibv_wc_status *ret)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + t->wait;
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(t->cq, 1, &wc);
		if (n > 0) {
			*ret = wc.status;
			return 0;
		}
	} while (!n && kvs_clock_now(&kvs_clock_real) < until);
	return n < 0 ? -EIO : -ETIMEDOUT;
}

static int post(struct trial *t, int which, struct ibv_send_wr *wr,
		enum ibv_wc_status *ret)
{
	struct ibv_send_wr *bad;
	int rc;

	wr->send_flags = IBV_SEND_SIGNALED;
	rc = ibv_post_send(t->qp[which], wr, &bad);
	return rc ? -rc : wait_one(t, ret);
}

static void drop_pair(struct trial *t)
{
	const struct timespec rest = { 0, (long)t->d->prov->settle };
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;
	int i;

	/* a bound window first: see kvs_verbs_qp_destroy() */
	if (t->mw && ibv_dealloc_mw(t->mw))
		return;
	t->mw = NULL;
	for (i = 0; i < 2; i++) {
		if (!t->qp[i])
			continue;
		(void)ibv_modify_qp(t->qp[i], &err, IBV_QP_STATE);
	}
	if (t->qp[0] && t->d->prov->settle)
		nanosleep(&rest, NULL);
	for (i = 0; i < 2; i++) {
		if (t->qp[i])
			(void)ibv_destroy_qp(t->qp[i]);
		t->qp[i] = NULL;
	}
	while (ibv_poll_cq(t->cq, 1, &wc) > 0)
		;
}

static int make_qp(struct trial *t, int which)
{
	struct ibv_qp_init_attr a = {
		.send_cq = t->cq,
		.recv_cq = t->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = t->d->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	t->qp[which] = ibv_create_qp(t->pd, &a);
	if (!t->qp[which])
		return errno ? -errno : -EIO;
	return -ibv_modify_qp(t->qp[which], &init,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				      IBV_QP_ACCESS_FLAGS);
}

static int link_qp(struct trial *t, int which)
{
	const struct kvs_verbs_dev *d = t->d;
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = d->mtu,
		.dest_qp_num = t->qp[!which]->qp_num,
		.rq_psn = PSN,
		.min_rnr_timer = 12,
		.ah_attr = {
			.dlid = d->pattr.lid,
			.port_num = d->port,
		},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = t->timeout,
		.retry_cnt = t->retries,
		.rnr_retry = 7,
		.sq_psn = PSN,
	};
	int rc;

	if (d->link != KVS_VERBS_INFINIBAND || !d->pattr.lid) {
		rtr.ah_attr.is_global = 1;
		rtr.ah_attr.grh.sgid_index = (uint8_t)d->gid_index;
		rtr.ah_attr.grh.hop_limit = 1;
		rtr.ah_attr.grh.dgid = d->gid;
	}
	rc = ibv_modify_qp(t->qp[which], &rtr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC |
				   IBV_QP_MIN_RNR_TIMER);
	if (!rc)
		rc = ibv_modify_qp(t->qp[which], &rts,
				   IBV_QP_STATE | IBV_QP_TIMEOUT |
					   IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					   IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC);
	return -rc;
}

static int make_pair(struct trial *t)
{
	int i, rc = 0;

	drop_pair(t);
	for (i = 0; i < 2 && !rc; i++)
		rc = make_qp(t, i);
	for (i = 0; i < 2 && !rc; i++)
		rc = link_qp(t, i);
	return rc ? say(t, "its queue pairs cannot be connected", rc) : 0;
}

/* Does a page written to mem + @at with @rkey arrive? */
static int try_write(struct trial *t, size_t at, uint32_t rkey, bool *ret)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)t->mem,
		.length = PAGE,
		.lkey = t->mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)t->mem + at,
			     .rkey = rkey },
	};
	enum ibv_wc_status s;
	int rc;

	memset(t->mem, 0x55, PAGE);
	memset(t->mem + PAGE, 0xee, BYTES - PAGE);
	rc = post(t, 0, &wr, &s);
	if (rc)
		return say(t, "a write does not complete", rc);
	*ret = s == IBV_WC_SUCCESS;
	if (*ret && memcmp(t->mem, t->mem + at, PAGE) != 0)
		return say(t, "a write completed and did not arrive", 0);
	if (!*ret && t->mem[at] != 0xee)
		return say(t, "a refused write arrived", 0);
	return 0;
}

static int bind_window(struct trial *t, uint32_t *ret_rkey)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };
	enum ibv_wc_status s;
	int rc;

	t->mw = ibv_alloc_mw(t->pd, IBV_MW_TYPE_2);
	if (!t->mw)
		return say(t, "no windows", errno ? -errno : -EIO);
	wr.bind_mw.mw = t->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(t->mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = t->mr,
		.addr = (uintptr_t)t->mem + PAGE,
		.length = PAGE,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	*ret_rkey = wr.bind_mw.rkey;
	rc = post(t, 1, &wr, &s);
	if (!rc && s != IBV_WC_SUCCESS)
		rc = -EIO;
	return rc ? say(t, "a window cannot be bound", rc) : 0;
}

static int try_windows(struct trial *t)
{
	struct ibv_send_wr inv = { .opcode = IBV_WR_LOCAL_INV };
	enum ibv_wc_status s;
	uint32_t rkey;
	bool landed;
	int rc;

	rc = make_pair(t);
	if (!rc)
		rc = bind_window(t, &rkey);
	if (!rc)
		rc = try_write(t, PAGE, rkey, &landed);
	if (rc)
		return rc;
	if (!landed)
		return say(t, "a window lets nothing through", 0);
	inv.invalidate_rkey = rkey;
	rc = post(t, 1, &inv, &s);
	if (!rc && s != IBV_WC_SUCCESS)
		rc = -EIO;
	if (rc)
		return say(t, "a window cannot be invalidated", rc);
	rc = try_write(t, PAGE, rkey, &landed);
	if (rc)
		return rc;
	if (landed)
		return say(t, "an invalidated window lets a write through", 0);
	/* the refused write broke the pair */
	rc = make_pair(t);
	if (!rc)
		rc = bind_window(t, &rkey);
	if (!rc)
		rc = try_write(t, 2 * PAGE, rkey, &landed);
	if (rc)
		return rc;
	return landed ? say(t, "windows are not held to their bounds", 0) : 0;
}

static int try_write_mr(struct trial *t)
{
	bool landed;
	int rc = make_pair(t);

	if (!rc)
		rc = try_write(t, PAGE, t->mr->rkey, &landed);
	if (!rc && !landed)
		rc = say(t, "a write to granted memory is refused", 0);
	return rc;
}

/* Is a queue pair that was destroyed the end of what comes by it? */
static int try_branch(struct trial *t)
{
	const struct timespec rest = { 0, (long)t->d->prov->settle };
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	bool landed = false;
	int rc;

	/* 16 ms, twice */
	t->timeout = 12;
	t->retries = 1;
	rc = try_write_mr(t);
	if (rc)
		return rc;
	rc = -ibv_modify_qp(t->qp[1], &err, IBV_QP_STATE);
	if (!rc && t->d->prov->settle)
		nanosleep(&rest, NULL);
	if (!rc)
		rc = -ibv_destroy_qp(t->qp[1]);
	if (rc)
		return say(t, "a queue pair cannot be destroyed", rc);
	t->qp[1] = NULL;
	t->wait = NOBODY_NS;
	rc = try_write(t, PAGE, t->mr->rkey, &landed);
	t->wait = WAIT_NS;
	if (landed || t->mem[PAGE] != 0xee)
		return say(t, "a write to a destroyed queue pair arrives", 0);
	return rc == -ETIMEDOUT ? 0 : rc;
}

static int reg(struct trial *t, int access)
{
	if (t->mr && ibv_dereg_mr(t->mr))
		return say(t, "a registration cannot be taken back", -EBUSY);
	t->mr = ibv_reg_mr(t->pd, t->mem, BYTES,
			   IBV_ACCESS_LOCAL_WRITE | access);
	if (t->mr)
		return 0;
	return say(t, "memory cannot be registered", errno ? -errno : -ENOMEM);
}

const char *kvs_verbs_trial_text(enum kvs_verbs_grant_kind kind)
{
	switch (kind) {
	case KVS_VERBS_GRANT_WINDOW:
		return "a write through a window, one behind its end, one "
		       "after it was invalidated";
	case KVS_VERBS_GRANT_QP:
		return "a write, and one after its queue pair was destroyed";
	case KVS_VERBS_GRANT_MR:
		return "a write by the key of a registration";
	case KVS_VERBS_GRANT_AUTO:
	case KVS_VERBS_GRANT_KINDS:
		break;
	}
	return "-";
}

static int try_kind(struct trial *t, enum kvs_verbs_grant_kind kind)
{
	switch (kind) {
	case KVS_VERBS_GRANT_WINDOW:
		return try_windows(t);
	case KVS_VERBS_GRANT_QP:
		return try_branch(t);
	case KVS_VERBS_GRANT_AUTO:
	case KVS_VERBS_GRANT_MR:
	case KVS_VERBS_GRANT_KINDS:
		break;
	}
	return try_write_mr(t);
}

static int begin(struct trial *t, int access)
{
	void *p = NULL;

	if (posix_memalign(&p, PAGE, BYTES))
		return say(t, "out of memory", -ENOMEM);
	t->mem = p;
	t->pd = ibv_alloc_pd(t->d->ctx);
	t->cq = t->pd ? ibv_create_cq(t->d->ctx, 16, NULL, NULL, 0) : NULL;
	if (!t->cq)
		return say(t, "no protection domain, or no completion queue",
			   errno ? -errno : -EIO);
	return reg(t, access);
}

static void end(struct trial *t)
{
	if (t->mr)
		(void)ibv_dereg_mr(t->mr);
	if (t->cq)
		(void)ibv_destroy_cq(t->cq);
	if (t->pd)
		(void)ibv_dealloc_pd(t->pd);
	free(t->mem);
}

int kvs_verbs_trial(struct kvs_verbs_dev *d, enum kvs_verbs_grant_kind kind,
		    char *why, size_t len)
{
	bool windows = kind == KVS_VERBS_GRANT_WINDOW;
	struct trial t = { .d = d,
			   .timeout = 14,
			   .retries = 7,
			   .wait = WAIT_NS,
			   .why = why,
			   .len = len };
	int rc;

	rc = begin(&t, windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE);
	if (!rc)
		rc = try_kind(&t, kind);
	if (t.cq)
		drop_pair(&t);
	end(&t);
	return rc;
}

/* A write of @bytes that lie on a device, to the page behind the first. */
static int try_at(struct trial *t, const struct kvs_mem_at *at,
		  const void *bytes, const struct ibv_mr *mr)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)at->addr,
		.length = (uint32_t)at->len,
		.lkey = mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)t->mem + PAGE,
			     .rkey = t->mr->rkey },
	};
	enum ibv_wc_status s;
	int rc;

	memset(t->mem, 0xee, BYTES);
	rc = post(t, 0, &wr, &s);
	if (rc || s != IBV_WC_SUCCESS)
		return say(t, "a write from there does not complete", rc);
	if (memcmp(t->mem + PAGE, bytes, at->len) != 0)
		return say(t, "it reads other bytes than lie there", 0);
	return 0;
}

int kvs_verbs_trial_at(struct kvs_verbs_dev *d, const struct kvs_mem_at *at,
		       const void *bytes, char *why, size_t len)
{
	struct trial t = { .d = d,
			   .timeout = 14,
			   .retries = 7,
			   .wait = WAIT_NS,
			   .why = why,
			   .len = len };
	struct ibv_mr *mr = NULL;
	int rc;

	rc = begin(&t, IBV_ACCESS_REMOTE_WRITE);
	if (!rc) {
		mr = kvs_verbs_reg_at(t.pd, at);
		if (!mr)
			rc = say(&t, "cannot be registered",
				 errno ? -errno : -ENOMEM);
	}
	if (!rc)
		rc = make_pair(&t);
	if (!rc)
		rc = try_at(&t, at, bytes, mr);
	if (t.cq)
		drop_pair(&t);
	if (mr)
		(void)ibv_dereg_mr(mr);
	end(&t);
	return rc;
}
