/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the queues lose nothing, repeat nothing and keep each producer's
 * order, with real threads; what a producer wrote before the push is seen
 * after the pop (the thread sanitizer checks the ordering itself); the
 * bounded ring refuses when full and survives its indices wrapping at 2^32.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/mpsc.h"
#include "lib/spsc.h"

struct msg {
	struct kvs_mpsc_node node;
	unsigned int from;
	unsigned int no;
	/* plain memory, filled before the push */
	uint64_t body;
};

static uint64_t body_of(unsigned int from, unsigned int no)
{
	return ((uint64_t)from << 32 | no) * 0x9e3779b97f4a7c15ULL;
}

static struct msg *to_msg(struct kvs_mpsc_node *n)
{
	return n ? kvs_container_of(n, struct msg, node) : NULL;
}

static void mpsc_one_thread(void **state)
{
	struct kvs_mpsc q;
	struct msg m[5] = { { .no = 0 } };
	unsigned int round, i;

	(void)state;
	kvs_mpsc_init(&q);
	assert_null(kvs_mpsc_pop(&q));
	/* every length again and again: the stub re-enters each time */
	for (round = 0; round < 50; round++) {
		unsigned int len = round % 5 + 1;

		for (i = 0; i < len; i++) {
			m[i].no = round * 10 + i;
			kvs_mpsc_push(&q, &m[i].node);
		}
		for (i = 0; i < len; i++) {
			struct msg *got = to_msg(kvs_mpsc_pop(&q));

			assert_ptr_equal(got, &m[i]);
			assert_int_equal(got->no, round * 10 + i);
		}
		assert_null(kvs_mpsc_pop(&q));
		assert_null(kvs_mpsc_pop(&q));
	}
}

static void mpsc_push_between_pops(void **state)
{
	struct kvs_mpsc q;
	struct msg m[3] = { { .no = 0 } };

	(void)state;
	kvs_mpsc_init(&q);
	kvs_mpsc_push(&q, &m[0].node);
	kvs_mpsc_push(&q, &m[1].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[0].node);
	kvs_mpsc_push(&q, &m[2].node);
	/* a popped node is the caller's and may go in again */
	kvs_mpsc_push(&q, &m[0].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[1].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[2].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[0].node);
	assert_null(kvs_mpsc_pop(&q));
}

/* A push that has swapped the head and not yet linked its node. */
static void mpsc_half_done_push(void **state)
{
	struct kvs_mpsc q;
	struct msg m[3] = { { .no = 0 } };
	struct kvs_mpsc_node *prev;

	(void)state;
	kvs_mpsc_init(&q);
	kvs_mpsc_push(&q, &m[0].node);
	atomic_store(&m[1].node.next, NULL);
	prev = atomic_exchange(&q.head, &m[1].node);
	kvs_mpsc_push(&q, &m[2].node);
	/* m[0] cannot be handed out: its ->next is still to be written */
	assert_null(kvs_mpsc_pop(&q));
	assert_null(kvs_mpsc_pop(&q));
	atomic_store(&prev->next, &m[1].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[0].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[1].node);
	assert_ptr_equal(kvs_mpsc_pop(&q), &m[2].node);
	assert_null(kvs_mpsc_pop(&q));
}

#define PRODUCERS 4
#define PER_PRODUCER 30000

struct producer {
	struct kvs_mpsc *q;
	struct msg *m;
	unsigned int id;
	pthread_t thread;
};

static void *produce(void *arg)
{
	struct producer *p = arg;
	unsigned int i;

	for (i = 0; i < PER_PRODUCER; i++) {
		p->m[i].from = p->id;
		p->m[i].no = i;
		p->m[i].body = body_of(p->id, i);
		kvs_mpsc_push(p->q, &p->m[i].node);
		if (!(i & 1023))
			sched_yield();
	}
	return NULL;
}

