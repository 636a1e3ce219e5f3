/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: who waits is served in order; the head may be passed by smaller
 * entries so often and so long, never more, and then freed memory is kept for
 * it, so that a thousand small ones cannot starve a huge one; each head has
 * its own limits; an entry may be freed, cancelled or added by a try().
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>

#include "pinned/wait.h"
#include "tests/unit/pinned/seed.h"

#define SEC KVS_NSEC_PER_SEC

/* A stock of bytes and the entries that want some. */
struct shop {
	struct kvs_waitq q;
	struct kvs_vclock clock;
	uint64_t stock;
	unsigned int tries;
	unsigned int order[2048]; /* ids in the order served */
	unsigned int served;
	void (*hook)(struct shop *s, unsigned int id);
};

struct customer {
	struct kvs_wait w;
	struct shop *s;
	unsigned int id;
	int result; /* instead of 0 */
	bool free_it;
};

static int buy(struct kvs_wait *w)
{
	struct customer *c = kvs_container_of(w, struct customer, w);
	struct shop *s = c->s;
	unsigned int id = c->id;
	int r = c->result;

	assert_false(kvs_wait_queued(w));
	s->tries++;
	if (s->stock < w->bytes)
		return -EAGAIN;
	if (!r) {
		s->stock -= w->bytes;
		s->order[s->served++] = id;
	}
	if (c->free_it)
		free(c);
	if (s->hook)
		s->hook(s, id);
	return r;
}

static void open_shop(struct shop *s, unsigned int max, uint64_t ns)
{
	*s = (struct shop){ .stock = 0 };
	kvs_vclock_init(&s->clock, 5 * SEC);
	kvs_waitq_init(&s->q, &s->clock.clk, max, ns);
}

static void come(struct shop *s, struct customer *c, unsigned int id,
		 uint64_t bytes)
{
	*c = (struct customer){ .s = s, .id = id };
	kvs_wait_init(&c->w, buy);
	assert_false(kvs_wait_queued(&c->w));
	kvs_waitq_add(&s->q, &c->w, bytes);
	assert_true(kvs_wait_queued(&c->w));
}

static void in_order(void **state)
{
	struct customer c[5];
	struct shop s;
	unsigned int i;

	(void)state;
	open_shop(&s, 64, SEC);
	for (i = 0; i < 5; i++)
		come(&s, &c[i], i, 10);
	assert_int_equal(s.q.len, 5);
	assert_true(c[0].w.since == 5 * SEC && c[0].w.bytes == 10);
	assert_int_equal(kvs_waitq_run(&s.q, 0), 0);
	assert_int_equal(s.q.len, 5);
	for (i = 0; i < 5; i++)
		assert_true(kvs_wait_queued(&c[i].w));
	s.stock = 25;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 2);
	assert_int_equal(s.order[0], 0);
	assert_int_equal(s.order[1], 1);
	s.stock = 30;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 3);
	for (i = 0; i < 5; i++)
		assert_int_equal(s.order[i], i);
	assert_int_equal(s.q.len, 0);
	assert_true(kvs_waitq_may_pass(&s.q));
	assert_true(kvs_waitq_deadline(&s.q) == KVS_TIME_NEVER);
}

static void limit_by_count(void **state)
{
	struct customer big, small[8];
	struct shop s;
	unsigned int i;

	(void)state;
	open_shop(&s, 3, SEC);
	come(&s, &big, 100, 50);
	for (i = 0; i < 8; i++)
		come(&s, &small[i], i, 1);
	s.stock = 8;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 3);
	assert_int_equal(s.q.overtaken, 3);
	assert_false(kvs_waitq_may_pass(&s.q));
	/* from here freed memory is kept for the head */
	assert_true(s.stock == 5);
	assert_int_equal(kvs_waitq_run(&s.q, 0), 0);
	s.stock = 51;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 2);
	assert_int_equal(s.order[3], 100);
	assert_int_equal(s.order[4], 3);
	/* the next head starts from nothing */
	assert_int_equal(s.q.overtaken, 0);
	assert_true(kvs_waitq_may_pass(&s.q));
}

static void limit_by_time(void **state)
{
	struct customer big, small[3];
	struct shop s;
	unsigned int i;

	(void)state;
	open_shop(&s, 1000, SEC);
	come(&s, &big, 100, 50);
	assert_true(kvs_waitq_deadline(&s.q) == SEC);
	for (i = 0; i < 3; i++)
		come(&s, &small[i], i, 1);
	kvs_vclock_advance(&s.clock, SEC - 1);
	assert_true(kvs_waitq_deadline(&s.q) == 1);
	s.stock = 1;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 1);
	kvs_vclock_advance(&s.clock, 1);
	assert_true(kvs_waitq_deadline(&s.q) == 0);
	assert_false(kvs_waitq_may_pass(&s.q));
	s.stock = 49;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 0);
	assert_true(s.stock == 49);
	s.stock = 50;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 1);
	assert_int_equal(s.order[1], 100);
	/* small[1] became the head just now, with a time of its own */
	assert_true(kvs_waitq_deadline(&s.q) == SEC);
}

