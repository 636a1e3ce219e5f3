/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a generated trace has the lengths it was asked for at the points
 * given (within 5 % over 50,000 requests), never above the maximum, which is
 * reached, never below an eighth of the median; arrivals keep the rate;
 * block ids fit the lengths and only the first is shared; equal seeds give
 * equal traces, others do not; shapes that make no sense are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvstage/layout.h"
#include "lib/assert.h"
#include "tools/trace.h"

#define N 50000u

static struct kvs_trace_shape chat(void)
{
	return (struct kvs_trace_shape){
		.n = N,
		.input = KVS_TRACE_CHAT_INPUT,
		.output = KVS_TRACE_CHAT_OUTPUT,
		.rate = KVS_TRACE_CHAT_RATE,
	};
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a;
	uint32_t y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void check_near(uint32_t got, uint32_t want)
{
	assert_in_range(got, want - want / 20, want + want / 20);
}

static void check_points(uint32_t *v, const struct kvs_trace_lengths *l)
{
	qsort(v, N, sizeof(*v), by_value);
	check_near(v[N / 2], l->p50);
	check_near(v[N / 100 * 90], l->p90);
	check_near(v[N / 100 * 99], l->p99);
	assert_int_equal(v[N - 1], l->max);
	assert_true(v[0] >= l->p50 / 8);
	/* lengths spread: no lump anywhere below the median */
	assert_true(v[N / 4] > v[N / 8] && v[N / 8] > v[N / 16]);
}

static void test_lengths_are_as_asked(void **state)
{
	struct kvs_trace_shape s = chat();
	uint32_t *v = calloc(N, sizeof(*v));
	struct kvs_trace t;
	size_t i;

	(void)state;
	assert_non_null(v);
	assert_int_equal(kvs_trace_generate(1, &s, &t), 0);
	assert_int_equal(t.n, N);
	assert_int_equal(t.max_input, s.input.max);
	for (i = 0; i < N; i++)
		v[i] = t.req[i].input;
	check_points(v, &s.input);
	for (i = 0; i < N; i++)
		v[i] = t.req[i].output;
	check_points(v, &s.output);
	/* the trace it is modelled on has a mean of 12,035 */
	assert_in_range(t.tokens / N, 10500, 13500);
	kvs_trace_fini(&t);
	free(v);
}

static void test_arrivals_keep_the_rate(void **state)
{
	struct kvs_trace_shape s = chat();
	struct kvs_trace t;
	double seconds;
	size_t i;

	(void)state;
	assert_int_equal(kvs_trace_generate(2, &s, &t), 0);
	for (i = 1; i < t.n; i++)
		assert_true(t.req[i].at_ms >= t.req[i - 1].at_ms);
	seconds = (double)t.req[N - 1].at_ms / 1000;
	assert_true(fabs(N / seconds / KVS_TRACE_CHAT_RATE - 1) < 0.03);
	kvs_trace_fini(&t);

	s.rate = 0;
	assert_int_equal(kvs_trace_generate(2, &s, &t), 0);
	assert_int_equal(t.req[N - 1].at_ms, 0);
	kvs_trace_fini(&t);
}

static void test_ids_fit_the_lengths(void **state)
{
	struct kvs_trace_shape s = chat();
	struct kvs_trace t;
	uint64_t next = 0;
	uint64_t last = 0;
	uint64_t tokens = 0;
	size_t clamped = 0;
	size_t i;
	uint32_t k;

	(void)state;
	s.n = 2000;
	s.max_input = 16000;
	assert_int_equal(kvs_trace_generate(3, &s, &t), 0);
	for (i = 0; i < t.n; i++) {
		const struct kvs_trace_request *r = &t.req[i];

		assert_in_range(r->input, 1, 16000);
		clamped += r->input == 16000;
		tokens += r->input;
		assert_int_equal(r->ids, next);
		assert_int_equal(t.ids[r->ids], 0);
		for (k = 1; k < r->n_ids; k++) {
			assert_true(t.ids[r->ids + k] > last);
			last = t.ids[r->ids + k];
		}
		/* a clamp in proportion may keep one block more */
		assert_in_range(r->n_ids, (r->input + 511) / 512,
				(r->input + 511) / 512 + (r->input == 16000));
		next += r->n_ids;
	}
	assert_int_equal(next, t.n_ids);
	assert_int_equal(tokens, t.tokens);
	assert_int_equal(clamped, t.clamped);
	assert_true(clamped > 200 && clamped < 800);
	kvs_trace_fini(&t);
}

static bool same(const struct kvs_trace *a, const struct kvs_trace *b)
{
	size_t i;

	if (a->n != b->n || a->n_ids != b->n_ids || a->tokens != b->tokens)
		return false;
	for (i = 0; i < a->n; i++)
		if (a->req[i].at_ms != b->req[i].at_ms ||
		    a->req[i].input != b->req[i].input ||
		    a->req[i].output != b->req[i].output ||
		    a->req[i].n_ids != b->req[i].n_ids)
			return false;
	return !memcmp(a->ids, b->ids, a->n_ids * sizeof(*a->ids));
}

static void test_seed_decides(void **state)
{
	struct kvs_trace_shape s = chat();
	struct kvs_trace a, b;
	size_t i;

	(void)state;
	s.n = 500;
	assert_int_equal(kvs_trace_generate(4, &s, &a), 0);
	assert_int_equal(kvs_trace_generate(4, &s, &b), 0);
	assert_true(same(&a, &b));
	kvs_trace_fini(&b);
	assert_int_equal(kvs_trace_generate(5, &s, &b), 0);
	assert_false(same(&a, &b));
	kvs_trace_fini(&b);
	/* the rate moves arrivals, never lengths */
	s.rate = 0;
	assert_int_equal(kvs_trace_generate(4, &s, &b), 0);
	for (i = 0; i < s.n; i++)
		assert_int_equal(a.req[i].input, b.req[i].input);
	kvs_trace_fini(&a);
	kvs_trace_fini(&b);
}

static void test_one_length_for_all(void **state)
{
	struct kvs_trace_shape s = {
		.n = 1000,
		.input = { 1, 1, 1, 1 },
		.output = { 1, 1, 1, 1 },
	};
	struct kvs_trace t;

	(void)state;
	assert_int_equal(kvs_trace_generate(6, &s, &t), 0);
	assert_int_equal(t.tokens, 1000);
	assert_int_equal(t.n_ids, 1000);
	kvs_trace_fini(&t);
}

static void test_senseless_shapes_are_refused(void **state)
{
	static const struct kvs_trace_lengths bad[] = {
		{ 0, 1, 2, 3 },
		{ 5, 4, 6, 7 },
		{ 5, 6, 5, 7 },
		{ 5, 6, 7, 6 },
		{ 5, 6, 7, KVS_TOKENS_MAX + 1 },
	};
	struct kvs_trace t = { .n = 77 };
	struct kvs_trace_shape s;
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(bad); i++) {
		s = chat();
		s.input = bad[i];
		assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
		s = chat();
		s.output = bad[i];
		assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
	}
	s = chat();
	s.n = 0;
	assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
	s.n = KVS_TRACE_REQUESTS_MAX + 1;
	assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
	s = chat();
	s.rate = -1;
	assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
	s.rate = (double)NAN;
	assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
	s.rate = 1e-300;
	assert_int_equal(kvs_trace_generate(1, &s, &t), -EINVAL);
	assert_int_equal(t.n, 77);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lengths_are_as_asked),
		cmocka_unit_test(test_arrivals_keep_the_rate),
		cmocka_unit_test(test_ids_fit_the_lengths),
		cmocka_unit_test(test_seed_decides),
		cmocka_unit_test(test_one_length_for_all),
		cmocka_unit_test(test_senseless_shapes_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
