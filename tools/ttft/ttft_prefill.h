/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: prefill instance
 *
 * Requests come with their route from the decode engine, are opened at the
 * daemon that it chose, and are queued in the order in which they were
 * granted: as in the public engines a prompt is not computed before the decode
 * side has a place for its KV. One prompt at a time, chunk by chunk; what is
 * computed is pushed while the next chunk computes. A prompt that is given up
 * ends with its present chunk.
 *
 * The senders have no thread: whoever owns the instance turns them.
 */
#ifndef KVS_TOOLS_TTFT_PREFILL_H
#define KVS_TOOLS_TTFT_PREFILL_H

#include "lib/list.h"
#include "lib/timer.h"
#include "pipeline/sender_internal.h"
#include "tools/ttft/ttft.h"

struct ttft_prefill;

/* One way to a daemon. */
struct ttft_way {
	struct ttft_prefill *f;
	enum ttft_rx rx;
	struct kvs_sender *s; /* NULL: none, or down */
	bool dirty; /* has mail */
	bool up; /* the handshake is over */
};

struct ttft_prefill {
	const struct ttft_opts *o;
	const struct ttft_plan *p;
	struct ttft_run *r;
	uint32_t nr;
	char name[32]; /* of the peer */
	uint64_t start; /* ns of the clock; when the run began */
	const struct kvs_clock *clock;
	struct kvs_timerq *timers;
	struct ttft_way way[TTFT_RX];
	const struct kvs_layout *layout;
	struct ttft_push *push; /* of its requests */
	size_t n_push;
	size_t n_came; /* of these: have a route, or are waited for */
	struct kvs_list pending; /* came, not open */
	struct kvs_list queue; /* granted */
	struct kvs_list acks; /* that wait */
	struct kvs_list jobs; /* source pages in use */
	struct ttft_push *now; /* being computed */
	struct kvs_timer chunk; /* ends */
	uint32_t *pages; /* source pages that are free: a stack */
	uint32_t n_free;
	uint32_t n_pages;
	/* Make the bytes of @n pages of request @i, from its page @first on,
	 * in these source pages. NULL: there are no bytes. */
	void (*fill)(struct ttft_prefill *f, size_t i, uint32_t first,
		     const uint32_t *pages, uint32_t n);
	void *arg; /* the owner's */
};

/* Source pages of an instance. */
uint32_t ttft_prefill_pages(const struct ttft_plan *p,
			    const struct kvs_layout *l);
int ttft_prefill_init(struct ttft_prefill *f);
void ttft_prefill_fini(struct ttft_prefill *f);
/* Open what has a route by now. */
void ttft_prefill_turn(struct ttft_prefill *f);
/* Its process died; the senders are gone already. */
void ttft_prefill_crash(struct ttft_prefill *f);
/* For kvs_sender_init(): options that are the model's. */
void ttft_prefill_sender(struct ttft_way *w, struct kvs_sender_opts *o,
			 struct kvs_sender_place *p);

#endif /* KVS_TOOLS_TTFT_PREFILL_H */
