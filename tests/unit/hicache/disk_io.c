/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of the engine named as argument, on real files: what is written is
 * read back, in one piece and in many, direct and buffered, through registered
 * memory and not; a transfer of which only a part comes is gone on with, the
 * last one included, and counted; one that makes no progress ends with an
 * error, and so does one whose file is too short, with no byte taken for
 * read; more than a system call moves at once is moved all the same; many
 * transfers through a small ring all end; nothing is over before its turn.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "hicache/disk_io.h"
#include "lib/rng.h"
#include "tests/unit/pinned/seed.h"

#define MEM (8u << 20)

static const char *engine;
static struct kvs_disk *d;
static struct kvs_disk_file file;
static unsigned char *mem; /* MEM bytes */
static char path[] = "/tmp/kvs-disk-XXXXXX";
static unsigned int ended;
static int last;
static unsigned int halve; /* every n-th result */
static unsigned int results, halved;
static ssize_t force; /* instead of a result, while it is not 1 */

static ssize_t worse(void *arg, enum kvs_disk_op op, ssize_t result)
{
	(void)arg;
	if (force != 1)
		return force;
	if (op == KVS_DISK_SYNC || result <= 512 || !halve || ++results % halve)
		return result;
	halved++;
	return result / 2 / 512 * 512;
}

static void up(unsigned int depth, bool direct)
{
	struct kvs_disk_opts o = {
		.engine = engine,
		.depth = depth,
		.files = 4,
		.result = worse,
		.latency = 0,
	};
	char err[512];
	int rc = kvs_disk_create(&o, &d, err, sizeof(err));
	int fd;

	if (rc == -EOPNOTSUPP) {
		print_message("%s\n", err);
		exit(77);
	}
	assert_int_equal(rc, 0);
	memcpy(path, "/tmp/kvs-disk-XXXXXX", sizeof(path));
	fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	fd = open(path, O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0));
	if (fd < 0)
		fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	kvs_disk_file_init(d, &file, fd, direct ? 512 : 1);
	mem = mmap(NULL, MEM, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(mem != MAP_FAILED);
	ended = 0;
	halve = 0;
	results = 0;
	halved = 0;
	force = 1;
}

static void down(void)
{
	int fd = file.fd;

	kvs_disk_file_fini(d, &file);
	close(fd);
	unlink(path);
	kvs_disk_destroy(d);
	munmap(mem, MEM);
}

static void done(struct kvs_disk_io *io, int result)
{
	(void)io;
	ended++;
	last = result;
}

static void wait_for(unsigned int n)
{
	unsigned int i;

	for (i = 0; ended < n && i < 1000000; i++) {
		kvs_disk_turn(d);
		if (ended < n)
			kvs_disk_wait(d, KVS_NSEC_PER_SEC);
	}
	assert_int_equal(ended, n);
}

static int one(enum kvs_disk_op op, const struct iovec *iov, unsigned int niov,
	       uint64_t off)
{
	struct kvs_disk_io io = {
		.op = op,
		.file = &file,
		.iov = iov,
		.niov = niov,
		.off = off,
		.done = done,
	};
	unsigned int i, before = ended;

	for (i = 0; i < niov; i++)
		io.len += iov[i].iov_len;
	kvs_disk_start(d, &io);
	assert_int_equal(ended, before);
	assert_int_equal(kvs_disk_busy(d), 1);
	wait_for(before + 1);
	assert_int_equal(kvs_disk_busy(d), 0);
	assert_int_equal(file.busy, 0);
	return last;
}

static void fill(unsigned char *p, size_t len, uint64_t seed)
{
	size_t i;

	for (i = 0; i < len; i += 8) {
		uint64_t v = kvs_mix64(seed + i);

		memcpy(p + i, &v, len - i < 8 ? len - i : 8);
	}
}

static bool same(const unsigned char *p, size_t len, uint64_t seed)
{
	size_t i;

	for (i = 0; i < len; i += 8) {
		uint64_t v = kvs_mix64(seed + i);

		if (memcmp(p + i, &v, len - i < 8 ? len - i : 8) != 0)
			return false;
	}
	return true;
}

static void there_and_back(void **state)
{
	struct iovec whole = { NULL, 1 << 20 }, part[300];
	unsigned int i, direct, map;

	(void)state;
	for (direct = 0; direct < 2; direct++) {
		for (map = 0; map < 2; map++) {
			up(4, direct);
			if (map && kvs_disk_map(d, mem, MEM))
				print_message("no registered memory\n");
			whole.iov_base = mem;
			fill(mem, 1 << 20, 1);
			assert_int_equal(one(KVS_DISK_WRITE, &whole, 1, 8192),
					 0);
			assert_int_equal(one(KVS_DISK_SYNC, NULL, 0, 0), 0);
			memset(mem, 0, 1 << 20);
			/* more pieces than go at once, and out of order */
			for (i = 0; i < 256; i++) {
				part[i].iov_base =
					mem + (4u << 20) + (255 - i) * 4096;
				part[i].iov_len = 4096;
			}
			assert_int_equal(one(KVS_DISK_READ, part, 256, 8192),
					 0);
			for (i = 0; i < 256; i++)
				memcpy(mem + i * 4096, part[i].iov_base, 4096);
			assert_true(same(mem, 1 << 20, 1));
			if (map && !strcmp(engine, "uring"))
				assert_true(kvs_disk_stats(d)->fixed > 0);
			assert_int_equal(
				kvs_disk_stats(d)->bytes[KVS_DISK_READ],
				1 << 20);
			assert_int_equal(kvs_disk_stats(d)->ops[KVS_DISK_SYNC],
					 1);
			down();
		}
	}
}

