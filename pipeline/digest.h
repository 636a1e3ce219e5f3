/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: digest
 *
 * The optional checksum of one rank's bytes of a room. The bytes form one
 * stream (kvstage-wire(7), section DIGEST; pipeline/digest_map.h says where
 * a byte lies in it), its length is known from the start, and pieces of it
 * are added in any order while they are hot. The state has a fixed size:
 * both sums are linear, so a piece counts by itself, moved to its place by
 * the number of bytes that come after it.
 *
 *   CRC-32C   sum ^= crc(piece) * x^(8 * bytes_after) mod P
 *   Adler-32  A += a(piece); B += b(piece) + a(piece) * bytes_after
 *
 * Pieces that follow one another cost nothing but the arithmetic over their
 * bytes: moving waits until the next piece starts elsewhere (about 0.1 us for
 * CRC-32C).
 *
 * A byte that was never added counts as 0. Whether each came, and only once,
 * is for others to know (pipeline/ranges.h); @bytes only tells how many.
 */
#ifndef KVS_PIPELINE_DIGEST_H
#define KVS_PIPELINE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME, value, string): value is on the wire */
#define KVS_DIGEST_KINDS(X)    \
	X(NONE, 0, "none")     \
	X(CRC32C, 1, "crc32c") \
	X(ADLER32, 2, "adler32")

#define KVS_ENUM_(n, v, s) KVS_DIGEST_##n = (v),
enum kvs_digest_kind { KVS_DIGEST_KINDS(KVS_ENUM_) KVS_DIGEST_KIND_MAX };
#undef KVS_ENUM_

/**
 * struct kvs_digest - a stream being summed up; no pointers, copy freely
 * @kind: what is computed
 * @total: bytes of the whole stream
 * @bytes: bytes added so far
 * @run_end: where the last piece ended, bytes from the stream's start
 * @run: sum of the pieces that end there, not yet at its place
 * @sum: sum of the others
 */
struct kvs_digest {
	enum kvs_digest_kind kind;
	uint64_t total;
	uint64_t bytes;
	uint64_t run_end;
	uint32_t run;
	uint32_t sum;
};

/**
 * kvs_digest_init() - begin a stream
 * @d: written
 * @kind: below KVS_DIGEST_KIND_MAX; NONE: adding computes nothing
 * @total: bytes of the whole stream, may be 0
 */
void kvs_digest_init(struct kvs_digest *d, enum kvs_digest_kind kind,
		     uint64_t total);

/**
 * kvs_digest_add() - add a piece
 * @d: digest
 * @at: bytes from the stream's start to the piece
 * @bytes: the piece
 * @len: its length, may be 0
 *
 * Context: one thread at a time for a digest; does not block.
 * Return: 0 or -ERANGE (not inside the stream; nothing was added).
 */
int kvs_digest_add(struct kvs_digest *d, uint64_t at, const void *bytes,
		   size_t len);

/**
 * kvs_digest_combine() - add what another digest has of the same stream
 * @d: digest
 * @other: has other bytes of the same stream (made on another thread)
 *
 * Return: 0; -EINVAL another kind or length; -ERANGE more bytes than the
 * stream has, so that some were added to both (@d is as it was).
 */
int kvs_digest_combine(struct kvs_digest *d, const struct kvs_digest *other);

/* The checksum as the wire has it, of what was added; 0 for NONE. */
uint32_t kvs_digest_value(const struct kvs_digest *d);

const char *kvs_digest_kind_name(unsigned int kind); /* "?" if unknown */
/* 0 or -EINVAL for a name that is no kind. */
int kvs_digest_kind_parse(const char *name, enum kvs_digest_kind *ret_kind);

#endif /* KVS_PIPELINE_DIGEST_H */
