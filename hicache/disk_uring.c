/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine: io_uring (liburing 2.3).
 *
 * Files are registered as they are opened, as long as there is room, and
 * memory as kvs_disk_map() is asked; a transfer that lies in one registered
 * piece needs neither a look-up nor pages pinned, anything else goes the
 * ordinary way. A registered file keeps the kernel's own reference: its lock
 * is not free before the last transfer of a killed process has ended.
 *
 * An eventfd wakes the owner: a poll of the ring does not see completions that
 * wait for their thread (IORING_SETUP_DEFER_TASKRUN).
 *
 * No more than @depth transfers are in the kernel and the completion queue is
 * larger than that, so it cannot overflow; it is looked for all the same.
 */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "hicache/disk_internal.h"
#include "lib/assert.h"
#include "rdma/uring.h"
#include "rdma/uring_buffers.h"

#define INSTEAD "engine \"plain\""
#define BATCH 32u
#define MAP_PIECE (1ULL << 30) /* bytes; io_uring_register(2) */

struct piece {
	char *base;
	uint64_t len;
	uint64_t index;
};

struct uring {
	struct io_uring ring;
	int fd; /* eventfd */
	bool enabled;
	bool overflowing;
	unsigned int unsubmitted;
	struct kvs_uring_buffers buffers; /* ring is NULL: none */
	struct piece *pieces; /* in order of their addresses */
	unsigned int npieces;
	unsigned int files; /* size of the table; 0: none */
	uint8_t *taken; /* of each place in it */
};

static void uring_fini(struct kvs_disk *d)
{
	struct uring *u = d->engine;

	if (u->buffers.ring)
		kvs_uring_buffers_fini(&u->buffers);
	io_uring_queue_exit(&u->ring);
	close(u->fd);
	free(u->pieces);
	free(u->taken);
	free(u);
}

/* A table that cannot be had is done without. */
static void files_init(struct uring *u, unsigned int files)
{
	u->taken = calloc(files, 1);
	if (u->taken && !io_uring_register_files_sparse(&u->ring, files))
		u->files = files;
}

static int uring_init(struct kvs_disk *d, const struct kvs_disk_opts *o,
		      char *err, size_t errlen)
{
	static const int ops[] = { IORING_OP_READV, IORING_OP_WRITEV,
				   IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED,
				   IORING_OP_FSYNC };
	unsigned int entries = d->depth < 8 ? 8 : d->depth;
	struct uring *u;
	int rc;

	rc = kvs_uring_trial(ops, KVS_ARRAY_SIZE(ops), INSTEAD, err, errlen);
	if (rc)
		return rc;
	u = calloc(1, sizeof(*u));
	if (!u) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	rc = kvs_uring_init(&u->ring, entries, 2 * entries);
	if (rc) {
		free(u);
		return kvs_uring_refuse("io_uring_setup", rc, INSTEAD, err,
					errlen);
	}
	u->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = u->fd < 0 ? -errno : io_uring_register_eventfd(&u->ring, u->fd);
	if (rc) {
		io_uring_queue_exit(&u->ring);
		if (u->fd >= 0)
			close(u->fd);
		free(u);
		return kvs_uring_refuse("eventfd", rc, INSTEAD, err, errlen);
	}
	d->engine = u;
	if (o->files)
		files_init(u, o->files);
	return 0;
}

/* ---- registered memory and files ---- */

static int by_address(const void *a, const void *b)
{
	const struct piece *x = a;
	const struct piece *y = b;

	return x->base < y->base ? -1 : x->base > y->base;
}

static int uring_map(struct kvs_disk *d, void *base, uint64_t len)
{
	unsigned int n = (unsigned int)((len + MAP_PIECE - 1) / MAP_PIECE);
	struct uring *u = d->engine;
	unsigned int i, first = u->npieces;
	struct piece *p;
	int rc = 0;

	if (!u->buffers.ring) {
		rc = kvs_uring_buffers_init(&u->buffers, &u->ring);
		if (rc) {
			u->buffers.ring = NULL;
			return rc;
		}
	}
	p = realloc(u->pieces, (first + n) * sizeof(*p));
	if (!p)
		return -ENOMEM;
	u->pieces = p;
	for (i = 0; i < n; i++) {
		p = &u->pieces[first + i];
		p->base = (char *)base + i * MAP_PIECE;
		p->len = len - i * MAP_PIECE;
		if (p->len > MAP_PIECE)
			p->len = MAP_PIECE;
		rc = kvs_uring_registrar.reg(&u->buffers, p->base, p->len,
					     &p->index);
		if (rc)
			break;
	}
	if (rc) {
		while (i--)
			kvs_uring_registrar.unreg(&u->buffers, NULL, 0,
						  u->pieces[first + i].index);
		return rc;
	}
	u->npieces += n;
	qsort(u->pieces, u->npieces, sizeof(*u->pieces), by_address);
	return 0;
}

/* The registered piece that holds all of it, or -1. */
static int find_piece(const struct uring *u, const struct iovec *v)
{
	unsigned int lo = 0, hi = u->npieces;
	const char *at = v->iov_base;

	while (lo < hi) {
		unsigned int mid = lo + (hi - lo) / 2;
		const struct piece *p = &u->pieces[mid];

		if (at < p->base)
			hi = mid;
		else if ((uint64_t)(at - p->base) >= p->len)
			lo = mid + 1;
		else if (v->iov_len <= p->len - (uint64_t)(at - p->base))
			return (int)p->index;
		else
			return -1;
	}
	return -1;
}

