/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "hicache/index_internal.h"

#define AHEAD 4u /* keys whose slots are on their way from memory */

static void fill(const struct kvs_index *ix, const struct kvs_ix_entry *x,
		 unsigned int tier, struct kvs_found *f)
{
	const struct kvs_ix_at *at = &x->at[tier];

	f->unit = kvs_ix_handle(ix, at->unit);
	f->cookie = ix->unit[at->unit].cookie;
	f->place = at->place;
	f->tier = tier;
	f->resident = x->resident;
	f->coming = x->coming;
}

static unsigned int fastest(const struct kvs_ix_entry *x)
{
	unsigned int mask = x->resident ? x->resident : x->coming;

	return (unsigned int)__builtin_ctz(mask);
}

size_t kvs_index_lookup(struct kvs_index *ix, const struct kvs_key *keys,
			size_t n, struct kvs_found *v, size_t *ret_coming)
{
	const struct kvs_ix_entry *x;
	size_t i, ready = n;
	uint32_t e;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	for (i = 0; i < n && i < AHEAD; i++)
		kvs_ix_prefetch(ix, &keys[i]);
	for (i = 0; i < n; i++) {
		if (n - i > AHEAD)
			kvs_ix_prefetch(ix, &keys[i + AHEAD]);
		e = kvs_ix_find(ix, &keys[i]);
		if (e == KVS_IX_NONE)
			break;
		x = &ix->entry[e];
		if (!x->resident && ready == n)
			ready = i;
		fill(ix, x, fastest(x), &v[i]);
		if (ready == n)
			ix->tier[v[i].tier].a.hits++;
	}
	if (ready > i)
		ready = i;
	ix->lookups++;
	ix->asked += n;
	ix->missed += n - ready;
	if (ret_coming)
		*ret_coming = i;
	return ready;
}

int kvs_index_find(const struct kvs_index *ix, enum kvs_tier tier,
		   const struct kvs_key *key, struct kvs_found *ret_found)
{
	uint32_t e;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	e = kvs_ix_find(ix, key);
	if (e == KVS_IX_NONE || ix->entry[e].at[tier].unit == KVS_IX_NONE)
		return -ENOENT;
	fill(ix, &ix->entry[e], tier, ret_found);
	return 0;
}

enum kvs_page_state kvs_index_page_state(const struct kvs_index *ix,
					 const struct kvs_key *key)
{
	const struct kvs_ix_entry *x;
	uint32_t e;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	e = kvs_ix_find(ix, key);
	if (e == KVS_IX_NONE)
		return KVS_PAGE_ABSENT;
	x = &ix->entry[e];
	if (!x->resident)
		return KVS_PAGE_LOADING;
	/* A copy to a slower tier; to a faster one it is being recalled. */
	return x->coming >> fastest(x) ? KVS_PAGE_WRITING_OUT
				       : KVS_PAGE_RESIDENT;
}

int kvs_index_unit(const struct kvs_index *ix, uint64_t unit,
		   struct kvs_unit_info *ret_info)
{
	const struct kvs_ix_unit *x;
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	x = &ix->unit[u];
	ret_info->cookie = x->cookie;
	ret_info->bytes = x->bytes;
	ret_info->pages = x->pages;
	ret_info->pins = x->pins;
	ret_info->tier = x->tier;
	ret_info->state = x->state;
	return 0;
}

int64_t kvs_index_pages(const struct kvs_index *ix, uint64_t unit,
			struct kvs_unit_page *v, size_t max)
{
	const struct kvs_ix_unit *x;
	size_t n = 0;
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE || ix->unit[u].state > KVS_UNIT_RESIDENT)
		return -ESTALE;
	x = &ix->unit[u];
	for (uint32_t e = x->first; e != KVS_IX_NONE && n < max; n++) {
		const struct kvs_ix_entry *p = &ix->entry[e];

		v[n].key = p->key;
		v[n].place = p->at[x->tier].place;
		v[n].resident = p->resident;
		v[n].coming = p->coming;
		e = p->at[x->tier].next;
	}
	return x->pages;
}

