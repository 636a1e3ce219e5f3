/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: random
 *
 * Unpredictable bytes, for identities and secrets: getrandom(2). A simulation
 * puts its own source in their place, so that its seed decides everything.
 * Where numbers need not be unpredictable there is lib/rng.h.
 */
#ifndef KVS_LIB_RANDOM_H
#define KVS_LIB_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/**
 * kvs_random_fill() - @len unpredictable bytes
 * Return: 0; -ENOSYS and others of getrandom(2).
 */
int kvs_random_fill(void *buf, size_t len);

/* A number that is not 0. Return: as kvs_random_fill(). */
int kvs_random_id(uint64_t *ret);

/**
 * kvs_random_use() - another source, for this process
 * @fill: returns 0 or -errno; NULL: getrandom(2) again
 * @arg: for @fill
 *
 * Context: while nothing else in the process draws.
 */
void kvs_random_use(int (*fill)(void *arg, void *buf, size_t len), void *arg);

#endif /* KVS_LIB_RANDOM_H */
