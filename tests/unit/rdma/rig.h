/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport of the engine named on the command line, a listener, and what
 * its connections saw. The other side is a raw socket (a "puppet") or a
 * second connection of the same loop.
 */
#ifndef KVS_TESTS_RIG_H
#define KVS_TESTS_RIG_H

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/transport.h"

#define RIG_TYPES 64

/* One connection as its upper layer sees it. */
struct side {
	struct kvs_conn *c;
	enum kvs_conn_kind kind;
	/* next payload goes here; NULL: read and drop */
	unsigned char *mem;
	size_t mem_step; /* added to mem after each payload */
	int refuse; /* payload() answers this */
	int opened;
	int frames;
	uint16_t types[RIG_TYPES];
	uint64_t frame_sum; /* over every byte of every frame */
	int payloads;
	int done;
	int status; /* of the last payload_done() */
	uint64_t got;
	bool in_rx;
	int closed;
	int err;
	bool echo; /* send each frame back */
	/* called at the end of frame(); the result is frame()'s */
	int (*on_frame)(struct side *s, const struct kvs_frame *f);
	int (*on_done)(struct side *s, int status);
	void *arg;
};

struct rig {
	struct kvs_transport *t;
	struct kvs_listener *l;
	struct kvs_addr addr; /* where the listener is */
	struct side side[4096]; /* accepted ones, in order */
	unsigned int n_sides;
	enum kvs_conn_kind kind; /* of accepted ones */
	unsigned char *mem;
	bool echo;
};

extern const char *rig_engine;
extern const struct kvs_conn_ops rig_ops;

/* Parse argv, skip (77) when the engine cannot be had here. */
void rig_main(int argc, char **argv);
struct rig *rig_new(const struct kvs_transport_opts *o);
void rig_free(struct rig *r);
struct kvs_transport_stats rig_stats(struct rig *r);

/* Poll until @cond, at most 20 s. */
#define rig_until(r, cond)                                                  \
	do {                                                                \
		uint64_t until_ = rig_now() + 20000000000ull;               \
		while (!(cond)) {                                           \
			assert_true(rig_now() < until_);                    \
			assert_true(kvs_transport_poll((r)->t, 20000000) >= \
				    0);                                     \
		}                                                           \
	} while (0)
uint64_t rig_now(void);
/* Poll until nothing happened for a while (50 ms). */
void rig_settle(struct rig *r);

/* A raw blocking socket connected to the rig. */
int puppet(struct rig *r);
/* Send all, polling the rig when the socket is full. */
void puppet_send(struct rig *r, int fd, const void *p, size_t n);
/* Receive exactly @n, polling the rig meanwhile. */
void puppet_recv(struct rig *r, int fd, void *p, size_t n);
void puppet_reset(int fd);

/* A frame of @len bytes with type and payload length; body is a pattern. */
void mkframe(void *p, uint16_t type, uint32_t len, uint32_t payload);
unsigned char pattern(uint64_t seed, uint64_t i);
void fill(void *p, uint64_t seed, size_t n);
bool matches(const void *p, uint64_t seed, size_t n);
bool all_are(const void *p, unsigned char v, size_t n);

#endif /* KVS_TESTS_RIG_H */
