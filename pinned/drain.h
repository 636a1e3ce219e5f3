/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: drain
 *
 * The one object that decides when memory may be reused. A drain belongs to
 * a room (or a cache entry, or a VRAM page run) and knows every *party*:
 * anything asynchronous that may still touch the bytes. Parties join while
 * the drain is open, leave when proven finished, and once the drain is
 * *armed* nobody may join. When it is armed and no party is left, it is over,
 * and only then the extents beside it may go back to a free list
 * (kvs_pool_release() takes the drain and asserts that).
 *
 *   OPEN --arm--> ARMED --last party gone--> OVER (drained | revoked)
 *                   |  --hold timeout: revoke each party; those that
 *                   |    cannot be revoked--> STUCK --late proof--> OVER
 *   any --the process ends--> OVER (abandoned; nothing is handed out again)
 *
 * A drain that becomes stuck counts as quarantined then, and under its real
 * outcome and proof when it is over: revoked if any party left by revocation.
 *
 * The clock never frees: at the hold timeout parties are asked to revoke
 * (ops->revoke), and only their proof ends the drain.
 *
 * One owner thread. Party and revocation behaviour are ops tables, so that
 * transports, copies and disk plug in from above.
 */
#ifndef KVS_PINNED_DRAIN_H
#define KVS_PINNED_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/clock.h"
#include "lib/list.h"
#include "lib/timer.h"

/* X(NAME, string): what kind of thing may touch the memory */
#define KVS_PARTY_KINDS(X)                                           \
	X(RANK, "rank") /* remote writer */                          \
	X(RECEIVE, "receive") /* our own receive into the extent */  \
	X(READ, "read") /* our own one-sided read into the extent */ \
	X(COPY, "copy") /* copy engine of an attached process */     \
	X(IO, "io") /* disk */                                       \
	X(PROCESS, "process") /* an engine process that maps the pool */

/* X(NAME, string): what proved that a party is finished */
#define KVS_PROOFS(X)                                   \
	X(NEVER_GRANTED, "never_granted")               \
	X(ALL_ACKNOWLEDGED, "all_acknowledged")         \
	X(RECEIVE_REAPED, "receive_reaped")             \
	X(COPY_EVENT, "copy_event")                     \
	X(IO_COMPLETION, "io_completion")               \
	X(PROCESS_EXIT, "process_exit")                 \
	X(GRANT_INVALIDATED, "grant_invalidated")       \
	X(CONNECTION_TORN_DOWN, "connection_torn_down") \
	X(CANNOT_REVOKE, "cannot_revoke")

#define KVS_DRAIN_OUTCOMES(X) \
	X(DRAINED, "drained") \
	X(REVOKED, "revoked") \
	X(QUARANTINED, "quarantined")

/* why an acknowledgement was not counted */
#define KVS_ACK_IGNORED(X)                                              \
	X(STALE, "stale") /* generation is not the current one */       \
	X(MALFORMED, "malformed") /* no generation at all */            \
	X(DUPLICATE, "duplicate") /* this party acknowledged already */ \
	X(UNKNOWN_PARTY, "unknown_party")                               \
	X(UNKNOWN_ROOM, "unknown_room")                                 \
	X(NOT_ARMED, "not_armed") /* nobody asked yet */                \
	X(POISONED, "poisoned") /* it can no longer be proof */

