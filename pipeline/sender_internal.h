/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: sender, inside
 *
 * One thread owns everything here except what a comment gives to a lock.
 * Public calls check their arguments, put a mail into the queue and wake the
 * thread. The thread's turn: completions and frames (transport), mail,
 * deadlines, then every room marked dirty is settled once, then chunks are
 * cut while the window allows. Only settling ends, answers and frees rooms, so
 * no callback of the transport ever finds one gone under it.
 *
 *   sender.c          thread, mail, life of the sender
 *   sender_control.c  control connection: handshake, messages, keepalive
 *   sender_auth.c     showing that we know the key, and that they do
 *   sender_api.c      public calls on rooms, any thread
 *   sender_room.c     rooms in the thread: grant, failure, answers, end
 *   sender_data.c     data connections of each daemon worker, the window
 *   sender_gather.c   page lists to chunks
 *   sender_grant.c    where a one-sided rank writes to
 *   sender_past.c     rooms that are forgotten but may still be asked about
 *   sender_source.c   how the network gets at source pages
 *   sender_ring.c     host memory between a device and the network
 */
#ifndef KVS_PIPELINE_SENDER_INTERNAL_H
#define KVS_PIPELINE_SENDER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kvstage/sender.h"
#include "lib/list.h"
#include "lib/mpsc.h"
#include "lib/timer.h"
#include "pipeline/auth.h"
#include "pipeline/digest.h"
#include "pipeline/digest_map.h"
#include "pipeline/layout.h"
#include "pipeline/sender_ring.h"
#include "pipeline/wire.h"
#include "rdma/transport.h"

#define KVS_SENDER_MAGIC 0x52444e53u
#define KVS_SEND_ROOM_MAGIC 0x4d4f4f52u
#define KVS_SEND_BUCKETS 4096 /* of the table of rooms; power of two */
#define KVS_SEND_SLOTS_MAX KVS_PATHS_MAX /* data connections to one worker */
#define KVS_SEND_WORKERS_MAX 256 /* workers of one daemon */
#define KVS_SEND_CHUNKS_MAX 1024 /* outstanding, over all rooms */
#define KVS_SEND_IOV_MAX 16384 /* pieces of one chunk */
#define KVS_SEND_TEXT KVS_WIRE_TEXT
#define KVS_SEND_NOTE 256 /* bytes; what is said of the source */

/* ---- gather: one queued call, cut into chunks ---- */

enum kvs_gather_what {
	KVS_GATHER_PAGES, /* pages, of every paged buffer in range */
	KVS_GATHER_STATE, /* items of one fixed-count buffer */
	KVS_GATHER_AUX, /* bytes of this rank's aux block */
};

/* What was queued, and how far it has been cut. */
struct kvs_gather {
	enum kvs_gather_what what;
	uint32_t first; /* page of the request, or item of the run */
	uint32_t n; /* items; AUX: bytes */
	const uint32_t *items; /* source page or item of each */
	const unsigned char *data; /* AUX */
	uint32_t buffer; /* cursor: layer buffer; STATE: fixed */
	uint64_t at; /* cursor: bytes of it that are cut */
};

/* Where things go: from the layout and the grant. */
struct kvs_gather_map {
	const struct kvs_layout *layout;
	void *const *buffers;
	uint32_t rank;
	uint32_t extent_pages;
	uint32_t n_extents;
	struct kvs_slice slice;
	uint64_t chunk_max; /* bytes, not 0 */
	/* One-sided: the last bytes of an item stand for all of it (R9), so
	 * none is cut, even when it is longer than chunk_max. */
	bool whole;
};

/**
 * kvs_gather_next() - cut the next chunk
 * @g: cursor, advanced past the chunk
 * @map: checked by the caller: every item of @g lies inside
 * @iov: pieces, neighbours in memory merged
 * @cap: entries in @iov, not 0; a chunk that would need more is cut shorter
 * @ret_chunk: extent, kind, layer, offset, len are set
 * @ret_n: pieces used
 * Return: true, or false when nothing is left (nothing is written then).
 */
bool kvs_gather_next(struct kvs_gather *g, const struct kvs_gather_map *map,
		     struct iovec *iov, size_t cap,
		     struct kvs_msg_chunk *ret_chunk, size_t *ret_n);

