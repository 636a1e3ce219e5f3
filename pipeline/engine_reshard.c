/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the extents of a room to the device's buffers, as runs: what this rank
 * takes of it (pipeline/reshard.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"
#include "pipeline/reshard.h"

#define ENG_HOSTS_MAX 256u /* an honest daemon has fewer in use */

struct kvs_eng_host *kvs_eng_host_find(struct kvs_engine *e, uint32_t id)
{
	struct kvs_eng_host *h;

	kvs_list_for_each_entry(h, &e->hosts, node)
		if (h->id == id)
			return h;
	return NULL;
}

static void host_free(struct kvs_engine *e, struct kvs_eng_host *h)
{
	kvs_list_del(&h->node);
	e->n_hosts--;
	free(h->layout);
	free(h);
}

void kvs_eng_hosts_free(struct kvs_engine *e)
{
	while (!kvs_list_empty(&e->hosts))
		host_free(e,
			  kvs_list_first(&e->hosts, struct kvs_eng_host, node));
}

/* As the daemon's own kvs_host_cache does: what no room has may go. */
static bool host_place(struct kvs_engine *e)
{
	struct kvs_eng_host *h, *tmp;

	kvs_list_for_each_entry_safe(h, tmp, &e->hosts, node) {
		if (e->n_hosts < ENG_HOSTS_MAX)
			break;
		if (!h->refs)
			host_free(e, h);
	}
	return e->n_hosts < ENG_HOSTS_MAX;
}

/* Sizes that geometry can add up; that it has what we need is seen when we
 * take it. */
static int host_check(const struct kvs_layout *l)
{
	if (!l->page_size || l->page_size > KVS_PAGE_SIZE_MAX || !l->tp ||
	    l->tp > KVS_TP_MAX)
		return -EPROTO;
	for (uint32_t i = 0; i < l->n_buffers; i++) {
		const struct kvs_layer_buffer *b = &l->buffers[i];

		if (b->kind >= KVS_BUFFER_KIND_MAX || !b->item_len ||
		    b->item_len > KVS_ITEM_LEN_MAX ||
		    !b->items != kvs_buffer_kind_is_paged(b->kind) ||
		    (uint64_t)b->items * b->item_len > KVS_ITEM_LEN_MAX)
			return -EPROTO;
	}
	return 0;
}

int kvs_eng_host_add(struct kvs_engine *e, const struct kvs_packet_layout *p,
		     size_t len)
{
	struct kvs_layout l = {
		.size = sizeof(l),
		.page_size = p->page_size,
		.dtype = e->layout->dtype,
		.n_buffers = p->n_buffers,
		.buffers = (struct kvs_layer_buffer *)(uintptr_t)p->buffers,
		.tp = p->tp,
		.tp_rank = KVS_TP_RANK_ALL,
	};
	struct kvs_eng_host *h;

	if (!p->id || !p->n_buffers || p->n_buffers > KVS_LAYOUT_BUFFERS_MAX ||
	    len != sizeof(*p) + p->n_buffers * (sizeof(p->buffers[0]) +
						sizeof(l.cuts[0])) ||
	    kvs_eng_host_find(e, p->id) || host_check(&l))
		return -EPROTO;
	if (!host_place(e))
		return -EPROTO;
	l.cuts = (const void *)(p->buffers + p->n_buffers);
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	if (kvs_layout_dup(&l, &h->layout)) {
		free(h);
		return -ENOMEM;
	}
	h->id = p->id;
	kvs_list_add_tail(&e->hosts, &h->node);
	e->n_hosts++;
	return 0;
}

/* Items of all fixed-count buffers of a request. */
static uint64_t fixed_items(const struct kvs_layout *l, uint64_t pages)
{
	uint64_t n = 0;

	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (!kvs_buffer_kind_is_paged(l->buffers[b].kind))
			n += kvs_buffer_items(&l->buffers[b], pages);
	return n;
}

int kvs_eng_copy_check(const struct kvs_engine *e, const struct kvs_eng_room *r,
		       const struct kvs_commit *c)
{
	const struct kvs_layout *l = e->layout;
	/* what is cached, then what was received */
	uint32_t pages = kvs_reshard_pages(l, r->geo.tokens);
	uint64_t items = fixed_items(l, pages);

	if (!c || c->size < sizeof(*c) || !c->device || !c->buffers ||
	    !c->pages || c->n_pages != pages + r->seg_pages ||
	    c->n_items != items || (items && !c->items))
		return -EINVAL;
	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (!c->buffers[b] ||
		    (c->strides && c->strides[b] < l->buffers[b].item_len))
			return -EINVAL;
	return 0;
}

static bool piece_plain(const struct kvs_reshard_piece *p, uint64_t item_len,
			uint64_t stride)
{
	return !p->at && p->rows == 1 && p->row_len == item_len &&
	       stride == item_len && p->host_item == item_len;
}

/* The runs of one buffer, from number @n on. */
static void put_runs(const struct kvs_engine *e, struct kvs_eng_room *r,
		     const struct kvs_commit *c, uint32_t b,
		     const struct kvs_reshard_piece *v, size_t n_pieces,
		     size_t n)
{
	const struct kvs_layer_buffer *lb = &e->layout->buffers[b];
	uint64_t stride = c->strides ? c->strides[b] : lb->item_len;
	const uint32_t *items = r->pages + (kvs_buffer_kind_is_paged(lb->kind)
						    ? r->seg_pages
						    : e->items_at[b]);

	for (size_t i = 0; i < n_pieces; i++, n++) {
		r->runs[n] = (struct kvs_copy_run){
			.host = e->pools[r->pool].base + r->off[v[i].extent] +
				v[i].off,
			.dev = (char *)c->buffers[b] + v[i].at,
			.item_len = v[i].rows * v[i].row_len,
			.pages = items + v[i].first,
			.n = v[i].n,
		};
		if (piece_plain(&v[i], lb->item_len, stride))
			continue;
		r->shapes[n] = (struct kvs_copy_shape){
			.rows = v[i].rows,
			.row_len = v[i].row_len,
			.host_row = v[i].host_row,
			.dev_row = v[i].dev_row,
			.host_item = v[i].host_item,
			.dev_item = stride,
		};
		r->copy.shapes = r->shapes;
	}
}

/* The pages of it that lie in what is cached. */
static size_t put_segs(const struct kvs_engine *e, struct kvs_eng_room *r,
		       const struct kvs_commit *c, uint32_t b,
		       const uint64_t *seg_off, size_t n)
{
	uint64_t item = e->layout->buffers[b].item_len;
	struct kvs_copy_run *end =
		kvs_eng_seg_runs(e, r, b, c->buffers[b], seg_off, r->runs + n);

	for (; r->runs + n < end; n++) {
		if (!c->strides || c->strides[b] == item)
			continue;
		r->shapes[n] = (struct kvs_copy_shape){
			.rows = 1,
			.row_len = item,
			.host_item = item,
			.dev_item = c->strides[b],
		};
		r->copy.shapes = r->shapes;
	}
	return n;
}

/* Those of what was received; a pin has none. */
static int64_t pieces(const struct kvs_engine *e, const struct kvs_eng_room *r,
		      uint32_t b, struct kvs_reshard_piece *v, size_t most)
{
	return r->pin ? 0 : kvs_reshard_pieces(&r->geo, e->layout, b, v, most);
}

/* How many pieces there are in all, and at most of one buffer. */
static int count(const struct kvs_engine *e, const struct kvs_eng_room *r,
		 size_t *ret_all, size_t *ret_most)
{
	*ret_all = 0;
	*ret_most = 0;
	for (uint32_t b = 0; b < e->layout->n_buffers; b++) {
		int64_t n = pieces(e, r, b, NULL, 0);

		if (n < 0)
			return -EPROTO;
		*ret_all += (size_t)n;
		if (kvs_buffer_kind_is_paged(e->layout->buffers[b].kind))
			*ret_all += r->n_segs;
		if ((size_t)n > *ret_most)
			*ret_most = (size_t)n;
	}
	return 0;
}

/* Layer by layer, so that the first ones are there early, see
 * kvs_engine_copied_layers(). */
static void fill(struct kvs_engine *e, struct kvs_eng_room *r,
		 const struct kvs_commit *c, struct kvs_reshard_piece *v,
		 size_t most, const uint64_t *seg_off)
{
	const struct kvs_layout *l = e->layout;
	uint32_t items = 0, pages = kvs_reshard_pages(l, r->geo.tokens);
	size_t n = 0, got;

	for (uint32_t b = 0; b < l->n_buffers; b++) {
		e->items_at[b] = c->n_pages + items;
		if (!kvs_buffer_kind_is_paged(l->buffers[b].kind))
			items += (uint32_t)kvs_buffer_items(&l->buffers[b],
							    pages);
	}
	for (uint32_t i = 0; i < l->n_buffers; i++) {
		uint32_t b = e->order[i];

		if (kvs_buffer_kind_is_paged(l->buffers[b].kind))
			n = put_segs(e, r, c, b, seg_off, n);
		got = (size_t)pieces(e, r, b, v, most);
		put_runs(e, r, c, b, v, got, n);
		n += got;
		r->ends[i] = n;
	}
	r->copy.runs = r->runs;
	r->copy.n_runs = n;
	r->copy.dir = KVS_COPY_H2D;
}

int kvs_eng_copy_build(struct kvs_engine *e, struct kvs_eng_room *r,
		       const struct kvs_commit *c)
{
	size_t list = (size_t)c->n_pages + c->n_items, n, most;
	uint64_t *seg_off = kvs_eng_seg_offsets(e, r);
	struct kvs_reshard_piece *v;
	int ret = count(e, r, &n, &most);

	if (ret) {
		free(seg_off);
		return ret;
	}
	v = malloc((most ? most : 1) * sizeof(*v));
	r->runs = calloc(1, n * (sizeof(*r->runs) + sizeof(*r->shapes)) +
				    e->layout->n_buffers * sizeof(*r->ends) +
				    list * sizeof(*r->pages));
	if (!v || !r->runs || !seg_off) {
		free(seg_off);
		free(v);
		free(r->runs);
		r->runs = NULL;
		return -ENOMEM;
	}
	r->shapes = (struct kvs_copy_shape *)(r->runs + n);
	r->ends = (size_t *)(r->shapes + n);
	r->pages = (uint32_t *)(r->ends + e->layout->n_buffers);
	r->copy.shapes = NULL;
	memcpy(r->pages, c->pages, c->n_pages * sizeof(*r->pages));
	if (c->n_items)
		memcpy(r->pages + c->n_pages, c->items,
		       c->n_items * sizeof(*r->pages));
	fill(e, r, c, v, most, seg_off);
	free(seg_off);
	free(v);
	r->device = c->device;
	return 0;
}
