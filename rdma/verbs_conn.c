/* SPDX-License-Identifier: Apache-2.0 */
/* A data connection: its TCP side, how it becomes a queue pair, its end. See
 * verbs_internal.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "rdma/verbs_internal.h"

#define RETRY_NS KVS_NSEC_PER_SEC /* to destroy what could not be */
#define CLOSING_TRIES 3 /* of these, while the transport ends */

static struct kvs_verbs *vt_of(const struct kvs_verbs_conn *vc)
{
	return kvs_verbs_of(vc->c.t);
}

void kvs_verbs_pend(struct kvs_verbs_conn *vc)
{
	if (kvs_list_empty(&vc->pend))
		kvs_list_add_tail(&vt_of(vc)->pend, &vc->pend);
}

void kvs_verbs_conn_until(struct kvs_verbs_conn *vc, uint64_t deadline)
{
	vc->deadline = deadline;
	if (kvs_list_empty(&vc->timed))
		kvs_list_add_tail(&vt_of(vc)->timed, &vc->timed);
}

struct kvs_verbs_conn *kvs_verbs_conn_new(struct kvs_verbs *vt,
					  const struct kvs_conn_ops *ops,
					  void *user)
{
	struct kvs_verbs_conn *vc = calloc(1, sizeof(*vc));

	if (!vc)
		return NULL;
	vc->c.magic = KVS_CONN_MAGIC;
	vc->c.t = &vt->t;
	kvs_conn_set_ops(&vc->c, KVS_CONN_DATA, ops, user);
	kvs_list_init(&vc->pend);
	kvs_list_init(&vc->active);
	kvs_list_init(&vc->timed);
	kvs_list_init(&vc->ops);
	kvs_list_init(&vc->flying);
	kvs_list_init(&vc->grants);
	kvs_list_init(&vc->windows);
	kvs_list_init(&vc->branches);
	kvs_list_init(&vc->sibling);
	kvs_list_add_tail(&vt->conns, &vc->node);
	return vc;
}

static void conn_free(struct kvs_verbs_conn *vc)
{
	KVS_ASSERT(kvs_list_empty(&vc->ops) && kvs_list_empty(&vc->flying));
	kvs_list_del(&vc->node);
	kvs_list_del(&vc->pend);
	kvs_list_del(&vc->active);
	kvs_list_del(&vc->timed);
	kvs_list_del(&vc->sibling);
	free(vc->part);
	vc->c.magic = 0;
	free(vc);
}

/* ---- ending ---- */

void kvs_verbs_die(struct kvs_verbs_conn *vc, int err, bool weak)
{
	if (vc->parent)
		kvs_verbs_branch_dies(vc, err, weak);
	if (vc->state == KVS_VERBS_DYING) {
		if (vc->err_weak && !weak) {
			vc->err = err;
			vc->err_weak = false;
		}
		return;
	}
	vc->err = vc->state == KVS_VERBS_FLUSHING ? vc->err : err;
	vc->err_weak = weak;
	vc->state = KVS_VERBS_DYING;
	kvs_list_del(&vc->timed);
	kvs_verbs_pend(vc);
	kvs_verbs_windows_conn_never(vc, err < 0 ? err : -ECONNABORTED);
}

void kvs_verbs_close(struct kvs_conn *c, int err, bool flush)
{
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);

	if (err > 0)
		err = -err;
	switch (vc->state) {
	case KVS_VERBS_TCP:
		if (vc->inner)
			kvs_conn_close(vc->inner, err, flush);
		return;
	case KVS_VERBS_DYING:
		return;
	case KVS_VERBS_FLUSHING:
		if (!flush)
			kvs_verbs_die(vc, vc->err, false);
		return;
	case KVS_VERBS_OFFERED:
	case KVS_VERBS_LINKING:
	case KVS_VERBS_ANSWERING:
		kvs_verbs_die(vc, err, false);
		return;
	case KVS_VERBS_UP:
		break;
	}
	if (!flush) {
		kvs_verbs_die(vc, err, false);
		return;
	}
	vc->state = KVS_VERBS_FLUSHING;
	vc->err = err;
	kvs_verbs_conn_until(vc, kvs_verbs_now(vt_of(vc)) + KVS_VERBS_FLUSH_NS);
	kvs_verbs_pend(vc);
}

