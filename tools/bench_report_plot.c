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

/* In legends of what is drawn over time, the mode's file. */
static void file_name(const struct report_line *l, const char *what, char *buf,
		      size_t len)
{
	snprintf(buf, len, "%s-%s-%.4f.tsv", what, report_style(l->style)->mode,
		 l->abort);
}

static bool has_file(const struct report *r, const char *name)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", r->dir, name);
	return !access(path, R_OK);
}

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

/* Each mode's curve, those of half pools only if wanted; @using of its file.
 * In the order of the styles. */
static void curves(FILE *g, const struct report *r, const char *what,
		   const char *using, const char *with, bool half)
{
	const char *sep = "plot ";
	char name[128];

	for (unsigned int s = 0; report_style(s); s++) {
		for (size_t i = 0; i < r->n; i++) {
			const struct report_line *l = &r->line[i];

			if (l->style != s || l->abort != r->abort ||
			    (!half && strstr(report_style(s)->mode, "-half")))
				continue;
			file_name(l, what, name, sizeof(name));
			if (!has_file(r, name))
				continue;
			fprintf(g, "%s'%s' using %s %s %s title '%s'", sep,
				name, using, with, report_style(s)->line,
				report_style(s)->title);
			sep = ", \\\n  ";
		}
	}
	fprintf(g, "\n");
}

static void cdf(FILE *g, const struct report *r)
{
	page(g, 0, 560);
	fprintf(g, "set logscale x\n"
		   "set xlabel 'seconds from arrival to the first token "
		   "(logarithmic)'\n"
		   "set ylabel 'share of requests'\n"
		   "set ytics ('0 %%%%' 0, '20 %%%%' 0.2, '40 %%%%' 0.4, "
		   "'60 %%%%' 0.6, '80 %%%%' 0.8, '100 %%%%' 1)\n"
		   "set format x '%%g'\n"
		   "set yrange [0:1]\n");
	curves(g, r, "requests", "3:6", "smooth cnorm with lines", true);
}

static void held(FILE *g, const struct report *r)
{
	page(g, 1, 900);
	fprintf(g,
		"set multiplot layout 2,1 title '%s' font "
		"'DejaVu Sans,14'\n"
		"set xlabel 'minutes from the first arrival'\n"
		"set autoscale xfixmax\n"
		"set yrange [0:*]\n"
		"set title 'on the device' font 'DejaVu Sans,12'\n"
		"set ylabel 'GB held'\n",
		report_plot_title(1));
	curves(g, r, "samples", "($1/60):($2/1e9)", "with lines", false);
	fprintf(g, "set title 'in host memory' font 'DejaVu Sans,12'\n"
		   "unset key\n");
	curves(g, r, "samples", "($1/60):($3/1e9)", "with lines", false);
	fprintf(g, "unset multiplot\n");
}

static void queue(FILE *g, const struct report *r)
{
	page(g, 2, 560);
	fprintf(g, "set xlabel 'minutes from the first arrival'\n"
		   "set autoscale xfixmax\n"
		   "set ylabel 'requests'\n"
		   "set yrange [0:*]\n");
	curves(g, r, "samples", "($1/60):6", "with lines", true);
}

static int by_abort(const void *a, const void *b)
{
	const struct report_line *const *x = a, *const *y = b;

	return ((*x)->abort > (*y)->abort) - ((*x)->abort < (*y)->abort);
}

static void abort_points(FILE *g, const struct report *r, unsigned int style)
{
	const struct report_line *v[REPORT_LINES_MAX];
	size_t n = 0;

	for (size_t i = 0; i < r->n; i++)
		if (r->line[i].style == style)
			v[n++] = &r->line[i];
	qsort(v, n, sizeof(v[0]), by_abort);
	fprintf(g, "$m%u << EOD\n", style);
	for (size_t i = 0; i < n; i++)
		fprintf(g, "%.4f %.6f\n", v[i]->abort * 100,
			json_number_value(
				json_object_get(v[i]->json, "p99_ttft_ms")) /
				1000);
	fprintf(g, "EOD\n");
}

static bool has_style(const struct report *r, unsigned int style)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->line[i].style == style)
			return true;
	return false;
}

static void against_abort(FILE *g, const struct report *r)
{
	const char *sep = "plot ";

	for (unsigned int s = 0; report_style(s); s++)
		if (has_style(r, s))
			abort_points(g, r, s);
	page(g, 3, 560);
	fprintf(g, "set xlabel 'share of requests that are given up'\n"
		   "set ylabel 'p99 in seconds (logarithmic)'\n"
		   "set format x '%%g %%%%'\n"
		   "set logscale y\n"
		   "set format y '%%g'\n");
	for (unsigned int s = 0; report_style(s); s++) {
		if (!has_style(r, s))
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
	cdf(g, r);
	held(g, r);
	queue(g, r);
	if (report_has_plot(r, 3))
		against_abort(g, r);
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
