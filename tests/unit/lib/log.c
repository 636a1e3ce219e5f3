/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a call makes exactly one line whatever the text holds, levels
 * filter, errno survives, the journal prefix appears only where stderr is
 * the journal's, lines of several threads do not mingle; a warn-once site
 * warns once under racing threads; a failed assertion says where and aborts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/log.h"

struct capture {
	unsigned int n;
	enum kvs_log_level level;
	char line[4096];
};

static void capture(enum kvs_log_level level, const char *line, void *arg)
{
	struct capture *c = arg;

	c->n++;
	c->level = level;
	snprintf(c->line, sizeof(c->line), "%s", line);
}

static int reset(void **state)
{
	(void)state;
	kvs_log_set_sink(NULL, NULL);
	kvs_log_set_level(KVS_LOG_INFO);
	unsetenv("JOURNAL_STREAM");
	kvs_log_init(NULL);
	return 0;
}

/* stderr into an unnamed file, and back */
struct redirect {
	FILE *file;
	int saved;
};

static void redirect_start(struct redirect *r)
{
	r->file = tmpfile();
	assert_non_null(r->file);
	/* as a service manager opens it: writes go to the end */
	assert_int_equal(fcntl(fileno(r->file), F_SETFL, O_APPEND), 0);
	fflush(stderr);
	r->saved = dup(STDERR_FILENO);
	assert_true(r->saved >= 0);
	assert_int_equal(dup2(fileno(r->file), STDERR_FILENO), STDERR_FILENO);
}

/* What was written, NUL at the end; the caller frees. */
static char *redirect_end(struct redirect *r)
{
	struct stat st;
	char *text;

	assert_int_equal(dup2(r->saved, STDERR_FILENO), STDERR_FILENO);
	close(r->saved);
	assert_int_equal(fstat(fileno(r->file), &st), 0);
	text = calloc(1, (size_t)st.st_size + 1);
	assert_non_null(text);
	assert_int_equal(pread(fileno(r->file), text, (size_t)st.st_size, 0),
			 st.st_size);
	fclose(r->file);
	return text;
}

static void log_levels(void **state)
{
	struct capture c = { 0 };

	(void)state;
	kvs_log_set_sink(capture, &c);
	kvs_log_debug("hidden");
	assert_int_equal(c.n, 0);
	kvs_log_info("room %d", 7);
	assert_int_equal(c.n, 1);
	assert_int_equal(c.level, KVS_LOG_INFO);
	assert_string_equal(c.line, "room 7");
	kvs_log_set_level(KVS_LOG_DEBUG);
	kvs_log_debug("shown");
	assert_int_equal(c.n, 2);
	kvs_log_set_level(KVS_LOG_ERR);
	kvs_log_warn("hidden");
	kvs_log_notice("hidden");
	assert_int_equal(c.n, 2);
	kvs_log_err("shown");
	assert_int_equal(c.n, 3);
	assert_int_equal(c.level, KVS_LOG_ERR);
}

static void log_level_parse(void **state)
{
	(void)state;
	assert_int_equal(kvs_log_level_parse("err"), KVS_LOG_ERR);
	assert_int_equal(kvs_log_level_parse("warn"), KVS_LOG_WARN);
	assert_int_equal(kvs_log_level_parse("notice"), KVS_LOG_NOTICE);
	assert_int_equal(kvs_log_level_parse("info"), KVS_LOG_INFO);
	assert_int_equal(kvs_log_level_parse("debug"), KVS_LOG_DEBUG);
	assert_int_equal(kvs_log_level_parse(""), -EINVAL);
	assert_int_equal(kvs_log_level_parse("ERR"), -EINVAL);
	assert_int_equal(kvs_log_level_parse("information"), -EINVAL);
	assert_int_equal(kvs_log_level_parse(NULL), -EINVAL);
}

