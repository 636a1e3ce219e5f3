/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "pinned/pool.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "pipeline/settings.h"
#include "tools/plan.h"
#include "tools/trace.h"

#define SAMPLE 50000u /* requests that stand for a distribution */
#define SAMPLE_SEED 1u
#define HOLD_USUAL (60 * KVS_NSEC_PER_SEC) /* what operators keep to */
#define BUSY 0.8 /* share from which a queue builds up */
#define SMALL (2ULL << 20) /* bytes; a huge page */
#define LARGE (1ULL << 30)
#define TIB (1ULL << 40)
#define MACHINE (6 * TIB) /* a socket with 24 modules of 256 GB */
#define CLUSTERED 1.2
#define POOL_MAX (1ULL << 50) /* pool.size, pool.offload_size: settings.def */

static void warn(struct plan *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void warn(struct plan *p, const char *fmt, ...)
{
	va_list ap;

	if (p->n_warnings == PLAN_WARNINGS)
		return;
	va_start(ap, fmt);
	vsnprintf(p->warning[p->n_warnings++], PLAN_WARNING_LEN, fmt, ap);
	va_end(ap);
}

/* ---- the model ----------------------------------------------------------- */

/* One buffer a layer, which is all that sizes depend on. */
static int layout_of_numbers(const struct plan_opts *o, struct kvs_layout **ret,
			     char *err, size_t errlen)
{
	struct kvs_layout l = { .size = sizeof(l),
				.page_size = o->page_size,
				.dtype = KVS_DTYPE_BF16,
				.n_buffers = o->layers };
	uint64_t page = o->token_bytes * o->page_size, done = 0, end;
	int r;

	l.buffers = calloc(o->layers, sizeof(*l.buffers));
	if (!l.buffers) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < o->layers; i++) {
		end = (i + 1) * page / o->layers;
		if (end - done > KVS_ITEM_LEN_MAX) {
			snprintf(err, errlen,
				 "--token-bytes %" PRIu64
				 " --page-size %u --layers "
				 "%u: a page of a layer has more than %u bytes",
				 o->token_bytes, o->page_size, o->layers,
				 KVS_ITEM_LEN_MAX);
			free(l.buffers);
			return -EINVAL;
		}
		l.buffers[i] = (struct kvs_layer_buffer){
			.kind = KVS_BUFFER_KV,
			.layer = (uint16_t)i,
			.item_len = (uint32_t)(end - done),
		};
		done = end;
	}
	r = kvs_layout_check(&l, err, errlen);
	if (!r && kvs_layout_dup(&l, ret)) {
		snprintf(err, errlen, "out of memory");
		r = -ENOMEM;
	}
	free(l.buffers);
	return r;
}

static int plan_layout(struct plan_opts *o, struct kvs_layout **ret, char *err,
		       size_t errlen)
{
	int r;

	if (!o->model) {
		r = layout_of_numbers(o, ret, err, errlen);
		if (!r) {
			o->s.token_bytes = o->token_bytes;
			o->s.page_size = o->page_size;
		}
		return r;
	}
	r = kvs_serving_model(&o->s, o->model, err, (unsigned int)errlen);
	if (!r)
		r = kvs_preset_layout(o->model, NULL, ret, err, errlen);
	if (r)
		return r == -ENOENT ? -EINVAL : r;
	o->layers = 0;
	o->replicated = false;
	for (uint32_t b = 0; b < (*ret)->n_buffers; b++) {
		const struct kvs_layer_buffer *p = &(*ret)->buffers[b];

		if (p->layer >= o->layers)
			o->layers = p->layer + 1u;
		/* a latent is the same for every head */
		o->replicated |= p->kind == KVS_BUFFER_KV;
	}
	return 0;
}

/* What a request of so many tokens takes of a pool. */
static int room_bytes(const struct kvs_layout *l, uint32_t tokens,
		      uint64_t *ret, char *err, size_t errlen)
{
	struct kvs_settings set;
	struct kvs_geometry g;
	uint32_t extent;
	int r;

	kvs_settings_init(&set);
	extent = kvs_geometry_extent_tokens(l, set.extent_tokens,
					    KVS_ARENA_SEGMENT_MAX);
	r = extent ? kvs_geometry_init(&g, l, tokens, extent,
				       KVS_ARENA_SEGMENT_MAX, 1, l->aux_max)
		   : -E2BIG;
	if (r) {
		snprintf(err, errlen, "--context %u: %s", tokens,
			 r == -ENOMEM ? "out of memory" : "cannot be one room");
		return r;
	}
	*ret = 0;
	for (uint32_t i = 0; i < g.n_extents; i++)
		*ret += kvs_pool_round(kvs_geometry_len(&g, i));
	kvs_geometry_fini(&g);
	return 0;
}

/* ---- the load ------------------------------------------------------------ */

/* Between two points of a log-normal, the third: z of 0.9 over that of 0.99 */
static uint32_t between(uint32_t p50, uint32_t p99)
{
	return (uint32_t)(p50 * pow((double)p99 / p50, 1.28155 / 2.32635));
}

