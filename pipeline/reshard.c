/* SPDX-License-Identifier: Apache-2.0 */
/* From the extents of a room to the buffers of one decode rank. */
#include "pipeline/reshard.h"

#include <errno.h>

/* Where the pieces go, and how many there were. */
struct reshard_out {
	struct kvs_reshard_piece *v;
	size_t max;
	size_t n;
};

/* One shard of the room and one device buffer, in bytes. */
struct reshard_pair {
	const struct kvs_geometry *g;
	uint32_t host; /* buffer of the room's layout */
	uint64_t planes;
	uint64_t host_tokens; /* of an item */
	uint64_t dev_tokens;
	uint64_t host_row; /* of a token in a plane */
	uint64_t dev_row;
	uint64_t host_at; /* where the heads that are taken begin in it */
	uint64_t dev_at;
	uint64_t len; /* of them */
	uint64_t dev_items; /* of the request */
};

uint32_t kvs_reshard_pages(const struct kvs_layout *dev, uint64_t tokens)
{
	return (uint32_t)((tokens + dev->page_size - 1) / dev->page_size);
}

static void put(struct reshard_out *o, struct kvs_reshard_piece p)
{
	/* rows that touch on both sides are one */
	if (p.rows > 1 && p.host_row == p.row_len && p.dev_row == p.row_len) {
		p.row_len *= p.rows;
		p.rows = 1;
	}
	if (p.rows == 1) {
		p.host_row = 0;
		p.dev_row = 0;
	}
	if (p.n == 1)
		p.host_item = p.rows * p.row_len;
	if (o->n < o->max)
		o->v[o->n] = p;
	o->n++;
}

/*
 * Tokens [from, from + n * step) of the run follow one another on the host,
 * @step for each device item; of each the first @rows are taken.
 */
static void put_tokens(struct reshard_out *o, const struct reshard_pair *q,
		       uint32_t extent, uint64_t off, uint64_t host_item,
		       uint64_t first, uint64_t n, uint64_t rows, uint64_t at)
{
	if (!n || !rows)
		return;
	put(o, (struct kvs_reshard_piece){
		       .extent = extent,
		       .first = (uint32_t)first,
		       .n = (uint32_t)n,
		       .off = off + q->host_at,
		       .at = at + q->dev_at,
		       .rows = rows,
		       .row_len = q->len,
		       .host_row = q->host_row,
		       .dev_row = q->dev_row,
		       .host_item = host_item,
	       });
}

/* Tokens that follow one another through all items of the run. */
static void linear(struct reshard_out *o, const struct reshard_pair *q,
		   uint32_t extent, uint64_t off, uint64_t tokens,
		   uint64_t first)
{
	uint64_t whole = tokens / q->dev_tokens, rest = tokens % q->dev_tokens;
	uint64_t step = q->dev_tokens * q->host_row;

	if (whole > q->dev_items - first) {
		whole = q->dev_items - first;
		rest = 0;
	}
	put_tokens(o, q, extent, off, step, first, whole, q->dev_tokens, 0);
	if (first + whole < q->dev_items)
		put_tokens(o, q, extent, off + whole * step, step,
			   first + whole, 1, rest, 0);
}

/* Plane by plane; an item of the host is one of the device. */
static void planes_alike(struct reshard_out *o, const struct reshard_pair *q,
			 uint32_t extent, uint64_t off, uint64_t items,
			 uint64_t first)
{
	uint64_t host_plane = q->host_tokens * q->host_row;
	uint64_t dev_plane = q->dev_tokens * q->dev_row;
	uint64_t item = q->planes * host_plane;

	if (q->len == q->host_row && q->len == q->dev_row) {
		/* whole items; planes are just more tokens */
		put(o, (struct kvs_reshard_piece){
			       .extent = extent,
			       .first = (uint32_t)first,
			       .n = (uint32_t)items,
			       .off = off,
			       .rows = 1,
			       .row_len = item,
			       .host_item = item,
		       });
		return;
	}
	for (uint64_t p = 0; p < q->planes; p++)
		put_tokens(o, q, extent, off + p * host_plane, item, first,
			   items, q->host_tokens, p * dev_plane);
}

