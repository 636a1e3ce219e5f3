/* SPDX-License-Identifier: Apache-2.0 */
/* From the mapping to the device. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rule.h"
#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"

int kvs_engine_commit(struct kvs_engine *e, const kvs_handle *h,
		      const struct kvs_commit *c)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);
	kvs_handle copy = *h;
	enum kvs_status st;
	int ret;

	if (!r)
		return -ENOENT;
	if (r->phase != KVS_ENG_PHASE_OPEN)
		return -EALREADY;
	st = kvs_engine_poll(e, &copy, NULL);
	if (st == KVS_STATUS_READY && !r->ready_generation)
		(void)kvs_eng_receive(e);
	if (st == KVS_STATUS_READY)
		st = kvs_engine_poll(e, &copy, NULL);
	if (st == KVS_STATUS_FAILED)
		return -ECANCELED;
	if (st != KVS_STATUS_READY)
		return -EAGAIN;
	/* The packet comes before the word: there will be none any more. */
	(void)kvs_eng_room_word(e, r);
	if (r->ready_generation != r->generation) {
		kvs_eng_room_fail(e, r, EPROTO,
				  "the daemon said READY, but not where");
		kvs_eng_room_give_up(e, r);
		return -ECANCELED;
	}
	ret = kvs_eng_copy_check(e, r, c);
	if (!ret)
		ret = kvs_eng_devices_know(e, c->device);
	if (!ret)
		ret = kvs_eng_copy_build(e, r, c);
	if (ret == -EPROTO) {
		kvs_eng_room_fail(e, r, EPROTO,
				  "the daemon said READY, but what lies there "
				  "is not what this rank needs");
		kvs_eng_room_give_up(e, r);
		return -ECANCELED;
	}
	if (ret)
		return ret;
	r->phase = KVS_ENG_PHASE_CLAIMED;
	e->local[r->slot] = KVS_ENG_CLAIMED;
	kvs_list_add_tail(&e->active, &r->node);
	kvs_eng_owe(e, r, KVS_ENG_OWE_COMMIT);
	return e->local[r->slot] == KVS_ENG_FAILED ? -ECANCELED : 0;
}

int kvs_eng_commit_first(struct kvs_engine *e, const kvs_handle *h,
			 const struct kvs_commit *c)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);
	int res = kvs_engine_commit(e, h, c);

	if (!res && !kvs_list_empty(&r->node)) {
		kvs_list_del(&r->node);
		kvs_list_add(&e->active, &r->node);
	}
	return res;
}

/* Not running any more, or never begun; @err: negative errno. */
static void copy_over(struct kvs_engine *e, struct kvs_eng_room *r, int err)
{
	bool failed = e->local[r->slot] == KVS_ENG_FAILED ||
		      (kvs_eng_room_final(e, r));

	kvs_list_del(&r->node);
	free(r->runs);
	r->runs = NULL;
	r->pages = NULL;
	r->phase = KVS_ENG_PHASE_COPIED;
	if (err)
		r->copy_err = err < -4095 ? EIO : -err;
	if (failed)
		kvs_eng_owe(e, r, KVS_ENG_OWE_COPY_OVER);
	else
		kvs_eng_owe(e, r, KVS_ENG_OWE_COMMITTED);
	if (failed || !e->gone)
		return; /* the daemon has said, or will say, how it ended */
	if (err)
		kvs_eng_room_fail(e, r, r->copy_err,
				  "the copy to the device failed");
	else
		e->local[r->slot] = KVS_ENG_DONE;
}

