/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R11: every pool on a request's path holds one maximum-length request, or
 * whoever attaches is told so: prefill's KV pool, the decode engine's, ours,
 * and what we give one peer. Whoever came first: when an engine attaches, the
 * sessions that are here are looked at again, and so is everybody when the
 * settings are read again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "lib/rule.h"
#include "pinned/pool.h"
#include "pipeline/front.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"

/* Would a room of so many tokens, alone, fit a pool of @size bytes? Sets the
 * bytes that it takes. */
static bool room_fits(const struct kvs_layout *l, uint32_t extent_tokens,
		      uint64_t size, uint64_t tokens, uint64_t *ret_bytes)
{
	static struct kvs_vclock still; /* a phantom pool knows no time */
	struct kvs_pool_opts o = { .name = "phantom", .node = -1 };
	struct kvs_pool *pool;
	struct kvs_geometry g;
	uint64_t *lens = NULL;
	bool fits = false;

	*ret_bytes = 0;
	o.size = size - size % KVS_ARENA_ALIGN;
	kvs_vclock_init(&still, 0);
	o.clock = &still.clk;
	/* out of memory: nothing is known, and nobody is turned away */
	if (kvs_pool_create(&o, &pool))
		return true;
	extent_tokens = kvs_geometry_extent_tokens(l, extent_tokens,
						   kvs_pool_segment(pool));
	if (extent_tokens &&
	    !kvs_geometry_init(&g, l, tokens, extent_tokens,
			       kvs_pool_segment(pool), 1, l->aux_max)) {
		lens = calloc(g.n_extents, sizeof(*lens));
		for (uint32_t i = 0; lens && i < g.n_extents; i++) {
			lens[i] = kvs_geometry_len(&g, i);
			*ret_bytes += kvs_pool_round(lens[i]);
		}
		fits = !lens ||
		       !kvs_pool_can_fit(pool, lens, g.n_extents, NULL);
		free(lens);
		kvs_geometry_fini(&g);
	}
	kvs_pool_destroy(pool);
	return fits;
}

