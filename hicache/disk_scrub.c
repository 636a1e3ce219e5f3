/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads every page, one at a time and no faster than asked, to find those
 * that do not match before somebody needs them.
 */
#include <errno.h>

#include "hicache/disk_store_internal.h"
#include "lib/crc32c.h"

static void scrubbed(struct kvs_disk_io *io, int result)
{
	struct kvs_disk_store *s = io->arg;
	struct kvs_scrub *c = &s->scrub;
	struct kvs_seg *seg = c->seg;
	const struct kvs_slot *slot = &seg->slot[c->reading];

	c->seg = NULL;
	if (!result) {
		s->stats.scrubbed_bytes += seg->info.page_bytes;
		if (kvs_crc32c(c->stage.buf, seg->info.page_bytes) != slot->crc)
			result = -EBADMSG;
	}
	if ((result == -EBADMSG || result == -ENODATA) &&
	    slot->state == KVS_SLOT_LIVE) {
		s->stats.scrub_damaged++;
		kvs_store_tell(s, "scrub: segment %llu, page %u: %s",
			       (unsigned long long)seg->info.id, c->reading,
			       result == -EBADMSG ? "does not match"
						  : "the file ends before it");
		kvs_seg_page_gone(seg, c->reading, KVS_GONE_DAMAGED);
	} else if (result && result != -EBADMSG && result != -ENODATA) {
		kvs_store_read_failed(s, result);
	}
	kvs_seg_unref(seg);
}

/* The next page that can be read, from the cursor on; NULL at the end. */
static struct kvs_seg *next_page(struct kvs_disk_store *s)
{
	struct kvs_scrub *c = &s->scrub;
	struct kvs_seg *seg;

	kvs_list_for_each_entry(seg, &s->segs, node) {
		if (seg->info.id < c->id)
			continue;
		if (seg->info.id > c->id) {
			c->id = seg->info.id;
			c->slot = 0;
		}
		for (; c->slot < seg->next; c->slot++) {
			if (seg->slot[c->slot].state == KVS_SLOT_LIVE)
				return seg;
		}
	}
	return NULL;
}

static uint64_t rate(const struct kvs_scrub *c)
{
	return c->once ? c->once : c->rate;
}

static void begin(struct kvs_disk_store *s, struct kvs_seg *seg, uint64_t now)
{
	struct kvs_scrub *c = &s->scrub;
	uint32_t len = seg->info.stride;

	c->due = now + (uint64_t)((double)len * 1e9 / (double)rate(c));
	c->reading = c->slot++;
	kvs_seg_get(seg);
	if (kvs_seg_open_file(seg) || kvs_stage_fit(&c->stage, len)) {
		kvs_store_read_failed(s, -EIO);
		kvs_seg_unref(seg);
		return;
	}
	if (seg->file.align == 1)
		len = seg->info.page_bytes;
	c->seg = seg;
	c->iov.iov_base = c->stage.buf;
	c->iov.iov_len = len;
	c->io = (struct kvs_disk_io){
		.op = KVS_DISK_READ,
		.file = &seg->file,
		.iov = &c->iov,
		.niov = 1,
		.off = kvs_seg_slot_off(&seg->info, c->reading),
		.len = len,
		.done = scrubbed,
		.arg = s,
	};
	kvs_disk_start(s->disk, &c->io);
}

void kvs_store_scrub_turn(struct kvs_disk_store *s)
{
	struct kvs_scrub *c = &s->scrub;
	uint64_t now = kvs_clock_now(s->clock);
	struct kvs_seg *seg;

	if (!rate(c) || c->seg || s->closing || now < c->due)
		return;
	seg = next_page(s);
	if (seg) {
		begin(s, seg, now);
		return;
	}
	if (s->stats.pages || c->once)
		s->stats.scrub_rounds++;
	c->once = 0;
	c->id = 0;
	c->slot = 0;
	c->due = now + KVS_NSEC_PER_SEC;
}

uint64_t kvs_store_scrub_due(const struct kvs_disk_store *s)
{
	const struct kvs_scrub *c = &s->scrub;

	return rate(c) && !c->seg && !s->closing ? c->due : KVS_TIME_NEVER;
}

void kvs_disk_store_scrub(struct kvs_disk_store *s, uint64_t bytes_per_sec)
{
	s->scrub.rate = bytes_per_sec;
	s->scrub.due = kvs_clock_now(s->clock);
}

void kvs_disk_store_scrub_once(struct kvs_disk_store *s, uint64_t bytes_per_sec)
{
	s->scrub.once = bytes_per_sec;
	s->scrub.id = 0;
	s->scrub.slot = 0;
	s->scrub.due = kvs_clock_now(s->clock);
}
