/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/plan.h"
#include "gpu/shape.h"
#include "lib/assert.h"

_Static_assert(KVS_PLAN_LISTS == 1u << (32 - 26), "see add_pages()");

/* Of what goes into a slot at least 3 bytes of 4 are wanted. */
#define DENSE_OF 4u
#define DENSE_MIN 3u

#define KVS_PLAN_ITEM_MAX (1u << 30) /* bytes, of what the kernel moves */

/* How the bytes of a run travel. */
enum way {
	WAY_DIRECT,
	WAY_SLOT,
	WAY_ZERO_COPY,
};

int kvs_copy_opts_check(const struct kvs_copy_opts *o, char *err, size_t errlen)
{
	if ((unsigned int)o->way > KVS_COPY_MAPPED)
		(void)snprintf(err, errlen, "copy way %d: there is none such",
			       (int)o->way);
	else if (o->slots > KVS_PLAN_SLOTS_MAX)
		(void)snprintf(err, errlen, "%u slots: %u at most", o->slots,
			       KVS_PLAN_SLOTS_MAX);
	else if (o->slot_bytes > KVS_PLAN_SLOT_MAX)
		(void)snprintf(err, errlen,
			       "a slot of %llu bytes: %llu at most",
			       (unsigned long long)o->slot_bytes,
			       (unsigned long long)KVS_PLAN_SLOT_MAX);
	else if (o->blocks > KVS_PLAN_BLOCKS_MAX)
		(void)snprintf(err, errlen, "%u thread blocks: %u at most",
			       o->blocks, KVS_PLAN_BLOCKS_MAX);
	else
		return 0;
	return -EINVAL;
}

void kvs_plan_tuning_init(struct kvs_plan_tuning *t,
			  const struct kvs_copy_opts *o, enum kvs_copy_way way)
{
	*t = (struct kvs_plan_tuning){
		.batch_min = o->batch_min ? o->batch_min : KVS_PLAN_BATCH_MIN,
		.few = o->few ? o->few : KVS_PLAN_FEW,
		.step_bytes = KVS_PLAN_STEP_BYTES,
		.pieces = KVS_PLAN_PIECES,
	};
	if (way == KVS_COPY_DIRECT)
		return;
	t->runs = KVS_PLAN_RUNS;
	t->pages = KVS_PLAN_PAGES;
	t->zero_copy = true;
	if (way != KVS_COPY_MAPPED)
		t->slot_bytes = o->slot_bytes ? o->slot_bytes
					      : KVS_PLAN_SLOT_BYTES;
}

size_t kvs_plan_table_bytes(const struct kvs_plan_tuning *t)
{
	if (!t->runs)
		return 0;
	return t->runs * sizeof(struct kvs_scatter_run) +
	       t->pages * sizeof(uint32_t);
}

int kvs_plan_step_init(struct kvs_plan_step *s, const struct kvs_plan_tuning *t,
		       void *table)
{
	memset(s, 0, sizeof(*s));
	s->pieces = calloc(t->pieces, sizeof(*s->pieces));
	if (!s->pieces)
		return -ENOMEM;
	kvs_plan_step_table(s, t, table);
	return 0;
}

void kvs_plan_step_table(struct kvs_plan_step *s,
			 const struct kvs_plan_tuning *t, void *table)
{
	s->runs = table;
	s->pages = table ? (uint32_t *)(s->runs + t->runs) : NULL;
}

void kvs_plan_step_fini(struct kvs_plan_step *s)
{
	free(s->pieces);
	memset(s, 0, sizeof(*s));
}

/* Are the pieces of the run short on average? */
static bool is_short(const struct kvs_copy *c, size_t i,
		     const struct kvs_plan_tuning *t)
{
	uint64_t max = c->runs[i].n * c->runs[i].item_len;

	max = t->batch_min ? max / t->batch_min : max;
	return kvs_copy_pieces(c, i, max) > (max ? max : 1);
}

