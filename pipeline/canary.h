/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: canary
 *
 * On a one-sided transport a completion is only the sender's word. So before
 * a room is granted the last KVS_CANARY_LEN bytes of every item (each page of
 * each paged buffer, each item of the others, each rank's aux block) get a
 * value that nobody else knows, and once its grants are closed none of them
 * may still be there: a page whose canary is, was never written.
 *
 * The value depends on a random secret of the room and on the place, so that
 * it is no other page's and no earlier room's, and what lies in the memory
 * from before cannot pass for it. It is no authentication: whoever can read
 * the pool can write it too. It shows that the end of an item was written,
 * which is where writes in address order end; that every byte arrived as it
 * was sent, the digest shows (pipeline/digest.h).
 *
 * False alarm: an item of n bytes that arrived ends like its own canary with
 * probability 2^-(8 * min(n, 16)), whatever it holds, as the secret is drawn
 * independently. For items of 16 bytes and more that is below 1e-28 for a
 * room of 2^34 pages. Shorter ones use the whole item, and the shorter the
 * more often: see kvs_canary_false_alarm(). Missed alarm: none; a canary
 * nobody overwrites is found with certainty.
 */
#ifndef KVS_PIPELINE_CANARY_H
#define KVS_PIPELINE_CANARY_H

#include <stddef.h>
#include <stdint.h>

#include "pinned/pool.h"
#include "pipeline/geometry.h"

#define KVS_CANARY_LEN 16 /* bytes; a shorter item uses all it has */
#define KVS_CANARY_AUX UINT32_MAX /* as a buffer: a rank's aux block */

/* A room's own; never sent, shown or used for another room. */
struct kvs_canary_secret {
	uint64_t key[2];
};

/**
 * struct kvs_canary_missing - an item that did not arrive
 * @buffer: index in the layout, or KVS_CANARY_AUX
 * @item: page of the request; item of a fixed-count buffer; rank of an aux
 *        block
 */
struct kvs_canary_missing {
	uint32_t buffer;
	uint32_t item;
};

/**
 * kvs_canary_secret_init() - draw a secret
 * Return: 0; as kvs_random_fill().
 */
int kvs_canary_secret_init(struct kvs_canary_secret *ret);

/**
 * kvs_canary_write() - before the room's first grant is told to anybody
 * @x: the room's extents, GRANTED; of a phantom pool: nothing to write
 * @g: what lies in them
 * @s: the room's secret
 *
 * Context: the pool's owner thread; does not block, but touches a cache line
 * of every item. kvs_canary_write_extent() does a part.
 */
void kvs_canary_write(const struct kvs_extents *x, const struct kvs_geometry *g,
		      const struct kvs_canary_secret *s);

/**
 * kvs_canary_scan() - after the room's last grant was closed with proof
 * @ret_missing: the first item, by extent, by buffer, by item, whose canary
 *               is still there; written only with -ENODATA
 *
 * Context: as kvs_canary_write(); nobody may be writing any more.
 * Return: 0 all gone; -ENODATA.
 */
int kvs_canary_scan(const struct kvs_extents *x, const struct kvs_geometry *g,
		    const struct kvs_canary_secret *s,
		    struct kvs_canary_missing *ret_missing);

/* The same for extent @e alone, which lies at @base; NULL: phantom. */
void kvs_canary_write_extent(void *base, const struct kvs_geometry *g,
			     uint32_t e, const struct kvs_canary_secret *s);
int kvs_canary_scan_extent(const void *base, const struct kvs_geometry *g,
			   uint32_t e, const struct kvs_canary_secret *s,
			   struct kvs_canary_missing *ret_missing);

/* "k layer 3 page 17", "mamba layer 3 item 0", "aux block of rank 2" */
void kvs_canary_describe(const struct kvs_geometry *g,
			 const struct kvs_canary_missing *m, char *buf,
			 size_t len);

/**
 * kvs_canary_false_alarm() - how likely a room that arrived looks as if not
 *
 * The sum over its items, so an upper bound of the probability; over 1 where
 * many items of a byte or two make it near certain. Use the digest instead
 * where this is too high.
 */
double kvs_canary_false_alarm(const struct kvs_geometry *g);

/**
 * struct kvs_canary_cost - one measurement, in CPU time of the thread
 * @items: canaries
 * @bytes: of the room; divide by them for a cost per GiB
 * @write_ns: writing them all
 * @scan_ns: looking at them all, none of them being there
 */
struct kvs_canary_cost {
	uint64_t items;
	uint64_t bytes;
	uint64_t write_ns;
	uint64_t scan_ns;
};

/**
 * kvs_canary_bench() - measure one room in memory of its own
 * @bytes: about how many the room has
 * @layers: buffers, one a layer
 * @item_len: bytes of a page in each
 * @ret: one run; repeat and take medians
 *
 * Return: 0; -EINVAL; -E2BIG not even one page, or more extents than a room
 * has; -ENOMEM.
 */
int kvs_canary_bench(uint64_t bytes, uint32_t layers, uint32_t item_len,
		     struct kvs_canary_cost *ret);

#endif /* KVS_PIPELINE_CANARY_H */
