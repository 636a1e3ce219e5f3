/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: fake_fs
 *
 * A double of the calls the disk tier makes on files (hicache/disk_fs.h), in
 * memory. It remembers what was synced and what was not:
 *
 *   fake_kill()   the process dies: descriptors and locks are gone, what was
 *                 written is there
 *   fake_power()  the power fails: of each sector that was written and not
 *                 synced either the old or the new bytes are there, or some
 *                 of each; of the names that changed since the directory was
 *                 synced only the first few
 *
 * Any call can fail at its N-th time, reads and writes can do half of what
 * they were asked, and the disk has a size. Not thread safe.
 */
#ifndef KVS_TESTS_UNIT_HICACHE_FAKE_FS_H
#define KVS_TESTS_UNIT_HICACHE_FAKE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hicache/disk_fs.h"
#include "lib/rng.h"

#define FAKE_FILES 256
#define FAKE_FDS 256
#define FAKE_NAME 256
#define FAKE_LOG 1024 /* changes of names that are not synced */
#define FAKE_SECTOR 512u

enum fake_call {
	FAKE_OPEN,
	FAKE_READ,
	FAKE_WRITE,
	FAKE_SYNC,
	FAKE_RENAME,
	FAKE_UNLINK,
	FAKE_ALLOCATE,
	FAKE_STAT,
	FAKE_LIST,
	FAKE_LOCK,
	FAKE_SPACE,
	FAKE_SYNC_DIR,
	FAKE_CALL_MAX,
};

/* Call number @at (1 is the next) and the @more behind it fail with @err. */
struct fake_fault {
	uint64_t at;
	uint64_t more;
	int err;
};

struct fake_file {
	bool used;
	uint8_t *now;
	uint8_t *stable;
	uint8_t *dirty; /* a byte for each sector */
	uint64_t size;
	uint64_t stable_size;
	uint64_t cap;
	uint64_t charged; /* bytes of the disk */
	int lock; /* descriptor that holds it, or -1 */
	unsigned int fds;
};

struct fake_name {
	char name[FAKE_NAME]; /* "" is none */
	int file;
};

struct fake_change {
	char from[FAKE_NAME]; /* "" : made */
	char to[FAKE_NAME]; /* "" : removed */
	int file;
};

struct fake_fd {
	bool used;
	bool direct;
	int file;
};

struct fake_fs {
	struct kvs_fs fs;
	struct kvs_rng rng;
	struct fake_file file[FAKE_FILES];
	struct fake_name now[FAKE_FILES];
	struct fake_name stable[FAKE_FILES];
	struct fake_change log[FAKE_LOG];
	unsigned int nlog;
	struct fake_fd fd[FAKE_FDS];
	uint64_t calls[FAKE_CALL_MAX];
	struct fake_fault fault[FAKE_CALL_MAX];
	unsigned int short_every; /* of reads and writes, half; 0: none */
	unsigned int transfers;
	uint64_t capacity; /* bytes; 0: no end */
	uint64_t used;
	bool no_direct; /* opening for direct transfers fails */
	bool no_direct_write; /* it does not, and writing does */
	bool no_allocate; /* the size is set, the blocks come later */
	uint32_t owner, mode; /* of all there is; the directory is a file too,
			       * when one is made by its name */
	uint32_t align; /* of direct transfers; 0: FAKE_SECTOR */
};

void fake_init(struct fake_fs *f, uint64_t seed);
void fake_fini(struct fake_fs *f);
void fake_kill(struct fake_fs *f);
void fake_power(struct fake_fs *f);
void fake_fail(struct fake_fs *f, enum fake_call call, uint64_t at,
	       uint64_t more, int err);
/* The file of that last name, or NULL. */
struct fake_file *fake_find(struct fake_fs *f, const char *name);
/* Change its size, as somebody else would. */
void fake_resize(struct fake_fs *f, struct fake_file *file, uint64_t size);
/* Make one with these bytes. */
void fake_make(struct fake_fs *f, const char *name, const void *bytes,
	       size_t len);
/* Files whose last name begins with @prefix. */
unsigned int fake_count(const struct fake_fs *f, const char *prefix);

#endif /* KVS_TESTS_UNIT_HICACHE_FAKE_FS_H */
