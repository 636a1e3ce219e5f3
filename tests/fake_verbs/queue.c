/* SPDX-License-Identifier: Apache-2.0 */
/* Completion channels and queues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/assert.h"
#include "tests/fake_verbs/internal.h"

static struct fv_cq *cq_of(struct ibv_cq *cq)
{
	return kvs_container_of(cq, struct fv_cq, ibv);
}

static struct fv_chan *chan_of(struct ibv_comp_channel *ch)
{
	return kvs_container_of(ch, struct fv_chan, ibv);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct fv_ctx *c = fv_ctx_of(context);
	struct fv_chan *ch = NULL;
	int rc, fd = -1;

	fv_lock();
	rc = fv_enter(FV_CREATE_CHANNEL);
	if (!rc) {
		fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		rc = fd < 0 ? errno : 0;
	}
	if (!rc) {
		ch = calloc(1, sizeof(*ch));
		KVS_ASSERT(ch);
		ch->ibv.context = context;
		ch->ibv.fd = fd;
		kvs_list_init(&ch->events);
		kvs_list_add_tail(&c->chans, &ch->node);
		fv_w.live.channels++;
	}
	fv_unlock();
	if (rc)
		errno = rc;
	return ch ? &ch->ibv : NULL;
}

void fv_chan_free(struct fv_chan *ch)
{
	close(ch->ibv.fd);
	KVS_ASSERT(kvs_list_empty(&ch->events));
	kvs_list_del(&ch->node);
	fv_w.live.channels--;
	free(ch);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct fv_chan *ch = chan_of(channel);
	int rc;

	fv_lock();
	rc = fv_enter(FV_DESTROY_CHANNEL);
	if (!rc && ch->cqs)
		rc = EBUSY;
	if (!rc)
		fv_chan_free(ch);
	fv_unlock();
	return rc;
}

static void notify(struct fv_cq *cq)
{
	struct fv_chan_event *e;

	cq->armed = false;
	if (!cq->ibv.channel)
		return;
	e = calloc(1, sizeof(*e));
	KVS_ASSERT(e);
	e->cq = cq;
	kvs_list_add_tail(&chan_of(cq->ibv.channel)->events, &e->node);
	fv_ring(cq->ibv.channel->fd);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
		     void **cq_context)
{
	struct fv_chan *ch = chan_of(channel);
	struct fv_chan_event *e = NULL;
	uint64_t v;
	int rc;

	fv_lock();
	rc = fv_enter(FV_GET_CQ_EVENT);
	fv_unlock();
	if (rc) {
		errno = rc;
		return -1;
	}
	if (read(channel->fd, &v, sizeof(v)) != sizeof(v))
		return -1;
	fv_lock();
	if (!kvs_list_empty(&ch->events)) {
		e = kvs_list_first(&ch->events, struct fv_chan_event, node);
		kvs_list_del(&e->node);
		e->cq->given++;
		*cq = &e->cq->ibv;
		*cq_context = e->cq->ibv.cq_context;
	}
	fv_unlock();
	if (!e)
		errno = EAGAIN;
	free(e);
	return e ? 0 : -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	fv_lock();
	(void)fv_enter(FV_ACK_CQ_EVENTS);
	cq_of(cq)->acked += n;
	if (cq_of(cq)->acked > cq_of(cq)->given)
		fv_violation("more completion events acknowledged than given");
	pthread_cond_broadcast(&fv_w.acked);
	fv_unlock();
}

static int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct fv_cq *cq = cq_of(ibcq);
	int i = 0;

	fv_lock();
	if (fv_enter(FV_POLL_CQ)) {
		fv_unlock();
		return -1;
	}
	while (i < n && !kvs_list_empty(&cq->cqes)) {
		struct fv_cqe *e =
			kvs_list_first(&cq->cqes, struct fv_cqe, node);

		kvs_list_del(&e->node);
		cq->n--;
		wc[i++] = e->wc;
		if (e->sends)
			e->qp->sq_used -= e->sends;
		if (e->rq)
			e->rq->used--;
		free(e);
	}
	fv_unlock();
	return i;
}

static int req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct fv_cq *cq = cq_of(ibcq);
	int rc;

	fv_lock();
	rc = fv_enter(FV_REQ_NOTIFY_CQ);
	if (!rc) {
		/* what is there already tells nobody */
		cq->solicited_only = solicited_only &&
				     (!cq->armed || cq->solicited_only);
		cq->armed = true;
	}
	fv_unlock();
	return rc;
}

