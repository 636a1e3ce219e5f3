/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protection domains, registrations, windows and their keys. A key is an
 * index of 24 bits and a tag of 8; a registration has one for both uses.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "pinned/poison.h"
#include "tests/fake_verbs/internal.h"

#define REMOTE                                              \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC)

#if defined(__SANITIZE_THREAD__)
#define FV_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FV_WATCHED 1
#endif
#endif
#ifndef FV_WATCHED
#define FV_WATCHED KVS_POISON_ACTIVE
#endif

#if FV_WATCHED
/* volatile, or it becomes the memcpy() that is watched */
__attribute__((no_sanitize("address"), no_sanitize("thread"), noinline)) void
fv_move(void *to, const void *from, size_t n)
{
	const volatile unsigned char *s = from;
	volatile unsigned char *d = to;

	while (n--)
		*d++ = *s++;
}
#else
void fv_move(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}
#endif

static struct fv_pd *pd_of(struct ibv_pd *pd)
{
	return kvs_container_of(pd, struct fv_pd, ibv);
}

/* ---- protection domains ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct fv_ctx *c = fv_ctx_of(context);
	struct fv_pd *pd = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_ALLOC_PD);
	if (!rc && c->dev->dead)
		rc = EIO;
	if (!rc) {
		pd = calloc(1, sizeof(*pd));
		KVS_ASSERT(pd);
		pd->ibv.context = context;
		kvs_list_add_tail(&c->pds, &pd->node);
		fv_w.live.pds++;
	}
	fv_unlock();
	if (rc)
		errno = rc;
	return pd ? &pd->ibv : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct fv_pd *pd = pd_of(ibpd);
	int rc;

	fv_lock();
	rc = fv_enter(FV_DEALLOC_PD);
	if (!rc && pd->uses)
		rc = EBUSY;
	if (!rc) {
		kvs_list_del(&pd->node);
		fv_w.live.pds--;
		free(pd);
	}
	fv_unlock();
	return rc;
}

/* ---- keys ---- */

bool fv_key_take(struct fv_device *d, struct fv_mr *mr, struct fv_mw *mw,
		 uint32_t *ret_index, uint32_t *ret_key)
{
	struct fv_key *k;
	uint32_t i;

	if (d->n_mrs >= d->s.max_mr)
		return false;
	if (d->s.reuse_keys && d->n_free) {
		i = d->free_key[--d->n_free];
	} else {
		i = d->n_keys++;
		if (!(i & (i + 1))) {
			d->key = realloc(d->key,
					 2 * ((size_t)i + 1) * sizeof(*d->key));
			d->free_key = realloc(d->free_key,
					      2 * ((size_t)i + 1) *
						      sizeof(*d->free_key));
			KVS_ASSERT(d->key && d->free_key);
		}
		memset(&d->key[i], 0, sizeof(d->key[i]));
		/* so that a key of one place is not a key of another */
		d->key[i].tag = (uint8_t)(i * 37);
	}
	k = &d->key[i];
	k->used = true;
	k->tag++;
	k->mr = mr;
	k->mw = mw;
	d->n_mrs++;
	*ret_index = i;
	*ret_key = (i + 1) << 8 | k->tag;
	return true;
}

static void key_give(struct fv_device *d, uint32_t i)
{
	d->key[i].used = false;
	d->key[i].mr = NULL;
	d->key[i].mw = NULL;
	d->n_mrs--;
	d->free_key[d->n_free++] = i;
}

static struct fv_key *key_find(const struct fv_device *d, uint32_t key)
{
	uint32_t i = (key >> 8) - 1;

	if (i >= d->n_keys || !d->key[i].used)
		return NULL;
	return &d->key[i];
}

/* ---- registrations ---- */

