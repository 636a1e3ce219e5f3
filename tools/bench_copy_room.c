/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench_copy_room.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT (1ULL << 30)

void kvs_copy_room_fini(struct kvs_copy_room *m)
{
	free(m->runs);
	free(m->pages);
	kvs_geometry_fini(&m->g);
	free(m->l);
}

int kvs_copy_room_plan(struct kvs_copy_room *m, const char *model,
		       const struct kvs_preset_opts *o, uint64_t tokens,
		       char *err, size_t errlen)
{
	uint32_t extent;
	int r = kvs_preset_layout(model, o, &m->l, err, errlen);

	if (r)
		return r;
	extent = kvs_geometry_extent_tokens(m->l, 2048, SEGMENT);
	if (!extent) {
		snprintf(err, errlen,
			 "model %s: a page of %u tokens is larger than 1G",
			 model, m->l->page_size);
		return -EINVAL;
	}
	r = kvs_geometry_init(&m->g, m->l, tokens, extent, SEGMENT, 1, 0);
	if (r == -E2BIG)
		snprintf(err, errlen,
			 "model %s, page size %u: a room has up to %" PRIu64
			 " tokens",
			 model, m->l->page_size,
			 (uint64_t)extent * KVS_EXTENTS_MAX);
	else if (r)
		snprintf(err, errlen, "model %s: %s", model, strerror(-r));
	return r;
}

int kvs_copy_room_init(struct kvs_copy_room *m, const char *model,
		       const struct kvs_preset_opts *o, uint64_t tokens)
{
	char err[KVS_PRESET_ERR];
	int r = kvs_copy_room_plan(m, model, o, tokens, err, sizeof(err));

	if (r) {
		fprintf(stderr, "%s\n", err);
		return r;
	}
	r = kvs_copy_bench_pages(m->g.pages, &m->pages);
	if (r)
		return r;
	m->runs = calloc((size_t)m->l->n_buffers * m->g.n_extents,
			 sizeof(*m->runs));
	if (!m->runs)
		return -ENOMEM;
	for (uint32_t x = 0; x < m->g.n_extents; x++)
		m->host_len += kvs_geometry_len(&m->g, x);
	for (uint32_t i = 0; i < m->l->n_buffers; i++)
		m->dev_len += (uint64_t)m->l->buffers[i].item_len *
			      (KVS_BENCH_DEVICE_PAGES((uint64_t)m->g.pages) +
			       m->l->buffers[i].items);
	return 0;
}

/* Layer buffer by layer buffer, as an engine's commit does. */
size_t kvs_copy_room_runs(struct kvs_copy_room *m,
			  const struct kvs_copy_bench *b)
{
	char *dev = b->dev;
	size_t n = 0;

	for (uint32_t i = 0; i < m->l->n_buffers; i++) {
		const struct kvs_layer_buffer *p = &m->l->buffers[i];
		bool paged = kvs_buffer_kind_is_paged(p->kind);
		uint64_t at = 0, off, len;

		for (uint32_t x = 0; x < m->g.n_extents; x++) {
			if (!kvs_geometry_run(&m->g, x, i, &off, &len) && len)
				m->runs[n++] = (struct kvs_copy_run){
					.host = b->host + at + off,
					.dev = dev,
					.item_len = p->item_len,
					.pages =
						paged ? m->pages +
								(size_t)x *
									m->g.extent_pages
						      : NULL,
					.n = len / p->item_len,
				};
			at += kvs_geometry_len(&m->g, x);
		}
		dev += (uint64_t)p->item_len *
		       (KVS_BENCH_DEVICE_PAGES((uint64_t)m->g.pages) +
			p->items);
	}
	return n;
}
