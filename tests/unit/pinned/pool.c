/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: at each step every byte is in one state and the sum is the size;
 * extents come all or none; what can never fit is told at once from what does
 * not fit now (LMCache#4209: the two were one, and waited for a timeout),
 * also where only quarantined bytes or the segments' borders are in the way
 * (sglang#31205: a head that can never run stalls the queue); memory returns
 * only with a drain that is over; the CPU may touch what it may and nothing
 * else (with the address sanitizer).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pinned/poison.h"
#include "pinned/pool.h"
#include "tests/unit/pinned/seed.h"

#define PAGE ((uint64_t)KVS_ARENA_ALIGN)
#define GIB (1ULL << 30)
#define TIB (1ULL << 40)

static struct kvs_timerq timers;
static struct kvs_drain_stats stats;
static struct kvs_drain over; /* a drain that is over: nobody was granted */

static int setup(void **state)
{
	const struct kvs_drain_opts o = {
		.generation = 1,
		.hold_timeout = 1,
		.clock = &kvs_clock_real,
		.timers = &timers,
		.stats = &stats,
	};

	(void)state;
	kvs_timerq_init(&timers);
	kvs_drain_init(&over, &o);
	kvs_drain_arm(&over);
	return !kvs_drain_is_over(&over);
}

static int teardown(void **state)
{
	(void)state;
	kvs_drain_fini(&over);
	kvs_timerq_fini(&timers);
	return 0;
}

static struct kvs_pool *make(void *base, uint64_t size, uint64_t segment)
{
	const struct kvs_pool_opts o = {
		.name = "receive",
		.node = 3,
		.base = base,
		.size = size,
		.segment = segment,
		.clock = &kvs_clock_real,
		.overtake_max = 64,
		.overtake_ns = KVS_NSEC_PER_SEC,
	};
	struct kvs_pool *p;

	assert_int_equal(kvs_pool_create(&o, &p), 0);
	return p;
}

static uint64_t in_state(const struct kvs_pool *p, enum kvs_extent_state s)
{
	struct kvs_pool_account a;

	kvs_pool_check(p);
	kvs_pool_account(p, &a);
	return a.bytes[s];
}

static int take(struct kvs_pool *p, uint64_t len, struct kvs_extents *x)
{
	return kvs_pool_alloc(p, &len, 1, x);
}

static int fits(const struct kvs_pool *p, uint64_t len)
{
	return kvs_pool_can_fit(p, &len, 1, NULL);
}

static void to_quarantine(struct kvs_extents *x)
{
	kvs_extents_set_state(x, KVS_EXTENT_GRANTED);
	kvs_extents_set_state(x, KVS_EXTENT_HELD);
	kvs_extents_set_state(x, KVS_EXTENT_QUARANTINED);
}

static void getters(void **state)
{
	struct kvs_pool *p = make(NULL, 10 * PAGE, 4 * PAGE);
	struct kvs_pool_account a;

	(void)state;
	assert_string_equal(kvs_pool_name(p), "receive");
	assert_int_equal(kvs_pool_node(p), 3);
	assert_null(kvs_pool_base(p));
	assert_true(kvs_pool_size(p) == 10 * PAGE);
	assert_true(kvs_pool_segment(p) == 4 * PAGE);
	assert_int_equal(kvs_pool_waitq(p)->len, 0);
	kvs_pool_account(p, &a);
	assert_true(a.configured == 10 * PAGE && a.high_water == 0);
	assert_true(a.bytes[KVS_EXTENT_FREE] == 10 * PAGE);
	assert_true(kvs_pool_round(0) == 0);
	assert_true(kvs_pool_round(1) == PAGE);
	assert_true(kvs_pool_round(PAGE) == PAGE);
	assert_true(kvs_pool_round(UINT64_MAX) >= UINT64_MAX - PAGE);
	kvs_pool_destroy(p);
	kvs_pool_destroy(NULL);
}

static void bad_options(void **state)
{
	const struct kvs_pool_opts good = {
		.name = "x",
		.size = 16 * PAGE,
		.clock = &kvs_clock_real,
	};
	struct kvs_pool_opts o;
	struct kvs_pool *p = NULL;

	(void)state;
	o = good;
	o.name = NULL;
	assert_int_equal(kvs_pool_create(&o, &p), -EINVAL);
	o = good;
	o.clock = NULL;
	assert_int_equal(kvs_pool_create(&o, &p), -EINVAL);
	o = good;
	o.size = 0;
	assert_int_equal(kvs_pool_create(&o, &p), -EINVAL);
	o = good;
	o.size++;
	assert_int_equal(kvs_pool_create(&o, &p), -EINVAL);
	o = good;
	o.base = (void *)(uintptr_t)17;
	assert_int_equal(kvs_pool_create(&o, &p), -EINVAL);
	o = good;
	o.base = (void *)(UINTPTR_MAX - PAGE + 1);
	assert_int_equal(kvs_pool_create(&o, &p), -EINVAL);
	assert_null(p);
}

/* Each way through the states; the bytes are where the extents are. */
static void states_and_books(void **state)
{
	static const enum kvs_extent_state path[][8] = {
		/* granted never: straight back */
		{ KVS_EXTENT_FREE },
		/* a room that is committed and donated */
		{ KVS_EXTENT_GRANTED, KVS_EXTENT_STAGED, KVS_EXTENT_COMMITTING,
		  KVS_EXTENT_CACHED, KVS_EXTENT_FREE },
		/* aborted in each state */
		{ KVS_EXTENT_HELD, KVS_EXTENT_FREE },
		{ KVS_EXTENT_GRANTED, KVS_EXTENT_HELD, KVS_EXTENT_FREE },
		{ KVS_EXTENT_GRANTED, KVS_EXTENT_STAGED, KVS_EXTENT_HELD,
		  KVS_EXTENT_QUARANTINED, KVS_EXTENT_FREE },
		{ KVS_EXTENT_GRANTED, KVS_EXTENT_STAGED, KVS_EXTENT_COMMITTING,
		  KVS_EXTENT_HELD, KVS_EXTENT_FREE },
		{ KVS_EXTENT_GRANTED, KVS_EXTENT_STAGED, KVS_EXTENT_CACHED,
		  KVS_EXTENT_HELD, KVS_EXTENT_FREE },
		/* retracted and resumed */
		{ KVS_EXTENT_GRANTED, KVS_EXTENT_STAGED, KVS_EXTENT_RETRACTED,
		  KVS_EXTENT_COMMITTING, KVS_EXTENT_FREE },
	};
	const uint64_t lens[3] = { 1, PAGE, 2 * PAGE + 1 };
	struct kvs_pool *p = make(NULL, 16 * PAGE, 0);
	struct kvs_pool_account a;
	struct kvs_extents x;
	unsigned int i, k;
	uint64_t last = 0;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(path); i++) {
		assert_int_equal(kvs_pool_alloc(p, lens, 3, &x), 0);
		assert_int_equal(x.n, 3);
		assert_ptr_equal(x.pool, p);
		assert_true(x.bytes == 5 * PAGE);
		for (k = 0; k < 3; k++) {
			assert_true(x.v[k].len == lens[k]);
			assert_true(x.v[k].off % PAGE == 0);
			assert_int_equal(x.v[k].state, KVS_EXTENT_RESERVED);
			/* a generation is never handed out twice */
			assert_true(x.v[k].generation > last);
			last = x.v[k].generation;
			assert_null(kvs_extent_addr(&x, k));
		}
		assert_true(in_state(p, KVS_EXTENT_RESERVED) == 5 * PAGE);
		assert_true(in_state(p, KVS_EXTENT_FREE) == 11 * PAGE);
		for (k = 0; path[i][k] != KVS_EXTENT_FREE; k++) {
			kvs_extents_set_state(&x, path[i][k]);
			assert_true(in_state(p, path[i][k]) == 5 * PAGE);
			assert_true(in_state(p, KVS_EXTENT_FREE) == 11 * PAGE);
		}
		kvs_pool_release(&x, &over);
		assert_true(in_state(p, KVS_EXTENT_FREE) == 16 * PAGE);
		assert_null(x.v);
		assert_int_equal(x.n, 0);
		/* what is empty may be given back and moved again */
		kvs_pool_release(&x, &over);
		kvs_extents_set_state(&x, KVS_EXTENT_HELD);
	}
	kvs_pool_account(p, &a);
	assert_true(a.high_water == 5 * PAGE);
	kvs_pool_destroy(p);
}

struct edge {
	struct kvs_extents *x;
	enum kvs_extent_state to;
};

static void move(void *arg)
{
	struct edge *e = arg;

	kvs_extents_set_state(e->x, e->to);
}

/* No state leads where it must not: held bytes are never read again. */
static void illegal_edges_end_the_process(void **state)
{
	static const bool from_held[KVS_EXTENT_STATE_MAX] = {
		[KVS_EXTENT_QUARANTINED] = true,
	};
	static const bool from_granted[KVS_EXTENT_STATE_MAX] = {
		[KVS_EXTENT_STAGED] = true,
		[KVS_EXTENT_HELD] = true,
	};
	struct kvs_pool *p = make(NULL, 16 * PAGE, 0);
	struct kvs_extents x;
	struct edge e = { .x = &x };
	unsigned int to;

	(void)state;
	assert_int_equal(take(p, PAGE, &x), 0);
	kvs_extents_set_state(&x, KVS_EXTENT_GRANTED);
	for (to = 0; to < KVS_EXTENT_STATE_MAX; to++) {
		e.to = to;
		assert_int_equal(aborts(move, &e), !from_granted[to]);
	}
	kvs_extents_set_state(&x, KVS_EXTENT_HELD);
	for (to = 0; to < KVS_EXTENT_STATE_MAX; to++) {
		e.to = to;
		assert_int_equal(aborts(move, &e), !from_held[to]);
	}
	kvs_extents_set_state(&x, KVS_EXTENT_QUARANTINED);
	for (to = 0; to < KVS_EXTENT_STATE_MAX; to++) {
		e.to = to;
		assert_true(aborts(move, &e));
	}
	kvs_pool_release(&x, &over);
	kvs_pool_destroy(p);
}

/* 64 pages: 65 never; 64 now; 64 while one is out later; 64 while one is
 * quarantined never, and the reason is told. */
static void never_against_not_now(void **state)
{
	struct kvs_pool *p = make(NULL, 64 * PAGE, 0);
	uint64_t len = 64 * PAGE, two[2] = { 32 * PAGE, 32 * PAGE + 1 };
	struct kvs_extents x, y = { .n = 77 };
	bool blocks = true;

	(void)state;
	assert_int_equal(take(p, 65 * PAGE, &y), -E2BIG);
	assert_int_equal(fits(p, 65 * PAGE), -E2BIG);
	assert_int_equal(take(p, 64 * PAGE + 1, &y), -E2BIG);
	assert_int_equal(kvs_pool_alloc(p, two, 2, &y), -E2BIG);
	assert_int_equal(kvs_pool_can_fit(p, two, 2, &blocks), -E2BIG);
	assert_false(blocks);
	assert_int_equal(take(p, UINT64_MAX, &y), -E2BIG);
	assert_int_equal(take(p, 0, &y), -EINVAL);
	assert_int_equal(kvs_pool_alloc(p, &len, 0, &y), -EINVAL);
	assert_int_equal(kvs_pool_can_fit(p, &len, 0, NULL), -EINVAL);
	two[0] = 0;
	assert_int_equal(kvs_pool_can_fit(p, two, 2, &blocks), -EINVAL);

	assert_int_equal(fits(p, 64 * PAGE), 0);
	assert_int_equal(take(p, 64 * PAGE, &x), 0);
	/* that it is full changes nothing about never */
	assert_int_equal(take(p, 65 * PAGE, &y), -E2BIG);
	assert_int_equal(take(p, 64 * PAGE, &y), -EAGAIN);
	assert_int_equal(fits(p, 64 * PAGE), 0);
	kvs_pool_release(&x, &over);

	assert_int_equal(take(p, PAGE, &x), 0);
	assert_int_equal(take(p, 64 * PAGE, &y), -EAGAIN);
	kvs_extents_set_state(&x, KVS_EXTENT_GRANTED);
	kvs_extents_set_state(&x, KVS_EXTENT_HELD);
	assert_int_equal(take(p, 64 * PAGE, &y), -EAGAIN);
	kvs_extents_set_state(&x, KVS_EXTENT_QUARANTINED);
	assert_int_equal(take(p, 64 * PAGE, &y), -E2BIG);
	assert_int_equal(kvs_pool_can_fit(p, &len, 1, &blocks), -E2BIG);
	assert_true(blocks);
	len = 65 * PAGE;
	assert_int_equal(kvs_pool_can_fit(p, &len, 1, &blocks), -E2BIG);
	assert_false(blocks);
	len = 63 * PAGE;
	assert_int_equal(kvs_pool_can_fit(p, &len, 1, &blocks), 0);
	assert_false(blocks);
	/* a failure filled nothing in */
	assert_int_equal(y.n, 77);
	assert_null(y.v);
	assert_int_equal(take(p, 63 * PAGE, &y), 0);
	kvs_pool_release(&y, &over);
	kvs_pool_release(&x, &over);
	assert_int_equal(take(p, 64 * PAGE, &x), 0);
	kvs_pool_release(&x, &over);
	kvs_pool_destroy(p);
}

/* The sum fits but no arrangement does: never, and not "wait for it". */
static void segments_count(void **state)
{
	struct kvs_pool *p = make(NULL, 128 * PAGE, 64 * PAGE);
	uint64_t three[3] = { 43 * PAGE, 43 * PAGE, 42 * PAGE };
	uint64_t four[4] = { 32 * PAGE, 32 * PAGE, 32 * PAGE, 32 * PAGE };
	struct kvs_extents x, y;
	bool blocks = true;

	(void)state;
	assert_int_equal(fits(p, 64 * PAGE + 1), -E2BIG);
	assert_int_equal(kvs_pool_can_fit(p, three, 3, &blocks), -E2BIG);
	assert_false(blocks);
	assert_int_equal(kvs_pool_alloc(p, three, 3, &x), -E2BIG);
	assert_int_equal(kvs_pool_can_fit(p, three, 2, NULL), 0);
	assert_int_equal(kvs_pool_can_fit(p, four, 4, NULL), 0);
	assert_int_equal(kvs_pool_alloc(p, four, 4, &x), 0);
	assert_int_equal(kvs_pool_alloc(p, three, 3, &y), -E2BIG);
	assert_int_equal(kvs_pool_alloc(p, three, 2, &y), -EAGAIN);
	kvs_pool_release(&x, &over);
	kvs_pool_destroy(p);
}

/* Quarantined pieces are all that is out, and split what is free. */
static void quarantine_splits(void **state)
{
	struct kvs_pool *p = make(NULL, 64 * PAGE, 0);
	struct kvs_extents x, y, z;

	(void)state;
	assert_int_equal(take(p, 31 * PAGE, &x), 0);
	assert_int_equal(take(p, PAGE, &y), 0);
	to_quarantine(&y);
	/* something else is out: it may help to wait */
	assert_int_equal(take(p, 60 * PAGE, &z), -EAGAIN);
	kvs_pool_release(&x, &over);
	assert_int_equal(take(p, 60 * PAGE, &z), -E2BIG);
	assert_int_equal(take(p, 32 * PAGE, &z), 0);
	kvs_pool_release(&z, &over);
	kvs_pool_release(&y, &over);
	assert_int_equal(take(p, 60 * PAGE, &z), 0);
	kvs_pool_release(&z, &over);
	kvs_pool_destroy(p);
}

/* The last of n does not fit: the others were never taken. */
static void all_or_nothing(void **state)
{
	struct kvs_pool *p = make(NULL, 64 * PAGE, 16 * PAGE);
	uint64_t lens[5] = { 15 * PAGE, 15 * PAGE, 15 * PAGE, 10 * PAGE,
			     2 * PAGE };
	struct kvs_pool_account before, after;
	struct kvs_extents x, y, z;
	uint64_t generation;

	(void)state;
	assert_int_equal(take(p, 10 * PAGE, &x), 0);
	kvs_pool_account(p, &before);
	/* 54 pages free; 47 asked for, but 15, 15, 15 and then 10 + 2 in 6 */
	assert_int_equal(kvs_pool_alloc(p, lens, 5, &y), -EAGAIN);
	kvs_pool_account(p, &after);
	assert_memory_equal(&before, &after, sizeof(before));
	kvs_pool_check(p);
	generation = x.v[0].generation;
	lens[3] = 6 * PAGE;
	assert_int_equal(kvs_pool_alloc(p, lens, 4, &y), 0);
	assert_true(y.v[0].generation == generation + 1);
	assert_int_equal(take(p, PAGE, &z), 0);
	kvs_pool_release(&z, &over);
	kvs_pool_release(&y, &over);
	kvs_pool_release(&x, &over);
	kvs_pool_destroy(p);
}

struct release {
	struct kvs_extents *x;
	struct kvs_drain *d;
};

static void do_release(void *arg)
{
	struct release *a = arg;

	kvs_pool_release(a->x, a->d);
}

static void do_destroy(void *arg)
{
	kvs_pool_destroy(arg);
}

static const struct kvs_party_ops io_ops = {
	.name = "io",
	.kind = KVS_PARTY_IO,
};

static void release_needs_a_finished_drain(void **state)
{
	const struct kvs_drain_opts o = {
		.generation = 2,
		.hold_timeout = 10,
		.clock = &kvs_clock_real,
		.timers = &timers,
		.stats = &stats,
	};
	struct kvs_pool *p = make(NULL, 16 * PAGE, 0);
	struct kvs_party party;
	struct kvs_extents x;
	struct kvs_drain d;
	struct release a = { &x, &d };

	(void)state;
	kvs_drain_init(&d, &o);
	kvs_party_init(&party, &io_ops, 0);
	assert_int_equal(take(p, PAGE, &x), 0);
	/* open, with nobody in it */
	assert_true(aborts(do_release, &a));
	assert_int_equal(kvs_drain_join(&d, &party), 0);
	kvs_extents_set_state(&x, KVS_EXTENT_GRANTED);
	assert_true(aborts(do_release, &a));
	/* armed */
	kvs_drain_arm(&d);
	kvs_extents_set_state(&x, KVS_EXTENT_HELD);
	assert_true(aborts(do_release, &a));
	/* stuck */
	kvs_timerq_run(&timers, KVS_TIME_NEVER);
	assert_int_equal(d.state, KVS_DRAIN_STUCK);
	kvs_extents_set_state(&x, KVS_EXTENT_QUARANTINED);
	assert_true(aborts(do_release, &a));
	assert_true(aborts(do_destroy, p));
	/* over */
	kvs_party_leave(&party, KVS_PROOF_IO_COMPLETION);
	assert_false(aborts(do_release, &a));
	kvs_pool_release(&x, &d);
	kvs_drain_fini(&d);
	kvs_pool_destroy(p);
}

static void touch(void *arg)
{
	*(volatile char *)arg = 1;
}

static void touches(void *addr, bool may)
{
	assert_int_equal(KVS_IS_POISONED(addr), !may);
	assert_int_equal(status_of(touch, addr) == 0, may);
}

static void poisoned_unless_owned(void **state)
{
	const uint64_t size = 16 * PAGE, lens[2] = { 100, PAGE + 8 };
	struct kvs_extents x;
	struct kvs_pool *p;
	char *base, *a;

	(void)state;
	if (!KVS_POISON_ACTIVE) {
		print_message("skipped: built without address sanitizer\n");
		skip();
	}
	base = mmap(NULL, size, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(base, MAP_FAILED);
	touches(base, true);
	p = make(base, size, 0);
	touches(base, false);
	touches(base + size - 1, false);

	assert_int_equal(kvs_pool_alloc(p, lens, 2, &x), 0);
	a = kvs_extent_addr(&x, 1);
	assert_ptr_equal(a, base + x.v[1].off);
	touches(a, false);
	kvs_extents_set_state(&x, KVS_EXTENT_GRANTED);
	touches(a, true);
	touches(a + lens[1] - 1, true);
	/* the rest of the block is nobody's */
	touches(a + lens[1], false);
	touches(kvs_extent_addr(&x, 0), true);
	kvs_extents_set_state(&x, KVS_EXTENT_STAGED);
	touches(a, true);
	kvs_extents_set_state(&x, KVS_EXTENT_COMMITTING);
	touches(a, true);
	kvs_extents_set_state(&x, KVS_EXTENT_HELD);
	touches(a, false);
	touches(kvs_extent_addr(&x, 0), false);
	kvs_extents_set_state(&x, KVS_EXTENT_QUARANTINED);
	touches(a, false);
	kvs_pool_release(&x, &over);
	touches(a, false);

	/* released while readable */
	assert_int_equal(kvs_pool_alloc(p, lens, 2, &x), 0);
	a = kvs_extent_addr(&x, 1);
	kvs_extents_set_state(&x, KVS_EXTENT_GRANTED);
	kvs_extents_set_state(&x, KVS_EXTENT_STAGED);
	kvs_extents_set_state(&x, KVS_EXTENT_CACHED);
	touches(a, true);
	kvs_pool_release(&x, &over);
	touches(a, false);
	kvs_pool_destroy(p);
	/* nobody's pool any more: ordinary memory */
	touches(base, true);
	munmap(base, size);
}

/* 2 TiB with nothing behind, 100,000 live rooms of random shapes. */
static void phantom_of_production_size(void **state)
{
	static struct kvs_extents x[100000];
	static uint64_t all[2048];
	struct kvs_pool *p = make(NULL, 2 * TIB, 0);
	struct kvs_pool_account a;
	unsigned int i, k, n;
	uint64_t lens[8], sum;
	struct kvs_rng r;

	(void)state;
	seed_rng(&r);
	for (i = 0; i < KVS_ARRAY_SIZE(x); i++) {
		n = 1 + (unsigned int)kvs_rng_below(&r, 8);
		for (k = 0; k < n; k++)
			lens[k] = 1 + kvs_rng_below(&r, 4 << 20);
		assert_int_equal(kvs_pool_alloc(p, lens, n, &x[i]), 0);
		assert_null(kvs_extent_addr(&x[i], n - 1));
	}
	for (i = 0; i < 200000; i++) {
		k = (unsigned int)kvs_rng_below(&r, KVS_ARRAY_SIZE(x));
		if (x[k].v[0].state == KVS_EXTENT_RESERVED) {
			kvs_extents_set_state(&x[k], KVS_EXTENT_GRANTED);
			continue;
		}
		kvs_pool_release(&x[k], &over);
		assert_int_equal(
			take(p, 1 + kvs_rng_below(&r, GIB / 64), &x[k]), 0);
	}
	kvs_pool_check(p);
	kvs_pool_account(p, &a);
	for (sum = 0, i = 0; i < KVS_ARRAY_SIZE(x); i++)
		sum += x[i].bytes;
	assert_true(sum == 2 * TIB - a.bytes[KVS_EXTENT_FREE]);
	for (i = 0; i < KVS_ARRAY_SIZE(x); i++)
		kvs_pool_release(&x[i], &over);
	kvs_pool_account(p, &a);
	assert_true(a.bytes[KVS_EXTENT_FREE] == 2 * TIB);
	assert_true(a.high_water >= sum);
	/* one room as large as everything */
	for (i = 0; i < KVS_ARRAY_SIZE(all); i++)
		all[i] = GIB;
	assert_int_equal(kvs_pool_alloc(p, all, 2048, &x[0]), 0);
	assert_int_equal(take(p, 1, &x[1]), -EAGAIN);
	kvs_pool_release(&x[0], &over);
	kvs_pool_destroy(p);
}

/* can_fit() says yes exactly when an empty pool takes it. */
static void can_fit_is_exact(void **state)
{
	uint64_t lens[12], pages, seg;
	unsigned int i, k, n, yes = 0, no = 0;
	struct kvs_extents x;
	struct kvs_pool *p;
	struct kvs_rng r;
	int can, got;

	(void)state;
	seed_rng(&r);
	for (i = 0; i < 5000; i++) {
		pages = 20 + kvs_rng_below(&r, 400);
		seg = 10 + kvs_rng_below(&r, 100);
		p = make(NULL, pages * PAGE, seg * PAGE);
		n = 1 + (unsigned int)kvs_rng_below(&r, 12);
		for (k = 0; k < n; k++)
			lens[k] = 1 + kvs_rng_below(&r, pages * PAGE / n);
		can = kvs_pool_can_fit(p, lens, n, NULL);
		got = kvs_pool_alloc(p, lens, n, &x);
		assert_int_equal(can, got);
		if (got) {
			assert_int_equal(got, -E2BIG);
			no++;
		} else {
			kvs_pool_release(&x, &over);
			yes++;
		}
		kvs_pool_destroy(p);
	}
	print_message("%u fit, %u did not\n", yes, no);
	assert_true(yes > 100 && no > 100);
}

static void every_name_is_there(void **state)
{
	unsigned int i;

	(void)state;
	for (i = 0; i < KVS_EXTENT_STATE_MAX; i++)
		assert_non_null(kvs_extent_state_name[i]);
	assert_string_equal(kvs_extent_state_name[KVS_EXTENT_RETRACTED],
			    "retracted");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(getters),
		cmocka_unit_test(bad_options),
		cmocka_unit_test(states_and_books),
		cmocka_unit_test(illegal_edges_end_the_process),
		cmocka_unit_test(never_against_not_now),
		cmocka_unit_test(segments_count),
		cmocka_unit_test(quarantine_splits),
		cmocka_unit_test(all_or_nothing),
		cmocka_unit_test(release_needs_a_finished_drain),
		cmocka_unit_test(poisoned_unless_owned),
		cmocka_unit_test(phantom_of_production_size),
		cmocka_unit_test(can_fit_is_exact),
		cmocka_unit_test(every_name_is_there),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
