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
