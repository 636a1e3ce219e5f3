/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: worker
 *
 * One NUMA node's rooms, admission queue and drains: a state machine without
 * threads, sockets or a clock of its own. It is driven by calls (an engine
 * admits, a rank opens, a chunk begins and ends, time passes) and answers
 * through struct kvs_worker_out. The daemon runs one per node on a thread
 * (node_thread.h); tests and kvstage-bench drive it directly.
 *
 * After every batch of calls: kvs_worker_turn(), which runs deadlines,
 * serves the admission queue and deletes rooms that are over.
 */
#ifndef KVS_PIPELINE_WORKER_H
#define KVS_PIPELINE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/rng.h"
#include "lib/u64map.h"
#include "pipeline/aborts.h"
#include "pipeline/admission.h"
#include "pipeline/attach_msg.h"
#include "pipeline/cache.h"
#include "pipeline/host.h"
#include "pipeline/retract.h"
#include "pipeline/room.h"
#include "pipeline/settings.h"

/* A chunk being received into an extent. Owned by whoever receives. */
struct kvs_receive {
	struct kvs_party party;
	struct kvs_room *room; /* NULL: being dropped, or idle */
	struct kvs_room_rank *rank;
	struct kvs_list node; /* on room->receives */
	uint64_t len;
	uint64_t generation; /* of the room it names, also when dropped */
	uint32_t sender; /* the rank it names */
	uint64_t begun; /* ns; its header was here */
	const void *addr; /* where it is placed */
	bool read; /* our own one-sided read: set before it begins */
	uint64_t stream_at; /* its place in the rank's digest stream */
	void *conn; /* the owner's */
};

/**
 * struct kvs_worker_out - what a worker asks of its surroundings
 *
 * None may call back into the worker.
 * @to_peer: send a message to the sender rank behind @session
 * @to_engine: queue packet @p (may be NULL) to the engine, then store @word
 *             in its status page at @slot
 * @room_over: the room id may be admitted again; @err: 0, or the positive
 *             errno it failed with, with @text: why
 * @stop_receive: make the transport stop writing for @rx;
 *                kvs_worker_receive_end() follows, maybe before it returns
 *                to its caller's loop, never from inside this call
 * @close_session: a rank broke the protocol: drop all its connections
 * @grant_open: let the session of @k write to all extents of its room, which
 *              are @k->room->ext; kvs_worker_grant_opened() follows, never
 *              from inside. @k->grant_owner is the callee's. 0 or -errno. Only
 *              of workers with opts.one_sided, like the next two
 * @grant_close: kvs_worker_grant_closed() follows, never from inside
 * @tear_down: end all connections of a session, by whatever proves that it
 *             cannot write any more; kvs_worker_session_lost() follows, and
 *             kvs_worker_torn_down() for each of its grants once they ended
 * @engine_over: a lost engine has no room here any more, so that no copy of
 *               it is left; may be NULL
 */
struct kvs_worker_out {
	void (*to_peer)(void *arg, uint64_t session, const struct kvs_msg *m);
	void (*to_engine)(void *arg, uint32_t engine, uint32_t slot,
			  uint64_t word, const struct kvs_packet *p,
			  size_t len);
	void (*room_over)(void *arg, uint64_t room, uint64_t generation,
			  int err, const char *text);
	void (*stop_receive)(void *arg, struct kvs_receive *rx);
	int (*grant_open)(void *arg, struct kvs_room_rank *k);
	void (*grant_close)(void *arg, struct kvs_room_rank *k);
	void (*tear_down)(void *arg, uint64_t session);
	void (*close_session)(void *arg, uint64_t session, int err,
			      const char *why);
	void (*engine_over)(void *arg, uint32_t engine);
};

struct kvs_worker_opts {
	const struct kvs_settings *settings; /* caller's; may change between
					      * turns */
	const struct kvs_clock *clock;
	unsigned int index;
	struct kvs_pool *pool; /* receive pool; caller's */
	uint32_t pool_index; /* as engines know it */
	struct kvs_pool *offload; /* offload pool, or NULL; caller's */
	uint32_t offload_index; /* likewise */
	uint64_t secret; /* for hash tables and canaries */
	bool one_sided; /* sessions that say so write by themselves */
	struct kvs_fs *cache_fs; /* NULL: this machine's; of tests */
	const struct kvs_worker_out *out;
	void *arg;
};

