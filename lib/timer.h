/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: timer
 *
 * A queue of deadlines over any kvs_clock, of intrusive timers. One owner
 * thread. Equal deadlines fire in the order they were set, so runs under the
 * virtual clock are reproducible.
 *
 * Most timers of a server are set to "now plus a constant" and cancelled
 * before they fire, 100,000 of them at a time. Those of one constant come in
 * order, so a few lists, each in order of its deadlines, take them at the
 * tail: setting and cancelling touch only neighbours, whatever the number.
 * What fits no list goes to a binary heap. The earliest is the least of the
 * heads and the top of the heap.
 */
#ifndef KVS_LIB_TIMER_H
#define KVS_LIB_TIMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/list.h"

#define KVS_TIMER_LISTS 6u

struct kvs_timer {
	uint64_t at; /* ns; deadline */
	uint64_t seq; /* tie break */
	size_t pos; /* index in the heap plus 1; KVS_TIMER_LISTED; 0 = not set */
	struct kvs_list node; /* while listed */
	void (*fire)(struct kvs_timer *t);
};
#define KVS_TIMER_LISTED SIZE_MAX

struct kvs_timerq {
	struct kvs_list list[KVS_TIMER_LISTS]; /* each in order */
	struct kvs_timer **heap;
	size_t in_heap;
	size_t n; /* set, in all; never more than cap */
	size_t cap; /* of the heap */
	uint64_t seq;
	uint64_t floor; /* ns; no deadline below it: now while running, or 0 */
};

void kvs_timerq_init(struct kvs_timerq *q);
/* Frees memory; timers still set are forgotten (memory is the caller's). */
void kvs_timerq_fini(struct kvs_timerq *q);

/**
 * kvs_timer_init() - prepare a timer that is not set
 * @t: timer, embedded in the caller's object
 * @fire: called from kvs_timerq_run(); the timer is no longer set then and
 *        may be set again or freed by it
 */
void kvs_timer_init(struct kvs_timer *t, void (*fire)(struct kvs_timer *t));

/**
 * kvs_timer_set() - (re)arm
 * @q: queue; the one it is set on already, if it is set
 * @t: timer
 * @at: ns; from a callback, what lies before the running call's now counts
 *      as that now
 *
 * Return: 0, or -ENOMEM (the timer is not set). Setting one that is set
 * already does not fail.
 */
int kvs_timer_set(struct kvs_timerq *q, struct kvs_timer *t, uint64_t at);
/* Harmless on a timer that is not set. */
void kvs_timer_cancel(struct kvs_timerq *q, struct kvs_timer *t);

static inline bool kvs_timer_is_set(const struct kvs_timer *t)
{
	return t->pos != 0;
}

/* Earliest deadline in ns, or KVS_TIME_NEVER. */
uint64_t kvs_timerq_next(const struct kvs_timerq *q);

/**
 * kvs_timerq_run() - fire every timer due at @now
 *
 * Timers set by a callback for <= @now fire in the next call, so one call
 * ends. Return: number fired.
 */
unsigned int kvs_timerq_run(struct kvs_timerq *q, uint64_t now);

#endif /* KVS_LIB_TIMER_H */
