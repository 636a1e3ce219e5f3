/* SPDX-License-Identifier: Apache-2.0 */
/* kvstage-bench report: command line, and what the folder holds. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/bench_report.h"

#define EXIT_USAGE 2
#define EXIT_SKIP 77
#define LINE_MAX_BYTES 65536

static const struct report_style styles[] = {
	/* the first are drawn under the others, and wider: they may coincide */
	{ "ideal", "ideal (staged, nobody gives up)",
	  "lw 8 lc rgb '#c8c8c8' dt 1", 5 },
	{ "direct", "direct", "lw 2 lc rgb '#c0392b' dt 1", 7 },
	{ "staged", "staged", "lw 4 lc rgb '#1f5fa8' dt 1", 9 },
	{ "staged-half", "staged, half the pool", "lw 2 lc rgb '#1f5fa8' dt 3",
	  8 },
	{ "auto", "auto", "lw 2 lc rgb '#2e8b57' dt 1", 11 },
	{ "auto-half", "auto, half the pool", "lw 2 lc rgb '#2e8b57' dt 3",
	  10 },
};

static const struct {
	const char *name;
	const char *title;
} plots[REPORT_PLOTS] = {
	{ "ttft_cdf", "Time to first token: share of requests" },
	{ "held", "Memory held for requests that were given up" },
	{ "queue", "Requests that wait for memory" },
	{ "ttft_abort", "p99 of the time to first token against the share of "
			"requests that are given up" },
};

const struct report_style *report_style(unsigned int i)
{
	return i < sizeof(styles) / sizeof(styles[0]) ? &styles[i] : NULL;
}

const char *report_plot(unsigned int i)
{
	return plots[i].name;
}

const char *report_plot_title(unsigned int i)
{
	return plots[i].title;
}

static double compared(const struct report_line *l)
{
	return json_number_value(json_object_get(l->json, "compared"));
}

bool report_has_plot(const struct report *r, unsigned int i)
{
	for (size_t k = 0; k < r->n; k++) {
		const struct report_line *l = &r->line[k];

		if (i == REPORT_PLOTS - 1) {
			if (r->n_aborts > 1 && compared(l) > 0)
				return true;
		} else if (l->abort == r->abort) {
			if (i ? l->n_samples : l->n_compared)
				return true;
		}
	}
	return false;
}

void report_file(const struct report_line *l, const char *what, char *buf,
		 size_t len)
{
	snprintf(buf, len, "%s-%s-%.4f.tsv", what, styles[l->style].mode,
		 l->abort);
}

/* What is used of a line. */
static const char *line_wrong(struct report_line *l)
{
	static const char *const numbers[] = {
		"completed",
		"aborted",
		"failed",
		"unfinished",
		"compared",
		"median_ttft_ms",
		"p90_ttft_ms",
		"p99_ttft_ms",
		"mean_ttft_ms",
		"host_pool_bytes",
		"held_device_byte_s",
		"held_host_byte_s",
		"hold_timeout_s",
		"device_pool_tokens",
		"seed",
		"token_bytes",
		"peak_held_host_bytes",
		"requests",
		"speed",
		"peak_held_device_bytes",
		"p99_admission_wait_ms",
		"host_pool_high_water_bytes",
	};
	static const char *const texts[] = {
		"mode", "clock", "acks", "model", "host_pool", "abort_when"
	};
	const json_t *a = json_object_get(l->json, "abort");
	unsigned int i;

	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!json_is_number(json_object_get(l->json, numbers[i])))
			return numbers[i];
	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!json_is_string(json_object_get(l->json, texts[i])))
			return texts[i];
	l->abort = json_is_number(a) ? json_number_value(a) : -1;
	if (!(l->abort >= 0 && l->abort <= 1))
		return "abort";
	for (i = 0; report_style(i); i++) {
		l->style = i;
		if (!strcmp(styles[i].mode, json_string_value(json_object_get(
						    l->json, "mode"))))
			return NULL;
	}
	return "mode";
}

static bool known_abort(const struct report *r, double a)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->line[i].abort == a)
			return true;
	return false;
}

static int take_line(struct report *r, const char *text, unsigned int nr)
{
	struct report_line l = { 0 };
	const char *wrong = "not an object";
	json_error_t e;

	if (r->n == REPORT_LINES_MAX) {
		fprintf(stderr, "report: more than %u lines\n",
			REPORT_LINES_MAX);
		return -E2BIG;
	}
	l.json = json_loads(text, JSON_REJECT_DUPLICATES, &e);
	if (json_is_object(l.json))
		wrong = line_wrong(&l);
	if (wrong) {
		fprintf(stderr, "report: %s/results.jsonl:%u: %s\n", r->dir, nr,
			l.json ? wrong : e.text);
		json_decref(l.json);
		return -EINVAL;
	}
	if (!known_abort(r, l.abort))
		r->n_aborts++;
	if (l.abort > r->abort)
		r->abort = l.abort;
	r->line[r->n++] = l;
	return 0;
}

static int load(struct report *r)
{
	char path[4096], *text = malloc(LINE_MAX_BYTES);
	unsigned int nr = 0;
	int ret = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/results.jsonl", r->dir);
	f = text ? fopen(path, "re") : NULL;
	if (!f) {
		ret = text ? -errno : -ENOMEM;
		fprintf(stderr, "report: %s: %s\n", path, strerror(-ret));
		free(text);
		return ret;
	}
	while (!ret && fgets(text, LINE_MAX_BYTES, f))
		ret = take_line(r, text, ++nr);
	if (!ret && !r->n) {
		fprintf(stderr, "report: %s: nothing in it\n", path);
		ret = -ENODATA;
	}
	(void)fclose(f);
	free(text);
	for (size_t i = 0; i < r->n && !ret; i++)
		ret = report_tables(r, &r->line[i]);
	return ret;
}

static int report(struct report *r)
{
	int ret;

	if (load(r))
		return EXIT_FAILURE;
	ret = report_plots(r);
	if (ret == -ENOENT) {
		fprintf(stderr, "report: no gnuplot here: install it "
				"(Debian: gnuplot-nox)\n");
		return EXIT_SKIP;
	}
	if (!ret)
		ret = report_html(r);
	if (!ret) {
		for (unsigned int i = 0; i < REPORT_PLOTS; i++)
			if (report_has_plot(r, i))
				printf("%s/%s.png\n", r->dir, report_plot(i));
		printf("%s/report.html\n", r->dir);
	}
	return ret ? EXIT_FAILURE : EXIT_SUCCESS;
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
	struct report *r = st->input;

	switch (key) {
	case ARGP_KEY_ARG:
		if (r->dir)
			argp_usage(st);
		r->dir = arg;
		return 0;
	case ARGP_KEY_END:
		if (!r->dir)
			argp_usage(st);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int kvs_bench_report(int argc, char **argv)
{
	const struct argp argp = {
		.parser = parse,
		.args_doc = "DIR",
		.doc = "Draw what kvstage-bench ttft --out DIR wrote: PNG "
		       "files by gnuplot, and report.html with all of them "
		       "in it.",
	};
	struct report *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return EXIT_FAILURE;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, r);
	ret = report(r);
	for (size_t i = 0; i < r->n; i++)
		json_decref(r->line[i].json);
	free(r);
	return ret;
}
