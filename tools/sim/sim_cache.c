/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts and their names, and what engines and the operator want of what is
 * kept of them. */
#include <errno.h>
#include <string.h>

#include "kvstage/cache.h"
#include "tools/sim/sim.h"

/* A block's name: of its tokens and of all before it, so that attempts have
 * names in common as far as they have pages in common. */
static void name_of(const struct sim *w, unsigned int prompt,
		    const struct sim_attempt *a, uint32_t block, uint8_t *v)
{
	uint32_t end = (block + 1) * w->plan.block_pages;
	uint64_t id[2] = { prompt, block };

	if (a && end > a->shared)
		id[0] = SIM_PROMPTS + a->nr;
	id[0] = kvs_mix64(id[0] + 1);
	id[1] = kvs_mix64(id[1] + 1);
	memcpy(v, id, sizeof(id));
}

uint32_t sim_hashes(const struct sim_attempt *a, uint8_t (*v)[16])
{
	const struct sim *w = a->w;
	uint32_t n = (uint32_t)(a->tokens / (w->plan.block_pages *
					     (uint64_t)w->layout.page_size));

	for (uint32_t i = 0; i < n; i++)
		name_of(w, a->prompt, a, i, v[i]);
	return n;
}

/* ---- engines that ask ---------------------------------------------------- */

static void query_over(struct sim_query *q)
{
	q->eng->live--;
	q->eng = NULL;
}

static void query_act(struct kvs_timer *t)
{
	struct sim_query *q = kvs_container_of(t, struct sim_query, act);
	struct sim *w = q->w;
	struct sim_engine *g = sim_engine_any(w);
	uint8_t v[SIM_PAGES][16];
	struct kvs_cache_query c = {
		.size = sizeof(c),
		.hashes = v,
		.n_hashes = q->blocks,
		.node = -1,
	};
	int ret;

	w->actor = "engine";
	if (!g || w->healing)
		return;
	for (uint32_t i = 0; i < q->blocks; i++)
		name_of(w, q->prompt, NULL, i, v[i]);
	ret = q->drop ? kvs_cache_drop(g->e, &c, &q->h)
		      : kvs_cache_lookup(g->e, &c, &q->h);
	sim_note(w, 0, "", "engine %u %s %u blocks of prompt %u: %d", g->nr,
		 q->drop ? "forgets" : "looks for", q->blocks, q->prompt, ret);
	if (ret == -EAGAIN) {
		sim_act(w, t, sim_patience(w));
		return;
	}
	if (ret == -ECONNRESET)
		return;
	if (ret) {
		sim_fail(w, "a query of the cache: %d", ret);
		return;
	}
	q->eng = g;
	g->live++;
	sim_engine_wake(g, w->plan.gap);
}

static void query_look(struct sim_query *q)
{
	struct sim_engine *g = q->eng;
	struct sim *w = q->w;
	enum kvs_status st = kvs_engine_poll(g->e, &q->h, NULL);
	uint64_t tokens = 0;
	int ret;

	if (st == KVS_STATUS_PENDING)
		return;
	if (st != KVS_STATUS_DONE && st != KVS_STATUS_FAILED) {
		sim_fail(w, "a query of the cache has status %d", st);
		return;
	}
	ret = kvs_engine_cached(g->e, &q->h, &tokens);
	if (st == KVS_STATUS_DONE &&
	    (ret || tokens > (uint64_t)q->blocks * w->plan.block_pages *
				     w->layout.page_size))
		sim_fail(w, "of %u blocks %llu tokens are cached: %d",
			 q->blocks, (unsigned long long)tokens, ret);
	if (st == KVS_STATUS_DONE && tokens)
		sim_kept(w, q->drop ? SIM_KEPT_FORGOTTEN : SIM_KEPT_FOUND);
	ret = kvs_engine_release(g->e, &q->h);
	if (!ret)
		query_over(q);
	else if (ret != -EBUSY)
		sim_fail(w, "release of a query: %d", ret);
}

void sim_queries_look(struct sim_engine *g)
{
	for (unsigned int i = 0; i < SIM_QUERIES; i++)
		if (g->w->query[i].eng == g)
			query_look(&g->w->query[i]);
}

void sim_queries_drop(struct sim_engine *g)
{
	for (unsigned int i = 0; i < SIM_QUERIES; i++)
		if (g->w->query[i].eng == g)
			query_over(&g->w->query[i]);
}

/* ---- the operator -------------------------------------------------------- */

static void flush_act(struct kvs_timer *t)
{
	struct sim *w = kvs_container_of(t, struct sim, flush);

	w->actor = "operator";
	if (!w->daemon_up || w->healing)
		return;
	if (kvs_cache_flush(w->node.worker)) {
		sim_note(w, 0, "", "lets all go that is kept");
		sim_kept(w, SIM_KEPT_FLUSHED);
	}
	w->look = true;
	if (--w->plan.n_flushes)
		sim_act(w, t, sim_between(w, 1, 200 * w->plan.gap));
}

void sim_cache_begin(struct sim *w)
{
	kvs_timer_init(&w->flush, flush_act);
	for (unsigned int i = 0; i < SIM_QUERIES; i++) {
		struct sim_query *q = &w->query[i];

		q->w = w;
		kvs_timer_init(&q->act, query_act);
		if (i >= w->plan.n_queries)
			continue;
		q->prompt = (unsigned int)kvs_rng_below(&w->rng, SIM_PROMPTS);
		q->blocks = (uint32_t)sim_between(w, 1, SIM_PAGES);
		q->drop = sim_chance(w, 0.6);
		sim_act(w, &q->act, sim_between(w, 0, 300 * w->plan.gap));
	}
	if (w->plan.n_flushes)
		sim_act(w, &w->flush, sim_between(w, 0, 200 * w->plan.gap));
}

void sim_cache_end(struct sim *w)
{
	struct kvs_worker *k = w->node.worker;
	struct kvs_cache_stats st;

	if (!w->daemon_up)
		return;
	kvs_cache_stats(k, &st);
	w->cover->kept[SIM_KEPT_EVICTED] += st.evicted_bytes != 0;
	w->cover->kept[SIM_KEPT_DUPLICATE] += st.duplicates;
	/* nothing here damages a byte that nobody may write */
	if (st.bad)
		sim_fail(w,
			 "R13: %llu blocks have changed while they were kept",
			 (unsigned long long)st.bad);
	if (st.pinned_bytes)
		sim_fail(w, "%llu bytes that are kept are still in use",
			 (unsigned long long)st.pinned_bytes);
	if (kvs_cache_busy(k))
		sim_fail(w, "what is kept is never summed up");
	(void)kvs_cache_flush(k);
}
