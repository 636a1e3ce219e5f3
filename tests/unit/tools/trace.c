/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a well-formed trace is read as it stands, blank lines, CRLF and a
 * missing last newline included; everything wrong with a line is refused
 * with file, line number, field and value; nothing after the last wanted
 * request is parsed; long prompts are clamped with their block ids; on an
 * error the caller's trace is untouched.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvstage/layout.h"
#include "lib/assert.h"
#include "tools/trace.h"

static char dir[] = "/tmp/kvs-trace-XXXXXX";
static char path[sizeof(dir) + 16];

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	(void)snprintf(path, sizeof(path), "%s/t.jsonl", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(path);
	return rmdir(dir);
}

static void put(const char *text, size_t len)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
}

static int read_text(const char *text, size_t max, uint32_t max_input,
		     struct kvs_trace *t, char *err, size_t errlen)
{
	put(text, strlen(text));
	(void)snprintf(err, errlen, "no message");
	return kvs_trace_read(path, max, max_input, t, err, errlen);
}

static void test_reads_what_is_there(void **state)
{
	struct kvs_trace t;
	char err[256];

	(void)state;
	assert_int_equal(
		read_text("\n"
			  "{\"timestamp\": 0, \"input_length\": 1100, "
			  "\"output_length\": 52, \"hash_ids\": [0, 17, 18]}\n"
			  "  \t \n"
			  "{\"timestamp\":3000,\"input_length\":1,"
			  "\"output_length\":0,\"hash_ids\":[],\"x\":{}}\r\n"
			  "\r\n"
			  "{\"output_length\":7,\"input_length\":16777216,"
			  "\"timestamp\":3000}",
			  0, 0, &t, err, sizeof(err)),
		0);
	assert_int_equal(t.n, 3);
	assert_int_equal(t.req[0].at_ms, 0);
	assert_int_equal(t.req[0].input, 1100);
	assert_int_equal(t.req[0].output, 52);
	assert_int_equal(t.req[0].n_ids, 3);
	assert_int_equal(t.ids[t.req[0].ids], 0);
	assert_int_equal(t.ids[t.req[0].ids + 1], 17);
	assert_int_equal(t.ids[t.req[0].ids + 2], 18);
	assert_int_equal(t.req[1].at_ms, 3000);
	assert_int_equal(t.req[1].input, 1);
	assert_int_equal(t.req[1].output, 0);
	assert_int_equal(t.req[1].n_ids, 0);
	assert_int_equal(t.req[2].input, KVS_TOKENS_MAX);
	assert_int_equal(t.req[2].n_ids, 0);
	assert_int_equal(t.tokens, 1100 + 1 + KVS_TOKENS_MAX);
	assert_int_equal(t.max_input, KVS_TOKENS_MAX);
	assert_int_equal(t.clamped, 0);
	kvs_trace_fini(&t);
	kvs_trace_fini(&t);
	assert_int_equal(t.n, 0);
}