static void newcomers_count(void **state)
{
	struct customer big;
	struct shop s;

	(void)state;
	open_shop(&s, 2, SEC);
	/* nobody waits: passing is free */
	kvs_waitq_passed(&s.q);
	assert_true(kvs_waitq_may_pass(&s.q));
	come(&s, &big, 1, 50);
	assert_int_equal(s.q.overtaken, 0);
	kvs_waitq_passed(&s.q);
	assert_true(kvs_waitq_may_pass(&s.q));
	kvs_waitq_passed(&s.q);
	assert_false(kvs_waitq_may_pass(&s.q));
	kvs_waitq_cancel(&s.q, &big.w);
	assert_true(kvs_waitq_may_pass(&s.q));
}

static void only_smaller_pass(void **state)
{
	struct customer head, same, less;
	struct shop s;

	(void)state;
	open_shop(&s, 64, SEC);
	come(&s, &head, 0, 10);
	come(&s, &same, 1, 10);
	come(&s, &less, 2, 9);
	s.stock = 9;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 1);
	assert_int_equal(s.order[0], 2);
	assert_int_equal(s.tries, 2);
}

static void cancelled_head(void **state)
{
	struct customer c[3];
	struct shop s;
	unsigned int i;

	(void)state;
	open_shop(&s, 1, SEC);
	come(&s, &c[0], 0, 50);
	come(&s, &c[1], 1, 20);
	come(&s, &c[2], 2, 1);
	kvs_waitq_passed(&s.q);
	kvs_vclock_advance(&s.clock, SEC / 2);
	/* a cancel behind the head changes nothing for the head */
	kvs_waitq_cancel(&s.q, &c[2].w);
	kvs_waitq_cancel(&s.q, &c[2].w);
	assert_int_equal(s.q.len, 2);
	assert_false(kvs_waitq_may_pass(&s.q));
	kvs_waitq_cancel(&s.q, &c[0].w);
	assert_false(kvs_wait_queued(&c[0].w));
	assert_int_equal(s.q.len, 1);
	assert_true(kvs_waitq_may_pass(&s.q));
	assert_true(kvs_waitq_deadline(&s.q) == SEC);
	s.stock = 20;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 1);
	assert_int_equal(s.order[0], 1);
	for (i = 0; i < 3; i++)
		assert_false(kvs_wait_queued(&c[i].w));
}

static void gave_up_is_no_overtaking(void **state)
{
	struct customer c[3];
	struct shop s;

	(void)state;
	open_shop(&s, 1, SEC);
	come(&s, &c[0], 0, 50);
	come(&s, &c[1], 1, 1);
	come(&s, &c[2], 2, 1);
	c[1].result = -ECANCELED;
	s.stock = 1;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 1);
	assert_int_equal(s.order[0], 2);
	assert_int_equal(s.q.len, 1);
	assert_false(kvs_wait_queued(&c[1].w));
	/* a head that gives up makes way at once */
	come(&s, &c[1], 1, 1);
	c[0].result = -E2BIG;
	s.stock = 50;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 1);
	assert_int_equal(s.order[1], 1);
	assert_int_equal(s.q.len, 0);
}

static void bounded_looks(void **state)
{
	struct customer c[10];
	struct shop s;
	unsigned int i;

	(void)state;
	open_shop(&s, 64, SEC);
	for (i = 0; i < 10; i++)
		come(&s, &c[i], i, 10 - i);
	assert_int_equal(kvs_waitq_run(&s.q, 4), 0);
	assert_int_equal(s.tries, 4);
	s.stock = 1000;
	assert_int_equal(kvs_waitq_run(&s.q, 4), 4);
	assert_int_equal(s.q.len, 6);
}

/* Always one byte free for the small, and new small ones without end. */
static void huge_head_is_not_starved(void **state)
{
	static struct customer small[1000];
	struct customer huge;
	struct shop s;
	unsigned int i, pos = 0;
	bool done = false;

	(void)state;
	open_shop(&s, 64, SEC);
	come(&s, &huge, 5000, 500);
	for (i = 0; i < 1000; i++)
		come(&s, &small[i], i, 1);
	for (i = 0; i < 1000 && !done; i++) {
		s.stock++;
		kvs_waitq_run(&s.q, 0);
		done = !kvs_wait_queued(&huge.w);
	}
	assert_true(done);
	while (s.order[pos] != 5000)
		pos++;
	assert_int_equal(pos, 64);
	/* 64 bytes went to the small, 500 were then gathered */
	assert_int_equal(i, 564);
}

