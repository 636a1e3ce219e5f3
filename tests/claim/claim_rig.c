/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/claim/claim_rig.h"

#include <string.h>

static unsigned char pattern(unsigned int seed, uint32_t buffer, uint32_t page)
{
	return (unsigned char)(seed * 31 + page * 5 + buffer + 1);
}

struct kvs_room *claim_room(const struct rig *g, uint64_t generation)
{
	return kvs_u64map_get(&g->w->rooms, generation);
}

unsigned char *claim_at(const struct kvs_room *r, uint32_t buffer,
			uint32_t page)
{
	uint32_t e = page / r->geo.extent_pages;
	uint64_t off, len;

	assert_int_equal(kvs_geometry_run(&r->geo, e, buffer, &off, &len), 0);
	return (unsigned char *)kvs_extent_addr(&r->ext, e) + off +
	       (size_t)(page % r->geo.extent_pages) * CLAIM_ITEM;
}

__attribute__((no_sanitize("address"), noinline)) void
claim_device_write(unsigned char *to, unsigned char v, size_t n)
{
	volatile unsigned char *p = to;

	for (size_t i = 0; i < n; i++)
		p[i] = v;
}

__attribute__((no_sanitize("address"), noinline)) static void
device_read(unsigned char *to, const unsigned char *from, size_t n)
{
	const volatile unsigned char *p = from;

	for (size_t i = 0; i < n; i++)
		to[i] = p[i];
}

void claim_send(struct rig *g, uint64_t room, uint64_t generation,
		unsigned int rank, unsigned int n_ranks, unsigned int first,
		unsigned int n, unsigned int seed)
{
	unsigned int layers = 2 / n_ranks;
	struct kvs_receive rx;
	void *addr;

	for (unsigned int p = first; p < first + n; p++) {
		for (unsigned int b = 0; b < CLAIM_BUFFERS; b++) {
			unsigned int layer = b % 2, kind = b / 2;

			if (layer / layers != rank)
				continue;
			assert_int_equal(rig_begin(g, &rx, room, generation,
						   rank, kind, layer, p, 1,
						   &addr),
					 0);
			assert_non_null(addr);
			memset(addr, pattern(seed, b, p), CLAIM_ITEM);
			kvs_worker_receive_end(g->w, &rx, 0, CLAIM_ITEM);
		}
	}
}

void claim_send_rest(struct rig *g, uint64_t room, uint64_t generation,
		     unsigned int n_ranks, unsigned int first,
		     unsigned int pages, unsigned int seed)
{
	for (unsigned int k = 0; k < n_ranks; k++) {
		claim_send(g, room, generation, k, n_ranks, first,
			   pages - first, seed);
		rig_last(g, room, generation, k,
			 (uint64_t)pages * CLAIM_PAGE / n_ranks);
	}
}

void claim_copy_launch(struct claim_copy *c, const struct kvs_room *r)
{
	memset(c, 0, sizeof(*c));
	c->pages = r->geo.pages;
	assert_true(c->pages <= CLAIM_PAGES_MAX);
	for (unsigned int p = 0; p < c->pages; p++)
		for (unsigned int b = 0; b < CLAIM_BUFFERS; b++)
			c->from[p][b] = claim_at(r, b, p);
}

void claim_copy_run(struct claim_copy *c, unsigned int which, unsigned int of)
{
	for (unsigned int p = which; p < c->pages; p += of)
		for (unsigned int b = 0; b < CLAIM_BUFFERS; b++)
			device_read(c->b[p][b], c->from[p][b], CLAIM_ITEM);
}

uint64_t claim_copy_wrong(const struct claim_copy *c, unsigned int seed)
{
	uint64_t wrong = 0;

	for (unsigned int p = 0; p < c->pages; p++)
		for (unsigned int b = 0; b < CLAIM_BUFFERS; b++)
			for (unsigned int i = 0; i < CLAIM_ITEM; i++)
				wrong += c->b[p][b][i] != pattern(seed, b, p);
	return wrong;
}

void claim_say(struct rig *g, uint64_t session, enum kvs_wire_type type,
	       uint64_t room, uint64_t generation, unsigned int rank, int err)
{
	struct kvs_msg m = {
		.type = type,
		.abort = { .room = room,
			   .generation = generation,
			   .rank = rank,
			   .err = (uint32_t)err },
	};

	kvs_worker_message(g->w, session, &m);
}
