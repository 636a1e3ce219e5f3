/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier's life, what it knows, and write-behind. */
#include "pipeline/cache_disk.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "pipeline/cache_internal.h"
#include "pipeline/worker.h"

#define FIRST_NAME "node%u"
#define PROGRESS (5 * KVS_NSEC_PER_SEC)
#define RETRY KVS_NSEC_PER_SEC /* after a put was refused */
#define HOPS 256u /* units looked at a turn */
#define CLOSE_NAP (10 * KVS_NSEC_PER_MSEC)

/* A block on its way to disk. */
struct cache_put {
	struct kvs_disk_req r;
	struct kvs_cache_disk *d;
	uint64_t unit; /* of the disk tier, FILLING */
	uint64_t host; /* unit it is of */
	uint32_t crc; /* of the block when it was kept */
	struct iovec iov[];
};

static uint64_t unit_bytes(uint64_t len)
{
	return (len + KVS_SEG_BLOCK - 1) / KVS_SEG_BLOCK * KVS_SEG_BLOCK;
}

/* ---- what is there ---- */

static void disk_drop(struct kvs_cache_disk *d, kvs_disk_loc loc)
{
	kvs_disk_loc *more;
	size_t cap;

	if (d->store) {
		(void)kvs_disk_store_drop(d->store, loc);
		return;
	}
	/* it is being opened; what is not remembered goes with its segment */
	if (d->n_stale == d->cap_stale) {
		cap = d->cap_stale ? 2 * d->cap_stale : 64;
		more = realloc(d->stale, cap * sizeof(*more));
		if (!more)
			return;
		d->stale = more;
		d->cap_stale = cap;
	}
	d->stale[d->n_stale++] = loc;
}

static void disk_progress(struct kvs_cache_disk *d)
{
	uint64_t now = kvs_clock_now(d->w->clock);

	if (now < d->said_at + PROGRESS)
		return;
	d->said_at = now;
	kvs_log_notice("cache %s: %llu blocks so far", d->w->set->hicache_dir,
		       (unsigned long long)d->stats.found);
}

static void disk_found(void *arg, const struct kvs_key *key,
		       const struct kvs_fingerprint *layout,
		       uint32_t page_bytes, kvs_disk_loc loc)
{
	struct kvs_cache_disk *d = arg;
	struct kvs_index *ix = d->w->cache.ix;
	uint64_t bytes = unit_bytes(page_bytes), unit;

	(void)layout; /* the key is of it */
	d->stats.found++;
	if (kvs_index_make_room(ix, d->tier, bytes) ||
	    kvs_index_add(ix, d->tier, bytes, 0, &unit)) {
		disk_drop(d, loc);
		return;
	}
	if (kvs_index_put(ix, unit, key, 0)) {
		/* there twice, or one more than can be known */
		disk_drop(d, loc);
		(void)kvs_index_drop(ix, unit);
		return;
	}
	(void)kvs_index_set_cookie(ix, unit, loc);
	(void)kvs_index_publish(ix, unit);
	disk_progress(d);
}

static void disk_gone(void *arg, const struct kvs_key *key, kvs_disk_loc loc,
		      enum kvs_gone_reason reason)
{
	struct kvs_cache_disk *d = arg;
	struct kvs_index *ix = d->w->cache.ix;
	struct kvs_found f;

	(void)reason; /* the store counts */
	if (!kvs_index_find(ix, d->tier, key, &f) && f.cookie == loc)
		(void)kvs_index_forget(ix, d->tier, key);
}

void kvs_cache_disk_victim(struct kvs_worker *w, const struct kvs_victim *v)
{
	struct kvs_cache_disk *d = &w->cache.disk;

	/* one that is being written has no place yet, and none later */
	if (v->cookie)
		disk_drop(d, v->cookie);
	if (v->evicted)
		d->stats.evicted_bytes += v->bytes;
	KVS_ASSERT(!kvs_index_gone(w->cache.ix, v->unit));
}

