/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a room: what its prefill ranks send, as far as its decode
 * ranks can take it. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/reshard.h"

struct reshard_build {
	const struct kvs_layout *const *members;
	uint32_t n_members;
	const struct kvs_reshard_prefill *p;
	bool partial;
	struct kvs_layout l; /* being made */
	struct kvs_buffer_cut *cuts;
	char *err;
	size_t errlen;
};

/* Bits of a shard each. */
struct shard_set {
	uint64_t bit[4];
};
static_assert(KVS_TP_MAX <= 4 * 64, "a bit for each shard");

static bool set_has(const struct shard_set *s, uint32_t i)
{
	return s->bit[i / 64] >> (i % 64) & 1;
}

static void set_add(struct shard_set *s, uint32_t i)
{
	s->bit[i / 64] |= 1ULL << (i % 64);
}

static bool is_cut(const struct kvs_layout *l)
{
	for (uint32_t b = 0; l->cuts && b < l->n_buffers; b++)
		if (l->cuts[b].heads)
			return true;
	return false;
}

bool kvs_reshard_same(const struct kvs_layout *const *members,
		      uint32_t n_members, const struct kvs_reshard_prefill *p)
{
	const struct kvs_layout *a = members[0];

	if (p->page_size != a->page_size || p->tp != 1)
		return false;
	for (uint32_t i = 0; i < n_members; i++) {
		const struct kvs_layout *l = members[i];

		/* one alone has all heads, and so has its prefill */
		if ((is_cut(l) && (n_members > 1 || kvs_layout_tp(l) > 1)) ||
		    l->n_buffers != a->n_buffers ||
		    memcmp(l->buffers, a->buffers,
			   l->n_buffers * sizeof(l->buffers[0])) != 0)
			return false;
	}
	return true;
}

static int differs(const struct reshard_build *w, const char *what,
		   const struct kvs_layer_buffer *b, uint32_t one,
		   uint32_t other)
{
	if (one == other)
		return 0;
	snprintf(w->err, w->errlen, "%s of %s layer %u: %u and %u on two ranks",
		 what, kvs_buffer_kind_name(b->kind), b->layer, one, other);
	return -EPROTOTYPE;
}

/* Bytes of one head of one token in one plane, or of all that is not cut. */
static uint32_t unit(const struct kvs_layout *l, uint32_t b)
{
	struct kvs_buffer_cut c = kvs_layout_cut(l, b);
	uint32_t n = 1, first;

	if (c.heads)
		n = kvs_cut_heads(c.heads, kvs_layout_tp(l), l->tp_rank,
				  &first);
	return l->buffers[b].item_len /
	       (c.planes * kvs_layout_item_tokens(l, b) * n);
}

/* Two decode ranks have the same buffer, or parts of it. */
static int same_buffer(const struct reshard_build *w,
		       const struct kvs_layout *a, uint32_t i,
		       const struct kvs_layout *b, uint32_t j)
{
	const struct kvs_layer_buffer *x = &a->buffers[i];
	struct kvs_buffer_cut ca = kvs_layout_cut(a, i);
	struct kvs_buffer_cut cb = kvs_layout_cut(b, j);
	int ret;

	ret = differs(w, "heads", x, ca.heads, cb.heads);
	if (!ret)
		ret = differs(w, "planes", x, ca.planes, cb.planes);
	if (!ret && !ca.heads)
		ret = differs(w, "item_len", x, x->item_len,
			      b->buffers[j].item_len);
	if (!ret)
		ret = differs(w, "bytes of a head", x, unit(a, i), unit(b, j));
	if (!ret)
		ret = differs(w, "items", x, x->items, b->buffers[j].items);
	return ret;
}

/* The page size changes: can the items of this buffer be cut anew? */
static int page_kind(const struct reshard_build *w, const struct kvs_layout *l,
		     uint32_t i)
{
	const struct kvs_layer_buffer *b = &l->buffers[i];
	uint32_t parts;

	switch ((enum kvs_buffer_kind)b->kind) {
	case KVS_BUFFER_K:
	case KVS_BUFFER_V:
	case KVS_BUFFER_KV:
		parts = l->page_size * kvs_layout_cut(l, i).planes;
		if (b->item_len % parts == 0)
			return 0;
		snprintf(w->err, w->errlen,
			 "item_len of %s layer %u: %u, not a multiple of %u "
			 "tokens",
			 kvs_buffer_kind_name(b->kind), b->layer, b->item_len,
			 parts);
		return -EPROTOTYPE;
	case KVS_BUFFER_MAMBA:
	case KVS_BUFFER_OTHER:
		return 0;
	case KVS_BUFFER_DSA:
	case KVS_BUFFER_BLOCK_SCALE:
	case KVS_BUFFER_SWA:
	case KVS_BUFFER_KIND_MAX:
		break;
	}
	snprintf(w->err, w->errlen,
		 "page_size: prefill %u, decode %u: pages of %s (layer %u) "
		 "cannot be cut anew",
		 w->p->page_size, l->page_size, kvs_buffer_kind_name(b->kind),
		 b->layer);
	return -EPROTOTYPE;
}

