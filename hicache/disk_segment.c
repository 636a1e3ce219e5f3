/* SPDX-License-Identifier: Apache-2.0 */
/* The store's segments: their files, their references, and the room. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hicache/disk_store_internal.h"
#include "lib/assert.h"
#include "lib/units.h"

const char *kvs_store_path(const struct kvs_disk_store *s, const char *name,
			   char *buf)
{
	snprintf(buf, KVS_STORE_PATH_MAX, "%s/%s", s->dir, name);
	return buf;
}

/* ---- files ---- */

static void close_file(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;
	int fd = seg->file.fd;

	if (fd < 0)
		return;
	kvs_list_del(&seg->idle);
	kvs_disk_file_fini(s->disk, &seg->file);
	s->fs->ops->close(s->fs, fd);
	s->nfiles--;
}

static void have_file(struct kvs_seg *seg, int fd)
{
	struct kvs_disk_store *s = seg->store;

	kvs_disk_file_init(s->disk, &seg->file, fd,
			   s->direct ? s->direct_off : 1);
	s->nfiles++;
}

/* Close the one that was not used for longest. Return: there was one. */
static bool close_idle(struct kvs_disk_store *s)
{
	if (kvs_list_empty(&s->idle))
		return false;
	close_file(kvs_list_first(&s->idle, struct kvs_seg, idle));
	return true;
}

/* Descriptors run out: others are closed. Direct is refused: without. */
static int open_path(struct kvs_disk_store *s, const char *path, int flags)
{
	int fd;

	while (s->nfiles >= s->o.files && close_idle(s))
		continue;
	for (;;) {
		fd = s->fs->ops->open(s->fs, path,
				      flags | (s->direct ? O_DIRECT : 0), 0600);
		if (fd == -EINVAL && s->direct)
			kvs_store_go_buffered(s, "open", fd);
		else if ((fd != -EMFILE && fd != -ENFILE) || !close_idle(s))
			return fd;
	}
}

/* What this file system wants of direct transfers; once is enough. */
static void alignment(struct kvs_disk_store *s, int fd)
{
	struct kvs_fs_stat st;

	if (!s->direct || s->aligned || s->fs->ops->stat(s->fs, fd, &st))
		return;
	s->aligned = true;
	if (st.direct_mem > KVS_SEG_BLOCK || st.direct_off > KVS_SEG_BLOCK) {
		kvs_store_go_buffered(s, "statx: alignment", -EINVAL);
		return;
	}
	if (st.direct_mem)
		s->direct_mem = st.direct_mem;
	if (st.direct_off)
		s->direct_off = st.direct_off;
}

int kvs_seg_open_file(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;
	char name[KVS_SEG_NAME_LEN], path[KVS_STORE_PATH_MAX];
	bool direct;
	int fd;

	/* One that was opened direct, before that turned out not to work. */
	if (seg->file.fd >= 0 && seg->file.align > 1 && !s->direct &&
	    !seg->file.busy && !seg->table)
		close_file(seg);
	if (seg->file.fd >= 0) {
		kvs_list_del(&seg->idle);
		return 0;
	}
	kvs_store_path(s, kvs_seg_name(seg->info.id, name), path);
	for (;;) {
		direct = s->direct;
		fd = open_path(s, path, s->o.read_only ? O_RDONLY : O_RDWR);
		if (fd < 0)
			return fd;
		alignment(s, fd);
		if (!direct || s->direct)
			break;
		s->fs->ops->close(s->fs, fd);
	}
	have_file(seg, fd);
	return 0;
}

/* ---- life ---- */

