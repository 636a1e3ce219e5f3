/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prefill rank made of plain TCP sockets and the wire encoder. It does only
 * what a test tells it: may stall within a chunk, repeat itself, lie about
 * any field, end by FIN or RST, acknowledge or not.
 *
 * Needs no rig, so that a forked process can be one.
 */
#ifndef KVS_TESTS_PUPPET_SENDER_H
#define KVS_TESTS_PUPPET_SENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pipeline/auth.h"
#include "pipeline/geometry.h"
#include "pipeline/sender_internal.h"
#include "pipeline/wire.h"

#define PS_DATA_MAX 8

/* Layouts for who does not care: pages of PS_PAGE bytes and PS_TOKENS tokens,
 * K and V together, in one layer or in two. */
#define PS_PAGE 4096u
#define PS_TOKENS 16u
extern const struct kvs_layout ps_one_layer;
extern const struct kvs_layout ps_two_layers;

struct ps {
	unsigned int port;
	int ctl; /* control connection, -1: closed */
	int data[PS_DATA_MAX];
	unsigned int n_data;
	char peer[KVS_PEER_NAME];
	uint32_t rank;
	uint32_t n_ranks;
	uint64_t caps;
	const struct kvs_layout *layout;
	const struct kvs_auth_keys *keys; /* NULL: none */
	uint64_t token; /* from the HELLO answer */
	uint64_t instance; /* of the daemon */
	uint32_t keepalive_ms;
	uint32_t paths; /* data connections to make; 0: it does not say */
	struct kvs_wire_scratch *scratch;
};

/* A granted room of this rank. */
struct ps_room {
	struct kvs_msg_grant grant;
	struct kvs_geometry geo;
	struct kvs_layout l; /* with the grant's page size */
	uint64_t seed; /* of its bytes */
	struct kvs_send_remote remote; /* where to, when @caps say one-sided */
	uint32_t n_chunks;
	struct ps_chunk {
		uint32_t extent;
		uint16_t kind;
		uint16_t layer;
		uint64_t off;
		uint32_t len;
	} * chunks;
	uint64_t bytes; /* all chunks together */
};

/* ---- sockets; every wait is bounded, -ETIMEDOUT ---- */
int ps_dial(unsigned int port); /* a bare connection; fd or -errno */
/* All of it: bytes, or -errno. */
long ps_write(int fd, const void *buf, size_t len);
/* One message: 0; -ENODATA end of file; -errno. */
int ps_read(struct ps *p, int fd, struct kvs_msg *m);
int ps_write_msg(int fd, const struct kvs_msg *m);
void ps_reset(int *fd); /* RST */
void ps_fin(int *fd);
/* True once the other side has closed (what it said before is read). */
bool ps_is_closed(int fd);

/* ---- a rank ---- */
/* The keys of ps_init(); NULL, as at first: none. */
void ps_use_keys(const struct kvs_auth_keys *keys);
/* Not connected; defaults: 1 rank, all capabilities. */
void ps_init(struct ps *p, unsigned int port, const char *peer, uint32_t rank,
	     uint32_t n_ranks, const struct kvs_layout *layout);
/* HELLO as it should be. */
void ps_hello_msg(const struct ps *p, uint16_t role, struct kvs_msg *m);
int ps_hello(struct ps *p); /* connects the control connection */
/* Say HELLO @m on @fd, show the key when asked, and take the daemon's HELLO
 * into @m: 0; -EACCES it did not prove its own; -errno, that of ERROR
 * included. */
int ps_greet(struct ps *p, int fd, struct kvs_msg *m);
/* 0, or the positive errno of ERROR with @text. */
int ps_layout(struct ps *p, char *text, size_t len);
int ps_data(struct ps *p); /* one more data connection: its number */
/* The first two; fails the test when one does. */
void ps_control_up(struct ps *p);
/* All three, from ps_init() on. */
void ps_up(struct ps *p, unsigned int port, const char *peer, uint32_t rank,
	   uint32_t n_ranks, const struct kvs_layout *layout);
void ps_down(struct ps *p); /* FIN on all; harmless when down */
void ps_die(struct ps *p); /* RST on all */

/* Next message on the control connection that is not a KEEPALIVE (those are
 * answered): its type, or -errno. */
int ps_next(struct ps *p, struct kvs_msg *m);
/* The same, and it must be @type. */
void ps_expect(struct ps *p, enum kvs_wire_type type, struct kvs_msg *m);
/* Nothing was said to us: a KEEPALIVE is answered, and nothing came before
 * the answer. */
void ps_quiet(struct ps *p);

int ps_say(struct ps *p, const struct kvs_msg *m);
int ps_open(struct ps *p, uint64_t room, uint64_t tokens);
/* ABORT_ACK, ABORT_NAK or ABORT. */
int ps_answer(struct ps *p, enum kvs_wire_type type, uint64_t room,
	      uint64_t generation);
int ps_last(struct ps *p, const struct ps_room *r, uint64_t bytes);

/* Wait for GRANT and cut the rank's share into chunks of at most @max. */
void ps_granted(struct ps *p, struct ps_room *r, uint64_t seed, uint32_t max);
void ps_room_fini(struct ps_room *r);

/* CHUNK header of chunk @i, as it should be. */
void ps_chunk_msg(const struct ps *p, const struct ps_room *r, uint32_t i,
		  struct kvs_msg *m);
/* Frame and payload of chunk @i; free() it. */
unsigned char *ps_chunk_bytes(const struct ps *p, const struct ps_room *r,
			      uint32_t i, size_t *ret_len);
/* Send bytes [from, to) of that; to 0: to its end. */
long ps_send_part(struct ps *p, unsigned int d, const struct ps_room *r,
		  uint32_t i, size_t from, size_t to);
/* Every chunk, over all data connections in turn; bytes sent. */
uint64_t ps_send_all(struct ps *p, const struct ps_room *r);

/* Send all chunks from @from on and LAST; take COMPLETE. For a room of one
 * rank. Ends @r. */
void ps_finish(struct ps *p, struct ps_room *r, uint32_t from);

/* What a byte of a run must be. */
unsigned char ps_byte(uint64_t seed, uint32_t extent, uint16_t kind,
		      uint16_t layer, uint64_t off);

#endif /* KVS_TESTS_PUPPET_SENDER_H */
