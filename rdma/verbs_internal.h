/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: verbs_internal
 *
 * Theory of operation. The transport is a TCP transport with more: every
 * connection is one of the inner transport, and control connections and
 * listeners are nothing else. A data connection (struct kvs_verbs_conn) wraps
 * the inner connection it began as. kvs_conn_set_owner() on an adopted one
 * offers a queue pair to the other side; when both have theirs, frames and
 * one-sided writes go there, and the TCP connection stays for its end: the
 * fast sign of a dead process, and the carrier of FIN.
 *
 *   TCP ------------------------------------------------> (inner closes)
 *    |  set_owner()                 ANSWER came
 *    +------------> OFFERED ------------------> LINKING --+
 *    |  OFFER came                                        v
 *    +------------> ANSWERING -- first message comes --> UP -> FLUSHING
 *                        \__________________\____________\_______|
 *                                                                v
 *    freed <- closed() <- queue pair destroyed <- drained <- ERR (DYING)
 *
 * Calls that may block (making, connecting, destroying queue pairs; memory
 * registration) run on two side threads, one for queue pairs and one for
 * memory, as jobs; their results are handled in poll. An object with a job
 * under way belongs to the side thread, as far as the job's comment says.
 *
 * Each queue pair has a completion queue of its own, which therefore cannot
 * overflow; all of a device share a completion channel, watched by the inner
 * transport. Work requests are numbered; a completion ends all before it.
 */
#ifndef KVS_RDMA_VERBS_INTERNAL_H
#define KVS_RDMA_VERBS_INTERNAL_H

#include <infiniband/verbs.h>
#include <pthread.h>

#include "rdma/transport_internal.h"
#include "rdma/verbs.h"
#include "rdma/verbs_provider.h"
#include "rdma/verbs_wire.h"

#define KVS_VERBS_SLOTS 64u /* receives that credits are given for, at most */
#define KVS_VERBS_SPARE 4u /* more, for messages that carry credits only */
#define KVS_VERBS_RECVS_MIN 32u /* of both */
#define KVS_VERBS_MSG 1024u /* bytes of a message, header included */
#define KVS_VERBS_SENDS 32u /* messages under way */
#define KVS_VERBS_SQ 256u /* work requests of a queue pair */
#define KVS_VERBS_SQ_MIN 32u
#define KVS_VERBS_SGE 30u
#define KVS_VERBS_WR_MAX (1u << 20) /* bytes of one work request */
#define KVS_VERBS_STAGE (1u << 20) /* bytes; of sources not registered */
#define KVS_VERBS_STAGE_PIECE (256u << 10)
#define KVS_VERBS_UP_NS (10 * KVS_NSEC_PER_SEC) /* offer to up */
#define KVS_VERBS_FLUSH_NS KVS_NSEC_PER_SEC
#define KVS_VERBS_DRAIN_NS (2 * KVS_NSEC_PER_SEC) /* ERR to all flushed */

/* In a request's number: a receive, of the slot in the low bits. */
#define KVS_VERBS_WR_RECV (1ull << 63)

struct kvs_verbs;
struct kvs_verbs_conn;

/* ---- jobs: blocking calls on a side thread ---- */

struct kvs_verbs_job {
	struct kvs_list node;
	void (*run)(struct kvs_verbs_job *j); /* side thread */
	void (*done)(struct kvs_verbs_job *j); /* from poll; may free */
};

struct kvs_verbs_side {
	struct kvs_verbs *vt;
	pthread_t thread;
	bool started;
	pthread_cond_t cond;
	struct kvs_list todo; /* vt->lock */
};

enum kvs_verbs_side_id {
	KVS_VERBS_SIDE_QP,
	KVS_VERBS_SIDE_MEM,
	KVS_VERBS_SIDES,
};

void kvs_verbs_sides_init(struct kvs_verbs *vt);
/* Nothing may be queued any more. */
void kvs_verbs_sides_fini(struct kvs_verbs *vt);
/* Without a thread it is run at once; done() comes from poll in any case. */
void kvs_verbs_submit(struct kvs_verbs *vt, enum kvs_verbs_side_id side,
		      struct kvs_verbs_job *j);
