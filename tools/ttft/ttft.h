/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: ttft
 *
 * kvstage-bench ttft: requests of a trace go through prefill instances, the
 * product (senders, kvstaged, the engine library) and a decode engine with
 * continuous batching, and what their users see is measured. The parts:
 *
 *   ttft_plan.c     who arrives when, who gives up when: of the seed alone
 *   ttft_prefill.c  a prefill instance: computes and pushes chunk by chunk
 *   ttft_crash.c    when an instance dies
 *   ttft_decode.c   the decode engine: admission, device pages, batch, holds
 *   ttft_virtual.c  both and the daemon in one process under a virtual clock
 *   ttft_real.c     each in a process of its own, on loopback
 *   ttft_result.c   statistics, JSON and table
 *   ttft_dir.c      the files that a report is made of
 *
 * A run is one mode with one pool and one abort fraction. What it finds out
 * lies in shared memory (struct ttft_run), as runs and their parts may be
 * processes.
 *
 * Two daemons may serve a run: TTFT_HOST is the one that is measured, with the
 * pool in host memory. TTFT_DEVICE stands for the engine's own backend, which
 * receives straight into device pages: its pool has no end, as the pages are
 * the engine's to give (ttft_decode.c), and it only carries the bytes.
 */
#ifndef KVS_TOOLS_TTFT_TTFT_H
#define KVS_TOOLS_TTFT_TTFT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvstage/layout.h"
#include "lib/clock.h"
#include "pinned/drain.h"
#include "tools/serving.h"

enum ttft_mode {
	TTFT_DIRECT, /* device pages from the handshake on */
	TTFT_STAGED,
	TTFT_AUTO, /* as kvs_should_stage() says */
	TTFT_IDEAL, /* staged, nobody gives up */
	TTFT_MODES,
};
extern const char *const ttft_mode_name[TTFT_MODES];

enum ttft_when {
	TTFT_UNIFORM, /* over the prefill of the request */
	TTFT_EARLY, /* in its first fifth */
	TTFT_LATE, /* in its last fifth */
};

enum ttft_dist {
	TTFT_FAST, /* as soon as it can */
	TTFT_LOST, /* never arrives */
	TTFT_FIXED, /* @a */
	TTFT_BETWEEN, /* uniform in [@a, @b] */
	TTFT_EXP, /* exponential, mean @a */
};

/* When acknowledgements of an abort arrive; ns. */
struct ttft_acks {
	enum ttft_dist dist;
	uint64_t a;
	uint64_t b;
};

/**
 * struct ttft_opts - what is run
 * @s: the cluster
 * @trace: file; NULL: generated
 * @model: preset
 * @requests: at most; 0: all of the trace, an hour when generated
 * @max_input: longer prompts are cut; 0: no
 * @speed: arrivals come so many times as fast
 * @seed: of everything that is drawn
 * @when: in its prefill a request gives up
 * @acks: of these
 * @acks_text: as given
 * @crashes: of an instance in an hour
 * @storm: 60 % of the requests of 12 instances give up, in ten minutes
 * @threshold: of kvs_should_stage() in TTFT_AUTO
 * @buffers: layers are laid together into so many layer buffers; 0: not
 * @token_bytes: bytes a token is scaled to; 0: the model's
 * @scale: all that takes time is so many times as fast, on the real clock; the
 *         times of @s are scaled already
 * @layerwise: a request may join the batch when the rest of its copy is
 *             expected to be there within a step
 * @hold_in_device: a broken build, for the test: memory of a staged room that
 *                  was given up is also held on the device
 */
struct ttft_opts {
	struct kvs_serving s;
	const char *trace;
	const char *model;
	size_t requests;
	uint32_t max_input;
	double speed;
	uint64_t seed;
	enum ttft_when when;
	struct ttft_acks acks;
	const char *acks_text;
	double crashes;
	bool storm;
	double threshold;
	uint32_t buffers;
	uint64_t token_bytes;
	double scale;
	bool layerwise;
	bool hold_in_device;
};

/* ---- plan ---------------------------------------------------------------- */

/* Keepalives and samples go on while nobody arrives: what is longer does not
 * end within any patience. */
#define TTFT_SPAN_DAYS 30u

#define TTFT_STORM_AT (600 * KVS_NSEC_PER_SEC)
#define TTFT_STORM_FOR (600 * KVS_NSEC_PER_SEC)
#define TTFT_STORM_SHARE 0.6
#define TTFT_STORM_WRITERS 12u
#define TTFT_CRASH_DOWN (10 * KVS_NSEC_PER_SEC)

/**
 * struct ttft_req - one request
 * @at: ns, arrival
 * @input: tokens of the prompt
 * @output: tokens to decode, at least 1
 * @prefill: the instance it goes to
 * @draw: gives up where the abort fraction is above this; in [0, 1)
 * @storm: gives up in any case but TTFT_IDEAL
 * @where: share of its prefill that is done when it gives up
 * @ack: ns that its acknowledgement takes; KVS_TIME_NEVER: lost
 */
struct ttft_req {
	uint64_t at;
	uint32_t input;
	uint32_t output;
	uint32_t prefill;
	double draw;
	bool storm;
	double where;
	uint64_t ack;
};

struct ttft_crash {
	uint64_t at; /* ns */
	uint32_t prefill;
};

struct ttft_plan {
	struct ttft_req *v;
	size_t n;
	uint64_t span; /* ns, last arrival */
	uint64_t tokens; /* of all prompts */
	uint32_t max_input;
	double mean_input;
	struct kvs_serving_load load; /* nobody gives up */
	struct ttft_crash *crash; /* by time */
	size_t n_crashes;
};

