/* SPDX-License-Identifier: Apache-2.0 */
/* One page with everything in it: it opens without a network. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_report.h"
#include "tools/table.h"

static const char head[] =
	"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n"
	"<meta charset=\"utf-8\">\n"
	"<title>kvstage: time to first token</title>\n"
	"<style>\n"
	"body { font: 15px/1.5 'DejaVu Sans', Verdana, sans-serif; "
	"color: #222; max-width: 72em; margin: 2em auto; padding: 0 1em; }\n"
	"h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2em; }\n"
	"table { border-collapse: collapse; font-size: 0.87em; }\n"
	"th, td { padding: 0.3em 0.7em; border-bottom: 1px solid #ddd; "
	"text-align: right; white-space: nowrap; }\n"
	"th:first-child, td:first-child { text-align: left; }\n"
	"th { vertical-align: bottom; white-space: normal; }\n"
	"img { max-width: 100%; height: auto; }\n"
	"div.wide { overflow-x: auto; }\n"
	"</style>\n</head>\n<body>\n";

static const char what[] =
	"<p>The time to first token of a request is the time from its arrival "
	"at the router to the end of the first decode step it is in: waiting "
	"for memory at the decode node, waiting for a prefill instance, the "
	"computing of its prompt, what is left of the transfer by then, "
	"staged the wait for device pages and the copy to them, and that "
	"step.</p>\n"
	"<p><b>direct</b> is a model of an engine that receives straight into "
	"device pages: they are reserved before prefill begins, and those of "
	"a request that was given up are held until its acknowledgement, or "
	"the hold timeout. <b>staged</b> receives into host memory. "
	"<b>auto</b> receives directly while little of the device is in use. "
	"<b>ideal</b> is staged when nobody gives up. All see the same "
	"arrivals and the same requests that are given up, and times are "
	"compared over the same ones that are not.</p>\n";

/* Strings of the folder's are not trusted. */
static void escaped(FILE *f, const char *s)
{
	for (; *s; s++) {
		switch (*s) {
		case '<':
			fputs("&lt;", f);
			break;
		case '>':
			fputs("&gt;", f);
			break;
		case '&':
			fputs("&amp;", f);
			break;
		case '"':
			fputs("&quot;", f);
			break;
		default:
			fputc(*s, f);
		}
	}
}

static double number(const json_t *v, const char *key)
{
	return json_number_value(json_object_get(v, key));
}

static void text(FILE *f, const json_t *v, const char *key)
{
	escaped(f, json_string_value(json_object_get(v, key)));
}

static void settings(FILE *f, const json_t *v)
{
	fprintf(f, "<p>Model ");
	text(f, v, "model");
	fprintf(f,
		" (%.0f bytes a token), device pool of %.0f tokens, %.0f "
		"requests at %g times their speed, acknowledgements of "
		"aborts: ",
		number(v, "token_bytes"), number(v, "device_pool_tokens"),
		number(v, "requests"), number(v, "speed"));
	text(f, v, "acks");
	fprintf(f, ", given up ");
	text(f, v, "abort_when");
	fprintf(f, "%s, hold timeout %g s, ",
		strcmp(json_string_value(json_object_get(v, "abort_when")),
		       "uniform") != 0
			? " in their prefill"
			: "ly over their prefill",
		number(v, "hold_timeout_s"));
	text(f, v, "clock");
	fprintf(f, " clock, seed %.0f.</p>\n", number(v, "seed"));
}

static void cell_gb(FILE *f, double bytes)
{
	char buf[KVS_GB_BUF];

	fprintf(f, "<td>%s</td>", kvs_format_gb(bytes, buf));
}

static bool on_real_clock(const struct report *r)
{
	return !strcmp(
		json_string_value(json_object_get(r->line[0].json, "clock")),
		"real");
}

static void row(FILE *f, const struct report_line *l, bool real)
{
	const json_t *v = l->json;
	const json_t *ratio = json_object_get(v, "p99_ttft_ratio_to_ideal");
	/* one that stages nothing has none */
	bool pool = number(v, "host_pool_bytes") > 0;

	fprintf(f, "<tr><td>%s</td><td>%.4g %%</td>",
		report_style(l->style)->title, l->abort * 100);
	if (pool)
		cell_gb(f, number(v, "host_pool_bytes"));
	else
		fprintf(f, "<td>none</td>");
	fprintf(f, "<td>%.0f</td><td>%.0f</td><td>%.0f</td>",
		number(v, "completed"), number(v, "aborted"),
		number(v, "failed") + number(v, "unfinished"));
	if (number(v, "compared") > 0)
		fprintf(f, "<td>%.3f</td><td>%.3f</td><td>%.3f</td>",
			number(v, "median_ttft_ms") / 1e3,
			number(v, "p90_ttft_ms") / 1e3,
			number(v, "p99_ttft_ms") / 1e3);
	else
		fprintf(f, "<td></td><td></td><td></td>");
	if (json_is_number(ratio) && number(v, "compared") > 0)
		fprintf(f, "<td>%.3f</td>", json_number_value(ratio));
	else
		fprintf(f, "<td></td>");
	fprintf(f, "<td>%.3f</td>", number(v, "p99_admission_wait_ms") / 1e3);
	cell_gb(f, number(v, "peak_held_device_bytes"));
	cell_gb(f, number(v, "peak_held_host_bytes"));
	if (pool)
		cell_gb(f, number(v, "host_pool_high_water_bytes"));
	else
		fprintf(f, "<td></td>");
	if (real) {
		cell_gb(f, number(v, "bytes_compared"));
		fprintf(f, "<td>%.0f</td>", number(v, "byte_mismatches"));
	}
	fprintf(f, "</tr>\n");
}

