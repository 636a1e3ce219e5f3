/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/cache_fill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/rule.h"
#include "pipeline/cache_internal.h"
#include "pipeline/worker.h"

static uint32_t blocks_of(const struct kvs_fill *f, uint32_t e)
{
	return kvs_geometry_pages(f->geo, e) / f->block_pages;
}

static const struct kvs_key *keys_of(const struct kvs_fill *f, uint32_t e)
{
	return f->keys + e * (f->geo->extent_pages / f->block_pages);
}

static bool known(const struct kvs_fill *f, uint32_t e)
{
	uint32_t n = blocks_of(f, e);

	return kvs_cache_known(f->w, keys_of(f, e), n) == n;
}

/* Memory for extent @e. */
static int take(struct kvs_fill *f, uint64_t generation, uint32_t e)
{
	uint64_t len = kvs_geometry_len(f->geo, e);
	struct kvs_cached *c;
	int ret;

	ret = kvs_cached_new(f->w, generation, f->geo, e, f->block_pages,
			     blocks_of(f, e), &c);
	if (ret)
		return ret;
	ret = kvs_cache_alloc(f->w, &len, 1, &c->ext);
	if (ret) {
		kvs_cached_free(c);
		return ret == -ENOMEM ? ret : -ENOSPC;
	}
	kvs_extents_set_state(&c->ext, KVS_EXTENT_GRANTED);
	f->v[e] = c;
	return 0;
}

/* Does the cache's share of the pool have room for all that is new? */
static int quota(const struct kvs_fill *f)
{
	uint64_t bytes = 0;

	for (uint32_t e = 0; e < f->geo->n_extents; e++)
		if (!known(f, e))
			bytes += kvs_pool_round(kvs_geometry_len(f->geo, e));
	return kvs_index_make_room(f->w->cache.ix, KVS_TIER_HOST, bytes)
		       ? -ENOSPC
		       : 0;
}

int kvs_fill_begin(struct kvs_fill *f, struct kvs_worker *w,
		   uint64_t generation, const struct kvs_geometry *g,
		   uint32_t block_pages, const struct kvs_key *keys, uint32_t n)
{
	int ret = -ENOSPC;

	*f = (struct kvs_fill){ .w = w,
				.geo = g,
				.keys = keys,
				.n = n,
				.block_pages = block_pages,
				.left = g->n_extents };
	KVS_ASSERT(g->extent_pages % block_pages == 0);
	f->v = calloc(g->n_extents, sizeof(f->v[0]));
	if (!f->v) {
		f->left = 0;
		return -ENOMEM;
	}
	if (!kvs_admission_waiting(w))
		ret = quota(f);
	for (uint32_t e = g->n_extents; !ret && e-- > 0;) {
		if (known(f, e))
			w->cache.stats.duplicates += blocks_of(f, e);
		else
			ret = take(f, generation, e);
	}
	if (ret)
		kvs_fill_end(f);
	return ret;
}

/* From now on it is found. */
static void publish(struct kvs_fill *f, uint32_t e)
{
	struct kvs_cached *c = f->v[e];
	struct kvs_worker *w = f->w;
	struct kvs_index *ix = w->cache.ix;
	uint64_t bytes = c->ext.bytes;

	f->v[e] = NULL;
	kvs_extents_set_state(&c->ext, KVS_EXTENT_STAGED);
	/* The quota may have been used up since the beginning. */
	if (kvs_index_make_room(ix, KVS_TIER_HOST, bytes) ||
	    kvs_index_add(ix, KVS_TIER_HOST, bytes, (uint64_t)(uintptr_t)c,
			  &c->unit)) {
		kvs_drain_arm(&c->drain);
		return;
	}
	kvs_extents_set_state(&c->ext, KVS_EXTENT_CACHED);
	kvs_list_add_tail(&w->cache.units, &c->node);
	w->cache.stats.offloaded_bytes += bytes;
	kvs_cached_put_blocks(c, keys_of(f, e));
	(void)kvs_index_publish(ix, c->unit);
	kvs_cache_disk_offer(w);
}

uint64_t kvs_fill_some(struct kvs_fill *f, const struct kvs_extents *src)
{
	struct kvs_cache_sum *s = &f->sum;
	const struct kvs_cached_run *run;
	uint32_t e = f->left - 1, block = s->block, crc;
	struct kvs_cached *c = f->v[e];
	unsigned char *to;
	uint64_t len, at;

	if (!c) {
		f->left--;
		return 0;
	}
	run = &c->runs[s->run];
	len = run->item_len * c->block_pages;
	at = run->off + block * len;
	to = kvs_extent_addr(&c->ext, 0);
	/* a phantom pool has no bytes */
	if (to)
		memcpy(to + at, (char *)kvs_extent_addr(src, e) + at, len);
	(void)kvs_cached_sum_run(c, block, s, &crc);
	if (s->block == block)
		return len;
	c->crc[block] = crc;
	if (s->block < c->n_blocks)
		return len;
	*s = (struct kvs_cache_sum){ 0 };
	f->left--;
	publish(f, e);
	return len;
}

bool kvs_fill_over(const struct kvs_fill *f)
{
	return !f->left;
}

void kvs_fill_end(struct kvs_fill *f)
{
	struct kvs_cached *c;

	for (uint32_t e = 0; f->v && e < f->geo->n_extents; e++) {
		c = f->v[e];
		f->v[e] = NULL;
		if (c)
			kvs_drain_arm(&c->drain);
	}
	free(f->v);
	f->v = NULL;
	f->left = 0;
}