static int copy_start(struct kvs_engine *e, struct kvs_eng_room *r)
{
	uint64_t w = kvs_eng_room_word(e, r);
	int ret;

	if (kvs_eng_room_final(e, r)) {
		/* It ended before our claim, or right after: the copy that
		 * the daemon may count has not begun and never will. */
		kvs_list_del(&r->node);
		r->phase = KVS_ENG_PHASE_OPEN;
		r->owed &= ~KVS_ENG_OWE_COMMIT;
		if (r->commit_sent)
			kvs_eng_owe(e, r, KVS_ENG_OWE_COPY_OVER);
		return 1;
	}
	if (KVS_WORD_STATUS(w) != KVS_STATUS_COMMITTING ||
	    KVS_WORD_GEN(w) != r->ready_generation)
		return 0;
	if (kvs_eng_devices_ready(e, r))
		return 0;
	ret = kvs_device_copy(r->device, &r->copy);
	if (ret)
		copy_over(e, r, ret);
	else
		r->phase = KVS_ENG_PHASE_COPYING;
	return 1;
}

int kvs_eng_advance(struct kvs_engine *e, struct kvs_eng_room *r)
{
	int ret;

	switch (r->phase) {
	case KVS_ENG_PHASE_CLAIMED:
		return copy_start(e, r);
	case KVS_ENG_PHASE_COPYING:
		ret = kvs_device_query(r->device, &r->copy);
		if (ret == -EINPROGRESS)
			return 0;
		copy_over(e, r, ret);
		return 1;
	case KVS_ENG_PHASE_LEAVING:
	case KVS_ENG_PHASE_LEAVING_COPY:
		return kvs_eng_out_advance(e, r);
	case KVS_ENG_PHASE_OPEN:
	case KVS_ENG_PHASE_COPIED:
		break;
	}
	return 0;
}

static int layers_copied(struct kvs_engine *e, struct kvs_eng_room *r)
{
	const struct kvs_layout *l = e->layout;
	size_t done = kvs_device_progress(r->device, &r->copy), next;

	while (r->buffers_seen < l->n_buffers) {
		next = r->ends[r->buffers_seen];
		if (next > done)
			return l->buffers[e->order[r->buffers_seen]].layer;
		r->buffers_seen++;
	}
	return l->buffers[e->order[l->n_buffers - 1]].layer + 1;
}

int kvs_engine_copied_layers(struct kvs_engine *e, const kvs_handle *h)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);
	kvs_handle copy = *h;

	if (!r)
		return -ENOENT;
	if (kvs_engine_poll(e, &copy, NULL) == KVS_STATUS_FAILED)
		return -ECANCELED;
	switch (r->phase) {
	case KVS_ENG_PHASE_OPEN:
	case KVS_ENG_PHASE_LEAVING:
	case KVS_ENG_PHASE_LEAVING_COPY:
		return -EAGAIN;
	case KVS_ENG_PHASE_CLAIMED:
		break;
	case KVS_ENG_PHASE_COPYING:
		return layers_copied(e, r);
	case KVS_ENG_PHASE_COPIED:
		if (r->copy_err)
			return -ECANCELED;
		return e->layout->buffers[e->order[e->layout->n_buffers - 1]]
			       .layer +
		       1;
	}
	return 0;
}

bool kvs_eng_room_live(struct kvs_engine *e, struct kvs_eng_room *r)
{
	switch (r->phase) {
	case KVS_ENG_PHASE_CLAIMED:
		return !kvs_eng_room_final(e, r);
	case KVS_ENG_PHASE_COPYING:
		if (!KVS_RULE(R13, DEVICE) &&
		    e->local[r->slot] == KVS_ENG_FAILED)
			return false;
		return kvs_device_query(r->device, &r->copy) == -EINPROGRESS;
	case KVS_ENG_PHASE_LEAVING:
	case KVS_ENG_PHASE_LEAVING_COPY:
		return kvs_eng_out_live(e, r);
	case KVS_ENG_PHASE_OPEN:
		return r->out && kvs_eng_out_live(e, r);
	case KVS_ENG_PHASE_COPIED:
		break;
	}
	return false;
}

bool kvs_engine_copy_live(struct kvs_engine *e, const kvs_handle *h)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	return r && kvs_eng_room_live(e, r);
}
