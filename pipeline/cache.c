/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/cache.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/crc32c.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pinned/poison.h"
#include "pipeline/cache_internal.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

#define CACHED_MAGIC 0x4b564361u
#define CACHE_PERCENT 100u

static const char *const label = "kvstage layout 1";

/* ---- units ------------------------------------------------------------ */

void kvs_cached_free(struct kvs_cached *c)
{
	free(c->runs);
	free(c->crc);
	c->magic = 0;
	free(c);
}

static void cached_over(struct kvs_drain *d)
{
	struct kvs_cached *c = kvs_container_of(d, struct kvs_cached, drain);
	struct kvs_worker *w = c->w;
	uint64_t unit = c->unit;

	kvs_list_del(&c->node);
	kvs_cache_recall_forget(c);
	kvs_pool_release(&c->ext, d);
	w->released = true;
	kvs_drain_fini(d);
	kvs_cached_free(c);
	/* one that never was in the index is not missed there */
	KVS_ASSERT(!unit || !kvs_index_gone(w->cache.ix, unit));
}

/* A disk that does not answer may still touch it. */
static void cached_stuck(struct kvs_drain *d)
{
	struct kvs_cached *c = kvs_container_of(d, struct kvs_cached, drain);

	kvs_extents_set_state(&c->ext, KVS_EXTENT_HELD);
	kvs_extents_set_state(&c->ext, KVS_EXTENT_QUARANTINED);
	/* a thread of ours may be what still touches it */
	KVS_UNPOISON(kvs_extent_addr(&c->ext, 0), c->ext.v[0].len);
	kvs_log_err("cache: %u transfers of the disk have not ended, %llu "
		    "bytes quarantined until they do",
		    d->live, (unsigned long long)c->ext.bytes);
}

/* Nobody finds or reads it any more. */
static void cache_victim(void *arg, const struct kvs_victim *v)
{
	struct kvs_worker *w = arg;
	struct kvs_cached *c;

	if (v->tier == KVS_TIER_SHARED) {
		kvs_cache_shared_victim(w, v);
		return;
	}
	if (v->tier != KVS_TIER_HOST) {
		kvs_cache_disk_victim(w, v);
		return;
	}
	c = (struct kvs_cached *)(uintptr_t)v->cookie;
	KVS_CHECK_MAGIC(c, CACHED_MAGIC);
	if (kvs_list_first(&w->cache.sums, struct kvs_cached, sum_node) == c)
		w->cache.sum = (struct kvs_cache_sum){ 0 };
	kvs_list_del(&c->sum_node);
	kvs_list_del(&c->read_node);
	if (v->evicted)
		w->cache.stats.evicted_bytes += c->ext.bytes;
	kvs_drain_arm(&c->drain);
}

static const struct kvs_index_ops index_ops = {
	.victim = cache_victim,
};

int kvs_cached_new(struct kvs_worker *w, uint64_t generation,
		   const struct kvs_geometry *g, uint32_t e,
		   uint32_t block_pages, uint32_t n_blocks,
		   struct kvs_cached **ret)
{
	const struct kvs_layout *l = g->layout;
	const struct kvs_drain_opts d = {
		.generation = generation,
		.hold_timeout = w->set->hold_timeout,
		.clock = w->clock,
		.timers = &w->timers,
		.stats = &w->stats.drains,
		.over = cached_over,
		.stuck = cached_stuck,
	};
	struct kvs_cached *c = calloc(1, sizeof(*c));
	uint64_t *off = calloc(l->n_buffers, sizeof(*off));

	if (!c || !off)
		goto out_free;
	c->runs = calloc(l->n_buffers, sizeof(*c->runs));
	c->crc = calloc(n_blocks, sizeof(*c->crc));
	if (!c->runs || !c->crc)
		goto out_free;
	c->magic = CACHED_MAGIC;
	c->w = w;
	c->pages = kvs_geometry_pages(g, e);
	c->block_pages = block_pages;
	c->n_blocks = n_blocks;
	c->n_runs = l->n_buffers;
	(void)kvs_geometry_offsets(l, c->pages, off);
	for (uint32_t b = 0; b < l->n_buffers; b++)
		c->runs[b] = (struct kvs_cached_run){
			.off = off[b], .item_len = l->buffers[b].item_len
		};
	free(off);
	kvs_list_init(&c->node);
	kvs_list_init(&c->sum_node);
	kvs_list_init(&c->read_node);
	kvs_list_init(&c->gets);
	kvs_drain_init(&c->drain, &d);
	*ret = c;
	return 0;

out_free:
	if (c)
		kvs_cached_free(c);
	free(off);
	return -ENOMEM;
}

