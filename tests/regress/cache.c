/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of conversations whose earlier turns are cached in the receive pool,
 * by the library's engine against a daemon core over real connections: what a
 * room takes from there and what its prefill rank sends come together on the
 * device, every byte of every page its own, whatever was evicted in between
 * (sgl-project/sglang#26728); a hint tells how much there is; what a copy reads
 * stays while others wait for memory; a daemon that ends has all of it back.
 *
 * And of four ranks in four processes, each with its own room of a request:
 * where the cache of one of them is bad, the minimum over their words never
 * shows READY, every rank ends FAILED, and their queues are as long as each
 * other's after each tick (sgl-project/sglang#33442, #30760, #39267, #40318);
 * the next attempt succeeds on all, from what each of them has left.
 *
 * And of a disk tier, with threads and with io_uring: a daemon that was killed
 * in the middle of its work has its prefixes served from disk by the next one,
 * byte for byte, and those that it was writing either so or not at all.
 *
 * And of a shared directory: what one daemon writes there, another one with a
 * pool of its own serves byte for byte, while the first goes on writing and
 * after it was killed; of what was being written either so or not at all.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/device.h"
#include "kvstage/cache.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define DEVICE_PAGES 128u
#define LAYERS 2u
#define PAGES_MAX 96u
#define TALKS 6u
#define TURNS 40u

static struct rig g[1];
static struct kvs_engine *e;
static struct kvs_device *d;
static void *dev[LAYERS];
static struct ps p[1];
static struct kvs_rng rng;
static uint64_t next_room;

/* A byte of a page of a talk. */
static unsigned char byte_of(uint32_t talk, uint64_t page, uint32_t layer,
			     uint64_t k)
{
	return (unsigned char)(kvs_mix64((uint64_t)talk << 48 | page << 32 |
					 (uint64_t)layer << 24 | k / 8) >>
			       (k % 8 * 8));
}

static void attach(const char *space)
{
	struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = g->set.engine_socket,
		.name = "cache",
		.layout = &ps_two_layers,
		.node = -1,
		.cache_space = space,
	};
	char err[256];

	if (kvs_engine_attach(&o, &e, err, sizeof(err)))
		fail_msg("attach: %s", err);
}

static void device(const struct kvs_soft_plan *plan)
{
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "soft" };
	char err[256];

	if (plan)
		o.plan = *plan;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), 0);
	for (uint32_t l = 0; l < LAYERS; l++)
		assert_int_equal(kvs_device_alloc(d, DEVICE_PAGES * PS_PAGE,
						  &dev[l]),
				 0);
}

static const char *disk_dir; /* NULL: no disk tier */
static const char *disk_engine;
static const char *shared_dir; /* NULL: no shared tier */

static void start(const char *pool, const struct kvs_soft_plan *plan)
{
	rig_init(g, rig_engine(), pool);
	if (disk_dir) {
		rig_set(g, "hicache.dir", disk_dir);
		rig_set(g, "hicache.engine", disk_engine);
		rig_set(g, "hicache.segment", "1M");
	}
	if (shared_dir) {
		rig_set(g, "hicache.shared_dir", shared_dir);
		rig_set(g, "hicache.shared_refresh", "50ms");
	}
	rig_set(g, "extent.tokens", "64"); /* 4 pages */
	rig_set(g, "admission.health_reserve", "0");
	rig_up(g);
	attach("model 1 rank 0");
	device(plan);
	ps_up(p, g->port, "p", 0, 1, &ps_two_layers);
	next_room = 100;
}

static void stop(void)
{
	kvs_engine_detach(e);
	for (uint32_t l = 0; l < LAYERS; l++)
		kvs_device_free(d, dev[l]);
	kvs_device_close(d);
	ps_down(p);
	rig_down(g);
}

static void names(uint8_t (*h)[16], uint32_t talk, uint32_t n)
{
	memset(h, 0, n * sizeof(*h));
	for (uint32_t i = 0; i < n; i++) {
		h[i][0] = (uint8_t)talk;
		h[i][1] = (uint8_t)i;
	}
}

static enum kvs_status wait_for(kvs_handle *h, enum kvs_status st)
{
	uint64_t until = rig_until();
	enum kvs_status now;
	int err = 0;

	for (;;) {
		assert_true(kvs_engine_progress(e) >= 0);
		now = kvs_engine_poll(e, h, &err);
		if (now == KVS_STATUS_FAILED)
			fail_msg("failed: %s", strerror(err));
		if (now >= st)
			return now;
		rig_pause(until, "a status", __FILE__, __LINE__);
	}
}

