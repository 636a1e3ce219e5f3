/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/log.h"

/* bytes of text in one line; the rest is cut off and marked */
#define KVS_LOG_TEXT 1024
#define KVS_LOG_CUT "..."

typedef void kvs_log_sink_fn(enum kvs_log_level level, const char *line,
			     void *arg);

static const char *const kvs_log_names[] = {
	[KVS_LOG_ERR] = "err",	     [KVS_LOG_WARN] = "warn",
	[KVS_LOG_NOTICE] = "notice", [KVS_LOG_INFO] = "info",
	[KVS_LOG_DEBUG] = "debug",
};

/* set before other threads start */
static const char *kvs_log_program;
static bool kvs_log_journal;

static atomic_int kvs_log_max = KVS_LOG_INFO;

/* says that there is a sink, so that the usual path takes no lock */
static atomic_bool kvs_log_has_sink;
/* protects the two below and makes calls of the sink one at a time; a leaf */
static pthread_mutex_t kvs_log_sink_lock = PTHREAD_MUTEX_INITIALIZER;
static kvs_log_sink_fn *kvs_log_sink;
static void *kvs_log_sink_arg;

/* JOURNAL_STREAM is "device:inode" and may be inherited past a redirection */
static bool kvs_log_stderr_is_journal(void)
{
	const char *s = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;
	char tail;

	if (!s || sscanf(s, "%llu:%llu%c", &dev, &ino, &tail) != 2)
		return false;
	if (fstat(STDERR_FILENO, &st))
		return false;
	return st.st_dev == dev && st.st_ino == ino;
}

void kvs_log_init(const char *name)
{
	int saved = errno;

	kvs_log_program = name;
	kvs_log_journal = kvs_log_stderr_is_journal();
	errno = saved;
}

void kvs_log_set_level(enum kvs_log_level level)
{
	atomic_store_explicit(&kvs_log_max, (int)level, memory_order_relaxed);
}

int kvs_log_level_parse(const char *s)
{
	size_t i;

	if (!s)
		return -EINVAL;
	for (i = KVS_LOG_ERR; i < KVS_ARRAY_SIZE(kvs_log_names); i++)
		if (!strcmp(kvs_log_names[i], s))
			return (int)i;
	return -EINVAL;
}

void kvs_log_set_sink(kvs_log_sink_fn *sink, void *arg)
{
	pthread_mutex_lock(&kvs_log_sink_lock);
	kvs_log_sink = sink;
	kvs_log_sink_arg = arg;
	atomic_store_explicit(&kvs_log_has_sink, sink != NULL,
			      memory_order_relaxed);
	pthread_mutex_unlock(&kvs_log_sink_lock);
}

/* True when the sink took the line. */
static bool kvs_log_to_sink(enum kvs_log_level level, const char *text)
{
	bool taken = false;

	if (!atomic_load_explicit(&kvs_log_has_sink, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&kvs_log_sink_lock);
	if (kvs_log_sink) {
		kvs_log_sink(level, text, kvs_log_sink_arg);
		taken = true;
	}
	pthread_mutex_unlock(&kvs_log_sink_lock);
	return taken;
}

/*
 * Text may quote a peer: one call makes one line, and no byte of it steers a
 * terminal. A cut never leaves half a UTF-8 character.
 */
static void kvs_log_clean(char *text, size_t size, int len)
{
	unsigned char *p = (unsigned char *)text;
	size_t n;

	if (len >= (int)size) {
		n = size - sizeof(KVS_LOG_CUT);
		while (n && (p[n] & 0xc0) == 0x80)
			n--;
		memcpy(text + n, KVS_LOG_CUT, sizeof(KVS_LOG_CUT));
	}
	n = strlen(text);
	while (n && text[n - 1] == '\n')
		text[--n] = '\0';
	for (; *p; p++)
		if (*p < 0x20 || *p == 0x7f)
			*p = *p == '\t' ? ' ' : '?';
}

static int kvs_log_prefix(enum kvs_log_level level, char *buf, size_t size)
{
	struct timespec ts;
	struct tm tm;

	if (kvs_log_journal)
		return snprintf(buf, size, "<%d>", (int)level);
	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	return snprintf(buf, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ %s%s%s",
			tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
			tm.tm_hour, tm.tm_min, tm.tm_sec,
			(int)(ts.tv_nsec / 1000000),
			kvs_log_program ? kvs_log_program : "",
			kvs_log_program ? " " : "", kvs_log_names[level]);
}

/* A line that cannot be written is lost: there is no one to tell. */
static void kvs_log_write(const char *line, size_t len)
{
	while (len) {
		ssize_t n = write(STDERR_FILENO, line, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		line += n;
		len -= (size_t)n;
	}
}

void kvs_log(enum kvs_log_level level, const char *fmt, ...)
{
	int saved = errno;
	char text[KVS_LOG_TEXT];
	/* room for the prefix, the separator and the newline */
	char line[KVS_LOG_TEXT + 160];
	char prefix[128];
	va_list ap;
	int len;

	if (level < KVS_LOG_ERR)
		level = KVS_LOG_ERR;
	if (level > KVS_LOG_DEBUG)
		level = KVS_LOG_DEBUG;
	if ((int)level >
	    atomic_load_explicit(&kvs_log_max, memory_order_relaxed))
		return;

	va_start(ap, fmt);
	len = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (len < 0)
		goto out;
	kvs_log_clean(text, sizeof(text), len);
	if (kvs_log_to_sink(level, text))
		goto out;

	kvs_log_prefix(level, prefix, sizeof(prefix));
	/* one write(2) a line, or lines of several threads would mingle */
	len = snprintf(line, sizeof(line), "%s%s%s\n", prefix,
		       kvs_log_journal ? "" : ": ", text);
	if (len > 0 && len < (int)sizeof(line))
		kvs_log_write(line, (size_t)len);
out:
	errno = saved;
}
