/* SPDX-License-Identifier: Apache-2.0 */
#include "hicache/disk_format.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/crc32c.h"

#define SEG_ORDER 0x01020304u
#define SEG_ORDER_SWAPPED 0x04030201u
#define ENTRY_MAGIC 0x4750564bu /* "KVPG" */

/* Not text, and changed by whoever takes it for text. */
static const uint8_t seg_magic[8] = { 0x89, 'K', 'V', 'S', 'G', '\r', '\n', 0 };

static_assert(sizeof(struct kvs_seg_head) == 128, "as in the manual");
static_assert(offsetof(struct kvs_seg_head, crc) == 124, "as in the manual");
static_assert(sizeof(struct kvs_seg_entry) == KVS_SEG_ENTRY,
	      "as in the manual");
static_assert(offsetof(struct kvs_seg_entry, crc) == 60, "as in the manual");

#define KVS_NAME_(n, s) [KVS_SEG_##n] = (s),
const char *const kvs_seg_verdict_name[KVS_SEG_VERDICT_MAX] = {
	KVS_SEG_VERDICTS(KVS_NAME_)
};
#undef KVS_NAME_

static uint64_t round_up(uint64_t v)
{
	return (v + KVS_SEG_BLOCK - 1) / KVS_SEG_BLOCK * KVS_SEG_BLOCK;
}

static uint64_t data_off_of(uint32_t slots)
{
	return KVS_SEG_BLOCK + round_up((uint64_t)slots * KVS_SEG_ENTRY);
}

int kvs_seg_plan(uint32_t page_bytes, uint64_t want, struct kvs_seg_info *info)
{
	uint64_t stride, slots;

	if (!page_bytes || page_bytes > KVS_SEG_PAGE_MAX)
		return -EINVAL;
	stride = round_up(page_bytes);
	slots = want / (stride + KVS_SEG_ENTRY);
	if (slots > KVS_SEG_SLOTS_MAX)
		slots = KVS_SEG_SLOTS_MAX;
	while (slots > 1 &&
	       data_off_of((uint32_t)slots) + slots * stride > want)
		slots--;
	if (!slots)
		slots = 1;
	info->page_bytes = page_bytes;
	info->stride = (uint32_t)stride;
	info->slots = (uint32_t)slots;
	info->data_off = data_off_of((uint32_t)slots);
	info->file_bytes = info->data_off + slots * stride;
	return 0;
}

void kvs_seg_head_write(const struct kvs_seg_info *info, void *block)
{
	struct kvs_seg_head h = {
		.version = kvs_put32(KVS_SEG_VERSION),
		.order = kvs_put32(SEG_ORDER),
		.head_bytes = kvs_put32(KVS_SEG_BLOCK),
		.entry_bytes = kvs_put32(KVS_SEG_ENTRY),
		.id = kvs_put64(info->id),
		.instance = info->instance,
		.layout = info->layout,
		.page_bytes = kvs_put32(info->page_bytes),
		.stride = kvs_put32(info->stride),
		.slots = kvs_put32(info->slots),
		.data_off = kvs_put64(info->data_off),
		.file_bytes = kvs_put64(info->file_bytes),
		.created = kvs_put64(info->created),
	};

	memcpy(h.magic, seg_magic, sizeof(h.magic));
	h.crc = kvs_put32(kvs_crc32c(&h, offsetof(struct kvs_seg_head, crc)));
	memset(block, 0, KVS_SEG_BLOCK);
	memcpy(block, &h, sizeof(h));
}

/* Of a head whose checksum is right: sizes that another program may have
 * written into it. */
static bool geometry_ok(const struct kvs_seg_head *h)
{
	uint64_t page = kvs_get32(h->page_bytes);
	uint64_t stride = kvs_get32(h->stride);
	uint32_t slots = kvs_get32(h->slots);
	uint64_t id = kvs_get64(h->id);

	return kvs_get32(h->head_bytes) == KVS_SEG_BLOCK &&
	       kvs_get32(h->entry_bytes) == KVS_SEG_ENTRY && id &&
	       id < KVS_SEG_ID_MAX && page && page <= KVS_SEG_PAGE_MAX &&
	       stride == round_up(page) && slots &&
	       slots <= KVS_SEG_SLOTS_MAX &&
	       kvs_get64(h->data_off) == data_off_of(slots) &&
	       kvs_get64(h->file_bytes) ==
		       data_off_of(slots) + (uint64_t)slots * stride &&
	       !kvs_get32(h->flags);
}

enum kvs_seg_verdict kvs_seg_head_read(const void *bytes, size_t len,
				       uint64_t file_bytes,
				       struct kvs_seg_info *ret_info)
{
	struct kvs_seg_head h;