/* 0; -errno with @err, as kvs_trace_read() and kvs_trace_generate(). */
int ttft_plan(const struct ttft_opts *o, struct ttft_plan *ret, char *err,
	      size_t errlen);
void ttft_plan_free(struct ttft_plan *p);

/* The engine's layout: the model's, folded and scaled as @o says. */
int ttft_layout(const struct ttft_opts *o, struct kvs_layout **ret, char *err,
		size_t errlen);

/* ---- a run --------------------------------------------------------------- */

enum ttft_rx { TTFT_HOST, TTFT_DEVICE, TTFT_RX };

enum ttft_end {
	TTFT_OPEN, /* not over */
	TTFT_DONE,
	TTFT_GAVE_UP, /* as planned */
	TTFT_FAILED,
};

/* What happened to a request; ns from the start of the run, 0: not. */
struct ttft_rec {
	_Atomic uint32_t route; /* 1 + enum ttft_rx, once the engine chose */
	_Atomic uint64_t granted; /* the sender may write */
	_Atomic uint64_t started; /* prefill began */
	uint64_t ready;
	uint64_t placed; /* on the device */
	uint64_t first; /* token was decoded */
	uint64_t last; /* likewise */
	uint32_t first_step; /* these two: numbers of steps */
	uint32_t last_step;
	_Atomic enum ttft_end end;
};

struct ttft_sample {
	float held_device; /* bytes */
	float held_host; /* bytes */
	float use_device; /* share of pages that are not free */
	float use_host; /* bytes that are not free */
	uint32_t queue; /* arrived, and no memory yet */
	uint32_t batch;
};
#define TTFT_SAMPLE_EVERY KVS_NSEC_PER_SEC
#define TTFT_SAMPLES 65536u
#define TTFT_STEPS 8000000u

struct ttft_totals {
	double held_device; /* byte-seconds */
	double held_host;
	double copy_held_device;
	uint64_t peak_held_device; /* bytes */
	uint64_t peak_held_host;
	uint64_t high_water; /* bytes of the host pool */
	uint64_t wire_bytes;
	uint64_t late_bytes;
	uint64_t drains[KVS_DRAIN_OUTCOME_MAX][KVS_PROOF_MAX];
	uint64_t mismatches; /* bytes compared and wrong; real clock */
	uint64_t compared;
	uint64_t duration; /* ns, to the end of the last request */
	uint64_t never_host; /* requests that no such host pool holds */
	uint64_t never_device; /* likewise */
};

/* In shared memory. */
struct ttft_run {
	enum ttft_mode mode;
	double abort;
	uint64_t host_pool;
	bool half; /* of the planned pool */
	bool given; /* its size was, on the command line */
	_Atomic bool stop; /* somebody wants it to end early */
	_Atomic uint64_t settled; /* requests that are over: progress */
	_Atomic uint32_t n_granted;
	_Atomic int state; /* 0: to do, 1: complete, 2: ended early, -errno */
	char why[512];
	struct ttft_totals t;
	uint32_t n_samples;
	uint32_t n_steps;
	struct ttft_sample sample[TTFT_SAMPLES];
	uint64_t step[TTFT_STEPS]; /* ns, end of each */
	struct ttft_rec rec[];
};

struct ttft_run *ttft_run_new(const struct ttft_plan *p);
void ttft_run_free(struct ttft_run *r, const struct ttft_plan *p);
/* Does the request give up in this run? */
bool ttft_gives_up(const struct ttft_run *r, const struct ttft_req *q);

static inline uint64_t ttft_room_id(size_t i)
{
	return i + 1;
}

/* ttft_daemon.c: is there such a daemon? */
bool ttft_uses(enum ttft_mode mode, enum ttft_rx rx);
/* Bytes of TTFT_DEVICE's pool: of so many devices, in whole huge pages. */
uint64_t ttft_device_pool(const struct ttft_opts *o, unsigned int devices);
/* Its settings, on both clocks. 0 or -errno with @why. */
struct kvs_settings;
int ttft_settings(const struct ttft_opts *o, struct kvs_settings *s, char *why,
		  size_t len);

/* Run it: 0, also when it was stopped; -errno with ->why. */
int ttft_virtual(const struct ttft_opts *o, const struct ttft_plan *p,
		 struct ttft_run *r);
int ttft_real(const struct ttft_opts *o, const struct ttft_plan *p,
	      struct ttft_run *r);

/* ---- results ------------------------------------------------------------- */

struct ttft_set {
	const struct ttft_opts *o;
	const struct ttft_plan *p;
	const char *clock;
	struct ttft_run **run;
	size_t n;
};

/* Runs that have something to say are shown; of an abort fraction all look at
 * the same requests. 0 or -ENOMEM. */
int ttft_print_json(const struct ttft_set *s, FILE *out);
int ttft_print_table(const struct ttft_set *s, FILE *out);
/* Is there a request that every run with the abort fraction of run @k ended?
 * Latencies say nothing without. */
bool ttft_compares(const struct ttft_set *s, size_t k);
/* ttft_dir.c. @name: "/" and the file that it is about, or "". */
/* Made where it is missing: 0, or why nothing could be written there. */
int ttft_dir(const char *dir, char *name, size_t len);
/* results.jsonl, and a table of requests and one of samples for each run, in
 * place of those of an earlier one. 0 or -errno. */
int ttft_write_dir(const struct ttft_set *s, const char *dir, char *name,
		   size_t len);

#endif /* KVS_TOOLS_TTFT_TTFT_H */
