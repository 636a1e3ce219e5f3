/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: scatter
 *
 * The kernel that moves small pieces: between rows packed in a ring slot (or
 * in mapped host memory) and rows by page. This file is both what the host
 * and the kernel agree on and the body of the kernel; it compiles as CUDA C
 * and as C, where the soft device and the tests' double of the driver run it
 * thread by thread. Nothing is included but <stdint.h>.
 *
 * A *unit* is what a thread moves at once: 16 bytes, or the largest smaller
 * power of two that divides every address and length of its run. The units of
 * a launch are numbered through all runs; thread t of T takes t, t + T, ...,
 * KVS_SCATTER_UNROLL of them at a time, so that a few thread blocks have
 * enough loads under way to fill the link (4 blocks of 512 threads, 4 loads of
 * 16 bytes: 128 KiB).
 */
#ifndef KVS_GPU_SCATTER_H
#define KVS_GPU_SCATTER_H

#include <stdint.h>

#define KVS_SCATTER_UNROLL 4
#define KVS_SCATTER_BLOCK 512u /* threads */
#define KVS_SCATTER_IN_ORDER UINT32_MAX /* page_at: no list, item i is page i */
#define KVS_SCATTER_SLOT 1u /* flags: host is an offset in the slot */

/* names of the kernel in the module, by direction */
#define KVS_SCATTER_TO_DEVICE "kvs_scatter"
#define KVS_SCATTER_TO_HOST "kvs_gather"

/**
 * struct kvs_scatter_run - part of a run, as the kernel sees it
 * @host: first item: an address, or see KVS_SCATTER_SLOT until the launch
 * @dev: device buffer, page 0 (or of the first item, when in order)
 * @host_stride, @dev_stride, @host_pitch, @dev_pitch: bytes
 * @unit0: units of the runs before it
 * @page_at: where its page numbers begin, or KVS_SCATTER_IN_ORDER
 * @rows: of an item
 * @row_units: units of a row
 * @shift: a unit is 1 << shift bytes, 0 to 4
 * @flags: KVS_SCATTER_
 */
struct kvs_scatter_run {
	uint64_t host;
	uint64_t dev;
	uint64_t host_stride;
	uint64_t dev_stride;
	uint64_t host_pitch;
	uint64_t dev_pitch;
	uint32_t unit0;
	uint32_t page_at;
	uint32_t rows;
	uint32_t row_units;
	uint32_t shift;
	uint32_t flags;
};

/**
 * struct kvs_scatter_launch - the argument of a launch
 * @runs: n_runs > 0 of them, by unit0
 * @pages: page numbers
 * @units: in all, > 0
 * @n_runs: runs
 */
struct kvs_scatter_launch {
	const struct kvs_scatter_run *runs;
	const uint32_t *pages;
	uint32_t units;
	uint32_t n_runs;
};

#if defined(__CUDACC__) && !defined(__clang__)
#define KVS_SCATTER_FN static __device__ __forceinline__
#define KVS_SCATTER_UNROLLED _Pragma("unroll")
typedef uint4 kvs_scatter_16;
typedef uint64_t kvs_scatter_8;
typedef uint32_t kvs_scatter_4;
typedef uint16_t kvs_scatter_2;
#else
#ifdef __CUDACC__
#define KVS_SCATTER_FN static __device__ __forceinline__
#define KVS_SCATTER_UNROLLED _Pragma("unroll")
#else
#define KVS_SCATTER_FN static inline
#define KVS_SCATTER_UNROLLED
#endif
/* memory of any type is moved */
typedef uint32_t kvs_scatter_16 __attribute__((vector_size(16), may_alias));
typedef uint64_t kvs_scatter_8 __attribute__((may_alias));
typedef uint32_t kvs_scatter_4 __attribute__((may_alias));
typedef uint16_t kvs_scatter_2 __attribute__((may_alias));
#endif

/* A unit on its way. */
union kvs_scatter_value {
	kvs_scatter_16 b16;
	uint64_t b8;
	uint32_t b4;
};

/* Both ends of a unit, and its size. */
struct kvs_scatter_unit {
	uint64_t host;
	uint64_t dev;
	uint32_t shift;
};

KVS_SCATTER_FN void kvs_scatter_where(const struct kvs_scatter_run *r,
				      const uint32_t *pages, uint32_t unit,
				      struct kvs_scatter_unit *ret)
{
	uint32_t i = unit - r->unit0;
	uint32_t row = i / r->row_units;
	uint64_t in = (uint64_t)(i - row * r->row_units) << r->shift;
	uint32_t item = row / r->rows;
	uint64_t page = item;

	row -= item * r->rows;
	if (r->page_at != KVS_SCATTER_IN_ORDER)
		page = pages[r->page_at + item];
	ret->host = r->host + item * r->host_stride + row * r->host_pitch + in;
	ret->dev = r->dev + page * r->dev_stride + row * r->dev_pitch + in;
	ret->shift = r->shift;
}

KVS_SCATTER_FN void kvs_scatter_load(uint64_t from, uint32_t shift,
				     union kvs_scatter_value *v)
{
	if (shift == 4)
		v->b16 = *(const kvs_scatter_16 *)from;
	else if (shift == 3)
		v->b8 = *(const kvs_scatter_8 *)from;
	else if (shift == 2)
		v->b4 = *(const kvs_scatter_4 *)from;
	else if (shift == 1)
		v->b4 = *(const kvs_scatter_2 *)from;
	else
		v->b4 = *(const uint8_t *)from;
}

KVS_SCATTER_FN void kvs_scatter_store(uint64_t to, uint32_t shift,
				      const union kvs_scatter_value *v)
{
	if (shift == 4)
		*(kvs_scatter_16 *)to = v->b16;
	else if (shift == 3)
		*(kvs_scatter_8 *)to = v->b8;
	else if (shift == 2)
		*(kvs_scatter_4 *)to = v->b4;
	else if (shift == 1)
		*(kvs_scatter_2 *)to = (uint16_t)v->b4;
	else
		*(uint8_t *)to = (uint8_t)v->b4;
}

/* What thread @t of @threads does. @to_host: from the device's rows. */
KVS_SCATTER_FN void kvs_scatter_thread(const struct kvs_scatter_launch *l,
				       uint32_t t, uint32_t threads,
				       int to_host)
{
	struct kvs_scatter_unit at[KVS_SCATTER_UNROLL];
	union kvs_scatter_value v[KVS_SCATTER_UNROLL];
	uint32_t run = 0;
	uint64_t first;
	uint64_t u;
	int k;

	for (first = t; first < l->units;
	     first += (uint64_t)threads * KVS_SCATTER_UNROLL) {
		/* loads first, all of them, then stores */
		KVS_SCATTER_UNROLLED
		for (k = 0; k < KVS_SCATTER_UNROLL; k++) {
			u = first + (uint64_t)k * threads;
			if (u < l->units) {
				while (run + 1 < l->n_runs &&
				       u >= l->runs[run + 1].unit0)
					run++;
				kvs_scatter_where(&l->runs[run], l->pages,
						  (uint32_t)u, &at[k]);
				kvs_scatter_load(to_host ? at[k].dev
							 : at[k].host,
						 at[k].shift, &v[k]);
			}
		}
		KVS_SCATTER_UNROLLED
		for (k = 0; k < KVS_SCATTER_UNROLL; k++) {
			u = first + (uint64_t)k * threads;
			if (u < l->units)
				kvs_scatter_store(to_host ? at[k].host
							  : at[k].dev,
						  at[k].shift, &v[k]);
		}
	}
}

#endif /* KVS_GPU_SCATTER_H */
