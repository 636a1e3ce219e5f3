/* SPDX-License-Identifier: Apache-2.0 */
/* What is printed and written of runs. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/table.h"
#include "tools/ttft/ttft_stat.h"

#define HEADS                                                           \
	"<mode <pool abort done aborted failed unfinished ttft_ms p50 " \
	"p90 p99 /ideal itl_ms wait_p99 held_dev_GB held_host_GB "      \
	"host_peak_GB"

static const char *const when_name[] = {
	[TTFT_UNIFORM] = "uniform",
	[TTFT_EARLY] = "early",
	[TTFT_LATE] = "late",
};

/* What a run's pool of host memory is; "none": it has none. */
static const char *pool_name(const struct ttft_run *r)
{
	if (!ttft_uses(r->mode, TTFT_HOST))
		return "none";
	if (r->given)
		return "given";
	return r->half ? "half" : "planned";
}

static void json_dist(FILE *out, const char *what,
		      const struct ttft_dist_stat *d)
{
	fprintf(out,
		", \"mean_%s_ms\": %.3f, \"median_%s_ms\": %.3f, "
		"\"std_%s_ms\": %.3f, \"p90_%s_ms\": %.3f, "
		"\"p95_%s_ms\": %.3f, \"p99_%s_ms\": %.3f",
		what, d->mean, what, d->median, what, d->std, what, d->p90,
		what, d->p95, what, d->p99);
}

static void json_drains(FILE *out, const struct ttft_totals *t)
{
	const char *sep = "";

	fprintf(out, ", \"drains\": {");
	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (int p = 0; p < KVS_PROOF_MAX; p++) {
			if (!t->drains[o][p])
				continue;
			fprintf(out, "%s\"%s/%s\": %" PRIu64, sep,
				kvs_drain_outcome_name[o], kvs_proof_name[p],
				t->drains[o][p]);
			sep = ", ";
		}
	fprintf(out, "}");
}

static void json_held(FILE *out, const struct ttft_totals *t)
{
	fprintf(out,
		", \"held_device_byte_s\": %.0f, \"held_host_byte_s\": %.0f, "
		"\"copy_held_device_byte_s\": %.0f, "
		"\"peak_held_device_bytes\": %" PRIu64
		", \"peak_held_host_bytes\": %" PRIu64
		", \"host_pool_high_water_bytes\": %" PRIu64
		", \"wire_bytes\": %" PRIu64 ", \"late_bytes\": %" PRIu64,
		t->held_device, t->held_host, t->copy_held_device,
		t->peak_held_device, t->peak_held_host, t->high_water,
		t->wire_bytes, t->late_bytes);
	json_drains(out, t);
}