/* Run what has finished. Return: how many. */
unsigned int kvs_verbs_jobs_done(struct kvs_verbs *vt);

/* ---- devices ---- */

struct kvs_verbs_dev {
	struct kvs_verbs *vt;
	unsigned int index;
	struct ibv_context *ctx;
	const struct kvs_verbs_provider *prov;
	struct ibv_device_attr attr;
	char name[64];
	uint8_t port;
	struct ibv_port_attr pattr;
	enum kvs_verbs_link link;
	int gid_index;
	union ibv_gid gid;
	enum ibv_mtu mtu;
	int numa; /* -1: not known */
	uint64_t max_mr; /* bytes of a registration; whole pages */
	uint32_t max_sge;
	uint32_t max_wr; /* bytes of one work request */
	uint32_t sq; /* work requests */
	uint32_t recvs; /* receives posted */
	enum kvs_verbs_grant_kind grant;
	char note[160]; /* of the choice and the trial */
	struct ibv_pd *pd; /* of queue pairs without an owner */
	struct ibv_comp_channel *chan;
	struct kvs_watch *chan_watch;
	struct kvs_watch *async_watch;
	bool used; /* memory is registered with it */
	bool down; /* its port */
	bool dead; /* itself */
	uint32_t n_conns;
	struct kvs_list windows; /* invalid ones, to be bound again */
};

/* Receives that credits are given for. */
static inline uint32_t kvs_verbs_slots(const struct kvs_verbs_dev *d)
{
	return d->recvs - KVS_VERBS_SPARE;
}

/* Opens what vt->o asks for. Return: 0; -ENODEV none; others; @err. */
int kvs_verbs_devs_open(struct kvs_verbs *vt, char *err, size_t errlen);
void kvs_verbs_devs_close(struct kvs_verbs *vt);
/* verbs_choose.c: which kinds there are, before any is tried. */
void kvs_verbs_kinds(const struct kvs_verbs_dev *d,
		     struct kvs_verbs_info *info);
/* The one that @d gets, by name and by trial; told in @info. Return: 0;
 * -errno: it cannot be used, info->note says why. */
int kvs_verbs_choose_grant(const struct kvs_verbs *vt, struct kvs_verbs_dev *d,
			   struct kvs_verbs_info *info);
/* verbs_trial.c: does it do what grants of that kind need?
 * Return: 0; -errno, with the reason. */
int kvs_verbs_trial(struct kvs_verbs_dev *d, enum kvs_verbs_grant_kind kind,
		    char *why, size_t len);
/* What that is, for people. */
const char *kvs_verbs_trial_text(enum kvs_verbs_grant_kind kind);
/* Are grants of memory that is registered once, and for all owners? */
static inline bool kvs_verbs_dev_shares(const struct kvs_verbs_dev *d)
{
	return d->grant == KVS_VERBS_GRANT_WINDOW ||
	       d->grant == KVS_VERBS_GRANT_QP;
}
/* That of kvs_conn::rail; NULL: any, as it does not work or was not named. */
struct kvs_verbs_dev *kvs_verbs_dev_rail(struct kvs_verbs *vt,
					 unsigned int rail);
/* The next one for a new owner; NULL: none works. */
struct kvs_verbs_dev *kvs_verbs_dev_next(struct kvs_verbs *vt);
/**
 * kvs_verbs_dev_match() - the device and address that reach the other side
 * @b: its end
 * @ret_gid_index: of ours
 * @ret_gid: likewise
 * Return: NULL when none is on that kind of network.
 */
struct kvs_verbs_dev *kvs_verbs_dev_match(struct kvs_verbs *vt,
					  const struct kvs_verbs_blob *b,
					  int *ret_gid_index,
					  union ibv_gid *ret_gid);

/* ---- owners: whose writes reach what ---- */

/*
 * A protection domain of its own for each: a key of another owner is refused
 * by the hardware. With windows they share one, where the pool is registered:
 * a window's key is refused on any queue pair but its own. So they do with
 * branches.
 */
