/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/units.h"
#include "pipeline/settings.h"
#include "tools/plan.h"
#include "tools/table.h"

#define SEC(x) ((double)(x) / 1e9)

/* ---- for people ---------------------------------------------------------- */

/* Several at a time in one call of fprintf(). */
struct amounts {
	char v[6][KVS_GB_BUF];
	unsigned int n;
};

static const char *gb(struct amounts *a, double bytes)
{
	return kvs_format_gb(bytes, a->v[a->n++]);
}

static void print_load(const struct plan *p, FILE *f)
{
	const struct plan_opts *o = &p->o;

	fprintf(f,
		"load\n"
		"  %s, %" PRIu64 " bytes a token in %u layers, pages of %u "
		"tokens%s\n"
		"  %.3g requests/s, prompts of %.0f tokens (mean, in whole "
		"pages), context %u\n"
		"  %.0f %% are given up in their prefill, acknowledgements "
		"%s\n\n",
		o->model ? o->model : "geometry as given", o->s.token_bytes,
		o->layers, o->s.page_size,
		o->replicated ? ", the same for every rank" : "", o->rate,
		p->load.tokens, o->context, o->abort * 100,
		o->acked ? "come" : "are lost");
}

static void print_peak(const struct plan *p, FILE *f)
{
	const struct kvs_serving_size *z = &p->size;
	struct amounts a = { 0 };

	if (z->replays)
		fprintf(f,
			"  peak       %8s GB = what the trace reaches, mean "
			"of %u replays: its arrivals are\n"
			"              not independent, or it would be %s\n",
			gb(&a, z->peak), z->replays, gb(&a, z->independent));
	else
		fprintf(f,
			"  peak       %8s GB = what is passed once in %.0f s, "
			"about as likely as not:\n"
			"              mean %s, deviation %s; a byte stays "
			"%.1f s\n",
			gb(&a, z->peak), p->o.horizon,
			gb(&a, z->in_flight + z->held), gb(&a, z->sigma),
			z->stay);
}

static void print_pool(const struct plan *p, FILE *f)
{
	const struct plan_opts *o = &p->o;
	const struct kvs_serving_size *z = &p->size;
	double mean = p->load.tokens * (double)o->s.token_bytes;
	struct amounts a = { 0 };
	char pool[KVS_UNITS_BUF], hold[KVS_UNITS_BUF];
	double rate = o->rate / o->nodes;

	fprintf(f, "host pool of each of %u NUMA nodes\n", o->nodes);
	fprintf(f,
		"  in flight  %8s GB = rate x mean of (bytes x seconds)\n"
		"              seconds: wait %.2f + prefill %.2f + last chunk "
		"%.3f + claim %.3f + copy %.3f\n"
		"              (of the mean prompt; half the prefill for what "
		"is given up)\n",
		gb(&a, z->in_flight), z->wait, z->prefill, z->push, z->claim,
		z->copy);
	fprintf(f,
		"  held       %8s GB = rate %.3g/s x aborts %.2f x T_hold "
		"%s x %s GB\n",
		gb(&a, z->held), rate, o->abort,
		kvs_format_duration(o->acked ? 0 : o->s.hold_timeout, hold),
		gb(&a, mean));
	print_peak(p, f);
	a.n = 0;
	fprintf(f,
		"  longest    %8s GB = one request of %u tokens, as it lies "
		"in the pool\n"
		"  probes     %8s GB = admission.health_reserve\n"
		"  pool.size  %8s GB = larger of peak and longest, and "
		"probes: %s in huge pages\n",
		gb(&a, (double)p->context_bytes), o->context,
		gb(&a, (double)p->reserve), gb(&a, (double)p->pool),
		kvs_format_size(p->pool, pool));
	a.n = 0;
	fprintf(f,
		"  offload    %8s GB = (hicache %s GB + retraction %.2f x "
		"device pool %s GB) / nodes\n\n",
		gb(&a, (double)p->offload), gb(&a, (double)o->hicache),
		o->retraction,
		gb(&a, (double)(o->s.device_tokens * o->s.token_bytes)));
}

static void print_copies(const struct plan *p, FILE *f)
{
	const struct plan_opts *o = &p->o;

	fprintf(f, "what staging adds to TTFT, on an idle device\n");
	for (unsigned int i = 0; i < 3; i++) {
		struct amounts a = { 0 };

		fprintf(f,
			"  %-8s %8u tokens: %8.2f ms = %s GB%s / %s GB/s; "
			"layer 0 after %.2f ms\n",
			p->copy[i].name, p->copy[i].tokens, p->copy[i].whole_ms,
			gb(&a, (double)p->copy[i].bytes),
			o->replicated ? "" : " / ranks",
			gb(&a, (double)o->s.h2d_rate), p->copy[i].first_ms);
	}
	fprintf(f,
		"  and %.0f ms until the engine looks (half a step of %.0f "
		"ms)\n\n",
		p->size.claim * 1e3, p->step * 1e3);
}