/* Several pages of the host make one of the device: the first of each, then
 * the second of each, and so on. */
static void planes_join(struct reshard_out *o, const struct reshard_pair *q,
			uint32_t extent, uint64_t off, uint64_t items,
			uint64_t first)
{
	uint64_t k = q->dev_tokens / q->host_tokens;
	uint64_t host_plane = q->host_tokens * q->host_row;
	uint64_t dev_plane = q->dev_tokens * q->dev_row;
	uint64_t item = q->planes * host_plane;

	for (uint64_t p = 0; p < q->planes; p++)
		for (uint64_t j = 0; j < k && j < items; j++)
			put_tokens(o, q, extent,
				   off + j * item + p * host_plane, k * item,
				   first, (items - j - 1) / k + 1,
				   q->host_tokens,
				   p * dev_plane +
					   j * q->host_tokens * q->dev_row);
}

/* A page of the host is cut into several of the device. */
static void planes_split(struct reshard_out *o, const struct reshard_pair *q,
			 uint32_t extent, uint64_t off, uint64_t items,
			 uint64_t first)
{
	uint64_t k = q->host_tokens / q->dev_tokens;
	uint64_t host_plane = q->host_tokens * q->host_row;
	uint64_t dev_plane = q->dev_tokens * q->dev_row;
	uint64_t n;

	for (uint64_t i = 0; i < items; i++) {
		if (first + i * k >= q->dev_items)
			return;
		n = q->dev_items - first - i * k;
		if (n > k)
			n = k;
		for (uint64_t p = 0; p < q->planes; p++)
			put_tokens(o, q, extent,
				   off + (i * q->planes + p) * host_plane,
				   q->dev_tokens * q->host_row, first + i * k,
				   n, q->dev_tokens, p * dev_plane);
	}
}

/* A run of the room, in one extent. */
static void pair_extent(struct reshard_out *o, const struct reshard_pair *q,
			uint32_t extent, uint64_t from_token)
{
	const struct kvs_layer_buffer *b = &q->g->layout->buffers[q->host];
	uint64_t off, len, items, first = from_token / q->dev_tokens;

	if (kvs_geometry_run(q->g, extent, q->host, &off, &len) || !len)
		return;
	items = len / b->item_len;
	if (q->host_tokens == q->dev_tokens)
		planes_alike(o, q, extent, off, items, first);
	else if (q->planes == 1)
		linear(o, q, extent, off, items * q->host_tokens, first);
	else if (q->host_tokens < q->dev_tokens)
		planes_join(o, q, extent, off, items, first);
	else
		planes_split(o, q, extent, off, items, first);
}

static void pair_pieces(struct reshard_out *o, const struct reshard_pair *q)
{
	const struct kvs_layout *l = q->g->layout;

	if (!kvs_buffer_kind_is_paged(l->buffers[q->host].kind)) {
		pair_extent(o, q, q->g->n_extents - 1, 0);
		return;
	}
	for (uint32_t x = 0; x < q->g->n_extents; x++)
		pair_extent(o, q, x,
			    (uint64_t)x * q->g->extent_pages * l->page_size);
}

/* The lengths of a pair of buffers; false when they do not fit together. */
static bool pair_init(struct reshard_pair *q, const struct kvs_geometry *g,
		      uint32_t host, const struct kvs_layout *dev, uint32_t b)
{
	const struct kvs_layer_buffer *h = &g->layout->buffers[host];
	const struct kvs_layer_buffer *d = &dev->buffers[b];
	struct kvs_buffer_cut hc = kvs_layout_cut(g->layout, host);
	struct kvs_buffer_cut dc = kvs_layout_cut(dev, b);
	bool paged = kvs_buffer_kind_is_paged(d->kind);

	*q = (struct reshard_pair){
		.g = g,
		.host = host,
		.planes = dc.planes,
		.host_tokens = kvs_layout_item_tokens(g->layout, host),
		.dev_tokens = kvs_layout_item_tokens(dev, b),
	};
	q->dev_items = kvs_buffer_items(d, kvs_reshard_pages(dev, g->tokens));
	if (hc.heads != dc.heads || hc.planes != dc.planes)
		return false;
	/* not cut, and not to be taken apart: one token and one plane */
	if (!dc.heads && (q->host_tokens == q->dev_tokens || !paged)) {
		q->planes = 1;
		q->host_tokens = 1;
		q->dev_tokens = 1;
	}
	q->host_row = h->item_len / (q->planes * q->host_tokens);
	q->dev_row = d->item_len / (q->planes * q->dev_tokens);
	q->len = q->dev_row;
	if (h->item_len != q->host_row * q->planes * q->host_tokens ||
	    d->item_len != q->dev_row * q->planes * q->dev_tokens)
		return false;
	if (!paged && kvs_buffer_items(h, g->pages) != q->dev_items)
		return false;
	return dc.heads || q->host_row == q->dev_row;
}

