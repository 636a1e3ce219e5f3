/* SPDX-License-Identifier: Apache-2.0 */
/* The plots: a program for gnuplot, which runs in the folder. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench_report.h"

#define KEY                                                                 \
	"set key above center horizontal Left reverse spacing 1.3 width 2 " \
	"maxrows 2 noenhanced\n"

static void page(FILE *g, unsigned int plot, unsigned int height)
{
	fprintf(g,
		"reset\n"
		"set terminal pngcairo size 1100,%u font 'DejaVu Sans,12' "
		"background rgb 'white' rounded\n"
		"set output '%s.png'\n"
		"set title '%s' font 'DejaVu Sans,14'\n"
		"set grid lc rgb '#dddddd' lt 1\n"
		"set border 3\n"
		"set tics nomirror out\n" KEY,
		height, report_plot(plot), report_plot_title(plot));
}

enum table { REQUESTS, SAMPLES };

/* Is the line drawn, and something of it there? */
static bool drawn(const struct report *r, const struct report_line *l,
		  enum table t)
{
	return l->abort == r->abort &&
	       (t == REQUESTS ? l->n_compared : l->n_samples);
}

/* Each mode's curve; @using of its table. In the order of the styles. */
static void curves(FILE *g, const struct report *r, enum table t,
		   const char *using, const char *with)
{
	const char *sep = "plot ";
	char name[128];

	for (unsigned int s = 0; report_style(s); s++) {
		for (size_t i = 0; i < r->n; i++) {
			const struct report_line *l = &r->line[i];

			if (l->style != s || !drawn(r, l, t))
				continue;
			report_file(l, t == REQUESTS ? "requests" : "samples",
				    name, sizeof(name));
			fprintf(g, "%s'%s' using %s %s %s title '%s'", sep,
				name, using, with, report_style(s)->line,
				report_style(s)->title);
			sep = ", \\\n  ";
		}
	}
	fprintf(g, "\n");
}

/* A range that is as good as none is for gnuplot to complain of, and each
 * smoothed curve by itself may have none. */
static void from_zero(FILE *g, double most)
{
	fprintf(g, "set yrange [0:%s]\n", most > 0 ? "*" : "1");
}

/* Of a logarithmic axis. */
static void around(FILE *g, char axis, double min, double max)
{
	fprintf(g, "set %crange [%.6g:%.6g]\n", axis,
		min > 0 ? min / 1.2 : 0.001, max > 0 ? max * 1.2 : 1);
}

static void cdf(FILE *g, const struct report *r)
{
	double min = 0, max = 0;
	bool any = false;

	for (size_t i = 0; i < r->n; i++) {
		const struct report_line *l = &r->line[i];

		if (!drawn(r, l, REQUESTS))
			continue;
		min = any && min < l->ttft_min ? min : l->ttft_min;
		max = any && max > l->ttft_max ? max : l->ttft_max;
		any = true;
	}
	page(g, 0, 560);
	fprintf(g, "set logscale x\n"
		   "set xlabel 'seconds from arrival to the first token "
		   "(logarithmic)'\n"
		   "set ylabel 'share of requests'\n"
		   "set ytics ('0 %%%%' 0, '20 %%%%' 0.2, '40 %%%%' 0.4, "
		   "'60 %%%%' 0.6, '80 %%%%' 0.8, '100 %%%%' 1)\n"
		   "set format x '%%g'\n"
		   "set yrange [0:1]\n");
	around(g, 'x', min, max);
	curves(g, r, REQUESTS, "3:6", "smooth cnorm with lines");
}

static void held(FILE *g, const struct report *r)
{
	double device = 0, host = 0;

	for (size_t i = 0; i < r->n; i++) {
		const struct report_line *l = &r->line[i];

		if (!drawn(r, l, SAMPLES))
			continue;
		device = l->held_device > device ? l->held_device : device;
		host = l->held_host > host ? l->held_host : host;
	}
	page(g, 1, 900);
	fprintf(g,
		"set multiplot layout 2,1 title '%s' font "
		"'DejaVu Sans,14'\n"
		"set xlabel 'minutes from the first arrival'\n"
		"set autoscale xfixmax\n"
		"set title 'on the device' font 'DejaVu Sans,12'\n"
		"set ylabel 'GB held'\n",
		report_plot_title(1));
	from_zero(g, device);
	curves(g, r, SAMPLES, "($1/60):($2/1e9)", "with lines");
	fprintf(g, "set title 'in host memory' font 'DejaVu Sans,12'\n"
		   "unset key\n");
	from_zero(g, host);
	curves(g, r, SAMPLES, "($1/60):($3/1e9)", "with lines");
	fprintf(g, "unset multiplot\n");
}

