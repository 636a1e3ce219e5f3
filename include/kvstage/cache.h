/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: cache
 *
 * What an engine keeps in the node's host memory of requests that it serves.
 *
 * Retraction: a running request leaves the device, so that others can go on,
 * and comes back later. Its handle is that of a room, and so are its status
 * word and the functions that poll, fail, abort and release it:
 *
 *   PENDING    the daemon has not looked at it yet
 *   ADMITTED   host memory is there; it is being copied out
 *   SEALING    copied out; the bytes are being summed up
 *   READY      out, whole: its device pages may serve others
 *   COMMITTING kvs_resume(): it is being copied back
 *   DONE       back, the same bytes; host memory is given back
 *   FAILED     ENOSPC: no host memory, nothing was copied and it may run on.
 *              Others: see kvs_retract() and kvs_resume()
 *
 * Several ranks take the minimum over theirs, as with rooms: a request is out
 * when it is READY, and back when it is DONE, on all.
 *
 * Prefixes: an engine that names its space at attach (cache_space) and the
 * blocks of a room at admit (hashes) leaves the room's bytes in host memory
 * when it is DONE, without a copy. A later room that is admitted with
 * KVS_ADMIT_CACHED and begins with the same blocks takes them from there;
 * prefill sends the rest. Memory for it is what nobody else wants.
 *
 * Offload: blocks that were decoded here, and that nobody sent, are copied off
 * the device to be found like those:
 *
 *   PENDING    the daemon has not looked at it yet
 *   ADMITTED   host memory is there; it is being copied out
 *   SEALING    copied out; on its way into the cache
 *   DONE       cached: its blocks are found
 *   FAILED     nothing of it is cached; the device pages hold what they held
 */
#ifndef KVSTAGE_CACHE_H
#define KVSTAGE_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kvstage/engine.h"

#pragma GCC visibility push(default)

/**
 * struct kvs_retract - a request that is to leave the device
 * @size: sizeof(struct kvs_retract)
 * @id: the engine's number of it, for listings and logs
 * @tokens: that it has by now; the last page may be partial
 * @node: NUMA node of the host memory; -1: as attached
 * @device: where it is; as in struct kvs_commit, and so are the others
 * @written: asked until it says that the pages have been written: 0; or
 *           -EINPROGRESS, as long as what computes them may still run. The
 *           copy does not start before. Another negative errno ends the
 *           retraction with it. NULL: they have been
 * @arg: for @written
 * @strides: as in struct kvs_commit: of a pool that is page first; NULL: pages
 *           lie one behind the other
 */
struct kvs_retract {
	size_t size;
	uint64_t id;
	uint64_t tokens;
	int node;
	struct kvs_device *device;
	void *const *buffers;
	const uint32_t *pages;
	uint32_t n_pages;
	const uint32_t *items;
	uint32_t n_items;
	int (*written)(void *arg);
	void *arg;
	const uint64_t *strides;
};

/**
 * kvs_retract() - copy a running request to host memory
 * @e: attached engine
 * @r: which, and where it is; its arrays are copied
 * @ret: handle to poll
 *
 * Asynchronous: kvs_engine_progress() carries it out. The engine must not
 * write the request's device pages until it is over. They are free for others
 * once kvs_engine_copy_live() is false and the status READY. With FAILED
 * they still hold the request, whole, which may then run on:
 * ENOSPC, no memory in the offload pool now (pool.offload_size); E2BIG, never,
 * or there is no such pool; ECANCELED, aborted; EIO or what the device said,
 * the copy failed. Then, too, they are the copy's until
 * kvs_engine_copy_live() is false.
 *
 * kvs_engine_abort() ends it in any state; in READY it is kvs_drop().
 * Context: the first use of a device makes the pools known to it, which may
 * block; else does not block.
 * Return: 0; -EINVAL; -EAGAIN all slots in use or the socket is full;
 * -ECONNRESET daemon gone; -ENOSPC too many devices; -ENOMEM.
 */
int kvs_retract(struct kvs_engine *e, const struct kvs_retract *r,
		kvs_handle *ret);

/**
 * kvs_resume() - copy a retracted request back to the device
 * @e: attached engine
 * @h: its handle, READY
 * @c: where it goes; other pages than it had, as a rule
 *
 * Asynchronous; goes before commits of rooms that have not begun to copy, and
 * needs no memory that could be missing. The bytes are compared with those
 * that came out: FAILED with EBADMSG when they differ, before any is copied.
 * DONE: it is back. Device pages belong to the copy until then, or until
 * FAILED with kvs_engine_copy_live() false.
 * kvs_engine_copied_layers() tells how far it is.
 * Context: as kvs_retract().
 * Return: as kvs_engine_commit(); -ENOENT also for a room.
 */
