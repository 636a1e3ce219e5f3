/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: rng
 *
 * Seeded pseudo-random numbers for tests, fault plans and generators
 * (xoshiro256**, seeded by splitmix64; Blackman and Vigna, public domain).
 * Never for secrets: those come from getrandom(2).
 */
#ifndef KVS_LIB_RNG_H
#define KVS_LIB_RNG_H

#include <stdint.h>

struct kvs_rng {
	uint64_t s[4];
};

void kvs_rng_init(struct kvs_rng *r, uint64_t seed);
uint64_t kvs_rng_next(struct kvs_rng *r);
/* Uniform in [0, n); n > 0; no modulo bias. */
uint64_t kvs_rng_below(struct kvs_rng *r, uint64_t n);
/* Uniform in [0, 1). */
double kvs_rng_double(struct kvs_rng *r);

/* One step of splitmix64's finaliser: a good 64-bit mix for hashing. */
static inline uint64_t kvs_mix64(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ULL;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebULL;
	x ^= x >> 31;
	return x;
}

#endif /* KVS_LIB_RNG_H */
