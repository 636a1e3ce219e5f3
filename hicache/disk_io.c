/* SPDX-License-Identifier: Apache-2.0 */
#include "hicache/disk_io.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hicache/disk_internal.h"
#include "lib/assert.h"

#define READ_STREAK 8u /* reads before a write that waits */
#define SHORT_MAX 4u /* short transfers in a row without progress */
#define RETRIES_MAX 64u /* -EAGAIN and -EINTR in a row */

#define KVS_NAME_(n, s) [KVS_DISK_##n] = (s),
const char *const kvs_disk_op_name[KVS_DISK_OP_MAX] = { KVS_DISK_OPS(
	KVS_NAME_) };
#undef KVS_NAME_

/* ---- from one attempt to a whole transfer ---- */

/* What is left of @io, as far as it goes into one attempt. */
static void prepare(struct kvs_disk_slot *s, struct kvs_disk_io *io)
{
	uint64_t skip = io->moved, room = KVS_DISK_ATTEMPT_MAX;
	unsigned int i;

	s->io = io;
	s->off = io->off + io->moved;
	s->len = 0;
	s->niov = 0;
	for (i = 0; i < io->niov && s->niov < KVS_DISK_IOV_MAX && room; i++) {
		uint64_t len = io->iov[i].iov_len;

		if (skip >= len) {
			skip -= len;
			continue;
		}
		len -= skip;
		if (len > room)
			len = room;
		s->iov[s->niov].iov_base = (char *)io->iov[i].iov_base + skip;
		s->iov[s->niov++].iov_len = len;
		s->len += len;
		room -= len;
		skip = 0;
	}
}

static void put_back(struct kvs_disk *d, struct kvs_disk_slot *s)
{
	s->io = NULL;
	kvs_list_add(&d->free, &s->node);
}

/* ->done comes when the slots are in use again: it may take long. */
static void over(struct kvs_disk *d, struct kvs_disk_io *io, int result)
{
	io->result = result;
	kvs_list_add_tail(&d->ended, &io->node);
}

static void tell(struct kvs_disk *d, struct kvs_disk_io *io)
{
	int result = io->result;

	if (result) {
		d->stats.failed[io->op]++;
	} else {
		d->stats.ops[io->op]++;
		d->stats.bytes[io->op] += io->len;
	}
	io->file->busy--;
	d->busy--;
	io->done(io, result);
}

/*
 * Return: true when the rest is to be asked for. Direct transfers go on at a
 * multiple of the alignment, so that a piece may be moved twice.
 */
static bool go_on(struct kvs_disk *d, struct kvs_disk_io *io, uint64_t asked,
		  uint64_t got, int *ret_result)
{
	uint64_t before = io->moved;

	io->moved += got;
	if (io->moved >= io->len) {
		*ret_result = 0;
		return false;
	}
	if (got == asked)
		return true;
	d->stats.shorts[io->op]++;
	io->moved -= io->moved % io->file->align;
	if (io->moved > before) {
		io->retries = 0;
		return true;
	}
	/* Less than can be gone on with: the end of the file, or chance. */
	if (got && ++io->retries <= SHORT_MAX)
		return true;
	*ret_result = io->op == KVS_DISK_READ ? -ENODATA : -EIO;
	return false;
}

void kvs_disk_complete(struct kvs_disk *d, struct kvs_disk_slot *s,
		       ssize_t result)
{
	struct kvs_disk_io *io = s->io;
	uint64_t asked = s->len;
	int rc = (int)result;
	bool again = false;

	KVS_ASSERT(io);
	if (d->result)
		result = d->result(d->result_arg, io->op, result);
	if (result == -EAGAIN || result == -EINTR) {
		d->stats.retried++;
		again = ++io->retries <= RETRIES_MAX;
		rc = -EIO;
	} else if (result < 0) {
		rc = (int)result;
	} else if (io->op == KVS_DISK_SYNC) {
		rc = 0;
	} else if ((uint64_t)result > asked) {
		rc = -EIO;
	} else {
		again = go_on(d, io, asked, (uint64_t)result, &rc);
	}
	if (again) {
		prepare(s, io);
		d->ops->submit(d, s);
		return;
	}
	put_back(d, s);
	over(d, io, rc);
}

