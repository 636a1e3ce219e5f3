/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node of the daemon on the loop transport's one-sided mode, or on another
 * one-sided transport (struct os_net), under a virtual clock, and writers that
 * do only what a test tells them: they write to granted memory, or say that
 * they did, at moments of the test's choice.
 *
 * Two layers of K and V, a page of 1 KiB in each; extents of 16 pages.
 */
#ifndef KVS_TESTS_ONESIDED_RIG_H
#define KVS_TESTS_ONESIDED_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pipeline/node.h"
#include "rdma/loop.h"

#define OS_RANKS 3
#define OS_WRITERS (2 * OS_RANKS)
#define OS_ROOMS 64 /* slots */
#define OS_BUFFERS 4 /* k 0, k 1, v 0, v 1 */
#define OS_ITEM 1024u /* bytes of a page in one buffer */
#define OS_PAGE (OS_BUFFERS * OS_ITEM)
#define OS_EXTENT 16u /* pages */
#define OS_EXTENTS 32 /* of a room at most */

struct os_rig;

/* A rank: its own process, as far as the transport knows. */
struct os_writer {
	struct os_rig *g;
	unsigned int number; /* in g->w */
	struct kvs_transport *t;
	struct kvs_conn *c; /* data connection; NULL: closed, or not up yet */
	unsigned int written; /* done(0) */
	unsigned int refused; /* done(<0) */
	int err; /* of the last */
	bool acks; /* answers each ABORT at once */
	unsigned int aborts; /* that came */
};

struct os_room {
	uint64_t id;
	uint64_t generation;
	uint64_t word;
	char text[KVS_WIRE_TEXT]; /* of FAILED */
	uint64_t off[OS_EXTENTS]; /* of READY */
	uint32_t n_off;
	/* of each rank's GRANT */
	bool granted[OS_RANKS];
	struct kvs_grant_key keys[OS_RANKS][OS_EXTENTS];
	struct kvs_grant_place places[OS_RANKS][OS_BUFFERS];
	uint32_t n_places[OS_RANKS];
	uint32_t n_extents;
	unsigned int pages;
	unsigned int first; /* writer that is its rank 0 */
};

/* What the transports are, and how they meet. */
struct os_net {
	int (*create)(struct os_rig *g, const char *name,
		      struct kvs_transport **ret);
	int (*listen)(struct os_rig *g, struct kvs_transport *t,
		      int (*accepted)(struct kvs_conn *c, void *arg));
	int (*connect)(struct os_rig *g, struct kvs_transport *t,
		       const struct kvs_conn_ops *ops, void *user,
		       struct kvs_conn **ret);
	/* ns; when something may be due */
	uint64_t (*next)(const struct os_rig *g);
	unsigned int turns; /* at each moment */
	bool until_idle; /* so many without an event */
};

struct os_rig {
	struct kvs_settings set;
	struct kvs_vclock clock;
	const struct os_net *net;
	struct kvs_fabric *f; /* loop only */
	struct kvs_region region;
	struct kvs_node n;
	struct kvs_transport *front; /* takes connections */
	struct kvs_layout layout;
	struct kvs_layer_buffer buffers[OS_BUFFERS];
	struct os_writer w[OS_WRITERS]; /* of peer "p", then of "q" */
	unsigned int n_ranks; /* of each peer */
	unsigned int n_writers;
	uint64_t generation;
	struct os_room room[OS_ROOMS];
	unsigned int closed_sessions; /* close_session() calls */
	bool slow_front; /* it does nothing about them */
	bool ending; /* nobody posts to the node any more */
};

/* A pool of @pages pages and @n_ranks connected writers; settings may be
 * changed in g->n.settings afterwards. @plan may be NULL. */
void os_up(struct os_rig *g, unsigned int pages, unsigned int n_ranks,
	   const struct kvs_loop_plan *plan);
/* The same on another network. */
void os_up_on(struct os_rig *g, const struct os_net *net, unsigned int pages,
	      unsigned int n_ranks);
/* As many ranks of another peer, for rooms with os_admit_of(). */
void os_second_peer(struct os_rig *g);
/* One more data connection of a writer; what it does from here on is on it,
 * what is under way on the one before goes on. */
void os_connect(struct os_rig *g, unsigned int writer);
/* The same; it may be refused. */
void os_try_connect(struct os_rig *g, unsigned int writer);
/* Everything must be free. */
void os_down(struct os_rig *g);
/* End as things are. */
void os_end(struct os_rig *g);
/* Until nothing is due at this moment of the clock plus @ns. */
void os_run(struct os_rig *g, uint64_t ns);

/* Admit into slot @slot and open for every rank; the layers are split. */
void os_admit(struct os_rig *g, unsigned int slot, uint64_t room,
	      unsigned int pages);
/* For the ranks of a peer: 0, 1; all else as os_admit(). */
void os_admit_of(struct os_rig *g, unsigned int slot, uint64_t room,
		 unsigned int pages, unsigned int peer);
enum kvs_status os_status(const struct os_rig *g, unsigned int slot);
int os_errno(const struct os_rig *g, unsigned int slot);
/* The room, or NULL when it is no more. */
struct kvs_room *os_room_of(const struct os_rig *g, unsigned int slot);
void os_packet(struct os_rig *g, unsigned int slot, enum kvs_packet_type type);
void os_say(struct os_rig *g, unsigned int slot, unsigned int rank,
	    enum kvs_wire_type type);
void os_last(struct os_rig *g, unsigned int slot, unsigned int rank);

/* One page of one buffer of the rank's layers: written and reported; only
 * reported. The bytes are those of os_byte(seed, buffer, page). */
void os_write(struct os_rig *g, unsigned int slot, unsigned int rank,
	      unsigned int buffer, unsigned int page, unsigned int seed);
void os_claim(struct os_rig *g, unsigned int slot, unsigned int rank,
	      unsigned int buffer, unsigned int page);
/* Reported only, and not all of the page. */
void os_claim_part(struct os_rig *g, unsigned int slot, unsigned int rank,
		   unsigned int buffer, unsigned int page, uint64_t offset,
		   uint32_t len);
/* All of the rank's pages but [skip, skip + n_skip), and LAST. */
void os_write_all(struct os_rig *g, unsigned int slot, unsigned int rank,
		  unsigned int seed, unsigned int skip, unsigned int n_skip);
unsigned char os_byte(unsigned int seed, unsigned int buffer,
		      unsigned int page);
/* Bytes at the places of READY that are not those of @seed. */
uint64_t os_wrong(const struct os_rig *g, unsigned int slot, unsigned int seed);
uint64_t os_bytes(const struct os_rig *g, enum kvs_extent_state st);
uint64_t os_drains(const struct os_rig *g, enum kvs_drain_outcome o,
		   enum kvs_proof p);

#endif /* KVS_TESTS_ONESIDED_RIG_H */
