/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: whatever the prefill's and the decode's tensor parallelism (1, 2, 4
 * and 8 on either side), page size (1, 16, 64, 128) and pipeline stages, for
 * every preset, cut states included, the pieces of each decode rank bring every
 * byte of its heads of its layers to its place and touch no other: compared
 * with an oracle that knows nothing of pieces, shards or rows, but asks for each
 * byte of the device which (layer, token, plane, head, byte) it is. Page lists
 * are random, the last page is partial, the pool is page first or layer first.
 * The soft device moves the bytes; in reshard_cuda, the same for every preset
 * and for every pair of page sizes, the CUDA backend over the double of the
 * driver does, through its ring and by the kernel alone. What cannot be resharded is refused with
 * both numbers. The number of pieces is printed, and does not grow with the
 * tokens; the chunks that a sender writes do not depend on the decode side.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/device.h"
#include "lib/assert.h"
#include "lib/rng.h"
#include "pinned/arena.h"
#include "pipeline/presets.h"
#include "pipeline/reshard.h"
#include "pipeline/sender_internal.h"

#define RANKS_MAX 16u

static struct kvs_device *device;
static uint64_t total_pieces, total_plans, total_bytes;

/* ---- what every byte is: of (kind, layer), token or item, plane, head ---- */

static uint8_t content(unsigned int kind, unsigned int layer, uint64_t item,
		       uint32_t plane, uint32_t head, uint32_t byte)
{
	uint64_t h = kind * 0x9e3779b97f4a7c15u ^ layer * 0xc2b2ae3d27d4eb4fu;

	h ^= item * 0x165667b19e3779f9u + plane * 0x27d4eb2f165667c5u +
	     head * 0x85ebca77c2b2ae63u + byte * 0x2545f4914f6cdd1du;
	return (uint8_t)(kvs_mix64(h) | 1); /* never 0: that is untouched */
}

/* Of byte @at of item @item of a buffer: which one it is. */
struct where {
	uint64_t item; /* token of the request; else the item */
	uint32_t plane;
	uint32_t head;
	uint32_t byte;
};

static struct where where(const struct kvs_layout *l, uint32_t b,
			  uint64_t items, uint64_t item, uint32_t at)
{
	const struct kvs_layer_buffer *buf = &l->buffers[b];
	struct kvs_buffer_cut c = kvs_layout_cut(l, b);
	uint32_t tokens = 1, heads = 1, first = 0, part, unit;
	struct where w = { 0 };
	bool window = buf->kind == KVS_BUFFER_SWA;
	bool taken_apart = c.heads || buf->kind == KVS_BUFFER_KV;

	(void)items;
	if (taken_apart && (kvs_buffer_kind_is_paged(buf->kind) || window))
		tokens = l->page_size;
	if (c.heads) {
		uint32_t tp = l->tp ? l->tp : 1;

		heads = c.heads > tp ? c.heads / tp : 1;
		first = c.heads * l->tp_rank / tp;
	}
	unit = buf->item_len / (c.planes * tokens * heads);
	part = at / unit;
	w.byte = at % unit;
	w.head = first + part % heads;
	w.item = item * tokens + part / heads % tokens;
	w.plane = part / heads / tokens;
	return w;
}

static uint8_t oracle(const struct kvs_layout *l, uint32_t b, uint64_t items,
		      uint64_t item, uint32_t at)
{
	struct where w = where(l, b, items, item, at);

	return content(l->buffers[b].kind, l->buffers[b].layer, w.item, w.plane,
		       w.head, w.byte);
}

/* ---- one prefill side, one decode side ---- */

struct side {
	uint32_t tp;
	uint32_t pp;
	uint32_t page_size;
	struct kvs_layout *rank[RANKS_MAX]; /* by pp, then tp */
	struct kvs_slice slice[RANKS_MAX];
};

