/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a worker that reads the directories of others (argument: engine
 * of its disk), which a store of the test's writes meanwhile: what they have is
 * found, at the first look and at later ones, read, and given to rooms byte for
 * byte, the own disk first; nothing there is written, locked or removed, and
 * the writer goes on; what the owner removed is a miss, before a look as after
 * it, and what is open then is read to its end; what was damaged, cut off or
 * made another directory fails a room or is a miss, never handed over; a
 * directory that is missing costs hits, is said, and is served when it is
 * there; neither more nodes nor more blocks than the settings say are known;
 * our own directory is left out. Virtual clock, no threads of the test's.
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

#define PAGE (4 * 1024u)
#define RUN 1024u
#define TOKENS 4u /* of a page */
#define WAIT (60 * KVS_NSEC_PER_SEC)
#define LOOK (10 * KVS_NSEC_PER_SEC)

/* A daemon that keeps things on disk: blocks, by its own worker. */
static struct rig g;
static const char *engine_name;
static char top[] = "/tmp/kvs-cache-shared-XXXXXX";

/* What another daemon writes. */
struct writer {
	char dir[128];
	struct kvs_disk *disk;
	struct kvs_disk_store *store;
	uint8_t layout; /* of what it keeps */
	struct kvs_key_space space;
};

static struct writer w1, w2;

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

static unsigned int busy(void)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < g.w->cache.shared.n_nodes; i++)
		if (g.w->cache.shared.nodes[i].store)
			n += kvs_disk_store_busy(
				g.w->cache.shared.nodes[i].store);
	if (g.w->cache.disk.store)
		n += kvs_disk_store_busy(g.w->cache.disk.store);
	return n;
}

static void settle(void)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) + WAIT;
	struct pollfd p[2] = { { .events = POLLIN }, { .events = POLLIN } };

	turns();
	while (busy()) {
		if (kvs_clock_now(&kvs_clock_real) > until)
			fail_msg("the disk does not end");
		p[0].fd = kvs_cache_shared_fd(g.w);
		p[1].fd = kvs_cache_disk_fd(g.w);
		assert_true(poll(p, 2, 1000) >= 0);
		turns();
	}
}

static void look(void)
{
	rig_advance(&g, LOOK);
	settle();
}

static struct kvs_cache_shared_stats *numbers(void)
{
	static struct kvs_worker_snapshot s;

	kvs_worker_snapshot(g.w, &s);
	return &s.shared;
}

static void set_up(unsigned int pages)
{
	rig_up(&g, pages);
	kvs_log_set_level(KVS_LOG_ERR);
	snprintf(g.set.hicache_shared_dir, sizeof(g.set.hicache_shared_dir),
		 "%s", top);
	snprintf(g.set.hicache_engine, sizeof(g.set.hicache_engine), "%s",
		 engine_name);
	g.set.hicache_segment = 1 << 20;
	g.set.cache_blocks = 4096; /* looked at in every turn */
	g.set.hicache_shared_blocks = 4096;
	g.set.hicache_shared_refresh = LOOK;
}

static void begin(void)
{
	kvs_cache_disk_open(g.w);
	kvs_cache_shared_open(g.w);
	rig_sessions(&g, 1);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE),
			 "model 1 rank 0", 0);
	settle();
}

static void up(unsigned int pages)
{
	set_up(pages);
	begin();
}

static void down(void)
{
	settle();
	kvs_cache_flush(g.w);
	rig_down(&g);
}

/* ---- the other daemon ---- */

static void write_open(struct writer *w, const char *sub)
{
	const struct kvs_disk_opts o = { .engine = "plain" };
	struct kvs_disk_store_opts so = {
		.dir = w->dir,
		.segment_bytes = 128 << 10,
		.commit_pages = 1,
		.lock_wait = 1,
	};
	char err[256], path[128];

	snprintf(path, sizeof(path), "%s/%s", top, sub);
	(void)mkdir(path, 0700);
	snprintf(w->dir, sizeof(w->dir), "%s/%s/node0", top, sub);
	assert_int_equal(kvs_disk_create(&o, &w->disk, err, sizeof(err)), 0);
	so.disk = w->disk;
	if (kvs_disk_store_open(&so, &w->store, err, sizeof(err)))
		fail_msg("%s", err);
}

