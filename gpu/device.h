/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: device
 *
 * Copy backends. A device copies between host memory and its own memory,
 * asynchronously, page lists both ways. A copy is a party of a drain: both
 * ends stay owned until kvs_device_query() stops saying -EINPROGRESS.
 *
 * Opening and memory are public: kvstage/device.h.
 */
#ifndef KVS_GPU_DEVICE_H
#define KVS_GPU_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/device.h"
#include "lib/mpsc.h"

enum kvs_copy_dir {
	KVS_COPY_H2D,
	KVS_COPY_D2H,
};

/**
 * struct kvs_copy_run - items that lie in order on the host, by page on the
 * device
 * @host: first item; item i at host + i * item_len
 * @dev: device buffer; item i at dev + pages[i] * item_len
 * @item_len: bytes
 * @pages: device page numbers, n of them; NULL: 0, 1, 2, ...
 * @n: items
 */
struct kvs_copy_run {
	void *host;
	void *dev;
	uint64_t item_len;
	const uint32_t *pages;
	uint64_t n;
};

/**
 * struct kvs_copy_shape - a run whose items are rows that lie apart
 *
 * Byte k of row j of item i is at host + i * host_item + j * host_row + k and
 * at dev + pages[i] * dev_item + j * dev_row + k: a slice of the heads of each
 * token, or a buffer whose pages lie further apart than they are long. Of such
 * a run item_len is rows * row_len, the bytes that are moved of an item. Rows
 * do not overlap on the side that is written.
 * @rows: rows of an item; 0: the run is plain, and the rest is not looked at
 * @row_len: bytes
 * @host_row: bytes from row to row on the host
 * @dev_row: the same on the device
 * @host_item: bytes from item to item on the host
 * @dev_item: bytes from page to page on the device
 */
struct kvs_copy_shape {
	uint64_t rows;
	uint64_t row_len;
	uint64_t host_row;
	uint64_t dev_row;
	uint64_t host_item;
	uint64_t dev_item;
};

/**
 * struct kvs_copy - one asynchronous copy
 *
 * Memory is the caller's and stays untouched, runs, shapes and page lists
 * included, until the copy is complete.
 * @runs, @n_runs, @dir: set by the caller
 * @shapes: of each run; NULL: all are plain
 * @status: private; read through kvs_device_query()
 * @runs_done: private; read through kvs_device_progress()
 */
struct kvs_copy {
	const struct kvs_copy_run *runs;
	size_t n_runs;
	const struct kvs_copy_shape *shapes;
	enum kvs_copy_dir dir;
	_Atomic int status;
	_Atomic size_t runs_done;
	struct kvs_mpsc_node node;
	uint64_t order; /* position in the device's stream, from 1 */
	void *user;
};

/**
 * struct kvs_device_info - what a device is and has done
 * @name: of the hardware; "" for soft
 * @bus: PCI address as in /sys, or ""
 * @kernels: what compiled them, or "none"
 * @numa_node: closest to it, or -1
 * @driver: version, as 13000, or 0
 * @way: how small pieces travel
 * @batch_min: bytes; a piece this long is not small
 * @measured: @batch_min is what this device was measured to have
 * @few: up to so many small pieces go by themselves
 * @slots, @slot_bytes: ring in device memory; 0: none
 * @blocks: thread blocks a launch may have
 * @copies, @failed: finished, and of these with an error
 * @bytes: launched
 * @pieces, @launches, @steps: operations, see gpu/plan.h
 * @sticky: 0, or why it takes no copies any more (negative errno)
 * @peer_mem: RDMA may read its memory by its address, if the kernel has a driver
 *            for that
 * @dma_buf: kvs_device_export() works
 * @registered: host ranges, as the driver knows them
 * @registered_bytes: their bytes
 * @pinned_bytes: of these the device can reach by itself
 * @register_chunk: bytes that are registered at once; 0: registering takes no
 *                  time and no driver
 */
struct kvs_device_info {
	char name[64];
	char bus[20];
	char kernels[24];
	int numa_node;
	int driver;
	enum kvs_copy_way way;
	uint64_t batch_min;
	bool measured;
	uint64_t few;
	uint32_t slots;
	uint64_t slot_bytes;
	uint32_t blocks;
	uint64_t copies;
	uint64_t failed;
	uint64_t bytes;
	uint64_t pieces;
	uint64_t launches;
	uint64_t steps;
	int sticky;
	bool peer_mem;
	bool dma_buf;
	uint64_t registered;
	uint64_t registered_bytes;
	uint64_t pinned_bytes;
	uint64_t register_chunk;
};