/* What is left of the inner connection is nobody's. */
static int nobody_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	(void)c;
	(void)f;
	return 0;
}

static const struct kvs_conn_ops nobody = { .frame = nobody_frame };

static int say(struct kvs_verbs_conn *vc, const struct kvs_verbs_blob *b)
{
	_Alignas(8) unsigned char buf[KVS_VERBS_BLOB];
	struct kvs_conn *inner = kvs_verbs_face(vc)->inner;

	if (!inner)
		return -EPIPE;
	kvs_verbs_blob_encode(b, buf);
	return kvs_conn_send(inner, (const struct kvs_frame *)buf);
}

static void let_go(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_blob fin = {
		.what = KVS_VERBS_FIN,
		/* why we close is our affair: to them it is in order */
		.err = vc->flushed ? 0 : (uint32_t)-vc->err,
		.number = vc->number,
		.sent = vc->msgs_out,
	};

	(void)say(vc, &fin);
	if (!vc->inner)
		return;
	kvs_conn_set_ops(vc->inner, KVS_CONN_DATA, &nobody, NULL);
	kvs_conn_close(vc->inner, 0, true);
	vc->inner = NULL;
}

int kvs_verbs_their_err(int err)
{
	switch (err) {
	case 0:
		return 0;
	case EACCES: /* what we asked for was refused there */
		return -EREMOTEIO;
	case EREMOTEIO:
		return -EACCES;
	default:
		return -ECONNRESET;
	}
}

static void finish(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_owner *own = vc->own;
	int err = vc->err < 0 ? vc->err : -ECONNABORTED;
	struct kvs_list grants;

	kvs_list_init(&grants);
	kvs_list_splice_tail(&grants, &vc->grants);
	kvs_verbs_fail_ops(vc, err);
	vt_of(vc)->handled++;
	if (vc->err && vc->err != -ESHUTDOWN && !vc->parent)
		vt_of(vc)->counts.broken++;
	if (vc->dev)
		vc->dev->n_conns--;
	if (vc->parent)
		kvs_verbs_pend(vc->parent); /* it may wait for this */
	else if (vc->c.ops->closed)
		vc->c.ops->closed(&vc->c, vc->err);
	conn_free(vc);
	if (own) {
		own->conns--;
		kvs_verbs_owner_put(own);
	}
	kvs_verbs_windows_conn_gone(&grants, err);
}

/* ---- jobs of a connection ---- */

static struct kvs_verbs_conn *conn_of_job(struct kvs_verbs_job *j)
{
	return kvs_container_of(j, struct kvs_verbs_conn, job);
}

static void submit(struct kvs_verbs_conn *vc,
		   void (*run)(struct kvs_verbs_job *j),
		   void (*done)(struct kvs_verbs_job *j))
{
	KVS_ASSERT(!vc->job_busy);
	vc->job_busy = true;
	vc->job.run = run;
	vc->job.done = done;
	kvs_verbs_submit(vt_of(vc), KVS_VERBS_SIDE_QP, &vc->job);
}

/* Return: true when the result matters still. */
static bool job_over(struct kvs_verbs_conn *vc)
{
	vc->job_busy = false;
	kvs_verbs_pend(vc);
	if (vc->state == KVS_VERBS_DYING)
		return false;
	if (!vc->job_rc)
		return true;
	kvs_verbs_die(vc, vc->job_rc, false);
	return false;
}

static void failed(const struct kvs_verbs_conn *vc, const char *what)
{
	kvs_log_debug("%s: %s: %s: %s", vc->dev->name, vc->c.peer, what,
		      strerror(-vc->job_rc));
}

static void run_make(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	vc->job_rc = kvs_verbs_qp_make(vc);
	if (vc->job_rc)
		failed(vc, "cannot make a queue pair");
}

static void made(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);
	struct kvs_verbs_blob b;
	int rc;

	if (!job_over(vc))
		return;
	vt_of(vc)->counts.qps++;
	kvs_verbs_qp_blob(vc, KVS_VERBS_OFFER, &b);
	rc = say(vc, &b);
	if (rc)
		kvs_verbs_die(vc, rc, false);
}

