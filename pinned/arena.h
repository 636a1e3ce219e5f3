/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: arena
 *
 * Allocates ranges of an address space it never touches (the bytes may belong
 * to a NIC, a GPU or nobody). Two-level segregated fit with descriptors kept
 * outside the memory (M. Masmano et al., "TLSF", ECRTS 2004): O(1) allocate
 * and free, immediate merging, waste bounded by alignment.
 *
 * The space is cut into segments. No block straddles a segment border, so
 * whatever is registered segment by segment (verbs MR, io_uring fixed buffer,
 * CUDA host registration) holds each extent whole.
 */
#ifndef KVS_PINNED_ARENA_H
#define KVS_PINNED_ARENA_H

#include <stdint.h>

#include "lib/list.h"

#define KVS_ARENA_ALIGN 4096u
#define KVS_ARENA_SEGMENT_MAX (1ULL << 30)

struct kvs_arena; /* opaque */

/* A range handed out; owned by the arena, valid until freed. */
struct kvs_block {
	uint64_t off; /* bytes from the start of the arena */
	uint64_t len; /* bytes, multiple of KVS_ARENA_ALIGN */
};

/**
 * kvs_arena_create() - cover [0, size)
 * @size: bytes, multiple of KVS_ARENA_ALIGN, > 0
 * @segment: bytes, multiple of KVS_ARENA_ALIGN, at most
 *           KVS_ARENA_SEGMENT_MAX; 0 = the maximum
 * @ret: the arena
 * Return: 0, -EINVAL, -ENOMEM.
 */
int kvs_arena_create(uint64_t size, uint64_t segment, struct kvs_arena **ret);
/* Accepts NULL. Asserts that every block was freed. */
void kvs_arena_destroy(struct kvs_arena *a);

/**
 * kvs_arena_alloc() - one range of @len bytes, rounded up to the alignment
 * Return: 0; -E2BIG larger than a segment; -EINVAL for 0; -EAGAIN no free
 * range that large now (one that is less than 1/32 larger than @len may be
 * overlooked when there are many); -ENOMEM for the descriptor.
 */
int kvs_arena_alloc(struct kvs_arena *a, uint64_t len, struct kvs_block **ret);
void kvs_arena_free(struct kvs_arena *a, struct kvs_block *b);

uint64_t kvs_arena_size(const struct kvs_arena *a);
uint64_t kvs_arena_free_bytes(const struct kvs_arena *a);
/* Largest single range obtainable now, bytes (to the class resolution). */
uint64_t kvs_arena_largest_free(const struct kvs_arena *a);
uint64_t kvs_arena_segment(const struct kvs_arena *a);
/* Walks everything; asserts the structure is sound. Tests, debug. */
void kvs_arena_check(const struct kvs_arena *a);

#endif /* KVS_PINNED_ARENA_H */