struct kvs_verbs_owner {
	struct kvs_list node;
	struct kvs_verbs *vt;
	uint64_t owner;
	struct kvs_verbs_dev *dev;
	struct ibv_pd *pd;
	unsigned int refs;
	unsigned int conns; /* alive: closed() was not called */
	bool spent; /* a registration of it is stuck: nobody new joins */
};

/* @dev: NULL: the one it has, or any. Return: 0; -ENODEV; -ENOMEM, or what
 * ibv_alloc_pd() said. */
int kvs_verbs_owner_get(struct kvs_verbs *vt, uint64_t owner,
			struct kvs_verbs_dev *dev,
			struct kvs_verbs_owner **ret);
void kvs_verbs_owner_put(struct kvs_verbs_owner *own);

/* ---- memory ---- */

struct kvs_verbs_mem {
	struct kvs_mem m; /* first; of several pieces the last is the handle */
	struct kvs_verbs_mem *before; /* the piece before it */
	char *addr;
	uint64_t len;
	struct ibv_mr **mr; /* by device; NULL: not registered there */
};

int kvs_verbs_register(struct kvs_transport *t, void *addr, uint64_t len,
		       struct kvs_mem **ret, char *err, size_t errlen);
int kvs_verbs_register_at(struct kvs_transport *t, const struct kvs_mem_at *at,
			  struct kvs_mem **ret, char *err, size_t errlen);
int kvs_verbs_try_at(struct kvs_transport *t, const struct kvs_mem_at *at,
		     const void *bytes, char *err, size_t errlen);
/* For sending only. NULL: errno. */
struct ibv_mr *kvs_verbs_reg_at(struct ibv_pd *pd, const struct kvs_mem_at *at);
/* verbs_trial.c: does @d read from there what @bytes are? 0; -errno, with the
 * reason. */
int kvs_verbs_trial_at(struct kvs_verbs_dev *d, const struct kvs_mem_at *at,
		       const void *bytes, char *why, size_t len);
void kvs_verbs_unregister(struct kvs_mem *m);
/* Register everything with @dev, the first time it is used. Side thread. */
int kvs_verbs_mem_use(struct kvs_verbs_dev *dev);
/* The registration that holds [@addr, @addr + @len) for a prefix of it.
 * Return: its key's bytes from @addr on, or 0. */
uint64_t kvs_verbs_mem_find(struct kvs_verbs *vt,
			    const struct kvs_verbs_dev *dev, const void *addr,
			    uint64_t len, struct ibv_mr **ret);
void kvs_verbs_mem_free_all(struct kvs_verbs *vt);

/* ---- connections ---- */

enum kvs_verbs_state {
	KVS_VERBS_TCP, /* all goes over the inner one */
	KVS_VERBS_OFFERED, /* adopted: has, or is making, its queue pair */
	KVS_VERBS_LINKING, /* adopted: a job takes it to RTS */
	KVS_VERBS_ANSWERING, /* connected: until the first message */
	KVS_VERBS_UP,
	KVS_VERBS_FLUSHING, /* closing: the queue goes out; 1 s */
	KVS_VERBS_DYING,
};

enum kvs_verbs_end {
	KVS_VERBS_END_NONE,
	KVS_VERBS_END_ERR, /* job: to ERR */
	KVS_VERBS_END_DRAIN, /* until all was flushed and @settle is over */
	KVS_VERBS_END_STUCK, /* could not be; tried again at @deadline */
	KVS_VERBS_END_DESTROY, /* job: destroyed */
	KVS_VERBS_END_GONE,
};

enum kvs_verbs_op_type {
	KVS_VERBS_OP_FRAME, /* @data */
	KVS_VERBS_OP_TX,
	KVS_VERBS_OP_READ,
	KVS_VERBS_OP_BIND, /* the windows of @vg */
	KVS_VERBS_OP_INV,
};

