/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon rig
 *
 * A real kvstaged in a temporary folder of its own, with the test as its
 * service manager: readiness comes by the notification socket, never by
 * waiting some time.
 */
#ifndef KVS_TESTS_DAEMON_RIG_H
#define KVS_TESTS_DAEMON_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVS_RIG_POOL "64M"
#define KVS_RIG_ARGS 32

struct kvs_rig {
	char dir[32]; /* also the working directory */
	pid_t pid; /* 0: does not run */
	int notify; /* bound as "notify" */
};

/* What a finished process left behind. */
struct kvs_rig_result {
	int status; /* exit status, or 256 + signal */
	char out[65536];
	char err[65536];
};

/* Exits 77 where pools cannot be had; @tools is the folder of the tools. */
void kvs_rig_init(struct kvs_rig *r, const char *tools);
/* Kills what runs and removes the folder. */
void kvs_rig_fini(struct kvs_rig *r);

/* Start kvstaged with the rig's own options and @extra (NULL-ended). */
void kvs_rig_start(struct kvs_rig *r, const char *const *extra);
/* The same, until it says READY=1. */
void kvs_rig_start_ready(struct kvs_rig *r, const char *const *extra);
/* Receive messages of the daemon until one has @part; all text in @seen. */
void kvs_rig_wait(struct kvs_rig *r, const char *part, char *seen, size_t len);
/* Stuff the notification socket, so that the daemon's next message waits. */
void kvs_rig_block(struct kvs_rig *r);
/* Wait until a file of this name is moved into the folder. */
int kvs_rig_watch(const struct kvs_rig *r);
void kvs_rig_wait_file(int watch, const char *name);
/* Wait for the end; returns the exit status, or 256 + signal. */
int kvs_rig_join(struct kvs_rig *r);
/* SIGTERM and join: asserts 0, and a log without warnings. */
void kvs_rig_stop(struct kvs_rig *r);
/* What the daemon logged so far; static. */
const char *kvs_rig_log(void);
void kvs_rig_assert_log(const char *part);

/* Run a tool ("kvstaged", "kvstagectl") to its end. */
void kvs_rig_run(const struct kvs_rig *r, const char *tool,
		 const char *const *args, struct kvs_rig_result *ret);

/* The port in @file. */
unsigned int kvs_rig_port(const char *file);
int kvs_rig_connect(unsigned int port);
/* Everything the peer sends until it closes; returns bytes, NUL-ended. */
size_t kvs_rig_read(int fd, char *buf, size_t len);
/* Send @method and @path on a connection of its own; static answer. */
const char *kvs_rig_http(const char *method, const char *path);
void kvs_rig_write_file(const char *name, const char *text);
void kvs_rig_assert_has(const char *text, const char *part);

#endif /* KVS_TESTS_DAEMON_RIG_H */
