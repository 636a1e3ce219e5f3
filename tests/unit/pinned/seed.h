/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: what the tests of this folder share
 *
 * A seed that is printed and may be given as KVS_TEST_SEED, and whether a
 * call ends its process.
 */
#ifndef KVS_TESTS_UNIT_PINNED_SEED_H
#define KVS_TESTS_UNIT_PINNED_SEED_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/rng.h"
#include "lib/units.h"

static inline void seed_rng(struct kvs_rng *r)
{
	const char *s = getenv("KVS_TEST_SEED");
	uint64_t seed;

	if (!s || kvs_parse_u64(s, &seed))
		if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
			seed = 1;
	printf("KVS_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	kvs_rng_init(r, seed);
}

/* Wait status of a child that calls fn(arg) and then exits with 0. */
static inline int status_of(void (*fn)(void *), void *arg)
{
	struct rlimit none = { 0, 0 };
	int status, fd;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		abort();
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &none);
		signal(SIGABRT, SIG_DFL);
		fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
		if (fd >= 0)
			dup2(fd, STDERR_FILENO);
		fn(arg);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		abort();
	return status;
}

static inline int aborts(void (*fn)(void *), void *arg)
{
	int status = status_of(fn, arg);

	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

#endif /* KVS_TESTS_UNIT_PINNED_SEED_H */
