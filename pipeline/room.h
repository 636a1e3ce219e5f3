/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: room
 *
 * One request's hand-over from prefill to decode, on the worker that owns its
 * memory. All state changes go through room_move() in room.c, which knows
 * the legal edges; what an abort means in each state is one switch in
 * kvs_room_fail().
 *
 *  WAITING <> ADMITTED -> RECEIVING -> SEALING -> READY -> COMMITTING -> DONE
 *     |          |            |           |         |          |           |
 *     +----------+------------+-----------+---------+----------+----> DRAINING
 *                                                     FREE <---------------+
 *                                              QUARANTINED (-> FREE) <-----+
 */
#ifndef KVS_PIPELINE_ROOM_H
#define KVS_PIPELINE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "lib/timer.h"
#include "pinned/drain.h"
#include "pinned/pool.h"
#include "pipeline/canary.h"
#include "pipeline/digest.h"
#include "pipeline/digest_map.h"
#include "pipeline/geometry.h"
#include "pipeline/ranges.h"
#include "pipeline/stats.h"
#include "pipeline/wire.h"

struct kvs_admission_peer;
struct kvs_host;
struct kvs_key;
struct kvs_packet_failed;
struct kvs_prefix;
struct kvs_worker;
struct kvs_worker_engine;
struct kvs_worker_session;

#define KVS_ROOM_STATES(X)                                                       \
	/* holds: a place in the queue. Moves on: memory freed (worker).       \
	 * Ends: admission.timeout, abort. */ \
	X(WAITING, "waiting")                                                    \
	/* holds: extents (reserved), nobody knows them. Moves on: first OPEN  \
	 * of a rank; back to WAITING when a room that is being sent needs     \
	 * them. Ends: open.timeout, abort. */ \
	X(ADMITTED, "admitted")                                                  \
	/* holds: extents (granted). Moves on: every expected byte of every    \
	 * rank. Ends: open.timeout while a rank has not opened,               \
	 * transfer.timeout, lost peer, abort by either side. */ \
	X(RECEIVING, "receiving")                                                \
	/* holds: extents (granted), closing the grants, then checking. Moves  \
	 * on: proof that nobody writes. Ends: missing bytes, abort. */ \
	X(SEALING, "sealing")                                                    \
	/* holds: extents (staged), complete and unchanging. Moves on: the     \
	 * first member's commit. Ends: claim.timeout, a member's abort or      \
	 * death. */ \
	X(READY, "ready")                                                        \
	/* holds: extents (committing), its members copy. Moves on: the last   \
	 * copy event. Ends: failed copy, claim.timeout while a member has not \
	 * committed, a member's abort, its death before its copy event. */ \
	X(COMMITTING, "committing")                                              \
	/* holds: extents until the drain, armed here, is over. */               \
	X(DONE, "done")                                                          \
	/* failed; holds: extents (held) until the drain is over. */             \
	X(DRAINING, "draining")                                                  \
	/* failed, a party cannot be revoked; a late proof frees it. */          \
	X(QUARANTINED, "quarantined")                                            \
	/* holds: nothing; deleted at the end of the worker's turn. */           \
	X(FREE, "free")

#define KVS_ENUM_(n, s) KVS_ROOM_##n,
enum kvs_room_state { KVS_ROOM_STATES(KVS_ENUM_) KVS_ROOM_STATE_MAX };
#undef KVS_ENUM_
extern const char *const kvs_room_state_name[KVS_ROOM_STATE_MAX];

/* What lets a one-sided rank write. Told to it once OPEN. */
enum kvs_rank_grant {
	/* not one-sided, or has nothing to write */
	KVS_RANK_NONE,
	/* asked for; moves on by kvs_worker_grant_opened() */
	KVS_RANK_OPENING,
	/* its writes may land at any time; ends when all is there, when the
	 * rank acknowledged an abort, or by revocation */
	KVS_RANK_OPEN,
	/* moves on by kvs_worker_grant_closed() */
	KVS_RANK_CLOSING,
	/* an attempt to close it failed: writes may land; its connections are
	 * being torn down, or have been and it is still not closed */
	KVS_RANK_DOUBT,
	/* proven */
	KVS_RANK_CLOSED,
};

