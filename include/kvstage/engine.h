/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: engine
 *
 * The decode engine's side: attach to the kvstaged of this node, admit rooms,
 * poll them without system calls, copy complete ones to the device, release.
 * The pools are mapped from the daemon; copies are the engine's own, on its
 * own device. One thread uses a struct kvs_engine at a time.
 */
#ifndef KVSTAGE_ENGINE_H
#define KVSTAGE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/errors.h"
#include "kvstage/layout.h"

#pragma GCC visibility push(default)

struct kvs_engine;
struct kvs_device;

/* A room's one status. Values only grow, except to FAILED; several ranks
 * take the minimum over theirs and agree. */
enum kvs_status {
	KVS_STATUS_FAILED = 0, /* see the errno; sticky */
	KVS_STATUS_PENDING = 1, /* the daemon has not looked at it yet */
	KVS_STATUS_WAITING = 2, /* queued for memory */
	KVS_STATUS_ADMITTED = 3, /* memory is there; ranks may open */
	KVS_STATUS_RECEIVING = 4,
	KVS_STATUS_SEALING = 5,
	KVS_STATUS_READY = 6, /* complete and checked: commit it */
	KVS_STATUS_COMMITTING = 7, /* copies may run */
	KVS_STATUS_DONE = 8, /* committed, extents given back */
};

/* A room on this engine; all zero is no handle. Members are private. */
typedef struct {
	uint32_t slot; /* from 1 */
	uint64_t generation; /* 0 until the daemon has assigned it */
	uint64_t previous; /* word of the slot before the admit */
} kvs_handle;

struct kvs_engine_opts {
	size_t size;
	const char *socket; /* path; NULL: /run/kvstage/kvstaged.sock */
	const char *name; /* for logs and kvstagectl */
	const struct kvs_layout *layout; /* device KV pool; copied */
	int node; /* NUMA node rooms should lie on; -1: daemon's choice */
	const char *pci; /* "0000:3b:00.0" of the GPU, or NULL */
	uint64_t timeout; /* ns for the attach; 0: 10 s */
	/* Ranks of one engine on this node, each attached by itself: a room that
	 * one of them admits is received once for all and committed by each.
	 * NULL: alone, and the next two are not looked at. */
	const char *group; /* its name, the same for all of them */
	uint32_t rank; /* in the group, below n_ranks */
	uint32_t n_ranks; /* of the group; at most KVS_GROUP_MAX */
	/* What is kept in host memory of finished rooms, see kvstage/cache.h.
	 * Names what must agree, besides the layout, for the KV of two rooms to
	 * be the same: model, weights, tensor-parallel rank, tenant; less than
	 * 128 bytes. NULL: nothing is kept. */
	const char *cache_space;
	uint32_t cache_block; /* tokens of a block; 0: of a page */
};

#define KVS_GROUP_MAX 64 /* ranks of a group */

/**
 * kvs_engine_attach() - map the pools, agree on the layout
 *
 * A rank that attaches again is another member of its group: rooms that were
 * admitted before are not its own.
 *
 * Context: blocks.
 * Return: 0; -ENOENT, -ECONNREFUSED no daemon there; -EPROTONOSUPPORT;
 * -EINVAL; -EPROTOTYPE a capacity on the path is smaller than one
 * maximum-length request, or the layouts of the group's ranks differ (@err
 * says which); -EEXIST this rank of the group is attached; -EAGAIN no room for
 * another engine; -ETIMEDOUT.
 */
int kvs_engine_attach(const struct kvs_engine_opts *o, struct kvs_engine **ret,
		      char *err, size_t errlen);
/* Aborts what is live, waits for its own copies, unmaps. NULL ok. */
void kvs_engine_detach(struct kvs_engine *e);

/* Layers a prefill rank sends; none: a zero-byte rank. Of buffers that are cut
 * it sends its heads; those that are not cut tp_rank 0 sends. */
struct kvs_rank_slice {
	uint32_t first_layer;
	uint32_t n_layers;
};

/* A health check: served before other rooms, from a reserve of its own
 * (admission.health_reserve), and not compared by checksum. */
#define KVS_ADMIT_HEALTH 1u
/* What is cached of its first blocks is not received: see
 * kvs_engine_cached(). */
#define KVS_ADMIT_CACHED 2u
#define KVS_CACHE_BLOCKS_MAX 3072u /* hashes of one call */

