/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/spans.h"

void kvs_spans_fini(struct kvs_spans *s)
{
	free(s->v);
	memset(s, 0, sizeof(*s));
}

/* Index of the first range that ends above @addr; s->n when none does. */
static size_t kvs_spans_at(const struct kvs_spans *s, uintptr_t addr)
{
	size_t lo = 0;
	size_t hi = s->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (s->v[mid].addr + (s->v[mid].len - 1) < addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool kvs_spans_meets(const struct kvs_spans *s, size_t i, uintptr_t addr,
			    uint64_t len)
{
	return i < s->n && s->v[i].addr <= addr + (len - 1);
}

int kvs_spans_add(struct kvs_spans *s, const void *addr, uint64_t len,
		  bool read_only)
{
	size_t i = kvs_spans_at(s, (uintptr_t)addr);

	if (kvs_spans_meets(s, i, (uintptr_t)addr, len))
		return -EEXIST;
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 16;
		struct kvs_span *v = reallocarray(s->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		s->v = v;
		s->cap = cap;
	}
	memmove(&s->v[i + 1], &s->v[i], (s->n - i) * sizeof(s->v[0]));
	s->v[i] = (struct kvs_span){
		.addr = (uintptr_t)addr,
		.len = len,
		.read_only = read_only,
	};
	s->n++;
	s->bytes += len;
	return 0;
}

void kvs_spans_set_dev(struct kvs_spans *s, const void *addr, uint64_t dev)
{
	size_t i = kvs_spans_at(s, (uintptr_t)addr);

	if (i < s->n && s->v[i].addr == (uintptr_t)addr)
		s->v[i].dev = dev;
}

int kvs_spans_del(struct kvs_spans *s, const void *addr, uint64_t len)
{
	size_t i = kvs_spans_at(s, (uintptr_t)addr);

	if (i == s->n || s->v[i].addr != (uintptr_t)addr)
		return -ENOENT;
	if (len && s->v[i].len != len)
		return -ENOENT;
	s->n--;
	s->bytes -= s->v[i].len;
	memmove(&s->v[i], &s->v[i + 1], (s->n - i) * sizeof(s->v[0]));
	return 0;
}

int kvs_spans_find(const struct kvs_spans *s, const void *addr, uint64_t len,
		   const struct kvs_span **ret)
{
	uintptr_t a = (uintptr_t)addr;
	size_t i = kvs_spans_at(s, a);
	const struct kvs_span *v;

	if (!kvs_spans_meets(s, i, a, len)) {
		*ret = NULL;
		return 0;
	}
	v = &s->v[i];
	/* no sum: a range may end at the top of the address space */
	if (a < v->addr || len > v->len || a - v->addr > v->len - len)
		return -ERANGE;
	*ret = v;
	return 0;
}
