/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the page is valid Prometheus text in every state of the daemon (a
 * strict parser of our own reads it); every series is there at 0 before
 * anything happened (dynamo#8483), without NaN or infinity
 * (llm-d-kv-cache#143); each counter of a snapshot moves exactly one series by
 * exactly its value; seconds are exact; the states of a pool add up to its
 * size on the page as they do in the snapshot.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/rng.h"
#include "pipeline/metrics.h"

#define SERIES_MAX 4096
#define FAMILIES_MAX 128

struct series {
	char *id; /* name{labels} as printed */
	double value;
	char *text; /* value as printed */
};

struct page {
	char *text;
	struct series series[SERIES_MAX];
	unsigned int n;
	char *families[FAMILIES_MAX];
	unsigned int n_families;
	/* family that is being read */
	const char *name;
	char type[16];
	unsigned int samples;
	double last_bucket;
	bool inf_seen, sum_seen, count_seen;
};

static const char *skip_name(const char *p, bool colons)
{
	if (!isalpha((unsigned char)*p) && *p != '_')
		fail_msg("not a name: %s", p);
	while (isalnum((unsigned char)*p) || *p == '_' || (colons && *p == ':'))
		p++;
	return p;
}

/* {a="b",c="d"}: no blanks, no trailing comma, known escapes only. */
static const char *skip_labels(const char *p)
{
	if (*p != '{')
		return p;
	do {
		p = skip_name(p + 1, false);
		assert_memory_equal(p, "=\"", 2);
		for (p += 2; *p != '"'; p++) {
			assert_true((unsigned char)*p >= 0x20);
			if (*p == '\\') {
				p++;
				assert_non_null(memchr("\\\"n", *p, 3));
			}
		}
		p++;
	} while (*p == ',');
	assert_int_equal(*p, '}');
	return p + 1;
}

static void end_family(struct page *pg)
{
	if (!pg->name)
		return;
	if (!pg->samples)
		fail_msg("%s has no samples", pg->name);
	if (!strcmp(pg->type, "histogram"))
		assert_true(pg->inf_seen && pg->sum_seen && pg->count_seen);
	pg->name = NULL;
}

/* "HELP name text": opens a family, which no other line may open again. */
static void read_help(struct page *pg, char *line)
{
	char *sp = strchr(line, ' ');
	unsigned int i;

	end_family(pg);
	assert_non_null(sp);
	*sp = '\0';
	assert_int_equal(*skip_name(line, true), 0);
	assert_true(strlen(sp + 1) > 20);
	assert_null(strchr(sp + 1, '\\'));
	for (i = 0; i < pg->n_families; i++)
		assert_string_not_equal(pg->families[i], line);
	assert_true(pg->n_families < FAMILIES_MAX);
	pg->families[pg->n_families++] = line;
	pg->name = line;
	pg->type[0] = '\0';
	pg->samples = 0;
	pg->last_bucket = 0;
	pg->inf_seen = pg->sum_seen = pg->count_seen = false;
}

static void read_type(struct page *pg, char *line)
{
	char *sp = strchr(line, ' ');
	size_t n;

	assert_non_null(sp);
	*sp = '\0';
	assert_non_null(pg->name);
	assert_string_equal(line, pg->name);
	assert_int_equal(pg->type[0], 0);
	assert_int_equal(pg->samples, 0);
	snprintf(pg->type, sizeof(pg->type), "%s", sp + 1);
	n = strlen(line);
	if (!strcmp(pg->type, "counter"))
		assert_string_equal(line + n - 6, "_total");
	else
		assert_true(!strcmp(pg->type, "gauge") ||
			    !strcmp(pg->type, "histogram"));
}

static void read_histogram(struct page *pg, const char *id, double v)
{
	const char *suffix = id + strlen(pg->name);

	if (!strncmp(suffix, "_bucket{le=\"", 12)) {
		assert_false(pg->sum_seen);
		assert_false(pg->inf_seen);
		assert_true(v >= pg->last_bucket);
		pg->last_bucket = v;
		pg->inf_seen = !strcmp(suffix, "_bucket{le=\"+Inf\"}");
	} else if (!strcmp(suffix, "_sum")) {
		assert_true(pg->inf_seen);
		pg->sum_seen = true;
	} else {
		assert_string_equal(suffix, "_count");
		assert_true(pg->sum_seen);
		assert_true(v == pg->last_bucket);
		pg->count_seen = true;
	}
}

static void read_sample(struct page *pg, char *line)
{
	char *end, *value = (char *)skip_labels(skip_name(line, true));
	struct series *s;
	unsigned int i;
	double v;

	assert_non_null(pg->name);
	assert_true(pg->type[0]);
	assert_int_equal(*value, ' ');
	*value++ = '\0';
	/* digits only: strtod() would take nan, inf, hex and blanks */
	assert_int_equal(value[strspn(value, "0123456789.")], 0);
	assert_true(isdigit((unsigned char)*value));
	v = strtod(value, &end);
	assert_int_equal(*end, 0);
	assert_int_equal(strncmp(line, pg->name, strlen(pg->name)), 0);
	if (!strcmp(pg->type, "histogram"))
		read_histogram(pg, line, v);
	else
		assert_true(strchr("{", line[strlen(pg->name)]) != NULL);
	for (i = 0; i < pg->n; i++)
		if (!strcmp(pg->series[i].id, line))
			fail_msg("%s stands twice", line);
	assert_true(pg->n < SERIES_MAX);
	s = &pg->series[pg->n++];
	s->id = line;
	s->value = v;
	s->text = value;
	pg->samples++;
}

static struct page *read_page(const struct kvs_snapshot *s)
{
	struct page *pg = calloc(1, sizeof(*pg));
	char *line, *nl;
	size_t len;

	assert_non_null(pg);
	assert_int_equal(kvs_metrics_text(s, &pg->text, &len), 0);
	assert_int_equal(strlen(pg->text), len);
	assert_true(len && pg->text[len - 1] == '\n');
	for (line = pg->text; *line; line = nl + 1) {
		nl = strchr(line, '\n');
		assert_non_null(nl);
		*nl = '\0';
		if (!strncmp(line, "# HELP ", 7))
			read_help(pg, line + 7);
		else if (!strncmp(line, "# TYPE ", 7))
			read_type(pg, line + 7);
		else
			read_sample(pg, line);
	}
	end_family(pg);
	return pg;
}

static void free_page(struct page *pg)
{
	free(pg->text);
	free(pg);
}

static const struct series *find(const struct page *pg, const char *id)
{
	unsigned int i;

	for (i = 0; i < pg->n; i++)
		if (!strcmp(pg->series[i].id, id))
			return &pg->series[i];
	return NULL;
}

static double value(const struct page *pg, const char *id)
{
	const struct series *s = find(pg, id);

	if (!s)
		fail_msg("no series %s", id);
	return s->value;
}

/* Two nodes, receive and offload pools, nothing done yet. */
static struct kvs_snapshot *fresh(void)
{
	struct kvs_snapshot *s = calloc(1, sizeof(*s));
	unsigned int w, p;

	assert_non_null(s);
	s->tcp_engine = "tcp/sock";
	s->n_workers = 2;
	for (w = 0; w < s->n_workers; w++) {
		struct kvs_worker_snapshot *ws = &s->workers[w];

		ws->index = w;
		ws->n_pools = 2;
		for (p = 0; p < 2; p++) {
			ws->pools[p].name = p ? "offload" : "receive";
			ws->pools[p].node = (int)w;
			ws->pools[p].page_size = 2 << 20;
			ws->pools[p].bound = 1;
			ws->pools[p].account.configured = 1000;
			ws->pools[p].account.bytes[KVS_EXTENT_FREE] = 1000;
		}
		kvs_hist_init(&ws->stats.drain_seconds);
		kvs_hist_init(&ws->stats.admit_wait);
		kvs_hist_init(&ws->stats.transfer);
		kvs_hist_init(&ws->stats.claim);
		kvs_hist_init(&ws->stats.commit);
	}
	return s;
}

/* What is documented, spelled out, so that no rename goes unnoticed. */
static void documented_series(void **state)
{
	static const char *const zero[] = {
		"kvstage_pool_bytes{node=\"0\",pool=\"receive\","
		"state=\"held\"}",
		"kvstage_pool_bytes{node=\"1\",pool=\"offload\","
		"state=\"retracted\"}",
		"kvstage_drain_total{outcome=\"drained\","
		"proof=\"receive_reaped\"}",
		"kvstage_drain_total{outcome=\"quarantined\","
		"proof=\"cannot_revoke\"}",
		"kvstage_drain_seconds_count",
		"kvstage_drain_seconds_sum",
		"kvstage_drain_seconds_bucket{le=\"30\"}",
		"kvstage_held_bytes{reason=\"engine_abort\",node=\"0\"}",
		"kvstage_held_bytes{reason=\"internal\",node=\"1\"}",
		"kvstage_ack_ignored_total{reason=\"stale\"}",
		"kvstage_quarantined_bytes{node=\"0\",pool=\"receive\"}",
		"kvstage_quarantined_bytes{node=\"1\",pool=\"offload\"}",
		"kvstage_acks_impossible_total{reason=\"no_capability\"}",
		"kvstage_acks_impossible_total{reason=\"lost\"}",
		"kvstage_messages_ignored_total{type=\"refuse\"}",
		"kvstage_late_bytes_total",
		"kvstage_room_failures_total{cause=\"peer_lost\"}",
		"kvstage_admit_total{result=\"nofit\"}",
		"kvstage_protocol_errors_total{reason=\"magic\"}",
		"kvstage_rooms{state=\"waiting\"}",
		"kvstage_rooms{state=\"active\"}",
		"kvstage_rooms{state=\"held\"}",
		"kvstage_transfer_seconds_count",
		"kvstage_abort_propagation_seconds_count",
		"kvstage_abort_remaining_seconds_count",
		"kvstage_call_seconds_count",
		"kvstage_admit_wait_seconds_count",
		"kvstage_received_bytes_total",
		"kvstage_connections",
		"kvstage_connections_refused_total",
		"kvstage_sessions",
		"kvstage_engines",
		"kvstage_ready",
	};
	struct kvs_snapshot *s = fresh();
	struct page *pg = read_page(s);
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(zero); i++)
		if (value(pg, zero[i]) != 0)
			fail_msg("%s is not 0", zero[i]);
	assert_true(value(pg, "kvstage_build_info{version=\"" KVS_VERSION
			      "\",tcp_engine=\"tcp/sock\"}") == 1);
	assert_true(value(pg, "kvstage_pool_page_bytes{node=\"0\","
			      "pool=\"receive\"}") == 2 << 20);
	assert_true(value(pg, "kvstage_pool_bound{node=\"1\","
			      "pool=\"receive\"}") == 1);
	assert_true(value(pg, "kvstage_pool_bytes{node=\"0\",pool=\"receive\","
			      "state=\"free\"}") == 1000);
	free_page(pg);
	free(s);
}

/* Whole enums: one series for each enumerator, each with its own value. */
static void every_enumerator(void **state)
{
	struct kvs_snapshot *s = fresh();
	struct page *pg;
	char id[256];
	unsigned int i, o;

	(void)state;
	for (i = 0; i < KVS_CAUSE_MAX; i++) {
		s->workers[0].stats.failures[i] = 100 + i;
		s->workers[1].stats.failures[i] = 1000;
		s->workers[1].held_bytes[i] = 200 + i;
	}
	for (i = 0; i < KVS_ADMIT_MAX; i++) {
		s->admits[i] = 300 + i;
		s->workers[0].stats.admits[i] = 1000;
		s->workers[1].stats.admits[i] = 10000;
	}
	for (i = 0; i < KVS_PROTO_MAX; i++) {
		s->protocol_errors[i] = 400 + i;
		s->workers[1].stats.protocol_errors[i] = 1000;
	}
	for (i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		s->workers[1].stats.drains.ack_ignored[i] = 500 + i;
	for (o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (i = 0; i < KVS_PROOF_MAX; i++)
			s->workers[o & 1].stats.drains.total[o][i] =
				600 + 100 * o + i;
	pg = read_page(s);
#define CHECK(want, ...)                                         \
	do {                                                     \
		snprintf(id, sizeof(id), __VA_ARGS__);           \
		if (value(pg, id) != (want))                     \
			fail_msg("%s is %f", id, value(pg, id)); \
	} while (0)
	for (i = 0; i < KVS_CAUSE_MAX; i++) {
		CHECK(1100 + i, "kvstage_room_failures_total{cause=\"%s\"}",
		      kvs_cause_name[i]);
		CHECK(200 + i, "kvstage_held_bytes{reason=\"%s\",node=\"1\"}",
		      kvs_cause_name[i]);
		CHECK(0, "kvstage_held_bytes{reason=\"%s\",node=\"0\"}",
		      kvs_cause_name[i]);
	}
	for (i = 0; i < KVS_ADMIT_MAX; i++)
		CHECK(11300 + i, "kvstage_admit_total{result=\"%s\"}",
		      kvs_admit_result_name[i]);
	for (i = 0; i < KVS_PROTO_MAX; i++)
		CHECK(1400 + i, "kvstage_protocol_errors_total{reason=\"%s\"}",
		      kvs_proto_error_name[i]);
	for (i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		CHECK(500 + i, "kvstage_ack_ignored_total{reason=\"%s\"}",
		      kvs_ack_ignored_name[i]);
	for (o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (i = 0; i < KVS_PROOF_MAX; i++)
			CHECK(600 + 100 * o + i,
			      "kvstage_drain_total{outcome=\"%s\",proof=\"%s\"}",
			      kvs_drain_outcome_name[o], kvs_proof_name[i]);
#undef CHECK
	free_page(pg);
	free(s);
}

/* How many series of @b differ from @a; *@ret_id is the last of them. */
static unsigned int differing(const struct page *a, const struct page *b,
			      const char **ret_id)
{
	unsigned int i, n = 0;

	assert_int_equal(a->n, b->n);
	for (i = 0; i < a->n; i++) {
		assert_string_equal(a->series[i].id, b->series[i].id);
		if (strcmp(a->series[i].text, b->series[i].text)) {
			n++;
			*ret_id = b->series[i].id;
		}
	}
	return n;
}

/* One number changed moves one series, by that much, and no other. */
static void each_moves_one(void **state)
{
	struct kvs_snapshot *s = fresh();
	struct kvs_worker_snapshot *w = &s->workers[1];
	struct {
		uint64_t *u64;
		uint32_t *u32;
		const char *id;
	} rows[] = {
		{ &w->stats.rooms_done, NULL, "kvstage_rooms_done_total" },
		{ &w->stats.late_bytes, NULL, "kvstage_late_bytes_total" },
		{ &w->stats.received_bytes, NULL,
		  "kvstage_received_bytes_total" },
		{ &s->connections_refused, NULL,
		  "kvstage_connections_refused_total" },
		{ &w->verbs.qps, NULL, "kvstage_verbs_queue_pairs_total" },
		{ &w->verbs.broken, NULL,
		  "kvstage_verbs_queue_pairs_broken_total" },
		{ &w->verbs.wr_errors, NULL,
		  "kvstage_verbs_request_errors_total" },
		{ &w->verbs.lost_flushes, NULL,
		  "kvstage_verbs_flushes_lost_total" },
		{ &w->verbs.stuck, NULL,
		  "kvstage_verbs_queue_pairs_stuck_total" },
		{ &w->verbs.grants, NULL, "kvstage_verbs_grants_total" },
		{ &w->verbs.msgs_in, NULL,
		  "kvstage_verbs_messages_received_total" },
		{ &w->verbs.msgs_out, NULL,
		  "kvstage_verbs_messages_sent_total" },
		{ NULL, &s->sessions, "kvstage_sessions" },
		{ NULL, &s->engines, "kvstage_engines" },
		{ NULL, &s->connections, "kvstage_connections" },
		{ NULL, &w->data_connections, "kvstage_data_connections" },
		{ NULL, &w->rooms_live, "kvstage_rooms{state=\"active\"}" },
		{ NULL, &w->rooms_held, "kvstage_rooms{state=\"held\"}" },
		{ &w->pools[1].account.bytes[KVS_EXTENT_CACHED], NULL,
		  "kvstage_pool_bytes{node=\"1\",pool=\"offload\","
		  "state=\"cached\"}" },
		{ &w->pools[0].account.high_water, NULL,
		  "kvstage_pool_high_water_bytes{node=\"1\","
		  "pool=\"receive\"}" },
		{ &w->stats.admits[KVS_ADMIT_BUSY], NULL,
		  "kvstage_admit_total{result=\"busy\"}" },
		{ &w->stats.acks_impossible[KVS_ACK_IMPOSSIBLE_NEGATIVE], NULL,
		  "kvstage_acks_impossible_total{reason=\"negative\"}" },
		{ &w->stats.strays[KVS_STRAY_LAST], NULL,
		  "kvstage_messages_ignored_total{type=\"last\"}" },
		{ &s->strays[KVS_STRAY_REFUSE], NULL,
		  "kvstage_messages_ignored_total{type=\"refuse\"}" },
		{ &s->admits[KVS_ADMIT_NOFIT], NULL,
		  "kvstage_admit_total{result=\"nofit\"}" },
	};
	struct page *before, *after;
	const char *id = "";
	size_t i;

	(void)state;
	before = read_page(s);
	for (i = 0; i < KVS_ARRAY_SIZE(rows); i++) {
		if (rows[i].u64)
			*rows[i].u64 += 7;
		else
			*rows[i].u32 += 7;
		after = read_page(s);
		assert_int_equal(differing(before, after, &id), 1);
		assert_string_equal(id, rows[i].id);
		assert_true(value(after, id) - value(before, id) == 7);
		free_page(before);
		before = after;
	}
	free_page(before);
	free(s);
}

/*
 * 8 chunks of 20 ms: the sum is 0.16 s exactly and each lands in its bucket;
 * workers add up.
 */
static void histogram(void **state)
{
	struct kvs_snapshot *s = fresh();
	struct page *pg;
	int i;

	(void)state;
	for (i = 0; i < 8; i++)
		kvs_hist_record(&s->workers[i & 1].stats.transfer, 20000000);
	/* of the longest one only the largest */
	s->workers[0].verbs.grant_ns_max = 1500000000;
	s->workers[1].verbs.grant_ns_max = 700000000;
	s->workers[1].verbs.close_ns_max = 1;
	kvs_hist_record(&s->workers[0].stats.drain_seconds, 1);
	kvs_hist_record(&s->workers[0].stats.claim, 3600000000000ULL);
	pg = read_page(s);
	assert_string_equal(find(pg, "kvstage_transfer_seconds_sum")->text,
			    "0.160000000");
	assert_true(value(pg, "kvstage_transfer_seconds_count") == 8);
	assert_true(value(pg, "kvstage_transfer_seconds_bucket{le=\"0.01\"}") ==
		    0);
	assert_true(
		value(pg, "kvstage_transfer_seconds_bucket{le=\"0.025\"}") ==
		8);
	assert_string_equal(find(pg, "kvstage_drain_seconds_sum")->text,
			    "0.000000001");
	assert_true(value(pg, "kvstage_drain_seconds_bucket{le=\"0.0001\"}") ==
		    1);
	assert_string_equal(find(pg, "kvstage_verbs_grant_seconds_max")->text,
			    "1.500000000");
	assert_string_equal(
		find(pg, "kvstage_verbs_grant_close_seconds_max")->text,
		"0.000000001");
	assert_true(value(pg, "kvstage_claim_seconds_bucket{le=\"300\"}") == 0);
	assert_true(value(pg, "kvstage_claim_seconds_bucket{le=\"+Inf\"}") ==
		    1);
	free_page(pg);
	free(s);
}

/* What is true or false counts the workers it is true of. */
static void truths(void **state)
{
	struct kvs_snapshot *s = fresh();
	struct page *pg;

	(void)state;
	s->workers[0].disk.wanted = true;
	s->workers[0].disk.on = true;
	s->workers[1].disk.wanted = true;
	pg = read_page(s);
	assert_true(value(pg, "kvstage_disk_tiers_wanted") == 2);
	assert_true(value(pg, "kvstage_disk_tiers_on") == 1);
	assert_true(value(pg, "kvstage_disk_tiers_degraded") == 0);
	free_page(pg);
	free(s);
}

/* Before the pools exist: the page is whole but for the pools' own series. */
static void starting(void **state)
{
	struct kvs_snapshot *none = calloc(1, sizeof(*none)), *s = fresh();
	struct page *a = read_page(none), *b = read_page(s);
	unsigned int i, missing = 0;

	(void)state;
	for (i = 0; i < b->n; i++) {
		const char *id = b->series[i].id;

		if (find(a, id))
			continue;
		if (strncmp(id, "kvstage_pool_", 13) &&
		    strncmp(id, "kvstage_quarantined_bytes", 25) &&
		    strncmp(id, "kvstage_held_bytes", 18) &&
		    strncmp(id, "kvstage_build_info", 18))
			fail_msg("%s is missing at the start", id);
		missing++;
	}
	assert_true(missing > 0);
	assert_true(value(a, "kvstage_ready") == 0);
	free_page(a);
	free_page(b);
	free(none);
	free(s);
}

/* Any snapshot, the largest values too, gives a page the parser takes. */
static void random_snapshots(void **state)
{
	uint64_t seed = 71;
	struct kvs_rng rng;
	int round;

	(void)state;
	print_message("seed %" PRIu64 "\n", seed);
	kvs_rng_init(&rng, seed);
	for (round = 0; round < 20; round++) {
		struct kvs_snapshot *s = fresh();
		struct page *pg;
		unsigned int i, w;

		s->n_workers = (unsigned int)kvs_rng_below(&rng, 40);
		s->uptime = kvs_rng_next(&rng);
		s->ready = (int)kvs_rng_below(&rng, 2);
		for (w = 0; w < KVS_ARRAY_SIZE(s->workers); w++) {
			struct kvs_worker_snapshot *ws = &s->workers[w];

			ws->n_pools = 1 + (w & 1);
			/* a node may have two workers */
			ws->pools[0].name = "receive";
			ws->pools[1].name = "offload";
			ws->pools[0].node = ws->pools[1].node =
				(int)kvs_rng_below(&rng, 20);
			ws->rooms_waiting = (uint32_t)kvs_rng_next(&rng);
			ws->rooms_live = (uint32_t)kvs_rng_next(&rng);
			ws->stats.received_bytes = kvs_rng_next(&rng);
			kvs_hist_init(&ws->stats.transfer);
			for (i = 0; i < 50; i++)
				kvs_hist_record(&ws->stats.transfer,
						kvs_rng_next(&rng) >>
							kvs_rng_below(&rng,
								      64));
		}
		pg = read_page(s);
		free_page(pg);
		free(s);
	}
}

/* Sum of the states = configured, for every pool on the page. */
static void pool_identity(void **state)
{
	struct kvs_snapshot *s = fresh();
	struct kvs_pool_account *a = &s->workers[0].pools[0].account;
	struct page *pg;
	double sum = 0;
	unsigned int i;

	(void)state;
	a->configured = 0;
	for (i = 0; i < KVS_EXTENT_STATE_MAX; i++) {
		a->bytes[i] = 4096ULL << i;
		a->configured += a->bytes[i];
	}
	pg = read_page(s);
	for (i = 0; i < KVS_EXTENT_STATE_MAX; i++) {
		char id[128];

		snprintf(id, sizeof(id),
			 "kvstage_pool_bytes{node=\"0\",pool=\"receive\","
			 "state=\"%s\"}",
			 kvs_extent_state_name[i]);
		assert_true(value(pg, id) == (double)(4096ULL << i));
		sum += value(pg, id);
	}
	assert_true(sum == value(pg, "kvstage_pool_configured_bytes{"
				     "node=\"0\",pool=\"receive\"}"));
	free_page(pg);
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(documented_series),
		cmocka_unit_test(every_enumerator),
		cmocka_unit_test(each_moves_one),
		cmocka_unit_test(histogram),
		cmocka_unit_test(truths),
		cmocka_unit_test(starting),
		cmocka_unit_test(random_snapshots),
		cmocka_unit_test(pool_identity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
