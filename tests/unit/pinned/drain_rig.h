/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drain under a virtual clock, parties of every temper, and counts of what
 * was called.
 */
#ifndef KVS_TESTS_DRAIN_RIG_H
#define KVS_TESTS_DRAIN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pinned/drain.h"

#define GEN 7u
#define HOLD (30 * KVS_NSEC_PER_SEC)
#define RANK KVS_PARTY_RANK

struct fixture {
	struct kvs_vclock clock;
	struct kvs_timerq timers;
	struct kvs_drain_stats stats;
};

extern struct fixture f;
extern unsigned int overs, stucks, revokes;

/* revoke() leaves at once, or later, or cannot, or is missing, or takes all
 * with it; a receive; one whose word is not enough: something must be closed,
 * and that comes later. */
extern const struct kvs_party_ops now_ops, later_ops, cannot_ops, none_ops,
	all_ops, recv_ops, keyed_ops;

int setup(void **state);
int teardown(void **state);
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

void begin(struct kvs_drain *d);
void join(struct kvs_drain *d, struct kvs_party *p,
	  const struct kvs_party_ops *ops, uint64_t id);
void pass_time(uint64_t ns);
uint64_t total_outcomes(void);
uint64_t total_ignored(void);

#endif /* KVS_TESTS_DRAIN_RIG_H */