static int by_length(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* --p50 and --p99 are what the trace has. */
static int lengths_of(const struct kvs_trace *t, struct plan_opts *o)
{
	uint32_t *v = calloc(t->n ? t->n : 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < t->n; i++)
		v[i] = t->req[i].input;
	qsort(v, t->n, sizeof(*v), by_length);
	o->p50 = v[t->n / 2];
	o->p99 = v[t->n * 99 / 100];
	free(v);
	return 0;
}

static int plan_load(struct plan *p, char *err, size_t errlen)
{
	struct plan_opts *o = &p->o;
	struct kvs_trace_shape shape = {
		.n = SAMPLE,
		.input = { o->p50, between(o->p50, o->p99), o->p99,
			   o->context },
		.output = KVS_TRACE_CHAT_OUTPUT,
		.rate = o->rate,
		.max_input = o->context,
	};
	struct kvs_trace t = { 0 };
	int r;

	if (o->trace)
		r = kvs_trace_read(o->trace, 0, o->context, &t, err, errlen);
	else
		r = kvs_trace_generate(SAMPLE_SEED, &shape, &t);
	if (r && !o->trace)
		snprintf(err, errlen,
			 "--p50 %u --p99 %u --context %u --rate %g: lengths "
			 "must not fall, and the rate must be above 0",
			 o->p50, o->p99, o->context, o->rate);
	/* whatever a file says or lacks, no option is wrong */
	if (r && o->trace && r != -ENOMEM)
		r = -EIO;
	if (r)
		return r;
	r = kvs_serving_load_of(&t, o->s.page_size, o->trace ? o->speed : 1,
				o->trace, &p->load);
	if (!r && o->trace) {
		o->rate = p->load.rate;
		r = lengths_of(&t, o);
	}
	/* the sample's own chance is not the load's */
	p->load.rate = o->rate;
	p->load.abort = o->abort;
	p->load.acked = o->acked;
	if (o->trace && t.clamped)
		warn(p,
		     "%zu prompts of the trace are longer than --context "
		     "and were cut",
		     t.clamped);
	kvs_trace_fini(&t);
	if (r)
		snprintf(err, errlen, "out of memory");
	return r;
}

/* ---- the answer ---------------------------------------------------------- */

static void plan_hold(struct plan *p)
{
	struct plan_opts *o = &p->o;

	p->hold_least = o->propagation + o->remaining + o->call;
	p->hold_advised = 2 * p->hold_least;
	if (p->hold_advised < HOLD_USUAL)
		p->hold_advised = HOLD_USUAL;
	if (!o->s.hold_timeout)
		o->s.hold_timeout = p->hold_advised;
}

static int too_large(const char *options, const char *what, double bytes,
		     char *err, size_t errlen)
{
	snprintf(err, errlen,
		 "%s: %s of a node would be %.3g bytes, it can be at most %.3g",
		 options, what, bytes, (double)POOL_MAX);
	return -E2BIG;
}

static uint64_t round_up(uint64_t bytes)
{
	uint64_t unit = bytes > 16 * LARGE ? LARGE : SMALL;

	return (bytes + unit - 1) / unit * unit;
}

static int plan_pool(struct plan *p, char *err, size_t errlen)
{
	const struct plan_opts *o = &p->o;
	const struct kvs_serving_size *z = &p->size;
	double offload = (double)o->hicache +
			 o->retraction * (double)o->s.device_tokens *
				 (double)o->s.token_bytes;
	struct kvs_settings set;
	char options[256];
	uint64_t want;

	kvs_settings_init(&set);
	if (kvs_serving_size(&o->s, &p->load, o->nodes, o->horizon, &p->size)) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	want = z->pool > p->context_bytes ? z->pool : p->context_bytes;
	p->reserve = set.health_reserve;
	/* what rounds up must fit as well */
	if (!((double)want <=
	      (double)POOL_MAX - (double)(p->reserve + LARGE))) {
		if (z->pool > p->context_bytes)
			snprintf(options, sizeof(options),
				 "%s %.6g, --hold %.0fs, %" PRIu64
				 " bytes a token",
				 o->trace ? "--trace: rate" : "--rate", o->rate,
				 (double)o->s.hold_timeout / 1e9,
				 o->s.token_bytes);
		else
			snprintf(options, sizeof(options),
				 "--context %u, %" PRIu64 " bytes a token",
				 o->context, o->s.token_bytes);
		return too_large(options, "pool.size",
				 fmax(z->peak, (double)want), err, errlen);
	}
	/* a deviation is printed too */
	if (!(z->sigma <= (double)POOL_MAX))
		return too_large("--trace", "the deviation", z->sigma, err,
				 errlen);
	p->pool = round_up(want + p->reserve);
	if (!(offload / o->nodes <= (double)POOL_MAX - (double)LARGE))
		return too_large(o->retraction > 0
					 ? "--hicache and --retraction"
					 : "--hicache",
				 "pool.offload_size", offload / o->nodes, err,
				 errlen);
	p->offload = round_up((uint64_t)offload / o->nodes);
	return 0;
}

static void plan_copies(struct plan *p)
{
	const struct plan_opts *o = &p->o;
	const struct {
		const char *name;
		double tokens;
	} v[] = { { "p50", o->p50 },
		  { "p99", o->p99 },
		  { "context", o->context } };
	double share = o->replicated ? 1 : 1.0 / o->ranks;

	for (unsigned int i = 0; i < 3; i++) {
		struct plan_copy *c = &p->copy[i];

		c->name = v[i].name;
		c->tokens = (uint32_t)v[i].tokens;
		c->bytes = c->tokens * o->s.token_bytes;
		c->whole_ms =
			(double)c->bytes * share / (double)o->s.h2d_rate * 1e3;
		c->first_ms = c->whole_ms / o->layers;
	}
}

static void plan_uses(struct plan *p)
{
	const struct plan_opts *o = &p->o;
	const struct kvs_serving *s = &o->s;
	const struct kvs_serving_load *l = &p->load;
	double bytes = l->rate * l->tokens * (double)s->token_bytes;
	double live = l->rate * (1 - l->abort), base, slow;

	p->prefill_use = l->rate * l->tokens * (1 - l->abort / 2) /
			 s->prefill_rate / s->prefills;
	/* what is given up is sent half, as a mean */
	p->nic_use = bytes * (1 - l->abort / 2) / (double)o->nic_rate;
	p->h2d_use = bytes * (1 - l->abort) *
		     (o->replicated ? 1 : 1.0 / o->ranks) / (double)s->h2d_rate;
	/* a step takes base + batch * slow, and the batch is Little's: live *
	 * output * step */
	base = (double)s->step_base / 1e9;
	slow = live * l->output * (double)s->step_request / 1e9;
	p->step = slow < 0.99 ? base / (1 - slow) : base * 100;
	p->device_use = live * l->output * p->step * (l->tokens + l->output) /
			(double)s->device_tokens;
}

/* One of what a load goes through: so busy that a queue builds up there, or
 * more is asked than it can do. */
static void use_warning(struct plan *p, double use, const char *what,
			const char *queue)
{
	if (use >= 1)
		warn(p,
		     "%s cannot do it: %.0f %% of what it can is asked. %s for "
		     "ever longer, and no pool is large enough",
		     what, use * 100, queue);
	else if (use > BUSY)
		warn(p, "%s is %.0f %% busy: %s at times", what, use * 100,
		     queue);
}

static void plan_warnings(struct plan *p)
{
	const struct plan_opts *o = &p->o;
	const struct kvs_serving_size *z = &p->size;

	use_warning(p, p->prefill_use, "prefill",
		    "Prompts wait there and own host memory,");
	use_warning(p, p->nic_use, "the network into the node",
		    "Prompts wait there and own host memory,");
	use_warning(p, p->h2d_use, "the way to the device",
		    "Complete requests wait for it in host memory,");
	use_warning(p, p->device_use, "the device's KV pool",
		    "Complete requests wait for it in host memory,");
	if (o->context > o->s.device_tokens)
		warn(p,
		     "one maximum-length request has %u tokens, the "
		     "device's KV pool holds %" PRIu64
		     ": capacity.check refuses such an engine",
		     o->context, o->s.device_tokens);
	if (p->pool > MACHINE)
		warn(p,
		     "pool.size of a NUMA node is %.1f TiB, and few machines "
		     "have more than %.0f: more nodes, a shorter hold or less "
		     "load",
		     (double)p->pool / (double)TIB,
		     (double)MACHINE / (double)TIB);
	if (z->replays && z->peak > CLUSTERED * z->independent)
		warn(p,
		     "arrivals of the trace cluster: independent ones would "
		     "reach %.1f GB",
		     z->independent / 1e9);
}

int plan_make(const struct plan_opts *o, struct plan *ret, char *err,
	      size_t errlen)
{
	struct kvs_layout *l = NULL;
	int r;

	*ret = (struct plan){ .o = *o };
	plan_hold(ret);
	if (ret->o.s.hold_timeout <= ret->hold_least) {
		snprintf(err, errlen,
			 "--hold: %.1f s does not exceed --propagation + "
			 "--remaining + --call-timeout = %.1f s: senders that "
			 "are well would be revoked",
			 (double)ret->o.s.hold_timeout / 1e9,
			 (double)ret->hold_least / 1e9);
		return -EINVAL;
	}
	r = plan_layout(&ret->o, &l, err, errlen);
	if (!r)
		r = room_bytes(l, o->context, &ret->context_bytes, err, errlen);
	free(l);
	if (!r)
		r = plan_load(ret, err, errlen);
	if (!r)
		r = plan_pool(ret, err, errlen);
	kvs_serving_load_fini(&ret->load);
	if (r)
		return r;
	plan_copies(ret);
	plan_uses(ret);
	plan_warnings(ret);
	return 0;
}
