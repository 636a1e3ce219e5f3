/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: stats
 *
 * What a daemon counts. A worker owns its struct kvs_worker_stats; a snapshot
 * is copied on the worker's own thread, so its numbers belong together (the
 * pool identity holds in every scrape).
 */
#ifndef KVS_PIPELINE_STATS_H
#define KVS_PIPELINE_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "lib/hist.h"
#include "pinned/drain.h"
#include "pinned/pool.h"
#include "pipeline/auth_key.h"
#include "rdma/verbs.h"

/* X(NAME, label): why a room did not succeed */
#define KVS_ROOM_CAUSES(X)                                               \
	X(ENGINE_ABORT, "engine_abort")                                  \
	X(SENDER_ABORT, "sender_abort")                                  \
	X(SENDER_REFUSED, "sender_refused")                              \
	X(PEER_LOST, "peer_lost") /* connection closed, reset, silent */ \
	X(ENGINE_LOST, "engine_lost")                                    \
	X(ADMISSION_TIMEOUT, "admission_timeout")                        \
	X(OPEN_TIMEOUT, "open_timeout")                                  \
	X(TRANSFER_TIMEOUT, "transfer_timeout")                          \
	X(CLAIM_TIMEOUT, "claim_timeout")                                \
	X(MISSING_BYTES, "missing_bytes")                                \
	X(CHECKSUM, "checksum")                                          \
	X(PROTOCOL, "protocol")                                          \
	X(LAYOUT, "layout")                                              \
	X(COPY_FAILED, "copy_failed")                                    \
	X(RECALL, "recall_failed") /* its prefix could not be read */    \
	X(SHUTDOWN, "shutdown")                                          \
	X(INTERNAL, "internal")

/* X(NAME, label): kvstage_admit_total{result} */
#define KVS_ADMIT_RESULTS(X)                  \
	X(OK, "ok") /* memory at once */      \
	X(QUEUED, "queued")                   \
	X(NOFIT, "nofit") /* can never fit */ \
	X(BUSY, "busy") /* queue full */      \
	X(PEER_LIMIT, "peer_limit")           \
	X(DUPLICATE, "duplicate")             \
	X(LAYOUT, "layout")                   \
	X(INVALID, "invalid")

/* X(NAME, label): kvstage_protocol_errors_total{reason} */
#define KVS_PROTOCOL_ERRORS(X)                                             \
	X(SHORT, "short")                                                  \
	X(MAGIC, "magic")                                                  \
	X(LENGTH, "length")                                                \
	X(TYPE, "type")                                                    \
	X(FLAGS, "flags")                                                  \
	X(TEXT, "text")                                                    \
	X(COUNT, "count")                                                  \
	X(VALUE, "value")                                                  \
	X(PAYLOAD, "payload")                                              \
	X(ORDER, "order") /* legal message, wrong time */                  \
	X(RANGE, "range") /* outside what was granted */                   \
	X(OVERLAP, "overlap") /* some bytes sent twice, others not */      \
	X(FOREIGN, "foreign") /* a room or rank that is not this peer's */ \
	X(VERSION, "version")                                              \
	X(TOTALS, "totals") /* LAST does not agree with the admit */       \
	X(HANDSHAKE, "handshake") /* no HELLO in time */                   \
	X(ENGINE, "engine") /* a bad packet from an engine */

/* X(NAME, label): why a rank's acknowledgement cannot come */
#define KVS_ACK_IMPOSSIBLE(X)                                             \
	X(NO_CAPABILITY, "no_capability") /* its HELLO lacks drain_ack */ \
	X(NEGATIVE, "negative") /* ABORT_NAK: a send of it failed */      \
	X(LOST, "lost") /* its connection is gone */

/* X(NAME, label): messages about a room that is none any more */
#define KVS_STRAYS(X)     \
	X(LAST, "last")   \
	X(ABORT, "abort") \
	X(REFUSE, "refuse")

/* X(NAME, label): kvstage_auth_failures_total{reason} */
#define KVS_AUTH_FAILURES(X)                                            \
	X(CODE, "code") /* made with no key of ours, changed, or old */ \
	X(CLOSED, "closed") /* went away when it was asked */           \
	X(LEFT, "left") /* went away before it had said HELLO */        \
	X(ORDER, "order") /* said something else */                     \
	X(MALFORMED, "malformed") /* not a message */                   \
	X(VERSION, "version") /* no common protocol version */          \
	X(TIMEOUT, "timeout") /* listen.handshake_timeout */            \
	X(CROWDED, "crowded") /* over auth.pending: cut off */          \
	X(BLOCKED, "blocked") /* not even heard: auth.failures */

