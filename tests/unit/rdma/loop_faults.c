/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims for the fault plan of the in-process fabric: each kind of fault,
 * scripted on one event, does to it what loop.h says and nothing to others,
 * and is counted once; chances strike every kind; the same seed gives the same
 * history to the letter, another seed another; whatever strikes, each thing
 * owed comes once, no byte lands outside what was granted, and none after
 * closed(0).
 */
#include "tests/unit/rdma/loop_rig.h"
#include "lib/units.h"

static const struct kvs_loop_plan slow = {
	.latency_min = 1000,
	.latency_max = 1000,
	.bytes_per_sec = 1000000000, /* one a ns */
	.split_max = 16,
};

enum { N = 3, LEN = 400 };

/* Three writes to places of their own, each with a frame. */
struct three {
	struct lr *r;
	struct lr_grant g;
	struct lr_write *w[N];
};

static void three_ready(struct three *t, const struct kvs_loop_plan *plan)
{
	int i;

	t->r = lr_new(1, plan);
	lr_dial(t->r, 0, LR_OWNER);
	lr_grant(t->r, &t->g, LR_OWNER, 0, N * LEN, 1);
	for (i = 0; i < N; i++)
		t->w[i] = lr_write_new(t->r, &t->g.key[0], (uint64_t)i * LEN,
				       LEN, (uint16_t)(i + 1), (uint64_t)i + 1);
}

static void three_go(struct three *t)
{
	int i;

	for (i = 0; i < N; i++)
		assert_int_equal(lr_write(t->r, 0, t->w[i]), 0);
}

static void three_free(struct three *t)
{
	int i;

	/* what a dead endpoint owes comes when it is destroyed */
	lr_free(t->r);
	for (i = 0; i < N; i++)
		lr_write_free(t->w[i]);
}

static bool landed(const struct three *t, int i)
{
	return lr_is(t->r, (size_t)i * LEN, LEN, (uint64_t)i + 1);
}

static bool untouched(const struct three *t, int i)
{
	return lr_clear(t->r, (size_t)i * LEN, LEN);
}

/* All three reported success, in order, each with one frame. */
static void all_well(const struct three *t)
{
	int i;

	assert_int_equal(t->r->eb[0].frames, N);
	for (i = 0; i < N; i++) {
		assert_int_equal(t->w[i]->done, 1);
		assert_int_equal(t->w[i]->status, 0);
		assert_int_equal(t->r->eb[0].types[i], i + 1);
	}
	assert_int_equal(t->r->eb[0].closed + t->r->ea[0].closed, 0);
}

/* Exactly this one fault, once. */
static void counted(struct lr *r, enum kvs_loop_fault k)
{
	struct kvs_loop_faults n = lr_faults(r);
	int i;

	for (i = KVS_LOOP_NO_FAULT + 1; i < KVS_LOOP_FAULT_MAX; i++) {
		if (n.n[i] != (i == (int)k))
			print_error("%s: %llu\n",
				    kvs_loop_fault_name((enum kvs_loop_fault)i),
				    (unsigned long long)n.n[i]);
		assert_int_equal(n.n[i], i == (int)k);
	}
}

static void delay(void **state)
{
	struct three t;
	uint64_t t0;

	(void)state;
	three_ready(&t, &slow);
	lr_script_at(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_DELAY, 50000);
	t0 = lr_now(t.r);
	three_go(&t);
	lr_run_to(t.r, t0 + 51000);
	/* it and what follows it, for exactly so long */
	assert_true(landed(&t, 0) && untouched(&t, 1) && untouched(&t, 2));
	lr_run_to(t.r, t0 + 51000 + 16);
	assert_false(untouched(&t, 1));
	lr_run(t.r);
	assert_true(landed(&t, 1) && landed(&t, 2));
	all_well(&t);
	counted(t.r, KVS_LOOP_DELAY);
	three_free(&t);
}

