/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/placement.h"

#include <errno.h>
#include <numaif.h>
#include <stddef.h>
#include <string.h>

#define BATCH 512U

static int query_batch(void **pages, unsigned int n, struct kvs_placement *ret)
{
	int status[BATCH];
	unsigned int i;

	if (move_pages(0, n, pages, NULL, status, 0) < 0)
		return -errno;
	for (i = 0; i < n; i++) {
		if (status[i] >= 0 && status[i] < KVS_MAX_NODES)
			ret->per_node[status[i]]++;
		else
			ret->absent++;
	}
	ret->checked += n;
	return 0;
}

/* The @i-th of @n pages spread over @total, without overflow. */
static uint64_t spread(uint64_t i, uint64_t n, uint64_t total)
{
	if (n == total || n < 2)
		return i;
	return (uint64_t)((unsigned __int128)i * (total - 1) / (n - 1));
}

int kvs_placement_query(const void *base, uint64_t len, uint64_t page_size,
			uint64_t max_pages, struct kvs_placement *ret)
{
	uint64_t total, n, i;
	void *pages[BATCH];
	unsigned int used = 0;
	int r;

	if (!page_size || !len || len % page_size ||
	    (uintptr_t)base % page_size)
		return -EINVAL;
	total = len / page_size;
	n = max_pages && max_pages < total ? max_pages : total;
	memset(ret, 0, sizeof(*ret));
	for (i = 0; i < n; i++) {
		pages[used++] = (char *)(uintptr_t)base +
				spread(i, n, total) * page_size;
		if (used < BATCH && i + 1 < n)
			continue;
		r = query_batch(pages, used, ret);
		if (r < 0)
			return r;
		used = 0;
	}
	return 0;
}

int kvs_placement_verify(const void *base, uint64_t len, uint64_t page_size,
			 int node, bool strict, uint64_t max_pages,
			 struct kvs_placement *ret)
{
	int r;

	if (node < 0 || node >= KVS_MAX_NODES)
		return -EINVAL;
	r = kvs_placement_query(base, len, page_size, max_pages, ret);
	if (r < 0)
		return r;
	return strict && ret->per_node[node] != ret->checked ? -ENXIO : 0;
}
