/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a put to its location: queue, slot, page, entry.
 *
 * The entries of one block of the table that are ready go out together, and
 * one block of a segment at a time, from a copy: what is being written must
 * not change. While the engine is full, a segment waits for @commit_pages of
 * them.
 */
#include <errno.h>
#include <string.h>

#include "hicache/disk_store_internal.h"
#include "lib/assert.h"
#include "lib/crc32c.h"

static bool is_space(int err)
{
	return err == -ENOSPC || err == -EDQUOT || err == -EFBIG;
}

static void finish(struct kvs_disk_store *s, struct kvs_disk_req *r, int result)
{
	s->busy--;
	s->done++;
	s->stats.queued -= r->len;
	if (result) {
		s->stats.put_failed++;
	} else {
		s->stats.put++;
		s->stats.put_bytes += r->len;
	}
	kvs_party_leave(&r->party, KVS_PROOF_IO_COMPLETION);
	r->done(r, result);
}

void kvs_store_fail_queue(struct kvs_disk_store *s, int err)
{
	struct kvs_list failed;
	struct kvs_disk_req *r;

	/* their ->done may put again */
	kvs_list_init(&failed);
	kvs_list_splice_tail(&failed, &s->queue);
	while (!kvs_list_empty(&failed)) {
		r = kvs_list_first(&failed, struct kvs_disk_req, node);
		kvs_list_del(&r->node);
		finish(s, r, err);
	}
}

/* ---- the commit ---- */

static void commit(struct kvs_seg *seg);

static void commit_over(struct kvs_seg *seg, int result)
{
	struct kvs_disk_store *s = seg->store;
	struct kvs_disk_req *r;
	struct kvs_list batch;

	if (result)
		kvs_store_write_failed(s, result);
	else
		kvs_store_write_worked(s);
	kvs_list_init(&batch);
	kvs_list_splice_tail(&batch, &seg->batch);
	while (!kvs_list_empty(&batch)) {
		r = kvs_list_first(&batch, struct kvs_disk_req, node);
		kvs_list_del(&r->node);
		if (result) {
			kvs_seg_page_dead(seg, r->slot);
		} else {
			seg->slot[r->slot].state = KVS_SLOT_LIVE;
			seg->live++;
			s->stats.pages++;
			s->stats.page_bytes += seg->info.page_bytes;
			r->loc = kvs_loc(seg, r->slot);
		}
		finish(s, r, result);
		kvs_seg_unref(seg);
	}
	commit(seg);
	kvs_seg_settle(seg);
	kvs_seg_unref(seg);
}

static void synced(struct kvs_disk_io *io, int result)
{
	commit_over(io->arg, result);
}

static void committed(struct kvs_disk_io *io, int result)
{
	struct kvs_seg *seg = io->arg;

	if (!result && seg->store->o.durability == KVS_DURABILITY_FDATASYNC) {
		io->op = KVS_DISK_SYNC;
		io->done = synced;
		kvs_disk_start(seg->store->disk, io);
		return;
	}
	commit_over(seg, result);
}

static void commit(struct kvs_seg *seg)
{
	struct kvs_disk_store *s = seg->store;
	struct kvs_disk_req *r, *tmp;
	uint32_t block;

	if (!seg->npend || !kvs_list_empty(&seg->batch))
		return;
	/* More will come by itself; else somebody may wait for these. */
	if (seg->npend < s->o.commit_pages && seg->writing &&
	    s->writing >= kvs_disk_depth(s->disk))
		return;
	r = kvs_list_first(&seg->pend, struct kvs_disk_req, node);
	block = r->slot / KVS_SEG_PER_BLOCK;
	kvs_list_for_each_entry_safe(r, tmp, &seg->pend, node) {
		struct kvs_seg_page page = { r->key, r->crc };

		if (r->slot / KVS_SEG_PER_BLOCK != block)
			continue;
		kvs_seg_entry_write(&seg->info, r->slot, &page,
				    seg->table +
					    (size_t)r->slot * KVS_SEG_ENTRY);
		kvs_list_del(&r->node);
		kvs_list_add_tail(&seg->batch, &r->node);
		seg->npend--;
	}
	memcpy(seg->commit_iov.iov_base,
	       seg->table + (size_t)block * KVS_SEG_BLOCK, KVS_SEG_BLOCK);
	seg->commit = (struct kvs_disk_io){
		.op = KVS_DISK_WRITE,
		.file = &seg->file,
		.iov = &seg->commit_iov,
		.niov = 1,
		.off = KVS_SEG_BLOCK * (1 + (uint64_t)block),
		.len = KVS_SEG_BLOCK,
		.done = committed,
		.arg = seg,
	};
	s->stats.commits++;
	kvs_seg_get(seg);
	kvs_disk_start(s->disk, &seg->commit);
}

/* ---- the page ---- */

/* Return: it will be tried again. */
static bool try_again(struct kvs_disk_store *s, struct kvs_disk_req *r, int err)
{
	if (r->again || s->closing)
		return false;
	if (err == -EINVAL && r->seg->file.align > 1)
		kvs_store_go_buffered(s, "write", err);
	else if (!is_space(err) || kvs_store_reclaim_one(s))
		return false;
	r->again = true;
	kvs_list_add(&s->queue, &r->node);
	return true;
}

