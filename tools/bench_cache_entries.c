/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench cache --entries: what hicache's index costs when it is full,
 * in memory and in time. Each page is a unit of its own, which is the most
 * that it can cost; keys are drawn, so every call goes to memory that no cache
 * of the processor holds.
 */
#include "tools/bench_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/rng.h"
#include "tools/median.h"
#include "tools/table.h"

#define BATCHES 31u /* odd */
#define LOOKUPS 1000000u
#define PREFIX 64u /* pages of a look-up of many */
#define REPLACED 500000u
#define PAGE_TOKENS 64u
#define KEYED 6000u /* keys made in a batch */

struct result {
	double insert_ns;
	double lookup_ns;
	double prefix_ns; /* a page */
	double miss_ns;
	double replace_ns;
	double key_ns;
	uint64_t memory;
	uint64_t resident; /* bytes more of the process */
};

/* Page number @i, as far as the index can tell the hash of something. */
static struct kvs_key key_of(uint64_t i)
{
	uint64_t w[2] = { kvs_mix64(2 * i + 1), kvs_mix64(~i) };
	struct kvs_key k;

	memcpy(k.b, w, sizeof(k.b));
	return k;
}

/* No drain runs here: what is evicted is gone at once. */
static void entries_victim(void *arg, const struct kvs_victim *v)
{
	struct kvs_index *const *ix = arg;
	int r = kvs_index_gone(*ix, v->unit);

	KVS_ASSERT(!r);
}

static const struct kvs_index_ops entries_ops = { .victim = entries_victim };

static uint64_t resident(void)
{
	uint64_t pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f) {
		if (fscanf(f, "%*u %" SCNu64, &pages) != 1)
			pages = 0;
		(void)fclose(f);
	}
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int insert(struct kvs_index *ix, uint64_t i)
{
	struct kvs_key key = key_of(i);
	uint64_t unit;
	int r;

	r = kvs_index_make_room(ix, KVS_TIER_HOST, 1);
	if (!r)
		r = kvs_index_add(ix, KVS_TIER_HOST, 1, i, &unit);
	if (!r)
		r = kvs_index_put(ix, unit, &key, 0);
	return r ? r : kvs_index_publish(ix, unit);
}

static int insert_many(struct kvs_index *ix, uint64_t from, uint64_t n,
		       double *ret_ns)
{
	double v[BATCHES];
	uint64_t i = from, t;
	int r = 0;

	for (unsigned int k = 0; k < BATCHES; k++) {
		uint64_t to = from + n / BATCHES * (k + 1);
		uint64_t first = i;

		if (k == BATCHES - 1)
			to = from + n;
		t = kvs_clock_now(&kvs_clock_real);
		for (; i < to && !r; i++)
			r = insert(ix, i);
		t = kvs_clock_now(&kvs_clock_real) - t;
		v[k] = i > first ? (double)t / (double)(i - first) : 0;
	}
	*ret_ns = kvs_median(v, BATCHES);
	return r;
}

/* Look-ups of @prefix pages, from @base on; @found: are they there? */
static int lookup_many(struct kvs_index *ix, struct kvs_rng *rng, uint64_t base,
		       uint64_t n, unsigned int prefix, bool found,
		       double *ret_ns)
{
	uint32_t calls = LOOKUPS / BATCHES / prefix;
	struct kvs_key keys[PREFIX];
	struct kvs_found f[PREFIX];
	double v[BATCHES];

	for (unsigned int k = 0; k < BATCHES; k++) {
		uint64_t sum = 0, t;

		t = kvs_clock_now(&kvs_clock_real);
		for (uint32_t c = 0; c < calls; c++) {
			for (unsigned int j = 0; j < prefix; j++)
				keys[j] = key_of(base + kvs_rng_below(rng, n));
			sum += kvs_index_lookup(ix, keys, prefix, f, NULL);
		}
		t = kvs_clock_now(&kvs_clock_real) - t;
		v[k] = (double)t / ((double)calls * prefix);
		if (sum != (found ? (uint64_t)calls * prefix : 0))
			return -EPROTO;
	}
	*ret_ns = kvs_median(v, BATCHES);
	return 0;
}

