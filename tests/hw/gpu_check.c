/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, on a device that is named (tests/hw/gpu runs it on a GPU): rooms of
 * every preset and page size come out byte for byte and go back, whichever way
 * small pieces travel; memory that is written again as soon as a copy says that
 * it is complete, on the host or on the device, changes nothing of that copy;
 * pages that are offloaded and recalled to other pages are the same; read-only
 * memory can be registered, or says why not; the errno of what cannot be.
 *
 * Argument: soft, cuda or cuda:N, then "quick" for a part of it.
 */
#include "tests/unit/gpu/preset_room.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/units.h"
#include "pipeline/presets.h"

#define RACE_ITEM 576u
#define RACE_ITEMS 16384u /* 9 MiB */
#define RACES 200u

static const char *device;
static bool quick;

static const enum kvs_copy_way ways[] = { KVS_COPY_SLOTS, KVS_COPY_MAPPED,
					  KVS_COPY_DIRECT };

static int open_device(enum kvs_copy_way way, struct kvs_device **ret)
{
	struct kvs_device_opts o = { .size = sizeof(o),
				     .copy = { .way = way, .few = 8 } };
	const char *n = strchr(device, ':');
	uint64_t ordinal = 0;
	char err[192] = "";
	int r;

	o.backend = device[0] == 's' ? "soft" : "cuda";
	if (n && !kvs_parse_u64(n + 1, &ordinal))
		o.device = (int)ordinal;
	r = kvs_device_open(&o, ret, err, sizeof(err));
	if (r)
		print_message("%s: %s\n", device, err);
	return r;
}

static void test_presets(void **state)
{
	static const uint32_t page_sizes[] = { 1, 16, 64, 128 };
	static const uint32_t tps[] = { 1, 8 };
	struct preset_room r = { 0 };
	unsigned int n = 0;

	(void)state;
	kvs_rng_init(&r.rng, 11);
	for (size_t w = 0; w < KVS_ARRAY_SIZE(ways); w++) {
		assert_int_equal(open_device(ways[w], &r.d), 0);
		while ((r.model = kvs_preset_next(r.model)))
			for (size_t t = 0; t < (quick ? 1 : 2); t++)
				for (size_t p = 0; p < (quick ? 1 : 4); p++) {
					if (!preset_room_layout(&r, tps[t],
								page_sizes[p],
								1))
						continue;
					preset_room_init(&r, 2 * 96 + 37, 96);
					preset_room_there_and_back(&r);
					preset_room_fini(&r);
					n++;
				}
		kvs_device_close(r.d);
	}
	print_message("%u rooms, there and back\n", n);
	assert_true(n > 30);
}

struct field {
	struct kvs_device *d;
	uint8_t *host; /* registered, RACE_ITEM * RACE_ITEMS */
	uint8_t *seen;
	void *dev;
	uint32_t *pages;
	struct kvs_copy_run run;
	struct kvs_copy copy;
};

static void field_open(struct field *f, enum kvs_copy_way way)
{
	struct kvs_rng rng;

	*f = (struct field){ 0 };
	assert_int_equal(open_device(way, &f->d), 0);
	f->host = aligned_alloc(4096, RACE_ITEM * RACE_ITEMS);
	assert_non_null(f->host);
	f->seen = preset_alloc(RACE_ITEMS, RACE_ITEM);
	f->pages = preset_alloc(RACE_ITEMS, sizeof(*f->pages));
	kvs_rng_init(&rng, 3);
	for (uint32_t i = 0; i < RACE_ITEMS; i++)
		f->pages[i] = i;
	for (uint32_t i = RACE_ITEMS - 1; i > 0; i--) {
		uint32_t j = (uint32_t)kvs_rng_below(&rng, i + 1u);
		uint32_t t = f->pages[i];

		f->pages[i] = f->pages[j];
		f->pages[j] = t;
	}
	assert_int_equal(kvs_device_register_host(f->d, f->host,
						  RACE_ITEM * RACE_ITEMS, 0),
			 0);
	assert_int_equal(
		kvs_device_alloc(f->d, RACE_ITEM * RACE_ITEMS, &f->dev), 0);
	f->run = (struct kvs_copy_run){ .host = f->host,
					.dev = f->dev,
					.item_len = RACE_ITEM,
					.pages = f->pages,
					.n = RACE_ITEMS };
	f->copy.runs = &f->run;
	f->copy.n_runs = 1;
}

static void field_close(struct field *f)
{
	assert_int_equal(kvs_device_unregister_host(f->d, f->host,
						    RACE_ITEM * RACE_ITEMS),
			 0);
	kvs_device_free(f->d, f->dev);
	kvs_device_close(f->d);
	free(f->host);
	free(f->seen);
	free(f->pages);
}

