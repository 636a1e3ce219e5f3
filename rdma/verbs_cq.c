/* SPDX-License-Identifier: Apache-2.0 */
/* Completions, and the messages that arrive. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "rdma/verbs_internal.h"

#define BATCH 16

void kvs_verbs_activate(struct kvs_verbs_conn *vc)
{
	/* a job that destroys it has the rest */
	if (vc->end < KVS_VERBS_END_DESTROY && vc->cq &&
	    kvs_list_empty(&vc->active))
		kvs_list_add_tail(&kvs_verbs_of(vc->c.t)->active, &vc->active);
}

/* ---- receiving ---- */

static bool takes_frames(const struct kvs_verbs_conn *vc)
{
	return vc->state == KVS_VERBS_UP &&
	       (!vc->parent || vc->parent->state == KVS_VERBS_UP);
}

static int give_frame(struct kvs_verbs_conn *vc, const struct kvs_frame *f)
{
	struct kvs_conn *c = &kvs_verbs_face(vc)->c;
	int rc = kvs_frame_check(c, f);

	if (!rc &&
	    (kvs_get32(f->payload) || kvs_get16(f->type) >= KVS_FRAME_OWN))
		rc = -EPROTO;
	if (rc)
		return rc;
	kvs_verbs_of(vc->c.t)->handled++;
	return c->ops->frame ? c->ops->frame(c, f) : -EPROTO;
}

/* The next piece of a frame that did not fit one message. */
static int more_of_frame(struct kvs_verbs_conn *vc, const unsigned char *p,
			 uint32_t n)
{
	unsigned char *part;
	int rc;

	if (n > vc->part_len - vc->part_have)
		return -EPROTO;
	memcpy(vc->part + vc->part_have, p, n);
	vc->part_have += n;
	if (vc->part_have < vc->part_len)
		return 0;
	part = vc->part;
	vc->part = NULL;
	rc = give_frame(vc, (const struct kvs_frame *)part);
	free(part);
	return rc;
}

static int got_frame(struct kvs_verbs_conn *vc, const unsigned char *p,
		     uint32_t n)
{
	const struct kvs_frame *f = (const void *)p;
	uint32_t len;
	int rc;

	if (vc->part)
		return more_of_frame(vc, p, n);
	if (n < sizeof(*f))
		return -EPROTO;
	len = kvs_get32(f->len);
	if (len == n)
		return give_frame(vc, f);
	rc = kvs_frame_check(&vc->c, f);
	if (rc || len < n)
		return -EPROTO;
	vc->part = malloc(len);
	if (!vc->part)
		return -ENOMEM;
	vc->part_have = 0;
	vc->part_len = len;
	return more_of_frame(vc, p, n);
}

static int got_msg(struct kvs_verbs_conn *vc, uint32_t slot, uint32_t bytes)
{
	const unsigned char *p = vc->buf + (size_t)slot * KVS_VERBS_MSG;
	struct kvs_verbs_msg m;
	int rc;

	rc = kvs_verbs_msg_decode(p, bytes, &m);
	if (rc)
		return rc;
	if (m.credits > vc->far.slots - vc->credits)
		return -EPROTO;
	vc->credits += m.credits;
	if (vc->state == KVS_VERBS_ANSWERING)
		kvs_verbs_conn_up(vc);
	if (m.type == KVS_VERBS_MSG_CREDIT)
		return 0;
	vc->owed++;
	return takes_frames(vc) ? got_frame(vc, p + KVS_VERBS_MSG_HEAD, m.len)
				: 0;
}

static void on_recv(struct kvs_verbs_conn *vc, const struct ibv_wc *wc)
{
	uint32_t slot = (uint32_t)(wc->wr_id & ~KVS_VERBS_WR_RECV);
	int rc;

	vc->recvs--;
	if (wc->status != IBV_WC_SUCCESS) {
		/* the far side's request was refused here, or it is a flush
		 * behind an error of our own, which says better */
		kvs_verbs_die(vc, -EACCES, true);
		return;
	}
	vc->msgs_in++;
	kvs_verbs_of(vc->c.t)->counts.msgs_in++;
	if (vc->state == KVS_VERBS_DYING)
		return;
	rc = got_msg(vc, slot, wc->byte_len);
	if (!rc && vc->state != KVS_VERBS_DYING)
		rc = kvs_verbs_post_recv(vc, slot);
	if (rc)
		kvs_verbs_die(vc, rc, false);
}

