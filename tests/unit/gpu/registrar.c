/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double of the driver: memory is made known to a device in
 * the background, piece by piece, each once; what a copy waits for comes
 * next; a copy of what is settled may begin while others are registered, and
 * comes out exact. A piece that the driver refuses, for want of memory, of
 * permission, as another has it, or as it is read-only, stays pageable, the
 * reason is kept, and copies of it are exact all the same; a context that dies
 * ends it all. Ending waits for the piece under way only, and undoes those
 * there are, backwards.
 */
#include "gpu/registrar.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/unit/gpu/cuda_rig.h"

#define PIECE (64u << 10)
#define PIECES (RIG_HOST / PIECE)

/* A rig none of whose host memory is known yet. */
static void begin(struct cuda_rig *g, enum kvs_copy_way way)
{
	rig_seed(g);
	rig_init(g, way);
	g->o.register_chunk = PIECE;
}

static void open_bare(struct cuda_rig *g)
{
	rig_open(g);
	assert_int_equal(
		kvs_device_unregister_host(g->d, g->host, g->registered), 0);
	fake_cuda_register_only(0);
}

static void end(struct cuda_rig *g)
{
	kvs_device_free(g->d, g->dev);
	kvs_device_close(g->d);
	rig_alive(0);
	rig_free(g);
}

static struct kvs_registrar *start(struct cuda_rig *g, bool read_only)
{
	/* in two ranges, the first of an odd number of pieces and a rest */
	const uint64_t cut = 5 * PIECE + 4096;
	const struct kvs_registrar_range v[] = {
		{ g->host, cut, read_only },
		{ g->host + cut, RIG_HOST - cut, read_only },
	};
	struct kvs_registrar *r = NULL;

	assert_int_equal(kvs_registrar_start(g->d, v, 2, &r), 0);
	assert_non_null(r);
	return r;
}

static struct kvs_registrar_state state_of(const struct kvs_registrar *r)
{
	struct kvs_registrar_state s;

	kvs_registrar_state(r, &s);
	assert_int_equal(s.total, RIG_HOST);
	assert_true(s.pinned <= s.settled && s.settled <= s.total);
	return s;
}

static void until_registering(uint64_t n)
{
	struct fake_cuda_counts c;

	do {
		(void)sched_yield();
		fake_cuda_counts(&c);
	} while (c.registering != n);
}

static struct kvs_registrar_state until_over(const struct kvs_registrar *r)
{
	struct kvs_registrar_state s;

	for (s = state_of(r); !s.over; s = state_of(r))
		(void)sched_yield();
	assert_int_equal(s.settled, s.total);
	return s;
}

static void copy_all(struct cuda_rig *g, enum kvs_copy_dir dir)
{
	struct cuda_copy c;

	rig_copy(g, &c, dir, 0, 1);
	rig_want(g, &c);
	assert_int_equal(kvs_device_copy(g->d, &c.c), 0);
	assert_int_equal(rig_wait(g, &c), 0);
	rig_check(g);
}

/* A plain run of one byte range of the host. */
struct one {
	struct kvs_copy c;
	struct kvs_copy_run r;
};

static void make_one(struct cuda_rig *g, struct one *o, uint64_t at,
		     uint64_t len)
{
	memset(o, 0, sizeof(*o));
	o->r = (struct kvs_copy_run){
		.host = g->host + at, .dev = g->dev, .item_len = len, .n = 1
	};
	o->c.runs = &o->r;
	o->c.n_runs = 1;
	o->c.dir = KVS_COPY_H2D;
}

