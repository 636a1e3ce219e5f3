/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/hicache/fake_fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"

static struct fake_fs *fake_of(struct kvs_fs *fs)
{
	return kvs_container_of(fs, struct fake_fs, fs);
}

static const char *last_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int fault(struct fake_fs *f, enum fake_call call)
{
	struct fake_fault *v = &f->fault[call];

	f->calls[call]++;
	if (!v->at || --v->at)
		return 0;
	if (v->more) {
		v->more--;
		v->at = 1;
	}
	return v->err;
}

void fake_fail(struct fake_fs *f, enum fake_call call, uint64_t at,
	       uint64_t more, int err)
{
	f->fault[call] = (struct fake_fault){ at, more, err };
}

/* ---- names ---- */

static struct fake_name *find_name(struct fake_name *v, const char *name)
{
	int i;

	for (i = 0; i < FAKE_FILES; i++) {
		if (*v[i].name && !strcmp(v[i].name, name))
			return &v[i];
	}
	return NULL;
}

static void apply(struct fake_name *v, const struct fake_change *c)
{
	struct fake_name *n;
	int i;

	n = *c->to ? find_name(v, c->to) : NULL;
	if (n)
		*n->name = '\0';
	n = *c->from ? find_name(v, c->from) : NULL;
	if (n)
		*n->name = '\0';
	if (!*c->to)
		return;
	for (i = 0; i < FAKE_FILES && *v[i].name; i++)
		continue;
	KVS_ASSERT(i < FAKE_FILES);
	memcpy(v[i].name, c->to, sizeof(v[i].name));
	v[i].file = c->file;
}

static void change(struct fake_fs *f, const char *from, const char *to,
		   int file)
{
	struct fake_change *c;
	unsigned int i;

	if (f->nlog == FAKE_LOG) {
		/* so long ago that it is on disk */
		for (i = 0; i < FAKE_LOG / 2; i++)
			apply(f->stable, &f->log[i]);
		memmove(f->log, f->log + i, (FAKE_LOG - i) * sizeof(*f->log));
		f->nlog -= i;
	}
	c = &f->log[f->nlog++];
	memset(c, 0, sizeof(*c));
	snprintf(c->from, sizeof(c->from), "%s", from);
	snprintf(c->to, sizeof(c->to), "%s", to);
	c->file = file;
	apply(f->now, c);
}

static bool has_name(const struct fake_fs *f, int file)
{
	int i;

	for (i = 0; i < FAKE_FILES; i++) {
		if ((*f->now[i].name && f->now[i].file == file) ||
		    (*f->stable[i].name && f->stable[i].file == file))
			return true;
	}
	for (i = 0; i < (int)f->nlog; i++) {
		if (f->log[i].file == file)
			return true;
	}
	return false;
}

static bool is_there(const struct fake_fs *f, int file)
{
	int i;

	for (i = 0; i < FAKE_FILES; i++) {
		if (*f->now[i].name && f->now[i].file == file)
			return true;
	}
	return false;
}

/* ---- files ---- */

static void reserve(struct fake_file *v, uint64_t size)
{
	uint64_t cap = (size + 65535) / 65536 * 65536;

	if (cap <= v->cap)
		return;
	v->now = realloc(v->now, cap);
	v->stable = realloc(v->stable, cap);
	v->dirty = realloc(v->dirty, cap / FAKE_SECTOR);
	KVS_ASSERT(v->now && v->stable && v->dirty);
	memset(v->now + v->cap, 0, cap - v->cap);
	memset(v->stable + v->cap, 0, cap - v->cap);
	memset(v->dirty + v->cap / FAKE_SECTOR, 0,
	       (cap - v->cap) / FAKE_SECTOR);
	v->cap = cap;
}

static void drop_file(struct fake_fs *f, struct fake_file *v)
{
	f->used -= v->charged;
	free(v->now);
	free(v->stable);
	free(v->dirty);
	memset(v, 0, sizeof(*v));
}

/* Space is free when the name is gone and nobody has it open. */
static void sweep(struct fake_fs *f)
{
	int i;

	for (i = 0; i < FAKE_FILES; i++) {
		struct fake_file *v = &f->file[i];

		if (!v->used || v->fds)
			continue;
		if (!has_name(f, i)) {
			drop_file(f, v);
		} else if (!is_there(f, i)) {
			f->used -= v->charged;
			v->charged = 0;
		}
	}
}

