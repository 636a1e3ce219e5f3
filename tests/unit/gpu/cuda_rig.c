/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gpu/cuda_rig.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static uint64_t below(struct cuda_rig *g, uint64_t n)
{
	return kvs_rng_below(&g->rng, n);
}

static void random_bytes(struct cuda_rig *g, uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t v = kvs_rng_next(&g->rng);

		memcpy(p + i, &v, 8);
	}
}

void rig_seed(struct cuda_rig *g)
{
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : 1;

	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)seed);
	kvs_rng_init(&g->rng, seed);
}

void rig_init(struct cuda_rig *g, enum kvs_copy_way way)
{
	struct kvs_rng rng = g->rng;

	memset(g, 0, sizeof(*g));
	g->rng = rng;
	fake_cuda_config_init(&g->config);
	g->o = (struct kvs_device_opts){
		.size = sizeof(g->o),
		.backend = "cuda",
		.copy = { .way = way,
			  .few = 4,
			  .batch_min = 4096,
			  .slot_bytes = 64 << 10,
			  .slots = 2 },
	};
	g->host = aligned_alloc(4096, RIG_HOST);
	g->host_want = malloc(RIG_HOST);
	g->dev_want = malloc(RIG_DEV);
	assert_true(g->host && g->host_want && g->dev_want);
}

void rig_open(struct cuda_rig *g)
{
	void *p = NULL;
	char err[160] = "";
	int r;

	fake_cuda_reset(&g->config);
	r = kvs_device_open(&g->o, &g->d, err, sizeof(err));
	if (r)
		print_message("%s\n", err);
	assert_int_equal(r, 0);
	assert_int_equal(kvs_device_alloc(g->d, RIG_DEV, &p), 0);
	g->dev = p;
	g->registered = RIG_HOST / 4 * 3;
	assert_int_equal(
		kvs_device_register_host(g->d, g->host, g->registered, 0), 0);
	rig_fill(g);
}

void rig_fill(struct cuda_rig *g)
{
	random_bytes(g, g->host, RIG_HOST);
	memcpy(g->host_want, g->host, RIG_HOST);
	/* the double's device memory is ordinary memory */
	random_bytes(g, g->dev, RIG_DEV);
	memcpy(g->dev_want, g->dev, RIG_DEV);
}

void rig_alive(unsigned int n)
{
	struct fake_cuda_counts c;

	fake_cuda_counts(&c);
	assert_int_equal(c.streams + c.events + c.allocations +
				 c.registrations + c.pinned + c.contexts +
				 c.modules,
			 n);
}

void rig_close(struct cuda_rig *g)
{
	kvs_device_free(g->d, g->dev);
	assert_int_equal(
		kvs_device_unregister_host(g->d, g->host, g->registered), 0);
	kvs_device_close(g->d);
	g->d = NULL;
	rig_alive(0);
}

void rig_free(struct cuda_rig *g)
{
	free(g->host);
	free(g->host_want);
	free(g->dev_want);
}

static void list_of(struct cuda_rig *g, uint32_t *list, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		list[i] = i;
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)below(g, i + 1u);
		uint32_t t = list[i];

		list[i] = list[j];
		list[j] = t;
	}
}

/* Rows, now and then with gaps; where the host is written it lies dense. */
static void shape_of(struct cuda_rig *g, struct kvs_copy_shape *s,
		     struct kvs_copy_run *r)
{
	uint64_t gap = 16 * below(g, 3);

	s->rows = 1 + below(g, 4);
	s->row_len = r->item_len;
	r->item_len *= s->rows;
	s->host_row = s->row_len + gap;
	s->dev_row = s->row_len + 8 * below(g, 3);
	s->host_item = s->rows * s->host_row;
	s->dev_item = s->rows * s->dev_row + 16;
}

void rig_copy(struct cuda_rig *g, struct cuda_copy *c, enum kvs_copy_dir dir,
	      unsigned int b, unsigned int n)
{
	uint64_t dev_band = RIG_DEV / n / RIG_RUNS / 64 * 64;
	uint64_t host_band = RIG_HOST / n / RIG_RUNS / 64 * 64;
	uint64_t most = host_band < dev_band ? host_band : dev_band;

	memset(c, 0, sizeof(*c));
	c->c.runs = c->run;
	c->c.shapes = c->shape;
	c->c.n_runs = RIG_RUNS;
	c->c.dir = dir;
	for (unsigned int i = 0; i < RIG_RUNS; i++) {
		struct kvs_copy_run *r = &c->run[i];
		uint64_t at = b * RIG_RUNS + i;

		r->host = g->host + at * host_band;
		r->dev = g->dev + at * dev_band;
		r->item_len = below(g, 4) ? 16 * (1 + below(g, 20))
					  : 1 + below(g, 600);
		if (!below(g, 3))
			shape_of(g, &c->shape[i], r);
		r->n = most / (2 * r->item_len + 256);
		if (r->n > RIG_LISTS)
			r->n = RIG_LISTS;
		assert_true(r->n > 0);
		if (!below(g, 4))
			continue;
		list_of(g, c->pages[i], (uint32_t)r->n);
		r->pages = c->pages[i];
	}
}

void rig_want(struct cuda_rig *g, const struct cuda_copy *c)
{
	for (unsigned int i = 0; i < RIG_RUNS; i++) {
		const struct kvs_copy_run *r = &c->run[i];
		struct kvs_copy_shape s = c->shape[i];

		if (!s.rows)
			s = (struct kvs_copy_shape){
				1, r->item_len, 0, 0, r->item_len, r->item_len
			};
		for (uint64_t k = 0; k < r->n * s.rows; k++) {
			uint64_t item = k / s.rows, row = k % s.rows;
			uint64_t page = r->pages ? r->pages[item] : item;
			uint64_t h = (uint64_t)((uint8_t *)r->host - g->host) +
				     item * s.host_item + row * s.host_row;
			uint64_t d = (uint64_t)((uint8_t *)r->dev - g->dev) +
				     page * s.dev_item + row * s.dev_row;

			if (c->c.dir == KVS_COPY_H2D)
				memcpy(g->dev_want + d, g->host_want + h,
				       s.row_len);
			else
				memcpy(g->host_want + h, g->dev_want + d,
				       s.row_len);
		}
	}
}

int rig_wait(struct cuda_rig *g, const struct cuda_copy *c)
{
	int r;

	while ((r = kvs_device_query(g->d, &c->c)) == -EINPROGRESS)
		(void)sched_yield();
	return r;
}

void rig_check(struct cuda_rig *g)
{
	assert_int_equal(kvs_device_peek(g->d, g->dev_want, g->dev, 0), 0);
	assert_memory_equal(g->dev, g->dev_want, RIG_DEV);
	assert_memory_equal(g->host, g->host_want, RIG_HOST);
}
