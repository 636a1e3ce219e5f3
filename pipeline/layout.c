/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/layout.h"

struct kvs_layout_key {
	uint64_t key;
	uint32_t at;
	uint32_t reserved;
};

/*
 * What kvs_layout_dup() allocates; an index sorted by (kind, layer, shard)
 * and the cuts, if any, follow the buffers. An odd size field marks it: no sizeof() of a struct with
 * pointers is odd, so no layout a caller filled in looks like one. A copy of
 * the first member by assignment, or one with other buffers, is told apart by
 * the pointer and the count, and searched one by one.
 */
struct kvs_layout_dup {
	struct kvs_layout l;
	uint32_t n_buffers;
	uint32_t reserved;
	struct kvs_layer_buffer buffers[]; /* then the index, then the cuts */
};

#define KVS_LAYOUT_INDEXED (sizeof(struct kvs_layout) + 1)

static_assert(sizeof(struct kvs_layout) % 2 == 0, "odd sizes are ours");

struct kvs_kind_info {
	const char *name;
	bool paged;
};

#define KVS_KIND_(n, v, s, p) [v] = { s, p },
static const struct kvs_kind_info kvs_kinds[] = { KVS_BUFFER_KINDS(KVS_KIND_) };
#undef KVS_KIND_
static_assert(KVS_ARRAY_SIZE(kvs_kinds) == KVS_BUFFER_KIND_MAX, "every kind");

#define KVS_DTYPE_(n, v, s, b) [v] = s,
static const char *const kvs_dtypes[] = { [0] = "?", KVS_DTYPES(KVS_DTYPE_) };
#undef KVS_DTYPE_
static_assert(KVS_ARRAY_SIZE(kvs_dtypes) == KVS_DTYPE_MAX, "every dtype");

const char *kvs_buffer_kind_name(unsigned int kind)
{
	return kind < KVS_BUFFER_KIND_MAX ? kvs_kinds[kind].name : "?";
}

const char *kvs_dtype_name(unsigned int dtype)
{
	return dtype < KVS_DTYPE_MAX ? kvs_dtypes[dtype] : "?";
}

bool kvs_buffer_kind_is_paged(unsigned int kind)
{
	return kind < KVS_BUFFER_KIND_MAX && kvs_kinds[kind].paged;
}

/* "k", or "kind 9" for one we do not know */
static const char *kvs_kind_text(unsigned int kind, char buf[16])
{
	if (kind < KVS_BUFFER_KIND_MAX)
		return kvs_kinds[kind].name;
	snprintf(buf, 16, "kind %u", kind);
	return buf;
}

static const char *kvs_dtype_text(unsigned int dtype, char buf[16])
{
	if (dtype && dtype < KVS_DTYPE_MAX)
		return kvs_dtypes[dtype];
	snprintf(buf, 16, "dtype %u", dtype);
	return buf;
}

struct kvs_buffer_cut kvs_layout_cut(const struct kvs_layout *l, uint32_t b)
{
	struct kvs_buffer_cut c = { 0 };

	if (l->cuts)
		c = l->cuts[b];
	if (!c.planes)
		c.planes = 1;
	return c;
}

uint32_t kvs_layout_item_tokens(const struct kvs_layout *l, uint32_t b)
{
	unsigned int kind = l->buffers[b].kind;

	return kvs_buffer_kind_is_paged(kind) || kind == KVS_BUFFER_SWA
		       ? l->page_size
		       : 1;
}

uint32_t kvs_cut_heads(uint32_t heads, uint32_t tp, uint32_t tp_rank,
		       uint32_t *ret_first)
{
	*ret_first = (uint32_t)((uint64_t)heads * tp_rank / tp);
	return tp < heads ? heads / tp : 1;
}

uint32_t kvs_cut_shards(uint32_t heads, uint32_t tp)
{
	if (!heads)
		return 1;
	return tp < heads ? tp : heads;
}

int kvs_cut_sends(uint32_t heads, uint32_t tp, uint32_t tp_rank)
{
	uint32_t same = heads && tp > heads ? tp / heads : 1;

	if (!heads)
		return tp_rank ? -1 : 0;
	/* of those that have the same head the first one does */
	return tp_rank % same ? -1 : (int)(tp_rank / same);
}

