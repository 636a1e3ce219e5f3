/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: shot noise
 *
 * Things come at random times, each takes so much for so long, and goes: how
 * much is taken at a time, and what is passed once in a while.
 */
#ifndef KVS_TOOLS_SHOT_H
#define KVS_TOOLS_SHOT_H

#include <stddef.h>

/**
 * struct kvs_shot - a kind of thing
 * @size: what it takes; at least 0
 * @time: seconds it takes it for; at least 0
 * @share: of all that come; these are 1 together
 */
struct kvs_shot {
	double size;
	double time;
	double share;
};

/**
 * kvs_shot_level() - what is passed once in the horizon, as likely as not
 * @rate: of all, a second; their times are independent of each other
 * @v: kinds
 * @n: how many
 * @horizon: seconds
 * @ret_level: 0 where less come than that
 * @ret_sigma: standard deviation of what is taken
 *
 * What is taken at a time is the sum of what is there, a Poisson number of
 * things (N. Campbell, Proceedings of the Cambridge Philosophical Society 15,
 * 1909): a compound Poisson distribution, which its Fourier transform gives (P.
 * Embrechts and M. Frei, Mathematical Methods of Operations Research 69, 2009).
 * A level is passed when something comes, and who comes finds what there is at
 * any time (R. Wolff, Operations Research 30, 1982). So it is passed
 *
 *   rate x horizon x P(X <= level < X + size)
 *
 * times as a mean. Where that is ln 2, passing it is as likely as not. With
 * very many things at a time the sum is taken as normal, but for its skew.
 *
 * Return: 0 or -ENOMEM.
 */
int kvs_shot_level(double rate, const struct kvs_shot *v, size_t n,
		   double horizon, double *ret_level, double *ret_sigma);

#endif /* KVS_TOOLS_SHOT_H */
