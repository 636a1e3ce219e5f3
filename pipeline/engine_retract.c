/* SPDX-License-Identifier: Apache-2.0 */
/* A running request leaves the device, and comes back by a commit; or blocks
 * of one leave it, to be cached. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/cache.h"
#include "lib/assert.h"
#include "lib/rule.h"
#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"

/* Items of all fixed-count buffers, and pages, of a request. */
static uint64_t fixed_items(const struct kvs_layout *l, uint64_t pages)
{
	uint64_t n = 0;

	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (!kvs_buffer_kind_is_paged(l->buffers[b].kind))
			n += kvs_buffer_items(&l->buffers[b], pages);
	return n;
}

/* What is to be copied, of either kind. */
static int check(const struct kvs_engine *e, const struct kvs_retract *q)
{
	const struct kvs_layout *l = e->layout;
	uint64_t pages, items;

	if (!q->tokens || q->tokens > KVS_TOKENS_MAX || !q->device ||
	    !q->buffers || !q->pages)
		return -EINVAL;
	pages = (q->tokens + l->page_size - 1) / l->page_size;
	items = fixed_items(l, pages);
	if (q->n_pages != pages || q->n_items != items || (items && !q->items))
		return -EINVAL;
	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (!q->buffers[b] ||
		    (q->strides && q->strides[b] < l->buffers[b].item_len))
			return -EINVAL;
	return 0;
}

/* What kvs_eng_copy_build() will want once the places are known. */
static int keep(struct kvs_engine *e, struct kvs_eng_room *r,
		const struct kvs_retract *q)
{
	uint32_t n = e->layout->n_buffers;
	struct kvs_eng_out *o;

	o = calloc(1,
		   sizeof(*o) +
			   n * (sizeof(o->buffers[0]) + sizeof(o->strides[0])) +
			   ((size_t)q->n_pages + q->n_items) *
				   sizeof(uint32_t));
	if (!o)
		return -ENOMEM;
	if (q->strides) {
		o->strides = (uint64_t *)(o->buffers + n);
		memcpy(o->strides, q->strides, n * sizeof(o->strides[0]));
	}
	o->pages = (uint32_t *)((uint64_t *)(o->buffers + n) + n);
	o->n_pages = q->n_pages;
	o->n_items = q->n_items;
	o->device = q->device;
	o->written = q->written;
	o->arg = q->arg;
	memcpy(o->buffers, q->buffers, n * sizeof(o->buffers[0]));
	memcpy(o->pages, q->pages, q->n_pages * sizeof(o->pages[0]));
	if (q->n_items)
		memcpy(o->pages + q->n_pages, q->items,
		       q->n_items * sizeof(o->pages[0]));
	r->out = o;
	return 0;
}

/* A slot for it, which is not taken yet. */
static int begin(struct kvs_engine *e, const struct kvs_retract *q,
		 struct kvs_eng_room **ret)
{
	struct kvs_eng_room *r;
	int res;

	res = check(e, q);
	if (!res)
		res = kvs_eng_devices_know(e, q->device);
	if (!res)
		res = kvs_eng_slot(e, 0, &r);
	if (res)
		return res;
	r->id = q->id;
	r->tokens = q->tokens;
	r->n_ranks = 1;
	res = keep(e, r, q);
	if (res) {
		kvs_eng_slot_undo(r);
		return res;
	}
	*ret = r;
	return 0;
}

/* @res: what sending the packet said. */
static int end(struct kvs_engine *e, struct kvs_eng_room *r, int res,
	       kvs_handle *ret)
{
	if (res)
		kvs_eng_slot_undo(r);
	else
		kvs_eng_slot_take(e, r, ret);
	return res;
}

int kvs_retract(struct kvs_engine *e, const struct kvs_retract *q,
		kvs_handle *ret)
{
	struct kvs_packet_retract p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_RETRACT },
	};
	struct kvs_eng_room *r;
	int res;

	if (!q || q->size < sizeof(*q))
		return -EINVAL;
	res = begin(e, q, &r);
	if (res)
		return res;
	p.id = q->id;
	p.tokens = q->tokens;
	p.slot = r->slot;
	p.node = q->node;
	return end(e, r, kvs_eng_send(e, &p, sizeof(p)), ret);
}

