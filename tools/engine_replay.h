/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: engine replay
 *
 * The loop of a decode engine without a model: up to so many requests at a
 * time are admitted, polled, committed to random device pages and compared
 * byte by byte; a share of them is aborted on the way. With several ranks every
 * one of them admits, commits and compares each request, and its status is the
 * least of theirs. One thread, as an
 * engine's scheduler would be; comparing goes on in small steps between polls,
 * so that it does not delay the next request.
 */
#ifndef KVS_TOOLS_ENGINE_REPLAY_H
#define KVS_TOOLS_ENGINE_REPLAY_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "tools/engine_kv.h"
#include "tools/registration.h"
#include "tools/workload.h"

/**
 * struct kvs_replay_opts - how to replay
 * @engine: attached, one for each rank
 * @kv: device pool of each rank
 * @n: ranks
 * @w: workload
 * @concurrency: requests at a time
 * @abort: share to abort mid-transfer, 0..1
 * @quiet: mismatches go to stderr, not to stdout
 * @registering: of the pools with the devices, watched meanwhile
 * @stop: when not 0, abort what is under way, begin nothing new, and end;
 *        may be NULL
 */
struct kvs_replay_opts {
	struct kvs_engine **engine;
	struct kvs_kv *kv;
	uint32_t n;
	const struct kvs_workload *w;
	unsigned int concurrency;
	double abort;
	bool quiet;
	struct kvs_registering *registering;
	const volatile sig_atomic_t *stop;
};

/**
 * struct kvs_replay_result - what came of it
 * @completed: requests committed and compared
 * @aborted: as asked for
 * @refused_400: can never fit, by the daemon or by the device pool
 * @refused_503: no room in time
 * @failed: any other way
 * @bytes: committed, of all ranks
 * @rank_bytes: of them, to the first
 * @ns: first admit to last commit
 * @ttft: ns from admit to the end of the commit, of each completed one, in
 *        rising order; free() it
 * @held: bytes of the device pool that aborted requests still hold
 * @held_peak: the most at any time
 * @wrong_pages: that held other bytes than the source
 * @wrong_bytes: those bytes
 * @lost: the daemon went away
 * @stopped: @stop ended it; requests that were not begun count as failed, those
 *           that were aborted as aborted
 */
struct kvs_replay_result {
	uint64_t completed;
	uint64_t aborted;
	uint64_t refused_400;
	uint64_t refused_503;
	uint64_t failed;
	uint64_t bytes;
	uint64_t rank_bytes;
	uint64_t ns;
	uint64_t *ttft;
	uint64_t held;
	uint64_t held_peak;
	uint64_t wrong_pages;
	uint64_t wrong_bytes;
	bool lost;
	bool stopped;
};

/**
 * kvs_replay() - run the workload to its end
 * Context: progress to stderr, mismatches to stdout.
 * Return: 0 however the requests ended; -ENOMEM.
 */
int kvs_replay(const struct kvs_replay_opts *o, struct kvs_replay_result *ret);

/* Refused, failed, not run: what makes the run a bad one. */
uint64_t kvs_replay_errors(const struct kvs_replay_result *r);

#endif /* KVS_TOOLS_ENGINE_REPLAY_H */
