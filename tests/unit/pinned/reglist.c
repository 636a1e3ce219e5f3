/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a pool is registered whole, in chunks no larger than the registrar
 * takes, whose borders are segments or multiples of the page (LMCache#5177:
 * one huge registration fails, naive chunks split a page); what is registered
 * is what may be looked up (Mooncake#2017: a length cut silently); as many
 * are undone as were done, the last one first, after a failure too
 * (Mooncake#364). A pool that is cut for its registrar gives no block that lies
 * in two chunks, and huge pages stay whole (FlexKV#275, Mooncake#3845).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "pinned/drain.h"
#include "pinned/reglist.h"
#include "tests/unit/pinned/seed.h"

#define MIB (1ULL << 20)
#define GIB (1ULL << 30)
#define MAX_CHUNKS 4096

/* Remembers ranges; never touches them. */
struct registrar {
	struct kvs_registrar_ops ops;
	char *base;
	uint64_t len[MAX_CHUNKS]; /* by handle - 1000; 0 = undone */
	uint64_t off[MAX_CHUNKS];
	unsigned int regs;
	unsigned int unregs;
	unsigned int fail_at; /* the N-th registration, from 1 */
	unsigned int unreg_fail_at;
	uint64_t undone; /* handle; the last */
	uint64_t end; /* of what has been registered so far */
};

static int fake_reg(void *ctx, void *addr, uint64_t len, uint64_t *ret_handle)
{
	struct registrar *g = ctx;

	if (g->fail_at && g->regs + 1 == g->fail_at)
		return -ENOMEM;
	if (g->ops.max_chunk)
		assert_true(len <= g->ops.max_chunk);
	assert_true(len > 0 && g->regs < MAX_CHUNKS);
	/* no gap and no overlap */
	assert_true((uint64_t)((char *)addr - g->base) == g->end);
	g->off[g->regs] = g->end;
	g->len[g->regs] = len;
	g->end += len;
	*ret_handle = 1000 + g->regs++;
	return 0;
}

static int fake_unreg(void *ctx, void *addr, uint64_t len, uint64_t handle)
{
	struct registrar *g = ctx;

	assert_true(handle >= 1000 && handle - 1000 < g->regs);
	handle -= 1000;
	assert_true(g->len[handle] == len);
	assert_true((uint64_t)((char *)addr - g->base) == g->off[handle]);
	if (g->unregs)
		assert_true(handle < g->undone);
	g->undone = handle;
	g->unregs++;
	if (g->unregs == g->unreg_fail_at)
		return -EBUSY;
	g->len[handle] = 0;
	return 0;
}

static struct kvs_pool *make_pool(uint64_t size, uint64_t segment)
{
	struct kvs_pool_opts o = {
		.name = "receive",
		.node = 0,
		.size = size,
		.segment = segment,
		.clock = &kvs_clock_real,
	};
	struct kvs_pool *p;

	/* address space only: a touch would be a fault */
	o.base = mmap(NULL, size, PROT_NONE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(o.base, MAP_FAILED);
	assert_int_equal(kvs_pool_create(&o, &p), 0);
	return p;
}

static void drop_pool(struct kvs_pool *p)
{
	void *base = kvs_pool_base(p);
	uint64_t size = kvs_pool_size(p);

	kvs_pool_destroy(p);
	munmap(base, size);
}

static void make_registrar(struct registrar *g, const struct kvs_pool *p,
			   uint64_t max)
{
	memset(g, 0, sizeof(*g));
	g->ops.name = "fake";
	g->ops.max_chunk = max;
	g->ops.reg = fake_reg;
	g->ops.unreg = fake_unreg;
	g->base = kvs_pool_base(p);
}

static struct registrar g;

/* 64 MiB a call, 1 GiB pool, 3 MiB pages: every page in one chunk. */
static void pages_are_not_split(void **state)
{
	struct kvs_pool *p = make_pool(GIB, 0);
	const uint64_t page = 3 * MIB;
	uint64_t off, handle, chunk;
	struct kvs_reglist *l;
	unsigned int i;

	(void)state;
	make_registrar(&g, p, 64 * MIB);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, page, &l), 0);
	assert_true(g.end == GIB);
	assert_int_equal(kvs_reglist_chunks(l), g.regs);
	assert_int_equal(g.regs, 17); /* of 63 MiB */
	for (i = 0; i < g.regs; i++)
		assert_true(g.off[i] % page == 0);
	for (off = 0; off + page <= GIB; off += page) {
		assert_int_equal(
			kvs_reglist_lookup(l, off, page, &handle, &chunk), 0);
		i = (unsigned int)(handle - 1000);
		assert_true(chunk == g.off[i] && off >= chunk &&
			    off + page <= chunk + g.len[i]);
	}
	assert_int_equal(kvs_reglist_destroy(l), 0);
	assert_int_equal(g.unregs, g.regs);
	drop_pool(p);
}

/* 2 GiB a call, 5 GiB pool: three ranges, and the last page is inside. */
static void nothing_is_cut_off(void **state)
{
	struct kvs_pool *p = make_pool(5 * GIB, GIB);
	uint64_t handle = 0, chunk = 0;
	struct kvs_reglist *l;

	(void)state;
	make_registrar(&g, p, 2 * GIB);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 0, &l), 0);
	assert_int_equal(kvs_reglist_chunks(l), 3);
	assert_true(g.end == 5 * GIB);
	assert_true(g.len[0] == 2 * GIB && g.len[1] == 2 * GIB &&
		    g.len[2] == GIB);
	assert_int_equal(kvs_reglist_lookup(l, 5 * GIB - 4096, 4096, &handle,
					    &chunk),
			 0);
	assert_true(handle == 1002 && chunk == 4 * GIB);
	assert_int_equal(kvs_reglist_lookup(l, 5 * GIB - 4096, 4097, &handle,
					    &chunk),
			 -ERANGE);
	assert_int_equal(kvs_reglist_destroy(l), 0);
	assert_int_equal(g.unregs, 3);

	/* a limit that is no whole number of segments */
	make_registrar(&g, p, 3 * GIB - 1);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 0, &l), 0);
	assert_true(g.regs == 3 && g.len[0] == 2 * GIB);
	assert_int_equal(kvs_reglist_destroy(l), 0);

	/* no limit: one */
	make_registrar(&g, p, 0);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 0, &l), 0);
	assert_int_equal(kvs_reglist_chunks(l), 1);
	assert_int_equal(kvs_reglist_destroy(l), 0);
	drop_pool(p);
}

