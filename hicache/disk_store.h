/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: disk_store
 *
 * Pages of KV in the files of one directory: the disk tier. It finds nothing
 * by itself: whoever puts a page gets a *location* and keeps it in an index
 * (hicache/index.h), and after a restart the store tells every page that is
 * there. One process writes a directory; others may open it to read.
 *
 *   put --> queue (bounded) --> slot of the open segment, written
 *                                  |  a block of the table for all that are
 *                                  v  there by then: the commit
 *           ->done with a location <-- [fdatasync]
 *
 * A page can be got from the moment its put is done. Every page is checked
 * against its CRC-32C whenever it is read, before anybody hears that it is
 * there. When the limit is reached the oldest segment goes, those without a
 * live page first, and ->gone tells which pages went with it.
 *
 * What fails costs pages, never the service:
 *   - a file that is torn, truncated, damaged, foreign or of a newer version is
 *     set aside at open, by another name, with a message;
 *   - a page that does not match is gone, and counted;
 *   - no space: the oldest segment goes and the write is tried once more; then
 *     the put fails, and for a while (@retry) nothing is written;
 *   - eight failed writes in a row: likewise;
 *   - direct writes refused where opening was not: buffered ones from then on.
 * kvs_disk_store_health() says which, and it is over when a write succeeds.
 *
 * Memory of a put or get belongs to the store until ->done. With a drain in
 * the request the transfer is a party of it (R13): it joins before anything is
 * started, and leaves with KVS_PROOF_IO_COMPLETION when nothing can touch the
 * bytes any more. A transfer that never ends cannot be revoked.
 *
 * One owner thread, which calls kvs_disk_store_turn() when kvs_disk_fd() of
 * the engine is readable, after it put or got something, and when due. Opening
 * files, making a segment and removing one block.
 */
#ifndef KVS_HICACHE_DISK_STORE_H
#define KVS_HICACHE_DISK_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "hicache/disk_format.h"
#include "hicache/disk_io.h"
#include "hicache/key.h"
#include "pinned/drain.h"

#define KVS_STORE_SEGMENT_DEFAULT (256ULL << 20) /* bytes */
#define KVS_STORE_WRITE_BEHIND_DEFAULT (256ULL << 20) /* bytes */
#define KVS_STORE_FILES_DEFAULT 256u /* open at a time */
#define KVS_STORE_COMMIT_DEFAULT 16u /* pages */
#define KVS_STORE_RETRY_DEFAULT (30 * KVS_NSEC_PER_SEC)
#define KVS_STORE_LOCK_WAIT_DEFAULT (10 * KVS_NSEC_PER_SEC)
#define KVS_STORE_PIECES_MAX 65536u /* of one page in memory */

/* X(NAME, string): what a page that was put survives */
#define KVS_DURABILITIES(X)                          \
	X(NONE, "none") /* the end of the process */ \
	X(FDATASYNC, "fdatasync") /* the loss of power as well */

/* X(NAME, string): why pages are not there any more */
#define KVS_GONE_REASONS(X)                                     \
	X(RECLAIMED, "reclaimed") /* their segment made room */ \
	X(DAMAGED, "damaged") /* the page did not match */      \
	X(VANISHED, "vanished") /* their file, for one who reads */

/* X(NAME, string): what the store can do */
#define KVS_STORE_HEALTHS(X)                                                 \
	X(OK, "ok")                                                          \
	X(BUFFERED, "buffered") /* direct transfers do not work here */      \
	X(NO_SPACE, "no space") /* nothing is written for a while */         \
	X(WRITE_ERRORS, "write errors") /* nothing is written for a while */ \
	X(READ_ERRORS, "read errors") /* the last reads failed */

