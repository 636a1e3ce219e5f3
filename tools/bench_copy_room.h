/* SPDX-License-Identifier: Apache-2.0 */
/* A room of a model as it lies in the pool, and the copy of all of it to
 * scattered device pages: what a commit is, and a recall. */
#ifndef KVS_TOOLS_BENCH_COPY_ROOM_H
#define KVS_TOOLS_BENCH_COPY_ROOM_H

#include <stdint.h>

#include "pipeline/geometry.h"
#include "pipeline/presets.h"
#include "tools/bench_copy.h"

struct kvs_copy_room {
	struct kvs_layout *l;
	struct kvs_geometry g;
	struct kvs_copy_run *runs;
	uint64_t host_len; /* bytes it takes on the host */
	uint64_t dev_len; /* on the device, with pages between its own */
	uint32_t *pages; /* of the device, of each page */
};

/**
 * kvs_copy_room_plan() - how a room lies, without memory for it
 * @m: zero; kvs_copy_room_fini() it, also on failure
 * @model: of pipeline/presets.h
 * @o: how it is scaled
 * @tokens: of the room
 * @err: message on failure
 * @errlen: its size
 * Return: 0; -ENOENT, -EINVAL as kvs_preset_layout(), -EINVAL also for pages
 * that are too large; -E2BIG more tokens than a room has; -ENOMEM.
 */
int kvs_copy_room_plan(struct kvs_copy_room *m, const char *model,
		       const struct kvs_preset_opts *o, uint64_t tokens,
		       char *err, size_t errlen);
/* The same and memory for it, but that of the copies. 0 or -errno; what
 * kvs_copy_room_plan() says was printed. */
int kvs_copy_room_init(struct kvs_copy_room *m, const char *model,
		       const struct kvs_preset_opts *o, uint64_t tokens);
void kvs_copy_room_fini(struct kvs_copy_room *m);
/* Fills ->runs for the memory of @b. Return: how many. */
size_t kvs_copy_room_runs(struct kvs_copy_room *m,
			  const struct kvs_copy_bench *b);

#endif /* KVS_TOOLS_BENCH_COPY_ROOM_H */
