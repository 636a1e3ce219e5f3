/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench h2d: copies of scattered items of one length, and kvstage-bench
 * commit: those of a whole room of a model, both against one large copy of as
 * many bytes.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/units.h"
#include "pipeline/presets.h"
#include "tools/arg.h"
#include "tools/bench.h"
#include "tools/bench_copy.h"
#include "tools/bench_copy_room.h"
#include "tools/output.h"

#define LIST_MAX 16
#define ITEM_MAX (1ULL << 30)
#define ITEMS_MAX 2147483646 /* pages of the device are counted in 32 bits */

struct args {
	struct kvs_copy_bench b;
	uint64_t bytes; /* h2d */
	uint64_t list[LIST_MAX]; /* item lengths, or page sizes */
	unsigned int n;
	const char *model; /* commit */
	uint64_t tp, layers, tokens;
};

static void parse_list(struct argp_state *state, struct args *a,
		       const char *name, const char *arg, uint64_t max)
{
	char buf[512], *one[LIST_MAX];

	a->n = kvs_arg_list(arg, buf, sizeof(buf), one, LIST_MAX);
	if (!a->n)
		argp_error(state, "--%s %s: from 1 to %d values with commas",
			   name, arg, LIST_MAX);
	for (unsigned int i = 0; i < a->n; i++)
		if (kvs_parse_size(one[i], &a->list[i]) < 0 || !a->list[i] ||
		    a->list[i] > max)
			argp_error(state,
				   "--%s %s: %s is not from 1 to %" PRIu64,
				   name, arg, one[i], max);
	if (kvs_arg_repeats(a->list, a->n))
		argp_error(state, "--%s %s: a value is there twice", name, arg);
}

static void show(struct args *a, const char *what, uint64_t item_len,
		 uint64_t pages, uint64_t page_size,
		 const struct kvs_copy_result *r)
{
	const char *dir = a->b.dir == KVS_COPY_H2D ? "h2d" : "d2h";
	struct kvs_device_info info;

	kvs_device_info(a->b.d, &info);
	if (a->b.json) {
		printf("{\"bench\": \"%s\", \"device\": \"%s\", "
		       "\"direction\": \"%s\", \"way\": \"%s\", ",
		       what, a->b.choice.name, dir,
		       kvs_copy_way_name(info.way));
		if (a->model)
			printf("\"model\": \"%s\", \"tp\": %" PRIu64
			       ", \"page_size\": %" PRIu64 ", ",
			       a->model, a->tp, page_size);
		printf("\"item_len\": %" PRIu64 ", \"pages\": %" PRIu64
		       ", \"gbps\": %.3f, \"baseline_gbps\": %.3f, "
		       "\"ops_per_gib\": %.1f, \"ratio\": %.4f, "
		       "\"batch_min\": %" PRIu64 ", \"measured\": %s, "
		       "\"repeats\": %" PRIu64 "}\n",
		       item_len, pages, r->gbps, r->baseline_gbps,
		       r->ops_per_gib, r->ratio, info.batch_min,
		       info.measured ? "true" : "false", a->b.repeats);
		(void)kvs_output_flush();
		return;
	}
	kvs_table_cell(a->b.table, "%s", a->b.choice.name);
	kvs_table_cell(a->b.table, "%s", dir);
	if (a->model)
		kvs_table_cell(a->b.table, "%" PRIu64, page_size);
	kvs_table_cell(a->b.table, "%" PRIu64, item_len);
	kvs_table_cell(a->b.table, "%" PRIu64, pages);
	kvs_table_cell(a->b.table, "%.2f", r->gbps);
	kvs_table_cell(a->b.table, "%.2f", r->baseline_gbps);
	kvs_table_cell(a->b.table, "%.0f", r->ops_per_gib);
	kvs_table_cell(a->b.table, "%.3f", r->ratio);
}

