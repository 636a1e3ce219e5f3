/* SPDX-License-Identifier: Apache-2.0 */
/* From disk into memory, for a room that is admitted. */
#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/rule.h"
#include "pipeline/cache_internal.h"
#include "pipeline/layout.h"
#include "pipeline/worker.h"

/* A block on its way into memory. */
struct cache_get {
	struct kvs_disk_req r;
	struct kvs_list node; /* on c->gets */
	struct kvs_worker *w;
	struct kvs_cached *c; /* NULL: its memory is somebody else's by now */
	enum kvs_tier tier;
	uint32_t block;
	struct iovec iov[];
};

void kvs_cache_recall_forget(struct kvs_cached *c)
{
	struct cache_get *g;

	while (!kvs_list_empty(&c->gets)) {
		g = kvs_list_first(&c->gets, struct cache_get, node);
		kvs_list_del(&g->node);
		g->c = NULL;
	}
}

/* Of @c the last read has ended. */
static void recall_over(struct kvs_cached *c)
{
	struct kvs_worker *w = c->w;

	if (c->err) {
		kvs_cached_lost(c, c->err);
		return;
	}
	kvs_extents_set_state(&c->ext, KVS_EXTENT_STAGED);
	kvs_extents_set_state(&c->ext, KVS_EXTENT_CACHED);
	kvs_cached_filled(c);
	/* what another node has is kept here as well */
	if (w->cache.shared.disk)
		kvs_cache_disk_offer(w);
}

static void get_done(struct kvs_disk_req *r, int result)
{
	struct cache_get *g = kvs_container_of(r, struct cache_get, r);
	struct kvs_cache_shared_stats *sh = &g->w->cache.shared.stats;
	struct kvs_cache_disk_stats *st = &g->w->cache.disk.stats;
	bool shared = g->tier == KVS_TIER_SHARED;
	struct kvs_cached *c = g->c;

	if (result) {
		++*(shared ? &sh->recall_failed : &st->recall_failed);
		/* whoever asks again has it received */
		(void)kvs_index_forget(g->w->cache.ix, g->tier, &r->key);
	} else {
		++*(shared ? &sh->recalled : &st->recalled);
		*(shared ? &sh->recalled_bytes : &st->recalled_bytes) += r->len;
	}
	kvs_list_del(&g->node);
	/* the party has left, and with it may have gone its unit */
	if (c) {
		c->crc[g->block] = r->crc;
		if (result && !c->err)
			c->err = result;
		if (!--c->reading)
			recall_over(c);
	}
	free(g);
}

static int get_start(struct kvs_cached *c, uint32_t block,
		     const struct kvs_key *key, const struct kvs_found *f)
{
	struct kvs_cache_disk *d = &c->w->cache.disk;
	struct kvs_disk_store *store = d->store;
	struct cache_get *g;
	int ret;

	if (f->tier == KVS_TIER_SHARED)
		store = kvs_cache_shared_store(c->w, f);
	g = calloc(1, sizeof(*g) + c->n_runs * sizeof(g->iov[0]));
	if (!g)
		return -ENOMEM;
	g->w = c->w;
	g->c = c;
	g->tier = f->tier;
	g->block = block;
	kvs_cached_iov(c, block, g->iov);
	g->r = (struct kvs_disk_req){
		.key = *key,
		.loc = f->cookie,
		.iov = g->iov,
		.niov = c->n_runs,
		.len = (uint32_t)kvs_cached_block_bytes(c),
		.drain = &c->drain,
		.id = ++d->next_id,
		.done = get_done,
	};
	ret = store ? kvs_disk_store_get(store, &g->r) : -ENOENT;
	if (ret) {
		free(g);
		return ret;
	}
	kvs_list_add_tail(&c->gets, &g->node);
	c->reading++;
	return 0;
}

/* A unit for @n blocks, with memory, that the index knows as coming. */
static int unit_new(struct kvs_worker *w, const struct kvs_worker_engine *e,
		    const struct kvs_key *keys, uint32_t n,
		    struct kvs_cached **ret)
{
	uint32_t pages = n * e->cache.block_pages;
	uint64_t tokens = (uint64_t)pages * e->layout->page_size, len;
	struct kvs_geometry g;
	struct kvs_cached *c;
	int res;