void kvs_index_account(const struct kvs_index *ix,
		       struct kvs_index_account *ret)
{
	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	memset(ret, 0, sizeof(*ret));
	ret->entries = ix->n_entries;
	ret->max_entries = ix->max_entries;
	ret->memory = kvs_ix_memory(ix);
	ret->lookups = ix->lookups;
	ret->asked = ix->asked;
	ret->missed = ix->missed;
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		ret->tier[t] = ix->tier[t].a;
		ret->tier[t].quota = ix->tier[t].limits.quota;
	}
}

/* ---- do the books agree? ---- */

static void check_unit(const struct kvs_index *ix, uint32_t u,
		       struct kvs_tier_account *sum)
{
	const struct kvs_ix_unit *x = &ix->unit[u];
	uint32_t pages = 0, last = KVS_IX_NONE;

	KVS_ASSERT(x->state < KVS_UNIT_STATE_MAX && x->bytes);
	sum->bytes[x->state] += x->bytes;
	sum->units++;
	if (x->pins && x->state != KVS_UNIT_FILLING)
		sum->pinned += x->bytes;
	KVS_ASSERT(x->state != KVS_UNIT_LEAVING || !x->pins);
	KVS_ASSERT(x->state != KVS_UNIT_DOOMED || x->pins);
	/* Aside are those that are not RESIDENT, and pinned ones. */
	KVS_ASSERT(x->queue == KVS_IX_ASIDE || x->state == KVS_UNIT_RESIDENT);
	KVS_ASSERT(x->queue != KVS_IX_ASIDE || x->state != KVS_UNIT_RESIDENT ||
		   x->pins);
	if (x->state > KVS_UNIT_RESIDENT)
		return;
	for (uint32_t e = x->first; e != KVS_IX_NONE;
	     e = ix->entry[e].at[x->tier].next) {
		const struct kvs_ix_entry *p = &ix->entry[e];
		bool resident = p->resident >> x->tier & 1;

		KVS_ASSERT(p->at[x->tier].unit == u);
		KVS_ASSERT(resident == (x->state == KVS_UNIT_RESIDENT));
		KVS_ASSERT(resident != (p->coming >> x->tier & 1));
		KVS_ASSERT(kvs_ix_find(ix, &p->key) == e);
		last = e;
		pages++;
	}
	KVS_ASSERT(pages == x->pages && last == x->last);
	KVS_ASSERT(pages || x->state == KVS_UNIT_FILLING);
	sum->pages += pages;
}

static void check_queue(const struct kvs_index *ix, unsigned int tier,
			unsigned int q)
{
	const struct kvs_ix_list *l = &ix->tier[tier].queue[q];
	uint64_t bytes = 0, units = 0;
	uint32_t prev = KVS_IX_NONE;

	for (uint32_t u = l->head; u != KVS_IX_NONE; u = ix->unit[u].next) {
		KVS_ASSERT(ix->unit[u].tier == tier && ix->unit[u].queue == q);
		KVS_ASSERT(ix->unit[u].prev == prev);
		bytes += ix->unit[u].bytes;
		units++;
		prev = u;
	}
	KVS_ASSERT(l->tail == prev && l->bytes == bytes && l->units == units);
}

void kvs_index_check(const struct kvs_index *ix)
{
	struct kvs_tier_account sum[KVS_TIER_MAX] = { 0 };
	uint32_t slots = 0, n = 0;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	for (uint32_t u = 0; u < ix->fresh_unit; u++)
		if (ix->unit[u].tier < KVS_TIER_MAX)
			check_unit(ix, u, &sum[ix->unit[u].tier]);
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		const struct kvs_tier_account *a = &ix->tier[t].a;

		KVS_ASSERT(!memcmp(a->bytes, sum[t].bytes, sizeof(a->bytes)));
		KVS_ASSERT(a->pinned == sum[t].pinned);
		KVS_ASSERT(a->units == sum[t].units);
		KVS_ASSERT(a->pages == sum[t].pages);
		for (unsigned int q = 0; q < KVS_IX_QUEUES; q++)
			check_queue(ix, t, q);
	}
	for (uint64_t i = 0; i < 1ULL << ix->slot_bits; i++)
		slots += !!ix->slot[i].entry;
	for (uint32_t e = ix->free_entry; e != KVS_IX_NONE;
	     e = ix->entry[e].free)
		n++;
	KVS_ASSERT(slots == ix->n_entries);
	KVS_ASSERT(ix->n_entries + n == ix->fresh_entry);
}
