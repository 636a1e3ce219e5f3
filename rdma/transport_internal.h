/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: transport_internal
 *
 * What every transport embeds first in its own objects, and the table by
 * which transport.c reaches it. For the folder rdma/ only.
 */
#ifndef KVS_RDMA_TRANSPORT_INTERNAL_H
#define KVS_RDMA_TRANSPORT_INTERNAL_H

#include "rdma/transport.h"

#define KVS_TRANSPORT_MAGIC 0x54525053u
#define KVS_CONN_MAGIC 0x434f4e4eu
#define KVS_LISTENER_MAGIC 0x4c49534eu
#define KVS_WATCH_MAGIC 0x57415443u
#define KVS_GRANT_MAGIC 0x4752414eu
#define KVS_MEM_MAGIC 0x4d454d52u

/**
 * struct kvs_transport_ops - one kind of transport
 *
 * Arguments were checked for form by transport.c. A NULL entry answers
 * -EOPNOTSUPP (or does nothing where there is no result). None may block,
 * except poll. All run on the owner thread, except wake.
 * @name: for messages
 * @destroy: ends everything, frees @t
 * @poll: runs events; the only place callbacks come from
 * @wake: any thread, async-signal safe
 * @listener_close: frees @l, now or when the kernel let go of it
 * @detach: checks, then gives the handle; the conn dies after frame()
 * @discard: ends what @detach gave; @fd is not negative
 * @send: copies the frame
 * @write: owns @tx until its done()
 * @read: owns @rd until its done()
 * @watch_remove: frees @w, now or later
 * @set_owner: NULL: c->owner is all that changes
 * @mem_register: fill m->t of a new one. NULL: nothing is registered here
 * @mem_register_at, @mem_try_at: NULL: -EOPNOTSUPP
 * @mem_release: frees @m
 * @stats: complete what was copied from t->stats; NULL: it is complete
 * @grant_size: of its own grants; struct kvs_grant is their first member
 * @grant_open: fill g->key and begin; kvs_grant_opened() answers from poll.
 *              Negative: nothing began
 * @grant_close: begin an attempt; kvs_grant_closed() answers from poll. Only
 *               after it opened, one attempt at a time
 * @grant_cancel: it is opening and not wanted any more: kvs_grant_opened()
 *                soon, whatever it waits for. NULL: it opens soon anyway
 */
struct kvs_transport_ops {
	const char *name;
	void (*destroy)(struct kvs_transport *t);
	int (*poll)(struct kvs_transport *t, uint64_t timeout_ns);
	void (*wake)(struct kvs_transport *t);
	int (*listen)(struct kvs_transport *t, const struct kvs_addr *addr,
		      int (*accepted)(struct kvs_conn *c, void *arg), void *arg,
		      struct kvs_listener **ret);
	void (*listener_close)(struct kvs_listener *l);
	int (*listener_addr)(const struct kvs_listener *l,
			     struct sockaddr_storage *ret, socklen_t *ret_len);
	int (*connect)(struct kvs_transport *t, const struct kvs_addr *addr,
		       enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		       void *user, struct kvs_conn **ret);
	int (*adopt)(struct kvs_transport *t, int fd, enum kvs_conn_kind kind,
		     const struct kvs_conn_ops *ops, void *user,
		     struct kvs_conn **ret);
	int (*detach)(struct kvs_conn *c);
	void (*discard)(struct kvs_transport *t, int fd);
	int (*send)(struct kvs_conn *c, const struct kvs_frame *f, size_t len);
	int (*write)(struct kvs_conn *c, struct kvs_tx *tx);
	int (*read)(struct kvs_conn *c, struct kvs_read *rd);
	void (*stop_payload)(struct kvs_conn *c);
	void (*close)(struct kvs_conn *c, int err, bool flush);
	int (*watch)(struct kvs_transport *t, int fd, short events,
		     void (*ready)(struct kvs_watch *w, short revents,
				   void *arg),
		     void *arg, struct kvs_watch **ret);
	int (*watch_events)(struct kvs_watch *w, short events);
	void (*watch_remove)(struct kvs_watch *w);
	void (*set_owner)(struct kvs_conn *c, uint64_t owner);
	int (*mem_register)(struct kvs_transport *t, void *addr, uint64_t len,
			    struct kvs_mem **ret, char *err, size_t errlen);
	int (*mem_register_at)(struct kvs_transport *t,
			       const struct kvs_mem_at *at,
			       struct kvs_mem **ret, char *err, size_t errlen);
	int (*mem_try_at)(struct kvs_transport *t, const struct kvs_mem_at *at,
			  const void *bytes, char *err, size_t errlen);
	void (*mem_release)(struct kvs_mem *m);
	void (*stats)(const struct kvs_transport *t,
		      struct kvs_transport_stats *st);
	size_t grant_size;
	int (*grant_open)(struct kvs_grant *g);
	void (*grant_close)(struct kvs_grant *g);
	void (*grant_cancel)(struct kvs_grant *g);
};

