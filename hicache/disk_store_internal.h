/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the files of the store: disk_store.c (life, health), disk_segment.c
 * (files and room), disk_recover.c (what is there), disk_put.c, disk_get.c and
 * disk_scrub.c.
 */
#ifndef KVS_HICACHE_DISK_STORE_INTERNAL_H
#define KVS_HICACHE_DISK_STORE_INTERNAL_H

#include "hicache/disk_store.h"
#include "lib/u64map.h"

#define KVS_STORE_MAGIC 0x6b764453u
#define KVS_STORE_OPEN_MAX 8u /* segments being written: one a layout */
#define KVS_STORE_PATH_MAX 4096u
#define KVS_STORE_WHY_MAX 512u
#define KVS_STORE_ERRORS_MAX 8u /* in a row, before writing pauses */
#define KVS_STORE_SHARE 4u /* a segment has at most one such part of the rest */
#define KVS_STORE_SMALL (16ULL << 20) /* bytes of one that is not made less */
#define KVS_STORE_LOC_BITS 24u /* of the slot in a location */

enum kvs_slot_state {
	KVS_SLOT_FREE, /* as far as anybody knows */
	KVS_SLOT_WRITING, /* a put has it */
	KVS_SLOT_LIVE, /* can be got */
	KVS_SLOT_DEAD, /* dropped, damaged or never finished */
};

struct kvs_slot {
	struct kvs_key key;
	uint32_t crc;
	uint8_t state;
};

/*
 * A segment. References: one of each request that uses it, of the commit that
 * is under way, and one while it is open for writing.
 */
struct kvs_seg {
	struct kvs_list node; /* of the store, by @info.id */
	struct kvs_list open; /* open for writing, or on no list */
	struct kvs_list idle; /* file is open and nobody uses it */
	struct kvs_seg_info info;
	struct kvs_disk_file file; /* fd is -1 when it is closed */
	struct kvs_slot *slot;
	uint32_t next; /* first slot that was never used */
	uint32_t live;
	unsigned int refs;
	bool leaving; /* its name is gone; freed with the last reference */
	bool removing; /* its pages are being told */
	bool seen; /* by the refresh that runs */
	/* while it is written */
	uint8_t *table; /* as it is to be on disk; NULL: not written */
	unsigned int writing; /* pages under way */
	struct kvs_list pend; /* puts whose page is there, not the entry */
	unsigned int npend;
	struct kvs_list batch; /* puts of the commit that is under way */
	struct kvs_disk_io commit;
	struct iovec commit_iov; /* one block of its own */
	struct kvs_disk_store *store;
};

/* A file set aside. */
struct kvs_aside {
	struct kvs_list node;
	uint64_t bytes;
	char name[];
};

/* A buffer for one page, aligned. */
struct kvs_stage {
	struct kvs_list node;
	void *buf;
	size_t size; /* bytes */
};

struct kvs_scrub {
	uint64_t rate; /* bytes/s; 0: off */
	uint64_t once; /* of a round that was asked for; 0: none */
	uint64_t due; /* ns */
	uint64_t id; /* of the segment it is in */
	uint32_t slot; /* next one */
	struct kvs_seg *seg; /* of the read under way */
	uint32_t reading; /* slot of it */
	struct kvs_stage stage;
	struct kvs_disk_io io;
	struct iovec iov;
};

struct kvs_disk_store {
	uint32_t magic;
	struct kvs_disk_store_opts o;
	char *dir;
	struct kvs_disk *disk;
	struct kvs_fs *fs;
	const struct kvs_clock *clock;
	struct kvs_seg_instance instance;
	int lock_fd; /* -1: opened to read */
	bool direct; /* files are opened for direct transfers */
	bool aligned; /* the file system said what these are */
	uint32_t direct_mem; /* what addresses are multiples of */
	uint32_t direct_off; /* what offsets and lengths are multiples of */
	bool closing;

	struct kvs_u64map by_id;
	struct kvs_list segs;
	struct kvs_list open;
	struct kvs_list idle; /* segments, the longest idle first */
	struct kvs_list aside;
	unsigned int nopen;
	unsigned int nfiles;
	uint64_t next_id;
	bool said_less; /* segments are smaller than was asked for */

	struct kvs_list queue; /* puts that have no slot yet */
	struct kvs_list waiting; /* gets that need a buffer */
	struct kvs_list ended; /* gets that failed at once */
	struct kvs_list stages; /* free buffers */
	struct kvs_stage *stage;
	unsigned int nstages;
	unsigned int writing; /* pages under way */
	unsigned int busy; /* requests that are not done */
	unsigned int done; /* requests that ended in this turn */

