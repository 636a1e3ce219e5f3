/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: loop_internal
 *
 * A connection is two struct loop_conn that point at each other. Each has an
 * incoming queue of events, handled in order; its head has a due time, and the
 * endpoint keeps its connections in a heap by that. What a connection must do
 * without an event (report a finished write, die) is on the endpoint's list
 * "self", run first by poll. All randomness comes from one generator, drawn in
 * the order of events: hence the determinism.
 *
 * A payload is one event, delivered in pieces straight from the sender's iovec
 * into the receiver's place; when either end dies the event is taken out, so
 * neither memory is touched after it was given back.
 *
 * In front of that queue lies a second, the *wire* (loop_wire.c), used from the
 * moment a one-sided write or read is launched until it is empty again: the
 * fabric moves it, whoever polls. A write's last piece turns its event into
 * the frame behind it, which goes over to the queue above; so do frames and
 * payloads that were sent meanwhile. When the sender goes, what its launched
 * writes still owe is copied first, for they will land. A *ghost* is a write
 * that reported already: it is on no wire and lands when it is due.
 */
#ifndef KVS_RDMA_LOOP_INTERNAL_H
#define KVS_RDMA_LOOP_INTERNAL_H

#include "lib/rng.h"
#include "lib/u64map.h"
#include "rdma/loop.h"
#include "rdma/loop_heap.h"
#include "rdma/transport_internal.h"

#define KVS_LOOP_NAME 64 /* bytes, with the NUL */
#define KVS_LOOP_FLUSH_NS KVS_NSEC_PER_SEC

struct loop_conn;

enum loop_event_type {
	LOOP_ACCEPT, /* to the listening side */
	LOOP_OPENED, /* to the connecting side */
	LOOP_REFUSED,
	LOOP_FRAME,
	LOOP_DATA, /* a struct kvs_tx, piece by piece */
	LOOP_WRITE, /* one-sided; on a wire only, or a ghost */
	LOOP_READ, /* on a wire only */
	LOOP_FIN,
	LOOP_RST,
};

struct loop_event {
	struct kvs_list node;
	enum loop_event_type type;
	uint64_t ready; /* ns; sent + latency */
	enum kvs_loop_fault fault;
	uint64_t at; /* of the fault */
	/* LOOP_DATA, LOOP_WRITE, LOOP_READ */
	struct kvs_tx *tx; /* NULL: its sender is gone, or a ghost */
	uint64_t pos; /* payload bytes delivered */
	uint64_t len; /* payload bytes in all */
	uint64_t stop_at; /* stall here; len: never */
	bool begun; /* DATA: the receiver was asked for a place */
	/* LOOP_WRITE, LOOP_READ */
	struct loop_conn *to;
	struct loop_slot slot; /* in f->wire: first of its wire, or a ghost */
	struct kvs_list held; /* f->held, or f->late */
	struct kvs_grant_key remote;
	struct kvs_read *rd;
	unsigned char *data; /* bytes from data_at on; NULL: see tx, or none */
	uint64_t data_at;
	uint64_t land; /* bytes that land; the rest only seems to */
	bool ghost;
	bool was_good; /* the key, at the launch */
	/* LOOP_FRAME, LOOP_WRITE */
	size_t size;
	size_t charge; /* of the sender's out_bytes */
	_Alignas(8) unsigned char frame[];
};

struct loop_conn {
	struct kvs_conn c; /* first; magic 0 while detached */
	struct loop_conn *peer; /* NULL: gone */
	struct kvs_fabric *f;
	struct loop_ep *ep; /* NULL: detached */
	struct kvs_list node; /* ep->conns */
	struct kvs_list self; /* ep->self */
	struct kvs_list flush; /* ep->flush, in order of deadline */
	unsigned int gen; /* raised by detach */
	bool in_frame;
	bool flushing; /* close when txq is empty */
	bool dying; /* closed() is due */
	int err;
	uint64_t deadline; /* ns; while flushing */

	/* incoming */
	struct kvs_list events;
	struct loop_slot slot; /* in ep->heap, for the first event */
	uint64_t free_at; /* the line carried the last byte, ns */
	bool stalled;
	struct kvs_rx rx;
	bool rx_live; /* payload_done() is owed */
	bool rx_drop; /* the rest is dropped */
	bool rx_active; /* between the first and the last piece */
	struct kvs_list wire;
	struct kvs_list ghosts;
	uint64_t wire_free_at;

