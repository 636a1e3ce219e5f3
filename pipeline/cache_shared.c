/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/cache_shared.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "pipeline/cache_internal.h"
#include "pipeline/worker.h"

#define CLOSE_NAP (10 * KVS_NSEC_PER_MSEC)
#define PATH_LEN (KVS_STRING_MAX + 2 * (NAME_MAX + 1))
#define UNIT 1u /* what a block takes of the quota */

/* ---- what is there ---- */

void kvs_cache_shared_limits(const struct kvs_worker *w,
			     struct kvs_index_opts *o)
{
	uint64_t all = o->max_entries;

	if (!*w->set->hicache_shared_dir)
		return;
	all += w->set->hicache_shared_blocks;
	o->max_entries = all < KVS_INDEX_ENTRIES_MAX ? (uint32_t)all
						     : KVS_INDEX_ENTRIES_MAX;
	o->tier[KVS_TIER_SHARED] = (struct kvs_tier_limits){
		.quota = (uint64_t)UNIT * w->set->hicache_shared_blocks,
		.high = KVS_INDEX_PER_MILLE,
		.low = KVS_INDEX_PER_MILLE,
	};
}

static uint32_t number_of(const struct kvs_shared_node *n)
{
	return (uint32_t)(n - n->s->nodes);
}

static void shared_found(void *arg, const struct kvs_key *key,
			 const struct kvs_fingerprint *layout,
			 uint32_t page_bytes, kvs_disk_loc loc)
{
	struct kvs_shared_node *n = arg;
	struct kvs_index *ix = n->s->w->cache.ix;
	struct kvs_found f;
	uint64_t unit;

	(void)layout; /* the key is of it */
	(void)page_bytes; /* of another size: refused when it is got */
	n->s->stats.found++;
	if (!kvs_index_find(ix, KVS_TIER_SHARED, key, &f))
		return; /* another node has it as well */
	if (kvs_index_make_room(ix, KVS_TIER_SHARED, UNIT) ||
	    kvs_index_add(ix, KVS_TIER_SHARED, UNIT, loc, &unit)) {
		n->s->stats.forgotten++;
		return;
	}
	if (kvs_index_put(ix, unit, key, number_of(n))) {
		n->s->stats.forgotten++;
		(void)kvs_index_drop(ix, unit);
		return;
	}
	(void)kvs_index_publish(ix, unit);
}

static void shared_gone(void *arg, const struct kvs_key *key, kvs_disk_loc loc,
			enum kvs_gone_reason reason)
{
	struct kvs_shared_node *n = arg;
	struct kvs_index *ix = n->s->w->cache.ix;
	struct kvs_found f;

	n->s->stats.vanished += reason == KVS_GONE_VANISHED;
	n->s->stats.damaged += reason == KVS_GONE_DAMAGED;
	if (!kvs_index_find(ix, KVS_TIER_SHARED, key, &f) && f.cookie == loc &&
	    f.place == number_of(n))
		(void)kvs_index_forget(ix, KVS_TIER_SHARED, key);
}

void kvs_cache_shared_victim(struct kvs_worker *w, const struct kvs_victim *v)
{
	w->cache.shared.stats.forgotten += v->evicted;
	KVS_ASSERT(!kvs_index_gone(w->cache.ix, v->unit));
}

struct kvs_disk_store *kvs_cache_shared_store(const struct kvs_worker *w,
					      const struct kvs_found *f)
{
	const struct kvs_cache_shared *s = &w->cache.shared;

	if (f->place >= s->n_nodes || s->nodes[f->place].closing)
		return NULL;
	return s->nodes[f->place].store;
}

/* ---- looking ---- */

struct look {
	struct kvs_cache_shared *s;
	const char *dir; /* what is listed */
	bool top; /* it is hicache.shared_dir */
	bool over; /* there was no slot */
};

static bool is_node(const char *name)
{
	return !strncmp(name, "node", 4) && name[4] &&
	       strspn(name + 4, "0123456789") == strlen(name + 4);
}