/* An attached engine, as a worker knows it. */
struct kvs_worker_engine {
	struct kvs_list node;
	uint32_t number;
	/* died or detached; its copies may still be parties: freed with its
	 * last room */
	bool gone;
	struct kvs_layout *layout;
	uint32_t extent_tokens; /* rounded for this layout */
	struct kvs_list rooms; /* struct kvs_room_member */
	struct kvs_list retractions;
	struct kvs_cache_engine cache;
};

/* A sender rank's connection, as a worker knows it. */
struct kvs_worker_session {
	uint64_t id;
	char peer[KVS_PEER_NAME];
	uint32_t rank;
	bool acks; /* has the drain_ack capability */
	bool ack_warned; /* that one was ignored; said once a peer */
	bool one_sided; /* writes to granted memory by itself */
	bool torn; /* its connections were torn down: it gets no new ones */
	bool numbered; /* its data connections have numbers (paths) */
	struct kvs_session_paths *paths; /* the node's, freed here; NULL */
	enum kvs_digest_kind digest; /* its LAST carries this one */
	struct kvs_list ranks; /* struct kvs_room_rank bound to it */
	uint64_t acks_not_awaited; /* ABORTs sent without waiting for an
				    * answer; their answers are no stray ones */
};

struct kvs_worker {
	struct kvs_worker_opts o;
	const struct kvs_settings *set;
	const struct kvs_clock *clock;
	struct kvs_pool *pool;
	struct kvs_timerq timers;
	struct kvs_rng rng; /* of canaries */
	struct kvs_u64map rooms; /* by generation */
	struct kvs_u64map sessions; /* by id */
	struct kvs_list engines;
	struct kvs_host_cache hosts; /* layouts of resharded rooms */
	struct kvs_list dead; /* rooms to delete */
	uint32_t live; /* retractions included */
	bool shutting_down;
	bool released; /* memory came back since the last turn */
	struct kvs_admission admission;
	struct kvs_aborts aborts; /* the last rooms that failed */
	struct kvs_retracts retracts;
	struct kvs_cache cache;
	uint32_t flips_left; /* test.inject_flip */
	struct kvs_worker_stats stats;
};

int kvs_worker_create(const struct kvs_worker_opts *o, struct kvs_worker **ret);
/* Asserts that no room is left. NULL ok. */
void kvs_worker_destroy(struct kvs_worker *w);

int kvs_worker_engine_add(struct kvs_worker *w, uint32_t number,
			  const struct kvs_layout *l);
/**
 * kvs_worker_engine_lost() - no more requests come from it
 * @proof: its process is gone (pidfd readable and socket at end of file): its
 *         copies are finished. False: they are still parties.
 */
void kvs_worker_engine_lost(struct kvs_worker *w, uint32_t number, bool proof);
/* One that is not lost; NULL. */
struct kvs_worker_engine *kvs_worker_engine_find(struct kvs_worker *w,
						 uint32_t number);

int kvs_worker_session_add(struct kvs_worker *w, uint64_t id, const char *peer,
			   uint32_t rank, uint64_t caps);
void kvs_worker_session_lost(struct kvs_worker *w, uint64_t id, int err,
			     const char *why);
/**
 * kvs_worker_conn_lost() - a data connection of a session broke
 * @conn: its bit, as kvs_worker_written() has it; KVS_CONN_ALL: it was the last
 *        one, or keys went with it
 *
 * Not closed in order between two frames: bytes that the sender counts as
 * sent may be lost, and nobody here knows of which room. The session's rooms
 * that lack bytes of its rank fail. Of a one-sided rank those do that it has
 * told of writes to over this one: it has others, and where something of
 * another room was under way on this one, that send has failed, which is for
 * the rank to say (R5).
 */
#define KVS_CONN_ALL UINT64_MAX
void kvs_worker_conn_lost(struct kvs_worker *w, uint64_t session, uint64_t conn,
			  int err);

/* Always answers through to_engine(). */
void kvs_worker_admit(struct kvs_worker *w, const struct kvs_room_request *q);
/* Another engine of a room's members admits it, into its own @slot. Always
 * answers through to_engine(). */
void kvs_worker_join(struct kvs_worker *w, uint64_t generation, uint32_t engine,
		     uint32_t slot);
/* Always answers through to_engine(). */
void kvs_worker_lookup(struct kvs_worker *w,
		       const struct kvs_lookup_request *q);
/* OPEN whose room was found: @generation from the directory. Answers with
 * GRANT (now or when there is memory) or REFUSE. */
