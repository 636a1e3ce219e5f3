/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-engine: a decode engine without a model. Attaches to kvstaged,
 * replays a workload whose bytes kvstage-send makes, and compares every byte
 * that reached the device with what was sent.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/units.h"
#include "pipeline/presets.h"
#include "tools/engine_kv.h"
#include "tools/engine_replay.h"
#include "tools/output.h"
#include "tools/scrape.h"
#include "tools/table.h"
#include "tools/workload.h"

#define CONCURRENCY_DEFAULT 8
#define CONCURRENCY_MAX 16384

enum {
	KEY_SOCKET = 0x100,
	KEY_CONCURRENCY,
	KEY_DEVICE_TOKENS,
	KEY_MAX_CONTEXT,
	KEY_COPY_RATE,
	KEY_DEVICE,
	KEY_ABORT,
	KEY_CHECK,
	KEY_METRICS,
};

struct engine_args {
	struct kvs_workload_opts w;
	const char *socket;
	unsigned int concurrency;
	uint64_t device_tokens; /* 0: twice the longest request */
	uint64_t copy_rate; /* bytes a second; 0: as fast as memory */
	struct kvs_device_choice device;
	double abort;
	bool check;
	bool json;
	const char *metrics; /* NULL: not asked for */
};

static volatile sig_atomic_t engine_stop;

static const struct argp_option engine_options[] = {
	{ "socket", KEY_SOCKET, "PATH", 0,
	  "Of kvstaged (default /run/kvstage/kvstaged.sock)", 0 },
	{ "concurrency", KEY_CONCURRENCY, "N", 0,
	  "Requests at a time (default 8)", 0 },
	{ "device-tokens", KEY_DEVICE_TOKENS, "N", 0,
	  "Tokens of the device KV pool, and its capacity for the daemon "
	  "(default: two of the longest request, and not said)",
	  0 },
	{ "max-context", KEY_MAX_CONTEXT, "TOKENS", 0,
	  "Longest request, as the daemon is told (default: it is not)", 0 },
	{ "device", KEY_DEVICE, "DEVICE", 0,
	  "soft (default), cuda, cuda:N, or auto: the first GPU, soft where there "
	  "is none",
	  0 },
	{ "copy-rate", KEY_COPY_RATE, "SIZE", 0,
	  "Bytes a second of the soft device (default: as fast as memory)", 0 },
	{ "abort", KEY_ABORT, "FRACTION", 0,
	  "Abort this share of the requests mid-transfer (default 0)", 0 },
	{ "check", KEY_CHECK, NULL, 0,
	  "Check the workload and exit, without a daemon: 0 good, 2 not; 77 "
	  "where there is no such --device",
	  0 },
	{ "metrics", KEY_METRICS, "HOST:PORT", 0,
	  "Of kvstaged, asked at the end for the bytes received and the bytes of "
	  "the pool that the rooms took",
	  0 },
	{ "json", 'j', NULL, 0, "One JSON object on stdout", 0 },
	{ 0 },
};

