/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels: requests are executed in the order of their queue, at once,
 * until one must wait (nobody there, no receive, held). Both sides may be of
 * any devices whose ports and addresses match.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/fake_verbs/internal.h"

static struct fv_cq *cq_of(struct ibv_cq *cq)
{
	return kvs_container_of(cq, struct fv_cq, ibv);
}

/* ---- who is at the other end ---- */

static bool where(const struct fv_qp *qp, struct fv_device **ret)
{
	const struct ibv_ah_attr *av = &qp->attr.ah_attr;
	const struct fv_gid_at *own;
	enum ibv_gid_type type = IBV_GID_TYPE_IB;
	unsigned int port;

	if (av->is_global) {
		own = fv_gid_find(qp->dev, av->port_num, av->grh.sgid_index);
		if (own)
			type = own->type;
		if (!own || !fv_device_by_gid(&av->grh.dgid, ret, &port, &type))
			return false;
	} else if (!fv_device_by_lid(av->dlid, ret, &port)) {
		return false;
	}
	return !(*ret)->dead && !(*ret)->port[port].down;
}

static bool up(const struct fv_qp *qp)
{
	return !qp->dev->dead && !qp->dev->port[qp->attr.port_num].down;
}

static struct fv_qp *qp_find(struct fv_device *d, uint32_t qpn)
{
	struct fv_qp *qp;

	kvs_list_for_each_entry(qp, &d->qps, on_dev)
		if (qp->ibv.qp_num == qpn)
			return qp;
	return NULL;
}

static bool receives(const struct fv_qp *qp)
{
	return qp->attr.qp_state == IBV_QPS_RTR ||
	       qp->attr.qp_state == IBV_QPS_RTS;
}

/* Takes what @src_qpn of @src sends to it. */
static struct fv_qp *responder(struct fv_device *d, uint32_t qpn,
			       const struct fv_device *src, uint32_t src_qpn)
{
	struct fv_qp *qp = qp_find(d, qpn);
	struct fv_device *back;

	if (!qp || !receives(qp) || !up(qp) ||
	    qp->attr.dest_qp_num != src_qpn || !where(qp, &back) || back != src)
		return NULL;
	return qp;
}

static struct fv_qp *peer_of(const struct fv_qp *qp)
{
	struct fv_device *d;
	struct fv_qp *peer;

	if (!up(qp) || !where(qp, &d))
		return NULL;
	peer = responder(d, qp->attr.dest_qp_num, qp->dev, qp->ibv.qp_num);
	if (!peer || peer->attr.path_mtu != qp->attr.path_mtu ||
	    peer->attr.rq_psn != qp->attr.sq_psn)
		return NULL;
	return peer;
}

/* ---- completions of the sender ---- */

static enum ibv_wc_opcode wc_opcode(enum ibv_wr_opcode op)
{
	switch ((int)op) {
	case IBV_WR_RDMA_WRITE:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	default:
		return IBV_WC_SEND;
	}
}

void fv_flight_orphan(struct fv_wqe *w)
{
	if (!w->flight)
		return;
	w->flight->wqe = NULL;
	w->flight->qp = NULL;
	w->flight = NULL;
}

void fv_send_done(struct fv_qp *qp, struct fv_wqe *w, enum ibv_wc_status status)
{
	struct ibv_wc wc = {
		.wr_id = w->wr.wr_id,
		.status = status,
		/* with an error only three fields are valid */
		.opcode = status == IBV_WC_SUCCESS ? wc_opcode(w->wr.opcode)
						   : (enum ibv_wc_opcode)0xff,
	};
	bool tell = status != IBV_WC_SUCCESS || qp->init.sq_sig_all ||
		    w->wr.send_flags & IBV_SEND_SIGNALED;

	fv_flight_orphan(w);
	kvs_list_del(&w->node);
	free(w);
	qp->silent++;
	if (!tell)
		return;
	fv_complete(cq_of(qp->ibv.send_cq), qp, &wc, qp->silent, NULL, false);
	qp->silent = 0;
	if (status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR)
		fv_qp_err(qp);
}

/* What came was refused at @peer; the sender's own completion comes first, as
 * the two may be one. */