bool kvs_slice_has(const struct kvs_slice *s, const struct kvs_layout *l,
		   uint32_t b)
{
	const struct kvs_layer_buffer *buf = &l->buffers[b];
	struct kvs_buffer_cut c;
	int shard;

	if (buf->layer < s->first_layer ||
	    buf->layer - s->first_layer >= s->n_layers)
		return false;
	c = kvs_layout_cut(l, b);
	shard = kvs_cut_sends(c.heads, s->tp, s->tp_rank);
	return shard >= 0 &&
	       (l->tp_rank != KVS_TP_RANK_ALL || c.shard == shard);
}

/* That its items are made of what the cut says. */
static int kvs_layout_check_cut(const struct kvs_layout *l, uint32_t i,
				char *err, size_t errlen)
{
	const struct kvs_layer_buffer *b = &l->buffers[i];
	const char *kind = kvs_buffer_kind_name(b->kind);
	struct kvs_buffer_cut c = kvs_layout_cut(l, i);
	uint32_t tp = kvs_layout_tp(l), first, parts;

	if (c.shard) {
		snprintf(err, errlen, "shard of %s layer %u: %u, must be 0",
			 kind, b->layer, c.shard);
		return -EINVAL;
	}
	if (c.heads && c.heads % tp && tp % c.heads) {
		snprintf(err, errlen,
			 "heads of %s layer %u: %u, which tp %u neither "
			 "divides nor is a multiple of",
			 kind, b->layer, c.heads, tp);
		return -EINVAL;
	}
	parts = c.planes * kvs_layout_item_tokens(l, i) *
		(c.heads ? kvs_cut_heads(c.heads, tp, 0, &first) : 1);
	if ((c.heads || c.planes > 1) && b->item_len % parts) {
		snprintf(err, errlen,
			 "item_len of %s layer %u: %u, not a multiple of its "
			 "%u parts (planes, tokens and heads)",
			 kind, b->layer, b->item_len, parts);
		return -EINVAL;
	}
	return 0;
}

/* An item count and length that geometry can add up without overflow. */
static int kvs_layout_check_buffer(const struct kvs_layer_buffer *b, uint32_t i,
				   char *err, size_t errlen)
{
	const char *kind = kvs_buffer_kind_name(b->kind);

	if (!b->item_len || b->item_len > KVS_ITEM_LEN_MAX) {
		snprintf(err, errlen,
			 "item_len of buffer %u: %u, allowed 1..%u", i,
			 b->item_len, KVS_ITEM_LEN_MAX);
		return -EINVAL;
	}
	if (b->kind >= KVS_BUFFER_KIND_MAX)
		return 0;
	if (kvs_buffer_kind_is_paged(b->kind)) {
		if (!b->items)
			return 0;
		snprintf(err, errlen,
			 "items of %s layer %u: %u, must be 0 for a paged kind",
			 kind, b->layer, b->items);
		return -EINVAL;
	}
	if (!b->items) {
		snprintf(err, errlen, "items of %s layer %u: 0, at least 1",
			 kind, b->layer);
		return -EINVAL;
	}
	if ((uint64_t)b->items * b->item_len > KVS_ITEM_LEN_MAX) {
		snprintf(err, errlen,
			 "items of %s layer %u: %u of %u bytes, more than %u "
			 "bytes in all",
			 kind, b->layer, b->items, b->item_len,
			 KVS_ITEM_LEN_MAX);
		return -EINVAL;
	}
	return 0;
}

/* A bitmap per kind: linear, without memory, whatever the order. */
static int kvs_layout_check_unique(const struct kvs_layout *l, char *err,
				   size_t errlen)
{
	uint64_t seen[65536 / 64];
	uint32_t kind, i;

	for (kind = 0; kind < KVS_BUFFER_KIND_MAX; kind++) {
		memset(seen, 0, sizeof(seen));
		for (i = 0; i < l->n_buffers; i++) {
			const struct kvs_layer_buffer *b = &l->buffers[i];
			uint64_t bit = 1ULL << (b->layer % 64);

			if (b->kind != kind)
				continue;
			if (seen[b->layer / 64] & bit) {
				snprintf(err, errlen,
					 "%s layer %u: given twice",
					 kvs_buffer_kind_name(kind), b->layer);
				return -EINVAL;
			}
			seen[b->layer / 64] |= bit;
		}
	}
	return 0;
}