/* Do the short pieces of the whole copy stay below the bound? */
static bool few_short(const struct kvs_copy *c, const struct kvs_plan_tuning *t)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; i < c->n_runs && n < t->few; i++)
		if (c->runs[i].n && is_short(c, i, t))
			n += kvs_copy_pieces(c, i, t->few);
	return n < t->few;
}

void kvs_plan_init(struct kvs_plan *p, const struct kvs_copy *c,
		   const struct kvs_plan_tuning *t,
		   const struct kvs_spans *hosts)
{
	KVS_ASSERT(t->pieces && (!t->runs || t->pages));
	*p = (struct kvs_plan){
		.c = c,
		.t = t,
		.hosts = hosts,
		.few = !t->runs || few_short(c, t),
	};
}

/* A run, its shape, and the bytes from the first of an item to its last on the
 * host. */
struct run {
	const struct kvs_copy_run *r;
	struct kvs_copy_shape s;
	uint64_t span;
};

static enum way way_of(const struct kvs_plan *p, const struct run *r)
{
	const struct kvs_plan_tuning *t = p->t;
	bool h2d = p->c->dir == KVS_COPY_H2D;
	uint64_t len = r->r->item_len;
	uint64_t stride = r->r->n > 1 ? r->s.host_item : r->span;

	/* units of a launch are counted in 32 bits */
	if (p->few || len > KVS_PLAN_ITEM_MAX || !is_short(p->c, p->run, t))
		return WAY_DIRECT;
	if (r->span <= t->slot_bytes && r->span <= stride &&
	    (h2d ? len >= stride / DENSE_OF * DENSE_MIN : len == stride))
		return WAY_SLOT;
	return t->zero_copy ? WAY_ZERO_COPY : WAY_DIRECT;
}

/* ---- pieces ---- */

/* Is [host, host + len) in one registered range, or in none? */
static bool one_span(const struct kvs_plan *p, uint64_t host, uint64_t len)
{
	const struct kvs_span *span;

	return !p->hosts ||
	       !kvs_spans_find(p->hosts, (const void *)(uintptr_t)host, len,
			       &span);
}

/* Add a piece, or make the last one longer. Return: false when full. */
static bool add_piece(struct kvs_plan *p, struct kvs_plan_step *s,
		      const struct kvs_plan_piece *n)
{
	struct kvs_plan_piece *last;

	if (s->n_pieces) {
		last = &s->pieces[s->n_pieces - 1];
		if (last->slot == n->slot &&
		    last->host + last->len == n->host &&
		    last->dev + last->len == n->dev &&
		    one_span(p, last->host, last->len + n->len)) {
			last->len += n->len;
			return true;
		}
	}
	if (s->n_pieces == p->t->pieces)
		return false;
	s->pieces[s->n_pieces++] = *n;
	return true;
}

/* Items from @item on that follow each other on both sides, @max at most. */
static uint64_t neighbours(const struct run *r, uint64_t item, uint64_t max)
{
	const uint32_t *pages = r->r->pages;
	uint64_t k;

	if (r->s.rows > 1 || r->s.host_item != r->s.row_len ||
	    r->s.dev_item != r->s.row_len)
		return 1;
	if (!pages)
		return max;
	for (k = 1; k < max; k++)
		if (pages[item + k] != (uint64_t)pages[item] + k)
			break;
	return k;
}