	if (!file_bytes)
		return KVS_SEG_EMPTY;
	if (len > file_bytes)
		len = (size_t)file_bytes;
	if (memcmp(bytes, seg_magic,
		   len < sizeof(seg_magic) ? len : sizeof(seg_magic)) != 0)
		return KVS_SEG_MAGIC;
	if (len < sizeof(h))
		return KVS_SEG_SHORT;
	memcpy(&h, bytes, sizeof(h));
	if (kvs_get32(h.order) == SEG_ORDER_SWAPPED)
		return KVS_SEG_ORDER;
	/* What follows may lie elsewhere there, its checksum too. */
	if (kvs_get32(h.order) == SEG_ORDER &&
	    kvs_get32(h.version) > KVS_SEG_VERSION)
		return KVS_SEG_NEWER;
	if (kvs_crc32c(&h, offsetof(struct kvs_seg_head, crc)) !=
	    kvs_get32(h.crc))
		return KVS_SEG_DAMAGED;
	if (kvs_get32(h.order) != SEG_ORDER ||
	    kvs_get32(h.version) != KVS_SEG_VERSION || !geometry_ok(&h))
		return KVS_SEG_GEOMETRY;
	if (file_bytes < kvs_get64(h.file_bytes))
		return KVS_SEG_SHORT;
	if (file_bytes > kvs_get64(h.file_bytes))
		return KVS_SEG_LONG;
	*ret_info = (struct kvs_seg_info){
		.id = kvs_get64(h.id),
		.instance = h.instance,
		.layout = h.layout,
		.page_bytes = kvs_get32(h.page_bytes),
		.stride = kvs_get32(h.stride),
		.slots = kvs_get32(h.slots),
		.data_off = kvs_get64(h.data_off),
		.file_bytes = kvs_get64(h.file_bytes),
		.created = kvs_get64(h.created),
	};
	return KVS_SEG_OK;
}

void kvs_seg_entry_write(const struct kvs_seg_info *info, uint32_t slot,
			 const struct kvs_seg_page *page, void *entry)
{
	struct kvs_seg_entry e = {
		.magic = kvs_put32(ENTRY_MAGIC),
		.slot = kvs_put32(slot),
		.id = kvs_put64(info->id),
		.key = page->key,
		.layout = info->layout,
		.page_bytes = kvs_put32(info->page_bytes),
		.page_crc = kvs_put32(page->crc),
	};

	e.crc = kvs_put32(kvs_crc32c(&e, offsetof(struct kvs_seg_entry, crc)));
	memcpy(entry, &e, sizeof(e));
}

int kvs_seg_entry_read(const struct kvs_seg_info *info, uint32_t slot,
		       const void *entry, struct kvs_seg_page *ret_page)
{
	static const struct kvs_seg_entry zero;
	struct kvs_seg_entry e;

	KVS_ASSERT(slot < info->slots);
	if (!memcmp(entry, &zero, sizeof(zero)))
		return -ENOENT;
	memcpy(&e, entry, sizeof(e));
	if (kvs_get32(e.magic) != ENTRY_MAGIC ||
	    kvs_crc32c(&e, offsetof(struct kvs_seg_entry, crc)) !=
		    kvs_get32(e.crc) ||
	    kvs_get32(e.slot) != slot || kvs_get64(e.id) != info->id ||
	    kvs_get32(e.page_bytes) != info->page_bytes ||
	    kvs_get32(e.flags) != 0 ||
	    memcmp(&e.layout, &info->layout, sizeof(e.layout)) != 0)
		return -EBADMSG;
	ret_page->key = e.key;
	ret_page->crc = kvs_get32(e.page_crc);
	return 0;
}

const char *kvs_seg_name(uint64_t id, char buf[KVS_SEG_NAME_LEN])
{
	snprintf(buf, KVS_SEG_NAME_LEN, "seg-%016" PRIx64 ".kvs", id);
	return buf;
}

int kvs_seg_name_parse(const char *name, uint64_t *ret_id)
{
	char again[KVS_SEG_NAME_LEN];
	uint64_t id = 0;
	size_t i;

	if (strlen(name) != strlen("seg-0123456789abcdef.kvs"))
		return -EINVAL;
	for (i = 4; i < 20; i++) {
		const char *digits = "0123456789abcdef";
		const char *d = strchr(digits, name[i]);

		if (!d || !*d)
			return -EINVAL;
		id = id << 4 | (uint64_t)(d - digits);
	}
	/* one name for one number */
	if (!id || id >= KVS_SEG_ID_MAX ||
	    strcmp(kvs_seg_name(id, again), name) != 0)
		return -EINVAL;
	*ret_id = id;
	return 0;
}
