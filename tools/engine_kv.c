/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/engine_kv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/layout.h"
#include "tools/pattern.h"

#define KV_SCRATCH (64u << 10) /* bytes; stays in the second-level cache */

static uint32_t kv_shuffled(struct kvs_rng *rng, uint32_t *v, uint32_t n)
{
	uint32_t i = (uint32_t)kvs_rng_below(rng, n);
	uint32_t x = v[i];

	v[i] = v[n - 1];
	return x;
}

static int kv_list(uint32_t n, uint32_t **ret)
{
	uint32_t *v = malloc((n ? n : 1) * sizeof(*v));

	if (!v)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	*ret = v;
	return 0;
}

static int kv_tensors(struct kvs_kv *kv, uint32_t states)
{
	const struct kvs_layout *l = kv->layout;
	int ret = 0;

	kv->buffers = calloc(l->n_buffers, sizeof(*kv->buffers));
	if (!kv->buffers)
		return -ENOMEM;
	for (uint32_t b = 0; b < l->n_buffers && !ret; b++) {
		const struct kvs_layer_buffer *lb = &l->buffers[b];
		bool paged = kvs_buffer_kind_is_paged(lb->kind);
		uint64_t items = paged ? kv->n_pages
				       : (uint64_t)states * lb->items;

		if (paged)
			kv->page_bytes += lb->item_len;
		ret = kvs_device_alloc(kv->device, items * lb->item_len,
				       &kv->buffers[b]);
	}
	return ret;
}

int kvs_kv_open(const struct kvs_workload *w, uint32_t rank, uint64_t tokens,
		uint32_t states, struct kvs_device_choice *device,
		uint64_t bytes_per_sec, struct kvs_kv *ret, char *err,
		size_t errlen)
{
	struct kvs_device_opts o = {
		.size = sizeof(o),
		.bytes_per_sec = bytes_per_sec,
	};
	struct kvs_kv kv = { .w = w };
	unsigned long long bytes;
	int res;

	kv.n_pages = kvs_workload_pages(w, tokens);
	/* each rank gives out other pages */
	kvs_rng_init(&kv.rng, w->o.seed ^ 0x706167 ^ (uint64_t)rank << 32);
	if (kvs_workload_decode_layout(w, rank, &kv.layout)) {
		snprintf(err, errlen, "no memory for a layout");
		return -ENOMEM;
	}
	res = kvs_device_choice_open(device, &o, &kv.device, err, errlen);
	if (res) {
		free(kv.layout);
		return res;
	}
	res = kv_tensors(&kv, states);
	if (!res)
		res = kv_list(kv.n_pages, &kv.free);
	if (!res)
		res = kv_list(states, &kv.free_states);
	if (!res) {
		kv.scratch = malloc(KV_SCRATCH);
		if (!kv.scratch)
			res = -ENOMEM;
	}
	if (res) {
		bytes = kv.n_pages * kv.page_bytes;
		snprintf(err, errlen,
			 "no memory for a device pool of %llu tokens "
			 "(%llu bytes)",
			 (unsigned long long)tokens, bytes);
		kvs_kv_close(&kv);
		return res;
	}
	kv.n_free = kv.n_pages;
	kv.n_free_states = states;
	*ret = kv;
	return 0;
}

void kvs_kv_close(struct kvs_kv *kv)
{
	for (uint32_t b = 0; kv->buffers && b < kv->layout->n_buffers; b++)
		kvs_device_free(kv->device, kv->buffers[b]);
	kvs_device_close(kv->device);
	free(kv->buffers);
	free(kv->free);
	free(kv->free_states);
	free(kv->scratch);
	free(kv->layout);
	memset(kv, 0, sizeof(*kv));
}

static uint32_t kv_items(const struct kvs_kv *kv, uint32_t pages)
{
	const struct kvs_layout *l = kv->layout;
	uint32_t n = 0;

	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (!kvs_buffer_kind_is_paged(l->buffers[b].kind))
			n += kvs_workload_items(&l->buffers[b], pages);
	return n;
}

int kvs_kv_take(struct kvs_kv *kv, uint64_t tokens, struct kvs_kv_place *ret)
{
	const struct kvs_layout *l = kv->layout;
	struct kvs_kv_place p = { 0 };
	uint32_t *item;

	p.n_pages = kvs_workload_pages(kv->w, tokens);
	p.n_items = kv_items(kv, p.n_pages);
	if (p.n_pages > kv->n_free || !kv->n_free_states)
		return -EAGAIN;
	p.pages = malloc(((size_t)p.n_pages + p.n_items) * sizeof(*p.pages));
	if (!p.pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < p.n_pages; i++)
		p.pages[i] = kv_shuffled(&kv->rng, kv->free, kv->n_free--);
	p.state = kv_shuffled(&kv->rng, kv->free_states, kv->n_free_states--);
	p.items = p.pages + p.n_pages;
	item = p.items;
	for (uint32_t b = 0; b < l->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &l->buffers[b];

		if (kvs_buffer_kind_is_paged(lb->kind))
			continue;
		/* Backwards, so that an order that is not kept shows. */
		for (uint32_t n = kvs_workload_items(lb, p.n_pages); n; n--)
			*item++ = p.state * lb->items + n - 1;
	}
	*ret = p;
	return 0;
}

