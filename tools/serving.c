/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/serving.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "lib/clock.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "tools/shot.h"
#include "tools/trace.h"

#define POOL_MAX (1ULL << 62) /* bytes; more is said so */

void kvs_serving_defaults(struct kvs_serving *ret)
{
	*ret = (struct kvs_serving){
		/* the pool of a published incident, under a context of
		 * 1,048,576 tokens */
		.device_tokens = 681280,
		/* "12-group" cluster of sgl-project/sglang#28651 */
		.prefills = 12,
		/* A third of the 50,302 tokens/s that lmsys.org, 2025-05-05,
		 * "Deploying DeepSeek with PD Disaggregation", measured on a
		 * node of 8 H100 with prompts of 4K: ours are longer. */
		.prefill_rate = 16000,
		/* sglang's chunked_prefill_size on large GPUs */
		.prefill_chunk = 8192,
		/* one 200 Gbit/s port */
		.link_rate = 25000000000ULL,
		.link_latency = 10 * KVS_NSEC_PER_USEC,
		/* assumed of PCIe 5.0 x16 */
		.h2d_rate = 50000000000ULL,
		/* GLM-5-FP8, 8 B200, no speculation: 20.2 ms a token alone
		 * (gist BenHamm/dcd09f595fef141567a39582f502cef4) */
		.step_base = 20 * KVS_NSEC_PER_MSEC,
		/* 22,300 tokens/s a node with 2,048 requests (lmsys.org, as
		 * above) are 92 ms a step: 35 us for each */
		.step_request = 35 * KVS_NSEC_PER_USEC,
		.hold_timeout = 30 * KVS_NSEC_PER_SEC,
	};
}

int kvs_serving_model(struct kvs_serving *s, const char *model, char *err,
		      unsigned int errlen)
{
	struct kvs_layout *l;
	uint64_t bytes = 0;
	int ret;

	ret = kvs_preset_layout(model, NULL, &l, err, errlen);
	if (ret)
		return ret;
	for (uint32_t b = 0; b < l->n_buffers; b++)
		if (kvs_buffer_kind_is_paged(l->buffers[b].kind))
			bytes += l->buffers[b].item_len;
	s->page_size = l->page_size;
	s->token_bytes = bytes / l->page_size;
	free(l);
	return 0;
}

/* ---- the load of a trace ------------------------------------------------- */

