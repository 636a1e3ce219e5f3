/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: the public reproduction of a late write into reused pages
 * (sgl-project/sglang#24527, #35049, with two prefill ranks #36610) ends well
 * here, over every transport, and it ends badly as soon as the hold is taken
 * out, every time.
 *
 * Two prefill ranks on separate connections, a pool of 96 pages. Room A has 31
 * of them, and a write of rank 1 that was launched and is held open; A is
 * aborted, rank 0 acknowledges. Room B fits only with A's pages. The late
 * write comes before B is READY, between READY and B's copy to the device, or
 * during that copy.
 *
 * With the hold B waits and owns nothing while bytes are held; A's hold ends
 * once, by the acknowledgement that follows the end of the write, or by
 * revocation, and then the write still comes at each of the three moments. The
 * log tells of the hold, every party's proof, the release and B's admission
 * in this order; B's bytes on the device are those of its source; 96 pages are
 * free in the end. In a tree built with KVS_MUTATE and started with
 * KVS_MUTATE_OFF=R1_HOLD, which tests/race does, B gets A's pages at once and
 * decodes from A's bytes in each race; the place of the first is printed.
 *
 * Likewise with 430 pages of A and 105 of B, which another prefill instance
 * sends: A's writer goes on during B's copy; what they got has no page in
 * common. And 132 aborts in a row give every held extent back, and the free
 * list is as it was.
 *
 * "race_late_write verbs": over RDMA instead, on a device of this machine, for
 * each kind of grants (race_verbs.c); 77 where there is none. There rank 1 is
 * never stopped by anything but the device: it goes on writing by its old key
 * until the race is over, at each of the moments and at all others. With
 * "paths" behind it: on each device of this machine at once, by registrations.
 */
#include "tests/claim/race_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/regress/service_rig.h"

#define ROUNDS 5u
#define ROUNDS_OFF 20u /* "every time" */
#define ABORTS 132u

static const struct race_shape small = { .pool = 96, .a = 31, .b = 80 };
static const struct race_shape small_two = {
	.pool = 96, .a = 31, .b = 80, .two_peers = true
};
static const struct race_shape large = {
	.pool = 535, .a = 430, .b = 105, .two_peers = true, .both_fit = true
};

static unsigned int races, overlaps, wrongs;
static struct race_late late_all;
static uint64_t outcomes[KVS_DRAIN_OUTCOME_MAX][KVS_PROOF_MAX];

static unsigned int rounds(const struct race_transport *t)
{
	if (t->rounds)
		return t->rounds;
	return race_held() ? ROUNDS : ROUNDS_OFF;
}

static const struct race_transport *transport(void **state)
{
	return *state;
}

/* How a rank that answered so is proven finished. Where that takes the end of
 * its connection, who sees which first is nobody's to say. */
static const char *proof_text(const struct race *x, enum race_end end)
{
	if (x->torn)
		return "";
	return end == RACE_ACK ? "finished by all_acknowledged"
			       : "revoked by grant_invalidated";
}

/* The log of A's hold, and of B behind it. */
static void check_log(struct race *x, struct race_room *a, struct race_room *b,
		      enum race_end end)
{
	char rank0[80], rank1[80];
	int held = race_line(x, a, "held: ", 0);
	int released = race_line(x, a, "released: ", 0);
	int admitted = race_line(x, b, "admitted: ", 0);

	assert_int_equal(race_count(x, a, "held: "), 1);
	assert_int_equal(race_count(x, a, "released: "), 1);
	assert_true(held >= 0);
	for (int i = -1;
	     (i = race_line(x, a, "party ", (unsigned int)(i + 1))) >= 0;)
		assert_in_range(i, held + 1, released - 1);
	snprintf(rank0, sizeof(rank0), "party rank 0: %s",
		 proof_text(x, RACE_ACK));
	snprintf(rank1, sizeof(rank1), "party rank 1: %s", proof_text(x, end));
	assert_int_equal(race_count(x, a, rank0), 1);
	assert_int_equal(race_count(x, a, rank1), 1);
	assert_true(admitted >= 0);
	if (!x->shape.both_fit)
		assert_true(released < admitted);
}

/* Without the rule A's memory went before anybody was proven finished. */
static void check_log_off(struct race *x, struct race_room *a)
{
	int released = race_line(x, a, "released: ", 0);
	int proof = race_line(x, a, "party ", 0);

	assert_true(released >= 0);
	assert_true(proof < 0 || proof > released);
}

/* A's hold and B's success, and no outcome besides. */
static void check_drains(struct race *x, enum race_end end)
{
	enum kvs_drain_outcome o = end == RACE_ACK ? KVS_DRAIN_DRAINED
						   : KVS_DRAIN_REVOKED;
	enum kvs_proof by = end == RACE_ACK ? KVS_PROOF_ALL_ACKNOWLEDGED
					    : KVS_PROOF_GRANT_INVALIDATED;
	uint64_t n = 0;

	for (int i = 0; i < KVS_DRAIN_OUTCOME_MAX; i++)
		for (int p = 0; p < KVS_PROOF_MAX; p++)
			n += x->t->drains(x, (enum kvs_drain_outcome)i,
					  (enum kvs_proof)p);
	assert_int_equal(n, 2);
	assert_int_equal(
		x->t->drains(x, KVS_DRAIN_DRAINED, KVS_PROOF_COPY_EVENT), 1);
	for (int p = 0; p < KVS_PROOF_MAX; p++)
		assert_int_equal(x->t->drains(x, KVS_DRAIN_QUARANTINED,
					      (enum kvs_proof)p),
				 0);
	if (!x->torn)
		assert_int_equal(x->t->drains(x, o, by), 1);
}

/* What the numbers at the end say. */
static void count(struct race *x)
{
	struct race_late n = { 0 };

	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (int p = 0; p < KVS_PROOF_MAX; p++)
			outcomes[o][p] +=
				x->t->drains(x, (enum kvs_drain_outcome)o,
					     (enum kvs_proof)p);
	if (!x->t->late)
		return;
	x->t->late(x, &n);
	/* with the rule each of these tried, and none succeeded */
	assert_int_equal(race_held() ? n.landed : 0, 0);
	late_all.n += n.n;
	late_all.refused += n.refused;
	late_all.cut += n.cut;
	late_all.landed += n.landed;
}

/* A is held. B waits for A's pages until its hold is over. */
static bool wait_for_a(struct race *x, struct race_room *a, struct race_room *b,
		       enum race_end end)
{
	const struct race_transport *t = x->t;
	bool landed = end == RACE_ACK && !t->stubborn;

	assert_int_equal(t->bytes(x, KVS_EXTENT_HELD), a->pages * x->page);
	if (x->shape.both_fit)
		return false;
	assert_int_equal(t->status(x, b), KVS_STATUS_WAITING);
	if (landed)
		t->land(x, a);
	assert_int_equal(t->status(x, b), KVS_STATUS_WAITING);
	assert_int_equal(race_line(x, b, "admitted: ", 0), -1);
	assert_int_equal(t->bytes(x, KVS_EXTENT_HELD), a->pages * x->page);
	t->answer(x, a, 1, end);
	return landed;
}

static void race(const struct race_transport *t, const struct race_shape *s,
		 enum race_moment when, enum race_end end, bool say)
{
	struct race_room a, b;
	struct race_wrong wrong;
	struct race x[1];
	bool landed = false, answered = false;

	race_up(x, t, s, when == RACE_DURING_COPY);
	race_room_init(&a, 0, 1, s);
	race_room_init(&b, 1, 2, s);
	t->admit(x, &a);
	t->grant(x, &a);
	race_locate(x, &a);
	t->launch(x, &a);
	t->abort(x, &a);
	t->answer(x, &a, 0, RACE_ACK);
	t->admit(x, &b);
	if (race_held()) {
		landed = wait_for_a(x, &a, &b, end);
		answered = !s->both_fit;
	}
	t->grant(x, &b);
	race_locate(x, &b);
	t->fill(x, &b);
	if (when == RACE_BEFORE_READY && !landed)
		t->land(x, &a);
	t->last(x, &b);
	if (when == RACE_BEFORE_COPY && !landed)
		t->land(x, &a);
	t->commit(x, &b);
	if (when == RACE_DURING_COPY && !landed)
		t->land(x, &a);
	t->done(x, &b);
	if (!answered)
		t->answer(x, &a, 1, end);
	if (t->stubborn) /* it has gone on all the time, and does */
		t->land(x, &a);
	race_compare(x, &a, &b, &wrong);
	races++;
	overlaps += race_common(&a, &b) && (!answered || !race_held());
	wrongs += wrong.bytes != 0;
	if (say && wrong.bytes)
		print_message("# %s, A %u and B %u of %u pages, %s: %llu bytes "
			      "wrong, %llu of them A's; first: %s\n",
			      t->name, s->a, s->b, s->pool,
			      race_moment_name[when],
			      (unsigned long long)wrong.bytes,
			      (unsigned long long)wrong.of_a, wrong.where);
	t->settle(x);
	assert_int_equal(t->bytes(x, KVS_EXTENT_FREE), s->pool * x->page);
	count(x);
	if (race_held()) {
		check_log(x, &a, &b, end);
		check_drains(x, end);
	} else {
		check_log_off(x, &a);
		assert_int_equal(wrong.of_a, wrong.bytes);
	}
	race_down(x);
}

static void say_outcomes(const struct race_transport *t)
{
	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (int p = 0; p < KVS_PROOF_MAX; p++)
			if (outcomes[o][p])
				print_message(
					"# %s: %llu rooms %s by %s\n", t->name,
					(unsigned long long)outcomes[o][p],
					kvs_drain_outcome_name[o],
					kvs_proof_name[p]);
	if (!t->late)
		return;
	print_message("late-write cases: %u (%s), refused by the device %u, "
		      "cut off with the connection %u, succeeded %u\n",
		      late_all.n, t->name, late_all.refused, late_all.cut,
		      late_all.landed);
	/* or nothing was shown */
	assert_true(late_all.n >= races);
}

/* Every race as it must be: none, or, without the rule, all are lost. */
static void conclude(const struct race_transport *t)
{
	say_outcomes(t);
	memset(outcomes, 0, sizeof(outcomes));
	memset(&late_all, 0, sizeof(late_all));
	print_message("RACE %s: hold %s, %u races, %u overlaps, %u with wrong "
		      "bytes on the device\n",
		      t->name, race_held() ? "on" : "off", races, overlaps,
		      wrongs);
	assert_int_equal(overlaps, race_held() ? 0 : races);
	assert_int_equal(wrongs, race_held() ? 0 : races);
	races = overlaps = wrongs = 0;
}

static void late_write_never_meets_the_next_room(void **state)
{
	unsigned int ends = race_held() ? RACE_ENDS : 1;

	for (unsigned int i = 0; i < rounds(transport(state)); i++)
		for (unsigned int when = 0; when < RACE_MOMENTS; when++)
			for (unsigned int end = 0; end < ends; end++)
				race(transport(state),
				     transport(state)->stubborn ? &small_two
								: &small,
				     (enum race_moment)when, (enum race_end)end,
				     !i);
	conclude(transport(state));
}

static void nor_that_of_another_sender(void **state)
{
	for (unsigned int i = 0; i < rounds(transport(state)); i++)
		race(transport(state), &large, RACE_DURING_COPY, RACE_ACK, !i);
	conclude(transport(state));
}

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* How long the hold took, us; by the log. */
static uint64_t held_us(struct race *x, struct race_room *r)
{
	const char *line = x->lines[race_line(x, r, "released: ", 0)];
	unsigned long long us;

	assert_int_equal(sscanf(strstr(line, " after "), " after %llu us", &us),
			 1);
	return us;
}

static void one_abort(struct race *x, unsigned int i, uint64_t *ret_off,
		      uint64_t *ret_us)
{
	const struct race_transport *t = x->t;
	enum race_end end = i % 2 ? RACE_NAK : RACE_ACK;
	struct race_room a;

	race_room_init(&a, 0, 100 + i, &x->shape);
	t->admit(x, &a);
	t->grant(x, &a);
	race_locate(x, &a);
	t->launch(x, &a);
	t->abort(x, &a);
	assert_int_equal(t->bytes(x, KVS_EXTENT_HELD), a.pages * x->page);
	t->answer(x, &a, 0, RACE_ACK);
	assert_int_equal(t->bytes(x, KVS_EXTENT_HELD), a.pages * x->page);
	if (end == RACE_ACK)
		t->land(x, &a);
	t->answer(x, &a, 1, end);
	t->settle(x);
	assert_int_equal(t->bytes(x, KVS_EXTENT_HELD), 0);
	assert_int_equal(t->bytes(x, KVS_EXTENT_FREE), x->shape.pool * x->page);
	if (end == RACE_NAK)
		t->land(x, &a);
	*ret_off = a.off[0];
	*ret_us = held_us(x, &a);
}

static void every_held_extent_returns(void **state)
{
	static const struct race_shape s = { .pool = 96, .a = 31, .b = 96 };
	uint64_t us[ABORTS], off, first, at = 0;
	struct race_wrong wrong;
	struct race_room a, b;
	struct race x[1];

	if (!race_held())
		skip(); /* nothing is held */
	race_up(x, transport(state), &s, false);
	for (unsigned int i = 0; i < ABORTS; i++) {
		one_abort(x, i, &off, &us[i]);
		first = i ? first : off;
		/* the same list gives the same place */
		assert_int_equal(off, first);
	}
	assert_int_equal(x->t->drains(x, KVS_DRAIN_DRAINED,
				      KVS_PROOF_ALL_ACKNOWLEDGED),
			 ABORTS / 2);
	assert_int_equal(x->t->drains(x, KVS_DRAIN_REVOKED,
				      KVS_PROOF_GRANT_INVALIDATED),
			 ABORTS / 2);
	/* and all of it is one piece, as at the start */
	race_room_init(&a, 0, 1, &s);
	race_room_init(&b, 1, 2, &s);
	x->t->admit(x, &b);
	x->t->grant(x, &b);
	race_locate(x, &b);
	for (uint32_t e = 0; e < b.n_extents; e++, at += b.len[e - 1])
		assert_int_equal(b.off[e], at);
	assert_int_equal(at, s.pool * x->page);
	x->t->fill(x, &b);
	x->t->last(x, &b);
	x->t->commit(x, &b);
	x->t->done(x, &b);
	race_compare(x, &b, &b, &wrong);
	assert_int_equal(wrong.bytes, 0);
	qsort(us, ABORTS, sizeof(us[0]), by_size);
	if (us[ABORTS - 1]) /* a virtual clock stands still */
		print_message(
			"# %s: %u holds, median %llu us, longest %llu us\n",
			x->t->name, ABORTS, (unsigned long long)us[ABORTS / 2],
			(unsigned long long)us[ABORTS - 1]);
	race_down(x);
}

static int over(const struct race_transport *t, bool aborts)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(late_write_never_meets_the_next_room,
					  (void *)t),
		cmocka_unit_test_prestate(nor_that_of_another_sender,
					  (void *)t),
		cmocka_unit_test_prestate(every_held_extent_returns, (void *)t),
	};

	return _cmocka_run_group_tests(t->name, tests, aborts ? 3 : 2, NULL,
				       NULL);
}

int main(int argc, char **argv)
{
	int bad;

	if (argc > 1 && !strcmp(argv[1], "verbs")) {
		if (!race_verbs_there())
			return 77;
		if (argc > 2 && !strcmp(argv[2], "paths"))
			return over(&race_verbs_paths, false);
		return over(&race_verbs_mr, false) +
		       over(&race_verbs_window, false) +
		       over(&race_verbs_qp, false);
	}
	bad = over(&race_tcp_sock, true);
	if (rig_has_uring())
		bad += over(&race_tcp_uring, true);
	return bad + over(&race_loop, true);
}
