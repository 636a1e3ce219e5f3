/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a shaped run (rows of an item apart on the host, on the device, or
 * on both; pages further apart than they are long) moves exactly the bytes that
 * a model moves one by one, both ways, and no byte beside them, on the soft
 * device with a thread and on the virtual one, there also piece by piece; a
 * shape that is not its item, or that leads outside what was allocated or
 * registered, is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"
#include "gpu/soft.h"
#include "lib/clock.h"
#include "lib/rng.h"

#define PAGES 24u
#define ROUNDS 400u

struct side {
	size_t len;
	uint8_t *model;
};

struct shaped {
	struct kvs_copy_run run;
	struct kvs_copy_shape shape;
	uint32_t pages[PAGES];
	bool listed;
	struct side host;
	struct side dev;
	uint8_t *host_mem;
	void *dev_mem;
};

static uint64_t apart(struct kvs_rng *rng, uint64_t len)
{
	return kvs_rng_below(rng, 2) ? len : len + kvs_rng_below(rng, 40);
}

static void fill(struct kvs_rng *rng, uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)kvs_rng_next(rng);
}

/* Rows within an item, or items within a row: as head slices and planes lie */
static void make(struct shaped *x, struct kvs_device *d, struct kvs_rng *rng)
{
	struct kvs_copy_shape *s = &x->shape;

	memset(x, 0, sizeof(*x));
	s->rows = 1 + kvs_rng_below(rng, 9);
	s->row_len = 1 + kvs_rng_below(rng, 70);
	s->host_row = apart(rng, s->row_len);
	s->dev_row = apart(rng, s->row_len);
	s->host_item = apart(rng, s->rows * s->host_row);
	s->dev_item = apart(rng, s->rows * s->dev_row);
	x->run.item_len = s->rows * s->row_len;
	x->run.n = 1 + kvs_rng_below(rng, PAGES);
	x->listed = kvs_rng_below(rng, 4);
	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t j = (uint32_t)kvs_rng_below(rng, i + 1u);

		x->pages[i] = x->pages[j];
		x->pages[j] = i;
	}
	x->host.len = x->run.n * s->host_item + 64;
	x->dev.len = PAGES * s->dev_item + 64;
	x->host.model = malloc(x->host.len);
	x->host_mem = malloc(x->host.len);
	x->dev.model = malloc(x->dev.len);
	assert_non_null(x->host.model);
	assert_non_null(x->host_mem);
	assert_non_null(x->dev.model);
	assert_int_equal(kvs_device_alloc(d, x->dev.len, &x->dev_mem), 0);
	fill(rng, x->host.model, x->host.len);
	memcpy(x->host_mem, x->host.model, x->host.len);
	fill(rng, x->dev.model, x->dev.len);
	x->run.pages = x->listed ? x->pages : NULL;
}

static void drop(struct shaped *x, struct kvs_device *d)
{
	kvs_device_free(d, x->dev_mem);
	free(x->host.model);
	free(x->host_mem);
	free(x->dev.model);
}

static void model(struct shaped *x, enum kvs_copy_dir dir)
{
	const struct kvs_copy_shape *s = &x->shape;

	for (uint64_t i = 0; i < x->run.n; i++) {
		uint64_t page = x->listed ? x->pages[i] : i;

		for (uint64_t j = 0; j < s->rows; j++) {
			for (uint64_t k = 0; k < s->row_len; k++) {
				uint8_t *h =
					&x->host.model[i * s->host_item +
						       j * s->host_row + k];
				uint8_t *v = &x->dev.model[page * s->dev_item +
							   j * s->dev_row + k];

				if (dir == KVS_COPY_H2D)
					*v = *h;
				else
					*h = *v;
			}
		}
	}
}

static void finish(struct kvs_device *d, struct kvs_copy *c,
		   struct kvs_vclock *clk)
{
	int r;

	assert_int_equal(kvs_device_copy(d, c), 0);
	while ((r = kvs_device_query(d, c)) == -EINPROGRESS) {
		if (clk) {
			kvs_vclock_advance(clk, KVS_NSEC_PER_SEC);
			(void)kvs_soft_run(d);
		} else {
			(void)sched_yield();
		}
	}
	assert_int_equal(r, 0);
	assert_int_equal(kvs_device_progress(d, c), c->n_runs);
}

