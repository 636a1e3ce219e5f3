/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of requests that leave the device and come back, by the library's
 * engine against a daemon core:
 *
 * - they come back as they went, to other pages, also with a partial last page
 *   and fixed-count buffers
 * - device pages stay the copy's from the call on until all of it is out, not
 *   until the first part is (sgl-project/sglang#24226), whatever path the
 *   engine takes to free them (sgl-project/sglang#30899)
 * - no copy begins before what it copies has been written
 *   (vllm-project/vllm#45704, #46278)
 * - an abort in any state leaves nothing behind and touches nothing that a
 *   copy still uses (sgl-project/sglang#21652, #20790)
 * - the copy's lists are its own: the caller's may change at once
 *   (NVIDIA/TensorRT-LLM#15546)
 * - one that is dropped before its engine knows its generation gives the memory
 *   back as soon as the engine says that no copy of it will run
 * - without memory it stays where it is, whole, and is told so
 * - a failed copy out leaves it whole; a failed copy back ends it
 * - an engine that dies while its copy runs gives the memory back when it is
 *   gone, not before
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/device.h"
#include "tests/regress/offload_rig.h"
#include "tests/regress/puppet_engine.h"

static struct of o[1];

/* what its states take is rounded up */
#define BYTES(pages) ((uint64_t)(pages)*4 * OF_ITEM + 4096)

static void overwrite(const struct of_request *q)
{
	struct of_request other = *q;

	other.id = q->id + 1000;
	of_fill(o, &other);
}

static void test_there_and_back(void **state)
{
	struct of_request q, before;

	(void)state;
	of_up(o, "256K", NULL);
	for (uint32_t n = 1; n < OF_PAGES; n += 7) {
		of_place(o, &q, n, n);
		of_fill(o, &q);
		before = q;
		assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
		/* the lists are the caller's again */
		memset(q.pages, 0xff, sizeof(q.pages));
		assert_true(kvs_engine_copy_live(o->e, &q.h));
		of_wait(o, &q, KVS_STATUS_READY);
		assert_false(kvs_engine_copy_live(o->e, &q.h));
		assert_int_equal(of_bytes(o, KVS_EXTENT_RETRACTED), BYTES(n));
		overwrite(&before);
		of_place(o, &q, n, n);
		assert_int_equal(of_back(o, &q), 0);
		of_wait(o, &q, KVS_STATUS_DONE);
		assert_int_equal(of_wrong(o, &q), 0);
		of_release(o, &q);
	}
	assert_int_equal(of_count(o, KVS_RETRACT_RESULT_RESUMED), 9);
	of_down(o);
}

/* Held part way: none of its pages are free, though some are out. */
static void test_pages_wait_for_all(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct of_request q;

	(void)state;
	of_up(o, "256K", &plan);
	of_place(o, &q, 1, 50);
	of_fill(o, &q);
	assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
	of_wait(o, &q, KVS_STATUS_ADMITTED);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(of_status(o, &q, NULL), KVS_STATUS_ADMITTED);
		assert_true(kvs_engine_copy_live(o->e, &q.h));
		assert_int_equal(kvs_engine_release(o->e, &q.h), -EBUSY);
	}
	assert_int_equal(of_bytes(o, KVS_EXTENT_GRANTED), BYTES(50));
	assert_int_equal(kvs_soft_release(o->d), 0);
	of_wait(o, &q, KVS_STATUS_READY);
	overwrite(&q);
	of_place(o, &q, 1, 50);
	assert_int_equal(of_back(o, &q), 0);
	of_wait(o, &q, KVS_STATUS_DONE);
	assert_int_equal(of_wrong(o, &q), 0);
	of_release(o, &q);
	of_down(o);
}

/* The forward pass that writes the pages, in ten steps. */
struct pass {
	const struct of_request *q;
	unsigned int left;
	int end;
};

static int written(void *arg)
{
	struct pass *p = arg;

	if (!p->left)
		return p->end;
	if (!--p->left)
		of_fill(o, p->q);
	return -EINPROGRESS;
}

static void test_not_before_it_is_written(void **state)
{
	struct of_request q;
	struct pass p = { .q = &q, .left = 10 };

	(void)state;
	of_up(o, "256K", NULL);
	of_place(o, &q, 1, 30);
	assert_int_equal(of_leave(o, &q, written, &p), 0);
	of_wait(o, &q, KVS_STATUS_READY);
	assert_int_equal(p.left, 0);
	overwrite(&q);
	assert_int_equal(of_back(o, &q), 0);
	of_wait(o, &q, KVS_STATUS_DONE);
	assert_int_equal(of_wrong(o, &q), 0);
	of_release(o, &q);
	/* and one that failed is not copied at all */
	p = (struct pass){ .q = &q, .left = 3, .end = -EFAULT };
	assert_int_equal(of_leave(o, &q, written, &p), 0);
	of_wait_failed(o, &q, EFAULT);
	/* one that is given up meanwhile is never asked again */
	p = (struct pass){ .q = &q, .left = 1000000 };
	assert_int_equal(of_leave(o, &q, written, &p), 0);
	of_wait(o, &q, KVS_STATUS_ADMITTED);
	while (p.left == 1000000)
		(void)of_status(o, &q, NULL);
	assert_int_equal(kvs_engine_abort(o->e, &q.h), 0);
	assert_false(kvs_engine_copy_live(o->e, &q.h));
	p.left = 77;
	of_wait_failed(o, &q, ECANCELED);
	assert_int_equal(p.left, 77);
	of_down(o);
}

/* How far it is when it is given up. */
enum far { CALLED, PLACED, COPYING, OUT, CLAIMED, BACK };

static void go(struct of_request *q, enum far far)
{
	assert_int_equal(of_leave(o, q, NULL, NULL), 0);
	if (far == CALLED)
		return;
	if (far == PLACED) {
		rig_wait(&o->r,
			 o->r.snap->workers[0]
					 .stats
					 .retracts[KVS_RETRACT_RESULT_TAKEN] >
				 0);
		return;
	}
	if (far == COPYING) {
		of_wait(o, q, KVS_STATUS_ADMITTED);
		return;
	}
	of_wait(o, q, KVS_STATUS_READY);
	if (far == OUT)
		return;
	assert_int_equal(of_back(o, q), 0);
	if (far == CLAIMED)
		return;
	for (uint64_t until = rig_until();
	     kvs_engine_copied_layers(o->e, &q->h) == 0 &&
	     of_bytes(o, KVS_EXTENT_COMMITTING) == 0;
	     rig_pause(until, "a claim", __FILE__, __LINE__))
		(void)of_status(o, q, NULL);
	(void)of_status(o, q, NULL);
}

static void test_abort_anywhere(void **state)
{
	struct of_request q;

	(void)state;
	for (int far = CALLED; far <= BACK; far++) {
		/* the copy that is to be under way is held */
		struct kvs_soft_plan plan = { .hold_nth = far == COPYING ? 1
							  : far == BACK	 ? 2
									 : 0 };

		of_up(o, "256K", &plan);
		of_place(o, &q, 1, 40);
		of_fill(o, &q);
		go(&q, (enum far)far);
		assert_int_equal(kvs_drop(o->e, &q.h), 0);
		assert_int_equal(kvs_drop(o->e, &q.h), 0);
		if (plan.hold_nth) {
			rig_wait(&o->r,
				 of_bytes(o, KVS_EXTENT_HELD) == BYTES(40));
			for (int i = 0; i < 20; i++) {
				(void)of_status(o, &q, NULL);
				assert_true(kvs_engine_copy_live(o->e, &q.h));
			}
			assert_int_equal(of_bytes(o, KVS_EXTENT_HELD),
					 BYTES(40));
			assert_int_equal(kvs_soft_release(o->d), 0);
		}
		of_wait_failed(o, &q, ECANCELED);
		for (uint64_t until = rig_until();
		     of_bytes(o, KVS_EXTENT_FREE) !=
		     o->r.snap->workers[0].pools[1].account.configured;
		     rig_pause(until, "memory", __FILE__, __LINE__))
			assert_true(kvs_engine_progress(o->e) >= 0);
		/* slot and memory serve the next */
		for (int i = 0; i < 3; i++) {
			of_place(o, &q, 5, 60);
			of_fill(o, &q);
			assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
			of_wait(o, &q, KVS_STATUS_READY);
			assert_int_equal(of_back(o, &q), 0);
			of_wait(o, &q, KVS_STATUS_DONE);
			assert_int_equal(of_wrong(o, &q), 0);
			of_release(o, &q);
		}
		of_down(o);
	}
}

/* The engine's last word of it comes when the daemon has ended it. */
static void test_dropped_before_it_is_known(void **state)
{
	struct kvs_packet_retract p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_RETRACT },
		.id = 1,
		.tokens = 40 * OF_PAGE_SIZE,
		.slot = 3,
		.node = -1,
	};
	struct pe_room r = { .slot = 3 };
	struct pe e;

	(void)state;
	of_up(o, "256K", NULL);
	pe_up(&e, o->r.set.engine_socket, &ps_one_layer);
	for (int i = 0; i < 3; i++) {
		r.previous = KVS_WORD_GEN(atomic_load(&e.words[r.slot]));
		assert_int_equal(pe_send(e.fd, &p, sizeof(p), NULL, 0), 0);
		assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &r, 0), 0);
		for (uint64_t until = rig_until();
		     KVS_WORD_GEN(atomic_load(&e.words[r.slot])) ==
			     r.previous ||
		     KVS_WORD_STATUS(atomic_load(&e.words[r.slot])) !=
			     KVS_STATUS_FAILED;
		     rig_pause(until, "its end", __FILE__, __LINE__))
			;
		/* a copy may run, for all the daemon knows */
		assert_int_not_equal(of_bytes(o, KVS_EXTENT_HELD), 0);
		assert_int_equal(pe_say(&e, KVS_PACKET_COPY_OVER, &r, 0), 0);
		rig_wait(&o->r, of_bytes(o, KVS_EXTENT_HELD) == 0);
		assert_int_equal(
			of_bytes(o, KVS_EXTENT_FREE),
			o->r.snap->workers[0].pools[1].account.configured);
	}
	pe_down(&e);
	of_down(o);
}