uint32_t kvs_cache_known(const struct kvs_worker *w, const struct kvs_key *keys,
			 uint32_t n)
{
	struct kvs_found f;
	uint32_t i = 0;

	while (i < n &&
	       !kvs_index_find(w->cache.ix, KVS_TIER_HOST, &keys[i], &f))
		i++;
	return i;
}

void kvs_cached_put_blocks(struct kvs_cached *c, const struct kvs_key *keys)
{
	struct kvs_worker *w = c->w;
	int ret;

	for (uint32_t i = 0; i < c->n_blocks; i++) {
		ret = kvs_index_put(w->cache.ix, c->unit, &keys[i], i);
		if (ret == -EEXIST)
			w->cache.stats.duplicates++;
		else if (ret)
			break; /* as many as it can know */
	}
}

/* Extent @e of a finished room: keep it, if it is of use. */
static void donate_one(struct kvs_room *r, uint32_t e)
{
	uint32_t per = r->geo.extent_pages / r->block_pages;
	uint32_t first = e * per, n;
	struct kvs_worker *w = r->w;
	uint64_t bytes = r->ext.v[e].block->len;
	struct kvs_extents x;
	struct kvs_cached *c;

	if (first >= r->n_keys)
		return;
	n = kvs_geometry_pages(&r->geo, e) / r->block_pages;
	if (n > r->n_keys - first)
		n = r->n_keys - first;
	if (!n)
		return;
	if (kvs_cache_known(w, r->keys + first, n) == n) {
		w->cache.stats.duplicates += n;
		return;
	}
	if (kvs_index_make_room(w->cache.ix, KVS_TIER_HOST, bytes) ||
	    kvs_cached_new(w, r->generation, &r->geo, e, r->block_pages, n, &c))
		return;
	if (kvs_index_add(w->cache.ix, KVS_TIER_HOST, bytes,
			  (uint64_t)(uintptr_t)c, &c->unit)) {
		kvs_cached_free(c);
		return;
	}
	if (kvs_extents_split(&r->ext, e, &x)) {
		/* It has no memory yet, and its drain nobody. */
		kvs_list_add_tail(&w->cache.units, &c->node);
		(void)kvs_index_drop(w->cache.ix, c->unit);
		return;
	}
	c->ext = x;
	kvs_extents_set_state(&c->ext, KVS_EXTENT_CACHED);
	kvs_list_add_tail(&w->cache.units, &c->node);
	w->cache.stats.donated_bytes += bytes;
	kvs_cached_put_blocks(c, r->keys + first);
	kvs_list_add_tail(&w->cache.sums, &c->sum_node);
}

void kvs_cache_donate(struct kvs_room *r)
{
	struct kvs_worker *w = r->w;

	/* R10: what was aborted, or is held, never comes here. */
	if (!w->cache.ix || !r->n_keys || r->health ||
	    (r->failed && KVS_RULE(R10, DONATE)) || w->shutting_down)
		return;
	/* memory that is waited for is not kept */
	if (kvs_admission_waiting(w))
		return;
	/* The last ones first: they go first, as they are of no use without
	 * those before them. Taking one out moves only those behind it. */
	for (uint32_t e = r->ext.n; e-- > 0;)
		donate_one(r, e);
}

int kvs_cache_name(struct kvs_room *r, const struct kvs_worker_engine *e,
		   const struct kvs_room_request *q)
{
	uint32_t skip, n;

	if (!e->cache.on || !q->n_hashes || r->health)
		return 0;
	/* whole blocks only, of what will be received here */
	skip = r->prefix ? r->prefix->n : 0;
	n = r->geo.tokens / r->geo.layout->page_size / e->cache.block_pages;
	if (n > q->n_hashes - skip)
		n = q->n_hashes - skip;
	if (!n)
		return 0;
	r->keys = malloc(n * sizeof(*r->keys));
	if (!r->keys)
		return -ENOMEM;
	r->n_keys = n;
	r->block_pages = e->cache.block_pages;
	for (uint32_t i = 0; i < n; i++)
		kvs_key_of_hash(&e->cache.space, q->hashes[skip + i],
				&r->keys[i]);
	return 0;
}

