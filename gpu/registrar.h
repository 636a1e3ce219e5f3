/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: registrar
 *
 * Makes host memory known to a device while others go on with their work: a
 * driver takes up to a tenth of a second for each GB. Ranges are cut into
 * pieces, a thread asks for one after another, and what somebody waits for
 * comes next. A piece the device does not pin stays pageable: copies of it are
 * right, and slower; the state says how much that is and why. After an error
 * that is the end of the device's context no more pieces are tried.
 *
 * A device that registers at once, as soft does, needs no thread: everything
 * is done in kvs_registrar_start().
 */
#ifndef KVS_GPU_REGISTRAR_H
#define KVS_GPU_REGISTRAR_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/device.h"

struct kvs_registrar;

struct kvs_registrar_range {
	void *addr;
	uint64_t len; /* bytes */
	bool read_only;
};

/**
 * struct kvs_registrar_state - how far it is
 * @total: bytes of all ranges
 * @settled: of these the device was asked about
 * @pinned: of these it reaches by itself
 * @err: 0, or why the first piece that is not could not be (negative errno)
 * @over: no piece will be tried any more
 */
struct kvs_registrar_state {
	uint64_t total;
	uint64_t settled;
	uint64_t pinned;
	int err;
	bool over;
};

/**
 * kvs_registrar_start() - begin
 * @d: outlives it
 * @v: ranges that do not overlap; they stay mapped until kvs_registrar_end()
 * @n: how many
 * @ret: the registrar
 *
 * Context: does not block, unless the device registers at once.
 * Return: 0; -EINVAL a range without bytes; -ENOMEM; -EAGAIN no thread can be
 * had.
 */
int kvs_registrar_start(struct kvs_device *d,
			const struct kvs_registrar_range *v, uint32_t n,
			struct kvs_registrar **ret);

/**
 * kvs_registrar_ready() - may this copy begin?
 *
 * Is all its memory that is in a range settled? If not, the piece that is
 * missing comes next.
 * Context: any thread, does not block.
 * Return: 0; -EINPROGRESS.
 */
int kvs_registrar_ready(struct kvs_registrar *g, const struct kvs_copy *c);

/* Any thread. */
void kvs_registrar_state(const struct kvs_registrar *g,
			 struct kvs_registrar_state *ret);

/* Begin no further piece; what is not settled stays pageable. Does not wait
 * for the one under way. */
void kvs_registrar_stop(struct kvs_registrar *g);

/**
 * kvs_registrar_end() - stop, and wait for the piece under way
 * @g: NULL ok
 * @undo: take back what was registered, backwards: no copy of that memory may
 *        be under way. Else the device is not called any more.
 */
void kvs_registrar_end(struct kvs_registrar *g, bool undo);

#endif /* KVS_GPU_REGISTRAR_H */
