/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: topology
 *
 * Which NUMA nodes have memory, which have CPUs, and which node a GPU or a
 * network device is next to. Read once at start, immutable afterwards.
 *
 * Three things are easy to get wrong and are decided here:
 *
 *   - A node may have memory and no CPU (CXL memory, HBM in flat mode). Memory
 *     is always bound by node *number*; threads that work on such a node run
 *     on the CPUs of @cpu_node, the nearest node with CPUs.
 *   - GPU memory may show up as a node (Grace-Hopper, POWER9), larger than
 *     the others. It is never chosen automatically; naming it works.
 *   - A recorded topology describes some other machine: nothing binds
 *     according to it. kvs_topology_is_thissystem() tells.
 *
 * Device locality comes from hwloc where it is built in, else (and for what
 * hwloc does not list) from the devices' numa_node in sysfs. A node of -1
 * means "any": the device is equally near to all of them, or unknown. Next to
 * a node without memory is next to the nearest that has some, by the
 * firmware's distances.
 */
#ifndef KVS_PINNED_TOPOLOGY_H
#define KVS_PINNED_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pinned/sysfs.h"

struct kvs_topology;

/**
 * struct kvs_topology_node - one NUMA node that has memory
 * @os_index: the kernel's number, what mbind(2) takes
 * @bytes: memory of the node, bytes
 * @gpu_memory: the memory of a GPU
 * @has_cpus: it has CPUs of its own
 * @allowed: this process may allocate there (cpuset mems)
 * @cpu_node: itself when @has_cpus, else the nearest node that has CPUs; -1
 *	when no node has
 * @cpus: CPUs of @cpu_node that this process may run on; may be empty. CPU
 *	numbers from CPU_SETSIZE on are left out
 */
struct kvs_topology_node {
	int os_index;
	uint64_t bytes;
	bool gpu_memory;
	bool has_cpus;
	bool allowed;
	int cpu_node;
	cpu_set_t cpus;
};

/**
 * kvs_topology_load() - read this machine's topology, or a recorded one
 * @xml: path of an hwloc XML file, or NULL for this machine
 * @ret_topo: the topology, freed with kvs_topology_destroy()
 *
 * Context: may block for some milliseconds; not in a signal handler.
 * Return: 0; -ENOENT and other errors of the file; -EINVAL when it is not a
 * topology or lists no node with memory; -EOPNOTSUPP for @xml when built
 * without hwloc; -ENOMEM.
 */
int kvs_topology_load(const char *xml, struct kvs_topology **ret_topo);

/**
 * kvs_topology_load_sysfs() - read nodes from sysfs alone, without hwloc
 * @root: prefix of /sys and /proc, "" for this machine
 * @ret_topo: the topology
 *
 * What kvs_topology_load(NULL) does in a build without hwloc.
 * Return: as there.
 */
int kvs_topology_load_sysfs(const char *root, struct kvs_topology **ret_topo);

/* NULL is fine. */
void kvs_topology_destroy(struct kvs_topology *topo);

/* False for a recorded topology: nothing may be bound according to it. */
bool kvs_topology_is_thissystem(const struct kvs_topology *topo);

/* Nodes with memory, ascending by os_index. */
size_t kvs_topology_node_count(const struct kvs_topology *topo);
/* @i < count. The pointer lives as long as the topology. */
const struct kvs_topology_node *
kvs_topology_node_at(const struct kvs_topology *topo, size_t i);
/* NULL when there is no such node or it has no memory. */
const struct kvs_topology_node *
kvs_topology_node_find(const struct kvs_topology *topo, int os_index);

/**
 * kvs_topology_node_eligible() - may automatic placement use this node?
 * @node: node
 *
 * Return: true when it is allowed, has memory and is not GPU memory.
 */
bool kvs_topology_node_eligible(const struct kvs_topology_node *node);

/**
 * kvs_topology_pci_node() - node next to a PCI device
 * @topo: topology
 * @bdf: "0000:3b:00.0"; either case, the domain of up to eight digits may be
 *	left out
 * @ret_node: os index, or -1 for any. Never GPU memory; may be a node
 *	this process is not allowed to use: kvs_topology_auto_node() decides
 *
 * Context: may read sysfs.
 * Return: 0; -EINVAL when @bdf is not a PCI address; -ENOENT.
 */
int kvs_topology_pci_node(const struct kvs_topology *topo, const char *bdf,
			  int *ret_node);

/**
 * kvs_topology_nic_node() - node next to a network or verbs device
 * @topo: topology
 * @name: "eth0", "mlx5_0"; a bond, VLAN or soft RDMA device answers for what
 *	lies below it when that agrees
 * @ret_node: os index, or -1 for any (loopback, virtual devices)
 *
 * Context: may read sysfs.
 * Return: 0; -EINVAL when @name cannot be a device name; -ENOENT.
 */
int kvs_topology_nic_node(const struct kvs_topology *topo, const char *name,
			  int *ret_node);

/**
 * kvs_topology_each_nic() - every network and verbs device of this machine
 * @topo: topology; of a recorded one there are none
 * @fn: called with the name and the node, as kvs_topology_nic_node() has it;
 *	network devices first, each kind in the order of names
 * @arg: passed on
 *
 * Context: reads sysfs.
 * Return: 0; -ENOMEM, with some of the calls made.
 */
int kvs_topology_each_nic(const struct kvs_topology *topo,
			  void (*fn)(void *arg, const char *name, int node),
			  void *arg);

/**
 * kvs_topology_nearest() - the one of some nodes that is nearest to a node
 * @topo: topology
 * @from: os index, of a node without memory as well; or -1
 * @nodes: os indexes
 * @n: how many, > 0
 *
 * @from itself where it is one of them; else by the firmware's distance, of
 * equal ones its cpu_node, then the first. Of a recorded topology only the
 * cpu_node is known.
 *
 * Context: reads sysfs.
 * Return: index into @nodes.
 */
size_t kvs_topology_nearest(const struct kvs_topology *topo, int from,
			    const int *nodes, size_t n);

/**
 * kvs_topology_auto_node() - the node a pool should go to
 * @topo: topology
 * @near: node of the device it serves, with memory or without, or -1
 * @ret_node: @near when it is eligible, else its nearest eligible node (one
 *	with CPUs, if there is), else the eligible node with CPUs and the most
 *	memory
 *
 * Return: 0; -ENXIO when no node is eligible.
 */
int kvs_topology_auto_node(const struct kvs_topology *topo, int near,
			   int *ret_node);

#endif /* KVS_PINNED_TOPOLOGY_H */
