/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes out: frames as messages from a registered area, writes and reads
 * as work requests over the caller's memory. One queue, in order.
 *
 * Every message but one that only carries credits takes a credit. A request
 * is signalled when it is the last of an operation, and now and then between,
 * so that the queue empties.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "rdma/verbs_internal.h"

#define SIGNAL_EVERY 16 /* less than any queue is long */
#define SPARE_WR 2 /* for a message that carries credits, and the mark */

static unsigned char *send_buf(const struct kvs_verbs_conn *vc, uint32_t i)
{
	return vc->buf + ((size_t)vc->dev->recvs + i) * KVS_VERBS_MSG;
}

static uint32_t sq_free(const struct kvs_verbs_conn *vc)
{
	return vc->dev->sq - (uint32_t)(vc->posted - vc->completed);
}

static void op_done(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op,
		    int status)
{
	struct kvs_verbs *vt = kvs_verbs_of(vc->c.t);
	struct kvs_conn *c = &kvs_verbs_face(vc)->c;

	kvs_list_del(&op->node);
	vt->handled++;
	if (op->mr)
		(void)ibv_dereg_mr(op->mr);
	if (op->type == KVS_VERBS_OP_FRAME)
		vc->ops_bytes -= op->frame_len;
	switch (op->type) {
	case KVS_VERBS_OP_FRAME:
	case KVS_VERBS_OP_TX:
		if (op->tx)
			op->tx->done(c, op->tx, status);
		break;
	case KVS_VERBS_OP_READ:
		op->rd->done(c, op->rd, status);
		break;
	case KVS_VERBS_OP_BIND:
		kvs_verbs_window_bound(op->vg, status);
		break;
	case KVS_VERBS_OP_INV:
		kvs_verbs_window_invalidated(op->vg, status);
		break;
	}
	free(op);
}

void kvs_verbs_sent(struct kvs_verbs_conn *vc, uint64_t seq, int status)
{
	struct kvs_verbs_op *op;

	while (vc->completed < seq) {
		const struct kvs_verbs_wr *w;

		vc->completed++;
		w = &vc->sq[vc->completed % vc->dev->sq];
		vc->stage_tail += w->stage;
		if (!w->msg)
			continue;
		vc->sends--;
		vc->msgs_out += !status;
	}
	while (!kvs_list_empty(&vc->flying)) {
		op = kvs_list_first(&vc->flying, struct kvs_verbs_op, node);
		if (op->last > vc->completed)
			return;
		op_done(vc, op, status);
	}
}

void kvs_verbs_fail_ops(struct kvs_verbs_conn *vc, int status)
{
	struct kvs_list all;

	kvs_list_init(&all);
	kvs_list_splice_tail(&all, &vc->flying);
	kvs_list_splice_tail(&all, &vc->ops);
	while (!kvs_list_empty(&all))
		op_done(vc, kvs_list_first(&all, struct kvs_verbs_op, node),
			status);
}

void kvs_verbs_fail_grant_ops(struct kvs_verbs_conn *vc, int status)
{
	struct kvs_list *queue[] = { &vc->flying, &vc->ops };
	struct kvs_verbs_op *op, *tmp;
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(queue); i++)
		kvs_list_for_each_entry_safe(op, tmp, queue[i], node)
			if (op->vg)
				op_done(vc, op, status);
}

/* ---- posting ---- */

/* @wr is the next of the queue. Return: 0, or the connection dies. */
static int post(struct kvs_verbs_conn *vc, struct ibv_send_wr *wr, bool last,
		uint32_t stage, bool msg)
{
	struct ibv_send_wr *bad;
	uint64_t seq = vc->posted + 1;
	int rc;

	wr->wr_id = seq;
	if (last || stage || ++vc->since_signal >= SIGNAL_EVERY) {
		wr->send_flags |= IBV_SEND_SIGNALED;
		vc->since_signal = 0;
	}
	rc = ibv_post_send(vc->qp, wr, &bad);
	if (rc) {
		kvs_verbs_die(vc, -rc, false);
		return -rc;
	}
	vc->posted = seq;
	vc->sq[seq % vc->dev->sq] = (struct kvs_verbs_wr){
		.stage = stage,
		.msg = msg,
	};
	return 0;
}

