/* SPDX-License-Identifier: Apache-2.0 */
/* The arrivals of a trace, once more: see kvs_serving_replay(). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "lib/rng.h"
#include "tools/serving.h"

#define SEED 1u
#define REPLAYS 16u
#define REQUESTS 2000000u /* of all replays */

/* The end of a room. */
struct end {
	double at; /* seconds */
	double bytes;
	unsigned int node;
};

struct replay {
	const struct kvs_serving *s;
	const struct kvs_serving_load *l;
	unsigned int nodes;
	double after; /* seconds from the last chunk to the copy */
	double copy; /* seconds a token */
	double hold; /* seconds */
	struct kvs_rng rng;
	struct end *end;
	unsigned int *node; /* of each arrival */
	double *seen; /* per instance: when it is free, as a router knows */
	double *idle; /* and when it is */
	uint32_t *heap; /* of these: who is free first, as a router knows */
	double *now; /* per node: bytes */
	double *high;
};

static int by_time(const void *a, const void *b)
{
	const struct end *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

static double later(double a, double b)
{
	return a > b ? a : b;
}

/* ->heap[@i] has more queued than it had. */
static void sift(struct replay *r, uint32_t i)
{
	uint32_t n = r->s->prefills, k;

	while ((k = 2 * i + 1) < n) {
		uint32_t least = r->heap[i];

		if (k + 1 < n && r->seen[r->heap[k + 1]] < r->seen[r->heap[k]])
			k++;
		if (r->seen[r->heap[k]] >= r->seen[least])
			return;
		r->heap[i] = r->heap[k];
		r->heap[k] = least;
		i = k;
	}
}

/* When its memory is free. */
static double end_of(struct replay *r, const struct kvs_serving_arrival *a)
{
	double seconds = a->tokens / r->s->prefill_rate, chunk, start, where;
	uint32_t i = r->heap[0];

	r->seen[i] = later(r->seen[i], a->at) + seconds;
	sift(r, 0);
	start = later(r->idle[i], a->at);
	/* as many draws for each: no share moves another's */
	where = kvs_rng_double(&r->rng);
	if (where >= r->l->abort) {
		r->idle[i] = start + seconds;
		return r->idle[i] + r->after + a->tokens * r->copy;
	}
	/* the chunk that it is at is computed to its end */
	where = where / r->l->abort * a->tokens;
	chunk = r->s->prefill_chunk;
	r->idle[i] = start + fmin(ceil(where / chunk) * chunk, a->tokens) /
				     r->s->prefill_rate;
	return start + where / r->s->prefill_rate + r->hold;
}

/* Return: what the nodes reached, their mean. */
static double once(struct replay *r)
{
	const struct kvs_serving_load *l = r->l;
	double bytes = (double)r->s->token_bytes, sum = 0;
	size_t ended = 0;

	for (uint32_t i = 0; i < r->s->prefills; i++) {
		r->seen[i] = r->idle[i] = 0;
		r->heap[i] = i;
	}
	for (unsigned int i = 0; i < r->nodes; i++)
		r->now[i] = r->high[i] = 0;
	for (size_t i = 0; i < l->n; i++) {
		r->node[i] = (unsigned int)kvs_rng_below(&r->rng, r->nodes);
		r->end[i] = (struct end){
			.at = end_of(r, &l->arrival[i]),
			.bytes = l->arrival[i].tokens * bytes,
			.node = r->node[i],
		};
	}
	qsort(r->end, l->n, sizeof(*r->end), by_time);
	for (size_t i = 0; i < l->n; i++) {
		unsigned int k = r->node[i];

		while (ended < l->n && r->end[ended].at <= l->arrival[i].at) {
			const struct end *e = &r->end[ended++];

			r->now[e->node] -= e->bytes;
		}
		r->now[k] += l->arrival[i].tokens * bytes;
		r->high[k] = later(r->high[k], r->now[k]);
	}
	for (unsigned int i = 0; i < r->nodes; i++)
		sum += r->high[i];
	return sum / r->nodes;
}

static unsigned int how_often(const struct kvs_serving_load *l,
			      unsigned int nodes)
{
	/* there is no chance in it */
	if (nodes == 1 && l->abort <= 0)
		return 1;
	if (l->n * REPLAYS <= REQUESTS)
		return REPLAYS;
	return l->n >= REQUESTS ? 1 : (unsigned int)(REQUESTS / l->n);
}

int kvs_serving_replay(const struct kvs_serving *s,
		       const struct kvs_serving_load *l, unsigned int nodes,
		       const struct kvs_serving_size *z, double *ret_peak,
		       unsigned int *ret_replays)
{
	struct replay r = {
		.s = s,
		.l = l,
		.nodes = nodes,
		.after = z->push + z->claim,
		.copy = (double)s->token_bytes / (double)s->h2d_rate,
		.hold = l->acked ? 0 : (double)s->hold_timeout / 1e9,
		.end = calloc(l->n, sizeof(*r.end)),
		.node = calloc(l->n, sizeof(*r.node)),
		.seen = calloc(s->prefills, sizeof(*r.seen)),
		.idle = calloc(s->prefills, sizeof(*r.idle)),
		.heap = calloc(s->prefills, sizeof(*r.heap)),
		.now = calloc(nodes, sizeof(*r.now)),
		.high = calloc(nodes, sizeof(*r.high)),
	};
	int ret = -ENOMEM;

	if (r.end && r.node && r.seen && r.idle && r.heap && r.now && r.high) {
		ret = 0;
		*ret_peak = 0;
		*ret_replays = how_often(l, nodes);
		kvs_rng_init(&r.rng, SEED);
		for (unsigned int i = 0; i < *ret_replays; i++)
			*ret_peak += once(&r) / *ret_replays;
	}
	free(r.end);
	free(r.node);
	free(r.seen);
	free(r.idle);
	free(r.heap);
	free(r.now);
	free(r.high);
	return ret;
}
