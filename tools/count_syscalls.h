/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TOOLS_COUNT_SYSCALLS_H
#define KVS_TOOLS_COUNT_SYSCALLS_H

#include <stdint.h>

/**
 * kvs_count_syscalls() - how many system calls does a function make?
 * @fn: the function; must not need any of them to succeed
 * @arg: for @fn
 * @ret: how many it made
 *
 * Runs it in a forked child under a seccomp filter that turns every system
 * call into a SIGSYS, whose handler counts it; none is carried out. Before
 * @fn the child makes one on purpose: a filter that missed it would count
 * nothing of @fn either.
 *
 * Context: one thread in the process; blocks until the child has ended.
 * Return: 0; -EOPNOTSUPP the machine lets no filter be set, or it does not
 * count; -ECHILD the child ended in another way; -errno of fork() and mmap().
 */
int kvs_count_syscalls(void (*fn)(void *arg), void *arg, uint64_t *ret);

#endif /* KVS_TOOLS_COUNT_SYSCALLS_H */
