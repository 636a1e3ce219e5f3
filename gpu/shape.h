/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: shape
 *
 * Where the bytes of a run lie, plain or shaped (struct kvs_copy_shape): one
 * place for every backend to ask.
 */
#ifndef KVS_GPU_SHAPE_H
#define KVS_GPU_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/device.h"

/* The shape of run @i of a copy; of a plain run, what it amounts to. */
struct kvs_copy_shape kvs_copy_shape_of(const struct kvs_copy *c, size_t i);

/**
 * kvs_copy_reach() - bytes from the first to the end of the last of one side
 * @item: bytes from item to item
 * @items: above 0
 * @row: bytes from row to row
 * @s: rows and row_len
 * @ret: bytes
 * Return: false: more than 64 bits hold.
 */
bool kvs_copy_reach(uint64_t item, uint64_t items, uint64_t row,
		    const struct kvs_copy_shape *s, uint64_t *ret);

/**
 * kvs_copy_locate() - where byte @off of a run is
 * @r: run
 * @s: its shape
 * @off: below r->n * r->item_len
 * @ret_host: its address on the host
 * @ret_dev: on the device
 * Return: bytes from there on that lie together on both sides, at least 1.
 */
uint64_t kvs_copy_locate(const struct kvs_copy_run *r,
			 const struct kvs_copy_shape *s, uint64_t off,
			 char **ret_host, char **ret_dev);

/* The same, rows that follow each other without a gap on both sides being
 * one. The run has items. */
struct kvs_copy_shape kvs_copy_shape_joined(const struct kvs_copy *c, size_t i);

/**
 * kvs_copy_pieces() - pieces of run @i that lie together on both sides
 * @c: copy
 * @i: run
 * @stop: who has more need not be counted any further
 * Return: how many, or a number above @stop; at least 1 if there are items.
 */
uint64_t kvs_copy_pieces(const struct kvs_copy *c, size_t i, uint64_t stop);

/* Page of item @i. */
static inline uint64_t kvs_copy_page(const struct kvs_copy_run *r, uint64_t i)
{
	return r->pages ? r->pages[i] : i;
}

#endif /* KVS_GPU_SHAPE_H */
