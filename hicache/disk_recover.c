/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in the directory: at open, and again for one who only reads.
 *
 *   lock                   held by the process that writes
 *   instance               16 bytes in hex: whose segments these are
 *   seg-NUMBER.kvs         segments
 *   new-NUMBER.kvs         one that was never finished: removed
 *   aside-WHY-seg-...      one that cannot be used
 *
 * Only heads and tables are read, so that it costs the same for pages of any
 * size; pages are checked when they are got. The newest segment of a layout
 * that has room is gone on with, if its lock can be had: nothing of an earlier
 * process is still being written to it then.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hicache/disk_store_internal.h"
#include "lib/assert.h"
#include "lib/err.h"
#include "lib/random.h"
#include "lib/units.h"

#define TABLE_READ (1u << 20) /* bytes of a table at a time */
#define NAMES_MAX (1u << 22) /* files in the directory */
#define LOCK_POLL (10 * KVS_NSEC_PER_MSEC)
#define RATE_FROM (64ULL << 20) /* bytes of pages: less says nothing of more */
#define INSTANCE_TEXT 33u /* hex digits and a newline */

/* ---- whose directory it is ---- */

static int open_plain(struct kvs_disk_store *s, const char *name, int flags)
{
	char path[KVS_STORE_PATH_MAX];

	return s->fs->ops->open(s->fs, kvs_store_path(s, name, path), flags,
				0600);
}

/* Whoever can write it can put pages there that are believed: the checksums
 * are no secret. */