uint64_t kvs_cache_disk_flush(struct kvs_worker *w)
{
	if (!w->cache.disk.store)
		return 0;
	return kvs_index_evict(w->cache.ix, w->cache.disk.tier, UINT64_MAX);
}

bool kvs_cache_disk_scrub(struct kvs_worker *w, uint64_t bytes_per_sec)
{
	if (!w->cache.disk.store)
		return false;
	kvs_disk_store_scrub_once(w->cache.disk.store, bytes_per_sec);
	return true;
}

/* ---- write-behind ---- */

void kvs_cache_disk_offer(struct kvs_worker *w)
{
	w->cache.disk.fresh = true;
	w->cache.disk.idle = false;
}

/* What is in host memory is not what was kept there, and was written so. */
static void host_is_bad(struct kvs_cache_disk *d, const struct cache_put *p)
{
	d->w->cache.stats.bad++;
	kvs_log_err("cache: a block in the receive pool changed before it was "
		    "written to disk, and is forgotten");
	(void)disk_drop(d, p->r.loc);
	(void)kvs_index_drop(d->w->cache.ix, p->host);
}

static void put_done(struct kvs_disk_req *r, int result)
{
	struct cache_put *p = kvs_container_of(r, struct cache_put, r);
	struct kvs_cache_disk *d = p->d;
	struct kvs_index *ix = d->w->cache.ix;

	d->queued -= r->len;
	if (!result && r->crc != p->crc) {
		host_is_bad(d, p);
		(void)kvs_index_drop(ix, p->unit);
	} else if (result) {
		d->stats.write_failed += result != -ECANCELED;
		(void)kvs_index_drop(ix, p->unit);
	} else if (kvs_index_set_cookie(ix, p->unit, r->loc)) {
		disk_drop(d, r->loc); /* forgotten meanwhile */
	} else {
		d->stats.written++;
		d->stats.written_bytes += r->len;
		(void)kvs_index_publish(ix, p->unit);
		(void)kvs_index_trim(ix, d->tier);
	}
	free(p);
}

/* Pages of one segment have one: blocks that look alike. */
static void shape(const struct kvs_cached *c, struct kvs_fingerprint *ret)
{
	crypto_generichash_state st;

	crypto_generichash_init(&st, NULL, 0, sizeof(ret->b));
	for (uint32_t i = 0; i < c->n_runs; i++) {
		uint64_t len = c->runs[i].item_len * c->block_pages;

		crypto_generichash_update(&st, (const unsigned char *)&len,
					  sizeof(len));
	}
	crypto_generichash_final(&st, ret->b, sizeof(ret->b));
}

static int put_start(struct kvs_cache_disk *d, struct kvs_cached *c,
		     const struct kvs_unit_page *page, uint64_t len)
{
	struct kvs_index *ix = d->w->cache.ix;
	struct cache_put *p;
	int ret;

	p = calloc(1, sizeof(*p) + c->n_runs * sizeof(p->iov[0]));
	if (!p)
		return -ENOMEM;
	p->d = d;
	p->host = c->unit;
	p->crc = c->crc[page->place];
	kvs_cached_iov(c, page->place, p->iov);
	p->r = (struct kvs_disk_req){
		.key = page->key,
		.iov = p->iov,
		.niov = c->n_runs,
		.len = (uint32_t)len,
		.drain = &c->drain,
		.id = ++d->next_id,
		.done = put_done,
	};
	shape(c, &p->r.layout);
	ret = kvs_index_add(ix, d->tier, unit_bytes(len), 0, &p->unit);
	if (ret) {
		free(p);
		return ret;
	}
	ret = kvs_index_put(ix, p->unit, &page->key, 0);
	if (!ret)
		ret = kvs_disk_store_put(d->store, &p->r);
	if (ret) {
		(void)kvs_index_drop(ix, p->unit);
		free(p);
		return ret;
	}
	d->queued += len;
	return 0;
}

/* Return: 0, also when the page cannot be there; -EAGAIN when less is queued;
 * other: not for a while. */
