/* SPDX-License-Identifier: Apache-2.0 */
/* In-process fabric and its endpoints. See loop_internal.h. */
#include "rdma/loop_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/assert.h"

#define FABRIC_MAGIC 0x46414252u
#define POLL_BUDGET 1024 /* events of one poll */

/* ---- the heap of connections that have an event ---- */

void kvs_loop_sort(struct loop_conn *c)
{
	if (!c->ep)
		return;
	if (kvs_list_empty(&c->events) || c->stalled)
		kvs_loop_heap_del(&c->ep->heap, &c->slot);
	else
		kvs_loop_heap_put(&c->ep->heap, &c->slot);
}

int kvs_loop_reserve(struct loop_ep *ep)
{
	return kvs_loop_heap_reserve(&ep->heap, ep->n_conns + 1);
}

/* The connection whose event is due first; its slot. */
static struct loop_conn *first_due(const struct loop_ep *ep)
{
	struct loop_slot *s = kvs_loop_heap_first(&ep->heap);

	return s ? kvs_container_of(s, struct loop_conn, slot) : NULL;
}

void kvs_loop_enter(struct loop_conn *c, struct loop_ep *ep)
{
	c->ep = ep;
	c->c.t = &ep->t;
	ep->n_conns++;
	kvs_list_add_tail(&ep->conns, &c->node);
	kvs_loop_sort(c);
	if (c->dying)
		kvs_list_add_tail(&ep->self, &c->self);
}

void kvs_loop_leave(struct loop_conn *c)
{
	if (!c->ep)
		return;
	kvs_loop_heap_del(&c->ep->heap, &c->slot);
	kvs_list_del(&c->node);
	kvs_list_del(&c->self);
	kvs_list_del(&c->flush);
	c->ep->n_conns--;
	c->ep = NULL;
}

/* ---- connections ---- */

struct loop_conn *kvs_loop_conn_new(struct kvs_fabric *f, struct loop_ep *ep)
{
	struct loop_conn *c;

	if (kvs_loop_reserve(ep))
		return NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->c.magic = KVS_CONN_MAGIC;
	c->f = f;
	c->slot.id = f->next_id++;
	c->slot.place = KVS_LOOP_NO_PLACE;
	kvs_list_init(&c->node);
	kvs_list_init(&c->self);
	kvs_list_init(&c->flush);
	kvs_list_init(&c->events);
	kvs_list_init(&c->wire);
	kvs_list_init(&c->ghosts);
	kvs_list_init(&c->txq);
	kvs_list_init(&c->txdone);
	kvs_list_init(&c->rdq);
	kvs_list_init(&c->rddone);
	kvs_loop_enter(c, ep);
	return c;
}

void kvs_loop_conn_free(struct loop_conn *c)
{
	struct loop_event *e;

	KVS_ASSERT(!c->peer && !c->rx_live && kvs_list_empty(&c->txq) &&
		   kvs_list_empty(&c->rdq));
	kvs_loop_leave(c);
	kvs_loop_wire_purge(c);
	while (!kvs_list_empty(&c->events)) {
		e = kvs_list_first(&c->events, struct loop_event, node);
		kvs_list_del(&e->node);
		kvs_loop_event_free(e);
	}
	c->c.magic = 0;
	free(c);
}

static struct loop_ep *find_ep(struct kvs_fabric *f, const char *name)
{
	struct loop_ep *ep;

	kvs_list_for_each_entry(ep, &f->eps, node)
		if (!ep->dead && !strcmp(ep->name, name))
			return ep;
	return NULL;
}

int kvs_loop_connect(struct kvs_transport *t, const char *name,
		     enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
		     void *user, struct kvs_conn **ret)
{
	struct loop_ep *ep = kvs_loop_ep_of(t);
	struct kvs_fabric *f = ep->f;
	struct loop_ep *far = find_ep(f, name);
	struct loop_conn *a;
	struct loop_conn *b = NULL;
	int rc;

	if (ep->closing || ep->dead)
		return -ESHUTDOWN;
	a = kvs_loop_conn_new(f, ep);
	if (!a)
		return -ENOMEM;
	kvs_conn_set_ops(&a->c, kind, ops, user);
	snprintf(a->c.peer, sizeof(a->c.peer), "%s", name);
	if (far && !far->closing && far->listener) {
		b = kvs_loop_conn_new(f, far);
		if (!b)
			goto nomem;
		snprintf(b->c.peer, sizeof(b->c.peer), "%s", ep->name);
		a->peer = b;
		b->peer = a;
		rc = kvs_loop_post(f, b, LOOP_ACCEPT);
	} else {
		rc = kvs_loop_post(f, a, LOOP_REFUSED);
	}
	if (rc)
		goto nomem;
	*ret = &a->c;
	return 0;
nomem:
	a->peer = NULL;
	if (b) {
		b->peer = NULL;
		kvs_loop_conn_free(b);
	}
	kvs_loop_conn_free(a);
	return -ENOMEM;
}

