/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: arena, how it works
 *
 * Lengths are counted in units of KVS_ARENA_ALIGN. Free ranges hang in lists
 * by size class: below SL units one class per size, above that SL classes per
 * power of two. Two bitmap levels find the next non-empty class in two
 * instructions. A search rounds the length up to the next class border, so
 * that any range in the class found is long enough; only when there is none
 * are the first LOOKS ranges of the length's own class looked at.
 *
 * Descriptors are cut from slabs and chained in address order inside their
 * segment; a chain ends at the segment's border, which is what keeps blocks
 * from merging across it. A merge keeps the lower descriptor and a split
 * the lower part, hence the first descriptor of a segment never changes.
 */
#include "pinned/arena.h"

#include <errno.h>
#include <stdlib.h>

#define ARENA_MAGIC 0x6b764172u
#define UNIT_SHIFT 12
#define SL_BITS 5
#define SL (1u << SL_BITS)
/* a segment has at most 2^18 units */
#define FL (18 - SL_BITS + 2)
#define LOOKS 16u
#define SLAB_NODES 256u

_Static_assert(KVS_ARENA_ALIGN == 1u << UNIT_SHIFT, "unit is the alignment");
_Static_assert(KVS_ARENA_SEGMENT_MAX >> UNIT_SHIFT == 1u << (FL + SL_BITS - 2),
	       "classes reach up to a whole segment");

enum node_state {
	/* in the arena's spare chain; describes nothing */
	NODE_SPARE,
	/* a free range, in the list of its class */
	NODE_FREE,
	/* handed out; kvs_arena_free() moves it on */
	NODE_USED,
};

struct node {
	struct kvs_block b; /* first: the caller's view */
	struct node *before; /* neighbours by address; NULL at the border */
	struct node *after; /* also chains spare nodes */
	struct kvs_list link; /* in its class while free */
	enum node_state state;
};

struct slab {
	struct kvs_list link;
	struct node node[SLAB_NODES];
};

struct kvs_arena {
	uint32_t magic;
	uint32_t fl_map; /* bit f: sl_map[f] is not 0 */
	uint32_t sl_map[FL]; /* bit s: list[f][s] is not empty */
	struct kvs_list list[FL][SL];
	struct node *spare;
	struct kvs_list slabs;
	uint64_t size; /* bytes */
	uint64_t segment; /* bytes */
	uint64_t nsegs;
	uint64_t free; /* bytes */
	struct node **first; /* of each segment */
};

struct class
{
	unsigned int f;
	unsigned int s;
};

static struct class class_floor(uint64_t units)
{
	struct class c = { .f = 0, .s = (unsigned int)units };
	unsigned int k;

	if (units < SL)
		return c;
	k = 63 - (unsigned int)__builtin_clzll(units);
	c.f = k - SL_BITS + 1;
	c.s = (unsigned int)(units >> (k - SL_BITS)) - SL;
	return c;
}

/* The lowest class in which every range has at least @units. */
static struct class class_ceil(uint64_t units)
{
	unsigned int k;

	if (units >= SL) {
		k = 63 - (unsigned int)__builtin_clzll(units);
		units += (1ULL << (k - SL_BITS)) - 1;
	}
	return class_floor(units);
}

static struct node *to_node(struct kvs_block *b)
{
	return kvs_container_of(b, struct node, b);
}

static bool is_whole_segment(const struct kvs_arena *a, const struct node *n)
{
	return n->b.len == a->segment;
}

static void put_free(struct kvs_arena *a, struct node *n)
{
	struct class c = class_floor(n->b.len >> UNIT_SHIFT);

	n->state = NODE_FREE;
	/*
	 * Last used first, except that whole segments stay behind a shorter
	 * last one: what fits an empty arena then does not depend on the
	 * order in which it became empty, and the whole ones are spared.
	 */
	if (is_whole_segment(a, n))
		kvs_list_add_tail(&a->list[c.f][c.s], &n->link);
	else
		kvs_list_add(&a->list[c.f][c.s], &n->link);
	a->sl_map[c.f] |= 1u << c.s;
	a->fl_map |= 1u << c.f;
}

static void take_free(struct kvs_arena *a, struct node *n)
{
	struct class c = class_floor(n->b.len >> UNIT_SHIFT);

	KVS_DASSERT(n->state == NODE_FREE);
	kvs_list_del(&n->link);
	if (!kvs_list_empty(&a->list[c.f][c.s]))
		return;
	a->sl_map[c.f] &= ~(1u << c.s);
	if (!a->sl_map[c.f])
		a->fl_map &= ~(1u << c.f);
}

