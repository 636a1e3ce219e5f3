/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of this machine: which can be used, which are, by what address. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/units.h"
#include "rdma/verbs_internal.h"

#define GIDS_MAX 256
#define PAGE 4096u

/* ---- sysfs ---- */

static int read_line(const char *path, char *buf, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, buf, len - 1);
	close(fd);
	if (n <= 0)
		return -EIO;
	buf[n] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return 0;
}

static int read_node(const char *dir)
{
	char path[IBV_SYSFS_PATH_MAX + 32];
	char buf[32];
	uint64_t node;

	snprintf(path, sizeof(path), "%s/device/numa_node", dir);
	/* a virtio device has none, what it sits on has */
	if (access(path, F_OK))
		snprintf(path, sizeof(path), "%s/device/../numa_node", dir);
	/* "-1" is not known either */
	if (read_line(path, buf, sizeof(buf)) || kvs_parse_u64(buf, &node) ||
	    node > INT_MAX)
		return -1;
	return (int)node;
}

/* A soft device has no device of its own, but a netdev under it. */
static int device_node(const struct ibv_device *ib)
{
	char path[IBV_SYSFS_PATH_MAX + 32];
	char netdev[64];
	int node = read_node(ib->ibdev_path);

	if (node >= 0)
		return node;
	snprintf(path, sizeof(path), "%s/parent", ib->ibdev_path);
	if (read_line(path, netdev, sizeof(netdev)))
		return -1;
	snprintf(path, sizeof(path), "/sys/class/net/%s", netdev);
	return read_node(path);
}

static void device_driver(const struct ibv_device *ib, uint32_t vendor,
			  char *ret, size_t len)
{
	char path[IBV_SYSFS_PATH_MAX + 32];
	char link[256];
	ssize_t n;

	snprintf(path, sizeof(path), "%s/device/driver", ib->ibdev_path);
	n = readlink(path, link, sizeof(link) - 1);
	if (n > 0) {
		link[n] = '\0';
		snprintf(ret, len, "%.31s",
			 strrchr(link, '/') ? strrchr(link, '/') + 1 : link);
		return;
	}
	snprintf(path, sizeof(path), "%s/parent", ib->ibdev_path);
	snprintf(ret, len, "%s",
		 vendor == 0xffffff && !access(path, F_OK) ? "rxe" : "?");
}

/* ---- addresses ---- */

