/* SPDX-License-Identifier: Apache-2.0 */
/* What a seed means: layout, settings, rooms, and what will go wrong. */
#include <stdio.h>
#include <string.h>

#include "tools/sim/sim.h"

/* One of three, so that a bound is met by some schedules and by others not. */
static uint64_t one_of(struct sim *w, uint64_t a, uint64_t b, uint64_t c)
{
	switch (kvs_rng_below(&w->rng, 3)) {
	case 0:
		return a;
	case 1:
		return b;
	default:
		return c;
	}
}

static void add_buffer(struct sim *w, unsigned int kind, unsigned int layer,
		       uint32_t items)
{
	struct kvs_layer_buffer *b = &w->lb[w->layout.n_buffers++];

	b->kind = (uint16_t)kind;
	b->layer = (uint16_t)layer;
	b->items = items;
	b->item_len = (uint32_t)sim_between(w, 8, SIM_ITEM_LEN / 2);
	if (sim_chance(w, 0.7))
		b->item_len &= ~7u;
}

static void plan_layout(struct sim *w)
{
	unsigned int layers = (unsigned int)sim_between(w, 1, SIM_LAYERS - 1);
	bool mla = sim_chance(w, 0.4);

	w->layout = (struct kvs_layout){
		.size = sizeof(w->layout),
		.page_size = (uint32_t)one_of(w, 1, 4, 16),
		.dtype = KVS_DTYPE_BF16,
		.buffers = w->lb,
		.aux_max = SIM_AUX,
	};
	for (unsigned int l = 0; l < layers; l++)
		add_buffer(w, mla ? KVS_BUFFER_KV : KVS_BUFFER_K, l, 0);
	for (unsigned int l = 0; l < layers && !mla; l++)
		add_buffer(w, KVS_BUFFER_V, l, 0);
	if (sim_chance(w, 0.3))
		add_buffer(w, KVS_BUFFER_SWA, layers - 1,
			   (uint32_t)sim_between(w, 1, 3));
	if (sim_chance(w, 0.2))
		add_buffer(w, KVS_BUFFER_MAMBA, 0,
			   (uint32_t)sim_between(w, 1, 2));
}

static void plan_settings(struct sim *w)
{
	static const char *const sums[] = { "none", "crc32c", "adler32" };
	struct kvs_settings *s = &w->set;
	bool clean = w->plan.clean;

	kvs_settings_init(s);
	s->engine_slots = SIM_SLOTS;
	s->engine_max = SIM_ENGINES;
	s->extent_tokens = w->layout.page_size *
			   (uint32_t)sim_between(w, 1, SIM_PAGES / 2);
	snprintf(s->checksum_kind, sizeof(s->checksum_kind), "%s",
		 sums[kvs_rng_below(&w->rng, 3)]);
	s->hold_require_ack = sim_chance(w, 0.5);
	s->hold_timeout = one_of(w, 3 * SIM_MS, 30 * SIM_MS, 300 * SIM_MS);
	s->hold_reask = one_of(w, 0, 2 * SIM_MS, 20 * SIM_MS);
	s->handshake_timeout = clean ? KVS_NSEC_PER_SEC : 200 * SIM_MS;
	s->keepalive = one_of(w, 150 * SIM_MS, 500 * SIM_MS, 2000 * SIM_MS);
	if (sim_chance(w, 0.1))
		s->admission_queue = 1;
	s->overtake = (uint32_t)one_of(w, 0, 2, 64);
	s->overtake_time = one_of(w, 0, 10 * SIM_MS, 1000 * SIM_MS);
	s->open_parked = (uint32_t)one_of(w, 1, 4, 64);
	s->shutdown_timeout = one_of(w, 0, 20 * SIM_MS, 500 * SIM_MS);
	s->admission_timeout = 10 * KVS_NSEC_PER_SEC;
	s->open_timeout = 10 * KVS_NSEC_PER_SEC;
	s->transfer_timeout = 10 * KVS_NSEC_PER_SEC;
	s->claim_timeout = 10 * KVS_NSEC_PER_SEC;
	/* books of a size that a schedule can fill */
	s->cache_blocks = (uint32_t)one_of(w, 16, 256, 256);
	s->cache_share = (uint32_t)one_of(w, 25, 90, 100);
	snprintf(s->cache_policy, sizeof(s->cache_policy), "%s",
		 sim_chance(w, 0.5) ? "lru" : "s3fifo");
	if (clean) {
		s->admission_queue = 64;
		s->open_parked = 64;
		return;
	}
	s->admission_timeout =
		one_of(w, 10 * SIM_MS, 100 * SIM_MS, KVS_NSEC_PER_SEC);
	s->open_timeout =
		one_of(w, 10 * SIM_MS, 100 * SIM_MS, KVS_NSEC_PER_SEC);
	s->transfer_timeout =
		one_of(w, 10 * SIM_MS, 100 * SIM_MS, KVS_NSEC_PER_SEC);
	s->claim_timeout = one_of(w, 5 * SIM_MS, 50 * SIM_MS, 500 * SIM_MS);
}

