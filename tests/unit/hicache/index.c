/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: options out of range are refused. A page that is read is not
 * evicted, however much room is asked for, nor handed to its owner when it is
 * dropped, until the last reader has finished; bytes count until their drain
 * is over, so that nothing takes their place before. A page that failed to
 * arrive was never found. Pages read once do not push out what is used again
 * and again under S3-FIFO, and do under LRU. Nothing more is taken when the
 * index is full, and what is given back is used again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "hicache/index.h"

#define HOST KVS_TIER_HOST
#define QUOTA 100u

static struct kvs_index *ix;
static struct kvs_victim last;
static unsigned int victims;
static bool gone_at_once;

static void victim(void *arg, const struct kvs_victim *v)
{
	(void)arg;
	last = *v;
	victims++;
	if (gone_at_once)
		assert_int_equal(kvs_index_gone(ix, v->unit), 0);
}

static const struct kvs_index_ops ops = { .victim = victim };

static struct kvs_index_opts plain(enum kvs_policy policy)
{
	return (struct kvs_index_opts){
		.max_entries = 1000,
		.policy = policy,
		.tier = { [HOST] = { QUOTA, 900, 500 },
			  [KVS_TIER_NVME] = { QUOTA, 1000, 1000 } },
		.ops = &ops,
	};
}

static void make(enum kvs_policy policy)
{
	const struct kvs_index_opts o = plain(policy);

	victims = 0;
	gone_at_once = false;
	assert_int_equal(kvs_index_create(&o, &ix), 0);
}

static void end(void)
{
	kvs_index_check(ix);
	kvs_index_destroy(ix);
}

static struct kvs_key key_of(uint32_t i)
{
	struct kvs_key k = { { 0 } };

	memcpy(k.b, &i, sizeof(i));
	return k;
}

/* Page @i in a unit of its own of @bytes, not yet published. */
static uint64_t fill(enum kvs_tier tier, uint32_t i, uint64_t bytes)
{
	struct kvs_key k = key_of(i);
	uint64_t unit;

	assert_int_equal(kvs_index_add(ix, tier, bytes, i, &unit), 0);
	assert_int_equal(kvs_index_put(ix, unit, &k, 0), 0);
	return unit;
}

static uint64_t keep(enum kvs_tier tier, uint32_t i, uint64_t bytes)
{
	uint64_t unit = fill(tier, i, bytes);

	assert_int_equal(kvs_index_publish(ix, unit), 0);
	return unit;
}

static bool found(uint32_t i)
{
	struct kvs_key k = key_of(i);
	struct kvs_found f;

	return kvs_index_lookup(ix, &k, 1, &f, NULL);
}

static void test_options(void **state)
{
	struct kvs_index_opts o = plain(KVS_POLICY_LRU);

	(void)state;
	kvs_index_destroy(NULL);
	o.max_entries = 0;
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
	o.max_entries = KVS_INDEX_ENTRIES_MAX + 1;
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
	o = plain(KVS_POLICY_MAX);
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
	o = plain(KVS_POLICY_LRU);
	o.small_share = 1001;
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
	o.small_share = 0;
	o.promote = KVS_INDEX_USED_MAX + 1;
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
	o.promote = 0;
	o.tier[HOST].low = 901;
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
	o.tier[HOST] = (struct kvs_tier_limits){ QUOTA, 1001, 1 };
	assert_int_equal(kvs_index_create(&o, &ix), -EINVAL);
}

/* A recall is under way while memory is wanted. */
static void test_read_is_not_evicted(void **state)
{
	uint64_t unit;

	(void)state;
	for (unsigned int policy = 0; policy < KVS_POLICY_MAX; policy++) {
		make(policy);
		unit = keep(HOST, 1, 60);
		assert_int_equal(kvs_index_pin(ix, unit), 0);
		assert_int_equal(kvs_index_make_room(ix, HOST, 50), -EBUSY);
		assert_int_equal(kvs_index_evict(ix, HOST, QUOTA), 0);
		assert_int_equal(kvs_index_trim(ix, HOST), 0);
		assert_int_equal(victims, 0);
		assert_true(found(1));
		/* what fits beside it comes and goes */
		keep(HOST, 2, 40);
		assert_int_equal(kvs_index_make_room(ix, HOST, 40), -EAGAIN);
		assert_int_equal(victims, 1);
		assert_int_equal(last.cookie, 2);
		assert_int_equal(kvs_index_gone(ix, last.unit), 0);
		assert_true(found(1));
		assert_int_equal(kvs_index_unpin(ix, unit), 0);
		assert_int_equal(kvs_index_make_room(ix, HOST, 50), -EAGAIN);
		assert_int_equal(last.unit, unit);
		assert_false(found(1));
		end();
	}
}

