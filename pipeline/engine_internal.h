/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: engine side
 *
 * What an attached engine knows of its rooms. The daemon's status word
 * decides; this side adds what the word cannot say yet, one byte a slot
 * (struct kvs_engine.local), and owns the copies to the device.
 *
 *   phase    holds                         moves on by
 *   OPEN     extents named by READY        kvs_engine_commit()
 *   CLAIMED  lists of the copy, COMMIT     the word says COMMITTING: the
 *            is sent                       daemon counts our copy as a party
 *   COPYING  a copy in flight              its event: COMMITTED, or COPY_OVER
 *                                          when the room failed meanwhile
 *   COPIED   nothing                       the word says DONE or FAILED
 *
 * A retraction has two phases more, between two of OPEN:
 *
 *   LEAVING  lists of the copy out         what computes its pages is over
 *   LEAVING_COPY  a copy in flight         its event: RETRACTED, or COPY_OVER
 *
 * A copy starts only on the word COMMITTING: before it, the daemon may still
 * end the room (claim timeout) and give its memory to another. And only when
 * the device was asked about the memory it is to read or write, which goes on
 * in the background: a piece must not be registered under a copy.
 *
 * A slot is used again only when its word is final, whatever the caller was
 * told before: until then packets of the old room may be under way.
 *
 * One thread; no locks. Packets that the socket does not take are owed as
 * bits of the room (so they are bounded and cannot fail for memory) and sent
 * in order by kvs_eng_flush().
 */
#ifndef KVS_PIPELINE_ENGINE_INTERNAL_H
#define KVS_PIPELINE_ENGINE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/device.h"
#include "kvstage/engine.h"
#include "lib/list.h"
#include "pipeline/attach_msg.h"
#include "pipeline/geometry.h"

#define KVS_ENG_SLOTS_MAX (1u << 20)
#define KVS_ENG_SPARE_PART 4096u /* one slot in so many is for health checks */
#define KVS_ENG_DEVICES_MAX 16

/* What this side adds to a slot's word. */
enum kvs_eng_local {
	KVS_ENG_FREE, /* no room that a handle may name */
	KVS_ENG_WORD, /* the word is the status */
	KVS_ENG_CLAIMED, /* committed: up to READY means COMMITTING */
	KVS_ENG_FAILED, /* failed here; the room says why */
	KVS_ENG_DONE, /* copied, and no daemon left to say so */
};

enum kvs_eng_phase {
	KVS_ENG_PHASE_OPEN,
	KVS_ENG_PHASE_CLAIMED,
	KVS_ENG_PHASE_COPYING,
	KVS_ENG_PHASE_COPIED,
	KVS_ENG_PHASE_LEAVING,
	KVS_ENG_PHASE_LEAVING_COPY,
};

/* Packets a room owes the daemon, in the order they must go out. */
#define KVS_ENG_OWE_COMMIT 1u
#define KVS_ENG_OWE_COMMITTED 2u
#define KVS_ENG_OWE_ABORT 4u
#define KVS_ENG_OWE_COPY_OVER 8u
#define KVS_ENG_OWE_RETRACTED 16u

/* A request that leaves the device, until its copy out has ended: it comes
 * back, or its blocks are to be cached. */
struct kvs_eng_out {
	struct kvs_device *device;
	int (*written)(void *arg);
	void *arg;
	bool over; /* the daemon has been told, or will be */
	bool keep; /* an offload */
	uint32_t skip; /* pages that need not be copied: cached already */
	uint32_t n_pages;
	uint32_t n_items;
	uint32_t *pages; /* pages, then items */
	uint64_t *strides; /* of each buffer; NULL */
	void *buffers[]; /* of the layout */
};

/* How resharded rooms lie; the daemon says it once. */
struct kvs_eng_host {
	struct kvs_list node; /* on e->hosts */
	uint32_t id;
	uint32_t refs; /* rooms */
	struct kvs_layout *layout;
};

struct kvs_eng_room {
	struct kvs_list node; /* on e->active or e->lingering */
	struct kvs_list out_node; /* on e->out while it owes */
	uint64_t id;
	uint64_t generation; /* 0: not known yet */
	uint32_t slot;
	uint64_t tokens;
	uint32_t n_ranks;
	uint32_t aux_len;
	enum kvs_eng_phase phase;
	unsigned int owed; /* KVS_ENG_OWE_* */
	int copy_err; /* positive errno for COMMITTED */
	bool aborted; /* by the caller */
	bool commit_sent;
	struct kvs_failure failure; /* .err 0: none known */
	uint64_t failure_generation;

