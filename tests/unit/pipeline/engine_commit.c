/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: a commit puts every item of every buffer on the device page that the
 * caller named, and nothing elsewhere; it starts only when the daemon has
 * taken the claim; an abort ends a room in any state, and one with a running
 * copy tells the daemon when that is over, not before; a copy that failed is
 * reported; when the daemon is gone, what was being copied is finished from
 * the mapping and everything else fails.
 */
#include "tests/unit/pipeline/engine_rig.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void test_bytes_go_where_they_were_sent(void **state)
{
	static const uint64_t tokens[] = { 1,  15,  16,	 17,   63,  64,
					   65, 128, 129, 1000, 2048 };

	(void)state;
	for (int hybrid = 0; hybrid < 2; hybrid++) {
		struct rig g = { .hybrid = hybrid };

		rig_start(&g);
		for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]);
		     i++) {
			struct rig_room m;

			rig_admit(&g, &m, tokens[i]);
			rig_claim(&g, &m);
			rig_take(&g, &m);
			assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
					 KVS_STATUS_COMMITTING);
			rig_copied(&g, &m);
			assert_int_equal(
				rig_expect_room(&g, KVS_PACKET_COMMITTED, &m),
				0);
			rig_check_device(&g, &m);
			rig_word(&g, &m, 0, KVS_STATUS_DONE);
			assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
					 KVS_STATUS_DONE);
			rig_room_fini(&g, &m);
			rig_clear_device(&g);
		}
		rig_stop(&g);
	}
}

static void test_no_copy_before_the_daemon_says_so(void **state)
{
	struct rig g = { 0 };
	struct kvs_commit c;
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 500);
	rig_ready(&g, &m);
	rig_commit_args(&g, &m, &c);
	assert_false(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), 0);
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), -EALREADY);
	/* The pages are the copy's from here on. */
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_COMMITTING);
	for (int i = 0; i < 100; i++)
		assert_true(kvs_engine_progress(g.engine) >= 0);
	for (uint32_t b = 0; b < g.layout.n_buffers; b++)
		for (uint64_t n = 0; n < g.dev_len[b]; n++)
			assert_int_equal(((unsigned char *)g.dev[b])[n], 0xa5);
	/* The claim came too late: the daemon counted a copy at most, and is
	 * told that there is none. */
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMIT, &m), 0);
	rig_failed(&g, &m, ETIME, 503, "not committed in time");
	assert_false(kvs_engine_copy_live(g.engine, &m.h));
	assert_true(kvs_engine_progress(g.engine) >= 0);
	(void)rig_expect_room(&g, KVS_PACKET_COPY_OVER, &m);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_FAILED);
	for (uint32_t b = 0; b < g.layout.n_buffers; b++)
		for (uint64_t n = 0; n < g.dev_len[b]; n++)
			assert_int_equal(((unsigned char *)g.dev[b])[n], 0xa5);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

static void test_commit_checks_its_arguments(void **state)
{
	struct rig g = { .hybrid = true };
	struct kvs_commit good, c;
	struct rig_room m;
	void *holes[8];

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 200);
	memset(&c, 0, sizeof(c));
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), -EAGAIN);
	rig_ready(&g, &m);
	rig_commit_args(&g, &m, &good);
#define REFUSED(member, value)                                          \
	do {                                                            \
		c = good;                                               \
		c.member = (value);                                     \
		assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), \
				 -EINVAL);                              \
	} while (0)
	REFUSED(size, 8);
	REFUSED(device, NULL);
	REFUSED(buffers, NULL);
	REFUSED(pages, NULL);
	REFUSED(n_pages, good.n_pages - 1);
	REFUSED(n_pages, good.n_pages + 1);
	REFUSED(items, NULL);
	REFUSED(n_items, good.n_items - 1);
	REFUSED(n_items, 0);
	memcpy(holes, g.dev, sizeof(holes));
	holes[3] = NULL;
	REFUSED(buffers, holes);
#undef REFUSED
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, NULL), -EINVAL);
	rig_quiet(&g);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_READY);
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &good), 0);
	rig_take(&g, &m);
	rig_copied(&g, &m);
	rig_check_device(&g, &m);
	kvs_geometry_fini(&m.geo);
	rig_stop(&g);
}

