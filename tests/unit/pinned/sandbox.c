/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pinned/sandbox.h"

#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCH AUDIT_ARCH_AARCH64
#endif

#define FIELD(f) ((uint32_t)offsetof(struct seccomp_data, f))
#define LOAD(f) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(f))
#define UNLESS(k, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (k), 0, (skip))
#define ANSWER(v) BPF_STMT(BPF_RET | BPF_K, (v))

static int failures;

void sandbox_check(bool ok, const char *what, int line)
{
	if (ok)
		return;
	failures++;
	fprintf(stderr, "line %d, in the child: %s does not hold\n", line,
		what);
}

int sandbox_run(void (*body)(void))
{
	int status;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid) {
		failures = 0;
		body();
		(void)fflush(NULL);
		_exit(failures ? 1 : 0);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFSIGNALED(status))
		fprintf(stderr, "child died of signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -ECHILD;
}

static int install(struct sock_filter *code, unsigned short len)
{
	struct sock_fprog prog = { .len = len, .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		return -errno;
	return 0;
}

int sandbox_try_deny(int nr, int err)
{
	struct sock_filter code[] = {
		LOAD(arch),
		UNLESS(OUR_ARCH, 3),
		LOAD(nr),
		UNLESS((uint32_t)nr, 1),
		ANSWER(SECCOMP_RET_ERRNO | (uint32_t)err),
		ANSWER(SECCOMP_RET_ALLOW),
	};

	return install(code, sizeof(code) / sizeof(code[0]));
}

void sandbox_deny(int nr, int err)
{
	SANDBOX_CHECK(!sandbox_try_deny(nr, err));
}

void sandbox_deny_arg2(int nr, uint32_t arg2, int err)
{
	struct sock_filter code[] = {
		LOAD(arch),
		UNLESS(OUR_ARCH, 5),
		LOAD(nr),
		UNLESS((uint32_t)nr, 3),
		LOAD(args[2]), /* low word: both machines are little endian */
		UNLESS(arg2, 1),
		ANSWER(SECCOMP_RET_ERRNO | (uint32_t)err),
		ANSWER(SECCOMP_RET_ALLOW),
	};

	SANDBOX_CHECK(!install(code, sizeof(code) / sizeof(code[0])));
}

uint64_t sandbox_drop_root(uint64_t memlock)
{
	struct rlimit rl = { 0, 0 };

	/* Raising the hard limit would need CAP_SYS_RESOURCE. */
	SANDBOX_CHECK(!getrlimit(RLIMIT_MEMLOCK, &rl));
	if (rl.rlim_max != RLIM_INFINITY && rl.rlim_max < memlock)
		memlock = rl.rlim_max;
	rl.rlim_cur = rl.rlim_max = memlock;
	SANDBOX_CHECK(!setrlimit(RLIMIT_MEMLOCK, &rl));
	SANDBOX_CHECK(!setgroups(0, NULL));
	SANDBOX_CHECK(!setresgid(65534, 65534, 65534));
	SANDBOX_CHECK(!setresuid(65534, 65534, 65534));
	return memlock;
}
