/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: log
 *
 * Lines to stderr with a level; under systemd (JOURNAL_STREAM names our
 * stderr) with the "<N>" priority prefix the journal reads. Saves errno.
 * Library code logs at debug only; the daemon logs once, with the object's
 * name and what happens next.
 */
#ifndef KVS_LIB_LOG_H
#define KVS_LIB_LOG_H

enum kvs_log_level {
	KVS_LOG_ERR = 3, /* syslog priorities */
	KVS_LOG_WARN = 4,
	KVS_LOG_NOTICE = 5,
	KVS_LOG_INFO = 6,
	KVS_LOG_DEBUG = 7,
};

/**
 * kvs_log_init() - choose the journal prefix or a plain line
 * @name: program name for plain lines; static string
 *
 * Context: before other threads start. May be left out: plain lines.
 */
void kvs_log_init(const char *name);
void kvs_log_set_level(enum kvs_log_level level);
/* "err" "warn" "notice" "info" "debug" -> level, or -EINVAL */
int kvs_log_level_parse(const char *s);

/*
 * Tests: receive finished lines (text only: no time, no prefix, no newline)
 * instead of stderr. NULL restores it. Calls come one at a time, from any
 * thread; a sink must not log.
 */
void kvs_log_set_sink(void (*sink)(enum kvs_log_level level, const char *line,
				   void *arg),
		      void *arg);

/*
 * One call is one line: a trailing newline is dropped, other control bytes
 * are shown as '?', what is over 1 KiB is cut. %m is errno at the call.
 */
void kvs_log(enum kvs_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#define kvs_log_err(...) kvs_log(KVS_LOG_ERR, __VA_ARGS__)
#define kvs_log_warn(...) kvs_log(KVS_LOG_WARN, __VA_ARGS__)
#define kvs_log_notice(...) kvs_log(KVS_LOG_NOTICE, __VA_ARGS__)
#define kvs_log_info(...) kvs_log(KVS_LOG_INFO, __VA_ARGS__)
#define kvs_log_debug(...) kvs_log(KVS_LOG_DEBUG, __VA_ARGS__)

#endif /* KVS_LIB_LOG_H */