struct kvs_transport {
	unsigned int magic;
	const struct kvs_transport_ops *ops;
	const struct kvs_clock *clock;
	size_t frame_max;
	size_t send_queue_max;
	bool one_sided;
	bool key_per_conn;
	unsigned int rails;
	uint64_t register_max; /* bytes; 0: no limit */
	struct kvs_transport_stats stats;
};

struct kvs_conn {
	unsigned int magic;
	struct kvs_transport *t;
	enum kvs_conn_kind kind;
	const struct kvs_conn_ops *ops; /* NULL until an accepted conn has it */
	void *user;
	uint64_t owner; /* of the grants it reaches; 0: none */
	unsigned int rail; /* its device, from 1 on; 0: any */
	char peer[KVS_ADDR_STR];
};

struct kvs_listener {
	unsigned int magic;
	struct kvs_transport *t;
	int (*accepted)(struct kvs_conn *c, void *arg);
	void *arg;
};

struct kvs_watch {
	unsigned int magic;
	struct kvs_transport *t;
	void (*ready)(struct kvs_watch *w, short revents, void *arg);
	void *arg;
};

struct kvs_mem {
	unsigned int magic;
	struct kvs_transport *t;
};

enum kvs_grant_state {
	KVS_GRANT_OPENING, /* the transport moves it on */
	KVS_GRANT_OPEN, /* until the upper layer closes it */
	KVS_GRANT_CLOSING, /* an attempt is with the transport */
	KVS_GRANT_DOUBT, /* an attempt failed; until it is closed again */
};

struct kvs_grant {
	unsigned int magic;
	enum kvs_grant_state state;
	bool close_asked; /* while opening */
	struct kvs_transport *t;
	const struct kvs_grant_ops *ops;
	void *user;
	uint64_t owner;
	struct kvs_conn *on; /* while grant_open() runs; NULL: any */
	size_t n;
	struct kvs_grant_range *range; /* n of each */
	struct kvs_grant_key *key;
};

/* grant.c: what a transport answers; both may free @g. */
void kvs_grant_opened(struct kvs_grant *g, int status);
void kvs_grant_closed(struct kvs_grant *g, int status,
		      enum kvs_grant_proof proof);

/* Fill the common part of a transport; options may be NULL. */
void kvs_transport_init(struct kvs_transport *t,
			const struct kvs_transport_ops *ops,
			const struct kvs_transport_opts *o);

/**
 * kvs_frame_check() - is this header acceptable on this connection
 * @c: connection; its bad_frames counter is raised on refusal
 * @f: the header
 *
 * Return: 0; -EPROTO.
 */
int kvs_frame_check(struct kvs_conn *c, const struct kvs_frame *f);

#endif /* KVS_RDMA_TRANSPORT_INTERNAL_H */
