/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, for a row of public bugs in copies between host and device, on the
 * soft device by each way of planning copies and, where it is built, on the
 * CUDA backend over a double of the driver: a device row that is wider than its
 * data goes there and back whole (sgl-project/sglang#37534); 131,072 scattered
 * tokens of one page each, and items of 1, 511, 512 and 513 bytes, come out
 * exact with the bytes beside them untouched, in a number of operations that
 * does not grow with the tokens where there is a ring, and neighbours are one
 * (sgl-project/sglang#19890); 1000 copies back to back, each with its own page
 * list, on a slow device use each its own, and no ring slot or table is written
 * again while a copy still reads it (NVIDIA/TensorRT-LLM#15546); buffers that
 * begin inside a larger allocation get their bytes where they are, not at its
 * base, and nothing beside them changes (LMCache/LMCache#4677).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"
#include "lib/rng.h"
#ifdef HAVE_DOUBLE
#include "tests/fake_cuda/fake_cuda.h"
#endif

#define GUARD 0xa5

struct kind {
	const char *backend;
	enum kvs_copy_way way;
};

static const struct kind kinds[] = {
	{ "soft", KVS_COPY_AUTO },   { "soft", KVS_COPY_SLOTS },
	{ "soft", KVS_COPY_MAPPED }, { "soft", KVS_COPY_DIRECT },
#ifdef HAVE_DOUBLE
	{ "cuda", KVS_COPY_SLOTS },  { "cuda", KVS_COPY_MAPPED },
	{ "cuda", KVS_COPY_DIRECT },
#endif
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct kvs_device *open_kind(const struct kind *k, uint64_t slot)
{
	const struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = k->backend,
		.copy = { .way = k->way,
			  .batch_min = 28 << 10,
			  .slot_bytes = slot },
	};
	struct kvs_device *d = NULL;
	char err[192] = "";

	if (kvs_device_open(&o, &d, err, sizeof(err)))
		print_message("%s\n", err);
	assert_non_null(d);
	return d;
}

static void wait_for(struct kvs_device *d, const struct kvs_copy *c)
{
	int r;

	while ((r = kvs_device_query(d, c)) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(r, 0);
}

static void copy(struct kvs_device *d, const struct kvs_copy_run *run,
		 enum kvs_copy_dir dir)
{
	struct kvs_copy c = { .runs = run, .n_runs = 1, .dir = dir };

	assert_int_equal(kvs_device_copy(d, &c), 0);
	wait_for(d, &c);
}

static void *xalloc(size_t n)
{
	void *p = calloc(1, n);

	assert_non_null(p);
	return p;
}

static void shuffle(struct kvs_rng *rng, uint32_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)kvs_rng_below(rng, i + 1u);
		uint32_t t = v[i];

		v[i] = v[j];
		v[j] = t;
	}
}

/* n items of len bytes to the pages and back, guards around the device side. */
static struct kvs_device_info there_and_back(const struct kind *k, uint64_t len,
					     uint32_t n, const uint32_t *pages,
					     uint32_t n_pages)
{
	uint64_t host_len = n * len, dev_len = n_pages * len + 2 * 4096;
	struct kvs_device *d = open_kind(k, 1 << 20);
	uint8_t *host = xalloc(host_len), *was = xalloc(host_len);
	uint8_t *fill = xalloc(dev_len), *seen = xalloc(dev_len);
	struct kvs_copy_run all = { .host = fill, .item_len = dev_len, .n = 1 };
	struct kvs_device_info before, info;
	struct kvs_copy_run run;
	struct kvs_rng rng;
	void *dev = NULL;

	kvs_rng_init(&rng, len);
	for (uint64_t i = 0; i < host_len; i++)
		host[i] = (uint8_t)kvs_rng_next(&rng);
	memcpy(was, host, host_len);
	memset(fill, GUARD, dev_len);
	assert_int_equal(kvs_device_register_host(d, host, host_len, 0), 0);
	assert_int_equal(kvs_device_alloc(d, dev_len, &dev), 0);
	all.dev = dev;
	copy(d, &all, KVS_COPY_H2D);
	run = (struct kvs_copy_run){ .host = host,
				     .dev = (uint8_t *)dev + 4096,
				     .item_len = len,
				     .pages = pages,
				     .n = n };
	kvs_device_info(d, &before);
	copy(d, &run, KVS_COPY_H2D);
	kvs_device_info(d, &info);
	info.pieces -= before.pieces;
	info.launches -= before.launches;
	/* all there, and nothing beside it: before, behind, between */
	for (uint32_t i = 0; i < n; i++)
		memcpy(fill + 4096 + (uint64_t)pages[i] * len, host + i * len,
		       len);
	assert_int_equal(kvs_device_peek(d, seen, dev, dev_len), 0);
	assert_memory_equal(seen, fill, dev_len);
	memset(host, 0xee, host_len);
	copy(d, &run, KVS_COPY_D2H);
	assert_memory_equal(host, was, host_len);
	assert_int_equal(kvs_device_unregister_host(d, host, host_len), 0);
	kvs_device_free(d, dev);
	kvs_device_close(d);
	free(host);
	free(was);
	free(fill);
	free(seen);
	return info;
}

/* A row of 528 bytes: 512 of data and 16 of scales. */
static void test_a_row_with_its_scales(void **state)
{
	uint32_t pages[300];
	struct kvs_rng rng;

	(void)state;
	kvs_rng_init(&rng, 1);
	shuffle(&rng, pages, 300);
	for (size_t k = 0; k < KINDS; k++)
		(void)there_and_back(&kinds[k], 528, 200, pages, 300);
}

static void test_small_lengths(void **state)
{
	static const uint64_t lens[] = { 1, 2, 511, 512, 513, 4097 };
	uint32_t pages[257];
	struct kvs_rng rng;

	(void)state;
	kvs_rng_init(&rng, 2);
	shuffle(&rng, pages, 257);
	for (size_t k = 0; k < KINDS; k++)
		for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
			(void)there_and_back(&kinds[k], lens[i], 1, pages, 257);
			(void)there_and_back(&kinds[k], lens[i], 200, pages,
					     257);
		}
}

#define TOKENS 131072u

static void test_scattered_tokens(void **state)
{
	uint32_t *pages = xalloc((TOKENS + 7) * sizeof(*pages));
	struct kvs_rng rng;

	(void)state;
	kvs_rng_init(&rng, 3);
	for (size_t k = 0; k < KINDS; k++) {
		struct kvs_device_info info;
		uint64_t ops;

		shuffle(&rng, pages, TOKENS + 7);
		info = there_and_back(&kinds[k], 64, TOKENS, pages, TOKENS + 7);
		ops = info.pieces + info.launches;
		print_message("%s %s: %llu operations for %u tokens\n",
			      kinds[k].backend, kvs_copy_way_name(kinds[k].way),
			      (unsigned long long)ops, TOKENS);
		/* slots of 1 MiB: 8 MiB are 8 and a rest, twice */
		if (kinds[k].way == KVS_COPY_SLOTS ||
		    kinds[k].way == KVS_COPY_MAPPED)
			assert_true(ops <= 20);
		/* in order they are one, whatever the way */
		for (uint32_t i = 0; i < TOKENS; i++)
			pages[i] = i + 3;
		info = there_and_back(&kinds[k], 64, TOKENS, pages, TOKENS + 7);
		assert_int_equal(info.pieces, 1);
		assert_int_equal(info.launches, 0);
	}
	free(pages);
}

#define COPIES 1000u
#define ITEM 64u
#define ITEMS 128u

/* Each goes to places of its own, from one piece of host memory each. */
static void own_tables(const struct kind *k)
{
	uint64_t len = (uint64_t)COPIES * ITEMS * ITEM;
	struct kvs_device *d = open_kind(k, 16 << 10);
	struct kvs_copy *c = xalloc(COPIES * sizeof(*c));
	struct kvs_copy_run *run = xalloc(COPIES * sizeof(*run));
	uint32_t *pages = xalloc(COPIES * ITEMS * sizeof(*pages));
	uint8_t *host = xalloc(len), *want = xalloc(len), *seen = xalloc(len);
	struct kvs_rng rng;
	void *dev = NULL;

	kvs_rng_init(&rng, 4);
	for (uint64_t i = 0; i < len; i++)
		host[i] = (uint8_t)kvs_rng_next(&rng);
	assert_int_equal(kvs_device_register_host(d, host, len, 0), 0);
	assert_int_equal(kvs_device_alloc(d, len, &dev), 0);
	for (uint32_t i = 0; i < COPIES; i++) {
		uint32_t *list = pages + (size_t)i * ITEMS;
		uint64_t at = (uint64_t)i * ITEMS * ITEM;

		shuffle(&rng, list, ITEMS);
		for (uint32_t j = 0; j < ITEMS; j++)
			memcpy(want + at + list[j] * ITEM, host + at + j * ITEM,
			       ITEM);
		run[i] = (struct kvs_copy_run){ .host = host + at,
						.dev = (uint8_t *)dev + at,
						.item_len = ITEM,
						.pages = list,
						.n = ITEMS };
		c[i] = (struct kvs_copy){ .runs = &run[i],
					  .n_runs = 1,
					  .dir = KVS_COPY_H2D };
		assert_int_equal(kvs_device_copy(d, &c[i]), 0);
	}
	for (uint32_t i = 0; i < COPIES; i++) {
		wait_for(d, &c[i]);
		/* its list and its memory are the caller's again */
		memset(pages + (size_t)i * ITEMS, 0xff, ITEMS * sizeof(*pages));
		memset(run[i].host, 0xee, ITEMS * ITEM);
	}
	assert_int_equal(kvs_device_peek(d, seen, dev, len), 0);
	assert_memory_equal(seen, want, len);
	assert_int_equal(kvs_device_unregister_host(d, host, len), 0);
	kvs_device_free(d, dev);
	kvs_device_close(d);
	free(c);
	free(run);
	free(pages);
	free(host);
	free(want);
	free(seen);
}

static void test_each_copy_has_its_own_table(void **state)
{
	(void)state;
#ifdef HAVE_DOUBLE
	/* 50 us each: all of the ring and of the tables is under way */
	fake_cuda_slow(50000);
	fake_cuda_shuffle(9);
#endif
	for (size_t k = 0; k < KINDS; k++)
		own_tables(&kinds[k]);
}

#define INSIDE (16u << 20) /* bytes of the allocation */
#define BUFFERS 3u

/* As a framework has them: tensors somewhere in a block of its allocator's. */
static void inside(const struct kind *k)
{
	static const uint64_t begin[BUFFERS] = { 1 << 20, (5 << 20) + 256,
						 (11 << 20) + 512 };
	static const uint64_t item[BUFFERS] = { 64 << 10, 576, 8 };
	struct kvs_device *d = open_kind(k, 1 << 20);
	uint8_t *host = xalloc(BUFFERS * ITEMS * (64 << 10)), *at = host;
	uint8_t *want = xalloc(INSIDE), *seen = xalloc(INSIDE);
	struct kvs_copy_run run[BUFFERS];
	struct kvs_copy c = { .runs = run,
			      .n_runs = BUFFERS,
			      .dir = KVS_COPY_H2D };
	struct kvs_copy_run all = { .host = want, .item_len = INSIDE, .n = 1 };
	uint32_t pages[ITEMS];
	struct kvs_rng rng;
	void *dev = NULL;

	kvs_rng_init(&rng, 5);
	shuffle(&rng, pages, ITEMS);
	memset(want, GUARD, INSIDE);
	assert_int_equal(kvs_device_alloc(d, INSIDE, &dev), 0);
	all.dev = dev;
	copy(d, &all, KVS_COPY_H2D);
	for (uint32_t b = 0; b < BUFFERS; b++) {
		run[b] =
			(struct kvs_copy_run){ .host = at,
					       .dev = (uint8_t *)dev + begin[b],
					       .item_len = item[b],
					       .pages = pages,
					       .n = ITEMS / 4 };
		for (uint64_t i = 0; i < run[b].n; i++, at += item[b]) {
			for (uint64_t n = 0; n < item[b]; n++)
				at[n] = (uint8_t)kvs_rng_next(&rng);
			memcpy(want + begin[b] + pages[i] * item[b], at,
			       item[b]);
		}
	}
	assert_int_equal(kvs_device_copy(d, &c), 0);
	wait_for(d, &c);
	assert_int_equal(kvs_device_peek(d, seen, dev, INSIDE), 0);
	assert_memory_equal(seen, want, INSIDE);
	/* past its end: that copy fails, and nobody else's */
	if (!strcmp(k->backend, "soft")) {
		run[2].dev = (uint8_t *)dev + INSIDE - item[2];
		assert_int_equal(kvs_device_copy(d, &c), -EINVAL);
		run[2].dev = (uint8_t *)dev + begin[2];
		assert_int_equal(kvs_device_copy(d, &c), 0);
		wait_for(d, &c);
		assert_int_equal(kvs_device_peek(d, seen, dev, INSIDE), 0);
		assert_memory_equal(seen, want, INSIDE);
	}
	kvs_device_free(d, dev);
	kvs_device_close(d);
	free(host);
	free(want);
	free(seen);
}

static void test_inside_an_allocation(void **state)
{
	(void)state;
#ifdef HAVE_DOUBLE
	fake_cuda_slow(0);
#endif
	for (size_t k = 0; k < KINDS; k++)
		inside(&kinds[k]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_row_with_its_scales),
		cmocka_unit_test(test_small_lengths),
		cmocka_unit_test(test_scattered_tokens),
		cmocka_unit_test(test_each_copy_has_its_own_table),
		cmocka_unit_test(test_inside_an_allocation),
	};

	return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