int kvs_offload(struct kvs_engine *e, const struct kvs_offload *q,
		kvs_handle *ret)
{
	struct kvs_retract out;
	struct kvs_eng_room *r;
	int res;

	if (!q || q->size < sizeof(*q) || !q->hashes || !q->n_hashes ||
	    q->n_hashes > KVS_CACHE_BLOCKS_MAX)
		return -EINVAL;
	/* a state is that of its request's end alone */
	if (e->fixed_buffers)
		return -EOPNOTSUPP;
	out = (struct kvs_retract){
		.id = q->id,
		.tokens = (uint64_t)q->n_hashes * e->block_pages *
			  e->layout->page_size,
		.device = q->device,
		.buffers = q->buffers,
		.pages = q->pages,
		.n_pages = q->n_pages,
		.strides = q->strides,
		.written = q->written,
		.arg = q->arg,
	};
	res = begin(e, &out, &r);
	if (res)
		return res;
	r->out->keep = true;
	return end(e, r,
		   kvs_eng_lookup(e, r, KVS_LOOKUP_OFFLOAD, q->hashes,
				  q->n_hashes, q->node),
		   ret);
}

/* The daemon need not wait for a copy of ours: there is none, and none will
 * be. */
static void never_copied(struct kvs_engine *e, struct kvs_eng_room *r)
{
	if (r->out->over)
		return;
	r->out->over = true;
	kvs_eng_owe(e, r, KVS_ENG_OWE_COPY_OVER);
}

void kvs_eng_out_placed(struct kvs_engine *e, struct kvs_eng_room *r)
{
	const struct kvs_eng_out *o = r->out;
	struct kvs_commit c = {
		.size = sizeof(c),
		.device = o->device,
		.buffers = o->buffers,
		.pages = o->pages + o->skip,
		.n_pages = o->n_pages - o->skip,
		.items = o->pages + o->n_pages,
		.n_items = o->n_items,
		.strides = o->strides,
	};
	int res;

	res = kvs_eng_copy_build(e, r, &c);
	if (res) {
		kvs_eng_room_fail(e, r, -res, "no memory for a copy's lists");
		kvs_eng_room_give_up(e, r);
		return;
	}
	r->copy.dir = KVS_COPY_D2H;
	r->phase = KVS_ENG_PHASE_LEAVING;
	kvs_list_add_tail(&e->active, &r->node);
}

/* The copy out has ended, or will not begin; @err: negative errno. */
static void out_over(struct kvs_engine *e, struct kvs_eng_room *r, int err)
{
	bool failed = e->local[r->slot] == KVS_ENG_FAILED ||
		      kvs_eng_room_final(e, r);

	kvs_list_del(&r->node);
	free(r->runs);
	r->runs = NULL;
	r->pages = NULL;
	r->phase = KVS_ENG_PHASE_OPEN;
	if (failed) {
		never_copied(e, r); /* not any more */
		return;
	}
	r->out->over = true;
	if (err)
		r->copy_err = err < -4095 ? EIO : -err;
	kvs_eng_owe(e, r, KVS_ENG_OWE_RETRACTED);
	if (err)
		kvs_eng_room_fail(e, r, r->copy_err,
				  "the copy from the device failed");
}

int kvs_eng_out_advance(struct kvs_engine *e, struct kvs_eng_room *r)
{
	struct kvs_eng_out *o = r->out;
	int res;

	if (r->phase == KVS_ENG_PHASE_LEAVING_COPY) {
		res = kvs_device_query(r->device, &r->copy);
		if (res == -EINPROGRESS)
			return 0;
		out_over(e, r, res);
		return 1;
	}
	/* It ended before it began. */
	if (e->local[r->slot] == KVS_ENG_FAILED || kvs_eng_room_final(e, r)) {
		out_over(e, r, 0);
		return 1;
	}
	res = kvs_eng_devices_ready(e, r);
	if (!res && o->written)
		res = o->written(o->arg);
	if (res == -EINPROGRESS)
		return 0;
	if (!res)
		res = kvs_device_copy(r->device, &r->copy);
	if (res)
		out_over(e, r, res);
	else
		r->phase = KVS_ENG_PHASE_LEAVING_COPY;
	return 1;
}

bool kvs_eng_out_live(struct kvs_engine *e, struct kvs_eng_room *r)
{
	if (!KVS_RULE(R13, LEAVE))
		return false;
	if (r->phase == KVS_ENG_PHASE_LEAVING_COPY)
		return kvs_device_query(r->device, &r->copy) == -EINPROGRESS;
	/* One that has not begun may, unless it has failed. */
	return !r->out->over && e->local[r->slot] != KVS_ENG_FAILED &&
	       !kvs_eng_room_final(e, r);
}

void kvs_eng_out_end(struct kvs_engine *e, struct kvs_eng_room *r)
{
	if (r->phase != KVS_ENG_PHASE_LEAVING_COPY)
		never_copied(e, r);
}

int kvs_resume(struct kvs_engine *e, const kvs_handle *h,
	       const struct kvs_commit *c)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	return r && r->out && !r->out->keep ? kvs_eng_commit_first(e, h, c)
					    : -ENOENT;
}

int kvs_drop(struct kvs_engine *e, const kvs_handle *h)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	return r && r->out && !r->out->keep ? kvs_engine_abort(e, h) : -ENOENT;
}