static void write_close(struct writer *w)
{
	if (!w->store)
		return;
	while (kvs_disk_store_close(w->store)) {
		kvs_disk_wait(w->disk, KVS_NSEC_PER_SEC);
		kvs_disk_store_turn(w->store);
	}
	w->store = NULL;
	kvs_disk_destroy(w->disk);
}

static void put_done(struct kvs_disk_req *r, int result)
{
	assert_int_equal(result, 0);
	*(bool *)r->arg = true;
}

/* What check_segs() expects of page @i. */
static void page_bytes(unsigned char *buf, unsigned int i)
{
	for (unsigned int b = 0; b < 4; b++)
		memset(buf + b * (size_t)RUN, (int)((i + b / 2 + b % 2) & 0xff),
		       RUN);
}

/* Pages [from, to) of a prompt, as our engine's: written. */
static void keep(struct writer *w, unsigned int prompt, unsigned int from,
		 unsigned int to)
{
	const struct kvs_worker_engine *e =
		kvs_worker_engine_find(g.w, RIG_ENGINE);
	static unsigned char buf[PAGE] __attribute__((aligned(4096)));
	const struct iovec iov = { buf, PAGE };
	uint8_t h[16] = { 0 };

	for (unsigned int i = from; i < to; i++) {
		bool done = false;
		struct kvs_disk_req r = {
			.iov = &iov,
			.niov = 1,
			.len = PAGE,
			.layout.b[0] = w->layout,
			.done = put_done,
			.arg = &done,
		};

		h[0] = (uint8_t)prompt;
		h[1] = (uint8_t)i;
		kvs_key_of_hash(&e->cache.space, (const uint8_t *)h, &r.key);
		page_bytes(buf, i);
		assert_int_equal(kvs_disk_store_put(w->store, &r), 0);
		while (!done) {
			kvs_disk_store_turn(w->store);
			if (!done)
				kvs_disk_wait(w->disk, KVS_NSEC_PER_SEC);
		}
	}
}