static void stall(void **state)
{
	uint64_t at;

	(void)state;
	/* before the first byte, and within */
	for (at = 0; at < LEN; at += 100) {
		struct three t;

		three_ready(&t, &slow);
		lr_script_at(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_STALL, at);
		three_go(&t);
		lr_run(t.r);
		assert_true(landed(&t, 0) && untouched(&t, 2));
		assert_true(lr_is(t.r, LEN, at, 2));
		assert_true(lr_clear(t.r, LEN + at, LEN - at));
		assert_int_equal(t.w[0]->done, 1);
		assert_int_equal(t.w[1]->done + t.w[2]->done, 0);
		assert_int_equal(kvs_fabric_next(t.r->f), KVS_TIME_NEVER);
		assert_int_equal(kvs_fabric_release(t.r->f), 1);
		assert_int_equal(kvs_fabric_release(t.r->f), 0);
		lr_run(t.r);
		assert_true(landed(&t, 1) && landed(&t, 2));
		all_well(&t);
		counted(t.r, KVS_LOOP_STALL);
		three_free(&t);
	}
}

/* A held write of a sender that died meanwhile. */
static void stall_outlives(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	/* the loss of the connection is what would end it */
	lr_script_at(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_STALL, 100);
	three_go(&t);
	lr_run(t.r);
	kvs_fabric_kill(t.r->a);
	assert_int_equal(kvs_fabric_release(t.r->f), 1);
	kvs_vclock_advance(&t.r->clk, 999);
	kvs_fabric_run(t.r->f);
	assert_true(landed(&t, 1) && landed(&t, 2));
	assert_int_equal(lr_faults(t.r).orphaned, LEN - 100 + LEN);
	lr_run(t.r);
	assert_int_equal(t.r->eb[0].err, -ECONNRESET);
	three_free(&t);
}

static void reorder(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_WRITE, 3, KVS_LOOP_REORDER);
	three_go(&t);
	lr_run_to(t.r, lr_now(t.r) + 1000 + LEN + LEN / 2);
	assert_true(landed(&t, 0) && untouched(&t, 1));
	assert_false(untouched(&t, 2));
	lr_run(t.r);
	assert_true(landed(&t, 1) && landed(&t, 2));
	assert_int_equal(t.r->eb[0].types[1], 3);
	assert_int_equal(t.r->eb[0].types[2], 2);
	counted(t.r, KVS_LOOP_REORDER);
	three_free(&t);

	/* the first has nothing to overtake */
	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_WRITE, 1, KVS_LOOP_REORDER);
	three_go(&t);
	lr_run(t.r);
	all_well(&t);
	counted(t.r, KVS_LOOP_NO_FAULT);
	three_free(&t);
}

static int wipe(struct lr_end *e, const struct kvs_frame *f)
{
	if (kvs_get16(f->type) == 2)
		memset(e->r->mem + LEN, 0, LEN);
	return 0;
}

static void duplicate_write(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	t.r->eb[0].on_frame = wipe;
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_DUPLICATE);
	three_go(&t);
	lr_run_to(t.r, lr_now(t.r) + 1000 + 2 * LEN);
	assert_int_equal(t.w[1]->done, 1);
	assert_true(untouched(&t, 1));
	/* the sender has its memory back */
	memset(t.w[1]->src, 0xff, LEN);
	lr_run(t.r);
	assert_true(landed(&t, 1) && landed(&t, 2));
	all_well(&t);
	assert_int_equal(lr_faults(t.r).n[KVS_LOOP_DUPLICATE], 1);
	assert_int_equal(lr_faults(t.r).landed, 4 * LEN);
	three_free(&t);

	/* after its grant it is a stray packet, and nothing else */
	three_ready(&t, NULL);
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_DUPLICATE);
	three_go(&t);
	kvs_transport_poll(t.r->b, 0);
	kvs_grant_close(t.g.g);
	kvs_transport_poll(t.r->b, 0);
	assert_int_equal(t.g.closed, 1);
	memset(t.r->mem, 0, LR_MEM);
	lr_run(t.r);
	assert_true(lr_clear(t.r, 0, LR_MEM));
	assert_int_equal(lr_faults(t.r).refused_late, 1);
	all_well(&t);
	three_free(&t);
}