/* ---- memory ----------------------------------------------------------- */

/* Return: bytes of it; 0: a room waits for it. */
static uint64_t drop_one(struct kvs_worker *w, const struct kvs_cached *c)
{
	uint64_t bytes = c->ext.bytes;
	struct kvs_unit_info info;

	if (kvs_index_unit(w->cache.ix, c->unit, &info) || info.pins ||
	    kvs_index_drop(w->cache.ix, c->unit))
		return 0;
	return bytes;
}

/* What is being filled goes last: it came last. */
static uint64_t drop_unpublished(struct kvs_worker *w)
{
	struct kvs_cached *c;
	uint64_t bytes = 0;

	kvs_list_for_each_entry(c, &w->cache.sums, sum_node) {
		bytes = drop_one(w, c);
		if (bytes)
			return bytes;
	}
	kvs_list_for_each_entry(c, &w->cache.reads, read_node) {
		bytes = drop_one(w, c);
		if (bytes)
			return bytes;
	}
	return 0;
}

int kvs_cache_alloc(struct kvs_worker *w, const uint64_t *lens, uint32_t n,
		    struct kvs_extents *ret)
{
	struct kvs_pool_account a;
	uint64_t need = 0, wanted;
	int res;

	res = kvs_pool_alloc(w->pool, lens, n, ret);
	if (res != -EAGAIN || !w->cache.ix)
		return res;
	for (uint32_t i = 0; i < n; i++)
		need += kvs_pool_round(lens[i]);
	while (res == -EAGAIN) {
		kvs_pool_account(w->pool, &a);
		if (!a.bytes[KVS_EXTENT_CACHED] &&
		    kvs_list_empty(&w->cache.reads))
			break;
		wanted = need > a.bytes[KVS_EXTENT_FREE]
				 ? need - a.bytes[KVS_EXTENT_FREE]
				 : 1; /* there, but in pieces */
		if (!kvs_index_evict(w->cache.ix, KVS_TIER_HOST, wanted) &&
		    !drop_unpublished(w))
			break;
		res = kvs_pool_alloc(w->pool, lens, n, ret);
	}
	return res;
}

uint64_t kvs_cache_flush(struct kvs_worker *w)
{
	uint64_t bytes = 0, more;

	if (!w->cache.ix)
		return 0;
	while ((more = drop_unpublished(w)))
		bytes += more;
	return bytes + kvs_index_evict(w->cache.ix, KVS_TIER_HOST, UINT64_MAX);
}

/* ---- sums ------------------------------------------------------------- */

uint64_t kvs_cached_sum_run(const struct kvs_cached *c, uint32_t block,
			    struct kvs_cache_sum *s, uint32_t *ret_crc)
{
	const struct kvs_cached_run *run = &c->runs[s->run];
	const unsigned char *base = kvs_extent_addr(&c->ext, 0);
	uint64_t len = run->item_len * c->block_pages;

	if (!s->run)
		s->crc = 0xffffffff;
	/* a phantom pool has no bytes */
	if (base)
		s->crc = kvs_crc32c_raw(s->crc, base + run->off + block * len,
					len);
	*ret_crc = ~s->crc;
	if (++s->run == c->n_runs) {
		s->run = 0;
		s->block++;
	}
	return len;
}

static uint64_t sum_some(struct kvs_worker *w)
{
	struct kvs_cache_sum *s = &w->cache.sum;
	struct kvs_cached *c =
		kvs_list_first(&w->cache.sums, struct kvs_cached, sum_node);
	uint32_t block = s->block, crc;
	uint64_t len;

	len = kvs_cached_sum_run(c, block, s, &crc);
	if (s->block == block)
		return len;
	c->crc[block] = crc;
	if (s->block < c->n_blocks)
		return len;
	*s = (struct kvs_cache_sum){ 0 };
	kvs_list_del(&c->sum_node);
	(void)kvs_index_publish(w->cache.ix, c->unit);
	kvs_cache_disk_offer(w);
	return len;
}

struct kvs_cached *kvs_cached_of(const struct kvs_found *f)
{
	struct kvs_cached *c = (struct kvs_cached *)(uintptr_t)f->cookie;

