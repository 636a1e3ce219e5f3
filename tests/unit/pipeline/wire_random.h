/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: random messages
 *
 * Messages that the encoder accepts, for the tests of the wire protocol and
 * for making the corpus of its fuzz target.
 */
#ifndef KVS_TESTS_WIRE_RANDOM_H
#define KVS_TESTS_WIRE_RANDOM_H

#include <stdbool.h>

#include "lib/rng.h"
#include "pipeline/wire.h"

/* Fill @m with a message of @type; arrays go to @s, at most @most entries. */
void kvs_wire_random(struct kvs_rng *r, enum kvs_wire_type type, uint32_t most,
		     struct kvs_wire_scratch *s, struct kvs_msg *m);

/* Field by field, arrays included; texts as far as the NUL. */
bool kvs_wire_equal(const struct kvs_msg *a, const struct kvs_msg *b);

#endif /* KVS_TESTS_WIRE_RANDOM_H */