/* Return: false when the step is full. */
static bool go_direct(struct kvs_plan *p, struct kvs_plan_step *s,
		      const struct run *r)
{
	struct kvs_plan_piece n = { 0 };
	uint64_t max, k;

	while (p->item < r->r->n) {
		if (s->direct_bytes >= p->t->step_bytes)
			return false;
		max = (p->t->step_bytes - s->direct_bytes) / r->r->item_len;
		max = max ? max : 1;
		if (max > r->r->n - p->item)
			max = r->r->n - p->item;
		k = neighbours(r, p->item, max);
		n.host = (uintptr_t)r->r->host + p->item * r->s.host_item +
			 p->row * r->s.host_row;
		n.dev = (uintptr_t)r->r->dev +
			kvs_copy_page(r->r, p->item) * r->s.dev_item +
			p->row * r->s.dev_row;
		n.len = k * r->s.row_len;
		if (!add_piece(p, s, &n))
			return false;
		s->direct_bytes += n.len;
		s->bytes += n.len;
		if (++p->row == r->s.rows) {
			p->item += k;
			p->row = 0;
		}
	}
	return true;
}

/* ---- the kernel ---- */

/* Where the page numbers are in the step; @k: how many will do, lowered when
 * there is no place for more. Return: false when there is none. */
static bool add_pages(const struct kvs_plan *p, struct kvs_plan_step *s,
		      const uint32_t *at, uint64_t *k, uint32_t *ret)
{
	size_t slot = (uint32_t)((uintptr_t)at >> 2) * 0x9e3779b1u >> 26;

	if (s->lists[slot].at == at && s->lists[slot].n >= *k) {
		*ret = s->lists[slot].page_at;
		return true;
	}
	if (*k > p->t->pages - s->n_pages)
		*k = p->t->pages - s->n_pages;
	if (!*k)
		return false;
	memcpy(s->pages + s->n_pages, at, *k * sizeof(*at));
	*ret = s->n_pages;
	s->lists[slot].at = at;
	s->lists[slot].n = *k;
	s->lists[slot].page_at = s->n_pages;
	s->n_pages += (uint32_t)*k;
	return true;
}

/* The largest unit that divides all of them, as a power of two. */
static uint32_t unit_shift(const struct kvs_scatter_run *n, uint64_t row_len)
{
	uint64_t all = n->host | n->dev | n->host_stride | n->dev_stride |
		       n->host_pitch | n->dev_pitch | row_len | 16;

	return (uint32_t)__builtin_ctzll(all);
}

/* @k items from p->item on, whose host side is at @host. @k: as many as found
 * a place. Return: false when the launch is full. */
static bool add_run(struct kvs_plan *p, struct kvs_plan_step *s,
		    const struct run *r, uint64_t host, uint32_t flags,
		    uint64_t *k)
{
	struct kvs_scatter_run n = {
		.host = host,
		.dev = (uintptr_t)r->r->dev,
		.host_stride = r->s.host_item,
		.dev_stride = r->s.dev_item,
		.host_pitch = r->s.host_row,
		.dev_pitch = r->s.dev_row,
		.unit0 = s->units,
		.page_at = KVS_SCATTER_IN_ORDER,
		.rows = (uint32_t)r->s.rows,
		.flags = flags,
	};
	uint64_t units, per_item;

	if (s->n_runs == p->t->runs)
		return false;
	if (!r->r->pages)
		n.dev += p->item * r->s.dev_item;
	n.shift = unit_shift(&n, r->s.row_len);
	units = r->s.row_len >> n.shift;
	per_item = units * r->s.rows;
	if (per_item > UINT32_MAX - s->units)
		return false;
	n.row_units = (uint32_t)units;
	if (*k > (UINT32_MAX - s->units) / per_item)
		*k = (UINT32_MAX - s->units) / per_item;
	if (r->r->pages &&
	    !add_pages(p, s, r->r->pages + p->item, k, &n.page_at))
		return false;
	s->runs[s->n_runs++] = n;
	s->units += (uint32_t)(*k * per_item);
	s->bytes += *k * r->r->item_len;
	return true;
}

