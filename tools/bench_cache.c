/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench cache: what hicache's index costs with many entries, how fast
 * cached bytes come back, and what its policies make of a trace beside a plain
 * LRU and a cache that knows the future.
 */
#include "tools/bench_cache.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/layout.h"
#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/units.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "tools/bench.h"
#include "tools/cache_bounds.h"
#include "tools/cache_replay.h"
#include "tools/cache_ttft.h"
#include "tools/output.h"
#include "tools/table.h"

#define EXIT_USAGE 2
#define EXIT_CANNOT 77
#define PREFILLS_MAX 256u
#define NVME_RATE (6ULL << 30) /* bytes a second: one data-centre SSD's */
#define ENTRIES_MAX 100000000u
#define BLOCKS_MAX (1ULL << 40)

enum {
	KEY_TRACE = 256,
	KEY_NVME,
	KEY_MODEL,
	KEY_TP,
	KEY_BLOCK,
	KEY_REQUESTS,
	KEY_SHARE,
	KEY_PROMOTE,
	KEY_PREFILLS,
	KEY_NVME_RATE,
	KEY_RECALL,
	KEY_DIR,
};

static const struct argp_option options[] = {
	{ "trace", KEY_TRACE, "FILE", 0,
	  "Requests, as Mooncake traces have them", 1 },
	{ "capacity", 'c', "LIST", 0,
	  "Of host memory: unlimited (default), a size, or a share of the "
	  "footprint as 10%",
	  1 },
	{ "nvme", KEY_NVME, "CAPACITY", 0,
	  "A second tier that takes what the first one evicts", 1 },
	{ "policy", 'p', "LIST", 0, "s3fifo (default), lru", 1 },
	{ "small-share", KEY_SHARE, "N", 0,
	  "s3fifo: per mille of its small queue (default 500)", 1 },
	{ "promote", KEY_PROMOTE, "N", 0,
	  "s3fifo: uses that move a block to its main queue (default 1)", 1 },
	{ "model", KEY_MODEL, "NAME", 0, "Preset (default deepseek-v3)", 1 },
	{ "tp", KEY_TP, "N", 0, "Ranks that share its heads (default 1)", 1 },
	{ "block-tokens", KEY_BLOCK, "N", 0,
	  "Tokens of a block of the trace (default 512)", 1 },
	{ "requests", KEY_REQUESTS, "N", 0, "The first N of them", 1 },
	{ "prefills", KEY_PREFILLS, "N", 0,
	  "Prefill instances of the TTFT model (default 12)", 1 },
	{ "nvme-rate", KEY_NVME_RATE, "SIZE", 0,
	  "Bytes a second that its second tier gives (default 6G)", 1 },
	{ "recall", KEY_RECALL, "SIZE", 0,
	  "Measure instead how fast so many cached bytes come back", 2 },
	{ "dir", KEY_DIR, "DIR", 0,
	  "Of the disk tier with --recall (default /var/tmp)", 2 },
	{ "entries", 'n', "N", 0,
	  "Measure the index with so many pages instead (10M is ten million)",
	  2 },
	{ "json", 'j', NULL, 0, "One JSON object for each result", 3 },
	{ 0 }
};

/* ---- replay ---- */

struct replayed {
	struct kvs_serving serving;
	struct kvs_cache_ttft without; /* any cache */
	struct kvs_replay_hit *hit; /* of each request */
	struct kvs_trace trace;
	struct kvs_block_stream stream;
	uint64_t token_bytes;
	uint64_t block_bytes;
};

struct bounds {
	uint64_t blocks; /* capacity of all tiers */
	uint64_t lru;
	uint64_t clairvoyant;
};

static uint64_t capacity_blocks(const struct cache_capacity *c,
				const struct replayed *p)
{
	if (c->bytes)
		return c->bytes / p->block_bytes;
	if (c->share > 0)
		return (uint64_t)floor(c->share * p->stream.unique);
	return p->stream.unique;
}

static double ratio(uint64_t hits, const struct replayed *p)
{
	return (double)hits / (double)p->stream.n;
}