/* Chunks smaller than a segment start anew with each segment. */
static void segments_are_borders(void **state)
{
	struct kvs_pool *p = make_pool(250 * MIB, 100 * MIB);
	uint64_t handle, chunk, off;
	struct kvs_reglist *l;
	unsigned int i;

	(void)state;
	make_registrar(&g, p, 64 * MIB);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 3 * MIB, &l), 0);
	/* 63 + 37, 63 + 37, 50 */
	assert_int_equal(g.regs, 5);
	for (i = 0; i < g.regs; i++)
		assert_true(g.off[i] % (100 * MIB) % (63 * MIB) == 0);
	for (off = 0; off < 250 * MIB; off += 512 * 1024) {
		assert_int_equal(kvs_reglist_lookup(l, off, 512 * 1024, &handle,
						    &chunk),
				 0);
		i = (unsigned int)(handle - 1000);
		assert_true(chunk == g.off[i] && off >= chunk &&
			    off + 512 * 1024 <= chunk + g.len[i]);
	}
	assert_int_equal(kvs_reglist_lookup(l, 62 * MIB, 2 * MIB, &handle,
					    &chunk),
			 -ERANGE);
	assert_int_equal(kvs_reglist_lookup(l, 99 * MIB, 2 * MIB, &handle,
					    &chunk),
			 -ERANGE);
	assert_int_equal(kvs_reglist_destroy(l), 0);
	drop_pool(p);
}

