/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: progress
 *
 * How far a long job is, on stderr: one line that is written over where
 * stderr is a terminal, else a plain line every five seconds, so that a log
 * stays short. Shows share done, rate over the last few seconds and the time
 * that leaves. One owner thread.
 */
#ifndef KVS_TOOLS_PROGRESS_H
#define KVS_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/clock.h"

enum kvs_progress_unit {
	KVS_PROGRESS_BYTES, /* shown as GB, rate in GB/s */
	KVS_PROGRESS_COUNT, /* shown as a number, rate a second */
};

/* All private; embed, no allocation. */
struct kvs_progress {
	const char *what;
	enum kvs_progress_unit unit;
	uint64_t total;
	const struct kvs_clock *clk;
	FILE *out;
	bool tty;
	uint64_t from; /* ns, start */
	uint64_t shown; /* ns, last line */
	uint64_t rate_at; /* ns, start of the window the rate is of */
	uint64_t rate_done;
	double rate; /* a second; 0: not known yet */
	int width; /* of the line on the terminal; 0: none there */
};

/**
 * kvs_progress_init() - begin; shows nothing yet
 * @p: caller's
 * @what: what is being done, "replay"; static string
 * @unit: of @total
 * @total: when it will be done; 0: not known, then no share and no time left
 * @clk: NULL: the real one
 * @out: NULL: stderr
 */
void kvs_progress_init(struct kvs_progress *p, const char *what,
		       enum kvs_progress_unit unit, uint64_t total,
		       const struct kvs_clock *clk, FILE *out);

/* So far; call as often as you like, a line comes out when one is due. */
void kvs_progress_update(struct kvs_progress *p, uint64_t done);

/* Take the line off the terminal, before something else is printed. */
void kvs_progress_clear(struct kvs_progress *p);

/* The last line: total time and mean rate. */
void kvs_progress_end(struct kvs_progress *p, uint64_t done);

#endif /* KVS_TOOLS_PROGRESS_H */
