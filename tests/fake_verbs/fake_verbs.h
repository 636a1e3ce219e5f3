/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: fake_verbs
 *
 * A double of libibverbs: the calls that rdma/verbs*.c makes, over devices
 * that a test invents. Both ends of a connection live in the process that
 * links it. Memory really moves, at once and in the order of the posts, so a
 * test of one thread is deterministic.
 *
 * What is enforced: protection domains, access flags, bounds, the key's 8-bit
 * tag, the queue pair that a window is bound on, queue depths, the masks and
 * order of ibv_modify_qp(), packet numbers and MTU of both ends. What no
 * caller may do (overflow a completion queue, leave events unacknowledged,
 * invalidate twice on rxe) is a *violation*: printed and counted, and a test
 * that ends with one fails (fv_end()).
 *
 * Held writes are the point of it. A write on the wire is a *flight*; one that
 * is held stays there until the test moves it on, whatever became of the
 * queue pair, the window or the registration meanwhile. Its key is checked
 * packet by packet as it lands, as a device does; the packet that was checked
 * and is not placed yet is *in hand*:
 *
 *                   LOCAL_INV   dealloc_mw   QP to ERR   dereg_mr
 *   FV_STRICT       placed first, then the call completes
 *   FV_RXE          may be placed after                  placed first
 *
 * Every function may be called from any thread.
 */
#ifndef KVS_TESTS_FAKE_VERBS_H
#define KVS_TESTS_FAKE_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FV_PORTS_MAX 2
#define FV_GIDS_MAX 8

enum fv_model {
	FV_STRICT, /* as the specification has it */
	FV_RXE, /* as rdma_rxe of Linux 6.1 was measured */
};

struct fv_device;
struct fv_flight;

struct fv_gid {
	const char *addr; /* as text; "10.0.0.1" is ::ffff:10.0.0.1 */
	enum ibv_gid_type type;
	unsigned int port; /* 0: 1 */
	unsigned int index; /* in the port's table */
};

/**
 * struct fv_spec - a device; every 0 is a default
 * @name: "mlx5_0"
 * @driver: what sysfs names, "rxe" is a soft device; NULL: nothing
 * @model: behaviour where devices differ
 * @numa: node, as sysfs has it; 0: -1, else node + 1
 * @ports: 1
 * @down: all ports
 * @infiniband: not RoCE; LIDs are given
 * @iwarp: transport type
 * @gids: at most FV_GIDS_MAX; none: four of RoCE, one of InfiniBand
 * @n_gids: of them
 * @windows: 'B' type 2B, 'A' type 2A, '-' none; 0: 'B'
 * @mtu: bytes; 4096
 * @max_sge: 30
 * @qp_sge: what a queue pair takes really; @max_sge
 * @max_wr: 16384
 * @max_cqe: 65536
 * @max_qp: 1024
 * @max_mr: 65536
 * @max_mr_size: bytes of a registration; no bound. Who asks for more gets one
 *               of so many, and no error: some drivers do that
 * @max_msg: bytes; 1 GiB
 * @max_mw_len: bytes of a window; no bound
 * @reads: READs at a time; 16
 * @dma_buf: ibv_reg_dmabuf_mr() works; a descriptor is one of a memfd, and what
 *           it stands for begins at its file position
 * @reuse_keys: a freed key's index is taken again first, its tag one higher
 */
struct fv_spec {
	const char *name;
	const char *driver;
	enum fv_model model;
	int numa;
	unsigned int ports;
	bool down;
	bool infiniband;
	bool iwarp;
	struct fv_gid gids[FV_GIDS_MAX];
	unsigned int n_gids;
	char windows;
	unsigned int mtu;
	unsigned int max_sge;
	unsigned int qp_sge;
	unsigned int max_wr;
	unsigned int max_cqe;
	unsigned int max_qp;
	unsigned int max_mr;
	uint64_t max_mr_size;
	uint64_t max_msg;
	uint64_t max_mw_len;
	unsigned int reads;
	bool dma_buf;
	bool reuse_keys;
};

/* name, and can it fail at all */
#define FV_CALLS(X)           \
	X(GET_DEVICE_LIST, 1) \
	X(OPEN_DEVICE, 1)     \
	X(CLOSE_DEVICE, 0)    \
	X(QUERY_DEVICE, 1)    \
	X(QUERY_PORT, 1)      \
	X(QUERY_GID, 1)       \
	X(ALLOC_PD, 1)        \
	X(DEALLOC_PD, 1)      \
	X(REG_MR, 1)          \
	X(DEREG_MR, 1)        \
	X(ALLOC_MW, 1)        \
	X(DEALLOC_MW, 1)      \
	X(CREATE_CHANNEL, 1)  \
	X(DESTROY_CHANNEL, 1) \
	X(GET_CQ_EVENT, 1)    \
	X(ACK_CQ_EVENTS, 0)   \
	X(CREATE_CQ, 1)       \
	X(DESTROY_CQ, 1)      \
	X(POLL_CQ, 1)         \
	X(REQ_NOTIFY_CQ, 1)   \
	X(CREATE_SRQ, 1)      \
	X(DESTROY_SRQ, 1)     \
	X(POST_SRQ_RECV, 1)   \
	X(CREATE_QP, 1)       \
	X(MODIFY_QP, 1)       \
	X(QUERY_QP, 1)        \
	X(DESTROY_QP, 1)      \
	X(POST_SEND, 1)       \
	X(POST_RECV, 1)       \
	X(BIND_MW, 1)         \
	X(GET_ASYNC_EVENT, 1) \
	X(ACK_ASYNC_EVENT, 0)

