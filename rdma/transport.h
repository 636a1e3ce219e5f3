/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: transport
 *
 * What the pipeline sees of a network. One struct kvs_transport is one event
 * loop; it belongs to one thread, and so do all its connections. Everything
 * is asynchronous and arrives through struct kvs_conn_ops from inside
 * kvs_transport_poll(), never from inside the call that asked for it, except
 * where a comment says so.
 *
 * Two kinds of connection: *control* carries frames both ways; *data* carries
 * frames with a payload, which the receiver places **directly** at the
 * address its payload() callback names: no bounce copy.
 *
 * The ownership rule (what makes a TCP receive a provable party): between
 * payload() returning 0 and payload_done(), the transport may write to
 * rx->addr; after payload_done() it never does again, whatever the status.
 *
 * On a one-sided transport (kvs_transport_one_sided()) the other side may also
 * write to, and read from, memory that was granted to it (rdma/grant.h),
 * without a callback here: struct kvs_tx with @one_sided, and struct kvs_read.
 *
 * Implementations: tcp (io_uring, or plain sockets with epoll), loop
 * (in-process, deterministic), verbs (RDMA; rdma/verbs.h).
 */
#ifndef KVS_RDMA_TRANSPORT_H
#define KVS_RDMA_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "lib/clock.h"
#include "lib/list.h"
#include "rdma/addr.h"
#include "rdma/frame.h"
#include "rdma/grant.h"

struct kvs_transport;
struct kvs_conn;
struct kvs_listener;
struct kvs_watch;
struct kvs_mem;

enum kvs_conn_kind {
	KVS_CONN_CONTROL,
	KVS_CONN_DATA,
};

/* One payload on its way into memory. Owned by the connection. */
struct kvs_rx {
	/* where to put it; NULL: read and drop (payload_done: 0, got 0) */
	void *addr;
	uint64_t len; /* bytes; from the frame */
	uint64_t got; /* bytes placed so far (valid in payload_done) */
	void *user; /* the upper layer's */
};

/**
 * struct kvs_conn_ops - the upper layer's side of a connection
 * @opened: kvs_transport_connect() succeeded. May be NULL for accepted ones.
 * @head: the header of a frame arrived, whose rest has not all come yet; magic
 *        and length were checked. To refuse it before memory is taken for it:
 *        negative as from @frame, or kvs_conn_close(). May come several times
 *        for one frame, and not at all where frames come whole. May be NULL.
 * @frame: a whole frame without payload arrived; @f is valid during the call;
 *         kvs_get32(f->len) bytes. Magic and length were checked. Negative:
 *         close the connection with that error. May call kvs_conn_detach().
 * @payload: a data frame with a payload arrived: set @rx->addr (room for
 *           rx->len bytes) and @rx->user. Return 0, or a negative errno to
 *           close (payload_done is not called then). NULL for connections
 *           that must not carry payloads: one that comes closes it (-EPROTO).
 * @payload_done: exactly once for each payload() that returned 0, also when
 *           the connection dies. @status 0: all rx->len bytes are there.
 *           -ECANCELED: stopped by kvs_conn_stop_payload(). Other: died.
 *           The transport does not touch rx->addr any more. A negative return
 *           closes the connection.
 * @closed: the connection is gone; last call for it; @err 0 = the other side
 *          closed in order between two frames, else -errno. Every queued tx
 *          was completed before. The conn is freed after it returns.
 */
struct kvs_conn_ops {
	void (*opened)(struct kvs_conn *c);
	int (*head)(struct kvs_conn *c, const struct kvs_frame *f);
	int (*frame)(struct kvs_conn *c, const struct kvs_frame *f);
	int (*payload)(struct kvs_conn *c, const struct kvs_frame *f,
		       struct kvs_rx *rx);
	int (*payload_done)(struct kvs_conn *c, struct kvs_rx *rx, int status);
	void (*closed)(struct kvs_conn *c, int err);
};

/**
 * struct kvs_tx - one data frame with its payload, being sent
 * @frame: KVS_DATA_FRAME bytes; payload length filled in by the caller, 0 when
 *         @one_sided
 * @iov: payload pieces, in order; array and bytes stay the caller's and
 *       untouched until @done
 * @n_iov: pieces; any number (sent IOV_MAX at a time)
 * @done: exactly once. 0: every byte was taken by the kernel (the source may
 *        be reused). Negative: not known how much went out (R5).
 * @one_sided: the payload (at most KVS_PAYLOAD_MAX bytes) is written to the
 *        other side's memory at @remote, piece by piece, and then the frame is
 *        delivered behind it, on the same connection and in its order, to
 *        frame(). done(0): both arrived at the far side, or so it says.
 *        A bad key, one of another owner, or a range that is not all within
 *        the key's: not one byte lands outside, done(-EREMOTEIO), and the
 *        connection ends on both sides, closed(-EREMOTEIO) here and
 *        closed(-EACCES) there, as a reliable queue pair would. What is
 *        queued behind it fails. A write that was launched lands even when
 *        this side closes or dies, until the far side of the connection was
 *        closed or the grant was.
 */
