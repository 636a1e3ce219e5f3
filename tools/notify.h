/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: notify
 *
 * The service manager's notification protocol: datagrams of "NAME=value"
 * lines to the socket named by NOTIFY_SOCKET. Without the variable every call
 * does nothing.
 */
#ifndef KVS_TOOLS_NOTIFY_H
#define KVS_TOOLS_NOTIFY_H

#include <stdint.h>

/**
 * kvs_notify() - send one message
 * @fmt: "READY=1", "STATUS=...", several with newlines between
 *
 * Context: any thread; may block, but no longer than 5 s.
 * Return: 0 sent or nobody wants it; -EINVAL NOTIFY_SOCKET is not a socket's
 * name; -EMSGSIZE; what socket(2) and sendto(2) gave.
 */
int kvs_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ns between two WATCHDOG=1 the manager expects at most, 0 for none. */
uint64_t kvs_notify_watchdog(void);

#endif /* KVS_TOOLS_NOTIFY_H */
