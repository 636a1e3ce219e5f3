/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: a history of claims leaves a range set that agrees with a bitmap,
 * byte by byte, in what it accepts, counts and reports. The first byte of an
 * input is the limit of pieces, then each claim is a start and a length.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/ranges.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_SPACE 288 /* start 0..255, length 0..31 */

static uint32_t fuzz_pieces(const bool *map)
{
	uint32_t n = 0;
	int i;

	for (i = 0; i < FUZZ_SPACE; i++)
		n += map[i] && (!i || !map[i - 1]);
	return n;
}

static int fuzz_expect(bool *map, uint32_t max, uint32_t start, uint32_t len)
{
	bool copy[FUZZ_SPACE];
	uint32_t i;

	if (!len)
		return -EINVAL;
	for (i = start; i < start + len; i++) {
		if (map[i])
			return -EEXIST;
	}
	memcpy(copy, map, sizeof(copy));
	memset(copy + start, 1, len);
	if (fuzz_pieces(copy) > max)
		return -E2BIG;
	memcpy(map, copy, sizeof(copy));
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	bool map[FUZZ_SPACE] = { 0 };
	struct kvs_ranges r;
	uint64_t bytes = 0;
	uint32_t hole = 0;
	size_t i;

	if (!size)
		return 0;
	kvs_ranges_init(&r, data[0] % 64);
	for (i = 1; i + 1 < size; i += 2) {
		uint32_t len = data[i + 1] % 32;
		int want = fuzz_expect(map, r.max, data[i], len);

		KVS_ASSERT(kvs_ranges_add(&r, data[i], len) == want);
	}
	for (i = 0; i < FUZZ_SPACE; i++) {
		bytes += map[i];
		KVS_ASSERT(kvs_ranges_covers(&r, i, 1) == map[i]);
	}
	while (hole < FUZZ_SPACE && map[hole])
		hole++;
	KVS_ASSERT(kvs_ranges_first_hole(&r, 0, FUZZ_SPACE) == hole);
	KVS_ASSERT(r.bytes == bytes);
	KVS_ASSERT(r.n == fuzz_pieces(map));
	kvs_ranges_fini(&r);
	return 0;
}
