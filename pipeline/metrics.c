/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "pipeline/metrics.h"

#define KVS_METRIC_NONE SIZE_MAX /* no such member */
#define KVS_METRIC_WORKERS \
	((unsigned int)KVS_ARRAY_SIZE(((struct kvs_snapshot *)0)->workers))

struct kvs_metric;
typedef void kvs_metric_fn(FILE *f, const struct kvs_metric *m,
			   const struct kvs_snapshot *s);

/**
 * struct kvs_metric - one row of metrics.def
 * @name: without "kvstage_"
 * @type: of the TYPE line
 * @help: of the HELP line
 * @emit: prints the samples; none is right only for a pool's metrics
 * @label: name of the label of an ENUM
 * @names: its values
 * @n_names: how many
 * @own: offset in struct kvs_snapshot, or KVS_METRIC_NONE
 * @off: offset in struct kvs_worker_snapshot, or KVS_METRIC_NONE
 * @width: bytes of the value
 */
struct kvs_metric {
	const char *name;
	const char *type;
	const char *help;
	kvs_metric_fn *emit;
	const char *label;
	const char *const *names;
	unsigned int n_names;
	size_t own;
	size_t off;
	size_t width;
};

/* upper bounds of all histograms */
static const struct {
	uint64_t ns;
	const char *le;
} kvs_metric_bounds[] = {
	{ 100000ULL, "0.0001" },    { 1000000ULL, "0.001" },
	{ 5000000ULL, "0.005" },    { 10000000ULL, "0.01" },
	{ 25000000ULL, "0.025" },   { 50000000ULL, "0.05" },
	{ 100000000ULL, "0.1" },    { 250000000ULL, "0.25" },
	{ 500000000ULL, "0.5" },    { 1000000000ULL, "1" },
	{ 2500000000ULL, "2.5" },   { 5000000000ULL, "5" },
	{ 10000000000ULL, "10" },   { 30000000000ULL, "30" },
	{ 60000000000ULL, "60" },   { 120000000000ULL, "120" },
	{ 300000000000ULL, "300" },
};

static unsigned int kvs_metric_workers(const struct kvs_snapshot *s)
{
	return s->n_workers < KVS_METRIC_WORKERS ? s->n_workers
						 : KVS_METRIC_WORKERS;
}

static uint64_t kvs_metric_read(const void *base, size_t off, size_t width)
{
	uint64_t v64;
	uint32_t v32;
	bool truth;

	switch (width) {
	case sizeof(truth):
		memcpy(&truth, (const char *)base + off, sizeof(truth));
		return truth;
	case sizeof(v32):
		memcpy(&v32, (const char *)base + off, sizeof(v32));
		return v32;
	default:
		memcpy(&v64, (const char *)base + off, sizeof(v64));
		return v64;
	}
}

/* The daemon's own value and all workers', @index members further on. */
static uint64_t kvs_metric_sum(const struct kvs_metric *m,
			       const struct kvs_snapshot *s, unsigned int index)
{
	size_t skip = index * m->width;
	uint64_t v = 0;
	unsigned int i;

	if (m->own != KVS_METRIC_NONE)
		v = kvs_metric_read(s, m->own + skip, m->width);
	if (m->off == KVS_METRIC_NONE)
		return v;
	for (i = 0; i < kvs_metric_workers(s); i++)
		v += kvs_metric_read(&s->workers[i], m->off + skip, m->width);
	return v;
}

static void kvs_metric_one(FILE *f, const struct kvs_metric *m,
			   const struct kvs_snapshot *s)
{
	fprintf(f, "kvstage_%s %" PRIu64 "\n", m->name,
		kvs_metric_sum(m, s, 0));
}

static void kvs_metric_enum(FILE *f, const struct kvs_metric *m,
			    const struct kvs_snapshot *s)
{
	unsigned int i;

	for (i = 0; i < m->n_names; i++)
		fprintf(f, "kvstage_%s{%s=\"%s\"} %" PRIu64 "\n", m->name,
			m->label, m->names[i], kvs_metric_sum(m, s, i));
}

/* Exact: a double has too few digits for nanoseconds of some months. */
static void kvs_metric_seconds(FILE *f, uint64_t ns)
{
	fprintf(f, "%llu.%09llu\n", ns / KVS_NSEC_PER_SEC,
		ns % KVS_NSEC_PER_SEC);
}

static void kvs_metric_most(FILE *f, const struct kvs_metric *m,
			    const struct kvs_snapshot *s)
{
	uint64_t most = 0;
	unsigned int i;

	for (i = 0; i < kvs_metric_workers(s); i++) {
		uint64_t v = kvs_metric_read(&s->workers[i], m->off, m->width);

		most = v > most ? v : most;
	}
	fprintf(f, "kvstage_%s ", m->name);
	kvs_metric_seconds(f, most);
}

