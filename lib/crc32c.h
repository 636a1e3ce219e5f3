/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: crc32c
 *
 * CRC-32C (Castagnoli), the checksum of pages in memory, on the wire and on
 * disk, by isa-l: about 57 GB/s where bytes are in the cache and the processor
 * can multiply polynomials.
 */
#ifndef KVS_LIB_CRC32C_H
#define KVS_LIB_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/**
 * kvs_crc32c_raw() - go on with a sum, inverting nothing
 * @crc: sum so far
 * @bytes: the next bytes; may be NULL when @len is 0
 * @len: how many, any number
 *
 * Without the inversions the sum is linear: that of 0 goes on from 0.
 * Context: any thread; does not block.
 */
uint32_t kvs_crc32c_raw(uint32_t crc, const void *bytes, size_t len);

/* The standard sum of @bytes: that of "123456789" is 0xe3069283. */
static inline uint32_t kvs_crc32c(const void *bytes, size_t len)
{
	return ~kvs_crc32c_raw(0xffffffff, bytes, len);
}

#endif /* KVS_LIB_CRC32C_H */
