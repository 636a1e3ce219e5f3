/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: coverage
 *
 * What the schedules of a batch went through: each event of a room with the
 * state it met it in, and each kind of fault. Plain counters, so that those of
 * several processes can be added.
 */
#ifndef KVS_TOOLS_SIM_COVER_H
#define KVS_TOOLS_SIM_COVER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gpu/soft.h"
#include "pipeline/retract.h"
#include "pipeline/room.h"
#include "rdma/loop.h"

/* The room is gone, or never was: the column after its states. */
#define SIM_STATE_GONE KVS_ROOM_STATE_MAX
#define SIM_STATES (KVS_ROOM_STATE_MAX + 1)

/* X(NAME, text): what may happen to a room */
#define SIM_EVENTS(X)                                         \
	X(MEMORY, "memory is taken")                          \
	X(NO_MEMORY, "no memory now")                         \
	X(LOAN, "its memory is taken back")                   \
	X(OPEN, "OPEN of a rank")                             \
	X(CHUNK, "a chunk begins")                            \
	X(CHUNK_END, "a chunk ends")                          \
	X(CHUNK_BROKEN, "a chunk breaks off")                 \
	X(WRITTEN, "CHUNK_DONE of a rank")                    \
	X(GRANT_OPEN, "a grant is open")                      \
	X(GRANT_NONE, "a grant cannot be had")                \
	X(GRANT_CLOSED, "a grant is closed")                  \
	X(GRANT_TORN, "a grant is gone with its connections") \
	X(GRANT_DOUBT, "a grant cannot be closed")            \
	X(LAST, "LAST of a rank")                             \
	X(SENDER_ABORT, "ABORT of a rank")                    \
	X(ACK, "ABORT_ACK")                                   \
	X(NAK, "ABORT_NAK")                                   \
	X(REFUSE, "REFUSE of a rank")                         \
	X(SESSION_LOST, "a sender is lost")                   \
	X(CONN_LOST, "a data connection breaks")              \
	X(COMMIT, "COMMIT")                                   \
	X(COMMITTED, "COMMITTED")                             \
	X(COPY_FAILED, "COMMITTED with an error")             \
	X(COPY_OVER, "COPY_OVER")                             \
	X(ENGINE_ABORT, "ABORT of the engine")                \
	X(PREFIX_ABORT, "the same, of one with a prefix")     \
	X(ENGINE_LOST, "the engine is at end of file")        \
	X(ENGINE_EXIT, "and its process has exited")          \
	X(DEADLINE, "the room's deadline")                    \
	X(HOLD, "hold.timeout")                               \
	X(SHUTDOWN, "the daemon goes down")                   \
	X(END, "the daemon ends")

#define KVS_ENUM_(n, s) SIM_EV_##n,
enum sim_event { SIM_EVENTS(KVS_ENUM_) SIM_EV_MAX };
#undef KVS_ENUM_

/* The retraction is gone, or is only asked for. */
#define SIM_AWAY_GONE KVS_RETRACT_STATE_MAX
#define SIM_AWAY_STATES (KVS_RETRACT_STATE_MAX + 1)

/* X(NAME, text): what may happen to a request that leaves the device */
#define SIM_AWAY_EVENTS(X)                             \
	X(MEMORY, "RETRACT, and memory is taken")      \
	X(NO_MEMORY, "RETRACT, and there is none")     \
	X(OUT, "RETRACTED")                            \
	X(OUT_FAILED, "RETRACTED with an error")       \
	X(COMMIT, "COMMIT")                            \
	X(COMMITTED, "COMMITTED")                      \
	X(COPY_FAILED, "COMMITTED with an error")      \
	X(COPY_OVER, "COPY_OVER")                      \
	X(ABORT, "ABORT of the engine")                \
	X(ENGINE_LOST, "the engine is at end of file") \
	X(ENGINE_EXIT, "and its process has exited")   \
	X(HOLD, "hold.timeout")                        \
	X(SHUTDOWN, "the daemon goes down")            \
	X(END, "the daemon ends")

#define KVS_ENUM_(n, s) SIM_AWAY_EV_##n,
enum sim_away_event { SIM_AWAY_EVENTS(KVS_ENUM_) SIM_AWAY_EV_MAX };
#undef KVS_ENUM_

