/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pair of a connection: made, connected, destroyed. All of this may
 * block and runs as jobs of the connection. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/random.h"
#include "rdma/verbs_internal.h"

#define READS_MAX 16

/* 4.096 us << 16 = 268 ms, eight times: some 2 s until a peer that does not
 * answer is given up. A dead process is seen earlier, by its TCP connection. */
#define TIMEOUT 16
#define RETRIES 7
#define RNR_RETRIES 7 /* for ever; the credits keep it from happening */
#define RNR_TIMER 12 /* 0.64 ms */
#define HOPS 64

static_assert(KVS_VERBS_SLOTS <= KVS_VERBS_SLOTS_MAX, "credits fit a blob");

static int neg_errno(void)
{
	return errno ? -errno : -EIO;
}

int kvs_verbs_post_recv(struct kvs_verbs_conn *vc, uint32_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)vc->buf + (uint64_t)slot * KVS_VERBS_MSG,
		.length = KVS_VERBS_MSG,
		.lkey = vc->mr->lkey,
	};
	struct ibv_recv_wr wr = {
		.wr_id = KVS_VERBS_WR_RECV | slot,
		.sg_list = &sge,
		.num_sge = 1,
	};
	struct ibv_recv_wr *bad;
	int rc = ibv_post_recv(vc->qp, &wr, &bad);

	if (rc)
		return -rc;
	vc->recvs++;
	return 0;
}

static uint8_t reads(int device)
{
	return device < 0	    ? 0
	       : device > READS_MAX ? READS_MAX
				    : (uint8_t)device;
}

/* What writes and reads of the other side may come in by it. */
static unsigned int access_of(const struct kvs_verbs_conn *vc)
{
	if (!vc->own)
		return 0;
	if (vc->dev->grant != KVS_VERBS_GRANT_QP)
		return IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	return vc->parent ? (unsigned int)vc->access : 0;
}

static int to_init(struct kvs_verbs_conn *vc)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = vc->dev->port,
		.qp_access_flags = access_of(vc),
	};
	int rc = ibv_modify_qp(vc->qp, &a,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS);

	return -rc;
}

static int make_qp(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_dev *d = vc->dev;
	struct ibv_qp_init_attr a = {
		.qp_context = vc,
		.send_cq = vc->cq,
		.recv_cq = vc->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = d->sq,
			.max_recv_wr = d->recvs,
			.max_send_sge = d->max_sge,
			.max_recv_sge = 1,
		},
	};

	vc->qp = ibv_create_qp(vc->pd, &a);
	/* what fits depends on how the driver lays out a request */
	while (!vc->qp && a.cap.max_send_sge > 1 &&
	       (errno == EINVAL || errno == ENOMEM)) {
		a.cap.max_send_sge /= 2;
		vc->qp = ibv_create_qp(vc->pd, &a);
	}
	if (!vc->qp)
		return neg_errno();
	vc->max_sge = a.cap.max_send_sge < d->max_sge ? a.cap.max_send_sge
						      : d->max_sge;
	return 0;
}

int kvs_verbs_qp_make(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_dev *d = vc->dev;
	size_t bytes = (size_t)(d->recvs + KVS_VERBS_SENDS) * KVS_VERBS_MSG;
	void *buf;
	uint32_t i;
	int rc;

	rc = kvs_verbs_mem_use(d);
	if (rc)
		return rc;
	rc = kvs_random_fill(&vc->psn, sizeof(vc->psn));
	if (rc)
		return rc;
	vc->psn &= 0xffffff;
	if (posix_memalign(&buf, 4096, bytes))
		return -ENOMEM;
	vc->buf = buf;
	memset(buf, 0, bytes);
	vc->sq = calloc(d->sq, sizeof(*vc->sq));
	if (!vc->sq)
		return -ENOMEM;
	vc->mr = ibv_reg_mr(vc->pd, buf, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!vc->mr)
		return neg_errno();
	vc->cq = ibv_create_cq(d->ctx, (int)(d->sq + d->recvs + 1), vc, d->chan,
			       0);
	if (!vc->cq)
		return neg_errno();
	rc = make_qp(vc);
	if (!rc)
		rc = to_init(vc);
	for (i = 0; i < d->recvs && !rc; i++)
		rc = kvs_verbs_post_recv(vc, i);
	return rc;
}

