/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: sender ring
 *
 * Host memory between a device that the network cannot read and the network: a
 * chunk is copied to a *piece* of the ring, and sent from there, while the next
 * ones are being copied.
 *
 * The ring is handed out in blocks from a cursor on, round and round; blocks in
 * use are passed over, so that one slow connection does not keep the others
 * waiting, and a piece may lie in several places. Who may still write to a
 * piece is its drain's business: the copy is a party of it from before it is
 * started until the device has said that it is over, whatever became of the
 * chunk meanwhile. kvs_send_piece_put() arms the drain, and its end gives the
 * blocks back.
 *
 * A copy that does not end in time, or whose device has failed for good, can
 * not be revoked: its blocks are quarantined, until the device says so after
 * all. Those left when the sender ends stay where they are until the process
 * does.
 *
 * One thread, which is also the only one that polls.
 */
#ifndef KVS_PIPELINE_SENDER_RING_H
#define KVS_PIPELINE_SENDER_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "gpu/device.h"
#include "lib/clock.h"
#include "lib/list.h"
#include "lib/timer.h"
#include "pinned/drain.h"

#define KVS_SEND_RING_BLOCK 4096u /* bytes */
#define KVS_SEND_RING_MIN (16u * KVS_SEND_RING_BLOCK) /* bytes */

struct kvs_send_ring;

/**
 * struct kvs_send_from - bytes that lie by item on the device
 * @base: item i at @base + i * @item_len
 * @item_len: bytes
 * @items: which item is the next, in the order in which they are sent
 * @at: bytes before the first one wanted
 * @len: bytes wanted, above 0
 */
struct kvs_send_from {
	void *base;
	uint32_t item_len;
	const uint32_t *items;
	uint64_t at;
	uint64_t len;
};

/**
 * struct kvs_send_piece - part of the ring that a chunk has
 * @iov, @n_iov: where it lies, in order
 * @len: bytes
 * @user: the owner's
 */
struct kvs_send_piece {
	struct iovec *iov;
	size_t n_iov;
	uint64_t len;
	void *user;

	/* private */
	struct kvs_send_ring *ring;
	struct kvs_list node; /* ring->copying, or ring->lost */
	uint32_t blocks;
	bool put; /* nobody needs its bytes */
	bool given; /* its blocks are free */
	struct kvs_drain drain;
	struct kvs_party party;
	struct kvs_copy copy;
	uint32_t *pages;
	void (*copied)(struct kvs_send_piece *p, int status);
};

/**
 * struct kvs_send_ring_opts - a ring
 * @device: that is copied from; outlives what is copied
 * @bytes: size, whole blocks, KVS_SEND_RING_MIN at least
 * @clock: whose time it is
 * @timers: of the owner's thread
 * @copied: a copy is over: 0 and the bytes are there, or not. Once for each
 *          that was started, unless the piece was put before. -ETIMEDOUT: it is
 *          not over but overdue; -EIO also: the device has failed and will not
 *          say any more. The piece must be put then
 */
struct kvs_send_ring_opts {
	struct kvs_device *device;
	uint64_t bytes;
	const struct kvs_clock *clock;
	struct kvs_timerq *timers;
	void (*copied)(struct kvs_send_piece *p, int status);
};

struct kvs_send_ring {
	struct kvs_send_ring_opts o;
	unsigned char *mem;
	unsigned char *used; /* of each block */
	uint32_t blocks;
	uint32_t n_free;
	uint32_t cursor;
	struct kvs_list copying; /* in the order of the device */
	struct kvs_list lost; /* overdue: quarantined once they are put */
	uint64_t head_at; /* ns; the first of ->copying runs since then */
	uint64_t limit; /* ns that it may; 0: any */
	uint64_t looked_at; /* ns; at the device's health */
	struct kvs_timer look;
	struct kvs_drain_stats stats;
	uint64_t next_id;
	/* read by any thread */
	_Atomic uint32_t n_lost; /* blocks in pieces of ->lost */
	_Atomic uint64_t copies; /* started */
	_Atomic uint64_t copied_bytes; /* by those that went well */
	_Atomic uint64_t waits; /* no blocks were free */
};

/**
 * kvs_send_ring_init() - memory for a ring, known to the device
 * @r: ring
 * @o: how; copied
 * @err: message
 * @errlen: its size
 * Return: 0; -ENOMEM, -EDQUOT; what kvs_device_register_host() gave.
 */
int kvs_send_ring_init(struct kvs_send_ring *r,
		       const struct kvs_send_ring_opts *o, char *err,
		       size_t errlen);
/* Every piece was put. What a copy may still write to is left behind. All
 * zero ok. */
void kvs_send_ring_fini(struct kvs_send_ring *r);

/**
 * kvs_send_ring_get() - a piece for a chunk
 * @r: ring
 * @len: bytes, above 0
 * @ret: piece
 * Return: 0; -EAGAIN not now: a piece that is put makes room; -ENOSPC never:
 * larger than what is not quarantined; -ENOMEM.
 */
int kvs_send_ring_get(struct kvs_send_ring *r, uint64_t len,
		      struct kvs_send_piece **ret);
/**
 * kvs_send_piece_copy() - start to fill it
 * @p: piece, as it came from kvs_send_ring_get()
 * @from: what with; p->len bytes of it. Its list of items is copied
 * Return: 0; -ENOMEM; what kvs_device_copy() gave: nothing was started.
 */
int kvs_send_piece_copy(struct kvs_send_piece *p,
			const struct kvs_send_from *from);
/* Nobody reads or wants its bytes any more: the blocks are free as soon as no
 * copy may write to them. */
void kvs_send_piece_put(struct kvs_send_piece *p);

/* Tell of copies that are over. Return: how many. */
unsigned int kvs_send_ring_poll(struct kvs_send_ring *r);
/* Bytes that copies which were given up may still write to. */
uint64_t kvs_send_ring_quarantined(const struct kvs_send_ring *r);

#endif /* KVS_PIPELINE_SENDER_RING_H */