static void test_dropped_while_read(void **state)
{
	uint64_t unit, again;

	(void)state;
	make(KVS_POLICY_S3FIFO);
	unit = keep(HOST, 1, 60);
	assert_int_equal(kvs_index_pin(ix, unit), 0);
	assert_int_equal(kvs_index_pin(ix, unit), 0);
	assert_int_equal(kvs_index_drop(ix, unit), 0);
	assert_int_equal(kvs_index_drop(ix, unit), -EALREADY);
	assert_false(found(1));
	assert_int_equal(kvs_index_pin(ix, unit), -EBUSY);
	assert_int_equal(kvs_index_gone(ix, unit), -EBUSY);
	/* the same page comes anew, elsewhere */
	again = keep(HOST, 1, 40);
	assert_true(found(1));
	assert_int_equal(kvs_index_unpin(ix, unit), 0);
	assert_int_equal(victims, 0);
	assert_int_equal(kvs_index_unpin(ix, unit), 0);
	assert_int_equal(victims, 1);
	assert_int_equal(last.unit, unit);
	assert_false(last.evicted);
	assert_int_equal(kvs_index_unpin(ix, unit), -EINVAL);
	assert_int_equal(kvs_index_gone(ix, unit), 0);
	assert_int_equal(kvs_index_gone(ix, unit), -ESTALE);
	assert_true(found(1));
	assert_int_equal(kvs_index_drop(ix, again), 0);
	end();
}

static void test_counts_until_gone(void **state)
{
	uint64_t unit, other;

	(void)state;
	make(KVS_POLICY_LRU);
	unit = keep(HOST, 1, QUOTA);
	assert_int_equal(kvs_index_make_room(ix, HOST, QUOTA + 1), -E2BIG);
	assert_true(found(1));
	assert_int_equal(kvs_index_make_room(ix, HOST, 1), -EAGAIN);
	assert_int_equal(kvs_index_add(ix, HOST, 1, 0, &other), -ENOSPC);
	assert_int_equal(kvs_index_gone(ix, unit), 0);
	assert_int_equal(kvs_index_make_room(ix, HOST, QUOTA), 0);
	assert_int_equal(kvs_index_make_room(ix, KVS_TIER_SHARED, 1), -ENXIO);
	assert_int_equal(kvs_index_add(ix, KVS_TIER_SHARED, 1, 0, &other),
			 -ENXIO);
	end();
}

/* A write to disk, then a recall; the second one fails. */
static void test_coming_is_not_there(void **state)
{
	struct kvs_key k = key_of(1);
	struct kvs_found f;
	uint64_t host, disk;
	size_t coming;

	(void)state;
	make(KVS_POLICY_S3FIFO);
	assert_int_equal(kvs_index_page_state(ix, &k), KVS_PAGE_ABSENT);
	host = keep(HOST, 1, 10);
	disk = fill(KVS_TIER_NVME, 1, 10);
	assert_int_equal(kvs_index_page_state(ix, &k), KVS_PAGE_WRITING_OUT);
	/* where it lies is known when it is there, and does not change then */
	assert_int_equal(kvs_index_set_cookie(ix, disk, 77), 0);
	assert_int_equal(kvs_index_publish(ix, disk), 0);
	assert_int_equal(kvs_index_set_cookie(ix, disk, 78), -EINVAL);
	assert_int_equal(kvs_index_set_cookie(ix, disk + (1ULL << 32), 78),
			 -ESTALE);
	assert_int_equal(kvs_index_find(ix, KVS_TIER_NVME, &k, &f), 0);
	assert_int_equal(f.cookie, 77);
	assert_int_equal(kvs_index_evict(ix, HOST, 1), 10);
	assert_int_equal(last.unit, host);
	assert_int_equal(last.only_copy, 0);
	host = fill(HOST, 1, 10);
	assert_int_equal(kvs_index_page_state(ix, &k), KVS_PAGE_RESIDENT);
	/* meanwhile the copy on disk turns out to be bad */
	assert_int_equal(kvs_index_forget(ix, KVS_TIER_NVME, &k), 0);
	assert_int_equal(last.unit, disk);
	assert_int_equal(kvs_index_page_state(ix, &k), KVS_PAGE_LOADING);
	assert_int_equal(kvs_index_lookup(ix, &k, 1, &f, &coming), 0);
	assert_int_equal(coming, 1);
	assert_int_equal(kvs_index_drop(ix, host), 0);
	assert_int_equal(kvs_index_page_state(ix, &k), KVS_PAGE_ABSENT);
	end();
}

