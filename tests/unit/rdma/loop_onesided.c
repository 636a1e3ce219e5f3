/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims for grants, one-sided writes and reads (rdma/grant.h, transport.h) as
 * the in-process fabric keeps them: a write lands where its key says, whole,
 * before its frame, in the order of its connection; nothing is reached without
 * an open key, by another owner, or past a range, and who tries ends his
 * connection; a launched write outlives its sender and ends with the far side
 * of the connection or with its grant; after closed(0) not a byte changes; no
 * callback comes from inside a call; each close is answered once.
 */
#include "tests/unit/rdma/loop_rig.h"

static const struct kvs_loop_plan slow = {
	.latency_min = 1000,
	.latency_max = 1000,
	.bytes_per_sec = 1000000000, /* one a ns */
	.split_max = 16,
};

static int whole_before_frame(struct lr_end *e, const struct kvs_frame *f)
{
	(void)f;
	assert_true(lr_is(e->r, 128, 300, 5));
	return 0;
}

static void lands(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_grant g;
	struct lr_write *w;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_grant(r, &g, LR_OWNER, 64, 512, 2);
	r->eb[0].on_frame = whole_before_frame;
	w = lr_write_new(r, &g.key[0], 64, 300, 9, 5);
	assert_int_equal(lr_write(r, 0, w), 0);
	lr_run_to(r, lr_now(r) + 1100);
	/* observably half done: nothing is told yet */
	assert_true(lr_is(r, 128, 80, 5));
	assert_true(lr_clear(r, 428 - 16, 16));
	assert_int_equal(w->done + r->eb[0].frames, 0);
	lr_run(r);
	assert_true(lr_is(r, 128, 300, 5));
	assert_true(lr_clear(r, 0, 128));
	assert_true(lr_clear(r, 428, LR_MEM - 428));
	assert_int_equal(w->done, 1);
	assert_int_equal(w->status, 0);
	assert_int_equal(r->eb[0].frames, 1);
	assert_int_equal(r->eb[0].types[0], 9);
	assert_int_equal(r->eb[0].payloads, 0);
	assert_int_equal(lr_faults(r).landed, 300);
	lr_write_free(w);

	/* exactly all of the second range; then nothing at all, with a frame */
	w = lr_write_new(r, &g.key[1], 0, 512, 10, 6);
	r->eb[0].on_frame = NULL;
	assert_int_equal(lr_write(r, 0, w), 0);
	lr_run(r);
	assert_int_equal(w->status, 0);
	assert_true(lr_is(r, 64 + 512, 512, 6));
	lr_write_free(w);
	w = lr_write_new(r, &g.key[1], 0, 0, 11, 6);
	assert_int_equal(lr_write(r, 0, w), 0);
	lr_run(r);
	assert_int_equal(w->done, 1);
	assert_int_equal(r->eb[0].types[2], 11);
	lr_write_free(w);
	lr_free(r);
}

static void order(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_write *w[3];
	struct lr_grant g;
	int i;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_grant(r, &g, LR_OWNER, 0, LR_MEM, 1);
	for (i = 0; i < 3; i++) {
		/* the same place: the last one must win */
		w[i] = lr_write_new(r, &g.key[0], 0, 500 - (size_t)i * 100,
				    (uint16_t)(10 * i), (uint64_t)i);
		assert_int_equal(lr_write(r, 0, w[i]), 0);
		lr_send(r->ea[0].c, (uint16_t)(10 * i + 1), 32);
	}
	lr_run(r);
	assert_int_equal(r->eb[0].frames, 6);
	for (i = 0; i < 6; i++)
		assert_int_equal(r->eb[0].types[i], i / 2 * 10 + i % 2);
	assert_true(lr_is(r, 0, 300, 2));
	for (i = 0; i < 3; i++)
		lr_write_free(w[i]);
	lr_free(r);
}

/* What may not land: by what it breaks. */
enum bad { KEY, ZERO, OWNER, NONE, BEFORE, PAST, LONG, WRAP, OTHER, N_BAD };

