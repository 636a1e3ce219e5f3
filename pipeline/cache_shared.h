/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: shared tier
 *
 * What other daemons keep on disk (cache_disk.h), where a file system shows it
 * to this one: hicache.shared_dir. Its directories node0, node1, ..., and those
 * of each directory in it, are opened to read, one store each
 * (hicache/disk_store.h); nothing is written, locked or removed there.
 *
 *   look --list--> slots --open / refresh, one a turn--> found, gone
 *     ^                                                      |
 *     +--------------- hicache.shared_refresh ---------------+
 *
 * A block there is a unit of the index, whose cookie is its location and whose
 * place says which slot; as it takes no room here, it counts as one byte, and
 * the quota is hicache.shared_blocks. It is read as one of our own disk is, by
 * cache_recall.c, into a unit of the host tier.
 *
 * The owner may remove, cut off or rewrite a file at any time. One that is not
 * there is a miss; one that is open is read to its end; what does not match
 * its checksum fails the room that waits for it. What cannot be listed or
 * opened is said once, gives no hits, and is tried again at the next look.
 */
#ifndef KVS_PIPELINE_CACHE_SHARED_H
#define KVS_PIPELINE_CACHE_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include "hicache/disk_store.h"
#include "hicache/index.h"
#include "pipeline/stats.h"

struct kvs_cache_shared;
struct kvs_worker;

/* A directory of another node; no path: the slot is free. */
struct kvs_shared_node {
	struct kvs_cache_shared *s;
	char *path;
	struct kvs_disk_store *store; /* NULL: it is not open */
	bool closing;
	bool seen; /* at the last look */
	int err; /* of the last try, which was told */
};

struct kvs_cache_shared {
	struct kvs_worker *w;
	struct kvs_disk *disk; /* NULL: the tier is off */
	struct kvs_shared_node *nodes;
	uint32_t n_nodes; /* hicache.shared_nodes */
	uint32_t at; /* the next to be looked at; n_nodes: none */
	uint64_t look_at; /* ns; when the next look begins */
	bool over; /* there are more than n_nodes, which was told */
	int err; /* of listing */
	char why[256]; /* it is off */
	struct kvs_cache_shared_stats stats;
};

/* What the index needs for it, if it is wanted. */
void kvs_cache_shared_limits(const struct kvs_worker *w,
			     struct kvs_index_opts *o);
/**
 * kvs_cache_shared_open() - begin to read what is under hicache.shared_dir
 *
 * The first look is made by turns. Whatever goes wrong is logged.
 * Context: the worker's thread, or before it runs.
 */
void kvs_cache_shared_open(struct kvs_worker *w);
/* It cannot be used after all. */
void kvs_cache_shared_off(struct kvs_worker *w, const char *why);
/* As kvs_cache_disk_close(). */
void kvs_cache_shared_close(struct kvs_worker *w);
/* Readable when a turn has something to do; -1: there is no tier. */
int kvs_cache_shared_fd(const struct kvs_worker *w);
/* What has ended is told. When it is time one directory is looked at, which
 * blocks. */
void kvs_cache_shared_turn(struct kvs_worker *w);
/* ns on the worker's clock; KVS_TIME_NEVER. */
uint64_t kvs_cache_shared_due(const struct kvs_worker *w);
/* The store that a block is in; NULL: it is not there any more. */
struct kvs_disk_store *kvs_cache_shared_store(const struct kvs_worker *w,
					      const struct kvs_found *f);
/* The index lets a unit of the tier go. */
void kvs_cache_shared_victim(struct kvs_worker *w, const struct kvs_victim *v);
void kvs_cache_shared_stats(const struct kvs_worker *w,
			    struct kvs_cache_shared_stats *ret);

#endif /* KVS_PIPELINE_CACHE_SHARED_H */
