/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims for the statistics of kvstage-bench ttft: quantiles are of nearest
 * rank; a request counts only if it gives up in no run of that abort fraction
 * and was answered in all that were begun; gaps between tokens are those of
 * the steps a request is in, each as often as it is in them; no requests give
 * zeros and not a number that is none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tools/ttft/ttft_stat.h"

#define MS KVS_NSEC_PER_MSEC
#define N 200u

struct rig {
	struct ttft_opts o;
	struct ttft_plan p;
	struct ttft_req req[N];
	struct ttft_run *run[2];
	struct ttft_set s;
};

/* Request i comes at i ms, has its first token i + 1 ms later, and its last
 * 100 ms after that. */
static void answer(struct rig *g, struct ttft_run *r)
{
	for (size_t i = 0; i < N; i++) {
		struct ttft_rec *c = &r->rec[i];

		c->end = TTFT_DONE;
		c->first = g->req[i].at + (i + 1) * MS;
		c->last = c->first + 100 * MS;
		atomic_store(&c->granted, g->req[i].at + 2 * MS);
	}
	atomic_store(&r->settled, N);
	atomic_store(&r->state, 1);
}

static int setup(void **state)
{
	struct rig *g = calloc(1, sizeof(*g));

	assert_non_null(g);
	g->p = (struct ttft_plan){ .v = g->req, .n = N };
	for (size_t i = 0; i < N; i++) {
		g->req[i].at = i * MS;
		g->req[i].input = 10;
		g->req[i].output = 11;
		g->req[i].draw = 0.5;
	}
	for (size_t k = 0; k < 2; k++) {
		g->run[k] = ttft_run_new(&g->p);
		assert_non_null(g->run[k]);
		g->run[k]->abort = 0.3;
	}
	g->run[0]->mode = TTFT_STAGED;
	g->run[1]->mode = TTFT_IDEAL;
	answer(g, g->run[0]);
	g->s = (struct ttft_set){ &g->o, &g->p, "virtual", g->run, 2 };
	*state = g;
	return 0;
}

static int teardown(void **state)
{
	struct rig *g = *state;

	for (size_t k = 0; k < 2; k++)
		ttft_run_free(g->run[k], &g->p);
	free(g);
	return 0;
}

static struct ttft_stat stat_of(struct rig *g, size_t k)
{
	unsigned char *common = ttft_common(&g->s, k);
	struct ttft_stat t;

	assert_non_null(common);
	assert_int_equal(ttft_stat(&g->s, k, common, &t), 0);
	free(common);
	return t;
}

static void quantiles(void **state)
{
	struct rig *g = *state;
	struct ttft_stat t = stat_of(g, 0);

	assert_int_equal(t.survivors, N);
	assert_int_equal(t.completed, N);
	assert_true(t.ttft.median == 100);
	assert_true(t.ttft.p90 == 180);
	assert_true(t.ttft.p95 == 190);
	assert_true(t.ttft.p99 == 198);
	assert_true(t.ttft.mean == 100.5);
	assert_true(t.ttft.std > 57.7 && t.ttft.std < 57.8);
	/* ten tokens after the first in 100 ms */
	assert_true(t.tpot.mean == 10 && t.tpot.p99 == 10 && t.tpot.std == 0);
	assert_true(t.e2e.median == 200);
	assert_true(t.wait.median == 2 && t.wait.p99 == 2);
	/* nobody has begun to be patient */
	assert_int_equal(ttft_ideal_of(&g->s, 0), 2);
}

static void common(void **state)
{
	struct rig *g = *state;
	struct ttft_stat t;

	g->req[0].draw = 0.29; /* gives up */
	g->req[1].draw = 0.3; /* does not */
	g->req[2].storm = true;
	g->run[0]->rec[3].end = TTFT_FAILED;
	t = stat_of(g, 0);
	assert_int_equal(t.survivors, N - 3);
	assert_int_equal(t.failed, 1);
	assert_true(ttft_gives_up(g->run[0], &g->req[0]));
	assert_false(ttft_gives_up(g->run[0], &g->req[1]));
	assert_true(ttft_gives_up(g->run[0], &g->req[2]));
	assert_false(ttft_gives_up(g->run[1], &g->req[0]));
	assert_false(ttft_gives_up(g->run[1], &g->req[2]));

	/* what another run did not answer counts in none */
	answer(g, g->run[1]);
	g->run[1]->rec[4].end = TTFT_OPEN;
	assert_int_equal(stat_of(g, 0).survivors, N - 4);
	assert_int_equal(stat_of(g, 1).survivors, N - 4);
	assert_int_equal(stat_of(g, 1).completed, N - 1);
	assert_int_equal(stat_of(g, 1).unfinished, 1);
	assert_int_equal(ttft_ideal_of(&g->s, 0), 1);
	/* but a run of another fraction is another matter */
	g->run[1]->abort = 0.2;
	assert_int_equal(stat_of(g, 0).survivors, N - 3);
	assert_int_equal(ttft_ideal_of(&g->s, 0), 2);
}

static void gaps(void **state)
{
	static const uint64_t step[] = { 10, 30, 60, 100, 150 };
	struct rig *g = *state;
	struct ttft_run *r = g->run[0];
	struct ttft_stat t;

	for (size_t i = 0; i < N; i++)
		g->req[i].storm = i > 1;
	for (size_t i = 0; i < 5; i++)
		r->step[i] = step[i] * MS;
	r->n_steps = 5;
	/* gaps of 20, 30, 40, and of 40, 50 */
	r->rec[0].first_step = 0;
	r->rec[0].last_step = 3;
	r->rec[1].first_step = 2;
	r->rec[1].last_step = 4;
	t = stat_of(g, 0);
	assert_int_equal(t.survivors, 2);
	assert_true(t.itl.mean == (20 + 30 + 40 + 40 + 50) / 5.0);
	assert_true(t.itl.median == 40);
	assert_true(t.itl.p99 == 50);
}

static void nothing(void **state)
{
	struct rig *g = *state;
	struct ttft_stat t;

	for (size_t i = 0; i < N; i++)
		g->req[i].storm = true;
	t = stat_of(g, 0);
	assert_int_equal(t.survivors, 0);
	assert_true(t.ttft.mean == 0 && t.ttft.p99 == 0 && t.ttft.std == 0);
	assert_true(t.itl.mean == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(quantiles, setup, teardown),
		cmocka_unit_test_setup_teardown(common, setup, teardown),
		cmocka_unit_test_setup_teardown(gaps, setup, teardown),
		cmocka_unit_test_setup_teardown(nothing, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