static void duplicate_frame(void **state)
{
	static const uint16_t want[2][4] = { { 1, 2, 2, 3 }, { 1, 2, 3, 2 } };
	int i;

	(void)state;
	for (i = 0; i < 2; i++) {
		struct three t;
		int k;

		three_ready(&t, &slow);
		lr_script(t.r, i ? KVS_LOOP_FRAME : KVS_LOOP_WRITE, 2,
			  i ? KVS_LOOP_DUPLICATE : KVS_LOOP_REPEAT);
		if (i)
			for (k = 1; k <= 3; k++)
				lr_send(t.r->ea[0].c, (uint16_t)k, 32);
		else
			three_go(&t);
		lr_run(t.r);
		assert_int_equal(t.r->eb[0].frames, 4);
		/* behind whatever was queued when it was handled */
		for (k = 0; k < 4; k++)
			assert_int_equal(t.r->eb[0].types[k], want[i][k]);
		counted(t.r, i ? KVS_LOOP_DUPLICATE : KVS_LOOP_REPEAT);
		three_free(&t);
	}
}

static void drop(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_DROP);
	three_go(&t);
	lr_run(t.r);
	assert_true(landed(&t, 0) && untouched(&t, 1) && landed(&t, 2));
	all_well(&t);
	counted(t.r, KVS_LOOP_DROP);
	three_free(&t);

	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_FRAME, 2, KVS_LOOP_DROP);
	lr_send(t.r->ea[0].c, 1, 32);
	lr_send(t.r->ea[0].c, 2, 32);
	lr_send(t.r->ea[0].c, 3, 32);
	lr_run(t.r);
	assert_int_equal(t.r->eb[0].frames, 2);
	assert_int_equal(t.r->eb[0].types[1], 3);
	assert_int_equal(t.r->eb[0].closed, 0);
	counted(t.r, KVS_LOOP_DROP);
	three_free(&t);
}

static void short_end(void **state)
{
	uint64_t at;

	(void)state;
	for (at = 0; at < LEN; at += 133) {
		struct three t;

		three_ready(&t, &slow);
		lr_script_at(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_SHORT, at);
		three_go(&t);
		lr_run(t.r);
		assert_true(landed(&t, 0) && landed(&t, 2));
		assert_true(lr_is(t.r, LEN, at, 2));
		assert_true(lr_clear(t.r, LEN + at, LEN - at));
		all_well(&t);
		counted(t.r, KVS_LOOP_SHORT);
		three_free(&t);
	}
}

static void overtaken(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_OVERTAKE);
	three_go(&t);
	lr_run_to(t.r, lr_now(t.r) + 1000 + 2 * LEN);
	assert_int_equal(t.w[1]->done, 1);
	assert_int_equal(t.w[1]->status, 0);
	assert_int_equal(t.r->eb[0].frames, 2);
	assert_true(untouched(&t, 1));
	memset(t.w[1]->src, 0xff, LEN);
	lr_run(t.r);
	assert_true(landed(&t, 1) && landed(&t, 2));
	all_well(&t);
	counted(t.r, KVS_LOOP_OVERTAKE);
	three_free(&t);
}

static void late(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_LATE);
	three_go(&t);
	lr_run(t.r);
	assert_int_equal(t.w[1]->done + t.w[2]->done, 0);
	/* nothing but the grant's end lets it try */
	assert_int_equal(kvs_fabric_release(t.r->f), 0);
	kvs_grant_close(t.g.g);
	lr_run(t.r);
	assert_int_equal(t.g.close_status, 0);
	assert_memory_equal(t.g.after, t.r->mem, LR_MEM);
	assert_true(landed(&t, 0) && untouched(&t, 1) && untouched(&t, 2));
	assert_int_equal(t.w[1]->status, -EREMOTEIO);
	assert_true(t.w[2]->status < 0);
	assert_int_equal(t.r->eb[0].err, -EACCES);
	counted(t.r, KVS_LOOP_LATE);
	assert_int_equal(lr_faults(t.r).refused_late, 1);
	three_free(&t);
}

static void crash(void **state)
{
	int who;

	(void)state;
	for (who = 0; who < 2; who++) {
		struct three t;

		three_ready(&t, &slow);
		lr_script_at(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_CRASH,
			     (uint64_t)who);
		three_go(&t);
		lr_run(t.r);
		assert_int_equal(t.r->crashes, 1);
		assert_ptr_equal(t.r->crashed, who ? t.r->b : t.r->a);
		assert_true(kvs_fabric_killed(t.r->crashed));
		assert_true(landed(&t, 0));
		/* the dead see nothing, the others a reset */
		assert_int_equal(t.r->ea[0].closed, who);
		assert_int_equal(t.r->eb[0].closed, !who);
		assert_int_equal(who ? t.r->ea[0].err : t.r->eb[0].err,
				 -ECONNRESET);
		/* what was launched lands, except in the dead */
		assert_int_equal(landed(&t, 1), !who);
		assert_int_equal(untouched(&t, 1), who);
		counted(t.r, KVS_LOOP_CRASH);
		three_free(&t);
	}
}

