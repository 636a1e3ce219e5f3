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
 */
#ifndef KVS_RDMA_LOOP_H
#define KVS_RDMA_LOOP_H

#include "rdma/transport.h"

struct kvs_fabric;

/* What may go wrong, and how often. All zero: a perfect, instant network. */
struct kvs_loop_plan {
	uint64_t latency_min; /* ns, per event */
	uint64_t latency_max;
	uint64_t bytes_per_sec; /* of each data connection; 0: unlimited */
	uint32_t split_max; /* payload arrives in pieces of at most this many
			     * bytes; 0: whole */
	double reset; /* chance that a connection dies at an event */
	double stall; /* chance that a payload stops half way until released
		       * by kvs_fabric_release() */
};

struct kvs_fabric_opts {
	uint64_t seed;
	const struct kvs_clock *clock;
	struct kvs_loop_plan plan;
};

int kvs_fabric_create(const struct kvs_fabric_opts *o, struct kvs_fabric **ret);
/* All endpoints must be destroyed. */
void kvs_fabric_destroy(struct kvs_fabric *f);
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
/* Let stalled payloads go on. Return: how many. */
unsigned int kvs_fabric_release(struct kvs_fabric *f);
/* Kill one side of a connection as SIGKILL of that process would. */
void kvs_fabric_kill(struct kvs_transport *t);

#endif /* KVS_RDMA_LOOP_H */