static void mpsc_threads(void **state)
{
	struct producer p[PRODUCERS];
	unsigned int next[PRODUCERS] = { 0 };
	unsigned int left = PRODUCERS * PER_PRODUCER;
	struct kvs_mpsc q;
	unsigned int i;

	(void)state;
	kvs_mpsc_init(&q);
	for (i = 0; i < PRODUCERS; i++) {
		p[i].q = &q;
		p[i].id = i;
		p[i].m = calloc(PER_PRODUCER, sizeof(struct msg));
		assert_non_null(p[i].m);
	}
	for (i = 0; i < PRODUCERS; i++)
		assert_int_equal(
			pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
	while (left) {
		struct msg *m = to_msg(kvs_mpsc_pop(&q));

		if (!m) {
			sched_yield();
			continue;
		}
		assert_true(m->from < PRODUCERS);
		assert_int_equal(m->no, next[m->from]);
		assert_true(m->body == body_of(m->from, m->no));
		next[m->from]++;
		/* the consumer owns it now: a late store would race */
		m->body = 0;
		left--;
	}
	assert_null(kvs_mpsc_pop(&q));
	for (i = 0; i < PRODUCERS; i++) {
		pthread_join(p[i].thread, NULL);
		assert_int_equal(next[i], PER_PRODUCER);
		free(p[i].m);
	}
	assert_null(kvs_mpsc_pop(&q));
}

static void spsc_full_and_empty(void **state)
{
	struct kvs_spsc r;
	void *slot[4];
	int v[5];
	int i;

	(void)state;
	kvs_spsc_init(&r, slot, 4);
	assert_null(kvs_spsc_pop(&r));
	for (i = 0; i < 4; i++)
		assert_true(kvs_spsc_push(&r, &v[i]));
	assert_false(kvs_spsc_push(&r, &v[4]));
	assert_ptr_equal(kvs_spsc_pop(&r), &v[0]);
	assert_true(kvs_spsc_push(&r, &v[4]));
	assert_false(kvs_spsc_push(&r, &v[0]));
	for (i = 1; i < 5; i++)
		assert_ptr_equal(kvs_spsc_pop(&r), &v[i]);
	assert_null(kvs_spsc_pop(&r));
}

static void spsc_capacity_one(void **state)
{
	struct kvs_spsc r;
	void *slot[1];
	int a, b;

	(void)state;
	kvs_spsc_init(&r, slot, 1);
	assert_true(kvs_spsc_push(&r, &a));
	assert_false(kvs_spsc_push(&r, &b));
	assert_ptr_equal(kvs_spsc_pop(&r), &a);
	assert_true(kvs_spsc_push(&r, &b));
	assert_ptr_equal(kvs_spsc_pop(&r), &b);
	assert_null(kvs_spsc_pop(&r));
}

#define SPSC_CAP 8
#define SPSC_ITEMS 100000

struct spsc_run {
	struct kvs_spsc r;
	void *slot[SPSC_CAP];
	uint64_t *value;
};

static void *spsc_produce(void *arg)
{
	struct spsc_run *run = arg;
	unsigned int i;

	for (i = 0; i < SPSC_ITEMS; i++) {
		run->value[i] = body_of(1, i);
		while (!kvs_spsc_push(&run->r, &run->value[i]))
			sched_yield();
	}
	return NULL;
}

static void spsc_threads_over_wrap(void **state)
{
	struct spsc_run run;
	pthread_t thread;
	unsigned int i;

	(void)state;
	run.value = calloc(SPSC_ITEMS, sizeof(uint64_t));
	assert_non_null(run.value);
	kvs_spsc_init(&run.r, run.slot, SPSC_CAP);
	/* the indices pass 2^32 in the middle of the run */
	atomic_init(&run.r.head, UINT32_MAX - SPSC_ITEMS / 2);
	atomic_init(&run.r.tail, UINT32_MAX - SPSC_ITEMS / 2);
	assert_int_equal(pthread_create(&thread, NULL, spsc_produce, &run), 0);
	for (i = 0; i < SPSC_ITEMS;) {
		uint64_t *v = kvs_spsc_pop(&run.r);

		if (!v) {
			sched_yield();
			continue;
		}
		assert_ptr_equal(v, &run.value[i]);
		assert_true(*v == body_of(1, i));
		i++;
	}
	pthread_join(thread, NULL);
	assert_null(kvs_spsc_pop(&run.r));
	assert_true(atomic_load(&run.r.head) < SPSC_ITEMS);
	free(run.value);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mpsc_one_thread),
		cmocka_unit_test(mpsc_push_between_pops),
		cmocka_unit_test(mpsc_half_done_push),
		cmocka_unit_test(mpsc_threads),
		cmocka_unit_test(spsc_full_and_empty),
		cmocka_unit_test(spsc_capacity_one),
		cmocka_unit_test(spsc_threads_over_wrap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