static void test_page_off_the_device_is_a_failed_copy(void **state)
{
	struct rig g = { 0 };
	struct kvs_commit c;
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 200);
	rig_ready(&g, &m);
	rig_commit_args(&g, &m, &c);
	m.pages[3] = RIG_DEVICE_PAGES;
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), 0);
	rig_take(&g, &m);
	assert_false(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMITTED, &m), EINVAL);
	rig_failed(&g, &m, EINVAL, 400, "the copy failed");
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_FAILED);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

static void test_failed_copies_are_reported(void **state)
{
	static const struct kvs_soft_plan plans[] = {
		{ .fail_nth = 1 },
		{ .fail_late_nth = 1 },
		{ .sticky_nth = 1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		struct rig g = { .plan = plans[i] };
		struct rig_room m;

		rig_start(&g);
		for (int again = 0; again < 2; again++) {
			bool good = again && !plans[i].sticky_nth;

			rig_admit(&g, &m, 500);
			rig_claim(&g, &m);
			rig_take(&g, &m);
			rig_copied(&g, &m);
			assert_int_equal(
				rig_expect_room(&g, KVS_PACKET_COMMITTED, &m),
				good ? 0 : EIO);
			/* Ended or not, it is the daemon that says how. */
			assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
					 KVS_STATUS_COMMITTING);
			rig_word(&g, &m, good ? 0 : EIO,
				 good ? KVS_STATUS_DONE : KVS_STATUS_FAILED);
			rig_room_fini(&g, &m);
		}
		rig_stop(&g);
	}
}

static void test_aux_blocks(void **state)
{
	struct rig g = { .hybrid = true };
	struct rig_room m;
	const void *p;
	uint32_t len;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 200);
	assert_int_equal(kvs_engine_aux(g.engine, &m.h, 0, &p, &len), -EAGAIN);
	rig_ready(&g, &m);
	for (uint32_t k = 0; k < RIG_RANKS; k++) {
		uint64_t off, n;

		assert_int_equal(kvs_geometry_aux(&m.geo, k, &off, &n), 0);
		assert_int_equal(kvs_engine_aux(g.engine, &m.h, k, &p, &len),
				 0);
		assert_int_equal(len, RIG_AUX);
		assert_memory_equal(
			p, g.pool + m.off[m.geo.n_extents - 1] + off, len);
	}
	assert_int_equal(kvs_engine_aux(g.engine, &m.h, RIG_RANKS, &p, &len),
			 -ERANGE);
	kvs_geometry_fini(&m.geo);
	rig_stop(&g);
}

/* WAITING .. READY -> FAILED: one ABORT, the slot's once the word is known. */
static void test_abort_before_the_claim(void **state)
{
	static const enum kvs_status at[] = {
		KVS_STATUS_PENDING,   KVS_STATUS_WAITING, KVS_STATUS_ADMITTED,
		KVS_STATUS_RECEIVING, KVS_STATUS_SEALING, KVS_STATUS_READY,
	};
	struct rig g = { 0 };

	(void)state;
	rig_start(&g);
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		struct kvs_packet_room p;
		struct rig_room m;
		int err;

		rig_admit(&g, &m, 100);
		if (at[i] == KVS_STATUS_READY)
			rig_ready(&g, &m);
		else if (at[i] != KVS_STATUS_PENDING)
			rig_word(&g, &m, 0, at[i]);
		assert_int_equal(kvs_engine_abort(g.engine, &m.h), 0);
		assert_int_equal(kvs_engine_abort(g.engine, &m.h), 0);
		assert_int_equal(kvs_engine_poll(g.engine, &m.h, &err),
				 KVS_STATUS_FAILED);
		assert_int_equal(err, ECANCELED);
		assert_false(kvs_engine_copy_live(g.engine, &m.h));
		(void)rig_expect(&g, KVS_PACKET_ABORT, &p, sizeof(p));
		assert_int_equal(p.slot, m.slot);
		assert_int_equal(p.generation, at[i] == KVS_STATUS_PENDING
						       ? 0
						       : m.generation);
		/* Late news of it changes nothing. */
		if (at[i] < KVS_STATUS_READY)
			rig_ready(&g, &m);
		assert_true(kvs_engine_progress(g.engine) >= 0);
		assert_int_equal(kvs_engine_poll(g.engine, &m.h, &err),
				 KVS_STATUS_FAILED);
		assert_int_equal(err, ECANCELED);
		rig_quiet(&g);
		rig_word(&g, &m, ECANCELED, KVS_STATUS_FAILED);
		rig_room_fini(&g, &m);
	}
	rig_stop(&g);
}

