/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/layout.h"
#include "tools/trace.h"
#include "tools/trace_internal.h"

struct kvs_trace_file {
	const char *path;
	FILE *f;
	char *line;
	size_t cap;
	size_t len; /* of the line, without its end */
	uint64_t no; /* its number, from 1 */
	char *err;
	size_t errlen;
};

void kvs_trace_fini(struct kvs_trace *t)
{
	free(t->req);
	free(t->ids);
	memset(t, 0, sizeof(*t));
}

static int kvs_grow(void **v, size_t *cap, size_t need, size_t item)
{
	size_t to = *cap ? *cap : 64;
	void *p;

	if (need <= *cap)
		return 0;
	while (to < need)
		to *= 2;
	p = reallocarray(*v, to, item);
	if (!p)
		return -ENOMEM;
	*v = p;
	*cap = to;
	return 0;
}

int kvs_trace_add(struct kvs_trace *t, const struct kvs_trace_request *r,
		  uint32_t max_input)
{
	struct kvs_trace_request *to;

	if (kvs_grow((void **)&t->req, &t->cap, t->n + 1, sizeof(*t->req)))
		return -ENOMEM;
	to = &t->req[t->n++];
	*to = *r;
	if (max_input && r->input > max_input) {
		/* the blocks of the first max_input tokens, a part rounds up */
		to->n_ids = (uint32_t)(((uint64_t)r->n_ids * max_input +
					r->input - 1) /
				       r->input);
		to->input = max_input;
		t->n_ids = to->ids + to->n_ids;
		t->clamped++;
	}
	t->tokens += to->input;
	if (to->input > t->max_input)
		t->max_input = to->input;
	return 0;
}

int kvs_trace_add_id(struct kvs_trace *t, uint64_t id)
{
	if (kvs_grow((void **)&t->ids, &t->ids_cap, t->n_ids + 1,
		     sizeof(*t->ids)))
		return -ENOMEM;
	t->ids[t->n_ids++] = id;
	return 0;
}

/* "FILE:LINE: FIELD: VALUE TEXT"; a NULL value is left out */
static int kvs_trace_bad(struct kvs_trace_file *f, const char *field,
			 const json_t *value, const char *text)
{
	char *dump = NULL;

	if (value)
		dump = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII |
						 JSON_COMPACT);
	(void)snprintf(f->err, f->errlen, "%s:%llu: %s: %.48s%s%s%s", f->path,
		       (unsigned long long)f->no, field, dump ? dump : "",
		       dump && strlen(dump) > 48 ? "..." : "", dump ? " " : "",
		       text);
	free(dump);
	return -EINVAL;
}

static int kvs_trace_int(struct kvs_trace_file *f, const json_t *value,
			 const char *field, int64_t min, int64_t max,
			 uint64_t *ret)
{
	char text[64];
	json_int_t v;

	if (!value)
		return kvs_trace_bad(f, field, NULL, "missing");
	if (!json_is_integer(value))
		return kvs_trace_bad(f, field, value, "is not an integer");
	v = json_integer_value(value);
	if (v < min || v > max) {
		(void)snprintf(text, sizeof(text), "is not in %lld..%lld",
			       (long long)min, (long long)max);
		return kvs_trace_bad(f, field, value, text);
	}
	*ret = (uint64_t)v;
	return 0;
}

static int kvs_trace_ids(struct kvs_trace_file *f, const json_t *value,
			 struct kvs_trace *t, struct kvs_trace_request *req)
{
	char field[32];
	char text[64];
	size_t n;
	size_t i;
	int r;

	req->ids = t->n_ids;
	if (!value)
		return 0;
	if (!json_is_array(value))
		return kvs_trace_bad(f, "hash_ids", value, "is not an array");
	n = json_array_size(value);
	if (n > req->input) {
		(void)snprintf(text, sizeof(text), "%zu entries for %u tokens",
			       n, req->input);
		return kvs_trace_bad(f, "hash_ids", NULL, text);
	}
	for (i = 0; i < n; i++) {
		uint64_t id;

		(void)snprintf(field, sizeof(field), "hash_ids[%zu]", i);
		r = kvs_trace_int(f, json_array_get(value, i), field, 0,
				  INT64_MAX, &id);
		if (!r)
			r = kvs_trace_add_id(t, id);
		if (r)
			return r;
	}
	req->n_ids = (uint32_t)n;
	return 0;
}