static void reset(void **state)
{
	struct three t;

	(void)state;
	three_ready(&t, &slow);
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_RESET);
	three_go(&t);
	lr_run(t.r);
	/* what is under way lands until the receiver has closed its side */
	assert_true(landed(&t, 0) && !landed(&t, 1) && untouched(&t, 2));
	assert_int_equal(t.r->ea[0].err, -ECONNRESET);
	assert_int_equal(t.r->eb[0].err, -ECONNRESET);
	assert_int_equal(t.w[0]->status, 0);
	assert_true(t.w[1]->done == 1 && t.w[1]->status < 0);
	assert_true(t.w[2]->done == 1 && t.w[2]->status < 0);
	counted(t.r, KVS_LOOP_RESET);
	three_free(&t);
}

/* Every altered header ends the connection, none reads past its buffer. */
static void lie_frames(void **state)
{
	unsigned int longer = 0;
	unsigned int payloads = 0;
	unsigned int refused = 0;
	uint64_t at;

	(void)state;
	for (at = 0; at < 400; at++) {
		struct three t;

		three_ready(&t, NULL);
		if (at % 4 < 2) {
			lr_script_at(t.r, KVS_LOOP_FRAME, 1, KVS_LOOP_LIE, at);
			lr_send(t.r->ea[0].c, 1, 64);
		} else {
			lr_script_at(t.r, KVS_LOOP_WRITE, 1, KVS_LOOP_LIE, at);
			assert_int_equal(lr_write(t.r, 0, t.w[0]), 0);
		}
		lr_run(t.r);
		assert_int_equal(t.r->ea[0].closed, 1);
		assert_int_equal(t.r->eb[0].closed, 1);
		assert_true(t.r->eb[0].err < 0);
		longer += (unsigned int)t.r->eb[0].frames;
		payloads += (unsigned int)t.r->eb[0].payloads;
		refused += !t.r->eb[0].frames && !t.r->eb[0].payloads;
		assert_int_equal(t.r->eb[0].payloads, t.r->eb[0].payloads_done);
		assert_true(t.r->eb[0].payload_status <= 0);
		counted(t.r, KVS_LOOP_LIE);
		three_free(&t);
	}
	print_message("%u delivered, %u with payloads, %u refused\n", longer,
		      payloads, refused);
	assert_true(longer > 20 && payloads > 20 && refused > 5);
}

static void lie_payloads(void **state)
{
	unsigned int whole = 0;
	unsigned int cut = 0;
	uint64_t at;

	(void)state;
	for (at = 0; at < 200; at++) {
		struct three t;
		struct kvs_frame *f;

		three_ready(&t, &slow);
		t.w[0]->tx.one_sided = false;
		f = (void *)t.w[0]->tx.frame;
		f->payload = kvs_put32(LEN);
		lr_script_at(t.r, KVS_LOOP_PAYLOAD, 1, KVS_LOOP_LIE, at);
		assert_int_equal(lr_write(t.r, 0, t.w[0]), 0);
		lr_run(t.r);
		assert_int_equal(t.r->eb[0].payloads, t.r->eb[0].payloads_done);
		assert_int_equal(t.r->ea[0].closed, 1);
		assert_int_equal(t.r->eb[0].closed, 1);
		assert_true(t.r->eb[0].err < 0);
		assert_true(t.w[0]->done == 1 && t.w[0]->status < 0);
		whole += t.r->eb[0].payloads && !t.r->eb[0].payload_status;
		cut += t.r->eb[0].payload_status < 0;
		counted(t.r, KVS_LOOP_LIE);
		three_free(&t);
	}
	assert_true(whole > 0 && cut > 20);
}