static void test_what_is_waited_for_comes_next(void **state)
{
	struct kvs_registrar_state s;
	struct kvs_registrar *r;
	struct cuda_rig g = { 0 };
	struct one last, both, first;

	(void)state;
	begin(&g, KVS_COPY_AUTO);
	open_bare(&g);
	r = start(&g, false);
	until_registering(1);
	s = state_of(r);
	assert_int_equal(s.settled, 0);
	assert_false(s.over);
	make_one(&g, &first, 0, 4096);
	make_one(&g, &last, RIG_HOST - 4096, 4096);
	/* over the border of the ranges */
	make_one(&g, &both, 5 * PIECE, 8192);
	assert_int_equal(kvs_registrar_ready(r, &first.c), -EINPROGRESS);
	assert_int_equal(kvs_registrar_ready(r, &last.c), -EINPROGRESS);
	fake_cuda_register_only(1);
	while (kvs_registrar_ready(r, &first.c))
		(void)sched_yield();
	/* ready() of the first has asked for nothing since it was settled; it
	 * may have asked for itself, which is no reason to skip the last */
	assert_int_equal(kvs_registrar_ready(r, &last.c), -EINPROGRESS);
	until_registering(1);
	fake_cuda_register_only(2);
	while (kvs_registrar_ready(r, &last.c))
		(void)sched_yield();
	s = state_of(r);
	assert_true(s.settled <= 3 * PIECE && !s.over);
	/* and copied, while others wait for the driver */
	assert_int_equal(kvs_device_copy(g.d, &last.c), 0);
	while (kvs_device_query(g.d, &last.c) == -EINPROGRESS)
		(void)sched_yield();
	assert_int_equal(kvs_device_query(g.d, &last.c), 0);
	assert_memory_equal(g.dev, g.host + RIG_HOST - 4096, 4096);
	assert_int_equal(kvs_registrar_ready(r, &both.c), -EINPROGRESS);
	fake_cuda_register_only(UINT64_MAX);
	s = until_over(r);
	assert_int_equal(s.pinned, RIG_HOST);
	assert_int_equal(s.err, 0);
	assert_int_equal(kvs_registrar_ready(r, &both.c), 0);
	rig_fill(&g);
	copy_all(&g, KVS_COPY_H2D);
	copy_all(&g, KVS_COPY_D2H);
	kvs_registrar_end(r, true);
	end(&g);
}

/* Copies wait for their memory only, and are made while the rest of it is
 * registered. */
static void test_copies_meanwhile(void **state)
{
	enum { COPIES = 6 };
	struct cuda_copy *c = calloc(COPIES, sizeof(*c));
	struct kvs_registrar *r;
	struct cuda_rig g = { 0 };
	unsigned int begun = 0;
	bool on[COPIES] = { false };

	(void)state;
	assert_non_null(c);
	begin(&g, KVS_COPY_SLOTS);
	g.config.alias = true;
	open_bare(&g);
	for (unsigned int b = 0; b < COPIES; b++) {
		rig_copy(&g, &c[b], b % 2 ? KVS_COPY_D2H : KVS_COPY_H2D, b,
			 COPIES);
		rig_want(&g, &c[b]);
	}
	r = start(&g, false);
	fake_cuda_register_only(UINT64_MAX);
	while (begun < COPIES)
		for (unsigned int b = 0; b < COPIES; b++) {
			if (on[b] || kvs_registrar_ready(r, &c[b].c))
				continue;
			assert_int_equal(kvs_device_copy(g.d, &c[b].c), 0);
			on[b] = true;
			begun++;
		}
	for (unsigned int b = 0; b < COPIES; b++)
		assert_int_equal(rig_wait(&g, &c[b]), 0);
	rig_check(&g);
	kvs_registrar_end(r, true);
	end(&g);
	free(c);
}

struct mode {
	const char *name;
	int error; /* of the driver */
	int want; /* errno */
	uint64_t left; /* pieces that stay pageable: of 17 */
};

/* The third call of each fails, in the first range of six pieces. */
static void test_a_piece_is_refused(void **state)
{
	static const struct mode modes[] = {
		{ "out of memory", 2, -ENOMEM, 1 },
		{ "already registered", 712, -EEXIST, 1 },
		/* the same for all that is left of the range */
		{ "not permitted", 800, -EPERM, 4 },
		{ "not supported", 801, -EOPNOTSUPP, 4 },
		{ "invalid value", 1, -EINVAL, 1 },
	};

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(modes); i++) {
		struct kvs_registrar_state s;
		struct kvs_device_info info;
		struct kvs_registrar *r;
		struct cuda_rig g = { 0 };
		uint64_t left = modes[i].left * PIECE;

		if (modes[i].left > 1) /* the last one is the rest */
			left -= PIECE - 4096;
		begin(&g, i % 2 ? KVS_COPY_MAPPED : KVS_COPY_SLOTS);
		open_bare(&g);
		fake_cuda_fail("cuMemHostRegister", 3, modes[i].error);
		fake_cuda_register_only(UINT64_MAX);
		r = start(&g, false);
		s = until_over(r);
		print_message("%s: %llu of %llu bytes pinned, %s\n",
			      modes[i].name, (unsigned long long)s.pinned,
			      (unsigned long long)s.total, strerror(-s.err));
		assert_int_equal(s.err, modes[i].want);
		assert_int_equal(s.pinned, RIG_HOST - left);
		kvs_device_info(g.d, &info);
		assert_int_equal(info.pinned_bytes, s.pinned);
		assert_int_equal(info.registered_bytes, RIG_HOST);
		assert_int_equal(info.sticky, 0);
		copy_all(&g, KVS_COPY_H2D);
		copy_all(&g, KVS_COPY_D2H);
		kvs_registrar_end(r, true);
		end(&g);
	}
}