static void one_refusal(enum bad bad)
{
	static const char *const name[] = {
		"key",
		"key 0",
		"owner",
		"no owner",
		"before the range",
		"past it",
		"length",
		"wrap",
		"other endpoint",
	};
	struct lr *r = lr_new(1, &slow);
	struct lr_write *w, *behind;
	struct lr_grant g;
	struct kvs_grant_key k;
	uint64_t off = 0;
	size_t len = 64;

	print_message("refused: %s\n", name[bad]);
	lr_dial(r, 0, bad == OWNER ? LR_OWNER + 1 : bad == NONE ? 0 : LR_OWNER);
	lr_grant(r, &g, LR_OWNER, 1024, 256, 1);
	k = g.key[0];
	if (bad == KEY)
		k.rkey ^= 1;
	if (bad == ZERO)
		k.rkey = 0;
	if (bad == BEFORE)
		off = (uint64_t)-1;
	if (bad == PAST)
		off = 256 - 63;
	if (bad == LONG)
		len = 257;
	if (bad == WRAP)
		k.addr = UINT64_MAX - 10;
	if (bad == OTHER) {
		/* b's key, but the write goes to a */
		kvs_conn_set_owner(r->ea[0].c, LR_OWNER);
	}
	w = lr_write_new(r, &k, off, len, 1, 1);
	behind = lr_write_new(r, &g.key[0], 0, 64, 2, 2);
	if (bad == OTHER) {
		assert_int_equal(kvs_conn_write(r->eb[0].c, &w->tx), 0);
		assert_int_equal(kvs_conn_write(r->eb[0].c, &behind->tx), 0);
	} else {
		assert_int_equal(lr_write(r, 0, w), 0);
		assert_int_equal(lr_write(r, 0, behind), 0);
	}
	lr_run(r);
	assert_true(lr_clear(r, 0, LR_MEM));
	assert_int_equal(w->done, 1);
	assert_int_equal(w->status, -EREMOTEIO);
	assert_int_equal(behind->done, 1);
	assert_true(behind->status < 0);
	assert_int_equal(r->ea[0].closed, 1);
	assert_int_equal(r->eb[0].closed, 1);
	assert_int_equal(r->ea[0].err, bad == OTHER ? -EACCES : -EREMOTEIO);
	assert_int_equal(r->eb[0].err, bad == OTHER ? -EREMOTEIO : -EACCES);
	assert_int_equal(r->eb[0].frames, 0);
	assert_int_equal(lr_faults(r).refused, 1);
	assert_int_equal(lr_faults(r).refused_late, 0);
	lr_write_free(w);
	lr_write_free(behind);
	lr_free(r);
}

static void refused(void **state)
{
	int bad;

	(void)state;
	for (bad = 0; bad < N_BAD; bad++)
		one_refusal((enum bad)bad);
}

/* Its writer dies, or closes and uses its memory again: the bytes land. */
static void outlives(void **state)
{
	int how;

	(void)state;
	for (how = 0; how < 2; how++) {
		struct lr *r = lr_new(1, &slow);
		struct lr_write *w;
		struct lr_grant g;

		lr_dial(r, 0, LR_OWNER);
		lr_grant(r, &g, LR_OWNER, 0, 1024, 1);
		w = lr_write_new(r, &g.key[0], 0, 1000, 3, 8);
		assert_int_equal(lr_write(r, 0, w), 0);
		/* the loss takes 1000 ns to show: as long as the write to begin */
		lr_run_to(r, lr_now(r) + 1500);
		assert_true(lr_clear(r, 600, 424));
		if (how) {
			kvs_fabric_kill(r->a);
			kvs_transport_destroy(r->a);
			assert_int_equal(kvs_loop_create(r->f, "a", &r->a), 0);
		} else {
			kvs_conn_close(r->ea[0].c, -EBUSY, false);
			kvs_transport_poll(r->a, 0);
		}
		assert_int_equal(r->ea[0].closed, 1);
		assert_int_equal(w->done, 1);
		assert_true(w->status < 0);
		memset(w->src, 0, w->len);
		lr_write_free(w);
		lr_run_to(r, lr_now(r) + 600);
		assert_int_equal(r->eb[0].closed, 0);
		assert_true(lr_is(r, 0, 1000, 8));
		assert_int_equal(r->eb[0].frames, 1);
		assert_true(lr_faults(r).orphaned >= 400);
		lr_run(r);
		assert_int_equal(r->eb[0].closed, 1);
		lr_free(r);
	}
}

