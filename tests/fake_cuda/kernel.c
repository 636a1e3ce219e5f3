/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter of a launch. */
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "tests/fake_cuda/internal.h"

/* One item of a run: are its rows somebody's, on both sides, and aligned? */
static int check_item(const struct kvs_scatter_run *r, uint64_t page,
		      uint64_t item, int64_t *delta)
{
	uint64_t row = (uint64_t)r->row_units << r->shift;
	uint64_t unit = 1ull << r->shift;
	uint64_t host = r->host + item * r->host_stride;
	uint64_t dev = r->dev + page * r->dev_stride;
	uint32_t i;

	for (i = 0; i < r->rows; i++) {
		void *h, *d;
		uint64_t at = host + i * r->host_pitch;

		if (!reach(at, row, &h) ||
		    !reach(dev + i * r->dev_pitch, row, &d))
			return KVS_CUDA_ILLEGAL_ADDRESS;
		if (at % unit || (dev + i * r->dev_pitch) % unit)
			return 716; /* misaligned address */
		*delta = (int64_t)((uintptr_t)h - at);
	}
	return 0;
}

static int check_run(struct kvs_scatter_run *r, const uint32_t *pages,
		     uint32_t units)
{
	uint64_t per = (uint64_t)r->row_units * r->rows;
	int64_t delta = 0;
	uint64_t i;
	int err = 0;

	if (!per || r->shift > 4 || units % per)
		return KVS_CUDA_ILLEGAL_ADDRESS;
	for (i = 0; i < units / per && !err; i++)
		err = check_item(r,
				 r->page_at == KVS_SCATTER_IN_ORDER
					 ? i
					 : pages[r->page_at + i],
				 i, &delta);
	r->host += (uint64_t)delta;
	return err;
}

int run_launch(const struct kvs_scatter_launch *l, bool to_host,
	       uint32_t threads)
{
	struct kvs_scatter_launch mine = *l;
	struct kvs_scatter_run *runs;
	void *table = NULL;
	uint32_t t, i;
	int err = 0;

	if (!l->units || !l->n_runs ||
	    !reach((uintptr_t)l->runs, l->n_runs * sizeof(*runs), &table))
		return KVS_CUDA_ILLEGAL_ADDRESS;
	runs = malloc(l->n_runs * sizeof(*runs));
	KVS_ASSERT(runs);
	memcpy(runs, table, l->n_runs * sizeof(*runs));
	for (i = 0; i < l->n_runs && !err; i++) {
		uint32_t end = i + 1 < l->n_runs ? runs[i + 1].unit0 : l->units;

		if (end <= runs[i].unit0)
			err = KVS_CUDA_ILLEGAL_ADDRESS;
		else
			err = check_run(&runs[i], l->pages,
					end - runs[i].unit0);
	}
	mine.runs = runs;
	(void)pthread_mutex_unlock(&fake.lock);
	for (t = 0; t < threads && !err; t++)
		kvs_scatter_thread(&mine, t, threads, to_host);
	(void)pthread_mutex_lock(&fake.lock);
	free(runs);
	return err;
}
