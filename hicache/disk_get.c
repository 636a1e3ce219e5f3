/* SPDX-License-Identifier: Apache-2.0 */
/* From a location to bytes that are known to be right. */
#include <errno.h>
#include <string.h>

#include "hicache/disk_store_internal.h"
#include "lib/assert.h"
#include "lib/crc32c.h"

static void finish(struct kvs_disk_store *s, struct kvs_disk_req *r, int result)
{
	struct kvs_seg *seg = r->seg;

	s->busy--;
	s->done++;
	if (result) {
		s->stats.got_failed++;
	} else {
		s->stats.got++;
		s->stats.got_bytes += r->len;
	}
	if (r->stage)
		kvs_store_unstage(s, r->stage);
	r->stage = NULL;
	kvs_party_leave(&r->party, KVS_PROOF_IO_COMPLETION);
	r->done(r, result);
	kvs_seg_unref(seg);
}

static bool matches(const struct kvs_disk_req *r)
{
	uint32_t crc = 0xffffffff;
	unsigned int i;

	if (r->stage)
		return kvs_crc32c(r->stage->buf, r->len) == r->crc;
	for (i = 0; i < r->niov; i++)
		crc = kvs_crc32c_raw(crc, r->iov[i].iov_base,
				     r->iov[i].iov_len);
	return ~crc == r->crc;
}

static void unpack(const struct kvs_disk_req *r)
{
	const char *from = r->stage->buf;
	unsigned int i;

	for (i = 0; i < r->niov; i++) {
		memcpy(r->iov[i].iov_base, from, r->iov[i].iov_len);
		from += r->iov[i].iov_len;
	}
}

static int judge(struct kvs_disk_store *s, struct kvs_disk_req *r, int result)
{
	if (!result && !matches(r))
		result = -EBADMSG;
	if (!result) {
		kvs_store_read_worked(s);
		if (r->stage)
			unpack(r);
		return 0;
	}
	if (result == -EBADMSG)
		s->stats.damaged++;
	else if (result == -ENODATA)
		s->stats.short_reads++;
	else
		kvs_store_read_failed(s, result);
	if (result == -EBADMSG || result == -ENODATA) {
		kvs_store_tell(s, "segment %llu, page %u: %s",
			       (unsigned long long)r->seg->info.id, r->slot,
			       result == -EBADMSG ? "does not match, not served"
						  : "the file ends before it");
		kvs_seg_page_gone(r->seg, r->slot, KVS_GONE_DAMAGED);
	}
	return result;
}

static int begin(struct kvs_disk_store *s, struct kvs_disk_req *r);

static void have_read(struct kvs_disk_io *io, int result)
{
	struct kvs_disk_req *r = io->arg;
	struct kvs_disk_store *s = r->seg->store;

	if (result == -EINVAL && r->seg->file.align > 1 && !r->again) {
		r->again = true;
		kvs_store_go_buffered(s, "read", result);
		/* with a buffer or without, as before */
		result = begin(s, r);
		if (!result)
			return;
	}
	finish(s, r, judge(s, r, result));
}

/* Return: 0; -EAGAIN a buffer is needed; -errno. */
static int begin(struct kvs_disk_store *s, struct kvs_disk_req *r)
{
	int rc = kvs_seg_open_file(r->seg);

	if (rc)
		return rc;
	if (!r->stage && !kvs_store_is_direct(s, r->seg, r)) {
		r->stage = kvs_store_stage(s, r->len);
		if (!r->stage)
			return kvs_list_empty(&s->stages) ? -EAGAIN : -ENOMEM;
	}
	r->one.iov_base = r->stage ? r->stage->buf : NULL;
	r->one.iov_len = r->seg->file.align == 1 ? r->len : r->seg->info.stride;
	r->io = (struct kvs_disk_io){
		.op = KVS_DISK_READ,
		.file = &r->seg->file,
		.iov = r->stage ? &r->one : r->iov,
		.niov = r->stage ? 1 : r->niov,
		.off = kvs_seg_slot_off(&r->seg->info, r->slot),
		.len = r->stage ? r->one.iov_len : r->len,
		.done = have_read,
		.arg = r,
	};
	kvs_disk_start(s->disk, &r->io);
	return 0;
}

void kvs_store_pump_gets(struct kvs_disk_store *s)
{
	struct kvs_list todo;
	struct kvs_disk_req *r;
	int rc;

	kvs_list_init(&todo);
	kvs_list_splice_tail(&todo, &s->ended);
	while (!kvs_list_empty(&todo)) {
		r = kvs_list_first(&todo, struct kvs_disk_req, node);
		kvs_list_del(&r->node);
		finish(s, r, judge(s, r, r->result));
	}
	while (!kvs_list_empty(&s->waiting)) {
		r = kvs_list_first(&s->waiting, struct kvs_disk_req, node);
		rc = begin(s, r);
		if (rc == -EAGAIN)
			return;
		kvs_list_del(&r->node);
		if (rc)
			finish(s, r, judge(s, r, rc));
	}
}

/* Of one who reads: the owner has removed the file. All that was in it is told
 * of then. */
static bool vanished(struct kvs_seg *seg)
{
	int rc;

	kvs_seg_get(seg);
	rc = kvs_seg_open_file(seg);
	if (rc == -ENOENT || rc == -ESTALE)
		(void)kvs_seg_remove(seg, KVS_GONE_VANISHED);
	kvs_seg_unref(seg);
	return rc == -ENOENT || rc == -ESTALE;
}

int kvs_disk_store_get(struct kvs_disk_store *s, struct kvs_disk_req *r)
{
	struct kvs_seg *seg;
	uint32_t slot;
	int rc;

	KVS_CHECK_MAGIC(s, KVS_STORE_MAGIC);
	if (s->closing)
		return -ECANCELED;
	seg = kvs_seg_find(s, r->loc, &slot);
	if (!seg || !kvs_key_equal(&seg->slot[slot].key, &r->key))
		return -ENOENT;
	if (r->len != seg->info.page_bytes || !kvs_store_sane(r))
		return -EINVAL;
	if (s->o.read_only && vanished(seg))
		return -ENOENT;
	rc = kvs_store_join(r);
	if (rc)
		return rc;
	kvs_seg_get(seg);
	r->seg = seg;
	r->slot = slot;
	r->crc = seg->slot[slot].crc;
	r->stage = NULL;
	r->again = false;
	s->busy++;
	/* in order behind those that wait for a buffer */
	rc = kvs_list_empty(&s->waiting) ? begin(s, r) : -EAGAIN;
	if (rc == -EAGAIN) {
		kvs_list_add_tail(&s->waiting, &r->node);
	} else if (rc) {
		r->result = rc;
		kvs_list_add_tail(&s->ended, &r->node);
	}
	return 0;
}
