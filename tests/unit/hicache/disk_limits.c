/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: where io_uring is forbidden (EPERM, as by a container's seccomp
 * profile) or missing (ENOSYS), or one of its calls is, "auto" takes the
 * plain engine, says why, and works; "uring" fails with a message that names
 * the call, the error and both causes. Memory of more than 1 GiB is registered
 * in pieces; where the limit of locked memory forbids it, that is said,
 * nothing is half registered, and transfers work without. Options out of range
 * are refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "hicache/disk_io.h"
#include "lib/assert.h"
#include "tests/unit/pinned/sandbox.h"

enum {
	CHILD_OK = 0,
	CHILD_BAD_RC = 1,
	CHILD_BAD_TEXT = 2,
	CHILD_NO_AUTO = 3,
	CHILD_BAD_ENGINE = 4,
	CHILD_BAD_TRANSFER = 5,
	CHILD_CANNOT = 77,
};

static void done(struct kvs_disk_io *io, int result)
{
	*(int *)io->arg = result;
}

/* 64 KiB from @mem to a file and back. */
static bool works(struct kvs_disk *d, unsigned char *mem)
{
	char path[] = "/tmp/kvs-disk-XXXXXX";
	struct iovec v = { mem, 65536 };
	struct kvs_disk_file f;
	struct kvs_disk_io io = {
		.file = &f,
		.iov = &v,
		.niov = 1,
		.len = 65536,
		.done = done,
	};
	int fd = mkstemp(path), op, result = 1;

	if (fd < 0)
		return false;
	unlink(path);
	kvs_disk_file_init(d, &f, fd, 1);
	io.arg = &result;
	for (op = KVS_DISK_WRITE; op >= KVS_DISK_READ; op--) {
		memset(mem, op == KVS_DISK_WRITE ? 0x77 : 0, 65536);
		io.op = (enum kvs_disk_op)op;
		result = 1;
		kvs_disk_start(d, &io);
		while (result == 1) {
			kvs_disk_turn(d);
			if (result == 1)
				kvs_disk_wait(d, KVS_NSEC_PER_SEC);
		}
		if (result)
			break;
	}
	kvs_disk_file_fini(d, &f);
	close(fd);
	return !result && mem[0] == 0x77 && mem[65535] == 0x77;
}

static int child(int nr, int err, const char *call)
{
	struct kvs_disk_opts o = { .engine = "uring", .files = 4 };
	static unsigned char mem[65536];
	struct kvs_disk *d;
	char text[512] = "";
	int rc;

	if (sandbox_try_deny(nr, err))
		return CHILD_CANNOT;
	rc = kvs_disk_create(&o, &d, text, sizeof(text));
	printf("%d: %s\n", rc, text);
	fflush(stdout);
	if (rc != -EOPNOTSUPP)
		return CHILD_BAD_RC;
	if (!strstr(text, "this build has none") &&
	    (!strstr(text, call) || !strstr(text, strerror(err)) ||
	     !strstr(text, "seccomp") ||
	     !strstr(text, "kernel.io_uring_disabled") ||
	     !strstr(text, "\"plain\"")))
		return CHILD_BAD_TEXT;
	*text = '\0';
	o.engine = "auto";
	if (kvs_disk_create(&o, &d, text, sizeof(text)) || !*text)
		return CHILD_NO_AUTO;
	if (strcmp(kvs_disk_name(d), "plain"))
		return CHILD_BAD_ENGINE;
	if (!works(d, mem))
		return CHILD_BAD_TRANSFER;
	kvs_disk_destroy(d);
	return CHILD_OK;
}