static void show_ttft(const char *name, const struct kvs_cache_ttft *t)
{
	printf(", \"%s\": {\"mean_ms\": %.1f, \"median_ms\": %.1f, "
	       "\"p90_ms\": %.1f, \"p99_ms\": %.1f, "
	       "\"wait_mean_ms\": %.1f}",
	       name, t->mean, t->median, t->p90, t->p99, t->wait);
}

static void show_json(const struct cache_args *a, const struct replayed *p,
		      const struct cache_capacity *c,
		      const struct kvs_replay_opts *o,
		      const struct kvs_replay_result *m, const struct bounds *b,
		      const struct kvs_cache_ttft *ttft)
{
	printf("{\"bench\": \"cache\", \"capacity\": \"%s\", "
	       "\"policy\": \"%s\", \"block_hit_ratio\": %.5f, "
	       "\"ideal_block_hit_ratio\": %.5f, \"lru_ratio\": %.5f, "
	       "\"clairvoyant_ratio\": %.5f, \"tier_hits\": {",
	       c->text, kvs_policy_name[o->policy], ratio(m->hits, p),
	       ratio(kvs_bound_ideal(&p->stream), p), ratio(b->lru, p),
	       ratio(b->clairvoyant, p));
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++)
		printf("%s\"%s\": %" PRIu64, t ? ", " : "", kvs_tier_name[t],
		       m->tier_hits[t]);
	printf("}, \"prefix_hit_ratio\": %.5f, \"requests\": %zu, "
	       "\"blocks\": %zu, \"unique_blocks\": %" PRIu32
	       ", \"capacity_blocks\": %" PRIu64 ", \"nvme_blocks\": %" PRIu64
	       ", \"evicted_blocks\": %" PRIu64
	       ", \"nvme_written_blocks\": %" PRIu64,
	       ratio(m->prefix_hits, p), p->trace.n, p->stream.n,
	       p->stream.unique, o->blocks[KVS_TIER_HOST],
	       o->blocks[KVS_TIER_NVME], m->evicted, m->written);
	printf(", \"model\": \"%s\", \"tp\": %" PRIu32
	       ", \"bytes_per_token\": %" PRIu64 ", \"block_tokens\": %" PRIu32
	       ", \"block_bytes\": %" PRIu64 ", \"footprint_bytes\": %" PRIu64
	       ", \"wire_bytes\": %" PRIu64 ", \"wire_bytes_saved\": %" PRIu64
	       ", \"index_bytes\": %" PRIu64,
	       a->model, a->tp, p->token_bytes, a->block_tokens, p->block_bytes,
	       p->block_bytes * p->stream.unique,
	       p->trace.tokens * p->token_bytes,
	       m->prefix_tokens * p->token_bytes, m->memory);
	printf(", \"prefills\": %" PRIu32 ", \"nvme_rate\": %" PRIu64,
	       p->serving.prefills, a->nvme_rate);
	show_ttft("ttft_without", &p->without);
	show_ttft("ttft_with", ttft);
	puts("}");
	(void)kvs_output_flush();
}

static void show_row(struct kvs_table *t, const struct replayed *p,
		     const struct cache_capacity *c,
		     const struct kvs_replay_opts *o,
		     const struct kvs_replay_result *m, const struct bounds *b,
		     const struct kvs_cache_ttft *ttft)
{
	char buf[KVS_UNITS_BUF];

	kvs_table_cell(t, "%s", c->text);
	kvs_table_cell(t, "%s", kvs_policy_name[o->policy]);
	kvs_table_cell(t, "%.4f", ratio(m->hits, p));
	kvs_table_cell(t, "%.4f", ratio(m->prefix_hits, p));
	kvs_table_cell(t, "%.4f", ratio(b->lru, p));
	kvs_table_cell(t, "%.4f", ratio(b->clairvoyant, p));
	kvs_table_cell(t, "%.4f", ratio(kvs_bound_ideal(&p->stream), p));
	kvs_table_cell(t, "%" PRIu64, m->tier_hits[KVS_TIER_HOST]);
	kvs_table_cell(t, "%" PRIu64, m->tier_hits[KVS_TIER_NVME]);
	kvs_table_cell(t, "%s",
		       kvs_format_size(m->prefix_tokens * p->token_bytes, buf));
	kvs_table_cell(t, "%.0f", p->without.mean);
	kvs_table_cell(t, "%.0f", ttft->mean);
	kvs_table_cell(t, "%.0f", p->without.p99);
	kvs_table_cell(t, "%.0f", ttft->p99);
}

