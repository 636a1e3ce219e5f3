/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ttft/ttft_stat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const char *const ttft_mode_name[TTFT_MODES] = {
	[TTFT_DIRECT] = "direct",
	[TTFT_STAGED] = "staged",
	[TTFT_AUTO] = "auto",
	[TTFT_IDEAL] = "ideal",
};

static size_t run_size(const struct ttft_plan *p)
{
	return sizeof(struct ttft_run) + p->n * sizeof(struct ttft_rec);
}

struct ttft_run *ttft_run_new(const struct ttft_plan *p)
{
	void *m = mmap(NULL, run_size(p), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

void ttft_run_free(struct ttft_run *r, const struct ttft_plan *p)
{
	if (r)
		(void)munmap(r, run_size(p));
}

bool ttft_begun(const struct ttft_run *r)
{
	return atomic_load(&r->settled) > 0 || atomic_load(&r->state) == 1;
}

unsigned char *ttft_common(const struct ttft_set *s, size_t k)
{
	unsigned char *c = malloc(s->p->n);

	if (!c)
		return NULL;
	memset(c, 1, s->p->n);
	for (size_t j = 0; j < s->n; j++) {
		const struct ttft_run *r = s->run[j];

		if (r->abort != s->run[k]->abort || !ttft_begun(r))
			continue;
		for (size_t i = 0; i < s->p->n; i++) {
			const struct ttft_req *q = &s->p->v[i];

			c[i] &= r->rec[i].end == TTFT_DONE && !q->storm &&
				q->draw >= r->abort;
		}
	}
	return c;
}

size_t ttft_ideal_of(const struct ttft_set *s, size_t k)
{
	for (size_t j = 0; j < s->n; j++)
		if (s->run[j]->mode == TTFT_IDEAL &&
		    s->run[j]->abort == s->run[k]->abort &&
		    ttft_begun(s->run[j]))
			return j;
	return s->n;
}

struct weighted {
	double v;
	uint64_t n;
};

static int compare(const void *a, const void *b)
{
	const struct weighted *x = a, *y = b;

	return (x->v > y->v) - (x->v < y->v);
}

static double quantile(const struct weighted *v, size_t n, uint64_t total,
		       double q)
{
	uint64_t rank = (uint64_t)ceil(q * (double)total), seen = 0;

	for (size_t i = 0; i < n; i++) {
		seen += v[i].n;
		if (seen >= rank && v[i].n)
			return v[i].v;
	}
	return 0;
}

/* Sorts @v. */
static struct ttft_dist_stat describe(struct weighted *v, size_t n)
{
	struct ttft_dist_stat d = { 0 };
	uint64_t total = 0;
	double sum = 0, dev = 0;

	for (size_t i = 0; i < n; i++) {
		total += v[i].n;
		sum += v[i].v * (double)v[i].n;
	}
	d.n = total;
	if (!total)
		return d;
	d.mean = sum / (double)total;
	for (size_t i = 0; i < n; i++)
		dev += (v[i].v - d.mean) * (v[i].v - d.mean) * (double)v[i].n;
	d.std = sqrt(dev / (double)total);
	qsort(v, n, sizeof(*v), compare);
	d.median = quantile(v, n, total, 0.5);
	d.p90 = quantile(v, n, total, 0.9);
	d.p95 = quantile(v, n, total, 0.95);
	d.p99 = quantile(v, n, total, 0.99);
	return d;
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

enum what { TTFT, TPOT, E2E, WAIT };

static struct weighted value(const struct ttft_set *s, const struct ttft_run *r,
			     size_t i, enum what w)
{
	const struct ttft_req *q = &s->p->v[i];
	const struct ttft_rec *c = &r->rec[i];
	struct weighted v = { 0, 1 };
	uint64_t granted = atomic_load(&c->granted);

	switch (w) {
	case TTFT:
		v.v = ms(c->first - q->at);
		break;
	case TPOT:
		/* one token has no time between tokens */
		v.n = q->output > 1;
		v.v = v.n ? ms(c->last - c->first) / (q->output - 1) : 0;
		break;
	case E2E:
		v.v = ms(c->last - q->at);
		break;
	case WAIT:
		v.v = granted > q->at ? ms(granted - q->at) : 0;
		break;
	}
	return v;
}

static struct ttft_dist_stat of_requests(const struct ttft_set *s,
					 const struct ttft_run *r,
					 const unsigned char *common,
					 enum what w, struct weighted *tmp)
{
	size_t n = 0;

	for (size_t i = 0; i < s->p->n; i++)
		if (common[i])
			tmp[n++] = value(s, r, i, w);
	return describe(tmp, n);
}

/* A request has a token in each step from its first to its last. */
static int of_tokens(const struct ttft_set *s, const struct ttft_run *r,
		     const unsigned char *common, struct ttft_dist_stat *ret)
{
	struct weighted *v = calloc(r->n_steps + 2, sizeof(*v));
	int64_t *diff = calloc(r->n_steps + 2, sizeof(*diff));
	int64_t live = 0;
	uint32_t k;

	*ret = (struct ttft_dist_stat){ 0 };
	if (!v || !diff) {
		free(v);
		free(diff);
		return -ENOMEM;
	}
	for (size_t i = 0; i < s->p->n; i++) {
		const struct ttft_rec *c = &r->rec[i];

		if (!common[i] || c->last_step >= r->n_steps)
			continue;
		diff[c->first_step + 1]++;
		diff[c->last_step + 1]--;
	}
	for (k = 1; k < r->n_steps; k++) {
		live += diff[k];
		v[k].v = ms(r->step[k] - r->step[k - 1]);
		v[k].n = (uint64_t)live;
	}
	*ret = describe(v, k);
	free(v);
	free(diff);
	return 0;
}

static void ends(const struct ttft_set *s, const struct ttft_run *r,
		 struct ttft_stat *ret)
{
	for (size_t i = 0; i < s->p->n; i++) {
		const struct ttft_req *q = &s->p->v[i];
		const struct ttft_rec *c = &r->rec[i];

		ret->direct += atomic_load(&c->route) == 1 + TTFT_DEVICE;
		switch ((enum ttft_end)atomic_load(&c->end)) {
		case TTFT_DONE:
			ret->completed++;
			ret->input_tokens += q->input;
			ret->output_tokens += q->output;
			break;
		case TTFT_GAVE_UP:
			ret->aborted++;
			break;
		case TTFT_FAILED:
			ret->failed++;
			break;
		case TTFT_OPEN:
			ret->unfinished++;
			break;
		}
	}
	ret->seconds = (double)r->t.duration / 1e9;
}

int ttft_stat(const struct ttft_set *s, size_t k, const unsigned char *common,
	      struct ttft_stat *ret)
{
	const struct ttft_run *r = s->run[k];
	struct weighted *tmp = calloc(s->p->n, sizeof(*tmp));
	int res;

	*ret = (struct ttft_stat){ 0 };
	if (!tmp)
		return -ENOMEM;
	for (size_t i = 0; i < s->p->n; i++)
		ret->survivors += common[i];
	ret->ttft = of_requests(s, r, common, TTFT, tmp);
	ret->tpot = of_requests(s, r, common, TPOT, tmp);
	ret->e2e = of_requests(s, r, common, E2E, tmp);
	ret->wait = of_requests(s, r, common, WAIT, tmp);
	free(tmp);
	res = of_tokens(s, r, common, &ret->itl);
	ends(s, r, ret);
	return res;
}