/* ---- addresses: the name of an endpoint in a sun_path ---- */

int kvs_loop_addr(const char *endpoint, struct kvs_addr *ret)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	size_t n = strlen(endpoint);

	if (!n || n >= KVS_LOOP_NAME)
		return -EINVAL;
	memcpy(un.sun_path, endpoint, n);
	memset(ret, 0, sizeof(*ret));
	ret->n = 1;
	ret->a[0].len =
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
	memcpy(&ret->a[0].ss, &un, sizeof(un));
	return 0;
}

/* The first address that can be an endpoint's. Return: 0; -EAFNOSUPPORT. */
static int addr_name(const struct kvs_addr *addr, char name[KVS_LOOP_NAME])
{
	const struct sockaddr_un *un;
	unsigned int i;
	size_t n;

	for (i = 0; i < addr->n; i++) {
		un = (const void *)&addr->a[i].ss;
		if (un->sun_family != AF_UNIX)
			continue;
		n = strnlen(un->sun_path, sizeof(un->sun_path));
		if (!n || n >= KVS_LOOP_NAME)
			continue;
		memcpy(name, un->sun_path, n);
		name[n] = '\0';
		return 0;
	}
	return -EAFNOSUPPORT;
}

static int loop_connect(struct kvs_transport *t, const struct kvs_addr *addr,
			enum kvs_conn_kind kind, const struct kvs_conn_ops *ops,
			void *user, struct kvs_conn **ret)
{
	char name[KVS_LOOP_NAME];
	int rc = addr_name(addr, name);

	return rc ? rc : kvs_loop_connect(t, name, kind, ops, user, ret);
}

static int loop_listen(struct kvs_transport *t, const struct kvs_addr *addr,
		       int (*accepted)(struct kvs_conn *c, void *arg),
		       void *arg, struct kvs_listener **ret)
{
	char name[KVS_LOOP_NAME];
	int rc = addr_name(addr, name);

	if (rc)
		return rc;
	if (strcmp(name, kvs_loop_ep_of(t)->name))
		return -EADDRNOTAVAIL;
	return kvs_loop_listen(t, accepted, arg, ret);
}

static int loop_listener_addr(const struct kvs_listener *l,
			      struct sockaddr_storage *ret, socklen_t *ret_len)
{
	struct kvs_addr a;
	int rc = kvs_loop_addr(kvs_loop_ep_of(l->t)->name, &a);

	if (rc)
		return rc;
	*ret = a.a[0].ss;
	*ret_len = a.a[0].len;
	return 0;
}

/* ---- giving away ---- */

static int loop_detach(struct kvs_conn *conn)
{
	struct loop_conn *c = kvs_loop_conn_of(conn);
	struct kvs_fabric *f = c->f;
	struct loop_conn **p;
	size_t i;

	if (!c->in_frame || c->dying || c->flushing ||
	    !kvs_list_empty(&c->txq) || !kvs_list_empty(&c->txdone) ||
	    !kvs_list_empty(&c->rdq) || !kvs_list_empty(&c->rddone))
		return -EBUSY;
	for (i = 0; i < f->n_handles && f->handles[i]; i++)
		;
	if (i == f->n_handles) {
		p = realloc(f->handles, (i + 1) * sizeof(*p));
		if (!p)
			return -ENOMEM;
		f->handles = p;
		f->n_handles++;
	}
	f->handles[i] = c;
	kvs_loop_leave(c);
	c->gen++;
	c->in_frame = false;
	c->c.magic = 0;
	c->c.owner = 0;
	return (int)i;
}