static void json_run(FILE *out, const struct ttft_set *s,
		     const struct ttft_run *r)
{
	const struct ttft_opts *o = s->o;

	fprintf(out,
		"{\"bench\": \"ttft\", \"mode\": \"%s%s\", \"clock\": \"%s\", "
		"\"seed\": %" PRIu64 ", \"abort\": %.4f, \"acks\": \"%s\", "
		"\"abort_when\": \"%s\", \"storm\": %s, "
		"\"sender_crashes\": %zu, \"hold_timeout_s\": %.3f, "
		"\"host_pool\": \"%s\", \"host_pool_bytes\": %" PRIu64
		", \"device_pool_tokens\": %" PRIu64
		", \"model\": \"%s\", \"token_bytes\": %" PRIu64
		", \"speed\": %g, \"time_scale\": %g, \"layerwise\": %s, \"requests\": %zu, \"partial\": %s",
		ttft_mode_name[r->mode], r->half ? "-half" : "", s->clock,
		o->seed, r->abort, o->acks_text, when_name[o->when],
		o->storm ? "true" : "false", s->p->n_crashes,
		(double)o->s.hold_timeout / 1e9, pool_name(r), r->host_pool,
		o->s.device_tokens, o->model, o->s.token_bytes,
		o->speed / o->scale, o->scale, o->layerwise ? "true" : "false",
		s->p->n, atomic_load(&r->state) == 1 ? "false" : "true");
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

static void json_stat(FILE *out, const struct ttft_run *r,
		      const struct ttft_stat *t, const struct ttft_stat *ideal)
{
	fprintf(out,
		", \"completed\": %" PRIu64 ", \"aborted\": %" PRIu64
		", \"failed\": %" PRIu64 ", \"never_fit\": %" PRIu64
		", \"unfinished\": %" PRIu64 ", \"compared\": %" PRIu64
		", \"direct_received\": %" PRIu64,
		t->completed, t->aborted, t->failed,
		r->t.never_host + r->t.never_device, t->unfinished,
		t->survivors, t->direct);
	json_dist(out, "ttft", &t->ttft);
	json_dist(out, "tpot", &t->tpot);
	json_dist(out, "itl", &t->itl);
	json_dist(out, "e2e_latency", &t->e2e);
	json_dist(out, "admission_wait", &t->wait);
	fprintf(out,
		", \"duration\": %.3f, \"total_input_tokens\": %" PRIu64
		", \"total_output_tokens\": %" PRIu64
		", \"request_throughput\": %.4f, \"input_throughput\": %.1f, "
		"\"output_throughput\": %.1f, \"total_throughput\": %.1f",
		t->seconds, t->input_tokens, t->output_tokens,
		ratio((double)t->completed, t->seconds),
		ratio((double)t->input_tokens, t->seconds),
		ratio((double)t->output_tokens, t->seconds),
		ratio((double)(t->input_tokens + t->output_tokens),
		      t->seconds));
	json_held(out, &r->t);
	if (ideal)
		fprintf(out, ", \"p99_ttft_ratio_to_ideal\": %.4f",
			ratio(t->ttft.p99, ideal->ttft.p99));
}

static int print_one(const struct ttft_set *s, size_t k, FILE *out)
{
	unsigned char *common = ttft_common(s, k);
	size_t j = ttft_ideal_of(s, k);
	struct ttft_stat t, ideal;
	int r = common ? ttft_stat(s, k, common, &t) : -ENOMEM;

	if (!r && j < s->n)
		r = ttft_stat(s, j, common, &ideal);
	if (!r) {
		json_run(out, s, s->run[k]);
		json_stat(out, s->run[k], &t, j < s->n ? &ideal : NULL);
		if (!strcmp(s->clock, "real"))
			fprintf(out,
				", \"bytes_compared\": %" PRIu64
				", \"byte_mismatches\": %" PRIu64,
				s->run[k]->t.compared, s->run[k]->t.mismatches);
		fprintf(out, "}\n");
	}
	free(common);
	return r;
}

bool ttft_compares(const struct ttft_set *s, size_t k)
{
	unsigned char *common = ttft_common(s, k);
	bool any = common && memchr(common, 1, s->p->n);

	free(common);
	return any;
}

int ttft_print_json(const struct ttft_set *s, FILE *out)
{
	int r = 0;

	for (size_t k = 0; k < s->n && !r; k++)
		if (ttft_begun(s->run[k]))
			r = print_one(s, k, out);
	return !r && ferror(out) ? -EIO : r;
}

static void cell_bytes(struct kvs_table *t, double bytes)
{
	char buf[KVS_GB_BUF];

	kvs_table_cell(t, "%s", kvs_format_gb(bytes, buf));
}

/* Of nothing, no number. */
static void cell_ms(struct kvs_table *t, const struct ttft_dist_stat *d,
		    int digits, double ms)
{
	if (d->n)
		kvs_table_cell(t, "%.*f", digits, ms);
	else
		kvs_table_cell(t, "-");
}

static void row(struct kvs_table *tab, const struct ttft_run *r,
		const struct ttft_stat *t, const struct ttft_stat *ideal)
{
	kvs_table_cell(tab, "%s", ttft_mode_name[r->mode]);
	kvs_table_cell(tab, "%s", pool_name(r));
	kvs_table_cell(tab, "%.2f", r->abort);
	kvs_table_cell(tab, "%" PRIu64, t->completed);
	kvs_table_cell(tab, "%" PRIu64, t->aborted);
	kvs_table_cell(tab, "%" PRIu64, t->failed);
	kvs_table_cell(tab, "%" PRIu64, t->unfinished);
	cell_ms(tab, &t->ttft, 0, t->ttft.mean);
	cell_ms(tab, &t->ttft, 0, t->ttft.median);
	cell_ms(tab, &t->ttft, 0, t->ttft.p90);
	cell_ms(tab, &t->ttft, 0, t->ttft.p99);
	if (ideal && t->ttft.n)
		kvs_table_cell(tab, "%.3f",
			       ratio(t->ttft.p99, ideal->ttft.p99));
	else
		kvs_table_cell(tab, "-");
	cell_ms(tab, &t->itl, 1, t->itl.mean);
	cell_ms(tab, &t->wait, 0, t->wait.p99);
	cell_bytes(tab, (double)r->t.peak_held_device);
	cell_bytes(tab, (double)r->t.peak_held_host);
	if (ttft_uses(r->mode, TTFT_HOST))
		cell_bytes(tab, (double)r->t.high_water);
	else
		kvs_table_cell(tab, "-");
}

/* What really moved, on the real clock. */
static void bytes_row(struct kvs_table *tab, const struct ttft_run *r)
{
	cell_bytes(tab, (double)r->t.compared);
	kvs_table_cell(tab, "%" PRIu64, r->t.mismatches);
}

int ttft_print_table(const struct ttft_set *s, FILE *out)
{
	bool real = !strcmp(s->clock, "real");
	struct kvs_table *tab;
	struct ttft_stat t, ideal;
	int r;

	r = kvs_table_create(real ? HEADS " compared_GB mismatches" : HEADS,
			     &tab);
	for (size_t k = 0; k < s->n && !r; k++) {
		unsigned char *common;
		size_t j = ttft_ideal_of(s, k);

		if (!ttft_begun(s->run[k]))
			continue;
		common = ttft_common(s, k);
		r = common ? ttft_stat(s, k, common, &t) : -ENOMEM;
		if (!r && j < s->n)
			r = ttft_stat(s, j, common, &ideal);
		if (!r)
			row(tab, s->run[k], &t, j < s->n ? &ideal : NULL);
		if (!r && real)
			bytes_row(tab, s->run[k]);
		free(common);
	}
	if (!r)
		r = kvs_table_print(tab, out);
	kvs_table_destroy(tab);
	return r;
}