static int new_file(struct fake_fs *f)
{
	int i;

	sweep(f);
	for (i = 0; i < FAKE_FILES && f->file[i].used; i++)
		continue;
	KVS_ASSERT(i < FAKE_FILES);
	f->file[i].used = true;
	f->file[i].lock = -1;
	return i;
}

static int charge(struct fake_fs *f, struct fake_file *v, uint64_t bytes)
{
	if (bytes <= v->charged)
		return 0;
	if (f->capacity && f->used + bytes - v->charged > f->capacity)
		return -ENOSPC;
	f->used += bytes - v->charged;
	v->charged = bytes;
	return 0;
}

struct fake_file *fake_find(struct fake_fs *f, const char *name)
{
	struct fake_name *n = find_name(f->now, name);

	return n ? &f->file[n->file] : NULL;
}

void fake_resize(struct fake_fs *f, struct fake_file *file, uint64_t size)
{
	(void)f;
	reserve(file, size);
	if (size < file->size)
		memset(file->now + size, 0, file->size - size);
	file->size = size;
	file->stable_size = size;
}

void fake_make(struct fake_fs *f, const char *name, const void *bytes,
	       size_t len)
{
	int i = new_file(f);

	reserve(&f->file[i], len + 1);
	if (len)
		memcpy(f->file[i].now, bytes, len);
	f->file[i].size = len;
	f->file[i].stable_size = len;
	if (len)
		memcpy(f->file[i].stable, bytes, len);
	change(f, "", name, i);
}

unsigned int fake_count(const struct fake_fs *f, const char *prefix)
{
	unsigned int n = 0;
	int i;

	for (i = 0; i < FAKE_FILES; i++)
		n += *f->now[i].name &&
		     !strncmp(f->now[i].name, prefix, strlen(prefix));
	return n;
}

/* ---- the calls ---- */

static int fake_open(struct kvs_fs *fs, const char *path, int flags,
		     unsigned int mode)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_name *n = find_name(f->now, last_name(path));
	int rc = fault(f, FAKE_OPEN), i, file;

	(void)mode;
	if (rc)
		return rc;
	if (flags & O_DIRECT && f->no_direct)
		return -EINVAL;
	if (!n && !(flags & O_CREAT))
		return -ENOENT;
	if (n && flags & O_EXCL)
		return -EEXIST;
	for (i = 3; i < FAKE_FDS && f->fd[i].used; i++)
		continue;
	if (i == FAKE_FDS)
		return -EMFILE;
	if (n) {
		file = n->file;
	} else {
		file = new_file(f);
		change(f, "", last_name(path), file);
	}
	f->fd[i] = (struct fake_fd){ true, flags & O_DIRECT, file };
	f->file[file].fds++;
	return i;
}

static int fake_close(struct kvs_fs *fs, int fd)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_file *v = &f->file[f->fd[fd].file];

	KVS_ASSERT(f->fd[fd].used);
	f->fd[fd].used = false;
	if (v->lock == fd)
		v->lock = -1;
	v->fds--;
	sweep(f);
	return 0;
}

/* Return: bytes that may be moved, or -errno. */
static ssize_t may_move(struct fake_fs *f, const struct fake_fd *d,
			const struct iovec *iov, int n, uint64_t off)
{
	uint64_t sum = 0, align = f->align ? f->align : FAKE_SECTOR;
	int i;

	for (i = 0; i < n; i++) {
		if (d->direct && ((uintptr_t)iov[i].iov_base % FAKE_SECTOR ||
				  iov[i].iov_len % align))
			return -EINVAL;
		sum += iov[i].iov_len;
	}
	if (d->direct && off % align)
		return -EINVAL;
	if (f->short_every && !(++f->transfers % f->short_every) && sum > align)
		sum = sum / 2 / align * align;
	return (ssize_t)sum;
}