	/* outgoing */
	struct kvs_list txq; /* struct kvs_tx on the way */
	struct kvs_list txdone; /* delivered, done() due */
	struct kvs_list rdq; /* the same for struct kvs_read */
	struct kvs_list rddone;
	size_t out_bytes; /* of frames on the way */
};

struct loop_key {
	struct loop_grant *lg;
	size_t i;
};

struct loop_grant {
	struct kvs_grant g; /* first */
	struct kvs_list node; /* ep->grants */
	struct kvs_list due_node; /* ep->granting, in order of due */
	uint64_t due; /* ns */
	struct loop_key *keys; /* in f->keys while they work */
	bool open_fails;
	bool asked; /* the plan was, about closing */
	unsigned int close_fails; /* attempts that will fail */
};

struct loop_listener {
	struct kvs_listener l; /* first */
};

struct loop_ep {
	struct kvs_transport t; /* first */
	struct kvs_fabric *f;
	struct kvs_list node;
	char name[KVS_LOOP_NAME];
	struct loop_listener *listener;
	struct kvs_list conns;
	struct kvs_list self;
	struct kvs_list flush;
	struct kvs_list grants;
	struct kvs_list granting;
	struct loop_heap heap; /* conns with an event, room for every one */
	size_t n_conns;
	unsigned int handled;
	int wake_fd; /* -1 on a virtual clock */
	bool dead; /* killed */
	bool closing;
};

struct kvs_fabric {
	unsigned int magic;
	const struct kvs_clock *clock;
	bool one_sided;
	struct kvs_loop_plan plan;
	struct kvs_loop_faults faults;
	int (*fault)(void *arg, const struct kvs_loop_event_info *e);
	void (*crashed)(void *arg, struct kvs_transport *t);
	void (*placed)(void *arg, const struct kvs_loop_placed *p);
	void *arg;
	uint64_t nr; /* events launched */
	struct kvs_rng rng;
	struct kvs_list eps;
	struct loop_heap wire; /* events of wires, and ghosts */
	size_t n_wire; /* events that may need a place there */
	struct kvs_list held; /* stalled on a wire */
	struct kvs_list late; /* wait for their grant to be closed */
	struct kvs_u64map keys; /* rkey to struct loop_key */
	struct loop_conn **handles; /* detached conns; index = handle */
	size_t n_handles;
	uint64_t next_id;
};

static inline struct loop_conn *kvs_loop_conn_of(struct kvs_conn *c)
{
	return kvs_container_of(c, struct loop_conn, c);
}

static inline uint64_t kvs_loop_now(const struct kvs_fabric *f)
{
	return kvs_clock_now(f->clock);
}

static inline void kvs_loop_placing(const struct kvs_fabric *f,
				    const struct kvs_frame *frame,
				    const struct kvs_grant_key *remote,
				    bool read, void *addr, uint64_t len)
{
	const struct kvs_loop_placed p = { frame, remote, read, addr, len };

	if (f->placed)
		f->placed(f->arg, &p);
}

static inline struct loop_ep *kvs_loop_ep_of(const struct kvs_transport *t)
{
	return kvs_container_of(t, struct loop_ep, t);
}

/* loop.c */
/* Put @c at its place by (due, tie, id), or out when it has nothing. */
void kvs_loop_sort(struct loop_conn *c);
/* Room for one more connection in @ep's heap. Return: 0; -ENOMEM. */
int kvs_loop_reserve(struct loop_ep *ep);
void kvs_loop_enter(struct loop_conn *c, struct loop_ep *ep);
void kvs_loop_leave(struct loop_conn *c);
struct loop_conn *kvs_loop_conn_new(struct kvs_fabric *f, struct loop_ep *ep);
/* Without callbacks. */
void kvs_loop_conn_free(struct loop_conn *c);

/* loop_conn.c */
/* Queue an event for @to (may be NULL: dropped). Return: 0; -ENOMEM. */
int kvs_loop_post(struct kvs_fabric *f, struct loop_conn *to,
		  enum loop_event_type type);
