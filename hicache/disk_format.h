/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: disk_format
 *
 * What a segment file of the disk tier is made of; kvstage-cache-format(5) is
 * the reference. All numbers are little endian.
 *
 *   0          head      128 bytes, the rest of its 4096 zero
 *   4096       table     one entry of 64 bytes for each slot, zero: free
 *   data_off   slot 0    a page, @page_bytes of @stride
 *              slot 1 ...
 *
 * A file has its full size before it gets its name, and is only ever added
 * to: a page is written into the next free slot, and when it is there its
 * entry into the table. The entry is the commit. It has a checksum of its own
 * and that of the page, so that neither is believed because it was found:
 * what a crash tore apart is an entry that does not match or a page that does
 * not. No two entries share bytes, and a block of the table is written again
 * with the same bytes in the entries it had.
 *
 * Nothing here reads a file. What was read is handed in, with its length; no
 * byte of it is trusted.
 */
#ifndef KVS_HICACHE_DISK_FORMAT_H
#define KVS_HICACHE_DISK_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "hicache/key.h"
#include "lib/le.h"

#define KVS_SEG_VERSION 1u
#define KVS_SEG_BLOCK 4096u /* bytes; all offsets are multiples */
#define KVS_SEG_ENTRY 64u /* bytes */
#define KVS_SEG_PER_BLOCK (KVS_SEG_BLOCK / KVS_SEG_ENTRY)
#define KVS_SEG_SLOTS_MAX (1u << 24)
#define KVS_SEG_PAGE_MAX (1u << 30) /* bytes */
#define KVS_SEG_ID_MAX (1ULL << 40)

/* X(NAME, string): what a segment file, or what was read of it, is */
#define KVS_SEG_VERDICTS(X)                                                \
	X(OK, "whole")                                                     \
	X(EMPTY, "empty")                                                  \
	X(SHORT, "truncated") /* shorter than its head, or than it says */ \
	X(LONG, "too long") /* longer than it says */                      \
	X(MAGIC, "no segment") /* some other file */                       \
	X(ORDER, "other byte order") /* of a big-endian machine */         \
	X(NEWER, "newer version") /* than this program knows */            \
	X(DAMAGED, "damaged head") /* wrong checksum */                    \
	X(GEOMETRY, "impossible sizes") /* they contradict one another */  \
	X(FOREIGN, "foreign") /* of another cache directory */             \
	X(NAME, "wrong name") /* the number in its head is another */      \
	X(UNREADABLE, "unreadable") /* open or read failed */

#define KVS_ENUM_(n, s) KVS_SEG_##n,
enum kvs_seg_verdict { KVS_SEG_VERDICTS(KVS_ENUM_) KVS_SEG_VERDICT_MAX };
#undef KVS_ENUM_

extern const char *const kvs_seg_verdict_name[KVS_SEG_VERDICT_MAX];

struct kvs_seg_instance {
	uint8_t b[16]; /* random, of one cache directory */
};

struct kvs_seg_head {
	uint8_t magic[8];
	kvs_le32 version;
	kvs_le32 order; /* 0x01020304 */
	kvs_le32 head_bytes; /* 4096 */
	kvs_le32 entry_bytes; /* 64 */
	kvs_le64 id;
	struct kvs_seg_instance instance;
	struct kvs_fingerprint layout;
	kvs_le32 page_bytes;
	kvs_le32 stride;
	kvs_le32 slots;
	kvs_le32 flags; /* 0 */
	kvs_le64 data_off;
	kvs_le64 file_bytes;
	kvs_le64 created; /* seconds since 1970 */
	uint8_t reserved[20]; /* 0 */
	kvs_le32 crc; /* CRC-32C of the bytes before it */
};

struct kvs_seg_entry {
	kvs_le32 magic; /* "KVPG", or 0: free */
	kvs_le32 slot;
	kvs_le64 id; /* of the segment */
	struct kvs_key key;
	struct kvs_fingerprint layout;
	kvs_le32 page_bytes;
	kvs_le32 page_crc; /* CRC-32C of the page */
	kvs_le32 flags; /* 0 */
	kvs_le32 crc; /* CRC-32C of the bytes before it */
};

/**
 * struct kvs_seg_info - a head, read and checked
 * @id: number of the segment, from 1 to KVS_SEG_ID_MAX - 1
 * @instance: cache directory it was made for
 * @layout: whose pages these are
 * @page_bytes: of every page
 * @stride: bytes from one slot to the next
 * @slots: how many
 * @data_off: bytes from the start to slot 0
 * @file_bytes: size of the file
 * @created: seconds since 1970
 */
struct kvs_seg_info {
	uint64_t id;
	struct kvs_seg_instance instance;
	struct kvs_fingerprint layout;
	uint32_t page_bytes;
	uint32_t stride;
	uint32_t slots;
	uint64_t data_off;
	uint64_t file_bytes;
	uint64_t created;
};

/* What an entry says of its page. */
struct kvs_seg_page {
	struct kvs_key key;
	uint32_t crc;
};

/**
 * kvs_seg_plan() - sizes of a segment
 * @page_bytes: of a page, from 1 to KVS_SEG_PAGE_MAX
 * @want: bytes the file should have; it gets at most these, but for one page
 * @info: @page_bytes, @stride, @slots, @data_off and @file_bytes are written
 * Return: 0; -EINVAL @page_bytes.
 */
int kvs_seg_plan(uint32_t page_bytes, uint64_t want, struct kvs_seg_info *info);

/* Fills the block (KVS_SEG_BLOCK bytes). */
void kvs_seg_head_write(const struct kvs_seg_info *info, void *block);

/**
 * kvs_seg_head_read() - check a head
 * @bytes: the first bytes of the file
 * @len: how many were read
 * @file_bytes: size of the file
 * @ret_info: written only with KVS_SEG_OK
 * Return: a verdict: OK, EMPTY, SHORT, LONG, MAGIC, ORDER, NEWER, DAMAGED or
 * GEOMETRY.
 */
enum kvs_seg_verdict kvs_seg_head_read(const void *bytes, size_t len,
				       uint64_t file_bytes,
				       struct kvs_seg_info *ret_info);

static inline uint64_t kvs_seg_table_bytes(const struct kvs_seg_info *info)
{
	return info->data_off - KVS_SEG_BLOCK;
}

static inline uint64_t kvs_seg_slot_off(const struct kvs_seg_info *info,
					uint32_t slot)
{
	return info->data_off + (uint64_t)slot * info->stride;
}

/* The entry of @page in @slot, at @entry (KVS_SEG_ENTRY bytes). */
void kvs_seg_entry_write(const struct kvs_seg_info *info, uint32_t slot,
			 const struct kvs_seg_page *page, void *entry);

/**
 * kvs_seg_entry_read() - check an entry
 * @info: of its segment
 * @slot: whose it should be; below @info->slots
 * @entry: KVS_SEG_ENTRY bytes
 * @ret_page: written on success
 * Return: 0; -ENOENT free; -EBADMSG damaged, or of another slot or segment.
 */
int kvs_seg_entry_read(const struct kvs_seg_info *info, uint32_t slot,
		       const void *entry, struct kvs_seg_page *ret_page);

#define KVS_SEG_NAME_LEN 32 /* bytes of a name with its end */
/* "seg-0000000000000001.kvs"; returns @buf. */
const char *kvs_seg_name(uint64_t id, char buf[KVS_SEG_NAME_LEN]);
/* Return: 0; -EINVAL not a name as kvs_seg_name() makes it. */
int kvs_seg_name_parse(const char *name, uint64_t *ret_id);

#endif /* KVS_HICACHE_DISK_FORMAT_H */