	KVS_CHECK_MAGIC(c, CACHED_MAGIC);
	return c;
}

void kvs_prefix_fail(struct kvs_prefix *p, enum kvs_room_cause cause, int err,
		     const char *text)
{
	kvs_list_del(&p->node);
	if (p->pin)
		(void)kvs_pin_fail(p->pin, cause, err, text);
	else
		(void)kvs_room_fail(p->room, cause, err, "%s", text);
}

static void prefix_bad(struct kvs_worker *w, struct kvs_prefix *p,
		       uint32_t block)
{
	struct kvs_cached *c = kvs_cached_of(&p->v[block]);
	uint32_t tokens = p->tokens / p->n;
	char text[KVS_WIRE_TEXT];

	w->cache.stats.bad++;
	kvs_log_err("cache: %u tokens at byte %llu of the receive pool are not "
		    "what was kept there, and are forgotten",
		    tokens, (unsigned long long)c->ext.v[0].off);
	(void)kvs_index_drop(w->cache.ix, p->v[block].unit);
	snprintf(text, sizeof(text),
		 "cached tokens %u and on are not what was kept",
		 block * tokens);
	kvs_prefix_fail(p, KVS_CAUSE_CHECKSUM, EBADMSG, text);
}

uint64_t kvs_cached_block_bytes(const struct kvs_cached *c)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < c->n_runs; i++)
		bytes += c->runs[i].item_len * c->block_pages;
	return bytes;
}

void kvs_cached_iov(const struct kvs_cached *c, uint32_t b, struct iovec *iov)
{
	char *base = kvs_extent_addr(&c->ext, 0);

	for (uint32_t i = 0; i < c->n_runs; i++) {
		uint64_t len = c->runs[i].item_len * c->block_pages;

		iov[i].iov_base = base + c->runs[i].off + b * len;
		iov[i].iov_len = len;
	}
}

static bool needs(const struct kvs_prefix *p, uint64_t unit)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->v[i].unit == unit)
			return true;
	return false;
}

/* Of those that are not verified, one that reads @unit; NULL. */
static struct kvs_prefix *reader_of(struct kvs_cache *all, uint64_t unit)
{
	struct kvs_prefix *p;

	kvs_list_for_each_entry(p, &all->awaits, node)
		if (needs(p, unit))
			return p;
	kvs_list_for_each_entry(p, &all->checks, node)
		if (needs(p, unit))
			return p;
	return NULL;
}

void kvs_cached_lost(struct kvs_cached *c, int err)
{
	struct kvs_worker *w = c->w;
	uint64_t unit = c->unit;
	char text[KVS_WIRE_TEXT];
	struct kvs_prefix *p;

	/* R7, R12: with its prefix a room has failed, whatever else arrived.
	 * What fails may take back its pins, and with the last one goes @c. */
	kvs_list_del(&c->read_node);
	snprintf(text, sizeof(text),
		 "cached tokens cannot be read from disk: %s",
		 kvs_err_name(err));
	/* A file that is gone or was cut off is no miss: ENOENT would be one. */
	if (err != -EBADMSG && err != -ECANCELED)
		err = -EIO;
	while ((p = reader_of(&w->cache, unit)))
		kvs_prefix_fail(p, KVS_CAUSE_RECALL, -err, text);
	(void)kvs_index_drop(w->cache.ix, unit);
}

void kvs_cached_filled(struct kvs_cached *c)
{
	struct kvs_cache *all = &c->w->cache;
	struct kvs_prefix *p, *tmp;
	uint64_t unit = c->unit;

	if (kvs_index_publish(all->ix, unit)) {
		kvs_cached_lost(c, -ECANCELED); /* dropped meanwhile */
		return;
	}
	kvs_list_del(&c->read_node);
	c->w->released = true; /* for who waits for memory it may go now */
	kvs_list_for_each_entry_safe(p, tmp, &all->awaits, node) {
		if (p->v[p->sum.block].unit != unit)
			continue;
		kvs_list_del(&p->node);
		kvs_list_add_tail(&all->checks, &p->node);
	}
}

