/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: limits
 *
 * What stands between a wish for memory and the memory, read before the first
 * byte is touched: too late to ask once the kernel answers with SIGKILL
 * (memory cgroup), SIGBUS (hugetlb cgroup, huge pages gone) or a bare ENOMEM
 * (locked memory). Read once per decision; the world moves on, so a check
 * that passes is advice and the caller still handles failure.
 *
 * Memory cgroups are followed from our own group to the top of what is
 * mounted, v1 and v2, and the group that leaves least room decides. Page
 * cache in the charge does not count: the kernel drops it for us. memory.high
 * counts as a limit: a pool above it is not killed, it only never arrives.
 */
#ifndef KVS_PINNED_LIMITS_H
#define KVS_PINNED_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pinned/sysfs.h"

#define KVS_PAGE_2M (2ULL << 20)
#define KVS_PAGE_1G (1ULL << 30)
#define KVS_LIMIT_NONE UINT64_MAX

enum kvs_limits_huge_size {
	KVS_LIMITS_2M,
	KVS_LIMITS_1G,
	KVS_LIMITS_HUGE_MAX,
};

/**
 * struct kvs_limits_cgroup - the group that leaves least room
 * @limit: bytes, KVS_LIMIT_NONE when nothing limits
 * @charge: bytes charged to it that cannot be dropped
 * @room: @limit - @charge, or 0; KVS_LIMIT_NONE when nothing limits
 * @path: file the limit is in, NULL when nothing limits
 */
struct kvs_limits_cgroup {
	uint64_t limit;
	uint64_t charge;
	uint64_t room;
	char *path;
};

/**
 * struct kvs_limits_huge - one huge page size
 * @page_size: bytes
 * @supported: the kernel has it
 * @free: pages that can still be had (free and not reserved by others, plus
 *	what overcommit allows)
 * @overcommit: pages of @free that overcommit would have to allocate first
 * @cgroup: hugetlb cgroup
 */
struct kvs_limits_huge {
	uint64_t page_size;
	bool supported;
	uint64_t free;
	uint64_t overcommit;
	struct kvs_limits_cgroup cgroup;
};

/**
 * struct kvs_limits_node - one NUMA node
 * @node: os index
 * @mem_free: bytes
 * @mem_avail: bytes, with the file pages the kernel would drop
 * @huge_free: free pages per huge page size
 */
struct kvs_limits_node {
	int node;
	uint64_t mem_free;
	uint64_t mem_avail;
	uint64_t huge_free[KVS_LIMITS_HUGE_MAX];
};

/**
 * struct kvs_limits - what was read
 * @memlock_soft: RLIMIT_MEMLOCK, bytes, KVS_LIMIT_NONE for unlimited
 * @memlock_hard: its hard limit
 * @memlock_used: bytes locked or pinned already
 * @memlock_bypass: CAP_IPC_LOCK is effective (and in the first user
 *	namespace, where alone the kernel honours it)
 * @memory: memory cgroup
 * @memory_has_hugetlb: huge pages are charged to the memory cgroup too
 * @huge: by enum kvs_limits_huge_size
 * @mems_allowed: cpuset, KVS_MAX_NODES bits; all set where unknown
 * @mem_available: MemAvailable of /proc/meminfo, bytes
 * @nodes: @n_nodes entries
 */
struct kvs_limits {
	uint64_t memlock_soft;
	uint64_t memlock_hard;
	uint64_t memlock_used;
	bool memlock_bypass;
	struct kvs_limits_cgroup memory;
	bool memory_has_hugetlb;
	struct kvs_limits_huge huge[KVS_LIMITS_HUGE_MAX];
	uint64_t mems_allowed[KVS_MASK_WORDS(KVS_MAX_NODES)];
	uint64_t mem_available;
	struct kvs_limits_node *nodes;
	size_t n_nodes;
};

/**
 * kvs_limits_read() - read them all
 * @root: prefix of /proc and /sys, NULL or "" for this machine
 * @ret: filled; kvs_limits_fini() when done
 *
 * A file that is not there limits nothing; one that cannot be understood is
 * treated the same. Only /proc/meminfo must be readable.
 *
 * Context: any thread, reads files.
 * Return: 0; -ENOMEM; what reading /proc/meminfo gave.
 */
int kvs_limits_read(const char *root, struct kvs_limits *ret);
void kvs_limits_fini(struct kvs_limits *lim);

/**
 * struct kvs_limits_want - what is to be had
 * @bytes: size, a multiple of @page_size
 * @page_size: bytes: the base page, KVS_PAGE_2M or KVS_PAGE_1G
 * @needs_lock: it will be locked or registered (mlock, verbs, io_uring)
 * @node: it must come from this node; -1 when not bound strictly
 * @setting: name of the setting to blame, NULL for "pool.size"
 */
struct kvs_limits_want {
	uint64_t bytes;
	uint64_t page_size;
	bool needs_lock;
	int node;
	const char *setting;
};

/**
 * kvs_limits_check() - would it fit?
 * @lim: limits
 * @want: wish
 * @errbuf: receives one line that names the limit, the numbers and the
 *	setting; untouched on success; may be NULL
 * @len: size of @errbuf in bytes
 *
 * Context: any thread, does not block.
 * Return: 0; -ENXIO node not allowed; -EDQUOT locked memory, memory cgroup or
 * hugetlb cgroup; -ENOMEM host memory or huge pages do not suffice; -EINVAL
 * for a wish that makes no sense (zero, above 2^62 bytes, unknown page size).
 */
int kvs_limits_check(const struct kvs_limits *lim,
		     const struct kvs_limits_want *want, char *errbuf,
		     size_t len);

#endif /* KVS_PINNED_LIMITS_H */
