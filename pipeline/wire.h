/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: wire protocol, version 1
 *
 * Messages between a prefill rank (sender) and the daemon. On the wire:
 * struct kvs_frame (rdma/frame.h), then a fixed little-endian body, then for
 * some a bounded array. kvs_wire_decode() turns checked bytes into struct
 * kvs_msg in host order; nothing else looks at wire structs.
 * kvstage-wire(7) is the reference.
 *
 *   sender                                 daemon
 *   HELLO(control) ----------------------> version, capabilities, identity
 *          <------------------ CHALLENGE   with a key only (pipeline/auth.h);
 *   RESPONSE ----------------------------> so does a data connection
 *          <---------------------- PROOF
 *          <---------------------- HELLO   session token, instance
 *   LAYOUT ------------------------------> compared with the engine's
 *          <--------------------- LAYOUT   (or ERROR and close)
 *   OPEN(room, nonce, rank) -------------> parked until the engine's admit
 *          <--------- GRANT | REFUSE       generation, extents, worker
 *   HELLO(data, token, worker) ==========> each data connection
 *   CHUNK + payload =====================> placed directly; or, one-sided:
 *   write to memory, CHUNK_DONE =========> counted
 *   LAST(totals) ------------------------>
 *          <------------------- COMPLETE   all bytes seen; room sealed
 *   either: ABORT -> ABORT_ACK | ABORT_NAK, ERROR, KEEPALIVE
 */
#ifndef KVS_PIPELINE_WIRE_H
#define KVS_PIPELINE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/layout.h"
#include "pipeline/digest.h"
#include "pipeline/geometry.h"
#include "rdma/frame.h"
#include "rdma/grant.h"

#define KVS_WIRE_VERSION_MIN 1
#define KVS_WIRE_VERSION_MAX 1
#define KVS_WIRE_TEXT 256 /* bytes, NUL included */
#define KVS_PEER_NAME 64 /* bytes, NUL included */
#define KVS_WIRE_GRANT_KEYS_MAX 2048
#define KVS_WORKERS_MAX 1024 /* of one daemon */
#define KVS_PATHS_MAX 64 /* data connections of a rank to a worker */
#define KVS_AUTH_NONCE 32 /* bytes */
#define KVS_AUTH_MAC 32 /* bytes */
#define KVS_HELLO_FRAME 128 /* bytes of a HELLO, frame included */
#define KVS_RESPONSE_FRAME 80 /* likewise */

/* X(NAME, value): 0 is never used */
#define KVS_WIRE_TYPES(X) \
	X(HELLO, 1)       \
	X(LAYOUT, 2)      \
	X(OPEN, 3)        \
	X(GRANT, 4)       \
	X(REFUSE, 5)      \
	X(CHUNK, 6)       \
	X(CHUNK_DONE, 7)  \
	X(LAST, 8)        \
	X(COMPLETE, 9)    \
	X(ABORT, 10)      \
	X(ABORT_ACK, 11)  \
	X(ABORT_NAK, 12)  \
	X(ERROR, 13)      \
	X(KEEPALIVE, 14)  \
	X(CHALLENGE, 15)  \
	X(RESPONSE, 16)   \
	X(PROOF, 17)

#define KVS_ENUM_(n, v) KVS_WIRE_##n = (v),
enum kvs_wire_type { KVS_WIRE_TYPES(KVS_ENUM_) KVS_WIRE_TYPE_MAX };
#undef KVS_ENUM_

/* Capabilities (HELLO) */
#define KVS_CAP_DRAIN_ACK (1ULL << 0) /* answers ABORT */
#define KVS_CAP_GENERATION (1ULL << 1) /* carries generations; required */
#define KVS_CAP_ONE_SIDED (1ULL << 2) /* writes by RDMA */
/* Sender: can compute this digest. Daemon: LAST must carry it, if both say
 * so; at most one bit. */
#define KVS_CAP_CRC32C (1ULL << 3)
#define KVS_CAP_ADLER32 (1ULL << 4)
/* Data connections have numbers, and a GRANT says which its keys are for. */
#define KVS_CAP_PATHS (1ULL << 5)