static void refused(struct fv_qp *peer)
{
	struct ibv_async_event e = {
		.element.qp = &peer->ibv,
		.event_type = IBV_EVENT_QP_ACCESS_ERR,
	};

	fv_w.counts.refused++;
	if (peer->dev->s.model == FV_STRICT)
		fv_async(fv_ctx_of(peer->ibv.context), &e);
	fv_qp_err(peer);
}

/* ---- payloads ---- */

static uint64_t wqe_len(const struct fv_wqe *w)
{
	uint64_t n = 0;
	int i;

	for (i = 0; i < w->wr.num_sge; i++)
		n += w->sge[i].length;
	return n;
}

static bool sges_ok(const struct fv_qp *qp, const struct ibv_sge *sge, int n,
		    unsigned int access)
{
	int i;

	for (i = 0; i < n; i++)
		if (sge[i].length &&
		    !fv_local_ok(qp->dev, qp->ibv.pd, sge[i].lkey, sge[i].addr,
				 sge[i].length, access))
			return false;
	return true;
}

static void gather(const struct fv_device *d, const struct fv_wqe *w,
		   unsigned char *to)
{
	int i;

	for (i = 0; i < w->wr.num_sge; i++) {
		if (!w->sge[i].length)
			continue;
		fv_move(to, fv_local_at(d, w->sge[i].lkey, w->sge[i].addr),
			w->sge[i].length);
		to += w->sge[i].length;
	}
}

static void scatter(const struct ibv_sge *sge, int n, const unsigned char *from,
		    uint64_t len)
{
	int i;

	for (i = 0; i < n && len; i++) {
		uint64_t part = sge[i].length < len ? sge[i].length : len;

		fv_move((void *)(uintptr_t)sge[i].addr, from, part);
		from += part;
		len -= part;
	}
}

/* ---- flights ---- */

static struct fv_flight *launch(struct fv_qp *qp, struct fv_wqe *w)
{
	uint64_t len = wqe_len(w);
	struct fv_flight *f = calloc(1, sizeof(*f) + len);
	struct fv_device *d = NULL;

	KVS_ASSERT(f);
	KVS_ASSERT(where(qp, &d));
	f->src = qp->dev;
	f->src_qpn = qp->ibv.qp_num;
	f->dst = d;
	f->dst_qpn = qp->attr.dest_qp_num;
	f->wqe = w;
	f->qp = qp;
	f->addr = w->wr.wr.rdma.remote_addr;
	f->rkey = w->wr.wr.rdma.rkey;
	f->mtu = 128u << qp->attr.path_mtu;
	f->len = len;
	gather(qp->dev, w, f->data);
	w->flight = f;
	kvs_list_init(&f->node);
	return f;
}

static void flight_end(struct fv_flight *f)
{
	if (f->wqe)
		f->wqe->flight = NULL;
	kvs_list_del(&f->node);
	free(f);
}

static uint64_t place(struct fv_flight *f)
{
	uint64_t n = f->in_hand;

	if (!n)
		return 0;
	fv_move((unsigned char *)f->in_mr->ibv.addr +
			(f->addr + f->at - f->in_mr->iova),
		f->data + f->at, n);
	f->at += n;
	f->in_hand = 0;
	if (f->in_late)
		fv_w.counts.late += n;
	f->in_late = false;
	f->in_mr = NULL;
	f->in_mw = NULL;
	fv_w.counts.write_bytes += n;
	return n;
}

static struct fv_qp *flight_peer(const struct fv_flight *f)
{
	return responder(f->dst, f->dst_qpn, f->src, f->src_qpn);
}

/* The next packet, or @most bytes of it. Return: 0, -EACCES, -ENOTCONN. */
static int take(struct fv_flight *f, uint64_t most)
{
	struct fv_qp *peer = flight_peer(f);
	uint64_t n = f->mtu - f->at % f->mtu;
	unsigned char *p;

	if (!peer) {
		fv_w.counts.dropped++;
		return -ENOTCONN;
	}
	/* the first packet says how long the whole is */
	if (!fv_remote_ok(peer, f->rkey, f->addr + f->at, f->len - f->at,
			  IBV_ACCESS_REMOTE_WRITE, &f->in_mr, &f->in_mw, &p))
		return -EACCES;
	n = n < most ? n : most;
	f->in_hand = n < f->len - f->at ? n : f->len - f->at;
	return 0;
}