static int kvs_trace_object(struct kvs_trace_file *f, const json_t *o,
			    uint32_t max_input, struct kvs_trace *t)
{
	struct kvs_trace_request req = { 0 };
	uint64_t input = 0;
	uint64_t output = 0;
	int r;

	if (!json_is_object(o))
		return kvs_trace_bad(f, "line", o, "is not a JSON object");
	r = kvs_trace_int(f, json_object_get(o, "timestamp"), "timestamp", 0,
			  KVS_TRACE_MS_MAX, &req.at_ms);
	if (r)
		return r;
	if (t->n && req.at_ms < t->req[t->n - 1].at_ms)
		return kvs_trace_bad(f, "timestamp",
				     json_object_get(o, "timestamp"),
				     "is before that of the request above");
	r = kvs_trace_int(f, json_object_get(o, "input_length"), "input_length",
			  1, KVS_TOKENS_MAX, &input);
	if (r)
		return r;
	r = kvs_trace_int(f, json_object_get(o, "output_length"),
			  "output_length", 0, KVS_TOKENS_MAX, &output);
	if (r)
		return r;
	req.input = (uint32_t)input;
	req.output = (uint32_t)output;
	r = kvs_trace_ids(f, json_object_get(o, "hash_ids"), t, &req);
	if (r)
		return r;
	return kvs_trace_add(t, &req, max_input);
}

static int kvs_trace_parse(struct kvs_trace_file *f, uint32_t max_input,
			   struct kvs_trace *t)
{
	json_error_t e;
	json_t *o;
	int r;

	o = json_loadb(f->line, f->len, JSON_REJECT_DUPLICATES, &e);
	if (!o) {
		(void)snprintf(f->err, f->errlen,
			       "%s:%llu: not JSON: %s (column %d)", f->path,
			       (unsigned long long)f->no, e.text, e.column);
		return -EINVAL;
	}
	r = kvs_trace_object(f, o, max_input, t);
	json_decref(o);
	return r;
}

/* 1 a line, 0 the end of the file, or -errno. */
static int kvs_trace_line(struct kvs_trace_file *f)
{
	int c;

	f->len = 0;
	errno = 0;
	while ((c = getc_unlocked(f->f)) != EOF && c != '\n') {
		if (f->len == KVS_TRACE_LINE_MAX) {
			(void)snprintf(f->err, f->errlen,
				       "%s:%llu: line: over %u bytes long",
				       f->path, (unsigned long long)f->no + 1,
				       KVS_TRACE_LINE_MAX);
			return -E2BIG;
		}
		if (kvs_grow((void **)&f->line, &f->cap, f->len + 1, 1))
			return -ENOMEM;
		f->line[f->len++] = (char)c;
	}
	if (c == EOF && ferror(f->f)) {
		int r = errno ? -errno : -EIO;

		(void)snprintf(f->err, f->errlen, "%s: cannot read: %s",
			       f->path, strerror(-r));
		return r;
	}
	if (c == EOF && !f->len)
		return 0;
	f->no++;
	return 1;
}

static bool kvs_trace_blank(const struct kvs_trace_file *f)
{
	size_t i;

	for (i = 0; i < f->len; i++)
		if (!strchr(" \t\r\v\f", f->line[i]) || !f->line[i])
			return false;
	return true;
}

static int kvs_trace_lines(struct kvs_trace_file *f, size_t max_requests,
			   uint32_t max_input, struct kvs_trace *t)
{
	int r = 0;

	while (!max_requests || t->n < max_requests) {
		r = kvs_trace_line(f);
		if (r <= 0)
			break;
		if (kvs_trace_blank(f))
			continue;
		if (t->n == KVS_TRACE_REQUESTS_MAX) {
			(void)snprintf(f->err, f->errlen,
				       "%s:%llu: line: over %u requests",
				       f->path, (unsigned long long)f->no,
				       KVS_TRACE_REQUESTS_MAX);
			return -E2BIG;
		}
		r = kvs_trace_parse(f, max_input, t);
		if (r)
			break;
	}
	if (r < 0)
		return r;
	if (t->n)
		return 0;
	(void)snprintf(f->err, f->errlen, "%s: no requests in it", f->path);
	return -ENODATA;
}

int kvs_trace_read(const char *path, size_t max_requests, uint32_t max_input,
		   struct kvs_trace *ret, char *err, size_t errlen)
{
	struct kvs_trace_file f = {
		.path = path,
		.err = err,
		.errlen = errlen,
	};
	struct kvs_trace t = { 0 };
	int r;

	f.f = fopen(path, "re");
	if (!f.f) {
		r = -errno;
		(void)snprintf(err, errlen, "%s: cannot open: %s", path,
			       strerror(-r));
		return r;
	}
	r = kvs_trace_lines(&f, max_requests, max_input, &t);
	if (r == -ENOMEM)
		(void)snprintf(err, errlen, "%s: out of memory", path);
	free(f.line);
	(void)fclose(f.f);
	if (r)
		kvs_trace_fini(&t);
	else
		*ret = t;
	return r;
}