/* Hits of ten pages that are used all the time beside a scan. */
static unsigned int hot_hits(enum kvs_policy policy)
{
	unsigned int hits = 0;
	uint32_t cold = 1000;

	make(policy);
	gone_at_once = true;
	for (unsigned int round = 0; round < 50; round++) {
		for (uint32_t i = 0; i < 10; i++) {
			struct kvs_key k = key_of(i);
			struct kvs_found f;

			if (kvs_index_lookup(ix, &k, 1, &f, NULL)) {
				hits++;
				assert_int_equal(kvs_index_touch(ix, f.unit),
						 0);
				continue;
			}
			assert_int_equal(kvs_index_make_room(ix, HOST, 1), 0);
			keep(HOST, i, 1);
		}
		/* rounds of little, so that they are seen again, then much */
		for (unsigned int n = 0; n < (round < 5 ? 10 : 150); n++) {
			assert_int_equal(kvs_index_make_room(ix, HOST, 1), 0);
			keep(HOST, cold++, 1);
		}
	}
	end();
	return hits;
}

static void test_scan(void **state)
{
	(void)state;
	assert_int_equal(hot_hits(KVS_POLICY_S3FIFO), 490);
	/* those of the rounds of little */
	assert_int_equal(hot_hits(KVS_POLICY_LRU), 50);
}

static void test_full(void **state)
{
	struct kvs_index_opts o = plain(KVS_POLICY_LRU);
	struct kvs_index_account a, b;
	struct kvs_key k;
	uint64_t unit;

	(void)state;
	o.max_entries = 3;
	gone_at_once = true;
	assert_int_equal(kvs_index_create(&o, &ix), 0);
	for (uint32_t i = 0; i < 3; i++)
		keep(HOST, i, 1);
	kvs_index_account(ix, &a);
	assert_int_equal(kvs_index_add(ix, HOST, 1, 0, &unit), 0);
	k = key_of(3);
	assert_int_equal(kvs_index_put(ix, unit, &k, 0), -ENOSPC);
	k = key_of(1);
	assert_int_equal(kvs_index_put(ix, unit, &k, 0), -EEXIST);
	/* without a page it is of no use, and goes */
	assert_int_equal(kvs_index_publish(ix, unit), 0);
	assert_int_equal(kvs_index_unit(ix, unit, &(struct kvs_unit_info){ 0 }),
			 -ESTALE);
	for (uint32_t i = 3; i < 1000; i++) {
		assert_int_equal(kvs_index_evict(ix, HOST, 1), 1);
		keep(HOST, i, 1);
	}
	kvs_index_account(ix, &b);
	assert_int_equal(b.entries, 3);
	/* one unit more than pages was there once */
	assert_in_range(b.memory, a.memory, a.memory + 48);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_read_is_not_evicted),
		cmocka_unit_test(test_dropped_while_read),
		cmocka_unit_test(test_counts_until_gone),
		cmocka_unit_test(test_coming_is_not_there),
		cmocka_unit_test(test_scan),
		cmocka_unit_test(test_full),
	};

	return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
