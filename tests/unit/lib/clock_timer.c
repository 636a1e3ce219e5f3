/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: clocks do not go back and the virtual one moves only when told;
 * timers fire once, in deadline order and, where equal, in the order set;
 * what a callback sets for the past waits for the next run and holds nothing
 * else up; a random walk of set, reset, cancel and run agrees with a model
 * that searches an array.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/rng.h"
#include "lib/timer.h"

static void clock_real_monotonic(void **state)
{
	uint64_t last = kvs_clock_now(&kvs_clock_real);
	uint64_t start = last;
	unsigned int i;

	(void)state;
	for (i = 0; i < 10000; i++) {
		uint64_t t = kvs_clock_now(&kvs_clock_real);

		assert_true(t >= last);
		last = t;
	}
	assert_true(last > start);
	/* nanoseconds since boot: more than none, less than a century */
	assert_true(start > 0 && start < 100ULL * 366 * 86400 * 1000000000);
}

static void clock_thread_cpu_counts(void **state)
{
	uint64_t cpu = kvs_clock_thread_cpu();
	uint64_t wall = kvs_clock_now(&kvs_clock_real);
	uint64_t used, passed;

	(void)state;
	/* ends by CPU use, however slow the machine */
	do {
		used = kvs_clock_thread_cpu() - cpu;
	} while (used < KVS_NSEC_PER_MSEC);
	passed = kvs_clock_now(&kvs_clock_real) - wall;
	/* two clocks, two granularities: a millisecond of grace */
	assert_true(used <= passed + KVS_NSEC_PER_MSEC);
}

static void clock_virtual(void **state)
{
	struct kvs_vclock v;

	(void)state;
	kvs_vclock_init(&v, 1000);
	assert_true(kvs_clock_now(&v.clk) == 1000);
	assert_true(kvs_clock_now(&v.clk) == 1000);
	kvs_vclock_advance(&v, 0);
	assert_true(kvs_clock_now(&v.clk) == 1000);
	kvs_vclock_advance(&v, 7);
	assert_true(kvs_clock_now(&v.clk) == 1007);
	kvs_vclock_advance(&v, UINT64_MAX);
	assert_true(kvs_clock_now(&v.clk) == KVS_TIME_NEVER - 1);
	kvs_vclock_advance(&v, 1);
	assert_true(kvs_clock_now(&v.clk) == KVS_TIME_NEVER - 1);
	kvs_vclock_init(&v, UINT64_MAX);
	assert_true(kvs_clock_now(&v.clk) == KVS_TIME_NEVER - 1);
}

#define TIMERS 40
#define FIRED_MAX 64

struct tick {
	struct kvs_timer t;
	int id;
	/* what the callback does, if anything */
	struct tick *set;
	uint64_t set_at;
	struct tick *cancel;
};

static struct kvs_timerq queue;
static int fired[FIRED_MAX];
static size_t n_fired;

static void on_fire(struct kvs_timer *t)
{
	struct tick *k = kvs_container_of(t, struct tick, t);

	assert_false(kvs_timer_is_set(t));
	assert_true(n_fired < FIRED_MAX);
	fired[n_fired++] = k->id;
	if (k->cancel)
		kvs_timer_cancel(&queue, &k->cancel->t);
	if (k->set)
		assert_int_equal(kvs_timer_set(&queue, &k->set->t, k->set_at),
				 0);
}

static void ticks_init(struct tick *k, int n)
{
	int i;

	kvs_timerq_init(&queue);
	n_fired = 0;
	for (i = 0; i < n; i++) {
		k[i] = (struct tick){ .id = i };
		kvs_timer_init(&k[i].t, on_fire);
	}
}

static void set(struct tick *k, uint64_t at)
{
	assert_int_equal(kvs_timer_set(&queue, &k->t, at), 0);
	assert_true(kvs_timer_is_set(&k->t));
}