static uint64_t check_some(struct kvs_worker *w)
{
	struct kvs_prefix *p =
		kvs_list_first(&w->cache.checks, struct kvs_prefix, node);
	uint32_t i = p->sum.block, crc;
	const struct kvs_cached *c = kvs_cached_of(&p->v[i]);
	uint64_t len;

	if (c->reading) {
		kvs_list_del(&p->node);
		kvs_list_add_tail(&w->cache.awaits, &p->node);
		return 0;
	}
	len = kvs_cached_sum_run(c, p->v[i].place, &p->sum, &crc);
	if (p->sum.block == i)
		return len;
	if (crc != c->crc[p->v[i].place]) {
		prefix_bad(w, p, i);
		return len;
	}
	if (p->sum.block == p->n) {
		kvs_list_del(&p->node);
		p->verified = true;
		if (p->pin)
			kvs_pin_verified(p->pin);
		else if (p->room->state == KVS_ROOM_SEALING)
			kvs_room_check_arrival(p->room);
	}
	return len;
}

void kvs_cache_turn(struct kvs_worker *w)
{
	uint64_t bytes = 0;

	while (!kvs_list_empty(&w->cache.checks) && bytes < KVS_CACHE_TURN)
		bytes += check_some(w);
	while (!kvs_list_empty(&w->cache.sums) && bytes < KVS_CACHE_TURN)
		bytes += sum_some(w);
}

bool kvs_cache_busy(const struct kvs_worker *w)
{
	return !kvs_list_empty(&w->cache.checks) ||
	       !kvs_list_empty(&w->cache.sums) || w->cache.disk.more;
}

/* ---- prefixes --------------------------------------------------------- */

/* What lies on disk comes to lie together. */
static bool goes_on(const struct kvs_found *v)
{
	if (v[0].tier != KVS_TIER_HOST)
		return v[-1].tier != KVS_TIER_HOST;
	return v[0].unit == v[-1].unit && v[0].place == v[-1].place + 1;
}

static uint32_t count_segs(const struct kvs_found *v, uint32_t n)
{
	uint32_t segs = 0;

	for (uint32_t i = 0; i < n; i++)
		segs += !i || !goes_on(&v[i]);
	return segs;
}

/* Pin what of @v[n] makes up to KVS_SEGS_MAX segments. */
static uint32_t prefix_pin(struct kvs_worker *w, const struct kvs_found *v,
			   uint32_t n)
{
	while (n && count_segs(v, n) > KVS_SEGS_MAX)
		n -= count_segs(v, n) - KVS_SEGS_MAX;
	if (!KVS_RULE(R13, PIN))
		return n;
	return n && !kvs_index_pin_prefix(w->cache.ix, v, n) ? n : 0;
}

struct kvs_key *kvs_cache_keys(const struct kvs_worker_engine *e,
			       const uint8_t (*hashes)[16], uint32_t n)
{
	struct kvs_key *keys = malloc(n * sizeof(*keys));

	for (uint32_t i = 0; keys && i < n; i++)
		kvs_key_of_hash(&e->cache.space, hashes[i], &keys[i]);
	return keys;
}

struct kvs_prefix *kvs_prefix_pin(struct kvs_worker *w,
				  const struct kvs_worker_engine *e,
				  const uint8_t (*hashes)[16], uint32_t n)
{
	uint64_t block = (uint64_t)e->cache.block_pages * e->layout->page_size;
	struct kvs_prefix *p;
	struct kvs_key *keys;

	keys = kvs_cache_keys(e, hashes, n);
	p = malloc(sizeof(*p) + n * sizeof(p->v[0]));
	if (!keys || !p)
		goto out_free;
	memset(p, 0, sizeof(*p));
	kvs_list_init(&p->node);
	n = (uint32_t)kvs_index_lookup(w->cache.ix, keys, n, p->v, NULL);
	n = prefix_pin(w, p->v, n);
	p->n = kvs_cache_recall(w, e, keys, p->v, n);
	/* in more pieces than they were */
	while (p->n && count_segs(p->v, p->n) > KVS_SEGS_MAX)
		kvs_index_unpin_prefix(w->cache.ix, &p->v[--p->n], 1);
	if (!p->n)
		goto out_free;
	free(keys);
	p->pinned = KVS_RULE(R13, PIN);
	p->tokens = (uint32_t)(p->n * block);
	p->n_segs = count_segs(p->v, p->n);
	return p;

out_free:
	free(keys);
	free(p);
	return NULL;
}