static int replay_capacity(const struct cache_args *a, const struct replayed *p,
			   const struct cache_capacity *c, struct kvs_table *t)
{
	struct kvs_replay_opts o = {
		.blocks[KVS_TIER_HOST] = capacity_blocks(c, p),
		.blocks[KVS_TIER_NVME] =
			a->nvme_given ? capacity_blocks(&a->nvme, p) : 0,
		.block_tokens = a->block_tokens,
		.small_share = a->small_share,
		.promote = a->promote,
		.hit = p->hit,
	};
	struct kvs_cache_ttft ttft;
	struct kvs_replay_result m;
	struct bounds b = { 0 };
	int r;

	b.blocks = o.blocks[KVS_TIER_HOST] + o.blocks[KVS_TIER_NVME];
	if (!o.blocks[KVS_TIER_HOST]) {
		fprintf(stderr,
			"cache: --capacity %s: less than a block of %" PRIu64
			" bytes\n",
			c->text, p->block_bytes);
		return -EINVAL;
	}
	r = kvs_bound_lru(&p->stream, b.blocks, &b.lru);
	if (!r)
		r = kvs_bound_clairvoyant(&p->stream, b.blocks, &b.clairvoyant);
	for (unsigned int i = 0; i < a->n_policies && !r; i++) {
		o.policy = a->policy[i];
		r = kvs_replay(&p->trace, &p->stream, &o, &m);
		if (!r)
			r = kvs_cache_ttft(&p->serving, &p->trace, p->hit,
					   (double)a->nvme_rate, &ttft);
		if (r)
			break;
		if (t)
			show_row(t, p, c, &o, &m, &b, &ttft);
		else
			show_json(a, p, c, &o, &m, &b, &ttft);
	}
	return r;
}

static int replay_load(const struct cache_args *a, struct replayed *p)
{
	struct kvs_preset_opts po = { .tp = a->tp };
	struct kvs_layout *l;
	char err[KVS_PRESET_ERR];
	int r;

	r = kvs_preset_layout(a->model, &po, &l, err, sizeof(err));
	if (r) {
		fprintf(stderr, "cache: %s\n", err);
		return -EINVAL;
	}
	p->token_bytes = kvs_layout_bytes_per_token(l);
	p->block_bytes = p->token_bytes * a->block_tokens;
	free(l);
	r = kvs_trace_read(a->trace, a->requests, 0, &p->trace, err,
			   sizeof(err));
	if (r) {
		fprintf(stderr, "cache: %s\n", err);
		return r;
	}
	r = kvs_block_stream_make(&p->trace, &p->stream);
	if (r == -ENODATA)
		fprintf(stderr, "cache: %s: no request has hash_ids\n",
			a->trace);
	if (r)
		return r;
	kvs_serving_defaults(&p->serving);
	p->serving.prefills = a->prefills;
	p->serving.token_bytes = p->token_bytes;
	p->hit = calloc(p->trace.n, sizeof(*p->hit));
	return p->hit ? kvs_cache_ttft(&p->serving, &p->trace, NULL,
				       (double)a->nvme_rate, &p->without)
		      : -ENOMEM;
}

static int replay_all(const struct cache_args *a)
{
	struct kvs_table *t = NULL;
	struct replayed p = { 0 };
	int r;

	r = replay_load(a, &p);
	if (!r && !a->json)
		r = kvs_table_create("<capacity <policy block_hit_ratio "
				     "prefix_hit_ratio lru_ratio "
				     "clairvoyant_ratio ideal host nvme "
				     "wire_saved ttft_mean_ms with_cache "
				     "ttft_p99_ms with_cache",
				     &t);
	for (unsigned int i = 0; i < a->n_capacities && !r; i++)
		r = replay_capacity(a, &p, &a->capacity[i], t);
	if (!r && t)
		r = kvs_table_print(t, stdout);
	kvs_table_destroy(t);
	free(p.hit);
	kvs_block_stream_fini(&p.stream);
	kvs_trace_fini(&p.trace);
	return r;
}

