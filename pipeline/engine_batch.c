/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests in one call. */
#include <errno.h>
#include <limits.h>

#include "kvstage/cache.h"
#include "pipeline/engine_internal.h"

/* One of an array of requests. */
typedef int (*take_fn)(struct kvs_engine *e, const void *q, kvs_handle *ret);

/* Each begins with its size, which is the caller's and so says how far the
 * next one is. */
static int take_many(struct kvs_engine *e, const void *v, size_t n,
		     kvs_handle *ret, take_fn take)
{
	const char *q = v;
	size_t step, i;
	int res = 0;

	if (n > INT_MAX || (n && (!v || !ret)))
		return -EINVAL;
	if (!n)
		return 0;
	step = *(const size_t *)v;
	for (i = 0; i < n; i++, q += step) {
		if (*(const size_t *)(const void *)q != step)
			res = -EINVAL;
		if (!res)
			res = take(e, q, &ret[i]);
		if (res)
			break;
	}
	return i ? (int)i : res;
}

static int take_lookup(struct kvs_engine *e, const void *q, kvs_handle *ret)
{
	return kvs_cache_lookup(e, q, ret);
}

static int take_drop(struct kvs_engine *e, const void *q, kvs_handle *ret)
{
	return kvs_cache_drop(e, q, ret);
}

static int take_pin(struct kvs_engine *e, const void *q, kvs_handle *ret)
{
	return kvs_cache_pin(e, q, ret);
}

static int take_offload(struct kvs_engine *e, const void *q, kvs_handle *ret)
{
	return kvs_offload(e, q, ret);
}

static int take_retract(struct kvs_engine *e, const void *q, kvs_handle *ret)
{
	return kvs_retract(e, q, ret);
}

int kvs_cache_lookup_many(struct kvs_engine *e, const struct kvs_cache_query *v,
			  size_t n, kvs_handle *ret)
{
	return take_many(e, v, n, ret, take_lookup);
}

int kvs_cache_drop_many(struct kvs_engine *e, const struct kvs_cache_query *v,
			size_t n, kvs_handle *ret)
{
	return take_many(e, v, n, ret, take_drop);
}

int kvs_cache_pin_many(struct kvs_engine *e, const struct kvs_cache_query *v,
		       size_t n, kvs_handle *ret)
{
	return take_many(e, v, n, ret, take_pin);
}

int kvs_offload_many(struct kvs_engine *e, const struct kvs_offload *v,
		     size_t n, kvs_handle *ret)
{
	return take_many(e, v, n, ret, take_offload);
}

int kvs_retract_many(struct kvs_engine *e, const struct kvs_retract *v,
		     size_t n, kvs_handle *ret)
{
	return take_many(e, v, n, ret, take_retract);
}

/* Those that are out, or pinned, each to its own pages. The last one first:
 * each goes before all others. */
static int commit_many(struct kvs_engine *e, const kvs_handle *h,
		       const struct kvs_commit *c, size_t n, int *ret,
		       int (*one)(struct kvs_engine *e, const kvs_handle *h,
				  const struct kvs_commit *c))
{
	size_t step;
	int good = 0;

	if (n > INT_MAX || (n && (!h || !c || !ret)))
		return -EINVAL;
	if (!n)
		return 0;
	step = c->size;
	for (size_t i = n; i-- > 0;) {
		const struct kvs_commit *at =
			(const void *)((const char *)c + i * step);

		ret[i] = at->size == step ? one(e, &h[i], at) : -EINVAL;
		good += !ret[i];
	}
	return good;
}

int kvs_resume_many(struct kvs_engine *e, const kvs_handle *h,
		    const struct kvs_commit *c, size_t n, int *ret)
{
	return commit_many(e, h, c, n, ret, kvs_resume);
}

int kvs_recall_many(struct kvs_engine *e, const kvs_handle *h,
		    const struct kvs_commit *c, size_t n, int *ret)
{
	return commit_many(e, h, c, n, ret, kvs_recall);
}

static int end_many(struct kvs_engine *e, const kvs_handle *h, size_t n,
		    int (*one)(struct kvs_engine *e, const kvs_handle *h))
{
	int ended = 0;

	if (n > INT_MAX || (n && !h))
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		ended += !one(e, &h[i]);
	return ended;
}

int kvs_drop_many(struct kvs_engine *e, const kvs_handle *h, size_t n)
{
	return end_many(e, h, n, kvs_drop);
}

int kvs_cache_unpin_many(struct kvs_engine *e, const kvs_handle *h, size_t n)
{
	return end_many(e, h, n, kvs_cache_unpin);
}