	res = kvs_geometry_init(&g, e->layout, tokens, (uint32_t)tokens,
				kvs_pool_segment(w->pool), 1, 0);
	if (res)
		return res;
	len = g.last_len;
	res = kvs_index_make_room(w->cache.ix, KVS_TIER_HOST,
				  kvs_pool_round(len));
	if (!res)
		res = kvs_cached_new(w, 0, &g, 0, e->cache.block_pages, n, &c);
	kvs_geometry_fini(&g);
	if (res)
		return res;
	res = kvs_index_add(w->cache.ix, KVS_TIER_HOST, kvs_pool_round(len),
			    (uint64_t)(uintptr_t)c, &c->unit);
	if (res) {
		kvs_cached_free(c);
		return res;
	}
	kvs_list_add_tail(&w->cache.units, &c->node);
	res = kvs_cache_alloc(w, &len, 1, &c->ext);
	for (uint32_t i = 0; !res && i < n; i++)
		res = kvs_index_put(w->cache.ix, c->unit, &keys[i], i);
	if (res) {
		(void)kvs_index_drop(w->cache.ix, c->unit);
		return res;
	}
	kvs_extents_set_state(&c->ext, KVS_EXTENT_GRANTED);
	kvs_drain_expose(&c->drain, KVS_PROOF_IO_COMPLETION);
	kvs_list_add_tail(&w->cache.reads, &c->read_node);
	*ret = c;
	return 0;
}

/* The pin of a place on disk becomes one of a unit in memory. */
static int move_pin(struct kvs_worker *w, struct kvs_found *v, uint64_t unit,
		    const struct kvs_cached *c, uint32_t place)
{
	int ret = kvs_index_pin(w->cache.ix, unit);

	if (ret)
		return ret;
	kvs_index_unpin_prefix(w->cache.ix, v, 1);
	v->unit = unit;
	v->cookie = (uint64_t)(uintptr_t)c;
	v->place = place;
	v->tier = KVS_TIER_HOST;
	return 0;
}

/* @n blocks that follow one another: read. Return: 0 or -errno: none of the
 * places is changed. */
static int recall_run(struct kvs_worker *w, const struct kvs_worker_engine *e,
		      const struct kvs_key *keys, struct kvs_found *v,
		      uint32_t n)
{
	struct kvs_cached *c;
	int ret;

	ret = unit_new(w, e, keys, n, &c);
	if (ret)
		return ret;
	for (uint32_t i = 0; i < n; i++) {
		ret = get_start(c, i, &keys[i], &v[i]);
		if (!ret)
			continue;
		/* it is not what is looked for, by its length or its name */
		if (ret == -ENOENT || ret == -EINVAL)
			(void)kvs_index_forget(w->cache.ix, v[i].tier,
					       &keys[i]);
		/* what has begun ends for nothing */
		(void)kvs_index_drop(w->cache.ix, c->unit);
		return ret;
	}
	for (uint32_t i = 0; i < n; i++)
		KVS_ASSERT(!move_pin(w, &v[i], c->unit, c, i));
	return 0;
}

/* Somebody else has it read already: wait for the same. Return: 0; -ENOENT. */
static int recall_join(struct kvs_worker *w, const struct kvs_key *key,
		       struct kvs_found *v)
{
	struct kvs_cached *c;
	struct kvs_found f;

	if (kvs_index_find(w->cache.ix, KVS_TIER_HOST, key, &f))
		return -ENOENT;
	c = kvs_cached_of(&f);
	/* one that is only being summed up may yet make room */
	return c->reading ? move_pin(w, v, f.unit, c, f.place) : -ENOENT;
}

static bool on_disk(const struct kvs_found *f)
{
	return f->tier != KVS_TIER_HOST;
}

static bool coming(const struct kvs_found *f)
{
	return f->coming & 1u << KVS_TIER_HOST;
}

uint32_t kvs_cache_recall(struct kvs_worker *w,
			  const struct kvs_worker_engine *e,
			  const struct kvs_key *keys, struct kvs_found *v,
			  uint32_t n)
{
	uint32_t per =
		e->extent_tokens / e->layout->page_size / e->cache.block_pages;
	/* what waits owns nothing, and others wait for memory */
	bool may = !kvs_admission_waiting(w) && KVS_RULE(R13, PIN);
	uint32_t i = 0, j;

	while (i < n) {
		if (!on_disk(&v[i])) {
			i++;
			continue;
		}
		if (!may)
			break;
		if (coming(&v[i])) {
			if (recall_join(w, &keys[i], &v[i]))
				break;
			i++;
			continue;
		}
		for (j = i + 1;
		     j < n && j - i < per && on_disk(&v[j]) && !coming(&v[j]);)
			j++;
		if (recall_run(w, e, keys + i, v + i, j - i))
			break;
		i = j;
	}
	if (i < n && KVS_RULE(R13, PIN))
		kvs_index_unpin_prefix(w->cache.ix, v + i, n - i);
	return i;
}