ssize_t kvs_disk_call(struct kvs_fs *fs, const struct kvs_disk_slot *s)
{
	int fd = s->io->file->fd;

	switch (s->io->op) {
	case KVS_DISK_READ:
		return fs->ops->preadv(fs, fd, s->iov, (int)s->niov, s->off);
	case KVS_DISK_WRITE:
		return fs->ops->pwritev(fs, fd, s->iov, (int)s->niov, s->off);
	case KVS_DISK_SYNC:
		return fs->ops->fdatasync(fs, fd);
	case KVS_DISK_OP_MAX:
		break;
	}
	return -EINVAL;
}

/* ---- transfers ---- */

static struct kvs_disk_io *next_io(struct kvs_disk *d)
{
	bool reads = !kvs_list_empty(&d->reads);
	bool writes = !kvs_list_empty(&d->writes);
	struct kvs_disk_io *io;

	if (!reads && !writes)
		return NULL;
	if (reads && writes)
		reads = d->streak < READ_STREAK;
	d->streak = reads && writes ? d->streak + 1 : 0;
	io = kvs_list_first(reads ? &d->reads : &d->writes, struct kvs_disk_io,
			    node);
	kvs_list_del(&io->node);
	return io;
}

static void hand_over(struct kvs_disk *d)
{
	struct kvs_disk_slot *s;
	struct kvs_disk_io *io;

	while (!kvs_list_empty(&d->free)) {
		io = next_io(d);
		if (!io)
			return;
		s = kvs_list_first(&d->free, struct kvs_disk_slot, node);
		kvs_list_del(&s->node);
		prepare(s, io);
		d->ops->submit(d, s);
	}
}

static bool sane(const struct kvs_disk_io *io)
{
	uint64_t sum = 0;
	unsigned int i;

	if (io->op == KVS_DISK_SYNC)
		return true;
	for (i = 0; i < io->niov; i++) {
		if (io->iov[i].iov_len > INT64_MAX - sum)
			return false;
		sum += io->iov[i].iov_len;
	}
	return sum && sum == io->len && io->off <= INT64_MAX - sum;
}

void kvs_disk_start(struct kvs_disk *d, struct kvs_disk_io *io)
{
	io->moved = 0;
	io->retries = 0;
	io->file->busy++;
	d->busy++;
	if (!sane(io))
		over(d, io, -EINVAL);
	else
		kvs_list_add_tail(io->op == KVS_DISK_READ ? &d->reads
							  : &d->writes,
				  &io->node);
}

static void flush(struct kvs_disk *d)
{
	hand_over(d);
	if (d->ops->flush)
		d->ops->flush(d);
}

unsigned int kvs_disk_turn(struct kvs_disk *d)
{
	unsigned int n = 0, most = 4 * d->depth;
	struct kvs_disk_io *io;

	hand_over(d);
	d->ops->turn(d);
	flush(d);
	/* one at a time: what an owner does with it may take long, and the
	 * disk must not wait for that */
	while (n < most && !kvs_list_empty(&d->ended)) {
		io = kvs_list_first(&d->ended, struct kvs_disk_io, node);
		kvs_list_del(&io->node);
		tell(d, io);
		n++;
		flush(d);
	}
	return n;
}

int kvs_disk_fd(const struct kvs_disk *d)
{
	return d->ops->fd(d);
}

uint64_t kvs_disk_due(const struct kvs_disk *d)
{
	bool waits = !kvs_list_empty(&d->reads) || !kvs_list_empty(&d->writes);

	if (!kvs_list_empty(&d->ended) || (waits && !kvs_list_empty(&d->free)))
		return 0;
	return d->ops->due ? d->ops->due(d) : KVS_TIME_NEVER;
}

int kvs_disk_wait(struct kvs_disk *d, uint64_t timeout)
{
	struct pollfd p = { .fd = kvs_disk_fd(d), .events = POLLIN };
	struct timespec ts;

	if (p.fd < 0 || kvs_disk_due(d) != KVS_TIME_NEVER)
		return 0;
	ts.tv_sec = (time_t)(timeout / KVS_NSEC_PER_SEC);
	ts.tv_nsec = (long)(timeout % KVS_NSEC_PER_SEC);
	if (ppoll(&p, 1, timeout == KVS_TIME_NEVER ? NULL : &ts, NULL) < 0 &&
	    errno != EINTR)
		return -errno;
	return 0;
}