static void queue(FILE *g, const struct report *r)
{
	double most = 0;

	for (size_t i = 0; i < r->n; i++)
		if (drawn(r, &r->line[i], SAMPLES) && r->line[i].queue > most)
			most = r->line[i].queue;
	page(g, 2, 560);
	fprintf(g, "set xlabel 'minutes from the first arrival'\n"
		   "set autoscale xfixmax\n"
		   "set ylabel 'requests'\n");
	from_zero(g, most);
	curves(g, r, SAMPLES, "($1/60):6", "with lines");
}

static int by_abort(const void *a, const void *b)
{
	const struct report_line *const *x = a, *const *y = b;

	return ((*x)->abort > (*y)->abort) - ((*x)->abort < (*y)->abort);
}

static double of(const struct report_line *l, const char *key)
{
	return json_number_value(json_object_get(l->json, key));
}

/* Of nothing compared there is no p99. */
static bool has_point(const struct report_line *l, unsigned int style)
{
	return l->style == style && of(l, "compared") > 0;
}

static bool has_points(const struct report *r, unsigned int style)
{
	for (size_t i = 0; i < r->n; i++)
		if (has_point(&r->line[i], style))
			return true;
	return false;
}

static void abort_points(FILE *g, const struct report *r, unsigned int style,
			 double *min, double *max)
{
	const struct report_line *v[REPORT_LINES_MAX];
	size_t n = 0;

	for (size_t i = 0; i < r->n; i++)
		if (has_point(&r->line[i], style))
			v[n++] = &r->line[i];
	qsort(v, n, sizeof(v[0]), by_abort);
	fprintf(g, "$m%u << EOD\n", style);
	for (size_t i = 0; i < n; i++) {
		double p99 = of(v[i], "p99_ttft_ms") / 1000;

		*min = *max > 0 && *min < p99 ? *min : p99;
		*max = *max > p99 ? *max : p99;
		fprintf(g, "%.4f %.6f\n", v[i]->abort * 100, p99);
	}
	fprintf(g, "EOD\n");
}

static void against_abort(FILE *g, const struct report *r)
{
	const char *sep = "plot ";
	double min = 0, max = 0;

	for (unsigned int s = 0; report_style(s); s++)
		if (has_points(r, s))
			abort_points(g, r, s, &min, &max);
	page(g, 3, 560);
	fprintf(g, "set xlabel 'share of requests that are given up'\n"
		   "set ylabel 'p99 in seconds (logarithmic)'\n"
		   "set format x '%%g %%%%'\n"
		   "set logscale y\n"
		   "set format y '%%g'\n");
	if (max <= min * 1.01)
		around(g, 'y', min, max);
	for (unsigned int s = 0; report_style(s); s++) {
		if (!has_points(r, s))
			continue;
		fprintf(g,
			"%s$m%u using 1:2 with linespoints ps 1.4 pt %d "
			"%s title '%s'",
			sep, s, report_style(s)->point, report_style(s)->line,
			report_style(s)->title);
		sep = ", \\\n  ";
	}
	fprintf(g, "\n");
}

static void program(FILE *g, const struct report *r)
{
	static void (*const draw[REPORT_PLOTS])(
		FILE * g, const struct report *r) = { cdf, held, queue,
						      against_abort };

	for (unsigned int i = 0; i < REPORT_PLOTS; i++)
		if (report_has_plot(r, i))
			draw[i](g, r);
}

int report_plots(const struct report *r)
{
	int fd[2], status;
	pid_t pid;
	FILE *g;

	if (pipe(fd))
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid) {
		if (chdir(r->dir) || dup2(fd[0], STDIN_FILENO) < 0)
			_exit(126);
		close(fd[0]);
		close(fd[1]);
		execlp("gnuplot", "gnuplot", (char *)NULL);
		_exit(errno == ENOENT ? 127 : 126);
	}
	close(fd[0]);
	/* a gnuplot that does not read ends by itself */
	(void)signal(SIGPIPE, SIG_IGN);
	g = fdopen(fd[1], "w");
	if (g) {
		program(g, r);
		(void)fclose(g);
	} else {
		close(fd[1]);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return -ENOENT;
	if (!g || !WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "report: gnuplot failed\n");
		return -EIO;
	}
	return 0;
}
