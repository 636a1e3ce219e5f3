/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: region
 *
 * A sealed memfd of one size on one NUMA node, whole and present before
 * anybody depends on it. The order matters:
 *
 *   limits checked -> memfd (1G, 2M, then base pages) -> ftruncate -> mmap ->
 *   mbind before the first touch -> prefault on the node's CPUs -> locked if
 *   asked -> sealed -> placement verified
 *
 * A receive region is sealed against writing by others once our own mapping
 * exists: whoever gets the descriptor can map it read-only and can neither
 * resize it nor punch holes into it. An offload region stays writable, only
 * its size is sealed. Some kernels do not enforce the write seal on huge
 * pages: that is tried out, and @write_sealed says the result.
 *
 * Descriptors are close-on-exec; mappings are not inherited by a forked child
 * and not part of a core dump.
 *
 * This file does not log (but for one warning per process when a preferred
 * node could not be bound): @why is for the daemon to log loudly, @err of the
 * options for it to print on failure.
 */
#ifndef KVS_PINNED_REGION_H
#define KVS_PINNED_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pinned/limits.h"
#include "pinned/prefault.h"
#include "pinned/topology.h"

#define KVS_REGION_WHY_MAX 1024
#define KVS_REGION_ERR_MAX 1024

enum kvs_region_kind {
	KVS_REGION_RECEIVE, /* others may only read */
	KVS_REGION_OFFLOAD, /* others may write */
};

/**
 * struct kvs_region_opts - what to make
 * @name: shown in /proc/PID/maps; up to 200 characters; NULL for "kvstage"
 * @setting: setting to blame in messages; NULL for "pool.size"
 * @size: bytes, rounded up to the page size
 * @node: NUMA node, or -1 for any
 * @strict: fail unless all of it is on @node
 * @page_size_max: largest page size to try: KVS_PAGE_1G, KVS_PAGE_2M or the
 *	base page; 0 for 1G. Smaller ones follow. A size is passed over when
 *	rounding up to it would waste more than 1/16
 * @kind: who may write
 * @allow_smaller: when the size cannot be had, halve it until it can
 * @size_min: with @allow_smaller: not below this; 0 for 2 MiB
 * @lock: mlock(2) base pages, and hold the whole size against the
 *	locked-memory limit (registration counts there too)
 * @threads: prefault threads; 0 for one per CPU of the node
 * @progress: see struct kvs_prefault_opts
 * @progress_arg: passed on
 * @cancel: see struct kvs_prefault_opts
 * @topology: gives the node's CPUs; may be NULL
 * @root: prefix of /proc and /sys for the limits; NULL for this machine
 * @err: receives one line on failure; may be NULL
 * @err_len: bytes of @err; KVS_REGION_ERR_MAX holds any
 */
struct kvs_region_opts {
	const char *name;
	const char *setting;
	uint64_t size;
	int node;
	bool strict;
	uint64_t page_size_max;
	enum kvs_region_kind kind;
	bool allow_smaller;
	uint64_t size_min;
	bool lock;
	unsigned int threads;
	void (*progress)(void *arg, const struct kvs_prefault_progress *p);
	void *progress_arg;
	const atomic_bool *cancel;
	const struct kvs_topology *topology;
	const char *root;
	char *err;
	size_t err_len;
};

/**
 * struct kvs_region - the memory; readable by its owner, not to be changed
 * @magic: of a live region
 * @base: our own read-write mapping
 * @size: bytes, a multiple of @page_size
 * @fd: sealed memfd
 * @page_size: bytes
 * @node: node asked for, or -1
 * @cpu_node: node whose CPUs did the prefault; -1 when any
 * @bound: the policy was accepted
 * @verified: every page looked at is on @node
 * @write_sealed: others cannot write (never so for KVS_REGION_OFFLOAD)
 * @locked: mlocked, or of huge pages, which are never swapped
 * @prefault_ns: time the prefault took
 * @why: what was got and why not something better; one line
 */
struct kvs_region {
	uint32_t magic;
	void *base;
	uint64_t size;
	int fd;
	uint64_t page_size;
	int node;
	int cpu_node;
	bool bound;
	bool verified;
	bool write_sealed;
	bool locked;
	uint64_t prefault_ns;
	char why[KVS_REGION_WHY_MAX];
};

/**
 * kvs_region_create() - get the memory
 * @opts: what to make
 * @ret_region: the region, freed with kvs_region_destroy()
 *
 * All or nothing: on failure nothing stays mapped or open, and a corrected
 * call may follow at once.
 *
 * Context: blocks for the time of the prefault; starts and joins threads.
 * Return: 0; -EDQUOT locked-memory, memory cgroup or hugetlb cgroup limit;
 * -ENOMEM not enough host memory; -ENXIO the strict node is absent, not
 * allowed, could not be bound, or pages ended elsewhere; -ECANCELED;
 * -EINVAL a size of 0 or above 2^62, an unknown page size, a node number
 * above KVS_MAX_NODES; other errors of the system calls.
 */
int kvs_region_create(const struct kvs_region_opts *opts,
		      struct kvs_region **ret_region);

/* Unmaps and closes; users of the descriptor keep the memory. NULL is fine. */
void kvs_region_destroy(struct kvs_region *region);

/* "1G", "2M", "4K": name of a page size, for messages; static or in @buf. */
const char *kvs_page_size_name(uint64_t page_size, char buf[16]);

#endif /* KVS_PINNED_REGION_H */
