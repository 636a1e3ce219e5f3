/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: node
 *
 * One NUMA node of the daemon: its pools, its worker, and the thread that
 * runs it with the data connections of all senders that write here. The
 * front (service.c) talks to it by posts only.
 */
#ifndef KVS_PIPELINE_NODE_H
#define KVS_PIPELINE_NODE_H

#include <pthread.h>
#include <stdatomic.h>

#include "pinned/region.h"
#include "pinned/reglist.h"
#include "pipeline/mailbox.h"
#include "pipeline/network.h"
#include "pipeline/worker.h"

/* What a node's thread tells the front; each runs on the node's thread and
 * must only post. Messages and packets are valid during the call. */
struct kvs_node_up {
	void (*to_peer)(void *arg, uint64_t session, const struct kvs_msg *m);
	void (*to_engine)(void *arg, uint32_t engine, uint32_t slot,
			  uint64_t word, const struct kvs_packet *p,
			  size_t len);
	void (*room_over)(void *arg, uint64_t room, uint64_t generation,
			  int err, const char *text);
	void (*close_session)(void *arg, uint64_t session, int err,
			      const char *why);
	void (*engine_over)(void *arg, uint32_t engine);
};

struct kvs_data_conn;

struct kvs_node {
	/* set before the thread starts, constant after */
	unsigned int index;
	int numa;
	struct kvs_region *region; /* receive pool's memory */
	struct kvs_region *offload; /* or NULL */
	uint32_t offload_index; /* its place among an engine's pools */
	const struct kvs_node_up *up;
	void *up_arg;
	const struct kvs_clock *clock;
	bool one_sided; /* its transport is */
	bool key_per_conn; /* see kvs_transport_key_per_conn() */
	unsigned int rails; /* see kvs_transport_rails() */
	char network[KVS_NETWORK_NOTE]; /* which transport, and why */
	struct kvs_mailbox mailbox;

	/* the node's thread */
	struct kvs_settings settings;
	struct kvs_pool *pool;
	struct kvs_pool *offload_pool;
	struct kvs_worker *worker;
	struct kvs_transport *transport;
	struct kvs_list conns; /* struct kvs_data_conn */
	uint32_t n_conns;
	uint64_t refused; /* over listen.max_connections */
	struct kvs_wire_scratch *scratch;
	bool deferred; /* a conn is to be stopped or closed */
	struct kvs_list grants; /* of one-sided ranks */
	struct kvs_list pending; /* of these, those without a connection */
	struct kvs_registrar_ops registrar; /* of the next */
	struct kvs_reglist *registered; /* the pool, with the transport */
	struct kvs_watch *disk; /* of the cache's disk tier, or NULL */
	struct kvs_watch *shared; /* of its shared tier, or NULL */
	bool tearing; /* sessions are, see kvs_node_torn_down() */

	pthread_t thread;
	bool running;
	atomic_bool stop;
	sem_t woken; /* the stopper is through with the transport */
};

/**
 * kvs_node_init() - pools and worker, on a transport
 * @n: as for kvs_node_start()
 * @clock: NULL: real
 * @t: belongs to the node from here on, whatever is returned; NULL: comes
 *     later, with kvs_node_bind(), before anything is posted
 *
 * For who runs it without a thread (a simulation): then kvs_node_turn()
 * whenever something may have happened, and kvs_node_stop().
 * Return: 0 or -errno with @err.
 */
int kvs_node_init(struct kvs_node *n, const struct kvs_settings *s,
		  const struct kvs_clock *clock, struct kvs_transport *t,
		  uint64_t secret, char *err, size_t errlen);
void kvs_node_bind(struct kvs_node *n, struct kvs_transport *t);
/* Wait at most @wait ns (KVS_TIME_NEVER: for ever), handle what has come, then
 * what is due. On the thread that owns the node. */
void kvs_node_turn(struct kvs_node *n, uint64_t wait);

/**
 * kvs_node_start() - pools, worker, transport, thread
 * @n: index, numa, region(s), up, up_arg filled in by the caller
 * @s: settings, copied
 * @secret: for hash tables
 * @cpus: where the thread runs; NULL: anywhere
 * Return: 0 or -errno with @err.
 */
int kvs_node_start(struct kvs_node *n, const struct kvs_settings *s,
		   uint64_t secret, const cpu_set_t *cpus, char *err,
		   size_t errlen);
/* Stops the thread, if there is one; closes its connections and ends its
 * rooms. Nobody may post to it any more; it may still post to the front. */
void kvs_node_stop(struct kvs_node *n);

/* Posts; any thread. What they point to is copied. -ENOMEM: not posted. */
int kvs_node_engine_add(struct kvs_node *n, uint32_t number,
			const struct kvs_layout *l);
int kvs_node_engine_lost(struct kvs_node *n, uint32_t number, bool proof);
int kvs_node_session_add(struct kvs_node *n, uint64_t id, const char *peer,
			 uint32_t rank, uint64_t caps);
int kvs_node_session_lost(struct kvs_node *n, uint64_t id, int err,
			  const char *why);
int kvs_node_admit(struct kvs_node *n, const struct kvs_room_request *q);
int kvs_node_join(struct kvs_node *n, uint64_t generation, uint32_t engine,
		  uint32_t slot);
int kvs_node_open(struct kvs_node *n, uint64_t session, uint64_t generation,
		  const struct kvs_msg_open *m);
int kvs_node_message(struct kvs_node *n, uint64_t session,
		     const struct kvs_msg *m);
int kvs_node_packet(struct kvs_node *n, uint32_t engine,
		    enum kvs_packet_type type, const struct kvs_packet_room *p);
/* Its rooms may be kept, see kvs_cache_engine(). */
int kvs_node_engine_cache(struct kvs_node *n, uint32_t number,
			  const char *space, uint32_t block);
int kvs_node_lookup(struct kvs_node *n, const struct kvs_lookup_request *q);
int kvs_node_retract(struct kvs_node *n, const struct kvs_retract_request *q);
int kvs_node_abort(struct kvs_node *n, uint64_t generation,
		   enum kvs_room_cause cause, int err, const char *why);
/* Takes @fd on success. @proof: KVS_AUTH_MAC bytes, said before the reply;
 * NULL: nobody asked for a key. */
int kvs_node_adopt(struct kvs_node *n, int fd, uint64_t session,
		   const struct kvs_msg_hello *reply,
		   const unsigned char *proof);

#endif /* KVS_PIPELINE_NODE_H */
