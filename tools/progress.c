/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "lib/units.h"
#include "tools/progress.h"

#define KVS_EVERY_TTY (200 * KVS_NSEC_PER_MSEC)
#define KVS_EVERY_PLAIN (5 * KVS_NSEC_PER_SEC)
#define KVS_RATE_WINDOW (2 * KVS_NSEC_PER_SEC)
#define KVS_PROGRESS_LINE 160

void kvs_progress_init(struct kvs_progress *p, const char *what,
		       enum kvs_progress_unit unit, uint64_t total,
		       const struct kvs_clock *clk, FILE *out)
{
	int fd;

	*p = (struct kvs_progress){
		.what = what,
		.unit = unit,
		.total = total,
		.clk = clk ? clk : &kvs_clock_real,
		.out = out ? out : stderr,
	};
	fd = fileno(p->out);
	p->tty = fd >= 0 && isatty(fd);
	p->from = kvs_clock_now(p->clk);
	p->shown = p->from;
	p->rate_at = p->from;
}

void kvs_progress_clear(struct kvs_progress *p)
{
	if (!p->width)
		return;
	(void)fprintf(p->out, "\r%*s\r", p->width, "");
	(void)fflush(p->out);
	p->width = 0;
}

/* A finished line, over what is there. */
static void kvs_progress_line(struct kvs_progress *p, const char *line,
			      bool last)
{
	int n;

	if (!p->tty) {
		(void)fprintf(p->out, "%s\n", line);
	} else {
		n = fprintf(p->out, "\r%-*s%s", p->width, line,
			    last ? "\n" : "");
		/* the return at the front takes no column */
		p->width = last || n < 1 ? 0 : n - 1;
	}
	(void)fflush(p->out);
}

static void kvs_progress_amount(const struct kvs_progress *p, uint64_t v,
				char *buf, size_t len)
{
	if (p->unit == KVS_PROGRESS_BYTES)
		(void)snprintf(buf, len, "%.2f", (double)v / 1e9);
	else
		(void)snprintf(buf, len, "%llu", (unsigned long long)v);
}

static void kvs_progress_rate(const struct kvs_progress *p, double rate,
			      char *buf, size_t len)
{
	if (p->unit == KVS_PROGRESS_BYTES)
		(void)snprintf(buf, len, "%.2f GB/s", rate / 1e9);
	else
		(void)snprintf(buf, len, "%.1f/s", rate);
}

static double kvs_per_second(uint64_t n, uint64_t ns)
{
	return ns ? (double)n * (double)KVS_NSEC_PER_SEC / (double)ns : 0;
}

/* The rate of the last whole window: steady enough to read, soon right. */
static void kvs_progress_measure(struct kvs_progress *p, uint64_t now,
				 uint64_t done)
{
	if (done < p->rate_done)
		p->rate_done = done;
	if (now - p->rate_at < KVS_RATE_WINDOW && p->rate > 0)
		return;
	if (now == p->rate_at)
		return;
	p->rate = kvs_per_second(done - p->rate_done, now - p->rate_at);
	p->rate_at = now;
	p->rate_done = done;
}

/* "replay: 45 % 9.00/20.00 GB, 2.50 GB/s, 4.40 s left" */
static void kvs_progress_text(const struct kvs_progress *p, uint64_t done,
			      char *line, size_t len)
{
	const char *gb = p->unit == KVS_PROGRESS_BYTES ? " GB" : "";
	char so_far[32];
	char total[32];
	char rate[32];
	char left[KVS_UNITS_BUF];
	double ns;
	int n;

	if (p->total && done > p->total)
		done = p->total;
	kvs_progress_amount(p, done, so_far, sizeof(so_far));
	kvs_progress_rate(p, p->rate, rate, sizeof(rate));
	if (!p->total) {
		(void)snprintf(line, len, "%s: %s%s, %s", p->what, so_far, gb,
			       rate);
		return;
	}
	kvs_progress_amount(p, p->total, total, sizeof(total));
	n = snprintf(line, len, "%s: %u %% %s/%s%s, %s", p->what,
		     (unsigned int)((double)done * 100 / (double)p->total),
		     so_far, total, gb, rate);
	if (n < 0 || (size_t)n >= len)
		return;
	ns = p->rate > 0 ? (double)(p->total - done) / p->rate * 1e9 : 0;
	if (p->rate > 0 && ns < 1e18)
		(void)snprintf(line + n, len - (size_t)n, ", %s left",
			       kvs_format_duration((uint64_t)ns, left));
}

void kvs_progress_update(struct kvs_progress *p, uint64_t done)
{
	uint64_t every = p->tty ? KVS_EVERY_TTY : KVS_EVERY_PLAIN;
	uint64_t now = kvs_clock_now(p->clk);
	char line[KVS_PROGRESS_LINE];

	if (now - p->shown < every)
		return;
	p->shown = now;
	kvs_progress_measure(p, now, done);
	kvs_progress_text(p, done, line, sizeof(line));
	kvs_progress_line(p, line, false);
}

void kvs_progress_end(struct kvs_progress *p, uint64_t done)
{
	uint64_t ns = kvs_clock_now(p->clk) - p->from;
	char line[KVS_PROGRESS_LINE];
	char took[KVS_UNITS_BUF];
	char amount[32];
	char rate[32];

	kvs_progress_amount(p, done, amount, sizeof(amount));
	kvs_progress_rate(p, kvs_per_second(done, ns), rate, sizeof(rate));
	(void)snprintf(line, sizeof(line), "%s: %s%s in %s, %s", p->what,
		       amount, p->unit == KVS_PROGRESS_BYTES ? " GB" : "",
		       kvs_format_duration(ns, took), rate);
	kvs_progress_line(p, line, true);
}
