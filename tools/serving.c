/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/serving.h"

#include <math.h>
#include <stdlib.h>

#include "lib/clock.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "tools/trace.h"

#define COUNTED 100.0 /* rooms at a time that are counted one by one */
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

static double dispersion(const struct kvs_trace *t, double speed,
			 double seconds)
{
	double n = 0, sum = 0, squares = 0, in = 0;
	double width = seconds * 1e3 * speed, end = width;
	size_t i = 0;

	while (i < t->n) {
		if ((double)t->req[i].at_ms < end) {
			in++;
			i++;
			continue;
		}
		n++;
		sum += in;
		squares += in * in;
		in = 0;
		end += width;
	}
	if (n < 8 || sum <= 0) /* too few windows to tell */
		return 1;
	return (squares / n - sum / n * (sum / n)) / (sum / n);
}

void kvs_serving_load_of(const struct kvs_trace *t, uint32_t page_size,
			 double speed, struct kvs_serving_load *ret)
{
	double span = t->n ? (double)t->req[t->n - 1].at_ms / 1e3 / speed : 0;

	*ret = (struct kvs_serving_load){ .max_tokens = t->max_input };
	ret->rate = span > 0 ? (double)t->n / span : (double)t->n;
	for (size_t i = 0; i < t->n; i++) {
		double x =
			ceil((double)t->req[i].input / page_size) * page_size;

		ret->tokens += x / (double)t->n;
		ret->tokens2 += x * x / (double)t->n;
		ret->tokens3 += x * x * x / (double)t->n;
		ret->tokens4 += x * x * x * x / (double)t->n;
		ret->output += (double)t->req[i].output / (double)t->n;
	}
	for (unsigned int w = 0; w < KVS_SERVING_WINDOWS; w++)
		ret->dispersion[w] = dispersion(t, speed, (double)(1u << w));
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

/* Of the arrivals over @seconds, between the windows it was measured over. */
static double dispersion_at(const struct kvs_serving_load *l, double seconds)
{
	double at = seconds > 1 ? log2(seconds) : 0;
	unsigned int w = (unsigned int)at;
	double v;

	if (w >= KVS_SERVING_WINDOWS - 1)
		v = l->dispersion[KVS_SERVING_WINDOWS - 1];
	else
		v = l->dispersion[w] +
		    (at - w) * (l->dispersion[w + 1] - l->dispersion[w]);
	return v > 1 ? v : 1;
}

/* The level that a standard normal variable is above with this probability:
 * Abramowitz and Stegun, 26.2.23. */
static double normal_above(double p)
{
	double t = sqrt(-2 * log(p));

	return t - (2.515517 + 0.802853 * t + 0.010328 * t * t) /
			   (1 + 1.432788 * t + 0.189269 * t * t +
			    0.001308 * t * t * t);
}

/* The number that a Poisson variable is above with this probability at most;
 * beyond COUNTED its mean, which is near enough for a lower bound. */
static double poisson_above(double mean, double p)
{
	double term = exp(-mean), sum = term, n = 0;

	if (mean > COUNTED)
		return mean;
	while (1 - sum > p && n < 4 * COUNTED) {
		n++;
		term *= mean / n;
		sum += term;
	}
	return n;
}

/* Seconds that a room keeps its memory. */
struct stay {
	double fixed;
	double each; /* for each token */
};

/* Mean over all requests of bytes^k * seconds; k up to 3. */
static double moment(const struct kvs_serving *s,
		     const struct kvs_serving_load *l, unsigned int k,
		     const struct stay *t)
{
	const double m[] = { 1, l->tokens, l->tokens2, l->tokens3, l->tokens4 };

	return pow((double)s->token_bytes, k) *
	       (t->fixed * m[k] + t->each * m[k + 1]);
}

void kvs_serving_size(const struct kvs_serving *s,
		      const struct kvs_serving_load *l, unsigned int nodes,
		      double horizon, struct kvs_serving_size *ret)
{
	double hold = l->acked ? 0 : (double)s->hold_timeout / 1e9;
	double rate = l->rate / nodes, all, count, least, z, p, k2, k3;
	double copy = (double)s->token_bytes / (double)s->h2d_rate;
	struct stay done, gone;

	*ret = (struct kvs_serving_size){
		.wait = prefill_wait(s, l),
		.prefill = l->tokens / s->prefill_rate,
		.push = (double)s->prefill_chunk * (double)s->token_bytes /
			(double)s->link_rate,
		/* the engine looks once a step */
		.claim = (double)s->step_base / 2e9,
		.copy = l->tokens * copy,
		.largest = (double)l->max_tokens * (double)s->token_bytes,
	};
	done.fixed = ret->wait + ret->push + ret->claim;
	done.each = 1 / s->prefill_rate + copy;
	/* given up half way, as a mean */
	gone.fixed = ret->wait;
	gone.each = 0.5 / s->prefill_rate;
	ret->in_flight = rate * ((1 - l->abort) * moment(s, l, 1, &done) +
				 l->abort * moment(s, l, 1, &gone));
	gone.fixed += hold;
	ret->held = rate * l->abort * hold * l->tokens * (double)s->token_bytes;
#define BOTH(k)                                    \
	((1 - l->abort) * moment(s, l, k, &done) + \
	 l->abort * moment(s, l, k, &gone))
	k2 = rate * BOTH(2);
	k3 = rate * BOTH(3);
	ret->stay = BOTH(2) / (l->tokens2 * pow((double)s->token_bytes, 2));
	/* thinned over the nodes, arrivals cluster less */
	ret->dispersion = 1 + (dispersion_at(l, ret->stay) - 1) / nodes;
	all = ret->in_flight + ret->held;
	count = rate * BOTH(0);
	k2 += (ret->dispersion - 1) * all * all / count;
#undef BOTH
	ret->sigma = sqrt(k2);
	ret->skew = k3 / (k2 * ret->sigma);
	p = 0.5 * ret->stay / (2 * horizon);
	z = normal_above(p < 0.5 ? p : 0.5);
	ret->peak = all + ret->sigma * 2 / ret->skew *
				  (pow(1 + ret->skew * z / 6 -
					       ret->skew * ret->skew / 36,
				       3) -
				   1);
	/* With a room now and then the skew is such that the approximation
	 * falls below anything. So many rooms of the mean size are never above
	 * what as many of all sizes reach, and one there is. */
	least = poisson_above(count, p);
	least = (least > 1 ? least : 1) * all / count;
	if (least < all)
		least = all;
	if (!(ret->peak > least))
		ret->peak = least;
	z = ret->peak > ret->largest ? ret->peak : ret->largest;
	ret->pool = z < (double)POOL_MAX ? (uint64_t)z : POOL_MAX;
}