static void log_one_line_whatever_the_text(void **state)
{
	struct capture c = { 0 };
	char big[3000];

	(void)state;
	kvs_log_set_sink(capture, &c);
	kvs_log_info("peer says %s", "hi\n<3>forged\r\x1b[2J\x7f\tend");
	assert_string_equal(c.line, "peer says hi?<3>forged??[2J? end");
	kvs_log_info("newline at the end\n");
	assert_string_equal(c.line, "newline at the end");
	kvs_log_info("%s", "");
	assert_string_equal(c.line, "");
	kvs_log_info("%s", "\n");
	assert_string_equal(c.line, "");
	kvs_log_info("%s", "caf\xc3\xa9");
	assert_string_equal(c.line, "caf\xc3\xa9");

	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	kvs_log_info("%s", big);
	assert_int_equal(strlen(c.line), 1023);
	assert_string_equal(c.line + 1020, "...");
	/* the longest text that needs no cut */
	big[1023] = '\0';
	kvs_log_info("%s", big);
	assert_string_equal(c.line, big);
	assert_int_equal(c.n, 7);
}

static void log_cut_keeps_utf8_whole(void **state)
{
	struct capture c = { 0 };
	char big[3001];
	size_t lead, len, i;

	(void)state;
	kvs_log_set_sink(capture, &c);
	/* three-byte characters behind 0, 1 and 2 bytes: every cut position */
	for (lead = 0; lead < 3; lead++) {
		memset(big, 'x', lead);
		for (i = lead; i + 3 < sizeof(big); i += 3)
			memcpy(big + i, "\xe2\x82\xac", 3);
		big[i] = '\0';
		kvs_log_info("%s", big);
		len = strlen(c.line);
		assert_in_range(len, 1020, 1023);
		assert_string_equal(c.line + len - 3, "...");
		assert_int_equal((len - 3 - lead) % 3, 0);
	}
}

static void log_keeps_errno(void **state)
{
	struct capture c = { 0 };
	struct rlimit old, none;
	struct redirect r;
	char *text;

	(void)state;
	kvs_log_set_sink(capture, &c);
	errno = ENOSPC;
	kvs_log_err("write: %m");
	assert_int_equal(errno, ENOSPC);
	assert_string_equal(c.line, "write: No space left on device");
	errno = EPROTO;
	kvs_log_init("x");
	assert_int_equal(errno, EPROTO);

	/* where writing itself fails with another one */
	kvs_log_set_sink(NULL, NULL);
	redirect_start(&r);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	none = old;
	none.rlim_cur = 0;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	errno = EPROTO;
	kvs_log_err("lost");
	assert_int_equal(errno, EPROTO);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	signal(SIGXFSZ, SIG_DFL);
	text = redirect_end(&r);
	assert_string_equal(text, "");
	free(text);
}

static void log_plain_line(void **state)
{
	struct redirect r;
	int y, mo, d, h, mi, s, ms;
	char name[32], level[32], rest[64];
	char *text;

	(void)state;
	kvs_log_init("kvstaged");
	redirect_start(&r);
	kvs_log_warn("room %s gone", "a/1");
	text = redirect_end(&r);
	assert_int_equal(sscanf(text,
				"%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %31s %31[a-z]: "
				"%63[^\n]",
				&y, &mo, &d, &h, &mi, &s, &ms, name, level,
				rest),
			 10);
	assert_true(y >= 2024 && mo >= 1 && mo <= 12 && d >= 1 && d <= 31);
	assert_string_equal(name, "kvstaged");
	assert_string_equal(level, "warn");
	assert_string_equal(rest, "room a/1 gone");
	assert_int_equal(text[strlen(text) - 1], '\n');
	free(text);
}

static void journal_stream_of_stderr(unsigned long long off)
{
	struct stat st;
	char env[64];

	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(env, sizeof(env), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino + off);
	setenv("JOURNAL_STREAM", env, 1);
	kvs_log_init("kvstaged");
}

static void log_journal_prefix(void **state)
{
	static const char *const odd[] = {
		"", ":", "1", "1:", "a:b", "1:2x", "99999999999999999999999:1"
	};
	struct redirect r;
	char *text;
	size_t i;

	(void)state;
	redirect_start(&r);
	journal_stream_of_stderr(0);
	kvs_log_err("one");
	kvs_log_info("two\nthree");
	text = redirect_end(&r);
	assert_string_equal(text, "<3>one\n<6>two?three\n");
	free(text);

	/* inherited, but stderr has been sent elsewhere */
	redirect_start(&r);
	journal_stream_of_stderr(1);
	kvs_log_err("one");
	text = redirect_end(&r);
	assert_null(strstr(text, "<3>"));
	assert_non_null(strstr(text, " kvstaged err: one\n"));
	free(text);

	for (i = 0; i < KVS_ARRAY_SIZE(odd); i++) {
		redirect_start(&r);
		setenv("JOURNAL_STREAM", odd[i], 1);
		kvs_log_init(NULL);
		kvs_log_err("one");
		text = redirect_end(&r);
		assert_null(strstr(text, "<3>"));
		free(text);
	}
}