static void run_link(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	vc->job_rc = kvs_verbs_qp_link(vc);
	if (vc->job_rc)
		failed(vc, "cannot reach the other side's port");
}

static void linked(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	if (!job_over(vc))
		return;
	vc->state = KVS_VERBS_UP;
	kvs_list_del(&vc->timed);
	kvs_verbs_activate(vc);
	if (kvs_verbs_say_ready(vc))
		return;
	if (vc->parent)
		kvs_verbs_branch_up(vc);
	else
		kvs_verbs_windows_conn_up(vc);
}

static void run_answer(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	run_make(j);
	if (!vc->job_rc)
		run_link(j);
}

static void answered(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);
	struct kvs_verbs_blob b;
	int rc;

	if (!job_over(vc))
		return;
	vt_of(vc)->counts.qps++;
	kvs_verbs_qp_blob(vc, KVS_VERBS_ANSWER, &b);
	rc = say(vc, &b);
	if (rc)
		kvs_verbs_die(vc, rc, false);
	else
		kvs_verbs_activate(vc);
}

static void run_err(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	vc->job_rc = kvs_verbs_qp_err(vc);
	if (vc->job_rc)
		failed(vc, "cannot stop a queue pair");
}

static void stopped(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	vc->job_busy = false;
	vc->end = KVS_VERBS_END_DRAIN;
	vc->err_at = kvs_verbs_now(vt_of(vc));
	kvs_verbs_mark(vc);
	kvs_verbs_activate(vc);
	kvs_verbs_pend(vc);
}

static void run_destroy(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);

	vc->job_rc = kvs_verbs_qp_destroy(vc);
}

static void destroyed(struct kvs_verbs_job *j)
{
	struct kvs_verbs_conn *vc = conn_of_job(j);
	struct kvs_verbs *vt = vt_of(vc);

	vc->job_busy = false;
	vc->end = KVS_VERBS_END_GONE;
	kvs_verbs_pend(vc);
	if (!vc->job_rc)
		return;
	/* Still reachable, for all we know: it stays, and is tried again. */
	if (!vc->tries++) {
		vt->counts.stuck++;
		kvs_log_err("%s: %s: a queue pair cannot be destroyed: %s; "
			    "memory granted through it stays held",
			    vc->dev->name, vc->c.peer, strerror(-vc->job_rc));
		kvs_verbs_windows_conn_stuck(vc);
	}
	kvs_list_del(&vc->pend);
	/* the device is closed next: that ends it */
	if (vt->closing && vc->tries > CLOSING_TRIES) {
		vc->given_up = true;
		if (vc->parent)
			kvs_verbs_pend(vc->parent);
		return;
	}
	vc->end = KVS_VERBS_END_STUCK;
	kvs_verbs_conn_until(vc,
			     kvs_verbs_now(vt) +
				     (vt->closing ? RETRY_NS / 10 : RETRY_NS));
}

static void let_go_of_device(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs_op *op;

	kvs_list_splice_tail(&vc->flying, &vc->ops);
	kvs_list_for_each_entry(op, &vc->flying, node) {
		if (op->mr)
			(void)ibv_dereg_mr(op->mr);
		op->mr = NULL;
	}
	if (vc->dev)
		vc->dev->n_conns--;
	vc->dev = NULL;
	if (vc->own)
		vc->own->conns--;
	kvs_verbs_owner_put(vc->own);
	vc->own = NULL;
}

void kvs_verbs_conns_let_go(struct kvs_verbs *vt)
{
	struct kvs_verbs_conn *vc;

	kvs_list_for_each_entry(vc, &vt->conns, node)
		if (vc->given_up)
			let_go_of_device(vc);
}

