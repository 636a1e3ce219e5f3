/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which unit goes next. S3-FIFO is algorithm 1 of the paper that index.h names,
 * with a ghost as long as the main queue and two bits to count uses, as it has
 * them; index.h says why its other two constants are settings. Shares are of
 * bytes here, as units differ in size.
 *
 * A unit that eviction meets with a pin on it is set aside, so that it is met
 * once for each pin and not by every eviction; its last unpin puts it back at
 * the head of the main queue, as one that was used.
 */
#include <errno.h>

#include "hicache/index_internal.h"

#define BUCKET 8u /* shades; a cache line */

static struct kvs_ix_tier *tier_of(struct kvs_index *ix, uint32_t u)
{
	return &ix->tier[ix->unit[u].tier];
}

/* Rounded down; does not overflow. */
static uint64_t per_mille(uint64_t bytes, uint32_t share)
{
	return bytes / KVS_INDEX_PER_MILLE * share +
	       bytes % KVS_INDEX_PER_MILLE * share / KVS_INDEX_PER_MILLE;
}

/* ---- queues ---- */

void kvs_ix_queues_init(struct kvs_ix_tier *t)
{
	for (unsigned int q = 0; q < KVS_IX_QUEUES; q++)
		t->queue[q] = (struct kvs_ix_list){
			.head = KVS_IX_NONE,
			.tail = KVS_IX_NONE,
		};
}

static void push(struct kvs_index *ix, uint32_t u, enum kvs_ix_queue q)
{
	struct kvs_ix_list *l = &tier_of(ix, u)->queue[q];
	struct kvs_ix_unit *x = &ix->unit[u];

	x->queue = (uint8_t)q;
	x->prev = KVS_IX_NONE;
	x->next = l->head;
	if (l->head != KVS_IX_NONE)
		ix->unit[l->head].prev = u;
	else
		l->tail = u;
	l->head = u;
	l->bytes += x->bytes;
	l->units++;
}

void kvs_ix_dequeue(struct kvs_index *ix, uint32_t u)
{
	struct kvs_ix_unit *x = &ix->unit[u];
	struct kvs_ix_list *l;

	if (x->queue == KVS_IX_ASIDE)
		return;
	l = &tier_of(ix, u)->queue[x->queue];
	if (x->prev != KVS_IX_NONE)
		ix->unit[x->prev].next = x->next;
	else
		l->head = x->next;
	if (x->next != KVS_IX_NONE)
		ix->unit[x->next].prev = x->prev;
	else
		l->tail = x->prev;
	l->bytes -= x->bytes;
	l->units--;
	x->queue = KVS_IX_ASIDE;
}

static void move(struct kvs_index *ix, uint32_t u, enum kvs_ix_queue q)
{
	kvs_ix_dequeue(ix, u);
	push(ix, u, q);
}

/* ---- ghost ---- */

static struct kvs_ix_shade *bucket(struct kvs_index *ix, uint32_t u,
				   uint32_t *ret_tag)
{
	const struct kvs_ix_unit *x = &ix->unit[u];
	uint64_t h = kvs_ix_hash(ix, &ix->entry[x->first].key);
	uint64_t at = h >> (64 - ix->ghost_bits) & ~(uint64_t)(BUCKET - 1);

	*ret_tag = (uint32_t)h;
	return &ix->tier[x->tier].ghost[at];
}

/* How far back the ghost remembers: the units that fit the main queue. */
static uint64_t ghost_length(const struct kvs_index *ix,
			     const struct kvs_ix_tier *t)
{
	uint64_t units =
		t->queue[KVS_IX_SMALL].units + t->queue[KVS_IX_MAIN].units;

	return per_mille(units, KVS_INDEX_PER_MILLE - ix->small_share);
}

static void ghost_add(struct kvs_index *ix, uint32_t u)
{
	struct kvs_ix_tier *t = tier_of(ix, u);
	struct kvs_ix_shade *b, *to;
	uint32_t tag;

	b = to = bucket(ix, u, &tag);
	if (!++t->evictions)
		t->evictions = 1;
	for (unsigned int i = 0; i < BUCKET; i++) {
		if (!b[i].at || b[i].tag == tag) {
			to = &b[i];
			break;
		}
		if (t->evictions - b[i].at > t->evictions - to->at)
			to = &b[i];
	}
	to->tag = tag;
	to->at = t->evictions;
}

/* Was it evicted from the small queue not long ago? */
static bool ghost_take(struct kvs_index *ix, uint32_t u)
{
	struct kvs_ix_tier *t = tier_of(ix, u);
	struct kvs_ix_shade *b;
	uint32_t tag;

	b = bucket(ix, u, &tag);
	for (unsigned int i = 0; i < BUCKET; i++) {
		if (!b[i].at || b[i].tag != tag)
			continue;
		if (t->evictions - b[i].at >= ghost_length(ix, t))
			return false;
		b[i].at = 0;
		return true;
	}
	return false;
}

/* ---- what happens to units ---- */

void kvs_ix_enqueue(struct kvs_index *ix, uint32_t u)
{
	enum kvs_ix_queue q = KVS_IX_SMALL;

	if (ix->policy == KVS_POLICY_S3FIFO && ghost_take(ix, u)) {
		tier_of(ix, u)->a.again++;
		q = KVS_IX_MAIN;
	}
	push(ix, u, q);
}

