/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the table lines its columns up and ends no line in spaces; the
 * progress line comes when it is due and not before, with share, rate and
 * time left; on a terminal it is written over and taken away cleanly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/clock.h"
#include "tools/progress.h"
#include "tools/table.h"

static void test_table_lines_up(void **state)
{
	struct kvs_table *t;
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	assert_non_null(f);
	assert_int_equal(kvs_table_create(" <name size  <note", &t), 0);
	kvs_table_cell(t, "%s", "a");
	kvs_table_cell(t, "%d", 12345);
	kvs_table_cell(t, "first");
	kvs_table_cell(t, "longer");
	kvs_table_cell(t, "%d", 7);
	kvs_table_cell(t, "second row");
	kvs_table_cell(t, "end");
	assert_int_equal(kvs_table_print(t, f), 0);
	assert_int_equal(fclose(f), 0);
	assert_string_equal(text, "name     size  note\n"
				  "a       12345  first\n"
				  "longer      7  second row\n"
				  "end\n");
	free(text);
	kvs_table_destroy(t);
	kvs_table_destroy(NULL);
}

static void test_table_limits(void **state)
{
	char heads[2 * (KVS_TABLE_COLUMNS_MAX + 1) + 1];
	char wide[2 * KVS_TABLE_CELL_MAX];
	struct kvs_table *t = NULL;
	char *text = NULL;
	size_t len;
	FILE *f;
	size_t i;

	(void)state;
	assert_int_equal(kvs_table_create("", &t), -EINVAL);
	assert_int_equal(kvs_table_create("   ", &t), -EINVAL);
	for (i = 0; i < sizeof(heads) - 1; i += 2)
		memcpy(heads + i, "a ", 2);
	heads[sizeof(heads) - 1] = '\0';
	assert_int_equal(kvs_table_create(heads, &t), -EINVAL);
	heads[sizeof(heads) - 3] = '\0';
	assert_int_equal(kvs_table_create(heads, &t), 0);
	kvs_table_destroy(t);

	memset(wide, 'x', sizeof(wide));
	wide[sizeof(wide) - 1] = '\0';
	assert_int_equal(kvs_table_create("one", &t), 0);
	kvs_table_cell(t, "%s", wide);
	f = open_memstream(&text, &len);
	assert_non_null(f);
	assert_int_equal(kvs_table_print(t, f), 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(len, 2 * KVS_TABLE_CELL_MAX);
	free(text);
	kvs_table_destroy(t);
}

static void test_progress_in_a_log(void **state)
{
	struct kvs_progress p;
	struct kvs_vclock v;
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);
	uint64_t i;

	(void)state;
	assert_non_null(f);
	kvs_vclock_init(&v, 1000);
	kvs_progress_init(&p, "replay", KVS_PROGRESS_BYTES, 20000000000ULL,
			  &v.clk, f);
	kvs_progress_update(&p, 0);
	/* 1 GB a second, 10 calls a second: lines at 5 and at 10 s only */
	for (i = 1; i <= 120; i++) {
		kvs_vclock_advance(&v, 100 * KVS_NSEC_PER_MSEC);
		kvs_progress_update(&p, i * 100000000);
	}
	kvs_progress_clear(&p);
	kvs_progress_end(&p, 12000000000ULL);
	assert_int_equal(fclose(f), 0);
	assert_string_equal(
		text, "replay: 25 % 5.00/20.00 GB, 1.00 GB/s, 15.0 s left\n"
		      "replay: 50 % 10.00/20.00 GB, 1.00 GB/s, 10.0 s left\n"
		      "replay: 12.00 GB in 12.0 s, 1.00 GB/s\n");
	free(text);
}

static void test_progress_without_rate_or_total(void **state)
{
	struct kvs_progress p;
	struct kvs_vclock v;
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	assert_non_null(f);
	kvs_vclock_init(&v, 0);
	kvs_progress_init(&p, "rooms", KVS_PROGRESS_COUNT, 0, &v.clk, f);
	kvs_vclock_advance(&v, 5 * KVS_NSEC_PER_SEC);
	kvs_progress_update(&p, 10);
	kvs_progress_init(&p, "rooms", KVS_PROGRESS_COUNT, 10, &v.clk, f);
	/* no time has gone by, nothing was done, more was done than there is */
	kvs_progress_end(&p, 0);
	kvs_vclock_advance(&v, 5 * KVS_NSEC_PER_SEC);
	kvs_progress_update(&p, 0);
	kvs_vclock_advance(&v, 5 * KVS_NSEC_PER_SEC);
	kvs_progress_update(&p, 25);
	kvs_vclock_advance(&v, 5 * KVS_NSEC_PER_SEC);
	kvs_progress_update(&p, 5);
	assert_int_equal(fclose(f), 0);
	assert_string_equal(text, "rooms: 10, 2.0/s\n"
				  "rooms: 0 in 0 ns, 0.0/s\n"
				  "rooms: 0 % 0/10, 0.0/s\n"
				  "rooms: 100 % 10/10, 5.0/s, 0 ns left\n"
				  "rooms: 50 % 5/10, 0.0/s\n");
	free(text);
}

static void test_progress_on_a_terminal(void **state)
{
	struct kvs_progress p;
	struct kvs_vclock v;
	char got[512] = "";
	ssize_t n;
	size_t have = 0;
	int master;
	int slave;
	FILE *f;

	(void)state;
	master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || grantpt(master) || unlockpt(master)) {
		print_message("no pseudo terminal here\n");
		skip();
	}
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	f = fdopen(slave, "w");
	assert_non_null(f);
	kvs_vclock_init(&v, 0);
	kvs_progress_init(&p, "x", KVS_PROGRESS_COUNT, 100, &v.clk, f);
	kvs_vclock_advance(&v, KVS_NSEC_PER_SEC);
	kvs_progress_update(&p, 10);
	kvs_progress_update(&p, 11);
	kvs_progress_clear(&p);
	kvs_progress_clear(&p);
	kvs_vclock_advance(&v, KVS_NSEC_PER_SEC);
	kvs_progress_update(&p, 100);
	kvs_progress_end(&p, 100);
	/* it is all in the terminal's buffer; the end is the only newline */
	while (!strchr(got, '\n') && have < sizeof(got) - 1) {
		n = read(master, got + have, sizeof(got) - 1 - have);
		assert_true(n > 0);
		have += (size_t)n;
	}
	assert_string_equal(got, "\rx: 10 % 10/100, 10.0/s, 9.00 s left"
				 "\r                                   \r"
				 "\rx: 100 % 100/100, 10.0/s, 0 ns left"
				 "\rx: 100 in 2.00 s, 50.0/s           \r\n");
	(void)fclose(f);
	(void)close(master);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table_lines_up),
		cmocka_unit_test(test_table_limits),
		cmocka_unit_test(test_progress_in_a_log),
		cmocka_unit_test(test_progress_without_rate_or_total),
		cmocka_unit_test(test_progress_on_a_terminal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
