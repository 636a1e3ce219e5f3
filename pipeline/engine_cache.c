/* SPDX-License-Identifier: Apache-2.0 */
/* What is cached of a room's tokens: how much, and where it lies. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/cache.h"
#include "pinned/arena.h"
#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"

void kvs_eng_cached(struct kvs_eng_room *r, const struct kvs_packet_cached *p)
{
	if (r->cached_known)
		return;
	r->cached = p->blocks;
	r->cached_known = true;
}

int kvs_engine_cached(struct kvs_engine *e, const kvs_handle *h,
		      uint64_t *ret_tokens)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	if (!r)
		return -ENOENT;
	if (!r->cached_known)
		(void)kvs_eng_receive(e);
	if (!r->cached_known)
		return -EAGAIN;
	*ret_tokens =
		(uint64_t)r->cached * e->block_pages * e->layout->page_size;
	return 0;
}

static int lookup(struct kvs_engine *e, const struct kvs_cache_query *q,
		  uint32_t flags, kvs_handle *ret)
{
	struct kvs_packet_lookup *p;
	struct kvs_eng_room *r;
	size_t len;
	int res;

	if (!q || q->size < sizeof(*q) || !q->n_hashes || !q->hashes ||
	    q->n_hashes > KVS_CACHE_BLOCKS_MAX)
		return -EINVAL;
	res = kvs_eng_slot(e, 0, &r);
	if (res)
		return res;
	len = sizeof(*p) + q->n_hashes * sizeof(p->hashes[0]);
	p = calloc(1, len);
	res = -ENOMEM;
	if (p) {
		p->h.magic = KVS_ATTACH_MAGIC;
		p->h.type = KVS_PACKET_LOOKUP;
		p->slot = r->slot;
		p->node = q->node;
		p->flags = flags;
		p->n_hashes = q->n_hashes;
		memcpy(p->hashes, q->hashes,
		       q->n_hashes * sizeof(p->hashes[0]));
		res = kvs_eng_send(e, p, len);
		free(p);
	}
	if (res) {
		kvs_eng_slot_undo(r);
		return res;
	}
	kvs_eng_slot_take(e, r, ret);
	return 0;
}

int kvs_cache_lookup(struct kvs_engine *e, const struct kvs_cache_query *q,
		     kvs_handle *ret)
{
	return lookup(e, q, 0, ret);
}

int kvs_cache_drop(struct kvs_engine *e, const struct kvs_cache_query *q,
		   kvs_handle *ret)
{
	return lookup(e, q, KVS_LOOKUP_DROP, ret);
}

/* Does it lie in the pool, as far as the pages it names? */
static bool seg_good(const struct kvs_engine *e, uint32_t pool,
		     const struct kvs_packet_seg *s)
{
	uint64_t size = e->pools[pool].size, len;

	if (!s->n_pages || s->first_page > s->extent_pages ||
	    s->n_pages > s->extent_pages - s->first_page ||
	    s->extent_pages > KVS_TOKENS_MAX || s->off % KVS_ARENA_ALIGN)
		return false;
	len = kvs_geometry_offsets(e->layout, s->extent_pages, NULL);
	return len <= size && s->off <= size - len;
}

int kvs_eng_segs(struct kvs_engine *e, struct kvs_eng_room *r, uint32_t pool,
		 const struct kvs_packet_seg *v, uint32_t n)
{
	uint64_t pages = 0;

	if (!n)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!seg_good(e, pool, &v[i]))
			return -EPROTO;
		pages += v[i].n_pages;
	}
	/* Something is received, and it is what was told before. */
	if (e->fixed_buffers || pages > KVS_TOKENS_MAX ||
	    pages * e->layout->page_size >= r->tokens || r->segs ||
	    !r->cached_known || pages != (uint64_t)r->cached * e->block_pages)
		return -EPROTO;
	r->segs = malloc(n * sizeof(*v));
	if (!r->segs)
		return -ENOMEM;
	memcpy(r->segs, v, n * sizeof(*v));
	r->n_segs = n;
	r->seg_pages = (uint32_t)pages;
	return 0;
}

uint64_t *kvs_eng_seg_offsets(const struct kvs_engine *e,
			      const struct kvs_eng_room *r)
{
	uint32_t n = e->layout->n_buffers;
	uint64_t *off = calloc((size_t)r->n_segs * n + 1, sizeof(*off));

	for (uint32_t i = 0; off && i < r->n_segs; i++)
		(void)kvs_geometry_offsets(e->layout, r->segs[i].extent_pages,
					   off + (size_t)i * n);
	return off;
}

struct kvs_copy_run *kvs_eng_seg_runs(const struct kvs_engine *e,
				      const struct kvs_eng_room *r, uint32_t b,
				      void *dev, const uint64_t *off,
				      struct kvs_copy_run *run)
{
	uint64_t item = e->layout->buffers[b].item_len;
	const uint32_t *pages = r->pages;

	for (uint32_t i = 0; i < r->n_segs; i++) {
		const struct kvs_packet_seg *s = &r->segs[i];

		*run++ = (struct kvs_copy_run){
			.host = e->pools[r->pool].base + s->off +
				off[(size_t)i * e->layout->n_buffers + b] +
				s->first_page * item,
			.dev = dev,
			.item_len = item,
			.pages = pages,
			.n = s->n_pages,
		};
		pages += s->n_pages;
	}
	return run;
}
