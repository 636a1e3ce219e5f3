/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench_ttft.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/units.h"
#include "pipeline/presets.h"
#include "pipeline/settings.h"
#include "tools/arg.h"

#define EXIT_USAGE 2
/* What the real clock is scaled to. */
#define REAL_SCALE 10
#define REAL_TOKEN_BYTES 256u
#define REAL_REQUESTS 1000u
/* a storm, and what is before and after it: 25 minutes */
#define STORM_SCALE 20
#define STORM_REQUESTS 5100u
#define LAYERWISE_BUFFERS 8u
#define REAL_PREFILLS 4u /* processes; as fast together as the default */

enum {
	KEY_CLOCK = 256,
	KEY_TRACE,
	KEY_MODEL,
	KEY_REQUESTS,
	KEY_MAX_INPUT,
	KEY_SPEED,
	KEY_SEED,
	KEY_ABORT,
	KEY_WHEN,
	KEY_ACKS,
	KEY_HOLD,
	KEY_CRASH,
	KEY_STORM,
	KEY_MODES,
	KEY_POOL,
	KEY_DEVICE,
	KEY_PREFILLS,
	KEY_RATE,
	KEY_CHUNK,
	KEY_LINK,
	KEY_LATENCY,
	KEY_H2D,
	KEY_STEP,
	KEY_STEP_EACH,
	KEY_THRESHOLD,
	KEY_BUFFERS,
	KEY_TOKEN_BYTES,
	KEY_JOBS,
	KEY_SCALE,
	KEY_LAYERWISE,
	KEY_OUT,
	KEY_BREAK,
};

static const struct argp_option options[] = {
	{ NULL, 0, NULL, 0, "What is run:", 1 },
	{ "clock", KEY_CLOCK, "KIND", 0,
	  "virtual (default): one process, no bytes, as fast as it can; real: "
	  "processes on loopback",
	  1 },
	{ "modes", KEY_MODES, "LIST", 0,
	  "Of direct, staged, auto, ideal (default: all)", 1 },
	{ "trace", KEY_TRACE, "FILE", 0,
	  "Requests, as Mooncake traces have them (default: an hour is "
	  "generated)",
	  1 },
	{ "requests", KEY_REQUESTS, "N", 0, "The first N of them", 1 },
	{ "max-input", KEY_MAX_INPUT, "TOKENS", 0, "Cut longer prompts", 1 },
	{ "speed", KEY_SPEED, "X", 0, "Arrivals X times as fast", 1 },
	{ "seed", KEY_SEED, "N", 0, "Of all that is drawn (default 1)", 1 },
	{ "scale", KEY_SCALE, "X", 0,
	  "Real clock: all that takes time is X times as fast (default 10; "
	  "--storm: 20)",
	  1 },
	{ NULL, 0, NULL, 0, "Pressure:", 2 },
	{ "abort", KEY_ABORT, "LIST", 0,
	  "Share of requests that are given up (default 0.3); runs are made "
	  "for each of a list",
	  2 },
	{ "abort-when", KEY_WHEN, "W", 0,
	  "uniform (default), early or late in their prefill", 2 },
	{ "acks", KEY_ACKS, "A", 0,
	  "Acknowledgements of these: fast, lost (default), or slow:5s, "
	  "slow:1s-10s, slow:exp:3s",
	  2 },
	{ "hold", KEY_HOLD, "TIME", 0, "hold.timeout (default 30s)", 2 },
	{ "sender-crash", KEY_CRASH, "N", 0,
	  "An instance dies N times an hour, for 10 s (real clock: killed, and "
	  "begun again)",
	  2 },
	{ "storm", KEY_STORM, NULL, 0,
	  "From minute 10 to 20, 60 % of the requests of 12 instances are "
	  "given up",
	  2 },
	{ NULL, 0, NULL, 0, "The cluster:", 3 },
	{ "model", KEY_MODEL, "NAME", 0, "Preset (default glm-5)", 3 },
	{ "host-pool", KEY_POOL, "SIZE", 0,
	  "planned, half of that, both (default), or a size", 3 },
	{ "device-tokens", KEY_DEVICE, "N", 0, "KV pool (default 681280)", 3 },
	{ "prefills", KEY_PREFILLS, "N", 0, "Instances (default 12)", 3 },
	{ "prefill-rate", KEY_RATE, "N", 0,
	  "Tokens/s of an instance (default 16000)", 3 },
	{ "prefill-chunk", KEY_CHUNK, "N", 0, "Tokens (default 8192)", 3 },
	{ "link", KEY_LINK, "SIZE", 0, "Bytes/s of an instance (default 25GB)",
	  3 },
	{ "latency", KEY_LATENCY, "TIME", 0, "One way (default 10us)", 3 },
	{ "h2d", KEY_H2D, "SIZE", 0, "Bytes/s (default 50GB)", 3 },
	{ "step", KEY_STEP, "TIME", 0, "A decode step (default 20ms)", 3 },
	{ "step-request", KEY_STEP_EACH, "TIME", 0,
	  "More for each request of the batch (default 35us)", 3 },
	{ "threshold", KEY_THRESHOLD, "X", 0,
	  "Device use from which auto stages (default 0.5)", 3 },
	{ "buffers", KEY_BUFFERS, "N", 0,
	  "Lay the layers together into N buffers (default 1); 0: as the "
	  "model has them",
	  3 },
	{ "layerwise", KEY_LAYERWISE, NULL, 0,
	  "Decoding may begin while the last layers are copied (and --buffers "
	  "is 8 by default)",
	  3 },
	{ "token-bytes", KEY_TOKEN_BYTES, "N", 0,
	  "Bytes a token, instead of the model's", 3 },
	{ NULL, 0, NULL, 0, "Output:", 4 },
	{ "json", 'j', NULL, 0, "One JSON object for each run", 4 },
	{ "out", KEY_OUT, "DIR", 0,
	  "Also write what kvstage-bench report draws", 4 },
	{ "jobs", KEY_JOBS, "N", 0,
	  "Runs at a time (default: as many as CPUs; real: 1)", 4 },
	{ "break", KEY_BREAK, "WHAT", OPTION_HIDDEN, "", 4 },
	{ 0 }
};