static void run(uint64_t now, const int *id, size_t n)
{
	size_t i;

	n_fired = 0;
	assert_int_equal(kvs_timerq_run(&queue, now), n);
	assert_int_equal(n_fired, n);
	for (i = 0; i < n; i++)
		assert_int_equal(fired[i], id[i]);
}

static void timer_order(void **state)
{
	struct tick k[6];

	(void)state;
	ticks_init(k, 6);
	assert_true(kvs_timerq_next(&queue) == KVS_TIME_NEVER);
	run(UINT64_MAX, NULL, 0);
	set(&k[0], 30);
	set(&k[1], 10);
	set(&k[2], 20);
	set(&k[3], 10);
	set(&k[4], 10);
	set(&k[5], 0);
	assert_true(kvs_timerq_next(&queue) == 0);
	run(0, (const int[]){ 5 }, 1);
	assert_true(kvs_timerq_next(&queue) == 10);
	run(9, NULL, 0);
	run(20, (const int[]){ 1, 3, 4, 2 }, 4);
	run(20, NULL, 0);
	assert_true(kvs_timerq_next(&queue) == 30);
	run(1000, (const int[]){ 0 }, 1);
	assert_true(kvs_timerq_next(&queue) == KVS_TIME_NEVER);
	kvs_timerq_fini(&queue);
}

static void timer_reset_and_cancel(void **state)
{
	struct tick k[3];

	(void)state;
	ticks_init(k, 3);
	kvs_timer_cancel(&queue, &k[0].t);
	set(&k[0], 10);
	set(&k[1], 10);
	set(&k[2], 10);
	/* setting again moves it behind its equals */
	set(&k[0], 10);
	kvs_timer_cancel(&queue, &k[1].t);
	assert_false(kvs_timer_is_set(&k[1].t));
	kvs_timer_cancel(&queue, &k[1].t);
	run(10, (const int[]){ 2, 0 }, 2);
	set(&k[0], 50);
	set(&k[1], 40);
	set(&k[0], 30);
	assert_true(kvs_timerq_next(&queue) == 30);
	set(&k[0], 60);
	assert_true(kvs_timerq_next(&queue) == 40);
	run(100, (const int[]){ 1, 0 }, 2);
	kvs_timerq_fini(&queue);
}

static void timer_callback_sets_the_past(void **state)
{
	struct tick k[4];

	(void)state;
	ticks_init(k, 4);
	/* sets itself for long ago: must neither spin nor hide 1 and 2 */
	k[0].set = &k[0];
	k[0].set_at = 0;
	set(&k[0], 5);
	set(&k[1], 10);
	set(&k[2], 100);
	set(&k[3], 101);
	run(100, (const int[]){ 0, 1, 2 }, 3);
	assert_true(kvs_timer_is_set(&k[0].t));
	assert_true(kvs_timerq_next(&queue) <= 100);
	k[0].set = NULL;
	run(100, (const int[]){ 0 }, 1);
	/* the floor of a run ends with it */
	set(&k[1], 3);
	assert_true(kvs_timerq_next(&queue) == 3);
	run(101, (const int[]){ 1, 3 }, 2);
	kvs_timerq_fini(&queue);
}

static void timer_callback_touches_others(void **state)
{
	struct tick k[4];

	(void)state;
	ticks_init(k, 4);
	/* 0 cancels 1, which is due; 2 puts off 3, which is due as well */
	k[0].cancel = &k[1];
	k[2].set = &k[3];
	k[2].set_at = 500;
	set(&k[0], 1);
	set(&k[1], 2);
	set(&k[2], 3);
	set(&k[3], 4);
	run(10, (const int[]){ 0, 2 }, 2);
	assert_false(kvs_timer_is_set(&k[1].t));
	assert_true(kvs_timerq_next(&queue) == 500);
	run(500, (const int[]){ 3 }, 1);
	kvs_timerq_fini(&queue);
}