	/* from READY; valid when ready_generation is not 0 */
	uint64_t ready_generation;
	struct kvs_eng_host *host; /* NULL: it lies as our own layout says */
	struct kvs_geometry geo;
	uint32_t pool;
	uint64_t *off; /* geo.n_extents */

	struct kvs_eng_out *out; /* of a retraction; else NULL */

	bool pin; /* all of it is cached, and none received */
	/* what is cached of it: its first pages */
	bool cached_known;
	uint32_t cached; /* blocks; when that is known */
	uint32_t n_segs;
	uint32_t seg_pages; /* of all of them */
	struct kvs_packet_seg *segs;

	/* the copy; one allocation, at runs */
	struct kvs_device *device;
	struct kvs_copy copy;
	struct kvs_copy_run *runs;
	struct kvs_copy_shape *shapes; /* of each run */
	size_t *ends; /* runs up to each buffer's last, by e->order */
	uint32_t *pages; /* device pages, then device items */
	/* how far it is: buffers that were seen complete, by e->order */
	uint32_t buffers_seen;
};

struct kvs_eng_pool {
	unsigned char *base;
	uint64_t size; /* bytes */
	bool writable;
};

/* A device that our pools are made known to. */
struct kvs_eng_device {
	struct kvs_device *device;
	struct kvs_registrar *registrar;
};

/**
 * struct kvs_eng_port - how the daemon is reached
 * @send: one packet: 0; -EAGAIN not now; other: the connection is broken
 * @receive: the next packet, into e->buf: its bytes; -EAGAIN there is none; 0
 *           or other: the end; *@ret_cut: only a part of it was taken
 * @shut: no packets any more, either way; what names it stays
 * @map: what came with ATTACHED: set the words and pools that @p announces:
 *       0 or -errno with @err
 * @free: what is left of it, words and pools included
 *
 * None blocks. The library's is a socket (engine_attach.c, engine_map.c).
 */
struct kvs_eng_port {
	int (*send)(struct kvs_engine *e, const void *p, size_t len);
	ssize_t (*receive)(struct kvs_engine *e, bool *ret_cut);
	void (*shut)(struct kvs_engine *e);
	int (*map)(struct kvs_engine *e, const struct kvs_packet_attached *p,
		   char *err, size_t errlen);
	void (*free)(struct kvs_engine *e);
};

struct kvs_engine {
	uint32_t magic;
	const struct kvs_eng_port *port;
	void *port_arg; /* the port's; so are the next three */
	int fd;
	int fds[1 + KVS_ATTACH_POOLS_MAX]; /* came with the packet in buf */
	unsigned int n_fds;
	bool gone; /* the daemon, or the connection to it */
	bool grouped; /* there are other ranks that have our rooms */
	struct kvs_layout *layout;
	uint32_t fixed_buffers; /* of the layout, not paged */
	uint32_t *order; /* its buffers by layer, then kind: of the copies */
	uint32_t block_pages; /* of the cache */
	uint32_t *items_at; /* scratch: by buffer, where its items begin */

	/* by slot; the first three are all that a poll reads */
	const _Atomic uint64_t *words; /* the daemon's, read-only here */
	uint64_t *previous; /* word at the time of the admit */
	uint8_t *local; /* enum kvs_eng_local */
	struct kvs_eng_room **rooms;
	uint32_t n_slots;
	uint32_t *free; /* stack of free slots */
	uint32_t n_free;

	struct kvs_list active; /* CLAIMED, COPYING or LEAVING */
	struct kvs_list lingering; /* forgotten, word not final */
	struct kvs_list hosts; /* struct kvs_eng_host, the latest last */
	uint32_t n_hosts;
	struct kvs_list out; /* rooms that owe packets */

	struct kvs_eng_pool pools[KVS_ATTACH_POOLS_MAX];
	uint32_t n_pools;
	struct kvs_eng_device devices[KVS_ENG_DEVICES_MAX];
	uint32_t n_devices;

	union {
		uint64_t align; /* of every packet's members */
		struct kvs_packet h;
		unsigned char b[KVS_PACKET_MAX];
	} buf;
};