struct kvs_tx {
	struct kvs_list node;
	unsigned char frame[KVS_DATA_FRAME] __attribute__((aligned(8)));
	const struct iovec *iov;
	size_t n_iov;
	void (*done)(struct kvs_conn *c, struct kvs_tx *tx, int status);
	void *user;
	bool one_sided;
	struct kvs_grant_key remote;
	int status; /* private to the transport, and so is the next */
	void (*up)(struct kvs_conn *c, struct kvs_tx *tx, int status);
};

/**
 * struct kvs_read - one read of memory that the other side granted to us
 * @addr: where to; @len bytes. Until @done() the transport may write there at
 *        any moment: nothing stops a launched read but closing its connection
 *        (done() comes before closed()).
 * @len: bytes, 1..KVS_PAYLOAD_MAX
 * @remote: where from
 * @done: exactly once. 0: all bytes are at @addr. Negative: some may be;
 *        -EREMOTEIO: refused there, the connection ends as for a write.
 */
struct kvs_read {
	struct kvs_list node;
	void *addr;
	uint64_t len;
	struct kvs_grant_key remote;
	void (*done)(struct kvs_conn *c, struct kvs_read *rd, int status);
	void *user;
	int status; /* private to the transport */
};

struct kvs_transport_opts {
	/* "auto" (io_uring if it works here, else sock), "uring", "sock" */
	const char *engine;
	const struct kvs_clock *clock; /* NULL: real */
	unsigned int max_conns; /* accepted beyond this are refused; 0: 4096 */
	size_t frame_max; /* bytes; 0: KVS_FRAME_MAX */
	size_t send_queue_max; /* bytes of queued frames a conn; 0: 4 MiB */
	int rcvbuf; /* bytes; 0: the kernel tunes it */
	int sndbuf;
	unsigned int user_timeout_ms; /* TCP_USER_TIMEOUT; 0: system's */
};

/* Counters; owner thread. */
struct kvs_transport_stats {
	uint64_t accepted;
	uint64_t refused_limit; /* over max_conns */
	uint64_t refused_fds; /* EMFILE, ENFILE */
	uint64_t rx_bytes; /* payload bytes placed */
	uint64_t rx_dropped; /* payload bytes read and dropped */
	uint64_t tx_bytes;
	uint64_t io_short; /* partial reads and writes completed */
	uint64_t cq_overflow; /* io_uring completion overflows seen */
	uint64_t bad_frames; /* all of the next three */
	uint64_t bad_magic;
	uint64_t bad_length;
	uint64_t bad_payload; /* one that must not be there, or too long */
};

/**
 * kvs_tcp_create() - event loop over TCP
 * @o: options; NULL: defaults
 * @ret: the loop
 * @err: buffer for a message (which call, errno text, both possible causes)
 * @errlen: its size
 *
 * Return: 0; -EOPNOTSUPP engine not built or forbidden here ("auto" falls
 * back instead); -EINVAL; -ENOMEM; -EMFILE.
 */
int kvs_tcp_create(const struct kvs_transport_opts *o,
		   struct kvs_transport **ret, char *err, size_t errlen);

/*
 * Closes everything (closed(-ESHUTDOWN) is called), waits for the kernel to
 * give back what it still writes to, frees. Accepts NULL. Not from a callback.
 * On the thread that polls: the kernel lets no other reap a ring.
 */
void kvs_transport_destroy(struct kvs_transport *t);

/* "tcp/uring", "tcp/sock", "loop", "verbs+tcp/uring", "verbs+tcp/sock" */
const char *kvs_transport_name(const struct kvs_transport *t);
/* Are there grants, one-sided writes and reads here? (tcp: never) */
bool kvs_transport_one_sided(const struct kvs_transport *t);
/* Does a key work on one connection of its owner's only, the first one, which
 * a grant waits for? And must granted memory have been told of by
 * kvs_transport_register()? (verbs with windows) */
bool kvs_transport_key_per_conn(const struct kvs_transport *t);
/* Devices that data connections are spread over, see kvs_conn_set_owner_on();
 * 0: none has a choice. (verbs: those in use) */