static double maybe(struct sim *w, double p, double most)
{
	if (w->plan.clean || !sim_chance(w, p))
		return 0;
	return most * kvs_rng_double(&w->rng);
}

static void plan_net(struct sim *w)
{
	struct kvs_loop_plan *n = &w->plan.net;

	n->latency_min = one_of(w, 0, 1 * SIM_US, 20 * SIM_US);
	n->latency_max = n->latency_min + one_of(w, 0, 50 * SIM_US, 2 * SIM_MS);
	n->split_max = (uint32_t)one_of(w, 0, 64, 500);
	n->bytes_per_sec = one_of(w, 0, 0, 1000000);
	n->reset = maybe(w, 0.15, 0.01);
	n->stall = maybe(w, 0.2, 0.1);
	n->delay = maybe(w, 0.2, 0.1);
	n->delay_max = one_of(w, 0, 5 * SIM_MS, 50 * SIM_MS);
	n->reorder = maybe(w, 0.2, 0.2);
	n->duplicate = maybe(w, 0.15, 0.02);
	n->drop = maybe(w, 0.15, 0.02);
	w->plan.short_write = maybe(w, 0.15, 0.03);
	n->overtake = maybe(w, 0.15, 0.05);
	n->late = maybe(w, 0.2, 0.05);
	n->crash = maybe(w, 0.1, 0.003);
	n->lie = maybe(w, 0.1, 0.01);
	n->open_fails = maybe(w, 0.1, 0.1);
	n->close_fails = maybe(w, 0.15, 0.3);
	n->close_fails_n = (unsigned int)one_of(w, 1, 2, 1000);
}

static void plan_gpu(struct sim *w)
{
	struct kvs_soft_chances *g = &w->plan.gpu;

	g->latency_max = one_of(w, 0, 20 * SIM_US, SIM_MS);
	g->piece = one_of(w, 0, 100, 1000);
	g->bytes_per_sec = one_of(w, 0, 1000000, 20000000);
	g->delay_max = one_of(w, 0, 5 * SIM_MS, 50 * SIM_MS);
	g->delay = maybe(w, 0.2, 0.3);
	g->hold = maybe(w, 0.2, 0.3);
	g->fail = maybe(w, 0.1, 0.2);
	g->partial = maybe(w, 0.1, 0.2);
	g->reorder = maybe(w, 0.2, 0.5);
	g->late = maybe(w, 0.15, 0.3);
	g->sticky = maybe(w, 0.05, 0.2);
	g->never = maybe(w, 0.06, 0.2);
}

static bool paged(const struct sim *w)
{
	for (uint32_t b = 0; b < w->layout.n_buffers; b++)
		if (w->lb[b].items)
			return false;
	return true;
}

static void plan_hicache(struct sim *w)
{
	uint32_t pages = w->set.extent_tokens / w->layout.page_size;
	struct sim_plan *p = &w->plan;

	p->idle_sums = sim_chance(w, 0.5)   ? 0
		       : sim_chance(w, 0.5) ? 0.98
					    : kvs_rng_double(&w->rng) * 0.95;
	p->cache = sim_chance(w, paged(w) ? 0.7 : 0.05);
	p->away = sim_chance(w, 0.5);
	p->block_pages = pages % 2 || sim_chance(w, 0.7) ? 1 : 2;
	if (p->cache) {
		p->n_attempts = (unsigned int)sim_between(w, 5, 10);
		p->n_queries = (unsigned int)sim_between(w, 0, SIM_QUERIES);
		p->n_flushes = (unsigned int)one_of(w, 0, 0, 3);
	}
	if (p->away)
		p->offload = SIM_GRANULE *
			     (p->clean ? SIM_POOL_MAX / SIM_GRANULE
				       : one_of(w, sim_between(w, 1, 6), 16,
						SIM_POOL_MAX / SIM_GRANULE));
	/* asked for all the same: never */
	if (p->away && !p->clean && sim_chance(w, 0.05))
		p->offload = 0;
}

static void plan_slices(struct sim_attempt *a)
{
	struct sim *w = a->w;
	unsigned int layers = 0, first = 0;

	for (uint32_t b = 0; b < w->layout.n_buffers; b++)
		if (w->lb[b].layer >= layers)
			layers = w->lb[b].layer + 1u;
	for (unsigned int r = 0; r < a->n_ranks; r++) {
		unsigned int n = layers - first;

		/* the last takes the rest; the others may write nothing */
		if (r + 1 < a->n_ranks)
			n = (unsigned int)sim_between(w, 0, n);
		a->slice[r].first_layer = n ? first : 0;
		a->slice[r].n_layers = n;
		first += n;
	}
}

