/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the level is that of the Poisson distribution where all things are of
 * one size; it grows with the rate, the time they stay and the horizon; two
 * kinds of which one takes nothing are as one; very many are where few are, so
 * that nothing jumps between the two ways to reckon; simulated things reach it
 * about every other time. Nothing comes, and nothing is taken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "lib/rng.h"
#include "tools/shot.h"

static double level(double rate, double size, double time, double horizon)
{
	const struct kvs_shot v = { size, time, 1 };
	double ret, sigma;

	assert_int_equal(kvs_shot_level(rate, &v, 1, horizon, &ret, &sigma), 0);
	assert_true(fabs(sigma - size * sqrt(rate * time)) < 1e-9 * size);
	return ret;
}

/* With things of size 1, level n is passed where there are n and one comes. */
static int poisson(double mean, double comings)
{
	double p = exp(-mean);
	int n = 0, last = 0;

	for (; n < 4 * mean + 100; p *= mean / ++n)
		if (comings * p > M_LN2)
			last = n;
	return last;
}

static void of_one_size(void **state)
{
	static const double mean[] = { 0.1, 1, 7, 60, 500 };

	(void)state;
	for (size_t i = 0; i < sizeof(mean) / sizeof(mean[0]); i++) {
		double v = level(2, 1, mean[i] / 2, 3600);
		int n = poisson(mean[i], 7200);

		/* up to n + 1, as wide as a cell is */
		assert_true(v > n + 0.4 && v < n + 1.2);
	}
}

static void goes_up(void **state)
{
	double last = 0;

	(void)state;
	for (double rate = 0.01; rate < 1e5; rate *= 1.5) {
		double v = level(rate, 3, 5, 3600);

		/* in cells, and with a seam where there are many */
		assert_true(v >= last * 0.999);
		assert_true(level(rate, 3, 5, 86400) >= v * 0.999);
		assert_true(level(rate, 3, 10, 3600) >= v * 0.999);
		assert_true(level(rate, 6, 5, 3600) > 1.99 * v);
		last = v;
	}
}

static void two_kinds(void **state)
{
	const struct kvs_shot v[] = { { 4, 9, 0.5 }, { 0, 100, 0.5 } };
	double two, sigma;

	(void)state;
	assert_int_equal(kvs_shot_level(6, v, 2, 3600, &two, &sigma), 0);
	assert_true(fabs(two - level(3, 4, 9, 3600)) < 0.03 * two);
}

/* Between 2,000 at a time and a few more. */
static void many_are_as_few(void **state)
{
	double few = level(199.9, 1, 10, 3600);
	double many = level(200.1, 1, 10, 3600);

	(void)state;
	assert_true(fabs(many / few - 1) < 0.01);
}

#define N 20000

static int down(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The most that is taken, of N things in all. */
static double most(struct kvs_rng *r, double rate)
{
	static double end[N], size[N];
	double at = 0, taken, high = 0;

	for (size_t i = 0; i < N; i++) {
		at -= log(1 - kvs_rng_double(r)) / rate;
		size[i] = kvs_rng_double(r) < 0.9 ? 1 : 10;
		end[i] = at + 5 * size[i];
		taken = 0;
		/* what came long ago has gone */
		for (size_t k = i > 500 ? i - 500 : 0; k <= i; k++)
			taken += end[k] > at ? size[k] : 0;
		high = taken > high ? taken : high;
	}
	return high;
}

static void is_reached(void **state)
{
	const struct kvs_shot v[] = { { 1, 5, 0.9 }, { 10, 50, 0.1 } };
	double want, sigma, high[15];
	struct kvs_rng r;

	(void)state;
	kvs_rng_init(&r, 1);
	assert_int_equal(kvs_shot_level(2, v, 2, N / 2.0, &want, &sigma), 0);
	for (int i = 0; i < 15; i++)
		high[i] = most(&r, 2);
	qsort(high, 15, sizeof(*high), down);
	print_message("reached %.0f (%.0f to %.0f), reckoned %.1f\n", high[7],
		      high[0], high[14], want);
	assert_true(fabs(want / high[7] - 1) < 0.07);
	assert_true(want > high[0] && want < high[14]);
}

static void nothing(void **state)
{
	const struct kvs_shot none = { 0, 0, 1 };
	double v = 1, sigma = 1;

	(void)state;
	assert_int_equal(kvs_shot_level(5, &none, 1, 3600, &v, &sigma), 0);
	assert_true(v == 0 && sigma == 0);
	assert_int_equal(kvs_shot_level(5, NULL, 0, 3600, &v, &sigma), 0);
	assert_true(v == 0 && sigma == 0);
	/* it comes less than once */
	assert_true(level(1e-6, 1, 1, 3600) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_one_size),	   cmocka_unit_test(goes_up),
		cmocka_unit_test(two_kinds),	   cmocka_unit_test(is_reached),
		cmocka_unit_test(many_are_as_few), cmocka_unit_test(nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