static int run_all(struct args *a, const char *heads,
		   int (*one)(struct args *a, uint64_t v))
{
	int r = kvs_copy_bench_open(&a->b);

	if (r == -EOPNOTSUPP || r == -ENODEV)
		return KVS_BENCH_CANNOT;
	if (!r && !a->b.json)
		r = kvs_table_create(heads, &a->b.table);
	for (unsigned int i = 0; i < a->n && !r; i++)
		r = one(a, a->list[i]);
	if (!r && a->b.table)
		r = kvs_table_print(a->b.table, stdout);
	kvs_copy_bench_close(&a->b);
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- h2d ---- */

static int one_length(struct args *a, uint64_t len)
{
	uint64_t n = a->bytes / len;
	struct kvs_copy_run run = { .item_len = len, .n = n };
	struct kvs_copy c = { .runs = &run, .n_runs = 1 };
	struct kvs_copy_result res;
	uint32_t *pages = NULL;
	int r;

	r = kvs_copy_bench_pages(n, &pages);
	if (!r)
		r = kvs_copy_bench_memory(&a->b, n * len,
					  KVS_BENCH_DEVICE_PAGES(n) * len);
	if (r) {
		fprintf(stderr, "%s: no memory: %s\n", a->b.choice.name,
			strerror(-r));
	} else {
		run.host = a->b.host;
		run.dev = a->b.dev;
		run.pages = pages;
		r = kvs_copy_bench_measure(&a->b, &c, &res);
	}
	if (!r)
		show(a, "h2d", len, n, 0, &res);
	free(pages);
	return r;
}

/* Each length with --bytes; the default ones may be what does not fit. */
static void check_lengths(const struct args *a, struct argp_state *state)
{
	for (unsigned int i = 0; i < a->n; i++) {
		uint64_t n = a->bytes / a->list[i];

		if (!n || n > ITEMS_MAX)
			argp_error(state,
				   "--bytes %" PRIu64
				   " with --item-len %" PRIu64 ": %" PRIu64
				   " items, from 1 to %d are "
				   "possible",
				   a->bytes, a->list[i], n, ITEMS_MAX);
	}
}

static error_t parse_h2d(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	switch (key) {
	case 'i':
		parse_list(state, a, "item-len", arg, ITEM_MAX);
		return 0;
	case 's':
		if (kvs_parse_size(arg, &a->bytes) < 0 || !a->bytes ||
		    a->bytes > 1ULL << 40)
			argp_error(state, "--bytes %s: from 1 to 1T", arg);
		return 0;
	case ARGP_KEY_SUCCESS:
		check_lengths(a, state);
		return 0;
	default:
		return kvs_copy_bench_parse(&a->b, key, arg, state);
	}
}

int kvs_bench_h2d(int argc, char **argv)
{
	static const struct argp_option options[] = {
		KVS_COPY_BENCH_OPTIONS,
		{ "item-len", 'i', "SIZES", 0,
		  "Bytes of an item, with commas (default "
		  "256,576,1K,4K,16K,32K,64K,256K,1M)",
		  0 },
		{ "bytes", 's', "SIZE", 0, "Of a copy (default 256M)", 0 },
		{ 0 }
	};
	const struct argp argp = {
		.options = options,
		.parser = parse_h2d,
		.doc = "Copies of scattered items between host memory and a "
		       "device, against one large copy.",
	};
	struct args a = {
		.b = { .device = "soft", .repeats = 5 },
		.bytes = 256ULL << 20,
		.list = { 256, 576, 1 << 10, 4 << 10, 16 << 10, 32 << 10,
			  64 << 10, 256 << 10, 1 << 20 },
		.n = 9,
	};

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	return run_all(&a,
		       "<device <direction item_len pages gbps baseline_gbps "
		       "ops_per_gib ratio",
		       one_length);
}

/* ---- commit ---- */

static struct kvs_preset_opts opts_of(const struct args *a, uint64_t page_size)
{
	return (struct kvs_preset_opts){
		.tp = (uint32_t)a->tp,
		.layers = (uint32_t)a->layers,
		.page_size = (uint32_t)page_size,
	};
}

/* With this one alone, and those before it, it cannot be. */
static const char *culprit(const struct args *a)
{
	struct kvs_preset_opts o = { .layers = (uint32_t)a->layers };
	struct kvs_layout *l = NULL;
	char err[KVS_PRESET_ERR];

	if (kvs_preset_layout(a->model, &o, &l, err, sizeof(err)))
		return "layers";
	free(l);
	o.tp = (uint32_t)a->tp;
	if (kvs_preset_layout(a->model, &o, &l, err, sizeof(err)))
		return "tp";
	free(l);
	return "page-size";
}

static void check_room(const struct args *a, struct argp_state *state,
		       uint64_t page_size)
{
	const struct kvs_preset_opts o = opts_of(a, page_size);
	struct kvs_copy_room m = { 0 };
	char err[KVS_PRESET_ERR];
	int r = kvs_copy_room_plan(&m, a->model, &o, a->tokens, err,
				   sizeof(err));

	kvs_copy_room_fini(&m);
	if (r == -ENOENT)
		argp_error(state, "--model: %s", err);
	else if (r == -EINVAL)
		argp_error(state, "--%s: %s", culprit(a), err);
	else if (r == -E2BIG)
		argp_error(state, "--tokens %" PRIu64 ": %s", a->tokens, err);
	else if (r)
		argp_failure(state, EXIT_FAILURE, -r, "%s", a->model);
}

static int one_page_size(struct args *a, uint64_t page_size)
{
	struct kvs_copy_result res;
	struct kvs_copy_room m = { 0 };
	struct kvs_copy c = { 0 };
	const struct kvs_preset_opts o = opts_of(a, page_size);
	int r = kvs_copy_room_init(&m, a->model, &o, a->tokens);

	if (!r)
		r = kvs_copy_bench_memory(&a->b, m.host_len, m.dev_len);
	if (r) {
		fprintf(stderr, "%s, page size %" PRIu64 ": %s\n", a->model,
			page_size, strerror(-r));
	} else {
		c.n_runs = kvs_copy_room_runs(&m, &a->b);
		c.runs = m.runs;
		r = kvs_copy_bench_measure(&a->b, &c, &res);
	}
	if (!r)
		show(a, "commit", m.l->buffers[0].item_len, m.g.pages,
		     page_size, &res);
	kvs_copy_room_fini(&m);
	return r;
}

static error_t parse_commit(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	switch (key) {
	case 'm':
		a->model = arg;
		return 0;
	case 't':
		if (kvs_parse_u64(arg, &a->tp) < 0 || !a->tp || a->tp > 256)
			argp_error(state, "--tp %s: from 1 to 256", arg);
		return 0;
	case 'l':
		if (kvs_parse_u64(arg, &a->layers) < 0 || a->layers > 1024)
			argp_error(state, "--layers %s: up to 1024", arg);
		return 0;
	case 'k':
		if (kvs_parse_u64(arg, &a->tokens) < 0 || !a->tokens ||
		    a->tokens > KVS_TOKENS_MAX)
			argp_error(state, "--tokens %s: from 1 to %u", arg,
				   KVS_TOKENS_MAX);
		return 0;
	case 'p':
		parse_list(state, a, "page-size", arg, KVS_PAGE_SIZE_MAX);
		return 0;
	case ARGP_KEY_SUCCESS:
		for (unsigned int i = 0; i < a->n; i++)
			check_room(a, state, a->list[i]);
		return 0;
	default:
		return kvs_copy_bench_parse(&a->b, key, arg, state);
	}
}

int kvs_bench_commit(int argc, char **argv)
{
	static const struct argp_option options[] = {
		KVS_COPY_BENCH_OPTIONS,
		{ "model", 'm', "NAME", 0, "Default deepseek-v3", 0 },
		{ "tp", 't', "N", 0, "Tensor parallel ranks (default 1)", 0 },
		{ "layers", 'l', "N", 0, "Of the model (default 8; 0: all)",
		  0 },
		{ "tokens", 'k', "N", 0, "Of the room (default 16384)", 0 },
		{ "page-size", 'p', "LIST", 0,
		  "Tokens of a page, with commas (default 1,16,64,128)", 0 },
		{ 0 }
	};
	const struct argp argp = {
		.options = options,
		.parser = parse_commit,
		.doc = "The copies of a room's commit, all layers and pages, "
		       "against one large copy.",
	};
	struct args a = {
		.b = { .device = "soft", .repeats = 5 },
		.list = { 1, 16, 64, 128 },
		.n = 4,
		.model = "deepseek-v3",
		.tp = 1,
		.layers = 8,
		.tokens = 16384,
	};

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	return run_all(&a,
		       "<device <direction page_size item_len pages gbps "
		       "baseline_gbps ops_per_gib ratio",
		       one_page_size);
}