static void remove_all(const char *path, bool self)
{
	char name[512];
	struct dirent *e;
	DIR *d = opendir(path);

	while (d && (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		if (unlink(name))
			remove_all(name, true);
	}
	if (d)
		closedir(d);
	if (self)
		rmdir(path);
}

/* Each segment of @w: flip bytes of its pages, or cut it off before them. */
static void spoil(const struct writer *w, bool cut)
{
	struct dirent *e;
	char name[512];
	DIR *d = opendir(w->dir);

	assert_non_null(d);
	while ((e = readdir(d))) {
		unsigned char byte;
		struct stat st;
		int fd;

		if (strncmp(e->d_name, "seg-", 4))
			continue;
		snprintf(name, sizeof(name), "%s/%s", w->dir, e->d_name);
		if (cut) {
			assert_int_equal(truncate(name, 8192), 0);
			continue;
		}
		fd = open(name, O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(fstat(fd, &st), 0);
		for (off_t at = 8192; at < st.st_size; at += 512) {
			assert_int_equal(pread(fd, &byte, 1, at), 1);
			byte ^= 1;
			assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		}
		close(fd);
	}
	closedir(d);
}

static int fresh(void **state)
{
	(void)state;
	remove_all(top, false);
	return 0;
}

static int gone(void **state)
{
	(void)state;
	write_close(&w1);
	write_close(&w2);
	w1.layout = 0;
	remove_all(top, false);
	return 0;
}

/* ---- rooms ---- */

static const struct rig_event *last(uint32_t slot, bool ready)
{
	for (unsigned int i = g.n; i-- > 0;)
		if (g.log[i].what == RIG_WORD && g.log[i].slot == slot &&
		    (ready ? g.log[i].n_extents > 0 : g.log[i].cached))
			return &g.log[i];
	fail_msg("no packet");
	return NULL;
}

static void check_segs(const struct rig_event *e, unsigned int pages)
{
	unsigned char want[PAGE];
	unsigned int page = 0;

	for (uint32_t i = 0; i < e->n_segs; i++) {
		const struct kvs_packet_seg *s = &e->segs[i];

		for (uint32_t p = s->first_page; p < s->first_page + s->n_pages;
		     p++, page++) {
			page_bytes(want, page);
			for (unsigned int b = 0; b < 4; b++)
				assert_memory_equal(
					&g.base[s->off +
						((uint64_t)b * s->extent_pages +
						 p) * RUN],
					want + b * (size_t)RUN, RUN);
		}
	}
	assert_int_equal(page, pages);
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

/* A room that takes @cached pages from here, and is given two more. */
static void use(uint64_t room, uint32_t slot, unsigned int prompt,
		unsigned int cached)
{
	uint64_t gen = rig_ask(&g, room, slot, cached + 2, prompt, cached);

	assert_int_equal(last(slot, false)->blocks, cached);
	receive(room, gen, 2);
	settle();
	assert_int_equal(rig_status(&g, slot), KVS_STATUS_READY);
	check_segs(last(slot, true), cached);
	finish(slot, gen);
}

/* ---- claims ---- */

static void test_reads(void **state)
{
	(void)state;
	up(256);
	assert_string_equal(numbers()->health, "empty");
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	assert_int_equal(rig_cached(&g, 1, 20), 0);
	look();
	assert_string_equal(numbers()->health, "ok");
	assert_false(numbers()->degraded);
	assert_int_equal(numbers()->nodes, 1);
	assert_int_equal(numbers()->blocks, 20);
	assert_int_equal(numbers()->bytes, 20 * PAGE);
	use(7, 5, 1, 20);
	assert_int_equal(numbers()->recalled, 20);
	assert_int_equal(numbers()->recalled_bytes, 20 * PAGE);
	/* it is in memory now */
	use(8, 6, 1, 20);
	assert_int_equal(numbers()->recalled, 20);
	/* the writer goes on, and so do we; a second one comes */
	keep(&w1, 1, 20, 40);
	write_open(&w2, "b");
	keep(&w2, 2, 0, 30);
	keep(&w2, 1, 0, 40); /* there twice */
	look();
	assert_int_equal(numbers()->nodes, 2);
	assert_int_equal(numbers()->blocks, 70);
	kvs_cache_flush(g.w);
	turns();
	use(9, 7, 1, 40);
	use(10, 8, 2, 30);
	assert_int_equal(numbers()->recalled, 90);
	assert_int_equal(numbers()->recall_failed, 0);
	down();
}

static void test_other_space(void **state)
{
	(void)state;
	up(128);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	look();
	assert_int_equal(rig_cached(&g, 1, 20), 20);
	kvs_cache_engine(g.w, kvs_worker_engine_find(g.w, RIG_ENGINE),
			 "model 1 rank 1", 0);
	assert_int_equal(rig_cached(&g, 1, 20), 0);
	down();
}

/* The owner makes room: before a look and after one, a miss; what we have
 * open is still whole. */
static void test_owner_removes(void **state)
{
	uint64_t gen;

	(void)state;
	up(256);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 100); /* more than one file */
	look();
	assert_int_equal(rig_cached(&g, 1, 100), 100);
	/* files of the first pages are open from now on */
	use(7, 5, 1, 10);
	kvs_cache_flush(g.w);
	turns();
	while (!kvs_disk_store_reclaim(w1.store))
		;
	/* not looked at yet: what is open is read, the rest is a miss */
	gen = rig_ask(&g, 8, 6, 102, 1, 100);
	assert_true(last(6, false)->blocks < 100);
	rig_packet(&g, KVS_PACKET_ABORT, 6, gen, 0);
	settle();
	assert_int_equal(numbers()->recall_failed, 0);
	assert_true(numbers()->vanished > 0);
	use(9, 7, 1, 10);
	kvs_cache_flush(g.w);
	turns();
	look();
	assert_true(rig_cached(&g, 1, 100) < 100);
	/* and it writes them again */
	keep(&w1, 2, 0, 20);
	look();
	use(10, 8, 2, 20);
	assert_int_equal(numbers()->recall_failed, 0);
	down();
}

static void spoilt(bool cut)
{
	uint64_t gen;

	up(256);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	look();
	spoil(&w1, cut);
	gen = rig_ask(&g, 7, 5, 22, 1, 20);
	assert_int_equal(last(5, false)->blocks, 20);
	receive(7, gen, 2);
	settle();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_FAILED);
	assert_int_equal(rig_errno(&g, 5), cut ? EIO : EBADMSG);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_RECALL], 1);
	assert_true(numbers()->recall_failed > 0);
	assert_int_equal(numbers()->damaged, numbers()->recall_failed);
	assert_true(rig_cached(&g, 1, 20) < 20);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_GRANTED), 0);
	look();
	assert_true(rig_cached(&g, 1, 20) < 20);
	down();
}

