/* SPDX-License-Identifier: Apache-2.0 */
/* kvstage-plan: the command line; see tools/plan.h. */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "pipeline/presets.h"
#include "pipeline/settings.h"
#include "tools/arg.h"
#include "tools/output.h"
#include "tools/plan.h"
#include "tools/trace.h"

#define EXIT_USAGE 2

enum {
	KEY_MODEL = 0x1000,
	KEY_TOKEN_BYTES,
	KEY_PAGE_SIZE,
	KEY_LAYERS,
	KEY_REPLICATED,
	KEY_CONTEXT,
	KEY_TRACE,
	KEY_SPEED,
	KEY_P50,
	KEY_P99,
	KEY_RATE,
	KEY_ABORT,
	KEY_ACKS,
	KEY_HOLD,
	KEY_PROPAGATION,
	KEY_REMAINING,
	KEY_CALL,
	KEY_PREFILLS,
	KEY_PREFILL_RATE,
	KEY_PREFILL_CHUNK,
	KEY_LINK,
	KEY_NIC,
	KEY_H2D,
	KEY_RANKS,
	KEY_NODES,
	KEY_DEVICE_TOKENS,
	KEY_STEP,
	KEY_STEP_REQUEST,
	KEY_HICACHE,
	KEY_RETRACTION,
	KEY_HORIZON,
	KEY_INI,
	KEY_FORCE,
};

static const struct argp_option options[] = {
	{ NULL, 0, NULL, 0, "The model:", 1 },
	{ "model", KEY_MODEL, "NAME", 0, "Preset (default glm-5)", 1 },
	{ "token-bytes", KEY_TOKEN_BYTES, "SIZE", 0,
	  "KV bytes of a token over all layers, instead of a preset", 1 },
	{ "page-size", KEY_PAGE_SIZE, "TOKENS", 0,
	  "With --token-bytes (default 64)", 1 },
	{ "layers", KEY_LAYERS, "N", 0, "With --token-bytes (default 64)", 1 },
	{ "replicated", KEY_REPLICATED, NULL, 0,
	  "With --token-bytes: every rank needs all of it, as with MLA", 1 },
	{ NULL, 0, NULL, 0, "The load:", 2 },
	{ "context", KEY_CONTEXT, "TOKENS", 0,
	  "Longest prompt (default 131072)", 2 },
	{ "p50", KEY_P50, "TOKENS", 0, "Median prompt (default 6900)", 2 },
	{ "p99", KEY_P99, "TOKENS", 0, "(default 85000)", 2 },
	{ "rate", KEY_RATE, "N", 0, "Requests/s to this node (default 3.4)",
	  2 },
	{ "trace", KEY_TRACE, "FILE", 0,
	  "Lengths and arrivals, as Mooncake traces have them, instead", 2 },
	{ "speed", KEY_SPEED, "X", 0, "Arrivals of the trace X times as fast",
	  2 },
	{ "abort", KEY_ABORT, "SHARE", 0,
	  "Of the requests, given up in their prefill (default 0.3)", 2 },
	{ "acks", KEY_ACKS, "A", 0,
	  "lost (default): each abort holds for all of hold.timeout; fast: "
	  "acknowledgements come",
	  2 },
	{ "horizon", KEY_HORIZON, "TIME", 0,
	  "The pool is full about once in this (default 1h)", 2 },
	{ NULL, 0, NULL, 0, "The hold:", 3 },
	{ "hold", KEY_HOLD, "TIME", 0, "hold.timeout (default: as advised)",
	  3 },
	{ "propagation", KEY_PROPAGATION, "TIME", 0,
	  "hold.assume_propagation (default 1s)", 3 },
	{ "remaining", KEY_REMAINING, "TIME", 0,
	  "hold.assume_remaining (default 5s)", 3 },
	{ "call-timeout", KEY_CALL, "TIME", 0,
	  "transfer.call_timeout (default 10s)", 3 },
	{ NULL, 0, NULL, 0, "The cluster:", 4 },
	{ "prefills", KEY_PREFILLS, "N", 0,
	  "Prefill instances that send here (default 12)", 4 },
	{ "prefill-rate", KEY_PREFILL_RATE, "N", 0,
	  "Tokens/s of one (default 16000)", 4 },
	{ "prefill-chunk", KEY_PREFILL_CHUNK, "TOKENS", 0, "(default 8192)",
	  4 },
	{ "link", KEY_LINK, "SIZE", 0,
	  "Bytes/s of one to this node (default 25GB)", 4 },
	{ "nic", KEY_NIC, "SIZE", 0,
	  "Bytes/s into this node (default: of one link for each NUMA node)",
	  4 },
	{ "h2d", KEY_H2D, "SIZE", 0,
	  "Bytes/s from host to the device of a rank (default 50GB)", 4 },
	{ "ranks", KEY_RANKS, "N", 0,
	  "Ranks of the decode engine on this node (default 8)", 4 },
	{ "nodes", KEY_NODES, "N", 0, "NUMA nodes with a pool (default 2)", 4 },
	{ "device-tokens", KEY_DEVICE_TOKENS, "N", 0,
	  "KV pool of the engine (default 681280)", 4 },
	{ "step", KEY_STEP, "TIME", 0, "A decode step (default 20ms)", 4 },
	{ "step-request", KEY_STEP_REQUEST, "TIME", 0,
	  "More for each request of the batch (default 35us)", 4 },
	{ "hicache", KEY_HICACHE, "SIZE", 0,
	  "Offload pool for a cache, all nodes (default 0)", 4 },
	{ "retraction", KEY_RETRACTION, "SHARE", 0,
	  "Of the device's pool, offload pool for retracted requests (default "
	  "0)",
	  4 },
	{ NULL, 0, NULL, 0, "Output:", 5 },
	{ "ini", KEY_INI, "FILE", 0, "Write settings for kvstaged", 5 },
	{ "force", KEY_FORCE, NULL, 0, "With --ini: replace the file", 5 },
	{ "json", 'j', NULL, 0, "One JSON object", 5 },
	{ 0 }
};

