/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a committed room is copied layer by layer; the number that the
 * engine is told only grows, every buffer of every layer below it is on the
 * device, and it stands still while the copy does; nothing is copied before
 * the daemon says COMMITTING; a copy that comes late or fails promises nothing
 * that it does not keep. With a device under a virtual clock, and with the one
 * that has a thread.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/soft.h"
#include "lib/assert.h"
#include "lib/clock.h"
#include "pipeline/layout.h"
#include "tests/unit/pipeline/engine_rig.h"

#define TOKENS 300u
#define STEP 128u /* bytes; a piece of the copy, one every microsecond */

static struct kvs_vclock vclock;
static enum kvs_soft_fault fault;
static uint64_t fault_at;

static int strike(void *arg, const struct kvs_soft_event *e)
{
	(void)arg;
	*e->at = fault_at;
	return (int)fault;
}

static const struct kvs_soft_virtual_opts device = {
	.clock = &vclock.clk,
	.chances = { .bytes_per_sec = STEP * 1000000ULL, .piece = STEP },
	.fault = strike,
};

/* Every byte of the buffer is at its place. */
static bool is_there(const struct rig *g, const struct rig_room *m, uint32_t b)
{
	const struct kvs_layer_buffer *lb = &g->buffers[b];
	const uint32_t *place = m->pages;
	uint64_t off, len;

	if (!kvs_buffer_kind_is_paged(lb->kind)) {
		place = m->items;
		for (uint32_t i = 0; i < b; i++)
			if (!kvs_buffer_kind_is_paged(g->buffers[i].kind))
				place += kvs_buffer_items(&g->buffers[i],
							  m->geo.pages);
	}
	for (uint32_t x = 0; x < m->geo.n_extents; x++) {
		assert_int_equal(kvs_geometry_run(&m->geo, x, b, &off, &len),
				 0);
		for (uint64_t i = 0; i < len / lb->item_len; i++)
			if (memcmp((char *)g->dev[b] +
					   (uint64_t)*place++ * lb->item_len,
				   g->pool + m->off[x] + off + i * lb->item_len,
				   lb->item_len))
				return false;
	}
	return true;
}

/* Two with K and V each; of a hybrid one more with a window and one with a
 * state. */
static int all_layers(const struct rig *g)
{
	return g->hybrid ? 4 : 2;
}

/* How far it is; what that promises is looked at. */
static int layers(struct rig *g, struct rig_room *m)
{
	int n = kvs_engine_copied_layers(g->engine, &m->h);

	for (uint32_t b = 0; n > 0 && b < g->layout.n_buffers; b++)
		if (g->buffers[b].layer < n)
			assert_true(is_there(g, m, b));
	return n;
}

/* A piece of the copy. */
static void step(struct rig *g)
{
	kvs_vclock_advance(&vclock, KVS_NSEC_PER_USEC);
	(void)kvs_soft_run(g->device);
	assert_true(kvs_engine_progress(g->engine) >= 0);
}

static void start(struct rig *g, struct rig_room *m, enum kvs_soft_fault k,
		  uint64_t at)
{
	fault = k;
	fault_at = at;
	kvs_vclock_init(&vclock, KVS_NSEC_PER_SEC);
	g->virtual = &device;
	rig_start(g);
	rig_admit(g, m, TOKENS);
	assert_int_equal(kvs_engine_copied_layers(g->engine, &m->h), -EAGAIN);
	rig_claim(g, m);
}

static void done(struct rig *g, struct rig_room *m)
{
	assert_int_equal(rig_expect_room(g, KVS_PACKET_COMMITTED, m), 0);
	rig_word(g, m, 0, KVS_STATUS_DONE);
	assert_int_equal(layers(g, m), all_layers(g));
	rig_check_device(g, m);
	rig_room_fini(g, m);
	assert_int_equal(kvs_engine_copied_layers(g->engine, &m->h), -ENOENT);
	rig_stop(g);
}

static uint64_t bytes_of(const struct rig *g, const struct rig_room *m,
			 int below)
{
	uint64_t n = 0;

	for (uint32_t b = 0; b < g->layout.n_buffers; b++)
		if (g->buffers[b].layer < below)
			n += (uint64_t)g->buffers[b].item_len *
			     kvs_buffer_items(&g->buffers[b], m->geo.pages);
	return n;
}

