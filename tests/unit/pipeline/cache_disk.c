/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a worker whose cache has a disk tier, with each engine over real
 * files (argument: "plain", "uring") or over the double of them ("virtual"):
 * what is cached is written there, in bounds; what left memory, or was there
 * before a restart, is found, read back and checked before its room is READY,
 * byte for byte what was kept, once for all who want it; what does not match,
 * or cannot be read, ends its room and is a miss from then on, never handed
 * over; what a transfer may touch is nobody else's, when its room is given up
 * and when the disk never answers (quarantined until it does); a full, broken
 * or missing disk costs hits and nothing else. Virtual clock, no threads of the
 * test's.
 */
#include "tests/unit/pipeline/worker_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/log.h"
#include "tests/unit/hicache/fake_fs.h"

static struct rig g;
static struct fake_fs fs;
static const char *engine_name;
static char dir[] = "/tmp/kvs-cache-disk-XXXXXX";

#define PAGE (4 * 1024u)
#define RUN 1024u
#define TOKENS 4u /* of a page */
#define WAIT (60 * KVS_NSEC_PER_SEC)
#define LIMIT_PROMPTS 24u

static bool is_virtual(void)
{
	return !strcmp(engine_name, "virtual");
}

static void turns(void)
{
	uint64_t next;

	do {
		kvs_worker_turn(g.w);
		kvs_pool_check(g.pool);
		if (g.w->cache.ix)
			kvs_index_check(g.w->cache.ix);
		next = kvs_worker_next(g.w);
	} while (next <= kvs_clock_now(&g.clock.clk));
}

/* Until the disk has nothing to do, and nothing waits for it. */
static void settle(void)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + WAIT;
	struct pollfd p = { .events = POLLIN };

	turns();
	while (g.w->cache.disk.store &&
	       kvs_disk_store_busy(g.w->cache.disk.store)) {
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("the disk does not end");
		p.fd = kvs_cache_disk_fd(g.w);
		assert_true(poll(&p, 1, 1000) >= 0);
		turns();
	}
}

static void set_up(unsigned int pages)
{
	rig_up(&g, pages);
	kvs_log_set_level(KVS_LOG_ERR);
	snprintf(g.set.hicache_dir, sizeof(g.set.hicache_dir), "%s",
		 is_virtual() ? "/cache" : dir);
	snprintf(g.set.hicache_engine, sizeof(g.set.hicache_engine), "%s",
		 engine_name);
	g.set.hicache_segment = 1 << 20;
	g.set.cache_blocks = 4096; /* looked at in every turn */
	g.w->o.cache_fs = is_virtual() ? &fs.fs : NULL;
}

static void begin(void)
{
	kvs_cache_disk_open(g.w);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE),
			 "model 1 rank 0", 0);
}

static void up(unsigned int pages)
{
	set_up(pages);
	begin();
	if (!g.w->cache.disk.store)
		fail_msg("off: %s", g.w->cache.disk.why);
}

static void down(void)
{
	settle();
	kvs_cache_flush(g.w);
	rig_down(&g);
}

static void remove_all(const char *path)
{
	char name[512];
	struct dirent *e;
	DIR *d = opendir(path);

	while (d && (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		if (unlink(name))
			remove_all(name);
	}
	if (d)
		closedir(d);
	rmdir(path);
}

static int fresh(void **state)
{
	(void)state;
	remove_all(dir);
	fake_init(&fs, 1);
	return 0;
}

static int gone(void **state)
{
	(void)state;
	remove_all(dir);
	fake_fini(&fs);
	return 0;
}

static struct kvs_worker_snapshot *numbers(void)
{
	static struct kvs_worker_snapshot s;

	kvs_worker_snapshot(g.w, &s);
	return &s;
}

static const struct rig_event *last(uint32_t slot, bool ready)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    (ready ? g.log[i].n_extents > 0 : g.log[i].cached))
			return &g.log[i];
	fail_msg("no packet");
	return NULL;
}

static void receive(uint64_t room, uint64_t gen, unsigned int pages)
{
	rig_open(&g, room, gen, 0);
	rig_send_all(&g, room, gen, 0, 1, pages);
}