static void table(FILE *f, const struct report *r)
{
	bool real = on_real_clock(r);

	fprintf(f,
		"<div class=\"wide\"><table>\n<tr><th>mode</th>"
		"<th>share to give up</th><th>host pool, GB</th>"
		"<th>completed</th><th>given up</th><th>failed</th>"
		"<th>TTFT p50, s</th>"
		"<th>p90, s</th><th>p99, s</th><th>p99 / ideal</th>"
		"<th>wait for memory p99, s</th>"
		"<th>most held on device, GB</th>"
		"<th>most held in host, GB</th>"
		"<th>most of the host pool used, GB</th>%s</tr>\n",
		real ? "<th>bytes compared, GB</th><th>bytes that differ</th>"
		     : "");
	for (size_t i = 0; i < r->n; i++)
		row(f, &r->line[i], real);
	fprintf(f, "</table></div>\n");
}

static void base64(FILE *to, FILE *from)
{
	static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "abcdefghijklmnopqrstuvwxyz0123456789+/";
	unsigned char b[3];
	size_t n;

	while ((n = fread(b, 1, 3, from)) > 0) {
		unsigned int v = (unsigned int)b[0] << 16;

		v |= n > 1 ? (unsigned int)b[1] << 8 : 0;
		v |= n > 2 ? b[2] : 0;
		fputc(digit[v >> 18], to);
		fputc(digit[v >> 12 & 63], to);
		fputc(n > 1 ? digit[v >> 6 & 63] : '=', to);
		fputc(n > 2 ? digit[v & 63] : '=', to);
	}
}

static int picture(FILE *f, const struct report *r, unsigned int i)
{
	char path[4096];
	FILE *png;

	snprintf(path, sizeof(path), "%s/%s.png", r->dir, report_plot(i));
	png = fopen(path, "re");
	if (!png)
		return -errno;
	fprintf(f,
		"<h2>%s</h2>\n<p><img alt=\"%s\" src=\"data:image/png;"
		"base64,",
		report_plot_title(i), report_plot_title(i));
	base64(f, png);
	fprintf(f, "\"></p>\n");
	(void)fclose(png);
	return 0;
}

int report_html(const struct report *r)
{
	char path[4096];
	int ret = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/report.html", r->dir);
	f = fopen(path, "we");
	if (!f) {
		ret = -errno;
		fprintf(stderr, "report: %s: %s\n", path, strerror(-ret));
		return ret;
	}
	fputs(head, f);
	fprintf(f, "<h1>Time to first token under hold pressure</h1>\n");
	settings(f, r->line[0].json);
	fputs(what, f);
	table(f, r);
	if (r->n_aborts > 1)
		fprintf(f,
			"<p>What follows is of the runs in which %.0f %% of "
			"the requests are given up, but for the last "
			"plot.</p>\n",
			r->abort * 100);
	for (unsigned int i = 0; i < REPORT_PLOTS && !ret; i++) {
		if (report_has_plot(r, i))
			ret = picture(f, r, i);
		else if (i < REPORT_PLOTS - 1)
			fprintf(f,
				"<h2>%s</h2>\n<p>There is nothing to draw: "
				"%s.</p>\n",
				report_plot_title(i),
				i ? "the runs were over within half a second"
				  : "no request was completed in each of the "
				    "runs");
	}
	if (r->n_aborts == 1)
		fprintf(f, "<p>There is one share of requests that are given "
			   "up, so there is no plot against it; run with "
			   "<code>--abort 0,0.1,0.2,0.3</code> for one.</p>\n");
	fprintf(f, "</body>\n</html>\n");
	if (ferror(f) && !ret)
		ret = -EIO;
	if (fclose(f) && !ret)
		ret = -errno;
	if (ret)
		fprintf(stderr, "report: %s: %s\n", path, strerror(-ret));
	return ret;
}