static void grants_fail(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_write *w;
	struct lr_grant g;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_script(r, KVS_LOOP_OPEN, 1, KVS_LOOP_OPEN_FAILS);
	assert_int_equal(lr_grant_start(r, &g, LR_OWNER, 0, 64, 1), 0);
	lr_run(r);
	assert_int_equal(g.opened, 1);
	assert_true(g.open_status < 0);
	counted(r, KVS_LOOP_OPEN_FAILS);

	lr_grant(r, &g, LR_OWNER, 0, 64, 1);
	lr_script_at(r, KVS_LOOP_CLOSE, 1, KVS_LOOP_CLOSE_FAILS, 3);
	kvs_grant_close(g.g);
	lr_run(r);
	assert_int_equal(g.closed, 1);
	assert_true(g.close_status < 0);
	/* nothing was proven, and rightly so */
	w = lr_write_new(r, &g.key[0], 0, 64, 3, 8);
	assert_int_equal(lr_write(r, 0, w), 0);
	lr_run(r);
	assert_int_equal(w->status, 0);
	assert_true(lr_is(r, 0, 64, 8));
	lr_write_free(w);
	g.again = true;
	kvs_grant_close(g.g);
	lr_run(r);
	assert_int_equal(g.closed, 4);
	assert_int_equal(g.close_status, 0);
	assert_int_equal(g.proof, KVS_GRANT_INVALIDATED);
	assert_int_equal(lr_faults(r).n[KVS_LOOP_CLOSE_FAILS], 3);
	lr_free(r);
}

static void grants_delayed(void **state)
{
	struct lr *r = lr_new(1, NULL);
	struct lr_grant g, other;
	uint64_t t0 = lr_now(r);

	(void)state;
	lr_script_at(r, KVS_LOOP_OPEN, 1, KVS_LOOP_DELAY, 500);
	assert_int_equal(lr_grant_start(r, &g, LR_OWNER, 0, 64, 1), 0);
	assert_int_equal(lr_grant_start(r, &other, LR_OWNER, 0, 64, 1), 0);
	lr_run_to(r, t0 + 499);
	assert_int_equal(g.opened, 0);
	assert_int_equal(other.opened, 1);
	lr_run(r);
	assert_int_equal(g.opened, 1);
	assert_int_equal(lr_now(r), t0 + 500);
	lr_free(r);
}

/* What the plan strikes a read with. */
static void read_done(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	(void)c;
	*(int *)rd->user = status;
}

static void reads(void **state)
{
	static const enum kvs_loop_fault kinds[] = {
		KVS_LOOP_STALL,
		KVS_LOOP_SHORT,
		KVS_LOOP_DROP,
		KVS_LOOP_RESET,
	};
	unsigned char dst[LEN];
	size_t k;

	(void)state;
	for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
		struct lr *r = lr_new(1, &slow);
		struct lr_grant g;
		struct kvs_read rd = { .addr = dst,
				       .len = LEN,
				       .done = read_done };
		int status = 1;

		rd.user = &status;
		memset(r->mem, 7, LR_MEM);
		memset(dst, 0, LEN);
		lr_dial(r, 0, LR_OWNER);
		lr_grant(r, &g, LR_OWNER, 0, LEN, 1);
		rd.remote = g.key[0];
		lr_script_at(r, KVS_LOOP_READ, 1, kinds[k], 100);
		assert_int_equal(kvs_conn_read(r->ea[0].c, &rd), 0);
		lr_run(r);
		switch ((int)kinds[k]) {
		case KVS_LOOP_STALL:
			assert_int_equal(status, 1);
			assert_true(dst[99] == 7 && !dst[100]);
			assert_int_equal(kvs_fabric_release(r->f), 1);
			lr_run(r);
			assert_int_equal(status, 0);
			assert_int_equal(dst[LEN - 1], 7);
			break;
		case KVS_LOOP_SHORT:
			assert_int_equal(status, 0);
			assert_true(dst[99] == 7 && !dst[100]);
			break;
		case KVS_LOOP_DROP:
			assert_int_equal(status, 0);
			assert_int_equal(dst[0], 0);
			break;
		default:
			assert_int_equal(status, -ECONNRESET);
			break;
		}
		counted(r, kinds[k]);
		lr_free(r);
	}
}

/* ---- chances ---- */

static const struct kvs_loop_plan storm = {
	.latency_min = 100,
	.latency_max = 5000,
	.bytes_per_sec = 500000000,
	.split_max = 64,
	.reset = 0.002,
	.stall = 0.05,
	.delay = 0.05,
	.reorder = 0.1,
	.duplicate = 0.05,
	.drop = 0.05,
	.short_end = 0.05,
	.overtake = 0.05,
	.late = 0.03,
	.crash = 0.02,
	.lie = 0.02,
	.open_fails = 0.05,
	.close_fails = 0.2,
	.delay_max = 20000,
	.close_fails_n = 2,
};

