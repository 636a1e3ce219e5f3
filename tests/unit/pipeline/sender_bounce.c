/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, for a rank whose pages are device memory that no CPU address leads
 * to, over TCP: what lies on the device arrives, every byte once and at its
 * place, by a ring of the least size, which is smaller than a run of pages and
 * smaller than one page, with a slow device as well; source pages are not given
 * back before the copy of them is over; an ABORT in the middle of a copy is
 * acknowledged at once, as nothing of the chunk was sent, and the room is over
 * when the copy is; a copy that fails, that does not end, and a device that has
 * failed for good end the room with that error at both sides, and never in
 * silence; what cannot be is refused when the sender is made.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"
#include "lib/assert.h"
#include "tests/unit/pipeline/sender_rig.h"

#define RING 65536u /* bytes; the least */
#define SOURCE_PAGES 20u
#define UPLOADS 5u /* copies that fill the device, one a buffer */

static const struct kvs_layer_buffer shapes[UPLOADS] = {
	{ KVS_BUFFER_K, 0, 320, 0 },	{ KVS_BUFFER_K, 1, 70000, 0 },
	{ KVS_BUFFER_V, 0, 320, 0 },	{ KVS_BUFFER_V, 1, 5000, 0 },
	{ KVS_BUFFER_MAMBA, 1, 40, 2 },
};

static uint32_t map[SOURCE_PAGES];

static struct rig *new_rig(const struct kvs_device_opts *d)
{
	const struct kvs_device_opts plain = { 0 };
	struct kvs_rng rng;
	struct rig *g;
	uint32_t i;

	kvs_rng_init(&rng, 31);
	g = rig_new(shapes, UPLOADS, 16, SOURCE_PAGES, &rng);
	for (i = 0; i < SOURCE_PAGES; i++)
		map[i] = (i * 7 + 3) % SOURCE_PAGES;
	g->o.bounce_bytes = RING;
	rig_to_device(g, d ? d : &plain);
	return g;
}

/* Granted, and all of its pages and state queued in two calls. */
static struct kvs_send_room *open_room(struct rig *g, uint64_t id,
				       struct rig_room **ret)
{
	static const uint32_t items[2] = { 5, 2 };
	struct kvs_send_room *r;
	struct kvs_msg m;

