/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs and shared receive queues: made, moved on, posted to. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/fake_verbs/internal.h"

#define RXE_SETTLE 20000000u /* ns in ERR after which nothing is in hand */

static struct fv_qp *qp_of(struct ibv_qp *qp)
{
	return kvs_container_of(qp, struct fv_qp, ibv);
}

static struct fv_cq *cq_of(struct ibv_cq *cq)
{
	return kvs_container_of(cq, struct fv_cq, ibv);
}

static struct fv_srq *srq_of(struct ibv_srq *srq)
{
	return kvs_container_of(srq, struct fv_srq, ibv);
}

/* ---- receives ---- */

void fv_rq_clear(struct fv_rq *rq)
{
	while (!kvs_list_empty(&rq->posted)) {
		struct fv_recv *r =
			kvs_list_first(&rq->posted, struct fv_recv, node);

		kvs_list_del(&r->node);
		free(r);
	}
}

static int rq_post(struct fv_rq *rq, const struct ibv_recv_wr *wr)
{
	struct fv_recv *r;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return EINVAL;
	if (rq->used >= rq->max_wr)
		return ENOMEM;
	r = calloc(1, sizeof(*r) + (size_t)wr->num_sge * sizeof(r->sge[0]));
	KVS_ASSERT(r);
	r->wr_id = wr->wr_id;
	r->n = wr->num_sge;
	if (r->n)
		memcpy(r->sge, wr->sg_list, (size_t)r->n * sizeof(r->sge[0]));
	kvs_list_add_tail(&rq->posted, &r->node);
	rq->used++;
	return 0;
}

static void flush_recvs(struct fv_qp *qp)
{
	struct fv_rq *rq = &qp->own_rq;

	if (qp->rq != rq)
		return;
	while (!kvs_list_empty(&rq->posted)) {
		struct fv_recv *r =
			kvs_list_first(&rq->posted, struct fv_recv, node);
		struct ibv_wc wc = {
			.wr_id = r->wr_id,
			.status = IBV_WC_WR_FLUSH_ERR,
			.opcode = (enum ibv_wc_opcode)0xff,
		};

		kvs_list_del(&r->node);
		free(r);
		fv_complete(cq_of(qp->ibv.recv_cq), qp, &wc, 0, rq, false);
	}
}

static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr,
		     struct ibv_recv_wr **bad)
{
	struct fv_qp *qp = qp_of(ibqp);
	int rc = 0;

	fv_lock();
	for (; wr && !rc; wr = rc ? wr : wr->next) {
		*bad = wr;
		rc = fv_enter(FV_POST_RECV);
		if (!rc && qp->dev->dead)
			rc = EIO;
		if (!rc && (qp->attr.qp_state == IBV_QPS_RESET ||
			    qp->rq != &qp->own_rq))
			rc = EINVAL;
		if (!rc)
			rc = rq_post(qp->rq, wr);
	}
	if (qp->attr.qp_state == IBV_QPS_ERR)
		flush_recvs(qp);
	else
		fv_run_peers(qp);
	fv_unlock();
	return rc;
}

static int post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad)
{
	int rc = 0;

	fv_lock();
	for (; wr && !rc; wr = rc ? wr : wr->next) {
		*bad = wr;
		rc = fv_enter(FV_POST_SRQ_RECV);
		if (!rc)
			rc = rq_post(&srq_of(ibsrq)->rq, wr);
	}
	fv_run_all();
	fv_unlock();
	return rc;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd,
			       struct ibv_srq_init_attr *attr)
{
	struct fv_ctx *c = fv_ctx_of(pd->context);
	struct fv_srq *srq = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_CREATE_SRQ);
	if (!rc && (attr->attr.max_wr > c->dev->s.max_wr ||
		    attr->attr.max_sge > c->dev->s.max_sge))
		rc = EINVAL;
	if (!rc) {
		srq = calloc(1, sizeof(*srq));
		KVS_ASSERT(srq);
		srq->ibv.context = pd->context;
		srq->ibv.pd = pd;
		srq->ibv.srq_context = attr->srq_context;
		kvs_list_init(&srq->rq.posted);
		srq->rq.max_wr = attr->attr.max_wr;
		srq->rq.max_sge = attr->attr.max_sge;
		kvs_container_of(pd, struct fv_pd, ibv)->uses++;
		kvs_list_add_tail(&c->srqs, &srq->node);
		fv_w.live.srqs++;
	}
	fv_unlock();
	if (rc)
		errno = rc;
	return srq ? &srq->ibv : NULL;
}