static void loop_discard(struct kvs_transport *t, int fd)
{
	struct kvs_fabric *f = kvs_loop_ep_of(t)->f;
	struct loop_conn *c;

	if ((size_t)fd >= f->n_handles || !f->handles[fd])
		return;
	c = f->handles[fd];
	f->handles[fd] = NULL;
	kvs_loop_cut(c, LOOP_RST);
	kvs_loop_conn_free(c);
}

static int loop_adopt(struct kvs_transport *t, int fd, enum kvs_conn_kind kind,
		      const struct kvs_conn_ops *ops, void *user,
		      struct kvs_conn **ret)
{
	struct loop_ep *ep = kvs_loop_ep_of(t);
	struct kvs_fabric *f = ep->f;
	struct loop_conn *c;

	if (ep->closing || ep->dead)
		return -ESHUTDOWN;
	if ((size_t)fd >= f->n_handles || !f->handles[fd])
		return -EBADF;
	if (kvs_loop_reserve(ep))
		return -ENOMEM;
	c = f->handles[fd];
	f->handles[fd] = NULL;
	c->c.magic = KVS_CONN_MAGIC;
	kvs_conn_set_ops(&c->c, kind, ops, user);
	kvs_loop_enter(c, ep);
	*ret = &c->c;
	return 0;
}

/* ---- endpoints ---- */

static void run_self(struct loop_ep *ep)
{
	struct loop_conn *c;

	/* a dead process hears nothing until it is destroyed */
	while (!kvs_list_empty(&ep->self) && (!ep->dead || ep->closing)) {
		c = kvs_list_first(&ep->self, struct loop_conn, self);
		kvs_list_del(&c->self);
		kvs_loop_self(c);
	}
}

static void run_deadlines(struct loop_ep *ep, uint64_t now)
{
	struct loop_conn *c;

	while (!kvs_list_empty(&ep->flush)) {
		c = kvs_list_first(&ep->flush, struct loop_conn, flush);
		if (c->deadline > now)
			return;
		kvs_loop_die(c, c->err);
	}
}

static uint64_t ep_next(const struct loop_ep *ep)
{
	uint64_t next = KVS_TIME_NEVER;
	const struct loop_conn *c;
	uint64_t t;

	if (ep->dead)
		return next;
	if (!kvs_list_empty(&ep->self))
		return kvs_loop_now(ep->f);
	c = first_due(ep);
	if (c)
		next = c->slot.due;
	t = kvs_loop_grants_next(ep);
	next = t < next ? t : next;
	if (!kvs_list_empty(&ep->flush)) {
		c = kvs_list_first(&ep->flush, struct loop_conn, flush);
		if (c->deadline < next)
			next = c->deadline;
	}
	return next;
}

uint64_t kvs_loop_next(const struct kvs_transport *t)
{
	return ep_next(kvs_loop_ep_of(t));
}

uint64_t kvs_fabric_next_wire(const struct kvs_fabric *f)
{
	const struct loop_slot *s = kvs_loop_heap_first(&f->wire);

	return s ? s->due : KVS_TIME_NEVER;
}

uint64_t kvs_fabric_next(const struct kvs_fabric *f)
{
	uint64_t next = kvs_fabric_next_wire(f);
	const struct loop_ep *ep;

	kvs_list_for_each_entry(ep, &f->eps, node) {
		uint64_t t = ep_next(ep);

		if (t < next)
			next = t;
	}
	return next;
}

/*
 * Real clock only: until the next event of anyone, since all endpoints share
 * this thread, or a wake.
 */
static void sleep_until(struct loop_ep *ep, uint64_t timeout_ns)
{
	struct pollfd pfd = { .fd = ep->wake_fd, .events = POLLIN };
	uint64_t next = kvs_fabric_next(ep->f);
	uint64_t now = kvs_loop_now(ep->f);
	struct timespec ts;
	uint64_t wait;
	uint64_t n;

	wait = next == KVS_TIME_NEVER ? next : next > now ? next - now : 0;
	if (timeout_ns < wait)
		wait = timeout_ns;
	ts.tv_sec = (time_t)(wait / KVS_NSEC_PER_SEC);
	ts.tv_nsec = (long)(wait % KVS_NSEC_PER_SEC);
	if (ppoll(&pfd, 1, wait == KVS_TIME_NEVER ? NULL : &ts, NULL) > 0)
		while (read(ep->wake_fd, &n, sizeof(n)) < 0 && errno == EINTR)
			;
}