static int check_pages(const struct reshard_build *w,
		       const struct kvs_layout *l)
{
	uint32_t p = w->p->page_size, d = l->page_size;
	int ret = 0;

	if (!p || p > KVS_PAGE_SIZE_MAX || (p % d && d % p)) {
		snprintf(w->err, w->errlen,
			 "page_size: prefill %u, decode %u: neither divides "
			 "the other",
			 p, d);
		return -EPROTOTYPE;
	}
	for (uint32_t i = 0; p != d && i < l->n_buffers && !ret; i++)
		ret = page_kind(w, l, i);
	return ret;
}

/* Members agree about page size and elements. */
static int check_members(const struct reshard_build *w)
{
	const struct kvs_layout *a = w->members[0];
	int ret = check_pages(w, a);

	for (uint32_t m = 1; m < w->n_members && !ret; m++) {
		const struct kvs_layout *l = w->members[m];

		if (l->page_size != a->page_size) {
			snprintf(w->err, w->errlen,
				 "page_size: %u and %u on two ranks",
				 a->page_size, l->page_size);
			return -EPROTOTYPE;
		}
		if (l->dtype != a->dtype) {
			snprintf(w->err, w->errlen,
				 "dtype: %s and %s on two ranks",
				 kvs_dtype_name(a->dtype),
				 kvs_dtype_name(l->dtype));
			return -EPROTOTYPE;
		}
		ret = check_pages(w, l);
	}
	return ret;
}

/* Which shards of it come, each from one rank. */
static int sent_shards(const struct reshard_build *w,
		       const struct kvs_layer_buffer *b, uint32_t heads,
		       struct shard_set *ret_set)
{
	uint16_t owner[KVS_TP_MAX];
	int s;

	memset(ret_set, 0, sizeof(*ret_set));
	for (uint32_t r = 0; r < w->p->n_ranks; r++) {
		const struct kvs_slice *k = &w->p->slices[r];

		if (b->layer < k->first_layer ||
		    b->layer - k->first_layer >= k->n_layers)
			continue;
		s = kvs_cut_sends(heads, k->tp, k->tp_rank);
		if (s < 0)
			continue;
		if (set_has(ret_set, (uint32_t)s)) {
			snprintf(w->err, w->errlen,
				 "layer %u: given to rank %u and rank %u",
				 b->layer, owner[s], r);
			return -EPROTOTYPE;
		}
		set_add(ret_set, (uint32_t)s);
		owner[s] = (uint16_t)r;
	}
	return 0;
}

/* Does all come that this decode rank takes of it? */
static int check_needed(const struct reshard_build *w,
			const struct kvs_layout *l, uint32_t i,
			const struct shard_set *sent)
{
	const struct kvs_layer_buffer *b = &l->buffers[i];
	uint32_t heads = kvs_layout_cut(l, i).heads, first = 0, n = 1, per = 1;

	if (w->partial)
		return 0;
	if (heads) {
		n = kvs_cut_heads(heads, kvs_layout_tp(l), l->tp_rank, &first);
		per = heads / kvs_cut_shards(heads, w->p->tp);
	}
	for (uint32_t s = first / per; s <= (first + n - 1) / per; s++) {
		if (set_has(sent, s))
			continue;
		if (heads && w->p->tp > 1)
			snprintf(w->err, w->errlen,
				 "layer %u: heads %u to %u given to no rank",
				 b->layer, s * per, s * per + per - 1);
		else
			snprintf(w->err, w->errlen,
				 "layer %u: given to no rank", b->layer);
		return -EPROTOTYPE;
	}
	return 0;
}

/* One entry of the room's layout for each shard that comes. */
static int add_shards(struct reshard_build *w, const struct kvs_layout *l,
		      uint32_t i, const struct shard_set *sent)
{
	struct kvs_layer_buffer b = l->buffers[i];
	struct kvs_buffer_cut c = kvs_layout_cut(l, i);
	uint32_t shards = kvs_cut_shards(c.heads, w->p->tp);
	uint32_t per = c.heads ? c.heads / shards : 1;
	uint64_t len = b.item_len;

	if (c.heads)
		len = (uint64_t)unit(l, i) * c.planes *
		      kvs_layout_item_tokens(l, i) * per;
	if (kvs_buffer_kind_is_paged(b.kind))
		len = len * w->p->page_size / l->page_size;
	if (len > KVS_ITEM_LEN_MAX ||
	    (b.items && len * b.items > KVS_ITEM_LEN_MAX)) {
		snprintf(w->err, w->errlen,
			 "%s layer %u: an item of the prefill has %llu bytes",
			 kvs_buffer_kind_name(b.kind), b.layer,
			 (unsigned long long)len);
		return -E2BIG;
	}
	b.item_len = (uint32_t)len;
	for (uint32_t s = 0; s < shards; s++) {
		if (!set_has(sent, s))
			continue;
		if (w->l.n_buffers == KVS_LAYOUT_BUFFERS_MAX) {
			snprintf(w->err, w->errlen,
				 "more than %u pieces of layer buffers",
				 KVS_LAYOUT_BUFFERS_MAX);
			return -E2BIG;
		}
		c.shard = (uint8_t)s;
		w->cuts[w->l.n_buffers] = c;
		w->l.buffers[w->l.n_buffers++] = b;
	}
	return 0;
}