int kvs_layout_check_foreign(const struct kvs_layout *l, char *err,
			     size_t errlen)
{
	uint32_t i;
	int ret;

	if (l->size != sizeof(*l) && l->size != KVS_LAYOUT_INDEXED) {
		snprintf(err, errlen, "size: %zu, this version has %zu",
			 l->size, sizeof(*l));
		return -EINVAL;
	}
	if (!l->page_size || l->page_size > KVS_PAGE_SIZE_MAX) {
		snprintf(err, errlen, "page_size: %u, allowed 1..%u",
			 l->page_size, KVS_PAGE_SIZE_MAX);
		return -EINVAL;
	}
	if (!l->dtype) {
		snprintf(err, errlen, "dtype: 0, not a dtype");
		return -EINVAL;
	}
	if (!l->n_buffers || l->n_buffers > KVS_LAYOUT_BUFFERS_MAX ||
	    !l->buffers) {
		snprintf(err, errlen, "n_buffers: %u, allowed 1..%u",
			 l->buffers ? l->n_buffers : 0, KVS_LAYOUT_BUFFERS_MAX);
		return -EINVAL;
	}
	if (l->aux_max > KVS_AUX_MAX) {
		snprintf(err, errlen, "aux_max: %u, allowed 0..%u", l->aux_max,
			 KVS_AUX_MAX);
		return -EINVAL;
	}
	if (l->cuts && (l->tp > KVS_TP_MAX || l->tp_rank >= kvs_layout_tp(l))) {
		snprintf(err, errlen, "tp: rank %u of %u, at most %u ranks",
			 l->tp_rank, l->tp, KVS_TP_MAX);
		return -EINVAL;
	}
	for (i = 0; i < l->n_buffers; i++) {
		ret = kvs_layout_check_buffer(&l->buffers[i], i, err, errlen);
		if (!ret && l->cuts)
			ret = kvs_layout_check_cut(l, i, err, errlen);
		if (ret)
			return ret;
	}
	return kvs_layout_check_unique(l, err, errlen);
}

int kvs_layout_check(const struct kvs_layout *l, char *err, size_t errlen)
{
	uint32_t i;
	int ret;

	ret = kvs_layout_check_foreign(l, err, errlen);
	if (ret)
		return ret;
	if (l->dtype >= KVS_DTYPE_MAX) {
		snprintf(err, errlen, "dtype: unknown value %u", l->dtype);
		return -EINVAL;
	}
	for (i = 0; i < l->n_buffers; i++) {
		if (l->buffers[i].kind < KVS_BUFFER_KIND_MAX)
			continue;
		snprintf(err, errlen, "kind of buffer %u: unknown value %u", i,
			 l->buffers[i].kind);
		return -EINVAL;
	}
	return 0;
}

static uint64_t kvs_layout_key(unsigned int kind, unsigned int layer,
			       unsigned int shard)
{
	return (uint64_t)kind << 32 | layer << 8 | shard;
}

static int kvs_layout_key_cmp(const void *a, const void *b)
{
	const struct kvs_layout_key *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

#define KVS_LAYOUT_INDEX_ALIGN _Alignof(struct kvs_layout_key)

static struct kvs_layout_key *
kvs_layout_dup_index(const struct kvs_layout_dup *d)
{
	uintptr_t at = (uintptr_t)(d->buffers + d->n_buffers);

	at += KVS_LAYOUT_INDEX_ALIGN - 1;
	return (struct kvs_layout_key *)(at - at % KVS_LAYOUT_INDEX_ALIGN);
}

/* NULL when @l is not from kvs_layout_dup(), or no longer as it was. */
static const struct kvs_layout_key *kvs_layout_index(const struct kvs_layout *l)
{
	const struct kvs_layout_dup *d;

	if (l->size != KVS_LAYOUT_INDEXED)
		return NULL;
	d = kvs_container_of(l, const struct kvs_layout_dup, l);
	if (l->buffers != d->buffers || l->n_buffers != d->n_buffers)
		return NULL;
	return kvs_layout_dup_index(d);
}

static void kvs_layout_sort(const struct kvs_layout *l,
			    struct kvs_layout_key *idx)
{
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++) {
		idx[i].key = kvs_layout_key(l->buffers[i].kind,
					    l->buffers[i].layer,
					    l->cuts ? l->cuts[i].shard : 0);
		idx[i].at = i;
	}
	qsort(idx, l->n_buffers, sizeof(*idx), kvs_layout_key_cmp);
}

