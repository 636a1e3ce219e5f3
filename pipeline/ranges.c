/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/ranges.h"

void kvs_ranges_init(struct kvs_ranges *r, uint32_t max)
{
	memset(r, 0, sizeof(*r));
	r->v = r->few;
	r->cap = KVS_ARRAY_SIZE(r->few);
	r->max = max;
}

void kvs_ranges_fini(struct kvs_ranges *r)
{
	if (r->v != r->few)
		free(r->v);
	kvs_ranges_init(r, r->max);
}

/* Index of the first range that ends after @pos; n when there is none. */
static uint32_t kvs_ranges_at(const struct kvs_ranges *r, uint64_t pos)
{
	uint32_t lo = 0, hi = r->n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (r->v[mid].end > pos)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static int kvs_ranges_grow(struct kvs_ranges *r)
{
	uint32_t cap = r->cap > UINT32_MAX / 2 ? UINT32_MAX : r->cap * 2;
	struct kvs_range *v;

	if (cap > r->max)
		cap = r->max;
	v = reallocarray(r->v == r->few ? NULL : r->v, cap, sizeof(*v));
	if (!v)
		return -ENOMEM;
	if (r->v == r->few)
		memcpy(v, r->few, sizeof(r->few));
	r->v = v;
	r->cap = cap;
	return 0;
}

static void kvs_ranges_remove(struct kvs_ranges *r, uint32_t i)
{
	memmove(&r->v[i], &r->v[i + 1], (r->n - i - 1) * sizeof(*r->v));
	r->n--;
}

int kvs_ranges_add(struct kvs_ranges *r, uint64_t start, uint64_t len)
{
	uint64_t end;
	bool before, after;
	uint32_t i;
	int err;

	if (!len || __builtin_add_overflow(start, len, &end))
		return -EINVAL;
	i = kvs_ranges_at(r, start);
	if (i < r->n && r->v[i].start < end)
		return -EEXIST;
	before = i > 0 && r->v[i - 1].end == start;
	after = i < r->n && r->v[i].start == end;
	if (before && after) {
		r->v[i - 1].end = r->v[i].end;
		kvs_ranges_remove(r, i);
	} else if (before) {
		r->v[i - 1].end = end;
	} else if (after) {
		r->v[i].start = start;
	} else {
		if (r->n >= r->max)
			return -E2BIG;
		if (r->n == r->cap) {
			err = kvs_ranges_grow(r);
			if (err)
				return err;
		}
		memmove(&r->v[i + 1], &r->v[i], (r->n - i) * sizeof(*r->v));
		r->v[i] = (struct kvs_range){ start, end };
		r->n++;
	}
	r->bytes += len;
	return 0;
}

uint64_t kvs_ranges_first_hole(const struct kvs_ranges *r, uint64_t start,
			       uint64_t end)
{
	uint32_t i;

	if (start >= end)
		return end;
	i = kvs_ranges_at(r, start);
	if (i == r->n || r->v[i].start > start)
		return start;
	/* ranges that touch were merged: the byte at v[i].end is not in */
	return r->v[i].end < end ? r->v[i].end : end;
}

bool kvs_ranges_covers(const struct kvs_ranges *r, uint64_t start, uint64_t len)
{
	uint64_t end;

	if (__builtin_add_overflow(start, len, &end))
		return false;
	return kvs_ranges_first_hole(r, start, end) == end;
}
