/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: attach protocol
 *
 * Packets between an engine process and the daemon over a SOCK_SEQPACKET Unix
 * socket of one machine: host byte order, fixed structs, one packet each.
 * Nothing from an engine is trusted: the daemon copies a packet, then checks
 * its length against the type and every field against its range.
 *
 *   engine                                   daemon
 *   ATTACH + pidfd ------------------------>
 *          <---------- ATTACHED + descriptors (status page, pools)
 *   ADMIT --------------------------------->  status word moves; in a group
 *                                             the second one joins the room
 *          <------------ LAYOUT               of a room that is resharded
 *          <------------ READY (extents)      then the word says READY
 *          <------------ FAILED (err, text)   then the word says FAILED
 *   COMMIT -------------------------------->  word says COMMITTING
 *   COMMITTED ----------------------------->  word says DONE
 *   ABORT --------------------------------->
 *   COPY_OVER ----------------------------->  an aborted room's copy ended
 *   RETRACT ------------------------------->  a request is to leave the device
 *          <------------ PLACED (extents)     then the word says ADMITTED: it
 *                                             may be copied out
 *   RETRACTED ----------------------------->  word says SEALING, then READY;
 *                                             back to the device as above,
 *                                             from COMMIT on
 *   LOOKUP -------------------------------->  (hashes)
 *          <------------ CACHED (blocks)      then the word says DONE; also of
 *                                             a room that asked for what is
 *                                             cached, whatever its word says
 *   LOOKUP (offload) ---------------------->  blocks are to leave the device
 *          <------------ CACHED (blocks)      so many first ones need not
 *          <------------ PLACED (extents)     of the others, then as above:
 *   RETRACTED ----------------------------->  word says SEALING, then DONE
 *   LOOKUP (pin) -------------------------->
 *          <------------ CACHED (blocks)      so many are pinned: the word says
 *                                             SEALING
 *          <------------ READY (segments)     then the word says READY; then as
 *                                             a room, from COMMIT on
 *   DETACH -------------------------------->
 *
 * Status page: n_slots words; a word is
 *   bits 63..16 generation (48 bits), 15..8 errno, 7..0 enum kvs_status
 * stored with release by the daemon after the packet that explains it was
 * queued on the socket; loaded with acquire by the engine.
 */
#ifndef KVS_PIPELINE_ATTACH_MSG_H
#define KVS_PIPELINE_ATTACH_MSG_H

#include <assert.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "pipeline/geometry.h"

#define KVS_ATTACH_MAGIC 0x4b565341u
#define KVS_ATTACH_VERSION 6
#define KVS_ENGINE_NAME 64
#define KVS_ATTACH_POOLS_MAX 32
#define KVS_PACKET_MAX 65536
#define KVS_HASHES_MAX 3072u /* of one packet */
#define KVS_SEGS_MAX 1024u /* of one room */
#define KVS_SPACE_TEXT 128 /* bytes, with its end */

enum kvs_packet_type {
	KVS_PACKET_ATTACH = 1,
	KVS_PACKET_ATTACHED,
	KVS_PACKET_REFUSED, /* instead of ATTACHED; then closed */
	KVS_PACKET_ADMIT,
	KVS_PACKET_READY,
	KVS_PACKET_FAILED,
	KVS_PACKET_COMMIT,
	KVS_PACKET_COMMITTED,
	KVS_PACKET_ABORT,
	KVS_PACKET_COPY_OVER,
	KVS_PACKET_DETACH,
	KVS_PACKET_RETRACT,
	KVS_PACKET_PLACED,
	KVS_PACKET_RETRACTED,
	KVS_PACKET_LOOKUP,
	KVS_PACKET_CACHED,
	KVS_PACKET_LAYOUT,
	KVS_PACKET_TYPE_MAX,
};

struct kvs_packet { /* head of every packet */
	uint32_t magic;
	uint32_t type;
};

struct kvs_packet_attach {
	struct kvs_packet h;
	uint32_t version;
	int32_t node; /* -1: daemon's choice */
	char name[KVS_ENGINE_NAME];
	char pci[16];
	char group[KVS_ENGINE_NAME]; /* "": alone */
	uint32_t rank; /* in the group; 0 without */
	uint32_t n_ranks; /* of the group; 0 without */
	uint32_t page_size;
	uint32_t dtype;
	uint32_t aux_max;
	uint32_t n_buffers;
	uint64_t capacity;
	uint64_t max_context;
	char space[KVS_SPACE_TEXT]; /* of what is cached; "": nothing is */
	uint32_t cache_block; /* tokens; 0: a page */
	uint32_t reserved; /* 0 */
	uint32_t tp;
	uint32_t tp_rank;
	uint32_t cut; /* 1: a struct kvs_buffer_cut of each follows */
	uint32_t reserved2; /* 0 */
	struct kvs_layer_buffer buffers[]; /* n_buffers; then the cuts */
};

/* Descriptors come with it: status page, then one a pool. */
struct kvs_packet_attached {
	struct kvs_packet h;
	uint64_t instance;
	uint32_t engine; /* number the daemon gave */
	uint32_t n_slots;
	uint32_t n_pools;
	uint32_t extent_tokens;
	struct {
		uint64_t size;
		uint64_t page_size;
		int32_t node;
		uint32_t writable; /* 1: offload pool */
	} pools[KVS_ATTACH_POOLS_MAX];
};

