/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by room*.c, admission.c and the worker; not for others. */
#ifndef KVS_PIPELINE_ROOM_INTERNAL_H
#define KVS_PIPELINE_ROOM_INTERNAL_H

#include "pipeline/room.h"

/* room.c: the one place where a room's state changes */
void kvs_room_move(struct kvs_room *r, enum kvs_room_state to);
/* Of the present state, ns from now. */
void kvs_room_deadline(struct kvs_room *r, uint64_t after);
/* The word of its state, to all members. */
void kvs_room_tell_status(struct kvs_room *r);

/* room_commit.c */
/* Who it is for; @e, who asks, has its slot at once. 0; -ECONNRESET with
 * @err. */
int kvs_room_init_members(struct kvs_room *r, struct kvs_worker_engine *e,
			  const struct kvs_room_request *q, char *err,
			  size_t errlen);
/* claim.timeout is over, and not all have claimed it. */
void kvs_room_claim_too_late(struct kvs_room *r);

/* room_layout.c */
/* How it lies: 0, with @ret_host (NULL: as its members have it) and @ret_geo;
 * -E2BIG, -EPROTOTYPE, -ECONNRESET, -EINVAL, -ENOMEM with @err. */
int kvs_room_layout(struct kvs_worker *w, struct kvs_worker_engine *e,
		    const struct kvs_room_request *q,
		    struct kvs_host **ret_host, struct kvs_geometry *ret_geo,
		    char *err, size_t errlen);

/* room_memory.c */
/* Bytes of the pool that a room takes. */
uint64_t kvs_room_need(const struct kvs_geometry *g);
/* R11: 0; -E2BIG never, with @err; -ENOMEM. */
int kvs_room_check_fit(struct kvs_worker *w, const struct kvs_geometry *g,
		       char *err, size_t errlen);
/* kvs_wait.try of a room. */
int kvs_room_wait_try(struct kvs_wait *wt);
/* The first OPEN of a room without memory: now it is its turn before those
 * that nobody opened. */
void kvs_room_opened(struct kvs_room *r);

void kvs_room_grant(struct kvs_room *r, struct kvs_room_rank *k);
/* GRANT without keys. */
void kvs_room_grant_fill(const struct kvs_room *r,
			 const struct kvs_room_rank *k, struct kvs_msg *ret);
/* SEALING: nobody writes any more? Then look at what arrived. */
void kvs_room_check_arrival(struct kvs_room *r);

/* room_grant.c: one-sided ranks */
/* Where anybody may be one-sided: before the first grant. */
void kvs_room_canaries(struct kvs_room *r);
/* Let the rank write; GRANT follows when its keys are there. The room has
 * failed on an error. */
int kvs_room_grant_open(struct kvs_room *r, struct kvs_room_rank *k);
/* SEALING: close what is open; those that have nothing to close leave. */
void kvs_room_close_grants(struct kvs_room *r);
/* 0; -ENODATA: a page never arrived, and the room has failed. */
int kvs_room_check_canaries(struct kvs_room *r);
/* READY packet with the extents, then the status word; to those who wait. */
void kvs_room_tell_ready(struct kvs_room *r);
/* The same to one: 0; -ENOMEM. */
int kvs_room_tell_member_ready(const struct kvs_room_member *m);
/* How much of it is cached, to all its members; or to one. */
void kvs_room_tell_cached(struct kvs_room *r);
void kvs_room_tell_member_cached(const struct kvs_room_member *m);
/* FAILED packet with errno, class and text, then the status word. */
void kvs_room_tell_failed(struct kvs_room *r, int err, const char *text);
/* While a hold lasts the room's timer is that of the next ABORT (hold.reask);
 * not set when nobody's acknowledgement is awaited. */
void kvs_room_ask_later(struct kvs_room *r);
/* Send it, to those whose acknowledgement is awaited, and set the timer. */
void kvs_room_ask_again(struct kvs_room *r);
/* "k layer 3 page 0": first byte of the rank that no chunk has claimed. */
void kvs_room_first_missing(const struct kvs_room *r,
			    const struct kvs_room_rank *k, char *buf,
			    size_t len);
/* A room's memory in the log: who got it; what is held and for whom, the proof
 * of each party, the release. */
void kvs_room_log_admitted(const struct kvs_room *r); /* where, level debug */
void kvs_room_log_held(const struct kvs_room *r);
void kvs_room_log_left(const struct kvs_room *r, const struct kvs_party *p,
		       enum kvs_proof proof);
void kvs_room_log_abandoned(const struct kvs_room *r);
void kvs_room_log_released(const struct kvs_room *r);
/* Bytes from the start of the room, extents laid end to end. */
uint64_t kvs_room_linear(const struct kvs_room *r, uint32_t extent,
			 uint64_t off);
/* Refuse without a room: FAILED packet and word for a slot. */
void kvs_worker_tell_failed(struct kvs_worker *w, uint32_t engine,
			    uint32_t slot, uint64_t generation, int err,
			    uint32_t retry_ms, const char *text);
/* When memory for @bytes may be there, if it was memory that was missing. */
uint32_t kvs_worker_retry(const struct kvs_worker *w, int err, uint64_t bytes);
/* Remember why a room failed, for a moment. */
void kvs_worker_ended(struct kvs_worker *w, uint64_t generation, int err,
		      const char *text);
/* test.inject_flip: damage a READY room, to show that it is found. */
void kvs_worker_inject(struct kvs_worker *w, struct kvs_room *r);

#endif /* KVS_PIPELINE_ROOM_INTERNAL_H */