static int post_msg(struct kvs_verbs_conn *vc, enum kvs_verbs_msg_type type,
		    const unsigned char *body, uint32_t len)
{
	struct kvs_verbs_msg m = {
		.type = type,
		.len = len,
		.credits = vc->owed,
	};
	unsigned char *p = send_buf(vc, vc->send_next);
	struct ibv_sge sge = {
		.addr = (uintptr_t)p,
		.length = KVS_VERBS_MSG_HEAD + len,
		.lkey = vc->mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
	};
	int rc;

	kvs_verbs_msg_encode(&m, p);
	if (len)
		memcpy(p + KVS_VERBS_MSG_HEAD, body, len);
	rc = post(vc, &wr, true, 0, true);
	if (rc)
		return rc;
	vc->owed = 0;
	vc->sends++;
	vc->send_next = (vc->send_next + 1) % KVS_VERBS_SENDS;
	kvs_verbs_of(vc->c.t)->counts.msgs_out++;
	return 0;
}

/* Return: true when the whole frame is out. */
static bool post_frame(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op,
		       const unsigned char *frame, uint32_t len)
{
	while (op->frame_at < len) {
		uint32_t n = len - op->frame_at;

		if (!vc->credits || vc->sends >= KVS_VERBS_SENDS - 1 ||
		    sq_free(vc) <= SPARE_WR)
			return false;
		if (n > vc->msg_max - KVS_VERBS_MSG_HEAD)
			n = vc->msg_max - KVS_VERBS_MSG_HEAD;
		if (post_msg(vc, KVS_VERBS_MSG_FRAME, frame + op->frame_at, n))
			return false;
		vc->credits--;
		op->frame_at += n;
	}
	return true;
}

/* ---- sources ---- */

/* Room for up to @len bytes in the area for what is not registered. */
static uint32_t stage_room(struct kvs_verbs_conn *vc, uint64_t len,
			   unsigned char **ret)
{
	uint64_t at = vc->stage_head % KVS_VERBS_STAGE;
	uint64_t room = KVS_VERBS_STAGE - (vc->stage_head - vc->stage_tail);
	void *p;

	if (!vc->stage_mr) {
		if (posix_memalign(&p, 4096, KVS_VERBS_STAGE))
			return 0;
		vc->stage_mr = ibv_reg_mr(vc->pd, p, KVS_VERBS_STAGE,
					  IBV_ACCESS_LOCAL_WRITE);
		if (!vc->stage_mr) {
			free(p);
			kvs_verbs_die(vc, -ENOMEM, false);
			return 0;
		}
		vc->stage = p;
	}
	if (room > KVS_VERBS_STAGE - at)
		room = KVS_VERBS_STAGE - at;
	if (room > KVS_VERBS_STAGE_PIECE)
		room = KVS_VERBS_STAGE_PIECE;
	if (room > len)
		room = len;
	*ret = vc->stage + at;
	return (uint32_t)room;
}

/* One piece of the source as a scatter element. Return: bytes, 0: wait. */
static uint32_t source(struct kvs_verbs_conn *vc, const void *p, uint64_t len,
		       struct ibv_sge *ret, uint32_t *stage)
{
	struct kvs_verbs *vt = kvs_verbs_of(vc->c.t);
	struct ibv_mr *mr = NULL;
	unsigned char *copy;
	uint64_t n = 0;

	/* registrations are of the domain without an owner */
	if (vc->pd == vc->dev->pd)
		n = kvs_verbs_mem_find(vt, vc->dev, p, len, &mr);
	if (n) {
		ret->addr = (uintptr_t)p;
		ret->lkey = mr->lkey;
	} else {
		n = stage_room(vc, len, &copy);
		if (!n)
			return 0;
		memcpy(copy, p, n);
		ret->addr = (uintptr_t)copy;
		ret->lkey = vc->stage_mr->lkey;
		vc->stage_head += n;
		*stage += (uint32_t)n;
		vt->counts.staged_bytes += n;
	}
	ret->length = (uint32_t)n;
	return (uint32_t)n;
}

/* A key's address without the number of its branch. */
static uint64_t place(uint64_t addr)
{
	return addr & ((1ull << KVS_VERBS_BRANCH_SHIFT) - 1);
}

/* The next request of a write. Return: false when it must wait. */
static bool post_piece(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op)
{
	struct kvs_verbs *vt = kvs_verbs_of(vc->c.t);
	struct kvs_tx *tx = op->tx;
	struct ibv_sge sge[KVS_VERBS_SGE];
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = {
			.remote_addr = place(tx->remote.addr) + op->at,
			.rkey = tx->remote.rkey,
		},
	};
	uint32_t stage = 0;
	uint32_t total = 0;
	uint32_t n;

	while (op->piece < tx->n_iov && total < vc->dev->max_wr &&
	       (uint32_t)wr.num_sge < vc->max_sge) {
		const struct iovec *v = &tx->iov[op->piece];
		uint64_t left = v->iov_len - op->piece_off;

		if (left > vc->dev->max_wr - total)
			left = vc->dev->max_wr - total;
		if (left) {
			n = source(vc,
				   (const char *)v->iov_base + op->piece_off,
				   left, &sge[wr.num_sge], &stage);
			if (!n)
				break;
			wr.num_sge++;
			total += n;
			op->piece_off += n;
		}
		if (op->piece_off == v->iov_len) {
			op->piece++;
			op->piece_off = 0;
		}
	}
	if (!total)
		return false;
	if (post(vc, &wr, false, stage, false))
		return false;
	op->at += total;
	vt->counts.writes++;
	vt->counts.write_bytes += total;
	vt->t.stats.tx_bytes += total;
	return true;
}