static uint64_t cached(const kvs_handle *h)
{
	uint64_t until = rig_until(), tokens = 0;
	int ret;

	while ((ret = kvs_engine_cached(e, h, &tokens)) == -EAGAIN)
		rig_pause(until, "CACHED", __FILE__, __LINE__);
	assert_int_equal(ret, 0);
	return tokens;
}

static const char *peer = "p";

static void admit(kvs_handle *h, uint64_t room, uint32_t talk, uint32_t pages)
{
	static const struct kvs_rank_slice all = { 0, LAYERS };
	uint8_t hashes[PAGES_MAX][16];
	const struct kvs_admit a = {
		.size = sizeof(a),
		.room = room,
		.peer = peer,
		.tokens = pages * PS_TOKENS,
		.n_ranks = 1,
		.ranks = &all,
		.node = -1,
		.flags = KVS_ADMIT_CACHED,
		.hashes = hashes,
		.n_hashes = pages,
	};

	names(hashes, talk, pages);
	assert_int_equal(kvs_engine_admit(e, &a, h), 0);
}

/* What prefill sends: pages from @first on of the talk. */
static void send_rest(uint64_t room, uint32_t talk, uint32_t first,
		      uint32_t pages, bool ends_well)
{
	struct ps_room r;
	struct kvs_msg m;
	size_t len;

	assert_int_equal(ps_open(p, room, (pages - first) * PS_TOKENS), 0);
	ps_granted(p, &r, 0, PS_PAGE * 2);
	for (uint32_t i = 0; i < r.n_chunks; i++) {
		const struct ps_chunk *c = &r.chunks[i];
		unsigned char *b = ps_chunk_bytes(p, &r, i, &len);

		for (uint32_t k = 0; k < c->len; k++) {
			uint64_t at = c->off + k;

			b[len - c->len + k] =
				byte_of(talk,
					first + c->extent * r.geo.extent_pages +
						at / PS_PAGE,
					c->layer, at % PS_PAGE);
		}
		assert_true(ps_write(p->data[0], b, len) > 0);
		free(b);
	}
	assert_int_equal(ps_last(p, &r, r.bytes), 0);
	if (ends_well)
		ps_expect(p, KVS_WIRE_COMPLETE, &m);
	ps_room_fini(&r);
}

static int commit(kvs_handle *h, uint32_t pages, uint32_t *list)
{
	const struct kvs_commit c = {
		.size = sizeof(c),
		.device = d,
		.buffers = dev,
		.pages = list,
		.n_pages = pages,
	};

	for (uint32_t i = 0; i < DEVICE_PAGES; i++)
		list[i] = i;
	for (uint32_t i = 0; i < pages; i++) {
		uint32_t j =
			i + (uint32_t)kvs_rng_below(&rng, DEVICE_PAGES - i);
		uint32_t x = list[i];

		list[i] = list[j];
		list[j] = x;
	}
	for (uint32_t l = 0; l < LAYERS; l++)
		memset(dev[l], 0xa5, DEVICE_PAGES * PS_PAGE);
	return kvs_engine_commit(e, h, &c);
}

static uint64_t wrong(uint32_t talk, uint32_t pages, const uint32_t *list)
{
	uint64_t n = 0;

	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t i = 0; i < pages; i++)
			for (uint32_t k = 0; k < PS_PAGE; k++)
				n += ((unsigned char *)
					      dev[l])[list[i] * PS_PAGE + k] !=
				     byte_of(talk, i, l, k);
	return n;
}

/* A turn of @talk, up to @pages; what was taken from the cache, pages. */
static uint32_t turn(uint32_t talk, uint32_t pages)
{
	uint32_t list[DEVICE_PAGES], have;
	uint64_t room = next_room++;
	kvs_handle h;

	admit(&h, room, talk, pages);
	have = (uint32_t)(cached(&h) / PS_TOKENS);
	assert_true(have < pages);
	send_rest(room, talk, have, pages, true);
	wait_for(&h, KVS_STATUS_READY);
	assert_int_equal(commit(&h, pages - 1, list), -EINVAL);
	assert_int_equal(commit(&h, pages, list), 0);
	wait_for(&h, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_copied_layers(e, &h), LAYERS);
	assert_int_equal(wrong(talk, pages, list), 0);
	assert_int_equal(kvs_engine_release(e, &h), 0);
	return have;
}

