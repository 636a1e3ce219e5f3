/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rule.h"
#include "pinned/poison.h"

#define POOL_MAGIC 0x6b76506fu
#define EXTENT_MAGIC 0x6b764578u

#define KVS_NAME_(n, s) [KVS_EXTENT_##n] = s,
const char *const kvs_extent_state_name[KVS_EXTENT_STATE_MAX] = {
	KVS_EXTENT_STATES(KVS_NAME_)
};
#undef KVS_NAME_

/*
 * Where an extent may go from each state. TO_FREE is taken only by
 * kvs_pool_release(), FREE -> RESERVED only by kvs_pool_alloc(). Held bytes
 * lead nowhere but out: what was aborted is never read again.
 */
#define TO(s) (1u << KVS_EXTENT_##s)
#define EDGES_FREE TO(RESERVED)
#define EDGES_RESERVED (TO(GRANTED) | TO(HELD) | TO(FREE))
#define EDGES_GRANTED (TO(STAGED) | TO(HELD) | TO(FREE))
#define EDGES_STAGED \
	(TO(COMMITTING) | TO(CACHED) | TO(RETRACTED) | TO(HELD) | TO(FREE))
#define EDGES_COMMITTING (TO(CACHED) | TO(HELD) | TO(FREE))
#define EDGES_HELD (TO(QUARANTINED) | TO(FREE))
#define EDGES_QUARANTINED TO(FREE)
#define EDGES_CACHED (TO(HELD) | TO(FREE))
#define EDGES_RETRACTED (TO(COMMITTING) | TO(CACHED) | TO(HELD) | TO(FREE))

/* A state without its EDGES_ or CPU_ line above or below does not compile. */
#define KVS_EDGES_(n, s) [KVS_EXTENT_##n] = EDGES_##n,
static const uint32_t edges[] = { KVS_EXTENT_STATES(KVS_EDGES_) };
#undef KVS_EDGES_
_Static_assert(KVS_ARRAY_SIZE(edges) == KVS_EXTENT_STATE_MAX,
	       "every extent state has its edges");

/* May this process load from or store to the bytes? */
#define CPU_FREE false
#define CPU_RESERVED false
#define CPU_GRANTED true /* our own receive and the canaries write it */
#define CPU_STAGED true
#define CPU_COMMITTING true
#define CPU_HELD false
#define CPU_QUARANTINED false
#define CPU_CACHED true
#define CPU_RETRACTED true

#define KVS_CPU_(n, s) [KVS_EXTENT_##n] = CPU_##n,
static const bool cpu_may_touch[] = { KVS_EXTENT_STATES(KVS_CPU_) };
#undef KVS_CPU_
_Static_assert(KVS_ARRAY_SIZE(cpu_may_touch) == KVS_EXTENT_STATE_MAX,
	       "every extent state says who may touch it");

struct kvs_pool {
	uint32_t magic;
	int node;
	const char *name;
	char *base; /* NULL: phantom */
	struct kvs_arena *arena;
	struct kvs_waitq waitq;
	struct kvs_pool_account account;
	uint64_t generation; /* of the last extent handed out */
};

int kvs_pool_create(const struct kvs_pool_opts *o, struct kvs_pool **ret)
{
	struct kvs_pool *p;
	int r;

	if (!o->name || !o->clock || (uintptr_t)o->base % KVS_ARENA_ALIGN)
		return -EINVAL;
	if (o->base && o->size > UINTPTR_MAX - (uintptr_t)o->base)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	r = kvs_arena_create(o->size, o->segment, &p->arena);
	if (r) {
		free(p);
		return r;
	}
	p->magic = POOL_MAGIC;
	p->node = o->node;
	p->name = o->name;
	p->base = o->base;
	p->account.configured = o->size;
	p->account.bytes[KVS_EXTENT_FREE] = o->size;
	kvs_waitq_init(&p->waitq, o->clock, o->overtake_max, o->overtake_ns);
	if (p->base)
		KVS_POISON(p->base, o->size);
	*ret = p;
	return 0;
}

void kvs_pool_destroy(struct kvs_pool *p)
{
	if (!p)
		return;
	kvs_pool_check(p);
	KVS_ASSERT(p->account.bytes[KVS_EXTENT_FREE] == p->account.configured);
	KVS_ASSERT(p->waitq.len == 0);
	/* the addresses may be mapped again for something else */
	if (p->base)
		KVS_UNPOISON(p->base, p->account.configured);
	kvs_arena_destroy(p->arena);
	p->magic = 0;
	free(p);
}

uint64_t kvs_pool_round(uint64_t len)
{
	if (len > UINT64_MAX - KVS_ARENA_ALIGN + 1)
		return UINT64_MAX - KVS_ARENA_ALIGN + 1;
	return (len + KVS_ARENA_ALIGN - 1) & ~(uint64_t)(KVS_ARENA_ALIGN - 1);
}