/* The digest that capabilities name; the daemon's name at most one. */
static inline enum kvs_digest_kind kvs_caps_digest(uint64_t caps)
{
	if (caps & KVS_CAP_CRC32C)
		return KVS_DIGEST_CRC32C;
	return caps & KVS_CAP_ADLER32 ? KVS_DIGEST_ADLER32 : KVS_DIGEST_NONE;
}

/* Roles (HELLO) */
#define KVS_ROLE_CONTROL 0
#define KVS_ROLE_DATA 1

/* Chunk of an aux block instead of a layer buffer: kind, layer = rank */
#define KVS_KIND_AUX 0xffff

struct kvs_msg_hello {
	uint16_t version_min;
	uint16_t version_max; /* in a reply both are the chosen one */
	uint16_t role;
	uint64_t caps;
	uint64_t instance; /* of the sending process */
	uint64_t session; /* reply: token; role data: the token */
	uint32_t rank; /* in a reply this and n_ranks are the sender's */
	uint32_t n_ranks;
	/* role data: which. In a reply on a control connection: one data
	 * connection to each of that many at once, as keys of GRANTs work on
	 * it alone; 0: as needed */
	uint32_t worker;
	/* KVS_CAP_PATHS. Role data: its number, from 0 on. In a reply on a
	 * control connection: how many there are to be to each worker */
	uint16_t paths;
	uint32_t keepalive_ms; /* 0: none */
	char name[KVS_PEER_NAME]; /* peer (prefill instance); never empty; in a
				   * reply not looked at */
};

struct kvs_msg_layout {
	/* buffers point into a caller-given array, see kvs_wire_decode().
	 * Checked by kvs_layout_check_foreign(): for kvs_layout_match() only */
	struct kvs_layout l;
};

struct kvs_msg_open {
	uint64_t room;
	uint64_t generation; /* 0: not known yet */
	unsigned char nonce[16]; /* zero: none */
	uint32_t rank;
	uint64_t tokens; /* what the sender believes; 1..KVS_TOKENS_MAX */
};

/* Where a buffer's run begins, from the start of an extent: a multiple of
 * KVS_RUN_ALIGN bytes, under KVS_GRANT_PLACE_MAX. */
struct kvs_grant_place {
	uint64_t full; /* in a full extent */
	uint64_t last; /* in the last extent */
};
#define KVS_GRANT_PLACE_MAX ((uint64_t)KVS_RUN_ALIGN << 32) /* bytes */

struct kvs_msg_grant {
	uint64_t room;
	uint64_t generation;
	uint32_t rank;
	uint32_t worker; /* data connections go there */
	uint64_t tokens;
	uint32_t page_size;
	uint32_t extent_tokens;
	uint32_t n_extents;
	uint32_t first_layer; /* what this rank is to send */
	uint32_t n_layers;
	uint32_t tp; /* ranks that heads are divided between; 0: 1 */
	uint32_t tp_rank; /* which it is: its heads; 0 sends what is not cut */
	uint32_t aux_len; /* bytes this rank is to send */
	uint32_t call_timeout_ms; /* a chunk may take so long; 0: not said */
	uint64_t batch_bytes; /* not more launched at a time; 0: not said */
	/* One-sided, a rank with bytes to send: n_extents keys, and a place of
	 * each buffer of its layers in the order of kvs_layout_order(). Else
	 * none. With paths as many keys for each of them, one after the other,
	 * and the number of the data connection that they are for; without,
	 * for any. Caller-given arrays. */
	uint32_t n_keys;
	uint32_t n_places;
	uint32_t n_paths;
	uint64_t aux_at; /* its aux block, in the last extent; like a place */
	const struct kvs_grant_key *keys;
	const struct kvs_grant_place *places;
	const uint16_t *paths;
};

struct kvs_msg_refuse {
	uint64_t room;
	uint64_t generation; /* 0 when the room was never admitted */
	uint32_t rank;
	uint32_t err; /* positive errno */
	uint32_t class; /* 400 or 503 */
	char text[KVS_WIRE_TEXT];
};

/* CHUNK (payload follows) and CHUNK_DONE (written by other means) */
struct kvs_msg_chunk {
	uint64_t room;
	uint64_t generation;
	uint32_t rank;
	uint32_t extent;
	uint16_t kind; /* enum kvs_buffer_kind or KVS_KIND_AUX */
	uint16_t layer;
	uint64_t offset; /* bytes in the buffer's run in this extent */
	uint32_t len; /* bytes; of the payload */
};