static void in_order(bool hybrid)
{
	struct rig g = { .hybrid = hybrid };
	unsigned int seen = 0;
	struct rig_room m;
	uint64_t moved = 0;
	int last = 0, now;

	start(&g, &m, KVS_SOFT_NO_FAULT, 0);
	assert_true(m.geo.n_extents > 1);
	/* COMMIT is said, COMMITTING not yet */
	for (int i = 0; i < 10; i++)
		step(&g);
	assert_int_equal(layers(&g, &m), 0);
	for (uint32_t b = 0; b < g.layout.n_buffers; b++)
		assert_false(is_there(&g, &m, b));
	rig_take(&g, &m);
	while (kvs_engine_copy_live(g.engine, &m.h)) {
		now = layers(&g, &m);
		assert_in_range(now, last, all_layers(&g));
		/* not a layer late, either */
		if (now < all_layers(&g))
			assert_true(moved < bytes_of(&g, &m, now + 1));
		seen |= 1u << now;
		last = now;
		step(&g);
		moved += STEP;
	}
	/* each was told of while the next were under way */
	assert_int_equal(seen & ((1u << all_layers(&g)) - 1),
			 (1u << all_layers(&g)) - 1);
	(void)kvs_engine_progress(g.engine);
	assert_int_equal(layers(&g, &m), all_layers(&g));
	done(&g, &m);
}

static void layers_in_order(void **state)
{
	(void)state;
	in_order(false);
	in_order(true);
}

static void stands_still_while_held(void **state)
{
	struct rig g = { .hybrid = true };
	struct rig_room m;

	(void)state;
	start(&g, &m, KVS_SOFT_HOLD, 0);
	/* in the middle of layer 2, which the device has still to reach */
	fault_at = (bytes_of(&g, &m, 2) + bytes_of(&g, &m, 3)) / 2;
	rig_take(&g, &m);
	for (int i = 0; i < 2000; i++)
		step(&g);
	assert_int_equal(layers(&g, &m), 2);
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_COMMITTING);
	assert_false(is_there(&g, &m, g.layout.n_buffers - 1));
	assert_int_equal(kvs_soft_release(g.device), 0);
	while (kvs_engine_copy_live(g.engine, &m.h))
		step(&g);
	(void)kvs_engine_progress(g.engine);
	done(&g, &m);
}

/* It moves all, and all again: what it has moved once it may still touch. */
static void late_tells_nothing(void **state)
{
	struct rig g = { .hybrid = true };
	struct rig_room m;

	(void)state;
	start(&g, &m, KVS_SOFT_LATE, 5 * KVS_NSEC_PER_MSEC);
	rig_take(&g, &m);
	for (int i = 0; i < 2000; i++) {
		assert_true(kvs_engine_copy_live(g.engine, &m.h));
		assert_int_equal(layers(&g, &m), 0);
		step(&g);
	}
	while (kvs_engine_copy_live(g.engine, &m.h))
		step(&g);
	(void)kvs_engine_progress(g.engine);
	done(&g, &m);
}

/* What began early is of no use any more, and said so. */
static void fails_part_way(void **state)
{
	struct rig g = { .hybrid = true };
	struct rig_room m;

	(void)state;
	start(&g, &m, KVS_SOFT_PARTIAL, 0);
	fault_at = bytes_of(&g, &m, 2) + STEP;
	rig_take(&g, &m);
	while (kvs_engine_copy_live(g.engine, &m.h)) {
		assert_in_range(layers(&g, &m), 0, 2);
		step(&g);
	}
	(void)kvs_engine_progress(g.engine);
	assert_int_equal(layers(&g, &m), -ECANCELED);
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMITTED, &m), EIO);
	rig_failed(&g, &m, EIO, 503, "the copy failed");
	assert_int_equal(layers(&g, &m), -ECANCELED);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

/* The device that has a thread; once it is held before it begins. */
static void with_a_thread(void **state)
{
	struct rig g = { .hybrid = true, .plan = { .hold_nth = 2 } };
	struct rig_room m;
	int last, now;

	(void)state;
	rig_start(&g);
	for (int i = 0; i < 2; i++) {
		rig_admit(&g, &m, TOKENS);
		rig_claim(&g, &m);
		assert_int_equal(layers(&g, &m), 0);
		rig_take(&g, &m);
		if (i) {
			assert_int_equal(layers(&g, &m), 0);
			assert_int_equal(kvs_soft_release(g.device), 0);
		}
		last = 0;
		while (last < all_layers(&g)) {
			now = layers(&g, &m);
			assert_in_range(now, last, all_layers(&g));
			last = now;
			(void)sched_yield();
		}
		rig_check_device(&g, &m);
		rig_copied(&g, &m);
		assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMITTED, &m),
				 0);
		rig_word(&g, &m, 0, KVS_STATUS_DONE);
		rig_room_fini(&g, &m);
		rig_clear_device(&g);
	}
	rig_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layers_in_order),
		cmocka_unit_test(stands_still_while_held),
		cmocka_unit_test(late_tells_nothing),
		cmocka_unit_test(fails_part_way),
		cmocka_unit_test(with_a_thread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