/* 7 MiB a call, huge pages of 2 MiB, blocks of 3 MiB until the pool is full. */
static void no_block_in_two_chunks(void **state)
{
	const uint64_t huge = 2 * MIB, block = 3 * MIB, size = 48 * MIB;
	const uint64_t segment = kvs_reglist_segment(7 * MIB, huge);
	uint64_t handle, chunk, want = block;
	struct kvs_drain_stats stats = { 0 };
	struct kvs_timerq timers;
	const struct kvs_drain_opts o = {
		.generation = 1,
		.hold_timeout = 1,
		.clock = &kvs_clock_real,
		.timers = &timers,
		.stats = &stats,
	};
	struct kvs_drain over; /* nobody was granted */
	struct kvs_extents x[16] = { 0 };
	struct kvs_reglist *l;
	struct kvs_pool *p;
	unsigned int i, n;

	(void)state;
	kvs_timerq_init(&timers);
	kvs_drain_init(&over, &o);
	kvs_drain_arm(&over);
	assert_true(segment == 6 * MIB);
	p = make_pool(size, segment);
	make_registrar(&g, p, 7 * MIB);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 0, &l), 0);
	assert_int_equal(g.regs, 8);
	for (i = 0; i < g.regs; i++)
		assert_true(g.off[i] % huge == 0 && g.len[i] % huge == 0);
	for (n = 0; n < 16; n++) {
		assert_int_equal(kvs_pool_alloc(p, &want, 1, &x[n]), 0);
		assert_int_equal(kvs_reglist_lookup(l, x[n].v[0].off, block,
						    &handle, &chunk),
				 0);
	}
	/* what one chunk cannot hold is no block */
	want = 7 * MIB;
	assert_int_equal(kvs_pool_alloc(p, &want, 1, &x[0]), -E2BIG);
	while (n)
		kvs_pool_release(&x[--n], &over);
	assert_int_equal(kvs_reglist_destroy(l), 0);
	kvs_drain_fini(&over);
	kvs_timerq_fini(&timers);
	drop_pool(p);
	/* 1 MiB a call: not even a page */
	assert_true(kvs_reglist_segment(MIB, huge) == 0);
	assert_true(kvs_reglist_segment(UINT64_MAX, GIB) == GIB);
	assert_true(kvs_reglist_segment(GIB, 4096) == GIB);
}

static void lookup_bounds(void **state)
{
	struct kvs_pool *p = make_pool(64 * MIB, 0);
	uint64_t handle = 1, chunk = 2;
	struct kvs_reglist *l;

	(void)state;
	make_registrar(&g, p, 0);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 0, &l), 0);
	assert_int_equal(kvs_reglist_lookup(l, 0, 0, &handle, &chunk), -ERANGE);
	assert_int_equal(kvs_reglist_lookup(l, 64 * MIB, 1, &handle, &chunk),
			 -ERANGE);
	assert_int_equal(kvs_reglist_lookup(l, 1, UINT64_MAX, &handle, &chunk),
			 -ERANGE);
	assert_int_equal(kvs_reglist_lookup(l, UINT64_MAX, 1, &handle, &chunk),
			 -ERANGE);
	assert_true(handle == 1 && chunk == 2);
	assert_int_equal(kvs_reglist_lookup(l, 0, 64 * MIB, &handle, &chunk),
			 0);
	assert_true(handle == 1000 && chunk == 0);
	assert_int_equal(kvs_reglist_destroy(l), 0);
	assert_int_equal(kvs_reglist_destroy(NULL), 0);
	drop_pool(p);
}

static void each_failure_is_undone(void **state)
{
	struct kvs_pool *p = make_pool(GIB, 0);
	struct kvs_reglist *l = NULL;
	unsigned int n, i;

	(void)state;
	for (n = 1; n <= 17; n++) {
		make_registrar(&g, p, 64 * MIB);
		g.fail_at = n;
		assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 3 * MIB, &l),
				 -ENOMEM);
		assert_null(l);
		assert_int_equal(g.regs, n - 1);
		assert_int_equal(g.unregs, n - 1);
		for (i = 0; i < g.regs; i++)
			assert_true(g.len[i] == 0);
	}
	drop_pool(p);
}