/* The line is the third of the file, after a good one and a blank. */
static void test_bad_lines_name_place_field_and_value(void **state)
{
	static const struct {
		const char *line;
		const char *message; /* after "FILE:3: " */
	} bad[] = {
		{ "{\"timestamp\":5,\"input_length\":0,\"output_length\":1}",
		  "input_length: 0 is not in 1..16777216" },
		{ "{\"timestamp\":5,\"input_length\":-3,\"output_length\":1}",
		  "input_length: -3 is not in 1..16777216" },
		{ "{\"timestamp\":5,\"input_length\":16777217,"
		  "\"output_length\":1}",
		  "input_length: 16777217 is not in 1..16777216" },
		{ "{\"timestamp\":5,\"input_length\":\"9\","
		  "\"output_length\":1}",
		  "input_length: \"9\" is not an integer" },
		{ "{\"timestamp\":5,\"input_length\":1.5,\"output_length\":1}",
		  "input_length: 1.5 is not an integer" },
		{ "{\"timestamp\":5,\"input_length\":null,"
		  "\"output_length\":1}",
		  "input_length: null is not an integer" },
		{ "{\"timestamp\":5,\"output_length\":1}",
		  "input_length: missing" },
		{ "{\"timestamp\":5,\"input_length\":1}",
		  "output_length: missing" },
		{ "{\"timestamp\":5,\"input_length\":1,\"output_length\":-1}",
		  "output_length: -1 is not in 0..16777216" },
		{ "{\"input_length\":1,\"output_length\":1}",
		  "timestamp: missing" },
		{ "{\"timestamp\":-1,\"input_length\":1,\"output_length\":1}",
		  "timestamp: -1 is not in 0..1099511627776" },
		{ "{\"timestamp\":3,\"input_length\":1,\"output_length\":1}",
		  "timestamp: 3 is before that of the request above" },
		{ "{\"timestamp\":5,\"input_length\":1,\"output_length\":1,"
		  "\"hash_ids\":4}",
		  "hash_ids: 4 is not an array" },
		{ "{\"timestamp\":5,\"input_length\":9,\"output_length\":1,"
		  "\"hash_ids\":[1,-2]}",
		  "hash_ids[1]: -2 is not in 0..9223372036854775807" },
		{ "{\"timestamp\":5,\"input_length\":9,\"output_length\":1,"
		  "\"hash_ids\":[[]]}",
		  "hash_ids[0]: [] is not an integer" },
		{ "{\"timestamp\":5,\"input_length\":2,\"output_length\":1,"
		  "\"hash_ids\":[1,2,3]}",
		  "hash_ids: 3 entries for 2 tokens" },
		{ "[1]", "line: [1] is not a JSON object" },
		{ "{\"timestamp\":", "not JSON: " },
		{ "{\"timestamp\":5} x", "not JSON: " },
		{ "{\"timestamp\":99999999999999999999999}", "not JSON: " },
		{ "{\"timestamp\":5,\"timestamp\":6,\"input_length\":1,"
		  "\"output_length\":1}",
		  "not JSON: " },
		{ "\xff\xfe", "not JSON: " },
	};
	struct kvs_trace untouched = { .n = 77 };
	char text[512];
	char want[512];
	char err[256];
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(bad); i++) {
		(void)snprintf(text, sizeof(text),
			       "{\"timestamp\":4,\"input_length\":1,"
			       "\"output_length\":1}\n\n%s\n",
			       bad[i].line);
		(void)snprintf(want, sizeof(want), "%s:3: %s", path,
			       bad[i].message);
		assert_int_equal(read_text(text, 0, 0, &untouched, err,
					   sizeof(err)),
				 -EINVAL);
		err[strnlen(want, sizeof(err) - 1)] = '\0';
		assert_string_equal(err, want);
		assert_int_equal(untouched.n, 77);
	}
}

static void test_nul_is_not_the_end_of_a_line(void **state)
{
	static const char text[] = "{\"timestamp\":4,\"input_length\":1,"
				   "\"output_length\":1}\0trailer\n";
	static const char blank[] = "\0\n";
	struct kvs_trace t;
	char err[256];

	(void)state;
	put(text, sizeof(text) - 1);
	assert_int_equal(kvs_trace_read(path, 0, 0, &t, err, sizeof(err)),
			 -EINVAL);
	put(blank, sizeof(blank) - 1);
	assert_int_equal(kvs_trace_read(path, 0, 0, &t, err, sizeof(err)),
			 -EINVAL);
}

static void test_long_values_are_cut(void **state)
{
	struct kvs_trace t;
	char text[1024];
	char err[2048];
	char tiny[16];

	(void)state;
	(void)snprintf(text, sizeof(text), "{\"timestamp\":\"%0700d\"}\n", 0);
	assert_int_equal(read_text(text, 0, 0, &t, err, sizeof(err)), -EINVAL);
	assert_true(strlen(err) < 200);
	assert_non_null(strstr(err, "... is not an integer"));
	assert_int_equal(kvs_trace_read(path, 0, 0, &t, tiny, sizeof(tiny)),
			 -EINVAL);
	assert_int_equal(strnlen(tiny, sizeof(tiny)), sizeof(tiny) - 1);
	assert_int_equal(kvs_trace_read(path, 0, 0, &t, NULL, 0), -EINVAL);
}