/**
 * struct kvs_device_ops - a backend; see the wrappers below for the meaning
 */
struct kvs_device_ops {
	const char *name;
	int (*open)(const struct kvs_device_opts *o, struct kvs_device **ret,
		    char *err, size_t errlen);
	void (*close)(struct kvs_device *d);
	int (*alloc)(struct kvs_device *d, uint64_t len, void **ret);
	void (*free)(struct kvs_device *d, void *p);
	int (*register_host)(struct kvs_device *d, void *addr, uint64_t len,
			     unsigned int flags);
	int (*unregister_host)(struct kvs_device *d, void *addr, uint64_t len);
	int (*copy)(struct kvs_device *d, struct kvs_copy *c);
	int (*query)(struct kvs_device *d, const struct kvs_copy *c);
	size_t (*progress)(struct kvs_device *d, const struct kvs_copy *c);
	int (*peek)(struct kvs_device *d, void *host, const void *dev,
		    uint64_t len);
	void (*info)(struct kvs_device *d, struct kvs_device_info *ret);
	int (*export)(struct kvs_device *d, const void *addr, uint64_t len,
		      int *ret_fd, uint64_t *ret_offset);
};

#define KVS_HOST_READ_ONLY 1u /* this process may only read it */
#define KVS_HOST_PAGEABLE 2u /* note where it is, do not pin it */

/*
 * Make host memory known to the device, for copies that lie within one such
 * range. May block; any thread. Return: 0; 1 it stays pageable, as it is
 * read-only and the device cannot pin that; -EEXIST part of it is known
 * already, or registered by another; -EINVAL no range; -ENOMEM, or what the
 * device said.
 */
int kvs_device_register_host(struct kvs_device *d, void *addr, uint64_t len,
			     unsigned int flags);
/* Exactly a range that was registered; else -ENOENT. */
int kvs_device_unregister_host(struct kvs_device *d, void *addr, uint64_t len);
/**
 * kvs_device_copy() - start a copy; copies of a device begin in order
 *
 * Context: any thread. Does not block.
 * Return: 0 (then query tells); -EINVAL (no such direction, a run without
 * memory or that overflows, a shape whose rows are not its item; soft: device addresses it did not allocate, host
 * memory that lies partly in a registered range, or D2H to a read-only one);
 * or the device's sticky error. On an error nothing was started.
 */
int kvs_device_copy(struct kvs_device *d, struct kvs_copy *c);
/* -EINPROGRESS; 0 done: acquire, the bytes are there; other: failed and
 * finished (the device touches neither end any more). */
int kvs_device_query(struct kvs_device *d, const struct kvs_copy *c);
/**
 * kvs_device_progress() - runs of a copy that are complete, from the first on
 *
 * Runs are made in order; the bytes of those are there (acquire) and will not
 * be touched again. Only of a copy that was started, until it was seen to be
 * complete; of one that fails it may stop anywhere.
 */
size_t kvs_device_progress(struct kvs_device *d, const struct kvs_copy *c);
/**
 * kvs_device_export() - device memory as a dma-buf
 * @d: device
 * @addr: start
 * @len: bytes, above 0
 * @ret_fd: descriptor, the caller's; it holds whole pages
 * @ret_offset: bytes in it before @addr
 * Return: 0; -EOPNOTSUPP it has none of it; -EINVAL nobody's memory; what the
 * driver said.
 */
int kvs_device_export(struct kvs_device *d, const void *addr, uint64_t len,
		      int *ret_fd, uint64_t *ret_offset);
/* What it is and has done. Any thread; counts of copies under way may lag. */
void kvs_device_info(struct kvs_device *d, struct kvs_device_info *ret);
/* "direct", "slots" or "mapped". */
const char *kvs_copy_way_name(enum kvs_copy_way way);
/* soft: let the held copy go on, or not stop if it has not come up yet;
 * -EOPNOTSUPP for other backends. Any thread. */
int kvs_soft_release(struct kvs_device *d);

#endif /* KVS_GPU_DEVICE_H */