/* ---- remote: where to write, on a one-sided transport ---- */

struct kvs_send_remote {
	/* of each extent, for one path after the other; NULL: not one-sided */
	struct kvs_grant_key *keys;
	uint32_t last; /* number of the last extent */
	uint32_t n_paths; /* 0: the keys are for any */
	uint16_t path[KVS_PATHS_MAX]; /* data connections, by slot */
	uint64_t paths; /* bit of each of them */
	struct kvs_grant_place *places; /* by buffer of this rank's layout */
	uint64_t aux_at; /* bytes, in the last extent */
};

static inline struct kvs_slice kvs_send_slice(const struct kvs_msg_grant *g)
{
	return (struct kvs_slice){
		.first_layer = g->first_layer,
		.n_layers = g->n_layers,
		.tp = g->tp ? g->tp : 1,
		.tp_rank = g->tp_rank,
	};
}

/* Of a GRANT; NULL, or what is wrong with it. Zeroed by the caller; fini() in
 * any case. */
const char *kvs_send_remote_init(struct kvs_send_remote *t,
				 const struct kvs_layout *l, bool one_sided,
				 const struct kvs_msg_grant *g);
void kvs_send_remote_fini(struct kvs_send_remote *t);
/* Of a chunk that goes over data connection @path. 0; -ERANGE: no such place,
 * or no key for that. */
int kvs_send_remote_key(const struct kvs_send_remote *t,
			const struct kvs_layout *l,
			const struct kvs_msg_chunk *m, uint32_t path,
			struct kvs_grant_key *ret);

/* ---- past: what an ABORT may still ask about ---- */

struct kvs_send_past {
	struct kvs_list *bucket; /* KVS_SEND_BUCKETS */
	struct kvs_list clean; /* oldest first */
	struct kvs_list poisoned;
	uint32_t n_clean;
	uint32_t n_poisoned;
	uint32_t max_clean;
	uint32_t max_poisoned;
	bool overflow; /* a poisoned room could not be kept */
};

int kvs_send_past_init(struct kvs_send_past *p, uint32_t max_clean,
		       uint32_t max_poisoned);
void kvs_send_past_fini(struct kvs_send_past *p);
/* @err: 0, or the positive errno that poisoned the room. Cannot fail: what
 * does not fit makes kvs_send_past_poison() answer for everything unknown. */
void kvs_send_past_add(struct kvs_send_past *p, uint64_t room,
		       uint64_t generation, int err);
bool kvs_send_past_known(const struct kvs_send_past *p, uint64_t room,
			 uint64_t generation);
/* Positive errno when the room must not be acknowledged, else 0. */
int kvs_send_past_poison(const struct kvs_send_past *p, uint64_t room,
			 uint64_t generation);

/* ---- mail: from any thread to the sender's ---- */

enum kvs_send_mail_type {
	KVS_SEND_MAIL_OPEN,
	KVS_SEND_MAIL_JOB,
	KVS_SEND_MAIL_FINISH,
	KVS_SEND_MAIL_ABORT,
	KVS_SEND_MAIL_CLOSE,
	KVS_SEND_MAIL_STOP,
};

struct kvs_send_mail {
	struct kvs_mpsc_node node;
	enum kvs_send_mail_type type;
	struct kvs_send_room *room;
};

/* One successful kvs_send_pages(), _state() or _aux(). */
struct kvs_send_job {
	struct kvs_send_mail mail;
	struct kvs_list node; /* room's queue; alone once it is all cut */
	struct kvs_gather g;
	void *cookie;
	uint32_t chunks; /* outstanding ones of this job */
	int status; /* first failure */
	uint32_t items[];
};

/* ---- rooms ---- */

enum kvs_send_state {
	/* Has no memory at the daemon. GRANT, REFUSE, ABORT or its time limit
	 * move it on. */
	KVS_SEND_OPENING,
	/* Chunks are cut and sent. Moves on when all of them completed after
	 * kvs_send_finish(). */
	KVS_SEND_GRANTED,
	/* LAST is sent; every byte was taken by the kernel. COMPLETE ends it. */
	KVS_SEND_LAST,
	/* Takes nothing more, owns what is outstanding; ends with that. */
	KVS_SEND_FAILED,
	/* done() was called; nothing outstanding. The caller's close frees. */
	KVS_SEND_DONE,
	KVS_SEND_STATE_MAX
};