void kvs_kv_give(struct kvs_kv *kv, struct kvs_kv_place *p)
{
	if (!p->pages)
		return;
	for (uint32_t i = 0; i < p->n_pages; i++)
		kv->free[kv->n_free++] = p->pages[i];
	kv->free_states[kv->n_free_states++] = p->state;
	free(p->pages);
	memset(p, 0, sizeof(*p));
}

uint64_t kvs_kv_bytes(const struct kvs_kv *kv, uint64_t tokens)
{
	const struct kvs_layout *l = kv->layout;
	uint32_t pages = kvs_workload_pages(kv->w, tokens);
	uint64_t n = 0;

	for (uint32_t b = 0; b < l->n_buffers; b++)
		n += (uint64_t)kvs_workload_items(&l->buffers[b], pages) *
		     l->buffers[b].item_len;
	return n;
}

/* Bytes that have been read from the device. */
struct kv_window {
	uint64_t off; /* in the item */
	uint64_t len;
};

/* Bytes [@off, @off + @len) of an item, at most KV_SCRATCH. */
static int kv_read(struct kvs_kv *kv, const unsigned char *dev, uint64_t item,
		   uint64_t off, uint64_t len, struct kv_window *w,
		   const unsigned char **ret)
{
	int res;

	if (off < w->off || off + len > w->off + w->len) {
		w->off = off;
		w->len = item - off < KV_SCRATCH ? item - off : KV_SCRATCH;
		res = kvs_device_peek(kv->device, kv->scratch, dev + off,
				      w->len);
		if (res)
			return res;
	}
	*ret = kv->scratch + (off - w->off);
	return 0;
}

/* One item of a buffer: 0, -EBADMSG, -EINVAL. Tokens from @end on are nobody's;
 * UINT64_MAX: all count. */
static int kv_check_item(struct kvs_kv *kv, uint32_t b, uint64_t item,
			 const unsigned char *dev, uint64_t seed, uint64_t end,
			 struct kvs_kv_wrong *wrong)
{
	const struct kvs_layout *l = kv->layout;
	uint64_t len = l->buffers[b].item_len, part, rest;
	uint32_t n = kvs_workload_n_pieces(l, b);
	uint64_t row = len / kvs_layout_item_tokens(l, b);
	struct kv_window w = { 0 };
	const unsigned char *p;
	size_t first, bad;
	int ret;

	wrong->bytes = 0;
	for (uint32_t k = 0; k < n; k++) {
		struct kvs_workload_piece q = kvs_workload_piece(l, b, item, k);

		if (q.token >= end)
			continue;
		/* of a whole page only the tokens that there are */
		rest = q.len;
		if (n == 1 && end != UINT64_MAX &&
		    kvs_layout_item_tokens(l, b) > 1 &&
		    (end - q.token) * row < rest)
			rest = (end - q.token) * row;
		for (uint64_t at = 0; at < rest; at += part) {
			part = rest - at < KV_SCRATCH ? rest - at : KV_SCRATCH;
			ret = kv_read(kv, dev, len, q.off + at, part, &w, &p);
			if (ret)
				return ret;
			if (!kvs_pattern_check(p, part, seed, q.at + at, &first,
					       &bad))
				continue;
			if (!wrong->bytes)
				wrong->offset = q.off + at + first;
			wrong->bytes += bad;
		}
	}
	return wrong->bytes ? -EBADMSG : 0;
}

int64_t kvs_kv_check(struct kvs_kv *kv, const struct kvs_kv_place *p,
		     uint64_t room, uint64_t tokens,
		     struct kvs_kv_cursor *cursor, uint64_t budget,
		     struct kvs_kv_wrong *ret_wrong)
{
	bool same = kv->w->prefill->page_size == kv->layout->page_size;
	uint64_t end = same ? UINT64_MAX : kvs_workload_covered(kv->w, tokens);
	const struct kvs_layout *l = kv->layout;
	int64_t done = 0;

	while (cursor->buffer < l->n_buffers && (uint64_t)done < budget) {
		const struct kvs_layer_buffer *lb = &l->buffers[cursor->buffer];
		bool paged = kvs_buffer_kind_is_paged(lb->kind);
		uint32_t n = kvs_workload_items(lb, p->n_pages);
		struct kvs_kv_wrong wrong = { .buffer = cursor->buffer,
					      .page = cursor->page };
		uint32_t place;
		int ret;

		if (cursor->page == n) {
			if (!paged)
				cursor->first_item += n;
			cursor->buffer++;
			cursor->page = 0;
			continue;
		}
		place = paged ? p->pages[cursor->page]
			      : p->items[cursor->first_item + cursor->page];
		ret = kv_check_item(
			kv, cursor->buffer, cursor->page,
			(unsigned char *)kv->buffers[cursor->buffer] +
				(uint64_t)place * lb->item_len,
			kvs_workload_seed(kv->w, room, lb->kind, lb->layer),
			paged ? end : UINT64_MAX, &wrong);
		cursor->page++;
		done += lb->item_len;
		if (ret == -EBADMSG)
			*ret_wrong = wrong;
		if (ret)
			return ret;
	}
	return done;
}
