/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims for the soft device under a virtual clock: nothing moves but when it
 * is run, each piece at its time, so that a copy is observably half done; each
 * fault, scripted on one copy, does what soft.h says to it and nothing to the
 * bytes of others, and is counted once; chances strike every kind; the same
 * seed gives the same history, another seed another; a device that is closed
 * has finished with every copy, one that was killed moves nothing any more; a
 * phantom one has addresses and times, and no bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"
#include "gpu/soft.h"
#include "lib/clock.h"
#include "lib/rng.h"
#include "lib/units.h"

#define ITEM 16u /* bytes */
#define ITEMS 8u
#define LEN (ITEM * ITEMS)
#define N 4u /* copies */

static const uint32_t pages[ITEMS] = { 3, 1, 4, 0, 5, 7, 2, 6 };

struct rig {
	struct kvs_vclock clk;
	struct kvs_device *d;
	uint8_t *dev; /* an area for each copy */
	uint8_t host[N][LEN];
	struct kvs_copy_run run[N][2];
	struct kvs_copy c[N];
	uint64_t nth; /* which copy the script strikes, from 1; 0: none */
	enum kvs_soft_fault fault;
	uint64_t at; /* UINT64_MAX: drawn */
	bool empty;
};

static int script(void *arg, const struct kvs_soft_event *e)
{
	struct rig *r = arg;

	assert_int_equal(e->bytes, r->empty ? 0 : LEN);
	if (!r->nth)
		return -1;
	if (e->order != r->nth)
		return KVS_SOFT_NO_FAULT;
	if (r->at != UINT64_MAX)
		*e->at = r->at;
	return (int)r->fault;
}

static uint64_t now(const struct rig *r)
{
	return kvs_clock_now(&r->clk.clk);
}

static struct rig *rig_new(uint64_t seed, const struct kvs_soft_chances *p)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct kvs_soft_virtual_opts o = { .seed = seed, .fault = script };
	size_t i;

	kvs_vclock_init(&r->clk, 1000);
	r->at = UINT64_MAX;
	o.arg = r;
	assert_int_equal(kvs_soft_open_virtual(&o, &r->d), -EINVAL);
	o.clock = &r->clk.clk;
	o.chances = *p;
	assert_int_equal(kvs_soft_open_virtual(&o, &r->d), 0);
	assert_string_equal(kvs_device_name(r->d), "soft");
	assert_int_equal(kvs_device_alloc(r->d, N * LEN, (void **)&r->dev), 0);
	memset(r->dev, 0, N * LEN);
	for (i = 0; i < N; i++) {
		memset(r->host[i], (int)i + 1, LEN);
		/* half page by page, half as it lies */
		r->run[i][0] = (struct kvs_copy_run){
			.host = r->host[i],
			.dev = r->dev + i * LEN,
			.item_len = ITEM / 2,
			.pages = pages,
			.n = ITEMS,
		};
		r->run[i][1] = (struct kvs_copy_run){
			.host = r->host[i] + LEN / 2,
			.dev = r->dev + i * LEN + LEN / 2,
			.item_len = ITEM,
			.n = ITEMS / 2,
		};
		r->c[i] = (struct kvs_copy){ .runs = r->run[i],
					     .n_runs = 2,
					     .dir = KVS_COPY_H2D };
	}
	return r;
}

static void rig_free(struct rig *r)
{
	kvs_device_close(r->d);
	free(r);
}

static void submit(struct rig *r, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		assert_int_equal(kvs_device_copy(r->d, &r->c[i]), 0);
}

static void run_to(struct rig *r, uint64_t t)
{
	uint64_t next;

	while ((next = kvs_soft_next(r->d)) <= t && next != KVS_TIME_NEVER) {
		if (next > now(r))
			kvs_vclock_advance(&r->clk, next - now(r));
		assert_true(kvs_soft_run(r->d) > 0);
	}
	if (t != KVS_TIME_NEVER && t > now(r))
		kvs_vclock_advance(&r->clk, t - now(r));
}

static void run(struct rig *r)
{
	run_to(r, KVS_TIME_NEVER);
}

static int st(struct rig *r, size_t i)
{
	return kvs_device_query(r->d, &r->c[i]);
}

/* Bytes of copy @i's area that are there. */
static size_t moved(const struct rig *r, size_t i)
{
	size_t n = 0;
	size_t b;

	for (b = 0; b < LEN; b++) {
		assert_true(!r->dev[i * LEN + b] ||
			    r->dev[i * LEN + b] == i + 1);
		n += r->dev[i * LEN + b] != 0;
	}
	return n;
}