static void check_owner(struct kvs_disk_store *s)
{
	struct kvs_fs_stat st;
	uint32_t me = (uint32_t)geteuid();
	int fd;

	fd = s->fs->ops->open(s->fs, s->dir, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return;
	if (!s->fs->ops->stat(s->fs, fd, &st) &&
	    ((st.owner != me && st.owner) || st.mode & 022))
		kvs_store_tell(s,
			       "the directory is of user %u, mode %04o: others "
			       "than user %u can put pages into it that are "
			       "taken for ours (chown, chmod 0700)",
			       st.owner, st.mode, me);
	s->fs->ops->close(s->fs, fd);
}

static int take_lock(struct kvs_disk_store *s)
{
	const struct timespec ts = { 0, LOCK_POLL };
	uint64_t waited = 0;
	int rc;

	s->lock_fd = open_plain(s, "lock", O_RDWR | O_CREAT);
	if (s->lock_fd < 0)
		return s->lock_fd;
	for (;;) {
		rc = s->fs->ops->lock(s->fs, s->lock_fd);
		if (rc != -EAGAIN || waited >= s->o.lock_wait)
			return rc == -EAGAIN ? -EBUSY : rc;
		/* one that was killed a moment ago may hold it still */
		nanosleep(&ts, NULL);
		waited += LOCK_POLL;
	}
}

static int parse_instance(const char *text, struct kvs_seg_instance *ret)
{
	static const char digits[] = "0123456789abcdef";
	size_t i;

	for (i = 0; i < 2 * sizeof(ret->b); i++) {
		const char *d = text[i] ? strchr(digits, text[i]) : NULL;

		if (!d)
			return -EINVAL;
		ret->b[i / 2] = (uint8_t)(ret->b[i / 2] << 4 | (d - digits));
	}
	return text[i] == '\n' ? 0 : -EINVAL;
}

static int read_instance(struct kvs_disk_store *s)
{
	char text[INSTANCE_TEXT + 1] = "";
	int fd = open_plain(s, "instance", O_RDONLY);
	ssize_t n;

	if (fd < 0)
		return fd;
	n = kvs_fs_read(s->fs, fd, text, INSTANCE_TEXT, 0, false);
	s->fs->ops->close(s->fs, fd);
	if (n < 0)
		return (int)n;
	return parse_instance(text, &s->instance);
}

static int write_instance(struct kvs_disk_store *s)
{
	char from[KVS_STORE_PATH_MAX], to[KVS_STORE_PATH_MAX];
	char text[INSTANCE_TEXT + 1];
	size_t i;
	int fd, rc;

	rc = kvs_random_fill(&s->instance, sizeof(s->instance));
	if (rc)
		return rc;
	for (i = 0; i < sizeof(s->instance.b); i++)
		snprintf(text + 2 * i, 3, "%02x", s->instance.b[i]);
	memcpy(text + 2 * i, "\n", 2);
	fd = open_plain(s, "instance.new", O_RDWR | O_CREAT | O_TRUNC);
	if (fd < 0)
		return fd;
	/* Synced whatever is promised: without it all pages are lost. */
	rc = kvs_fs_write(s->fs, fd, text, INSTANCE_TEXT, 0);
	if (!rc)
		rc = s->fs->ops->fdatasync(s->fs, fd);
	s->fs->ops->close(s->fs, fd);
	if (!rc)
		rc = s->fs->ops->rename(s->fs,
					kvs_store_path(s, "instance.new", from),
					kvs_store_path(s, "instance", to));
	if (!rc)
		rc = s->fs->ops->sync_dir(s->fs, s->dir);
	return rc;
}

/* ---- one segment ---- */

/* Entries from @seg->next on; each that is whole is told. */
static void take_entry(struct kvs_seg *seg, uint32_t i, const uint8_t *entry)
{
	struct kvs_disk_store *s = seg->store;
	struct kvs_slot *slot = &seg->slot[i];
	struct kvs_seg_page page;
	int rc = kvs_seg_entry_read(&seg->info, i, entry, &page);

	if (rc == -ENOENT || slot->state != KVS_SLOT_FREE)
		return;
	if (rc && s->o.read_only) {
		/* it may be half written: looked at again next time */
		s->stats.entries_damaged++;
		return;
	}
	seg->next = i + 1;
	if (rc) {
		s->stats.entries_damaged++;
		slot->state = KVS_SLOT_DEAD;
		return;
	}
	slot->key = page.key;
	slot->crc = page.crc;
	slot->state = KVS_SLOT_LIVE;
	seg->live++;
	s->stats.pages++;
	s->stats.page_bytes += seg->info.page_bytes;
	s->stats.recovered_pages++;
	s->stats.recovered_bytes += seg->info.page_bytes;
	if (s->o.found)
		s->o.found(s->o.arg, &page.key, &seg->info.layout,
			   seg->info.page_bytes, kvs_loc(seg, i));
}

/* The table, or what can be read of it; a copy into @seg->table. */
static int read_table(struct kvs_seg *seg, int fd)
{
	struct kvs_disk_store *s = seg->store;
	uint64_t bytes = kvs_seg_table_bytes(&seg->info), at, i;
	uint8_t *buf = malloc(bytes < TABLE_READ ? bytes : TABLE_READ);
	ssize_t n = 0;

	if (!buf)
		return -ENOMEM;
	for (at = 0; at < bytes; at += (uint64_t)n) {
		uint64_t want = bytes - at < TABLE_READ ? bytes - at
							: TABLE_READ;

		n = kvs_fs_read(s->fs, fd, buf, want, KVS_SEG_BLOCK + at,
				false);
		if (n < (ssize_t)want) {
			n = n < 0 ? n : -ENODATA;
			break;
		}
		if (seg->table)
			memcpy(seg->table + at, buf, want);
		for (i = 0; i < want / KVS_SEG_ENTRY; i++) {
			uint64_t slot = at / KVS_SEG_ENTRY + i;

			if (slot < seg->info.slots)
				take_entry(seg, (uint32_t)slot,
					   buf + i * KVS_SEG_ENTRY);
		}
	}
	free(buf);
	return n < 0 ? (int)n : 0;
}

static enum kvs_seg_verdict read_head(struct kvs_disk_store *s, int fd,
				      uint64_t id, struct kvs_seg_info *info,
				      uint64_t *ret_bytes)
{
	uint8_t block[KVS_SEG_BLOCK];
	enum kvs_seg_verdict v;
	struct kvs_fs_stat st;
	ssize_t n;

	if (s->fs->ops->stat(s->fs, fd, &st) || !st.regular)
		return KVS_SEG_UNREADABLE;
	*ret_bytes = st.bytes;
	n = kvs_fs_read(s->fs, fd, block, sizeof(block), 0, false);
	if (n < 0)
		return KVS_SEG_UNREADABLE;
	v = kvs_seg_head_read(block, (size_t)n, st.bytes, info);
	if (v != KVS_SEG_OK)
		return v;
	if (memcmp(&info->instance, &s->instance, sizeof(s->instance)) != 0)
		return KVS_SEG_FOREIGN;
	return info->id == id ? KVS_SEG_OK : KVS_SEG_NAME;
}

/* Spaces make poor names. */
static void set_aside(struct kvs_disk_store *s, const char *name,
		      enum kvs_seg_verdict v, uint64_t bytes)
{
	char from[KVS_STORE_PATH_MAX], to[KVS_STORE_PATH_MAX];
	char as[128], *p;
	int rc;

	s->stats.set_aside[v]++;
	if (s->o.read_only)
		return;
	snprintf(as, sizeof(as), "aside-%s-%s", kvs_seg_verdict_name[v], name);
	for (p = as; *p; p++)
		*p = *p == ' ' ? '_' : *p;
	rc = s->fs->ops->rename(s->fs, kvs_store_path(s, name, from),
				kvs_store_path(s, as, to));
	kvs_store_tell(s, "%s: %s: not used%s%s", name, kvs_seg_verdict_name[v],
		       rc ? ", and cannot be set aside: " : ", is now ",
		       rc ? kvs_err_name(rc) : as);
	if (rc)
		return;
	kvs_store_forget_aside(s, as);
	kvs_store_add_aside(s, as, bytes);
}

/* Its owner has begun anew, and made another file by that name. */
static bool is_another(const struct kvs_seg_info *a,
		       const struct kvs_seg_info *b)
{
	return a->created != b->created || a->page_bytes != b->page_bytes ||
	       a->stride != b->stride || a->slots != b->slots ||
	       memcmp(&a->layout, &b->layout, sizeof(a->layout)) != 0;
}

static int load_segment(struct kvs_disk_store *s, const char *name, uint64_t id)
{
	struct kvs_seg *seg = kvs_u64map_get(&s->by_id, id);
	enum kvs_seg_verdict v;
	struct kvs_seg_info info;
	uint64_t bytes = 0;
	int fd, rc = 0;

	fd = open_plain(s, name, O_RDONLY | O_NONBLOCK);
	if (fd == -ENOENT)
		return 0;
	v = fd < 0 ? KVS_SEG_UNREADABLE : read_head(s, fd, id, &info, &bytes);
	/* Not by a name alone: one of some other file, with the last number,
	 * would leave none. */
	if (v == KVS_SEG_OK && id >= s->next_id)
		s->next_id = id + 1;
	if (v == KVS_SEG_OK && seg && s->o.read_only &&
	    is_another(&info, &seg->info)) {
		(void)kvs_seg_remove(seg, KVS_GONE_VANISHED);
		seg = NULL;
	}
	if (v == KVS_SEG_OK && !seg) {
		seg = kvs_seg_new(s, &info);
		if (!seg)
			rc = -ENOMEM;
	}
	if (v == KVS_SEG_OK && seg && !rc) {
		seg->seen = true;
		/* what was not read is not known to be there */
		if (read_table(seg, fd))
			kvs_store_read_failed(s, -EIO);
	}
	if (fd >= 0)
		s->fs->ops->close(s->fs, fd);
	if (v != KVS_SEG_OK)
		set_aside(s, name, v, bytes);
	return rc;
}

/* ---- the directory ---- */

struct names {
	struct kvs_disk_store *s;
	uint64_t *id;
	size_t n;
	size_t cap;
	char (*other)[NAME_MAX + 1]; /* unfinished and set aside */
	size_t nother;
	size_t other_cap;
	char odd[NAME_MAX + 1]; /* one that is like a segment's, and is none */
	size_t nodd;
};

static int grow(void *array, size_t *cap, size_t n, size_t size)
{
	void **a = array;
	size_t more = *cap ? 2 * *cap : 64;
	void *p;

	if (n < *cap)
		return 0;
	if (n >= NAMES_MAX)
		return -E2BIG;
	p = realloc(*a, more * size);
	if (!p)
		return -ENOMEM;
	*a = p;
	*cap = more;
	return 0;
}

static bool is_odd(const char *name)
{
	size_t len = strlen(name);

	return len >= 8 && len <= NAME_MAX && !strncmp(name, "seg-", 4) &&
	       !strcmp(name + len - 4, ".kvs");
}

static int collect(void *arg, const char *name)
{
	struct names *v = arg;
	uint64_t id;
	int rc;

	if (!kvs_seg_name_parse(name, &id)) {
		rc = grow(&v->id, &v->cap, v->n, sizeof(*v->id));
		if (!rc)
			v->id[v->n++] = id;
		return rc;
	}
	if (is_odd(name) && !v->nodd++)
		memcpy(v->odd, name, strlen(name) + 1);
	if (v->s->o.read_only ||
	    (strncmp(name, "aside-", 6) && strncmp(name, "new-", 4)) ||
	    strlen(name) > NAME_MAX)
		return 0;
	rc = grow(&v->other, &v->other_cap, v->nother, sizeof(*v->other));
	if (!rc)
		memcpy(v->other[v->nother++], name, strlen(name) + 1);
	return rc;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* What a crash left, or an earlier start set aside. */
static void other_file(struct kvs_disk_store *s, const char *name)
{
	char path[KVS_STORE_PATH_MAX];
	struct kvs_fs_stat st;
	int fd;

	if (!strncmp(name, "new-", 4)) {
		(void)s->fs->ops->unlink(s->fs, kvs_store_path(s, name, path));
		return;
	}
	fd = open_plain(s, name, O_RDONLY | O_NONBLOCK);
	if (fd < 0)
		return;
	if (!s->fs->ops->stat(s->fs, fd, &st) && st.regular)
		kvs_store_add_aside(s, name, st.bytes);
	s->fs->ops->close(s->fs, fd);
}

static int scan(struct kvs_disk_store *s)
{
	struct names v = { .s = s };
	char name[KVS_SEG_NAME_LEN];
	size_t i;
	int rc;

	rc = s->fs->ops->list(s->fs, s->dir, collect, &v);
	for (i = 0; !rc && i < v.nother; i++)
		other_file(s, v.other[i]);
	if (v.n)
		qsort(v.id, v.n, sizeof(*v.id), by_number);
	for (i = 0; !rc && i < v.n; i++)
		rc = load_segment(s, kvs_seg_name(v.id[i], name), v.id[i]);
	if (v.nodd && !s->o.read_only)
		kvs_store_tell(s,
			       "%s%s (%zu in all): no name that a segment has: "
			       "left alone",
			       v.odd, v.nodd > 1 ? " and others" : "", v.nodd);
	if (s->next_id >= KVS_SEG_ID_MAX && !s->o.read_only)
		kvs_store_tell(
			s,
			"%s has the last number there is: no segment can "
			"be made until it is removed",
			kvs_seg_name(s->next_id - 1, name));
	free(v.id);
	free(v.other);
	return rc;
}

/* ---- going on with what has room ---- */

static bool is_written(struct kvs_disk_store *s, const struct kvs_seg *seg)
{
	const struct kvs_seg *o;

	kvs_list_for_each_entry(o, &s->open, open) {
		if (o->info.page_bytes == seg->info.page_bytes &&
		    !memcmp(&o->info.layout, &seg->info.layout,
			    sizeof(seg->info.layout)))
			return true;
	}
	return false;
}

static void adopt(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;
	char name[KVS_SEG_NAME_LEN];
	int fd, rc;

	kvs_seg_get(seg);
	rc = kvs_seg_open_file(seg);
	if (!rc)
		rc = s->fs->ops->lock(s->fs, seg->file.fd);
	if (!rc)
		rc = kvs_seg_begin_writing(seg);
	if (!rc) {
		/* again: now nobody writes it but us */
		fd = open_plain(s, kvs_seg_name(seg->info.id, name), O_RDONLY);
		rc = fd < 0 ? fd : read_table(seg, fd);
		if (fd >= 0)
			s->fs->ops->close(s->fs, fd);
		if (rc || seg->next == seg->info.slots)
			kvs_seg_retire(seg);
	}
	kvs_seg_unref(seg);
}

static void adopt_all(struct kvs_disk_store *s)
{
	struct kvs_list *at, *before;
	struct kvs_seg *seg;

	for (at = s->segs.prev; at != &s->segs; at = before) {
		before = at->prev;
		seg = kvs_list_entry(at, struct kvs_seg, node);
		if (s->nopen == KVS_STORE_OPEN_MAX)
			return;
		if (seg->next < seg->info.slots && !is_written(s, seg))
			adopt(seg);
	}
}

/* Files that were left without a page of use. */
static void remove_empty(struct kvs_disk_store *s)
{
	struct kvs_seg *seg, *tmp;

	kvs_list_for_each_entry_safe(seg, tmp, &s->segs, node) {
		if (!seg->live && !seg->table)
			(void)kvs_seg_remove(seg, KVS_GONE_RECLAIMED);
	}
}

/* Every segment there is now another directory's. */
static void new_identity(struct kvs_disk_store *s, int why)
{
	unsigned long long n = s->stats.set_aside[KVS_SEG_FOREIGN];

	if (why == -ENOENT && !n) /* a new directory */
		return;
	kvs_store_tell(s,
		       "instance: %s (%s): a new identity was written, and "
		       "segments made under the old one are foreign: %llu set "
		       "aside",
		       why == -ENOENT	? "missing"
		       : why == -EINVAL ? "damaged"
					: "unreadable",
		       kvs_err_name(why), n);
}

static int recover_owner(struct kvs_disk_store *s, char *err, size_t errlen)
{
	int rc = s->fs->ops->mkdir(s->fs, s->dir), had;

	if (rc == -EEXIST)
		rc = 0;
	if (!rc)
		check_owner(s);
	if (!rc)
		rc = take_lock(s);
	if (rc == -EBUSY)
		snprintf(err, errlen, "%s: another process writes it", s->dir);
	if (rc)
		return rc;
	had = read_instance(s);
	if (had)
		rc = write_instance(s);
	if (!rc)
		rc = scan(s);
	if (rc)
		return rc;
	if (had)
		new_identity(s, had);
	adopt_all(s);
	remove_empty(s);
	return 0;
}

static void tell_recovered(struct kvs_disk_store *s)
{
	uint64_t bytes = s->stats.recovered_bytes, ns = s->stats.recovery_ns;
	char size[KVS_UNITS_BUF], took[KVS_UNITS_BUF], per[KVS_UNITS_BUF];
	double gib = (double)bytes / (double)(1ULL << 30);
	bool rate = bytes >= RATE_FROM;

	kvs_store_tell(s, "%llu pages, %s, in %llu segments: read in %s%s%s%s",
		       (unsigned long long)s->stats.recovered_pages,
		       kvs_format_size(bytes, size),
		       (unsigned long long)s->stats.segments,
		       kvs_format_duration(ns, took), rate ? ", " : "",
		       rate ? kvs_format_duration((uint64_t)((double)ns / gib),
						  per)
			    : "",
		       rate ? " a GiB" : "");
}

int kvs_store_recover(struct kvs_disk_store *s, char *err, size_t errlen)
{
	uint64_t start = kvs_clock_now(&kvs_clock_real);
	int rc;

	if (s->o.read_only) {
		rc = read_instance(s);
		if (!rc)
			rc = scan(s);
	} else {
		rc = recover_owner(s, err, errlen);
	}
	if (rc)
		return rc;
	s->stats.recovery_ns = kvs_clock_now(&kvs_clock_real) - start;
	if (s->stats.recovered_pages)
		tell_recovered(s);
	return 0;
}

int kvs_disk_store_refresh(struct kvs_disk_store *s)
{
	const struct kvs_seg_instance was = s->instance;
	struct kvs_seg *seg, *tmp;
	int rc;

	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	if (!s->o.read_only)
		return -EINVAL;
	kvs_list_for_each_entry(seg, &s->segs, node)
		seg->seen = false;
	rc = read_instance(s);
	if (!rc && memcmp(&was, &s->instance, sizeof(was)) != 0)
		rc = -ESTALE;
	s->instance = was;
	if (!rc)
		rc = scan(s);
	/* what cannot be looked at is not there */
	kvs_list_for_each_entry_safe(seg, tmp, &s->segs, node) {
		if (!seg->seen)
			(void)kvs_seg_remove(seg, KVS_GONE_VANISHED);
	}
	return rc;
}
