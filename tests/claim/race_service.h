/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon core with its threads, the library's engine, and ranks of two peers
 * that are control connections of plain sockets. How bytes travel is left to
 * race_tcp.c and race_verbs.c, which fill in the rest of RACE_SERVICE.
 */
#ifndef KVS_TESTS_RACE_SERVICE_H
#define KVS_TESTS_RACE_SERVICE_H

#include "tests/claim/race_rig.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define RACE_SERVICE_ITEM 8192u /* bytes of a page in one buffer */
#define RACE_SERVICE_TOKENS 16u /* of a page */
/* the default of extent.tokens */
#define RACE_SERVICE_EXTENT_PAGES (2048u / RACE_SERVICE_TOKENS)
#define RACE_SERVICE_PEERS 2u

extern struct rig race_rig[1];

/**
 * race_service_up() - all but the data connections
 * @tcp: engine
 * @caps: of the ranks, besides the usual
 * @set: settings, ended by a NULL; or NULL
 */
void race_service_up(struct race *x, const char *tcp, uint64_t caps,
		     const char *const set[][2]);
void race_service_down(struct race *x);
struct ps *race_service_writer(unsigned int peer, unsigned int rank);
/* What a rank was granted of a room. */
struct ps_room *race_service_side(const struct race_room *r, unsigned int rank);

/* of struct race_transport */
unsigned char race_service_byte(const struct race_room *r, uint32_t buffer,
				uint32_t page, uint32_t at);
void race_service_admit(struct race *x, struct race_room *r);
void race_service_grant(struct race *x, struct race_room *r);
void race_service_abort(struct race *x, struct race_room *r);
void race_service_answer(struct race *x, struct race_room *r, unsigned int rank,
			 enum race_end how);
void race_service_last(struct race *x, struct race_room *r);
void race_service_commit(struct race *x, struct race_room *r);
void race_service_done(struct race *x, struct race_room *r);
void race_service_settle(struct race *x);
enum kvs_status race_service_status(struct race *x, struct race_room *r);
uint64_t race_service_bytes(struct race *x, enum kvs_extent_state st);
uint64_t race_service_drains(struct race *x, enum kvs_drain_outcome o,
			     enum kvs_proof p);

#define RACE_SERVICE                                                          \
	.item = RACE_SERVICE_ITEM, .extent_pages = RACE_SERVICE_EXTENT_PAGES, \
	.byte = race_service_byte, .admit = race_service_admit,               \
	.grant = race_service_grant, .abort = race_service_abort,             \
	.last = race_service_last, .commit = race_service_commit,             \
	.done = race_service_done, .settle = race_service_settle,             \
	.status = race_service_status, .bytes = race_service_bytes,           \
	.drains = race_service_drains

#endif /* KVS_TESTS_RACE_SERVICE_H */
