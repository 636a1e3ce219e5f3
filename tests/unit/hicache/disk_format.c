/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a head and an entry are read as they were written, and no single
 * flipped bit, other length or other place passes; sizes that contradict one
 * another do not, even with a right checksum; a segment never takes more than
 * was asked for, but for one page; names are read back, and only those.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#include "hicache/disk_format.h"
#include "lib/crc32c.h"

static uint8_t block[KVS_SEG_BLOCK];

static struct kvs_seg_info sample(void)
{
	struct kvs_seg_info info = {
		.id = 0x1234567,
		.instance = { { 1, 2, 3 } },
		.layout = { { 4, 5, 6 } },
		.created = 1700000000,
	};

	assert_int_equal(kvs_seg_plan(33792, 8 << 20, &info), 0);
	return info;
}

static void head_and_back(void **state)
{
	struct kvs_seg_info info = sample(), back;
	size_t i;

	(void)state;
	kvs_seg_head_write(&info, block);
	assert_int_equal(kvs_seg_head_read(block, sizeof(block),
					   info.file_bytes, &back),
			 KVS_SEG_OK);
	assert_int_equal(back.id, info.id);
	assert_memory_equal(&back.instance, &info.instance, 16);
	assert_memory_equal(&back.layout, &info.layout, 16);
	assert_int_equal(back.page_bytes, 33792);
	assert_int_equal(back.stride, 36864);
	assert_int_equal(back.slots, info.slots);
	assert_int_equal(back.data_off, info.data_off);
	assert_int_equal(back.created, info.created);
	for (i = sizeof(struct kvs_seg_head); i < sizeof(block); i++)
		assert_int_equal(block[i], 0);
}

