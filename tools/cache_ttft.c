/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cache_ttft.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct cluster {
	const struct kvs_serving *s;
	double *idle; /* seconds: when each instance is free */
	double disk; /* and the disk */
	double disk_rate;
};

static double later(double a, double b)
{
	return a > b ? a : b;
}

static uint32_t least_queued(const struct cluster *c)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < c->s->prefills; i++)
		if (c->idle[i] < c->idle[best])
			best = i;
	return best;
}

/* Seconds at which all of @tokens has been computed and has come. */
static double pushed(struct cluster *c, double at, double tokens, double *wait)
{
	const struct kvs_serving *s = c->s;
	double bytes = (double)s->token_bytes / (double)s->link_rate;
	double chunk = fmin(s->prefill_chunk, tokens), start, end;
	uint32_t i = least_queued(c);

	start = later(c->idle[i], at);
	*wait = start - at;
	end = start + tokens / s->prefill_rate;
	c->idle[i] = end;
	/* the last chunk, or all of it behind a slower link */
	end = later(end + chunk * bytes,
		    start + chunk / s->prefill_rate + tokens * bytes);
	return end + (double)s->link_latency / 1e9;
}

static double recalled(struct cluster *c, double at, double tokens)
{
	if (tokens <= 0)
		return at;
	c->disk = later(c->disk, at) +
		  tokens * (double)c->s->token_bytes / c->disk_rate;
	return c->disk;
}

static double request(struct cluster *c, const struct kvs_trace_request *q,
		      const struct kvs_replay_hit *hit, double *wait)
{
	const struct kvs_serving *s = c->s;
	double at = (double)q->at_ms / 1e3, input = q->input, cached = 0, slow,
	       ready;

	for (unsigned int t = 0; hit && t < KVS_TIER_MAX; t++)
		cached += hit->tokens[t];
	if (cached > input - 1)
		cached = input - 1;
	slow = hit ? fmin(hit->tokens[KVS_TIER_NVME], cached) : 0;
	ready = later(pushed(c, at, input - cached, wait),
		      recalled(c, at, slow));
	return ready - at +
	       input * (double)s->token_bytes / (double)s->h2d_rate +
	       (double)(s->step_base + s->step_request) / 1e9;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The nearest rank of @n sorted ones, in ms. */
static double rank(const double *v, size_t n, double share)
{
	size_t i = (size_t)ceil(share * (double)n);

	return v[i ? i - 1 : 0] * 1e3;
}

int kvs_cache_ttft(const struct kvs_serving *s, const struct kvs_trace *t,
		   const struct kvs_replay_hit *hit, double disk_rate,
		   struct kvs_cache_ttft *ret)
{
	struct cluster c = {
		.s = s,
		.idle = calloc(s->prefills, sizeof(*c.idle)),
		.disk_rate = disk_rate,
	};
	double *v = calloc(t->n, sizeof(*v)), sum = 0, waits = 0, wait;
	int r = -ENOMEM;

	if (!v || !c.idle)
		goto out;
	for (size_t i = 0; i < t->n; i++) {
		v[i] = request(&c, &t->req[i], hit ? &hit[i] : NULL, &wait);
		sum += v[i];
		waits += wait;
	}
	qsort(v, t->n, sizeof(*v), by_value);
	*ret = (struct kvs_cache_ttft){
		.mean = sum / (double)t->n * 1e3,
		.median = rank(v, t->n, 0.5),
		.p90 = rank(v, t->n, 0.9),
		.p99 = rank(v, t->n, 0.99),
		.wait = waits / (double)t->n * 1e3,
	};
	r = 0;
out:
	free(v);
	free(c.idle);
	return r;
}