/* The buffers of a stage's layers. */
static struct kvs_layout *stage_of(const struct kvs_layout *all, uint32_t first,
				   uint32_t n)
{
	struct kvs_layer_buffer buffers[KVS_LAYOUT_BUFFERS_MAX];
	struct kvs_buffer_cut cuts[KVS_LAYOUT_BUFFERS_MAX];
	struct kvs_layout l = *all, *ret;

	l.size = sizeof(l);
	l.buffers = buffers;
	l.n_buffers = 0;
	for (uint32_t i = 0; i < all->n_buffers; i++) {
		if (all->buffers[i].layer < first ||
		    all->buffers[i].layer - first >= n)
			continue;
		cuts[l.n_buffers] = kvs_layout_cut(all, i);
		buffers[l.n_buffers++] = all->buffers[i];
	}
	if (all->cuts)
		l.cuts = cuts;
	assert_int_equal(kvs_layout_dup(&l, &ret), 0);
	return ret;
}

struct model {
	const char *name; /* preset; NULL: the one with cut states */
	uint32_t layers;
};

/* K and V in one buffer, a state that is cut, one that is not. */
static struct kvs_layout *hybrid(uint32_t tp, uint32_t tp_rank,
				 uint32_t page_size)
{
	uint32_t n = tp < 4 ? 4 / tp : 1;
	struct kvs_layer_buffer b[] = {
		{ KVS_BUFFER_MAMBA, 0, 3 * n * 20, 2 },
		{ KVS_BUFFER_KV, 1, 2 * page_size * n * 6, 0 },
		{ KVS_BUFFER_OTHER, 1, 33, 1 },
		{ KVS_BUFFER_MAMBA, 2, n * 8, 1 },
	};
	static const struct kvs_buffer_cut cuts[] = {
		{ 4, 3, 0 }, { 4, 2, 0 }, { 0, 0, 0 }, { 4, 0, 0 }
	};
	struct kvs_layout l = {
		.size = sizeof(l),
		.page_size = page_size,
		.dtype = KVS_DTYPE_BF16,
		.n_buffers = 4,
		.buffers = b,
		.aux_max = 64,
		.tp = tp,
		.tp_rank = tp_rank,
		.cuts = cuts,
	};
	struct kvs_layout *ret;
	char err[256];

	if (kvs_layout_check(&l, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(kvs_layout_dup(&l, &ret), 0);
	return ret;
}

static int side_make(struct side *s, const struct model *m, uint32_t tp,
		     uint32_t pp, uint32_t page_size)
{
	struct kvs_layout *all;
	char err[512];

	*s = (struct side){ .tp = tp, .pp = pp, .page_size = page_size };
	for (uint32_t r = 0; r < tp * pp; r++) {
		struct kvs_preset_opts o = {
			.tp = tp,
			.tp_rank = r % tp,
			.layers = m->layers,
			.page_size = page_size,
		};
		uint32_t stage = r / tp, n = m->layers;

		if (!m->name)
			all = hybrid(tp, r % tp, page_size);
		else if (kvs_preset_layout(m->name, &o, &all, err, sizeof(err)))
			return -EINVAL;
		s->slice[r] = (struct kvs_slice){
			n * stage / pp,
			n * (stage + 1) / pp - n * stage / pp,
			tp,
			r % tp,
		};
		s->rank[r] = stage_of(all, s->slice[r].first_layer,
				      s->slice[r].n_layers);
		free(all);
	}
	return 0;
}

static void side_free(struct side *s)
{
	for (uint32_t r = 0; r < s->tp * s->pp; r++)
		free(s->rank[r]);
}

/* ---- the room, as the senders leave it ---- */

struct room {
	struct kvs_layout *l;
	struct kvs_geometry g;
	uint8_t **extents;
};

/* Each rank writes its own buffers, whole items, where the room has them. */
static void send_all(struct room *r, const struct side *p)
{
	for (uint32_t k = 0; k < p->tp * p->pp; k++) {
		const struct kvs_layout *own = p->rank[k];

		for (uint32_t b = 0; b < own->n_buffers; b++) {
			const struct kvs_layer_buffer *buf = &own->buffers[b];
			bool paged = kvs_buffer_kind_is_paged(buf->kind);
			uint64_t off, len, items;
			int at;

			if (!kvs_slice_has(&p->slice[k], own, b))
				continue;
			at = kvs_slice_find(&p->slice[k], r->l, buf->kind,
					    buf->layer);
			assert_true(at >= 0);
			assert_int_equal(r->l->buffers[at].item_len,
					 buf->item_len);
			items = kvs_buffer_items(buf, r->g.pages);
			for (uint32_t x = 0; x < r->g.n_extents; x++) {
				uint64_t first =
					paged ? (uint64_t)x * r->g.extent_pages
					      : 0;

				kvs_geometry_run(&r->g, x, (uint32_t)at, &off,
						 &len);
				for (uint64_t i = 0; i < len; i++)
					r->extents[x][off + i] = oracle(
						own, b, items,
						first + i / buf->item_len,
						(uint32_t)(i % buf->item_len));
			}
		}
	}
}

static void room_make(struct room *r, const struct side *p,
		      const struct side *d, uint64_t tokens,
		      uint32_t max_tokens)
{
	struct kvs_reshard_prefill pre = { p->tp, p->page_size, p->tp * p->pp,
					   p->slice };
	uint32_t big = p->page_size > d->page_size ? p->page_size
						   : d->page_size;
	char err[512] = "";

	if (kvs_reshard_layout((const struct kvs_layout *const *)d->rank,
			       d->tp * d->pp, &pre, false, &r->l, err,
			       sizeof(err)))
		fail_msg("tp %u pages %u to tp %u pages %u: %s", p->tp,
			 p->page_size, d->tp, d->page_size, err);
	max_tokens = (max_tokens + big - 1) / big * big;
	assert_int_equal(kvs_geometry_init(&r->g, r->l, tokens, max_tokens,
					   KVS_ARENA_SEGMENT_MAX, 1, 0),
			 0);
	r->extents = calloc(r->g.n_extents, sizeof(*r->extents));
	assert_non_null(r->extents);
	for (uint32_t x = 0; x < r->g.n_extents; x++) {
		/* exactly as long, so that ASan sees a byte too far */
		r->extents[x] = calloc(kvs_geometry_len(&r->g, x), 1);
		assert_non_null(r->extents[x]);
		assert_int_equal(
			kvs_device_register_host(device, r->extents[x],
						 kvs_geometry_len(&r->g, x), 0),
			0);
	}
	send_all(r, p);
}

static void room_free(struct room *r)
{
	for (uint32_t x = 0; x < r->g.n_extents; x++) {
		assert_int_equal(
			kvs_device_unregister_host(device, r->extents[x],
						   kvs_geometry_len(&r->g, x)),
			0);
		free(r->extents[x]);
	}
	free(r->extents);
	kvs_geometry_fini(&r->g);
	free(r->l);
}

/* ---- one decode rank ---- */

static void shuffled(struct kvs_rng *rng, uint32_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = (uint32_t)kvs_rng_below(rng, i + 1u);

		v[i] = v[j];
		v[j] = i;
	}
}

/* Moves the pieces of a buffer: a run with a shape each, as the engine does. */
static void move(const struct room *r, const struct kvs_reshard_piece *v,
		 size_t n, uint8_t *base, uint64_t stride,
		 const uint32_t *items)
{
	struct kvs_copy_run *run = calloc(n, sizeof(*run));
	struct kvs_copy_shape *shape = calloc(n, sizeof(*shape));
	struct kvs_copy c = {
		.runs = run, .n_runs = n, .shapes = shape, .dir = KVS_COPY_H2D
	};
	int ret;

	assert_true(run && shape);
	for (size_t i = 0; i < n; i++) {
		run[i] = (struct kvs_copy_run){
			.host = r->extents[v[i].extent] + v[i].off,
			.dev = base + v[i].at,
			.item_len = v[i].rows * v[i].row_len,
			.pages = items + v[i].first,
			.n = v[i].n,
		};
		shape[i] = (struct kvs_copy_shape){
			.rows = v[i].rows,
			.row_len = v[i].row_len,
			.host_row = v[i].host_row,
			.dev_row = v[i].dev_row,
			.host_item = v[i].host_item,
			.dev_item = stride,
		};
		total_bytes += run[i].item_len * run[i].n;
	}
	assert_int_equal(kvs_device_copy(device, &c), 0);
	while ((ret = kvs_device_query(device, &c)) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(ret, 0);
	free(run);
	free(shape);
}

/* Tokens of the request that have a page at the prefill, padding included. */
static uint64_t covered(const struct room *r)
{
	return (uint64_t)r->g.pages * r->l->page_size;
}

static void check(const struct room *r, const struct kvs_layout *l, uint32_t b,
		  const uint8_t *base, uint64_t stride, const uint32_t *items,
		  uint64_t n, uint64_t slots)
{
	const struct kvs_layer_buffer *buf = &l->buffers[b];
	bool paged = kvs_buffer_kind_is_paged(buf->kind);
	bool *used = calloc(slots, sizeof(*used));

	assert_non_null(used);
	for (uint64_t i = 0; i < n; i++) {
		const uint8_t *p = base + items[i] * stride;

		used[items[i]] = true;
		for (uint32_t k = 0; k < buf->item_len; k++) {
			const struct where w = where(l, b, n, i, k);
			uint8_t want = oracle(l, b, n, i, k);

			/* only of taken apart pages is an item a token */
			if (paged && r->l->page_size != l->page_size &&
			    w.item >= covered(r))
				want = 0;
			if (p[k] != want)
				fail_msg("%s layer %u item %llu byte %u: %02x, "
					 "not %02x",
					 kvs_buffer_kind_name(buf->kind),
					 buf->layer, (unsigned long long)i, k,
					 p[k], want);
		}
	}
	for (uint64_t s = 0; s < slots; s++)
		for (uint64_t k = 0; k < stride; k++)
			if ((!used[s] || k >= buf->item_len) &&
			    base[s * stride + k])
				fail_msg("%s layer %u: slot %llu byte %llu is "
					 "written",
					 kvs_buffer_kind_name(buf->kind),
					 buf->layer, (unsigned long long)s,
					 (unsigned long long)k);
	free(used);
}

static void commit(const struct room *r, const struct kvs_layout *l,
		   struct kvs_rng *rng)
{
	uint32_t pages = kvs_reshard_pages(l, r->g.tokens);
	uint64_t apart = kvs_rng_below(rng, 2) ? 48 : 0;

	for (uint32_t b = 0; b < l->n_buffers; b++) {
		const struct kvs_layer_buffer *buf = &l->buffers[b];
		uint64_t n = kvs_buffer_items(buf, pages), slots = n + 3;
		uint64_t stride = buf->item_len + apart;
		uint32_t *items = calloc(slots, sizeof(*items));
		struct kvs_reshard_piece *v;
		void *base;
		int64_t count;

		assert_non_null(items);
		shuffled(rng, items, (uint32_t)slots);
		assert_int_equal(
			kvs_device_alloc(device, slots * stride, &base), 0);
		memset(base, 0, slots * stride);
		count = kvs_reshard_pieces(&r->g, l, b, NULL, 0);
		assert_true(count > 0);
		v = calloc((size_t)count, sizeof(*v));
		assert_non_null(v);
		assert_int_equal(kvs_reshard_pieces(&r->g, l, b, v,
						    (size_t)count),
				 count);
		move(r, v, (size_t)count, base, stride, items);
		check(r, l, b, base, stride, items, n, slots);
		total_pieces += (uint64_t)count;
		free(v);
		free(items);
		kvs_device_free(device, base);
	}
	total_plans++;
}

static void exact(const struct model *m, uint32_t ptp, uint32_t ppp,
		  uint32_t ppage, uint32_t dtp, uint32_t dpp, uint32_t dpage,
		  uint64_t tokens, uint32_t extent, struct kvs_rng *rng)
{
	struct side p, d;
	struct room r;

	/* heads that the model cannot be cut into */
	if (side_make(&p, m, ptp, ppp, ppage)) {
		return;
	}
	if (side_make(&d, m, dtp, dpp, dpage)) {
		side_free(&p);
		return;
	}
	room_make(&r, &p, &d, tokens, extent);
	for (uint32_t k = 0; k < dtp * dpp; k++)
		commit(&r, d.rank[k], rng);
	room_free(&r);
	side_free(&p);
	side_free(&d);
}

static struct kvs_rng the_rng;
static bool brief; /* on the double, which interprets each thread */

static void all_presets(void **state)
{
	static const uint32_t tp[] = { 1, 2, 4, 8 };
	static const uint32_t pages[] = { 1, 16, 64, 128 };
	const char *name;

	(void)state;
	for (name = kvs_preset_next(NULL); name; name = kvs_preset_next(name)) {
		struct model m = { name, 1 };
		uint64_t before = total_pieces, plans = total_plans;

		if (!strncmp(name, "gpt-oss", 7))
			m.layers = 2;
		else if (!strcmp(name, "tiny-hybrid"))
			m.layers = 4;
		/* all TP pairs and all page sizes; not each with each */
		for (uint32_t i = 0; i < 64; i++) {
			uint32_t page = pages[(i / 16 + i + i / 4) % 4];

			/* each with each where it is cheap */
			if (i >= 16 && (brief || strncmp(name, "tiny", 4) != 0))
				break;
			exact(&m, tp[i / 4 % 4], 1, page, tp[i % 4], 1, page,
			      1 + kvs_rng_below(&the_rng, page + 40), page,
			      &the_rng);
		}
		print_message("%s: %llu pieces for %llu ranks\n", name,
			      (unsigned long long)(total_pieces - before),
			      (unsigned long long)(total_plans - plans));
	}
}

static bool pages_may_change(const char *name)
{
	/* windows and indexers cannot be cut anew */
	return !name || (!strstr(name, "gpt-oss") && !strstr(name, "v3.2") &&
			 !strstr(name, "glm-5"));
}

static void page_sizes(void **state)
{
	static const uint32_t pages[] = { 1, 16, 64, 128 };
	static const char *const names[] = { NULL, "tiny-mha", "tiny-mla",
					     "tiny-hybrid", "qwen3-235b-a22b" };

	(void)state;
	for (size_t k = 0; k < KVS_ARRAY_SIZE(names); k++) {
		struct model m = { names[k], names[k] ? 4 : 3 };
		uint64_t before = total_pieces, plans = total_plans;

		if (names[k] && !strncmp(names[k], "tiny-m", 6))
			m.layers = 2;
		for (uint32_t i = 0; i < 16; i++) {
			uint32_t a = pages[i / 4], b = pages[i % 4];
			uint32_t big = a > b ? a : b;
			uint32_t tp = 1u << kvs_rng_below(&the_rng, 3);
			uint32_t td = 1u << kvs_rng_below(&the_rng, 3);

			exact(&m, tp, 1, a, td, 1, b,
			      1 + kvs_rng_below(&the_rng, 3 * big), big,
			      &the_rng);
			if (brief)
				continue;
			/* exactly whole pages, and one token alone */
			exact(&m, tp, 1, a, td, 1, b, 2 * big, big, &the_rng);
			exact(&m, tp, 1, a, td, 1, b, 1, big, &the_rng);
		}
		print_message("%s: %llu pieces for %llu ranks\n",
			      names[k] ? names[k] : "cut states",
			      (unsigned long long)(total_pieces - before),
			      (unsigned long long)(total_plans - plans));
	}
}

/* Layers by their number: stages of either side end anywhere. */
static void stages(void **state)
{
	static const struct model models[] = { { "tiny-hybrid", 4 },
					       { "qwen3-235b-a22b", 5 },
					       { "deepseek-v3", 5 },
					       { "gpt-oss-20b", 6 } };

	(void)state;
	for (size_t k = 0; k < KVS_ARRAY_SIZE(models); k++)
		for (uint32_t pp = 1; pp <= 4; pp++)
			for (uint32_t dp = 1; dp <= 4; dp++)
				exact(&models[k], 2, pp, 16, 4, dp, 16,
				      1 + kvs_rng_below(&the_rng, 60), 16,
				      &the_rng);
}

/* Many shapes at random. */
static void anything(void **state)
{
	static const uint32_t pages[] = { 1, 2, 8, 16 };
	static const char *const names[] = {
		NULL,	       NULL,	      "tiny-mha",	  "tiny-mla",
		"tiny-hybrid", "gpt-oss-20b", "deepseek-v3.2-fp8"
	};

	(void)state;
	for (uint32_t i = 0; i < 300; i++) {
		struct model m = {
			names[kvs_rng_below(&the_rng, KVS_ARRAY_SIZE(names))], 4
		};
		uint32_t a = pages[kvs_rng_below(&the_rng, 4)];
		uint32_t b = pages[kvs_rng_below(&the_rng, 4)];
		uint32_t tp = 1u << kvs_rng_below(&the_rng, 4);
		uint32_t td = 1u << kvs_rng_below(&the_rng, 4);
		uint32_t big;

		if (!m.name)
			m.layers = 3;
		else if (!strncmp(m.name, "tiny-m", 6))
			m.layers = 2;
		if (!pages_may_change(m.name))
			b = a;
		big = a > b ? a : b;
		exact(&m, tp, 1 + (uint32_t)kvs_rng_below(&the_rng, 2), a, td,
		      1 + (uint32_t)kvs_rng_below(&the_rng, 2), b,
		      1 + kvs_rng_below(&the_rng, 100),
		      big * (1 + (uint32_t)kvs_rng_below(&the_rng, 3)),
		      &the_rng);
	}
}

/* Pieces do not grow with the tokens, but with extents, shards and planes. */
static void few_pieces(void **state)
{
	struct model m = { "llama-3-70b", 1 };
	struct side p, d;
	struct room r;
	int64_t n;

	(void)state;
	for (uint32_t page = 1; page <= 64; page *= 64) {
		assert_int_equal(side_make(&p, &m, 8, 1, page), 0);
		assert_int_equal(side_make(&d, &m, 2, 1, 64), 0);
		room_make(&r, &p, &d, 1000, 1024);
		n = kvs_reshard_pieces(&r.g, d.rank[1], 0, NULL, 0);
		print_message("page %u to 64, 1000 tokens of 4 shards: %lld "
			      "pieces\n",
			      page, (long long)n);
		assert_in_range(n, 4, 8);
		room_free(&r);
		side_free(&p);
		side_free(&d);
	}
}

static uint32_t chunks_of(const struct room *r, const struct side *p,
			  uint32_t k)
{
	static uint32_t pages[4096];
	static char memory[1];
	const struct kvs_layout *own = p->rank[k];
	void **buffers = calloc(own->n_buffers, sizeof(*buffers));
	struct kvs_gather g = { .what = KVS_GATHER_PAGES,
				.n = r->g.pages,
				.items = pages };
	struct kvs_gather_map map = {
		.layout = own,
		.buffers = buffers,
		.extent_pages = r->g.extent_pages,
		.n_extents = r->g.n_extents,
		.slice = p->slice[k],
		.chunk_max = 16 << 20,
	};
	struct kvs_msg_chunk m;
	struct iovec iov[64];
	uint32_t n = 0;
	size_t used;

	assert_non_null(buffers);
	for (uint32_t i = 0; i < r->g.pages; i++)
		pages[i] = i;
	/* only addresses are made of it */
	for (uint32_t b = 0; b < own->n_buffers; b++)
		buffers[b] = memory;
	while (kvs_gather_next(&g, &map, iov, 64, &m, &used)) {
		assert_int_equal(used, 1);
		n++;
	}
	free(buffers);
	return n;
}

/* What a sender writes is the same whatever the decode side is: one chunk for
 * each of its buffers and each extent. */
static void same_messages(void **state)
{
	static const uint32_t tp[] = { 1, 2, 4, 8 };
	struct model m = { "tiny-mha", 2 };
	struct side p, d;
	struct room r;
	uint32_t n;

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t j = 0; j < 4; j++) {
			assert_int_equal(side_make(&p, &m, tp[i], 1, 16), 0);
			assert_int_equal(side_make(&d, &m, tp[j], 1, 16), 0);
			room_make(&r, &p, &d, 1000, 512);
			n = 0;
			for (uint32_t k = 0; k < tp[i]; k++)
				n += chunks_of(&r, &p, k);
			/* 2 heads: of more ranks than heads one each sends */
			assert_int_equal(n, (tp[i] < 2 ? tp[i] : 2) * 4 *
						    r.g.n_extents);
			print_message("tp %u to %u: %u chunks\n", tp[i], tp[j],
				      n);
			room_free(&r);
			side_free(&p);
			side_free(&d);
		}
	}
}

