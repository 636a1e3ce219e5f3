/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: virtual world
 *
 * A daemon (front and one node), the prefill instances and the decode engine,
 * on one fabric, one thread and one virtual clock. Nothing is faulty but what
 * the settings of the run ask for. Memory is phantom: all that a pool and a
 * device of any size have is their books. The product's code is the same as in
 * its processes; what is played here are sockets, memfds and the pidfd
 * (ttft_port.c).
 */
#ifndef KVS_TOOLS_TTFT_WORLD_H
#define KVS_TOOLS_TTFT_WORLD_H

#include "gpu/soft.h"
#include "lib/rng.h"
#include "pinned/region.h"
#include "pipeline/engine_internal.h"
#include "pipeline/front.h"
#include "pipeline/node.h"
#include "rdma/loop.h"
#include "tools/ttft/ttft_crash.h"
#include "tools/ttft/ttft_decode.h"
#include "tools/ttft/ttft_prefill.h"

#define TTFT_SLOTS 65536u

struct ttft_daemon {
	struct ttft_world *w;
	char name[16]; /* of the front's endpoint */
	struct kvs_settings set;
	struct kvs_front front;
	struct kvs_node node;
	struct kvs_transport *front_t;
	struct kvs_transport *node_t;
	struct kvs_region region;
	bool up;
	/* the engine's socket and status page */
	struct kvs_engine *e;
	struct kvs_front_engine *fe;
	struct kvs_list to_daemon; /* tools/packets.h */
	struct kvs_list to_engine;
	bool closed; /* the daemon's end is */
	bool shut; /* the engine's is */
	_Atomic uint64_t *words;
};

struct ttft_world {
	const struct ttft_opts *o;
	const struct ttft_plan *p;
	struct ttft_run *r;
	struct kvs_vclock clock;
	struct kvs_timerq timers;
	struct kvs_rng ids; /* the product's random bytes */
	struct kvs_fabric *net;
	struct kvs_layout *layout;
	struct ttft_daemon daemon[TTFT_RX];
	struct ttft_prefill *prefill;
	struct kvs_transport **prefill_t; /* [prefill * TTFT_RX + rx] */
	unsigned int *lives; /* of each prefill instance */
	void **source; /* buffers of an instance: zeros */
	struct ttft_decode d;
	struct ttft_crashes crashes;
	bool up; /* all of it */
	bool engine_turn; /* something happened for it */
};

/* ttft_port.c */
extern const struct kvs_eng_port ttft_eng_port;
extern const struct kvs_front_port ttft_front_port;
/* Something for the daemon. */
bool ttft_port_due(const struct ttft_daemon *m);
void ttft_port_deliver(struct ttft_daemon *m);
void ttft_port_free(struct ttft_daemon *m);

#endif /* KVS_TOOLS_TTFT_WORLD_H */
