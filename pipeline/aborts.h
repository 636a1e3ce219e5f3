/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: aborts
 *
 * The last rooms of a worker that failed: why, for OPENs that cross the
 * failure, and when, for what hold.timeout has to cover. A room may be gone
 * long before its ranks have answered its ABORT, so this is kept beside the
 * rooms, a fixed number of them, the older of two in one place forgotten.
 *
 * Measured from the ABORT, once it is sent: the first acknowledgement of a
 * rank of which no chunk ended after it (it had nothing outstanding: the
 * ABORT's way there and back), and the end of every chunk that did.
 */
#ifndef KVS_PIPELINE_ABORTS_H
#define KVS_PIPELINE_ABORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "kvstage/layout.h"

#define KVS_ABORTS 256 /* rooms remembered; a power of two */
#define KVS_ABORT_TEXT 128 /* bytes, NUL included */

/* A bit for each rank. */
struct kvs_abort_ranks {
	uint64_t bits[KVS_RANKS_MAX / 64];
};

struct kvs_abort_entry {
	uint64_t generation; /* 0: unused */
	uint64_t at; /* ns */
	int err; /* positive errno */
	char text[KVS_ABORT_TEXT]; /* why, for who asks later */
	struct kvs_abort_ranks answered;
	struct kvs_abort_ranks late; /* a chunk of it ended after @at */
};

struct kvs_aborts {
	struct kvs_abort_entry v[KVS_ABORTS];
};

/* A room failed at @now with @err, for the reason @text. */
void kvs_aborts_add(struct kvs_aborts *a, uint64_t generation, int err,
		    const char *text, uint64_t now);
/* Positive errno it failed with; 0: not remembered. @ret_text, if any: the
 * reason, in @a until the next one is added; "" then. */
int kvs_aborts_err(const struct kvs_aborts *a, uint64_t generation,
		   const char **ret_text);
/* @rank acknowledged, having had nothing outstanding: ns since the ABORT, for
 * the first time. False: no such sample. @rank below KVS_RANKS_MAX. */
bool kvs_aborts_answer(struct kvs_aborts *a, uint64_t generation, uint32_t rank,
		       uint64_t now, uint64_t *ret_ns);
/* A chunk of @rank ended: ns since the ABORT. False: no sample. */
bool kvs_aborts_chunk(struct kvs_aborts *a, uint64_t generation, uint32_t rank,
		      uint64_t now, uint64_t *ret_ns);

#endif /* KVS_PIPELINE_ABORTS_H */
