/* SPDX-License-Identifier: Apache-2.0 */
/* Does an assertion of the code stop this? Asked in a child process. */
#ifndef KVS_TESTS_CLAIM_DIES_H
#define KVS_TESTS_CLAIM_DIES_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/assert.h"

static inline bool claim_dies(void (*fn)(void *arg), void *arg)
{
	struct rlimit no_core = { 0, 0 };
	int status, null;
	pid_t pid = fork();

	KVS_ASSERT(pid >= 0);
	if (!pid) {
		setrlimit(RLIMIT_CORE, &no_core);
		signal(SIGABRT, SIG_DFL);
		/* what it says is expected, and no news */
		null = open("/dev/null", O_WRONLY | O_CLOEXEC);
		dup2(null, STDERR_FILENO);
		fn(arg);
		_exit(0);
	}
	KVS_ASSERT(waitpid(pid, &status, 0) == pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

#endif /* KVS_TESTS_CLAIM_DIES_H */