static uint32_t hint(uint32_t talk, uint32_t pages, bool drop)
{
	uint8_t hashes[PAGES_MAX][16];
	const struct kvs_cache_query q = {
		.size = sizeof(q),
		.hashes = hashes,
		.n_hashes = pages,
		.node = -1,
	};
	kvs_handle h;
	uint64_t n;

	names(hashes, talk, pages);
	assert_int_equal(drop ? kvs_cache_drop(e, &q, &h)
			      : kvs_cache_lookup(e, &q, &h),
			 0);
	wait_for(&h, KVS_STATUS_DONE);
	n = cached(&h);
	assert_int_equal(kvs_engine_release(e, &h), 0);
	return (uint32_t)(n / PS_TOKENS);
}

/* The daemon has summed up all that it keeps. */
static void settled(uint32_t talk, uint32_t pages)
{
	uint64_t until = rig_until();

	while (hint(talk, pages, false) < pages)
		rig_pause(until, "blocks", __FILE__, __LINE__);
}

static void test_turns(void **state)
{
	(void)state;
	kvs_rng_init(&rng, 1);
	start("8M", NULL);
	assert_int_equal(hint(1, 20, false), 0);
	assert_int_equal(turn(1, 20), 0);
	settled(1, 20);
	/* goes on; comes again; is another from page 20 on */
	assert_int_equal(turn(1, 31), 20);
	settled(1, 31);
	assert_int_equal(turn(1, 31), 30);
	assert_int_equal(turn(2, 31), 0);
	settled(2, 31);
	/* another engine of another space finds nothing, the same one all */
	kvs_engine_detach(e);
	attach("model 1 rank 1");
	assert_int_equal(hint(1, 31, false), 0);
	assert_int_equal(turn(1, 31), 0);
	kvs_engine_detach(e);
	attach("model 1 rank 0");
	assert_int_equal(hint(1, 31, false), 31);
	assert_int_equal(turn(1, 40), 31);
	assert_int_equal(hint(2, 31, true), 31);
	assert_int_equal(hint(2, 31, false), 0);
	assert_int_equal(turn(2, 31), 0);
	stop();
}

/* Talks that do not fit together: parts of them come and go. */
static void test_pressure(void **state)
{
	uint32_t pages[TALKS] = { 0 }, have = 0, all = 0;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	start("1600K", NULL);
	for (uint32_t i = 0; i < TURNS; i++) {
		uint32_t t = (uint32_t)kvs_rng_below(&rng, TALKS);

		pages[t] += 1 + (uint32_t)kvs_rng_below(&rng, 20);
		if (pages[t] > PAGES_MAX)
			pages[t] = 1 + (uint32_t)kvs_rng_below(&rng, 20);
		have += turn(t + 1, pages[t]);
		all += pages[t];
	}
	print_message("# %u of %u pages were cached\n", have, all);
	assert_true(have > 0);
	stop();
}

/* A copy out of the cache is held, while others want the memory. */
static void test_held_copy(void **state)
{
	const struct kvs_soft_plan plan = { .hold_nth = 2 };
	uint32_t list[DEVICE_PAGES], other[DEVICE_PAGES];
	kvs_handle h, big;

	(void)state;
	kvs_rng_init(&rng, 3);
	start("1M", &plan); /* 128 pages of both layers */
	assert_int_equal(turn(1, 60), 0);
	settled(1, 60);
	admit(&h, 50, 1, 64);
	assert_int_equal(cached(&h), 60 * PS_TOKENS);
	send_rest(50, 1, 60, 64, true);
	wait_for(&h, KVS_STATUS_READY);
	assert_int_equal(commit(&h, 64, list), 0);
	wait_for(&h, KVS_STATUS_COMMITTING);
	/* 60 of the cache and 4 of the room are the copy's */
	admit(&big, 51, 2, 65);
	wait_for(&big, KVS_STATUS_WAITING);
	assert_int_equal(cached(&big), 0);
	for (int i = 0; i < 20; i++) {
		assert_true(kvs_engine_progress(e) >= 0);
		assert_int_equal(kvs_engine_poll(e, &big, NULL),
				 KVS_STATUS_WAITING);
		assert_true(kvs_engine_copy_live(e, &h));
	}
	assert_int_equal(kvs_soft_release(d), 0);
	wait_for(&h, KVS_STATUS_DONE);
	assert_int_equal(wrong(1, 64, list), 0);
	assert_int_equal(kvs_engine_release(e, &h), 0);
	wait_for(&big, KVS_STATUS_ADMITTED);
	send_rest(51, 2, 0, 65, true);
	wait_for(&big, KVS_STATUS_READY);
	assert_int_equal(commit(&big, 65, other), 0);
	wait_for(&big, KVS_STATUS_DONE);
	assert_int_equal(wrong(2, 65, other), 0);
	assert_int_equal(kvs_engine_release(e, &big), 0);
	stop();
}