/* As the kernel, which wants the pages. Return: 0, EFAULT. */
static int pages_ok(void *addr, size_t len, bool write)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)addr / page * page;
	size_t n = ((uintptr_t)addr + len - at + page - 1) / page * page;
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	char *known = (char *)((uintptr_t)&n / page * page);

	if (!madvise((void *)at, n, advice))
		return 0;
	/* before Linux 5.14 it is not known */
	if (errno == EINVAL && madvise(known, page, advice))
		return msync((void *)at, n, MS_ASYNC) ? EFAULT : 0;
	return EFAULT;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t len,
			  uint64_t iova, unsigned int access, void *map,
			  size_t map_len)
{
	struct fv_device *d = fv_dev_of(pd->context);
	struct fv_mr *mr = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_REG_MR);
	if (!rc && d->dead)
		rc = EIO;
	if (!rc && (access & (REMOTE & ~IBV_ACCESS_REMOTE_READ)) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE))
		rc = EINVAL;
	if (!rc && (!len || (uintptr_t)addr + len < (uintptr_t)addr))
		rc = EINVAL;
	if (d->s.max_mr_size && len > d->s.max_mr_size)
		len = d->s.max_mr_size;
	if (!rc)
		rc = pages_ok(addr, len, access & IBV_ACCESS_LOCAL_WRITE);
	if (rc)
		goto out;
	mr = calloc(1, sizeof(*mr));
	KVS_ASSERT(mr);
	if (!fv_key_take(d, mr, NULL, &mr->index, &mr->ibv.rkey)) {
		free(mr);
		mr = NULL;
		rc = ENOMEM;
		goto out;
	}
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.addr = addr;
	mr->ibv.length = len;
	mr->ibv.lkey = mr->ibv.rkey;
	mr->iova = iova;
	mr->host = addr;
	mr->map = map;
	mr->map_len = map_len;
	mr->access = access;
	pd_of(pd)->uses++;
	kvs_list_add_tail(&fv_ctx_of(pd->context)->mrs, &mr->node);
	fv_w.live.mrs++;
out:
	fv_unlock();
	if (rc)
		errno = rc;
	return mr ? &mr->ibv : NULL;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return reg(pd, addr, len, (uintptr_t)addr, (unsigned int)access, NULL,
		   0);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len,
				uint64_t iova, unsigned int access)
{
	return reg(pd, addr, len, iova, access, NULL, 0);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len,
			       uint64_t iova, int access)
{
	return reg(pd, addr, len, iova, (unsigned int)access, NULL, 0);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len,
				 uint64_t iova, int fd, int access)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	off_t begin = lseek(fd, 0, SEEK_CUR);
	uint64_t in = offset % page;
	struct ibv_mr *mr;
	struct stat st;
	void *map;

	errno = EOPNOTSUPP;
	if (!fv_dev_of(pd->context)->s.dma_buf)
		return NULL;
	errno = EINVAL;
	if (begin < 0 || fstat(fd, &st) || iova % page != in ||
	    offset + len > (uint64_t)(st.st_size - begin) ||
	    (access & ~(IBV_ACCESS_LOCAL_WRITE | REMOTE)))
		return NULL;
	/* a mapping of its own: its address is not the device's */
	map = mmap(NULL, in + len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   begin + (off_t)(offset - in));
	if (map == MAP_FAILED)
		return NULL;
	mr = reg(pd, (unsigned char *)map + in, len, iova, (unsigned int)access,
		 map, in + len);
	if (!mr)
		(void)munmap(map, in + len);
	return mr;
}

void fv_mr_free(struct fv_mr *mr)
{
	fv_settle_mr(mr);
	if (mr->map)
		(void)munmap(mr->map, mr->map_len);
	key_give(fv_dev_of(mr->ibv.context), mr->index);
	pd_of(mr->ibv.pd)->uses--;
	kvs_list_del(&mr->node);
	fv_w.live.mrs--;
	free(mr);
}

int ibv_dereg_mr(struct ibv_mr *ibmr)
{
	struct fv_mr *mr = kvs_container_of(ibmr, struct fv_mr, ibv);
	int rc;

	fv_lock();
	rc = fv_enter(FV_DEREG_MR);
	if (!rc && mr->windows)
		rc = fv_dev_of(ibmr->context)->s.model == FV_RXE ? EINVAL
								 : EBUSY;
	if (!rc)
		fv_mr_free(mr);
	fv_unlock();
	return rc;
}