void kvs_cache_prefix(struct kvs_worker *w, const struct kvs_worker_engine *e,
		      const struct kvs_room_request *q, struct kvs_prefix **ret)
{
	uint64_t block = (uint64_t)e->cache.block_pages * e->layout->page_size;
	uint32_t n = q->n_hashes;

	*ret = NULL;
	if (!w->cache.ix || !e->cache.on || q->health || !q->tokens)
		return;
	if (n > (q->tokens - 1) / block)
		n = (uint32_t)((q->tokens - 1) / block);
	if (!n)
		return;
	w->cache.stats.asked += n;
	*ret = kvs_prefix_pin(w, e, q->hashes, n);
}

void kvs_cache_check(struct kvs_worker *w, struct kvs_prefix *p,
		     struct kvs_retraction *t)
{
	p->pin = t;
	kvs_list_add_tail(&w->cache.checks, &p->node);
}

void kvs_cache_take(struct kvs_room *r, struct kvs_prefix *p)
{
	struct kvs_cache *all = &r->w->cache;
	const struct kvs_cached *c;

	p->room = r;
	r->prefix = p;
	all->stats.hits += p->n;
	for (uint32_t i = 0; i < p->n; i++) {
		c = kvs_cached_of(&p->v[i]);
		for (uint32_t b = 0; b < c->n_runs; b++)
			all->stats.hit_bytes +=
				c->runs[b].item_len * c->block_pages;
	}
	kvs_list_add_tail(&all->checks, &p->node);
}

void kvs_cache_put(struct kvs_worker *w, struct kvs_prefix *p)
{
	if (!p)
		return;
	kvs_list_del(&p->node);
	if (p->pinned)
		kvs_index_unpin_prefix(w->cache.ix, p->v, p->n);
	free(p);
}

void kvs_cache_segs(const struct kvs_prefix *p, struct kvs_packet_seg *v)
{
	const struct kvs_cached *c;

	for (uint32_t i = 0; i < p->n; i++) {
		c = kvs_cached_of(&p->v[i]);
		if (i && p->v[i].unit == p->v[i - 1].unit &&
		    p->v[i].place == p->v[i - 1].place + 1) {
			v[-1].n_pages += c->block_pages;
			continue;
		}
		*v++ = (struct kvs_packet_seg){
			.off = c->ext.v[0].off,
			.extent_pages = c->pages,
			.first_page = p->v[i].place * c->block_pages,
			.n_pages = c->block_pages,
		};
	}
}

uint32_t kvs_cache_find(struct kvs_worker *w, const struct kvs_worker_engine *e,
			const uint8_t (*hashes)[16], uint32_t n, bool drop)
{
	struct kvs_found *v;
	struct kvs_key *keys;
	uint32_t found = 0;

	if (!w->cache.ix || !e->cache.on || !n)
		return 0;
	keys = kvs_cache_keys(e, hashes, n);
	v = malloc(n * sizeof(*v));
	if (keys && v)
		found = (uint32_t)kvs_index_lookup(w->cache.ix, keys, n, v,
						   NULL);
	for (uint32_t i = 0; keys && drop && i < n; i++)
		for (int t = 0; t < KVS_TIER_MAX; t++)
			(void)kvs_index_forget(w->cache.ix, (enum kvs_tier)t,
					       &keys[i]);
	free(keys);
	free(v);
	return found;
}

void kvs_worker_tell_cached(struct kvs_worker *w,
			    const struct kvs_lookup_request *q,
			    enum kvs_status st, uint32_t blocks)
{
	const struct kvs_packet_cached p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_CACHED },
		.generation = q->generation,
		.slot = q->slot,
		.blocks = blocks,
	};

	w->o.out->to_engine(w->o.arg, q->engine, q->slot,
			    KVS_WORD(q->generation, 0, st), &p.h, sizeof(p));
}

/* ---- engines ---------------------------------------------------------- */

static void fingerprint(const struct kvs_layout *l, uint32_t block,
			struct kvs_fingerprint *ret)
{
	const uint32_t head[] = { l->page_size, l->dtype, l->n_buffers, block };
	crypto_generichash_state st;

	crypto_generichash_init(&st, NULL, 0, sizeof(ret->b));
	crypto_generichash_update(&st, (const unsigned char *)label,
				  strlen(label));
	crypto_generichash_update(&st, (const unsigned char *)head,
				  sizeof(head));
	/* in this order they lie in an extent */
	for (uint32_t b = 0; b < l->n_buffers; b++) {
		const uint32_t v[] = { l->buffers[b].kind, l->buffers[b].layer,
				       l->buffers[b].item_len };

		crypto_generichash_update(&st, (const unsigned char *)v,
					  sizeof(v));
	}
	crypto_generichash_final(&st, ret->b, sizeof(ret->b));
}

