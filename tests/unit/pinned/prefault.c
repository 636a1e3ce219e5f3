/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: kvs_prefault() makes every page present, keeps what is in them,
 * reports progress, stops when told to (NVIDIA/TensorRT-LLM#15430: huge pools
 * must not hold up a shutdown), returns an error where a first touch would be
 * a signal, and works on kernels without MADV_POPULATE_WRITE.
 * kvs_placement_*() says where the pages are.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "pinned/placement.h"
#include "pinned/prefault.h"
#include "tests/unit/pinned/sandbox.h"

#define MIB (1ULL << 20)

struct map {
	int fd;
	char *base;
	uint64_t len;
};

static uint64_t page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static struct map map_new(uint64_t len)
{
	struct map m = { .len = len };

	m.fd = memfd_create("prefault-test", MFD_CLOEXEC);
	if (m.fd < 0 || ftruncate(m.fd, (off_t)len) < 0)
		abort();
	m.base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	if (m.base == MAP_FAILED)
		abort();
	return m;
}

static void map_free(struct map *m)
{
	munmap(m->base, m->len);
	close(m->fd);
}

static uint64_t present(const struct map *m)
{
	uint64_t n = m->len / page(), i, count = 0;
	unsigned char *vec = malloc(n);

	if (!vec || mincore(m->base, m->len, vec) < 0)
		abort();
	for (i = 0; i < n; i++)
		count += vec[i] & 1;
	free(vec);
	return count;
}

struct seen {
	unsigned int calls;
	uint64_t last;
	bool backwards;
};

static void see(void *arg, const struct kvs_prefault_progress *p)
{
	struct seen *s = arg;

	s->calls++;
	s->backwards |= p->done < s->last || p->done > p->total;
	s->last = p->done;
}

static void test_everything_present(void **state)
{
	/* an odd number of pages, so that the last chunk is short */
	struct map m = map_new(37 * MIB + 3 * page());
	struct seen s = { 0 };
	struct kvs_prefault_opts o = { .threads = 3,
				       .progress = see,
				       .progress_arg = &s };
	uint64_t ns = 0;

	(void)state;
	assert_int_equal(present(&m), 0);
	memset(m.base + 5 * MIB, 0x5a, 100);
	assert_int_equal(kvs_prefault(m.base, m.len, &o, &ns), 0);
	assert_int_equal(present(&m), m.len / page());
	assert_true(ns > 0);
	assert_true(s.calls >= 1);
	assert_false(s.backwards);
	assert_int_equal(s.last, m.len);
	/* what was there stays */
	assert_int_equal(m.base[5 * MIB], 0x5a);
	assert_int_equal(m.base[5 * MIB + 99], 0x5a);
	assert_int_equal(m.base[5 * MIB + 100], 0);
	/* once more is fine */
	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), 0);
	map_free(&m);
}

static void test_one_page(void **state)
{
	struct map m = map_new(page());
	struct kvs_prefault_opts o = { 0 };

	(void)state;
	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), 0);
	assert_int_equal(present(&m), 1);
	map_free(&m);
}

static void test_bad_arguments(void **state)
{
	struct map m = map_new(MIB);
	struct kvs_prefault_opts o = { 0 };

	(void)state;
	assert_int_equal(kvs_prefault(m.base, 0, &o, NULL), -EINVAL);
	assert_int_equal(kvs_prefault(m.base, 100, &o, NULL), -EINVAL);
	assert_int_equal(kvs_prefault(m.base + 1, page(), &o, NULL), -EINVAL);
	assert_int_equal(kvs_prefault(m.base, UINT64_MAX - page() + 1, &o,
				      NULL),
			 -EINVAL);
	assert_int_equal(present(&m), 0);
	map_free(&m);
}

/* CPUs of a recorded topology need not exist here. */
static void test_foreign_cpus(void **state)
{
	struct map m = map_new(8 * MIB);
	struct kvs_prefault_opts o = { .threads = 2 };
	cpu_set_t cpus;

	(void)state;
	CPU_ZERO(&cpus);
	o.cpus = &cpus;
	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), 0);
	CPU_SET(CPU_SETSIZE - 1, &cpus);
	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), 0);
	assert_int_equal(present(&m), m.len / page());
	map_free(&m);
}

static void test_cancelled_before(void **state)
{
	struct map m = map_new(64 * MIB);
	atomic_bool cancel = true;
	struct kvs_prefault_opts o = { .cancel = &cancel };

	(void)state;
	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), -ECANCELED);
	assert_int_equal(present(&m), 0);
	map_free(&m);
}

static void *cancel_when_touched(void *arg)
{
	volatile atomic_bool *cancel = ((void **)arg)[0];
	struct map *m = ((void **)arg)[1];

	while (!present(m))
		;
	atomic_store(cancel, true);
	return NULL;
}

static void test_cancelled_during(void **state)
{
	struct map m = map_new(256 * MIB);
	atomic_bool cancel = false;
	struct kvs_prefault_opts o = { .threads = 1, .cancel = &cancel };
	void *arg[] = { &cancel, &m };
	pthread_t tid;
	int r;

	(void)state;
	assert_int_equal(pthread_create(&tid, NULL, cancel_when_touched, arg),
			 0);
	r = kvs_prefault(m.base, m.len, &o, NULL);
	pthread_join(tid, NULL);
	/* losing the race to the last chunk is the only other way out */
	if (r == 0)
		assert_int_equal(present(&m), m.len / page());
	else
		assert_int_equal(r, -ECANCELED);
	map_free(&m);
}

