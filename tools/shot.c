/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/shot.h"

#include <complex.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "lib/assert.h"

#define CELLS 8192u /* a power of 2 */
#define MANY 2000.0 /* things at a time from which their sum is normal */
#define TWO_PI 6.283185307179586

struct sums {
	double count; /* things at a time, mean */
	double mean;
	double sigma;
	double skew;
	double size; /* mean of those that come */
	double largest;
};

/* Campbell's theorem: cumulants are the rate times means of size^k * time. */
static void add_up(double rate, const struct kvs_shot *v, size_t n,
		   struct sums *ret)
{
	double k2 = 0, k3 = 0;

	*ret = (struct sums){ 0 };
	for (size_t i = 0; i < n; i++) {
		double there = rate * v[i].share * v[i].time;
		double size = v[i].size;

		ret->count += there;
		ret->mean += there * size;
		k2 += there * size * size;
		k3 += there * size * size * size;
		ret->size += v[i].share * size;
		if (size > ret->largest)
			ret->largest = size;
	}
	ret->sigma = sqrt(k2);
	ret->skew = k2 > 0 ? k3 / (k2 * ret->sigma) : 0;
}

/* Its density there times the mean of what comes is what crosses; the skew by
 * the first term of Cornish and Fisher. */
static double level_of_many(const struct sums *s, double comings)
{
	double x = comings * s->size / (s->sigma * M_LN2 * sqrt(TWO_PI));
	double z = x > 1 ? sqrt(2 * log(x)) : 0;

	return s->mean + s->sigma * (z + s->skew * (z * z - 1) / 6);
}

/* Cooley and Tukey's, in place; backward: not divided. */
static void transform(double complex *a, double sign)
{
	for (size_t i = 1, j = 0; i < CELLS; i++) {
		size_t bit = CELLS / 2;
		double complex t = a[i];

		while (j & bit) {
			j ^= bit;
			bit /= 2;
		}
		j |= bit;
		if (i < j) {
			a[i] = a[j];
			a[j] = t;
		}
	}
	for (size_t len = 2; len <= CELLS; len *= 2)
		for (size_t k = 0; k < len / 2; k++) {
			double w = sign * TWO_PI * (double)k / (double)len;
			double complex e = cos(w) + I * sin(w);

			for (size_t i = k; i < CELLS; i += len) {
				double complex x = a[i];
				double complex y = a[i + len / 2] * e;

				a[i] = x + y;
				a[i + len / 2] = x - y;
			}
		}
}

struct cells {
	double complex there[CELLS]; /* things of that size at a time */
	double coming[CELLS]; /* share of those that come */
	double up_to[CELLS]; /* probability */
};

static void fill(double rate, const struct kvs_shot *v, size_t n, double width,
		 struct cells *c)
{
	for (size_t i = 0; i < n; i++) {
		double at = v[i].size / width;
		size_t k = (size_t)at;
		double part = at - (double)k;
		double there = rate * v[i].share * v[i].time;

		KVS_ASSERT(k + 1 < CELLS);
		/* between two cells: the mean is kept */
		c->there[k] += there * (1 - part);
		c->there[k + 1] += there * part;
		c->coming[k] += v[i].share * (1 - part);
		c->coming[k + 1] += v[i].share * part;
	}
}

static void distribution(struct cells *c, double count)
{
	double sum = 0;

	transform(c->there, -1);
	for (size_t i = 0; i < CELLS; i++)
		c->there[i] = cexp(c->there[i] - count);
	transform(c->there, 1);
	for (size_t i = 0; i < CELLS; i++) {
		sum += creal(c->there[i]) / CELLS;
		c->up_to[i] = sum;
	}
}

/* P(X <= cell < X + size) */
static double crossed(const struct cells *c, size_t cell)
{
	double p = c->up_to[cell];

	for (size_t k = 0; k <= cell; k++)
		p -= c->coming[k] * c->up_to[cell - k];
	return p;
}

int kvs_shot_level(double rate, const struct kvs_shot *v, size_t n,
		   double horizon, double *ret_level, double *ret_sigma)
{
	struct cells *c;
	struct sums s;
	double width;
	size_t cell;

	add_up(rate, v, n, &s);
	*ret_sigma = s.sigma;
	*ret_level = 0;
	if (!(s.largest > 0))
		return 0;
	if (s.count > MANY) {
		*ret_level = level_of_many(&s, rate * horizon);
		return 0;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	/* what is beyond has no chance, and comes out at the lower end */
	width = (s.mean + 14 * s.sigma + 4 * s.largest) / CELLS;
	fill(rate, v, n, width, c);
	distribution(c, s.count);
	for (cell = CELLS - 1; cell > 0; cell--)
		if (rate * horizon * crossed(c, cell) > M_LN2)
			break;
	*ret_level = (double)cell * width;
	free(c);
	return 0;
}
