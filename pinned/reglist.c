/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/reglist.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/log.h"

#define REGLIST_MAGIC 0x6b765267u

struct chunk {
	uint64_t off; /* bytes from the pool's start */
	uint64_t len;
	uint64_t handle;
};

/*
 * The pool is cut into spans (a segment, or all of it), and each span into
 * chunks of one size with a shorter last one: the index is a division.
 */
struct kvs_reglist {
	uint32_t magic;
	unsigned int n;
	struct kvs_pool *pool;
	const struct kvs_registrar_ops *ops;
	void *ctx;
	uint64_t span; /* bytes */
	uint64_t step; /* bytes; full chunk */
	uint64_t per_span; /* chunks of a full span */
	struct chunk *chunk;
};

static uint64_t div_up(uint64_t a, uint64_t b)
{
	return a / b + !!(a % b);
}

/* Chunk borders: multiples of both; 0 when that is more than 64 bits. */
static uint64_t common_multiple(uint64_t unit)
{
	uint64_t shift = (uint64_t)__builtin_ctzll(unit), ret;

	if (shift >= 12)
		return unit;
	if (__builtin_mul_overflow(unit, KVS_ARENA_ALIGN >> shift, &ret))
		return 0;
	return ret;
}

static int plan(struct kvs_reglist *r, uint64_t unit)
{
	uint64_t size = kvs_pool_size(r->pool);
	uint64_t segment = kvs_pool_segment(r->pool);
	uint64_t max = r->ops->max_chunk ? r->ops->max_chunk : size;
	uint64_t border;

	if (max >= size) {
		r->span = size;
		r->step = size;
	} else if (max >= segment) {
		r->span = size;
		r->step = max - max % segment;
	} else {
		border = common_multiple(unit ? unit : KVS_ARENA_ALIGN);
		if (!border || max < border)
			return -EINVAL;
		r->span = segment;
		r->step = max - max % border;
	}
	r->per_span = div_up(r->span, r->step);
	return 0;
}

static uint64_t count_chunks(const struct kvs_reglist *r)
{
	uint64_t size = kvs_pool_size(r->pool);

	return size / r->span * r->per_span + div_up(size % r->span, r->step);
}

static int unregister(struct kvs_reglist *r, unsigned int i)
{
	struct chunk *c = &r->chunk[i];
	char *base = kvs_pool_base(r->pool);
	int err;

	err = r->ops->unreg(r->ctx, base + c->off, c->len, c->handle);
	if (err)
		kvs_log_debug("%s: chunk %u of pool %s stays registered: %d",
			      r->ops->name, i, kvs_pool_name(r->pool), err);
	return err;
}

static int register_all(struct kvs_reglist *r)
{
	uint64_t size = kvs_pool_size(r->pool);
	char *base = kvs_pool_base(r->pool);
	uint64_t off, left;
	struct chunk *c;
	int err;

	for (off = 0; off < size; off += c->len) {
		c = &r->chunk[r->n];
		c->off = off;
		left = r->span - off % r->span;
		if (left > size - off)
			left = size - off;
		c->len = left < r->step ? left : r->step;
		err = r->ops->reg(r->ctx, base + off, c->len, &c->handle);
		if (err)
			goto out_undo;
		r->n++;
	}
	return 0;

out_undo:
	while (r->n > 0)
		unregister(r, --r->n);
	return err;
}

uint64_t kvs_reglist_segment(uint64_t max_chunk, uint64_t page_size)
{
	if (max_chunk >= KVS_ARENA_SEGMENT_MAX)
		return KVS_ARENA_SEGMENT_MAX;
	return max_chunk / page_size * page_size;
}

int kvs_reglist_create(struct kvs_pool *p, const struct kvs_registrar_ops *ops,
		       void *ctx, uint64_t unit, struct kvs_reglist **ret)
{
	struct kvs_reglist *r;
	uint64_t n;
	int err;

	if (!kvs_pool_base(p))
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->magic = REGLIST_MAGIC;
	r->pool = p;
	r->ops = ops;
	r->ctx = ctx;
	err = plan(r, unit);
	if (err)
		goto out_free;
	err = -ENOMEM;
	n = count_chunks(r);
	if (n > UINT32_MAX)
		goto out_free;
	r->chunk = calloc(n, sizeof(*r->chunk));
	if (!r->chunk)
		goto out_free;
	err = register_all(r);
	if (err)
		goto out_free;
	KVS_ASSERT(r->n == n);
	*ret = r;
	return 0;

out_free:
	free(r->chunk);
	free(r);
	return err;
}

int kvs_reglist_destroy(struct kvs_reglist *r)
{
	int err, first = 0;

	if (!r)
		return 0;
	KVS_CHECK_MAGIC(r, REGLIST_MAGIC);
	while (r->n > 0) {
		err = unregister(r, --r->n);
		if (err && !first)
			first = err;
	}
	r->magic = 0;
	free(r->chunk);
	free(r);
	return first;
}

unsigned int kvs_reglist_chunks(const struct kvs_reglist *r)
{
	return r->n;
}

int kvs_reglist_lookup(const struct kvs_reglist *r, uint64_t off, uint64_t len,
		       uint64_t *ret_handle, uint64_t *ret_chunk_off)
{
	uint64_t size, i;
	const struct chunk *c;

	KVS_CHECK_MAGIC(r, REGLIST_MAGIC);
	size = kvs_pool_size(r->pool);
	if (!len || off >= size || len > size - off)
		return -ERANGE;
	i = off / r->span * r->per_span + off % r->span / r->step;
	c = &r->chunk[i];
	KVS_DASSERT(off >= c->off && off - c->off < c->len);
	if (len > c->len - (off - c->off))
		return -ERANGE;
	*ret_handle = c->handle;
	*ret_chunk_off = c->off;
	return 0;
}
