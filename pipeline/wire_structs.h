/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: wire structs
 *
 * The bytes of protocol version 1, frame header included. Only wire.c reads
 * them; kvstage-wire(7) shows the same tables for people. Every field lies at
 * its natural alignment, so there is no hidden padding, and every reserved
 * field is zero.
 */
#ifndef KVS_PIPELINE_WIRE_STRUCTS_H
#define KVS_PIPELINE_WIRE_STRUCTS_H

#include <assert.h>
#include <stddef.h>

#include "lib/le.h"
#include "pipeline/wire.h"
#include "rdma/frame.h"

struct kvs_wire_hello {
	struct kvs_frame frame;
	kvs_le16 version_min;
	kvs_le16 version_max;
	kvs_le16 role;
	kvs_le16 paths;
	kvs_le64 caps;
	kvs_le64 instance;
	kvs_le64 session;
	kvs_le32 rank;
	kvs_le32 n_ranks;
	kvs_le32 worker;
	kvs_le32 keepalive_ms;
	char name[KVS_PEER_NAME];
};
static_assert(sizeof(struct kvs_wire_hello) == KVS_HELLO_FRAME, "HELLO");
static_assert(offsetof(struct kvs_wire_hello, caps) == 24, "HELLO.caps");
static_assert(offsetof(struct kvs_wire_hello, session) == 40, "HELLO.session");
static_assert(offsetof(struct kvs_wire_hello, rank) == 48, "HELLO.rank");
static_assert(offsetof(struct kvs_wire_hello, name) == 64, "HELLO.name");

struct kvs_wire_buffer {
	kvs_le16 kind;
	kvs_le16 layer;
	kvs_le32 item_len;
	kvs_le32 items;
};
static_assert(sizeof(struct kvs_wire_buffer) == 12, "LAYOUT entry");

struct kvs_wire_layout {
	struct kvs_frame frame;
	kvs_le32 page_size;
	kvs_le16 dtype;
	kvs_le16 tp_rank;
	kvs_le16 n_buffers;
	kvs_le16 tp; /* 0: no struct kvs_wire_cut */
	kvs_le32 aux_max;
	kvs_le64 capacity;
	kvs_le64 max_context;
	/* then n_buffers of struct kvs_wire_buffer */
	/* then as many of struct kvs_wire_cut */
};
struct kvs_wire_cut {
	uint8_t heads;
	uint8_t planes;
};
static_assert(sizeof(struct kvs_wire_cut) == 2, "LAYOUT cut");
static_assert(KVS_TP_MAX <= UINT16_MAX && KVS_LAYOUT_BUFFERS_MAX <= UINT16_MAX,
	      "LAYOUT.tp, LAYOUT.n_buffers");
static_assert(sizeof(struct kvs_wire_layout) == 48, "LAYOUT");
static_assert(offsetof(struct kvs_wire_layout, n_buffers) == 24,
	      "LAYOUT.n_buffers");
static_assert(offsetof(struct kvs_wire_layout, capacity) == 32,
	      "LAYOUT.capacity");
static_assert(sizeof(struct kvs_wire_layout) +
			      KVS_LAYOUT_BUFFERS_MAX *
				      (sizeof(struct kvs_wire_buffer) +
				       sizeof(struct kvs_wire_cut)) <=
		      KVS_FRAME_MAX,
	      "the largest LAYOUT fits a frame");

struct kvs_wire_open {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	unsigned char nonce[16];
	kvs_le64 tokens;
	kvs_le32 rank;
	kvs_le32 reserved;
};
static_assert(sizeof(struct kvs_wire_open) == 64, "OPEN");
static_assert(offsetof(struct kvs_wire_open, nonce) == 32, "OPEN.nonce");
static_assert(offsetof(struct kvs_wire_open, tokens) == 48, "OPEN.tokens");

struct kvs_wire_key {
	kvs_le32 addr_low;
	kvs_le32 addr_high;
	kvs_le32 rkey;
};
static_assert(sizeof(struct kvs_wire_key) == 12, "GRANT key");

struct kvs_wire_place {
	kvs_le32 full; /* units of KVS_RUN_ALIGN bytes */
	kvs_le32 last;
};
static_assert(sizeof(struct kvs_wire_place) == 8, "GRANT place");

struct kvs_wire_path {
	kvs_le16 path;
	kvs_le16 reserved;
};
static_assert(sizeof(struct kvs_wire_path) == 4, "GRANT path");

struct kvs_wire_grant {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	kvs_le64 tokens;
	kvs_le16 rank;
	kvs_le16 tp_rank;
	kvs_le16 worker;
	kvs_le16 tp;
	kvs_le32 page_size;
	kvs_le32 extent_tokens;
	kvs_le32 n_extents;
	kvs_le32 first_layer;
	kvs_le32 n_layers;
	kvs_le32 aux_len;
	kvs_le32 n_keys;
	kvs_le16 n_places;
	kvs_le16 n_paths;
	kvs_le32 aux_at; /* units of KVS_RUN_ALIGN bytes */
	kvs_le32 call_timeout_ms;
	kvs_le64 batch_bytes;
	/* then n_keys of struct kvs_wire_key */
	/* then n_places of struct kvs_wire_place */
	/* then n_paths of struct kvs_wire_path */
};
static_assert(sizeof(struct kvs_wire_grant) == 96, "GRANT");
static_assert(offsetof(struct kvs_wire_grant, rank) == 40, "GRANT.rank");
static_assert(offsetof(struct kvs_wire_grant, n_keys) == 72, "GRANT.n_keys");
static_assert(offsetof(struct kvs_wire_grant, n_paths) == 78, "GRANT.n_paths");
static_assert(offsetof(struct kvs_wire_grant, batch_bytes) == 88,
	      "GRANT.batch_bytes");
