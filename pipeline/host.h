/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: host layouts
 *
 * How rooms lie in host memory, where that is not as their decode ranks have
 * it (pipeline/reshard.h). One for each set of decode ranks, prefill division
 * and page size that was asked for lately; rooms share it.
 *
 * Not thread safe: front and workers each have their own.
 */
#ifndef KVS_PIPELINE_HOST_H
#define KVS_PIPELINE_HOST_H

#include "lib/list.h"
#include "pipeline/reshard.h"
#include "pipeline/room.h"

#define KVS_HOSTS_MAX 64 /* kept without a room */

struct kvs_host {
	struct kvs_list node; /* on its cache, the latest last */
	struct kvs_host_cache *cache;
	uint32_t id; /* not 0; unique in the cache */
	uint32_t refs; /* rooms */
	struct kvs_layout *layout;
	uint32_t dev_page_size; /* of the decode ranks */
	uint32_t extent_tokens; /* a worker's; 0: not laid out yet */
	uint64_t told; /* a worker's: bit of each member that knows it */
	/* what it was made for */
	uint32_t n_members;
	uint32_t members[KVS_GROUP_MAX];
	uint32_t n_ranks;
	struct kvs_slice slices[];
};

struct kvs_host_cache {
	struct kvs_list list;
	uint32_t n;
	uint32_t next_id;
};

void kvs_host_cache_init(struct kvs_host_cache *c, uint32_t first_id);
/* No room may have one any more. */
void kvs_host_cache_fini(struct kvs_host_cache *c);

/**
 * kvs_host_get() - the layout of a room that is asked for
 * @c: cache
 * @q: what the engine asks for
 * @members: layouts of the decode ranks, in the order of q->members
 * @n_members: 1 where q->n_members is 0
 * @ret: for kvs_host_put(); NULL: the room lies as its members have it
 * @err: message
 * @errlen: its size
 * Return: 0; as kvs_reshard_layout().
 */
int kvs_host_get(struct kvs_host_cache *c, const struct kvs_room_request *q,
		 const struct kvs_layout *const *members, uint32_t n_members,
		 struct kvs_host **ret, char *err, size_t errlen);
struct kvs_host *kvs_host_hold(struct kvs_host *h); /* once more; NULL ok */
void kvs_host_put(struct kvs_host *h); /* NULL ok */
/* That engine is gone: what was made for it and has no room is not kept. */
void kvs_host_forget(struct kvs_host_cache *c, uint32_t engine);

#endif /* KVS_PIPELINE_HOST_H */
