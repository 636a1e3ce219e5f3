/* SPDX-License-Identifier: Apache-2.0 */
#include "hicache/index.h"

#include <errno.h>
#include <stdlib.h>

#include "hicache/index_internal.h"

#define KVS_NAME_(n, s) [KVS_TIER_##n] = s,
const char *const kvs_tier_name[KVS_TIER_MAX] = { KVS_TIERS(KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_POLICY_##n] = s,
const char *const kvs_policy_name[KVS_POLICY_MAX] = { KVS_POLICIES(KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_UNIT_##n] = s,
const char *const kvs_unit_state_name[KVS_UNIT_STATE_MAX] = { KVS_UNIT_STATES(
	KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [KVS_PAGE_##n] = s,
const char *const kvs_page_state_name[KVS_PAGE_STATE_MAX] = { KVS_PAGE_STATES(
	KVS_NAME_) };
#undef KVS_NAME_

_Static_assert(KVS_TIER_MAX <= 8, "masks of tiers have 8 bits");

/* ---- life ---- */

static bool limits_ok(const struct kvs_tier_limits *l)
{
	return l->low <= l->high && l->high <= KVS_INDEX_PER_MILLE;
}

int kvs_index_create(const struct kvs_index_opts *o, struct kvs_index **ret)
{
	struct kvs_index *ix;
	int r;

	KVS_ASSERT(o->ops && o->ops->victim);
	if (!o->max_entries || o->max_entries > KVS_INDEX_ENTRIES_MAX ||
	    (unsigned int)o->policy >= KVS_POLICY_MAX ||
	    o->small_share > KVS_INDEX_PER_MILLE ||
	    o->promote > KVS_INDEX_USED_MAX)
		return -EINVAL;
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++)
		if (!limits_ok(&o->tier[t]))
			return -EINVAL;
	ix = calloc(1, sizeof(*ix));
	if (!ix)
		return -ENOMEM;
	ix->magic = KVS_INDEX_MAGIC;
	ix->policy = o->policy;
	ix->small_share = o->small_share ? o->small_share
					 : KVS_INDEX_SMALL_SHARE;
	ix->promote = o->promote ? o->promote : KVS_INDEX_PROMOTE;
	ix->secret = o->secret;
	ix->ops = o->ops;
	ix->arg = o->arg;
	ix->max_entries = o->max_entries;
	/* A unit for each page in each tier, and some that have none yet, or
	 * none any more. */
	ix->max_units = o->max_entries > KVS_IX_NONE / (KVS_TIER_MAX + 1)
				? KVS_IX_NONE - 1
				: o->max_entries * (KVS_TIER_MAX + 1);
	ix->free_entry = KVS_IX_NONE;
	ix->free_unit = KVS_IX_NONE;
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		ix->tier[t].limits = o->tier[t];
		kvs_ix_queues_init(&ix->tier[t]);
	}
	r = kvs_ix_map(ix);
	if (r) {
		kvs_index_destroy(ix);
		return r;
	}
	*ret = ix;
	return 0;
}

void kvs_index_destroy(struct kvs_index *ix)
{
	if (!ix)
		return;
	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	kvs_ix_unmap(ix);
	ix->magic = 0;
	free(ix);
}

int kvs_index_set_limits(struct kvs_index *ix, enum kvs_tier tier,
			 const struct kvs_tier_limits *l)
{
	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	if (!limits_ok(l))
		return -EINVAL;
	ix->tier[tier].limits = *l;
	return 0;
}

/* ---- units ---- */

/* All that a unit's state decides follows here. */
static void set_state(struct kvs_index *ix, uint32_t u, enum kvs_unit_state to)
{
	struct kvs_ix_unit *x = &ix->unit[u];
	struct kvs_tier_account *a = &ix->tier[x->tier].a;

	a->bytes[x->state] -= x->bytes;
	a->bytes[to] += x->bytes;
	x->state = (uint8_t)to;
}

int kvs_index_add(struct kvs_index *ix, enum kvs_tier tier, uint64_t bytes,
		  uint64_t cookie, uint64_t *ret_unit)
{
	struct kvs_ix_tier *t = &ix->tier[tier];
	uint64_t quota = t->limits.quota;
	struct kvs_ix_unit *x;
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	if (!bytes)
		return -EINVAL;
	if (!quota)
		return -ENXIO;
	if (bytes > quota || kvs_ix_bytes(t) > quota - bytes)
		return -ENOSPC;
	u = kvs_ix_unit_get(ix);
	if (u == KVS_IX_NONE)
		return -ENOSPC;
	x = &ix->unit[u];
	x->cookie = cookie;
	x->bytes = bytes;
	x->tier = (uint8_t)tier;
	x->state = KVS_UNIT_FILLING;
	t->a.bytes[KVS_UNIT_FILLING] += bytes;
	t->a.units++;
	t->a.added++;
	*ret_unit = kvs_ix_handle(ix, u);
	return 0;
}

int kvs_index_put(struct kvs_index *ix, uint64_t unit,
		  const struct kvs_key *key, uint32_t place)
{
	struct kvs_ix_unit *x;
	struct kvs_ix_at *at;
	uint32_t u, e;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	x = &ix->unit[u];
	if (x->state != KVS_UNIT_FILLING)
		return -EINVAL;
	e = kvs_ix_find(ix, key);
	if (e == KVS_IX_NONE) {
		e = kvs_ix_entry_get(ix, key);
		if (e == KVS_IX_NONE)
			return -ENOSPC;
	} else if (ix->entry[e].at[x->tier].unit != KVS_IX_NONE) {
		ix->tier[x->tier].a.duplicates++;
		return -EEXIST;
	}
	at = &ix->entry[e].at[x->tier];
	at->unit = u;
	at->place = place;
	at->next = KVS_IX_NONE;
	ix->entry[e].coming |= (uint8_t)(1u << x->tier);
	if (x->last == KVS_IX_NONE)
		x->first = e;
	else
		ix->entry[x->last].at[x->tier].next = e;
	x->last = e;
	x->pages++;
	ix->tier[x->tier].a.pages++;
	return 0;
}

/* The page is no longer in this tier; its unit's list is the caller's. */
static void detach(struct kvs_index *ix, uint32_t e, unsigned int tier)
{
	struct kvs_ix_entry *x = &ix->entry[e];

	x->at[tier].unit = KVS_IX_NONE;
	x->resident &= (uint8_t) ~(1u << tier);
	x->coming &= (uint8_t) ~(1u << tier);
	ix->tier[tier].a.pages--;
	if (!x->resident && !x->coming)
		kvs_ix_entry_put(ix, e);
}

static void detach_all(struct kvs_index *ix, uint32_t u)
{
	struct kvs_ix_unit *x = &ix->unit[u];
	uint32_t e = x->first, next, only = 0;

	for (; e != KVS_IX_NONE; e = next) {
		next = ix->entry[e].at[x->tier].next;
		only += !(ix->entry[e].resident & ~(1u << x->tier));
		detach(ix, e, x->tier);
	}
	x->only_copy = only;
	x->last = KVS_IX_NONE;
}

/* Without pages or pins: to the owner. */
static void hand_over(struct kvs_index *ix, uint32_t u, bool evicted)
{
	const struct kvs_ix_unit *x = &ix->unit[u];
	struct kvs_victim v = {
		.unit = kvs_ix_handle(ix, u),
		.cookie = x->cookie,
		.bytes = x->bytes,
		.tier = x->tier,
		.pages = x->pages,
		.only_copy = x->only_copy,
		.evicted = evicted,
	};

	set_state(ix, u, KVS_UNIT_LEAVING);
	ix->ops->victim(ix->arg, &v);
}

void kvs_ix_leave(struct kvs_index *ix, uint32_t u, bool evicted)
{
	struct kvs_ix_unit *x = &ix->unit[u];
	struct kvs_tier_account *a = &ix->tier[x->tier].a;

	kvs_ix_dequeue(ix, u);
	detach_all(ix, u);
	if (evicted) {
		a->evicted++;
		a->evicted_pages += x->pages;
		a->lost_pages += x->only_copy;
	} else {
		a->dropped++;
	}
	if (!x->pins) {
		hand_over(ix, u, evicted);
		return;
	}
	/* Books of pins begin at RESIDENT. */
	if (x->state == KVS_UNIT_FILLING)
		a->pinned += x->bytes;
	set_state(ix, u, KVS_UNIT_DOOMED);
}

int kvs_index_set_cookie(struct kvs_index *ix, uint64_t unit, uint64_t cookie)
{
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	if (ix->unit[u].state != KVS_UNIT_FILLING)
		return -EINVAL;
	ix->unit[u].cookie = cookie;
	return 0;
}

int kvs_index_publish(struct kvs_index *ix, uint64_t unit)
{
	struct kvs_ix_unit *x;
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	x = &ix->unit[u];
	if (x->state != KVS_UNIT_FILLING)
		return -EINVAL;
	if (!x->pages) {
		kvs_ix_leave(ix, u, false);
		return 0;
	}
	for (uint32_t e = x->first; e != KVS_IX_NONE;
	     e = ix->entry[e].at[x->tier].next) {
		ix->entry[e].coming &= (uint8_t) ~(1u << x->tier);
		ix->entry[e].resident |= (uint8_t)(1u << x->tier);
	}
	set_state(ix, u, KVS_UNIT_RESIDENT);
	if (x->pins)
		ix->tier[x->tier].a.pinned += x->bytes;
	kvs_ix_enqueue(ix, u);
	return 0;
}

int kvs_index_drop(struct kvs_index *ix, uint64_t unit)
{
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	if (ix->unit[u].state == KVS_UNIT_DOOMED ||
	    ix->unit[u].state == KVS_UNIT_LEAVING)
		return -EALREADY;
	kvs_ix_leave(ix, u, false);
	return 0;
}

int kvs_index_gone(struct kvs_index *ix, uint64_t unit)
{
	struct kvs_tier_account *a;
	struct kvs_ix_unit *x;
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	x = &ix->unit[u];
	if (x->state != KVS_UNIT_LEAVING)
		return -EBUSY;
	a = &ix->tier[x->tier].a;
	a->bytes[KVS_UNIT_LEAVING] -= x->bytes;
	a->units--;
	kvs_ix_unit_put(ix, u);
	return 0;
}

int kvs_index_forget(struct kvs_index *ix, enum kvs_tier tier,
		     const struct kvs_key *key)
{
	uint32_t e, u, prev = KVS_IX_NONE, at;
	struct kvs_ix_unit *x;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	e = kvs_ix_find(ix, key);
	if (e == KVS_IX_NONE || ix->entry[e].at[tier].unit == KVS_IX_NONE)
		return -ENOENT;
	u = ix->entry[e].at[tier].unit;
	x = &ix->unit[u];
	if (x->state == KVS_UNIT_RESIDENT && x->pages == 1) {
		kvs_ix_leave(ix, u, false);
		return 0;
	}
	for (at = x->first; at != e; at = ix->entry[at].at[tier].next)
		prev = at;
	if (prev == KVS_IX_NONE)
		x->first = ix->entry[e].at[tier].next;
	else
		ix->entry[prev].at[tier].next = ix->entry[e].at[tier].next;
	if (x->last == e)
		x->last = prev;
	x->pages--;
	detach(ix, e, tier);
	return 0;
}

/* ---- pins ---- */

static int pin(struct kvs_index *ix, uint64_t unit)
{
	struct kvs_ix_unit *x;
	uint32_t u;

	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	x = &ix->unit[u];
	if (x->state != KVS_UNIT_FILLING && x->state != KVS_UNIT_RESIDENT)
		return -EBUSY;
	if (x->pins == UINT32_MAX)
		return -EOVERFLOW;
	if (!x->pins++ && x->state == KVS_UNIT_RESIDENT)
		ix->tier[x->tier].a.pinned += x->bytes;
	return 0;
}

int kvs_index_pin(struct kvs_index *ix, uint64_t unit)
{
	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	return pin(ix, unit);
}

int kvs_index_unpin(struct kvs_index *ix, uint64_t unit)
{
	struct kvs_ix_unit *x;
	uint32_t u;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	u = kvs_ix_unit_of(ix, unit);
	if (u == KVS_IX_NONE)
		return -ESTALE;
	x = &ix->unit[u];
	if (!x->pins)
		return -EINVAL;
	if (--x->pins || x->state == KVS_UNIT_FILLING)
		return 0;
	ix->tier[x->tier].a.pinned -= x->bytes;
	if (x->state == KVS_UNIT_DOOMED)
		hand_over(ix, u, false);
	else
		kvs_ix_unpinned(ix, u);
	return 0;
}

static int touch(struct kvs_index *ix, uint64_t unit)
{
	uint32_t u = kvs_ix_unit_of(ix, unit);

	if (u == KVS_IX_NONE)
		return -ESTALE;
	if (ix->unit[u].state != KVS_UNIT_RESIDENT)
		return -EINVAL;
	kvs_ix_used(ix, u);
	return 0;
}

int kvs_index_touch(struct kvs_index *ix, uint64_t unit)
{
	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	return touch(ix, unit);
}

int kvs_index_pin_prefix(struct kvs_index *ix, const struct kvs_found *v,
			 size_t n)
{
	size_t i;
	int r;

	KVS_CHECK_MAGIC(ix, KVS_INDEX_MAGIC);
	for (i = 0; i < n; i++) {
		r = pin(ix, v[i].unit);
		if (r) {
			kvs_index_unpin_prefix(ix, v, i);
			return r;
		}
	}
	while (i--)
		if (!i || v[i].unit != v[i - 1].unit)
			(void)touch(ix, v[i].unit);
	return 0;
}

void kvs_index_unpin_prefix(struct kvs_index *ix, const struct kvs_found *v,
			    size_t n)
{
	while (n--) {
		int r = kvs_index_unpin(ix, v[n].unit);

		KVS_ASSERT(!r);
	}
}
