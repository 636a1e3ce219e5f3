/* SPDX-License-Identifier: Apache-2.0 */
/* How a room lies in host memory: as its decode ranks have it, or as its
 * prefill ranks do. */
#include <errno.h>
#include <stdio.h>

#include "lib/assert.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

/* Tokens of an extent, so that one begins with a page on either side. */
static int host_extents(struct kvs_worker *w, struct kvs_host *h, char *err,
			size_t errlen)
{
	uint32_t big = h->layout->page_size;
	uint32_t n;

	if (h->extent_tokens)
		return 0;
	if (h->dev_page_size > big)
		big = h->dev_page_size;
	n = kvs_geometry_extent_tokens(h->layout, w->set->extent_tokens,
				       kvs_pool_segment(w->pool));
	/* a larger page than extent.tokens: at least that one */
	if (n && n < big)
		n = kvs_geometry_extent_tokens(h->layout, big,
					       kvs_pool_segment(w->pool));
	h->extent_tokens = n - n % big;
	if (h->extent_tokens)
		return 0;
	snprintf(err, errlen,
		 "one page of %u tokens of all buffers is larger than a piece "
		 "of the pool",
		 big);
	return -E2BIG;
}

static int room_host(struct kvs_worker *w, struct kvs_worker_engine *e,
		     const struct kvs_room_request *q, struct kvs_host **ret,
		     char *err, size_t errlen)
{
	const struct kvs_layout *layouts[KVS_GROUP_MAX] = { e->layout };
	const struct kvs_worker_engine *m;
	int res;

	for (uint32_t i = 0; i < q->n_members; i++) {
		m = kvs_worker_engine_find(w, q->members[i]);
		if (!m) {
			snprintf(err, errlen, "engine %u of the group is gone",
				 q->members[i]);
			return -ECONNRESET;
		}
		layouts[i] = m->layout;
	}
	res = kvs_host_get(&w->hosts, q, layouts,
			   q->n_members ? q->n_members : 1, ret, err, errlen);
	if (res || !*ret)
		return res;
	res = host_extents(w, *ret, err, errlen);
	if (res) {
		kvs_host_put(*ret);
		*ret = NULL;
	}
	return res;
}

int kvs_room_layout(struct kvs_worker *w, struct kvs_worker_engine *e,
		    const struct kvs_room_request *q,
		    struct kvs_host **ret_host, struct kvs_geometry *ret_geo,
		    char *err, size_t errlen)
{
	const struct kvs_layout *l = e->layout;
	uint32_t extent_tokens = e->extent_tokens;
	int res;

	if (!e->extent_tokens) {
		snprintf(err, errlen,
			 "one page of all buffers is larger than "
			 "a piece of the pool");
		return -E2BIG;
	}
	res = room_host(w, e, q, ret_host, err, errlen);
	if (res)
		return res;
	if (*ret_host) {
		l = (*ret_host)->layout;
		extent_tokens = (*ret_host)->extent_tokens;
	} else {
		res = kvs_layout_check_owners(l, q->ranks, q->n_ranks, err,
					      errlen);
		if (res)
			return res;
	}
	res = kvs_geometry_init(ret_geo, l, q->tokens, extent_tokens,
				kvs_pool_segment(w->pool), q->n_ranks,
				q->aux_len);
	if (!res)
		return 0;
	snprintf(err, errlen,
		 "%llu tokens cannot be laid out: a room has at most "
		 "%u tokens and %u extents of %u tokens (extent.tokens)",
		 (unsigned long long)q->tokens, KVS_TOKENS_MAX, KVS_EXTENTS_MAX,
		 extent_tokens);
	kvs_host_put(*ret_host);
	*ret_host = NULL;
	return res;
}