struct kvs_admit {
	size_t size;
	uint64_t room; /* not 0 */
	unsigned char nonce[16]; /* of this attempt; zero: none */
	const char *peer; /* prefill instance that will send */
	uint64_t tokens;
	uint32_t n_ranks;
	const struct kvs_rank_slice *ranks; /* together: each layer once */
	uint32_t aux_len; /* bytes of every rank's aux block */
	int node; /* -1: as attached */
	uint32_t flags; /* KVS_ADMIT_* */
	/* 16 bytes for each whole block, from the first on, each a hash over its
	 * tokens and all before it. By these it is kept when it is DONE, and
	 * found; blocks behind the last one are not kept. */
	const void *hashes;
	uint32_t n_hashes; /* KVS_CACHE_BLOCKS_MAX at most */
	/* Where the prefill has other heads on a rank, or other pages: */
	uint32_t tp; /* ranks its heads are divided between; 0: 1 */
	const uint16_t *tp_ranks; /* which each rank is; NULL: all 0 */
	uint32_t page_size; /* tokens of its pages; 0: as ours */
};

/**
 * kvs_engine_admit() - announce a room and ask for its memory
 * @ret: handle to poll
 *
 * In a group every rank admits the room, with the same values and a nonce. The
 * first one makes it, for the ranks that are attached then, which must be all;
 * each of the others gets a handle to the same room, whenever it comes. All
 * handles end in the same way. Each rank commits once; the room is DONE when
 * all have. Until then the death of a rank that has not committed, an abort by
 * any of them and a claim.timeout without a commit by each fail it for all.
 *
 * Refusals by the daemon arrive through kvs_engine_poll(). A prefill rank may
 * be told of the room at once: what it opens early waits, and only what is
 * opened has a claim to memory that others wait for. The last slots are for
 * health checks.
 * Return: 0; -EINVAL; -EAGAIN all slots in use or the socket is full;
 * -ECONNRESET daemon gone.
 */
int kvs_engine_admit(struct kvs_engine *e, const struct kvs_admit *a,
		     kvs_handle *ret);

/**
 * kvs_engine_poll() - a room's status; no system call
 *
 * In a group, each rank's own: READY until it commits, DONE when all ranks
 * have. The minimum over the ranks only grows, until it is DONE or FAILED
 * everywhere.
 * @h: handle; its generation is filled in once known
 * @ret_err: positive errno when FAILED; may be NULL
 */
enum kvs_status kvs_engine_poll(struct kvs_engine *e, kvs_handle *h,
				int *ret_err);
/* The same for many: fills @ret[n]. Return: number READY or beyond. */
size_t kvs_engine_poll_many(struct kvs_engine *e, kvs_handle *h, size_t n,
			    uint8_t *ret);

/**
 * kvs_engine_progress() - take what the daemon sent, advance own copies
 * Context: does not block. Call once a scheduling turn.
 * Return: events handled; -ECONNRESET daemon gone (committed work goes on
 * from the mapping, uncommitted rooms have failed).
 */
int kvs_engine_progress(struct kvs_engine *e);

/* A descriptor that is readable when the daemon sent a packet or is gone. The
 * end of a copy and a status word make no noise. */
int kvs_engine_fd(const struct kvs_engine *e);

/* Why a room failed: daemon's text, class 400 or 503, when to ask again. */
struct kvs_failure {
	int err; /* positive errno */
	unsigned int http_class; /* 400 never, 503 not now */
	char text[256];
	/* class 503: ask again after so many ms, as an estimate from what waits
	 * and from how fast memory comes back, whatever the device does; 0:
	 * time alone does not help */
	unsigned int retry_ms;
};
/* 0; -EAGAIN it has not failed; -ENOENT. */
int kvs_engine_failure(struct kvs_engine *e, const kvs_handle *h,
		       struct kvs_failure *ret);

/* A rank's aux block of a READY room, in the mapping; valid until the room
 * is committed or aborted. 0; -EAGAIN not READY; -ERANGE no such rank. */
int kvs_engine_aux(struct kvs_engine *e, const kvs_handle *h, uint32_t rank,
		   const void **ret, uint32_t *ret_len);