/* ---- four ranks ---------------------------------------------------------- */

#define RANKS 4u
#define BAD_RANK 2u
#define ROUNDS 3u
#define FIRST 20u /* pages of the first turn */
#define LATER 28u

/* What a rank says after each tick, and hears: the minimum. */
struct tick {
	uint8_t status;
	uint8_t queue; /* requests it has */
	uint8_t wrong; /* it ended DONE with bytes that are not its own */
	uint8_t left; /* it has released its handle */
};

static void tick_io(int fd, struct tick *t, bool out)
{
	ssize_t n = out ? write(fd, t, sizeof(*t)) : read(fd, t, sizeof(*t));

	if (n != (ssize_t)sizeof(*t))
		_exit(1);
}

/* One request, decided by the minimum of all ranks' words, tick by tick. */
static void rank_round(uint32_t rank, uint32_t round, uint32_t pages)
{
	uint32_t list[DEVICE_PAGES], have;
	uint64_t room = 1000 + round * RANKS + rank;
	struct tick t = { .queue = 1 }, min;
	/* its room may have ended before anything can be sent */
	bool sends = round != 1 || rank != BAD_RANK, claimed = false;
	struct kvs_msg m;
	kvs_handle h;

	admit(&h, room, rank, pages);
	have = (uint32_t)(cached(&h) / PS_TOKENS);
	if (sends)
		send_rest(room, rank, have, pages, false);
	while (!t.left) {
		if (kvs_engine_progress(e) < 0)
			_exit(1);
		t.status = (uint8_t)kvs_engine_poll(e, &h, NULL);
		tick_io(RIG_CHILD_FD, &t, true);
		tick_io(RIG_CHILD_FD, &min, false);
		if (min.status >= KVS_STATUS_READY && !claimed) {
			claimed = true;
			if (commit(&h, pages, list))
				_exit(1);
		}
		if (min.status == KVS_STATUS_FAILED)
			(void)kvs_engine_abort(e, &h);
		if (min.status != KVS_STATUS_FAILED &&
		    min.status != KVS_STATUS_DONE)
			continue;
		/* it leaves the queue in the same tick on all */
		t.status = (uint8_t)kvs_engine_poll(e, &h, NULL);
		t.queue = 0;
		t.wrong = min.status == KVS_STATUS_DONE &&
			  wrong(rank, pages, list) != 0;
		t.left = !kvs_engine_release(e, &h);
	}
	/* COMPLETE, or ABORT of a room that was not READY */
	if (sends && ps_next(p, &m) < 0)
		_exit(1);
	tick_io(RIG_CHILD_FD, &t, true);
	tick_io(RIG_CHILD_FD, &min, false);
}

/* argv: rank, socket, port of the daemon. */
static _Noreturn void child(char **argv)
{
	uint32_t rank = (uint32_t)strtoul(argv[1], NULL, 10);
	char space[32], me[8];

	g->set = (struct kvs_settings){ 0 };
	snprintf(g->set.engine_socket, sizeof(g->set.engine_socket), "%s",
		 argv[2]);
	snprintf(space, sizeof(space), "model 1 rank %u", rank);
	snprintf(me, sizeof(me), "p%u", rank);
	peer = me;
	kvs_rng_init(&rng, rank);
	attach(space);
	device(NULL);
	ps_up(p, (unsigned int)strtoul(argv[3], NULL, 10), me, 0, 1,
	      &ps_two_layers);
	rank_round(rank, 0, FIRST);
	while (hint(rank, FIRST, false) < FIRST)
		(void)kvs_engine_progress(e);
	for (uint32_t round = 1; round < ROUNDS; round++) {
		struct tick go;

		tick_io(RIG_CHILD_FD, &go, false);
		rank_round(rank, round, LATER);
	}
	kvs_engine_detach(e);
	_exit(0);
}

/* All ranks' ticks of one request. Return: the highest minimum; how each ended
 * in @end. */
