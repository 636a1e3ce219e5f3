/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is sent from (or granted by windows), registered with each
 * device when that is first used; and the owners' protection domains. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/units.h"
#include "pinned/limits.h"
#include "rdma/verbs_internal.h"

static struct kvs_verbs_mem *mem_of(struct kvs_mem *m)
{
	return kvs_container_of(m, struct kvs_verbs_mem, m);
}

/* Memory that is mapped read-only can be sent from all the same. */
static struct ibv_mr *reg(const struct kvs_verbs_dev *d,
			  const struct kvs_verbs_mem *m)
{
	int access = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *mr;

	if (d->grant == KVS_VERBS_GRANT_WINDOW)
		access |= IBV_ACCESS_MW_BIND;
	/* a queue pair says which of them it lets in */
	if (d->grant == KVS_VERBS_GRANT_QP)
		access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	mr = ibv_reg_mr(d->pd, m->addr, m->len, access);
	if (!mr && (errno == EFAULT || errno == EACCES || errno == EPERM))
		mr = ibv_reg_mr(d->pd, m->addr, m->len, 0);
	return mr;
}

struct ibv_mr *kvs_verbs_reg_at(struct ibv_pd *pd, const struct kvs_mem_at *at)
{
	/* who only reads needs this of some drivers all the same */
	int access = IBV_ACCESS_LOCAL_WRITE;

	if (at->fd < 0)
		return ibv_reg_mr(pd, at->addr, at->len, access);
	return ibv_reg_dmabuf_mr(pd, at->offset, at->len, (uintptr_t)at->addr,
				 at->fd, access);
}