static int write_page(struct kvs_cache_disk *d, struct kvs_cached *c,
		      const struct kvs_unit_page *page, uint64_t *ret_bytes)
{
	uint64_t len = kvs_cached_block_bytes(c);
	struct kvs_index *ix = d->w->cache.ix;
	struct kvs_found f;
	int ret;

	*ret_bytes = 0;
	if (len > KVS_SEG_PAGE_MAX || page->place >= c->n_blocks ||
	    !kvs_index_find(ix, d->tier, &page->key, &f))
		return 0;
	if (d->queued && d->queued + len > d->w->set->hicache_write_behind)
		return -EAGAIN;
	if (kvs_index_make_room(ix, d->tier, unit_bytes(len)))
		return 0;
	ret = put_start(d, c, page, len);
	if (!ret)
		*ret_bytes = len;
	return ret == -ESHUTDOWN || ret == -EEXIST || ret == -EINVAL ? 0 : ret;
}

/* The host unit whose pages are written next. False: none, or enough looked
 * at for a turn (d->more). */
static bool next_unit(struct kvs_cache_disk *d)
{
	struct kvs_index *ix = d->w->cache.ix;
	struct kvs_unit_info info;
	struct kvs_cached *c;
	int64_t n;
	int ret;

	for (unsigned int i = 0; i < HOPS; i++) {
		ret = kvs_index_next_cold(ix, KVS_TIER_HOST, &d->at);
		if (ret && !d->fresh && ret != -ESTALE) {
			d->at = 0;
			d->idle = true;
			return false;
		}
		if (ret) {
			d->at = 0;
			d->fresh = false;
			continue;
		}
		if (kvs_index_unit(ix, d->at, &info))
			continue;
		c = (struct kvs_cached *)(uintptr_t)info.cookie;
		if (c->written)
			continue;
		free(d->pages);
		d->page = 0;
		d->n_pages = 0;
		d->pages = calloc(info.pages, sizeof(*d->pages));
		if (!d->pages)
			return false;
		n = kvs_index_pages(ix, d->at, d->pages, info.pages);
		if (n <= 0)
			continue;
		d->n_pages = (uint32_t)n;
		d->from = d->at;
		return true;
	}
	d->more = true;
	return false;
}

/* The unit that pages are written of, if it is there still; NULL. */
static struct kvs_cached *this_unit(struct kvs_cache_disk *d)
{
	struct kvs_unit_info info;

	if (d->page == d->n_pages ||
	    kvs_index_unit(d->w->cache.ix, d->from, &info) ||
	    info.state != KVS_UNIT_RESIDENT)
		return NULL;
	return (struct kvs_cached *)(uintptr_t)info.cookie;
}

/* Return: something was handed to the store. */
static bool write_some(struct kvs_cache_disk *d)
{
	uint64_t bytes = 0, len;
	struct kvs_cached *c;
	int ret;

	d->more = false;
	if (d->idle || kvs_clock_now(d->w->clock) < d->retry_at)
		return false;
	while (bytes < KVS_CACHE_TURN) {
		c = this_unit(d);
		if (!c) {
			if (!next_unit(d))
				return bytes;
			continue;
		}
		ret = write_page(d, c, &d->pages[d->page], &len);
		if (ret == -EAGAIN)
			return bytes; /* what ends goes on with it */
		if (ret) {
			d->retry_at = kvs_clock_now(d->w->clock) + RETRY;
			return bytes;
		}
		bytes += len;
		if (++d->page == d->n_pages)
			c->written = true;
	}
	d->more = true;
	return true;
}

/* ---- turns ---- */

int kvs_cache_disk_fd(const struct kvs_worker *w)
{
	const struct kvs_cache_disk *d = &w->cache.disk;

	return d->store ? kvs_disk_fd(d->disk) : -1;
}

void kvs_cache_disk_turn(struct kvs_worker *w)
{
	struct kvs_cache_disk *d = &w->cache.disk;

	if (!d->store)
		return;
	kvs_disk_store_turn(d->store);
	if (write_some(d))
		kvs_disk_store_turn(d->store);
}

