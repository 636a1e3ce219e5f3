/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: bench abort
 *
 * Every party is a process of its own. The *daemon* is the core of kvstaged
 * (pools, node and front threads, real sockets) and answers questions about
 * itself over a socketpair. A *writer* is one prefill rank on libkvstage; it
 * is told which rooms to send. The *conductor* is the process that was
 * started: the decode engine, on libkvstage as well; it has no threads, so it
 * may fork writers at any time.
 *
 * The pool holds exactly one room, and the next one waits in the admission
 * queue before the room in it is ended: that it is ADMITTED is the engine's
 * own sight of memory that came back.
 */
#ifndef KVS_TOOLS_BENCH_ABORT_H
#define KVS_TOOLS_BENCH_ABORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvstage/engine.h"
#include "kvstage/layout.h"
#include "pinned/drain.h"

#define KVS_ABORT_WHY_MAX 512
#define KVS_ABORT_BUFFERS 4u /* of the layout, one a layer */
#define KVS_ABORT_ITEM 32768u /* bytes of a page in each */
#define KVS_ABORT_PAGE_TOKENS 16u
#define KVS_ABORT_PAGE_BYTES (KVS_ABORT_BUFFERS * KVS_ABORT_ITEM)
#define KVS_ABORT_SOURCE_PAGES 16u /* page p is sent from p modulo this */
#define KVS_ABORT_CONNECTIONS 2u /* data connections of a writer */

/* What all three take the same: one paged buffer a layer. */
struct kvs_abort_layout {
	struct kvs_layer_buffer buffers[KVS_ABORT_BUFFERS];
	struct kvs_layout l;
};
void kvs_abort_layout_init(struct kvs_abort_layout *ret);
/* Of each extent: so few that a room of 16 pages has several chunks a buffer,
 * and never more than the writer sends as one. */
static inline uint64_t kvs_abort_extent_tokens(uint64_t tokens)
{
	uint64_t n = tokens / 4;

	if (n > 128 * KVS_ABORT_PAGE_TOKENS)
		return 128 * KVS_ABORT_PAGE_TOKENS;
	return n - n % KVS_ABORT_PAGE_TOKENS;
}
/* Of a writer's buffer @b; what kvs_pattern_fill() takes. */
uint64_t kvs_abort_seed(unsigned int writer, unsigned int b);

/* ---- the daemon ---- */

struct kvs_abort_daemon_opts {
	char dir[64]; /* for its socket, "engine.sock" in it */
	uint64_t pool; /* bytes, of one room */
	uint64_t extent_tokens;
	uint64_t hold_timeout; /* ns */
	const char *engine; /* of TCP: "auto", "uring", "sock" */
};

/* One packet: about which room; 0: none. */
struct kvs_abort_question {
	uint64_t room;
};

/* The answer; also said once, unasked, when the daemon is up or is not. */
struct kvs_abort_answer {
	int err; /* it is not up: negative errno */
	char why[KVS_ABORT_WHY_MAX];
	unsigned int port;
	char engine[32]; /* what "auto" chose */

	uint64_t drains[KVS_DRAIN_OUTCOME_MAX][KVS_PROOF_MAX];
	uint64_t drain_n; /* drains over */
	uint64_t drain_ns; /* their times from arming, together */
	uint64_t late_bytes;
	uint64_t held; /* bytes held or quarantined */
	uint64_t used; /* bytes not free */
	uint64_t acks_ignored;
	uint32_t data_connections;

	/* the room asked about */
	bool found;
	uint64_t expected; /* bytes */
	uint64_t received;
	uint32_t parties; /* in its drain */
};

/* The daemon's process, until @fd is closed; its exit status. */
int kvs_abort_daemon(int fd, const struct kvs_abort_daemon_opts *o);

/* ---- a writer ---- */