struct kvs_seg *kvs_seg_new(struct kvs_disk_store *s,
			    const struct kvs_seg_info *info)
{
	struct kvs_seg *seg = calloc(1, sizeof(*seg)), *before;
	struct kvs_list *at;

	if (!seg)
		return NULL;
	seg->slot = calloc(info->slots, sizeof(*seg->slot));
	if (!seg->slot || kvs_u64map_add(&s->by_id, info->id, seg)) {
		free(seg->slot);
		free(seg);
		return NULL;
	}
	seg->info = *info;
	seg->store = s;
	seg->file.fd = -1;
	seg->file.index = -1;
	kvs_list_init(&seg->open);
	kvs_list_init(&seg->idle);
	kvs_list_init(&seg->pend);
	kvs_list_init(&seg->batch);
	for (at = s->segs.prev; at != &s->segs; at = at->prev) {
		before = kvs_list_entry(at, struct kvs_seg, node);
		if (before->info.id < info->id)
			break;
	}
	kvs_list_add(at, &seg->node);
	s->stats.segments++;
	s->stats.used += info->file_bytes;
	s->stats.memory +=
		sizeof(*seg) + (uint64_t)info->slots * sizeof(*seg->slot);
	return seg;
}

static void stop_writing(struct kvs_seg *seg)
{
	if (!seg->table)
		return;
	free(seg->table);
	free(seg->commit_iov.iov_base);
	seg->table = NULL;
	seg->commit_iov.iov_base = NULL;
	seg->store->stats.memory -=
		kvs_seg_table_bytes(&seg->info) + KVS_SEG_BLOCK;
}

/* Neither its name nor a number counts any more. */
static void unlist(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;

	kvs_u64map_del(&s->by_id, seg->info.id);
	kvs_list_del(&seg->node);
	s->stats.segments--;
	s->stats.used -= seg->info.file_bytes;
	s->stats.pages -= seg->live;
	s->stats.page_bytes -= (uint64_t)seg->live * seg->info.page_bytes;
	seg->live = 0;
	seg->leaving = true;
}

void kvs_seg_free(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;

	if (!seg->leaving)
		unlist(seg);
	close_file(seg);
	stop_writing(seg);
	s->stats.memory -=
		sizeof(*seg) + (uint64_t)seg->info.slots * sizeof(*seg->slot);
	free(seg->slot);
	free(seg);
}

void kvs_seg_get(struct kvs_seg *seg)
{
	seg->refs++;
	kvs_list_del(&seg->idle);
}

void kvs_seg_unref(struct kvs_seg *seg)
{
	KVS_ASSERT(seg->refs);
	if (--seg->refs)
		return;
	if (seg->leaving)
		kvs_seg_free(seg);
	else if (seg->file.fd >= 0)
		kvs_list_add_tail(&seg->store->idle, &seg->idle);
}

struct kvs_seg *kvs_seg_find(const struct kvs_disk_store *s, kvs_disk_loc loc,
			     uint32_t *ret_slot)
{
	uint32_t slot = (uint32_t)(loc & ((1u << KVS_STORE_LOC_BITS) - 1));
	uint64_t id = loc >> KVS_STORE_LOC_BITS;
	struct kvs_seg *seg = id ? kvs_u64map_get(&s->by_id, id) : NULL;

	if (!seg || slot >= seg->info.slots ||
	    seg->slot[slot].state != KVS_SLOT_LIVE)
		return NULL;
	*ret_slot = slot;
	return seg;
}

void kvs_seg_page_dead(struct kvs_seg *seg, uint32_t slot)
{
	struct kvs_disk_store *s = seg->store;

	if (seg->slot[slot].state == KVS_SLOT_LIVE && !seg->leaving) {
		seg->live--;
		s->stats.pages--;
		s->stats.page_bytes -= seg->info.page_bytes;
	}
	seg->slot[slot].state = KVS_SLOT_DEAD;
}

void kvs_seg_page_gone(struct kvs_seg *seg, uint32_t slot,
		       enum kvs_gone_reason reason)
{
	struct kvs_disk_store *s = seg->store;
	bool was = seg->slot[slot].state == KVS_SLOT_LIVE && !seg->leaving;

	kvs_seg_page_dead(seg, slot);
	if (was && s->o.gone)
		s->o.gone(s->o.arg, &seg->slot[slot].key, kvs_loc(seg, slot),
			  reason);
}

/* ---- writing ---- */