static void print_hold(const struct plan *p, FILE *f)
{
	const struct plan_opts *o = &p->o;
	char a[KVS_UNITS_BUF], b[KVS_UNITS_BUF], c[KVS_UNITS_BUF];
	char d[KVS_UNITS_BUF];

	fprintf(f,
		"hold.timeout\n"
		"  must exceed %s = propagation %s + remaining %s + call %s "
		"(hold.check)\n",
		kvs_format_duration(p->hold_least, a),
		kvs_format_duration(o->propagation, b),
		kvs_format_duration(o->remaining, c),
		kvs_format_duration(o->call, d));
	fprintf(f,
		"  advised     %s = twice that, at least the 60 s that "
		"operators keep to; here %s\n\n",
		kvs_format_duration(p->hold_advised, a),
		kvs_format_duration(o->s.hold_timeout, b));
}

void plan_print(const struct plan *p, FILE *f)
{
	print_load(p, f);
	print_pool(p, f);
	print_hold(p, f);
	print_copies(p, f);
	fprintf(f,
		"in use\n"
		"  prefill %.0f %%, network into the node %.0f %%, way to the "
		"device %.0f %% of each rank,\n"
		"  device KV pool %.0f %% (requests/s x output x step %.0f ms "
		"x tokens)\n",
		p->prefill_use * 100, p->nic_use * 100, p->h2d_use * 100,
		p->device_use * 100, p->step * 1e3);
	for (unsigned int i = 0; i < p->n_warnings; i++)
		fprintf(f, "\nnote: %s\n", p->warning[i]);
}

/* ---- for programs -------------------------------------------------------- */

static json_t *json_copies(const struct plan *p)
{
	json_t *v = json_array();

	for (unsigned int i = 0; v && i < 3; i++)
		json_array_append_new(
			v, json_pack("{s:s, s:I, s:I, s:f, s:f}", "prompt",
				     p->copy[i].name, "tokens",
				     (json_int_t)p->copy[i].tokens, "bytes",
				     (json_int_t)p->copy[i].bytes, "copy_ms",
				     p->copy[i].whole_ms, "first_layer_ms",
				     p->copy[i].first_ms));
	return v;
}

static json_t *json_notes(const struct plan *p)
{
	json_t *v = json_array();

	for (unsigned int i = 0; v && i < p->n_warnings; i++)
		json_array_append_new(v, json_string(p->warning[i]));
	return v;
}

int plan_print_json(const struct plan *p, FILE *out)
{
	const struct plan_opts *o = &p->o;
	const struct kvs_serving_size *z = &p->size;
	json_t *j, *load, *use;
	char *text = NULL;
	int r = -ENOMEM;

	load = json_pack("{s:f, s:f, s:f, s:b, s:I}", "requests_per_second",
			 o->rate, "mean_tokens", p->load.tokens, "abort",
			 o->abort, "acknowledged", o->acked, "max_tokens",
			 (json_int_t)p->load.max_tokens);
	use = json_pack("{s:f, s:f, s:f, s:f}", "prefill", p->prefill_use,
			"network", p->nic_use, "h2d", p->h2d_use, "device",
			p->device_use);
	j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
		      "model", o->model ? o->model : "", "token_bytes",
		      (json_int_t)o->s.token_bytes, "nodes",
		      (json_int_t)o->nodes, "pool_bytes", (json_int_t)p->pool,
		      "offload_bytes", (json_int_t)p->offload,
		      "in_flight_bytes", (json_int_t)z->in_flight, "held_bytes",
		      (json_int_t)z->held, "sigma_bytes", (json_int_t)z->sigma,
		      "peak_bytes", (json_int_t)z->peak, "context_bytes",
		      (json_int_t)p->context_bytes, "health_reserve_bytes",
		      (json_int_t)p->reserve);
	if (j && load && use &&
	    !json_object_set_new(j, "hold_timeout_s",
				 json_real(SEC(o->s.hold_timeout))) &&
	    !json_object_set_new(j, "hold_advised_s",
				 json_real(SEC(p->hold_advised))) &&
	    !json_object_set_new(j, "hold_least_s",
				 json_real(SEC(p->hold_least))) &&
	    !json_object_set_new(j, "ttft_cost", json_copies(p)) &&
	    !json_object_set_new(j, "claim_ms", json_real(z->claim * 1e3)) &&
	    !json_object_set_new(j, "replays", json_integer(z->replays)) &&
	    !json_object_set_new(j, "independent_peak_bytes",
				 json_real(z->independent)) &&
	    !json_object_set(j, "load", load) &&
	    !json_object_set(j, "use", use) &&
	    !json_object_set_new(j, "notes", json_notes(p)))
		text = json_dumps(j, JSON_COMPACT | JSON_PRESERVE_ORDER);
	if (text)
		r = fprintf(out, "%s\n", text) < 0 ? -EIO : 0;
	free(text);
	json_decref(load);
	json_decref(use);
	json_decref(j);
	return r;
}

