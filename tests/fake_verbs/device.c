/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: list, contexts, attributes, addresses, asynchronous events. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/assert.h"
#include "tests/fake_verbs/internal.h"

static enum ibv_mtu mtu_enum(unsigned int bytes)
{
	enum ibv_mtu m = IBV_MTU_256;

	while (m < IBV_MTU_4096 && (128u << (m + 1)) <= bytes)
		m++;
	return m;
}

static void add_gid(struct fv_device *d, const struct fv_gid *g)
{
	struct fv_gid_at *to = &d->gid[d->s.n_gids++];
	struct in_addr v4;

	if (inet_pton(AF_INET, g->addr, &v4) == 1) {
		to->gid.raw[10] = 0xff;
		to->gid.raw[11] = 0xff;
		memcpy(to->gid.raw + 12, &v4, sizeof(v4));
	} else {
		KVS_ASSERT(inet_pton(AF_INET6, g->addr, to->gid.raw) == 1);
	}
	to->type = g->type;
	to->port = g->port ? g->port : 1;
	to->index = g->index;
}

static void default_gids(struct fv_device *d, unsigned int n)
{
	char ll[48], v4[48];
	struct fv_gid g = { .addr = ll };
	unsigned int i;

	for (g.port = 1; g.port <= d->s.ports; g.port++) {
		snprintf(ll, sizeof(ll), "fe80::f:%x:%x", n, g.port);
		snprintf(v4, sizeof(v4), "10.90.%u.%u", n, g.port);
		if (d->s.infiniband) {
			g.type = IBV_GID_TYPE_IB;
			add_gid(d, &g);
			continue;
		}
		for (i = 0; i < 4; i++) {
			g.addr = i < 2 ? ll : v4;
			g.type = i % 2 ? IBV_GID_TYPE_ROCE_V2
				       : IBV_GID_TYPE_ROCE_V1;
			g.index = i;
			add_gid(d, &g);
		}
	}
}

static void defaults(struct fv_spec *s)
{
	s->ports = s->ports ? s->ports : 1;
	s->windows = s->windows ? s->windows : 'B';
	s->mtu = s->mtu ? s->mtu : 4096;
	s->max_sge = s->max_sge ? s->max_sge : 30;
	s->qp_sge = s->qp_sge ? s->qp_sge : s->max_sge;
	s->max_wr = s->max_wr ? s->max_wr : 16384;
	s->max_cqe = s->max_cqe ? s->max_cqe : 65536;
	s->max_qp = s->max_qp ? s->max_qp : 1024;
	s->max_mr = s->max_mr ? s->max_mr : 65536;
	s->max_msg = s->max_msg ? s->max_msg : 1u << 30;
	s->max_mw_len = s->max_mw_len ? s->max_mw_len : UINT64_MAX;
	s->reads = s->reads ? s->reads : 16;
}

struct fv_device *fv_device_add(const struct fv_spec *s)
{
	struct fv_device *d = calloc(1, sizeof(*d));
	struct fv_device *o;
	unsigned int i, n = 1;

	KVS_ASSERT(d && s->ports <= FV_PORTS_MAX && s->n_gids <= FV_GIDS_MAX);
	fv_lock();
	kvs_list_for_each_entry(o, &fv_w.devices, node)
		n++;
	d->s = *s;
	d->s.n_gids = 0;
	defaults(&d->s);
	snprintf(d->name, sizeof(d->name), "%s", s->name);
	d->s.name = d->name;
	kvs_list_init(&d->contexts);
	kvs_list_init(&d->qps);
	d->next_qpn = 0x11 + 0x1000 * n;
	d->ibv.node_type = s->iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
	d->ibv.transport_type = s->iwarp ? IBV_TRANSPORT_IWARP
					 : IBV_TRANSPORT_IB;
	snprintf(d->ibv.name, sizeof(d->ibv.name), "%s", s->name);
	snprintf(d->ibv.dev_name, sizeof(d->ibv.dev_name), "uverbs%u", n - 1);
	for (i = 1; i <= d->s.ports; i++) {
		d->port[i].down = s->down;
		d->port[i].lid = s->infiniband ? (uint16_t)(16 * n + i) : 0;
	}
	for (i = 0; i < s->n_gids; i++)
		add_gid(d, &s->gids[i]);
	if (!s->n_gids)
		default_gids(d, n);
	kvs_list_add_tail(&fv_w.devices, &d->node);
	KVS_ASSERT(!fv_sysfs_make(d));
	fv_unlock();
	return d;
}

struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = NULL;
	struct fv_device *d;
	int n = 0, rc;

	fv_lock();
	rc = fv_enter(FV_GET_DEVICE_LIST);
	if (rc)
		goto out;
	kvs_list_for_each_entry(d, &fv_w.devices, node)
		n++;
	list = calloc((size_t)n + 1, sizeof(*list));
	rc = list ? 0 : ENOMEM;
	if (rc)
		goto out;
	n = 0;
	kvs_list_for_each_entry(d, &fv_w.devices, node)
		list[n++] = &d->ibv;
	fv_w.live.lists++;
out:
	fv_unlock();
	if (num)
		*num = n;
	if (rc)
		errno = rc;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	fv_lock();
	fv_w.live.lists--;
	fv_unlock();
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	(void)device;
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *a, size_t len)
{
	struct fv_device *d = fv_dev_of(context);
	int rc;

	memset(a, 0, len);
	fv_lock();
	rc = fv_enter(FV_QUERY_PORT);
	if (!rc && d->dead)
		rc = EIO;
	if (!rc && (!port || port > d->s.ports))
		rc = EINVAL;
	if (!rc) {
		a->state = d->port[port].down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
		a->max_mtu = IBV_MTU_4096;
		a->active_mtu = mtu_enum(d->s.mtu);
		a->gid_tbl_len = 16;
		a->max_msg_sz = (uint32_t)d->s.max_msg;
		a->pkey_tbl_len = 1;
		a->lid = d->port[port].lid;
		a->link_layer = d->s.infiniband ? IBV_LINK_LAYER_INFINIBAND
						: IBV_LINK_LAYER_ETHERNET;
	}
	fv_unlock();
	return rc;
}

/* Of programs from before contexts had a table; nobody gets here. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port,
		   struct _compat_ibv_port_attr *a)
{
	(void)context;
	(void)port;
	(void)a;
	return EOPNOTSUPP;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct fv_device *d = kvs_container_of(device, struct fv_device, ibv);
	struct fv_ctx *c = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_OPEN_DEVICE);
	if (!rc && d->dead)
		rc = EIO;
	if (rc)
		goto out;
	c = calloc(1, sizeof(*c));
	KVS_ASSERT(c);
	c->dev = d;
	kvs_list_init(&c->events);
	kvs_list_init(&c->pds);
	kvs_list_init(&c->mrs);
	kvs_list_init(&c->mws);
	kvs_list_init(&c->chans);
	kvs_list_init(&c->cqs);
	kvs_list_init(&c->srqs);
	kvs_list_init(&c->qps);
	c->v.sz = sizeof(c->v);
	c->v.query_port = query_port;
	c->v.context.device = device;
	c->v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->v.context.cmd_fd = -1;
	c->v.context.num_comp_vectors = 1;
	c->v.context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	KVS_ASSERT(c->v.context.async_fd >= 0);
	fv_memory_init(c);
	fv_queue_init(c);
	fv_qp_init(c);
	kvs_list_add_tail(&d->contexts, &c->node);
	fv_w.live.contexts++;
out:
	fv_unlock();
	if (rc)
		errno = rc;
	return c ? &c->v.context : NULL;
}

#define FREE_ALL(list, type, free_one)                             \
	while (!kvs_list_empty(list)) {                            \
		free_one(kvs_list_first(list, struct type, node)); \
		fv_w.counts.left_behind++;                         \
	}

static void pd_free(struct fv_pd *pd)
{
	kvs_list_del(&pd->node);
	fv_w.live.pds--;
	free(pd);
}

/* What the kernel does for a process that ends: in this order. */
int ibv_close_device(struct ibv_context *context)
{
	struct fv_ctx *c = fv_ctx_of(context);

	fv_lock();
	(void)fv_enter(FV_CLOSE_DEVICE);
	FREE_ALL(&c->mws, fv_mw, fv_mw_free);
	FREE_ALL(&c->qps, fv_qp, fv_qp_free);
	FREE_ALL(&c->srqs, fv_srq, fv_srq_free);
	FREE_ALL(&c->cqs, fv_cq, fv_cq_free);
	FREE_ALL(&c->chans, fv_chan, fv_chan_free);
	FREE_ALL(&c->mrs, fv_mr, fv_mr_free);
	FREE_ALL(&c->pds, fv_pd, pd_free);
	while (!kvs_list_empty(&c->events)) {
		struct fv_event *e =
			kvs_list_first(&c->events, struct fv_event, node);

		kvs_list_del(&e->node);
		free(e);
	}
	kvs_list_del(&c->node);
	fv_w.live.contexts--;
	fv_unlock();
	close(context->async_fd);
	free(c);
	return 0;
}