static void test_no_space(void **state)
{
	struct of_request a, b;
	struct kvs_failure f;

	(void)state;
	of_up(o, "256K", NULL);
	of_place(o, &a, 1, 40);
	of_place(o, &b, 2, 40);
	of_fill(o, &a);
	assert_int_equal(of_leave(o, &a, NULL, NULL), 0);
	of_wait(o, &a, KVS_STATUS_READY);
	of_fill(o, &b);
	assert_int_equal(of_leave(o, &b, NULL, NULL), 0);
	while (of_status(o, &b, NULL) != KVS_STATUS_FAILED)
		;
	assert_int_equal(kvs_engine_failure(o->e, &b.h, &f), 0);
	assert_int_equal(f.err, ENOSPC);
	assert_int_equal(f.http_class, 503);
	assert_non_null(strstr(f.text, "stays on the device"));
	assert_int_equal(of_wrong(o, &b), 0);
	of_wait_failed(o, &b, ENOSPC);
	assert_int_equal(of_count(o, KVS_RETRACT_RESULT_NOSPACE), 1);
	/* when the other has gone there is room */
	assert_int_equal(kvs_drop(o->e, &a.h), 0);
	of_wait_failed(o, &a, ECANCELED);
	assert_int_equal(of_leave(o, &b, NULL, NULL), 0);
	of_wait(o, &b, KVS_STATUS_READY);
	assert_int_equal(kvs_drop(o->e, &b.h), 0);
	of_wait_failed(o, &b, ECANCELED);
	of_down(o);
	/* a daemon without such a pool */
	of_up(o, "0", NULL);
	of_place(o, &a, 1, 4);
	assert_int_equal(of_leave(o, &a, NULL, NULL), 0);
	of_wait_failed(o, &a, E2BIG);
	of_down(o);
}

