/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: report of kvstage-bench ttft
 *
 * From a folder that --out wrote: up to four plots by gnuplot, and one HTML page
 * that has them in it and needs nothing else. What the folder says is checked
 * before anything is drawn: it may have been edited, or be half of one.
 */
#ifndef KVS_TOOLS_BENCH_REPORT_H
#define KVS_TOOLS_BENCH_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define REPORT_LINES_MAX 256u
#define REPORT_PLOTS 4u

/* One line of results.jsonl. */
struct report_line {
	json_t *json;
	unsigned int style; /* of its mode, see report_style() */
	double abort;
	/* of its tables, see report_tables() */
	size_t n_requests; /* completed */
	size_t n_compared; /* the times to the first token are of these */
	double ttft_min, ttft_max; /* s */
	size_t n_samples;
	double held_device, held_host; /* bytes, at most */
	double queue; /* requests, at most */
};

struct report {
	const char *dir;
	struct report_line line[REPORT_LINES_MAX];
	size_t n;
	double abort; /* the largest; what is drawn over time is of it */
	unsigned int n_aborts; /* different ones */
};

struct report_style {
	const char *mode;
	const char *title; /* in legends */
	const char *line; /* how gnuplot draws it */
	int point; /* and points, where there are some */
};

/* NULL past the last. */
const struct report_style *report_style(unsigned int i);
const char *report_plot(unsigned int i); /* file name without ".png" */
const char *report_plot_title(unsigned int i);
/* Is there something to draw? The abort plot needs several fractions. */
bool report_has_plot(const struct report *r, unsigned int i);

/* Name of a table of the line. */
void report_file(const struct report_line *l, const char *what, char *buf,
		 size_t len);

/* bench_report_data.c: look through both tables. 0, or -errno and said. */
int report_tables(const struct report *r, struct report_line *l);
/* bench_report_plot.c: 0; -ENOENT no gnuplot here; other: it failed. */
int report_plots(const struct report *r);
/* bench_report_html.c */
int report_html(const struct report *r);

#endif /* KVS_TOOLS_BENCH_REPORT_H */