static void test_damaged(void **state)
{
	(void)state;
	spoilt(false);
}

static void test_cut_off(void **state)
{
	(void)state;
	spoilt(true);
}

/* Files are removed while they are read. */
static void test_removed_while_read(void **state)
{
	uint64_t gen;

	(void)state;
	up(256);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	look();
	gen = rig_ask(&g, 7, 5, 22, 1, 20);
	assert_int_equal(last(5, false)->blocks, 20);
	write_close(&w1);
	remove_all(top, false);
	/* a look in the middle of it */
	rig_advance(&g, LOOK);
	receive(7, gen, 2);
	settle();
	assert_int_equal(rig_status(&g, 5), KVS_STATUS_READY);
	check_segs(last(5, true), 20);
	finish(5, gen);
	look();
	assert_int_equal(numbers()->nodes, 0);
	assert_int_equal(numbers()->blocks, 0);
	down();
}

/* Not there; there; another one by the same name; not there. */
static void test_comes_and_goes(void **state)
{
	char aside[256];

	(void)state;
	snprintf(aside, sizeof(aside), "%s-aside", top);
	set_up(256);
	assert_int_equal(rename(top, aside), 0);
	begin();
	assert_false(numbers()->on);
	assert_true(numbers()->degraded);
	assert_string_equal(numbers()->health, "unreadable");
	assert_string_not_equal(numbers()->why, "");
	assert_int_equal(rename(aside, top), 0);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	look();
	assert_true(numbers()->on);
	use(7, 5, 1, 20);
	kvs_cache_flush(g.w);
	turns();
	/* unmounted: at the next look nothing of it is known */
	assert_int_equal(rename(top, aside), 0);
	look();
	assert_false(numbers()->on);
	assert_int_equal(numbers()->blocks, 0);
	assert_int_equal(numbers()->nodes, 0);
	assert_int_equal(rig_cached(&g, 1, 20), 0);
	assert_int_equal(rename(aside, top), 0);
	look();
	assert_string_equal(numbers()->health, "ok");
	use(8, 6, 1, 20);
	kvs_cache_flush(g.w);
	turns();
	/* begun anew by its owner, with the same names of files */
	write_close(&w1);
	remove_all(top, false);
	write_open(&w1, "a");
	keep(&w1, 2, 0, 20);
	look(); /* gone */
	look(); /* opened */
	assert_int_equal(rig_cached(&g, 1, 20), 0);
	use(9, 7, 2, 20);
	assert_int_equal(numbers()->recall_failed, 0);
	down();
}

