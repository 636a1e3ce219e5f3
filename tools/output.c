/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than a tool prints between two flushes: the C library forgets why a
 * write of its own failed. */
static char kvs_output_buf[65536];
static const char *kvs_output_tool;
static int kvs_output_err; /* the first; 0: none */

int kvs_output_flush(void)
{
	if (fflush(stdout) && !kvs_output_err)
		kvs_output_err = errno ? errno : EIO;
	return -kvs_output_err;
}

static void kvs_output_ended(void)
{
	int err = -kvs_output_flush();

	if (!err && !ferror(stdout))
		return;
	fprintf(stderr, "%s: standard output: %s\n", kvs_output_tool,
		err ? strerror(err) : "not all of it could be written");
	_exit(EXIT_FAILURE);
}

void kvs_output_watch(const char *tool)
{
	kvs_output_tool = tool;
	if (!isatty(STDOUT_FILENO))
		(void)setvbuf(stdout, kvs_output_buf, _IOFBF,
			      sizeof(kvs_output_buf));
	if (atexit(kvs_output_ended)) {
		fprintf(stderr, "%s: out of memory\n", tool);
		_exit(EXIT_FAILURE);
	}
}
