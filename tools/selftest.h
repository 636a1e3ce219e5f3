/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: selftest
 *
 * Does a running daemon use memory again while somebody still writes it? The
 * test attaches as an engine and connects as two prefill ranks, all its own.
 * In each round two rooms are aborted while each rank is in the middle of a
 * chunk of one of them, and two more are admitted, which get the memory if
 * anybody does. The ranks go on with what they must not: before the new rooms
 * are filled, and again when they are READY. Then these are committed to host
 * memory, where every mark must be their own.
 */
#ifndef KVS_TOOLS_SELFTEST_H
#define KVS_TOOLS_SELFTEST_H

#include <stddef.h>
#include <stdint.h>

#include "tools/marks.h"

#define KVS_SELFTEST_BYTES_MIN (1ULL << 20)
#define KVS_SELFTEST_BYTES_MAX (1ULL << 30)

struct kvs_selftest_opts {
	const char *daemon; /* "host:port" for prefill ranks */
	const char *engine_socket;
	int node; /* whose pool */
	uint64_t bytes; /* of the pool, at most */
	unsigned int rounds;
	unsigned int seconds; /* that one step may take */
	const char *key_file; /* NULL: none */
};

struct kvs_selftest_result {
	unsigned int rounds; /* done */
	unsigned int aborted; /* rooms */
	unsigned int checked; /* rooms */
	uint64_t bytes; /* checked */
	struct kvs_marks_found found;
	char where[192]; /* the first fault in words; "": none */
};

/**
 * kvs_selftest() - run it against one node of a daemon
 * @ret: what was done, also on failure
 * @err: message
 *
 * Leaves nothing behind: what it attached, connected and admitted ends with
 * it, also when it is killed.
 * Context: blocks; threads of its own.
 * Return: 0 it ran, and @ret says what was found; -EAGAIN the daemon cannot
 * take it now; other: it went wrong.
 */
int kvs_selftest(const struct kvs_selftest_opts *o,
		 struct kvs_selftest_result *ret, char *err, size_t errlen);

#endif /* KVS_TOOLS_SELFTEST_H */
