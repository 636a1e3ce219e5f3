/* SPDX-License-Identifier: Apache-2.0 */
/* The store's life, its health, and what its parts share. */
#include "hicache/disk_store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hicache/disk_store_internal.h"
#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/rule.h"

#define STAGING_DEFAULT 8u

#define KVS_NAME_(n, s) [KVS_DURABILITY_##n] = (s),
const char *const kvs_durability_name[KVS_DURABILITY_MAX] = { KVS_DURABILITIES(
	KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_GONE_##n] = (s),
const char *const kvs_gone_reason_name[KVS_GONE_REASON_MAX] = {
	KVS_GONE_REASONS(KVS_NAME_)
};
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_STORE_##n] = (s),
const char *const kvs_store_health_name[KVS_STORE_HEALTH_MAX] = {
	KVS_STORE_HEALTHS(KVS_NAME_)
};
#undef KVS_NAME_

/* ---- telling, and health ---- */

void kvs_store_tell(struct kvs_disk_store *s, const char *fmt, ...)
{
	char line[KVS_STORE_WHY_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (s->o.tell)
		s->o.tell(s->o.arg, line);
	else
		kvs_log_notice("cache %s: %s", s->dir, line);
}

static void healthy(struct kvs_disk_store *s)
{
	enum kvs_store_health now = KVS_STORE_OK;

	if (!s->direct && !s->o.buffered)
		now = KVS_STORE_BUFFERED;
	if (s->health == now)
		return;
	s->health = now;
	if (now == KVS_STORE_OK)
		s->why[0] = '\0';
	else
		snprintf(s->why, sizeof(s->why),
			 "direct transfers are refused by this file system");
	kvs_store_tell(s, "%s", now == KVS_STORE_OK ? "works again" : s->why);
}

static void pause_writing(struct kvs_disk_store *s, enum kvs_store_health h,
			  int err)
{
	bool known = s->health == h && s->pause_err;

	s->pause_err = h == KVS_STORE_NO_SPACE ? -ENOSPC : -EIO;
	s->pause_until = kvs_clock_now(s->clock) + s->o.retry;
	s->health = h;
	snprintf(s->why, sizeof(s->why),
		 "%s: nothing is written for %llu s, what is there is served",
		 kvs_err_name(err),
		 (unsigned long long)(s->o.retry / KVS_NSEC_PER_SEC));
	if (!known)
		kvs_store_tell(s, "%s", s->why);
	kvs_store_fail_queue(s, s->pause_err);
}

void kvs_store_write_failed(struct kvs_disk_store *s, int err)
{
	if (err == -ENOSPC || err == -EDQUOT || err == -EFBIG) {
		s->stats.no_space++;
		pause_writing(s, KVS_STORE_NO_SPACE, err);
		return;
	}
	s->stats.write_errors++;
	/* after a pause the first failure is enough */
	if (++s->write_errors >= KVS_STORE_ERRORS_MAX || s->pause_err)
		pause_writing(s, KVS_STORE_WRITE_ERRORS, err);
}

void kvs_store_write_worked(struct kvs_disk_store *s)
{
	/* One that ends in a pause was begun before it. */
	if (s->pause_err && kvs_clock_now(s->clock) < s->pause_until)
		return;
	s->write_errors = 0;
	if (!s->pause_err)
		return;
	s->pause_err = 0;
	healthy(s);
}

void kvs_store_read_failed(struct kvs_disk_store *s, int err)
{
	s->stats.read_errors++;
	if (++s->read_errors < KVS_STORE_ERRORS_MAX || s->pause_err ||
	    s->health == KVS_STORE_READ_ERRORS)
		return;
	s->health = KVS_STORE_READ_ERRORS;
	snprintf(s->why, sizeof(s->why), "%s: the last %u reads failed",
		 kvs_err_name(err), s->read_errors);
	kvs_store_tell(s, "%s", s->why);
}

void kvs_store_read_worked(struct kvs_disk_store *s)
{
	s->read_errors = 0;
	if (s->health == KVS_STORE_READ_ERRORS)
		healthy(s);
}

void kvs_store_go_buffered(struct kvs_disk_store *s, const char *call, int err)
{
	struct kvs_seg *seg, *tmp;

	if (!s->direct)
		return;
	s->direct = false;
	s->stats.direct_refused++;
	kvs_store_tell(s,
		       "%s: %s: direct transfers are refused, although "
		       "opening for them is not: buffered ones from now on",
		       call, kvs_err_name(err));
	if (!s->pause_err)
		healthy(s);
	/* They are open for direct writes. */
	kvs_list_for_each_entry_safe(seg, tmp, &s->open, open)
		kvs_seg_retire(seg);
}

enum kvs_store_health kvs_disk_store_health(const struct kvs_disk_store *s,
					    const char **ret_why)
{
	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	*ret_why = s->why;
	return s->health;
}

void kvs_disk_store_stats(const struct kvs_disk_store *s,
			  struct kvs_disk_store_stats *ret_stats)
{
	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	*ret_stats = s->stats;
}

/* ---- buffers and requests ---- */

int kvs_stage_fit(struct kvs_stage *st, size_t bytes)
{
	void *buf;

	bytes = (bytes + KVS_SEG_BLOCK - 1) / KVS_SEG_BLOCK * KVS_SEG_BLOCK;
	if (st->size >= bytes)
		return 0;
	buf = aligned_alloc(KVS_SEG_BLOCK, bytes);
	if (!buf)
		return -ENOMEM;
	free(st->buf);
	st->buf = buf;
	st->size = bytes;
	return 0;
}

struct kvs_stage *kvs_store_stage(struct kvs_disk_store *s, size_t bytes)
{
	struct kvs_stage *st;

	if (kvs_list_empty(&s->stages))
		return NULL;
	st = kvs_list_first(&s->stages, struct kvs_stage, node);
	if (kvs_stage_fit(st, bytes))
		return NULL;
	kvs_list_del(&st->node);
	s->stats.staged++;
	return st;
}

void kvs_store_unstage(struct kvs_disk_store *s, struct kvs_stage *st)
{
	kvs_list_add(&s->stages, &st->node);
}

bool kvs_store_is_direct(const struct kvs_disk_store *s,
			 const struct kvs_seg *seg,
			 const struct kvs_disk_req *r)
{
	unsigned int i;

	if (seg->file.align == 1)
		return true;
	for (i = 0; i < r->niov; i++) {
		if ((uintptr_t)r->iov[i].iov_base % s->direct_mem ||
		    r->iov[i].iov_len % s->direct_off)
			return false;
	}
	return true;
}

bool kvs_store_sane(const struct kvs_disk_req *r)
{
	uint64_t sum = 0;
	unsigned int i;

	if (!r->len || r->len > KVS_SEG_PAGE_MAX ||
	    r->niov > KVS_STORE_PIECES_MAX)
		return false;
	for (i = 0; i < r->niov; i++) {
		if (r->iov[i].iov_len > KVS_SEG_PAGE_MAX)
			return false;
		sum += r->iov[i].iov_len;
	}
	return sum == r->len;
}

static const struct kvs_party_ops party_ops = {
	.name = "disk",
	.kind = KVS_PARTY_IO,
};

int kvs_store_join(struct kvs_disk_req *r)
{
	kvs_party_init(&r->party, &party_ops, r->id);
	return r->drain && KVS_RULE(R13, DISK)
		       ? kvs_drain_join(r->drain, &r->party)
		       : 0;
}

/* ---- life ---- */

static int set_options(struct kvs_disk_store *s,
		       const struct kvs_disk_store_opts *o)
{
	unsigned int i;

	s->o = *o;
	s->dir = strdup(o->dir);
	if (!s->dir)
		return -ENOMEM;
	s->o.dir = s->dir;
	if (!s->o.segment_bytes)
		s->o.segment_bytes = KVS_STORE_SEGMENT_DEFAULT;
	if (!s->o.write_behind)
		s->o.write_behind = KVS_STORE_WRITE_BEHIND_DEFAULT;
	if (!s->o.files)
		s->o.files = KVS_STORE_FILES_DEFAULT;
	if (!s->o.commit_pages)
		s->o.commit_pages = KVS_STORE_COMMIT_DEFAULT;
	if (!s->o.retry)
		s->o.retry = KVS_STORE_RETRY_DEFAULT;
	if (!s->o.lock_wait)
		s->o.lock_wait = KVS_STORE_LOCK_WAIT_DEFAULT;
	if (!s->o.staging)
		s->o.staging = kvs_disk_depth(o->disk) < STAGING_DEFAULT
				       ? kvs_disk_depth(o->disk)
				       : STAGING_DEFAULT;
	s->stage = calloc(s->o.staging, sizeof(*s->stage));
	if (!s->stage)
		return -ENOMEM;
	s->nstages = s->o.staging;
	for (i = 0; i < s->nstages; i++)
		kvs_list_add_tail(&s->stages, &s->stage[i].node);
	s->scrub.rate = o->scrub;
	return 0;
}

static struct kvs_disk_store *store_new(const struct kvs_disk_store_opts *o)
{
	struct kvs_disk_store *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->magic = KVS_STORE_MAGIC;
	s->disk = o->disk;
	s->fs = kvs_disk_fs(o->disk);
	s->clock = o->clock ? o->clock : &kvs_clock_real;
	s->lock_fd = -1;
	s->direct = !o->buffered;
	s->direct_mem = KVS_SEG_BLOCK;
	s->direct_off = KVS_SEG_BLOCK;
	s->next_id = 1;
	kvs_u64map_init(&s->by_id, 0);
	kvs_list_init(&s->segs);
	kvs_list_init(&s->open);
	kvs_list_init(&s->idle);
	kvs_list_init(&s->aside);
	kvs_list_init(&s->queue);
	kvs_list_init(&s->waiting);
	kvs_list_init(&s->ended);
	kvs_list_init(&s->stages);
	return s;
}

static void store_free(struct kvs_disk_store *s)
{
	struct kvs_seg *seg, *tmp;
	struct kvs_aside *a, *next;
	unsigned int i;

	kvs_list_for_each_entry_safe(seg, tmp, &s->open, open)
		kvs_seg_retire(seg);
	kvs_list_for_each_entry_safe(seg, tmp, &s->segs, node)
		kvs_seg_free(seg);
	kvs_list_for_each_entry_safe(a, next, &s->aside, node)
		free(a);
	for (i = 0; i < s->nstages; i++)
		free(s->stage[i].buf);
	free(s->stage);
	free(s->scrub.stage.buf);
	kvs_u64map_fini(&s->by_id);
	if (s->lock_fd >= 0)
		s->fs->ops->close(s->fs, s->lock_fd);
	free(s->dir);
	s->magic = 0;
	free(s);
}

int kvs_disk_store_open(const struct kvs_disk_store_opts *o,
			struct kvs_disk_store **ret_store, char *err,
			size_t errlen)
{
	struct kvs_disk_store *s;
	int rc;

	*err = '\0';
	if (strlen(o->dir) > KVS_STORE_PATH_MAX - 256 ||
	    o->durability >= KVS_DURABILITY_MAX || o->commit_pages > 1u << 20 ||
	    o->staging > KVS_DISK_DEPTH_MAX) {
		snprintf(err, errlen, "%s: options out of range", o->dir);
		return -EINVAL;
	}
	s = store_new(o);
	rc = s ? set_options(s, o) : -ENOMEM;
	if (!rc)
		rc = kvs_store_recover(s, err, errlen);
	if (rc) {
		if (!*err)
			snprintf(err, errlen, "%s: %s", o->dir, strerror(-rc));
		if (s)
			store_free(s);
		return rc;
	}
	*ret_store = s;
	return 0;
}

int kvs_disk_store_close(struct kvs_disk_store *s)
{
	if (!s)
		return 0;
	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	s->closing = true;
	kvs_store_fail_queue(s, -ECANCELED);
	if (s->busy || s->scrub.seg)
		return -EBUSY;
	store_free(s);
	return 0;
}

unsigned int kvs_disk_store_busy(const struct kvs_disk_store *s)
{
	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	return s->busy;
}

unsigned int kvs_disk_store_turn(struct kvs_disk_store *s)
{
	unsigned int n = 0;

	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	s->done = 0;
	/* what waits goes out, and what has ended is told */
	kvs_store_scrub_turn(s);
	kvs_disk_turn(s->disk);
	kvs_store_pump_gets(s);
	/* summing a page up takes long; the disk goes on meanwhile */
	while (n++ < 4 * kvs_disk_depth(s->disk) && kvs_store_pump(s))
		kvs_disk_turn(s->disk);
	/* what this began goes out now, not with what ends next */
	kvs_disk_turn(s->disk);
	return s->done;
}

uint64_t kvs_disk_store_due(const struct kvs_disk_store *s)
{
	uint64_t due = kvs_disk_due(s->disk), scrub = kvs_store_scrub_due(s);

	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	if (!kvs_list_empty(&s->ended))
		return 0;
	return scrub < due ? scrub : due;
}

int kvs_disk_store_reclaim(struct kvs_disk_store *s)
{
	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	return s->o.read_only ? -EROFS : kvs_store_reclaim_one(s);
}

int kvs_disk_store_drop(struct kvs_disk_store *s, kvs_disk_loc loc)
{
	struct kvs_seg *seg;
	uint32_t slot;

	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	if (s->o.read_only)
		return -EROFS;
	seg = kvs_seg_find(s, loc, &slot);
	if (!seg)
		return -ENOENT;
	kvs_seg_page_dead(seg, slot);
	s->stats.dropped++;
	/* Nobody needs the file: the room is of more use. A file that cannot
	 * be removed is tried again when room is needed. */
	if (!seg->live && !seg->table && !seg->removing)
		(void)kvs_seg_remove(seg, KVS_GONE_RECLAIMED);
	return 0;
}