/* ---- windows ---- */

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct fv_device *d = fv_dev_of(pd->context);
	struct fv_mw *mw = NULL;
	int rc;

	fv_lock();
	rc = fv_enter(FV_ALLOC_MW);
	if (!rc && d->dead)
		rc = EIO;
	if (!rc && d->s.windows == '-')
		rc = EOPNOTSUPP;
	if (rc)
		goto out;
	mw = calloc(1, sizeof(*mw));
	KVS_ASSERT(mw);
	if (!fv_key_take(d, NULL, mw, &mw->index, &mw->ibv.rkey)) {
		free(mw);
		mw = NULL;
		rc = ENOMEM;
		goto out;
	}
	mw->ibv.context = pd->context;
	mw->ibv.pd = pd;
	mw->ibv.type = type;
	pd_of(pd)->uses++;
	kvs_list_add_tail(&fv_ctx_of(pd->context)->mws, &mw->node);
	fv_w.live.mws++;
out:
	fv_unlock();
	if (rc)
		errno = rc;
	return mw ? &mw->ibv : NULL;
}

void fv_unbind(struct fv_mw *mw)
{
	if (!mw->bound)
		return;
	if (fv_dev_of(mw->ibv.context)->s.model == FV_STRICT)
		fv_settle_mw(mw);
	else
		fv_in_hand_mw(mw);
	mw->bound = false;
	mw->mr->windows--;
	mw->mr = NULL;
	mw->qp = NULL;
}

void fv_mw_free(struct fv_mw *mw)
{
	fv_unbind(mw);
	key_give(fv_dev_of(mw->ibv.context), mw->index);
	pd_of(mw->ibv.pd)->uses--;
	kvs_list_del(&mw->node);
	fv_w.live.mws--;
	free(mw);
}

static int dealloc_mw(struct ibv_mw *ibmw)
{
	int rc;

	fv_lock();
	rc = fv_enter(FV_DEALLOC_MW);
	if (!rc)
		fv_mw_free(kvs_container_of(ibmw, struct fv_mw, ibv));
	fv_unlock();
	return rc;
}

/* Type 1, by a call: bound to no queue pair. */
static int bind_mw(struct ibv_qp *qp, struct ibv_mw *ibmw,
		   struct ibv_mw_bind *b)
{
	int rc;

	(void)qp;
	(void)ibmw;
	(void)b;
	fv_lock();
	rc = fv_enter(FV_BIND_MW);
	fv_unlock();
	return rc ? rc : EOPNOTSUPP;
}

void fv_memory_init(struct fv_ctx *ctx)
{
	ctx->v.context.ops.alloc_mw = alloc_mw;
	ctx->v.context.ops.dealloc_mw = dealloc_mw;
	ctx->v.context.ops.bind_mw = bind_mw;
}