static void run_due(struct loop_ep *ep)
{
	uint64_t now = kvs_loop_now(ep->f);
	int budget = POLL_BUDGET;
	struct loop_conn *c;

	kvs_loop_wire_run(ep->f);
	run_self(ep);
	while (budget-- && !ep->dead) {
		c = first_due(ep);
		if (!c || c->slot.due > now)
			break;
		kvs_loop_deliver(c);
		run_self(ep);
	}
	if (ep->dead)
		return;
	kvs_loop_grants_run(ep, now);
	run_deadlines(ep, now);
	run_self(ep);
}

static int loop_poll(struct kvs_transport *t, uint64_t timeout_ns)
{
	struct loop_ep *ep = kvs_loop_ep_of(t);

	if (ep->dead)
		return 0;
	ep->handled = 0;
	run_due(ep);
	if (!ep->handled && timeout_ns && ep->wake_fd >= 0 && !ep->dead) {
		sleep_until(ep, timeout_ns);
		run_due(ep);
	}
	return (int)ep->handled;
}

static void loop_wake(struct kvs_transport *t)
{
	uint64_t one = 1;
	int saved = errno;

	/* On a virtual clock poll never sleeps: nothing to wake. */
	if (kvs_loop_ep_of(t)->wake_fd >= 0)
		while (write(kvs_loop_ep_of(t)->wake_fd, &one, sizeof(one)) <
			       0 &&
		       errno == EINTR)
			;
	errno = saved;
}

int kvs_loop_listen(struct kvs_transport *t,
		    int (*accepted)(struct kvs_conn *c, void *arg), void *arg,
		    struct kvs_listener **ret)
{
	struct loop_ep *ep = kvs_loop_ep_of(t);
	struct loop_listener *l;

	if (ep->listener)
		return -EADDRINUSE;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->l.magic = KVS_LISTENER_MAGIC;
	l->l.t = t;
	l->l.accepted = accepted;
	l->l.arg = arg;
	ep->listener = l;
	*ret = &l->l;
	return 0;
}

static void loop_listener_close(struct kvs_listener *l)
{
	kvs_loop_ep_of(l->t)->listener = NULL;
	l->magic = 0;
	free(l);
}

static void loop_destroy(struct kvs_transport *t)
{
	struct loop_ep *ep = kvs_loop_ep_of(t);
	struct loop_conn *c;

	ep->closing = true;
	kvs_list_for_each_entry(c, &ep->conns, node)
		kvs_loop_die(c, -ESHUTDOWN);
	run_self(ep);
	KVS_ASSERT(kvs_list_empty(&ep->conns));
	kvs_loop_grants_end(ep);
	if (ep->listener)
		loop_listener_close(&ep->listener->l);
	kvs_list_del(&ep->node);
	if (ep->wake_fd >= 0)
		close(ep->wake_fd);
	kvs_loop_heap_fini(&ep->heap);
	ep->t.magic = 0;
	free(ep);
}

/* Descriptors mean nothing here: no watches. */
static const struct kvs_transport_ops loop_ops = {
	.name = "loop",
	.destroy = loop_destroy,
	.poll = loop_poll,
	.wake = loop_wake,
	.listen = loop_listen,
	.listener_close = loop_listener_close,
	.listener_addr = loop_listener_addr,
	.connect = loop_connect,
	.adopt = loop_adopt,
	.detach = loop_detach,
	.discard = loop_discard,
	.send = kvs_loop_send,
	.write = kvs_loop_write,
	.read = kvs_loop_read,
	.stop_payload = kvs_loop_stop_payload,
	.close = kvs_loop_close,
	.watch = NULL,
	.watch_events = NULL,
	.watch_remove = NULL,
	.grant_size = sizeof(struct loop_grant),
	.grant_open = kvs_loop_grant_open,
	.grant_close = kvs_loop_grant_close,
};

int kvs_loop_create(struct kvs_fabric *f, const char *name,
		    struct kvs_transport **ret)
{
	struct kvs_transport_opts o = { .clock = f->clock };
	struct loop_ep *ep;
	int rc;