enum { GRANTS = 4, WRITES = 24, SLOT = LR_MEM / 8 };

static void pull_done(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	(void)c;
	(void)status;
	++*(int *)rd->user;
	/* for the address sanitizer to see who still writes there */
	free(rd->addr);
	rd->addr = NULL;
}

/* A read of a granted slot, or a frame, now and then. */
static void others(struct lr *r, struct kvs_rng *rng, struct kvs_read *rd,
		   int *owed, int *done, const struct kvs_grant_key *k)
{
	struct kvs_conn *c = r->ea[kvs_rng_below(rng, 2)].c;
	static unsigned char frame[32];
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.len = kvs_put32(sizeof(frame)),
	};

	if (!c || kvs_rng_below(rng, 3))
		return;
	memcpy(frame, &f, sizeof(f));
	(void)kvs_conn_send(c, (const void *)frame);
	*rd = (struct kvs_read){
		.addr = malloc(SLOT),
		.len = SLOT,
		.remote = *k,
		.done = pull_done,
		.user = done,
	};
	if (kvs_conn_read(c, rd)) {
		free(rd->addr);
		rd->addr = NULL;
		return;
	}
	++*owed;
}

/* Grants at every second slot; writes at random; closes at random times. */
static char *storm_run(uint64_t seed, struct kvs_loop_faults *sum)
{
	struct lr *r = lr_new(seed, &storm);
	struct lr_write *w[WRITES] = { 0 };
	struct kvs_read rd[WRITES] = { 0 };
	struct lr_grant g[GRANTS];
	struct kvs_loop_faults n;
	struct kvs_rng rng;
	int owed = 0;
	int done = 0;
	char *log;
	int i;

	kvs_rng_init(&rng, seed + 1);
	for (i = 0; i < 2; i++)
		lr_dial(r, i, LR_OWNER);
	for (i = 0; i < GRANTS; i++) {
		assert_int_equal(lr_grant_start(r, &g[i], LR_OWNER,
						(size_t)(2 * i) * SLOT, SLOT,
						1),
				 kvs_fabric_killed(r->b) ? -ESHUTDOWN : 0);
		g[i].again = true;
	}
	lr_run(r);
	for (i = 0; i < WRITES; i++) {
		int k = (int)kvs_rng_below(&rng, GRANTS);
		int c = (int)kvs_rng_below(&rng, 2);
		uint64_t off = kvs_rng_below(&rng, SLOT);

		w[i] = lr_write_new(r, &g[k].key[0], off,
				    kvs_rng_below(&rng, SLOT - off + 1), 1,
				    (uint64_t)i);
		w[i]->once = true;
		if (!r->ea[c].c || lr_write(r, c, w[i])) {
			lr_write_free(w[i]);
			w[i] = NULL;
		}
		others(r, &rng, &rd[i], &owed, &done, &g[k].key[0]);
		if (!kvs_rng_below(&rng, 4))
			lr_run_to(r, lr_now(r) + kvs_rng_below(&rng, 3000));
		if (!kvs_rng_below(&rng, 6) && g[k].g && g[k].opened)
			kvs_grant_close(g[k].g);
		if (!kvs_rng_below(&rng, 8))
			kvs_fabric_release(r->f);
	}
	lr_run(r);
	for (i = 0; i < GRANTS; i++)
		if (g[i].g && g[i].opened)
			kvs_grant_close(g[i].g);
	lr_run(r);
	do
		lr_run(r);
	while (kvs_fabric_release(r->f));
	kvs_transport_destroy(r->a);
	kvs_transport_destroy(r->b);
	for (i = 0; i < GRANTS; i++) {
		/* between the grants nothing, and after closed(0) nothing */
		assert_true(lr_clear(r, (size_t)(2 * i + 1) * SLOT, SLOT));
		assert_null(g[i].g);
		if (g[i].closed && !g[i].close_status)
			assert_memory_equal(g[i].after + 2 * i * SLOT,
					    r->mem + 2 * i * SLOT, SLOT);
	}
	assert_int_equal(done, owed);
	for (i = 0; i < WRITES; i++) {
		free(rd[i].addr);
		if (!w[i])
			continue;
		assert_int_equal(w[i]->done, 1);
		lr_write_free(w[i]);
	}
	n = lr_faults(r);
	for (i = 0; i < KVS_LOOP_FAULT_MAX; i++)
		sum->n[i] += n.n[i];
	sum->refused_late += n.refused_late;
	sum->orphaned += n.orphaned;
	log = strdup(lr_log(r));
	assert_int_equal(kvs_loop_create(r->f, "a", &r->a), 0);
	assert_int_equal(kvs_loop_create(r->f, "b", &r->b), 0);
	lr_free(r);
	return log;
}