void fv_srq_free(struct fv_srq *srq)
{
	fv_rq_clear(&srq->rq);
	kvs_container_of(srq->ibv.pd, struct fv_pd, ibv)->uses--;
	kvs_list_del(&srq->node);
	fv_w.live.srqs--;
	free(srq);
}

int ibv_destroy_srq(struct ibv_srq *ibsrq)
{
	struct fv_srq *srq = srq_of(ibsrq);
	int rc;

	fv_lock();
	rc = fv_enter(FV_DESTROY_SRQ);
	if (!rc && srq->qps)
		rc = EBUSY;
	if (!rc)
		fv_srq_free(srq);
	fv_unlock();
	return rc;
}

/* ---- sends ---- */

static uint64_t total(const struct ibv_send_wr *wr)
{
	uint64_t n = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++)
		n += wr->sg_list[i].length;
	return n;
}

static int send_ok(const struct fv_qp *qp, const struct ibv_send_wr *wr)
{
	if (qp->attr.qp_state != IBV_QPS_RTS &&
	    qp->attr.qp_state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->num_sge < 0 ||
	    (uint32_t)wr->num_sge > qp->init.cap.max_send_sge)
		return EINVAL;
	if (qp->sq_used >= qp->init.cap.max_send_wr)
		return ENOMEM;
	if (wr->send_flags & IBV_SEND_INLINE &&
	    total(wr) > qp->init.cap.max_inline_data)
		return EINVAL;
	switch ((int)wr->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
	case IBV_WR_LOCAL_INV:
		return 0;
	case IBV_WR_BIND_MW:
		return wr->bind_mw.mw ? 0 : EINVAL;
	default:
		return EOPNOTSUPP;
	}
}

static void send_take(struct fv_qp *qp, const struct ibv_send_wr *wr)
{
	size_t n = (size_t)wr->num_sge * sizeof(struct ibv_sge);
	struct fv_wqe *w = calloc(1, sizeof(*w) + n);

	KVS_ASSERT(w);
	w->wr = *wr;
	w->wr.next = NULL;
	w->wr.sg_list = NULL;
	if (n)
		memcpy(w->sge, wr->sg_list, n);
	kvs_list_add_tail(&qp->sq, &w->node);
	qp->sq_used++;
}

static void flush_sends(struct fv_qp *qp)
{
	while (!kvs_list_empty(&qp->sq))
		fv_send_done(qp, kvs_list_first(&qp->sq, struct fv_wqe, node),
			     IBV_WC_WR_FLUSH_ERR);
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr,
		     struct ibv_send_wr **bad)
{
	struct fv_qp *qp = qp_of(ibqp);
	int rc = 0;

	fv_lock();
	for (; wr && !rc; wr = rc ? wr : wr->next) {
		*bad = wr;
		rc = fv_enter(FV_POST_SEND);
		if (!rc && qp->dev->dead)
			rc = EIO;
		if (!rc)
			rc = send_ok(qp, wr);
		if (!rc)
			send_take(qp, wr);
	}
	if (qp->attr.qp_state == IBV_QPS_ERR)
		flush_sends(qp);
	else
		fv_run(qp);
	fv_unlock();
	return rc;
}

/* ---- queue pairs ---- */

void fv_qp_init(struct fv_ctx *ctx)
{
	ctx->v.context.ops.post_send = post_send;
	ctx->v.context.ops.post_recv = post_recv;
	ctx->v.context.ops.post_srq_recv = post_srq_recv;
}

static int create_ok(const struct fv_device *d,
		     const struct ibv_qp_init_attr *a)
{
	if (d->dead)
		return EIO;
	if (a->qp_type != IBV_QPT_RC)
		return EOPNOTSUPP;
	if (!a->send_cq || !a->recv_cq || a->cap.max_send_wr > d->s.max_wr ||
	    a->cap.max_recv_wr > d->s.max_wr ||
	    a->cap.max_send_sge > d->s.qp_sge ||
	    a->cap.max_recv_sge > d->s.max_sge || a->cap.max_inline_data)
		return EINVAL;
	return d->n_qps >= d->s.max_qp ? ENOMEM : 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct fv_ctx *c = fv_ctx_of(pd->context);
	struct fv_qp *qp = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_CREATE_QP);
	if (!rc)
		rc = create_ok(c->dev, a);
	if (rc)
		goto out;
	qp = calloc(1, sizeof(*qp));
	KVS_ASSERT(qp);
	qp->dev = c->dev;
	qp->init = *a;
	qp->ibv.context = pd->context;
	qp->ibv.qp_context = a->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = a->send_cq;
	qp->ibv.recv_cq = a->recv_cq;
	qp->ibv.srq = a->srq;
	qp->ibv.qp_type = a->qp_type;
	qp->ibv.qp_num = c->dev->next_qpn++ & 0xffffff;
	qp->ibv.state = IBV_QPS_RESET;
	qp->attr.qp_state = IBV_QPS_RESET;
	qp->attr.cap = a->cap;
	kvs_list_init(&qp->sq);
	kvs_list_init(&qp->own_rq.posted);
	qp->own_rq.max_wr = a->cap.max_recv_wr;
	qp->own_rq.max_sge = a->cap.max_recv_sge;
	qp->rq = a->srq ? &srq_of(a->srq)->rq : &qp->own_rq;
	if (a->srq)
		srq_of(a->srq)->qps++;
	cq_of(a->send_cq)->qps++;
	cq_of(a->recv_cq)->qps++;
	kvs_container_of(pd, struct fv_pd, ibv)->uses++;
	kvs_list_add_tail(&c->qps, &qp->node);
	kvs_list_add_tail(&c->dev->qps, &qp->on_dev);
	c->dev->n_qps++;
	fv_w.live.qps++;
