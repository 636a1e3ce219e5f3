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
 */
#ifndef KVS_RDMA_LOOP_INTERNAL_H
#define KVS_RDMA_LOOP_INTERNAL_H

#include "lib/rng.h"
#include "rdma/loop.h"
#include "rdma/transport_internal.h"

#define KVS_LOOP_NAME 64 /* bytes, with the NUL */
#define KVS_LOOP_FLUSH_NS KVS_NSEC_PER_SEC
#define KVS_LOOP_NO_PLACE SIZE_MAX

struct loop_conn;

enum loop_event_type {
	LOOP_ACCEPT, /* to the listening side */
	LOOP_OPENED, /* to the connecting side */
	LOOP_REFUSED,
	LOOP_FRAME,
	LOOP_DATA, /* a struct kvs_tx, piece by piece */
	LOOP_FIN,
	LOOP_RST,
};

struct loop_event {
	struct kvs_list node;
	enum loop_event_type type;
	uint64_t ready; /* ns; sent + latency */
	/* LOOP_DATA */
	struct kvs_tx *tx;
	uint64_t pos; /* payload bytes delivered */
	uint64_t len; /* payload bytes in all */
	uint64_t stop_at; /* stall here; len: never */
	bool begun; /* the receiver was asked for a place */
	/* LOOP_FRAME */
	size_t size;
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
	uint64_t id;
	unsigned int gen; /* raised by detach */
	bool in_frame;
	bool flushing; /* close when txq is empty */
	bool dying; /* closed() is due */
	int err;
	uint64_t deadline; /* ns; while flushing */

	/* incoming */
	struct kvs_list events;
	size_t place; /* in ep->heap, or KVS_LOOP_NO_PLACE */
	uint64_t due; /* of the first event, ns */
	uint64_t tie; /* order among equals, drawn by the seed */
	uint64_t free_at; /* the line carried the last byte, ns */
	bool stalled;
	struct kvs_rx rx;
	bool rx_live; /* payload_done() is owed */
	bool rx_drop; /* the rest is dropped */
	bool rx_active; /* between the first and the last piece */

	/* outgoing */
	struct kvs_list txq; /* struct kvs_tx on the way */
	struct kvs_list txdone; /* delivered, done() due */
	size_t out_bytes; /* of frames on the way */
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
	struct loop_conn **heap; /* with an event, first due first */
	size_t heap_n;
	size_t heap_cap; /* room for every conn: adding cannot fail */
	size_t n_conns;
	unsigned int handled;
	int wake_fd; /* -1 on a virtual clock */
	bool dead; /* killed */
	bool closing;
};

struct kvs_fabric {
	unsigned int magic;
	const struct kvs_clock *clock;
	struct kvs_loop_plan plan;
	struct kvs_rng rng;
	struct kvs_list eps;
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
/* Handle the first event of @c; may free it. */
void kvs_loop_deliver(struct loop_conn *c);
/* What @c owes without an event; may free it. */
void kvs_loop_self(struct loop_conn *c);
void kvs_loop_die(struct loop_conn *c, int err);
/* @c will send no more: take its payloads back, tell the peer. */
void kvs_loop_cut(struct loop_conn *c, enum loop_event_type how);
int kvs_loop_send(struct kvs_conn *conn, const struct kvs_frame *f, size_t len);
int kvs_loop_write(struct kvs_conn *conn, struct kvs_tx *tx);
void kvs_loop_stop_payload(struct kvs_conn *conn);
void kvs_loop_close(struct kvs_conn *conn, int err, bool flush);

#endif /* KVS_RDMA_LOOP_INTERNAL_H */