/* ---- refused ---- */

static void refuse(const struct kvs_layout *const *members, uint32_t n,
		   uint32_t tp, uint32_t page, const struct kvs_slice *s,
		   uint32_t n_slices, const char *const want[3])
{
	struct kvs_reshard_prefill p = { tp, page, n_slices, s };
	struct kvs_layout *l = NULL;
	char err[512] = "";

	assert_int_equal(kvs_reshard_layout(members, n, &p, false, &l, err,
					    sizeof(err)),
			 -EPROTOTYPE);
	assert_null(l);
	for (int i = 0; i < 3; i++)
		if (want[i] && !strstr(err, want[i]))
			fail_msg("\"%s\" is not in: %s", want[i], err);
}

#define WANT(...)              \
	(const char *const[3]) \
	{                      \
		__VA_ARGS__    \
	}

static void refuses(void **state)
{
	struct kvs_slice all = { 0, 100, 1, 0 };
	struct kvs_slice two[2] = { { 0, 100, 2, 0 }, { 0, 100, 2, 1 } };
	struct kvs_preset_opts o = { .layers = 2, .page_size = 64 };
	struct kvs_layout *mha, *gpt, *dsa, *other;
	const struct kvs_layout *pair[2];
	char err[512];

	(void)state;
	assert_int_equal(kvs_preset_layout("llama-3-70b", &o, &mha, err, 512),
			 0);
	assert_int_equal(kvs_preset_layout("gpt-oss-20b", &o, &gpt, err, 512),
			 0);
	assert_int_equal(kvs_preset_layout("deepseek-v3.2", &o, &dsa, err, 512),
			 0);
	pair[0] = mha;
	refuse(pair, 1, 3, 64, &all, 1, WANT("heads of k layer 0", "8", "3"));
	refuse(pair, 1, 1, 48, &all, 1,
	       WANT("page_size", "prefill 48", "decode 64"));
	refuse(pair, 1, 0, 64, &all, 1, WANT("tp", "0", NULL));
	refuse(pair, 1, 257, 64, &all, 1, WANT("tp", "257", "256"));
	refuse(pair, 1, 2, 64, two, 1, WANT("layer 0", "heads 4 to 7", "no"));
	all.tp_rank = 1;
	refuse(pair, 1, 1, 64, &all, 1, WANT("tp_rank", "1", "1"));
	all.tp_rank = 0;
	two[1].tp_rank = 0;
	refuse(pair, 1, 2, 64, two, 2, WANT("layer 0", "rank 0", "rank 1"));
	two[1].tp_rank = 1;
	two[1].n_layers = 1;
	refuse(pair, 1, 2, 64, two, 2, WANT("layer 1", "heads 4 to 7", "no"));
	all.n_layers = 1;
	refuse(pair, 1, 1, 64, &all, 1, WANT("layer 1", "no rank", NULL));
	all.n_layers = 100;
	pair[0] = gpt;
	refuse(pair, 1, 1, 128, &all, 1, WANT("swa", "prefill 128", "64"));
	pair[0] = dsa;
	refuse(pair, 1, 1, 32, &all, 1, WANT("dsa", "prefill 32", "64"));
	/* decode ranks that do not belong together */
	pair[0] = mha;
	o.page_size = 32;
	assert_int_equal(kvs_preset_layout("llama-3-70b", &o, &other, err, 512),
			 0);
	pair[1] = other;
	refuse(pair, 2, 1, 64, &all, 1, WANT("page_size", "64", "32"));
	free(other);
	o.page_size = 64;
	o.dtype = KVS_DTYPE_F16;
	assert_int_equal(kvs_preset_layout("llama-3-70b", &o, &other, err, 512),
			 0);
	pair[1] = other;
	refuse(pair, 2, 1, 64, &all, 1, WANT("dtype", "bfloat16", "float16"));
	free(other);
	o.dtype = 0;
	assert_int_equal(
		kvs_preset_layout("qwen3-235b-a22b", &o, &other, err, 512), 0);
	pair[1] = other;
	refuse(pair, 2, 1, 64, &all, 1, WANT("heads of k layer 0", "8", "4"));
	free(other);
	free(mha);
	free(gpt);
	free(dsa);
}

