/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim (R13): a rank whose pages are device memory copies them to a ring in
 * host memory first. A chunk that was dropped while its copy is under way, as
 * its room was aborted, gives its part of the ring back when the copy is over,
 * and not before: another room's bytes would be written over, and sent.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <sched.h>

#include "pipeline/sender_ring.h"

static void copied(struct kvs_send_piece *p, int status)
{
	(void)p;
	fail_msg("a chunk that was dropped is told of: %d", status);
}

static void not_before_it_is_over(void **state)
{
	static uint32_t items[16] = { 3, 1, 2, 0, 5, 4, 7, 6 };
	const struct kvs_device_opts d = {
		.size = sizeof(d),
		.backend = "soft",
		.plan = { .hold_nth = 1 },
	};
	struct kvs_send_ring_opts o = {
		.bytes = KVS_SEND_RING_MIN,
		.clock = &kvs_clock_real,
		.copied = copied,
	};
	struct kvs_send_from from = {
		.item_len = KVS_SEND_RING_BLOCK,
		.items = items,
		.len = 8ULL * KVS_SEND_RING_BLOCK,
	};
	struct kvs_send_piece *p, *rest, *again;
	struct kvs_send_ring ring;
	struct kvs_timerq timers;
	char err[256];

	(void)state;
	kvs_timerq_init(&timers);
	o.timers = &timers;
	assert_int_equal(kvs_device_open(&d, &o.device, err, sizeof(err)), 0);
	assert_int_equal(kvs_device_alloc(o.device, from.len, &from.base), 0);
	assert_int_equal(kvs_send_ring_init(&ring, &o, err, sizeof(err)), 0);
	assert_int_equal(kvs_send_ring_get(&ring, from.len, &p), 0);
	assert_int_equal(kvs_send_ring_get(&ring, from.len, &rest), 0);
	assert_int_equal(kvs_send_piece_copy(p, &from), 0);
	kvs_send_piece_put(p);
	assert_int_equal(kvs_send_ring_get(&ring, 1, &again), -EAGAIN);
	assert_int_equal(kvs_soft_release(o.device), 0);
	while (!kvs_send_ring_poll(&ring))
		sched_yield();
	assert_int_equal(kvs_send_ring_get(&ring, from.len, &again), 0);
	kvs_send_piece_put(again);
	kvs_send_piece_put(rest);
	kvs_send_ring_fini(&ring);
	kvs_device_close(o.device);
	kvs_timerq_fini(&timers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(not_before_it_is_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