static void counted(struct rig *r, enum kvs_soft_fault k)
{
	const uint64_t *n = kvs_soft_faults(r->d);
	int i;

	for (i = KVS_SOFT_NO_FAULT + 1; i < KVS_SOFT_FAULT_MAX; i++)
		assert_int_equal(n[i], i == (int)k);
}

static const struct kvs_soft_chances slow = {
	.latency_min = 1000,
	.latency_max = 1000,
	.bytes_per_sec = 1000000000, /* one a ns */
	.piece = ITEM,
};

static struct rig *struck(uint64_t nth, enum kvs_soft_fault k, uint64_t at)
{
	struct rig *r = rig_new(1, &slow);

	r->nth = nth;
	r->fault = k;
	r->at = at;
	return r;
}

static void pieces(void **state)
{
	struct rig *r = rig_new(1, &slow);
	struct kvs_soft_stats s;
	uint8_t back[LEN];
	uint64_t t0 = now(r);
	size_t i;

	(void)state;
	submit(r, 2);
	assert_int_equal(kvs_soft_next(r->d), t0 + 1000 + ITEM);
	assert_int_equal(kvs_soft_run(r->d), 0);
	for (i = 1; i <= 2 * ITEMS; i++) {
		run_to(r, t0 + 1000 + i * ITEM - 1);
		assert_int_equal(moved(r, 0) + moved(r, 1), (i - 1) * ITEM);
		run_to(r, t0 + 1000 + i * ITEM);
		assert_int_equal(moved(r, 0) + moved(r, 1), i * ITEM);
		assert_int_equal(st(r, 0), i < ITEMS ? -EINPROGRESS : 0);
		assert_int_equal(st(r, 1), i < 2 * ITEMS ? -EINPROGRESS : 0);
	}
	assert_int_equal(kvs_soft_next(r->d), KVS_TIME_NEVER);
	assert_int_equal(kvs_soft_stats(r->d, &s), 0);
	assert_int_equal(s.copies, 2);
	assert_int_equal(s.failed, 0);
	assert_int_equal(s.bytes, 2 * LEN);
	counted(r, KVS_SOFT_NO_FAULT);

	/* and back, by the same pages */
	for (i = 0; i < LEN; i++)
		r->dev[i] = (uint8_t)kvs_mix64(i);
	r->c[0].dir = KVS_COPY_D2H;
	submit(r, 1);
	run(r);
	for (i = 0; i < LEN; i++)
		back[i] = (uint8_t)kvs_mix64(
			i >= LEN / 2 ? i
				     : pages[i / (ITEM / 2)] * (ITEM / 2) +
					       i % (ITEM / 2));
	assert_memory_equal(back, r->host[0], LEN);
	rig_free(r);
}

static void refuses(void **state)
{
	struct rig *r = rig_new(1, &slow);

	(void)state;
	r->run[0][1].dev = r->host;
	assert_int_equal(kvs_device_copy(r->d, &r->c[0]), -EINVAL);
	assert_int_equal(kvs_soft_next(r->d), KVS_TIME_NEVER);
	/* nothing to move is done all the same; the refused had no number */
	r->run[1][0].n = 0;
	r->run[1][1].n = 0;
	r->nth = 9;
	r->empty = true;
	assert_int_equal(kvs_device_copy(r->d, &r->c[1]), 0);
	run(r);
	assert_int_equal(st(r, 1), 0);
	assert_int_equal(r->c[1].order, 1);
	rig_free(r);
}

static void delay(void **state)
{
	struct rig *r = struck(2, KVS_SOFT_DELAY, 5000);
	uint64_t t0 = now(r);

	(void)state;
	submit(r, 3);
	run_to(r, t0 + 6000);
	assert_int_equal(st(r, 0), 0);
	assert_int_equal(moved(r, 1) + moved(r, 2), 0);
	run(r);
	assert_int_equal(now(r), t0 + 6000 + 2 * LEN);
	assert_int_equal(moved(r, 1) + moved(r, 2), 2 * LEN);
	counted(r, KVS_SOFT_DELAY);
	rig_free(r);
}

