/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/assert.h"
#include "lib/rng.h"

static uint64_t kvs_rotl(uint64_t x, unsigned int k)
{
	return (x << k) | (x >> (64 - k));
}

void kvs_rng_init(struct kvs_rng *r, uint64_t seed)
{
	unsigned int i;

	/* never all zero: the four inputs differ and the mix is a bijection */
	for (i = 0; i < KVS_ARRAY_SIZE(r->s); i++) {
		seed += 0x9e3779b97f4a7c15ULL;
		r->s[i] = kvs_mix64(seed);
	}
}

uint64_t kvs_rng_next(struct kvs_rng *r)
{
	uint64_t *s = r->s;
	uint64_t ret = kvs_rotl(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = kvs_rotl(s[3], 45);
	return ret;
}

uint64_t kvs_rng_below(struct kvs_rng *r, uint64_t n)
{
	uint64_t skip;
	uint64_t x;

	KVS_ASSERT(n);
	/* 2^64 mod n values at the bottom would make the rest uneven */
	skip = (0 - n) % n;
	do {
		x = kvs_rng_next(r);
	} while (x < skip);
	return x % n;
}

double kvs_rng_double(struct kvs_rng *r)
{
	/* 53 bits: every value is exact and 1.0 cannot come out */
	return (double)(kvs_rng_next(r) >> 11) * 0x1p-53;
}