/* It was refused, nobody is there, or it is over. */
static void flight_over(struct fv_flight *f, int rc)
{
	struct fv_qp *peer = rc == -EACCES ? flight_peer(f) : NULL;
	struct fv_wqe *w = f->wqe;
	struct fv_qp *qp = f->qp;

	flight_end(f);
	if (!rc)
		fv_w.counts.writes++;
	/* without an answer it still waits */
	if (w && rc != -ENOTCONN)
		fv_send_done(qp, w,
			     rc ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
	if (peer)
		refused(peer);
}

/* Return: as fv_land(); @f is gone when it has an error or is complete. */
static int land(struct fv_flight *f, uint64_t bytes)
{
	uint64_t n;
	int rc = 0;

	n = place(f);
	bytes -= n < bytes ? n : bytes;
	while (!rc && f->at < f->len && bytes) {
		rc = take(f, bytes);
		if (!rc)
			bytes -= place(f);
	}
	if (rc || f->at == f->len)
		flight_over(f, rc);
	return rc;
}

#define for_each_in_hand(f)                             \
	kvs_list_for_each_entry(f, &fv_w.flights, node) \
		if ((f)->in_hand)

void fv_settle_mr(struct fv_mr *mr)
{
	struct fv_flight *f;

	for_each_in_hand(f) if (f->in_mr == mr)(void) place(f);
}

void fv_settle_mw(struct fv_mw *mw)
{
	struct fv_flight *f;

	for_each_in_hand(f) if (f->in_mw == mw)(void) place(f);
}

void fv_in_hand_mw(const struct fv_mw *mw)
{
	struct fv_flight *f;

	for_each_in_hand(f) if (f->in_mw == mw)
	{
		f->in_late = true;
		f->in_mw = NULL;
	}
}

void fv_settle_qp(const struct fv_qp *qp, bool late)
{
	struct fv_flight *f;

	for_each_in_hand(f) if (f->dst == qp->dev &&
				f->dst_qpn == qp->ibv.qp_num &&
				(late || !f->in_late))(void) place(f);
}

bool fv_in_hand_qp(const struct fv_qp *qp, bool late)
{
	struct fv_flight *f;
	bool any = false;

	for_each_in_hand(f) if (f->dst == qp->dev &&
				f->dst_qpn == qp->ibv.qp_num)
	{
		any = true;
		f->in_late |= late;
	}
	return any;
}

/* ---- execution ---- */

/* Return: may the next request go on. */
static bool run_write(struct fv_qp *qp, struct fv_wqe *w)
{
	struct fv_flight *f;

	if (wqe_len(w) > qp->dev->s.max_msg) {
		fv_send_done(qp, w, IBV_WC_LOC_LEN_ERR);
		return false;
	}
	if (!sges_ok(qp, w->sge, w->wr.num_sge, 0)) {
		fv_send_done(qp, w, IBV_WC_LOC_PROT_ERR);
		return false;
	}
	f = launch(qp, w);
	if (fv_w.hold_times && f->len && !--fv_w.hold_nth) {
		fv_w.hold_times--;
		fv_w.hold_nth = 1;
		fv_w.counts.held++;
		kvs_list_add_tail(&fv_w.flights, &f->node);
		return false;
	}
	return !land(f, UINT64_MAX);
}

static bool run_read(struct fv_qp *qp, struct fv_wqe *w, struct fv_qp *peer)
{
	uint64_t len = wqe_len(w);
	struct fv_mr *mr;
	struct fv_mw *mw;
	unsigned char *p;

	if (!qp->attr.max_rd_atomic || !peer->attr.max_dest_rd_atomic ||
	    len > qp->dev->s.max_msg) {
		fv_send_done(qp, w, IBV_WC_LOC_QP_OP_ERR);
		return false;
	}
	if (!sges_ok(qp, w->sge, w->wr.num_sge, IBV_ACCESS_LOCAL_WRITE)) {
		fv_send_done(qp, w, IBV_WC_LOC_PROT_ERR);
		return false;
	}
	if (len &&
	    !fv_remote_ok(peer, w->wr.wr.rdma.rkey, w->wr.wr.rdma.remote_addr,
			  len, IBV_ACCESS_REMOTE_READ, &mr, &mw, &p)) {
		fv_send_done(qp, w, IBV_WC_REM_ACCESS_ERR);
		refused(peer);
		return false;
	}
	if (len)
		scatter(w->sge, w->wr.num_sge, p, len);
	fv_w.counts.reads++;
	fv_send_done(qp, w, IBV_WC_SUCCESS);
	return true;
}

static void recv_done(struct fv_qp *peer, const struct fv_recv *r,
		      const struct fv_wqe *w, enum ibv_wc_status status)
{
	struct ibv_wc wc = {
		.wr_id = r->wr_id,
		.status = status,
		.opcode = IBV_WC_RECV,
		.byte_len = (uint32_t)wqe_len(w),
		.src_qp = peer->attr.dest_qp_num,
	};

	if (w->wr.opcode == IBV_WR_SEND_WITH_INV) {
		wc.wc_flags = IBV_WC_WITH_INV;
		wc.invalidated_rkey = w->wr.invalidate_rkey;
	}
	fv_complete(cq_of(peer->ibv.recv_cq), peer, &wc, 0, peer->rq,
		    w->wr.send_flags & IBV_SEND_SOLICITED);
}

static bool run_send(struct fv_qp *qp, struct fv_wqe *w, struct fv_qp *peer)
{
	enum ibv_wc_status here = IBV_WC_SUCCESS, there = IBV_WC_SUCCESS;
	uint64_t len = wqe_len(w), room = 0;
	unsigned char *buf;
	struct fv_recv *r;
	int i;

	if (!sges_ok(qp, w->sge, w->wr.num_sge, 0)) {
		fv_send_done(qp, w, IBV_WC_LOC_PROT_ERR);
		return false;
	}
	if (kvs_list_empty(&peer->rq->posted)) {
		fv_w.counts.rnr += !w->rnr;
		w->rnr = true;
		if (qp->attr.rnr_retry == 7)
			return false; /* repeated until there is one */
		fv_send_done(qp, w, IBV_WC_RNR_RETRY_EXC_ERR);
		return false;
	}
	r = kvs_list_first(&peer->rq->posted, struct fv_recv, node);
	kvs_list_del(&r->node);
	for (i = 0; i < r->n; i++)
		room += r->sge[i].length;
	if (len > room) {
		there = IBV_WC_LOC_LEN_ERR;
		here = IBV_WC_REM_INV_REQ_ERR;
	} else if (!sges_ok(peer, r->sge, r->n, IBV_ACCESS_LOCAL_WRITE)) {
		there = IBV_WC_LOC_PROT_ERR;
		here = IBV_WC_REM_OP_ERR;
	} else if (w->wr.opcode == IBV_WR_SEND_WITH_INV &&
		   fv_invalidate(peer, w->wr.invalidate_rkey)) {
		there = IBV_WC_LOC_QP_OP_ERR;
		here = IBV_WC_REM_ACCESS_ERR;
	} else {
		buf = malloc(len + 1);
		KVS_ASSERT(buf);
		gather(qp->dev, w, buf);
		scatter(r->sge, r->n, buf, len);
		free(buf);
		fv_w.counts.sends++;
	}
	recv_done(peer, r, w, there);
	free(r);
	fv_send_done(qp, w, here);
	if (there)
		fv_qp_err(peer);
	return !here;
}

static bool run_one(struct fv_qp *qp, struct fv_wqe *w)
{
	struct fv_qp *peer;

	switch ((int)w->wr.opcode) {
	case IBV_WR_BIND_MW:
		fv_send_done(qp, w, fv_bind(qp, &w->wr));
		return qp->attr.qp_state == IBV_QPS_RTS;
	case IBV_WR_LOCAL_INV:
		fv_send_done(qp, w, fv_invalidate(qp, w->wr.invalidate_rkey));
		return qp->attr.qp_state == IBV_QPS_RTS;
	default:
		break;
	}
	peer = peer_of(qp);
	if (!peer)
		return false;
	switch ((int)w->wr.opcode) {
	case IBV_WR_RDMA_WRITE:
		return run_write(qp, w);
	case IBV_WR_RDMA_READ:
		return run_read(qp, w, peer);
	default:
		return run_send(qp, w, peer);
	}
}

void fv_run(struct fv_qp *qp)
{
	struct fv_wqe *w;
	bool on = !qp->running;

	if (!on)
		return;
	qp->running = true;
	while (on && qp->attr.qp_state == IBV_QPS_RTS &&
	       !kvs_list_empty(&qp->sq)) {
		w = kvs_list_first(&qp->sq, struct fv_wqe, node);
		on = !w->flight && run_one(qp, w);
	}
	qp->running = false;
}

void fv_run_peers(struct fv_qp *qp)
{
	struct fv_device *d;
	struct fv_qp *peer;

	if (!receives(qp) || !where(qp, &d))
		return;
	peer = qp_find(d, qp->attr.dest_qp_num);
	if (peer)
		fv_run(peer);
}

void fv_run_all(void)
{
	struct fv_device *d;
	struct fv_qp *qp;

	kvs_list_for_each_entry(d, &fv_w.devices, node)
		kvs_list_for_each_entry(qp, &d->qps, on_dev)
			fv_run(qp);
}

void fv_retries_expire(void)
{
	struct fv_device *d;
	struct fv_wqe *w;
	struct fv_qp *qp;

	fv_lock();
	kvs_list_for_each_entry(d, &fv_w.devices, node) {
		kvs_list_for_each_entry(qp, &d->qps, on_dev) {
			if (qp->attr.qp_state != IBV_QPS_RTS ||
			    kvs_list_empty(&qp->sq))
				continue;
			w = kvs_list_first(&qp->sq, struct fv_wqe, node);
			if (!w->flight && !peer_of(qp))
				fv_send_done(qp, w, IBV_WC_RETRY_EXC_ERR);
		}
	}
	fv_unlock();
}

/* ---- held writes ---- */

unsigned int fv_held(void)
{
	struct fv_flight *f;
	unsigned int n = 0;

	fv_lock();
	kvs_list_for_each_entry(f, &fv_w.flights, node)
		n++;
	fv_unlock();
	return n;
}

struct fv_flight *fv_flight(unsigned int i)
{
	struct fv_flight *f, *found = NULL;

	fv_lock();
	kvs_list_for_each_entry(f, &fv_w.flights, node)
		if (!i--) {
			found = f;
			break;
		}
	fv_unlock();
	return found;
}

uint64_t fv_flight_len(const struct fv_flight *f)
{
	return f->len;
}

uint64_t fv_flight_at(const struct fv_flight *f)
{
	uint64_t at;

	fv_lock();
	at = f->at;
	fv_unlock();
	return at;
}

int fv_land(struct fv_flight *f, uint64_t bytes)
{
	struct fv_device *src;
	uint32_t qpn;
	struct fv_qp *qp;
	int rc;

	fv_lock();
	src = f->src;
	qpn = f->src_qpn;
	rc = land(f, bytes);
	qp = qp_find(src, qpn);
	if (qp)
		fv_run(qp);
	fv_unlock();
	return rc;
}

int fv_take(struct fv_flight *f)
{
	int rc = 0;

	fv_lock();
	if (!f->in_hand) {
		rc = take(f, UINT64_MAX);
		if (rc)
			flight_over(f, rc);
	}
	fv_unlock();
	return rc;
}

uint64_t fv_place(struct fv_flight *f)
{
	uint64_t n;

	fv_lock();
	n = place(f);
	fv_unlock();
	return n;
}

void fv_force(struct fv_flight *f, uint64_t off, uint64_t n)
{
	fv_lock();
	KVS_ASSERT(off <= f->len && n <= f->len - off);
	fv_move((void *)(uintptr_t)(f->addr + off), f->data + off, n);
	fv_unlock();
}

void fv_drop(struct fv_flight *f)
{
	fv_lock();
	fv_w.counts.dropped++;
	flight_end(f);
	fv_unlock();
}