static void test_failed_copies(void **state)
{
	struct of_request q;

	(void)state;
	for (unsigned int late = 0; late < 2; late++) {
		const struct kvs_soft_plan plan = {
			.fail_nth = late ? 0 : 1,
			.fail_late_nth = late ? 1 : 3,
		};

		of_up(o, "256K", &plan);
		of_place(o, &q, 1, 40);
		of_fill(o, &q);
		assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
		of_wait_failed(o, &q, EIO);
		assert_int_equal(of_wrong(o, &q), 0);
		assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
		of_wait(o, &q, KVS_STATUS_READY);
		assert_int_equal(of_back(o, &q), 0);
		if (late) {
			of_wait(o, &q, KVS_STATUS_DONE);
			of_release(o, &q);
		} else {
			of_wait_failed(o, &q, EIO);
		}
		of_down(o);
	}
}

/* argv: socket. It dies while its copy out runs. */
static _Noreturn void child(char **argv)
{
	const struct kvs_soft_plan plan = { .hold_nth = 1 };
	struct of_request q;

	memset(o, 0, sizeof(*o));
	of_attach(o, argv[1], &plan);
	of_place(o, &q, 1, 40);
	of_fill(o, &q);
	if (of_leave(o, &q, NULL, NULL))
		_exit(1);
	for (;;) {
		(void)of_status(o, &q, NULL);
		if (kvs_engine_poll(o->e, &q.h, NULL) == KVS_STATUS_ADMITTED)
			break;
	}
	rig_child_say();
	for (;;)
		pause();
}

