/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: loop
 *
 * In-process transport: any number of endpoints on one fabric, all on one
 * thread, deterministic under a seed and a virtual clock. Every frame and
 * payload is an event with a due time; events of one connection keep their
 * order, events of different connections are interleaved by the seed.
 * kvs_transport_poll() on any endpoint handles the events due now that are
 * addressed to it; it never sleeps on a virtual clock.
 *
 * A one-sided fabric has grants (rdma/grant.h), one-sided writes and reads.
 * They are the fabric's own business, as they are a network card's: the poll
 * of any endpoint moves all that are due, and a launched write lands whether
 * its sender lives or not.
 *
 * What may go wrong is a fault plan: chances, drawn by the seed, or a hook
 * that is asked about each event as it is launched. At most one fault strikes
 * an event. Each kind is counted when it took effect.
 */
#ifndef KVS_RDMA_LOOP_H
#define KVS_RDMA_LOOP_H

#include "rdma/transport.h"

struct kvs_fabric;

/*
 * The kinds of fault: X(NAME, text).
 *
 * F: strikes frames. P: payloads that the receiver takes. W: one-sided writes,
 * their frame included. R: reads. O, C: the opening and closing of grants.
 */
#define KVS_LOOP_FAULTS(X)                                                     \
	/* FPWROC: comes @delay_max later at most, and what follows it */      \
	X(DELAY, "delay")                                                      \
	/* PWR: stops part way, until kvs_fabric_release() */                  \
	X(STALL, "stall")                                                      \
	/* W: overtakes the write before it, if that has not begun */          \
	X(REORDER, "reorder")                                                  \
	/* F: is delivered twice. W: lands a second time, later */             \
	X(DUPLICATE, "duplicate")                                              \
	/* W: its frame is delivered twice */                                  \
	X(REPEAT, "repeat")                                                    \
	/* F: is lost. WR: reports success, nothing lands */                   \
	X(DROP, "drop")                                                        \
	/* WR: reports success, only a first part lands */                     \
	X(SHORT, "short")                                                      \
	/* W: reports success, lands later */                                  \
	X(OVERTAKE, "overtake")                                                \
	/* W: is held until its grant was closed, then tries */                \
	X(LATE, "late")                                                        \
	/* FPWR: kills an endpoint of the connection */                        \
	X(CRASH, "crash")                                                      \
	/* FPW: the header's length or payload length is another; the stream \
	 * is out of step then, so the connection ends soon */ \
	X(LIE, "lie")                                                          \
	/* FPWR: the connection is reset */                                    \
	X(RESET, "reset")                                                      \
	/* O: there will be no grant */                                        \
	X(OPEN_FAILS, "open fails")                                            \
	/* C: the attempt fails, the grant stays open */                       \
	X(CLOSE_FAILS, "close fails")

enum kvs_loop_fault {
	KVS_LOOP_NO_FAULT,
#define X(name, text) KVS_LOOP_##name,
	KVS_LOOP_FAULTS(X)
#undef X
		KVS_LOOP_FAULT_MAX,
};

/* What may go wrong, and how often. All zero: a perfect, instant network. */
struct kvs_loop_plan {
	uint64_t latency_min; /* ns, per event; grants too */
	uint64_t latency_max;
	uint64_t bytes_per_sec; /* of each data connection; 0: unlimited */
	uint32_t split_max; /* payload arrives in pieces of at most this many
			     * bytes; 0: whole */
	double reset; /* chance that a connection dies at an event */
	double stall; /* chance that a payload stops part way */
	/* chances of the other kinds, per event that they can strike */
	double delay;
	double reorder;
	double duplicate; /* of writes: half are REPEAT */
	double drop;
	double short_end;
	double overtake;
	double late;
	double crash;
	double lie;
	double open_fails;
	double close_fails;
	uint64_t delay_max; /* ns; 0: 1 ms */
	unsigned int close_fails_n; /* attempts of one grant; 0: 1 */
};

enum kvs_loop_event_kind {
	KVS_LOOP_FRAME,
	KVS_LOOP_PAYLOAD,
	KVS_LOOP_WRITE,
	KVS_LOOP_READ,
	KVS_LOOP_OPEN,
	KVS_LOOP_CLOSE,
};

/**
 * struct kvs_loop_event_info - an event as it is launched
 * @kind: what
 * @nr: launched on this fabric so far, this one included
 * @conn: number of the connection, of the end that launched it; 0: a grant
 * @from: endpoint that launched it (of a grant: its own)
 * @to: endpoint it goes to; "" when it is between two
 * @frame: frame of @frame_len bytes, to be changed at will but for len and
 *         payload; NULL: none (PAYLOAD: the sender's own memory)
 * @len: payload bytes
 * @owner: of the grant
 * @remote: where to or from: WRITE, READ; of a grant, its first key
 * @at: where the fault strikes; what stands there means that the plan is to
 *      draw it. DELAY: ns. STALL, SHORT: payload bytes before it.
 *      CLOSE_FAILS: attempts. CRASH: 0 the launching side, 1 the other.
 *      LIE: even the length, odd the payload length
 */
