/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pinned/drain_rig.h"

#include <errno.h>
#include <string.h>

struct fixture f;
unsigned int overs, stucks, revokes;

static void count_over(struct kvs_drain *d)
{
	assert_true(kvs_drain_is_over(d));
	assert_int_equal(d->live, 0);
	overs++;
}

static void count_stuck(struct kvs_drain *d)
{
	assert_int_equal(d->state, KVS_DRAIN_STUCK);
	assert_int_equal(kvs_drain_outcome(d), KVS_DRAIN_QUARANTINED);
	stucks++;
}

int setup(void **state)
{
	(void)state;
	memset(&f, 0, sizeof(f));
	kvs_vclock_init(&f.clock, KVS_NSEC_PER_SEC);
	kvs_timerq_init(&f.timers);
	overs = 0;
	stucks = 0;
	revokes = 0;
	return 0;
}

int teardown(void **state)
{
	(void)state;
	/* no drain leaves its timer behind */
	assert_true(kvs_timerq_next(&f.timers) == KVS_TIME_NEVER);
	kvs_timerq_fini(&f.timers);
	return 0;
}

void begin(struct kvs_drain *d)
{
	const struct kvs_drain_opts o = {
		.generation = GEN,
		.hold_timeout = HOLD,
		.clock = &f.clock.clk,
		.timers = &f.timers,
		.stats = &f.stats,
		.over = count_over,
		.stuck = count_stuck,
	};

	kvs_drain_init(d, &o);
	assert_int_equal(d->state, KVS_DRAIN_OPEN);
}

void pass_time(uint64_t ns)
{
	kvs_vclock_advance(&f.clock, ns);
	kvs_timerq_run(&f.timers, kvs_clock_now(&f.clock.clk));
}

uint64_t total_outcomes(void)
{
	uint64_t sum = 0;
	unsigned int i, k;

	for (i = 0; i < KVS_DRAIN_OUTCOME_MAX; i++)
		for (k = 0; k < KVS_PROOF_MAX; k++)
			sum += f.stats.total[i][k];
	return sum;
}

uint64_t total_ignored(void)
{
	uint64_t sum = 0;
	unsigned int i;

	for (i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		sum += f.stats.ack_ignored[i];
	return sum;
}

/* revoke() in the ways there are */
static int revoke_now(struct kvs_party *p)
{
	revokes++;
	kvs_party_leave(p, KVS_PROOF_GRANT_INVALIDATED);
	return 0;
}

static int revoke_later(struct kvs_party *p)
{
	(void)p;
	revokes++;
	return 0;
}

static int revoke_cannot(struct kvs_party *p)
{
	(void)p;
	revokes++;
	return -EBUSY;
}

/* One connection carries all: its end is the proof for everybody. */
static int revoke_all(struct kvs_party *p)
{
	struct kvs_drain *d = p->drain;
	struct kvs_party *other;

	revokes++;
	while ((other = kvs_drain_find(d, RANK, 0)) ||
	       (other = kvs_drain_find(d, RANK, 1)) ||
	       (other = kvs_drain_find(d, RANK, 2)))
		kvs_party_leave(other, KVS_PROOF_CONNECTION_TORN_DOWN);
	return 0;
}

#define OPS(name_, kind_, revoke_)                                 \
	const struct kvs_party_ops name_##_ops = { .name = #name_, \
						   .kind = kind_,  \
						   .revoke = revoke_ }

OPS(now, RANK, revoke_now);
OPS(later, RANK, revoke_later);
OPS(cannot, RANK, revoke_cannot);
OPS(none, KVS_PARTY_IO, NULL);
OPS(all, RANK, revoke_all);
OPS(recv, KVS_PARTY_RECEIVE, NULL);

/* What it says is not enough: something must be closed, see revoke_later(). */
const struct kvs_party_ops keyed_ops = {
	.name = "keyed",
	.kind = RANK,
	.ack_closes = true,
	.revoke = revoke_later,
};

void join(struct kvs_drain *d, struct kvs_party *p,
	  const struct kvs_party_ops *ops, uint64_t id)
{
	kvs_party_init(p, ops, id);
	assert_int_equal(kvs_drain_join(d, p), 0);
}
