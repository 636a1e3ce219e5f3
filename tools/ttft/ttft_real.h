/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: real clock
 *
 * A run with processes: the decode engine (ttft_real.c), which began the
 * others; one or two daemons (ttft_real_daemon.c), each the core of kvstaged
 * with its threads and sockets; and the prefill instances
 * (ttft_real_prefill.c). Bytes go over TCP on the loopback interface, with
 * hold.require_ack = yes, and are compared on the device.
 *
 * What the processes have to tell each other beside the product's own
 * protocols, as a router would, lies in shared memory.
 */
#ifndef KVS_TOOLS_TTFT_REAL_H
#define KVS_TOOLS_TTFT_REAL_H

#include <sys/types.h>

#include "tools/ttft/ttft.h"

struct ttft_real_daemon {
	_Atomic int state; /* 0: starts; 1: up; -errno */
	unsigned int port;
	char why[256];
	_Atomic uint64_t held; /* bytes */
	_Atomic uint64_t used;
	/* once it has ended */
	uint64_t high_water;
	uint64_t received;
	uint64_t late;
	uint64_t drains[KVS_DRAIN_OUTCOME_MAX][KVS_PROOF_MAX];
};

/* In shared memory. */
struct ttft_shared {
	_Atomic uint64_t start; /* ns of the clock; 0: not yet */
	char dir[64]; /* sockets */
	_Atomic uint32_t n_ready; /* prefill instances */
	_Atomic bool quit;
	_Atomic bool failed; /* an instance cannot go on */
	char why[512]; /* why not */
	struct ttft_real_daemon daemon[TTFT_RX];
};

/* These are processes; they return its exit status. */
int ttft_real_daemon(const struct ttft_opts *o, const struct ttft_run *r,
		     struct ttft_shared *sh, enum ttft_rx rx);
int ttft_real_prefill(const struct ttft_opts *o, const struct ttft_plan *p,
		      struct ttft_run *r, struct ttft_shared *sh, uint32_t nr);

#endif /* KVS_TOOLS_TTFT_REAL_H */