struct kvs_send_room {
	uint32_t magic;
	struct kvs_sender *s;
	uint64_t id;
	uint64_t tokens;
	uint32_t pages;
	unsigned char nonce[16];
	void *user;

	/* given to the transport and not completed; written by the thread */
	_Atomic uint32_t outstanding;

	pthread_mutex_t lock; /* the next block; taken last of all locks */
	bool shut; /* failed: takes no more jobs */
	bool finishing; /* kvs_send_finish() was called */
	bool aborting; /* kvs_send_abort() was called */
	bool aux_queued;
	uint64_t posted; /* jobs */
	unsigned char *seen; /* bit of each page that was queued */
	uint32_t *items; /* of each buffer, queued; NULL until needed */
	int abort_err;
	char abort_text[KVS_SEND_TEXT];

	/* in the sender's table, under its lock */
	struct kvs_list hash_node;
	struct kvs_list all_node;
	bool live; /* not done(): its id is taken */

	/* the thread's */
	struct kvs_send_mail m_open;
	struct kvs_send_mail m_finish;
	struct kvs_send_mail m_abort;
	struct kvs_send_mail m_close;
	enum kvs_send_state state;
	uint64_t generation; /* 0: not known */
	uint64_t popped; /* jobs */
	struct kvs_list jobs;
	struct kvs_list dirty_node;
	struct kvs_list run_node; /* in its worker's list: has work to cut */
	struct kvs_send_worker *worker;
	uint64_t used; /* bit of each slot of the worker that carried bytes */
	struct kvs_send_slot *home; /* where all of it goes; NULL: not chosen */
	bool striped; /* it has none: over all slots */
	uint64_t bytes; /* completed */
	uint32_t staged; /* chunks in the bounce ring, not with the transport */
	uint64_t inflight; /* bytes outstanding or staged */
	uint64_t batch_max; /* most of them; not 0 */
	uint64_t call_timeout; /* ns */
	struct kvs_timer timer; /* next OPEN, or the time limit */
	uint64_t open_until; /* ns */
	uint64_t backoff; /* ns */
	uint32_t extent_pages;
	uint32_t n_extents;
	struct kvs_slice slice; /* what it is to send */
	uint32_t aux_len;
	struct kvs_send_remote remote;
	struct kvs_digest_map map; /* only with a digest */
	struct kvs_digest digest; /* of what was cut */
	bool finish; /* totals follow the last byte */
	bool complete; /* COMPLETE came */
	bool closed; /* the caller is through */
	bool opened; /* OPEN is out and not answered */
	int refused; /* positive errno of the last refusal */
	uint32_t aborts; /* ABORTs to answer */
	int poison; /* positive errno: must never acknowledge (R5) */
	int status; /* FAILED: what done() will say */
	char text[KVS_SEND_TEXT];
};

/* ---- data connections ---- */

enum kvs_send_slot_state {
	KVS_SEND_SLOT_IDLE,
	KVS_SEND_SLOT_CONNECTING, /* until opened() */
	KVS_SEND_SLOT_HELLO, /* until the daemon's HELLO */
	KVS_SEND_SLOT_READY,
	KVS_SEND_SLOT_CLOSING, /* was ready; takes nothing until closed() */
};

struct kvs_send_slot {
	struct kvs_send_worker *w;
	unsigned int index;
	enum kvs_send_slot_state state;
	struct kvs_conn *conn; /* NULL when idle */
	uint64_t inflight; /* bytes */
	struct kvs_list calls; /* chunks with the transport, in order */
	uint64_t call_at; /* ns; the first of them is at the head since then */
	uint64_t deadline; /* ns; of getting ready */
	uint64_t trouble; /* ns; since when it could not be had; 0: fine */
	struct kvs_auth_sender auth; /* until it is ready */
	int said; /* error the daemon gave before closing */
	char text[KVS_SEND_TEXT];
};

