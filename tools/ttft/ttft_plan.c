/* SPDX-License-Identifier: Apache-2.0 */
/* Of the seed alone, so that every mode sees the same. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/rng.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "tools/trace.h"
#include "tools/ttft/ttft.h"

#define HOUR (3600 * KVS_NSEC_PER_SEC)
#define SPAN_MAX (TTFT_SPAN_DAYS * 24 * HOUR)

static double draw_where(struct kvs_rng *r, enum ttft_when when)
{
	double u = kvs_rng_double(r);

	switch (when) {
	case TTFT_EARLY:
		return u / 5;
	case TTFT_LATE:
		return 0.8 + u / 5;
	case TTFT_UNIFORM:
		break;
	}
	return u;
}

static uint64_t draw_ack(struct kvs_rng *r, const struct ttft_acks *a)
{
	double u = kvs_rng_double(r);

	switch (a->dist) {
	case TTFT_LOST:
		return KVS_TIME_NEVER;
	case TTFT_FIXED:
		return a->a;
	case TTFT_BETWEEN:
		return a->a + (uint64_t)(u * (double)(a->b - a->a));
	case TTFT_EXP:
		return (uint64_t)(-log(1 - u) * (double)a->a);
	case TTFT_FAST:
		break;
	}
	return 0;
}

/* Where the least is queued, by what a router can know: lengths and times. */
static uint32_t choose(const uint64_t *free_at, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (free_at[i] < free_at[best])
			best = i;
	return best;
}

/* Could it be one of those? */
static bool stormy(const struct ttft_opts *o, const struct ttft_req *q)
{
	double at = (double)q->at * o->scale;

	return q->prefill < TTFT_STORM_WRITERS && at >= TTFT_STORM_AT &&
	       at < TTFT_STORM_AT + TTFT_STORM_FOR;
}

static void plan_request(const struct ttft_opts *o,
			 const struct kvs_trace_request *t, struct kvs_rng *r,
			 uint64_t *free_at, struct ttft_req *q)
{
	uint64_t *f;

	q->at = (uint64_t)((double)(t->at_ms * KVS_NSEC_PER_MSEC) / o->speed);
	q->input = t->input;
	q->output = t->output ? t->output : 1;
	q->prefill = choose(free_at, o->s.prefills);
	f = &free_at[q->prefill];
	*f = (*f > q->at ? *f : q->at) +
	     (uint64_t)(q->input / o->s.prefill_rate * 1e9);
	/* the same number of draws for each: no setting moves another's */
	q->draw = kvs_rng_double(r);
	q->where = draw_where(r, o->when);
	q->ack = draw_ack(r, &o->acks);
	q->storm = kvs_rng_double(r) < TTFT_STORM_SHARE && o->storm &&
		   stormy(o, q);
}

/* A storm that nobody is in would pass for one that does no harm. */
static int check_storm(const struct ttft_opts *o, const struct ttft_plan *p,
		       char *err, size_t errlen)
{
	if (!o->storm)
		return 0;
	for (size_t i = 0; i < p->n; i++)
		if (p->v[i].storm)
			return 0;
	snprintf(err, errlen,
		 "--storm: of %zu requests none arrives in it, from minute 10 "
		 "to 20 at this --speed: it takes more --requests",
		 p->n);
	return -EINVAL;
}

static int plan_crashes(const struct ttft_opts *o, struct ttft_plan *p)
{
	double mean = o->crashes * o->s.prefills; /* an hour */
	struct kvs_rng r;
	double at = 0;
	size_t cap = 0;

	kvs_rng_init(&r, kvs_mix64(o->seed ^ 0x63726173));
	while (mean > 0) {
		at += -log(1 - kvs_rng_double(&r)) / mean * (double)HOUR /
		      o->scale;
		if (at > (double)p->span)
			break;
		if (p->n_crashes == cap) {
			cap = cap ? 2 * cap : 16;
			struct ttft_crash *v =
				realloc(p->crash, cap * sizeof(*v));

			if (!v)
				return -ENOMEM;
			p->crash = v;
		}
		p->crash[p->n_crashes++] = (struct ttft_crash){
			.at = (uint64_t)at,
			.prefill = (uint32_t)kvs_rng_below(&r, o->s.prefills),
		};
	}
	return 0;
}

static int read_requests(const struct ttft_opts *o, struct kvs_trace *ret,
			 char *err, size_t errlen)
{
	struct kvs_trace_shape shape = {
		.n = o->requests,
		.input = KVS_TRACE_CHAT_INPUT,
		.output = KVS_TRACE_CHAT_OUTPUT,
		.rate = KVS_TRACE_CHAT_RATE,
		.max_input = o->max_input,
	};
	int r;

	if (o->trace)
		return kvs_trace_read(o->trace, o->requests, o->max_input, ret,
				      err, errlen);
	if (!shape.n)
		shape.n = (size_t)(3600 * KVS_TRACE_CHAT_RATE);
	r = kvs_trace_generate(o->seed, &shape, ret);
	if (r)
		snprintf(err, errlen, "requests cannot be generated: %s",
			 strerror(-r));
	return r;
}

/* The line of request @i, for a message; 0: who knows. */
static uint64_t line_of(const char *path, size_t i)
{
	char *line = NULL;
	struct stat st;
	size_t cap = 0, seen = 0;
	uint64_t no = 0;
	FILE *f;

	/* a pipe has said it already */
	if (stat(path, &st) || !S_ISREG(st.st_mode))
		return 0;
	f = fopen(path, "re");
	while (f && seen <= i && getline(&line, &cap, f) >= 0) {
		no++;
		seen += line[strspn(line, " \t\r\v\f\n")] != '\0';
	}
	free(line);
	if (f)
		(void)fclose(f);
	return seen > i ? no : 0;
}