/* X(NAME, text): what may happen to memory that rooms leave behind */
#define SIM_KEPT(X)                                                       \
	X(DONATED, "an extent of a room is kept")                         \
	X(DUPLICATE, "blocks are there already")                          \
	X(PREFIX, "a room begins with blocks that are kept")              \
	X(PIECES, "in several pieces")                                    \
	X(READY, "it is READY")                                           \
	X(EVICTED, "an extent goes, as its memory is wanted")             \
	X(UNSUMMED, "one goes that is not summed up yet")                 \
	X(LAST_READER, "one that is forgotten goes with its last reader") \
	X(FOUND, "an engine is told of blocks")                           \
	X(FORGOTTEN, "an engine has blocks forgotten")                    \
	X(FLUSHED, "the operator lets all go")                            \
	X(OUT, "a request has left the device")                           \
	X(BACK, "and is back, the same bytes")                            \
	X(WHOLE, "one could not leave, and is whole on it")               \
	X(DROPPED, "one ends while it is out")

#define KVS_ENUM_(n, s) SIM_KEPT_##n,
enum sim_kept { SIM_KEPT(KVS_ENUM_) SIM_KEPT_MAX };
#undef KVS_ENUM_

/* X(NAME, text): faults that are not the fabric's */
#define SIM_FAULTS(X)                                                 \
	X(SENDER_CRASH, "a sender's process is killed")               \
	X(SENDER_BACK, "and comes back as a new instance")            \
	X(ENGINE_CRASH, "an engine's process is killed")              \
	X(ENGINE_FORKED, "a child of it keeps its socket open")       \
	X(ENGINE_LATE_EXIT, "its exit is seen after its end of file") \
	X(ENGINE_DETACH, "an engine leaves with rooms")               \
	X(DAEMON_DRAIN, "the daemon goes down")                       \
	X(SOCKET_FULL, "an engine's socket is full")                  \
	X(PAUSE, "a thread does not run")                             \
	X(ROOM_REUSED, "a room id is used again")                     \
	X(SHORT, "a rank sends too little")                           \
	X(TOKENS, "a rank has another number of tokens")              \
	X(AUX, "a rank has another aux block")                        \
	X(NO_OPEN, "a rank never opens")                              \
	X(NO_FINISH, "a rank never finishes")                         \
	X(GIVE_UP, "a rank gives up")                                 \
	X(CLOSE, "a rank closes its handle early")                    \
	X(NO_COMMIT, "an engine forgets a room")                      \
	X(NO_WRITE, "pages that are to leave are never computed")     \
	X(PULLED, "a chunk is read by the receiver")

#define KVS_ENUM_(n, s) SIM_FAULT_##n,
enum sim_fault { SIM_FAULTS(KVS_ENUM_) SIM_FAULT_MAX };
#undef KVS_ENUM_

extern const char *const sim_event_name[SIM_EV_MAX];
extern const char *const sim_fault_name[SIM_FAULT_MAX];
extern const char *const sim_away_event_name[SIM_AWAY_EV_MAX];
extern const char *const sim_kept_name[SIM_KEPT_MAX];

struct sim_cover {
	uint64_t pair[SIM_STATES][SIM_EV_MAX];
	uint64_t away[SIM_AWAY_STATES][SIM_AWAY_EV_MAX];
	uint64_t kept[SIM_KEPT_MAX];
	uint64_t fault[SIM_FAULT_MAX];
	uint64_t net[KVS_LOOP_FAULT_MAX];
	uint64_t gpu[KVS_SOFT_FAULT_MAX];
	uint64_t refused; /* one-sided writes without an open key */
	uint64_t refused_late; /* whose key was open when they began */
	uint64_t rooms_done;
	uint64_t rooms_failed;
	uint64_t quarantined;
	uint64_t steps;
};

const char *sim_state_name(unsigned int state);
const char *sim_away_state_name(unsigned int state);
void sim_cover_add(struct sim_cover *to, const struct sim_cover *from);
/* Both tables. Return: how many that can happen in so many schedules never
 * did. */
unsigned int sim_cover_print(const struct sim_cover *c, uint64_t schedules,
			     bool json, FILE *out);

#endif /* KVS_TOOLS_SIM_COVER_H */
