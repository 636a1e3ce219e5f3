/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: disk tier
 *
 * What a worker's cache keeps on disk (hicache/disk_store.h), under
 * hicache.dir. A block of the host tier is a page there, and a unit of the
 * index, whose cookie is its location.
 *
 *   host unit --published--> offered, coldest first --put--> on disk
 *       ^                      (hicache.write_behind)            |
 *       +---- read, checked <--- a room asks for its prefix -----+
 *
 * Both ways the transfer is a party of the drain of the host unit (R13): the
 * extent is nobody else's before the disk has let go of it, whatever became of
 * the room. A unit that is evicted from memory and is on disk stays known.
 *
 * The tier is never needed: what cannot be opened, read or written costs
 * hits, is said once and counted, and the daemon serves on.
 */
#ifndef KVS_PIPELINE_CACHE_DISK_H
#define KVS_PIPELINE_CACHE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "hicache/disk_store.h"
#include "hicache/index.h"
#include "pipeline/stats.h"

#define KVS_CACHE_WHY_MAX 256u

struct kvs_cached;
struct kvs_worker;
struct kvs_worker_engine;

struct kvs_cache_disk {
	struct kvs_worker *w;
	enum kvs_tier tier;
	struct kvs_disk *disk;
	struct kvs_disk_store *store; /* NULL: the tier is off */
	bool wanted; /* hicache.dir is set */
	char why[KVS_CACHE_WHY_MAX]; /* it is off, nevertheless */
	uint64_t next_id; /* of a party */
	/* what the store told of at open and is of no use: dropped then */
	kvs_disk_loc *stale;
	size_t n_stale;
	size_t cap_stale;
	uint64_t said_at; /* ns; progress of the scan */
	/* write-behind */
	uint64_t queued; /* bytes that are not done */
	uint64_t at; /* host unit */
	uint64_t from; /* host unit that @pages are of */
	struct kvs_unit_page *pages;
	uint32_t n_pages;
	uint32_t page; /* next of them */
	bool fresh; /* units were published since the pass began */
	bool idle; /* a pass found nothing more */
	bool more; /* it stopped only for the turn's sake */
	uint64_t retry_at; /* ns */
	struct kvs_cache_disk_stats stats;
};

/**
 * kvs_cache_disk_open() - begin with what is under hicache.dir
 *
 * Reads what is there. Whatever goes wrong turns the tier off, and is logged.
 * Context: the worker's thread, or before it runs; blocks.
 */
void kvs_cache_disk_open(struct kvs_worker *w);
/* It cannot be used after all. */
void kvs_cache_disk_off(struct kvs_worker *w, const char *why);

/**
 * kvs_cache_disk_close() - end what is under way, and the tier
 *
 * Context: the thread that turned the worker; waits for the disk, up to
 * drain.timeout. What has not ended then is abandoned.
 */
void kvs_cache_disk_close(struct kvs_worker *w);

/* Readable when a turn has something to do; -1: there is no tier. */
int kvs_cache_disk_fd(const struct kvs_worker *w);
/* What has ended is told, and some of what waits is written. */
void kvs_cache_disk_turn(struct kvs_worker *w);
/* ns on the worker's clock; KVS_TIME_NEVER. */
uint64_t kvs_cache_disk_due(const struct kvs_worker *w);
/* Something that is in memory is yet to be written, and can be. */
bool kvs_cache_disk_behind(const struct kvs_worker *w);
/* A unit of the host tier was published. */
void kvs_cache_disk_offer(struct kvs_worker *w);
/* The index lets a unit of the tier go. */
void kvs_cache_disk_victim(struct kvs_worker *w, const struct kvs_victim *v);
/* Let all go that no room reads. Return: bytes. */
uint64_t kvs_cache_disk_flush(struct kvs_worker *w);
/* Read all of it once, to see whether it still matches; @bytes_per_sec:
 * UINT64_MAX: as fast as it goes. Return: there is a tier. */
bool kvs_cache_disk_scrub(struct kvs_worker *w, uint64_t bytes_per_sec);
void kvs_cache_disk_stats(const struct kvs_worker *w,
			  struct kvs_cache_disk_stats *ret);

/**
 * kvs_cache_recall() - have what lies on disk read into memory
 * @w: worker
 * @e: engine whose blocks they are
 * @keys: of the blocks
 * @v: where they are, pinned; places on disk become those in memory, pinned
 *	likewise, which may be filled only later
 * @n: how many
 *
 * Return: how many stay; the pins of the others are off.
 */
uint32_t kvs_cache_recall(struct kvs_worker *w,
			  const struct kvs_worker_engine *e,
			  const struct kvs_key *keys, struct kvs_found *v,
			  uint32_t n);

#endif /* KVS_PIPELINE_CACHE_DISK_H */