static error_t engine_parse(int key, char *arg, struct argp_state *state)
{
	struct engine_args *a = state->input;
	uint64_t v = 0;
	char *end;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &a->w;
		return 0;
	case KEY_SOCKET:
		a->socket = arg;
		return 0;
	case KEY_CONCURRENCY:
		if (kvs_parse_u64(arg, &v) || !v || v > CONCURRENCY_MAX)
			argp_error(state,
				   "--concurrency: %s is not a number "
				   "from 1 to %d",
				   arg, CONCURRENCY_MAX);
		a->concurrency = (unsigned int)v;
		return 0;
	case KEY_DEVICE_TOKENS:
		if (kvs_parse_u64(arg, &v) || !v || v > 1ULL << 31)
			argp_error(state,
				   "--device-tokens: %s is not a "
				   "number from 1 to 2147483648",
				   arg);
		a->device_tokens = v;
		a->w.capacity = v;
		return 0;
	case KEY_MAX_CONTEXT:
		if (kvs_parse_u64(arg, &v) || !v || v > KVS_TOKENS_MAX)
			argp_error(state,
				   "--max-context: %s is not a number from 1 "
				   "to %u",
				   arg, KVS_TOKENS_MAX);
		a->w.max_context = v;
		return 0;
	case KEY_DEVICE:
		if (kvs_device_choice_parse(arg, &a->device))
			argp_error(state,
				   "--device: %s is not soft, cuda, cuda:N "
				   "or auto",
				   arg);
		return 0;
	case KEY_COPY_RATE:
		if (kvs_parse_size(arg, &a->copy_rate))
			argp_error(state, "--copy-rate: %s is not a size", arg);
		return 0;
	case KEY_ABORT:
		a->abort = strtod(arg, &end);
		if (end == arg || *end || !(a->abort >= 0 && a->abort <= 1))
			argp_error(state,
				   "--abort: %s is not a share from 0 to 1",
				   arg);
		return 0;
	case KEY_METRICS:
		a->metrics = arg;
		return 0;
	case KEY_CHECK:
		a->check = true;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_SUCCESS:
		if (a->copy_rate && (a->device.cuda || a->device.automatic))
			argp_error(state, "--copy-rate is of --device soft");
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument %s", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

struct summary {
	double gbps;
	double mean, median, p90, p99; /* ms */
};

/* Nearest rank of a sorted list. */
static double quantile(const struct kvs_replay_result *r, double q)
{
	size_t i = (size_t)(q * (double)r->completed);

	if (!r->completed)
		return 0;
	return ms(r->ttft[i < r->completed ? i : r->completed - 1]);
}

static void summarize(const struct kvs_replay_result *r, struct summary *s)
{
	double sum = 0;

	memset(s, 0, sizeof(*s));
	for (size_t i = 0; i < r->completed; i++)
		sum += ms(r->ttft[i]);
	if (r->completed)
		s->mean = sum / (double)r->completed;
	s->median = quantile(r, 0.5);
	s->p90 = quantile(r, 0.9);
	s->p99 = quantile(r, 0.99);
	if (r->ns)
		s->gbps = (double)r->bytes / (double)r->ns;
}

/* What the daemon says of the rooms, beside one rank's KV of them. */
static double ratio(double bytes, const struct kvs_replay_result *r)
{
	return r->rank_bytes ? bytes / (double)r->rank_bytes : 0;
}

static int report_json(const struct kvs_workload *w,
		       const struct kvs_replay_result *r,
		       const struct kvs_scraped *d, const char *device,
		       uint64_t pinned)
{
	struct summary s;
	json_t *j;
	int ret;

	summarize(r, &s);
	j = json_pack("{s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I}", "requests",
		      (json_int_t)w->trace.n, "bytes", (json_int_t)r->bytes,
		      "gbps", s.gbps, "ttft_mean_ms", s.mean, "ttft_median_ms",
		      s.median, "ttft_p90_ms", s.p90, "ttft_p99_ms", s.p99,
		      "held_bytes", (json_int_t)r->held, "errors",
		      (json_int_t)kvs_replay_errors(r), "byte_mismatches",
		      (json_int_t)r->wrong_bytes);
	if (j)
		(void)json_object_update_new(
			j,
			json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b}",
				  "completed", (json_int_t)r->completed,
				  "aborted", (json_int_t)r->aborted,
				  "refused_400", (json_int_t)r->refused_400,
				  "refused_503", (json_int_t)r->refused_503,
				  "failed", (json_int_t)r->failed,
				  "held_peak_bytes", (json_int_t)r->held_peak,
				  "mismatched_pages",
				  (json_int_t)r->wrong_pages, "stopped",
				  r->stopped));
	if (j)
		(void)json_object_update_new(
			j, json_pack("{s:I,s:I,s:I,s:I}", "ranks",
				     (json_int_t)w->o.tp, "prefill_tp",
				     (json_int_t)w->o.prefill_tp,
				     "prefill_page_size",
				     (json_int_t)w->prefill->page_size,
				     "rank_bytes", (json_int_t)r->rank_bytes));
	if (j)
		(void)json_object_update_new(
			j, json_pack("{s:s,s:I}", "device", device,
				     "pinned_bytes", (json_int_t)pinned));
	if (j && d->asked)
		(void)json_object_update_new(
			j, json_pack("{s:f,s:f,s:f,s:f}", "wire_bytes",
				     d->received, "pool_bytes", d->pool,
				     "wire_ratio", ratio(d->received, r),
				     "pool_ratio", ratio(d->pool, r)));
	ret = !j || json_dumpf(j, stdout, JSON_COMPACT) || puts("") < 0;
	json_decref(j);
	return ret ? -EIO : 0;
}

