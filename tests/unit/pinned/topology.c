/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: nodes, the CPUs near them and the node of a device are read right
 * from recorded topologies (hwloc XML) and from a sysfs tree; GPU memory is
 * never chosen automatically (open-mpi/hwloc#357); a node without CPUs is
 * bound by number and worked on from the nearest node with CPUs
 * (vllm-project/vllm#39361); a recorded topology says that it is not this
 * machine.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/assert.h"
#include "pinned/topology.h"
#include "tests/unit/pinned/fixture.h"

#define GIB (1ULL << 30)

/* NULL, and the test is skipped, in a build without hwloc. */
static struct kvs_topology *load(const char *name)
{
	struct kvs_topology *t = NULL;
	char path[512];
	int r;

	snprintf(path, sizeof(path), "%s/%s", KVS_TOPOLOGY_DATA, name);
	r = kvs_topology_load(path, &t);
	if (r == -EOPNOTSUPP) {
		print_message("built without hwloc: recorded topologies are "
			      "refused, as they should be\n");
		skip();
	}
	assert_int_equal(r, 0);
	return t;
}

static int pci(const struct kvs_topology *t, const char *bdf)
{
	int node = -99, r = kvs_topology_pci_node(t, bdf, &node);

	if (r < 0)
		assert_int_equal(node, -99);
	return r < 0 ? r : node;
}

static int nic(const struct kvs_topology *t, const char *name)
{
	int node = -99, r = kvs_topology_nic_node(t, name, &node);

	if (r < 0)
		assert_int_equal(node, -99);
	return r < 0 ? r : node;
}

static int auto_node(const struct kvs_topology *t, int near)
{
	int node = -99, r = kvs_topology_auto_node(t, near, &node);

	return r < 0 ? r : node;
}

static void assert_cpus(const struct kvs_topology_node *n, int lo, int hi)
{
	int i;

	assert_int_equal(CPU_COUNT(&n->cpus), hi - lo + 1);
	for (i = lo; i <= hi; i++)
		assert_true(CPU_ISSET(i, &n->cpus));
}

static void test_two_nodes(void **state)
{
	struct kvs_topology *t = load("two-nodes.xml");
	const struct kvs_topology_node *n;

	(void)state;
	assert_false(kvs_topology_is_thissystem(t));
	assert_int_equal(kvs_topology_node_count(t), 2);
	n = kvs_topology_node_at(t, 1);
	assert_int_equal(n->os_index, 1);
	assert_int_equal(n->bytes, 64 * GIB);
	assert_true(n->has_cpus);
	assert_true(n->allowed);
	assert_false(n->gpu_memory);
	assert_int_equal(n->cpu_node, 1);
	assert_cpus(n, 2, 3);
	assert_null(kvs_topology_node_find(t, 2));
	kvs_topology_destroy(t);
}

static void test_devices(void **state)
{
	struct kvs_topology *t = load("two-nodes.xml");

	(void)state;
	assert_int_equal(pci(t, "0000:3b:00.0"), 1);
	assert_int_equal(pci(t, "0000:3B:00.0"), 1);
	assert_int_equal(pci(t, "00000000:3B:00.0"), 1);
	assert_int_equal(pci(t, "3b:00.0"), 1);
	assert_int_equal(pci(t, "0000:18:00.0"), 0);
	assert_int_equal(pci(t, "0001:3b:00.0"), -ENOENT);
	assert_int_equal(nic(t, "mlx5_0"), 1);
	assert_int_equal(nic(t, "ibp60s0"), 1);
	assert_int_equal(nic(t, "ens1f0"), 0);
	/* hangs off the machine, near to both */
	assert_int_equal(nic(t, "eno1"), -1);
	/* must not be answered from the sysfs of this machine */
	assert_int_equal(nic(t, "lo"), -ENOENT);
	/* an OS device, but no network */
	assert_int_equal(nic(t, "card1"), -ENOENT);
	kvs_topology_destroy(t);
}

static void test_bad_names(void **state)
{
	static const char *const bdfs[] = {
		"",
		"3b",
		"0000:3b:00",
		"0000:3b:00.",
		"0000:3b:00.0x",
		"0000:3b:20.0",
		"0000:3b:00.8",
		":3b:00.0",
		"g000:3b:00.0",
		"0000:3b:00.0\n",
		"-1:3b:00.0",
		"000000000:3b:00.0",
	};
	static const char *const nics[] = { "", "..", "../lo", "a/b" };
	struct kvs_topology *t;
	char name[80];
	size_t i;

	(void)state;
	assert_int_equal(kvs_topology_load(NULL, &t), 0);
	for (i = 0; i < KVS_ARRAY_SIZE(bdfs); i++)
		assert_int_equal(pci(t, bdfs[i]), -EINVAL);
	for (i = 0; i < KVS_ARRAY_SIZE(nics); i++)
		assert_int_equal(nic(t, nics[i]), -EINVAL);
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(nic(t, name), -EINVAL);
	kvs_topology_destroy(t);
}

static void test_not_allowed(void **state)
{
	struct kvs_topology *t = load("two-nodes-one-allowed.xml");

	(void)state;
	assert_int_equal(kvs_topology_node_count(t), 2);
	assert_false(kvs_topology_node_find(t, 1)->allowed);
	assert_false(kvs_topology_node_eligible(kvs_topology_node_find(t, 1)));
	/* where the GPU is stays a fact; where to allocate is another */
	assert_int_equal(pci(t, "0000:3b:00.0"), 1);
	assert_int_equal(auto_node(t, 1), 0);
	assert_int_equal(auto_node(t, -1), 0);
	kvs_topology_destroy(t);
}

static void test_memory_only(void **state)
{
	struct kvs_topology *t = load("memory-only-node.xml");
	const struct kvs_topology_node *n;

	(void)state;
	assert_int_equal(kvs_topology_node_count(t), 3);
	n = kvs_topology_node_find(t, 2);
	assert_non_null(n);
	assert_false(n->has_cpus);
	assert_false(n->gpu_memory);
	assert_true(kvs_topology_node_eligible(n));
	/* 14 away from node 1, 24 from node 0 */
	assert_int_equal(n->cpu_node, 1);
	assert_cpus(n, 2, 3);
	/* named, it is taken; left to us, a node with CPUs although smaller */
	assert_int_equal(auto_node(t, 2), 2);
	assert_int_equal(
		kvs_topology_node_at(t, (size_t)auto_node(t, -1))->has_cpus,
		true);
	assert_int_equal(pci(t, "0000:3b:00.0"), 1);
	kvs_topology_destroy(t);
}

static void test_gpu_memory(void **state)
{
	struct kvs_topology *t = load("gpu-memory-nodes.xml");
	const struct kvs_topology_node *gpu;

	(void)state;
	assert_int_equal(kvs_topology_node_count(t), 4);
	gpu = kvs_topology_node_find(t, 12);
	assert_non_null(gpu);
	assert_true(gpu->gpu_memory);
	assert_true(gpu->bytes > kvs_topology_node_find(t, 1)->bytes);
	assert_false(kvs_topology_node_eligible(gpu));
	assert_false(gpu->has_cpus);
	assert_int_equal(gpu->cpu_node, 1);
	assert_cpus(gpu, 4, 7);
	assert_true(kvs_topology_node_find(t, 1)->has_cpus);
	assert_int_equal(auto_node(t, -1), 0);
	assert_int_equal(auto_node(t, 12), 1);
	assert_int_equal(auto_node(t, 4), 0);
	assert_int_equal(pci(t, "0009:01:00.0"), 0);
	assert_int_equal(pci(t, "0019:01:00.0"), 1);
	kvs_topology_destroy(t);
}

static void test_load_failures(void **state)
{
	struct kvs_topology *t = NULL;
	struct fixture f;
	char path[128];
	int r;

	(void)state;
	r = kvs_topology_load("/nonexistent/topology.xml", &t);
	assert_true(r == -ENOENT || r == -EOPNOTSUPP);
	fixture_init(&f);
	fixture_file(&f, "/bad.xml", "<topology version=\"2.0\"><object");
	snprintf(path, sizeof(path), "%s/bad.xml", f.root);
	r = kvs_topology_load(path, &t);
	assert_true(r == -EINVAL || r == -EOPNOTSUPP);
	assert_int_equal(kvs_topology_load_sysfs(f.root, &t), -ENOENT);
	assert_null(t);
	fixture_fini(&f);
	kvs_topology_destroy(NULL);
}

static void add_node(const struct fixture *f, int node, uint64_t mib,
		     const char *cpus, const char *distance)
{
	char path[128], text[128];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo",
		 node);
	snprintf(text, sizeof(text), "Node %d MemTotal: %llu kB\n", node,
		 (unsigned long long)mib << 10);
	fixture_file(f, path, text);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist",
		 node);
	fixture_file(f, path, cpus);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/distance",
		 node);
	fixture_file(f, path, distance);
}

