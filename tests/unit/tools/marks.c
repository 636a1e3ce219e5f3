/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what was filled is found whole, in pieces of any length; one mark of
 * another room is seen, with whose it is and where; one of the same room at
 * another place, one of another run and one changed bit are told apart; a mark
 * that was cut is looked at as far as it goes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tools/marks.h"

#define RUN 0x1234567890abcdefULL
#define MARKS 1000u

static unsigned char buf[MARKS * KVS_MARK];

static void refill(void)
{
	kvs_marks_fill(buf, sizeof(buf), RUN, 7, 100);
}

static struct kvs_marks_found check(uint64_t faults)
{
	struct kvs_marks_found f = { 0 };

	assert_int_equal(kvs_marks_check(buf, sizeof(buf), RUN, 7, 100, &f),
			 faults);
	assert_int_equal(f.marks, MARKS);
	return f;
}

static void whole(void **state)
{
	struct kvs_marks_found f = { 0 };
	uint32_t at = 0, n;

	(void)state;
	refill();
	check(0);
	/* written in one piece, read in others */
	for (n = 1; at < MARKS; at += n, n++) {
		if (n > MARKS - at)
			n = MARKS - at;
		assert_int_equal(kvs_marks_check(buf + at * KVS_MARK,
						 n * KVS_MARK, RUN, 7, 100 + at,
						 &f),
				 0);
	}
	assert_int_equal(f.marks, MARKS);
}

static void foreign(void **state)
{
	struct kvs_marks_found f;

	(void)state;
	refill();
	kvs_marks_fill(buf + 400 * KVS_MARK, 3 * KVS_MARK, RUN, 9, 500);
	f = check(3);
	assert_int_equal(f.faults[KVS_MARK_FOREIGN], 3);
	assert_int_equal(f.first, KVS_MARK_FOREIGN);
	assert_int_equal(f.first_at, 500);
	assert_int_equal(f.first_room, 9);
}

static void others(void **state)
{
	struct kvs_marks_found f;

	(void)state;
	refill();
	memmove(buf, buf + KVS_MARK, KVS_MARK);
	buf[500 * KVS_MARK + 3] ^= 1;
	kvs_marks_fill(buf + 600 * KVS_MARK, KVS_MARK, RUN + 1, 9, 700);
	kvs_marks_fill(buf + 900 * KVS_MARK, KVS_MARK, RUN, 8, 1000);
	f = check(4);
	assert_int_equal(f.faults[KVS_MARK_MOVED], 1);
	assert_int_equal(f.faults[KVS_MARK_CHANGED], 2);
	assert_int_equal(f.faults[KVS_MARK_FOREIGN], 1);
	assert_int_equal(f.first, KVS_MARK_MOVED);
	assert_int_equal(f.first_at, 100);
}

static void cut(void **state)
{
	struct kvs_marks_found f = { 0 };

	(void)state;
	refill();
	kvs_marks_fill(buf, KVS_MARK + 5, RUN, 7, 0);
	assert_int_equal(kvs_marks_check(buf, KVS_MARK + 5, RUN, 7, 0, &f), 0);
	buf[KVS_MARK + 4] ^= 0x80;
	assert_int_equal(kvs_marks_check(buf, KVS_MARK + 5, RUN, 7, 0, &f), 1);
	assert_int_equal(f.first, KVS_MARK_CHANGED);
	assert_int_equal(f.first_at, 1);
	/* what lies behind it is not read */
	buf[KVS_MARK + 4] ^= 0x80;
	assert_int_equal(kvs_marks_check(buf, KVS_MARK + 5, RUN, 7, 0, &f), 0);
	assert_int_equal(kvs_marks_check(buf, 0, RUN, 7, 0, &f), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole),
		cmocka_unit_test(foreign),
		cmocka_unit_test(others),
		cmocka_unit_test(cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
