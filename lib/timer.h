/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: timer
 *
 * A queue of deadlines over any kvs_clock: a binary heap of intrusive timers.
 * One owner thread. Equal deadlines fire in the order they were set, so runs
 * under the virtual clock are reproducible.
 */
#ifndef KVS_LIB_TIMER_H
#define KVS_LIB_TIMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvs_timer {
	uint64_t at; /* ns; deadline */
	uint64_t seq; /* tie break */
	size_t pos; /* index in the heap plus 1; 0 = not set */
	void (*fire)(struct kvs_timer *t);
};

struct kvs_timerq {
	struct kvs_timer **heap;
	size_t n;
	size_t cap;
	uint64_t seq;
	uint64_t floor; /* ns; no deadline below it: now while running, or 0 */
};

void kvs_timerq_init(struct kvs_timerq *q);
/* Frees the heap; timers still set are forgotten (memory is the caller's). */
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
 * Return: 0, or -ENOMEM when the heap cannot grow (the timer is not set).
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