/* The owner makes another file by the name of one that we know. */
static void test_another_file(void **state)
{
	char path[512];

	(void)state;
	up(256);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	look();
	use(7, 5, 1, 20);
	kvs_cache_flush(g.w);
	turns();
	write_close(&w1);
	snprintf(path, sizeof(path), "%s/seg-%016x.kvs", w1.dir, 1);
	if (unlink(path))
		fail_msg("%s: %s", path, strerror(errno));
	write_open(&w1, "a");
	w1.layout = 1; /* made in the same second, it is another by this */
	keep(&w1, 2, 0, 20);
	assert_int_equal(access(path, F_OK), 0);
	look();
	assert_int_equal(rig_cached(&g, 1, 20), 0);
	use(8, 6, 2, 20);
	assert_int_equal(numbers()->vanished, 20);
	assert_int_equal(numbers()->recall_failed, 0);
	down();
}

/* Neither nodes nor blocks above the settings. */
static void test_limits(void **state)
{
	(void)state;
	set_up(128);
	g.set.hicache_shared_nodes = 1;
	g.set.hicache_shared_blocks = 8;
	begin();
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	write_open(&w2, "b");
	keep(&w2, 2, 0, 20);
	look();
	assert_int_equal(numbers()->nodes, 1);
	assert_int_equal(numbers()->blocks, 8);
	assert_int_equal(numbers()->forgotten, 12);
	down();
}

/* Nothing of ours is read as if it were another's, and the own disk comes
 * first. */
static void test_own_disk(void **state)
{
	struct kvs_worker_snapshot s;

	(void)state;
	set_up(256);
	snprintf(g.set.hicache_dir, sizeof(g.set.hicache_dir), "%s/own", top);
	begin();
	assert_non_null(g.w->cache.disk.store);
	look();
	assert_int_equal(numbers()->nodes, 0);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 20);
	look();
	assert_int_equal(numbers()->nodes, 1);
	use(7, 5, 1, 20);
	settle();
	assert_int_equal(numbers()->recalled, 20);
	kvs_cache_flush(g.w);
	turns();
	use(8, 6, 1, 20);
	assert_int_equal(numbers()->recalled, 20);
	kvs_worker_snapshot(g.w, &s);
	assert_int_equal(s.disk.recalled, 20);
	down();
}

static unsigned int files(const char *dir)
{
	struct dirent *e;
	unsigned int n = 0;
	DIR *d = opendir(dir);

	assert_non_null(d);
	while ((e = readdir(d)))
		n++;
	closedir(d);
	return n;
}

/* What is there stays as it is, whatever is wrong with it. */
static void test_writes_nothing(void **state)
{
	char path[512];
	unsigned int n;
	int fd;

	(void)state;
	up(128);
	write_open(&w1, "a");
	keep(&w1, 1, 0, 4);
	write_close(&w1);
	snprintf(path, sizeof(path), "%s/a/node0/new-1.kvs", top);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
	snprintf(path, sizeof(path), "%s/a/node0", top);
	spoil(&w1, true);
	n = files(path);
	look();
	look();
	assert_int_equal(files(path), n);
	/* a writer is not locked out while we read */
	write_open(&w1, "a");
	down();
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, fresh, gone)
	const struct CMUnitTest tests[] = {
		T(test_reads),		T(test_other_space),
		T(test_owner_removes),	T(test_damaged),
		T(test_cut_off),	T(test_removed_while_read),
		T(test_comes_and_goes), T(test_limits),
		T(test_own_disk),	T(test_writes_nothing),
		T(test_another_file),
	};
	struct kvs_disk_opts o = { .engine = "uring" };
	struct kvs_disk *d;
	char err[256];
	int ret;

	engine_name = argc > 1 ? argv[1] : "plain";
	if (!strcmp(engine_name, "uring")) {
		if (kvs_disk_create(&o, &d, err, sizeof(err))) {
			printf("skipped: %s\n", err);
			return 77;
		}
		kvs_disk_destroy(d);
	}
	if (!mkdtemp(top))
		return 1;
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	remove_all(top, true);
	return ret;
}