/* ---- for kvstaged -------------------------------------------------------- */

/* What is planned, in the order of the settings. */
static const unsigned int planned[] = {
	KVS_SETTING_OF_pool_size,
	KVS_SETTING_OF_offload_size,
	KVS_SETTING_OF_health_reserve,
	KVS_SETTING_OF_transfer_call_timeout,
	KVS_SETTING_OF_hold_timeout,
	KVS_SETTING_OF_hold_assume_propagation,
	KVS_SETTING_OF_hold_assume_remaining,
};

static void ini(FILE *f, const struct kvs_settings *s)
{
	const char *section = "";
	char buf[KVS_STRING_MAX];

	for (size_t i = 0; i < KVS_ARRAY_SIZE(planned); i++) {
		const struct kvs_setting_info *info =
			kvs_setting_info(planned[i]);

		if (strcmp(section, info->section))
			fprintf(f, "\n[%s]\n", info->section);
		section = info->section;
		fprintf(f, "%s = %s\n", info->key,
			kvs_setting_value(s, planned[i], buf, sizeof(buf)));
	}
}

static void write_planned(const struct plan *p, const struct kvs_settings *s,
			  FILE *f)
{
	fprintf(f,
		"# By kvstage-plan, for %.3g requests/s of %.0f tokens, %.0f "
		"%% of them given up,\n"
		"# on %u NUMA nodes. Whatever is not here is at its default, "
		"see kvstaged.conf(5).\n",
		p->o.rate, p->load.tokens, p->o.abort * 100, p->o.nodes);
	ini(f, s);
}

/* What is read from it is what was planned. */
static int reads_back(const struct kvs_settings *s, const char *path, char *err,
		      size_t errlen)
{
	char a[KVS_STRING_MAX], b[KVS_STRING_MAX];
	struct kvs_settings again;
	int r;

	kvs_settings_init(&again);
	r = kvs_settings_load(&again, path, err, errlen);
	if (!r)
		r = kvs_settings_check(&again, err, errlen);
	for (size_t i = 0; !r && i < KVS_ARRAY_SIZE(planned); i++) {
		kvs_setting_value(s, planned[i], a, sizeof(a));
		kvs_setting_value(&again, planned[i], b, sizeof(b));
		if (!strcmp(a, b))
			continue;
		snprintf(err, errlen, "%s: does not read back", path);
		r = -EIO;
	}
	return r;
}

/* May @path be written? With the mode that it then has. */
static int replaceable(const char *path, bool force, mode_t *ret_mode,
		       char *err, size_t errlen)
{
	struct stat st;

	*ret_mode = 0;
	if (lstat(path, &st))
		return 0; /* what else is wrong, open() says */
	if (force && S_ISREG(st.st_mode)) {
		*ret_mode = st.st_mode & 0777;
		return 0;
	}
	snprintf(err, errlen, "--ini %s: %s", path,
		 force ? "not a regular file" : "exists; --force replaces it");
	return -EEXIST;
}

int plan_write_ini(const struct plan *p, const char *path, bool force,
		   char *err, size_t errlen)
{
	const struct plan_opts *o = &p->o;
	struct kvs_settings s;
	char name[PATH_MAX];
	mode_t mode;
	FILE *f;
	int fd, r;

	kvs_settings_init(&s);
	s.pool_size = p->pool;
	s.offload_size = p->offload;
	s.hold_timeout = o->s.hold_timeout;
	s.hold_assume_propagation = o->propagation;
	s.hold_assume_remaining = o->remaining;
	s.transfer_call_timeout = o->call;
	s.health_reserve = p->reserve;
	r = kvs_settings_check(&s, err, errlen);
	if (!r)
		r = replaceable(path, force, &mode, err, errlen);
	if (r)
		return r;
	r = snprintf(name, sizeof(name), "%s.new", path);
	fd = -1;
	if (r < 0 || (size_t)r >= sizeof(name))
		errno = ENAMETOOLONG;
	else
		fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0) {
		r = -errno;
		snprintf(err, errlen, "%s.new: %s", path, strerror(-r));
		return r;
	}
	f = fdopen(fd, "w");
	if (!f) {
		r = -errno;
		close(fd);
	} else {
		write_planned(p, &s, f);
		r = ferror(f) || (mode && fchmod(fd, mode)) ? -EIO : 0;
		if (fclose(f) && !r)
			r = -errno;
	}
	if (r) {
		snprintf(err, errlen, "%s: %s", name, strerror(-r));
	} else {
		r = reads_back(&s, name, err, errlen);
		/* what has come there meanwhile stays */
		if (!r && renameat2(AT_FDCWD, name, AT_FDCWD, path,
				    force ? 0 : RENAME_NOREPLACE)) {
			r = -errno;
			snprintf(err, errlen, "%s: %s", path, strerror(-r));
		}
	}
	if (r)
		unlink(name);
	return r;
}