struct kvs_send_worker {
	struct kvs_list node;
	struct kvs_sender *s;
	uint32_t index;
	uint64_t inflight; /* bytes */
	struct kvs_list run; /* rooms with something to cut */
	struct kvs_list copied; /* chunks that a connection is to take */
	struct kvs_timer timer; /* next try, or a deadline of a slot */
	uint64_t retry_at; /* ns; no new connection before */
	uint64_t backoff; /* ns; 0: the last attempt worked */
	uint64_t trouble; /* ns; since when none could be had; 0: fine */
	unsigned int turn; /* tie break */
	struct kvs_send_slot slot[KVS_SEND_SLOTS_MAX];
};

/* A chunk in the transport's hands, or on its way there by the bounce ring. */
struct kvs_send_chunk {
	struct kvs_tx tx;
	struct kvs_list node; /* on slot->calls, or on worker->copied */
	struct kvs_send_room *room;
	struct kvs_send_job *job;
	struct kvs_send_slot *slot;
	struct kvs_send_piece *piece; /* NULL: sent from its source */
	struct kvs_msg_chunk m; /* where it goes */
	uint32_t len;
	struct iovec iov[]; /* without a piece */
};

/* ---- the sender ---- */

enum kvs_sender_state {
	KVS_SENDER_CONNECTING, /* the daemon may not be up yet: tries again */
	KVS_SENDER_HELLO, /* until the daemon's HELLO */
	KVS_SENDER_LAYOUT, /* until the daemon's LAYOUT */
	KVS_SENDER_UP,
	KVS_SENDER_GONE, /* never comes back */
};

struct kvs_sender {
	uint32_t magic;
	uint32_t rank;
	uint32_t n_ranks;
	char peer[KVS_PEER_NAME];
	char *daemon;
	char *key_file; /* NULL: none */
	struct kvs_addr addr;
	struct kvs_layout *layout;
	void **buffers;
	const struct kvs_send_ops *ops;
	unsigned int slots; /* data connections to a worker */
	uint64_t window; /* bytes */
	uint64_t chunk_max; /* bytes */
	uint64_t stripe_min; /* bytes */
	uint64_t connect_timeout; /* ns */
	uint64_t open_timeout; /* ns */
	uint64_t max_batch; /* bytes of a room; 0: the daemon's */
	uint64_t call_timeout; /* ns; 0: the daemon's */
	uint64_t instance;
	struct kvs_device *device; /* of the buffers; NULL: host memory */
	enum kvs_source source_wanted;
	enum kvs_source direct; /* what the transport can do; or AUTO */
	uint64_t bounce_bytes;

	const struct kvs_clock *clock;
	bool (*lose)(void *arg, const struct kvs_msg *m); /* or NULL */
	void *lose_arg;
	pthread_t thread;
	bool started;
	struct kvs_transport *t;
	struct kvs_mpsc mail;
	struct kvs_send_mail m_stop;

	pthread_mutex_t lock; /* the next block */
	pthread_cond_t cond; /* agreed or released changed */
	bool released; /* nobody wakes the thread any more */
	bool agreed; /* the handshake has ended, either way */
	int agreed_err;
	char agreed_text[512];
	enum kvs_source source; /* AUTO: not chosen yet */
	char source_note[KVS_SEND_NOTE];
	struct kvs_list *bucket; /* rooms by id */
	struct kvs_list all; /* rooms */
	_Atomic bool gone; /* control connection lost, or stopping */

	/* the thread's */
	enum kvs_sender_state state;
	bool stopping;
	struct kvs_timerq timers;
	struct kvs_conn *control;
	struct kvs_timer control_timer; /* connect again, or give up */
	uint64_t connect_until; /* ns */
	uint64_t backoff; /* ns */
	uint64_t session;
	struct kvs_auth_sender auth; /* of the control connection */
	struct kvs_auth_keys keys; /* of key_file, as last read */
	enum kvs_digest_kind digest; /* what the daemon wants of LAST */
	bool one_sided; /* both sides can */
	bool paths; /* its GRANTs name data connections */
	uint32_t at_once; /* workers to connect to before they grant */
	uint64_t keepalive; /* ns; 0: none */
	struct kvs_timer keepalive_timer;
	uint64_t keepalive_seq;
	uint64_t heard_at; /* ns; last frame from the daemon */
	bool heard; /* a frame since the control connection was opened */
	bool hung_up; /* the last one was closed before there was one */
	int lost_err; /* positive errno: why it went away */
	char lost_text[KVS_SEND_TEXT];
	struct kvs_list workers;
	unsigned int n_workers;
	unsigned int n_conns; /* data, not closed yet */
	struct kvs_list dirty; /* rooms to settle */
	uint64_t inflight; /* bytes */
	uint32_t chunks; /* outstanding or staged */
	struct kvs_send_ring ring; /* only of the source "bounce" */
	struct kvs_send_past past;
	struct kvs_wire_scratch scratch;
	struct iovec iov[KVS_SEND_IOV_MAX];
	_Alignas(8) unsigned char frame[KVS_FRAME_MAX];
};