static bool gid_is_v4(const union ibv_gid *g)
{
	static const unsigned char v4[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(g->raw, v4, sizeof(v4));
}

static bool gid_is_local(const union ibv_gid *g)
{
	return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

static enum kvs_verbs_link gid_link(uint32_t type)
{
	switch (type) {
	case IBV_GID_TYPE_IB:
		return KVS_VERBS_INFINIBAND;
	case IBV_GID_TYPE_ROCE_V1:
		return KVS_VERBS_ROCE_V1;
	default:
		return KVS_VERBS_ROCE_V2;
	}
}

/* Which of a port's addresses is worth most. */
static int gid_worth(const struct ibv_gid_entry *e)
{
	if (e->gid_type == IBV_GID_TYPE_IB)
		return e->gid_index ? 1 : 2;
	if (e->gid_type == IBV_GID_TYPE_ROCE_V1)
		return 1;
	if (gid_is_v4(&e->gid))
		return 4;
	return gid_is_local(&e->gid) ? 2 : 3;
}

static unsigned int prefix_bits(const unsigned char *a, const unsigned char *b)
{
	unsigned int i;

	for (i = 0; i < 16 && a[i] == b[i]; i++)
		;
	if (i == 16)
		return 128;
	return 8 * i + (unsigned int)__builtin_clz((a[i] ^ b[i]) & 0xffu) - 24;
}

/* All addresses of @d's port. Return: how many. */
static size_t gids(const struct kvs_verbs_dev *d, struct ibv_gid_entry *e)
{
	ssize_t n = ibv_query_gid_table(d->ctx, e, GIDS_MAX, 0);
	size_t i, m = 0;

	for (i = 0; n > 0 && i < (size_t)n; i++)
		if (e[i].port_num == d->port)
			e[m++] = e[i];
	return m;
}

static int choose_gid(struct kvs_verbs_dev *d, int wanted, char *why,
		      size_t len)
{
	struct ibv_gid_entry *e = calloc(GIDS_MAX, sizeof(*e));
	const struct ibv_gid_entry *best = NULL;
	size_t i, n;

	if (!e) {
		snprintf(why, len, "out of memory");
		return -ENOMEM;
	}
	n = gids(d, e);
	for (i = 0; i < n; i++) {
		if (wanted >= 0 ? (int)e[i].gid_index == wanted
				: !best || gid_worth(&e[i]) > gid_worth(best))
			best = &e[i];
	}
	if (best) {
		d->gid_index = (int)best->gid_index;
		d->gid = best->gid;
		d->link = gid_link(best->gid_type);
	} else if (wanted >= 0) {
		snprintf(why, len, "port %u has no GID index %d", d->port,
			 wanted);
	} else {
		snprintf(why, len, "port %u has no GID (no address?)", d->port);
	}
	free(e);
	return best ? 0 : -EADDRNOTAVAIL;
}

struct kvs_verbs_dev *kvs_verbs_dev_match(struct kvs_verbs *vt,
					  const struct kvs_verbs_blob *b,
					  int *ret_gid_index,
					  union ibv_gid *ret_gid)
{
	struct ibv_gid_entry *e = calloc(GIDS_MAX, sizeof(*e));
	struct kvs_verbs_dev *found = NULL;
	unsigned int bits, best = 0;
	size_t i, k, n;

	for (i = 0; e && i < vt->n_dev; i++) {
		struct kvs_verbs_dev *d = &vt->dev[i];

		if (d->dead || d->link != b->link)
			continue;
		n = gids(d, e);
		for (k = 0; k < n; k++) {
			if (gid_link(e[k].gid_type) != b->link ||
			    (vt->o.gid_index >= 0 &&
			     (int)e[k].gid_index != vt->o.gid_index))
				continue;
			bits = 1 + prefix_bits(e[k].gid.raw, b->gid);
			if (d->down)
				bits = 1;
			/* of equals the one with the fewest connections */
			if (found &&
			    (bits < best ||
			     (bits == best && d->n_conns >= found->n_conns)))
				continue;
			best = bits;
			found = d;
			*ret_gid_index = (int)e[k].gid_index;
			*ret_gid = e[k].gid;
		}
	}
	free(e);
	return found;
}

struct kvs_verbs_dev *kvs_verbs_dev_next(struct kvs_verbs *vt)
{
	struct kvs_verbs_dev *second = NULL;
	unsigned int i;

	for (i = 0; i < vt->n_dev; i++) {
		struct kvs_verbs_dev *d =
			&vt->dev[(vt->next_dev + i) % vt->n_dev];

		if (d->dead)
			continue;
		if (d->down) {
			second = second ? second : d;
			continue;
		}
		vt->next_dev = d->index + 1;
		return d;
	}
	return second;
}

struct kvs_verbs_dev *kvs_verbs_dev_rail(struct kvs_verbs *vt,
					 unsigned int rail)
{
	struct kvs_verbs_dev *d = rail ? &vt->dev[(rail - 1) % vt->n_dev]
				       : NULL;

	return d && !d->dead && !d->down ? d : NULL;
}

/* ---- opening ---- */

static int choose_port(struct kvs_verbs_dev *d, unsigned int wanted, char *why,
		       size_t len)
{
	unsigned int p;

	if (wanted > d->attr.phys_port_cnt) {
		snprintf(why, len, "has %u ports, not %u",
			 d->attr.phys_port_cnt, wanted);
		return -ENODEV;
	}
	for (p = wanted ? wanted : 1; p <= d->attr.phys_port_cnt; p++) {
		if (ibv_query_port(d->ctx, (uint8_t)p, &d->pattr))
			continue;
		d->port = (uint8_t)p;
		if (d->pattr.state == IBV_PORT_ACTIVE)
			return 0;
		if (wanted)
			break;
	}
	snprintf(why, len, wanted ? "port %u is down" : "no port is up",
		 wanted);
	return -ENETDOWN;
}

static enum ibv_mtu mtu_of(unsigned int bytes, enum ibv_mtu most)
{
	enum ibv_mtu m = IBV_MTU_256;

	if (!bytes)
		return most;
	while (m < most && (256u << m) <= bytes)
		m++;
	return m;
}

static uint32_t at_most(uint32_t n, int device)
{
	return device > 0 && n > (uint32_t)device ? (uint32_t)device : n;
}

/*
 * What a queue pair of ours is made with: what we like best, or less where the
 * device has less. The completion queue takes all of it; the requests give way
 * first, as a short queue of them costs speed only.
 */
static int depths(struct kvs_verbs_dev *d, char *why, size_t len)
{
	const struct ibv_device_attr *a = &d->attr;
	uint32_t least = KVS_VERBS_SQ_MIN + KVS_VERBS_RECVS_MIN + 1;
	uint32_t cqe;

	static_assert(KVS_VERBS_SQ_MIN == KVS_VERBS_RECVS_MIN, "one message");
	if (a->max_sge < 1) {
		snprintf(why, len, "its requests take no memory (max_sge %d)",
			 a->max_sge);
		return -EOPNOTSUPP;
	}
	d->max_sge = at_most(KVS_VERBS_SGE, a->max_sge);
	d->sq = at_most(KVS_VERBS_SQ, a->max_qp_wr);
	d->recvs = at_most(KVS_VERBS_SLOTS + KVS_VERBS_SPARE, a->max_qp_wr);
	if (d->sq < KVS_VERBS_SQ_MIN) {
		snprintf(why, len, "its queue pairs take %u requests, not %u",
			 d->sq, KVS_VERBS_SQ_MIN);
		return -EOPNOTSUPP;
	}
	cqe = at_most(d->sq + d->recvs + 1, a->max_cqe);
	if (cqe < least) {
		snprintf(why, len,
			 "its completion queues take %u entries, not %u", cqe,
			 least);
		return -EOPNOTSUPP;
	}
	if (cqe < KVS_VERBS_SQ_MIN + d->recvs + 1)
		d->recvs = cqe - KVS_VERBS_SQ_MIN - 1;
	if (cqe < d->sq + d->recvs + 1)
		d->sq = cqe - d->recvs - 1;
	return 0;
}

/* Fill @d, without keeping anything that must be freed but ctx. */
static int look(struct kvs_verbs *vt, struct kvs_verbs_dev *d,
		struct ibv_device *ib, struct kvs_verbs_info *info)
{
	char *why = info->note;
	size_t len = sizeof(info->note);
	int rc;

	snprintf(d->name, sizeof(d->name), "%s", ibv_get_device_name(ib));
	d->numa = device_node(ib);
	if (ib->transport_type != IBV_TRANSPORT_IB) {
		device_driver(ib, 0, info->driver, sizeof(info->driver));
		snprintf(why, len, "%s",
			 ib->transport_type == IBV_TRANSPORT_IWARP
				 ? "iWARP needs rdma_cm, which is not used here"
				 : "not an InfiniBand or RoCE device");
		return -EOPNOTSUPP;
	}
	d->ctx = ibv_open_device(ib);
	rc = d->ctx ? ibv_query_device(d->ctx, &d->attr) : errno;
	if (!d->ctx || rc) {
		rc = rc ? rc : EIO;
		snprintf(why, len, "cannot be opened: %s", strerror(rc));
		return -rc;
	}
	device_driver(ib, d->attr.vendor_id, info->driver,
		      sizeof(info->driver));
	d->prov = kvs_verbs_provider_find(info->driver);
	if (d->prov->unusable) {
		snprintf(why, len, "%s", d->prov->unusable);
		return -EOPNOTSUPP;
	}
	info->windows =
		d->attr.device_cap_flags &
		(IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	rc = choose_port(d, vt->o.port, why, len);
	if (!rc)
		rc = choose_gid(d, vt->o.gid_index, why, len);
	if (rc)
		return rc;
	d->mtu = mtu_of(vt->o.mtu, d->pattr.active_mtu);
	d->max_mr = d->attr.max_mr_size / PAGE * PAGE;
	if (!d->max_mr) /* it does not say */
		d->max_mr = UINT64_MAX / PAGE * PAGE;
	if (d->max_mr < KVS_VERBS_STAGE) {
		snprintf(why, len, "a registration takes %llu bytes, not %u",
			 (unsigned long long)d->max_mr, KVS_VERBS_STAGE);
		return -EOPNOTSUPP;
	}
	d->max_wr = d->pattr.max_msg_sz;
	if (!d->max_wr || d->max_wr > KVS_VERBS_WR_MAX)
		d->max_wr = KVS_VERBS_WR_MAX;
	return depths(d, why, len);
}

static void fill_info(const struct kvs_verbs_dev *d, struct kvs_verbs_info *i)
{
	static const char *const links[] = {
		[KVS_VERBS_INFINIBAND] = "InfiniBand",
		[KVS_VERBS_ROCE_V1] = "RoCE v1",
		[KVS_VERBS_ROCE_V2] = "RoCE v2",
	};

	snprintf(i->device, sizeof(i->device), "%s", d->name);
	i->port = d->port;
	i->node = d->numa;
	i->gid_index = d->gid_index;
	snprintf(i->link, sizeof(i->link), "%s",
		 d->link ? links[d->link] : "-");
	if (!d->link ||
	    !inet_ntop(AF_INET6, d->gid.raw, i->gid, sizeof(i->gid)))
		snprintf(i->gid, sizeof(i->gid), "-");
	i->mtu = d->mtu ? 128u << d->mtu : 0;
	snprintf(i->grant, sizeof(i->grant), "-");
	snprintf(i->proof, sizeof(i->proof), "-");
	i->trial = "-";
	snprintf(i->why, sizeof(i->why), "-");
	kvs_verbs_kinds(d, i);
}

static void fill_grant(const struct kvs_verbs_dev *d, struct kvs_verbs_info *i)
{
	snprintf(i->grant, sizeof(i->grant), "%s",
		 kvs_verbs_grant_name[d->grant]);
	snprintf(i->proof, sizeof(i->proof), "%s",
		 kvs_verbs_provider_why(d->prov, d->grant));
}

static void chan_ready(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_verbs_dev *d = arg;
	struct ibv_cq *cq;
	void *user;

	(void)w;
	(void)revents;
	while (!ibv_get_cq_event(d->chan, &cq, &user)) {
		struct kvs_verbs_conn *vc = user;

		ibv_ack_cq_events(cq, 1);
		vc->armed = false;
		kvs_verbs_activate(vc);
	}
}

static void port_event(struct kvs_verbs_dev *d, const struct ibv_async_event *e)
{
	bool down = e->event_type == IBV_EVENT_PORT_ERR;

	if (e->element.port_num != d->port || d->down == down)
		return;
	d->down = down;
	kvs_log(down ? KVS_LOG_WARN : KVS_LOG_NOTICE, "%s port %u is %s",
		d->name, d->port,
		down ? "down: its connections end if it stays so" : "up again");
}

static void device_died(struct kvs_verbs_dev *d)
{
	struct kvs_verbs_conn *vc;

	if (d->dead)
		return;
	d->dead = true;
	kvs_log_err("%s has failed: its connections end, and it is not used "
		    "again before a restart",
		    d->name);
	kvs_list_for_each_entry(vc, &d->vt->conns, node)
		if (vc->dev == d)
			kvs_verbs_die(vc, -EIO, false);
}

/* The event may overtake completions: what arrived before it is delivered. */
static void qp_failed(struct kvs_verbs_conn *vc)
{
	if (!vc)
		return; /* of a trial, that could not be destroyed */
	if (vc->state == KVS_VERBS_UP || vc->state == KVS_VERBS_FLUSHING)
		(void)kvs_verbs_drain(vc);
	kvs_verbs_die(vc, -EACCES, true);
}

static void async_ready(struct kvs_watch *w, short revents, void *arg)
{
	struct kvs_verbs_dev *d = arg;
	struct ibv_async_event e;

	(void)w;
	(void)revents;
	while (!ibv_get_async_event(d->ctx, &e)) {
		kvs_log_debug("%s: %s", d->name,
			      ibv_event_type_str(e.event_type));
		switch ((int)e.event_type) {
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			qp_failed(e.element.qp->qp_context);
			break;
		case IBV_EVENT_CQ_ERR:
			kvs_verbs_die(e.element.cq->cq_context, -EIO, false);
			break;
		case IBV_EVENT_PORT_ERR:
		case IBV_EVENT_PORT_ACTIVE:
			port_event(d, &e);
			break;
		case IBV_EVENT_DEVICE_FATAL:
			device_died(d);
			break;
		default:
			break;
		}
		ibv_ack_async_event(&e);
	}
}

static int nonblock(int fd)
{
	int fl = fcntl(fd, F_GETFL);

	return fl < 0 || fcntl(fd, F_SETFL, fl | O_NONBLOCK) ? -errno : 0;
}

/* What a device in use has. */
static int start(struct kvs_verbs *vt, struct kvs_verbs_dev *d)
{
	int rc;

	d->vt = vt;
	kvs_list_init(&d->windows);
	d->pd = ibv_alloc_pd(d->ctx);
	if (!d->pd)
		return -errno;
	d->chan = ibv_create_comp_channel(d->ctx);
	if (!d->chan)
		return -errno;
	rc = nonblock(d->chan->fd);
	if (!rc)
		rc = nonblock(d->ctx->async_fd);
	if (!rc)
		rc = kvs_transport_watch(vt->inner, d->chan->fd, POLLIN,
					 chan_ready, d, &d->chan_watch);
	if (!rc)
		rc = kvs_transport_watch(vt->inner, d->ctx->async_fd, POLLIN,
					 async_ready, d, &d->async_watch);
	return rc;
}

static void dev_close(struct kvs_verbs_dev *d)
{
	if (d->pd)
		kvs_verbs_windows_fini(d);
	kvs_watch_remove(d->chan_watch);
	kvs_watch_remove(d->async_watch);
	d->chan_watch = NULL;
	d->async_watch = NULL;
	if (d->chan && ibv_destroy_comp_channel(d->chan))
		kvs_log_debug("%s: its channel stays", d->name);
	if (d->pd && ibv_dealloc_pd(d->pd))
		kvs_log_debug("%s: its protection domain stays", d->name);
	if (d->ctx)
		ibv_close_device(d->ctx);
	d->chan = NULL;
	d->pd = NULL;
	d->ctx = NULL;
}

static bool listed(const char *list, const char *name)
{
	size_t n = strlen(name);
	const char *p = list;

	for (; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, name, n) && (!p[n] || p[n] == ','))
			return true;
	return false;
}

/* The first name of the list that no device has; NULL: none. */
static const char *missing(const struct kvs_verbs *vt, const char *list,
			   char *buf, size_t len)
{
	char copy[512];
	char *save = NULL;
	char *p;
	unsigned int i;

	snprintf(copy, sizeof(copy), "%s", list);
	for (p = strtok_r(copy, ",", &save); p;
	     p = strtok_r(NULL, ",", &save)) {
		for (i = 0; i < vt->n_info; i++)
			if (!strcmp(vt->info[i].device, p))
				break;
		if (i < vt->n_info)
			continue;
		snprintf(buf, len, "%s", p);
		return buf;
	}
	return NULL;
}

/* Nearest first: of the pool's node, then of no known one, then any. */
static bool near_enough(const struct kvs_verbs *vt,
			const struct kvs_verbs_dev *d,
			const struct kvs_verbs_dev *all, unsigned int n)
{
	bool exact = false;
	bool vague = false;
	unsigned int i;

	for (i = 0; i < n; i++) {
		exact |= all[i].ctx && all[i].numa == vt->o.node;
		vague |= all[i].ctx && all[i].numa < 0;
	}
	if (vt->o.node < 0)
		return true;
	if (exact)
		return d->numa == vt->o.node;
	return vague ? d->numa < 0 : true;
}

static void say_none(const struct kvs_verbs *vt, char *err, size_t errlen)
{
	size_t at;
	unsigned int i;

	snprintf(err, errlen, "no verbs device%s",
		 vt->n_info ? " can be used" : "");
	for (i = 0; i < vt->n_info; i++) {
		at = strlen(err);
		snprintf(err + at, errlen - at, "%s %s: %s", i ? ";" : ":",
			 vt->info[i].device, vt->info[i].note);
	}
}

/* Keep those that are wanted, close the others. */
static int choose(struct kvs_verbs *vt, struct kvs_verbs_dev *all,
		  unsigned int n, bool automatic, char *err, size_t errlen)
{
	unsigned int i;
	int rc;

	for (i = 0; i < n; i++) {
		struct kvs_verbs_dev *d = &all[i];
		struct kvs_verbs_info *info = &vt->info[i];

		if (!d->ctx)
			continue;
		if (automatic ? !near_enough(vt, d, all, n)
			      : !listed(vt->o.devices, d->name)) {
			snprintf(info->note, sizeof(info->note), "%s",
				 automatic ? "not the nearest to this node"
					   : "not listed in rdma.device");
			continue;
		}
		if (kvs_verbs_choose_grant(vt, d, info)) {
			dev_close(d);
			continue;
		}
		fill_grant(d, info);
		d->index = vt->n_dev;
		vt->dev[vt->n_dev] = *d;
		d->ctx = NULL;
		d = &vt->dev[vt->n_dev++];
		rc = start(vt, d);
		if (rc) {
			snprintf(err, errlen, "%s: %s", d->name, strerror(-rc));
			return rc;
		}
		vt->t.key_per_conn |= kvs_verbs_dev_shares(d);
		vt->t.rails = vt->n_dev;
		if (!vt->t.register_max || d->max_mr < vt->t.register_max)
			vt->t.register_max = d->max_mr;
		info->used = true;
	}
	return 0;
}

int kvs_verbs_devs_open(struct kvs_verbs *vt, char *err, size_t errlen)
{
	bool automatic = !vt->o.devices || !strcmp(vt->o.devices, "auto");
	struct ibv_device **list;
	struct kvs_verbs_dev *all;
	char name[128];
	int n = 0, i, rc = 0;

	list = ibv_get_device_list(&n);
	if (!list || !n) {
		if (list)
			ibv_free_device_list(list);
		snprintf(err, errlen, "no verbs device");
		return -ENODEV;
	}
	if (n > KVS_VERBS_DEVS_MAX)
		n = KVS_VERBS_DEVS_MAX;
	all = calloc((size_t)n, sizeof(*all));
	vt->dev = calloc((size_t)n, sizeof(*vt->dev));
	vt->info = calloc((size_t)n, sizeof(*vt->info));
	if (!all || !vt->dev || !vt->info) {
		snprintf(err, errlen, "out of memory");
		rc = -ENOMEM;
		goto out;
	}
	vt->n_info = (unsigned int)n;
	for (i = 0; i < n; i++) {
		if (look(vt, &all[i], list[i], &vt->info[i]))
			dev_close(&all[i]);
		fill_info(&all[i], &vt->info[i]);
	}
	if (!automatic && missing(vt, vt->o.devices, name, sizeof(name))) {
		snprintf(err, errlen, "rdma.device: there is no %s", name);
		rc = -ENODEV;
		goto out;
	}
	rc = choose(vt, all, (unsigned int)n, automatic, err, errlen);
	if (!rc && !vt->n_dev) {
		say_none(vt, err, errlen);
		rc = -ENODEV;
	}
out:
	for (i = 0; all && i < n; i++)
		dev_close(&all[i]);
	free(all);
	ibv_free_device_list(list);
	return rc;
}

void kvs_verbs_devs_close(struct kvs_verbs *vt)
{
	unsigned int i;

	for (i = 0; i < vt->n_dev; i++)
		dev_close(&vt->dev[i]);
	free(vt->dev);
	free(vt->info);
	vt->dev = NULL;
	vt->info = NULL;
	vt->n_dev = 0;
	vt->n_info = 0;
}