/* Times are ascending. */
static int check_span(const struct ttft_opts *o, const struct kvs_trace *t,
		      char *err, size_t errlen)
{
	uint64_t line, last = t->req[t->n - 1].at_ms;
	double most = (double)SPAN_MAX / KVS_NSEC_PER_MSEC * o->speed;
	size_t i = 0;

	if ((double)last <= most)
		return 0;
	if (!o->trace) {
		snprintf(err, errlen,
			 "--requests: the last of %zu arrives after more than "
			 "%u days at this --speed",
			 t->n, TTFT_SPAN_DAYS);
		return -EINVAL;
	}
	while ((double)t->req[i].at_ms <= most)
		i++;
	line = line_of(o->trace, i);
	snprintf(err, errlen,
		 "%s:%" PRIu64 ": timestamp: %" PRIu64
		 " is after more than %u days, at this --speed",
		 o->trace, line ? line : i + 1, t->req[i].at_ms,
		 TTFT_SPAN_DAYS);
	return -EINVAL;
}

static int plan_requests(const struct ttft_opts *o, const struct kvs_trace *t,
			 struct ttft_plan *p)
{
	uint64_t *free_at = calloc(o->s.prefills, sizeof(*free_at));
	struct kvs_rng r;

	p->v = calloc(t->n, sizeof(*p->v));
	if (!p->v || !free_at) {
		free(free_at);
		return -ENOMEM;
	}
	/* not the draws that generated the requests */
	kvs_rng_init(&r, kvs_mix64(o->seed ^ 0x61626f72));
	p->n = t->n;
	for (size_t i = 0; i < p->n; i++) {
		struct ttft_req *q = &p->v[i];

		plan_request(o, &t->req[i], &r, free_at, q);
		p->tokens += q->input;
		if (q->input > p->max_input)
			p->max_input = q->input;
	}
	p->mean_input = (double)p->tokens / (double)p->n;
	p->span = p->v[p->n - 1].at;
	free(free_at);
	if (kvs_serving_load_of(t, o->s.page_size, o->speed, o->trace,
				&p->load))
		return -ENOMEM;
	return plan_crashes(o, p);
}

int ttft_plan(const struct ttft_opts *o, struct ttft_plan *ret, char *err,
	      size_t errlen)
{
	struct kvs_trace t = { 0 };
	int r = read_requests(o, &t, err, errlen);

	*ret = (struct ttft_plan){ 0 };
	if (r)
		return r;
	r = check_span(o, &t, err, errlen);
	if (r) {
		kvs_trace_fini(&t);
		return r;
	}
	r = plan_requests(o, &t, ret);
	kvs_trace_fini(&t);
	if (r)
		snprintf(err, errlen, "no memory for the requests");
	else
		r = check_storm(o, ret, err, errlen);
	if (r)
		ttft_plan_free(ret);
	return r;
}

void ttft_plan_free(struct ttft_plan *p)
{
	free(p->v);
	free(p->crash);
	kvs_serving_load_fini(&p->load);
	*p = (struct ttft_plan){ 0 };
}

bool ttft_gives_up(const struct ttft_run *r, const struct ttft_req *q)
{
	return r->mode != TTFT_IDEAL && (q->storm || q->draw < r->abort);
}

/* All paged buffers laid together into @n, of the model's bytes or of
 * @token_bytes, in whole 64 bytes. */
static int fold(const struct kvs_layout *l, uint32_t n, uint64_t token_bytes,
		struct kvs_layout **ret)
{
	struct kvs_layout f = *l;
	uint64_t page = token_bytes * l->page_size, done = 0;
	int r;

	f.size = sizeof(f);
	f.n_buffers = n;
	f.buffers = calloc(n, sizeof(*f.buffers));
	if (!f.buffers)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t end = (i + 1) * page / n;

		f.buffers[i] = (struct kvs_layer_buffer){
			.kind = KVS_BUFFER_KV,
			.layer = (uint16_t)i,
			.item_len = (uint32_t)(end - done),
		};
		done = end;
	}
	r = kvs_layout_dup(&f, ret);
	free(f.buffers);
	return r;
}

/* State of a fixed size is left out: it grows with no prompt. */
static void only_paged(struct kvs_layout *l)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->n_buffers; i++)
		if (kvs_buffer_kind_is_paged(l->buffers[i].kind))
			l->buffers[n++] = l->buffers[i];
	l->n_buffers = n;
}

int ttft_layout(const struct ttft_opts *o, struct kvs_layout **ret, char *err,
		size_t errlen)
{
	uint64_t bytes = o->token_bytes ? o->token_bytes : o->s.token_bytes;
	struct kvs_layout *l;
	int r;

	r = kvs_preset_layout(o->model, NULL, &l, err, errlen);
	if (r)
		return r;
	l->aux_max = 0;
	if (!o->buffers && !o->token_bytes) {
		only_paged(l);
		*ret = l;
		return 0;
	}
	r = fold(l, o->buffers ? o->buffers : l->n_buffers, bytes, ret);
	free(l);
	if (r) {
		snprintf(err, errlen, "no memory for a layout");
		return r;
	}
	r = kvs_layout_check(*ret, err, errlen);
	if (r) {
		free(*ret);
		*ret = NULL;
	}
	return r;
}