static int report_table(const struct kvs_workload *w,
			const struct kvs_replay_result *r,
			const struct kvs_scraped *d)
{
	struct kvs_table *t;
	struct summary s;
	int ret;

	summarize(r, &s);
	if (r->stopped)
		printf("stopped by a signal\n");
	if (r->aborted || r->refused_400 || r->refused_503 || r->failed)
		printf("completed %llu, aborted %llu, refused (class 400) "
		       "%llu, refused (class 503) %llu, failed %llu\n",
		       (unsigned long long)r->completed,
		       (unsigned long long)r->aborted,
		       (unsigned long long)r->refused_400,
		       (unsigned long long)r->refused_503,
		       (unsigned long long)r->failed);
	if (d->asked)
		printf("%u ranks, each %llu bytes: wire bytes %.0f (%.2fx of "
		       "one rank), pool bytes %.0f (%.2fx)\n",
		       w->o.tp, (unsigned long long)r->rank_bytes, d->received,
		       ratio(d->received, r), d->pool, ratio(d->pool, r));
	ret = kvs_table_create("requests bytes GB/s ttft_mean_ms "
			       "ttft_median_ms ttft_p90_ms ttft_p99_ms "
			       "held_bytes errors",
			       &t);
	if (ret)
		return ret;
	kvs_table_cell(t, "%zu", w->trace.n);
	kvs_table_cell(t, "%llu", (unsigned long long)r->bytes);
	kvs_table_cell(t, "%.2f", s.gbps);
	kvs_table_cell(t, "%.2f", s.mean);
	kvs_table_cell(t, "%.2f", s.median);
	kvs_table_cell(t, "%.2f", s.p90);
	kvs_table_cell(t, "%.2f", s.p99);
	kvs_table_cell(t, "%llu", (unsigned long long)r->held);
	kvs_table_cell(t, "%llu", (unsigned long long)kvs_replay_errors(r));
	ret = kvs_table_print(t, stdout);
	kvs_table_destroy(t);
	printf("byte mismatches: %llu\n", (unsigned long long)r->wrong_bytes);
	return ret;
}

static void show_geometry(const struct kvs_workload *w, const struct kvs_kv *kv)
{
	char a[KVS_UNITS_BUF], b[KVS_UNITS_BUF];
	uint64_t bytes = 0;

	for (size_t i = 0; i < w->trace.n; i++)
		bytes += kvs_kv_bytes(kv, kvs_workload_tokens(w, i));
	if (w->o.tp > 1 || w->o.prefill_tp > 1 ||
	    w->prefill->page_size != w->layout->page_size)
		fprintf(stderr,
			"prefill: %u ranks, heads over %u, %u tokens a page; "
			"decode: %u ranks that share each room; of one:\n",
			w->o.n_ranks, w->o.prefill_tp, w->prefill->page_size,
			w->o.tp);
	fprintf(stderr,
		"%s: %u layer buffers, %u tokens a page, %llu bytes a token; "
		"%zu requests, %s; device pool %u pages, %s\n",
		w->o.model, w->layout->n_buffers, w->layout->page_size,
		(unsigned long long)(kv->page_bytes / w->layout->page_size),
		w->trace.n, kvs_format_size(bytes, a), kv->n_pages,
		kvs_format_size(kv->n_pages * kv->page_bytes, b));
}

static void on_signal(int sig)
{
	(void)sig;
	engine_stop = 1;
}

/* The first signal ends the rooms, the second one ends us. */
static void catch_signals(void)
{
	struct sigaction sa = { .sa_handler = on_signal,
				.sa_flags = (int)SA_RESETHAND };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
}

/* Each rank by itself, as processes of an engine would. */
static int attach_ranks(const struct engine_args *a,
			const struct kvs_workload *w, const struct kvs_kv *kv,
			struct kvs_engine **ret)
{
	char err[256];
	int res;

	for (uint32_t k = 0; k < w->o.tp; k++) {
		struct kvs_engine_opts o = {
			.size = sizeof(o),
			.socket = a->socket,
			.name = "kvstage-engine",
			.layout = kv[k].layout,
			.node = -1,
			.group = w->o.tp > 1 ? "kvstage-engine" : NULL,
			.rank = k,
			.n_ranks = w->o.tp,
		};

		res = kvs_engine_attach(&o, &ret[k], err, sizeof(err));
		if (!res)
			continue;
		fprintf(stderr, "kvstage-engine: attach: %s\n", err);
		while (k)
			kvs_engine_detach(ret[--k]);
		return res;
	}
	return 0;
}