enum fv_call {
#define FV_CALL_ENUM(name, any) FV_##name,
	FV_CALLS(FV_CALL_ENUM)
#undef FV_CALL_ENUM
		FV_CALLS_MAX,
	FV_ANY = FV_CALLS_MAX,
};

const char *fv_call_name(enum fv_call c);

/* Objects that were made and not destroyed. */
struct fv_live {
	unsigned int lists;
	unsigned int contexts;
	unsigned int pds;
	unsigned int mrs;
	unsigned int mws;
	unsigned int channels;
	unsigned int cqs;
	unsigned int srqs;
	unsigned int qps;
};

struct fv_counts {
	uint64_t sends; /* messages that arrived */
	uint64_t writes;
	uint64_t write_bytes;
	uint64_t reads;
	uint64_t refused; /* by a key, a range, a domain, a queue pair */
	uint64_t dropped; /* packets nobody took */
	uint64_t rnr; /* messages that found no receive */
	uint64_t flushes;
	uint64_t flushes_lost;
	uint64_t binds;
	uint64_t invalidates;
	uint64_t held;
	uint64_t late; /* bytes placed after LOCAL_INV, dealloc_mw or ERR */
	uint64_t left_behind; /* objects that went with their device */
	uint64_t async; /* events given */
	uint64_t async_acked;
};

/* ---- the world ---- */

/* Without devices, plans and counts. Nothing of before may be alive. */
void fv_begin(void);
/**
 * fv_end() - the world ends; flights are dropped
 * Return: 0; -EBUSY something is alive, -EPROTO there was a violation: both
 * are printed.
 */
int fv_end(void);

/* ns; the time that rxe's 20 ms pass in. fv_begin() sets it to the real one. */
void fv_clock(uint64_t (*now)(void));
struct fv_device *fv_device_add(const struct fv_spec *s);
void fv_live(struct fv_live *ret);
void fv_counts(struct fv_counts *ret);
uint64_t fv_calls(enum fv_call c);
/* Calls that FV_ANY may make fail, so far. */
uint64_t fv_calls_any(void);
/* So far. Those the test itself provoked can be forgiven. */
unsigned int fv_violations(void);
void fv_forgive(void);

/* ---- plans ---- */

/**
 * fv_fail() - make calls fail
 * @c: which, or FV_ANY
 * @nth: of the calls from now on: 1 is the next
 * @times: how many in a row from there
 * @err: errno
 *
 * One plan for each call and one for FV_ANY; a new one takes its place.
 */
void fv_fail(enum fv_call c, uint64_t nth, uint64_t times, int err);
/* No plans any more. */
void fv_heal(void);
/* Calls that failed by plan since the last fv_fail(). */
uint64_t fv_failed(void);
/* The next @n flush completions are not written. */
void fv_lose_flushes(uint64_t n);

/* ---- what happens to a device ---- */

/* PORT_ERR or PORT_ACTIVE; nothing passes a port that is down. */
void fv_port_set(struct fv_device *d, unsigned int port, bool up);
/* DEVICE_FATAL. Nothing passes, and calls but those that destroy fail. */
void fv_device_die(struct fv_device *d);
/* @event for every queue pair of @d: QP_FATAL and the like. */
void fv_qp_event(struct fv_device *d, enum ibv_event_type event);
/* All queue pairs of @d go into ERR by themselves; for QP_FATAL. */
void fv_qp_break(struct fv_device *d);
/* Requests nobody answers end: IBV_WC_RETRY_EXC_ERR. */
void fv_retries_expire(void);

/* ---- held writes ---- */

/* Hold writes, from the @nth from now on, @times of them; 0: no more. */
void fv_hold(uint64_t nth, uint64_t times);
/* How many are held, and the @i-th of them by age. */
unsigned int fv_held(void);
struct fv_flight *fv_flight(unsigned int i);
uint64_t fv_flight_len(const struct fv_flight *f);
uint64_t fv_flight_at(const struct fv_flight *f); /* bytes that landed */
/**
 * fv_land() - a held write goes on
 * @bytes: at most; UINT64_MAX: all. When all have landed it is gone, and its
 *         requester's queue goes on.
 *
 * Return: 0; -EACCES refused, -ENOTCONN nobody is there: gone as well.
 */
int fv_land(struct fv_flight *f, uint64_t bytes);
/* Check its next packet, and take it in hand. Return: as fv_land(). */
int fv_take(struct fv_flight *f);
/* Place what is in hand. Return: bytes. */
uint64_t fv_place(struct fv_flight *f);
/*
 * What no device may do: write @n bytes of it from @off on, unchecked. For
 * tests of the tests. The memory must be there.
 */
void fv_force(struct fv_flight *f, uint64_t off, uint64_t n);
/* It never arrives anywhere. Its requester waits until retries expire. */
void fv_drop(struct fv_flight *f);

#endif /* KVS_TESTS_FAKE_VERBS_H */