static int in_child(int (*fn)(int a, int b, const char *c), int a, int b,
		    const char *c)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(fn(a, b, c));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void forbidden(void **state)
{
	static const struct {
		int nr;
		const char *call;
	} calls[] = {
		{ __NR_io_uring_setup, "io_uring_setup" },
		{ __NR_io_uring_enter, "io_uring_enter" },
		{ __NR_io_uring_register, "io_uring_register" },
	};
	static const int errs[] = { EPERM, ENOSYS };
	size_t i, j;
	int rc;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(calls); i++) {
		for (j = 0; j < KVS_ARRAY_SIZE(errs); j++) {
			/* a probe that is refused has no number */
			if (calls[i].nr == __NR_io_uring_register &&
			    errs[j] == ENOSYS)
				continue;
			rc = in_child(child, calls[i].nr, errs[j],
				      calls[i].call);
			if (rc == CHILD_CANNOT)
				skip();
			assert_int_equal(rc, CHILD_OK);
		}
	}
}

static struct kvs_disk *uring(void)
{
	struct kvs_disk_opts o = { .engine = "uring", .files = 4 };
	struct kvs_disk *d;
	char err[512];

	return kvs_disk_create(&o, &d, err, sizeof(err)) ? NULL : d;
}

static void larger_than_a_piece(void **state)
{
	uint64_t len = (1ULL << 30) + 4096;
	struct kvs_disk *d = uring();
	unsigned char *mem;
	int rc;

	(void)state;
	if (!d)
		skip();
	mem = mmap(NULL, len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(mem != MAP_FAILED);
	rc = kvs_disk_map(d, mem, len);
	if (rc == -ENOMEM) {
		print_message("1 GiB may not be locked here\n");
		munmap(mem, len);
		kvs_disk_destroy(d);
		skip();
	}
	assert_int_equal(rc, 0);
	assert_true(works(d, mem + 4096));
	assert_int_equal(kvs_disk_stats(d)->fixed, 2);
	/* over the border of two pieces: the ordinary way */
	assert_true(works(d, mem + len - 65536));
	assert_int_equal(kvs_disk_stats(d)->fixed, 2);
	kvs_disk_destroy(d);
	munmap(mem, len);
}

static int little_locked_memory(int a, int b, const char *c)
{
	struct rlimit none = { 65536, 65536 };
	static _Alignas(4096) unsigned char mem[1 << 20];
	struct kvs_disk *d;
	int rc;

	(void)a;
	(void)b;
	(void)c;
	/* root may lock what it likes */
	if (setrlimit(RLIMIT_MEMLOCK, &none) ||
	    (!geteuid() && (setgid(65534) || setuid(65534))))
		return CHILD_CANNOT;
	d = uring();
	if (!d)
		return CHILD_CANNOT;
	rc = kvs_disk_map(d, mem, sizeof(mem));
	if (rc != -ENOMEM)
		return CHILD_BAD_RC;
	/* again, and in part: nothing is left of it */
	if (kvs_disk_map(d, mem, sizeof(mem)) != -ENOMEM)
		return CHILD_BAD_RC;
	if (!works(d, mem) || kvs_disk_stats(d)->fixed)
		return CHILD_BAD_TRANSFER;
	kvs_disk_destroy(d);
	return CHILD_OK;
}

static void not_to_be_locked(void **state)
{
	int rc = in_child(little_locked_memory, 0, 0, NULL);

	(void)state;
	if (rc == CHILD_CANNOT)
		skip();
	assert_int_equal(rc, CHILD_OK);
}

static void out_of_range(void **state)
{
	struct kvs_disk_opts o = { .engine = "floppy" };
	struct kvs_disk *d;
	char err[256] = "";

	(void)state;
	assert_int_equal(kvs_disk_create(&o, &d, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "floppy"));
	o.engine = "plain";
	o.depth = KVS_DISK_DEPTH_MAX + 1;
	assert_int_equal(kvs_disk_create(&o, &d, err, sizeof(err)), -EINVAL);
	o.depth = 1;
	o.threads = KVS_DISK_THREADS_MAX + 1;
	assert_int_equal(kvs_disk_create(&o, &d, NULL, 0), -EINVAL);
	o.threads = 1;
	assert_int_equal(kvs_disk_create(&o, &d, NULL, 0), 0);
	kvs_disk_destroy(d);
	kvs_disk_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forbidden),
		cmocka_unit_test(larger_than_a_piece),
		cmocka_unit_test(not_to_be_locked),
		cmocka_unit_test(out_of_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