/* ---- command line ---- */

/* Number and an optional K, M or G, powers of 1000. */
static int parse_count(const char *arg, uint64_t max, uint64_t *ret)
{
	static const struct {
		char c;
		uint64_t n;
	} suffix[] = { { 'k', 1000 },
		       { 'K', 1000 },
		       { 'm', 1000000 },
		       { 'M', 1000000 },
		       { 'G', 1000000000 } };
	uint64_t times = 1, v;
	size_t len = strlen(arg);
	char buf[32];

	if (!len || len >= sizeof(buf))
		return -EINVAL;
	memcpy(buf, arg, len + 1);
	for (size_t i = 0; i < KVS_ARRAY_SIZE(suffix); i++) {
		if (buf[len - 1] != suffix[i].c)
			continue;
		times = suffix[i].n;
		buf[len - 1] = '\0';
		break;
	}
	if (kvs_parse_u64(buf, &v) || !v || v > max / times)
		return -EINVAL;
	*ret = v * times;
	return 0;
}

static int parse_capacity(const char *arg, struct cache_capacity *ret)
{
	struct cache_capacity c = { 0 };
	size_t len = strlen(arg);
	char *end;

	if (!len || len >= sizeof(c.text))
		return -EINVAL;
	memcpy(c.text, arg, len + 1);
	if (arg[len - 1] == '%') {
		c.share = strtod(arg, &end) / 100;
		/* also not when it is no number */
		if (end != arg + len - 1 || !(c.share > 0 && c.share <= 1))
			return -EINVAL;
	} else if (strcmp(arg, "unlimited") != 0) {
		if (kvs_parse_size(arg, &c.bytes) || !c.bytes)
			return -EINVAL;
	}
	*ret = c;
	return 0;
}

static int parse_policy(const char *arg, enum kvs_policy *ret)
{
	for (unsigned int i = 0; i < KVS_POLICY_MAX; i++) {
		if (strcmp(arg, kvs_policy_name[i]) != 0)
			continue;
		*ret = i;
		return 0;
	}
	return -EINVAL;
}

/* The next word of a list, without its end; NULL: there is none, or an empty
 * one. */
static char *next_word(char **at)
{
	char *w = strsep(at, ",");

	return w && *w ? w : NULL;
}

/* The last of @n is there already: it would be replayed twice. */
static bool repeats(const struct cache_args *a, int key, unsigned int n)
{
	for (unsigned int i = 0; n && i < n - 1; i++)
		if (key == 'c' ? a->capacity[i].bytes ==
						 a->capacity[n - 1].bytes &&
					 a->capacity[i].share ==
						 a->capacity[n - 1].share
			       : a->policy[i] == a->policy[n - 1])
			return true;
	return false;
}

static void parse_list(int key, char *arg, struct cache_args *a,
		       struct argp_state *state)
{
	char buf[CACHE_LIST_MAX * CACHE_WORD_MAX], *at = buf, *w;
	bool bad = strlen(arg) >= sizeof(buf);
	unsigned int n = 0;

	snprintf(buf, sizeof(buf), "%s", arg);
	while (at && !bad) {
		w = next_word(&at);
		if (!w)
			bad = true;
		else if (key == 'c')
			bad = n == CACHE_LIST_MAX ||
			      parse_capacity(w, &a->capacity[n]);
		else
			bad = n == KVS_POLICY_MAX ||
			      parse_policy(w, &a->policy[n]);
		n += !bad;
		bad = bad || repeats(a, key, n);
	}
	if (bad && key == 'c')
		argp_error(state,
			   "--capacity %s: a list of different ones: "
			   "unlimited, sizes, and "
			   "shares above 0%% up to 100%%",
			   arg);
	if (bad)
		argp_error(state, "--policy %s: one or two of s3fifo and lru",
			   arg);
	if (key == 'c')
		a->n_capacities = n;
	else
		a->n_policies = n;
}

