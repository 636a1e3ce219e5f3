/* SPDX-License-Identifier: Apache-2.0 */
/* See ends.h. */
#include "tests/unit/fake_verbs/ends.h"

#define DEPTH 32

static struct ibv_qp *make_qp(struct end *x)
{
	struct ibv_qp_init_attr init = {
		.send_cq = x->cq,
		.recv_cq = x->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 2,
			.max_recv_sge = 1,
		},
	};
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_qp *qp = ibv_create_qp(x->pd, &init);

	assert_non_null(qp);
	assert_int_equal(ibv_modify_qp(qp, &a,
				       IBV_QP_STATE | IBV_QP_PKEY_INDEX |
					       IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS),
			 0);
	return qp;
}

static void connect_to(struct end *x, struct ibv_qp *qp, struct end *y,
		       struct ibv_qp *peer)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.rq_psn = peer->qp_num & 0xff,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .sgid_index = 3, .hop_limit = 64 },
		},
	};

	(void)x;
	assert_int_equal(ibv_query_gid(y->ctx, 1, 3, &a.ah_attr.grh.dgid), 0);
	assert_int_equal(ibv_modify_qp(qp, &a,
				       IBV_QP_STATE | IBV_QP_AV |
					       IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_MIN_RNR_TIMER),
			 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.sq_psn = qp->qp_num & 0xff,
		.max_rd_atomic = 1,
	};
	assert_int_equal(
		ibv_modify_qp(qp, &a,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC),
		0);
}

static void end_open(struct end *x, struct ibv_device *d)
{
	size_t i;
	void *p = NULL;

	x->ctx = ibv_open_device(d);
	assert_non_null(x->ctx);
	x->pd = ibv_alloc_pd(x->ctx);
	x->chan = ibv_create_comp_channel(x->ctx);
	assert_non_null(x->pd);
	assert_non_null(x->chan);
	x->cq = ibv_create_cq(x->ctx, 4 * DEPTH, x, x->chan, 0);
	assert_non_null(x->cq);
	assert_int_equal(posix_memalign(&p, 4096, MEM), 0);
	x->mem = p;
	for (i = 0; i < MEM; i++)
		x->mem[i] = (unsigned char)(i >> 8 ^ i);
	x->mr = ibv_reg_mr(x->pd, p, MEM, RANGE);
	assert_non_null(x->mr);
	x->qp = make_qp(x);
}

void ends_join(struct ends *e, struct fv_device *d)
{
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	assert_non_null(list);
	e->dev = d;
	end_open(&e->a, list[n - 1]);
	end_open(&e->b, list[n - 1]);
	ibv_free_device_list(list);
	memset(e->b.mem, 0, MEM);
	connect_to(&e->b, e->b.qp, &e->a, e->a.qp);
	connect_to(&e->a, e->a.qp, &e->b, e->b.qp);
}

void ends_start(struct ends *e, enum fv_model model, char windows)
{
	struct fv_spec s = {
		.name = "fake0",
		.model = model,
		.windows = windows,
	};

	memset(e, 0, sizeof(*e));
	fv_begin();
	ends_join(e, fv_device_add(&s));
}

void ends_qps(struct ends *e, struct ibv_qp **ret_a, struct ibv_qp **ret_b)
{
	*ret_a = make_qp(&e->a);
	*ret_b = make_qp(&e->b);
	connect_to(&e->b, *ret_b, &e->a, *ret_a);
	connect_to(&e->a, *ret_a, &e->b, *ret_b);
}

void end_close(struct end *x)
{
	if (x->qp)
		assert_int_equal(ibv_destroy_qp(x->qp), 0);
	assert_int_equal(ibv_destroy_cq(x->cq), 0);
	if (x->mr)
		assert_int_equal(ibv_dereg_mr(x->mr), 0);
	assert_int_equal(ibv_destroy_comp_channel(x->chan), 0);
	assert_int_equal(ibv_dealloc_pd(x->pd), 0);
	assert_int_equal(ibv_close_device(x->ctx), 0);
	free(x->mem);
}

void ends_stop(struct ends *e)
{
	end_close(&e->a);
	end_close(&e->b);
	assert_int_equal(fv_end(), 0);
}

static int post(struct end *x, struct ibv_send_wr *wr, uint32_t off,
		uint32_t len)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)x->mem + off,
		.length = len,
		.lkey = x->mr->lkey,
	};
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	return ibv_post_send(x->qp, wr, &bad);
}

int post_write(struct end *x, uint64_t id, uint32_t off, uint32_t len,
	       uint64_t to, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.wr_id = id,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = to, .rkey = rkey },
	};

	return post(x, &wr, off, len);
}

int post_read(struct end *x, uint64_t id, uint32_t off, uint32_t len,
	      uint64_t from, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.wr_id = id,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { .remote_addr = from, .rkey = rkey },
	};

	return post(x, &wr, off, len);
}

int post_msg(struct end *x, uint64_t id, uint32_t off, uint32_t len)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_SEND };

	return post(x, &wr, off, len);
}

int post_buf(struct end *x, uint64_t id, uint32_t off, uint32_t len)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)x->mem + off,
		.length = len,
		.lkey = x->mr->lkey,
	};
	struct ibv_recv_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
	};
	struct ibv_recv_wr *bad;

	return ibv_post_recv(x->qp, &wr, &bad);
}

enum ibv_wc_status bind_on(struct end *x, struct ibv_qp *qp, struct ibv_mw *mw,
			   uint32_t rkey, uint32_t off, uint32_t len)
{
	struct ibv_send_wr wr = {
		.wr_id = 7000,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = mw,
			.rkey = rkey,
			.bind_info = {
				.mr = x->mr,
				.addr = at(x, off),
				.length = len,
				.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
			},
		},
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
	assert_int_equal(ibv_poll_cq(x->cq, 1, &wc), 1);
	assert_int_equal(wc.wr_id, 7000);
	return wc.status;
}

enum ibv_wc_status invalidate(struct end *x, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.wr_id = 8000,
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = rkey,
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	assert_int_equal(ibv_post_send(x->qp, &wr, &bad), 0);
	assert_int_equal(ibv_poll_cq(x->cq, 1, &wc), 1);
	assert_int_equal(wc.wr_id, 8000);
	return wc.status;
}

void to_err(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
}

void expect_wc(struct end *x, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_poll_cq(x->cq, 1, &wc), 1);
	assert_int_equal(wc.wr_id, id);
	assert_int_equal(wc.status, status);
}

void expect_no_wc(struct end *x)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_poll_cq(x->cq, 1, &wc), 0);
}

uint64_t at(const struct end *x, uint32_t off)
{
	return (uintptr_t)x->mem + off;
}