static struct customer *hooked;

static void cancel_neighbour(struct shop *s, unsigned int id)
{
	if (id == 1)
		kvs_waitq_cancel(&s->q, &hooked->w);
}

static void free_more(struct shop *s, unsigned int id)
{
	if (id != 1)
		return;
	s->stock += 50;
	assert_int_equal(kvs_waitq_run(&s->q, 0), 0);
}

static void from_inside_a_try(void **state)
{
	struct customer *heap, c[4];
	struct shop s;

	(void)state;
	/* freed while it is served, its neighbour cancelled by it */
	open_shop(&s, 64, SEC);
	heap = malloc(sizeof(*heap));
	assert_non_null(heap);
	come(&s, &c[0], 0, 50);
	come(&s, heap, 1, 1);
	heap->free_it = true;
	come(&s, &c[2], 2, 1);
	come(&s, &c[3], 3, 1);
	hooked = &c[2];
	s.hook = cancel_neighbour;
	s.stock = 10;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 2);
	assert_int_equal(s.order[0], 1);
	assert_int_equal(s.order[1], 3);
	assert_int_equal(s.q.len, 1);

	/* the head cancelled by one that passes it */
	open_shop(&s, 64, SEC);
	come(&s, &c[0], 0, 50);
	come(&s, &c[1], 1, 1);
	come(&s, &c[2], 2, 20);
	hooked = &c[0];
	s.hook = cancel_neighbour;
	s.stock = 21;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 2);
	assert_int_equal(s.order[1], 2);
	assert_int_equal(s.q.len, 0);

	/* memory freed inside reaches the head although it was tried before */
	open_shop(&s, 64, SEC);
	come(&s, &c[0], 0, 50);
	come(&s, &c[1], 1, 1);
	s.hook = free_more;
	s.stock = 1;
	assert_int_equal(kvs_waitq_run(&s.q, 0), 2);
	assert_int_equal(s.order[0], 1);
	assert_int_equal(s.order[1], 0);
}

static void add_queued_twice(void *arg)
{
	struct shop *s = arg;
	struct customer c;

	c = (struct customer){ .s = s };
	kvs_wait_init(&c.w, buy);
	kvs_waitq_add(&s->q, &c.w, 1);
	kvs_waitq_add(&s->q, &c.w, 1);
}

static void misuse_ends_the_process(void **state)
{
	struct shop s;

	(void)state;
	open_shop(&s, 1, 1);
	assert_true(aborts(add_queued_twice, &s));
}

/* Any mix: heads are served in the order in which they came. */
static void random_fairness(void **state)
{
	static struct customer c[2000];
	unsigned int i, behind, n = 0, head = 0;
	struct kvs_rng r;
	struct shop s;

	(void)state;
	seed_rng(&r);
	open_shop(&s, 16, SEC);
	for (i = 0; i < 2000; i++) {
		come(&s, &c[i], i, 1 + kvs_rng_below(&r, 100));
		s.stock += kvs_rng_below(&r, 60);
		kvs_vclock_advance(&s.clock, kvs_rng_below(&r, SEC / 10));
		kvs_waitq_run(&s.q, (unsigned int)kvs_rng_below(&r, 5));
	}
	while (s.q.len) {
		s.stock += 10;
		kvs_waitq_run(&s.q, 0);
	}
	assert_int_equal(s.served, 2000);
	/* from head to head: nobody was passed by more than 16 at its head */
	for (head = 0; head < 2000; head++) {
		for (i = 0; s.order[i] != head; i++)
			;
		/* those served right before it, since an older one */
		for (behind = 0; i-- > 0 && s.order[i] > head;)
			behind++;
		if (behind > n)
			n = behind;
	}
	print_message("most in a row before an older one: %u\n", n);
	assert_true(n <= 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_order),
		cmocka_unit_test(limit_by_count),
		cmocka_unit_test(limit_by_time),
		cmocka_unit_test(newcomers_count),
		cmocka_unit_test(only_smaller_pass),
		cmocka_unit_test(cancelled_head),
		cmocka_unit_test(gave_up_is_no_overtaking),
		cmocka_unit_test(bounded_looks),
		cmocka_unit_test(huge_head_is_not_starved),
		cmocka_unit_test(from_inside_a_try),
		cmocka_unit_test(misuse_ends_the_process),
		cmocka_unit_test(random_fairness),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
