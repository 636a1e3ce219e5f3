/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: peer authentication
 *
 * Who may connect: whoever shows that it knows a key of the cluster's key file
 * (auth_key.h), on every connection, before anything exists for it.
 *
 *   sender                        daemon
 *   HELLO ----------------------> remembered, not believed
 *         <-------- CHALLENGE     32 random bytes of the daemon
 *   RESPONSE -------------------> 32 random bytes of the sender, its code
 *         <------------ PROOF     the daemon's code, over its answer too
 *         <------------ HELLO     the answer, believed only now
 *
 * A code is keyed BLAKE2b-256 over a label of 16 bytes (which side), the
 * sender's HELLO as it was sent, both random numbers, and, for the daemon's,
 * the HELLO that follows. So a code is good for one connection, one direction,
 * one name, rank, role, session and instance. kvstage-wire(7) has test
 * vectors.
 *
 * What this does not do: what follows the handshake is neither encrypted nor
 * protected; all who have the key are equal.
 */
#ifndef KVS_PIPELINE_AUTH_H
#define KVS_PIPELINE_AUTH_H

#include <stdbool.h>

#include "pipeline/auth_key.h"
#include "pipeline/wire.h"

/* What both codes are over. */
struct kvs_auth_exchange {
	unsigned char hello[KVS_HELLO_FRAME]; /* the sender's, as sent */
	unsigned char daemon[KVS_AUTH_NONCE];
	unsigned char sender[KVS_AUTH_NONCE];
};

/* The two codes. 0, or -EINVAL: a HELLO that cannot be sent. */
void kvs_auth_sender_code(const unsigned char key[KVS_AUTH_KEY],
			  const struct kvs_auth_exchange *x,
			  unsigned char ret_code[KVS_AUTH_MAC]);
int kvs_auth_daemon_code(const unsigned char key[KVS_AUTH_KEY],
			 const struct kvs_auth_exchange *x,
			 const struct kvs_msg_hello *answer,
			 unsigned char ret_code[KVS_AUTH_MAC]);

/* ---- the daemon's side ---- */

/**
 * kvs_auth_challenge() - begin
 * @h: the sender's HELLO
 * @x: filled
 * @ret: CHALLENGE, to be sent
 * Return: 0; -EINVAL; what kvs_random_fill() returns.
 */
int kvs_auth_challenge(const struct kvs_msg_hello *h,
		       struct kvs_auth_exchange *x, struct kvs_msg *ret);

/**
 * kvs_auth_verify() - is the code made with one of our keys?
 * @x: gets the sender's random number
 *
 * Takes as long for a wrong code as for a right one.
 * Return: index of the key; -EACCES.
 */
int kvs_auth_verify(const struct kvs_auth_keys *k, struct kvs_auth_exchange *x,
		    const struct kvs_msg_response *r);

/* ---- the sender's side, of one connection ---- */

struct kvs_auth_sender {
	bool has_key;
	bool answered; /* the challenge came */
	bool proven; /* the proof came; checked with the answer */
	unsigned char key[KVS_AUTH_KEY];
	unsigned char proof[KVS_AUTH_MAC];
	struct kvs_auth_exchange x;
};

/* @k: the first key is used; none: the daemon must not ask for one. */
int kvs_auth_sender_init(struct kvs_auth_sender *a,
			 const struct kvs_auth_keys *k,
			 const struct kvs_msg_hello *h);
/* Forget the key. */
void kvs_auth_sender_fini(struct kvs_auth_sender *a);

/**
 * kvs_auth_sender_answer() - RESPONSE to CHALLENGE
 * @ret: RESPONSE, to be sent
 * @ret_why: what is wrong, for people
 * Return: 0; -EACCES we have no key; -EPROTO a second challenge; what
 * kvs_random_fill() returns.
 */
int kvs_auth_sender_answer(struct kvs_auth_sender *a,
			   const struct kvs_msg_challenge *m,
			   struct kvs_msg *ret, const char **ret_why);
/* PROOF came: 0; -EPROTO not now. */
int kvs_auth_sender_proof(struct kvs_auth_sender *a,
			  const struct kvs_msg_proof *m, const char **ret_why);
/**
 * kvs_auth_sender_check() - may this HELLO be believed?
 * @answer: the daemon's HELLO
 * @ret_why: what is wrong, for people
 * Return: 0; -EACCES.
 */
int kvs_auth_sender_check(struct kvs_auth_sender *a,
			  const struct kvs_msg_hello *answer,
			  const char **ret_why);

#endif /* KVS_PIPELINE_AUTH_H */