static bool go_slot(struct kvs_plan *p, struct kvs_plan_step *s,
		    const struct run *r)
{
	while (p->item < r->r->n) {
		struct kvs_plan_piece n = {
			.host = (uintptr_t)r->r->host +
				p->item * r->s.host_item,
			.slot = true,
		};
		const struct kvs_plan_piece *last =
			s->n_pieces ? &s->pieces[s->n_pieces - 1] : NULL;
		uint64_t k = r->r->n - p->item;
		uint64_t free;

		/* behind the piece before it, if that is so on the host too */
		n.dev = s->slot_used;
		if (!last || !last->slot || last->host + last->len != n.host) {
			if (s->n_pieces == p->t->pieces)
				return false;
			n.dev = (n.dev + KVS_PLAN_ALIGN - 1) &
				~(uint64_t)(KVS_PLAN_ALIGN - 1);
		}
		free = n.dev < p->t->slot_bytes ? p->t->slot_bytes - n.dev : 0;
		if (free < r->span)
			return false;
		if (k > 1 && k > (free - r->span) / r->s.host_item + 1)
			k = (free - r->span) / r->s.host_item + 1;
		/* add_piece() might not make the last one longer */
		if (s->n_pieces == p->t->pieces &&
		    !one_span(p, last->host,
			      last->len + (k - 1) * r->s.host_item + r->span))
			return false;
		if (!add_run(p, s, r, n.dev, KVS_SCATTER_SLOT, &k))
			return false;
		n.len = (k - 1) * r->s.host_item + r->span;
		KVS_ASSERT(add_piece(p, s, &n));
		s->slot_used = n.dev + n.len;
		p->item += k;
	}
	return true;
}

static bool go_zero_copy(struct kvs_plan *p, struct kvs_plan_step *s,
			 const struct run *r)
{
	while (p->item < r->r->n) {
		uint64_t k = r->r->n - p->item;
		uint64_t max;

		if (s->direct_bytes >= p->t->step_bytes)
			return false;
		max = (p->t->step_bytes - s->direct_bytes) / r->r->item_len;
		if (k > max)
			k = max ? max : 1;
		if (!add_run(p, s, r,
			     (uintptr_t)r->r->host + p->item * r->s.host_item,
			     0, &k))
			return false;
		s->zero_copy = true;
		s->direct_bytes += k * r->r->item_len;
		p->item += k;
	}
	return true;
}

static bool go(struct kvs_plan *p, struct kvs_plan_step *s, const struct run *r)
{
	switch (way_of(p, r)) {
	case WAY_DIRECT:
		return go_direct(p, s, r);
	case WAY_SLOT:
		return go_slot(p, s, r);
	case WAY_ZERO_COPY:
		return go_zero_copy(p, s, r);
	}
	return false;
}

bool kvs_plan_next(struct kvs_plan *p, struct kvs_plan_step *s)
{
	const struct kvs_copy *c = p->c;
	struct run r;

	s->n_pieces = 0;
	s->n_runs = 0;
	s->n_pages = 0;
	s->units = 0;
	s->bytes = 0;
	s->direct_bytes = 0;
	s->slot_used = 0;
	s->zero_copy = false;
	memset(s->lists, 0, sizeof(s->lists));
	while (p->run < c->n_runs) {
		r.r = &c->runs[p->run];
		if (r.r->n) {
			r.s = kvs_copy_shape_joined(c, p->run);
			r.span = (r.s.rows - 1) * r.s.host_row + r.s.row_len;
			if (!go(p, s, &r))
				break;
		}
		p->run++;
		p->item = 0;
		p->row = 0;
	}
	s->runs_done = p->run;
	/* a step that is full has something in it, or it would never end */
	KVS_ASSERT(s->bytes || p->run == c->n_runs);
	return s->bytes != 0;
}

void kvs_plan_place(struct kvs_plan_step *s, uint64_t slot)
{
	uint32_t i;

	for (i = 0; i < s->n_pieces; i++)
		if (s->pieces[i].slot)
			s->pieces[i].dev += slot;
	for (i = 0; i < s->n_runs; i++)
		if (s->runs[i].flags & KVS_SCATTER_SLOT)
			s->runs[i].host += slot;
}
