/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a piece of a test in a child that has been taken something away: a
 * system call (by a seccomp filter), or the rights of root. The child's
 * checks print and count; its exit status says whether all held.
 */
#ifndef KVS_TESTS_PINNED_SANDBOX_H
#define KVS_TESTS_PINNED_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

/* In the child: a check that does not longjmp. */
#define SANDBOX_CHECK(x) sandbox_check(!!(x), #x, __LINE__)
void sandbox_check(bool ok, const char *what, int line);

/* Returns 0 when every check of @body held; it runs in a forked child. */
int sandbox_run(void (*body)(void));

/* In the child: system call @nr fails with @err. */
void sandbox_deny(int nr, int err);
/* The same, without a check: 0, or -errno where filters cannot be had. */
int sandbox_try_deny(int nr, int err);
/* In the child: system call @nr fails with @err when argument 2 is @arg2. */
void sandbox_deny_arg2(int nr, uint32_t arg2, int err);
/*
 * In the child: become nobody, with at most @memlock bytes of locked memory.
 * Returns the limit in force, bytes.
 */
uint64_t sandbox_drop_root(uint64_t memlock);

#endif /* KVS_TESTS_PINNED_SANDBOX_H */
