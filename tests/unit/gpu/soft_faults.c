/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: each fault of the soft device's plan does what it says and nothing
 * else: the failing copy and only that one, no byte or exactly half of the
 * runs, the sticky error from its copy on; a held copy touches neither end
 * until it is released, holds those behind it, and ends with the device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"
#include "gpu/soft.h"
#include "lib/assert.h"

#define ITEM 64u /* bytes */
#define N 6u /* copies of a test */

struct fixture {
	struct kvs_device *d;
	uint8_t *dev; /* one area per copy, RUNS items each */
	uint8_t host[N][4 * ITEM];
	struct kvs_copy_run run[N][4];
	struct kvs_copy c[N];
};

static void fixture_init(struct fixture *f, struct kvs_soft_plan plan,
			 uint64_t bytes_per_sec, size_t n_runs)
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "soft",
					   .bytes_per_sec = bytes_per_sec,
					   .plan = plan };
	char err[128];
	size_t i;
	size_t j;

	memset(f, 0, sizeof(*f));
	assert_int_equal(kvs_device_open(&o, &f->d, err, sizeof(err)), 0);
	assert_int_equal(
		kvs_device_alloc(f->d, sizeof(f->host), (void **)&f->dev), 0);
	memset(f->dev, 0, sizeof(f->host));
	for (i = 0; i < N; i++) {
		memset(f->host[i], (int)i + 1, sizeof(f->host[i]));
		for (j = 0; j < n_runs; j++)
			f->run[i][j] = (struct kvs_copy_run){
				.host = &f->host[i][j * ITEM],
				.dev = f->dev + i * 4 * ITEM + j * ITEM,
				.item_len = ITEM / 4,
				.n = 4,
			};
		f->c[i] = (struct kvs_copy){ .runs = f->run[i],
					     .n_runs = n_runs,
					     .dir = KVS_COPY_H2D };
	}
}

static int finish(struct fixture *f, size_t i)
{
	int r;

	while ((r = kvs_device_query(f->d, &f->c[i])) == -EINPROGRESS)
		(void)sched_yield();
	return r;
}

/* The first @len bytes of copy @i's area were written, none after them. */
static void check_area(struct fixture *f, size_t i, size_t len)
{
	uint8_t seen[4 * ITEM];
	size_t b;

	assert_int_equal(kvs_device_peek(f->d, seen, f->dev + i * 4 * ITEM,
					 sizeof(seen)),
			 0);
	for (b = 0; b < sizeof(seen); b++)
		assert_int_equal(seen[b], b < len ? i + 1 : 0);
}

static void test_nth_fails_with_no_byte(void **state)
{
	struct fixture f;
	struct kvs_soft_stats st;
	size_t i;

	(void)state;
	fixture_init(&f, (struct kvs_soft_plan){ .fail_nth = 3 }, 0, 4);
	for (i = 0; i < N; i++)
		assert_int_equal(kvs_device_copy(f.d, &f.c[i]), 0);
	for (i = 0; i < N; i++) {
		assert_int_equal(finish(&f, i), i == 2 ? -EIO : 0);
		check_area(&f, i, i == 2 ? 0 : 4 * ITEM);
	}
	assert_int_equal(kvs_soft_stats(f.d, &st), 0);
	assert_int_equal(st.copies, N);
	assert_int_equal(st.failed, 1);
	assert_int_equal(st.bytes, (N - 1) * 4 * ITEM);
	/* the same copy again is another one */
	assert_int_equal(kvs_device_copy(f.d, &f.c[2]), 0);
	assert_int_equal(finish(&f, 2), 0);
	check_area(&f, 2, 4 * ITEM);
	kvs_device_close(f.d);
}

static void test_late_failure_leaves_half(void **state)
{
	static const size_t half[] = { 0, ITEM / 2, ITEM, ITEM + ITEM / 2,
				       2 * ITEM };
	struct fixture f;
	size_t n;
	size_t i;

	(void)state;
	for (n = 1; n <= 4; n++) {
		fixture_init(&f, (struct kvs_soft_plan){ .fail_late_nth = 2 },
			     0, n);
		for (i = 0; i < N; i++)
			assert_int_equal(kvs_device_copy(f.d, &f.c[i]), 0);
		for (i = 0; i < N; i++) {
			assert_int_equal(finish(&f, i), i == 1 ? -EIO : 0);
			check_area(&f, i, i == 1 ? half[n] : n * ITEM);
		}
		kvs_device_close(f.d);
	}
}

