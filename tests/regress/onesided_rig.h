/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node of the daemon on the in-process transport, one-sided, without
 * threads and under a virtual clock: writers write straight into what they
 * were granted, and may be stopped half way, refused, or found out.
 *
 * The part of the front is played here: sessions, admits and messages go to
 * the node as posts, what it says is kept. One rank a peer; one buffer.
 */
#ifndef KVS_TESTS_ONESIDED_RIG_H
#define KVS_TESTS_ONESIDED_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/clock.h"
#include "pipeline/node.h"
#include "rdma/loop.h"

#define OS_PAGE 4096u /* bytes */
#define OS_TOKENS 16u /* of a page */
#define OS_EXTENT_PAGES 128u
#define OS_WRITERS 4
#define OS_ROOMS 8 /* of one writer */
#define OS_KEYS 8
#define OS_SLOTS 16

/* What a writer was granted. */
struct os_grant {
	uint64_t room; /* 0: unused */
	uint64_t generation;
	uint32_t n_keys;
	struct kvs_grant_key keys[OS_KEYS];
	struct kvs_grant_place place;
};

struct os_write {
	struct kvs_tx tx;
	struct iovec iov;
	unsigned int done;
	int status;
	uint64_t nr; /* completions of its writer before this one */
};

struct os_writer {
	struct os_rig *g;
	struct kvs_transport *t;
	struct kvs_conn *c; /* NULL: closed */
	uint64_t session; /* 0: none */
	int close_err;
	uint64_t completed; /* writes */
	uint64_t completed_at_close;
	struct os_grant grant[OS_ROOMS];
	unsigned int aborts; /* ABORTs heard */
	unsigned int completes;
};

struct os_rig {
	struct kvs_vclock clock;
	struct kvs_fabric *fabric;
	struct kvs_settings set;
	struct kvs_region region;
	struct kvs_node node;
	struct kvs_transport *door; /* where writers connect */
	struct kvs_listener *listener;
	uint64_t adopt; /* session that the next connection is of */
	struct os_writer w[OS_WRITERS];
	uint64_t generation;
	uint64_t words[OS_SLOTS];
	uint64_t off[OS_SLOTS][OS_KEYS]; /* of READY */
	/* session that the node has asked to be closed; 0: none */
	uint64_t to_close;
	int to_close_err;
	unsigned int closes;
	unsigned int errors; /* lines logged as such; os_down() wants none */
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
void os_up(struct os_rig *g, uint32_t pages);
/* Everything is free and nobody is left; else the test fails. */
void os_down(struct os_rig *g);
/* Another node in the place of this one, with memory somewhere else: what was
 * connected is lost. */
void os_restart(struct os_rig *g);

/* Writer @i is peer "w0", "w1", ...; connects, with a session of its own. */
struct os_writer *os_writer(struct os_rig *g, unsigned int i);
/* Its connection only, for the session it has. */
void os_connect(struct os_writer *w);
void os_admit(struct os_rig *g, uint32_t slot, uint64_t room, unsigned int w,
	      uint32_t pages);
/* OPEN and, when there is memory, GRANT. */
struct os_grant *os_open(struct os_writer *w, uint64_t room, uint32_t pages);
/* Launch a write of [first, first + n) pages of @from. */
void os_write(struct os_writer *w, const struct os_grant *r, uint32_t first,
	      uint32_t n, const void *from, struct os_write *tx);
void os_last(struct os_writer *w, const struct os_grant *r, uint32_t pages);
/* ABORT, ABORT_ACK, ABORT_NAK. */
void os_say(struct os_writer *w, enum kvs_wire_type type,
	    const struct os_grant *r);
void os_packet(struct os_rig *g, enum kvs_packet_type type, uint32_t slot);

/* Until nothing is due now. */
void os_run(struct os_rig *g);
void os_advance(struct os_rig *g, uint64_t ns);
enum kvs_status os_status(const struct os_rig *g, uint32_t slot);
/* Where a page of a READY room lies. */
const unsigned char *os_page(const struct os_rig *g, uint32_t slot,
			     uint32_t page);
uint64_t os_bytes(const struct os_rig *g, enum kvs_extent_state st);
uint64_t os_drains(const struct os_rig *g, enum kvs_drain_outcome o,
		   enum kvs_proof p);
struct kvs_loop_faults os_faults(const struct os_rig *g);

#endif /* KVS_TESTS_ONESIDED_RIG_H */
