/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/digest_map.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"

/* Bytes of all extents a room can have; LAST.bytes goes no higher. */
#define STREAM_MAX ((uint64_t)KVS_EXTENTS_MAX << 30)
#define NOT_OURS UINT64_MAX

/* One pass over the buffers in the stream's order, of one sort. */
static uint64_t place(struct kvs_digest_map *m, const uint32_t *order,
		      const struct kvs_slice *slice, bool paged, uint64_t at)
{
	uint32_t i;

	for (i = 0; i < m->layout->n_buffers; i++) {
		const struct kvs_layer_buffer *b =
			&m->layout->buffers[order[i]];

		if (kvs_buffer_kind_is_paged(b->kind) != paged ||
		    !kvs_slice_has(slice, m->layout, order[i]))
			continue;
		m->before[order[i]] = at;
		at += b->item_len * (paged ? 1 : kvs_buffer_items(b, m->pages));
	}
	return at;
}

int kvs_digest_map_init(struct kvs_digest_map *m, const struct kvs_layout *l,
			uint64_t tokens, uint32_t extent_tokens,
			const struct kvs_slice *slice, uint32_t aux_len)
{
	uint32_t *order;
	uint32_t i;
	int err;

	memset(m, 0, sizeof(*m));
	if (!tokens || tokens > KVS_TOKENS_MAX || !extent_tokens ||
	    extent_tokens % l->page_size || aux_len > KVS_AUX_MAX)
		return -EINVAL;
	m->layout = l;
	m->pages = (uint32_t)((tokens + l->page_size - 1) / l->page_size);
	m->extent_pages = extent_tokens / l->page_size;
	m->n_extents = m->pages / m->extent_pages;
	m->n_extents += m->pages % m->extent_pages != 0;
	if (m->n_extents > KVS_EXTENTS_MAX) {
		memset(m, 0, sizeof(*m));
		return -E2BIG;
	}
	m->aux_len = aux_len;
	m->total = aux_len;
	if (!slice->n_layers)
		return 0;
	m->before = calloc(l->n_buffers, sizeof(*m->before));
	order = calloc(l->n_buffers, sizeof(*order));
	if (!m->before || !order) {
		err = -ENOMEM;
		goto out_free;
	}
	err = kvs_layout_order(l, order);
	if (err)
		goto out_free;
	for (i = 0; i < l->n_buffers; i++)
		m->before[i] = NOT_OURS;
	m->page_bytes = place(m, order, slice, true, 0);
	if (m->page_bytes > STREAM_MAX / m->pages) {
		err = -E2BIG;
		goto out_free;
	}
	m->total += place(m, order, slice, false, m->pages * m->page_bytes);
	if (m->total > STREAM_MAX) {
		err = -E2BIG;
		goto out_free;
	}
	free(order);
	return 0;

out_free:
	free(order);
	kvs_digest_map_fini(m);
	return err;
}

void kvs_digest_map_fini(struct kvs_digest_map *m)
{
	free(m->before);
	memset(m, 0, sizeof(*m));
}

static uint32_t pages_of(const struct kvs_digest_map *m, uint32_t extent)
{
	uint32_t first = extent * m->extent_pages;

	return m->pages - first < m->extent_pages ? m->pages - first
						  : m->extent_pages;
}

int kvs_digest_map_run(const struct kvs_digest_map *m, uint32_t extent,
		       uint32_t b, uint64_t offset, uint64_t len,
		       uint64_t *ret_at)
{
	const struct kvs_layer_buffer *buf;
	uint64_t at, pages, run;

	if (!m->before || extent >= m->n_extents || b >= m->layout->n_buffers ||
	    m->before[b] == NOT_OURS)
		return -ERANGE;
	buf = &m->layout->buffers[b];
	if (kvs_buffer_kind_is_paged(buf->kind)) {
		pages = pages_of(m, extent);
		run = pages * buf->item_len;
		at = (uint64_t)extent * m->extent_pages * m->page_bytes +
		     pages * m->before[b];
	} else {
		if (extent != m->n_extents - 1)
			return -ERANGE;
		run = kvs_buffer_items(buf, m->pages) * buf->item_len;
		at = m->before[b];
	}
	if (offset > run || len > run - offset)
		return -ERANGE;
	*ret_at = at + offset;
	return 0;
}

int kvs_digest_map_aux(const struct kvs_digest_map *m, uint64_t offset,
		       uint64_t len, uint64_t *ret_at)
{
	if (offset > m->aux_len || len > m->aux_len - offset)
		return -ERANGE;
	*ret_at = m->total - m->aux_len + offset;
	return 0;
}