static bool post_tx(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op)
{
	while (op->at < op->len)
		if (sq_free(vc) <= SPARE_WR || !post_piece(vc, op))
			return false;
	return post_frame(vc, op, op->tx->frame, KVS_DATA_FRAME);
}

static bool post_read(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op)
{
	struct kvs_verbs *vt = kvs_verbs_of(vc->c.t);
	struct kvs_read *rd = op->rd;
	struct ibv_mr *mr = NULL;
	struct ibv_sge sge;
	uint64_t n;

	if (!op->mr && (vc->pd != vc->dev->pd ||
			kvs_verbs_mem_find(vt, vc->dev, rd->addr, rd->len,
					   &mr) != rd->len)) {
		op->mr = ibv_reg_mr(vc->pd, rd->addr, rd->len,
				    IBV_ACCESS_LOCAL_WRITE);
		if (!op->mr) {
			kvs_verbs_die(vc, errno ? -errno : -ENOMEM, false);
			return false;
		}
	}
	while (op->at < op->len) {
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.wr.rdma = {
				.remote_addr = place(rd->remote.addr) + op->at,
				.rkey = rd->remote.rkey,
			},
		};

		if (sq_free(vc) <= SPARE_WR)
			return false;
		n = op->len - op->at;
		if (n > vc->dev->max_wr)
			n = vc->dev->max_wr;
		sge.addr = (uintptr_t)rd->addr + op->at;
		sge.length = (uint32_t)n;
		sge.lkey = (op->mr ? op->mr : mr)->lkey;
		if (post(vc, &wr, op->at + n == op->len, 0, false))
			return false;
		op->at += n;
		vt->t.stats.rx_bytes += n;
	}
	return true;
}

static bool post_windows(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op)
{
	while (op->at < op->len) {
		struct ibv_send_wr wr = { 0 };

		if (sq_free(vc) <= SPARE_WR)
			return false;
		kvs_verbs_window_wr(vc, op, &wr);
		if (post(vc, &wr, op->at + 1 == op->len, 0, false))
			return false;
		op->at++;
	}
	return true;
}

static bool post_op(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op)
{
	switch (op->type) {
	case KVS_VERBS_OP_FRAME:
		return post_frame(vc, op, op->tx ? op->tx->frame : op->data,
				  op->frame_len);
	case KVS_VERBS_OP_TX:
		return post_tx(vc, op);
	case KVS_VERBS_OP_READ:
		return post_read(vc, op);
	case KVS_VERBS_OP_BIND:
	case KVS_VERBS_OP_INV:
		return post_windows(vc, op);
	}
	return false;
}

void kvs_verbs_pump(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_op *op;

	while ((vc->state == KVS_VERBS_UP || vc->state == KVS_VERBS_FLUSHING) &&
	       !kvs_list_empty(&vc->ops)) {
		op = kvs_list_first(&vc->ops, struct kvs_verbs_op, node);
		if (op->refused) {
			op_done(vc, op, -EREMOTEIO);
			continue;
		}
		if (!post_op(vc, op))
			break;
		op->last = vc->posted;
		kvs_list_del(&op->node);
		kvs_list_add_tail(&vc->flying, &op->node);
	}
	if ((vc->state == KVS_VERBS_UP || vc->state == KVS_VERBS_FLUSHING) &&
	    vc->owed >= kvs_verbs_slots(vc->dev) / 2 && sq_free(vc) > 1 &&
	    vc->sends < KVS_VERBS_SENDS)
		(void)post_msg(vc, KVS_VERBS_MSG_CREDIT, NULL, 0);
}

int kvs_verbs_say_ready(struct kvs_verbs_conn *vc)
{
	return post_msg(vc, KVS_VERBS_MSG_CREDIT, NULL, 0);
}

void kvs_verbs_mark(struct kvs_verbs_conn *vc)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	if (vc->posted != vc->completed && sq_free(vc))
		(void)post(vc, &wr, true, 0, false);
}

/* ---- queueing ---- */

static bool can_send(const struct kvs_verbs_conn *vc)
{
	return vc->state < KVS_VERBS_FLUSHING && !vc->fin && !vc->eof &&
	       !kvs_verbs_of(vc->c.t)->closing;
}