void kvs_worker_open(struct kvs_worker *w, uint64_t session,
		     uint64_t generation, const struct kvs_msg_open *m);
/* LAST, ABORT, ABORT_ACK, ABORT_NAK, REFUSE of a sender. Negative: protocol
 * violation, the session has been closed through close_session(). */
int kvs_worker_message(struct kvs_worker *w, uint64_t session,
		       const struct kvs_msg *m);
/* COMMIT, COMMITTED, ABORT, COPY_OVER, RETRACTED of an engine. */
void kvs_worker_packet(struct kvs_worker *w, uint32_t engine,
		       enum kvs_packet_type type,
		       const struct kvs_packet_room *p);
/* End a live room by hand or by the service; 0, -ENOENT. */
int kvs_worker_abort(struct kvs_worker *w, uint64_t generation,
		     enum kvs_room_cause cause, int err, const char *why);

/**
 * kvs_worker_receive_begin() - a chunk's header arrived
 * @rx: owner's, idle
 * @ret_addr: where the payload goes; NULL: nowhere, read and drop it (the
 *            room is over; counted as late bytes)
 * @ret_reason: what was violated
 * Return: 0; -EPROTO close the connection (the session is closed too).
 */
int kvs_worker_receive_begin(struct kvs_worker *w, uint64_t session,
			     const struct kvs_msg_chunk *m,
			     struct kvs_receive *rx, void **ret_addr,
			     enum kvs_proto_error *ret_reason);
/* The transport writes no more for @rx. @status 0: all bytes placed. */
void kvs_worker_receive_end(struct kvs_worker *w, struct kvs_receive *rx,
			    int status, uint64_t got);

/**
 * kvs_worker_written() - a one-sided rank says that it wrote a range
 * @conn: a bit for each data connection of the session that is alive; the one
 *        that this came over
 * @ret_reason: what was violated
 *
 * Counted as its word only: see R9.
 * Return: 0; -EPROTO, the session has been closed.
 */
int kvs_worker_written(struct kvs_worker *w, uint64_t session, uint64_t conn,
		       const struct kvs_msg_chunk *m,
		       enum kvs_proto_error *ret_reason);
/* What was granted: as in struct kvs_msg_grant. */
struct kvs_granted {
	const struct kvs_grant_key *keys;
	uint32_t n_keys;
	const uint16_t *paths;
	uint32_t n_paths;
};

/* Answer to grant_open(): 0 and @what, copied; or -errno. */
void kvs_worker_grant_opened(struct kvs_worker *w, struct kvs_room_rank *k,
			     int status, const struct kvs_granted *what);
/* Answer to grant_close(): 0 it is proven that nobody writes through it any
 * more, @torn_down as its connections are no more; or -errno. */
void kvs_worker_grant_closed(struct kvs_worker *w, struct kvs_room_rank *k,
			     int status, bool torn_down);
/* After tear_down(): no connection of the rank is left; what is not closed is
 * closed now. */
void kvs_worker_torn_down(struct kvs_worker *w, struct kvs_room_rank *k);
/* They have not ended hold.timeout after tear_down(). They may yet. */
void kvs_worker_tear_overdue(struct kvs_worker *w, struct kvs_room_rank *k);

/* Deadlines, queue, deletions. */
void kvs_worker_turn(struct kvs_worker *w);
/* ns of the next deadline, KVS_TIME_NEVER. */
uint64_t kvs_worker_next(const struct kvs_worker *w);
/* Refuse new rooms; abort those before READY. */
void kvs_worker_shutdown(struct kvs_worker *w);

/**
 * kvs_worker_abandon() - end every room, whatever still touches it
 *
 * For a daemon that is going away: its extents are never handed out again,
 * and an engine's mapping keeps the bytes that its copies still read. What has
 * no proof by now is told as that, and counts as no drain that ended.
 */
void kvs_worker_abandon(struct kvs_worker *w);

void kvs_worker_snapshot(const struct kvs_worker *w,
			 struct kvs_worker_snapshot *ret);
/* Fill up to @max; returns how many rooms there are. */
size_t kvs_worker_rooms(const struct kvs_worker *w, struct kvs_room_info *v,
			size_t max);
/* Likewise those whose memory is held or quarantined; engine_pid is 0. */
size_t kvs_worker_holds(const struct kvs_worker *w, struct kvs_hold_info *v,
			size_t max);

#endif /* KVS_PIPELINE_WORKER_H */
