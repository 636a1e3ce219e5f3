/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: sender
 *
 * A prefill rank's side. One struct kvs_sender per rank: it owns a thread,
 * one control connection and several data connections to one kvstaged. Rooms
 * are opened while prefill is still computing; pages are queued as they are
 * computed and pushed as soon as the daemon has granted the room.
 *
 * Rules kept here (they protect other people's requests): a room that was
 * aborted takes no more pages, drops its queue, and acknowledges only when
 * none of its chunks is outstanding; a send that failed poisons the room,
 * which then answers ABORT with a negative acknowledgement, never with a
 * positive one.
 */
#ifndef KVSTAGE_SENDER_H
#define KVSTAGE_SENDER_H

#include <stddef.h>
#include <stdint.h>

#include "kvstage/errors.h"
#include "kvstage/layout.h"

#pragma GCC visibility push(default)

struct kvs_sender;
struct kvs_send_room;
struct kvs_device;

#define KVS_BOUNCE_MIN 65536ULL /* bytes */
#define KVS_BOUNCE_MAX (64ULL << 30) /* bytes */

/**
 * enum kvs_source - how the network gets at source pages
 * @KVS_SOURCE_AUTO: the first of these that works
 * @KVS_SOURCE_HOST: they are host memory
 * @KVS_SOURCE_PEER_MEM: device memory that RDMA reads by its address
 * @KVS_SOURCE_DMA_BUF: device memory that RDMA reads as a dma-buf
 * @KVS_SOURCE_BOUNCE: device memory that is copied to a ring in host memory
 *                     first, one part while another is being sent
 */
enum kvs_source {
	KVS_SOURCE_AUTO,
	KVS_SOURCE_HOST,
	KVS_SOURCE_PEER_MEM,
	KVS_SOURCE_DMA_BUF,
	KVS_SOURCE_BOUNCE,
};

/**
 * struct kvs_send_ops - callbacks, from the sender's own thread
 *
 * They must not block and must not call kvs_sender_destroy(); any other
 * function of this header is fine.
 * @granted: the daemon gave the room memory; @generation identifies this
 *           attempt. Pages may be queued before this.
 * @pages_free: the source pages of one kvs_send_pages() (or state, aux) call
 *              may be reused; exactly once per successful call; @status 0 or
 *              why they were not sent.
 * @done: the room is over for this rank; last callback for it. 0: the daemon
 *        has every byte of this rank. Otherwise why not (-E2BIG, -EAGAIN with
 *        @text from the daemon, -ECANCELED, -ECONNRESET, ...). The room stays
 *        valid until kvs_send_close().
 */
struct kvs_send_ops {
	void (*granted)(struct kvs_send_room *r, uint64_t generation);
	void (*pages_free)(struct kvs_send_room *r, void *cookie, int status);
	void (*done)(struct kvs_send_room *r, int status, const char *text);
};

/**
 * struct kvs_sender_opts - how to reach a daemon, and as whom
 * @size: sizeof(struct kvs_sender_opts)
 * @daemon: "host:port"
 * @peer: name of this prefill instance (the engine names it at admit)
 * @rank: this rank, below @n_ranks
 * @layout: this rank's buffers; copied
 * @buffers: base address of each layer buffer, @layout->n_buffers of them;
 *           page p of buffer b is at buffers[b] + p * item_len; host memory,
 *           or memory of @device
 * @data_connections: per daemon worker; 0: 2. Over RDMA a daemon may say how
 *                    many itself (its rdma.connections)
 * @window: bytes queued to the kernel at most over all data connections
 *          before the sender waits; 0: 64 MiB
 * @chunk_max: bytes of one chunk; 0: 16 MiB
 * @connect_timeout: ns; 0: 10 s; also for finding the daemon up at first
 * @engine: transport engine: "auto", "uring", "sock"; NULL: auto
 * @ops: callbacks; outlives the sender
 * @open_timeout: ns a room waits for the daemon's grant, its refusals that ask
 *                for patience included; 0: 60 s
 * @max_batch_bytes: bytes of one room given to the network and not completed,
 *                   at most; 0: what the daemon says (64 MiB if nothing). The
 *                   smaller of both counts.
 * @call_timeout: ns that a chunk may take once it is at the head of its
 *                connection; then it has failed, with all that is on that
 *                connection. 0: what the daemon says (10 s if nothing). The
 *                smaller of both counts.
 * @transport: what carries the bytes: "auto" (RDMA where both sides have it,
 *             else TCP), "tcp", "verbs"; NULL: auto
 * @buffer_len: bytes of each layer buffer, @layout->n_buffers of them, so that
 *              RDMA can send from them: they are registered (locked) then. 0,
 *              or NULL for all: not known, what is sent is copied first
 * @rdma_device: verbs devices, names with commas between, "auto" or "off";
 *               NULL: auto, of each daemon's network the one on it
 * @rdma_gid_index: number in the port's GID table, or "auto"; NULL: auto
 * @key_file: key file of the cluster, as the daemon's auth.key_file (its first
 *            key is used; kvstaged(8)); read again for each connection, so
 *            that a new key is taken up. NULL: none, and a daemon that asks
 *            for a key is an error. With one, so is a daemon that does not.
 * @stripe_min: bytes of a room's pages, of this rank, from which on its chunks
 *              go over all data connections of RDMA; those of a smaller one go
 *              over one, so that the loss of another is no affair of it. 0:
 *              64 MiB; 1: all rooms over all. TCP always takes all. Where the
 *              daemon names the connections of a room, these are "all".
 * @device: what @buffers are memory of, see kvstage/device.h; NULL: they are
 *          host memory. Outlives the sender. Aux blocks are host memory always
 * @source: how the network gets at @buffers. What is asked for and cannot be
 *          had here is an error; AUTO takes what can
 * @bounce_bytes: size of the ring of KVS_SOURCE_BOUNCE, a multiple of 4096 from
 *                KVS_BOUNCE_MIN to KVS_BOUNCE_MAX; locked in memory where the device or RDMA wants
 *                that. 0: 64 MiB
 */
struct kvs_sender_opts {
	size_t size;
	const char *daemon;
	const char *peer;
	uint32_t rank;
	uint32_t n_ranks;
	const struct kvs_layout *layout;
	void *const *buffers;
	unsigned int data_connections;
	uint64_t window;
	uint64_t chunk_max;
	uint64_t connect_timeout;
	const char *engine;
	const struct kvs_send_ops *ops;
	uint64_t open_timeout;
	uint64_t max_batch_bytes;
	uint64_t call_timeout;
	const char *transport;
	const uint64_t *buffer_len;
	const char *rdma_device;
	const char *rdma_gid_index;
	const char *key_file;
	uint64_t stripe_min;
	struct kvs_device *device;
	enum kvs_source source;
	uint64_t bounce_bytes;
};

/**
 * struct kvs_sender_stats - what a sender does, so far
 * @size: sizeof(struct kvs_sender_stats), set by the caller
 * @source: how the network gets at the source pages
 * @note: why, in words: what was tried before it and did not work
 * @bounce_bytes: size of the ring; 0: there is none
 * @copies: from the device to the ring that were started
 * @copied_bytes: by those that went well
 * @ring_waits: how often a chunk had to wait for room in the ring
 * @quarantined_bytes: of the ring, which copies that do not end may still
 *                     write to; not used again before they do
 */
struct kvs_sender_stats {
	size_t size;
	enum kvs_source source;
	char note[256];
	uint64_t bounce_bytes;
	uint64_t copies;
	uint64_t copied_bytes;
	uint64_t ring_waits;
	uint64_t quarantined_bytes;
};

/**
 * kvs_sender_create() - connect and agree on version and layout
 * @err: message: what was tried, what the daemon said
 *
 * Context: blocks up to @connect_timeout.
 * Return: 0; -EINVAL; -ECONNREFUSED, -ETIMEDOUT, ...; -EPROTONOSUPPORT;
 * -EOPNOTSUPP @source is not to be had here, or with this daemon;
 * -EPROTOTYPE layout refused; -EACCES not authenticated; what is wrong with
 * @key_file (-ENOENT, -EPERM owner, mode or kind, -EINVAL content, ...);
 * -ENOMEM.
 */
int kvs_sender_create(const struct kvs_sender_opts *o, struct kvs_sender **ret,
		      char *err, size_t errlen);
/* Aborts what is open, closes, joins the thread; rooms not closed yet end
 * with done() and are freed. NULL ok. Blocks. */
void kvs_sender_destroy(struct kvs_sender *s);
/* "auto", "host", "peer-mem", "dma-buf", "bounce"; "?". */
const char *kvs_source_name(enum kvs_source source);
/* Any thread. 0; -EINVAL: @ret->size is none. */
int kvs_sender_stats(struct kvs_sender *s, struct kvs_sender_stats *ret);

/**
 * kvs_send_open() - announce a room
 * @room: id from the router, not 0
 * @nonce: 16 bytes the engine got as well, or NULL
 * @tokens: of the whole request
 * @user: kvs_send_user()
 *
 * Context: any thread, does not block.
 * Return: 0; -EEXIST a room with this id is open on this sender; -EINVAL;
 * -ENOMEM; -ECONNRESET the daemon is gone (a new sender is needed).
 */
int kvs_send_open(struct kvs_sender *s, uint64_t room,
		  const unsigned char *nonce, uint64_t tokens, void *user,
		  struct kvs_send_room **ret);

/**
 * kvs_send_pages() - pages of the request are computed
 * @first_page: number within the request of the first one
 * @pages: source page of each, for every paged buffer of this rank; copied
 * @n: pages
 * @cookie: handed to pages_free()
 *
 * In any order, each page once. Context: any thread, does not block.
 * Return: 0; -EINVAL; -ERANGE beyond the request; -ECANCELED the room failed
 * (pages_free is not called); -ENOMEM.
 */
int kvs_send_pages(struct kvs_send_room *r, uint32_t first_page,
		   const uint32_t *pages, uint32_t n, void *cookie);
/* Items of a fixed-count buffer (index in the layout); else as pages. */
int kvs_send_state(struct kvs_send_room *r, uint32_t buffer,
		   const uint32_t *items, uint32_t n, void *cookie);
/* This rank's aux block; @data stays untouched until pages_free(). */
int kvs_send_aux(struct kvs_send_room *r, const void *data, uint32_t len,
		 void *cookie);
/* Everything was queued: totals follow the last byte. Same returns. */
int kvs_send_finish(struct kvs_send_room *r);
/* Prefill gave up: tells the daemon with the reason. Idempotent. */
int kvs_send_abort(struct kvs_send_room *r, int err, const char *text);
/* Caller is through with the handle; aborts when not done. Callbacks still
 * come until done(), with the handle valid inside them. */
void kvs_send_close(struct kvs_send_room *r);

void *kvs_send_user(const struct kvs_send_room *r);
uint64_t kvs_send_room_id(const struct kvs_send_room *r);
/* Chunks given to the transport and not completed. Any thread. */
uint32_t kvs_send_outstanding(const struct kvs_send_room *r);

#pragma GCC visibility pop

#endif /* KVSTAGE_SENDER_H */
