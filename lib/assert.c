/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/log.h"

void kvs_assert_fail(const char *expr, const char *file, int line,
		     const char *func)
{
	/* not through the log: its sink or lock may be what is broken */
	dprintf(STDERR_FILENO, "%s:%d: %s: assertion failed: %s\n", file, line,
		func, expr);
	abort();
}

void kvs_warn_once(bool *once, const char *file, int line, const char *fmt, ...)
{
	char msg[512];
	va_list ap;

	/*
	 * Call sites are shared by threads and @once is a plain bool. Relaxed
	 * is enough: the flag guards nothing but the line itself. The load
	 * first keeps a hot call site from bouncing the cache line.
	 */
	if (__atomic_load_n(once, __ATOMIC_RELAXED) ||
	    __atomic_exchange_n(once, true, __ATOMIC_RELAXED))
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	kvs_log_warn("%s:%d: %s", file, line, msg);
}