void kvs_ix_unpinned(struct kvs_index *ix, uint32_t u)
{
	if (ix->unit[u].queue == KVS_IX_ASIDE)
		push(ix, u,
		     ix->policy == KVS_POLICY_LRU ? KVS_IX_SMALL : KVS_IX_MAIN);
}

void kvs_ix_used(struct kvs_index *ix, uint32_t u)
{
	struct kvs_ix_unit *x = &ix->unit[u];

	if (ix->policy == KVS_POLICY_LRU) {
		if (x->queue != KVS_IX_ASIDE)
			move(ix, u, KVS_IX_SMALL);
	} else if (x->used < KVS_INDEX_USED_MAX) {
		x->used++;
	}
}

/* ---- choosing ---- */

/* The tail of a queue, without those that are pinned. */
static uint32_t last_of(struct kvs_index *ix, struct kvs_ix_list *l)
{
	while (l->tail != KVS_IX_NONE && ix->unit[l->tail].pins)
		kvs_ix_dequeue(ix, l->tail);
	return l->tail;
}

static uint32_t choose_lru(struct kvs_index *ix, struct kvs_ix_tier *t)
{
	return last_of(ix, &t->queue[KVS_IX_SMALL]);
}

static uint32_t choose_s3fifo(struct kvs_index *ix, struct kvs_ix_tier *t)
{
	struct kvs_ix_list *small = &t->queue[KVS_IX_SMALL];
	struct kvs_ix_list *big = &t->queue[KVS_IX_MAIN];
	uint64_t share = per_mille(t->limits.quota, ix->small_share);
	struct kvs_ix_unit *x;
	uint32_t s, m;

	/* Ends: each turn moves one out of the small queue, or takes one of at
	 * most three uses from one in the main queue. */
	for (;;) {
		s = last_of(ix, small);
		m = last_of(ix, big);
		if (s == KVS_IX_NONE && m == KVS_IX_NONE)
			return KVS_IX_NONE;
		if (s != KVS_IX_NONE &&
		    (small->bytes >= share || m == KVS_IX_NONE)) {
			x = &ix->unit[s];
			if (x->used < ix->promote) {
				ghost_add(ix, s);
				return s;
			}
			x->used = 0;
			move(ix, s, KVS_IX_MAIN);
		} else {
			x = &ix->unit[m];
			if (!x->used)
				return m;
			x->used--;
			move(ix, m, KVS_IX_MAIN);
		}
	}
}

/* Evicts one. Its bytes; 0: none can go. */
static uint64_t evict_one(struct kvs_index *ix, struct kvs_ix_tier *t)
{
	uint64_t bytes;
	uint32_t u;

	switch (ix->policy) {
	case KVS_POLICY_S3FIFO:
		u = choose_s3fifo(ix, t);
		break;
	case KVS_POLICY_LRU:
		u = choose_lru(ix, t);
		break;
	case KVS_POLICY_MAX:
	default:
		u = KVS_IX_NONE;
		break;
	}
	if (u == KVS_IX_NONE)
		return 0;
	bytes = ix->unit[u].bytes;
	kvs_ix_leave(ix, u, true);
	return bytes;
}

/* Bytes that nobody has been asked to give back. */
static uint64_t staying(const struct kvs_ix_tier *t)
{
	return kvs_ix_bytes(t) - t->a.bytes[KVS_UNIT_LEAVING];
}

int kvs_index_make_room(struct kvs_index *ix, enum kvs_tier tier,
			uint64_t bytes)
{
	struct kvs_ix_tier *t = &ix->tier[tier];
	uint64_t quota = t->limits.quota;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	if (!quota)
		return -ENXIO;
	if (bytes > quota)
		return -E2BIG;
	while (staying(t) > quota - bytes)
		if (!evict_one(ix, t))
			return -EBUSY;
	return kvs_ix_bytes(t) > quota - bytes ? -EAGAIN : 0;
}

uint64_t kvs_index_evict(struct kvs_index *ix, enum kvs_tier tier,
			 uint64_t bytes)
{
	uint64_t sum = 0, one;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	while (sum < bytes) {
		one = evict_one(ix, &ix->tier[tier]);
		if (!one)
			break;
		sum += one;
	}
	return sum;
}

uint64_t kvs_index_trim(struct kvs_index *ix, enum kvs_tier tier)
{
	struct kvs_ix_tier *t = &ix->tier[tier];
	uint64_t low = per_mille(t->limits.quota, t->limits.low);

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	if (staying(t) <= per_mille(t->limits.quota, t->limits.high))
		return 0;
	return kvs_index_evict(ix, tier, staying(t) - low);
}

int kvs_index_next_cold(const struct kvs_index *ix, enum kvs_tier tier,
			uint64_t *unit)
{
	const struct kvs_ix_tier *t = &ix->tier[tier];
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	if (!*unit) {
		u = t->queue[KVS_IX_SMALL].tail;
		if (u == KVS_IX_NONE)
			u = t->queue[KVS_IX_MAIN].tail;
	} else {
		const struct kvs_ix_unit *x;

		u = kvs_ix_unit_of(ix, *unit);
		if (u == KVS_IX_NONE)
			return -ESTALE;
		x = &ix->unit[u];
		if (x->tier != tier || x->queue == KVS_IX_ASIDE)
			return -ESTALE;
		u = x->prev;
		if (u == KVS_IX_NONE && x->queue == KVS_IX_SMALL)
			u = t->queue[KVS_IX_MAIN].tail;
	}
	if (u == KVS_IX_NONE)
		return -ENOENT;
	*unit = kvs_ix_handle(ix, u);
	return 0;
}