/* It is the directory that we write. */
static bool is_ours(const struct kvs_worker *w, const char *dir)
{
	struct stat a, b;

	return *w->set->hicache_dir && !stat(w->set->hicache_dir, &a) &&
	       !stat(dir, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int look_node(struct look *l, const char *path)
{
	struct kvs_shared_node *n, *free_node = NULL;

	for (uint32_t i = 0; i < l->s->n_nodes; i++) {
		n = &l->s->nodes[i];
		if (!n->path && !free_node)
			free_node = n;
		if (!n->path || strcmp(n->path, path) != 0)
			continue;
		n->seen = true;
		return 0;
	}
	if (!free_node) {
		l->over = true;
		return 0;
	}
	free_node->path = strdup(path);
	if (!free_node->path)
		return -ENOMEM;
	free_node->seen = true;
	free_node->err = 0;
	return 0;
}

static int look_name(void *arg, const char *name)
{
	struct look *l = arg, sub = *l;
	char path[PATH_LEN];
	int n;

	n = snprintf(path, sizeof(path), "%s/%s", l->dir, name);
	if (n < 0 || (size_t)n >= sizeof(path) || *name == '.')
		return 0;
	if (is_node(name))
		return is_ours(l->s->w, l->dir) ? 0 : look_node(l, path);
	if (!l->top)
		return 0;
	sub.dir = path;
	sub.top = false;
	/* most are no directories, or not for us */
	n = kvs_disk_fs(l->s->disk)
		    ->ops->list(kvs_disk_fs(l->s->disk), path, look_name, &sub);
	l->over = sub.over;
	return n == -ENOMEM ? n : 0;
}

/* Which directories there are. */
static void look_begin(struct kvs_cache_shared *s)
{
	const char *dir = s->w->set->hicache_shared_dir;
	struct kvs_fs *fs = kvs_disk_fs(s->disk);
	struct look l = { .s = s, .dir = dir, .top = true };
	int ret;

	for (uint32_t i = 0; i < s->n_nodes; i++)
		s->nodes[i].seen = false;
	ret = fs->ops->list(fs, dir, look_name, &l);
	if (ret && ret != s->err)
		kvs_log_err("hicache.shared_dir: %s: %s: nothing is served "
			    "from there until it is back",
			    dir, strerror(-ret));
	else if (!ret && s->err)
		kvs_log_notice("hicache.shared_dir: %s: is back", dir);
	s->err = ret;
	if (l.over && !s->over)
		kvs_log_warn("hicache.shared_dir: %s: there are more nodes "
			     "than are read (hicache.shared_nodes = %u)",
			     dir, s->n_nodes);
	s->over = l.over;
	s->at = 0;
}

static void node_free(struct kvs_shared_node *n)
{
	free(n->path);
	n->path = NULL;
	n->err = 0;
}

static void node_says(struct kvs_shared_node *n, int err, const char *text)
{
	/* a directory that nobody has begun to write is no news */
	if (err && err != n->err && err != -ENOENT)
		kvs_log_warn("cache %s: cannot be read: %s", n->path,
			     text && *text ? text : kvs_err_name(err));
	n->err = err;
}

static void node_open(struct kvs_shared_node *n)
{
	struct kvs_cache_shared *s = n->s;
	uint32_t files = KVS_STORE_FILES_DEFAULT / s->n_nodes;
	const struct kvs_disk_store_opts o = {
		.dir = n->path,
		.disk = s->disk,
		.clock = s->w->clock,
		.read_only = true,
		.files = files ? files : 1,
		.found = shared_found,
		.gone = shared_gone,
		.arg = n,
	};
	char err[KVS_CACHE_WHY_MAX];
	int ret = kvs_disk_store_open(&o, &n->store, err, sizeof(err));

	if (ret)
		n->store = NULL;
	node_says(n, ret, err);
	n->closing = false;
	if (!ret)
		kvs_log_info("cache %s: is read", n->path);
}

/* Return: it is closed. */
static bool node_close(struct kvs_shared_node *n)
{
	if (n->store && kvs_disk_store_close(n->store))
		return false;
	n->store = NULL;
	n->closing = false;
	return true;
}

static void node_look(struct kvs_shared_node *n)
{
	int ret;

	if (!n->path || n->closing)
		return;
	if (!n->store && n->seen) {
		node_open(n);
		return;
	}
	if (!n->store) {
		node_free(n);
		return;
	}
	ret = kvs_disk_store_refresh(n->store);
	if (!ret || ret == -ENOMEM)
		return;
	/* all of it is told to be gone; it is opened anew when it is there */
	kvs_log_notice("cache %s: is not there any more: %s", n->path,
		       kvs_err_name(ret));
	n->closing = true;
	(void)node_close(n);
}

static void look_on(struct kvs_cache_shared *s)
{
	uint64_t now = kvs_clock_now(s->w->clock);

	if (s->at == s->n_nodes) {
		if (now < s->look_at)
			return;
		look_begin(s);
		return;
	}
	/* one a turn that costs something */
	while (s->at < s->n_nodes && !s->nodes[s->at].path)
		s->at++;
	if (s->at < s->n_nodes)
		node_look(&s->nodes[s->at++]);
	if (s->at < s->n_nodes)
		return;
	s->stats.looks++;
	s->look_at =
		kvs_clock_now(s->w->clock) + s->w->set->hicache_shared_refresh;
}

/* ---- turns ---- */

int kvs_cache_shared_fd(const struct kvs_worker *w)
{
	const struct kvs_cache_shared *s = &w->cache.shared;

	return s->disk ? kvs_disk_fd(s->disk) : -1;
}

void kvs_cache_shared_turn(struct kvs_worker *w)
{
	struct kvs_cache_shared *s = &w->cache.shared;

	if (!s->disk)
		return;
	for (uint32_t i = 0; i < s->n_nodes; i++) {
		if (s->nodes[i].store)
			kvs_disk_store_turn(s->nodes[i].store);
		if (s->nodes[i].closing)
			(void)node_close(&s->nodes[i]);
	}
	look_on(s);
}

uint64_t kvs_cache_shared_due(const struct kvs_worker *w)
{
	const struct kvs_cache_shared *s = &w->cache.shared;
	uint64_t due, at;

	if (!s->disk)
		return KVS_TIME_NEVER;
	if (s->at < s->n_nodes)
		return 0;
	due = s->look_at;
	for (uint32_t i = 0; i < s->n_nodes; i++) {
		if (!s->nodes[i].store)
			continue;
		at = kvs_disk_store_due(s->nodes[i].store);
		if (at < due)
			due = at;
	}
	return due;
}

/* ---- life ---- */

static void shared_off(struct kvs_cache_shared *s, const char *why)
{
	snprintf(s->why, sizeof(s->why), "%s", why);
	kvs_log_err("hicache.shared_dir: the shared tier is off: %s", why);
}

void kvs_cache_shared_open(struct kvs_worker *w)
{
	struct kvs_cache_shared *s = &w->cache.shared;
	const struct kvs_disk_opts o = {
		.engine = w->set->hicache_engine,
		.fs = w->o.cache_fs,
		.depth = w->set->hicache_depth,
		.files = KVS_STORE_FILES_DEFAULT,
		.clock = w->clock,
		.seed = w->o.secret,
	};
	char err[KVS_CACHE_WHY_MAX] = "";

	s->w = w;
	if (!*w->set->hicache_shared_dir)
		return;
	s->stats.wanted = true;
	if (!w->set->cache_share || !kvs_pool_base(w->pool)) {
		shared_off(s, "nothing is cached in memory (cache.share)");
		return;
	}
	s->nodes = calloc(w->set->hicache_shared_nodes, sizeof(*s->nodes));
	if (!s->nodes || kvs_cache_open(w)) {
		shared_off(s, "there is no memory for the index");
		return;
	}
	s->n_nodes = w->set->hicache_shared_nodes;
	s->at = s->n_nodes;
	for (uint32_t i = 0; i < s->n_nodes; i++)
		s->nodes[i].s = s;
	if (kvs_disk_create(&o, &s->disk, err, sizeof(err))) {
		s->disk = NULL;
		shared_off(s, err);
		return;
	}
	kvs_log_info("cache %s: read by %s", w->set->hicache_shared_dir,
		     kvs_disk_name(s->disk));
}

/* Return: all are closed. */
static bool close_all(struct kvs_cache_shared *s)
{
	bool all = true;

	for (uint32_t i = 0; i < s->n_nodes; i++) {
		if (!node_close(&s->nodes[i])) {
			kvs_disk_store_turn(s->nodes[i].store);
			all = false;
		} else {
			node_free(&s->nodes[i]);
		}
	}
	return all;
}

void kvs_cache_shared_close(struct kvs_worker *w)
{
	struct kvs_cache_shared *s = &w->cache.shared;
	uint64_t until =
		kvs_clock_now(&kvs_clock_real) + w->set->shutdown_timeout;

	if (s->disk) {
		while (!close_all(s)) {
			if (kvs_clock_now(&kvs_clock_real) >= until) {
				shared_off(s, "transfers have not ended at "
					      "shutdown; their memory is "
					      "abandoned");
				s->disk = NULL;
				s->nodes = NULL;
				s->n_nodes = 0;
				return;
			}
			kvs_disk_wait(s->disk, CLOSE_NAP);
		}
		kvs_disk_destroy(s->disk);
		s->disk = NULL;
	}
	free(s->nodes);
	s->nodes = NULL;
	s->n_nodes = 0;
}

void kvs_cache_shared_off(struct kvs_worker *w, const char *why)
{
	kvs_cache_shared_close(w);
	shared_off(&w->cache.shared, why);
}

static void shared_health(const struct kvs_cache_shared *s,
			  const struct kvs_shared_node *bad, const char *sick,
			  struct kvs_cache_shared_stats *ret)
{
	const char *dir = s->w->set->hicache_shared_dir;

	ret->health = "ok";
	if (!s->disk) {
		ret->health = "off";
		snprintf(ret->why, sizeof(ret->why), "%s", s->why);
	} else if (s->err) {
		ret->health = "unreadable";
		snprintf(ret->why, sizeof(ret->why), "%s: %s", dir,
			 strerror(-s->err));
	} else if (bad) {
		ret->health = "unreadable";
		snprintf(ret->why, sizeof(ret->why), "%.200s: %s", bad->path,
			 kvs_err_name(bad->err));
	} else if (sick) {
		ret->health = "unreadable";
		snprintf(ret->why, sizeof(ret->why), "%s", sick);
	} else if (!ret->nodes) {
		ret->health = "empty";
		snprintf(ret->why, sizeof(ret->why),
			 "%s: no other node's directory is there", dir);
	}
	ret->on = s->disk && !s->err;
	ret->degraded = !ret->on || bad || sick;
}

void kvs_cache_shared_stats(const struct kvs_worker *w,
			    struct kvs_cache_shared_stats *ret)
{
	const struct kvs_cache_shared *s = &w->cache.shared;
	const struct kvs_shared_node *bad = NULL;
	const char *why, *sick = NULL;
	struct kvs_disk_store_stats st;
	struct kvs_index_account a;

	*ret = s->stats;
	ret->health = "none";
	if (!ret->wanted)
		return;
	for (uint32_t i = 0; i < s->n_nodes; i++) {
		if (s->nodes[i].store) {
			kvs_disk_store_stats(s->nodes[i].store, &st);
			ret->bytes += st.page_bytes;
			ret->nodes++;
			if (kvs_disk_store_health(s->nodes[i].store, &why) >
			    KVS_STORE_BUFFERED)
				sick = why;
		} else if (s->nodes[i].err && s->nodes[i].err != -ENOENT) {
			bad = &s->nodes[i];
		}
	}
	ret->engine = s->disk ? kvs_disk_name(s->disk) : NULL;
	shared_health(s, bad, sick, ret);
	if (!w->cache.ix)
		return;
	kvs_index_account(w->cache.ix, &a);
	ret->blocks = a.tier[KVS_TIER_SHARED].pages;
}
