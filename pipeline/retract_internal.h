/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of retractions among each other: retract.c has states, ends, packets;
 * retract_sum.c what is done in turns; offload.c those that are to be cached.
 */
#ifndef KVS_PIPELINE_RETRACT_INTERNAL_H
#define KVS_PIPELINE_RETRACT_INTERNAL_H

#include "pipeline/retract.h"

#define KVS_RETRACT_MAGIC 0x4b565254u

/* retract.c. The one place where a state changes. */
void kvs_retract_move(struct kvs_retraction *t, enum kvs_retract_state to);
/* Its word. */
void kvs_retract_tell(struct kvs_retraction *t);
/* 0; -EALREADY. It may be over on return, and is deleted in a turn. */
int kvs_retract_fail(struct kvs_retraction *t, enum kvs_room_cause cause,
		     int err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* In no state yet, without memory of its own; 0 or -ENOMEM. */
int kvs_retract_new(struct kvs_worker *w, struct kvs_worker_engine *e,
		    const struct kvs_retract_request *q,
		    struct kvs_retraction **ret);
/**
 * kvs_retract_create() - LEAVING, with places for all of it
 * @keep: of an offload, which the retraction has then; NULL
 * @err: what a refusal says
 * Return: 0; -ENOSPC not now; -E2BIG never; -ENOMEM.
 */
int kvs_retract_create(struct kvs_worker *w, struct kvs_worker_engine *e,
		       const struct kvs_retract_request *q,
		       struct kvs_keep *keep, struct kvs_retraction **ret,
		       char *err, size_t errlen);
/* PLACED: from here on the engine's copy is a party. 0 or -ENOMEM. */
int kvs_retract_tell_places(struct kvs_retraction *t);

/* retract_sum.c. Sum it up; @first: before all others. */
void kvs_retract_sum(struct kvs_retraction *t, bool first);

/* retract_report.c. Bytes of the offload pool that an offload may take now. */
uint64_t kvs_retracts_room(const struct kvs_worker *w);

/* offload.c */
/* Its copy out has ended: on into the cache. */
void kvs_offload_copied(struct kvs_retraction *t);
/* Some bytes of it; how many. */
uint64_t kvs_offload_some(struct kvs_retraction *t);

/* recall.c: COMMIT, and COMMITTED, of a pin */
void kvs_pin_recall(struct kvs_retraction *t);
void kvs_pin_recalled(struct kvs_retraction *t);

#endif /* KVS_PIPELINE_RETRACT_INTERNAL_H */
