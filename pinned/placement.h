/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: placement
 *
 * Where pages really are, by move_pages(2) as a query. A policy call that
 * returned 0 proves nothing (a recorded topology binds nothing, a preferred
 * node may have been full): the answer per page does.
 */
#ifndef KVS_PINNED_PLACEMENT_H
#define KVS_PINNED_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "pinned/sysfs.h"

/**
 * struct kvs_placement - pages found
 * @checked: pages asked about
 * @absent: of these, not present or not known to the kernel
 * @per_node: of these, on each node
 */
struct kvs_placement {
	uint64_t checked;
	uint64_t absent;
	uint64_t per_node[KVS_MAX_NODES];
};

/**
 * kvs_placement_query() - count pages per node
 * @base: start, aligned to @page_size
 * @len: bytes, a multiple of @page_size
 * @page_size: bytes
 * @max_pages: ask about that many pages, spread evenly, first and last
 *	included; 0 for all
 * @ret: counts
 *
 * Context: blocks for about 0.1 us a page.
 * Return: 0; -EINVAL; -EPERM or -ENOSYS where a sandbox forbids the call.
 */
int kvs_placement_query(const void *base, uint64_t len, uint64_t page_size,
			uint64_t max_pages, struct kvs_placement *ret);

/**
 * kvs_placement_verify() - are they where they should be?
 * @base: start
 * @len: bytes
 * @page_size: bytes
 * @node: wanted node
 * @strict: every page asked about must be there
 * @max_pages: as above
 * @ret: counts; also written with -ENXIO
 *
 * Return: 0; -ENXIO when @strict and a page is elsewhere or absent; as above.
 */
int kvs_placement_verify(const void *base, uint64_t len, uint64_t page_size,
			 int node, bool strict, uint64_t max_pages,
			 struct kvs_placement *ret);

#endif /* KVS_PINNED_PLACEMENT_H */
