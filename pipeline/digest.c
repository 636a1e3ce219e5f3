/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <libdeflate.h>
#include <pthread.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/crc32c.h"
#include "pipeline/digest.h"

/* Bits reversed: bit 31 is x^0, as CRC-32C has its bytes. */
#define CRC32C_POLY 0x82f63b78u
#define CRC32C_ONE 0x80000000u
#define ADLER_BASE 65521u

#define KVS_NAME_(n, v, s) [v] = s,
static const char *const kind_names[] = { KVS_DIGEST_KINDS(KVS_NAME_) };
#undef KVS_NAME_
static_assert(KVS_ARRAY_SIZE(kind_names) == KVS_DIGEST_KIND_MAX, "every kind");

/* crc_power[j][d] is x^(8 * d * 256^j): a move is a product of up to 8. */
static uint32_t crc_power[8][256];
static pthread_once_t crc_power_once = PTHREAD_ONCE_INIT;

/* Product of two polynomials mod P. */
static uint32_t crc_mul(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	while (a) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = b >> 1 ^ (CRC32C_POLY & -(b & 1));
	}
	return product;
}

static void crc_power_fill(void)
{
	uint32_t step = CRC32C_ONE >> 8; /* x^8 */
	size_t j, d;

	for (j = 0; j < KVS_ARRAY_SIZE(crc_power); j++) {
		crc_power[j][0] = CRC32C_ONE;
		for (d = 1; d < KVS_ARRAY_SIZE(crc_power[j]); d++)
			crc_power[j][d] = crc_mul(crc_power[j][d - 1], step);
		step = crc_mul(crc_power[j][255], step);
	}
}

/* @crc * x^(8 * @after) mod P */
static uint32_t crc_move(uint32_t crc, uint64_t after)
{
	size_t j;

	for (j = 0; after && crc; j++, after >>= 8) {
		if (after & 255)
			crc = crc_mul(crc, crc_power[j][after & 255]);
	}
	return crc;
}

static uint32_t adler_pack(uint64_t a, uint64_t b)
{
	return (uint32_t)(b % ADLER_BASE << 16 | a % ADLER_BASE);
}

static uint32_t adler_add(uint32_t x, uint32_t y)
{
	return adler_pack((uint64_t)(x & 0xffff) + (y & 0xffff),
			  (uint64_t)(x >> 16) + (y >> 16));
}

static uint32_t adler_move(uint32_t adler, uint64_t after)
{
	uint64_t a = adler & 0xffff;

	return adler_pack(a, (adler >> 16) + a * (after % ADLER_BASE));
}

/* All pieces, each at its place. */
static uint32_t digest_sum(const struct kvs_digest *d)
{
	uint64_t after = d->total - d->run_end;

	switch (d->kind) {
	case KVS_DIGEST_CRC32C:
		return d->sum ^ crc_move(d->run, after);
	case KVS_DIGEST_ADLER32:
		return adler_add(d->sum, adler_move(d->run, after));
	case KVS_DIGEST_NONE:
	case KVS_DIGEST_KIND_MAX:
		break;
	}
	return 0;
}

void kvs_digest_init(struct kvs_digest *d, enum kvs_digest_kind kind,
		     uint64_t total)
{
	KVS_ASSERT(kind < KVS_DIGEST_KIND_MAX);
	if (kind == KVS_DIGEST_CRC32C)
		KVS_ASSERT(!pthread_once(&crc_power_once, crc_power_fill));
	memset(d, 0, sizeof(*d));
	d->kind = kind;
	d->total = total;
}

int kvs_digest_add(struct kvs_digest *d, uint64_t at, const void *bytes,
		   size_t len)
{
	if (at > d->total || len > d->total - at)
		return -ERANGE;
	if (!len)
		return 0;
	if (at != d->run_end) {
		d->sum = digest_sum(d);
		d->run = 0;
	}
	d->run_end = at + len;
	d->bytes += len;
	/* both sums start at 0 here, not at ~0 and 1: only so are they linear;
	 * kvs_digest_value() adds what that leaves out */
	switch (d->kind) {
	case KVS_DIGEST_CRC32C:
		d->run = kvs_crc32c_raw(d->run, bytes, len);
		break;
	case KVS_DIGEST_ADLER32:
		d->run = libdeflate_adler32(d->run, bytes, len);
		break;
	case KVS_DIGEST_NONE:
	case KVS_DIGEST_KIND_MAX:
		break;
	}
	return 0;
}

int kvs_digest_combine(struct kvs_digest *d, const struct kvs_digest *other)
{
	if (d->kind != other->kind || d->total != other->total)
		return -EINVAL;
	if (d->bytes > d->total || other->bytes > d->total - d->bytes)
		return -ERANGE;
	if (d->kind == KVS_DIGEST_CRC32C)
		d->sum ^= digest_sum(other);
	else if (d->kind == KVS_DIGEST_ADLER32)
		d->sum = adler_add(d->sum, digest_sum(other));
	d->bytes += other->bytes;
	return 0;
}

uint32_t kvs_digest_value(const struct kvs_digest *d)
{
	uint32_t sum = digest_sum(d);

	switch (d->kind) {
	case KVS_DIGEST_CRC32C:
		return ~(sum ^ crc_move(0xffffffff, d->total));
	case KVS_DIGEST_ADLER32:
		return adler_add(sum, adler_pack(1, d->total));
	case KVS_DIGEST_NONE:
	case KVS_DIGEST_KIND_MAX:
		break;
	}
	return 0;
}

const char *kvs_digest_kind_name(unsigned int kind)
{
	return kind < KVS_DIGEST_KIND_MAX ? kind_names[kind] : "?";
}

int kvs_digest_kind_parse(const char *name, enum kvs_digest_kind *ret_kind)
{
	unsigned int kind;

	for (kind = 0; kind < KVS_DIGEST_KIND_MAX; kind++) {
		if (!strcmp(name, kind_names[kind])) {
			*ret_kind = (enum kvs_digest_kind)kind;
			return 0;
		}
	}
	return -EINVAL;
}