static double pages_up(uint32_t tokens, uint32_t page_size)
{
	return ceil((double)tokens / page_size) * page_size;
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Each stands for as many prompts as the others, with the mean of theirs. */
static void lengths_of(double *v, size_t n, double *ret)
{
	qsort(v, n, sizeof(*v), ascending);
	for (size_t i = 0; i < KVS_SERVING_LENGTHS; i++) {
		size_t from = i * n / KVS_SERVING_LENGTHS;
		size_t to = (i + 1) * n / KVS_SERVING_LENGTHS;

		if (to == from)
			to++;
		ret[i] = 0;
		for (size_t k = from; k < to; k++)
			ret[i] += v[k] / (double)(to - from);
	}
}

int kvs_serving_load_of(const struct kvs_trace *t, uint32_t page_size,
			double speed, bool arrivals,
			struct kvs_serving_load *ret)
{
	double span = t->n ? (double)t->req[t->n - 1].at_ms / 1e3 / speed : 0;
	double *v = calloc(t->n + 1, sizeof(*v));

	*ret = (struct kvs_serving_load){ .max_tokens = t->max_input };
	if (arrivals)
		ret->arrival = calloc(t->n + 1, sizeof(*ret->arrival));
	if (!v || (arrivals && !ret->arrival)) {
		free(v);
		kvs_serving_load_fini(ret);
		return -ENOMEM;
	}
	ret->rate = span > 0 ? (double)t->n / span : (double)t->n;
	for (size_t i = 0; i < t->n; i++) {
		double x = pages_up(t->req[i].input, page_size);

		v[i] = x;
		ret->tokens += x / (double)t->n;
		ret->tokens2 += x * x / (double)t->n;
		ret->output += (double)t->req[i].output / (double)t->n;
		if (arrivals)
			ret->arrival[i] = (struct kvs_serving_arrival){
				.at = (double)t->req[i].at_ms / 1e3 / speed,
				.tokens = x,
			};
	}
	if (arrivals)
		ret->n = t->n;
	if (t->n)
		lengths_of(v, t->n, ret->length);
	free(v);
	return 0;
}

void kvs_serving_load_fini(struct kvs_serving_load *l)
{
	free(l->arrival);
	l->arrival = NULL;
	l->n = 0;
}

/* ---- the pool ------------------------------------------------------------ */

/* Seconds that a prompt waits for an instance: Sakasegawa's approximation of
 * a queue with many servers (Annals of the Institute of Statistical
 * Mathematics 29, 1977). */
static double prefill_wait(const struct kvs_serving *s,
			   const struct kvs_serving_load *l)
{
	double n = s->prefills, mean = l->tokens / s->prefill_rate;
	double use = l->rate * mean / n;
	double var = l->tokens2 / (l->tokens * l->tokens);

	if (use > 0.98)
		use = 0.98; /* no pool helps */
	return var / 2 * pow(use, sqrt(2 * (n + 1)) - 1) / (n * (1 - use)) *
	       mean;
}

/* Seconds that a room keeps its memory. */
struct stay {
	double fixed;
	double each; /* for each token */
};

static struct kvs_shot shot(const struct kvs_serving *s, double tokens,
			    const struct stay *t, double share)
{
	return (struct kvs_shot){
		.size = tokens * (double)s->token_bytes,
		.time = t->fixed + t->each * tokens,
		.share = share,
	};
}

/* Every length twice: it comes to its end, or is given up. */
static int level(const struct kvs_serving *s, const struct kvs_serving_load *l,
		 double rate, const struct stay *done, const struct stay *gone,
		 double horizon, double *ret_level, double *ret_sigma)
{
	struct kvs_shot *v = calloc(2 * KVS_SERVING_LENGTHS, sizeof(*v));
	double share = 1.0 / KVS_SERVING_LENGTHS;
	int r;

	if (!v)
		return -ENOMEM;
	for (unsigned int i = 0; i < KVS_SERVING_LENGTHS; i++) {
		v[2 * i] = shot(s, l->length[i], done, share * (1 - l->abort));
		v[2 * i + 1] = shot(s, l->length[i], gone, share * l->abort);
	}
	r = kvs_shot_level(rate, v, 2 * KVS_SERVING_LENGTHS, horizon, ret_level,
			   ret_sigma);
	free(v);
	return r;
}

/* Mean over all requests of tokens * seconds. */
static double token_seconds(const struct kvs_serving_load *l,
			    const struct stay *t)
{
	return t->fixed * l->tokens + t->each * l->tokens2;
}

int kvs_serving_size(const struct kvs_serving *s,
		     const struct kvs_serving_load *l, unsigned int nodes,
		     double horizon, struct kvs_serving_size *ret)
{
	double hold = l->acked ? 0 : (double)s->hold_timeout / 1e9;
	double rate = l->rate / nodes, copy, bytes, most, span;
	double shorter = 0, sigma;
	struct stay done, gone;
	int r;

	bytes = (double)s->token_bytes;
	copy = bytes / (double)s->h2d_rate;
	*ret = (struct kvs_serving_size){
		.wait = prefill_wait(s, l),
		.prefill = l->tokens / s->prefill_rate,
		.push = (double)s->prefill_chunk * bytes / (double)s->link_rate,
		/* the engine looks once a step */
		.claim = (double)s->step_base / 2e9,
		.copy = l->tokens * copy,
		.largest = (double)l->max_tokens * bytes,
	};
	done.fixed = ret->wait + ret->push + ret->claim;
	done.each = 1 / s->prefill_rate + copy;
	/* given up half way, as a mean */
	gone.fixed = ret->wait;
	gone.each = 0.5 / s->prefill_rate;
	ret->in_flight = rate * bytes *
			 ((1 - l->abort) * token_seconds(l, &done) +
			  l->abort * token_seconds(l, &gone));
	gone.fixed += hold;
	ret->held = rate * l->abort * hold * l->tokens * bytes;
	ret->stay = (ret->in_flight + ret->held) / (rate * l->tokens * bytes);
	r = level(s, l, rate, &done, &gone, horizon, &ret->independent,
		  &ret->sigma);
	ret->peak = ret->independent;
	span = l->n ? l->arrival[l->n - 1].at : 0;
	if (!r && l->n)
		r = kvs_serving_replay(s, l, nodes, ret, &ret->peak,
				       &ret->replays);
	if (!r && l->n && span < horizon) {
		r = level(s, l, rate, &done, &gone, span, &shorter, &sigma);
		ret->peak += ret->independent - shorter;
	}
	if (r)
		return r;
	most = ret->in_flight + ret->held;
	/* a room there is */
	if (most < l->tokens * bytes)
		most = l->tokens * bytes;
	if (!(ret->peak > most))
		ret->peak = most;
	most = ret->peak > ret->largest ? ret->peak : ret->largest;
	ret->pool = most < (double)POOL_MAX ? (uint64_t)most : POOL_MAX;
	return 0;
}
