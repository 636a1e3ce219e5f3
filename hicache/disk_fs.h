/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: disk_fs
 *
 * The calls that the disk tier makes on files, as a table, so that a test can
 * stand in for the disk: fail the N-th call, do less than asked, forget what
 * was never synced. An io_uring does its reads and writes by itself and needs
 * the real table for the rest.
 *
 * All block; those of data are called by the threads of the plain engine as
 * well, the others by the owner of the store only.
 */
#ifndef KVS_HICACHE_DISK_FS_H
#define KVS_HICACHE_DISK_FS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct kvs_fs;

/**
 * struct kvs_fs_stat - what a file is
 * @bytes: size
 * @direct_mem: what the address of a direct transfer must be a multiple of;
 *	0: not known
 * @direct_off: likewise its offset and length
 * @regular: a regular file
 * @owner: user id
 * @mode: permission bits
 */
struct kvs_fs_stat {
	uint64_t bytes;
	uint32_t direct_mem;
	uint32_t direct_off;
	bool regular;
	uint32_t owner;
	uint32_t mode;
};

/**
 * struct kvs_fs_ops - calls on files; all return a value >= 0 or -errno
 * @name: for messages
 * @open: as open(2), with O_CLOEXEC added; a descriptor
 * @close: the descriptor is gone even when it fails
 * @preadv: as preadv(2); may return less
 * @pwritev: as pwritev(2); may return less
 * @fdatasync: what was written, and the size, survives the loss of power
 * @rename: replaces @to
 * @unlink: the file stays while a descriptor is open
 * @allocate: give the file @bytes, with blocks where the file system can
 * @stat: of an open file, or directory
 * @list: call @each for every name in @dir but "." and ".."; stops at the
 *	first value that is not 0 and returns it
 * @mkdir: mode 0700; -EEXIST when it is there
 * @lock: exclusive, of the open file, not waiting: -EAGAIN it is taken
 * @space: bytes of the file system of @dir that are free for us
 * @sync_dir: names made, changed or removed in @dir survive loss of power
 */
struct kvs_fs_ops {
	const char *name;
	int (*open)(struct kvs_fs *fs, const char *path, int flags,
		    unsigned int mode);
	int (*close)(struct kvs_fs *fs, int fd);
	ssize_t (*preadv)(struct kvs_fs *fs, int fd, const struct iovec *iov,
			  int n, uint64_t off);
	ssize_t (*pwritev)(struct kvs_fs *fs, int fd, const struct iovec *iov,
			   int n, uint64_t off);
	int (*fdatasync)(struct kvs_fs *fs, int fd);
	int (*rename)(struct kvs_fs *fs, const char *from, const char *to);
	int (*unlink)(struct kvs_fs *fs, const char *path);
	int (*allocate)(struct kvs_fs *fs, int fd, uint64_t bytes);
	int (*stat)(struct kvs_fs *fs, int fd, struct kvs_fs_stat *ret_stat);
	int (*list)(struct kvs_fs *fs, const char *dir,
		    int (*each)(void *arg, const char *name), void *arg);
	int (*mkdir)(struct kvs_fs *fs, const char *path);
	int (*lock)(struct kvs_fs *fs, int fd);
	int (*space)(struct kvs_fs *fs, const char *dir, uint64_t *ret_bytes);
	int (*sync_dir)(struct kvs_fs *fs, const char *dir);
};

/* A double has this as a member. */
struct kvs_fs {
	const struct kvs_fs_ops *ops;
};

/* This machine's files. */
extern struct kvs_fs kvs_fs_real;

/**
 * kvs_fs_read() - all of @len bytes, or as many as there are
 * @fs: file system
 * @fd: file; opened for direct transfers: see @direct
 * @buf: written
 * @len: bytes
 * @off: bytes from the start of the file
 * @direct: @buf, @len and @off are multiples of KVS_SEG_BLOCK
 * Return: bytes read; -errno.
 */
ssize_t kvs_fs_read(struct kvs_fs *fs, int fd, void *buf, size_t len,
		    uint64_t off, bool direct);

/**
 * kvs_fs_write() - all of @len bytes
 * Return: 0; -EIO nothing was written without a reason; -errno.
 */
int kvs_fs_write(struct kvs_fs *fs, int fd, const void *buf, size_t len,
		 uint64_t off);

#endif /* KVS_HICACHE_DISK_FS_H */
