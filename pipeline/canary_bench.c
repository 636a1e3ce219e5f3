/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/clock.h"
#include "pinned/arena.h"
#include "pipeline/canary.h"

#define EXTENT_TOKENS 2048

/* One buffer a layer, one token a page: the item is all that matters. */
static int bench_layout(struct kvs_layout *l, uint32_t layers,
			uint32_t item_len)
{
	uint32_t i;

	memset(l, 0, sizeof(*l));
	l->size = sizeof(*l);
	l->page_size = 1;
	l->dtype = KVS_DTYPE_BF16;
	l->n_buffers = layers;
	l->buffers = calloc(layers, sizeof(*l->buffers));
	if (!l->buffers)
		return -ENOMEM;
	for (i = 0; i < layers; i++) {
		l->buffers[i].kind = KVS_BUFFER_KV;
		l->buffers[i].layer = (uint16_t)i;
		l->buffers[i].item_len = item_len;
	}
	return 0;
}

/* Extents one behind the other, as a pool that is empty gives them. */
static int bench_room(const struct kvs_geometry *g, struct kvs_canary_cost *ret)
{
	/* two secrets: to the scan all canaries of the first are gone */
	static const struct kvs_canary_secret wrote = { { 1, 2 } };
	static const struct kvs_canary_secret seeks = { { 3, 4 } };
	uint64_t total = kvs_geometry_total(g), start, mid;
	struct kvs_canary_missing missing;
	unsigned char *map, *p;
	uint32_t e;
	int err = 0;

	map = mmap(NULL, total, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (map == MAP_FAILED)
		return -errno;
	start = kvs_clock_thread_cpu();
	for (e = 0, p = map; e < g->n_extents; p += kvs_geometry_len(g, e++))
		kvs_canary_write_extent(p, g, e, &wrote);
	mid = kvs_clock_thread_cpu();
	for (e = 0, p = map; !err && e < g->n_extents;
	     p += kvs_geometry_len(g, e++))
		err = kvs_canary_scan_extent(p, g, e, &seeks, &missing);
	ret->scan_ns = kvs_clock_thread_cpu() - mid;
	ret->write_ns = mid - start;
	ret->bytes = total;
	ret->items = (uint64_t)g->pages * g->layout->n_buffers;
	munmap(map, total);
	return err;
}

int kvs_canary_bench(uint64_t bytes, uint32_t layers, uint32_t item_len,
		     struct kvs_canary_cost *ret)
{
	struct kvs_canary_cost cost;
	struct kvs_geometry g;
	struct kvs_layout l;
	uint64_t tokens;
	uint32_t extent;
	int err;

	/* a shorter item could look like what is sought */
	if (!layers || layers > KVS_LAYOUT_BUFFERS_MAX ||
	    item_len < KVS_CANARY_LEN || item_len > KVS_ITEM_LEN_MAX)
		return -EINVAL;
	err = bench_layout(&l, layers, item_len);
	if (err)
		return err;
	tokens = bytes / ((uint64_t)layers * item_len);
	extent = kvs_geometry_extent_tokens(&l, EXTENT_TOKENS,
					    KVS_ARENA_SEGMENT_MAX);
	err = -E2BIG;
	if (!tokens || !extent)
		goto out_layout;
	err = kvs_geometry_init(&g, &l, tokens, extent, KVS_ARENA_SEGMENT_MAX,
				1, 0);
	if (err)
		goto out_layout;
	err = bench_room(&g, &cost);
	if (!err)
		*ret = cost;
	kvs_geometry_fini(&g);
out_layout:
	free(l.buffers);
	return err;
}
