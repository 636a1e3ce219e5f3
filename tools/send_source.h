/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: send source
 *
 * The KV pool of a prefill rank that kvstage-send plays: pages that are
 * filled as they are "computed" and used again once they were sent, and a few
 * sets of state items, one per request under way. What they hold is the
 * workload's pattern, or the bytes of a file. On a device they are computed in
 * host memory and copied there.
 *
 * No locking: the caller's lock covers take and put.
 */
#ifndef KVS_TOOLS_SEND_SOURCE_H
#define KVS_TOOLS_SEND_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "kvstage/device.h"
#include "tools/workload.h"

struct kvs_send_source {
	const struct kvs_workload *w; /* caller's */
	struct kvs_layout *layout; /* this rank's; owned */
	struct kvs_device *device; /* owned; NULL: host memory */
	void **buffers; /* what is sent from */
	void **host; /* where it is computed; @buffers without a device */
	uint64_t *len; /* bytes of each */
	uint64_t page_bytes; /* of one page in all paged buffers */
	uint32_t pages;
	uint32_t n_free;
	uint32_t *free; /* stack of free pages */
	uint32_t sets; /* of state items */
	const unsigned char *file; /* NULL: the pattern */
	size_t file_len;
};

/**
 * kvs_send_source_create() - make the pool
 * @w: workload, outlives the source
 * @rank: whose layers
 * @bytes: size of the paged part, two pages at least
 * @sets: requests under way at most
 * @path: file with the payload; NULL: the pattern
 * @device: backend to open, or NULL: host memory
 * @ordinal: number of that device
 * @ret: for kvs_send_source_destroy()
 * @err: message
 * @errlen: its size
 * Return: 0; what kvs_device_open() gave; -ENOMEM; -ERANGE @bytes is too small; -EINVAL an empty file; or
 * why it cannot be read.
 */
int kvs_send_source_create(const struct kvs_workload *w, uint32_t rank,
			   uint64_t bytes, uint32_t sets, const char *path,
			   const char *device, int ordinal,
			   struct kvs_send_source **ret, char *err,
			   size_t errlen);
/* NULL ok. */
void kvs_send_source_destroy(struct kvs_send_source *s);

/* Takes @n pages, which must be free. */
void kvs_send_source_take(struct kvs_send_source *s, uint32_t n,
			  uint32_t *ret_pages);
void kvs_send_source_put(struct kvs_send_source *s, const uint32_t *pages,
			 uint32_t n);

/* Compute pages [@first, @first + @n) of @room into these source pages. 0;
 * -ENOMEM, or what the device said. */
int kvs_send_source_fill(struct kvs_send_source *s, uint64_t room,
			 uint32_t first, const uint32_t *pages, uint32_t n);
/* The same for all items of buffer @b in @set; @ret_items has @n entries. */
int kvs_send_source_fill_state(struct kvs_send_source *s, uint64_t room,
			       uint32_t b, uint32_t set, uint32_t n,
			       uint32_t *ret_items);
/* Any bytes of a stream, see kvs_workload_seed(). */
void kvs_send_source_bytes(const struct kvs_send_source *s, void *dst,
			   size_t len, uint64_t seed, uint64_t off);

#endif /* KVS_TOOLS_SEND_SOURCE_H */
