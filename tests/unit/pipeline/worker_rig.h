/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker with ordinary memory, a virtual clock and a surrounding that
 * records what the worker asks of it.
 */
#ifndef KVS_TESTS_WORKER_RIG_H
#define KVS_TESTS_WORKER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pipeline/worker.h"

#define RIG_LOG 4096
#define RIG_ENGINE 1
#define RIG_SLOTS 4096
#define RIG_MEMBERS 3u

/* What the worker sent, in order. */
struct rig_event {
	enum { RIG_PEER, RIG_WORD, RIG_OVER, RIG_STOP, RIG_CLOSE } what;
	uint64_t session;
	struct kvs_msg msg; /* RIG_PEER */
	uint32_t slot; /* RIG_WORD */
	uint64_t word;
	struct kvs_packet_failed failed; /* when a FAILED packet came */
	uint64_t off[8]; /* of a READY or PLACED packet */
	uint32_t n_extents;
	struct kvs_packet_seg segs[8]; /* of READY */
	uint32_t n_segs;
	bool cached; /* a CACHED packet came */
	uint32_t blocks; /* of it */
	uint64_t room; /* RIG_OVER */
	uint64_t generation;
	int err;
	struct kvs_receive *rx; /* RIG_STOP */
};

struct rig {
	struct kvs_settings set;
	struct kvs_vclock clock;
	unsigned char *base;
	struct kvs_pool *pool;
	unsigned char *offload_base;
	struct kvs_pool *offload; /* NULL: none */
	struct kvs_worker *w;
	struct kvs_layout layout;
	struct kvs_layer_buffer buffers[8];
	uint64_t generation;
	uint64_t words[RIG_SLOTS];
	unsigned int n;
	struct rig_event log[RIG_LOG];
};

/* Two layers of K and V, page size 4, 1024 bytes a page: 4 KiB a page in
 * all; a pool of @pages pages, extents of 16 pages. */
void rig_up(struct rig *g, unsigned int pages);
/* The same, and an offload pool of @offload pages. */
void rig_up_offload(struct rig *g, unsigned int pages, unsigned int offload);
/* Asserts that nothing is left: pool all free, no room. */
void rig_down(struct rig *g);
/* Admit @pages pages for @n_ranks ranks (layers split evenly) into @slot.
 * Return: generation. */
uint64_t rig_admit(struct rig *g, uint64_t room, uint32_t slot,
		   unsigned int pages, unsigned int n_ranks);
/* The same for one rank, by @members engines: RIG_ENGINE + i has slot i, and
 * all but the first are new. */
uint64_t rig_admit_shared(struct rig *g, uint64_t room, unsigned int pages,
			  unsigned int members);
/* A packet of one of them. */
void rig_packet_of(struct rig *g, uint32_t member, enum kvs_packet_type type,
		   uint64_t generation, int err);
/* Retract @pages pages in @slot. Return: generation. */
uint64_t rig_retract(struct rig *g, uint32_t slot, unsigned int pages);
/* Admit @pages pages of a prompt for one rank, with a name for each: those of
 * one @prompt begin alike; @cached: what is cached of it is not received.
 * kvs_cache_engine() must have been called. Return: generation. */
uint64_t rig_admit_named(struct rig *g, uint64_t room, uint32_t slot,
			 unsigned int pages, unsigned int prompt, bool cached);
/* A room of @pages pages of which the first @named have names, and are taken
 * from what is cached. Return: generation. */
uint64_t rig_ask(struct rig *g, uint64_t room, uint32_t slot,
		 unsigned int pages, unsigned int prompt, unsigned int named);
/* The first @pages pages of a prompt, in @slot: offload, ... them. Return:
 * generation. */
uint64_t rig_lookup(struct rig *g, enum kvs_lookup what, uint32_t slot,
		    unsigned int prompt, unsigned int pages);
/* Pages of a prompt that are cached, of the first @pages. */
uint32_t rig_cached(struct rig *g, unsigned int prompt, unsigned int pages);
/* Session 100 + rank of peer "p". */
void rig_sessions(struct rig *g, unsigned int n);
void rig_open(struct rig *g, uint64_t room, uint64_t generation,
	      unsigned int rank);
/* A chunk of [first, first + n) pages of (kind, layer), placed with @fill. */
int rig_begin(struct rig *g, struct kvs_receive *rx, uint64_t room,
	      uint64_t generation, unsigned int rank, unsigned int kind,
	      unsigned int layer, unsigned int first, unsigned int n,
	      void **ret_addr);
/* Everything rank has to send, then LAST. */
void rig_send_all(struct rig *g, uint64_t room, uint64_t generation,
		  unsigned int rank, unsigned int n_ranks, unsigned int pages);
void rig_last(struct rig *g, uint64_t room, uint64_t generation,
	      unsigned int rank, uint64_t bytes);
void rig_packet(struct rig *g, enum kvs_packet_type type, uint32_t slot,
		uint64_t generation, int err);
/* Move the clock and run a turn. */
void rig_advance(struct rig *g, uint64_t ns);
enum kvs_status rig_status(const struct rig *g, uint32_t slot);
int rig_errno(const struct rig *g, uint32_t slot);
/* First event of a kind at or after *pos (advanced past it), or NULL. */
const struct rig_event *rig_find(const struct rig *g, int what,
				 unsigned int *pos);
/* First message of a type to a session, or NULL. */
const struct rig_event *rig_msg(const struct rig *g, uint64_t session,
				enum kvs_wire_type type);
/* Of the offload pool. */
uint64_t rig_offload_bytes(const struct rig *g, enum kvs_extent_state state);
uint64_t rig_bytes(const struct rig *g, enum kvs_extent_state state);

#endif /* KVS_TESTS_WORKER_RIG_H */
