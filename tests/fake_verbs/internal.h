/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: internal
 *
 * Objects of the double. All of it is under one lock, fv_w.lock; functions
 * here want it held, and are named fv_..._locked only where one without
 * exists. Objects embed what libibverbs shows of them first.
 */
#ifndef KVS_TESTS_FAKE_VERBS_INTERNAL_H
#define KVS_TESTS_FAKE_VERBS_INTERNAL_H

#include <pthread.h>

#include "lib/list.h"
#include "tests/fake_verbs/fake_verbs.h"

#define FV_SGE_MAX 64

struct fv_port {
	bool down;
	uint16_t lid;
};

struct fv_gid_at {
	union ibv_gid gid;
	enum ibv_gid_type type;
	unsigned int port;
	unsigned int index;
};

struct fv_key {
	bool used;
	uint8_t tag;
	struct fv_mr *mr; /* or a window's */
	struct fv_mw *mw;
};

struct fv_device {
	struct ibv_device ibv; /* first */
	struct kvs_list node; /* fv_w.devices */
	struct fv_spec s; /* defaults filled in */
	char name[32];
	struct fv_port port[FV_PORTS_MAX + 1];
	struct fv_gid_at gid[FV_GIDS_MAX];
	bool dead;
	struct kvs_list contexts;
	struct kvs_list qps; /* of all contexts */
	uint32_t next_qpn;
	struct fv_key *key; /* by index */
	uint32_t n_keys;
	uint32_t *free_key; /* indices, last freed last */
	uint32_t n_free;
	unsigned int n_mrs;
	unsigned int n_qps;
};

struct fv_event {
	struct kvs_list node; /* fv_ctx.events */
	struct ibv_async_event e;
};

struct fv_ctx {
	struct verbs_context v;
	struct kvs_list node;
	struct fv_device *dev;
	struct kvs_list events;
	struct kvs_list pds;
	struct kvs_list mrs;
	struct kvs_list mws;
	struct kvs_list chans;
	struct kvs_list cqs;
	struct kvs_list srqs;
	struct kvs_list qps;
};

struct fv_pd {
	struct ibv_pd ibv; /* first */
	struct kvs_list node;
	unsigned int uses;
};

struct fv_mr {
	struct ibv_mr ibv; /* first */
	struct kvs_list node;
	unsigned int access;
	uint64_t iova;
	unsigned char *host; /* where its bytes are */
	void *map; /* of a descriptor, or NULL */
	size_t map_len;
	uint32_t index;
	unsigned int windows; /* bound to it */
};

struct fv_mw {
	struct ibv_mw ibv; /* first */
	struct kvs_list node;
	uint32_t index;
	bool bound;
	struct fv_mr *mr;
	struct fv_qp *qp;
	uint64_t addr;
	uint64_t len;
	unsigned int access;
};

struct fv_chan_event {
	struct kvs_list node;
	struct fv_cq *cq;
};

struct fv_chan {
	struct ibv_comp_channel ibv; /* first */
	struct kvs_list node;
	struct kvs_list events;
	unsigned int cqs;
};

struct fv_cqe {
	struct kvs_list node;
	struct ibv_wc wc;
	struct fv_qp *qp;
	uint32_t sends; /* places this gives back */
	struct fv_rq *rq; /* likewise, one */
};

struct fv_cq {
	struct ibv_cq ibv; /* first */
	struct kvs_list node;
	struct kvs_list cqes;
	unsigned int n;
	bool armed;
	bool solicited_only;
	bool overrun;
	unsigned int given; /* events of the channel */
	unsigned int acked;
	unsigned int qps;
};

struct fv_recv {
	struct kvs_list node;
	uint64_t wr_id;
	int n;
	struct ibv_sge sge[];
};

/* Receives of a queue pair, or of several. */
struct fv_rq {
	struct kvs_list posted;
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t used;
};

struct fv_srq {
	struct ibv_srq ibv; /* first */
	struct kvs_list node;
	struct fv_rq rq;
	unsigned int qps;
};

struct fv_wqe {
	struct kvs_list node; /* fv_qp.sq */
	struct ibv_send_wr wr; /* next, sg_list not used */
	struct fv_flight *flight; /* held */
	bool rnr; /* was counted */
	struct ibv_sge sge[];
};

struct fv_qp {
	struct ibv_qp ibv; /* first */
	struct kvs_list node; /* fv_ctx.qps */
	struct kvs_list on_dev; /* fv_device.qps */
	struct fv_device *dev;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct kvs_list sq; /* not executed */
	uint32_t sq_used; /* places taken */
	uint32_t silent; /* executed since the last completion */
	struct fv_rq own_rq;
	struct fv_rq *rq;
	unsigned int given; /* async events */
	unsigned int acked;
	uint64_t err_at; /* ns, when it went to ERR */
	bool running;
};

struct fv_flight {
	struct kvs_list node; /* fv_w.flights */
	struct fv_device *src;
	uint32_t src_qpn;
	struct fv_device *dst;
	uint32_t dst_qpn;
	struct fv_wqe *wqe; /* NULL: its requester forgot it */
	struct fv_qp *qp; /* with @wqe */
	uint64_t addr;
	uint32_t rkey;
	uint32_t mtu;
	uint64_t len;
	uint64_t at;
	uint64_t in_hand;
	struct fv_mr *in_mr; /* what it was checked by */
	struct fv_mw *in_mw;
	bool in_late; /* the key is not valid any more */
	unsigned char data[];
};

struct fv_plan {
	uint64_t nth;
	uint64_t times;
	int err;
};