int kvs_resume(struct kvs_engine *e, const kvs_handle *h,
	       const struct kvs_commit *c);

/**
 * kvs_drop() - a retracted request has ended: forget its bytes
 * @e: attached engine
 * @h: its handle
 *
 * In any state, idempotent; what a copy still touches stays owned until its
 * end. kvs_engine_release() follows.
 * Return: 0; -EALREADY it had ended; -ENOENT no retraction.
 */
int kvs_drop(struct kvs_engine *e, const kvs_handle *h);

/**
 * kvs_engine_cached() - how much of a room, or of some blocks, is cached
 * @e: attached engine
 * @h: handle
 * @ret_tokens: from the first on, whole blocks
 *
 * Of a room admitted with KVS_ADMIT_CACHED: so much of it is not received. Its
 * prefill ranks send it as a room of that many tokens less, its pages numbered
 * from 0; kvs_engine_commit() takes the pages of all of it. The room is READY
 * when what was received and what is cached are both whole. At least one token
 * is received, and a room that has to wait for memory is received whole.
 *
 * Of a look-up, what was found; of a pin, what is pinned; of an offload, what
 * was cached when it was asked for, and is not copied.
 * Return: 0; -EAGAIN not known yet, kvs_engine_progress() makes it so; -ENOENT.
 */
int kvs_engine_cached(struct kvs_engine *e, const kvs_handle *h,
		      uint64_t *ret_tokens);

/* Blocks of a prompt, as in struct kvs_admit. */
struct kvs_cache_query {
	size_t size; /* sizeof(struct kvs_cache_query) */
	const void *hashes;
	uint32_t n_hashes;
	int node; /* -1: as attached */
};

/**
 * kvs_cache_lookup() - how much of a prompt is cached
 * @e: attached engine
 * @q: which; copied
 * @ret: handle to poll: DONE, then kvs_engine_cached(), then release it
 *
 * A hint: it may be gone by the time of an admit.
 * Return: 0; -EINVAL; -EAGAIN all slots in use or the socket is full;
 * -ECONNRESET daemon gone; -ENOMEM.
 */
int kvs_cache_lookup(struct kvs_engine *e, const struct kvs_cache_query *q,
		     kvs_handle *ret);
/* The same, and all blocks of it that are cached are forgotten; those that a
 * room uses, for later ones. */
int kvs_cache_drop(struct kvs_engine *e, const struct kvs_cache_query *q,
		   kvs_handle *ret);

/**
 * struct kvs_offload - blocks of a request that are to be cached
 * @size: sizeof(struct kvs_offload)
 * @id: the engine's number of the request, for listings and logs
 * @hashes: 16 bytes for each block, as in struct kvs_admit; whole blocks, one
 *          after the other, but not necessarily from the first of the request
 * @n_hashes: KVS_CACHE_BLOCKS_MAX at most
 * @node: NUMA node of the host memory; -1: as attached
 * @device: where they are; as in struct kvs_commit, and so are the others
 * @pages: of these blocks, in their order
 * @n_pages: of all of them
 * @strides: as in struct kvs_commit; NULL: pages lie one behind the other
 * @written: as in struct kvs_retract
 * @arg: for @written
 */
struct kvs_offload {
	size_t size;
	uint64_t id;
	const void *hashes;
	uint32_t n_hashes;
	int node;
	struct kvs_device *device;
	void *const *buffers;
	const uint32_t *pages;
	uint32_t n_pages;
	const uint64_t *strides;
	int (*written)(void *arg);
	void *arg;
};

/**
 * kvs_offload() - copy blocks off the device, to be cached
 * @e: attached engine, with a cache_space
 * @q: which, and where they are; its arrays are copied
 * @ret: handle to poll
 *
 * Asynchronous, as kvs_retract(): device pages are the copy's from the call on,
 * and free for others once kvs_engine_copy_live() is false and the status is
 * SEALING, DONE or FAILED; no page is given back before the copy's event, and
 * no block is found before its bytes are summed up where they are kept. The
 * first blocks that are cached already are not copied; kvs_engine_cached()
 * tells how many tokens these are. Blocks behind them that are cached are not
 * kept twice.
 *
 * FAILED: ENOSPC, no memory in the offload pool beside reserve.retraction, or
 * for the cache in the receive pool, now; E2BIG never, or there is no offload
 * pool; EOPNOTSUPP nothing of this engine is cached; ECANCELED aborted; EIO or
 * what the device said. All of them leave the request as it is on the device.
 *
 * kvs_engine_abort() ends it in any state before DONE.
 * Context: as kvs_retract().
 * Return: 0; -EINVAL; -EAGAIN all slots in use or the socket is full;
 * -ECONNRESET daemon gone; -ENOSPC too many devices; -ENOMEM; -EOPNOTSUPP the
 * layout has fixed-count buffers.
 */