int kvs_layout_dup(const struct kvs_layout *l, struct kvs_layout **ret)
{
	size_t n = l->n_buffers;
	struct kvs_buffer_cut *cuts;
	struct kvs_layout_dup *d;

	d = calloc(1, sizeof(*d) + KVS_LAYOUT_INDEX_ALIGN +
			      n * (sizeof(*l->buffers) + sizeof(*cuts) +
				   sizeof(struct kvs_layout_key)));
	if (!d)
		return -ENOMEM;
	d->l = *l;
	d->l.size = KVS_LAYOUT_INDEXED;
	d->n_buffers = l->n_buffers;
	d->l.buffers = d->buffers;
	if (n)
		memcpy(d->l.buffers, l->buffers, n * sizeof(*l->buffers));
	if (n && l->cuts) {
		cuts = (struct kvs_buffer_cut *)(kvs_layout_dup_index(d) + n);
		memcpy(cuts, l->cuts, n * sizeof(*cuts));
		d->l.cuts = cuts;
	}
	kvs_layout_sort(&d->l, kvs_layout_dup_index(d));
	*ret = &d->l;
	return 0;
}

int kvs_layout_order(const struct kvs_layout *l, uint32_t *ret_order)
{
	const struct kvs_layout_key *idx = kvs_layout_index(l);
	struct kvs_layout_key *own = NULL;
	uint32_t i;

	if (!idx) {
		own = calloc(l->n_buffers, sizeof(*own));
		if (!own)
			return -ENOMEM;
		kvs_layout_sort(l, own);
		idx = own;
	}
	for (i = 0; i < l->n_buffers; i++)
		ret_order[i] = idx[i].at;
	free(own);
	return 0;
}

