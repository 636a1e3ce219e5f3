/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: bench_disk
 *
 * The two sides of kvstage-bench disk. Each writes or reads --size bytes in
 * blocks of --bs, sequentially, with --depth transfers under way, in one
 * thread, in files of its own in one directory.
 */
#ifndef KVS_TOOLS_BENCH_DISK_H
#define KVS_TOOLS_BENCH_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hicache/disk_store.h"

struct bench_disk_args {
	const char *dir;
	const char *engine;
	uint64_t size; /* bytes, a multiple of @bs */
	uint64_t bs; /* bytes */
	uint64_t depth;
	uint64_t pairs;
	enum kvs_durability durability;
	bool write;
	bool read;
	bool json;
};

struct bench_disk_ours;

/**
 * bench_disk_ours_create() - memory and an engine, kept for all runs
 * @a: kept
 * @path: directory of the store; kept
 * Return: 0 or -errno; what is wrong was printed.
 */
int bench_disk_ours_create(const struct bench_disk_args *a, const char *path,
			   struct bench_disk_ours **ret_ours);
void bench_disk_ours_destroy(struct bench_disk_ours *b);

/**
 * bench_disk_ours_write() - put all pages into an empty store
 * @ret_gbps: from the first put to the last that is done; 10^9 bytes a second
 *
 * Removes what an earlier run left, before the clock starts. The store stays
 * open for reads.
 * Return: 0 or -errno; what is wrong was printed.
 */
int bench_disk_ours_write(struct bench_disk_ours *b, double *ret_gbps);
/* Get all pages back, with their checksums; after a write. */
int bench_disk_ours_read(struct bench_disk_ours *b, double *ret_gbps);
/* "uring" or "plain"; transfers were direct; and through registered memory */
const char *bench_disk_ours_engine(const struct bench_disk_ours *b);
bool bench_disk_ours_direct(const struct bench_disk_ours *b);
bool bench_disk_ours_fixed(const struct bench_disk_ours *b);

/**
 * bench_disk_fio() - one run of fio(1), with io_uring
 * @a: what to do
 * @path: directory of its file
 * @read: the file that a write left; else a new one is written
 * @ret_gbps: its own figure
 * Return: 0; -ENOEXEC there is no fio, or it fails; -errno. What is wrong was printed.
 */
int bench_disk_fio(const struct bench_disk_args *a, const char *path, bool read,
		   double *ret_gbps);

/* The directory of a run, with all that is in it. */
void bench_disk_remove(const char *path);

#endif /* KVS_TOOLS_BENCH_DISK_H */