/* The receiving side's closed() is the end of what it let through. */
static void ends_with_receiver(void **state)
{
	unsigned char copy[LR_MEM];
	int how;

	(void)state;
	for (how = 0; how < 2; how++) {
		struct lr *r = lr_new(1, &slow);
		struct lr_write *w;
		struct lr_grant g;

		lr_dial(r, 0, LR_OWNER);
		lr_grant(r, &g, LR_OWNER, 0, 1024, 1);
		w = lr_write_new(r, &g.key[0], 0, 1000, 3, 8);
		assert_int_equal(lr_write(r, 0, w), 0);
		lr_run_to(r, lr_now(r) + 1500);
		if (how) {
			kvs_fabric_kill(r->b);
		} else {
			kvs_conn_close(r->eb[0].c, -EBUSY, false);
			/* asked for is not done: it still lands */
			kvs_vclock_advance(&r->clk, 100);
			kvs_fabric_run(r->f);
			assert_true(lr_is(r, 0, 590, 8));
			kvs_transport_poll(r->b, 0);
			assert_int_equal(r->eb[0].closed, 1);
		}
		memcpy(copy, r->mem, LR_MEM);
		assert_true(lr_clear(r, 700, 300));
		lr_run(r);
		assert_memory_equal(copy, r->mem, LR_MEM);
		assert_int_equal(w->done, 1);
		assert_true(w->status < 0);
		assert_int_equal(r->ea[0].closed, 1);
		lr_write_free(w);
		lr_free(r);
	}
}

static void close_stops(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_write *w;
	struct lr_grant g;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_grant(r, &g, LR_OWNER, 0, 4096, 1);
	w = lr_write_new(r, &g.key[0], 0, 4096, 3, 8);
	assert_int_equal(lr_write(r, 0, w), 0);
	lr_run_to(r, lr_now(r) + 1500);
	kvs_grant_close(g.g);
	kvs_grant_close(g.g);
	assert_int_equal(g.closed, 0);
	assert_true(lr_clear(r, 600, 100));
	lr_run_to(r, lr_now(r) + 900);
	/* until the answer it may go on, and does */
	assert_int_equal(g.closed, 0);
	assert_true(lr_is(r, 0, 1300, 8));
	lr_run(r);
	assert_int_equal(g.closed, 1);
	assert_int_equal(g.close_status, 0);
	assert_int_equal(g.proof, KVS_GRANT_INVALIDATED);
	assert_memory_equal(g.after, r->mem, LR_MEM);
	assert_true(lr_clear(r, 2000, 2096));
	assert_int_equal(w->status, -EREMOTEIO);
	assert_int_equal(r->eb[0].frames, 0);
	assert_int_equal(r->eb[0].err, -EACCES);
	assert_int_equal(lr_faults(r).refused_late, 1);
	lr_write_free(w);
	lr_free(r);
}

/* Keys work between opened(0) and closed(0), not before and not after. */
static void only_while_open(void **state)
{
	struct lr *r = lr_new(1, NULL);
	struct lr_write *w;
	struct lr_grant g;
	struct lr_grant other;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_dial(r, 1, LR_OWNER);
	assert_int_equal(lr_grant_start(r, &g, LR_OWNER, 0, 64, 1), 0);
	w = lr_write_new(r, &g.key[0], 0, 64, 3, 8);
	assert_int_equal(lr_write(r, 0, w), 0);
	kvs_fabric_run(r->f);
	lr_run(r);
	assert_int_equal(w->status, -EREMOTEIO);
	assert_true(lr_clear(r, 0, 64));
	lr_write_free(w);

	lr_grant(r, &other, LR_OWNER, 64, 64, 1);
	kvs_grant_close(g.g);
	lr_run(r);
	assert_int_equal(g.closed, 1);
	/* the other grant of the same owner is not touched by that */
	w = lr_write_new(r, &other.key[0], 0, 64, 3, 9);
	assert_int_equal(lr_write(r, 1, w), 0);
	lr_run(r);
	assert_int_equal(w->status, 0);
	assert_true(lr_is(r, 64, 64, 9));
	lr_write_free(w);
	w = lr_write_new(r, &g.key[0], 0, 64, 3, 8);
	assert_int_equal(lr_write(r, 1, w), 0);
	lr_run(r);
	assert_int_equal(w->status, -EREMOTEIO);
	assert_true(lr_clear(r, 0, 64));
	assert_int_equal(lr_faults(r).refused_late, 0);
	lr_write_free(w);
	lr_free(r);
}