/* Tries it out: a second arena of the same shape is the exact answer. */
static bool packs(const struct kvs_pool *p, const uint64_t *lens, uint32_t n)
{
	struct kvs_block **b;
	struct kvs_arena *a;
	uint32_t i, done;
	int r = -ENOMEM;

	b = calloc(n, sizeof(*b));
	if (!b)
		return true;
	if (kvs_arena_create(kvs_arena_size(p->arena),
			     kvs_arena_segment(p->arena), &a)) {
		free(b);
		return true;
	}
	for (done = 0; done < n; done++) {
		r = kvs_arena_alloc(a, lens[done], &b[done]);
		if (r)
			break;
	}
	for (i = 0; i < done; i++)
		kvs_arena_free(a, b[i]);
	kvs_arena_destroy(a);
	free(b);
	/* out of memory here says nothing; the allocation itself will */
	return done == n || r == -ENOMEM;
}

/* Checks the lengths; sums of n <= 2^32 lengths <= 2^30 cannot overflow. */
static int add_up(const struct kvs_pool *p, const uint64_t *lens, uint32_t n,
		  uint64_t *ret_sum, uint64_t *ret_max)
{
	uint64_t segment = kvs_arena_segment(p->arena);
	uint64_t len, sum = 0, max = 0;
	uint32_t i;

	if (!n)
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!lens[i])
			return -EINVAL;
	for (i = 0; i < n; i++) {
		if (lens[i] > segment)
			return -E2BIG;
		len = kvs_pool_round(lens[i]);
		sum += len;
		if (len > max)
			max = len;
	}
	*ret_sum = sum;
	*ret_max = max;
	return 0;
}

int kvs_pool_can_fit(const struct kvs_pool *p, const uint64_t *lens, uint32_t n,
		     bool *ret_quarantine_blocks)
{
	uint64_t size = p->account.configured;
	uint64_t segment = kvs_arena_segment(p->arena);
	uint64_t nsegs = size / segment + !!(size % segment);
	uint64_t sum, max, waste;
	int r;

	KVS_CHECK_MAGIC(p, POOL_MAGIC);
	if (ret_quarantine_blocks)
		*ret_quarantine_blocks = false;
	r = add_up(p, lens, n, &sum, &max);
	if (r)
		return r;
	if (sum > size)
		return -E2BIG;
	/*
	 * An extent of max bytes is refused only when no segment has that,
	 * and a class of the arena more, left at its end: short of such a
	 * sum nothing can go wrong.
	 */
	waste = nsegs * (max + max / 32);
	if (nsegs > 1 && n > 1 && (waste >= size || sum > size - waste) &&
	    !packs(p, lens, n))
		return -E2BIG;
	if (sum > size - p->account.bytes[KVS_EXTENT_QUARANTINED]) {
		if (ret_quarantine_blocks)
			*ret_quarantine_blocks = true;
		return -E2BIG;
	}
	return 0;
}

static int not_now(const struct kvs_pool *p, const uint64_t *lens, uint32_t n)
{
	const uint64_t *bytes = p->account.bytes;
	int r = kvs_pool_can_fit(p, lens, n, NULL);

	if (r)
		return r;
	/*
	 * Nothing is out but quarantined pieces, and they split the space:
	 * no release that may be waited for can help.
	 */
	if (bytes[KVS_EXTENT_FREE] + bytes[KVS_EXTENT_QUARANTINED] ==
	    p->account.configured)
		return -E2BIG;
	return -EAGAIN;
}

static void move_bytes(struct kvs_pool *p, uint64_t bytes,
		       enum kvs_extent_state from, enum kvs_extent_state to)
{
	struct kvs_pool_account *acc = &p->account;
	uint64_t used;

	KVS_ASSERT(acc->bytes[from] >= bytes);
	acc->bytes[from] -= bytes;
	acc->bytes[to] += bytes;
	used = acc->configured - acc->bytes[KVS_EXTENT_FREE];
	if (used > acc->high_water)
		acc->high_water = used;
}

int kvs_pool_alloc(struct kvs_pool *p, const uint64_t *lens, uint32_t n,
		   struct kvs_extents *ret)
{
	struct kvs_extent *v;
	uint64_t sum, max;
	uint32_t i;
	int r;

	KVS_CHECK_MAGIC(p, POOL_MAGIC);
	r = add_up(p, lens, n, &sum, &max);
	if (r)
		return r;
	if (sum > p->account.bytes[KVS_EXTENT_FREE])
		return not_now(p, lens, n);
	v = calloc(n, sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		r = kvs_arena_alloc(p->arena, lens[i], &v[i].block);
		if (r)
			goto out_undo;
		v[i].magic = EXTENT_MAGIC;
		v[i].state = KVS_EXTENT_RESERVED;
		v[i].off = v[i].block->off;
		v[i].len = lens[i];
	}
	for (i = 0; i < n; i++)
		v[i].generation = ++p->generation;
	move_bytes(p, sum, KVS_EXTENT_FREE, KVS_EXTENT_RESERVED);
	ret->pool = p;
	ret->v = v;
	ret->n = n;
	ret->bytes = sum;
	return 0;

out_undo:
	while (i-- > 0)
		kvs_arena_free(p->arena, v[i].block);
	free(v);
	return r == -EAGAIN ? not_now(p, lens, n) : r;
}