/**
 * struct kvs_commit - where a room goes on the device
 * @device: backend (kvs_device_open()), outlives the engine
 * @buffers: device base of each layer buffer of the attached layout
 * @pages: device page of each page of the request
 * @n_pages: must equal the request's pages
 * @items: for fixed-count buffers: device items, in layout order,
 *         concatenated; @n_items of them
 * @strides: bytes from page to page (or item to item) of each buffer, where
 *           they lie further apart than they are long: a pool that is page
 *           first; NULL: they do not
 */
struct kvs_commit {
	size_t size;
	struct kvs_device *device;
	void *const *buffers;
	const uint32_t *pages;
	uint32_t n_pages;
	const uint32_t *items;
	uint32_t n_items;
	const uint64_t *strides;
};

/**
 * struct kvs_registration - how much of the pools a device knows
 * @total: bytes of the pools
 * @settled: of these the device was asked about
 * @pinned: of these it reaches by itself; copies of the others go through
 *          memory of the driver's and are slower
 * @err: 0, or positive errno: why the first that is not pinned could not be
 * @over: no more of them will be asked about
 */
struct kvs_registration {
	uint64_t total;
	uint64_t settled;
	uint64_t pinned;
	int err;
	bool over;
};

/**
 * kvs_engine_register() - make the pools known to a device
 *
 * In the background, so that attaching is not held up: a driver takes up to a
 * tenth of a second for each GB. The first commit to a device does the same;
 * call this right after the attach to have it behind you by then. A room that
 * is committed before its memory is known waits for that memory only, which
 * comes next; what the device cannot pin is copied all the same.
 * @d: outlives the engine
 * Context: does not block. kvs_engine_detach() waits for the piece that is
 * under way (4 GiB at most) and undoes the others.
 * Return: 0, also where it was called before; -EINVAL; -ENOSPC too many
 * devices; -ENOMEM; -EAGAIN no thread can be had.
 */
int kvs_engine_register(struct kvs_engine *e, struct kvs_device *d);
/* How far that is: 0; -ENOENT it was not begun. Does not block. */
int kvs_engine_registration(struct kvs_engine *e, struct kvs_device *d,
			    struct kvs_registration *ret);

/**
 * kvs_engine_commit() - claim a READY room and copy it to the device
 *
 * Asynchronous: status COMMITTING, then DONE when the copies are complete.
 * Arrays are copied. Device pages belong to the copy until DONE or FAILED
 * with kvs_engine_copy_live() false.
 * Context: does not block. The first commit to a device begins to make the
 * pools known to it, see kvs_engine_register().
 * Return: 0; -EAGAIN not READY, or no thread can be had to register; -EINVAL;
 * -ECANCELED failed meanwhile; -EALREADY committed already; -ENOENT; -ENOSPC
 * too many devices; -ENOMEM.
 */
int kvs_engine_commit(struct kvs_engine *e, const kvs_handle *h,
		      const struct kvs_commit *c);
/**
 * kvs_engine_copied_layers() - how far the copy of a room is
 *
 * Layers are copied in order: all buffers of every layer below the returned
 * number are on the device, so a first decode step may begin with them while
 * the others are still copied. What it computes is of use only once the status
 * is DONE: until then the room may fail.
 * Context: no system call. Does not start the copy; kvs_engine_progress()
 * does.
 * Return: layer number, 0 none, the highest plus 1 all; -EAGAIN not committed;
 * -ECANCELED failed; -ENOENT.
 */
int kvs_engine_copied_layers(struct kvs_engine *e, const kvs_handle *h);
/* Is a copy into the device pages of this room still possible? */
bool kvs_engine_copy_live(struct kvs_engine *e, const kvs_handle *h);

/**
 * kvs_engine_abort() - give the room up, in any state
 *
 * Returns before the drain; idempotent. Host memory is the daemon's problem;
 * device pages are free once kvs_engine_copy_live() is false.
 * Return: 0; -EALREADY it had ended, or its copies had; -ENOENT.
 */
int kvs_engine_abort(struct kvs_engine *e, const kvs_handle *h);
/* Forget a handle that is DONE or FAILED and has no copy running: 0; -EBUSY it
 * is not so yet; -ENOENT. */
int kvs_engine_release(struct kvs_engine *e, const kvs_handle *h);

/**
 * kvs_should_stage() - stage this request, or receive into the device?
 * @use: device KV use now, 0..1
 * @threshold: 0.0 always stage, 1.0 never, between: stage when use >= it
 */
bool kvs_should_stage(double use, double threshold);

#pragma GCC visibility pop

#endif /* KVSTAGE_ENGINE_H */