static ssize_t fake_preadv(struct kvs_fs *fs, int fd, const struct iovec *iov,
			   int n, uint64_t off)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_fd *d = &f->fd[fd];
	struct fake_file *v = &f->file[d->file];
	ssize_t left = fault(f, FAKE_READ), total = 0;
	int i;

	KVS_ASSERT(d->used);
	if (!left)
		left = may_move(f, d, iov, n, off);
	if (left < 0)
		return left;
	if (off >= v->size)
		return 0;
	if ((uint64_t)left > v->size - off)
		left = (ssize_t)(v->size - off);
	for (i = 0; i < n && total < left; i++) {
		size_t len = iov[i].iov_len < (size_t)(left - total)
				     ? iov[i].iov_len
				     : (size_t)(left - total);

		memcpy(iov[i].iov_base, v->now + off + total, len);
		total += (ssize_t)len;
	}
	return total;
}

static ssize_t fake_pwritev(struct kvs_fs *fs, int fd, const struct iovec *iov,
			    int n, uint64_t off)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_fd *d = &f->fd[fd];
	struct fake_file *v = &f->file[d->file];
	ssize_t left = fault(f, FAKE_WRITE), total = 0;
	uint64_t at;
	int i;

	KVS_ASSERT(d->used);
	if (!left && d->direct && f->no_direct_write)
		left = -EINVAL;
	if (!left)
		left = may_move(f, d, iov, n, off);
	if (left < 0)
		return left;
	while (left > 0 && charge(f, v, off + (uint64_t)left))
		left = left > (ssize_t)FAKE_SECTOR ? left / 2 : 0;
	if (!left)
		return -ENOSPC;
	reserve(v, off + (uint64_t)left);
	for (i = 0; i < n && total < left; i++) {
		size_t len = iov[i].iov_len < (size_t)(left - total)
				     ? iov[i].iov_len
				     : (size_t)(left - total);

		memcpy(v->now + off + total, iov[i].iov_base, len);
		total += (ssize_t)len;
	}
	for (at = off / FAKE_SECTOR;
	     at <= (off + (uint64_t)total - 1) / FAKE_SECTOR; at++)
		v->dirty[at] = 1;
	if (off + (uint64_t)total > v->size)
		v->size = off + (uint64_t)total;
	return total;
}

static int fake_fdatasync(struct kvs_fs *fs, int fd)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_file *v = &f->file[f->fd[fd].file];
	int rc = fault(f, FAKE_SYNC);

	KVS_ASSERT(f->fd[fd].used);
	if (rc)
		return rc;
	if (v->cap) {
		memcpy(v->stable, v->now, v->cap);
		memset(v->dirty, 0, v->cap / FAKE_SECTOR);
	}
	v->stable_size = v->size;
	return 0;
}

static int fake_rename(struct kvs_fs *fs, const char *from, const char *to)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_name *n = find_name(f->now, last_name(from));
	int rc = fault(f, FAKE_RENAME);

	if (rc)
		return rc;
	if (!n)
		return -ENOENT;
	change(f, last_name(from), last_name(to), n->file);
	return 0;
}

static int fake_unlink(struct kvs_fs *fs, const char *path)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_name *n = find_name(f->now, last_name(path));
	int rc = fault(f, FAKE_UNLINK);

	if (rc)
		return rc;
	if (!n)
		return -ENOENT;
	change(f, last_name(path), "", n->file);
	sweep(f);
	return 0;
}

static int fake_allocate(struct kvs_fs *fs, int fd, uint64_t bytes)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_file *v = &f->file[f->fd[fd].file];
	int rc = fault(f, FAKE_ALLOCATE);

	if (!rc && !f->no_allocate)
		rc = charge(f, v, bytes);
	if (rc)
		return rc;
	reserve(v, bytes);
	if (v->size < bytes)
		v->size = bytes;
	return 0;
}

static int fake_stat(struct kvs_fs *fs, int fd, struct kvs_fs_stat *ret_stat)
{
	struct fake_fs *f = fake_of(fs);
	int rc = fault(f, FAKE_STAT);

	if (rc)
		return rc;
	*ret_stat = (struct kvs_fs_stat){
		.bytes = f->file[f->fd[fd].file].size,
		.direct_mem = FAKE_SECTOR,
		.direct_off = f->align ? f->align : FAKE_SECTOR,
		.regular = true,
		.owner = f->owner,
		.mode = f->mode,
	};
	return 0;
}

static int fake_list(struct kvs_fs *fs, const char *dir,
		     int (*each)(void *arg, const char *name), void *arg)
{
	struct fake_fs *f = fake_of(fs);
	int rc = fault(f, FAKE_LIST), i;

	(void)dir;
	for (i = 0; i < FAKE_FILES && !rc; i++) {
		if (*f->now[i].name)
			rc = each(arg, f->now[i].name);
	}
	return rc;
}