static uint8_t all_ticks(const int *fd, uint8_t *end)
{
	uint8_t highest = 0, was = 0;
	bool decided = false;
	struct tick t[RANKS];

	for (unsigned int left = 0; left < RANKS;) {
		struct tick min = { .status = UINT8_MAX };

		left = 0;
		for (uint32_t i = 0; i < RANKS; i++) {
			tick_io(fd[i], &t[i], false);
			if (t[i].status < min.status)
				min.status = t[i].status;
			left += t[i].left;
			assert_int_equal(t[i].queue, t[0].queue);
			assert_int_equal(t[i].wrong, 0);
			end[i] = t[i].status;
		}
		/* it only grows, and what failed stays so */
		assert_true(min.status >= was ||
			    min.status == KVS_STATUS_FAILED);
		if (decided)
			assert_int_equal(min.status, was);
		decided |= min.status == KVS_STATUS_FAILED ||
			   min.status == KVS_STATUS_DONE;
		was = min.status;
		if (was > highest)
			highest = was;
		for (uint32_t i = 0; i < RANKS; i++)
			tick_io(fd[i], &min, true);
	}
	return highest;
}

/* A bit of a page of @rank in the pool, wherever that lies. */
static void __attribute__((no_sanitize("address", "thread")))
flip(uint32_t rank, uint32_t page)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned char *from = NULL, *to = NULL;
	unsigned long a, b;
	char line[512];

	assert_non_null(f);
	while (!from && fgets(line, sizeof(line), f))
		if (strstr(line, "memfd:kvstage-receive") &&
		    sscanf(line, "%lx-%lx", &a, &b) == 2) {
			from = (unsigned char *)a;
			to = (unsigned char *)b;
		}
	fclose(f);
	assert_non_null(from);
	for (unsigned char *at = from; at < to; at += PS_PAGE) {
		uint32_t k = 0;

		while (k < 64 && at[k] == byte_of(rank, page, 1, k))
			k++;
		if (k < 64)
			continue;
		at[999] ^= 2;
		return;
	}
	fail_msg("page %u of rank %u is not there", page, rank);
}

static void test_ranks_decide_alike(void **state)
{
	char number[8], port[16];
	const char *args[] = { number, NULL, port, NULL };
	uint8_t end[RANKS], highest;
	struct tick go = { 0 };
	pid_t pid[RANKS];
	int fd[RANKS];

	(void)state;
	rig_init(g, rig_engine(), "8M");
	rig_set(g, "extent.tokens", "64");
	rig_up(g);
	g->errors_expected = true;
	args[1] = g->set.engine_socket;
	snprintf(port, sizeof(port), "%u", g->port);
	for (uint32_t i = 0; i < RANKS; i++) {
		snprintf(number, sizeof(number), "%u", i);
		pid[i] = rig_spawn(args, &fd[i]);
	}
	assert_int_equal(all_ticks(fd, end), KVS_STATUS_DONE);
	rig_wait(g, g->snap->workers[0].cache.blocks == RANKS * FIRST);
	flip(BAD_RANK, 9);
	rig_refresh(g);
	for (uint32_t i = 0; i < RANKS; i++)
		tick_io(fd[i], &go, true);
	highest = all_ticks(fd, end);
	assert_true(highest < KVS_STATUS_READY);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(end[i], KVS_STATUS_FAILED);
	assert_int_equal(g->snap->workers[0].cache.bad, 0);
	rig_refresh(g);
	assert_int_equal(g->snap->workers[0].cache.bad, 1);
	for (uint32_t i = 0; i < RANKS; i++)
		tick_io(fd[i], &go, true);
	assert_int_equal(all_ticks(fd, end), KVS_STATUS_DONE);
	for (uint32_t i = 0; i < RANKS; i++)
		rig_kill(pid[i], &fd[i]);
	rig_down(g);
}

/* ---- a daemon that is killed ----------------------------------------------- */

#define KEPT 40u /* pages of the talk that is on disk for certain */
#define OTHERS 4u /* talks that are being written */
#define OTHER 60u

/* argv: "disk", directory, engine of the disk, of TCP. */
static _Noreturn void disk_child(char **argv)
{
	disk_dir = argv[2];
	disk_engine = argv[3];
	rig_group(argv[4]);
	kvs_rng_init(&rng, 7);
	start("8M", NULL);
	if (write(RIG_CHILD_FD, g->dir, sizeof(g->dir)) != sizeof(g->dir))
		_exit(1);
	turn(1, KEPT);
	rig_child_say();
	while (rig_refresh(g), g->snap->workers[0].disk.written < KEPT)
		(void)kvs_engine_progress(e);
	rig_child_say();
	for (uint32_t i = 0;; i++) {
		(void)hint(2 + i % OTHERS, OTHER, true);
		turn(2 + i % OTHERS, OTHER);
	}
}