static void hold(void **state)
{
	uint64_t at;

	(void)state;
	for (at = 0; at <= LEN; at += 37) {
		struct rig *r = struck(2, KVS_SOFT_HOLD, at);

		submit(r, 3);
		run(r);
		assert_int_equal(st(r, 0), 0);
		assert_int_equal(st(r, 1), -EINPROGRESS);
		assert_int_equal(moved(r, 1), at);
		assert_int_equal(moved(r, 2), 0);
		assert_int_equal(kvs_soft_release(r->d), 0);
		run(r);
		assert_int_equal(st(r, 1), 0);
		assert_int_equal(moved(r, 1) + moved(r, 2), 2 * LEN);
		counted(r, KVS_SOFT_HOLD);
		rig_free(r);
	}
}

static void hold_released_early(void **state)
{
	struct rig *r = struck(2, KVS_SOFT_HOLD, 10);

	(void)state;
	submit(r, 3);
	assert_int_equal(kvs_soft_release(r->d), 0);
	run(r);
	assert_int_equal(st(r, 2), 0);
	assert_int_equal(moved(r, 1), LEN);
	counted(r, KVS_SOFT_NO_FAULT);
	rig_free(r);
}

static void fails(void **state)
{
	struct rig *r = struck(2, KVS_SOFT_FAIL, UINT64_MAX);
	struct kvs_soft_stats s;

	(void)state;
	submit(r, 3);
	run(r);
	assert_int_equal(st(r, 0), 0);
	assert_int_equal(st(r, 1), -EIO);
	assert_int_equal(st(r, 2), 0);
	assert_int_equal(moved(r, 1), 0);
	assert_int_equal(moved(r, 2), LEN);
	assert_int_equal(kvs_soft_stats(r->d, &s), 0);
	assert_int_equal(s.failed, 1);
	counted(r, KVS_SOFT_FAIL);
	rig_free(r);
}

static void partial(void **state)
{
	uint64_t at;

	(void)state;
	for (at = 0; at < LEN; at += 29) {
		struct rig *r = struck(2, KVS_SOFT_PARTIAL, at);

		submit(r, 3);
		run(r);
		assert_int_equal(st(r, 1), -EIO);
		assert_int_equal(moved(r, 1), at);
		assert_int_equal(st(r, 2), 0);
		counted(r, KVS_SOFT_PARTIAL);
		rig_free(r);
	}
}

static void reorder(void **state)
{
	struct rig *r = struck(3, KVS_SOFT_REORDER, UINT64_MAX);
	uint64_t t0 = now(r);

	(void)state;
	submit(r, 3);
	run_to(r, t0 + 1000 + 2 * LEN);
	assert_int_equal(st(r, 0), 0);
	assert_int_equal(st(r, 1), -EINPROGRESS);
	assert_int_equal(moved(r, 1), 0);
	assert_int_equal(st(r, 2), 0);
	run(r);
	assert_int_equal(st(r, 1), 0);
	counted(r, KVS_SOFT_REORDER);
	rig_free(r);

	/* what has begun is not overtaken */
	r = struck(2, KVS_SOFT_REORDER, UINT64_MAX);
	submit(r, 1);
	run_to(r, now(r) + 1000 + ITEM);
	assert_int_equal(kvs_device_copy(r->d, &r->c[1]), 0);
	run_to(r, now(r) + LEN - ITEM);
	assert_int_equal(st(r, 0), 0);
	run(r);
	assert_int_equal(st(r, 1), 0);
	counted(r, KVS_SOFT_NO_FAULT);
	rig_free(r);
}

/* All its bytes are there, others pass, and it still is not done with them. */
static void late(void **state)
{
	struct rig *r = struck(1, KVS_SOFT_LATE, 7000);
	uint64_t t0 = now(r);

	(void)state;
	submit(r, 2);
	run_to(r, t0 + 1000 + 2 * LEN);
	assert_int_equal(moved(r, 0), LEN);
	assert_int_equal(st(r, 0), -EINPROGRESS);
	assert_int_equal(st(r, 1), 0);
	/* who gives the place to another one now is overwritten */
	memset(r->dev, 0, LEN);
	run(r);
	assert_int_equal(now(r), t0 + 1000 + LEN + 7000);
	assert_int_equal(st(r, 0), 0);
	assert_int_equal(moved(r, 0), LEN);
	counted(r, KVS_SOFT_LATE);
	rig_free(r);
}