static int fake_mkdir(struct kvs_fs *fs, const char *path)
{
	(void)fs;
	(void)path;
	return 0;
}

static int fake_lock(struct kvs_fs *fs, int fd)
{
	struct fake_fs *f = fake_of(fs);
	struct fake_file *v = &f->file[f->fd[fd].file];
	int rc = fault(f, FAKE_LOCK);

	if (rc)
		return rc;
	if (v->lock >= 0 && v->lock != fd)
		return -EAGAIN;
	v->lock = fd;
	return 0;
}

static int fake_space(struct kvs_fs *fs, const char *dir, uint64_t *ret_bytes)
{
	struct fake_fs *f = fake_of(fs);
	int rc = fault(f, FAKE_SPACE);

	(void)dir;
	*ret_bytes = !f->capacity	     ? UINT64_MAX
		     : f->used > f->capacity ? 0
					     : f->capacity - f->used;
	return rc;
}

static int fake_sync_dir(struct kvs_fs *fs, const char *dir)
{
	struct fake_fs *f = fake_of(fs);
	int rc = fault(f, FAKE_SYNC_DIR);

	(void)dir;
	if (rc)
		return rc;
	memcpy(f->stable, f->now, sizeof(f->now));
	f->nlog = 0;
	return 0;
}

static const struct kvs_fs_ops fake_ops = {
	.name = "fake",
	.open = fake_open,
	.close = fake_close,
	.preadv = fake_preadv,
	.pwritev = fake_pwritev,
	.fdatasync = fake_fdatasync,
	.rename = fake_rename,
	.unlink = fake_unlink,
	.allocate = fake_allocate,
	.stat = fake_stat,
	.list = fake_list,
	.mkdir = fake_mkdir,
	.lock = fake_lock,
	.space = fake_space,
	.sync_dir = fake_sync_dir,
};

/* ---- ends ---- */

void fake_kill(struct fake_fs *f)
{
	int i;

	memset(f->fd, 0, sizeof(f->fd));
	for (i = 0; i < FAKE_FILES; i++) {
		f->file[i].lock = -1;
		f->file[i].fds = 0;
	}
	memset(f->fault, 0, sizeof(f->fault));
	sweep(f);
}

static void lose(struct fake_fs *f, struct fake_file *v)
{
	uint64_t i, j;

	for (i = 0; i < v->cap / FAKE_SECTOR; i++) {
		uint8_t *now = v->now + i * FAKE_SECTOR;
		uint8_t *old = v->stable + i * FAKE_SECTOR;

		if (!v->dirty[i])
			continue;
		switch (kvs_rng_below(&f->rng, 3)) {
		case 0: /* lost */
			memcpy(now, old, FAKE_SECTOR);
			break;
		case 1: /* torn */
			j = kvs_rng_below(&f->rng, FAKE_SECTOR);
			memcpy(now + j, old + j, FAKE_SECTOR - j);
			break;
		default: /* there */
			break;
		}
		v->dirty[i] = 0;
	}
	if (v->size != v->stable_size && kvs_rng_below(&f->rng, 2))
		v->size = v->stable_size;
	v->stable_size = v->size;
	if (v->cap)
		memcpy(v->stable, v->now, v->cap);
}

void fake_power(struct fake_fs *f)
{
	unsigned int n, i;

	n = (unsigned int)kvs_rng_below(&f->rng, f->nlog + 1);
	for (i = 0; i < n; i++)
		apply(f->stable, &f->log[i]);
	memcpy(f->now, f->stable, sizeof(f->now));
	f->nlog = 0;
	for (i = 0; i < FAKE_FILES; i++) {
		if (f->file[i].used)
			lose(f, &f->file[i]);
	}
	fake_kill(f);
}

void fake_init(struct fake_fs *f, uint64_t seed)
{
	memset(f, 0, sizeof(*f));
	f->fs.ops = &fake_ops;
	kvs_rng_init(&f->rng, seed);
}

void fake_fini(struct fake_fs *f)
{
	int i;

	for (i = 0; i < FAKE_FILES; i++) {
		if (f->file[i].used)
			drop_file(f, &f->file[i]);
	}
}
