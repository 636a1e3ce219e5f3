/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim (liburing#365, iree#23654): a pool larger than the kernel's 1 GiB a
 * fixed buffer is registered in pieces, a read into its last page through the
 * right piece arrives there; when locked memory does not suffice the answer
 * is -ENOMEM, the ring has no half of the pool, and ordinary reads go on.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "pinned/limits.h"
#include "pinned/poison.h"
#include "rdma/uring_buffers.h"

#define GIB (1ULL << 30)
#define SKIP 77

static struct io_uring ring;

static int make_pool(uint64_t size, void **ret_base, struct kvs_pool **ret)
{
	struct kvs_pool_opts o = { .name = "receive",
				   .size = size,
				   .clock = &kvs_clock_real };

	*ret_base = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(*ret_base, MAP_FAILED);
	(void)madvise(*ret_base, size, MADV_HUGEPAGE);
	o.base = *ret_base;
	return kvs_pool_create(&o, ret);
}

/* Read one page of /dev/zero into @addr through fixed buffer @index. */
static int read_fixed(void *addr, int index)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	struct io_uring_cqe *cqe;
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	int res;

	io_uring_prep_read_fixed(sqe, fd, addr, 4096, 0, index);
	io_uring_submit(&ring);
	assert_int_equal(io_uring_wait_cqe(&ring, &cqe), 0);
	res = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	close(fd);
	return res;
}

/* Registered memory is all there; to run out of it would kill the test. */
static bool memory_for(uint64_t bytes)
{
	struct kvs_limits lim;
	bool enough;

	assert_int_equal(kvs_limits_read(NULL, &lim), 0);
	enough = lim.mem_available > bytes + bytes / 8 &&
		 (lim.memory.limit == KVS_LIMIT_NONE ||
		  lim.memory.room > bytes + bytes / 8);
	kvs_limits_fini(&lim);
	return enough;
}

static void test_pieces(void **state)
{
	const uint64_t size = 2 * GIB + 4096;
	struct kvs_uring_buffers b;
	struct kvs_reglist *list;
	struct kvs_pool *pool;
	uint64_t handle, off;
	char *last;
	void *base;

	(void)state;
	if (!memory_for(size)) {
		printf("skipped: 2 GiB of memory are not available\n");
		skip();
	}
	assert_int_equal(make_pool(size, &base, &pool), 0);
	last = (char *)base + 2 * GIB;
	/* The page is nobody's, so the pool has it poisoned. */
	KVS_UNPOISON(last, 4096);
	memset(last, 0xee, 4096);
	assert_int_equal(kvs_uring_buffers_init(&b, &ring), 0);
	assert_int_equal(kvs_reglist_create(pool, &kvs_uring_registrar, &b,
					    4096, &list),
			 0);
	assert_int_equal(kvs_reglist_chunks(list), 3);
	assert_int_equal(kvs_reglist_lookup(list, 2 * GIB, 4096, &handle, &off),
			 0);
	assert_int_equal(off, 2 * GIB);
	assert_int_equal(read_fixed(last, (int)handle), 4096);
	for (int i = 0; i < 4096; i++)
		assert_int_equal(last[i], 0);
	/* through another piece the kernel refuses */
	assert_int_equal(read_fixed(last, 0), -EFAULT);
	assert_int_equal(kvs_reglist_destroy(list), 0);
	assert_int_equal(read_fixed(last, (int)handle), -EFAULT);
	kvs_uring_buffers_fini(&b);
	kvs_pool_destroy(pool);
	munmap(base, size);
}

static int memlock_child(void)
{
	const struct rlimit low = { 8 << 20, 8 << 20 };
	struct kvs_uring_buffers b;
	struct kvs_reglist *list = NULL;
	struct kvs_pool *pool;
	void *base;
	int ret;

	if (setrlimit(RLIMIT_MEMLOCK, &low) || setresuid(65534, 65534, 65534))
		return SKIP;
	ret = io_uring_queue_init(4, &ring, 0);
	if (ret)
		return SKIP;
	if (make_pool(64 << 20, &base, &pool) ||
	    kvs_uring_buffers_init(&b, &ring))
		return 1;
	ret = kvs_reglist_create(pool, &kvs_uring_registrar, &b, 4096, &list);
	if (ret != -ENOMEM || list)
		return 2;
	if (read_fixed(base, 0) != -EFAULT)
		return 3;
	kvs_pool_destroy(pool);
	return 0;
}

static void test_memlock(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	if (geteuid()) {
		printf("skipped: needs root to drop its rights\n");
		skip();
	}
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(memlock_child());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == SKIP)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_memlock),
	};
	int ret = io_uring_queue_init(4, &ring, 0);

	if (ret) {
		printf("skipped: io_uring_setup: %s\n", strerror(-ret));
		return SKIP;
	}
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	io_uring_queue_exit(&ring);
	return ret;
}
