/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For claims about a sender rank: a room whose chunks are stuck on their way,
 * and everything that the rank has to say, counted.
 */
#ifndef KVS_TESTS_CLAIM_SENDER_H
#define KVS_TESTS_CLAIM_SENDER_H

#include "tests/unit/pipeline/sender_rig.h"

#define CLAIM_PAGE (1u << 20) /* bytes */
#define CLAIM_PAGES 16u
#define CLAIM_CHUNK 8u /* pages; more than sockets hold */

struct claim_heard {
	unsigned int acks;
	unsigned int naks;
	unsigned int aborts;
	unsigned int lasts;
};

/* One data connection, a window of one chunk. */
struct rig *claim_sender(void);
/* Granted, all pages queued, the first chunk under way and held. */
struct kvs_send_room *claim_stuck(struct rig *g, uint64_t id,
				  uint64_t generation, struct rig_room **ret);
/* Adds what the rank has said by now about @generation; two rounds of
 * KEEPALIVE travel behind it, so nothing is left to come of what it knows. */
void claim_hear(struct rig *g, uint64_t generation, struct claim_heard *h);

#endif /* KVS_TESTS_CLAIM_SENDER_H */
