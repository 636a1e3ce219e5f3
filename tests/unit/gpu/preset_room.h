/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: preset_room
 *
 * A room of a model: extents in a random order in host memory, layer buffers
 * with a guard behind every page on a device, a random page list, and the copy
 * between them, as the engine side makes it.
 */
#ifndef KVS_TESTS_PRESET_ROOM_H
#define KVS_TESTS_PRESET_ROOM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu/device.h"
#include "lib/rng.h"
#include "pipeline/geometry.h"

struct preset_room {
	struct kvs_rng rng;
	const char *model;
	struct kvs_layout *l;
	struct kvs_geometry g;
	struct kvs_device *d;
	struct kvs_copy copy;
	struct kvs_copy_run *runs;
	struct kvs_copy_shape *shapes;
	uint32_t *pages;
	uint32_t device_pages;
	uint8_t *host; /* extents, in a random order, a gap between them */
	uint64_t host_len;
	uint64_t *at; /* of an extent in it */
	uint8_t *dev, *want;
	uint64_t dev_len;
	uint64_t *buf; /* of a layer buffer in them */
};

/* Cleared; never NULL. */
void *preset_alloc(size_t n, size_t size);
/* The layout of r->model; false: it has no such. */
bool preset_room_layout(struct preset_room *r, uint32_t tp, uint32_t page_size,
			uint32_t layers);
/* Lay a room out; addresses in its runs are offsets. r->rng is set. */
void preset_room_init(struct preset_room *r, uint32_t tokens,
		      uint32_t extent_tokens);
void preset_room_fini(struct preset_room *r);
/* From offsets to addresses, or back with the negative ones. */
void preset_room_rebase(struct preset_room *r, uintptr_t host, uintptr_t dev);
/* To r->d and back, every byte of both sides compared. */
void preset_room_there_and_back(struct preset_room *r);

#endif /* KVS_TESTS_PRESET_ROOM_H */