static void written(struct kvs_disk_io *io, int result)
{
	struct kvs_disk_req *r = io->arg;
	struct kvs_seg *seg = r->seg;
	struct kvs_disk_store *s = seg->store;

	kvs_seg_get(seg);
	s->writing--;
	seg->writing--;
	if (r->stage)
		kvs_store_unstage(s, r->stage);
	r->stage = NULL;
	if (!result) {
		kvs_party_leave(&r->party, KVS_PROOF_IO_COMPLETION);
		kvs_list_add_tail(&seg->pend, &r->node);
		seg->npend++;
	} else {
		kvs_seg_page_dead(seg, r->slot);
		if (!try_again(s, r, result)) {
			finish(s, r, result);
			kvs_store_write_failed(s, result);
		}
		/* Whatever is wrong with this place in the file, the next
		 * page goes elsewhere. */
		kvs_seg_retire(seg);
		kvs_seg_unref(seg);
	}
	commit(seg);
	kvs_seg_settle(seg);
	kvs_seg_unref(seg);
}

/* Copies, as one piece that can be written directly. */
static void stage(struct kvs_disk_req *r)
{
	uint64_t whole = (r->len + KVS_SEG_BLOCK - 1) / KVS_SEG_BLOCK *
			 (uint64_t)KVS_SEG_BLOCK;
	char *to = r->stage->buf;
	unsigned int i;

	for (i = 0; i < r->niov; i++) {
		memcpy(to, r->iov[i].iov_base, r->iov[i].iov_len);
		to += r->iov[i].iov_len;
	}
	memset(to, 0, whole - r->len);
	r->one.iov_base = r->stage->buf;
	r->one.iov_len = whole;
	r->crc = kvs_crc32c(r->stage->buf, r->len);
	/* Nobody reads the caller's bytes any more. */
	kvs_party_leave(&r->party, KVS_PROOF_IO_COMPLETION);
}

static uint32_t sum_up(const struct kvs_disk_req *r)
{
	uint32_t crc = 0xffffffff;
	unsigned int i;

	for (i = 0; i < r->niov; i++)
		crc = kvs_crc32c_raw(crc, r->iov[i].iov_base,
				     r->iov[i].iov_len);
	return ~crc;
}

/* Return: 0; -EAGAIN when a buffer is free; -errno. */
static int begin(struct kvs_disk_store *s, struct kvs_disk_req *r)
{
	struct kvs_seg *seg;
	int rc = kvs_seg_for_put(s, &r->layout, r->len, &seg);

	if (rc)
		return rc;
	if (!kvs_store_is_direct(s, seg, r)) {
		r->stage = kvs_store_stage(s, r->len);
		if (!r->stage)
			return kvs_list_empty(&s->stages) ? -EAGAIN : -ENOMEM;
	}
	kvs_list_del(&r->node);
	kvs_seg_get(seg);
	r->seg = seg;
	r->slot = seg->next++;
	if (r->stage)
		stage(r);
	else
		r->crc = sum_up(r);
	seg->slot[r->slot] = (struct kvs_slot){
		.key = r->key,
		.crc = r->crc,
		.state = KVS_SLOT_WRITING,
	};
	r->io = (struct kvs_disk_io){
		.op = KVS_DISK_WRITE,
		.file = &seg->file,
		.iov = r->stage ? &r->one : r->iov,
		.niov = r->stage ? 1 : r->niov,
		.off = kvs_seg_slot_off(&seg->info, r->slot),
		.len = r->stage ? r->one.iov_len : r->len,
		.done = written,
		.arg = r,
	};
	s->writing++;
	seg->writing++;
	kvs_disk_start(s->disk, &r->io);
	if (seg->next == seg->info.slots)
		kvs_seg_retire(seg);
	return 0;
}

bool kvs_store_pump(struct kvs_disk_store *s)
{
	struct kvs_disk_req *r;
	int rc;

	/* as many again wait in the engine, with their sums, so that it never
	 * waits for these */
	if (kvs_list_empty(&s->queue) ||
	    s->writing >= 2 * kvs_disk_depth(s->disk))
		return false;
	r = kvs_list_first(&s->queue, struct kvs_disk_req, node);
	rc = begin(s, r);
	/* a buffer comes back with a transfer that is under way */
	if (rc == -EAGAIN)
		return false;
	if (rc) {
		kvs_list_del(&r->node);
		finish(s, r, rc);
		kvs_store_write_failed(s, rc);
	}
	return true;
}

int kvs_disk_store_put(struct kvs_disk_store *s, struct kvs_disk_req *r)
{
	int rc;

	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	if (s->o.read_only)
		return -EROFS;
	if (s->closing)
		return -ECANCELED;
	if (!kvs_store_sane(r))
		return -EINVAL;
	if (s->pause_err && kvs_clock_now(s->clock) < s->pause_until) {
		s->stats.put_refused++;
		return s->pause_err;
	}
	/* One page always may, however large. */
	if (s->stats.queued && s->stats.queued + r->len > s->o.write_behind) {
		s->stats.put_refused++;
		return -EAGAIN;
	}
	rc = kvs_store_join(r);
	if (rc)
		return rc;
	r->loc = 0;
	r->seg = NULL;
	r->stage = NULL;
	r->again = false;
	s->busy++;
	s->stats.queued += r->len;
	kvs_list_add_tail(&s->queue, &r->node);
	return 0;
}
