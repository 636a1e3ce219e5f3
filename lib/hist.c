/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "lib/assert.h"
#include "lib/hist.h"

#define KVS_HIST_SUB (1u << KVS_HIST_BITS)

/*
 * Values below KVS_HIST_SUB have a bucket each. Above, a value with its top
 * bit at e drops its low (e - KVS_HIST_BITS) bits; what is left, without the
 * top bit, is the place within the group of that power of two.
 */
static unsigned int kvs_hist_index(uint64_t v)
{
	unsigned int shift;

	if (v < KVS_HIST_SUB)
		return (unsigned int)v;
	shift = 63 - (unsigned int)__builtin_clzll(v) - KVS_HIST_BITS;
	return ((shift + 1) << KVS_HIST_BITS) +
	       (unsigned int)((v >> shift) - KVS_HIST_SUB);
}

/* Largest value that falls into bucket @i. */
static uint64_t kvs_hist_upper(unsigned int i)
{
	unsigned int shift;
	uint64_t top;

	if (i < KVS_HIST_SUB)
		return i;
	shift = (i >> KVS_HIST_BITS) - 1;
	top = KVS_HIST_SUB + (i & (KVS_HIST_SUB - 1));
	return (top << shift) | ((1ULL << shift) - 1);
}

static uint64_t kvs_hist_add64(uint64_t a, uint64_t b)
{
	uint64_t r;

	return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint32_t kvs_hist_add32(uint32_t a, uint32_t b)
{
	uint32_t r;

	return __builtin_add_overflow(a, b, &r) ? UINT32_MAX : r;
}

void kvs_hist_init(struct kvs_hist *h)
{
	memset(h, 0, sizeof(*h));
	h->min = UINT64_MAX;
}

void kvs_hist_record(struct kvs_hist *h, uint64_t v)
{
	unsigned int i = kvs_hist_index(v);

	KVS_DASSERT(i < KVS_HIST_BUCKETS);
	h->count++;
	h->sum = kvs_hist_add64(h->sum, v);
	if (v < h->min)
		h->min = v;
	if (v > h->max)
		h->max = v;
	h->bucket[i] = kvs_hist_add32(h->bucket[i], 1);
}

void kvs_hist_merge(struct kvs_hist *to, const struct kvs_hist *from)
{
	unsigned int i;

	to->count += from->count;
	to->sum = kvs_hist_add64(to->sum, from->sum);
	if (from->min < to->min)
		to->min = from->min;
	if (from->max > to->max)
		to->max = from->max;
	for (i = 0; i < KVS_HIST_BUCKETS; i++)
		to->bucket[i] = kvs_hist_add32(to->bucket[i], from->bucket[i]);
}

/*
 * Nearest rank, from 1: the smallest r with r >= q * n. @n is a sum of
 * buckets, far below 2^53, so the doubles hold it.
 */
static uint64_t kvs_hist_rank(double q, uint64_t n)
{
	double x;
	uint64_t r;

	/* this form takes NaN to the low end */
	if (!(q > 0))
		return 1;
	if (q >= 1)
		return n;
	x = q * (double)n;
	r = (uint64_t)x;
	/* 0.07 * 100 is a hair above 7: that hair is no reason to go to 8 */
	if (x - (double)r > x * 1e-12)
		r++;
	if (r < 1)
		return 1;
	return r < n ? r : n;
}

uint64_t kvs_hist_quantile(const struct kvs_hist *h, double q)
{
	uint64_t total = 0;
	uint64_t seen = 0;
	uint64_t rank;
	uint64_t v;
	unsigned int i;

	if (!h->count)
		return 0;
	/* not h->count: a bucket that saturated holds less than its share */
	for (i = 0; i < KVS_HIST_BUCKETS; i++)
		total += h->bucket[i];
	rank = kvs_hist_rank(q, total);
	for (i = 0; i < KVS_HIST_BUCKETS; i++) {
		seen += h->bucket[i];
		if (seen >= rank)
			break;
	}
	v = i < KVS_HIST_BUCKETS ? kvs_hist_upper(i) : h->max;
	if (v > h->max)
		v = h->max;
	if (v < h->min)
		v = h->min;
	return v;
}

double kvs_hist_mean(const struct kvs_hist *h)
{
	return h->count ? (double)h->sum / (double)h->count : 0.0;
}

uint64_t kvs_hist_count_le(const struct kvs_hist *h, uint64_t v)
{
	unsigned int last;
	unsigned int i;
	uint64_t n = 0;

	if (!h->count || v < h->min)
		return 0;
	if (v >= h->max)
		return h->count;
	last = kvs_hist_index(v);
	for (i = 0; i <= last; i++)
		n += h->bucket[i];
	return n;
}
