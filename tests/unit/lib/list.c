/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the list keeps order at both ends, deleting twice and splicing an
 * empty list are harmless, the safe iterator survives deletion, and a random
 * walk of operations leaves the list equal to a plain array model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/list.h"
#include "lib/rng.h"

struct item {
	int id;
	struct kvs_list node;
};

/* Forward and backward, so that a wrong ->prev shows as well. */
static void expect(struct kvs_list *head, const int *id, size_t n)
{
	const struct kvs_list *back = head->prev;
	struct item *it;
	size_t i = 0;

	kvs_list_for_each_entry(it, head, node) {
		assert_true(i < n);
		assert_int_equal(it->id, id[i++]);
	}
	assert_int_equal(i, n);
	for (; i; i--, back = back->prev)
		assert_int_equal(kvs_list_entry(back, struct item, node)->id,
				 id[i - 1]);
	assert_ptr_equal(back, head);
	assert_int_equal(kvs_list_empty(head), n == 0);
}

static void items_init(struct item *it, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		it[i].id = i;
		kvs_list_init(&it[i].node);
	}
}

static void list_order(void **state)
{
	KVS_LIST_HEAD(head);
	struct kvs_list *pos;
	struct item it[4];
	size_t n = 0;

	(void)state;
	items_init(it, 4);
	expect(&head, NULL, 0);
	kvs_list_add_tail(&head, &it[1].node);
	kvs_list_add_tail(&head, &it[2].node);
	kvs_list_add(&head, &it[0].node);
	kvs_list_add_tail(&head, &it[3].node);
	expect(&head, (const int[]){ 0, 1, 2, 3 }, 4);
	assert_ptr_equal(kvs_list_first(&head, struct item, node), &it[0]);
	kvs_list_for_each(pos, &head)
		n++;
	assert_int_equal(n, 4);
}

static void list_del_twice(void **state)
{
	KVS_LIST_HEAD(head);
	struct item it[3];

	(void)state;
	items_init(it, 3);
	kvs_list_add_tail(&head, &it[0].node);
	kvs_list_add_tail(&head, &it[1].node);
	kvs_list_add_tail(&head, &it[2].node);
	assert_false(kvs_list_empty(&it[1].node));
	kvs_list_del(&it[1].node);
	assert_true(kvs_list_empty(&it[1].node));
	kvs_list_del(&it[1].node);
	expect(&head, (const int[]){ 0, 2 }, 2);
	kvs_list_add(&head, &it[1].node);
	expect(&head, (const int[]){ 1, 0, 2 }, 3);
}

static void list_safe_iteration(void **state)
{
	KVS_LIST_HEAD(head);
	struct item it[5];
	struct item *pos, *tmp;
	int i;

	(void)state;
	items_init(it, 5);
	for (i = 0; i < 5; i++)
		kvs_list_add_tail(&head, &it[i].node);
	kvs_list_for_each_entry_safe(pos, tmp, &head, node) {
		if (pos->id % 2)
			continue;
		kvs_list_del(&pos->node);
		/* as freed memory would look */
		memset(pos, 0xa5, sizeof(*pos));
	}
	expect(&head, (const int[]){ 1, 3 }, 2);
}

static void list_splice(void **state)
{
	KVS_LIST_HEAD(to);
	KVS_LIST_HEAD(from);
	struct item it[4];

	(void)state;
	items_init(it, 4);
	kvs_list_splice_tail(&to, &from);
	expect(&to, NULL, 0);
	kvs_list_add_tail(&from, &it[0].node);
	kvs_list_add_tail(&from, &it[1].node);
	kvs_list_splice_tail(&to, &from);
	expect(&to, (const int[]){ 0, 1 }, 2);
	expect(&from, NULL, 0);
	kvs_list_add_tail(&from, &it[2].node);
	kvs_list_add_tail(&from, &it[3].node);
	kvs_list_splice_tail(&to, &from);
	expect(&to, (const int[]){ 0, 1, 2, 3 }, 4);
	kvs_list_splice_tail(&to, &from);
	expect(&to, (const int[]){ 0, 1, 2, 3 }, 4);
}

#define WALK_ITEMS 12
#define WALK_STEPS 5000

static void list_random_walk(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	KVS_LIST_HEAD(head);
	struct item it[WALK_ITEMS];
	int model[WALK_ITEMS];
	struct kvs_rng r;
	size_t n = 0;
	int step;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&r, seed);
	items_init(it, WALK_ITEMS);
	for (step = 0; step < WALK_STEPS; step++) {
		int id = (int)kvs_rng_below(&r, WALK_ITEMS);
		size_t at;

		for (at = 0; at < n && model[at] != id; at++)
			;
		assert_int_equal(kvs_list_empty(&it[id].node), at == n);
		if (at < n) {
			kvs_list_del(&it[id].node);
			memmove(&model[at], &model[at + 1],
				(n - at - 1) * sizeof(int));
			n--;
		} else if (kvs_rng_below(&r, 2)) {
			kvs_list_add(&head, &it[id].node);
			memmove(&model[1], model, n * sizeof(int));
			model[0] = id;
			n++;
		} else {
			kvs_list_add_tail(&head, &it[id].node);
			model[n++] = id;
		}
		expect(&head, model, n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(list_order),
		cmocka_unit_test(list_del_twice),
		cmocka_unit_test(list_safe_iteration),
		cmocka_unit_test(list_splice),
		cmocka_unit_test(list_random_walk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