/* Something queued, in order. */
struct kvs_verbs_op {
	struct kvs_list node; /* vc->ops, then vc->flying */
	bool refused; /* its branch is no more: fails when it is its turn */
	enum kvs_verbs_op_type type;
	struct kvs_tx *tx; /* OP_TX; OP_FRAME: whose frame it is, or NULL */
	struct kvs_read *rd;
	struct kvs_verbs_grant *vg;
	struct ibv_mr *mr; /* OP_READ: of its own */
	uint64_t at; /* bytes posted of the payload, or windows */
	uint64_t len; /* bytes of the payload, or windows */
	size_t piece; /* cursor in tx->iov */
	uint64_t piece_off;
	uint32_t frame_at; /* bytes posted of the frame */
	uint32_t frame_len;
	uint64_t last; /* number of its last work request */
	_Alignas(8) unsigned char data[];
};

/* What a work request gives back when it completes. */
struct kvs_verbs_wr {
	uint32_t stage; /* bytes */
	bool msg; /* a send buffer */
};

struct kvs_verbs_conn {
	struct kvs_conn c; /* first */
	struct kvs_list node; /* vt->conns */
	struct kvs_list pend; /* vt->pend */
	struct kvs_list active; /* vt->active: its completions are polled */
	struct kvs_list timed; /* vt->timed: it has a deadline */
	struct kvs_conn *inner; /* NULL: gone, or let go */
	enum kvs_verbs_state state;
	enum kvs_verbs_end end;
	bool adopted;
	bool in_frame; /* inside frame() of the inner one */
	bool detached;
	bool eof; /* the TCP connection ended */
	bool flushed; /* closing, and all that was queued went out */
	bool fin; /* FIN came: */
	int fin_err;
	uint64_t fin_sent;
	int err; /* for closed() */
	bool err_weak; /* a completion may say better */
	uint64_t deadline; /* ns */
	uint64_t err_at; /* ns; in ERR since */
	unsigned int tries; /* to destroy it, that failed */
	bool given_up; /* it goes with its device */

	/* of a connection: the queue pairs of its grants. Of such a one: */
	struct kvs_list branches;
	uint32_t last_branch; /* number */
	struct kvs_verbs_conn *parent; /* NULL: none */
	struct kvs_list sibling;
	uint32_t number; /* 0: none */
	int access; /* what it lets in */
	bool expected; /* its end is no failure of the connection */

	struct kvs_verbs_job job;
	bool job_busy;
	int job_rc;

	/* job MAKE fills these, job DESTROY takes them back */
	struct kvs_verbs_dev *dev;
	struct kvs_verbs_owner *own; /* NULL: none */
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr; /* of buf */
	unsigned char *buf; /* receives, then sends */
	int gid_index;
	union ibv_gid gid;
	uint32_t psn;
	uint32_t max_sge;
	struct kvs_verbs_blob far;
	bool armed; /* the channel will tell of the next completion */

	/* receiving */
	uint32_t owed; /* credits */
	uint32_t recvs; /* posted */
	uint64_t msgs_in;
	unsigned char *part; /* of a frame in pieces */
	uint32_t part_have;
	uint32_t part_len;

	/* sending */
	struct kvs_list ops; /* not, or partly, posted */
	struct kvs_list flying; /* posted */
	size_t ops_bytes; /* of frames in both */
	uint32_t credits;
	uint32_t msg_max; /* bytes, header included */
	uint64_t msgs_out; /* completed without error */
	uint32_t sends; /* send buffers in use */
	uint32_t send_next;
	uint64_t posted; /* work requests */
	uint64_t completed;
	uint32_t since_signal;
	struct kvs_verbs_wr *sq; /* dev->sq of them */
	int send_err; /* first failed completion */
	unsigned char *stage;
	struct ibv_mr *stage_mr;
	uint64_t stage_head; /* bytes ever taken */
	uint64_t stage_tail; /* bytes ever given back */

	/* windows */
	struct kvs_list grants; /* bound, or being bound, here */
	struct kvs_list windows; /* that were bound here and are not invalid */
};

/* ---- grants ---- */

struct kvs_verbs_window {
	struct kvs_list node; /* vc->windows, or dev->windows */
	struct ibv_mw *mw;
	struct ibv_mr *mr;
	uint32_t rkey;
	unsigned int binds;
};

