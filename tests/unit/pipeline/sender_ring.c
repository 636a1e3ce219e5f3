/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims of the ring between a device and the network, over a soft device whose
 * memory no CPU address leads to: whatever the lengths, offsets and the order
 * in which pieces are put, what was copied is what lay on the device, at any
 * size of items, and a piece is never in two hands; copies that fail are told
 * of as that; of a device that has failed for good, or a copy that does not
 * end, the memory is quarantined, and free again with a late proof; with too
 * much of it quarantined a chunk is refused for good, not put off.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/rng.h"
#include "pipeline/sender_ring.h"

#define BLOCK KVS_SEND_RING_BLOCK
#define PIECES 64u
#define DEVICE_BYTES (1u << 20)
#define ITEMS_MAX 4096u

struct chunk {
	struct kvs_send_piece *p; /* NULL: the place is free */
	struct kvs_send_from from;
	uint32_t items[ITEMS_MAX];
	bool copied;
	int status;
};

static struct rig {
	struct kvs_device *d;
	struct kvs_send_ring ring;
	struct kvs_timerq timers;
	struct kvs_rng rng;
	uint64_t now;
	unsigned char *host; /* what lies on the device */
	void *dev;
	struct chunk c[PIECES];
	unsigned char owner[1024]; /* of each block; 0: nobody's */
} g;

static uint64_t clock_now(const struct kvs_clock *c)
{
	(void)c;
	return g.now;
}

static const struct kvs_clock test_clock = { .now = clock_now };

static void copied(struct kvs_send_piece *p, int status)
{
	struct chunk *c = p->user;

	assert_ptr_equal(c->p, p);
	assert_false(c->copied);
	c->copied = true;
	c->status = status;
}

static void upload(void)
{
	struct kvs_copy_run run = {
		.host = g.host, .dev = g.dev, .item_len = DEVICE_BYTES, .n = 1
	};
	struct kvs_copy c = { .runs = &run, .n_runs = 1, .dir = KVS_COPY_H2D };

	assert_int_equal(kvs_device_copy(g.d, &c), 0);
	while (kvs_device_query(g.d, &c) == -EINPROGRESS)
		sched_yield();
	assert_int_equal(kvs_device_query(g.d, &c), 0);
}

static void begin(uint64_t ring, const struct kvs_soft_plan *plan)
{
	struct kvs_device_opts d = { .size = sizeof(d),
				     .backend = "soft",
				     .hidden = true };
	struct kvs_send_ring_opts o = { .bytes = ring,
					.clock = &test_clock,
					.timers = &g.timers,
					.copied = copied };
	char err[256];
	size_t i;

	if (plan)
		d.plan = *plan;
	memset(&g, 0, sizeof(g));
	g.now = 1000000000;
	kvs_rng_init(&g.rng, 7);
	kvs_timerq_init(&g.timers);
	assert_int_equal(kvs_device_open(&d, &g.d, err, sizeof(err)), 0);
	assert_int_equal(kvs_device_alloc(g.d, DEVICE_BYTES, &g.dev), 0);
	g.host = malloc(DEVICE_BYTES);
	assert_non_null(g.host);
	for (i = 0; i < DEVICE_BYTES; i++)
		g.host[i] = (unsigned char)kvs_rng_next(&g.rng);
	upload();
	o.device = g.d;
	assert_int_equal(kvs_send_ring_init(&g.ring, &o, err, sizeof(err)), 0);
}

static void end(void)
{
	kvs_send_ring_fini(&g.ring);
	kvs_device_close(g.d);
	kvs_timerq_fini(&g.timers);
	free(g.host);
}

/* Blocks of the piece are @c's from here on, and were nobody's. */
static void own(const struct chunk *c, bool mine)
{
	unsigned char name = (unsigned char)(c - g.c + 1);
	uint64_t len = 0;
	size_t i, b;

	for (i = 0; i < c->p->n_iov; i++) {
		const struct iovec *v = &c->p->iov[i];
		size_t at = (size_t)((unsigned char *)v->iov_base - g.ring.mem);

		assert_int_equal(at % BLOCK, 0);
		for (b = at / BLOCK; b * BLOCK < at + v->iov_len; b++) {
			assert_in_range(b, 0, g.ring.blocks - 1);
			assert_int_equal(g.owner[b], mine ? 0 : name);
			g.owner[b] = mine ? name : 0;
		}
		len += v->iov_len;
	}
	assert_int_equal(len, c->p->len);
}

