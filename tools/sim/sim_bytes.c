/* SPDX-License-Identifier: Apache-2.0 */
/* What each byte of an attempt must be: a number of its own for every eight
 * bytes of every item, so that no two attempts, ranks, buffers or items agree
 * anywhere. */
#include <string.h>

#include "tools/sim/sim.h"

static uint64_t key_of(unsigned int attempt, unsigned int rank,
		       unsigned int kind, unsigned int layer, uint32_t item)
{
	return kvs_mix64((uint64_t)(attempt + 1) << 48 | (uint64_t)rank << 40 |
			 (uint64_t)kind << 32 | (uint64_t)layer << 24 | item);
}

static uint64_t word_of(uint64_t key, uint64_t i)
{
	return (key ^ i * 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
}

void sim_bytes(unsigned char *p, uint64_t len, unsigned int attempt,
	       unsigned int rank, unsigned int kind, unsigned int layer,
	       uint32_t item)
{
	uint64_t key = key_of(attempt, rank, kind, layer, item);

	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t v = word_of(key, i);

		memcpy(p + i, &v, len - i < 8 ? len - i : 8);
	}
}

int64_t sim_bytes_differ(const unsigned char *p, uint64_t len,
			 unsigned int attempt, unsigned int rank,
			 unsigned int kind, unsigned int layer, uint32_t item)
{
	uint64_t key = key_of(attempt, rank, kind, layer, item);

	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t v = word_of(key, i);

		if (memcmp(p + i, &v, len - i < 8 ? len - i : 8) != 0)
			return (int64_t)i;
	}
	return -1;
}

/* Attempts are fewer. */
#define PROMPT 256u

static unsigned int owner_of(const struct sim_attempt *a, unsigned int layer)
{
	for (unsigned int r = 0; r < a->n_ranks; r++)
		if (layer >= a->slice[r].first_layer &&
		    layer - a->slice[r].first_layer < a->slice[r].n_layers)
			return r;
	return 0;
}

/* What attempts have in common is no rank's: they may be cut otherwise. */
static void source_of(const struct sim_attempt *a,
		      const struct kvs_layer_buffer *lb, uint32_t item,
		      unsigned int *ret_attempt, unsigned int *ret_rank)
{
	bool common = !lb->items && item < a->shared;

	*ret_attempt = common ? PROMPT + a->prompt : a->nr;
	*ret_rank = common ? 0 : owner_of(a, lb->layer);
}

void sim_item(const struct sim_attempt *a, uint32_t b, uint32_t item,
	      unsigned char *p)
{
	const struct kvs_layer_buffer *lb = &a->w->lb[b];
	unsigned int attempt, rank;

	source_of(a, lb, item, &attempt, &rank);
	sim_bytes(p, lb->item_len, attempt, rank, lb->kind, lb->layer, item);
}

int64_t sim_item_differ(const struct sim_attempt *a, uint32_t b, uint32_t item,
			const unsigned char *p)
{
	const struct kvs_layer_buffer *lb = &a->w->lb[b];
	unsigned int attempt, rank;

	source_of(a, lb, item, &attempt, &rank);
	return sim_bytes_differ(p, lb->item_len, attempt, rank, lb->kind,
				lb->layer, item);
}