/* CLAIMED -> FAILED: the daemon may count a copy, so it hears of its end. */
static void test_abort_of_a_claim(void **state)
{
	struct rig g = { 0 };
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMIT, &m), 0);
	/* Even when the word is there already: it was not acted upon. */
	rig_word(&g, &m, 0, KVS_STATUS_COMMITTING);
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), 0);
	assert_false(kvs_engine_copy_live(g.engine, &m.h));
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
	(void)rig_expect_room(&g, KVS_PACKET_COPY_OVER, &m);
	assert_true(kvs_engine_progress(g.engine) >= 0);
	rig_quiet(&g);
	for (uint32_t b = 0; b < g.layout.n_buffers; b++)
		for (uint64_t n = 0; n < g.dev_len[b]; n++)
			assert_int_equal(((unsigned char *)g.dev[b])[n], 0xa5);
	rig_word(&g, &m, ECANCELED, KVS_STATUS_FAILED);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

/* COPYING -> FAILED: both ends stay owned until the copy's event. */
static void test_abort_of_a_running_copy(void **state)
{
	struct rig g = { .plan = { .hold_nth = 1 } };
	struct rig_room m;
	int err;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), 0);
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
	rig_word(&g, &m, ECANCELED, KVS_STATUS_FAILED);
	for (int i = 0; i < 50; i++) {
		assert_true(kvs_engine_progress(g.engine) >= 0);
		assert_true(kvs_engine_copy_live(g.engine, &m.h));
	}
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, ECANCELED);
	assert_int_equal(kvs_engine_release(g.engine, &m.h), -EBUSY);
	rig_quiet(&g);
	assert_int_equal(kvs_soft_release(g.device), 0);
	rig_copied(&g, &m);
	(void)rig_expect_room(&g, KVS_PACKET_COPY_OVER, &m);
	rig_quiet(&g);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

/* The daemon (an operator, say) fails a room whose copy runs. */
static void test_failed_under_a_running_copy(void **state)
{
	struct rig g = { .plan = { .hold_nth = 1 } };
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	rig_failed(&g, &m, ECANCELED, 503, "by hand");
	assert_true(kvs_engine_progress(g.engine) >= 0);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_FAILED);
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), -EALREADY);
	rig_quiet(&g);
	assert_int_equal(kvs_soft_release(g.device), 0);
	rig_copied(&g, &m);
	(void)rig_expect_room(&g, KVS_PACKET_COPY_OVER, &m);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

/* COPIED, DONE: too late for an abort. */
static void test_abort_after_the_copy(void **state)
{
	struct rig g = { 0 };
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	while (kvs_engine_copy_live(g.engine, &m.h))
		;
	/* Not even progress() has seen it yet. */
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), -EALREADY);
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMITTED, &m), 0);
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), -EALREADY);
	rig_word(&g, &m, 0, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_abort(g.engine, &m.h), -EALREADY);
	rig_quiet(&g);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_DONE);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