static int add_buffer(struct reshard_build *w, uint32_t m, uint32_t i)
{
	const struct kvs_layout *l = w->members[m];
	const struct kvs_layer_buffer *b = &l->buffers[i];
	uint32_t heads = kvs_layout_cut(l, i).heads;
	struct shard_set sent;
	int ret, at;

	/* an earlier one has it: its entries are there */
	for (uint32_t o = 0; o < m; o++) {
		at = kvs_layout_find(w->members[o], b->kind, b->layer);
		if (at < 0)
			continue;
		ret = same_buffer(w, w->members[o], (uint32_t)at, l, i);
		if (!ret)
			ret = sent_shards(w, b, heads, &sent);
		return ret ? ret : check_needed(w, l, i, &sent);
	}
	if (heads && heads % w->p->tp && w->p->tp % heads) {
		snprintf(w->err, w->errlen,
			 "heads of %s layer %u: %u, which the prefill's tp %u "
			 "neither divides nor is a multiple of",
			 kvs_buffer_kind_name(b->kind), b->layer, heads,
			 w->p->tp);
		return -EPROTOTYPE;
	}
	ret = sent_shards(w, b, heads, &sent);
	if (!ret)
		ret = check_needed(w, l, i, &sent);
	return ret ? ret : add_shards(w, l, i, &sent);
}

static int check_prefill(const struct reshard_build *w)
{
	const struct kvs_reshard_prefill *p = w->p;

	if (!p->tp || p->tp > KVS_TP_MAX) {
		snprintf(w->err, w->errlen, "tp of the prefill: %u, 1 to %u",
			 p->tp, KVS_TP_MAX);
		return -EPROTOTYPE;
	}
	for (uint32_t r = 0; r < p->n_ranks; r++)
		if (p->slices[r].tp_rank >= p->tp) {
			snprintf(w->err, w->errlen,
				 "tp_rank of prefill rank %u: %u, its tp is %u",
				 r, p->slices[r].tp_rank, p->tp);
			return -EPROTOTYPE;
		}
	return 0;
}

static int build(struct reshard_build *w)
{
	int ret = check_prefill(w);

	if (!ret)
		ret = check_members(w);
	for (uint32_t m = 0; m < w->n_members && !ret; m++)
		for (uint32_t i = 0; i < w->members[m]->n_buffers && !ret; i++)
			ret = add_buffer(w, m, i);
	if (!ret && !w->l.n_buffers) {
		snprintf(w->err, w->errlen, "%s",
			 w->partial ? "nothing of what this rank "
				      "would send is the engine's"
				    : "no rank sends anything");
		return -EPROTOTYPE;
	}
	return ret;
}

int kvs_reshard_layout(const struct kvs_layout *const *members,
		       uint32_t n_members, const struct kvs_reshard_prefill *p,
		       bool partial, struct kvs_layout **ret, char *err,
		       size_t errlen)
{
	struct reshard_build w = {
		.members = members,
		.n_members = n_members,
		.p = p,
		.partial = partial,
		.l = *members[0],
		.err = err,
		.errlen = errlen,
	};
	int res;

	w.l.size = sizeof(w.l);
	w.l.page_size = p->page_size;
	w.l.n_buffers = 0;
	w.l.tp = p->tp;
	w.l.tp_rank = KVS_TP_RANK_ALL;
	w.l.buffers = calloc(KVS_LAYOUT_BUFFERS_MAX, sizeof(*w.l.buffers));
	w.cuts = calloc(KVS_LAYOUT_BUFFERS_MAX, sizeof(*w.cuts));
	w.l.cuts = w.cuts;
	for (uint32_t m = 0; m < n_members; m++)
		if (members[m]->aux_max > w.l.aux_max)
			w.l.aux_max = members[m]->aux_max;
	if (w.l.buffers && w.cuts) {
		res = build(&w);
	} else {
		snprintf(err, errlen, "no memory for the layout of a room");
		res = -ENOMEM;
	}
	if (!res && kvs_layout_dup(&w.l, ret)) {
		snprintf(err, errlen, "no memory for the layout of a room");
		res = -ENOMEM;
	}
	free(w.l.buffers);
	free(w.cuts);
	return res;
}