/* The first in the order of the keys that is not below @key; -1: none. */
static int kvs_layout_lower(const struct kvs_layout *l, uint64_t key)
{
	const struct kvs_layout_key *idx = kvs_layout_index(l);
	uint32_t lo = 0, hi = l->n_buffers;
	uint64_t best = UINT64_MAX;
	int at = -1;

	if (!idx) {
		for (uint32_t i = 0; i < l->n_buffers; i++) {
			uint64_t k = kvs_layout_key(
				l->buffers[i].kind, l->buffers[i].layer,
				l->cuts ? l->cuts[i].shard : 0);

			if (k < key || k >= best)
				continue;
			best = k;
			at = (int)i;
		}
		return at;
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (idx[mid].key < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo == l->n_buffers ? -1 : (int)idx[lo].at;
}

int kvs_layout_find_shard(const struct kvs_layout *l, unsigned int kind,
			  unsigned int layer, unsigned int shard)
{
	int at;

	if (kind > UINT16_MAX || layer > UINT16_MAX || shard > UINT8_MAX)
		return -ENOENT;
	at = kvs_layout_lower(l, kvs_layout_key(kind, layer, shard));
	if (at < 0 || l->buffers[at].kind != kind ||
	    l->buffers[at].layer != layer ||
	    (l->cuts ? l->cuts[at].shard : 0u) != shard)
		return -ENOENT;
	return at;
}

int kvs_layout_find(const struct kvs_layout *l, unsigned int kind,
		    unsigned int layer)
{
	return kvs_layout_find_shard(l, kind, layer, 0);
}

int kvs_slice_find(const struct kvs_slice *s, const struct kvs_layout *l,
		   unsigned int kind, unsigned int layer)
{
	int at, shard;

	if (kind > UINT16_MAX || layer > UINT16_MAX)
		return -ENOENT;
	/* any shard knows how many heads there are */
	at = kvs_layout_lower(l, kvs_layout_key(kind, layer, 0));
	if (at >= 0 && l->tp_rank == KVS_TP_RANK_ALL) {
		shard = kvs_cut_sends(kvs_layout_cut(l, (uint32_t)at).heads,
				      s->tp, s->tp_rank);
		at = shard < 0 ? -1
			       : kvs_layout_find_shard(l, kind, layer,
						       (unsigned int)shard);
	}
	if (at < 0 || l->buffers[at].kind != kind ||
	    l->buffers[at].layer != layer || !kvs_slice_has(s, l, (uint32_t)at))
		return -ENOENT;
	return at;
}

static bool kvs_span_has(uint32_t first, uint32_t n, uint32_t layer)
{
	return layer >= first && layer - first < n;
}

/* Buffers of @kind in a span of layers; for messages. */
static uint32_t kvs_layout_count(const struct kvs_layout *l, unsigned int kind,
				 uint32_t first, uint32_t n)
{
	uint32_t count = 0;
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++)
		count += l->buffers[i].kind == kind &&
			 kvs_span_has(first, n, l->buffers[i].layer);
	return count;
}

static int kvs_layout_missing(const struct kvs_layout *prefill,
			      const struct kvs_layout *decode,
			      const struct kvs_layer_buffer *b,
			      const char *where, uint32_t first, uint32_t n,
			      char *err, size_t errlen)
{
	char buf[16];
	const char *kind = kvs_kind_text(b->kind, buf);

	snprintf(err, errlen,
		 "%s layer %u: missing on %s (%s layers: prefill %u, "
		 "decode %u)",
		 kind, b->layer, where, kind,
		 kvs_layout_count(prefill, b->kind, first, n),
		 kvs_layout_count(decode, b->kind, first, n));
	return -EPROTOTYPE;
}

/* @from's buffers of the slice that @in lacks, in @from's order. */
static const struct kvs_layer_buffer *
kvs_layout_first_missing(const struct kvs_layout *from,
			 const struct kvs_layout *in, const struct kvs_slice *s)
{
	uint32_t i;

	for (i = 0; i < from->n_buffers; i++) {
		const struct kvs_layer_buffer *b = &from->buffers[i];
		unsigned int shard = 0;

		if (!kvs_slice_has(s, from, i))
			continue;
		if (in->tp_rank == KVS_TP_RANK_ALL)
			shard = (unsigned int)kvs_cut_sends(
				kvs_layout_cut(from, i).heads, s->tp,
				s->tp_rank);
		if (kvs_layout_find_shard(in, b->kind, b->layer, shard) < 0)
			return b;
	}
	return NULL;
}

static int kvs_layout_differs(const char *what,
			      const struct kvs_layer_buffer *b, uint32_t p,
			      uint32_t d, char *err, size_t errlen)
{
	char buf[16];

	if (p == d)
		return 0;
	snprintf(err, errlen, "%s of %s layer %u: prefill %u, decode %u", what,
		 kvs_kind_text(b->kind, buf), b->layer, p, d);
	return -EPROTOTYPE;
}

static int kvs_layout_match_buffers(const struct kvs_layout *prefill,
				    const struct kvs_layout *decode,
				    const struct kvs_slice *s, char *err,
				    size_t errlen)
{
	const struct kvs_layer_buffer *b, *p;
	struct kvs_buffer_cut pc, dc;
	uint32_t i, at;
	int ret = 0;

	for (i = 0; i < decode->n_buffers && !ret; i++) {
		b = &decode->buffers[i];
		if (!kvs_slice_has(s, decode, i))
			continue;
		at = (uint32_t)kvs_layout_find(prefill, b->kind, b->layer);
		p = &prefill->buffers[at];
		pc = kvs_layout_cut(prefill, at);
		dc = kvs_layout_cut(decode, i);
		/* who does not say is compared by the bytes of an item */
		if (pc.heads && dc.heads)
			ret = kvs_layout_differs("heads", b, pc.heads, dc.heads,
						 err, errlen);
		if (!ret && pc.heads && dc.heads)
			ret = kvs_layout_differs("planes", b, pc.planes,
						 dc.planes, err, errlen);
		if (!ret && pc.heads && kvs_layout_tp(prefill) != s->tp)
			ret = kvs_layout_differs("tp", b,
						 kvs_layout_tp(prefill), s->tp,
						 err, errlen);
		if (!ret && pc.heads && s->tp > 1)
			ret = kvs_layout_differs("tp_rank", b, prefill->tp_rank,
						 s->tp_rank, err, errlen);
		if (!ret)
			ret = kvs_layout_differs("item_len", b, p->item_len,
						 b->item_len, err, errlen);
		if (!ret)
			ret = kvs_layout_differs("items", b, p->items, b->items,
						 err, errlen);
	}
	return ret;
}

static int kvs_layout_match_indexed(const struct kvs_layout *prefill,
				    const struct kvs_layout *decode,
				    const struct kvs_slice *s, char *err,
				    size_t errlen)
{
	const struct kvs_layer_buffer *b;

	b = kvs_layout_first_missing(decode, prefill, s);
	if (b)
		return kvs_layout_missing(prefill, decode, b, "prefill",
					  s->first_layer, s->n_layers, err,
					  errlen);
	/* a state nobody asks for is lost without a word: refuse it too */
	b = kvs_layout_first_missing(prefill, decode, s);
	if (b)
		return kvs_layout_missing(prefill, decode, b, "decode",
					  s->first_layer, s->n_layers, err,
					  errlen);
	return kvs_layout_match_buffers(prefill, decode, s, err, errlen);
}

int kvs_layout_match_slice(const struct kvs_layout *prefill,
			   const struct kvs_layout *decode,
			   const struct kvs_slice *s, char *err, size_t errlen)
{
	struct kvs_layout *p = NULL, *d = NULL;
	char pbuf[16], dbuf[16];
	int ret;

	if (prefill->page_size != decode->page_size) {
		snprintf(err, errlen, "page_size: prefill %u, decode %u",
			 prefill->page_size, decode->page_size);
		return -EPROTOTYPE;
	}
	if (!s->n_layers)
		return 0;
	if (prefill->dtype != decode->dtype) {
		snprintf(err, errlen, "dtype: prefill %s, decode %s",
			 kvs_dtype_text(prefill->dtype, pbuf),
			 kvs_dtype_text(decode->dtype, dbuf));
		return -EPROTOTYPE;
	}
	/* both are searched once per buffer of the other */
	ret = kvs_layout_dup(prefill, &p);
	if (!ret)
		ret = kvs_layout_dup(decode, &d);
	if (!ret)
		ret = kvs_layout_match_indexed(p, d, s, err, errlen);
	else
		snprintf(err, errlen, "no memory to compare layouts");
	free(p);
	free(d);
	return ret;
}

int kvs_layout_match(const struct kvs_layout *prefill,
		     const struct kvs_layout *decode, uint32_t first_layer,
		     uint32_t n_layers, char *err, size_t errlen)
{
	const struct kvs_slice s = { first_layer, n_layers, 1, 0 };

	return kvs_layout_match_slice(prefill, decode, &s, err, errlen);
}

/* First layer at or after @from that @l has a buffer of; -1: none. */
static int64_t kvs_layout_next_layer(const struct kvs_layout *l, uint32_t from)
{
	int64_t best = -1;
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++) {
		uint32_t layer = l->buffers[i].layer;

		if (layer >= from && (best < 0 || layer < best))
			best = layer;
	}
	return best;
}

