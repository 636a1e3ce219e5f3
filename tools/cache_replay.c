/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cache_replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/le.h"

/* The index counts bytes; here blocks are all alike. */
#define BLOCK 1000u

struct replay {
	const struct kvs_replay_opts *o;
	struct kvs_replay_result *res;
	struct kvs_index *ix;
	struct kvs_key *key; /* of each different block */
	struct kvs_found *found; /* as many as the longest request has blocks */
	uint32_t out[KVS_TIER_MAX]; /* block that a tier evicted last */
	bool is_out[KVS_TIER_MAX];
};

/* No drain runs here: what is evicted is gone at once. */
static void replay_victim(void *arg, const struct kvs_victim *v)
{
	struct replay *p = arg;
	int r;

	p->out[v->tier] = (uint32_t)v->cookie;
	p->is_out[v->tier] = true;
	p->res->evicted += v->only_copy;
	r = kvs_index_gone(p->ix, v->unit);
	KVS_ASSERT(!r);
}

static const struct kvs_index_ops replay_ops = { .victim = replay_victim };

static int replay_keys(struct replay *p, uint32_t unique)
{
	static const struct kvs_fingerprint none;
	struct kvs_key_space space;
	uint8_t hash[16] = { 0 };
	int r;

	p->key = calloc(unique, sizeof(*p->key));
	if (!p->key)
		return -ENOMEM;
	r = kvs_key_space_init(&space, &none, NULL, 0);
	for (uint32_t i = 0; i < unique && !r; i++) {
		kvs_le32 le = kvs_put32(i);

		memcpy(hash, &le, sizeof(le));
		kvs_key_of_hash(&space, hash, &p->key[i]);
	}
	return r;
}

static int replay_add(struct replay *p, enum kvs_tier tier, uint32_t block)
{
	uint64_t unit;
	int r;

	r = kvs_index_make_room(p->ix, tier, BLOCK);
	if (!r)
		r = kvs_index_add(p->ix, tier, BLOCK, block, &unit);
	if (!r)
		r = kvs_index_put(p->ix, unit, &p->key[block], 0);
	if (!r)
		r = kvs_index_publish(p->ix, unit);
	return r;
}

/* Into the first tier; what that pushes out goes to the second. */
static int replay_insert(struct replay *p, uint32_t block)
{
	struct kvs_found f;
	uint32_t out;
	int r;

	p->is_out[KVS_TIER_HOST] = false;
	r = replay_add(p, KVS_TIER_HOST, block);
	out = p->out[KVS_TIER_HOST];
	if (r || !p->is_out[KVS_TIER_HOST] || !p->o->blocks[KVS_TIER_NVME] ||
	    !kvs_index_find(p->ix, KVS_TIER_NVME, &p->key[out], &f))
		return r;
	/* It was its only copy, and is not lost. */
	r = replay_add(p, KVS_TIER_NVME, out);
	if (r == -EBUSY) /* all of it is being recalled: it is lost */
		return 0;
	p->res->evicted--;
	p->res->written++;
	return r;
}

static int replay_block(struct replay *p, uint32_t block)
{
	struct kvs_found f;
	int r;

	if (!kvs_index_lookup(p->ix, &p->key[block], 1, &f, NULL))
		return replay_insert(p, block);
	p->res->hits++;
	p->res->tier_hits[f.tier]++;
	r = kvs_index_pin_prefix(p->ix, &f, 1);
	if (r)
		return r;
	if (f.tier != KVS_TIER_HOST)
		r = replay_insert(p, block);
	kvs_index_unpin_prefix(p->ix, &f, 1);
	return r;
}

/* Of @n blocks that were found. */
static void replay_hit(const struct replay *p,
		       const struct kvs_trace_request *q, uint64_t n,
		       struct kvs_replay_hit *ret)
{
	uint64_t left = q->input;

	*ret = (struct kvs_replay_hit){ 0 };
	for (uint64_t i = 0; i < n; i++) {
		uint64_t block = p->o->block_tokens < left ? p->o->block_tokens
							   : left;

		ret->tokens[p->found[i].tier] += (uint32_t)block;
		left -= block;
	}
}

static int replay_request(struct replay *p, const struct kvs_trace_request *q,
			  const uint32_t *id, struct kvs_key *keys,
			  struct kvs_replay_hit *hit)
{
	uint64_t tokens, n;
	int r = 0;

	for (uint32_t i = 0; i < q->n_ids; i++)
		keys[i] = p->key[id[i]];
	n = kvs_index_lookup(p->ix, keys, q->n_ids, p->found, NULL);
	if (hit)
		replay_hit(p, q, n, hit);
	tokens = n * p->o->block_tokens;
	p->res->prefix_hits += n;
	/* The last block of a prompt is not full. */
	p->res->prefix_tokens += tokens < q->input ? tokens : q->input;
	for (uint32_t i = 0; i < q->n_ids && !r; i++)
		r = replay_block(p, id[i]);
	return r;
}

static int replay_run(struct replay *p, const struct kvs_trace *t,
		      const struct kvs_block_stream *s)
{
	struct kvs_index_account a;
	struct kvs_key *keys;
	uint32_t most = 1;
	int r = 0;

	for (size_t i = 0; i < t->n; i++)
		if (t->req[i].n_ids > most)
			most = t->req[i].n_ids;
	keys = calloc(most, sizeof(*keys));
	p->found = calloc(most, sizeof(*p->found));
	if (!keys || !p->found)
		r = -ENOMEM;
	for (size_t i = 0; i < t->n && !r; i++)
		r = replay_request(p, &t->req[i], s->id + t->req[i].ids, keys,
				   p->o->hit ? &p->o->hit[i] : NULL);
	if (!r) {
		kvs_index_account(p->ix, &a);
		p->res->memory = a.memory;
	}
	free(keys);
	return r;
}

int kvs_replay(const struct kvs_trace *t, const struct kvs_block_stream *s,
	       const struct kvs_replay_opts *o, struct kvs_replay_result *ret)
{
	struct kvs_replay_result res = { 0 };
	struct replay p = { .o = o, .res = &res };
	struct kvs_index_opts io = {
		.max_entries = s->unique,
		.policy = o->policy,
		.small_share = o->small_share,
		.promote = o->promote,
		.ops = &replay_ops,
		.arg = &p,
	};
	int r;

	if (!o->blocks[KVS_TIER_HOST] || o->blocks[KVS_TIER_SHARED])
		return -EINVAL;
	for (unsigned int i = 0; i < KVS_TIER_MAX; i++) {
		/* More than there are is no more use. */
		uint64_t n = o->blocks[i] < s->unique ? o->blocks[i]
						      : s->unique;

		io.tier[i].quota = n * BLOCK;
		io.tier[i].high = io.tier[i].low = KVS_INDEX_PER_MILLE;
	}
	r = replay_keys(&p, s->unique);
	if (!r)
		r = kvs_index_create(&io, &p.ix);
	if (!r)
		r = replay_run(&p, t, s);
	if (!r)
		*ret = res;
	kvs_index_destroy(p.ix);
	free(p.key);
	free(p.found);
	return r;
}