static void sticky(void **state)
{
	struct rig *r = struck(2, KVS_SOFT_STICKY, UINT64_MAX);

	(void)state;
	submit(r, 3);
	run(r);
	assert_int_equal(st(r, 0), 0);
	assert_int_equal(st(r, 1), -EIO);
	assert_int_equal(st(r, 2), -EIO);
	assert_int_equal(moved(r, 1) + moved(r, 2), 0);
	assert_int_equal(kvs_device_copy(r->d, &r->c[3]), -EIO);
	counted(r, KVS_SOFT_STICKY);
	rig_free(r);
}

static void never(void **state)
{
	struct rig *r = struck(2, KVS_SOFT_NEVER, 50);

	(void)state;
	submit(r, 3);
	run(r);
	assert_int_equal(kvs_soft_release(r->d), 0);
	run(r);
	assert_int_equal(st(r, 0), 0);
	assert_int_equal(st(r, 1), -EINPROGRESS);
	assert_int_equal(moved(r, 1), 50);
	assert_int_equal(st(r, 2), 0);
	assert_int_equal(kvs_soft_next(r->d), KVS_TIME_NEVER);
	counted(r, KVS_SOFT_NEVER);
	rig_free(r);
}

/* Statuses outlive the device: they are the caller's. */
static void closing(void **state)
{
	static const struct {
		enum kvs_soft_fault k;
		int status;
	} cases[] = {
		{ KVS_SOFT_NO_FAULT, 0 },   { KVS_SOFT_HOLD, 0 },
		{ KVS_SOFT_DELAY, 0 },	    { KVS_SOFT_LATE, 0 },
		{ KVS_SOFT_PARTIAL, -EIO }, { KVS_SOFT_NEVER, -EIO },
	};
	size_t i;
	int begun;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (begun = 0; begun < 2; begun++) {
			struct rig *r = struck(1, cases[i].k, 40);

			submit(r, 2);
			if (begun)
				run_to(r, now(r) + 1000 + 64);
			kvs_device_close(r->d);
			assert_int_equal(r->c[0].status, cases[i].status);
			assert_int_equal(r->c[1].status, 0);
			free(r);
		}
	}
}

static void killed(void **state)
{
	struct rig *r = struck(2, KVS_SOFT_LATE, 40);

	(void)state;
	submit(r, 3);
	run_to(r, now(r) + 1000 + LEN + 32);
	kvs_soft_kill(r->d);
	assert_int_equal(kvs_soft_next(r->d), KVS_TIME_NEVER);
	kvs_vclock_advance(&r->clk, 100000);
	assert_int_equal(kvs_soft_run(r->d), 0);
	assert_int_equal(moved(r, 1), 32);
	assert_int_equal(kvs_device_copy(r->d, &r->c[3]), -ENODEV);
	kvs_device_close(r->d);
	assert_int_equal(r->c[0].status, 0);
	assert_int_equal(r->c[1].status, -EINPROGRESS);
	assert_int_equal(r->c[2].status, -EINPROGRESS);
	free(r);
}

/* ---- chances ---- */

static const struct kvs_soft_chances storm = {
	.latency_min = 10,
	.latency_max = 400,
	.bytes_per_sec = 500000000,
	.piece = 24,
	.delay_max = 900,
	.delay = 0.1,
	.hold = 0.1,
	.fail = 0.1,
	.partial = 0.1,
	.reorder = 0.3,
	.late = 0.1,
	.sticky = 0.03,
	.never = 0.05,
};

/* When each copy was seen complete, and how; what never touched stays so. */
static uint64_t storm_run(uint64_t seed, uint64_t *sum)
{
	struct rig *r = rig_new(seed, &storm);
	int last[N] = { 0 };
	uint64_t hash = 0;
	bool given[N] = { false };
	bool again;
	size_t i;

	for (i = 0; i < N; i++) {
		given[i] = !kvs_device_copy(r->d, &r->c[i]);
		last[i] = -EINPROGRESS;
		run_to(r, now(r) + 50);
	}
	do {
		while (kvs_soft_next(r->d) != KVS_TIME_NEVER) {
			run_to(r, kvs_soft_next(r->d));
			for (i = 0; i < N; i++) {
				if (!given[i] || st(r, i) == last[i])
					continue;
				last[i] = st(r, i);
				hash = kvs_mix64(hash ^ now(r)) +
				       kvs_mix64(i * 1000 + (uint64_t)-last[i]);
				if (!last[i])
					assert_int_equal(moved(r, i), LEN);
			}
		}
		again = false;
		for (i = 0; i < N; i++)
			again |= given[i] && last[i] == -EINPROGRESS;
		kvs_soft_release(r->d);
	} while (again && kvs_soft_next(r->d) != KVS_TIME_NEVER);
	for (i = 0; i < KVS_SOFT_FAULT_MAX; i++)
		sum[i] += kvs_soft_faults(r->d)[i];
	kvs_device_close(r->d);
	for (i = 0; i < N; i++)
		assert_true(!given[i] || r->c[i].status != -EINPROGRESS);
	free(r);
	return hash;
}