	KVS_CHECK_MAGIC(f, FABRIC_MAGIC);
	if (!*name || strlen(name) >= KVS_LOOP_NAME)
		return -EINVAL;
	if (find_ep(f, name))
		return -EEXIST;
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return -ENOMEM;
	kvs_transport_init(&ep->t, &loop_ops, &o);
	ep->t.one_sided = f->one_sided;
	ep->f = f;
	snprintf(ep->name, sizeof(ep->name), "%s", name);
	kvs_list_init(&ep->conns);
	kvs_list_init(&ep->self);
	kvs_list_init(&ep->flush);
	kvs_list_init(&ep->grants);
	kvs_list_init(&ep->granting);
	ep->wake_fd = -1;
	if (f->clock->now == kvs_clock_real.now) {
		ep->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (ep->wake_fd < 0) {
			rc = -errno;
			free(ep);
			return rc;
		}
	}
	kvs_list_add_tail(&f->eps, &ep->node);
	*ret = &ep->t;
	return 0;
}

/* ---- fabric ---- */

static bool plan_ok(const struct kvs_loop_plan *p)
{
	return p->latency_max >= p->latency_min || !p->latency_max;
}

int kvs_fabric_set_plan(struct kvs_fabric *f, const struct kvs_loop_plan *p)
{
	KVS_CHECK_MAGIC(f, FABRIC_MAGIC);
	if (!plan_ok(p))
		return -EINVAL;
	f->plan = *p;
	return 0;
}

int kvs_fabric_create(const struct kvs_fabric_opts *o, struct kvs_fabric **ret)
{
	struct kvs_fabric *f;

	if (!plan_ok(&o->plan))
		return -EINVAL;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->magic = FABRIC_MAGIC;
	f->clock = o->clock ? o->clock : &kvs_clock_real;
	f->plan = o->plan;
	f->one_sided = o->one_sided;
	f->fault = o->fault;
	f->crashed = o->crashed;
	f->placed = o->placed;
	f->arg = o->arg;
	kvs_rng_init(&f->rng, o->seed);
	kvs_list_init(&f->eps);
	kvs_list_init(&f->held);
	kvs_list_init(&f->late);
	kvs_u64map_init(&f->keys, 0);
	*ret = f;
	return 0;
}

void kvs_fabric_destroy(struct kvs_fabric *f)
{
	struct loop_conn *c;
	size_t i;

	if (!f)
		return;
	KVS_CHECK_MAGIC(f, FABRIC_MAGIC);
	KVS_ASSERT(kvs_list_empty(&f->eps));
	for (i = 0; i < f->n_handles; i++) {
		c = f->handles[i];
		if (!c)
			continue;
		if (c->peer)
			c->peer->peer = NULL;
		c->peer = NULL;
		kvs_loop_conn_free(c);
	}
	free(f->handles);
	kvs_loop_heap_fini(&f->wire);
	kvs_u64map_fini(&f->keys);
	f->magic = 0;
	free(f);
}

unsigned int kvs_fabric_release(struct kvs_fabric *f)
{
	unsigned int n = 0;
	struct loop_event *e;
	struct loop_ep *ep;
	struct loop_conn *c;

	kvs_list_for_each_entry(ep, &f->eps, node) {
		kvs_list_for_each_entry(c, &ep->conns, node) {
			if (!c->stalled)
				continue;
			c->stalled = false;
			c->slot.due = kvs_loop_now(f);
			kvs_loop_sort(c);
			n++;
		}
	}
	while (!kvs_list_empty(&f->held)) {
		e = kvs_list_first(&f->held, struct loop_event, held);
		kvs_loop_wire_resume(f, e, 0);
		n++;
	}
	return n;
}

unsigned int kvs_fabric_run(struct kvs_fabric *f)
{
	KVS_CHECK_MAGIC(f, FABRIC_MAGIC);
	return kvs_loop_wire_run(f);
}

void kvs_fabric_kill(struct kvs_transport *t)
{
	struct loop_ep *ep = kvs_loop_ep_of(t);
	struct loop_conn *c;

	ep->dead = true;
	kvs_list_for_each_entry(c, &ep->conns, node) {
		kvs_loop_cut(c, LOOP_RST);
		kvs_loop_wire_purge(c);
	}
	/* A successor of that process listens under the same name. */
}

bool kvs_fabric_killed(const struct kvs_transport *t)
{
	return kvs_loop_ep_of(t)->dead;
}