/* 0 all well, 1 something was wrong. */
static int engine_run(const struct engine_args *a, const struct kvs_workload *w,
		      struct kvs_kv *kv)
{
	struct kvs_engine *engines[KVS_GROUP_MAX];
	struct kvs_registering reg;
	struct kvs_replay_opts ro = {
		.engine = engines,
		.kv = kv,
		.n = w->o.tp,
		.w = w,
		.concurrency = a->concurrency,
		.abort = a->abort,
		.quiet = a->json,
		.registering = &reg,
		.stop = &engine_stop,
	};
	struct kvs_scraped before = { 0 }, d = { 0 };
	struct kvs_replay_result r;
	int ret;

	if (attach_ranks(a, w, kv, engines))
		return 1;
	show_geometry(w, kv);
	catch_signals();
	/* of this run, whatever the daemon has served before */
	if (a->metrics)
		(void)kvs_scrape(a->metrics, &before);
	ret = kvs_registering_begin(&reg, engines, kv, w->o.tp);
	if (!ret)
		ret = kvs_replay(&ro, &r);
	kvs_registering_end(&reg);
	for (uint32_t k = 0; k < w->o.tp; k++)
		kvs_engine_detach(engines[k]);
	if (ret) {
		fprintf(stderr, "kvstage-engine: %s\n", strerror(-ret));
		return 1;
	}
	/* who was told to stop need not find the daemon still there */
	if (a->metrics && kvs_scrape(a->metrics, &d) && !engine_stop)
		fprintf(stderr, "kvstage-engine: no metrics from %s\n",
			a->metrics);
	d.asked = d.asked && before.asked;
	d.received -= before.received;
	d.pool -= before.pool;
	ret = a->json ? report_json(w, &r, &d, a->device.name, reg.pinned)
		      : report_table(w, &r, &d);
	free(r.ttft);
	if (r.stopped || r.wrong_bytes || kvs_replay_errors(&r))
		ret = 1;
	return ret ? 1 : 0;
}

/* Return: exit status. */
static int device_failed(int ret, const char *err)
{
	fprintf(stderr, "kvstage-engine: %s\n", err);
	return ret == -ENOMEM || ret == -EOPNOTSUPP ? 77 : 1;
}

static int engine_pools(struct engine_args *a, const struct kvs_workload *w)
{
	uint64_t tokens = a->device_tokens;
	struct kvs_kv kv[KVS_GROUP_MAX] = { 0 };
	char err[256];
	uint32_t n = 0;
	int ret = 0;

	if (!tokens)
		tokens = 2ULL * w->trace.max_input + w->layout->page_size;
	while (n < w->o.tp && !ret) {
		ret = kvs_kv_open(w, n, tokens, a->concurrency, &a->device,
				  a->copy_rate, &kv[n], err, sizeof(err));
		n += !ret;
	}
	ret = ret ? device_failed(ret, err) : engine_run(a, w, kv);
	while (n)
		kvs_kv_close(&kv[--n]);
	return ret;
}

static int engine_open(struct engine_args *a)
{
	struct kvs_workload w;
	char err[KVS_PRESET_ERR];
	int ret;

	ret = kvs_workload_open(&a->w, &w, err, sizeof(err));
	if (ret) {
		fprintf(stderr, "kvstage-engine: %s\n", err);
		return ret == -ENOENT || ret == -EINVAL ? 2 : 1;
	}
	if (a->check)
		ret = kvs_device_choice_check(&a->device, err, sizeof(err));
	if (ret)
		ret = device_failed(ret, err);
	else if (!a->check)
		ret = engine_pools(a, &w);
	kvs_workload_close(&w);
	return ret;
}

int main(int argc, char **argv)
{
	static const struct argp_child children[] = {
		{ &kvs_workload_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = engine_options,
		.parser = engine_parse,
		.doc = "A decode engine without a model: replays a workload "
		       "through kvstaged and compares every byte on the device "
		       "with its source.",
		.children = children,
	};
	struct engine_args a = { .concurrency = CONCURRENCY_DEFAULT };

	kvs_output_watch("kvstage-engine");
	argp_program_version = "kvstage-engine " KVS_VERSION;
	argp_err_exit_status = 2;
	if (argp_parse(&argp, argc, argv, 0, NULL, &a))
		return 2;
	return engine_open(&a);
}
