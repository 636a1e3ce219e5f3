/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: verbs_wire
 *
 * What the two ends of a queue pair tell each other: blobs over the TCP
 * connection it is made from (a frame of a type of its own), and the header
 * of each SEND on it. All of it comes from outside and is checked here. No
 * libibverbs: the form is the same on every machine.
 *
 *   the side that adopted               the side that connected
 *     OFFER (its queue pair)  --TCP-->
 *                             <--TCP--    ANSWER (its queue pair, ready)
 *     CREDIT, then frames     ---QP-->    may send from here on
 *     OFFER, ANSWER, FIN of branches, by their numbers, any time
 *     FIN                     <-TCP-->    FIN
 */
#ifndef KVS_RDMA_VERBS_WIRE_H
#define KVS_RDMA_VERBS_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "rdma/frame.h"

#define KVS_VERBS_VERSION 1
#define KVS_VERBS_BLOB 96u /* bytes of its frame */
#define KVS_VERBS_MSG_HEAD 16u /* bytes */
#define KVS_VERBS_MSG_MIN 256u /* bytes of a receive, header included */
#define KVS_VERBS_MSG_MAX 65536u
#define KVS_VERBS_SLOTS_MAX 4096u
/* A branch's number is in a key's address from this bit on. */
#define KVS_VERBS_BRANCH_SHIFT 48
#define KVS_VERBS_BRANCH_MAX 0xffffu

enum kvs_verbs_what {
	KVS_VERBS_OFFER = 1,
	KVS_VERBS_ANSWER = 2,
	KVS_VERBS_FIN = 3,
};

enum kvs_verbs_link {
	KVS_VERBS_INFINIBAND = 1,
	KVS_VERBS_ROCE_V1 = 2,
	KVS_VERBS_ROCE_V2 = 3,
};

/**
 * struct kvs_verbs_blob - one end of a queue pair, or its end
 * @what: which of the next are valid
 * @link: kind of network; both ends the same
 * @mtu: enum ibv_mtu, 1 (256 bytes) .. 5 (4096)
 * @lid: InfiniBand without routing
 * @qpn: 24 bits
 * @psn: first packet number it sends, 24 bits
 * @gid: of its port
 * @slots: messages it can take before it gives credits back
 * @msg: bytes of one message, header included
 * @rd_in: READs of the other side it serves at a time
 * @rd_out: READs it has under way at a time, at most
 * @number: 0: of the connection; else of a branch of it (verbs_branch.c)
 * @err: FIN: positive errno, 0: in order
 * @sent: FIN: messages that it sent on the queue pair in all
 */
struct kvs_verbs_blob {
	enum kvs_verbs_what what;
	enum kvs_verbs_link link;
	uint8_t mtu;
	uint16_t lid;
	uint32_t qpn;
	uint32_t psn;
	unsigned char gid[16];
	uint16_t slots;
	uint32_t msg;
	uint8_t rd_in;
	uint8_t rd_out;
	uint32_t number;
	uint32_t err;
	uint64_t sent;
};

void kvs_verbs_blob_encode(const struct kvs_verbs_blob *b,
			   unsigned char buf[KVS_VERBS_BLOB]);
/* @f: a whole frame. Return: 0; -EPROTO; -EPROTONOSUPPORT another version. */
int kvs_verbs_blob_decode(const struct kvs_frame *f,
			  struct kvs_verbs_blob *ret);

enum kvs_verbs_msg_type {
	KVS_VERBS_MSG_FRAME = 1, /* a frame, or the next piece of one */
	KVS_VERBS_MSG_CREDIT = 2,
};

/* Header of a SEND. @credits: receives posted again since the last one. */
struct kvs_verbs_msg {
	enum kvs_verbs_msg_type type;
	uint32_t len; /* bytes that follow */
	uint32_t credits;
};

void kvs_verbs_msg_encode(const struct kvs_verbs_msg *m,
			  unsigned char buf[KVS_VERBS_MSG_HEAD]);
/**
 * kvs_verbs_msg_decode() - check what arrived
 * @buf: the message
 * @n: bytes that arrived
 * Return: 0; -EPROTO.
 */
int kvs_verbs_msg_decode(const unsigned char *buf, size_t n,
			 struct kvs_verbs_msg *ret);

#endif /* KVS_RDMA_VERBS_WIRE_H */
