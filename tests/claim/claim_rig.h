/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the claim tests add to the worker rig: rooms with a pattern of their
 * own, so that a byte of another room is seen; the memory of a room, as a
 * one-sided writer or a copy engine reaches it; the words of a sender.
 */
#ifndef KVS_TESTS_CLAIM_RIG_H
#define KVS_TESTS_CLAIM_RIG_H

#include "tests/unit/pipeline/worker_rig.h"

#define CLAIM_BUFFERS 4
#define CLAIM_ITEM 1024u /* bytes of a page in one buffer */
#define CLAIM_PAGE (CLAIM_BUFFERS * CLAIM_ITEM)
#define CLAIM_PAGES_MAX 128

/* The room of a generation, or NULL. */
struct kvs_room *claim_room(const struct rig *g, uint64_t generation);
/* Where a page lies now. */
unsigned char *claim_at(const struct kvs_room *r, uint32_t buffer,
			uint32_t page);
/* What a device does: nothing in this process sees or forbids it. */
void claim_device_write(unsigned char *to, unsigned char v, size_t n);

/* Chunks of pages [first, first + n) of a rank's layers; no LAST. */
void claim_send(struct rig *g, uint64_t room, uint64_t generation,
		unsigned int rank, unsigned int n_ranks, unsigned int first,
		unsigned int n, unsigned int seed);
/* Everything of all ranks that is left from page @first on, and LAST. */
void claim_send_rest(struct rig *g, uint64_t room, uint64_t generation,
		     unsigned int n_ranks, unsigned int first,
		     unsigned int pages, unsigned int seed);

/* A copy engine, page by page: what it has read. */
struct claim_copy {
	unsigned char b[CLAIM_PAGES_MAX][CLAIM_BUFFERS][CLAIM_ITEM];
	const unsigned char *from[CLAIM_PAGES_MAX][CLAIM_BUFFERS];
	unsigned int pages;
};

/* Begin: the places are fixed, as those of a launched copy are. */
void claim_copy_launch(struct claim_copy *c, const struct kvs_room *r);
/* Read every page whose number modulo @of is @which. */
void claim_copy_run(struct claim_copy *c, unsigned int which, unsigned int of);
/* Bytes that are not what claim_send() of @seed sent. */
uint64_t claim_copy_wrong(const struct claim_copy *c, unsigned int seed);

/* ABORT_ACK, ABORT_NAK, ABORT of the rank behind @session. */
void claim_say(struct rig *g, uint64_t session, enum kvs_wire_type type,
	       uint64_t room, uint64_t generation, unsigned int rank, int err);

#endif /* KVS_TESTS_CLAIM_RIG_H */