uint64_t kvs_cache_disk_due(const struct kvs_worker *w)
{
	const struct kvs_cache_disk *d = &w->cache.disk;
	uint64_t due;

	if (!d->store)
		return KVS_TIME_NEVER;
	due = kvs_disk_store_due(d->store);
	if (!d->idle && !d->queued && d->retry_at < due)
		due = d->retry_at;
	return due;
}

bool kvs_cache_disk_behind(const struct kvs_worker *w)
{
	const struct kvs_cache_disk *d = &w->cache.disk;
	const char *why;

	/* a disk that is full or fails is not waited for */
	return d->store &&
	       kvs_disk_store_health(d->store, &why) <= KVS_STORE_BUFFERED &&
	       (!d->idle || d->queued || !kvs_list_empty(&w->cache.sums));
}

/* ---- life ---- */

static void disk_off(struct kvs_cache_disk *d, const char *why)
{
	snprintf(d->why, sizeof(d->why), "%s", why);
	kvs_log_err("hicache.dir: the disk tier is off: %s", why);
}

static int disk_engine(struct kvs_cache_disk *d, char *err, size_t errlen)
{
	struct kvs_worker *w = d->w;
	const struct kvs_disk_opts o = {
		.engine = w->set->hicache_engine,
		.fs = w->o.cache_fs,
		.depth = w->set->hicache_depth,
		.files = KVS_STORE_FILES_DEFAULT,
		.clock = w->clock,
		.seed = w->o.secret,
	};
	int ret = kvs_disk_create(&o, &d->disk, err, errlen);

	if (ret)
		return ret;
	if (*err)
		kvs_log_notice("cache on disk: %s", err);
	ret = kvs_disk_map(d->disk, kvs_pool_base(w->pool),
			   kvs_pool_size(w->pool));
	if (ret && ret != -EOPNOTSUPP)
		kvs_log_notice("cache on disk: the receive pool cannot be "
			       "registered (%s): transfers take somewhat "
			       "longer",
			       kvs_err_name(ret));
	return 0;
}

static int disk_store(struct kvs_cache_disk *d, char *err, size_t errlen)
{
	char dir[KVS_STRING_MAX + 16];
	const struct kvs_settings *set = d->w->set;
	enum kvs_durability durability = KVS_DURABILITY_NONE;
	struct kvs_disk_store *s;
	struct kvs_disk_store_opts o = {
		.dir = dir,
		.disk = d->disk,
		.clock = d->w->clock,
		.segment_bytes = set->hicache_segment,
		.limit = set->hicache_limit,
		.write_behind = set->hicache_write_behind,
		.scrub = set->hicache_scrub,
		.found = disk_found,
		.gone = disk_gone,
		.arg = d,
	};
	int ret;

	if (!strcmp(set->hicache_durability, "fdatasync"))
		durability = KVS_DURABILITY_FDATASYNC;
	o.durability = durability;
	if (!d->w->o.cache_fs && mkdir(set->hicache_dir, 0700) &&
	    errno != EEXIST) {
		ret = -errno;
		snprintf(err, errlen, "%s: %s", set->hicache_dir,
			 strerror(-ret));
		return ret;
	}
	/* each node has an index, and writes, of its own */
	snprintf(dir, sizeof(dir), "%s/" FIRST_NAME, set->hicache_dir,
		 d->w->o.index);
	d->said_at = kvs_clock_now(d->w->clock);
	ret = kvs_disk_store_open(&o, &s, err, errlen);
	if (ret)
		return ret;
	d->store = s;
	for (size_t i = 0; i < d->n_stale; i++)
		(void)kvs_disk_store_drop(s, d->stale[i]);
	free(d->stale);
	d->stale = NULL;
	d->n_stale = 0;
	d->cap_stale = 0;
	return 0;
}

/* What it told of while it was being opened is not there. */
static void disk_forget_all(struct kvs_cache_disk *d)
{
	(void)kvs_index_evict(d->w->cache.ix, d->tier, UINT64_MAX);
	free(d->stale);
	d->stale = NULL;
	d->n_stale = 0;
	d->cap_stale = 0;
}