/* ---- files and memory ---- */

int kvs_disk_map(struct kvs_disk *d, void *base, uint64_t len)
{
	return d->ops->map ? d->ops->map(d, base, len) : -EOPNOTSUPP;
}

void kvs_disk_file_init(struct kvs_disk *d, struct kvs_disk_file *f, int fd,
			uint32_t align)
{
	*f = (struct kvs_disk_file){
		.fd = fd,
		.index = -1,
		.align = align ? align : 1,
	};
	if (d->ops->file_add)
		d->ops->file_add(d, f);
}

void kvs_disk_file_fini(struct kvs_disk *d, struct kvs_disk_file *f)
{
	KVS_ASSERT(!f->busy);
	if (f->index >= 0)
		d->ops->file_del(d, f);
	f->index = -1;
	f->fd = -1;
}

/* ---- life ---- */

const char *kvs_disk_name(const struct kvs_disk *d)
{
	return d->ops->name;
}

struct kvs_fs *kvs_disk_fs(const struct kvs_disk *d)
{
	return d->fs;
}

unsigned int kvs_disk_depth(const struct kvs_disk *d)
{
	return d->depth;
}

const struct kvs_disk_stats *kvs_disk_stats(const struct kvs_disk *d)
{
	return &d->stats;
}

unsigned int kvs_disk_busy(const struct kvs_disk *d)
{
	return d->busy;
}

static int choose(struct kvs_disk *d, const struct kvs_disk_opts *o, char *err,
		  size_t errlen)
{
	bool is_auto = !o->engine || !strcmp(o->engine, "auto");
	int rc = -EOPNOTSUPP;

	if (is_auto || !strcmp(o->engine, "uring")) {
		d->ops = &kvs_disk_uring;
		if (d->fs == &kvs_fs_real)
			rc = d->ops->init(d, o, err, errlen);
		else
			snprintf(err, errlen, "io_uring: not of these files");
		if (!rc || !is_auto)
			return rc;
		d->ops = &kvs_disk_plain;
		return d->ops->init(d, o, NULL, 0);
	}
	if (!strcmp(o->engine, "plain"))
		d->ops = &kvs_disk_plain;
	else if (!strcmp(o->engine, "virtual"))
		d->ops = &kvs_disk_virtual;
	if (d->ops)
		return d->ops->init(d, o, err, errlen);
	snprintf(err, errlen, "\"%s\": there are engines auto, uring and plain",
		 o->engine);
	return -EINVAL;
}

int kvs_disk_create(const struct kvs_disk_opts *o, struct kvs_disk **ret_disk,
		    char *err, size_t errlen)
{
	char none[8];
	struct kvs_disk *d;
	unsigned int i;
	int rc;

	if (!err) {
		err = none;
		errlen = sizeof(none);
	}
	*err = '\0';
	if (o->depth > KVS_DISK_DEPTH_MAX ||
	    o->threads > KVS_DISK_THREADS_MAX) {
		snprintf(err, errlen, "depth: at most %u, threads: at most %u",
			 KVS_DISK_DEPTH_MAX, KVS_DISK_THREADS_MAX);
		return -EINVAL;
	}
	d = calloc(1, sizeof(*d));
	if (!d)
		goto out_memory;
	d->fs = o->fs ? o->fs : &kvs_fs_real;
	d->depth = o->depth ? o->depth : KVS_DISK_DEPTH_DEFAULT;
	d->result = o->result;
	d->result_arg = o->result_arg;
	kvs_list_init(&d->free);
	kvs_list_init(&d->reads);
	kvs_list_init(&d->writes);
	kvs_list_init(&d->ended);
	d->slots = calloc(d->depth, sizeof(*d->slots));
	if (!d->slots)
		goto out_memory;
	for (i = 0; i < d->depth; i++)
		put_back(d, &d->slots[i]);
	rc = choose(d, o, err, errlen);
	if (rc) {
		free(d->slots);
		free(d);
		return rc;
	}
	*ret_disk = d;
	return 0;
out_memory:
	free(d);
	snprintf(err, errlen, "out of memory");
	return -ENOMEM;
}

void kvs_disk_destroy(struct kvs_disk *d)
{
	if (!d)
		return;
	KVS_ASSERT(!d->busy);
	d->ops->fini(d);
	free(d->slots);
	free(d);
}