struct kvs_packet_refused {
	struct kvs_packet h;
	int32_t err; /* positive errno */
	char text[256];
};

struct kvs_packet_admit {
	struct kvs_packet h;
	uint64_t room;
	unsigned char nonce[16];
	char peer[KVS_ENGINE_NAME];
	uint64_t tokens;
	uint32_t slot;
	int32_t node;
	uint32_t aux_len;
	uint32_t flags; /* KVS_ADMIT_* */
	/* of the prefill; 0: 1. If not 0 an uint16_t tp_rank of each follows */
	uint32_t tp;
	uint32_t page_size; /* of the prefill; 0: the engine's */
	uint32_t n_hashes;
	uint32_t n_ranks;
	struct kvs_rank_slice ranks[]; /* n_ranks; then n_hashes of 16 bytes;
					* then the tp_ranks */
};

/* How a room lies whose layout is not the engine's own: before the first READY
 * that names it. */
struct kvs_packet_layout {
	struct kvs_packet h;
	uint32_t id; /* not 0 */
	uint32_t page_size;
	uint32_t tp; /* of the prefill */
	uint32_t n_buffers;
	struct kvs_layer_buffer buffers[]; /* n_buffers; then the cuts */
};

/* Pages of a room that lie in what is cached, in the room's pool. */
struct kvs_packet_seg {
	uint64_t off; /* of the extent, bytes in the pool */
	uint32_t extent_pages; /* that it was received with */
	uint32_t first_page; /* in it */
	uint32_t n_pages;
	uint32_t reserved; /* 0 */
};

/* READY of a room, PLACED of a retraction or an offload */
struct kvs_packet_ready {
	struct kvs_packet h;
	uint64_t generation;
	uint32_t slot;
	uint32_t pool; /* index in ATTACHED */
	uint32_t extent_tokens;
	uint32_t n_extents;
	uint32_t n_segs; /* the room's first pages */
	uint32_t layout; /* id of LAYOUT; 0: the engine's own */
	uint64_t off[]; /* bytes in the pool, n_extents; then n_segs
			 * struct kvs_packet_seg */
};

/* What a LOOKUP wants with the blocks. */
enum kvs_lookup {
	KVS_LOOKUP_FIND,
	KVS_LOOKUP_DROP, /* and forget them */
	KVS_LOOKUP_OFFLOAD, /* they are to leave the device */
	KVS_LOOKUP_PIN, /* they are to stay, and to come to the device */
	KVS_LOOKUP_MAX,
};

struct kvs_packet_lookup {
	struct kvs_packet h;
	uint64_t id; /* the engine's, for listings */
	uint32_t slot;
	int32_t node; /* -1: the engine's */
	uint32_t what; /* enum kvs_lookup */
	uint32_t n_hashes;
	uint8_t hashes[][16]; /* n_hashes */
};

struct kvs_packet_cached {
	struct kvs_packet h;
	uint64_t generation;
	uint32_t slot;
	uint32_t blocks; /* of the cache, from the first on */
};

struct kvs_packet_failed {
	struct kvs_packet h;
	uint64_t generation;
	uint32_t slot;
	uint32_t err; /* positive errno */
	uint32_t class; /* 400, 503 */
	uint32_t retry_ms; /* as in struct kvs_failure */
	char text[256];
};

struct kvs_packet_retract {
	struct kvs_packet h;
	uint64_t id; /* the engine's, for listings */
	uint64_t tokens;
	uint32_t slot;
	int32_t node; /* -1: the engine's */
};

/* COMMIT, COMMITTED, ABORT, COPY_OVER, RETRACTED */
struct kvs_packet_room {
	struct kvs_packet h;
	uint64_t generation; /* 0 in ABORT: whatever is in the slot; in
			      * COPY_OVER: or was, last */
	uint32_t slot;
	int32_t err; /* COMMITTED, RETRACTED: 0 or positive errno of the copy */
};

#define KVS_WORD(gen, err, st)                                     \
	(((uint64_t)(gen) << 16) | (((uint64_t)(err)&0xff) << 8) | \
	 ((uint64_t)(st)&0xff))
#define KVS_WORD_GEN(w) ((w) >> 16)
#define KVS_WORD_ERR(w) ((int)(((w) >> 8) & 0xff))
#define KVS_WORD_STATUS(w) ((enum kvs_status)((w)&0xff))
#define KVS_GENERATION_MAX ((1ULL << 48) - 1)

static_assert(sizeof(struct kvs_packet_ready) +
			      KVS_EXTENTS_MAX * sizeof(uint64_t) +
			      KVS_SEGS_MAX * sizeof(struct kvs_packet_seg) <=
		      KVS_PACKET_MAX,
	      "READY fits one packet");
static_assert(sizeof(struct kvs_packet_admit) +
			      KVS_RANKS_MAX * sizeof(struct kvs_rank_slice) +
			      KVS_HASHES_MAX * 16 <=
		      KVS_PACKET_MAX,
	      "ADMIT fits one packet");
static_assert(sizeof(struct kvs_packet_attach) +
			      KVS_LAYOUT_BUFFERS_MAX *
				      (sizeof(struct kvs_layer_buffer) +
				       sizeof(struct kvs_buffer_cut)) <=
		      KVS_PACKET_MAX,
	      "ATTACH fits one packet, and so does LAYOUT");

#endif /* KVS_PIPELINE_ATTACH_MSG_H */