static struct node *spare_get(struct kvs_arena *a)
{
	struct node *n = a->spare;

	a->spare = n->after;
	n->after = NULL;
	n->before = NULL;
	kvs_list_init(&n->link);
	return n;
}

static void spare_put(struct kvs_arena *a, struct node *n)
{
	n->state = NODE_SPARE;
	n->before = NULL;
	n->after = a->spare;
	a->spare = n;
}

static int spare_fill(struct kvs_arena *a)
{
	struct slab *s;
	unsigned int i;

	if (a->spare)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	kvs_list_add(&a->slabs, &s->link);
	for (i = SLAB_NODES; i-- > 0;)
		spare_put(a, &s->node[i]);
	return 0;
}

int kvs_arena_create(uint64_t size, uint64_t segment, struct kvs_arena **ret)
{
	struct kvs_arena *a;
	struct node *n;
	uint64_t i;
	unsigned int f, s;

	if (!segment)
		segment = KVS_ARENA_SEGMENT_MAX;
	if (!size || size % KVS_ARENA_ALIGN || segment % KVS_ARENA_ALIGN ||
	    segment > KVS_ARENA_SEGMENT_MAX)
		return -EINVAL;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->magic = ARENA_MAGIC;
	a->size = size;
	a->free = size;
	a->segment = segment < size ? segment : size;
	a->nsegs = size / a->segment + !!(size % a->segment);
	kvs_list_init(&a->slabs);
	for (f = 0; f < FL; f++)
		for (s = 0; s < SL; s++)
			kvs_list_init(&a->list[f][s]);
	a->first = calloc(a->nsegs, sizeof(struct node *));
	if (!a->first)
		goto out_free;
	for (i = 0; i < a->nsegs; i++) {
		if (spare_fill(a))
			goto out_free;
		n = spare_get(a);
		n->b.off = i * a->segment;
		n->b.len = size - n->b.off < a->segment ? size - n->b.off
							: a->segment;
		a->first[i] = n;
		put_free(a, n);
	}
	*ret = a;
	return 0;

out_free:
	kvs_arena_destroy(a);
	return -ENOMEM;
}

void kvs_arena_destroy(struct kvs_arena *a)
{
	struct slab *s, *tmp;

	if (!a)
		return;
	KVS_CHECK_MAGIC(a, ARENA_MAGIC);
	KVS_ASSERT(a->free == a->size);
	kvs_list_for_each_entry_safe(s, tmp, &a->slabs, link)
		free(s);
	free(a->first);
	a->magic = 0;
	free(a);
}

static struct node *find_higher(const struct kvs_arena *a, struct class c)
{
	uint32_t map = a->sl_map[c.f] & (~0u << c.s);

	if (!map) {
		map = a->fl_map & (~0u << (c.f + 1));
		if (!map)
			return NULL;
		c.f = (unsigned int)__builtin_ctz(map);
		map = a->sl_map[c.f];
	}
	c.s = (unsigned int)__builtin_ctz(map);
	return kvs_list_first(&a->list[c.f][c.s], struct node, link);
}

static struct node *find_own(const struct kvs_arena *a, struct class c,
			     uint64_t len)
{
	struct node *n;
	unsigned int looks = 0;

	kvs_list_for_each_entry(n, &a->list[c.f][c.s], link) {
		if (n->b.len >= len)
			return n;
		if (++looks == LOOKS)
			break;
	}
	return NULL;
}

int kvs_arena_alloc(struct kvs_arena *a, uint64_t len, struct kvs_block **ret)
{
	struct node *n, *rest;
	int r;

	KVS_CHECK_MAGIC(a, ARENA_MAGIC);
	if (!len)
		return -EINVAL;
	if (len > a->segment)
		return -E2BIG;
	/* a segment is a multiple of the alignment: stays within it */
	len = (len + KVS_ARENA_ALIGN - 1) & ~(uint64_t)(KVS_ARENA_ALIGN - 1);
	n = find_higher(a, class_ceil(len >> UNIT_SHIFT));
	if (!n)
		n = find_own(a, class_floor(len >> UNIT_SHIFT), len);
	if (!n)
		return -EAGAIN;
	if (n->b.len > len) {
		r = spare_fill(a);
		if (r)
			return r;
	}
	take_free(a, n);
	if (n->b.len > len) {
		rest = spare_get(a);
		rest->b.off = n->b.off + len;
		rest->b.len = n->b.len - len;
		rest->before = n;
		rest->after = n->after;
		if (rest->after)
			rest->after->before = rest;
		n->after = rest;
		n->b.len = len;
		put_free(a, rest);
	}
	n->state = NODE_USED;
	a->free -= len;
	*ret = &n->b;
	return 0;
}