struct loop_event *kvs_loop_event_new(enum loop_event_type type, size_t size);
void kvs_loop_event_free(struct loop_event *e);
/* A whole event that came off the wire, or is to follow what is queued. */
void kvs_loop_queue(struct loop_conn *to, struct loop_event *e);
uint64_t kvs_loop_latency(struct kvs_fabric *f);
/* Bytes of the next piece of a payload. */
uint64_t kvs_loop_piece(const struct kvs_fabric *f, const struct loop_event *e);
/* Since when the line is busy with a piece that begins at @t. */
uint64_t kvs_loop_line(const struct kvs_fabric *f, const struct loop_event *e,
		       uint64_t t);
/* Copy @n bytes of the payload from @pos on. */
void kvs_loop_copy(const struct kvs_tx *tx, uint64_t pos, void *dst,
		   uint64_t n);
/* Handle the first event of @c; may free it. */
void kvs_loop_deliver(struct loop_conn *c);
/* Have kvs_loop_self() run. */
void kvs_loop_want_self(struct loop_conn *c);
/* What @c owes without an event; may free it. */
void kvs_loop_self(struct loop_conn *c);
void kvs_loop_die(struct loop_conn *c, int err);
/* @c will send no more: take its payloads back, tell the peer. */
void kvs_loop_cut(struct loop_conn *c, enum loop_event_type how);
int kvs_loop_send(struct kvs_conn *conn, const struct kvs_frame *f, size_t len);
int kvs_loop_write(struct kvs_conn *conn, struct kvs_tx *tx);
int kvs_loop_read(struct kvs_conn *conn, struct kvs_read *rd);
void kvs_loop_stop_payload(struct kvs_conn *conn);
void kvs_loop_close(struct kvs_conn *conn, int err, bool flush);

/* loop_wire.c */
/* Launch a one-sided write or read that @c queued. Return: 0; -ENOMEM. */
int kvs_loop_launch_write(struct loop_conn *c, struct kvs_tx *tx);
int kvs_loop_launch_read(struct loop_conn *c, struct kvs_read *rd);
/* Frames and payloads that must wait behind what is on the wire. */
void kvs_loop_wire_add(struct loop_conn *to, struct loop_event *e);
/* Move what is due. Return: pieces. */
unsigned int kvs_loop_wire_run(struct kvs_fabric *f);
/* The peer of @c is cut off: writes it launched go on without it. */
void kvs_loop_wire_orphan(struct loop_conn *c);
/* Nothing lands through @c any more. */
void kvs_loop_wire_purge(struct loop_conn *c);
/* Let an event of f->held or f->late try again @delay ns from now. */
void kvs_loop_wire_resume(struct kvs_fabric *f, struct loop_event *e,
			  uint64_t delay);

/* loop_grant.c */
int kvs_loop_grant_open(struct kvs_grant *g);
void kvs_loop_grant_close(struct kvs_grant *g);
/* Answer what is due. */
void kvs_loop_grants_run(struct loop_ep *ep, uint64_t now);
uint64_t kvs_loop_grants_next(const struct loop_ep *ep);
/* End all that are left. */
void kvs_loop_grants_end(struct loop_ep *ep);
/* Range that lets @c reach [@at, @at + @len), or NULL. */
const struct kvs_grant_range *
kvs_loop_grant_find(const struct loop_conn *c, const struct kvs_grant_key *at,
		    uint64_t len, bool read, uint64_t *ret_off);

/* loop_faults.c */
bool kvs_loop_chance(struct kvs_fabric *f, double p);
/* Which fault strikes the event that @c launches; fills e->fault, e->at. */
void kvs_loop_decide(struct loop_conn *c, struct loop_event *e);
/* The same for opening (KVS_LOOP_OPEN) and closing a grant. */
enum kvs_loop_fault kvs_loop_decide_grant(struct loop_ep *ep,
					  struct loop_grant *lg,
					  enum kvs_loop_event_kind kind,
					  uint64_t *ret_at);
void kvs_loop_count(struct kvs_fabric *f, enum kvs_loop_fault k);
/* RESET and CRASH, when the event's time has come. Return: it struck. */
bool kvs_loop_strike(struct loop_conn *c, struct loop_event *e);
/*
 * @f with another length (@at even) or payload length (odd); *ret is to be
 * freed. Return: 0; -ENOMEM.
 */
int kvs_loop_lie(struct kvs_fabric *f, uint64_t at, const struct kvs_frame *old,
		 struct kvs_frame **ret);

#endif /* KVS_RDMA_LOOP_INTERNAL_H */