static inline uint64_t kvs_eng_word(const struct kvs_engine *e, uint32_t slot)
{
	/* pairs with the release store of the daemon's front thread */
	return atomic_load_explicit(&e->words[slot], memory_order_acquire);
}

/*
 * engine.c. Attaching is: new, then ATTACH (kvs_eng_offer()) goes out through
 * the port, then its answer is in e->buf (kvs_eng_answer()). Detaching: give
 * up, progress until nothing is active, then goodbye until it says true, then
 * free. Who free()s at any time acts the end of the process.
 */
/* 0; -EINVAL, -ENOMEM with @err. The port is the caller's to set. */
int kvs_eng_new(const struct kvs_engine_opts *o, struct kvs_engine **ret,
		char *err, size_t errlen);
/* ATTACH, @ret_len bytes; the caller frees it. NULL: no memory. */
struct kvs_packet_attach *kvs_eng_offer(const struct kvs_engine *e,
					const struct kvs_engine_opts *o,
					size_t *ret_len);
/* 0, attached; -errno with @err. */
int kvs_eng_answer(struct kvs_engine *e, size_t len, char *err, size_t errlen);
void kvs_eng_give_up(struct kvs_engine *e);
bool kvs_eng_goodbye(struct kvs_engine *e);
void kvs_eng_free(struct kvs_engine *e);

/* engine_attach.c: connect, ATTACH, ATTACHED. @deadline: ns. */
int kvs_eng_connect(struct kvs_engine *e, const char *path, uint64_t deadline,
		    char *err, size_t errlen);
int kvs_eng_handshake(struct kvs_engine *e, const struct kvs_engine_opts *o,
		      uint64_t deadline, char *err, size_t errlen);

/**
 * kvs_eng_map() - check and map what came with ATTACHED
 * @e: gets pools, words, n_slots; its descriptors: status page, then one a
 *     pool
 * @p: the packet, of sufficient length
 * Return: 0; -EPROTO what came is not what was announced, or could change
 * under us (@err says what); -ENOMEM and others of mmap().
 */
int kvs_eng_map(struct kvs_engine *e, const struct kvs_packet_attached *p,
		char *err, size_t errlen);
void kvs_eng_unmap(struct kvs_engine *e);

/* engine_packet.c */
/* Read what the daemon sent; number of packets. */
int kvs_eng_receive(struct kvs_engine *e);
/* -EAGAIN, -ECONNRESET (and the engine knows that it is). */
int kvs_eng_send(struct kvs_engine *e, const void *p, size_t len);
void kvs_eng_owe(struct kvs_engine *e, struct kvs_eng_room *r,
		 unsigned int packet);
/* Send what is owed, as far as the socket takes it. */
void kvs_eng_flush(struct kvs_engine *e);
/* No daemon any more: uncommitted rooms fail. */
void kvs_eng_lost(struct kvs_engine *e, const char *why);

/* engine_room.c */
struct kvs_eng_room *kvs_eng_room_of(struct kvs_engine *e, const kvs_handle *h);
/* A room for a free slot; 0, -EAGAIN, -ECONNRESET, -ENOMEM. Take it when its
 * packet has gone out, or undo. */
int kvs_eng_slot(struct kvs_engine *e, uint32_t flags,
		 struct kvs_eng_room **ret);
void kvs_eng_slot_undo(struct kvs_eng_room *r);
void kvs_eng_slot_take(struct kvs_engine *e, struct kvs_eng_room *r,
		       kvs_handle *ret);
/* Learn the generation; the word, or 0 while it is the one before. */
uint64_t kvs_eng_room_word(struct kvs_engine *e, struct kvs_eng_room *r);
/* The daemon has said its last word of it. */
bool kvs_eng_room_final(struct kvs_engine *e, struct kvs_eng_room *r);
/* Fail it here; the word does not matter any more. */
void kvs_eng_room_fail(struct kvs_engine *e, struct kvs_eng_room *r, int err,
		       const char *text);
/* Give up: tell the daemon, and that no copy runs, if none does. */
void kvs_eng_room_give_up(struct kvs_engine *e, struct kvs_eng_room *r);
int kvs_eng_room_ready(struct kvs_engine *e, struct kvs_eng_room *r,
		       const struct kvs_packet_ready *p, size_t len);