/* One prefill rank of a room. */
struct kvs_room_rank {
	struct kvs_party party; /* joined when its acknowledgement counts */
	struct kvs_room *room;
	struct kvs_worker_session *session; /* NULL: has not opened */
	struct kvs_list session_node; /* on session->ranks */
	uint64_t session_id; /* of the session, also when it is lost */
	enum kvs_rank_grant grant;
	bool torn; /* its connections were torn down to close the grant */
	void *grant_owner; /* of who opened the grant */
	uint32_t rank;
	struct kvs_slice slice;
	uint64_t expected; /* bytes, from the engine's admit */
	uint64_t received; /* bytes placed */
	uint64_t conns; /* one-sided: bits of those it said to have used */
	struct kvs_digest_map map; /* only with a digest */
	struct kvs_digest digest; /* of what was placed */
	uint32_t sent_digest; /* from LAST */
	bool granted; /* GRANT sent */
	bool last; /* LAST came and its total was right */
	bool short_last; /* LAST came with a total that lacks bytes */
	uint64_t announced; /* that total */
	bool told; /* ABORT sent */
	uint32_t asked_again; /* ABORTs after the first, not yet answered */
};

#define KVS_SLOT_NONE UINT32_MAX

/* One engine of those that a room is received for: fixed when it is made. */
struct kvs_room_member {
	struct kvs_party copy; /* to its device: from its COMMIT on */
	struct kvs_room *room;
	struct kvs_worker_engine *engine;
	struct kvs_list engine_node;
	uint32_t slot; /* KVS_SLOT_NONE: it has not admitted the room yet */
	bool claimed; /* COMMIT came */
	bool copied; /* and its copy has ended, well */
};

/* What an engine asked for; checked by whoever builds it. */
struct kvs_room_request {
	uint64_t room;
	uint64_t generation;
	uint32_t engine;
	uint32_t slot;
	unsigned char nonce[16];
	char peer[KVS_PEER_NAME];
	uint64_t tokens;
	uint32_t aux_len;
	bool health; /* a health check: from a reserve, no checksum */
	uint32_t n_ranks;
	const struct kvs_rank_slice *ranks;
	uint32_t tp; /* of the prefill; 0: 1 */
	uint32_t page_size; /* of the prefill; 0: the engine's */
	const uint16_t *tp_ranks; /* n_ranks; NULL: all 0 */
	/* numbers of all engines it is for, @engine among them; none: for
	 * @engine alone */
	uint32_t n_members;
	const uint32_t *members;
	/* of the blocks it consists of, from the first on */
	uint32_t n_hashes;
	const uint8_t (*hashes)[16];
	bool use_cache; /* what is cached need not be received */
};

static inline struct kvs_slice kvs_room_slice(const struct kvs_room_request *q,
					      uint32_t rank)
{
	return (struct kvs_slice){
		.first_layer = q->ranks[rank].first_layer,
		.n_layers = q->ranks[rank].n_layers,
		.tp = q->tp ? q->tp : 1,
		.tp_rank = q->tp_ranks ? q->tp_ranks[rank] : 0,
	};
}

struct kvs_room {
	uint32_t magic;
	enum kvs_room_state state;
	uint64_t id;
	uint64_t generation;
	struct kvs_worker *w;
	struct kvs_room_member *members; /* behind the ranks */
	uint32_t n_members;
	uint32_t n_claimed; /* of them */
	uint32_t n_copied;
	char peer[KVS_PEER_NAME];
	unsigned char nonce[16];

	struct kvs_host *host; /* its layout; NULL: that of its members */
	struct kvs_geometry geo;
	struct kvs_extents ext;
	struct kvs_ranges claimed; /* room-linear bytes spoken for */
	struct kvs_canary_secret canary; /* when there are canaries */
	bool canaries; /* written before the first grant */
	struct kvs_drain drain;
	struct kvs_wait wait;
	struct kvs_waitq *queue; /* it waits in; NULL: in none */
	struct kvs_list loan_node; /* ADMITTED, and nobody has opened it */
	struct kvs_admission_peer *account; /* until its memory is free */
	uint64_t need; /* bytes of the pool */
	bool health;
	bool opened; /* by one rank at least */
	struct kvs_list receives; /* struct kvs_receive in progress */

	/* see pipeline/cache.h; its geometry is that of what is received */
	bool asks; /* its engines want to know what is cached */
	struct kvs_prefix *prefix; /* NULL: all is received */
	struct kvs_key *keys; /* of what is received, block by block */
	uint32_t n_keys;
	uint32_t block_pages;

