/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: service
 *
 * The daemon's core without its process dressing: pools, workers (a thread
 * per NUMA node), the front thread (control connections, engine sockets, the
 * room directory). kvstaged puts settings, signals, HTTP and logging around
 * it; tests run it in-process.
 */
#ifndef KVS_PIPELINE_SERVICE_H
#define KVS_PIPELINE_SERVICE_H

#include <stdatomic.h>

#include "pinned/topology.h"
#include "pipeline/network.h"
#include "pipeline/settings.h"
#include "pipeline/stats.h"

struct kvs_service;

/* Progress of a slow start; any thread of the service. */
struct kvs_service_events {
	/* pool memory being populated; called about once a second */
	void (*prefault)(void *arg, const char *pool, int node, uint64_t done,
			 uint64_t total);
	/* what kind of pages a pool got and why; called once a pool */
	void (*pool)(void *arg, const char *pool, int node, const char *why);
	/* what carries data, by which device; once with @node -1, or once for
	 * each node when they differ */
	void (*network)(void *arg, int node, const char *what);
	void *arg;
};

/**
 * kvs_service_create() - pools, threads, sockets
 * @s: settings, copied
 * @topo: topology, caller's, outlives the service
 * @ev: may be NULL
 * @cancel: set from a signal handler to give up during the pool start; may be
 *          NULL
 * @err: message that names the setting
 *
 * Context: blocks until the pools are whole.
 * Return: 0; -EINVAL settings; what pools, sockets and threads return;
 * -ECANCELED.
 */
int kvs_service_create(const struct kvs_settings *s, struct kvs_topology *topo,
		       const struct kvs_service_events *ev, atomic_bool *cancel,
		       struct kvs_service **ret, char *err, size_t errlen);

/**
 * kvs_service_drain() - stop admitting, let READY rooms finish
 *
 * New sessions and admits are refused (-ESHUTDOWN). Rooms before READY are
 * aborted; READY and COMMITTING ones may finish until the setting
 * drain.timeout. Context: blocks. Return: rooms that were still live.
 */
int kvs_service_drain(struct kvs_service *svc);
/* Ends everything; held memory is unmapped with the process' sockets closed
 * first. NULL ok. Blocks. */
void kvs_service_destroy(struct kvs_service *svc);

/**
 * kvs_service_check_reload() - may these settings come into force?
 * @s: all of them, those that need a restart as well: they would be refused
 *     then
 * @err: which capacity is smaller than one maximum-length request of whom
 *
 * Warns instead where @s has capacity.check = warn. Any thread; blocks for a
 * turn of the front.
 * Return: 0; -EPROTOTYPE.
 */
int kvs_service_check_reload(struct kvs_service *svc,
			     const struct kvs_settings *s, char *err,
			     size_t errlen);
/* Apply reloadable settings. Any thread. */
void kvs_service_reload(struct kvs_service *svc, const struct kvs_settings *s);

/* Consistent copy of all numbers; any thread but the service's own; blocks
 * for a turn of each worker. The struct is large: allocate it. */
void kvs_service_snapshot(struct kvs_service *svc, struct kvs_snapshot *ret);

/**
 * kvs_service_rooms() - list rooms
 * @ret: array, free() it
 * Return: number, or -ENOMEM.
 */
int kvs_service_rooms(struct kvs_service *svc, struct kvs_room_info **ret);

/**
 * kvs_service_holds() - list rooms whose memory is held or quarantined
 * @ret: array, the longest held first; free() it
 * Return: number, or -ENOMEM.
 */
int kvs_service_holds(struct kvs_service *svc, struct kvs_hold_info **ret);

/* Abort a live room by id, as its engine would; begun, not over, on return.
 * 0; -ENOENT; -EALREADY it was told so before; -ENOMEM. */
int kvs_service_abort(struct kvs_service *svc, uint64_t room);
/* Let all that is cached in memory, or on disk, and not in use go. Return:
 * bytes. */
uint64_t kvs_service_evict(struct kvs_service *svc, bool host, bool disk);
/* Read all that is on disk once; see kvs_cache_disk_scrub(). @ret: a snapshot,
 * whose numbers of the disk become those before it began. Return: nodes that
 * have a disk tier. */
unsigned int kvs_service_scrub(struct kvs_service *svc, uint64_t bytes_per_sec,
			       struct kvs_snapshot *ret);

/**
 * kvs_service_devices() - verbs devices of the machine, as a node sees them
 * @i: node, from 0
 * @ret: room for @n
 * @ret_node: its NUMA node, -1 for any
 *
 * Context: any thread, does not block.
 * Return: how many were filled, 0 for none; -ENOENT there is no such node.
 */
int kvs_service_devices(const struct kvs_service *svc, unsigned int i,
			struct kvs_verbs_info *ret, unsigned int n,
			int *ret_node);

/* Bound TCP port of the listener. */
unsigned int kvs_service_port(const struct kvs_service *svc);

#endif /* KVS_PIPELINE_SERVICE_H */
