/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: prefault
 *
 * Makes every page of a mapping present, with many threads, before anybody
 * depends on it. Each thread takes the next chunk and populates it with
 * MADV_POPULATE_WRITE, which turns the signal of a failing first touch into
 * an error. Kernels before 5.14 lack it: there the file's blocks are
 * allocated first (fallocate(2) fails with an error too) and then touched.
 *
 * The caller's thread does no populating: it reports progress once a second
 * and returns when the last chunk is done. A cancel request is seen between
 * chunks, some hundred milliseconds even on cold memory.
 */
#ifndef KVS_PINNED_PREFAULT_H
#define KVS_PINNED_PREFAULT_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/**
 * struct kvs_prefault_progress - how far it is
 * @done: bytes present
 * @total: bytes asked for
 * @elapsed_ns: ns since the start
 * @rate: bytes a second since the start
 */
struct kvs_prefault_progress {
	uint64_t done;
	uint64_t total;
	uint64_t elapsed_ns;
	uint64_t rate;
};

/**
 * struct kvs_prefault_opts - how to do it; all zero is fine
 * @threads: number of threads; 0 for one per CPU of @cpus (or per CPU this
 *	process may run on)
 * @cpus: run the threads on these CPUs; NULL or empty: anywhere
 * @page_size: bytes of a page of the mapping; 0 for the base page
 * @file: the mapping's file, used on old kernels only; a valid descriptor or
 *	-1, with @file_set
 * @file_set: @file is meant (so that all zero does not mean descriptor 0)
 * @progress: called about once a second and once at the end, on the caller's
 *	thread; may be NULL
 * @progress_arg: passed on
 * @cancel: set from anywhere, a signal handler included, to stop; may be NULL
 */
struct kvs_prefault_opts {
	unsigned int threads;
	const cpu_set_t *cpus;
	uint64_t page_size;
	int file;
	bool file_set;
	void (*progress)(void *arg, const struct kvs_prefault_progress *p);
	void *progress_arg;
	const atomic_bool *cancel;
};

/**
 * kvs_prefault() - populate a writable shared mapping
 * @base: start, aligned to the page size; byte 0 of @file
 * @len: bytes, a multiple of the page size
 * @opts: options
 * @ret_ns: time it took, ns; may be NULL
 *
 * Contents stay as they are, if nobody writes meanwhile. On failure any part
 * may be populated; nothing is running any more.
 *
 * Context: blocks until done; makes and joins threads with all signals
 * blocked.
 * Return: 0; -ECANCELED; -ENOMEM no memory (or a mempolicy without any);
 * -EFAULT huge pages or their cgroup ran out; -EHWPOISON broken memory;
 * -EINVAL alignment; -EAGAIN when not one thread could be made.
 */
int kvs_prefault(void *base, uint64_t len, const struct kvs_prefault_opts *opts,
		 uint64_t *ret_ns);

#endif /* KVS_PINNED_PREFAULT_H */