int kvs_cache_open(struct kvs_worker *w)
{
	struct kvs_index_opts o = {
		.max_entries = w->set->cache_blocks,
		.policy = strcmp(w->set->cache_policy, "lru") == 0
				  ? KVS_POLICY_LRU
				  : KVS_POLICY_S3FIFO,
		.secret = w->o.secret,
		.ops = &index_ops,
		.arg = w,
	};

	if (w->cache.ix || !w->set->cache_share)
		return 0;
	o.tier[KVS_TIER_HOST] = (struct kvs_tier_limits){
		.quota = kvs_pool_size(w->pool) / CACHE_PERCENT *
			 w->set->cache_share,
		.high = KVS_INDEX_PER_MILLE,
		.low = KVS_INDEX_PER_MILLE,
	};
	o.tier[KVS_TIER_NVME] = (struct kvs_tier_limits){
		.quota = w->cache.disk.wanted ? w->set->hicache_limit : 0,
		.high = KVS_INDEX_PER_MILLE / CACHE_PERCENT *
			w->set->hicache_high,
		.low = KVS_INDEX_PER_MILLE / CACHE_PERCENT *
		       (w->set->hicache_low < w->set->hicache_high
				? w->set->hicache_low
				: w->set->hicache_high),
	};
	kvs_cache_shared_limits(w, &o);
	return kvs_index_create(&o, &w->cache.ix);
}

void kvs_cache_engine(struct kvs_worker *w, struct kvs_worker_engine *e,
		      const char *space, uint32_t block)
{
	const struct kvs_layout *l = e->layout;
	const char *why = NULL;
	struct kvs_fingerprint f;

	if (!block)
		block = l->page_size;
	for (uint32_t b = 0; b < l->n_buffers && !why; b++)
		if (!kvs_buffer_kind_is_paged(l->buffers[b].kind))
			why = "its layout has fixed-count buffers";
	if (block % l->page_size)
		why = "its blocks are not whole pages";
	else if (!e->extent_tokens || e->extent_tokens % block)
		why = "its blocks do not divide an extent (extent.tokens)";
	fingerprint(l, block, &f);
	if (!why &&
	    kvs_key_space_init(&e->cache.space, &f, space, strlen(space)))
		why = "its space cannot be hashed";
	if (!why && kvs_cache_open(w))
		why = "there is no memory for the index";
	if (why) {
		kvs_log_warn("engine %u: nothing of its rooms is cached: %s",
			     e->number, why);
		return;
	}
	e->cache.block_pages = block / l->page_size;
	e->cache.on = w->cache.ix;
}

void kvs_cache_init(struct kvs_worker *w)
{
	kvs_list_init(&w->cache.units);
	kvs_list_init(&w->cache.sums);
	kvs_list_init(&w->cache.reads);
	kvs_list_init(&w->cache.checks);
	kvs_list_init(&w->cache.awaits);
}

void kvs_cache_fini(struct kvs_worker *w)
{
	struct kvs_cached *c;

	kvs_cache_disk_close(w);
	kvs_cache_shared_close(w);
	while (!kvs_list_empty(&w->cache.units)) {
		c = kvs_list_first(&w->cache.units, struct kvs_cached, node);
		/* what the disk never gave back is abandoned */
		if (kvs_index_drop(w->cache.ix, c->unit))
			kvs_drain_abandon(&c->drain);
	}
	kvs_index_destroy(w->cache.ix);
	w->cache.ix = NULL;
}

void kvs_cache_stats(const struct kvs_worker *w, struct kvs_cache_stats *ret)
{
	const struct kvs_tier_account *t;
	struct kvs_index_account a;

	*ret = w->cache.stats;
	if (!w->cache.ix)
		return;
	kvs_index_account(w->cache.ix, &a);
	t = &a.tier[KVS_TIER_HOST];
	for (int i = 0; i < KVS_UNIT_STATE_MAX; i++)
		ret->bytes += t->bytes[i];
	ret->pinned_bytes = t->pinned;
	ret->blocks = t->pages;
}