out:
	fv_unlock();
	if (rc)
		errno = rc;
	return qp ? &qp->ibv : NULL;
}

void fv_qp_free(struct fv_qp *qp)
{
	fv_settle_qp(qp, false);
	fv_qp_unbind(qp);
	while (!kvs_list_empty(&qp->sq)) {
		struct fv_wqe *w = kvs_list_first(&qp->sq, struct fv_wqe, node);

		fv_flight_orphan(w);
		kvs_list_del(&w->node);
		free(w);
	}
	fv_cq_forget_qp(cq_of(qp->ibv.send_cq), qp);
	fv_cq_forget_qp(cq_of(qp->ibv.recv_cq), qp);
	fv_rq_clear(&qp->own_rq);
	fv_async_forget(fv_ctx_of(qp->ibv.context), &qp->ibv);
	if (qp->ibv.srq)
		srq_of(qp->ibv.srq)->qps--;
	cq_of(qp->ibv.send_cq)->qps--;
	cq_of(qp->ibv.recv_cq)->qps--;
	kvs_container_of(qp->ibv.pd, struct fv_pd, ibv)->uses--;
	kvs_list_del(&qp->node);
	kvs_list_del(&qp->on_dev);
	qp->dev->n_qps--;
	fv_w.live.qps--;
	free(qp);
}

/* On rxe what is in hand outlives ERR for a while, and the queue pair too when
 * that was not waited for. */
static void rxe_destroy(struct fv_qp *qp)
{
	bool err = qp->attr.qp_state == IBV_QPS_ERR;

	if (fv_qp_has_windows(qp))
		fv_violation("a queue pair is destroyed with a window bound on "
			     "it: rxe takes 51 s");
	if (!fv_in_hand_qp(qp, false))
		return;
	if (!err)
		fv_violation("a queue pair is destroyed under traffic, not in "
			     "ERR: rxe's counts break");
	if (err && fv_now() - qp->err_at >= RXE_SETTLE)
		fv_settle_qp(qp, true);
	else
		(void)fv_in_hand_qp(qp, true);
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct fv_qp *qp = qp_of(ibqp);
	int rc;

	fv_lock();
	rc = fv_enter(FV_DESTROY_QP);
	if (!rc && !fv_wait_acked(&qp->acked, &qp->given, "ibv_destroy_qp"))
		rc = EBUSY;
	if (!rc) {
		if (qp->dev->s.model == FV_RXE)
			rxe_destroy(qp);
		fv_qp_free(qp);
	}
	fv_unlock();
	return rc;
}

void fv_qp_err(struct fv_qp *qp)
{
	if (qp->attr.qp_state == IBV_QPS_ERR ||
	    qp->attr.qp_state == IBV_QPS_RESET)
		return;
	if (qp->dev->s.model == FV_STRICT)
		fv_settle_qp(qp, false);
	else
		(void)fv_in_hand_qp(qp, true);
	qp->attr.qp_state = IBV_QPS_ERR;
	qp->ibv.state = IBV_QPS_ERR;
	qp->err_at = fv_now();
	flush_sends(qp);
	flush_recvs(qp);
}