void kvs_cache_disk_open(struct kvs_worker *w)
{
	struct kvs_cache_disk *d = &w->cache.disk;
	char err[KVS_CACHE_WHY_MAX];

	d->w = w;
	d->tier = KVS_TIER_NVME;
	d->idle = true;
	if (!*w->set->hicache_dir)
		return;
	d->wanted = true;
	if (!w->set->cache_share || !kvs_pool_base(w->pool)) {
		disk_off(d, "nothing is cached in memory (cache.share)");
		return;
	}
	if (kvs_cache_open(w)) {
		disk_off(d, "there is no memory for the index");
		return;
	}
	if (disk_engine(d, err, sizeof(err))) {
		disk_off(d, err);
		return;
	}
	if (disk_store(d, err, sizeof(err))) {
		disk_forget_all(d);
		kvs_disk_destroy(d->disk);
		d->disk = NULL;
		disk_off(d, err);
		return;
	}
	kvs_log_info("cache %s/" FIRST_NAME ": by %s, %llu blocks",
		     w->set->hicache_dir, w->o.index, kvs_disk_name(d->disk),
		     (unsigned long long)d->stats.found);
}

void kvs_cache_disk_close(struct kvs_worker *w)
{
	struct kvs_cache_disk *d = &w->cache.disk;
	uint64_t until =
		kvs_clock_now(&kvs_clock_real) + w->set->shutdown_timeout;

	if (!d->store)
		return;
	d->idle = true;
	while (kvs_disk_store_close(d->store)) {
		if (kvs_clock_now(&kvs_clock_real) >= until) {
			disk_off(d, "transfers have not ended at shutdown; "
				    "their memory is abandoned");
			d->store = NULL;
			return;
		}
		kvs_disk_wait(d->disk, CLOSE_NAP);
		kvs_disk_store_turn(d->store);
	}
	d->store = NULL;
	kvs_disk_destroy(d->disk);
	d->disk = NULL;
	free(d->pages);
	d->pages = NULL;
}

void kvs_cache_disk_off(struct kvs_worker *w, const char *why)
{
	kvs_cache_disk_close(w);
	disk_off(&w->cache.disk, why);
}

void kvs_cache_disk_stats(const struct kvs_worker *w,
			  struct kvs_cache_disk_stats *ret)
{
	const struct kvs_cache_disk *d = &w->cache.disk;
	struct kvs_disk_store_stats s;
	enum kvs_store_health health;
	struct kvs_index_account a;
	const char *why;

	*ret = d->stats;
	ret->wanted = d->wanted;
	ret->health = d->wanted ? "off" : "none";
	snprintf(ret->why, sizeof(ret->why), "%s", d->why);
	if (!d->store)
		return;
	health = kvs_disk_store_health(d->store, &why);
	ret->on = true;
	ret->degraded = health != KVS_STORE_OK && health != KVS_STORE_BUFFERED;
	ret->health = kvs_store_health_name[health];
	snprintf(ret->why, sizeof(ret->why), "%s", why);
	ret->engine = kvs_disk_name(d->disk);
	ret->queued_bytes = d->queued;
	kvs_index_account(w->cache.ix, &a);
	ret->blocks = a.tier[d->tier].pages;
	for (int i = 0; i < KVS_UNIT_STATE_MAX; i++)
		ret->bytes += a.tier[d->tier].bytes[i];
	kvs_disk_store_stats(d->store, &s);
	ret->file_bytes = s.used;
	ret->aside_bytes = s.aside;
	for (int i = 0; i < KVS_SEG_VERDICT_MAX; i++)
		ret->aside_files += s.set_aside[i];
	ret->damaged = s.damaged + s.short_reads + s.scrub_damaged;
	ret->write_errors = s.write_errors + s.no_space;
	ret->read_errors = s.read_errors;
	ret->put_refused = s.put_refused;
	ret->reclaimed = s.reclaimed_pages;
	ret->scrubbed_bytes = s.scrubbed_bytes;
	ret->scrub_rounds = s.scrub_rounds;
}