	/* of the present state; in a hold: when ABORT is sent again */
	struct kvs_timer deadline;
	uint64_t since; /* ns, of the present state */
	uint64_t admit_at;
	uint64_t wait_at; /* it waits for memory since then */
	uint64_t memory_at; /* ADMITTED: ranks may open from then on */
	uint64_t open_at; /* first OPEN */

	uint64_t expected;
	uint64_t received;
	uint32_t ranks_granted;
	uint32_t ranks_last; /* ranks whose LAST came */

	enum kvs_room_cause cause; /* why it failed */
	int err; /* the same, for ranks: a positive errno */
	bool failed;
	struct kvs_list dead_node;

	uint32_t n_ranks;
	struct kvs_room_rank ranks[];
};

/**
 * kvs_room_create() - a room in WAITING; owns no memory yet
 *
 * All checks against the pool come first, so that a request that can never
 * fit leaves no trace (R11).
 * Return: 0; -E2BIG; -EDQUOT (the peer has too much, now); -EPROTOTYPE (ranks
 * do not cover each layer exactly once); -EINVAL; -ENOMEM. @err gets the text
 * for the engine.
 */
int kvs_room_create(struct kvs_worker *w, struct kvs_worker_engine *e,
		    const struct kvs_room_request *q, struct kvs_room **ret,
		    char *err, size_t errlen);
/* Undo that: nobody was told, and it does not wait. */
void kvs_room_discard(struct kvs_room *r);
/* Frees a room in FREE. */
void kvs_room_destroy(struct kvs_room *r);

/* Try to take the memory: 0 -> ADMITTED; -EAGAIN; other: cannot. */
int kvs_room_take_memory(struct kvs_room *r);
/* Wait in order. */
void kvs_room_queue(struct kvs_room *r);
/* ADMITTED -> WAITING: nobody opened it, and another is being sent. */
void kvs_room_take_back(struct kvs_room *r);
/* A rank opened: bind it, and grant when there is memory. */
int kvs_room_open(struct kvs_room *r, struct kvs_worker_session *s,
		  uint32_t rank, uint64_t tokens, char *err, size_t errlen);
/* A rank says it has sent everything. -EPROTO: totals or order. */
int kvs_room_last(struct kvs_room *r, const struct kvs_msg_last *m);
/* Bytes were placed for a rank. */
void kvs_room_placed(struct kvs_room *r, struct kvs_room_rank *k,
		     uint64_t bytes);
/* A member claims a room that is READY for it: 0, -EAGAIN not READY, -EPROTO
 * for the second time. */
int kvs_room_commit(struct kvs_room_member *m);
/* Its copies ended, well or badly. -EPROTO when not copying. */
int kvs_room_committed(struct kvs_room_member *m, int err);
/* A member admits the room, which exists: it is told what is the case. */
void kvs_room_join(struct kvs_room_member *m, uint32_t slot);
/* Of an engine and its slot; NULL. */
struct kvs_room_member *kvs_room_member(struct kvs_room *r, uint32_t engine,
					uint32_t slot);
/* Is the copy of any member a party? */
bool kvs_room_copying(const struct kvs_room *r);

/**
 * kvs_room_fail() - end a room that has not succeeded; the one abort path
 * @cause: for the metric
 * @err: positive errno for the engine and the ranks
 * @fmt: text for both
 *
 * Arms the drain, then tells the ranks and the engine (R2). The first call
 * decides (R12). The room may be over (memory released) on return, but is
 * deleted only at the end of the worker's turn.
 * Return: 0; -EALREADY it had ended.
 */
int kvs_room_fail(struct kvs_room *r, enum kvs_room_cause cause, int err,
		  const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Not failed, not done: its id is taken. */
bool kvs_room_live(const struct kvs_room *r);
/* HTTP-like class of an errno: 400 never, 503 later. */
unsigned int kvs_error_class(int err);
/* FAILED for an engine's slot, with its class; @err positive; @retry_ms as in
 * struct kvs_failure. */
void kvs_failed_fill(struct kvs_packet_failed *ret, uint32_t slot,
		     uint64_t generation, int err, uint32_t retry_ms,
		     const char *text);
/* A REFUSE with its class; @err positive, @generation 0 when not known. */
void kvs_refuse_fill(struct kvs_msg *ret, uint64_t room, uint64_t generation,
		     uint32_t rank, int err, const char *text);

#endif /* KVS_PIPELINE_ROOM_H */