/* By a device of its own in this process, say: with the same pieces. */
static void test_another_has_it_registered(void **state)
{
	struct kvs_registrar_state s;
	struct kvs_registrar *r, *other;
	struct kvs_device *mine;
	struct cuda_rig g = { 0 };
	char err[160];

	(void)state;
	begin(&g, KVS_COPY_AUTO);
	open_bare(&g);
	fake_cuda_register_only(UINT64_MAX);
	other = start(&g, false);
	assert_int_equal(until_over(other).pinned, RIG_HOST);
	mine = g.d;
	assert_int_equal(kvs_device_open(&g.o, &g.d, err, sizeof(err)), 0);
	r = start(&g, false);
	s = until_over(r);
	assert_int_equal(s.err, -EEXIST);
	assert_int_equal(s.pinned, 0);
	copy_all(&g, KVS_COPY_H2D);
	copy_all(&g, KVS_COPY_D2H);
	kvs_registrar_end(r, true);
	kvs_device_close(g.d);
	g.d = mine;
	/* the other's are still there, and are its own to undo */
	copy_all(&g, KVS_COPY_H2D);
	kvs_registrar_end(other, true);
	end(&g);
}

static void test_read_only(void **state)
{
	(void)state;
	for (int supported = 0; supported < 2; supported++) {
		struct kvs_registrar_state s;
		struct kvs_registrar *r;
		struct cuda_rig g = { 0 };
		struct cuda_copy c;

		begin(&g, KVS_COPY_AUTO);
		g.config.read_only = supported;
		open_bare(&g);
		fake_cuda_register_only(UINT64_MAX);
		r = start(&g, true);
		s = until_over(r);
		assert_int_equal(s.err, supported ? 0 : -EOPNOTSUPP);
		assert_int_equal(s.pinned, supported ? RIG_HOST : 0);
		copy_all(&g, KVS_COPY_H2D);
		rig_copy(&g, &c, KVS_COPY_D2H, 0, 1);
		assert_int_equal(kvs_device_copy(g.d, &c.c), -EINVAL);
		kvs_registrar_end(r, true);
		end(&g);
	}
}

/* Nothing is tried any more, nobody waits, and copies say why. */
static void test_the_context_dies(void **state)
{
	struct kvs_registrar_state s;
	struct kvs_registrar *r;
	struct cuda_rig g = { 0 };
	struct one last;

	(void)state;
	begin(&g, KVS_COPY_AUTO);
	open_bare(&g);
	fake_cuda_fail("cuMemHostRegister", 4, 719);
	r = start(&g, false);
	make_one(&g, &last, RIG_HOST - 4096, 4096);
	fake_cuda_register_only(4);
	s = until_over(r);
	assert_int_equal(s.err, -EIO);
	assert_int_equal(s.pinned, 3 * PIECE);
	assert_int_equal(kvs_registrar_ready(r, &last.c), 0);
	assert_int_equal(kvs_device_copy(g.d, &last.c), -EIO);
	fake_cuda_register_only(UINT64_MAX);
	kvs_registrar_end(r, true);
	end(&g);
}

static void test_ending_under_way(void **state)
{
	(void)state;
	for (uint64_t done = 0; done < 4; done++) {
		struct kvs_registrar *r;
		struct fake_cuda_counts n;
		struct cuda_rig g = { 0 };
		uintptr_t undone[64];
		uint64_t before;

		begin(&g, KVS_COPY_AUTO);
		open_bare(&g);
		fake_cuda_counts(&n);
		before = n.unregistered;
		r = start(&g, false);
		fake_cuda_register_only(done);
		while (state_of(r).settled != done * PIECE)
			(void)sched_yield();
		until_registering(1);
		/* in the middle of the next one, which is waited for */
		kvs_registrar_stop(r);
		fake_cuda_register_only(1);
		kvs_registrar_end(r, true);
		fake_cuda_counts(&n);
		assert_int_equal(n.registered_bytes, 0);
		assert_int_equal(n.unregistered - before, done + 1);
		assert_int_equal(fake_cuda_unregistered(undone, 64),
				 n.unregistered);
		for (uint64_t i = 0; i <= done; i++)
			assert_int_equal(undone[before + i],
					 (uintptr_t)g.host +
						 (done - i) * PIECE);
		fake_cuda_register_only(UINT64_MAX);
		end(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_waited_for_comes_next),
		cmocka_unit_test(test_copies_meanwhile),
		cmocka_unit_test(test_a_piece_is_refused),
		cmocka_unit_test(test_another_has_it_registered),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_the_context_dies),
		cmocka_unit_test(test_ending_under_way),
	};

	return cmocka_run_group_tests_name("registrar", tests, NULL, NULL);
}