static void test_sticky_error_stays(void **state)
{
	struct fixture f;
	size_t i;

	(void)state;
	fixture_init(&f,
		     (struct kvs_soft_plan){ .sticky_nth = 3, .hold_nth = 1 },
		     0, 4);
	/* four are queued before the device fails */
	for (i = 0; i < 4; i++)
		assert_int_equal(kvs_device_copy(f.d, &f.c[i]), 0);
	assert_int_equal(kvs_soft_release(f.d), 0);
	for (i = 0; i < 4; i++) {
		assert_int_equal(finish(&f, i), i < 2 ? 0 : -EIO);
		check_area(&f, i, i < 2 ? 4 * ITEM : 0);
	}
	/* and no later one starts */
	for (; i < N; i++) {
		assert_int_equal(kvs_device_copy(f.d, &f.c[i]), -EIO);
		assert_int_equal(f.c[i].order, 0);
		check_area(&f, i, 0);
	}
	kvs_device_close(f.d);
}

static void test_held_copy_waits_and_holds_the_rest(void **state)
{
	struct fixture f;
	size_t i;

	(void)state;
	fixture_init(&f, (struct kvs_soft_plan){ .hold_nth = 2 }, 0, 4);
	for (i = 0; i < N; i++)
		assert_int_equal(kvs_device_copy(f.d, &f.c[i]), 0);
	assert_int_equal(finish(&f, 0), 0);
	check_area(&f, 0, 4 * ITEM);
	for (i = 1; i < N; i++) {
		assert_int_equal(kvs_device_query(f.d, &f.c[i]), -EINPROGRESS);
		check_area(&f, i, 0);
	}
	assert_int_equal(kvs_soft_release(f.d), 0);
	for (i = 1; i < N; i++) {
		assert_int_equal(finish(&f, i), 0);
		check_area(&f, i, 4 * ITEM);
	}
	kvs_device_close(f.d);
}

static void test_release_before_the_copy_is_kept(void **state)
{
	struct fixture f;

	(void)state;
	fixture_init(&f, (struct kvs_soft_plan){ .hold_nth = 1 }, 0, 1);
	assert_int_equal(kvs_soft_release(f.d), 0);
	assert_int_equal(kvs_device_copy(f.d, &f.c[0]), 0);
	assert_int_equal(finish(&f, 0), 0);
	kvs_device_close(f.d);
}

static void test_close_finishes_a_held_copy(void **state)
{
	struct fixture f;
	uint8_t back[4 * ITEM];
	struct kvs_copy_run run;
	size_t i;

	(void)state;
	fixture_init(&f, (struct kvs_soft_plan){ .hold_nth = 2 }, 0, 4);
	/* the last one brings the bytes of the held one to the host */
	run = (struct kvs_copy_run){ back, f.dev + 4 * ITEM, 4 * ITEM, NULL,
				     1 };
	f.c[2] = (struct kvs_copy){ .runs = &run,
				    .n_runs = 1,
				    .dir = KVS_COPY_D2H };
	memset(back, 0xee, sizeof(back));
	for (i = 0; i < 3; i++)
		assert_int_equal(kvs_device_copy(f.d, &f.c[i]), 0);
	assert_int_equal(kvs_device_query(f.d, &f.c[2]), -EINPROGRESS);
	kvs_device_close(f.d);
	for (i = 0; i < 3; i++)
		assert_int_equal(atomic_load(&f.c[i].status), 0);
	for (i = 0; i < sizeof(back); i++)
		assert_int_equal(back[i], 2);
}

/* At one byte a second this would outlast the test's time limit. */
static void test_close_does_not_sit_out_the_rate(void **state)
{
	struct fixture f;
	size_t i;

	(void)state;
	fixture_init(&f, (struct kvs_soft_plan){ 0 }, 1, 4);
	for (i = 0; i < N; i++)
		assert_int_equal(kvs_device_copy(f.d, &f.c[i]), 0);
	kvs_device_close(f.d);
	for (i = 0; i < N; i++)
		assert_int_equal(atomic_load(&f.c[i].status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nth_fails_with_no_byte),
		cmocka_unit_test(test_late_failure_leaves_half),
		cmocka_unit_test(test_sticky_error_stays),
		cmocka_unit_test(test_held_copy_waits_and_holds_the_rest),
		cmocka_unit_test(test_release_before_the_copy_is_kept),
		cmocka_unit_test(test_close_finishes_a_held_copy),
		cmocka_unit_test(test_close_does_not_sit_out_the_rate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
