/* SPDX-License-Identifier: Apache-2.0 */
/* What is cached of a room's tokens: how much, and where it lies. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/cache.h"
#include "pinned/arena.h"
#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"

void kvs_eng_cached(struct kvs_engine *e, struct kvs_eng_room *r,
		    const struct kvs_packet_cached *p)
{
	uint64_t pages = (uint64_t)p->blocks * e->block_pages;

	if (r->cached_known)
		return;
	/* An offload: so many pages of the first ones stay where they are. All
	 * of them: it is DONE. */
	if (r->out && (!r->out->keep || pages > r->out->n_pages)) {
		kvs_eng_room_fail(e, r, EPROTO,
				  "the daemon has more than was offloaded");
		kvs_eng_room_give_up(e, r);
		return;
	}
	if (r->out) {
		r->out->skip = (uint32_t)pages;
		r->tokens -= pages * e->layout->page_size;
	}
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

int kvs_eng_lookup(struct kvs_engine *e, struct kvs_eng_room *r,
		   enum kvs_lookup what, const void *hashes, uint32_t n,
		   int node)
{
	struct kvs_packet_lookup *p;
	size_t len = sizeof(*p) + n * sizeof(p->hashes[0]);
	int res;

	p = calloc(1, len);
	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_LOOKUP;
	p->id = r->id;
	p->slot = r->slot;
	p->node = node;
	p->what = what;
	p->n_hashes = n;
	memcpy(p->hashes, hashes, n * sizeof(p->hashes[0]));
	res = kvs_eng_send(e, p, len);
	free(p);
	return res;
}

static int lookup(struct kvs_engine *e, const struct kvs_cache_query *q,
		  enum kvs_lookup what, kvs_handle *ret)
{
	struct kvs_eng_room *r;
	int res;

	if (!q || q->size < sizeof(*q) || !q->n_hashes || !q->hashes ||
	    q->n_hashes > KVS_CACHE_BLOCKS_MAX)
		return -EINVAL;
	res = kvs_eng_slot(e, 0, &r);
	if (res)
		return res;
	r->pin = what == KVS_LOOKUP_PIN;
	res = kvs_eng_lookup(e, r, what, q->hashes, q->n_hashes, q->node);
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
	return lookup(e, q, KVS_LOOKUP_FIND, ret);
}

int kvs_cache_drop(struct kvs_engine *e, const struct kvs_cache_query *q,
		   kvs_handle *ret)
{
	return lookup(e, q, KVS_LOOKUP_DROP, ret);
}

int kvs_cache_pin(struct kvs_engine *e, const struct kvs_cache_query *q,
		  kvs_handle *ret)
{
	return lookup(e, q, KVS_LOOKUP_PIN, ret);
}

int kvs_cache_unpin(struct kvs_engine *e, const kvs_handle *h)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	return r && r->pin ? kvs_engine_abort(e, h) : -ENOENT;
}

int kvs_recall(struct kvs_engine *e, const kvs_handle *h,
	       const struct kvs_commit *c)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	return r && r->pin ? kvs_eng_commit_first(e, h, c) : -ENOENT;
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
	/* Something is received, but of a pin, and it is what was told before.
	 */
	if (e->fixed_buffers || pages > KVS_TOKENS_MAX ||
	    (!r->pin && pages * e->layout->page_size >= r->tokens) || r->segs ||
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

int kvs_eng_pin_ready(struct kvs_engine *e, struct kvs_eng_room *r,
		      const struct kvs_packet_ready *p, size_t len)
{
	int ret;

	if (r->ready_generation || p->pool >= e->n_pools || p->layout ||
	    p->n_extents || !p->n_segs || p->n_segs > KVS_SEGS_MAX ||
	    len != sizeof(*p) + p->n_segs * sizeof(struct kvs_packet_seg))
		return -EPROTO;
	ret = kvs_eng_segs(e, r, p->pool, (const void *)p->off, p->n_segs);
	if (ret)
		return ret;
	r->pool = p->pool;
	r->ready_generation = p->generation;
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