static int parse_slow(char *text, struct ttft_acks *a)
{
	char *dash = strchr(text, '-');

	a->dist = TTFT_FIXED;
	if (!strncmp(text, "exp:", 4)) {
		a->dist = TTFT_EXP;
		text += 4;
	} else if (dash) {
		*dash = '\0';
		a->dist = TTFT_BETWEEN;
		if (kvs_parse_duration(dash + 1, &a->b))
			return -EINVAL;
	}
	if (kvs_parse_duration(text, &a->a) || !a->a ||
	    (a->dist == TTFT_BETWEEN && a->b < a->a))
		return -EINVAL;
	return 0;
}

static void parse_acks(char *arg, struct ttft_args *a, struct argp_state *st)
{
	struct ttft_acks *k = &a->o.acks;
	char text[64];

	a->o.acks_text = arg;
	if (!strcmp(arg, "fast")) {
		k->dist = TTFT_FAST;
		return;
	}
	if (!strcmp(arg, "lost")) {
		k->dist = TTFT_LOST;
		return;
	}
	if (!strncmp(arg, "slow:", 5) && strlen(arg) < sizeof(text)) {
		snprintf(text, sizeof(text), "%s", arg + 5);
		if (!parse_slow(text, k))
			return;
	}
	argp_error(st,
		   "--acks %s: fast, lost, slow:TIME, slow:TIME-TIME or "
		   "slow:exp:TIME",
		   arg);
}

static void parse_modes(const char *arg, struct ttft_args *a,
			struct argp_state *st)
{
	char buf[128], *v[TTFT_MODES];
	unsigned int n = kvs_arg_list(arg, buf, sizeof(buf), v, TTFT_MODES);
	bool bad = !n;