int kvs_seg_begin_writing(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;
	uint64_t bytes = kvs_seg_table_bytes(&seg->info);

	seg->table = aligned_alloc(KVS_SEG_BLOCK, bytes);
	seg->commit_iov.iov_base = aligned_alloc(KVS_SEG_BLOCK, KVS_SEG_BLOCK);
	if (!seg->table || !seg->commit_iov.iov_base) {
		free(seg->table);
		free(seg->commit_iov.iov_base);
		seg->table = NULL;
		seg->commit_iov.iov_base = NULL;
		return -ENOMEM;
	}
	memset(seg->table, 0, bytes);
	seg->commit_iov.iov_len = KVS_SEG_BLOCK;
	s->stats.memory += bytes + KVS_SEG_BLOCK;
	kvs_list_add_tail(&s->open, &seg->open);
	s->nopen++;
	kvs_seg_get(seg);
	return 0;
}

void kvs_seg_settle(struct kvs_seg *seg)
{
	if (!seg->table || !kvs_list_empty(&seg->open) || seg->writing ||
	    seg->npend || !kvs_list_empty(&seg->batch))
		return;
	stop_writing(seg);
	/* Nothing in it is of use to anybody. */
	if (!seg->live && !seg->leaving)
		(void)kvs_seg_remove(seg, KVS_GONE_RECLAIMED);
}

void kvs_seg_retire(struct kvs_seg *seg)
{
	if (kvs_list_empty(&seg->open))
		return;
	kvs_list_del(&seg->open);
	seg->store->nopen--;
	kvs_seg_settle(seg);
	kvs_seg_unref(seg);
}

/* Give the file its size and its head. Return: 0 or -errno. */
static int fill_new(struct kvs_disk_store *s, int fd,
		    const struct kvs_seg_info *info, void *block)
{
	unsigned int tries = 0;
	bool again;
	int rc;

	do {
		rc = s->fs->ops->allocate(s->fs, fd, info->file_bytes);
		if (!rc)
			rc = kvs_fs_write(s->fs, fd, block, KVS_SEG_BLOCK, 0);
		again = (rc == -ENOSPC || rc == -EDQUOT) && tries++ < 1 &&
			!kvs_store_reclaim_one(s);
	} while (again);
	if (!rc && s->o.durability == KVS_DURABILITY_FDATASYNC)
		rc = s->fs->ops->fdatasync(s->fs, fd);
	/* What of ours is still under way keeps the lock, whatever becomes of
	 * us: who gets it later may go on with the file. */
	if (!rc)
		(void)s->fs->ops->lock(s->fs, fd);
	return rc;
}

/* Once with direct transfers, if these are refused once more without. */
static int make_file(struct kvs_disk_store *s, const struct kvs_seg_info *info,
		     int *ret_fd)
{
	char name[KVS_SEG_NAME_LEN], from[KVS_STORE_PATH_MAX],
		to[KVS_STORE_PATH_MAX];
	void *block = aligned_alloc(KVS_SEG_BLOCK, KVS_SEG_BLOCK);
	bool direct;
	int fd, rc;

	if (!block)
		return -ENOMEM;
	kvs_store_path(s, kvs_seg_name(info->id, name), to);
	snprintf(from, sizeof(from), "%s/new-%s", s->dir, name + 4);
	kvs_seg_head_write(info, block);
	do {
		direct = s->direct;
		fd = open_path(s, from, O_RDWR | O_CREAT | O_EXCL);
		if (fd < 0) {
			rc = fd;
			break;
		}
		alignment(s, fd);
		rc = s->direct == direct ? fill_new(s, fd, info, block)
					 : -EINVAL;
		if (rc == -EINVAL && s->direct)
			kvs_store_go_buffered(s, "write", rc);
		if (!rc)
			rc = s->fs->ops->rename(s->fs, from, to);
		if (rc) {
			s->fs->ops->close(s->fs, fd);
			s->fs->ops->unlink(s->fs, from);
		}
	} while (rc == -EINVAL && direct && !s->direct);
	free(block);
	if (rc)
		return rc;
	if (s->o.durability == KVS_DURABILITY_FDATASYNC)
		rc = s->fs->ops->sync_dir(s->fs, s->dir);
	if (rc) {
		s->fs->ops->close(s->fs, fd);
		s->fs->ops->unlink(s->fs, to);
		return rc;
	}
	*ret_fd = fd;
	return 0;
}