int kvs_offload(struct kvs_engine *e, const struct kvs_offload *q,
		kvs_handle *ret);

/**
 * kvs_cache_pin() - keep what is cached of some blocks where it is
 * @e: attached engine, with a cache_space
 * @q: blocks, one after the other, but not necessarily from the first of a
 *     prompt; copied
 * @ret: handle to poll
 *
 * From the first on, as many as are cached; kvs_engine_cached() tells how many
 * tokens. SEALING while they are compared with what was kept, READY when they
 * are whole: they stay until kvs_recall() is DONE, kvs_cache_unpin(), or
 * cache.pin_timeout. Several pins may have the same blocks.
 *
 * FAILED: ENOENT nothing is cached from the first on; ENOSPC engines have
 * pinned as much as they may (cache.pin_share); EBADMSG memory is not what was
 * kept, and is forgotten; ETIME it was not recalled within cache.pin_timeout;
 * EOPNOTSUPP nothing of this engine is cached; ECANCELED.
 * Return: as kvs_cache_lookup().
 */
int kvs_cache_pin(struct kvs_engine *e, const struct kvs_cache_query *q,
		  kvs_handle *ret);
/* Give a pin up, in any state; what a copy still reads stays until its end.
 * kvs_engine_release() follows. 0; -EALREADY it had ended; -ENOENT no pin. */
int kvs_cache_unpin(struct kvs_engine *e, const kvs_handle *h);

/**
 * kvs_recall() - copy what is pinned to the device
 * @e: attached engine
 * @h: handle of kvs_cache_pin(), READY
 * @c: where it goes: as many pages as kvs_engine_cached() told tokens of
 *
 * Nothing is received, no room is needed, and no memory that could be missing.
 * Asynchronous: COMMITTING, then DONE, when the pin has ended, too; layer by
 * layer, see kvs_engine_copied_layers(), so that decode may begin before all is
 * there. Goes before commits of rooms that have not begun to copy. Device pages
 * belong to the copy until DONE, or FAILED with kvs_engine_copy_live() false.
 * Context: as kvs_retract().
 * Return: as kvs_engine_commit(); -ENOENT also for what is no pin.
 */
int kvs_recall(struct kvs_engine *e, const kvs_handle *h,
	       const struct kvs_commit *c);

/*
 * Many at once: of an array of @n requests, all made with the same size, each
 * as the call of one. kvs_engine_poll_many() polls their handles.
 *
 * Return: how many were taken, from the first on, with their handles in @ret;
 * fewer than @n when the next was refused. If that was the first: what it was
 * refused with.
 */
int kvs_cache_lookup_many(struct kvs_engine *e, const struct kvs_cache_query *v,
			  size_t n, kvs_handle *ret);
int kvs_cache_drop_many(struct kvs_engine *e, const struct kvs_cache_query *v,
			size_t n, kvs_handle *ret);
int kvs_cache_pin_many(struct kvs_engine *e, const struct kvs_cache_query *v,
		       size_t n, kvs_handle *ret);
int kvs_offload_many(struct kvs_engine *e, const struct kvs_offload *v,
		     size_t n, kvs_handle *ret);
int kvs_retract_many(struct kvs_engine *e, const struct kvs_retract *v,
		     size_t n, kvs_handle *ret);
/* @c: of each handle, all made with the same size; @ret: what each was answered
 * with; they are copied in their order. Return: how many were answered with 0;
 * -EINVAL, and nothing was done. */
int kvs_resume_many(struct kvs_engine *e, const kvs_handle *h,
		    const struct kvs_commit *c, size_t n, int *ret);
int kvs_recall_many(struct kvs_engine *e, const kvs_handle *h,
		    const struct kvs_commit *c, size_t n, int *ret);
/* Return: how many of them were given up by this; -EINVAL. */
int kvs_drop_many(struct kvs_engine *e, const kvs_handle *h, size_t n);
int kvs_cache_unpin_many(struct kvs_engine *e, const kvs_handle *h, size_t n);

#pragma GCC visibility pop

#endif /* KVSTAGE_CACHE_H */
