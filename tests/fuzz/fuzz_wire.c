/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: whatever bytes arrive, kvs_wire_decode() reads none past them and
 * either refuses them with one of its reasons or yields a message that
 * encodes to the same bytes again, so that nothing in a frame goes unlooked
 * at.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/layout.h"
#include "pipeline/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_reason(const char *reason)
{
	static const char *const known[] = { "short", "magic", "length",
					     "type",  "flags", "text",
					     "count", "value", "payload" };
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(known); i++) {
		if (!strcmp(known[i], reason))
			return;
	}
	abort();
}

/* A peer's layout may hold what this version would not send itself. */
static bool fuzz_foreign(const struct kvs_msg *m)
{
	char err[256];

	return m->type == KVS_WIRE_LAYOUT &&
	       kvs_layout_check(&m->layout.l, err, sizeof(err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kvs_wire_scratch scratch;
	static uint64_t again[KVS_FRAME_MAX / 8];
	const char *reason = NULL;
	struct kvs_msg m;
	int len;

	if (kvs_wire_decode((const struct kvs_frame *)(const void *)data, size,
			    &scratch, &m, &reason)) {
		fuzz_reason(reason);
		return 0;
	}
	len = kvs_wire_encode(&m, again, sizeof(again));
	if (fuzz_foreign(&m)) {
		KVS_ASSERT(len == -EINVAL);
		return 0;
	}
	KVS_ASSERT(len >= 0 && (size_t)len <= size);
	KVS_ASSERT(!memcmp(again, data, (size_t)len));
	return 0;
}
