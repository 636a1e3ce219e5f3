/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon listen
 *
 * Sockets of the daemon itself, and the files around them: a Unix socket is
 * owned by whoever holds the lock on "<path>.lock", so two daemons can never
 * take one path from each other, however they race.
 */
#ifndef KVS_TOOLS_DAEMON_LISTEN_H
#define KVS_TOOLS_DAEMON_LISTEN_H

#include <stdbool.h>
#include <stddef.h>

/**
 * kvs_listen_check() - may we listen there?
 * @setting: its name, for messages
 * @address: host:port
 * @unless: what would allow any address, for messages; NULL: nothing does
 * @any: any address is allowed
 *
 * Without @any, every address the host stands for must be a loopback one.
 * Context: may block in the resolver.
 * Return: 0; -EINVAL form, or reachable from outside; -ENOENT, -EAGAIN name.
 */
int kvs_listen_check(const char *setting, const char *address,
		     const char *unless, bool any, char *err, size_t errlen);

/**
 * kvs_listen_tcp() - bind and listen
 * @ret_fd: non-blocking, close-on-exec
 * @ret_bound: "127.0.0.1:9410", KVS_LISTEN_STR bytes
 * @ret_port: the bound port
 *
 * Return: 0; as kvs_listen_check(); what bind(2) and listen(2) gave.
 */
#define KVS_LISTEN_STR 96
int kvs_listen_tcp(const char *setting, const char *address, int *ret_fd,
		   char *ret_bound, unsigned int *ret_port, char *err,
		   size_t errlen);

/**
 * kvs_unix_claim() - become the owner of a Unix socket's path
 * @setting: its name, for messages
 * @path: of the socket; a stale socket there is removed, and its folder made
 *        (mode 0755) when only that is missing
 * @ret_lock: descriptor that holds the lock; close it last
 *
 * Return: 0; -EADDRINUSE a live process has it; -EEXIST something else than a
 * socket is there; what opening and locking gave.
 */
int kvs_unix_claim(const char *setting, const char *path, int *ret_lock,
		   char *err, size_t errlen);
/* Bind a claimed path, mode 0600; @ret_fd as above. */
int kvs_unix_listen(const char *setting, const char *path, int *ret_fd,
		    char *err, size_t errlen);
/* Remove socket and lock file, and let go; nothing for a @lock below 0. */
void kvs_unix_release(const char *path, int lock);

/**
 * kvs_port_file_check() - may a port file be put there?
 *
 * Nothing, an empty file, or a file with a port number in it may be there;
 * what else is there stays, and so does what a link leads to.
 * Return: 0; -EEXIST; what opening it gave.
 */
int kvs_port_file_check(const char *setting, const char *path, char *err,
			size_t errlen);
/* Check, then write @port and a newline to @path, all at once. Return: 0 or
 * -errno. */
int kvs_port_file_write(const char *setting, const char *path,
			unsigned int port, char *err, size_t errlen);

/* Remove it, if it still is one with the port of "host:port" in it. */
void kvs_port_file_remove(const char *path, const char *bound);

#endif /* KVS_TOOLS_DAEMON_LISTEN_H */
