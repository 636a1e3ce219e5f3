/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much slower is a kernel that is bound by memory while copies of small
 * pages run beside it? One object a line, by way: the kernel's time alone and
 * beside, medians, and the slowdown. Exit 77 without a GPU, or without a
 * compiler for the kernel.
 *
 * Argument: cuda or cuda:N.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/driver.h"
#include "gpu/device.h"
#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/units.h"
#include "tests/hw/load_image.h"

#define ITEM 576u
#define ITEMS (128u << 10) /* 72 MiB a copy */
#define LOAD (256ull << 20) /* bytes the kernel goes through */
#define TIMES 15
#define WANT (10 * KVS_NSEC_PER_MSEC) /* for one launch */

struct load { /* as load.cu has it */
	kvs_cuda_ptr p;
	uint64_t n;
	uint32_t rounds;
};

struct bench {
	const struct kvs_cuda_api *api;
	kvs_cuda_ctx ctx;
	kvs_cuda_module module;
	kvs_cuda_func func;
	kvs_cuda_stream stream;
	kvs_cuda_event event;
	struct load load;
	struct kvs_device *d;
	struct kvs_copy copy[2];
	struct kvs_copy_run run;
	uint64_t copied;
};

static int failed(const char *what, int r)
{
	fprintf(stderr, "beside: %s: %s\n", what, kvs_cuda_error_name(r));
	return r == KVS_CUDA_NOT_FOUND ? 77 : 1;
}

/* Copies go on, two at a time, while the kernel is waited for. */
static int keep_copying(struct bench *b)
{
	for (unsigned int i = 0; i < 2; i++) {
		int r = kvs_device_query(b->d, &b->copy[i]);

		if (r == -EINPROGRESS)
			continue;
		if (r)
			return r;
		b->copied++;
		r = kvs_device_copy(b->d, &b->copy[i]);
		if (r)
			return r;
	}
	return 0;
}

static int one_launch(struct bench *b, bool copies, uint64_t *ret_ns)
{
	void *args[] = { &b->load };
	uint64_t from = kvs_clock_now(&kvs_clock_real);
	int r;

	r = b->api->launch(b->func, 1024, 1, 1, 256, 1, 1, 0, b->stream, args,
			   NULL);
	if (!r)
		r = b->api->event_record(b->event, b->stream);
	while (!r &&
	       (r = b->api->event_query(b->event)) == KVS_CUDA_NOT_READY) {
		r = 0;
		if (copies && keep_copying(b))
			return KVS_CUDA_UNKNOWN;
		(void)sched_yield();
	}
	*ret_ns = kvs_clock_now(&kvs_clock_real) - from;
	return r;
}

static int cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int median(struct bench *b, bool copies, uint64_t *ret_ns)
{
	uint64_t ns[TIMES];
	int r = 0;

	for (unsigned int i = 0; i < TIMES && !r; i++)
		r = one_launch(b, copies, &ns[i]);
	qsort(ns, TIMES, sizeof(ns[0]), cmp);
	*ret_ns = ns[TIMES / 2];
	return r;
}

static int start(struct bench *b)
{
	int least, greatest, r;

	r = b->api->ctx_push(b->ctx);
	if (!r)
		r = b->api->module_load(&b->module, kvs_hw_load_image);
	if (!r)
		r = b->api->module_func(&b->func, b->module, "kvs_hw_load");
	if (!r)
		r = b->api->priority_range(&least, &greatest);
	if (!r)
		r = b->api->stream_create(
			&b->stream, KVS_CUDA_STREAM_NON_BLOCKING, greatest);
	if (!r)
		r = b->api->event_create(&b->event,
					 KVS_CUDA_EVENT_DISABLE_TIMING);
	if (!r)
		r = b->api->mem_alloc(&b->load.p, LOAD);
	return r;
}

/* Rounds until a launch takes as long as a step of decoding. */
static int calibrate(struct bench *b)
{
	uint64_t ns = 0;
	int r;

	b->load.n = LOAD / 16;
	b->load.rounds = 8;
	r = one_launch(b, false, &ns);
	if (!r)
		r = one_launch(b, false, &ns);
	if (!r && ns)
		b->load.rounds = (uint32_t)(8 * WANT / ns + 1);
	return r;
}