/* A room's layout from outside that lacks something. */
static void broken_rooms(void **state)
{
	struct model m = { "tiny-mha", 2 };
	struct side p, d;
	struct kvs_layout l;
	struct room r;

	(void)state;
	assert_int_equal(side_make(&p, &m, 2, 1, 16), 0);
	assert_int_equal(side_make(&d, &m, 1, 1, 16), 0);
	room_make(&r, &p, &d, 100, 32);
	l = *r.l;
	r.g.layout = &l;
	l.tp = 1; /* its shards are no halves then */
	assert_int_equal(kvs_reshard_pieces(&r.g, d.rank[0], 0, NULL, 0),
			 -EPROTO);
	l = *r.l;
	l.buffers[0].item_len /= 2;
	assert_int_equal(kvs_reshard_pieces(&r.g, d.rank[0], 0, NULL, 0),
			 -EPROTO);
	l.buffers[0].item_len *= 2;
	l.buffers[0].layer = 7;
	assert_int_equal(kvs_reshard_pieces(&r.g, d.rank[0], 0, NULL, 0),
			 -EPROTO);
	l.buffers[0].layer = 0;
	r.g.layout = r.l;
	room_free(&r);
	side_free(&p);
	side_free(&d);
}

static uint64_t seed_of(void)
{
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL);

	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed;
}