unsigned int kvs_transport_rails(const struct kvs_transport *t);
/* Most bytes of one registration: no range of a grant may be larger, nor lie
 * in two of them. UINT64_MAX: no limit. (verbs: of its least device) */
uint64_t kvs_transport_register_max(const struct kvs_transport *t);

/**
 * kvs_transport_poll() - run completions and callbacks
 * @timeout_ns: wait at most this long for the first; 0: do not wait;
 *              KVS_TIME_NEVER: until something happens
 * Return: number of events handled (0 on timeout or wake), or -errno.
 */
int kvs_transport_poll(struct kvs_transport *t, uint64_t timeout_ns);
/* Make a waiting poll return. Any thread, async-signal safe. */
void kvs_transport_wake(struct kvs_transport *t);

/**
 * kvs_transport_listen() - accept connections
 * @addr: parsed address; the first that binds is used
 * @accepted: called for each with the new connection; must call
 *            kvs_conn_set_ops() and return 0, or refuse by a negative errno.
 * @arg: for @accepted
 *
 * Out of descriptors: accepting pauses and resumes when a connection closes
 * or a short time later; nothing spins, nothing is lost.
 * Return: 0 or -errno (-EADDRINUSE, -EACCES, ...).
 */
int kvs_transport_listen(struct kvs_transport *t, const struct kvs_addr *addr,
			 int (*accepted)(struct kvs_conn *c, void *arg),
			 void *arg, struct kvs_listener **ret);
void kvs_listener_close(struct kvs_listener *l);
/* Bound address, for port 0. */
int kvs_listener_addr(const struct kvs_listener *l,
		      struct sockaddr_storage *ret, socklen_t *ret_len);

/**
 * kvs_transport_connect() - open a connection
 *
 * Tries the addresses in order. opened() or closed() follows.
 * Return: 0 or -errno when nothing could even be started.
 */
int kvs_transport_connect(struct kvs_transport *t, const struct kvs_addr *addr,
			  enum kvs_conn_kind kind,
			  const struct kvs_conn_ops *ops, void *user,
			  struct kvs_conn **ret);

/**
 * kvs_transport_adopt() - take over a connected socket (or loop handle)
 *
 * @fd belongs to the transport on success. opened() is not called.
 */
int kvs_transport_adopt(struct kvs_transport *t, int fd,
			enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
			void *user, struct kvs_conn **ret);

/**
 * kvs_conn_detach() - give the socket to another thread's transport
 *
 * Only from inside frame(), with nothing queued to send. Nothing past the
 * current frame was read. closed() is not called; the conn is freed after
 * frame() returns.
 * Return: descriptor (or loop handle), or -EBUSY. It must be adopted, or given
 * to kvs_transport_discard(). The owner is 0 again.
 */
int kvs_conn_detach(struct kvs_conn *c);

/*
 * Close what kvs_conn_detach() gave and nobody adopts. @t: any transport of
 * the same kind (and fabric). Negative and unknown ones are ignored. Any
 * thread (tcp); the fabric's (loop).
 */
void kvs_transport_discard(struct kvs_transport *t, int fd);

void kvs_conn_set_ops(struct kvs_conn *c, enum kvs_conn_kind kind,
		      const struct kvs_conn_ops *ops, void *user);
/*
 * Writes and reads that arrive on @c reach grants of this owner only; 0 (as at
 * first): none. See rdma/grant.h. No effect where nothing is one-sided. On
 * verbs it makes an adopted data connection a queue pair, and is given once.
 */
void kvs_conn_set_owner(struct kvs_conn *c, uint64_t owner);
/* The same, on the device of that number, from 0 on and over again; another if
 * it has failed. */
void kvs_conn_set_owner_on(struct kvs_conn *c, uint64_t owner,
			   unsigned int rail);
/* The device that it is on, once it has an owner; 0 where there is no choice. */
unsigned int kvs_conn_rail(const struct kvs_conn *c);
void *kvs_conn_user(const struct kvs_conn *c);
struct kvs_transport *kvs_conn_transport(const struct kvs_conn *c);
/* Address of the other side, for messages; static storage of the conn. */
const char *kvs_conn_peer(const struct kvs_conn *c);

/**
 * kvs_conn_send() - queue one frame
 * @f: kvs_get32(f->len) bytes, copied
 *
 * In order with other frames and writes of this connection; at most one send
 * of a connection is in the kernel at a time.
 * Return: 0; -ENOBUFS when send_queue_max is reached; -ENOMEM; -EPIPE when
 * closing.
 */
int kvs_conn_send(struct kvs_conn *c, const struct kvs_frame *f);