static void parse_u32(const char *name, const char *arg, uint64_t max,
		      uint32_t *ret, struct argp_state *state)
{
	uint64_t v;

	if (kvs_parse_u64(arg, &v) || !v || v > max)
		argp_error(state, "--%s %s: from 1 to %" PRIu64, name, arg,
			   max);
	*ret = (uint32_t)v;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct cache_args *a = state->input;

	switch (key) {
	case KEY_TRACE:
		a->trace = arg;
		return 0;
	case 'c':
	case 'p':
		parse_list(key, arg, a, state);
		return 0;
	case KEY_NVME:
		if (parse_capacity(arg, &a->nvme))
			argp_error(state,
				   "--nvme %s: unlimited, a size, or a share "
				   "above 0%% up to 100%%",
				   arg);
		a->nvme_given = true;
		return 0;
	case KEY_SHARE:
		parse_u32("small-share", arg, KVS_INDEX_PER_MILLE,
			  &a->small_share, state);
		return 0;
	case KEY_PROMOTE:
		parse_u32("promote", arg, KVS_INDEX_USED_MAX, &a->promote,
			  state);
		return 0;
	case KEY_PREFILLS:
		parse_u32("prefills", arg, PREFILLS_MAX, &a->prefills, state);
		return 0;
	case KEY_NVME_RATE:
		if (kvs_parse_size(arg, &a->nvme_rate) || !a->nvme_rate)
			argp_error(state, "--nvme-rate %s: from 1", arg);
		return 0;
	case KEY_RECALL:
		if (kvs_parse_size(arg, &a->recall) || a->recall < 1ULL << 20 ||
		    a->recall > 1ULL << 40)
			argp_error(state, "--recall %s: from 1M to 1T", arg);
		return 0;
	case KEY_DIR:
		if (!*arg || strlen(arg) > 4000)
			argp_error(state, "--dir %s: no such thing", arg);
		a->dir = arg;
		return 0;
	case KEY_MODEL:
		a->model = arg;
		return 0;
	case KEY_TP:
		parse_u32("tp", arg, KVS_RANKS_MAX, &a->tp, state);
		return 0;
	case KEY_BLOCK:
		parse_u32("block-tokens", arg, KVS_PAGE_SIZE_MAX,
			  &a->block_tokens, state);
		return 0;
	case KEY_REQUESTS:
		if (parse_count(arg, KVS_TRACE_REQUESTS_MAX, &a->requests))
			argp_error(state, "--requests %s: from 1 to %u", arg,
				   KVS_TRACE_REQUESTS_MAX);
		return 0;
	case 'n':
		if (parse_count(arg, ENTRIES_MAX, &a->entries) ||
		    a->entries < 1000)
			argp_error(state, "--entries %s: from 1000 to %u", arg,
				   ENTRIES_MAX);
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_END:
		if (!!a->trace + !!a->entries + !!a->recall != 1)
			argp_error(state,
				   "one of --trace, --recall and --entries");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int kvs_bench_cache(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Hit ratios of hicache's index over the blocks of a "
		       "trace, beside a plain LRU and a cache that knows the "
		       "future, and the time to first token with and without; "
		       "or how fast cached bytes come back; or what the index "
		       "costs with many entries.",
	};
	struct cache_args a = {
		.capacity = { { .text = "unlimited" } },
		.n_capacities = 1,
		.policy = { KVS_POLICY_S3FIFO },
		.n_policies = 1,
		.model = "deepseek-v3",
		.tp = 1,
		.block_tokens = KVS_TRACE_BLOCK,
		.prefills = 12,
		.nvme_rate = NVME_RATE,
		.dir = "/var/tmp",
	};
	int r;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	r = a.entries  ? kvs_bench_cache_entries(&a)
	    : a.recall ? kvs_bench_cache_recall(&a)
		       : replay_all(&a);
	if (r == -ENOEXEC)
		return EXIT_CANNOT;
	if (r == -EINVAL)
		return EXIT_USAGE;
	if (r)
		fprintf(stderr, "cache: %s\n", strerror(-r));
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