/* sender.c */
static inline uint64_t kvs_sender_now(const struct kvs_sender *s)
{
	return kvs_clock_now(s->clock);
}

/* What kvs_sender_create() chooses and others (a simulation) are free in. */
struct kvs_sender_place {
	const struct kvs_clock *clock; /* NULL: real */
	struct kvs_transport *t; /* the sender's from here on */
	struct kvs_addr addr; /* of the daemon */
	/* How @t reads the buffers, which are registered with it; AUTO: not.
	 * And what was tried, in words. */
	enum kvs_source direct;
	char note[KVS_SEND_NOTE];
	/* Asked of every message on the control connection: true: it is lost.
	 * NULL: none is. */
	bool (*lose)(void *arg, const struct kvs_msg *m);
	void *lose_arg;
};

/**
 * kvs_sender_init() - a sender without a thread
 * @o: as for kvs_sender_create(); daemon and engine are names only
 * @p: taken over when 0 is returned
 *
 * kvs_sender_begin() starts to connect; then kvs_sender_turn() whenever
 * something may have happened. What is public for any thread is for this one
 * alone then, but kvs_sender_create(), kvs_sender_destroy() and callbacks.
 * Return: 0 or -errno with @err.
 */
int kvs_sender_init(const struct kvs_sender_opts *o,
		    const struct kvs_sender_place *p, struct kvs_sender **ret,
		    char *err, size_t errlen);
void kvs_sender_begin(struct kvs_sender *s);
/* Handle what is due; wait at most @wait ns for more. False: it has stopped,
 * and nothing but kvs_sender_fini() is left to do. */
bool kvs_sender_turn(struct kvs_sender *s, uint64_t wait);
/* ns of the next deadline, KVS_TIME_NEVER. Mail and the transport are not in
 * it. */
uint64_t kvs_sender_next(const struct kvs_sender *s);
/* Ask it to stop; turns go on until one says that it has. */
void kvs_sender_stop(struct kvs_sender *s);
/* Free it, stopped or not: the end of its process. */
void kvs_sender_fini(struct kvs_sender *s);
void kvs_sender_mail(struct kvs_sender *s, struct kvs_send_mail *m);
/* The handshake is over; wakes kvs_sender_create(). Only the first counts. */
void kvs_sender_agree(struct kvs_sender *s, int err, const char *text);

/* sender_control.c */
void kvs_sender_control_start(struct kvs_sender *s);
void kvs_sender_control_stop(struct kvs_sender *s);
/* Send on the control connection; a failure closes it. */
int kvs_sender_say(struct kvs_sender *s, const struct kvs_msg *m);
/* Encode and send on any connection. */
int kvs_sender_say_on(struct kvs_sender *s, struct kvs_conn *c,
		      const struct kvs_msg *m);
void kvs_sender_hello(struct kvs_sender *s, struct kvs_msg *ret,
		      unsigned int role, uint32_t worker, uint32_t path);

/* sender_auth.c */
/* Say HELLO on a new connection. 0 or -errno (the connection is closed). */
int kvs_sender_greet(struct kvs_sender *s, struct kvs_conn *c,
		     struct kvs_auth_sender *a, unsigned int role,
		     uint32_t worker, uint32_t path);
/* A message of the handshake: 1: HELLO, to be believed; 0: wait for more;
 * -errno with @ret_why. */
