/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: le
 *
 * Little-endian fields of wire and on-disk structs as types of their own, so
 * that the compiler refuses to mix them with host integers.
 */
#ifndef KVS_LIB_LE_H
#define KVS_LIB_LE_H

#include <endian.h>
#include <stdint.h>

typedef struct {
	uint16_t v;
} kvs_le16;
typedef struct {
	uint32_t v;
} kvs_le32;
typedef struct {
	uint64_t v;
} kvs_le64;

static inline uint16_t kvs_get16(kvs_le16 x)
{
	return le16toh(x.v);
}

static inline uint32_t kvs_get32(kvs_le32 x)
{
	return le32toh(x.v);
}

static inline uint64_t kvs_get64(kvs_le64 x)
{
	return le64toh(x.v);
}

static inline kvs_le16 kvs_put16(uint16_t v)
{
	return (kvs_le16){ htole16(v) };
}

static inline kvs_le32 kvs_put32(uint32_t v)
{
	return (kvs_le32){ htole32(v) };
}

static inline kvs_le64 kvs_put64(uint64_t v)
{
	return (kvs_le64){ htole64(v) };
}

#endif /* KVS_LIB_LE_H */
