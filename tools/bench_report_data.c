/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of a run: whether they are there, whole, and what can be drawn of
 * them. gnuplot would leave out what it cannot read, and say nothing.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_report.h"

#define COLUMNS_MAX 7u

/* Takes a row. */
typedef void (*take_fn)(struct report_line *l, const double *v);

static void take_request(struct report_line *l, const double *v)
{
	l->n_requests++;
	if (!(v[5] > 0))
		return; /* not compared */
	if (!l->n_compared++)
		l->ttft_min = v[2];
	if (v[2] < l->ttft_min)
		l->ttft_min = v[2];
	if (v[2] > l->ttft_max)
		l->ttft_max = v[2];
}

static void more(double *most, double v)
{
	if (v > *most)
		*most = v;
}

static void take_sample(struct report_line *l, const double *v)
{
	l->n_samples++;
	more(&l->held_device, v[1]);
	more(&l->held_host, v[2]);
	more(&l->queue, v[5]);
}

static bool row(const char *text, unsigned int n, double *v)
{
	char *end;

	for (unsigned int i = 0; i < n; i++) {
		v[i] = strtod(text, &end);
		if (end == text || !isfinite(v[i]) || v[i] < 0)
			return false;
		text = end;
	}
	return !text[strspn(text, " \t\n")];
}

static int read_table(const struct report *r, struct report_line *l,
		      const char *what, unsigned int columns, take_fn take)
{
	char path[4096], name[128], *text = NULL;
	double v[COLUMNS_MAX];
	unsigned long nr = 0;
	size_t cap = 0;
	int ret = 0;
	FILE *f;

	report_file(l, what, name, sizeof(name));
	snprintf(path, sizeof(path), "%s/%s", r->dir, name);
	f = fopen(path, "re");
	if (!f) {
		ret = -errno;
		fprintf(stderr, "report: %s: %s\n", path, strerror(-ret));
		return ret;
	}
	while (!ret && getline(&text, &cap, f) >= 0) {
		nr++;
		if (*text == '#')
			continue;
		if (row(text, columns, v)) {
			take(l, v);
			continue;
		}
		fprintf(stderr, "report: %s:%lu: not %u numbers\n", path, nr,
			columns);
		ret = -EINVAL;
	}
	if (!ret && ferror(f)) {
		ret = -EIO;
		fprintf(stderr, "report: %s: %s\n", path, strerror(-ret));
	}
	free(text);
	(void)fclose(f);
	return ret;
}

int report_tables(const struct report *r, struct report_line *l)
{
	double done = json_number_value(json_object_get(l->json, "completed"));
	char name[128];
	int ret;

	ret = read_table(r, l, "requests", 6, take_request);
	if (!ret)
		ret = read_table(r, l, "samples", 7, take_sample);
	if (ret || (double)l->n_requests == done)
		return ret;
	report_file(l, "requests", name, sizeof(name));
	fprintf(stderr,
		"report: %s/%s: has %zu requests, and results.jsonl says %.0f "
		"were completed\n",
		r->dir, name, l->n_requests, done);
	return -EINVAL;
}
