/* SPDX-License-Identifier: Apache-2.0 */
#include "hicache/disk_fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "hicache/disk_format.h"

static int ret(int rc)
{
	return rc < 0 ? -errno : rc;
}

static ssize_t ret_bytes(ssize_t rc)
{
	return rc < 0 ? -errno : rc;
}

static int real_open(struct kvs_fs *fs, const char *path, int flags,
		     unsigned int mode)
{
	(void)fs;
	return ret(open(path, flags | O_CLOEXEC, mode));
}

static int real_close(struct kvs_fs *fs, int fd)
{
	(void)fs;
	return ret(close(fd));
}

static ssize_t real_preadv(struct kvs_fs *fs, int fd, const struct iovec *iov,
			   int n, uint64_t off)
{
	(void)fs;
	return ret_bytes(preadv(fd, iov, n, (off_t)off));
}

static ssize_t real_pwritev(struct kvs_fs *fs, int fd, const struct iovec *iov,
			    int n, uint64_t off)
{
	(void)fs;
	return ret_bytes(pwritev(fd, iov, n, (off_t)off));
}

static int real_fdatasync(struct kvs_fs *fs, int fd)
{
	(void)fs;
	return ret(fdatasync(fd));
}

static int real_rename(struct kvs_fs *fs, const char *from, const char *to)
{
	(void)fs;
	return ret(rename(from, to));
}

static int real_unlink(struct kvs_fs *fs, const char *path)
{
	(void)fs;
	return ret(unlink(path));
}

static int real_allocate(struct kvs_fs *fs, int fd, uint64_t bytes)
{
	int rc;

	(void)fs;
	do {
		rc = ret(fallocate(fd, 0, 0, (off_t)bytes));
	} while (rc == -EINTR);
	/* A file system without it: the blocks come when they are written. */
	if (rc == -EOPNOTSUPP || rc == -ENOSYS)
		rc = ret(ftruncate(fd, (off_t)bytes));
	return rc;
}

static void dio_align(int fd, struct kvs_fs_stat *st)
{
	struct statx x = { 0 };

	/* A kernel older than 6.1 leaves the bit out; then a trial decides. */
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) ||
	    !(x.stx_mask & STATX_DIOALIGN))
		return;
	st->direct_mem = x.stx_dio_mem_align;
	st->direct_off = x.stx_dio_offset_align;
}

static int real_stat(struct kvs_fs *fs, int fd, struct kvs_fs_stat *ret_stat)
{
	struct stat st;

	(void)fs;
	if (fstat(fd, &st))
		return -errno;
	*ret_stat = (struct kvs_fs_stat){
		.bytes = (uint64_t)st.st_size,
		.regular = S_ISREG(st.st_mode),
		.owner = st.st_uid,
		.mode = st.st_mode & 07777,
	};
	dio_align(fd, ret_stat);
	return 0;
}

static int real_list(struct kvs_fs *fs, const char *dir,
		     int (*each)(void *arg, const char *name), void *arg)
{
	struct dirent *e;
	DIR *d = opendir(dir);
	int rc = 0;

	(void)fs;
	if (!d)
		return -errno;
	do {
		errno = 0;
		e = readdir(d);
		if (!e)
			rc = -errno;
		else if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			rc = each(arg, e->d_name);
	} while (e && !rc);
	closedir(d);
	return rc;
}

static int real_mkdir(struct kvs_fs *fs, const char *path)
{
	(void)fs;
	return ret(mkdir(path, 0700));
}

static int real_lock(struct kvs_fs *fs, int fd)
{
	(void)fs;
	return ret(flock(fd, LOCK_EX | LOCK_NB));
}

static int real_space(struct kvs_fs *fs, const char *dir, uint64_t *ret_bytes)
{
	struct statvfs st;

	(void)fs;
	if (statvfs(dir, &st))
		return -errno;
	if (__builtin_mul_overflow((uint64_t)st.f_bavail, (uint64_t)st.f_frsize,
				   ret_bytes))
		*ret_bytes = UINT64_MAX;
	return 0;
}

static int real_sync_dir(struct kvs_fs *fs, const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc;

	(void)fs;
	if (fd < 0)
		return -errno;
	rc = ret(fsync(fd));
	close(fd);
	/* Some network file systems have no such thing. */
	return rc == -EINVAL ? 0 : rc;
}

static const struct kvs_fs_ops real_ops = {
	.name = "real",
	.open = real_open,
	.close = real_close,
	.preadv = real_preadv,
	.pwritev = real_pwritev,
	.fdatasync = real_fdatasync,
	.rename = real_rename,
	.unlink = real_unlink,
	.allocate = real_allocate,
	.stat = real_stat,
	.list = real_list,
	.mkdir = real_mkdir,
	.lock = real_lock,
	.space = real_space,
	.sync_dir = real_sync_dir,
};

struct kvs_fs kvs_fs_real = { &real_ops };

ssize_t kvs_fs_read(struct kvs_fs *fs, int fd, void *buf, size_t len,
		    uint64_t off, bool direct)
{
	size_t done = 0;

	while (done < len) {
		struct iovec iov = { (char *)buf + done, len - done };
		ssize_t n = fs->ops->preadv(fs, fd, &iov, 1, off + done);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return n;
		if (!n)
			break;
		done += (size_t)n < len - done ? (size_t)n : len - done;
		/* A direct read that ends elsewhere has met the end. */
		if (direct && done % KVS_SEG_BLOCK)
			break;
	}
	return (ssize_t)done;
}

int kvs_fs_write(struct kvs_fs *fs, int fd, const void *buf, size_t len,
		 uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		struct iovec iov = { (char *)(uintptr_t)buf + done,
				     len - done };
		ssize_t n = fs->ops->pwritev(fs, fd, &iov, 1, off + done);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		if (!n)
			return -EIO;
		done += (size_t)n < len - done ? (size_t)n : len - done;
	}
	return 0;
}