struct args {
	struct plan_opts o;
	const char *ini;
	bool force;
	bool json;
	uint64_t given; /* BIT() of the keys */
};

#define BIT(key) (1ULL << ((key)-KEY_MODEL))

/* What cannot be together, or cannot be alone. */
static const struct {
	int key;
	const char *name;
	uint64_t bad;
	uint64_t needed;
	const char *why;
} rules[] = {
	{ KEY_MODEL, "model", BIT(KEY_TOKEN_BYTES), 0,
	  "not with --token-bytes" },
	{ KEY_PAGE_SIZE, "page-size", 0, BIT(KEY_TOKEN_BYTES),
	  "only with --token-bytes" },
	{ KEY_LAYERS, "layers", 0, BIT(KEY_TOKEN_BYTES),
	  "only with --token-bytes" },
	{ KEY_REPLICATED, "replicated", 0, BIT(KEY_TOKEN_BYTES),
	  "only with --token-bytes" },
	{ KEY_RATE, "rate", BIT(KEY_TRACE), 0,
	  "not with --trace, which has its own; see --speed" },
	{ KEY_P50, "p50", BIT(KEY_TRACE), 0,
	  "not with --trace, which has lengths of its own" },
	{ KEY_P99, "p99", BIT(KEY_TRACE), 0,
	  "not with --trace, which has lengths of its own" },
	{ KEY_SPEED, "speed", 0, BIT(KEY_TRACE), "only with --trace" },
	{ KEY_FORCE, "force", 0, BIT(KEY_INI), "only with --ini" },
};

static void check_together(const struct args *a, struct argp_state *st)
{
	for (size_t i = 0; i < KVS_ARRAY_SIZE(rules); i++) {
		if (!(a->given & BIT(rules[i].key)))
			continue;
		if ((a->given & rules[i].bad) ||
		    (rules[i].needed && !(a->given & rules[i].needed)))
			argp_error(st, "--%s: %s", rules[i].name, rules[i].why);
	}
}

