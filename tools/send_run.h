/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: send run
 *
 * One prefill rank going through a workload: opens rooms ahead, "computes"
 * their pages at the rate given, pushes them while it does, and counts how
 * they end.
 *
 * Source pages are shared. Rooms that have no memory at the daemon yet may
 * hold half of them at most, so that a granted one can always go on.
 */
#ifndef KVS_TOOLS_SEND_RUN_H
#define KVS_TOOLS_SEND_RUN_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/sender.h"
#include "tools/workload.h"

/**
 * struct kvs_send_run_opts - how to go through it
 * @w: workload, caller's
 * @daemon: "host:port"
 * @rank: of @w->o.n_ranks
 * @rate: tokens a second; 0: as fast as possible
 * @chunk_tokens: computed at a time
 * @concurrency: rooms open at most
 * @data_connections: to each daemon worker; 0: the sender's default
 * @stripe_min: bytes of a room from which on it uses all of them over RDMA; 0:
 *              the sender's default
 * @pool: bytes of source pages
 * @file: payload; NULL: the pattern
 * @open_timeout: ns a room waits for its grant
 * @connect_timeout: ns to find the daemon and agree with it
 * @max_batch_bytes: see struct kvs_sender_opts
 * @call_timeout: likewise, ns
 * @transport: what carries the bytes, see struct kvs_sender_opts
 * @rdma_device: likewise
 * @rdma_gid_index: likewise
 * @io: transport engine, see struct kvs_sender_opts
 * @key_file: likewise
 * @device: backend of the device that has the source pages, or NULL
 * @ordinal: number of it
 * @source: see struct kvs_sender_opts
 * @bounce_bytes: likewise
 * @stop: becomes non-zero when the run shall end; may be NULL
 * @failed: called for each room that failed, from the calling thread; may be
 *          NULL
 * @started: called once when the sender is connected, with what it does then;
 *           may be NULL
 */
struct kvs_send_run_opts {
	const struct kvs_workload *w;
	const char *daemon;
	uint32_t rank;
	uint64_t rate;
	uint32_t chunk_tokens;
	uint32_t concurrency;
	uint32_t data_connections;
	uint64_t stripe_min;
	uint64_t pool;
	const char *file;
	uint64_t open_timeout;
	uint64_t connect_timeout;
	uint64_t max_batch_bytes;
	uint64_t call_timeout;
	const char *transport;
	const char *rdma_device;
	const char *rdma_gid_index;
	const char *io;
	const char *key_file;
	const char *device;
	int ordinal;
	enum kvs_source source;
	uint64_t bounce_bytes;
	const volatile sig_atomic_t *stop;
	void (*started)(const struct kvs_sender_stats *st);
	void (*failed)(uint64_t room, int err, const char *text);
};

struct kvs_send_run_result {
	uint64_t rooms; /* of the workload */
	uint64_t ok;
	uint64_t failed; /* those never opened included */
	uint64_t unopened;
	uint64_t never; /* refused for good (class 400) */
	uint64_t later; /* refused for now (class 503), or failed otherwise */
	uint64_t bytes; /* of rooms that went well */
	uint64_t ns; /* from the first grant to the last end */
	struct kvs_sender_stats sender; /* size is set */
	bool stopped;
};

/**
 * kvs_send_run() - go through the workload
 * @ret: written also when rooms failed
 * @err: message when the run as a whole could not be made
 * Context: blocks until every room is over.
 * Return: 0; what kvs_sender_create() and kvs_send_source_create() return.
 */
int kvs_send_run(const struct kvs_send_run_opts *o,
		 struct kvs_send_run_result *ret, char *err, size_t errlen);

#endif /* KVS_TOOLS_SEND_RUN_H */
