/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A one-sided fabric of two endpoints under a virtual clock: "a" sends, "b"
 * has the memory and grants it. Everything that happens is written to a log,
 * and one event may be struck by a scripted fault.
 */
#ifndef KVS_TESTS_LOOP_RIG_H
#define KVS_TESTS_LOOP_RIG_H

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

#include "lib/rng.h"
#include "rdma/loop.h"

#define LR_CONNS 4
#define LR_MEM 4096 /* bytes of b's memory */
#define LR_OWNER 77u
#define LR_TYPES 64

struct lr;

/* One side of a connection as its upper layer sees it. */
struct lr_end {
	struct lr *r;
	int id; /* 0.. at a, 100.. at b */
	struct kvs_conn *c;
	int opened;
	int frames;
	uint16_t types[LR_TYPES];
	int payloads;
	int payloads_done;
	int payload_status;
	unsigned char rx[LR_MEM];
	int closed;
	int err;
	/* called at the end of frame() */
	int (*on_frame)(struct lr_end *e, const struct kvs_frame *f);
};

struct lr_write {
	struct kvs_tx tx;
	struct iovec iov[2];
	struct lr *r;
	int done;
	int status;
	unsigned char *src; /* of its own */
	bool once; /* free it as soon as it is done */
	size_t len;
};

struct lr_read {
	struct kvs_read rd;
	struct lr *r;
	int done;
	int status;
	unsigned char *dst;
};

struct lr_grant {
	struct lr *r;
	struct kvs_grant *g; /* NULL: gone */
	struct kvs_grant_key key[8];
	size_t n;
	int opened;
	int open_status;
	int closed;
	int close_status;
	enum kvs_grant_proof proof;
	bool again; /* close again when an attempt failed */
	unsigned char after[LR_MEM]; /* b's memory when closed(0) came */
};

struct lr {
	struct kvs_vclock clk;
	struct kvs_fabric *f;
	struct kvs_transport *a;
	struct kvs_transport *b;
	struct kvs_listener *l;
	struct lr_end ea[LR_CONNS];
	struct lr_end eb[LR_CONNS];
	int n_accepted;
	unsigned char mem[LR_MEM];

	/* strikes the @nth event of @kind (from 1), if @fault is one */
	struct {
		enum kvs_loop_event_kind kind;
		unsigned int nth;
		enum kvs_loop_fault fault;
		uint64_t at;
		bool at_set;
	} script;
	unsigned int seen[KVS_LOOP_CLOSE + 1]; /* events, by kind */
	int crashes;
	struct kvs_transport *crashed;

	char *log; /* what happened; complete after lr_log() */
	size_t log_len;
	FILE *log_file;
};

extern const struct kvs_conn_ops lr_ops;

/* @plan: NULL: instant and perfect. */
struct lr *lr_new(uint64_t seed, const struct kvs_loop_plan *plan);
void lr_free(struct lr *r);
const char *lr_log(struct lr *r);
struct kvs_loop_faults lr_faults(const struct lr *r);
uint64_t lr_now(const struct lr *r);
void lr_script(struct lr *r, enum kvs_loop_event_kind kind, unsigned int nth,
	       enum kvs_loop_fault fault);
void lr_script_at(struct lr *r, enum kvs_loop_event_kind kind, unsigned int nth,
		  enum kvs_loop_fault fault, uint64_t at);
/* Connect and run; eb[i] is its other end, with @owner set there. */
void lr_dial(struct lr *r, int i, uint64_t owner);
/* Until nothing is due, moving the clock to each event. */
void lr_run(struct lr *r);
/* The same up to @t, where the clock stands then. */
void lr_run_to(struct lr *r, uint64_t t);

/* Grant @n ranges of @len bytes each from r->mem + @off on, and run. */
void lr_grant(struct lr *r, struct lr_grant *g, uint64_t owner, size_t off,
	      size_t len, size_t n);
/* Those that are begun from here on may not be read. */
void lr_write_only(bool yes);
int lr_grant_start(struct lr *r, struct lr_grant *g, uint64_t owner, size_t off,
		   size_t len, size_t n);
/* Memory of the write is its own; @len bytes of pattern @seed. */
struct lr_write *lr_write_new(struct lr *r, const struct kvs_grant_key *key,
			      uint64_t off, size_t len, uint16_t type,
			      uint64_t seed);
int lr_write(struct lr *r, int conn, struct lr_write *w);
void lr_write_free(struct lr_write *w);
void lr_send(struct kvs_conn *c, uint16_t type, uint32_t len);
unsigned char lr_pattern(uint64_t seed, size_t i);
/* Is r->mem[@off..] the first @len bytes of pattern @seed? */
bool lr_is(const struct lr *r, size_t off, size_t len, uint64_t seed);
bool lr_clear(const struct lr *r, size_t off, size_t len);

#endif /* KVS_TESTS_LOOP_RIG_H */