static error_t parse_model(int key, char *arg, struct plan_opts *o,
			   struct argp_state *st)
{
	switch (key) {
	case KEY_MODEL:
		o->model = arg;
		return 0;
	case KEY_TOKEN_BYTES:
		o->model = NULL;
		o->token_bytes = kvs_arg_size(st, "token-bytes", arg, 1);
		if (o->token_bytes > KVS_ITEM_LEN_MAX / 64)
			argp_error(st, "--token-bytes %s: too large", arg);
		return 0;
	case KEY_PAGE_SIZE:
		o->page_size = (uint32_t)kvs_arg_whole(st, "page-size", arg, 1,
						       KVS_PAGE_SIZE_MAX);
		return 0;
	case KEY_LAYERS:
		o->layers = (uint32_t)kvs_arg_whole(st, "layers", arg, 1,
						    KVS_LAYOUT_BUFFERS_MAX);
		return 0;
	case KEY_REPLICATED:
		o->replicated = true;
		return 0;
	case KEY_DEVICE_TOKENS:
		o->s.device_tokens =
			kvs_arg_whole(st, "device-tokens", arg, 64, 1ULL << 32);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_load(int key, char *arg, struct plan_opts *o,
			  struct argp_state *st)
{
	switch (key) {
	case KEY_CONTEXT:
		o->context = (uint32_t)kvs_arg_whole(st, "context", arg, 1,
						     KVS_TOKENS_MAX);
		return 0;
	case KEY_P50:
		o->p50 = (uint32_t)kvs_arg_whole(st, "p50", arg, 1,
						 KVS_TOKENS_MAX);
		return 0;
	case KEY_P99:
		o->p99 = (uint32_t)kvs_arg_whole(st, "p99", arg, 1,
						 KVS_TOKENS_MAX);
		return 0;
	case KEY_RATE:
		o->rate = kvs_arg_number(st, "rate", arg, 0.0001, 100000);
		return 0;
	case KEY_TRACE:
		o->trace = arg;
		return 0;
	case KEY_SPEED:
		o->speed = kvs_arg_number(st, "speed", arg, 0.001, 1000);
		return 0;
	case KEY_ABORT:
		o->abort = kvs_arg_number(st, "abort", arg, 0, 0.99);
		return 0;
	case KEY_ACKS:
		if (strcmp(arg, "lost") && strcmp(arg, "fast"))
			argp_error(st, "--acks %s: lost or fast", arg);
		o->acked = *arg == 'f';
		return 0;
	case KEY_HORIZON:
		o->horizon = (double)kvs_arg_time(st, "horizon", arg, 0) / 1e9;
		if (o->horizon < 60)
			argp_error(st, "--horizon %s: at least 1m", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_hold(int key, char *arg, struct plan_opts *o,
			  struct argp_state *st)
{
	switch (key) {
	case KEY_HOLD:
		o->s.hold_timeout =
			kvs_arg_setting_time(st, "hold", arg, "hold.timeout");
		return 0;
	case KEY_PROPAGATION:
		o->propagation = kvs_arg_setting_time(
			st, "propagation", arg, "hold.assume_propagation");
		return 0;
	case KEY_REMAINING:
		o->remaining = kvs_arg_setting_time(st, "remaining", arg,
						    "hold.assume_remaining");
		return 0;
	case KEY_CALL:
		o->call = kvs_arg_setting_time(st, "call-timeout", arg,
					       "transfer.call_timeout");
		return 0;
	case KEY_HICACHE:
		o->hicache = kvs_arg_size(st, "hicache", arg, 0);
		return 0;
	case KEY_RETRACTION:
		o->retraction = kvs_arg_number(st, "retraction", arg, 0, 10);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_cluster(int key, char *arg, struct plan_opts *o,
			     struct argp_state *st)
{
	struct kvs_serving *s = &o->s;

	switch (key) {
	case KEY_PREFILLS:
		s->prefills =
			(uint32_t)kvs_arg_whole(st, "prefills", arg, 1, 100000);
		return 0;
	case KEY_PREFILL_RATE:
		s->prefill_rate =
			kvs_arg_number(st, "prefill-rate", arg, 1, 1e9);
		return 0;
	case KEY_PREFILL_CHUNK:
		s->prefill_chunk = (uint32_t)kvs_arg_whole(
			st, "prefill-chunk", arg, 1, KVS_TOKENS_MAX);
		return 0;
	case KEY_LINK:
		s->link_rate = kvs_arg_size(st, "link", arg, 1000);
		return 0;
	case KEY_NIC:
		o->nic_rate = kvs_arg_size(st, "nic", arg, 1000);
		return 0;
	case KEY_H2D:
		s->h2d_rate = kvs_arg_size(st, "h2d", arg, 1000);
		return 0;
	case KEY_RANKS:
		o->ranks = (uint32_t)kvs_arg_whole(st, "ranks", arg, 1,
						   KVS_RANKS_MAX);
		return 0;
	case KEY_NODES:
		o->nodes = (uint32_t)kvs_arg_whole(st, "nodes", arg, 1, 32);
		return 0;
	case KEY_STEP:
		s->step_base = kvs_arg_time(st, "step", arg, 0);
		return 0;
	case KEY_STEP_REQUEST:
		s->step_request = kvs_arg_time(st, "step-request", arg, 0);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
	struct args *a = st->input;
	error_t r;

	if (key >= KEY_MODEL && key <= KEY_FORCE)
		a->given |= BIT(key);
	switch (key) {
	case 'j':
		a->json = true;
		return 0;
	case KEY_INI:
		a->ini = arg;
		return 0;
	case KEY_FORCE:
		a->force = true;
		return 0;
	case ARGP_KEY_END:
		check_together(a, st);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(st, "%s: there are only options", arg);
		return 0;
	default:
		break;
	}
	r = parse_model(key, arg, &a->o, st);
	if (r == ARGP_ERR_UNKNOWN)
		r = parse_load(key, arg, &a->o, st);
	if (r == ARGP_ERR_UNKNOWN)
		r = parse_hold(key, arg, &a->o, st);
	return r == ARGP_ERR_UNKNOWN ? parse_cluster(key, arg, &a->o, st) : r;
}

static const struct argp argp = {
	options,
	parse,
	NULL,
	"Size the host pool of a decode node, its hold and what staging costs.",
	NULL,
	NULL,
	NULL
};

static void defaults(struct plan_opts *o)
{
	const struct kvs_trace_lengths chat = KVS_TRACE_CHAT_INPUT;
	struct kvs_settings set;

	kvs_settings_init(&set);
	kvs_serving_defaults(&o->s);
	o->s.hold_timeout = 0;
	o->model = "glm-5";
	o->page_size = 64;
	o->layers = 64;
	o->context = 131072;
	o->p50 = chat.p50;
	o->p99 = chat.p99;
	o->rate = KVS_TRACE_CHAT_RATE;
	o->speed = 1;
	o->abort = 0.3;
	o->ranks = 8;
	o->nodes = 2;
	o->horizon = KVS_SERVING_HORIZON;
	o->propagation = set.hold_assume_propagation;
	o->remaining = set.hold_assume_remaining;
	o->call = set.transfer_call_timeout;
}

int main(int argc, char **argv)
{
	struct args a = { 0 };
	char err[KVS_PRESET_ERR];
	struct plan p;
	int r;

	kvs_output_watch("kvstage-plan");
	argp_program_version = "kvstage-plan " KVS_VERSION;
	argp_err_exit_status = EXIT_USAGE;
	defaults(&a.o);
	if (argp_parse(&argp, argc, argv, 0, NULL, &a))
		return EXIT_USAGE;
	if (!a.o.nic_rate)
		a.o.nic_rate = a.o.s.link_rate * a.o.nodes;
	r = plan_make(&a.o, &p, err, sizeof(err));
	if (!r && a.ini)
		r = plan_write_ini(&p, a.ini, a.force, err, sizeof(err));
	if (r) {
		fprintf(stderr, "kvstage-plan: %s\n", err);
		return r == -EINVAL || r == -ERANGE || r == -E2BIG ||
				       r == -EEXIST
			       ? EXIT_USAGE
			       : 1;
	}
	if (a.json)
		return plan_print_json(&p, stdout) ? 1 : 0;
	plan_print(&p, stdout);
	return 0;
}