struct fv_world {
	pthread_mutex_t lock;
	pthread_cond_t acked;
	bool begun;
	uint64_t (*now)(void); /* NULL: real */
	struct kvs_list devices;
	struct kvs_list flights;
	struct fv_plan plan[FV_CALLS_MAX + 1]; /* by call; FV_ANY */
	uint64_t failed;
	uint64_t lose_flushes;
	uint64_t hold_nth;
	uint64_t hold_times;
	uint64_t calls[FV_CALLS_MAX];
	uint64_t calls_any;
	struct fv_live live;
	struct fv_counts counts;
	unsigned int violations;
	char root[64]; /* of sysfs */
};

extern struct fv_world fv_w;

void fv_lock(void);
void fv_unlock(void);
/* Counts the call. Return: errno it is to fail with, or 0. */
int fv_enter(enum fv_call c);
__attribute__((format(printf, 1, 2))) void fv_violation(const char *fmt, ...);
uint64_t fv_now(void);
/* Wait until *@acked is *@given; says so when that never happens. */
bool fv_wait_acked(const unsigned int *acked, const unsigned int *given,
		   const char *what);

static inline struct fv_ctx *fv_ctx_of(struct ibv_context *c)
{
	return kvs_container_of(c, struct fv_ctx, v.context);
}

static inline struct fv_device *fv_dev_of(struct ibv_context *c)
{
	return fv_ctx_of(c)->dev;
}

/* sysfs.c */
int fv_sysfs_make(struct fv_device *d);
void fv_sysfs_remove(void);

/* device.c */
/* Make a descriptor readable once more, or once less. */
void fv_ring(int fd);
void fv_unring(int fd);
void fv_async(struct fv_ctx *ctx, const struct ibv_async_event *e);
/* Forget what was not read of @object's. */
void fv_async_forget(struct fv_ctx *ctx, const void *object);
bool fv_device_by_gid(const union ibv_gid *gid, struct fv_device **ret,
		      unsigned int *ret_port, enum ibv_gid_type *ret_type);
bool fv_device_by_lid(uint16_t lid, struct fv_device **ret,
		      unsigned int *ret_port);
const struct fv_gid_at *fv_gid_find(const struct fv_device *d,
				    unsigned int port, unsigned int index);

/* memory.c */
void fv_memory_init(struct fv_ctx *ctx);
bool fv_key_take(struct fv_device *d, struct fv_mr *mr, struct fv_mw *mw,
		 uint32_t *ret_index, uint32_t *ret_key);
/* @lkey of @pd holds [@addr, @addr + @len) with @access. */
bool fv_local_ok(const struct fv_device *d, const struct ibv_pd *pd,
		 uint32_t lkey, uint64_t addr, uint64_t len,
		 unsigned int access);
/* Where the bytes are that fv_local_ok() found. */
void *fv_local_at(const struct fv_device *d, uint32_t lkey, uint64_t addr);
/**
 * fv_remote_ok() - may what arrives on @qp reach that
 * @access: IBV_ACCESS_REMOTE_WRITE or _READ
 * @ret_mr: by which registration
 * @ret_mw: by which window, or NULL
 * @ret_p: where it is
 */
bool fv_remote_ok(const struct fv_qp *qp, uint32_t rkey, uint64_t addr,
		  uint64_t len, unsigned int access, struct fv_mr **ret_mr,
		  struct fv_mw **ret_mw, unsigned char **ret_p);
enum ibv_wc_status fv_bind(struct fv_qp *qp, const struct ibv_send_wr *wr);
/* Return: IBV_WC_SUCCESS, or the status it fails with. */
enum ibv_wc_status fv_invalidate(struct fv_qp *qp, uint32_t rkey);
void fv_unbind(struct fv_mw *mw);
bool fv_qp_has_windows(const struct fv_qp *qp);
void fv_qp_unbind(struct fv_qp *qp);
void fv_mr_free(struct fv_mr *mr);
void fv_mw_free(struct fv_mw *mw);
/* Bytes that the process's own tools must not see move. */
void fv_move(void *to, const void *from, size_t n);

/* queue.c */
void fv_queue_init(struct fv_ctx *ctx);
void fv_complete(struct fv_cq *cq, struct fv_qp *qp, const struct ibv_wc *wc,
		 uint32_t sends, struct fv_rq *rq, bool solicited);
void fv_cq_forget_qp(struct fv_cq *cq, const struct fv_qp *qp);
void fv_cq_free(struct fv_cq *cq);
void fv_chan_free(struct fv_chan *ch);

/* qp.c */
void fv_qp_init(struct fv_ctx *ctx);
void fv_qp_err(struct fv_qp *qp);
void fv_qp_free(struct fv_qp *qp);
void fv_rq_clear(struct fv_rq *rq);
void fv_srq_free(struct fv_srq *srq);

/* wire.c */
/* Execute what can be. */
void fv_run(struct fv_qp *qp);
/* Those that wait for @qp. */
void fv_run_peers(struct fv_qp *qp);
void fv_run_all(void);
/* The first request of @qp ends so, without an answer. */
void fv_send_done(struct fv_qp *qp, struct fv_wqe *w,
		  enum ibv_wc_status status);
/* Flights that have something in hand by these: placed now. */
void fv_settle_mr(struct fv_mr *mr);
void fv_settle_mw(struct fv_mw *mw);
void fv_settle_qp(const struct fv_qp *qp, bool late);
/* Is anything in hand for @qp; and mark it as late from now on. */
bool fv_in_hand_qp(const struct fv_qp *qp, bool late);
void fv_in_hand_mw(const struct fv_mw *mw);
/* @w is not waited for any more; its flight goes on alone. */
void fv_flight_orphan(struct fv_wqe *w);

#endif /* KVS_TESTS_FAKE_VERBS_INTERNAL_H */