/* One that stays registered does not keep the others. */
static void failed_undo_is_told(void **state)
{
	struct kvs_pool *p = make_pool(GIB, 0);
	struct kvs_reglist *l;
	unsigned int i, left = 0;

	(void)state;
	make_registrar(&g, p, 64 * MIB);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 3 * MIB, &l), 0);
	g.unreg_fail_at = 5;
	assert_int_equal(kvs_reglist_destroy(l), -EBUSY);
	assert_int_equal(g.unregs, g.regs);
	for (i = 0; i < g.regs; i++)
		left += g.len[i] != 0;
	assert_int_equal(left, 1);
	drop_pool(p);
}

static void arguments(void **state)
{
	const struct kvs_pool_opts phantom = {
		.name = "phantom",
		.size = GIB,
		.clock = &kvs_clock_real,
	};
	struct kvs_pool *p = make_pool(GIB, 0), *ph;
	struct kvs_reglist *l = NULL;

	(void)state;
	make_registrar(&g, p, 64 * MIB);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 65 * MIB, &l),
			 -EINVAL);
	/* borders must also be those of memory pages */
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 64 * MIB - 1, &l),
			 -EINVAL);
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, UINT64_MAX, &l),
			 -EINVAL);
	assert_int_equal(kvs_pool_create(&phantom, &ph), 0);
	assert_int_equal(kvs_reglist_create(ph, &g.ops, &g, 0, &l), -EINVAL);
	kvs_pool_destroy(ph);
	assert_null(l);
	assert_int_equal(g.regs, 0);

	/* 576 bytes: chunks of a multiple of 36864 */
	assert_int_equal(kvs_reglist_create(p, &g.ops, &g, 576, &l), 0);
	assert_true(g.len[0] == 64 * MIB - 64 * MIB % 36864);
	assert_int_equal(kvs_reglist_destroy(l), 0);
	assert_int_equal(g.unregs, g.regs);
	drop_pool(p);
}

/* Any sizes: whole, in order, within the limit (asserted by fake_reg). */
static void random_shapes(void **state)
{
	uint64_t pages, seg, max, unit, off, handle, chunk;
	struct kvs_reglist *l;
	struct kvs_pool *p;
	struct kvs_rng r;
	unsigned int i, n, k;
	int err;

	(void)state;
	seed_rng(&r);
	for (i = 0; i < 300; i++) {
		pages = 1 + kvs_rng_below(&r, 1000);
		seg = 1 + kvs_rng_below(&r, pages);
		max = 4096 * (1 + kvs_rng_below(&r, pages + 10)) +
		      kvs_rng_below(&r, 4096);
		unit = kvs_rng_below(&r, 10) * 1000;
		p = make_pool(pages * 4096, seg * 4096);
		make_registrar(&g, p, max);
		err = kvs_reglist_create(p, &g.ops, &g, unit, &l);
		if (err) {
			assert_int_equal(err, -EINVAL);
			assert_int_equal(g.regs, 0);
			drop_pool(p);
			continue;
		}
		assert_true(g.end == pages * 4096);
		n = kvs_reglist_chunks(l);
		assert_int_equal(n, g.regs);
		for (k = 0; k < n; k++) {
			off = g.off[k] + kvs_rng_below(&r, g.len[k]);
			assert_int_equal(
				kvs_reglist_lookup(l, off,
						   g.off[k] + g.len[k] - off,
						   &handle, &chunk),
				0);
			assert_true(handle == 1000 + k && chunk == g.off[k]);
		}
		assert_int_equal(kvs_reglist_destroy(l), 0);
		assert_int_equal(g.unregs, n);
		drop_pool(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_are_not_split),
		cmocka_unit_test(nothing_is_cut_off),
		cmocka_unit_test(segments_are_borders),
		cmocka_unit_test(no_block_in_two_chunks),
		cmocka_unit_test(lookup_bounds),
		cmocka_unit_test(each_failure_is_undone),
		cmocka_unit_test(failed_undo_is_told),
		cmocka_unit_test(arguments),
		cmocka_unit_test(random_shapes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