void kvs_verbs_conns_end(struct kvs_verbs *vt)
{
	struct kvs_verbs_conn *vc, *tmp;

	kvs_list_for_each_entry(vc, &vt->conns, node)
		if (vc->given_up)
			kvs_verbs_qp_free(vc);
	/* branches before what they are of */
	kvs_list_for_each_entry_safe(vc, tmp, &vt->conns, node)
		if (vc->given_up && vc->parent)
			finish(vc);
	kvs_list_for_each_entry_safe(vc, tmp, &vt->conns, node)
		if (vc->given_up)
			finish(vc);
}

/* ERR, everything back, a while, destroyed: only then is it gone. */
static void end_step(struct kvs_verbs_conn *vc)
{
	struct kvs_verbs *vt = vt_of(vc);
	uint64_t now;

	if (vc->job_busy)
		return;
	switch (vc->end) {
	case KVS_VERBS_END_NONE:
		if (!kvs_verbs_branches_end(vc))
			return;
		let_go(vc);
		if (!kvs_list_empty(&vc->branches)) {
			vc->given_up = true;
			return;
		}
		if (vc->qp) {
			vc->end = KVS_VERBS_END_ERR;
			submit(vc, run_err, stopped);
			return;
		}
		break;
	case KVS_VERBS_END_ERR:
		return;
	case KVS_VERBS_END_DRAIN:
		now = kvs_verbs_now(vt);
		if (now < vc->err_at + vc->dev->prov->settle) {
			kvs_verbs_conn_until(vc, vc->err_at +
							 vc->dev->prov->settle);
			return;
		}
		if (!kvs_verbs_qp_drained(vc)) {
			if (now < vc->err_at + KVS_VERBS_DRAIN_NS) {
				kvs_verbs_conn_until(
					vc, vc->err_at + KVS_VERBS_DRAIN_NS);
				return;
			}
			vt->counts.lost_flushes++;
			kvs_log_warn("%s: %s: %llu requests and %u receives "
				     "never came back from a stopped queue "
				     "pair",
				     vc->dev->name, vc->c.peer,
				     (unsigned long long)(vc->posted -
							  vc->completed),
				     vc->recvs);
		}
		break;
	case KVS_VERBS_END_STUCK:
		if (kvs_verbs_now(vt) < vc->deadline)
			return;
		break;
	case KVS_VERBS_END_DESTROY:
		return;
	case KVS_VERBS_END_GONE:
		finish(vc);
		return;
	}
	kvs_list_del(&vc->timed);
	kvs_list_del(&vc->active);
	kvs_verbs_fail_grant_ops(vc, -ECONNABORTED);
	vc->end = KVS_VERBS_END_DESTROY;
	submit(vc, run_destroy, destroyed);
}

static void step(struct kvs_verbs_conn *vc)
{
	switch (vc->state) {
	case KVS_VERBS_TCP:
	case KVS_VERBS_OFFERED:
	case KVS_VERBS_LINKING:
	case KVS_VERBS_ANSWERING:
		break;
	case KVS_VERBS_UP:
		kvs_verbs_pump(vc);
		if (vc->fin && vc->msgs_in >= vc->fin_sent)
			kvs_verbs_die(vc, kvs_verbs_their_err(vc->fin_err),
				      true);
		break;
	case KVS_VERBS_FLUSHING:
		kvs_verbs_pump(vc);
		if (kvs_list_empty(&vc->ops) && kvs_list_empty(&vc->flying) &&
		    kvs_verbs_branches_idle(vc)) {
			vc->flushed = true;
			kvs_verbs_die(vc, vc->err, false);
		}
		break;
	case KVS_VERBS_DYING:
		end_step(vc);
		break;
	}
}

void kvs_verbs_run_pending(struct kvs_verbs *vt)
{
	struct kvs_verbs_conn *vc;
	struct kvs_list now;

	kvs_list_init(&now);
	kvs_list_splice_tail(&now, &vt->pend);
	while (!kvs_list_empty(&now)) {
		vc = kvs_list_first(&now, struct kvs_verbs_conn, pend);
		kvs_list_del(&vc->pend);
		step(vc);
	}
}

uint64_t kvs_verbs_next_deadline(const struct kvs_verbs *vt)
{
	const struct kvs_verbs_conn *vc;
	uint64_t next = KVS_TIME_NEVER;

	kvs_list_for_each_entry(vc, &vt->timed, timed)
		if (vc->deadline < next)
			next = vc->deadline;
	return next;
}

