/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every hold: what it waits for, what comes next and when. The two texts are
 * made here, so that programs and people read the same.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/units.h"
#include "tools/daemon_report.h"

#define KVS_HOLD_TEXT 256 /* bytes */

/* A text that grows, and is cut where it would not fit. */
struct kvs_hold_text {
	char s[KVS_HOLD_TEXT];
	size_t len;
};

static void kvs_hold_put(struct kvs_hold_text *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void kvs_hold_put(struct kvs_hold_text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->s + t->len, sizeof(t->s) - t->len, fmt, ap);
	va_end(ap);
	if (n > 0)
		t->len += (size_t)n;
	if (t->len >= sizeof(t->s))
		t->len = sizeof(t->s) - 1;
}

static void kvs_hold_ranks(struct kvs_hold_text *t,
			   const struct kvs_hold_info *h)
{
	uint32_t n = h->waits[KVS_PARTY_RANK], i;

	kvs_hold_put(t, n == 1 ? "rank " : "ranks ");
	for (i = 0; i < h->n_ranks; i++)
		kvs_hold_put(t, "%s%" PRIu32, i ? "," : "", h->ranks[i]);
	if (n > h->n_ranks)
		kvs_hold_put(t, " and %" PRIu32 " more", n - h->n_ranks);
}

static void kvs_hold_copy(struct kvs_hold_text *t,
			  const struct kvs_hold_info *h)
{
	kvs_hold_put(t, "the copy of engine %" PRIu32, h->engine);
	if (h->engine_pid)
		kvs_hold_put(t, ", pid %" PRId64, h->engine_pid);
	if (h->engine_exited)
		kvs_hold_put(t, " (has exited; its socket is open in another "
				"process)");
}

/* "ranks 0,3, 2 receives"; empty when nobody is awaited. */
static void kvs_hold_waits(struct kvs_hold_text *t,
			   const struct kvs_hold_info *h)
{
	unsigned int kind;

	for (kind = 0; kind < KVS_PARTY_MAX; kind++) {
		if (!h->waits[kind])
			continue;
		kvs_hold_put(t, "%s", t->len ? ", " : "");
		if (kind == KVS_PARTY_RANK)
			kvs_hold_ranks(t, h);
		else if (kind == KVS_PARTY_COPY)
			kvs_hold_copy(t, h);
		else
			kvs_hold_put(t, "%" PRIu32 " %s%s", h->waits[kind],
				     kvs_party_kind_name[kind],
				     h->waits[kind] == 1 ? "" : "s");
	}
}

static void kvs_hold_in(struct kvs_hold_text *t, const char *what, uint64_t ns)
{
	char text[KVS_UNITS_BUF];

	if (ns == KVS_TIME_NEVER)
		return;
	kvs_hold_put(t, "%s%s in %s", t->len ? "; " : "", what,
		     kvs_format_duration(ns, text));
}

static void kvs_hold_next(struct kvs_hold_text *t,
			  const struct kvs_hold_info *h, const char *waits)
{
	bool copy = h->waits[KVS_PARTY_COPY];

	/* What nobody can stop, or has been told to stop, is waited for. */
	if (copy || h->revoke_in == KVS_TIME_NEVER)
		kvs_hold_put(t, "waits for %s", waits);
	kvs_hold_in(t, copy ? "quarantined" : "revoked", h->revoke_in);
	kvs_hold_in(t, "asked again", h->ask_in);
}

static json_t *kvs_hold_json(const struct kvs_hold_info *h)
{
	struct kvs_hold_text waits = { .s = "" }, next = { .s = "" };
	json_t *ranks = json_array(), *o;
	uint32_t i;

	kvs_hold_waits(&waits, h);
	kvs_hold_next(&next, h, waits.s);
	for (i = 0; ranks && i < h->n_ranks; i++)
		json_array_append_new(ranks, json_integer(h->ranks[i]));
	o = json_pack(
		"{s:o, s:o, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, "
		"s:o, s:o, s:o, s:o, s:s, s:s}",
		"room", kvs_json_id(h->room), "generation",
		kvs_json_id(h->generation), "state", h->state, "cause",
		h->cause, "peer", h->peer, "node", h->node, "engine",
		kvs_json_u64(h->engine), "engine_pid",
		json_integer(h->engine_pid), "bytes", kvs_json_u64(h->bytes),
		"age_s", kvs_json_seconds(h->age), "ranks", ranks,
		"ranks_waiting", kvs_json_u64(h->waits[KVS_PARTY_RANK]),
		"ranks_mute", kvs_json_u64(h->ranks_mute), "receives",
		kvs_json_u64(h->waits[KVS_PARTY_RECEIVE]), "copies",
		kvs_json_u64(h->waits[KVS_PARTY_COPY]), "revoking",
		kvs_json_u64(h->revoking), "waits_for", waits.s, "next",
		next.s);
	if (o && h->revoke_in != KVS_TIME_NEVER)
		json_object_set_new(o, "revoke_in_s",
				    kvs_json_seconds(h->revoke_in));
	if (o && h->ask_in != KVS_TIME_NEVER)
		json_object_set_new(o, "ask_in_s", kvs_json_seconds(h->ask_in));
	return o;
}

void kvs_report_holds(struct kvs_report *r)
{
	struct kvs_hold_info *v = NULL;
	int n, i;

	if (!kvs_report_has_service(r))
		return;
	n = kvs_service_holds(r->d->svc, &v);
	if (n < 0) {
		kvs_report_fail(r, n, "cannot list the holds: %s",
				strerror(-n));
		return;
	}
	for (i = 0; i < n && !r->ret; i++)
		kvs_report_line(r, kvs_hold_json(&v[i]));
	free(v);
}