struct kvs_loop_event_info {
	enum kvs_loop_event_kind kind;
	uint64_t nr;
	uint64_t conn;
	const char *from;
	const char *to;
	struct kvs_frame *frame;
	size_t frame_len;
	uint64_t len;
	uint64_t owner;
	struct kvs_grant_key remote;
	uint64_t *at;
};

/**
 * struct kvs_loop_placed - bytes that are about to be written to memory
 * @frame: in front of the payload; NULL for a one-sided write and for a read
 * @remote: of a one-sided write or a read; NULL for a payload
 * @read: the far side's bytes come to whoever asked for them
 * @addr: where to; NULL: phantom memory
 * @len: bytes
 */
struct kvs_loop_placed {
	const struct kvs_frame *frame;
	const struct kvs_grant_key *remote;
	bool read;
	void *addr;
	uint64_t len;
};

/* Counters of a fabric. */
struct kvs_loop_faults {
	uint64_t n[KVS_LOOP_FAULT_MAX]; /* took effect, by kind */
	uint64_t refused; /* writes and reads that no open key let through */
	uint64_t refused_late; /* those whose key was good at the launch */
	uint64_t landed; /* bytes of one-sided writes */
	uint64_t orphaned; /* those of senders that were gone already */
};

/**
 * struct kvs_fabric_opts - a fabric
 * @seed: of all that is drawn
 * @clock: NULL: real
 * @one_sided: grants, one-sided writes and reads
 * @plan: faults by chance
 * @fault: asked once about every event, before the plan is. May be NULL.
 *         Return: an enum kvs_loop_fault (one that cannot strike this kind of
 *         event does nothing), or negative: as the plan draws
 * @crashed: an endpoint was killed by CRASH. May be NULL. It may kill others
 *           (kvs_fabric_kill()), and do nothing else to the fabric
 * @placed: told of every piece just before it is written. May be NULL. It does
 *          nothing to the fabric
 * @arg: for all three
 */
struct kvs_fabric_opts {
	uint64_t seed;
	const struct kvs_clock *clock;
	bool one_sided;
	struct kvs_loop_plan plan;
	int (*fault)(void *arg, const struct kvs_loop_event_info *e);
	void (*crashed)(void *arg, struct kvs_transport *t);
	void (*placed)(void *arg, const struct kvs_loop_placed *p);
	void *arg;
};

/* Return: 0; -EINVAL latencies; -ENOMEM. */
int kvs_fabric_create(const struct kvs_fabric_opts *o, struct kvs_fabric **ret);
/* All endpoints must be destroyed. */
void kvs_fabric_destroy(struct kvs_fabric *f);
/* For events from now on. Return: 0; -EINVAL latencies. */
int kvs_fabric_set_plan(struct kvs_fabric *f, const struct kvs_loop_plan *p);
void kvs_fabric_faults(const struct kvs_fabric *f, struct kvs_loop_faults *ret);
const char *kvs_loop_fault_name(enum kvs_loop_fault k);
/* An endpoint; @name is what others connect to (see kvs_loop_connect()). */
int kvs_loop_create(struct kvs_fabric *f, const char *name,
		    struct kvs_transport **ret);
/* Listen and connect by endpoint name instead of by address. */
int kvs_loop_listen(struct kvs_transport *t,
		    int (*accepted)(struct kvs_conn *c, void *arg), void *arg,
		    struct kvs_listener **ret);
int kvs_loop_connect(struct kvs_transport *t, const char *name,
		     enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		     void *user, struct kvs_conn **ret);
/**
 * kvs_loop_addr() - address of an endpoint, for kvs_transport_listen() (of the
 * endpoint itself: it has no other) and kvs_transport_connect()
 * @endpoint: its name; it need not exist yet
 * @ret: result, one AF_UNIX address that holds the name
 *
 * Return: 0; -EINVAL the name is empty or too long.
 */
int kvs_loop_addr(const char *endpoint, struct kvs_addr *ret);
/* Earliest due event, ns, KVS_TIME_NEVER if none: advance the clock to it. */
uint64_t kvs_fabric_next(const struct kvs_fabric *f);
/* The same, of one endpoint: when its poll has something to handle. And of the
 * one-sided writes and reads: when kvs_fabric_run() has. */
uint64_t kvs_loop_next(const struct kvs_transport *t);
uint64_t kvs_fabric_next_wire(const struct kvs_fabric *f);
/*
 * Move the one-sided writes and reads that are due, as any poll does, without
 * a callback. Return: how many pieces.
 */
unsigned int kvs_fabric_run(struct kvs_fabric *f);
/* Let what is stalled go on. Return: how many. */
unsigned int kvs_fabric_release(struct kvs_fabric *f);
/*
 * Kill an endpoint as SIGKILL of its process would: the other sides see a
 * reset, what it launched lands, nothing lands in it. Destroy it later.
 */
void kvs_fabric_kill(struct kvs_transport *t);
bool kvs_fabric_killed(const struct kvs_transport *t);

#endif /* KVS_RDMA_LOOP_H */