static void close_while_opening(void **state)
{
	int fails;

	(void)state;
	for (fails = 0; fails < 2; fails++) {
		struct lr *r = lr_new(1, &slow);
		struct lr_grant g;

		lr_dial(r, 0, LR_OWNER);
		if (fails)
			lr_script(r, KVS_LOOP_OPEN, 1, KVS_LOOP_OPEN_FAILS);
		assert_int_equal(lr_grant_start(r, &g, LR_OWNER, 0, 64, 1), 0);
		kvs_grant_close(g.g);
		kvs_grant_close(g.g);
		assert_int_equal(g.opened + g.closed, 0);
		lr_run(r);
		assert_int_equal(g.opened, 0);
		assert_int_equal(g.closed, 1);
		assert_int_equal(g.close_status, 0);
		assert_int_equal(g.proof, KVS_GRANT_INVALIDATED);
		lr_free(r);
	}
}

/* Without a connection of the owner it succeeds whatever the plan says. */
static void torn_down(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_grant g;
	struct lr_grant never;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_dial(r, 1, LR_OWNER + 1);
	lr_grant(r, &g, LR_OWNER, 0, 64, 1);
	lr_grant(r, &never, LR_OWNER + 2, 64, 64, 1);
	lr_script_at(r, KVS_LOOP_CLOSE, 1, KVS_LOOP_CLOSE_FAILS, UINT32_MAX);
	kvs_grant_close(g.g);
	lr_run(r);
	assert_int_equal(g.closed, 1);
	assert_int_equal(g.close_status, -EIO);
	kvs_grant_close(g.g);
	lr_run(r);
	assert_int_equal(g.closed, 2);
	assert_int_equal(g.close_status, -EIO);

	kvs_conn_close(r->eb[0].c, -ETIME, false);
	lr_run(r);
	kvs_grant_close(g.g);
	assert_int_equal(g.closed, 2);
	lr_run(r);
	assert_int_equal(g.closed, 3);
	assert_int_equal(g.close_status, 0);
	assert_int_equal(g.proof, KVS_GRANT_TORN_DOWN);
	kvs_grant_close(never.g);
	lr_run(r);
	assert_int_equal(never.proof, KVS_GRANT_TORN_DOWN);
	assert_int_equal(r->eb[1].closed, 0);
	lr_free(r);
}

static void left_at_destroy(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct kvs_grant *ret;
	static const struct kvs_grant_ops ops;
	struct kvs_grant_range v = { .addr = r, .len = 1 };
	struct lr_grant open, opening, closing, asked;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_grant(r, &open, LR_OWNER, 0, 64, 1);
	lr_grant(r, &closing, LR_OWNER, 64, 64, 1);
	assert_int_equal(lr_grant_start(r, &opening, LR_OWNER, 128, 64, 1), 0);
	assert_int_equal(lr_grant_start(r, &asked, LR_OWNER, 192, 64, 1), 0);
	kvs_grant_close(closing.g);
	kvs_grant_close(asked.g);
	kvs_fabric_kill(r->b);
	assert_int_equal(kvs_grant_open(r->b, 1, &v, 1, &ops, NULL, &ret),
			 -ESHUTDOWN);
	kvs_transport_destroy(r->b);
	assert_int_equal(open.closed, 1);
	assert_int_equal(open.close_status, 0);
	assert_int_equal(open.proof, KVS_GRANT_TORN_DOWN);
	assert_int_equal(closing.closed, 1);
	assert_int_equal(closing.close_status, 0);
	assert_int_equal(opening.opened, 1);
	assert_int_equal(opening.open_status, -ESHUTDOWN);
	assert_int_equal(asked.opened, 0);
	assert_int_equal(asked.closed, 1);
	assert_int_equal(kvs_loop_create(r->f, "b", &r->b), 0);
	lr_free(r);
}

static void arguments(void **state)
{
	static const struct kvs_grant_ops ops;
	struct lr *r = lr_new(1, NULL);
	struct kvs_grant_range v[2] = { { r->mem, 10 }, { r->mem, 0 } };
	struct kvs_grant *g;
	struct kvs_read rd = { .done = (void (*)(struct kvs_conn *,
						 struct kvs_read *,
						 int))abort };

	(void)state;
	assert_int_equal(kvs_grant_open(r->b, 0, v, 1, &ops, NULL, &g),
			 -EINVAL);
	assert_int_equal(kvs_grant_open(r->b, 1, v, 0, &ops, NULL, &g),
			 -EINVAL);
	assert_int_equal(kvs_grant_open(r->b, 1, v, 2, &ops, NULL, &g),
			 -EINVAL);
	v[1] = (struct kvs_grant_range){ (void *)(UINTPTR_MAX - 5), 7 };
	assert_int_equal(kvs_grant_open(r->b, 1, v, 2, &ops, NULL, &g),
			 -EINVAL);
	assert_int_equal(kvs_grant_open(r->b, 1, v, KVS_GRANT_RANGES_MAX + 1,
					&ops, NULL, &g),
			 -EINVAL);
	lr_dial(r, 0, LR_OWNER);
	assert_int_equal(kvs_conn_read(r->ea[0].c, &rd), -EINVAL);
	rd.addr = r;
	assert_int_equal(kvs_conn_read(r->ea[0].c, &rd), -EINVAL);
	rd.len = (uint64_t)KVS_PAYLOAD_MAX + 1;
	assert_int_equal(kvs_conn_read(r->ea[0].c, &rd), -EINVAL);
	rd.len = 1;
	kvs_conn_close(r->ea[0].c, 0, false);
	assert_int_equal(kvs_conn_read(r->ea[0].c, &rd), -EPIPE);
	lr_free(r);
}

