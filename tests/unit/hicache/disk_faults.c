/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what fails costs pages, never the service. Failed writes, a full
 * disk, refused direct transfers, damaged, cut, foreign and newer files: each
 * ends the request it concerns with its error, is counted, told, and shown by
 * the health; what is there is served all the while, and writing begins again
 * by itself. A scrub finds what does not match.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/hicache/disk_rig.h"

static struct disk_rig g;

static enum kvs_store_health health(void)
{
	const char *why;

	return kvs_disk_store_health(g.store, &why);
}

static void up(uint32_t pages)
{
	uint32_t n;

	disk_rig_init(&g, 1);
	disk_rig_open(&g);
	for (n = 0; n < pages; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
}

static void served(uint32_t from, uint32_t to)
{
	for (; from < to; from++)
		assert_int_equal(disk_rig_get(&g, from), 0);
}

static void one_write_fails(void **state)
{
	(void)state;
	up(10);
	/* the page, then the entry */
	fake_fail(&g.f, FAKE_WRITE, 1, 0, -EIO);
	assert_int_equal(disk_rig_put(&g, 10), -EIO);
	fake_fail(&g.f, FAKE_WRITE, 2, 0, -EIO);
	/* a new segment was begun: its head is a write as well */
	assert_int_equal(disk_rig_put(&g, 11), -EIO);
	assert_int_equal(disk_rig_stats(&g).write_errors, 2);
	assert_int_equal(health(), KVS_STORE_OK);
	assert_int_equal(disk_rig_put(&g, 12), 0);
	served(0, 10);
	assert_int_equal(disk_rig_get(&g, 12), 0);
	disk_rig_close(&g);
	disk_rig_open(&g);
	served(0, 10);
	assert_int_equal(disk_rig_get(&g, 12), 0);
	disk_rig_fini(&g);
}

static void all_writes_fail(void **state)
{
	uint32_t n, refused = 0;
	int rc;

	(void)state;
	up(10);
	fake_fail(&g.f, FAKE_WRITE, 1, 1000000, -EIO);
	for (n = 10; n < 40; n++) {
		rc = disk_rig_put(&g, n);
		assert_int_equal(rc, -EIO);
	}
	assert_int_equal(disk_rig_stats(&g).write_errors, 8);
	refused = (uint32_t)disk_rig_stats(&g).put_refused;
	assert_int_equal(refused, 30 - 8);
	assert_int_equal(health(), KVS_STORE_WRITE_ERRORS);
	assert_true(disk_rig_told(&g, "EIO: nothing is written"));
	/* no file is left of what failed */
	assert_true(fake_count(&g.f, "seg-") <= 2);
	assert_int_equal(fake_count(&g.f, "new-"), 0);
	served(0, 10);
	/* it tries again after a while, once */
	kvs_vclock_advance(&g.clock, KVS_STORE_RETRY_DEFAULT);
	assert_int_equal(disk_rig_put(&g, 40), -EIO);
	assert_int_equal(disk_rig_put(&g, 41), -EIO);
	assert_int_equal(disk_rig_stats(&g).write_errors, 9);
	kvs_vclock_advance(&g.clock, KVS_STORE_RETRY_DEFAULT);
	fake_fail(&g.f, FAKE_WRITE, 0, 0, 0);
	assert_int_equal(disk_rig_put(&g, 42), 0);
	assert_int_equal(health(), KVS_STORE_OK);
	assert_true(disk_rig_told(&g, "works again"));
	assert_int_equal(disk_rig_put(&g, 43), 0);
	served(42, 44);
	disk_rig_fini(&g);
}

/* Blocks are had when a segment is made. */
static void disk_full(void **state)
{
	uint32_t n, ok = 0;

	(void)state;
	disk_rig_init(&g, 1);
	g.f.capacity = 700 << 10;
	disk_rig_open(&g);
	for (n = 0; n < 200; n++)
		ok += !disk_rig_put(&g, n);
	/* without a limit of its own: the oldest goes for the new */
	assert_int_equal(ok, 200);
	assert_true(disk_rig_stats(&g).reclaimed >= 4);
	assert_int_equal(health(), KVS_STORE_OK);
	/* somebody else fills it */
	g.f.capacity = 1;
	for (n = 200; n < 300; n++)
		ok += !disk_rig_put(&g, n);
	assert_int_equal(health(), KVS_STORE_NO_SPACE);
	assert_true(disk_rig_stats(&g).no_space >= 1);
	assert_int_equal(disk_rig_put(&g, 300), -ENOSPC);
	g.f.capacity = 700 << 10;
	assert_int_equal(disk_rig_put(&g, 300), -ENOSPC);
	kvs_vclock_advance(&g.clock, KVS_STORE_RETRY_DEFAULT);
	assert_int_equal(disk_rig_put(&g, 301), 0);
	assert_int_equal(health(), KVS_STORE_OK);
	for (n = 0; n < 302; n++)
		assert_true(!g.loc[n] || !disk_rig_get(&g, n));
	disk_rig_fini(&g);
}

/* What was under way when the disk was full ends well, and ends no pause. */
static void a_pause_lasts(void **state)
{
	struct rig_req *q[4];
	unsigned int i;

	(void)state;
	disk_rig_init(&g, 1);
	g.io.latency = KVS_NSEC_PER_MSEC;
	disk_rig_open(&g);
	assert_int_equal(disk_rig_put(&g, 0), 0);
	fake_fail(&g.f, FAKE_WRITE, 1, 0, -ENOSPC);
	for (i = 0; i < 4; i++) {
		q[i] = disk_rig_req(&g, 1 + i, 1, 0);
		assert_int_equal(kvs_disk_store_put(g.store, &q[i]->r), 0);
	}
	for (i = 0; i < 4; i++)
		assert_true(disk_rig_run(&g, q[i], 10000));
	assert_true(disk_rig_stats(&g).no_space == 1);
	assert_int_equal(health(), KVS_STORE_NO_SPACE);
	assert_false(disk_rig_told(&g, "works again"));
	assert_int_equal(disk_rig_put(&g, 5), -ENOSPC);
	kvs_vclock_advance(&g.clock, KVS_STORE_RETRY_DEFAULT);
	assert_int_equal(disk_rig_put(&g, 6), 0);
	assert_int_equal(health(), KVS_STORE_OK);
	for (i = 0; i < 4; i++)
		disk_rig_req_free(q[i]);
	disk_rig_fini(&g);
}

/* A segment is reserved whole, so it leaves room on a disk it does not own. */
static void large_segments(void **state)
{
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	g.o.segment_bytes = 100 << 20;
	g.f.capacity = 128 << 20;
	disk_rig_open(&g);
	assert_int_equal(disk_rig_put(&g, 0), 0);
	assert_true(g.f.used > 31 << 20 && g.f.used < 33 << 20);
	assert_true(disk_rig_told(&g, "100.0 MiB is more than a quarter"));
	assert_true(disk_rig_told(&g, "this one 32.0 MiB"));
	/* what is left is used, and then the oldest goes */
	g.lines = 0;
	memset(g.line, 0, sizeof(g.line));
	g.f.capacity = g.f.used + (20 << 20);
	for (n = 1; n < RIG_PAGES; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(disk_rig_stats(&g).reclaimed, 0);
	assert_int_equal(disk_rig_stats(&g).segments, 2);
	for (n = 0; n < RIG_PAGES; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_true(disk_rig_stats(&g).reclaimed >= 1);
	assert_true(g.f.used <= g.f.capacity);
	assert_false(disk_rig_told(&g, "more than a quarter"));
	/* nobody knows what is free: as asked */
	disk_rig_fini(&g);
	disk_rig_init(&g, 1);
	g.o.segment_bytes = 40 << 20;
	g.f.capacity = 64 << 20;
	fake_fail(&g.f, FAKE_SPACE, 1, 0, -ENOSYS);
	disk_rig_open(&g);
	assert_int_equal(disk_rig_put(&g, 0), 0);
	assert_true(g.f.used > 39 << 20);
	disk_rig_fini(&g);
}

/* Blocks come with each write, and the disk ends in the middle of one. */
static void disk_full_late(void **state)
{
	uint32_t n, ok = 0;

	(void)state;
	disk_rig_init(&g, 1);
	g.f.capacity = 600 << 10;
	g.f.no_allocate = true;
	disk_rig_open(&g);
	for (n = 0; n < 200; n++)
		ok += !disk_rig_put(&g, n);
	assert_int_equal(ok, 200);
	assert_true(kvs_disk_stats(g.disk)->shorts[KVS_DISK_WRITE] > 0);
	for (n = 0; n < 200; n++)
		assert_true(!g.loc[n] || !disk_rig_get(&g, n));
	disk_rig_close(&g);
	disk_rig_open(&g);
	for (n = 0; n < 200; n++)
		assert_true(!g.loc[n] || !disk_rig_get(&g, n));
	disk_rig_fini(&g);
}

static void direct_is_refused(void **state)
{
	int where;

	(void)state;
	for (where = 0; where < 3; where++) {
		disk_rig_init(&g, 1);
		g.f.no_direct = where == 0;
		g.f.no_direct_write = where == 1;
		g.f.align = where == 2 ? 65536 : 0;
		disk_rig_open(&g);
		assert_int_equal(disk_rig_put(&g, 1), 0);
		assert_int_equal(disk_rig_get(&g, 1), 0);
		assert_int_equal(health(), KVS_STORE_BUFFERED);
		assert_int_equal(disk_rig_stats(&g).direct_refused, 1);
		assert_true(disk_rig_told(&g, "buffered"));
		assert_int_equal(disk_rig_stats(&g).put_failed, 0);
		disk_rig_fini(&g);
	}
	/* in the middle of its life */
	up(3);
	g.f.no_direct_write = true;
	assert_int_equal(disk_rig_put(&g, 3), 0);
	assert_int_equal(disk_rig_put(&g, 4), 0);
	served(0, 5);
	assert_int_equal(health(), KVS_STORE_BUFFERED);
	assert_int_equal(disk_rig_stats(&g).direct_refused, 1);
	disk_rig_fini(&g);
}

static void transfers_come_short(void **state)
{
	uint32_t n;

	(void)state;
	disk_rig_init(&g, 1);
	g.f.short_every = 3;
	disk_rig_open(&g);
	for (n = 0; n < 50; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	served(0, 50);
	assert_true(kvs_disk_stats(g.disk)->shorts[KVS_DISK_READ] > 5);
	assert_true(kvs_disk_stats(g.disk)->shorts[KVS_DISK_WRITE] > 5);
	disk_rig_fini(&g);
}

static void reads_fail(void **state)
{
	uint32_t n;

	(void)state;
	up(20);
	fake_fail(&g.f, FAKE_READ, 1, 11, -EIO);
	for (n = 0; n < 12; n++)
		assert_int_equal(disk_rig_get(&g, n), -EIO);
	assert_int_equal(health(), KVS_STORE_READ_ERRORS);
	/* the page may still be there */
	served(0, 20);
	assert_int_equal(health(), KVS_STORE_OK);
	assert_int_equal(disk_rig_stats(&g).read_errors, 12);
	assert_int_equal(disk_rig_stats(&g).pages, 20);
	disk_rig_fini(&g);
}

static struct fake_file *segment(uint32_t id)
{
	char name[KVS_SEG_NAME_LEN];
	struct fake_file *v = fake_find(&g.f, kvs_seg_name(id, name));

	assert_non_null(v);
	return v;
}

static void pages_do_not_match(void **state)
{
	(void)state;
	up(10);
	segment(1)->now[4096 + 4096 + 3 * RIG_PAGE + 77] ^= 0x10;
	assert_int_equal(disk_rig_get(&g, 3), -EBADMSG);
	assert_int_equal(g.gone[KVS_GONE_DAMAGED], 1);
	assert_int_equal(disk_rig_stats(&g).damaged, 1);
	assert_true(disk_rig_told(&g, "does not match"));
	assert_int_equal(disk_rig_get(&g, 3), -ENOENT);
	/* the file is cut off below it: not old bytes of the memory */
	fake_resize(&g.f, segment(1), 4096 + 4096 + 5 * RIG_PAGE + 6000);
	assert_int_equal(disk_rig_get(&g, 5), -ENODATA);
	assert_int_equal(disk_rig_get(&g, 6), -ENODATA);
	assert_int_equal(disk_rig_stats(&g).short_reads, 2);
	assert_int_equal(disk_rig_get(&g, 4), 0);
	disk_rig_fini(&g);
}

static void scrub_finds_them(void **state)
{
	unsigned int i;

	(void)state;
	up(40);
	segment(1)->now[4096 + 4096 + 7 * RIG_PAGE + 1] ^= 1;
	segment(2)->now[4096 + 4096 + 2 * RIG_PAGE] ^= 1;
	kvs_disk_store_scrub(g.store, 40 * RIG_PAGE);
	/* not faster than asked: 40 pages a second */
	for (i = 0; i < 20; i++) {
		kvs_disk_store_turn(g.store);
		kvs_vclock_advance(&g.clock, KVS_NSEC_PER_SEC / 40);
	}
	assert_true(disk_rig_stats(&g).scrubbed_bytes <= 20 * RIG_PAGE);
	assert_true(disk_rig_stats(&g).scrubbed_bytes >= 15 * RIG_PAGE);
	assert_int_equal(g.gone[KVS_GONE_DAMAGED], 1);
	assert_int_equal(g.loc[7], 0);
	for (i = 0; i < 100; i++) {
		kvs_disk_store_turn(g.store);
		kvs_vclock_advance(&g.clock, KVS_NSEC_PER_SEC / 40);
	}
	assert_int_equal(g.gone[KVS_GONE_DAMAGED], 2);
	assert_int_equal(g.loc[33], 0);
	assert_int_equal(disk_rig_stats(&g).scrub_damaged, 2);
	assert_true(disk_rig_stats(&g).scrub_rounds >= 1);
	disk_rig_fini(&g);
}

static void flip(uint32_t id, uint64_t at)
{
	segment(id)->now[at] ^= 1;
}

/* Each is set aside by name, and the rest is served. */
static void damaged_files(void **state)
{
	static const uint8_t junk[5000] = "not a segment";
	char name[KVS_SEG_NAME_LEN];
	struct kvs_disk_store_stats st;
	uint32_t n;

	(void)state;
	up(8 * 31);
	disk_rig_close(&g);
	flip(1, 200); /* in the unused part of the head: nobody minds */
	flip(2, 40); /* in the head */
	fake_resize(&g.f, segment(3), segment(3)->size - 1);
	fake_resize(&g.f, segment(4), segment(4)->size + 1);
	fake_resize(&g.f, segment(5), 0);
	flip(6, 0);
	segment(7)->now[8] = 2;
	flip(8, 4096 + 64 * 9 + 20); /* one entry */
	fake_make(&g.f, kvs_seg_name(9, name), junk, sizeof(junk));
	fake_make(&g.f, kvs_seg_name(10, name), segment(8)->now,
		  segment(8)->size);
	fake_make(&g.f, "new-0000000000000077.kvs", junk, 7);
	fake_make(&g.f, "readme.txt", junk, 7);
	disk_rig_open(&g);
	st = disk_rig_stats(&g);
	assert_int_equal(st.set_aside[KVS_SEG_DAMAGED], 1);
	assert_int_equal(st.set_aside[KVS_SEG_SHORT], 1);
	assert_int_equal(st.set_aside[KVS_SEG_LONG], 1);
	assert_int_equal(st.set_aside[KVS_SEG_EMPTY], 1);
	assert_int_equal(st.set_aside[KVS_SEG_MAGIC], 2);
	assert_int_equal(st.set_aside[KVS_SEG_NEWER], 1);
	assert_int_equal(st.set_aside[KVS_SEG_NAME], 1);
	assert_int_equal(st.entries_damaged, 1);
	assert_int_equal(g.found, 31 + 30);
	assert_int_equal(fake_count(&g.f, "aside-"), 8);
	assert_int_equal(fake_count(&g.f, "new-"), 0);
	assert_non_null(fake_find(&g.f, "readme.txt"));
	assert_non_null(fake_find(
		&g.f, "aside-newer_version-seg-0000000000000007.kvs"));
	assert_true(disk_rig_told(&g, "newer version"));
	for (n = 0; n < 8 * 31; n++)
		assert_true(!g.loc[n] || !disk_rig_get(&g, n));
	/* they count, are remembered, and go first when room is needed */
	assert_true(st.aside > 0 && st.used > st.aside);
	disk_rig_close(&g);
	g.o.limit = 4 * (256 << 10);
	disk_rig_open(&g);
	assert_int_equal(disk_rig_stats(&g).aside, st.aside);
	for (n = 1000; n < 1062; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	assert_int_equal(disk_rig_stats(&g).aside, 0);
	assert_int_equal(disk_rig_stats(&g).aside_removed, 8);
	assert_int_equal(fake_count(&g.f, "aside-"), 0);
	disk_rig_fini(&g);
}

/* The files of another directory, brought here. */
static void foreign_files(void **state)
{
	static struct disk_rig other;
	char name[KVS_SEG_NAME_LEN];
	struct fake_file *v;

	(void)state;
	up(3);
	disk_rig_init(&other, 2);
	disk_rig_open(&other);
	assert_int_equal(disk_rig_put(&other, 1), 0);
	disk_rig_close(&other);
	v = fake_find(&other.f, kvs_seg_name(1, name));
	assert_non_null(v);
	disk_rig_close(&g);
	fake_make(&g.f, kvs_seg_name(5, name), v->now, v->size);
	disk_rig_open(&g);
	assert_int_equal(g.found, 3);
	assert_int_equal(disk_rig_stats(&g).set_aside[KVS_SEG_FOREIGN], 1);
	disk_rig_fini(&other);
	/* numbers go on behind what was there */
	assert_int_equal(disk_rig_put(&g, 4), 0);
	served(0, 3);
	disk_rig_fini(&g);
}

/* Without its identity a directory is another one, which is said. */
static void identity_is_lost(void **state)
{
	struct fake_file *v;

	(void)state;
	up(40);
	/* not of a new directory */
	assert_false(disk_rig_told(&g, "identity"));
	disk_rig_close(&g);
	v = fake_find(&g.f, "instance");
	assert_non_null(v);
	v->now[7] = 'x';
	disk_rig_open(&g);
	assert_int_equal(g.found, 0);
	assert_true(disk_rig_told(&g, "instance: damaged (EINVAL): a new"));
	assert_true(disk_rig_told(&g, "are foreign: 2 set aside"));
	assert_int_equal(disk_rig_put(&g, 1), 0);
	disk_rig_close(&g);
	g.lines = 0;
	memset(g.line, 0, sizeof(g.line));
	disk_rig_open(&g);
	assert_int_equal(g.found, 1);
	assert_false(disk_rig_told(&g, "identity"));
	disk_rig_close(&g);
	assert_int_equal(g.f.fs.ops->unlink(&g.f.fs, "instance"), 0);
	disk_rig_open(&g);
	assert_true(disk_rig_told(&g, "instance: missing (ENOENT): a new"));
	disk_rig_fini(&g);
}

/* Others can write the directory: said, with who and how. */
static void directory_of_others(void **state)
{
	const struct {
		uint32_t owner;
		uint32_t mode;
		const char *text; /* NULL: nothing is said */
	} cases[] = {
		{ 0, 0700, NULL },
		{ (uint32_t)geteuid(), 0755, NULL },
		{ (uint32_t)geteuid() + 1, 0700, "mode 0700: others" },
		{ 0, 0720, "user 0, mode 0720: others" },
		{ (uint32_t)geteuid(), 01777, "mode 1777: others" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		disk_rig_init(&g, 1);
		fake_make(&g.f, "fake", "", 0);
		g.f.owner = cases[i].owner;
		g.f.mode = cases[i].mode;
		disk_rig_open(&g);
		assert_int_equal(disk_rig_told(&g, "of user"), !!cases[i].text);
		assert_true(!cases[i].text || disk_rig_told(&g, cases[i].text));
		assert_int_equal(disk_rig_put(&g, 1), 0);
		disk_rig_fini(&g);
	}
}

/* A name is not believed: the last number in one leaves the others to make
 * segments of, and what cannot be moved away is not replaced. */
static void numbers_in_names(void **state)
{
	static const uint8_t junk[] = "0123456789";
	char name[KVS_SEG_NAME_LEN];

	(void)state;
	up(3);
	disk_rig_close(&g);
	fake_make(&g.f, "seg-000000ffffffffff.kvs", junk, sizeof(junk));
	fake_make(&g.f, "seg-0000010000000000.kvs", junk, sizeof(junk));
	fake_make(&g.f, "seg-one.kvs", junk, sizeof(junk));
	disk_rig_open(&g);
	for (uint32_t n = 3; n < 100; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	served(0, 100);
	assert_int_equal(disk_rig_stats(&g).segments, 4);
	assert_int_equal(fake_count(&g.f, "aside-"), 1);
	assert_true(disk_rig_told(&g, "(2 in all): no name that a segment"));
	assert_non_null(fake_find(&g.f, "seg-0000010000000000.kvs"));
	assert_non_null(fake_find(&g.f, "seg-one.kvs"));
	disk_rig_close(&g);
	/* the next numbers are taken, and stay so */
	fake_make(&g.f, kvs_seg_name(5, name), junk, sizeof(junk));
	fake_make(&g.f, kvs_seg_name(6, name), junk, sizeof(junk));
	fake_fail(&g.f, FAKE_RENAME, 1, 1, -EACCES);
	disk_rig_open(&g);
	assert_true(disk_rig_told(&g, "cannot be set aside"));
	for (uint32_t n = 100; n < 150; n++)
		assert_int_equal(disk_rig_put(&g, n), 0);
	served(0, 150);
	assert_int_equal(segment(5)->size, sizeof(junk));
	assert_int_equal(segment(6)->size, sizeof(junk));
	assert_true(segment(7)->size > sizeof(junk));
	disk_rig_fini(&g);
}

/* Every call of a start may fail once: it opens, or says why not. */
static void calls_fail_at_open(void **state)
{
	static const int errs[] = { -EIO, -EACCES, -ENOSPC, -ENOMEM };
	unsigned int call, at, failed = 0;
	char err[512];
	int rc;

	(void)state;
	for (call = 0; call < FAKE_CALL_MAX; call++) {
		for (at = 1; at < 6; at++) {
			up(70);
			disk_rig_close(&g);
			fake_fail(&g.f, call, at, 0, errs[at % 4]);
			rc = disk_rig_try_open(&g, err, sizeof(err));
			fake_fail(&g.f, call, 0, 0, 0);
			if (rc) {
				failed++;
				assert_true(*err != '\0');
				disk_rig_open(&g);
			}
			assert_int_equal(disk_rig_put(&g, 200), 0);
			assert_int_equal(disk_rig_get(&g, 200), 0);
			disk_rig_fini(&g);
		}
	}
	print_message("%u starts said why not\n", failed);
	assert_true(failed > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_write_fails),
		cmocka_unit_test(all_writes_fail),
		cmocka_unit_test(disk_full),
		cmocka_unit_test(large_segments),
		cmocka_unit_test(disk_full_late),
		cmocka_unit_test(a_pause_lasts),
		cmocka_unit_test(direct_is_refused),
		cmocka_unit_test(transfers_come_short),
		cmocka_unit_test(reads_fail),
		cmocka_unit_test(pages_do_not_match),
		cmocka_unit_test(scrub_finds_them),
		cmocka_unit_test(damaged_files),
		cmocka_unit_test(foreign_files),
		cmocka_unit_test(identity_is_lost),
		cmocka_unit_test(directory_of_others),
		cmocka_unit_test(numbers_in_names),
		cmocka_unit_test(calls_fail_at_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