static void finish(uint32_t slot, uint64_t gen)
{
	rig_packet(&g, KVS_PACKET_COMMIT, slot, gen, 0);
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_COMMITTING);
	rig_packet(&g, KVS_PACKET_COMMITTED, slot, gen, 0);
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_DONE);
	turns();
}

/* A prompt, received whole, left here, and written. */
static void leave(unsigned int prompt, unsigned int pages)
{
	uint64_t gen = rig_admit_named(&g, 1000 + prompt, prompt, pages, prompt,
				       false);

	receive(1000 + prompt, gen, pages);
	finish(prompt, gen);
	settle();
}

/* Segment by segment, the first @pages pages are what was received. */
static void check_segs(const struct rig_event *e, unsigned int pages)
{
	unsigned int page = 0;

	for (uint32_t i = 0; i < e->n_segs; i++) {
		const struct kvs_packet_seg *s = &e->segs[i];

		for (uint32_t p = s->first_page; p < s->first_page + s->n_pages;
		     p++, page++)
			for (unsigned int b = 0; b < 4; b++)
				for (unsigned int k = 0; k < RUN; k++)
					assert_int_equal(
						g.base[s->off +
						       ((uint64_t)b *
								s->extent_pages +
							p) * RUN +
						       k],
						(page + b / 2 + b % 2) & 0xff);
	}
	assert_int_equal(page, pages);
}

/* A room of @pages pages more than the @cached that it takes from here. */
static void use(uint64_t room, uint32_t slot, unsigned int prompt,
		unsigned int cached, unsigned int more)
{
	uint64_t gen = rig_ask(&g, room, slot, cached + more, prompt, cached);

	assert_int_equal(last(slot, false)->blocks, cached);
	receive(room, gen, more);
	settle();
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_READY);
	check_segs(last(slot, true), cached);
	finish(slot, gen);
}

static void test_recall(void **state)
{
	const struct kvs_cache_disk_stats *d;

	(void)state;
	up(128);
	leave(1, 40);
	assert_false(kvs_cache_disk_behind(g.w));
	d = &numbers()->disk;
	assert_true(d->on);
	assert_string_equal(d->health, "ok");
	assert_string_equal(d->engine, engine_name);
	assert_int_equal(d->written, 40);
	assert_int_equal(d->blocks, 40);
	assert_int_equal(d->bytes, 40 * PAGE);
	assert_int_equal(d->queued_bytes, 0);
	assert_true(d->file_bytes >= d->bytes);
	/* it need not be read while it is in memory */
	use(7, 5, 1, 40, 10);
	assert_int_equal(numbers()->disk.recalled, 0);
	kvs_cache_flush(g.w);
	turns();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_CACHED), 0);
	assert_int_equal(rig_cached(&g, 1, 40), 40);
	use(8, 6, 1, 40, 10);
	d = &numbers()->disk;
	assert_int_equal(d->recalled, 40);
	assert_int_equal(d->recalled_bytes, 40 * PAGE);
	assert_int_equal(d->recall_failed, 0);
	/* and now it is in memory again */
	use(9, 7, 1, 40, 10);
	assert_int_equal(numbers()->disk.recalled, 40);
	/* forgotten by name in both */
	rig_cached(&g, 1, 40);
	kvs_cache_flush(g.w);
	assert_true(kvs_cache_disk_flush(g.w) >= 40 * PAGE);
	assert_int_equal(rig_cached(&g, 1, 40), 0);
	assert_int_equal(numbers()->disk.blocks, 0);
	down();
}

static void test_restart(void **state)
{
	const struct kvs_cache_disk_stats *d;

	(void)state;
	up(128);
	leave(1, 40);
	leave(2, 20);
	down();
	up(128);
	d = &numbers()->disk;
	assert_int_equal(d->found, 60);
	assert_int_equal(d->blocks, 60);
	use(7, 5, 1, 40, 10);
	use(8, 6, 2, 20, 1);
	assert_int_equal(numbers()->disk.recalled, 60);
	assert_int_equal(numbers()->cache.hits, 60);
	down();
}