static int start(struct chunk *c, uint32_t item_len, uint64_t at, uint64_t len)
{
	uint32_t have = DEVICE_BYTES / item_len;
	uint64_t i;
	int r;

	r = kvs_send_ring_get(&g.ring, len, &c->p);
	if (r) {
		c->p = NULL;
		return r;
	}
	own(c, true);
	for (i = 0; i * item_len < at + len; i++)
		c->items[i] = (uint32_t)kvs_rng_below(&g.rng, have);
	c->from = (struct kvs_send_from){ .base = g.dev,
					  .item_len = item_len,
					  .items = c->items,
					  .at = at,
					  .len = len };
	c->copied = false;
	c->p->user = c;
	return kvs_send_piece_copy(c->p, &c->from);
}

static void put(struct chunk *c)
{
	own(c, false);
	kvs_send_piece_put(c->p);
	c->p = NULL;
}

static void check(const struct chunk *c)
{
	uint64_t at = c->from.at, k;
	size_t i;

	for (i = 0; i < c->p->n_iov; i++) {
		const unsigned char *m = c->p->iov[i].iov_base;

		for (k = 0; k < c->p->iov[i].iov_len; k++, at++) {
			uint64_t item = c->items[at / c->from.item_len];

			if (m[k] != g.host[item * c->from.item_len +
					   at % c->from.item_len])
				fail_msg("byte %llu", (unsigned long long)at);
		}
	}
}

static void wait_for(const struct chunk *c)
{
	while (!c->copied) {
		(void)kvs_send_ring_poll(&g.ring);
		sched_yield();
	}
}

static void random_pieces(void **state)
{
	static const uint32_t item[] = { 1, 24, 320, 4096, 5000, 65536 };
	unsigned int done = 0, waits = 0, parts = 0;
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0)
			    : kvs_clock_now(&kvs_clock_real);

	(void)state;
	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)seed);
	begin(KVS_SEND_RING_MIN, NULL);
	kvs_rng_init(&g.rng, seed);
	while (done < 600) {
		struct chunk *c = &g.c[kvs_rng_below(&g.rng, PIECES)];
		uint32_t n = item[kvs_rng_below(&g.rng, KVS_ARRAY_SIZE(item))];
		uint64_t len = 1 + kvs_rng_below(&g.rng, 3 * BLOCK);
		int r;

		if (c->p) {
			wait_for(c);
			assert_int_equal(c->status, 0);
			check(c);
			parts += c->p->n_iov > 1;
			put(c);
			done++;
			continue;
		}
		if (n < 8)
			len = 1 + len % 1000;
		r = start(c, n, kvs_rng_below(&g.rng, n * 2), len);
		waits += r == -EAGAIN;
		if (r)
			assert_int_equal(r, -EAGAIN);
	}
	/* the test would show nothing without these */
	assert_in_range(waits, 1, UINT32_MAX);
	assert_in_range(parts, 1, UINT32_MAX);
	assert_int_equal(g.ring.waits, waits);
	for (size_t i = 0; i < PIECES; i++) {
		if (!g.c[i].p)
			continue;
		wait_for(&g.c[i]);
		put(&g.c[i]);
	}
	assert_int_equal(g.ring.n_free, g.ring.blocks);
	end();
}

static void all_of_it_and_more(void **state)
{
	(void)state;
	begin(KVS_SEND_RING_MIN, NULL);
	assert_int_equal(start(&g.c[0], 4096, 100, KVS_SEND_RING_MIN), 0);
	assert_int_equal(start(&g.c[1], 4096, 0, 1), -EAGAIN);
	wait_for(&g.c[0]);
	check(&g.c[0]);
	put(&g.c[0]);
	assert_int_equal(start(&g.c[1], 4096, 0, KVS_SEND_RING_MIN + 1),
			 -ENOSPC);
	end();
}

