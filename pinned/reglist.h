/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: reglist
 *
 * The registrations of one pool with its users (a verbs protection domain,
 * an io_uring, a CUDA runtime), made in chunks that end on extent borders: a
 * chunk is a whole number of the pool's segments, or lies inside one when the
 * registrar takes less; its borders are then multiples of @unit from the start
 * of the segment. Extents are whole for sure only if the pool's segment is no
 * larger than @max_chunk, so choose it so.
 */
#ifndef KVS_PINNED_REGLIST_H
#define KVS_PINNED_REGLIST_H

#include <stdint.h>

#include "pinned/pool.h"

/**
 * struct kvs_registrar_ops - one user of registered memory
 * @name: for messages ("verbs mlx5_0", "io_uring")
 * @max_chunk: most bytes one registration may cover; 0 = no limit
 * @reg: register [addr, addr + len); stores a handle (rkey, index, ...);
 *       0 or -errno; may block
 * @unreg: undo; 0 or -errno; may block. A failure leaves the chunk counted
 *       as registered (it is memory somebody may still reach).
 */
struct kvs_registrar_ops {
	const char *name;
	uint64_t max_chunk;
	int (*reg)(void *ctx, void *addr, uint64_t len, uint64_t *ret_handle);
	int (*unreg)(void *ctx, void *addr, uint64_t len, uint64_t handle);
};

struct kvs_reglist; /* one pool with one registrar */

/**
 * kvs_reglist_segment() - segment of a pool whose extents lie in one chunk each
 * @max_chunk: bytes; most that every one of its registrars takes
 * @page_size: bytes of a page of its memory: none is registered in parts
 * Return: bytes, for struct kvs_pool_opts; 0: not even a page fits.
 */
uint64_t kvs_reglist_segment(uint64_t max_chunk, uint64_t page_size);

/**
 * kvs_reglist_create() - register the whole pool, or nothing
 * @p: pool with memory
 * @ops: registrar
 * @ctx: for @ops
 * @unit: bytes; chunk borders are multiples of it (a page of the layout) in
 *        case @ops->max_chunk is below the pool's segment; 0 = 4096
 * @ret: the list
 * Return: 0; -EINVAL phantom pool, or max_chunk below @unit (below the least
 * common multiple of @unit and 4096: a page of memory is not registered
 * twice); -ENOMEM; what reg() returned (everything done so far is undone).
 */
int kvs_reglist_create(struct kvs_pool *p, const struct kvs_registrar_ops *ops,
		       void *ctx, uint64_t unit, struct kvs_reglist **ret);
/* Return: 0, or the first unreg() error; the object is freed either way. */
int kvs_reglist_destroy(struct kvs_reglist *r);
unsigned int kvs_reglist_chunks(const struct kvs_reglist *r);
/**
 * kvs_reglist_lookup() - handle of the chunk that holds the range
 * Return: 0; -ERANGE when the range is not inside one chunk.
 */
int kvs_reglist_lookup(const struct kvs_reglist *r, uint64_t off, uint64_t len,
		       uint64_t *ret_handle, uint64_t *ret_chunk_off);

#endif /* KVS_PINNED_REGLIST_H */