void kvs_eng_room_free(struct kvs_engine *e, struct kvs_eng_room *r);
/* Slots of forgotten rooms whose word is final. */
void kvs_eng_reap(struct kvs_engine *e);

/* engine_reshard.c */
/* LAYOUT came: 0; -EPROTO, -ENOMEM. */
int kvs_eng_host_add(struct kvs_engine *e, const struct kvs_packet_layout *p,
		     size_t len);
struct kvs_eng_host *kvs_eng_host_find(struct kvs_engine *e, uint32_t id);
void kvs_eng_hosts_free(struct kvs_engine *e);
/* Are these lists those of the request? 0; -EINVAL. */
int kvs_eng_copy_check(const struct kvs_engine *e, const struct kvs_eng_room *r,
		       const struct kvs_commit *c);

/* engine_commit.c */
/* Start or finish its copy; number of steps. */
int kvs_eng_advance(struct kvs_engine *e, struct kvs_eng_room *r);
bool kvs_eng_room_live(struct kvs_engine *e, struct kvs_eng_room *r);
/* The lists of a copy between the extents and @c: 0 or -ENOMEM. */
int kvs_eng_copy_build(struct kvs_engine *e, struct kvs_eng_room *r,
		       const struct kvs_commit *c);

/* engine_devices.c */
/* Begin to make the pools known to it, unless that was done: 0; -ENOSPC,
 * -ENOMEM, -EAGAIN. Does not wait for it. */
int kvs_eng_devices_know(struct kvs_engine *e, struct kvs_device *d);
/* May the copy of this room, which is built, begin? 0; -EINPROGRESS. */
int kvs_eng_devices_ready(const struct kvs_engine *e,
			  const struct kvs_eng_room *r);
/* Nobody will need what is not known by now. */
void kvs_eng_devices_stop(struct kvs_engine *e);
/* @undo: the devices too; else they are not called. */
void kvs_eng_devices_forget(struct kvs_engine *e, bool undo);

/* engine_cache.c */
/* CACHED came. */
void kvs_eng_cached(struct kvs_engine *e, struct kvs_eng_room *r,
		    const struct kvs_packet_cached *p);
/* A LOOKUP for @r's slot: 0, or as kvs_eng_send(), -ENOMEM. */
int kvs_eng_lookup(struct kvs_engine *e, struct kvs_eng_room *r,
		   enum kvs_lookup what, const void *hashes, uint32_t n,
		   int node);
/* What READY says of it: 0, -EPROTO, -ENOMEM. @v: @n of them. */
int kvs_eng_segs(struct kvs_engine *e, struct kvs_eng_room *r, uint32_t pool,
		 const struct kvs_packet_seg *v, uint32_t n);
/* READY came for a pin: 0, -EPROTO, -ENOMEM. */
int kvs_eng_pin_ready(struct kvs_engine *e, struct kvs_eng_room *r,
		      const struct kvs_packet_ready *p, size_t len);
/* Runs of buffer @b in the segments, from @run on. Return: behind the last. */
struct kvs_copy_run *kvs_eng_seg_runs(const struct kvs_engine *e,
				      const struct kvs_eng_room *r, uint32_t b,
				      void *dev, const uint64_t *off,
				      struct kvs_copy_run *run);
/* Where buffers begin in each segment's extent, n_segs times n_buffers; to be
 * freed. NULL: no memory. */
uint64_t *kvs_eng_seg_offsets(const struct kvs_engine *e,
			      const struct kvs_eng_room *r);

/* kvs_engine_commit() of a room that has been here already: it goes before
 * those that have not begun to copy. */
int kvs_eng_commit_first(struct kvs_engine *e, const kvs_handle *h,
			 const struct kvs_commit *c);

/* engine_retract.c: rooms with r->out */
/* It has its places. */
void kvs_eng_out_placed(struct kvs_engine *e, struct kvs_eng_room *r);
int kvs_eng_out_advance(struct kvs_engine *e, struct kvs_eng_room *r);
/* Can its device pages still be read, or may they yet? */
bool kvs_eng_out_live(struct kvs_engine *e, struct kvs_eng_room *r);
/* It is given up: tell that no copy will begin, if none did. */
void kvs_eng_out_end(struct kvs_engine *e, struct kvs_eng_room *r);

#endif /* KVS_PIPELINE_ENGINE_INTERNAL_H */