int kvs_layout_check_owners(const struct kvs_layout *decode,
			    const struct kvs_rank_slice *ranks, uint32_t n,
			    char *err, size_t errlen)
{
	int64_t layer = kvs_layout_next_layer(decode, 0);
	uint32_t i, owner, next;

	while (layer >= 0) {
		owner = UINT32_MAX;
		/* nothing changes before the next border of any span */
		next = UINT16_MAX + 1;
		for (i = 0; i < n; i++) {
			uint64_t end = (uint64_t)ranks[i].first_layer +
				       ranks[i].n_layers;

			if (ranks[i].first_layer > layer &&
			    ranks[i].first_layer < next)
				next = ranks[i].first_layer;
			if (!kvs_span_has(ranks[i].first_layer,
					  ranks[i].n_layers, (uint32_t)layer))
				continue;
			if (end < next)
				next = (uint32_t)end;
			if (owner != UINT32_MAX) {
				snprintf(err, errlen,
					 "layer %" PRId64
					 ": given to rank %u and rank %u",
					 layer, owner, i);
				return -EPROTOTYPE;
			}
			owner = i;
		}
		if (owner == UINT32_MAX) {
			snprintf(err, errlen,
				 "layer %" PRId64 ": given to no rank", layer);
			return -EPROTOTYPE;
		}
		layer = kvs_layout_next_layer(decode, next);
	}
	return 0;
}

uint64_t kvs_layout_bytes_per_token(const struct kvs_layout *l)
{
	uint64_t page = 0;
	uint32_t i;

	for (i = 0; i < l->n_buffers; i++) {
		if (kvs_buffer_kind_is_paged(l->buffers[i].kind))
			page += l->buffers[i].item_len;
	}
	page = (page + l->page_size - 1) / l->page_size;
	return page ? page : 1;
}
