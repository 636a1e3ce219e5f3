/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: engine KV pool
 *
 * The device side of a decode engine without a model: one tensor per layer
 * buffer, pages handed out at random (by seed), and a check of what lies in
 * them against the workload's pattern. Reads the device only through
 * kvs_device_peek(), so it works with any backend.
 */
#ifndef KVS_TOOLS_ENGINE_KV_H
#define KVS_TOOLS_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "kvstage/device.h"
#include "kvstage/layout.h"
#include "lib/rng.h"
#include "tools/device_choice.h"
#include "tools/workload.h"

struct kvs_kv {
	struct kvs_device *device;
	const struct kvs_workload *w;
	struct kvs_layout *layout; /* this rank's; owned */
	void **buffers; /* device base of each layer buffer */
	uint32_t n_pages;
	uint32_t *free; /* device pages, n_free of them */
	uint32_t n_free;
	uint32_t *free_states; /* sets of items of fixed-count buffers */
	uint32_t n_free_states;
	uint64_t page_bytes; /* of a page over all paged buffers */
	struct kvs_rng rng;
	unsigned char *scratch;
};

/* Where a request lies; the lists as kvs_engine_commit() wants them. */
struct kvs_kv_place {
	uint32_t *pages;
	uint32_t n_pages;
	uint32_t *items;
	uint32_t n_items;
	uint32_t state;
};

/* How far a check is. All zero: at the beginning. */
struct kvs_kv_cursor {
	uint32_t buffer;
	uint32_t page; /* or item of a fixed-count buffer */
	uint32_t first_item; /* of the buffer, in the place's items */
};

/* A page of the request that holds other bytes than it should. */
struct kvs_kv_wrong {
	uint32_t buffer;
	uint32_t page;
	uint64_t offset; /* first wrong byte in the page */
	uint64_t bytes; /* wrong ones in it */
};

/**
 * kvs_kv_open() - open the device and allocate the tensors
 * @w: workload; outlives it
 * @rank: of the decode engine
 * @tokens: capacity
 * @states: requests with fixed-count buffers at a time
 * @device: which; decided here, where it is left to us
 * @bytes_per_sec: of the soft device; 0: as fast as memory
 * Return: 0; -ENOMEM; what kvs_device_open() gives.
 */
int kvs_kv_open(const struct kvs_workload *w, uint32_t rank, uint64_t tokens,
		uint32_t states, struct kvs_device_choice *device,
		uint64_t bytes_per_sec, struct kvs_kv *ret, char *err,
		size_t errlen);
void kvs_kv_close(struct kvs_kv *kv);

/* Random pages for a request: 0, -EAGAIN not enough free now, -ENOMEM. */
int kvs_kv_take(struct kvs_kv *kv, uint64_t tokens, struct kvs_kv_place *ret);
void kvs_kv_give(struct kvs_kv *kv, struct kvs_kv_place *p);

/* Bytes of a request over all buffers. */
uint64_t kvs_kv_bytes(const struct kvs_kv *kv, uint64_t tokens);

/**
 * kvs_kv_check() - compare on, for about @budget bytes
 * @room: whose bytes should be there
 * @tokens: of the request
 * @cursor: where to go on; advanced
 * @budget: bytes
 * @ret_wrong: the page that differs, when the return is -EBADMSG
 * Return: bytes compared, 0 when all are; -EBADMSG one page differs (call
 * again to go on behind it); -EINVAL the device refused to be read.
 */
int64_t kvs_kv_check(struct kvs_kv *kv, const struct kvs_kv_place *p,
		     uint64_t room, uint64_t tokens,
		     struct kvs_kv_cursor *cursor, uint64_t budget,
		     struct kvs_kv_wrong *ret_wrong);

#endif /* KVS_TOOLS_ENGINE_KV_H */
