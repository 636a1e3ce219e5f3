/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/transport_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include "lib/assert.h"

#define DEFAULT_SEND_QUEUE (4u << 20) /* bytes */

void kvs_transport_init(struct kvs_transport *t,
			const struct kvs_transport_ops *ops,
			const struct kvs_transport_opts *o)
{
	t->magic = KVS_TRANSPORT_MAGIC;
	t->ops = ops;
	t->clock = o && o->clock ? o->clock : &kvs_clock_real;
	t->frame_max = o && o->frame_max ? o->frame_max : KVS_FRAME_MAX;
	t->send_queue_max = o && o->send_queue_max ? o->send_queue_max
						   : DEFAULT_SEND_QUEUE;
}

int kvs_frame_check(struct kvs_conn *c, const struct kvs_frame *f)
{
	uint32_t len = kvs_get32(f->len);
	uint32_t payload = kvs_get32(f->payload);
	struct kvs_transport_stats *st = &c->t->stats;

	if (kvs_get32(f->magic) != KVS_FRAME_MAGIC)
		st->bad_magic++;
	else if (len < sizeof(*f) || len > c->t->frame_max ||
		 (payload && len != KVS_DATA_FRAME))
		st->bad_length++;
	else if (payload && (c->kind != KVS_CONN_DATA || !c->ops->payload ||
			     payload > KVS_PAYLOAD_MAX))
		st->bad_payload++;
	else
		return 0;
	st->bad_frames++;
	return -EPROTO;
}

void kvs_transport_destroy(struct kvs_transport *t)
{
	if (!t)
		return;
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	t->ops->destroy(t);
}

const char *kvs_transport_name(const struct kvs_transport *t)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	return t->ops->name;
}

bool kvs_transport_one_sided(const struct kvs_transport *t)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	return t->one_sided;
}

bool kvs_transport_key_per_conn(const struct kvs_transport *t)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	return t->key_per_conn;
}

unsigned int kvs_transport_rails(const struct kvs_transport *t)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	return t->rails;
}

uint64_t kvs_transport_register_max(const struct kvs_transport *t)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	return t->register_max ? t->register_max : UINT64_MAX;
}

int kvs_transport_poll(struct kvs_transport *t, uint64_t timeout_ns)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	return t->ops->poll(t, timeout_ns);
}

void kvs_transport_wake(struct kvs_transport *t)
{
	if (t->ops->wake)
		t->ops->wake(t);
}

int kvs_transport_listen(struct kvs_transport *t, const struct kvs_addr *addr,
			 int (*accepted)(struct kvs_conn *c, void *arg),
			 void *arg, struct kvs_listener **ret)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (!t->ops->listen)
		return -EOPNOTSUPP;
	if (!accepted || !addr->n || addr->n > KVS_ADDR_MAX)
		return -EINVAL;
	return t->ops->listen(t, addr, accepted, arg, ret);
}

void kvs_listener_close(struct kvs_listener *l)
{
	if (!l)
		return;
	KVS_CHECK_MAGIC(l, KVS_LISTENER_MAGIC);
	l->t->ops->listener_close(l);
}

int kvs_listener_addr(const struct kvs_listener *l,
		      struct sockaddr_storage *ret, socklen_t *ret_len)
{
	KVS_CHECK_MAGIC(l, KVS_LISTENER_MAGIC);
	if (!l->t->ops->listener_addr)
		return -EOPNOTSUPP;
	return l->t->ops->listener_addr(l, ret, ret_len);
}

int kvs_transport_connect(struct kvs_transport *t, const struct kvs_addr *addr,
			  enum kvs_conn_kind kind,
			  const struct kvs_conn_ops *ops, void *user,
			  struct kvs_conn **ret)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (!t->ops->connect)
		return -EOPNOTSUPP;
	if (!ops || !addr->n || addr->n > KVS_ADDR_MAX)
		return -EINVAL;
	return t->ops->connect(t, addr, kind, ops, user, ret);
}

int kvs_transport_adopt(struct kvs_transport *t, int fd,
			enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
			void *user, struct kvs_conn **ret)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (!t->ops->adopt)
		return -EOPNOTSUPP;
	if (!ops || fd < 0)
		return -EINVAL;
	return t->ops->adopt(t, fd, kind, ops, user, ret);
}

int kvs_conn_detach(struct kvs_conn *c)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	if (!c->t->ops->detach)
		return -EOPNOTSUPP;
	return c->t->ops->detach(c);
}

void kvs_transport_discard(struct kvs_transport *t, int fd)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (t->ops->discard && fd >= 0)
		t->ops->discard(t, fd);
}

void kvs_conn_set_ops(struct kvs_conn *c, enum kvs_conn_kind kind,
		      const struct kvs_conn_ops *ops, void *user)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	KVS_ASSERT(ops);
	c->kind = kind;
	c->ops = ops;
	c->user = user;
}

void kvs_conn_set_owner(struct kvs_conn *c, uint64_t owner)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	if (c->t->ops->set_owner)
		c->t->ops->set_owner(c, owner);
	else
		c->owner = owner;
}

void kvs_conn_set_owner_on(struct kvs_conn *c, uint64_t owner,
			   unsigned int rail)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	c->rail = c->t->rails ? rail % c->t->rails + 1 : 0;
	kvs_conn_set_owner(c, owner);
}

unsigned int kvs_conn_rail(const struct kvs_conn *c)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	return c->rail ? c->rail - 1 : 0;
}

void *kvs_conn_user(const struct kvs_conn *c)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	return c->user;
}

struct kvs_transport *kvs_conn_transport(const struct kvs_conn *c)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	return c->t;
}