static void expired(struct kvs_verbs_conn *vc)
{
	switch (vc->state) {
	case KVS_VERBS_OFFERED:
	case KVS_VERBS_LINKING:
	case KVS_VERBS_ANSWERING:
		kvs_verbs_die(vc, -ETIMEDOUT, false);
		break;
	case KVS_VERBS_UP:
		/* what FIN spoke of did not all come, or an invalidation */
		if (!vc->fin)
			vt_of(vc)->counts.lost_flushes++;
		kvs_verbs_die(vc, vc->fin ? -ECONNRESET : -ECONNABORTED, true);
		break;
	case KVS_VERBS_FLUSHING:
		kvs_verbs_die(vc, vc->err, false);
		break;
	case KVS_VERBS_TCP:
	case KVS_VERBS_DYING:
		kvs_verbs_pend(vc);
		break;
	}
}

void kvs_verbs_run_deadlines(struct kvs_verbs *vt, uint64_t now)
{
	struct kvs_verbs_conn *vc, *tmp;

	kvs_list_for_each_entry_safe(vc, tmp, &vt->timed, timed) {
		if (vc->deadline > now)
			continue;
		kvs_list_del(&vc->timed);
		expired(vc);
	}
}

/* ---- becoming a queue pair ---- */

static int take_device(struct kvs_verbs_conn *vc, struct kvs_verbs_dev *dev)
{
	int rc;

	if (vc->c.owner) {
		rc = kvs_verbs_owner_get(vt_of(vc), vc->c.owner, dev, &vc->own);
		if (rc)
			return rc;
		vc->own->conns++;
		dev = vc->own->dev;
	}
	vc->dev = dev;
	vc->c.rail = dev->index + 1; /* it may not be the one asked for */
	vc->pd = vc->own ? vc->own->pd : dev->pd;
	dev->n_conns++;
	return 0;
}

void kvs_verbs_conn_offer(struct kvs_verbs_conn *vc, struct kvs_verbs_dev *dev)
{
	int rc;

	vc->state = KVS_VERBS_OFFERED;
	kvs_verbs_conn_until(vc, kvs_verbs_now(vt_of(vc)) + KVS_VERBS_UP_NS);
	rc = take_device(vc, dev);
	if (rc) {
		kvs_verbs_die(vc, rc, false);
		return;
	}
	if (!vc->parent) {
		vc->gid = vc->dev->gid;
		vc->gid_index = vc->dev->gid_index;
	}
	submit(vc, run_make, made);
}

void kvs_verbs_set_owner(struct kvs_conn *c, uint64_t owner)
{
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);

	if (vc->state != KVS_VERBS_TCP) {
		/* its protection domain cannot be exchanged */
		if (owner != c->owner)
			kvs_verbs_die(vc, -EINVAL, false);
		return;
	}
	c->owner = owner;
	if (!vc->adopted || !owner)
		return;
	kvs_verbs_conn_offer(vc,
			     kvs_verbs_dev_rail(kvs_verbs_of(c->t), c->rail));
}

static void take_end(struct kvs_verbs_conn *vc, const struct kvs_verbs_blob *b)
{
	vc->far = *b;
	vc->credits = b->slots;
	vc->msg_max = b->msg < KVS_VERBS_MSG ? b->msg : KVS_VERBS_MSG;
}

int kvs_verbs_conn_answer(struct kvs_verbs_conn *vc, struct kvs_verbs_dev *dev,
			  const struct kvs_verbs_blob *offer)
{
	int rc = take_device(vc, dev);

	if (rc)
		return rc;
	take_end(vc, offer);
	vc->state = KVS_VERBS_ANSWERING;
	kvs_verbs_conn_until(vc, kvs_verbs_now(vt_of(vc)) + KVS_VERBS_UP_NS);
	submit(vc, run_answer, answered);
	return 0;
}