enum kvs_abort_op {
	/* to the writer */
	KVS_ABORT_SEND, /* open a room and send its pages */
	KVS_ABORT_QUIT,
	/* from it */
	KVS_ABORT_UP, /* connected */
	KVS_ABORT_DONE, /* a room is over for it, and nothing of it is queued */
	KVS_ABORT_BROKEN, /* why says what */
};

struct kvs_abort_order {
	enum kvs_abort_op op;
	uint64_t room;
	uint64_t tokens; /* SEND */
	bool complete; /* SEND: also the last page; else it is never whole */
	int status; /* DONE, BROKEN: 0 or negative errno */
	char why[KVS_ABORT_WHY_MAX];
};

/* Name of writer @number, as the engine names it at admit. */
#define KVS_ABORT_PEER_MAX 32
void kvs_abort_peer(unsigned int number, char buf[KVS_ABORT_PEER_MAX]);

/* A writer's process, until QUIT or @fd is closed; its exit status. */
int kvs_abort_writer(int fd, unsigned int port, unsigned int number,
		     const char *engine, bool stalls);

/* ---- the conductor ---- */

enum kvs_abort_writer_kind {
	KVS_ABORT_ACKS,
	KVS_ABORT_KILLED,
	KVS_ABORT_STALLED,
	KVS_ABORT_KINDS
};

/* What each must come to, and the figure it is compared with. */
struct kvs_abort_kind {
	const char *name;
	enum kvs_drain_outcome outcome;
	int err; /* that the engine sees */
	uint64_t hold_timeout; /* ns, by default */
	uint64_t target; /* ns; 0: the hold timeout */
};
extern const struct kvs_abort_kind kvs_abort_kinds[KVS_ABORT_KINDS];

struct kvs_abort_args {
	uint64_t count;
	enum kvs_abort_writer_kind writer;
	uint64_t room; /* bytes */
	uint64_t hold_timeout; /* ns; 0: the kind's */
	const char *engine;
	bool json;
};

struct kvs_abort_child {
	unsigned int number; /* from 1; 0: none */
	pid_t pid;
	int fd;
};

struct kvs_abort_bench {
	struct kvs_abort_args args;
	uint64_t hold_timeout;
	uint64_t tokens; /* of a room */
	uint64_t chunk; /* bytes: a buffer's run in an extent */
	char dir[64];
	pid_t daemon;
	int ask; /* its socketpair */
	unsigned int port;
	char engine[32];
	struct kvs_abort_layout layout;
	struct kvs_engine *e;
	struct kvs_abort_child writers[2]; /* of the room, of the next one */
	unsigned int n_writers; /* ever started */
	uint64_t n_rooms;

	/* results */
	uint64_t done;
	uint64_t misses;
	double *ms; /* as the engine sees it */
	double *loss_ms; /* killed: the same, since the connections closed */
	double *drain_ms; /* as the daemon counts it */
	uint64_t outcomes[KVS_DRAIN_OUTCOME_MAX][KVS_PROOF_MAX];
	uint64_t unexpected;
	uint64_t over_target;
	uint64_t late; /* bytes, counted when the memory came back */
	uint64_t late_after; /* stalled: counted after that */
	uint64_t compared; /* stalled: bytes of the next rooms */
	uint64_t wrong; /* of those */
	struct kvs_abort_answer end;
};

/* Run it all: 0; -EOPNOTSUPP no memory to be had for a pool; -errno; what
 * failed has been said. */
int kvs_abort_run(struct kvs_abort_bench *b);
/* End what still runs, and free; @clean: it all went well. */
void kvs_abort_down(struct kvs_abort_bench *b, bool clean);

/* ---- packets between them ---- */

/* 0 or -errno. */
int kvs_abort_say(int fd, const void *p, size_t len);
/* A packet of exactly @len bytes within @timeout_ms (negative: for ever): 0;
 * -ETIMEDOUT; -EPIPE the other side is gone. */
int kvs_abort_hear(int fd, int timeout_ms, void *p, size_t len);

#endif /* KVS_TOOLS_BENCH_ABORT_H */