void *kvs_extent_addr(const struct kvs_extents *x, uint32_t i)
{
	KVS_ASSERT(i < x->n);
	KVS_CHECK_MAGIC(&x->v[i], EXTENT_MAGIC);
	if (!x->pool->base)
		return NULL;
	return x->pool->base + x->v[i].off;
}

void kvs_extents_set_state(struct kvs_extents *x, enum kvs_extent_state to)
{
	enum kvs_extent_state from;
	struct kvs_extent *e;
	uint32_t i;

	if (!x->n)
		return;
	KVS_CHECK_MAGIC(x->pool, POOL_MAGIC);
	from = x->v[0].state;
	KVS_ASSERT(to < KVS_EXTENT_STATE_MAX && to != KVS_EXTENT_FREE);
	KVS_ASSERT(from != KVS_EXTENT_FREE);
	/* R10 is in the table: HELD leads to QUARANTINED and FREE only. */
	if (from != KVS_EXTENT_HELD || KVS_RULE(R10, EDGES))
		KVS_ASSERT(edges[from] >> to & 1);
	for (i = 0; i < x->n; i++) {
		e = &x->v[i];
		KVS_CHECK_MAGIC(e, EXTENT_MAGIC);
		KVS_ASSERT(e->state == from);
		e->state = to;
		if (!x->pool->base || cpu_may_touch[from] == cpu_may_touch[to])
			continue;
		if (cpu_may_touch[to])
			KVS_UNPOISON(x->pool->base + e->off, e->len);
		else
			KVS_POISON(x->pool->base + e->off, e->block->len);
	}
	move_bytes(x->pool, x->bytes, from, to);
}

int kvs_extents_split(struct kvs_extents *x, uint32_t i,
		      struct kvs_extents *ret)
{
	struct kvs_extent *v;

	KVS_ASSERT(i < x->n);
	KVS_CHECK_MAGIC(&x->v[i], EXTENT_MAGIC);
	v = malloc(sizeof(*v));
	if (!v)
		return -ENOMEM;
	*v = x->v[i];
	ret->pool = x->pool;
	ret->v = v;
	ret->n = 1;
	ret->bytes = v->block->len;
	x->bytes -= ret->bytes;
	x->v[i] = x->v[--x->n];
	if (!x->n) {
		free(x->v);
		memset(x, 0, sizeof(*x));
	}
	return 0;
}

void kvs_pool_release(struct kvs_extents *x, const struct kvs_drain *d)
{
	struct kvs_pool *p = x->pool;
	enum kvs_extent_state from;
	struct kvs_extent *e;
	uint32_t i;

	if (KVS_RULE(R1, RELEASE))
		KVS_ASSERT(kvs_drain_is_over(d));
	if (!x->n)
		return;
	KVS_CHECK_MAGIC(p, POOL_MAGIC);
	from = x->v[0].state;
	KVS_ASSERT(edges[from] & TO(FREE));
	for (i = 0; i < x->n; i++) {
		e = &x->v[i];
		KVS_CHECK_MAGIC(e, EXTENT_MAGIC);
		KVS_ASSERT(e->state == from);
		if (p->base && cpu_may_touch[from])
			KVS_POISON(p->base + e->off, e->block->len);
		e->magic = 0;
		kvs_arena_free(p->arena, e->block);
	}
	move_bytes(p, x->bytes, from, KVS_EXTENT_FREE);
	free(x->v);
	memset(x, 0, sizeof(*x));
}

void kvs_pool_account(const struct kvs_pool *p, struct kvs_pool_account *ret)
{
	*ret = p->account;
}

void kvs_pool_check(const struct kvs_pool *p)
{
	uint64_t sum = 0;
	unsigned int i;

	KVS_CHECK_MAGIC(p, POOL_MAGIC);
	for (i = 0; i < KVS_EXTENT_STATE_MAX; i++)
		sum += p->account.bytes[i];
	KVS_ASSERT(sum == p->account.configured);
	KVS_ASSERT(sum == kvs_arena_size(p->arena));
	KVS_ASSERT(p->account.bytes[KVS_EXTENT_FREE] ==
		   kvs_arena_free_bytes(p->arena));
}

struct kvs_waitq *kvs_pool_waitq(struct kvs_pool *p)
{
	return &p->waitq;
}

const char *kvs_pool_name(const struct kvs_pool *p)
{
	return p->name;
}

int kvs_pool_node(const struct kvs_pool *p)
{
	return p->node;
}

void *kvs_pool_base(const struct kvs_pool *p)
{
	return p->base;
}

uint64_t kvs_pool_size(const struct kvs_pool *p)
{
	return p->account.configured;
}

uint64_t kvs_pool_segment(const struct kvs_pool *p)
{
	return kvs_arena_segment(p->arena);
}