static void no_flipped_head(void **state)
{
	struct kvs_seg_info info = sample(), back;
	unsigned int bit;

	(void)state;
	kvs_seg_head_write(&info, block);
	for (bit = 0; bit < 8 * sizeof(struct kvs_seg_head); bit++) {
		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_not_equal(kvs_seg_head_read(block, sizeof(block),
						       info.file_bytes, &back),
				     KVS_SEG_OK);
		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

static void each_verdict(void **state)
{
	struct kvs_seg_info info = sample(), back;
	uint64_t size = info.file_bytes;

	(void)state;
	kvs_seg_head_write(&info, block);
	assert_int_equal(kvs_seg_head_read(block, 4096, 0, &back),
			 KVS_SEG_EMPTY);
	assert_int_equal(kvs_seg_head_read(block, 127, size, &back),
			 KVS_SEG_SHORT);
	assert_int_equal(kvs_seg_head_read(block, 4096, 127, &back),
			 KVS_SEG_SHORT);
	assert_int_equal(kvs_seg_head_read(block, 4096, size - 1, &back),
			 KVS_SEG_SHORT);
	assert_int_equal(kvs_seg_head_read(block, 4096, size + 1, &back),
			 KVS_SEG_LONG);
	assert_int_equal(kvs_seg_head_read(block, 5, 5, &back), KVS_SEG_SHORT);
	block[3] ^= 1;
	assert_int_equal(kvs_seg_head_read(block, 4096, size, &back),
			 KVS_SEG_MAGIC);
	/* some other file is one of whatever length */
	assert_int_equal(kvs_seg_head_read(block, 127, size, &back),
			 KVS_SEG_MAGIC);
	assert_int_equal(kvs_seg_head_read(block, 5, 5, &back), KVS_SEG_MAGIC);
	block[3] ^= 1;
	block[8]++;
	assert_int_equal(kvs_seg_head_read(block, 4096, size, &back),
			 KVS_SEG_NEWER);
	block[8]--;
	block[100] ^= 4;
	assert_int_equal(kvs_seg_head_read(block, 4096, size, &back),
			 KVS_SEG_DAMAGED);
	block[100] ^= 4;
	block[12] = 1;
	block[13] = 2;
	block[14] = 3;
	block[15] = 4;
	assert_int_equal(kvs_seg_head_read(block, 4096, size, &back),
			 KVS_SEG_ORDER);
}

/* Whoever writes a right checksum below wrong sizes gets nowhere. */
static void impossible_sizes(void **state)
{
	static const struct {
		size_t at;
		size_t len;
		uint64_t value;
	} lies[] = {
		{ 16, 4, 512 },	       { 20, 4, 32 },
		{ 24, 8, 0 },	       { 24, 8, 1ULL << 40 },
		{ 64, 4, 0 },	       { 64, 4, 0xffffffff },
		{ 68, 4, 0 },	       { 68, 4, 4096 },
		{ 72, 4, 0 },	       { 72, 4, 0xffffffff },
		{ 72, 4, 1u << 24 },   { 76, 4, 1 },
		{ 80, 8, 0 },	       { 80, 8, UINT64_MAX },
		{ 80, 8, 1ULL << 63 }, { 88, 8, 0 },
		{ 88, 8, UINT64_MAX }, { 8, 4, 0 },
	};
	struct kvs_seg_info info = sample(), back;
	uint32_t crc;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		kvs_seg_head_write(&info, block);
		memcpy(block + lies[i].at, &lies[i].value, lies[i].len);
		crc = kvs_crc32c(block, 124);
		memcpy(block + 124, &crc, 4);
		assert_int_equal(kvs_seg_head_read(block, sizeof(block),
						   info.file_bytes, &back),
				 KVS_SEG_GEOMETRY);
	}
}

static void entries(void **state)
{
	struct kvs_seg_page page = { { { 7, 8, 9 } }, 0xdeadbeef }, back;
	struct kvs_seg_info info = sample(), other = sample();
	uint8_t e[KVS_SEG_ENTRY] = { 0 };
	unsigned int bit;

	(void)state;
	assert_int_equal(kvs_seg_entry_read(&info, 3, e, &back), -ENOENT);
	kvs_seg_entry_write(&info, 3, &page, e);
	assert_int_equal(kvs_seg_entry_read(&info, 3, e, &back), 0);
	assert_true(kvs_key_equal(&back.key, &page.key));
	assert_int_equal(back.crc, page.crc);
	assert_int_equal(kvs_seg_entry_read(&info, 4, e, &back), -EBADMSG);
	other.id++;
	assert_int_equal(kvs_seg_entry_read(&other, 3, e, &back), -EBADMSG);
	other = info;
	other.layout.b[9]++;
	assert_int_equal(kvs_seg_entry_read(&other, 3, e, &back), -EBADMSG);
	for (bit = 0; bit < 8 * sizeof(e); bit++) {
		e[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(kvs_seg_entry_read(&info, 3, e, &back),
				 -EBADMSG);
		e[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

static void plans(void **state)
{
	static const uint32_t pages[] = { 1, 4096, 4097, 1u << 20, 1u << 30 };
	struct kvs_seg_info info;
	uint64_t want;
	size_t i;

	(void)state;
	assert_int_equal(kvs_seg_plan(0, 1 << 20, &info), -EINVAL);
	assert_int_equal(kvs_seg_plan((1u << 30) + 1, 1 << 20, &info), -EINVAL);
	for (i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		for (want = 0; want < 1ULL << 42; want = 3 * want + 4096) {
			assert_int_equal(kvs_seg_plan(pages[i], want, &info),
					 0);
			assert_true(info.slots >= 1);
			assert_true(info.slots <= KVS_SEG_SLOTS_MAX);
			assert_true(info.slots == 1 || info.file_bytes <= want);
			assert_true(kvs_seg_slot_off(&info, info.slots) ==
				    info.file_bytes);
			assert_true(kvs_seg_table_bytes(&info) >=
				    (uint64_t)info.slots * KVS_SEG_ENTRY);
			/* no room is left for one more */
			assert_true(info.slots == KVS_SEG_SLOTS_MAX ||
				    info.file_bytes + info.stride +
						    2 * KVS_SEG_BLOCK >
					    want);
		}
	}
}

static void names(void **state)
{
	static const char *const bad[] = {
		"",
		"seg-",
		"seg-0000000000000000.kvs",
		"seg-0000010000000000.kvs",
		"seg-000000000000001g.kvs",
		"seg-000000000000001A.kvs",
		"seg-0000000000000001.kvs.x",
		"new-0000000000000001.kvs",
		"seg-000000000000001.kvss",
		"aside-empty-seg-0000000000000001.kvs",
	};
	char buf[KVS_SEG_NAME_LEN];
	uint64_t id = 0;
	size_t i;

	(void)state;
	assert_string_equal(kvs_seg_name(0xabc, buf),
			    "seg-0000000000000abc.kvs");
	assert_int_equal(kvs_seg_name_parse(buf, &id), 0);
	assert_int_equal(id, 0xabc);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kvs_seg_name_parse(bad[i], &id), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(head_and_back),
		cmocka_unit_test(no_flipped_head),
		cmocka_unit_test(each_verdict),
		cmocka_unit_test(impossible_sizes),
		cmocka_unit_test(entries),
		cmocka_unit_test(plans),
		cmocka_unit_test(names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