struct kvs_msg_last {
	uint64_t room;
	uint64_t generation;
	uint32_t rank;
	uint64_t bytes; /* everything this rank sent, aux included */
	uint16_t digest_kind; /* enum kvs_digest_kind */
	uint32_t digest; /* of these bytes; 0 for none */
};

struct kvs_msg_complete {
	uint64_t room;
	uint64_t generation;
	uint32_t rank;
};

struct kvs_msg_abort {
	uint64_t room;
	uint64_t generation;
	uint32_t rank; /* of the sender concerned */
	uint32_t err; /* positive errno: why; may be 0 in ABORT_ACK */
	char text[KVS_WIRE_TEXT];
};

struct kvs_msg_error {
	uint32_t err;
	char text[KVS_WIRE_TEXT];
};

struct kvs_msg_keepalive {
	uint64_t seq;
	uint32_t reply; /* 0: please answer; 1: answer */
};

/* Who has a key asks for it: see pipeline/auth.h. */
struct kvs_msg_challenge {
	unsigned char nonce[KVS_AUTH_NONCE]; /* the daemon's */
};

struct kvs_msg_response {
	unsigned char nonce[KVS_AUTH_NONCE]; /* the sender's */
	unsigned char mac[KVS_AUTH_MAC];
};

struct kvs_msg_proof {
	unsigned char mac[KVS_AUTH_MAC];
};

struct kvs_msg {
	enum kvs_wire_type type;
	union {
		struct kvs_msg_hello hello;
		struct kvs_msg_layout layout;
		struct kvs_msg_open open;
		struct kvs_msg_grant grant;
		struct kvs_msg_refuse refuse;
		struct kvs_msg_chunk chunk; /* CHUNK, CHUNK_DONE */
		struct kvs_msg_last last;
		struct kvs_msg_complete complete;
		struct kvs_msg_abort abort; /* ABORT, ABORT_ACK, ABORT_NAK */
		struct kvs_msg_error error;
		struct kvs_msg_keepalive keepalive;
		struct kvs_msg_challenge challenge;
		struct kvs_msg_response response;
		struct kvs_msg_proof proof;
	};
};

const char *kvs_wire_type_name(unsigned int type); /* "?" if unknown */

/* Scratch for the arrays of LAYOUT and GRANT; one per decoding thread. */
struct kvs_wire_scratch {
	struct kvs_layer_buffer buffers[KVS_LAYOUT_BUFFERS_MAX];
	struct kvs_buffer_cut cuts[KVS_LAYOUT_BUFFERS_MAX];
	struct kvs_grant_key keys[KVS_WIRE_GRANT_KEYS_MAX];
	struct kvs_grant_place places[KVS_LAYOUT_BUFFERS_MAX];
	uint16_t paths[KVS_PATHS_MAX];
};

/**
 * kvs_wire_decode() - bytes to message
 * @f: a frame as received
 * @avail: bytes readable at @f
 * @scratch: storage that LAYOUT and GRANT arrays point into
 * @ret: message, written only on success
 * @ret_reason: static string for kvstage_protocol_errors_total{reason}:
 *              "short" "magic" "length" "type" "flags" "text" "count"
 *              "value" "payload"
 *
 * Every length, count, NUL termination and reserved field is checked, and
 * every value as far as the message alone tells; a room is never 0. @f needs
 * no alignment.
 * Context: any thread, does not block or allocate.
 * Return: 0 or -EPROTO.
 */
int kvs_wire_decode(const struct kvs_frame *f, size_t avail,
		    struct kvs_wire_scratch *scratch, struct kvs_msg *ret,
		    const char **ret_reason);

/**
 * kvs_wire_encode() - message to bytes
 * @m: message; CHUNK sets the frame's payload to chunk.len
 * @buf: room for the frame, 8-byte aligned
 * @cap: its size; KVS_FRAME_MAX always suffices
 *
 * Bytes of a text that must not be sent (control characters, broken UTF-8)
 * become '?'; a name with such bytes is refused.
 * Return: bytes written; -ENOBUFS; -EINVAL a value that must not be sent.
 */
int kvs_wire_encode(const struct kvs_msg *m, void *buf, size_t cap);

#endif /* KVS_PIPELINE_WIRE_H */
