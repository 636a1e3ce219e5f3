/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: bench recv
 *
 * Three parties. The *sender* is a process of its own with a plain loop: take
 * the next chunk, encode its frame, sendmsg(frame, payload), on one thread a
 * connection. *Ours* is a node as the daemon runs it: pool, worker, transport
 * and their thread; this process plays front and engine towards it. *Plain* is
 * one thread with recv(MSG_WAITALL) of the frame and of the payload.
 *
 * Both receivers get the same frames from the same sender loop over sockets
 * with the same options, into regions made alike. What the daemon's front
 * would carry (GRANT, LAST) goes over a socketpair, as struct kvs_recv_order.
 *
 * With a checksum the sender computes it of what it sends and LAST carries it,
 * as a rank does, and the worker computes it again of what arrived. The plain
 * loop and its sender have none. Each run of ours ends with one more room,
 * whose LAST has a wrong one: it must fail. The sender, which sends the same
 * memory over and over, can also keep the sums of its chunks from before the
 * run: what is left then is the receiver's share of the cost.
 *
 * Over verbs (bench_recv_verbs.c) *ours* is the whole of it: the core of the
 * daemon and the engine's library in this process, a rank on the sender's
 * library in the other; the baseline is ib_write_bw, run as it comes, on the
 * same device. A room is some extents of two layer buffers; a buffer's part of
 * an extent, a *run*, is one chunk, whose pages lie scattered at the sender.
 */
#ifndef KVS_TOOLS_BENCH_RECV_H
#define KVS_TOOLS_BENCH_RECV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pinned/region.h"
#include "pipeline/digest.h"
#include "rdma/verbs.h"

#define KVS_RECV_WHY_MAX KVS_REGION_ERR_MAX
#define KVS_RECV_CONNECTIONS_MAX 64u
#define KVS_RECV_PATIENCE_MS 20000 /* nothing happens for so long: an error */
#define KVS_RECV_LIST_MAX 16u
#define KVS_RECV_POOL_SHARE 4 /* rooms that the pool holds */
#define KVS_RECV_BUFFERS 2u /* layer buffers of a room over verbs */
#define KVS_RECV_RUN_PAGES 16384u /* at most, of one of them in an extent */
#define KVS_RECV_DEVICE_MAX 64

struct kvs_recv_args {
	uint64_t size[KVS_RECV_LIST_MAX];
	unsigned int n_sizes;
	uint64_t connections[KVS_RECV_LIST_MAX];
	unsigned int n_connections;
	double seconds;
	uint64_t repeats;
	uint64_t pool;
	const char *pool_text; /* as it was given */
	uint64_t item_len; /* of canaries; 0: the chunk's (never over verbs) */
	const char *engine;
	const char *transport;
	bool verbs;
	const char *device; /* of verbs; NULL: the nearest */
	enum kvs_digest_kind checksum;
	bool json;
};

/* Exits on what is wrong. */
void kvs_recv_parse(int argc, char **argv, struct kvs_recv_args *ret);

enum kvs_recv_op {
	/* to the sender */
	KVS_RECV_START, /* connect and begin */
	KVS_RECV_GRANT, /* a room may be sent */
	KVS_RECV_STOP, /* finish the chunk, close, say STOPPED */
	KVS_RECV_ROOM, /* verbs: open and send a room */
	/* from the sender */
	KVS_RECV_LAST, /* a room has been sent */
	KVS_RECV_DONE, /* verbs: a room is over for the rank */
	KVS_RECV_STOPPED,
	KVS_RECV_BROKEN, /* err says why */
};

/* One SOCK_SEQPACKET packet between the two processes. */
struct kvs_recv_order {
	enum kvs_recv_op op;
	uint32_t connections; /* START */
	uint16_t port; /* START */
	bool endless; /* START: makes its own rooms, until STOP */
	uint64_t size; /* START: bytes of a chunk */
	uint32_t chunks; /* START: of a room */
	uint32_t extent_chunks; /* START, GRANT: of a full extent */
	enum kvs_digest_kind digest_kind; /* START */
	bool keep_digests; /* START: summed up before the first chunk */
	bool verbs; /* START: a rank on libkvstage */
	char device[KVS_RECV_DEVICE_MAX]; /* START of such */
	uint32_t item_len; /* likewise: bytes of a page */
	uint32_t run_pages; /* likewise: of a buffer in an extent */
	uint32_t extents; /* likewise: of a room */
	uint64_t writes; /* STOPPED of such: RDMA WRITEs posted */
	uint64_t messages; /* likewise: SENDs posted */
	uint64_t copied; /* likewise: bytes copied before they were sent */
	uint32_t digest; /* LAST */
	uint64_t room; /* GRANT, LAST, ROOM, DONE */
	uint64_t generation; /* GRANT, LAST */
	int err; /* BROKEN, DONE: positive errno; DONE: or 0 */
};