static void kvs_metric_hist(FILE *f, const struct kvs_metric *m,
			    const struct kvs_snapshot *s)
{
	uint64_t le[KVS_ARRAY_SIZE(kvs_metric_bounds)] = { 0 };
	uint64_t count = 0, sum = 0;
	unsigned int w;
	size_t i;

	for (w = 0; w < kvs_metric_workers(s); w++) {
		const struct kvs_hist *h =
			(const void *)((const char *)&s->workers[w] + m->off);

		for (i = 0; i < KVS_ARRAY_SIZE(le); i++)
			le[i] += kvs_hist_count_le(h, kvs_metric_bounds[i].ns);
		count += h->count;
		if (__builtin_add_overflow(sum, h->sum, &sum))
			sum = UINT64_MAX;
	}
	for (i = 0; i < KVS_ARRAY_SIZE(le); i++)
		fprintf(f, "kvstage_%s_bucket{le=\"%s\"} %" PRIu64 "\n",
			m->name, kvs_metric_bounds[i].le, le[i]);
	fprintf(f, "kvstage_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", m->name,
		count);
	fprintf(f, "kvstage_%s_sum ", m->name);
	kvs_metric_seconds(f, sum);
	fprintf(f, "kvstage_%s_count %" PRIu64 "\n", m->name, count);
}

static void kvs_metric_build_info(FILE *f, const struct kvs_metric *m,
				  const struct kvs_snapshot *s)
{
	fprintf(f, "kvstage_%s{version=\"%s\",tcp_engine=\"%s\"} 1\n", m->name,
		KVS_VERSION, s->tcp_engine ? s->tcp_engine : "");
}

static void kvs_metric_uptime(FILE *f, const struct kvs_metric *m,
			      const struct kvs_snapshot *s)
{
	fprintf(f, "kvstage_%s ", m->name);
	kvs_metric_seconds(f, s->uptime);
}

static void kvs_metric_rooms(FILE *f, const struct kvs_metric *m,
			     const struct kvs_snapshot *s)
{
	uint64_t live = 0, waiting = 0, held = 0;
	unsigned int i;

	for (i = 0; i < kvs_metric_workers(s); i++) {
		live += s->workers[i].rooms_live;
		waiting += s->workers[i].rooms_waiting;
		held += s->workers[i].rooms_held;
	}
	fprintf(f, "kvstage_%s{state=\"waiting\"} %" PRIu64 "\n", m->name,
		waiting);
	fprintf(f, "kvstage_%s{state=\"active\"} %" PRIu64 "\n", m->name,
		live > waiting ? live - waiting : 0);
	fprintf(f, "kvstage_%s{state=\"held\"} %" PRIu64 "\n", m->name, held);
}

static void kvs_metric_drains(FILE *f, const struct kvs_metric *m,
			      const struct kvs_snapshot *s)
{
	unsigned int o, p, w;

	for (o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++) {
		for (p = 0; p < KVS_PROOF_MAX; p++) {
			uint64_t v = 0;

			for (w = 0; w < kvs_metric_workers(s); w++)
				v += s->workers[w].stats.drains.total[o][p];
			fprintf(f,
				"kvstage_%s{outcome=\"%s\",proof=\"%s\"} "
				"%" PRIu64 "\n",
				m->name, kvs_drain_outcome_name[o],
				kvs_proof_name[p], v);
		}
	}
}

/* Pools of a node, should workers share one, are one series. */
struct kvs_metric_pool {
	const char *name;
	int node;
	uint64_t page_size;
	int bound;
	struct kvs_pool_account account;
};

struct kvs_metric_pools {
	unsigned int n;
	struct kvs_metric_pool v[2 * KVS_METRIC_WORKERS];
};

static void kvs_metric_pool_add(struct kvs_metric_pools *all,
				const struct kvs_pool_snapshot *p)
{
	struct kvs_metric_pool *to;
	unsigned int i;

	if (!p->name)
		return;
	for (i = 0; i < all->n; i++)
		if (all->v[i].node == p->node &&
		    !strcmp(all->v[i].name, p->name))
			break;
	to = &all->v[i];
	if (i == all->n) {
		all->n++;
		*to = (struct kvs_metric_pool){
			.name = p->name,
			.node = p->node,
			.page_size = p->page_size,
			.bound = p->bound,
			.account = p->account,
		};
		return;
	}
	if (p->page_size < to->page_size)
		to->page_size = p->page_size;
	if (p->bound < to->bound)
		to->bound = p->bound;
	for (i = 0; i < KVS_EXTENT_STATE_MAX; i++)
		to->account.bytes[i] += p->account.bytes[i];
	to->account.configured += p->account.configured;
	to->account.high_water += p->account.high_water;
}