static int open_device(struct bench *b, int ordinal, enum kvs_copy_way way,
		       uint8_t *host, const uint32_t *pages)
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "cuda",
					   .device = ordinal,
					   .copy = { .way = way } };
	void *dev = NULL;
	char err[192] = "";
	int r = kvs_device_open(&o, &b->d, err, sizeof(err));

	if (r) {
		fprintf(stderr, "beside: %s\n", err);
		return r;
	}
	r = kvs_device_register_host(b->d, host, (uint64_t)ITEM * ITEMS, 0);
	if (!r)
		r = kvs_device_alloc(b->d, (uint64_t)ITEM * ITEMS, &dev);
	b->run = (struct kvs_copy_run){ .host = host,
					.dev = dev,
					.item_len = ITEM,
					.pages = pages,
					.n = ITEMS };
	for (unsigned int i = 0; i < 2 && !r; i++) {
		b->copy[i] = (struct kvs_copy){ .runs = &b->run,
						.n_runs = 1,
						.dir = KVS_COPY_H2D };
		r = kvs_device_copy(b->d, &b->copy[i]);
	}
	b->copied = 0;
	return r;
}

static void close_device(struct bench *b, uint8_t *host)
{
	for (unsigned int i = 0; i < 2; i++)
		while (kvs_device_query(b->d, &b->copy[i]) == -EINPROGRESS)
			(void)sched_yield();
	(void)kvs_device_unregister_host(b->d, host, (uint64_t)ITEM * ITEMS);
	kvs_device_free(b->d, b->run.dev);
	kvs_device_close(b->d);
}

static int one_way(struct bench *b, int ordinal, enum kvs_copy_way way,
		   uint8_t *host, const uint32_t *pages)
{
	uint64_t alone = 0, beside = 0, from, took;
	int r;

	r = median(b, false, &alone);
	if (r)
		return failed("kernel", r);
	if (open_device(b, ordinal, way, host, pages))
		return 1;
	from = kvs_clock_now(&kvs_clock_real);
	r = median(b, true, &beside);
	took = kvs_clock_now(&kvs_clock_real) - from;
	close_device(b, host);
	if (r)
		return failed("kernel beside copies", r);
	printf("{\"bench\": \"beside\", \"device\": \"cuda:%d\", "
	       "\"way\": \"%s\", \"item_len\": %u, \"alone_ms\": %.3f, "
	       "\"beside_ms\": %.3f, \"slowdown\": %.4f, "
	       "\"gbps\": %.2f}\n",
	       ordinal, kvs_copy_way_name(way), ITEM, (double)alone / 1e6,
	       (double)beside / 1e6, (double)beside / (double)alone,
	       (double)b->copied * ITEM * ITEMS / (double)took);
	return 0;
}

int main(int argc, char **argv)
{
	static const enum kvs_copy_way ways[] = { KVS_COPY_SLOTS,
						  KVS_COPY_MAPPED,
						  KVS_COPY_DIRECT };
	const char *colon = argc > 1 ? strchr(argv[1], ':') : NULL;
	struct bench b = { 0 };
	uint8_t *host = aligned_alloc(4096, (size_t)ITEM * ITEMS);
	uint32_t *pages = malloc(ITEMS * sizeof(*pages));
	uint64_t n = 0;
	char err[192] = "";
	int dev = 0, r;

	if (colon && kvs_parse_u64(colon + 1, &n))
		return 2;
	r = kvs_cuda_driver(&b.api, err, sizeof(err));
	if (r) {
		fprintf(stderr, "beside: %s\n", err);
		return 77;
	}
	if (!kvs_hw_load_image_len || !host || !pages) {
		fprintf(stderr, "beside: no kernel was built\n");
		return 77;
	}
	memset(host, 0x5a, (size_t)ITEM * ITEMS);
	/* every page is far from the one before */
	for (uint32_t i = 0; i < ITEMS; i++)
		pages[i] = (uint32_t)((uint64_t)i * 40503 % ITEMS);
	r = b.api->device_get(&dev, (int)n);
	if (!r)
		r = b.api->ctx_retain(&b.ctx, dev);
	if (!r)
		r = start(&b);
	if (r)
		return failed("set-up", r);
	r = calibrate(&b);
	if (r)
		return failed("kernel", r);
	for (size_t i = 0; i < KVS_ARRAY_SIZE(ways) && !r; i++)
		r = one_way(&b, (int)n, ways[i], host, pages);
	free(host);
	free(pages);
	return r;
}
