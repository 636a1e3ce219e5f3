/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node of the daemon on the in-process transport, one-sided, without
 * threads and under a virtual clock: writers write straight into what they
 * were granted, and may be stopped half way, refused, or found out.
 *
 * The part of the front is played here: sessions, admits and messages go to
 * the node as posts, what it says is kept. Of peers, one rank each, that meet
 * on one node, may be lost and come back, and find another node in its place;
 * the ranks of one peer are in tests/unit/pipeline/onesided_rig.h.
 */
#ifndef KVS_TESTS_ONESIDED_PEERS_H
#define KVS_TESTS_ONESIDED_PEERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/clock.h"
#include "pipeline/node.h"
#include "rdma/loop.h"

#define OP_PAGE 4096u /* bytes */
#define OP_TOKENS 16u /* of a page */
#define OP_EXTENT_PAGES 128u
#define OP_WRITERS 4
#define OP_ROOMS 8 /* of one writer */
#define OP_KEYS 8
#define OP_SLOTS 16

/* What a writer was granted. */
struct op_grant {
	uint64_t room; /* 0: unused */
	uint64_t generation;
	uint32_t n_keys;
	struct kvs_grant_key keys[OP_KEYS];
	struct kvs_grant_place place;
};

struct op_write {
	struct kvs_tx tx;
	struct iovec iov;
	unsigned int done;
	int status;
	uint64_t nr; /* completions of its writer before this one */
};

struct op_writer {
	struct op_rig *g;
	struct kvs_transport *t;
	struct kvs_conn *c; /* NULL: closed */
	uint64_t session; /* 0: none */
	int close_err;
	uint64_t completed; /* writes */
	uint64_t completed_at_close;
	struct op_grant grant[OP_ROOMS];
	unsigned int aborts; /* ABORTs heard */
	unsigned int completes;
};

struct op_rig {
	struct kvs_vclock clock;
	struct kvs_fabric *fabric;
	struct kvs_settings set;
	struct kvs_region region;
	struct kvs_node node;
	struct kvs_transport *door; /* where writers connect */
	struct kvs_listener *listener;
	uint64_t adopt; /* session that the next connection is of */
	struct op_writer w[OP_WRITERS];
	uint64_t generation;
	uint64_t words[OP_SLOTS];
	uint64_t off[OP_SLOTS][OP_KEYS]; /* of READY */
	/* session that the node has asked to be closed; 0: none */
	uint64_t to_close;
	int to_close_err;
	unsigned int closes;
	unsigned int errors; /* lines logged as such; op_down() wants none */
	/* strikes @count events of @kind, after @skip of them; @at as struct
	 * kvs_loop_event_info has it */
	struct {
		enum kvs_loop_event_kind kind;
		enum kvs_loop_fault fault;
		unsigned int skip;
		unsigned int count;
		uint64_t at;
	} script;
};

/* @pages: of the pool. */
void op_up(struct op_rig *g, uint32_t pages);
/* Everything is free and nobody is left; else the test fails. */
void op_down(struct op_rig *g);
/* Another node in the place of this one, with memory somewhere else: what was
 * connected is lost. */
void op_restart(struct op_rig *g);

/* Writer @i is peer "w0", "w1", ...; connects, with a session of its own. */
struct op_writer *op_writer(struct op_rig *g, unsigned int i);
/* Its connection only, for the session it has. */
void op_connect(struct op_writer *w);
void op_admit(struct op_rig *g, uint32_t slot, uint64_t room, unsigned int w,
	      uint32_t pages);
/* OPEN and, when there is memory, GRANT. */
struct op_grant *op_open(struct op_writer *w, uint64_t room, uint32_t pages);
/* Launch a write of [first, first + n) pages of @from. */
void op_write(struct op_writer *w, const struct op_grant *r, uint32_t first,
	      uint32_t n, const void *from, struct op_write *tx);
void op_last(struct op_writer *w, const struct op_grant *r, uint32_t pages);
/* ABORT, ABORT_ACK, ABORT_NAK. */
void op_say(struct op_writer *w, enum kvs_wire_type type,
	    const struct op_grant *r);
void op_packet(struct op_rig *g, enum kvs_packet_type type, uint32_t slot);

/* Until nothing is due now. */
void op_run(struct op_rig *g);
void op_advance(struct op_rig *g, uint64_t ns);
enum kvs_status op_status(const struct op_rig *g, uint32_t slot);
/* Where a page of a READY room lies. */
const unsigned char *op_page(const struct op_rig *g, uint32_t slot,
			     uint32_t page);
uint64_t op_bytes(const struct op_rig *g, enum kvs_extent_state st);
uint64_t op_drains(const struct op_rig *g, enum kvs_drain_outcome o,
		   enum kvs_proof p);
/* Of every byte of the pool, as who may not look at some would see it. */
uint64_t op_sum(const struct op_rig *g);
struct kvs_loop_faults op_faults(const struct op_rig *g);

#endif /* KVS_TESTS_ONESIDED_PEERS_H */