static void kvs_metric_pools_get(const struct kvs_snapshot *s,
				 struct kvs_metric_pools *ret)
{
	unsigned int w, p;

	ret->n = 0;
	for (w = 0; w < kvs_metric_workers(s); w++)
		for (p = 0; p < s->workers[w].n_pools &&
			    p < KVS_ARRAY_SIZE(s->workers[w].pools);
		     p++)
			kvs_metric_pool_add(ret, &s->workers[w].pools[p]);
}

static void kvs_metric_pool_bytes(FILE *f, const struct kvs_metric *m,
				  const struct kvs_snapshot *s)
{
	struct kvs_metric_pools all;
	unsigned int i, state;

	kvs_metric_pools_get(s, &all);
	for (i = 0; i < all.n; i++)
		for (state = 0; state < KVS_EXTENT_STATE_MAX; state++)
			fprintf(f,
				"kvstage_%s{node=\"%d\",pool=\"%s\","
				"state=\"%s\"} %" PRIu64 "\n",
				m->name, all.v[i].node, all.v[i].name,
				kvs_extent_state_name[state],
				all.v[i].account.bytes[state]);
}

static void kvs_metric_pool_line(FILE *f, const struct kvs_metric *m,
				 const struct kvs_metric_pool *p, uint64_t v)
{
	fprintf(f, "kvstage_%s{node=\"%d\",pool=\"%s\"} %" PRIu64 "\n", m->name,
		p->node, p->name, v);
}

static void kvs_metric_pool_configured(FILE *f, const struct kvs_metric *m,
				       const struct kvs_snapshot *s)
{
	struct kvs_metric_pools all;
	unsigned int i;

	kvs_metric_pools_get(s, &all);
	for (i = 0; i < all.n; i++)
		kvs_metric_pool_line(f, m, &all.v[i],
				     all.v[i].account.configured);
}

static void kvs_metric_quarantined(FILE *f, const struct kvs_metric *m,
				   const struct kvs_snapshot *s)
{
	struct kvs_metric_pools all;
	unsigned int i;

	kvs_metric_pools_get(s, &all);
	for (i = 0; i < all.n; i++)
		kvs_metric_pool_line(
			f, m, &all.v[i],
			all.v[i].account.bytes[KVS_EXTENT_QUARANTINED]);
}

static void kvs_metric_pool_high_water(FILE *f, const struct kvs_metric *m,
				       const struct kvs_snapshot *s)
{
	struct kvs_metric_pools all;
	unsigned int i;

	kvs_metric_pools_get(s, &all);
	for (i = 0; i < all.n; i++)
		kvs_metric_pool_line(f, m, &all.v[i],
				     all.v[i].account.high_water);
}

static void kvs_metric_pool_page(FILE *f, const struct kvs_metric *m,
				 const struct kvs_snapshot *s)
{
	struct kvs_metric_pools all;
	unsigned int i;

	kvs_metric_pools_get(s, &all);
	for (i = 0; i < all.n; i++)
		kvs_metric_pool_line(f, m, &all.v[i], all.v[i].page_size);
}

static void kvs_metric_pool_bound(FILE *f, const struct kvs_metric *m,
				  const struct kvs_snapshot *s)
{
	struct kvs_metric_pools all;
	unsigned int i;

	kvs_metric_pools_get(s, &all);
	for (i = 0; i < all.n; i++)
		kvs_metric_pool_line(f, m, &all.v[i], all.v[i].bound > 0);
}

/* A worker's held bytes lie in its receive pool, the first. */
static int kvs_metric_node(const struct kvs_worker_snapshot *w)
{
	return w->n_pools ? w->pools[0].node : -1;
}

static void kvs_metric_held(FILE *f, const struct kvs_metric *m,
			    const struct kvs_snapshot *s)
{
	unsigned int n = kvs_metric_workers(s), w, v, cause;

	for (w = 0; w < n; w++) {
		int node = kvs_metric_node(&s->workers[w]);

		for (v = 0; v < w; v++)
			if (kvs_metric_node(&s->workers[v]) == node)
				break;
		if (v < w)
			continue;
		for (cause = 0; cause < KVS_CAUSE_MAX; cause++) {
			uint64_t bytes = 0;

			for (v = w; v < n; v++)
				if (kvs_metric_node(&s->workers[v]) == node)
					bytes +=
						s->workers[v].held_bytes[cause];
			fprintf(f,
				"kvstage_%s{reason=\"%s\",node=\"%d\"} "
				"%" PRIu64 "\n",
				m->name, kvs_cause_name[cause], node, bytes);
		}
	}
}

