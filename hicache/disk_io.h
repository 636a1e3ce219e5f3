/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: disk_io
 *
 * Asynchronous reads, writes and syncs of files by one of three *engines*:
 *
 *   uring    io_uring, with registered buffers and files where they can be had
 *   plain    a few threads that call preadv and pwritev, where io_uring is
 *            forbidden, and for file systems that are not the kernel's
 *   virtual  in the caller's thread and on its clock, in an order that a seed
 *            decides; what is held never ends. For tests and simulations
 *
 * An engine only moves bytes once. What holds for all is kept here: at most
 * @depth transfers are under way, reads before writes (a write after eight
 * reads), the others wait in order. A transfer that comes back short is gone
 * on with, in the same turn, until it is whole, and is never taken for whole;
 * one that makes no progress fails.
 *
 * A transfer cannot be called back. Its memory, the struct, the vector and the
 * bytes, belongs to the engine from start until ->done: whoever owns the bytes
 * makes it a party of their drain (KVS_PARTY_IO, KVS_PROOF_IO_COMPLETION).
 *
 * One owner thread calls everything, and ->done comes from inside
 * kvs_disk_turn() only, also for what failed at once.
 */
#ifndef KVS_HICACHE_DISK_IO_H
#define KVS_HICACHE_DISK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "hicache/disk_fs.h"
#include "lib/clock.h"
#include "lib/list.h"

#define KVS_DISK_DEPTH_DEFAULT 32u
#define KVS_DISK_DEPTH_MAX 4096u
#define KVS_DISK_THREADS_DEFAULT 4u
#define KVS_DISK_THREADS_MAX 256u
#define KVS_DISK_IOV_MAX 256u /* pieces that go to the kernel at once */

/* X(NAME, string) */
#define KVS_DISK_OPS(X)   \
	X(READ, "read")   \
	X(WRITE, "write") \
	X(SYNC, "sync")

#define KVS_ENUM_(n, s) KVS_DISK_##n,
enum kvs_disk_op { KVS_DISK_OPS(KVS_ENUM_) KVS_DISK_OP_MAX };
#undef KVS_ENUM_

extern const char *const kvs_disk_op_name[KVS_DISK_OP_MAX];

struct kvs_disk;

/**
 * struct kvs_disk_file - an open file
 * @fd: descriptor; the caller's to open and, when @busy is 0, to close
 * @index: place in the table of registered files, or -1
 * @align: what offsets and lengths are multiples of; 1 unless opened direct
 * @busy: transfers that are not over
 */
struct kvs_disk_file {
	int fd;
	int index;
	uint32_t align;
	unsigned int busy;
};

/**
 * struct kvs_disk_io - one transfer
 * @op: what to do; a SYNC has neither bytes nor place
 * @file: of it
 * @iov: the bytes in memory; not changed, and must stay as it is
 * @niov: pieces
 * @off: bytes from the start of the file
 * @len: bytes; the sum over @iov
 * @done: over, the memory is the caller's again; 0 or -errno: what the system
 *	said; -ENODATA the file ended before the read was whole; -EIO a write
 *	made no progress. May start others and free @io
 * @arg: the caller's
 */
struct kvs_disk_io {
	enum kvs_disk_op op;
	struct kvs_disk_file *file;
	const struct iovec *iov;
	unsigned int niov;
	uint64_t off;
	uint64_t len;
	void (*done)(struct kvs_disk_io *io, int result);
	void *arg;
	/* the engine's */
	struct kvs_list node;
	uint64_t moved; /* bytes known to be there */
	unsigned int retries; /* in a row, without progress */
	int result;
};

/**
 * struct kvs_disk_opts - an engine
 * @engine: "uring", "plain", "virtual", or "auto": the first of the first two
 *	that works here
 * @fs: files; NULL: the real ones. Another one excludes "uring"
 * @depth: transfers under way at a time; 0: the default
 * @threads: of "plain"; 0: the default
 * @files: most files that are registered; 0: none
 * @clock: of "virtual"
 * @latency: of "virtual": longest time a transfer takes, ns; each takes
 *	something from 0 on. 0: over in the next turn
 * @seed: of "virtual"
 * @result: for tests: may make the result of a transfer of the system worse
 *	(less of it, or -errno); NULL
 * @result_arg: for @result
 */
