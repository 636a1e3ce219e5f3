/* SPDX-License-Identifier: Apache-2.0 */
/* How fast cached bytes come back: from host memory to a device as a recall
 * copies them, and from the disk tier to host memory, checksums included. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/layout.h"
#include "tools/bench_cache.h"
#include "tools/bench_copy_room.h"
#include "tools/bench_disk.h"
#include "tools/median.h"
#include "tools/output.h"
#include "tools/table.h"

#define REPEATS 5u
#define DISK_PAGE (1ULL << 20) /* bytes */
#define DISK_DEPTH 8u

struct recalled {
	const char *tier;
	const char *way; /* device, or engine of the disk */
	uint64_t bytes;
	double gbps;
	double baseline; /* one large copy; 0: none */
};

static int from_host(const struct cache_args *a, struct recalled *ret)
{
	struct kvs_copy_bench b = { .device = "soft", .repeats = REPEATS };
	const struct kvs_preset_opts o = { .tp = a->tp };
	struct kvs_copy_room m = { 0 };
	struct kvs_copy_result res;
	struct kvs_copy c = { 0 };
	struct kvs_layout *l = NULL;
	char err[KVS_PRESET_ERR];
	uint64_t tokens;
	int r;

	r = kvs_preset_layout(a->model, &o, &l, err, sizeof(err));
	if (r) {
		fprintf(stderr, "cache: %s\n", err);
		return -EINVAL;
	}
	tokens = a->recall / kvs_layout_bytes_per_token(l);
	if (tokens < l->page_size)
		tokens = l->page_size;
	if (tokens > KVS_TOKENS_MAX)
		tokens = KVS_TOKENS_MAX;
	free(l);
	r = kvs_copy_room_init(&m, a->model, &o, tokens);
	if (!r)
		r = kvs_copy_bench_open(&b);
	if (!r)
		r = kvs_copy_bench_memory(&b, m.host_len, m.dev_len);
	if (!r) {
		c.n_runs = kvs_copy_room_runs(&m, &b);
		c.runs = m.runs;
		r = kvs_copy_bench_measure(&b, &c, &res);
	}
	if (!r)
		*ret = (struct recalled){
			.tier = kvs_tier_name[KVS_TIER_HOST],
			.way = b.device,
			.bytes = m.host_len,
			.gbps = res.gbps,
			.baseline = res.baseline_gbps,
		};
	kvs_copy_bench_close(&b);
	kvs_copy_room_fini(&m);
	return r;
}

static int from_disk(const struct cache_args *a, const char *dir,
		     struct recalled *ret)
{
	const struct bench_disk_args d = {
		.dir = a->dir,
		.engine = "auto",
		.size = (a->recall + DISK_PAGE - 1) / DISK_PAGE * DISK_PAGE,
		.bs = DISK_PAGE,
		.depth = DISK_DEPTH,
	};
	struct bench_disk_ours *b;
	double gbps[REPEATS], put;
	char store[4096];
	int r;

	snprintf(store, sizeof(store), "%.4000s/store", dir);
	r = bench_disk_ours_create(&d, store, &b);
	if (r)
		return r;
	r = bench_disk_ours_write(b, &put);
	for (unsigned int i = 0; i < REPEATS && !r; i++)
		r = bench_disk_ours_read(b, &gbps[i]);
	if (!r)
		*ret = (struct recalled){
			.tier = kvs_tier_name[KVS_TIER_NVME],
			/* a literal of the engine's */
			.way = bench_disk_ours_engine(b),
			.bytes = d.size,
			.gbps = kvs_median(gbps, REPEATS),
		};
	bench_disk_ours_destroy(b);
	return r;
}

static void show(const struct cache_args *a, const struct recalled *v,
		 struct kvs_table *t)
{
	if (t) {
		kvs_table_cell(t, "%s", v->tier);
		kvs_table_cell(t, "%s", v->way);
		kvs_table_cell(t, "%" PRIu64, v->bytes);
		kvs_table_cell(t, "%.2f", v->gbps);
		kvs_table_cell(t, v->baseline > 0 ? "%.2f" : "-", v->baseline);
		return;
	}
	printf("{\"bench\": \"cache\", \"recall\": \"%s\", \"way\": \"%s\", "
	       "\"bytes\": %" PRIu64 ", \"gbps\": %.3f, "
	       "\"baseline_gbps\": %.3f, \"model\": \"%s\", \"tp\": %" PRIu32
	       ", \"repeats\": %u}\n",
	       v->tier, v->way, v->bytes, v->gbps, v->baseline, a->model, a->tp,
	       REPEATS);
	(void)kvs_output_flush();
}

int kvs_bench_cache_recall(const struct cache_args *a)
{
	struct kvs_table *t = NULL;
	struct recalled v;
	char dir[4096];
	int r;

	snprintf(dir, sizeof(dir), "%.4000s/kvstage-bench-XXXXXX", a->dir);
	if (!mkdtemp(dir)) {
		r = -errno;
		fprintf(stderr, "cache: --dir %s: %s\n", a->dir, strerror(-r));
		return r;
	}
	r = a->json ? 0
		    : kvs_table_create("<tier <way bytes gbps baseline_gbps",
				       &t);
	if (!r)
		r = from_host(a, &v);
	if (!r)
		show(a, &v, t);
	if (!r)
		r = from_disk(a, dir, &v);
	if (!r)
		show(a, &v, t);
	if (!r && t)
		r = kvs_table_print(t, stdout);
	kvs_table_destroy(t);
	bench_disk_remove(dir);
	return r;
}