/* A key of a page, by its tokens. */
static int make_keys(double *ret_ns)
{
	static const struct kvs_fingerprint none;
	uint32_t tokens[PAGE_TOKENS];
	struct kvs_key_space space;
	struct kvs_key key = { { 0 } };
	double v[BATCHES];
	int r;

	r = kvs_key_space_init(&space, &none, NULL, 0);
	if (r)
		return r;
	for (uint32_t i = 0; i < PAGE_TOKENS; i++)
		tokens[i] = i;
	for (unsigned int k = 0; k < BATCHES; k++) {
		uint64_t t = kvs_clock_now(&kvs_clock_real);

		for (uint32_t i = 0; i < KEYED; i++)
			kvs_key_chain(&space, &key, tokens, PAGE_TOKENS, &key);
		t = kvs_clock_now(&kvs_clock_real) - t;
		v[k] = (double)t / KEYED;
	}
	*ret_ns = kvs_median(v, BATCHES);
	return 0;
}

static int measure(const struct cache_args *a, struct kvs_index *ix,
		   struct result *m)
{
	uint64_t n = a->entries, more = n < REPLACED ? n : REPLACED;
	struct kvs_index_account acc;
	struct kvs_rng rng;
	uint64_t before = resident();
	int r;

	kvs_rng_init(&rng, 1);
	r = insert_many(ix, 0, n, &m->insert_ns);
	m->resident = resident() - before;
	kvs_index_account(ix, &acc);
	m->memory = acc.memory;
	if (!r && acc.entries != n)
		r = -EPROTO;
	if (!r)
		r = lookup_many(ix, &rng, 0, n, 1, true, &m->lookup_ns);
	if (!r)
		r = lookup_many(ix, &rng, 0, n, PREFIX, true, &m->prefix_ns);
	if (!r)
		r = lookup_many(ix, &rng, n, n, 1, false, &m->miss_ns);
	if (!r)
		r = insert_many(ix, n, more, &m->replace_ns);
	kvs_index_account(ix, &acc);
	if (!r && (acc.entries != n || acc.tier[KVS_TIER_HOST].evicted != more))
		r = -EPROTO;
	return r ? r : make_keys(&m->key_ns);
}

static int show(const struct cache_args *a, const struct result *m)
{
	struct kvs_table *t;
	int r;

	if (a->json) {
		printf("{\"bench\": \"cache\", \"entries\": %" PRIu64
		       ", \"bytes_per_entry\": %.1f, \"lookup_ns\": %.1f, "
		       "\"insert_ns\": %.1f, \"policy\": \"%s\", "
		       "\"prefix_lookup_ns\": %.1f, \"miss_ns\": %.1f, "
		       "\"replace_ns\": %.1f, \"key_ns\": %.1f, "
		       "\"resident_bytes_per_entry\": %.1f}\n",
		       a->entries, (double)m->memory / (double)a->entries,
		       m->lookup_ns, m->insert_ns,
		       kvs_policy_name[a->policy[0]], m->prefix_ns, m->miss_ns,
		       m->replace_ns, m->key_ns,
		       (double)m->resident / (double)a->entries);
		return 0;
	}
	r = kvs_table_create("entries bytes_per_entry lookup_ns insert_ns "
			     "prefix_lookup_ns miss_ns replace_ns key_ns",
			     &t);
	if (r)
		return r;
	kvs_table_cell(t, "%" PRIu64, a->entries);
	kvs_table_cell(t, "%.1f", (double)m->memory / (double)a->entries);
	kvs_table_cell(t, "%.1f", m->lookup_ns);
	kvs_table_cell(t, "%.1f", m->insert_ns);
	kvs_table_cell(t, "%.1f", m->prefix_ns);
	kvs_table_cell(t, "%.1f", m->miss_ns);
	kvs_table_cell(t, "%.1f", m->replace_ns);
	kvs_table_cell(t, "%.1f", m->key_ns);
	r = kvs_table_print(t, stdout);
	kvs_table_destroy(t);
	return r;
}

int kvs_bench_cache_entries(const struct cache_args *a)
{
	struct kvs_index *ix = NULL;
	struct kvs_index_opts o = {
		.max_entries = (uint32_t)a->entries,
		.policy = a->policy[0],
		.small_share = a->small_share,
		.promote = a->promote,
		.tier = { [KVS_TIER_HOST] = { .quota = a->entries } },
		.secret = 1,
		.ops = &entries_ops,
		.arg = &ix,
	};
	struct result m = { 0 };
	int r;

	r = kvs_index_create(&o, &ix);
	if (!r)
		r = measure(a, ix, &m);
	kvs_index_destroy(ix);
	if (r == -EPROTO)
		fprintf(stderr, "cache: the index did not do what it should\n");
	return r ? r : show(a, &m);
}