const char *kvs_conn_peer(const struct kvs_conn *c)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	return c->peer;
}

int kvs_conn_send(struct kvs_conn *c, const struct kvs_frame *f)
{
	size_t len = kvs_get32(f->len);

	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	/* Our own frames: a wrong one is a bug of the caller. */
	KVS_ASSERT(kvs_get32(f->magic) == KVS_FRAME_MAGIC);
	KVS_ASSERT(len >= sizeof(*f) && len <= KVS_FRAME_MAX);
	KVS_ASSERT(!kvs_get32(f->payload));
	return c->t->ops->send(c, f, len);
}

int kvs_conn_write(struct kvs_conn *c, struct kvs_tx *tx)
{
	const struct kvs_frame *f = (const void *)tx->frame;
	uint64_t sum = 0;
	size_t i;

	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	for (i = 0; i < tx->n_iov; i++)
		sum += tx->iov[i].iov_len;
	/* One byte off would put the whole stream out of step. */
	KVS_ASSERT(tx->done && kvs_get32(f->magic) == KVS_FRAME_MAGIC);
	KVS_ASSERT(kvs_get32(f->len) == KVS_DATA_FRAME);
	KVS_ASSERT(kvs_get32(f->payload) == (tx->one_sided ? 0 : sum) &&
		   sum <= KVS_PAYLOAD_MAX);
	if (tx->one_sided && !c->t->one_sided)
		return -EOPNOTSUPP;
	tx->status = 0;
	return c->t->ops->write(c, tx);
}

int kvs_conn_read(struct kvs_conn *c, struct kvs_read *rd)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	KVS_ASSERT(rd->done);
	if (!c->t->one_sided || !c->t->ops->read)
		return -EOPNOTSUPP;
	if (!rd->addr || !rd->len || rd->len > KVS_PAYLOAD_MAX)
		return -EINVAL;
	rd->status = 0;
	return c->t->ops->read(c, rd);
}

void kvs_conn_stop_payload(struct kvs_conn *c)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	c->t->ops->stop_payload(c);
}

void kvs_conn_close(struct kvs_conn *c, int err, bool flush)
{
	KVS_CHECK_MAGIC(c, KVS_CONN_MAGIC);
	c->t->ops->close(c, err, flush);
}

int kvs_transport_register(struct kvs_transport *t, void *addr, uint64_t len,
			   struct kvs_mem **ret, char *err, size_t errlen)
{
	char none[1];

	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (!err || !errlen) {
		err = none;
		errlen = sizeof(none);
	}
	*ret = NULL;
	if (!len || len - 1 > UINT64_MAX - (uintptr_t)addr) {
		snprintf(err, errlen, "no bytes, or more than there are");
		return -EINVAL;
	}
	if (!t->ops->mem_register)
		return 0;
	return t->ops->mem_register(t, addr, len, ret, err, errlen);
}

static int at_ok(const struct kvs_mem_at *at, char *err, size_t errlen)
{
	if (at->len && at->len - 1 <= UINT64_MAX - (uintptr_t)at->addr &&
	    at->len <= UINT64_MAX - at->offset)
		return 0;
	snprintf(err, errlen, "no bytes, or more than there are");
	return -EINVAL;
}

int kvs_transport_register_at(struct kvs_transport *t,
			      const struct kvs_mem_at *at, struct kvs_mem **ret,
			      char *err, size_t errlen)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (at_ok(at, err, errlen))
		return -EINVAL;
	if (t->ops->mem_register_at)
		return t->ops->mem_register_at(t, at, ret, err, errlen);
	snprintf(err, errlen, "the data goes over %s", kvs_transport_name(t));
	return -EOPNOTSUPP;
}

int kvs_transport_try_at(struct kvs_transport *t, const struct kvs_mem_at *at,
			 const void *bytes, char *err, size_t errlen)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (at_ok(at, err, errlen) || at->len > KVS_MEM_TRY)
		return -EINVAL;
	if (t->ops->mem_try_at)
		return t->ops->mem_try_at(t, at, bytes, err, errlen);
	snprintf(err, errlen, "the data goes over %s", kvs_transport_name(t));
	return -EOPNOTSUPP;
}

void kvs_mem_release(struct kvs_mem *m)
{
	if (!m)
		return;
	KVS_CHECK_MAGIC(m, KVS_MEM_MAGIC);
	m->t->ops->mem_release(m);
}

int kvs_transport_watch(struct kvs_transport *t, int fd, short events,
			void (*ready)(struct kvs_watch *w, short revents,
				      void *arg),
			void *arg, struct kvs_watch **ret)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	if (!t->ops->watch)
		return -EOPNOTSUPP;
	if (fd < 0 || !ready || (events & ~(POLLIN | POLLOUT)))
		return -EINVAL;
	return t->ops->watch(t, fd, events, ready, arg, ret);
}

int kvs_watch_events(struct kvs_watch *w, short events)
{
	KVS_CHECK_MAGIC(w, KVS_WATCH_MAGIC);
	if (events & ~(POLLIN | POLLOUT))
		return -EINVAL;
	return w->t->ops->watch_events(w, events);
}

void kvs_watch_remove(struct kvs_watch *w)
{
	if (!w)
		return;
	KVS_CHECK_MAGIC(w, KVS_WATCH_MAGIC);
	w->t->ops->watch_remove(w);
}

void kvs_transport_stats(const struct kvs_transport *t,
			 struct kvs_transport_stats *ret)
{
	KVS_CHECK_MAGIC(t, KVS_TRANSPORT_MAGIC);
	*ret = t->stats;
	if (t->ops->stats)
		t->ops->stats(t, ret);
}