	assert_int_equal(
		kvs_send_open(g->s, id, NULL, SOURCE_PAGES * 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	*ret = rig_room_new(g, id, 100 + id, SOURCE_PAGES * 16, 12 * 16, 0, 2,
			    64);
	/* before it can fail */
	assert_int_equal(kvs_send_pages(r, 0, map, SOURCE_PAGES, NULL), 0);
	assert_int_equal(kvs_send_state(r, 4, items, 2, NULL), 0);
	rig_grant(g, *ret);
	return r;
}

static void transfer(struct rig *g, uint64_t id)
{
	static const unsigned char aux[64] = "from the host in any case";
	struct kvs_sender_stats st = { .size = sizeof(st) };
	struct kvs_send_room *r;
	struct rig_room *w;

	r = open_room(g, id, &w);
	assert_int_equal(kvs_send_aux(r, aux, sizeof(aux), NULL), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	rig_finish_room(g, w);
	assert_int_equal(rig_wait(g, RIG_DONE, id, 0).status, 0);
	assert_int_equal(rig_count(g, RIG_FREE, id), 3);
	rig_check_pages(g, w, map);
	assert_int_equal(kvs_sender_stats(g->s, &st), 0);
	assert_int_equal(st.source, KVS_SOURCE_BOUNCE);
	assert_string_equal(kvs_source_name(st.source), "bounce");
	assert_int_equal(st.bounce_bytes, RING);
	assert_in_range(st.copied_bytes, w->bytes - sizeof(aux), UINT64_MAX);
	/* several in the ring at a time, and round it many times */
	assert_in_range(st.copies, w->bytes / (RING / 4), UINT64_MAX);
	assert_true(g->chunk_most <= RING / 4);
	kvs_send_close(r);
	rig_room_forget(g, w);
}

static void every_byte_by_the_least_ring(void **state)
{
	struct rig *g = new_rig(NULL);
	uint64_t id;

	(void)state;
	g->o.data_connections = 3;
	rig_start(g);
	for (id = 1; id <= 3; id++)
		transfer(g, id);
	rig_free(g);
}

static void a_slow_device(void **state)
{
	const struct kvs_device_opts d = { .bytes_per_sec = 200000000 };
	struct rig *g = new_rig(&d);
	struct kvs_sender_stats st = { .size = sizeof(st) };

	(void)state;
	g->o.source = KVS_SOURCE_BOUNCE;
	rig_start(g);
	transfer(g, 1);
	assert_int_equal(kvs_sender_stats(g->s, &st), 0);
	/* there was more to copy than the ring holds, all the time */
	assert_int_not_equal(st.copies, 0);
	rig_free(g);
}

/* Room @id with its first copy held by the device. */
static struct kvs_send_room *held_room(struct rig *g, uint64_t id,
				       struct rig_room **ret)
{
	struct kvs_sender_stats st = { .size = sizeof(st) };
	struct kvs_send_room *r = open_room(g, id, ret);

	/* data connections first, as somebody must serve them */
	while (!st.copies) {
		rig_quiet(g);
		assert_int_equal(kvs_sender_stats(g->s, &st), 0);
	}
	return r;
}

static void an_abort_in_the_middle_of_a_copy(void **state)
{
	const struct kvs_device_opts d = { .plan = { .hold_nth =
							     UPLOADS + 1 } };
	struct rig *g = new_rig(&d);
	struct kvs_send_room *r;
	struct rig_room *w;
	struct kvs_msg m;

	(void)state;
	rig_start(g);
	r = held_room(g, 1, &w);
	rig_abort(g, 1, 101);
	/* nothing was sent, so nothing is waited for */
	rig_expect(g, KVS_WIRE_ABORT_ACK, &m);
	assert_int_equal(m.abort.generation, 101);
	rig_quiet(g);
	assert_int_equal(kvs_send_outstanding(r), 0);
	/* the device reads the pages still */
	assert_int_equal(rig_count(g, RIG_DONE, 1), 0);
	assert_in_range(rig_count(g, RIG_FREE, 1), 0, 1);
	assert_int_equal(w->bytes, 0);
	assert_int_equal(kvs_soft_release(g->o.device), 0);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, -ECANCELED);
	assert_int_equal(rig_count(g, RIG_FREE, 1), 2);
	assert_int_equal(w->bytes, 0);
	kvs_send_close(r);
	rig_room_forget(g, w);
	/* what the ring holds now is another room's alone */
	transfer(g, 2);
	rig_free(g);
}

static void the_sender_goes_in_the_middle_of_a_copy(void **state)
{
	const struct kvs_device_opts d = { .plan = { .hold_nth =
							     UPLOADS + 1 } };
	struct rig *g = new_rig(&d);
	struct rig_room *w;

	(void)state;
	rig_start(g);
	(void)held_room(g, 1, &w);
	assert_int_equal(kvs_soft_release(g->o.device), 0);
	rig_free(g);
}

/* The room ends with @err at both sides; @text is in what is said. */
static void expect_failure(struct rig *g, struct kvs_send_room *r, uint64_t id,
			   int err, const char *text)
{
	struct rig_event e;
	struct kvs_msg m;

	rig_expect(g, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.generation, 100 + id);
	assert_int_equal(m.abort.err, err);
	assert_non_null(strstr(m.abort.text, text));
	/* and it is a clean end: an ABORT is acknowledged */
	rig_abort(g, id, 100 + id);
	rig_expect(g, KVS_WIRE_ABORT_ACK, &m);
	e = rig_wait(g, RIG_DONE, id, 0);
	assert_int_equal(e.status, -err);
	assert_non_null(strstr(e.text, text));
	assert_int_equal(rig_count(g, RIG_FREE, id), 2);
	kvs_send_close(r);
}

static void a_copy_that_fails(void **state)
{
	const struct kvs_device_opts d = { .plan = { .fail_nth =
							     UPLOADS + 3 } };
	struct rig *g = new_rig(&d);
	struct kvs_send_room *r;
	struct rig_room *w;

	(void)state;
	rig_start(g);
	r = open_room(g, 1, &w);
	expect_failure(g, r, 1, EIO, "a copy from device soft");
	rig_room_forget(g, w);
	transfer(g, 2);
	rig_free(g);
}

static void a_device_that_failed_for_good(void **state)
{
	const struct kvs_device_opts d = { .plan = { .sticky_nth =
							     UPLOADS + 1 } };
	struct rig *g = new_rig(&d);
	uint64_t id;

	(void)state;
	rig_start(g);
	for (id = 1; id <= 2; id++) {
		struct rig_room *w;
		struct kvs_send_room *r = open_room(g, id, &w);

		expect_failure(g, r, id, EIO, "soft");
		rig_room_forget(g, w);
	}
	rig_free(g);
}

static void a_copy_that_does_not_end(void **state)
{
	const struct kvs_device_opts d = { .plan = { .hold_nth =
							     UPLOADS + 1 } };
	struct kvs_sender_stats st = { .size = sizeof(st) };
	struct rig *g = new_rig(&d);
	struct kvs_send_room *r;
	struct rig_room *w;
	unsigned int n = 0;

	(void)state;
	g->call_timeout_ms = 50;
	rig_start(g);
	r = open_room(g, 1, &w);
	expect_failure(g, r, 1, ETIMEDOUT, "a copy from device soft");
	assert_int_equal(kvs_sender_stats(g->s, &st), 0);
	assert_true(st.quarantined_bytes > 0);
	assert_int_equal(kvs_soft_release(g->o.device), 0);
	while (st.quarantined_bytes && n++ < 10000) {
		rig_quiet(g);
		assert_int_equal(kvs_sender_stats(g->s, &st), 0);
	}
	assert_int_equal(st.quarantined_bytes, 0);
	rig_room_forget(g, w);
	g->call_timeout_ms = 0;
	transfer(g, 2);
	rig_free(g);
}

static void refused(struct rig *g, const char *text)
{
	struct kvs_sender_opts o = g->o;
	struct kvs_sender *s;
	char err[300];

	o.size = sizeof(o);
	o.daemon = "127.0.0.1:1";
	o.peer = "prefill-a";
	o.layout = g->layout;
	o.buffers = g->buffers;
	o.ops = &(const struct kvs_send_ops){
		.pages_free = (void (*)(struct kvs_send_room *, void *, int))(
			uintptr_t)1,
		.done = (void (*)(struct kvs_send_room *, int, const char *))(
			uintptr_t)1,
	};
	assert_int_equal(kvs_sender_create(&o, &s, err, sizeof(err)), -EINVAL);
	if (!strstr(err, text))
		fail_msg("\"%s\" is not in: %s", text, err);
}

static void what_cannot_be(void **state)
{
	struct rig *g = new_rig(NULL);
	struct kvs_device *d = g->o.device;

	(void)state;
	g->o.source = KVS_SOURCE_HOST;
	refused(g, "source host is not for memory of device soft");
	g->o.source = (enum kvs_source)99;
	refused(g, "no source of number 99");
	g->o.source = KVS_SOURCE_AUTO;
	g->o.bounce_bytes = RING / 2;
	refused(g, "bounce_bytes 32768");
	g->o.bounce_bytes = RING + 1;
	refused(g, "bounce_bytes 65537");
	g->o.bounce_bytes = 1ULL << 50;
	refused(g, "bounce_bytes");
	g->o.bounce_bytes = 0;
	g->o.device = NULL;
	g->o.source = KVS_SOURCE_BOUNCE;
	refused(g, "source bounce is for memory of a device");
	g->o.source = KVS_SOURCE_AUTO;
	g->o.device = d;
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_by_the_least_ring),
		cmocka_unit_test(a_slow_device),
		cmocka_unit_test(an_abort_in_the_middle_of_a_copy),
		cmocka_unit_test(the_sender_goes_in_the_middle_of_a_copy),
		cmocka_unit_test(a_copy_that_fails),
		cmocka_unit_test(a_device_that_failed_for_good),
		cmocka_unit_test(a_copy_that_does_not_end),
		cmocka_unit_test(what_cannot_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