static void chances(void **state)
{
	uint64_t one[KVS_SOFT_FAULT_MAX] = { 0 };
	uint64_t two[KVS_SOFT_FAULT_MAX] = { 0 };
	const char *s = getenv("KVS_TEST_SEED");
	uint64_t from = 1;
	uint64_t differ = 0;
	uint64_t prev = 0;
	uint64_t seed;
	int i;

	(void)state;
	if (s && kvs_parse_u64(s, &seed) == 0)
		from = seed;
	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)from);
	for (seed = from; seed < from + 500; seed++) {
		uint64_t h = storm_run(seed, one);

		assert_int_equal(h, storm_run(seed, two));
		differ += h != prev;
		prev = h;
	}
	assert_true(differ > 400);
	assert_memory_equal(one, two, sizeof(one));
	for (i = KVS_SOFT_NO_FAULT + 1; i < KVS_SOFT_FAULT_MAX; i++) {
		print_message("%s: %llu\n",
			      kvs_soft_fault_name((enum kvs_soft_fault)i),
			      (unsigned long long)one[i]);
		assert_true(one[i] > 10);
	}
	assert_string_equal(kvs_soft_fault_name(KVS_SOFT_FAULT_MAX), "?");
}

/* More bytes than any machine has, in the time that they take. */
static void phantom(void **state)
{
	const uint64_t item = 1ULL << 40;
	struct kvs_vclock clk;
	const struct kvs_soft_virtual_opts o = {
		.clock = &clk.clk,
		.chances = { .bytes_per_sec = 1ULL << 40 },
		.phantom = true,
	};
	void *host = (void *)((uintptr_t)1 << 61);
	struct kvs_copy_run run = { .host = host, .pages = pages };
	struct kvs_copy c = { .runs = &run, .n_runs = 1 };
	struct kvs_soft_stats st;
	struct kvs_device *d;
	void *one, *two;

	(void)state;
	kvs_vclock_init(&clk, 1000);
	assert_int_equal(kvs_soft_open_virtual(&o, &d), 0);
	assert_int_equal(kvs_device_alloc(d, ITEMS * item, &one), 0);
	assert_int_equal(kvs_device_alloc(d, ITEMS * item, &two), 0);
	assert_true((char *)two >= (char *)one + ITEMS * item);
	kvs_device_free(d, two);
	run.dev = one;
	run.item_len = item;
	run.n = ITEMS;
	c.dir = KVS_COPY_H2D;
	assert_int_equal(kvs_device_copy(d, &c), 0);
	assert_true(kvs_soft_next(d) == 1000 + ITEMS * KVS_NSEC_PER_SEC);
	kvs_vclock_advance(&clk, ITEMS * KVS_NSEC_PER_SEC - 1);
	assert_int_equal(kvs_soft_run(d), 0);
	assert_int_equal(kvs_device_query(d, &c), -EINPROGRESS);
	kvs_vclock_advance(&clk, 1);
	assert_int_equal(kvs_soft_run(d), 1);
	assert_int_equal(kvs_device_query(d, &c), 0);
	assert_int_equal(kvs_soft_stats(d, &st), 0);
	assert_true(st.bytes == ITEMS * item);
	assert_int_equal(kvs_device_peek(d, &st, one, 1), -EINVAL);
	/* what was not allocated stays refused */
	run.dev = (char *)one + 1;
	assert_int_equal(kvs_device_copy(d, &c), -EINVAL);
	kvs_device_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(phantom),
		cmocka_unit_test(pieces),
		cmocka_unit_test(refuses),
		cmocka_unit_test(delay),
		cmocka_unit_test(hold),
		cmocka_unit_test(hold_released_early),
		cmocka_unit_test(fails),
		cmocka_unit_test(partial),
		cmocka_unit_test(reorder),
		cmocka_unit_test(late),
		cmocka_unit_test(sticky),
		cmocka_unit_test(never),
		cmocka_unit_test(closing),
		cmocka_unit_test(killed),
		cmocka_unit_test(chances),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