#define KVS_ENUM_(n, s) KVS_DURABILITY_##n,
enum kvs_durability { KVS_DURABILITIES(KVS_ENUM_) KVS_DURABILITY_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_GONE_##n,
enum kvs_gone_reason { KVS_GONE_REASONS(KVS_ENUM_) KVS_GONE_REASON_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_STORE_##n,
enum kvs_store_health { KVS_STORE_HEALTHS(KVS_ENUM_) KVS_STORE_HEALTH_MAX };
#undef KVS_ENUM_

extern const char *const kvs_durability_name[KVS_DURABILITY_MAX];
extern const char *const kvs_gone_reason_name[KVS_GONE_REASON_MAX];
extern const char *const kvs_store_health_name[KVS_STORE_HEALTH_MAX];

/* Where a page lies: segment and slot. 0 is none; never used twice. */
typedef uint64_t kvs_disk_loc;

struct kvs_disk_store;

/**
 * struct kvs_disk_store_opts - a store
 * @dir: directory; made when it is not there, but for its parent
 * @disk: engine; not destroyed with the store
 * @clock: NULL: the real one
 * @read_only: another process writes it: nothing is changed, locked or set
 *	aside, and kvs_disk_store_refresh() looks for what is new
 * @buffered: no direct transfers even where they would work
 * @durability: what ->done of a put promises
 * @segment_bytes: of a file, but for one page, reserved when it is made; less
 *	on a disk with less than four times as much free; 0: the default
 * @limit: bytes of all files together, those set aside included; 0: none
 * @write_behind: bytes of puts that are not done; 0: the default
 * @staging: buffers for pages that cannot be transferred directly, as their
 *	pieces are not aligned, in pages; 0: as many as the engine's depth, up
 *	to 8
 * @files: files open at a time; 0: the default
 * @commit_pages: pages that a busy segment commits at once; 0: the default
 * @retry: ns without writing after they failed; 0: the default
 * @lock_wait: ns to wait for one who writes the directory; 0: the default
 * @scrub: bytes/s that are read to see whether they still match; 0: none
 * @found: a page that was there at open, or at a refresh; NULL
 * @gone: a page that is not there any more; not for what was dropped. May
 *	drop others, must not put or get. NULL
 * @tell: one line for the operator; NULL: logged as a notice
 * @arg: for @found, @gone and @tell
 */
struct kvs_disk_store_opts {
	const char *dir;
	struct kvs_disk *disk;
	const struct kvs_clock *clock;
	bool read_only;
	bool buffered;
	enum kvs_durability durability;
	uint64_t segment_bytes;
	uint64_t limit;
	uint64_t write_behind;
	unsigned int staging;
	unsigned int files;
	unsigned int commit_pages;
	uint64_t retry;
	uint64_t lock_wait;
	uint64_t scrub;
	void (*found)(void *arg, const struct kvs_key *key,
		      const struct kvs_fingerprint *layout, uint32_t page_bytes,
		      kvs_disk_loc loc);
	void (*gone)(void *arg, const struct kvs_key *key, kvs_disk_loc loc,
		     enum kvs_gone_reason reason);
	void (*tell)(void *arg, const char *line);
	void *arg;
};

/**
 * struct kvs_disk_req - a page to put or to get
 * @key: its name
 * @layout: of a put: whose page it is; pages of one segment have one
 * @loc: of a get: where it is. Of a put: where it was put, set before ->done
 * @iov: its pieces in memory
 * @niov: how many
 * @len: bytes; the sum over @iov
 * @drain: NULL, or of the memory: the transfer joins it as a party
 * @id: of the party, unique among those of kind IO in @drain
 * @done: 0, or -errno: see the calls
 * @arg: the caller's
 */
struct kvs_disk_req {
	struct kvs_key key;
	struct kvs_fingerprint layout;
	kvs_disk_loc loc;
	const struct iovec *iov;
	unsigned int niov;
	uint32_t len;
	struct kvs_drain *drain;
	uint64_t id;
	void (*done)(struct kvs_disk_req *r, int result);
	void *arg;
	/* the store's */
	struct kvs_list node;
	struct kvs_party party;
	struct kvs_disk_io io;
	struct kvs_seg *seg;
	struct kvs_stage *stage;
	struct iovec one;
	uint32_t slot;
	uint32_t crc;
	int result;
	bool again; /* was tried before */
};

/* Counters since open, and what is there. */
struct kvs_disk_store_stats {
	/* what is there */
	uint64_t segments;
	uint64_t pages;
	uint64_t page_bytes; /* of these */
	uint64_t used; /* bytes of files */
	uint64_t aside; /* bytes of files set aside, in @used */
	uint64_t memory; /* bytes of memory for the books of segments */
	uint64_t queued; /* bytes of puts that are not done */
	/* puts and gets */
	uint64_t put, put_bytes, put_failed, put_refused;
	uint64_t got, got_bytes, got_failed;
	uint64_t staged; /* that went through a buffer */
	uint64_t commits; /* blocks of the table written */
	uint64_t dropped;
	/* what went wrong */
	uint64_t write_errors, no_space, read_errors;
	uint64_t damaged; /* pages that did not match */
	uint64_t short_reads; /* pages whose file ended before them */
	uint64_t entries_damaged;
	uint64_t set_aside[KVS_SEG_VERDICT_MAX]; /* files */
	uint64_t direct_refused;
	/* room */
	uint64_t reclaimed; /* segments */
	uint64_t reclaimed_pages;
	uint64_t aside_removed; /* files */
	/* scrub */
	uint64_t scrubbed_bytes, scrub_damaged, scrub_rounds;
	/* the scan at open */
	uint64_t recovered_pages, recovered_bytes; /* @bytes of pages */
	uint64_t recovery_ns;
};

/**
 * kvs_disk_store_open() - make the directory ours, and read what is there
 * @o: kept; what it points to stays, but for @dir
 * @ret_store: store
 * @err: why not, on failure
 * @errlen: bytes of @err
 *
 * Calls ->found for each page. No file makes it fail.
 * Context: blocks.
 * Return: 0; -EBUSY another process writes it; -EINVAL options; -ENOMEM;
 * -errno of making or reading the directory.
 */
int kvs_disk_store_open(const struct kvs_disk_store_opts *o,
			struct kvs_disk_store **ret_store, char *err,
			size_t errlen);

/**
 * kvs_disk_store_close() - end
 *
 * Puts that are only queued fail with -ECANCELED, at once. Anything under way
 * has to end first: turn until it returns 0. Accepts NULL.
 * Return: 0, all is freed; -EBUSY.
 */
int kvs_disk_store_close(struct kvs_disk_store *s);

/**
 * kvs_disk_store_put() - keep a page
 * @r: @key, @layout, @iov, @niov, @len, @done; @drain and @id or not
 *
 * ->done: 0, and @r->loc; -ENOSPC; -EIO and others of the write; -ECANCELED
 * the store is closing. The bytes may be reused when the party has left, which
 * may be before ->done; @r and @iov not before ->done.
 * Return: 0; -EAGAIN too much is queued; -EROFS opened to read; -ENOSPC or
 * -EIO nothing is written for a while, see kvs_disk_store_health(); -EINVAL a
 * length of 0 or above KVS_SEG_PAGE_MAX, pieces that are not @len together;
 * -ESHUTDOWN the drain is armed. Nothing was started then.
 */
int kvs_disk_store_put(struct kvs_disk_store *s, struct kvs_disk_req *r);

/**
 * kvs_disk_store_get() - read a page back
 * @r: @key, @loc, @iov, @niov, @len, @done; @drain and @id or not
 *
 * ->done: 0, and the bytes are those that were put; -EBADMSG they do not match
 * and the page is gone; -ENODATA its file was cut off and the page is gone;
 * -EIO and others of the read. What is in memory is of no use then.
 * Return: 0; -ENOENT no such page there, or opened to read and its file went;
 * -EINVAL @len is another; -ESHUTDOWN the drain is armed. Nothing was started
 * then.
 */
int kvs_disk_store_get(struct kvs_disk_store *s, struct kvs_disk_req *r);

/* The page is of no use any more. Return: 0; -ENOENT; -EROFS. */
int kvs_disk_store_drop(struct kvs_disk_store *s, kvs_disk_loc loc);

/**
 * kvs_disk_store_turn() - go on with everything
 * Return: requests that are done.
 */
unsigned int kvs_disk_store_turn(struct kvs_disk_store *s);

/* When a turn is due, whatever the engine's descriptor says; ns on the
 * store's clock, KVS_TIME_NEVER. */
uint64_t kvs_disk_store_due(const struct kvs_disk_store *s);

/* Puts and gets that are not done. */
unsigned int kvs_disk_store_busy(const struct kvs_disk_store *s);

/**
 * kvs_disk_store_reclaim() - give a segment back before it must be
 * Return: 0; -ENOENT there is none that is closed; -EROFS; -errno of the
 * removal.
 */
int kvs_disk_store_reclaim(struct kvs_disk_store *s);

/**
 * kvs_disk_store_refresh() - of one opened to read: what is new
 *
 * ->found for pages that came, ->gone for those whose file went, or could not
 * be looked at.
 * Return: 0; -EINVAL not opened to read; -ESTALE the directory is another one
 * by now; -ENOMEM; -errno of reading the directory.
 */
int kvs_disk_store_refresh(struct kvs_disk_store *s);

/* Other rate; 0 stops it, a round ends where it is. */
void kvs_disk_store_scrub(struct kvs_disk_store *s, uint64_t bytes_per_sec);
/* One round from the first page on, at a rate of its own, UINT64_MAX: none, at
 * which scrub_rounds counts up. Again: it begins anew. */
void kvs_disk_store_scrub_once(struct kvs_disk_store *s,
			       uint64_t bytes_per_sec);

/**
 * kvs_disk_store_health() - whether it works
 * @why: one line, or ""; lives as long as the store and changes with it
 */
enum kvs_store_health kvs_disk_store_health(const struct kvs_disk_store *s,
					    const char **ret_why);

void kvs_disk_store_stats(const struct kvs_disk_store *s,
			  struct kvs_disk_store_stats *ret_stats);

#endif /* KVS_HICACHE_DISK_STORE_H */