struct kvs_verbs_grant {
	struct kvs_grant g; /* first */
	struct kvs_list node; /* vt->grants */
	struct kvs_verbs_owner *own;
	/* "mr"; jobs fill and clear it */
	struct ibv_mr **mr;
	struct kvs_verbs_job job;
	bool job_busy;
	int job_rc;
	uint64_t worst; /* ns of the longest call of the job */
	/* "qp": @vc is its branch; what is below, but for @window, as well */
	bool by_branch;
	/* where it is to go, while it waits for that; NULL: anywhere */
	struct kvs_verbs_conn *want;
	/* "window"; theirs are gone once @vc is */
	struct kvs_verbs_window **window;
	struct kvs_list wait; /* vt->waiting, vt->answers */
	struct kvs_list on_conn; /* vc->grants */
	struct kvs_verbs_conn *vc; /* NULL: none yet, or none any more */
	bool invalidated; /* LOCAL_INV was posted */
	bool closing;
	int answer; /* on vt->answers */
};

static inline int kvs_verbs_grant_access(const struct kvs_grant *g)
{
	return g->ops->write_only
		       ? IBV_ACCESS_REMOTE_WRITE
		       : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
}

static inline struct kvs_verbs_grant *kvs_verbs_grant_of(struct kvs_grant *g)
{
	return kvs_container_of(g, struct kvs_verbs_grant, g);
}

int kvs_verbs_grant_open(struct kvs_grant *g);
void kvs_verbs_grant_close(struct kvs_grant *g);
void kvs_verbs_grant_cancel(struct kvs_grant *g);
bool kvs_verbs_owner_alive(struct kvs_verbs *vt, uint64_t owner);
/* Answers that are due, from poll. */
void kvs_verbs_grants_answer(struct kvs_verbs *vt);

/* From poll, once: what could not begin, or ended before it did. */
void kvs_verbs_grant_answer(struct kvs_verbs_grant *vg, int status);
/* Where @vg goes; NULL: not yet. */
struct kvs_verbs_conn *kvs_verbs_grant_conn(const struct kvs_verbs_grant *vg);

/* verbs_branch.c */
int kvs_verbs_branch_open(struct kvs_verbs_grant *vg);
void kvs_verbs_branch_begin(struct kvs_verbs_grant *vg,
			    struct kvs_verbs_conn *parent);
void kvs_verbs_branch_close(struct kvs_verbs_grant *vg);
struct kvs_verbs_conn *kvs_verbs_branch_find(const struct kvs_verbs_conn *vc,
					     uint32_t number);
/* What the other side says of one. Return: 0; -errno: @vc dies of it. */
int kvs_verbs_branch_blob(struct kvs_verbs_conn *vc,
			  const struct kvs_verbs_blob *b);
/* Is about to die, of @err. */
void kvs_verbs_branch_dies(struct kvs_verbs_conn *b, int err, bool weak);
/* Both sides have it. */
void kvs_verbs_branch_up(struct kvs_verbs_conn *b);
/* Handle what has come on all of them. */
void kvs_verbs_branches_drain(struct kvs_verbs_conn *parent);
bool kvs_verbs_branches_idle(const struct kvs_verbs_conn *parent);
/* End them. Return: true when none is left but those that go with the device. */
bool kvs_verbs_branches_end(struct kvs_verbs_conn *parent);
/* The connection that the upper layer knows. */
static inline struct kvs_verbs_conn *kvs_verbs_face(struct kvs_verbs_conn *vc)
{
	return vc->parent ? vc->parent : vc;
}

/* verbs_window.c */
int kvs_verbs_window_open(struct kvs_verbs_grant *vg);
void kvs_verbs_window_close(struct kvs_verbs_grant *vg);
/* Fill the next request of an OP_BIND or OP_INV. */
void kvs_verbs_window_wr(struct kvs_verbs_conn *vc, struct kvs_verbs_op *op,
			 struct ibv_send_wr *wr);