/* The most tokens that fit; for a message. */
static uint64_t room_most(const struct kvs_layout *l, uint32_t extent_tokens,
			  uint64_t size)
{
	uint64_t lo = 0, hi = KVS_TOKENS_MAX, mid, bytes;

	while (lo < hi) {
		mid = hi - (hi - lo) / 2;
		if (room_fits(l, extent_tokens, size, mid, &bytes))
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

static int too_small(char *err, size_t errlen, uint64_t m, const char *who,
		     uint64_t holds)
{
	snprintf(err, errlen,
		 "one maximum-length request has %llu tokens, %s holds %llu",
		 (unsigned long long)m, who, (unsigned long long)holds);
	return -EPROTOTYPE;
}

/* Of an engine whose rooms have this layout, and the pool of @home. */
static int room_capacity(const struct kvs_front *f, const struct kvs_layout *l,
			 uint32_t home, const struct kvs_settings *set,
			 char *err, size_t errlen)
{
	const struct kvs_node *n = &f->nodes[home];
	uint64_t size = n->region->size, m = l->max_context, bytes;
	char who[128];

	if (!m || !KVS_RULE(R11, ATTACH))
		return 0;
	if (l->capacity && l->capacity < m)
		return too_small(err, errlen, m, "the decode engine's KV pool",
				 l->capacity);
	/* a file read again may already have what the next start takes */
	if (set->pool_size < size)
		size = set->pool_size;
	if (!room_fits(l, set->extent_tokens, size, m, &bytes)) {
		snprintf(who, sizeof(who),
			 "the host pool of node %d (pool.size, %llu bytes)",
			 n->numa, (unsigned long long)size);
		return too_small(err, errlen, m, who,
				 room_most(l, set->extent_tokens, size));
	}
	if (!set->peer_bytes || bytes <= set->peer_bytes)
		return 0;
	snprintf(err, errlen,
		 "one maximum-length request has %llu tokens and takes %llu "
		 "bytes, admission.peer_bytes is %llu",
		 (unsigned long long)m, (unsigned long long)bytes,
		 (unsigned long long)set->peer_bytes);
	return -EPROTOTYPE;
}

/* A room holds what all ranks of its group have, as far as they are here. */
static int engine_capacity(const struct kvs_front_engine *e,
			   const struct kvs_settings *set, char *err,
			   size_t errlen)
{
	static const struct kvs_slice all = { 0, UINT16_MAX + 1, 1, 0 };
	const struct kvs_layout *layouts[KVS_GROUP_MAX];
	struct kvs_reshard_prefill p = { 1, e->layout->page_size, 1, &all };
	uint32_t n = kvs_front_group_layouts(e, layouts);
	struct kvs_layout *l;
	int ret;

	if (!e->layout->max_context || kvs_reshard_same(layouts, n, &p))
		return room_capacity(e->f, e->layout, e->home, set, err,
				     errlen);
	ret = kvs_reshard_layout(layouts, n, &p, false, &l, err, errlen);
	if (ret)
		return ret == -ENOMEM ? 0 : ret;
	ret = room_capacity(e->f, l, e->home, set, err, errlen);
	free(l);
	return ret;
}

static uint64_t common_context(const struct kvs_layout *a,
			       const struct kvs_layout *b)
{
	if (!a->max_context || !b->max_context)
		return a->max_context ? a->max_context : b->max_context;
	return a->max_context < b->max_context ? a->max_context
					       : b->max_context;
}

static int session_capacity(const struct kvs_session *s,
			    const struct kvs_layout *e, char *err,
			    size_t errlen)
{
	uint64_t m = common_context(s->layout, e);
	char who[KVS_PEER_NAME + 64];

	if (!m || !s->layout->capacity || s->layout->capacity >= m ||
	    !KVS_RULE(R11, SESSION))
		return 0;
	snprintf(who, sizeof(who), "the KV pool of prefill %s rank %u", s->peer,
		 s->rank);
	return too_small(err, errlen, m, who, s->layout->capacity);
}

static bool only_warned(const struct kvs_settings *set)
{
	return strcmp(set->capacity_check, "error") != 0;
}

int kvs_capacity_engine(const struct kvs_front_engine *e, char *err,
			size_t errlen)
{
	int ret = engine_capacity(e, &e->f->settings, err, errlen);

	if (!ret || !only_warned(&e->f->settings))
		return ret;
	kvs_log_warn("engine %s: %s, continuing", e->name, err);
	return 0;
}

int kvs_capacity_session(const struct kvs_session *s,
			 const struct kvs_front_engine *e, char *err,
			 size_t errlen)
{
	int ret = session_capacity(s, e->layout, err, errlen);

	if (!ret || !only_warned(&s->f->settings))
		return ret;
	kvs_log_warn("%s rank %u: %s, continuing", s->peer, s->rank, err);
	return 0;
}

/* Its layout serves one attached engine at least, but the only thing wrong
 * with each is a capacity. */
static bool serves_none(struct kvs_session *s, char *err, size_t errlen)
{
	const struct kvs_front_engine *e;
	char other[KVS_WIRE_TEXT];
	bool small = false;

	kvs_list_for_each_entry(e, &s->f->engines, node) {
		if (!e->attached || e->dead || !e->open ||
		    kvs_session_layouts(s, e, other, sizeof(other)))
			continue;
		if (!session_capacity(s, e->layout, err, errlen))
			return false;
		small = true;
	}
	return small;
}

void kvs_capacity_sessions(struct kvs_front *f)
{
	struct kvs_session *s, *tmp;
	char text[KVS_WIRE_TEXT];

	kvs_list_for_each_entry_safe(s, tmp, &f->sessions, node) {
		if (s->state != KVS_SESSION_UP || s->end_why ||
		    !serves_none(s, text, sizeof(text)))
			continue;
		if (only_warned(&f->settings))
			kvs_log_warn("%s rank %u: %s, continuing", s->peer,
				     s->rank, text);
		else
			kvs_session_refuse_layout(s, text);
	}
}

int kvs_capacity_reload(struct kvs_front *f, const struct kvs_settings *set,
			char *err, size_t errlen)
{
	const struct kvs_front_engine *e;
	char why[KVS_WIRE_TEXT];
	struct kvs_session *s;

	kvs_list_for_each_entry(e, &f->engines, node) {
		if (!e->attached || e->dead || !e->open ||
		    !engine_capacity(e, set, why, sizeof(why)))
			continue;
		snprintf(err, errlen, "engine %u (%s): %s", e->number, e->name,
			 why);
		if (!only_warned(set))
			return -EPROTOTYPE;
		kvs_log_warn("%s, continuing", err);
	}
	kvs_list_for_each_entry(s, &f->sessions, node) {
		if (s->state != KVS_SESSION_UP || s->end_why ||
		    !serves_none(s, why, sizeof(why)))
			continue;
		snprintf(err, errlen, "%s", why);
		if (!only_warned(set))
			return -EPROTOTYPE;
		kvs_log_warn("%s, continuing", err);
	}
	return 0;
}