	struct kvs_scrub scrub;
	unsigned int write_errors; /* in a row */
	unsigned int read_errors; /* in a row */
	int pause_err; /* what a put is answered; 0: written */
	uint64_t pause_until; /* ns */
	enum kvs_store_health health;
	char why[KVS_STORE_WHY_MAX];
	struct kvs_disk_store_stats stats;
};

static inline kvs_disk_loc kvs_loc(const struct kvs_seg *seg, uint32_t slot)
{
	return seg->info.id << KVS_STORE_LOC_BITS | slot;
}

/* ---- disk_store.c ---- */

void kvs_store_tell(struct kvs_disk_store *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* A write, or making a file, failed for good. */
void kvs_store_write_failed(struct kvs_disk_store *s, int err);
void kvs_store_write_worked(struct kvs_disk_store *s);
void kvs_store_read_failed(struct kvs_disk_store *s, int err);
void kvs_store_read_worked(struct kvs_disk_store *s);
/* Direct transfers are refused: buffered ones from now on. */
void kvs_store_go_buffered(struct kvs_disk_store *s, const char *call, int err);
/* A free buffer of @bytes at least, or NULL. */
struct kvs_stage *kvs_store_stage(struct kvs_disk_store *s, size_t bytes);
void kvs_store_unstage(struct kvs_disk_store *s, struct kvs_stage *st);
/* Grow it. Return: 0 or -ENOMEM. */
int kvs_stage_fit(struct kvs_stage *st, size_t bytes);
/* Its memory may go to the system as it is, to and from @seg's file. */
bool kvs_store_is_direct(const struct kvs_disk_store *s,
			 const struct kvs_seg *seg,
			 const struct kvs_disk_req *r);
/* Join the drain, if any. Return: 0 or -ESHUTDOWN, -EEXIST. */
int kvs_store_join(struct kvs_disk_req *r);
/* The pieces are @r->len together. */
bool kvs_store_sane(const struct kvs_disk_req *r);

/* ---- disk_segment.c ---- */

struct kvs_seg *kvs_seg_new(struct kvs_disk_store *s,
			    const struct kvs_seg_info *info);
void kvs_seg_get(struct kvs_seg *seg);
void kvs_seg_unref(struct kvs_seg *seg);
/* The segment and slot of @loc, or NULL. */
struct kvs_seg *kvs_seg_find(const struct kvs_disk_store *s, kvs_disk_loc loc,
			     uint32_t *ret_slot);
/* Open its file if it is not. The caller has a reference. */
int kvs_seg_open_file(struct kvs_seg *seg);
/* A segment with a free slot. Return: 0 or -errno; -EAGAIN later. */
int kvs_seg_for_put(struct kvs_disk_store *s,
		    const struct kvs_fingerprint *layout, uint32_t page_bytes,
		    struct kvs_seg **ret_seg);
/* Make it one that is written; its file is open. Return: 0 or -ENOMEM. */
int kvs_seg_begin_writing(struct kvs_seg *seg);
/* No page is put into it any more. */
void kvs_seg_retire(struct kvs_seg *seg);
/* What is left of writing is over: give memory back. */
void kvs_seg_settle(struct kvs_seg *seg);
/* Remove its file; ->gone for each live page. Return: 0 or -errno. */
int kvs_seg_remove(struct kvs_seg *seg, enum kvs_gone_reason reason);
/* Forget it without a word: at close. */
void kvs_seg_free(struct kvs_seg *seg);
/* A page is not there any more. */
void kvs_seg_page_gone(struct kvs_seg *seg, uint32_t slot,
		       enum kvs_gone_reason reason);
void kvs_seg_page_dead(struct kvs_seg *seg, uint32_t slot);
int kvs_store_reclaim_one(struct kvs_disk_store *s);
/* Remember a file that is set aside. */
void kvs_store_add_aside(struct kvs_disk_store *s, const char *name,
			 uint64_t bytes);
/* Another file took its place. */
void kvs_store_forget_aside(struct kvs_disk_store *s, const char *name);
/* "DIR/NAME"; @buf has KVS_STORE_PATH_MAX bytes. */
const char *kvs_store_path(const struct kvs_disk_store *s, const char *name,
			   char *buf);

/* ---- disk_recover.c ---- */

int kvs_store_recover(struct kvs_disk_store *s, char *err, size_t errlen);

/* ---- disk_put.c, disk_get.c, disk_scrub.c ---- */

/* Begin one put. Return: there may be more to begin. */
bool kvs_store_pump(struct kvs_disk_store *s);
/* Puts that have not begun end with @err. */
void kvs_store_fail_queue(struct kvs_disk_store *s, int err);
void kvs_store_pump_gets(struct kvs_disk_store *s);
void kvs_store_scrub_turn(struct kvs_disk_store *s);
uint64_t kvs_store_scrub_due(const struct kvs_disk_store *s);

#endif /* KVS_HICACHE_DISK_STORE_INTERNAL_H */