static int got_offer(struct kvs_verbs_conn *vc, const struct kvs_verbs_blob *b)
{
	struct kvs_verbs_dev *dev;

	if (vc->state != KVS_VERBS_TCP || vc->adopted)
		return -EPROTO;
	dev = kvs_verbs_dev_match(vt_of(vc), b, &vc->gid_index, &vc->gid);
	if (!dev)
		return -ENETUNREACH;
	return kvs_verbs_conn_answer(vc, dev, b);
}

int kvs_verbs_conn_answered(struct kvs_verbs_conn *vc,
			    const struct kvs_verbs_blob *b)
{
	if (vc->state != KVS_VERBS_OFFERED || vc->job_busy ||
	    b->link != vc->dev->link)
		return -EPROTO;
	take_end(vc, b);
	vc->state = KVS_VERBS_LINKING;
	submit(vc, run_link, linked);
	return 0;
}

void kvs_verbs_conn_up(struct kvs_verbs_conn *vc)
{
	vc->state = KVS_VERBS_UP;
	kvs_list_del(&vc->timed);
	kvs_verbs_pend(vc);
	if (!vc->parent)
		kvs_verbs_windows_conn_up(vc);
}

static int got_fin(struct kvs_verbs_conn *vc, const struct kvs_verbs_blob *b)
{
	if (vc->state == KVS_VERBS_TCP)
		return -EPROTO;
	vc->fin = true;
	vc->fin_err = (int)b->err;
	vc->fin_sent = b->sent;
	if (vc->state != KVS_VERBS_UP) {
		kvs_verbs_die(vc, kvs_verbs_their_err(vc->fin_err), true);
		return 0;
	}
	/* what it sent may still be on its way to us */
	kvs_verbs_conn_until(vc, kvs_verbs_now(vt_of(vc)) + KVS_VERBS_FLUSH_NS);
	kvs_verbs_branches_drain(vc);
	(void)kvs_verbs_drain(vc);
	kvs_verbs_pend(vc);
	return 0;
}

static int got_blob(struct kvs_verbs_conn *vc, const struct kvs_frame *f)
{
	struct kvs_verbs_blob b;
	int rc = kvs_verbs_blob_decode(f, &b);

	if (rc)
		return rc;
	if (b.number)
		return kvs_verbs_branch_blob(vc, &b);
	switch (b.what) {
	case KVS_VERBS_OFFER:
		return got_offer(vc, &b);
	case KVS_VERBS_ANSWER:
		return kvs_verbs_conn_answered(vc, &b);
	case KVS_VERBS_FIN:
		return got_fin(vc, &b);
	}
	return -EPROTO;
}

/* ---- the inner connection ---- */

static void inner_opened(struct kvs_conn *c)
{
	struct kvs_verbs_conn *vc = kvs_conn_user(c);

	snprintf(vc->c.peer, sizeof(vc->c.peer), "%s", kvs_conn_peer(c));
	if (vc->c.ops->opened)
		vc->c.ops->opened(&vc->c);
}

static int up_frame(struct kvs_verbs_conn *vc, const struct kvs_frame *f)
{
	bool tcp = vc->state == KVS_VERBS_TCP;
	int rc;

	/* frames of before the queue pair; then TCP has none any more */
	if (!tcp && vc->state != KVS_VERBS_OFFERED)
		return vc->state == KVS_VERBS_DYING ? 0 : -EPROTO;
	vc->in_frame = tcp;
	rc = vc->c.ops->frame ? vc->c.ops->frame(&vc->c, f) : -EPROTO;
	vc->in_frame = false;
	return rc;
}

static int inner_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct kvs_verbs_conn *vc = kvs_conn_user(c);
	int rc;

	if (kvs_get16(f->type) >= KVS_FRAME_OWN)
		rc = got_blob(vc, f);
	else
		rc = up_frame(vc, f);
	if (vc->detached) {
		conn_free(vc);
		return 0;
	}
	if (rc >= 0 || vc->state == KVS_VERBS_TCP)
		return rc;
	kvs_verbs_die(vc, rc, false);
	return 0;
}

static int inner_payload(struct kvs_conn *c, const struct kvs_frame *f,
			 struct kvs_rx *rx)
{
	struct kvs_verbs_conn *vc = kvs_conn_user(c);