static_assert(sizeof(struct kvs_wire_grant) +
			      KVS_WIRE_GRANT_KEYS_MAX *
				      sizeof(struct kvs_wire_key) +
			      KVS_LAYOUT_BUFFERS_MAX *
				      sizeof(struct kvs_wire_place) +
			      KVS_PATHS_MAX * sizeof(struct kvs_wire_path) <=
		      KVS_FRAME_MAX,
	      "the largest GRANT fits a frame");

struct kvs_wire_refuse {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	kvs_le32 rank;
	kvs_le32 err;
	kvs_le32 class;
	kvs_le32 reserved;
	char text[KVS_WIRE_TEXT];
};
static_assert(sizeof(struct kvs_wire_refuse) == 304, "REFUSE");
static_assert(offsetof(struct kvs_wire_refuse, text) == 48, "REFUSE.text");

struct kvs_wire_chunk {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	kvs_le64 offset;
	kvs_le32 rank;
	kvs_le32 extent;
	kvs_le16 kind;
	kvs_le16 layer;
	kvs_le32 len;
	kvs_le64 reserved;
};
static_assert(sizeof(struct kvs_wire_chunk) == KVS_DATA_FRAME, "CHUNK");
static_assert(offsetof(struct kvs_wire_chunk, offset) == 32, "CHUNK.offset");
static_assert(offsetof(struct kvs_wire_chunk, kind) == 48, "CHUNK.kind");
static_assert(offsetof(struct kvs_wire_chunk, len) == 52, "CHUNK.len");

struct kvs_wire_last {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	kvs_le64 bytes;
	kvs_le16 rank;
	kvs_le16 digest_kind;
	kvs_le32 digest;
};
static_assert(sizeof(struct kvs_wire_last) == 48, "LAST");
static_assert(offsetof(struct kvs_wire_last, bytes) == 32, "LAST.bytes");
static_assert(offsetof(struct kvs_wire_last, digest_kind) == 42,
	      "LAST.digest_kind");
static_assert(KVS_RANKS_MAX <= UINT16_MAX, "LAST.rank holds any");

struct kvs_wire_complete {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	kvs_le32 rank;
	kvs_le32 reserved;
};
static_assert(sizeof(struct kvs_wire_complete) == 40, "COMPLETE");

/* ABORT, ABORT_ACK, ABORT_NAK */
struct kvs_wire_abort {
	struct kvs_frame frame;
	kvs_le64 room;
	kvs_le64 generation;
	kvs_le32 rank;
	kvs_le32 err;
	char text[KVS_WIRE_TEXT];
};
static_assert(sizeof(struct kvs_wire_abort) == 296, "ABORT");
static_assert(offsetof(struct kvs_wire_abort, text) == 40, "ABORT.text");

struct kvs_wire_error {
	struct kvs_frame frame;
	kvs_le32 err;
	kvs_le32 reserved;
	char text[KVS_WIRE_TEXT];
};
static_assert(sizeof(struct kvs_wire_error) == 280, "ERROR");
static_assert(offsetof(struct kvs_wire_error, text) == 24, "ERROR.text");

struct kvs_wire_keepalive {
	struct kvs_frame frame;
	kvs_le64 seq;
	kvs_le32 reply;
	kvs_le32 reserved;
};
static_assert(sizeof(struct kvs_wire_keepalive) == 32, "KEEPALIVE");

/* Both are as long as a data connection reads at a time: a shorter one would
 * wait there for what comes behind it. */
struct kvs_wire_challenge {
	struct kvs_frame frame;
	unsigned char nonce[KVS_AUTH_NONCE];
	kvs_le64 reserved[2];
};
static_assert(sizeof(struct kvs_wire_challenge) == KVS_DATA_FRAME, "CHALLENGE");

struct kvs_wire_proof {
	struct kvs_frame frame;
	unsigned char mac[KVS_AUTH_MAC];
	kvs_le64 reserved[2];
};
static_assert(sizeof(struct kvs_wire_proof) == KVS_DATA_FRAME, "PROOF");

struct kvs_wire_response {
	struct kvs_frame frame;
	unsigned char nonce[KVS_AUTH_NONCE];
	unsigned char mac[KVS_AUTH_MAC];
};
static_assert(sizeof(struct kvs_wire_response) == KVS_RESPONSE_FRAME,
	      "RESPONSE");
static_assert(offsetof(struct kvs_wire_response, mac) == 48, "RESPONSE.mac");

#endif /* KVS_PIPELINE_WIRE_STRUCTS_H */