static bool remove_aside(struct kvs_disk_store *s)
{
	char path[KVS_STORE_PATH_MAX];
	struct kvs_aside *a;

	if (kvs_list_empty(&s->aside))
		return false;
	a = kvs_list_first(&s->aside, struct kvs_aside, node);
	kvs_list_del(&a->node);
	if (!s->fs->ops->unlink(s->fs, kvs_store_path(s, a->name, path)))
		s->stats.aside_removed++;
	s->stats.aside -= a->bytes;
	s->stats.used -= a->bytes;
	kvs_store_tell(s, "%s: removed to make room", a->name);
	free(a);
	return true;
}

static int make_room(struct kvs_disk_store *s, uint64_t bytes)
{
	int rc;

	while (s->o.limit && s->stats.used + bytes > s->o.limit) {
		if (remove_aside(s))
			continue;
		rc = kvs_store_reclaim_one(s);
		if (rc)
			return rc == -ENOENT ? -ENOSPC : rc;
	}
	return 0;
}

/* The next number whose name nobody has: what cannot be set aside has its
 * name still, and renaming would replace it. */
static int next_number(struct kvs_disk_store *s, uint64_t *ret_id)
{
	char name[KVS_SEG_NAME_LEN], path[KVS_STORE_PATH_MAX];
	int fd;

	for (; s->next_id < KVS_SEG_ID_MAX; s->next_id++) {
		kvs_store_path(s, kvs_seg_name(s->next_id, name), path);
		do {
			fd = s->fs->ops->open(s->fs, path,
					      O_RDONLY | O_NONBLOCK, 0);
		} while ((fd == -EMFILE || fd == -ENFILE) && close_idle(s));
		if (fd == -ENOENT) {
			*ret_id = s->next_id++;
			return 0;
		}
		if (fd >= 0)
			s->fs->ops->close(s->fs, fd);
		else if (fd != -EACCES && fd != -EPERM && fd != -ELOOP &&
			 fd != -ENXIO)
			return fd;
	}
	return -ENOSPC;
}

/*
 * All of a segment is reserved when it is made, so it takes no more than a
 * part of what is free, however large it was asked to be. What is small is
 * tried as it is: then the file system says that it is full.
 */
static uint64_t fit(struct kvs_disk_store *s, uint64_t want)
{
	char was[KVS_UNITS_BUF], is[KVS_UNITS_BUF], of[KVS_UNITS_BUF];
	uint64_t free, most;

	if (want <= KVS_STORE_SMALL || s->fs->ops->space(s->fs, s->dir, &free))
		return want;
	most = free / KVS_STORE_SHARE;
	if (most < KVS_STORE_SMALL)
		most = KVS_STORE_SMALL;
	if (want <= most)
		return want;
	if (!s->said_less)
		kvs_store_tell(s,
			       "a segment of %s is more than a quarter of the "
			       "%s that are free: they are smaller, this one "
			       "%s (hicache.segment)",
			       kvs_format_size(want, was),
			       kvs_format_size(free, of),
			       kvs_format_size(most, is));
	s->said_less = true;
	return most;
}