void kvs_verbs_qp_blob(const struct kvs_verbs_conn *vc,
		       enum kvs_verbs_what what, struct kvs_verbs_blob *ret)
{
	const struct kvs_verbs_dev *d = vc->dev;

	*ret = (struct kvs_verbs_blob){
		.what = what,
		.link = d->link,
		.mtu = (uint8_t)d->mtu,
		.lid = d->pattr.lid,
		.qpn = vc->qp->qp_num,
		.psn = vc->psn,
		.slots = (uint16_t)kvs_verbs_slots(d),
		.msg = KVS_VERBS_MSG,
		.rd_in = reads(d->attr.max_qp_rd_atom),
		.rd_out = reads(d->attr.max_qp_init_rd_atom),
		.number = vc->number,
	};
	memcpy(ret->gid, vc->gid.raw, sizeof(ret->gid));
}

static int to_rtr(struct kvs_verbs_conn *vc)
{
	const struct kvs_verbs_dev *d = vc->dev;
	const struct kvs_verbs_blob *far = &vc->far;
	uint8_t in = reads(d->attr.max_qp_rd_atom);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = far->mtu < d->mtu ? (enum ibv_mtu)far->mtu
					      : d->mtu,
		.dest_qp_num = far->qpn,
		.rq_psn = far->psn,
		.max_dest_rd_atomic = far->rd_out < in ? far->rd_out : in,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = {
			.dlid = far->lid,
			.port_num = d->port,
		},
	};
	int rc;

	if (d->link != KVS_VERBS_INFINIBAND || !far->lid ||
	    d->pattr.flags & IBV_QPF_GRH_REQUIRED) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh.sgid_index = (uint8_t)vc->gid_index;
		a.ah_attr.grh.hop_limit = HOPS;
		memcpy(a.ah_attr.grh.dgid.raw, far->gid, sizeof(far->gid));
	}
	rc = ibv_modify_qp(vc->qp, &a,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC |
				   IBV_QP_MIN_RNR_TIMER);
	return -rc;
}

int kvs_verbs_qp_link(struct kvs_verbs_conn *vc)
{
	uint8_t out = reads(vc->dev->attr.max_qp_init_rd_atom);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTS,
		.timeout = TIMEOUT,
		.retry_cnt = RETRIES,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = vc->psn,
		.max_rd_atomic = vc->far.rd_in < out ? vc->far.rd_in : out,
	};
	int rc = to_rtr(vc);

	if (rc)
		return rc;
	rc = ibv_modify_qp(vc->qp, &a,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC);
	return -rc;
}

int kvs_verbs_qp_err(struct kvs_verbs_conn *vc)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	return -ibv_modify_qp(vc->qp, &a, IBV_QP_STATE);
}

bool kvs_verbs_qp_drained(const struct kvs_verbs_conn *vc)
{
	return !vc->recvs && vc->completed == vc->posted;
}

void kvs_verbs_qp_free(struct kvs_verbs_conn *vc)
{
	free(vc->buf);
	free(vc->sq);
	free(vc->stage);
	vc->buf = NULL;
	vc->sq = NULL;
	vc->stage = NULL;
}

/*
 * Never by way of RESET: that drops requests without a completion, and on a
 * soft device races with what is being placed.
 */
int kvs_verbs_qp_destroy(struct kvs_verbs_conn *vc)
{
	int rc;

	/* first, or a soft device waits a minute for them */
	rc = kvs_verbs_windows_drop(vc);
	if (rc)
		return rc;
	if (vc->qp) {
		rc = ibv_destroy_qp(vc->qp);
		if (rc)
			return -rc;
		vc->qp = NULL;
	}
	/* nothing below is reachable from outside any more */
	if (vc->cq)
		(void)ibv_destroy_cq(vc->cq);
	if (vc->mr)
		(void)ibv_dereg_mr(vc->mr);
	if (vc->stage_mr)
		(void)ibv_dereg_mr(vc->stage_mr);
	vc->cq = NULL;
	vc->mr = NULL;
	vc->stage_mr = NULL;
	kvs_verbs_qp_free(vc);
	return 0;
}