static void remove_dir(const char *path)
{
	char name[512];
	struct dirent *it;
	DIR *in = opendir(path);

	while (in && (it = readdir(in))) {
		if (it->d_name[0] == '.' &&
		    (!it->d_name[1] || it->d_name[1] == '.'))
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, it->d_name);
		if (unlink(name))
			remove_dir(name);
	}
	if (in)
		closedir(in);
	assert_int_equal(rmdir(path), 0);
}

static void killed(const char *engine)
{
	char dir[] = "/tmp/kvs-regress-disk-XXXXXX", its[sizeof(g->dir)];
	const char *args[] = { "disk", dir, engine, rig_engine(), NULL };
	pid_t pid;
	int fd;

	assert_non_null(mkdtemp(dir));
	pid = rig_spawn(args, &fd);
	assert_int_equal(read(fd, its, sizeof(its)), sizeof(its));
	for (int i = 0; i < 2; i++)
		rig_child_said(fd);
	rig_kill(pid, &fd);
	remove_dir(its);

	kvs_rng_init(&rng, 8);
	disk_dir = dir;
	disk_engine = engine;
	start("8M", NULL);
	rig_refresh(g);
	assert_true(g->snap->workers[0].disk.on);
	assert_string_equal(g->snap->workers[0].disk.engine, engine);
	assert_true(g->snap->workers[0].disk.found >= KEPT);
	assert_int_equal(hint(1, KEPT, false), KEPT);
	assert_int_equal(turn(1, KEPT + 5), KEPT);
	rig_wait(g, g->snap->workers[0].disk.recalled == KEPT);
	/* of these what is there is right, which turn() looks at */
	for (uint32_t i = 0; i < OTHERS; i++)
		turn(2 + i, OTHER + 1);
	rig_refresh(g);
	assert_int_equal(g->snap->workers[0].disk.recall_failed, 0);
	stop();
	disk_dir = NULL;
	remove_dir(dir);
}

static void test_killed_plain(void **state)
{
	(void)state;
	killed("plain");
}

static void test_killed_uring(void **state)
{
	(void)state;
	if (!rig_has_uring())
		skip();
	killed("uring");
}

static void test_shared(void **state)
{
	char top[] = "/tmp/kvs-regress-shared-XXXXXX", its[sizeof(g->dir)];
	char dir[sizeof(top) + 8];
	const char *args[] = { "disk", dir, "plain", rig_engine(), NULL };
	uint64_t looks;
	pid_t pid;
	int fd;

	(void)state;
	assert_non_null(mkdtemp(top));
	snprintf(dir, sizeof(dir), "%s/a", top);
	pid = rig_spawn(args, &fd);
	assert_int_equal(read(fd, its, sizeof(its)), sizeof(its));

	kvs_rng_init(&rng, 9);
	shared_dir = top;
	start("8M", NULL);
	for (int i = 0; i < 2; i++)
		rig_child_said(fd);
	/* it goes on writing */
	settled(1, KEPT);
	assert_int_equal(turn(1, KEPT + 5), KEPT);
	rig_refresh(g);
	assert_int_equal(g->snap->workers[0].shared.recalled, KEPT);
	assert_int_equal(g->snap->workers[0].disk.recalled, 0);
	rig_kill(pid, &fd);
	rig_refresh(g);
	looks = g->snap->workers[0].shared.looks;
	rig_wait(g, g->snap->workers[0].shared.looks >= looks + 2);
	for (uint32_t i = 0; i < OTHERS; i++)
		turn(2 + i, OTHER + 1);
	rig_refresh(g);
	assert_int_equal(g->snap->workers[0].shared.recall_failed, 0);
	assert_string_equal(g->snap->workers[0].shared.health, "ok");
	stop();
	shared_dir = NULL;
	remove_dir(its);
	remove_dir(top);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_pressure),
		cmocka_unit_test(test_held_copy),
		cmocka_unit_test(test_ranks_decide_alike),
		cmocka_unit_test(test_killed_plain),
		cmocka_unit_test(test_killed_uring),
		cmocka_unit_test(test_shared),
	};

	if (argc > 1 && !strcmp(argv[1], "disk"))
		disk_child(argv);
	if (argc > 1)
		child(argv);
	return rig_run_both(tests);
}