static void fire_and_free(struct kvs_timer *t)
{
	fired[n_fired++] = kvs_container_of(t, struct tick, t)->id;
	free(kvs_container_of(t, struct tick, t));
}

static void timer_callback_frees(void **state)
{
	int i;

	(void)state;
	kvs_timerq_init(&queue);
	for (i = 0; i < 3; i++) {
		struct tick *k = calloc(1, sizeof(*k));

		assert_non_null(k);
		k->id = i;
		kvs_timer_init(&k->t, fire_and_free);
		set(k, (uint64_t)(3 - i));
	}
	run(3, (const int[]){ 2, 1, 0 }, 3);
	kvs_timerq_fini(&queue);
}

static void timer_fini_forgets(void **state)
{
	struct tick k[1];

	(void)state;
	ticks_init(k, 1);
	set(&k[0], 10);
	kvs_timerq_fini(&queue);
	assert_true(kvs_timerq_next(&queue) == KVS_TIME_NEVER);
	run(UINT64_MAX, NULL, 0);
	kvs_timerq_fini(&queue);
}

struct model {
	bool set[TIMERS];
	uint64_t at[TIMERS];
	uint64_t seq[TIMERS];
	uint64_t next_seq;
};

/* Earliest, or -1. */
static int model_first(const struct model *m)
{
	int best = -1;
	int i;

	for (i = 0; i < TIMERS; i++) {
		if (!m->set[i])
			continue;
		if (best < 0 || m->at[i] < m->at[best] ||
		    (m->at[i] == m->at[best] && m->seq[i] < m->seq[best]))
			best = i;
	}
	return best;
}

static void model_check(const struct model *m)
{
	int best = model_first(m);
	size_t n = 0;
	int i;

	for (i = 0; i < TIMERS; i++)
		n += m->set[i];
	assert_int_equal(queue.n, n);
	assert_true(kvs_timerq_next(&queue) ==
		    (best < 0 ? KVS_TIME_NEVER : m->at[best]));
}

#define WALK_STEPS 20000

static void timer_random_walk(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	struct tick k[TIMERS];
	struct model m = { 0 };
	struct kvs_vclock v;
	struct kvs_rng r;
	int step;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	kvs_vclock_init(&v, 0);
	ticks_init(k, TIMERS);
	for (step = 0; step < WALK_STEPS; step++) {
		int i = (int)kvs_rng_below(&r, TIMERS);
		uint64_t now = kvs_clock_now(&v.clk);
		int want[TIMERS];
		size_t n = 0;

		switch (kvs_rng_below(&r, 8)) {
		case 0:
			kvs_timer_cancel(&queue, &k[i].t);
			m.set[i] = false;
			break;
		case 1:
			kvs_vclock_advance(&v, kvs_rng_below(&r, 20));
			now = kvs_clock_now(&v.clk);
			while ((i = model_first(&m)) >= 0 && m.at[i] <= now) {
				m.set[i] = false;
				want[n++] = i;
			}
			run(now, want, n);
			break;
		default:
			m.set[i] = true;
			/* a narrow range, so that equal deadlines are common */
			m.at[i] = now + kvs_rng_below(&r, 30);
			m.seq[i] = m.next_seq++;
			set(&k[i], m.at[i]);
			break;
		}
		model_check(&m);
	}
	kvs_timerq_fini(&queue);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clock_real_monotonic),
		cmocka_unit_test(clock_thread_cpu_counts),
		cmocka_unit_test(clock_virtual),
		cmocka_unit_test(timer_order),
		cmocka_unit_test(timer_reset_and_cancel),
		cmocka_unit_test(timer_callback_sets_the_past),
		cmocka_unit_test(timer_callback_touches_others),
		cmocka_unit_test(timer_callback_frees),
		cmocka_unit_test(timer_fini_forgets),
		cmocka_unit_test(timer_random_walk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