static void go(struct field *f, enum kvs_copy_dir dir)
{
	int r;

	f->copy.dir = dir;
	assert_int_equal(kvs_device_copy(f->d, &f->copy), 0);
	while ((r = kvs_device_query(f->d, &f->copy)) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(r, 0);
}

static bool all(const uint8_t *p, uint8_t byte)
{
	return p[0] == byte && !memcmp(p, p + 1, RACE_ITEM * RACE_ITEMS - 1);
}

/* The room's extents go to another as soon as the copy says that it is over,
 * and so do its pages. */
static void test_reused_at_once(void **state)
{
	const uint64_t len = RACE_ITEM * RACE_ITEMS;
	struct field f;
	unsigned int lost = 0;

	(void)state;
	for (size_t w = 0; w < KVS_ARRAY_SIZE(ways); w++) {
		field_open(&f, ways[w]);
		for (unsigned int i = 0; i < (quick ? 4 : RACES); i++) {
			uint8_t mine = (uint8_t)(2 * i + 1);

			memset(f.host, mine, len);
			go(&f, KVS_COPY_H2D);
			memset(f.host, 0xee, len);
			assert_int_equal(
				kvs_device_peek(f.d, f.seen, f.dev, len), 0);
			lost += !all(f.seen, mine);
			/* to the host, and the pages are a stranger's */
			go(&f, KVS_COPY_D2H);
			memcpy(f.seen, f.host, len);
			memset(f.host, 0x11, len);
			go(&f, KVS_COPY_H2D);
			lost += !all(f.seen, mine);
		}
		field_close(&f);
	}
	print_message("races lost: %u\n", lost);
	assert_int_equal(lost, 0);
}

static void test_offload_and_recall(void **state)
{
	const uint64_t len = RACE_ITEM * RACE_ITEMS;
	struct kvs_rng rng;
	struct field f;

	(void)state;
	kvs_rng_init(&rng, 5);
	for (size_t w = 0; w < KVS_ARRAY_SIZE(ways); w++) {
		uint8_t *want = preset_alloc(len, 1);

		field_open(&f, ways[w]);
		for (uint64_t i = 0; i + 8 <= len; i += 8) {
			uint64_t v = kvs_rng_next(&rng);

			memcpy(f.host + i, &v, 8);
		}
		memcpy(want, f.host, len);
		go(&f, KVS_COPY_H2D);
		memset(f.host, 0, len);
		go(&f, KVS_COPY_D2H);
		assert_memory_equal(f.host, want, len);
		/* other pages, backwards */
		for (uint32_t i = 0; i < RACE_ITEMS / 2; i++) {
			uint32_t t = f.pages[i];

			f.pages[i] = f.pages[RACE_ITEMS - 1 - i];
			f.pages[RACE_ITEMS - 1 - i] = t;
		}
		go(&f, KVS_COPY_H2D);
		assert_int_equal(kvs_device_peek(f.d, f.seen, f.dev, len), 0);
		for (uint32_t i = 0; i < RACE_ITEMS; i++)
			assert_memory_equal(
				f.seen + (uint64_t)f.pages[i] * RACE_ITEM,
				want + (uint64_t)i * RACE_ITEM, RACE_ITEM);
		field_close(&f);
		free(want);
	}
}

/* As an engine has a receive pool: a memfd that it may only read. */
static void test_read_only_registration(void **state)
{
	const uint64_t len = 64ull << 20;
	struct kvs_device_info before, after;
	struct kvs_device *d;
	uint64_t from;
	void *p;
	int fd, r;

	(void)state;
	assert_int_equal(open_device(KVS_COPY_AUTO, &d), 0);
	fd = memfd_create("kvs-hw-check", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	p = mmap(NULL, len, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	kvs_device_info(d, &before);
	from = kvs_clock_now(&kvs_clock_real);
	r = kvs_device_register_host(d, p, len, KVS_HOST_READ_ONLY);
	kvs_device_info(d, &after);
	print_message(
		"read-only 64 MiB: %s, %llu ms, pinned: %s\n",
		r < 0 ? strerror(-r) : "registered",
		(unsigned long long)((kvs_clock_now(&kvs_clock_real) - from) /
				     KVS_NSEC_PER_MSEC),
		after.pinned_bytes > before.pinned_bytes ? "yes" : "no");
	/* 1: it stays pageable */
	assert_in_range(r, 0, 1);
	assert_int_equal(kvs_device_register_host(d, p, 4096,
						  KVS_HOST_READ_ONLY),
			 -EEXIST);
	assert_int_equal(kvs_device_unregister_host(d, p, len), 0);
	assert_int_equal(kvs_device_unregister_host(d, p, len), -ENOENT);
	(void)munmap(p, len);
	(void)close(fd);
	kvs_device_close(d);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_presets),
		cmocka_unit_test(test_reused_at_once),
		cmocka_unit_test(test_offload_and_recall),
		cmocka_unit_test(test_read_only_registration),
	};
	struct kvs_device_info info;
	struct kvs_device *d = NULL;
	int r;

	if (argc < 2) {
		fprintf(stderr, "usage: %s DEVICE [quick]\n", argv[0]);
		return 2;
	}
	device = argv[1];
	quick = argc > 2 && !strcmp(argv[2], "quick");
	r = open_device(KVS_COPY_AUTO, &d);
	if (r)
		return r == -EOPNOTSUPP ? 77 : 1;
	kvs_device_info(d, &info);
	print_message("%s: %s, way %s, kernels %s\n", device, info.name,
		      kvs_copy_way_name(info.way), info.kernels);
	kvs_device_close(d);
	return cmocka_run_group_tests_name("hw_gpu_check", tests, NULL, NULL);
}