/**
 * kvs_conn_write() - queue a data frame with payload; see struct kvs_tx
 *
 * done() comes from poll (or kvs_transport_destroy()), never from inside this
 * call.
 * Return: 0; else done() is not called: -EPIPE when closing; -EOPNOTSUPP
 * one-sided where the transport is not; -ENOMEM.
 */
int kvs_conn_write(struct kvs_conn *c, struct kvs_tx *tx);

/**
 * kvs_conn_read() - read memory that the other side granted; struct kvs_read
 *
 * In order with other frames and writes of this connection as they reach the
 * far side. done() comes from poll (or kvs_transport_destroy()), never from
 * inside this call.
 * Return: 0; else done() is not called: -EPIPE when closing; -EOPNOTSUPP where
 * the transport is not one-sided; -EINVAL no address, no bytes or too many;
 * -ENOMEM.
 */
int kvs_conn_read(struct kvs_conn *c, struct kvs_read *rd);

/**
 * kvs_conn_stop_payload() - stop writing to the rx in progress
 *
 * payload_done(-ECANCELED) follows as soon as the transport provably does not
 * write any more, maybe from inside this call; it may also come with status 0
 * when all bytes were there already. The rest of the payload is read and
 * dropped; later frames of the connection are unaffected.
 */
void kvs_conn_stop_payload(struct kvs_conn *c);

/*
 * Close; closed(@err) follows from poll. After pending frames and writes when
 * @flush (then until the other side closes too; at most a second in all), else
 * at once. No frame() or payload() any more. Harmless when closing already.
 */
void kvs_conn_close(struct kvs_conn *c, int err, bool flush);

/**
 * kvs_transport_register() - tell of memory that will be sent from, or granted
 * @t: transport
 * @addr: start
 * @len: bytes, not 0
 * @ret: NULL where there is nothing to do (tcp, loop); for kvs_mem_release()
 * @err: buffer for a message
 * @errlen: its size
 *
 * The memory must stay as it is until it is released. Sending one-sided from
 * memory that was not told of is slower (it is copied first).
 *
 * Context: @t's thread, or before it runs; may block.
 * Return: 0; -EINVAL empty or wrapping; -EEXIST overlaps another; -ENOMEM,
 * -EDQUOT over the limit of locked memory; what the driver said.
 */
int kvs_transport_register(struct kvs_transport *t, void *addr, uint64_t len,
			   struct kvs_mem **ret, char *err, size_t errlen);
/**
 * struct kvs_mem_at - memory of a device, as the network is to get at it
 * @addr: its address there
 * @len: bytes, not 0
 * @fd: dma-buf that holds it; -1: by @addr. May be closed afterwards
 * @offset: bytes in @fd before it
 */
struct kvs_mem_at {
	void *addr;
	uint64_t len;
	int fd;
	uint64_t offset;
};

/*
 * The same for memory that the CPU cannot read, which is only ever sent
 * one-sided, and with all devices of the network at once. -EOPNOTSUPP where
 * nothing is one-sided.
 */
int kvs_transport_register_at(struct kvs_transport *t,
			      const struct kvs_mem_at *at, struct kvs_mem **ret,
			      char *err, size_t errlen);
/* Most bytes that one kvs_transport_try_at() is for. */
#define KVS_MEM_TRY 4096u
/*
 * Does it read what is there? Each device of the network writes @at to host
 * memory, where it is compared with @bytes. Before the transport runs; may
 * block. 0; -EOPNOTSUPP; -EIO it read something else; what the driver said.
 */
int kvs_transport_try_at(struct kvs_transport *t, const struct kvs_mem_at *at,
			 const void *bytes, char *err, size_t errlen);
/* Nothing may be under way from it. kvs_transport_destroy() releases what is
 * left. Accepts NULL. May block. */
void kvs_mem_release(struct kvs_mem *m);

/**
 * kvs_transport_watch() - call back when a descriptor is ready
 * @fd: stays the caller's
 * @events: POLLIN, POLLOUT
 * @ready: called from poll while ready (level)
 * Return: 0, -EOPNOTSUPP (loop), -ENOMEM, -errno.
 */
int kvs_transport_watch(struct kvs_transport *t, int fd, short events,
			void (*ready)(struct kvs_watch *w, short revents,
				      void *arg),
			void *arg, struct kvs_watch **ret);
/* Change the events watched. */
int kvs_watch_events(struct kvs_watch *w, short events);
/* No call back after this returns. Accepts NULL. */
void kvs_watch_remove(struct kvs_watch *w);

void kvs_transport_stats(const struct kvs_transport *t,
			 struct kvs_transport_stats *ret);

#endif /* KVS_RDMA_TRANSPORT_H */