/* Two that want the same have it read once, and each is whole. */
static void test_shared_read(void **state)
{
	uint64_t a, b;

	(void)state;
	up(256);
	leave(1, 40);
	kvs_cache_flush(g.w);
	turns();
	a = rig_ask(&g, 7, 5, 50, 1, 40);
	b = rig_ask(&g, 8, 6, 41, 1, 40);
	assert_int_equal(last(5, false)->blocks, 40);
	assert_int_equal(last(6, false)->blocks, 40);
	receive(7, a, 10);
	receive(8, b, 1);
	/* all that is sent is there, and nothing of the disk: not READY */
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_SEALING);
	settle();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_READY);
	assert_int_equal(rig_status(&g, 6), KVS_STATUS_READY);
	check_segs(last(5, true), 40);
	check_segs(last(6, true), 40);
	assert_int_equal(numbers()->disk.recalled, 40);
	finish(5, a);
	finish(6, b);
	down();
}

/* Every byte of pages in the files of the tier. */
static void damage(void)
{
	char path[256], name[512];
	unsigned char byte;
	struct dirent *e;
	DIR *d;

	for (int i = 0; is_virtual() && i < FAKE_FILES; i++) {
		struct fake_file *f = &fs.file[fs.now[i].file];

		if (!strstr(fs.now[i].name, "seg-"))
			continue;
		for (uint64_t at = 64 << 10; at < f->size; at += 512)
			f->now[at] ^= 1;
	}
	if (is_virtual())
		return;
	snprintf(path, sizeof(path), "%s/node0", dir);
	d = opendir(path);
	assert_non_null(d);
	while ((e = readdir(d))) {
		struct stat st;
		int fd;

		if (strncmp(e->d_name, "seg-", 4))
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		fd = open(name, O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(fstat(fd, &st), 0);
		for (off_t at = 64 << 10; at < st.st_size; at += 512) {
			assert_int_equal(pread(fd, &byte, 1, at), 1);
			byte ^= 1;
			assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		}
		close(fd);
	}
	closedir(d);
}

static void test_damaged(void **state)
{
	const struct kvs_cache_disk_stats *d;
	uint64_t gen;
	uint32_t left;

	(void)state;
	up(256);
	leave(1, 80);
	kvs_cache_flush(g.w);
	turns();
	damage();
	gen = rig_ask(&g, 7, 5, 90, 1, 80);
	assert_int_equal(last(5, false)->blocks, 80);
	receive(7, gen, 10);
	settle();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 5), EBADMSG);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_RECALL], 1);
	d = &numbers()->disk;
	assert_true(d->damaged > 0);
	assert_int_equal(d->recall_failed, d->damaged);
	left = rig_cached(&g, 1, 80);
	assert_true(left < 80);
	/* the next attempt has the rest of it sent */
	if (left)
		use(8, 6, 1, left, 90 - left);
	down();
}

/* One round more over all that is there. */
static void scrub(void)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + WAIT;
	uint64_t was = numbers()->disk.scrub_rounds;
	struct pollfd p = { .events = POLLIN };

	assert_true(kvs_cache_disk_scrub(g.w, UINT64_MAX));
	while (turns(), numbers()->disk.scrub_rounds == was) {
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("the round does not end");
		p.fd = kvs_cache_disk_fd(g.w);
		assert_true(poll(&p, 1, 1000) >= 0);
	}
	assert_int_equal(numbers()->disk.scrub_rounds, was + 1);
}

static void test_scrub(void **state)
{
	uint64_t bytes;

	(void)state;
	up(256);
	scrub(); /* of nothing */
	leave(1, 80);
	scrub();
	assert_true(numbers()->disk.scrubbed_bytes >= 80 * PAGE);
	assert_int_equal(numbers()->disk.damaged, 0);
	bytes = numbers()->disk.scrubbed_bytes;
	settle();
	/* once is once */
	rig_advance(&g, 60 * KVS_NSEC_PER_SEC);
	settle();
	assert_int_equal(numbers()->disk.scrubbed_bytes, bytes);
	damage();
	scrub();
	assert_true(numbers()->disk.damaged > 0);
	assert_int_equal(numbers()->disk.blocks, 80 - numbers()->disk.damaged);
	/* what is in memory is as it was, and is not lost */
	assert_int_equal(rig_cached(&g, 1, 80), 80);
	kvs_cache_flush(g.w);
	turns();
	assert_true(rig_cached(&g, 1, 80) < 80);
	down();
}