static void qp_reset(struct fv_qp *qp)
{
	if (qp->dev->s.model == FV_RXE && fv_in_hand_qp(qp, false))
		fv_violation("a queue pair is reset under traffic");
	fv_settle_qp(qp, false);
	while (!kvs_list_empty(&qp->sq)) {
		struct fv_wqe *w = kvs_list_first(&qp->sq, struct fv_wqe, node);

		fv_flight_orphan(w);
		kvs_list_del(&w->node);
		free(w);
	}
	fv_rq_clear(&qp->own_rq);
	fv_cq_forget_qp(cq_of(qp->ibv.send_cq), qp);
	fv_cq_forget_qp(cq_of(qp->ibv.recv_cq), qp);
	qp->sq_used = 0;
	qp->silent = 0;
	qp->own_rq.used = 0;
	qp->attr.qp_state = IBV_QPS_RESET;
}

#define INIT_MASK \
	(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                        \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | \
	 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                            \
	(IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | \
	 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)

static int to_init(struct fv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	if (qp->attr.qp_state != IBV_QPS_RESET || mask != INIT_MASK ||
	    a->pkey_index || !a->port_num || a->port_num > qp->dev->s.ports)
		return EINVAL;
	qp->attr.port_num = a->port_num;
	qp->attr.qp_access_flags = a->qp_access_flags;
	return 0;
}

static int to_rtr(struct fv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	const struct ibv_ah_attr *av = &a->ah_attr;

	if (qp->attr.qp_state != IBV_QPS_INIT || mask != RTR_MASK ||
	    a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096 ||
	    (128u << a->path_mtu) > qp->dev->s.mtu || a->rq_psn > 0xffffff ||
	    a->max_dest_rd_atomic > qp->dev->s.reads ||
	    av->port_num != qp->attr.port_num)
		return EINVAL;
	if (!qp->dev->s.infiniband && !av->is_global)
		return EINVAL;
	if (av->is_global &&
	    (!av->grh.hop_limit ||
	     !fv_gid_find(qp->dev, av->port_num, av->grh.sgid_index)))
		return EINVAL;
	qp->attr.ah_attr = *av;
	qp->attr.path_mtu = a->path_mtu;
	qp->attr.dest_qp_num = a->dest_qp_num;
	qp->attr.rq_psn = a->rq_psn;
	qp->attr.max_dest_rd_atomic = a->max_dest_rd_atomic;
	qp->attr.min_rnr_timer = a->min_rnr_timer;
	return 0;
}

static int to_rts(struct fv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	if (qp->attr.qp_state != IBV_QPS_RTR || mask != RTS_MASK ||
	    a->timeout > 31 || a->retry_cnt > 7 || a->rnr_retry > 7 ||
	    a->max_rd_atomic > qp->dev->s.reads || a->sq_psn > 0xffffff)
		return EINVAL;
	qp->attr.sq_psn = a->sq_psn;
	qp->attr.timeout = a->timeout;
	qp->attr.retry_cnt = a->retry_cnt;
	qp->attr.rnr_retry = a->rnr_retry;
	qp->attr.max_rd_atomic = a->max_rd_atomic;
	return 0;
}

static int modify(struct fv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	int rc = EINVAL;

	if (!(mask & IBV_QP_STATE))
		return EINVAL;
	switch ((int)a->qp_state) {
	case IBV_QPS_RESET:
		qp_reset(qp);
		rc = 0;
		break;
	case IBV_QPS_INIT:
		rc = to_init(qp, a, mask);
		break;
	case IBV_QPS_RTR:
		rc = to_rtr(qp, a, mask);
		break;
	case IBV_QPS_RTS:
		rc = to_rts(qp, a, mask);
		break;
	case IBV_QPS_ERR:
		if (qp->attr.qp_state == IBV_QPS_RESET)
			return EINVAL;
		fv_qp_err(qp);
		return 0;
	default:
		break;
	}
	if (rc)
		return rc;
	qp->attr.qp_state = a->qp_state;
	qp->ibv.state = a->qp_state;
	/* who sent before this end was ready repeats it */
	if (a->qp_state == IBV_QPS_RTR)
		fv_run_peers(qp);
	return 0;
}

int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct fv_qp *qp = qp_of(ibqp);
	int rc;

	fv_lock();
	rc = fv_enter(FV_MODIFY_QP);
	/* to ERR and RESET a device that has died says yes */
	if (!rc && qp->dev->dead && attr->qp_state != IBV_QPS_ERR &&
	    attr->qp_state != IBV_QPS_RESET)
		rc = EIO;
	if (!rc)
		rc = modify(qp, attr, mask);
	fv_unlock();
	return rc;
}

int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init_attr)
{
	struct fv_qp *qp = qp_of(ibqp);
	int rc;

	(void)mask;
	fv_lock();
	rc = fv_enter(FV_QUERY_QP);
	if (!rc) {
		*attr = qp->attr;
		*init_attr = qp->init;
	}
	fv_unlock();
	return rc;
}
