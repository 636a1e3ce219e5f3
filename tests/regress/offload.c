/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of blocks that an engine decoded and offloads, and of cached ones
 * that it recalls without a room, by the library's engine against a daemon
 * core:
 *
 * - they come back from the cache as they went, to other pages, layer by layer;
 *   also where the device pool is page first, as do retracted requests
 * - device pages are the copy's until all of it is out, and nothing is found
 *   before (sgl-project/sglang#24226, #30899)
 * - an abort in any state leaves nothing behind, and what a copy reads of the
 *   cache stays until its end, however the engine gave it up
 *   (sgl-project/sglang#26728)
 * - an engine that dies while its copy runs leaves nothing in the cache, and
 *   the memory comes back when it is gone
 * - what cannot be had is told, and the device pages are whole
 * - many are asked for, and end, in one call
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gpu/device.h"
#include "tests/regress/keep_rig.h"

#define MANY 3u

static struct kp k[1];

static void test_there_and_back(void **state)
{
	struct kp_talk t;

	(void)state;
	for (int page_first = 0; page_first < 2; page_first++) {
		kp_start(k, "512K", NULL, page_first);
		for (uint32_t n = 1; n < KP_PAGES_MAX; n += 13) {
			kp_talk(k, &t, n, n);
			kp_fill_as(k, &t, t.id);
			kp_leave(k, &t);
			assert_true(kvs_engine_copy_live(k->e, &t.h));
			kp_wait_for(k, &t.h, KVS_STATUS_SEALING);
			/* free, and used by another at once */
			kp_fill_as(k, &t, 200);
			kp_wait_for(k, &t.h, KVS_STATUS_DONE);
			assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
			assert_int_equal(kp_found(k, &t), n);
			kp_back(k, &t);
		}
		/* again, and more: what is there need not be copied */
		kp_talk(k, &t, 27, 40);
		kp_fill_as(k, &t, t.id);
		kp_leave(k, &t);
		assert_int_equal(kp_cached(k, &t.h), 27);
		kp_wait_for(k, &t.h, KVS_STATUS_DONE);
		assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
		kp_stop(k);
	}
}

/* A retracted request of a pool that is page first. */
static void test_retract_page_first(void **state)
{
	struct kvs_retract r = { .size = sizeof(r), .id = 1, .node = -1 };
	struct kvs_commit c;
	struct kp_talk t;

	(void)state;
	kp_start(k, "512K", NULL, true);
	kp_talk(k, &t, 1, 50);
	kp_fill_as(k, &t, 1);
	r.tokens = t.n * KP_PAGE_SIZE - 1;
	r.device = k->d;
	r.buffers = k->dev;
	r.pages = t.pages;
	r.n_pages = t.n;
	r.strides = k->strides;
	assert_int_equal(kvs_retract(k->e, &r, &t.h), 0);
	kp_wait_for(k, &t.h, KVS_STATUS_READY);
	kp_fill_as(k, &t, 200);
	kp_place(k, &t);
	c = kp_places(k, &t);
	assert_int_equal(kvs_recall(k->e, &t.h, &c), -ENOENT);
	assert_int_equal(kvs_resume(k->e, &t.h, &c), 0);
	kp_wait_for(k, &t.h, KVS_STATUS_DONE);
	assert_int_equal(kp_wrong(k, &t), 0);
	assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
	kp_stop(k);
}

/* Held part way: none of its pages are free, and none of it is found. */
static void test_pages_wait_for_all(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct kp_talk t;

	(void)state;
	kp_start(k, "512K", &plan, false);
	kp_talk(k, &t, 1, 50);
	kp_fill_as(k, &t, 1);
	kp_leave(k, &t);
	kp_wait_for(k, &t.h, KVS_STATUS_ADMITTED);
	for (int i = 0; i < 30; i++) {
		assert_int_equal(kp_status(k, &t.h, NULL), KVS_STATUS_ADMITTED);
		assert_true(kvs_engine_copy_live(k->e, &t.h));
		assert_int_equal(kvs_engine_release(k->e, &t.h), -EBUSY);
		assert_int_equal(kp_found(k, &t), 0);
	}
	assert_int_equal(kp_bytes(k, KVS_EXTENT_GRANTED), KP_BYTES(50));
	assert_int_equal(kvs_soft_release(k->d), 0);
	kp_wait_for(k, &t.h, KVS_STATUS_DONE);
	kp_fill_as(k, &t, 200);
	assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
	kp_back(k, &t);
	kp_stop(k);
}

enum far { CALLED, PLACED, COPYING, FARS };

static void test_abort_anywhere(void **state)
{
	struct kp_talk t;

	(void)state;
	for (int far = CALLED; far < FARS; far++) {
		const struct kvs_soft_plan plan = { .hold_nth = far ==
								COPYING };

		kp_start(k, "512K", &plan, false);
		kp_talk(k, &t, 1, 50);
		kp_fill_as(k, &t, 1);
		kp_leave(k, &t);
		if (far == PLACED)
			rig_wait(&k->r, kp_bytes(k, KVS_EXTENT_GRANTED) ==
						KP_BYTES(50));
		if (far == COPYING)
			kp_wait_for(k, &t.h, KVS_STATUS_ADMITTED);
		assert_int_equal(kvs_drop(k->e, &t.h), -ENOENT);
		assert_int_equal(kvs_engine_abort(k->e, &t.h), 0);
		assert_int_equal(kvs_engine_abort(k->e, &t.h), 0);
		if (far == COPYING) {
			rig_wait(&k->r,
				 kp_bytes(k, KVS_EXTENT_HELD) == KP_BYTES(50));
			for (int i = 0; i < 20; i++) {
				(void)kp_status(k, &t.h, NULL);
				assert_true(kvs_engine_copy_live(k->e, &t.h));
			}
			assert_int_equal(kp_bytes(k, KVS_EXTENT_HELD),
					 KP_BYTES(50));
			assert_int_equal(kvs_soft_release(k->d), 0);
		}
		kp_wait_failed(k, &t.h, ECANCELED);
		for (uint64_t until = rig_until();
		     kp_bytes(k, KVS_EXTENT_FREE) != 512 * 1024;
		     rig_pause(until, "memory", __FILE__, __LINE__))
			assert_true(kvs_engine_progress(k->e) >= 0);
		assert_int_equal(kp_found(k, &t), 0);
		assert_int_equal(kp_wrong(k, &t), 0);
		/* the same again, which is kept */
		kp_leave(k, &t);
		kp_wait_for(k, &t.h, KVS_STATUS_DONE);
		assert_int_equal(kvs_engine_abort(k->e, &t.h), -EALREADY);
		assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
		kp_back(k, &t);
		kp_stop(k);
	}
}

/* A recall that is given up while its copy is held: what it reads stays, though
 * all that is cached is to go, until the copy has ended. */
static void test_recall_is_given_up(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 2 };
	struct kvs_cache_query q;
	struct kp_talk t;
	kvs_handle h;

	(void)state;
	kp_start(k, "512K", &plan, false);
	kp_talk(k, &t, 1, 60);
	kp_fill_as(k, &t, 1);
	kp_leave(k, &t);
	kp_wait_for(k, &t.h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
	kp_pin(k, &t);
	kp_recall(k, &t);
	for (uint64_t until = rig_until();
	     kp_status(k, &t.h, NULL) != KVS_STATUS_COMMITTING ||
	     k->r.snap->workers[0].stats.recalls[KVS_RECALL_RESULT_PINNED] == 0;
	     rig_pause(until, "a copy", __FILE__, __LINE__))
		rig_refresh(&k->r);
	q = kp_query(&t);
	assert_int_equal(kvs_cache_drop(k->e, &q, &h), 0);
	kp_wait_for(k, &h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(k->e, &h), 0);
	assert_int_equal(kvs_cache_unpin(k->e, &t.h), 0);
	assert_int_equal(kp_found(k, &t), 0);
	for (int i = 0; i < 20; i++) {
		(void)kp_status(k, &t.h, NULL);
		assert_true(kvs_engine_copy_live(k->e, &t.h));
		assert_int_equal(kvs_engine_release(k->e, &t.h), -EBUSY);
	}
	rig_wait(&k->r,
		 k->r.snap->workers[0].cache.pinned_bytes == KP_BYTES(60));
	assert_int_equal(kvs_soft_release(k->d), 0);
	kp_wait_failed(k, &t.h, ECANCELED);
	rig_wait(&k->r, k->r.snap->workers[0].cache.bytes == 0);
	assert_int_equal(kp_wrong(k, &t), 0); /* it read nothing but them */
	kp_stop(k);
}

static void test_refused(void **state)
{
	const struct kvs_soft_plan plan = { .fail_nth = 1 };
	struct kvs_offload q;
	struct kvs_failure f;
	struct kvs_cache_query c;
	struct kp_talk t;

	(void)state;
	kp_start(k, "192K", &plan, false); /* 64K of it are the reserve */
	kp_talk(k, &t, 1, 40);
	kp_fill_as(k, &t, 1);
	kp_leave(k, &t);
	while (kp_status(k, &t.h, NULL) != KVS_STATUS_FAILED)
		;
	assert_int_equal(kvs_engine_failure(k->e, &t.h, &f), 0);
	assert_int_equal(f.err, ENOSPC);
	assert_int_equal(f.http_class, 503);
	assert_non_null(strstr(f.text, "reserve.retraction"));
	kp_wait_failed(k, &t.h, ENOSPC);
	/* a copy that fails */
	kp_talk(k, &t, 1, 20);
	kp_fill_as(k, &t, 1);
	kp_leave(k, &t);
	kp_wait_failed(k, &t.h, EIO);
	assert_int_equal(kp_wrong(k, &t), 0);
	assert_int_equal(kp_found(k, &t), 0);
	/* what is not cached cannot be pinned */
	c = kp_query(&t);
	assert_int_equal(kvs_cache_pin(k->e, &c, &t.h), 0);
	kp_wait_failed(k, &t.h, ENOENT);
	/* arguments */
	q = kp_request(k, &t);
	q.n_pages--;
	assert_int_equal(kvs_offload(k->e, &q, &t.h), -EINVAL);
	q = kp_request(k, &t);
	q.hashes = NULL;
	assert_int_equal(kvs_offload(k->e, &q, &t.h), -EINVAL);
	q = kp_request(k, &t);
	q.size--;
	assert_int_equal(kvs_offload(k->e, &q, &t.h), -EINVAL);
	q = kp_request(k, &t);
	q.node = 1023;
	assert_int_equal(kvs_offload(k->e, &q, &t.h), 0);
	kp_wait_failed(k, &t.h, ENXIO);
	assert_int_equal(kvs_cache_unpin(k->e, &t.h), -ENOENT);
	/* an engine that named no space */
	kvs_engine_detach(k->e);
	kp_attach(k, k->r.set.engine_socket, NULL);
	kp_leave(k, &t);
	kp_wait_failed(k, &t.h, EOPNOTSUPP);
	assert_int_equal(kvs_cache_pin(k->e, &c, &t.h), 0);
	kp_wait_failed(k, &t.h, EOPNOTSUPP);
	kp_stop(k);
	/* nor is there a pool */
	kp_start(k, "0", NULL, false);
	kp_leave(k, &t);
	kp_wait_failed(k, &t.h, E2BIG);
	kp_stop(k);
}

/* As many as there are, in one call; pins of the same blocks are each other's
 * business no more than rooms are. */
static void test_many(void **state)
{
	struct kvs_offload out[MANY + 1];
	struct kvs_cache_query q[MANY];
	struct kvs_commit c[MANY];
	kvs_handle h[MANY + 1], again[MANY];
	struct kp_talk t[MANY];
	int res[MANY];

	(void)state;
	kp_start(k, "512K", NULL, false);
	for (uint32_t i = 0; i < MANY; i++) {
		kp_talk(k, &t[i], 1 + i, 10 + i);
		/* not each other's */
		for (uint32_t p = 0; p < t[i].n; p++)
			t[i].pages[p] = i * 32 + p;
		kp_fill_as(k, &t[i], 1 + i);
		out[i] = kp_request(k, &t[i]);
		q[i] = kp_query(&t[i]);
		c[i] = kp_places(k, &t[i]);
	}
	out[MANY] = out[0];
	out[MANY].n_pages++;
	assert_int_equal(kvs_offload_many(k->e, out, 0, NULL), 0);
	assert_int_equal(kvs_offload_many(k->e, NULL, 1, h), -EINVAL);
	assert_int_equal(kvs_offload_many(k->e, &out[MANY], 1, h), -EINVAL);
	/* those before the bad one are taken */
	assert_int_equal(kvs_offload_many(k->e, out, MANY + 1, h), MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		kp_wait_for(k, &h[i], KVS_STATUS_DONE);
		kp_fill_as(k, &t[i], 200);
		assert_int_equal(kvs_engine_release(k->e, &h[i]), 0);
	}
	assert_int_equal(kvs_cache_lookup_many(k->e, q, MANY, h), MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		kp_wait_for(k, &h[i], KVS_STATUS_DONE);
		assert_int_equal(kp_cached(k, &h[i]), 10 + i);
		assert_int_equal(kvs_engine_release(k->e, &h[i]), 0);
	}
	assert_int_equal(kvs_cache_pin_many(k->e, q, MANY, h), MANY);
	assert_int_equal(kvs_cache_pin_many(k->e, q, MANY, again), MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		kp_wait_for(k, &h[i], KVS_STATUS_READY);
		kp_wait_for(k, &again[i], KVS_STATUS_READY);
	}
	assert_int_equal(kvs_cache_unpin_many(k->e, again, MANY), MANY);
	assert_int_equal(kvs_cache_unpin_many(k->e, again, MANY), MANY);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(kvs_engine_release(k->e, &again[i]), 0);
	/* forgotten, but not by those that have them */
	assert_int_equal(kvs_cache_drop_many(k->e, q, MANY, again), MANY);
	for (uint32_t i = 0; i < MANY; i++)
		kp_wait_for(k, &again[i], KVS_STATUS_DONE);
	c[1].n_pages--;
	assert_int_equal(kvs_recall_many(k->e, h, c, MANY, res), MANY - 1);
	assert_int_equal(res[1], -EINVAL);
	c[1].n_pages++;
	assert_int_equal(kvs_recall_many(k->e, h, c, MANY, res), 1);
	assert_int_equal(res[0], -EALREADY);
	for (uint32_t i = 0; i < MANY; i++) {
		kp_wait_for(k, &h[i], KVS_STATUS_DONE);
		assert_int_equal(kp_wrong(k, &t[i]), 0);
		assert_int_equal(kvs_engine_release(k->e, &h[i]), 0);
		assert_int_equal(kvs_engine_release(k->e, &again[i]), 0);
	}
	kp_stop(k);
}

/* ---- an engine that dies ------------------------------------------------ */

/* argv: socket. It dies while its copy out runs. */
static _Noreturn void child(char **argv)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct kp_talk t;

	kp_attach(k, argv[1], "model 1");
	kp_device(k, &plan, false);
	kp_talk(k, &t, 1, 40);
	kp_fill_as(k, &t, 200);
	kp_leave(k, &t);
	while (kvs_engine_poll(k->e, &t.h, NULL) != KVS_STATUS_ADMITTED)
		(void)kvs_engine_progress(k->e);
	rig_child_say();
	for (;;)
		pause();
}

static void test_engine_dies(void **state)
{
	const char *args[2] = { NULL };
	struct kp_talk t;
	pid_t pid;
	int fd;

	(void)state;
	kp_start(k, "256K", NULL, false);
	args[0] = k->r.set.engine_socket;
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	assert_int_equal(kp_bytes(k, KVS_EXTENT_GRANTED), KP_BYTES(40));
	kp_talk(k, &t, 1, 40);
	kp_fill_as(k, &t, 1);
	kp_leave(k, &t);
	kp_wait_failed(k, &t.h, ENOSPC);
	rig_kill(pid, &fd);
	rig_wait(&k->r, kp_bytes(k, KVS_EXTENT_FREE) == 256 * 1024);
	assert_int_equal(rig_drains(&k->r, KVS_DRAIN_DRAINED,
				    KVS_PROOF_PROCESS_EXIT),
			 1);
	assert_int_equal(kp_found(k, &t), 0);
	kp_leave(k, &t);
	kp_wait_for(k, &t.h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_release(k->e, &t.h), 0);
	kp_back(k, &t);
	kp_stop(k);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_retract_page_first),
		cmocka_unit_test(test_pages_wait_for_all),
		cmocka_unit_test(test_abort_anywhere),
		cmocka_unit_test(test_recall_is_given_up),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_engine_dies),
	};

	if (argc > 1)
		child(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
