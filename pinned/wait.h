/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: wait
 *
 * Caller-owned entries that wait in order for pool memory: "not now". No
 * allocation, cancel at any time. The head may be overtaken by smaller
 * entries behind it at most @overtake_max times or for @overtake_ns since it
 * became the head; then nobody passes it and freed memory is kept for it.
 */
#ifndef KVS_PINNED_WAIT_H
#define KVS_PINNED_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/clock.h"
#include "lib/list.h"

struct kvs_wait {
	struct kvs_list node;
	uint64_t bytes; /* total asked for; only smaller ones overtake */
	uint64_t since; /* ns */
	/**
	 * try - try to take the memory now
	 *
	 * Called with the entry off the list, so that it may free it, and
	 * may add or cancel others and run the queue.
	 * Return: 0 taken; -EAGAIN not now (the entry goes back to its place);
	 * other: gave up.
	 */
	int (*try)(struct kvs_wait *w);
};

struct kvs_waitq {
	struct kvs_list list;
	unsigned int len;
	unsigned int overtaken; /* of the present head */
	uint64_t head_since; /* ns */
	unsigned int overtake_max;
	uint64_t overtake_ns;
	const struct kvs_clock *clock;
	bool running; /* inside kvs_waitq_run() */
	bool again; /* memory was freed meanwhile */
};

void kvs_waitq_init(struct kvs_waitq *q, const struct kvs_clock *clock,
		    unsigned int overtake_max, uint64_t overtake_ns);
void kvs_wait_init(struct kvs_wait *w, int (*try)(struct kvs_wait *w));
/* Appends. Asserts not queued. */
void kvs_waitq_add(struct kvs_waitq *q, struct kvs_wait *w, uint64_t bytes);
/*
 * Harmless when not queued. The caller runs the queue afterwards: another
 * head has its own overtaking limits.
 */
void kvs_waitq_cancel(struct kvs_waitq *q, struct kvs_wait *w);
static inline bool kvs_wait_queued(const struct kvs_wait *w)
{
	return !kvs_list_empty(&w->node);
}
/* May a newcomer try at once, or must it queue? (False: somebody waits and
 * may not be overtaken any more.) Counts nothing. */
bool kvs_waitq_may_pass(const struct kvs_waitq *q);
/* A newcomer that did not queue took memory while others wait. */
void kvs_waitq_passed(struct kvs_waitq *q);
/**
 * kvs_waitq_run() - memory was freed: serve entries in order
 *
 * Tries the head, then, as far as overtaking is allowed, those behind it that
 * need less than the head. At most one pass over the queue; looks at no more
 * than @max_tries entries (0 = all). Called from inside a try() it returns 0
 * and the pass that is running is followed by another one.
 * Return: number served.
 */
unsigned int kvs_waitq_run(struct kvs_waitq *q, unsigned int max_tries);
/*
 * ns from now until the head's overtaking time is over, 0 when it is;
 * KVS_TIME_NEVER when nobody waits.
 */
uint64_t kvs_waitq_deadline(const struct kvs_waitq *q);

#endif /* KVS_PINNED_WAIT_H */