static void test_sysfs(void **state)
{
	const struct kvs_topology_node *n;
	struct kvs_topology *t;
	struct fixture f;

	(void)state;
	fixture_init(&f);
	fixture_file(&f, "/sys/devices/system/node/online", "0-1,3-5\n");
	add_node(&f, 0, 4096, "0-3\n", "10 20 30 40 50\n");
	add_node(&f, 1, 4096, "4-7\n", "20 10 12 40 15\n");
	add_node(&f, 3, 8192, "\n", "30 12 10 40 40\n");
	add_node(&f, 4, 9999, "\n", "40 40 40 10 40\n");
	add_node(&f, 5, 0, "8\n", "50 15 40 40 10\n");
	fixture_file(&f, "/proc/driver/nvidia/gpus/0000:3b:00.0/numa_status",
		     "Node: 4\nStatus: online\n");
	fixture_file(&f, "/proc/self/status",
		     "Cpus_allowed_list:\t0-5\nMems_allowed_list:\t0-2,4\n");
	fixture_file(&f, "/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
	fixture_file(&f, "/sys/bus/pci/devices/0000:3c:00.0/numa_node", "-1\n");
	fixture_file(&f, "/sys/bus/pci/devices/0000:5b:00.0/numa_node", "5\n");
	fixture_file(&f, "/sys/class/net/eth0/device/numa_node", "0\n");
	fixture_file(&f, "/sys/class/net/eth1/device/numa_node", "1\n");
	fixture_file(&f, "/sys/class/net/eth5/device/numa_node", "5\n");
	fixture_dir(&f, "/sys/class/net/lo");
	fixture_dir(&f, "/sys/class/net/bond0/lower_eth0");
	fixture_dir(&f, "/sys/class/net/bond1/lower_eth0");
	fixture_dir(&f, "/sys/class/net/bond1/lower_eth1");
	fixture_dir(&f, "/sys/class/net/loop0/lower_loop0");
	fixture_file(&f, "/sys/class/infiniband/mlx5_0/device/numa_node",
		     "1\n");
	fixture_file(&f, "/sys/class/infiniband/rxe0/parent", "eth1\n");
	fixture_file(&f, "/sys/class/infiniband/rxe1/parent", "lo\n");
	fixture_file(&f, "/sys/class/infiniband/rxe2/parent", "../net/eth1\n");
	fixture_dir(&f, "/sys/class/infiniband/siw0");

	assert_int_equal(kvs_topology_load_sysfs(f.root, &t), 0);
	assert_false(kvs_topology_is_thissystem(t));
	assert_int_equal(kvs_topology_node_count(t), 4);
	n = kvs_topology_node_find(t, 1);
	assert_int_equal(n->bytes, 4 * GIB);
	assert_cpus(n, 4, 5); /* 6 and 7 are not ours */
	n = kvs_topology_node_find(t, 3);
	assert_false(n->has_cpus);
	assert_false(n->allowed);
	assert_int_equal(n->cpu_node, 1);
	assert_cpus(n, 4, 5);
	n = kvs_topology_node_find(t, 4);
	assert_true(n->gpu_memory);
	assert_true(n->allowed);
	assert_int_equal(auto_node(t, 4), 0);
	assert_int_equal(auto_node(t, -1), 0);

	assert_int_equal(pci(t, "0000:3B:00.0"), 1);
	assert_int_equal(pci(t, "0000:3c:00.0"), -1);
	assert_int_equal(pci(t, "0000:3d:00.0"), -ENOENT);
	assert_int_equal(nic(t, "eth1"), 1);
	assert_int_equal(nic(t, "mlx5_0"), 1);
	assert_int_equal(nic(t, "lo"), -1);
	assert_int_equal(nic(t, "bond0"), 0);
	assert_int_equal(nic(t, "bond1"), -1);
	assert_int_equal(nic(t, "loop0"), -1);
	assert_int_equal(nic(t, "eth9"), -ENOENT);
	/* soft RDMA devices are where their network devices are */
	assert_int_equal(nic(t, "rxe0"), 1);
	assert_int_equal(nic(t, "rxe1"), -1);
	assert_int_equal(nic(t, "rxe2"), -1);
	assert_int_equal(nic(t, "siw0"), -1);
	/* node 5 has no memory: 1 is nearer than the others, and than 3 */
	assert_int_equal(pci(t, "0000:5b:00.0"), 1);
	assert_int_equal(nic(t, "eth5"), 1);
	assert_int_equal(auto_node(t, 5), 1);
	kvs_topology_destroy(t);
	fixture_fini(&f);
}

static void test_nearest(void **state)
{
	static const int all[] = { 0, 1, 3 }, far[] = { 0, 3 };
	struct kvs_topology *t;
	struct fixture f;

	(void)state;
	fixture_init(&f);
	fixture_file(&f, "/sys/devices/system/node/online", "0-1,3,5-6\n");
	add_node(&f, 0, 8192, "0-3\n", "10 20 20 50 20\n");
	add_node(&f, 1, 4096, "4-7\n", "20 10 20 15 20\n");
	add_node(&f, 3, 4096, "\n", "20 20 10 14 20\n");
	add_node(&f, 5, 0, "8\n", "50 15 14 10 20\n");
	add_node(&f, 6, 0, "9\n", "x\n");
	fixture_file(&f, "/proc/self/status",
		     "Cpus_allowed_list:\t0-8\nMems_allowed_list:\t0-6\n");
	assert_int_equal(kvs_topology_load_sysfs(f.root, &t), 0);
	assert_int_equal(all[kvs_topology_nearest(t, 3, all, 3)], 3);
	assert_int_equal(all[kvs_topology_nearest(t, 5, all, 3)], 3);
	assert_int_equal(far[kvs_topology_nearest(t, 1, far, 2)], 0);
	/* all the same: the node that works for it; nothing known: the first */
	assert_int_equal(far[kvs_topology_nearest(t, 3, far, 1)], 0);
	assert_int_equal(all[kvs_topology_nearest(t, 6, all, 3)], 0);
	assert_int_equal(all[kvs_topology_nearest(t, 99, all, 3)], 0);
	assert_int_equal(all[kvs_topology_nearest(t, -1, all, 3)], 0);
	assert_int_equal(far[kvs_topology_nearest(t, -7, far, 2)], 0);
	/* a pool needs a thread near it, so 3 is not for 5 */
	assert_int_equal(auto_node(t, 5), 1);
	assert_int_equal(auto_node(t, 6), 0);
	kvs_topology_destroy(t);
	fixture_fini(&f);
}

/* Allowed nodes come before nearer ones that are not. */
static void test_nearest_allowed(void **state)
{
	struct kvs_topology *t;
	struct fixture f;

	(void)state;
	fixture_init(&f);
	fixture_file(&f, "/sys/devices/system/node/online", "0-2\n");
	add_node(&f, 0, 8192, "0\n", "10 40 30\n");
	add_node(&f, 1, 4096, "1\n", "40 10 20\n");
	add_node(&f, 2, 4096, "2\n", "30 20 10\n");
	fixture_file(&f, "/proc/self/status",
		     "Cpus_allowed_list:\t0-2\nMems_allowed_list:\t0,2\n");
	assert_int_equal(kvs_topology_load_sysfs(f.root, &t), 0);
	/* the largest is 0, the nearest allowed one is 2 */
	assert_int_equal(auto_node(t, 1), 2);
	assert_int_equal(auto_node(t, -1), 0);
	kvs_topology_destroy(t);
	fixture_fini(&f);
}

struct seen {
	char text[256];
};

static void see(void *arg, const char *name, int node)
{
	struct seen *s = arg;
	size_t used = strlen(s->text);

	snprintf(s->text + used, sizeof(s->text) - used, "%s:%d ", name, node);
}

static void test_each_nic(void **state)
{
	struct seen s = { "" };
	struct kvs_topology *t;
	struct fixture f;

	(void)state;
	fixture_init(&f);
	fixture_file(&f, "/sys/devices/system/node/online", "0-1\n");
	add_node(&f, 0, 1024, "0\n", "10 20\n");
	add_node(&f, 1, 1024, "1\n", "20 10\n");
	assert_int_equal(kvs_topology_load_sysfs(f.root, &t), 0);
	assert_int_equal(kvs_topology_each_nic(t, see, &s), 0);
	assert_string_equal(s.text, "");
	fixture_file(&f, "/sys/class/net/eth1/device/numa_node", "0\n");
	fixture_file(&f, "/sys/class/net/eth0/device/numa_node", "1\n");
	fixture_dir(&f, "/sys/class/net/lo");
	fixture_file(&f, "/sys/class/infiniband/rxe0/parent", "eth0\n");
	assert_int_equal(kvs_topology_each_nic(t, see, &s), 0);
	assert_string_equal(s.text, "eth0:1 eth1:0 lo:-1 rxe0:1 ");
	kvs_topology_destroy(t);
	fixture_fini(&f);
}

static void test_single_node_device(void **state)
{
	struct kvs_topology *t;
	struct fixture f;

	(void)state;
	fixture_init(&f);
	fixture_file(&f, "/sys/devices/system/node/online", "0\n");
	add_node(&f, 0, 1024, "0-3\n", "10\n");
	fixture_file(&f, "/proc/meminfo", "MemTotal: 4194304 kB\n");
	fixture_file(&f, "/sys/bus/pci/devices/0000:00:04.0/numa_node", "-1\n");
	assert_int_equal(kvs_topology_load_sysfs(f.root, &t), 0);
	/* firmware says nothing, but there is only one place to be */
	assert_int_equal(pci(t, "0000:00:04.0"), 0);
	/* the node's own file lags behind the machine's total */
	assert_int_equal(kvs_topology_node_at(t, 0)->bytes, 4 * GIB);
	kvs_topology_destroy(t);
	fixture_fini(&f);
}

static void test_this_machine(void **state)
{
	const struct kvs_topology_node *n;
	struct kvs_topology *t, *s;
	size_t i;

	(void)state;
	assert_int_equal(kvs_topology_load(NULL, &t), 0);
	assert_int_equal(kvs_topology_load_sysfs(NULL, &s), 0);
	assert_true(kvs_topology_is_thissystem(t));
	assert_true(kvs_topology_is_thissystem(s));
	assert_true(auto_node(t, -1) >= 0);
	assert_int_equal(auto_node(t, -1), auto_node(s, -1));
	/* the two readers agree about what both list */
	for (i = 0; i < kvs_topology_node_count(t); i++) {
		n = kvs_topology_node_find(
			s, kvs_topology_node_at(t, i)->os_index);
		assert_non_null(n);
		assert_int_equal(n->allowed,
				 kvs_topology_node_at(t, i)->allowed);
		if (n->has_cpus)
			assert_true(CPU_EQUAL(
				&n->cpus, &kvs_topology_node_at(t, i)->cpus));
	}
	assert_int_equal(nic(t, "lo"), -1);
	kvs_topology_destroy(s);
	kvs_topology_destroy(t);
}

/* taskset, or CPUAffinity= of a unit: no CPU outside is one of ours. */
static void test_masked(void **state)
{
	const struct kvs_topology_node *n;
	struct kvs_topology *t;
	cpu_set_t old, one;
	int cpu = 0, total = 0;
	size_t i;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(old), &old), 0);
	while (!CPU_ISSET(cpu, &old))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(kvs_topology_load(NULL, &t), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(old), &old), 0);
	for (i = 0; i < kvs_topology_node_count(t); i++) {
		n = kvs_topology_node_at(t, i);
		assert_true(!CPU_COUNT(&n->cpus) || CPU_EQUAL(&n->cpus, &one));
		if (n->has_cpus)
			total += CPU_COUNT(&n->cpus);
	}
	assert_in_range(total, 0, 1);
	kvs_topology_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_nodes),
		cmocka_unit_test(test_devices),
		cmocka_unit_test(test_bad_names),
		cmocka_unit_test(test_not_allowed),
		cmocka_unit_test(test_memory_only),
		cmocka_unit_test(test_gpu_memory),
		cmocka_unit_test(test_load_failures),
		cmocka_unit_test(test_sysfs),
		cmocka_unit_test(test_nearest),
		cmocka_unit_test(test_nearest_allowed),
		cmocka_unit_test(test_each_nic),
		cmocka_unit_test(test_single_node_device),
		cmocka_unit_test(test_this_machine),
		cmocka_unit_test(test_masked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