/* Given up while it is read: what is read into is nobody's until it ended. */
static void test_given_up(void **state)
{
	struct kvs_disk *disk;
	uint64_t gen;

	(void)state;
	if (!is_virtual())
		skip(); /* no other can be held */
	up(128);
	leave(1, 40);
	kvs_cache_flush(g.w);
	turns();
	disk = g.w->cache.disk.disk;
	kvs_disk_hold(disk, true);
	gen = rig_ask(&g, 7, 5, 50, 1, 40);
	receive(7, gen, 10);
	turns();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_SEALING);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 50 * PAGE);
	rig_packet(&g, KVS_PACKET_ABORT, 5, gen, 0);
	turns();
	/* the room's own memory is free, what the disk writes to is not */
	assert_int_equal(g.w->rooms.n, 0);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 40 * PAGE);
	/* nor when somebody wants all of it: it is let go, and waited for */
	gen = rig_admit(&g, 8, 6, 128, 1);
	turns();
	assert_int_equal(rig_status(&g, 6), KVS_STATUS_WAITING);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 88 * PAGE);
	rig_advance(&g, g.set.hold_timeout);
	turns();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_QUARANTINED), 40 * PAGE);
	assert_int_equal(rig_status(&g, 6), KVS_STATUS_WAITING);
	kvs_disk_hold(disk, false);
	settle();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_QUARANTINED), 0);
	assert_int_equal(rig_status(&g, 6), KVS_STATUS_ADMITTED);
	assert_int_equal(rig_cached(&g, 1, 40), 40); /* on disk, still */
	rig_packet(&g, KVS_PACKET_ABORT, 6, gen, 0);
	down();
}

/* Evicted while it is written: the memory waits for the disk. */
static void test_written_while_evicted(void **state)
{
	struct kvs_disk *disk;
	uint64_t gen;

	(void)state;
	if (!is_virtual())
		skip();
	up(128);
	disk = g.w->cache.disk.disk;
	kvs_disk_hold(disk, true);
	gen = rig_admit_named(&g, 7, 5, 16, 1, false);
	receive(7, gen, 16);
	finish(5, gen);
	turns();
	assert_true(numbers()->disk.queued_bytes > 0);
	/* a daemon that ends would wait for it */
	assert_true(kvs_cache_disk_behind(g.w));
	kvs_cache_flush(g.w);
	turns();
	assert_int_equal(rig_cached(&g, 1, 16), 0);
	/* what went through a buffer has let go of it */
	assert_true(rig_bytes(&g, KVS_EXTENT_CACHED) == 16 * PAGE);
	kvs_disk_hold(disk, false);
	settle();
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), 128 * PAGE);
	assert_int_equal(rig_cached(&g, 1, 16), 16);
	use(8, 6, 1, 16, 1);
	down();
}

static void test_read_errors(void **state)
{
	uint64_t gen;

	(void)state;
	if (!is_virtual())
		skip();
	up(128);
	leave(1, 40);
	kvs_cache_flush(g.w);
	turns();
	fake_fail(&fs, FAKE_READ, 1, 9, -EIO);
	gen = rig_ask(&g, 7, 5, 50, 1, 40);
	receive(7, gen, 10);
	settle();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 5), EIO);
	assert_true(numbers()->disk.read_errors >= 1);
	assert_true(rig_cached(&g, 1, 40) < 40);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 0);
	down();
}

/* What an engine pins without a room comes from the disk as well, and ends as
 * rooms do. */