static int make_segment(struct kvs_disk_store *s,
			const struct kvs_fingerprint *layout,
			uint32_t page_bytes, struct kvs_seg **ret_seg)
{
	struct kvs_seg_info info = {
		.instance = s->instance,
		.layout = *layout,
		.created = (uint64_t)time(NULL),
	};
	uint64_t want = s->o.segment_bytes;
	struct kvs_seg *seg;
	int fd, rc;

	if (s->o.limit && want > s->o.limit)
		want = s->o.limit;
	rc = kvs_seg_plan(page_bytes, fit(s, want), &info);
	if (!rc)
		rc = make_room(s, info.file_bytes);
	if (!rc)
		rc = next_number(s, &info.id);
	if (rc)
		return rc;
	rc = make_file(s, &info, &fd);
	if (rc)
		return rc;
	seg = kvs_seg_new(s, &info);
	if (!seg) {
		s->fs->ops->close(s->fs, fd);
		return -ENOMEM;
	}
	have_file(seg, fd);
	rc = kvs_seg_begin_writing(seg);
	if (rc) {
		kvs_seg_remove(seg, KVS_GONE_RECLAIMED);
		return rc;
	}
	*ret_seg = seg;
	return 0;
}

int kvs_seg_for_put(struct kvs_disk_store *s,
		    const struct kvs_fingerprint *layout, uint32_t page_bytes,
		    struct kvs_seg **ret_seg)
{
	struct kvs_seg *seg;

	kvs_list_for_each_entry(seg, &s->open, open) {
		if (seg->info.page_bytes == page_bytes &&
		    !memcmp(&seg->info.layout, layout, sizeof(*layout))) {
			*ret_seg = seg;
			return 0;
		}
	}
	if (s->nopen >= KVS_STORE_OPEN_MAX)
		kvs_seg_retire(kvs_list_first(&s->open, struct kvs_seg, open));
	return make_segment(s, layout, page_bytes, ret_seg);
}

/* ---- room ---- */

int kvs_seg_remove(struct kvs_seg *seg, enum kvs_gone_reason reason)
{
	struct kvs_disk_store *s = seg->store;
	char name[KVS_SEG_NAME_LEN], path[KVS_STORE_PATH_MAX];
	uint32_t i;
	int rc = 0;

	KVS_ASSERT(kvs_list_empty(&seg->open));
	kvs_store_path(s, kvs_seg_name(seg->info.id, name), path);
	if (!s->o.read_only)
		rc = s->fs->ops->unlink(s->fs, path);
	if (rc && rc != -ENOENT)
		return rc;
	seg->removing = true;
	for (i = 0; i < seg->next; i++) {
		if (seg->slot[i].state != KVS_SLOT_LIVE)
			continue;
		s->stats.reclaimed_pages += reason == KVS_GONE_RECLAIMED;
		kvs_seg_page_gone(seg, i, reason);
	}
	s->stats.reclaimed += reason == KVS_GONE_RECLAIMED;
	unlist(seg);
	/* Whoever reads it has the file still. */
	kvs_seg_get(seg);
	kvs_seg_unref(seg);
	return 0;
}

int kvs_store_reclaim_one(struct kvs_disk_store *s)
{
	struct kvs_seg *seg, *oldest = NULL;

	kvs_list_for_each_entry(seg, &s->segs, node) {
		if (seg->table) /* being written */
			continue;
		if (!oldest)
			oldest = seg;
		if (!seg->live)
			return kvs_seg_remove(seg, KVS_GONE_RECLAIMED);
	}
	if (!oldest)
		return -ENOENT;
	return kvs_seg_remove(oldest, KVS_GONE_RECLAIMED);
}

void kvs_store_forget_aside(struct kvs_disk_store *s, const char *name)
{
	struct kvs_aside *a, *tmp;

	kvs_list_for_each_entry_safe(a, tmp, &s->aside, node) {
		if (strcmp(a->name, name) != 0)
			continue;
		kvs_list_del(&a->node);
		s->stats.aside -= a->bytes;
		s->stats.used -= a->bytes;
		free(a);
	}
}

void kvs_store_add_aside(struct kvs_disk_store *s, const char *name,
			 uint64_t bytes)
{
	size_t len = strlen(name) + 1;
	struct kvs_aside *a = malloc(sizeof(*a) + len);

	if (!a)
		return;
	memcpy(a->name, name, len);
	a->bytes = bytes;
	kvs_list_add_tail(&s->aside, &a->node);
	s->stats.aside += bytes;
	s->stats.used += bytes;
}