/**
 * struct kvs_recv_run - one measurement of one side
 * @size: bytes of a chunk
 * @connections: data connections (plain: 1)
 * @seconds: of the measurement; a fifth of it is run before, unmeasured
 * @engine: TCP engine of ours
 * @region: memory received into
 * @chunks: of a room
 * @digest: ours: checksum of each room
 * @keep_digests: of its chunks, at the sender
 * @listener: where the sender connects
 * @port: of it
 * @orders: our end of the socketpair
 */
struct kvs_recv_run {
	uint64_t size;
	uint32_t connections;
	double seconds;
	const char *engine;
	struct kvs_region *region;
	uint32_t chunks;
	enum kvs_digest_kind digest;
	bool keep_digests;
	int listener;
	uint16_t port;
	int orders;
	/* verbs; no region, listener, port then */
	const struct kvs_verbs_info *device;
	uint64_t pool; /* bytes */
	uint32_t item_len; /* of a page */
	uint32_t extents; /* of a room */
	double expect; /* GB/s of the last run of ours; 0: none yet */
};

struct kvs_recv_rate {
	double gbps;
	double cpus; /* of the receiving thread; 1: it never slept */
	uint64_t bytes; /* in the measured time */
	uint64_t rooms; /* ours: committed, in the whole run */
	char engine[32]; /* ours: what "auto" chose */
	/* ours over verbs; of all rooms of the run */
	uint64_t writes;
	uint64_t messages;
	uint64_t copied; /* bytes */
};

/* A moment of the receiving thread. */
struct kvs_recv_sample {
	uint64_t now; /* ns */
	uint64_t bytes; /* received so far */
	uint64_t cpu; /* ns, of the thread */
};

/* What happened between two moments. */
void kvs_recv_rate_between(const struct kvs_recv_sample *a,
			   const struct kvs_recv_sample *b,
			   struct kvs_recv_rate *ret);

/* The sender's process; returns its exit status when @orders is closed. */
int kvs_recv_sender(int orders);

/* Tell the sender. 0 or -errno. */
int kvs_recv_order(int orders, const struct kvs_recv_order *o);
/**
 * kvs_recv_await() - next packet from the sender
 * @timeout_ms: negative: for ever
 * Return: 0; -ETIMEDOUT; -EPIPE the process is gone; what BROKEN says.
 */
int kvs_recv_await(int orders, int timeout_ms, struct kvs_recv_order *ret);
/* A connection of the sender; descriptor, -ETIMEDOUT or -errno. */
int kvs_recv_accept(int listener);
/* The options that every data connection gets, on both ends. */
void kvs_recv_tune(int fd);

/**
 * kvs_recv_ours() - measure the receive path of the daemon
 * @why: message on failure
 * Return: 0 or -errno.
 */
int kvs_recv_ours(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		  char *why, size_t len);
/* The same for the plain loop. */
int kvs_recv_plain(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		   char *why, size_t len);

/* ---- over verbs; see bench_recv_verbs.c ---- */

/**
 * kvs_recv_device() - the device that both sides use
 * @name: or NULL: the nearest to the memory of this process' node
 * @why: message on failure
 * Return: 0; -EOPNOTSUPP there is none, or it cannot be used; -errno.
 */
int kvs_recv_device(const char *name, struct kvs_verbs_info *ret, char *why,
		    size_t len);
/* Measure daemon, rank and engine, as they are. 0 or -errno. */
int kvs_recv_verbs(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		   char *why, size_t len);
/* The sender's part of it, from START to STOP; @start is what STOPPED says
 * then. 0 or -errno. */
int kvs_recv_rank(int orders, struct kvs_recv_order *start);
/* Is ib_write_bw there? 0; -EOPNOTSUPP, with @why. */
int kvs_recv_write_bw_there(char *why, size_t len);
/* One run of ib_write_bw: a server and a client. 0 or -errno. */
int kvs_recv_write_bw(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		      char *why, size_t len);

#endif /* KVS_TOOLS_BENCH_RECV_H */
