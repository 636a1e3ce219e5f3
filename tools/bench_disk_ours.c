/* SPDX-License-Identifier: Apache-2.0 */
/* Our side of kvstage-bench disk: a store, as the daemon would drive it. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/rng.h"
#include "tools/bench_disk.h"

struct page {
	struct kvs_disk_req r;
	struct iovec iov;
	uint64_t n;
	struct bench_disk_ours *b;
};

struct bench_disk_ours {
	const struct bench_disk_args *a;
	const char *path;
	struct kvs_disk *disk;
	struct kvs_disk_store *store;
	unsigned char *mem; /* @slots pages */
	uint64_t bytes; /* of @mem */
	uint64_t slots; /* requests at a time */
	struct page *page; /* @slots of them */
	struct page **idle;
	uint64_t nidle;
	kvs_disk_loc *loc; /* of each page */
	uint64_t pages;
	uint64_t ended;
	int failed;
};

static void tell(void *arg, const char *line)
{
	(void)arg;
	fprintf(stderr, "disk: %s\n", line);
}

static void fill(unsigned char *mem, uint64_t bytes)
{
	uint64_t i, v;

	for (i = 0; i + 8 <= bytes; i += 8) {
		v = kvs_mix64(i + 1);
		memcpy(mem + i, &v, sizeof(v));
	}
}

static int make_memory(struct bench_disk_ours *b)
{
	uint64_t i;

	/* under way, waiting behind them, and waiting for the commit */
	b->slots = 2 * b->a->depth + KVS_STORE_COMMIT_DEFAULT;
	b->bytes = b->slots * b->a->bs;
	b->mem = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->mem == MAP_FAILED) {
		b->mem = NULL;
		return -ENOMEM;
	}
	/* as a pool has it where there are huge pages */
	(void)madvise(b->mem, b->bytes, MADV_HUGEPAGE);
	fill(b->mem, b->bytes);
	b->page = calloc(b->slots, sizeof(*b->page));
	b->idle = calloc(b->slots, sizeof(*b->idle));
	b->pages = b->a->size / b->a->bs;
	b->loc = calloc(b->pages, sizeof(*b->loc));
	if (!b->page || !b->idle || !b->loc)
		return -ENOMEM;
	for (i = 0; i < b->slots; i++) {
		b->page[i].b = b;
		b->page[i].iov.iov_base = b->mem + i * b->a->bs;
		b->page[i].iov.iov_len = b->a->bs;
		b->idle[b->nidle++] = &b->page[i];
	}
	return 0;
}

int bench_disk_ours_create(const struct bench_disk_args *a, const char *path,
			   struct bench_disk_ours **ret_ours)
{
	struct kvs_disk_opts o = {
		.engine = a->engine,
		.depth = (unsigned int)a->depth,
		.files = 64,
	};
	struct bench_disk_ours *b = calloc(1, sizeof(*b));
	char err[512] = "";
	int rc;

	if (!b)
		return -ENOMEM;
	b->a = a;
	b->path = path;
	rc = make_memory(b);
	if (!rc)
		rc = kvs_disk_create(&o, &b->disk, err, sizeof(err));
	if (*err)
		fprintf(stderr, "disk: %s\n", err);
	if (rc) {
		bench_disk_ours_destroy(b);
		return rc;
	}
	if (!strcmp(kvs_disk_name(b->disk), "uring")) {
		rc = kvs_disk_map(b->disk, b->mem, b->bytes);
		if (rc)
			fprintf(stderr, "disk: memory is not registered: %s\n",
				strerror(-rc));
	}
	*ret_ours = b;
	return 0;
}

static void turn(struct bench_disk_ours *b)
{
	kvs_disk_store_turn(b->store);
}

static void shut(struct bench_disk_ours *b)
{
	while (b->store && kvs_disk_store_close(b->store) == -EBUSY) {
		turn(b);
		kvs_disk_wait(b->disk, KVS_NSEC_PER_SEC);
	}
	b->store = NULL;
}

void bench_disk_ours_destroy(struct bench_disk_ours *b)
{
	if (!b)
		return;
	shut(b);
	kvs_disk_destroy(b->disk);
	if (b->mem)
		munmap(b->mem, b->bytes);
	free(b->page);
	free(b->idle);
	free(b->loc);
	free(b);
}

const char *bench_disk_ours_engine(const struct bench_disk_ours *b)
{
	return kvs_disk_name(b->disk);
}

bool bench_disk_ours_direct(const struct bench_disk_ours *b)
{
	struct kvs_disk_store_stats st;

	kvs_disk_store_stats(b->store, &st);
	return !st.direct_refused;
}

bool bench_disk_ours_fixed(const struct bench_disk_ours *b)
{
	return kvs_disk_stats(b->disk)->fixed > 0;
}

/* ---- runs ---- */

static void done(struct kvs_disk_req *r, int result)
{
	struct page *p = r->arg;
	struct bench_disk_ours *b = p->b;

	b->ended++;
	b->idle[b->nidle++] = p;
	b->loc[p->n] = r->loc;
	if (result && !b->failed)
		b->failed = result;
}

static int start(struct bench_disk_ours *b, uint64_t n, bool put)
{
	struct page *p = b->idle[--b->nidle];
	int rc;

	p->n = n;
	p->r = (struct kvs_disk_req){
		.layout = { { 1 } },
		.loc = b->loc[n],
		.iov = &p->iov,
		.niov = 1,
		.len = (uint32_t)b->a->bs,
		.done = done,
		.arg = p,
	};
	memcpy(p->r.key.b, &n, sizeof(n));
	rc = put ? kvs_disk_store_put(b->store, &p->r)
		 : kvs_disk_store_get(b->store, &p->r);
	if (rc)
		b->idle[b->nidle++] = p;
	return rc;
}

static int run(struct bench_disk_ours *b, bool put, double *ret_gbps)
{
	uint64_t begin = kvs_clock_now(&kvs_clock_real), next = 0, ns;
	int rc = 0;

	b->ended = 0;
	b->failed = 0;
	while (!rc && b->ended < b->pages && !b->failed) {
		while (!rc && b->nidle && next < b->pages)
			rc = start(b, next++, put);
		if (!rc)
			turn(b);
		if (!rc && b->ended < b->pages &&
		    (!b->nidle || next == b->pages))
			rc = kvs_disk_wait(b->disk, KVS_NSEC_PER_SEC);
	}
	ns = kvs_clock_now(&kvs_clock_real) - begin;
	/* whatever is under way has this memory */
	while (b->nidle < b->slots) {
		turn(b);
		kvs_disk_wait(b->disk, KVS_NSEC_PER_SEC);
	}
	if (!rc)
		rc = b->failed;
	if (rc)
		fprintf(stderr, "disk: %s: %s\n", put ? "put" : "get",
			strerror(-rc));
	*ret_gbps = (double)b->a->size / (double)ns;
	return rc;
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void bench_disk_remove(const char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int bench_disk_ours_write(struct bench_disk_ours *b, double *ret_gbps)
{
	struct kvs_disk_store_opts o = {
		.dir = b->path,
		.disk = b->disk,
		.durability = b->a->durability,
		.write_behind = 2 * b->bytes,
		.tell = tell,
	};
	char err[512];
	int rc;

	shut(b);
	bench_disk_remove(b->path);
	rc = kvs_disk_store_open(&o, &b->store, err, sizeof(err));
	if (rc) {
		fprintf(stderr, "disk: %s\n", err);
		return rc;
	}
	return run(b, true, ret_gbps);
}

int bench_disk_ours_read(struct bench_disk_ours *b, double *ret_gbps)
{
	return run(b, false, ret_gbps);
}