static void test_line_has_a_limit(void **state)
{
	size_t len = KVS_TRACE_LINE_MAX + 1;
	char *text = malloc(len);
	struct kvs_trace t;
	char err[256];

	(void)state;
	assert_non_null(text);
	memset(text, ' ', len);
	put(text, len);
	assert_int_equal(kvs_trace_read(path, 0, 0, &t, err, sizeof(err)),
			 -E2BIG);
	assert_non_null(strstr(err, ":1: line: over 4194304 bytes"));
	/* one less is a blank line, and a file of blank lines has nothing */
	put(text, len - 1);
	assert_int_equal(kvs_trace_read(path, 0, 0, &t, err, sizeof(err)),
			 -ENODATA);
	free(text);
}

static void test_only_what_is_wanted_is_parsed(void **state)
{
	static const char *const text =
		"{\"timestamp\":4,\"input_length\":1,\"output_length\":1}\n"
		"{\"timestamp\":4,\"input_length\":2,\"output_length\":1}\n"
		"this is no JSON\n";
	struct kvs_trace t;
	char err[256];
	size_t n;

	(void)state;
	for (n = 1; n <= 2; n++) {
		assert_int_equal(read_text(text, n, 0, &t, err, sizeof(err)),
				 0);
		assert_int_equal(t.n, n);
		assert_int_equal(t.max_input, n);
		kvs_trace_fini(&t);
	}
	assert_int_equal(read_text(text, 3, 0, &t, err, sizeof(err)), -EINVAL);
	/* more wanted than there are is no error */
	assert_int_equal(read_text("{\"timestamp\":4,\"input_length\":1,"
				   "\"output_length\":1}\n",
				   9, 0, &t, err, sizeof(err)),
			 0);
	assert_int_equal(t.n, 1);
	kvs_trace_fini(&t);
}

static void test_clamp_cuts_ids_in_proportion(void **state)
{
	struct kvs_trace t;
	char err[256];

	(void)state;
	assert_int_equal(
		read_text("{\"timestamp\":0,\"input_length\":2000,"
			  "\"output_length\":1,\"hash_ids\":[1,2,3,4]}\n"
			  "{\"timestamp\":0,\"input_length\":1024,"
			  "\"output_length\":1,\"hash_ids\":[1,9]}\n"
			  "{\"timestamp\":0,\"input_length\":9999,"
			  "\"output_length\":1}\n",
			  0, 1024, &t, err, sizeof(err)),
		0);
	assert_int_equal(t.n, 3);
	assert_int_equal(t.clamped, 2);
	assert_int_equal(t.max_input, 1024);
	assert_int_equal(t.tokens, 3 * 1024);
	assert_int_equal(t.req[0].input, 1024);
	assert_int_equal(t.req[0].n_ids, 3);
	assert_int_equal(t.ids[t.req[0].ids + 2], 3);
	assert_int_equal(t.req[1].n_ids, 2);
	assert_int_equal(t.ids[t.req[1].ids], 1);
	assert_int_equal(t.ids[t.req[1].ids + 1], 9);
	assert_int_equal(t.req[2].n_ids, 0);
	assert_int_equal(t.n_ids, 5);
	kvs_trace_fini(&t);
}

static void test_files_that_cannot_be_read(void **state)
{
	struct kvs_trace t;
	char err[256];

	(void)state;
	assert_int_equal(kvs_trace_read("/nonexistent/t.jsonl", 0, 0, &t, err,
					sizeof(err)),
			 -ENOENT);
	assert_non_null(strstr(err, "/nonexistent/t.jsonl: cannot open: "));
	assert_int_equal(kvs_trace_read(dir, 0, 0, &t, err, sizeof(err)),
			 -EISDIR);
	assert_non_null(strstr(err, "cannot read: "));
	assert_int_equal(read_text("", 0, 0, &t, err, sizeof(err)), -ENODATA);
	assert_non_null(strstr(err, "no requests"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads_what_is_there),
		cmocka_unit_test(test_bad_lines_name_place_field_and_value),
		cmocka_unit_test(test_nul_is_not_the_end_of_a_line),
		cmocka_unit_test(test_long_values_are_cut),
		cmocka_unit_test(test_line_has_a_limit),
		cmocka_unit_test(test_only_what_is_wanted_is_parsed),
		cmocka_unit_test(test_clamp_cuts_ids_in_proportion),
		cmocka_unit_test(test_files_that_cannot_be_read),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