/* These operations are over; either may free @vg. */
void kvs_verbs_window_bound(struct kvs_verbs_grant *vg, int status);
void kvs_verbs_window_invalidated(struct kvs_verbs_grant *vg, int status);
void kvs_verbs_windows_conn_up(struct kvs_verbs_conn *vc);
/* It will not be up: those that wait for it do not open. */
void kvs_verbs_windows_conn_never(struct kvs_verbs_conn *vc, int err);
/* Its queue pair cannot be destroyed: those that are closing say so. */
void kvs_verbs_windows_conn_stuck(struct kvs_verbs_conn *vc);
/* Grants of a connection that is gone. @err: for those that were opening. */
void kvs_verbs_windows_conn_gone(struct kvs_list *grants, int err);
/* Deallocate all that are bound on it. Job. Return: 0 or the first error. */
int kvs_verbs_windows_drop(struct kvs_verbs_conn *vc);
void kvs_verbs_windows_fini(struct kvs_verbs_dev *d);

/* The transport ends, its connections did: what can be taken back is. Then
 * its devices are closed, and then the answers are given. */
void kvs_verbs_grants_dereg(struct kvs_verbs *vt);
void kvs_verbs_grants_end(struct kvs_verbs *vt);

/* ---- the transport ---- */

struct kvs_verbs {
	struct kvs_transport t; /* first */
	struct kvs_transport_ops ops; /* the same for all, but for the name */
	char name[32];
	struct kvs_transport *inner;
	struct kvs_verbs_opts o; /* strings are owned */
	struct kvs_verbs_dev *dev;
	unsigned int n_dev;
	unsigned int next_dev;
	struct kvs_verbs_info *info; /* of every device there is */
	unsigned int n_info;
	struct kvs_list conns;
	struct kvs_list pend;
	struct kvs_list active;
	struct kvs_list timed;
	struct kvs_list owners;
	struct kvs_list grants;
	struct kvs_list waiting; /* grants, for a connection */
	struct kvs_list answers; /* grants, that poll answers */
	struct kvs_verbs_mem **mem; /* by address */
	size_t n_mem;
	size_t cap_mem;
	pthread_mutex_t mem_lock; /* mem, mr of each; taken alone */
	struct kvs_verbs_side side[KVS_VERBS_SIDES];
	pthread_mutex_t lock; /* todo, done, stop */
	struct kvs_list done;
	bool stop;
	unsigned int jobs; /* under way; poll's thread */
	uint64_t heard; /* ns; last completion */
	unsigned int handled;
	bool closing;
	struct kvs_verbs_counts counts;
};

static inline struct kvs_verbs *kvs_verbs_of(const struct kvs_transport *t)
{
	return kvs_container_of(t, struct kvs_verbs, t);
}

static inline struct kvs_verbs_conn *kvs_verbs_conn_of(struct kvs_conn *c)
{
	return kvs_container_of(c, struct kvs_verbs_conn, c);
}

static inline uint64_t kvs_verbs_now(const struct kvs_verbs *vt)
{
	return kvs_clock_now(vt->t.clock);
}

/* verbs_conn.c: the connection's life and its TCP side */
int kvs_verbs_connect(struct kvs_transport *t, const struct kvs_addr *addr,
		      enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		      void *user, struct kvs_conn **ret);
int kvs_verbs_adopt(struct kvs_transport *t, int fd, enum kvs_conn_kind kind,
		    const struct kvs_conn_ops *ops, void *user,
		    struct kvs_conn **ret);
int kvs_verbs_detach(struct kvs_conn *c);
void kvs_verbs_set_owner(struct kvs_conn *c, uint64_t owner);
void kvs_verbs_stop_payload(struct kvs_conn *c);
void kvs_verbs_close(struct kvs_conn *c, int err, bool flush);
struct kvs_verbs_conn *kvs_verbs_conn_new(struct kvs_verbs *vt,
					  const struct kvs_conn_ops *ops,
					  void *user);
/* Begin to make a queue pair on @dev (NULL: any), and tell the other side. */
void kvs_verbs_conn_offer(struct kvs_verbs_conn *vc, struct kvs_verbs_dev *dev);
/* The other half. Return: 0; -errno: nothing was begun. */
int kvs_verbs_conn_answer(struct kvs_verbs_conn *vc, struct kvs_verbs_dev *dev,
			  const struct kvs_verbs_blob *offer);