static void uring_file_add(struct kvs_disk *d, struct kvs_disk_file *f)
{
	struct uring *u = d->engine;
	unsigned int i;

	for (i = 0; i < u->files; i++) {
		if (u->taken[i])
			continue;
		if (io_uring_register_files_update(&u->ring, i, &f->fd, 1) ==
		    1) {
			u->taken[i] = 1;
			f->index = (int)i;
		}
		return;
	}
}

static void uring_file_del(struct kvs_disk *d, struct kvs_disk_file *f)
{
	struct uring *u = d->engine;
	int none = -1;

	/* A place that cannot be cleared is not used again. */
	if (io_uring_register_files_update(&u->ring, (unsigned int)f->index,
					   &none, 1) == 1)
		u->taken[f->index] = 0;
}

/* ---- transfers ---- */

static void prep(struct kvs_disk *d, struct io_uring_sqe *sqe,
		 struct kvs_disk_slot *s)
{
	struct uring *u = d->engine;
	const struct kvs_disk_file *f = s->io->file;
	int fd = f->index >= 0 ? f->index : f->fd;
	bool write = s->io->op == KVS_DISK_WRITE;
	int piece = -1;

	if (s->io->op == KVS_DISK_SYNC) {
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	} else {
		if (s->niov == 1)
			piece = find_piece(u, s->iov);
		if (piece >= 0)
			d->stats.fixed++;
		if (piece >= 0 && write) {
			io_uring_prep_write_fixed(sqe, fd, s->iov->iov_base,
						  (unsigned int)s->len, s->off,
						  piece);
		} else if (piece >= 0) {
			io_uring_prep_read_fixed(sqe, fd, s->iov->iov_base,
						 (unsigned int)s->len, s->off,
						 piece);
		} else if (write) {
			io_uring_prep_writev(sqe, fd, s->iov, s->niov, s->off);
		} else {
			io_uring_prep_readv(sqe, fd, s->iov, s->niov, s->off);
		}
	}
	if (f->index >= 0)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, s);
}

/* Without work of either kind there is no reason to go into the kernel. */
static bool has_work(const struct uring *u)
{
	unsigned int flags = IO_URING_READ_ONCE(*u->ring.sq.kflags);

	return u->unsubmitted ||
	       (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW));
}

static void submit(struct uring *u)
{
	int rc;

	if (!has_work(u))
		return;
	rc = io_uring_submit_and_get_events(&u->ring);
	/* What was not taken stays in the queue for the next turn. */
	if (rc > 0)
		u->unsubmitted -= (unsigned int)rc < u->unsubmitted
					  ? (unsigned int)rc
					  : u->unsubmitted;
}

static void uring_submit(struct kvs_disk *d, struct kvs_disk_slot *s)
{
	struct uring *u = d->engine;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	/* One entry for each slot: there is always one. */
	KVS_ASSERT(sqe);
	prep(d, sqe, s);
	u->unsubmitted++;
}

/* The kernel keeps completions that did not fit and says so by a flag only. */
static bool overflow(struct kvs_disk *d)
{
	struct uring *u = d->engine;

	if (!io_uring_cq_has_overflow(&u->ring)) {
		u->overflowing = false;
		return false;
	}
	if (!u->overflowing)
		d->stats.overflows++;
	u->overflowing = true;
	io_uring_get_events(&u->ring);
	return true;
}

static void reap(struct kvs_disk *d)
{
	struct uring *u = d->engine;
	struct io_uring_cqe *cqe[BATCH];
	unsigned int total = 0, n, i;
	struct kvs_disk_slot *slot[BATCH];
	int res[BATCH];

	submit(u);
	overflow(d);
	do {
		n = io_uring_peek_batch_cqe(&u->ring, cqe, BATCH);
		for (i = 0; i < n; i++) {
			slot[i] = io_uring_cqe_get_data(cqe[i]);
			res[i] = cqe[i]->res;
		}
		io_uring_cq_advance(&u->ring, n);
		for (i = 0; i < n; i++)
			kvs_disk_complete(d, slot[i], res[i]);
		total += n;
		if (u->unsubmitted)
			submit(u);
	} while (total < 2 * d->depth && (overflow(d) || n == BATCH));
}

static void uring_turn(struct kvs_disk *d)
{
	struct uring *u = d->engine;
	uint64_t woken;

	if (!u->enabled) {
		if (kvs_uring_enable(&u->ring))
			return;
		u->enabled = true;
	}
	/* first, so that what comes after it wakes again */
	if (read(u->fd, &woken, sizeof(woken)) < 0)
		woken = 0;
	reap(d);
}

static void uring_flush(struct kvs_disk *d)
{
	struct uring *u = d->engine;

	if (u->enabled && (has_work(u) || io_uring_cq_ready(&u->ring)))
		reap(d);
}

static int uring_fd(const struct kvs_disk *d)
{
	const struct uring *u = d->engine;

	return u->fd;
}

/* What one turn left must not wait for something else to happen. */
static uint64_t uring_due(const struct kvs_disk *d)
{
	const struct uring *u = d->engine;

	return has_work(u) || io_uring_cq_ready(&u->ring) ? 0 : KVS_TIME_NEVER;
}

const struct kvs_disk_engine kvs_disk_uring = {
	.name = "uring",
	.init = uring_init,
	.fini = uring_fini,
	.submit = uring_submit,
	.turn = uring_turn,
	.flush = uring_flush,
	.fd = uring_fd,
	.due = uring_due,
	.map = uring_map,
	.file_add = uring_file_add,
	.file_del = uring_file_del,
};
