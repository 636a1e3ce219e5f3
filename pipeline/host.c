/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"

void kvs_host_cache_init(struct kvs_host_cache *c, uint32_t first_id)
{
	kvs_list_init(&c->list);
	c->n = 0;
	c->next_id = first_id;
}

static void host_free(struct kvs_host *h)
{
	kvs_list_del(&h->node);
	h->cache->n--;
	free(h->layout);
	free(h);
}

void kvs_host_cache_fini(struct kvs_host_cache *c)
{
	struct kvs_host *h, *tmp;

	kvs_list_for_each_entry_safe(h, tmp, &c->list, node) {
		KVS_ASSERT(!h->refs);
		host_free(h);
	}
}

static bool same_slices(const struct kvs_host *h,
			const struct kvs_room_request *q)
{
	if (h->n_ranks != q->n_ranks)
		return false;
	for (uint32_t i = 0; i < q->n_ranks; i++) {
		struct kvs_slice s = kvs_room_slice(q, i);

		if (memcmp(&h->slices[i], &s, sizeof(s)) != 0)
			return false;
	}
	return true;
}

static struct kvs_host *host_find(struct kvs_host_cache *c,
				  const struct kvs_room_request *q,
				  const uint32_t *members, uint32_t n,
				  uint32_t page_size)
{
	struct kvs_host *h;

	kvs_list_for_each_entry(h, &c->list, node)
		if (h->n_members == n && h->layout->page_size == page_size &&
		    !memcmp(h->members, members, n * sizeof(*members)) &&
		    same_slices(h, q))
			return h;
	return NULL;
}

/* Room for one more, if any of them is not needed. */
static void host_evict(struct kvs_host_cache *c)
{
	struct kvs_host *h, *tmp;

	kvs_list_for_each_entry_safe(h, tmp, &c->list, node) {
		if (c->n < KVS_HOSTS_MAX)
			return;
		if (!h->refs)
			host_free(h);
	}
}

static int host_make(struct kvs_host_cache *c, const struct kvs_room_request *q,
		     const struct kvs_layout *const *layouts,
		     const uint32_t *members, uint32_t n,
		     struct kvs_reshard_prefill *p, struct kvs_host **ret,
		     char *err, size_t errlen)
{
	struct kvs_host *h =
		calloc(1, sizeof(*h) + q->n_ranks * sizeof(h->slices[0]));
	int res;

	if (!h) {
		snprintf(err, errlen, "no memory for the layout of a room");
		return -ENOMEM;
	}
	h->n_ranks = q->n_ranks;
	for (uint32_t i = 0; i < q->n_ranks; i++)
		h->slices[i] = kvs_room_slice(q, i);
	h->n_members = n;
	memcpy(h->members, members, n * sizeof(*members));
	p->slices = h->slices;
	res = kvs_reshard_layout(layouts, n, p, false, &h->layout, err, errlen);
	if (res) {
		free(h);
		return res;
	}
	host_evict(c);
	h->cache = c;
	h->id = c->next_id++;
	h->dev_page_size = layouts[0]->page_size;
	kvs_list_add_tail(&c->list, &h->node);
	c->n++;
	*ret = h;
	return 0;
}

int kvs_host_get(struct kvs_host_cache *c, const struct kvs_room_request *q,
		 const struct kvs_layout *const *members, uint32_t n_members,
		 struct kvs_host **ret, char *err, size_t errlen)
{
	const uint32_t *numbers = q->n_members ? q->members : &q->engine;
	struct kvs_reshard_prefill p = {
		.tp = q->tp ? q->tp : 1,
		.page_size = q->page_size ? q->page_size
					  : members[0]->page_size,
		.n_ranks = q->n_ranks,
	};
	struct kvs_host *h;
	int res;

	*ret = NULL;
	if (kvs_reshard_same(members, n_members, &p))
		return 0;
	h = host_find(c, q, numbers, n_members, p.page_size);
	if (!h) {
		res = host_make(c, q, members, numbers, n_members, &p, &h, err,
				errlen);
		if (res)
			return res;
	}
	*ret = kvs_host_hold(h);
	return 0;
}

struct kvs_host *kvs_host_hold(struct kvs_host *h)
{
	if (h)
		h->refs++;
	return h;
}

void kvs_host_put(struct kvs_host *h)
{
	if (!h)
		return;
	KVS_ASSERT(h->refs);
	h->refs--;
	/* the latest used last */
	kvs_list_del(&h->node);
	kvs_list_add_tail(&h->cache->list, &h->node);
}

void kvs_host_forget(struct kvs_host_cache *c, uint32_t engine)
{
	struct kvs_host *h, *tmp;

	kvs_list_for_each_entry_safe(h, tmp, &c->list, node) {
		bool of = false;

		for (uint32_t i = 0; i < h->n_members; i++)
			of |= h->members[i] == engine;
		if (of && !h->refs)
			host_free(h);
	}
}