/* ---- reads ---- */

static void read_done(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	struct lr_read *x = rd->user;

	(void)c;
	x->done++;
	x->status = status;
}

static void read_start(struct lr *r, struct lr_read *x,
		       const struct kvs_grant_key *k, uint64_t off, size_t len)
{
	memset(x, 0, sizeof(*x));
	x->dst = calloc(1, len);
	x->rd = (struct kvs_read){
		.addr = x->dst,
		.len = len,
		.remote = *k,
		.done = read_done,
		.user = x,
	};
	x->rd.remote.addr += off;
	assert_int_equal(kvs_conn_read(r->ea[0].c, &x->rd), 0);
	assert_int_equal(x->done, 0);
}

static void reads(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_grant g;
	struct lr_read x, late;
	size_t i;

	(void)state;
	for (i = 0; i < LR_MEM; i++)
		r->mem[i] = lr_pattern(4, i);
	lr_dial(r, 0, LR_OWNER);
	lr_grant(r, &g, LR_OWNER, 100, 1000, 1);
	read_start(r, &x, &g.key[0], 50, 600);
	lr_run_to(r, lr_now(r) + 1300);
	assert_memory_equal(x.dst, r->mem + 150, 200);
	assert_int_equal(x.dst[500], 0);
	assert_int_equal(x.done, 0);
	lr_run(r);
	assert_int_equal(x.done, 1);
	assert_int_equal(x.status, 0);
	assert_memory_equal(x.dst, r->mem + 150, 600);
	free(x.dst);

	/* its grant is closed under it */
	read_start(r, &x, &g.key[0], 0, 1000);
	read_start(r, &late, &g.key[0], 0, 8);
	kvs_grant_close(g.g);
	lr_run(r);
	assert_int_equal(x.status, -EREMOTEIO);
	assert_int_equal(x.done, 1);
	assert_int_equal(late.done, 1);
	assert_true(late.status < 0);
	assert_int_equal(r->ea[0].err, -EREMOTEIO);
	assert_int_equal(r->eb[0].err, -EACCES);
	free(x.dst);
	free(late.dst);
	lr_free(r);
}

/* What was granted for writing only is not read, and can be written. */
static void unread(void **state)
{
	struct lr *r = lr_new(1, NULL);
	struct lr_write *w;
	struct lr_grant g;
	struct lr_read x;

	(void)state;
	memset(r->mem, 7, LR_MEM);
	lr_dial(r, 0, LR_OWNER);
	lr_write_only(true);
	lr_grant(r, &g, LR_OWNER, 0, 100, 1);
	lr_write_only(false);
	w = lr_write_new(r, &g.key[0], 0, 50, 9, 3);
	assert_int_equal(lr_write(r, 0, w), 0);
	lr_run(r);
	assert_true(lr_is(r, 0, 50, 3));
	lr_write_free(w);
	read_start(r, &x, &g.key[0], 0, 100);
	lr_run(r);
	assert_int_equal(x.done, 1);
	assert_int_equal(x.status, -EREMOTEIO);
	assert_int_equal(x.dst[60], 0);
	free(x.dst);
	lr_free(r);
}

