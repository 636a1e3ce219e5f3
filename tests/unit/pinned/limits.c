/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: limits are found before they kill us, from a tree of files that
 * stands for the machine. Memory cgroups of either version, a limit on a
 * parent only (vllm-project/vllm#45086), page cache that does not count
 * (kekzl/imp#2070), hugetlb cgroups (Mellanox/libxlio#204), locked memory
 * (openucx/ucx#7930), a cpuset without the node (sgl-project/sglang#27368).
 * Each refusal's text has the numbers and the setting.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "pinned/limits.h"
#include "tests/unit/pinned/fixture.h"

#define MIB (1ULL << 20)
#define GIB (1ULL << 30)

static struct fixture fx;
static char err[1024];

static int setup(void **state)
{
	(void)state;
	fixture_init(&fx);
	fixture_file(&fx, "/proc/meminfo",
		     "MemTotal:       67108864 kB\n"
		     "MemFree:        33554432 kB\n"
		     "MemAvailable:   50331648 kB\n");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fixture_fini(&fx);
	return 0;
}

static int check_with(const struct kvs_limits_want *want)
{
	struct kvs_limits lim;
	int r;

	assert_int_equal(kvs_limits_read(fx.root, &lim), 0);
	memset(err, 0, sizeof(err));
	r = kvs_limits_check(&lim, want, err, sizeof(err));
	if (!r)
		assert_int_equal(err[0], 0);
	kvs_limits_fini(&lim);
	return r;
}

static int check(uint64_t bytes)
{
	struct kvs_limits_want want = {
		.bytes = bytes,
		.page_size = (uint64_t)sysconf(_SC_PAGESIZE),
		.node = -1,
	};

	return check_with(&want);
}

static void assert_says(const char *text)
{
	if (!strstr(err, text))
		fail_msg("\"%s\" is not in: %s", text, err);
}

static void cgroup_v1(const char *self, const char *mnt_root)
{
	char text[512];

	snprintf(text, sizeof(text),
		 "9:name=systemd:/\n4:memory:%s\n3:hugetlb,cpu:%s\n0::/\n",
		 self, self);
	fixture_file(&fx, "/proc/self/cgroup", text);
	snprintf(text, sizeof(text),
		 "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
		 "35 31 0:32 %s /sys/fs/cgroup/memory rw shared:9 - cgroup "
		 "cgroup rw,memory\n"
		 "36 31 0:33 %s /sys/fs/cgroup/huge\\040tlb rw - cgroup cgroup "
		 "rw,cpu,hugetlb\n",
		 mnt_root, mnt_root);
	fixture_file(&fx, "/proc/self/mountinfo", text);
}

static void cgroup_v2(const char *self, const char *mnt_root, const char *opts)
{
	char text[512];

	snprintf(text, sizeof(text), "0::%s\n", self);
	fixture_file(&fx, "/proc/self/cgroup", text);
	snprintf(text, sizeof(text),
		 "30 23 0:26 %s /sys/fs/cgroup rw,nosuid shared:4 master:1 - "
		 "cgroup2 cgroup2 rw%s\n",
		 mnt_root, opts);
	fixture_file(&fx, "/proc/self/mountinfo", text);
}

static void test_v1_limit(void **state)
{
	(void)state;
	cgroup_v1("/pods/a", "/");
	fixture_file(&fx, "/sys/fs/cgroup/memory/pods/a/memory.limit_in_bytes",
		     "536870912\n");
	fixture_file(&fx, "/sys/fs/cgroup/memory/pods/a/memory.usage_in_bytes",
		     "1048576\n");
	fixture_file(&fx, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		     "9223372036854771712\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("1073741824 bytes");
	assert_says("effective limit is 536870912 bytes");
	assert_says("/sys/fs/cgroup/memory/pods/a/memory.limit_in_bytes");
	assert_says("pool.size");
	assert_int_equal(check(256 * MIB), 0);
}

static void test_v1_parent_only(void **state)
{
	(void)state;
	cgroup_v1("/pods/a/b", "/");
	fixture_file(&fx,
		     "/sys/fs/cgroup/memory/pods/a/b/memory.limit_in_bytes",
		     "9223372036854771712\n");
	fixture_file(&fx, "/sys/fs/cgroup/memory/pods/memory.limit_in_bytes",
		     "536870912\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("536870912");
	assert_says("(/sys/fs/cgroup/memory/pods/memory.limit_in_bytes)");
}

static void test_v1_unseen_parent(void **state)
{
	(void)state;
	/* the container's mount shows its own group only */
	cgroup_v1("/docker/0123", "/docker/0123");
	fixture_file(&fx, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		     "9223372036854771712\n");
	fixture_file(&fx, "/sys/fs/cgroup/memory/memory.stat",
		     "cache 0\nhierarchical_memory_limit 536870912\n"
		     "total_inactive_file 0\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("536870912");
	assert_says("hierarchical_memory_limit");
}

static void test_v2_limit(void **state)
{
	(void)state;
	cgroup_v2("/system.slice/kvstaged.service", "/", "");
	fixture_file(&fx,
		     "/sys/fs/cgroup/system.slice/kvstaged.service/memory.max",
		     "536870912\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("536870912");
	assert_says("kvstaged.service/memory.max");
	assert_int_equal(check(256 * MIB), 0);
}

static void test_v2_parent_only(void **state)
{
	(void)state;
	cgroup_v2("/a/b/c", "/", "");
	fixture_file(&fx, "/sys/fs/cgroup/a/b/c/memory.max", "max\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/b/memory.max", "8589934592\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.max", "536870912\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.current", "0\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("(/sys/fs/cgroup/a/memory.max)");
}

/* A larger limit that siblings have used up is the tighter one. */
static void test_v2_least_room_decides(void **state)
{
	(void)state;
	cgroup_v2("/a/b", "/", "");
	fixture_file(&fx, "/sys/fs/cgroup/a/b/memory.max", "4294967296\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.max", "8589934592\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.current", "8053063680\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("(/sys/fs/cgroup/a/memory.max)");
	assert_says("8053063680 bytes of it in use");
}

static void test_v2_namespaces(void **state)
{
	(void)state;
	/* with a cgroup namespace: our group is the root of the mount */
	cgroup_v2("/", "/", "");
	fixture_file(&fx, "/sys/fs/cgroup/memory.max", "536870912\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("(/sys/fs/cgroup/memory.max)");
	/* outside of what is mounted: the mount point is all there is */
	cgroup_v2("/../x", "/", "");
	assert_int_equal(check(GIB), -EDQUOT);
	cgroup_v2("/host/pod/c", "/host/pod", "");
	fixture_file(&fx, "/sys/fs/cgroup/memory.max", "max\n");
	fixture_file(&fx, "/sys/fs/cgroup/c/memory.max", "268435456\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("(/sys/fs/cgroup/c/memory.max)");
	/* a name that merely begins the same is another group */
	cgroup_v2("/host/podium/c", "/host/pod", "");
	assert_int_equal(check(GIB), 0);
}

static void test_v2_high(void **state)
{
	(void)state;
	cgroup_v2("/a", "/", "");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.max", "8589934592\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.high", "536870912\n");
	assert_int_equal(check(GIB), -EDQUOT);
	assert_says("/sys/fs/cgroup/a/memory.high");
}

static void test_page_cache_v2(void **state)
{
	(void)state;
	cgroup_v2("/a", "/", "");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.max", "4294967296\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.current", "3758096384\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.stat",
		     "anon 104857600\nfile 3221225472\n"
		     "inactive_file 2147483648\nactive_file 1073741824\n");
	assert_int_equal(check(2 * GIB), 0);
	assert_int_equal(check(4 * GIB + GIB / 2), -EDQUOT);
	assert_says("536870912 bytes of it in use and not reclaimable");
	/* the two numbers are not read at once */
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.current", "1048576\n");
	assert_int_equal(check(2 * GIB), 0);
}

static void test_page_cache_v1(void **state)
{
	(void)state;
	cgroup_v1("/a", "/");
	fixture_file(&fx, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
		     "4294967296\n");
	fixture_file(&fx, "/sys/fs/cgroup/memory/a/memory.usage_in_bytes",
		     "3758096384\n");
	fixture_file(&fx, "/sys/fs/cgroup/memory/a/memory.stat",
		     "inactive_file 0\nactive_file 0\n"
		     "total_inactive_file 2147483648\n"
		     "total_active_file 1073741824\n");
	assert_int_equal(check(2 * GIB), 0);
	assert_int_equal(check(4 * GIB + GIB / 2), -EDQUOT);
}

static void huge_pages(const char *kb, const char *freep, const char *resv)
{
	char path[128];

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%skB/nr_hugepages", kb);
	fixture_file(&fx, path, freep);
	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%skB/free_hugepages", kb);
	fixture_file(&fx, path, freep);
	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%skB/resv_hugepages", kb);
	fixture_file(&fx, path, resv);
}

static int check_huge(uint64_t bytes, uint64_t page_size, int node)
{
	struct kvs_limits_want want = {
		.bytes = bytes,
		.page_size = page_size,
		.node = node,
		.setting = "offload.size",
	};

	return check_with(&want);
}

static void test_huge_pages(void **state)
{
	(void)state;
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), -ENOMEM);
	huge_pages("2048", "600\n", "100\n");
	assert_int_equal(check_huge(1000 * MIB, KVS_PAGE_2M, -1), 0);
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), -ENOMEM);
	assert_says("512 huge pages of 2M are needed and 500 available");
	assert_says("offload.size");
	fixture_file(&fx,
		     "/sys/kernel/mm/hugepages/hugepages-2048kB/"
		     "nr_overcommit_hugepages",
		     "12\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), 0);
	/* huge pages do not come out of MemAvailable */
	fixture_file(&fx, "/proc/meminfo", "MemAvailable: 1024 kB\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), 0);
	assert_int_equal(check_huge(3 * MIB, KVS_PAGE_2M, -1), -EINVAL);
	assert_int_equal(check_huge(16 * MIB, 16 * MIB, -1), -EINVAL);
}

static void test_huge_pages_of_node(void **state)
{
	(void)state;
	huge_pages("2048", "600\n", "0\n");
	fixture_file(&fx, "/sys/devices/system/node/online", "0-1\n");
	fixture_file(&fx,
		     "/sys/devices/system/node/node1/hugepages/"
		     "hugepages-2048kB/free_hugepages",
		     "88\n");
	fixture_file(&fx,
		     "/sys/devices/system/node/node0/hugepages/"
		     "hugepages-2048kB/free_hugepages",
		     "512\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, 0), 0);
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, 1), -ENOMEM);
	assert_says("88 available on NUMA node 1");
}

static void test_hugetlb_cgroup(void **state)
{
	(void)state;
	huge_pages("2048", "1000\n", "0\n");
	cgroup_v1("/a/b", "/");
	fixture_file(&fx,
		     "/sys/fs/cgroup/huge tlb/a/hugetlb.2MB.limit_in_bytes",
		     "536870912\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), -EDQUOT);
	assert_says("hugetlb cgroup");
	assert_says("536870912");
	assert_says("/a/hugetlb.2MB.limit_in_bytes");
	assert_int_equal(check_huge(256 * MIB, KVS_PAGE_2M, -1), 0);

	cgroup_v2("/a/b", "/", "");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), 0);
	fixture_file(&fx, "/sys/fs/cgroup/a/b/hugetlb.2MB.max", "max\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/hugetlb.2MB.rsvd.max",
		     "1073741824\n");
	fixture_file(&fx, "/sys/fs/cgroup/a/hugetlb.2MB.rsvd.current",
		     "2097152\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), -EDQUOT);
	assert_says("/sys/fs/cgroup/a/hugetlb.2MB.rsvd.max");
	/* the other size has limits of its own */
	huge_pages("1048576", "1\n", "0\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_1G, -1), 0);
}

/* Huge pages count in the memory cgroup only where mounted so. */
static void test_hugetlb_in_memory_cgroup(void **state)
{
	(void)state;
	huge_pages("2048", "1000\n", "0\n");
	cgroup_v2("/a", "/", "");
	fixture_file(&fx, "/sys/fs/cgroup/a/memory.max", "536870912\n");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), 0);
	cgroup_v2("/a", "/", ",memory_hugetlb_accounting");
	assert_int_equal(check_huge(GIB, KVS_PAGE_2M, -1), -EDQUOT);
	assert_says("/sys/fs/cgroup/a/memory.max");
}

static void test_cpuset(void **state)
{
	struct kvs_limits_want want = { .bytes = MIB,
					.page_size = 4096,
					.node = 1 };

	(void)state;
	want.page_size = (uint64_t)sysconf(_SC_PAGESIZE);
	assert_int_equal(check_with(&want),
			 0); /* nothing known, nothing said */
	fixture_file(&fx, "/proc/self/status", "Mems_allowed_list:\t0,2-3\n");
	assert_int_equal(check_with(&want), -ENXIO);
	assert_says("NUMA node 1");
	assert_says("mems_allowed is 0,2-3");
	assert_says("ENXIO");
	want.node = 2;
	assert_int_equal(check_with(&want), 0);
	want.node = KVS_MAX_NODES;
	assert_int_equal(check_with(&want), -ENXIO);
}

static void memlock(const char *cap, const char *used)
{
	char text[256];

	fixture_file(&fx, "/proc/self/limits",
		     "Limit                     Soft Limit           Hard "
		     "Limit           Units\n"
		     "Max locked memory         67108864             134217728 "
		     "           bytes\n");
	snprintf(text, sizeof(text), "VmLck:\t%s kB\nCapEff:\t%s\n", used, cap);
	fixture_file(&fx, "/proc/self/status", text);
}

static void test_memlock(void **state)
{
	struct kvs_limits_want want = { .bytes = GIB, .node = -1 };

	(void)state;
	want.page_size = (uint64_t)sysconf(_SC_PAGESIZE);
	memlock("0000000000000000", "0");
	assert_int_equal(check_with(&want), 0); /* not to be locked */
	want.needs_lock = true;
	assert_int_equal(check_with(&want), -EDQUOT);
	assert_says("1073741824 bytes");
	assert_says("67108864 bytes soft");
	assert_says("134217728 bytes hard");
	assert_says("LimitMEMLOCK");
	assert_says("pool.size");
	/* what is locked already counts */
	want.bytes = 64 * MIB;
	assert_int_equal(check_with(&want), 0);
	memlock("0000000000000000", "4");
	assert_int_equal(check_with(&want), -EDQUOT);
	/* CAP_IPC_LOCK is bit 14 */
	memlock("0000000000004000", "0");
	want.bytes = GIB;
	assert_int_equal(check_with(&want), 0);
	/* and worth nothing in a user namespace */
	fixture_file(&fx, "/proc/self/uid_map", "0 100000 65536\n");
	assert_int_equal(check_with(&want), -EDQUOT);
	fixture_file(&fx, "/proc/self/uid_map", "  0   0 4294967295\n");
	assert_int_equal(check_with(&want), 0);
	fixture_file(&fx, "/proc/self/limits",
		     "Max locked memory  unlimited  unlimited  bytes\n");
	memlock("0000000000000000", "0");
	fixture_file(&fx, "/proc/self/limits",
		     "Max locked memory  unlimited  unlimited  bytes\n");
	assert_int_equal(check_with(&want), 0);
}

static void test_host_memory(void **state)
{
	(void)state;
	assert_int_equal(check(100 * 64 * GIB), -ENOMEM);
	assert_says("host memory");
	assert_says("6871947673600 bytes");
	assert_says("51539607552 bytes");
	assert_says("MemAvailable");
	assert_says("pool.size");
	assert_int_equal(check(32 * GIB), 0);
	/* exactly all of it leaves nothing for page tables */
	assert_int_equal(check(48 * GIB), -ENOMEM);
	assert_int_equal(check(0), -EINVAL);
	assert_int_equal(check(1ULL << 63), -EINVAL);
}

static void test_node_memory(void **state)
{
	struct kvs_limits_want want = { .bytes = 4 * GIB, .node = 1 };

	(void)state;
	want.page_size = (uint64_t)sysconf(_SC_PAGESIZE);
	fixture_file(&fx, "/sys/devices/system/node/online", "0-1\n");
	fixture_file(&fx, "/sys/devices/system/node/node1/meminfo",
		     "Node 1 MemTotal: 33554432 kB\n"
		     "Node 1 MemFree:  1048576 kB\n"
		     "Node 1 Active(file): 1048576 kB\n"
		     "Node 1 Inactive(file): 1048576 kB\n");
	assert_int_equal(check_with(&want), -ENOMEM);
	assert_says("3221225472 bytes of host memory are available on NUMA "
		    "node 1");
	want.bytes = 3 * GIB;
	assert_int_equal(check_with(&want), 0);
	want.bytes = 4 * GIB;
	want.node = -1;
	assert_int_equal(check_with(&want), 0);
}

/* Files that make no sense limit nothing and upset nobody. */
static void test_garbage(void **state)
{
	(void)state;
	fixture_file(&fx, "/proc/self/cgroup",
		     "\n::\n0\n0:\n4:memory\n0::/a\n");
	fixture_file(&fx, "/proc/self/mountinfo",
		     "\n - \nx - cgroup2\n1 2 3 / /c rw - cgroup2 c rw\n"
		     "1 2 3 / - cgroup cgroup rw,memory\n");
	fixture_file(&fx, "/c/a/memory.max", "lots\n");
	fixture_file(&fx, "/c/a/memory.stat", "inactive_file\nactive_file x\n");
	fixture_file(&fx, "/proc/self/limits", "Max locked memory\n");
	fixture_file(&fx, "/proc/self/status",
		     "Mems_allowed_list:\tx-y\nCapEff:\n");
	fixture_file(&fx, "/sys/devices/system/node/online", "-3\n");
	assert_int_equal(check(GIB), 0);
}

static void test_no_meminfo(void **state)
{
	struct kvs_limits lim;

	(void)state;
	assert_int_equal(kvs_limits_read("/nonexistent", &lim), -ENOENT);
}

static void test_short_buffer(void **state)
{
	struct kvs_limits_want want = { .bytes = 1ULL << 50, .node = -1 };
	struct kvs_limits lim;
	char small[16];

	(void)state;
	want.page_size = (uint64_t)sysconf(_SC_PAGESIZE);
	assert_int_equal(kvs_limits_read(fx.root, &lim), 0);
	memset(small, 'x', sizeof(small));
	assert_int_equal(kvs_limits_check(&lim, &want, small,
					  sizeof(small) - 1),
			 -ENOMEM);
	assert_int_equal(strlen(small), sizeof(small) - 2);
	assert_int_equal(small[sizeof(small) - 1], 'x');
	assert_int_equal(kvs_limits_check(&lim, &want, NULL, 0), -ENOMEM);
	kvs_limits_fini(&lim);
}

static void test_this_machine(void **state)
{
	struct kvs_limits lim;

	(void)state;
	assert_int_equal(kvs_limits_read(NULL, &lim), 0);
	assert_true(lim.mem_available > 0);
	assert_true(lim.n_nodes == 0 ||
		    kvs_mask_test(lim.mems_allowed,
				  (unsigned int)lim.nodes[0].node) ||
		    lim.n_nodes > 1);
	kvs_limits_fini(&lim);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_v1_limit),	  T(test_v1_parent_only),
		T(test_v1_unseen_parent), T(test_v2_limit),
		T(test_v2_parent_only),	  T(test_v2_least_room_decides),
		T(test_v2_namespaces),	  T(test_v2_high),
		T(test_page_cache_v2),	  T(test_page_cache_v1),
		T(test_huge_pages),	  T(test_huge_pages_of_node),
		T(test_hugetlb_cgroup),	  T(test_hugetlb_in_memory_cgroup),
		T(test_cpuset),		  T(test_memlock),
		T(test_host_memory),	  T(test_node_memory),
		T(test_garbage),	  T(test_no_meminfo),
		T(test_short_buffer),	  T(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