static void plan_wrong(struct sim_send *s)
{
	struct sim *w = s->w;

	if (w->plan.clean || !sim_chance(w, 0.08))
		return;
	s->wrong = (enum sim_wrong)sim_between(w, 1, SIM_WRONG_MAX - 1);
	s->wrong_at = (unsigned int)sim_between(w, 0, 6);
}

/* What it has in common with others; and does it stay? */
static void plan_prompt(struct sim_attempt *a)
{
	struct sim *w = a->w;

	if (w->plan.away && sim_chance(w, 0.6))
		a->away.rounds = (unsigned int)sim_between(w, 1, 3);
	if (!w->plan.cache)
		return;
	a->prompt = (unsigned int)kvs_rng_below(&w->rng, SIM_PROMPTS);
	a->shared = (uint32_t)sim_between(w, 0, a->pages);
	if (sim_chance(w, 0.3))
		a->shared = a->pages;
	a->named = sim_chance(w, 0.9);
	a->use_cache = sim_chance(w, 0.7);
	/* the next turn of a conversation comes after the one before */
	if (a->nr && sim_chance(w, 0.6)) {
		a->follows = &w->attempt[kvs_rng_below(&w->rng, a->nr)];
		if (sim_chance(w, 0.8))
			a->prompt = a->follows->prompt;
	}
}

static void plan_attempt(struct sim_attempt *a, unsigned int nr)
{
	struct sim *w = a->w;
	struct sim_attempt *b = NULL;

	a->nr = nr;
	a->abort_status = -1;
	if (nr && sim_chance(w, 0.35))
		b = &w->attempt[kvs_rng_below(&w->rng, nr)];
	for (unsigned int i = 0; b && i < nr; i++)
		if (w->attempt[i].before == b)
			b = NULL;
	a->before = b;
	a->id = b ? b->id : kvs_rng_next(&w->rng) | 1;
	a->nonce = sim_chance(w, 0.3);
	if (b) {
		/* only a nonce tells a late OPEN of the one before */
		a->nonce = true;
		b->nonce = true;
		sim_fault(w, SIM_FAULT_ROOM_REUSED);
	}
	a->pages = (uint32_t)sim_between(w, 1, SIM_PAGES);
	if (sim_chance(w, 0.5))
		a->pages = (a->pages + 2) / 3;
	a->tokens = (uint64_t)a->pages * w->layout.page_size -
		    kvs_rng_below(&w->rng, w->layout.page_size);
	/* One byte is its own canary once in 256 times (kvs_canary_false_alarm):
	 * where ranks write by themselves blocks are long enough. */
	plan_prompt(a);
	a->aux_len = sim_chance(w, 0.5)
			     ? (uint32_t)sim_between(
				       w, w->plan.one_sided ? 8 : 1, SIM_AUX)
			     : 0;
	a->n_ranks = w->plan.n_ranks;
	plan_slices(a);
	for (unsigned int r = 0; r < a->n_ranks; r++) {
		struct sim_send *s = &a->send[r];

		s->w = w;
		s->a = a;
		s->k = &w->rank[r];
		plan_wrong(s);
	}
	if (w->plan.clean)
		return;
	/* the first one is sure to be aborted */
	if (!nr || sim_chance(w, 0.3))
		a->abort_status = (int)sim_between(w, KVS_STATUS_PENDING,
						   KVS_STATUS_COMMITTING);
	a->no_commit = sim_chance(w, 0.04);
}

void sim_plan(struct sim *w)
{
	struct sim_plan *p = &w->plan;

	p->clean = sim_chance(w, 0.04);
	p->n_ranks = sim_chance(w, 0.3) ? 3 : 2;
	p->n_engines = sim_chance(w, 0.4) ? 2 : 1;
	p->n_attempts = (unsigned int)sim_between(w, 4, 7);
	plan_layout(w);
	plan_settings(w);
	plan_net(w);
	plan_gpu(w);
	p->one_sided = sim_chance(w, 0.5);
	p->eagain = maybe(w, 0.3, 0.2);
	p->pause = maybe(w, 0.4, 0.05);
	p->pause_max = one_of(w, 200 * SIM_US, 2 * SIM_MS, 10 * SIM_MS);
	p->gap = one_of(w, 10 * SIM_US, 100 * SIM_US, 500 * SIM_US);
	if (p->one_sided)
		w->revoke_max =
			3 * (p->net.latency_max + p->pause_max +
			     (p->net.delay_max ? p->net.delay_max : SIM_MS));
	plan_hicache(w);
	p->pool = SIM_GRANULE * (p->clean ? SIM_POOL_MAX / SIM_GRANULE
					  : sim_between(w, 6, 24));
	p->daemon_ends = !p->clean && sim_chance(w, 0.06);
	p->daemon_ends_at = sim_between(w, 0, 20 * SIM_MS);
	for (unsigned int i = 0; i < p->n_attempts; i++) {
		w->attempt[i].w = w;
		plan_attempt(&w->attempt[i], i);
	}
}