/* First of vt->mem that ends behind @addr. */
static size_t place(const struct kvs_verbs *vt, const char *addr)
{
	size_t lo = 0;
	size_t hi = vt->n_mem;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (vt->mem[mid]->addr + vt->mem[mid]->len <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int insert(struct kvs_verbs *vt, struct kvs_verbs_mem *m)
{
	size_t i = place(vt, m->addr);
	size_t cap = vt->cap_mem ? 2 * vt->cap_mem : 64;
	struct kvs_verbs_mem **p;

	if (i < vt->n_mem && vt->mem[i]->addr < m->addr + m->len)
		return -EEXIST;
	if (vt->n_mem == vt->cap_mem) {
		p = realloc(vt->mem, cap * sizeof(*p));
		if (!p)
			return -ENOMEM;
		vt->mem = p;
		vt->cap_mem = cap;
	}
	memmove(vt->mem + i + 1, vt->mem + i,
		(vt->n_mem - i) * sizeof(*vt->mem));
	vt->mem[i] = m;
	vt->n_mem++;
	return 0;
}

static void take_out(struct kvs_verbs *vt, const struct kvs_verbs_mem *m)
{
	size_t i = place(vt, m->addr);

	KVS_ASSERT(i < vt->n_mem && vt->mem[i] == m);
	vt->n_mem--;
	memmove(vt->mem + i, vt->mem + i + 1,
		(vt->n_mem - i) * sizeof(*vt->mem));
}

static void mem_free(struct kvs_verbs *vt, struct kvs_verbs_mem *m)
{
	unsigned int i;

	if (!m)
		return;

	/* one that cannot be taken back goes with its device */
	for (i = 0; m->mr && i < vt->n_dev; i++)
		if (m->mr[i])
			(void)ibv_dereg_mr(m->mr[i]);
	m->m.magic = 0;
	free(m->mr);
	free(m);
}

/* What the kernel calls ENOMEM is nearly always the limit. */
static int check_limit(uint64_t len, char *err, size_t errlen)
{
	struct kvs_limits_want want = {
		.bytes = len,
		.page_size = 4096,
		.needs_lock = true,
		.node = -1,
		.setting = "registration with verbs",
	};
	struct kvs_limits lim;
	int rc;

	if (kvs_limits_read(NULL, &lim))
		return 0;
	rc = 0;
	if (!lim.memlock_bypass && lim.memlock_soft != KVS_LIMIT_NONE &&
	    (lim.memlock_used > lim.memlock_soft ||
	     len > lim.memlock_soft - lim.memlock_used)) {
		want.bytes = (len + 4095) / 4096 * 4096;
		rc = kvs_limits_check(&lim, &want, err, errlen);
	}
	kvs_limits_fini(&lim);
	return rc == -EDQUOT ? rc : 0;
}

static int failed(const struct kvs_verbs_dev *d, const struct kvs_verbs_mem *m,
		  int rc, char *err, size_t errlen)
{
	char size[KVS_UNITS_BUF];

	if (rc == -ENOMEM && check_limit(m->len, err, errlen))
		return -EDQUOT;
	snprintf(err, errlen, "%s: cannot register %s at %p: %s%s", d->name,
		 kvs_format_size(m->len, size), (void *)m->addr, strerror(-rc),
		 rc == -ENOMEM ? " (locked memory: ulimit -l, LimitMEMLOCK)"
			       : "");
	return rc;
}

static struct kvs_verbs_mem *mem_new(struct kvs_verbs *vt, char *addr,
				     uint64_t len)
{
	struct kvs_verbs_mem *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->m.magic = KVS_MEM_MAGIC;
	m->m.t = &vt->t;
	m->addr = addr;
	m->len = len;
	m->mr = calloc(vt->n_dev, sizeof(*m->mr));
	if (m->mr)
		return m;
	free(m);
	return NULL;
}

/* @m with all devices that are to have it, or with none. @at: memory of a
 * device, or NULL. */
static int add(struct kvs_verbs *vt, struct kvs_verbs_mem *m,
	       const struct kvs_mem_at *at, char *err, size_t errlen)
{
	unsigned int i;
	int rc = insert(vt, m);

	if (rc == -EEXIST)
		snprintf(err, errlen, "overlaps memory that is registered");
	for (i = 0; i < vt->n_dev && !rc; i++) {
		/* a pool, and large: not at first use */
		if (!at && !vt->dev[i].used &&
		    !kvs_verbs_dev_shares(&vt->dev[i]))
			continue;
		/* nor of that, where not to have it is no failure */
		m->mr[i] = at ? kvs_verbs_reg_at(vt->dev[i].pd, at)
			      : reg(&vt->dev[i], m);
		if (!m->mr[i])
			rc = failed(&vt->dev[i], m, errno ? -errno : -ENOMEM,
				    err, errlen);
		if (rc)
			take_out(vt, m);
	}
	return rc;
}

/* The last piece first. */
static void remove_all(struct kvs_verbs *vt, struct kvs_verbs_mem *last)
{
	struct kvs_verbs_mem *before;

	for (; last; last = before) {
		before = last->before;
		take_out(vt, last);
		mem_free(vt, last);
	}
}

/*
 * In pieces that the devices take: who asks for more than one can hold may get
 * a registration of less, and no word of it.
 */
static int add_all(struct kvs_verbs *vt, const struct kvs_mem_at *all,
		   bool device, struct kvs_mem **ret, char *err, size_t errlen)
{
	uint64_t most = kvs_transport_register_max(&vt->t);
	struct kvs_verbs_mem *m = NULL, *last = NULL;
	uint64_t at, n;
	int rc = 0;

	pthread_mutex_lock(&vt->mem_lock);
	for (at = 0; at < all->len && !rc; at += n) {
		const struct kvs_mem_at part = {
			.addr = (char *)all->addr + at,
			.len = all->len - at < most ? all->len - at : most,
			.fd = all->fd,
			.offset = all->offset + at,
		};

		n = part.len;
		snprintf(err, errlen, "out of memory");
		m = mem_new(vt, part.addr, n);
		rc = m ? add(vt, m, device ? &part : NULL, err, errlen)
		       : -ENOMEM;
		if (rc)
			break;
		m->before = last;
		last = m;
	}
	if (rc) {
		mem_free(vt, m);
		remove_all(vt, last);
	}
	pthread_mutex_unlock(&vt->mem_lock);
	if (!rc)
		*ret = &last->m;
	return rc;
}

int kvs_verbs_register(struct kvs_transport *t, void *addr, uint64_t len,
		       struct kvs_mem **ret, char *err, size_t errlen)
{
	const struct kvs_mem_at all = { .addr = addr, .len = len, .fd = -1 };
	int rc = check_limit(len, err, errlen);

	return rc ? rc
		  : add_all(kvs_verbs_of(t), &all, false, ret, err, errlen);
}

int kvs_verbs_register_at(struct kvs_transport *t, const struct kvs_mem_at *at,
			  struct kvs_mem **ret, char *err, size_t errlen)
{
	return add_all(kvs_verbs_of(t), at, true, ret, err, errlen);
}

int kvs_verbs_try_at(struct kvs_transport *t, const struct kvs_mem_at *at,
		     const void *bytes, char *err, size_t errlen)
{
	struct kvs_verbs *vt = kvs_verbs_of(t);
	char why[128] = "";
	unsigned int i;
	int rc = 0;

	for (i = 0; i < vt->n_dev && !rc; i++) {
		rc = kvs_verbs_trial_at(&vt->dev[i], at, bytes, why,
					sizeof(why));
		if (rc)
			snprintf(err, errlen, "%s: %s", vt->dev[i].name, why);
	}
	return rc;
}

void kvs_verbs_unregister(struct kvs_mem *mem)
{
	struct kvs_verbs *vt = kvs_verbs_of(mem->t);

	pthread_mutex_lock(&vt->mem_lock);
	remove_all(vt, mem_of(mem));
	pthread_mutex_unlock(&vt->mem_lock);
}

int kvs_verbs_mem_use(struct kvs_verbs_dev *d)
{
	struct kvs_verbs *vt = d->vt;
	int rc = 0;
	size_t i;

	pthread_mutex_lock(&vt->mem_lock);
	for (i = 0; !d->used && i < vt->n_mem && !rc; i++) {
		struct kvs_verbs_mem *m = vt->mem[i];

		if (m->mr[d->index])
			continue;
		m->mr[d->index] = reg(d, m);
		if (!m->mr[d->index])
			rc = -errno;
	}
	if (!rc)
		d->used = true;
	pthread_mutex_unlock(&vt->mem_lock);
	return rc;
}

uint64_t kvs_verbs_mem_find(struct kvs_verbs *vt,
			    const struct kvs_verbs_dev *dev, const void *addr,
			    uint64_t len, struct ibv_mr **ret)
{
	const struct kvs_verbs_mem *m;
	const char *p = addr;
	uint64_t n = 0;
	size_t i;

	pthread_mutex_lock(&vt->mem_lock);
	i = place(vt, p);
	m = i < vt->n_mem ? vt->mem[i] : NULL;
	if (m && m->addr <= p && m->mr[dev->index]) {
		n = m->len - (uint64_t)(p - m->addr);
		if (n > len)
			n = len;
		*ret = m->mr[dev->index];
	}
	pthread_mutex_unlock(&vt->mem_lock);
	return n;
}

void kvs_verbs_mem_free_all(struct kvs_verbs *vt)
{
	while (vt->n_mem)
		mem_free(vt, vt->mem[--vt->n_mem]);
	free(vt->mem);
	vt->mem = NULL;
}

/* ---- owners ---- */

int kvs_verbs_owner_get(struct kvs_verbs *vt, uint64_t owner,
			struct kvs_verbs_dev *dev, struct kvs_verbs_owner **ret)
{
	struct kvs_verbs_owner *own;
	int rc;

	kvs_list_for_each_entry(own, &vt->owners, node) {
		if (own->owner != owner || own->spent || own->dev->dead ||
		    (dev && own->dev != dev))
			continue;
		own->refs++;
		*ret = own;
		return 0;
	}
	own = calloc(1, sizeof(*own));
	if (!own)
		return -ENOMEM;
	own->vt = vt;
	own->owner = owner;
	own->refs = 1;
	own->dev = dev ? dev : kvs_verbs_dev_next(vt);
	rc = -ENODEV;
	if (!own->dev)
		goto out_free;
	own->pd = kvs_verbs_dev_shares(own->dev) ? own->dev->pd
						 : ibv_alloc_pd(own->dev->ctx);
	if (!own->pd) {
		rc = errno ? -errno : -ENOMEM;
		goto out_free;
	}
	kvs_list_add_tail(&vt->owners, &own->node);
	*ret = own;
	return 0;
out_free:
	free(own);
	return rc;
}

void kvs_verbs_owner_put(struct kvs_verbs_owner *own)
{
	if (!own || --own->refs)
		return;
	kvs_list_del(&own->node);
	/* what is stuck in it goes with the device */
	if (own->pd != own->dev->pd)
		(void)ibv_dealloc_pd(own->pd);
	free(own);
}