static void test_pins(void **state)
{
	const struct rig_event *e = NULL;
	uint64_t gen;

	(void)state;
	up(128);
	leave(1, 40);
	kvs_cache_flush(g.w);
	turns();
	gen = rig_lookup(&g, KVS_LOOKUP_PIN, 5, 1, 40);
	assert_int_equal(last(5, false)->blocks, 40);
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_SEALING);
	settle();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_READY);
	for (unsigned int i = g.n; !e && i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].n_segs)
			e = &g.log[i];
	assert_non_null(e);
	check_segs(e, 40);
	finish(5, gen);
	assert_int_equal(numbers()->disk.recalled, 40);
	assert_int_equal(numbers()->cache.pinned_bytes, 0);
	/* more than may be pinned is seen when it is there */
	kvs_cache_flush(g.w);
	turns();
	g.set.cache_pin_share = 20;
	(void)rig_lookup(&g, KVS_LOOKUP_PIN, 6, 1, 40);
	settle();
	assert_int_equal(rig_errno(&g, 6), ENOSPC);
	assert_int_equal(numbers()->cache.pinned_bytes, 0);
	if (is_virtual()) {
		kvs_cache_flush(g.w);
		turns();
		kvs_disk_hold(g.w->cache.disk.disk, true);
		gen = rig_lookup(&g, KVS_LOOKUP_PIN, 6, 1, 40);
		turns();
		rig_packet(&g, KVS_PACKET_ABORT, 6, gen, 0);
		turns();
		assert_int_equal(rig_errno(&g, 6), ECANCELED);
		/* the disk still writes to it */
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 40 * PAGE);
		kvs_disk_hold(g.w->cache.disk.disk, false);
		settle();
		kvs_cache_flush(g.w);
		turns();
		fake_fail(&fs, FAKE_READ, 1, 9, -EIO);
		(void)rig_lookup(&g, KVS_LOOKUP_PIN, 6, 1, 40);
		settle();
		assert_int_equal(rig_errno(&g, 6), EIO);
	}
	down();
}

/* A file of the tier that is gone, or was cut off below its pages. */
static void spoil(bool cut)
{
	char path[256], name[512];
	struct dirent *e;
	DIR *d;

	for (int i = 0; is_virtual() && i < FAKE_FILES; i++) {
		if (strncmp(fs.now[i].name, "seg-", 4))
			continue;
		if (cut)
			fake_resize(&fs, &fs.file[fs.now[i].file], 4096);
		else
			fake_fail(&fs, FAKE_OPEN, 1, 9, -ENOENT);
	}
	if (is_virtual())
		return;
	snprintf(path, sizeof(path), "%s/node0", dir);
	d = opendir(path);
	assert_non_null(d);
	while ((e = readdir(d))) {
		if (strncmp(e->d_name, "seg-", 4))
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		assert_int_equal(cut ? truncate(name, 4096) : unlink(name), 0);
	}
	closedir(d);
}

/* Whatever the disk says, and ENOENT is only what was never there. */
static void test_lost_files(void **state)
{
	(void)state;
	for (int cut = 0; cut < 2; cut++) {
		up(128);
		/* the first file is full, so that after a start it is closed */
		leave(1, 40);
		for (unsigned int i = 2; i < 5; i++)
			leave(i, 100);
		down();
		up(128);
		assert_int_equal(rig_cached(&g, 1, 40), 40);
		spoil(cut);
		(void)rig_lookup(&g, KVS_LOOKUP_PIN, 5, 1, 40);
		settle();
		assert_int_equal(rig_status(&g, 5), KVS_STATUS_FAILED);
		assert_int_equal(rig_errno(&g, 5), EIO);
		(void)rig_lookup(&g, KVS_LOOKUP_PIN, 5, 99, 40);
		settle();
		assert_int_equal(rig_errno(&g, 5), ENOENT);
		down();
		gone(NULL);
		fresh(NULL);
	}
}