/* @n takes over the range of its upper neighbour. */
static void absorb_after(struct kvs_arena *a, struct node *n)
{
	struct node *gone = n->after;

	n->b.len += gone->b.len;
	n->after = gone->after;
	if (n->after)
		n->after->before = n;
	spare_put(a, gone);
}

void kvs_arena_free(struct kvs_arena *a, struct kvs_block *b)
{
	struct node *n = to_node(b);

	KVS_CHECK_MAGIC(a, ARENA_MAGIC);
	KVS_ASSERT(n->state == NODE_USED);
	a->free += n->b.len;
	if (n->after && n->after->state == NODE_FREE) {
		take_free(a, n->after);
		absorb_after(a, n);
	}
	if (n->before && n->before->state == NODE_FREE) {
		n = n->before;
		take_free(a, n);
		absorb_after(a, n);
	}
	put_free(a, n);
}

uint64_t kvs_arena_size(const struct kvs_arena *a)
{
	return a->size;
}

uint64_t kvs_arena_free_bytes(const struct kvs_arena *a)
{
	return a->free;
}

uint64_t kvs_arena_segment(const struct kvs_arena *a)
{
	return a->segment;
}

uint64_t kvs_arena_largest_free(const struct kvs_arena *a)
{
	const struct node *n;
	uint64_t max = 0;
	unsigned int f, s, looks = 0;

	if (!a->fl_map)
		return 0;
	f = 31 - (unsigned int)__builtin_clz(a->fl_map);
	s = 31 - (unsigned int)__builtin_clz(a->sl_map[f]);
	/* the same ranges that find_own() looks at, so max is obtainable */
	kvs_list_for_each_entry(n, &a->list[f][s], link) {
		if (n->b.len > max)
			max = n->b.len;
		if (++looks == LOOKS)
			break;
	}
	return max;
}

static void check_lists(const struct kvs_arena *a, uint64_t nfree)
{
	const struct node *n;
	struct class c;
	unsigned int f, s;
	uint64_t listed = 0;
	bool empty;

	for (f = 0; f < FL; f++) {
		KVS_ASSERT(!(a->fl_map >> f & 1) == !a->sl_map[f]);
		for (s = 0; s < SL; s++) {
			empty = kvs_list_empty(&a->list[f][s]);
			KVS_ASSERT(!(a->sl_map[f] >> s & 1) == empty);
			kvs_list_for_each_entry(n, &a->list[f][s], link) {
				KVS_ASSERT(n->state == NODE_FREE);
				c = class_floor(n->b.len >> UNIT_SHIFT);
				KVS_ASSERT(c.f == f && c.s == s);
				listed++;
			}
		}
	}
	KVS_ASSERT(listed == nfree);
}

void kvs_arena_check(const struct kvs_arena *a)
{
	const struct node *n;
	uint64_t i, off, end, nfree = 0, free_bytes = 0;

	KVS_CHECK_MAGIC(a, ARENA_MAGIC);
	for (i = 0; i < a->nsegs; i++) {
		off = i * a->segment;
		end = a->size - off < a->segment ? a->size : off + a->segment;
		KVS_ASSERT(a->first[i] && !a->first[i]->before);
		for (n = a->first[i]; n; n = n->after) {
			KVS_ASSERT(n->b.off == off);
			KVS_ASSERT(n->b.len && n->b.len % KVS_ARENA_ALIGN == 0);
			KVS_ASSERT(n->state != NODE_SPARE);
			KVS_ASSERT(!n->after || n->after->before == n);
			off += n->b.len;
			if (n->state != NODE_FREE)
				continue;
			KVS_ASSERT(!n->after || n->after->state != NODE_FREE);
			nfree++;
			free_bytes += n->b.len;
		}
		KVS_ASSERT(off == end);
	}
	KVS_ASSERT(free_bytes == a->free);
	check_lists(a, nfree);
}