#define KVS_ENUM_(n, s) KVS_PARTY_##n,
enum kvs_party_kind { KVS_PARTY_KINDS(KVS_ENUM_) KVS_PARTY_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_PROOF_##n,
enum kvs_proof { KVS_PROOFS(KVS_ENUM_) KVS_PROOF_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_DRAIN_##n,
enum kvs_drain_outcome { KVS_DRAIN_OUTCOMES(KVS_ENUM_) KVS_DRAIN_OUTCOME_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_ACK_IGNORED_##n,
enum kvs_ack_ignored { KVS_ACK_IGNORED(KVS_ENUM_) KVS_ACK_IGNORED_MAX };
#undef KVS_ENUM_

extern const char *const kvs_party_kind_name[KVS_PARTY_MAX];
extern const char *const kvs_proof_name[KVS_PROOF_MAX];
extern const char *const kvs_drain_outcome_name[KVS_DRAIN_OUTCOME_MAX];
extern const char *const kvs_ack_ignored_name[KVS_ACK_IGNORED_MAX];

struct kvs_drain;
struct kvs_party;

/**
 * struct kvs_party_ops - how one kind of party can be stopped
 * @name: for logs
 * @kind: what it is
 * @revoke: make the party unable to touch the memory. Returns 0 when the
 *          revocation was started or done; the party leaves (now or later)
 *          by kvs_party_leave() with the proof. An acknowledgement may
 *          come before that; the party has left then and its memory may be
 *          gone, so what revoke() began must not hold on to it.
 *          A negative errno: it cannot be revoked (and has not left), the
 *          drain becomes quarantined until a late proof.
 *          NULL means the same as -EOPNOTSUPP. Does not block. May be called
 *          more than once for a party that has not left. Where what it began
 *          fails later: kvs_party_revoke_failed().
 * @ack_closes: what the party says is not enough: it can reach the memory
 *          until something is closed (a remote key). Its acknowledgement is
 *          counted, and makes it revoke; the party leaves with that proof,
 *          and GRANT_INVALIDATED counts as ALL_ACKNOWLEDGED then (R1).
 */
struct kvs_party_ops {
	const char *name;
	enum kvs_party_kind kind;
	bool ack_closes;
	int (*revoke)(struct kvs_party *p);
};

struct kvs_party {
	const struct kvs_party_ops *ops;
	struct kvs_drain *drain; /* NULL when not joined */
	struct kvs_list node;
	/* rank number, copy id, ... unique within its kind, but for RECEIVE */
	uint64_t id;
	uint32_t walk; /* drain's walk that asked it to revoke; 0 = none */
	bool acked; /* an acknowledgement of this party was counted */
	bool poisoned; /* its acknowledgement can no longer come (NAK, ...) */
	bool revoking; /* revoke() returned 0 and the proof is awaited */
};

enum kvs_drain_state {
	/* parties may join and leave; memory in use; arm() moves on */
	KVS_DRAIN_OPEN,
	/* nobody joins; ends with the last party, hold timer runs */
	KVS_DRAIN_ARMED,
	/* hold timeout passed and a party cannot be revoked; a proof ends it */
	KVS_DRAIN_STUCK,
	/* no party left; memory may be freed */
	KVS_DRAIN_OVER,
};

/* Counters shared by all drains of a worker. */
struct kvs_drain_stats {
	uint64_t total[KVS_DRAIN_OUTCOME_MAX][KVS_PROOF_MAX];
	uint64_t ack_ignored[KVS_ACK_IGNORED_MAX];
};

/**
 * struct kvs_drain - see DOC
 * @over: optional; called exactly once, when the drain is over, from inside
 *        the call that ended it (arm, ack, poison, leave, the hold timer); may
 *        free the drain's owner
 * @stuck: optional; called once, when the drain becomes quarantined
 * @left: optional; called for each party that leaves after the drain was
 *        armed, before that can end it; for logs, must not touch the drain
 */
struct kvs_drain {
	uint32_t magic;
	enum kvs_drain_state state;
	uint64_t generation;
	struct kvs_list parties; /* live ones */
	struct kvs_list acked; /* those that left by acknowledgement (R3) */
	unsigned int live;
	unsigned int busy; /* revocations running: the end waits for them */
	uint32_t walk; /* number of the last walk over all parties */
	bool revoked; /* some party left by revocation */
	bool abandoned; /* over, but nothing is proven */
	bool was_granted; /* somebody joined at some time */
	enum kvs_proof last_proof;
	uint64_t armed_at; /* ns */
	uint64_t over_at; /* ns */
	struct kvs_timer hold;
	struct kvs_timerq *timers;
	const struct kvs_clock *clock;
	uint64_t hold_timeout; /* ns */
	struct kvs_drain_stats *stats;
	void (*over)(struct kvs_drain *d);
	void (*stuck)(struct kvs_drain *d);
	void (*left)(struct kvs_drain *d, const struct kvs_party *p,
		     enum kvs_proof proof);
};

struct kvs_drain_opts {
	uint64_t generation; /* not 0 where acknowledgements are expected */
	uint64_t hold_timeout; /* ns; from arm to revocation */
	const struct kvs_clock *clock;
	struct kvs_timerq *timers;
	struct kvs_drain_stats *stats; /* caller's, outlives the drain */
	/* see struct kvs_drain */
	void (*over)(struct kvs_drain *d);
	void (*stuck)(struct kvs_drain *d);
	void (*left)(struct kvs_drain *d, const struct kvs_party *p,
		     enum kvs_proof proof);
};

/* Memory is the caller's. */
void kvs_drain_init(struct kvs_drain *d, const struct kvs_drain_opts *o);
/* Asserts the drain is over, or open with no party ever joined. */
void kvs_drain_fini(struct kvs_drain *d);

/**
 * kvs_drain_expose() - the memory can be reached from now on
 * @proof: what it will be the proof of, when armed with no party alive
 *
 * For memory whose parties come and go (receives): that none is there is
 * then the proof, and not that nobody ever could reach it.
 */
void kvs_drain_expose(struct kvs_drain *d, enum kvs_proof proof);

void kvs_party_init(struct kvs_party *p, const struct kvs_party_ops *ops,
		    uint64_t id);
/**
 * kvs_drain_join() - a party begins to be able to touch the memory
 *
 * The memory of @p is the caller's and stays until the party has left; that of
 * one which may acknowledge, until the drain is over (a second acknowledgement
 * is told by it).
 * Return: 0; -ESHUTDOWN when the drain is armed already (the caller must not
 * start); -EEXIST when a party of this kind and id is in it. Receives are not
 * looked up, so that joining costs the same with hundreds in flight: their ids
 * need not be unique.
 */
int kvs_drain_join(struct kvs_drain *d, struct kvs_party *p);
/**
 * kvs_party_leave() - proof that the party is finished
 *
 * Harmless when the party has left. May end the drain (calls ->over).
 * @proof is anything but CANNOT_REVOKE.
 */
void kvs_party_leave(struct kvs_party *p, enum kvs_proof proof);

/**
 * kvs_party_revoke_failed() - what revoke() began has failed
 *
 * And there is nothing left to try. When armed, the drain is quarantined
 * until a late proof; a later walk may ask the party again. Harmless when the
 * party has left.
 */
void kvs_party_revoke_failed(struct kvs_party *p);

/**
 * kvs_drain_arm() - record that the owner wants the memory back
 *
 * Before ABORT is sent to anybody (R2). Starts the hold timer; with no live
 * party the drain is over before this returns. Idempotent. When there is no
 * memory for the timer the hold has no bound, and only proofs end it.
 */
void kvs_drain_arm(struct kvs_drain *d);

/**
 * kvs_drain_ack() - a remote party says that it has finished
 * @d: drain
 * @kind: kind of the party
 * @id: id of the party
 * @generation: as in the message; 0 = the message had none
 *
 * Counts once, for a party of the armed set, with the current generation
 * (R3); anything else is counted in stats->ack_ignored and changes nothing.
 * A poisoned party's acknowledgement is not proof and is ignored (R5).
 * Counting it may begin a revocation, see @ack_closes.
 * Return: 0 counted; -ESTALE, -EINVAL (no generation), -EALREADY (duplicate),
 * -ENOENT (unknown party), -EBUSY (not armed), -ECANCELED (poisoned).
 */
int kvs_drain_ack(struct kvs_drain *d, enum kvs_party_kind kind, uint64_t id,
		  uint64_t generation);
/**
 * kvs_drain_poison() - an acknowledgement of this party can no longer come
 *
 * NAK, lost connection, a peer without the capability: when armed, the party
 * is revoked at once instead of at the hold timeout (R5); before that it is
 * remembered, and done at arm. May end the drain (calls ->over).
 * Return: 0 or -ENOENT.
 */
int kvs_drain_poison(struct kvs_drain *d, enum kvs_party_kind kind,
		     uint64_t id);

/**
 * kvs_drain_abandon() - the process ends before the proofs have come
 *
 * Takes out every party that is left, without a proof: ->left is not called,
 * nothing is counted, and ->over finds @abandoned set. Only for an owner that
 * hands nothing out any more. Nothing happens when the drain is over.
 * Context: outside every call of the drain and its parties' revoke().
 */
void kvs_drain_abandon(struct kvs_drain *d);

/* The live party, or NULL. Of receives with one id, any. */
struct kvs_party *kvs_drain_find(struct kvs_drain *d, enum kvs_party_kind kind,
				 uint64_t id);
static inline bool kvs_drain_is_over(const struct kvs_drain *d)
{
	return d->state == KVS_DRAIN_OVER;
}
/* Asserts that the drain is over or stuck. Abandoned is quarantined. */
enum kvs_drain_outcome kvs_drain_outcome(const struct kvs_drain *d);

#endif /* KVS_PINNED_DRAIN_H */