/* Beyond the end of the file a store is SIGBUS; this must be an error. */
static void test_no_signal(void **state)
{
	struct map m = map_new(8 * MIB);
	struct kvs_prefault_opts o = { 0 };

	(void)state;
	assert_int_equal(ftruncate(m.fd, 4 * MIB), 0);
	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), -EFAULT);
	map_free(&m);
}

static void old_kernel(void)
{
	struct map m = map_new(16 * MIB);
	struct kvs_prefault_opts o = { .threads = 2 };

	o.file = m.fd;
	o.file_set = true;
	m.base[MIB] = 77;
	sandbox_deny_arg2(SYS_madvise, 23 /* MADV_POPULATE_WRITE */, EINVAL);
	SANDBOX_CHECK(madvise(m.base, page(), 23) < 0 && errno == EINVAL);
	SANDBOX_CHECK(kvs_prefault(m.base, m.len, &o, NULL) == 0);
	SANDBOX_CHECK(present(&m) == m.len / page());
	SANDBOX_CHECK(m.base[MIB] == 77);
	o.file_set = false;
	SANDBOX_CHECK(kvs_prefault(m.base, m.len, &o, NULL) == 0);
}

static void old_kernel_no_space(void)
{
	struct map m = map_new(16 * MIB);
	struct kvs_prefault_opts o = { .threads = 2 };

	o.file = m.fd;
	o.file_set = true;
	sandbox_deny_arg2(SYS_madvise, 23, EINVAL);
	sandbox_deny(SYS_fallocate, ENOSPC);
	SANDBOX_CHECK(kvs_prefault(m.base, m.len, &o, NULL) == -ENOMEM);
	SANDBOX_CHECK(present(&m) == 0);
}

static void test_old_kernel(void **state)
{
	(void)state;
	assert_int_equal(sandbox_run(old_kernel), 0);
	assert_int_equal(sandbox_run(old_kernel_no_space), 0);
}

static void out_of_memory(void)
{
	struct map m = map_new(16 * MIB);
	struct kvs_prefault_opts o = { .threads = 2 };

	sandbox_deny_arg2(SYS_madvise, 23, ENOMEM);
	SANDBOX_CHECK(kvs_prefault(m.base, m.len, &o, NULL) == -ENOMEM);
	SANDBOX_CHECK(present(&m) == 0);
}

static void test_out_of_memory(void **state)
{
	(void)state;
	assert_int_equal(sandbox_run(out_of_memory), 0);
}

static void test_placement(void **state)
{
	struct map m = map_new(4 * MIB);
	struct kvs_prefault_opts o = { 0 };
	struct kvs_placement pl;
	uint64_t n = m.len / page(), sum = 0;
	int i, node = -1, r;

	(void)state;
	r = kvs_placement_query(m.base, m.len, page(), 0, &pl);
	if (r == -EPERM || r == -ENOSYS) {
		print_message("move_pages is not to be had here: %d\n", r);
		map_free(&m);
		skip();
	}
	assert_int_equal(r, 0);
	assert_int_equal(pl.checked, n);
	assert_int_equal(pl.absent, n);

	assert_int_equal(kvs_prefault(m.base, m.len, &o, NULL), 0);
	assert_int_equal(kvs_placement_query(m.base, m.len, page(), 0, &pl), 0);
	assert_int_equal(pl.absent, 0);
	for (i = 0; i < KVS_MAX_NODES; i++) {
		sum += pl.per_node[i];
		if (pl.per_node[i] == n)
			node = i;
	}
	assert_int_equal(sum, n);
	if (node >= 0)
		assert_int_equal(kvs_placement_verify(m.base, m.len, page(),
						      node, true, 0, &pl),
				 0);
	/* nothing is there: strict says so, otherwise it is just counted */
	assert_int_equal(kvs_placement_verify(m.base, m.len, page(),
					      KVS_MAX_NODES - 1, true, 0, &pl),
			 -ENXIO);
	assert_int_equal(pl.checked, n);
	assert_int_equal(kvs_placement_verify(m.base, m.len, page(),
					      KVS_MAX_NODES - 1, false, 0, &pl),
			 0);
	assert_int_equal(kvs_placement_verify(m.base, m.len, page(), -1, true,
					      0, &pl),
			 -EINVAL);
	assert_int_equal(kvs_placement_query(m.base, 100, page(), 0, &pl),
			 -EINVAL);
	map_free(&m);
}

/* A sample has both ends in it: one absent page at the end is seen. */
static void test_placement_sample(void **state)
{
	struct map m = map_new(4 * MIB);
	struct kvs_prefault_opts o = { 0 };
	struct kvs_placement pl;
	int r;

	(void)state;
	assert_int_equal(kvs_prefault(m.base, m.len - page(), &o, NULL), 0);
	r = kvs_placement_query(m.base, m.len, page(), 7, &pl);
	map_free(&m);
	if (r == -EPERM || r == -ENOSYS)
		skip();
	assert_int_equal(r, 0);
	assert_int_equal(pl.checked, 7);
	assert_int_equal(pl.absent, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everything_present),
		cmocka_unit_test(test_one_page),
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_foreign_cpus),
		cmocka_unit_test(test_cancelled_before),
		cmocka_unit_test(test_cancelled_during),
		cmocka_unit_test(test_no_signal),
		cmocka_unit_test(test_old_kernel),
		cmocka_unit_test(test_out_of_memory),
		cmocka_unit_test(test_placement),
		cmocka_unit_test(test_placement_sample),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