static void test_daemon_dies(void **state)
{
	struct rig g = { .plan = { .hold_nth = 1 } };
	struct rig_room waiting, ready, claimed, taken, copying, copied, done;
	const struct kvs_rank_slice rank = { 0, 4 };
	struct kvs_admit a = { .size = sizeof(a),
			       .room = 5,
			       .peer = "p",
			       .tokens = 1,
			       .n_ranks = 1,
			       .ranks = &rank,
			       .node = -1 };
	struct kvs_commit c;
	kvs_handle h;
	int err;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &copied, 70); /* the held copy, until released below */
	rig_claim(&g, &copied);
	rig_take(&g, &copied);
	assert_int_equal(kvs_soft_release(g.device), 0);
	rig_copied(&g, &copied);
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMITTED, &copied), 0);
	rig_admit(&g, &done, 10);
	rig_word(&g, &done, 0, KVS_STATUS_DONE);
	rig_admit(&g, &waiting, 10);
	rig_word(&g, &waiting, 0, KVS_STATUS_WAITING);
	rig_admit(&g, &ready, 10);
	rig_ready(&g, &ready);
	rig_admit(&g, &claimed, 10);
	rig_claim(&g, &claimed);
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMIT, &claimed), 0);
	rig_admit(&g, &taken, 10);
	rig_clear_device(&g);
	rig_admit(&g, &copying, 333);
	rig_claim(&g, &copying);
	/* Taken, and the engine has not looked yet. */
	rig_word(&g, &copying, 0, KVS_STATUS_COMMITTING);
	rig_die(&g);
	assert_int_equal(kvs_engine_progress(g.engine), -ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &waiting.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &ready.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &claimed.h, &err),
			 KVS_STATUS_FAILED);
	assert_false(kvs_engine_copy_live(g.engine, &claimed.h));
	assert_int_equal(kvs_engine_poll(g.engine, &taken.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(kvs_engine_poll(g.engine, &done.h, NULL),
			 KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_poll(g.engine, &copied.h, NULL),
			 KVS_STATUS_DONE);
	/* From the mapping to the end. */
	rig_copied(&g, &copying);
	assert_int_equal(kvs_engine_progress(g.engine), -ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &copying.h, NULL),
			 KVS_STATUS_DONE);
	rig_check_device(&g, &copying);
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -ECONNRESET);
	rig_commit_args(&g, &ready, &c);
	assert_int_equal(kvs_engine_commit(g.engine, &ready.h, &c), -ECANCELED);
	assert_int_equal(kvs_engine_abort(g.engine, &waiting.h), -EALREADY);
	rig_room_fini(&g, &waiting);
	rig_room_fini(&g, &ready);
	rig_room_fini(&g, &claimed);
	rig_room_fini(&g, &taken);
	rig_room_fini(&g, &copying);
	rig_room_fini(&g, &copied);
	rig_room_fini(&g, &done);
	rig_stop(&g);
}

static void test_copy_fails_without_a_daemon(void **state)
{
	struct rig g = { .plan = { .fail_nth = 1, .hold_nth = 1 } };
	struct rig_room m;
	int err;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	rig_die(&g);
	assert_int_equal(kvs_engine_progress(g.engine), -ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_COMMITTING);
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_soft_release(g.device), 0);
	rig_copied(&g, &m);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, EIO);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

struct detach_daemon {
	struct rig *g;
	int types[4];
	bool early;
};

/* Plays the daemon while the other thread is inside detach(). */
static void *detach_peer(void *arg)
{
	struct detach_daemon *d = arg;
	struct pollfd p = { .fd = d->g->fd, .events = POLLIN };
	struct kvs_packet_room r;

	for (int i = 0; i < 4; i++) {
		if (poll(&p, 1, RIG_WAIT_MS) != 1)
			break;
		if (recv(d->g->fd, &r, sizeof(r), 0) <= 0)
			break;
		d->types[i] = (int)r.h.type;
		if (i == 0) {
			/* The copy is held: nothing may come after ABORT. */
			d->early = poll(&p, 1, 30) != 0;
			(void)kvs_soft_release(d->g->device);
		}
	}
	return NULL;
}

static void test_detach_waits_for_its_copies(void **state)
{
	struct rig g = { .plan = { .hold_nth = 1 } };
	struct detach_daemon d = { .g = &g };
	struct rig_room m;
	pthread_t t;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 300);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	assert_int_equal(pthread_create(&t, NULL, detach_peer, &d), 0);
	kvs_engine_detach(g.engine);
	g.engine = NULL;
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_false(d.early);
	assert_int_equal(d.types[0], KVS_PACKET_ABORT);
	assert_int_equal(d.types[1], KVS_PACKET_COPY_OVER);
	assert_int_equal(d.types[2], KVS_PACKET_DETACH);
	assert_int_equal(d.types[3], 0);
	kvs_geometry_fini(&m.geo);
	rig_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_go_where_they_were_sent),
		cmocka_unit_test(test_no_copy_before_the_daemon_says_so),
		cmocka_unit_test(test_commit_checks_its_arguments),
		cmocka_unit_test(test_page_off_the_device_is_a_failed_copy),
		cmocka_unit_test(test_failed_copies_are_reported),
		cmocka_unit_test(test_aux_blocks),
		cmocka_unit_test(test_abort_before_the_claim),
		cmocka_unit_test(test_abort_of_a_claim),
		cmocka_unit_test(test_abort_of_a_running_copy),
		cmocka_unit_test(test_failed_under_a_running_copy),
		cmocka_unit_test(test_abort_after_the_copy),
		cmocka_unit_test(test_daemon_dies),
		cmocka_unit_test(test_copy_fails_without_a_daemon),
		cmocka_unit_test(test_detach_waits_for_its_copies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