static void halves_are_gone_on_with(void **state)
{
	struct iovec part[5];
	unsigned int i, k, direct;

	(void)state;
	for (direct = 0; direct < 2; direct++) {
		up(2, direct);
		for (k = 1; k <= 3; k++) {
			halve = k;
			results = 0;
			halved = 0;
			for (i = 0; i < 5; i++) {
				part[i].iov_base = mem + i * 65536;
				part[i].iov_len = 65536;
			}
			fill(mem, 5 * 65536, k);
			assert_int_equal(one(KVS_DISK_WRITE, part, 5, 0), 0);
			memset(mem, 0, 5 * 65536);
			assert_int_equal(one(KVS_DISK_READ, part, 5, 0), 0);
			assert_true(same(mem, 5 * 65536, k));
			assert_true(halved > 0 || k > 1);
		}
		assert_true(kvs_disk_stats(d)->shorts[KVS_DISK_READ] > 0);
		assert_true(kvs_disk_stats(d)->shorts[KVS_DISK_WRITE] > 0);
		down();
	}
}

static void what_makes_no_progress(void **state)
{
	struct iovec v = { NULL, 16384 };

	(void)state;
	up(2, false);
	v.iov_base = mem;
	assert_int_equal(ftruncate(file.fd, 6000), 0);
	memset(mem, 0xee, 16384);
	assert_int_equal(one(KVS_DISK_READ, &v, 1, 0), -ENODATA);
	assert_int_equal(kvs_disk_stats(d)->shorts[KVS_DISK_READ], 2);
	assert_int_equal(kvs_disk_stats(d)->failed[KVS_DISK_READ], 1);
	force = 0;
	assert_int_equal(one(KVS_DISK_WRITE, &v, 1, 0), -EIO);
	force = -EAGAIN;
	assert_int_equal(one(KVS_DISK_WRITE, &v, 1, 0), -EIO);
	assert_true(kvs_disk_stats(d)->retried > 10);
	force = 16385;
	assert_int_equal(one(KVS_DISK_WRITE, &v, 1, 0), -EIO);
	force = -EROFS;
	assert_int_equal(one(KVS_DISK_SYNC, NULL, 0, 0), -EROFS);
	force = 1;
	v.iov_len = 0;
	assert_int_equal(one(KVS_DISK_READ, &v, 1, 0), -EINVAL);
	v.iov_len = 4096;
	assert_int_equal(one(KVS_DISK_READ, &v, 1, INT64_MAX), -EINVAL);
	down();
	/* the same of a direct read: 6000 is no place to go on at */
	up(2, true);
	v.iov_base = mem;
	v.iov_len = 16384;
	assert_int_equal(ftruncate(file.fd, 6000), 0);
	assert_int_equal(one(KVS_DISK_READ, &v, 1, 0), -ENODATA);
	down();
}

/* One system call moves 2,147,479,552 bytes at most. */
static void three_gigabytes(void **state)
{
	enum { N = 3 * 1024 / 4 };
	static struct iovec v[N];
	uint64_t at = (3ULL << 30) - 4096;
	unsigned int i;

	(void)state;
	up(2, false);
	for (i = 0; i < N; i++) {
		v[i].iov_base = mem;
		v[i].iov_len = 4u << 20;
	}
	fill(mem + MEM - 4096, 4096, 9);
	assert_int_equal(pwrite(file.fd, mem + MEM - 4096, 4096, (off_t)at),
			 4096);
	memset(mem + MEM - 4096, 0, 4096);
	assert_int_equal(one(KVS_DISK_READ, v, N, 0), 0);
	assert_true(same(mem + (4u << 20) - 4096, 4096, 9));
	assert_int_equal(kvs_disk_stats(d)->bytes[KVS_DISK_READ], 3ULL << 30);
	assert_int_equal(kvs_disk_stats(d)->shorts[KVS_DISK_READ], 0);
	down();
}

/* Many more than fit, in both directions at once. */
static void many_through_few(void **state)
{
	enum { N = 1000 };
	static struct kvs_disk_io io[N];
	static struct iovec v[N];
	unsigned int i, k;

	(void)state;
	for (k = 1; k <= 8; k += 7) {
		up(k, false);
		assert_int_equal(kvs_disk_depth(d), k);
		assert_int_equal(ftruncate(file.fd, N * 4096), 0);
		fill(mem, N * 4096, 3);
		for (i = 0; i < N; i++) {
			v[i] = (struct iovec){ mem + i * 4096, 4096 };
			io[i] = (struct kvs_disk_io){
				.op = i % 50 == 49 ? KVS_DISK_SYNC
						   : KVS_DISK_WRITE,
				.file = &file,
				.iov = &v[i],
				.niov = 1,
				.off = i * 4096,
				.len = 4096,
				.done = done,
			};
			kvs_disk_start(d, &io[i]);
		}
		assert_int_equal(kvs_disk_busy(d), N);
		wait_for(N);
		for (i = 0; i < N; i++) {
			memset(v[i].iov_base, 0, 4096);
			io[i].op = KVS_DISK_READ;
			kvs_disk_start(d, &io[i]);
		}
		wait_for(2 * N);
		for (i = 0; i < N; i++)
			assert_true(i % 50 == 49 ||
				    same(v[i].iov_base, 8, 3 + i * 4096ULL));
		assert_int_equal(kvs_disk_stats(d)->overflows, 0);
		down();
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(halves_are_gone_on_with),
		cmocka_unit_test(what_makes_no_progress),
		cmocka_unit_test(three_gigabytes),
		cmocka_unit_test(many_through_few),
	};

	engine = argc > 1 ? argv[1] : "plain";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