static struct kvs_verbs_op *op_new(struct kvs_verbs_conn *vc,
				   enum kvs_verbs_op_type type, size_t data)
{
	struct kvs_verbs_op *op = calloc(1, sizeof(*op) + data);

	if (!op)
		return NULL;
	op->type = type;
	kvs_list_add_tail(&vc->ops, &op->node);
	kvs_verbs_pend(vc);
	return op;
}

struct kvs_verbs_op *kvs_verbs_op_new(struct kvs_verbs_conn *vc,
				      enum kvs_verbs_op_type type)
{
	return op_new(vc, type, 0);
}

int kvs_verbs_send(struct kvs_conn *c, const struct kvs_frame *f, size_t len)
{
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);
	struct kvs_verbs_op *op;

	if (vc->state == KVS_VERBS_TCP)
		return vc->inner ? kvs_conn_send(vc->inner, f) : -EPIPE;
	if (!can_send(vc))
		return -EPIPE;
	if (vc->ops_bytes + len > c->t->send_queue_max)
		return -ENOBUFS;
	op = op_new(vc, KVS_VERBS_OP_FRAME, len);
	if (!op)
		return -ENOMEM;
	memcpy(op->data, f, len);
	op->frame_len = (uint32_t)len;
	vc->ops_bytes += len;
	return 0;
}

/* The caller is to see its own connection, not the inner one. */
static void tcp_done(struct kvs_conn *inner, struct kvs_tx *tx, int status)
{
	struct kvs_verbs_conn *vc = kvs_conn_user(inner);

	tx->done = tx->up;
	tx->done(&vc->c, tx, status);
}

static int tcp_write(struct kvs_verbs_conn *vc, struct kvs_tx *tx)
{
	int rc;

	if (!vc->inner)
		return -EPIPE;
	if (tx->one_sided) {
		/* who promised that never offered a queue pair */
		kvs_verbs_close(&vc->c, -EPROTO, false);
		return -EPIPE;
	}
	tx->up = tx->done;
	tx->done = tcp_done;
	rc = kvs_conn_write(vc->inner, tx);
	if (rc)
		tx->done = tx->up;
	return rc;
}

/* Where a write or a read goes. *ret_refused: its grant was closed. */
static struct kvs_verbs_conn *way_to(struct kvs_verbs_conn *vc,
				     const struct kvs_grant_key *key,
				     bool *ret_refused)
{
	uint32_t number = (uint32_t)(key->addr >> KVS_VERBS_BRANCH_SHIFT);
	struct kvs_verbs_conn *b = kvs_verbs_branch_find(vc, number);

	if (!number)
		return vc;
	if (b && can_send(b))
		return b;
	*ret_refused = true;
	return vc;
}

int kvs_verbs_write(struct kvs_conn *c, struct kvs_tx *tx)
{
	const struct kvs_frame *f = (const void *)tx->frame;
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);
	struct kvs_verbs_op *op;
	bool refused = false;
	size_t i;

	if (vc->state == KVS_VERBS_TCP)
		return tcp_write(vc, tx);
	if (!can_send(vc))
		return -EPIPE;
	if (!tx->one_sided && kvs_get32(f->payload))
		return -EOPNOTSUPP;
	if (tx->one_sided)
		vc = way_to(vc, &tx->remote, &refused);
	op = op_new(vc, tx->one_sided ? KVS_VERBS_OP_TX : KVS_VERBS_OP_FRAME,
		    0);
	if (!op)
		return -ENOMEM;
	op->tx = tx;
	op->refused = refused;
	for (i = 0; tx->one_sided && i < tx->n_iov; i++)
		op->len += tx->iov[i].iov_len;
	op->frame_len = KVS_DATA_FRAME;
	if (op->type == KVS_VERBS_OP_FRAME)
		vc->ops_bytes += KVS_DATA_FRAME;
	return 0;
}

int kvs_verbs_read(struct kvs_conn *c, struct kvs_read *rd)
{
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);
	struct kvs_verbs_op *op;
	bool refused = false;

	if (vc->state == KVS_VERBS_TCP) {
		kvs_verbs_close(c, -EPROTO, false);
		return -EPIPE;
	}
	if (!can_send(vc))
		return -EPIPE;
	if (rd->len > vc->dev->max_mr) /* it is registered in one */
		return -EINVAL;
	op = op_new(way_to(vc, &rd->remote, &refused), KVS_VERBS_OP_READ, 0);
	if (!op)
		return -ENOMEM;
	op->refused = refused;
	op->rd = rd;
	op->len = rd->len;
	return 0;
}
