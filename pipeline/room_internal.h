/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by room.c, room_tell.c and the worker; not for others. */
#ifndef KVS_PIPELINE_ROOM_INTERNAL_H
#define KVS_PIPELINE_ROOM_INTERNAL_H

#include "pipeline/room.h"

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
/* READY packet with the extents, then the status word. */
void kvs_room_tell_ready(struct kvs_room *r);
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
void kvs_room_log_released(const struct kvs_room *r);
/* Bytes from the start of the room, extents laid end to end. */
uint64_t kvs_room_linear(const struct kvs_room *r, uint32_t extent,
			 uint64_t off);
/* Refuse without a room: FAILED packet and word for a slot. */
void kvs_worker_tell_failed(struct kvs_worker *w, uint32_t engine,
			    uint32_t slot, uint64_t generation, int err,
			    const char *text);
/* Remember why a room failed, for a moment. */
void kvs_worker_ended(struct kvs_worker *w, uint64_t generation, int err);
/* test.inject_flip: damage a READY room, to show that it is found. */
void kvs_worker_inject(struct kvs_worker *w, struct kvs_room *r);

#endif /* KVS_PIPELINE_ROOM_INTERNAL_H */