	memset(a->modes, 0, sizeof(a->modes));
	for (unsigned int i = 0; i < n; i++) {
		int m = 0;

		while (m < TTFT_MODES && strcmp(v[i], ttft_mode_name[m]) != 0)
			m++;
		if (m == TTFT_MODES || a->modes[m])
			bad = true;
		else
			a->modes[m] = true;
	}
	if (bad)
		argp_error(st,
			   "--modes %s: of direct, staged, auto, ideal, each "
			   "once",
			   arg);
}

static void parse_abort(const char *arg, struct ttft_args *a,
			struct argp_state *st)
{
	char buf[256], *v[TTFT_ABORTS_MAX];

	a->n_aborts = kvs_arg_list(arg, buf, sizeof(buf), v, TTFT_ABORTS_MAX);
	if (!a->n_aborts)
		argp_error(st, "--abort %s: up to %u shares from 0 to 0.99",
			   arg, TTFT_ABORTS_MAX);
	for (unsigned int i = 0; i < a->n_aborts; i++) {
		a->abort[i] = kvs_arg_number(st, "abort", v[i], 0, 0.99);
		/* files of a run are named by so many digits */
		a->abort[i] = round(a->abort[i] * 1e4) / 1e4;
		for (unsigned int k = 0; k < i; k++)
			if (a->abort[k] == a->abort[i])
				argp_error(st, "--abort %s: %s is there twice",
					   arg, v[i]);
	}
}

static void parse_when(const char *arg, struct ttft_args *a,
		       struct argp_state *st)
{
	if (!strcmp(arg, "uniform"))
		a->o.when = TTFT_UNIFORM;
	else if (!strcmp(arg, "early"))
		a->o.when = TTFT_EARLY;
	else if (!strcmp(arg, "late"))
		a->o.when = TTFT_LATE;
	else
		argp_error(st, "--abort-when %s: uniform, early or late", arg);
}

static void parse_pool(const char *arg, struct ttft_args *a,
		       struct argp_state *st)
{
	a->pool_given = true;
	if (!strcmp(arg, "both"))
		a->pool = TTFT_POOL_BOTH;
	else if (!strcmp(arg, "planned"))
		a->pool = TTFT_POOL_PLANNED;
	else if (!strcmp(arg, "half"))
		a->pool = TTFT_POOL_HALF;
	else {
		a->pool = TTFT_POOL_BYTES;
		a->pool_bytes =
			kvs_arg_size(st, "host-pool", arg, TTFT_POOL_UNIT);
	}
}

static error_t parse_run(int key, char *arg, struct ttft_args *a,
			 struct argp_state *st)
{
	struct ttft_opts *o = &a->o;

