/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: decode engine
 *
 * Continuous batching over a device with a KV pool in pages. A request gets
 * pages for its prompt and all of its answer at once, so that none is ever
 * retracted: in TTFT_DIRECT when it comes, in the order in which it comes, and
 * before that nobody may send; staged when it is READY in host memory, in the
 * order in which they are, and then it is copied. It joins the batch with the
 * next step.
 *
 * Layer-wise, a request joins while its last layers are still being copied, and
 * a step that comes to them too soon takes until they are there.
 *
 * A request that is given up while it is received directly keeps the pages of
 * its prompt until its acknowledgement arrives, at most for hold_timeout.
 * Staged it has no pages then.
 *
 * Whoever owns it calls ttft_decode_turn() whenever something may have
 * happened at a daemon or a device.
 */
#ifndef KVS_TOOLS_TTFT_DECODE_H
#define KVS_TOOLS_TTFT_DECODE_H

#include "gpu/device.h"
#include "kvstage/engine.h"
#include "lib/list.h"
#include "lib/timer.h"
#include "tools/ttft/ttft.h"

/* What the measured daemon says of its pool; bytes. */
struct ttft_host {
	uint64_t held;
	uint64_t used;
};

struct ttft_decode {
	const struct ttft_opts *o;
	const struct ttft_plan *p;
	struct ttft_run *r;
	const struct kvs_clock *clock;
	struct kvs_timerq *timers;
	uint64_t start; /* ns of the clock */
	const struct kvs_layout *layout;
	struct kvs_engine *e[TTFT_RX]; /* NULL: none */
	struct kvs_device *dev[TTFT_RX]; /* for rooms of that daemon */
	void **buffers[TTFT_RX];
	void (*host)(struct ttft_decode *d,
		     struct ttft_host *ret); /* or NULL */
	/* a request got its route; or NULL */
	void (*routed)(struct ttft_decode *d, size_t i);
	/* it is on the device, look at its bytes; or NULL */
	void (*check)(struct ttft_decode *d, size_t i, const uint32_t *pages,
		      uint32_t n);
	void *arg; /* the owner's */

	struct ttft_room *room; /* of each request */
	uint32_t *free_pages; /* stack */
	uint32_t n_free;
	uint32_t n_pages;
	size_t n_came;
	size_t n_over;
	uint32_t n_ungranted; /* over before they were granted */
	struct kvs_timer arrival;
	struct kvs_timer step;
	struct kvs_timer sample;
	struct kvs_list waiting; /* direct: for pages */
	struct kvs_list admitting; /* the socket was full */
	struct kvs_list receiving;
	struct kvs_list ready; /* staged: for pages */
	struct kvs_list copying;
	struct kvs_list early; /* in the batch or joining, and still copied */
	bool late; /* a step waits for these copies */
	uint32_t layers;
	struct kvs_list joining; /* the batch, with the next step */
	struct kvs_list batch;
	struct kvs_list leaving; /* the library has it still */
	uint32_t n_batch;
	uint64_t held; /* bytes on the device */
	uint64_t held_at; /* ns; counted up to here */
	uint64_t host_held;
	uint64_t host_held_at;
	uint64_t host_used;
};

int ttft_decode_init(struct ttft_decode *d);
void ttft_decode_fini(struct ttft_decode *d);
/* Arrivals begin now. */
void ttft_decode_begin(struct ttft_decode *d);
void ttft_decode_turn(struct ttft_decode *d);
/* The measured pool holds so much from now on. */
void ttft_decode_host(struct ttft_decode *d, uint64_t held, uint64_t used);
bool ttft_decode_over(const struct ttft_decode *d);
/* Totals that are only now complete. */
void ttft_decode_end(struct ttft_decode *d);

#endif /* KVS_TOOLS_TTFT_DECODE_H */