/* X(NAME, label): kvstage_retract_total{result} */
#define KVS_RETRACT_RESULTS(X)                                           \
	X(TAKEN, "taken") /* memory for it was there */                  \
	X(NOSPACE, "nospace") /* none now; it stayed on the device */    \
	X(NOFIT, "nofit") /* can never fit, or none may leave now */     \
	X(OUT, "out") /* it is out, complete */                          \
	X(RESUMED, "resumed") /* it is back */                           \
	X(DROPPED, "dropped") /* the engine ended it */                  \
	X(CHECKSUM, "checksum") /* what is to go back is not the same */ \
	X(FAILED, "failed") /* copy failed, engine lost, shutdown */

/* X(NAME, label): kvstage_offload_total{result} */
#define KVS_OFFLOAD_RESULTS(X)                                                \
	X(KEPT, "kept") /* in the cache, or there already */                  \
	X(NOSPACE, "nospace") /* none in the offload pool, or for the cache \
				 now */ \
	X(NOFIT, "nofit") /* can never fit, or nothing of it is kept */       \
	X(DROPPED, "dropped") /* the engine ended it */                       \
	X(FAILED, "failed") /* copy failed, engine lost, shutdown */

/* X(NAME, label): kvstage_recall_total{result} */
#define KVS_RECALL_RESULTS(X)                                                  \
	X(PINNED, "pinned") /* they are whole, and stay */                     \
	X(RECALLED, "recalled") /* of these, copied to the device */           \
	X(UNPINNED, "unpinned") /* of these, given up by the engine */         \
	X(EXPIRED, "expired") /* of these, neither within cache.pin_timeout */ \
	X(NOTHING, "nothing") /* none of them is cached */                     \
	X(NOSPACE, "nospace") /* cache.pin_share is in use */                  \
	X(CHECKSUM, "checksum") /* they are not what was kept */               \
	X(FAILED, "failed") /* copy failed, engine lost, shutdown */