static void test_engine_dies(void **state)
{
	const char *args[2] = { NULL };
	struct of_request q;
	pid_t pid;
	int fd;

	(void)state;
	of_up(o, "256K", NULL);
	args[0] = o->r.set.engine_socket;
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	assert_int_equal(of_bytes(o, KVS_EXTENT_GRANTED), BYTES(40));
	of_place(o, &q, 2, 40);
	of_fill(o, &q);
	assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
	of_wait_failed(o, &q, ENOSPC);
	rig_kill(pid, &fd);
	rig_wait(
		&o->r,
		o->r.snap->workers[0].pools[1].account.bytes[KVS_EXTENT_FREE] ==
			256 * 1024);
	assert_int_equal(rig_drains(&o->r, KVS_DRAIN_DRAINED,
				    KVS_PROOF_PROCESS_EXIT),
			 1);
	assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
	of_wait(o, &q, KVS_STATUS_READY);
	assert_int_equal(kvs_drop(o->e, &q.h), 0);
	of_wait_failed(o, &q, ECANCELED);
	of_down(o);
}

/* The arguments are checked before anything exists. */
static void test_arguments(void **state)
{
	struct of_request q;
	struct kvs_retract r = { .size = sizeof(r), .tokens = 16, .node = -1 };
	kvs_handle h = { 0 };

	(void)state;
	of_up(o, "256K", NULL);
	of_place(o, &q, 1, 4);
	assert_int_equal(kvs_retract(o->e, NULL, &h), -EINVAL);
	assert_int_equal(kvs_retract(o->e, &r, &h), -EINVAL);
	r.device = o->d;
	r.buffers = o->dev;
	r.pages = q.pages;
	r.n_pages = 4;
	assert_int_equal(kvs_retract(o->e, &r, &h), -EINVAL); /* items */
	r.items = q.items;
	r.n_items = OF_ITEMS;
	r.n_pages = 3;
	assert_int_equal(kvs_retract(o->e, &r, &h), -EINVAL);
	r.n_pages = 4;
	r.tokens = 17;
	assert_int_equal(kvs_retract(o->e, &r, &h), -EINVAL);
	r.tokens = 16;
	r.size--;
	assert_int_equal(kvs_retract(o->e, &r, &h), -EINVAL);
	r.size++;
	assert_int_equal(kvs_drop(o->e, &h), -ENOENT);
	assert_int_equal(of_back(o, &q), -ENOENT);
	r.node = 1023;
	assert_int_equal(kvs_retract(o->e, &r, &q.h), 0);
	of_wait_failed(o, &q, ENXIO);
	/* not before it is out */
	assert_int_equal(of_leave(o, &q, NULL, NULL), 0);
	assert_int_equal(of_back(o, &q), -EAGAIN);
	of_wait(o, &q, KVS_STATUS_READY);
	assert_int_equal(of_back(o, &q), 0);
	assert_int_equal(of_back(o, &q), -EALREADY);
	of_wait(o, &q, KVS_STATUS_DONE);
	of_release(o, &q);
	/* a daemon that goes down with one out, and one leaving */
	of_down(o);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_pages_wait_for_all),
		cmocka_unit_test(test_not_before_it_is_written),
		cmocka_unit_test(test_abort_anywhere),
		cmocka_unit_test(test_dropped_before_it_is_known),
		cmocka_unit_test(test_no_space),
		cmocka_unit_test(test_failed_copies),
		cmocka_unit_test(test_engine_dies),
		cmocka_unit_test(test_arguments),
	};

	if (argc > 1)
		child(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