static unsigned int cap_flags(const struct fv_device *d)
{
	switch (d->s.windows) {
	case 'A':
		return IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS |
		       IBV_DEVICE_MEM_WINDOW_TYPE_2A;
	case 'B':
		return IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS |
		       IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	default:
		return 0;
	}
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *a)
{
	struct fv_device *d = fv_dev_of(context);
	int rc;

	fv_lock();
	rc = fv_enter(FV_QUERY_DEVICE);
	if (!rc && d->dead)
		rc = EIO;
	fv_unlock();
	if (rc)
		return rc;
	memset(a, 0, sizeof(*a));
	snprintf(a->fw_ver, sizeof(a->fw_ver), "1");
	a->max_mr_size = d->s.max_mr_size ? d->s.max_mr_size : UINT64_MAX;
	a->page_size_cap = 4096;
	a->vendor_id = d->s.driver && !strcmp(d->s.driver, "rxe") ? 0xffffff
								  : 0x2c9;
	a->max_qp = (int)d->s.max_qp;
	a->max_qp_wr = (int)d->s.max_wr;
	a->device_cap_flags = cap_flags(d);
	a->max_sge = (int)d->s.max_sge;
	a->max_sge_rd = (int)d->s.max_sge;
	a->max_cq = 65536;
	a->max_cqe = (int)d->s.max_cqe;
	a->max_mr = (int)d->s.max_mr;
	a->max_pd = 65536;
	a->max_qp_rd_atom = (int)d->s.reads;
	a->max_qp_init_rd_atom = (int)d->s.reads;
	a->max_mw = d->s.windows == '-' ? 0 : (int)d->s.max_mr;
	a->max_srq = 1024;
	a->max_srq_wr = (int)d->s.max_wr;
	a->max_srq_sge = (int)d->s.max_sge;
	a->max_pkeys = 1;
	a->phys_port_cnt = (uint8_t)d->s.ports;
	return 0;
}

/* ---- addresses ---- */

const struct fv_gid_at *fv_gid_find(const struct fv_device *d,
				    unsigned int port, unsigned int index)
{
	unsigned int i;

	for (i = 0; i < d->s.n_gids; i++)
		if (d->gid[i].port == port && d->gid[i].index == index)
			return &d->gid[i];
	return NULL;
}

bool fv_device_by_gid(const union ibv_gid *gid, struct fv_device **ret,
		      unsigned int *ret_port, enum ibv_gid_type *ret_type)
{
	struct fv_device *d;
	unsigned int i;

	kvs_list_for_each_entry(d, &fv_w.devices, node)
		for (i = 0; i < d->s.n_gids; i++)
			if (!memcmp(&d->gid[i].gid, gid, sizeof(*gid)) &&
			    d->gid[i].type == *ret_type) {
				*ret = d;
				*ret_port = d->gid[i].port;
				return true;
			}
	return false;
}

bool fv_device_by_lid(uint16_t lid, struct fv_device **ret,
		      unsigned int *ret_port)
{
	struct fv_device *d;
	unsigned int p;

	kvs_list_for_each_entry(d, &fv_w.devices, node)
		for (p = 1; lid && p <= d->s.ports; p++)
			if (d->port[p].lid == lid) {
				*ret = d;
				*ret_port = p;
				return true;
			}
	return false;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index,
		  union ibv_gid *gid)
{
	const struct fv_gid_at *g;
	int rc;

	fv_lock();
	rc = fv_enter(FV_QUERY_GID);
	g = fv_gid_find(fv_dev_of(context), port, (unsigned int)index);
	if (!rc && fv_dev_of(context)->dead)
		rc = EIO;
	if (!rc && g)
		*gid = g->gid;
	else if (!rc)
		memset(gid, 0, sizeof(*gid)); /* an empty place */
	fv_unlock();
	if (rc)
		errno = rc;
	return rc ? -1 : 0;
}

static void fill_entry(const struct fv_gid_at *g, struct ibv_gid_entry *e)
{
	*e = (struct ibv_gid_entry){
		.gid = g->gid,
		.gid_index = g->index,
		.port_num = g->port,
		.gid_type = g->type,
		.ndev_ifindex = g->type == IBV_GID_TYPE_IB ? 0 : 1,
	};
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port,
		      uint32_t index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size)
{
	const struct fv_gid_at *g;
	int rc;

	(void)flags;
	(void)entry_size;
	fv_lock();
	rc = fv_enter(FV_QUERY_GID);
	g = fv_gid_find(fv_dev_of(context), port, index);
	if (!rc && !g)
		rc = ENODATA;
	if (!rc)
		fill_entry(g, entry);
	fv_unlock();
	return rc;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context,
			     struct ibv_gid_entry *entries, size_t max,
			     uint32_t flags, size_t entry_size)
{
	struct fv_device *d = fv_dev_of(context);
	ssize_t n = 0;
	int rc;

	(void)flags;
	(void)entry_size;
	fv_lock();
	rc = fv_enter(FV_QUERY_GID);
	if (!rc && d->dead)
		rc = EIO;
	for (; !rc && (size_t)n < max && (unsigned int)n < d->s.n_gids; n++)
		fill_entry(&d->gid[n], &entries[n]);
	fv_unlock();
	return rc ? -rc : n;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index,
		   __be16 *pkey)
{
	(void)context;
	(void)port;
	*pkey = 0xffff;
	return index ? -1 : 0;
}

