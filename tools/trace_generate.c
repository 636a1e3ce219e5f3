/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>

#include "kvstage/layout.h"
#include "lib/rng.h"
#include "tools/trace.h"
#include "tools/trace_internal.h"

/* Share of requests that are longer than max would be: all of it is cut. */
#define KVS_TAIL_END 0.0005

/* From @a at t = 0 to @b at t = 1, straight in the logarithm. */
static double kvs_between(double a, double b, double t)
{
	return a * exp(t * log(b / a));
}

/* @longer: share of requests that are longer, in (0, 1]. */
static uint32_t kvs_length(const struct kvs_trace_lengths *l, double longer)
{
	double shortest = l->p50 >= 8 ? l->p50 / 8 : 1;
	double v;

	if (longer >= 0.5)
		v = kvs_between(shortest, l->p50, (1 - longer) / 0.5);
	else if (longer >= 0.1)
		v = kvs_between(l->p50, l->p90,
				log(0.5 / longer) / log(0.5 / 0.1));
	else if (longer >= 0.01)
		v = kvs_between(l->p90, l->p99,
				log(0.1 / longer) / log(0.1 / 0.01));
	else if (longer > KVS_TAIL_END)
		v = kvs_between(l->p99, l->max,
				log(0.01 / longer) / log(0.01 / KVS_TAIL_END));
	else
		v = l->max;
	v = round(v);
	if (v < 1)
		return 1;
	return v > l->max ? l->max : (uint32_t)v;
}

static bool kvs_lengths_ok(const struct kvs_trace_lengths *l)
{
	return l->p50 && l->p50 <= l->p90 && l->p90 <= l->p99 &&
	       l->p99 <= l->max && l->max <= KVS_TOKENS_MAX;
}

/* (0, 1] */
static double kvs_share(struct kvs_rng *rng)
{
	return 1 - kvs_rng_double(rng);
}

static int kvs_generate_one(struct kvs_rng *rng,
			    const struct kvs_trace_shape *s, double *at_ms,
			    uint64_t *next_id, struct kvs_trace *t)
{
	struct kvs_trace_request req = { .ids = t->n_ids };
	uint32_t i;
	int r;

	/* three draws each, whatever the shape: the others do not move */
	req.input = kvs_length(&s->input, kvs_share(rng));
	req.output = kvs_length(&s->output, kvs_share(rng));
	*at_ms += s->rate > 0 ? -log(kvs_share(rng)) / s->rate * 1000
			      : 0 * kvs_share(rng);
	if (*at_ms > (double)KVS_TRACE_MS_MAX)
		return -EINVAL;
	req.at_ms = (uint64_t)*at_ms;

	req.n_ids = (req.input + KVS_TRACE_BLOCK - 1) / KVS_TRACE_BLOCK;
	for (i = 0; i < req.n_ids; i++) {
		r = kvs_trace_add_id(t, i ? (*next_id)++ : 0);
		if (r)
			return r;
	}
	return kvs_trace_add(t, &req, s->max_input);
}

int kvs_trace_generate(uint64_t seed, const struct kvs_trace_shape *shape,
		       struct kvs_trace *ret)
{
	struct kvs_trace t = { 0 };
	struct kvs_rng rng;
	uint64_t next_id = 1;
	double at_ms = 0;
	size_t i;
	int r = 0;

	if (!shape->n || shape->n > KVS_TRACE_REQUESTS_MAX ||
	    !kvs_lengths_ok(&shape->input) || !kvs_lengths_ok(&shape->output) ||
	    !(shape->rate >= 0))
		return -EINVAL;
	kvs_rng_init(&rng, seed);
	for (i = 0; i < shape->n && !r; i++)
		r = kvs_generate_one(&rng, shape, &at_ms, &next_id, &t);
	if (r) {
		kvs_trace_fini(&t);
		return r;
	}
	*ret = t;
	return 0;
}