static bool bind_ok(const struct fv_qp *qp, const struct fv_mw *mw,
		    const struct fv_mr *mr, const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;

	if (mw->ibv.type != IBV_MW_TYPE_2 || mw->bound || !mr)
		return false;
	if (mw->ibv.pd != qp->ibv.pd || mr->ibv.pd != qp->ibv.pd)
		return false;
	/* the index cannot be chosen, and the tag must be a new one */
	if (wr->bind_mw.rkey >> 8 != mw->ibv.rkey >> 8 ||
	    wr->bind_mw.rkey == mw->ibv.rkey)
		return false;
	if (!(mr->access & IBV_ACCESS_MW_BIND) ||
	    ((b->mw_access_flags & IBV_ACCESS_REMOTE_WRITE) &&
	     !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
		return false;
	return b->length && b->length <= qp->dev->s.max_mw_len &&
	       b->addr >= mr->iova && b->length <= mr->ibv.length &&
	       b->addr - mr->iova <= mr->ibv.length - b->length;
}

enum ibv_wc_status fv_bind(struct fv_qp *qp, const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
	struct fv_mw *mw = kvs_container_of(wr->bind_mw.mw, struct fv_mw, ibv);
	struct fv_mr *mr = NULL;

	if (b->mr)
		mr = kvs_container_of(b->mr, struct fv_mr, ibv);
	if (!bind_ok(qp, mw, mr, wr))
		return IBV_WC_MW_BIND_ERR;
	mw->bound = true;
	mw->mr = mr;
	mw->qp = qp;
	mw->addr = b->addr;
	mw->len = b->length;
	mw->access = b->mw_access_flags;
	mw->ibv.rkey = wr->bind_mw.rkey;
	qp->dev->key[mw->index].tag = (uint8_t)wr->bind_mw.rkey;
	mr->windows++;
	fv_w.counts.binds++;
	return IBV_WC_SUCCESS;
}

enum ibv_wc_status fv_invalidate(struct fv_qp *qp, uint32_t rkey)
{
	const struct fv_key *k = key_find(qp->dev, rkey);
	struct fv_mw *mw = k ? k->mw : NULL;

	if (mw && mw->bound && k->tag == (uint8_t)rkey &&
	    mw->ibv.pd == qp->ibv.pd && mw->qp == qp) {
		fv_unbind(mw);
		fv_w.counts.invalidates++;
		return IBV_WC_SUCCESS;
	}
	if (qp->dev->s.model == FV_RXE && mw && !mw->bound)
		fv_violation("a window that is not bound is invalidated: rxe "
			     "panics the kernel");
	return IBV_WC_MW_BIND_ERR;
}

bool fv_qp_has_windows(const struct fv_qp *qp)
{
	const struct fv_mw *mw;

	kvs_list_for_each_entry(mw, &fv_ctx_of(qp->ibv.context)->mws, node)
		if (mw->bound && mw->qp == qp)
			return true;
	return false;
}

void fv_qp_unbind(struct fv_qp *qp)
{
	struct fv_mw *mw;

	kvs_list_for_each_entry(mw, &fv_ctx_of(qp->ibv.context)->mws, node)
		if (mw->bound && mw->qp == qp)
			fv_unbind(mw);
}

/* ---- what a key reaches ---- */

static bool within(uint64_t addr, uint64_t len, uint64_t from, uint64_t size)
{
	return addr >= from && len <= size && addr - from <= size - len;
}

bool fv_local_ok(const struct fv_device *d, const struct ibv_pd *pd,
		 uint32_t lkey, uint64_t addr, uint64_t len,
		 unsigned int access)
{
	const struct fv_key *k = key_find(d, lkey);

	return k && k->mr && k->mr->ibv.lkey == lkey && k->mr->ibv.pd == pd &&
	       (k->mr->access & access) == access &&
	       within(addr, len, k->mr->iova, k->mr->ibv.length);
}

void *fv_local_at(const struct fv_device *d, uint32_t lkey, uint64_t addr)
{
	const struct fv_mr *mr = key_find(d, lkey)->mr;

	return mr->host + (addr - mr->iova);
}

bool fv_remote_ok(const struct fv_qp *qp, uint32_t rkey, uint64_t addr,
		  uint64_t len, unsigned int access, struct fv_mr **ret_mr,
		  struct fv_mw **ret_mw, unsigned char **ret_p)
{
	const struct fv_key *k = key_find(qp->dev, rkey);
	struct fv_mr *mr;
	struct fv_mw *mw;

	if (!(qp->attr.qp_access_flags & access) || !k ||
	    k->tag != (uint8_t)rkey)
		return false;
	mw = k->mw;
	mr = mw ? mw->mr : k->mr;
	if (!mr || mr->ibv.pd != qp->ibv.pd)
		return false;
	if (mw) {
		if (!mw->bound || !(mw->access & access))
			return false;
		if (qp->dev->s.windows == 'B' && mw->qp != qp)
			return false;
		/* rxe looks at the registration only */
		if (qp->dev->s.model == FV_STRICT &&
		    !within(addr, len, mw->addr, mw->len))
			return false;
	} else if (!(mr->access & access)) {
		return false;
	}
	if (!within(addr, len, mr->iova, mr->ibv.length))
		return false;
	*ret_mr = mr;
	*ret_mw = mw;
	*ret_p = (unsigned char *)mr->ibv.addr + (addr - mr->iova);
	return true;
}