/* Until done() it may write; closing is what stops it, on either side. */
static void read_stops(void **state)
{
	unsigned char copy[1000];
	int how;

	(void)state;
	for (how = 0; how < 3; how++) {
		struct lr *r = lr_new(1, &slow);
		struct lr_grant g;
		struct lr_read x;

		memset(r->mem, 1, LR_MEM);
		lr_dial(r, 0, LR_OWNER);
		lr_grant(r, &g, LR_OWNER, 0, 1000, 1);
		read_start(r, &x, &g.key[0], 0, 1000);
		lr_run_to(r, lr_now(r) + 1300);
		if (how == 0)
			kvs_conn_close(r->ea[0].c, -EBUSY, false);
		else if (how == 1)
			kvs_conn_close(r->eb[0].c, -EBUSY, false);
		else
			kvs_fabric_kill(r->b);
		while (!x.done) {
			kvs_vclock_advance(&r->clk, 1);
			kvs_transport_poll(r->b, 0);
			kvs_transport_poll(r->a, 0);
		}
		memcpy(copy, x.dst, sizeof(copy));
		assert_int_equal(x.dst[0], 1);
		assert_int_equal(x.dst[999], 0);
		assert_true(x.status < 0);
		lr_run(r);
		assert_int_equal(x.done, 1);
		assert_memory_equal(copy, x.dst, sizeof(copy));
		free(x.dst);
		lr_free(r);
	}
}

/* The card needs no processor: no poll, and the bytes are there. */
static void without_polls(void **state)
{
	struct lr *r = lr_new(1, &slow);
	struct lr_write *w;
	struct lr_grant g;
	uint64_t t0;

	(void)state;
	lr_dial(r, 0, LR_OWNER);
	lr_grant(r, &g, LR_OWNER, 0, 1000, 1);
	w = lr_write_new(r, &g.key[0], 0, 1000, 3, 8);
	t0 = lr_now(r);
	assert_int_equal(lr_write(r, 0, w), 0);
	assert_int_equal(kvs_fabric_next(r->f), t0 + 1016);
	assert_int_equal(kvs_fabric_run(r->f), 0);
	kvs_vclock_advance(&r->clk, 3000);
	assert_int_equal(kvs_fabric_run(r->f), 63);
	assert_true(lr_is(r, 0, 1000, 8));
	assert_int_equal(w->done + r->eb[0].frames, 0);
	lr_run(r);
	assert_int_equal(w->done, 1);
	assert_int_equal(r->eb[0].frames, 1);
	lr_write_free(w);
	lr_free(r);
}

/* A handle has no owner: what arrives before it is set is refused. */
static int handle = -1;

static int give_away(struct lr_end *e, const struct kvs_frame *f)
{
	(void)f;
	handle = kvs_conn_detach(e->c);
	e->c = NULL;
	return 0;
}

static void handed_over(void **state)
{
	int early;

	(void)state;
	for (early = 0; early < 2; early++) {
		struct lr *r = lr_new(1, NULL);
		struct lr_write *w;
		struct lr_grant g;

		lr_dial(r, 0, LR_OWNER);
		lr_grant(r, &g, LR_OWNER, 0, 1000, 1);
		r->eb[0].on_frame = give_away;
		lr_send(r->ea[0].c, 1, 32);
		lr_run(r);
		assert_true(handle >= 0);
		w = lr_write_new(r, &g.key[0], 0, 1000, 3, 8);
		if (early)
			assert_int_equal(lr_write(r, 0, w), 0);
		lr_run(r);
		r->eb[0].on_frame = NULL;
		assert_int_equal(kvs_transport_adopt(r->b, handle,
						     KVS_CONN_DATA, &lr_ops,
						     &r->eb[0], &r->eb[0].c),
				 0);
		kvs_conn_set_owner(r->eb[0].c, LR_OWNER);
		if (!early)
			assert_int_equal(lr_write(r, 0, w), 0);
		lr_run(r);
		assert_int_equal(w->status, early ? -EREMOTEIO : 0);
		assert_int_equal(r->eb[0].closed, early);
		assert_int_equal(lr_is(r, 0, 1000, 8), !early);
		lr_write_free(w);
		lr_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lands),
		cmocka_unit_test(order),
		cmocka_unit_test(refused),
		cmocka_unit_test(outlives),
		cmocka_unit_test(ends_with_receiver),
		cmocka_unit_test(close_stops),
		cmocka_unit_test(only_while_open),
		cmocka_unit_test(close_while_opening),
		cmocka_unit_test(torn_down),
		cmocka_unit_test(left_at_destroy),
		cmocka_unit_test(arguments),
		cmocka_unit_test(reads),
		cmocka_unit_test(unread),
		cmocka_unit_test(read_stops),
		cmocka_unit_test(without_polls),
		cmocka_unit_test(handed_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