static void rounds(struct kvs_device *d, struct kvs_vclock *clk)
{
	static struct kvs_copy_run whole;
	struct shaped x;
	struct kvs_rng rng;
	uint8_t *seen;

	for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
		kvs_rng_init(&rng, seed);
		make(&x, d, &rng);
		whole = (struct kvs_copy_run){ .host = x.dev.model,
					       .dev = x.dev_mem,
					       .item_len = x.dev.len,
					       .n = 1 };
		finish(d, &(struct kvs_copy){ .runs = &whole, .n_runs = 1 },
		       clk);
		x.run.host = x.host_mem;
		x.run.dev = x.dev_mem;
		for (int dir = KVS_COPY_H2D; dir <= KVS_COPY_D2H; dir++) {
			struct kvs_copy c = { .runs = &x.run,
					      .n_runs = 1,
					      .shapes = &x.shape,
					      .dir = (enum kvs_copy_dir)dir };

			model(&x, (enum kvs_copy_dir)dir);
			finish(d, &c, clk);
			seen = malloc(x.dev.len);
			assert_non_null(seen);
			assert_int_equal(kvs_device_peek(d, seen, x.dev_mem,
							 x.dev.len),
					 0);
			assert_memory_equal(seen, x.dev.model, x.dev.len);
			assert_memory_equal(x.host_mem, x.host.model,
					    x.host.len);
			free(seen);
			/* what the way back must bring */
			fill(&rng, x.host_mem, x.host.len);
			memcpy(x.host.model, x.host_mem, x.host.len);
		}
		drop(&x, d);
	}
}

static void with_a_thread(void **state)
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "soft" };
	struct kvs_device *d;
	char err[128];

	(void)state;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), 0);
	rounds(d, NULL);
	kvs_device_close(d);
}

static void piece_by_piece(void **state)
{
	static const uint64_t pieces[] = { 0, 1, 7, 64 };
	struct kvs_vclock clk;

	(void)state;
	for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		struct kvs_soft_virtual_opts o = {
			.clock = &clk.clk,
			.chances = { .piece = pieces[i] },
		};
		struct kvs_device *d;

		kvs_vclock_init(&clk, 1000);
		assert_int_equal(kvs_soft_open_virtual(&o, &d), 0);
		rounds(d, &clk);
		kvs_device_close(d);
	}
}

static int try(struct kvs_device *d, struct kvs_copy_run run,
	       struct kvs_copy_shape s, enum kvs_copy_dir dir)
{
	struct kvs_copy c = {
		.runs = &run, .n_runs = 1, .shapes = &s, .dir = dir
	};
	int r = kvs_device_copy(d, &c);

	while (!r && kvs_device_query(d, &c) == -EINPROGRESS)
		(void)sched_yield();
	return r;
}

static void refuses(void **state)
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "soft" };
	static uint8_t host[4096];
	static const uint32_t pages[2] = { 0, 7 };
	const struct kvs_copy_shape good = {
		.rows = 4,
		.row_len = 16,
		.host_row = 32,
		.dev_row = 16,
		.host_item = 128,
		.dev_item = 128,
	};
	struct kvs_copy_run run = {
		.host = host, .item_len = 64, .pages = pages, .n = 2
	};
	struct kvs_copy_shape s;
	struct kvs_device *d;
	char err[128];

	(void)state;
	assert_int_equal(kvs_device_open(&o, &d, err, sizeof(err)), 0);
	/* page 7 ends 64 bytes behind its start: the last byte there is */
	assert_int_equal(kvs_device_alloc(d, 7 * 128 + 64, &run.dev), 0);
	assert_int_equal(
		kvs_device_register_host(d, host, 240, KVS_HOST_READ_ONLY), 0);
	assert_int_equal(try(d, run, good, KVS_COPY_H2D), 0);

	assert_int_equal(try(d, run, good, KVS_COPY_D2H), -EINVAL);
	s = good;
	s.row_len = 15;
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	s = good;
	s.rows = 0; /* plain: 7 * 64 + 64 is inside */
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), 0);
	s = good;
	s.dev_item = 129;
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	s = good;
	s.dev_row = 17;
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	s = good;
	s.host_item = 129; /* one byte behind what is registered */
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	s.host_item = UINT64_MAX;
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	s = good;
	s.dev_item = UINT64_MAX / 2;
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	s = good;
	s.rows = 1ULL << 63;
	s.row_len = 2;
	assert_int_equal(try(d, run, s, KVS_COPY_H2D), -EINVAL);
	kvs_device_free(d, run.dev);
	kvs_device_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_a_thread),
		cmocka_unit_test(piece_by_piece),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