/* Small limits, so that every way of copying is taken. */
static int open_device(void **state)
{
	const struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = *state ? "cuda" : "soft",
		.copy = { .way = *state ? *(enum kvs_copy_way *)*state
					: KVS_COPY_AUTO,
			  .few = *state ? 4 : 0,
			  .batch_min = *state ? 4096 : 0,
			  .slot_bytes = *state ? 64 << 10 : 0 },
	};
	char err[128] = "";
	int ret;

	ret = kvs_device_open(&o, &device, err, sizeof(err));
	if (ret)
		print_message("%s\n", err);
	return ret;
}

static int close_device(void **state)
{
	(void)state;
	kvs_device_close(device);
	return 0;
}

int main(int argc, char **argv)
{
	static enum kvs_copy_way slots = KVS_COPY_SLOTS;
	static enum kvs_copy_way mapped = KVS_COPY_MAPPED;
#define ON(test, way)                                               \
	cmocka_unit_test_prestate_setup_teardown(test, open_device, \
						 close_device, way)
	const struct CMUnitTest soft[] = {
		ON(all_presets, NULL), ON(page_sizes, NULL),
		ON(stages, NULL),      ON(anything, NULL),
		ON(few_pieces, NULL),  ON(same_messages, NULL),
		ON(refuses, NULL),     ON(broken_rooms, NULL),
	};
	const struct CMUnitTest cuda[] = {
		ON(all_presets, &slots),
		ON(page_sizes, &mapped),
	};
	int ret;

	kvs_rng_init(&the_rng, seed_of());
	brief = argc > 1 && !strcmp(argv[1], "cuda");
	if (brief)
		ret = cmocka_run_group_tests(cuda, NULL, NULL);
	else
		ret = cmocka_run_group_tests(soft, NULL, NULL);
	printf("%llu pieces for %llu decode ranks, %llu bytes\n",
	       (unsigned long long)total_pieces,
	       (unsigned long long)total_plans,
	       (unsigned long long)total_bytes);
	return ret;
}