static uint64_t first_seed(void)
{
	const char *s = getenv("KVS_TEST_SEED");
	uint64_t seed;

	return s && !kvs_parse_u64(s, &seed) ? seed : 1;
}

static void chances(void **state)
{
	struct kvs_loop_faults sum = { 0 };
	uint64_t from = first_seed();
	uint64_t seed;
	int i;

	(void)state;
	for (seed = from; seed < from + 400; seed++) {
		/* what fails below is this: KVS_TEST_SEED=<last one> */
		if (seed == from || seed % 100 == 0)
			print_message("seed %llu\n", (unsigned long long)seed);
		free(storm_run(seed, &sum));
	}
	for (i = KVS_LOOP_NO_FAULT + 1; i < KVS_LOOP_FAULT_MAX; i++) {
		print_message("%s: %llu\n",
			      kvs_loop_fault_name((enum kvs_loop_fault)i),
			      (unsigned long long)sum.n[i]);
		assert_true(sum.n[i] > 1);
	}
	assert_true(sum.refused_late > 5);
	assert_true(sum.orphaned > 5);
}

static void determinism(void **state)
{
	struct kvs_loop_faults one = { 0 };
	struct kvs_loop_faults two = { 0 };
	char *other = NULL;
	uint64_t seed;

	(void)state;
	for (seed = 1; seed < 50; seed++) {
		char *a = storm_run(seed, &one);
		char *b = storm_run(seed, &two);

		assert_string_equal(a, b);
		if (other)
			assert_string_not_equal(a, other);
		free(other);
		free(b);
		other = a;
	}
	free(other);
	assert_memory_equal(&one, &two, sizeof(one));
}

static void names(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < KVS_LOOP_FAULT_MAX; i++)
		assert_string_not_equal(
			kvs_loop_fault_name((enum kvs_loop_fault)i), "?");
	assert_string_equal(kvs_loop_fault_name(KVS_LOOP_FAULT_MAX), "?");
	assert_string_equal(kvs_loop_fault_name(KVS_LOOP_LATE), "late");
}

/* A plan may change on the way; a hook may say that nothing strikes. */
static void plan_changes(void **state)
{
	struct kvs_loop_plan bad = { .latency_min = 5, .latency_max = 4 };
	struct kvs_loop_plan drops = { .drop = 1 };
	struct three t;

	(void)state;
	three_ready(&t, NULL);
	assert_int_equal(kvs_fabric_set_plan(t.r->f, &bad), -EINVAL);
	assert_int_equal(kvs_fabric_set_plan(t.r->f, &drops), 0);
	/* open fails cannot strike a write: nothing does, not even the plan */
	lr_script(t.r, KVS_LOOP_WRITE, 2, KVS_LOOP_OPEN_FAILS);
	three_go(&t);
	lr_run(t.r);
	assert_true(untouched(&t, 0) && landed(&t, 1) && untouched(&t, 2));
	all_well(&t);
	three_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(delay),
		cmocka_unit_test(stall),
		cmocka_unit_test(stall_outlives),
		cmocka_unit_test(reorder),
		cmocka_unit_test(duplicate_write),
		cmocka_unit_test(duplicate_frame),
		cmocka_unit_test(drop),
		cmocka_unit_test(short_end),
		cmocka_unit_test(overtaken),
		cmocka_unit_test(late),
		cmocka_unit_test(crash),
		cmocka_unit_test(reset),
		cmocka_unit_test(lie_frames),
		cmocka_unit_test(lie_payloads),
		cmocka_unit_test(grants_fail),
		cmocka_unit_test(grants_delayed),
		cmocka_unit_test(reads),
		cmocka_unit_test(plan_changes),
		cmocka_unit_test(chances),
		cmocka_unit_test(determinism),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
