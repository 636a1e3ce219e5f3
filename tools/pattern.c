/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "lib/rng.h"
#include "tools/pattern.h"

#define KVS_BLOCK 64u /* bytes that share a key */
#define KVS_GOLDEN 0x9e3779b97f4a7c15ULL
#define KVS_ODD 0xd6e8feb86659fd93ULL

/* Two words at a time: every 64-bit machine has that, no dispatch needed. */
typedef uint64_t kvs_pair __attribute__((vector_size(16)));

/* The words of a block differ in every byte, so that no shift passes. */
static const kvs_pair kvs_word[KVS_BLOCK / sizeof(kvs_pair)] = {
	{ 0x9e3779b97f4a7c15ULL, 0xc2b2ae3d27d4eb4fULL },
	{ 0x165667b19e3779f9ULL, 0x85ebca77c2b2ae63ULL },
	{ 0x27d4eb2f165667c5ULL, 0xff51afd7ed558ccdULL },
	{ 0xc4ceb9fe1a85ec53ULL, 0x2545f4914f6cdd1dULL },
};

uint64_t kvs_pattern_seed(uint64_t salt, uint64_t room, unsigned int kind,
			  unsigned int layer)
{
	uint64_t buffer = (uint64_t)kind << 32 | layer;
	uint64_t x;

	x = kvs_mix64(salt + KVS_GOLDEN);
	x = kvs_mix64((x ^ room) + KVS_GOLDEN);
	return kvs_mix64((x ^ buffer) + KVS_GOLDEN);
}

static inline kvs_pair kvs_block_key(uint64_t seed, uint64_t block)
{
	uint64_t k = kvs_mix64(seed + (block + 1) * KVS_GOLDEN);

	return (kvs_pair){ k, k * KVS_ODD };
}

static inline void kvs_block_fill(uint8_t *dst, uint64_t seed, uint64_t block)
{
	kvs_pair key = kvs_block_key(seed, block);
	kvs_pair v;
	size_t i;

#pragma GCC unroll 4
	for (i = 0; i < KVS_BLOCK / sizeof(v); i++) {
		v = key ^ kvs_word[i];
		memcpy(dst + i * sizeof(v), &v, sizeof(v));
	}
}

/* Zero when equal. */
static inline uint64_t kvs_block_diff(const uint8_t *p, uint64_t seed,
				      uint64_t block)
{
	kvs_pair key = kvs_block_key(seed, block);
	kvs_pair diff = { 0, 0 };
	kvs_pair v;
	size_t i;

#pragma GCC unroll 4
	for (i = 0; i < KVS_BLOCK / sizeof(v); i++) {
		memcpy(&v, p + i * sizeof(v), sizeof(v));
		diff |= v ^ key ^ kvs_word[i];
	}
	return diff[0] | diff[1];
}

/* Bytes from @off to the end of its block, at most @len. */
static size_t kvs_block_rest(size_t len, uint64_t off)
{
	size_t rest = KVS_BLOCK - (size_t)(off % KVS_BLOCK);

	return rest < len ? rest : len;
}

void kvs_pattern_fill(void *dst, size_t len, uint64_t seed, uint64_t off)
{
	uint8_t tmp[KVS_BLOCK];
	uint8_t *p = dst;
	size_t n;

	while (len) {
		if (off % KVS_BLOCK == 0 && len >= KVS_BLOCK) {
			uint64_t block = off / KVS_BLOCK;
			size_t blocks = len / KVS_BLOCK;
			size_t i;

			for (i = 0; i < blocks; i++)
				kvs_block_fill(p + i * KVS_BLOCK, seed,
					       block + i);
			n = blocks * KVS_BLOCK;
		} else {
			n = kvs_block_rest(len, off);
			kvs_block_fill(tmp, seed, off / KVS_BLOCK);
			memcpy(p, tmp + off % KVS_BLOCK, n);
		}
		p += n;
		off += n;
		len -= n;
	}
}

struct kvs_found {
	size_t first;
	size_t bad; /* 0: none yet */
};

/* @n bytes of one block, one by one. */
static void kvs_look_closely(const uint8_t *p, size_t at, size_t n,
			     uint64_t seed, uint64_t off, struct kvs_found *f)
{
	uint8_t want[KVS_BLOCK];
	size_t i;

	kvs_block_fill(want, seed, off / KVS_BLOCK);
	if (!memcmp(p + at, want + off % KVS_BLOCK, n))
		return;
	for (i = 0; i < n; i++) {
		if (p[at + i] == want[off % KVS_BLOCK + i])
			continue;
		if (!f->bad++)
			f->first = at + i;
	}
}

/* Whole blocks that are right, from the start of @p. */
static size_t kvs_good_blocks(const uint8_t *p, size_t blocks, uint64_t seed,
			      uint64_t block)
{
	size_t i = 0;

	/* four at a time: one branch for 256 bytes */
	for (; i + 4 <= blocks; i += 4) {
		const uint8_t *q = p + i * KVS_BLOCK;

		if (kvs_block_diff(q, seed, block + i) |
		    kvs_block_diff(q + KVS_BLOCK, seed, block + i + 1) |
		    kvs_block_diff(q + 2 * KVS_BLOCK, seed, block + i + 2) |
		    kvs_block_diff(q + 3 * KVS_BLOCK, seed, block + i + 3))
			break;
	}
	for (; i < blocks; i++)
		if (kvs_block_diff(p + i * KVS_BLOCK, seed, block + i))
			break;
	return i;
}

int kvs_pattern_check(const void *p, size_t len, uint64_t seed, uint64_t off,
		      size_t *ret_first_bad, size_t *ret_bad)
{
	struct kvs_found f = { 0 };
	const uint8_t *b = p;
	size_t at = 0;
	size_t n;

	while (at < len && (!f.bad || ret_bad)) {
		if (off % KVS_BLOCK == 0) {
			n = kvs_good_blocks(b + at, (len - at) / KVS_BLOCK,
					    seed, off / KVS_BLOCK) *
			    KVS_BLOCK;
			at += n;
			off += n;
			if (at == len)
				break;
		}
		n = kvs_block_rest(len - at, off);
		kvs_look_closely(b, at, n, seed, off, &f);
		at += n;
		off += n;
	}
	if (!f.bad)
		return 0;
	if (ret_first_bad)
		*ret_first_bad = f.first;
	if (ret_bad)
		*ret_bad = f.bad;
	return -EBADMSG;
}