/* The heads that a shard and the rank have both; false: none. */
static bool pair_heads(struct reshard_pair *q, uint32_t shard,
		       const struct kvs_layout *dev, uint32_t heads,
		       bool *ret_broken)
{
	uint32_t shards = kvs_cut_shards(heads, kvs_layout_tp(q->g->layout));
	uint32_t hn = heads / shards, hf = shard * hn, df, dn, from, to;
	uint64_t unit;

	dn = kvs_cut_heads(heads, kvs_layout_tp(dev), dev->tp_rank, &df);
	unit = q->dev_row / dn;
	*ret_broken = !unit || q->dev_row != unit * dn ||
		      q->host_row != unit * hn;
	from = hf > df ? hf : df;
	to = hf + hn < df + dn ? hf + hn : df + dn;
	if (from >= to)
		return false;
	q->host_at = (from - hf) * unit;
	q->dev_at = (from - df) * unit;
	q->len = (to - from) * unit;
	return true;
}

/* Without shards the page layout of the pages in the item list begins anew in
 * each extent; a from_token must be in units of what an item stands for. */
static void pair_whole(struct reshard_out *o, struct reshard_pair *q,
		       bool paged)
{
	uint64_t off, len, per = q->g->extent_pages, items;
	const struct kvs_layer_buffer *b = &q->g->layout->buffers[q->host];

	for (uint32_t x = paged ? 0 : q->g->n_extents - 1; x < q->g->n_extents;
	     x++) {
		if (kvs_geometry_run(q->g, x, q->host, &off, &len) || !len)
			continue;
		items = len / b->item_len;
		planes_alike(o, q, x, off, items, paged ? x * per : 0);
	}
}

int64_t kvs_reshard_pieces(const struct kvs_geometry *g,
			   const struct kvs_layout *dev, uint32_t b,
			   struct kvs_reshard_piece *ret, size_t max)
{
	const struct kvs_layer_buffer *d = &dev->buffers[b];
	struct reshard_out o = { ret, max, 0 };
	uint32_t heads = kvs_layout_cut(dev, b).heads, shards, first, last, n;
	bool room = g->layout->tp_rank == KVS_TP_RANK_ALL, broken = false;
	struct reshard_pair q;
	int host;

	if (!room || !heads) {
		host = kvs_layout_find(g->layout, d->kind, d->layer);
		if (host < 0 || !pair_init(&q, g, (uint32_t)host, dev, b))
			return -EPROTO;
		if (q.host_tokens == q.dev_tokens)
			pair_whole(&o, &q, kvs_buffer_kind_is_paged(d->kind));
		else
			pair_pieces(&o, &q);
		return (int64_t)o.n;
	}
	/* the shards that have heads of ours */
	n = kvs_cut_heads(heads, kvs_layout_tp(dev), dev->tp_rank, &first);
	shards = kvs_cut_shards(heads, kvs_layout_tp(g->layout));
	last = (first + n - 1) / (heads / shards);
	for (uint32_t s = first / (heads / shards); s <= last; s++) {
		host = kvs_layout_find_shard(g->layout, d->kind, d->layer, s);
		if (host < 0 || !pair_init(&q, g, (uint32_t)host, dev, b))
			return -EPROTO;
		if (pair_heads(&q, s, dev, heads, &broken))
			pair_pieces(&o, &q);
		if (broken)
			return -EPROTO;
	}
	return (int64_t)o.n;
}