void fv_queue_init(struct fv_ctx *ctx)
{
	ctx->v.context.ops.poll_cq = poll_cq;
	ctx->v.context.ops.req_notify_cq = req_notify_cq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe,
			     void *cq_context, struct ibv_comp_channel *channel,
			     int comp_vector)
{
	struct fv_ctx *c = fv_ctx_of(context);
	struct fv_cq *cq = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_CREATE_CQ);
	if (!rc && c->dev->dead)
		rc = EIO;
	if (!rc &&
	    (cqe < 1 || (unsigned int)cqe > c->dev->s.max_cqe ||
	     comp_vector < 0 || comp_vector >= context->num_comp_vectors))
		rc = EINVAL;
	if (!rc) {
		cq = calloc(1, sizeof(*cq));
		KVS_ASSERT(cq);
		cq->ibv.context = context;
		cq->ibv.channel = channel;
		cq->ibv.cq_context = cq_context;
		cq->ibv.cqe = cqe;
		kvs_list_init(&cq->cqes);
		kvs_list_add_tail(&c->cqs, &cq->node);
		if (channel)
			chan_of(channel)->cqs++;
		fv_w.live.cqs++;
	}
	fv_unlock();
	if (rc)
		errno = rc;
	return cq ? &cq->ibv : NULL;
}

void fv_cq_free(struct fv_cq *cq)
{
	struct fv_chan_event *ev, *tmp;

	fv_async_forget(fv_ctx_of(cq->ibv.context), &cq->ibv);
	if (cq->ibv.channel) {
		struct fv_chan *ch = chan_of(cq->ibv.channel);

		kvs_list_for_each_entry_safe(ev, tmp, &ch->events, node) {
			if (ev->cq != cq)
				continue;
			fv_unring(ch->ibv.fd);
			kvs_list_del(&ev->node);
			free(ev);
		}
		ch->cqs--;
	}
	while (!kvs_list_empty(&cq->cqes)) {
		struct fv_cqe *e =
			kvs_list_first(&cq->cqes, struct fv_cqe, node);

		kvs_list_del(&e->node);
		free(e);
	}
	kvs_list_del(&cq->node);
	fv_w.live.cqs--;
	free(cq);
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct fv_cq *cq = cq_of(ibcq);
	int rc;

	fv_lock();
	rc = fv_enter(FV_DESTROY_CQ);
	if (!rc && cq->qps)
		rc = EBUSY;
	if (!rc && !fv_wait_acked(&cq->acked, &cq->given, "ibv_destroy_cq"))
		rc = EBUSY;
	if (!rc)
		fv_cq_free(cq);
	fv_unlock();
	return rc;
}

void fv_complete(struct fv_cq *cq, struct fv_qp *qp, const struct ibv_wc *wc,
		 uint32_t sends, struct fv_rq *rq, bool solicited)
{
	struct fv_cqe *e;

	if (wc->status == IBV_WC_WR_FLUSH_ERR) {
		fv_w.counts.flushes++;
		if (fv_w.lose_flushes) {
			fv_w.lose_flushes--;
			fv_w.counts.flushes_lost++;
			return;
		}
	}
	if (cq->n >= (unsigned int)cq->ibv.cqe) {
		struct ibv_async_event ev = {
			.element.cq = &cq->ibv,
			.event_type = IBV_EVENT_CQ_ERR,
		};

		if (!cq->overrun) {
			fv_violation("a completion queue of %d overflows",
				     cq->ibv.cqe);
			fv_async(fv_ctx_of(cq->ibv.context), &ev);
		}
		cq->overrun = true;
		return;
	}
	e = calloc(1, sizeof(*e));
	KVS_ASSERT(e);
	e->wc = *wc;
	e->wc.qp_num = qp->ibv.qp_num;
	e->qp = qp;
	e->sends = sends;
	e->rq = rq;
	kvs_list_add_tail(&cq->cqes, &e->node);
	cq->n++;
	if (cq->armed &&
	    (!cq->solicited_only || solicited || wc->status != IBV_WC_SUCCESS))
		notify(cq);
}

void fv_cq_forget_qp(struct fv_cq *cq, const struct fv_qp *qp)
{
	struct fv_cqe *e, *tmp;

	kvs_list_for_each_entry_safe(e, tmp, &cq->cqes, node) {
		if (e->qp != qp)
			continue;
		kvs_list_del(&e->node);
		if (e->rq)
			e->rq->used--;
		cq->n--;
		free(e);
	}
}