struct kvs_disk_opts {
	const char *engine;
	struct kvs_fs *fs;
	unsigned int depth;
	unsigned int threads;
	unsigned int files;
	const struct kvs_clock *clock;
	uint64_t latency;
	uint64_t seed;
	ssize_t (*result)(void *arg, enum kvs_disk_op op, ssize_t result);
	void *result_arg;
};

/**
 * struct kvs_disk_stats - counted since the start
 * @ops: transfers that ended well
 * @bytes: of these
 * @failed: that ended with an error
 * @shorts: times that less came than was asked for
 * @retried: times that the system said to try again
 * @fixed: transfers through a registered buffer
 * @overflows: times that the completion queue of an io_uring had overflowed
 */
struct kvs_disk_stats {
	uint64_t ops[KVS_DISK_OP_MAX];
	uint64_t bytes[KVS_DISK_OP_MAX];
	uint64_t failed[KVS_DISK_OP_MAX];
	uint64_t shorts[KVS_DISK_OP_MAX];
	uint64_t retried;
	uint64_t fixed;
	uint64_t overflows;
};

/**
 * kvs_disk_create() - an engine
 * @o: not kept, but for what it points to
 * @ret_disk: engine
 * @err: with an error, why; with 0, what "auto" had to do without, or "".
 *	May be NULL
 * @errlen: bytes of @err
 *
 * Return: 0; -EINVAL options out of range; -EOPNOTSUPP io_uring is not to be
 * had here; -ENOMEM, -EAGAIN, -EMFILE.
 */
int kvs_disk_create(const struct kvs_disk_opts *o, struct kvs_disk **ret_disk,
		    char *err, size_t errlen);
/* Nothing may be under way. Accepts NULL. */
void kvs_disk_destroy(struct kvs_disk *d);

/* "uring", "plain" or "virtual" */
const char *kvs_disk_name(const struct kvs_disk *d);
struct kvs_fs *kvs_disk_fs(const struct kvs_disk *d);
unsigned int kvs_disk_depth(const struct kvs_disk *d);
const struct kvs_disk_stats *kvs_disk_stats(const struct kvs_disk *d);
/* Transfers that are not over, waiting ones included. */
unsigned int kvs_disk_busy(const struct kvs_disk *d);

/**
 * kvs_disk_map() - register memory that transfers will be of
 * @base: page-aligned
 * @len: bytes; the kernel takes it in pieces of 1 GiB
 *
 * Saves the kernel to look up its pages for each transfer that lies in one
 * piece. All of it or nothing. The memory stays until the engine is
 * destroyed.
 * Return: 0; -EOPNOTSUPP another engine; -ENOMEM the limit of locked memory;
 * -errno of the kernel. Transfers work without.
 */
int kvs_disk_map(struct kvs_disk *d, void *base, uint64_t len);

/**
 * kvs_disk_file_init() - a file that was opened
 * @fd: descriptor
 * @align: 1, or for O_DIRECT what offsets and lengths are multiples of
 *
 * Registered when there is room, which never fails.
 */
void kvs_disk_file_init(struct kvs_disk *d, struct kvs_disk_file *f, int fd,
			uint32_t align);
/* Before the descriptor is closed; nothing of it may be under way. */
void kvs_disk_file_fini(struct kvs_disk *d, struct kvs_disk_file *f);

/**
 * kvs_disk_start() - begin a transfer
 * @io: @op to @arg are set
 * Context: owner. Does not block; ->done comes in a later turn.
 */
void kvs_disk_start(struct kvs_disk *d, struct kvs_disk_io *io);

/**
 * kvs_disk_turn() - hand over what waits, take what has ended
 * Return: transfers that ended.
 */
unsigned int kvs_disk_turn(struct kvs_disk *d);

/* Readable when a turn has something to do; -1 with "virtual". */
int kvs_disk_fd(const struct kvs_disk *d);

/* When a turn is due without it, on @clock or the real one;
 * KVS_TIME_NEVER. */
uint64_t kvs_disk_due(const struct kvs_disk *d);

/**
 * kvs_disk_wait() - for programs without a loop of their own
 * @timeout: ns
 *
 * Waits until a turn has something to do. "virtual" does not wait.
 * Return: 0, also when the time is over; -errno of poll(2).
 */
int kvs_disk_wait(struct kvs_disk *d, uint64_t timeout);

/* "virtual" only: from now on nothing ends, or what was held may. */
void kvs_disk_hold(struct kvs_disk *d, bool hold);

#endif /* KVS_HICACHE_DISK_IO_H */