#define THREADS 4
#define LINES 500

static void *log_many(void *arg)
{
	const char *word = arg;
	unsigned int i;

	for (i = 0; i < LINES; i++)
		kvs_log_info("%s %u %s", word, i, word);
	return NULL;
}

static void log_threads_whole_lines(void **state)
{
	static char word[THREADS][8] = { "alpha", "bravo", "charly", "delta" };
	unsigned int next[THREADS] = { 0 };
	pthread_t thread[THREADS];
	char *line, *save;
	struct redirect r;
	char *text;
	int i;

	(void)state;
	redirect_start(&r);
	journal_stream_of_stderr(0);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&thread[i], NULL, log_many, word[i]), 0);
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	text = redirect_end(&r);
	for (line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		char want[64];

		for (i = 0; i < THREADS; i++)
			if (!strncmp(line + 3, word[i], strlen(word[i])))
				break;
		assert_true(i < THREADS);
		snprintf(want, sizeof(want), "<6>%s %u %s", word[i], next[i]++,
			 word[i]);
		assert_string_equal(line, want);
	}
	for (i = 0; i < THREADS; i++)
		assert_int_equal(next[i], LINES);
	free(text);
}

static void *warn_many(void *arg)
{
	unsigned int *hits = arg;
	unsigned int i;

	for (i = 0; i < 1000; i++)
		if (KVS_WARN_ONCE(i % 2, "odd %u", i))
			(*hits)++;
	return NULL;
}

static void warn_once_under_threads(void **state)
{
	struct capture c = { 0 };
	unsigned int hits[THREADS] = { 0 };
	pthread_t thread[THREADS];
	int i;

	(void)state;
	kvs_log_set_sink(capture, &c);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, warn_many,
						&hits[i]),
				 0);
	for (i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		/* the answer comes every time, the line once */
		assert_int_equal(hits[i], 500);
	}
	assert_int_equal(c.n, 1);
	assert_int_equal(c.level, KVS_LOG_WARN);
	assert_non_null(strstr(c.line, "log.c:"));
	assert_non_null(strstr(c.line, ": odd 1"));
	/* another site is another flag */
	assert_true(KVS_WARN_ONCE(true, "again"));
	assert_int_equal(c.n, 2);
	assert_false(KVS_WARN_ONCE(false, "never"));
	assert_int_equal(c.n, 2);
}

struct thing {
	uint32_t magic;
};

static void assert_says_where_and_aborts(void **state)
{
	struct thing one = { 0x1234 };
	struct thing *good = &one;
	struct thing *bad = NULL;
	struct redirect r;
	char *text;
	int status;
	pid_t pid;

	(void)state;
	KVS_CHECK_MAGIC(good, 0x1234);
	redirect_start(&r);
	pid = fork();
	if (!pid) {
		struct rlimit none = { 0, 0 };

		/* no core file; cmocka's handlers would catch the signal */
		setrlimit(RLIMIT_CORE, &none);
		signal(SIGABRT, SIG_DFL);
		KVS_CHECK_MAGIC(bad, 0x1234);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	text = redirect_end(&r);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
	assert_non_null(strstr(text, "log.c:"));
	assert_non_null(strstr(text, "assert_says_where_and_aborts"));
	assert_non_null(strstr(text, "(bad)->magic == (0x1234)"));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(log_levels, reset),
		cmocka_unit_test_setup(log_level_parse, reset),
		cmocka_unit_test_setup(log_one_line_whatever_the_text, reset),
		cmocka_unit_test_setup(log_cut_keeps_utf8_whole, reset),
		cmocka_unit_test_setup(log_keeps_errno, reset),
		cmocka_unit_test_setup(log_plain_line, reset),
		cmocka_unit_test_setup(log_journal_prefix, reset),
		cmocka_unit_test_setup(log_threads_whole_lines, reset),
		cmocka_unit_test_setup(warn_once_under_threads, reset),
		cmocka_unit_test_setup(assert_says_where_and_aborts, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
