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

/* @m: zero. 0 or -errno; what the preset says was printed. */
int kvs_copy_room_init(struct kvs_copy_room *m, const char *model,
		       const struct kvs_preset_opts *o, uint64_t tokens);
void kvs_copy_room_fini(struct kvs_copy_room *m);
/* Fills ->runs for the memory of @b. Return: how many. */
size_t kvs_copy_room_runs(struct kvs_copy_room *m,
			  const struct kvs_copy_bench *b);

#endif /* KVS_TOOLS_BENCH_COPY_ROOM_H */
