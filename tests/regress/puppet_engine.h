/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decode engine made of a plain SEQPACKET socket and the attach structs. It
 * maps the pools and the status page as the library does, and may lie in
 * every packet.
 *
 * Needs no rig, so that a forked process can be one.
 */
#ifndef KVS_TESTS_PUPPET_ENGINE_H
#define KVS_TESTS_PUPPET_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pipeline/attach_msg.h"
#include "tests/regress/puppet_sender.h"

#define PE_SLOTS 512

/* A room as the engine knows it. */
struct pe_room {
	uint32_t slot;
	uint64_t previous; /* generation in the slot before */
	uint64_t generation; /* 0 until known */
	bool ready; /* READY came */
	uint32_t n_extents;
	uint32_t extent_tokens;
	uint64_t off[64];
	bool failed; /* FAILED came */
	struct kvs_packet_failed failure;
};

struct pe {
	int fd; /* -1: closed */
	int pidfd;
	const struct kvs_layout *layout;
	uint32_t aux_len; /* asked for at admit */
	char peer[KVS_ENGINE_NAME]; /* likewise */
	unsigned char nonce[16]; /* likewise */
	uint32_t flags; /* likewise */
	uint32_t number;
	uint32_t n_slots;
	const _Atomic uint64_t *words;
	const unsigned char *pool;
	uint64_t pool_size;
	struct pe_room *rooms[PE_SLOTS];
};

int pe_dial(const char *path); /* bare connection; fd or -errno */
/* ATTACH packet for a layout, in @buf of KVS_PACKET_MAX; its length. */
size_t pe_attach_packet(const struct kvs_layout *l, void *buf);
int pe_send(int fd, const void *buf, size_t len, const int *fds,
	    unsigned int n_fds);
/* One packet within 10 s: bytes; 0 end of file; -errno. */
long pe_recv(int fd, void *buf, size_t len);

/* 0, or the positive errno of REFUSED with @text, or -errno. */
int pe_attach(struct pe *e, const char *path, const struct kvs_layout *l,
	      char *text, size_t len);
/* The same; fails the test when it does. */
void pe_up(struct pe *e, const char *path, const struct kvs_layout *l);
/* The same as a rank of a group. */
int pe_attach_rank(struct pe *e, const char *path, const struct kvs_layout *l,
		   const char *group, uint32_t rank, uint32_t n_ranks,
		   char *text, size_t len);
void pe_rank_up(struct pe *e, const char *path, const struct kvs_layout *l,
		const char *group, uint32_t rank, uint32_t n_ranks);
void pe_down(struct pe *e); /* closes; harmless when down */

/* Layers split evenly over @n_ranks. */
void pe_admit(struct pe *e, struct pe_room *r, uint32_t slot, uint64_t room,
	      uint64_t tokens, uint32_t n_ranks);
/* COMMIT, COMMITTED, ABORT, COPY_OVER. */
int pe_say(struct pe *e, enum kvs_packet_type type, const struct pe_room *r,
	   int err);
/* Take what came, without waiting; false: end of file. */
bool pe_pump(struct pe *e);
enum kvs_status pe_status(struct pe *e, struct pe_room *r);
/* Until the room's word says @st, or anything beyond when it may have moved
 * on; its packet has been read then. */
void pe_wait(struct pe *e, struct pe_room *r, enum kvs_status st);
/* Until FAILED; its errno must be @err. */
void pe_wait_failed(struct pe *e, struct pe_room *r, int err);
/* COMMIT, COMMITTED, until DONE. */
void pe_commit(struct pe *e, struct pe_room *r);

/* Wait for READY, compare with what @seed makes, commit. */
void pe_take(struct pe *e, struct pe_room *r, uint64_t tokens, uint32_t n_ranks,
	     uint64_t seed);
void pe_abort(struct pe *e, struct pe_room *r); /* and wait for the word */

/* Bytes of a READY room that differ from what @seed makes. */
uint64_t pe_differ(const struct pe *e, const struct pe_room *r, uint64_t tokens,
		   uint32_t n_ranks, uint64_t seed);

#endif /* KVS_TESTS_PUPPET_ENGINE_H */