/* ---- asynchronous events ---- */

void fv_ring(int fd)
{
	uint64_t one = 1;

	KVS_ASSERT(write(fd, &one, sizeof(one)) == sizeof(one));
}

/* Another thread may have read it, and not come to its event yet. */
void fv_unring(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t v;

	if (poll(&p, 1, 0) == 1)
		(void)!read(fd, &v, sizeof(v));
}

void fv_async(struct fv_ctx *ctx, const struct ibv_async_event *e)
{
	struct fv_event *ev = calloc(1, sizeof(*ev));

	KVS_ASSERT(ev);
	ev->e = *e;
	kvs_list_add_tail(&ctx->events, &ev->node);
	fv_ring(ctx->v.context.async_fd);
}

void fv_async_forget(struct fv_ctx *ctx, const void *object)
{
	struct fv_event *ev, *tmp;

	kvs_list_for_each_entry_safe(ev, tmp, &ctx->events, node) {
		/* the union's pointers are one; a port is no object */
		if (ev->e.event_type == IBV_EVENT_PORT_ERR ||
		    ev->e.event_type == IBV_EVENT_PORT_ACTIVE ||
		    (const void *)ev->e.element.qp != object)
			continue;
		fv_unring(ctx->v.context.async_fd);
		kvs_list_del(&ev->node);
		free(ev);
	}
}

static bool is_qp_event(enum ibv_event_type t)
{
	return t == IBV_EVENT_QP_FATAL || t == IBV_EVENT_QP_REQ_ERR ||
	       t == IBV_EVENT_QP_ACCESS_ERR || t == IBV_EVENT_COMM_EST ||
	       t == IBV_EVENT_SQ_DRAINED || t == IBV_EVENT_QP_LAST_WQE_REACHED;
}

int ibv_get_async_event(struct ibv_context *context,
			struct ibv_async_event *event)
{
	struct fv_ctx *c = fv_ctx_of(context);
	struct fv_event *ev = NULL;
	uint64_t v;
	int rc;

	fv_lock();
	rc = fv_enter(FV_GET_ASYNC_EVENT);
	fv_unlock();
	if (rc) {
		errno = rc;
		return -1;
	}
	if (read(context->async_fd, &v, sizeof(v)) != sizeof(v))
		return -1;
	fv_lock();
	if (!kvs_list_empty(&c->events)) {
		ev = kvs_list_first(&c->events, struct fv_event, node);
		kvs_list_del(&ev->node);
		*event = ev->e;
		fv_w.counts.async++;
		if (is_qp_event(event->event_type))
			kvs_container_of(event->element.qp, struct fv_qp, ibv)
				->given++;
	}
	fv_unlock();
	if (!ev)
		errno = EAGAIN;
	free(ev);
	return ev ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	fv_lock();
	(void)fv_enter(FV_ACK_ASYNC_EVENT);
	fv_w.counts.async_acked++;
	if (is_qp_event(event->event_type))
		kvs_container_of(event->element.qp, struct fv_qp, ibv)->acked++;
	pthread_cond_broadcast(&fv_w.acked);
	fv_unlock();
}

void fv_port_set(struct fv_device *d, unsigned int port, bool up)
{
	struct ibv_async_event e = {
		.element.port_num = (int)port,
		.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR,
	};
	struct fv_ctx *c;

	fv_lock();
	if (d->port[port].down == up) {
		d->port[port].down = !up;
		kvs_list_for_each_entry(c, &d->contexts, node)
			fv_async(c, &e);
		if (up)
			fv_run_all();
	}
	fv_unlock();
}

void fv_device_die(struct fv_device *d)
{
	struct ibv_async_event e = { .event_type = IBV_EVENT_DEVICE_FATAL };
	struct fv_ctx *c;

	fv_lock();
	d->dead = true;
	kvs_list_for_each_entry(c, &d->contexts, node)
		fv_async(c, &e);
	fv_unlock();
}

void fv_qp_event(struct fv_device *d, enum ibv_event_type event)
{
	struct ibv_async_event e = { .event_type = event };
	struct fv_qp *qp;

	fv_lock();
	kvs_list_for_each_entry(qp, &d->qps, on_dev) {
		e.element.qp = &qp->ibv;
		fv_async(fv_ctx_of(qp->ibv.context), &e);
	}
	fv_unlock();
}

void fv_qp_break(struct fv_device *d)
{
	struct fv_qp *qp;

	fv_lock();
	kvs_list_for_each_entry(qp, &d->qps, on_dev)
		fv_qp_err(qp);
	fv_unlock();
}