static void test_no_space(void **state)
{
	const struct kvs_cache_disk_stats *d;

	(void)state;
	if (!is_virtual())
		skip();
	fs.capacity = 64 << 10; /* less than one file */
	up(128);
	leave(1, 40);
	d = &numbers()->disk;
	assert_true(d->on);
	assert_string_equal(d->health, "no space");
	assert_false(kvs_cache_disk_behind(g.w));
	assert_string_not_equal(d->why, "");
	assert_true(d->write_errors > 0);
	assert_int_equal(d->blocks, 0);
	assert_int_equal(d->queued_bytes, 0);
	/* what is in memory is served, and rooms come and go */
	use(7, 5, 1, 40, 10);
	/* there is room again: what comes now is written */
	fs.capacity = 0;
	rig_advance(&g, KVS_STORE_RETRY_DEFAULT + KVS_NSEC_PER_SEC);
	leave(2, 20);
	d = &numbers()->disk;
	assert_string_equal(d->health, "ok");
	assert_true(d->blocks >= 20);
	kvs_cache_flush(g.w);
	turns();
	use(8, 6, 2, 20, 1);
	down();
}

static void test_write_errors(void **state)
{
	(void)state;
	if (!is_virtual())
		skip();
	up(128);
	fake_fail(&fs, FAKE_WRITE, 1, 1000000, -EIO);
	leave(1, 40);
	assert_string_equal(numbers()->disk.health, "write errors");
	assert_int_equal(numbers()->disk.blocks, 0);
	use(7, 5, 1, 40, 10);
	fake_fail(&fs, FAKE_WRITE, 0, 0, 0);
	rig_advance(&g, KVS_STORE_RETRY_DEFAULT + KVS_NSEC_PER_SEC);
	leave(2, 20);
	assert_string_equal(numbers()->disk.health, "ok");
	down();
}

/* Another process has it, or it is no directory: nothing is kept there. */
static void test_off(void **state)
{
	const struct kvs_cache_disk_stats *d;

	(void)state;
	if (is_virtual())
		skip();
	set_up(128);
	snprintf(g.set.hicache_dir, sizeof(g.set.hicache_dir), "/dev/null");
	begin();
	d = &numbers()->disk;
	assert_false(d->on);
	assert_true(d->wanted);
	assert_string_equal(d->health, "off");
	assert_string_not_equal(d->why, "");
	assert_int_equal(kvs_cache_disk_fd(g.w), -1);
	leave(1, 40);
	use(7, 5, 1, 40, 10);
	assert_int_equal(kvs_cache_disk_flush(g.w), 0);
	down();
}

/* Neither the disk nor the index is ever over its limits. */
static void test_limits(void **state)
{
	const struct kvs_cache_disk_stats *d;

	(void)state;
	set_up(128);
	g.set.hicache_limit = 2 << 20;
	g.set.hicache_write_behind = 64 << 10;
	begin();
	for (unsigned int i = 1; i <= LIMIT_PROMPTS; i++) {
		leave(i, 32);
		d = &numbers()->disk;
		assert_true(d->file_bytes <= g.set.hicache_limit);
		assert_true(d->bytes <= g.set.hicache_limit);
	}
	assert_true(d->evicted_bytes > 0 || d->reclaimed > 0);
	kvs_cache_flush(g.w);
	turns();
	assert_int_equal(rig_cached(&g, LIMIT_PROMPTS, 32), 32);
	use(7, 50, LIMIT_PROMPTS, 32, 1);
	down();
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, fresh, gone)
	const struct CMUnitTest tests[] = {
		T(test_recall),	      T(test_restart),
		T(test_shared_read),  T(test_damaged),
		T(test_given_up),     T(test_written_while_evicted),
		T(test_read_errors),  T(test_no_space),
		T(test_write_errors), T(test_off),
		T(test_limits),	      T(test_pins),
		T(test_lost_files),   T(test_scrub),
	};
	struct kvs_disk_opts o = { .engine = "uring" };
	struct kvs_disk *d;
	char err[256];

	engine_name = argc > 1 ? argv[1] : "virtual";
	if (!strcmp(engine_name, "uring")) {
		if (kvs_disk_create(&o, &d, err, sizeof(err))) {
			printf("skipped: %s\n", err);
			return 77;
		}
		kvs_disk_destroy(d);
	}
	if (!mkdtemp(dir))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