	switch (key) {
	case KEY_CLOCK:
		a->real = !strcmp(arg, "real");
		if (!a->real && strcmp(arg, "virtual"))
			argp_error(st, "--clock %s: real or virtual", arg);
		return 0;
	case KEY_MODES:
		parse_modes(arg, a, st);
		return 0;
	case KEY_TRACE:
		o->trace = arg;
		return 0;
	case KEY_REQUESTS:
		o->requests = kvs_arg_whole(st, "requests", arg, 1, 1000000);
		return 0;
	case KEY_MAX_INPUT:
		o->max_input = (uint32_t)kvs_arg_whole(st, "max-input", arg, 1,
						       KVS_TOKENS_MAX);
		return 0;
	case KEY_SPEED:
		o->speed = kvs_arg_number(st, "speed", arg, 0.01, 1000);
		return 0;
	case KEY_SCALE:
		o->scale = kvs_arg_number(st, "scale", arg, 0.1, 1000);
		return 0;
	case KEY_SEED:
		o->seed = kvs_arg_whole(st, "seed", arg, 0, UINT64_MAX);
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case KEY_OUT:
		a->out = arg;
		return 0;
	case KEY_JOBS:
		a->jobs = (unsigned int)kvs_arg_whole(st, "jobs", arg, 1,
						      TTFT_JOBS_MAX);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_pressure(int key, char *arg, struct ttft_args *a,
			      struct argp_state *st)
{
	struct ttft_opts *o = &a->o;

	switch (key) {
	case KEY_ABORT:
		parse_abort(arg, a, st);
		return 0;
	case KEY_WHEN:
		parse_when(arg, a, st);
		return 0;
	case KEY_ACKS:
		parse_acks(arg, a, st);
		return 0;
	case KEY_HOLD:
		o->s.hold_timeout =
			kvs_arg_setting_time(st, "hold", arg, "hold.timeout");
		return 0;
	case KEY_CRASH:
		o->crashes = kvs_arg_number(st, "sender-crash", arg, 0, 1000);
		return 0;
	case KEY_STORM:
		o->storm = true;
		return 0;
	case KEY_BREAK:
		/* what the benchmark shows of a build that is wrong */
		if (strcmp(arg, "hold-in-device") != 0)
			argp_error(st, "--break %s: hold-in-device", arg);
		o->hold_in_device = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_cluster(int key, char *arg, struct ttft_args *a,
			     struct argp_state *st)
{
	struct kvs_serving *s = &a->o.s;

	switch (key) {
	case KEY_MODEL:
		a->o.model = arg;
		return 0;
	case KEY_POOL:
		parse_pool(arg, a, st);
		return 0;
	case KEY_DEVICE:
		s->device_tokens =
			kvs_arg_whole(st, "device-tokens", arg, 64, 1ULL << 32);
		return 0;
	case KEY_PREFILLS:
		a->prefills_given = true;
		s->prefills =
			(uint32_t)kvs_arg_whole(st, "prefills", arg, 1, 256);
		return 0;
	case KEY_RATE:
		s->prefill_rate =
			kvs_arg_number(st, "prefill-rate", arg, 1, 1e9);
		return 0;
	case KEY_CHUNK:
		s->prefill_chunk = (uint32_t)kvs_arg_whole(
			st, "prefill-chunk", arg, 1, KVS_TOKENS_MAX);
		return 0;
	case KEY_LINK:
		s->link_rate = kvs_arg_size(st, "link", arg, 1000);
		return 0;
	case KEY_LATENCY:
		s->link_latency = kvs_arg_time(st, "latency", arg, 1);
		return 0;
	case KEY_H2D:
		s->h2d_rate = kvs_arg_size(st, "h2d", arg, 1000);
		return 0;
	case KEY_STEP:
		s->step_base = kvs_arg_time(st, "step", arg, 1000);
		return 0;
	case KEY_STEP_EACH:
		s->step_request = kvs_arg_time(st, "step-request", arg, 0);
		return 0;
	case KEY_THRESHOLD:
		a->o.threshold = kvs_arg_number(st, "threshold", arg, 0, 1);
		return 0;
	case KEY_BUFFERS:
		a->buffers_given = true;
		a->o.buffers = (uint32_t)kvs_arg_whole(st, "buffers", arg, 0,
						       KVS_LAYOUT_BUFFERS_MAX);
		return 0;
	case KEY_LAYERWISE:
		a->o.layerwise = true;
		return 0;
	case KEY_TOKEN_BYTES:
		a->o.token_bytes =
			kvs_arg_whole(st, "token-bytes", arg, 1, 1u << 24);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static uint64_t faster(uint64_t ns, double by)
{
	uint64_t v = (uint64_t)((double)ns / by);

	return ns && !v ? 1 : v;
}

/* The real clock: fewer bytes, all of them really moved, and faster, so that
 * it ends in minutes. What is in proportion stays so. */
static void scale_down(struct ttft_args *a)
{
	struct ttft_opts *o = &a->o;
	struct kvs_serving *s = &o->s;
	double bytes = (double)s->token_bytes;

	if (!a->prefills_given) {
		s->prefill_rate *= (double)s->prefills / REAL_PREFILLS;
		s->prefills = REAL_PREFILLS;
	}
	if (!o->scale)
		o->scale = o->storm ? STORM_SCALE : REAL_SCALE;
	o->speed *= o->scale;
	s->prefill_rate *= o->scale;
	s->step_base = faster(s->step_base, o->scale);
	s->step_request = faster(s->step_request, o->scale);
	s->hold_timeout = faster(s->hold_timeout, o->scale);
	o->acks.a = faster(o->acks.a, o->scale);
	o->acks.b = faster(o->acks.b, o->scale);
	if (!o->token_bytes)
		o->token_bytes = REAL_TOKEN_BYTES;
	if (!o->requests)
		o->requests = o->storm ? STORM_REQUESTS : REAL_REQUESTS;
	s->h2d_rate = (uint64_t)((double)s->h2d_rate * o->scale *
				 (double)o->token_bytes / bytes) +
		      1;
	if (!a->pool_given)
		a->pool = TTFT_POOL_PLANNED;
}

/* A hold that is so much shorter must still be one. */
static void check_hold(const struct ttft_args *a, struct argp_state *st)
{
	char text[32], err[512];
	struct kvs_settings s;

	kvs_settings_init(&s);
	snprintf(text, sizeof(text), "%lluns",
		 (unsigned long long)a->o.s.hold_timeout);
	if (kvs_settings_set(&s, "hold.timeout", text, err, sizeof(err)))
		argp_error(st, "--hold as short as --scale %g makes it: %s",
			   a->o.scale, err);
}

static void check_layout(const struct ttft_opts *o, struct argp_state *st)
{
	struct kvs_layout *l;
	char err[256];

	if (ttft_layout(o, &l, err, sizeof(err)))
		argp_error(st, "--token-bytes, --buffers: %s", err);
	else
		free(l);
}

/* What the options say together. */
static void check(struct ttft_args *a, struct argp_state *st)
{
	struct ttft_opts *o = &a->o;
	char err[KVS_PRESET_ERR];

	if (kvs_serving_model(&o->s, o->model, err, sizeof(err)))
		argp_error(st, "--%s", err); /* model "x": ... */
	if (o->layerwise && !a->buffers_given)
		o->buffers = LAYERWISE_BUFFERS;
	if (!a->real && o->scale)
		argp_error(st, "--scale: only with --clock real; a virtual "
			       "clock is as fast as it can");
	if (a->real)
		scale_down(a);
	else
		o->scale = 1;
	check_hold(a, st);
	check_layout(o, st);
	if (o->token_bytes)
		o->s.token_bytes = o->token_bytes;
	if (o->s.prefill_chunk % o->s.page_size)
		argp_error(st,
			   "--prefill-chunk %u: not a multiple of the "
			   "page size, %u",
			   o->s.prefill_chunk, o->s.page_size);
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
	struct ttft_args *a = st->input;
	error_t r;

	if (key == ARGP_KEY_END) {
		check(a, st);
		return 0;
	}
	r = parse_run(key, arg, a, st);
	if (r == ARGP_ERR_UNKNOWN)
		r = parse_pressure(key, arg, a, st);
	if (r == ARGP_ERR_UNKNOWN)
		r = parse_cluster(key, arg, a, st);
	return r;
}

void ttft_args_parse(int argc, char **argv, struct ttft_args *ret)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Time to first token while requests are given up and "
		       "their memory is held, for several ways to receive.",
	};
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	*ret = (struct ttft_args){
		.o = {
			.model = "glm-5",
			.speed = 1,
			.seed = 1,
			.acks = { .dist = TTFT_LOST },
			.acks_text = "lost",
			.threshold = 0.5,
			.buffers = 1,
		},
		.modes = { true, true, true, true },
		.abort = { 0.3 },
		.n_aborts = 1,
	};
	kvs_serving_defaults(&ret->o.s);
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, ret);
	if (!ret->jobs)
		ret->jobs = ret->real || cpus < 1 ? 1 : (unsigned int)cpus;
	if (ret->jobs > TTFT_JOBS_MAX)
		ret->jobs = TTFT_JOBS_MAX;
}