/* Its other half came. Return: 0; -EPROTO. */
int kvs_verbs_conn_answered(struct kvs_verbs_conn *vc,
			    const struct kvs_verbs_blob *b);
/* The errno of the other side, as it is for this one. */
int kvs_verbs_their_err(int err);
void kvs_verbs_pend(struct kvs_verbs_conn *vc);
void kvs_verbs_conn_until(struct kvs_verbs_conn *vc, uint64_t deadline);
void kvs_verbs_die(struct kvs_verbs_conn *vc, int err, bool weak);
/* The first message came: the other side is ready. */
void kvs_verbs_conn_up(struct kvs_verbs_conn *vc);
/* The next step of each pending connection; may free it. */
void kvs_verbs_run_pending(struct kvs_verbs *vt);
/* The transport ends: those that cannot be destroyed let go of their devices,
 * and end when these are closed. */
void kvs_verbs_conns_let_go(struct kvs_verbs *vt);
void kvs_verbs_conns_end(struct kvs_verbs *vt);
void kvs_verbs_run_deadlines(struct kvs_verbs *vt, uint64_t now);
uint64_t kvs_verbs_next_deadline(const struct kvs_verbs *vt);

/* verbs_qp.c: the queue pair. These block: for jobs. */
int kvs_verbs_qp_make(struct kvs_verbs_conn *vc);
int kvs_verbs_qp_link(struct kvs_verbs_conn *vc);
int kvs_verbs_qp_err(struct kvs_verbs_conn *vc);
int kvs_verbs_qp_destroy(struct kvs_verbs_conn *vc);
/* Only its memory: when nothing can reach that any more. */
void kvs_verbs_qp_free(struct kvs_verbs_conn *vc);
/* Our end, as a blob. */
void kvs_verbs_qp_blob(const struct kvs_verbs_conn *vc,
		       enum kvs_verbs_what what, struct kvs_verbs_blob *ret);
int kvs_verbs_post_recv(struct kvs_verbs_conn *vc, uint32_t slot);
/* All that was posted came back. */
bool kvs_verbs_qp_drained(const struct kvs_verbs_conn *vc);

/* verbs_cq.c: completions */
/* Handle what is there. Return: how many. */
unsigned int kvs_verbs_drain(struct kvs_verbs_conn *vc);
void kvs_verbs_activate(struct kvs_verbs_conn *vc);
/* One round over all active ones. Return: completions. */
unsigned int kvs_verbs_run_active(struct kvs_verbs *vt);
/* Arm them all, and drop those that are silent. Return: completions. */
unsigned int kvs_verbs_arm_active(struct kvs_verbs *vt);

/* verbs_send.c: frames, writes, reads */
int kvs_verbs_send(struct kvs_conn *c, const struct kvs_frame *f, size_t len);
int kvs_verbs_write(struct kvs_conn *c, struct kvs_tx *tx);
int kvs_verbs_read(struct kvs_conn *c, struct kvs_read *rd);
/* At the end of the queue; NULL: no memory. */
struct kvs_verbs_op *kvs_verbs_op_new(struct kvs_verbs_conn *vc,
				      enum kvs_verbs_op_type type);
/* End those of grants, while their windows are there. */
void kvs_verbs_fail_grant_ops(struct kvs_verbs_conn *vc, int status);
/* Post what the queues and the credits allow. */
void kvs_verbs_pump(struct kvs_verbs_conn *vc);
/* The first message: this side is linked. Return: 0; -errno, and it dies. */
int kvs_verbs_say_ready(struct kvs_verbs_conn *vc);
/* In ERR: what was executed without a signal is not flushed, and this, which
 * is, ends it. */
void kvs_verbs_mark(struct kvs_verbs_conn *vc);
/* Work requests up to @seq completed with @status. */
void kvs_verbs_sent(struct kvs_verbs_conn *vc, uint64_t seq, int status);
/* Everything that is queued ends with @status. */
void kvs_verbs_fail_ops(struct kvs_verbs_conn *vc, int status);

#endif /* KVS_RDMA_VERBS_INTERNAL_H */