int kvs_sender_greeted(struct kvs_sender *s, struct kvs_conn *c,
		       struct kvs_auth_sender *a, const struct kvs_msg *m,
		       const char **ret_why);

/* sender_room.c */
struct kvs_send_room *kvs_send_room_find(struct kvs_sender *s, uint64_t id,
					 uint64_t generation);
struct kvs_send_room *kvs_send_room_find_live(struct kvs_sender *s,
					      uint64_t id);
/* Into the table, any thread; -EEXIST, -ECONNRESET. */
int kvs_send_room_insert(struct kvs_send_room *r);
/* Memory of a room that is in no list. */
void kvs_send_room_free(struct kvs_send_room *r);
void kvs_send_room_dirty(struct kvs_send_room *r);
/* Fail; the daemon is told when @tell. @err positive. Harmless when over. */
void kvs_send_room_fail(struct kvs_send_room *r, int err, const char *text,
			bool tell);
/* Fail, and never acknowledge. */
void kvs_send_room_poison(struct kvs_send_room *r, int err, const char *text);
void kvs_send_room_fail_all(struct kvs_sender *s, int err, const char *text,
			    bool tell);
void kvs_send_room_mail(struct kvs_send_mail *m);
void kvs_send_room_open_due(struct kvs_timer *t);
void kvs_send_room_granted(struct kvs_sender *s, const struct kvs_msg_grant *g);
void kvs_send_room_refused(struct kvs_sender *s,
			   const struct kvs_msg_refuse *m);
int kvs_send_room_completed(struct kvs_sender *s,
			    const struct kvs_msg_complete *m);
void kvs_send_room_aborted(struct kvs_sender *s, const struct kvs_msg_abort *m);
/* A chunk of the job left the transport (or never got there). */
void kvs_send_job_put(struct kvs_send_room *r, struct kvs_send_job *j);
/* Settle everything dirty. */
void kvs_send_room_settle_all(struct kvs_sender *s);

/* sender_data.c */
/* Find or make; NULL: too many, or no memory. */
struct kvs_send_worker *kvs_send_worker_get(struct kvs_sender *s,
					    uint32_t index);
/* The room has something to cut. Harmless when it waits for its turn, or for
 * a completion because all it may launch is outstanding. */
void kvs_send_worker_run(struct kvs_send_worker *w, struct kvs_send_room *r);
/* Of a room that failed: chunks that no connection took. */
void kvs_send_worker_drop(struct kvs_send_worker *w, struct kvs_send_room *r);
/* A copy to the ring is over; the ring's. */
void kvs_send_chunk_copied(struct kvs_send_piece *p, int status);
/* Cut and send while the window allows. */
void kvs_sender_pump(struct kvs_sender *s);
/* Close every data connection. */
void kvs_sender_data_close(struct kvs_sender *s, int err, bool flush);
void kvs_sender_data_free(struct kvs_sender *s);
/* Of a sender that did not stop: chunks on their way through the ring. */
void kvs_sender_staged_drop(struct kvs_sender *s);

/* sender_source.c */
/* Do device, source and ring of @o go together? 0; -EINVAL with @err. */
int kvs_sender_source_check(const struct kvs_sender_opts *o, char *err,
			    size_t errlen);
/* Before its transport runs: can that read what @o has? For struct
 * kvs_sender_place. 0; -EOPNOTSUPP @o asks for it and it cannot, with @err. */
int kvs_sender_source_probe(const struct kvs_sender_opts *o,
			    struct kvs_sender_place *p, char *err,
			    size_t errlen);
void kvs_sender_source_copy_opts(struct kvs_sender *s,
				 const struct kvs_sender_opts *o);
/* What the data goes over is agreed: choose. 0 or -errno with @err. */
int kvs_sender_source_begin(struct kvs_sender *s, char *err, size_t errlen);
void kvs_sender_source_end(struct kvs_sender *s);
static inline bool kvs_sender_has_device(const struct kvs_sender_opts *o)
{
	return o->size >= sizeof(*o) && o->device;
}
/* Are pages copied to the ring first? */
static inline bool kvs_send_bounces(const struct kvs_sender *s)
{
	return s->ring.mem;
}

#endif /* KVS_PIPELINE_SENDER_INTERNAL_H */