/* ---- sending ---- */

static int wc_errno(enum ibv_wc_status s)
{
	switch ((int)s) {
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_INV_RD_REQ_ERR:
		return -EREMOTEIO;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return -ETIMEDOUT;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return -EFAULT;
	case IBV_WC_REM_OP_ERR:
	case IBV_WC_REM_ABORT_ERR:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

static void on_send(struct kvs_verbs_conn *vc, const struct ibv_wc *wc)
{
	uint64_t seq = wc->wr_id;

	if (seq <= vc->completed || seq > vc->posted) {
		KVS_WARN_ONCE(true, "%s: a completion nobody waits for",
			      vc->dev->name);
		return;
	}
	if (wc->status == IBV_WC_SUCCESS) {
		kvs_verbs_sent(vc, seq, 0);
		return;
	}
	/* all before it went well, or would have said so */
	if (!vc->send_err)
		kvs_verbs_sent(vc, seq - 1, 0);
	if (wc->status != IBV_WC_WR_FLUSH_ERR && !vc->send_err) {
		kvs_log_debug("%s: %s: %s", vc->dev->name, vc->c.peer,
			      ibv_wc_status_str(wc->status));
		vc->send_err = wc_errno(wc->status);
		kvs_verbs_of(vc->c.t)->counts.wr_errors++;
		kvs_verbs_die(vc, vc->send_err, false);
	} else {
		kvs_verbs_die(vc, -EACCES, true);
	}
	kvs_verbs_sent(vc, seq,
		       vc->send_err		  ? vc->send_err
		       : vc->err && !vc->err_weak ? vc->err
						  : -ECONNRESET);
}

unsigned int kvs_verbs_drain(struct kvs_verbs_conn *vc)
{
	struct ibv_wc wc[BATCH];
	unsigned int all = 0;
	int i, n;

	do {
		n = ibv_poll_cq(vc->cq, BATCH, wc);
		if (n < 0) {
			kvs_verbs_die(vc, -EIO, false);
			break;
		}
		for (i = 0; i < n; i++) {
			if (wc[i].wr_id & KVS_VERBS_WR_RECV)
				on_recv(vc, &wc[i]);
			else
				on_send(vc, &wc[i]);
		}
		all += (unsigned int)n;
	} while (n == BATCH);
	if (all) {
		struct kvs_verbs *vt = kvs_verbs_of(vc->c.t);

		vt->heard = kvs_verbs_now(vt);
		vt->handled += all;
		kvs_verbs_pump(vc);
		if (vc->fin || vc->state == KVS_VERBS_DYING ||
		    vc->state == KVS_VERBS_FLUSHING)
			kvs_verbs_pend(vc);
		/* it may wait for its branches */
		if (vc->parent && vc->parent->state == KVS_VERBS_FLUSHING)
			kvs_verbs_pend(vc->parent);
	}
	return all;
}

/* Callbacks may end or add connections: one pass over those of now. */
static unsigned int each_active(struct kvs_verbs *vt, bool arm)
{
	struct kvs_verbs_conn *vc;
	struct kvs_list now;
	unsigned int n, all = 0;

	kvs_list_init(&now);
	kvs_list_splice_tail(&now, &vt->active);
	while (!kvs_list_empty(&now)) {
		vc = kvs_list_first(&now, struct kvs_verbs_conn, active);
		kvs_list_del(&vc->active);
		if (vc->end >= KVS_VERBS_END_DESTROY || !vc->cq)
			continue;
		n = kvs_verbs_drain(vc);
		if (!n && arm && vc->armed)
			continue; /* the channel brings it back */
		if (!n && arm) {
			if (ibv_req_notify_cq(vc->cq, 0))
				kvs_verbs_die(vc, -EIO, false);
			vc->armed = true;
			/* what came before the arming tells nobody */
			n = kvs_verbs_drain(vc);
			if (!n)
				continue;
		}
		all += n;
		kvs_verbs_activate(vc);
	}
	return all;
}

unsigned int kvs_verbs_run_active(struct kvs_verbs *vt)
{
	return each_active(vt, false);
}

unsigned int kvs_verbs_arm_active(struct kvs_verbs *vt)
{
	return each_active(vt, true);
}