/* What kvs_metric_read() can read. */
#define KVS_WIDTH(type, member)                                             \
	(sizeof(((struct type *)0)->member) +                               \
	 0 * sizeof(struct {                                                \
		 _Static_assert(                                            \
			 sizeof(((struct type *)0)->member) == 1 ||         \
				 sizeof(((struct type *)0)->member) == 4 || \
				 sizeof(((struct type *)0)->member) == 8,   \
			 "no number of this width");                        \
		 char unused;                                               \
	 }))
/* what a row names as its own array */
#define KVS_OWN_NONE KVS_METRIC_NONE
#define KVS_OWN_admits offsetof(struct kvs_snapshot, admits)
#define KVS_OWN_strays offsetof(struct kvs_snapshot, strays)
#define KVS_OWN_protocol_errors offsetof(struct kvs_snapshot, protocol_errors)

static const struct kvs_metric kvs_metrics[] = {
#define KVS_METRIC_ONE(n, t, mb, h)                 \
	{ .name = #n,                               \
	  .type = #t,                               \
	  .help = (h),                              \
	  .emit = kvs_metric_one,                   \
	  .own = offsetof(struct kvs_snapshot, mb), \
	  .off = KVS_METRIC_NONE,                   \
	  .width = KVS_WIDTH(kvs_snapshot, mb) },
#define KVS_METRIC_SUM(n, t, mb, h)                        \
	{ .name = #n,                                      \
	  .type = #t,                                      \
	  .help = (h),                                     \
	  .emit = kvs_metric_one,                          \
	  .own = KVS_METRIC_NONE,                          \
	  .off = offsetof(struct kvs_worker_snapshot, mb), \
	  .width = KVS_WIDTH(kvs_worker_snapshot, mb) },
#define KVS_METRIC_ENUM(n, l, nm, o, mb, h)                \
	{ .name = #n,                                      \
	  .type = "counter",                               \
	  .help = (h),                                     \
	  .emit = kvs_metric_enum,                         \
	  .label = #l,                                     \
	  .names = nm,                                     \
	  .n_names = KVS_ARRAY_SIZE(nm),                   \
	  .own = KVS_OWN_##o,                              \
	  .off = offsetof(struct kvs_worker_snapshot, mb), \
	  .width = KVS_WIDTH(kvs_worker_snapshot, mb[0]) },
#define KVS_METRIC_OWN(n, l, nm, mb, h)             \
	{ .name = #n,                               \
	  .type = "counter",                        \
	  .help = (h),                              \
	  .emit = kvs_metric_enum,                  \
	  .label = #l,                              \
	  .names = nm,                              \
	  .n_names = KVS_ARRAY_SIZE(nm),            \
	  .own = offsetof(struct kvs_snapshot, mb), \
	  .off = KVS_METRIC_NONE,                   \
	  .width = KVS_WIDTH(kvs_snapshot, mb[0]) },
#define KVS_METRIC_MOST(n, mb, h)                          \
	{ .name = #n,                                      \
	  .type = "gauge",                                 \
	  .help = (h),                                     \
	  .emit = kvs_metric_most,                         \
	  .own = KVS_METRIC_NONE,                          \
	  .off = offsetof(struct kvs_worker_snapshot, mb), \
	  .width = KVS_WIDTH(kvs_worker_snapshot, mb) },
#define KVS_METRIC_HIST(n, mb, h)  \
	{ .name = #n,              \
	  .type = "histogram",     \
	  .help = (h),             \
	  .emit = kvs_metric_hist, \
	  .own = KVS_METRIC_NONE,  \
	  .off = offsetof(struct kvs_worker_snapshot, mb) },
#define KVS_METRIC_CALL(n, t, fn, h) \
	{ .name = #n, .type = #t, .help = (h), .emit = (fn) },
#include "pipeline/metrics.def"
};

int kvs_metrics_text(const struct kvs_snapshot *s, char **ret_text,
		     size_t *ret_len)
{
	char *text = NULL, *samples = NULL;
	size_t len = 0, n = 0, i;
	FILE *f, *one;
	bool bad = false;

	f = open_memstream(&text, &len);
	if (!f)
		return -ENOMEM;
	for (i = 0; i < KVS_ARRAY_SIZE(kvs_metrics) && !bad; i++) {
		const struct kvs_metric *m = &kvs_metrics[i];

		one = open_memstream(&samples, &n);
		if (!one) {
			bad = true;
			break;
		}
		m->emit(one, m, s);
		bad = fclose(one) != 0;
		/* no family without samples: pools come with their pool */
		if (!bad && n)
			fprintf(f,
				"# HELP kvstage_%s %s\n"
				"# TYPE kvstage_%s %s\n%s",
				m->name, m->help, m->name, m->type, samples);
		free(samples);
		samples = NULL;
	}
	bad |= ferror(f) != 0;
	bad |= fclose(f) != 0;
	if (bad) {
		free(text);
		return -ENOMEM;
	}
	*ret_text = text;
	*ret_len = len;
	return 0;
}