	if (vc->state != KVS_VERBS_TCP || !vc->c.ops->payload)
		return -EPROTO;
	return vc->c.ops->payload(&vc->c, f, rx);
}

static int inner_payload_done(struct kvs_conn *c, struct kvs_rx *rx, int status)
{
	struct kvs_verbs_conn *vc = kvs_conn_user(c);

	return vc->c.ops->payload_done(&vc->c, rx, status);
}

static void inner_closed(struct kvs_conn *c, int err)
{
	struct kvs_verbs_conn *vc = kvs_conn_user(c);

	vc->inner = NULL;
	vc->eof = true;
	if (vc->state == KVS_VERBS_TCP) {
		if (vc->c.ops->closed)
			vc->c.ops->closed(&vc->c, err);
		conn_free(vc);
		return;
	}
	if (vc->state == KVS_VERBS_DYING)
		return;
	/* what it said on the queue pair comes first */
	if (vc->state == KVS_VERBS_UP) {
		kvs_verbs_branches_drain(vc);
		(void)kvs_verbs_drain(vc);
	}
	if (vc->fin && vc->state == KVS_VERBS_UP)
		return; /* the rest of its messages, or the deadline */
	kvs_verbs_die(vc, err < 0 ? err : -ECONNRESET, true);
}

static const struct kvs_conn_ops inner_ops = {
	.opened = inner_opened,
	.frame = inner_frame,
	.payload = inner_payload,
	.payload_done = inner_payload_done,
	.closed = inner_closed,
};

int kvs_verbs_connect(struct kvs_transport *t, const struct kvs_addr *addr,
		      enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		      void *user, struct kvs_conn **ret)
{
	struct kvs_verbs *vt = kvs_verbs_of(t);
	struct kvs_verbs_conn *vc;
	int rc;

	if (vt->closing)
		return -ESHUTDOWN;
	if (kind == KVS_CONN_CONTROL)
		return kvs_transport_connect(vt->inner, addr, kind, ops, user,
					     ret);
	vc = kvs_verbs_conn_new(vt, ops, user);
	if (!vc)
		return -ENOMEM;
	rc = kvs_transport_connect(vt->inner, addr, kind, &inner_ops, vc,
				   &vc->inner);
	if (rc) {
		conn_free(vc);
		return rc;
	}
	snprintf(vc->c.peer, sizeof(vc->c.peer), "%s",
		 kvs_conn_peer(vc->inner));
	*ret = &vc->c;
	return 0;
}

int kvs_verbs_adopt(struct kvs_transport *t, int fd, enum kvs_conn_kind kind,
		    const struct kvs_conn_ops *ops, void *user,
		    struct kvs_conn **ret)
{
	struct kvs_verbs *vt = kvs_verbs_of(t);
	struct kvs_verbs_conn *vc;
	int rc;

	if (vt->closing)
		return -ESHUTDOWN;
	if (kind == KVS_CONN_CONTROL)
		return kvs_transport_adopt(vt->inner, fd, kind, ops, user, ret);
	vc = kvs_verbs_conn_new(vt, ops, user);
	if (!vc)
		return -ENOMEM;
	vc->adopted = true;
	rc = kvs_transport_adopt(vt->inner, fd, kind, &inner_ops, vc,
				 &vc->inner);
	if (rc) {
		conn_free(vc);
		return rc;
	}
	snprintf(vc->c.peer, sizeof(vc->c.peer), "%s",
		 kvs_conn_peer(vc->inner));
	*ret = &vc->c;
	return 0;
}

int kvs_verbs_detach(struct kvs_conn *c)
{
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);
	int fd;

	if (vc->state != KVS_VERBS_TCP || !vc->in_frame || !vc->inner)
		return -EBUSY;
	fd = kvs_conn_detach(vc->inner);
	if (fd >= 0) {
		vc->inner = NULL;
		vc->detached = true;
	}
	return fd;
}

void kvs_verbs_stop_payload(struct kvs_conn *c)
{
	struct kvs_verbs_conn *vc = kvs_verbs_conn_of(c);

	if (vc->state == KVS_VERBS_TCP && vc->inner)
		kvs_conn_stop_payload(vc->inner);
}