static void a_failed_copy(void **state)
{
	/* the first copy fills the device */
	const struct kvs_soft_plan plan = { .fail_nth = 2, .fail_late_nth = 3 };

	(void)state;
	begin(KVS_SEND_RING_MIN, &plan);
	assert_int_equal(start(&g.c[0], 320, 0, 5000), 0);
	assert_int_equal(start(&g.c[1], 320, 0, 5000), 0);
	assert_int_equal(start(&g.c[2], 320, 0, 5000), 0);
	wait_for(&g.c[2]);
	assert_int_equal(g.c[0].status, -EIO);
	assert_int_equal(g.c[1].status, -EIO);
	assert_int_equal(g.c[2].status, 0);
	check(&g.c[2]);
	assert_int_equal(g.ring.copied_bytes, 5000);
	for (size_t i = 0; i < 3; i++)
		put(&g.c[i]);
	assert_int_equal(g.ring.n_free, g.ring.blocks);
	end();
}

static void a_device_that_failed_for_good(void **state)
{
	const struct kvs_soft_plan plan = { .sticky_nth = 2 };

	(void)state;
	begin(KVS_SEND_RING_MIN, &plan);
	assert_int_equal(start(&g.c[0], 320, 0, 5000), 0);
	wait_for(&g.c[0]);
	assert_int_equal(g.c[0].status, -EIO);
	put(&g.c[0]);
	assert_int_equal(start(&g.c[1], 320, 0, 5000), -EIO);
	put(&g.c[1]);
	assert_int_equal(g.ring.n_free, g.ring.blocks);
	end();
}

static void a_copy_that_does_not_end(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 2 };
	uint64_t most = KVS_SEND_RING_MIN - 2 * BLOCK;

	(void)state;
	begin(KVS_SEND_RING_MIN, &plan);
	g.ring.limit = 1000;
	assert_int_equal(start(&g.c[0], 320, 0, 5000), 0);
	assert_int_equal(start(&g.c[1], 320, 0, 5000), 0);
	g.now += 1000;
	assert_int_equal(kvs_send_ring_poll(&g.ring), 0);
	g.now++;
	/* the second is not late: it has not begun (R14) */
	assert_int_equal(kvs_send_ring_poll(&g.ring), 1);
	assert_true(g.c[0].copied);
	assert_int_equal(g.c[0].status, -ETIMEDOUT);
	assert_false(g.c[1].copied);
	put(&g.c[0]);
	assert_int_equal(g.ring.stats.total[KVS_DRAIN_QUARANTINED]
					   [KVS_PROOF_CANNOT_REVOKE],
			 1);
	assert_int_equal(kvs_send_ring_quarantined(&g.ring), 2 * BLOCK);
	assert_int_equal(start(&g.c[2], 4096, 0, most + 1), -ENOSPC);
	assert_int_equal(start(&g.c[2], 4096, 0, most), -EAGAIN);
	assert_int_equal(kvs_soft_release(g.d), 0);
	wait_for(&g.c[1]);
	check(&g.c[1]);
	put(&g.c[1]);
	/* with the late proof it is memory like any */
	while (kvs_send_ring_quarantined(&g.ring))
		(void)kvs_send_ring_poll(&g.ring);
	assert_int_equal(g.ring.n_free, g.ring.blocks);
	end();
}

static void the_end_of_the_sender(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 2 };

	(void)state;
	begin(KVS_SEND_RING_MIN, &plan);
	assert_int_equal(start(&g.c[0], 320, 0, 5000), 0);
	put(&g.c[0]);
	/* the device writes to what is left of the ring while it is closed,
	 * which the sanitizers would see */
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_pieces),
		cmocka_unit_test(all_of_it_and_more),
		cmocka_unit_test(a_failed_copy),
		cmocka_unit_test(a_device_that_failed_for_good),
		cmocka_unit_test(a_copy_that_does_not_end),
		cmocka_unit_test(the_end_of_the_sender),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