#define KVS_ENUM_(n, s) KVS_CAUSE_##n,
enum kvs_room_cause { KVS_ROOM_CAUSES(KVS_ENUM_) KVS_CAUSE_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_ADMIT_##n,
enum kvs_admit_result { KVS_ADMIT_RESULTS(KVS_ENUM_) KVS_ADMIT_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_PROTO_##n,
enum kvs_proto_error { KVS_PROTOCOL_ERRORS(KVS_ENUM_) KVS_PROTO_MAX };
#undef KVS_ENUM_

#define KVS_ENUM_(n, s) KVS_ACK_IMPOSSIBLE_##n,
enum kvs_ack_impossible {
	KVS_ACK_IMPOSSIBLE(KVS_ENUM_) KVS_ACK_IMPOSSIBLE_MAX
};
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_RETRACT_RESULT_##n,
enum kvs_retract_result {
	KVS_RETRACT_RESULTS(KVS_ENUM_) KVS_RETRACT_RESULT_MAX
};
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_OFFLOAD_RESULT_##n,
enum kvs_offload_result {
	KVS_OFFLOAD_RESULTS(KVS_ENUM_) KVS_OFFLOAD_RESULT_MAX
};
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_RECALL_RESULT_##n,
enum kvs_recall_result { KVS_RECALL_RESULTS(KVS_ENUM_) KVS_RECALL_RESULT_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_STRAY_##n,
enum kvs_stray { KVS_STRAYS(KVS_ENUM_) KVS_STRAY_MAX };
#undef KVS_ENUM_
#define KVS_ENUM_(n, s) KVS_AUTH_##n,
enum kvs_auth_failure { KVS_AUTH_FAILURES(KVS_ENUM_) KVS_AUTH_FAILURE_MAX };
#undef KVS_ENUM_

extern const char *const kvs_auth_failure_name[KVS_AUTH_FAILURE_MAX];
/* "first", "second": a key by its place in the file */
extern const char *const kvs_auth_key_name[KVS_AUTH_KEYS_MAX];

extern const char *const kvs_ack_impossible_name[KVS_ACK_IMPOSSIBLE_MAX];
extern const char *const kvs_retract_result_name[KVS_RETRACT_RESULT_MAX];
extern const char *const kvs_offload_result_name[KVS_OFFLOAD_RESULT_MAX];
extern const char *const kvs_recall_result_name[KVS_RECALL_RESULT_MAX];
extern const char *const kvs_stray_name[KVS_STRAY_MAX];
extern const char *const kvs_cause_name[KVS_CAUSE_MAX];
extern const char *const kvs_admit_result_name[KVS_ADMIT_MAX];
extern const char *const kvs_proto_error_name[KVS_PROTO_MAX];
/* The one a decoder's reason names; KVS_PROTO_VALUE for an unknown name. */
enum kvs_proto_error kvs_proto_error_of(const char *reason);

/* One worker. Counters only grow. */
struct kvs_worker_stats {
	uint64_t rooms_done;
	uint64_t failures[KVS_CAUSE_MAX];
	uint64_t admits[KVS_ADMIT_MAX];
	uint64_t protocol_errors[KVS_PROTO_MAX];
	uint64_t acks_impossible[KVS_ACK_IMPOSSIBLE_MAX];
	uint64_t strays[KVS_STRAY_MAX];
	uint64_t retracts[KVS_RETRACT_RESULT_MAX];
	uint64_t offloads[KVS_OFFLOAD_RESULT_MAX];
	uint64_t recalls[KVS_RECALL_RESULT_MAX];
	uint64_t loans_called; /* memory taken from rooms nobody opened */
	uint64_t checksum_skipped; /* rooms' ranks that could not give one */
	uint64_t late_bytes; /* arrived for a room that was over */
	uint64_t chunks_repeated; /* of bytes that had all come before */
	uint64_t received_bytes; /* placed in extents */
	uint64_t rooms_done_bytes; /* of the pool, each room once */
	uint64_t commits; /* copies that ended well, of each engine */
	struct kvs_drain_stats drains;
	struct kvs_hist drain_seconds; /* ns, arm to over */
	struct kvs_hist admit_wait; /* ns, admit to memory */
	struct kvs_hist transfer; /* ns, first OPEN to READY */
	struct kvs_hist claim; /* ns, READY to commit */
	struct kvs_hist commit; /* ns, commit to copies done */
	struct kvs_hist retract; /* ns, memory given to copied out */
	struct kvs_hist resume; /* ns, checked to copied back */
	struct kvs_hist call; /* ns, a chunk's header to its last byte */
	/* what hold.timeout has to cover; see aborts.h */
	struct kvs_hist
		abort_propagation; /* ns, ABORT to an idle rank's answer */
	struct kvs_hist abort_remaining; /* ns, ABORT to a late chunk's end */
};

/* What one worker keeps of finished rooms; counters only grow. */
struct kvs_cache_stats {
	uint64_t asked; /* blocks of rooms that asked */
	uint64_t hits; /* of them, taken from here */
	uint64_t hit_bytes;
	uint64_t donated_bytes;
	uint64_t offloaded_bytes; /* of units that came off a device */
	uint64_t recalled_bytes; /* copied to devices without a room */
	uint64_t duplicates; /* blocks that were there already */
	uint64_t evicted_bytes;
	uint64_t bad; /* blocks that were not what was kept */
	uint64_t bytes; /* now */
	uint64_t pinned_bytes;
	uint64_t blocks;
};

/* What one worker keeps on disk; counters only grow. */
struct kvs_cache_disk_stats {
	bool wanted; /* hicache.dir is set */
	bool on;
	bool degraded; /* on, and not well */
	const char *health; /* kvs_store_health_name, "off", "none" */
	char why[256]; /* it is not "ok" */
	const char *engine; /* NULL: off */
	/* now */
	uint64_t blocks;
	uint64_t bytes; /* of these */
	uint64_t file_bytes;
	uint64_t aside_bytes; /* of files set aside, in file_bytes */
	uint64_t aside_files; /* since start */
	uint64_t queued_bytes; /* on their way there */
	/* counters */
	uint64_t found; /* blocks that were there at start */
	uint64_t written; /* blocks */
	uint64_t written_bytes;
	uint64_t write_failed; /* blocks */
	uint64_t put_refused; /* times, while nothing is written */
	uint64_t recalled; /* blocks */
	uint64_t recalled_bytes;
	uint64_t recall_failed; /* blocks */
	uint64_t evicted_bytes;
	uint64_t reclaimed; /* blocks whose file made room */
	uint64_t damaged; /* blocks that did not match, or were cut off */
	uint64_t write_errors;
	uint64_t read_errors;
	uint64_t scrubbed_bytes;
	uint64_t scrub_rounds;
};

/* What one worker reads of other nodes' directories; counters only grow. */
struct kvs_cache_shared_stats {
	bool wanted; /* hicache.shared_dir is set */
	bool on; /* it was there when it was looked at last */
	bool degraded; /* wanted and not on, or one in it cannot be read */
	const char *health; /* "ok", "empty", "unreadable", "off", "none" */
	char why[256]; /* it is not "ok" */
	const char *engine; /* NULL: off */
	/* now */
	uint64_t nodes; /* directories that are read */
	uint64_t blocks; /* known */
	uint64_t bytes; /* of blocks in these directories */
	/* counters */
	uint64_t looks; /* that were finished */
	uint64_t found; /* blocks */
	uint64_t vanished; /* blocks whose file or directory went */
	uint64_t forgotten; /* blocks, over hicache.shared_blocks */
	uint64_t recalled; /* blocks */
	uint64_t recalled_bytes;
	uint64_t recall_failed; /* blocks */
	uint64_t damaged; /* blocks that did not match, or were cut off */
};

struct kvs_pool_snapshot {
	const char *name;
	int node;
	uint64_t page_size;
	int bound; /* 1: on its node, 0: unbound */
	struct kvs_pool_account account;
};

#define KVS_NODES_MAX 32

struct kvs_worker_snapshot {
	unsigned int index;
	uint32_t rooms_live; /* not in DRAINING, FREE */
	uint32_t rooms_waiting;
	uint64_t reserve_bytes; /* set aside for health checks */
	uint32_t retractions;
	uint64_t retract_reserve_bytes; /* kept for them */
	struct kvs_cache_stats cache;
	struct kvs_cache_disk_stats disk;
	struct kvs_cache_shared_stats shared;
	uint32_t rooms_held;
	uint64_t held_bytes[KVS_CAUSE_MAX];
	uint32_t data_connections;
	uint64_t data_connections_refused;
	unsigned int n_pools;
	struct kvs_pool_snapshot pools[2];
	struct kvs_worker_stats stats;
	struct kvs_verbs_counts verbs;
};

struct kvs_snapshot {
	uint64_t instance;
	uint64_t uptime; /* ns */
	int ready; /* pools whole, listening, not degraded */
	/* more than health.quarantined percent of a pool is quarantined */
	bool degraded;
	int degraded_node;
	uint64_t degraded_bytes; /* quarantined there */
	uint32_t health_quarantined; /* the setting, percent */
	const char *tcp_engine; /* "tcp/uring", "tcp/sock" */
	uint32_t sessions;
	uint32_t engines;
	uint32_t connections;
	uint64_t connections_refused;
	uint64_t protocol_errors[KVS_PROTO_MAX]; /* control and engine side */
	uint64_t admits[KVS_ADMIT_MAX]; /* decided before a worker was asked */
	uint64_t strays[KVS_STRAY_MAX]; /* likewise */
	uint32_t auth_keys; /* accepted; 0: nobody is asked */
	uint64_t auth_failures[KVS_AUTH_FAILURE_MAX];
	uint64_t auth_handshakes[KVS_AUTH_KEYS_MAX]; /* by key */
	char auth_prints[KVS_AUTH_KEYS_MAX][KVS_AUTH_PRINT]; /* of the keys */
	unsigned int n_workers;
	struct kvs_worker_snapshot workers[KVS_NODES_MAX];
};

/* One room, for listings. */
struct kvs_room_info {
	uint64_t room;
	uint64_t generation;
	const char *state;
	unsigned int worker;
	int node;
	uint32_t engine;
	char peer[64];
	uint64_t tokens;
	uint64_t bytes; /* pool bytes it owns */
	uint64_t expected; /* bytes to arrive */
	uint64_t received;
	uint64_t age; /* ns in this state */
	const char *cause; /* of a failed one, else "" */
	uint32_t parties; /* live in its drain */
};

#define KVS_HOLD_RANKS 16 /* named of those awaited; all are counted */

/* One room whose memory is held or quarantined, and what for. */
struct kvs_hold_info {
	uint64_t room;
	uint64_t generation;
	const char *state; /* "draining", "quarantined" */
	const char *cause;
	unsigned int worker;
	int node;
	char peer[64];
	uint32_t engine;
	int64_t engine_pid; /* 0: not known any more */
	bool engine_exited; /* the process, but not all that has its socket */
	uint64_t bytes;
	uint64_t age; /* ns, since the hold began */
	/* parties that have not finished, by kind; sum to those of the drain */
	uint32_t waits[KVS_PARTY_MAX];
	uint32_t ranks[KVS_HOLD_RANKS]; /* rank numbers, the first of them */
	uint32_t n_ranks; /* in ranks[] */
	uint32_t ranks_mute; /* of waits[RANK]: cannot acknowledge any more */
	uint32_t revoking; /* of all: asked to stop, their proof is awaited */
	uint64_t revoke_in; /* ns; KVS_TIME_NEVER: not by time any more */
	uint64_t ask_in; /* ns to the next ABORT; KVS_TIME_NEVER: none */
};

#endif /* KVS_PIPELINE_STATS_H */
